//! The files that a prompt mentions with `@`, and where they may be.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn local(root: &Path) -> Local {
    Local::of(Workspace::open(root).unwrap())
}

#[test]
fn only_words_that_begin_with_an_at_sign_name_files() {
    assert_eq!(
        mentioned(
            "look at @src/lib.rs, (@in.txt) \"@q.txt\" at @my\\ file.txt. Not at me@example.org @src/lib.rs"
        ),
        ["src/lib.rs", "in.txt", "q.txt", "my file.txt"]
    );
}

#[tokio::test]
async fn files_come_from_the_workspace_and_pictures_from_where_the_user_says() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("work");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("a.txt"), "first\nsecond\n").unwrap();
    std::fs::write(root.join("in.png"), b"\x89PNG\r\n\x1a\n in").unwrap();
    std::fs::write(root.join("no.png"), b"no picture").unwrap();
    std::fs::write(folder.path().join("secret.txt"), "secret").unwrap();
    let out = folder.path().join("out.png");
    std::fs::write(&out, b"\x89PNG\r\n\x1a\n out").unwrap();
    let local = local(&root);
    let see = "see @a.txt and (@absent.txt) @../secret.txt @more @none.png";
    std::fs::create_dir(root.join("more")).unwrap();
    let Whole { text, images, notes } = local.with_files(see, see, true).await;
    assert!(text.contains("<file path=\"a.txt\">") && text.contains("second"), "{text}");
    assert_eq!(text.matches("<file path").count(), 1, "{text}");
    assert!(images.is_empty());
    // The user must learn which mentioned files are not attached.
    let named: Vec<&str> =
        notes.iter().map(|note| note.split_once(" is sent as text: ").unwrap().0).collect();
    assert_eq!(named, ["@absent.txt", "@../secret.txt", "@more", "@none.png"]);
    let prompt = format!("see @in.png and @{}", out.display());
    for (is_typed, wanted) in [(true, 2), (false, 1)] {
        let Whole { text, images, .. } = local.with_files(&prompt, &prompt, is_typed).await;
        assert_eq!((text.as_str(), images.len()), (prompt.as_str(), wanted), "typed: {is_typed}");
    }
    // Something other than a file, such as a pipe without a writer, does not block.
    std::fs::create_dir(root.join("folder.png")).unwrap();
    for (prompt, reason) in [
        ("see @no.png", "@no.png is sent as text: no.png: not a PNG"),
        ("see @folder.png", "@folder.png is sent as text: folder.png is not a file"),
    ] {
        let Whole { text, images, notes } = local.with_files(prompt, prompt, true).await;
        assert_eq!((text.as_str(), images.len()), (prompt, 0));
        assert!(notes.len() == 1 && notes[0].starts_with(reason), "{notes:?}");
    }
}

#[tokio::test]
async fn files_are_offered_the_nearest_first() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["src/parse.rs", "docs/compare.md", "parts.txt", "other.txt"] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    assert_eq!(local(folder.path()).matching("par").await, ["parts.txt", "src/parse.rs", "docs/compare.md"]);
}

#[tokio::test]
async fn a_folder_of_many_files_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("huge")).unwrap();
    for number in 0..3_000 {
        std::fs::write(folder.path().join(format!("huge/f{number:04}")), "").unwrap();
    }
    std::fs::write(folder.path().join("plain text.txt"), "x").unwrap();
    std::fs::write(folder.path().join("two\nlines.txt"), "x").unwrap();
    let local = local(folder.path());
    assert_eq!(local.matching("plain\\ t").await, ["plain\\ text.txt"]);
    assert_eq!(local.matching("f2999").await, ["huge/f2999"]);
    assert_eq!(local.matching("lines").await, Vec::<String>::new(), "it could not be typed");
}

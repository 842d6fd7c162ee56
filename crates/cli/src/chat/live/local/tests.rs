//! What a prompt names with `@`, and from where it may come.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn local(root: &Path) -> Local {
    let workspace = Workspace::open(root).unwrap();
    let files = builtin::read_only(workspace.clone());
    Local { folder: workspace.root().to_owned(), workspace, files, may_run: false }
}

#[test]
fn only_words_that_begin_with_an_at_sign_name_files() {
    assert_eq!(
        mentioned("look at @src/lib.rs, and (@no) at @my\\ file.txt. Not at me@example.org @src/lib.rs"),
        ["src/lib.rs", "my file.txt"]
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
    let (text, images) = local.with_files("see @a.txt and @absent.txt @../secret.txt", true).await.unwrap();
    assert!(text.contains("<file path=\"a.txt\">") && text.contains("second"), "{text}");
    assert!(!text.contains("<file path=\"absent") && !text.contains("\nsecret"), "{text}");
    assert!(images.is_empty());
    let prompt = format!("see @in.png and @{}", out.display());
    for (is_typed, wanted) in [(true, 2), (false, 1)] {
        let (text, images) = local.with_files(&prompt, is_typed).await.unwrap();
        assert_eq!((text.as_str(), images.len()), (prompt.as_str(), wanted), "typed: {is_typed}");
    }
    let problem = local.with_files("see @no.png", true).await.unwrap_err();
    assert!(problem.contains("no.png: these bytes are no PNG"), "{problem}");
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

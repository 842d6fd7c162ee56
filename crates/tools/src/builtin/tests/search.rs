//! `list` and `grep`.

use greenroom_kernel::message::blocks_text;
use serde_json::json;

use super::Fixture;

fn project() -> Fixture {
    Fixture::new(&[
        (".git/HEAD", "ref: fox\n"),
        (".git/info/exclude", "private\n"),
        (".gitignore", "# built\n/target\n*.log\n!keep.log\n"),
        ("README.md", "The quick\nbrown fox\njumps\nover\nthe lazy dog\n"),
        ("keep.log", "fox\n"),
        ("private/notes", "fox\n"),
        ("src/.gitignore", "generated/\n"),
        ("src/a.rs", "fn fox() {}\n// Fox\nfn dog() {}\n"),
        ("src/deep/er/b.ts", "let fox = 1;\r\n"),
        ("src/deep/target/c.rs", "fox\n"),
        ("src/generated/d.rs", "fox\n"),
        ("target/e.rs", "fox\n"),
        ("x.log", "fox\n"),
    ])
}

#[tokio::test]
async fn list() {
    let fixture = project();
    std::os::unix::fs::symlink("/etc", fixture.path().join("link")).expect("a link is made");
    let top = ".gitignore\nREADME.md\nkeep.log\nlink@\nsrc/\n";
    for (arguments, expect) in [
        (json!({"depth": 1}), top),
        (json!({}), &format!("{top}src/.gitignore\nsrc/a.rs\nsrc/deep/\n")),
        (
            json!({"path": "src/deep"}),
            "src/deep/er/\nsrc/deep/er/b.ts\nsrc/deep/target/\nsrc/deep/target/c.rs\n",
        ),
        (json!({"path": "./src/", "depth": 1}), "src/.gitignore\nsrc/a.rs\nsrc/deep/\n"),
        // An ignored folder is listed when it is named itself.
        (json!({"path": "target"}), "target/e.rs\n"),
    ] {
        assert_eq!(fixture.check("list", arguments, expect).await, []);
    }
    std::fs::create_dir(fixture.path().join("void")).expect("a folder is made");
    fixture.check("list", json!({"path": "void"}), "`void` is empty, or all in it is ignored").await;
    for (arguments, expect) in [
        (json!({"path": "none"}), "`none` does not exist"),
        (json!({"path": "README.md"}), "not a folder"),
        (json!({"path": ".."}), "leads outside"),
        (json!({"path": "link"}), "leads outside"),
        (json!({"depth": 0}), "counts from 1"),
    ] {
        fixture.check_error("list", arguments, expect).await;
    }
}

#[tokio::test]
async fn long_lists_are_cut() {
    let names: Vec<String> = (0..2_500).map(|number| format!("file{number:05}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let fixture = Fixture::new(&files);
    let text = blocks_text(&fixture.call("list", json!({})).await.content);
    assert_eq!(text.lines().count(), 1_901);
    assert!(
        text.ends_with("file01899\n[... more left out; list a subfolder, or with a smaller depth ...]\n")
    );
}

#[tokio::test]
async fn grep() {
    let fixture = project();
    let all = "README.md:2: brown fox\nkeep.log:1: fox\nsrc/a.rs:1: fn fox() {}\n\
               src/deep/er/b.ts:1: let fox = 1;\nsrc/deep/target/c.rs:1: fox\n";
    for (arguments, expect) in [
        (json!({"pattern": "fox"}), all),
        (json!({"pattern": "^fox$"}), "keep.log:1: fox\nsrc/deep/target/c.rs:1: fox\n"),
        (json!({"pattern": "1;$"}), "src/deep/er/b.ts:1: let fox = 1;\n"),
        (json!({"pattern": "FOX", "path": "src/a.rs"}), "no line matches\n"),
        (
            json!({"pattern": "FOX", "path": "src/a.rs", "ignore_case": true}),
            "src/a.rs:1: fn fox() {}\nsrc/a.rs:2: // Fox\n",
        ),
        (json!({"pattern": "fox", "glob": "*.rs"}), "src/a.rs:1: fn fox() {}\nsrc/deep/target/c.rs:1: fox\n"),
        (json!({"pattern": "fox", "glob": "src/*.rs"}), "src/a.rs:1: fn fox() {}\n"),
        (
            json!({"pattern": "fox", "glob": "*.{md,ts}"}),
            "README.md:2: brown fox\nsrc/deep/er/b.ts:1: let fox = 1;\n",
        ),
        (json!({"pattern": "fox", "path": "target"}), "target/e.rs:1: fox\n"),
        (
            json!({"pattern": "fox|lazy", "path": "README.md", "context": 1}),
            "README.md-1- The quick\nREADME.md:2: brown fox\nREADME.md-3- jumps\n\
             README.md-4- over\nREADME.md:5: the lazy dog\n",
        ),
        (
            json!({"pattern": "quick|dog", "glob": "*.{md,rs}", "context": 1}),
            "README.md:1: The quick\nREADME.md-2- brown fox\n--\nREADME.md-4- over\nREADME.md:5: the lazy dog\n\
             --\nsrc/a.rs-2- // Fox\nsrc/a.rs:3: fn dog() {}\n",
        ),
    ] {
        assert_eq!(fixture.check("grep", arguments, expect).await, []);
    }
    for (arguments, expect) in [
        (json!({"pattern": "("}), "the pattern is not valid: regex parse error"),
        (json!({"pattern": "a{1000}{1000}{1000}"}), "the pattern is not valid"),
        (json!({"pattern": "a", "glob": "["}), "`glob`: error parsing glob"),
        (json!({"pattern": "a", "path": "none"}), "`none` does not exist"),
        (json!({"pattern": "a", "path": "/etc"}), "leads outside"),
    ] {
        fixture.check_error("grep", arguments, expect).await;
    }
}

/// A search finds what `read` shows.
#[tokio::test]
async fn grep_finds_text_in_other_encodings() {
    let fixture = Fixture::new(&[("bom.cs", "\u{feff}using café;\r\n")]);
    let wide: Vec<u8> = "\u{feff}using café;\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(fixture.path().join("wide.cs"), wide).expect("written");
    std::fs::write(fixture.path().join("latin.cs"), b"using caf\xe9;\n").expect("written");
    std::fs::write(fixture.path().join("odd.cs"), b"\xff\xfeabc").expect("written");
    let expect = "bom.cs:1: using café;\nlatin.cs:1: using café;\nwide.cs:1: using café;\n";
    fixture.check("grep", json!({"pattern": "^using café;$"}), expect).await;
}

#[tokio::test]
async fn grep_passes_over_what_is_not_text_and_cuts_long_results() {
    let fixture = Fixture::new(&[
        ("binary", "fox\0fox\n"),
        ("long", &format!("fox {}\n", "é".repeat(1_000))),
        ("many", &"a fox\n".repeat(10_000)),
    ]);
    let text = blocks_text(&fixture.call("grep", json!({"pattern": "fox"})).await.content);
    assert!(
        text.starts_with("long:1: fox é") && text.contains("é [... 1504 more bytes in this line]\n"),
        "{text}"
    );
    assert!(text.ends_with("[... more matches left out; search a subfolder, or for something rarer ...]\n"));
    assert_eq!(text.lines().count(), 1_901);
    std::fs::write(fixture.path().join("huge"), "fox\n".repeat(5_000_000)).expect("written");
    let expect = "no line matches\n[files larger than 16777216 bytes passed over: 1]\n";
    fixture.check("grep", json!({"pattern": "fox", "glob": "h*"}), expect).await;
}

//! `read`, `write` and `edit`.

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{Block, ToolStatus, Touch};
use serde_json::json;

use super::{Fixture, context, touched};
use crate::builtin::files_and_shell;
use crate::{Progress, ToolContext, Workspace};

#[tokio::test]
async fn read() {
    let long = "word ".repeat(1_000);
    let fixture = Fixture::new(&[
        ("a.txt", "one\ntwo\nthree\n"),
        ("src/no_end.rs", "fn main() {}\nlast"),
        ("empty", ""),
        ("bom.txt", "\u{feff}first\r\nsecond\r\n"),
        ("long.txt", &format!("{long}\nnext\n")),
        ("blank.txt", "\n\n"),
        ("many.txt", &"x\n".repeat(5_000)),
        ("wide.txt", &format!("{}\n", "y".repeat(1_000)).repeat(100)),
        (".git/config", "[core]\n"),
    ]);
    let absolute = fixture.path().join("a.txt");
    for (arguments, expect) in [
        (json!({"path": "a.txt"}), "1\tone\n2\ttwo\n3\tthree\n"),
        (json!({"path": "./src/../a.txt", "offset": 2}), "2\ttwo\n3\tthree\n"),
        (json!({"path": absolute}), "1\tone\n2\ttwo\n3\tthree\n"),
        (json!({"path": "a.txt", "limit": 1}), "1\tone\n[lines 1 to 1 of 3; continue with offset 2]\n"),
        (
            json!({"path": "a.txt", "offset": 2, "limit": 1}),
            "2\ttwo\n[lines 2 to 2 of 3; continue with offset 3]\n",
        ),
        (json!({"path": "a.txt", "offset": 3, "limit": 9}), "3\tthree\n"),
        (json!({"path": "src/no_end.rs"}), "1\tfn main() {}\n2\tlast\n"),
        (json!({"path": "empty"}), "`empty` is empty"),
        (json!({"path": "bom.txt"}), "1\tfirst\n2\tsecond\n"),
        (json!({"path": "blank.txt"}), "1\t\n2\t\n"),
        (json!({"path": ".git/config"}), "1\t[core]\n"),
        (
            json!({"path": "long.txt"}),
            &format!("1\t{} [... line of 5000 bytes cut]\n2\tnext\n", &long[..2_000]),
        ),
    ] {
        let read = fixture.check("read", arguments, expect).await;
        assert!(
            read.len() == 1 && read[0].touch == Touch::Read && !read[0].path.starts_with('/'),
            "{read:?}"
        );
    }
    assert_eq!(
        fixture.check("read", json!({"path": "empty"}), "`empty` is empty").await,
        touched("empty", Touch::Read)
    );
    for (arguments, expect) in [
        (json!({"path": "b.txt"}), "`b.txt` does not exist"),
        (json!({"path": "src/no_end.rb"}), "`src/no_end.rb` does not exist; did you mean `src/no_end.rs`?"),
        (json!({"path": "src"}), "`src` is a folder, not a regular file"),
        (json!({"path": "."}), "`.` is a folder, not a regular file"),
        (json!({"path": "a.txt/b"}), "`a.txt/b`: Not a directory"),
        (json!({"path": "a.txt", "offset": 4}), "has 3 lines; `offset` 4 is past its end"),
        (json!({"path": "a.txt", "offset": 0}), "count from 1"),
        (json!({"path": "a.txt", "offset": -1}), "at `offset`: invalid value: integer `-1`"),
        (json!({"file": "a.txt"}), "unknown field `file`, expected one of `path`, `offset`, `limit`"),
    ] {
        fixture.check_error("read", arguments, expect).await;
    }
    for (path, last, total) in [("many.txt", 1_900, 5_000), ("wide.txt", 48, 100)] {
        let text = blocks_text(&fixture.call("read", json!({"path": path})).await.content);
        let end = format!("[lines 1 to {last} of {total}; continue with offset {}]\n", last + 1);
        assert!(text.ends_with(&end), "{}", &text[text.len() - 100..]);
        assert!(!text.contains("left out"), "the registry cut nothing more");
    }
}

#[tokio::test]
async fn read_of_what_is_not_text() {
    let fixture = Fixture::new(&[("binary", "a\0b")]);
    fixture.check_error("read", json!({"path": "binary"}), "`binary` is not text but binary, 3 bytes").await;
    let latin = fixture.path().join("latin.txt");
    std::fs::write(latin, b"caf\xe9\n").expect("written");
    fixture.check("read", json!({"path": "latin.txt"}), "1\tcaf\u{fffd}\n").await;
    for (head, media_type) in [
        (&b"\x89PNG\r\n\x1a\n\0\0"[..], "image/png"),
        (b"\xff\xd8\xff\xe0\0", "image/jpeg"),
        (b"GIF89a\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ] {
        std::fs::write(fixture.path().join("picture"), head).expect("written");
        let result = fixture.call("read", json!({"path": "picture"})).await;
        assert_eq!((result.status, result.content.len()), (ToolStatus::Ok, 2), "{media_type}");
        let Block::Image(image) = &result.content[1] else { panic!("no image: {:?}", result.content) };
        assert_eq!(image.media_type, media_type);
        assert_eq!(result.touched, touched("picture", Touch::Read));
    }
    let mut large = b"GIF89a".to_vec();
    large.resize(5 * 1024 * 1024 + 1, 7);
    std::fs::write(fixture.path().join("picture"), &large).expect("written");
    fixture
        .check_error("read", json!({"path": "picture"}), "is an image of 5242881 bytes; at most 5242880")
        .await;
    large.pop();
    std::fs::write(fixture.path().join("picture"), &large).expect("written");
    let result = fixture.call("read", json!({"path": "picture"})).await;
    let Block::Image(image) = &result.content[1] else { panic!("no image") };
    assert_eq!(image.data.len(), (5 * 1024 * 1024_usize).div_ceil(3) * 4);
}

#[tokio::test]
async fn write() {
    let fixture =
        Fixture::new(&[("a.sh", "old"), (".git/config", "[core]\n"), ("greenroom.yaml", "model: m\n")]);
    let mode = |path: &str| {
        std::fs::metadata(fixture.path().join(path)).expect("it exists").permissions().mode() & 0o777
    };
    let script = fixture.path().join("a.sh");
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o750)).expect("permissions are set");
    let modified = fixture
        .check("write", json!({"path": "a.sh", "content": "new\nlines"}), "replaced `a.sh`: 2 lines, 9 bytes")
        .await;
    assert_eq!(modified, touched("a.sh", Touch::Modified));
    assert_eq!((fixture.content("a.sh").as_str(), mode("a.sh")), ("new\nlines", 0o750));
    let deep = fixture.path().join("x/y/z.txt");
    let modified = fixture
        .check("write", json!({"path": deep, "content": ""}), "created `x/y/z.txt`: 0 lines, 0 bytes")
        .await;
    assert_eq!(modified, touched("x/y/z.txt", Touch::Modified));
    assert_eq!(fixture.content("x/y/z.txt"), "");
    for (path, expect) in [
        ("x", "`x` is a folder, not a regular file"),
        ("", "`.` is a folder"),
        ("a.sh/b", "`a.sh` is a file, or goes through one, not a folder"),
        ("../b", "`../b` leads outside the workspace"),
        ("x/../../b", "leads outside the workspace"),
        ("/etc/greenroom-test", "leads outside the workspace"),
        (".git/config", "`.git/config` is read-only: `.git` is protected"),
        (".git/hooks/pre-commit", "`.git` is protected"),
        ("x/../.git/config", "`.git` is protected"),
        ("vendor/.GIT/config", "`.GIT` is protected"),
        (".git", "`.git` is protected"),
        ("greenroom.yaml", "`greenroom.yaml` is protected"),
        ("x/Greenroom.yaml", "`Greenroom.yaml` is protected"),
        ("a\0b", "no NUL bytes"),
    ] {
        fixture.check_error("write", json!({"path": path, "content": "evil"}), expect).await;
        fixture.check_error("edit", json!({"path": path, "old": "o", "new": "evil"}), "").await;
    }
    assert_eq!(fixture.content(".git/config"), "[core]\n");
    assert_eq!(fixture.content("greenroom.yaml"), "model: m\n");
    let mut names: Vec<String> = std::fs::read_dir(fixture.path())
        .expect("it exists")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, [".git", "a.sh", "greenroom.yaml", "x"], "nothing else was left");
}

#[tokio::test]
async fn new_files_may_have_the_permissions_of_somebody_else() {
    for (umask, of_file, of_folder) in [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kept = folder.path().join("kept");
        std::fs::write(&kept, "old").expect("written");
        std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o644)).expect("permissions are set");
        let workspace = Workspace::open(folder.path()).expect("the folder exists").with_umask(umask);
        let fixture = Fixture { registry: files_and_shell(workspace, super::bare()), folder };
        for path in ["x/y/new", "kept"] {
            let result = fixture.call("write", json!({"path": path, "content": "new"})).await;
            assert_eq!(result.status, ToolStatus::Ok, "{result:?}");
        }
        let mode = |path: &str| {
            std::fs::metadata(fixture.path().join(path)).expect("it exists").permissions().mode() & 0o777
        };
        assert_eq!((mode("x/y/new"), mode("x"), mode("x/y")), (of_file, of_folder, of_folder));
        assert_eq!(mode("kept"), 0o644, "a file that was there keeps its own");
    }
}

#[tokio::test]
async fn edit() {
    // Before, old, new, all; then after and what is said, or the error.
    type Case<'a> = (&'a str, &'a str, &'a str, bool, Result<(&'a str, &'a str), &'a str>);
    let cases: &[Case<'_>] = &[
        ("one\ntwo\n", "two", "2", false, Ok(("one\n2\n", "edited `f`: 1 replacement at line 2"))),
        ("one\ntwo\n", "one\ntwo\n", "", false, Ok(("", "edited `f`: 1 replacement at line 1"))),
        ("a b a\na", "a", "c", true, Ok(("c b c\nc", "edited `f`: 3 replacements at lines 1, 1, 2"))),
        ("a b a\na", "a", "c", false, Err("`old` occurs 3 times, at lines 1, 1, 2; take in more lines")),
        ("aaa", "aa", "b", false, Ok(("ba", "edited `f`: 1 replacement at line 1"))),
        // Line endings and the byte order mark are preserved.
        (
            "one\r\ntwo\r\n",
            "one\ntwo",
            "1\n2\n3",
            false,
            Ok(("1\r\n2\r\n3\r\n", "edited `f`: 1 replacement at line 1")),
        ),
        (
            "one\r\ntwo\r\n",
            "one\r\ntwo",
            "1\r\n2",
            false,
            Ok(("1\r\n2\r\n", "edited `f`: 1 replacement at line 1")),
        ),
        (
            "one\r\ntwo\r\n",
            "two",
            "a\nb",
            false,
            Ok(("one\r\na\r\nb\r\n", "edited `f`: 1 replacement at line 2")),
        ),
        ("one\ntwo\n", "one\r\ntwo", "1\r\n2", false, Ok(("1\n2\n", "edited `f`: 1 replacement at line 1"))),
        ("a\r\nb\nc\n", "b\nc", "d", false, Ok(("a\r\nd\n", "edited `f`: 1 replacement at line 2"))),
        ("\u{feff}one\n", "one", "1", false, Ok(("\u{feff}1\n", "edited `f`: 1 replacement at line 1"))),
        // Nothing is interpreted as a pattern.
        ("a.c\nabc\n", "a.c", "$1\\n", false, Ok(("$1\\n\nabc\n", "edited `f`: 1 replacement at line 1"))),
        ("漢字\n", "字", "詞", false, Ok(("漢詞\n", "edited `f`: 1 replacement at line 1"))),
        ("one\n", "", "x", false, Err("`old` is empty; use `write`")),
        ("one\n", "one", "one", false, Err("`old` and `new` are the same")),
        ("one\n", "zzz", "x", false, Err("was not changed: `old` does not occur in it")),
        (
            "    let x = 1;\n",
            "let  x = 1;",
            "y",
            false,
            Err("; line 1 differs only in blanks or case: \"    let x = 1;\""),
        ),
        (
            "fn a() {}\nfn total(items: &[u32]) {}\n",
            "fn total(items: &[u64]) {}",
            "x",
            false,
            Err("; the closest is line 2: \"fn total(items: &[u32]) {}\""),
        ),
        (
            "a {\n  b\n}\n",
            "a {\n  c",
            "x",
            false,
            Err("; line 1 of `old` is at line 1, but the lines around it differ"),
        ),
        ("one\n", "\n\n", "x", false, Err("does not occur in it (it is blank)")),
    ];
    for (before, old, new, all, expect) in cases {
        let fixture = Fixture::new(&[("f", before)]);
        let arguments = json!({"path": "f", "old": old, "new": new, "all": all});
        match expect {
            Ok((after, said)) => {
                assert_eq!(fixture.check("edit", arguments, said).await, touched("f", Touch::Modified));
                assert_eq!(&fixture.content("f"), after);
            }
            Err(expect) => {
                fixture.check_error("edit", arguments, expect).await;
                assert_eq!(&fixture.content("f"), before);
            }
        }
    }
    let fixture = Fixture::new(&[]);
    std::fs::write(fixture.path().join("latin"), b"caf\xe9\n").expect("written");
    fixture
        .check_error("edit", json!({"path": "latin", "old": "caf", "new": "x"}), "is not UTF-8 text")
        .await;
    fixture
        .check_error("edit", json!({"path": "none/f", "old": "a", "new": "b"}), "`none/f` does not exist")
        .await;
    assert!(!fixture.path().join("none").exists(), "an edit makes no folders");
}

#[tokio::test]
async fn a_file_that_is_written_anew_tells_people_what_changed() {
    let fixture = Fixture::new(&[]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let write = async |content: &str| {
        let lines = Arc::clone(&told);
        let progress = Progress::new(move |line| lines.lock().expect("whole").push(line));
        let context = ToolContext { progress, ..context() };
        let result =
            fixture.call_with("write", json!({ "path": "a.txt", "content": content }), context).await;
        assert_eq!(result.status, ToolStatus::Ok);
        std::mem::take(&mut *told.lock().expect("whole"))
    };
    assert!(write("one\ntwo\nthree\n").await.is_empty(), "all of it is new");
    assert_eq!(write("one\nTWO\nthree\n").await, ["diff 4", " one", "-two", "+TWO", " three"]);
    assert_eq!(write("one\nTWO\nthree\n").await, ["diff 0"]);
    write(&"long line of it\n".repeat(30_000)).await;
    assert!(write("short\n").await.is_empty(), "of a large file nobody is told");
}

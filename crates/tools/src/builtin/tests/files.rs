//! `read`, `write` and `edit`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
    let latin = "1\tcaf\u{e9}\n[not UTF-8: read as Windows-1252; `edit` and `write` keep that]\n";
    fixture.check("read", json!({"path": "latin.txt"}), latin).await;
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
    std::fs::write(fixture.path().join("binary"), b"a\0\xff\n").expect("written");
    fixture
        .check_error("edit", json!({"path": "binary", "old": "a", "new": "x"}), "is not text and was not")
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
    assert_eq!(write("one\nTWO\nthree\n").await, ["diff 5", "@@ 1 1", " one", "-two", "+TWO", " three"]);
    assert_eq!(write("one\nTWO\nthree\n").await, ["diff 0"]);
    write(&"long line of it\n".repeat(30_000)).await;
    assert!(write("short\n").await.is_empty(), "of a large file nobody is told");
}

#[tokio::test]
async fn an_edit_tells_people_what_changed_and_where() {
    let lines = |changed: &[usize]| {
        let line = |number: usize| {
            let text = if changed.contains(&number) { "new" } else { "old" };
            format!("{text} {number}\n")
        };
        (1..=40).map(line).collect::<String>()
    };
    let before = lines(&[]);
    let fixture = Fixture::new(&[("a.txt", &before)]);
    let told = Arc::new(Mutex::new(Vec::new()));
    for (old, new, wanted) in [
        (
            "old 20\n",
            "new 20\nmore\n",
            vec![
                "diff 8", "@@ 18 18", " old 18", " old 19", "-old 20", "+new 20", "+more", " old 21",
                " old 22",
            ],
        ),
        (
            "old 30",
            "new 30",
            vec!["diff 7", "@@ 29 29", " old 28", " old 29", "-old 30", "+new 30", " old 31", " old 32"],
        ),
    ] {
        let lines = Arc::clone(&told);
        let progress = Progress::new(move |line| lines.lock().expect("whole").push(line));
        fixture.call("read", json!({ "path": "a.txt" })).await;
        let arguments = json!({ "path": "a.txt", "old": old, "new": new });
        let result = fixture.call_with("edit", arguments, ToolContext { progress, ..context() }).await;
        assert_eq!(result.status, ToolStatus::Ok);
        assert_eq!(std::mem::take(&mut *told.lock().expect("whole")), wanted);
    }
}

/// What a file is before, what is done to it, and what it is then and what is said.
type Form<'a> = (&'a [u8], &'a str, serde_json::Value, Result<(&'a [u8], &'a str), &'a str>);

async fn check_forms(cases: &[Form<'_>]) {
    for (before, tool, arguments, expect) in cases {
        let fixture = Fixture::new(&[]);
        std::fs::write(fixture.path().join("f"), before).expect("written");
        let result = fixture.call(tool, arguments.clone()).await;
        let said = blocks_text(&result.content);
        let after = std::fs::read(fixture.path().join("f")).expect("it is there");
        match expect {
            Ok((wanted, words)) => {
                assert_eq!((result.status, &*said), (ToolStatus::Ok, *words), "{tool} {arguments}");
                assert_eq!(&after, wanted, "{tool} {arguments}: {after:x?}");
            }
            Err(words) => {
                assert!(said.contains(words), "{tool} {arguments}: {said}");
                assert_eq!((result.status, &after[..]), (ToolStatus::Error, *before), "{tool} {arguments}");
            }
        }
    }
}

#[tokio::test]
async fn a_changed_file_keeps_its_encoding_and_its_line_ends() {
    let write = |content: &str| json!({"path": "f", "content": content});
    let edit = |old: &str, new: &str| json!({"path": "f", "old": old, "new": new});
    let read = || json!({"path": "f"});
    check_forms(&[
        (
            b"a\r\nb\r\n",
            "write",
            write("x\ny\n"),
            Ok((b"x\r\ny\r\n", "replaced `f`: 2 lines, 6 bytes; its CRLF line ends were kept")),
        ),
        // Those of the new content, a file with both, and a file without any.
        (b"a\r\n", "write", write("x\r\ny\n"), Ok((b"x\r\ny\n", "replaced `f`: 2 lines, 5 bytes"))),
        (b"a\r\nb\n", "write", write("x\ny\n"), Ok((b"x\ny\n", "replaced `f`: 2 lines, 4 bytes"))),
        (b"", "write", write("x\n"), Ok((b"x\n", "replaced `f`: 1 lines, 2 bytes"))),
        (
            b"\xef\xbb\xbfa\n",
            "write",
            write("x\n"),
            Ok((b"\xef\xbb\xbfx\n", "replaced `f`: 1 lines, 5 bytes; its byte order mark was kept")),
        ),
        (
            b"\xff\xfea\0\r\0\n\0",
            "write",
            write("\u{e9}\n"),
            Ok((
                b"\xff\xfe\xe9\0\r\0\n\0",
                "replaced `f`: 1 lines, 8 bytes; its CRLF line ends were kept; its encoding, UTF-16LE, was kept",
            )),
        ),
        (
            b"\xe9\n",
            "write",
            write("\u{fc}\u{20ac}\n"),
            Ok((b"\xfc\x80\n", "replaced `f`: 1 lines, 3 bytes; its encoding, Windows-1252, was kept")),
        ),
        (
            b"\xe9\n",
            "write",
            write("\u{5b57}\n"),
            Ok((
                "\u{5b57}\n".as_bytes(),
                "replaced `f`: 1 lines, 4 bytes; it is UTF-8 now: Windows-1252 does not have all of these characters",
            )),
        ),
        (b"a\0\xff", "write", write("x\n"), Ok((b"x\n", "replaced `f`: 1 lines, 2 bytes"))),
        (
            b"\xfe\xff\0a\0\n\0b",
            "edit",
            edit("a\nb", "\u{5b57}"),
            Ok((b"\xfe\xff\x5b\x57", "edited `f`: 1 replacement at line 1")),
        ),
        (
            b"caf\xe9 \x93x\x94\r\n",
            "edit",
            edit("\u{e9} \u{201c}x", "\u{e8}\n"),
            Ok((b"caf\xe8\r\n\x94\r\n", "edited `f`: 1 replacement at line 1")),
        ),
        (b"caf\xe9", "edit", edit("\u{e9}", "\u{5b57}"), Err("which does not have '\u{5b57}'")),
        (
            b"\xff\xfea\0\n\0\xe9\0",
            "read",
            read(),
            Ok((b"\xff\xfea\0\n\0\xe9\0", "1\ta\n2\t\u{e9}\n[UTF-16LE; `edit` and `write` keep that]\n")),
        ),
        (b"\xff\xfea\0b", "read", read(), Err("begins like UTF-16LE, but is not text: 5 bytes")),
        (
            b"\x7fELF\x02\0",
            "read",
            read(),
            Err("is not text but binary, 6 bytes; it looks like an ELF program or library; it begins with 7f 45 4c"),
        ),
        (b"a\0b\0c\0d\0", "read", read(), Err("it looks like UTF-16 text without a byte order mark")),
        (b"\0\x01\0\0", "read", read(), Err("binary, 4 bytes; it begins with 00 01 00 00")),
    ])
    .await;
}

#[tokio::test]
async fn an_edit_needs_the_version_that_was_read() {
    let fixture = Fixture::new(&[("f", "one two\n")]);
    let edit = |old: &str| json!({"path": "f", "old": old, "new": "x"});
    let others_write = |content: &str| std::fs::write(fixture.path().join("f"), content).expect("written");
    // Never read: the text alone decides.
    fixture.check("edit", edit("one"), "edited `f`: 1 replacement at line 1").await;
    others_write("one two three\n");
    let stale = "`f` has changed since you last read it; read it again";
    fixture.check_error("edit", edit("one"), stale).await;
    // Another session has not read it.
    let other = ToolContext::new("another", "c");
    assert_eq!(fixture.call_with("edit", edit("three"), other).await.status, ToolStatus::Ok);
    fixture.check_error("edit", edit("one"), stale).await;
    assert_eq!(fixture.content("f"), "one two x\n");
    fixture.check("read", json!({"path": "f"}), "1\tone two x\n").await;
    fixture.check("edit", edit("one"), "edited `f`: 1 replacement at line 1").await;
    fixture.check("edit", edit("two"), "edited `f`: 1 replacement at line 1").await;
    // A command is somebody else, too.
    assert_eq!(fixture.call("bash", json!({"command": "echo two more >> f"})).await.status, ToolStatus::Ok);
    fixture.check_error("edit", edit("two"), stale).await;
    fixture.check("write", json!({"path": "f", "content": "y\n"}), "replaced `f`: 1 lines, 2 bytes").await;
    fixture.check("edit", edit("y"), "edited `f`: 1 replacement at line 1").await;
}

#[tokio::test]
async fn a_changed_file_keeps_its_attributes_and_tells_of_its_other_names() {
    let fixture = Fixture::new(&[("f", "a\n"), ("tight", "a\n")]);
    let path = fixture.path().join("f");
    let has_attributes =
        rustix::fs::setxattr(&path, "user.origin", b"ours", rustix::fs::XattrFlags::empty()).is_ok();
    std::fs::hard_link(&path, fixture.path().join("other")).expect("a link is made");
    std::fs::hard_link(&path, fixture.path().join("third")).expect("a link is made");
    let said = "replaced `f`: 1 lines, 2 bytes; its 2 other names (hard links) keep the old content";
    fixture.check("write", json!({"path": "f", "content": "b\n"}), said).await;
    assert_eq!((fixture.content("f").as_str(), fixture.content("other").as_str()), ("b\n", "a\n"));
    let said = "edited `other`: 1 replacement at line 1; its 1 other name (hard links) keeps the old content";
    fixture.check("edit", json!({"path": "other", "old": "a", "new": "c"}), said).await;
    if has_attributes {
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(&path, "user.origin", &mut value[..]).expect("it was kept");
        assert_eq!(&value[..length], b"ours");
    }
    // Only root can give files to others; the group is kept where it may be.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("root may");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4711)).expect("ours");
        fixture
            .check(
                "edit",
                json!({"path": "f", "old": "b", "new": "c"}),
                "edited `f`: 1 replacement at line 1",
            )
            .await;
        let now = std::fs::metadata(&path).expect("it is there");
        assert_eq!((now.uid(), now.gid(), now.permissions().mode() & 0o7777), (12, 34, 0o4711));
    }
}

#[tokio::test]
async fn of_a_huge_file_only_the_beginning_is_counted() {
    let fixture = Fixture::new(&[]);
    let line = format!("{}\n", "x".repeat(1_023));
    let huge = line.repeat(65 * 1024);
    std::fs::write(fixture.path().join("huge"), &huge).expect("written");
    let said = format!(
        "1\t{}\n[lines 1 to 1 of many; the file has 68157440 bytes; continue with offset 2]\n",
        &line[..1_023]
    );
    fixture.check("read", json!({"path": "huge", "limit": 1}), &said).await;
    let said = format!("66560\t{}\n", &line[..1_023]);
    fixture.check("read", json!({"path": "huge", "offset": 66_560}), &said).await;
    fixture.check_error("read", json!({"path": "huge", "offset": 66_561}), "has 66560 lines").await;
    fixture
        .check_error("edit", json!({"path": "huge", "old": "x", "new": "y"}), "is the limit for edits")
        .await;
}

/// Whoever approves a call sees whether a file is replaced, also where its content is not compared.
#[tokio::test]
async fn previews() {
    let large = "x\n".repeat(200_000);
    let fixture = Fixture::new(&[("small", "a\nb\n"), ("large", &large)]);
    std::fs::write(fixture.path().join("binary"), b"\0\xff").expect("written");
    for (path, expect) in [
        ("small", "-a\n-b\n+new"),
        ("missing", "+new"),
        ("large", "replaces a file of 400000 bytes, which is not compared:\n+new"),
        ("binary", "replaces a file of 2 bytes, which is not compared:\n+new"),
    ] {
        let write = fixture.registry.get("write").expect("built in");
        let preview = write.preview(&json!({"path": path, "content": "new\n"})).await;
        assert_eq!(preview.as_deref(), Some(expect), "{path}");
    }
}

/// A text that occurs very often costs one pass over the file, and so does one that occurs nowhere.
#[tokio::test]
async fn edits_of_large_files() {
    let fixture = Fixture::new(&[("often", &"ab\n".repeat(1_500_000)), ("lines", &"line\n".repeat(300_000))]);
    let often = json!({"path": "often", "old": "a", "new": "c"});
    fixture.check_error("edit", often, "`old` occurs 1500000 times, at lines 1, 2, 3").await;
    let absent = json!({"path": "lines", "old": "abcdefghij".repeat(10_000), "new": "c"});
    fixture.check_error("edit", absent, "`old` does not occur in it").await;
}

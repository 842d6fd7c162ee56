//! How many sockets are covered, and what with.

use super::*;

fn paths(texts: &[String]) -> Vec<PathBuf> {
    texts.iter().map(PathBuf::from).collect()
}

#[test]
fn too_many_sockets_are_covered_with_their_folders_or_refused() {
    let many = |folder: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{folder}/{n:04}")).collect()
    };
    let is_needed = |folder: &Path| folder.starts_with("/ws") || folder == Path::new("/");
    let max = SOCKETS_MAX;
    // The sockets; how many are covered alone, and the folders; or a part of the refusal.
    type Row = (Vec<String>, std::result::Result<(usize, &'static [&'static str]), &'static str>);
    let rows: [Row; 6] = [
        (Vec::new(), Ok((0, &[]))),
        (many("/ws", max), Ok((max, &[]))),
        (many("/a", max + 1), Ok((0, &["/a"]))),
        ([many("/a/b", max), many("/a", 1), many("/ws/x", 5)].concat(), Ok((5, &["/a"]))),
        (many("/ws", max + 1), Err("sockets of other programs")),
        ((0..=max).map(|n| format!("/{n}/s")).collect(), Err("one folder")),
    ];
    for (sockets, expect) in rows {
        let count = sockets.len();
        match (covering(paths(&sockets), is_needed), expect) {
            (Ok(covered), Ok((alone, folders))) => {
                assert_eq!(
                    (covered.sockets.len(), covered.folders),
                    (alone, folders.iter().map(PathBuf::from).collect())
                );
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, expect) => panic!("{count}: {found:?}, not {expect:?}"),
        }
    }
}

#[test]
fn folders_that_commands_need_are_not_covered() {
    let places = Places {
        writable: vec!["/home/u/ws".into()],
        read_only: vec!["/private/output".into()],
        replaced: vec![("/private/tmp".into(), "/tmp".into())],
        ..Places::default()
    };
    for (folder, expect) in [
        ("/", true),
        ("/usr/lib/x", true),
        ("/etc", true),
        ("/home", true),
        ("/home/u", true),
        ("/home/u/ws", true),
        ("/home/u/ws/sub", true),
        ("/home/u/other", false),
        ("/private", true),
        ("/private/tmp", true),
        ("/var/lib/mysql", false),
    ] {
        assert_eq!(is_needed(Path::new(folder), &places), expect, "{folder}");
    }
}

#[test]
fn only_a_command_that_did_not_start_is_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (there, gone) = (folder.path().join("there"), folder.path().join("gone"));
    std::fs::write(&there, "").expect("written");
    let ready = Ready { sockets: vec![there.clone(), gone.clone()], ..Ready::default() };
    let said =
        |path: &Path| format!("bwrap: Can't create file at {}: Read-only file system\n", path.display());
    for (output, expect) in [
        (said(&gone), true),
        (said(&gone).replace("create file at", "mkdir parents for"), true),
        (said(&there), false),
        (said(Path::new("/elsewhere/gone")), false),
        (format!("started\n{}", said(&gone)), false),
        ("bwrap: Can't create file at".to_owned(), false),
        (String::new(), false),
    ] {
        assert_eq!(ready.was_outrun(&output), expect, "{output}");
    }
}

#[test]
fn what_is_missing_in_a_hidden_folder_needs_no_placeholder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().canonicalize().expect("a temporary folder");
    std::fs::create_dir(root.join("config")).expect("a temporary folder");
    let closed = ["config/file.yaml", "config", "data/journal", "data"].map(|name| root.join(name));
    assert_eq!(present_and_missing(&closed), (vec![root.join("config")], vec![root.join("data"); 2]));
}

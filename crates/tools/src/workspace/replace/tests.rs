//! A file that has the name at the last moment keeps it.

use super::*;

/// What was examined, and what is there when the new file gets the name.
#[test]
fn what_came_meanwhile_keeps_the_name() {
    type Put = fn(&OwnedFd, &str, &str, &WorkspacePath, Option<&Before>) -> Result<(), ToolsError>;
    let puts: [(&str, Put); 2] = [("put", put), ("put_plainly", put_plainly)];
    for (how, put) in puts {
        // The content before, the content now (`None`: no file), and whether it is replaced.
        for (before, now, is_put) in [
            (None, None, true),
            (None, Some("theirs"), false),
            (Some("old"), Some("old"), true),
            (Some("old"), Some("theirs"), false),
            (Some("old"), None, false),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let (file, old) = (folder.path().join("a"), folder.path().join("old"));
            let workspace = Workspace::open(folder.path()).expect("it exists");
            let path = workspace.locate("a").expect("inside");
            let directory = workspace
                .open_directory_plainly(&path.split().expect("a name").0, false)
                .expect("the workspace");
            if let Some(text) = before {
                std::fs::write(&file, text).expect("written");
            }
            let expected = if before.is_some() { Expected::Anything } else { Expected::Absent };
            let examined = workspace.before(&directory, &path, "a", expected).expect("examined");
            if before != now {
                if before.is_some() {
                    std::fs::rename(&file, &old).expect("moved");
                }
                now.iter().for_each(|text| std::fs::write(&file, text).expect("written"));
            }
            std::fs::write(folder.path().join("t"), "new").expect("written");
            let done = put(&directory, "t", "a", &path, examined.as_ref());
            assert_eq!(done.is_ok(), is_put, "{how} {before:?} {now:?}: {done:?}");
            let expected = if is_put { Some("new") } else { now };
            assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), expected, "{how} {before:?} {now:?}");
        }
    }
}

#[test]
fn only_leftovers_with_known_contents_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = Workspace::open(folder.path()).expect("it exists");
    // No process has this number.
    let gone = i32::MAX;
    let own = std::process::id();
    let names = [
        (format!(".greenroom-{gone}-0.tmp"), "known", false),
        (format!(".greenroom-{gone}-1.tmp"), "the user's", true),
        (format!(".greenroom-{own}-2.tmp"), "known", true),
        (format!(".greenroom-{gone}-3.txt"), "known", true),
        ("a".to_owned(), "known", true),
    ];
    for (name, text, _) in &names {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let link = folder.path().join(format!(".greenroom-{gone}-4.tmp"));
    std::os::unix::fs::symlink("a", &link).expect("linked");
    let known = FileState::of(b"known", 0o644);
    let removed = workspace
        .remove_leftovers(&workspace.locate(".").expect("inside"), |hash| known.hash() == Some(hash))
        .expect("the workspace");
    assert_eq!(removed, 1);
    for (name, _, stays) in &names {
        assert_eq!(folder.path().join(name).exists(), *stays, "{name}");
    }
    assert!(link.is_symlink());
}

//! Placeholders are there as long as somebody needs them, and only those are removed.

use super::*;

#[test]
fn the_last_one_removes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let (file, other) = (root.join("greenroom.yaml"), root.join(".git"));
    let create = || Placeholders::create(std::slice::from_ref(&file), std::slice::from_ref(&other));
    let first = create();
    assert_eq!((first.files(), first.folders()), (&[file.clone()][..], &[other.clone()][..]));
    assert!(is_placeholder(&file) && is_placeholder(&other));
    // Another one adopts them.
    let second = create();
    assert_eq!(second.files().len() + second.folders().len(), 2);
    drop(first);
    assert!(file.exists() && other.exists(), "somebody needs them");
    drop(second);
    assert!(!file.exists() && !other.exists());
}

#[test]
fn what_was_there_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, other) = (folder.path().join("a"), folder.path().join("b"));
    std::fs::write(&file, "").expect("it is written");
    std::fs::create_dir(&other).expect("it is made");
    let made = Placeholders::create(std::slice::from_ref(&file), std::slice::from_ref(&other));
    assert_eq!(made.files().len() + made.folders().len(), 0, "they are none of ours");
    drop(made);
    assert!(file.exists() && other.exists());
    // One that got content is none any more.
    let new = folder.path().join("c");
    let made = Placeholders::create(std::slice::from_ref(&new), &[]);
    std::fs::set_permissions(&new, Permissions::from_mode(0o644)).expect("it is ours");
    std::fs::write(&new, "content").expect("it is written");
    drop(made);
    assert!(new.exists());
}

#[test]
fn there_is_room_for_a_file_of_the_user() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("own");
    // The file to be written; whether there is room while a command runs.
    for (wanted, in_use) in [("own", false), ("own/greenroom.yaml", true), ("own/a/b", true)] {
        let wanted = folder.path().join(wanted);
        let write = || -> Result<()> {
            make_room(&wanted)?;
            std::fs::create_dir_all(wanted.parent().expect("a folder"))?;
            std::fs::write(&wanted, "text")
        };
        let made = Placeholders::create(&[], std::slice::from_ref(&place));
        match write() {
            Ok(()) => assert!(in_use, "{wanted:?}"),
            Err(error) => assert_eq!((error.kind(), in_use), (ErrorKind::ResourceBusy, false), "{wanted:?}"),
        }
        drop(made);
        assert_eq!(wanted.exists(), in_use, "{wanted:?}");
        let _ = std::fs::remove_dir_all(&place);
        // As a killed process leaves it.
        make_folder(&place).expect("it is made");
        write().expect("nobody needs it");
        assert!(
            wanted.is_file() && place.metadata().is_ok_and(|place| place.mode() & 0o1000 == 0),
            "{wanted:?}"
        );
        make_room(&wanted).expect("there is none");
        assert!(wanted.is_file(), "{wanted:?}");
        let _ = std::fs::remove_dir_all(&place).or_else(|_| std::fs::remove_file(&place));
    }
    // Others are left.
    for (name, mode, content) in [("a", 0o555, false), ("b", 0o1555, true), ("c", 0o1755, false)] {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).expect("it is made");
        if content {
            std::fs::write(place.join("file"), "").expect("it is written");
        }
        std::fs::set_permissions(&place, Permissions::from_mode(mode)).expect("it is ours");
        for wanted in [place.join("greenroom.yaml"), place.clone()] {
            make_room(&wanted).expect("it is none");
        }
        assert_eq!(place.metadata().expect("it is there").mode() & 0o7777, mode, "{name}");
    }
}

#[test]
fn one_that_is_removed_meanwhile_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("place");
    let rounds = 200;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let made = Placeholders::create(&[], std::slice::from_ref(&place));
                    assert_eq!(made.folders().len(), 1, "it is there");
                    assert!(is_placeholder(&place), "nobody removes it while it is needed");
                }
            });
        }
    });
    assert!(!place.exists());
}

//! Permissions of what is written, and what is left of a write that fails.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it is there").permissions().mode() & 0o777
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("it is a folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn what_is_written_is_private() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("a/b");
    create_folders(&inner).expect("created");
    create_folders(&inner).expect("it may exist");
    assert_eq!((mode(&inner), mode(&folder.path().join("a"))), (0o700, 0o700));
    create_folder(&inner.join("c")).expect("created");
    assert_eq!(mode(&inner.join("c")), 0o700);
    let again = create_folder(&inner.join("c")).expect_err("it exists");
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);

    let file = inner.join("new");
    create_new(&file).expect("created").write_all(b"1").expect("written");
    assert_eq!(create_new(&file).expect_err("it exists").kind(), io::ErrorKind::AlreadyExists);
    append(&file).expect("opened").write_all(b"2").expect("written");
    assert_eq!((std::fs::read(&file).expect("read"), mode(&file)), (b"12".to_vec(), 0o600));
    append(&inner.join("other")).expect("created");
    assert_eq!(mode(&inner.join("other")), 0o600);
}

#[test]
fn a_file_is_replaced_as_a_whole_and_nothing_stays_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f.yaml");
    replace(&file, b"one").expect("created");
    assert_eq!(mode(&file), 0o600);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    replace(&file, b"two").expect("replaced");
    assert_eq!((std::fs::read(&file).expect("read"), mode(&file)), (b"two".to_vec(), 0o600));
    replace_with_mode(&file, b"three", 0o640).expect("replaced");
    assert_eq!((std::fs::read(&file).expect("read"), mode(&file)), (b"three".to_vec(), 0o640));
    assert_eq!(names(folder.path()), ["f.yaml"]);
    // A folder in its place is not replaced.
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).expect("created");
    replace(&taken, b"four").expect_err("it is a folder");
    let mut left = names(folder.path());
    left.sort();
    assert_eq!(left, ["f.yaml", "taken"]);
}

//! Placeholders are there as long as somebody needs them, and only those are removed.

use super::*;

#[test]
fn the_last_one_removes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let (file, other) = (root.join("greenroom.yaml"), root.join(".git"));
    let create = || Placeholders::create(root, std::slice::from_ref(&file), std::slice::from_ref(&other));
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
    let made = Placeholders::create(folder.path(), std::slice::from_ref(&file), std::slice::from_ref(&other));
    assert_eq!(made.files().len() + made.folders().len(), 0, "they are none of ours");
    drop(made);
    assert!(file.exists() && other.exists());
    // One that got content is none any more.
    let new = folder.path().join("c");
    let made = Placeholders::create(folder.path(), std::slice::from_ref(&new), &[]);
    std::fs::set_permissions(&new, Permissions::from_mode(0o644)).expect("it is ours");
    std::fs::write(&new, "content").expect("it is written");
    drop(made);
    assert!(new.exists());
}

//! Where a backup is restored: what may be there, and what a failure leaves.

use super::*;

/// Makes a backup with one session of nine entries.
fn made(dir: &Path) -> std::path::PathBuf {
    let store = open(&dir.join("original"));
    fill(&store, &["a"], 9);
    let backup = dir.join("backup");
    back_up(&store, &backup).unwrap();
    backup
}

/// Returns the files of a store that docs/operations.md lists, except those of the journal and the index.
fn side_files() -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let table = text.split("\n## ").find(|section| section.starts_with("Files\n")).unwrap();
    let first = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names = first.flat_map(|names| names.split(", ").map(|name| name.trim_matches('`').to_owned()));
    names.filter(|name| !name.starts_with("journal/") && name != "index/").collect()
}

/// A new volume is not quite empty, and neither is a store whose journal and index were moved away.
#[test]
fn a_backup_is_restored_where_there_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let backup = made(dir.path());
    let side = side_files();
    assert!(side.len() > 8 && side.iter().any(|name| name == "token"), "{side:?}");
    let with = |more: &'static str| side.iter().map(String::as_str).chain([more]).collect();
    for (name, there, expected) in [
        ("volume", vec!["lost+found/"], None),
        ("moved", with("index.suspect"), None),
        ("mine", with("note"), Some("is not empty")),
        ("journal", with("journal/0000000001.seg"), Some("has a store already")),
        ("index", with("index/db"), Some("has a store already")),
    ] {
        let to = dir.path().join(name);
        for there in there {
            let path = to.join(there);
            let folder = if there.ends_with('/') { &path } else { path.parent().unwrap() };
            std::fs::create_dir_all(folder).unwrap();
            if !there.ends_with('/') {
                std::fs::write(path, "").unwrap();
            }
        }
        let before = files(&to);
        match (Store::restore_backup(&backup, &to, &Progress::default()), expected) {
            (Ok(_), None) => {
                assert!(before.keys().all(|name| name == "index.suspect" || to.join(name).exists()));
                let (store, notices) = Store::open(&options(&to)).unwrap();
                assert_eq!((texts(&store, "a", 0).unwrap().len(), notices), (9, vec![]), "{name}");
            }
            (Err(error), Some(expected)) => {
                assert!(error.to_string().contains(expected), "{name}: {error}");
                assert_eq!(files(&to), before, "{name}");
            }
            (made, _) => panic!("{name}: {made:?}"),
        }
    }
}

#[test]
fn a_restoration_without_an_index_leaves_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let (backup, to) = (made(dir.path()), dir.path().join("to"));
    std::fs::create_dir(&to).unwrap();
    std::os::unix::fs::symlink("nowhere", to.join("index")).unwrap();
    let error = Store::restore_backup(&backup, &to, &Progress::default()).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    assert!(!to.join("journal").exists() && !to.join("journal.partial").exists());
    std::fs::remove_file(to.join("index")).unwrap();
    Store::restore_backup(&backup, &to, &Progress::default()).unwrap();
    assert_eq!(texts(&open(&to), "a", 0).unwrap().len(), 9);
}

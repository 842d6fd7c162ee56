//! The file: its form, its mode, and what is refused.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use super::{change, read};

#[test]
fn only_the_user_can_read_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/keys.yaml");
    let mut keys = BTreeMap::new();
    for (variable, key) in [("OPENAI_API_KEY", "sk-\"x: y\" #1"), ("OTHER_KEY", "null")] {
        keys.insert(variable.to_owned(), key.to_owned());
        assert_eq!(change(&path, variable, Some(key)).unwrap(), keys);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(read(&path).unwrap(), keys);
    }
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    for mode in [0o640, 0o604, 0o660, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = read(&path).unwrap_err().to_string();
        assert!(refused.contains("chmod 600") && !refused.contains("sk-"), "{mode:o}: {refused}");
    }
}

#[test]
fn keys_that_are_kept_at_the_same_time_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.yaml");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                for number in 0..10 {
                    change(path, &format!("KEY_{writer}_{number}"), Some("sk-1")).unwrap();
                }
            });
        }
    });
    assert_eq!(read(&path).unwrap().len(), 40);
}

#[test]
fn an_invalid_file_is_refused_without_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.yaml");
    assert!(read(&path).unwrap().is_empty(), "a file that does not exist has none");
    for text in ["sk-hidden", "- sk-hidden", "A: [sk-hidden]", "A: {"] {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let refused = read(&path).unwrap_err().to_string();
        assert!(refused.contains("is not a list") && !refused.contains("sk-hidden"), "{text}: {refused}");
    }
}

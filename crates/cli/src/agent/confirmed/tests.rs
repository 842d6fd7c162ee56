//! Keys and the addresses for which they were confirmed.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use std::os::unix::fs::PermissionsExt as _;

use super::{CONFIRMED, confirm, is_confirmed, line};

#[test]
fn a_key_is_confirmed_for_one_address_and_neither_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let [one, two] = ["http://one.invalid/v1", "http://two.invalid/v1"].map(|url| url.parse().unwrap());
    assert!(!is_confirmed(&store, "sk-1", &one));
    confirm(&store, "sk-1", &one).unwrap();
    confirm(&store, "sk-1", &one).unwrap();
    assert!(is_confirmed(&store, "sk-1", &one));
    assert!(!is_confirmed(&store, "sk-1", &two) && !is_confirmed(&store, "sk-2", &one));
    let path = store.join(CONFIRMED);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 1);
    assert!(!text.contains("sk-1") && !text.contains("one"), "{text}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // Knowing another key is not sufficient to confirm for this one.
    std::fs::write(&path, format!("{}\n", line("sk-2", &two))).unwrap();
    assert!(!is_confirmed(&store, "sk-1", &two));
    confirm(&store, "sk-1", &two).unwrap();
    assert!(is_confirmed(&store, "sk-1", &two) && is_confirmed(&store, "sk-2", &two));
}

//! Backups of a store, with and without a host; damaged ones; restoring; the deletion of sessions that are not kept.

use std::path::{Path, PathBuf};

use greenroom_simulator::Echo;
use serde_json::{Value, json};

use super::host::{Hosted, wait_until};
use super::support::{Model, Place, Ran, files};

/// Sessions with one prompt each.
fn talk(place: &Place, sessions: &[&str]) {
    let model = Model::new(Echo, |_| {});
    for id in sessions {
        let ran =
            place.run(&["run", "-p", &format!("About {id}"), "--session", id, "--base-url", &model.url()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

fn backup(place: &Place) -> PathBuf {
    place.work().join("backup")
}

#[track_caller]
fn check(ran: &Ran, code: i32, out: &str, err: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert!(ran.stdout.contains(out) && ran.stderr.contains(err), "{ran:?}");
}

#[test]
fn a_store_is_backed_up_verified_and_restored() {
    let place = Place::new();
    check(&place.run(&["store", "backup", "backup"]), 2, "", "there is no store in");
    check(&place.run(&["store", "verify", "backup"]), 3, "", "backup");
    assert!(!backup(&place).exists() && !place.store().exists());
    talk(&place, &["a", "b"]);
    let made = place.json(&["store", "backup", "backup", "--json"]);
    assert_eq!((&made["sessions"], &made["dir"]), (&json!(2), &json!(backup(&place))));
    check(&place.run(&["store", "verify", "backup"]), 0, "The backup is complete: 2 sessions with ", "");
    // The same directory again, with more.
    talk(&place, &["c"]);
    check(&place.run(&["store", "backup", "backup"]), 0, "Backed up 3 sessions with ", "");
    let found = place.json(&["store", "verify", "backup", "--json"]);
    assert_eq!((&found["sessions"], &found["damage"], &found["losses"]), (&json!(3), &json!([]), &json!([])));
    // Restored elsewhere, and never over a store.
    let to = place.work().join("restored");
    let data_dir = ["--data-dir", to.to_str().unwrap()];
    check(
        &place.run(&[&["store", "restore", "backup"][..], &data_dir].concat()),
        0,
        "Restored 3 sessions with ",
        "",
    );
    let shown = place.json(&[&["show", "c", "--json"][..], &data_dir].concat());
    assert_eq!(shown["conversation"][0]["text"], "About c");
    check(
        &place.run(&[&["store", "restore", "backup"][..], &data_dir].concat()),
        2,
        "",
        "has a store already",
    );
    check(&place.run(&["store", "restore", "backup"]), 2, "", "has a store already");
    // What is no backup is left alone.
    std::fs::create_dir(place.work().join("mine")).unwrap();
    std::fs::write(place.work().join("mine/note"), "mine").unwrap();
    check(
        &place.run(&["store", "backup", "mine"]),
        2,
        "",
        "exists and is not a backup; name a new directory",
    );
    check(&place.run(&["store", "verify", "mine"]), 2, "", "is not a backup");
    let inside = place.store().join("backup");
    check(&place.run(&["store", "backup", inside.to_str().unwrap()]), 2, "", "lies in the store");
}

#[test]
fn a_damaged_backup_is_named_and_restored_only_on_request() {
    let place = Place::new();
    talk(&place, &["a", "b"]);
    assert_eq!(place.run(&["store", "backup", "backup"]).code, Some(0));
    damage(&backup(&place), "About a");
    check(&place.run(&["store", "verify", "backup"]), 3, "segment 1 is damaged at byte", "is damaged");
    let found = place.run(&["store", "verify", "backup", "--json"]);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(found["losses"][0]["id"], "a");
    std::fs::rename(place.store(), place.work().join("moved")).unwrap();
    check(&place.run(&["store", "restore", "backup"]), 3, "", "nothing was restored; use another one");
    assert!(!place.store().join("journal").exists());
    assert_eq!(place.run(&["store", "restore", "backup", "--damaged"]).code, Some(0));
    assert_eq!(place.run(&["show", "b"]).code, Some(0));
    check(&place.run(&["store", "check"]), 3, "a: entr", "");
}

/// Damages this text in the only segment of a store or backup.
fn damage(dir: &Path, text: &str) {
    let segment = dir.join("journal/0000000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(text.len()).position(|found| found == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
}

#[test]
fn a_damaged_store_replaces_the_last_backup_only_on_request() {
    let place = Place::new();
    talk(&place, &["a", "b"]);
    assert_eq!(place.run(&["store", "backup", "backup"]).code, Some(0));
    damage(&place.store(), "About a");
    // When the damage is found, and when it is known.
    for _ in 0..2 {
        let refused = place.run(&["store", "backup", "backup"]);
        check(&refused, 3, "", "the store is damaged (session a lost entries), so it was not backed up");
        check(&refused, 3, "", "greenroom store accept-loss");
        let refused = place.run(&["store", "backup", "backup", "--json"]);
        let told: Value = serde_json::from_str(&refused.stdout).unwrap();
        assert_eq!((&told["damaged_sessions"], &told["damaged_segments"]), (&json!(["a"]), &json!([])));
        check(&place.run(&["store", "verify", "backup"]), 0, "The backup is complete: 2 sessions", "");
    }
    let made = place.run(&["store", "backup", "backup", "--damaged", "--json"]);
    let told: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&told["damaged_sessions"], &told["sessions"]), (&json!(["a"]), &json!(2)), "{made:?}");
    check(&made, 0, "", "the store is damaged, and so is this backup: 1 session and 0 segments lost entries");
    check(&place.run(&["store", "verify", "backup"]), 3, "a: entr", "contains losses");
    assert_eq!(place.run(&["store", "accept-loss", "a"]).code, Some(0));
    check(&place.run(&["store", "backup", "backup"]), 0, "Backed up 2 sessions", "");
}

/// A new store at the place of one that was lost does not overwrite its backup.
#[test]
fn a_backup_of_a_lost_store_is_kept_until_it_is_restored() {
    let place = Place::new();
    talk(&place, &["a", "b"]);
    assert_eq!(place.run(&["store", "backup", "backup"]).code, Some(0));
    std::fs::remove_dir_all(place.store()).unwrap();
    talk(&place, &["c"]);
    check(&place.run(&["store", "backup", "backup"]), 2, "", "restore it if that store was lost");
    std::fs::remove_dir_all(place.store()).unwrap();
    check(&place.run(&["store", "restore", "backup"]), 0, "Restored 2 sessions", "");
    talk(&place, &["c"]);
    check(&place.run(&["store", "backup", "backup"]), 0, "Backed up 3 sessions", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_backed_up_while_a_host_has_it() {
    let hosted = Hosted::new(3, 0).await;
    assert_eq!(hosted.say("a", "one").code, Some(0));
    assert!(hosted.host().is_some());
    check(&hosted.run(&["store", "backup", "backup"]), 0, "Backed up 1 session with ", "");
    check(&hosted.run(&["store", "verify", "backup"]), 0, "The backup is complete: 1 session with ", "");
    let folder = hosted.place.work().join("mine");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("note"), "mine").unwrap();
    check(&hosted.run(&["store", "backup", "mine"]), 2, "", "exists and is not a backup");
    check(&hosted.run(&["prune", "--keep", "0", "--dry-run"]), 0, "", "");
    assert!(hosted.host().is_some(), "the host was not disturbed");
    // The session is live in the host, so it is kept.
    check(&hosted.run(&["prune", "--keep", "0"]), 0, "Deleted 0 sessions.", "");
    assert_eq!(hosted.run(&["show", "a"]).code, Some(0));
    // Damage that nobody has noticed yet.
    damage(&hosted.place.store(), "one");
    let refused = hosted.run(&["store", "backup", "backup", "--json"]);
    check(&refused, 3, "\"damaged_segments\": [", "segment 1 of the journal is damaged");
    check(&hosted.run(&["store", "verify", "backup"]), 0, "The backup is complete: 1 session with ", "");
}

#[test]
fn sessions_are_pruned_by_flags_and_by_the_configuration() {
    let place = Place::new();
    check(&place.run(&["prune"]), 2, "", "there is no limit: give --older-than-days or --keep");
    check(&place.run(&["prune", "--label", "a=b"]), 2, "", "--label needs");
    check(&place.run(&["prune", "--keep", "1"]), 0, "Deleted 0 sessions.", "");
    assert!(!place.store().exists());
    talk(&place, &["a", "b", "c"]);
    let dry = place.run(&["prune", "--keep", "1", "--dry-run"]);
    check(&dry, 0, "2 sessions would be deleted.", "");
    let lines: Vec<&str> = dry.stdout.lines().collect();
    assert!(lines[0].starts_with("a  ") && lines[0].contains("(count)  About a"), "{lines:?}");
    check(&place.run(&["prune", "--older-than-days", "1"]), 0, "Deleted 0 sessions.", "");
    let folder = format!("folder={}", place.work().canonicalize().unwrap().display());
    check(&place.run(&["prune", "--label", "folder=/none", "--keep", "0"]), 0, "Deleted 0 sessions.", "");
    let pruned = place.json(&["prune", "--label", &folder, "--keep", "2", "--json"]);
    assert_eq!((&pruned["sessions"][0]["session_id"], &pruned["erased"]), (&json!("a"), &json!(true)));
    // The configuration's limits, where no flag gives one; a project's file cannot set them.
    place.own_file("retention: { age_max_days: 1, rules: [{ labels: { folder: /none } }] }\n");
    check(&place.run(&["prune"]), 0, "Deleted 0 sessions.", "");
    place.own_file("retention: { sessions_max: 1 }\n");
    check(&place.run(&["prune", "--dry-run"]), 0, "1 session would be deleted.", "");
    check(&place.run(&["prune"]), 0, "Deleted 1 session.", "");
    let left = place.json(&["sessions", "--json"]);
    assert_eq!((left.as_array().map(Vec::len), &left[0]["id"]), (Some(1), &json!("c")));
    // With a session goes what it was resumed with, also if a program deletes it.
    let kept = || files(&place.store().join("resumed-with"));
    assert!(matches!(&*kept(), [only] if only.ends_with("c.json")), "{:?}", kept());
    let mut program = place.start(&["rpc", "--simulate"]);
    program.say(r#"{"jsonrpc":"2.0","id":1,"method":"session/delete","params":{"session_id":"c"}}"#);
    wait_until("nothing is kept", || kept().is_empty());
    program.close_input();
    assert_eq!(program.end().code, Some(0));
    for (text, expected) in [
        ("retention: { age_max_days: 0 }\n", "retention.age_max_days: must be at least 1, or null"),
        ("retention: { rules: [{ labels: {} }] }\n", "retention.rules: each must have labels"),
        ("retention: { rules: [{ labels: { a: b }, sessions_max: 0 }] }\n", "must be at least 1, or null"),
    ] {
        place.own_file(text);
        check(&place.run(&["prune"]), 2, "", expected);
    }
    place.own_file("");
    place.project_file("retention: { sessions_max: 1 }\n");
    check(&place.run(&["prune", "--keep", "5"]), 0, "Deleted 0 sessions.", "");
    check(&place.run(&["run", "-p", "x", "--simulate"]), 2, "", "only your own file");
}

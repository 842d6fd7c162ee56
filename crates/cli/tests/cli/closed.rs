//! The store, the token and the user's configuration are out of the file tools' reach, wherever the workspace is.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};

use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use serde_json::{Value, json};

use super::support::{Model, Place, files};

/// Calls tools one after the other in one run whose workspace is the user's home; gives their results.
fn results(place: &Place, flags: &[&str], calls: &[(&'static str, Value)]) -> Vec<String> {
    let (todo, results) = (calls.to_vec(), Arc::new(Mutex::new(Vec::new())));
    let seen = results.clone();
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        let mut seen = seen.lock().unwrap();
        let last = request.messages.last().unwrap();
        if last.role() == "tool" {
            seen.push(last.text());
        }
        match todo.get(seen.len()) {
            Some((name, arguments)) => Answer::call(*name, arguments),
            None => Answer::text("done"),
        }
    });
    let model = Model::new(script, |_| {});
    let home = place.work().parent().unwrap().to_owned();
    let url = model.url();
    let arguments = ["run", "-p", "Look.", "--allow-write", "--base-url", &url, "--workspace"];
    let ran = place.run(&[&arguments[..], &[home.to_str().unwrap()], flags].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "done\n"), "{ran:?}");
    let results = results.lock().unwrap().clone();
    assert_eq!(results.len(), calls.len(), "{results:#?}");
    results
}

fn make_store(place: &Place) {
    assert_eq!(place.run(&["run", "-p", "Hello.", "--simulate", "--no-tools"]).code, Some(0));
}

fn names_of(folder: &Path) -> Vec<String> {
    files(folder).iter().map(|path| path.display().to_string()).collect()
}

#[test]
fn what_is_ours_is_closed_to_the_file_tools() {
    let place = Place::new();
    let home = place.work().parent().unwrap().to_owned();
    make_store(&place);
    std::fs::write(place.store().join("token"), "CANARY-token\n").unwrap();
    place.own_file("# CANARY-configuration\nlimits: { steps_max: 200 }\n");
    std::fs::write(home.join("notes.txt"), "not a CANARY\n").unwrap();
    symlink("../store", home.join("work/link")).unwrap();
    symlink("../store/token", home.join("work/t")).unwrap();
    symlink("t", home.join("work/tt")).unwrap();
    symlink("../.config/greenroom/greenroom.yaml", home.join("work/c")).unwrap();
    // A hard link is another name of the same file.
    std::fs::hard_link(place.store().join("token"), home.join("work/hard")).unwrap();
    let absolute = place.store().join("token").display().to_string();
    let spellings = [
        "store/token", "./store/../store//token", "work/link/token", "work/t", "work/tt", "work/hard",
        &absolute, ".config/greenroom/greenroom.yaml", "work/c",
    ];
    let others =
        ["store/journal/manifest", "work/link/journal/manifest", "store/new", "store/new/er", "store/lock"];
    let mut calls: Vec<(&'static str, Value)> = Vec::new();
    for path in spellings.iter().copied().chain(others) {
        calls.push(("read", json!({ "path": path })));
        calls.push(("grep", json!({ "path": path, "pattern": "." })));
        calls.push(("write", json!({ "path": path, "content": "mine" })));
        calls.push(("edit", json!({ "path": path, "old": "CANARY", "new": "mine" })));
    }
    for path in ["store", "work/link", "store/journal", ".config/greenroom", "work/link/journal"] {
        calls.push(("list", json!({ "path": path })));
        calls.push(("grep", json!({ "path": path, "pattern": "CANARY" })));
    }
    let closed = calls.len();
    calls.push(("grep", json!({ "pattern": "CANARY" })));
    calls.push(("list", json!({ "depth": 4 })));
    calls.push(("write", json!({ "path": "work/new.txt", "content": "mine" })));
    let before = names_of(&home.join(".config"));
    let results = results(&place, &[], &calls);
    let mut wrong = Vec::new();
    for ((call, result), _) in calls.iter().zip(&results).zip(0..closed) {
        let refused = ["not accessible to tools", "symbolic link", "is read-only"];
        if !refused.iter().any(|words| result.contains(words)) {
            wrong.push(format!("{call:?}: {result}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let [grep, list, write] = &results[closed..] else { panic!("{results:?}") };
    assert!(grep.contains("notes.txt:1: not a CANARY"), "{grep}");
    assert!(!grep.contains("CANARY-"), "{grep}");
    assert!(list.contains("notes.txt") && !list.contains("token") && !list.contains("journal"), "{list}");
    assert!(write.contains("work/new.txt"), "{write}");
    assert_eq!(std::fs::read_to_string(place.store().join("token")).unwrap(), "CANARY-token\n");
    assert_eq!(names_of(&home.join(".config")), before);
    assert!(!place.store().join("new").exists());
    assert_eq!(place.run(&["store", "check"]).code, Some(0));
}

/// A model that could write the user's configuration would choose where the key goes.
#[test]
fn what_is_not_there_yet_cannot_be_made() {
    let place = Place::new();
    let calls: Vec<(&'static str, Value)> =
        [".config/greenroom/greenroom.yaml", ".config/greenroom/x", ".config/Greenroom/greenroom.yaml"]
            .map(|path| ("write", json!({ "path": path, "content": "provider: mine" })))
            .to_vec();
    for result in results(&place, &[], &calls) {
        assert!(result.contains("not accessible to tools") || result.contains("is read-only"), "{result}");
    }
    let made = place.work().parent().unwrap().join(".config/greenroom");
    assert!(!made.exists());
}

#[test]
fn a_projects_file_can_be_read_and_not_changed() {
    let place = Place::new();
    let text = "limits: { steps_max: 7 }\n";
    place.project_file(text);
    let named = place.work().join("named.yaml");
    std::fs::write(&named, "limits: { steps_max: 90 } # CANARY\n").unwrap();
    let path = "work/greenroom.yaml";
    let calls = [
        ("read", json!({ "path": path })),
        ("write", json!({ "path": path, "content": "" })),
        ("edit", json!({ "path": path, "old": "7", "new": "700" })),
    ];
    let found = results(&place, &[], &calls);
    assert!(found[0].contains("steps_max: 7"), "{found:?}");
    assert!(found[1..].iter().all(|result| result.contains("read-only")), "{found:?}");
    assert_eq!(std::fs::read_to_string(place.work().join("greenroom.yaml")).unwrap(), text);
    // One that the user named is the user's.
    let calls = [
        ("read", json!({ "path": "work/named.yaml" })),
        ("write", json!({ "path": "work/named.yaml", "content": "" })),
    ];
    for result in results(&place, &["--config", named.to_str().unwrap()], &calls) {
        assert!(result.contains("not accessible to tools"), "{result}");
    }
}

#[test]
fn the_store_is_no_workspace() {
    let place = Place::new();
    make_store(&place);
    for folder in [place.store(), place.store().join("journal")] {
        let folder = folder.to_str().unwrap();
        let ran = place.run(&["run", "-p", "Hello.", "--simulate", "--workspace", folder]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("not accessible to tools"), "{ran:?}");
    }
}

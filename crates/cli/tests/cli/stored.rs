//! What is in the store: listed, shown, planned, deleted; in use by another process; damaged.

use std::path::{Path, PathBuf};

use greenroom_simulator::Echo;

use super::support::{Model, Place, files};

#[test]
fn looking_makes_nothing() {
    let place = Place::new();
    let ran = place.run(&["sessions"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("greenroom demo"), "{}", ran.stdout);
    assert_eq!(place.json(&["sessions", "--json"]), serde_json::json!([]));
    for arguments in [&["show", "nobody"][..], &["delete", "nobody"], &["plan", "nobody"]] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains("there is no session nobody"), "{ran:?}");
    }
    assert!(!place.store().exists());
}

#[test]
fn sessions_are_listed_shown_planned_and_deleted() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    for id in ["one", "two"] {
        let ran = place.run(&["run", "-p", "Hello there.", "--session", id, "--base-url", &model.url()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let table = place.run(&["sessions"]).stdout;
    assert!(table.starts_with("SESSION") && table.lines().count() == 3, "{table}");
    let shown = place.run(&["show", "one"]).stdout;
    assert!(shown.contains("you › Hello there.") && shown.contains("agent › "), "{shown}");
    let plan = place.json(&["plan", "one", "--json"]);
    assert!(plan["plan"].is_null() && plan["reason"].is_string(), "{plan}");
    assert!(place.run(&["plan", "one"]).stdout.contains("No compaction needed: "));
    assert_eq!(place.run(&["delete", "one"]).code, Some(0));
    assert_eq!(place.only_session(), "two");
}

#[test]
fn a_store_in_use_is_said_with_who_uses_it() {
    let place = Place::new();
    let mut chat = place.start(&["chat", "--simulate", "--session", "mine"]);
    chat.wait_for("/help");
    for arguments in [&["sessions"][..], &["show", "mine"], &["run", "-p", "x", "--simulate"], &["demo"]] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(ran.stderr.contains(&format!("in use by process {}", chat.id())), "{ran:?}");
    }
    drop(chat);
    assert_eq!(place.run(&["sessions"]).code, Some(0));
}

#[test]
fn what_is_intact_of_a_damaged_session_is_shown() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    for number in 0..6 {
        let prompt = format!("This is prompt number {number}.");
        let ran = place.run(&["run", "-p", &prompt, "--session", "mine", "--base-url", &model.url()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    // The third prompt's text, somewhere in the journal.
    let needle = b"This is prompt number 2.";
    let mut hit = false;
    for path in files(&place.store()) {
        let mut bytes = std::fs::read(&path).unwrap();
        let found: Vec<usize> = bytes
            .windows(needle.len())
            .enumerate()
            .filter(|(_, window)| window == needle)
            .map(|(at, _)| at)
            .collect();
        if found.is_empty() {
            continue;
        }
        hit = true;
        for at in found {
            bytes[at] ^= 0xff;
        }
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(hit, "the prompt is nowhere in the journal");
    let shown = place.run(&["show", "mine"]);
    assert_eq!(shown.code, Some(3), "{shown:?}");
    assert!(
        shown.stdout.contains("prompt number 1.") && shown.stdout.contains("lost here"),
        "{}",
        shown.stdout
    );
    assert!(shown.stderr.contains("session mine is damaged"), "{}", shown.stderr);
}

#[test]
#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the corpus is where the variable says, or skipped"
)]
fn files_of_other_systems_are_planned_as_they_plan() {
    let corpus = std::env::var_os("GREENROOM_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"), PathBuf::from);
    let Ok(cases) = std::fs::read_to_string(corpus.join("cut_cases.jsonl")) else {
        println!("skipped: there is no corpus");
        return;
    };
    let place = Place::new();
    let header =
        r#"{"type":"session","version":3,"id":"case","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}"#;
    for line in cases.lines().filter(|line| !line.trim().is_empty()) {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut text = format!("{header}\n");
        for entry in case["entries"].as_array().unwrap() {
            text.push_str(&format!("{entry}\n"));
        }
        std::fs::write(place.work().join("case.jsonl"), text).unwrap();
        let keep = case["keep_recent_tokens"].to_string();
        let mut arguments = vec![
            "plan",
            "case.jsonl",
            "--keep-recent",
            &keep,
            "--cut",
            "nearest",
            "--estimator",
            "char4",
            "--json",
        ];
        let leaf = case["leaf_id"].as_str();
        if let Some(leaf) = leaf {
            arguments.extend(["--leaf", leaf]);
        }
        let plan = place.json(&arguments);
        let expected = &case["expected"];
        for key in ["context_tokens", "usage_tokens", "trailing_tokens"] {
            assert_eq!(plan[key], expected[key], "{}: {key}", case["name"]);
        }
        for (key, value) in expected["plan"].as_object().into_iter().flatten() {
            if plan["plan"].get(key).is_some() {
                assert_eq!(plan["plan"][key], *value, "{}: {key}", case["name"]);
            }
        }
        assert_eq!(plan["plan"].is_null(), expected["plan"].is_null(), "{}: {plan}", case["name"]);
    }
}

//! The demo: it fills and compacts, brings a project where there is little to read, and survives its own death.

use rustix::process::Signal;

use super::support::Place;

#[test]
fn it_compacts_several_times_and_leaves_a_session() {
    let place = Place::with_files(24);
    let ran = place.run(&["demo", "--fast", "--window", "12000"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr, "", "{ran:?}");
    let lines = ran.stdout.lines().filter(|line| line.contains(" → ") && line.contains("messages"));
    let compactions = lines.count();
    assert!(compactions >= 3, "{}", ran.stdout);
    let id = place.only_session();
    for word in [format!("greenroom show {id}"), "greenroom sessions".to_owned(), "tokens sent".to_owned()] {
        assert!(ran.stdout.contains(&word), "{word}: {}", ran.stdout);
    }

    let sessions = place.json(&["sessions", "--json"]);
    let session = &sessions[0];
    assert_eq!(session["model"], "simulated");
    assert_eq!(session["window"], 12_000);
    assert_eq!(session["state"], "idle");
    assert_eq!(session["compactions"], compactions);
    assert!(session["updated_at"].as_str().unwrap().ends_with('Z'), "{session}");
    assert!(session["context_tokens"].as_u64().unwrap() < 12_000, "{session}");

    let shown = place.json(&["show", &id, "--json"]);
    assert_eq!(shown["id"], id.as_str());
    assert_eq!(shown["entries"], session["entries"]);
    assert_eq!(shown["context"]["tokens"], session["context_tokens"]);
    let list = shown["compactions"].as_array().unwrap();
    assert_eq!(list.len(), compactions);
    for one in list {
        assert!(one["tokens_after"].as_u64() < one["tokens_before"].as_u64(), "{one}");
        assert!(one["entry_id"].is_u64() && one["duration_ms"].is_u64(), "{one}");
        assert_eq!(one["trigger"], "threshold", "{one}");
    }

    let shown = place.run(&["show", &id]);
    assert_eq!(shown.code, Some(0));
    let marks = shown.stdout.lines().filter(|line| line.starts_with("── ") && line.contains(" → ")).count();
    assert_eq!(marks, compactions, "{}", shown.stdout);
    assert!(shown.stdout.contains("✓ read README.md"), "{}", shown.stdout);
}

/// In a small folder nothing is read twice: the demo brings a project that fills the window.
#[test]
fn where_there_is_little_to_read_it_does_not_repeat_itself() {
    for files in [0, 1] {
        let place = if files == 0 { Place::new() } else { Place::with_files(files) };
        let ran = place.run(&["demo", "--fast"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.stdout.contains("There is too little to read in"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("again and again"), "{}", ran.stdout);
        assert!(place.json(&["sessions", "--json"])[0]["compactions"].as_u64() >= Some(4), "{}", ran.stdout);
        let id = place.only_session();
        let shown = place.json(&["show", &id, "--json"]);
        let said: Vec<&str> = shown["conversation"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|said| said["text"].as_str())
            .collect();
        let reads = said.iter().filter(|text| text.starts_with("Next I will read")).count();
        let different: std::collections::BTreeSet<&&str> =
            said.iter().filter(|text| text.starts_with("Next I will read")).collect();
        assert!(reads >= 8, "{said:?}");
        assert_eq!(different.len(), reads, "nothing is read twice: {said:?}");
        // A search says where.
        assert!(said.iter().any(|text| text.contains("is used in `")), "{said:?}");
        // The project goes with the demo.
        let left = ran
            .stdout
            .lines()
            .find_map(|line| line.split_once("/greenroom-demo-"))
            .map(|(_, rest)| rest.to_owned())
            .unwrap();
        let name = left.split('/').next().unwrap();
        assert!(!std::env::temp_dir().join(format!("greenroom-demo-{name}")).exists(), "{name}");
    }
}

#[test]
fn killed_in_the_middle_its_session_goes_on() {
    let place = Place::with_files(24);
    let mut demo = place.start(&["demo", "--window", "12000"]);
    demo.wait_for("compacted");
    demo.wait_for("read ");
    demo.signal(Signal::KILL);
    assert_eq!(demo.end().code, None);

    let id = place.only_session();
    let session = place.json(&["sessions", "--json"])[0].clone();
    assert_eq!(session["state"], "interrupted");
    assert!(session["compactions"].as_u64() >= Some(1), "{session}");
    let shown = place.run(&["show", &id]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""), "{shown:?}");
    assert!(shown.stdout.contains("compacted") && shown.stdout.contains("no complete answer"), "{shown:?}");

    let chat = place.run_with(&["chat", "--session", &id, "--simulate"], "/continue\n/status\n/quit\n");
    assert_eq!(chat.code, Some(0), "{chat:?}");
    assert!(chat.stdout.contains("no complete answer; /continue"), "{}", chat.stdout);
    let session = place.json(&["sessions", "--json"])[0].clone();
    assert_eq!(session["state"], "idle", "{}", chat.stdout);
}

#[test]
fn interrupted_it_says_so_and_leaves_a_session() {
    let place = Place::with_files(8);
    let mut demo = place.start(&["demo"]);
    demo.wait_for("read ");
    demo.signal(Signal::INT);
    let ran = demo.end();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stdout.contains("Interrupted") && ran.stdout.contains("greenroom show"), "{}", ran.stdout);
    assert_eq!(place.json(&["sessions", "--json"])[0]["state"], "idle");
}

//! A compaction's surfaces: manual in `chat`, as YAML settings, as a line of an export, over JSON-RPC.

use super::support::Place;

/// A window that is not filled by two runs that read files.
const WIDE: &str = "60000";
/// What makes the simulated model read files.
const READ: &str = "Read the sources: one file after the other.";

/// A folder whose demo left a session, and the session's name.
fn after_a_demo() -> (Place, String) {
    let place = Place::with_files(24);
    let ran = place.run(&["demo", "--fast", "--window", "12000"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let id = place.only_session();
    (place, id)
}

#[test]
fn an_export_has_a_line_for_each_compaction_and_is_planned_like_the_session() {
    let (place, id) = after_a_demo();
    let shown = place.json(&["show", &id, "--json"]);
    let ran = place.run(&["export", &id]);
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let compactions = lines.iter().filter(|line| line["type"] == "compaction").count();
    assert_eq!(compactions, shown["compactions"].as_array().unwrap().len());
    let ids: Vec<&str> = lines.iter().filter_map(|line| line["id"].as_str()).collect();
    for line in lines.iter().filter(|line| line["type"] == "compaction") {
        assert!(ids.contains(&line["firstKeptEntryId"].as_str().unwrap()), "{line}");
        assert!(line["tokensBefore"].as_u64() > line["tokensAfter"].as_u64(), "{line}");
    }
    let file = place.work().join("exported.jsonl");
    let path = file.to_str().unwrap();
    assert_eq!(place.run(&["export", &id, "-o", path]).code, Some(0));
    assert_eq!(place.run(&["export", &id, "-o", path]).code, Some(2), "it is not overwritten");
    let compare = ["--cut", "nearest", "--estimator", "char4", "--keep-recent", "500", "--json"];
    let plan = |source: &str| place.json(&[&["compact", "--dry-run", source][..], &compare[..]].concat());
    let (of_session, of_file) = (plan(&id), plan(path));
    assert_eq!(of_session["context_tokens"], of_file["context_tokens"]);
    assert_eq!(of_session["plan"]["messages_to_summarize"], of_file["plan"]["messages_to_summarize"]);

    // And back into another store.
    let imported =
        place.json(&["--data-dir", place.work().join("other").to_str().unwrap(), "import", path, "--json"]);
    assert_eq!(
        (&imported["session_id"], &imported["skipped"]),
        (&id.as_str().into(), &0.into()),
        "{imported}"
    );
}

#[test]
fn chat_compacts_manually_and_says_what_it_saved_or_why_not() {
    let place = Place::with_files(24);
    let chat = ["chat", "--session", "long", "--simulate", "--window", WIDE];
    let ran = place.run_with(&chat, &format!("{READ}\nAnd on.\n/compact what was read\n/compact\n/quit\n"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = place.json(&["show", "long", "--json"]);
    let compactions = shown["compactions"].as_array().unwrap();
    assert_eq!(compactions.len(), 1, "the first one compacted, the second one had nothing to do: {shown}");
    let removed = &compactions[0]["messages_removed"];
    let compacted = ran.stdout.find(&format!("✓ Compacted {removed} messages")).expect(&ran.stdout);
    let saved = ran.stdout.find("(saved ").expect(&ran.stdout);
    let nothing = ran.stdout.find("No compaction needed: there is no new message since").expect(&ran.stdout);
    assert!(compacted < saved && saved < nothing, "{}", ran.stdout);
}

#[test]
fn settings_are_read_as_yaml_and_a_wrong_one_is_named() {
    let place = Place::with_files(24);
    place.project_file("compaction:\n  enabled: true\n  treshold: 0.5\n");
    let ran = place.run(&["config"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("greenroom.yaml") && ran.stderr.contains("treshold"), "{}", ran.stderr);
    let block = "compaction:\n  reserve_tokens: 8192\n  keep_recent_tokens: 16384\n  model_auto_compact_token_limit: 9000\n";
    place.project_file(block);
    let ran = place.run(&["config"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for line in ["reserve_tokens: 8192", "keep_recent_tokens: 16384", "auto_compact_token_limit: 9000"] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
}

#[test]
fn json_rpc_knows_the_window_from_the_start_and_compacts() {
    let place = Place::with_files(24);
    let ran = place.run(&["run", "-p", READ, "--session", "long", "--simulate", "--window", WIDE]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The input stays open: its end would interrupt the compaction.
    let mut rpc = place.start(&["rpc", "--simulate", "--window", WIDE]);
    rpc.say(r#"{"jsonrpc":"2.0","id":1,"method":"agent/state","params":{"session_id":"long"}}"#);
    let params = r#"{"session_id":"long","keep_recent":2000}"#;
    rpc.say(&format!(r#"{{"jsonrpc":"2.0","id":2,"method":"session/compact","params":{params}}}"#));
    let (mut state, mut accepted, mut compacted) = (None, None, None);
    while state.is_none() || accepted.is_none() || compacted.is_none() {
        let mut line: serde_json::Value = serde_json::from_str(&rpc.wait_for("")).unwrap();
        if line["id"] == 1 {
            state = Some(line["result"].take());
        } else if line["id"] == 2 {
            accepted = Some(line["result"]["accepted"].take());
        } else if line["method"] == "session/compact_result" {
            compacted = Some(line["params"]["compacted"].take());
        }
    }
    let (state, compacted) = (state.unwrap(), compacted.unwrap());
    assert_eq!(state["context_window"], 60_000);
    assert_eq!(accepted.unwrap(), true);
    assert_eq!(compacted["outcome"], "completed", "{compacted}");
    assert_eq!(compacted["tokens_before"], state["context"]["tokens"]);
    assert!(compacted["tokens_after"].as_u64() < compacted["tokens_before"].as_u64(), "{compacted}");
    drop(rpc);
    let shown = place.json(&["show", "long", "--json"]);
    let compactions = shown["compactions"].as_array().unwrap();
    assert_eq!(compactions.len(), 1, "{shown}");
    assert_eq!(compactions[0]["tokens_after"], compacted["tokens_after"], "{shown}");
}

/// A session that a program begins is found by its folder as any other.
#[test]
fn a_session_begun_over_json_rpc_has_its_folder() {
    let place = Place::new();
    let mut rpc = place.start(&["rpc", "--simulate"]);
    for (id, session) in ["first", "second"].into_iter().enumerate() {
        let params = serde_json::json!({ "session_id": session, "text": "hello" });
        rpc.say(
            &serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params })
                .to_string(),
        );
        rpc.wait_for("session/prompt_result");
    }
    rpc.close_input();
    let ran = rpc.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let here = std::fs::canonicalize(place.work()).unwrap();
    let sessions = place.json(&["sessions", "--here", "--json"]);
    let sessions = sessions.as_array().unwrap();
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    assert!(sessions.iter().all(|session| session["folder"] == here.to_str().unwrap()), "{sessions:?}");
    // `-c` goes on with the newest of them.
    let ran = place.run(&["run", "-p", "go on", "-c", "--simulate"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(place.json(&["sessions", "--json"]).as_array().unwrap().len(), 2);
}

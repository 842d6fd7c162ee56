//! The sessions in the store: listed, shown, planned, deleted; in use by another process; damaged.

use std::path::{Path, PathBuf};

use greenroom_simulator::{Answer, ByPurpose, Echo, Summariser};
use serde_json::json;

use super::support::{Model, Place, Says, events, files, ran};

#[test]
fn looking_makes_nothing() {
    let place = Place::new();
    let ran = place.run(&["sessions"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("greenroom demo"), "{}", ran.stdout);
    assert_eq!(place.json(&["sessions", "--json"]), serde_json::json!([]));
    for arguments in [&["show", "nobody"][..], &["delete", "nobody"], &["compact", "--dry-run", "nobody"]] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains("there is no session nobody"), "{ran:?}");
    }
    assert!(!place.store().exists());
}

/// The list has titles and limits, and hostile ids and titles do nothing to the terminal.
#[test]
fn the_list_of_sessions_is_limited_and_filtered() {
    let place = Place::new();
    for id in ["user:42", "a/b", "../x", "e\u{301}"] {
        let ran =
            place.run(&["run", "-p", &format!("\nAbout {id}\nin detail"), "--session", id, "--simulate"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let table = place.run(&["sessions", "--limit", "2"]).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(
        lines[0].contains("TITLE") && lines[2].contains("../x") && lines[2].contains("About ../x"),
        "{table}"
    );
    assert_eq!(lines[3], "2 more; --limit 0 shows all");
    assert_eq!(place.run(&["sessions", "--limit", "0"]).stdout.lines().count(), 5);
    let listed = place.json(&["sessions", "--json", "--limit", "1"]);
    assert_eq!(
        (listed[0]["title"].as_str(), &listed[0]["is_unfinished"]),
        (Some("About e\u{301}"), &false.into())
    );
    let none = place.run(&["sessions", "--unfinished", "--label", "tenant=42"]);
    assert!(none.code == Some(0) && none.stdout.contains("No session matches"), "{none:?}");
    let wrong = place.run(&["sessions", "--label", "tenant"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("NAME=VALUE"), "{wrong:?}");
    for id in ["a\u{1b}[31m", "..", "a\nb"] {
        let ran = place.run(&["run", "-p", "x", "--session", id, "--simulate"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(!ran.stderr.contains('\u{1b}') && ran.stderr.contains("cannot be a session's id"), "{ran:?}");
    }
    for (id, code) in [("../x", 0), ("a/b", 0), ("../y", 4)] {
        let ran = place.run(&["show", id]);
        assert!(ran.code == Some(code) || code != 0 && ran.code != Some(0), "{id}: {ran:?}");
    }
    assert_eq!(place.run(&["delete", "../x"]).code, Some(0));
    assert_eq!(place.json(&["sessions", "--json"]).as_array().unwrap().len(), 3);
}

#[test]
fn sessions_are_listed_shown_planned_and_deleted() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    for id in ["one", "two"] {
        let ran = place.run(&["run", "-p", "Hello there.", "--session", id, "--base-url", &model.url()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let table = place.run(&["sessions"]).stdout;
    assert!(table.starts_with("TITLE") && table.lines().count() == 3, "{table}");
    let shown = place.run(&["show", "one"]).stdout;
    assert!(shown.contains("you › Hello there.") && shown.contains("agent › "), "{shown}");
    let found = place.json(&["recall", "hello", "--json"]);
    let of = |at: usize| (found[at]["role"].as_str().unwrap(), found[at]["text"].as_str().unwrap());
    assert_eq!((found.as_array().unwrap().len(), of(0).1), (4, "Hello there."), "{found}");
    let found = place.run(&["recall", "hello", "there", "--session", "tw", "-n", "1"]).stdout;
    assert!(found.starts_with("two  entry ") && found.ends_with("  Hello there.\n"), "{found}");
    assert_eq!(found.lines().count(), 2, "{found}");
    let none = place.run(&["recall", "zebra"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), "No entry matches \"zebra\".\n"));
    assert_eq!(place.run(&["recall", "x", "--session", "nobody"]).code, Some(3));
    let plan = place.json(&["compact", "--dry-run", "one", "--json"]);
    assert!(plan["plan"].is_null() && plan["reason"].is_string(), "{plan}");
    assert!(place.run(&["compact", "--dry-run", "one"]).stdout.contains("No compaction needed: "));
    let holding = |text: &[u8]| {
        let journal = files(&place.store().join("journal"));
        let holds =
            |path: &&PathBuf| std::fs::read(path).unwrap().windows(text.len()).any(|found| found == text);
        journal.iter().filter(holds).count()
    };
    let ran = place.run(&["run", "-p", "A secret.", "--session", "one", "--base-url", &model.url()]);
    assert_eq!((ran.code, holding(b"A secret.")), (Some(0), 1), "{ran:?}");
    assert_eq!(place.run(&["delete", "one"]).code, Some(0));
    assert_eq!(place.only_session(), "two");
    assert_eq!(
        (holding(b"A secret."), holding(b"Hello there.")),
        (0, 1),
        "what is deleted is gone from the disk"
    );
}

#[test]
fn a_store_in_use_is_said_with_who_uses_it() {
    let place = Place::new();
    let mut chat = place.start(&["chat", "--simulate", "--session", "mine"]);
    chat.wait_for("/help");
    for arguments in [&["run", "-p", "x", "--simulate"][..], &["delete", "mine"], &["rpc", "--simulate"]] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(ran.stderr.contains(&format!("in use by process {}", chat.id())), "{ran:?}");
    }
    drop(chat);
    assert_eq!(place.run(&["sessions"]).code, Some(0));
}

#[test]
fn a_store_in_use_can_be_looked_into() {
    let place = Place::new();
    let mut chat = place.start(&["chat", "--simulate", "--session", "mine"]);
    chat.say("Look around.");
    chat.wait_for(" tokens in all");
    for arguments in [
        &["sessions"][..],
        &["show", "mi"],
        &["recall", "look"],
        &["show", "--tree", "mine"],
        &["compact", "--dry-run", "mine"],
        &["export", "mine"],
        &["store", "check"],
        &["show", "mine", "--json"],
    ] {
        let ran = place.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}: {ran:?}");
    }
    assert_eq!(place.json(&["sessions", "--json"])[0]["state"], "idle");
    chat.say("Look around once more.");
    chat.wait_for("");
    // What is under way is told as what it is.
    let states: Vec<String> = (0..200)
        .map(|_| place.json(&["sessions", "--json"])[0]["state"].as_str().unwrap().to_owned())
        .take_while(|state| state != "running")
        .collect();
    assert!(states.len() < 200, "{states:?}");
    drop(chat);
    assert_eq!(place.json(&["sessions", "--json"])[0]["state"], "interrupted");
}

/// Damages this text wherever it stands in the store.
fn flip(place: &Place, needle: &[u8]) {
    let mut hit = false;
    for path in files(&place.store()) {
        let mut bytes = std::fs::read(&path).unwrap();
        let found: Vec<usize> = bytes
            .windows(needle.len())
            .enumerate()
            .filter(|(_, window)| *window == needle)
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
    assert!(hit, "the text is nowhere in the store");
}

/// Six prompts and their answers in the session `mine`.
fn talk(place: &Place, model: &Model) {
    for number in 0..6 {
        let prompt = format!("This is prompt number {number}.");
        let ran = place.run(&["run", "-p", &prompt, "--session", "mine", "--base-url", &model.url()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn what_is_intact_of_a_damaged_session_is_shown() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    talk(&place, &model);
    flip(&place, b"This is prompt number 2.");
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
fn no_command_is_silent_about_a_damaged_session_until_its_loss_is_accepted() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    talk(&place, &model);
    let url = model.url();
    let whole = place.run(&["export", "mine"]);
    assert_eq!((whole.code, whole.stderr.as_str()), (Some(0), ""), "{whole:?}");
    let checked = place.run(&["store", "check"]);
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{checked:?}");
    assert!(checked.stdout.contains("Nothing is damaged"), "{checked:?}");
    flip(&place, b"This is prompt number 2.");
    for arguments in [
        &["export", "mine"][..],
        &["compact", "--dry-run", "mine"],
        &["compact", "--dry-run", "mine", "--json"],
        &["show", "mine"],
    ] {
        for _ in 0..2 {
            let ran = place.run(arguments);
            assert_eq!(ran.code, Some(3), "{arguments:?}: {ran:?}");
            let said =
                ran.stderr.lines().filter(|line| line.contains("session mine is damaged: entr")).count();
            assert_eq!(said, 1, "{arguments:?}: {ran:?}");
        }
    }
    assert!(place.run(&["export", "mine"]).stdout.lines().count() < whole.stdout.lines().count());
    let listed = place.run(&["sessions"]);
    assert_eq!(listed.code, Some(0), "the list itself is whole: {listed:?}");
    assert!(listed.stderr.contains("1 session is damaged"), "{listed:?}");
    let checked = place.run(&["store", "check"]);
    assert_eq!(checked.code, Some(3), "{checked:?}");
    assert!(
        checked.stdout.contains("mine: entr") && checked.stdout.contains("accept-loss mine"),
        "{checked:?}"
    );
    assert!(checked.stderr.contains("is damaged"), "{checked:?}");
    let refused = place.run(&["run", "-p", "Go on.", "--session", "mine", "--base-url", &url]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("greenroom store accept-loss"), "{refused:?}");
    let accepted = place.run(&["store", "accept-loss", "mine"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    assert!(
        accepted.stdout.contains("entr") && accepted.stdout.contains("mine takes prompts again"),
        "{accepted:?}"
    );
    let ran = place.run(&["run", "-p", "Go on.", "--session", "mine", "--base-url", &url]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let again = place.run(&["store", "accept-loss", "mine"]);
    assert!(again.code == Some(0) && again.stdout.contains("no losses that are not accepted"), "{again:?}");
    assert_eq!(place.run(&["store", "check"]).code, Some(0));
    for (arguments, code) in [(&["store", "accept-loss"][..], 2), (&["store", "accept-loss", "nobody"], 3)] {
        assert_eq!(place.run(arguments).code, Some(code), "{arguments:?}");
    }
}

#[test]
fn damage_is_found_by_the_check_before_anything_else_reads_it() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    talk(&place, &model);
    assert_eq!(place.run(&["delete", "mine"]).code, Some(0));
    talk(&place, &model);
    flip(&place, b"This is prompt number 2.");
    let accepted = place.run(&["store", "accept-loss", "mine"]);
    assert!(accepted.code == Some(0) && accepted.stdout.contains("mine takes prompts again"), "{accepted:?}");
}

#[test]
fn a_journal_that_is_gone_is_said_by_every_command_until_that_is_accepted() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    talk(&place, &model);
    // A backup without the index, and without its only segment.
    std::fs::remove_dir_all(place.store().join("index")).unwrap();
    for path in files(&place.store().join("journal")) {
        if path.extension().is_some_and(|found| found == "seg") {
            std::fs::remove_file(path).unwrap();
        }
    }
    for arguments in [&["sessions"][..], &["sessions", "--json"], &["show", "mine"], &["store", "check"]] {
        for _ in 0..2 {
            let ran = place.run(arguments);
            assert_eq!(ran.code, Some(3), "{arguments:?}: {ran:?}");
            let is_said = ran.stderr.contains("segment 1 of the journal is damaged");
            assert!(is_said && !ran.stdout.contains("No sessions"), "{arguments:?}: {ran:?}");
        }
    }
    let listed = place.json_of(&place.run(&["sessions", "--json"]));
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&"mine".into(), &"damaged".into()), "{listed}");
    let other = place.run(&["run", "-p", "Hello.", "--session", "other", "--base-url", &model.url()]);
    assert!(other.code == Some(0) && other.stderr.contains("segment 1"), "{other:?}");
    let check = place.json_of(&place.run(&["store", "check", "--json"]));
    assert_eq!(check["unknown_segments"], serde_json::json!([1]), "{check}");
    assert_eq!(check["sessions"][0]["id"], "mine", "{check}");
    assert_eq!(place.run(&["store", "accept-loss", "--segment", "7"]).code, Some(2));
    let accepted = place.run(&["store", "accept-loss", "--segment", "1"]);
    assert!(
        accepted.code == Some(0) && accepted.stdout.contains("entries of unknown sessions"),
        "{accepted:?}"
    );
    assert_eq!(place.run(&["store", "check"]).code, Some(3), "the session is still damaged");
    let accepted = place.run(&["store", "accept-loss", "mine"]);
    assert!(accepted.code == Some(0) && accepted.stdout.contains("the entries from 0 on"), "{accepted:?}");
    for arguments in [&["sessions"][..], &["store", "check"], &["show", "other"]] {
        let ran = place.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

/// A list for people is short and says how much is missing; a script gets all sessions, or as many as it asks for.
#[test]
fn scripts_get_all_sessions_and_people_the_newest() {
    use greenroom_kernel::Head;
    use greenroom_store::{Batch, Store, StoreOptions};
    let place = Place::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (store, _) = Store::open(&StoreOptions::new(place.store())).unwrap();
        for number in 0..60 {
            let batch = Batch { entries: Vec::new(), head: Head::default().into(), key: None };
            store.append(&format!("session {number}"), batch).await.unwrap();
        }
        store.close().await.unwrap();
    });
    for (limit, in_json, in_table) in [(None, 60, 50), (Some("0"), 60, 60), (Some("7"), 7, 7)] {
        let arguments: Vec<&str> =
            ["sessions"].into_iter().chain(limit.into_iter().flat_map(|limit| ["--limit", limit])).collect();
        let listed = place.json(&[&arguments[..], &["--json"]].concat());
        assert_eq!(listed.as_array().unwrap().len(), in_json, "{limit:?}");
        let table = place.run(&arguments).stdout;
        let more = if in_table < 60 {
            format!("{} more; --limit 0 shows all\n", 60 - in_table)
        } else {
            String::new()
        };
        assert_eq!(table.lines().count(), 1 + in_table + more.lines().count(), "{limit:?}: {table}");
        assert!(table.ends_with(&more), "{limit:?}: {table}");
    }
}

#[test]
fn prompts_that_wait_are_shown_and_an_export_says_that_it_lacks_them() {
    use greenroom_kernel::Head;
    use greenroom_kernel::entry::{Entry, EntryId, EntryKind, InboxDelivery};
    use greenroom_kernel::message::Block;
    use greenroom_store::{Batch, Store, StoreOptions};
    let place = Place::new();
    let kind = EntryKind::Inbox {
        delivery: InboxDelivery::FollowUp,
        content: vec![Block::Text("Do this later.".into())],
        key: None,
        fingerprint: None,
        terms: None,
    };
    let entry =
        Entry { id: EntryId(0), parent: None, at_ms: 1, tokens: 1, reasoning_tokens: 0, origin: None, kind };
    let head = Head { entries: 1, inbox: vec![EntryId(0)], ..Head::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (store, _) = Store::open(&StoreOptions::new(place.store())).unwrap();
        store
            .append("mine", Batch { entries: vec![entry.into()], head: head.into(), key: None })
            .await
            .unwrap();
        store.close().await.unwrap();
    });
    let shown = place.run(&["show", "mine"]);
    assert!(shown.stdout.contains("you, waiting › Do this later."), "{shown:?}");
    let exported = place.run(&["export", "mine"]);
    assert!(
        exported.code == Some(0) && exported.stderr.contains("1 queued prompt is not in the file"),
        "{exported:?}"
    );
}

/// Sessions of sub-agents are listed under their callers, where they are wanted, and go with them.
#[test]
fn sessions_of_sub_agents_stand_under_their_callers_and_go_with_them() {
    use greenroom_kernel::EntryId;
    use greenroom_kernel::Head;
    use greenroom_kernel::entry::{Entry, EntryKind};
    use greenroom_store::{Batch, Store, StoreOptions};
    let place = Place::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (store, _) = Store::open(&StoreOptions::new(place.store())).unwrap();
        let sessions = [
            ("team", None),
            ("team..0000000000000001", Some("team")),
            ("team..0000000000000001..0000000000000002", Some("team..0000000000000001")),
            ("other", None),
            ("gone..0000000000000003", Some("gone")),
        ];
        for (at_ms, (id, parent)) in (1..).zip(sessions) {
            let kind = EntryKind::Note { kind: "n".into(), data: "{}".into() };
            let entry = Entry {
                id: EntryId(0),
                parent: None,
                at_ms,
                tokens: 1,
                reasoning_tokens: 0,
                origin: None,
                kind,
            };
            let parent_session = parent.map(str::to_owned);
            let head = Head { entries: 1, updated_at_ms: at_ms, parent_session, ..Head::default() };
            store
                .append(id, Batch { entries: vec![entry.into()], head: head.into(), key: None })
                .await
                .unwrap();
        }
        store.close().await.unwrap();
    });
    let rows = |arguments: &[&str]| -> Vec<String> {
        let table = place.run(arguments).stdout;
        table.lines().skip(1).map(str::to_owned).collect()
    };
    let table = rows(&["sessions"]);
    assert!(table[0].contains("  other ") && table[1].contains("  team "), "{table:?}");
    assert_eq!(table[2], "3 of sub-agents; --all shows them under their callers");
    let table = rows(&["sessions", "--all"]);
    let ids = [
        ("", "gone..0000000000000003"),
        ("", "other"),
        ("", "team"),
        ("  ", "team..0000000000000001"),
        ("    ", "team..0000000000000001..0000000000000002"),
    ];
    assert_eq!(table.len(), ids.len(), "{table:?}");
    for (row, (indent, id)) in table.iter().zip(ids) {
        let is_there = row.contains(&format!("  {id} "));
        assert!(row.starts_with(&format!("{indent}no messages yet")) && is_there, "{table:?}");
    }
    assert_eq!(place.json(&["sessions", "--json"]).as_array().unwrap().len(), 2);
    assert_eq!(place.json(&["sessions", "--json", "--all"])[3]["parent"], "team");
    let ran = place.run(&["delete", "team"]);
    assert!(ran.stdout.contains("Deleted team and the 2 sessions of the agents that it called."), "{ran:?}");
    assert_eq!(place.json(&["sessions", "--json", "--all"]).as_array().unwrap().len(), 2);
}

/// A session file with so many messages.
fn session_file(place: &Place, messages: usize) {
    let mut text = String::from(
        "{\"type\":\"session\",\"version\":3,\"id\":\"mine\",\"timestamp\":\"2026-01-01T00:00:00.000Z\",\"cwd\":\"/\"}\n",
    );
    for id in 0..messages {
        let parent = id.checked_sub(1).map_or("null".to_owned(), |parent| format!("\"{parent:08x}\""));
        text.push_str(&format!(
            "{{\"type\":\"message\",\"id\":\"{id:08x}\",\"parentId\":{parent},\"timestamp\":\"2026-01-01T00:00:00.000Z\",\
             \"message\":{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"Message {id}.\"}}],\
             \"timestamp\":1767225600000}}}}\n"
        ));
    }
    std::fs::write(place.work().join("mine.jsonl"), text).unwrap();
}

/// How many bytes the segments of the journal have.
fn journal_bytes(place: &Place) -> u64 {
    let Ok(names) = std::fs::read_dir(place.store().join("journal")) else { return 0 };
    let segments = names.map(|entry| entry.unwrap().path());
    let segments = segments.filter(|path| path.extension().is_some_and(|found| found == "seg"));
    segments.map(|path| std::fs::metadata(path).map_or(0, |metadata| metadata.len())).sum()
}

#[test]
fn an_import_that_is_killed_is_all_there_or_not_at_all() {
    let place = Place::new();
    session_file(&place, 18_000);
    let mut killed = 0;
    for at in [50_000, 400_000, 900_000] {
        let before = journal_bytes(&place);
        let mut import = place.start_alone(&["import", "mine.jsonl"]);
        while journal_bytes(&place) < before + at && !import.has_ended() {
            std::thread::yield_now();
        }
        // This kills it.
        drop(import);
        let listed = place.json(&["sessions", "--json"]);
        let is_there = listed.as_array().unwrap().iter().any(|session| session["id"] == "mine");
        if is_there {
            assert_eq!(listed[0]["entries"], 18_000, "{listed}");
            assert_eq!(place.run(&["delete", "mine"]).code, Some(0));
        } else {
            killed += 1;
            assert_eq!(place.run(&["show", "mine"]).code, Some(3));
        }
    }
    assert!(killed >= 1, "no import was killed in the middle");
    let ran = place.run(&["import", "mine.jsonl"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(place.json(&["sessions", "--json"])[0]["entries"], 18_000);
}

/// The binary with these arguments, under a limit that the shell's `ulimit` sets.
fn limited(place: &Place, limit: &str, arguments: &str) -> super::support::Ran {
    let mut command = std::process::Command::new("sh");
    let line = format!("ulimit {limit}; exec {} {arguments}", env!("CARGO_BIN_EXE_greenroom"));
    command.args(["-c", &line]).current_dir(place.work()).env_clear().env("HOME", place.work());
    command.env("GREENROOM_DATA_DIR", place.store()).stdin(std::process::Stdio::null());
    super::support::ran(command.output().unwrap())
}

#[test]
fn limits_of_the_process_are_said_and_cost_nothing() {
    let place = Place::new();
    session_file(&place, 2_000);
    let ran = limited(&place, "-f 100", "import mine.jsonl");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("greenroom: "), "{ran:?}");
    assert_eq!(place.run(&["sessions", "--json"]).stdout.trim(), "[]");
    assert_eq!(place.run(&["import", "mine.jsonl"]).code, Some(0));
    let ran = limited(&place, "-n 6", "sessions");
    assert!(ran.code == Some(2) && ran.stderr.contains("ulimit -n"), "{ran:?}");
    let ran = limited(&place, "-n 14", "sessions");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_pipe_where_a_file_should_be_is_said_at_once() {
    let place = Place::new();
    assert_eq!(place.run(&["run", "-p", "x", "--simulate"]).code, Some(0));
    for name in ["journal/manifest", "lock"] {
        let path = place.store().join(name);
        std::fs::rename(&path, place.work().join("kept")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let ran = place.start_alone(&["sessions"]).end_within(std::time::Duration::from_secs(20));
        assert!(ran.code == Some(3) && ran.stderr.contains("not a regular file"), "{name}: {ran:?}");
        std::fs::rename(place.work().join("kept"), &path).unwrap();
    }
    assert_eq!(place.run(&["sessions"]).code, Some(0));
}

#[test]
fn ids_are_shown_whole_and_none_looks_like_a_flag() {
    let place = Place::new();
    let long = "l".repeat(64);
    for id in ["--dashes", &long] {
        let text = format!(
            "{{\"type\":\"session\",\"version\":3,\"id\":\"{id}\",\"timestamp\":\"2026-01-01T00:00:00.000Z\",\"cwd\":\"/\"}}\n"
        );
        std::fs::write(place.work().join("file.jsonl"), text).unwrap();
        let ran = place.run(&["import", "file.jsonl"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let listed = place.run(&["sessions"]).stdout;
    assert!(listed.contains(&long) && listed.contains("  dashes "), "{listed}");
}

#[test]
fn files_of_other_systems_are_planned_as_they_plan() {
    let cases = include_str!("../../../../tests/data/cut_cases.jsonl");
    let mut compared = 0;
    let place = Place::new();
    let header =
        r#"{"type":"session","version":3,"id":"case","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}"#;
    for line in cases.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut text = format!("{header}\n");
        for entry in case["entries"].as_array().unwrap() {
            text.push_str(&format!("{entry}\n"));
        }
        std::fs::write(place.work().join("case.jsonl"), text).unwrap();
        let keep = case["keep_recent_tokens"].to_string();
        let mut arguments = vec![
            "compact", "--dry-run", "case.jsonl", "--keep-recent", &keep, "--cut", "nearest", "--estimator",
            "char4", "--json",
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
            compared += 1;
            assert_eq!(plan["plan"][key], *value, "{}: {key}", case["name"]);
        }
        assert_eq!(plan["plan"].is_null(), expected["plan"].is_null(), "{}: {plan}", case["name"]);
    }
    assert!(compared > 500, "{compared} values");
}

/// Takes all rights to write below a folder away. Where the test is allowed to do everything, it gives the folder to
#[test]
fn an_import_goes_on_after_a_file_that_is_none() {
    let place = Place::new();
    session_file(&place, 3);
    std::fs::write(place.work().join("bad"), "no session").unwrap();
    std::fs::write(place.work().join("worse"), "no session either").unwrap();
    let ran = place.run(&["import", "bad", "mine.jsonl", "worse"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stdout.starts_with("mine: 3 messages"), "{ran:?}");
    assert!(ran.stderr.contains("bad: ") && ran.stderr.contains("worse: "), "{ran:?}");
    let again = place.run(&["import", "mine.jsonl"]);
    assert!(again.code == Some(2) && again.stderr.contains("it is not changed"), "{again:?}");
}

/// A session file of 30 messages with about 400 tokens each, answered by this model.
fn file_of_model(place: &Place, model: &str) {
    let mut lines = vec![json!({"type": "session", "version": 3, "id": "s"})];
    for number in 0..30 {
        let text = format!("message {number} {}", "thing ".repeat(400));
        let message = if number % 2 == 0 {
            json!({"role": "user", "content": text})
        } else {
            json!({"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop",
                "provider": "openai", "model": model})
        };
        let parent = (number > 0).then(|| format!("m{}", number - 1));
        lines.push(
            json!({"type": "message", "id": format!("m{number}"), "parentId": parent, "message": message}),
        );
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(place.work().join("file.jsonl"), text).unwrap();
}

#[test]
fn a_plan_is_made_for_the_window_that_is_known() {
    let place = Place::new();
    let planned = |arguments: &[&str]| {
        let plan = place.json(&[&["compact", "--dry-run", "file.jsonl", "--json"], arguments].concat());
        !plan["plan"].is_null()
    };
    // In a large window everything is recent enough to keep.
    let keeping = |more: &str| {
        place
            .own_file(&format!("compaction: {{ keep_recent_tokens: 20000{more} }}\ncontext_window: 100000\n"))
    };
    place.own_file("compaction: { keep_recent_tokens: 20000 }\n");
    file_of_model(&place, "unheard-of");
    assert!(!planned(&[]) && planned(&["--window", "8000"]));
    file_of_model(&place, "gpt-4");
    assert!(planned(&[]), "the catalogue gives gpt-4 8,192 tokens");
    assert!(!planned(&["--window", "128000"]));
    keeping("");
    assert!(!planned(&[]) && planned(&["--window", "8000"]));
    keeping(", context_window: 8000");
    assert!(planned(&[]) && !planned(&["--window", "128000"]));
}

/// What a plan says is what a compaction then does, by itself as with a keep: of the whole context, and with words that
/// compact all the same where nothing is to be done.
#[test]
fn a_plan_of_a_session_is_near_to_what_its_compaction_does() {
    let place = Place::new();
    let model = Model::new(
        ByPurpose::new(Says(Answer::text("word ".repeat(1_200))), Summariser::Obedient),
        |options| options.window = 200_000,
    );
    let url = model.url();
    for _ in 0..10 {
        let ran = place.run(&["run", "-p", "Go on.", "--session", "mine", "--base-url", &url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let planned = || place.json(&["compact", "--dry-run", "mine", "--json"]);
    let listed = || place.json(&["sessions", "--json"])[0]["context_tokens"].as_u64().unwrap();
    for _ in 0..2 {
        let plan = planned();
        assert_eq!(plan["context_tokens"], listed(), "the fixed part counts");
        let number = |name: &str| plan["plan"][name].as_u64().unwrap();
        let compacted = place.json(&["compact", "mine", "--json", "--base-url", &url]);
        assert_eq!(compacted["outcome"], "completed", "{compacted}");
        assert_eq!(compacted["tokens_before"], number("tokens_before"));
        let after = compacted["tokens_after"].as_u64().unwrap();
        let expected = number("tokens_after_estimate");
        assert!(
            after.abs_diff(expected) * 3 < expected && after <= number("tokens_after_max"),
            "{after} {plan}"
        );
        let plan = planned();
        assert_eq!(plan["reason"], "there is no new message since the last compaction");
        assert_eq!(plan["context_tokens"], listed(), "and where no answer has reported a size yet");
        let leaf = place.json(&["show", "--tree", "mine", "--json"])["leaf"].to_string();
        let plan = place.json(&["compact", "--dry-run", "mine", "--leaf", &leaf, "--json"]);
        assert_eq!(plan["context_tokens"], listed(), "the path to the leaf is the session's");
        let ran = place.run(&["run", "-p", "Go on.", "--session", "mine", "--base-url", &url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let ran = place.run(&["compact", "mine", "--keep", "90000", "--base-url", &url]);
    let wanted = "No compaction needed: everything is recent enough to keep; --keep N keeps less, and --force only the \
                  last two messages\n";
    assert_eq!(ran.stdout, wanted, "{ran:?}");
    let ran = place.run(&["compact", "mine", "--force", "--keep", "90000", "--base-url", &url]);
    assert!(ran.stdout.starts_with("✓ Compacted "), "{ran:?}");
    model.simulator.assert_clean();
}

#[test]
fn the_flag_for_the_window_stands_above_every_setting() {
    let model = Model::new(Echo, |_| {});
    let place = Place::new();
    place.own_file("context_window: 9000\ncompaction: { context_window: 8000 }\n");
    let window = |flags: &[&str]| {
        let url = model.url();
        let ran =
            place.run(&[&["run", "--json", "--no-tools", "-p", "hi", "--base-url", &url], flags].concat());
        let last = events(&ran).into_iter().rfind(|event| event["type"] == "run_end").unwrap();
        (last["context"]["window"].as_u64().unwrap(), last["context"]["window_source"].to_string())
    };
    assert_eq!(window(&[]), (8_000, "\"compaction_setting\"".to_owned()));
    assert_eq!(window(&["--window", "7000"]), (7_000, "\"setting\"".to_owned()));
}

/// nobody in particular, as whom the commands then run.
fn close_to_writers(path: &Path, stranger: Option<u32>) {
    use std::os::unix::fs::PermissionsExt as _;
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            close_to_writers(&entry.unwrap().path(), stranger);
        }
    }
    let mode = if path.is_dir() { 0o500 } else { 0o400 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(path, stranger, stranger).unwrap();
}

#[test]
fn a_store_that_cannot_be_written_can_be_looked_at() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let place = Place::new();
    for id in ["one", "two"] {
        let ran = place.run(&["run", "-p", "Count.", "--session", id, "--simulate", "--no-tools"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let stranger = rustix::process::geteuid().is_root().then_some(65_534);
    close_to_writers(&place.store(), stranger);
    let folder = place.work().parent().unwrap().to_owned();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.join("greenroom");
    std::fs::copy(env!("CARGO_BIN_EXE_greenroom"), &binary).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&binary);
        command.args(arguments).current_dir(place.work()).env_clear();
        command.env("HOME", &folder).env("GREENROOM_DATA_DIR", place.store());
        if let Some(stranger) = stranger {
            command.uid(stranger).gid(stranger);
        }
        ran(command.output().unwrap())
    };
    let contents = || {
        let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
        files(&place.store()).into_iter().map(|path| (read(&path), path)).collect::<Vec<_>>()
    };
    let before = contents();
    for (arguments, said) in [
        (&["sessions"][..], "two"),
        (&["show", "one"], "Count."),
        (&["export", "one"], "Count."),
        (&["compact", "--dry-run", "one"], ""),
        (&["store", "check"], ""),
    ] {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        assert!(ran.stdout.contains(said), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("is opened read-only"), "{arguments:?}: {ran:?}");
    }
    for arguments in
        [&["delete", "one"][..], &["run", "-p", "x", "--session", "one", "--simulate", "--no-tools"]]
    {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(3), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("not permitted to"), "{arguments:?}: {ran:?}");
    }
    assert_eq!(contents(), before, "nothing is changed");
}

#[test]
fn a_store_that_others_may_write_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    std::fs::create_dir(place.store()).unwrap();
    for (mode, is_warned) in [(0o777, true), (0o775, true), (0o755, false), (0o700, false)] {
        std::fs::set_permissions(place.store(), std::fs::Permissions::from_mode(mode)).unwrap();
        let ran = place.run(&["sessions"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stderr.contains("others can write to"), is_warned, "{mode:o}: {ran:?}");
        for folder in ["journal", "index"] {
            let metadata = std::fs::metadata(place.store().join(folder)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, 0o700, "{folder}");
        }
    }
}

/// Programs are told of the damage too: by the list, by a session's state, and by what the session refuses.
#[test]
fn a_damaged_session_says_so_to_programs() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    talk(&place, &model);
    flip(&place, b"This is prompt number 4.");
    let mut rpc = place.start(&["rpc", "--base-url", &model.url()]);
    let mut call = |id: u32, method: &str, params: &str| -> serde_json::Value {
        rpc.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#));
        serde_json::from_str(&rpc.wait_for(&format!(r#""id":{id},"#))).unwrap()
    };
    let list = call(1, "session/list", "{}");
    let lost = &list["result"]["sessions"][0]["lost_from"];
    assert!(lost.as_u64().is_some_and(|from| from > 0), "{list}");
    let state = call(2, "agent/state", r#"{"session_id":"mine"}"#);
    assert_eq!(state["result"]["lost_from"], *lost, "{state}");
    assert_eq!(state["result"]["entries"], list["result"]["sessions"][0]["entries"], "{state}");
    let refused = call(3, "session/prompt", r#"{"session_id":"mine","text":"x"}"#);
    assert!(refused["error"]["message"].as_str().unwrap().contains("damaged or lost"), "{refused}");
}

/// A folder that cannot be there is a mistake, not a place without sessions.
#[test]
fn a_data_directory_that_cannot_be_is_refused_by_every_command() {
    let place = Place::new();
    let file = place.work().join("file");
    std::fs::write(&file, "x").unwrap();
    for dir in [file.clone(), file.join("beneath")] {
        for arguments in [
            &["sessions"][..],
            &["show", "mine"],
            &["delete", "mine", "--yes"],
            &["questions"],
            &["export", "mine"],
            &["store", "check"],
            &["run", "-p", "x", "--simulate"],
        ] {
            let ran = place.run(&[arguments, &["--data-dir", dir.to_str().unwrap()]].concat());
            let is_said = ran.stderr.contains("cannot keep sessions in") && ran.stdout.is_empty();
            assert!(ran.code == Some(3) && is_said, "{arguments:?}: {ran:?}");
        }
    }
}

//! Commands that look work through the host, and print what they print without one.

use greenroom_server::operations::{ClientKind, PromptSession};
use serde_json::{Value, json};

use super::Hosted;
use crate::cli::support::Ran;

/// What a command printed, without how long ago something was.
fn printed(ran: Ran) -> (Option<i32>, String, String) {
    let words = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_age = |at: usize| {
            let is = |offset: usize, texts: &[&str]| {
                words.get(at + offset).is_some_and(|word| texts.contains(word))
            };
            is(2, &["ago"]) && is(1, &["s", "min"])
                || is(1, &["ago"]) && is(0, &["s", "min"])
                || is(0, &["ago"])
        };
        (0..words.len()).filter(|at| !is_age(*at)).map(|at| words[at]).collect::<Vec<_>>().join(" ")
    };
    (ran.code, ran.stdout.lines().map(words).collect::<Vec<_>>().join("\n"), ran.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commands_print_is_the_same_with_a_host_and_without_one() {
    let hosted = Hosted::new(40, 0).await;
    for (id, text) in [("first", "one"), ("first", "two"), ("second", "three"), ("fir-other", "four")] {
        assert_eq!(hosted.say(id, text).code, Some(0));
    }
    assert_eq!(hosted.run(&["compact", "first", "--keep-recent", "10", "--force"]).code, Some(0));
    assert_eq!(hosted.run(&["host", "--stop"]).code, Some(0));
    let commands: [&[&str]; 24] = [
        &["sessions"],
        &["sessions", "--json"],
        &["sessions", "--all", "--limit", "2"],
        &["sessions", "--here", "--unfinished"],
        &["sessions", "--label", "none=x"],
        &["show", "first"],
        &["show", "first", "--json"],
        &["show", "sec"],
        &["show", "fir"],
        &["show", "none"],
        &["show", "--tree", "first"],
        &["show", "--tree", "first", "--json"],
        &["compact", "--dry-run", "first"],
        &["compact", "--dry-run", "first", "--json"],
        &["compact", "--dry-run", "none"],
        &["export", "first"],
        &["export", "none"],
        &["questions"],
        &["questions", "--json"],
        &["questions", "--session", "first"],
        &["questions", "--session", "none"],
        &["models"],
        &["models", "--json"],
        &["models", "--forget", "simulated"],
    ];
    let all = || -> Vec<_> { commands.iter().map(|arguments| printed(hosted.run(arguments))).collect() };
    let without = all();
    hosted.start_host();
    let host = hosted.host();
    // Somebody is there, so that no command ends the host.
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    let with = all();
    assert_eq!(hosted.host(), host);
    for ((arguments, without), with) in commands.iter().zip(&without).zip(&with) {
        assert_eq!(with, without, "{arguments:?}");
    }
    let codes: Vec<Option<i32>> = with.iter().map(|(code, ..)| *code).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 19, "{codes:?}");
    chat.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_speaks_the_protocol_beside_a_chat() {
    let hosted = Hosted::new(3, 0).await;
    hosted.start_host();
    let host = hosted.host();
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    chat.work(PromptSession::new("shared", "one")).await.unwrap().outcome().await.unwrap();
    let mut running = hosted.place.start_command(hosted.command(&["rpc", "--window", "100000"]));
    running.say(
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt",
        "params": { "session_id": "shared", "text": "two" } })
        .to_string(),
    );
    let outcome: Value = serde_json::from_str(&running.wait_for("session/prompt_result")).unwrap();
    assert_eq!(outcome["params"]["text"], "word word word ", "{outcome}");
    // What was asked before the input ends is answered.
    running.say(&json!({ "jsonrpc": "2.0", "id": 2, "method": "session/list" }).to_string());
    running.close_input();
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("\"id\":2") && ended.stdout.contains("shared"), "{ended:?}");
    assert_eq!(hosted.host(), host);
    chat.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_by_its_folder_as_soon_as_something_was_said_in_it() {
    let hosted = Hosted::new(3, 0).await;
    hosted.start_host();
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    chat.work(PromptSession::new("open", "one")).await.unwrap().outcome().await.unwrap();
    // The chat is still there, and then its host is killed.
    for _ in 0..2 {
        let here: Value = hosted.place.json(&["sessions", "--here", "--json"]);
        assert_eq!((here.as_array().map(Vec::len), &here[0]["id"]), (Some(1), &json!("open")));
        let folder = hosted.place.work().canonicalize().unwrap();
        assert_eq!(here[0]["folder"], folder.display().to_string());
        if hosted.host().is_some() {
            hosted.kill_host();
        }
    }
}

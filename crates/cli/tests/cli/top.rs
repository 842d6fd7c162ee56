//! `top`: the live sessions of a host, as JSON, as a table and at a terminal, from where a run is aborted.

use std::process::Stdio;
use std::time::{Duration, Instant};

use greenroom_server::Client;
use greenroom_server::operations::{ClientKind, GetState, PromptSession, StartSession};
use greenroom_simulator::{Answer, ByPurpose, Summariser};
use serde_json::{Value, json};

use super::host::Hosted;
use super::screen::{Terminal, is_there};
use super::support::{Place, Running, Says};

/// Whether the selected row is that of this session.
fn selected(screen: &str, id: &str) -> bool {
    screen.lines().any(|row| row.starts_with("▸ ") && row.split_whitespace().any(|word| word == id))
}

#[test]
fn without_a_host_nothing_is_live_and_nothing_is_made() {
    let place = Place::new();
    assert_eq!(place.json(&["top", "--json"]), Value::Array(Vec::new()));
    let ran = place.run(&["top"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("no session is live"), "{ran:?}");
    assert_eq!(place.run(&["top", "--sort", "weather"]).code, Some(2));
    assert!(!place.store().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_live_sessions_of_a_host_are_seen_and_a_run_is_aborted_from_there() {
    // Its answer is not over before it is aborted, however slow the machine is.
    let hosted = Hosted::new(6_000, 50).await;
    hosted.start_host();
    let arguments = ["run", "--window", "100000", "--session", "mine", "-p", "Count the words.", "--json"];
    let mut command = hosted.command(&arguments);
    let mut run = Running::start(command.stdin(Stdio::null()));
    run.wait_for("message_delta");
    let ran = hosted.run(&["top", "--json"]);
    let live: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let mine = &live[0];
    assert_eq!(
        (&mine["id"], &mine["status"], &mine["activity"]["step"]),
        (&"mine".into(), &"working".into(), &1.into())
    );
    assert_eq!(
        (&mine["title"], &mine["context_window"]),
        (&"Count the words.".into(), &100_000.into()),
        "{mine}"
    );
    let table = hosted.run(&["top"]);
    let mut lines = table.stdout.lines();
    assert!(lines.next().is_some_and(|head| head.starts_with("TITLE ")), "{table:?}");
    assert!(
        lines.next().is_some_and(|row| row.contains("  mine  ") && row.contains("step 1: the model answers")),
        "{table:?}"
    );
    if is_there() {
        let terminal = Terminal::run(&hosted.place, (110, 24), &["top"]);
        terminal.shows("1 live session, 1 working");
        terminal.until("it is selected", |screen| selected(screen, "mine"));
        terminal.press("Enter");
        terminal.shows("word word word");
        terminal.press("a");
        terminal.shows("Abort the work in mine? Partial output is kept. y/n");
        terminal.press("n");
        terminal.until("the question is gone", |screen| !screen.contains("y/n"));
        assert!(!run.has_ended(), "a no is a no");
        terminal.press("a");
        terminal.shows("y/n");
        terminal.press("y");
        terminal.shows("the run ended: aborted");
        terminal.press("Escape");
        terminal.shows("idle");
        terminal.press("q");
        terminal.shows("ended with 0");
    } else {
        run.signal(rustix::process::Signal::INT);
    }
    let ran = run.end();
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    let shown = hosted.run(&["show", "mine"]);
    assert!(shown.stdout.contains("the run was aborted"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_session_is_compacted_from_there_when_that_is_confirmed() {
    if !is_there() {
        return;
    }
    let hosted =
        Hosted::of(ByPurpose::new(Says(Answer::text("word ".repeat(8_000))), Summariser::Obedient)).await;
    hosted.start_host();
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    chat.call(StartSession { session_id: "mine".to_owned() }).await.unwrap();
    for number in 0..6 {
        let prompt = PromptSession::new("mine", format!("{number}: {}", "Count these. ".repeat(400)));
        chat.work(prompt).await.unwrap().outcome().await.unwrap();
    }
    let state = || async { chat.call(GetState { session_id: "mine".to_owned() }).await.unwrap() };
    let before = state().await;
    assert_eq!(before.compactions, 0);
    let terminal = Terminal::run(&hosted.place, (110, 24), &["top"]);
    terminal.until("it is selected", |screen| selected(screen, "mine"));
    terminal.press("c");
    terminal.shows("y/n");
    terminal.press("n");
    terminal.until("the question is gone", |screen| !screen.contains("y/n"));
    assert_eq!(state().await.compactions, 0, "a no is a no");
    terminal.press("c");
    terminal.shows("y/n");
    terminal.press("y");
    terminal.shows("Compacted");
    let after = state().await;
    assert_eq!(after.compactions, 1);
    let (now, then) = (after.context.tokens, before.context.tokens);
    assert!(now < then, "{now} and {then}");
    terminal.press("q");
    terminal.shows("ended with 0");
    chat.close().await;
}

/// It looks for the next host as a chat does, and the keys work meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_with_another_host_where_its_own_dies() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(3, 0).await;
    hosted.start_host();
    let begin = async |session: &str| {
        let chat = hosted.client(ClientKind::Chat, json!({})).await;
        chat.work(PromptSession::new(session, "x")).await.unwrap().outcome().await.unwrap();
        chat
    };
    let _first = begin("first").await;
    let terminal = Terminal::run(&hosted.place, (110, 24), &["top"]);
    terminal.until("it is selected", |screen| selected(screen, "first"));
    hosted.kill_host();
    terminal.shows("no host has the store open; looking for the next one");
    terminal.press("a");
    terminal.until("nothing is asked about", |screen| !screen.contains("y/n"));
    hosted.start_host();
    let second = begin("second").await;
    terminal.until("it is selected", |screen| selected(screen, "second"));
    // One that is looked at closely when the host dies is looked at again.
    terminal.press("Enter");
    let seen = async |client: &Client, text: &str| {
        let began = Instant::now();
        let shown = format!("› {text}");
        while !terminal.screen().contains(&shown) {
            assert!(began.elapsed() < Duration::from_secs(60), "what happens there is not seen: {text}");
            client.work(PromptSession::new("second", text)).await.unwrap().outcome().await.unwrap();
        }
    };
    seen(&second, "closely").await;
    hosted.kill_host();
    terminal.shows("no host has the store open");
    hosted.start_host();
    let again = begin("second").await;
    seen(&again, "again").await;
    terminal.press("q");
    terminal.shows("ended with 0");
}

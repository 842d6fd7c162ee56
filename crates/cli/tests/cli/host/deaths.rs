//! The host is killed in the middle of everything, again and again.

use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_kernel::Message;
use greenroom_server::Received;
use greenroom_server::operations::{ClientKind, PromptSession, ShowSession, Speech, StartSession};
use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest};
use serde_json::json;

use super::{Hosted, is_lost, wait_until};

const CYCLES: usize = 50;
/// Where the commands write what they were told, in the working folder.
const DONE: &str = "done";

/// The places of the durable events that were heard, until nothing more comes.
async fn heard(mut events: greenroom_server::Events) -> Vec<(u64, String)> {
    let mut heard = Vec::new();
    while let Some(received) = events.next().await {
        match received {
            Received::Event(event) if event.is_durable() => {
                heard.push((event.seq, event.kind.name().to_owned()));
            }
            Received::Event(_) | Received::Warning(_) => {}
            Received::Gap { .. } => panic!("nobody was slow"),
        }
    }
    heard
}

/// A model that has each prompt written down by a command, unless it sees that it asked for that before, and then says
/// eight words.
async fn hosted() -> Hosted {
    Hosted::of(Function(move |request: &SeenRequest, _: CallInfo| {
        let has_asked = |command: &str| {
            request.messages.iter().any(|message| match &**message {
                Message::Assistant(answer) => {
                    answer.tool_calls().any(|call| call.arguments.contains(command))
                }
                Message::User(_) | Message::ToolResult(_) => false,
            })
        };
        match request.messages.last().map(|last| (last.role(), format!("echo '{}' >> {DONE}", last.text()))) {
            Some(("user", command)) if !has_asked(&command) => {
                Answer::call("bash", &json!({ "command": command }))
            }
            _ => Answer::text("word ".repeat(8)).with_pace(Pace { chunks: 8, first_ms: 0, between_ms: 20 }),
        }
    }))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_nothing_is_said_or_done_twice() {
    let hosted = hosted().await;
    let tools = json!({ "model": { "allow_shell": true } });
    let mut completed = Vec::new();
    let (mut acknowledged, mut maybe, mut killed_in_a_run) = (Vec::new(), Vec::new(), 0);
    // Those that their client said again after their run was cut off, under the same key.
    let mut again = Vec::new();
    for cycle in 0..CYCLES {
        hosted.start_host();
        let ada = hosted.client(ClientKind::Chat, tools.clone()).await;
        let bob = hosted.client(ClientKind::Chat, json!({ "model": { "allow_write": true } })).await;
        let (hers, his) = (ada.events_of("s"), bob.events_of("s"));
        let start = || StartSession { session_id: "s".to_owned() };
        ada.call(start()).await.unwrap();
        bob.call(start()).await.unwrap();
        let (hers, his) = (tokio::spawn(heard(hers)), tokio::spawn(heard(his)));
        let (text, by_run) = (format!("ada {cycle}"), format!("run {cycle}"));
        let key = format!("key-{cycle}");
        let prompt = PromptSession { key: Some(key.clone()), ..PromptSession::new("s", &text) };
        let before = hosted.simulator.calls();
        let mut running = hosted.place.start_command(hosted.command(&[
            "run", "--window", "100000", "--allow-shell", "--session", "s", "-p", &by_run, "--json",
        ]));
        running.close_input();
        let listed = hosted.run(&["sessions"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let work = ada.work(prompt.clone()).await;
        // The kill comes sooner or later in the life of these runs.
        let calls = before + 1 + (cycle % 2) as u64;
        if cycle % 5 > 0 {
            wait_until("some are asked", || hosted.simulator.calls() >= calls);
        }
        killed_in_a_run += usize::from(hosted.simulator.in_flight() > 0);
        hosted.kill_host();
        let ended = running.end();
        match ended.code {
            Some(0) => {
                // Where it was cut off and gone on with, the command was begun, and perhaps not run.
                if ended.stdout.contains("tool_end") {
                    completed.push(by_run.clone());
                }
                again.push(by_run.clone());
                acknowledged.push(by_run);
            }
            // It had been taken on, or not: the log says.
            _ if ended.stdout.contains("run_start") => acknowledged.push(by_run),
            _ => maybe.push(by_run),
        }
        let is_taken_on = work.is_ok();
        if let Ok(work) = work {
            match work.outcome().await {
                Ok(outcome) => {
                    assert!(outcome.reply.text.starts_with("word"));
                    completed.push(text.clone());
                }
                Err(error) => assert!(is_lost(&error), "{error}"),
            }
        }
        let (hers, his) = (hers.await.unwrap(), his.await.unwrap());
        // What the start of the session by the first of them said, the other may not have heard.
        let first = [&hers, &his].iter().filter_map(|heard| Some(heard.first()?.0)).max();
        let since = |heard: &[(u64, String)]| -> Vec<(u64, String)> {
            heard.iter().filter(|(seq, _)| Some(*seq) >= first).cloned().collect()
        };
        let (hers, his) = (since(&hers), since(&his));
        let both = hers.len().min(his.len());
        assert_eq!(hers[..both], his[..both], "cycle {cycle}");
        // She comes back, and says it again: she gets the reply, or the run that was cut off goes on.
        if hosted.host().is_none() {
            hosted.start_host();
        }
        let ada = hosted.client(ClientKind::Chat, tools.clone()).await;
        let reply = ada.work(prompt).await.unwrap().outcome().await.unwrap().reply;
        assert!(reply.text.starts_with("word"), "{reply}");
        match is_taken_on {
            true => again.push(text.clone()),
            false => completed.push(text.clone()),
        }
        acknowledged.push(text);
        ada.close().await;
        if hosted.host().is_some() {
            hosted.kill_host();
        }
    }
    hosted.start_host();
    let ada = hosted.client(ClientKind::Watch, json!({})).await;
    let shown = ada.call(ShowSession { session_id: "s".to_owned(), after: None }).await.unwrap();
    let said: Vec<&str> = shown
        .conversation
        .iter()
        .filter_map(|said| {
            let Speech::User { text, .. } = &said.speech else { return None };
            Some(text.as_str())
        })
        .collect();
    // What was done: once for each prompt that was answered, at most once for any other, and never for none.
    let done = std::fs::read_to_string(hosted.place.work().join(DONE)).unwrap();
    let done: Vec<&str> = done.lines().collect();
    for line in &done {
        assert_eq!(done.iter().filter(|other| *other == line).count(), 1, "{line} was done twice");
        assert!(said.contains(line), "{line} was done, and nobody said it");
    }
    for text in &completed {
        assert!(done.contains(&text.as_str()), "{text} was answered, and not done");
    }
    assert!(done.len() >= CYCLES / 2, "{} prompts were carried out", done.len());
    let times = |text: &String| said.iter().filter(|said| *said == text).count();
    for text in &acknowledged {
        // Said again where the conversation had gone on without an answer.
        let times_max = 1 + usize::from(again.contains(text));
        assert!((1..=times_max).contains(&times(text)), "{text}: {}", times(text));
    }
    for text in &maybe {
        assert!(times(text) <= 1, "{text}");
    }
    let asked: Vec<String> = hosted
        .simulator
        .requests()
        .iter()
        .map(|logged| logged.request.messages.last().map(|last| last.text()).unwrap_or_default())
        .collect();
    assert!(acknowledged.len() >= CYCLES + CYCLES / 10, "{} of {CYCLES}", acknowledged.len());
    assert!(killed_in_a_run >= CYCLES / 5, "{killed_in_a_run} kills hit a run");
    assert!(asked.len() >= CYCLES, "{}", asked.len());
}

/// A client that never heard that its prompt was recorded says it again to the next host, and gets its reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_was_recorded_before_its_host_was_killed_is_answered_when_it_is_repeated() {
    let is_first = AtomicBool::new(true);
    let hosted = Hosted::of(Function(move |_: &SeenRequest, _: CallInfo| {
        let first_ms = if is_first.swap(false, Ordering::SeqCst) { 600_000 } else { 0 };
        Answer::text("the reply").with_pace(Pace { chunks: 1, first_ms, between_ms: 0 })
    }))
    .await;
    hosted.start_host();
    let ada = hosted.client(ClientKind::Run, json!({})).await;
    let prompt = PromptSession { key: Some("a-key".to_owned()), ..PromptSession::new("s", "asked") };
    let work = tokio::spawn({
        let (ada, prompt) = (ada.clone(), prompt.clone());
        async move { ada.work(prompt).await.map(|_| ()) }
    });
    wait_until("the model is asked", || hosted.simulator.calls() == 1);
    hosted.kill_host();
    // Whether the acknowledgement came makes no difference to what the log has.
    drop(work.await.unwrap());
    hosted.start_host();
    let ada = hosted.client(ClientKind::Run, json!({})).await;
    for _ in 0..2 {
        let outcome = ada.work(prompt.clone()).await.unwrap().outcome().await.unwrap();
        assert_eq!(outcome.reply.text, "the reply");
    }
    assert_eq!(hosted.simulator.calls(), 2, "once before the kill, and once after it");
    let shown = ada.call(ShowSession { session_id: "s".to_owned(), after: None }).await.unwrap();
    let said = shown.conversation.iter().filter(|said| matches!(said.speech, Speech::User { .. })).count();
    assert_eq!(said, 1);
}

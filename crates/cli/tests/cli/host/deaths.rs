//! The host is killed in the middle of everything, again and again.

use greenroom_server::operations::{ClientKind, PromptSession, ShowSession, Speech, StartSession};
use greenroom_server::{ProblemKind, Received};
use serde_json::json;

use super::{Hosted, is_lost, wait_until};

const CYCLES: usize = 50;

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

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_nothing_is_said_twice() {
    let hosted = Hosted::new(8, 20).await;
    let (mut acknowledged, mut maybe, mut killed_in_a_run) = (Vec::new(), Vec::new(), 0);
    for cycle in 0..CYCLES {
        hosted.start_host();
        let ada = hosted.client(ClientKind::Chat, json!({})).await;
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
            "run",
            "--window",
            "100000",
            "--session",
            "s",
            "-p",
            &by_run,
            "--json",
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
            Some(0) => acknowledged.push(by_run),
            // It had been taken on, or not: the log says. It is not said twice.
            _ if ended.stdout.contains("run_start") => acknowledged.push(by_run),
            _ => maybe.push(by_run),
        }
        let is_taken_on = work.is_ok();
        if let Ok(work) = work {
            match work.outcome().await {
                Ok(outcome) => assert!(outcome.reply.text.starts_with("word")),
                Err(error) => assert!(is_lost(&error), "{error}"),
            }
        }
        let (hers, his) = (hers.await.unwrap(), his.await.unwrap());
        let both = hers.len().min(his.len());
        assert_eq!(hers[..both], his[..both], "cycle {cycle}");
        // She comes back, and says it again: it counts once.
        if !(ended.code == Some(0) && hosted.host().is_some()) {
            if hosted.host().is_none() {
                hosted.start_host();
            }
        }
        let ada = hosted.client(ClientKind::Chat, json!({})).await;
        match ada.work(prompt).await {
            Ok(work) => match work.outcome().await {
                Ok(_) => {}
                // The first one was taken on, and its run was interrupted.
                Err(error) => assert!(is_taken_on && error.kind() == Some(ProblemKind::Invalid), "{error}"),
            },
            Err(error) => {
                assert!(is_taken_on && error.kind() == Some(ProblemKind::Invalid), "{error}");
            }
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
        .filter_map(|said| match &said.speech {
            Speech::User { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let times = |text: &String| said.iter().filter(|said| *said == text).count();
    for text in &acknowledged {
        assert_eq!(times(text), 1, "{text}");
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

//! Several agents in one session: each works for the caller that brought it, with its own provider, tools and
//! settings.
//!
//! Invariants: no prompt is processed with another agent's provider or tools, whatever waits and dies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use greenroom::EventKind;
use greenroom::prelude::*;
use greenroom::{RuntimeBuilder, SettingsChange, SharedProvider, Status};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{agent, builder, drain, quiet_injected_panics, simulator};

mod left;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A person with a server, a tool and an agent of their own. The model calls the tool once a run, and then answers.
struct Person {
    model: Simulator,
    agent: Arc<Agent>,
    /// Lets a waiting tool continue.
    go_on: Arc<Notify>,
    waits: Arc<AtomicBool>,
    began: Arc<Notify>,
}

impl Person {
    fn new(name: &'static str) -> Self {
        let runs = Function(move |request: &SeenRequest, _: CallInfo| {
            let has_result = request.messages.last().is_some_and(|last| last.role() == "tool");
            if has_result { Said::text(format!("{name} is done")) } else { Said::call(name, &json!({})) }
        });
        let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 100_000);
        let (go_on, began) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waits = Arc::new(AtomicBool::new(false));
        let parts = (Arc::clone(&go_on), Arc::clone(&began), Arc::clone(&waits));
        let agent = agent(100_000)
            .instructions(format!("You work for {name}."))
            .own_provider(&SharedProvider::new(model.provider()))
            .tool(name, move |_: Nothing| {
                let (go_on, began, waits) =
                    (Arc::clone(&parts.0), Arc::clone(&parts.1), Arc::clone(&parts.2));
                async move {
                    began.notify_one();
                    if waits.load(Ordering::SeqCst) {
                        go_on.notified().await;
                    }
                    Ok(name)
                }
            });
        Self { model, agent: Arc::new(agent), go_on, waits, began }
    }

    fn hold(&self) {
        self.waits.store(true, Ordering::SeqCst);
    }

    fn release(&self) {
        self.waits.store(false, Ordering::SeqCst);
        self.go_on.notify_waiters();
        self.go_on.notify_one();
    }

    /// Checks the requests to its server: the offered tools, and the user messages since the last answer
    /// without calls.
    fn check(&self, name: &str, asked: &[&str]) {
        let mut heard = Vec::new();
        for logged in self.model.requests() {
            let request = &logged.request;
            let tools = request.tools.iter().map(|tool| tool.name.as_str());
            // The runtime's own tool is offered to everybody.
            assert_eq!(tools.filter(|tool| *tool != "recall").collect::<Vec<_>>(), [name]);
            assert_eq!(request.system.as_deref(), Some(&*format!("You work for {name}.")));
            if let Some(last) = request.messages.last().filter(|last| last.role() == "user") {
                heard.push(last.text());
            }
        }
        assert_eq!(heard, asked, "what {name}'s server was asked");
        self.model.assert_clean();
    }
}

/// Returns a runtime whose own provider must not be called.
fn companions() -> (Simulator, RuntimeBuilder) {
    let nobody = simulator(Function(|_: &SeenRequest, _: CallInfo| Said::text("who asks?")), 100_000);
    let builder = builder(&nobody);
    (nobody, builder)
}

#[tokio::test(start_paused = true)]
async fn each_works_with_their_own_provider_and_tools() {
    let (nobody, builder) = companions();
    let runtime = builder.start().await.unwrap();
    let (ada, bob) = (Person::new("ada"), Person::new("bob"));
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    let his = runtime.join("plan", Arc::clone(&bob.agent)).await.unwrap();
    ada.hold();
    let first = tokio::spawn(hers.prompt("one").start().await.unwrap().reply());
    ada.began.notified().await;
    // All of this arrives while her run is in progress.
    let second = his.prompt("two").start().await.unwrap();
    let steer = his.steer("three").await.unwrap();
    let follow_up = his.follow_up("four").await.unwrap();
    let own = hers.follow_up("five").await.unwrap();
    assert_eq!(hers.state().await.unwrap().waiting, 4);
    assert!(runtime.join("plan", Arc::clone(&bob.agent)).await.is_ok(), "and her run keeps its agent");
    ada.release();
    assert_eq!(first.await.unwrap().unwrap().text, "ada is done");
    assert_eq!(own.reply().await.unwrap().text, "ada is done", "it joined her run");
    assert_eq!(second.reply().await.unwrap().text, "bob is done");
    assert_eq!(steer.reply().await.unwrap().text, "bob is done");
    assert_eq!(follow_up.reply().await.unwrap().text, "bob is done");
    assert_eq!(hers.prompt("six").await.unwrap().text, "ada is done");
    ada.check("ada", &["one", "five", "six"]);
    let heard: Vec<String> =
        bob.model.requests().iter().map(|logged| logged.request.messages.last().unwrap().text()).collect();
    assert!(["two", "three", "four"].iter().all(|said| heard.iter().any(|text| text == said)), "{heard:?}");
    bob.check("bob", &heard.iter().map(String::as_str).filter(|text| *text != "bob").collect::<Vec<_>>());
    assert_eq!(nobody.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_keeps_its_agent_when_the_session_dies() {
    quiet_injected_panics();
    let (nobody, builder) = companions();
    let strikes = Arc::new(AtomicBool::new(false));
    let strike = Arc::clone(&strikes);
    let builder = builder.probe(move |_, point| {
        assert!(point != "session/record" || !strike.swap(false, Ordering::SeqCst), "injected at {point}");
    });
    let runtime = builder.start().await.unwrap();
    let (ada, bob) = (Person::new("ada"), Person::new("bob"));
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    let his = runtime.join("plan", Arc::clone(&bob.agent)).await.unwrap();
    let mut events = hers.subscribe();
    ada.hold();
    let first = tokio::spawn(hers.prompt("one").start().await.unwrap().reply());
    ada.began.notified().await;
    let follow_up = his.follow_up("two").await.unwrap();
    strikes.store(true, Ordering::SeqCst);
    ada.release();
    assert!(first.await.unwrap().is_err(), "her run was interrupted");
    drop(follow_up);
    let mut ends = 0;
    while ends < 2 {
        let Some(Delivery::Event(event)) = events.next().await else { panic!("no event is missed") };
        ends += u32::from(matches!(event.kind, EventKind::RunEnd { .. }));
    }
    assert!(!strikes.load(Ordering::SeqCst));
    bob.check("bob", &["two"]);
    ada.check("ada", &["one"]);
    assert_eq!(nobody.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_summary_is_written_by_the_model_of_whoever_asks() {
    let (nobody, builder) = companions();
    let runtime = builder.start().await.unwrap();
    let (ada, bob) = (Person::new("ada"), Person::new("bob"));
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    for run in 0..4 {
        hers.prompt(format!("{run} {}", "word ".repeat(400))).await.unwrap();
    }
    let his = runtime.session("plan").await.unwrap().with_agent(Arc::clone(&bob.agent));
    let options = CompactOptions { keep_recent: Some(500), force: true, ..CompactOptions::default() };
    assert!(his.compact(options).await.unwrap().is_installed());
    assert!(bob.model.calls() > 0, "his model wrote it");
    assert_eq!(ada.model.calls(), 8, "two a run, and none more");
    assert_eq!(nobody.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_joins_is_taken_where_nothing_is_at_work() {
    let (_nobody, builder) = companions();
    let runtime = builder.start().await.unwrap();
    let other = |model: &str| Agent::new(model).context_window(50_000);
    let ada = Person::new("ada");
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    ada.hold();
    let run = hers.prompt("one").start().await.unwrap();
    ada.began.notified().await;
    let second = runtime.join("plan", other("second")).await.unwrap();
    assert_eq!(second.state().await.unwrap().model, "simulated");
    assert_eq!(second.state().await.unwrap().status, Status::Working);
    ada.release();
    run.reply().await.unwrap();
    let third = runtime.join("plan", other("third")).await.unwrap();
    assert_eq!(third.state().await.unwrap().model, "third");
    let broken = runtime.join("plan", Agent::new("m").provider("none")).await;
    assert!(matches!(broken, Err(Error::Config(_))), "{broken:?}");
    assert!(matches!(
        third.with_agent(Agent::new("m").provider("none")).prompt("x").await,
        Err(Error::Config(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn settings_that_change_are_those_of_one_agent() {
    let (_nobody, builder) = companions();
    let runtime = builder.start().await.unwrap();
    let (ada, bob) = (Person::new("ada"), Person::new("bob"));
    let next: Arc<Mutex<Option<SettingsChange>>> = Arc::default();
    let source = Arc::clone(&next);
    let live = Agent::clone(&ada.agent).live_settings(move || source.lock().unwrap().take());
    let hers = runtime.open("hers", live).await.unwrap();
    let his = runtime.open("his", Arc::clone(&bob.agent)).await.unwrap();
    let (mut of_hers, mut of_his) = (hers.subscribe(), his.subscribe());
    let small = CompactionSettings { context_window: Some(30_000), ..CompactionSettings::default() };
    let change = SettingsChange::settings(small, |agent| agent.clone().instructions("Changed."));
    *next.lock().unwrap() = Some(change.and_warning("one thing waits"));
    his.prompt("one").await.unwrap();
    hers.prompt("one").await.unwrap();
    assert_eq!(his.state().await.unwrap().context_window, Some(100_000));
    assert_eq!(hers.state().await.unwrap().context_window, Some(30_000));
    let warned = |events: &mut greenroom::Subscription| {
        let is_warning = |event: &&Arc<Event>| matches!(&event.kind, EventKind::Warning { message } if message == "one thing waits");
        drain(events).iter().filter(is_warning).count()
    };
    assert_eq!((warned(&mut of_hers), warned(&mut of_his)), (1, 0));
    assert_eq!(ada.model.requests()[0].request.system.as_deref(), Some("Changed."));
}

/// Returns a store on the disk, with an interrupted run and waiting follow-ups and prompts.
async fn left_waiting(fingerprint: Option<&str>) -> (tempfile::TempDir, Person) {
    let dir = tempfile::tempdir().unwrap();
    let (_nobody, builder) = companions();
    let runtime = builder.data_dir(dir.path()).start().await.unwrap();
    let mut ada = Person::new("ada");
    if let Some(fingerprint) = fingerprint {
        ada.agent = Arc::new(Agent::clone(&ada.agent).fingerprint(fingerprint));
    }
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    ada.hold();
    let run = hers.prompt("one").start().await.unwrap();
    ada.began.notified().await;
    let follow_up = hers.follow_up("two").await.unwrap();
    let second = hers.prompt("four").once("its key").start().await.unwrap();
    runtime.shutdown().await.unwrap();
    drop((run, follow_up, second));
    (dir, ada)
}

#[tokio::test]
async fn what_an_earlier_process_left_is_held_back_from_all_agents_but_its_own() {
    let (dir, ada) = left_waiting(Some("hers")).await;
    ada.release();
    let (nobody, builder) = companions();
    let runtime = builder.data_dir(dir.path()).start().await.unwrap();
    assert_eq!(runtime.session("plan").await.unwrap().state().await.unwrap().held_back, 2);
    // Neither another one with a fingerprint nor one without begins it.
    let (bob, eve) = (Person::new("bob"), Person::new("eve"));
    let bobs = Agent::clone(&bob.agent).fingerprint("his");
    for (person, agent) in [(&bob, Arc::new(bobs)), (&eve, Arc::clone(&eve.agent))] {
        let handle = runtime.join("plan", agent).await.unwrap();
        assert_eq!(handle.state().await.unwrap().held_back, 2);
        handle.prompt("mine").await.unwrap();
        assert!(matches!(handle.resume().await, Err(Error::HeldBack { waiting: 2, .. })));
        let again = handle.prompt("four").once("its key").await;
        assert!(matches!(again, Err(Error::HeldBack { .. })), "{again:?}");
        assert_eq!(person.model.calls(), 2, "its own prompt, and nothing else");
    }
    let asked = ada.model.calls();
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    assert_eq!((hers.state().await.unwrap().held_back, ada.model.calls()), (2, asked));
    // Her own prompt begins nothing else.
    hers.prompt("five").await.unwrap();
    assert_eq!(hers.state().await.unwrap().held_back, 2);
    // Repeating a prompt begins that one alone.
    assert_eq!(hers.prompt("four").once("its key").await.unwrap().text, "ada is done");
    assert_eq!(hers.state().await.unwrap().held_back, 1);
    hers.resume().await.unwrap();
    let state = hers.state().await.unwrap();
    assert_eq!((state.held_back, state.waiting), (0, 0));
    ada.check("ada", &["one", "five", "four", "two"]);
    assert_eq!(nobody.calls(), 0);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_is_held_back_can_be_withdrawn_and_survives_a_death_of_the_session() {
    quiet_injected_panics();
    let (dir, ada) = left_waiting(Some("hers")).await;
    ada.release();
    let (_nobody, builder) = companions();
    let strikes = Arc::new(AtomicBool::new(false));
    let strike = Arc::clone(&strikes);
    let builder = builder.probe(move |_, point| {
        assert!(point != "session/record" || !strike.swap(false, Ordering::SeqCst), "injected at {point}");
    });
    let runtime = builder.data_dir(dir.path()).start().await.unwrap();
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    strikes.store(true, Ordering::SeqCst);
    assert!(hers.prompt("five").await.is_err(), "its actor died");
    assert_eq!(hers.prompt("six").await.unwrap().text, "ada is done");
    assert_eq!(hers.state().await.unwrap().held_back, 2);
    assert_eq!(hers.clear_inbox().await.unwrap(), 2);
    let state = hers.state().await.unwrap();
    assert_eq!((state.held_back, state.waiting), (0, 0));
    ada.check("ada", &["one", "five", "six"]);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn without_a_fingerprint_what_waits_begins_as_the_session_is_opened() {
    let (dir, ada) = left_waiting(None).await;
    ada.release();
    let (_nobody, builder) = companions();
    let runtime = builder.data_dir(dir.path()).start().await.unwrap();
    let hers = runtime.open("plan", Arc::clone(&ada.agent)).await.unwrap();
    assert_eq!(hers.state().await.unwrap().held_back, 0);
    assert_eq!(hers.prompt("four").once("its key").await.unwrap().text, "ada is done");
    runtime.shutdown().await.unwrap();
}

//! Hand-offs by the model in a run: together with other calls, hand-offs that fail, and teams that change meanwhile.
//!
//! Invariants: the first hand-off of an answer counts, after all its calls have ended; after a hand-off that fails, the
//! agent that began the run continues it.

use greenroom_store::StoreOptions;
use greenroom_store::faults::{ENOSPC, Fault, FaultyFiles, MemoryFiles};

use super::*;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A tool that takes ten seconds.
fn looks(agent: Agent) -> Agent {
    agent.tool("look", |_: Nothing| async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok("seen")
    })
}

/// Returns the answering agent and the results that it reads, newest first.
fn results(request: &SeenRequest) -> String {
    let of_call = request.messages.iter().rev().take_while(|message| message.role() == "tool");
    let texts: Vec<String> = of_call.map(|message| message.text()).collect();
    format!("{} read {}", who(request), texts.join(" / "))
}

async fn reply(session: &SessionHandle, text: &str) -> Result<Reply> {
    let reply = tokio::time::timeout(Duration::from_secs(3_600), session.prompt(text)).await;
    reply.unwrap_or_else(|_| panic!("{text}: it hangs"))
}

/// The hand-offs and model changes in the log from this entry on.
async fn recorded(runtime: &Runtime, from: u64) -> Vec<String> {
    let said = |kind: &EntryKind| match kind {
        EntryKind::HandOff(hand_off) => Some(format!("to {}", hand_off.to)),
        EntryKind::ModelChange { model, .. } => Some(format!("model {model}")),
        _ => None,
    };
    let log = runtime.entries("s", EntryId(from)).await.unwrap();
    log.iter().filter_map(|entry| said(&entry.kind)).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_of_several_hand_offs_counts_after_all_calls_of_the_answer() {
    let script = |request: &SeenRequest, _: CallInfo| {
        let result = request.messages.last().is_some_and(|message| message.role() == "tool");
        match (who(request).as_str(), result) {
            ("triage", false) => Said::call("transfer_to_refunds", &json!({}))
                .and_call("transfer_to_sales", &json!({}))
                .and_call("look", &json!({})),
            _ => Said::text(results(request)),
        }
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let triage = looks(agent(100_000).instructions("triage"))
        .hand_off_to("refunds", "Pays back.", Sees::All)
        .hand_off_to("sales", "Sells.", Sees::All);
    let team = Team::new("triage", triage)
        .member("refunds", looks(agent(100_000).instructions("refunds")))
        .member("sales", looks(agent(100_000).instructions("sales")));
    let session = runtime.open("s", &team).await.unwrap();
    assert_eq!(
        reply(&session, "go").await.unwrap().text,
        "refunds read seen / The call was not run: the conversation is handed to refunds, which was recorded first. / \
         The conversation goes on with refunds."
    );
    // Both use the same model, so no change of the model is recorded.
    assert_eq!(recorded(&runtime, 0).await, ["to refunds"]);
    model.assert_clean();
}

/// In a run, the change of the model is recorded with the hand-off; between runs, with the next prompt.
#[tokio::test(start_paused = true)]
async fn another_model_is_recorded_where_it_begins_to_answer() {
    let model = model();
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &team(Sees::All)).await.unwrap();
    session.prompt("to refunds").await.unwrap();
    assert_eq!(recorded(&runtime, 0).await, ["to refunds", "model other"]);
    let entries = session.state().await.unwrap().entries;
    session.hand_off("triage", Sees::All).await.unwrap();
    assert_eq!(recorded(&runtime, entries).await, ["to triage"]);
    session.prompt("who?").await.unwrap();
    assert_eq!(recorded(&runtime, entries).await, ["to triage", "model simulated"]);
    model.assert_clean();
}

/// The run continues with its agent, and a warning gives the reason.
#[tokio::test(start_paused = true)]
async fn a_hand_off_that_cannot_be_made_leaves_the_run_with_its_agent() {
    let script = |request: &SeenRequest, info: CallInfo| {
        let result = request.messages.last().is_some_and(|message| message.role() == "tool");
        if result { Said::text(results(request)) } else { script(request, info) }
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let triage = agent(100_000).instructions("triage").hand_off_to("refunds", "Pays back.", Sees::All);
    // Its instructions leave no room for messages in the window.
    let refunds = agent(100_000).instructions("rule ".repeat(100_000));
    let session = runtime.open("s", &Team::new("triage", triage).member("refunds", refunds)).await.unwrap();
    let mut events = session.subscribe();
    let said = reply(&session, "to refunds").await.unwrap().text;
    assert_eq!(said, "triage read The conversation goes on with refunds.");
    let warned = warnings(&mut events);
    assert!(
        warned.iter().any(|warning| warning.starts_with("the conversation stays with its agent: ")),
        "{warned:?}"
    );
    assert_eq!(session.state().await.unwrap().agent, None);
    assert_eq!(recorded(&runtime, 0).await, [""; 0]);
    model.assert_clean();
}

/// Whichever write fails, the caller gets the store's error.
#[tokio::test]
async fn a_disk_that_refuses_a_hand_off_ends_the_run() {
    let mut refused = 0;
    for at in 1..=12 {
        let model = model();
        let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { files: Arc::new(files.clone()), ..StoreOptions::new(dir.path()) };
        let runtime = Runtime::builder().provider(model.provider()).store_options(options);
        let runtime = runtime.start().await.unwrap();
        let session = runtime.open("s", &team(Sees::All)).await.unwrap();
        session.prompt("hello").await.unwrap();
        files.set(Fault::FailOnce { at, errno: ENOSPC });
        let ended = reply(&session, "to refunds").await;
        let has_failed = files.fired() > 0;
        files.set(Fault::None);
        refused += usize::from(has_failed);
        assert_eq!(matches!(ended, Err(Error::Store(_))), has_failed, "{at}: {ended:?}");
        let handed = recorded(&runtime, 0).await.iter().filter(|said| said.starts_with("to ")).count();
        let answering = session.state().await.unwrap().agent;
        assert_eq!(handed, usize::from(answering.is_some()), "{at}");
        runtime.shutdown().await.unwrap();
    }
    assert!(refused >= 8, "{refused}");
}

/// When the session gets another team during the run, the hand-off goes to the new team's member. If the new team has no
/// member with that name, it goes to the member of the run's own team.
#[tokio::test(start_paused = true)]
async fn a_hand_off_goes_to_the_newest_team_that_has_the_agent() {
    let script = |request: &SeenRequest, _: CallInfo| {
        let called = request.messages.iter().rev().take_while(|message| message.role() != "user");
        let called = called.filter(|message| message.role() == "tool").count();
        match (request.last_user_text().as_str(), called) {
            ("go", 0) => Said::call("look", &json!({})),
            ("go", 1) => Said::call("transfer_to_refunds", &json!({})),
            _ => Said::text(who(request)),
        }
    };
    let triage = |model: &str, instructions: &str| {
        looks(Agent::new(model).context_window(100_000).instructions(instructions))
    };
    let with = |triage: Agent, refunds: &str| {
        let refunds = Agent::new("other").context_window(100_000).instructions(refunds);
        Team::new("triage", triage.hand_off_to("refunds", "Pays back.", Sees::All))
            .member("refunds", looks(refunds))
    };
    for (new, expect) in [
        (Arc::from(with(triage("third", "new triage"), "new refunds")), "new refunds"),
        (Arc::new(triage("third", "alone")), "refunds"),
    ] {
        let model = simulator(Function(script), 100_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &with(triage("simulated", "triage"), "refunds")).await.unwrap();
        let run = session.prompt("go").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        session.set_agent(new).await.unwrap();
        assert_eq!(run.reply().await.unwrap().text, expect);
        // The definition that was set during the run does not replace it at the run's end.
        assert_eq!(reply(&session, "who?").await.unwrap().text, expect);
        model.assert_clean();
    }
}

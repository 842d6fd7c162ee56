//! The part of the conversation that the other agent sees: a summary, the last messages, or what is kept when the summary
//! fails.
//!
//! Invariants: hidden messages stay in the log and are in no request; the compaction's entry describes what is hidden.

use std::sync::atomic::AtomicBool;

use greenroom_kernel::entry::{Compaction, Entry, Trigger};
use greenroom_simulator::{Fault, Script};

use super::*;

/// Replaces the messages that the agent `refunds` does not see.
const HIDDEN: &str = "What was said before is not for refunds to see.";

fn keeping(agent: Agent, tokens: u64) -> Agent {
    agent.compaction(CompactionSettings { keep_recent_tokens: Some(tokens), ..CompactionSettings::default() })
}

/// Two agents whose compactions keep this many tokens of recent messages.
fn keepers(sees: Sees, tokens: u64) -> Team {
    let triage = agent(100_000).instructions("triage").hand_off_to("refunds", "Pays back.", sees);
    Team::new("triage", keeping(triage, tokens))
        .member("refunds", keeping(agent(100_000).instructions("refunds"), tokens))
}

/// A model whose summaries fail while this is set.
fn failing(fails: &Arc<AtomicBool>) -> Simulator {
    let fails = Arc::clone(fails);
    let summaries = Function(move |request: &SeenRequest, info: CallInfo| {
        if fails.load(Ordering::SeqCst) {
            Said::fault(Fault::ServerError(500))
        } else {
            Summariser::Obedient.reply(request, info)
        }
    });
    simulator(ByPurpose::new(Function(script), summaries), 100_000)
}

fn texts(model: &Simulator) -> Vec<String> {
    model.requests().last().unwrap().request.messages.iter().map(|message| message.text()).collect()
}

fn has(texts: &[String], part: &str) -> bool {
    texts.iter().any(|text| text.contains(part))
}

fn summaries(model: &Simulator) -> usize {
    model.requests().iter().filter(|asked| asked.request.purpose == Purpose::Summary).count()
}

async fn newest_compaction(runtime: &Runtime) -> (EntryId, Compaction) {
    let log = runtime.entries("s", EntryId(0)).await.unwrap();
    let newest = log.iter().rev().find_map(|entry| Some((entry.id, entry.kind.as_compaction()?.clone())));
    newest.unwrap()
}

/// The newest prompt's entry, and its size in tokens.
async fn newest_prompt(runtime: &Runtime) -> (EntryId, u64) {
    let log = runtime.entries("s", EntryId(0)).await.unwrap();
    let is_prompt = |entry: &&Entry| entry.kind.as_message().is_some_and(|said| said.role() == "user");
    log.iter().rev().find(is_prompt).map(|entry| (entry.id, entry.tokens)).unwrap()
}

/// The compaction's entry has the hidden range and the sizes before and after.
#[tokio::test(start_paused = true)]
async fn what_the_last_messages_leave_out_is_recorded() {
    let model = model();
    let runtime = runtime(&model).await;
    // Both have instructions of the same size, and no tools.
    let team = Team::new("triage", agent(100_000).instructions("a triage"))
        .member("refunds", agent(100_000).instructions("a refund"));
    let session = runtime.open("s", &team).await.unwrap();
    for word in 0..4 {
        session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
    }
    let compacted =
        session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
    session.prompt("five").await.unwrap();
    session.prompt("six").await.unwrap();
    let (before, context) = (session.state().await.unwrap(), session.context().await.unwrap());
    session.hand_off("refunds", Sees::Last(2)).await.unwrap();
    let (id, said) = newest_compaction(&runtime).await;
    assert!(compacted.entry_id.is_some() && Some(id) > compacted.entry_id);
    assert_eq!((said.base, said.previous), (compacted.entry_id, compacted.entry_id));
    assert_eq!(said.summary, HIDDEN);
    assert_eq!((said.trigger, said.truncated, said.from_hook), (Trigger::HandOff, true, false));
    assert_eq!(said.tokens_before, before.context.tokens);
    assert_eq!(said.messages_before, context.len() as u64);
    // Two messages are kept; the older summary is replaced, and does not count as a message.
    assert_eq!(said.messages_removed, context.len() as u64 - 3);
    assert!(said.first < said.last && said.last < said.first_kept, "{said:?}");
    let after = session.state().await.unwrap();
    assert_eq!(session.context().await.unwrap().len(), 3);
    assert_eq!(after.context.tokens, said.tokens_after);
    assert!(said.tokens_after > 0 && said.tokens_after < said.tokens_before, "{said:?}");
    let reply = session.prompt("who?").await.unwrap();
    assert_eq!(reply.text, "a refund saw 4");
    assert!(reply.context.tokens < before.context.tokens, "{:?}", reply.context);
    model.assert_clean();
}

/// The size after is that of the agent that takes over, whose instructions are larger, or smaller.
#[tokio::test(start_paused = true)]
async fn the_size_after_is_that_of_the_next_agent() {
    for (leaves, takes_over) in [(2, 2_000), (2_000, 2)] {
        let model = model();
        let runtime = runtime(&model).await;
        let with = |words: usize| agent(100_000).instructions("word ".repeat(words));
        let team = Team::new("triage", with(leaves)).member("refunds", with(takes_over));
        let session = runtime.open("s", &team).await.unwrap();
        for word in 0..4 {
            session.prompt(format!("{word} {}", "long ".repeat(300))).await.unwrap();
        }
        session.hand_off("refunds", Sees::Last(2)).await.unwrap();
        let (_, said) = newest_compaction(&runtime).await;
        let tokens = session.state().await.unwrap().context.tokens;
        // The learned ratio may have moved a little.
        assert!(tokens.abs_diff(said.tokens_after) <= tokens / 50, "{tokens}, {said:?}");
        model.assert_clean();
    }
}

/// The other agent sees the summary and every message that the summary does not cover.
#[tokio::test(start_paused = true)]
async fn what_is_summarised_is_seen_as_its_summary() {
    for by_model in [false, true] {
        let model = failing(&Arc::default());
        let runtime = runtime(&model).await;
        // The newest turn is larger than the limit, and the compaction keeps it whole.
        let session = runtime.open("s", &keepers(Sees::Summary, 900)).await.unwrap();
        for word in 0..4 {
            session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
        }
        session.prompt(format!("newest {}", "long ".repeat(1_200))).await.unwrap();
        let (newest, tokens) = newest_prompt(&runtime).await;
        assert!((901..1_250).contains(&tokens), "{tokens}");
        let text = if by_model {
            session.prompt("to refunds").await.unwrap().text
        } else {
            session.hand_off("refunds", Sees::Summary).await.unwrap();
            session.prompt("who?").await.unwrap().text
        };
        assert!(text.starts_with("refunds"), "{text}");
        assert_eq!(summaries(&model), 1);
        let (_, said) = newest_compaction(&runtime).await;
        assert_eq!((said.first_kept, said.trigger), (Some(newest), Trigger::HandOff), "by model: {by_model}");
        assert!(!said.truncated, "by model: {by_model}: a model wrote it");
        let texts = texts(&model);
        assert!(has(&texts, &said.summary) && !has(&texts, HIDDEN), "by model: {by_model}: {texts:?}");
        assert!(has(&texts, "newest long"), "by model: {by_model}: {texts:?}");
        model.assert_clean();
    }
}

/// The summary is forced: it is made even if the conversation is smaller than what a compaction keeps.
#[tokio::test(start_paused = true)]
async fn a_conversation_that_would_be_kept_whole_is_summarised_for_the_other() {
    let model = failing(&Arc::default());
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &keepers(Sees::Summary, 30_000)).await.unwrap();
    for word in ["one", "two"] {
        session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
    }
    session.prompt("to refunds").await.unwrap();
    assert_eq!(summaries(&model), 1);
    let texts = texts(&model);
    assert!(!texts.iter().any(|text| text.starts_with("one ")) && !has(&texts, HIDDEN), "{texts:?}");
    model.assert_clean();
}

/// When the summary fails, the other agent sees the newest messages within `keep_recent_tokens`.
#[tokio::test(start_paused = true)]
async fn without_a_summary_the_newest_messages_are_seen_that_are_kept() {
    /// The prompt, the call and its result, and the turn before them.
    const KEPT: usize = 5;
    let hand_over = async |keep: Option<u64>| {
        let model = failing(&Arc::new(AtomicBool::new(true)));
        let runtime = runtime(&model).await;
        let team = keep.map_or_else(|| team(Sees::Summary), |keep| keepers(Sees::Summary, keep));
        let session = runtime.open("s", &team).await.unwrap();
        for word in ["one", "two", "three"] {
            session.prompt(word).await.unwrap();
        }
        let text = session.prompt("to refunds").await.unwrap().text;
        let log = runtime.entries("s", EntryId(0)).await.unwrap();
        let messages = log.iter().filter(|entry| entry.kind.as_message().is_some());
        // The newest message is the other agent's answer.
        let tokens: Vec<u64> = messages.rev().skip(1).map(|entry| entry.tokens).collect();
        model.assert_clean();
        (text, tokens)
    };
    let (text, tokens) = hand_over(None).await;
    assert_eq!(text, "refunds saw 9", "all of it is recent");
    let kept: u64 = tokens.iter().take(KEPT).sum();
    for (keep, seen) in [(kept, KEPT + 1), (kept - 1, KEPT), (kept + 1, KEPT + 1), (1, 4)] {
        assert_eq!(hand_over(Some(keep)).await.0, format!("refunds saw {seen}"), "{keep} of {tokens:?}");
    }
}

/// A summary from before the hand-off does not count as its summary.
#[tokio::test(start_paused = true)]
async fn an_older_summary_is_not_the_one_that_was_asked_for() {
    let fails = Arc::new(AtomicBool::new(false));
    let model = failing(&fails);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &keepers(Sees::Summary, 900)).await.unwrap();
    for word in 0..4 {
        session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
    }
    let _ = session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
    let (_, older) = newest_compaction(&runtime).await;
    session.prompt(format!("secret {}", "long ".repeat(1_000))).await.unwrap();
    session.prompt("five").await.unwrap();
    assert!(has(&texts(&model), &older.summary) && has(&texts(&model), "secret"));
    fails.store(true, Ordering::SeqCst);
    session.prompt("to refunds").await.unwrap();
    let texts = texts(&model);
    assert!(has(&texts, HIDDEN) && has(&texts, "five"), "{texts:?}");
    assert!(!has(&texts, &older.summary) && !has(&texts, "secret"), "{texts:?}");
    model.assert_clean();
}

/// A model that answers `to …` with a transfer, other prompts with the agent's name, and whose summaries take a minute.
fn slowly_summarising(window: u64) -> Simulator {
    let slow =
        |request: &SeenRequest, info: CallInfo| Summariser::Obedient.reply(request, info).after_ms(60_000);
    simulator(ByPurpose::new(Function(script), Function(slow)), window)
}

/// Kills the agent or the session the next time that it handles a message.
#[derive(Clone, Default)]
struct Strikes {
    agent: Arc<AtomicBool>,
    session: Arc<AtomicBool>,
}

impl Strikes {
    fn probe(&self) -> impl Fn(&str, &'static str) + Send + Sync + 'static {
        let Self { agent, session } = self.clone();
        move |_, at| {
            let of = |actor: &str, order: &AtomicBool| {
                at.starts_with(actor) && order.swap(false, Ordering::SeqCst)
            };
            let is_struck = of("agent/broadcast", &agent) || of("session/state", &session);
            assert!(!is_struck, "injected at {at}");
        }
    }
}

/// Kills the agent, by a broadcast.
async fn kill_agent(strikes: &Strikes, session: &SessionHandle) {
    strikes.agent.store(true, Ordering::SeqCst);
    session.set_title("struck").await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!strikes.agent.load(Ordering::SeqCst), "it died");
}

async fn count(runtime: &Runtime, is_meant: impl Fn(&EntryKind) -> bool) -> usize {
    let log = runtime.entries("s", EntryId(0)).await.unwrap();
    log.iter().filter(|entry| is_meant(&entry.kind)).count()
}

fn is_result(kind: &EntryKind) -> bool {
    kind.as_message().is_some_and(|said| said.role() == "tool")
}

/// The summary for the other agent is being made when the agent or the session dies: the transfer is in the log, so the agent
/// that leaves is not asked again.
#[tokio::test(start_paused = true)]
async fn a_death_during_the_summary_does_not_ask_the_leaving_agent_again() {
    quiet_injected_panics();
    for (what, kills_agent, kills_session) in [("agent", true, false), ("session", false, true)] {
        let (model, strikes) = (slowly_summarising(100_000), Strikes::default());
        let runtime = builder(&model).probe(strikes.probe()).start().await.unwrap();
        let session = runtime.open("s", &team(Sees::Summary)).await.unwrap();
        for word in 0..4 {
            session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
        }
        let run = session.prompt("to refunds").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(session.state().await.unwrap().status, greenroom::Status::Compacting);
        if kills_agent {
            kill_agent(&strikes, &session).await;
            assert_eq!(session.state().await.unwrap().status, greenroom::Status::Compacting, "it goes on");
        }
        if kills_session {
            strikes.session.store(true, Ordering::SeqCst);
            let _ = session.state().await;
        }
        let reply = tokio::time::timeout(Duration::from_secs(600), run.reply()).await.expect("it ends");
        let reply = if kills_session { session.resume().await } else { reply };
        assert!(reply.unwrap().text.starts_with("refunds"), "{what}");
        let asked = model.requests();
        let by_triage = asked.iter().filter(|asked| who(&asked.request) == "triage").count();
        assert_eq!((by_triage, count(&runtime, is_result).await), (5, 1), "{what}: asked once to transfer");
        assert_eq!(count(&runtime, |kind| matches!(kind, EntryKind::HandOff(_))).await, 1, "{what}");
        let texts = texts(&model);
        assert!(
            !texts.iter().any(|text| text.starts_with("0 ")) && !has(&texts, HIDDEN),
            "{what}: {texts:?}"
        );
        model.assert_clean();
    }
}

/// The replacement of a dead agent continues the run, without a second attempt at a hand-off that could not be made.
#[tokio::test(start_paused = true)]
async fn a_hand_off_that_failed_is_not_tried_again_after_a_death() {
    quiet_injected_panics();
    let pace = greenroom_simulator::Pace { chunks: 2, first_ms: 0, between_ms: 60_000 };
    let slow = move |request: &SeenRequest, info: CallInfo| {
        let result = request.messages.last().is_some_and(|message| message.role() == "tool");
        if result { Said::text("triage continues").with_pace(pace) } else { script(request, info) }
    };
    let (model, strikes) = (simulator(Function(slow), 100_000), Strikes::default());
    let runtime = builder(&model).probe(strikes.probe()).start().await.unwrap();
    let triage = agent(100_000).instructions("triage").hand_off_to("refunds", "Pays back.", Sees::All);
    // Its instructions leave no room for messages in the window.
    let refunds = agent(100_000).instructions("rule ".repeat(100_000));
    let session = runtime.open("s", &Team::new("triage", triage).member("refunds", refunds)).await.unwrap();
    let mut events = session.subscribe();
    let run = session.prompt("to refunds").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    kill_agent(&strikes, &session).await;
    let reply = tokio::time::timeout(Duration::from_secs(600), run.reply()).await.expect("it ends");
    assert_eq!(reply.unwrap().text, "triage continues");
    let warned = warnings(&mut events);
    let of_hand_off = warned.iter().filter(|warning| warning.starts_with("the conversation stays"));
    assert_eq!(of_hand_off.count(), 1, "{warned:?}");
    model.assert_clean();
}

/// An agent that takes the place of a dead one hears of an abort while the hand-off waits for its summary, and goes on with
/// the run if nothing comes of the hand-off.
#[tokio::test(start_paused = true)]
async fn the_agent_that_waits_for_a_hand_off_after_a_death_can_be_aborted_and_goes_on() {
    quiet_injected_panics();
    for is_aborted in [true, false] {
        let (model, strikes) = (slowly_summarising(100_000), Strikes::default());
        let runtime = builder(&model).probe(strikes.probe()).start().await.unwrap();
        let triage = agent(100_000).instructions("triage");
        let triage = triage.hand_off_to("refunds", "Pays back.", Sees::Summary);
        // Its instructions leave no room for messages in the window.
        let refunds = agent(100_000).instructions("rule ".repeat(100_000));
        let session =
            runtime.open("s", &Team::new("triage", triage).member("refunds", refunds)).await.unwrap();
        for word in 0..4 {
            session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
        }
        let run = session.prompt("to refunds").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        kill_agent(&strikes, &session).await;
        if is_aborted {
            session.abort();
            let ended = tokio::time::timeout(Duration::from_secs(10), run.reply()).await;
            assert!(matches!(ended, Ok(Err(Error::Aborted))), "{ended:?}");
            assert_eq!(session.state().await.unwrap().agent, None);
        } else {
            let mut events = session.subscribe();
            let ended = tokio::time::timeout(Duration::from_secs(600), run.reply()).await;
            // A second attempt fails too; then its prompt is summarised.
            assert!(matches!(&ended, Ok(Ok(reply)) if reply.text.starts_with("triage")), "{ended:?}");
            let stays = |event: Arc<Event>| matches!(&event.kind, EventKind::Warning { message } if message.contains("stays with its agent"));
            assert!(drain(&mut events).into_iter().any(stays));
        }
        model.assert_clean();
    }
}

/// A compaction that is under way when the agent transfers is waited for, and its summary is the one for the other agent.
#[tokio::test(start_paused = true)]
async fn a_compaction_under_way_is_the_summary_for_the_other() {
    quiet_injected_panics();
    let (model, strikes) = (slowly_summarising(40_000), Strikes::default());
    let runtime = builder(&model).probe(strikes.probe()).start().await.unwrap();
    let compacts = async |enabled: bool| {
        let settings = CompactionSettings { enabled, threshold: Some(0.5), ..CompactionSettings::default() };
        runtime.set_compaction(settings).await.unwrap();
    };
    compacts(false).await;
    let triage = agent(40_000).instructions("triage").hand_off_to("refunds", "Pays back.", Sees::Summary);
    let team = Team::new("triage", triage).member("refunds", agent(40_000).instructions("refunds"));
    let session = runtime.open("s", &team).await.unwrap();
    for word in 0..7 {
        session.prompt(format!("{word} {}", "long ".repeat(4_000))).await.unwrap();
    }
    compacts(true).await;
    let run = session.prompt("to refunds").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(count(&runtime, is_result).await, 0, "the compaction comes first");
    assert_eq!(session.state().await.unwrap().status, greenroom::Status::Compacting);
    // The agent that replaces this one does not wait for the compaction.
    compacts(false).await;
    kill_agent(&strikes, &session).await;
    assert_eq!(count(&runtime, is_result).await, 1, "the call was made during the compaction");
    assert_eq!(session.state().await.unwrap().status, greenroom::Status::Compacting);
    let reply = tokio::time::timeout(Duration::from_secs(600), run.reply()).await.expect("it goes on");
    assert!(reply.unwrap().text.starts_with("refunds"));
    assert_eq!((summaries(&model), count(&runtime, is_result).await), (1, 1));
    let (_, said) = newest_compaction(&runtime).await;
    let texts = texts(&model);
    assert!(has(&texts, &said.summary) && !has(&texts, HIDDEN), "{texts:?}");
    model.assert_clean();
}

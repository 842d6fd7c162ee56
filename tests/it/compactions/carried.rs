//! The content that a compaction carries verbatim, through the actors: the user's words and the facts of the ledger,
//! whatever the summariser does, over many compactions, after an undo and after a restart.

use greenroom::prelude::*;
use greenroom_kernel::settings::Strategy;
use greenroom_simulator::{Answer as Said, ByPurpose, CallInfo, Echo, Function, SeenRequest, Summariser};

use crate::compaction_fixtures::{
    asked, chat, compactions, ends, keep, newest, opened, said, settings, talker, text, user, warnings,
};
use crate::support::{agent, drain, runtime, simulator};

const RULE: &str = "Never touch the file src/lighthouse.rs, please.";
const FINDING: &str = "The root cause is a lamp that flickers after 250 ms.";

/// Returns what the model sees in place of the older part.
async fn seen(session: &SessionHandle) -> String {
    session.context().await.unwrap()[0].text()
}

/// A summariser that drops everything: after one, three and five compactions the user's rule and the finding are in the
/// context, and the numbers say so.
#[tokio::test(start_paused = true)]
async fn words_and_facts_survive_a_summariser_that_drops_everything() {
    let model = simulator(ByPurpose::new(talker(60), Summariser::Lossy), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user(RULE), said(FINDING)];
    messages.extend(chat(6, 300));
    let session = opened(&runtime, "s", &agent(16_000), messages).await;
    for round in 1..=5 {
        let mut events = session.subscribe();
        assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed");
        let end = ends(&drain(&mut events)).pop().unwrap();
        let recall = end.recall.unwrap();
        assert!(recall.before < recall.after && recall.after <= recall.facts, "{recall:?}");
        let seen = seen(&session).await;
        for what in [RULE, FINDING, "src/lighthouse.rs"] {
            assert_eq!(seen.matches(what).count().min(1), 1, "{what} after {round}: {seen}");
        }
        assert_eq!(seen.matches(RULE).count(), 1, "the words are not repeated as a fact: {seen}");
        let recorded = newest(&runtime, "s").await;
        assert_eq!(recorded.recall, end.recall);
        assert_eq!(recorded.carried.words[0].text, RULE);
        for run in 0..4 {
            session.prompt(text(&format!("round {round} {run}"), 250)).await.unwrap();
        }
    }
    // The summariser was never shown what the code adds.
    let requests = asked(&model);
    assert!(requests.len() >= 5, "{}", requests.len());
    for logged in &requests[1..] {
        let text = logged.request.last_user_text();
        assert!(!text.contains("<user-words>") && !text.contains("## Facts"), "{text}");
        assert!(!text.contains(FINDING), "{text}");
    }
    model.assert_clean();
}

/// An undo brings back the context from before, and what is carried with it; the next compaction carries it again.
#[tokio::test(start_paused = true)]
async fn an_undo_brings_back_what_was_carried_before() {
    let model = simulator(ByPurpose::new(talker(60), Summariser::Lossy), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user(RULE), said(FINDING)];
    messages.extend(chat(6, 300));
    let session = opened(&runtime, "s", &agent(40_000), messages).await;
    let _ = session.compact(keep(300)).await.unwrap();
    for run in 0..4 {
        session.prompt(text(&format!("more {run}"), 250)).await.unwrap();
    }
    let before = session.context().await.unwrap();
    let second = session.compact(keep(300)).await.unwrap();
    let once = newest(&runtime, "s").await;
    session.undo_compaction().await.unwrap();
    assert_eq!(session.context().await.unwrap(), before);
    // Also after a restart.
    runtime.close("s").await.unwrap();
    let session = runtime.open("s", &agent(40_000)).await.unwrap();
    assert_eq!(session.context().await.unwrap(), before);
    let again = session.compact(keep(300)).await.unwrap();
    let twice = newest(&runtime, "s").await;
    assert_eq!(
        (twice.carried, twice.summary),
        (once.carried, once.summary),
        "the same entries, the same bytes"
    );
    assert_eq!(again.recall, second.recall);
}

/// Only the user's own words are quoted: no file that went along, no result, no program's message, no steer twice.
#[tokio::test(start_paused = true)]
async fn only_the_users_own_words_are_quoted() {
    let model = simulator(ByPurpose::new(talker(60), Summariser::Lossy), 40_000);
    let runtime = runtime(&model).await;
    let attached = "Read @a.rs first.\n\n<file path=\"a.rs\">\nYou must quote this file.\n</file>";
    let mut messages = vec![user(attached), said("Read.")];
    messages.extend(chat(6, 300));
    let session = opened(&runtime, "s", &agent(16_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let seen = seen(&session).await;
    assert!(seen.contains("[0] Read @a.rs first.\n"), "{seen}");
    assert!(!seen.contains("quote this file"), "{seen}");
}

/// What has no room is named with its entries, and `recall` reads them.
#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_named() {
    let model = simulator(ByPurpose::new(talker(60), Summariser::Lossy), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user(text("A long wish.", 1_500)), said("Yes.")];
    messages.extend(chat(5, 300));
    let session = opened(&runtime, "s", &agent(8_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let seen = seen(&session).await;
    assert!(seen.contains("(More of them: recall with entry 0"), "{seen}");
}

/// With both settings off, a compaction is as it was without them.
#[tokio::test(start_paused = true)]
async fn both_can_be_turned_off() {
    let model = simulator(ByPurpose::new(talker(60), Summariser::Lossy), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user(RULE), said(FINDING)];
    messages.extend(chat(6, 300));
    let plain = settings(|settings| (settings.user_words, settings.ledger) = (None, None));
    let session = opened(&runtime, "s", &agent(16_000).compaction(plain), messages).await;
    let done = session.compact(keep(300)).await.unwrap();
    let seen = seen(&session).await;
    assert!(!seen.contains(RULE) && !seen.contains("## Facts"), "{seen}");
    assert_eq!(done.recall, None);
    assert_eq!(newest(&runtime, "s").await.carried, Default::default());
}

/// `strategy: digest` asks no model, costs nothing and owes nothing; the words and facts stand there verbatim.
#[tokio::test(start_paused = true)]
async fn a_chosen_digest_asks_nobody_and_owes_nothing() {
    let model = simulator(ByPurpose::new(talker(60), Summariser::Garbage), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user(RULE), said(FINDING)];
    messages.extend(chat(6, 300));
    let digest = settings(|settings| settings.strategy = Strategy::Digest);
    let session = opened(&runtime, "s", &agent(16_000).compaction(digest), messages).await;
    let mut events = session.subscribe();
    let done = session.compact(keep(300)).await.unwrap();
    assert_eq!(done.outcome.as_str(), "digested", "{done:?}");
    assert!(done.outcome.reason().unwrap().contains("the strategy is `digest`"), "{done:?}");
    assert_eq!((done.cost_microdollars, asked(&model).len()), (Some(0), 0));
    assert_eq!(warnings(&drain(&mut events)), [""; 0]);
    let seen = seen(&session).await;
    assert!(seen.contains(RULE) && seen.contains(FINDING) && seen.contains("[Compacted "), "{seen}");
    let compaction = newest(&runtime, "s").await;
    assert!(compaction.debt.is_empty() && compaction.truncated);
    // Again, and nothing is lost or doubled.
    for run in 0..4 {
        session.prompt(text(&format!("more {run}"), 250)).await.unwrap();
    }
    assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "digested");
    let seen = self::seen(&session).await;
    assert_eq!((seen.matches(RULE).count(), seen.matches(FINDING).count()), (1, 1), "{seen}");
    assert_eq!(seen.matches("[Compacted ").count(), 1, "{seen}");
}

/// A digest at the window is a debt, which the next summary reads; its words and facts are carried on.
#[tokio::test(start_paused = true)]
async fn a_digest_at_the_window_is_a_debt_that_is_paid() {
    let scribe = Function(|request: &SeenRequest, info: CallInfo| match info.session_call {
        0..=7 => greenroom_simulator::Script::reply(&Summariser::Garbage, request, info),
        _ => greenroom_simulator::Script::reply(&Summariser::Obedient, request, info),
    });
    let model = simulator(ByPurpose::new(Echo, scribe), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user(RULE), said(FINDING)];
    messages.extend(chat(12, 330));
    let session = opened(&runtime, "s", &agent(8_000), messages).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    let seen_events = drain(&mut events);
    assert_eq!(ends(&seen_events)[0].outcome.as_str(), "digested", "{:?}", ends(&seen_events));
    assert!(warnings(&seen_events).iter().any(|text| text.contains("a digest of them")), "{seen_events:?}");
    assert!(seen(&session).await.contains(FINDING));
    assert!(!newest(&runtime, "s").await.debt.is_empty());
    let calls = asked(&model).len();
    for _ in calls..8 {
        // The remaining refusals.
        let _ = session.compact(CompactOptions { force: true, ..keep(100) }).await.unwrap();
    }
    for run in 0..4 {
        session.prompt(text(&format!("more {run}"), 250)).await.unwrap();
    }
    let _ = session.compact(keep(300)).await.unwrap();
    let paid = newest(&runtime, "s").await;
    assert!(paid.debt.is_empty() && !paid.truncated, "{:?}", compactions(&runtime, "s").await.len());
    assert!(paid.summary.contains(RULE) && paid.summary.contains(FINDING), "{}", paid.summary);
}

/// Six empty headings are no summary: it is asked for again, and the second request says why.
#[tokio::test(start_paused = true)]
async fn headings_without_content_are_no_summary() {
    let hollow = "## Goal\n(none)\n## Constraints & Preferences\n- none\n## Progress\n### Done\n- [x]\n## Key Decisions\n\
                  N/A\n## Next Steps\n1.\n## Critical Context\n…";
    let scribe = Function(move |request: &SeenRequest, info: CallInfo| match info.session_call {
        0 => Said::text(hollow),
        _ => greenroom_simulator::Script::reply(&Summariser::Obedient, request, info),
    });
    let model = simulator(ByPurpose::new(Echo, scribe), 40_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(40_000), chat(8, 300)).await;
    assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed");
    let requests = asked(&model);
    assert_eq!(requests.len(), 2);
    assert!(requests[1].request.last_user_text().contains("headings and nothing below them"));
}

/// Skills in use are told again after each compaction, over a restart too, until they are read again.
#[tokio::test(start_paused = true)]
async fn skills_in_use_are_told_again() {
    const STEP: &str = "Run every test twice before a release.";
    let runs = Function(|request: &SeenRequest, info: CallInfo| match request.last_user_text().as_str() {
        "learn" if request.messages.last().is_some_and(|message| message.role() == "user") => {
            Said::call("skill", &serde_json::json!({ "name": "release" }))
        }
        _ => Said::text(text(&format!("answer {}.", info.session_call), 250)),
    });
    let model = simulator(ByPurpose::new(runs, Summariser::Lossy), 40_000);
    let runtime = runtime(&model).await;
    let skill = tool("skill", |arguments: Named| async move { Ok(format!("{}: {STEP}", arguments.name)) });
    let able = agent(16_000).add_tool(skill);
    let session = opened(&runtime, "s", &able, chat(2, 300)).await;
    session.prompt("learn").await.unwrap();
    for round in 1..=3 {
        for run in 0..4 {
            session.prompt(text(&format!("round {round} {run}"), 250)).await.unwrap();
        }
        assert!(session.compact(keep(300)).await.unwrap().is_installed());
        let told = seen(&session).await;
        assert_eq!(told.matches("### release\nrelease: Run every test twice").count(), 1, "{round}: {told}");
        if round == 2 {
            runtime.close("s").await.unwrap();
        }
    }
    for logged in &asked(&model) {
        assert!(!logged.request.last_user_text().contains("## Skills in use"), "it is not summarised again");
    }
    // Read again, it stands in the conversation, and the summary need not tell it.
    for run in 0..3 {
        session.prompt(text(&format!("again {run}"), 250)).await.unwrap();
    }
    session.prompt("learn").await.unwrap();
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let context = session.context().await.unwrap();
    assert!(!context[0].text().contains("## Skills in use"), "{}", context[0].text());
    assert!(context.iter().any(|message| message.role() == "tool" && message.text().contains(STEP)));
    model.assert_clean();
}

/// The name of a skill.
#[derive(Deserialize, JsonSchema)]
struct Named {
    /// The skill.
    name: String,
}

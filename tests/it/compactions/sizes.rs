//! A context's size in lists is the size that the session itself reports, wherever its path ends.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Counting, Function, SeenRequest, Simulator, SimulatorOptions,
    Summariser,
};

use crate::compaction_fixtures::{chat, editor, keep, opened, settings, talker, text};
use crate::support::{agent, runtime, simulator};

/// The context's size in the list of sessions, by the live session, and by the session after a restart.
#[track_caller]
fn assert_same(listed: u64, live: u64, slept: u64, what: &str) {
    assert!(listed == live && listed == slept, "{what}: listed {listed}, live {live}, slept {slept}");
}

#[tokio::test(start_paused = true)]
async fn the_size_in_lists_is_right_after_a_branch_an_undo_and_a_fork() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 40_000);
    let runtime = runtime(&model).await;
    // Half of this conversation is the user's.
    let definition = agent(40_000).compaction(settings(|settings| settings.user_words = None));
    let session = opened(&runtime, "s", &definition, chat(6, 300)).await;
    let sizes = async |id: &str, what: &str| {
        let listed = runtime.sessions().await.unwrap();
        let listed = listed.iter().find(|info| info.id == id).unwrap().context_tokens;
        let live = runtime.open(id, &definition).await.unwrap().state().await.unwrap().context.tokens;
        runtime.close(id).await.unwrap();
        let slept = runtime.open(id, &definition).await.unwrap().state().await.unwrap().context.tokens;
        assert_same(listed, live, slept, what);
        listed
    };
    for _ in 0..3 {
        session.prompt(text("more", 300)).await.unwrap();
    }
    session.pin(EntryId(2)).await.unwrap();
    let full = sizes("s", "after runs").await;
    let session = runtime.open("s", &definition).await.unwrap();
    assert!(session.compact(keep(700)).await.unwrap().is_installed());
    let compacted = sizes("s", "after a compaction").await;
    assert!(compacted < full / 2, "{compacted} of {full}");
    let session = runtime.open("s", &definition).await.unwrap();
    session.prompt(text("on", 300)).await.unwrap();
    let later = sizes("s", "after a run on a compacted path").await;
    // Back to before the compaction, and to a place after it.
    let session = runtime.open("s", &definition).await.unwrap();
    let leaf = runtime.engine().head("s").await.unwrap().unwrap().leaf;
    session.branch(Some(EntryId(5))).await.unwrap();
    let early = sizes("s", "after a branch to before the compaction").await;
    assert!((1_500..2_300).contains(&early), "{early}");
    let session = runtime.open("s", &definition).await.unwrap();
    session.branch(leaf).await.unwrap();
    assert_eq!(sizes("s", "after a branch back").await, later);
    let session = runtime.open("s", &definition).await.unwrap();
    session.undo_compaction().await.unwrap();
    let undone = sizes("s", "after an undo").await;
    assert!(undone > full, "{undone}");
    // The same answers do not train the ratio again.
    runtime.fork("s", "f", &definition).await.unwrap();
    assert_eq!(sizes("f", "a fork").await, undone);
    let session = runtime.open("s", &definition).await.unwrap();
    session.branch(None).await.unwrap();
    let empty = sizes("s", "after a branch to the beginning").await;
    assert!(empty < 300, "{empty}");
}

/// A run that is aborted after a large result leaves a context of which everybody knows the size, and a plan is what a
/// compaction then does.
#[tokio::test(start_paused = true)]
async fn the_size_follows_results_and_runs_that_are_aborted() {
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let is_answered = request.messages.last().is_some_and(|message| message.role() == "tool");
        let slow = || Said::text("slow").after_ms(60_000);
        if is_answered { slow() } else { Said::call("read", &serde_json::json!({ "path": "a.rs" })) }
    });
    let counting = Counting { percent: 150, ..Counting::default() };
    let options = SimulatorOptions::new(ByPurpose::new(script, Summariser::Obedient));
    let model = Simulator::new(SimulatorOptions { window: 100_000, counting, ..options });
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &editor(100_000, 3_000)).await.unwrap();
    let state = async || session.state().await.unwrap().context.tokens;
    for round in 1..=3 {
        let run = session.prompt(format!("go {round}")).start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let working = state().await;
        assert!(working > round * 3_000, "round {round}: {working}");
        run.abort();
        assert!(run.reply().await.is_err());
        let listed = runtime.summary("s").await.unwrap().unwrap().context_tokens;
        let after = state().await;
        assert!(
            after == listed && after >= working,
            "round {round}: listed {listed}, {after} after {working}"
        );
        let plan = session.plan(CompactOptions { force: true, ..CompactOptions::default() }).await;
        assert!(plan.is_err() || plan.is_ok_and(|plan| plan.tokens_before == after), "round {round}");
    }
    let plan = session.plan(CompactOptions::default()).await.unwrap();
    let done = session.compact(CompactOptions::default()).await.unwrap();
    assert_eq!(
        (plan.tokens_before, plan.messages_before, plan.messages_removed()),
        (done.tokens_before, done.messages_before, done.messages_removed)
    );
    assert_eq!(state().await, done.tokens_after);
}

/// What the tracker learned of the server counts in whatever is measured before it happens, and in plans.
#[tokio::test(start_paused = true)]
async fn what_was_learned_of_the_server_counts_after_an_undo_and_a_branch() {
    for (percent, hidden_tokens) in [(100, 0), (200, 0), (100, 3_000), (180, 2_000), (70, 0)] {
        let what = format!("{percent} %, {hidden_tokens} hidden");
        let counting = Counting { percent, hidden_tokens, ..Counting::default() };
        let options = SimulatorOptions::new(ByPurpose::new(talker(120), Summariser::Obedient));
        let model = Simulator::new(SimulatorOptions { window: 100_000, counting, ..options });
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &agent(100_000)).await.unwrap();
        let sizes = async || {
            let listed = runtime.summary("s").await.unwrap().unwrap().context_tokens;
            (session.state().await.unwrap().context.tokens, listed)
        };
        let mut reported = 0;
        for day in 0..40 {
            let reply = session.prompt(text(&format!("day {day}"), 30)).await.unwrap();
            reported = reply.context.tokens;
        }
        for options in [CompactOptions::default(), keep(1_500)] {
            let plan = session.plan(options.clone()).await.unwrap();
            let done = session.compact(options).await.unwrap();
            assert!(done.is_installed(), "{what}: {done:?}");
            assert_eq!(
                (plan.tokens_before, plan.messages_removed()),
                (done.tokens_before, done.messages_removed),
                "{what}"
            );
            let planned = plan.tokens_after_estimate()..=plan.tokens_after_max();
            assert!(planned.contains(&done.tokens_after), "{what}: {planned:?} planned, {done:?}");
            let undone = session.undo_compaction().await.unwrap().tokens;
            assert_eq!(sizes().await, (undone, undone), "{what}, after an undo");
            assert!(
                undone.abs_diff(reported) * 20 < reported,
                "{what}: {undone} after an undo, before {reported}"
            );
        }
        session.branch(Some(EntryId(40))).await.unwrap();
        let (branched, listed) = sizes().await;
        assert_eq!(branched, listed, "{what}, after a branch");
        let next = session.prompt(text("day 41", 30)).await.unwrap().context.tokens;
        assert!((branched..branched + branched / 4).contains(&next), "{what}: {branched} and then {next}");
    }
}

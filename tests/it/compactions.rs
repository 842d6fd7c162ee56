//! Compactions through the actors.

/// Preparing while the conversation goes on.
mod background;
/// A branch that is left and summarised.
mod branches;
/// The user's words, the ledger of facts, and digests.
mod carried;
/// Hooks of programs around compactions.
mod hooks;
/// Which rung is taken, which errors are typed, and when attempts stop.
mod ladder;
/// Truncation at the window if no summary is possible.
mod last_resort;
/// Late messages about an earlier compaction reach no later one.
mod late_news;
/// Plans, undo, branches, forks, pins, and input during a compaction.
mod manual;
/// Newest messages that cannot give way.
mod newest;
/// Random sessions, and invariants of any context.
mod properties;
/// Which provider writes summaries, and the effects of its refusals and pauses.
mod providers;
/// Tool results that are too large.
mod results;
/// A context's size in lists.
mod sizes;
/// Steers that join the request in progress.
mod steers;
/// Summarisers that work and that fail.
mod summarisers;
/// Which model writes a summary, how often and with how much output.
mod writers;

use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, ByPurpose, Function, Summariser};

use crate::support::{agent, drain, runtime, simulator};

#[tokio::test(start_paused = true)]
async fn a_full_window_compacts_by_itself_and_the_conversation_goes_on() {
    let talk = Function(|_: &_, info: greenroom_simulator::CallInfo| {
        Said::text(format!("answer {} {}", info.session_call, "word ".repeat(300)))
    });
    let model = simulator(ByPurpose::new(talk, Summariser::Obedient), 8_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("long", &agent(8_000)).await.unwrap();
    let mut events = session.subscribe();
    let mut seen = Vec::new();
    for run in 0..60 {
        session.prompt(format!("question {run}: {}", "thing ".repeat(100))).await.unwrap();
        seen.extend(drain(&mut events));
    }
    model.assert_clean();
    let state = session.state().await.unwrap();
    assert!(state.compactions >= 3, "{state:?}");
    let starts = seen.iter().filter(|event| event.kind.name() == "compaction_start").count();
    let ends: Vec<_> = seen
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::CompactionEnd(end) => Some(end.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(starts, ends.len());
    assert!(
        ends.iter().all(|end| end.outcome.as_str() == "completed" && end.tokens_after < end.tokens_before),
        "{ends:?}"
    );
    let seqs: Vec<u64> = seen.iter().filter(|event| event.is_durable()).map(|event| event.seq).collect();
    assert_eq!(seqs, (0..state.entries).collect::<Vec<_>>(), "every entry has its event, in order");
}

//! A server that is silent if a request is too large for it, with an unknown window.

use greenroom::prelude::*;
use greenroom_kernel::Usage;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, ErrorDialect, Fault, Function, Point, Script, SeenRequest,
    Simulator, SimulatorOptions, Summariser,
};

use crate::compaction_fixtures::{count, ends, keep, talker, text};
use crate::support::{agent, builder, drain, runtime};

/// Returns a server with a window of 4,000 that truncates silently.
fn silent(script: impl greenroom_simulator::Script + 'static) -> Simulator {
    let options = SimulatorOptions::new(script);
    Simulator::new(SimulatorOptions { window: 4_000, error_dialect: ErrorDialect::LlamaCppPython, ..options })
}

/// Whether the window is assumed, configured far too large or unknown: every prompt is answered.
#[tokio::test(start_paused = true)]
async fn a_server_that_cuts_silently_locks_no_session() {
    let unknown = Agent::new("nobody-knows");
    let agents = [("assumed", unknown), ("too large", agent(60_000)), ("right", agent(4_000))];
    for (name, definition) in agents {
        let model = silent(ByPurpose::new(talker(150), Summariser::Obedient));
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &definition).await.unwrap();
        let mut events = session.subscribe();
        let mut seen = Vec::new();
        for run in 0..40 {
            let answer = session.prompt(text(&format!("q{run}."), 150)).await;
            assert!(answer.is_ok(), "{name}: prompt {run}: {answer:?}");
            seen.extend(drain(&mut events));
        }
        let ended = ends(&seen);
        let completed = ended.iter().filter(|end| end.outcome.as_str() == "completed").count();
        assert!(completed >= 3, "{name}: {ended:?}");
        // Nothing was discarded for it.
        assert!(
            ended.iter().all(|end| !["truncated", "digested"].contains(&end.outcome.as_str())),
            "{name}: {ended:?}"
        );
        assert!(count(&seen, "overflow_detected") >= 3 || name == "right", "{name}");
        model.assert_clean();
    }
}

/// A manual compaction finds out how much such a server accepts.
#[tokio::test(start_paused = true)]
async fn a_summary_is_asked_in_smaller_parts_where_a_silent_server_takes_no_more() {
    let model = silent(ByPurpose::new(talker(10), Summariser::Obedient));
    let runtime = runtime(&model).await;
    let messages = crate::compaction_fixtures::chat(30, 200);
    let session =
        crate::compaction_fixtures::opened(&runtime, "s", &Agent::new("nobody-knows"), messages).await;
    let done = session.compact(keep(600)).await.unwrap();
    assert_eq!(done.outcome.as_str(), "completed", "{done:?}");
    session.prompt("on").await.unwrap();
    model.assert_clean();
}

/// A broken server is not an overflow: it is retried as usual, and nothing is cut on suspicion.
#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_for_a_while_costs_no_history() {
    for broken in [2, 4] {
        let script = Function(move |_: &SeenRequest, info: CallInfo| {
            if (6..6 + broken).contains(&info.call) {
                Said::fault(Fault::EmptyStream)
            } else {
                Said::text(text("fine.", 50))
            }
        });
        let model = Simulator::new(SimulatorOptions::new(script));
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &agent(60_000)).await.unwrap();
        for run in 0..6 {
            session.prompt(format!("question {run}")).await.unwrap();
        }
        let mut events = session.subscribe();
        let reply = session.prompt("and this?").await;
        let seen = drain(&mut events);
        assert!(reply.is_ok(), "{broken}: {reply:?} {:?}", ends(&seen));
        assert!(ends(&seen).iter().all(|end| end.messages_removed == 0), "{broken}: {:?}", ends(&seen));
        assert_eq!(session.context().await.unwrap().len(), 14, "{broken}");
    }
}

/// A prompt that is larger than such a server accepts is refused with an error; the next one is answered,
/// whatever the assumed window, and whether or not anything was answered before.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_too_large_locks_no_session() {
    for before in [0, 3] {
        for definition in [Agent::new("nobody-knows"), agent(60_000), agent(9_000)] {
            let model = silent(ByPurpose::new(talker(50), Summariser::Garbage));
            let runtime = runtime(&model).await;
            let session = runtime.open("s", &definition).await.unwrap();
            for run in 0..before {
                session.prompt(text(&format!("q{run}."), 50)).await.unwrap();
            }
            let refused = session.prompt(text("large.", 5_000)).await.unwrap_err();
            assert!(refused.to_string().contains("larger than the server takes"), "{refused}");
            let answer = session.prompt("and now?").await;
            assert!(
                answer.is_ok(),
                "{before} before, {:?}: {answer:?}",
                session.state().await.unwrap().context
            );
            session.prompt("and on").await.unwrap();
        }
    }
}

/// A script whose server is silent, in one of the possible ways, on requests that are too large.
struct SilentAbove<S> {
    tokens: u64,
    silence: Said,
    script: S,
}

impl<S: Script> Script for SilentAbove<S> {
    fn reply(&self, request: &SeenRequest, info: CallInfo) -> Said {
        if request.tokens > self.tokens { self.silence.clone() } else { self.script.reply(request, info) }
    }
}

/// All forms of silence: the server ends its stream, breaks it off, or returns an empty answer, as gateways
/// do.
#[tokio::test(start_paused = true)]
async fn every_kind_of_silence_locks_no_session() {
    let usage = Usage { input_tokens: 0, output_tokens: 0, ..Usage::default() };
    let silences = [
        ("an empty stream", Said::fault(Fault::EmptyStream)),
        ("a stream that breaks off", Said::fault(Fault::Reset(Point::AfterHeaders))),
        ("an answer of nothing", Said::text("").with_usage(usage)),
    ];
    for (name, silence) in silences {
        for definition in [Agent::new("nobody-knows"), agent(60_000)] {
            let script = ByPurpose::new(talker(150), Summariser::Obedient);
            let script = SilentAbove { tokens: 4_000, silence: silence.clone(), script };
            let model =
                Simulator::new(SimulatorOptions { window: 1_000_000, ..SimulatorOptions::new(script) });
            let runtime = runtime(&model).await;
            let session = runtime.open("s", &definition).await.unwrap();
            let mut events = session.subscribe();
            let mut seen = Vec::new();
            for run in 0..40 {
                let answer = session.prompt(text(&format!("q{run}."), 150)).await;
                assert!(answer.is_ok(), "{name}: prompt {run}: {answer:?}");
                seen.extend(drain(&mut events));
            }
            let ended = ends(&seen);
            let completed = ended.iter().filter(|end| end.outcome.as_str() == "completed").count();
            assert!(completed >= 3, "{name}: {ended:?}");
            assert!(
                ended.iter().all(|end| !["truncated", "digested"].contains(&end.outcome.as_str())),
                "{name}: {ended:?}"
            );
            model.assert_clean();
        }
    }
}

//! Summaries and their providers: which one is used, and the effects of its refusals and pauses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_kernel::Message;
use greenroom_simulator::{
    Answer as Said, CallInfo, Echo, Fault, Function, Outcome, RetryAfter, Script, SeenRequest, Simulator,
    SimulatorOptions,
};

use crate::compaction_fixtures::{asked, chat, keep, newest, opened, runs, settings, text};
use crate::support::{agent, builder, simulator, store};

fn named(provider: &str, script: impl Script + 'static) -> Simulator {
    let provider_name = provider.to_owned();
    Simulator::new(SimulatorOptions { provider_name, ..SimulatorOptions::new(script) })
}

async fn runtime_over(left: &Simulator, right: &Simulator) -> Runtime {
    let builder = Runtime::builder().provider(left.provider()).provider(right.provider());
    builder.engine(store()).clock_from(1_700_000_000_000).start().await.unwrap()
}

/// The compactor lives longer than the definition that it was started with.
#[tokio::test(start_paused = true)]
async fn after_a_switch_to_another_provider_summaries_are_asked_there() {
    let (left, right) = (named("left", Echo), named("right", Echo));
    let runtime = runtime_over(&left, &right).await;
    let one = Agent::new("one").provider("left").context_window(100_000);
    let session = opened(&runtime, "s", &one, chat(12, 300)).await;
    assert_eq!(session.compact(keep(1_000)).await.unwrap().outcome.as_str(), "completed");
    runtime.open("s", &Agent::new("two").provider("right").context_window(100_000)).await.unwrap();
    for _ in 0..4 {
        session.prompt(text("more", 600)).await.unwrap();
    }
    assert_eq!(session.compact(keep(500)).await.unwrap().outcome.as_str(), "completed");
    let models = |model: &Simulator| -> Vec<String> {
        asked(model).iter().map(|logged| logged.request.model.clone()).collect()
    };
    assert_eq!((models(&left), models(&right)), (vec!["one".to_owned()], vec!["two".to_owned()]));
}

/// On a switch to a smaller window at another provider, the old model writes the summary, at its own
/// provider; if that refuses, the new one does.
#[tokio::test(start_paused = true)]
async fn a_switch_to_a_smaller_window_elsewhere_compacts_at_the_provider_that_is_left() {
    for old_refuses in [false, true] {
        let large = Function(move |request: &SeenRequest, info: CallInfo| {
            let refuses = old_refuses && request.purpose == Purpose::Summary;
            if refuses { Said::text("no") } else { Echo.reply(request, info) }
        });
        let (left, right) = (named("left", large), named("right", Echo));
        let runtime = runtime_over(&left, &right).await;
        let mut said = chat(30, 400);
        for message in &mut said {
            if let Message::Assistant(answer) = message {
                "left".clone_into(&mut answer.provider);
            }
        }
        let session = opened(&runtime, "s", &Agent::new("large").context_window(100_000), said).await;
        runtime.open("s", &Agent::new("small").provider("right").context_window(16_000)).await.unwrap();
        session.prompt("go on").await.unwrap();
        let all = |model: &Simulator, name| asked(model).iter().all(|logged| logged.request.model == name);
        assert!(all(&left, "large") && all(&right, "small"));
        assert!(!asked(&left).is_empty());
        assert_eq!(asked(&right).is_empty(), !old_refuses);
        assert_eq!(newest(&runtime, "s").await.model, if old_refuses { "small" } else { "large" });
        assert_eq!((runs(&left).len(), runs(&right).len()), (0, 1));
    }
}

/// A summariser that named its limit once gets no larger request again, in any session.
#[tokio::test(start_paused = true)]
async fn a_limit_that_a_summariser_names_is_remembered() {
    for summary_model in [None, Some("nobody-knows-it".to_owned())] {
        let options = SimulatorOptions { window: 20_000, log_capacity: 1_000, ..SimulatorOptions::new(Echo) };
        let model = Simulator::new(options);
        let own = settings(|settings| settings.summary_model.clone_from(&summary_model));
        let runtime = builder(&model).compaction(own).start().await.unwrap();
        let refused = || asked(&model).iter().filter(|logged| logged.outcome == Outcome::Overflowed).count();
        let first = opened(&runtime, "first", &agent(200_000), chat(100, 400)).await;
        assert_eq!(first.compact(keep(5_000)).await.unwrap().outcome.as_str(), "completed");
        let once = refused();
        assert!(once > 0, "it was asked for too much");
        let second = opened(&runtime, "second", &agent(200_000), chat(100, 400)).await;
        assert_eq!(second.compact(keep(5_000)).await.unwrap().outcome.as_str(), "completed");
        assert_eq!(refused(), once, "{summary_model:?}");
    }
}

/// A summariser that asks for a wait makes all users of its provider wait.
#[tokio::test(start_paused = true)]
async fn a_retry_after_on_a_summary_holds_the_whole_lane_back() {
    let limited = AtomicBool::new(true);
    let script = Function(move |request: &SeenRequest, info: CallInfo| {
        if request.purpose == Purpose::Summary && limited.swap(false, Ordering::Relaxed) {
            return Said::fault(Fault::RateLimited(RetryAfter::Seconds(20)));
        }
        Echo.reply(request, info)
    });
    let model = simulator(script, 100_000);
    let runtime = Arc::new(builder(&model).start().await.unwrap());
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 300)).await;
    let compaction = tokio::spawn(async move { session.compact(keep(1_000)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(model.fired().get("rate_limited"), Some(&1));
    let other = runtime.open("other", &agent(100_000)).await.unwrap();
    other.prompt("hello").await.unwrap();
    let waited = runs(&model)[0].started - asked(&model)[0].started;
    assert!(waited >= Duration::from_secs(20), "{waited:?}");
    assert_eq!(compaction.await.unwrap().unwrap().outcome.as_str(), "completed");
}

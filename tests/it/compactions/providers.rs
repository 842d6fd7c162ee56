//! Summaries and the providers they are asked of.

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_simulator::{
    CallInfo, Echo, Function, Reply as Said, Script, SeenRequest, Simulator, SimulatorOptions,
};

use crate::talk::{asked, chat, keep, newest, opened, text, turns};

fn named(provider: &str, script: impl Script + 'static) -> Simulator {
    let provider_name = provider.to_owned();
    Simulator::new(SimulatorOptions { provider_name, ..SimulatorOptions::new(script) })
}

async fn runtime_over(left: &Simulator, right: &Simulator) -> Runtime {
    let builder = Runtime::builder().provider(left.provider()).provider(right.provider());
    builder.in_memory().clock_from(1_700_000_000_000).start().await.unwrap()
}

/// The compactor lives longer than the definition that it was started with.
#[tokio::test(start_paused = true)]
async fn after_a_switch_to_another_provider_summaries_are_asked_there() {
    let (left, right) = (named("left", Echo), named("right", Echo));
    let runtime = runtime_over(&left, &right).await;
    let one = Agent::new("one").provider("left").context_window(100_000);
    let session = opened(&runtime, "s", &one, chat(12, 300)).await;
    assert_eq!(session.compact(keep(1_000)).await.unwrap().outcome, "completed");
    runtime.open("s", &Agent::new("two").provider("right").context_window(100_000)).await.unwrap();
    for _ in 0..4 {
        session.prompt(text("more", 600)).await.unwrap();
    }
    assert_eq!(session.compact(keep(500)).await.unwrap().outcome, "completed");
    let models = |model: &Simulator| -> Vec<String> {
        asked(model).iter().map(|logged| logged.request.model.clone()).collect()
    };
    assert_eq!((models(&left), models(&right)), (vec!["one".to_owned()], vec!["two".to_owned()]));
}

/// To a smaller window at another provider: the model that is left writes the summary, at its own provider; where it
/// refuses, the new one does.
#[tokio::test(start_paused = true)]
async fn a_switch_to_a_smaller_window_elsewhere_compacts_at_the_provider_that_is_left() {
    for old_refuses in [false, true] {
        let large = Function(move |request: &SeenRequest, info: CallInfo| {
            let refuses = old_refuses && request.purpose == Purpose::Summary;
            if refuses { Said::text("no") } else { Echo.reply(request, info) }
        });
        let (left, right) = (named("left", large), named("right", Echo));
        let runtime = runtime_over(&left, &right).await;
        let session =
            opened(&runtime, "s", &Agent::new("large").context_window(100_000), chat(30, 400)).await;
        runtime.open("s", &Agent::new("small").provider("right").context_window(16_000)).await.unwrap();
        session.prompt("go on").await.unwrap();
        let all = |model: &Simulator, name| asked(model).iter().all(|logged| logged.request.model == name);
        assert!(all(&left, "large") && all(&right, "small"));
        assert!(!asked(&left).is_empty());
        assert_eq!(asked(&right).is_empty(), !old_refuses);
        assert_eq!(newest(&runtime, "s").await.model, if old_refuses { "small" } else { "large" });
        assert_eq!((turns(&left).len(), turns(&right).len()), (0, 1));
    }
}

//! Tool results that are too large: capped on arrival, shortened at the window, and never the end of a turn.

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::message::Message;
use greenroom_kernel::size::{Estimator, message_tokens};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use serde_json::json;

use crate::compaction_fixtures::{assert_paired, ends, text};
use crate::support::{agent, drain, runtime, simulator};

#[derive(Deserialize, JsonSchema)]
struct Page {
    number: u64,
}

/// Returns an agent with a tool whose results have about this many tokens and a word in their middle.
fn reader(window: u64, tokens: usize) -> Agent {
    let tool = move |page: Page| async move {
        let half = text(&format!("page {} begins.", page.number), tokens / 2);
        Ok(format!("{half} THE-MIDDLE-OF-{} {half} the end of {}.", page.number, page.number))
    };
    agent(window).tool("page", tool)
}

/// Checks that each request of a run's steps begins with the previous one, unless a compaction came between.
fn assert_prefixes(model: &Simulator, compactions: usize) {
    let requests: Vec<Vec<Arc<Message>>> = model
        .requests()
        .into_iter()
        .filter(|logged| logged.request.purpose == Purpose::Step)
        .map(|logged| logged.request.messages.clone())
        .collect();
    let breaks = requests.windows(2).filter(|pair| !pair[1].starts_with(&pair[0])).count();
    assert!(
        breaks <= compactions,
        "{breaks} requests do not extend the one before: {compactions} compactions"
    );
}

/// One result that is larger than the window: the model gets its head and tail, and is told how to read the
/// rest, which it then does.
#[tokio::test(start_paused = true)]
async fn a_result_larger_than_the_window_is_capped_and_can_be_read_on() {
    // By the entry with the whole result, and by the capped one, which a later mark names.
    for entry in [2, 3] {
        capped_and_read_on(entry).await;
    }
}

async fn capped_and_read_on(entry: u64) {
    let talk = Function(move |request: &SeenRequest, info: CallInfo| match info.session_call {
        0 => Said::call("page", &json!({ "number": 7 })),
        1 => Said::call("recall", &json!({ "entry": entry, "find": "THE-MIDDLE-OF-7" })),
        _ => Said::text(request.messages.last().unwrap().text()),
    });
    let model = simulator(ByPurpose::new(talk, Summariser::Obedient), 8_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &reader(8_000, 20_000)).await.unwrap();
    let mut events = session.subscribe();
    let reply = session.prompt("read page 7").await.unwrap();
    assert!(reply.text.starts_with("[entry ") && reply.text.contains("THE-MIDDLE-OF-7"), "{}", reply.text);
    assert!(ends(&drain(&mut events)).is_empty(), "it fits as it came");
    let entries = runtime.entries("s", greenroom_kernel::EntryId(0)).await.unwrap();
    let EntryKind::WholeResult { content, .. } = &entries[2].kind else { panic!("{:?}", entries[2]) };
    assert!(greenroom_kernel::message::blocks_text(content).contains("THE-MIDDLE-OF-7"));
    let short = entries[3].kind.as_message().unwrap();
    assert!(message_tokens(short, Estimator::Classes) < 2_050, "a quarter of the window");
    assert!(short.text().starts_with("page 7 begins.") && short.text().ends_with("the end of 7."));
    assert!(short.text().contains("recall with entry 2 and from "), "{}", short.text());
    assert_prefixes(&model, 0);
    model.assert_clean();
}

/// Twelve results at once, and eight in each of several steps: none of them ends a turn, whatever summarisers
/// do.
#[tokio::test(start_paused = true)]
async fn many_large_results_at_once_end_no_turn() {
    for (at_once, steps, summariser) in [
        (12, 1, Summariser::Obedient),
        (8, 4, Summariser::Obedient),
        (12, 2, Summariser::Garbage),
        (40, 2, Summariser::Empty),
    ] {
        let talk = Function(move |_: &SeenRequest, info: CallInfo| {
            if info.session_call >= steps {
                return Said::text("read");
            }
            let call = |reply: Said, number: u64| {
                reply.and_call("page", &json!({ "number": info.session_call * 100 + number }))
            };
            (0..at_once).fold(Said::default(), call)
        });
        let model = simulator(ByPurpose::new(talk, summariser), 8_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &reader(8_000, 5_000)).await.unwrap();
        let reply = session.prompt("read them all").await;
        assert_eq!(reply.unwrap().text, "read", "{at_once} in {steps} steps, {summariser:?}");
        let events: Vec<Arc<Event>> =
            runtime.replay("s", 0).await.unwrap().into_iter().map(Arc::new).collect();
        let ended = ends(&events);
        let installed = ended.iter().filter(|end| end.is_installed()).count();
        assert!(installed >= usize::try_from(steps).unwrap(), "{ended:?}");
        assert_prefixes(&model, installed);
        assert_paired(&session.context().await.unwrap());
        // The session continues, and the shortening of each result can be undone.
        session.prompt("and now?").await.unwrap();
        model.assert_clean();
    }
}

/// A manual compaction of a context that does not fit has an effect, or says why it cannot.
#[tokio::test(start_paused = true)]
async fn a_manual_compaction_of_what_does_not_fit_does_something_or_says_why() {
    let once = Function(|_: &SeenRequest, info: CallInfo| match info.session_call {
        0 => (0..5).fold(Said::default(), |said, number| said.and_call("page", &json!({ "number": number }))),
        _ => Said::text("read"),
    });
    let model = simulator(ByPurpose::new(once, Summariser::Obedient), 40_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &reader(40_000, 1_950)).await.unwrap();
    session.prompt("read them").await.unwrap();
    let before = session.state().await.unwrap().context.tokens;
    assert!((9_000..12_000).contains(&before), "{before}");
    let options = || CompactOptions { force: true, ..CompactOptions::default() };
    // It is not too small to get smaller in the large window; in a small one it is made to fit.
    runtime.open("s", &reader(8_000, 1_950)).await.unwrap();
    while session.state().await.unwrap().status != Status::Idle {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for _ in 0..3 {
        let done = session.compact(options()).await.unwrap();
        let reason = done.outcome.reason().unwrap_or_default().to_owned();
        assert!(done.is_installed() || !reason.is_empty(), "{done:?}");
    }
    let after = session.state().await.unwrap().context.tokens;
    assert!(after < 8_000, "{after}");
}

//! Windows reported by servers, and limits in their errors: the effective window over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::store;
use greenroom::prelude::*;
use greenroom_kernel::usage::WindowSource;
use greenroom_provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, Fault, Function, ListForm, Point, Script, SeenRequest,
    Simulator, SimulatorOptions, SimulatorServer, Summariser,
};
use greenroom_store::Engine;

/// Returns a model with a window of 8,192 tokens behind a server that lists it in this form.
async fn served(list: ListForm) -> (Simulator, SimulatorServer) {
    let options = SimulatorOptions { window: 8_192, list, ..SimulatorOptions::new(Echo) };
    let model = Simulator::new(options);
    let server = model.serve().await.unwrap();
    (model, server)
}

async fn runtime(server: &SimulatorServer, store: &Arc<dyn Engine>) -> Runtime {
    let options = ServerOptions {
        name: "rig".to_owned(),
        base_url: server.base_url(),
        prompt_cache_key: Some(true),
        ..ServerOptions::default()
    };
    let provider = Arc::new(HttpProvider::new(options).unwrap());
    Runtime::builder().provider(provider).engine(store.clone()).start().await.unwrap()
}

async fn window(session: &SessionHandle) -> (Option<u64>, WindowSource) {
    let context = session.state().await.unwrap().context;
    (context.window, context.window_source)
}

/// Opens a session at such a server and checks its window.
async fn check(list: ListForm, agent: Agent, expected: (u64, WindowSource)) {
    let (model, server) = served(list).await;
    let runtime = runtime(&server, &store()).await;
    let session = runtime.open("s", agent).await.unwrap();
    assert_eq!(window(&session).await, (Some(expected.0), expected.1), "{list:?}");
    session.prompt("hello").await.unwrap();
    model.assert_clean();
    runtime.shutdown().await.unwrap();
}

/// A session that was not opened in this process reports the source of its window.
#[tokio::test]
async fn a_session_that_is_not_live_says_where_its_window_came_from() {
    let (_model, server) = served(ListForm::Vllm).await;
    let store = store();
    let first = runtime(&server, &store).await;
    first.open("s", simulated()).await.unwrap().prompt("hello").await.unwrap();
    let second = runtime(&server, &store).await;
    let session = second.session("s").await.unwrap();
    assert_eq!(window(&session).await, (Some(8_192), WindowSource::Server));
}

fn simulated() -> Agent {
    Agent::new("simulated")
}

#[tokio::test]
async fn a_server_is_asked_for_the_window() {
    check(ListForm::Names, simulated(), (128_000, WindowSource::Assumed)).await;
    check(ListForm::Absent, simulated(), (128_000, WindowSource::Assumed)).await;
    check(ListForm::Vllm, simulated(), (8_192, WindowSource::Server)).await;
    check(ListForm::LiteLlm, simulated(), (8_192, WindowSource::Server)).await;
    check(ListForm::LlamaServer { trained: 131_072 }, simulated(), (8_192, WindowSource::Server)).await;
    check(ListForm::LmStudio { trained: 131_072 }, simulated(), (8_192, WindowSource::Server)).await;
    // llama-server answers under every name, and so it is not the catalogue's model.
    let named = || Agent::new("gpt-4o");
    check(ListForm::LlamaServer { trained: 131_072 }, named(), (8_192, WindowSource::Server)).await;
    // The user's setting has precedence.
    check(ListForm::Vllm, simulated().context_window(6_000), (6_000, WindowSource::Setting)).await;
}

#[tokio::test]
async fn a_known_window_is_compacted_before_the_server_refuses() {
    let (model, server) = served(ListForm::Vllm).await;
    let runtime = runtime(&server, &store()).await;
    let session = runtime.open("s", simulated()).await.unwrap();
    let mut compacted = 0;
    let mut events = session.subscribe();
    for number in 0..12 {
        session.prompt(format!("question {number} {}", "thing ".repeat(700))).await.unwrap();
    }
    while let Some(greenroom::Delivery::Event(event)) = events.try_next() {
        assert_ne!(event.kind.event_type(), EventType::OverflowDetected);
        compacted += u32::from(event.kind.event_type() == EventType::SessionCompacted);
    }
    assert!(compacted >= 1, "{compacted} compactions");
    model.assert_clean();
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_limit_belongs_to_its_server_and_is_doubted_when_the_list_says_more() {
    let store = store();
    let (_, boasting) = served(ListForm::Overstated { tokens: 32_768 }).await;
    let first = runtime(&boasting, &store).await;
    let session = first.open("s", simulated()).await.unwrap();
    assert_eq!(window(&session).await, (Some(32_768), WindowSource::Server));
    session.prompt("thing ".repeat(4_000)).await.unwrap();
    session.prompt("thing ".repeat(4_000)).await.unwrap();
    assert_eq!(window(&session).await, (Some(8_192), WindowSource::Learned));
    drop((session, first));
    // It is still true after a restart, since the list is unchanged.
    let again = runtime(&boasting, &store).await;
    assert_eq!(
        window(&again.open("t", simulated()).await.unwrap()).await,
        (Some(8_192), WindowSource::Learned)
    );
    let known = again.models(&simulated()).await.unwrap();
    let only = &known.models[0];
    assert_eq!((only.window.tokens, only.learned_tokens), (Some(8_192), Some(8_192)));
    assert!(again.forget_limit(&simulated(), "simulated").await.unwrap());
    assert_eq!(
        window(&again.open("u", simulated()).await.unwrap()).await,
        (Some(32_768), WindowSource::Server)
    );
    again.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_answer_delays_nobody_for_long() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let options = ServerOptions {
        base_url: format!("http://{address}/v1").parse().unwrap(),
        ..ServerOptions::default()
    };
    let provider = Arc::new(HttpProvider::new(options).unwrap());
    let runtime = Runtime::builder().provider(provider).engine(store()).start().await.unwrap();
    let opened = tokio::time::timeout(Duration::from_secs(30), runtime.open("s", simulated())).await;
    assert_eq!(window(&opened.unwrap().unwrap()).await, (Some(128_000), WindowSource::Assumed));
    runtime.shutdown().await.unwrap();
}

/// Learns a limit of a server that lists nothing, makes one call of a step or of a summary fail in this way,
/// and returns the source of the window after the next call.
async fn after(fault: Fault, in_summary: bool) -> WindowSource {
    let armed = Arc::new(AtomicBool::new(false));
    let (of_runs, of_summaries) = (Arc::clone(&armed), Arc::clone(&armed));
    let (step, summary) = (fault.clone(), fault);
    let runs = Function(move |_: &SeenRequest, _: CallInfo| {
        let said = Said::text("word ".repeat(300));
        if !in_summary && of_runs.swap(false, Ordering::Relaxed) {
            said.with_fault(step.clone())
        } else {
            said
        }
    });
    let summaries = Function(move |request: &SeenRequest, call: CallInfo| {
        let said = Summariser::Obedient.reply(request, call);
        let fires = in_summary && of_summaries.swap(false, Ordering::Relaxed);
        if fires { said.with_fault(summary.clone()) } else { said }
    });
    let model = crate::support::simulator(ByPurpose::new(runs, summaries), 8_192);
    let runtime = crate::support::runtime(&model).await;
    let session = runtime.open("s", simulated()).await.unwrap();
    // The second is too long: the server names its limit.
    for _ in 0..2 {
        session.prompt("thing ".repeat(4_000)).await.unwrap();
    }
    assert_eq!(window(&session).await, (Some(8_192), WindowSource::Learned));
    armed.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        session.prompt("hello").await.unwrap();
        assert!(
            session
                .compact(CompactOptions { force: true, keep_recent: Some(100), focus: None })
                .await
                .unwrap()
                .is_installed()
        );
    }
    assert!(!armed.load(Ordering::Relaxed), "the fault came");
    let other = runtime.open("other", simulated()).await.unwrap();
    window(&other).await.1
}

/// A lost server may come back as another; one that is silent for a while is the same.
#[tokio::test(start_paused = true)]
async fn a_lost_connection_makes_a_limit_doubtful_and_a_stall_does_not() {
    let stall = || Fault::Stall { at: Point::BeforeHeaders, ping_every_ms: None, for_ms: None };
    for in_summary in [false, true] {
        let lost = after(Fault::Reset(Point::BeforeHeaders), in_summary).await;
        assert_eq!(lost, WindowSource::Assumed, "in a summary: {in_summary}");
        assert_eq!(after(stall(), in_summary).await, WindowSource::Learned, "in a summary: {in_summary}");
    }
}

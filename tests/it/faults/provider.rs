//! Every kind of fault, in-process under a paused clock, and over HTTP through the real client.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom::Role;
use greenroom::prelude::*;
use greenroom_kernel::{FailureClass, ToolStatus};
use greenroom_provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Fault, Function, Point, Script, SeenRequest, Summariser,
};

use crate::support::{agent, builder, drain, simulator, store};

/// Takes anything.
#[derive(Deserialize, JsonSchema)]
struct Anything {
    /// Whatever.
    text: Option<String>,
}

fn tooled() -> Agent {
    agent(20_000).tool("note", |it: Anything| async move { Ok(it.text.unwrap_or_default()) })
}

/// Each session is named after the fault of its first answer; all further answers are good, and so are those
/// of sessions without a number.
fn script(faults: Vec<Fault>) -> impl Script {
    let runs = Function(move |request: &SeenRequest, info: CallInfo| {
        let session = request.session.as_deref().unwrap_or_default();
        let number = session.rsplit('-').next().and_then(|number| number.parse::<usize>().ok());
        let Some(fault) = number.map(|number| &faults[number]).filter(|_| info.session_call == 0) else {
            return Said::text("a good answer");
        };
        let call = serde_json::json!({ "text": "some words that are long enough to be cut in half" });
        Said::text("this is only a part").and_call("note", &call).with_fault(fault.clone())
    });
    ByPurpose::new(runs, Summariser::Obedient)
}

/// The expected handling of a fault.
#[derive(Debug, PartialEq)]
enum Wanted {
    /// The call is retried, once, for this reason; the partial answer is void.
    Retried(FailureClass),
    /// The answer is void, and the call is repeated at once, which does not count as a retry.
    AskedAnew,
    /// The answer is used: its calls were run, or the model is told why not.
    Used(&'static [ToolStatus]),
    /// The run ends with this class, without a retry.
    Ends(FailureClass),
}

fn wanted(fault: &Fault, over_http: bool) -> Wanted {
    use FailureClass::{Loading, Malformed, Other, Overloaded, PayloadTooLarge, RateLimited, Timeout};
    use Wanted::{Ends, Retried, Used};
    match fault {
        Fault::RateLimited(_) | Fault::EmptyBody(429) => Retried(RateLimited),
        Fault::ServerError(_) | Fault::EmptyBody(500) | Fault::ErrorIn200 | Fault::ErrorEvent => {
            Retried(Overloaded)
        }
        Fault::Loading => Retried(Loading),
        // It had answered before. Over HTTP the server listens, and the connection breaks.
        Fault::Refused if !over_http => Retried(Loading),
        Fault::Reset(_) | Fault::Refused | Fault::Stall { for_ms: None, .. } => Retried(Timeout),
        // It is in the text beside the call, and replaced there.
        Fault::BadUtf8 if over_http => Used(&[ToolStatus::Ok]),
        Fault::EofBeforeFinish
        | Fault::EmptyStream
        | Fault::MalformedSse
        | Fault::BadUtf8
        | Fault::PlainTextLine(_) => Retried(Malformed),
        // Too many bytes, and no image that could be dropped.
        Fault::EmptyBody(413) => Ends(PayloadTooLarge),
        // Below the window, a 400 without a message means nothing.
        Fault::EmptyBody(400) => Ends(Other),
        Fault::TruncatedArguments | Fault::DoubledArguments => Used(&[ToolStatus::Error]),
        // The call is doubled, and both have a result.
        Fault::DoubledIds => Used(&[ToolStatus::Ok, ToolStatus::Ok]),
        Fault::EofWithoutDone | Fault::MissingIds | Fault::Usage(_) | Fault::SilentTruncation => {
            Used(&[ToolStatus::Ok])
        }
        Fault::EmptyBody(_) | Fault::Http { .. } | Fault::Overflow(_) | Fault::Stall { .. } => {
            panic!("{fault:?} has no row here")
        }
    }
}

/// Returns the handling of a fault, according to the events.
fn became(name: &str, events: &mut greenroom::Subscription, end: &Result<Reply>) -> Wanted {
    let (mut retries, mut results, mut answers) = (Vec::new(), Vec::new(), 0);
    for event in drain(events) {
        match &event.kind {
            EventKind::Retry { failure, attempt, .. } => {
                assert_eq!(*attempt as usize, retries.len() + 1, "{name}");
                retries.push(failure.class);
            }
            EventKind::MessageEnd { message, .. } => {
                results.extend(message.status);
                answers += u32::from(message.role == Role::Assistant);
            }
            _ => {}
        }
    }
    match (end, retries.as_slice()) {
        (Err(Error::Model(failure)), []) => Wanted::Ends(failure.class),
        (Ok(_), [class]) if answers == 1 => Wanted::Retried(*class),
        (Ok(_), []) if answers == 1 => Wanted::AskedAnew,
        (Ok(_), []) if answers == 2 => Wanted::Used(results.leak()),
        other => panic!("{name}: {answers} answers, {results:?}, {other:?}"),
    }
}

/// Two prompts: the first meets the fault, which must be handled as expected; the second is answered.
async fn survive(runtime: &Runtime, number: usize, fault: &Fault, over_http: bool) {
    let name = fault.name();
    let session = runtime.open(&format!("fault-{number}"), &tooled()).await.unwrap();
    let mut events = session.subscribe();
    let end = session.prompt("first").await;
    if let Ok(reply) = &end {
        assert_eq!(reply.text, "a good answer", "{name}");
    }
    let became = became(name, &mut events, &end);
    // On a connection that another session has left open, the request is repeated at once, which does not
    // count as a retry.
    let is_sent_again = over_http && matches!(fault, Fault::Reset(Point::BeforeHeaders) | Fault::Refused);
    if !(is_sent_again && became == Wanted::AskedAnew) {
        assert_eq!(became, wanted(fault, over_http), "{name}");
    }
    assert_eq!(session.prompt("second").await.unwrap().text, "a good answer", "{name}");
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.waiting, state.is_unanswered), (Status::Idle, 0, false), "{name}");
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_fault_is_survived_in_process() {
    let faults = Fault::every_kind();
    let model = simulator(script(faults.clone()), 20_000);
    let runtime = builder(&model).in_flight_max(1_000).start().await.unwrap();
    // The client does not wait for a server that never answered, so the handling of a refused call must not
    // depend on the order.
    let first = runtime.open("before-the-faults", &tooled()).await.unwrap();
    assert_eq!(first.prompt("hello").await.unwrap().text, "a good answer");
    join_all(faults.iter().enumerate().map(|(number, fault)| survive(&runtime, number, fault, false))).await;
    assert_all_fired(&model, &faults);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn every_kind_of_fault_is_survived_over_http() {
    const IDLE_MS: u64 = 1_500;
    // Pings that arrive several times within the limit, before the answer begins and in the middle of it.
    let ping = |at| Fault::Stall { at, ping_every_ms: Some(IDLE_MS / 10), for_ms: None };
    let is_pinging = |fault: &Fault| matches!(fault, Fault::Stall { ping_every_ms: Some(_), .. });
    let mut faults = Fault::every_kind();
    faults.retain(|fault| !is_pinging(fault));
    faults.extend([ping(Point::AfterHeaders), ping(Point::MidStream)]);
    let model = simulator(script(faults.clone()), 20_000);
    let server = model.serve().await.unwrap();
    let options = ServerOptions {
        base_url: server.base_url(),
        first_event_timeout: Duration::from_millis(2 * IDLE_MS),
        idle_timeout: Duration::from_millis(IDLE_MS),
        // The simulator distinguishes sessions by it.
        prompt_cache_key: Some(true),
        ..ServerOptions::default()
    };
    let provider = HttpProvider::new(options).unwrap();
    let runtime = Runtime::builder()
        .provider(Arc::new(provider))
        .in_flight_max(1_000)
        .engine(store())
        .start()
        .await
        .unwrap();
    join_all(faults.iter().enumerate().map(|(number, fault)| survive(&runtime, number, fault, true))).await;
    assert_all_fired(&model, &faults);
    // Both calls were pinged and nevertheless given up: their sessions were answered.
    assert_eq!(model.fired()["stall_with_pings"], 2);
    assert!(model.pings() >= 20, "{} pings", model.pings());
    runtime.shutdown().await.unwrap();
}

fn assert_all_fired(model: &greenroom_simulator::Simulator, faults: &[Fault]) {
    model.assert_clean();
    let fired = model.fired();
    for fault in faults {
        assert!(
            fired.get(fault.name()).copied().unwrap_or(0) > 0,
            "{} never happened: {fired:?}",
            fault.name()
        );
    }
}

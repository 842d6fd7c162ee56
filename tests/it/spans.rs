//! The spans of a run with a tool and a compaction, as a subscriber receives them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use greenroom::prelude::*;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Fault, Function, Simulator, SimulatorOptions, Summariser,
};
use serde_json::json;
use tracing::Instrument;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::support::{agent, builder, simulator, store};

type Fields = BTreeMap<String, String>;

/// A recorded span.
#[derive(Debug, Clone, Default)]
struct Seen {
    id: u64,
    parent: Option<u64>,
    name: &'static str,
    fields: Fields,
    /// The spans that it follows from.
    follows: Vec<u64>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Collected {
    spans: Vec<Seen>,
    lines: Vec<(Option<u64>, Fields)>,
}

/// Collects all spans and events.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Collected>>);

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Collector {
    fn with(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        let mut collected = self.0.lock().unwrap();
        // The newest of this id: the registry reuses ids.
        change(collected.spans.iter_mut().rev().find(|span| span.id == id.into_u64()).unwrap());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let current = || context.lookup_current().map(|span| span.id().into_u64());
        let parent = attributes.parent().map(Id::into_u64);
        let parent = if attributes.is_contextual() { current() } else { parent };
        let mut fields = Fields::new();
        attributes.record(&mut Reader(&mut fields));
        let name = attributes.metadata().name();
        let span = Seen { id: id.into_u64(), parent, name, fields, ..Seen::default() };
        self.0.lock().unwrap().spans.push(span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.with(id, |span| values.record(&mut Reader(&mut span.fields)));
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, _: Context<'_, S>) {
        self.with(id, |span| span.follows.push(follows.into_u64()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        let parent = event.parent().map(Id::into_u64);
        self.0.lock().unwrap().lines.push((parent, fields));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.with(&id, |span| span.is_closed = true);
    }
}

impl Collected {
    /// Returns the ancestors of a span by name, from the root, and its own name.
    fn path(&self, span: &Seen) -> String {
        let parent = span.parent.map(|id| {
            let at = self.spans.iter().position(|other| std::ptr::eq(other, span)).unwrap();
            self.spans[..at]
                .iter()
                .rev()
                .find(|other| other.id == id)
                .expect("a parent comes before its children")
        });
        match parent {
            Some(parent) => format!("{} {}", self.path(parent), span.name),
            None => span.name.to_owned(),
        }
    }

    fn at(&self, path: &str) -> Vec<&Seen> {
        self.spans.iter().filter(|span| self.path(span) == path).collect()
    }
}

#[derive(Deserialize, JsonSchema)]
struct Look {
    #[serde(rename = "what")]
    _what: String,
}

/// Words that must not be in a trace: from the prompt, the tool's arguments and result, the answer and the
/// instructions.
const SECRETS: [&str; 6] = ["xyzzy", "plugh", "frobozz", "quux", "zork", "grue"];

#[tokio::test(start_paused = true)]
async fn the_tree_of_spans_has_the_names_of_the_conventions_and_no_content() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let runs = Function(|_: &_, call: CallInfo| match call.session_call {
        0 => Said::call("look", &json!({ "what": "plugh" })),
        1 => Said::text("").with_fault(Fault::Http { status: 503, headers: Vec::new(), body: "zork".into() }),
        _ => Said::text(format!("quux {}", "word ".repeat(600))),
    });
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 4_000);
    let runtime = builder(&model).compact_between_runs(false).start().await.unwrap();
    let agent = agent(4_000)
        .instructions("grue")
        .settings(ModelSettings::new().temperature(0.5).output_tokens_max(900))
        .tool("look", |_: Look| async { Ok("frobozz") });
    let session = runtime.open("mine", &agent).await.unwrap();
    let mut compactions = 0;
    while compactions == 0 {
        compactions += session.prompt("xyzzy").await.unwrap().compactions.len();
    }
    runtime.shutdown().await.unwrap();
    drop(session);

    let collected = collector.0.lock().unwrap();
    let one = |path: &str| collected.at(path)[0].fields.clone();
    let has = |fields: &Fields, expected: &[(&str, &str)]| {
        for (name, value) in expected {
            assert_eq!(fields.get(*name).map(String::as_str), Some(*value), "{name} in {fields:?}");
        }
    };
    assert_eq!(collected.at("session").len(), 1);
    has(&one("session"), &[("gen_ai.conversation.id", "mine")]);
    has(
        &one("session invoke_agent"),
        &[
            ("gen_ai.operation.name", "invoke_agent"),
            ("gen_ai.provider.name", "simulator"),
            ("gen_ai.request.model", "simulated"),
            ("gen_ai.conversation.id", "mine"),
            ("greenroom.run", "0"),
            ("greenroom.run.outcome", "completed"),
            ("greenroom.run.steps", "2"),
        ],
    );
    has(&one("session invoke_agent step"), &[("greenroom.step", "1")]);
    let chats = collected.at("session invoke_agent step chat");
    has(
        &chats[0].fields,
        &[
            ("otel.kind", "client"),
            ("otel.name", "chat simulated"),
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "simulator"),
            ("gen_ai.request.model", "simulated"),
            ("gen_ai.response.model", "simulated"),
            ("gen_ai.conversation.id", "mine"),
            ("gen_ai.request.temperature", "0.5"),
            ("gen_ai.request.max_tokens", "900"),
            ("gen_ai.response.finish_reasons", "tool_calls"),
            ("greenroom.purpose", "step"),
        ],
    );
    assert!(!chats[0].fields.contains_key("error.type"));
    // The second call failed and was retried, in the same step.
    has(&chats[1].fields, &[("error.type", "overloaded")]);
    assert_eq!(chats[1].parent, chats[2].parent);
    let answered = &model.requests()[0];
    for (name, tokens) in [("gen_ai.usage.input_tokens", 1), ("gen_ai.usage.output_tokens", 1)] {
        let value: u64 = chats[0].fields[name].parse().unwrap();
        assert!(value >= tokens, "{name}: {value} for {:?}", answered.call);
    }
    has(
        &one("session invoke_agent step execute_tool"),
        &[
            ("otel.name", "execute_tool look"),
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", "look"),
            ("gen_ai.tool.type", "function"),
        ],
    );
    assert!(one("session invoke_agent step execute_tool").contains_key("gen_ai.tool.call.id"));
    has(
        &one("session invoke_agent compaction"),
        &[
            ("greenroom.compaction.trigger", "threshold"),
            ("greenroom.compaction.outcome", "completed"),
            ("gen_ai.conversation.id", "mine"),
        ],
    );
    has(
        &one("session invoke_agent compaction chat"),
        &[("greenroom.purpose", "summary"), ("gen_ai.operation.name", "chat")],
    );
    assert!(!collected.at("session invoke_agent store.append").is_empty());
    assert!(!collected.at("session store.append").is_empty());
    let open: Vec<&Seen> = collected.spans.iter().filter(|span| !span.is_closed).collect();
    assert!(open.is_empty(), "what began has ended: {open:?}");

    let text = format!("{collected:?}");
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret}");
    }
    // The decisions, with their numbers.
    for line in [
        "a run starts", "the context is measured", "the model answered", "a tool ended",
        "the model call failed", "the call is made again after a wait", "is a compaction due?",
        "the plan of the compaction", "the compaction ended", "the run ended",
    ] {
        assert!(text.contains(line), "{line}");
    }
}

fn wait_reasons(collected: &Collected, path: &str) -> Vec<String> {
    collected.at(path).iter().map(|span| span.fields["greenroom.wait.reason"].clone()).collect()
}

/// The spans of a program around its prompts: a run is a child of its caller's, and a queued one follows from
/// it.
#[tokio::test(start_paused = true)]
async fn a_run_belongs_to_the_span_of_its_caller() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let model = simulator(Function(|_: &_, _: CallInfo| Said::text("well").after_ms(1_000)), 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("mine", &agent(50_000)).await.unwrap();
    let at_once = tracing::info_span!("http_request").in_scope(|| session.prompt("one").into_future());
    let waits = tracing::info_span!("other_request").in_scope(|| session.prompt("two").into_future());
    let (one, two) = tokio::join!(at_once, waits);
    one.unwrap();
    two.unwrap();
    session.prompt("three").await.unwrap();
    // An interrupted one is resumed within another span.
    let aborted = session.prompt("four");
    let abort = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        session.abort();
    };
    let (end, ()) = tokio::join!(aborted, abort);
    assert!(matches!(end, Err(Error::Aborted)));
    tracing::info_span!("later_request").in_scope(|| session.resume().into_future()).await.unwrap();
    runtime.shutdown().await.unwrap();
    drop(session);

    let collected = collector.0.lock().unwrap();
    let [at_once] = &collected.at("http_request invoke_agent")[..] else { panic!("{collected:?}") };
    let id = |path: &str| collected.at(path)[0].id;
    assert_eq!(at_once.fields["greenroom.run"], "0");
    assert_eq!(at_once.follows, [id("session")]);
    assert_eq!(collected.at("http_request invoke_agent step chat").len(), 1);
    let of_session = collected.at("session invoke_agent");
    let follows: Vec<_> = of_session.iter().map(|run| run.follows.clone()).collect();
    assert_eq!(follows, [vec![id("other_request")], vec![], vec![], vec![id("later_request")]]);
    let open: Vec<&Seen> = collected.spans.iter().filter(|span| !span.is_closed).collect();
    assert!(open.is_empty(), "what began has ended: {open:?}");
}

/// A program that exports its traces after the shutdown has all spans, on any number of threads.
#[test]
fn after_the_shutdown_no_span_is_open() {
    const RUNTIMES: usize = 100;
    let collector = Collector::default();
    let dispatch = tracing::Dispatch::new(Registry::default().with(collector.clone()));
    let of_threads = dispatch.clone();
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&of_threads)))
        .build()
        .unwrap();
    let one = async |collector: &Collector| {
        let says = |_: &_, call: CallInfo| match call.session_call {
            0 => Said::call("look", &json!({ "what": "it" })),
            _ => Said::text("seen"),
        };
        let agent = agent(50_000).tool("look", |_: Look| async { Ok("there") });
        let runtime = builder(&simulator(Function(says), 50_000)).start().await.unwrap();
        let session = runtime.open("mine", &agent).await.unwrap();
        session.prompt("one").await.unwrap();
        runtime.shutdown().await.unwrap();
        let collected = collector.0.lock().unwrap();
        // "Actor" is ractor's own.
        let is_open = |span: &&Seen| !span.is_closed && span.name != "Actor";
        let open: Vec<&str> = collected.spans.iter().filter(is_open).map(|span| span.name).collect();
        assert_eq!(open, [""; 0]);
    };
    let _guard = tracing::dispatcher::set_default(&dispatch);
    threads.block_on(async {
        for _ in 0..RUNTIMES {
            one(&collector).await;
        }
    });
    let collected = collector.0.lock().unwrap();
    assert_eq!(collected.at("session invoke_agent step").len(), 2 * RUNTIMES);
}

/// A steer or a follow-up that begins a run belongs to its caller like a prompt; one that joins a run, or
/// waits, is linked to it.
#[tokio::test(start_paused = true)]
async fn a_run_is_linked_to_the_spans_of_its_steers_and_follow_ups() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let model = simulator(Function(|_: &_, _: CallInfo| Said::text("well").after_ms(1_000)), 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("mine", &agent(50_000)).await.unwrap();
    let other = session.clone().with_agent(agent(50_000));
    // It begins a run.
    let begins = session.steer("one").instrument(tracing::info_span!("begins")).await.unwrap();
    // It joins that run.
    let joins = session.follow_up("two").instrument(tracing::info_span!("joins")).await.unwrap();
    // It is for another agent, so that it waits.
    let waits = other.follow_up("three").instrument(tracing::info_span!("waits")).await.unwrap();
    for sent in [begins, joins, waits] {
        sent.reply().await.unwrap();
    }
    runtime.shutdown().await.unwrap();
    drop((session, other));

    let collected = collector.0.lock().unwrap();
    let id = |path: &str| collected.at(path)[0].id;
    let [begun] = &collected.at("begins invoke_agent")[..] else { panic!("{collected:?}") };
    assert_eq!(begun.follows, [id("session"), id("joins")]);
    let [waited] = &collected.at("session invoke_agent")[..] else { panic!("{collected:?}") };
    assert_eq!(waited.follows, [id("waits")]);
    let open: Vec<&Seen> = collected.spans.iter().filter(|span| !span.is_closed).collect();
    assert!(open.is_empty(), "what began has ended: {open:?}");
}

#[tokio::test(start_paused = true)]
async fn the_run_of_an_agent_that_is_called_belongs_to_the_call() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let script = Function(|request: &greenroom_simulator::SeenRequest, call: CallInfo| {
        match (request.has_tool("helper"), call.session_call) {
            (true, 0) => Said::call("helper", &json!({ "task": "help" })),
            _ => Said::text("well"),
        }
    });
    let model = simulator(script, 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let helper = sub_agent("helper", agent(50_000)).describe("Helps.");
    let session = runtime.open("boss", &agent(50_000).sub_agent(helper)).await.unwrap();
    session.prompt("go").await.unwrap();
    runtime.shutdown().await.unwrap();
    drop(session);

    let collected = collector.0.lock().unwrap();
    let of_call = collected.at("session invoke_agent step execute_tool invoke_agent");
    let [run] = &of_call[..] else { panic!("{collected:?}") };
    let sessions = collected.at("session");
    let child = sessions.iter().find(|span| span.fields.contains_key("greenroom.session.parent")).unwrap();
    assert_eq!(run.follows, [child.id]);
    let open: Vec<&Seen> = collected.spans.iter().filter(|span| !span.is_closed).collect();
    assert!(open.is_empty(), "what began has ended: {open:?}");
}

#[tokio::test(start_paused = true)]
async fn waits_are_spans() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let limited = Fault::RateLimited(greenroom_simulator::RetryAfter::Seconds(20));
    let script = Function(move |request: &greenroom_simulator::SeenRequest, call: CallInfo| {
        match (request.last_user_text().as_str(), call.session_call) {
            ("limited", 0) => Said::fault(limited.clone()),
            ("fails", 0) => Said::text("").with_fault(Fault::ServerError(503)),
            _ => Said::text("well").after_ms(1_000),
        }
    });
    let model = simulator(script, 50_000);
    let runtime =
        Runtime::builder().provider_with(model.provider(), 1).engine(store()).start().await.unwrap();
    let open = async |id: &str| runtime.open(id, &agent(50_000)).await.unwrap();
    let (a, b) = (open("a").await, open("b").await);
    // One waits for the other to finish.
    let (one, two) = tokio::join!(a.prompt("slow"), b.prompt("slow"));
    one.and(two).unwrap();
    assert_eq!(wait_reasons(&collector.0.lock().unwrap(), "session invoke_agent step chat wait"), ["slots"]);
    open("c").await.prompt("fails").await.unwrap();
    assert_eq!(wait_reasons(&collector.0.lock().unwrap(), "session invoke_agent step wait"), ["retry"]);
    // The provider's requested wait also applies to others, which are aborted while they wait.
    let (limited, other) = (open("d").await, open("e").await);
    let paused = async {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let abort = async {
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            other.abort();
        };
        tokio::join!(other.prompt("slow"), abort).0
    };
    let (ended, aborted) = tokio::join!(limited.prompt("limited"), paused);
    ended.unwrap();
    assert!(matches!(aborted, Err(Error::Aborted)), "{aborted:?}");
    let reasons = wait_reasons(&collector.0.lock().unwrap(), "session invoke_agent step chat wait");
    assert_eq!(reasons, ["slots", "paused"]);
    runtime.shutdown().await.unwrap();
    drop((a, b, limited, other));
    let collected = collector.0.lock().unwrap();
    let open: Vec<&Seen> = collected.spans.iter().filter(|span| !span.is_closed).collect();
    assert!(open.is_empty(), "what began has ended: {open:?}");
}

/// A call waits for the provider's tokens per minute.
#[tokio::test(start_paused = true)]
async fn a_wait_for_tokens_is_a_span() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let model = simulator(Function(|_: &_, _: CallInfo| Said::text("well")), 50_000);
    let runtime = builder(&model).tokens_per_minute(6_000).start().await.unwrap();
    let session = runtime.open("mine", &agent(50_000)).await.unwrap();
    for _ in 0..2 {
        session.prompt("word ".repeat(4_000)).await.unwrap();
    }
    let reasons = wait_reasons(&collector.0.lock().unwrap(), "session invoke_agent step chat wait");
    assert_eq!(reasons, ["tokens"]);
}

/// Two agents that share a cost limit whose remainder pays for one call at a time.
#[tokio::test(start_paused = true)]
async fn a_wait_for_money_is_a_span() {
    const MODEL: &str = "gpt-4o";
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let script = Function(|request: &greenroom_simulator::SeenRequest, call: CallInfo| {
        match (request.has_tool("helper"), call.session_call) {
            (true, 0) => Said::call("helper", &json!({ "task": "the north" }))
                .and_call("helper", &json!({ "task": "the south" })),
            _ => Said::text("well").after_ms(1_000),
        }
    });
    let options =
        SimulatorOptions { provider_name: "openai".into(), window: 50_000, ..SimulatorOptions::new(script) };
    let model = Simulator::new(options);
    let runtime = builder(&model).start().await.unwrap();
    let agent = || Agent::new(MODEL).context_window(50_000);
    let helper = sub_agent("helper", agent()).describe("Helps.");
    let boss = agent().sub_agent(helper).cost_limit_usd(0.016);
    let session = runtime.open("boss", &boss).await.unwrap();
    session.prompt("go").await.unwrap();
    assert_eq!(model.calls(), 4, "each is asked, one after the other");
    let collected = collector.0.lock().unwrap();
    let path = "session invoke_agent step execute_tool invoke_agent step chat wait";
    assert_eq!(wait_reasons(&collected, path), ["budget"]);
}

/// A failed summary is retried after a wait, within its compaction.
#[tokio::test(start_paused = true)]
async fn the_wait_before_a_summary_is_asked_for_again_is_a_span() {
    let collector = Collector::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(collector.clone()));
    let talk = Function(|_: &_, _: CallInfo| Said::text("word ".repeat(300)));
    let asked = std::sync::atomic::AtomicU32::new(0);
    let summaries = Function(move |request: &greenroom_simulator::SeenRequest, call: CallInfo| {
        match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Said::text("").with_fault(Fault::ServerError(503)),
            _ => greenroom_simulator::Script::reply(&Summariser::Obedient, request, call),
        }
    });
    let model = simulator(ByPurpose::new(talk, summaries), 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("mine", &agent(50_000)).await.unwrap();
    for number in 0..6 {
        session.prompt(format!("question {number}")).await.unwrap();
    }
    assert!(session.compact(crate::compaction_fixtures::keep(300)).await.unwrap().is_installed());
    assert_eq!(wait_reasons(&collector.0.lock().unwrap(), "session compaction wait"), ["retry"]);
}

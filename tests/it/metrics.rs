//! Metrics: they agree with the logs, whatever happened; and the files for operators name only metrics that exist.
//!
//! Invariants: counters are compared with what the logs record, which nothing can miss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use greenroom::RunLimits;
use greenroom::prelude::*;
use greenroom_kernel::entry::{EntryKind, Spender};
use greenroom_kernel::{EntryId, Usage};
use greenroom_provider::Catalog;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Fault, Function, SeenRequest, Simulator, SimulatorOptions,
    Summariser,
};
use serde_json::json;

use crate::support::{builder, drain, quiet_injected_panics, reopened};

/// A model with a price in the catalogue.
const MODEL: &str = "gpt-4o";

/// The samples of a text, by series.
struct Samples(BTreeMap<String, f64>);

impl Samples {
    async fn of(runtime: &Runtime) -> Self {
        let text = runtime.metrics().await;
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        });
        Self(samples.collect())
    }

    /// Returns the sum of the series of a metric whose labels contain `label`.
    fn sum(&self, metric: &str, label: &str) -> f64 {
        let of_metric = |series: &str| series.split('{').next() == Some(metric) && series.contains(label);
        self.0.iter().filter(|(series, _)| of_metric(series)).map(|(_, value)| value).sum()
    }

    #[track_caller]
    fn check(&self, expected: &[(&str, &str, f64)]) {
        for (metric, label, expected) in expected {
            let found = self.sum(metric, label);
            assert!(
                (found - expected).abs() < 1e-9,
                "{metric} {label}: {found}, not {expected}: {:#?}",
                self.0
            );
        }
    }
}

/// What the logs of these sessions record.
#[derive(Debug, Default, PartialEq)]
struct Logged {
    runs: BTreeMap<&'static str, u32>,
    compactions: BTreeMap<&'static str, u32>,
    usage: Usage,
    microdollars: u64,
    entries: u64,
}

impl Logged {
    async fn of(runtime: &Runtime) -> Self {
        let mut logged = Self::default();
        let price = Catalog::bundled().find("openai", MODEL).unwrap();
        for session in runtime.sessions().await.unwrap() {
            for entry in runtime.entries(&session.id, EntryId(0)).await.unwrap() {
                logged.entries += 1;
                let (usage, cost) = match &entry.kind {
                    EntryKind::RunEnded { outcome, .. } => {
                        *logged.runs.entry(outcome.as_str()).or_default() += 1;
                        continue;
                    }
                    EntryKind::Message { message, .. } => {
                        match message.as_answer().and_then(|said| said.usage) {
                            Some(usage) => (usage, price.cost_microdollars(&usage)),
                            None => continue,
                        }
                    }
                    EntryKind::CompactionEnded(ended) => {
                        *logged.compactions.entry(ended.outcome.as_str()).or_default() += 1;
                        (ended.summary_usage, ended.cost_microdollars)
                    }
                    EntryKind::Spent(spent) if matches!(spent.by, Spender::SubAgent { .. }) => continue,
                    EntryKind::Spent(spent) => (spent.usage, spent.cost_microdollars),
                    _ => continue,
                };
                logged.usage.add(&usage);
                logged.microdollars += cost.unwrap_or(0);
            }
        }
        logged
    }

    /// Compares with the metrics of the runtime that wrote the logs.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn check(&self, samples: &Samples) {
        for (metric, label, counts) in [
            ("greenroom_runs_total", "outcome", &self.runs),
            ("greenroom_compactions_total", "outcome", &self.compactions),
        ] {
            for (value, count) in counts {
                samples.check(&[(metric, &format!("{label}=\"{value}\""), f64::from(*count))]);
            }
            samples.check(&[(metric, "", counts.values().copied().map(f64::from).sum())]);
        }
        let Usage { input_tokens, cached_tokens, output_tokens, .. } = self.usage;
        samples.check(&[
            ("greenroom_tokens_total", "kind=\"input\"", (input_tokens - cached_tokens) as f64),
            ("greenroom_tokens_total", "kind=\"cached_input\"", cached_tokens as f64),
            ("greenroom_tokens_total", "kind=\"output\"", output_tokens as f64),
            ("greenroom_cost_dollars_total", "", self.microdollars as f64 / 1e6),
            ("greenroom_store_entries_total", "", self.entries as f64),
        ]);
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Calls the tool that the prompt names, once, and answers with text. `fail` fails once and is retried; `refuse` fails for
/// good.
fn model() -> Simulator {
    let failed = AtomicU32::new(0);
    let talk = Function(move |request: &SeenRequest, _: CallInfo| {
        let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        match request.last_user_text().split(' ').next() {
            Some(tool @ ("look" | "invented" | "ask")) if !has_result => Said::call(tool, &json!({})),
            Some("delegate") if !has_result => Said::call("helper", &json!({ "task": "help" })),
            Some("fail") if failed.fetch_add(1, Ordering::Relaxed) == 0 => Said::text("")
                .with_fault(Fault::Http { status: 503, headers: Vec::new(), body: String::new() }),
            Some("refuse") => Said::text("").with_fault(Fault::Http {
                status: 401,
                headers: Vec::new(),
                body: String::new(),
            }),
            Some("slow") => Said::text("done").after_ms(10_000),
            _ => Said::text("word ".repeat(300)),
        }
    });
    Simulator::new(SimulatorOptions {
        window: 6_000,
        provider_name: "openai".to_owned(),
        ..SimulatorOptions::new(ByPurpose::new(talk, Summariser::Obedient))
    })
}

fn agent() -> Agent {
    let helper = Agent::new(MODEL).context_window(6_000);
    Agent::new(MODEL)
        .context_window(6_000)
        .limits(RunLimits { retries_max: 1, ..RunLimits::default() })
        .tool("look", |_: Nothing| async { Ok("rain") })
        .tool("ask", |_: Nothing, cx: ToolContext| async move {
            Ok(cx.ask(Question::text("Who?")).await?.to_string())
        })
        .sub_agent(sub_agent("helper", helper).describe("Helps."))
}

#[tokio::test(start_paused = true)]
async fn counters_agree_with_the_logs() {
    quiet_injected_panics();
    let model = model();
    let strikes = Arc::new(AtomicBool::new(false));
    let probe = Arc::clone(&strikes);
    let runtime = builder(&model)
        .probe(move |_, at| {
            let strikes = at == "agent/model_over" && probe.swap(false, Ordering::Relaxed);
            assert!(!strikes, "injected at {at}");
        })
        .start()
        .await
        .unwrap();
    let mut events = runtime.subscribe(Filter::all());
    let session = runtime.open("a", &agent()).await.unwrap();
    for prompt in ["look", "invented", "delegate", "fail"] {
        session.prompt(prompt).await.unwrap();
    }
    while session.state().await.unwrap().compactions < 2 {
        session.prompt("hello").await.unwrap();
    }
    session.prompt("refuse").await.unwrap_err();
    let aborted = session.prompt("slow").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    aborted.abort();
    aborted.reply().await.unwrap_err();
    strikes.store(true, Ordering::Relaxed);
    session.prompt("hello again").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;

    let samples = Samples::of(&runtime).await;
    let logged = Logged::of(&runtime).await;
    assert!(logged.runs["completed"] >= 10 && logged.compactions["completed"] >= 1, "{logged:?}");
    assert_eq!((logged.runs["failed"], logged.runs["aborted"]), (1, 1));
    logged.check(&samples);
    // And with the events.
    let events = drain(&mut events);
    let count = |wanted: fn(&EventKind) -> bool| {
        u32::try_from(events.iter().filter(|event| wanted(&event.kind)).count()).unwrap()
    };
    let requests = u32::try_from(model.requests().len()).unwrap();
    samples.check(&[
        ("greenroom_tool_calls_total", "", count(|kind| matches!(kind, EventKind::ToolEnd { .. })).into()),
        ("greenroom_tool_calls_total", "tool=\"look\"", 1.0),
        ("greenroom_tool_calls_total", "tool=\"other\",status=\"error\"", 1.0),
        ("greenroom_tool_calls_total", "invented", 0.0),
        (
            "greenroom_model_call_retries_total",
            "",
            count(|kind| matches!(kind, EventKind::Retry { .. })).into(),
        ),
        ("greenroom_model_call_retries_total", "class=\"overloaded\"", 1.0),
        ("greenroom_model_calls_total", "", requests.into()),
        ("greenroom_model_calls_total", "result=\"overloaded\"", 1.0),
        ("greenroom_model_calls_total", "result=\"auth\"", 1.0),
        ("greenroom_model_calls_total", "result=\"cancelled\"", 1.0),
        ("greenroom_lane_wait_seconds_count", "", requests.into()),
        ("greenroom_restarts_total", "actor=\"agent\"", 1.0),
        ("greenroom_run_duration_seconds_count", "outcome=\"aborted\"", 1.0),
        ("greenroom_run_duration_seconds_sum", "outcome=\"aborted\"", 1.0),
        ("greenroom_sessions", "state=\"idle\"", 2.0),
        ("greenroom_subscribers", "", 1.0),
    ]);
    // No series names a session.
    assert!(
        !samples.0.keys().any(|series| series.contains("\"a\"") || series.contains("helper-")),
        "{:?}",
        samples.0
    );
    model.assert_clean();
}

/// What is opened again after a crash is closed as interrupted, and counted once.
#[tokio::test(start_paused = true)]
async fn what_a_crash_left_open_is_counted_where_it_is_closed() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let store = runtime.engine().clone();
    let session = runtime.open("a", &agent()).await.unwrap();
    let _running = session.prompt("slow").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // As a killed process leaves it.
    let left = reopened(&store);
    Samples::of(&runtime).await.check(&[("greenroom_runs_total", "", 0.0)]);
    let next = Runtime::builder().provider(model.provider()).engine(left).start().await.unwrap();
    next.open("a", &agent()).await.unwrap().prompt("hello").await.unwrap();
    Samples::of(&next).await.check(&[
        ("greenroom_runs_total", "outcome=\"interrupted\"", 1.0),
        ("greenroom_runs_total", "outcome=\"completed\"", 1.0),
    ]);
}

/// Sessions and lanes, as they are at the moment.
#[tokio::test(start_paused = true)]
async fn the_state_is_that_of_the_moment() {
    let model = model();
    let runtime =
        builder(&model).in_flight_max(1).idle_after(Duration::from_secs(100)).start().await.unwrap();
    let mut runs = Vec::new();
    for id in ["a", "b", "c"] {
        let session = runtime.open(id, &agent()).await.unwrap();
        runs.push(session.prompt("slow").start().await.unwrap());
    }
    let asking = runtime.open("asking", &agent()).await.unwrap();
    runtime.open("idle", &agent()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    Samples::of(&runtime).await.check(&[
        ("greenroom_sessions", "state=\"working\"", 3.0),
        ("greenroom_sessions", "state=\"idle\"", 2.0),
        ("greenroom_lane_slots", "provider=\"openai\"", 1.0),
        ("greenroom_lane_in_flight", "provider=\"openai\"", 1.0),
        ("greenroom_lane_queued", "provider=\"openai\"", 2.0),
        ("greenroom_inputs", "", 3.0),
    ]);
    for run in runs {
        run.reply().await.unwrap();
    }
    let waiting = asking.prompt("ask").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let samples = Samples::of(&runtime).await;
    samples.check(&[
        ("greenroom_sessions", "state=\"waiting\"", 1.0),
        ("greenroom_lane_in_flight", "provider=\"openai\"", 0.0),
        ("greenroom_lane_queued", "provider=\"openai\"", 0.0),
        ("greenroom_inputs", "", 1.0),
        // The second call waited for the first, and the third for both.
        ("greenroom_lane_wait_seconds_sum", "", 30.0),
    ]);
    tokio::time::sleep(Duration::from_secs(500)).await;
    Samples::of(&runtime)
        .await
        .check(&[("greenroom_sessions", "state=\"asleep\"", 1.0), ("greenroom_sessions", "", 1.0)]);
    let question = asking.questions().await.unwrap().remove(0);
    asking.answer(question.id, "Ada").await.unwrap();
    waiting.reply().await.unwrap();
    // Reading wakes nothing, and the counters outlive the sessions.
    let counted = Samples::of(&runtime).await.sum("greenroom_runs_total", "");
    let left = runtime.clone();
    runtime.shutdown().await.unwrap();
    let samples = Samples::of(&left).await;
    samples.check(&[("greenroom_sessions", "", 0.0), ("greenroom_runs_total", "", counted)]);
}

/// Two runtimes in one process do not share counters.
#[tokio::test(start_paused = true)]
async fn each_runtime_has_its_own() {
    let model = model();
    let (one, other) = (builder(&model).start().await.unwrap(), builder(&model).start().await.unwrap());
    one.open("a", &agent()).await.unwrap().prompt("hello").await.unwrap();
    Samples::of(&one).await.check(&[("greenroom_runs_total", "", 1.0)]);
    Samples::of(&other).await.check(&[("greenroom_runs_total", "", 0.0), ("greenroom_sessions", "", 0.0)]);
}

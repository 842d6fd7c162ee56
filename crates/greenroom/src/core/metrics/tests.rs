//! The count of each event, the bounds of the labels, and the table in the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::entry::{
    CompactionEnded, CompactionOutcome, EntryKind, RunOutcome, Spender, Spent, Trigger,
};
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{
    AssistantMessage, Entry, EntryId, Failure, FailureClass, Message, StopReason, ToolStatus, Usage,
};
use greenroom_provider::Purpose;
use tokio::time::Instant;

use super::families::{Census, LaneState};
use super::names::Names;
use super::{CallResult, CallTimes, Happened, Metrics, Restarted};
use crate::values::state::Status;

/// The value of a series.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().unwrap_or_else(|_| panic!("{series} {line}")))
}

fn check(metrics: &Metrics, expected: &[(&str, f64)]) {
    let text = metrics.text(&Census::default());
    for (series, expected) in expected {
        let value = value(&text, series).unwrap_or_else(|| panic!("no {series} in\n{text}"));
        // Sums of seconds are not exact.
        assert!((value - expected).abs() < 1e-9, "{series} is {value} and not {expected} in\n{text}");
    }
}

fn entry(id: u64, kind: EntryKind) -> Arc<Entry> {
    let (id, origin) = (EntryId(id), None);
    Arc::new(Entry { id, parent: None, at_ms: 0, tokens: 0, reasoning_tokens: 0, origin, kind })
}

fn usage(input_tokens: u64, cached_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, cached_tokens, output_tokens, ..Usage::default() }
}

fn answer(provider: &str, model: &str, usage: Usage) -> EntryKind {
    EntryKind::message(Message::Assistant(AssistantMessage {
        usage: Some(usage),
        ..AssistantMessage::new(Vec::new(), provider, model, StopReason::Stop)
    }))
}

fn run_ended(outcome: RunOutcome) -> EntryKind {
    let window = Window { tokens: None, source: WindowSource::Unknown };
    let (run, context) = (EntryId(0), ContextUsage::new(Measured::default(), window));
    EntryKind::RunEnded { run, outcome, context, bill: Box::default() }
}

fn compaction_ended(outcome: CompactionOutcome, cost_microdollars: Option<u64>) -> EntryKind {
    EntryKind::CompactionEnded(Box::new(CompactionEnded {
        started: EntryId(0),
        trigger: Trigger::Threshold,
        outcome,
        entry: None,
        tokens_before: 9_000,
        tokens_after: 3_000,
        messages_before: 9,
        messages_after: 3,
        messages_removed: 6,
        duration_ms: 1_500,
        waited_ms: 0,
        prepared_ms: None,
        summary_usage: usage(100, 0, 10),
        cost_microdollars,
        recall: None,
    }))
}

/// Everything that is counted, once.
fn everything(metrics: &Metrics) {
    let (provider, model) = ("openai", "gpt-4o");
    let spent =
        |by| EntryKind::Spent(Spent { by, usage: usage(5, 0, 1), cost_microdollars: Some(2_000_000) });
    let below = Spender::SubAgent { session: "below".to_owned() };
    let entries = [
        entry(0, answer("anthropic", "claude", usage(1_000, 400, 50))),
        entry(1, spent(Spender::Calls)),
        entry(2, spent(below)),
        entry(3, compaction_ended(CompactionOutcome::Completed, Some(500_000))),
        entry(4, compaction_ended(CompactionOutcome::Failed { reason: String::new() }, None)),
        entry(5, run_ended(RunOutcome::Completed)),
        entry(6, run_ended(RunOutcome::Failed(Box::new(Failure::new(FailureClass::Auth, "no"))))),
    ];
    metrics.count(Happened::Recorded { entries: &entries, provider, model });
    metrics.count(Happened::RunEnded { outcome: &RunOutcome::Completed, took: Duration::from_secs(3) });
    metrics.count(Happened::CallEntered { provider, waited: Duration::from_millis(20) });
    let sent = Instant::now();
    let times = CallTimes { sent: Some(sent), first: Some(sent + Duration::from_millis(200)) };
    let results =
        [CallResult::Answered, CallResult::Failed(FailureClass::RateLimited), CallResult::Cancelled];
    for result in results {
        let purpose = Purpose::Step;
        metrics.count(Happened::CallEnded { provider, model, purpose, result, times });
    }
    metrics.count(Happened::Retried { class: FailureClass::RateLimited });
    metrics.count(Happened::FellBack);
    let took = Duration::from_millis(50);
    metrics.count(Happened::ToolEnded { tool: Some("look"), status: ToolStatus::Ok, took });
    metrics.count(Happened::ToolEnded { tool: None, status: ToolStatus::Error, took });
    metrics.count(Happened::Appended { entries: 7, is_durable: true, took });
    metrics.count(Happened::Appended { entries: 9, is_durable: false, took });
    metrics.count(Happened::Opened { took });
    metrics.count(Happened::Restarted(Restarted::Agent));
    metrics.count(Happened::SessionFailed);
}

#[tokio::test(start_paused = true)]
async fn each_happening_is_counted() {
    let metrics = Metrics::default();
    everything(&metrics);
    check(
        &metrics,
        &[
            ("greenroom_runs_total{provider=\"openai\",model=\"gpt-4o\",outcome=\"completed\"}", 1.0),
            ("greenroom_runs_total{provider=\"openai\",model=\"gpt-4o\",outcome=\"failed\"}", 1.0),
            ("greenroom_run_duration_seconds_sum{outcome=\"completed\"}", 3.0),
            ("greenroom_run_duration_seconds_bucket{outcome=\"completed\",le=\"2.5\"}", 0.0),
            ("greenroom_run_duration_seconds_bucket{outcome=\"completed\",le=\"5\"}", 1.0),
            // The model of an answer is its own; what else was spent is the session's; what a sub-agent spent is its own
            // session's.
            ("greenroom_tokens_total{provider=\"anthropic\",model=\"claude\",kind=\"input\"}", 600.0),
            ("greenroom_tokens_total{provider=\"anthropic\",model=\"claude\",kind=\"cached_input\"}", 400.0),
            ("greenroom_tokens_total{provider=\"anthropic\",model=\"claude\",kind=\"output\"}", 50.0),
            ("greenroom_tokens_total{provider=\"openai\",model=\"gpt-4o\",kind=\"input\"}", 205.0),
            ("greenroom_cost_dollars_total{provider=\"openai\",model=\"gpt-4o\"}", 2.5),
            ("greenroom_compactions_total{trigger=\"threshold\",outcome=\"completed\"}", 1.0),
            ("greenroom_compactions_total{trigger=\"threshold\",outcome=\"failed\"}", 1.0),
            ("greenroom_compaction_duration_seconds_sum", 3.0),
            ("greenroom_compaction_before_tokens_count", 1.0),
            ("greenroom_compaction_after_tokens_sum", 3_000.0),
            ("greenroom_lane_wait_seconds_count{provider=\"openai\"}", 1.0),
            ("greenroom_model_call_duration_seconds_count{provider=\"openai\",model=\"gpt-4o\"}", 1.0),
            ("greenroom_model_time_to_first_token_seconds_sum{provider=\"openai\",model=\"gpt-4o\"}", 0.6),
            ("greenroom_model_call_retries_total{class=\"rate_limited\"}", 1.0),
            ("greenroom_fallbacks_total", 1.0),
            ("greenroom_tool_calls_total{tool=\"look\",status=\"ok\"}", 1.0),
            ("greenroom_tool_calls_total{tool=\"other\",status=\"error\"}", 1.0),
            ("greenroom_tool_call_duration_seconds_count{tool=\"other\"}", 1.0),
            ("greenroom_store_entries_total", 7.0),
            ("greenroom_store_append_failures_total", 1.0),
            ("greenroom_store_append_duration_seconds_count", 2.0),
            ("greenroom_session_open_duration_seconds_count", 1.0),
            ("greenroom_restarts_total{actor=\"agent\"}", 1.0),
            ("greenroom_restarts_total{actor=\"session\"}", 0.0),
            ("greenroom_session_failures_total", 1.0),
        ],
    );
    let text = metrics.text(&Census::default());
    for result in ["answered", "rate_limited", "cancelled"] {
        let of = "provider=\"openai\",model=\"gpt-4o\",purpose=\"step\"";
        let series = format!("greenroom_model_calls_total{{{of},result=\"{result}\"}}");
        assert_eq!(value(&text, &series), Some(1.0), "{series}");
    }
}

fn census() -> Census {
    let lane = |provider: &str, slots, in_flight, queued| LaneState {
        provider: provider.to_owned(),
        slots,
        in_flight,
        queued,
    };
    Census {
        live: vec![Status::Working, Status::Idle, Status::Working, Status::Waiting],
        asleep: 2,
        failed: 1,
        damaged: 7,
        // An agent's own provider may have the name of another one.
        lanes: vec![lane("a", 16, 3, 1), lane("b", 4, 0, 0), lane("a", 2, 2, 5)],
        inputs: 5,
        inputs_max: Some(9),
        subscribers: 3,
        gaps: 2,
    }
}

#[test]
fn the_state_is_as_of_the_reading() {
    let metrics = Metrics::default();
    let text = metrics.text(&census());
    let expected = [
        ("greenroom_sessions{state=\"working\"}", 2.0),
        ("greenroom_sessions{state=\"idle\"}", 1.0),
        ("greenroom_sessions{state=\"waiting\"}", 1.0),
        ("greenroom_sessions{state=\"compacting\"}", 0.0),
        ("greenroom_sessions{state=\"asleep\"}", 2.0),
        ("greenroom_sessions{state=\"failed\"}", 1.0),
        ("greenroom_lane_slots{provider=\"a\"}", 18.0),
        ("greenroom_lane_in_flight{provider=\"a\"}", 5.0),
        ("greenroom_lane_queued{provider=\"a\"}", 6.0),
        ("greenroom_sessions_damaged", 7.0),
        ("greenroom_inputs", 5.0),
        ("greenroom_inputs_max", 9.0),
        ("greenroom_subscribers", 3.0),
        ("greenroom_subscriber_gaps_total", 2.0),
    ];
    for (series, expected) in expected {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
    let later = metrics.text(&Census { gaps: 3, ..Census::default() });
    assert_eq!(value(&later, "greenroom_lane_queued{provider=\"a\"}"), None, "the lane is gone");
    assert_eq!(value(&later, "greenroom_sessions{state=\"working\"}"), Some(0.0));
    assert_eq!(value(&later, "greenroom_subscriber_gaps_total"), Some(3.0));
}

#[test]
fn names_are_bounded_and_the_first_are_kept() {
    let names = Names::new(2);
    let long = "x".repeat(200);
    for (name, expected) in [
        (&*long, "other"),
        ("a", "a"),
        ("b", "b"),
        ("c", "other"),
        ("a", "a"),
        ("other", "other"),
        ("b", "b"),
    ] {
        assert_eq!(&*names.of(name), expected, "{}", &name[..1]);
    }
}

/// Whatever names occur, the text does not grow beyond a bound.
#[test]
fn a_model_cannot_add_series_without_end() {
    let metrics = Metrics::default();
    let series = |metrics: &Metrics| metrics.text(&Census::default()).lines().count();
    let count = |from: usize, to: usize| {
        for number in from..to {
            let name = format!("name-{number}");
            let took = Duration::ZERO;
            metrics.count(Happened::ToolEnded { tool: Some(&name), status: ToolStatus::Ok, took });
            metrics.count(Happened::CallEntered { provider: &name, waited: took });
            let (provider, model, purpose) = (&*name, &*name, Purpose::Step);
            let (result, times) = (CallResult::Answered, CallTimes::default());
            metrics.count(Happened::CallEnded { provider, model, purpose, result, times });
        }
    };
    count(0, 1_000);
    let bound = series(&metrics);
    count(1_000, 3_000);
    assert_eq!(series(&metrics), bound);
    // Hostile names stay within their line.
    let name = "a\"} 1\nforged_total 7";
    metrics.count(Happened::CallEntered { provider: name, waited: Duration::ZERO });
    let fresh = Metrics::default();
    fresh.count(Happened::CallEntered { provider: name, waited: Duration::ZERO });
    let text = fresh.text(&Census::default());
    assert!(text.contains(r#"provider="a\"} 1\nforged_total 7""#), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
}

/// A metric, as its lines tell.
#[derive(Default)]
struct Told {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Reads the text format strictly: each sample belongs to the family that was announced before it.
fn read(text: &str) -> BTreeMap<String, Told> {
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    let (mut family, mut help) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').expect("a help");
            (family, help) = (name.to_owned(), text.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, family, "the type follows its help");
            let new = Told { kind: kind.to_owned(), help: help.clone(), labels: BTreeSet::new() };
            assert!(told.insert(name.to_owned(), new).is_none(), "{name} is there twice");
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            let _: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let known = told.get_mut(&family).expect("a family");
            let is_histogram = known.kind == "histogram";
            let suffixes: &[&str] = if is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{family}{suffix}")), "{line} in {family}");
            assert_eq!(known.kind == "counter", name.ends_with("_total"), "{line}");
            let names = labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once("=\""));
            known.labels.extend(names.map(|(name, _)| name.to_owned()).filter(|name| name != "le"));
        }
    }
    told
}

/// `docs/operations.md` has all metrics, and no others. `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom schema` writes
/// the table.
#[tokio::test(start_paused = true)]
async fn the_schema_of_metrics_is_documented() {
    let metrics = Metrics::default();
    everything(&metrics);
    let told = read(&metrics.text(&census()));
    assert!(told.len() > 30, "{}", told.len());
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for (name, Told { kind, help, labels }) in &told {
        assert!(help.ends_with('.'), "{name}: {help}");
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        table.push_str(&format!("| `{name}` | {kind} | {labels} | {} |\n", help.trim_end_matches('.')));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (begin, end) = ("<!-- metrics -->\n", "<!-- end of metrics -->");
    let (before, rest) = page.split_once(begin).expect("where the table begins");
    let (_, after) = rest.split_once(end).expect("where it ends");
    let expected = format!("{before}{begin}{table}{end}{after}");
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever changes a metric says so, and the file is written"
    )]
    if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
        std::fs::write(path, &expected).expect("the page can be written");
    }
    assert_eq!(page, expected, "the table is not what is counted; write it with GREENROOM_WRITE_SCHEMAS=1");
}

//! The metrics: their names, labels and buckets, and what each happening adds to them.
//!
//! Invariants: a label has a closed set of values, or one that [`Names`] bounds; no label names a session. Units are
//! seconds, tokens and dollars. `docs/operations.md` has the same table, and a test compares both.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use greenroom_kernel::entry::{CompactionEnded, EntryKind, Spender};
use greenroom_kernel::{Entry, ToolStatus, Usage, bill};
use greenroom_provider::Purpose;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use tokio::time::Instant;

use super::names::Names;
use super::{CallResult, CallTimes, Happened, Restarted};
use crate::core::trace::{name, purpose_name};
use crate::values::state::Status;

/// The maximum number of providers, models and tools that have series of their own.
const PROVIDERS_MAX: usize = 16;
const MODELS_MAX: usize = 64;
const TOOLS_MAX: usize = 128;

/// Bounds of buckets, in seconds.
const RUN_SECONDS: [f64; 13] =
    [0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0];
const CALL_SECONDS: [f64; 11] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
const FIRST_SECONDS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const TOOL_SECONDS: [f64; 10] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];
const WAIT_SECONDS: [f64; 9] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];
const STORE_SECONDS: [f64; 11] = [0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];
/// Bounds of buckets, in tokens.
const SIZE_TOKENS: [f64; 11] = [
    1_000.0, 2_000.0, 4_000.0, 8_000.0, 16_000.0, 32_000.0, 64_000.0, 128_000.0, 256_000.0, 512_000.0,
    1_048_576.0,
];

/// The state of a runtime at one moment.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// What each live session does.
    pub(crate) live: Vec<Status>,
    /// The sessions that sleep while their runs wait for tools.
    pub(crate) asleep: usize,
    /// The sessions that crashed too often.
    pub(crate) failed: usize,
    /// The stored sessions that lost entries, which nobody has accepted.
    pub(crate) damaged: usize,
    pub(crate) lanes: Vec<LaneState>,
    /// The accepted inputs that are not done, and their limit.
    pub(crate) inputs: usize,
    pub(crate) inputs_max: Option<usize>,
    pub(crate) subscribers: usize,
    /// The number of gaps so far.
    pub(crate) gaps: u64,
}

/// The state of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneState {
    pub(crate) provider: String,
    pub(crate) slots: usize,
    pub(crate) in_flight: usize,
    pub(crate) queued: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    provider: Arc<str>,
    model: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProvider {
    provider: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRun {
    provider: Arc<str>,
    model: Arc<str>,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCall {
    provider: Arc<str>,
    model: Arc<str>,
    purpose: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTokens {
    provider: Arc<str>,
    model: Arc<str>,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClass {
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTool {
    tool: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfToolCall {
    tool: Arc<str>,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCompaction {
    trigger: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfActor {
    actor: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBuild {
    version: &'static str,
}

type Histograms<L> = Series<L, Histogram>;

/// A metric family with frequent look-ups. Its first series are found without hashing their labels; usually there are no others.
struct Series<L, M> {
    family: Family<L, M>,
    /// At most [`FIRST_MAX`].
    first: RwLock<Vec<(L, M)>>,
}

/// The number of series that are found without hashing.
const FIRST_MAX: usize = 8;

impl<L: Clone + Hash + Eq, M: Clone> Series<L, M> {
    /// Returns the series with these labels.
    fn get(&self, labels: &L) -> M {
        if let Some((_, metric)) = self.first.read().iter().find(|(known, _)| known == labels) {
            return metric.clone();
        }
        let metric = self.family.get_or_create_owned(labels);
        let mut first = self.first.write();
        if first.len() < FIRST_MAX && first.iter().all(|(known, _)| known != labels) {
            first.push((labels.clone(), metric.clone()));
        }
        metric
    }
}

/// The metrics of a runtime.
pub(super) struct Families {
    registry: Registry,
    providers: Names,
    models: Names,
    tools: Names,
    runs: Series<OfRun, Counter>,
    run_seconds: Histograms<OfOutcome>,
    calls: Series<OfCall, Counter>,
    call_seconds: Histograms<OfModel>,
    first_seconds: Histograms<OfModel>,
    retries: Family<OfClass, Counter>,
    fallbacks: Counter,
    tokens: Series<OfTokens, Counter>,
    dollars: Series<OfModel, Counter<f64, AtomicU64>>,
    tool_calls: Series<OfToolCall, Counter>,
    tool_seconds: Histograms<OfTool>,
    compactions: Family<OfCompaction, Counter>,
    compaction_seconds: Histogram,
    tokens_before: Histogram,
    tokens_after: Histogram,
    wait_seconds: Histograms<OfProvider>,
    append_seconds: Histogram,
    append_failures: Counter,
    stored_entries: Counter,
    open_seconds: Histogram,
    restarts: Family<OfActor, Counter>,
    session_failures: Counter,
    state: Mutex<CurrentState>,
}

/// What is set for each reading. Its lock is held until the text is written.
#[derive(Default)]
struct CurrentState {
    sessions: Family<OfState, Gauge>,
    damaged: Gauge,
    lane_slots: Family<OfProvider, Gauge>,
    lane_in_flight: Family<OfProvider, Gauge>,
    lane_queued: Family<OfProvider, Gauge>,
    inputs: Gauge,
    inputs_max: Family<[(&'static str, &'static str); 0], Gauge>,
    subscribers: Gauge,
    gaps: Counter,
}

impl Default for Families {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("greenroom");
        let r = &mut registry;
        let state = CurrentState {
            sessions: add(r, "sessions", "Sessions in memory, by what they do", Family::default()),
            damaged: add(
                r,
                "sessions_damaged",
                "Stored sessions that lost entries, until the loss is accepted",
                Gauge::default(),
            ),
            lane_slots: add(
                r,
                "lane_slots",
                "Model calls that a provider may have in flight",
                Family::default(),
            ),
            lane_in_flight: add(r, "lane_in_flight", "Model calls in flight", Family::default()),
            lane_queued: add(r, "lane_queued", "Model calls that wait for a slot", Family::default()),
            inputs: add(r, "inputs", "Runs and queued inputs in live sessions", Gauge::default()),
            inputs_max: add(
                r,
                "inputs_max",
                "The limit of greenroom_inputs; absent if there is none",
                Family::default(),
            ),
            subscribers: add(r, "subscribers", "Subscriptions to events", Gauge::default()),
            gaps: add(
                r,
                "subscriber_gaps",
                "Times that events did not fit into a subscriber's queue",
                Counter::default(),
            ),
        };
        let build: Family<OfBuild, Gauge> = add(r, "build_info", "The version; always 1", Family::default());
        build.get_or_create(&OfBuild { version: env!("CARGO_PKG_VERSION") }).set(1);
        let families = Self {
            providers: Names::new(PROVIDERS_MAX),
            models: Names::new(MODELS_MAX),
            tools: Names::new(TOOLS_MAX),
            runs: often(r, "runs", "Ended runs", Family::default()),
            run_seconds: often(
                r,
                "run_duration_seconds",
                "Duration of runs",
                of_labels(|| Histogram::new(RUN_SECONDS)),
            ),
            calls: often(r, "model_calls", "Model calls, retries included", Family::default()),
            call_seconds: often(
                r,
                "model_call_duration_seconds",
                "Duration of answered model calls, without the wait for a slot",
                of_labels(|| Histogram::new(CALL_SECONDS)),
            ),
            first_seconds: often(
                r,
                "model_time_to_first_token_seconds",
                "Time until the first piece of an answer, without the wait for a slot",
                of_labels(|| Histogram::new(FIRST_SECONDS)),
            ),
            retries: add(
                r,
                "model_call_retries",
                "Model calls that failed and are repeated",
                Family::default(),
            ),
            fallbacks: add(r, "fallbacks", "Runs that continue with a fallback model", Counter::default()),
            tokens: often(r, "tokens", "Billed tokens", Family::default()),
            dollars: often(
                r,
                "cost_dollars",
                "Cost in US dollars, as far as prices are known",
                Family::default(),
            ),
            tool_calls: often(r, "tool_calls", "Ended tool calls", Family::default()),
            tool_seconds: often(
                r,
                "tool_call_duration_seconds",
                "Duration of tool calls, hooks and questions included",
                of_labels(|| Histogram::new(TOOL_SECONDS)),
            ),
            compactions: add(r, "compactions", "Ended compactions", Family::default()),
            compaction_seconds: add(
                r,
                "compaction_duration_seconds",
                "Duration of compactions",
                Histogram::new(CALL_SECONDS),
            ),
            tokens_before: add(
                r,
                "compaction_before_tokens",
                "Size of the context before installed compactions",
                Histogram::new(SIZE_TOKENS),
            ),
            tokens_after: add(
                r,
                "compaction_after_tokens",
                "Size of the context after installed compactions",
                Histogram::new(SIZE_TOKENS),
            ),
            wait_seconds: often(
                r,
                "lane_wait_seconds",
                "Time that model calls waited for a slot, and for limits and pauses of the provider",
                of_labels(|| Histogram::new(WAIT_SECONDS)),
            ),
            append_seconds: add(
                r,
                "store_append_duration_seconds",
                "Time until an append is durable",
                Histogram::new(STORE_SECONDS),
            ),
            append_failures: add(
                r,
                "store_append_failures",
                "Appends that the store refused",
                Counter::default(),
            ),
            stored_entries: add(r, "store_entries", "Entries that were appended", Counter::default()),
            open_seconds: add(
                r,
                "session_open_duration_seconds",
                "Time to read a session's log and start its actors",
                Histogram::new(STORE_SECONDS),
            ),
            restarts: add(r, "restarts", "Actors that crashed and were replaced", Family::default()),
            session_failures: add(
                r,
                "session_failures",
                "Sessions that crashed too often and were given up",
                Counter::default(),
            ),
            state: Mutex::new(state),
            registry,
        };
        // A series that appears with its first restart would have no increase.
        let actors = [Restarted::Session, Restarted::Agent, Restarted::UsageTracker, Restarted::Compactor];
        for actor in actors {
            let _ = families.restarts.get_or_create(&OfActor { actor: actor.name() });
        }
        families
    }
}

/// Registers a metric.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// As [`add`], for a family that is asked for often.
fn often<L: Clone + Hash + Eq, M>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    family: Family<L, M>,
) -> Series<L, M>
where
    Family<L, M>: Metric,
{
    Series { family: add(registry, name, help, family), first: RwLock::default() }
}

fn of_labels<L: Clone + Hash + Eq>(new: fn() -> Histogram) -> Family<L, Histogram> {
    Family::new_with_constructor(new)
}

impl Restarted {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Agent => "agent",
            Self::UsageTracker => "usage_tracker",
            Self::Compactor => "compactor",
        }
    }
}

impl Families {
    pub(super) fn count(&self, happened: Happened<'_>) {
        match happened {
            Happened::Recorded { entries, provider, model } => {
                self.recorded(entries, provider, model);
            }
            Happened::RunEnded { outcome, took } => {
                let labels = OfOutcome { outcome: outcome.as_str() };
                self.run_seconds.get(&labels).observe(took.as_secs_f64());
            }
            Happened::CallEntered { provider, waited } => {
                let labels = OfProvider { provider: self.providers.of(provider) };
                self.wait_seconds.get(&labels).observe(waited.as_secs_f64());
            }
            Happened::CallEnded { provider, model, purpose, result, times } => {
                self.call_ended(self.of_model(provider, model), purpose, result, times);
            }
            Happened::Retried { class } => {
                self.retries.get_or_create(&OfClass { class: class.as_str() }).inc();
            }
            Happened::FellBack => _ = self.fallbacks.inc(),
            Happened::ToolEnded { tool, status, took } => self.tool_ended(tool, status, took),
            Happened::Appended { entries, is_durable, took } => {
                self.append_seconds.observe(took.as_secs_f64());
                if is_durable {
                    self.stored_entries.inc_by(entries as u64);
                } else {
                    self.append_failures.inc();
                }
            }
            Happened::Opened { took } => self.open_seconds.observe(took.as_secs_f64()),
            Happened::Restarted(actor) => {
                self.restarts.get_or_create(&OfActor { actor: actor.name() }).inc();
            }
            Happened::SessionFailed => _ = self.session_failures.inc(),
        }
    }

    fn of_model(&self, provider: &str, model: &str) -> OfModel {
        OfModel { provider: self.providers.of(provider), model: self.models.of(model) }
    }

    fn call_ended(&self, of: OfModel, purpose: Purpose, result: CallResult, times: CallTimes) {
        let CallTimes { sent, first } = times;
        if let (Some(sent), Some(first)) = (sent, first) {
            self.first_seconds.get(&of).observe(first.duration_since(sent).as_secs_f64());
        }
        let result = match result {
            CallResult::Answered => {
                if let Some(sent) = sent {
                    let took = Instant::now().duration_since(sent);
                    self.call_seconds.get(&of).observe(took.as_secs_f64());
                }
                "answered"
            }
            CallResult::Failed(class) => class.as_str(),
            CallResult::Cancelled => "cancelled",
        };
        let OfModel { provider, model } = of;
        let labels = OfCall { provider, model, purpose: purpose_name(purpose), result };
        self.calls.get(&labels).inc();
    }

    fn tool_ended(&self, tool: Option<&str>, status: ToolStatus, took: Duration) {
        // A name that the agent does not have is the model's invention.
        let tool = tool.map_or_else(|| self.tools.other(), |tool| self.tools.of(tool));
        let seconds = OfTool { tool: Arc::clone(&tool) };
        self.tool_seconds.get(&seconds).observe(took.as_secs_f64());
        let status = match status {
            ToolStatus::Ok => "ok",
            ToolStatus::Error => "error",
            ToolStatus::Interrupted => "interrupted",
        };
        self.tool_calls.get(&OfToolCall { tool, status }).inc();
    }

    /// Counts what a log records: the ends of runs and compactions, and what was spent.
    fn recorded(&self, entries: &[Arc<Entry>], provider: &str, model: &str) {
        let mut summariser = None;
        for entry in entries {
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "all other entries spend nothing and end nothing"
            )]
            match &entry.kind {
                EntryKind::RunEnded { outcome, .. } => {
                    let OfModel { provider, model } = self.of_model(provider, model);
                    self.runs.get(&OfRun { provider, model, outcome: outcome.as_str() }).inc();
                }
                EntryKind::Message { message, .. } => {
                    if let Some(answer) = message.as_answer() {
                        self.spent(entry, &answer.provider, &answer.model);
                    }
                }
                EntryKind::Compaction(compaction) => {
                    summariser = Some(compaction.model.as_str()).filter(|model| !model.is_empty());
                }
                EntryKind::CompactionEnded(ended) => {
                    self.compaction_ended(ended);
                    self.spent(entry, provider, summariser.take().unwrap_or(model));
                }
                // A sub-agent's session counts its own spending.
                EntryKind::Spent(spent) if matches!(spent.by, Spender::SubAgent { .. }) => {}
                EntryKind::Spent(_) => self.spent(entry, provider, model),
                _ => {}
            }
        }
    }

    fn compaction_ended(&self, ended: &CompactionEnded) {
        let labels = OfCompaction { trigger: name(&ended.trigger), outcome: ended.outcome.as_str() };
        self.compactions.get_or_create(&labels).inc();
        self.compaction_seconds.observe(Duration::from_millis(ended.duration_ms).as_secs_f64());
        if ended.outcome.is_installed() {
            self.tokens_before.observe(as_f64(ended.tokens_before));
            self.tokens_after.observe(as_f64(ended.tokens_after));
        }
    }

    /// Counts what an entry bills, by the rule of the session's bill.
    fn spent(&self, entry: &Entry, provider: &str, model: &str) {
        let Some((usage, cost_microdollars)) = bill::spent(entry) else { return };
        let of = self.of_model(provider, model);
        let Usage { input_tokens, cached_tokens, output_tokens, .. } = usage;
        let kinds = [
            ("input", input_tokens.saturating_sub(cached_tokens)),
            ("cached_input", cached_tokens),
            ("output", output_tokens),
        ];
        for (kind, tokens) in kinds.into_iter().filter(|(_, tokens)| *tokens > 0) {
            let (provider, model) = (Arc::clone(&of.provider), Arc::clone(&of.model));
            self.tokens.get(&OfTokens { provider, model, kind }).inc_by(tokens);
        }
        if let Some(cost) = cost_microdollars {
            self.dollars.get(&of).inc_by(as_f64(cost) / 1e6);
        }
    }

    pub(super) fn text(&self, census: &Census) -> String {
        let state = self.state.lock();
        state.set(census, &self.providers);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).expect("a string can be written to");
        text
    }
}

impl CurrentState {
    fn set(&self, census: &Census, providers: &Names) {
        let Census { live, asleep, failed, damaged, lanes, inputs, inputs_max, subscribers, gaps } = census;
        let live = |status: Status| live.iter().filter(|other| **other == status).count();
        let states = [
            ("idle", live(Status::Idle)),
            ("working", live(Status::Working)),
            ("waiting", live(Status::Waiting)),
            ("compacting", live(Status::Compacting)),
            ("asleep", *asleep),
            ("failed", *failed),
        ];
        for (state, sessions) in states {
            self.sessions.get_or_create(&OfState { state }).set(as_i64(sessions));
        }
        self.damaged.set(as_i64(*damaged));
        let gauges = [&self.lane_slots, &self.lane_in_flight, &self.lane_queued];
        gauges.iter().for_each(|gauge| gauge.clear());
        for lane in lanes {
            let labels = OfProvider { provider: providers.of(&lane.provider) };
            for (gauge, count) in gauges.iter().zip([lane.slots, lane.in_flight, lane.queued]) {
                // Agents may have providers of their own with the same name.
                gauge.get_or_create(&labels).inc_by(as_i64(count));
            }
        }
        self.inputs.set(as_i64(*inputs));
        if let Some(max) = inputs_max {
            self.inputs_max.get_or_create(&[]).set(as_i64(*max));
        }
        self.subscribers.set(as_i64(*subscribers));
        self.gaps.inc_by(gaps.saturating_sub(self.gaps.get()));
    }
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a number of tokens or micro-dollars")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

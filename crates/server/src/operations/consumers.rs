//! Operations on consumers: programs elsewhere that process every durable event at least once.
//!
//! Invariants: a read returns what follows the committed events; the names of a client that is confined to a label are
//! its own, and its consumers read that label alone; a consumer stays open for a while after a read, so that the next
//! one need not look through all sessions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use greenroom::{Consumer, ConsumerSummary, Error, Event, Position, Runtime};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Answer, CallScope, Label, Operation, Performed, Reach, Refused, Right, Route, Verb};

/// How long a consumer stays open without a read.
const OPEN_FOR: Duration = Duration::from_secs(60);
/// The maximum number of events in one answer.
const EVENTS_MAX: u32 = 1_000;
/// About the most bytes in one answer.
const BYTES_MAX: usize = 4 << 20;
/// The longest wait for an event.
const WAIT_MS_MAX: u64 = 60_000;

/// The consumers that were read a short while ago. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OpenConsumers {
    known: Arc<Mutex<HashMap<String, Arc<Slot>>>>,
    stop: CancellationToken,
}

/// The place of one consumer.
#[derive(Debug)]
struct Slot {
    /// Locked while it is read.
    held: tokio::sync::Mutex<Option<Held>>,
    /// The number of reads and deletions that were begun: each ends the wait of an older read, whose client may be gone.
    reads: watch::Sender<u64>,
}

/// An open consumer.
#[derive(Debug)]
struct Held {
    consumer: Consumer,
    labels: BTreeMap<String, String>,
    used: Instant,
}

impl OpenConsumers {
    /// None are open. Once `stop` is cancelled, no read waits any longer.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self { known: Arc::default(), stop }
    }

    /// Returns the place of a consumer, and closes those that were not read for a while.
    fn slot(&self, name: &str) -> Arc<Slot> {
        let now = Instant::now();
        let is_used = |slot: &Arc<Slot>| match slot.held.try_lock() {
            Ok(held) => {
                // A place that another read has taken out is kept until that read is over.
                Arc::strong_count(slot) > 1
                    || held.as_ref().is_some_and(|held| now.duration_since(held.used) < OPEN_FOR)
            }
            Err(_) => true,
        };
        let mut known = self.known.lock();
        known.retain(|_, slot| is_used(slot));
        let new = || Arc::new(Slot { held: tokio::sync::Mutex::default(), reads: watch::Sender::new(0) });
        Arc::clone(known.entry(name.to_owned()).or_insert_with(new))
    }

    /// Closes all of them.
    pub(crate) fn close(&self) {
        self.known.lock().clear();
    }
}

/// Reads the durable events that a consumer has not committed, and commits those of an earlier read. It waits for the
/// first one. An event that is not committed comes again.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadConsumer {
    /// The consumer's name; a new one begins with the oldest events.
    pub name: String,
    /// The labels of the sessions that it reads, with the sub-agents below them; all sessions if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The `position` of an earlier answer, if all of its events were processed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The maximum number of events, 1 to 1,000.
    #[serde(default = "events_max")]
    #[schemars(range(min = 1, max = 1_000))]
    pub max: u32,
    /// How long to wait for the first event, in milliseconds, at most 60,000.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pub wait_ms: u64,
}

fn events_max() -> u32 {
    100
}

/// Events for a consumer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ConsumerEvents {
    /// The events, in the order of each session's log; none if there were none in time.
    pub events: Vec<Arc<Event>>,
    /// The position after them, to be committed; absent without events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
}

impl Operation for ReadConsumer {
    operation!(
        "consumer/read",
        Some(Route {
            verb: Verb::Post,
            path: "/consumers/{name}/read",
            right: Right::Read,
            reach: Reach::Label,
        }),
        ConsumerEvents
    );
    const TAKES_TIME: bool = true;
    const WAITS: bool = true;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        if !(1..=EVENTS_MAX).contains(&self.max) || self.wait_ms > WAIT_MS_MAX {
            let reason = format!("`max` must be 1 to {EVENTS_MAX}, and `wait_ms` at most {WAIT_MS_MAX}");
            return Err(Refused::Parameters(reason));
        }
        let commit = self.commit.as_deref().map(|text| {
            let wrong = || {
                Refused::Parameters(format!(
                    "commit={text:?} is not a position; send the `position` of an earlier response"
                ))
            };
            Position::parse(text).ok_or_else(wrong)
        });
        let commit = commit.transpose()?;
        Ok(Answer::Later(Box::pin(read(self, commit, scope))))
    }
}

async fn read(
    wanted: ReadConsumer,
    commit: Option<Position>,
    scope: CallScope,
) -> Result<ConsumerEvents, Refused> {
    let name = scope.consumer_name(&wanted.name);
    let mut labels = wanted.labels;
    if let Some(Label { name, value }) = scope.within.as_deref()
        && labels.insert(name.clone(), value.clone()).is_some_and(|given| given != *value)
    {
        return Err(Refused::Parameters(format!("the client is confined to the label {name}={value}")));
    }
    let slot = scope.consumers.slot(&name);
    slot.reads.send_modify(|reads| *reads += 1);
    let mut newer = slot.reads.subscribe();
    let mut held = slot.held.lock().await;
    let mut consumer = match held.take().filter(|held| held.labels == labels) {
        Some(held) => held.consumer,
        None => begin(&scope.runtime, &name, &labels).await?,
    };
    if let Some(commit) = commit {
        consumer.commit_to(&commit).await?;
    }
    if !consumer.is_committed() {
        // What was returned and not committed comes again; what was committed elsewhere does not come.
        drop(consumer);
        consumer = begin(&scope.runtime, &name, &labels).await?;
    }
    let until = Instant::now() + Duration::from_millis(wanted.wait_ms);
    let (mut events, mut position, mut bytes, mut has_waited) = (Vec::new(), Position::default(), 0, false);
    while events.len() < wanted.max as usize && bytes < BYTES_MAX {
        match consumer.try_next().await {
            Ok(Some(event)) => {
                position.pass(&event);
                bytes += event.kind.weight();
                events.push(event);
            }
            Ok(None) if events.is_empty() && !has_waited => {
                has_waited = true;
                tokio::select! {
                    first = timeout_at(until, consumer.next()) => match first {
                        Ok(Ok(Some(event))) => {
                            position.pass(&event);
                            events.push(event);
                        }
                        Ok(Err(error)) => return Err(error.into()),
                        Ok(Ok(None)) | Err(_) => break,
                    },
                    () = scope.consumers.stop.cancelled() => break,
                    _ = newer.changed() => break,
                }
            }
            // A log that cannot be read does not hold up the others.
            Err(error) if !events.is_empty() => {
                tracing::warn!(%error, consumer = name, "a session's events could not be read");
                break;
            }
            Err(error) => return Err(error.into()),
            Ok(None) => break,
        }
    }
    let position = (!events.is_empty()).then(|| position.to_string());
    if !scope.consumers.stop.is_cancelled() {
        *held = Some(Held { consumer, labels, used: Instant::now() });
    }
    Ok(ConsumerEvents { events, position })
}

async fn begin(runtime: &Runtime, name: &str, labels: &BTreeMap<String, String>) -> Result<Consumer, Error> {
    let mut consumer = runtime.consumer(name).await?;
    for (name, value) in labels {
        consumer = consumer.label(name, value);
    }
    Ok(consumer)
}

impl CallScope {
    /// The name under which the runtime knows a client's consumer.
    fn consumer_name(&self, name: &str) -> String {
        match &self.within {
            Some(label) => format!("{}{name}", own(label)),
            None => name.to_owned(),
        }
    }
}

/// Returns the prefix of the names of a confined client's consumers. No label's prefix is the beginning of another's.
fn own(label: &Label) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('=', "%3D").replace('/', "%2F");
    format!("{}={}/", escaped(&label.name), escaped(&label.value))
}

/// The consumers that have committed events, and how far each is behind.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListConsumers {}

/// Consumers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ConsumersListed {
    /// The consumers, in the order of their names.
    pub consumers: Vec<ConsumerSummary>,
}

impl Operation for ListConsumers {
    operation!("consumer/list", Route::read_within(Reach::Label, "/consumers"), ConsumersListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let mut consumers = scope.runtime.consumers().await?;
        if let Some(label) = &scope.within {
            let own = own(label);
            consumers.retain_mut(|consumer| match consumer.name.strip_prefix(&own) {
                Some(name) => {
                    consumer.name = name.to_owned();
                    true
                }
                None => false,
            });
        }
        Ok(Answer::Now(ConsumersListed { consumers }))
    }
}

/// Forgets what a consumer has committed. The next read of that name begins with the oldest events.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteConsumer {
    /// The consumer's name.
    pub name: String,
}

/// The consumer is forgotten.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ConsumerDeleted {
    /// Whether it was known.
    pub was_known: bool,
}

impl Operation for DeleteConsumer {
    operation!(
        "consumer/delete",
        Some(Route {
            verb: Verb::Delete,
            path: "/consumers/{name}",
            right: Right::Administer,
            reach: Reach::Label,
        }),
        ConsumerDeleted
    );
    const ACCESS: super::Access = super::Access::Modify;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let name = scope.consumer_name(&self.name);
        let slot = scope.consumers.slot(&name);
        // Ends a read that waits for events.
        slot.reads.send_modify(|reads| *reads += 1);
        let mut held = slot.held.lock().await;
        *held = None;
        Ok(Answer::Now(ConsumerDeleted { was_known: scope.runtime.delete_consumer(&name).await? }))
    }
}

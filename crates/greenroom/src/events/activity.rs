//! The current activity of live sessions, for observers.
//!
//! Invariants: an activity is a fold of the published events, so it agrees with them; reading it opens no
//! session and wakes none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::events::event::{Delta, Event, EventKind};
use crate::events::message_view::Role;
use crate::values::state::State;

#[cfg(test)]
mod tests;

/// The current progress of a session's work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Activity {
    /// When the current run, or the compaction between runs, started, in Unix milliseconds; absent if nothing
    /// is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The current step of the run, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The names of the tools in progress, in the order of their starts.
    #[serde(default)]
    pub tools: Vec<String>,
    /// The position of its model call in the provider's queue, from 1; absent if the call is not queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<u64>,
}

/// A session that is live, or that sleeps during a run: see
/// [`Runtime::live_sessions`](crate::Runtime::live_sessions).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LiveSession {
    /// The session's state.
    #[serde(flatten)]
    pub state: State,
    /// The session's current activity.
    pub activity: Activity,
    /// Whether the session sleeps, without actors, while its run waits.
    pub is_asleep: bool,
    /// The session's title, or else the start of its first message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The session's labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The session whose agent called this one as a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// When the newest entry was appended, in Unix milliseconds; absent if the log is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_ms: Option<u64>,
}

/// A snapshot of a session's work in progress that its log does not contain yet, for a program that joins
/// midway.
///
/// A program that shows a session subscribes first, then requests this snapshot, shows [`Self::events`], and
/// skips the events of its subscription up to this position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct InProgress {
    /// The position in the log of the newest event that the snapshot contains; absent if the log is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The number of the newest transient event since that entry; 0 if there was none.
    pub n: u64,
    /// The transient events that are still valid, in order: the start of the run, its step, the reason why
    /// its call waits, the model's answer so far as one `message_delta` of each kind, and the tools in
    /// progress with their last lines. Each event has its original time.
    pub events: Vec<Event>,
}

impl InProgress {
    /// Whether the snapshot contains this event.
    pub fn contains(&self, event: &Event) -> bool {
        match self.seq {
            Some(seq) => (event.seq, event.n.unwrap_or(0)) <= (seq, self.n),
            None => event.n.is_some_and(|n| n <= self.n),
        }
    }
}

/// A session's work in progress, with the numbers of its events. Empty while nothing is in progress.
#[derive(Debug, Default)]
pub(crate) struct Tracked(Option<Box<Going>>);

#[derive(Debug, Default)]
struct Going {
    /// When the run started.
    run_ms: Option<u64>,
    compaction: Option<(u64, EventKind)>,
    step: Option<(u64, u32, String)>,
    /// Why the call waits, until the wait ends.
    queue: Option<(u64, EventKind)>,
    retry: Option<(u64, EventKind)>,
    /// The model's output since its answer started.
    answer: Option<(u64, Vec<Delta>)>,
    /// The calls in progress.
    calls: Vec<OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    at_ms: u64,
    id: String,
    name: String,
    arguments: String,
    /// The last progress line of the call's tool.
    line: Option<(u64, String)>,
}

impl Tracked {
    /// Applies an event that is being published.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events change nothing of what goes on")]
    pub(crate) fn follow(&mut self, kind: &EventKind, now_ms: impl FnOnce() -> u64) {
        match kind {
            EventKind::RunStart => {
                let compaction = self.0.take().and_then(|going| going.compaction);
                self.0 = Some(Box::new(Going { run_ms: Some(now_ms()), compaction, ..Going::default() }));
            }
            EventKind::RunEnd { .. } => {
                let compaction = self.0.take().and_then(|going| going.compaction);
                self.0 =
                    compaction.map(|began| Box::new(Going { compaction: Some(began), ..Going::default() }));
            }
            EventKind::CompactionStart { .. } => {
                self.0.get_or_insert_default().compaction = Some((now_ms(), kind.clone()));
            }
            EventKind::CompactionEnd(_) => {
                if let Some(going) = &mut self.0 {
                    (going.compaction, going.queue) = (None, None);
                }
                self.0.take_if(|going| going.run_ms.is_none());
            }
            _ => {
                if let Some(going) = &mut self.0 {
                    going.follow(kind, now_ms);
                }
            }
        }
    }

    pub(crate) fn activity(&self) -> Activity {
        let Some(going) = &self.0 else { return Activity::default() };
        Activity {
            since_ms: going.run_ms.or(going.compaction.as_ref().map(|(at_ms, _)| *at_ms)),
            step: going.step.as_ref().map(|(_, step, _)| *step),
            tools: going.calls.iter().map(|call| call.name.clone()).collect(),
            queue_position: going.queue.as_ref().and_then(|(_, queue)| {
                let EventKind::QueueUpdate { position, .. } = queue else { return None };
                Some(*position)
            }),
        }
    }

    /// Returns the events that describe the work in progress, with their times.
    pub(crate) fn events(&self) -> Vec<(u64, EventKind)> {
        self.0.as_ref().map(|going| going.events()).unwrap_or_default()
    }
}

impl Going {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events change nothing of what goes on")]
    fn follow(&mut self, kind: &EventKind, now_ms: impl FnOnce() -> u64) {
        match kind {
            EventKind::StepStart { step, model } => {
                self.step = Some((now_ms(), *step, model.clone()));
                (self.queue, self.retry, self.answer) = (None, None, None);
                self.calls.clear();
            }
            EventKind::QueueUpdate { position: 0, .. } => self.queue = None,
            EventKind::QueueUpdate { .. } => self.queue = Some((now_ms(), kind.clone())),
            EventKind::Retry { .. } => self.retry = Some((now_ms(), kind.clone())),
            EventKind::MessageStart => (self.retry, self.answer) = (None, Some((now_ms(), Vec::new()))),
            EventKind::MessageDelta { delta } => {
                if let Some((_, said)) = &mut self.answer {
                    add(said, delta);
                }
            }
            EventKind::MessageDiscarded => self.answer = None,
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => self.answer = None,
            EventKind::ToolStart { call_id, name, arguments } => self.calls.push(OpenCall {
                at_ms: now_ms(),
                id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
                line: None,
            }),
            EventKind::ToolUpdate { call_id, line, .. } => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.id == *call_id) {
                    call.line = Some((now_ms(), line.clone()));
                }
            }
            EventKind::ToolEnd { call_id, .. } => self.calls.retain(|call| call.id != *call_id),
            _ => {}
        }
    }

    fn events(&self) -> Vec<(u64, EventKind)> {
        let mut events = Vec::new();
        events.extend(self.run_ms.map(|at_ms| (at_ms, EventKind::RunStart)));
        let step = self.step.clone();
        events.extend(step.map(|(at_ms, step, model)| (at_ms, EventKind::StepStart { step, model })));
        events.extend(self.compaction.clone());
        events.extend(self.retry.clone());
        events.extend(self.queue.clone());
        if let Some((at_ms, said)) = &self.answer {
            events.push((*at_ms, EventKind::MessageStart));
            let deltas = said.iter().map(|delta| EventKind::MessageDelta { delta: delta.clone() });
            events.extend(deltas.map(|delta| (*at_ms, delta)));
        }
        for call in &self.calls {
            let (call_id, name) = (call.id.clone(), call.name.clone());
            let started = EventKind::ToolStart { call_id, name, arguments: call.arguments.clone() };
            events.push((call.at_ms, started));
            if let Some((at_ms, line)) = call.line.clone() {
                let (call_id, name) = (call.id.clone(), call.name.clone());
                events.push((at_ms, EventKind::ToolUpdate { call_id, name, line }));
            }
        }
        events
    }
}

/// The initial capacity of a piece of an answer, in bytes: more text of the same kind usually follows.
const PIECE_BYTES: usize = 256;

/// Appends a piece of an answer: to the last piece if both are of one kind.
fn add(said: &mut Vec<Delta>, piece: &Delta) {
    match (said.last_mut(), piece) {
        (Some(Delta::Text(text)), Delta::Text(more)) => text.push_str(more),
        (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) => text.push_str(more),
        (
            Some(Delta::ToolArguments { index, text, .. }),
            Delta::ToolArguments { index: of, name: None, text: more },
        ) if index == of => text.push_str(more),
        _ => {
            let mut first = piece.clone();
            let (Delta::Text(text) | Delta::Reasoning(text) | Delta::ToolArguments { text, .. }) = &mut first;
            text.reserve(PIECE_BYTES.saturating_sub(text.len()));
            said.push(first);
        }
    }
}

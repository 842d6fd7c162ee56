//! What live sessions do at this moment, for those who look on.
//!
//! Invariants: it is a fold of the events that were published, so it says what they said; looking opens and wakes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::events::event::{Delta, Event, EventKind};
use crate::events::message_view::Role;
use crate::values::state::State;

#[cfg(test)]
mod tests;

/// How far the work of a session is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Activity {
    /// When its run began, or its compaction between runs, in unix milliseconds; absent where nothing goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The step of the run, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The names of the tools that are at work, in the order of their starts.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Its model call's place among those that wait for the provider, from 1; absent where it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<u64>,
}

/// A session that is live, or sleeps in the middle of a run: see [`Runtime::live_sessions`](crate::Runtime::live_sessions).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LiveSession {
    /// How it stands.
    #[serde(flatten)]
    pub state: State,
    /// How far its work is.
    pub activity: Activity,
    /// Whether it has given its actors back while its run waits.
    pub is_asleep: bool,
    /// Its title, else how its first message begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The session whose agent called it as a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// When it was last appended to, in unix milliseconds; absent where nothing was said yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_ms: Option<u64>,
}

/// What goes on in a session that no entry of its log says yet, for who joins in the middle of it.
///
/// A program that shows a session subscribes first, then asks for this, shows [`Self::events`], and leaves out what its
/// subscription gives up to this position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct InProgress {
    /// The newest event that is contained: its position in the log; absent where the log is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// And which one since that entry; 0 where there was none.
    pub n: u64,
    /// What was told beside the log and still holds, in order: the start of the run, its step, what its call waits for,
    /// all that the model has said in its answer so far, a `message_delta` for each kind, and the tools at work with their
    /// last lines. Each has the time at which it began.
    pub events: Vec<Event>,
}

impl InProgress {
    /// Whether this event is contained already.
    pub fn contains(&self, event: &Event) -> bool {
        match self.seq {
            Some(seq) => (event.seq, event.n.unwrap_or(0)) <= (seq, self.n),
            None => event.n.is_some_and(|n| n <= self.n),
        }
    }
}

/// What goes on, with what tells its events apart. Nothing is kept while nothing goes on.
#[derive(Debug, Default)]
pub(crate) struct Tracked(Option<Box<Going>>);

#[derive(Debug, Default)]
struct Going {
    /// When the run began.
    run_ms: Option<u64>,
    compaction: Option<(u64, EventKind)>,
    step: Option<(u64, u32, String)>,
    /// What the call waits for, unless the wait is over.
    queue: Option<(u64, EventKind)>,
    retry: Option<(u64, EventKind)>,
    /// What the model has said since it began to answer.
    answer: Option<(u64, Vec<Delta>)>,
    /// The calls under way.
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    at_ms: u64,
    id: String,
    name: String,
    arguments: String,
    /// What its tool reported last.
    line: Option<(u64, String)>,
}

impl Tracked {
    /// Takes note of an event that is published.
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

    /// The events that say what goes on, with their times.
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
            EventKind::ToolStart { call_id, name, arguments } => self.calls.push(Call {
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

/// Adds a piece of an answer to those before it: to the last one, where it goes on with that.
fn add(said: &mut Vec<Delta>, piece: &Delta) {
    match (said.last_mut(), piece) {
        (Some(Delta::Text(text)), Delta::Text(more)) => text.push_str(more),
        (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) => text.push_str(more),
        (
            Some(Delta::ToolArguments { index, text, .. }),
            Delta::ToolArguments { index: of, name: None, text: more },
        ) if index == of => text.push_str(more),
        _ => said.push(piece.clone()),
    }
}

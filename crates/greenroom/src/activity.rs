//! What live sessions do at this moment, for those who look on.
//!
//! Invariants: it is a fold of the events that were published, so it says what they said; looking opens and wakes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::EventKind;
use crate::session::State;

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

/// What goes on, with what tells its events apart.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    /// When the run began.
    run_ms: Option<u64>,
    compaction_ms: Option<u64>,
    step: Option<u32>,
    /// The calls under way: their ids and tools.
    calls: Vec<(String, String)>,
    queue_position: Option<u64>,
}

impl Tracked {
    /// Takes note of an event that is published.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events change nothing of what goes on")]
    pub(crate) fn follow(&mut self, kind: &EventKind, now_ms: impl FnOnce() -> u64) {
        match kind {
            EventKind::RunStart => {
                let compaction_ms = self.compaction_ms;
                *self = Self { run_ms: Some(now_ms()), compaction_ms, ..Self::default() };
            }
            EventKind::RunEnd { .. } => {
                let compaction_ms = self.compaction_ms;
                *self = Self { compaction_ms, ..Self::default() };
            }
            EventKind::StepStart { step, .. } => {
                self.step = Some(*step);
                self.calls.clear();
                self.queue_position = None;
            }
            EventKind::ToolStart { call_id, name, .. } => self.calls.push((call_id.clone(), name.clone())),
            EventKind::ToolEnd { call_id, .. } => self.calls.retain(|(id, _)| id != call_id),
            EventKind::QueueUpdate { position, .. } => {
                self.queue_position = Some(*position).filter(|position| *position > 0);
            }
            EventKind::CompactionStart { .. } => self.compaction_ms = Some(now_ms()),
            EventKind::CompactionEnd(_) => (self.compaction_ms, self.queue_position) = (None, None),
            _ => {}
        }
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity {
            since_ms: self.run_ms.or(self.compaction_ms),
            step: self.step,
            tools: self.calls.iter().map(|(_, name)| name.clone()).collect(),
            queue_position: self.queue_position,
        }
    }
}

//! Small scripts to build tests from.
//!
//! Invariants: a script answers from the request and the call's numbers alone, so a repeated call gets the same reply.

use std::sync::Arc;

use greenroom_provider::Purpose;

use crate::model::{Answer, CallInfo, Script};
use crate::seen::SeenRequest;
use crate::summariser::Summariser;

/// Answers runs with the last user message, and summary requests with an obedient summary.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo;

impl Script for Echo {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        match request.purpose {
            Purpose::Step => Answer::text(request.last_user_text()),
            Purpose::Summary | Purpose::Compaction => Summariser::Obedient.reply(request, call),
        }
    }
}

/// Answers each session's runs with these replies, in order; summary requests with an obedient summary. After
/// the last reply it answers "(the script has ended)".
#[derive(Debug, Clone, Default)]
pub struct Sequence(pub Vec<Answer>);

impl Script for Sequence {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        match request.purpose {
            Purpose::Summary | Purpose::Compaction => Summariser::Obedient.reply(request, call),
            Purpose::Step => usize::try_from(call.session_call)
                .ok()
                .and_then(|index| self.0.get(index))
                .cloned()
                .unwrap_or_else(|| Answer::text("(the script has ended)")),
        }
    }
}

/// A script from a function. It also gets summary requests.
pub struct Function<F>(pub F);

impl<F> Script for Function<F>
where
    F: Fn(&SeenRequest, CallInfo) -> Answer + Send + Sync + 'static,
{
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        (self.0)(request, call)
    }
}

/// One script for runs, another for summaries.
#[derive(Clone)]
pub struct ByPurpose {
    /// Answers runs.
    pub runs: Arc<dyn Script>,
    /// Answers summary requests.
    pub summaries: Arc<dyn Script>,
}

impl ByPurpose {
    /// Combines a script for runs and one for summaries.
    pub fn new(runs: impl Script, summaries: impl Script) -> Self {
        Self { runs: Arc::new(runs), summaries: Arc::new(summaries) }
    }
}

impl Script for ByPurpose {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        match request.purpose {
            Purpose::Step => self.runs.reply(request, call),
            Purpose::Summary | Purpose::Compaction => self.summaries.reply(request, call),
        }
    }
}

//! The tool calls of one answer, as a task: calls that change nothing run at the same time, others one after
//! another in the model's order.
//!
//! Invariants: each call ends with one message to the agent, and the task with one more. How a call ends when it is
//! cancelled or takes too long is decided by the registry.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use greenroom_kernel::ToolCall;
use greenroom_tools::{AppState, Progress, Registry, ToolContext};
use ractor::ActorRef;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::compaction;
use crate::deps::Deps;
use crate::event::EventKind;
use crate::message::{AgentMessage, RunAttempt, SessionMail};
use crate::shared::SessionShared;
use crate::trace;

/// The calls of one answer, and what they are run with.
pub(super) struct ToolTask {
    pub(super) agent: ActorRef<AgentMessage>,
    pub(super) session: ActorRef<SessionMail>,
    pub(super) deps: Arc<Deps>,
    pub(super) shared: Arc<SessionShared>,
    pub(super) stamp: RunAttempt,
    /// The step, as it is traced.
    pub(super) span: Span,
    pub(super) tools: Registry,
    /// What the program gave the agent for its tools.
    pub(super) state: AppState,
    /// How long one call may take.
    pub(super) time_limit: Option<Duration>,
    pub(super) cancel: CancellationToken,
}

impl ToolTask {
    pub(super) async fn run(self, calls: Vec<ToolCall>) {
        let mut rest = calls.as_slice();
        while !rest.is_empty() && !self.cancel.is_cancelled() {
            let together = rest.iter().take_while(|call| self.is_read_only(call)).count().max(1);
            let (now, later) = rest.split_at(together);
            rest = later;
            let mut running: FuturesUnordered<_> = now.iter().map(|call| self.one(call)).collect();
            while running.next().await.is_some() {}
        }
        let _ = self.agent.cast(AgentMessage::ToolsOver { stamp: self.stamp });
    }

    fn is_read_only(&self, call: &ToolCall) -> bool {
        self.tools.get(&call.name).is_none_or(|tool| tool.is_read_only())
    }

    async fn one(&self, call: &ToolCall) {
        let publish = |kind| self.shared.publish_of_run(&self.deps.bus, self.stamp.run, kind);
        publish(EventKind::ToolStart {
            call_id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        });
        let span = trace::tool(&self.span, &self.shared.id, call);
        let began = tokio::time::Instant::now();
        let mut context = ToolContext::new(&*self.shared.id, &call.id).with_state(self.state.clone());
        context.cancel = self.cancel.clone();
        context.progress = self.progress(call);
        context.compaction = compaction::requests_to(&self.session);
        let result = self.tools.run(call, context, self.time_limit).instrument(span.clone()).await;
        trace::tool_ended(&span, &self.shared.id, call, result.status, began.elapsed());
        drop(span);
        publish(EventKind::ToolEnd {
            call_id: call.id.clone(),
            name: call.name.clone(),
            status: result.status,
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        let _ = self.agent.cast(AgentMessage::ToolOver { stamp: self.stamp, result: Box::new(result) });
    }

    fn progress(&self, call: &ToolCall) -> Progress {
        let (deps, shared, run) = (Arc::clone(&self.deps), Arc::clone(&self.shared), self.stamp.run);
        let (call_id, name) = (call.id.clone(), call.name.clone());
        Progress::new(move |line| {
            let (call_id, name) = (call_id.clone(), name.clone());
            shared.publish_of_run(&deps.bus, run, EventKind::ToolUpdate { call_id, name, line })
        })
    }
}

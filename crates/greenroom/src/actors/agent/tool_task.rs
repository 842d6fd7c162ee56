//! The tool calls of one answer, as a task: neighbouring calls whose tools allow it run at the same time, as many of each
//! tool as that allows; others one after another in the model's order.
//!
//! Invariants: each call ends with one message to the agent, and the task with one more. How a call ends when it is
//! cancelled or takes too long is decided by the registry.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use greenroom_kernel::{ToolCall, ToolResult};
use greenroom_tools::{Progress, Registry, ToolContext};
use ractor::ActorRef;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::agent::Agent;
use crate::compaction;
use crate::deps::Deps;
use crate::event::EventKind;
use crate::hooks::tool_call::{Decision, ToolHooks};
use crate::message::{AgentMessage, RunAttempt, SessionMail};
use crate::shared::SessionShared;
use crate::trace;
use crate::waits::Chain;

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
    pub(super) definition: Arc<Agent>,
    /// Who waits for the calls and their hooks.
    pub(super) waiting: Chain,
    pub(super) cancel: CancellationToken,
}

impl ToolTask {
    pub(super) async fn run(self, calls: Vec<ToolCall>) {
        let mut rest = calls.as_slice();
        while !rest.is_empty() && !self.cancel.is_cancelled() {
            let together = rest.iter().take_while(|call| self.parallel_max(call).is_some()).count().max(1);
            let (now, later) = rest.split_at(together);
            rest = later;
            let places: HashMap<&str, Semaphore> =
                now.iter().map(|call| (&*call.name, self.places(call))).collect();
            let mut running: FuturesUnordered<_> =
                now.iter().map(|call| self.in_turn(call, &places[&*call.name])).collect();
            while running.next().await.is_some() {}
        }
        let _ = self.agent.cast(AgentMessage::ToolsOver { stamp: self.stamp });
    }

    /// How many calls of this one's tool may run at the same time; `None`: it runs alone. A call of a tool that is not
    /// there does nothing.
    fn parallel_max(&self, call: &ToolCall) -> Option<usize> {
        self.tools.get(&call.name).map_or(Some(usize::MAX), |tool| tool.parallel_max())
    }

    fn places(&self, call: &ToolCall) -> Semaphore {
        Semaphore::new(self.parallel_max(call).unwrap_or(1).clamp(1, Semaphore::MAX_PERMITS))
    }

    /// Runs a call as soon as its tool has a place for it. One that is cancelled before never began.
    async fn in_turn(&self, call: &ToolCall, places: &Semaphore) {
        let place = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return,
            place = places.acquire() => place,
        };
        self.one(call).await;
        drop(place);
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
        let result = self.with_hooks(call).instrument(span.clone()).await;
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

    /// The result of a call, and of the hooks around it.
    async fn with_hooks(&self, call: &ToolCall) -> ToolResult {
        let hooks = ToolHooks {
            agent: &self.definition,
            deps: &self.deps,
            shared: &self.shared,
            run: self.stamp.run,
            waiting: &self.waiting,
        };
        // An unknown tool is answered by the registry, and nothing runs.
        let decision = match self.tools.get(&call.name) {
            Some(tool) => {
                tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => Decision::Run(call.clone()),
                    decision = hooks.before(call, tool.is_read_only()) => decision,
                }
            }
            None => Decision::Run(call.clone()),
        };
        let began = tokio::time::Instant::now();
        let (called, result, was_run) = match decision {
            // One that was cancelled meanwhile takes no effect.
            Decision::Run(called) => {
                let result = self.run_one(&called).await;
                let is_known = self.tools.get(&called.name).is_some();
                (called, result, is_known)
            }
            Decision::Instead(output) => (call.clone(), Registry::result(call, output), false),
        };
        hooks.after(call, &called, result, was_run, began.elapsed(), &self.cancel).await
    }

    async fn run_one(&self, call: &ToolCall) -> ToolResult {
        let state = self.definition.state.clone();
        let mut context = ToolContext::new(&*self.shared.id, &call.id).with_state(state);
        context.cancel = self.cancel.clone();
        context.progress = self.progress(call);
        context.compaction = compaction::requests_to(&self.session);
        let running = self.tools.run(call, context, self.definition.tool_timeout);
        self.waiting.clone().scope(running).await
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

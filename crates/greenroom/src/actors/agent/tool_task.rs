//! The tool calls of one answer, as a task: calls that change nothing run at the same time, others one after
//! another in the model's order; each ends with one message, and the task with one more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use greenroom_kernel::{ToolCall, ToolResult, ToolStatus};
use greenroom_tools::{Progress, Registry, ToolContext};
use ractor::ActorRef;
use tokio_util::sync::CancellationToken;

use crate::deps::Deps;
use crate::event::EventKind;
use crate::message::{AgentMessage, RunAttempt};
use crate::shared::SessionShared;

/// How long a cancelled tool may take to clean up before it is dropped.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct ToolTask {
    pub(super) agent: ActorRef<AgentMessage>,
    pub(super) deps: Arc<Deps>,
    pub(super) shared: Arc<SessionShared>,
    pub(super) stamp: RunAttempt,
    pub(super) tools: Registry,
    pub(super) timeout: Option<Duration>,
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
        let publish = |kind| self.shared.publish(&self.deps.bus, kind);
        publish(EventKind::ToolStart {
            run: self.stamp.run,
            call_id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        });
        let began = tokio::time::Instant::now();
        let cancel = self.cancel.child_token();
        let context = ToolContext {
            session: self.shared.id.to_string(),
            call_id: call.id.clone(),
            cancel: cancel.clone(),
            progress: self.progress(call),
        };
        let work = self.tools.run(call, context);
        let limit = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(work);
        let result = tokio::select! {
            biased;
            result = &mut work => Some(result),
            () = cancel.cancelled() => tokio::time::timeout(GRACE, &mut work).await.ok(),
            () = limit => {
                cancel.cancel();
                let _ = tokio::time::timeout(GRACE, &mut work).await;
                let timeout = self.timeout.unwrap_or_default();
                Some(ToolResult::synthetic(call, ToolStatus::Error, format!("The call took longer than {timeout:?} and was cancelled.")))
            }
        };
        let result = result.unwrap_or_else(|| ToolResult::interrupted(call));
        publish(EventKind::ToolEnd {
            call_id: call.id.clone(),
            name: call.name.clone(),
            status: result.status,
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        let _ = self.agent.cast(AgentMessage::ToolOver { stamp: self.stamp, result: Box::new(result) });
    }

    fn progress(&self, call: &ToolCall) -> Progress {
        let (deps, shared, call_id) = (Arc::clone(&self.deps), Arc::clone(&self.shared), call.id.clone());
        Progress::new(move |line| {
            shared.publish(&deps.bus, EventKind::ToolUpdate { call_id: call_id.clone(), line })
        })
    }
}

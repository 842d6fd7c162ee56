//! The tool calls of one answer, as a task: adjacent calls run concurrently if their tools allow it, up to
//! the limit of each tool; others run one after another, in the model's order.
//!
//! Invariants: each call that begins ends with one message to the agent, and the task with one more, which is sent
//! together with the last of them and names the calls that did not begin. The registry decides how a call ends that
//! is cancelled or takes too long.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use greenroom_kernel::question::{self, Asker, GivenAnswer, Question, QuestionEnd};
use greenroom_kernel::redact::RedactedLines;
use greenroom_kernel::{EntryId, ToolCall, ToolResult};
use greenroom_tools::{AskError, Pauses, Progress, Questions, Registry, ToolContext};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::actors::compaction_requests;
use crate::actors::tool_hooks::{Decision, ToolHooks};
use crate::agent::Agent;
use crate::core::agent_line::AgentLine;
use crate::core::deps::Deps;
use crate::core::door::Door;
#[cfg(feature = "command-tools")]
use crate::core::kept_files;
use crate::core::mail::Mail;
use crate::core::message::{AgentMessage, AskRequest, PendingCall, RunAttempt, SessionMessage};
use crate::core::metrics::Happened;
use crate::core::ownership;
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;
use crate::limits::waits;
use crate::limits::waits::Chain;
use crate::values::error::Error;

/// The calls of one answer, and their context.
pub(super) struct ToolTask {
    pub(super) line: AgentLine,
    pub(super) deps: Arc<Deps>,
    pub(super) shared: Arc<SessionShared>,
    pub(super) attempt: RunAttempt,
    /// The step's span in the trace.
    pub(super) span: Span,
    pub(super) tools: Registry,
    pub(super) definition: Arc<Agent>,
    /// The sessions that wait for the calls and their hooks.
    pub(super) waiting: Chain,
    pub(super) cancel: CancellationToken,
    /// The calls that were pending when the run was resumed: some of them must not be run again.
    pub(super) pending: Vec<PendingCall>,
    /// The answer with the calls.
    pub(super) answer: Option<EntryId>,
    /// Cancelled when the run is aborted, but not when its agent crashes.
    pub(super) run_cancel: CancellationToken,
    /// What stops the run's time limit.
    pub(super) pauses: Pauses,
}

impl ToolTask {
    pub(super) async fn run(self, calls: Vec<ToolCall>) {
        let mut rest = calls.as_slice();
        let (mut last, mut not_begun) = (None, Vec::new());
        while !rest.is_empty() && !self.cancel.is_cancelled() {
            let together = rest.iter().take_while(|call| self.parallel_max(call).is_some()).count().max(1);
            let (now, later) = rest.split_at(together);
            rest = later;
            if let [call] = now {
                // Boxed, because starting a large task is expensive.
                let over = Box::pin(self.one(call)).await;
                if rest.is_empty() {
                    last = Some(over)
                } else {
                    self.line.send(over.into())
                }
                continue;
            }
            let slots: HashMap<&str, Semaphore> =
                now.iter().map(|call| (&*call.name, self.slots(call))).collect();
            let mut running: FuturesUnordered<_> =
                now.iter().map(|call| self.in_turn(call, &slots[&*call.name])).collect();
            while let Some(over) = running.next().await {
                // The last result is sent together with the end of the task.
                match over {
                    Ok(over) if running.is_empty() && rest.is_empty() => last = Some(over),
                    Ok(over) => self.line.send(over.into()),
                    Err(call) => not_begun.push(call),
                }
            }
        }
        not_begun.extend(rest);
        // A call that an earlier process left may have begun there, or continues later.
        let is_new = |call: &&ToolCall| self.pending.iter().all(|pending| pending.call.id != call.id);
        let not_begun = not_begun.into_iter().filter(is_new).map(|call| call.id.clone()).collect();
        let over = AgentMessage::ToolsOver { attempt: self.attempt, not_begun };
        let line = self.line.clone();
        // The step's span must not outlive the runtime, as for a model call.
        drop(self);
        if let Some(mail) = Mail::of(last.into_iter().chain([over]).collect()) {
            line.send(mail);
        }
    }

    /// Returns how many calls of this call's tool may run concurrently; `None` means that it runs alone. A
    /// call of an unknown tool does nothing.
    fn parallel_max(&self, call: &ToolCall) -> Option<usize> {
        self.tools.get(&call.name).map_or(Some(usize::MAX), |tool| tool.parallel_max())
    }

    fn slots(&self, call: &ToolCall) -> Semaphore {
        Semaphore::new(self.parallel_max(call).unwrap_or(1).clamp(1, Semaphore::MAX_PERMITS))
    }

    /// Runs a call when its tool has a free slot, and returns its end.
    ///
    /// # Errors
    /// The call was cancelled before, and never starts.
    async fn in_turn<'a>(&self, call: &'a ToolCall, slots: &Semaphore) -> Result<AgentMessage, &'a ToolCall> {
        let slot = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(call),
            slot = slots.acquire() => slot,
        };
        let over = self.one(call).await;
        drop(slot);
        Ok(over)
    }

    async fn one(&self, call: &ToolCall) -> AgentMessage {
        let publish = |kind| self.shared.publish_of_run(&self.deps.bus, self.attempt.run, kind);
        publish(EventKind::ToolStart {
            call_id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        });
        let span = trace::tool(&self.span, &self.shared.id, call);
        let began = tokio::time::Instant::now();
        // Awaited in place, because a future that is first stored in a variable is stored twice.
        let mut result = async {
            ownership::may_act(&self.deps, &self.cancel).await;
            if self.is_cut_off(call) { self.cut_off(call).await } else { self.with_hooks(call).await }
        }
        .instrument(span.clone())
        .await;
        self.deps.redactor.result(&mut result, self.is_from_outside(call));
        let (status, took) = (result.status, began.elapsed());
        trace::tool_ended(&span, &self.shared.id, call, status, took);
        drop(span);
        let tool = self.tools.get(&call.name).map(|_| call.name.as_str());
        self.deps.metrics.count(Happened::ToolEnded { tool, status, took });
        publish(EventKind::ToolEnd {
            call_id: call.id.clone(),
            name: call.name.clone(),
            status,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        });
        AgentMessage::ToolOver { attempt: self.attempt, result: Box::new(result) }
    }

    /// Whether the result of the call may contain other texts than the user's own files.
    fn is_from_outside(&self, call: &ToolCall) -> bool {
        !self.tools.get(&call.name).is_some_and(|tool| tool.shows_own_files())
    }

    /// Whether a restart interrupted the call, and its tool must not be run again.
    fn is_cut_off(&self, call: &ToolCall) -> bool {
        let may_have_begun =
            self.pending.iter().any(|pending| pending.call.id == call.id && pending.may_have_begun);
        may_have_begun && !self.tools.get(&call.name).is_some_and(|tool| tool.is_resumable())
    }

    /// Waits for the answers of a call that is not run again, and returns its result.
    async fn cut_off(&self, call: &ToolCall) -> ToolResult {
        let (attempt, call_id) = (self.attempt, call.id.clone());
        let _pauses = self.pauses.pause();
        let handle = self.handle();
        let asked = handle.ask(|reply| SessionMessage::AwaitQuestions { attempt, call_id, reply });
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => ToolResult::interrupted(call),
            asked = asked => match asked {
                Ok(asked) => question::cut_off(call, &asked),
                Err(_) => ToolResult::interrupted(call),
            },
        }
    }

    fn handle(&self) -> Door {
        Door::new(Arc::clone(&self.shared), Arc::clone(&self.deps))
    }

    /// Runs a call with its hooks, and returns the result.
    async fn with_hooks(&self, call: &ToolCall) -> ToolResult {
        let hooks = ToolHooks {
            agent: &self.definition,
            deps: &self.deps,
            shared: &self.shared,
            run: self.attempt.run,
            waiting: &self.waiting,
        };
        let questions = self.questions(call);
        let of_hooks = questions.of_hooks();
        // The registry answers a call of an unknown tool, and nothing runs.
        let decision = match self.tools.get(&call.name) {
            Some(tool) => {
                tokio::select! {
                    biased;
                    // What was decided before the cancellation counts: a refused call was refused.
                    decision = hooks.before(call, &**tool, &of_hooks) => decision,
                    () = self.cancel.cancelled() => Decision::Run(Cow::Borrowed(call)),
                }
            }
            None => Decision::Run(Cow::Borrowed(call)),
        };
        let began = tokio::time::Instant::now();
        let (called, result, was_run) = match decision {
            // A call that was cancelled in the meantime must not start.
            Decision::Run(called) => {
                let ready = match self.lacks_secret(&called) {
                    Some(reason) => Err(reason),
                    None => self.begins(call, &questions).await,
                };
                let result = match ready {
                    Ok(()) => self.run_one(&called, questions).await,
                    Err(reason) => ToolResult::not_run(&called, &reason),
                };
                let is_known = self.tools.get(&called.name).is_some();
                (called, result, is_known)
            }
            Decision::Instead(output) => {
                (Cow::Borrowed(call), Registry::result(call, output, &self.deps.redactor), false)
            }
        };
        if was_run && hooks.agent.hooks.after_tool.is_empty() && called.arguments == call.arguments {
            return result;
        }
        Box::pin(hooks.after(call, &called, result, was_run, began.elapsed(), &self.cancel)).await
    }

    /// Returns why a call must not run: a part of what it would run, look for or write stands for a secret that the model
    /// does not see.
    fn lacks_secret(&self, call: &ToolCall) -> Option<String> {
        self.tools.get(&call.name).filter(|tool| tool.needs_exact_arguments())?;
        let replacement = self.deps.redactor.replacement_in(&call.arguments)?;
        Some(format!(
            "its arguments contain {replacement}, which stands for a secret that you do not see, so the call would not do \
             what it says; use only the text around it, or ask the user to do it"
        ))
    }

    /// If a hook has asked a question, records the tool's start first: until then, the call can be run after
    /// a restart.
    async fn begins(&self, call: &ToolCall, questions: &Questions) -> Result<(), String> {
        if questions.asked() == 0 || self.cancel.is_cancelled() {
            return Ok(());
        }
        let (attempt, call_id) = (self.attempt, call.id.clone());
        let handle = self.handle();
        let started = handle.ask(|reply| SessionMessage::CallStarts { attempt, call_id, reply });
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Ok(()),
            started = started => started.map_err(|error| format!("its start could not be recorded: {error}")),
        }
    }

    /// Returns the interface through which the call and its earlier hooks ask people.
    fn questions(&self, call: &ToolCall) -> Questions {
        let asking = Asking {
            handle: self.handle(),
            shared: Arc::clone(&self.shared),
            attempt: self.attempt,
            call_id: call.id.clone(),
            tool: call.name.clone(),
            run_cancel: self.run_cancel.clone(),
        };
        let asking = Arc::new(asking);
        Questions::new(move |asker, ordinal, question| {
            Arc::clone(&asking).ask(asker, ordinal, question).boxed()
        })
        .pausing(&self.pauses)
    }

    async fn run_one(&self, call: &ToolCall, questions: Questions) -> ToolResult {
        let is_sub_agent = self.definition.sub_agents.iter().any(|sub_agent| sub_agent.name == call.name);
        let _reserved =
            is_sub_agent.then(|| self.shared.reserve_child(&self.deps.ledger, &call.id)).flatten();
        let note = || waits::suspicion(self.shared.published().callers_waiting);
        let (context, time_limit) = (self.context(call, questions.clone()), self.definition.tool_timeout);
        // Boxed, because a large allocation costs more than two small ones.
        let running = Box::pin(self.tools.run_noting(call, context, time_limit, note));
        tokio::select! {
            biased;
            result = self.waiting.clone().scope(running) => {
                questions.end();
                result
            }
            // The call has no end yet, because its question stays open.
            () = self.left_waiting(questions.pauses()) => ToolResult::interrupted(call),
        }
    }

    fn context(&self, call: &ToolCall, questions: Questions) -> ToolContext {
        let session = &*self.shared.id;
        let key = match self.answer {
            Some(answer) => format!("{session}/{answer}/{}", call.id),
            None => format!("{session}/{}", call.id),
        };
        let (cancel, redactor) = (self.cancel.clone(), self.deps.redactor.clone());
        let mut context = ToolContext::of_call(session, &call.id, key, cancel, questions, redactor);
        context.app_state = self.definition.state.clone();
        context.progress = self.progress(call);
        context.compaction = compaction_requests::requests_of(&self.deps, &self.shared);
        #[cfg(feature = "command-tools")]
        {
            context.files = kept_files::of_call(&self.deps, &self.shared, self.attempt.run, self.answer);
        }
        context
    }

    /// Waits until the calls lose their agent while a person is being asked and the run is not aborted.
    async fn left_waiting(&self, asking: &Pauses) {
        self.cancel.cancelled().await;
        let is_aborted = self.run_cancel.is_cancelled() && !self.shared.is_closing();
        if is_aborted || !asking.is_paused() {
            std::future::pending().await
        }
    }

    fn progress(&self, call: &ToolCall) -> Progress {
        let (deps, shared, run) = (Arc::clone(&self.deps), Arc::clone(&self.shared), self.attempt.run);
        let (call_id, name) = (call.id.clone(), call.name.clone());
        let is_from_outside = self.is_from_outside(call);
        let lines = Mutex::new(RedactedLines::default());
        Progress::new(move |mut line| {
            if is_from_outside {
                line = lines.lock().redact(&deps.redactor, line);
            }
            let (call_id, name) = (call_id.clone(), name.clone());
            shared.publish_of_run(&deps.bus, run, EventKind::ToolUpdate { call_id, name, line })
        })
    }
}

/// The interface through which one call asks people.
struct Asking {
    handle: Door,
    shared: Arc<SessionShared>,
    attempt: RunAttempt,
    call_id: String,
    tool: String,
    run_cancel: CancellationToken,
}

impl Asking {
    async fn ask(
        self: Arc<Self>,
        asker: Asker,
        ordinal: u32,
        question: Question,
    ) -> Result<GivenAnswer, AskError> {
        let request = |reply| {
            SessionMessage::Ask(Box::new(AskRequest {
                attempt: self.attempt,
                call_id: self.call_id.clone(),
                tool: self.tool.clone(),
                ordinal,
                asker,
                question,
                reply,
            }))
        };
        let ended = tokio::select! {
            biased;
            ended = self.handle.ask(request) => ended,
            () = self.run_cancel.cancelled() => {
                if self.shared.is_closing() {
                    // The question stays open, and must not appear to have ended.
                    std::future::pending::<()>().await;
                }
                return Err(AskError::Withdrawn);
            }
        };
        match ended {
            Ok(Ok(QuestionEnd::Answered(answer))) => Ok(answer),
            Ok(Ok(QuestionEnd::Expired)) => Err(AskError::Expired),
            Ok(Ok(QuestionEnd::Withdrawn | _)) => Err(AskError::Withdrawn),
            Ok(Err(refused)) => Err(refused),
            // The owner of the question is gone, and this call ends with it.
            Err(Error::Interrupted { .. } | Error::Closed) => std::future::pending().await,
            Err(error) => Err(AskError::NotRecorded(error.to_string())),
        }
    }
}

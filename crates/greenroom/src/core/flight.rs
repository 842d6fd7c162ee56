//! Model calls that were sent: the usage and the cost of calls without a usage report, and the warning for models
//! without a price.
//!
//! Invariants: a call that was sent and not refused is billed once: by its report, and by our own count for
//! what the report omits ([`greenroom_kernel::unreported`]). A call that is cut off, for whatever reason, has
//! no report; dropping its flight reports the cost to the session. An answer that its provider did not finish is
//! billed by the report that it has. A summary is billed with its compaction, or, if that does not take its cost over,
//! when its flight is dropped. The tokens are the same whether or not the price is known.

use std::sync::Arc;

use greenroom_kernel::unreported::{Sent, billable, count_answer_for, count_streamed, missing};
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{AssistantMessage, Messages, ToolSpec, Usage};
use greenroom_provider::{ModelInfo, ReplyEvent, Request, ResentReasoning};
use ractor::ActorRef;

use crate::core::deps::Deps;
use crate::core::message::{RunAttempt, SessionMail, SessionMessage};
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;
use crate::lane::Lane;

/// Room for the text of a short answer, in bytes: it comes in small pieces.
pub(crate) const STREAMED_BYTES: usize = 512;

/// A model call in progress. Dropping it before its end bills the estimated cost to the session.
pub(crate) struct Flight {
    session: ActorRef<SessionMail>,
    /// The run, if the call is a step of one.
    attempt: Option<RunAttempt>,
    /// The model's price, if it is known.
    info: Option<ModelInfo>,
    system: Option<String>,
    tools: Arc<[ToolSpec]>,
    messages: Messages,
    resent: ResentReasoning,
    ratio: Ratio,
    /// The output so far: text, reasoning, and the arguments of calls.
    streamed: String,
    /// The passes of the model that were billed already.
    passes: Usage,
    /// The usage of an answer that its provider did not finish, or of a summary, by its report and our own count.
    known: Option<Usage>,
    /// Whether its answer is a summary, whose cost the budgets count already.
    has_summary: bool,
    is_over: bool,
}

impl Flight {
    /// Starts a flight when a call to this model is sent.
    pub(crate) fn begin(
        session: &ActorRef<SessionMail>,
        attempt: Option<RunAttempt>,
        deps: &Deps,
        lane: &Lane,
        request: &Request,
        info: Option<&ModelInfo>,
    ) -> Box<Self> {
        Box::new(Self {
            session: session.clone(),
            attempt,
            info: info.filter(|info| info.prices.is_some()).cloned(),
            resent: lane.provider.resent_reasoning(&request.settings),
            ratio: deps.learned.ratio(lane.origin(), &request.model),
            system: request.system.clone(),
            tools: Arc::clone(&request.tools),
            messages: request.messages.clone(),
            streamed: String::with_capacity(STREAMED_BYTES),
            passes: Usage::default(),
            known: None,
            has_summary: false,
            is_over: false,
        })
    }

    /// Adds a piece of the answer.
    pub(crate) fn heard(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Text(text)
            | ReplyEvent::Reasoning(text)
            | ReplyEvent::ToolCall { arguments: text, .. } => {
                self.streamed.push_str(text);
            }
            ReplyEvent::Spent(pass) => {
                let pass = billable(*pass);
                self.passes.add(&pass);
                self.tell(pass);
            }
            ReplyEvent::Done(_) | _ => {}
        }
    }

    /// Ends the flight without cost, because the provider refused the call.
    pub(crate) fn refused(mut self) {
        self.is_over = true;
    }

    /// Whether the call has not ended: then dropping the flight reports to the session.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_over
    }

    /// Keeps the usage of an answer that its provider did not finish: dropping the flight bills it.
    pub(crate) fn broke_off(&mut self, answer: &AssistantMessage) {
        let mut spent = self.missing_in(answer);
        spent.add(&answer.usage.map(billable).unwrap_or_default());
        self.known = Some(spent);
    }

    /// Ends the flight with an answer. Usage that the report omits is billed to the session; if the answer is
    /// empty, all of it, because such an answer is not recorded.
    pub(crate) fn answered(mut self, answer: &AssistantMessage) {
        self.is_over = true;
        let mut spent = self.missing_in(answer);
        if answer.is_empty() {
            spent.add(&answer.usage.map(billable).unwrap_or_default());
        }
        self.tell(spent);
    }

    /// Adds usage that the report of a summary omits to the report, by which it is billed. Returns the cost in
    /// micro-dollars, without the passes that were billed. Until [`Self::settle`], dropping the flight bills it.
    pub(crate) fn completed(&mut self, answer: &mut AssistantMessage) -> u64 {
        let missing = self.missing_in(answer);
        if missing.total_tokens() > 0 {
            answer.usage.get_or_insert_default().add(&missing);
        }
        self.known = Some(answer.usage.unwrap_or_default());
        self.has_summary = true;
        answer.usage.and_then(|usage| self.cost(&usage)).unwrap_or(0)
    }

    /// Ends the flight of a summary that is billed with its compaction.
    pub(crate) fn settle(mut self) {
        self.is_over = true;
    }

    fn missing_in(&self, answer: &AssistantMessage) -> Usage {
        let mut reported = self.passes;
        reported.add(&answer.usage.map(billable).unwrap_or_default());
        missing(Some(&reported), self.sent().count_for(&reported), count_answer_for(answer, &reported))
    }

    fn sent(&self) -> Sent<'_> {
        let Self { system, tools, messages, resent, ratio, .. } = self;
        Sent { system: system.as_deref().unwrap_or_default(), tools, messages, resent, ratio: *ratio }
    }

    /// Returns what this usage costs, in micro-dollars, if the price is known.
    fn cost(&self, usage: &Usage) -> Option<u64> {
        self.info.as_ref()?.cost_microdollars(usage)
    }

    fn tell(&self, usage: Usage) {
        if usage.total_tokens() == 0 {
            return;
        }
        let (attempt, cost_microdollars, has_summary) = (self.attempt, self.cost(&usage), self.has_summary);
        let spent = SessionMessage::Spent { attempt, usage, cost_microdollars, has_summary };
        let _ = self.session.cast(spent.into());
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            let spent = self.known.take();
            self.tell(
                spent.unwrap_or_else(|| missing(None, self.sent().count(), count_streamed(&self.streamed))),
            );
        }
    }
}

/// A summary, and its call, which bills it when it is dropped: see [`Flight::settle`].
pub(crate) struct Summarised {
    pub(crate) answer: Box<AssistantMessage>,
    /// `None` if a hook gave the answer.
    pub(crate) flight: Option<Box<Flight>>,
}

/// Warns, once per model, that a cost limit does not apply to calls without a known price.
pub(crate) fn warn_of_no_price(deps: &Deps, shared: &Arc<SessionShared>, lane: &Lane, model: &str) {
    for session in deps.ledger.not_told(shared, model, deps.accounts.limits_cost()) {
        let message = format!(
            "the price of {model} at {} is unknown: its calls do not count towards the cost limit",
            lane.origin()
        );
        tracing::warn!(session = %session.id, "{message}");
        session.publish(&deps.bus, EventKind::Warning { message });
    }
}

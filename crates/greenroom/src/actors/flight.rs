//! Model calls that cost money: what one cost where no report tells it, and what is said where no price is known.
//!
//! Invariants: a call that a provider was sent, and that it did not refuse, is paid for once: by its report, and by our own
//! count for what that leaves out ([`greenroom_kernel::unreported`]). One that is cut off, for whatever reason, has no
//! report, and tells its session so when it is dropped. A model without a known price has no flight.

use std::sync::Arc;

use greenroom_kernel::unreported::{Counted, Sent, count_answer, count_streamed, missing};
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{AssistantMessage, Usage};
use greenroom_provider::{ModelInfo, ReplyEvent, Request, ResentReasoning};
use ractor::ActorRef;

use crate::core::deps::Deps;
use crate::core::message::{RunAttempt, SessionMail, SessionMessage};
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;
use crate::lane::Lane;
use crate::values::model_info::model_info;

/// A model call under way. Dropping it before it is over puts on the session's bill what can be estimated.
pub(crate) struct Flight {
    session: ActorRef<SessionMail>,
    /// The run, where it is a step of one.
    stamp: Option<RunAttempt>,
    info: ModelInfo,
    request: Request,
    resent: ResentReasoning,
    ratio: Ratio,
    /// What came of an answer: text, reasoning, and the arguments of calls.
    streamed: String,
    is_over: bool,
}

impl Flight {
    /// The call is sent. `None` where nothing knows what it costs.
    pub(crate) fn begin(
        session: &ActorRef<SessionMail>,
        stamp: Option<RunAttempt>,
        deps: &Deps,
        lane: &Lane,
        request: &Request,
    ) -> Option<Self> {
        let info = model_info(lane.provider.name(), &request.model).filter(|info| info.prices.is_some())?;
        Some(Self {
            session: session.clone(),
            stamp,
            info,
            resent: lane.provider.resent_reasoning(&request.settings),
            ratio: deps.learned.ratio(lane.origin(), &request.model),
            request: request.clone(),
            streamed: String::new(),
            is_over: false,
        })
    }

    /// A part of the answer came.
    pub(crate) fn heard(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Text(text)
            | ReplyEvent::Reasoning(text)
            | ReplyEvent::ToolCall { arguments: text, .. } => {
                self.streamed.push_str(text);
            }
            ReplyEvent::Done(_) | _ => {}
        }
    }

    /// The provider refused the call, so that it costs nothing.
    pub(crate) fn refused(mut self) {
        self.is_over = true;
    }

    /// Whether it is not over yet: dropping it tells the session.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_over
    }

    /// The call was answered. What the report leaves out is put on the session's bill, and all of it where the answer
    /// says nothing: such an answer is not recorded.
    pub(crate) fn answered(mut self, answer: &AssistantMessage) {
        let mut spent = self.missing_in(answer);
        if answer.is_empty() {
            spent.add(&answer.usage.unwrap_or_default());
        }
        self.tell(spent);
    }

    /// The call was answered with a summary, whose bill is its report: the report, with what it leaves out. Returns the
    /// cost in micro-dollars.
    pub(crate) fn completed(mut self, answer: &mut AssistantMessage) -> u64 {
        let missing = self.missing_in(answer);
        if missing.total_tokens() > 0 {
            answer.usage.get_or_insert_default().add(&missing);
        }
        answer.usage.and_then(|usage| self.info.cost_microdollars(&usage)).unwrap_or(0)
    }

    fn missing_in(&mut self, answer: &AssistantMessage) -> Usage {
        self.is_over = true;
        missing(answer.usage.as_ref(), self.count(), count_answer(answer))
    }

    fn count(&self) -> Counted {
        let Self { request, resent, ratio, .. } = self;
        let Request { system, tools, messages, .. } = request;
        Sent { system: system.as_deref().unwrap_or_default(), tools, messages, resent, ratio: *ratio }.count()
    }

    fn tell(&self, usage: Usage) {
        if usage.total_tokens() == 0 {
            return;
        }
        let (stamp, cost_microdollars) = (self.stamp, self.info.cost_microdollars(&usage));
        let _ = self.session.cast(SessionMessage::Spent { stamp, usage, cost_microdollars }.into());
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.tell(missing(None, self.count(), count_streamed(&self.streamed)));
        }
    }
}

/// Says, once for each model, that a limit in money cannot be kept for calls whose price nobody knows.
pub(crate) fn warn_of_no_price(deps: &Deps, shared: &Arc<SessionShared>, lane: &Lane, model: &str) {
    for session in deps.ledger.not_told(shared, model, deps.purse.is_limited()) {
        let message = format!(
            "nothing knows the price of {model} at {}: its calls do not count towards the cost limit",
            lane.origin()
        );
        tracing::warn!(session = %session.id, "{message}");
        session.publish(&deps.bus, EventKind::Warning { message });
    }
}

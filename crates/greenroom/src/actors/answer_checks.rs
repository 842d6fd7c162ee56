//! Checks of every answer of a model, whichever provider it comes from. The answers of a program's own provider are
//! checked nowhere else.
//!
//! Invariants: an answer has at most [`ANSWER_BYTES_MAX`] of text; it names the provider and the model that were asked, by
//! which it is billed; its usage counts cached tokens as input; and each of its calls has an id that no other call in the
//! conversation has.

use greenroom_kernel::{AssistantMessage, Failure, FailureClass, Messages, Part};
use greenroom_provider::{ANSWER_BYTES_MAX, ProviderError, ReplyEvent, Request, make_ids_unique};

use crate::actors::call_path::no_body;
use crate::lane::Lane;

/// The checks of one answer.
pub(crate) struct AnswerChecks<'a> {
    lane: &'a Lane,
    model: String,
    /// The conversation, unless the provider itself makes the ids of calls unique in it.
    messages: Option<Messages>,
    /// The text so far, in bytes.
    bytes: usize,
}

impl<'a> AnswerChecks<'a> {
    /// Creates the checks of the answer to a request.
    pub(crate) fn new(lane: &'a Lane, request: &Request) -> Self {
        let messages = (!lane.provider.has_unique_ids()).then(|| request.messages.clone());
        Self { lane, model: request.model.clone(), messages, bytes: 0 }
    }

    /// Checks a piece of the answer, and corrects the answer at its end.
    ///
    /// # Errors
    /// The answer is too large.
    pub(crate) fn check(&mut self, event: &mut ReplyEvent) -> Result<(), Box<ProviderError>> {
        match event {
            ReplyEvent::Text(text)
            | ReplyEvent::Reasoning(text)
            | ReplyEvent::ToolCall { arguments: text, .. } => self.bytes += text.len(),
            ReplyEvent::Done(answer) => {
                self.bytes = answer.content.iter().map(text_bytes).sum();
                self.correct(answer);
            }
            ReplyEvent::Spent(usage) => *usage = usage.with_cache_as_input(),
            ReplyEvent::ThinkingDropped { .. } | _ => {}
        }
        if self.bytes > ANSWER_BYTES_MAX {
            let text = format!("the answer was given up: it has more than {ANSWER_BYTES_MAX} bytes of text");
            return Err(no_body(Failure::new(FailureClass::Other, text)));
        }
        Ok(())
    }

    fn correct(&self, answer: &mut AssistantMessage) {
        let provider = self.lane.provider.name();
        if answer.provider != provider {
            provider.clone_into(&mut answer.provider);
        }
        answer.model.clone_from(&self.model);
        answer.usage = answer.usage.map(|usage| usage.with_cache_as_input());
        if let Some(messages) = &self.messages {
            make_ids_unique(answer, messages);
        }
    }
}

/// Returns the size of what a part says, in bytes.
fn text_bytes(part: &Part) -> usize {
    match part {
        Part::Text(text) | Part::Reasoning(text) => text.len(),
        Part::ToolCall(call) => call.arguments.len(),
        Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } | _ => 0,
    }
}

//! The request of a step.

use std::sync::Arc;

use greenroom_kernel::{Message, Messages};
use greenroom_provider::{ModelSettings, Purpose, Request, ResentReasoning, ToolChoice};

use crate::core::deps::Deps;
use crate::core::running::{RequestForm, Running};
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;

/// Returns the request of the run's step with this context, in this form. The user is warned once of what it leaves out.
pub(super) fn of_step(
    running: &mut Running,
    deps: &Deps,
    shared: &SessionShared,
    mut messages: Messages,
    form: RequestForm,
) -> Request {
    // A partial answer of an aborted run is replaced by a new one; providers refuse requests that end
    // with an answer.
    let whole = messages.iter().rposition(|message| !is_cut_off(message)).map_or(0, |last| last + 1);
    messages.truncate(whole);
    let RequestForm { output_tokens_max, media, without_opaque } = form;
    let begin = &running.begin;
    let (messages, missing) = greenroom_kernel::path::limit_media(messages, media, begin.max_request_bytes);
    running.fewer_images = greenroom_kernel::path::fewer_images(&messages);
    if missing > 0 && !std::mem::replace(&mut running.media_missed, true) {
        let message = format!(
            "{missing} of the newest images were not sent, because the request was too large or the server refused them"
        );
        shared.publish(&deps.bus, EventKind::Warning { message });
    }
    let messages = match without_opaque {
        true => {
            let strip = |message: &Arc<Message>| ResentReasoning::default().strip(message).into_owned();
            messages.iter().map(strip).collect()
        }
        false => messages,
    };
    running.has_native_summary = messages.first().is_some_and(|first| first.has_native());
    if without_opaque && !std::mem::replace(&mut running.opaque_missed, true) {
        let message =
            "the provider refused the signatures, encrypted reasoning or compaction that it sent earlier in \
                       this session: this run continues without them"
                .to_owned();
        tracing::warn!(session = %shared.id, "{message}");
        shared.publish(&deps.bus, EventKind::Warning { message });
    }
    let mut settings = ModelSettings { output_tokens_max, ..begin.settings.clone() };
    if running.step > 1 && settings.tool_choice.as_ref().is_some_and(ToolChoice::is_forced) {
        // The forced tool call was made. If the model had to call a tool in every step, it could never
        // answer.
        settings.tool_choice = None;
    }
    Request {
        model: begin.model.clone(),
        system: Some(begin.instructions.to_string()).filter(|text| !text.is_empty()),
        messages,
        tools: begin.tools.specs(),
        settings,
        output_schema: begin.schema.clone(),
        purpose: Purpose::Step,
        session: shared.id.to_string(),
    }
}

/// Whether the message is a partial answer.
fn is_cut_off(message: &Message) -> bool {
    message.as_answer().is_some_and(|answer| !answer.is_whole())
}

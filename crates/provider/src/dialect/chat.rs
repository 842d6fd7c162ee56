//! OpenAI's chat completions, in the forms that gateways and local servers send and accept.
//!
//! Invariants: a streamed answer is complete only if the server gave a finish reason or sent `[DONE]`.

mod assemble;
mod chunk;
mod pattern;
mod template;
mod think;
mod wire;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::{AssistantMessage, Failure, FailureClass, StopReason};
use http::HeaderMap;

use self::assemble::Assembler;
use self::chunk::Chunk;
use self::pattern::Pattern;
use super::{CallContext, Decoder, Dialect, Encoded, History, Progress, Taken, error_in_stream, is_openai};
use crate::transport::{Endpoint, ServerOptions};
use crate::{ModelSettings, ProviderError, ReplyEvent, Request, ResentReasoning};

/// The path of the API.
const PATH: &str = "chat/completions";

/// The dialect of one server.
#[derive(Debug)]
pub(crate) struct Chat {
    max_completion_tokens: bool,
    prompt_cache_key: bool,
    tools: wire::WrittenTools,
}

impl Chat {
    /// Creates the dialect of a server with these options.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let is_openai = is_openai(options);
        Self {
            max_completion_tokens: options.max_completion_tokens.unwrap_or(is_openai),
            prompt_cache_key: options.prompt_cache_key.unwrap_or(is_openai),
            tools: wire::WrittenTools::default(),
        }
    }
}

impl Dialect for Chat {
    fn encode(
        &self,
        request: &Request,
        options: &ServerOptions,
        history: &mut History,
    ) -> Result<Encoded, String> {
        let style = wire::WireStyle {
            provider: &options.name,
            max_completion_tokens: self.max_completion_tokens,
            output_tokens_max: options.output_tokens_max,
            resend_reasoning: options.resend_reasoning,
            prompt_cache_key: self.prompt_cache_key,
            stream: options.stream,
        };
        let body = wire::body(request, &style, &self.tools, history).map_err(|error| error.to_string())?;
        Ok(Encoded { path: PATH.into(), headers: HeaderMap::new(), body })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::<ChatDecoder>::default()
    }

    fn resent_reasoning(&self, settings: &ModelSettings, options: &ServerOptions) -> ResentReasoning {
        settings.resend_reasoning.unwrap_or(options.resend_reasoning).rule(&options.name)
    }

    fn request(
        &self,
        client: &reqwest::Client,
        endpoint: &Arc<Endpoint>,
        _: &str,
    ) -> Result<reqwest::Request, String> {
        template::request(client, endpoint)
    }
}

/// The decoder of one answer.
#[derive(Debug, Default)]
struct ChatDecoder {
    assembler: Assembler,
    pattern: Pattern,
}

impl Decoder for ChatDecoder {
    fn take(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> Taken {
        let progress = if let Some(text) = self.pattern.text(data) {
            self.assembler.take_text(text, events)
        } else {
            let Ok(chunk) = serde_json::from_str::<Chunk>(data) else { return Taken::Unreadable };
            if let Some(body) = chunk.error_body() {
                return Taken::Error(body);
            }
            self.pattern.learn(data, &chunk);
            self.assembler.take(chunk, events)
        };
        if progress { Taken::Progress } else { Taken::Nothing }
    }

    fn progress(&self) -> Progress {
        match self.assembler.finish_reason() {
            Some(_) => Progress::Ended,
            None => Progress::Open,
        }
    }

    fn may_be_whole(&self) -> bool {
        self.assembler.may_be_whole()
    }

    fn has_output(&self) -> bool {
        self.assembler.has_output()
    }

    fn output_bytes(&self) -> usize {
        self.assembler.output_bytes()
    }

    fn output_chars(&self) -> usize {
        self.assembler.output_chars()
    }

    fn finish(
        self: Box<Self>,
        context: &CallContext<'_>,
        events: &mut VecDeque<ReplyEvent>,
    ) -> Result<AssistantMessage, ProviderError> {
        let mut assembler = self.assembler;
        let stop_raw = assembler.take_finish_reason();
        let stop = stop_reason(stop_raw.as_deref().unwrap_or_default(), assembler.has_output())?;
        let answer = assembler.finish(stop, context.provider, context.model, context.messages, events);
        Ok(AssistantMessage { stop_raw, ..answer })
    }
}

/// Returns what a finish reason means.
///
/// # Errors
/// The answer's end is a failure.
pub(super) fn stop_reason(reason: &str, has_output: bool) -> Result<StopReason, ProviderError> {
    let has_capitals = reason.bytes().any(|byte| byte.is_ascii_uppercase());
    let reason = if has_capitals { Cow::Owned(reason.to_ascii_lowercase()) } else { Cow::Borrowed(reason) };
    Ok(match &*reason {
        "length" | "max_tokens" | "max_output_tokens" | "model_length" => StopReason::Length,
        "model_context_window_exceeded" | "context_length_exceeded" if has_output => StopReason::Length,
        "model_context_window_exceeded" | "context_length_exceeded" => {
            return Err(error_in_stream(&format!(
                "{{\"error\":{{\"code\":\"context_length_exceeded\",\"message\":\"the answer ended with {reason}\"}}}}"
            )));
        }
        "tool_calls" | "function_call" | "tool_use" | "tool_call" => StopReason::ToolCalls,
        "content_filter" | "safety" | "sensitive" | "refusal" | "prohibited_content" | "recitation" => {
            StopReason::ContentFilter
        }
        "error" | "network_error" | "insufficient_system_resource" | "abort" => {
            let message = format!("the provider ended the answer with {reason:?}");
            return Err(ProviderError::new(Failure::new(FailureClass::Overloaded, message), ""));
        }
        // An unknown reason is a new name for a normal end.
        _ => StopReason::Stop,
    })
}

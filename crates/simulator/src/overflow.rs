//! How providers report that a request is larger than the model's window.
//!
//! The texts are those of real servers, since recovery depends on parsing them. Invariants: the numbers in
//! them are the simulator's own count and window.

use serde_json::json;

use crate::protocol::chat as wire;

/// The provider whose wording is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ErrorDialect {
    /// OpenAI: 400, code `context_length_exceeded`.
    #[default]
    OpenAi,
    /// llama.cpp's server: 400, a numeric code, `exceed_context_size_error`.
    LlamaServer,
    /// vLLM: 400, a numeric code, `input_tokens`.
    Vllm,
    /// vLLM for a text so long that it is not even counted: 400, in characters.
    VllmCharacters,
    /// llama-cpp-python: 400 in OpenAI's older words; when streaming, 200 and a stream without an event.
    LlamaCppPython,
    /// mistral.rs: 422 with a flat body; when streaming, 200 and a line of plain text.
    MistralRs,
    /// A LiteLLM gateway in front of llama.cpp's server: its wording, wrapped.
    LiteLlm,
    /// Anthropic: 400, "prompt is too long".
    Anthropic,
    /// 400 with an empty body.
    EmptyBody,
    /// No refusal: the request is answered, and the usage is larger than the window.
    Silent,
    /// No refusal: the oldest messages are dropped until the rest fits, and only the usage shows it.
    SilentTruncation,
}

/// The refusal of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An HTTP error: status and body.
    Status(u16, String),
    /// A stream without an event.
    EmptyStream,
    /// A stream with one line of plain text.
    PlainTextLine(String),
}

impl ErrorDialect {
    /// Returns the refusal of a request of `tokens` and `bytes` that may answer with `output` tokens; `None`
    /// if the dialect does not refuse.
    pub(crate) fn refuse(
        self,
        window: u64,
        tokens: u64,
        output: Option<u64>,
        bytes: u64,
        streamed: bool,
    ) -> Option<Refusal> {
        let status = |status: u16, body: serde_json::Value| Some(Refusal::Status(status, body.to_string()));
        let bad_request = |message: String, param: &str| json!({ "error": { "message": message, "type": "BadRequestError", "param": param, "code": 400 } });
        let llama_server = format!(
            "request ({tokens} tokens) exceeds the available context size ({window} tokens), try increasing it"
        );
        match self {
            Self::OpenAi => {
                let message = format!(
                    "This model's maximum context length is {window} tokens. However, your messages resulted \
                     in {tokens} tokens. Please reduce the length of the messages."
                );
                status(
                    400,
                    json!({ "error": { "message": message, "type": "invalid_request_error",
                        "param": "messages", "code": "context_length_exceeded" } }),
                )
            }
            Self::LlamaServer => status(
                400,
                json!({ "error": { "code": 400, "message": llama_server, "type": "exceed_context_size_error",
                    "n_prompt_tokens": tokens, "n_ctx": window } }),
            ),
            Self::Vllm => {
                let message = format!(
                    "This model's maximum context length is {window} tokens. However, your prompt contains at \
                     least {tokens} input tokens, which exceeds this limit even without any output tokens. \
                     Please reduce the length of the input prompt. (parameter=input_tokens, value={tokens})"
                );
                status(400, bad_request(message, "input_tokens"))
            }
            Self::VllmCharacters => {
                let bound = window.saturating_mul(19);
                let message = format!(
                    "This model's maximum context length is {window} tokens. However, your prompt contains \
                     {bytes} characters (more than {bound} characters, which is the upper bound for {window} \
                     input tokens). Please reduce the length of the input prompt. (parameter=input_text, \
                     value={bytes})"
                );
                status(400, bad_request(message, "input_text"))
            }
            Self::LlamaCppPython if streamed => Some(Refusal::EmptyStream),
            Self::LlamaCppPython => {
                let output = output.unwrap_or(16);
                let requested = tokens.saturating_add(output);
                let message = format!(
                    "This model's maximum context length is {window} tokens. However, you requested \
                     {requested} tokens ({tokens} in the messages, {output} in the completion). Please reduce \
                     the length of the messages or completion."
                );
                status(
                    400,
                    json!({ "error": { "message": message, "type": "invalid_request_error",
                        "param": "messages", "code": "context_length_exceeded" } }),
                )
            }
            Self::MistralRs => {
                let message = format!(
                    "Prompt sequence length is greater than {window}, perhaps consider using \
                     `truncate_sequence`?"
                );
                if streamed {
                    Some(Refusal::PlainTextLine(message))
                } else {
                    status(422, json!({ "message": message }))
                }
            }
            Self::LiteLlm => {
                let message = format!(
                    "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: \
                     OpenAIException - {llama_server}"
                );
                status(
                    400,
                    json!({ "error": { "message": message, "type": "invalid_request_error", "param": null,
                        "code": "400" } }),
                )
            }
            Self::Anthropic => status(
                400,
                json!({ "type": "error", "error": { "type": "invalid_request_error",
                    "message": format!("prompt is too long: {tokens} tokens > {window} maximum") } }),
            ),
            Self::EmptyBody => Some(Refusal::Status(400, String::new())),
            Self::Silent | Self::SilentTruncation => None,
        }
    }

    /// Returns the refusal of a request for more output than the model can produce.
    pub(crate) fn refuse_output_above(limit: u64, output: u64) -> Refusal {
        let message = format!(
            "max_tokens is too large: {output}. This model supports at most {limit} completion tokens, whereas you \
             provided {output}."
        );
        Refusal::Status(400, wire::error_body(&message, "invalid_request_error", Some("invalid_value")))
    }

    /// Returns the refusal of a request whose input fits, but not together with the requested output.
    pub(crate) fn refuse_output(window: u64, tokens: u64, output: u64) -> Refusal {
        let requested = tokens.saturating_add(output);
        let message = format!(
            "This model's maximum context length is {window} tokens. However, you requested {requested} tokens \
             ({tokens} in the messages, {output} in the completion). Please reduce the length of the messages \
             or completion."
        );
        Refusal::Status(
            400,
            wire::error_body(&message, "invalid_request_error", Some("context_length_exceeded")),
        )
    }
}

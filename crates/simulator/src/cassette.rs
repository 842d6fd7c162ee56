//! Cassettes: the answers of a real model in a file, recorded once and replayed in tests.
//!
//! Invariants: a call is identified by its request, without the session; a repeated request gets its next
//! recording. The file holds requests and answers but nothing of the connection: no key, no header. It is
//! JSON, one line per call.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use greenroom_kernel::text::first_chars;
use greenroom_kernel::{
    AssistantMessage, Block, Failure, FailureClass, Message, Part, StopReason, ToolCall, Usage,
};
use greenroom_provider::{
    ModelSettings, Provider, ProviderError, Purpose, ReplyEvent, ReplyStream, Request, ResendReasoning,
    ResentReasoning, Served,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fault::hash;

#[cfg(test)]
mod tests;

/// The version of the file format.
const VERSION: u32 = 1;
/// How many differences a miss shows.
const DIFFERENCES_MAX: usize = 3;

/// A real model's answers in a file. See [`Self::record`] and [`Self::replay`].
///
/// ```no_run
/// # use greenroom::prelude::*;
/// use std::sync::Arc;
///
/// use greenroom::provider::{HttpProvider, ServerOptions};
/// use greenroom_simulator::Cassette;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // Once, with a key; then the test uses `Cassette::replay("tests/weather.jsonl")?`.
/// let real = Arc::new(HttpProvider::new(ServerOptions::default())?);
/// let provider = Cassette::record(real, "tests/weather.jsonl")?;
/// let runtime = Runtime::builder().provider(provider).in_memory().start().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Cassette;

/// Why a cassette cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the cassette {}: {reason}", path.display())]
pub struct CassetteError {
    /// The file.
    pub path: PathBuf,
    /// The reason, as a fragment of a sentence.
    pub reason: String,
}

impl Cassette {
    /// Returns a provider that forwards to `provider`, and writes each completed call, including failures, to
    /// a new file. An existing file is an error, and is left unchanged. Cancelled calls are not recorded.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record(
        provider: Arc<dyn Provider>,
        path: impl Into<PathBuf>,
    ) -> Result<Arc<dyn Provider>, CassetteError> {
        let path = path.into();
        let mut file = File::create_new(&path).map_err(|error| wrong(&path, &error))?;
        let header = Header {
            cassette: VERSION,
            provider: provider.name().to_owned(),
            resent_reasoning: Resent::of(&provider.resent_reasoning(&ModelSettings::default())),
            output_tokens_max: provider.output_tokens_max(),
        };
        writeln!(file, "{}", json!(header)).map_err(|error| wrong(&path, &error))?;
        Ok(Arc::new(Recorder { provider, file: Arc::new(Mutex::new(file)), path }))
    }

    /// Returns a provider that replays the recorded answers. A request that was not recorded fails, and the
    /// error shows the differences from the most similar recorded one.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a cassette.
    pub fn replay(path: impl Into<PathBuf>) -> Result<Arc<dyn Provider>, CassetteError> {
        let path = path.into();
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(&path, &error))?;
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().ok_or_else(|| wrong(&path, &"it is empty"))?;
        let header: Header =
            serde_json::from_str(first).map_err(|error| wrong(&path, &format!("line 1: {error}")))?;
        if header.cassette != VERSION {
            let reason = format!("it has the form {}, and {VERSION} is known", header.cassette);
            return Err(wrong(&path, &reason));
        }
        let calls: Result<Vec<Recorded>, CassetteError> = (2..)
            .zip(lines)
            .map(|(number, line)| {
                serde_json::from_str(line).map_err(|error| wrong(&path, &format!("line {number}: {error}")))
            })
            .collect();
        Ok(Arc::new(Player { header, calls: calls?, used: Mutex::default(), path }))
    }
}

fn wrong(path: &Path, reason: &dyn std::fmt::Display) -> CassetteError {
    CassetteError { path: path.to_owned(), reason: reason.to_string() }
}

/// The first line: properties of the provider.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    cassette: u32,
    provider: String,
    resent_reasoning: Resent,
    output_tokens_max: Option<u64>,
}

/// Which reasoning a provider sends back if no settings specify it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Resent {
    readable: bool,
    dialect: Option<String>,
}

impl Resent {
    fn of(rule: &ResentReasoning) -> Self {
        Self { readable: rule.readable_of.is_some(), dialect: rule.dialect.clone() }
    }

    /// Returns the rule for a request with these settings.
    fn rule(&self, provider: &str, settings: &ModelSettings) -> ResentReasoning {
        let own = if self.readable { ResendReasoning::AsReasoningContent } else { ResendReasoning::Never };
        let rule = settings.resend_reasoning.unwrap_or(own).rule(provider);
        ResentReasoning { dialect: self.dialect.clone(), ..rule }
    }
}

/// A call: the request, the pieces of the answer, and the failure if it ended with one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Recorded {
    request: Value,
    pieces: Vec<Piece>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<RecordedFailure>,
}

/// A piece of an answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Piece {
    Text(String),
    Reasoning(String),
    ToolCall { index: usize, name: Option<String>, arguments: String },
    Done(Answered),
}

/// A whole answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Answered {
    provider: String,
    model: String,
    stop: StopReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop_raw: Option<String>,
    usage: Option<Usage>,
    error: Option<String>,
    content: Vec<Content>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    Text(String),
    Reasoning(String),
    OpaqueReasoning { dialect: String, data: String },
    OpaqueBlock { dialect: String, data: String },
    ToolCall { id: String, name: String, arguments: String },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RecordedFailure {
    #[serde(flatten)]
    failure: Failure,
    body: String,
    empty_stream: bool,
    connection_refused: bool,
    connection_lost: bool,
}

struct Recorder {
    provider: Arc<dyn Provider>,
    file: Arc<Mutex<File>>,
    path: PathBuf,
}

impl Recorder {
    fn keep(file: &Mutex<File>, path: &Path, call: &Recorded) -> Result<(), ProviderError> {
        let mut file = file.lock();
        writeln!(file, "{}", json!(call)).map_err(|error| other(wrong(path, &error).to_string()))
    }
}

impl Provider for Recorder {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn address(&self) -> Option<&str> {
        self.provider.address()
    }

    fn served(&self) -> BoxFuture<'static, Result<Served, ProviderError>> {
        self.provider.served()
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        self.provider.resent_reasoning(settings)
    }

    fn release(&self, session: &str) {
        self.provider.release(session);
    }

    fn output_tokens_max(&self) -> Option<u64> {
        self.provider.output_tokens_max()
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let mut call = Recorded { request: asked(&request), pieces: Vec::new(), failure: None };
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        let answer = self.provider.stream(request);
        async move {
            let answer = match answer.await {
                Ok(answer) => answer,
                Err(error) => {
                    call.failure = Some(RecordedFailure::from(&error));
                    Self::keep(&file, &path, &call)?;
                    return Err(error);
                }
            };
            // The end of the call is reported only after the call is in the file.
            let kept = answer.map(move |event| {
                match &event {
                    Ok(piece) => call.pieces.push(Piece::from(piece)),
                    Err(error) => call.failure = Some(RecordedFailure::from(error)),
                }
                if matches!(event, Ok(ReplyEvent::Done(_)) | Err(_)) {
                    Self::keep(&file, &path, &call)?;
                }
                event
            });
            Ok(kept.boxed())
        }
        .boxed()
    }
}

struct Player {
    header: Header,
    calls: Vec<Recorded>,
    /// How often each request was made, by its hash.
    used: Mutex<HashMap<u64, usize>>,
    path: PathBuf,
}

impl Player {
    fn find(&self, request: &Value) -> Result<Recorded, ProviderError> {
        let key = hash(&[request.to_string().as_bytes()]);
        let mut used = self.used.lock();
        let times = used.entry(key).or_default();
        let mut same = self.calls.iter().filter(|call| call.request == *request);
        let known = same.clone().count();
        if let Some(call) = same.nth(*times) {
            *times += 1;
            return Ok(call.clone());
        }
        let path = self.path.display();
        if known > 0 {
            return Err(other(format!(
                "the cassette {path} has {known} answers to this request, but it was repeated once more; record it again"
            )));
        }
        let mut differences: Vec<(usize, Vec<String>)> = self
            .calls
            .iter()
            .enumerate()
            .map(|(index, call)| (index, differences(&call.request, request)))
            .collect();
        differences.sort_by_key(|(_, differences)| differences.len());
        let nearest = differences.first().map(|(index, all)| {
            let shown = all.iter().take(DIFFERENCES_MAX).cloned().collect::<Vec<_>>().join("; ");
            format!("; the nearest, in line {}, differs in {} places: {shown}", index + 2, all.len())
        });
        Err(other(format!(
            "the cassette {path} has no answer to this request{}; record it again if the change is intended",
            nearest.unwrap_or_default()
        )))
    }
}

impl Provider for Player {
    fn name(&self) -> &str {
        &self.header.provider
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        self.header.resent_reasoning.rule(&self.header.provider, settings)
    }

    fn output_tokens_max(&self) -> Option<u64> {
        self.header.output_tokens_max
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let found = self.find(&asked(&request));
        async move {
            let Recorded { pieces, failure, .. } = found?;
            let failure = failure.map(ProviderError::from);
            if let Some(error) = failure.clone().filter(|_| pieces.is_empty()) {
                return Err(error);
            }
            let events = pieces.into_iter().map(|piece| Ok(piece.into())).chain(failure.map(Err));
            Ok(stream::iter(events.collect::<Vec<_>>()).boxed())
        }
        .boxed()
    }
}

fn other(message: String) -> ProviderError {
    ProviderError::new(Failure::new(FailureClass::Other, message), "")
}

/// Returns a request as it is stored: everything that may change the answer.
fn asked(request: &Request) -> Value {
    let Request { model, system, messages, tools, settings, output_schema, purpose, session: _ } = request;
    let tools: Vec<Value> = tools
        .iter()
        .map(|tool| json!({ "name": tool.name, "description": tool.description, "parameters": tool.parameters }))
        .collect();
    let purpose = match purpose {
        Purpose::Step => "step",
        Purpose::Summary => "summary",
        Purpose::Compaction => "compaction",
    };
    json!({
        "model": model,
        "purpose": purpose,
        "system": system,
        "messages": messages.iter().map(|message| message_value(message)).collect::<Vec<_>>(),
        "tools": tools,
        "settings": settings,
        "output_schema": output_schema.as_ref().map(|schema| json!({ "name": schema.name, "schema": schema.schema })),
    })
}

fn message_value(message: &Message) -> Value {
    let blocks = |blocks: &[Block]| -> Vec<Value> {
        blocks
            .iter()
            .map(|block| match block {
                Block::Text(text) => json!({ "text": text }),
                Block::Image(image) => json!({ "image": image.media_type, "data": image.data }),
                // A kind of block that cassettes do not have.
                Block::Native(_) | _ => Value::Null,
            })
            .collect()
    };
    match message {
        Message::User(content) => json!({ "user": blocks(content) }),
        Message::ToolResult(result) => {
            json!({ "tool": result.tool_name, "call_id": result.call_id, "status": result.status, "content": blocks(&result.content) })
        }
        Message::Assistant(answer) => {
            json!({ "assistant": answer.content.iter().map(Content::from).collect::<Vec<_>>() })
        }
    }
}

/// Returns the differences between two values, one line each: the path, the recorded and the requested value.
fn differences(recorded: &Value, asked: &Value) -> Vec<String> {
    fn walk(place: &str, recorded: &Value, asked: &Value, out: &mut Vec<String>) {
        match (recorded, asked) {
            (Value::Object(one), Value::Object(other)) => {
                let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
                for key in keys {
                    let (one, other) =
                        (one.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null));
                    walk(&format!("{place}.{key}"), one, other, out);
                }
            }
            (Value::Array(one), Value::Array(other)) => {
                for index in 0..one.len().max(other.len()) {
                    let at = |list: &[Value]| list.get(index).cloned().unwrap_or(Value::Null);
                    walk(&format!("{place}[{index}]"), &at(one), &at(other), out);
                }
            }
            _ if recorded == asked => {}
            _ => out.push(format!(
                "{}: recorded {}, asked {}",
                place.trim_start_matches('.'),
                shortened(recorded),
                shortened(asked)
            )),
        }
    }
    let mut out = Vec::new();
    walk("", recorded, asked, &mut out);
    out
}

fn shortened(value: &Value) -> String {
    first_chars(&value.to_string(), 120)
}

impl From<&ReplyEvent> for Piece {
    fn from(event: &ReplyEvent) -> Self {
        match event {
            ReplyEvent::Text(text) => Self::Text(text.clone()),
            ReplyEvent::Reasoning(text) => Self::Reasoning(text.clone()),
            ReplyEvent::ToolCall { index, name, arguments } => {
                Self::ToolCall { index: *index, name: name.clone(), arguments: arguments.clone() }
            }
            ReplyEvent::Done(answer) => Self::Done(Answered {
                provider: answer.provider.clone(),
                model: answer.model.clone(),
                stop: answer.stop,
                stop_raw: answer.stop_raw.clone(),
                usage: answer.usage,
                error: answer.error.clone(),
                content: answer.content.iter().map(Content::from).collect(),
            }),
            // A kind of piece that cassettes do not have.
            ReplyEvent::ThinkingDropped { .. } | _ => Self::Text(String::new()),
        }
    }
}

impl From<Piece> for ReplyEvent {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Text(text) => Self::Text(text),
            Piece::Reasoning(text) => Self::Reasoning(text),
            Piece::ToolCall { index, name, arguments } => Self::ToolCall { index, name, arguments },
            Piece::Done(Answered { provider, model, stop, stop_raw, usage, error, content }) => {
                let content = content.into_iter().map(Part::from).collect();
                Self::Done(Box::new(AssistantMessage {
                    content,
                    provider,
                    model,
                    usage,
                    stop,
                    stop_raw,
                    error,
                }))
            }
        }
    }
}

impl From<&Part> for Content {
    fn from(part: &Part) -> Self {
        match part {
            Part::Text(text) => Self::Text(text.clone()),
            Part::Reasoning(text) => Self::Reasoning(text.clone()),
            Part::OpaqueReasoning { dialect, data } => {
                Self::OpaqueReasoning { dialect: dialect.clone(), data: data.clone() }
            }
            Part::OpaqueBlock { dialect, data } => {
                Self::OpaqueBlock { dialect: dialect.clone(), data: data.clone() }
            }
            Part::ToolCall(ToolCall { id, name, arguments }) => {
                Self::ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() }
            }
            // A kind of part that cassettes do not have.
            _ => Self::Text(String::new()),
        }
    }
}

impl From<Content> for Part {
    fn from(content: Content) -> Self {
        match content {
            Content::Text(text) => Self::Text(text),
            Content::Reasoning(text) => Self::Reasoning(text),
            Content::OpaqueReasoning { dialect, data } => Self::OpaqueReasoning { dialect, data },
            Content::OpaqueBlock { dialect, data } => Self::OpaqueBlock { dialect, data },
            Content::ToolCall { id, name, arguments } => Self::ToolCall(ToolCall { id, name, arguments }),
        }
    }
}

impl From<&ProviderError> for RecordedFailure {
    fn from(error: &ProviderError) -> Self {
        Self {
            failure: error.failure.clone(),
            body: error.body.clone(),
            empty_stream: error.empty_stream,
            connection_refused: error.connection_refused,
            connection_lost: error.connection_lost,
        }
    }
}

impl From<RecordedFailure> for ProviderError {
    fn from(recorded: RecordedFailure) -> Self {
        let RecordedFailure { failure, body, empty_stream, connection_refused, connection_lost } = recorded;
        let mut error = Self::new(failure, body);
        error.empty_stream = empty_stream;
        error.connection_refused = connection_refused;
        error.connection_lost = connection_lost;
        error
    }
}

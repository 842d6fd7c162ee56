//! The simulated model as a provider in this process, without a socket.
//!
//! Invariants: it waits only on tokio's clock, so that a paused clock controls it; it shares the caller's
//! messages and copies only those with broken calls or with reasoning that is not sent back. A failure is
//! what a careful HTTP client would make of the same answer.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use greenroom_kernel::{
    AssistantMessage, Block, Failure, FailureClass, Message, Part, StopReason, ToolCall, Usage,
};
use greenroom_provider::retry_after::retry_after_ms;
use greenroom_provider::{
    ModelSettings, NativeCompaction, Provider, ProviderError, Purpose, ReplyEvent, ReplyStream, Request,
    ResentReasoning, classify, sendable_arguments,
};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tokio::time::sleep;

use crate::answer::{Piece, Raw, SERVER_ERROR, Step, Transmission};
use crate::protocol::chat as wire;
use crate::sealed;
use crate::seen::SeenRequest;
use crate::simulator::{InFlight, Simulator};

pub(crate) struct InProcess {
    simulator: Simulator,
}

impl InProcess {
    pub(crate) fn new(simulator: Simulator) -> Self {
        Self { simulator }
    }
}

impl Provider for InProcess {
    fn name(&self) -> &str {
        &self.simulator.options().provider_name
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        let options = self.simulator.options();
        let rule = settings.resend_reasoning.unwrap_or(options.resend_reasoning).rule(&options.provider_name);
        match options.compaction {
            Some(_) => ResentReasoning {
                dialect: Some(sealed::DIALECT.to_owned()),
                opaque_of: Some(options.provider_name.clone()),
                ..rule
            },
            None => rule,
        }
    }

    fn native_compaction(&self, _model: &str) -> Option<NativeCompaction> {
        self.simulator.options().compaction
    }

    fn count_tokens(&self, request: Request) -> BoxFuture<'static, Result<Option<u64>, ProviderError>> {
        let simulator = self.simulator.clone();
        let resent = self.resent_reasoning(&request.settings);
        Box::pin(async move {
            match simulator.count(seen(request, &resent), Vec::new()) {
                Ok(tokens) => Ok(Some(tokens)),
                Err(status) if status.status == 404 => Ok(None),
                Err(status) => Err(error_of(status.status, &status.headers, &status.body)),
            }
        })
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let simulator = self.simulator.clone();
        let resent = self.resent_reasoning(&request.settings);
        Box::pin(async move {
            let model = request.model.clone();
            let is_compaction = request.purpose == Purpose::Compaction;
            let calls = request.messages.iter().flat_map(|message| message.tool_calls());
            let used_ids = calls.map(|call| call.id.clone()).collect();
            let (answer, flight) = simulator.begin(seen(request, &resent), Vec::new());
            let steps = match answer {
                Transmission::Status(status) => {
                    flight.wait_and_fire(&status).await;
                    return Err(error_of(status.status, &status.headers, &status.body));
                }
                Transmission::Stream(steps) => steps,
            };
            let mut performance = Performance {
                steps,
                flight,
                gathered: Gathered {
                    provider: simulator.options().provider_name.clone(),
                    model,
                    seals: simulator.options().compaction.filter(|_| is_compaction),
                    used_ids,
                    ..Gathered::default()
                },
                is_over: false,
            };
            performance.until_headers().await?;
            let stream: BoxStream<'static, _> =
                futures_util::stream::unfold(performance, |mut performance| async {
                    let next = performance.next().await?;
                    Some((next, performance))
                })
                .boxed();
            Ok(stream)
        })
    }
}

fn seen(request: Request, resent: &ResentReasoning) -> SeenRequest {
    let mut messages = request.messages.into_vec();
    if request.purpose == Purpose::Compaction {
        // The instruction.
        messages.pop();
    }
    for message in &mut messages {
        *message = resent.strip(message).into_owned();
        send_whole_arguments(message);
        open_seals(message);
    }
    let text_bytes = |blocks: &[Block]| -> usize {
        blocks
            .iter()
            .map(|block| match block {
                Block::Text(text) => text.len(),
                Block::Image(image) => image.data.len(),
                Block::Native(_) | _ => 0,
            })
            .sum()
    };
    let bytes: usize = messages
        .iter()
        .map(|message| match &**message {
            Message::User(blocks) => text_bytes(blocks),
            Message::ToolResult(result) => text_bytes(&result.content),
            Message::Assistant(assistant) => assistant
                .content
                .iter()
                .map(|part| match part {
                    Part::Text(text) | Part::Reasoning(text) => text.len(),
                    Part::OpaqueReasoning { data, .. } | Part::OpaqueBlock { data, .. } => data.len(),
                    Part::ToolCall(call) => call.name.len() + call.arguments.len(),
                    _ => 0,
                })
                .sum(),
        })
        .sum();
    let mut settings = request.settings;
    if request.tools.is_empty() {
        // A client sends nothing about tools if it offers none.
        (settings.tool_choice, settings.parallel_tool_calls) = (None, None);
    }
    SeenRequest {
        model: request.model,
        system: request.system,
        messages,
        tools: request.tools,
        settings,
        output_schema: request.output_schema,
        session: Some(request.session).filter(|session| !session.is_empty()),
        purpose: request.purpose,
        streamed: true,
        bytes: bytes as u64,
        tokens: 0,
        cached_tokens: 0,
    }
}

/// Replaces broken JSON in the arguments of calls with what a real client would send instead.
fn send_whole_arguments(message: &mut Arc<Message>) {
    let is_sent_as_is = |call: &ToolCall| matches!(sendable_arguments(&call.arguments), Cow::Borrowed(as_is) if as_is == call.arguments);
    if message.tool_calls().all(is_sent_as_is) {
        return;
    }
    if let Message::Assistant(answer) = Arc::make_mut(message) {
        for part in &mut answer.content {
            if let Part::ToolCall(call) = part {
                call.arguments = sendable_arguments(&call.arguments).into_owned();
            }
        }
    }
}

/// Puts the text into the place of what only this provider reads.
fn open_seals(message: &mut Arc<Message>) {
    let is_native = |block: &Block| matches!(block, Block::Native(_));
    if !matches!(&**message, Message::User(blocks) if blocks.iter().any(is_native)) {
        return;
    }
    if let Message::User(blocks) = Arc::make_mut(message) {
        for block in blocks {
            if let Block::Native(native) = block {
                let text: Option<String> = native.blocks.iter().map(|sealed| sealed::open(sealed)).collect();
                *block = Block::Text(text.unwrap_or_else(|| "(an altered compaction)".to_owned()));
            }
        }
    }
}

/// An answer in progress.
struct Performance {
    steps: VecDeque<Step>,
    flight: InFlight,
    gathered: Gathered,
    is_over: bool,
}

/// The answer so far.
#[derive(Default)]
struct Gathered {
    provider: String,
    model: String,
    reasoning: String,
    text: String,
    calls: Vec<ToolCall>,
    usage: Option<Usage>,
    stop: Option<StopReason>,
    has_event: bool,
    /// How the text is to be sealed, if the answer is a compaction.
    seals: Option<NativeCompaction>,
    /// The ids of all calls of the request and of this answer.
    used_ids: HashSet<String>,
}

impl Performance {
    async fn until_headers(&mut self) -> Result<(), ProviderError> {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Headers => return Ok(()),
                Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                Step::Stall { for_ms, .. } => stall(for_ms).await,
                Step::Fired(fault) => self.flight.fired(fault),
                Step::Refuse => return Err(refused()),
                Step::Reset | Step::Piece(_) | Step::Raw(_) => break,
            }
        }
        Err(reset())
    }

    async fn next(&mut self) -> Option<Result<ReplyEvent, ProviderError>> {
        if self.is_over {
            return None;
        }
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Headers => {}
                Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                Step::Stall { for_ms, .. } => stall(for_ms).await,
                Step::Fired(fault) => self.flight.fired(fault),
                Step::Reset | Step::Refuse => {
                    // As over HTTP: a stream that breaks off before its first event is treated like an empty
                    // one.
                    let mut error = reset();
                    error.empty_stream = !self.gathered.has_event;
                    return self.end(Err(error));
                }
                Step::Raw(raw) => return self.end(Err(raw_error(&raw))),
                Step::Piece(piece) => {
                    self.gathered.has_event = true;
                    if let Some(event) = self.gathered.add(piece) {
                        return Some(Ok(event));
                    }
                }
            }
        }
        let result = std::mem::take(&mut self.gathered).finish();
        self.end(result)
    }

    fn end(
        &mut self,
        result: Result<ReplyEvent, ProviderError>,
    ) -> Option<Result<ReplyEvent, ProviderError>> {
        self.is_over = true;
        Some(result)
    }
}

impl Gathered {
    fn add(&mut self, piece: Piece) -> Option<ReplyEvent> {
        match piece {
            Piece::Role | Piece::Done => None,
            Piece::Reasoning(text) => {
                self.reasoning.push_str(&text);
                Some(ReplyEvent::Reasoning(text))
            }
            Piece::Text(text) => {
                self.text.push_str(&text);
                Some(ReplyEvent::Text(text))
            }
            Piece::CallStart { index, id, name } => {
                let id = self.unused_id(&id.unwrap_or_default());
                self.calls.push(ToolCall { id, name: name.clone(), arguments: String::new() });
                Some(ReplyEvent::ToolCall { index, name: Some(name), arguments: String::new() })
            }
            Piece::CallArguments { index, arguments } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&arguments);
                }
                Some(ReplyEvent::ToolCall { index, name: None, arguments })
            }
            Piece::Finish(stop) => {
                self.stop = Some(stop);
                None
            }
            Piece::Usage(usage) => {
                self.usage = Some(usage);
                None
            }
        }
    }

    /// Chooses an id: a client cannot answer a call without an id of its own, so it makes one if the server did not.
    fn unused_id(&mut self, id: &str) -> String {
        let mut unused = id.to_owned();
        let mut number = 0;
        while unused.is_empty() || self.used_ids.contains(&unused) {
            number += 1;
            unused = if id.is_empty() { format!("call_made_{number}") } else { format!("{id}_{number}") };
        }
        self.used_ids.insert(unused.clone());
        unused
    }

    fn finish(self) -> Result<ReplyEvent, ProviderError> {
        let Some(stop) = self.stop else {
            let what = if self.has_event { "the stream ended early" } else { "the stream was empty" };
            let mut error = ProviderError::new(Failure::new(FailureClass::Malformed, what), "");
            error.failure.status = Some(200);
            error.empty_stream = !self.has_event;
            return Err(error);
        };
        let mut content = Vec::new();
        content.extend(Some(self.reasoning).filter(|text| !text.is_empty()).map(Part::Reasoning));
        if self.seals.is_some() {
            let (dialect, data) = (sealed::DIALECT.to_owned(), sealed::seal(&self.text));
            content.push(Part::OpaqueBlock { dialect, data });
        }
        let text =
            Some(self.text).filter(|text| !text.is_empty() && self.seals != Some(NativeCompaction::Opaque));
        content.extend(text.map(Part::Text));
        let stop_raw = Some(wire::finish_reason(stop).to_owned());
        // The content decides, not the server's finish reason.
        let stop = match (stop, self.calls.is_empty()) {
            (StopReason::Stop, false) => StopReason::ToolCalls,
            (StopReason::ToolCalls, true) => StopReason::Stop,
            (stop, _) => stop,
        };
        content.extend(self.calls.into_iter().map(Part::ToolCall));
        let (provider, model, usage) = (self.provider, self.model, self.usage);
        let message = AssistantMessage { content, provider, model, usage, stop, stop_raw, error: None };
        Ok(ReplyEvent::Done(Box::new(message)))
    }
}

async fn stall(for_ms: Option<u64>) {
    match for_ms {
        Some(ms) => sleep(Duration::from_millis(ms)).await,
        None => std::future::pending().await,
    }
}

fn reset() -> ProviderError {
    let failure = Failure::new(FailureClass::Timeout, "the connection was reset");
    let mut error = ProviderError::new(failure, "");
    error.connection_lost = true;
    error
}

fn refused() -> ProviderError {
    let failure = Failure::new(FailureClass::Timeout, "cannot reach the simulator: connection refused");
    let mut error = ProviderError::new(failure, "");
    (error.connection_refused, error.connection_lost) = (true, true);
    error
}

fn raw_error(raw: &Raw) -> ProviderError {
    let malformed = |message: &str, body: &str| {
        ProviderError::new(Failure::new(FailureClass::Malformed, message), body.to_owned())
    };
    match raw {
        Raw::BrokenJson => malformed("an event of the stream is not JSON", ""),
        Raw::BadUtf8 => malformed("an event of the stream is not UTF-8", ""),
        Raw::ErrorEvent => stream_error(&wire::error_body(SERVER_ERROR, "server_error", Some("500"))),
        Raw::PlainText(text) => stream_error(text),
    }
}

/// Converts an HTTP error as a client does.
fn error_of(status: u16, headers: &[(String, String)], body: &str) -> ProviderError {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            map.insert(name, value);
        }
    }
    // Dates in headers use the wall clock, even if tokio's clock is paused.
    let retry_after_ms = retry_after_ms(&map, SystemTime::now());
    ProviderError::new(classify(Some(status), body, retry_after_ms), body)
}

/// Converts an error in the middle of a stream as a client does.
fn stream_error(body: &str) -> ProviderError {
    let mut error = error_of(200, &[], body);
    if error.failure.class == FailureClass::Other {
        error.failure.class = FailureClass::Malformed;
    }
    error
}

#[cfg(test)]
mod tests;

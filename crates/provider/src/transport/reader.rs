//! One model call, from its request to the last event of its stream.
//!
//! Invariants: only progress of the answer resets the idle timeout, not bytes, and it counts from the wait that follows;
//! an answer is complete only if the server gave a finish reason or sent `[DONE]`; and nothing follows `Done` or an error.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::stream::{Stream, StreamExt};
use greenroom_kernel::{AssistantMessage, Failure, FailureClass, Messages, Part, ToolCall};
use tokio::time::{Instant, Sleep, sleep_until};

use super::body::{Body, Interruption, more_than};
use super::send::{TransportError, Unsent, root_cause};
use super::{Server, ServerOptions, limits};
use crate::classify::{classify, one_line};
use crate::dialect::{CallContext, Decoder, Progress, Taken, error_in_stream};
use crate::retry_after::retry_after_ms;
use crate::settings::refuses_stream;
use crate::{ANSWER_BYTES_MAX, Api, ModelSettings, ProviderError, Purpose, ReplyEvent, ReplyStream, Request};

/// How long to wait for usage after the finish reason.
const AFTER_FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A refusal that is about the API, about streaming or about a setting says so, and what to do about it.
fn naming_cause(
    mut error: ProviderError,
    settings: &ModelSettings,
    options: &ServerOptions,
) -> ProviderError {
    let failure = &mut error.failure;
    if options.api == Api::Chat && error.body.contains("v1/responses") {
        failure.message.push_str("; set `api: responses` for this provider");
        return error;
    }
    let streams = options.stream;
    let may_be_setting = failure.class == FailureClass::Other && matches!(failure.status, Some(400 | 422));
    if !may_be_setting {
        return error;
    }
    if streams && refuses_stream(&error.body) {
        failure.message.push_str(
            "; the server does not stream this model's answers to you: set `stream: false` for this provider, and they \
             are asked for as a whole",
        );
    } else if let Some(setting) = settings.refused(&error.body) {
        failure.message.push_str(&format!(
            "; the server refuses the setting `{setting}`: leave it out for this model, or ask another one"
        ));
    }
    error
}

/// Sends `request` and opens its stream.
///
/// # Errors
/// Returns what the server answered instead of a stream, or why it could not be reached in time.
pub(super) async fn open(server: Arc<Server>, request: Box<Request>) -> Result<ReplyStream, ProviderError> {
    let limit = server.options.first_event_timeout;
    let mut timer = Box::pin(sleep_until(deadline_after(limit)));
    let mut encoded = server.encode(&request);
    let sent = match &mut encoded {
        Ok(encoded) => tokio::select! {
            biased;
            sent = server.send(encoded) => Some(sent),
            () = &mut timer => None,
        },
        Err(reason) => Some(Err(TransportError::Make(std::mem::take(reason)))),
    };
    let body = match sent {
        Some(Ok(body)) => body,
        Some(Err(error)) => {
            let error = transport_error(&server.endpoint.base, error);
            if request.purpose == Purpose::Compaction && is_unknown_operation(&error) {
                server.no_compaction.lock().insert(request.model.clone());
            }
            return Err(server.without_key(naming_cause(error, &request.settings, &server.options)));
        }
        None => {
            let what = if server.options.stream { "no answer" } else { "no whole answer" };
            return Err(timed_out(format!("{what} from {} within {}", server.endpoint.base, seconds(limit))));
        }
    };
    let Request { model, messages, purpose, .. } = *request;
    let reader = Reader::new(body, timer, Call { model, messages, purpose }, server);
    Ok(reader.boxed())
}

/// Whether the server does not know the operation at all, so that asking again is of no use.
fn is_unknown_operation(error: &ProviderError) -> bool {
    match error.failure.status {
        Some(404 | 405 | 501) => true,
        Some(400 | 422) => {
            let body = error.body.to_ascii_lowercase();
            let words =
                ["not support", "unsupported", "unknown", "unrecognized", "not permitted", "anthropic-beta"];
            words.iter().any(|word| body.contains(word))
        }
        _ => false,
    }
}

/// The state of one stream.
struct Reader {
    body: Body,
    decoder: Box<dyn Decoder>,
    /// Events that were not handed on yet.
    events: VecDeque<ReplyEvent>,
    /// When the next progress must have been made.
    deadline: Instant,
    /// How long the next progress may take, counted from the next wait; `None` if that wait has begun.
    wait: Option<Duration>,
    /// Ends at the deadline or before. It is not set anew for each piece: pieces are many, and few waits are long.
    timer: Pin<Box<Sleep>>,
    has_chunk: bool,
    is_over: bool,
    call: Call,
    server: Arc<Server>,
}

/// The call that a stream answers.
struct Call {
    model: String,
    /// The conversation that is answered: its calls have ids that the answer's must not have.
    messages: Messages,
    purpose: Purpose,
}

impl Stream for Reader {
    type Item = Result<ReplyEvent, ProviderError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reader = self.get_mut();
        loop {
            if let Some(event) = reader.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if reader.is_over {
                return Poll::Ready(None);
            }
            let end = match reader.body.poll_next(context) {
                Poll::Ready(Some(Ok(data))) => match reader.take_data(&data) {
                    Some(end) => end,
                    None => continue,
                },
                Poll::Pending if !reader.is_late(context) => return Poll::Pending,
                // Only usage can follow the end of an answer, and the answer is complete without it.
                _ if reader.decoder.progress() != Progress::Open => reader.finish(),
                // Some servers declare that they are done without a reason.
                Poll::Ready(None) if reader.body.was_done() && reader.decoder.may_be_whole() => {
                    reader.finish()
                }
                Poll::Ready(Some(Err(why))) => Err(reader.interrupted(why)),
                Poll::Ready(None) => Err(reader.ended_early()),
                Poll::Pending => Err(reader.stalled()),
            };
            reader.is_over = true;
            // The connection is closed now and not when the caller drops the stream.
            reader.body.close();
            match end {
                Ok(message) => reader.events.push_back(ReplyEvent::Done(Box::new(message))),
                Err(error) => return Poll::Ready(Some(Err(reader.server.without_key(error)))),
            }
        }
    }
}

impl Reader {
    /// Creates the reader of a body whose first progress must have been made when `timer` ends.
    fn new(body: Body, timer: Pin<Box<Sleep>>, call: Call, server: Arc<Server>) -> Self {
        Self {
            body,
            decoder: server.dialect.decoder(),
            events: VecDeque::new(),
            deadline: timer.deadline(),
            wait: None,
            timer,
            has_chunk: false,
            is_over: false,
            call,
            server,
        }
    }

    /// Whether the deadline is over. Otherwise the task is woken when it is.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(wait) = self.wait.take() {
            self.deadline = deadline_after(wait);
        }
        if Instant::now() >= self.deadline {
            return true;
        }
        // The first piece may take longer than the others, so a deadline can also move forward.
        if self.timer.deadline() > self.deadline {
            self.timer.as_mut().reset(self.deadline);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if Instant::now() >= self.deadline {
                return true;
            }
            self.timer.as_mut().reset(self.deadline);
        }
        false
    }

    /// Adds the data of an event to the answer. Returns the answer's end if this is it.
    fn take_data(&mut self, data: &str) -> Option<Result<AssistantMessage, ProviderError>> {
        let was_open = self.decoder.progress() == Progress::Open;
        // Few pieces have an escape at all.
        let has_escape = memchr::memchr(b'\\', data.as_bytes()).is_some();
        let has_surrogate = has_escape && (data.contains("\\ud") || data.contains("\\uD"));
        let repaired = has_surrogate.then(|| without_unpaired_surrogates(data)).flatten();
        let data = repaired.as_deref().unwrap_or(data);
        let taken = self.decoder.take(data, &mut self.events);
        self.has_chunk |= taken != Taken::Unreadable;
        match taken {
            // What follows the end of an answer changes nothing.
            Taken::Error(_) if !was_open => return None,
            Taken::Unreadable if !was_open => return Some(self.finish()),
            Taken::Error(body) => return Some(Err(error_in_stream(&body))),
            // Plain text, or JSON of an unknown shape.
            Taken::Unreadable => return Some(Err(self.unreadable(data))),
            Taken::Progress | Taken::Nothing => {}
        }
        if self.decoder.output_bytes() > ANSWER_BYTES_MAX {
            // Otherwise these events would follow the error.
            self.events.clear();
            let what = format!("an answer of more than {ANSWER_BYTES_MAX} bytes of text");
            return Some(Err(too_large(&self.server.endpoint.base, &what)));
        }
        let idle_timeout = self.server.options.idle_timeout;
        let wait = match self.decoder.progress() {
            Progress::Open => idle_timeout,
            Progress::Ended => idle_timeout.min(AFTER_FINISH_TIMEOUT),
            Progress::Over => return Some(self.finish()),
        };
        if taken == Taken::Progress {
            // The clock is not read for each piece: pieces are many.
            self.wait = Some(wait);
        }
        None
    }

    fn finish(&mut self) -> Result<AssistantMessage, ProviderError> {
        let decoder = std::mem::replace(&mut self.decoder, self.server.dialect.decoder());
        let Call { model, messages, purpose } = &self.call;
        let context = CallContext { provider: &self.server.options.name, model, purpose: *purpose, messages };
        let mut answer = decoder.finish(&context, &mut self.events)?;
        answer.content.iter_mut().for_each(shrink);
        // Text with replaced bytes can still be read, but a tool must not act on such arguments.
        let is_damaged = |call: &ToolCall| call.arguments.contains(char::REPLACEMENT_CHARACTER);
        if self.body.had_invalid_utf8() && answer.tool_calls().any(is_damaged) {
            let message = "a tool call's arguments came with bytes that are not UTF-8";
            return Err(ProviderError::new(Failure::new(FailureClass::Malformed, message), ""));
        }
        Ok(answer)
    }

    /// The failure of a stream that closed without a finish reason.
    fn ended_early(&mut self) -> ProviderError {
        let sample = self.body.sample();
        if self.has_chunk {
            let is_stream = self.server.options.stream;
            return self.incomplete(if is_stream { "the stream ended" } else { "the server stopped" });
        }
        let text: String = sample.lines().filter(|line| !is_frame_only(line)).collect::<Vec<_>>().join("\n");
        if let Some(encoding) = self.body.compression() {
            return compressed(&self.server.endpoint.base, &one_line(&encoding));
        }
        if text.is_empty() {
            let failure =
                Failure { status: Some(200), ..Failure::new(FailureClass::Malformed, EMPTY_STREAM) };
            return ProviderError { empty_stream: true, ..ProviderError::new(failure, "") };
        }
        error_in_stream(&text)
    }

    /// The failure of an answer whose data is not a chunk.
    fn unreadable(&mut self, data: &str) -> ProviderError {
        match self.body.compression().filter(|_| !self.has_chunk) {
            Some(encoding) => compressed(&self.server.endpoint.base, &one_line(&encoding)),
            None => {
                let mut error = error_in_stream(data);
                let is_json = data.trim_start().starts_with(['{', '[']);
                if is_json && error.failure.class == FailureClass::Malformed {
                    error.failure.message =
                        format!("the provider sent an event that cannot be read: {}", one_line(data));
                }
                error
            }
        }
    }

    /// The failure of an answer that ended too early. `how` is the beginning of its message.
    fn incomplete(&self, how: &str) -> ProviderError {
        let so_far = self.decoder.output_chars();
        let message = format!("{how} before the answer was complete, after {so_far} characters");
        ProviderError::new(
            Failure { status: Some(200), ..Failure::new(FailureClass::Malformed, message) },
            "",
        )
    }

    /// The failure of an answer that made no progress in time.
    fn stalled(&self) -> ProviderError {
        let options = &self.server.options;
        if self.decoder.has_output() {
            return timed_out(format!(
                "the answer from {} stopped: nothing new for {}",
                self.server.endpoint.base,
                seconds(options.idle_timeout)
            ));
        }
        timed_out(format!(
            "no answer from {} within {}",
            self.server.endpoint.base,
            seconds(options.first_event_timeout)
        ))
    }

    /// The failure of an answer that was interrupted.
    fn interrupted(&self, why: Interruption) -> ProviderError {
        let base = &self.server.endpoint.base;
        match why {
            Interruption::Connection(how) => {
                let message = format!("the connection to {base} broke in the middle of the answer: {how}");
                // Some servers break off where others close: nothing came in either case.
                ProviderError { connection_lost: true, empty_stream: !self.has_chunk, ..timed_out(message) }
            }
            Interruption::TooLarge(what) => too_large(base, &what),
        }
    }
}

/// The message of the failure whose `empty_stream` is set.
const EMPTY_STREAM: &str = "the stream ended with no event at all";

/// Whether a line of an event stream carries no data.
fn is_frame_only(line: &str) -> bool {
    let line = line.trim();
    let data = line.strip_prefix("data:").map(str::trim);
    line.is_empty()
        || line.starts_with(':')
        || line.starts_with("event:")
        || line.starts_with("id:")
        || line.starts_with("retry:")
        || data.is_some_and(|data| data.is_empty() || data == "[DONE]")
}

/// The failure of an answer that was given up because of its size. It is not retried: a model or a server that
/// produced output without end once would do it again.
fn too_large(base: &str, what: &str) -> ProviderError {
    let message = format!("the answer from {base} was given up: it is {what}");
    ProviderError::new(Failure::new(FailureClass::Other, message), "")
}

/// Replaces unpaired surrogates, which servers send that split a text between UTF-16 code units; `None` if there are
/// none. JSON with an unpaired surrogate cannot be decoded to a string.
fn without_unpaired_surrogates(json: &str) -> Option<String> {
    let unit = |at: usize| -> Option<u16> {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut whole, mut at, mut unpaired) = (String::with_capacity(json.len()), 0, 0);
    while let Some(rest) = json.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(escape) = rest.find('\\') else {
            whole.push_str(rest);
            break;
        };
        whole.push_str(&rest[..escape]);
        at += escape;
        let length = match (unit(at), unit(at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                unpaired += 1;
                whole.push_str("\\ufffd");
                at += 6;
                continue;
            }
            (Some(_), _) => 6,
            // Another escape: the backslash, and the character after it.
            (None, _) => 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
        whole.push_str(&json[at..at + length]);
        at += length;
    }
    (unpaired > 0).then_some(whole)
}

/// The failure of an answer in an encoding that was not asked for.
fn compressed(base: &str, encoding: &str) -> ProviderError {
    let message = format!(
        "{base} sent an answer that is compressed ({encoding}), which was not asked for: turn compression off in the server, \
         or in the proxy in front of it"
    );
    ProviderError::new(Failure { status: Some(200), ..Failure::new(FailureClass::Other, message) }, "")
}

pub(super) fn timed_out(message: String) -> ProviderError {
    ProviderError::new(Failure::new(FailureClass::Timeout, message), "")
}

/// The moment so long from now, at most a century, so that the clock cannot overflow.
fn deadline_after(wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    Instant::now() + wait.min(CENTURY)
}

/// A duration for a message.
fn seconds(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms.is_multiple_of(1_000) { format!("{} s", ms / 1_000) } else { format!("{ms} ms") }
}

/// The failure of a call that got no stream.
pub(super) fn transport_error(base: &str, error: TransportError) -> ProviderError {
    match error {
        TransportError::Make(error) => {
            let message = format!("the request could not be made: {}", one_line(&error));
            ProviderError::new(Failure::new(FailureClass::Other, message), "")
        }
        TransportError::NoKey(reason) => {
            let message = format!("there is no API key: {}", one_line(&reason));
            ProviderError::new(Failure::new(FailureClass::Auth, message), "")
        }
        TransportError::Status { status, headers, body } => {
            let now = SystemTime::now();
            let of_limits = || {
                let wait = limits::wait(&headers, now).filter(|_| status == 429)?;
                u64::try_from(wait.as_millis()).ok()
            };
            let wait_ms = retry_after_ms(&headers, now).or_else(of_limits);
            ProviderError::new(classify(Some(status), &body, wait_ms), body)
        }
        TransportError::Redirect { status, location } => {
            let location = location.split('?').next().unwrap_or_default();
            let message = format!(
                "{base} redirects to {}, which is not followed: set the base URL to the new address",
                one_line(location)
            );
            ProviderError::new(
                Failure { status: Some(status), ..Failure::new(FailureClass::Other, message) },
                "",
            )
        }
        TransportError::WebPage { status, body } => {
            let message =
                format!("{base} answered with a web page, not with an API's answer: check the base URL");
            // It would answer the same again.
            ProviderError::new(
                Failure { status: Some(status), ..Failure::new(FailureClass::Other, message) },
                body,
            )
        }
        TransportError::Compressed { encoding } => compressed(base, &one_line(&encoding)),
        TransportError::TooLarge { limit_bytes } => too_large(base, &more_than(limit_bytes)),
        TransportError::Send(error) => {
            let cause = root_cause(&error);
            let message = if error.is_connect && error.is_timeout {
                format!("cannot reach {base}: no connection in time")
            } else if error.is_connect {
                format!("cannot reach {base}: {cause}")
            } else {
                format!("the connection to {base} broke: {cause}")
            };
            ProviderError {
                connection_refused: is_refused(&error),
                connection_lost: true,
                ..timed_out(message)
            }
        }
    }
}

/// Whether nobody listened at the address.
fn is_refused(error: &Unsent) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    error.is_connect && kinds.any(|kind| kind == io::ErrorKind::ConnectionRefused)
}

/// Gives back what a text that grew piece by piece has too much of: it is kept as long as the conversation.
fn shrink(part: &mut Part) {
    if let Part::Text(text) | Part::Reasoning(text) | Part::ToolCall(ToolCall { arguments: text, .. }) = part
    {
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;

//! Converts a scripted reply to the steps that every transport performs.
//!
//! Invariants: a step list fully describes an answer, including its timing and its faults, so that the HTTP
//! server and the in-process provider cannot differ in behaviour, only in form.

use std::collections::VecDeque;

use greenroom_kernel::{StopReason, Usage};

use crate::fault::{Fault, Point, WrongUsage};
use crate::model::Answer;
use crate::overflow::Refusal;
use crate::protocol::chat as wire;
use crate::tokens;

/// The answer to one request: an error status or a stream of steps.
#[derive(Debug)]
pub(crate) enum Transmission {
    /// An HTTP error, or anything else that is not a stream.
    Status(StatusAnswer),
    /// A stream, as the steps that the transport performs in order.
    Stream(VecDeque<Step>),
}

#[derive(Debug)]
pub(crate) struct StatusAnswer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// The fault that this represents, to be counted when it is sent.
    pub(crate) fired: Option<&'static str>,
    pub(crate) wait_ms: u64,
}

/// One step of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// The status and the headers are sent.
    Headers,
    /// Waits this many milliseconds.
    Wait(u64),
    /// Sends nothing for this long, or for ever; with pings or without.
    Stall { ping_every_ms: Option<u64>, for_ms: Option<u64> },
    /// An event of the protocol.
    Piece(Piece),
    /// Something outside the protocol.
    Raw(Raw),
    /// The connection breaks, without an end of the stream.
    Reset,
    /// The connection is refused.
    Refuse,
    /// A fault happens at this point and is counted.
    Fired(&'static str),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Role,
    Reasoning(String),
    Text(String),
    CallStart { index: usize, id: Option<String>, name: String },
    CallArguments { index: usize, arguments: String },
    Finish(StopReason),
    Usage(Usage),
    Done,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    BrokenJson,
    BadUtf8,
    ErrorEvent,
    PlainText(String),
}

pub(crate) const SERVER_ERROR: &str =
    "The server had an error while processing your request. Sorry about that!";

impl StatusAnswer {
    pub(crate) fn new(status: u16, body: String) -> Self {
        Self { status, headers: Vec::new(), body, fired: None, wait_ms: 0 }
    }
}

/// Truncates `reply` to `room` tokens of output, as a model is truncated, and counts what is left: (output,
/// reasoning).
pub(crate) fn limit_output(reply: &mut Answer, room: u64) -> (u64, u64) {
    let mut left = room;
    let mut is_cut = false;
    let mut fit = |text: &mut String| {
        let size = tokens::count(text);
        if size <= left {
            left -= size;
            return size;
        }
        is_cut = true;
        let kept = tokens::prefix(text, left).len();
        text.truncate(kept);
        let size = tokens::count(text);
        left = 0;
        size
    };
    let reasoning = fit(&mut reply.reasoning);
    fit(&mut reply.text);
    let mut calls = std::mem::take(&mut reply.calls);
    for mut call in calls.drain(..) {
        let frame = tokens::CALL_OVERHEAD + tokens::count(&call.name);
        if left < frame || is_cut {
            is_cut = true;
            break;
        }
        left -= frame;
        let size = tokens::count(&call.arguments);
        if size <= left {
            left -= size;
        } else {
            is_cut = true;
            let kept = tokens::prefix(&call.arguments, left).len();
            call.arguments.truncate(kept);
            left = 0;
        }
        reply.calls.push(call);
    }
    if is_cut {
        reply.finish = Some(StopReason::Length);
        left = 0;
    }
    (room - left, reasoning)
}

/// Returns the answer to a request that is refused because of its size.
pub(crate) fn refused(refusal: Refusal) -> Transmission {
    match refusal {
        Refusal::Status(status, body) => Transmission::Status(StatusAnswer::new(status, body)),
        Refusal::EmptyStream => Transmission::Stream([Step::Headers].into()),
        Refusal::PlainTextLine(text) => Transmission::Stream(
            [Step::Headers, Step::Raw(Raw::PlainText(text)), Step::Piece(Piece::Done)].into(),
        ),
    }
}

/// The numbers that go into a reply's ids and usage.
pub(crate) struct ReplyFacts {
    /// The true usage, after the output was limited.
    pub(crate) usage: Usage,
    /// Makes call ids unique among the session's replies.
    pub(crate) id_seed: u64,
    /// The simulator's window.
    pub(crate) window: u64,
}

/// Returns the answer for `reply`, spoilt by `fault`.
pub(crate) fn answer(reply: &Answer, fault: Option<&Fault>, facts: &ReplyFacts) -> Transmission {
    if let Some(status) = fault.and_then(|fault| status_fault(fault, facts)) {
        return Transmission::Status(StatusAnswer { wait_ms: reply.pace.first_ms, ..status });
    }
    Transmission::Stream(stream_steps(reply, fault, facts))
}

/// Faults that replace the stream.
fn status_fault(fault: &Fault, facts: &ReplyFacts) -> Option<StatusAnswer> {
    let answer = match fault {
        Fault::Http { status, headers, body } => {
            StatusAnswer { headers: headers.clone(), ..StatusAnswer::new(*status, body.clone()) }
        }
        Fault::RateLimited(retry_after) => {
            let (headers, words) = retry_after.parts();
            let message = format!("Rate limit reached for requests.{words}");
            let body = wire::error_body(&message, "requests", Some("rate_limit_exceeded"));
            StatusAnswer { headers, ..StatusAnswer::new(429, body) }
        }
        Fault::ServerError(status) => {
            StatusAnswer::new(*status, wire::error_body(SERVER_ERROR, "server_error", None))
        }
        Fault::Loading => {
            let body = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
            StatusAnswer::new(503, body.to_owned())
        }
        Fault::EmptyBody(status) => StatusAnswer::new(*status, String::new()),
        Fault::ErrorIn200 => StatusAnswer::new(200, wire::error_body(SERVER_ERROR, "server_error", None)),
        Fault::Overflow(dialect) => {
            let tokens = facts.window.saturating_add(1);
            match dialect.refuse(facts.window, tokens, None, tokens.saturating_mul(4), false) {
                Some(Refusal::Status(status, body)) => StatusAnswer::new(status, body),
                // Dialects that are silent when they refuse have no text here either.
                Some(Refusal::EmptyStream | Refusal::PlainTextLine(_)) | None => {
                    StatusAnswer::new(400, String::new())
                }
            }
        }
        Fault::ErrorEvent
        | Fault::Refused
        | Fault::Reset(_)
        | Fault::Stall { .. }
        | Fault::EofBeforeFinish
        | Fault::EofWithoutDone
        | Fault::EmptyStream
        | Fault::MalformedSse
        | Fault::BadUtf8
        | Fault::PlainTextLine(_)
        | Fault::TruncatedArguments
        | Fault::DoubledArguments
        | Fault::DoubledIds
        | Fault::MissingIds
        | Fault::Usage(_)
        | Fault::SilentTruncation => return None,
    };
    Some(StatusAnswer { fired: Some(fault.name()), ..answer })
}

/// Returns where in the stream a fault strikes, its effect, and `true` if nothing comes after it.
fn strike(fault: &Fault) -> Option<(Point, Option<Step>, bool)> {
    let strike = match fault {
        Fault::Reset(point) => (*point, Some(Step::Reset), true),
        Fault::Refused => (Point::BeforeHeaders, Some(Step::Refuse), true),
        Fault::Stall { at, ping_every_ms, for_ms } => {
            let stall = Step::Stall { ping_every_ms: *ping_every_ms, for_ms: *for_ms };
            (*at, Some(stall), for_ms.is_none())
        }
        Fault::EofBeforeFinish => (Point::BeforeFinish, None, true),
        Fault::EmptyStream => (Point::AfterHeaders, None, true),
        Fault::ErrorEvent => (Point::MidStream, Some(Step::Raw(Raw::ErrorEvent)), true),
        Fault::MalformedSse => (Point::MidStream, Some(Step::Raw(Raw::BrokenJson)), false),
        Fault::BadUtf8 => (Point::MidStream, Some(Step::Raw(Raw::BadUtf8)), false),
        Fault::PlainTextLine(text) => {
            (Point::AfterHeaders, Some(Step::Raw(Raw::PlainText(text.clone()))), true)
        }
        Fault::Http { .. }
        | Fault::RateLimited(_)
        | Fault::ServerError(_)
        | Fault::Loading
        | Fault::EmptyBody(_)
        | Fault::ErrorIn200
        | Fault::Overflow(_)
        | Fault::EofWithoutDone
        | Fault::TruncatedArguments
        | Fault::DoubledArguments
        | Fault::DoubledIds
        | Fault::MissingIds
        | Fault::Usage(_)
        | Fault::SilentTruncation => return None,
    };
    Some(strike)
}

fn stream_steps(reply: &Answer, fault: Option<&Fault>, facts: &ReplyFacts) -> VecDeque<Step> {
    let mut fired = None;
    let content = content_pieces(reply, fault, facts, &mut fired);
    let mut steps = VecDeque::with_capacity(content.len() + 8);
    let strike = fault.and_then(|fault| strike(fault).map(|strike| (fault, strike)));
    // Performs the strike if it belongs to this point; returns whether the answer ends there.
    let strike_at = |point: Point, steps: &mut VecDeque<Step>| match &strike {
        Some((fault, (at, step, is_end))) if *at == point => {
            steps.push_back(Step::Fired(fault.name()));
            steps.extend(step.clone());
            *is_end
        }
        Some(_) | None => false,
    };
    if strike_at(Point::BeforeHeaders, &mut steps) {
        return steps;
    }
    steps.push_back(Step::Headers);
    if reply.pace.first_ms > 0 {
        steps.push_back(Step::Wait(reply.pace.first_ms));
    }
    steps.extend(fired.map(Step::Fired));
    if strike_at(Point::AfterHeaders, &mut steps) {
        if matches!(fault, Some(Fault::PlainTextLine(_))) {
            steps.push_back(Step::Piece(Piece::Done));
        }
        return steps;
    }
    steps.push_back(Step::Piece(Piece::Role));
    let middle = content.len().div_ceil(2);
    let is_empty = content.is_empty();
    for (index, piece) in content.into_iter().enumerate() {
        if index > 0 && reply.pace.between_ms > 0 {
            steps.push_back(Step::Wait(reply.pace.between_ms));
        }
        steps.push_back(Step::Piece(piece));
        if index + 1 == middle && strike_at(Point::MidStream, &mut steps) {
            return steps;
        }
    }
    if (is_empty && strike_at(Point::MidStream, &mut steps)) || strike_at(Point::BeforeFinish, &mut steps) {
        return steps;
    }
    let by_content = if reply.calls.is_empty() { StopReason::Stop } else { StopReason::ToolCalls };
    let finish = match fault {
        Some(Fault::TruncatedArguments) if !reply.calls.is_empty() => StopReason::Length,
        Some(_) | None => reply.finish.unwrap_or(by_content),
    };
    steps.push_back(Step::Piece(Piece::Finish(finish)));
    let usage = reply.usage.unwrap_or(facts.usage);
    let usage = match fault {
        Some(Fault::Usage(wrong)) => {
            steps.push_back(Step::Fired(Fault::Usage(*wrong).name()));
            wrong.of(usage)
        }
        Some(_) | None => Some(usage),
    };
    steps.extend(usage.map(|usage| Step::Piece(Piece::Usage(usage))));
    match fault {
        Some(Fault::EofWithoutDone) => steps.push_back(Step::Fired(Fault::EofWithoutDone.name())),
        Some(Fault::SilentTruncation) => {
            steps.push_back(Step::Fired(Fault::SilentTruncation.name()));
            steps.push_back(Step::Piece(Piece::Done));
        }
        Some(_) | None => steps.push_back(Step::Piece(Piece::Done)),
    }
    steps
}

impl WrongUsage {
    fn of(self, usage: Usage) -> Option<Usage> {
        match self {
            Self::Zero => Some(Usage::default()),
            Self::Absurd => Some(Usage {
                input_tokens: usage.input_tokens.saturating_mul(1_000),
                output_tokens: usage.output_tokens.saturating_mul(1_000),
                ..usage
            }),
            Self::Missing => None,
        }
    }
}

fn content_pieces(
    reply: &Answer,
    fault: Option<&Fault>,
    facts: &ReplyFacts,
    fired: &mut Option<&'static str>,
) -> Vec<Piece> {
    let chunks = reply.pace.chunks;
    let mut pieces: Vec<Piece> =
        cut(&reply.reasoning, chunks).map(|text| Piece::Reasoning(text.into())).collect();
    pieces.extend(cut(&reply.text, chunks).map(|text| Piece::Text(text.into())));
    let mut calls: Vec<(Option<String>, &str, String)> = reply
        .calls
        .iter()
        .enumerate()
        .map(|(index, call)| {
            let id = call.id.clone().unwrap_or_else(|| {
                format!("call_{:016x}", crate::fault::mix(facts.id_seed.wrapping_add(index as u64)))
            });
            (Some(id), call.name.as_str(), call.arguments.clone())
        })
        .collect();
    match (fault, calls.last_mut()) {
        (Some(fault @ Fault::TruncatedArguments), Some((_, _, arguments))) => {
            let mut half = arguments.len() / 2;
            while !arguments.is_char_boundary(half) {
                half -= 1;
            }
            arguments.truncate(half);
            *fired = Some(fault.name());
        }
        (Some(fault @ Fault::DoubledArguments), Some((_, _, arguments))) => {
            *arguments = arguments.repeat(2);
            *fired = Some(fault.name());
        }
        (Some(fault @ Fault::DoubledIds), Some(last)) => {
            let last = last.clone();
            if calls.len() == 1 {
                calls.push(last);
            } else {
                let first = calls[0].0.clone();
                for call in &mut calls {
                    call.0.clone_from(&first);
                }
            }
            *fired = Some(fault.name());
        }
        (Some(fault @ Fault::MissingIds), Some(_)) => {
            for call in &mut calls {
                call.0 = None;
            }
            *fired = Some(fault.name());
        }
        (Some(_) | None, _) => {}
    }
    for (index, (id, name, arguments)) in calls.into_iter().enumerate() {
        pieces.push(Piece::CallStart { index, id, name: name.to_owned() });
        pieces.extend(
            cut(&arguments, chunks).map(|text| Piece::CallArguments { index, arguments: text.to_owned() }),
        );
    }
    pieces
}

/// Splits `text` into at most `chunks` pieces of about the same size; none if it is empty.
fn cut(text: &str, chunks: usize) -> impl Iterator<Item = &str> {
    let size = text.len().div_ceil(chunks.max(1)).max(1);
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = size.min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests;

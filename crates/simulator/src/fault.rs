//! Faults of a provider, chosen by a script or by a seed.
//!
//! Invariants: a fault is counted when it really affects the answer, not when it is chosen; a test that
//! injects a fault asserts that count. The same plan, session and call number always give the same fault,
//! however sessions interleave.

use greenroom_kernel::random::Random;
use greenroom_provider::Purpose;

use crate::overflow::ErrorDialect;

/// A fault in an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// An answer of this status, with these headers and this body.
    Http {
        /// The HTTP status.
        status: u16,
        /// Headers beside the content type.
        headers: Vec<(String, String)>,
        /// The body of the response.
        body: String,
    },
    /// 429, with the wait in one of the forms in use.
    RateLimited(RetryAfter),
    /// A 5xx (or 529) with an OpenAI-shaped error.
    ServerError(u16),
    /// 503 from a server that is still loading its model, in the words of llama-server.
    Loading,
    /// Nothing listens at the address. Over HTTP, where the server does listen, the connection breaks before
    /// an answer.
    Refused,
    /// This status with an empty body.
    EmptyBody(u16),
    /// 200, and the body is an error object instead of a stream.
    ErrorIn200,
    /// A stream in which an error object replaces a chunk, and which then ends without `[DONE]`.
    ErrorEvent,
    /// The request is refused as larger than the window, though it is not.
    Overflow(ErrorDialect),
    /// The connection breaks at this point, without an end of the stream.
    Reset(Point),
    /// Nothing more is sent from this point on, for a time or for ever.
    Stall {
        /// The point from which nothing is sent.
        at: Point,
        /// The interval of pings (comments of the event stream); `None`: silence.
        ping_every_ms: Option<u64>,
        /// How long it lasts before the answer continues; `None`: until the client disconnects.
        for_ms: Option<u64>,
    },
    /// The stream ends cleanly before its finish reason.
    EofBeforeFinish,
    /// The stream ends after its finish reason and usage, without `[DONE]`.
    EofWithoutDone,
    /// 200, a stream without one event, closed cleanly.
    EmptyStream,
    /// A chunk that is broken JSON, in the middle.
    MalformedSse,
    /// A chunk that is not UTF-8, in the middle.
    BadUtf8,
    /// A data line of plain text and then `[DONE]`.
    PlainTextLine(String),
    /// The last call's arguments are cut in half; the finish reason is `length`.
    TruncatedArguments,
    /// The last call's arguments come twice.
    DoubledArguments,
    /// Two calls with the same id; a single call is sent twice.
    DoubledIds,
    /// Tool calls come without ids.
    MissingIds,
    /// The reported usage is wrong.
    Usage(WrongUsage),
    /// The oldest half of the conversation is dropped before it is answered, and the usage says so.
    SilentTruncation,
}

/// How a 429 states the wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryAfter {
    /// The header is missing.
    Missing,
    /// `retry-after`, whole seconds.
    Seconds(u64),
    /// `retry-after`, seconds with a fraction; given in milliseconds.
    Fraction(u64),
    /// `retry-after`, an HTTP date this many seconds from now.
    Date(u64),
    /// `retry-after-ms`.
    Milliseconds(u64),
    /// `x-ratelimit-reset-requests`, such as `1.5s`; given in milliseconds.
    ResetHeader(u64),
    /// Only in the message, "Please try again in 1.5s"; given in milliseconds.
    Message(u64),
    /// `retry-after: soon`.
    Garbage,
}

/// A point in an answer at which a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before the status line and the headers.
    BeforeHeaders,
    /// After the headers, before the first event.
    AfterHeaders,
    /// After about half of the events.
    MidStream,
    /// After everything but the finish reason.
    BeforeFinish,
}

/// How the reported usage is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WrongUsage {
    /// All numbers are zero.
    Zero,
    /// A thousand times too large.
    Absurd,
    /// None, though it was requested.
    Missing,
}

impl RetryAfter {
    /// Returns the headers, and the addition to the message.
    pub(crate) fn parts(&self) -> (Vec<(String, String)>, String) {
        let header = |name: &str, value: String| (vec![(name.to_owned(), value)], String::new());
        match self {
            Self::Missing => (Vec::new(), String::new()),
            Self::Seconds(seconds) => header("retry-after", seconds.to_string()),
            Self::Fraction(ms) => header("retry-after", seconds_text(*ms)),
            Self::Date(seconds) => {
                let at = std::time::SystemTime::now() + std::time::Duration::from_secs(*seconds);
                header("retry-after", httpdate::fmt_http_date(at))
            }
            Self::Milliseconds(ms) => header("retry-after-ms", ms.to_string()),
            Self::ResetHeader(ms) => header("x-ratelimit-reset-requests", format!("{}s", seconds_text(*ms))),
            Self::Message(ms) => (Vec::new(), format!(" Please try again in {}s.", seconds_text(*ms))),
            Self::Garbage => header("retry-after", "soon".to_owned()),
        }
    }
}

fn seconds_text(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

impl Fault {
    /// Returns the name under which [`crate::Simulator::fired`] counts it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::RateLimited(_) => "rate_limited",
            Self::ServerError(_) => "server_error",
            Self::Loading => "loading",
            Self::Refused => "refused",
            Self::EmptyBody(_) => "empty_body",
            Self::ErrorIn200 => "error_in_200",
            Self::ErrorEvent => "error_event",
            Self::Overflow(_) => "overflow",
            Self::Reset(Point::BeforeHeaders) => "reset_before_headers",
            Self::Reset(Point::AfterHeaders) => "reset_after_headers",
            Self::Reset(Point::MidStream) => "reset_mid_stream",
            Self::Reset(Point::BeforeFinish) => "reset_before_finish",
            Self::Stall { ping_every_ms: None, .. } => "stall",
            Self::Stall { ping_every_ms: Some(_), .. } => "stall_with_pings",
            Self::EofBeforeFinish => "eof_before_finish",
            Self::EofWithoutDone => "eof_without_done",
            Self::EmptyStream => "empty_stream",
            Self::MalformedSse => "malformed_sse",
            Self::BadUtf8 => "bad_utf8",
            Self::PlainTextLine(_) => "plain_text_line",
            Self::TruncatedArguments => "truncated_arguments",
            Self::DoubledArguments => "doubled_arguments",
            Self::DoubledIds => "doubled_ids",
            Self::MissingIds => "missing_ids",
            Self::Usage(WrongUsage::Zero) => "usage_zero",
            Self::Usage(WrongUsage::Absurd) => "usage_absurd",
            Self::Usage(WrongUsage::Missing) => "usage_missing",
            Self::SilentTruncation => "silent_truncation",
        }
    }

    /// Whether the client gets no usable answer and therefore retries: the script's run does not advance.
    pub(crate) fn spoils_answer(&self) -> bool {
        match self {
            Self::Http { .. }
            | Self::RateLimited(_)
            | Self::ServerError(_)
            | Self::Loading
            | Self::Refused
            | Self::EmptyBody(_)
            | Self::ErrorIn200
            | Self::ErrorEvent
            | Self::Overflow(_)
            | Self::Reset(_)
            | Self::Stall { for_ms: None, .. }
            | Self::EofBeforeFinish
            | Self::EmptyStream
            | Self::MalformedSse
            | Self::BadUtf8
            | Self::PlainTextLine(_)
            | Self::TruncatedArguments
            | Self::DoubledArguments => true,
            Self::Stall { for_ms: Some(_), .. }
            | Self::EofWithoutDone
            | Self::DoubledIds
            | Self::MissingIds
            | Self::Usage(_)
            | Self::SilentTruncation => false,
        }
    }

    /// Whether it requires a tool call to spoil.
    pub(crate) fn needs_call(&self) -> bool {
        matches!(
            self,
            Self::TruncatedArguments | Self::DoubledArguments | Self::DoubledIds | Self::MissingIds
        )
    }

    /// Whether it replaces the whole answer, so that the script is not called.
    pub(crate) fn replaces_answer(&self) -> bool {
        match self {
            Self::Http { .. }
            | Self::RateLimited(_)
            | Self::ServerError(_)
            | Self::Loading
            | Self::Refused
            | Self::EmptyBody(_)
            | Self::ErrorIn200
            | Self::Overflow(_)
            | Self::EmptyStream
            | Self::Reset(Point::BeforeHeaders | Point::AfterHeaders)
            | Self::PlainTextLine(_) => true,
            Self::ErrorEvent
            | Self::Reset(Point::MidStream | Point::BeforeFinish)
            | Self::Stall { .. }
            | Self::EofBeforeFinish
            | Self::EofWithoutDone
            | Self::MalformedSse
            | Self::BadUtf8
            | Self::TruncatedArguments
            | Self::DoubledArguments
            | Self::DoubledIds
            | Self::MissingIds
            | Self::Usage(_)
            | Self::SilentTruncation => false,
        }
    }

    /// Returns one fault of every kind that a runtime must survive, with short waits: the default choice of a
    /// [`FaultPlan`]. Stalls last until the client disconnects, as real ones do.
    pub fn every_kind() -> Vec<Self> {
        use Point::{AfterHeaders, BeforeFinish, BeforeHeaders, MidStream};
        vec![
            Self::RateLimited(RetryAfter::Missing),
            Self::RateLimited(RetryAfter::Seconds(1)),
            Self::RateLimited(RetryAfter::Fraction(500)),
            Self::RateLimited(RetryAfter::Date(2)),
            Self::RateLimited(RetryAfter::Milliseconds(250)),
            Self::RateLimited(RetryAfter::ResetHeader(1_500)),
            Self::RateLimited(RetryAfter::Message(1_200)),
            Self::RateLimited(RetryAfter::Garbage),
            Self::ServerError(500),
            Self::ServerError(502),
            Self::ServerError(503),
            Self::ServerError(529),
            Self::Loading,
            Self::Refused,
            Self::EmptyBody(400),
            Self::EmptyBody(413),
            Self::EmptyBody(429),
            Self::EmptyBody(500),
            Self::ErrorIn200,
            Self::ErrorEvent,
            Self::Reset(BeforeHeaders),
            Self::Reset(AfterHeaders),
            Self::Reset(MidStream),
            Self::Reset(BeforeFinish),
            Self::Stall { at: BeforeHeaders, ping_every_ms: None, for_ms: None },
            Self::Stall { at: MidStream, ping_every_ms: None, for_ms: None },
            Self::Stall { at: AfterHeaders, ping_every_ms: Some(15_000), for_ms: None },
            Self::EofBeforeFinish,
            Self::EofWithoutDone,
            Self::EmptyStream,
            Self::MalformedSse,
            Self::BadUtf8,
            Self::PlainTextLine("the engine is restarting".to_owned()),
            Self::TruncatedArguments,
            Self::DoubledArguments,
            Self::DoubledIds,
            Self::MissingIds,
            Self::Usage(WrongUsage::Zero),
            Self::Usage(WrongUsage::Absurd),
            Self::Usage(WrongUsage::Missing),
            Self::SilentTruncation,
        ]
    }
}

/// A plan of faults derived from a seed.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// The seed. Print it to make the run repeatable.
    pub seed: u64,
    /// The share of calls that fail, 0 to 1.
    pub rate: f64,
    /// The faults to choose from.
    pub faults: Vec<Fault>,
    /// Only calls of this purpose; `None`: all.
    pub purpose: Option<Purpose>,
}

impl FaultPlan {
    /// Returns a plan over every kind of fault.
    pub fn new(seed: u64, rate: f64) -> Self {
        Self { seed, rate, faults: Fault::every_kind(), purpose: None }
    }

    /// Chooses the fault for one call; `request` is the number of the session's request, including failed
    /// ones.
    pub(crate) fn choose(&self, session: &str, request: u64, purpose: Purpose) -> Option<&Fault> {
        if self.faults.is_empty() || self.purpose.is_some_and(|only| only != purpose) {
            return None;
        }
        let dice = hash(&[&self.seed.to_le_bytes(), session.as_bytes(), &request.to_le_bytes()]);
        // 53 bits: the precision of a float.
        let share = (dice >> 11) as f64 / (1_u64 << 53) as f64;
        if share >= self.rate {
            return None;
        }
        let kinds = self.faults.len() as u64;
        let index = usize::try_from(mix(dice) % kinds).expect("an index below a length");
        self.faults.get(index)
    }
}

/// Returns a stable hash of some bytes: the same in every process and version.
pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in *part {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        // A separator, so that ("ab", "c") and ("a", "bc") differ.
        state = (state ^ 0xff).wrapping_mul(0x0100_0000_01b3);
    }
    mix(state)
}

/// Spreads a hash over all bits.
pub(crate) fn mix(value: u64) -> u64 {
    Random::new(value).number()
}

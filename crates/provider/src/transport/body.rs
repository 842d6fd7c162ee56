//! The body of an answer, read as server-sent events.
//!
//! The events are parsed by the crate `sse-core`, in the task of whoever reads them: there is no task and no channel
//! between the connection and the reader, so nothing is read ahead of the reader. This file adds what a provider needs
//! besides: limits of size, the beginning of the body for error messages, and whether bytes had to be replaced. An event
//! of one line that came in one chunk is read where it is, without the crate and without a copy.
//!
//! Invariants: the events do not depend on how the body is cut into chunks; an event that the end of the body leaves
//! open is closed; nothing follows `[DONE]`, the end or an interruption; and reading gives way to other tasks from
//! time to time, however fast the body comes.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::stream::{self, BoxStream, StreamExt};
use sse_core::{PayloadTooLargeError, SseDecoder, SseEvent};
use tokio::task::coop::poll_proceed;

use super::send::{Unsent, root_cause};

/// How much of an answer's beginning is kept, in bytes, for the error message if there is no event in it.
const SAMPLE_BYTES_MAX: usize = 2 * 1024;

/// The longest line of an event stream, in bytes. A server may send a whole answer in one line.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What an answer that is too large is, for the user.
pub(super) fn more_than(limit_bytes: usize) -> String {
    format!("an answer of more than {limit_bytes} bytes")
}

/// Why an answer ended in the middle, with the cause as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interruption {
    /// The connection broke.
    Connection(String),
    /// The answer was given up because of its size.
    TooLarge(String),
}

/// The data of an event.
#[derive(Debug)]
pub(super) enum Data {
    /// A part of the chunk in which it came, which is UTF-8.
    Part(Bytes),
    Own(String),
}

impl Data {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Part(bytes) => bytes,
            Self::Own(text) => text.as_bytes(),
        }
    }
}

impl Deref for Data {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Part(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Own(text) => text,
        }
    }
}

/// The body of an answer.
pub(super) struct Body {
    chunks: BoxStream<'static, Result<Bytes, Unsent>>,
    /// The rest of the newest chunk, which was not parsed yet.
    unparsed: Bytes,
    /// Whether the newest chunk is UTF-8 by itself, so that each of its lines is.
    is_utf8: bool,
    decoder: SseDecoder,
    /// Whether the decoder has read nothing since its newest event.
    is_between_events: bool,
    /// A whole answer that came as plain JSON.
    whole: Option<String>,
    /// How much of a mark of byte order was skipped; `None` once something else has come.
    mark_bytes: Option<usize>,
    limit_bytes: usize,
    left_bytes: usize,
    /// How much has come of the line that has not ended.
    line_bytes: usize,
    /// The beginning of the body, as long as there was no event in it, without the newest chunk.
    sample: Vec<u8>,
    /// The newest chunk, as long as there was no event in the body.
    unsampled: Bytes,
    has_event: bool,
    utf8: Utf8,
    is_over: bool,
    was_done: bool,
    /// The `Content-Encoding`, if its bodies cannot be told by their beginning.
    declared: Option<String>,
}

impl Body {
    /// The body of an event stream, of which at most `limit_bytes` are read.
    pub(super) fn events(chunks: BoxStream<'static, Result<Bytes, Unsent>>, limit_bytes: usize) -> Self {
        // What an event holds is limited by the body's limit; the decoder's own limit is never reached before it.
        let event_bytes_max = NonZeroUsize::new(limit_bytes).unwrap_or(NonZeroUsize::MIN);
        let mut decoder = SseDecoder::with_limit(event_bytes_max);
        // Marks of byte order are skipped before, so the decoder is to look for none: it is past the beginning.
        let _no_event = decoder.next(&mut &b"\n"[..]);
        Self {
            chunks,
            unparsed: Bytes::new(),
            is_utf8: false,
            decoder,
            is_between_events: true,
            whole: None,
            mark_bytes: Some(0),
            limit_bytes,
            left_bytes: limit_bytes,
            line_bytes: 0,
            sample: Vec::new(),
            unsampled: Bytes::new(),
            has_event: false,
            utf8: Utf8::default(),
            is_over: false,
            was_done: false,
            declared: None,
        }
    }

    /// A whole answer in plain JSON, as one event; one without any text is no event.
    pub(super) fn whole(json: &[u8]) -> Self {
        let mut body = Self::events(stream::empty().boxed(), 0);
        body.utf8.add(json);
        let text = String::from_utf8_lossy(json);
        let text = text.trim_start_matches('\u{feff}').trim();
        body.whole = (!text.is_empty()).then(|| text.to_owned());
        body.is_over = true;
        body
    }

    /// The data of the next event; `None` at the end, be it that of the body or `[DONE]`.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Data, Interruption>>> {
        loop {
            // What has come may be much, and what comes may come without end: other tasks want to run too.
            let turn = ready!(poll_proceed(context));
            turn.made_progress();
            if let Some(data) = self.whole.take() {
                return Poll::Ready(Some(Ok(Data::Own(data))));
            }
            match self.next_event() {
                Some(Ok(Some(data))) if data.as_bytes() == b"[DONE]" => {
                    // The connection reads into the same memory again.
                    drop(data);
                    self.was_done = true;
                    self.close();
                    return Poll::Ready(None);
                }
                Some(Ok(Some(data))) => {
                    if !std::mem::replace(&mut self.has_event, true) {
                        (self.sample, self.unsampled) = (Vec::new(), Bytes::new());
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Some(Ok(None)) => continue,
                Some(Err(_)) => return self.interrupted(Interruption::TooLarge(more_than(self.limit_bytes))),
                None if self.is_over => return Poll::Ready(None),
                // The connection reads into the same memory again, unless a chunk still refers to it.
                None => self.unparsed = Bytes::new(),
            }
            match ready!(self.chunks.poll_next_unpin(context)) {
                Some(Ok(chunk)) => {
                    if let Err(why) = self.add(chunk) {
                        return self.interrupted(why);
                    }
                }
                Some(Err(error)) => {
                    return self.interrupted(Interruption::Connection(root_cause(&error)));
                }
                None => {
                    self.close();
                    self.unparsed = Bytes::from_static(b"\n\n");
                }
            }
        }
    }

    /// The next event of the bytes that have come, if there is one in them; `None` in it if its data counts for nothing.
    fn next_event(&mut self) -> Option<Result<Option<Data>, PayloadTooLargeError>> {
        if let Some(data) = self.event_of_one_line() {
            return Some(Ok(Some(data)));
        }
        let has_bytes = !self.unparsed.is_empty();
        match self.decoder.next(&mut self.unparsed) {
            Some(Ok(SseEvent::Message(event))) => {
                self.is_between_events = true;
                // The specification has events without data ignored; proxies send them to keep a connection open.
                let counts = event.event != "keepalive" && !event.data.trim_ascii().is_empty();
                Some(Ok(counts.then_some(Data::Own(event.data))))
            }
            event => {
                self.is_between_events &= !has_bytes;
                event.map(|event| event.map(|_retry| None))
            }
        }
    }

    /// The next event, if it is all that `data: `, one line and an empty line are.
    fn event_of_one_line(&mut self) -> Option<Data> {
        const FIELD: &[u8] = b"data: ";
        let line = self.unparsed.strip_prefix(FIELD).filter(|_| self.is_between_events)?;
        let length = memchr::memchr2(b'\n', b'\r', line)?;
        if !line[length..].starts_with(b"\n\n") || line[..length].trim_ascii().is_empty() {
            return None;
        }
        if !self.is_utf8 && std::str::from_utf8(&line[..length]).is_err() {
            return None;
        }
        let mut data = self.unparsed.split_to(FIELD.len() + length + 2);
        data.advance(FIELD.len());
        data.truncate(length);
        Some(Data::Part(data))
    }

    /// The beginning of the body, if there was no event in it.
    pub(super) fn sample(&mut self) -> String {
        self.add_sample();
        String::from_utf8_lossy(&self.sample).into_owned()
    }

    /// Keeps what belongs to the beginning of the body of the newest chunk.
    fn add_sample(&mut self) {
        let chunk = std::mem::take(&mut self.unsampled);
        let room = SAMPLE_BYTES_MAX.saturating_sub(self.sample.len());
        self.sample.extend_from_slice(&chunk[..room.min(chunk.len())]);
    }

    /// Whether the body ended with `[DONE]`.
    pub(super) fn was_done(&self) -> bool {
        self.was_done
    }

    /// With the `Content-Encoding` of the response. It counts only if the body cannot be read: some proxies leave the header
    /// of a body that they have decompressed.
    pub(super) fn declared(mut self, encoding: Option<String>) -> Self {
        let has_magic = |name: &str| ["identity", "gzip", "x-gzip", "zstd"].contains(&name);
        self.declared = encoding.filter(|name| !has_magic(&name.to_ascii_lowercase()));
        self
    }

    /// How a body is compressed that cannot be read: by its beginning, or as the response declares.
    pub(super) fn compression(&mut self) -> Option<String> {
        self.add_sample();
        compression(&self.sample).map(str::to_owned).or_else(|| self.declared.clone())
    }

    /// Whether the body had bytes that are not UTF-8 and were replaced.
    pub(super) fn had_invalid_utf8(&self) -> bool {
        self.utf8.is_invalid()
    }

    /// Closes the connection. Nothing more is read.
    pub(super) fn close(&mut self) {
        self.is_over = true;
        self.unparsed = Bytes::new();
        self.chunks = stream::empty().boxed();
    }

    fn interrupted<T>(&mut self, why: Interruption) -> Poll<Option<Result<T, Interruption>>> {
        self.close();
        Poll::Ready(Some(Err(why)))
    }

    /// Takes a chunk to be parsed.
    fn add(&mut self, mut chunk: Bytes) -> Result<(), Interruption> {
        if !self.has_event {
            self.add_sample();
            self.unsampled = chunk.clone();
        }
        let left_bytes = self.left_bytes.checked_sub(chunk.len());
        self.left_bytes = left_bytes.ok_or_else(|| Interruption::TooLarge(more_than(self.limit_bytes)))?;
        self.line_bytes = match chunk.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(end) => chunk.len() - end - 1,
            None => self.line_bytes + chunk.len(),
        };
        if self.line_bytes > LINE_BYTES_MAX {
            return Err(Interruption::TooLarge(format!("a line of more than {LINE_BYTES_MAX} bytes")));
        }
        self.is_utf8 = self.utf8.add(&chunk);
        self.skip_marks(&mut chunk);
        self.unparsed = chunk;
        Ok(())
    }

    /// Skips marks of byte order in front of the first line: some bodies begin with two.
    fn skip_marks(&mut self, chunk: &mut Bytes) {
        const MARK: &[u8] = "\u{feff}".as_bytes();
        while let (Some(skipped), Some(byte)) = (self.mark_bytes, chunk.first()) {
            if *byte == MARK[skipped] {
                chunk.advance(1);
                self.mark_bytes = Some((skipped + 1) % MARK.len());
            } else {
                self.mark_bytes = None;
            }
        }
    }
}

/// The compression by which a body begins, if it does.
pub(super) fn compression(body: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 2] = [(&[0x1f, 0x8b], "gzip"), (&[0x28, 0xb5, 0x2f, 0xfd], "zstd")];
    known.iter().find(|(magic, _)| body.starts_with(magic)).map(|(_, name)| *name)
}

/// Whether bytes that come in chunks are UTF-8.
#[derive(Debug, Default)]
struct Utf8 {
    /// The beginning of a character that the next chunk goes on with.
    begun: Vec<u8>,
    is_broken: bool,
}

impl Utf8 {
    /// Adds a chunk. Returns whether it is known to be UTF-8 by itself.
    fn add(&mut self, chunk: &[u8]) -> bool {
        if self.is_broken {
            return false;
        }
        // Most chunks are ASCII, and checking that takes a fraction of the time.
        if chunk.is_ascii() && self.begun.is_empty() {
            return true;
        }
        let mut joined = std::mem::take(&mut self.begun);
        let is_by_itself = joined.is_empty();
        let bytes = if is_by_itself {
            chunk
        } else {
            joined.extend_from_slice(chunk);
            &joined
        };
        if let Err(error) = std::str::from_utf8(bytes) {
            match error.error_len() {
                Some(_) => self.is_broken = true,
                None => self.begun = bytes[error.valid_up_to()..].to_vec(),
            }
            return false;
        }
        is_by_itself
    }

    /// Whether something in it is not UTF-8, be it only a character that has no end.
    fn is_invalid(&self) -> bool {
        self.is_broken || !self.begun.is_empty()
    }
}

#[cfg(test)]
mod tests;

//! The pattern that a stream's chunks of text follow, so that most of them need not be parsed as JSON.
//!
//! Within one stream, servers send the same bytes around every piece of text: the id, the time, the model, the empty
//! fields. Once a chunk was parsed, the next one is compared with it, and where only the text differs, the text is all
//! that is read. Some servers also pad each chunk with random characters under `obfuscation`, which may differ too.
//!
//! Invariants: a text that is read from a pattern is the text that parsing gives, and the chunk carries nothing else
//! (a test compares the two). Whatever does not follow the pattern is parsed.

use std::ops::Range;

use super::chunk::Chunk;

/// What comes before the padding of a chunk, its opening quotation mark included.
const PADDING: &str = r#""obfuscation":""#;
/// After so many patterns in a row that no chunk followed, none is looked for any more.
const UNUSED_MAX: u8 = 4;

/// The pattern of a stream's chunks, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Pattern {
    known: Option<Parts>,
    /// How many patterns in a row no chunk followed.
    unused: u8,
}

/// What is the same in all chunks.
#[derive(Debug)]
struct Parts {
    /// Everything before the text.
    before: Box<str>,
    /// Everything after the text, up to the padding if there is any.
    after: Box<str>,
    /// Everything after the padding.
    end: Option<Box<str>>,
}

impl Pattern {
    /// The text of a chunk that follows the pattern; `None` where the chunk has to be parsed.
    pub(super) fn text(&mut self, data: &str) -> Option<String> {
        let text = self.known.as_ref()?.text(data)?;
        self.unused = 0;
        Some(text)
    }

    /// Learns the pattern of a chunk that was parsed, if it carries text and nothing else.
    pub(super) fn learn(&mut self, data: &str, chunk: &Chunk) {
        if self.unused < UNUSED_MAX
            && let Some(place) = chunk.only_text().and_then(|text| text.place_in(data))
        {
            self.known = Some(Parts::of(data, place));
            self.unused += 1;
        }
    }
}

impl Parts {
    /// Those of a chunk whose text has this place.
    fn of(data: &str, place: Range<usize>) -> Self {
        let (before, rest) = (&data[..place.start], &data[place.end..]);
        match value_after(rest, PADDING) {
            None => Self { before: before.into(), after: rest.into(), end: None },
            Some(padding) => {
                let (after, end) = (&rest[..padding.start], &rest[padding.end..]);
                Self { before: before.into(), after: after.into(), end: Some(end.into()) }
            }
        }
    }

    fn text(&self, data: &str) -> Option<String> {
        let mut rest = data.strip_prefix(&*self.before)?;
        if let Some(end) = &self.end {
            rest = rest.strip_suffix(&**end)?;
            let padding = &rest[rest.rfind('"')? + 1..];
            if !is_plain(padding) {
                return None;
            }
            rest = &rest[..rest.len() - padding.len()];
        }
        let text = rest.strip_suffix(&*self.after)?;
        if is_plain(text) {
            return Some(text.to_owned());
        }
        // The quotation marks around the text belong to what is the same.
        let start = self.before.len() - 1;
        serde_json::from_str(data.get(start..start + text.len() + 2)?).ok()
    }
}

/// Where the string lies whose beginning is marked by `mark`, without its quotation marks. `None` where there is not
/// exactly one.
fn value_after(data: &str, mark: &str) -> Option<Range<usize>> {
    let start = data.find(mark)? + mark.len();
    if data[start..].contains(mark) {
        return None;
    }
    let mut is_escaped = false;
    let end = data[start..].bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some(start..start + end)
}

/// Whether these bytes of a JSON string stand for themselves.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\')
}

#[cfg(test)]
mod tests;

//! Redaction of transient events. Durable events are made of entries, which were redacted when they were recorded.
//!
//! Invariants: a piece of an answer is redacted before it is published, in [`Pieces`], because the beginning of a value
//! must wait for its end.

use std::collections::BTreeMap;

use greenroom_kernel::redact::{RedactedStream, Redactor};

use super::event::{Delta, EventKind};

/// Redacts the texts of a transient event. Reasons and warnings may quote anything, such as the answer of a server.
pub(crate) fn transient(redactor: &Redactor, kind: &mut EventKind) {
    if let EventKind::Warning { message: text }
    | EventKind::SessionRestarted { reason: text }
    | EventKind::SessionFailed { reason: text }
    | EventKind::SessionMoved { reason: text }
    | EventKind::Hook { detail: Some(text), .. } = kind
    {
        redactor.all_in(text);
    } else if let EventKind::Retry { failure, .. } | EventKind::Fallback { failure, .. } = kind {
        redactor.failure(failure);
    } else if let EventKind::ToolStart { arguments: text, .. } | EventKind::ToolUpdate { line: text, .. } =
        kind
    {
        redactor.values_in(text);
    }
}

/// The part of an answer to which a piece belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AnswerPart {
    Text,
    Reasoning,
    Arguments(usize),
}

/// The pieces of an answer as they are shown.
#[derive(Default)]
pub(crate) struct Pieces {
    parts: BTreeMap<AnswerPart, RedactedStream>,
    newest: Option<AnswerPart>,
}

impl Pieces {
    /// Adds a piece. Returns what can be shown: what a part before this one held back, and the piece, unless it
    /// has to wait for the next one.
    pub(crate) fn push(&mut self, redactor: &Redactor, piece: Delta) -> [Option<Delta>; 2] {
        let (part, text, name) = match piece {
            Delta::Text(text) => (AnswerPart::Text, text, None),
            Delta::Reasoning(text) => (AnswerPart::Reasoning, text, None),
            Delta::ToolArguments { index, mut name, text } => {
                name.iter_mut().for_each(|name| redactor.values_in(name));
                (AnswerPart::Arguments(index), text, name)
            }
        };
        if self.parts.is_empty() && !redactor.has_values() {
            // Nothing was held back, and nothing has to be.
            return [None, delta(part, name, text)];
        }
        // A text is over when another part begins; the arguments of several calls may alternate.
        let over = self.newest.replace(part).filter(|newest| *newest != part);
        let over = over.filter(|over| matches!(over, AnswerPart::Text | AnswerPart::Reasoning));
        let before = over.and_then(|over| self.end_of(redactor, over));
        let shown = self.parts.entry(part).or_default().push(redactor, text);
        [before, delta(part, name, shown)]
    }

    /// Returns what is left at the end of the answer.
    pub(crate) fn end(&mut self, redactor: &Redactor) -> Vec<Delta> {
        let places: Vec<AnswerPart> = self.parts.keys().copied().collect();
        places.into_iter().filter_map(|part| self.end_of(redactor, part)).collect()
    }

    fn end_of(&mut self, redactor: &Redactor, part: AnswerPart) -> Option<Delta> {
        let rest = self.parts.remove(&part)?.end(redactor);
        delta(part, None, rest)
    }
}

/// Returns a piece that is shown, if there is anything to show.
fn delta(part: AnswerPart, name: Option<String>, text: String) -> Option<Delta> {
    match part {
        AnswerPart::Text => (!text.is_empty()).then_some(Delta::Text(text)),
        AnswerPart::Reasoning => (!text.is_empty()).then_some(Delta::Reasoning(text)),
        AnswerPart::Arguments(index) => {
            (name.is_some() || !text.is_empty()).then_some(Delta::ToolArguments { index, name, text })
        }
    }
}

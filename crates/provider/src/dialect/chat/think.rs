//! Reasoning that a server leaves in the text of an answer, between `<think>` and `</think>` at its beginning.
//!
//! Invariants: only a tag at the beginning counts; the result does not depend on how the text is cut into pieces; text
//! that may still turn out to be a tag is held back, and nothing of it is lost.

const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";

/// Splits the text of one answer.
#[derive(Debug)]
pub(super) enum Think {
    /// Blanks, or a part of the opening tag, have arrived.
    Before(String),
    /// The opening tag has arrived, and at the end perhaps a part of the closing tag.
    Inside(String),
    /// The closing tag has arrived. Blanks after it are dropped.
    After,
    /// The rest is text.
    Over,
}

impl Default for Think {
    fn default() -> Self {
        Self::Before(String::new())
    }
}

/// What a piece of text is: reasoning first, then text. Either may be empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) reasoning: String,
    pub(super) text: String,
}

impl Think {
    /// Takes the next piece.
    pub(super) fn take(&mut self, piece: String) -> Split {
        match self {
            Self::Over => Split { text: piece, ..Split::default() },
            Self::After => {
                let text = piece.trim_start();
                if text.is_empty() {
                    return Split::default();
                }
                let text = text.to_owned();
                *self = Self::Over;
                Split { text, ..Split::default() }
            }
            Self::Before(held) => {
                held.push_str(&piece);
                let begun = held.trim_start();
                if let Some(inside) = begun.strip_prefix(OPENING).map(str::to_owned) {
                    *self = Self::Inside(String::new());
                    return self.take(inside);
                }
                if OPENING.starts_with(begun) { Split::default() } else { self.end() }
            }
            Self::Inside(held) => {
                held.push_str(&piece);
                if let Some((reasoning, after)) = held.split_once(CLOSING) {
                    let (reasoning, after) = (reasoning.to_owned(), after.to_owned());
                    *self = Self::After;
                    return Split { reasoning, ..self.take(after) };
                }
                let kept = (0..CLOSING.len()).rev().find(|length| held.ends_with(&CLOSING[..*length]));
                let reasoning = held.drain(..held.len() - kept.unwrap_or_default()).collect();
                Split { reasoning, ..Split::default() }
            }
        }
    }

    /// No tag follows. Returns what was held back.
    pub(super) fn end(&mut self) -> Split {
        match std::mem::replace(self, Self::Over) {
            Self::Before(text) => Split { text, ..Split::default() },
            Self::Inside(reasoning) => Split { reasoning, ..Split::default() },
            Self::After | Self::Over => Split::default(),
        }
    }
}

#[cfg(test)]
mod tests;

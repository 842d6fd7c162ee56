//! Patterns for the words of a command.
//!
//! Invariants: a word that is known only when the command runs matches nothing but a final `*`, except that it
//! may match what is denied; a final `*` does not allow an option that names another program.

use crate::programs;
use crate::shell::Word;

/// A pattern for the words of a simple command: `git commit *`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WordsPattern {
    words: Vec<String>,
    /// Whether any further words may follow.
    is_open: bool,
}

/// Whether words match a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// It depends on what a word is when the command runs.
    Perhaps,
    Yes,
}

impl WordsPattern {
    /// Parses a pattern: words separated by spaces, quoted where they contain spaces.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words = split(text)?;
        if words.is_empty() {
            return Err("it names no command; write `bash` for every command".to_owned());
        }
        let is_open = words.last().is_some_and(|last| last == "*");
        if is_open {
            words.pop();
        }
        Ok(Self { words, is_open })
    }

    /// Whether the pattern's command is a path relative to the current folder.
    pub(crate) fn is_relative(&self) -> bool {
        self.words.iter().any(|word| word.contains('/') && !word.starts_with('/'))
    }

    /// Whether all of these words are known, and are those of the pattern.
    pub(crate) fn allows(&self, words: &[Word]) -> bool {
        let has_all = words.len() >= self.words.len();
        let is_end = self.is_open || words.len() == self.words.len();
        let mut pairs = self.words.iter().zip(words);
        // Which command it is must be known in any case.
        let first = words.first().is_some_and(|first| !first.is_dynamic);
        has_all
            && is_end
            && first
            && pairs.all(|(pattern, word)| !word.is_dynamic && glob(pattern, &word.text))
            && !programs::may_name(words, self.words.len())
    }

    /// Whether these words are, or may be, those of the pattern.
    pub(crate) fn forbids(&self, words: &[Word]) -> Match {
        for (place, pattern) in self.words.iter().enumerate() {
            match words.get(place) {
                // It may become several words, or none.
                Some(word) if word.is_dynamic => return Match::Perhaps,
                Some(word) if glob(pattern, &word.text) => {}
                Some(_) | None => return Match::No,
            }
        }
        let rest = &words[self.words.len()..];
        if self.is_open || rest.is_empty() {
            Match::Yes
        } else if rest.iter().all(|word| word.is_dynamic) {
            Match::Perhaps
        } else {
            Match::No
        }
    }
}

/// Splits a pattern into words.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation mark is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// Whether the text matches a pattern in which `*` stands for any text.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

//! Parses a line like a shell, up to the cursor: its words without quotes, and how to quote a candidate.
//!
//! Invariants: the target of a redirection is not a word of the command; a written candidate is parsed as the
//! intended value.

#[cfg(test)]
mod tests;

/// A command's line, up to the cursor.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// Its words without quotes. The last one is being typed, and may be empty.
    pub(super) words: Vec<String>,
    /// Where the last word starts, in bytes.
    start: usize,
    /// The quote that is open at the end.
    quote: Option<char>,
}

impl CommandLine {
    /// Parses a line.
    pub(super) fn read(text: &str) -> Self {
        let mut line = Self::default();
        let mut word: Option<String> = None;
        let mut is_target = false;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let is_between = line.quote.is_none() && c.is_whitespace();
            let is_redirection = line.quote.is_none() && matches!(c, '<' | '>');
            if is_between || is_redirection {
                // Digits directly before a redirection are a file descriptor.
                let is_number =
                    |word: &String| is_redirection && word.chars().all(|digit| digit.is_ascii_digit());
                let Some(word) = word.take().filter(|word| !is_number(word)) else {
                    is_target |= is_redirection;
                    continue;
                };
                if !is_target {
                    line.words.push(word);
                }
                is_target = is_redirection;
                continue;
            }
            if word.is_none() {
                line.start = at;
            }
            let word = word.get_or_insert_default();
            match (line.quote, c) {
                (Some(quote), _) if c == quote => line.quote = None,
                (None, '\'' | '"') => line.quote = Some(c),
                (None | Some('"'), '\\') => {
                    let next = chars.next().map(|(_, next)| next);
                    let is_escape =
                        line.quote.is_none() || next.is_some_and(|next| IN_DOUBLE_QUOTES.contains(&next));
                    word.extend((!is_escape).then_some(c).into_iter().chain(next));
                }
                (Some(_) | None, _) => word.push(c),
            }
        }
        if word.is_none() {
            line.start = text.len();
        }
        line.words.push(word.unwrap_or_default());
        line
    }

    /// Returns the text that must replace `replaced`, the end of the line, so that the last word becomes the
    /// value; `None` if that is impossible.
    pub(super) fn written(&self, text: &str, replaced: &str, value: &str) -> Option<String> {
        let kept = Self::read(text.get(self.start..)?.strip_suffix(replaced).unwrap_or_default());
        let rest = value.strip_prefix(kept.words.last()?.as_str())?;
        (!rest.contains(char::is_control)).then(|| quoted(rest, kept.quote))
    }
}

/// The characters that a backslash escapes within double quotes.
const IN_DOUBLE_QUOTES: [char; 4] = ['\\', '"', '$', '`'];

/// Quotes a text for use within this quote, or without one.
pub(super) fn quoted(text: &str, quote: Option<char>) -> String {
    if quote == Some('\'') {
        return text.replace('\'', r"'\''");
    }
    let is_home = text.starts_with("~/");
    let mut written = String::new();
    for (at, c) in text.char_indices() {
        let is_plain = match quote {
            Some(_) => !IN_DOUBLE_QUOTES.contains(&c),
            None => {
                !c.is_ascii() || c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c) || (at == 0 && is_home)
            }
        };
        written.extend((!is_plain).then_some('\\').into_iter().chain([c]));
    }
    written
}

//! Reads texts for the ledger: sentences, their signs, and the names in them.
//!
//! The signs are English words; a text in another language has none, so only its names, numbers and addresses are found.
//!
//! Invariants: everything found is a slice of the text; a pass over a text is linear in it.

/// The longest sentence that is kept, in bytes; a longer one is cut there.
const SENTENCE_BYTES_MAX: usize = 240;
/// The shortest sentence that says anything, in bytes.
const SENTENCE_BYTES_MIN: usize = 4;
/// The longest name that is kept, in bytes.
const NAME_BYTES_MAX: usize = 160;

/// Words by which a user states a constraint.
const RULE_SIGNS: [&str; 33] = [
    "must", "mustn't", "must not", "never", "always", "do not", "don't", "dont", "only", "should",
    "shouldn't", "should not", "have to", "need to", "needs to", "make sure", "ensure", "avoid", "prefer",
    "at most", "at least", "instead of", "rather than", "no longer", "not allowed", "without", "required",
    "require", "may not", "cannot", "can't", "keep", "wherever",
];
/// Words by which a user corrects what was done or said.
const CORRECTION_SIGNS: [&str; 22] = [
    "actually", "wrong", "incorrect", "not what", "i said", "i meant", "i told", "undo", "undid", "revert",
    "roll back", "stop", "wait", "instead", "that's not", "thats not", "not that", "still the same",
    "still looks", "should be", "as is", "again",
];
/// Words by which a correction begins.
const CORRECTION_STARTS: [&str; 4] = ["no", "nope", "nah", "wait"];
/// Words by which a model states a decision or a finding.
const DECISION_SIGNS: [&str; 32] = [
    "decided", "decision", "chose", "choose", "we'll use", "i'll use", "we will use", "i will use",
    "instead of", "rather than", "root cause", "the problem", "the issue", "the bug", "the cause", "the fix",
    "turns out", "because", "the reason", "therefore", "so that", "signature is", "expects", "only checks",
    "doesn't", "does not", "must", "requires", "required", "solution", "caused by", "the key",
];
/// Words by which a model states that something is finished.
const DONE_SIGNS: [&str; 26] = [
    "done", "finished", "completed", "complete", "fixed", "implemented", "added", "updated", "created",
    "removed", "renamed", "replaced", "all tests", "tests pass", "passing", "passes", "succeeded",
    "successfully", "committed", "pushed", "released", "merged", "deployed", "verified", "works now", "[x]",
];
/// Words by which somebody states that something is open.
const OPEN_SIGNS: [&str; 17] = [
    "todo", "to do", "next step", "next steps", "remaining", "still need", "still needs", "not yet",
    "left to do", "follow-up", "follow up", "pending", "blocked", "fails", "failing", "later", "[ ]",
];
/// Extensions by which a bare name is taken for a file.
const EXTENSIONS: [&str; 48] = [
    "rs", "ts", "tsx", "js", "jsx", "mjs", "cjs", "py", "go", "java", "kt", "swift", "c", "h", "cc", "cpp",
    "hpp", "cs", "rb", "php", "ex", "exs", "erl", "hs", "ml", "lua", "sh", "bash", "zsh", "sql", "css",
    "scss", "html", "vue", "md", "txt", "json", "jsonl", "yaml", "yml", "toml", "lock", "xml", "proto",
    "ini", "env", "csv", "log",
];
/// Words after a number that make it a quantity.
const UNITS: [&str; 60] = [
    "ms", "s", "sec", "secs", "second", "seconds", "minute", "minutes", "min", "mins", "h", "hour", "hours",
    "day", "days", "week", "weeks", "month", "months", "year", "years", "k", "kb", "mb", "gb", "tb", "kib",
    "mib", "gib", "byte", "bytes", "px", "em", "rem", "hz", "khz", "mhz", "ghz", "token", "tokens", "line",
    "lines", "file", "files", "test", "tests", "error", "errors", "times", "requests", "users", "rows",
    "colors", "color", "columns", "characters", "retries", "attempts", "usd", "eur",
];

/// Whether a sentence of the user states a constraint or a correction.
pub(crate) fn is_rule(sentence: &str) -> bool {
    let lower = lowered(sentence);
    let first = lower.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
    CORRECTION_STARTS.contains(&first) || has_sign(&lower, &RULE_SIGNS) || has_sign(&lower, &CORRECTION_SIGNS)
}

/// Whether a text of the user states a constraint or a correction anywhere.
pub(crate) fn has_rule(text: &str) -> bool {
    let mut found = false;
    sentences(text, &mut |sentence| found |= !found && is_rule(sentence));
    found
}

/// The kind of a model's statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statement {
    Decision,
    Done,
    Open,
}

/// Returns what a model's sentence states; `None` if it has no sign of anything.
pub(super) fn statement(sentence: &str) -> Option<Statement> {
    let lower = lowered(sentence);
    // A question or an announcement ("Now let me …") states nothing.
    let is_announced =
        ["let me", "let's", "now i", "i'll ", "now let"].iter().any(|lead| lower.starts_with(lead));
    if lower.ends_with('?') || lower.ends_with(':') || is_announced {
        return None;
    }
    if has_sign(&lower, &OPEN_SIGNS) {
        Some(Statement::Open)
    } else if has_sign(&lower, &DECISION_SIGNS) {
        Some(Statement::Decision)
    } else if has_sign(&lower, &DONE_SIGNS) {
        Some(Statement::Done)
    } else {
        None
    }
}

/// Returns a sentence in lower case, with straight apostrophes.
fn lowered(sentence: &str) -> String {
    sentence.replace('’', "'").to_lowercase()
}

/// Whether the text contains one of these signs, as whole words.
fn has_sign(lower: &str, signs: &[&str]) -> bool {
    let is_edge = |edge: Option<char>| edge.is_none_or(|c| !c.is_alphanumeric());
    signs.iter().any(|sign| {
        lower.match_indices(sign).any(|(at, _)| {
            is_edge(lower[..at].chars().next_back()) && is_edge(lower[at + sign.len()..].chars().next())
        })
    })
}

/// Calls `each` with the sentences of a text, outside blocks of code: whole lines, split after full stops.
pub(crate) fn sentences<'t>(text: &'t str, each: &mut impl FnMut(&'t str)) {
    let mut is_code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code || line.starts_with('|') {
            continue;
        }
        let mut rest = without_mark(line);
        while let Some(end) = end_of_sentence(rest) {
            sentence(&rest[..end], each);
            rest = rest[end..].trim_start();
        }
        sentence(rest, each);
    }
}

fn sentence<'t>(text: &'t str, each: &mut impl FnMut(&'t str)) {
    let text = text.trim();
    if text.len() >= SENTENCE_BYTES_MIN && text.chars().any(char::is_alphabetic) {
        each(&text[..text.floor_char_boundary(SENTENCE_BYTES_MAX)]);
    }
}

/// Returns a line without the mark of a heading, a quotation or an item of a list.
fn without_mark(line: &str) -> &str {
    let bare = line.trim_start_matches(['#', '>', '*', '-', '+', '•']).trim_start();
    let digits = bare.trim_start_matches(|c: char| c.is_ascii_digit());
    match digits.strip_prefix(". ").or_else(|| digits.strip_prefix(") ")) {
        Some(item) if digits.len() < bare.len() => item.trim_start(),
        Some(_) | None => bare,
    }
}

/// Returns where the first sentence ends, if another one follows.
fn end_of_sentence(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        match c {
            '。' | '！' | '？' if end < text.len() => return Some(end),
            '.' | '!' | '?' | ';' if chars.peek().is_some_and(|(_, next)| next.is_whitespace()) => {
                return Some(end);
            }
            _ => {}
        }
    }
    None
}

/// A name in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name<'t> {
    Path(&'t str),
    Url(&'t str),
    Identifier(&'t str),
}

/// Calls `each` with the paths, addresses and identifiers in a text.
pub(super) fn names<'t>(text: &'t str, each: &mut impl FnMut(Name<'t>)) {
    let is_between = |c: char| c.is_whitespace() || "\"'`()[]{}<>,;|=\\".contains(c);
    for word in text.split(is_between) {
        let word = word.trim_end_matches(['.', ':', '!', '?', '*', '…', '&']).trim_end_matches('/');
        let word = word.trim_start_matches(['*', '…', '&', ':']);
        if word.len() < 3 || word.len() > NAME_BYTES_MAX {
            continue;
        }
        if word.contains("://") || word.starts_with("localhost:") {
            each(Name::Url(word));
        } else if let Some(path) = as_path(word) {
            each(Name::Path(path));
        } else if is_code(word) {
            each(Name::Identifier(word));
        }
    }
    let mut spans = text.split('`');
    spans.next();
    while let Some(span) = spans.next() {
        let is_name = (3..=80).contains(&span.len())
            && !span.contains('\n')
            && span.chars().any(char::is_alphabetic)
            && span.split_whitespace().count() <= 6;
        if is_name && as_path(span).is_none() && !span.contains("://") {
            each(Name::Identifier(span.trim()));
        }
        spans.next();
    }
}

/// Returns the path in a word, without the number of a line after it.
fn as_path(word: &str) -> Option<&str> {
    if word.contains(char::is_whitespace) || word.contains("://") {
        return None;
    }
    let path = without_line_number(word);
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension =
        name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, extension)| extension);
    let is_known = extension.is_some_and(|extension| EXTENSIONS.contains(&extension));
    let slashes = path.bytes().filter(|byte| *byte == b'/').count();
    let is_rooted =
        ["/", "./", "../", "~/"].iter().any(|root| path.starts_with(root)) || path.starts_with("@/");
    let has_letters = path.chars().filter(|c| c.is_alphabetic()).count() >= 2;
    let is_path = if slashes == 0 { is_known } else { is_known || is_rooted || slashes >= 2 };
    (is_path && has_letters && path.len() >= 3).then_some(path)
}

fn without_line_number(word: &str) -> &str {
    let mut path = word;
    while let Some((before, number)) = path.rsplit_once(':') {
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        path = before;
    }
    path
}

/// Whether a word is a name of a machine's making: a code such as `E0308`, a variable of the environment, a commit.
fn is_code(word: &str) -> bool {
    let bytes = word.as_bytes();
    let count = |is: fn(&u8) -> bool| bytes.iter().filter(|byte| is(byte)).count();
    let (upper, digits) = (count(u8::is_ascii_uppercase), count(u8::is_ascii_digit));
    let letters = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let is_error_code = (1..=6).contains(&letters) && digits >= 3 && letters + digits == bytes.len();
    let is_constant = word.contains('_')
        && upper >= 4
        && bytes.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_');
    let is_hash = (7..=40).contains(&bytes.len())
        && digits >= 2
        && bytes.iter().any(u8::is_ascii_alphabetic)
        && bytes.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
    let is_color = word
        .strip_prefix('#')
        .is_some_and(|hex| hex.len() == 6 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    is_error_code || is_constant || is_hash || is_color
}

/// Returns the first number with a unit in a sentence.
pub(super) fn quantity(sentence: &str) -> Option<&str> {
    let bytes = sentence.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let starts = bytes[at].is_ascii_digit() && (at == 0 || !is_word_byte(bytes[at - 1]));
        if !starts {
            at += 1;
            continue;
        }
        let mut end = at;
        while end < bytes.len() && (bytes[end].is_ascii_digit() || matches!(bytes[end], b'.' | b',' | b':')) {
            end += 1;
        }
        let number_end = sentence[at..end].trim_end_matches(['.', ',', ':']).len() + at;
        let start = if at > 0 && matches!(bytes[at - 1], b'$' | b'~') { at - 1 } else { at };
        let after = &sentence[number_end..];
        if after.starts_with('%') {
            return Some(&sentence[start..=number_end]);
        }
        let spaces = after.len() - after.trim_start_matches(' ').len();
        let word_len = after[spaces..].find(|c: char| !c.is_alphabetic()).unwrap_or(after.len() - spaces);
        let unit = &after[spaces..spaces + word_len];
        if spaces <= 1 && UNITS.contains(&unit.to_lowercase().as_str()) {
            return Some(&sentence[start..number_end + spaces + word_len]);
        }
        if start < at {
            return Some(&sentence[start..number_end]);
        }
        at = end.max(at + 1);
    }
    None
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/' | b'#')
}

/// Calls `each` with the lines of a result that report an error.
pub(super) fn error_lines<'t>(text: &'t str, each: &mut impl FnMut(&'t str)) {
    const SIGNS: [&str; 9] =
        ["rror", "anicked at", "xception", "FAIL", "raceback", "No such file", "ot found", "annot ", "atal:"];
    let mut places: Vec<usize> =
        SIGNS.iter().flat_map(|sign| text.match_indices(sign).map(|(at, _)| at).take(64)).collect();
    places.sort_unstable();
    let mut until = 0;
    for at in places {
        if at < until {
            continue;
        }
        let start = text[..at].rfind('\n').map_or(0, |line| line + 1);
        let end = text[at..].find('\n').map_or(text.len(), |line| at + line);
        until = end;
        let line = text[start..end].trim();
        if reports_error(line) {
            each(&line[..line.floor_char_boundary(SENTENCE_BYTES_MAX)]);
        }
    }
}

/// Whether a line reports an error, as opposed to the code of a program that handles errors.
fn reports_error(line: &str) -> bool {
    let is_code =
        ["new Error(", "throw ", "console.", "catch", "=>", "import ", "return ", "//", "function", "err("];
    if line.len() < 6 || is_code.iter().any(|sign| line.contains(sign)) {
        return false;
    }
    let lower = line.to_lowercase();
    [
        "error:", "error[", "error ts", "panicked at", "exception:", "fatal:", "no such file",
        "command not found",
    ]
    .iter()
    .any(|sign| lower.contains(sign))
        || line.contains("FAILED")
        || (lower.starts_with("cannot ") || lower.contains(": cannot "))
}

/// Calls `each` with the constants in a result, such as variables of the environment, at most `count_max`.
pub(super) fn constants<'t>(text: &'t str, count_max: usize, each: &mut impl FnMut(&'t str)) {
    let bytes = text.as_bytes();
    let is_part = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let (mut until, mut count) = (0, 0);
    for (at, _) in text.match_indices('_') {
        if at < until || count >= count_max {
            continue;
        }
        let start = (0..at).rev().take_while(|index| is_part(bytes[*index])).last().unwrap_or(at);
        let end =
            (at..bytes.len()).take_while(|index| is_part(bytes[*index])).last().map_or(at, |last| last + 1);
        until = end;
        let before = start.checked_sub(1).map(|before| bytes[before]);
        let is_part_of_more =
            before.into_iter().chain(bytes.get(end).copied()).any(|byte| byte.is_ascii_alphanumeric());
        if !is_part_of_more && end - start <= NAME_BYTES_MAX && is_code(&text[start..end]) {
            each(&text[start..end]);
            count += 1;
        }
    }
}

#[cfg(test)]
mod tests;

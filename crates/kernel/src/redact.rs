//! Redaction: replaces secrets in texts by `[redacted:NAME]`.
//!
//! There are two kinds of secrets. A *value* is known exactly: a key of the configuration, or a variable of the
//! environment. A *shape* is a text that looks like a secret: a private key, a token of a known service, a
//! password in a URL. Values are replaced in everything that enters a session; shapes only in what comes from
//! outside, and in what leaves for logs, exports, errors and summaries.
//!
//! Invariants: the cost is proportional to the text; a text without a secret is not copied; a redacted text
//! contains no form of a value; redacting twice changes nothing more; a streamed text that was released never
//! contains the beginning of a value of which the rest follows. Debug output contains no value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, MatchKind};

mod entry;
mod forms;
mod shapes;
#[cfg(test)]
mod tests;

/// The shortest value that is replaced, in bytes. Shorter ones occur in ordinary text.
const VALUE_BYTES_MIN: usize = 8;

/// What a replacement begins with; the name of the secret and `]` follow.
const BEGIN: &str = "[redacted:";

/// Replaces secrets in texts. Clones share the secrets: a value that is added to one is known to all.
///
/// The default knows no secrets and changes nothing.
#[derive(Clone, Default)]
pub struct Redactor(Arc<RwLock<Arc<Known>>>);

/// The known secrets.
#[derive(Default)]
struct Known {
    /// The names of the values.
    names: BTreeMap<String, String>,
    /// Finds the forms of the values; `None` if there is no value.
    values: Option<Values>,
    shapes: bool,
}

/// The forms of the values: as they are, and as they are encoded in other texts.
struct Values {
    finder: AhoCorasick,
    /// The name of the secret for each form of the finder.
    names: Vec<Arc<str>>,
    /// The forms, sorted, to find the beginning of one at the end of a text.
    sorted: Vec<Vec<u8>>,
    longest: usize,
    /// Whether a form begins with this byte.
    begins: [bool; 256],
}

impl Redactor {
    /// Creates a redactor that replaces shapes, and no value yet.
    pub fn with_shapes() -> Self {
        let redactor = Self::default();
        redactor.replace_shapes(true);
        redactor
    }

    /// Sets whether shapes are replaced.
    pub fn replace_shapes(&self, shapes: bool) {
        self.change(|known| {
            (known.shapes != shapes).then(|| Known {
                names: known.names.clone(),
                values: Values::of(&known.names),
                shapes,
            })
        });
    }

    /// Adds values, each with the name that replaces it. Values shorter than 8 bytes are ignored.
    pub fn add(&self, secrets: impl IntoIterator<Item = (String, String)>) {
        let secrets: Vec<(String, String)> = secrets
            .into_iter()
            .map(|(name, value)| (value.trim().to_owned(), shown(&name)))
            .filter(|(value, name)| {
                value.len() >= VALUE_BYTES_MIN && value != name && !BEGIN.contains(value.as_str())
            })
            .collect();
        self.change(|known| {
            let mut names = known.names.clone();
            for (value, name) in &secrets {
                names.entry(value.clone()).or_insert_with(|| name.clone());
            }
            (names.len() > known.names.len()).then(|| Known {
                values: Values::of(&names),
                names,
                shapes: known.shapes,
            })
        });
    }

    /// Whether it knows values.
    pub fn has_values(&self) -> bool {
        self.known().values.is_some()
    }

    /// Whether it changes no text.
    pub fn is_off(&self) -> bool {
        let known = self.known();
        known.values.is_none() && !known.shapes
    }

    /// Replaces the known values.
    pub fn values<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.known().values {
            Some(values) => values.replaced(text),
            None => Cow::Borrowed(text),
        }
    }

    /// Replaces the known values, and what looks like a secret.
    pub fn all<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let known = self.known();
        let text = match &known.values {
            Some(values) => values.replaced(text),
            None => Cow::Borrowed(text),
        };
        match (known.shapes, text) {
            (false, text) => text,
            (true, Cow::Borrowed(text)) => shapes::replaced(text),
            (true, Cow::Owned(text)) => match shapes::replaced(&text) {
                Cow::Borrowed(_) => Cow::Owned(text),
                Cow::Owned(text) => Cow::Owned(text),
            },
        }
    }

    /// Replaces the known values in a text in place.
    pub fn values_in(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.values(text) {
            *text = redacted;
        }
    }

    /// Replaces the known values, and what looks like a secret, in a text in place.
    pub fn all_in(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.all(text) {
            *text = redacted;
        }
    }

    /// Returns the first replacement in a text, if the secret that it stands for is one that this redactor
    /// replaces. A tool that wrote it would overwrite the secret itself.
    pub fn replacement_in<'a>(&self, text: &'a str) -> Option<&'a str> {
        let known = self.known();
        text.match_indices(BEGIN).find_map(|(start, _)| {
            let rest = &text[start + BEGIN.len()..];
            let name = &rest[..rest.find(']')?];
            let is_value = known.names.values().any(|known| known == name);
            let is_shape = known.shapes && shapes::is_name(name);
            (is_value || is_shape).then(|| &text[start..start + BEGIN.len() + name.len() + 1])
        })
    }

    /// Returns how far from a cut in a text a secret can begin or end that the cut divides, in bytes; 0 if no secret is
    /// known.
    pub fn reach(&self) -> usize {
        let known = self.known();
        let shape = if known.shapes { shapes::BYTES_MAX } else { 0 };
        known.values.as_ref().map_or(0, |values| values.longest).max(shape)
    }

    /// Moves a cut in a text, so that it divides no secret: to before the secret, or to after it (`is_after`). What is
    /// kept of the text can then be redacted without what was cut off.
    pub fn cut(&self, text: &[u8], mut at: usize, is_after: bool) -> usize {
        let known = self.known();
        let values =
            known.values.as_ref().map(|values| values.finder.find_iter(text).map(|found| found.range()));
        let shapes = known.shapes.then(|| shapes::extents(text));
        let secrets: Vec<Range<usize>> =
            values.into_iter().flatten().chain(shapes.into_iter().flatten()).collect();
        // Outside of one secret it can still be in another one.
        while let Some(divided) = secrets.iter().find(|secret| secret.start < at && at < secret.end) {
            at = if is_after { divided.end } else { divided.start };
        }
        at
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&Known) -> Option<Known>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(changed) = change(&known) {
            *known = Arc::new(changed);
        }
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known();
        let names: Vec<&String> = known.names.values().collect();
        f.debug_struct("Redactor").field("names", &names).field("shapes", &known.shapes).finish()
    }
}

impl Values {
    fn of(names: &BTreeMap<String, String>) -> Option<Self> {
        let mut forms: BTreeMap<Vec<u8>, Arc<str>> = BTreeMap::new();
        for (value, name) in names {
            let name: Arc<str> = Arc::from(name.as_str());
            for form in forms::of(value) {
                forms.entry(form).or_insert_with(|| Arc::clone(&name));
            }
        }
        let (sorted, names): (Vec<Vec<u8>>, Vec<Arc<str>>) = forms.into_iter().unzip();
        // With too many forms there is no finder: a program that adds gigabytes of values replaces none.
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&sorted).ok()?;
        let mut begins = [false; 256];
        sorted.iter().filter_map(|form| form.first()).for_each(|byte| begins[usize::from(*byte)] = true);
        let longest = sorted.iter().map(Vec::len).max()?;
        Some(Self { finder, names, sorted, longest, begins })
    }

    fn replaced<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut redacted = String::new();
        let mut end = 0;
        for found in self.finder.find_iter(text) {
            redacted.push_str(&text[end..found.start()]);
            put(&mut redacted, &self.names[found.pattern().as_usize()]);
            end = found.end();
        }
        if end == 0 {
            return Cow::Borrowed(text);
        }
        redacted.push_str(&text[end..]);
        Cow::Owned(redacted)
    }

    /// Returns where the first beginning of a form starts that reaches the end of the text.
    fn unfinished(&self, text: &str) -> usize {
        let bytes = text.as_bytes();
        let first = bytes.len().saturating_sub(self.longest - 1);
        let begins = |start: &usize| {
            let rest = &bytes[*start..];
            self.begins[usize::from(rest[0])] && {
                let next = self.sorted.partition_point(|form| form.as_slice() <= rest);
                self.sorted.get(next).is_some_and(|form| form.starts_with(rest))
            }
        };
        (first..bytes.len()).find(begins).unwrap_or(bytes.len())
    }
}

/// A text that comes in pieces, such as the answer of a model. The beginning of a value is held back until it is
/// known whether the rest follows.
#[derive(Default)]
pub struct RedactedStream {
    held: String,
}

impl RedactedStream {
    /// Adds a piece, and returns what can be shown: it may be empty.
    pub fn push(&mut self, redactor: &Redactor, piece: String) -> String {
        let known = redactor.known();
        let Some(values) = &known.values else {
            return if self.held.is_empty() { piece } else { std::mem::take(&mut self.held) + &piece };
        };
        let text = if self.held.is_empty() { piece } else { std::mem::take(&mut self.held) + &piece };
        let unfinished = values.unfinished(&text);
        let (mut shown, mut end) = (String::new(), 0);
        for found in values.finder.find_iter(&text).take_while(|found| found.start() < unfinished) {
            shown.push_str(&text[end..found.start()]);
            put(&mut shown, &values.names[found.pattern().as_usize()]);
            end = found.end();
        }
        let unfinished = unfinished.max(end);
        shown.push_str(&text[end..unfinished]);
        text[unfinished..].clone_into(&mut self.held);
        shown
    }

    /// Returns the rest at the end of the text.
    pub fn end(&mut self, redactor: &Redactor) -> String {
        let rest = std::mem::take(&mut self.held);
        match redactor.values(&rest) {
            Cow::Borrowed(_) => rest,
            Cow::Owned(rest) => rest,
        }
    }
}

/// A text that comes line by line, such as the output of a command. The lines of a private key are no secret by themselves.
#[derive(Debug, Default)]
pub struct RedactedLines {
    /// Whether a private key began and did not end yet.
    is_in_key: bool,
}

impl RedactedLines {
    /// Redacts the next line, as [`Redactor::all`] does.
    pub fn redact(&mut self, redactor: &Redactor, mut line: String) -> String {
        if redactor.known().shapes {
            if self.is_in_key && shapes::goes_on(&line) {
                self.is_in_key = !shapes::ends_key(&line);
                line.clear();
                put(&mut line, shapes::PRIVATE_KEY);
                return line;
            }
            self.is_in_key = shapes::begins_key(&line);
        }
        redactor.all_in(&mut line);
        line
    }
}

/// Appends the replacement of a secret.
fn put(text: &mut String, name: &str) {
    text.push_str(BEGIN);
    text.push_str(name);
    text.push(']');
}

/// Returns a name as a replacement can have it: letters, digits and `_-.`, at most 64.
fn shown(name: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    name.chars().map(|c| if is_kept(c) { c } else { '_' }).take(64).collect()
}

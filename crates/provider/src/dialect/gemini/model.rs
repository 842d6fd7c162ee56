//! The properties of requests that follow from the name of a model.
//!
//! Invariants: an alias such as `gemini-flash-latest` is taken for the newest generation.

use std::borrow::Cow;

/// The name of a model in a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model<'a> {
    name: &'a str,
    generation: Generation,
}

/// The generations of models whose requests differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Generation {
    /// Models that do not think: before Gemini 2.5, or not Gemini.
    Plain,
    /// Gemini 2.5: thinking has a budget.
    Budget,
    /// Gemini 3 and newer: thinking has a level, the calls of a step are signed, and results can hold images.
    Level,
}

impl<'a> Model<'a> {
    /// Reads a name.
    pub(super) fn new(name: &'a str) -> Self {
        let short = name.rsplit('/').next().unwrap_or(name);
        let generation = match short.strip_prefix("gemini-") {
            None => Generation::Plain,
            Some(rest) => {
                let mut numbers = rest.split(['-', '.']).map(|word| word.parse::<u32>().ok());
                match (numbers.next().flatten(), numbers.next().flatten()) {
                    (Some(0 | 1), _) => Generation::Plain,
                    // A number such as 001 is a revision.
                    (Some(2), minor) if rest.starts_with("2.") && minor >= Some(5) => Generation::Budget,
                    (Some(2), _) => Generation::Plain,
                    (Some(_) | None, _) => Generation::Level,
                }
            }
        };
        Self { name, generation }
    }

    /// Returns the generation.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether it is one of the large models, which always think.
    pub(super) fn always_thinks(&self) -> bool {
        self.name.contains("-pro")
    }

    /// Returns the model's path below the base URL.
    pub(super) fn path(&self) -> Cow<'a, str> {
        let has_folder = self.name.starts_with("models/") || self.name.starts_with("tuned");
        let path =
            if has_folder { Cow::Borrowed(self.name) } else { Cow::Owned(format!("models/{}", self.name)) };
        // A name with `?` or `#` would lead elsewhere.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/@:".contains(c);
        if path.chars().all(is_plain) {
            return path;
        }
        let escaped = |c: char| {
            let mut bytes = [0; 4];
            let hex = |byte: &u8| format!("%{byte:02X}");
            if is_plain(c) {
                c.to_string()
            } else {
                c.encode_utf8(&mut bytes).as_bytes().iter().map(hex).collect()
            }
        };
        Cow::Owned(path.chars().map(escaped).collect())
    }
}

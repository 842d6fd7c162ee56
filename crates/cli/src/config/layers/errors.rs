//! Errors in a configuration file, in one line: the file, the line, the setting and the reason.
//!
//! Invariants: a file's text is never quoted in full; a setting's name is complete.

use std::path::Path;

use greenroom_files::FileError;
use serde_norway::Value;

use super::Source;
use crate::config::Config;
use crate::config::parser_messages::plain;
use crate::config::place::line_of;
use crate::error::usage;
pub(super) fn not_readable(path: &Path, error: &FileError) -> anyhow::Error {
    usage(format!("cannot read the configuration {}: {error}", path.display()))
}

/// Returns the parser's error about a text that is not valid YAML, with its line.
pub(super) fn wrong(source: &Source, error: &serde_norway::Error) -> anyhow::Error {
    let line = error.location().map(|location| format!(", line {}", location.line())).unwrap_or_default();
    usage(format!("{}{line}: {}", source.path.display(), plain(&error.to_string())))
}

/// Returns the parser's error about a value of the wrong type, with its full name and line.
pub(super) fn misfit(source: &Source, value: &Value, error: &serde_norway::Error) -> anyhow::Error {
    let Err(located) = serde_path_to_error::deserialize::<_, Option<Config>>(value) else {
        return wrong(source, error);
    };
    let (mut parts, said) = (parts_of(located.path()), located.inner().to_string());
    let mut said = said.as_str();
    // The parser names the place below a user-defined name itself.
    while let Some((part, rest)) = said.split_once(": ")
        && !part.contains(' ')
    {
        parts.extend(part.split('.').map(str::to_owned));
        said = rest;
    }
    usage(at(source, &parts, &plain(said)))
}

/// Returns a message about a setting with its line.
pub(super) fn at(source: &Source, parts: &[impl AsRef<str>], reason: &str) -> String {
    let line = line_of(&source.text, parts).map(|line| format!(", line {line}")).unwrap_or_default();
    let key: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    let key = if key.is_empty() { String::new() } else { format!("{}: ", key.join(".")) };
    format!("{}{line}: {key}{reason}", source.path.display())
}

/// Returns the parser's error with the names that lead to the value.
pub(crate) fn located(error: &serde_path_to_error::Error<serde_norway::Error>) -> String {
    match parts_of(error.path()).join(".") {
        parts if parts.is_empty() => error.inner().to_string(),
        parts => format!("{parts}: {}", error.inner()),
    }
}

/// Returns the names that lead to a value.
pub(super) fn parts_of(path: &serde_path_to_error::Path) -> Vec<String> {
    let name = |segment: &serde_path_to_error::Segment| match segment {
        serde_path_to_error::Segment::Map { key } => Some(key.clone()),
        serde_path_to_error::Segment::Seq { .. }
        | serde_path_to_error::Segment::Enum { .. }
        | serde_path_to_error::Segment::Unknown => None,
    };
    path.iter().filter_map(name).collect()
}

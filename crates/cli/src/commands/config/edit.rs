//! `greenroom config set` and `unset`: change one setting of a file, and keep the rest of its text.
//!
//! Invariants: the file is written as a whole or not at all, and only if its new content is valid and differs
//! from the old one in this setting alone; comments and order are kept.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_norway::Value;

use super::flow;
use crate::args::Global;
use crate::config::FILE_NAME;
use crate::config::folder::make_room;
use crate::config::layers::{Author, Files, Source, assemble, checked, get, own_file, set_parts};
use crate::config::overrides::{self, Overrides};
use crate::config::place::{Block, below, find, indent, is_silent};
use crate::config::surroundings::Surroundings;
use crate::error::usage;
use greenroom_files::private;
use greenroom_terminal::Screen;
use greenroom_terminal::screen::variable;

/// Returns the file: the user's own, the one named by `--config`, or the project's.
///
/// # Errors
/// There is no configuration directory, or two files are named.
pub(super) fn place(global: &Global, is_project: bool) -> Result<PathBuf> {
    match (&global.config, is_project) {
        (Some(_), true) => Err(usage("--project names the file ./greenroom.yaml, and --config another one")),
        (Some(path), false) => Ok(path.clone()),
        (None, true) => Ok(PathBuf::from(FILE_NAME)),
        (None, false) => own_file(&Surroundings::here()).ok_or_else(|| {
            usage("there is no configuration directory: set HOME, or name a file with --config")
        }),
    }
}

/// Opens the file in the user's editor, and checks it afterwards.
///
/// # Errors
/// There is no editor, it fails, or the file is invalid afterwards.
pub(super) fn open(global: &Global, is_project: bool) -> Result<u8> {
    let path = place(global, is_project)?;
    let editor = ["VISUAL", "EDITOR"].into_iter().find_map(variable);
    let editor = editor.ok_or_else(|| {
        usage(format!("no editor is set: set EDITOR, or open the file yourself: {}", path.display()))
    })?;
    // The file may stay open in the editor for long.
    drop(make_room(&path)?);
    let status = greenroom_tools::editor::open(&editor, &path);
    let status = status.with_context(|| format!("start {editor}"))?;
    if !status.success() {
        return Err(usage(format!("{editor} ended with {status}; {} may be unchanged", path.display())));
    }
    let shown = path.display();
    let mut screen = Screen::stdout(global.color);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            screen.line(format!("{shown} does not exist; the defaults apply."))?;
            return Ok(0);
        }
        Err(error) => return Err(usage(format!("cannot read {shown}: {error}"))),
    };
    let author = if is_project { Author::Project } else { Author::User };
    check(global, &path, &text, author)?;
    screen.line(format!("{shown} is valid."))?;
    Ok(0)
}

/// Sets a setting in the user's own file, in the one named by `--config`, or in the project's; without a
/// value, removes it. Returns a message for the user.
pub(super) fn set(
    global: &Global,
    key: &str,
    parts: &[String],
    text: Option<&str>,
    is_project: bool,
) -> Result<String> {
    let path = place(global, is_project)?;
    let author = if is_project { Author::Project } else { Author::User };
    let _lock = make_room(&path)?;
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(usage(format!("cannot read {}: {error}", path.display()))),
    };
    let value = match text {
        Some(text) => {
            let names: Vec<&str> = parts.iter().map(String::as_str).collect();
            let folder = path.parent().unwrap_or(Path::new(""));
            let read = overrides::read(key, &names, text, folder)?;
            // A reference to a file's text is kept as a reference.
            let plain = Value::String(text.to_owned());
            let is_text =
                get(&read, parts).is_some_and(Value::is_string) && !overrides::is_quoted_or_null(text);
            Some(if is_text { plain } else { serde_norway::from_str(text).unwrap_or(plain) })
        }
        None => None,
    };
    let after = edited(&before, parts, value.as_ref()).ok_or_else(|| {
        let line = value.as_ref().and_then(|value| flow(value).ok()).unwrap_or_default();
        usage(format!(
            "{} cannot be edited here without changing more than that setting; edit it yourself{}",
            path.display(),
            if line.is_empty() { String::new() } else { format!(": {key}: {line}") }
        ))
    })?;
    if after == before {
        let path = path.display();
        return Ok(match &value {
            Some(value) => format!("{key} is {} in {path} already.", flow(value)?),
            None => format!("{key} was not set in {path}."),
        });
    }
    check(global, &path, &after, author)?;
    write(&path, &after)?;
    Ok(match &value {
        Some(value) => format!("{}: {key} is {} now.", path.display(), flow(value)?),
        None => format!("{}: {key} is no longer set.", path.display()),
    })
}

/// Checks that the file would be valid with this text, alone and together with the other one.
fn check(global: &Global, path: &Path, text: &str, author: Author) -> Result<()> {
    let source = Source { path: path.to_owned(), text: text.to_owned(), author };
    checked(&source, author == Author::User)?;
    let mut files = Files::read(global.config.as_deref(), Overrides::default())?;
    match author {
        Author::User => files.own = Some(source),
        Author::Project => files.project = Some(source),
    }
    let [own, project] = files.checked()?;
    assemble(&files, own, project)?;
    Ok(())
}

/// Replaces the file's text, and keeps its permissions; a link remains a link.
fn write(path: &Path, text: &str) -> Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mode = std::fs::metadata(&path).map(|metadata| metadata.permissions().mode() & 0o777);
    private::replace_with_mode(&path, text.as_bytes(), mode.unwrap_or(private::FILE_MODE))
        .with_context(|| format!("write {}", path.display()))
}

/// Returns the text with one setting changed; `None` if more would change, or the setting is in braces.
pub(super) fn edited(text: &str, parts: &[String], value: Option<&Value>) -> Option<String> {
    let before: Value = serde_norway::from_str(text).ok()?;
    let mut wanted = before.clone();
    let names: Vec<&str> = parts.iter().map(String::as_str).collect();
    match value {
        Some(value) => set_parts(&mut wanted, &names, value.clone()),
        None => {
            if get(&before, parts).is_none() {
                return Some(text.to_owned());
            }
            remove(&mut wanted, &names);
        }
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    put(&mut lines, parts, value)?;
    // The line ends of the file are kept.
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut after = lines.join(end);
    if !after.is_empty() {
        after.push_str(end);
    }
    let read: Value = serde_norway::from_str(&after).ok()?;
    (without_empty(&read) == without_empty(&wanted)).then_some(after)
}

fn remove(value: &mut Value, names: &[&str]) {
    let (Value::Mapping(map), [name, rest @ ..]) = (value, names) else { return };
    if rest.is_empty() {
        map.remove(*name);
    } else if let Some(section) = map.get_mut(*name) {
        remove(section, rest);
    }
}

/// Removes empty sections, which have no effect, and an empty file.
fn without_empty(value: &Value) -> Value {
    let none = serde_norway::Mapping::new();
    let map = match value {
        Value::Mapping(map) => map,
        Value::Null => &none,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Sequence(_) | Value::Tagged(_) => {
            return value.clone();
        }
    };
    let kept = map.iter().map(|(name, value)| (name.clone(), without_empty(value)));
    let kept: serde_norway::Mapping =
        kept.filter(|(_, value)| !matches!(value, Value::Mapping(map) if map.is_empty())).collect();
    Value::Mapping(kept)
}

fn put(lines: &mut Vec<String>, parts: &[String], value: Option<&Value>) -> Option<()> {
    let mut block = Block { lines: 0..lines.len(), indent: 0 };
    for (depth, part) in parts.iter().enumerate() {
        let is_last = depth + 1 == parts.len();
        let Some(at) = find(lines, &block, part) else {
            let Some(value) = value else { return Some(()) };
            let new = nested(&parts[depth..], value, block.indent)?;
            // After the block's last line that is not blank or a comment.
            let said = block.lines.clone().rev().find(|line| !is_silent(&lines[*line]));
            let place = said.map_or(block.lines.start, |line| line + 1);
            lines.splice(place..place, new);
            return Some(());
        };
        let below = below(lines, at, block.indent, block.lines.end);
        let (head, rest, comment) = split(&lines[at])?;
        if is_last {
            match value {
                Some(value) => {
                    let comment = if comment.is_empty() { String::new() } else { format!("  {comment}") };
                    lines[at] = format!("{head} {}{comment}", flow(value).ok()?);
                    lines.drain(at + 1..below);
                }
                None => drop(lines.drain(at..below)),
            }
            return Some(());
        }
        if !rest.is_empty() {
            // An empty section becomes a block; one in braces must be edited by the user.
            if !matches!(rest.as_str(), "{}" | "null" | "~") {
                return None;
            }
            let comment = if comment.is_empty() { String::new() } else { format!(" {comment}") };
            lines[at] = format!("{head}{comment}");
        }
        let first = (at + 1..below).find(|line| !is_silent(&lines[*line]));
        let indent = first.map_or(block.indent + 2, |line| indent(&lines[line]));
        block = Block { lines: at + 1..below, indent };
    }
    Some(())
}

/// Formats the setting and its value as lines of their own. A section is a block.
fn nested(parts: &[String], value: &Value, indent: usize) -> Option<Vec<String>> {
    let (first, rest) = parts.split_first()?;
    let name = serde_norway::to_string(&Value::String(first.clone())).ok()?;
    let head = format!("{}{}:", " ".repeat(indent), name.trim_end());
    if !rest.is_empty() {
        return Some([vec![head], nested(rest, value, indent + 2)?].concat());
    }
    let Some(section) = value.as_mapping().filter(|section| !section.is_empty()) else {
        return Some(vec![format!("{head} {}", flow(value).ok()?)]);
    };
    let mut lines = vec![head];
    for (name, value) in section {
        lines.extend(nested(&[name.as_str()?.to_owned()], value, indent + 2)?);
    }
    Some(lines)
}

/// Splits a line into its name with the colon, its value, and its comment; returns `None` if the comment
/// cannot be separated from the value.
fn split(line: &str) -> Option<(String, String, String)> {
    let (name, rest) = line.split_once(':')?;
    let rest = rest.trim();
    let (value, comment) = match rest.find('#') {
        Some(0) => ("", rest),
        Some(at) if rest[..at].ends_with(char::is_whitespace) && !rest[..at].contains(['"', '\'']) => {
            (rest[..at].trim_end(), &rest[at..])
        }
        Some(_) | None => (rest, ""),
    };
    Some((format!("{name}:"), value.to_owned(), comment.to_owned()))
}

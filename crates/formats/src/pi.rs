//! The session files of pi, a coding agent: a header line, then one entry per line.
//!
//! Version 1 is linear and has no ids; from version 2 on entries have an id and a parent, so that a session is a
//! tree; version 3 renamed the role `hookMessage` to `custom`. The leaf is the last entry of the file.
//!
//! Invariants: each line becomes at most one entry, in the order of the file; other lines are counted and
//! reported in a warning.

mod content;
mod export;
mod v1;

#[cfg(test)]
mod tests;

use greenroom_kernel::entry::{Compaction, EntryId, EntryKind, Trigger};
use greenroom_kernel::files::FileOps;
use greenroom_kernel::size::json::stringify;
use serde_json::Value;

pub use export::export;

use crate::fields::{count, flag, items, str_of, text};
use crate::log::{Log, Source, quoted};
use crate::{Format, Imported, lines, timestamp};

/// The newest supported version of the format.
const VERSION_MAX: u64 = 3;

/// The type of the header line.
const HEADER: &str = "session";

/// The types of entry lines.
const ENTRY_TYPES: [&str; 9] = [
    "message", "compaction", "branch_summary", "model_change", "thinking_level_change", "custom",
    "custom_message", "label", "session_info",
];

/// Whether the text looks like one of pi's files, by its header or, if that is lost, by its first entry.
pub(crate) fn is_pi(text: &str) -> bool {
    let Some(first) = lines::values(text).flatten().next() else { return false };
    match str_of(&first, "type") {
        Some(HEADER) => true,
        Some("message") => first.get("message").is_some_and(|message| message.get("role").is_some()),
        Some(kind) => ENTRY_TYPES.contains(&kind) && first.get("timestamp").is_some(),
        None => false,
    }
}

/// Reads a file without repair.
pub(crate) fn import(text: &str) -> Imported {
    let mut reader = Reader::default();
    for line in lines::values(text) {
        match line {
            Some(line) => reader.line(&line),
            None => reader.log.skip(None, None, "a line that is not JSON was left out".into()),
        }
    }
    reader.log.imported(Format::Pi, reader.source, reader.leaf)
}

/// The position of a line in the tree: its id in the file, its parent, and its timestamp, in unix
/// milliseconds.
struct LinePosition {
    origin: Option<String>,
    parent: Option<EntryId>,
    at_ms: u64,
}

/// The state of an import after the lines read so far.
#[derive(Default)]
struct Reader {
    log: Log,
    linear: v1::Linear,
    tools: content::Tools,
    version: Option<u64>,
    source: Source,
    leaf: Option<EntryId>,
}

impl Reader {
    fn line(&mut self, line: &Value) {
        let kind = str_of(line, "type").unwrap_or_default();
        if kind == HEADER {
            self.header(line);
            return;
        }
        let position = self.position(line);
        if position.origin.as_deref().is_some_and(|id| self.log.resolve(id).is_some()) {
            self.linear.add(None);
            self.log.skip(None, None, "an entry with a duplicate id was skipped".into());
            return;
        }
        match self.kind(kind, line, &position) {
            Ok(entry) => {
                let id = self.log.push(position.origin, position.parent, position.at_ms, entry);
                self.linear.add(Some(id));
                self.leaf = Some(id);
            }
            Err(why) => {
                self.linear.add(None);
                // The newest line may be of an unknown kind. Then the session continues from its parent.
                self.leaf = position.parent;
                self.log.skip(position.origin, position.parent, why);
            }
        }
    }

    fn header(&mut self, line: &Value) {
        self.linear.add(None);
        if self.version.is_some() {
            self.log.skip(None, None, "a second header was left out".into());
            return;
        }
        let version = line.get("version").and_then(Value::as_u64).unwrap_or(1);
        if version > VERSION_MAX {
            self.log.warn(format!(
                "the file has version {version}; the newest supported version is {VERSION_MAX}"
            ));
        }
        self.version = Some(version);
        self.source.session_id = str_of(line, "id").map(str::to_owned);
    }

    /// Returns the position of a line. A line without an id, like all lines of version 1, is a child of the
    /// previous line.
    fn position(&mut self, line: &Value) -> LinePosition {
        let at_ms = str_of(line, "timestamp")
            .and_then(timestamp::unix_ms)
            .or_else(|| line.get("message")?.get("timestamp")?.as_u64())
            .unwrap_or(0);
        let Some(origin) = str_of(line, "id") else {
            return LinePosition { origin: None, parent: self.leaf, at_ms };
        };
        let parent = str_of(line, "parentId").and_then(|parent| {
            let found = self.log.resolve(parent);
            if found.is_none() {
                self.log.warn("an entry whose parent does not precede it was imported as a root".into());
            }
            found.flatten()
        });
        LinePosition { origin: Some(origin.to_owned()), parent, at_ms }
    }

    fn kind(&mut self, kind: &str, line: &Value, position: &LinePosition) -> Result<EntryKind, String> {
        let text = |field: &str| text(line, field);
        match kind {
            "message" => {
                let message = line.get("message").unwrap_or(&Value::Null);
                content::message(message, &mut self.tools).ok_or_else(|| {
                    let role = str_of(message, "role").unwrap_or_default();
                    format!("a message of the unknown role {} was left out", quoted(role))
                })
            }
            "custom_message" => Ok(content::custom(line)),
            "compaction" => Ok(EntryKind::Compaction(Box::new(self.compaction(line, position)))),
            "branch_summary" => Ok(EntryKind::BranchSummary {
                from: str_of(line, "fromId")
                    .and_then(|id| self.log.resolve(id).flatten())
                    .or(position.parent)
                    .unwrap_or_else(|| self.log.next_id()),
                summary: text("summary"),
                files: files(line),
            }),
            "model_change" => {
                Ok(EntryKind::ModelChange { provider: text("provider"), model: text("modelId") })
            }
            "label" => {
                let target = str_of(line, "targetId").and_then(|id| self.log.resolve(id).flatten());
                match target {
                    Some(target) => {
                        let label = str_of(line, "label").filter(|label| !label.is_empty());
                        Ok(EntryKind::Label { target, label: label.map(str::to_owned) })
                    }
                    None => Err("a label of an entry that is not there was left out".into()),
                }
            }
            "session_info" => {
                self.source.title = str_of(line, "name").filter(|name| !name.is_empty()).map(str::to_owned);
                Ok(note("session_info", line, "name"))
            }
            "thinking_level_change" => Ok(note("thinking_level_change", line, "thinkingLevel")),
            // A line of our own export, for which pi has no type.
            "custom" if str_of(line, "customType") == Some(export::UNDONE) => line
                .get("data")
                .and_then(|data| str_of(data, "compaction"))
                .and_then(|id| self.log.resolve(id).flatten())
                .map(|compaction| EntryKind::CompactionUndone { compaction })
                .ok_or_else(|| "an undone compaction that is not there was left out".into()),
            "custom" => {
                let data = line.get("data").map_or_else(|| "null".into(), stringify);
                Ok(EntryKind::Note { kind: text("customType"), data })
            }
            unknown => Err(format!("a line of the unknown type {} was left out", quoted(unknown))),
        }
    }

    fn compaction(&self, line: &Value, position: &LinePosition) -> Compaction {
        let from_hook = flag(line, "fromHook");
        let first_kept = match str_of(line, "firstKeptEntryId") {
            // A compaction that names itself or an unknown entry keeps no earlier entry.
            Some(id) => self.log.resolve(id).flatten(),
            None => line.get("firstKeptEntryIndex").and_then(Value::as_u64).and_then(|at| self.linear.at(at)),
        };
        Compaction {
            first_kept,
            files: files(line),
            trigger: if from_hook { Trigger::Hook } else { Trigger::Threshold },
            from_hook,
            tokens_before: count(line, "tokensBefore"),
            tokens_after: count(line, "tokensAfter"),
            ..self.log.compaction(position.parent, text(line, "summary"))
        }
    }
}

/// Returns a note with one field of a line.
fn note(kind: &str, line: &Value, field: &str) -> EntryKind {
    let value = line.get(field).cloned().unwrap_or(Value::Null);
    EntryKind::Note { kind: kind.to_owned(), data: stringify(&serde_json::json!({ field: value })) }
}

/// Returns the file lists in a line's `details`.
fn files(line: &Value) -> FileOps {
    let details = line.get("details").unwrap_or(&Value::Null);
    let list = |field: &str| items(details, field).filter_map(Value::as_str);
    FileOps::new(list("readFiles"), list("modifiedFiles"))
}

//! The session files of Claude Code: a tree of lines, each with an id (`uuid`) and a parent (`parentUuid`).
//!
//! Each block of an answer is a line of its own, and the lines of one answer share the id of its message. A result
//! names the line of its call as its parent, so that the results of parallel calls are siblings in the
//! tree. Here they follow one another, and a line that follows any of them follows the last one.
//!
//! A compaction is two lines: a `compact_boundary`, which has no parent but a logical one, and the summary as a line of
//! the user.
//!
//! Invariants: an answer is one entry; a line of the program itself (progress, hooks, commands, sub-agents) is no entry,
//! and its children are its parent's; an unknown line is counted and reported in a warning.

mod content;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use greenroom_kernel::entry::{Compaction, EntryId, EntryKind, Trigger};
use greenroom_kernel::message::Message;
use serde_json::Value;

use crate::calls::Calls;
use crate::fields::{count, filled, flag, str_of};
use crate::log::{Log, Source, quoted};
use crate::{Format, Imported, lines, timestamp};

/// The types of the lines that have an id and a parent.
const CHAIN_TYPES: [&str; 5] = ["user", "assistant", "progress", "system", "attachment"];

/// The types of lines that say nothing about the conversation.
const OTHER_TYPES: [&str; 9] = [
    "file-history-snapshot", "file-history-delta", "queue-operation", "agent-name", "content-replacement",
    "last-prompt", "mode", "permission-mode", "pr-link",
];

/// The model that an answer names if the program itself wrote it, such as the text of an error.
const NO_MODEL: &str = "<synthetic>";

/// Whether the text looks like one of Claude Code's files, by its first line with an id and a parent.
pub(crate) fn is_claude(text: &str) -> bool {
    lines::values(text).flatten().any(|line| {
        str_of(&line, "type").is_some_and(|kind| CHAIN_TYPES.contains(&kind))
            && str_of(&line, "uuid").is_some()
            && str_of(&line, "sessionId").is_some()
            && line.get("parentUuid").is_some()
    })
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
    let leaf = reader.end_of(reader.leaf);
    let title = reader.custom_title.or(reader.ai_title).or(reader.summary);
    reader.log.imported(Format::ClaudeCode, Source { session_id: reader.session_id, title }, leaf)
}

/// The position of a line in the tree.
struct LinePosition {
    origin: Option<String>,
    parent: Option<EntryId>,
    at_ms: u64,
}

/// What a `compact_boundary` says about the compaction whose summary follows it.
struct Boundary {
    trigger: Trigger,
    tokens_before: u64,
    tokens_after: u64,
}

/// The state of an import after the lines read so far.
#[derive(Default)]
struct Reader {
    log: Log,
    calls: Calls,
    session_id: Option<String>,
    custom_title: Option<String>,
    ai_title: Option<String>,
    summary: Option<String>,
    /// The newest line of the conversation.
    leaf: Option<EntryId>,
    /// The newest answer of each message id.
    answers: HashMap<String, EntryId>,
    /// For each answer and each result, the answer.
    answer_of: HashMap<EntryId, EntryId>,
    /// For each answer with results, the last one.
    last_result: HashMap<EntryId, EntryId>,
    /// The newest boundary whose summary did not come yet.
    boundary: Option<Boundary>,
}

impl Reader {
    fn line(&mut self, line: &Value) {
        let title = |field: &str| filled(line, field).map(str::to_owned);
        match str_of(line, "type").unwrap_or_default() {
            "custom-title" => self.custom_title = title("customTitle").or(self.custom_title.take()),
            "ai-title" => self.ai_title = title("aiTitle").or(self.ai_title.take()),
            "summary" => self.summary = title("summary").or(self.summary.take()),
            kind if CHAIN_TYPES.contains(&kind) => self.chain(kind, line),
            kind if OTHER_TYPES.contains(&kind) => {}
            unknown => {
                let parent = str_of(line, "parentUuid").and_then(|id| self.log.resolve(id).flatten());
                let why = format!("a line of the unknown type {} was left out", quoted(unknown));
                self.log.skip(str_of(line, "uuid").map(str::to_owned), parent, why);
            }
        }
    }

    /// Reads a line that has an id and a parent.
    fn chain(&mut self, kind: &str, line: &Value) {
        let origin = str_of(line, "uuid").map(str::to_owned);
        if origin.as_deref().is_some_and(|id| self.log.resolve(id).is_some()) {
            self.log.skip(None, None, "a line with a duplicate id was skipped".into());
            return;
        }
        if self.session_id.is_none() {
            self.session_id = filled(line, "sessionId").map(str::to_owned);
        }
        if flag(line, "isSidechain") {
            let parent = str_of(line, "parentUuid").and_then(|id| self.log.resolve(id).flatten());
            self.log.alias(origin, parent);
            self.log.warn("a line of a sub-agent was left out".into());
            return;
        }
        let parent = self.parent(kind, line);
        let at_ms = str_of(line, "timestamp").and_then(timestamp::unix_ms).unwrap_or(0);
        let position = LinePosition { origin, parent, at_ms };
        match kind {
            "user" if flag(line, "isCompactSummary") => self.compaction(line, position),
            "user" | "assistant" if flag(line, "isMeta") => self.log.alias(position.origin, position.parent),
            "user" => self.user(line, position),
            "assistant" => self.assistant(line, position),
            _ => {
                if is_boundary(line) {
                    self.boundary = Some(boundary(line));
                }
                self.log.alias(position.origin, position.parent);
            }
        }
    }

    /// Returns the entry that a line follows.
    fn parent(&mut self, kind: &str, line: &Value) -> Option<EntryId> {
        let named = str_of(line, "parentUuid").or_else(|| str_of(line, "logicalParentUuid"));
        let found = named.and_then(|id| self.log.resolve(id));
        // Versions without boundaries begin a new tree with the summary.
        let is_compaction = kind == "system" && is_boundary(line) || flag(line, "isCompactSummary");
        let parent = match found {
            None | Some(None) if is_compaction => self.leaf,
            None if named.is_some() => {
                self.log.warn("a line whose parent does not precede it was imported as a root".into());
                None
            }
            None => None,
            Some(entry) => entry,
        };
        self.end_of(parent)
    }

    /// Returns the last result of the answer that `entry` belongs to, or else `entry`.
    fn end_of(&self, entry: Option<EntryId>) -> Option<EntryId> {
        let last = self.answer_of.get(&entry?).and_then(|answer| self.last_result.get(answer));
        last.copied().or(entry)
    }

    fn compaction(&mut self, line: &Value, position: LinePosition) {
        let message = line.get("message").unwrap_or(&Value::Null);
        let summary = greenroom_kernel::message::blocks_text(&content::blocks(message));
        let boundary = self.boundary.take();
        let boundary = boundary.unwrap_or_else(|| self::boundary(&Value::Null));
        let compaction = Compaction {
            files: self.log.files_before(position.parent),
            trigger: boundary.trigger,
            tokens_before: boundary.tokens_before,
            tokens_after: boundary.tokens_after,
            ..self.log.compaction(position.parent, summary)
        };
        let kind = EntryKind::Compaction(Box::new(compaction));
        self.leaf = Some(self.log.push(position.origin, position.parent, position.at_ms, kind));
    }

    fn user(&mut self, line: &Value, position: LinePosition) {
        let Some(message) = line.get("message").filter(|message| content::has_content(message)) else {
            let why = "a message without content was left out".into();
            self.log.skip(position.origin, position.parent, why);
            return;
        };
        let said = content::said(message);
        let mut messages: Vec<Message> =
            content::results(message, &self.calls).map(Message::ToolResult).collect();
        messages.extend((!said.is_empty()).then_some(Message::User(said)));
        let mut parent = position.parent;
        let mut origin = position.origin;
        let last = messages.len().saturating_sub(1);
        for (index, message) in messages.into_iter().enumerate() {
            // A line that follows this one follows its last message.
            let origin = if index == last { origin.take() } else { None };
            let answer = parent.and_then(|parent| self.answer_of.get(&parent)).copied();
            let is_result = matches!(message, Message::ToolResult(_));
            let id = self.log.push(origin, parent, position.at_ms, EntryKind::message(message));
            if let Some(answer) = answer.filter(|_| is_result) {
                self.answer_of.insert(id, answer);
                self.last_result.insert(answer, id);
            }
            parent = Some(id);
        }
        self.log.alias(origin, parent);
        self.leaf = parent.or(self.leaf);
    }

    fn assistant(&mut self, line: &Value, position: LinePosition) {
        let Some(message) = line.get("message").filter(|message| content::has_content(message)) else {
            let why = "a message without content was left out".into();
            self.log.skip(position.origin, position.parent, why);
            return;
        };
        if str_of(message, "model") == Some(NO_MODEL) {
            self.log.alias(position.origin, position.parent);
            return;
        }
        let more = content::answer(message, &mut self.calls);
        let key = filled(message, "id");
        let begun = key.and_then(|key| self.answers.get(key)).copied().filter(|begun| {
            // Another line may be between them, and stays there.
            position.parent.is_none_or(|parent| self.answer_of.get(&parent) == Some(begun))
        });
        if let Some(begun) = begun
            && let Some(answer) = self.log.answer_mut(begun)
        {
            content::extend(answer, more);
            self.log.alias(position.origin, Some(begun));
            self.leaf = Some(begun);
            return;
        }
        let kind = EntryKind::message(Message::Assistant(more));
        let id = self.log.push(position.origin, position.parent, position.at_ms, kind);
        self.answer_of.insert(id, id);
        self.answers.extend(key.map(|key| (key.to_owned(), id)));
        self.leaf = Some(id);
    }
}

fn is_boundary(line: &Value) -> bool {
    str_of(line, "subtype") == Some("compact_boundary")
}

fn boundary(line: &Value) -> Boundary {
    let metadata = line.get("compactMetadata").unwrap_or(&Value::Null);
    let is_manual = str_of(metadata, "trigger") == Some("manual");
    Boundary {
        trigger: if is_manual { Trigger::Manual } else { Trigger::Threshold },
        tokens_before: count(metadata, "preTokens"),
        tokens_after: count(metadata, "postTokens"),
    }
}

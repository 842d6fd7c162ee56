//! The skills in use in the part of a conversation that a compaction replaces: their texts are repeated.
//!
//! Invariants: a skill is repeated once, with the newest text that was read of it; one that was read again in what is kept
//! is not told; what has no room is named, so that the model reads it again; the selection is deterministic.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use crate::carried::{Carried, SkillText};
use crate::entry::{Entry, EntryId, EntryKind};
use crate::message::{Message, ToolCall, ToolStatus, blocks_text};
use crate::size::classes;
use crate::summary::escape_tags;

#[cfg(test)]
mod tests;

/// The name of the tool that reads skills. Imported sessions spell it differently.
const SKILL: &str = "skill";
/// The names under which its calls have the name of the skill.
const NAME_KEYS: [&str; 3] = ["name", "skill", "command"];
/// The text before the texts of skills in a summary.
pub(crate) const MARK: &str = "\n\n## Skills in use\n<skills>";
const CLOSE: &str = "</skills>";
/// The size of a skill's tags, in tokens.
const FRAME_TOKENS: u64 = 12;
/// The maximum number of skills that are carried on: the newest.
const SKILLS_MAX: usize = 8;

/// The skills that a compaction carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skills {
    /// The skills in use, oldest first; the text of one that is too large is empty.
    pub in_use: Vec<SkillText>,
    /// How many tokens of them the summary shows at most.
    shown_max: u64,
    /// Which of them it shows, as indices.
    shown: Vec<usize>,
    /// Whether it shows nothing of them, not even their names.
    is_hidden: bool,
}

impl Skills {
    /// Selects from the skills that the previous compaction carries and those in `replaced`, without those in `kept`;
    /// at most `tokens_max` tokens of text by our estimate.
    pub(crate) fn select(
        previous: Option<&Carried>,
        replaced: &[Arc<Entry>],
        kept: &[Arc<Entry>],
        tokens_max: u64,
    ) -> Self {
        if tokens_max == 0 {
            return Self::default();
        }
        // By name, the newest.
        let mut found: BTreeMap<String, SkillText> = BTreeMap::new();
        let carried = previous.into_iter().flat_map(|previous| previous.skills.iter().cloned());
        for skill in carried.chain(read_in(replaced)) {
            found.insert(skill.name.clone(), skill);
        }
        for again in read_in(kept) {
            found.remove(&again.name);
        }
        let mut in_use: Vec<SkillText> = found.into_values().collect();
        in_use.sort_by_key(|skill| skill.entry);
        in_use.drain(..in_use.len().saturating_sub(SKILLS_MAX));
        for skill in &mut in_use {
            if size(skill) > tokens_max {
                skill.text.clear();
            }
        }
        let mut skills = Self { in_use, shown_max: tokens_max, shown: Vec::new(), is_hidden: false };
        skills.limit(tokens_max);
        skills
    }

    /// Shows no more of their texts than fit into `tokens_max` tokens by our estimate, the newest first, and names the
    /// others.
    pub(crate) fn limit(&mut self, tokens_max: u64) {
        let mut room = tokens_max.min(self.shown_max);
        self.is_hidden = false;
        self.shown.clear();
        for (index, skill) in self.in_use.iter().enumerate().rev() {
            let size = size(skill);
            if !skill.text.is_empty() && size <= room {
                room -= size;
                self.shown.push(index);
            }
        }
        self.shown.reverse();
    }

    /// Shows nothing of them.
    pub(crate) fn hide(&mut self) {
        (self.shown, self.is_hidden) = (Vec::new(), true);
    }

    /// Returns the text in the summary; empty if there is nothing to show.
    pub(crate) fn text(&self) -> String {
        if self.is_hidden || self.in_use.is_empty() {
            return String::new();
        }
        let mut text = MARK.trim_start().to_owned();
        let mut named: Vec<&str> = Vec::new();
        for (index, SkillText { name, text: told, .. }) in self.in_use.iter().enumerate() {
            if self.shown.contains(&index) {
                let _ = write!(text, "\n### {}\n{}", escape_tags(name), escape_tags(told.trim()));
            } else {
                named.push(name);
            }
        }
        if !named.is_empty() {
            let _ = write!(
                text,
                "\n(Read again with `{SKILL}` before you go on: {})",
                escape_tags(&named.join(", "))
            );
        }
        format!("{text}\n{CLOSE}")
    }
}

fn size(skill: &SkillText) -> u64 {
    classes::tokens(&skill.text) + FRAME_TOKENS
}

/// Returns the skills whose texts were read in these entries, oldest first.
fn read_in(entries: &[Arc<Entry>]) -> Vec<SkillText> {
    let mut calls: HashMap<&str, String> = HashMap::new();
    let mut read = Vec::new();
    for entry in entries {
        let EntryKind::Message { message, .. } = &entry.kind else { continue };
        for call in message.tool_calls() {
            if let Some(name) = skill_of(call) {
                calls.insert(&call.id, name);
            }
        }
        if let Message::ToolResult(result) = &**message
            && let Some(name) = calls.remove(result.call_id.as_str())
            && result.status == ToolStatus::Ok
        {
            read.push(skill(entry.id, name, blocks_text(&result.content)));
        }
    }
    read
}

fn skill(entry: EntryId, name: String, text: String) -> SkillText {
    SkillText { entry, name, text }
}

/// Returns the skill whose text a call reads; `None` for other calls, and for those that read another file of a skill.
fn skill_of(call: &ToolCall) -> Option<String> {
    if !call.name.eq_ignore_ascii_case(SKILL) {
        return None;
    }
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    if arguments.get("file").is_some_and(|file| !file.is_null()) {
        return None;
    }
    let name = NAME_KEYS.iter().find_map(|key| arguments.get(key)?.as_str())?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

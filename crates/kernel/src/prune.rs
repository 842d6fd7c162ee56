//! Shortens tool results in requests: old ones are replaced by one line each, the middles of the newest ones
//! are left out, and one that is too large alone is recorded with its head and its tail.
//!
//! Invariants: nothing is shortened unless it gets smaller; omissions are marked, with the entry where the
//! `recall` tool reads the rest; a result that no answer has followed yet never becomes a mere line; before a
//! summary, the newest content of a file that was read stays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::entry::{Entry, EntryId, EntryKind, PrunedResult};
use crate::files::Touch;
use crate::message::{Block, Message, Part, ToolResult, ToolStatus, blocks_text};
use crate::path::{ActivePath, as_sent};
use crate::settings::share;
use crate::size::{Estimator, classes, entry_tokens};

#[cfg(test)]
mod tests;

/// The name of the tool that reads omitted text, as used in the texts here.
pub const RECALL: &str = "recall";

/// The newest results are kept whole up to this many tokens together.
const PROTECT_TOKENS: u64 = 40_000;
/// The maximum share of the window that is protected in this way.
const PROTECT_SHARE: f64 = 0.3;
/// Old results are shortened only if that frees this many tokens.
const FREED_TOKENS_MIN: u64 = 20_000;
/// The minimum share of the window that frees enough.
const FREED_SHARE: f64 = 0.15;
/// The minimum size of a shortened result, in tokens: its mark and a few words.
const SHORT_TOKENS_MIN: u64 = 64;
/// The share of the window for one result when it is recorded: one part in this many.
const RESULT_SHARE: u64 = 4;
/// The maximum text of one result in the context, in bytes.
const RESULT_BYTES_MAX: usize = 50 * 1024;
/// The maximum number of lines of one result in the context.
const RESULT_LINES_MAX: usize = 2_000;

/// Returns the old results to replace by one line each, so that enough is freed; empty if that would not free
/// enough.
///
/// `window` is in tokens by our estimate.
pub(crate) fn old_results(path: &[Arc<Entry>], window: u64) -> Vec<PrunedResult> {
    let sent = as_sent(path);
    let old = old_lines(&sent[ActivePath::of(&sent).start..], window);
    if freed(&old) < freed_min(window) {
        return Vec::new();
    }
    old.into_iter().map(|old| old.line).collect()
}

/// Returns the old results to replace by one line each instead of a compaction with a summary; empty if that would
/// not free `wanted` tokens, or too few to be worth a change of what was sent. The least useful go first, until
/// enough is freed: contents of files that a later call changed, then contents that the same call returned again
/// later, then whatever is not the content of a file. The newest content of each file stays.
///
/// `window` and `wanted` are in tokens by our estimate.
pub(crate) fn instead_of_summary(path: &[Arc<Entry>], window: u64, wanted: u64) -> Vec<PrunedResult> {
    let sent = as_sent(path);
    let active = &sent[ActivePath::of(&sent).start..];
    let uses = uses(active);
    let old = old_lines(active, window);
    for most in [Use::Stale, Use::Repeated, Use::Other] {
        let chosen: Vec<&OldLine> = old.iter().filter(|old| uses[old.index] <= most).collect();
        if freed(chosen.iter().copied()) >= wanted.max(freed_min(window)) {
            return chosen.into_iter().map(|old| old.line.clone()).collect();
        }
    }
    Vec::new()
}

/// A result beyond the newest ones, and the line that can replace it.
struct OldLine {
    /// The place of its entry.
    index: usize,
    line: PrunedResult,
    /// How much smaller the line is, in tokens.
    freed: u64,
}

fn freed<'a>(lines: impl IntoIterator<Item = &'a OldLine>) -> u64 {
    lines.into_iter().map(|old| old.freed).sum()
}

/// Returns how many tokens have to be freed for old results to be replaced at all.
fn freed_min(window: u64) -> u64 {
    FREED_TOKENS_MIN.min(share(window, FREED_SHARE)).max(1)
}

/// Returns the results among these entries that are neither unread nor among the newest, oldest first.
fn old_lines(entries: &[Arc<Entry>], window: u64) -> Vec<OldLine> {
    let protect = PROTECT_TOKENS.min(share(window, PROTECT_SHARE));
    // Results that no answer has followed were not read yet.
    let answered = entries.iter().rposition(|entry| entry_role(entry) == Some("assistant")).unwrap_or(0);
    let (read, unread) = entries.split_at(answered);
    let mut newest: u64 =
        unread.iter().filter(|entry| tool_result(entry).is_some()).map(|entry| entry.tokens).sum();
    let mut old = Vec::new();
    for (index, entry) in read.iter().enumerate().rev() {
        let Some(result) = tool_result(entry) else { continue };
        let newer = newest;
        newest = newest.saturating_add(entry.tokens);
        if newer < protect {
            continue;
        }
        let line = placeholder(entry, result);
        if line.tokens < entry.tokens {
            old.push(OldLine { index, freed: entry.tokens - line.tokens, line });
        }
    }
    old.reverse();
    old
}

/// How useful a result still is; the least useful goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// The content of a file that a later call changed.
    Stale,
    /// The content of a file that the same call returned again later.
    Repeated,
    /// Not the content of a file.
    Other,
    /// The newest content of a file.
    Newest,
}

/// Returns how useful each of these entries still is, as a result.
fn uses(entries: &[Arc<Entry>]) -> Vec<Use> {
    let mut calls: HashMap<&str, (&str, &str)> = HashMap::new();
    for entry in entries {
        let Some(Message::Assistant(assistant)) = entry.kind.as_message().map(|message| &**message) else {
            continue;
        };
        for call in assistant.content.iter().filter_map(Part::as_tool_call) {
            calls.insert(&call.id, (&call.name, &call.arguments));
        }
    }
    // From the newest on: what comes later is known.
    let (mut changed, mut returned) = (HashSet::new(), HashSet::new());
    let mut uses = vec![Use::Other; entries.len()];
    for (index, entry) in entries.iter().enumerate().rev() {
        let Some(result) = tool_result(entry) else { continue };
        let (read, modified): (Vec<_>, Vec<_>) =
            result.touched.iter().partition(|touched| touched.touch == Touch::Read);
        changed.extend(modified.iter().map(|touched| touched.path.as_str()));
        if result.status != ToolStatus::Ok || read.is_empty() || !modified.is_empty() {
            continue;
        }
        let files: Vec<&str> = read.iter().map(|touched| touched.path.as_str()).collect();
        uses[index] = if files.iter().any(|file| changed.contains(file)) {
            Use::Stale
        } else if let Some(call) = calls.get(result.call_id.as_str())
            && !returned.insert((*call, files))
        {
            Use::Repeated
        } else {
            Use::Newest
        };
    }
    uses
}

/// Returns the largest active results without their middles, from `first` on, so that all results there have
/// about `budget` tokens together; empty if they already fit, or cannot be shortened.
pub(crate) fn middles(path: &[Arc<Entry>], first: EntryId, budget: u64) -> Vec<PrunedResult> {
    let sent = as_sent(path);
    let entries = &sent[ActivePath::of(&sent).start..];
    let results: Vec<&Arc<Entry>> =
        entries.iter().filter(|entry| entry.id >= first && tool_result(entry).is_some()).collect();
    let sizes: Vec<u64> = results.iter().map(|entry| entry.tokens).collect();
    if sizes.iter().sum::<u64>() <= budget {
        return Vec::new();
    }
    let most = level(sizes, budget).max(SHORT_TOKENS_MIN);
    let short = |entry: &&Arc<Entry>| shortened(entry, tool_result(entry)?, most);
    results.iter().filter(|entry| entry.tokens > most).filter_map(short).collect()
}

/// Returns the size of all active tool results from `first` on, in tokens.
pub(crate) fn results_tokens(path: &[Arc<Entry>], first: EntryId) -> u64 {
    let sent = as_sent(path);
    let entries = &sent[ActivePath::of(&sent).start..];
    let is_meant = |entry: &&Arc<Entry>| entry.id >= first && tool_result(entry).is_some();
    entries.iter().filter(is_meant).map(|entry| entry.tokens).sum()
}

/// Returns the maximum size of each, so that all have at most `budget` together: smaller ones leave their
/// share to the others.
fn level(mut sizes: Vec<u64>, budget: u64) -> u64 {
    sizes.sort_unstable();
    let (mut left, mut count) = (budget, sizes.len() as u64);
    for size in sizes {
        if size > left / count {
            return left / count;
        }
        left -= size;
        count -= 1;
    }
    u64::MAX
}

/// Returns the content to record for a result that is too large for its context: its head and its tail, with
/// a mark between them that names `whole`, the entry that has all of it, or advises to ask for less. `None`
/// if it is not too large.
///
/// `window` is the model's, in tokens; `None` if unknown.
pub fn capped(result: &ToolResult, window: Option<u64>, whole: Option<EntryId>) -> Option<Vec<Block>> {
    let text = blocks_text(&result.content);
    let tokens_max = window.map_or(u64::MAX, |window| (window / RESULT_SHARE).max(SHORT_TOKENS_MIN));
    let mut clip = Clip::of(&text);
    clip.limit_bytes(RESULT_BYTES_MAX);
    clip.limit_lines(RESULT_LINES_MAX);
    let short = clip.within(tokens_max, whole)?;
    let images = result.content.iter().filter(|block| matches!(block, Block::Image(_))).cloned();
    Some(std::iter::once(Block::Text(short)).chain(images).collect())
}

fn entry_role(entry: &Entry) -> Option<&'static str> {
    entry.kind.as_message().map(|message| message.role())
}

fn tool_result(entry: &Entry) -> Option<&ToolResult> {
    match entry.kind.as_message().map(|message| &**message) {
        Some(Message::ToolResult(result)) => Some(result),
        Some(Message::User(_) | Message::Assistant(_)) | None => None,
    }
}

fn placeholder(entry: &Entry, result: &ToolResult) -> PrunedResult {
    let tool = &result.tool_name;
    let text = format!(
        "[This result of `{tool}`, {} tokens, was left out to save space: {RECALL} with entry {} reads it.]",
        entry.tokens, entry.id
    );
    sized(entry, result, text, false)
}

/// Returns the result's head and tail, with about `tokens_max` tokens and its images, or without them if they
/// are too large; `None` if that would not be smaller.
fn shortened(entry: &Entry, result: &ToolResult, tokens_max: u64) -> Option<PrunedResult> {
    let text = blocks_text(&result.content);
    let around = entry.tokens.saturating_sub(classes::tokens(&text));
    let keeps_images = around <= tokens_max / 2;
    let room = if keeps_images { tokens_max - around } else { tokens_max };
    let short = Clip::of(&text).within(room, Some(entry.id)).unwrap_or(text);
    Some(sized(entry, result, short, keeps_images)).filter(|pruned| pruned.tokens < entry.tokens)
}

/// Returns the shortened result with its size.
fn sized(entry: &Entry, result: &ToolResult, text: String, keeps_images: bool) -> PrunedResult {
    let mut short = result.clone();
    short.content.retain(|block| keeps_images && matches!(block, Block::Image(_)));
    short.content.push(Block::Text(text.clone()));
    let tokens = entry_tokens(&EntryKind::message(Message::ToolResult(short)), Estimator::Classes);
    PrunedResult { entry: entry.id, text, keeps_images, tokens }
}

/// The head and the tail of a text without its middle.
struct Clip<'a> {
    text: &'a str,
    head: &'a str,
    tail: &'a str,
}

impl<'a> Clip<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, head: text, tail: "" }
    }

    /// Limits the text to this many bytes, two thirds of them from the beginning.
    fn limit_bytes(&mut self, bytes: usize) {
        if self.head.len() + self.tail.len() <= bytes {
            return;
        }
        let (before, after) = (self.head.len(), self.tail.len());
        let head = bytes * 2 / 3;
        self.head = &self.text[..self.text.floor_char_boundary(head.min(before))];
        let tail = bytes.saturating_sub(head).min(if after > 0 { after } else { usize::MAX });
        self.tail = &self.text[self.text.ceil_char_boundary(self.text.len() - tail)..];
    }

    /// Limits the text to this many lines, two thirds of them from the beginning.
    fn limit_lines(&mut self, lines: usize) {
        let ends = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
        if ends(self.head) + ends(self.tail) <= lines {
            return;
        }
        let (head, tail) = (lines * 2 / 3, lines - lines * 2 / 3);
        let head_end =
            self.head.match_indices('\n').nth(head.max(1) - 1).map_or(self.head.len(), |(at, _)| at);
        let tail_in = if self.tail.is_empty() { &self.text[head_end..] } else { self.tail };
        let tail_at = tail_in.rmatch_indices('\n').nth(tail).map_or(0, |(at, _)| at + 1);
        self.head = &self.text[..head_end];
        self.tail = &tail_in[tail_at..];
    }

    /// Returns head, mark and tail with at most about this many tokens; `None` if nothing has to be left out.
    fn within(mut self, tokens_max: u64, whole: Option<EntryId>) -> Option<String> {
        // A byte is at most a token, so most texts need no count.
        let is_small = |text: &str| text.len() as u64 <= tokens_max || classes::tokens(text) <= tokens_max;
        if self.head.len() == self.text.len() && is_small(self.text) {
            return None;
        }
        // No text has less than a twelfth of a token per byte, so this many bytes decide.
        let most = usize::try_from(tokens_max.saturating_mul(12)).unwrap_or(usize::MAX);
        self.limit_bytes(most.min(self.head.len() + self.tail.len()));
        loop {
            let short = self.marked(whole);
            let tokens = classes::tokens(&short);
            let bytes = self.head.len() + self.tail.len();
            if tokens <= tokens_max || bytes == 0 {
                return Some(short);
            }
            // Reduced by the excess, and a little more, so that the loop ends soon.
            let now = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(tokens_max) / tokens.max(1);
            let now = usize::try_from(now).unwrap_or(bytes).min(bytes);
            self.limit_bytes(now - now / 16 - usize::from(now > 0));
        }
    }

    fn marked(&self, whole: Option<EntryId>) -> String {
        let count = |text: &str| text.chars().count();
        let (all, head) = (count(self.text), count(self.head));
        let left_out = all - head - count(self.tail);
        let how = match whole {
            Some(entry) => format!("{RECALL} with entry {entry} and from {head} reads on"),
            None => "ask for a smaller part to see it".to_owned(),
        };
        format!("{}\n[… {left_out} of {all} characters left out here: {how} …]\n{}", self.head, self.tail)
    }
}

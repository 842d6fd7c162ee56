//! The active entries: paths, the newest active compaction, and the context that is sent.
//!
//! A *path* is a slice of entries in which each one's parent is the previous one; its last entry is the leaf.
//! It need not begin at the session's first entry: nothing before the first kept entry of the newest active
//! compaction is needed to project it (except for pinned entries), so a session opens without its history.
//!
//! Invariants: projection never fails and never changes an entry, and every omission from a tool result is
//! recorded in an entry ([`EntryKind::Prune`]), so that between two of those each context extends the
//! previous one; in the result, every tool call has exactly one result directly after it, no message is
//! empty, and a summary is distinguished from a user's message by its entry's kind, never by its text.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::entry::{Compaction, ContextPart, Entry, EntryId, EntryKind, PrunedResult, Shell};
use crate::message::{Block, Message, Part, ToolCall, ToolResult};
use crate::messages::Messages;
use crate::render::{branch_summary_text, compaction_message, shell_text};

#[cfg(test)]
mod tests;

/// Returns the path from the first entry to `leaf`, oldest first, following parents through `entries` (sorted
/// by id).
///
/// # Errors
/// The id of a missing parent.
pub fn path_to(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Result<Vec<Arc<Entry>>, EntryId> {
    match follow_parents(entries, leaf) {
        (path, None) => Ok(path),
        (_, Some(missing)) => Err(missing),
    }
}

/// Returns the part of the path to `leaf` that is within `entries` (sorted by id): from the first entry whose
/// parent is missing.
pub(crate) fn path_within(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Vec<Arc<Entry>> {
    follow_parents(entries, leaf).0
}

/// A path with the pinned messages on it.
#[derive(Debug, Clone, Default)]
pub struct PinnedPath {
    /// The path.
    pub path: Vec<Arc<Entry>>,
    /// The pinned messages, in the order in which they were pinned.
    pub pinned: Vec<Arc<Entry>>,
}

impl PinnedPath {
    /// Returns the path to `leaf` that is within `entries`, a whole log (sorted by id). A message is pinned or released
    /// on whichever branch that was recorded, but only messages on the path count.
    pub fn within(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Self {
        let path = path_within(entries, leaf);
        let on_path = |id: EntryId| path.binary_search_by_key(&id, |entry| entry.id).ok();
        let pinned = pinned_ids(entries).into_iter().filter_map(on_path);
        let pinned = pinned.map(|index| Arc::clone(&path[index])).collect();
        Self { path, pinned }
    }

    /// The size of the pinned messages before the live part, in estimated tokens.
    pub fn pinned_tokens(&self) -> u64 {
        pinned_tokens(&self.path, &self.pinned)
    }
}

/// Returns the messages that are pinned after these entries, in the order in which they were pinned.
pub(crate) fn pinned_ids(entries: &[Arc<Entry>]) -> Vec<EntryId> {
    let mut ids: Vec<EntryId> = Vec::new();
    for entry in entries {
        if let EntryKind::Pin { entry: target, pinned } = entry.kind {
            ids.retain(|id| *id != target);
            ids.extend(pinned.then_some(target));
        }
    }
    ids
}

/// Returns the size of the pinned messages before the live part of a path, in estimated tokens.
pub(crate) fn pinned_tokens(path: &[Arc<Entry>], pinned: &[Arc<Entry>]) -> u64 {
    if pinned.is_empty() {
        return 0;
    }
    ActivePath::of(path).pinned_before(pinned).map(|entry| entry.tokens).sum()
}

/// Returns the path that ends at `leaf`, as far back as the entries go; and the missing parent at which it
/// breaks off, if it does.
fn follow_parents(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> (Vec<Arc<Entry>>, Option<EntryId>) {
    let (mut path, mut next, mut missing) = (Vec::new(), leaf, None);
    while let Some(id) = next {
        let Ok(index) = entries.binary_search_by_key(&id, |entry| entry.id) else {
            missing = Some(id);
            break;
        };
        let entry = &entries[index];
        path.push(Arc::clone(entry));
        // Parents are earlier entries; an imported file may violate this, and must not make a cycle.
        next = entry.parent.filter(|parent| *parent < id);
    }
    path.reverse();
    (path, missing)
}

/// Returns the index of the newest compaction on `path` that was not undone.
pub fn active_compaction(path: &[Arc<Entry>]) -> Option<usize> {
    let mut undone = HashSet::new();
    for (index, entry) in path.iter().enumerate().rev() {
        if let EntryKind::CompactionUndone { compaction } = entry.kind {
            undone.insert(compaction);
        } else if entry.kind.as_compaction().is_some() && !undone.contains(&entry.id) {
            return Some(index);
        }
    }
    None
}

/// Returns the index of the newest compaction or prune on `path` that was not undone: the one that an undo
/// reverses.
pub fn newest_rewrite(path: &[Arc<Entry>]) -> Option<usize> {
    let undone = undone(path);
    path.iter().rposition(|entry| is_rewrite(&entry.kind) && !undone.contains(&entry.id))
}

/// Whether the newest change of the context was undone, and nothing was compacted or pruned since.
pub(crate) fn is_rewrite_undone(path: &[Arc<Entry>]) -> bool {
    let is_undo = |kind: &EntryKind| matches!(kind, EntryKind::CompactionUndone { .. });
    let newest = path.iter().rev().find(|entry| is_rewrite(&entry.kind) || is_undo(&entry.kind));
    newest.is_some_and(|entry| is_undo(&entry.kind))
}

/// Whether the entry changes how earlier entries are sent.
fn is_rewrite(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Compaction(_) | EntryKind::Prune(_))
}

fn undone(path: &[Arc<Entry>]) -> HashSet<EntryId> {
    let undone = |entry: &Arc<Entry>| {
        if let EntryKind::CompactionUndone { compaction } = entry.kind { Some(compaction) } else { None }
    };
    path.iter().filter_map(undone).collect()
}

/// Returns the path as it is sent: a tool result named in an active prune is replaced as in the newest one,
/// with that size. All other entries are unchanged, and a path without a prune is not copied.
pub fn as_sent(path: &[Arc<Entry>]) -> Cow<'_, [Arc<Entry>]> {
    if !path.iter().any(|entry| matches!(entry.kind, EntryKind::Prune(_))) {
        return Cow::Borrowed(path);
    }
    let undone = undone(path);
    let mut replaced: HashMap<EntryId, &PrunedResult> = HashMap::new();
    for entry in path.iter().filter(|entry| !undone.contains(&entry.id)) {
        if let EntryKind::Prune(prune) = &entry.kind {
            replaced.extend(prune.results.iter().map(|result| (result.entry, result)));
        }
    }
    let sent = |entry: &Arc<Entry>| match replaced.get(&entry.id) {
        Some(pruned) => pruned_entry(entry, pruned),
        None => Arc::clone(entry),
    };
    Cow::Owned(path.iter().map(sent).collect())
}

/// Returns a tool result's entry as it is sent after a prune.
fn pruned_entry(entry: &Arc<Entry>, pruned: &PrunedResult) -> Arc<Entry> {
    let mut copy = Entry::clone(entry);
    let EntryKind::Message { message, .. } = &mut copy.kind else { return Arc::clone(entry) };
    let Message::ToolResult(result) = &**message else { return Arc::clone(entry) };
    let mut short = result.clone();
    short.content.retain(|block| pruned.keeps_images && matches!(block, Block::Image(_)));
    short.content.insert(0, Block::Text(pruned.text.clone()));
    *message = Arc::new(Message::ToolResult(short));
    copy.tokens = pruned.tokens;
    Arc::new(copy)
}

/// A path and its active part: the entries kept by its newest active compaction, and all later ones.
#[derive(Debug, Clone, Copy)]
pub struct ActivePath<'a> {
    /// The whole path.
    pub path: &'a [Arc<Entry>],
    /// The newest active compaction's index in `path`.
    pub compaction: Option<usize>,
    /// The index of the first active entry: the first kept one, or the one after the compaction if that is
    /// missing, or 0.
    pub start: usize,
}

impl<'a> ActivePath<'a> {
    /// Finds the newest active compaction and its kept part.
    pub fn of(path: &'a [Arc<Entry>]) -> Self {
        let compaction = active_compaction(path);
        let start = compaction.map_or(0, |index| {
            let first_kept = path[index].kind.as_compaction().and_then(|compaction| compaction.first_kept);
            // From the end: the kept part is near it, however long the path before is.
            first_kept
                .and_then(|id| path[..=index].iter().rposition(|entry| entry.id == id))
                .unwrap_or(index + 1)
        });
        Self { path, compaction, start }
    }

    /// Returns the newest active compaction.
    pub fn compaction(&self) -> Option<&'a Compaction> {
        self.compaction.and_then(|index| self.path[index].kind.as_compaction())
    }

    /// Returns the newest active compaction's id.
    pub(crate) fn compaction_id(&self) -> Option<EntryId> {
        self.compaction.map(|index| self.path[index].id)
    }

    /// Returns the active entries, oldest first.
    pub fn entries(&self) -> &'a [Arc<Entry>] {
        &self.path[self.start..]
    }

    /// Yields the pinned entries of the path that are sent before the active ones, because a compaction replaced them.
    pub(crate) fn pinned_before<'p>(&self, pinned: &'p [Arc<Entry>]) -> impl Iterator<Item = &'p Arc<Entry>> {
        let is_replaced = self.compaction.is_some();
        let first = self.entries().first().map(|entry| entry.id);
        pinned.iter().filter(move |entry| is_replaced && first.is_none_or(|first| entry.id < first))
    }

    /// Returns how many messages the context has: active ones, one for the summary, and the pinned ones in front.
    /// `pinned` are the pinned entries of the path.
    pub fn messages(&self, pinned: &[EntryId]) -> u64 {
        let active = self.entries().iter().filter(|entry| is_sent(&entry.kind)).count() as u64;
        let first = self.entries().first().map(|entry| entry.id);
        let in_front = pinned.iter().filter(|id| first.is_none_or(|first| **id < first)).count() as u64;
        active + self.compaction.map_or(0, |_| 1 + in_front)
    }
}

/// Whether an entry carries a message that counts in plans: sent, or shown to the user as part of the
/// conversation. Compactions do not count.
pub fn is_message(kind: &EntryKind) -> bool {
    match kind.context_part() {
        ContextPart::Message(_)
        | ContextPart::Shell(_)
        | ContextPart::Custom(_)
        | ContextPart::BranchSummary(_) => true,
        ContextPart::Compaction(_) | ContextPart::Mark | ContextPart::Beside => false,
    }
}

fn is_sent(kind: &EntryKind) -> bool {
    is_message(kind) && !matches!(kind, EntryKind::Shell(shell) if shell.excluded)
}

/// Returns the message as which an entry is sent, before pairing; `None` for entries that are not sent.
pub fn entry_message(kind: &EntryKind) -> Option<Cow<'_, Arc<Message>>> {
    let user = |text: String| Some(Cow::Owned(Arc::new(Message::user(text))));
    match kind.context_part() {
        ContextPart::Message(message) => Some(Cow::Borrowed(message)),
        ContextPart::Shell(Shell { excluded: true, .. }) => None,
        ContextPart::Shell(shell) => user(shell_text(shell)),
        ContextPart::Custom(custom) => Some(Cow::Owned(Arc::new(Message::User(custom.content.clone())))),
        ContextPart::BranchSummary(summary) => user(branch_summary_text(summary)),
        ContextPart::Compaction(_) | ContextPart::Mark | ContextPart::Beside => None,
    }
}

/// Returns the messages to send for `path`: pinned entries, the summary, the active messages; paired and
/// without empty ones. The caller adds the system prompt and the tools, rendered for each request.
///
/// `pinned` are the pinned entries of the path, in order.
pub fn project(path: &[Arc<Entry>], pinned: &[Arc<Entry>]) -> Vec<Arc<Message>> {
    pair(&unpaired(path, pinned))
}

/// Returns the messages to send for `path`, before pairing.
pub(crate) fn unpaired(path: &[Arc<Entry>], pinned: &[Arc<Entry>]) -> Vec<Arc<Message>> {
    let path = as_sent(path);
    let active = ActivePath::of(&path);
    let mut messages: Vec<Arc<Message>> = Vec::new();
    if let Some(compaction) = active.compaction() {
        let before = active.pinned_before(pinned);
        messages
            .extend(stand_alone(before.filter_map(|entry| Some(entry_message(&entry.kind)?.into_owned()))));
        // A provider's own summary must be the first message.
        let at = if compaction.native.is_some() { 0 } else { messages.len() };
        messages.insert(at, Arc::new(compaction_message(compaction)));
    }
    messages
        .extend(active.entries().iter().filter_map(|entry| entry_message(&entry.kind).map(Cow::into_owned)));
    messages
}

/// Converts pinned messages, which may have lost their neighbours: a result without its call becomes a user
/// message, and a call without its result is left out, so that pairing neither drops nor invents anything.
/// Their reasoning is left out too.
fn stand_alone(messages: impl Iterator<Item = Arc<Message>>) -> Vec<Arc<Message>> {
    let messages: Vec<Arc<Message>> = messages.collect();
    let is_answered = |from: usize, id: &str| {
        let answer = |message: &Arc<Message>| matches!(&**message, Message::ToolResult(result) if result.call_id == id);
        messages[from..].iter().any(answer)
    };
    let mut out: Vec<Arc<Message>> = Vec::with_capacity(messages.len());
    let mut kept_calls: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        match &**message {
            Message::User(_) => out.push(Arc::clone(message)),
            Message::Assistant(assistant) => {
                kept_calls = assistant.tool_calls().map(|call| call.id.as_str()).collect();
                kept_calls.retain(|id| is_answered(index, id));
                let mut alone = assistant.clone();
                alone.content.retain(|part| match part {
                    Part::Text(_) => true,
                    // It led to the text, which is what was pinned.
                    Part::Reasoning(_) | Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } => false,
                    Part::ToolCall(call) => kept_calls.contains(call.id.as_str()),
                });
                out.push(Arc::new(Message::Assistant(alone)));
            }
            Message::ToolResult(result) if kept_calls.remove(result.call_id.as_str()) => {
                out.push(Arc::clone(message));
            }
            Message::ToolResult(result) => {
                let mut blocks =
                    vec![Block::Text(format!("Result of an earlier call of `{}`:", result.tool_name))];
                blocks.extend(result.content.iter().cloned());
                out.push(Arc::new(Message::User(blocks)));
            }
        }
    }
    out
}

/// Gives every tool call exactly one result directly after its message, drops results without a call and
/// empty messages. A well-formed conversation is returned unchanged, without copying a message.
pub fn pair(messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
    let mut out: Vec<Arc<Message>> = Vec::with_capacity(messages.len());
    let mut at = 0;
    while at < messages.len() {
        let message = &messages[at];
        at += 1;
        match &**message {
            Message::User(blocks) => {
                if has_content(blocks) {
                    out.push(Arc::clone(message));
                }
            }
            // Its call is not before it: results are added with their calls below.
            Message::ToolResult(_) => {}
            Message::Assistant(assistant) => {
                if assistant.is_empty() {
                    continue;
                }
                let message = with_unique_calls(message);
                out.push(Arc::clone(&message));
                let Some(mut wanted) = calls_by_id(&message) else { continue };
                // Results may appear until the next assistant message; other messages there come after them.
                let until = messages[at..]
                    .iter()
                    .position(|later| matches!(&**later, Message::Assistant(next) if !next.is_empty()))
                    .map_or(messages.len(), |offset| at + offset);
                let mut others = Vec::new();
                for later in &messages[at..until] {
                    match &**later {
                        Message::ToolResult(result) => {
                            if wanted.remove(result.call_id.as_str()).is_some() {
                                out.push(Arc::clone(later));
                            }
                        }
                        Message::User(blocks) if has_content(blocks) => others.push(Arc::clone(later)),
                        Message::User(_) | Message::Assistant(_) => {}
                    }
                }
                let mut missing: Vec<(usize, &ToolCall)> = wanted.into_values().collect();
                missing.sort_by_key(|(order, _)| *order);
                out.extend(
                    missing
                        .iter()
                        .map(|(_, call)| Arc::new(Message::ToolResult(ToolResult::interrupted(call)))),
                );
                out.extend(others);
                at = until;
            }
        }
    }
    out
}

fn has_content(blocks: &[Block]) -> bool {
    blocks.iter().any(|block| match block {
        // Providers reject a message of white space as they do an empty one.
        Block::Text(text) => !text.trim().is_empty(),
        Block::Image(_) | Block::Native(_) => true,
    })
}

/// Returns the message without repeated calls of an id that it has already used.
fn with_unique_calls(message: &Arc<Message>) -> Arc<Message> {
    if message.tool_calls().nth(1).is_none() {
        return Arc::clone(message);
    }
    let mut seen = HashSet::new();
    if message.tool_calls().all(|call| seen.insert(call.id.as_str())) {
        return Arc::clone(message);
    }
    let mut copy = Message::clone(message);
    if let Message::Assistant(assistant) = &mut copy {
        let mut kept = HashSet::new();
        assistant.content.retain(|part| match part {
            Part::ToolCall(call) => kept.insert(call.id.clone()),
            Part::Text(_) | Part::Reasoning(_) | Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } => {
                true
            }
        });
    }
    Arc::new(copy)
}

fn calls_by_id(message: &Message) -> Option<HashMap<&str, (usize, &ToolCall)>> {
    let calls: HashMap<_, _> =
        message.tool_calls().enumerate().map(|(order, call)| (call.id.as_str(), (order, call))).collect();
    (!calls.is_empty()).then_some(calls)
}

/// The images that a request carries, if there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// All that the byte budget allows.
    All,
    /// Only those of the newest user message, and of results that no answer has followed yet.
    Newest,
    /// No image is sent.
    Nothing,
}

/// Returns what to send after a request with these messages was too large, or was refused because of an image: the
/// first choice that leaves out a sent image. `None` if no image was sent.
pub fn fewer_images(sent: &Messages) -> Option<Media> {
    if sent.media_bytes() == 0 {
        return None;
    }
    let is_new = is_new_in(sent);
    let mut with_images = sent.iter().enumerate().filter(|(_, message)| media_bytes(message) > 0).peekable();
    with_images.peek()?;
    let are_all_new = with_images.all(|(index, _)| is_new(index));
    Some(if are_all_new { Media::Nothing } else { Media::Newest })
}

/// Returns a function that tells whether the next answer is about the message at an index: it is the newest
/// prompt, or no answer has followed it yet.
fn is_new_in(messages: &[Arc<Message>]) -> impl Fn(usize) -> bool + use<> {
    let newest_of = |role: &str| messages.iter().rposition(|message| message.role() == role);
    let (prompt, answer) = (newest_of("user"), newest_of("assistant"));
    move |index| Some(index) == prompt || answer.is_none_or(|answer| index > answer)
}

/// The placeholder for an older image that is not sent.
const OLD_IMAGE: &str = "[An image was here; it is left out.]";
/// The placeholder for an image that the next answer is about.
const NEW_IMAGE: &str = "[An image belongs here, but it could not be sent, so you cannot see it. Say so where your \
                         answer depends on it.]";

/// Replaces images with placeholders: those that `media` excludes, and then the oldest ones until the rest
/// has at most `bytes_max` bytes together. Returns the messages, and the number of missing images that the
/// next answer is about. Messages without images are not copied.
pub fn limit_media(messages: Messages, media: Media, bytes_max: u64) -> (Messages, usize) {
    let mut bytes = messages.media_bytes();
    let are_all_sent = media == Media::All && bytes <= bytes_max;
    if bytes == 0 || are_all_sent {
        return (messages, 0);
    }
    let is_new = is_new_in(&messages);
    let (mut messages, mut missing) = (messages.into_vec(), 0);
    for (index, message) in messages.iter_mut().enumerate() {
        let own = media_bytes(message);
        let is_new = is_new(index);
        let is_wanted = match media {
            Media::All => true,
            Media::Newest => is_new,
            Media::Nothing => false,
        };
        if own == 0 || (is_wanted && bytes <= bytes_max) {
            continue;
        }
        bytes -= own;
        let mut copy = Message::clone(message);
        if let Message::User(blocks) | Message::ToolResult(ToolResult { content: blocks, .. }) = &mut copy {
            for block in blocks.iter_mut().filter(|block| matches!(block, Block::Image(_))) {
                missing += usize::from(is_new);
                *block = Block::Text(if is_new { NEW_IMAGE } else { OLD_IMAGE }.to_owned());
            }
        }
        *message = Arc::new(copy);
    }
    (messages.into(), missing)
}

/// Returns the size of a message's images, in bytes.
pub(crate) fn media_bytes(message: &Message) -> u64 {
    let blocks: &[Block] = match message {
        Message::User(blocks) => blocks,
        Message::ToolResult(result) => &result.content,
        Message::Assistant(_) => &[],
    };
    let bytes = |block: &Block| match block {
        Block::Image(image) => image.data.len() as u64,
        Block::Text(_) | Block::Native(_) => 0,
    };
    blocks.iter().map(bytes).sum()
}

/// Returns the calls of the newest assistant message on `path` without a result so far.
///
/// In a valid log only that message may have open calls.
pub fn open_calls(path: &[Arc<Entry>]) -> Vec<ToolCall> {
    let mut answered = HashSet::new();
    for entry in path.iter().rev() {
        match entry.kind.as_message().map(|message| &**message) {
            Some(Message::ToolResult(result)) => {
                answered.insert(result.call_id.as_str());
            }
            Some(Message::Assistant(assistant)) => {
                return assistant
                    .tool_calls()
                    .filter(|call| !answered.contains(call.id.as_str()))
                    .cloned()
                    .collect();
            }
            Some(Message::User(_)) | None => {}
        }
    }
    Vec::new()
}

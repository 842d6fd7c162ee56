//! Repairs a log so that the session can continue: on every path, every tool call has exactly one result, and no other
//! message is between a call and its result.
//!
//! A result that was recorded late, but before the next answer, moves to its call. A call without a result
//! gets one that reports an interruption.
//!
//! Invariants: a well-formed log is returned unchanged, and a second repair changes nothing; only results
//! that no model accepts are dropped: those without a call, and duplicates.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::message::{Message, Part, ToolCall, ToolResult};
use greenroom_kernel::path::is_message;

#[cfg(test)]
mod tests;

/// A repaired log.
#[derive(Debug)]
pub(crate) struct Repaired {
    pub(crate) entries: Vec<Arc<Entry>>,
    /// The leaf's id in the repaired log.
    pub(crate) leaf: Option<EntryId>,
    /// How many repairs were made.
    pub(crate) repairs: u64,
}

/// Repairs a log whose parents are earlier entries, as all imported ones are.
pub(crate) fn repair(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Repaired {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); entries.len()];
    for (index, entry) in entries.iter().enumerate() {
        if let Some(parent) = entry.parent.and_then(index_of) {
            children[parent].push(index);
        }
    }
    let mut repair = Repair {
        old: entries,
        children,
        after: Vec::with_capacity(entries.len()),
        used_call_ids: HashSet::new(),
        new: Vec::with_capacity(entries.len()),
        repairs: 0,
    };
    for index in 0..entries.len() {
        let after = repair.entry(index);
        repair.after.push(after);
    }
    repair.close_ends(leaf.and_then(index_of));
    let leaf = leaf.and_then(index_of).and_then(|index| repair.after[index].tail);
    Repaired { entries: repair.new, leaf, repairs: repair.repairs }
}

fn index_of(id: EntryId) -> Option<usize> {
    usize::try_from(id.0).ok()
}

/// A call without a result so far, and the id with which it was recorded.
#[derive(Clone)]
struct Open {
    recorded_id: String,
    call: ToolCall,
}

/// The state of the path that ends at an old entry.
#[derive(Clone)]
struct After {
    /// The new entry that becomes the parent of its children.
    tail: Option<EntryId>,
    /// The new entry that replaces it; `None` if it was dropped.
    own: Option<EntryId>,
    /// The calls without a result so far.
    open: Rc<Vec<Open>>,
}

/// A repair in progress.
struct Repair<'a> {
    old: &'a [Arc<Entry>],
    /// The indices of each old entry's children.
    children: Vec<Vec<usize>>,
    /// The state after each old entry that was visited so far.
    after: Vec<After>,
    used_call_ids: HashSet<String>,
    new: Vec<Arc<Entry>>,
    repairs: u64,
}

impl<'a> Repair<'a> {
    /// Adds the old entry at `index` to the new log, after the results that must precede it.
    fn entry(&mut self, index: usize) -> After {
        let entry = Arc::clone(&self.old[index]);
        let before = entry.parent.and_then(index_of).and_then(|parent| self.after.get(parent)).cloned();
        let (mut tail, open) = before.map_or_else(Default::default, |before| (before.tail, before.open));
        if let Some(Message::ToolResult(result)) = entry.kind.as_message().map(|message| &**message) {
            let Some(at) = open.iter().position(|open| open.recorded_id == result.call_id) else {
                self.repairs += 1;
                return After { tail, own: None, open };
            };
            let own = self.result(tail, &entry, &open[at]);
            let mut rest = Vec::clone(&open);
            rest.remove(at);
            return After { tail: Some(own), own: Some(own), open: Rc::new(rest) };
        }
        if !is_message(&entry.kind) {
            let kind = self.with_new_ids(&entry.kind);
            let own = self.push(tail, &entry, kind);
            return After { tail: Some(own), own: Some(own), open };
        }
        let late = if open.is_empty() { HashMap::new() } else { self.late_results(index) };
        for open in open.iter() {
            tail = Some(match late.get(open.recorded_id.as_str()) {
                Some(&late) => {
                    let late = Arc::clone(&self.old[late]);
                    self.result(tail, &late, open)
                }
                None => self.missing(tail, entry.at_ms, open),
            });
        }
        let (kind, open) = self.with_own_calls(&entry.kind);
        let own = self.push(tail, &entry, kind);
        After { tail: Some(own), own: Some(own), open: Rc::new(open) }
    }

    /// Adds the missing results at the ends of all paths.
    fn close_ends(&mut self, leaf: Option<usize>) {
        for index in 0..self.old.len() {
            if !self.children[index].is_empty() && leaf != Some(index) {
                continue;
            }
            let After { mut tail, open, .. } = self.after[index].clone();
            for open in open.iter() {
                tail = Some(self.missing(tail, self.old[index].at_ms, open));
            }
            self.after[index].tail = tail;
        }
    }

    /// Returns the first result of each call, by the call's id, at or after `index` and before the next
    /// answer.
    fn late_results(&self, index: usize) -> HashMap<&'a str, usize> {
        let old = self.old;
        let mut late: HashMap<&'a str, usize> = HashMap::new();
        let mut next = vec![index];
        while let Some(index) = next.pop() {
            match old[index].kind.as_message().map(|message| &**message) {
                Some(Message::Assistant(_)) => continue,
                Some(Message::ToolResult(result)) => {
                    let first = late.entry(result.call_id.as_str()).or_insert(index);
                    *first = index.min(*first);
                }
                Some(Message::User(_)) | None => {}
            }
            next.extend(&self.children[index]);
        }
        late
    }

    /// Returns an entry's kind with call ids that no earlier call has, and its calls.
    fn with_own_calls(&mut self, kind: &EntryKind) -> (EntryKind, Vec<Open>) {
        let EntryKind::Message { message, inbox, steer, cost_microdollars } = kind else {
            return (self.with_new_ids(kind), Vec::new());
        };
        let mut open: Vec<Open> = Vec::new();
        let mut message = Arc::clone(message);
        if message.tool_calls().next().is_some()
            && let Message::Assistant(assistant) = Arc::make_mut(&mut message)
        {
            let before = assistant.content.len();
            assistant.content.retain_mut(|part| {
                let Part::ToolCall(call) = part else { return true };
                if open.iter().any(|open| open.recorded_id == call.id) {
                    return false;
                }
                let recorded_id = call.id.clone();
                if call.id.is_empty() || self.used_call_ids.contains(&call.id) {
                    call.id = self.unused_call_id(&recorded_id);
                    self.repairs += 1;
                }
                self.used_call_ids.insert(call.id.clone());
                open.push(Open { recorded_id, call: call.clone() });
                true
            });
            self.repairs += (before - assistant.content.len()) as u64;
        }
        let (inbox, steer, cost_microdollars) = (*inbox, *steer, *cost_microdollars);
        (EntryKind::Message { message, inbox, steer, cost_microdollars }, open)
    }

    fn unused_call_id(&self, recorded: &str) -> String {
        let number = self.new.len();
        (0..)
            .map(|again: u64| {
                if again == 0 {
                    format!("{recorded}_{number}")
                } else {
                    format!("{recorded}_{number}_{again}")
                }
            })
            .find(|id| !self.used_call_ids.contains(id))
            .expect("there are more numbers than ids")
    }

    /// Adds a recorded result under its call's new id.
    fn result(&mut self, tail: Option<EntryId>, entry: &Entry, open: &Open) -> EntryId {
        let mut kind = entry.kind.clone();
        if let EntryKind::Message { message, .. } = &mut kind
            && open.recorded_id != open.call.id
            && let Message::ToolResult(result) = Arc::make_mut(message)
        {
            result.call_id.clone_from(&open.call.id);
        }
        self.push(tail, entry, kind)
    }

    /// Adds a result for a call that has none.
    fn missing(&mut self, tail: Option<EntryId>, at_ms: u64, open: &Open) -> EntryId {
        self.repairs += 1;
        let kind = EntryKind::message(Message::ToolResult(ToolResult::interrupted(&open.call)));
        self.append(Entry::recorded(EntryId(0), tail, at_ms, kind))
    }

    fn push(&mut self, tail: Option<EntryId>, entry: &Entry, kind: EntryKind) -> EntryId {
        let origin = entry.origin.clone();
        self.append(Entry { origin, ..Entry::recorded(EntryId(0), tail, entry.at_ms, kind) })
    }

    fn append(&mut self, entry: Entry) -> EntryId {
        let id = EntryId(self.new.len() as u64);
        self.new.push(Arc::new(Entry { id, ..entry }));
        id
    }

    /// Returns the kind with the new ids of the entries that it names. A dropped entry is replaced by its
    /// parent.
    fn with_new_ids(&self, kind: &EntryKind) -> EntryKind {
        let after = |old: EntryId| index_of(old).and_then(|index| self.after.get(index));
        let new = |old: EntryId| after(old).and_then(|after| after.own.or(after.tail));
        let mut kind = kind.clone();
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others name none, or are not imported")]
        match &mut kind {
            EntryKind::Compaction(compaction) => {
                for id in [
                    &mut compaction.base, &mut compaction.previous, &mut compaction.first,
                    &mut compaction.last, &mut compaction.first_kept,
                ] {
                    *id = id.and_then(new);
                }
                for range in &mut compaction.debt {
                    range.first = new(range.first).unwrap_or(range.first);
                    range.last = new(range.last).unwrap_or(range.last);
                }
            }
            EntryKind::Prune(prune) => {
                prune.results.retain_mut(|result| match new(result.entry) {
                    Some(entry) => {
                        result.entry = entry;
                        true
                    }
                    None => false,
                });
            }
            EntryKind::BranchSummary { from: id, .. }
            | EntryKind::Label { target: id, .. }
            | EntryKind::CompactionUndone { compaction: id }
            | EntryKind::Pin { entry: id, .. } => {
                *id = new(*id).unwrap_or(EntryId(self.new.len() as u64));
            }
            _ => {}
        }
        kind
    }
}

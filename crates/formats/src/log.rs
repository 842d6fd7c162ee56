//! The log that an import builds: entries with our ids, which can be found by the source's ids.
//!
//! Invariants: ids are dense and in the order of the file; a parent is an earlier entry, so there is no
//! cycle; a source id denotes one entry, the first that had it. The source id of a line that becomes no entry denotes its
//! parent, so that its children become its parent's children. The size of an answer is that of all its parts,
//! also of those that were added later.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use greenroom_kernel::carried::Carried;
use greenroom_kernel::entry::{Compaction, Entry, EntryId, EntryKind, Trigger};
use greenroom_kernel::files::FileOps;
use greenroom_kernel::message::{AssistantMessage, Message, Usage};
use greenroom_kernel::plan::touched_files;

use crate::{Format, Imported};

/// How many different warnings are kept.
const WARNINGS_MAX: usize = 50;
/// How much of a source's own text is quoted in a warning, in characters.
const QUOTED_CHARS_MAX: usize = 40;

/// The information in a file about its session.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The session's id in its own system.
    pub(crate) session_id: Option<String>,
    /// The session's title.
    pub(crate) title: Option<String>,
}

/// The log that an import builds.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The entries so far.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// How many lines were left out.
    pub(crate) skipped: u64,
    /// For each entry, the newest compaction on its path, including the entry itself.
    compactions: Vec<Option<EntryId>>,
    /// The entry for each source id; for a line that was left out, the entry of its parent.
    ids: HashMap<String, Option<EntryId>>,
    /// The answers that changed after they were appended.
    changed: BTreeSet<EntryId>,
    /// The warnings, and how often each was given.
    warnings: BTreeMap<String, u64>,
}

impl Log {
    /// Returns the id that the next entry will have.
    pub(crate) fn next_id(&self) -> EntryId {
        EntryId(self.entries.len() as u64)
    }

    /// Returns the meaning of a source id: its entry, or for a skipped line, the entry of its parent, if any.
    /// `None` if the id is unknown.
    pub(crate) fn resolve(&self, source: &str) -> Option<Option<EntryId>> {
        self.ids.get(source).copied()
    }

    /// Returns the newest compaction on the path to `entry`.
    pub(crate) fn compaction_before(&self, entry: Option<EntryId>) -> Option<EntryId> {
        let index = usize::try_from(entry?.0).ok()?;
        self.compactions.get(index).copied().flatten()
    }

    /// Appends an entry and returns its id.
    pub(crate) fn push(
        &mut self,
        origin: Option<String>,
        parent: Option<EntryId>,
        at_ms: u64,
        kind: EntryKind,
    ) -> EntryId {
        let id = self.next_id();
        let is_compaction = kind.as_compaction().is_some();
        self.compactions.push(if is_compaction { Some(id) } else { self.compaction_before(parent) });
        if let Some(origin) = &origin {
            self.ids.insert(origin.clone(), Some(id));
        }
        self.entries.push(Arc::new(Entry { origin, ..Entry::recorded(id, parent, at_ms, kind) }));
        id
    }

    /// Skips a line, with the reason as a warning.
    pub(crate) fn skip(&mut self, origin: Option<String>, parent: Option<EntryId>, why: String) {
        self.skipped += 1;
        self.alias(origin, parent);
        self.warn(why);
    }

    /// Lets the source id of a line without an entry of its own denote `entry`.
    pub(crate) fn alias(&mut self, origin: Option<String>, entry: Option<EntryId>) {
        if let Some(origin) = origin {
            self.ids.entry(origin).or_insert(entry);
        }
    }

    /// Returns an answer that is appended already, to add to it.
    pub(crate) fn answer_mut(&mut self, id: EntryId) -> Option<&mut AssistantMessage> {
        let entry = self.entries.get_mut(usize::try_from(id.0).ok()?)?;
        let EntryKind::Message { message, .. } = &mut Arc::make_mut(entry).kind else { return None };
        let Message::Assistant(answer) = Arc::make_mut(message) else { return None };
        self.changed.insert(id);
        Some(answer)
    }

    /// Returns a compaction after `parent` of which only the summary is known, and which keeps no earlier
    /// entry.
    pub(crate) fn compaction(&self, parent: Option<EntryId>, summary: String) -> Compaction {
        let previous = self.compaction_before(parent);
        Compaction {
            base: previous,
            previous,
            first: None,
            last: None,
            first_kept: None,
            summary,
            active_request: None,
            debt: Vec::new(),
            carried: Carried::default(),
            recall: None,
            files: FileOps::default(),
            trigger: Trigger::Threshold,
            truncated: false,
            native: None,
            from_hook: false,
            is_split_turn: false,
            tokens_before: 0,
            tokens_after: 0,
            messages_before: 0,
            messages_removed: 0,
            duration_ms: 0,
            model: String::new(),
            usage: Usage::default(),
            cost_microdollars: None,
        }
    }

    /// Returns the files that were touched on the path to `entry`, including those of earlier compactions.
    pub(crate) fn files_before(&self, entry: Option<EntryId>) -> FileOps {
        let start = self.compaction_before(entry);
        let mut path = Vec::new();
        let mut next = entry;
        while let Some(entry) = next.filter(|id| Some(*id) != start).and_then(|id| self.get(id)) {
            path.push(Arc::clone(entry));
            next = entry.parent;
        }
        path.reverse();
        let mut files = start
            .and_then(|id| self.get(id)?.kind.as_compaction())
            .map_or_else(FileOps::default, |compaction| compaction.files.clone());
        files.merge(&touched_files(&path));
        files
    }

    fn get(&self, id: EntryId) -> Option<&Arc<Entry>> {
        self.entries.get(usize::try_from(id.0).ok()?)
    }

    /// Adds a warning for the user. The same warning is kept once and counted.
    pub(crate) fn warn(&mut self, what: String) {
        if self.warnings.len() < WARNINGS_MAX || self.warnings.contains_key(&what) {
            *self.warnings.entry(what).or_default() += 1;
        }
    }

    /// Returns what was imported, without repair.
    pub(crate) fn imported(mut self, format: Format, source: Source, leaf: Option<EntryId>) -> Imported {
        for id in std::mem::take(&mut self.changed) {
            let Some(entry) = usize::try_from(id.0).ok().and_then(|at| self.entries.get_mut(at)) else {
                continue;
            };
            let Entry { origin, parent, at_ms, kind, .. } = Entry::clone(entry);
            *entry = Arc::new(Entry { origin, ..Entry::recorded(id, parent, at_ms, kind) });
        }
        Imported {
            format,
            session_id: source.session_id,
            title: source.title,
            leaf,
            messages: 0,
            skipped: self.skipped,
            repaired: 0,
            warnings: self.warnings(),
            entries: self.entries,
        }
    }

    /// Returns the warnings, one sentence each.
    fn warnings(&self) -> Vec<String> {
        let sentence = |(what, times): (&String, &u64)| match times {
            1 => what.clone(),
            _ => format!("{what} ({times} times)"),
        };
        self.warnings.iter().map(sentence).collect()
    }
}

/// Quotes a word of the source in backquotes, shortened for a warning.
pub(crate) fn quoted(word: &str) -> String {
    let word: String = word.chars().filter(|c| !c.is_control()).take(QUOTED_CHARS_MAX).collect();
    format!("`{word}`")
}

//! The log that an import builds: entries with our ids, which can be found by the source's ids.
//!
//! Invariants: ids are dense and in the order of the file; a parent is an earlier entry, so there is no
//! cycle; a source id denotes one entry, the first that had it. The source id of a skipped line denotes its
//! parent, so that its children become its parent's children.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId, EntryKind};

/// How many different warnings are kept.
const WARNINGS_MAX: usize = 50;
/// How much of a source's own text is quoted in a warning, in characters.
const QUOTED_CHARS_MAX: usize = 40;

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
        if let Some(origin) = origin {
            self.ids.entry(origin).or_insert(parent);
        }
        self.warn(why);
    }

    /// Adds a warning for the user. The same warning is kept once and counted.
    pub(crate) fn warn(&mut self, what: String) {
        if self.warnings.len() < WARNINGS_MAX || self.warnings.contains_key(&what) {
            *self.warnings.entry(what).or_default() += 1;
        }
    }

    /// Returns the warnings, one sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
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

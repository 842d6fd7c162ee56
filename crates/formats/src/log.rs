//! A log in the making: entries with our ids, found again by the source's.
//!
//! Invariants: ids are dense and in the order of the file; a parent is an earlier entry, so there can be no
//! cycle; a source id means one entry, the first that had it. What is left out of a file stays findable, so that
//! what hangs on it hangs on what it hung on.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::size::{Estimator, entry_tokens};

/// How many different warnings are kept.
const WARNINGS_MAX: usize = 50;
/// How much of a source's own word is repeated in a warning, in characters.
const QUOTED_CHARS_MAX: usize = 40;

/// A log in the making.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The entries so far.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// How many lines were left out.
    pub(crate) skipped: u64,
    /// For each entry, the newest compaction on its path, itself included.
    compactions: Vec<Option<EntryId>>,
    /// The source's ids: the entry, or for what was left out, the one it hung on.
    ids: HashMap<String, Option<EntryId>>,
    warnings: BTreeMap<String, u64>,
}

impl Log {
    /// The id that the next entry will have.
    pub(crate) fn next_id(&self) -> EntryId {
        EntryId(self.entries.len() as u64)
    }

    /// What the source's id stands for: an entry, or for what was left out, the entry that it hung on, if any.
    pub(crate) fn resolve(&self, source: &str) -> Option<Option<EntryId>> {
        self.ids.get(source).copied()
    }

    /// The newest compaction on the path to `entry`.
    pub(crate) fn compaction_before(&self, entry: Option<EntryId>) -> Option<EntryId> {
        let index = usize::try_from(entry?.0).ok()?;
        self.compactions.get(index).copied().flatten()
    }

    /// Appends an entry.
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
        let tokens = entry_tokens(&kind, Estimator::default());
        self.entries.push(Arc::new(Entry { id, parent, at_ms, tokens, origin, kind }));
        id
    }

    /// Leaves something out, and says why.
    pub(crate) fn skip(&mut self, origin: Option<String>, parent: Option<EntryId>, why: String) {
        self.skipped += 1;
        if let Some(origin) = origin {
            self.ids.entry(origin).or_insert(parent);
        }
        self.warn(why);
    }

    /// Notes something that a person should know. What is said twice is counted.
    pub(crate) fn warn(&mut self, what: String) {
        if self.warnings.len() < WARNINGS_MAX || self.warnings.contains_key(&what) {
            *self.warnings.entry(what).or_default() += 1;
        }
    }

    /// The warnings, one sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let sentence = |(what, times): (&String, &u64)| match times {
            1 => what.clone(),
            _ => format!("{what} ({times} times)"),
        };
        self.warnings.iter().map(sentence).collect()
    }
}

/// A word of the source, cut so that it can stand in a warning.
pub(crate) fn quoted(word: &str) -> String {
    let word: String = word.chars().filter(|c| !c.is_control()).take(QUOTED_CHARS_MAX).collect();
    format!("`{word}`")
}

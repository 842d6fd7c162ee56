//! Recorded sessions as entries, by the importers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_formats::ImportOptions;
use greenroom_kernel::path::{entry_message, is_message};
use greenroom_kernel::{Entry, EntryId, EntryKind};

/// The messages of a session, in order.
pub(crate) struct Session {
    pub(crate) messages: Vec<Arc<Entry>>,
}

impl Session {
    /// A session of these messages, without times.
    pub(super) fn of(kinds: impl IntoIterator<Item = EntryKind>) -> Self {
        let entry = |(id, kind)| Arc::new(Entry::recorded(EntryId(id), None, 0, kind));
        Self { messages: (0..).zip(kinds).map(entry).collect() }
    }

    /// What each message says.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        self.messages.iter().filter_map(|entry| Some(entry_message(&entry.kind)?.said()))
    }
}

/// Returns the session of this name; `None` if it is a recorded one and absent.
pub(crate) fn read(name: &str) -> Option<Session> {
    if let Some(session) = super::synthetic::read(name) {
        return Some(session);
    }
    let text = corpus(&format!("sessions/{name}.jsonl"))?;
    let imported = greenroom_formats::import(&text, ImportOptions::default()).unwrap();
    let messages = imported.path().into_iter().filter(|entry| is_message(&entry.kind)).collect();
    Some(Session { messages })
}

/// Returns a file of the corpus, in the folder that `GREENROOM_CORPUS` names or beside the workspace.
fn corpus(name: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus");
    #[expect(clippy::disallowed_methods, reason = "only tests read the location of the corpus")]
    let root = std::env::var_os("GREENROOM_CORPUS").map_or_else(beside, PathBuf::from);
    let text = std::fs::read_to_string(root.join(name)).ok();
    if text.is_none() {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: {name} is not in the corpus at {}", root.display());
        }
    }
    text
}

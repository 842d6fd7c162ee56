//! The runs that one client began, so that it can abort these and no others.

use std::collections::HashMap;
use std::sync::Arc;

use greenroom::AbortHandle;
use greenroom_kernel::EntryId;
use parking_lot::Mutex;

/// The unfinished runs that a client began. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Runs(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    newest: u64,
    runs: HashMap<u64, Run>,
}

#[derive(Debug)]
struct Run {
    session_id: String,
    /// The prompt's entry, once it is durable.
    entry: Option<EntryId>,
    abort: AbortHandle,
}

impl Runs {
    /// Registers a run that begins. Returns the number under which it is known here.
    pub fn begin(&self, session_id: &str, abort: AbortHandle) -> u64 {
        let mut known = self.0.lock();
        known.newest += 1;
        let number = known.newest;
        known.runs.insert(number, Run { session_id: session_id.to_owned(), entry: None, abort });
        number
    }

    /// The prompt is durable, as this entry.
    pub fn accepted(&self, number: u64, entry: Option<EntryId>) {
        if let Some(run) = self.0.lock().runs.get_mut(&number) {
            run.entry = entry;
        }
    }

    /// The run has ended.
    pub fn ended(&self, number: u64) {
        self.0.lock().runs.remove(&number);
    }

    /// Aborts the run of this prompt.
    pub fn abort(&self, session_id: &str, entry: EntryId) {
        let known = self.0.lock();
        let runs = known.runs.values();
        runs.filter(|run| run.session_id == session_id && run.entry == Some(entry))
            .for_each(|run| run.abort.abort());
    }

    /// Aborts all of them.
    pub(crate) fn abort_all(&self) {
        self.0.lock().runs.values().for_each(|run| run.abort.abort());
    }
}

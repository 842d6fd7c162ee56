//! The files that tools change, as they were before: which call keeps them for which session, and when they are
//! dropped.
//!
//! Invariants: what a sub-agent changes belongs to the session at the top, at the answer whose call it works
//! on. The files of a deleted session are forgotten with it, and at the latest by the next start.

use std::sync::Arc;

use greenroom_kernel::{EntryId, RunId};
use greenroom_store::Engine;
use greenroom_tools::rewind::{CallFiles, FileHistory};

use crate::core::deps::Deps;
use crate::core::shared::SessionShared;

/// Returns what a call of a session's run needs to keep the files that it changes. `answer` is the entry of
/// the model's answer with the call.
pub(crate) fn of_call(
    deps: &Deps,
    shared: &Arc<SessionShared>,
    run: RunId,
    answer: Option<EntryId>,
) -> CallFiles {
    let Some(history) = &deps.files else { return CallFiles::default() };
    shared.set_answer(answer.unwrap_or(run));
    let chain = deps.ledger.chain(shared);
    let top = chain.last().unwrap_or(shared);
    let top_run = top.open_run().unwrap_or(run);
    history.call(&*top.id, top_run.0, top.answer().unwrap_or(top_run).0)
}

/// Forgets the files of a deleted session, and drops the contents that no other session has in the background.
pub(crate) fn forget(deps: &Deps, session: &str) {
    let Some(history) = &deps.files else { return };
    if let Err(error) = history.forget(session) {
        tracing::warn!(%session, %error, "the kept files of a deleted session could not be removed");
    }
    clean(history, &deps.store);
}

/// Drops the contents that no session refers to, and the sessions that do not exist, in the background.
pub(crate) fn clean(history: &FileHistory, store: &Arc<dyn Engine>) {
    let Ok(tasks) = tokio::runtime::Handle::try_current() else { return };
    let (history, store) = (history.clone(), store.clone());
    let in_task = tasks.clone();
    tasks.spawn_blocking(move || {
        // What cannot be read counts as existing.
        let exists =
            |session: &str| in_task.block_on(store.head(session)).map_or(true, |head| head.is_some());
        if let Err(error) = history.clean(exists) {
            tracing::warn!(%error, "kept files of deleted sessions could not be removed");
        }
    });
}

//! The store, opened by a command itself if no host has it or the host does not answer.
//!
//! Invariants: reading changes and creates nothing; losses and repairs are reported once, when the store is
//! opened.

use anyhow::Result;
use greenroom_files::access::{self, Need};
use greenroom_store::{Notice, Store, StoreError, StoreOptions};

use crate::agent::{data_dir, warn};
use crate::args::Global;
use crate::error::usage;

/// How many sessions are named if a prefix is ambiguous.
const NAMED_MAX: usize = 5;

/// A store opened for reading.
pub(crate) struct Looked {
    pub(crate) store: Store,
    /// Whether another process uses it, and may be working on its sessions.
    pub(crate) is_in_use: bool,
}

/// Opens the store for reading, even if it cannot be written, or another process uses it; then as it is now.
/// Losses and repairs are printed to standard error.
pub(crate) async fn look(global: &Global) -> Result<Looked> {
    let options = StoreOptions::new(data_dir(global)?);
    let open = move || match Store::open(&options) {
        Err(error @ (StoreError::NotPermitted { .. } | StoreError::InUse { .. })) => {
            // If it cannot be read either, the first error is more helpful.
            Store::open(&StoreOptions { is_read_only: true, ..options }).map_err(|_| error)
        }
        opened => opened,
    };
    let (store, notices) = tokio::task::spawn_blocking(open).await??;
    let is_in_use = notices.iter().any(|notice| matches!(notice, Notice::InUse { .. }));
    // Users of this command expect that it is in use.
    let is_usual =
        |notice: &Notice| is_in_use && matches!(notice, Notice::InUse { .. } | Notice::ReadOnly { .. });
    let notices: Vec<Notice> = notices.into_iter().filter(|notice| !is_usual(notice)).collect();
    tell(global, &notices)?;
    Ok(Looked { store, is_in_use })
}

/// Opens the store for changing something in it. Losses and repairs are printed to standard error.
pub(crate) async fn store(global: &Global) -> Result<Store> {
    let options = StoreOptions::new(data_dir(global)?);
    let (store, notices) = tokio::task::spawn_blocking(move || Store::open(&options)).await??;
    tell(global, &notices)?;
    Ok(store)
}

/// Resolves the user's session id: a full id, or a unique prefix.
///
/// # Errors
/// Several ids have this prefix, or none.
pub(crate) fn resolve_known(store: &Store, given: &str) -> Result<String> {
    let not_found = || StoreError::NotFound { session: given.to_owned() };
    if given.is_empty() {
        return Err(not_found().into());
    }
    if store.head(given)?.is_some() {
        return Ok(given.to_owned());
    }
    let after = store.page(Some(given), NAMED_MAX + 1)?;
    let mut ids: Vec<String> =
        after.into_iter().map(|(id, _)| id).take_while(|id| id.starts_with(given)).collect();
    match ids.len() {
        0 => Err(not_found().into()),
        1 => Ok(ids.remove(0)),
        count => {
            let more = if count > NAMED_MAX { " and more" } else { "" };
            ids.truncate(NAMED_MAX);
            Err(usage(format!("several sessions begin with {given}: {}{more}", ids.join(", "))))
        }
    }
}

/// Creates the error that no session was started in a folder.
pub(crate) fn none_begun(here: &str) -> anyhow::Error {
    usage(format!(
        "no session was started in {here} yet; `greenroom sessions` lists the others, for --session"
    ))
}

/// Prints the store's notices, and a warning if others could have changed it.
pub(super) fn tell(global: &Global, notices: &[Notice]) -> Result<()> {
    tracing::debug!(dir = %data_dir(global)?.display(), "the store is open");
    warn_of_others(global)?;
    for notice in notices {
        let more = if notice.is_loss() { "; `greenroom store check` lists what is lost" } else { "" };
        warn(global, &format!("{notice}{more}"))?;
    }
    Ok(())
}

/// Prints a warning if others could have changed the store.
pub(crate) fn warn_of_others(global: &Global) -> Result<()> {
    let dir = data_dir(global)?;
    if std::fs::metadata(&dir).is_ok_and(|metadata| access::check(&metadata, Need::Closed).is_err()) {
        let dir = dir.display();
        warn(
            global,
            &format!("others can write to {dir}, and could replace the store; run `chmod go-w {dir}`"),
        )?;
    }
    Ok(())
}

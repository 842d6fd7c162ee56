//! The store opened by a command itself: where no host has it, or beside one that cannot be asked.
//!
//! Invariants: looking changes and makes nothing; what was lost or repaired is said once, when the store is opened.

use std::os::unix::fs::MetadataExt as _;

use anyhow::Result;
use greenroom_store::{Notice, Store, StoreError, StoreOptions};

use crate::agent::{data_dir, warn};
use crate::args::Global;
use crate::error::{self, usage};

/// How many sessions are named where an id's beginning leads to several.
const NAMED_MAX: usize = 5;

/// A store that is looked into.
pub(crate) struct Looked {
    pub(crate) store: Store,
    /// Whether another process uses it, and may be at work on its sessions.
    pub(crate) is_in_use: bool,
}

/// Opens the store alone, for looking into it: also one that this user, or nobody, can write, and one that another process
/// uses, as it stands now. What was lost or repaired is said on standard error.
pub(crate) async fn look(global: &Global) -> Result<Looked> {
    let options = StoreOptions::new(data_dir(global)?);
    let open = move || match Store::open(&options) {
        Err(error @ (StoreError::NotPermitted { .. } | StoreError::InUse { .. })) => {
            // Where it cannot even be read, the first error says more.
            Store::open(&StoreOptions { is_read_only: true, ..options }).map_err(|_| error)
        }
        opened => opened,
    };
    let (store, notices) = tokio::task::spawn_blocking(open).await??;
    let is_in_use = notices.iter().any(|notice| matches!(notice, Notice::InUse { .. }));
    // That somebody works in it is no news to them.
    let is_usual =
        |notice: &Notice| is_in_use && matches!(notice, Notice::InUse { .. } | Notice::ReadOnly { .. });
    let notices: Vec<Notice> = notices.into_iter().filter(|notice| !is_usual(notice)).collect();
    tell(global, &notices)?;
    Ok(Looked { store, is_in_use })
}

/// Opens the store alone, for changing something in it. What was lost or repaired is said on standard error.
pub(crate) async fn store(global: &Global) -> Result<Store> {
    let options = StoreOptions::new(data_dir(global)?);
    let (store, notices) = tokio::task::spawn_blocking(move || Store::open(&options)).await??;
    tell(global, &notices)?;
    Ok(store)
}

/// The id of the stored session that the user means: by its whole id, or by a beginning that no other has.
///
/// # Errors
/// Where several begin like that. One that nobody knows is given back as it is.
pub(crate) fn resolve(store: &Store, given: &str) -> Result<String> {
    if given.is_empty() || store.head(given)?.is_some() {
        return Ok(given.to_owned());
    }
    let after = store.page(Some(given), NAMED_MAX + 1)?;
    let mut ids: Vec<String> =
        after.into_iter().map(|(id, _)| id).take_while(|id| id.starts_with(given)).collect();
    match ids.len() {
        0 => Ok(given.to_owned()),
        1 => Ok(ids.remove(0)),
        count => {
            let more = if count > NAMED_MAX { " and more" } else { "" };
            ids.truncate(NAMED_MAX);
            Err(usage(format!("several sessions begin with {given}: {}{more}", ids.join(", "))))
        }
    }
}

/// As [`resolve`], of a session that is there.
pub(crate) fn resolve_known(store: &Store, given: &str) -> Result<String> {
    let id = resolve(store, given)?;
    if store.head(&id)?.is_none() {
        return Err(StoreError::NotFound { session: id }.into());
    }
    Ok(id)
}

/// That no session was begun in a folder.
pub(crate) fn none_begun(here: &str) -> anyhow::Error {
    usage(format!("no session was begun in {here} yet; `greenroom sessions` lists the others, for --session"))
}

/// Says what the store had to say when it was opened, and whether others could have changed it.
pub(super) fn tell(global: &Global, notices: &[Notice]) -> Result<()> {
    tracing::debug!(dir = %data_dir(global)?.display(), "the store is open");
    warn_of_others(global)?;
    for notice in notices {
        let more = match notice {
            Notice::TailLost { .. } | Notice::Damaged { .. } => "; `greenroom store check` says what is lost",
            Notice::TailCut { .. }
            | Notice::IndexRebuilt { .. }
            | Notice::IndexInMemory { .. }
            | Notice::ReadOnly { .. }
            | Notice::InUse { .. }
            | Notice::SetAside { .. }
            | Notice::ManifestRebuilt { .. }
            | _ => "",
        };
        warn(global, &format!("{notice}{more}"))?;
    }
    Ok(())
}

/// Says that others could have changed the store, where they could.
pub(crate) fn warn_of_others(global: &Global) -> Result<()> {
    let dir = data_dir(global)?;
    if std::fs::metadata(&dir).is_ok_and(|metadata| metadata.mode() & 0o022 != 0) {
        let dir = dir.display();
        warn(
            global,
            &format!(
                "others may write {dir}, and could put something else in the place of the store; run `chmod go-w {dir}`"
            ),
        )?;
    }
    Ok(())
}

/// The exit code of a command that tells of everything in the store: it cannot vouch for that while nobody knows what
/// a damaged part of the journal held.
pub(crate) fn completeness(store: &Store) -> u8 {
    if store.unknown_losses().is_empty() { 0 } else { error::STORE }
}

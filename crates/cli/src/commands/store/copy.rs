//! `greenroom store copy`: copies all sessions between the store in files and a PostgreSQL database.
//!
//! Invariants: nothing in the target is overwritten, and nothing is changed in the source; what was copied is read back and
//! compared. A copy that was interrupted is continued by the same command.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use greenroom_store::{Copied, Engine, StoreError, copy};
use greenroom_terminal::progress::Progress;
use greenroom_terminal::{Interrupts, Screen, format};
use serde_json::json;

use crate::args::{CopyArgs, Global};
use crate::config::surroundings::Surroundings;
use crate::host::{cluster, stored};
use crate::{agent, error};

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &CopyArgs) -> Result<u8> {
    let is_from = args.from.is_some();
    let url = args.to.as_ref().or(args.from.as_ref()).cloned().flatten();
    let database = cluster::for_copy(url, &Surroundings::here())?;
    let dir = agent::data_dir(global)?;
    if !is_from && !dir.exists() {
        return Err(error::usage(format!("there is no store in {} to copy", dir.display())));
    }
    if is_from {
        database.check_filled().await?;
    }
    let interrupts = Interrupts::new()?;
    let Some(copied) = copied(global, &dir, &database, is_from, &interrupts).await? else {
        Screen::stderr(global.color).line(
            "Interrupted. Run the same command again to continue; until it has ended, use neither store.",
        )?;
        return Ok(error::INTERRUPTED);
    };
    let mut screen = Screen::stdout(global.color);
    let Copied { sessions, entries, entries_before, facts } = copied;
    if args.json {
        let counts = json!({
            "sessions": sessions, "entries": entries, "entries_before": entries_before, "facts": facts,
        });
        screen.pretty_json(&counts)?;
    } else {
        let (from, to) = ("the database".to_owned(), dir.display().to_string());
        let (from, to) = if is_from { (from, to) } else { (to, from) };
        screen.line(format!(
            "Copied {} and {} from {from} to {to}, and compared them.",
            format::count(sessions, "session"),
            format::count(entries, "entry"),
        ))?;
        if entries_before > 0 {
            screen.line(format!("{} were there before.", format::count(entries_before, "entry")))?;
        }
    }
    Ok(0)
}

/// Opens both and copies; `None` if it was interrupted. A copy that is refused creates no store.
async fn copied(
    global: &Global,
    dir: &Path,
    database: &cluster::Database,
    is_from: bool,
    interrupts: &Interrupts,
) -> Result<Option<Copied>> {
    // The files first, if they exist: whether they are in use is said at once.
    let opened = if dir.exists() { Some(stored::store(global).await?) } else { None };
    let connected = tokio::select! {
        biased;
        connected = database.connect(global) => connected.map(Some),
        () = interrupts.next() => Ok(None),
    };
    let database = match connected {
        Ok(Some(database)) => database,
        other => {
            if let Some(files) = opened {
                files.close().await?;
            }
            return other.map(|_| None);
        }
    };
    let files = match opened {
        Some(files) => files,
        None => match stored::store(global).await {
            Ok(files) => files,
            Err(error) => {
                database.close().await?;
                return Err(error);
            }
        },
    };
    let files: Arc<dyn Engine> = Arc::new(files);
    let copied = between(global, &files, database, is_from, interrupts).await;
    files.close().await?;
    copied
}

/// Copies; `None` if it was interrupted.
async fn between(
    global: &Global,
    files: &Arc<dyn Engine>,
    database: Arc<impl Engine>,
    is_from: bool,
    interrupts: &Interrupts,
) -> Result<Option<Copied>> {
    let (done, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (shown, shown_entries) = (Arc::clone(&done), Arc::clone(&written));
    let line = Progress::start(global.color, move || {
        let (sessions, entries) = (shown.load(Ordering::Relaxed), shown_entries.load(Ordering::Relaxed));
        format!("copying, {} and {}", format::count(sessions, "session"), format::count(entries, "entry"))
    });
    let count = move |copied: &Copied| {
        done.store(copied.sessions, Ordering::Relaxed);
        written.store(copied.entries, Ordering::Relaxed);
    };
    let (from, to): (&dyn Engine, &dyn Engine) =
        if is_from { (&*database, &**files) } else { (&**files, &*database) };
    let copied: Option<Result<Copied, StoreError>> = tokio::select! {
        biased;
        copied = copy(from, to, count) => Some(copied),
        () = interrupts.next() => None,
    };
    line.end().await;
    database.close().await?;
    Ok(copied.transpose()?)
}

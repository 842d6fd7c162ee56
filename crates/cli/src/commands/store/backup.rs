//! `greenroom store backup`, `verify` and `restore`.
//!
//! Invariants: a directory is a whole backup or none, also after Ctrl-C; a store that exists is never overwritten; a
//! backup is only read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use greenroom::{Progress, Store, VerifiedBackup};
use greenroom_server::operations::{BackUpStore, BackedUp, DamageOfStore, StoreBackup};
use greenroom_store::StoreError;
use greenroom_terminal::progress::Progress as Line;
use greenroom_terminal::{Interrupts, Look, Row, Screen, format, time};
use serde_json::json;

use crate::args::{BackUpArgs, BackupArgs, Global, RestoreArgs};
use crate::commands::store::{as_value, say};
use crate::error::CliError;
use crate::host::Changes;
use crate::{agent, error};

/// The folder of a store that no backup has: copies of the user's files, which `undo` brings back.
const KEPT_FILES: &str = "files";

/// Backs up the store: through the host that has it, or in this process.
pub(crate) async fn back_up(global: &Global, args: &BackUpArgs) -> Result<u8> {
    let BackUpArgs { backup: args, damaged } = args;
    let store = agent::data_dir(global)?;
    if !store.exists() {
        return Err(error::usage(format!("there is no store in {} to back up", store.display())));
    }
    let dir = std::path::absolute(&args.dir)?;
    let changes = Changes::open(global).await?;
    let progress = Arc::<Progress>::default();
    let line = match changes.is_host() {
        true => Line::start(global.color, || "backing up".to_owned()),
        false => line(global, "backing up", &progress),
    };
    let interrupts = Interrupts::new()?;
    let made = make(&changes, &dir, *damaged, &progress, &interrupts).await;
    line.end().await;
    changes.end().await?;
    let Some(made) = made else { return Ok(error::INTERRUPTED) };
    let made = match made? {
        BackedUp::Made(made) => made,
        BackedUp::Refused { damage, message } => {
            if args.json {
                Screen::stdout(global.color).pretty_json(&json!({
                    "dir": dir, "refused": message,
                    "damaged_sessions": damage.damaged_sessions, "damaged_segments": damage.damaged_segments,
                }))?;
            }
            return Err(CliError::new(error::STORE, format!("{message}; {}", error::DAMAGED)).into());
        }
    };
    let StoreBackup { dir, made_at_ms, sessions, entries, bytes, damage } = made;
    let DamageOfStore { damaged_sessions, damaged_segments } = damage;
    let left_out: Vec<&str> = store.join(KEPT_FILES).exists().then_some(KEPT_FILES).into_iter().collect();
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!({
            "dir": dir, "made_at_ms": made_at_ms, "sessions": sessions, "entries": entries, "bytes": bytes,
            "left_out": left_out, "damaged_sessions": damaged_sessions, "damaged_segments": damaged_segments,
        }))?;
    } else {
        screen.line(format!("Backed up {} to {}.", held(sessions, entries, bytes), dir.display()))?;
        if !left_out.is_empty() {
            screen.line(
                "Not included: the files kept for `undo`. In a restored store, `undo` takes back conversations only.",
            )?;
        }
    }
    let lost = (damaged_sessions.len() as u64, damaged_segments.len() as u64);
    if lost != (0, 0) {
        let (sessions, segments) = (format::count(lost.0, "session"), format::count(lost.1, "segment"));
        agent::warn(
            global,
            &format!("the store is damaged, and so is this backup: {sessions} and {segments} lost entries"),
        )?;
    }
    Ok(0)
}

/// Makes the backup; `None` if it was interrupted.
async fn make(
    changes: &Changes,
    dir: &Path,
    damaged: bool,
    progress: &Arc<Progress>,
    interrupts: &Interrupts,
) -> Option<Result<BackedUp>> {
    let mut making = Box::pin(async {
        let dir = dir.to_owned();
        let Some(runtime) = changes.runtime() else {
            return Ok(changes.client.call(BackUpStore { dir, damaged }).await?);
        };
        Ok(BackedUp::make(runtime, dir, damaged, progress).await?)
    });
    tokio::select! {
        biased;
        made = &mut making => Some(made),
        () = interrupts.next() => {
            progress.cancel();
            // In this process, what was written is removed first; a host finishes the backup or removes it.
            if !changes.is_host() {
                let _ = making.await;
            }
            None
        }
    }
}

/// Verifies a backup.
pub(crate) async fn verify(global: &Global, args: &BackupArgs) -> Result<u8> {
    let found = verified(global, &args.dir).await?;
    let VerifiedBackup { info, sessions, entries, damage, losses, unknown_losses, .. } = &found;
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!({
            "dir": args.dir,
            "made_at_ms": info.made_at_ms,
            "version": info.version,
            "sessions": sessions,
            "entries": entries,
            "bytes": info.bytes,
            "damage": damage,
            "losses": losses.iter().map(as_value).collect::<Vec<_>>(),
            "unknown_segments": unknown_losses,
        }))?;
    } else {
        tell(&mut screen, &found)?;
        if is_whole(&found) {
            let held = held(*sessions, *entries, info.bytes);
            let made = time::ago(info.made_at_ms, time::now_ms());
            screen.line(format!("The backup is complete: {held}, made {made}."))?;
        }
    }
    if is_whole(&found) {
        return Ok(0);
    }
    let what = if found.is_undamaged() { "contains losses that the store already had" } else { "is damaged" };
    Screen::stderr(global.color).line(format!("greenroom: the backup in {} {what}", args.dir.display()))?;
    Ok(error::STORE)
}

/// Restores a backup as a new store.
pub(crate) async fn restore(global: &Global, args: &RestoreArgs) -> Result<u8> {
    let (from, to) = (args.backup.dir.clone(), agent::data_dir(global)?);
    let found = verified(global, &from).await?;
    if !found.is_undamaged() && !args.damaged {
        tell(&mut Screen::stderr(global.color), &found)?;
        Screen::stderr(global.color).line(format!(
            "greenroom: the backup in {} is damaged, and nothing was restored; use another one, or restore its \
             readable part with --damaged",
            from.display()
        ))?;
        return Ok(error::STORE);
    }
    if let Some(parent) = to.parent() {
        // The default directory lies in one that may not exist yet.
        std::fs::create_dir_all(parent)?;
    }
    let target = to.clone();
    let restoring = move |progress: &Progress| Store::restore_backup(&from, &target, progress);
    let info = cancellable(global, "restoring", restoring).await?;
    let mut screen = Screen::stdout(global.color);
    if args.backup.json {
        screen.pretty_json(&json!({
            "dir": to, "made_at_ms": info.made_at_ms, "sessions": found.sessions, "entries": found.entries,
        }))?;
    } else {
        let held = held(found.sessions, found.entries, info.bytes);
        screen.line(format!("Restored {held} to {}.", to.display()))?;
    }
    Ok(0)
}

/// Whether the backup is as it was written, and has no loss that nobody accepted.
fn is_whole(found: &VerifiedBackup) -> bool {
    found.is_undamaged()
        && found.losses.iter().all(|loss| loss.is_accepted)
        && found.unknown_losses.is_empty()
}

fn held(sessions: u64, entries: u64, bytes: u64) -> String {
    let (sessions, entries) = (format::count(sessions, "session"), format::count(entries, "entry"));
    format!("{sessions} with {entries} ({})", format::bytes(bytes))
}

async fn verified(global: &Global, dir: &Path) -> Result<VerifiedBackup> {
    let dir: PathBuf = dir.to_owned();
    cancellable(global, "verifying", move |progress| Store::verify_backup(&dir, progress)).await
}

/// Names what is wrong with a backup.
fn tell(screen: &mut Screen, found: &VerifiedBackup) -> Result<()> {
    for damage in &found.damage {
        screen.line(Row::styled(Look::BAD, damage.as_str()))?;
    }
    for loss in &found.losses {
        say(screen, loss)?;
    }
    Ok(())
}

/// Does blocking work with a progress line. Ctrl-C cancels it.
async fn cancellable<T: Send + 'static>(
    global: &Global,
    what: &'static str,
    work: impl FnOnce(&Progress) -> Result<T, StoreError> + Send + 'static,
) -> Result<T> {
    let progress = Arc::<Progress>::default();
    let (line, interrupts) = (line(global, what, &progress), Interrupts::new()?);
    let shared = Arc::clone(&progress);
    let mut working = tokio::task::spawn_blocking(move || work(&shared));
    let done = tokio::select! {
        biased;
        done = &mut working => done,
        () = interrupts.next() => {
            progress.cancel();
            working.await
        }
    };
    line.end().await;
    Ok(done??)
}

fn line(global: &Global, what: &'static str, progress: &Arc<Progress>) -> Line {
    let progress = Arc::clone(progress);
    Line::start(global.color, move || {
        let total = progress.total_bytes().max(1);
        format!("{what}, {} % of {}", 100 * progress.done_bytes().min(total) / total, format::bytes(total))
    })
}

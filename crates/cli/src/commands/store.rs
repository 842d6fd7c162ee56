//! `greenroom store`: lists damage of the store, and accepts losses; `backup`, `verify` and `restore` are in `store/backup.rs`, `copy` in `store/copy.rs`.
//!
//! Invariants: only a command that names the loss accepts it, and never the opening or reading of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use greenroom_store::{Loss, Store, StoreError};
use greenroom_terminal::progress::Progress;
use greenroom_terminal::{Look, Row, Screen, format};
use serde_json::json;

use crate::args::{AcceptLossArgs, Global, JsonArgs, StoreCommand};
use crate::commands::show::losses;
use crate::host::{self, stored};
use crate::{agent, error};

mod backup;
mod copy;

/// Runs the command.
pub(crate) async fn run(global: &Global, command: &StoreCommand) -> Result<u8> {
    match command {
        StoreCommand::Check(args) => check(global, args).await,
        StoreCommand::Backup(args) => backup::back_up(global, args).await,
        StoreCommand::Verify(args) => backup::verify(global, args).await,
        StoreCommand::Restore(args) => backup::restore(global, args).await,
        StoreCommand::Copy(args) => copy::run(global, args).await,
        StoreCommand::AcceptLoss(AcceptLossArgs { segment: Some(segment), json, .. }) => {
            accept_segment(global, *segment, *json).await
        }
        StoreCommand::AcceptLoss(AcceptLossArgs { id, json, .. }) => {
            accept_session(global, id.as_deref().unwrap_or_default(), *json).await
        }
    }
}

/// Whether a loss still requires a person's decision.
fn is_open(loss: &Loss) -> bool {
    !loss.is_accepted
}

async fn check(global: &Global, args: &JsonArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let dir = agent::data_dir(global)?;
    if !dir.exists() {
        if args.json {
            screen.pretty_json(&json!({"sessions": [], "unknown_segments": []}))?;
        } else {
            screen.line(format!("There is no store in {} yet.", dir.display()))?;
        }
        return Ok(0);
    }
    let store = stored::look(global).await?.store;
    let heads = store.list()?;
    let (checked, sessions) = (Arc::new(AtomicUsize::new(0)), heads.len());
    let count = Arc::clone(&checked);
    let progress = Progress::start(global.color, move || {
        format!("checking, {} of {sessions} sessions", count.load(Ordering::Relaxed))
    });
    let (reader, ids) = (store.clone(), heads.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    let found = tokio::task::spawn_blocking(move || {
        let check = |id: &String| {
            let loss = reader.check_session(id).transpose();
            checked.fetch_add(1, Ordering::Relaxed);
            loss
        };
        ids.iter().filter_map(check).collect::<Result<Vec<Loss>, StoreError>>()
    })
    .await?;
    progress.end().await;
    let found = found?;
    let unknown = store.unknown_losses();
    store.close().await?;
    let is_damaged = found.iter().any(is_open) || !unknown.is_empty();
    if args.json {
        let sessions: Vec<_> = found.iter().map(as_value).collect();
        let value = json!({"sessions": sessions, "unknown_segments": unknown});
        screen.pretty_json(&value)?;
    } else {
        for loss in &found {
            say(&mut screen, loss)?;
        }
        for segment in &unknown {
            let name = Row::styled(Look::BAD, format!("segment {segment} of the journal"));
            screen.line(name.then(format!(
                ": a part of it is lost, with entries of unknown sessions; sessions may be missing, or lack their \
                 newest entries; `greenroom store accept-loss --segment {segment}` accepts the loss"
            )))?;
        }
        if found.is_empty() && unknown.is_empty() {
            let entries: u64 = heads.iter().map(|(_, head)| head.entries).sum();
            screen.line(format!(
                "Nothing is damaged: all {} of {} can be read.",
                format::count(entries, "entry"),
                format::count(heads.len() as u64, "session"),
            ))?;
        }
    }
    if !is_damaged {
        return Ok(0);
    }
    Screen::stderr(global.color).line(format!("greenroom: the store in {} is damaged", dir.display()))?;
    Ok(error::STORE)
}

/// Returns what a session has lost, as JSON.
pub(crate) fn as_value(loss: &Loss) -> serde_json::Value {
    json!({
        "id": loss.session,
        "lost": loss.lost.iter().map(|(from, until)| [from, until]).collect::<Vec<_>>(),
        "quarantined_from": loss.quarantined_from,
        "accepted": loss.is_accepted,
    })
}

pub(crate) fn say(screen: &mut Screen, loss: &Loss) -> Result<()> {
    let id = &loss.session;
    let lost = losses(&loss.lost, loss.quarantined_from).join(", ");
    let style = if is_open(loss) { Look::BAD } else { Look::DIM };
    let name = Row::styled(style, id.as_str());
    let what_now = if loss.is_accepted {
        "the loss was accepted".to_owned()
    } else {
        format!("it accepts no prompts until `greenroom store accept-loss {id}`")
    };
    Ok(screen.line(name.then(format!(": {lost} cannot be read; {what_now}")))?)
}

/// Returns the session's full id, the store, and what the session has lost; `None` if nothing.
async fn loss_of(global: &Global, given: &str) -> Result<(String, Store, Option<Loss>)> {
    let store = stored::store(global).await?;
    let id = stored::resolve_known(&store, given)?;
    let (reader, session) = (store.clone(), id.clone());
    let loss = tokio::task::spawn_blocking(move || reader.check_session(&session)).await??;
    Ok((id, store, loss))
}

async fn accept_session(global: &Global, given: &str, as_json: bool) -> Result<u8> {
    if !agent::data_dir(global)?.exists() {
        return Err(host::not_found(given));
    }
    let (id, mut store, mut loss) = loss_of(global, given).await?;
    let id = id.as_str();
    if loss.as_ref().is_some_and(|loss| is_open(loss) && loss.quarantined_from.is_none()) {
        // The loss was found just now. Opening the store again records it.
        store.close().await?;
        (_, store, loss) = loss_of(global, id).await?;
    }
    let mut screen = Screen::stdout(global.color);
    let Some(loss) = loss.filter(is_open) else {
        store.close().await?;
        if as_json {
            screen.pretty_json(&json!({ "id": id, "accepted": false }))?;
        } else {
            screen.line(format!("{id} has no losses that are not accepted."))?;
        }
        return Ok(0);
    };
    let before = store.head(id)?.map_or(0, |head| head.entries);
    let head = store.accept_loss(id).await?;
    store.close().await?;
    if as_json {
        let mut value = as_value(&loss);
        value["accepted"] = true.into();
        value["entries_before"] = before.into();
        value["entries"] = head.entries.into();
        screen.pretty_json(&value)?;
        return Ok(0);
    }
    let lost = losses(&loss.lost, loss.quarantined_from).join(", ");
    screen.line(format!("Accepted: {lost} of {id} cannot be read."))?;
    if head.entries < before {
        let last = before.saturating_sub(1);
        screen.line(format!(
            "The conversation depends on lost entries, so entries {} to {last} were dropped.",
            head.entries
        ))?;
    }
    screen.line(format!("{id} takes prompts again."))?;
    Ok(0)
}

async fn accept_segment(global: &Global, segment: u64, as_json: bool) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let mut is_accepted = false;
    if agent::data_dir(global)?.exists() {
        let store = stored::store(global).await?;
        is_accepted = store.accept_unknown_loss(segment).await?;
        store.close().await?;
    }
    let code = if is_accepted { 0 } else { error::USAGE };
    if as_json {
        screen.pretty_json(&json!({ "segment": segment, "accepted": is_accepted }))?;
        return Ok(code);
    }
    let line = if is_accepted {
        format!(
            "Accepted: a part of segment {segment} of the journal is lost, with entries of unknown sessions. Sessions may \
             be missing, or lack their newest entries; this warning is not repeated."
        )
    } else {
        format!("Segment {segment} has no loss to accept; `greenroom store check` lists the losses.")
    };
    screen.line(line)?;
    Ok(code)
}

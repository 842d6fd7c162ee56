//! `greenroom store`: what is damaged in the store, and which losses are accepted.
//!
//! Invariants: a loss is accepted only by a command that says what is lost, and never by opening or reading a store.

use anyhow::Result;
use greenroom::store::{Loss, Store, StoreError};
use serde_json::json;

use crate::options::{AcceptLossArgs, Global, JsonArgs, StoreCommand};
use crate::show::losses;
use crate::terminal::{Line, Screen, Style};
use crate::{errors, picture, setup};

/// Runs it.
pub(crate) async fn run(global: &Global, command: &StoreCommand) -> Result<u8> {
    match command {
        StoreCommand::Check(args) => check(global, args).await,
        StoreCommand::AcceptLoss(AcceptLossArgs { segment: Some(segment), .. }) => {
            accept_segment(global, *segment).await
        }
        StoreCommand::AcceptLoss(AcceptLossArgs { id, .. }) => {
            accept_session(global, id.as_deref().unwrap_or_default()).await
        }
    }
}

/// Whether a loss still waits for a person.
fn is_open(loss: &Loss) -> bool {
    !loss.is_accepted
}

async fn check(global: &Global, args: &JsonArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let dir = setup::data_dir(global)?;
    if !dir.exists() {
        if args.json {
            screen.pretty_json(&json!({"sessions": [], "unknown_segments": []}))?;
        } else {
            screen.line(format!("There is no store in {} yet.", dir.display()))?;
        }
        return Ok(0);
    }
    let store = setup::look(global).await?.store;
    let reader = store.clone();
    let (heads, found) =
        tokio::task::spawn_blocking(move || reader.list().and_then(|heads| Ok((heads, reader.check()?))))
            .await??;
    let unknown = store.unknown_losses();
    store.close().await?;
    let is_damaged = found.iter().any(is_open) || !unknown.is_empty();
    if args.json {
        let sessions: Vec<_> = found
            .iter()
            .map(|loss| {
                json!({
                    "id": loss.session,
                    "lost": loss.lost.iter().map(|(from, until)| [from, until]).collect::<Vec<_>>(),
                    "quarantined_from": loss.quarantined_from,
                    "accepted": loss.is_accepted,
                })
            })
            .collect();
        let value = json!({"sessions": sessions, "unknown_segments": unknown});
        screen.pretty_json(&value)?;
    } else {
        for loss in &found {
            say(&mut screen, loss)?;
        }
        for segment in &unknown {
            let name = Line::styled(Style::Red, format!("segment {segment} of the journal"));
            screen.line(name.and(format!(
                ": a part of it is gone, and nothing tells whose entries it held; sessions may be missing, or \
                 lack their newest entries; `greenroom store accept-loss --segment {segment}` accepts that"
            )))?;
        }
        if found.is_empty() && unknown.is_empty() {
            let entries: u64 = heads.iter().map(|(_, head)| head.entries).sum();
            screen.line(format!(
                "Nothing is damaged: all {} of {} can be read.",
                picture::count(entries, "entry").replace("entrys", "entries"),
                picture::count(heads.len() as u64, "session"),
            ))?;
        }
    }
    if !is_damaged {
        return Ok(0);
    }
    Screen::stderr(global.color).line(format!("greenroom: the store in {} is damaged", dir.display()))?;
    Ok(errors::STORE)
}

fn say(screen: &mut Screen, loss: &Loss) -> Result<()> {
    let id = &loss.session;
    let lost = losses(&loss.lost, loss.quarantined_from).join(", ");
    let style = if is_open(loss) { Style::Red } else { Style::Dim };
    let name = Line::styled(style, id.as_str());
    let what_now = if loss.is_accepted {
        "that was accepted".to_owned()
    } else {
        format!("it takes no prompts until `greenroom store accept-loss {id}`")
    };
    Ok(screen.line(name.and(format!(": {lost} cannot be read; {what_now}")))?)
}

/// The store, and what the session has lost; `None` if nothing.
async fn loss_of(global: &Global, id: &str) -> Result<(Store, Option<Loss>)> {
    let store = setup::store(global).await?;
    let (reader, session) = (store.clone(), id.to_owned());
    let loss = tokio::task::spawn_blocking(move || reader.check_session(&session)).await??;
    Ok((store, loss))
}

async fn accept_session(global: &Global, id: &str) -> Result<u8> {
    if !setup::data_dir(global)?.exists() {
        return Err(StoreError::NotFound { session: id.to_owned() }.into());
    }
    let (mut store, mut loss) = loss_of(global, id).await?;
    if loss.as_ref().is_some_and(|loss| is_open(loss) && loss.quarantined_from.is_none()) {
        // It was found just now. Opening the store again puts it on record.
        store.close().await?;
        (store, loss) = loss_of(global, id).await?;
    }
    let mut screen = Screen::stdout(global.color);
    let Some(loss) = loss.filter(is_open) else {
        store.close().await?;
        screen.line(format!("{id} has lost nothing that is not accepted."))?;
        return Ok(0);
    };
    let before = store.head(id)?.map_or(0, |head| head.entries);
    let head = store.accept_loss(id).await?;
    store.close().await?;
    let lost = losses(&loss.lost, loss.quarantined_from).join(", ");
    screen.line(format!("Accepted: {lost} of {id} cannot be read."))?;
    if head.entries < before {
        let last = before.saturating_sub(1);
        screen.line(format!(
            "The conversation needs what is lost, so everything from entry {} to {last} was given up.",
            head.entries
        ))?;
    }
    screen.line(format!("{id} takes prompts again."))?;
    Ok(0)
}

async fn accept_segment(global: &Global, segment: u64) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let mut is_accepted = false;
    if setup::data_dir(global)?.exists() {
        let store = setup::store(global).await?;
        is_accepted = store.accept_unknown_loss(segment).await?;
        store.close().await?;
    }
    let line = if is_accepted {
        format!(
            "Accepted: what segment {segment} of the journal held is lost, and nobody knows whose it was. Sessions may \
             be missing, or lack their newest entries; this is not said again."
        )
    } else {
        format!(
            "There is no loss of segment {segment} that is not accepted; `greenroom store check` lists them."
        )
    };
    screen.line(line)?;
    Ok(if is_accepted { 0 } else { errors::USAGE })
}

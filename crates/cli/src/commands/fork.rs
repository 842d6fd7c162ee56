//! `greenroom fork`: copies a stored session, or continues it in a new one with a goal and a summary.
//!
//! Invariants: the original is unchanged; if no summary can be made, the new session has the whole conversation, and the
//! exit code says so.

use anyhow::Result;
use greenroom_kernel::EntryId;
use greenroom_server::operations::{Abort, ForkSession};
use greenroom_terminal::progress::Progress;
use greenroom_terminal::{Interrupts, Screen, format};
use serde_json::json;

use crate::agent::kept;
use crate::args::{ForkArgs, Global};
use crate::commands::chat::begin;
use crate::commands::compact;
use crate::host::Patience;
use crate::host::link::Link;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ForkArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let patience = Patience::new(global, &interrupts);
    let (global, model) =
        &interrupts.unless(begin::stored(global, &args.model, &args.id, args.compact.is_some())).await?;
    let opening = Link::open_once_for(global, model, &args.id, &patience);
    let (link, id) = interrupts.unless(opening).await?;
    link.say_warnings(global)?;
    let result = fork(global, args, &link, id, &interrupts).await;
    link.end().await?;
    result
}

async fn fork(
    global: &Global,
    args: &ForkArgs,
    link: &Link,
    id: String,
    interrupts: &Interrupts,
) -> Result<u8> {
    let to = match &args.to {
        Some(to) => to.clone(),
        None => link.new_session("fork").await?,
    };
    let progress = args.compact.as_ref().map(|_| {
        let what = format!("summarising {id} for {to}");
        Progress::start(global.color, move || what.clone())
    });
    // What another session is resumed with stays as it is.
    link.check_free(&to).await?;
    kept::copy(global, &id, &to)?;
    let operation = ForkSession {
        session_id: id.clone(),
        to: to.clone(),
        entry_id: args.at.map(EntryId),
        goal: args.compact.clone(),
    };
    let forking = link.client.call(operation);
    tokio::pin!(forking);
    let mut is_interrupted = false;
    let forked = loop {
        tokio::select! {
            biased;
            () = interrupts.next() => {
                is_interrupted = true;
                // The summary ends, or has ended.
                let _ = link.client.call(Abort::current(&to)).await;
            }
            forked = &mut forking => break forked,
        }
    };
    if let Some(progress) = progress {
        progress.end().await;
    }
    let forked = forked?;
    let mut screen = Screen::stdout(global.color);
    let code = forked.compacted.as_ref().map_or(0, |compacted| compact::code(compacted, is_interrupted));
    if args.json {
        screen.pretty_json(&json!(forked))?;
        return Ok(code);
    }
    screen.line(forked.session_id.as_str())?;
    if let Some(compacted) = &forked.compacted {
        Screen::stderr(global.color).line(format!("{to} {}", format::continued(&id, compacted)))?;
    }
    Ok(code)
}

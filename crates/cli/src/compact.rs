//! `greenroom compact`: the older part of a stored session is replaced by a summary, now.
//!
//! Invariants: only the model's view changes; nothing to compact is an answer, not a failure.

use anyhow::Result;
use greenroom::kernel::entry::CompactionOutcome;
use greenroom::{CompactOptions, Error};
use serde_json::json;

use crate::errors;
use crate::interrupt::Interrupts;
use crate::options::{CompactArgs, Global};
use crate::progress::Progress;
use crate::setup::{self, Setup, Stay};
use crate::terminal::Screen;
use crate::text;

/// Runs it.
pub(crate) async fn run(global: &Global, args: &CompactArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let setup = Setup::new(global, &args.model, Stay::UntilReply).await?;
    let result = compact(global, args, &setup, &interrupts).await;
    setup.runtime.shutdown().await?;
    result
}

async fn compact(global: &Global, args: &CompactArgs, setup: &Setup, interrupts: &Interrupts) -> Result<u8> {
    let id = setup::resolve_known(setup.runtime.store(), &args.id)?;
    setup.check_reachable().await?;
    let session = setup.runtime.open(&id, &setup.agent).await?;
    let what = format!("compacting {id}");
    let progress = Progress::start(global.color, move || what.clone());
    let options =
        CompactOptions { focus: args.focus.clone(), keep_recent: args.keep_recent, force: args.force };
    let compacting = session.compact(options);
    tokio::pin!(compacting);
    let compacted = loop {
        tokio::select! {
            biased;
            () = interrupts.next() => session.abort(),
            compacted = &mut compacting => break compacted,
        }
    };
    progress.end().await;
    let mut screen = Screen::stdout(global.color);
    let compacted = match compacted {
        Ok(compacted) => compacted,
        Err(Error::NothingToCompact(reason)) => {
            if args.json {
                screen.pretty_json(
                    &json!({ "session_id": id, "outcome": "nothing", "reason": reason.to_string() }),
                )?;
            } else {
                screen.line(format!("Nothing to compact: {reason}"))?;
            }
            return Ok(0);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        let mut value = json!(compacted);
        value["session_id"] = json!(id);
        screen.pretty_json(&value)?;
    } else {
        screen.line(text::compacted(&compacted))?;
    }
    Ok(match &compacted.outcome {
        CompactionOutcome::Cancelled { .. } | CompactionOutcome::Interrupted => errors::INTERRUPTED,
        CompactionOutcome::Failed { .. } | CompactionOutcome::Superseded => errors::FAILED,
        CompactionOutcome::Completed
        | CompactionOutcome::Truncated { .. }
        | CompactionOutcome::Pruned { .. }
        | CompactionOutcome::Nothing { .. } => 0,
    })
}

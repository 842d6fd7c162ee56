//! `greenroom compact`: replaces the older part of a stored session by a summary now.
//!
//! Invariants: only the model's view changes; nothing to compact is a result, not a failure.

use anyhow::Result;
use greenroom::{Compacted, EventKind};
use greenroom_kernel::entry::CompactionOutcome;
use greenroom_server::operations::{Abort, CompactSession};
use greenroom_server::{ClientError, ProblemKind, Received};
use greenroom_terminal::progress::Progress;
use greenroom_terminal::{Interrupts, Screen, text};
use serde_json::json;

use crate::agent;
use crate::args::{CompactArgs, Global};
use crate::commands::chat::begin;
use crate::commands::plan;
use crate::error;
use crate::host::Patience;
use crate::host::link::Link;

/// How a session is compacted in which everything is recent.
const LESS: &str = "--keep N keeps less, and --force only the last two messages";

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &CompactArgs) -> Result<u8> {
    if args.dry_run {
        return plan::run(global, args).await;
    }
    let interrupts = Interrupts::new()?;
    let patience = Patience::new(global, &interrupts);
    let (global, model) = &interrupts.unless(begin::stored(global, &args.model, &args.id, true)).await?;
    let opening = Link::open_once_for(global, model, &args.id, &patience);
    let (link, id) = interrupts.unless(opening).await?;
    link.say_warnings(global)?;
    let result = compact(global, args, &link, id, &interrupts).await;
    link.end().await?;
    result
}

async fn compact(
    global: &Global,
    args: &CompactArgs,
    link: &Link,
    id: String,
    interrupts: &Interrupts,
) -> Result<u8> {
    let what = format!("compacting {id}");
    let progress = Progress::start(global.color, move || what.clone());
    let operation = CompactSession {
        session_id: id.clone(),
        keep_recent: args.keep_recent,
        focus: args.focus.clone(),
        force: args.force,
    };
    let mut events = link.client.events_of(&*id);
    let compacting = async { link.client.work(operation).await?.outcome().await };
    tokio::pin!(compacting);
    let mut warnings = Vec::new();
    let mut is_interrupted = false;
    let compacted = loop {
        tokio::select! {
            biased;
            () = interrupts.next() => {
                is_interrupted = true;
                // The compaction ends, or has ended.
                let _ = link.client.call(Abort::current(&id)).await;
            }
            Some(received) = events.next() => warnings.extend(warning(received)),
            compacted = &mut compacting => break compacted,
        }
    };
    while let Some(received) = events.try_next() {
        warnings.extend(warning(received));
    }
    progress.end().await;
    warnings.iter().try_for_each(|text| agent::warn(global, text))?;
    if let (true, Err(error @ ClientError::Silent(_))) = (is_interrupted, &compacted) {
        Screen::stderr(global.color).line(format!("greenroom: {error}"))?;
        return Ok(error::INTERRUPTED);
    }
    let mut screen = Screen::stdout(global.color);
    let compacted = match compacted {
        Ok(outcome) => outcome.compacted,
        Err(error) if error.kind() == Some(ProblemKind::NothingToCompact) => {
            let text = error.to_string();
            let reason = text.split_once(": ").map_or(text.as_str(), |(_, reason)| reason);
            if args.json {
                screen.pretty_json(&json!({ "session_id": id, "outcome": "nothing", "reason": reason }))?;
            } else {
                screen.line(format!("Nothing to compact: {}", text::nothing_to_compact(reason, LESS)))?;
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
        let way =
            matches!(&compacted.outcome, CompactionOutcome::Nothing { reason } if text::is_recent(reason));
        let way = if way { format!("; {LESS}") } else { String::new() };
        screen.line(text::compacted(&compacted) + &way)?;
    }
    Ok(code(&compacted, is_interrupted))
}

/// Returns a warning about the session.
fn warning(received: Received) -> Option<String> {
    let Received::Event(event) = received else { return None };
    if let EventKind::Warning { message } = &event.kind { Some(message.clone()) } else { None }
}

/// Returns the exit code for how a compaction ended, which the user may have interrupted: a hook can cancel one, too.
pub(crate) fn code(compacted: &Compacted, is_interrupted: bool) -> u8 {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are no failures")]
    match &compacted.outcome {
        CompactionOutcome::Cancelled { .. } if is_interrupted => error::INTERRUPTED,
        CompactionOutcome::Interrupted => error::INTERRUPTED,
        CompactionOutcome::Cancelled { .. }
        | CompactionOutcome::Failed { .. }
        | CompactionOutcome::Superseded => error::FAILED,
        _ => 0,
    }
}

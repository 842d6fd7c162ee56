//! The user's command that decides about compactions: `hooks.before_compact` of the configuration.
//!
//! Invariants: the command is only the user's own, because no project's file may set it, and it does not run in a
//! project's folder; a command that fails, or whose answer is not understood, decides nothing and is reported.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom::{Agent, BeforeCompact, CompactionProposal, EntryId, Trigger};
use greenroom_kernel::compacting::Supplied;
use greenroom_kernel::summary;
use greenroom_tools::printed;
use serde::{Deserialize, Serialize};

use crate::config::HooksConfig;

/// The maximum number of bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// The time that a hook has in addition to its command.
const GRACE: Duration = Duration::from_secs(5);

/// What the command gets on its standard input.
#[derive(Debug, Serialize)]
struct Proposal<'a> {
    session: &'a str,
    trigger: Trigger,
    focus: Option<&'a str>,
    keep_recent: Option<u64>,
    force: bool,
    tokens_before: u64,
    tokens_after_estimate: u64,
    messages_removed: u64,
    first_kept: EntryId,
    is_split_turn: bool,
    previous_summary: Option<&'a str>,
    /// The messages to replace, as a summariser reads them.
    transcript: String,
}

impl<'a> From<&'a CompactionProposal> for Proposal<'a> {
    fn from(proposal: &'a CompactionProposal) -> Self {
        let (plan, options) = (&proposal.plan, &proposal.options);
        let replaced = [&plan.history, &plan.turn_prefix];
        Self {
            session: &proposal.session,
            trigger: proposal.trigger,
            focus: options.focus.as_deref(),
            keep_recent: options.keep_recent,
            force: options.force,
            tokens_before: plan.tokens_before,
            tokens_after_estimate: plan.tokens_after_estimate(),
            messages_removed: plan.messages_removed(),
            first_kept: plan.first_kept,
            is_split_turn: plan.is_split_turn,
            previous_summary: plan.previous_summary.as_deref(),
            transcript: replaced.map(|entries| summary::transcript(entries)).concat().join("\n\n"),
        }
    }
}

/// What the command prints; nothing stands for `continue`.
#[derive(Debug, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case", deny_unknown_fields)]
enum Decision {
    Continue {},
    Cancel { reason: String },
    Focus { focus: String },
    Supply { summary: String },
}

/// Adds the command to the agent, if there is one, with these variables as its environment.
pub(super) fn add(agent: Agent, hooks: &HooksConfig, variables: Vec<(String, String)>) -> Agent {
    let Some(command) = &hooks.before_compact else { return agent };
    let limit = Duration::from_secs(hooks.timeout_s);
    let home = variables.iter().find(|(name, _)| name == "HOME").map_or("/", |(_, home)| home);
    let place = Arc::new((command.clone(), PathBuf::from(home), variables));
    agent.hook_timeout(limit + GRACE).before_compact(move |proposal| {
        let place = Arc::clone(&place);
        async move {
            let (command, home, variables) = &*place;
            let input = serde_json::to_vec(&Proposal::from(&proposal)).unwrap_or_default();
            match printed::answer(command, home, variables, &input, ANSWER_BYTES_MAX, limit).await {
                Ok(printed) => decided(&printed),
                Err(reason) => BeforeCompact::Skip(format!("the command of hooks.before_compact {reason}")),
            }
        }
    })
}

/// Returns the decision that was printed.
fn decided(printed: &str) -> BeforeCompact {
    if printed.trim().is_empty() {
        return BeforeCompact::Continue;
    }
    match serde_json::from_str(printed) {
        Ok(Decision::Continue {}) => BeforeCompact::Continue,
        Ok(Decision::Cancel { reason }) => BeforeCompact::Cancel(reason),
        Ok(Decision::Focus { focus }) => BeforeCompact::Focus(focus),
        Ok(Decision::Supply { summary }) => BeforeCompact::Supply(Supplied { summary, first_kept: None }),
        Err(error) => BeforeCompact::Skip(format!(
            "the command of hooks.before_compact printed no decision: {error}; it must print, for example, \
             {{\"decision\": \"continue\"}}"
        )),
    }
}

#[cfg(test)]
mod tests;

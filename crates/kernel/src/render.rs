//! Text for content that is not a message: summaries and commands that the user ran.
//!
//! Invariants: the text that is sent is also the text that is counted, since both are rendered here.

use crate::entry::{Compaction, NativeSummary, Shell};
use crate::message::{Block, Message};
use crate::summary;

#[cfg(test)]
mod tests;

/// The sentence before a summary, which tells the model what it is.
pub const SUMMARY_LEAD: &str = "The earlier part of this conversation was compacted to save space. What follows is a record of it \
     made by the system, not a message from the user: use it as background, and go on from the messages after it.";

/// The sentence before a branch summary.
const BRANCH_LEAD: &str = "The conversation went another way for a while and then came back to this point. \
     What follows is a record of that other branch, made by the system:";

/// Returns the text of a compaction for the model: the leading sentence and the summary.
pub(crate) fn summary_text(summary: &str) -> String {
    format!("{SUMMARY_LEAD}\n\n<summary>\n{summary}\n</summary>")
}

/// Returns the message as which a compaction is sent.
///
/// A provider's own form replaces the summary, but not the active request and the files, which code wrote.
pub(crate) fn compaction_message(compaction: &Compaction) -> Message {
    let Some(NativeSummary { native, .. }) = &compaction.native else {
        return Message::user(summary_text(&compaction.summary));
    };
    let (body, footer) = summary::split_footer(&compaction.summary);
    let mut blocks = vec![Block::Text(summary_text(body)), Block::Native(native.clone())];
    blocks.extend((!footer.is_empty()).then(|| Block::Text(footer.to_owned())));
    Message::User(blocks)
}

/// Returns the text of a branch summary for the model.
pub(crate) fn branch_summary_text(summary: &str) -> String {
    format!("{BRANCH_LEAD}\n\n<summary>\n{summary}\n</summary>")
}

/// Returns the text of a command that the user ran for the model.
pub(crate) fn shell_text(shell: &Shell) -> String {
    let mut text = format!("I ran `{}`.\n```\n{}\n```", shell.command, shell.output.trim_end_matches('\n'));
    if shell.truncated {
        text.push_str("\n(The output was cut.)");
    }
    if shell.cancelled {
        text.push_str("\n(The command was cancelled.)");
    } else if let Some(code) = shell.exit_code.filter(|code| *code != 0) {
        text.push_str(&format!("\n(Exit code {code}.)"));
    }
    text
}

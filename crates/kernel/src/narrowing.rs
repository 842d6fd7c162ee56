//! The part of a conversation that the next agent of a team sees when it takes over: everything, a summary, or the
//! newest messages.
//!
//! Invariants: at least one message is kept, a call stays with its results, and the request in progress is kept; what is
//! hidden stays in the log, and no later summary reads it.

use std::sync::Arc;

use crate::carried::Carried;
use crate::entry::{Compaction, Entry, EntryId, Sees, Trigger};
use crate::files::FileOps;
use crate::message::Usage;
use crate::path::{ActivePath, is_message};
use crate::reasoning::ResentReasoning;
use crate::settings::{CompactionSettings, Occasion};

#[cfg(test)]
mod tests;

/// How much of the newest conversation is kept if no summary can be made and no setting says more, in tokens.
const RECENT_TOKENS: u64 = 20_000;

/// A hand-off, with what decides how much the next agent sees.
#[derive(Debug, Clone)]
pub struct Narrowing<'a> {
    /// The session's path.
    pub path: &'a [Arc<Entry>],
    /// The pinned entries of the path.
    pub pinned: &'a [EntryId],
    /// The next agent's name.
    pub to: &'a str,
    /// What the next agent is to see.
    pub sees: Sees,
    /// Whether the summary for the next agent is in the path.
    pub is_summarised: bool,
    /// The session's newest compaction, active or not.
    pub previous: Option<EntryId>,
    /// The size of the context before, in tokens.
    pub tokens_before: u64,
    /// The compaction settings of the previous agent.
    pub settings: &'a CompactionSettings,
    /// The window of the previous agent's model, in tokens; `None` if it is not known.
    pub window: Option<u64>,
    /// The reasoning that the previous agent's requests send back.
    pub resent: &'a ResentReasoning,
}

impl Narrowing<'_> {
    /// Returns the compaction that hides the older messages from the next agent, before its `tokens_after` is measured;
    /// `None` if nothing is hidden.
    pub fn compaction(&self) -> Option<Compaction> {
        let active = ActivePath::of(self.path);
        let entries = active.entries();
        let messages = match self.sees {
            Sees::Last(messages) => messages,
            // If the summary failed, its part of the conversation is not visible either.
            Sees::Summary if !self.is_summarised => self.recent_messages(entries),
            Sees::Summary | Sees::All => return None,
        };
        let cut = cut(entries, messages)?;
        let hidden = &entries[..cut];
        Some(Compaction {
            base: active.compaction_id(),
            previous: self.previous,
            first: hidden.first().map(|entry| entry.id),
            last: hidden.last().map(|entry| entry.id),
            first_kept: Some(entries[cut].id),
            summary: format!("What was said before is not for {} to see.", self.to),
            active_request: None,
            files: FileOps::default(),
            trigger: Trigger::HandOff,
            truncated: true,
            native: None,
            from_hook: false,
            is_split_turn: false,
            tokens_before: self.tokens_before,
            tokens_after: 0,
            messages_before: active.messages(self.pinned),
            messages_removed: hidden.iter().filter(|entry| is_message(&entry.kind)).count() as u64,
            duration_ms: 0,
            model: String::new(),
            usage: Usage::default(),
            cost_microdollars: None,
            debt: Vec::new(),
            carried: Carried::default(),
            recall: None,
        })
    }

    /// Returns how many of the newest messages are kept if no summary can be made.
    fn recent_messages(&self, entries: &[Arc<Entry>]) -> u32 {
        let wanted = self.settings.keep_recent_tokens.or(Some(RECENT_TOKENS));
        let settings = CompactionSettings { keep_recent_tokens: wanted, ..self.settings.clone() };
        let keep = settings.keep_recent(self.window.unwrap_or(0), Occasion::Automatic, 0);
        let mut tokens = 0;
        let kept = entries.iter().rev().filter(|entry| is_message(&entry.kind)).take_while(|entry| {
            tokens += self.resent.sent_tokens(entry);
            tokens <= keep
        });
        u32::try_from(kept.count()).unwrap_or(u32::MAX)
    }
}

/// Returns where the newest messages start: not between a call and its result, and not after the request in
/// progress; `None` if nothing comes before them.
fn cut(entries: &[Arc<Entry>], messages: u32) -> Option<usize> {
    let places: Vec<usize> =
        entries.iter().enumerate().filter(|(_, entry)| is_message(&entry.kind)).map(|(at, _)| at).collect();
    let count = usize::try_from(messages).unwrap_or(usize::MAX).max(1).min(places.len());
    let mut at = places.len().checked_sub(count.max(1))?;
    let role = |at: usize| entries[places[at]].kind.as_message().map(|message| message.role());
    // If the last message is a tool result, the newest prompt is in progress.
    let is_open = role(places.len() - 1) == Some("tool");
    let is_prompt = |at: &usize| role(*at) == Some("user") && !entries[places[*at]].kind.is_steer();
    if let Some(request) = (0..places.len()).rev().find(is_prompt).filter(|_| is_open) {
        at = at.min(request);
    }
    while at > 0 && role(at) == Some("tool") {
        at -= 1;
    }
    Some(places[at]).filter(|place| *place > 0)
}

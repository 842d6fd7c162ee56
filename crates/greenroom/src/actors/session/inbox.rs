//! The callers of prompts in a session's durable inbox, and input that the store refuses.
//!
//! Invariants: the inbox's items are in the log; only their callers are here. An item is refused once, never
//! starts afterwards, and leaves the log with the next append; until then the session stays awake. Writes
//! that the store refuses are retried after a wait that doubles, by one timer at a time. A held-back item
//! starts and joins nothing until it is released.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::EntryKind;

use super::first_reply::Successor;
use crate::agent::Agent;
use crate::core::message::{PromptOptions, ReplyTo};
use crate::core::trace::CalledFrom;
use crate::values::prompt::Reply;
use greenroom_kernel::log::{Draft, InboxItem, Log};

#[cfg(test)]
mod tests;

/// The wait before the first retry after the store's refusal.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest such wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The maximum number of doublings of the wait.
const DOUBLINGS_MAX: u32 = 6;

/// The caller of a prompt in the inbox.
pub(super) struct Caller {
    pub(super) options: Box<PromptOptions>,
    pub(super) reply: ReplyTo<Reply>,
}

/// The callers of queued input, and the retries after refusals.
#[derive(Default)]
pub(super) struct Inbox {
    callers: HashMap<EntryId, Caller>,
    /// The callers that wait for the reply of the run that receives an item, and without whom the run
    /// continues.
    followers: HashMap<EntryId, Vec<ReplyTo<Reply>>>,
    /// The senders' traces, for steers and follow-ups.
    from: HashMap<EntryId, CalledFrom>,
    /// Items whose callers got an error or have gone.
    refused: Vec<EntryId>,
    /// Items of an earlier process that wait for their release.
    held_back: Arc<HashSet<EntryId>>,
    /// The senders' own agents, for items that have one.
    agents: Arc<HashMap<EntryId, Arc<Agent>>>,
    /// The store refused queued input: nothing starts before the timer fires or the next request arrives.
    is_held: bool,
    /// The timer for this is running.
    has_timer: bool,
    /// How often in a row the store has refused.
    refusals: u32,
}

impl Inbox {
    /// Creates the state with these held-back items, and these senders' agents.
    pub(super) fn open(held_back: HashSet<EntryId>, agents: Arc<HashMap<EntryId, Arc<Agent>>>) -> Self {
        Self { held_back: Arc::new(held_back), agents, ..Self::default() }
    }

    /// Returns the held-back items.
    pub(super) fn held_back(&self) -> &Arc<HashSet<EntryId>> {
        &self.held_back
    }

    /// Holds back an item until its release.
    pub(super) fn hold_back(&mut self, item: EntryId) {
        Arc::make_mut(&mut self.held_back).insert(item);
    }

    /// Releases items, for this agent.
    pub(super) fn let_go(&mut self, items: &[EntryId], agent: &Arc<Agent>) {
        if items.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.held_back).retain(|item| !items.contains(item));
        items.iter().for_each(|item| self.set_agent(*item, Arc::clone(agent)));
    }

    /// Returns the senders' own agents, for items that have one.
    pub(super) fn agents(&self) -> &Arc<HashMap<EntryId, Arc<Agent>>> {
        &self.agents
    }

    /// Returns the own agent of an item's sender, if there is one.
    pub(super) fn agent(&self, item: EntryId) -> Option<&Arc<Agent>> {
        self.agents.get(&item)
    }

    /// Sets the own agent of an item's sender.
    pub(super) fn set_agent(&mut self, item: EntryId, agent: Arc<Agent>) {
        Arc::make_mut(&mut self.agents).insert(item, agent);
    }

    /// Whether an item is held back.
    pub(super) fn is_held_back(&self, item: EntryId) -> bool {
        self.held_back.contains(&item)
    }

    /// Returns the items that may start, oldest first.
    pub(super) fn ready<'a>(&'a self, log: &'a Log) -> impl Iterator<Item = &'a InboxItem> {
        self.waiting(log).filter(|item| !self.is_held_back(item.id))
    }

    /// Returns the waiting items, oldest first.
    pub(super) fn waiting<'a>(&'a self, log: &'a Log) -> impl Iterator<Item = &'a InboxItem> {
        log.inbox().iter().filter(|item| !self.refused.contains(&item.id))
    }

    /// Whether no item may start.
    pub(super) fn is_empty(&self, log: &Log) -> bool {
        self.ready(log).next().is_none()
    }

    /// Returns the item that may start now.
    pub(super) fn next(&self, log: &Log) -> Option<InboxItem> {
        if self.is_held { None } else { self.ready(log).next().cloned() }
    }

    /// Whether a caller waits for the answer to this item.
    pub(super) fn has_caller(&self, item: EntryId) -> bool {
        self.callers.contains_key(&item)
    }

    /// Adds a caller that waits for the answer to this item.
    pub(super) fn wait_for(&mut self, item: EntryId, caller: Caller) {
        self.callers.insert(item, caller);
    }

    /// Returns the number of callers that wait for answers to items.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Takes the caller of an item that starts, if there is one.
    pub(super) fn take_caller(&mut self, item: EntryId) -> Option<Caller> {
        self.callers.remove(&item)
    }

    /// Adds a caller that waits for the reply of the run that receives this item.
    pub(super) fn follow(&mut self, item: EntryId, reply: ReplyTo<Reply>) {
        self.followers.entry(item).or_default().push(reply);
    }

    /// Takes the callers that wait for the reply of the run that receives this item.
    pub(super) fn take_followers(&mut self, item: EntryId) -> Vec<ReplyTo<Reply>> {
        self.followers.remove(&item).unwrap_or_default()
    }

    /// Sets the sender's trace of this item.
    pub(super) fn came_from(&mut self, item: EntryId, from: CalledFrom) {
        self.from.insert(item, from);
    }

    /// Takes the sender's trace of this item.
    pub(super) fn take_from(&mut self, item: EntryId) -> CalledFrom {
        self.from.remove(&item).unwrap_or_default()
    }

    /// The item for which the caller with this ticket waits.
    pub(super) fn of_ticket(&self, ticket: u64) -> Option<EntryId> {
        let (item, _) = self.callers.iter().find(|(_, caller)| caller.options.ticket == ticket)?;
        Some(*item)
    }

    /// Replaces the caller of an item, who has gone, by another one who waits for the answer. Returns the one who has
    /// gone.
    pub(super) fn pass_on(&mut self, item: EntryId, by: Successor) -> Option<ReplyTo<Reply>> {
        let Caller { options, reply } = self.callers.get_mut(&item)?;
        (options.ticket, options.cancel) = (by.ticket, by.cancel);
        Some(std::mem::replace(reply, by.reply))
    }

    /// Whether the caller of an item has aborted its prompt.
    pub(super) fn is_aborted(&self, item: EntryId) -> bool {
        self.callers.get(&item).is_some_and(|caller| caller.options.cancel.is_cancelled())
    }

    /// The items for which callers wait.
    pub(super) fn awaited(&self) -> Vec<EntryId> {
        self.callers.keys().copied().collect()
    }

    /// Takes the caller and the followers of this item.
    pub(super) fn take_waiting(&mut self, item: EntryId) -> Vec<ReplyTo<Reply>> {
        let caller = self.take_caller(item).map(|caller| caller.reply);
        caller.into_iter().chain(self.take_followers(item)).collect()
    }

    /// The callers and followers of all items.
    pub(super) fn into_waiting(self) -> Vec<ReplyTo<Reply>> {
        let callers = self.callers.into_values().map(|caller| caller.reply);
        callers.chain(self.followers.into_values().flatten()).collect()
    }

    /// Refuses an item, which then never starts.
    pub(super) fn refuse(&mut self, item: EntryId) {
        self.refused.push(item);
    }

    /// Adds the removal of the refused items from the inbox to a draft.
    pub(super) fn clear_refused(&self, draft: &mut Draft) {
        if !self.refused.is_empty() {
            draft.push(EntryKind::InboxCleared { items: self.refused.clone() });
        }
    }

    /// Whether refused items are still in the log.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether refused items should be removed from the log now.
    pub(super) fn may_clear(&self) -> bool {
        self.has_refused() && !self.is_held
    }

    /// Forgets the refused items that left the inbox with a committed draft.
    pub(super) fn committed(&mut self, log: &Log) {
        let waits = |id: &EntryId| log.inbox().iter().any(|item| item.id == *id);
        self.refused.retain(waits);
        if !self.held_back.iter().all(waits) {
            Arc::make_mut(&mut self.held_back).retain(waits);
        }
        if !self.agents.keys().all(waits) {
            Arc::make_mut(&mut self.agents).retain(|item, _| waits(item));
        }
        self.from.retain(|item, _| waits(item));
    }

    /// Ends the hold, because a request arrived: the store is tried again at once.
    pub(super) fn release(&mut self) {
        self.is_held = false;
    }

    /// Handles the timer.
    pub(super) fn timer_fired(&mut self) {
        (self.is_held, self.has_timer) = (false, false);
    }

    /// Passes the inbox to the actor that wakes the session. The timer ends with its actor, so held input is
    /// tried again at once.
    pub(super) fn hand_over(&mut self) -> Self {
        Self { is_held: false, has_timer: false, ..std::mem::take(self) }
    }

    /// Notes that the store accepted queued input.
    pub(super) fn delivered(&mut self) {
        self.refusals = 0;
    }

    /// Notes that the store refused queued input, or the removal of refused items. Returns how long a new
    /// timer must wait; `None` if nothing is left to try, or a timer is running.
    pub(super) fn hold(&mut self, log: &Log) -> Option<Duration> {
        self.is_held = !self.is_empty(log) || self.has_refused();
        if !self.is_held || std::mem::replace(&mut self.has_timer, true) {
            return None;
        }
        let wait = (RETRY_AFTER * 2_u32.pow(self.refusals)).min(RETRY_AFTER_MAX);
        self.refusals = (self.refusals + 1).min(DOUBLINGS_MAX);
        Some(wait)
    }
}

//! Who waits for the prompts in a session's durable inbox, and what becomes of input that the store refuses.
//!
//! Invariants: the inbox's items are in the log; only their callers are here. An item is refused once, never begins
//! after that, and leaves the log with the next append; until then the session stays awake. What the store refuses is
//! tried again after a wait that doubles, by one timer at a time. What is held back begins and joins nothing until it is
//! let go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::EntryKind;

use crate::agent::Agent;
use crate::core::message::{PromptOptions, ReplyTo};
use crate::core::trace::CalledFrom;
use crate::values::prompt::Reply;
use greenroom_kernel::log::{Draft, InboxItem, Log};

#[cfg(test)]
mod tests;

/// The first wait before input that the store refused is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest such wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The waits double at most this often.
const DOUBLINGS_MAX: u32 = 6;

/// The caller of a prompt that waits in the inbox.
pub(super) struct Caller {
    pub(super) options: Box<PromptOptions>,
    pub(super) reply: ReplyTo<Reply>,
}

/// The callers of what waits, and the retries after refusals.
#[derive(Default)]
pub(super) struct Inbox {
    callers: HashMap<EntryId, Caller>,
    /// Who waits for the reply of the run that takes an item in, and lets it go on without them.
    followers: HashMap<EntryId, Vec<ReplyTo<Reply>>>,
    /// The spans within which steers and follow-ups were sent.
    from: HashMap<EntryId, CalledFrom>,
    /// Items whose callers were told that they failed, or went away.
    refused: Vec<EntryId>,
    /// Items of an earlier process that wait until somebody says that they may begin.
    held_back: Arc<HashSet<EntryId>>,
    /// The agents of those who said what waits, where they brought one.
    agents: Arc<HashMap<EntryId, Arc<Agent>>>,
    /// The store refused what waits: nothing begins before the timer fires or the next request comes.
    is_held: bool,
    /// A timer that ends the hold is running.
    has_timer: bool,
    /// How often the store refused in a row.
    refusals: u32,
}

impl Inbox {
    /// One in which these items are held back, and others were said to these agents.
    pub(super) fn open(held_back: HashSet<EntryId>, agents: Arc<HashMap<EntryId, Arc<Agent>>>) -> Self {
        Self { held_back: Arc::new(held_back), agents, ..Self::default() }
    }

    /// The items that are held back.
    pub(super) fn held_back(&self) -> &Arc<HashSet<EntryId>> {
        &self.held_back
    }

    /// This item waits until somebody says that it may begin.
    pub(super) fn hold_back(&mut self, item: EntryId) {
        Arc::make_mut(&mut self.held_back).insert(item);
    }

    /// Lets these items begin, with this agent.
    pub(super) fn let_go(&mut self, items: &[EntryId], agent: &Arc<Agent>) {
        if items.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.held_back).retain(|item| !items.contains(item));
        items.iter().for_each(|item| self.set_agent(*item, Arc::clone(agent)));
    }

    /// The agents of those who said what waits, where they brought one.
    pub(super) fn agents(&self) -> &Arc<HashMap<EntryId, Arc<Agent>>> {
        &self.agents
    }

    /// The agent of whoever said this item, if they brought one.
    pub(super) fn agent(&self, item: EntryId) -> Option<&Arc<Agent>> {
        self.agents.get(&item)
    }

    /// Whoever said this item brought this agent.
    pub(super) fn set_agent(&mut self, item: EntryId, agent: Arc<Agent>) {
        Arc::make_mut(&mut self.agents).insert(item, agent);
    }

    /// Whether an item is held back.
    pub(super) fn is_held_back(&self, item: EntryId) -> bool {
        self.held_back.contains(&item)
    }

    /// The items that wait and may begin, oldest first.
    pub(super) fn ready<'a>(&'a self, log: &'a Log) -> impl Iterator<Item = &'a InboxItem> {
        self.waiting(log).filter(|item| !self.is_held_back(item.id))
    }

    /// The items that wait, oldest first.
    pub(super) fn waiting<'a>(&'a self, log: &'a Log) -> impl Iterator<Item = &'a InboxItem> {
        log.inbox().iter().filter(|item| !self.refused.contains(&item.id))
    }

    /// Whether nothing waits that may begin.
    pub(super) fn is_empty(&self, log: &Log) -> bool {
        self.ready(log).next().is_none()
    }

    /// The item that may begin now.
    pub(super) fn next(&self, log: &Log) -> Option<InboxItem> {
        if self.is_held { None } else { self.ready(log).next().cloned() }
    }

    /// Whether a caller waits for the answer to this item.
    pub(super) fn has_caller(&self, item: EntryId) -> bool {
        self.callers.contains_key(&item)
    }

    /// A caller waits for the answer to this item.
    pub(super) fn wait_for(&mut self, item: EntryId, caller: Caller) {
        self.callers.insert(item, caller);
    }

    /// How many callers wait for the answers to items.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// The caller of an item that begins, if one waits for it.
    pub(super) fn take_caller(&mut self, item: EntryId) -> Option<Caller> {
        self.callers.remove(&item)
    }

    /// Somebody waits for the reply of the run that takes this item in.
    pub(super) fn follow(&mut self, item: EntryId, reply: ReplyTo<Reply>) {
        self.followers.entry(item).or_default().push(reply);
    }

    /// Who waits for the reply of the run that takes this item in.
    pub(super) fn take_followers(&mut self, item: EntryId) -> Vec<ReplyTo<Reply>> {
        self.followers.remove(&item).unwrap_or_default()
    }

    /// This item was sent from here.
    pub(super) fn came_from(&mut self, item: EntryId, from: CalledFrom) {
        self.from.insert(item, from);
    }

    /// Where this item was sent from.
    pub(super) fn take_from(&mut self, item: EntryId) -> CalledFrom {
        self.from.remove(&item).unwrap_or_default()
    }

    /// Who waited for items that are no longer in the inbox, though nothing took them in.
    pub(super) fn take_withdrawn(&mut self, log: &Log) -> Vec<ReplyTo<Reply>> {
        let is_gone = |item: &EntryId| !log.inbox().iter().any(|waiting| waiting.id == *item);
        let callers = self.callers.extract_if(|item, _| is_gone(item)).map(|(_, caller)| caller.reply);
        let followers = self.followers.extract_if(|item, _| is_gone(item)).flat_map(|(_, replies)| replies);
        callers.chain(followers).collect()
    }

    /// The caller with this ticket went away or takes its prompt back: its item is refused. Gives the caller, if one
    /// waits.
    pub(super) fn withdraw(&mut self, ticket: u64) -> Option<Caller> {
        let (item, caller) = self.callers.extract_if(|_, caller| caller.options.ticket == ticket).next()?;
        self.refused.push(item);
        Some(caller)
    }

    /// This item never begins.
    pub(super) fn refuse(&mut self, item: EntryId) {
        self.refused.push(item);
    }

    /// Refuses every item that a caller waits for. Returns the callers, who must be told.
    pub(super) fn refuse_all_callers(&mut self) -> Vec<ReplyTo<Reply>> {
        let callers = std::mem::take(&mut self.callers);
        self.refused.extend(callers.keys());
        callers.into_values().map(|caller| caller.reply).collect()
    }

    /// Adds to a draft that the refused items leave the inbox.
    pub(super) fn clear_refused(&self, draft: &mut Draft) {
        if !self.refused.is_empty() {
            draft.push(EntryKind::InboxCleared { items: self.refused.clone() });
        }
    }

    /// Whether refused items are still in the log.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether refused items are to be taken out of the log now.
    pub(super) fn may_clear(&self) -> bool {
        self.has_refused() && !self.is_held
    }

    /// A draft was committed: forgets the refused items that left the inbox.
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

    /// A request came, so the store is tried again at once.
    pub(super) fn release(&mut self) {
        self.is_held = false;
    }

    /// The timer fired.
    pub(super) fn timer_fired(&mut self) {
        (self.is_held, self.has_timer) = (false, false);
    }

    /// Gives the inbox to the actor that wakes the session. The timer ends with the actor that started it, so what was
    /// held is tried again at once.
    pub(super) fn hand_over(&mut self) -> Self {
        Self { is_held: false, has_timer: false, ..std::mem::take(self) }
    }

    /// The store took what waited.
    pub(super) fn delivered(&mut self) {
        self.refusals = 0;
    }

    /// The store refused what waited, or that refused items leave. Gives how long a new timer must wait; `None` if nothing
    /// is left to try, or a timer is running.
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

//! Chooses the next call for a slot in a lane.
//!
//! Invariants: slots rotate among the groups that wait, one call each, and within a group among its families. A group is a
//! family, or all families whose sessions have one value of a label. So a session with many calls (its sub-agents' included)
//! delays each other family by one call at most, and a tenant with many sessions each other tenant; a summary that nobody waits for gets a
//! slot only if no other call wants one and another slot remains free; summaries hold at most half of the
//! slots.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

/// The urgency of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Urgency {
    /// A run's step.
    Step,
    /// A summary that a run or a caller waits for.
    Summary,
    /// A summary that nobody waits for.
    Background,
}

/// A call that waits for a slot.
pub(super) struct Waiter {
    pub(super) number: u64,
    /// Notified when the call has its slot.
    pub(super) granted: oneshot::Sender<()>,
}

/// The slots of a lane, and the calls that wait for them.
pub(super) struct Queue {
    slots: usize,
    taken: usize,
    taken_by_summaries: usize,
    steps: Rounds,
    summaries: Rounds,
    background: Rounds,
    /// The number of the newest waiter; earlier ones have lower numbers.
    newest: u64,
}

/// The group and the family of a call. Slots rotate among groups first, and among the families of a group then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The value of the label by which slots are shared, or else the family itself.
    pub(crate) group: Arc<str>,
    pub(crate) family: Arc<str>,
}

/// Waiters of one urgency, by group and family.
#[derive(Default)]
struct Rounds {
    /// The groups with waiters, in the order of their turns.
    order: VecDeque<Arc<str>>,
    groups: HashMap<Arc<str>, Group>,
    count: usize,
}

/// The waiters of one group, by family.
#[derive(Default)]
struct Group {
    /// The families with waiters, in the order of their turns.
    order: VecDeque<Arc<str>>,
    waiting: HashMap<Arc<str>, VecDeque<Waiter>>,
}

impl Queue {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots,
            taken: 0,
            taken_by_summaries: 0,
            steps: Rounds::default(),
            summaries: Rounds::default(),
            background: Rounds::default(),
            newest: 0,
        }
    }

    /// Returns the number of slots, of calls that have one, and of waiters.
    #[cfg(feature = "metrics")]
    pub(super) fn occupancy(&self) -> (usize, usize, usize) {
        let queued = self.steps.count + self.summaries.count + self.background.count;
        (self.slots, self.taken, queued)
    }

    pub(super) fn has_one_slot(&self) -> bool {
        self.slots == 1
    }

    /// Takes a slot for a step if one is free and no call waits, so that the call need not be queued. Returns whether it did.
    pub(super) fn take_free(&mut self, urgency: Urgency) -> bool {
        let is_free = urgency == Urgency::Step
            && self.taken < self.slots
            && self.steps.count + self.summaries.count == 0;
        self.taken += usize::from(is_free);
        is_free
    }

    /// Adds a waiter. Returns its number and its position; 1 is next.
    pub(super) fn add(
        &mut self,
        turn: &Turn,
        urgency: Urgency,
        granted: oneshot::Sender<()>,
    ) -> (u64, usize) {
        self.newest += 1;
        let number = self.newest;
        let position = self.rounds(urgency).add(turn, Waiter { number, granted });
        let before = match urgency {
            Urgency::Step => self.summaries.order.len(),
            Urgency::Summary => self.steps.order.len(),
            Urgency::Background => self.steps.count + self.summaries.count,
        };
        (number, before + position)
    }

    /// Takes a slot for the next waiter, if one may have it, and returns the waiter.
    pub(super) fn next(&mut self) -> Option<Waiter> {
        let urgency = self.next_urgency()?;
        let waiter = self.rounds(urgency).next()?;
        self.taken += 1;
        self.taken_by_summaries += usize::from(urgency != Urgency::Step);
        Some(waiter)
    }

    fn next_urgency(&self) -> Option<Urgency> {
        if self.taken >= self.slots {
            return None;
        }
        let is_half_free = self.taken_by_summaries < self.slots.div_ceil(2);
        if self.steps.count > 0 && (self.summaries.count == 0 || !is_half_free) {
            return Some(Urgency::Step);
        }
        let step = self.steps.first();
        let summary = self.summaries.first().filter(|_| is_half_free);
        match (step, summary) {
            (Some(step), Some(summary)) if summary < step => Some(Urgency::Summary),
            (Some(_), _) => Some(Urgency::Step),
            (None, Some(_)) => Some(Urgency::Summary),
            (None, None) => {
                let one_stays_free = self.taken + 1 < self.slots || self.slots == 1;
                let is_wanted = self.background.first().is_some() && self.summaries.first().is_none();
                (is_wanted && is_half_free && one_stays_free).then_some(Urgency::Background)
            }
        }
    }

    /// Frees a slot.
    pub(super) fn release(&mut self, urgency: Urgency) {
        self.taken -= 1;
        self.taken_by_summaries -= usize::from(urgency != Urgency::Step);
    }

    /// Removes a waiter. Returns whether it was still queued.
    pub(super) fn remove(&mut self, turn: &Turn, number: u64) -> bool {
        // The urgency of a background summary may have been raised.
        [Urgency::Step, Urgency::Summary, Urgency::Background]
            .into_iter()
            .any(|urgency| self.rounds(urgency).remove(turn, number))
    }

    /// Raises the urgency of a family's background summaries.
    pub(super) fn promote(&mut self, family: &Arc<str>) {
        while let Some((turn, waiter)) = self.background.take_first(family) {
            self.summaries.add(&turn, waiter);
        }
    }

    fn rounds(&mut self, urgency: Urgency) -> &mut Rounds {
        match urgency {
            Urgency::Step => &mut self.steps,
            Urgency::Summary => &mut self.summaries,
            Urgency::Background => &mut self.background,
        }
    }
}

impl Rounds {
    /// Adds a waiter behind the others of its family. Returns its position within this urgency.
    fn add(&mut self, turn: &Turn, waiter: Waiter) -> usize {
        self.count += 1;
        let group = self.groups.entry(Arc::clone(&turn.group));
        let is_new = matches!(group, Entry::Vacant(_));
        if is_new {
            self.order.push_back(Arc::clone(&turn.group));
        }
        let group = group.or_default();
        let own = group.waiting.entry(Arc::clone(&turn.family)).or_default();
        own.push_back(waiter);
        if own.len() > 1 {
            return self.count;
        }
        group.order.push_back(Arc::clone(&turn.family));
        // Each family of its group before this one has one call before it, and each other group has one for each of these.
        let rounds = group.order.len() - 1;
        // A new group is the last one. Usually each family is a group of its own, and then nothing is searched.
        let at = if is_new {
            self.order.len() - 1
        } else {
            self.order.iter().position(|other| *other == turn.group).unwrap_or_default()
        };
        (rounds * self.order.len() + at + 1).min(self.count)
    }

    /// Returns the number of the next waiter.
    fn first(&self) -> Option<u64> {
        let group = self.groups.get(self.order.front()?)?;
        let own = group.waiting.get(group.order.front()?)?;
        own.front().map(|waiter| waiter.number)
    }

    /// Takes the next waiter, and moves its group, and its family there, to the end.
    fn next(&mut self) -> Option<Waiter> {
        let Entry::Occupied(mut group) = self.groups.entry(self.order.pop_front()?) else { return None };
        let waiter = group.get_mut().next();
        if group.get().order.is_empty() {
            group.remove();
        } else {
            self.order.push_back(Arc::clone(group.key()));
        }
        self.count -= 1;
        waiter
    }

    /// Takes the first waiter of a family, with its turn.
    fn take_first(&mut self, family: &Arc<str>) -> Option<(Turn, Waiter)> {
        let of_family = |group: &Group| Some(group.waiting.get(family)?.front()?.number);
        let (group, number) = self.groups.iter().find_map(|(name, group)| Some((name, of_family(group)?)))?;
        let turn = Turn { group: Arc::clone(group), family: Arc::clone(family) };
        let waiter = self.take(&turn, number)?;
        Some((turn, waiter))
    }

    fn remove(&mut self, turn: &Turn, number: u64) -> bool {
        self.take(turn, number).is_some()
    }

    fn take(&mut self, turn: &Turn, number: u64) -> Option<Waiter> {
        let group = self.groups.get_mut(&turn.group)?;
        let waiter = group.take(&turn.family, number)?;
        if group.order.is_empty() {
            self.groups.remove(&turn.group);
            self.order.retain(|other| *other != turn.group);
        }
        self.count -= 1;
        Some(waiter)
    }
}

impl Group {
    fn next(&mut self) -> Option<Waiter> {
        let Entry::Occupied(mut own) = self.waiting.entry(self.order.pop_front()?) else { return None };
        let waiter = own.get_mut().pop_front();
        if own.get().is_empty() {
            own.remove();
        } else {
            self.order.push_back(Arc::clone(own.key()));
        }
        waiter
    }

    fn take(&mut self, family: &Arc<str>, number: u64) -> Option<Waiter> {
        let own = self.waiting.get_mut(family)?;
        let place = own.iter().position(|waiter| waiter.number == number)?;
        let waiter = own.remove(place);
        if own.is_empty() {
            self.waiting.remove(family);
            self.order.retain(|other| other != family);
        }
        waiter
    }
}

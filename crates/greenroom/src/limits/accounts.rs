//! The accounts of a runtime: of all its sessions together, and of each label value by which it counts. They have what
//! was spent, by hour and day, and enforce the limits.
//!
//! Invariants: the session that recorded spending counts it once, when its entries are durable. Accounts are stored in
//! the background, and what a crash leaves unstored is counted from the logs at the next start (`stored`), so a sum is
//! exact. An account that is not in use leaves memory; it is read again when it is needed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::bill::Tally;
use greenroom_kernel::cost::{Admission, Left, admit, unaffordable};
use greenroom_store::Engine;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::limits::accounts::slots::LabelSlots;
use crate::limits::accounts::stored::{Recent, StoredAccount};
use crate::limits::accounts::sums::Sums;
use crate::limits::labels::{Label, Limits, Table, Tenants};
use crate::limits::spending::Period;
use crate::limits::spending::tree::Wanted;
use crate::limits::spending::window::Window;
use crate::values::clock::Clock;
use crate::values::error::{Error, Result};
use crate::values::rate::{Rate, Reservation};

pub(crate) mod slots;
pub(crate) mod stored;
pub(crate) mod sums;

#[cfg(test)]
mod tests;

/// An account that was not used for this long leaves memory.
const IDLE_AFTER: Duration = Duration::from_secs(3_600);
/// How many accounts are in memory before idle ones are looked for.
const LOOK_FROM: usize = 256;

/// The accounts of a runtime.
pub(crate) struct Accounts {
    store: Arc<dyn Engine>,
    table: Table,
    /// The limits of all sessions together.
    of_all: Limits,
    is_on: bool,
    clock: Clock,
    inner: Mutex<Inner>,
    /// The stored accounts, if the engine answers only to those who wait. They are read at the start.
    unread: Mutex<HashMap<Name, StoredAccount>>,
    /// Serialises writes.
    writing: tokio::sync::Mutex<()>,
}

/// The name of an account; `None` is that of all sessions.
type Name = Option<Label>;

struct Inner {
    accounts: HashMap<Name, Account>,
    /// How many accounts cause a look for idle ones.
    look_at: usize,
    /// The number of nodes among which rates are divided.
    nodes: u64,
    /// Whether a task is writing. It also writes what changes in the meantime.
    is_writing: bool,
    /// Everything recorded before this time, in Unix milliseconds, is in the stored accounts.
    counted_before_ms: u64,
}

/// One account.
struct Account {
    sums: Sums,
    /// The limits in dollars.
    windows: Vec<Window>,
    tokens: Option<Rate>,
    messages: Option<Rate>,
    runs: Option<Arc<LabelSlots>>,
    /// How far the sessions that spent recently were counted.
    recent: Recent,
    has_changed: bool,
    has_changed_days: bool,
    used_at: Instant,
}

impl Account {
    fn new(limits: &Limits, stored: StoredAccount, now: Instant) -> Self {
        let windows = limits.cost.iter().map(|(limit, period)| {
            let spent = stored.windows.get(period.as_str()).cloned().unwrap_or_default();
            Window::new(*limit, *period, spent)
        });
        Self {
            windows: windows.collect(),
            sums: Sums::new(&stored.hours, &stored.days),
            tokens: limits.tokens_per_minute.map(|tokens| Rate::new(tokens, now)),
            messages: limits.messages_per_minute.map(|messages| Rate::new(messages, now)),
            runs: limits.runs_max.map(LabelSlots::new),
            recent: stored.recent,
            has_changed: false,
            has_changed_days: false,
            used_at: now,
        }
    }

    /// Counts what entries below `below` of a session recorded.
    fn count(&mut self, session: &Arc<str>, below: u64, at_ms: u64, now_ms: u64, tally: &Tally) {
        self.has_changed = true;
        self.has_changed_days |= self.sums.add(tally, at_ms, now_ms);
        self.recent.note(session, below, at_ms);
        self.windows.iter_mut().for_each(|window| window.add(tally.cost_microdollars, at_ms));
    }

    /// Divides the rates by the number of nodes that share them.
    fn share_rates(&mut self, nodes: u64, now: Instant) {
        for rate in [&mut self.tokens, &mut self.messages].into_iter().flatten() {
            rate.divide(nodes, now);
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        let has_runs = self.runs.as_ref().is_some_and(|runs| Arc::strong_count(runs) > 1);
        !self.has_changed && !has_runs && now.duration_since(self.used_at) >= IDLE_AFTER
    }
}

impl Accounts {
    /// Creates the accounts. Without limits in dollars and without labels, nothing is counted, unless `is_wanted`.
    pub(crate) fn new(
        store: Arc<dyn Engine>,
        clock: Clock,
        table: Table,
        cost_limits: Vec<(u64, Period)>,
        is_wanted: bool,
    ) -> Arc<Self> {
        let is_on = is_wanted || table.has_names() || !cost_limits.is_empty();
        let of_all = Limits { cost: cost_limits, ..Limits::default() };
        let inner = Inner {
            accounts: HashMap::new(),
            look_at: LOOK_FROM,
            nodes: 1,
            is_writing: false,
            counted_before_ms: 0,
        };
        Arc::new(Self {
            store,
            table,
            of_all,
            is_on,
            clock,
            inner: Mutex::new(inner),
            unread: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        })
    }

    /// Whether anything is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The labels by which it counts.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Divides the rates of all labels by the number of nodes that share them.
    pub(crate) fn share_rates(&self, nodes: u64) {
        let (mut inner, now) = (self.inner.lock(), Instant::now());
        inner.nodes = nodes;
        inner.accounts.values_mut().for_each(|account| account.share_rates(nodes, now));
    }

    /// Counts what a session recorded: entries below `below`, at this time.
    pub(crate) fn count(
        self: &Arc<Self>,
        tenants: &Tenants,
        session: &Arc<str>,
        below: u64,
        at_ms: u64,
        tally: &Tally,
    ) {
        if !self.is_on || tally.is_empty() {
            return;
        }
        let (mut inner, now_ms) = (self.inner.lock(), self.clock.now_ms());
        for name in names(tenants) {
            self.account(&mut inner, &name).count(session, below, at_ms, now_ms, tally);
        }
        self.write_soon(&mut inner);
    }

    /// Describes the limit in dollars that is used up; `None` if there is none.
    pub(crate) fn used_up(&self, tenants: &Tenants, now_ms: impl FnOnce() -> u64) -> Option<String> {
        if !self.limits_cost() {
            return None;
        }
        let now_ms = now_ms();
        self.each(tenants, |whose, account| {
            let used_up = account.windows.iter().find(|window| window.is_used_up(now_ms))?;
            Some(used_up.reached(whose, now_ms))
        })
    }

    /// Whether there is a limit in dollars.
    pub(crate) fn limits_cost(&self) -> bool {
        !self.of_all.cost.is_empty() || self.table.limits_cost()
    }

    /// Returns how much output, in tokens, the remaining budgets allow for a call.
    ///
    /// # Errors
    /// A description of the limit that is used up, or that does not cover the call.
    pub(crate) fn look(
        &self,
        tenants: &Tenants,
        now_ms: impl FnOnce() -> u64,
        wanted: Option<Wanted>,
    ) -> std::result::Result<u64, String> {
        if !self.limits_cost() {
            return Ok(wanted.map_or(u64::MAX, |wanted| wanted.output_tokens));
        }
        let now_ms = now_ms();
        if let Some(reason) = self.used_up(tenants, || now_ms) {
            return Err(reason);
        }
        let Some(Wanted { price, output_tokens }) = wanted else { return Ok(u64::MAX) };
        let mut least = output_tokens;
        let refused = self.each(tenants, |whose, account| {
            account.windows.iter().find_map(|window| {
                let microdollars = window.left(now_ms);
                match admit(price, output_tokens, Left { microdollars, reserved: 0, is_shared: false }) {
                    Admission::Ask { output_tokens_max } => {
                        least = least.min(output_tokens_max);
                        None
                    }
                    Admission::Wait | Admission::Refuse => {
                        let limit = window.reached(whose, now_ms);
                        Some(unaffordable(&limit, microdollars, price.input_microdollars))
                    }
                }
            })
        });
        refused.map_or(Ok(least), Err)
    }

    /// Counts a message.
    ///
    /// # Errors
    /// [`Error::LabelLimit`], and then nothing is counted.
    pub(crate) fn message(&self, tenants: &Tenants) -> Result<Message<'_>> {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let mut taken = Vec::new();
        for label in tenants.iter() {
            let account = self.account(&mut inner, &Some(label.clone()));
            let Some(messages) = &mut account.messages else { continue };
            let retry_after = match messages.take(1, now) {
                Ok(message) => {
                    taken.push((label.clone(), message));
                    continue;
                }
                Err(retry_after) => retry_after,
            };
            drop(inner);
            drop(Message { accounts: self, taken });
            return Err(Error::LabelLimit {
                name: label.name.to_string(),
                value: label.value.to_string(),
                messages_per_minute: self.table.limits(label).messages_per_minute.unwrap_or_default(),
                retry_after,
            });
        }
        Ok(Message { accounts: self, taken })
    }

    /// Reserves tokens for a call. It must wait for [`ReservedTokens::delay`].
    pub(crate) fn tokens(self: &Arc<Self>, tenants: &Tenants, tokens: u64) -> ReservedTokens {
        let mut reserved = ReservedTokens {
            accounts: Arc::clone(self),
            of: Vec::new(),
            delay: Duration::ZERO,
            has_begun: false,
        };
        if !self.table.limits_tokens() {
            return reserved;
        }
        let (mut inner, now) = (self.inner.lock(), Instant::now());
        for label in tenants.iter() {
            let account = self.account(&mut inner, &Some(label.clone()));
            if let Some(rate) = &mut account.tokens {
                let (reservation, delay) = rate.reserve(tokens, now);
                reserved.delay = reserved.delay.max(delay);
                reserved.of.push((label.clone(), reservation));
            }
        }
        reserved
    }

    /// Whether any label value has a limit of tokens per minute.
    pub(crate) fn limits_tokens(&self) -> bool {
        self.table.limits_tokens()
    }

    /// Returns the slots of runs that a run of these tenants needs, in an order that is the same for all.
    pub(crate) fn run_slots(&self, tenants: &Tenants) -> Vec<Arc<LabelSlots>> {
        if tenants.is_empty() {
            return Vec::new();
        }
        let mut inner = self.inner.lock();
        let slots = |label: &Label| self.account(&mut inner, &Some(label.clone())).runs.clone();
        tenants.iter().filter_map(slots).collect()
    }

    /// Returns what one account has spent in the last hours or days; see [`Sums::last`].
    pub(crate) fn spent(&self, name: &Name, period: Period, count: u64, now_ms: u64) -> Vec<(u64, Tally)> {
        let mut inner = self.inner.lock();
        self.account(&mut inner, name).sums.last(period, count, now_ms)
    }

    /// Returns the first result for an account of these tenants, that of all sessions first.
    fn each<T>(&self, tenants: &Tenants, mut of: impl FnMut(&str, &Account) -> Option<T>) -> Option<T> {
        if !self.limits_cost() {
            return None;
        }
        let mut inner = self.inner.lock();
        names(tenants).find_map(|name| {
            let whose = match &name {
                Some(label) => format!("the label {label}"),
                None => "the runtime".to_owned(),
            };
            of(&whose, self.account(&mut inner, &name))
        })
    }

    /// Returns an account, which is read from the store if it is not in memory.
    fn account<'a>(&self, inner: &'a mut MutexGuard<'_, Inner>, name: &Name) -> &'a mut Account {
        let now = Instant::now();
        if !inner.accounts.contains_key(name) {
            if inner.accounts.len() >= inner.look_at && self.store.as_store().is_some() {
                inner.accounts.retain(|_, account| !account.is_idle(now));
                inner.look_at = (inner.accounts.len() * 2).max(LOOK_FROM);
            }
            let limits = name.as_ref().map_or_else(|| self.of_all.clone(), |label| self.table.limits(label));
            let mut account = Account::new(&limits, self.stored(name), now);
            account.share_rates(inner.nodes, now);
            inner.accounts.insert(name.clone(), account);
        }
        let account = inner.accounts.get_mut(name).expect("it was inserted if it was missing");
        account.used_at = now;
        account.windows.iter_mut().for_each(|window| window.follow_clock(self.clock.now_ms()));
        account
    }
}

/// The names of the accounts of a session with these labels.
fn names(tenants: &Tenants) -> impl Iterator<Item = Name> + use<'_> {
    [None].into_iter().chain(tenants.iter().cloned().map(Some))
}

/// A message that counts. Dropping it takes it back, unless it was accepted.
#[must_use]
pub(crate) struct Message<'a> {
    accounts: &'a Accounts,
    taken: Vec<(Label, Reservation)>,
}

impl Message<'_> {
    /// Keeps the message.
    pub(crate) fn accepted(mut self) {
        self.taken.clear();
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let mut inner = self.accounts.inner.lock();
        for (label, mut message) in self.taken.drain(..) {
            let account = self.accounts.account(&mut inner, &Some(label));
            account.messages.iter_mut().for_each(|rate| rate.settle(&mut message, 0, Instant::now()));
        }
    }
}

/// Tokens that are reserved for a call, from the limits per minute. Dropping it before the call has begun returns them.
pub(crate) struct ReservedTokens {
    accounts: Arc<Accounts>,
    of: Vec<(Label, Reservation)>,
    delay: Duration,
    has_begun: bool,
}

impl ReservedTokens {
    /// How long the call must wait.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Notes that the call begins: without a report of its usage, the reservation counts.
    pub(crate) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Notes how many tokens the call used.
    pub(crate) fn used(&mut self, tokens: u64) {
        if self.of.is_empty() {
            return;
        }
        let mut inner = self.accounts.inner.lock();
        for (label, reserved) in &mut self.of {
            let account = self.accounts.account(&mut inner, &Some(label.clone()));
            account.tokens.iter_mut().for_each(|rate| rate.settle(reserved, tokens, Instant::now()));
        }
    }
}

impl Drop for ReservedTokens {
    fn drop(&mut self) {
        if !self.has_begun {
            self.used(0);
        }
    }
}

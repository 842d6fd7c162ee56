//! What the sessions of a tree cost together: a session, the agents that its agent called as tools, and those below.
//!
//! Invariants: what an agent may spend, all agents below it may spend together. A call is made only while something is
//! left at each session above it, and calls whose estimates do not fit beside each other wait for each other: so at most
//! one call goes beyond a limit, as far as estimates hold. What is spent below a session counts there at once, and is on
//! its bill when the call has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greenroom_kernel::cost::CostLimits;
use tokio::sync::Notify;

use crate::message::Bill;
use crate::shared::SessionShared;

/// What a session costs and may cost.
#[derive(Default)]
pub(crate) struct Account {
    bill: Bill,
    limits: CostLimits,
    /// What was spent below it and is not on its bill yet, in micro-dollars.
    below: u64,
    /// What the calls under way, its own and those below, are expected to cost, in micro-dollars.
    reserved: u64,
    /// Who called its agent, while the call goes on, and what its own bill was before.
    caller: Option<(Arc<SessionShared>, Bill)>,
    /// What its own call under way is expected to cost, and where that was reserved.
    call: Option<(u64, Vec<Arc<SessionShared>>)>,
}

impl Account {
    pub(crate) fn set_bill(&mut self, bill: Bill) {
        self.bill = bill;
    }

    pub(crate) fn set_limits(&mut self, limits: CostLimits) {
        self.limits = limits;
    }

    fn spent(&self) -> u64 {
        self.bill.cost_microdollars.saturating_add(self.below)
    }
}

/// The one who changes accounts of several sessions at a time.
#[derive(Default)]
pub(crate) struct Ledger {
    lock: Mutex<()>,
    /// Told when a call is over.
    released: Notify,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An agent begins to work on a call of `caller`.
    pub(crate) fn link(&self, shared: &SessionShared, caller: &Arc<SessionShared>) {
        let _lock = self.lock();
        let mut account = shared.account();
        account.caller = Some((Arc::clone(caller), account.bill));
    }

    /// An agent goes on with a call of `caller`, which has nothing of what it cost on its bill.
    pub(crate) fn link_again(&self, shared: &SessionShared, caller: &Arc<SessionShared>) {
        let _lock = self.lock();
        shared.account().caller = Some((Arc::clone(caller), Bill::default()));
    }

    /// The work on a call is over. Gives what it cost.
    pub(crate) fn unlink(&self, shared: &SessionShared) -> Bill {
        self.release(shared);
        let _lock = self.lock();
        let mut account = shared.account();
        let before = account.caller.take().map_or(account.bill, |(_, before)| before);
        account.bill.since(&before)
    }

    /// A session's bill is `bill` now. Of what was added, `own` was spent by itself, and `from_below` was counted before,
    /// when it was spent.
    pub(crate) fn billed(&self, shared: &SessionShared, bill: Bill, own: u64, from_below: u64) {
        let _lock = self.lock();
        {
            let mut account = shared.account();
            account.bill = bill;
            account.below = account.below.saturating_sub(from_below);
        }
        for above in above(shared) {
            let mut account = above.account();
            account.below = account.below.saturating_add(own);
        }
    }

    /// A session, and those whose calls it works on, the nearest first.
    pub(crate) fn chain(&self, shared: &Arc<SessionShared>) -> Vec<Arc<SessionShared>> {
        let _lock = self.lock();
        chain(shared)
    }

    /// Waits until a call of this session that is expected to cost `estimate` may be made. It counts until
    /// [`Self::release`].
    ///
    /// # Errors
    /// A limit is used up: which one, in words.
    pub(crate) async fn reserve(&self, shared: &Arc<SessionShared>, estimate: u64) -> Result<(), String> {
        self.release(shared);
        loop {
            // Asked for before the look, so that no release is missed.
            let released = self.released.notified();
            if self.try_reserve(shared, estimate)? {
                return Ok(());
            }
            released.await;
        }
    }

    fn try_reserve(&self, shared: &Arc<SessionShared>, estimate: u64) -> Result<bool, String> {
        let _lock = self.lock();
        let chain = chain(shared);
        for session in &chain {
            let account = session.account();
            let spent = account.spent();
            if let Some(reason) = account.limits.used_up(spent) {
                let is_own = Arc::ptr_eq(session, shared);
                return Err(if is_own {
                    reason
                } else {
                    format!("{reason}, as session {} has it", session.id)
                });
            }
            let left = account.limits.left(spent).unwrap_or(u64::MAX);
            if account.reserved > 0 && account.reserved.saturating_add(estimate) > left {
                return Ok(false);
            }
        }
        for session in &chain {
            session.account().reserved += estimate;
        }
        shared.account().call = Some((estimate, chain));
        Ok(true)
    }

    /// A session's call is over, and what it cost is on the bill.
    pub(crate) fn release(&self, shared: &SessionShared) {
        let released = {
            let _lock = self.lock();
            let call = shared.account().call.take();
            for session in call.iter().flat_map(|(_, chain)| chain) {
                let mut account = session.account();
                account.reserved =
                    account.reserved.saturating_sub(call.as_ref().map_or(0, |(estimate, _)| *estimate));
            }
            call.is_some()
        };
        if released {
            self.released.notify_waiters();
        }
    }
}

fn chain(shared: &Arc<SessionShared>) -> Vec<Arc<SessionShared>> {
    [Arc::clone(shared)].into_iter().chain(above(shared)).collect()
}

/// The sessions whose calls a session works on, the nearest first.
fn above(shared: &SessionShared) -> impl Iterator<Item = Arc<SessionShared>> {
    let caller_of =
        |shared: &SessionShared| shared.account().caller.as_ref().map(|(caller, _)| Arc::clone(caller));
    std::iter::successors(caller_of(shared), move |caller| caller_of(caller))
}

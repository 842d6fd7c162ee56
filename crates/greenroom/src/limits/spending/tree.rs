//! The spending of a tree of sessions: a session, its sub-agents, and theirs.
//!
//! Invariants: an agent's limit covers the agent and all agents below it together. A call is made only if
//! each session above it has enough left for the call's maximum cost; otherwise the call gets less output or
//! waits for others. So no limit is exceeded, provided that servers count input at most a quarter higher than
//! we do ([`greenroom_kernel::cost::input_tokens_max`]) and respect the output limit in the request. Spending
//! below a session counts there at once, and is added to its bill when the call has ended.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use greenroom_kernel::cost::{Admission, CallPrice, CostLimits, Left, admit};
use greenroom_provider::{ModelInfo, Request};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tracing::Span;

use greenroom_kernel::bill::Bill;

#[cfg(test)]
mod tests;

/// The assumed maximum output of a model whose limit is unknown, in tokens.
const BILLED_OUTPUT_TOKENS_MAX: u64 = 128_000;

/// A type with an account: a session.
pub(crate) trait Spends: Sized {
    /// The account. Only the [`Ledger`] changes several at once.
    fn account(&self) -> MutexGuard<'_, Account<Self>>;

    /// The name, for messages when its limit stops another session.
    fn name(&self) -> &str;
}

/// A session's spending and its limit.
pub(crate) struct Account<S> {
    bill: Bill,
    limits: CostLimits,
    /// The spending below the session that is not on its bill yet, in micro-dollars.
    below: u64,
    /// The cost of its own answered summaries that are not on its bill yet, in micro-dollars.
    unbilled: u64,
    /// The maximum cost of the calls in progress, its own and those below, in micro-dollars.
    reserved: u64,
    /// The session that called this one's agent, during the call, and this session's bill before it.
    caller: Option<(Arc<S>, Bill)>,
    /// The maximum cost of its own call in progress, and the accounts in which that is reserved.
    call: Option<(u64, Vec<Arc<S>>)>,
    /// The models without a known price about which the user was warned, because the limit does not apply to
    /// them.
    told_of: BTreeSet<String>,
}

impl<S> Default for Account<S> {
    fn default() -> Self {
        Self {
            bill: Bill::default(),
            limits: CostLimits::default(),
            below: 0,
            unbilled: 0,
            reserved: 0,
            caller: None,
            call: None,
            told_of: BTreeSet::new(),
        }
    }
}

impl<S> Account<S> {
    pub(crate) fn set_bill(&mut self, bill: Bill) {
        self.bill = bill;
    }

    pub(crate) fn set_limits(&mut self, limits: CostLimits) {
        self.limits = limits;
    }

    /// Returns how much output, in tokens, this session's limit allows for a call; `None` if the call must
    /// wait for others.
    fn admits(&self, wanted: Option<Wanted>, is_shared: bool) -> Result<Option<u64>, String> {
        let spent = self.spent();
        if let Some(reason) = self.limits.used_up(spent) {
            return Err(reason);
        }
        let (Some(Wanted { price, output_tokens }), Some(microdollars)) = (wanted, self.limits.left(spent))
        else {
            return Ok(Some(u64::MAX));
        };
        match admit(price, output_tokens, Left { microdollars, reserved: self.reserved, is_shared }) {
            Admission::Ask { output_tokens_max } => Ok(Some(output_tokens_max)),
            Admission::Wait => Ok(None),
            Admission::Refuse => {
                Err(self.limits.refusal(spent, price.input_microdollars).unwrap_or_default())
            }
        }
    }

    fn spent(&self) -> u64 {
        self.bill.cost_microdollars.saturating_add(self.below).saturating_add(self.unbilled)
    }
}

/// The prices and sizes of a call whose price is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) price: CallPrice,
    /// The call's own output limit, in tokens.
    pub(crate) output_tokens: u64,
}

impl Wanted {
    /// Computes the cost of this request to a model with at most this much input; returns `None` if the price is
    /// unknown.
    pub(crate) fn of(info: Option<&ModelInfo>, request: &Request, input_tokens_max: u64) -> Option<Self> {
        let info = info?;
        let price = info.call_price(input_tokens_max)?;
        let most = info.output_tokens.or(info.context_tokens).unwrap_or(BILLED_OUTPUT_TOKENS_MAX);
        Some(Self { price, output_tokens: request.settings.output_tokens_max.unwrap_or(most) })
    }
}

/// Changes the accounts of several sessions at once.
pub(crate) struct Ledger<S> {
    lock: Mutex<()>,
    /// Notified when a call has ended.
    released: Notify,
    spenders: PhantomData<fn(S)>,
}

impl<S> Default for Ledger<S> {
    fn default() -> Self {
        Self { lock: Mutex::default(), released: Notify::new(), spenders: PhantomData }
    }
}

impl<S: Spends> Ledger<S> {
    /// Links a sub-agent that starts to work on a call of `caller`.
    pub(crate) fn link(&self, shared: &S, caller: &Arc<S>) {
        let _lock = self.lock.lock();
        let mut account = shared.account();
        account.caller = Some((Arc::clone(caller), account.bill));
    }

    /// Links a sub-agent that continues a call of `caller`, whose bill contains none of the call's cost.
    pub(crate) fn link_again(&self, shared: &S, caller: &Arc<S>) {
        let _lock = self.lock.lock();
        shared.account().caller = Some((Arc::clone(caller), Bill::default()));
    }

    /// Ends the work on a call. Returns its cost.
    pub(crate) fn unlink(&self, shared: &S) -> Bill {
        self.release(shared);
        let _lock = self.lock.lock();
        bill_above(shared, 0, u64::MAX);
        let mut account = shared.account();
        let before = account.caller.take().map_or(account.bill, |(_, before)| before);
        account.bill.since(&before)
    }

    /// Sets a session's bill. Of the increase, `own` was spent by the session itself, `of_summaries` of it by answered
    /// summaries, and `from_below` was counted when it was spent.
    pub(crate) fn billed(&self, shared: &S, bill: Bill, own: u64, of_summaries: u64, from_below: u64) {
        let _lock = self.lock.lock();
        {
            let mut account = shared.account();
            account.bill = bill;
            account.below = account.below.saturating_sub(from_below);
        }
        bill_above(shared, own, of_summaries);
    }

    /// Notes that this much of the cost of answered summaries is on the session's bill now, or never will be.
    pub(crate) fn settle(&self, shared: &S, of_summaries: u64) {
        let _lock = self.lock.lock();
        bill_above(shared, 0, of_summaries);
    }

    /// Returns a session and the sessions whose calls it works on, nearest first.
    pub(crate) fn chain(&self, shared: &Arc<S>) -> Vec<Arc<S>> {
        let _lock = self.lock.lock();
        chain(shared).collect()
    }

    /// Waits until a call of this session may be made. Returns the output limit for its request if it is
    /// lower than requested. `waits` creates the span that traces the wait. The maximum cost is reserved
    /// until [`Self::release`].
    ///
    /// # Errors
    /// A description of the limit that is used up, or that does not cover the call.
    pub(crate) async fn reserve(
        &self,
        shared: &Arc<S>,
        wanted: Option<Wanted>,
        mut waits: impl FnMut() -> Span,
    ) -> Result<Option<u64>, String> {
        self.release(shared);
        let mut wait = None;
        loop {
            // Registered before the check, so no release is missed.
            let released = self.released.notified();
            if let Some(call) = self.try_reserve(shared, wanted)? {
                let output_tokens_max = call.output_tokens;
                shared.account().call = Some((call.reserved, call.chain));
                return Ok(wanted
                    .is_some_and(|wanted| output_tokens_max < wanted.output_tokens)
                    .then_some(output_tokens_max));
            }
            wait.get_or_insert_with(&mut waits);
            released.await;
        }
    }

    /// Waits until a summary of this session may be requested in addition to the session's other calls. Its
    /// maximum cost is reserved until the [`Reserved`] is dropped, which has the summary's output limit.
    ///
    /// # Errors
    /// Those of [`Self::reserve`].
    pub(crate) async fn reserve_summary(
        &self,
        shared: &Arc<S>,
        wanted: Wanted,
        mut waits: impl FnMut() -> Span,
    ) -> Result<Reserved<'_, S>, String> {
        let mut wait = None;
        loop {
            // Registered before the check, so no release is missed.
            let released = self.released.notified();
            if let Some(call) = self.try_reserve(shared, Some(wanted))? {
                return Ok(Reserved { ledger: self, call });
            }
            wait.get_or_insert_with(&mut waits);
            released.await;
        }
    }

    /// Reserves the maximum cost of a call; returns `None` if the call must wait.
    fn try_reserve(
        &self,
        shared: &Arc<S>,
        wanted: Option<Wanted>,
    ) -> Result<Option<ReservedCall<S>>, String> {
        let _lock = self.lock.lock();
        let chain: Vec<_> = chain(shared).collect();
        let mut output_tokens = wanted.map_or(u64::MAX, |wanted| wanted.output_tokens);
        for session in &chain {
            let account = session.account();
            match account.admits(wanted, chain.len() > 1) {
                Ok(Some(allowed)) => output_tokens = output_tokens.min(allowed),
                Ok(None) => return Ok(None),
                Err(reason) if Arc::ptr_eq(session, shared) => return Err(reason),
                Err(reason) => return Err(format!("{reason} (the limit of session {})", session.name())),
            }
        }
        let reserved = wanted.map_or(0, |wanted| wanted.price.with_output(output_tokens));
        for session in &chain {
            let mut account = session.account();
            account.reserved = account.reserved.saturating_add(reserved);
        }
        Ok(Some(ReservedCall { reserved, output_tokens, chain }))
    }

    /// Returns the sessions whose limits do not apply to a call without a price, and that were not yet warned
    /// about this model: the sessions with a limit, or, if only the runtime or a label has one, the top session.
    pub(crate) fn not_told(&self, shared: &Arc<S>, model: &str, is_limited_otherwise: bool) -> Vec<Arc<S>> {
        let _lock = self.lock.lock();
        let is_limited = |session: &Arc<S>| session.account().limits != CostLimits::default();
        let mut limited: Vec<_> = chain(shared).filter(is_limited).collect();
        if limited.is_empty() && is_limited_otherwise {
            limited.extend(chain(shared).last());
        }
        limited.retain(|session| session.account().told_of.insert(model.to_owned()));
        limited
    }

    /// Ends a session's call, whose cost is on the bill.
    pub(crate) fn release(&self, shared: &S) {
        let released = {
            let _lock = self.lock.lock();
            let call = shared.account().call.take();
            if let Some((reserved, chain)) = &call {
                give_back(*reserved, chain);
            }
            call.is_some()
        };
        if released {
            self.released.notify_waiters();
        }
    }
}

/// A call that may be made.
struct ReservedCall<S> {
    /// The call's maximum cost, in micro-dollars.
    reserved: u64,
    /// The call's output limit, in tokens.
    output_tokens: u64,
    /// The accounts in which the cost is reserved.
    chain: Vec<Arc<S>>,
}

/// A summary that may be requested. Dropping it ends the reservation.
pub(crate) struct Reserved<'a, S: Spends> {
    ledger: &'a Ledger<S>,
    call: ReservedCall<S>,
}

impl<S: Spends> Reserved<'_, S> {
    /// The summary's output limit, in tokens.
    pub(crate) fn output_tokens(&self) -> u64 {
        self.call.output_tokens
    }

    /// Counts the cost of the answered summary from now on, although the session's bill has it only with the
    /// compaction.
    pub(crate) fn answered(self, microdollars: u64) {
        let lock = self.ledger.lock.lock();
        let Some((own, above)) = self.call.chain.split_first() else { return };
        {
            let mut account = own.account();
            account.unbilled = account.unbilled.saturating_add(microdollars);
        }
        for session in above {
            let mut account = session.account();
            account.below = account.below.saturating_add(microdollars);
        }
        drop(lock);
    }
}

impl<S: Spends> Drop for Reserved<'_, S> {
    fn drop(&mut self) {
        {
            let _lock = self.ledger.lock.lock();
            give_back(self.call.reserved, &self.call.chain);
        }
        self.ledger.released.notify_waiters();
    }
}

fn give_back<S: Spends>(reserved: u64, chain: &[Arc<S>]) {
    for session in chain {
        let mut account = session.account();
        account.reserved = account.reserved.saturating_sub(reserved);
    }
}

/// Adds an increase of a session's own bill to the sessions above, which have counted its unbilled summaries
/// already: `of_summaries` is what they cost, at most.
fn bill_above<S: Spends>(shared: &S, own: u64, of_summaries: u64) {
    let counted = {
        let mut account = shared.account();
        let counted = account.unbilled.min(of_summaries);
        account.unbilled -= counted;
        counted
    };
    for above in above(shared) {
        let mut account = above.account();
        account.below = account.below.saturating_add(own).saturating_sub(counted);
    }
}

/// Returns a session, and those whose calls it works on.
fn chain<S: Spends>(shared: &Arc<S>) -> impl Iterator<Item = Arc<S>> {
    std::iter::once(Arc::clone(shared)).chain(above(&**shared))
}

/// Returns the sessions whose calls a session works on, nearest first.
fn above<S: Spends>(shared: &S) -> impl Iterator<Item = Arc<S>> {
    let caller_of = |shared: &S| shared.account().caller.as_ref().map(|(caller, _)| Arc::clone(caller));
    std::iter::successors(caller_of(shared), move |caller| caller_of(caller))
}

//! What the sessions of a tree cost together: a session, the agents that its agent called as tools, and those below.
//!
//! Invariants: what an agent may spend, all agents below it may spend together. A call is made only while something is
//! left at each session above it that pays for the most that it may cost; it is given less output, or waits for others, where
//! that is more. So no limit is passed, as long as servers count the input as we do, or a quarter more
//! ([`greenroom_kernel::cost::input_tokens_max`]), and keep to the output limit that they are sent. What is spent below a session counts there at once, and is on
//! its bill when the call has ended.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use greenroom_kernel::cost::{Admission, CallPrice, CostLimits, Left, admit};
use greenroom_provider::Request;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tracing::Span;

use crate::values::model_info::model_info;
use greenroom_kernel::bill::Bill;

#[cfg(test)]
mod tests;

/// The most output that a model is taken to give of which nothing says it, in tokens.
const OUTPUT_TOKENS_ASSUMED: u64 = 128_000;

/// What has an account: a session.
pub(crate) trait Spends: Sized {
    /// Its account. Several are changed by the [`Ledger`] alone.
    fn account(&self) -> MutexGuard<'_, Account<Self>>;

    /// Its name, where a limit of its own stops another.
    fn name(&self) -> &str;
}

/// What a session costs and may cost.
pub(crate) struct Account<S> {
    bill: Bill,
    limits: CostLimits,
    /// What was spent below it and is not on its bill yet, in micro-dollars.
    below: u64,
    /// The cost of its own summaries that are answered and not on its bill yet, in micro-dollars.
    unbilled: u64,
    /// The most that the calls under way, its own and those below, may cost, in micro-dollars.
    reserved: u64,
    /// Who called its agent, while the call goes on, and what its own bill was before.
    caller: Option<(Arc<S>, Bill)>,
    /// What its own call under way may cost at most, and where that was reserved.
    call: Option<(u64, Vec<Arc<S>>)>,
    /// The models without a known price that its user was told of, as its limit does not hold for them.
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

    /// The output that a call may have by this session's limits, in tokens; `None` where it is to wait for others.
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

/// What a call would cost whose price is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) price: CallPrice,
    /// The most output that it may have by itself, in tokens.
    pub(crate) output_tokens: u64,
}

impl Wanted {
    /// What this request would cost with so much input at most; `None` where nothing knows the price.
    pub(crate) fn of(provider: &str, request: &Request, input_tokens_max: u64) -> Option<Self> {
        let info = model_info(provider, &request.model)?;
        let price = info.call_price(input_tokens_max)?;
        let most = info.output_tokens.or(info.context_tokens).unwrap_or(OUTPUT_TOKENS_ASSUMED);
        Some(Self { price, output_tokens: request.settings.output_tokens_max.unwrap_or(most) })
    }
}

/// The one who changes accounts of several sessions at a time.
pub(crate) struct Ledger<S> {
    lock: Mutex<()>,
    /// Told when a call is over.
    released: Notify,
    spenders: PhantomData<fn(S)>,
}

impl<S> Default for Ledger<S> {
    fn default() -> Self {
        Self { lock: Mutex::default(), released: Notify::new(), spenders: PhantomData }
    }
}

impl<S: Spends> Ledger<S> {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// An agent begins to work on a call of `caller`.
    pub(crate) fn link(&self, shared: &S, caller: &Arc<S>) {
        let _lock = self.lock();
        let mut account = shared.account();
        account.caller = Some((Arc::clone(caller), account.bill));
    }

    /// An agent goes on with a call of `caller`, which has nothing of what it cost on its bill.
    pub(crate) fn link_again(&self, shared: &S, caller: &Arc<S>) {
        let _lock = self.lock();
        shared.account().caller = Some((Arc::clone(caller), Bill::default()));
    }

    /// The work on a call is over. Gives what it cost.
    pub(crate) fn unlink(&self, shared: &S) -> Bill {
        self.release(shared);
        let _lock = self.lock();
        bill_above(shared, 0);
        let mut account = shared.account();
        let before = account.caller.take().map_or(account.bill, |(_, before)| before);
        account.bill.since(&before)
    }

    /// A session's bill is `bill` now. Of what was added, `own` was spent by itself, and `from_below` was counted before,
    /// when it was spent.
    pub(crate) fn billed(&self, shared: &S, bill: Bill, own: u64, from_below: u64) {
        let _lock = self.lock();
        {
            let mut account = shared.account();
            account.bill = bill;
            account.below = account.below.saturating_sub(from_below);
        }
        bill_above(shared, own);
    }

    /// A session, and those whose calls it works on, the nearest first.
    pub(crate) fn chain(&self, shared: &Arc<S>) -> Vec<Arc<S>> {
        let _lock = self.lock();
        chain(shared)
    }

    /// Waits until a call of this session may be made, and gives the output limit that its request is to carry, if that is
    /// lower than what it wants. `waits` gives what the wait is traced with. What it may cost at most is reserved until [`Self::release`].
    ///
    /// # Errors
    /// A limit is used up, or does not pay for the call: which one, in words.
    pub(crate) async fn reserve(
        &self,
        shared: &Arc<S>,
        wanted: Option<Wanted>,
        mut waits: impl FnMut() -> Span,
    ) -> Result<Option<u64>, String> {
        self.release(shared);
        let mut wait = None;
        loop {
            // Asked for before the look, so that no release is missed.
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

    /// Waits until a summary of this session may be asked for, beside the session's other calls. What it may cost at most
    /// is reserved until the [`Reserved`] is dropped; it has the output that the summary may have.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(crate) async fn reserve_summary(
        &self,
        shared: &Arc<S>,
        wanted: Wanted,
        mut waits: impl FnMut() -> Span,
    ) -> Result<Reserved<'_, S>, String> {
        let mut wait = None;
        loop {
            // Asked for before the look, so that no release is missed.
            let released = self.released.notified();
            if let Some(call) = self.try_reserve(shared, Some(wanted))? {
                return Ok(Reserved { ledger: self, call });
            }
            wait.get_or_insert_with(&mut waits);
            released.await;
        }
    }

    /// Reserves what a call may cost; `None` where it is to wait.
    fn try_reserve(
        &self,
        shared: &Arc<S>,
        wanted: Option<Wanted>,
    ) -> Result<Option<ReservedCall<S>>, String> {
        let _lock = self.lock();
        let chain = chain(shared);
        let mut output_tokens = wanted.map_or(u64::MAX, |wanted| wanted.output_tokens);
        for session in &chain {
            let account = session.account();
            match account.admits(wanted, chain.len() > 1) {
                Ok(Some(allowed)) => output_tokens = output_tokens.min(allowed),
                Ok(None) => return Ok(None),
                Err(reason) if Arc::ptr_eq(session, shared) => return Err(reason),
                Err(reason) => return Err(format!("{reason}, as session {} has it", session.name())),
            }
        }
        let reserved = wanted.map_or(0, |wanted| wanted.price.with_output(output_tokens));
        for session in &chain {
            let mut account = session.account();
            account.reserved = account.reserved.saturating_add(reserved);
        }
        Ok(Some(ReservedCall { reserved, output_tokens, chain }))
    }

    /// The sessions whose limits cannot be kept where a call of this one has no price, and that were not told so of this
    /// model: those with a limit, and where there is none but the `purse`'s, the one above all.
    pub(crate) fn not_told(&self, shared: &Arc<S>, model: &str, is_purse_limited: bool) -> Vec<Arc<S>> {
        let _lock = self.lock();
        let chain = chain(shared);
        let is_limited = |session: &Arc<S>| session.account().limits != CostLimits::default();
        let mut limited: Vec<_> = chain.iter().filter(|session| is_limited(session)).cloned().collect();
        if limited.is_empty() && is_purse_limited {
            limited.extend(chain.last().cloned());
        }
        limited.retain(|session| session.account().told_of.insert(model.to_owned()));
        limited
    }

    /// A session's call is over, and what it cost is on the bill.
    pub(crate) fn release(&self, shared: &S) {
        let released = {
            let _lock = self.lock();
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
    /// What it may cost at most, in micro-dollars.
    reserved: u64,
    /// The output that it may have, in tokens.
    output_tokens: u64,
    /// Where its cost is reserved.
    chain: Vec<Arc<S>>,
}

/// A summary that may be asked for. Dropping it gives back what was reserved.
pub(crate) struct Reserved<'a, S: Spends> {
    ledger: &'a Ledger<S>,
    call: ReservedCall<S>,
}

impl<S: Spends> Reserved<'_, S> {
    /// The output that the summary may have, in tokens.
    pub(crate) fn output_tokens(&self) -> u64 {
        self.call.output_tokens
    }

    /// The summary is answered. Its cost counts from now on, although the session's bill has it only with the compaction.
    pub(crate) fn answered(self, microdollars: u64) {
        let lock = self.ledger.lock();
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
            let _lock = self.ledger.lock();
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

/// So much was added to a session's bill by itself. The sessions above it have counted its unbilled summaries already.
fn bill_above<S: Spends>(shared: &S, own: u64) {
    let counted = std::mem::take(&mut shared.account().unbilled);
    for above in above(shared) {
        let mut account = above.account();
        account.below = account.below.saturating_add(own).saturating_sub(counted);
    }
}

fn chain<S: Spends>(shared: &Arc<S>) -> Vec<Arc<S>> {
    [Arc::clone(shared)].into_iter().chain(above(&**shared)).collect()
}

/// The sessions whose calls a session works on, the nearest first.
fn above<S: Spends>(shared: &S) -> impl Iterator<Item = Arc<S>> {
    let caller_of = |shared: &S| shared.account().caller.as_ref().map(|(caller, _)| Arc::clone(caller));
    std::iter::successors(caller_of(shared), move |caller| caller_of(caller))
}

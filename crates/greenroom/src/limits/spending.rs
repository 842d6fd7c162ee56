//! Limits on spending in dollars, and the purse, which all sessions of a runtime share.
//!
//! Invariants: the session that made a call adds its cost to the purse once, when its entry is durable; the
//! spending within a period is kept in the store, so a restart does not reset it.

use std::sync::Arc;

use greenroom_kernel::cost::{Admission, Left, admit, dollars, unaffordable};
use greenroom_store::Store;
use parking_lot::Mutex;
use tree::Wanted;

use crate::values::error::ConfigError;

pub(crate) mod tree;

#[cfg(test)]
mod tests;

/// The number of parts of a period: old spending leaves the period part by part.
const PARTS: usize = 60;

/// The period over which a runtime's spending is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Period {
    /// The last 60 minutes.
    Hour,
    /// The last 24 hours.
    Day,
}

impl Period {
    fn ms(self) -> u64 {
        match self {
            Self::Hour => 60 * 60 * 1_000,
            Self::Day => 24 * 60 * 60 * 1_000,
        }
    }

    fn part_ms(self) -> u64 {
        self.ms() / PARTS as u64
    }

    fn words(self) -> &'static str {
        match self {
            Self::Hour => "an hour",
            Self::Day => "a day",
        }
    }

    /// The key under which the spending is stored.
    fn key(self) -> &'static str {
        match self {
            Self::Hour => "spent hour",
            Self::Day => "spent day",
        }
    }
}

/// Converts dollars to micro-dollars.
///
/// # Errors
/// [`ConfigError::CostLimit`] if the value is negative or not a number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor infinite; a cast of what is too large gives the largest"
)]
pub(crate) fn microdollars(usd: f64) -> Result<u64, ConfigError> {
    if !usd.is_finite() || usd < 0.0 {
        return Err(ConfigError::CostLimit { usd: usd.to_string() });
    }
    Ok((usd * 1e6).round() as u64)
}

/// The common spending of all sessions of a runtime, and its limits.
pub(crate) struct Purse {
    store: Store,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    /// The spending, one item per limit. Empty without limits.
    spent: Vec<Spent>,
    /// Whether a task is writing. It also writes what is spent in the meantime.
    is_writing: bool,
}

/// The spending within one period, in parts, in micro-dollars.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spent {
    period: Period,
    /// The limit.
    limit: u64,
    /// The number of the newest part, counted from 1970.
    newest: u64,
    /// The parts; the newest is last.
    parts: [u64; PARTS],
}

impl Purse {
    /// Creates a purse with these limits in micro-dollars, and loads the spending from the store.
    pub(crate) fn new(store: Store, limits: &[(u64, Period)]) -> Self {
        let stored = |period: Period| store.learned_get(period.key()).ok().flatten();
        let spent = |(limit, period): &(u64, Period)| {
            let fresh = Spent { period: *period, limit: *limit, newest: 0, parts: [0; PARTS] };
            stored(*period).and_then(|bytes| fresh.clone().restored(&bytes)).unwrap_or(fresh)
        };
        let spent = limits.iter().map(spent).collect();
        Self { inner: Arc::new(Mutex::new(Inner { spent, is_writing: false })), store }
    }

    /// Adds the cost of a call.
    pub(crate) fn spend(&self, microdollars: u64, now_ms: u64) {
        if microdollars == 0 {
            return;
        }
        {
            let mut inner = self.inner.lock();
            inner.spent.iter_mut().for_each(|spent| spent.add(microdollars, now_ms));
            if inner.spent.is_empty() || std::mem::replace(&mut inner.is_writing, true) {
                return;
            }
        }
        let (store, inner) = (self.store.clone(), Arc::clone(&self.inner));
        tokio::spawn(async move {
            let mut written = Vec::new();
            loop {
                {
                    let mut inner = inner.lock();
                    if inner.spent == written {
                        inner.is_writing = false;
                        return;
                    }
                    written.clone_from(&inner.spent);
                }
                write(&store, &written).await;
            }
        });
    }

    /// Describes the limit that is used up; `None` if there is none.
    pub(crate) fn used_up(&self, now_ms: u64) -> Option<String> {
        let inner = self.inner.lock();
        let used_up = inner.spent.iter().find(|spent| spent.sum(now_ms) >= spent.limit)?;
        Some(used_up.reached(now_ms))
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        !self.inner.lock().spent.is_empty()
    }

    /// Returns how much output, in tokens, the remaining budget allows for a call.
    ///
    /// # Errors
    /// A description of the limit that is used up, or that does not cover the call.
    pub(crate) fn look(&self, now_ms: u64, wanted: Option<Wanted>) -> Result<u64, String> {
        if let Some(reason) = self.used_up(now_ms) {
            return Err(reason);
        }
        let Some(Wanted { price, output_tokens }) = wanted else { return Ok(u64::MAX) };
        let inner = self.inner.lock();
        let mut least = output_tokens;
        for spent in &inner.spent {
            let microdollars = spent.limit.saturating_sub(spent.sum(now_ms));
            match admit(price, output_tokens, Left { microdollars, reserved: 0, is_shared: false }) {
                Admission::Ask { output_tokens_max } => least = least.min(output_tokens_max),
                Admission::Wait | Admission::Refuse => {
                    return Err(unaffordable(&spent.reached(now_ms), microdollars, price.input_microdollars));
                }
            }
        }
        Ok(least)
    }

    /// Waits until the spending is stored.
    pub(crate) async fn flush(&self) {
        let spent = self.inner.lock().spent.clone();
        write(&self.store, &spent).await;
    }
}

async fn write(store: &Store, all: &[Spent]) {
    for spent in all {
        if let Err(error) = store.learned_put(spent.period.key(), &spent.to_bytes()).await {
            tracing::warn!(%error, "the spending could not be stored; a restart would lose it");
        }
    }
}

impl Spent {
    fn reached(&self, now_ms: u64) -> String {
        format!(
            "the runtime reached its cost limit of {} {}; part of it is free again within {} minutes",
            dollars(self.limit),
            self.period.words(),
            self.free_in_ms(now_ms).div_ceil(60_000)
        )
    }

    fn add(&mut self, microdollars: u64, now_ms: u64) {
        let now = now_ms / self.period.part_ms();
        let passed = usize::try_from(now.saturating_sub(self.newest)).unwrap_or(PARTS).min(PARTS);
        self.parts.rotate_left(passed);
        self.parts[PARTS - passed..].fill(0);
        // If the clock was set back, the cost is added to the newest part.
        self.newest = self.newest.max(now);
        self.parts[PARTS - 1] = self.parts[PARTS - 1].saturating_add(microdollars);
    }

    /// Returns the spending within the period before now.
    fn sum(&self, now_ms: u64) -> u64 {
        self.counting(now_ms).iter().fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// Returns the parts that count now.
    fn counting(&self, now_ms: u64) -> &[u64] {
        let passed = (now_ms / self.period.part_ms()).saturating_sub(self.newest);
        &self.parts[usize::try_from(passed).unwrap_or(PARTS).min(PARTS)..]
    }

    /// Returns when the oldest part that counts leaves the period.
    fn free_in_ms(&self, now_ms: u64) -> u64 {
        let left = self.counting(now_ms);
        let until = left.iter().position(|part| *part > 0).unwrap_or(0) as u64;
        (until + 1) * self.period.part_ms() - now_ms % self.period.part_ms()
    }

    fn to_bytes(&self) -> Vec<u8> {
        [self.newest].iter().chain(&self.parts).flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Restores the stored spending; returns `None` if it is damaged.
    fn restored(mut self, bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        if numbers.len() != PARTS + 1 || !rest.is_empty() {
            return None;
        }
        self.newest = u64::from_le_bytes(numbers[0]);
        for (part, number) in self.parts.iter_mut().zip(&numbers[1..]) {
            *part = u64::from_le_bytes(*number);
        }
        Some(self)
    }
}

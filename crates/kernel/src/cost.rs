//! What a session and a run may cost, and how money is written.
//!
//! Invariants: all sums are micro-dollars; a limit is used up when what was spent reaches it, so that a limit of nothing
//! allows nothing.

#[cfg(test)]
mod tests;

/// What may be spent, in micro-dollars, as far as prices are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CostLimits {
    /// By the session in all, its sub-agents included.
    pub session: Option<u64>,
    /// By the run in progress.
    pub run: Option<RunCost>,
}

/// What one run may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCost {
    /// The limit, in micro-dollars.
    pub limit: u64,
    /// What the session had cost when the run began, in micro-dollars.
    pub before: u64,
}

impl CostLimits {
    /// Which limit is used up in a session that has cost so much, in words; `None` while none is.
    pub fn used_up(&self, cost_microdollars: u64) -> Option<String> {
        let is_used_up = |limit: &u64| cost_microdollars >= *limit;
        if let Some(limit) = self.session.filter(is_used_up) {
            return Some(format!("the session reached its cost limit of {}", dollars(limit)));
        }
        let run = self.run.filter(|run| is_used_up(&run.before.saturating_add(run.limit)))?;
        Some(format!("the run reached its cost limit of {}", dollars(run.limit)))
    }

    /// What is left to spend in a session that has cost so much; `None` where nothing limits it.
    pub fn left(&self, cost_microdollars: u64) -> Option<u64> {
        let of_run = self.run.map(|run| run.before.saturating_add(run.limit));
        let until = [self.session, of_run].into_iter().flatten().min()?;
        Some(until.saturating_sub(cost_microdollars))
    }
}

/// A sum as people write it: `$1.50`; with as many digits as a small one needs: `$0.0007`.
pub fn dollars(microdollars: u64) -> String {
    let (whole, rest) = (microdollars / 1_000_000, microdollars % 1_000_000);
    let mut digits = format!("{rest:06}");
    while digits.len() > 2 && digits.ends_with('0') {
        digits.pop();
    }
    if whole > 0 || rest >= 10_000 {
        let cents = (rest + 5_000) / 10_000;
        return format!("${}.{:02}", whole + cents / 100, cents % 100);
    }
    format!("${whole}.{digits}")
}

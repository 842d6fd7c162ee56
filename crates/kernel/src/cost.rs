//! What a session and a run may cost, and how money is written.
//!
//! Invariants: all sums are micro-dollars; a limit is used up when what was spent reaches it, so that a limit of nothing
//! allows nothing. A call is admitted only where the most that it may cost is left, as far as our count of its input holds.

use crate::context_usage::ContextUsage;

#[cfg(test)]
mod tests;

/// How long an answer is expected to be, in tokens. A call waits for others that share its limit rather than have less.
const OUTPUT_TOKENS_EXPECTED: u64 = 1_024;
/// The least that a call is made for, in tokens of output, where its request does not ask for less.
const OUTPUT_TOKENS_MIN: u64 = 64;
/// What part of our own count is added to it, as the server may count more.
const INPUT_MARGIN_DIVISOR: u64 = 4;
/// What part of what is left one of several agents is given that may work at the same time.
const SHARE_DIVISOR: u64 = 4;

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
        self.each().find(|(until, _)| cost_microdollars >= *until).map(|(_, limit)| limit.reached())
    }

    /// Each limit, with the session's cost at which it is used up.
    fn each(&self) -> impl Iterator<Item = (u64, Limit)> {
        let session = self.session.map(|limit| (limit, Limit::Session(limit)));
        let run = self.run.map(|run| (run.before.saturating_add(run.limit), Limit::Run(run.limit)));
        [session, run].into_iter().flatten()
    }

    /// Why a call whose input costs so much is not made in a session that has cost so much, in words.
    pub fn refusal(&self, cost_microdollars: u64, input_microdollars: u64) -> Option<String> {
        let (until, limit) = self.each().min_by_key(|(until, _)| *until)?;
        let left = until.saturating_sub(cost_microdollars);
        Some(unaffordable(&limit.reached(), left, input_microdollars))
    }

    /// What is left to spend in a session that has cost so much; `None` where nothing limits it.
    pub fn left(&self, cost_microdollars: u64) -> Option<u64> {
        let until = self.each().map(|(until, _)| until).min()?;
        Some(until.saturating_sub(cost_microdollars))
    }
}

/// A limit, in micro-dollars, by what it limits.
enum Limit {
    Session(u64),
    Run(u64),
}

impl Limit {
    fn reached(&self) -> String {
        match self {
            Self::Session(limit) => format!("the session reached its cost limit of {}", dollars(*limit)),
            Self::Run(limit) => format!("the run reached its cost limit of {}", dollars(*limit)),
        }
    }
}

/// Why a call is not made, where `limit` says which limit leaves too little.
pub fn unaffordable(limit: &str, left_microdollars: u64, input_microdollars: u64) -> String {
    format!(
        "{limit}: {} is left, and the input of the next call alone may cost {}",
        dollars(left_microdollars),
        dollars(input_microdollars)
    )
}

/// The most input that a request may have by the server's count, in tokens, in a context of this size: what the server
/// reported is taken as it is, and our own count with a margin of a quarter.
pub fn input_tokens_max(context: &ContextUsage) -> u64 {
    context.usage_tokens.saturating_add(with_margin(context.trailing_tokens))
}

/// The most tokens that the server may count for so many of ours.
pub fn with_margin(counted_tokens: u64) -> u64 {
    counted_tokens.saturating_add(counted_tokens.div_ceil(INPUT_MARGIN_DIVISOR))
}

/// What a call may cost at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallPrice {
    /// What its input may cost, in micro-dollars.
    pub input_microdollars: u64,
    /// The price of a million tokens of output, in micro-dollars.
    pub output_per_million: u64,
}

impl CallPrice {
    /// What the call costs with so much output.
    pub fn with_output(self, tokens: u64) -> u64 {
        let output = (u128::from(tokens) * u128::from(self.output_per_million)).div_ceil(1_000_000);
        self.input_microdollars.saturating_add(u64::try_from(output).unwrap_or(u64::MAX))
    }

    /// The most output that a sum pays for; `None` where it does not pay for the input.
    fn output_for(self, microdollars: u64) -> Option<u64> {
        let rest = u128::from(microdollars.checked_sub(self.input_microdollars)?);
        let tokens = (rest * 1_000_000).checked_div(u128::from(self.output_per_million));
        Some(tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(u64::MAX))
    }
}

/// What is left for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// What is left until the limit, in micro-dollars.
    pub microdollars: u64,
    /// What calls that are under way may take of it.
    pub reserved: u64,
    /// Whether other agents that share the limit may want to call at the same time.
    pub is_shared: bool,
}

/// Whether a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is, with so much output at most.
    Ask {
        /// The output limit, in tokens.
        output_tokens_max: u64,
    },
    /// Not before another one that is under way has ended.
    Wait,
    /// It is not: what is left does not pay for it.
    Refuse,
}

/// Whether a call that wants so much output is made, and with how much.
pub fn admit(price: CallPrice, output_tokens: u64, left: Left) -> Admission {
    let ask = |microdollars: u64, least: u64| {
        let output = price.output_for(microdollars)?;
        let is_enough = output >= least.min(output_tokens);
        is_enough.then_some(Admission::Ask { output_tokens_max: output.min(output_tokens) })
    };
    let free = left.microdollars.saturating_sub(left.reserved);
    let share = if left.is_shared { free / SHARE_DIVISOR } else { free };
    let well = ask(share, OUTPUT_TOKENS_EXPECTED).or_else(|| ask(free, OUTPUT_TOKENS_EXPECTED));
    match well {
        Some(admission) => admission,
        None if left.reserved > 0 => Admission::Wait,
        None => ask(left.microdollars, OUTPUT_TOKENS_MIN).unwrap_or(Admission::Refuse),
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

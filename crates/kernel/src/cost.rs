//! Cost limits of a session and a run, and the format of money.
//!
//! Invariants: all sums are in micro-dollars; a limit is used up when the amount spent reaches it, so that a
//! limit of 0 allows nothing. A call is admitted only if its maximum cost is left, as far as our count of its
//! input is correct.

use crate::context_usage::ContextUsage;

#[cfg(test)]
mod tests;

/// The expected length of an answer, in tokens. A call waits for others that share its limit rather than have
/// less.
const OUTPUT_TOKENS_EXPECTED: u64 = 1_024;
/// The minimum output that is worth a call, in tokens, if its request does not ask for less.
const OUTPUT_TOKENS_MIN: u64 = 64;
/// The margin added to our own count, as the server may count more: one part in this many.
const INPUT_MARGIN_DIVISOR: u64 = 4;
/// The share of the remaining sum for one of several agents that may work at the same time: one part in this
/// many.
const SHARE_DIVISOR: u64 = 4;

/// Limits in micro-dollars, as far as prices are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CostLimits {
    /// For the whole session, including its sub-agents.
    pub session: Option<u64>,
    /// For the current run.
    pub run: Option<RunCost>,
}

/// The limit of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCost {
    /// The limit, in micro-dollars.
    pub limit: u64,
    /// The session's cost when the run began, in micro-dollars.
    pub before: u64,
}

impl CostLimits {
    /// Returns the limit that is used up at this cost of the session, in words; `None` if there is none.
    pub fn used_up(&self, cost_microdollars: u64) -> Option<String> {
        self.each().find(|(until, _)| cost_microdollars >= *until).map(|(_, limit)| limit.reached())
    }

    /// Yields each limit with the session's cost at which it is used up.
    fn each(&self) -> impl Iterator<Item = (u64, Limit)> {
        let session = self.session.map(|limit| (limit, Limit::Session(limit)));
        let run = self.run.map(|run| (run.before.saturating_add(run.limit), Limit::Run(run.limit)));
        [session, run].into_iter().flatten()
    }

    /// Returns why a call with this input cost is refused at this cost of the session, in words.
    pub fn refusal(&self, cost_microdollars: u64, input_microdollars: u64) -> Option<String> {
        let (until, limit) = self.each().min_by_key(|(until, _)| *until)?;
        let left = until.saturating_sub(cost_microdollars);
        Some(unaffordable(&limit.reached(), left, input_microdollars))
    }

    /// Returns what is left to spend at this cost of the session; `None` if there is no limit.
    pub fn left(&self, cost_microdollars: u64) -> Option<u64> {
        let until = self.each().map(|(until, _)| until).min()?;
        Some(until.saturating_sub(cost_microdollars))
    }
}

/// A limit, in micro-dollars, by its scope.
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

/// Returns the reason for refusing a call; `limit` names the limit that leaves too little.
pub fn unaffordable(limit: &str, left_microdollars: u64, input_microdollars: u64) -> String {
    format!(
        "{limit}: {} is left, and the input of the next call alone may cost {}",
        dollars(left_microdollars),
        dollars(input_microdollars)
    )
}

/// Returns the maximum input of a request by the server's count, in tokens, in a context of this size: the
/// part reported by the server is taken unchanged, and our own count with a margin of a quarter.
pub fn input_tokens_max(context: &ContextUsage) -> u64 {
    context.usage_tokens.saturating_add(with_margin(context.trailing_tokens))
}

/// Returns the most tokens that the server may count for this many of ours.
pub fn with_margin(counted_tokens: u64) -> u64 {
    counted_tokens.saturating_add(counted_tokens.div_ceil(INPUT_MARGIN_DIVISOR))
}

/// The maximum cost of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallPrice {
    /// The maximum cost of its input, in micro-dollars.
    pub input_microdollars: u64,
    /// The price of a million tokens of output, in micro-dollars.
    pub output_per_million: u64,
}

impl CallPrice {
    /// Returns the cost of the call with this much output.
    pub fn with_output(self, tokens: u64) -> u64 {
        let output = (u128::from(tokens) * u128::from(self.output_per_million)).div_ceil(1_000_000);
        self.input_microdollars.saturating_add(u64::try_from(output).unwrap_or(u64::MAX))
    }

    /// Returns the most output that a sum pays for; `None` if it does not pay for the input.
    fn output_for(self, microdollars: u64) -> Option<u64> {
        let rest = u128::from(microdollars.checked_sub(self.input_microdollars)?);
        let tokens = (rest * 1_000_000).checked_div(u128::from(self.output_per_million));
        Some(tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(u64::MAX))
    }
}

/// The remaining budget of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The remainder until the limit, in micro-dollars.
    pub microdollars: u64,
    /// The part reserved by calls in progress.
    pub reserved: u64,
    /// Whether other agents that share the limit may want to call at the same time.
    pub is_shared: bool,
}

/// Whether a call is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Yes, with at most this much output.
    Ask {
        /// The output limit, in tokens.
        output_tokens_max: u64,
    },
    /// Not before another call in progress has ended.
    Wait,
    /// No: the remainder does not pay for it.
    Refuse,
}

/// Decides whether a call with this much wanted output is admitted, and with how much.
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

/// Formats a sum: `$1.50`; small sums with as many digits as necessary: `$0.0007`.
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

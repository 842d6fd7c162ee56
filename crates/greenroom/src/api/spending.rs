//! Spending by label and time.
//!
//! Invariants: the sums are those of the accounts, which no deletion of a session changes; no log is read.

use std::future::IntoFuture;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use greenroom_kernel::Usage;
use greenroom_kernel::bill::Tally;
use serde::{Deserialize, Serialize};

use crate::api::runtime::Runtime;
use crate::limits::accounts::sums::DAYS;
use crate::limits::labels::Label;
use crate::limits::spending::Period;
use crate::values::error::{ConfigError, Result};

/// How many hours a query may return.
const HOURS: u64 = 48;

/// The spending within one hour or day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Spending {
    /// The label's name; `None` if this is what all sessions spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The label's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// When the hour or day begins, in Unix milliseconds; days are those of UTC.
    pub from_ms: u64,
    /// The cost in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// The tokens of all model calls, those of summaries included. `input_tokens` includes the cached ones.
    pub usage: Usage,
    /// The runs that ended, without those of sub-agents.
    pub runs: u64,
    /// The answers of models in runs, those of sub-agents included, and those that were cut off.
    pub calls: u64,
}

/// A query for what was spent by hour or day: see [`Runtime::spending`].
#[derive(Clone)]
#[must_use = "a query does nothing until it is awaited"]
pub struct SpendingQuery {
    runtime: Runtime,
    label: Option<String>,
    value: Option<String>,
    period: Period,
    last: u64,
}

impl std::fmt::Debug for SpendingQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { label, value, period, last, .. } = self;
        let mut query = f.debug_struct("SpendingQuery");
        query.field("label", label).field("value", value).field("period", period).field("last", last).finish()
    }
}

/// Checks that a message in a session with this label would not be refused now. Counts nothing.
///
/// # Errors
/// [`Error::LabelLimit`](crate::Error::LabelLimit).
pub fn check_message(runtime: &Runtime, name: &str, value: &str) -> Result<()> {
    let accounts = &runtime.deps().accounts;
    if !accounts.table().counts(name) {
        return Ok(());
    }
    let label = Label { name: name.into(), value: value.into() };
    accounts.message(&std::sync::Arc::from([label])).map(drop)
}

impl SpendingQuery {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime, label: None, value: None, period: Period::Day, last: 1 }
    }

    /// Selects what was spent by each value of this label, instead of by all sessions together.
    pub fn by(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Selects what was spent by one value of a label.
    pub fn of(mut self, label: impl Into<String>, value: impl Into<String>) -> Self {
        (self.label, self.value) = (Some(label.into()), Some(value.into()));
        self
    }

    /// Selects hours or days. The default is days.
    pub fn per(mut self, period: Period) -> Self {
        self.period = period;
        self
    }

    /// Selects the last hours or days, the current one included. The default is 1; at most 48 hours and 400 days are
    /// kept.
    pub fn last(mut self, count: u64) -> Self {
        self.last = count;
        self
    }

    async fn read(self) -> Result<Vec<Spending>> {
        let deps = self.runtime.deps();
        let accounts = std::sync::Arc::clone(&deps.accounts);
        let count = self.last.min(match self.period {
            Period::Hour => HOURS,
            Period::Day => DAYS,
        });
        let (now_ms, period, label, value) = (deps.now_ms(), self.period, self.label, self.value);
        let names: Vec<Option<Label>> = match (&label, value) {
            (None, _) if accounts.has_sums().await? => vec![None],
            (None, _) => return Err(ConfigError::NotCounted { label: None }.into()),
            (Some(name), value) => {
                let mut values = accounts.values(name).await?;
                // A runtime may read what another one has counted.
                if values.is_empty() && !accounts.table().counts(name) {
                    return Err(ConfigError::NotCounted { label: Some(name.clone()) }.into());
                }
                values.retain(|label| value.as_ref().is_none_or(|value| *label.value == **value));
                values.into_iter().map(Some).collect()
            }
        };
        let of = |name: &Option<Label>| {
            let spent = accounts.spent(name, period, count, now_ms);
            spent.into_iter().map(|(from_ms, tally)| Spending::new(name.as_ref(), from_ms, tally)).collect()
        };
        Ok(names.iter().flat_map(|name| -> Vec<Spending> { of(name) }).collect())
    }
}

impl IntoFuture for SpendingQuery {
    type Output = Result<Vec<Spending>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.read().boxed()
    }
}

impl Spending {
    fn new(label: Option<&Label>, from_ms: u64, tally: Tally) -> Self {
        let Tally { usage, cost_microdollars, calls, runs } = tally;
        let text = |of: fn(&Label) -> &str| label.map(|label| of(label).to_owned());
        Self {
            label: text(|label| &label.name),
            value: text(|label| &label.value),
            from_ms,
            cost_microdollars,
            usage,
            runs,
            calls,
        }
    }
}

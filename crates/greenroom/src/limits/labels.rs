//! Limits by label: which values of which labels are limited, and how.
//!
//! Invariants: a session is limited by the labels of its top-level session; a limit for one value of a label replaces the
//! limit for each value as a whole; limits that cannot work are refused when the runtime starts.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use greenroom_kernel::entry::Metadata;

use crate::limits::spending::{Period, microdollars};
use crate::values::error::ConfigError;
use crate::values::metadata;

#[cfg(test)]
mod tests;

/// The limits of the sessions that have a label, such as those of one tenant, together. Sessions without the label are not
/// limited by it. A sub-agent counts as the top-level session that it works for.
///
/// ```
/// use greenroom::{LabelLimit, Period, prelude::*};
/// let builder = Runtime::builder()
///     .label_limit(LabelLimit::each("tenant").cost_usd(20.0, Period::Day).messages_per_minute(60).runs_max(4))
///     .label_limit(LabelLimit::of("tenant", "north").cost_usd(200.0, Period::Day));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct LabelLimit {
    name: String,
    value: Option<String>,
    cost_usd: Vec<(f64, Period)>,
    tokens_per_minute: Option<u64>,
    messages_per_minute: Option<u64>,
    runs_max: Option<usize>,
}

impl LabelLimit {
    /// Creates limits for each value of a label. Without a limit on anything, they only cause the spending by this label to
    /// be summed up.
    pub fn each(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: None,
            cost_usd: Vec::new(),
            tokens_per_minute: None,
            messages_per_minute: None,
            runs_max: None,
        }
    }

    /// Creates limits for one value of a label. They replace those for each value: what is not limited here is not limited
    /// for this value.
    pub fn of(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { value: Some(value.into()), ..Self::each(name) }
    }

    /// Limits the spending within an hour or a day, in US dollars, as far as prices are known. As with
    /// [`RuntimeBuilder::cost_limit_usd`](crate::RuntimeBuilder::cost_limit_usd), runs end as stopped while it is used up,
    /// a restart does not reset it, and concurrent calls of several sessions may exceed it together.
    pub fn cost_usd(mut self, usd: f64, within: Period) -> Self {
        self.cost_usd.retain(|(_, period)| *period != within);
        self.cost_usd.push((usd, within));
        self
    }

    /// Limits the tokens per minute, input and output together, including summaries. A call waits until the limit leaves room
    /// for its expected tokens; `queue_update` events with the reason `label_tokens` report it.
    pub fn tokens_per_minute(mut self, tokens: u64) -> Self {
        self.tokens_per_minute = Some(tokens);
        self
    }

    /// Limits the prompts, steers and follow-ups per minute. As many may come at once; further ones fail with
    /// [`Error::LabelLimit`](crate::Error::LabelLimit), which says when to try again. Messages that a run sends and waits for,
    /// such as those to its sub-agents, do not count.
    pub fn messages_per_minute(mut self, messages: u64) -> Self {
        self.messages_per_minute = Some(messages);
        self
    }

    /// Limits how many runs work at a time. The first model call of a further run waits for the end of another one, in order;
    /// `queue_update` events with the reason `label_runs` report it. A run that waits for a person does not count, and
    /// neither does one whose reply another run waits for, such as a sub-agent's.
    pub fn runs_max(mut self, runs: usize) -> Self {
        self.runs_max = Some(runs);
        self
    }

    /// Checks the limits, and returns them in the form in which they are applied.
    fn checked(&self) -> Result<Limits, ConfigError> {
        let wrong = |reason: String| ConfigError::LabelLimit { label: self.shown(), reason };
        check_name(&self.name)?;
        if let Some(value) = &self.value {
            check_label(&self.name, value).map_err(|error| wrong(error.to_string()))?;
        }
        let mut cost = Vec::new();
        for (usd, period) in &self.cost_usd {
            cost.push((microdollars(*usd)?, *period));
        }
        let none = |limit: Option<u64>, what: &str| match limit {
            Some(0) => Err(wrong(format!("{what} must be at least 1"))),
            Some(_) | None => Ok(limit),
        };
        Ok(Limits {
            cost,
            tokens_per_minute: none(self.tokens_per_minute, "tokens_per_minute")?,
            messages_per_minute: none(self.messages_per_minute, "messages_per_minute")?,
            runs_max: none(self.runs_max.map(|runs| runs as u64), "runs_max")?.and(self.runs_max),
        })
    }

    fn shown(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={value}", self.name),
            None => self.name.clone(),
        }
    }
}

/// Checks a label's name.
///
/// # Errors
/// [`ConfigError::LabelLimit`] if no session can have such a label.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    let wrong = |error: &dyn fmt::Display| ConfigError::LabelLimit {
        label: name.to_owned(),
        reason: error.to_string(),
    };
    check_label(name, "x").map_err(|error| wrong(&error))
}

fn check_label(name: &str, value: &str) -> Result<(), crate::values::error::MetadataError> {
    metadata::check(&Metadata::Label { name: name.to_owned(), value: Some(value.to_owned()) })
}

/// The limits of one label value, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In micro-dollars.
    pub(crate) cost: Vec<(u64, Period)>,
    pub(crate) tokens_per_minute: Option<u64>,
    pub(crate) messages_per_minute: Option<u64>,
    pub(crate) runs_max: Option<usize>,
}

/// A label that sessions have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Label {
    pub(crate) name: Arc<str>,
    pub(crate) value: Arc<str>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// The labels by which a session is counted, in the order of their names.
pub(crate) type Tenants = Arc<[Label]>;

/// All limits by label of a runtime, and the labels by which it counts.
#[derive(Debug, Default)]
pub(crate) struct Table {
    names: BTreeMap<Arc<str>, OfName>,
    fair_by: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct OfName {
    each: Limits,
    values: HashMap<String, Limits>,
}

impl Table {
    /// Creates the table. `counted` are further labels by which spending is summed up; slots are shared among the values of
    /// `fair_by`.
    ///
    /// # Errors
    /// [`ConfigError::LabelLimit`] and [`ConfigError::CostLimit`] for limits that cannot work.
    pub(crate) fn new(
        limits: &[LabelLimit],
        counted: &[String],
        fair_by: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let mut table = Self { fair_by: fair_by.map(Arc::from), ..Self::default() };
        for name in counted.iter().map(String::as_str).chain(fair_by) {
            check_name(name)?;
            table.names.entry(Arc::from(name)).or_default();
        }
        for limit in limits {
            let checked = limit.checked()?;
            let of_name = table.names.entry(Arc::from(limit.name.as_str())).or_default();
            match &limit.value {
                Some(value) => _ = of_name.values.insert(value.clone(), checked),
                None => of_name.each = checked,
            }
        }
        Ok(table)
    }

    /// Whether sessions are counted by a label.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether sessions are counted by this label.
    pub(crate) fn counts(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Whether any value has a limit in dollars.
    pub(crate) fn limits_cost(&self) -> bool {
        self.all().any(|limits| !limits.cost.is_empty())
    }

    /// Whether any value has a limit of tokens per minute.
    pub(crate) fn limits_tokens(&self) -> bool {
        self.all().any(|limits| limits.tokens_per_minute.is_some())
    }

    fn all(&self) -> impl Iterator<Item = &Limits> {
        self.names.values().flat_map(|of_name| of_name.values.values().chain([&of_name.each]))
    }

    /// Returns the limits of a label.
    pub(crate) fn limits(&self, label: &Label) -> Limits {
        let of_name = self.names.get(&label.name);
        let limits = of_name.map(|of_name| of_name.values.get(&*label.value).unwrap_or(&of_name.each));
        limits.cloned().unwrap_or_default()
    }

    /// Returns the labels by which a session with these labels is counted.
    pub(crate) fn tenants(&self, labels: &BTreeMap<String, String>) -> Tenants {
        named(self.names.keys(), labels)
    }

    /// Returns the names of the labels by which sessions are counted.
    pub(crate) fn names(&self) -> impl Iterator<Item = Arc<str>> {
        self.names.keys().cloned()
    }

    /// Returns the group in which the calls of these tenants take turns; `None` if there are no groups. Sessions without the
    /// label are one group.
    pub(crate) fn group(&self, tenants: &Tenants) -> Option<Arc<str>> {
        let fair_by = self.fair_by.as_ref()?;
        let found = tenants.iter().find(|label| label.name == *fair_by);
        Some(found.map_or_else(|| Arc::from(""), |label| Arc::clone(&label.value)))
    }
}

/// Returns those of a session's labels that have these names.
pub(crate) fn named<'a>(
    names: impl IntoIterator<Item = &'a Arc<str>>,
    labels: &BTreeMap<String, String>,
) -> Tenants {
    let label = |name: &Arc<str>| {
        let value = labels.get(&**name)?.as_str();
        Some(Label { name: Arc::clone(name), value: Arc::from(value) })
    };
    names.into_iter().filter_map(label).collect()
}

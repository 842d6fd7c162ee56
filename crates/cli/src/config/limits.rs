//! The limits of the configuration: of runs, sessions, the process, and the values of labels.
//!
//! Invariants: a limit that cannot work is refused with its key.

use std::collections::BTreeMap;

use greenroom::{Agent, LabelLimit, Period, RuntimeBuilder};
use greenroom_kernel::run::RunLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Wrong, check_at_least_one, or_default, wrong};

/// Limits of runs and sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsConfig {
    /// The maximum number of model answers in one run.
    pub(crate) steps_max: u32,
    /// The maximum number of identical tool calls in a row.
    pub(crate) repeats_max: u32,
    /// How often a failed model call is retried; waits start at 0.5 s and double, and Retry-After counts up to 60 s.
    pub(crate) retries_max: u32,
    /// How long to wait for a server that is loading its model or restarting, in seconds; this uses no retries.
    pub(crate) loading_timeout_s: u64,
    /// The cost limit of a session, in US dollars, for models with known prices; a call that may exceed it is not made.
    /// `null`: no limit.
    pub(crate) cost_usd_max: Option<f64>,
    /// The maximum number of tool calls per answer; further ones are dropped, and the model is told.
    pub(crate) calls_max: u32,
    /// The maximum number of bytes of the names and arguments of these calls together.
    pub(crate) call_bytes_max: u64,
    /// The time limit of a tool call, in seconds. `null`: no limit.
    pub(crate) tool_timeout_s: Option<u64>,
    /// The time limit of a run, in seconds, after which the run ends as stopped. `null`: no limit.
    pub(crate) run_timeout_s: Option<u64>,
    /// The maximum number of runs and queued inputs in all sessions together; further ones are refused. `null`: no
    /// limit.
    pub(crate) inputs_max: Option<usize>,
    /// How many sessions may have actors in memory; above that, the least recently used idle ones sleep. `null`: no
    /// limit.
    pub(crate) live_sessions_max: Option<usize>,
    /// Joint limits of sessions with a label. The key `NAME` limits each value of the label separately; the key
    /// `NAME=VALUE` replaces these limits for one value.
    #[serde(deserialize_with = "or_default")]
    pub(crate) labels: BTreeMap<String, LabelLimitConfig>,
    /// The label by whose values the slots of providers are shared; without it, they are shared by session.
    pub(crate) fair_by: Option<String>,
    /// Further labels by which spending is summed up for `greenroom usage`. Spending is always summed up by the labels
    /// in `labels`, `fair_by` and `serve.tokens`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) spending_by: Vec<String>,
}

/// The limits of a label.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LabelLimitConfig {
    /// The cost limit within an hour, in US dollars, as far as prices are known; runs then end as stopped.
    pub(crate) cost_usd_per_hour: Option<f64>,
    /// The cost limit within 24 hours, in US dollars.
    pub(crate) cost_usd_per_day: Option<f64>,
    /// The maximum number of tokens per minute, input and output together, including summaries; further calls wait.
    pub(crate) tokens_per_minute: Option<u64>,
    /// The maximum number of prompts, steers and follow-ups per minute; further ones are refused with the time to
    /// retry.
    pub(crate) messages_per_minute: Option<u64>,
    /// The maximum number of concurrent runs; further ones wait, in order.
    pub(crate) runs_max: Option<usize>,
}

impl LabelLimitConfig {
    /// The limits of a label, which is `NAME` or `NAME=VALUE`.
    fn of(&self, label: &str) -> LabelLimit {
        let mut limit = match label.split_once('=') {
            Some((name, value)) => LabelLimit::of(name, value),
            None => LabelLimit::each(label),
        };
        for (usd, period) in [(self.cost_usd_per_hour, Period::Hour), (self.cost_usd_per_day, Period::Day)] {
            limit = usd.into_iter().fold(limit, |limit, usd| limit.cost_usd(usd, period));
        }
        limit = self.tokens_per_minute.into_iter().fold(limit, LabelLimit::tokens_per_minute);
        limit = self.messages_per_minute.into_iter().fold(limit, LabelLimit::messages_per_minute);
        self.runs_max.into_iter().fold(limit, LabelLimit::runs_max)
    }

    fn check(&self, label: &str) -> Result<(), Wrong> {
        let section = ["limits", "labels", label];
        let (name, value) = label.split_once('=').unwrap_or((label, "x"));
        if name.trim().is_empty() || value.is_empty() {
            return wrong(&section, "must be the name of a label, or NAME=VALUE");
        }
        let key = |key: &'static str| [&section[..], &[key]].concat();
        for (name, usd) in
            [("cost_usd_per_hour", self.cost_usd_per_hour), ("cost_usd_per_day", self.cost_usd_per_day)]
        {
            if usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0) {
                return wrong(&key(name), "must be an amount of US dollars, or null");
            }
        }
        for (name, value) in [
            ("tokens_per_minute", self.tokens_per_minute),
            ("messages_per_minute", self.messages_per_minute),
            ("runs_max", self.runs_max.map(|runs| runs as u64)),
        ] {
            if value == Some(0) {
                return wrong(&key(name), "must be at least 1, or null");
            }
        }
        Ok(())
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let RunLimits {
            steps_max, repeats_max, retries_max, loading_ms_max, calls_max, call_bytes_max, ..
        } = RunLimits::default();
        Self {
            steps_max,
            repeats_max,
            retries_max,
            loading_timeout_s: loading_ms_max / 1_000,
            cost_usd_max: None,
            calls_max,
            call_bytes_max,
            tool_timeout_s: None,
            run_timeout_s: Some(Agent::RUN_TIMEOUT.as_secs()),
            inputs_max: Some(RuntimeBuilder::INPUTS_MAX),
            live_sessions_max: None,
            labels: BTreeMap::new(),
            fair_by: None,
            spending_by: Vec::new(),
        }
    }
}

impl LimitsConfig {
    /// Returns the limits of a run.
    pub(crate) fn of_run(&self) -> RunLimits {
        RunLimits {
            steps_max: self.steps_max,
            repeats_max: self.repeats_max,
            retries_max: self.retries_max,
            loading_ms_max: self.loading_timeout_s.saturating_mul(1_000),
            calls_max: self.calls_max,
            call_bytes_max: self.call_bytes_max,
            ..RunLimits::default()
        }
    }
}

impl LimitsConfig {
    /// Sets the limits of all sessions together, and those by label.
    pub(crate) fn of_runtime(&self, builder: RuntimeBuilder) -> RuntimeBuilder {
        let builder = builder
            .inputs_max(self.inputs_max.unwrap_or(0))
            .live_sessions_max(self.live_sessions_max.unwrap_or(0));
        self.by_label(builder)
    }

    /// Sets the limits by label.
    pub(crate) fn by_label(&self, builder: RuntimeBuilder) -> RuntimeBuilder {
        let limits = self.labels.iter().map(|(label, limits)| limits.of(label));
        let builder = limits.fold(builder, RuntimeBuilder::label_limit);
        let builder = self.fair_by.iter().fold(builder, RuntimeBuilder::fair_by);
        builder.spending_by(&self.spending_by)
    }

    /// Checks the values, each by itself; returns the first invalid one.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let values = [
            ("steps_max", self.steps_max.into()),
            ("repeats_max", self.repeats_max.into()),
            ("calls_max", self.calls_max.into()),
            ("call_bytes_max", self.call_bytes_max),
            ("tool_timeout_s", self.tool_timeout_s.unwrap_or(1)),
            ("run_timeout_s", self.run_timeout_s.unwrap_or(1)),
            ("inputs_max", self.inputs_max.unwrap_or(1) as u64),
            ("live_sessions_max", self.live_sessions_max.unwrap_or(1) as u64),
        ];
        check_at_least_one(&["limits"], &values)?;
        if self.cost_usd_max.is_some_and(|dollars| !dollars.is_finite() || dollars < 0.0) {
            return wrong(&["limits", "cost_usd_max"], "must be an amount of US dollars, or null");
        }
        for (key, names) in [("fair_by", self.fair_by.as_slice()), ("spending_by", &self.spending_by)] {
            if names.iter().any(|name| name.trim().is_empty()) {
                return wrong(&["limits", key], "must be the name of a label");
            }
        }
        self.labels.iter().try_for_each(|(label, limits)| limits.check(label))
    }
}

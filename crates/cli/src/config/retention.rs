//! Which sessions are kept.
//!
//! Invariants: only the user's own file sets it, because it deletes data.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom::{Retention, RetentionRule};
use greenroom_server::operations::PruneSessionsRule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Wrong, or_default, wrong};

/// A day, in seconds.
pub(crate) const DAY_S: u64 = 86_400;

/// Which sessions are kept: `serve` and the host delete the others every hour, and `prune` when it is called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetentionConfig {
    /// How long a session is kept after its last activity, in days. `null`: without a limit.
    pub(crate) age_max_days: Option<u64>,
    /// The number of sessions to keep, those with the newest activity; sub-agents' sessions do not count. `null`: all.
    pub(crate) sessions_max: Option<usize>,
    /// Other limits for sessions with certain labels: only the first rule that matches a session applies to it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) rules: Vec<RetentionRuleConfig>,
}

/// Limits for sessions with certain labels. A rule without limits keeps them all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetentionRuleConfig {
    /// The labels that a session must have, all of them: names and values.
    pub(crate) labels: BTreeMap<String, String>,
    /// How long such a session is kept after its last activity, in days.
    #[serde(default)]
    pub(crate) age_max_days: Option<u64>,
    /// How many such sessions are kept, those with the newest activity.
    #[serde(default)]
    pub(crate) sessions_max: Option<usize>,
}

fn seconds(days: Option<u64>) -> Option<u64> {
    days.map(|days| days.saturating_mul(DAY_S))
}

impl RetentionConfig {
    /// Returns the policy.
    pub(crate) fn policy(&self) -> Retention {
        let age = |days| seconds(days).map(Duration::from_secs);
        let rule = |rule: &RetentionRuleConfig| RetentionRule {
            labels: rule.labels.clone(),
            age_max: age(rule.age_max_days),
            sessions_max: rule.sessions_max,
        };
        Retention {
            age_max: age(self.age_max_days),
            sessions_max: self.sessions_max,
            rules: self.rules.iter().map(rule).collect(),
        }
    }

    /// Returns the general limits, and the rules, as a client sends them.
    pub(crate) fn sent(&self) -> (Option<u64>, Option<usize>, Vec<PruneSessionsRule>) {
        let rule = |rule: &RetentionRuleConfig| PruneSessionsRule {
            labels: rule.labels.clone(),
            age_max_s: seconds(rule.age_max_days),
            sessions_max: rule.sessions_max,
        };
        (seconds(self.age_max_days), self.sessions_max, self.rules.iter().map(rule).collect())
    }
}

/// Checks the values of one layer. A limit of 0 would delete everything: `prune` does that on request.
pub(super) fn check(config: &RetentionConfig) -> Result<(), Wrong> {
    let limits = |age: Option<u64>, sessions: Option<usize>| {
        [("age_max_days", age == Some(0)), ("sessions_max", sessions == Some(0))]
    };
    for (key, is_zero) in limits(config.age_max_days, config.sessions_max) {
        if is_zero {
            return wrong(&["retention", key], "must be at least 1, or null");
        }
    }
    for rule in &config.rules {
        if rule.labels.is_empty() {
            return wrong(&["retention", "rules"], "each must have labels");
        }
        if limits(rule.age_max_days, rule.sessions_max).iter().any(|(_, is_zero)| *is_zero) {
            return wrong(&["retention", "rules"], "the limits of each rule must be at least 1, or null");
        }
    }
    Ok(())
}

//! Retention: which sessions are kept, and which are due to be deleted.
//!
//! Invariants: this decides, and deletes nothing. A session that is protected is never due; a session and those of its
//! sub-agents are due together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::values::names::names;

#[cfg(test)]
mod tests;

/// How long sessions are kept, and how many: see [`Runtime::retain`](crate::Runtime::retain). The default keeps all.
///
/// ```
/// # use std::time::Duration;
/// # use greenroom::{Retention, RetentionRule};
/// let day = Duration::from_secs(86_400);
/// let policy = Retention {
///     age_max: Some(90 * day),
///     rules: vec![RetentionRule {
///         labels: [("kind".to_owned(), "probe".to_owned())].into(),
///         age_max: Some(day),
///         sessions_max: Some(100),
///     }],
///     ..Retention::default()
/// };
/// # assert_ne!(policy, Retention::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long a session is kept after its last activity; `None`: without a limit.
    pub age_max: Option<Duration>,
    /// How many sessions are kept, those with the newest activity; `None`: all. Sub-agents' sessions do not count.
    pub sessions_max: Option<usize>,
    /// Other limits for sessions with certain labels. The first rule that matches a session decides about it, alone;
    /// the limits above are for sessions that no rule matches.
    pub rules: Vec<RetentionRule>,
}

/// Limits for the sessions with certain labels. A rule without limits keeps them all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// The labels that a session must have, all of them.
    pub labels: BTreeMap<String, String>,
    /// As [`Retention::age_max`].
    pub age_max: Option<Duration>,
    /// As [`Retention::sessions_max`], among the sessions of this rule.
    pub sessions_max: Option<usize>,
}

impl Retention {
    /// Whether nothing is ever due.
    pub(crate) fn keeps_all(&self) -> bool {
        let of_rules = self.rules.iter().map(|rule| (rule.age_max, rule.sessions_max));
        of_rules.chain([(self.age_max, self.sessions_max)]).all(|limits| limits == (None, None))
    }

    /// Returns the rule for a session with these labels, and its limits. `None` stands for the general limits.
    fn limits(&self, labels: &BTreeMap<String, String>) -> (Option<usize>, Option<Duration>, Option<usize>) {
        let has = |(name, value): (&String, &String)| labels.get(name) == Some(value);
        let found = self.rules.iter().position(|rule| rule.labels.iter().all(has));
        match found.map(|at| &self.rules[at]) {
            Some(rule) => (found, rule.age_max, rule.sessions_max),
            None => (None, self.age_max, self.sessions_max),
        }
    }
}

names! {
    /// Why retention deleted a session.
    pub enum DeletionReason ("reason") {
        /// Its last activity was too long ago.
        Age = "age",
        /// More sessions with newer activity than are kept.
        Count = "count",
    }
}

/// A session with those of its sub-agents, as far as the decision needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptTree {
    /// The session that no other one called.
    pub(crate) root: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The newest activity of all its sessions, in Unix milliseconds.
    pub(crate) active_at_ms: u64,
    /// Whether one of its sessions must not be deleted: it works, waits, has queued input, or is damaged.
    pub(crate) is_protected: bool,
}

/// Returns the sessions that are due, each with the reason, in the order of their activity, the oldest first.
pub(crate) fn due(
    policy: &Retention,
    mut trees: Vec<KeptTree>,
    now_ms: u64,
) -> Vec<(KeptTree, DeletionReason)> {
    trees.sort_by(|a, b| (Reverse(a.active_at_ms), &a.root).cmp(&(Reverse(b.active_at_ms), &b.root)));
    let mut newer: HashMap<Option<usize>, usize> = HashMap::new();
    let mut due = Vec::new();
    for tree in trees {
        let (rule, age_max, sessions_max) = policy.limits(&tree.labels);
        let newer = newer.entry(rule).or_default();
        let age = Duration::from_millis(now_ms.saturating_sub(tree.active_at_ms));
        let reason = match () {
            () if age_max.is_some_and(|max| age > max) => Some(DeletionReason::Age),
            () if sessions_max.is_some_and(|max| *newer >= max) => Some(DeletionReason::Count),
            () => None,
        };
        // A protected session is kept, and takes the place of another one.
        *newer += 1;
        if let Some(reason) = reason.filter(|_| !tree.is_protected) {
            due.push((tree, reason));
        }
    }
    due.reverse();
    due
}

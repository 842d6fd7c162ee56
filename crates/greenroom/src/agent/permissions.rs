//! The permissions of an agent: which of its tool calls run, ask a person, or are denied.
//!
//! Invariants: the policy decides alone; what a session may do is the agent's mode, unless the session has one of
//! its own; clones are the same permissions. A rule that a person adds with an approval holds for the agent at
//! once, and is remembered where the program says.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use greenroom_policy::{Call, Effect, InvalidRule, Mode, Policy, Verdict};
use parking_lot::Mutex;

/// Where the rules that people add with an approval are written; the error says why it could not be done.
type Remember = dyn Fn(&[String]) -> Result<(), String> + Send + Sync;

/// The permissions of an agent. Cloning is cheap, and clones are the same: a mode or rule that is set applies to the
/// next call.
///
/// ```
/// use greenroom::prelude::*;
/// use greenroom::permissions::{Effect, Mode, Permissions, Policy};
///
/// let mut policy = Policy::new(Mode::Ask, "/srv/project");
/// policy.add(Effect::Allow, "bash(cargo test *)", "the program").unwrap();
/// policy.add(Effect::Deny, "read(.env)", "the program").unwrap();
/// let agent = Agent::new("gpt-5.5").permissions(Permissions::new(policy));
/// ```
#[derive(Clone)]
pub struct Permissions(Arc<Inner>);

struct Inner {
    policy: Mutex<Policy>,
    /// The modes of sessions that have one of their own.
    modes: Mutex<BTreeMap<String, Mode>>,
    remember: Option<Box<Remember>>,
    /// How a person allows a rule where nobody can be asked, before and after the rule.
    unattended: Option<(String, String)>,
}

impl Permissions {
    /// Creates permissions. A call that needs an approval asks, as an open question of its session
    /// ([`SessionHandle::questions`](crate::SessionHandle::questions)).
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(Inner {
            policy: Mutex::new(policy),
            modes: Mutex::default(),
            remember: None,
            unattended: None,
        }))
    }

    /// Creates permissions for sessions that nobody attends: a call that needs an approval is denied. The reason
    /// names the rule that would allow it, between these texts: for example `--allow '` and `'`.
    pub fn unattended(policy: Policy, before: impl Into<String>, after: impl Into<String>) -> Self {
        let unattended = Some((before.into(), after.into()));
        Self(Arc::new(Inner { policy: Mutex::new(policy), modes: Mutex::default(), remember: None, unattended }))
    }

    /// Sets where the rules that people add with an approval are written. Call it before the permissions are cloned.
    #[must_use]
    pub fn remember(
        self,
        remember: impl Fn(&[String]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let Ok(inner) = Arc::try_unwrap(self.0).map(|inner| Inner { remember: Some(Box::new(remember)), ..inner })
        else {
            panic!("`remember` is called before the permissions are cloned");
        };
        Self(Arc::new(inner))
    }

    /// Returns the policy as it is now, with the agent's mode.
    pub fn policy(&self) -> Policy {
        self.0.policy.lock().clone()
    }

    /// Replaces the policy, for example when its file has changed. Modes of sessions stay.
    pub fn set_policy(&self, policy: Policy) {
        *self.0.policy.lock() = policy;
    }

    /// Adds a rule. `origin` is where it was written, for people.
    ///
    /// # Errors
    /// [`InvalidRule`].
    pub fn add(&self, effect: Effect, rule: &str, origin: &str) -> Result<(), InvalidRule> {
        self.0.policy.lock().add(effect, rule, origin)
    }

    /// Returns the mode of a session.
    pub fn mode(&self, session: &str) -> Mode {
        self.0.modes.lock().get(session).copied().unwrap_or_else(|| self.0.policy.lock().mode())
    }

    /// Sets the mode of a session, as long as the agent lives; `None`: that of the agent.
    pub fn set_mode(&self, session: &str, mode: Option<Mode>) {
        let mut modes = self.0.modes.lock();
        match mode {
            Some(mode) => drop(modes.insert(session.to_owned(), mode)),
            None => drop(modes.remove(session)),
        }
    }

    /// Whether a call that needs an approval asks a person.
    pub fn is_attended(&self) -> bool {
        self.0.unattended.is_none()
    }

    pub(crate) fn judge(&self, session: &str, call: &Call<'_>) -> Verdict {
        let mode = self.mode(session);
        let mut policy = self.policy();
        policy.set_mode(mode);
        policy.judge(call)
    }

    /// Returns how a person allows what needs these rules, where nobody can be asked.
    pub(crate) fn how_to_allow(&self, rules: &[String]) -> Option<String> {
        let (before, after) = self.0.unattended.as_ref()?;
        Some(rules.iter().map(|rule| format!("{before}{rule}{after}")).collect::<Vec<_>>().join(" "))
    }

    /// Adds the rules of an approval. The warning says what could not be remembered.
    pub(crate) fn allow_always(&self, rules: &[String]) -> Option<String> {
        let problems = rules.iter().filter_map(|rule| {
            let added = self.add(Effect::Allow, rule, "an approval");
            added.err().map(|error| error.to_string())
        });
        let invalid = problems.collect::<Vec<_>>().join("; ");
        if !invalid.is_empty() {
            return Some(invalid);
        }
        let written = self.0.remember.as_ref().map_or(Ok(()), |remember| remember(rules));
        written.err().map(|problem| format!("the rule applies until the program ends, and was not written: {problem}"))
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.0.policy.lock();
        let mut shown = f.debug_struct("Permissions");
        shown.field("mode", &policy.mode()).field("rules", &policy.rules().len()).finish_non_exhaustive()
    }
}

//! The permissions of an agent: which of its tool calls run, ask a person, or are denied.
//!
//! Invariants: the policy decides alone; a session has the agent's mode and rules, unless it has a mode of its own,
//! and its own rules besides; clones are the same permissions. A rule that a person adds with an approval holds at
//! once: for the agent, where the program remembers rules, and otherwise for the session only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use greenroom_policy::{Call, Effect, InvalidRule, Mode, Policy, Verdict};
use greenroom_tools::PROTECTED;
use parking_lot::Mutex;

/// Where the rules that people add with an approval are written; the error says why it could not be done.
type Remember = dyn Fn(&[String]) -> Result<(), String> + Send + Sync;
/// Returns the policy anew if what it was made of has changed since the last call. It may block for a moment.
type Reread = dyn Fn() -> Option<Policy> + Send + Sync;

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
#[must_use]
pub struct Permissions(Arc<Inner>);

struct Inner {
    policy: Mutex<Policy>,
    /// What single sessions have of their own.
    sessions: Mutex<BTreeMap<String, Own>>,
    remember: Option<Box<Remember>>,
    reread: Option<Box<Reread>>,
    /// Rules of the program and of approvals that are in none of the sources that `reread` reads.
    added: Mutex<Vec<(Effect, String, String)>>,
    /// How a person allows a rule where nobody can be asked, before and after the rule.
    unattended: Option<(String, String)>,
}

/// What a session has of its own.
#[derive(Default)]
struct Own {
    mode: Option<Mode>,
    rules: Vec<(Effect, String, String)>,
}

impl Permissions {
    /// Creates permissions. A call that needs an approval asks, as an open question of its session
    /// ([`SessionHandle::questions`](crate::SessionHandle::questions)).
    pub fn new(policy: Policy) -> Self {
        Self::of(policy, None)
    }

    /// Creates permissions for sessions that nobody attends: a call that needs an approval is denied. The reason
    /// names the rule that would allow it, between these texts: for example `--allow '` and `'`.
    pub fn unattended(policy: Policy, before: impl Into<String>, after: impl Into<String>) -> Self {
        Self::of(policy, Some((before.into(), after.into())))
    }

    fn of(policy: Policy, unattended: Option<(String, String)>) -> Self {
        Self(Arc::new(Inner {
            policy: Mutex::new(policy.protect(&PROTECTED)),
            sessions: Mutex::default(),
            remember: None,
            reread: None,
            added: Mutex::default(),
            unattended,
        }))
    }

    /// Changes permissions that are not cloned yet.
    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let Ok(mut inner) = Arc::try_unwrap(self.0) else {
            panic!("`remember` and `reread` must be called before the permissions are cloned");
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Sets where the rules that people add with an approval are written. They then apply to all sessions of the
    /// agent, and otherwise to the session in which they were added. Call it before the permissions are cloned.
    pub fn remember(
        self,
        remember: impl Fn(&[String]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.remember = Some(Box::new(remember)))
    }

    /// Sets what is asked for the policy before each call is judged, so that rules which another program, or the user,
    /// writes meanwhile apply to the next call. It returns `None` if nothing has changed. Call it before the permissions
    /// are cloned.
    pub fn reread(self, reread: impl Fn() -> Option<Policy> + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.reread = Some(Box::new(reread)))
    }

    /// Takes up what has changed in the sources of the policy; it may block for a moment. Calls are judged by the policy
    /// after this. The modes of the agent and of sessions stay.
    pub fn refresh(&self) {
        let Some(policy) = self.0.reread.as_ref().and_then(|reread| reread()) else { return };
        let mut policy = policy.protect(&PROTECTED);
        let mut now = self.0.policy.lock();
        policy.set_mode(now.mode());
        for (effect, rule, origin) in self.0.added.lock().iter() {
            // It was valid when it was added, and the workspace is the same.
            let _ = policy.add(*effect, rule, origin);
        }
        *now = policy;
    }

    /// Forgets the mode and the rules of a session that does not exist any more.
    pub fn forget(&self, session: &str) {
        self.0.sessions.lock().remove(session);
    }

    /// Returns the policy as it is now, with the agent's mode.
    pub fn policy(&self) -> Policy {
        self.0.policy.lock().clone()
    }

    /// Whether a rule of the agent forbids to read the file or folder with this absolute path. A program whose agent
    /// has the file tools gives this to `Workspace::passing_over`, so that searches pass over what may not be read.
    pub fn hides(&self, path: &std::path::Path) -> bool {
        self.0.policy.lock().hides(path)
    }

    /// Adds a rule. `origin` is where it was written, for people.
    ///
    /// # Errors
    /// [`InvalidRule`].
    pub fn add(&self, effect: Effect, rule: &str, origin: &str) -> Result<(), InvalidRule> {
        self.0.policy.lock().add(effect, rule, origin)?;
        self.0.added.lock().push((effect, rule.to_owned(), origin.to_owned()));
        Ok(())
    }

    /// Returns the policy of a session: that of the agent, with the session's own mode and rules.
    pub fn of_session(&self, session: &str) -> Policy {
        let mut policy = self.policy();
        if let Some(own) = self.0.sessions.lock().get(session) {
            policy.set_mode(own.mode.unwrap_or(policy.mode()));
            for (effect, rule, origin) in &own.rules {
                // It was valid when it was added, and the workspace is the same.
                let _ = policy.add(*effect, rule, origin);
            }
        }
        policy
    }

    /// Sets the mode of a session, as long as the agent lives; `None`: that of the agent. Returns the session's mode if
    /// it is another one now.
    pub(crate) fn set_mode(&self, session: &str, mode: Option<Mode>) -> Option<Mode> {
        let of_agent = self.0.policy.lock().mode();
        let mut sessions = self.0.sessions.lock();
        let before = std::mem::replace(&mut sessions.entry(session.to_owned()).or_default().mode, mode);
        let now = mode.unwrap_or(of_agent);
        (before.unwrap_or(of_agent) != now).then_some(now)
    }

    /// Copies the mode and the rules that a session has of its own from the permissions of its previous agent: the mode if
    /// both agents begin in the same mode, and the rules if they also have the same workspace. Returns the session's mode
    /// if it has changed.
    pub(crate) fn take_over(&self, before: &Self, session: &str) -> Option<Mode> {
        if Arc::ptr_eq(&self.0, &before.0) {
            return None;
        }
        let mode_before = before.of_session(session).mode();
        let (policy, policy_before) = (self.policy(), before.policy());
        if policy.mode() == policy_before.mode() {
            let before = before.0.sessions.lock();
            let (mode, rules) =
                before.get(session).map(|own| (own.mode, own.rules.clone())).unwrap_or_default();
            drop(before);
            let mut sessions = self.0.sessions.lock();
            let own = sessions.entry(session.to_owned()).or_default();
            own.mode = mode;
            if policy.workspace() == policy_before.workspace() {
                let new = rules.into_iter().filter(|rule| !own.rules.contains(rule));
                own.rules.extend(new.collect::<Vec<_>>());
            }
        }
        let now = self.of_session(session).mode();
        (now != mode_before).then_some(now)
    }

    /// Adds a rule for a session, as long as the agent lives. `origin` is where it was written, for people.
    ///
    /// # Errors
    /// [`InvalidRule`].
    pub fn add_for(
        &self,
        session: &str,
        effect: Effect,
        rule: &str,
        origin: &str,
    ) -> Result<(), InvalidRule> {
        self.policy().add(effect, rule, origin)?;
        let mut sessions = self.0.sessions.lock();
        let own = sessions.entry(session.to_owned()).or_default();
        own.rules.push((effect, rule.to_owned(), origin.to_owned()));
        Ok(())
    }

    /// Whether a call that needs an approval asks a person.
    pub fn is_attended(&self) -> bool {
        self.0.unattended.is_none()
    }

    pub(crate) fn judge(&self, session: &str, call: &Call<'_>) -> Verdict {
        self.of_session(session).judge(call)
    }

    /// Returns how a person allows what needs these rules, where nobody can be asked.
    pub(crate) fn how_to_allow(&self, rules: &[String]) -> Option<String> {
        let (before, after) = self.0.unattended.as_ref()?;
        Some(rules.iter().map(|rule| format!("{before}{rule}{after}")).collect::<Vec<_>>().join(" "))
    }

    /// Adds the rules of an approval. The warning says what could not be remembered.
    pub(crate) fn allow_always(&self, session: &str, rules: &[String]) -> Option<String> {
        let origin = "an approval";
        let Some(remember) = &self.0.remember else {
            let added = rules.iter().try_for_each(|rule| self.add_for(session, Effect::Allow, rule, origin));
            return added.err().map(|invalid| invalid.to_string());
        };
        let mut trial = self.policy();
        if let Err(invalid) = rules.iter().try_for_each(|rule| trial.add(Effect::Allow, rule, origin)) {
            return Some(invalid.to_string());
        }
        let written = remember(rules);
        // What was written is read back before the next call, and can be taken back in the file.
        if written.is_ok() && self.0.reread.is_some() {
            *self.0.policy.lock() = trial;
            return None;
        }
        for rule in rules {
            // It was valid in the trial.
            let _ = self.add(Effect::Allow, rule, origin);
        }
        written
            .err()
            .map(|problem| format!("the rule applies until the program ends, and was not written: {problem}"))
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.0.policy.lock();
        let mut shown = f.debug_struct("Permissions");
        shown.field("mode", &policy.mode()).field("rules", &policy.rules().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

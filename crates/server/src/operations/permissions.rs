//! Operations on the permissions of a session: its mode, and its rules.
//!
//! Invariants: they change what one session may do, never another one's; a client that may only prompt changes nothing.

use greenroom::SessionHandle;
use greenroom::permissions::{Effect, Mode, Permissions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, CallScope, Operation, Performed, Refused, Route, Verb};

/// Returns the permissions of a session: its mode and its rules.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadPermissions {
    /// The session.
    pub session_id: String,
}

/// A session's permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionPermissions {
    /// The mode, which decides about calls that match no rule. Absent if the agent has no permissions: then every call
    /// of its tools runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether a call that needs an approval asks a person. Otherwise it is denied.
    pub attended: bool,
    /// The rules.
    pub rules: Vec<PermissionRule>,
    /// Why every call is denied, if the permissions could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A rule, and where it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionRule {
    /// The effect on the calls that the rule matches.
    pub effect: Effect,
    /// The rule, such as `bash(git status *)`.
    pub rule: String,
    /// The source of the rule, as text for people.
    pub origin: String,
}

impl SessionPermissions {
    fn of(permissions: Option<&Permissions>, session: &str) -> Self {
        let Some(permissions) = permissions else {
            return Self { mode: None, attended: true, rules: Vec::new(), problem: None };
        };
        let policy = permissions.of_session(session);
        let rules = policy.rules().iter().map(|rule| PermissionRule {
            effect: rule.effect(),
            rule: rule.text().to_owned(),
            origin: rule.origin().to_owned(),
        });
        Self {
            mode: Some(policy.mode()),
            attended: permissions.is_attended(),
            rules: rules.collect(),
            problem: policy.problem().map(str::to_owned),
        }
    }
}

impl Operation for ReadPermissions {
    of_session!(
        "session/permissions",
        Open,
        Route::read("/sessions/{session_id}/permissions"),
        SessionPermissions
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let permissions = scope.session()?.permissions();
        Ok(Answer::Now(SessionPermissions::of(permissions.as_ref(), &self.session_id)))
    }
}

/// Changes the permissions of a session, for its next calls. They last as long as its agent is in memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPermissions {
    /// The session.
    pub session_id: String,
    /// Its mode from now on; without it, the mode stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Rules to add that allow calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Rules to add that make calls ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<String>,
    /// Rules to add that deny calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

impl SetPermissions {
    fn apply(&self, session: &SessionHandle) -> Result<SessionPermissions, Refused> {
        let none = || {
            let text = "the session's agent has no permissions: its tools were chosen when it was created";
            Refused::Parameters(text.to_owned())
        };
        let permissions = session.permissions().ok_or_else(none)?;
        let rules = [(Effect::Allow, &self.allow), (Effect::Ask, &self.ask), (Effect::Deny, &self.deny)];
        let rules = || rules.iter().flat_map(|(effect, rules)| rules.iter().map(move |rule| (*effect, rule)));
        // All of it, or nothing.
        let mut trial = permissions.policy();
        for (effect, rule) in rules() {
            trial.add(effect, rule, "").map_err(|invalid| Refused::Parameters(invalid.to_string()))?;
        }
        for (effect, rule) in rules() {
            let added = permissions.add_for(&self.session_id, effect, rule, "this session");
            added.map_err(|invalid| Refused::Parameters(invalid.to_string()))?;
        }
        if self.mode.is_some() {
            session.set_mode(self.mode);
        }
        Ok(SessionPermissions::of(Some(&permissions), &self.session_id))
    }
}

impl Operation for SetPermissions {
    of_session!(
        "session/set_permissions",
        Open,
        Route::administer(Verb::Put, "/sessions/{session_id}/permissions"),
        SessionPermissions
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let set = self.apply(scope.session()?)?;
        Ok(Answer::Now(set))
    }
}

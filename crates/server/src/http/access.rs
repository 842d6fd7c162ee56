//! Access control: what the bearer of a token may do, and the label to which the bearer is confined.
//!
//! Invariants: tokens are compared in constant time, and are in no error and no debug output; a bearer that is confined
//! to a label reaches only sessions that have the label, and the sub-agents below them, and cannot see any others. A
//! session that it creates has the label before its first input.

use std::sync::Arc;

use axum::http::StatusCode;
use greenroom::internal::check_message;
use greenroom::{Agent, Error, Runtime};

use super::Shared;
use super::answers::Refusal;
use crate::operations::{AGENT, Access, Call, CallScope, Choice, Label, Reach, Right, Route};

/// The shortest token, in characters: 128 bits, if it is hexadecimal.
pub const TOKEN_CHARS_MIN: usize = 32;

/// Why a token cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// It is too short.
    TooShort {
        /// How many characters it has.
        chars: usize,
    },
    /// It holds a blank, a line break or another character that no `Authorization` header can carry.
    NotVisible,
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooShort { chars } => {
                write!(f, "it has {chars} characters and can be guessed; it needs {TOKEN_CHARS_MIN}")
            }
            Self::NotVisible => f.write_str(
                "it must be one line of visible ASCII characters, since no header can carry anything else",
            ),
        }
    }
}

impl std::error::Error for TokenError {}

/// Whether a token can guard a server.
///
/// # Errors
/// It is too short, or cannot be sent in a header.
pub fn check_token(token: &str) -> Result<(), TokenError> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenError::NotVisible);
    }
    if token.len() < TOKEN_CHARS_MIN {
        return Err(TokenError::TooShort { chars: token.len() });
    }
    Ok(())
}

/// A token, and what its bearer may do.
#[derive(Clone)]
pub struct Token {
    /// The text: see [`check_token`].
    pub secret: String,
    /// The right of its bearer.
    pub right: Right,
    /// The label of the sessions to which the bearer is confined; `None` for all sessions.
    pub within: Option<Label>,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { secret: _, right, within } = self;
        f.debug_struct("Token").field("right", right).field("within", within).finish_non_exhaustive()
    }
}

/// The tokens of a server.
pub(super) struct Tokens(Vec<(String, Arc<Bearer>)>);

/// The bearer of a token.
#[derive(Debug)]
pub(super) struct Bearer {
    right: Right,
    pub(super) within: Option<Arc<Label>>,
}

impl Tokens {
    /// # Errors
    /// A token cannot guard a server, or two are the same.
    pub(super) fn new(tokens: Vec<Token>) -> Result<Self, String> {
        let mut known: Vec<(String, Arc<Bearer>)> = Vec::new();
        for Token { secret, right, within } in tokens {
            check_token(&secret).map_err(|error| format!("a token is not used: {error}"))?;
            if known.iter().any(|(other, _)| same(other.as_bytes(), secret.as_bytes())) {
                return Err(
                    "two tokens are equal, so their rights are ambiguous; change one of them".to_owned()
                );
            }
            if right == Right::Observe && within.is_some() {
                let reason = "a token with the right `observe` cannot have a label: metrics are those of the whole server";
                return Err(reason.to_owned());
            }
            known.push((secret, Arc::new(Bearer { right, within: within.map(Arc::new) })));
        }
        Ok(Self(known))
    }

    /// The bearer of this token.
    pub(super) fn bearer(&self, token: &str) -> Option<&Arc<Bearer>> {
        // All are compared, so that the time does not tell which one it is.
        self.0.iter().fold(
            None,
            |found, (known, bearer)| {
                if same(token.as_bytes(), known.as_bytes()) { Some(bearer) } else { found }
            },
        )
    }
}

impl Bearer {
    pub(super) fn new(right: Right, within: Option<Label>) -> Self {
        Self { right, within: within.map(Arc::new) }
    }

    /// The right of the bearer.
    pub(super) fn right(&self) -> Right {
        self.right
    }

    /// Checks the right that a route needs.
    pub(super) fn check(&self, right: Right) -> Result<(), Refusal> {
        if self.right >= right {
            return Ok(());
        }
        let (has, needs) = (self.right.as_str(), right.as_str());
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!("the token has the right `{has}`, and this request needs `{needs}`"),
        ))
    }

    /// Checks that the bearer may ask about the whole server.
    pub(super) fn check_server(&self) -> Result<(), Refusal> {
        if self.within.is_none() {
            return Ok(());
        }
        let reason = "the token is confined to a label, and this request concerns the whole server";
        Err(Refusal::new(StatusCode::FORBIDDEN, reason))
    }
}

impl Shared {
    /// Checks that the bearer reaches what a call names, and opens its session.
    pub(super) async fn admit(
        &self,
        call: &dyn Call,
        route: &Route,
        bearer: &Bearer,
    ) -> Result<CallScope, Refusal> {
        let id = call.session_id();
        if let Some(label) = &bearer.within {
            match id {
                Some(id) if call.creates() == Some(id) => self.claim(id, label, call).await?,
                Some(id) => self.reach(id, label).await?,
                None if route.reach == Reach::Server => bearer.check_server()?,
                None => {}
            }
        }
        let mut scope = CallScope {
            runtime: self.runtime.clone(),
            agent: self.agent_of(id, call.access()).await?,
            has_agent: true,
            session: None,
            runs: self.runs.clone(),
            consumers: self.consumers.clone(),
            within: bearer.within.clone(),
            choice: (!self.agents.is_empty()).then(|| Choice {
                agents: Arc::clone(&self.agents),
                is_permitted: bearer.right >= Right::Administer,
            }),
        };
        if let Some(id) = id {
            scope.open(call.access(), id).await?;
        }
        Ok(scope)
    }

    /// The agent that works on a session.
    async fn agent_of(&self, id: Option<&str>, access: Access) -> Result<Arc<Agent>, Refusal> {
        let Some(id) = id.filter(|_| !self.agents.is_empty()) else { return Ok(Arc::clone(&self.agent)) };
        let name = self.runtime.summary(id).await?.and_then(|session| session.labels.get(AGENT).cloned());
        match name.as_ref().map(|name| self.agents.get(name)) {
            Some(Some(agent)) => Ok(Arc::clone(agent)),
            // It may be read, and be given another agent.
            Some(None) if matches!(access, Access::Open | Access::Create) => {
                let name = name.unwrap_or_default();
                let reason = format!("the session's agent {name:?} is not one of this server's");
                Err(Refusal::new(StatusCode::CONFLICT, reason))
            }
            Some(None) | None => Ok(Arc::clone(&self.agent)),
        }
    }

    /// Checks that a session is within the label.
    pub(super) async fn reach(&self, id: &str, label: &Label) -> Result<(), Error> {
        match self.runtime.has_labels(id, &label.alone()).await? {
            true => Ok(()),
            false => Err(Error::NoSession { session: id.to_owned() }),
        }
    }

    /// As [`Self::reach`], for a session that may be created: a new one gets the label first, if the call opens it. A call
    /// that would be refused creates none.
    async fn claim(&self, id: &str, label: &Label, call: &dyn Call) -> Result<(), Refusal> {
        // One at a time, so that no two bearers claim the same id.
        let _claiming = self.claiming.lock().await;
        let is_known = self.runtime.session(id).await.map(|_| ());
        match is_known {
            Ok(()) => Ok(self.reach(id, label).await?),
            Err(Error::NoSession { .. }) if call.access() != Access::Create => Ok(()),
            Err(Error::NoSession { .. }) => {
                call.check()?;
                if call.is_input() {
                    check_message(&self.runtime, &label.name, &label.value)?;
                }
                let session = self.runtime.join(id, Arc::clone(&self.agent)).await?;
                if session.state().await?.entries > 0 {
                    // Another program was faster.
                    return Ok(self.reach(id, label).await?);
                }
                Ok(session.set_label(&label.name, &label.value).await?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Puts the label on a session that a confined bearer's call has created.
pub(super) async fn label_new(runtime: &Runtime, id: &str, label: &Label) -> Result<(), Error> {
    runtime.session(id).await?.set_label(&label.name, &label.value).await
}

/// Compares in a time that does not depend on where the difference is.
pub(super) fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

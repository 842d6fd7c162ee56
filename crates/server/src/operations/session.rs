//! Operations on a session as a whole.

use std::sync::Arc;

use greenroom::{Agent, Message};
use greenroom_formats::{ImportOptions, import};
use greenroom_kernel::EntryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Access, Answer, Asked, Nothing, Operation, Performed, Refused, begun};

/// The session that was meant.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionNamed {
    /// Its id.
    pub session_id: String,
}

/// Implements what operations with a `session_id` have in common.
macro_rules! of_session {
    ($method:literal, $access:ident, $output:ty) => {
        const METHOD: &'static str = $method;
        const ACCESS: Access = Access::$access;
        type Output = $output;
        type Outcome = Nothing;

        fn session_id(&self) -> Option<&str> {
            Some(&self.session_id)
        }
    };
}

/// Creates or resumes a session: what waits in it begins.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSession {
    /// The session.
    pub session_id: String,
}

impl Operation for StartSession {
    of_session!("session/start", Begins, SessionNamed);

    async fn perform(self, _asked: Asked) -> Performed<Self> {
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Interrupts the current run, and keeps what had come; between runs, the compaction under way is left.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    /// The session.
    pub session_id: String,
    /// The entry of a prompt that was given over this connection: only its run is interrupted, or it leaves the inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
}

impl Abort {
    /// Interrupts whatever runs in the session.
    pub fn current(session_id: impl Into<String>) -> Self {
        Self { session_id: session_id.into(), entry_id: None }
    }
}

impl Operation for Abort {
    of_session!("agent/abort", Looks, SessionNamed);

    async fn perform(self, asked: Asked) -> Performed<Self> {
        let session = asked.runtime.session(&self.session_id).await?;
        match self.entry_id {
            None => session.abort(),
            // One that has ended needs no abort.
            Some(entry) => asked.runs.abort(&self.session_id, entry),
        }
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Withdraws all input that waits.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearInbox {
    /// The session.
    pub session_id: String,
}

/// What was withdrawn.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Withdrawn {
    /// How many inputs.
    pub withdrawn: usize,
}

impl Operation for ClearInbox {
    of_session!("session/clear_inbox", Changes, Withdrawn);

    async fn perform(self, asked: Asked) -> Performed<Self> {
        let withdrawn = asked.runtime.session(&self.session_id).await?.clear_inbox().await?;
        Ok(Answer::Now(Withdrawn { withdrawn }))
    }
}

/// The next prompt goes on from another entry.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchSession {
    /// The session.
    pub session_id: String,
    /// The entry to go on from; `null` for the empty conversation.
    pub entry_id: Option<EntryId>,
    /// Whether a summary of the branch that is left comes along. It is a compaction, with its events; the answer comes when
    /// it has ended, and `agent/abort` ends it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summary: bool,
}

impl Operation for BranchSession {
    of_session!("session/branch", Opens, SessionNamed);

    async fn perform(self, asked: Asked) -> Performed<Self> {
        let Self { session_id, entry_id, summary } = self;
        let session = asked.session()?.clone();
        if !summary {
            session.branch(entry_id).await?;
            return Ok(Answer::Now(SessionNamed { session_id }));
        }
        let branching = begun(async move { session.branch_with_summary(entry_id).await }).await;
        Ok(Answer::Later(Box::pin(async move {
            branching.await?;
            Ok(SessionNamed { session_id })
        })))
    }
}

/// A new session that begins with another one's conversation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// The session whose conversation it begins with.
    pub session_id: String,
    /// The new session's id: one that is not taken.
    pub to: String,
    /// The entry at which it begins; without it, where the session goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
}

impl Operation for ForkSession {
    of_session!("session/fork", Changes, SessionNamed);

    async fn perform(self, asked: Asked) -> Performed<Self> {
        let Self { session_id, to, entry_id } = self;
        // The next request may name the session that this one makes.
        let agent = asked.agent;
        match entry_id {
            Some(at) => asked.runtime.fork_at(&session_id, &to, at, agent).await?,
            None => asked.runtime.fork(&session_id, &to, agent).await?,
        };
        Ok(Answer::Now(SessionNamed { session_id: to }))
    }
}

/// Deletes a session, and erases its bytes, for which the answer waits; what runs in it is interrupted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSession {
    /// The session.
    pub session_id: String,
}

/// A session that is deleted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Deleted {
    /// The session.
    pub session_id: String,
    /// Whether its bytes are on the disk no more. Else they are erased by themselves, as soon as that can be done.
    pub erased: bool,
    /// Why its bytes are still on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Operation for DeleteSession {
    of_session!("session/delete", Changes, Deleted);
    const TAKES_TIME: bool = true;
    const DELETES: bool = true;

    async fn perform(self, asked: Asked) -> Performed<Self> {
        asked.runtime.delete(&self.session_id).await?;
        Ok(Answer::Later(Box::pin(async move {
            // The session is gone, whatever becomes of its bytes: it cannot be deleted once more.
            let reason = asked.runtime.store().reclaim().await.err().map(|error| error.to_string());
            Ok(Deleted { session_id: self.session_id, erased: reason.is_none(), reason })
        })))
    }
}

/// Gives a session a title, for people.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTitle {
    /// The session.
    pub session_id: String,
    /// The title; an empty one takes it away.
    pub title: String,
}

impl Operation for SetTitle {
    of_session!("session/set_title", Changes, SessionNamed);

    async fn perform(self, asked: Asked) -> Performed<Self> {
        asked.runtime.session(&self.session_id).await?.set_title(self.title).await?;
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Gives a session a label, by which it is found.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLabel {
    /// The session.
    pub session_id: String,
    /// The label's name.
    pub name: String,
    /// Its value; `null` takes the label away.
    pub value: Option<String>,
}

impl Operation for SetLabel {
    of_session!("session/set_label", Changes, SessionNamed);

    async fn perform(self, asked: Asked) -> Performed<Self> {
        let session = asked.runtime.session(&self.session_id).await?;
        match self.value {
            Some(value) => session.set_label(self.name, value).await?,
            None => session.remove_label(self.name).await?,
        }
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Takes over a session file of another system, as a new session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportSession {
    /// The new session's id: one that is not taken.
    pub session_id: String,
    /// The file's text; its format is recognised.
    pub text: String,
}

/// What was taken over.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The new session.
    pub session_id: String,
    /// The file's format.
    pub format: String,
    /// How many entries it has.
    pub entries: usize,
    /// How many of them are messages.
    pub messages: u64,
    /// How many lines were left out.
    pub skipped: u64,
    /// What the user should know, a line each.
    pub warnings: Vec<String>,
}

impl Operation for ImportSession {
    of_session!("session/import", Changes, Imported);
    const TAKES_TIME: bool = true;

    async fn perform(self, asked: Asked) -> Performed<Self> {
        let Self { session_id, text } = self;
        Ok(Answer::Later(Box::pin(async move {
            let imported = import(&text, ImportOptions::default())
                .map_err(|error| Refused::Parameters(format!("text: {error}")))?;
            if asked.runtime.summary(&session_id).await?.is_some() {
                return Err(Refused::Parameters(format!("there is a session {session_id} already")));
            }
            // The file's own model, whose window the conversation was held in.
            let path = imported.path();
            let answers = path.iter().rev().filter_map(|entry| entry.kind.as_message());
            let model = answers.filter_map(|message| match &**message {
                Message::Assistant(answer) => Some(answer.model.clone()),
                Message::User(_) | Message::ToolResult(_) => None,
            });
            let model = model.into_iter().next().unwrap_or_else(|| "imported".to_owned());
            let agent = if asked.has_agent { asked.agent } else { Arc::new(Agent::new(model)) };
            let session = asked.runtime.join(&session_id, agent).await?;
            session.import(imported.entries.clone(), imported.leaf).await?;
            Ok(Imported {
                session_id,
                format: imported.format.as_str().to_owned(),
                entries: imported.entries.len(),
                messages: imported.messages,
                skipped: imported.skipped,
                warnings: imported.warnings.clone(),
            })
        })))
    }
}

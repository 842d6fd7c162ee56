//! Operations on a session as a whole.

use std::sync::Arc;

use greenroom::{Agent, Compacted, Message};
use greenroom_formats::{ImportOptions, import};
use greenroom_kernel::EntryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::{Problem, ProblemKind};

use super::{Answer, CallScope, Operation, Performed, Refused, Route, Verb, begun};

/// The session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionNamed {
    /// Its id.
    pub session_id: String,
}

/// Creates or resumes a session, and begins the input that waits in it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSession {
    /// The session.
    pub session_id: String,
}

impl Operation for StartSession {
    of_session!("session/start", Create, Route::prompt(Verb::Post, "/sessions"), SessionNamed);

    async fn perform(self, _scope: CallScope) -> Performed<Self> {
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Interrupts the current run, and keeps the partial answer; between runs, aborts the compaction in progress.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    /// The session.
    pub session_id: String,
    /// The entry of a prompt that was sent over this connection: only its run is interrupted, or it leaves the inbox.
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
    of_session!("agent/abort", Read, Route::prompt(Verb::Post, "/sessions/{session_id}/abort"), SessionNamed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.runtime.session(&self.session_id).await?;
        match self.entry_id {
            None => session.abort(),
            // A run that has ended needs no abort.
            Some(entry) => scope.runs.abort(&self.session_id, entry),
        }
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Withdraws all input that waits, or one of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearInbox {
    /// The session.
    pub session_id: String,
    /// Only the input with this entry. Input that is no longer waiting is not withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
}

/// The number of withdrawn inputs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Withdrawn {
    /// The number of inputs.
    pub withdrawn: usize,
}

impl Operation for ClearInbox {
    of_session!(
        "session/clear_inbox",
        Modify,
        Route::prompt(Verb::Delete, "/sessions/{session_id}/inbox"),
        Withdrawn
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.runtime.session(&self.session_id).await?;
        let withdrawn = match self.entry_id {
            None => session.clear_inbox().await?,
            Some(entry) => usize::from(session.withdraw(entry).await?),
        };
        Ok(Answer::Now(Withdrawn { withdrawn }))
    }
}

/// Moves the conversation to another entry, from which the next prompt continues.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["session_id", "entry_id"]))]
pub struct BranchSession {
    /// The session.
    pub session_id: String,
    /// The entry to continue from; `null` for the empty conversation. It must be given.
    #[serde(deserialize_with = "Option::deserialize")]
    pub entry_id: Option<EntryId>,
    /// Whether to add a summary of the branch that is left. This is a compaction, with its events; the answer comes
    /// when it has ended, and `agent/abort` aborts it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summary: bool,
}

impl Operation for BranchSession {
    of_session!(
        "session/branch",
        Open,
        Route::prompt(Verb::Post, "/sessions/{session_id}/branch"),
        SessionNamed
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let Self { session_id, entry_id, summary } = self;
        let session = scope.session()?.clone();
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

/// Creates a session that begins with another session's conversation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// The session to copy from.
    pub session_id: String,
    /// The new session's id, which must not exist yet.
    pub to: String,
    /// The last entry to copy; by default the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
    /// Continues with this goal and a summary of the conversation, which attends to the goal, instead of the whole
    /// conversation. Not together with `entry_id`. This is a compaction of the new session, with its events; the answer
    /// comes when it has ended, and `agent/abort` aborts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
}

/// A copied session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Forked {
    /// The new session.
    pub session_id: String,
    /// How the conversation was summarised, with a `goal`. If nothing was installed, the new session has the whole
    /// conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacted: Option<Compacted>,
}

impl Operation for ForkSession {
    of_session!("session/fork", Modify, Route::prompt(Verb::Post, "/sessions/{session_id}/fork"), Forked);

    fn creates(&self) -> Option<&str> {
        Some(&self.to)
    }

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let Self { session_id, to, entry_id, goal } = self;
        // The next request may name the session that this one creates.
        let CallScope { agent, runtime, .. } = scope;
        match (entry_id, goal) {
            (Some(_), Some(_)) => {
                return Err(Refused::Parameters("`entry_id` and `goal` exclude each other".to_owned()));
            }
            (None, Some(goal)) => {
                return Ok(Answer::Later(Box::pin(async move {
                    let continued = runtime.continue_in(&session_id, &to, &goal, agent).await?;
                    Ok(Forked { session_id: to, compacted: Some(continued.compacted) })
                })));
            }
            (Some(at), None) => runtime.fork_at(&session_id, &to, at, agent).await?,
            (None, None) => runtime.fork(&session_id, &to, agent).await?,
        };
        Ok(Answer::Now(Forked { session_id: to, compacted: None }))
    }
}

/// Deletes a session and erases its bytes, which the answer waits for. Its run is interrupted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSession {
    /// The session.
    pub session_id: String,
}

/// A deleted session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Deleted {
    /// The session.
    pub session_id: String,
    /// Whether its bytes are erased from the disk. If not, the store erases them as soon as it can.
    pub erased: bool,
    /// Why its bytes are still on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Operation for DeleteSession {
    of_session!("session/delete", Modify, Route::administer(Verb::Delete, "/sessions/{session_id}"), Deleted);
    const TAKES_TIME: bool = true;
    const DELETES: bool = true;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        scope.runtime.delete(&self.session_id).await?;
        Ok(Answer::Later(Box::pin(async move {
            // The session is gone even if its bytes are not: it cannot be deleted again.
            let reason = match scope.runtime.store() {
                Some(store) => store.reclaim().await.err().map(|error| error.to_string()),
                None => None,
            };
            Ok(Deleted { session_id: self.session_id, erased: reason.is_none(), reason })
        })))
    }
}

/// Sets a session's title, for people.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTitle {
    /// The session.
    pub session_id: String,
    /// The title; an empty one removes it.
    pub title: String,
}

impl Operation for SetTitle {
    of_session!(
        "session/set_title",
        Modify,
        Route::prompt(Verb::Put, "/sessions/{session_id}/title"),
        SessionNamed
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        scope.runtime.session(&self.session_id).await?.set_title(self.title).await?;
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Sets a label of a session, by which it can be found.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLabel {
    /// The session.
    pub session_id: String,
    /// The label's name.
    pub name: String,
    /// The label's value; `null` removes the label.
    pub value: Option<String>,
}

/// The label that names the session's agent, where agents have names.
pub const AGENT: &str = "agent";
/// The label with the folder in which a session was started: commands in this folder continue its newest session.
pub const FOLDER: &str = "folder";
/// The label of a session that one `run` made, and no conversation has continued.
pub const ONE_SHOT: &str = "one_shot";

impl SetLabel {
    /// Refuses labels that say more than others: the one of the client's token, the one of the session's agent, and those by
    /// which local commands find sessions.
    fn check(&self, scope: &CallScope) -> Result<(), Refused> {
        let forbid =
            |problem: String| Err(Refused::Problem(Box::new(Problem::new(ProblemKind::Forbidden, problem))));
        if scope.within.is_some() && [FOLDER, ONE_SHOT].contains(&&*self.name) {
            return forbid(format!(
                "by the label {} people at the server's own machine find their sessions; a token that is confined to a \
                 label cannot set it",
                self.name
            ));
        }
        if scope.within.as_ref().is_some_and(|label| label.name == self.name) {
            return forbid(format!("the label {} belongs to your token, and stays as it is", self.name));
        }
        match (&scope.choice, &self.value) {
            (Some(choice), _) if self.name == AGENT && !choice.is_permitted => forbid(
                "the label agent chooses the session's agent, which needs the right `administer`".to_owned(),
            ),
            (Some(choice), Some(agent)) if self.name == AGENT && !choice.agents.contains_key(agent) => {
                let known: Vec<&str> = choice.agents.keys().map(String::as_str).collect();
                Err(Refused::Parameters(format!(
                    "there is no agent {agent:?}; there are {}",
                    known.join(", ")
                )))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }
}

impl Operation for SetLabel {
    of_session!(
        "session/set_label",
        Modify,
        Route::prompt(Verb::Put, "/sessions/{session_id}/labels/{name}"),
        SessionNamed
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        self.check(&scope)?;
        let session = scope.runtime.session(&self.session_id).await?;
        match self.value {
            Some(value) => session.set_label(self.name, value).await?,
            None => session.remove_label(self.name).await?,
        }
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// Imports a session file of another system as a new session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportSession {
    /// The new session's id, which must not exist yet.
    pub session_id: String,
    /// The file's text; its format is detected.
    pub text: String,
}

/// The imported session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The new session.
    pub session_id: String,
    /// The file's format.
    pub format: String,
    /// The number of entries.
    pub entries: usize,
    /// The number of messages.
    pub messages: u64,
    /// The number of omitted lines.
    pub skipped: u64,
    /// Notes for the user, a line each.
    pub warnings: Vec<String>,
}

impl Operation for ImportSession {
    of_session!(
        "session/import",
        Modify,
        Route::administer(Verb::Post, "/sessions/{session_id}/import"),
        Imported
    );

    fn creates(&self) -> Option<&str> {
        Some(&self.session_id)
    }

    const TAKES_TIME: bool = true;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let Self { session_id, text } = self;
        Ok(Answer::Later(Box::pin(async move {
            let imported = import(&text, ImportOptions::default())
                .map_err(|error| Refused::Parameters(format!("text: {error}")))?;
            if scope.runtime.summary(&session_id).await?.is_some() {
                return Err(Refused::Parameters(format!(
                    "session {session_id} already exists; choose another id"
                )));
            }
            // The file's own model, in whose window the conversation was held.
            let path = imported.path();
            let answers = path.iter().rev().filter_map(|entry| entry.kind.as_message());
            let mut models = answers.filter_map(|message| match &**message {
                Message::Assistant(answer) => Some(answer.model.clone()),
                Message::User(_) | Message::ToolResult(_) => None,
            });
            let model =
                models.find(|model| !model.trim().is_empty()).unwrap_or_else(|| "imported".to_owned());
            let agent = if scope.has_agent { scope.agent } else { Arc::new(Agent::new(model)) };
            let session = scope.runtime.join(&session_id, agent).await?;
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

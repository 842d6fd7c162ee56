//! Going back: the conversation, the files, or both.

use greenroom::files::{FileAction, FileRewind, Rewind, Rewound};
use greenroom::permissions::Mode;
use greenroom_kernel::EntryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, CallScope, Operation, Performed, Refused, Route, Verb};

/// Takes back the newest turn, or goes back to an entry: the conversation, the files that the session's tools
/// have changed since, or both. Only while the session is idle, unless `abort` is set. Files that cannot be brought back are left as
/// they are; the answer names them. In the session's read-only mode no file goes back.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewindSession {
    /// The session.
    pub session_id: String,
    /// The entry to go back to: the moment when it was the newest. By default, the newest turn is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
    /// The parts to restore.
    #[serde(default)]
    pub scope: RewindScope,
    /// Whether files that somebody else changed since are overwritten, too. Their present content is kept
    /// first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
    /// Whether to change nothing, and answer what would be done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Whether to abort a run or compaction in progress first, and to wait for its end; also with `dry_run`. Queued input
    /// begins afterwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
}

/// The parts that a rewind restores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewindScope {
    /// The conversation and the files.
    #[default]
    Both,
    /// The conversation alone.
    Conversation,
    /// The files alone.
    Files,
}

/// The result of a rewind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionRewound {
    /// The session.
    pub session_id: String,
    /// The prompt that was taken back; absent if an entry was given, or there was no prompt to take back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<EntryId>,
    /// The entry to which the session went back; absent for the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<EntryId>,
    /// The last entry of the conversation before: going back to it takes this back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<EntryId>,
    /// Whether the conversation went back.
    pub conversation: bool,
    /// The files that are not as they were then, and what was done to each.
    pub files: Vec<RewoundFile>,
    /// Whether files are kept at all.
    pub keeps_files: bool,
}

/// A file of a rewind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewoundFile {
    /// The folder of the workspace.
    pub root: String,
    /// The file, relative to it.
    pub path: String,
    /// The action on the file.
    pub action: RewoundAction,
    /// Why it was left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether somebody else's change was overwritten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwritten: bool,
}

/// The action on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewoundAction {
    /// Its old content was brought back.
    Restored,
    /// It did not exist, and was removed.
    Removed,
    /// It was left as it is: somebody else changed it, or a command that was interrupted.
    ChangedByOthers,
    /// It was left as it is: its old content was not kept.
    NotKept,
    /// It was left as it is: it cannot be changed.
    Failed,
}

impl RewoundAction {
    /// Whether the file is, or would be, as it was.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Restored | Self::Removed)
    }
}

impl From<FileRewind> for RewoundFile {
    fn from(file: FileRewind) -> Self {
        let (action, reason) = match file.action {
            FileAction::Restore => (RewoundAction::Restored, None),
            FileAction::Remove => (RewoundAction::Removed, None),
            FileAction::ChangedByOthers => (RewoundAction::ChangedByOthers, None),
            FileAction::NotKept { why } => (RewoundAction::NotKept, Some(why.as_str().to_owned())),
            FileAction::Failed { reason } => (RewoundAction::Failed, Some(reason)),
            other => (RewoundAction::Failed, Some(format!("{other:?}"))),
        };
        let root = file.root.display().to_string();
        Self { root, path: file.path, action, reason, overwritten: file.overwrites }
    }
}

impl RewindSession {
    fn wanted(&self) -> Rewind {
        let mut rewind = self.entry_id.map_or_else(Rewind::last_turn, Rewind::to);
        rewind = match self.scope {
            RewindScope::Both => rewind,
            RewindScope::Conversation => rewind.conversation_only(),
            RewindScope::Files => rewind.files_only(),
        };
        if self.overwrite {
            rewind = rewind.overwriting();
        }
        if self.abort {
            rewind = rewind.aborting();
        }
        if self.dry_run { rewind.dry_run() } else { rewind }
    }
}

impl Operation for RewindSession {
    of_session!(
        "session/rewind",
        Open,
        Route::prompt(Verb::Post, "/sessions/{session_id}/rewind"),
        SessionRewound
    );
    const TAKES_TIME: bool = true;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.session()?.clone();
        let mode = session.permissions().map(|permissions| permissions.of_session(&self.session_id).mode());
        if mode == Some(Mode::ReadOnly) && self.scope != RewindScope::Conversation && !self.dry_run {
            let planned = session.rewind(self.wanted().dry_run()).await.map_err(Refused::from)?;
            let mut files = planned.files.into_iter().map(RewoundFile::from);
            if files.any(|file| file.action.is_done()) {
                let text = "the session is in the read-only mode, in which no file is changed: set another mode, or take \
                            back the conversation alone (`scope` is `conversation`)";
                return Err(Refused::Parameters(text.to_owned()));
            }
        }
        let rewinding = super::begun({
            let wanted = self.wanted();
            async move { session.rewind(wanted).await }
        });
        let rewinding = rewinding.await;
        Ok(Answer::Later(Box::pin(async move {
            let Rewound { prompt, to, from, conversation, files, keeps_files, .. } =
                rewinding.await.map_err(Refused::from)?;
            let files = files.into_iter().map(RewoundFile::from).collect();
            let session_id = self.session_id;
            Ok(SessionRewound { session_id, prompt_id: prompt, to, from, conversation, files, keeps_files })
        })))
    }
}

//! All requests of the chat to the runtime, through one protocol, whether the runtime is in this process or
//! in another one.
//!
//! Invariants: inputs are sent in the order in which they were typed; an interrupt is sent after them and
//! waits for none of them.

use std::sync::atomic::{AtomicU64, Ordering};

use greenroom::{
    Compacted, CompactionDetails, CompactionRecord, EntryId, Event, InProgress, ModelSettings,
    SessionSummary, State,
};
use greenroom_kernel::usage::ContextUsage;
use greenroom_server::operations::{
    Abort, AnswerQuestion, BranchSession, ClearInbox, CompactSession, ContextParts, ExportFormat,
    ExportSession, FindSession, FollowUp, ForkSession, Forked, GetSession, GetState, ImageData,
    ListCompactions, ListModels, ListPins, ListSessions, ListTools, ListWaiting, ModelsListed, Nothing,
    Operation, PinEntry, Pinned, PlanSession, Planned, PromptSession, ReadPermissions, Replay, ResumeSession,
    RewindScope, RewindSession, Said, Sent, SessionContext, SessionInProgress, SessionPage,
    SessionPermissions, SessionRewound, SessionTree, SetPermissions, SetTitle, ShowCompaction, ShowSession,
    Shown, Speech, StartSession, Steer, ToolsListed, Tree, UndoCompaction, WaitingInput,
};
use greenroom_server::{Client, ClientError, Events};
use greenroom_terminal::time;

use crate::commands::GoingBack;

/// A connection to the session of the chat. Each request fails with the server's refusal, or if the connection is
/// lost.
#[derive(Debug, Clone)]
pub struct Backend {
    client: Client,
    session_id: String,
}

/// A result with the client's error.
type Result<T> = std::result::Result<T, ClientError>;

/// The options of a compaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HowToCompact {
    /// A topic for the summary to focus on.
    pub focus: Option<String>,
    /// How much of the newest conversation to keep, in tokens.
    pub keep_recent: Option<u64>,
    /// Compact even if all messages are recent enough to keep.
    pub force: bool,
}

/// Returns a new idempotency key for a prompt.
pub fn new_key() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    format!("run-{}-{}-{}", std::process::id(), time::now_ms(), MADE.fetch_add(1, Ordering::Relaxed))
}

impl Backend {
    /// Opens a session and subscribes to its events.
    pub async fn open(client: Client, session_id: &str) -> Result<(Self, Events)> {
        let events = client.events_of(session_id);
        let session_id = session_id.to_owned();
        client.call(StartSession { session_id: session_id.clone() }).await?;
        Ok((Self { client, session_id }, events))
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.session_id
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a prompt that starts a run. Returns its entry once it is durable; the run continues without this
    /// call.
    pub async fn prompt(
        &self,
        text: String,
        images: Vec<ImageData>,
        settings: ModelSettings,
    ) -> Result<Sent> {
        let prompt = PromptSession { images, settings, ..PromptSession::new(&self.session_id, text) };
        let work = self.client.work(prompt).await?;
        // Events report how the run ends.
        Ok(Sent { entry_id: work.accepted.entry_id.unwrap_or(EntryId(0)), waits: false })
    }

    /// Sends input that joins the run in progress.
    pub async fn steer(&self, text: String, images: Vec<ImageData>) -> Result<Sent> {
        self.client.call(Steer { images, ..Steer::new(&self.session_id, text) }).await
    }

    /// Sends input for after the run in progress.
    pub async fn follow_up(&self, text: String, images: Vec<ImageData>) -> Result<Sent> {
        self.client.call(FollowUp { images, ..FollowUp::new(&self.session_id, text) }).await
    }

    /// Aborts the work in progress and withdraws queued input; withdraws first, so none of the input starts.
    pub async fn interrupt(&self) -> Result<()> {
        let session_id = self.session_id.clone();
        let clear = self.client.call(ClearInbox { session_id: session_id.clone(), entry_id: None });
        let abort = self.client.call(Abort::current(session_id));
        let (cleared, aborted) = tokio::join!(biased; clear, abort);
        cleared?;
        aborted?;
        Ok(())
    }

    /// Returns the queued input.
    pub async fn waiting(&self) -> Result<Vec<WaitingInput>> {
        Ok(self.call(ListWaiting { session_id: self.session_id.clone() }).await?.inputs)
    }

    /// Withdraws queued input, all of it or the one with this entry, and returns how many inputs that was.
    pub async fn withdraw(&self, entry_id: Option<EntryId>) -> Result<usize> {
        Ok(self.call(ClearInbox { session_id: self.session_id.clone(), entry_id }).await?.withdrawn)
    }

    /// Continues the prompt without a complete answer, and starts the input that was held back.
    pub async fn resume(&self, settings: ModelSettings) -> Result<()> {
        let session_id = self.session_id.clone();
        let work = self.client.work(ResumeSession { session_id, settings, output_schema: None }).await?;
        let _ = work.accepted;
        Ok(())
    }

    /// Compacts the context, and returns the result.
    pub async fn compact(&self, how: HowToCompact) -> Result<Compacted> {
        let HowToCompact { focus, keep_recent, force } = how;
        let session_id = self.session_id.clone();
        let work = self.client.work(CompactSession { session_id, keep_recent, focus, force }).await?;
        Ok(work.outcome().await?.compacted)
    }

    /// Returns what a compaction would do now.
    pub async fn plan(&self) -> Result<Planned> {
        self.call(PlanSession { session_id: self.session_id.clone(), keep_recent: None }).await
    }

    /// Undoes the newest compaction, or all back to the one with this number, and returns the resulting context.
    pub async fn undo_compaction(&self, number: Option<u64>) -> Result<ContextUsage> {
        let session_id = self.session_id.clone();
        let back_to = match number {
            None => None,
            Some(number) => Some(self.compaction(Some(number)).await?.record.entry_id),
        };
        Ok(self.call(UndoCompaction { session_id, back_to }).await?.context)
    }

    /// Returns what each compaction did.
    pub async fn compactions(&self) -> Result<Vec<CompactionRecord>> {
        Ok(self.call(ListCompactions { session_id: self.session_id.clone() }).await?.compactions)
    }

    /// Returns all about the compaction with this number, by default the newest one.
    pub async fn compaction(&self, number: Option<u64>) -> Result<CompactionDetails> {
        self.call(ShowCompaction { session_id: self.session_id.clone(), number }).await
    }

    /// Returns the user's last prompt, without what joined a run in progress.
    pub async fn last_prompt(&self) -> Result<Option<EntryId>> {
        let said = self.show().await?.conversation;
        let is_prompt = |said: &&Said| matches!(said.speech, Speech::User { is_steer: false, .. });
        Ok(said.iter().rev().find(is_prompt).map(|said| said.entry_id))
    }

    /// Pins or unpins a message, and returns the pinned messages.
    pub async fn pin(&self, entry_id: EntryId, pinned: bool) -> Result<Vec<Pinned>> {
        let session_id = self.session_id.clone();
        Ok(self.call(PinEntry { session_id, entry_id, pinned }).await?.pins)
    }

    /// Returns the pinned messages.
    pub async fn pins(&self) -> Result<Vec<Pinned>> {
        Ok(self.call(ListPins { session_id: self.session_id.clone() }).await?.pins)
    }

    /// Returns the session's state.
    pub async fn state(&self) -> Result<State> {
        self.call(GetState { session_id: self.session_id.clone() }).await
    }

    /// Returns what the list of sessions says of it; `None` if it has no messages.
    pub async fn summary(&self) -> Result<Option<SessionSummary>> {
        let found = self.client.find(GetSession { session_id: self.session_id.clone() }).await?;
        Ok(found.map(|found| found.session))
    }

    /// Returns the work in progress that the log does not contain yet.
    pub async fn in_progress(&self) -> Result<Option<InProgress>> {
        // A session without a log has none.
        let found = self.client.find(SessionInProgress { session_id: self.session_id.clone() }).await?;
        Ok(found.filter(|found| !found.events.is_empty()))
    }

    /// Returns the newest durable events, at most `count`.
    pub async fn newest(&self, entries: u64, count: u64) -> Result<Vec<Event>> {
        self.since(entries.saturating_sub(count)).await
    }

    /// Returns the durable events from `from_seq` on.
    pub async fn since(&self, from_seq: u64) -> Result<Vec<Event>> {
        let (mut events, mut next) = (Vec::new(), Some(from_seq));
        while let Some(from_seq) = next {
            let session_id = self.session_id.clone();
            let page = self.call(Replay { session_id, from_seq, limit: 1_000 }).await?;
            events.extend(page.events);
            next = page.next;
        }
        Ok(events)
    }

    /// Returns the newest part of the conversation.
    pub async fn show(&self) -> Result<Shown> {
        self.call(ShowSession { session_id: self.session_id.clone(), after: None }).await
    }

    /// Returns the parts of the context, with their sizes.
    pub async fn context(&self) -> Result<ContextParts> {
        self.call(SessionContext { session_id: self.session_id.clone() }).await
    }

    /// Returns the session's branches.
    pub async fn tree(&self) -> Result<Tree> {
        self.call(SessionTree { session_id: self.session_id.clone() }).await
    }

    /// Returns the agent's tools.
    pub async fn tools(&self) -> Result<ToolsListed> {
        self.call(ListTools {}).await
    }

    /// Continues the conversation after an earlier entry, or from the beginning (`None`).
    pub async fn branch(&self, entry_id: Option<EntryId>, summary: bool) -> Result<()> {
        let session_id = self.session_id.clone();
        self.call(BranchSession { session_id, entry_id, summary }).await?;
        Ok(())
    }

    /// Takes back the newest turn, or goes back to an entry; with `dry_run`, says what that would do.
    pub async fn rewind(
        &self,
        entry_id: Option<EntryId>,
        scope: RewindScope,
        back: GoingBack,
        dry_run: bool,
    ) -> Result<SessionRewound> {
        let GoingBack { overwrite, abort, .. } = back;
        let session_id = self.session_id.clone();
        self.call(RewindSession { session_id, entry_id, scope, overwrite, dry_run, abort }).await
    }

    /// Copies the session under a new id; with a goal, with a summary of it instead of the whole.
    pub async fn fork(&self, to: String, goal: Option<String>) -> Result<Forked> {
        self.call(ForkSession { session_id: self.session_id.clone(), to, entry_id: None, goal }).await
    }

    /// Exports the session as the text of a file.
    pub async fn export(&self, format: ExportFormat) -> Result<String> {
        Ok(self.call(ExportSession { session_id: self.session_id.clone(), format }).await?.text)
    }

    /// Sets the session's title.
    pub async fn set_title(&self, title: String) -> Result<()> {
        self.call(SetTitle { session_id: self.session_id.clone(), title }).await?;
        Ok(())
    }

    /// Returns a page of sessions.
    pub async fn sessions(&self, list: ListSessions) -> Result<SessionPage> {
        self.call(list).await
    }

    /// Returns the id of the session that has this id, or alone begins with it.
    pub async fn find(&self, prefix: String) -> Result<String> {
        Ok(self.call(FindSession { prefix }).await?.session_id)
    }

    /// Returns the provider's models.
    pub async fn models(&self) -> Result<ModelsListed> {
        self.call(ListModels {}).await
    }

    /// Returns what the agent may do without asking.
    pub async fn permissions(&self) -> Result<SessionPermissions> {
        self.call(ReadPermissions { session_id: self.session_id.clone() }).await
    }

    /// Changes the mode, and adds rules.
    pub async fn set_permissions(&self, change: SetPermissions) -> Result<SessionPermissions> {
        self.call(SetPermissions { session_id: self.session_id.clone(), ..change }).await
    }

    /// Answers a question.
    pub async fn answer(
        &self,
        question: EntryId,
        value: serde_json::Value,
        by: Option<String>,
    ) -> Result<()> {
        let session_id = self.session_id.clone();
        self.call(AnswerQuestion { session_id, question_id: question, value, by }).await?;
        Ok(())
    }

    async fn call<O>(&self, operation: O) -> Result<O::Output>
    where
        O: Operation<Outcome = Nothing>,
    {
        self.client.call(operation).await
    }
}

//! All that the chat asks of the runtime, through the one protocol: whether the runtime is in this process or in another.
//!
//! Invariants: what is said goes out in the order in which it was typed; an interrupt is sent after all of it, and waits for
//! none of it.

use greenroom::{Compacted, EntryId, Event, InProgress, ModelSettings, State};
use greenroom_kernel::usage::ContextUsage;
use greenroom_server::operations::{
    Abort, AnswerQuestion, BranchSession, ClearInbox, CompactSession, ContextParts, ExportSession, FollowUp,
    ForkSession, ImageData, ListModels, ListSessions, ListTools, ListWaiting, ModelsListed, Nothing,
    Operation, PlanSession, Planned, PromptSession, Replay, ResumeSession, Sent, SessionContext,
    SessionInProgress, SessionPage, SessionState, SessionTree, SetTitle, ShowSession, Shown, StartSession,
    Steer, ToolsListed, Tree, UndoCompaction, WaitingInput,
};
use greenroom_server::{Client, ClientError, Events, ProblemKind};

/// The session that is talked with.
#[derive(Debug, Clone)]
pub struct Backend {
    client: Client,
    session_id: String,
}

/// What went wrong.
type Result<T> = std::result::Result<T, ClientError>;

/// How a compaction is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HowToCompact {
    /// What the summary should dwell on.
    pub focus: Option<String>,
    /// How much of the newest conversation to keep, in tokens.
    pub keep_recent: Option<u64>,
    /// Whether to compact even where everything is recent enough to keep.
    pub force: bool,
}

impl Backend {
    /// Opens a session, and listens to it from then on.
    pub async fn open(client: Client, session_id: &str) -> Result<(Self, Events)> {
        let events = client.events_of(session_id);
        let session_id = session_id.to_owned();
        client.call(StartSession { session_id: session_id.clone() }).await?;
        Ok((Self { client, session_id }, events))
    }

    /// The session.
    pub fn id(&self) -> &str {
        &self.session_id
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Says something that begins a run. Gives its entry when it is durable; the run goes on by itself.
    pub async fn prompt(
        &self,
        text: String,
        images: Vec<ImageData>,
        settings: ModelSettings,
    ) -> Result<Sent> {
        let prompt = PromptSession { images, settings, ..PromptSession::new(&self.session_id, text) };
        let work = self.client.work(prompt).await?;
        // How it ends is told by its events.
        Ok(Sent { entry_id: work.accepted.entry_id.unwrap_or(EntryId(0)), waits: false })
    }

    /// Says something into the run in progress.
    pub async fn steer(&self, text: String, images: Vec<ImageData>) -> Result<Sent> {
        self.client.call(Steer { images, ..Steer::new(&self.session_id, text) }).await
    }

    /// Says something after the run in progress.
    pub async fn follow_up(&self, text: String, images: Vec<ImageData>) -> Result<Sent> {
        self.client.call(FollowUp { images, ..FollowUp::new(&self.session_id, text) }).await
    }

    /// Stops what is under way, and takes back what waits: first that, so that nothing of it begins.
    pub async fn interrupt(&self) -> Result<()> {
        let session_id = self.session_id.clone();
        let clear = self.client.call(ClearInbox { session_id: session_id.clone() });
        let abort = self.client.call(Abort::current(session_id));
        let (cleared, aborted) = tokio::join!(biased; clear, abort);
        cleared?;
        aborted?;
        Ok(())
    }

    /// What waits for its turn.
    pub async fn waiting(&self) -> Result<Vec<WaitingInput>> {
        Ok(self.call(ListWaiting { session_id: self.session_id.clone() }).await?.inputs)
    }

    /// Takes back all that waits. Gives how much that was.
    pub async fn withdraw(&self) -> Result<usize> {
        Ok(self.call(ClearInbox { session_id: self.session_id.clone() }).await?.withdrawn)
    }

    /// Goes on with the prompt that has no complete answer, and with what waits from before.
    pub async fn resume(&self, settings: ModelSettings) -> Result<()> {
        let session_id = self.session_id.clone();
        let work = self.client.work(ResumeSession { session_id, settings, output_schema: None }).await?;
        let _ = work.accepted;
        Ok(())
    }

    /// Compacts, and gives how it ended.
    pub async fn compact(&self, how: HowToCompact) -> Result<Compacted> {
        let HowToCompact { focus, keep_recent, force } = how;
        let session_id = self.session_id.clone();
        let work = self.client.work(CompactSession { session_id, keep_recent, focus, force }).await?;
        Ok(work.outcome().await?.compacted)
    }

    /// What a compaction would do now.
    pub async fn plan(&self) -> Result<Planned> {
        self.call(PlanSession { session_id: self.session_id.clone(), keep_recent: None }).await
    }

    /// Makes the newest compaction no longer count. Gives the context as it is then.
    pub async fn undo_compaction(&self) -> Result<ContextUsage> {
        Ok(self.call(UndoCompaction { session_id: self.session_id.clone() }).await?.context)
    }

    /// How the session stands.
    pub async fn state(&self) -> Result<State> {
        self.call(SessionState { session_id: self.session_id.clone() }).await
    }

    /// What goes on that the log does not say yet.
    pub async fn in_progress(&self) -> Result<Option<InProgress>> {
        match self.call(SessionInProgress { session_id: self.session_id.clone() }).await {
            Ok(found) => Ok(Some(found).filter(|found| !found.events.is_empty())),
            // Nothing was said in it yet.
            Err(error) if error.kind() == Some(ProblemKind::NoSession) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The newest durable events: at most so many.
    pub async fn newest(&self, entries: u64, count: u64) -> Result<Vec<Event>> {
        self.since(entries.saturating_sub(count)).await
    }

    /// The durable events from one on.
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

    /// The newest part of the conversation.
    pub async fn show(&self) -> Result<Shown> {
        self.call(ShowSession { session_id: self.session_id.clone(), after: None }).await
    }

    /// What fills the window.
    pub async fn context(&self) -> Result<ContextParts> {
        self.call(SessionContext { session_id: self.session_id.clone() }).await
    }

    /// The branches.
    pub async fn tree(&self) -> Result<Tree> {
        self.call(SessionTree { session_id: self.session_id.clone() }).await
    }

    /// The agent's tools.
    pub async fn tools(&self) -> Result<ToolsListed> {
        self.call(ListTools {}).await
    }

    /// Goes on from an earlier entry.
    pub async fn branch(&self, entry_id: EntryId, summary: bool) -> Result<()> {
        let (session_id, entry_id) = (self.session_id.clone(), Some(entry_id));
        self.call(BranchSession { session_id, entry_id, summary }).await?;
        Ok(())
    }

    /// Copies the session under a new id.
    pub async fn fork(&self, to: String) -> Result<()> {
        self.call(ForkSession { session_id: self.session_id.clone(), to, entry_id: None }).await?;
        Ok(())
    }

    /// The session as a file's text.
    pub async fn export(&self) -> Result<String> {
        Ok(self.call(ExportSession { session_id: self.session_id.clone() }).await?.text)
    }

    /// Names the session.
    pub async fn set_title(&self, title: String) -> Result<()> {
        self.call(SetTitle { session_id: self.session_id.clone(), title }).await?;
        Ok(())
    }

    /// A page of sessions.
    pub async fn sessions(&self, list: ListSessions) -> Result<SessionPage> {
        self.call(list).await
    }

    /// The provider's models.
    pub async fn models(&self) -> Result<ModelsListed> {
        self.call(ListModels {}).await
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

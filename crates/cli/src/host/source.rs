//! The source of stored data for commands that show it: the host that has the store, or else the store
//! itself.
//!
//! Invariants: the data is the same in both cases, so each command has one way of showing it; nothing is
//! changed, created or woken.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use greenroom::internal::{list_stored, recall_stored};
use greenroom::{LoggedWork, Order, PendingQuestion, Recalled, SessionSummary, State, Status};
use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_server::operations::{
    EntryPage, FindSession, ListLive, ListQuestions, ListSessions, LoggedEntry, ReadEntries, RecallEntries,
    StoreLosses, status_of,
};
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_store::StoreError;
use greenroom_terminal::time;

use super::link::ATTEMPTS;
use super::stored::{self, Looked};
use crate::args::{Global, RecallArgs};
use crate::error::{self, usage};
use crate::{agent, host};

/// How many sessions are requested at once.
const PAGE: usize = 1_000;

/// The source of stored data.
pub(crate) enum Source {
    /// The host that has the store.
    Host(Client),
    /// The store, even if a program that cannot be asked uses it.
    Store(Looked),
}

/// All sessions, without their logs.
#[derive(Default)]
pub(crate) struct Listed {
    /// The sessions, newest first.
    pub(crate) sessions: Vec<KnownSession>,
    /// The exit code of a command that shows all of them.
    pub(crate) code: u8,
}

/// A session and its state.
#[derive(Debug, Clone)]
pub(crate) struct KnownSession {
    pub(crate) summary: SessionSummary,
    /// Whether a process may be working on it.
    pub(crate) used: Use,
}

impl KnownSession {
    /// Returns its activity, as far as known.
    pub(crate) fn state(&self) -> &'static str {
        state(&self.summary, self.used)
    }

    /// Whether its work is unfinished. A sub-agent's caller continues without it.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.summary.is_unfinished && self.summary.parent.is_none()
    }
}

/// Returns a session's activity, as far as known.
pub(crate) fn state(summary: &SessionSummary, used: Use) -> &'static str {
    if summary.work == LoggedWork::Open { used.open() } else { summary.work.as_str() }
}

/// Whether a process may be working on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// None: open work in its log was interrupted.
    Nobody,
    /// The process that has the store may be.
    Somebody,
    /// It is live, with this status.
    Live(Status),
}

impl Use {
    /// Whether open work in its log may continue.
    pub(crate) fn goes_on(self) -> bool {
        self.open() != "interrupted"
    }

    /// Returns the state of open work in its log.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Self::Nobody => "interrupted",
            // Its end could not be written: the disk may be full.
            Self::Live(Status::Idle) => "interrupted",
            Self::Live(Status::Waiting) => "waiting",
            Self::Somebody | Self::Live(_) => "running",
        }
    }
}

/// A stored session, as far as it can be read.
pub(crate) struct Stored {
    /// Its summary.
    pub(crate) summary: SessionSummary,
    /// Its entries, in order, without bookkeeping.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// The inputs in its inbox.
    pub(crate) inbox: Vec<EntryId>,
    /// The lost ranges: the first entry, and the one after the last.
    pub(crate) lost: Vec<(EntryId, EntryId)>,
    /// Whether a process may be working on it.
    pub(crate) used: Use,
    /// Whether the content of a damaged part of the journal is unknown: then the newest entries may be
    /// missing.
    pub(crate) is_uncertain: bool,
}

impl Stored {
    /// Creates it from the form in which clients read it.
    fn of(page: EntryPage, used: Use) -> Self {
        let EntryPage { session, waiting, entries, lost, losses, .. } = page;
        let entries = entries.into_iter().map(LoggedEntry::entry).map(Arc::new).collect();
        Self { summary: session, entries, inbox: waiting, lost, used, is_uncertain: losses.is_uncertain }
    }

    /// Reads the session. `id` may be a prefix of its id.
    pub(crate) async fn read(global: &Global, id: &str) -> Result<Self> {
        let stored = look(global, async |source| source.session(global, id).await).await?;
        stored.ok_or_else(|| StoreError::NotFound { session: id.to_owned() }.into())
    }
}

/// Reads from the host or the store. A host that ends in the meantime is not asked again. Returns `None` if
/// there is no store.
///
/// # Errors
/// Those of `read`; or neither source is available.
pub(crate) async fn look<T>(global: &Global, read: impl AsyncFn(&Source) -> Result<T>) -> Result<Option<T>> {
    if !agent::data_dir(global)?.exists() {
        return Ok(None);
    }
    let mut attempt = 1;
    loop {
        let source = Source::open(global).await?;
        let result = read(&source).await;
        if let Source::Store(looked) = source {
            looked.store.close().await?;
        }
        match result {
            Err(error) if attempt < ATTEMPTS && host::is_gone(&error) => attempt += 1,
            Err(error) if host::is_silent(&error) => {
                let source = Source::beside(global, error).await?;
                let result = read(&source).await;
                if let Source::Store(looked) = source {
                    looked.store.close().await?;
                }
                return result.map(Some);
            }
            result => return result.map(Some),
        }
    }
}

impl Source {
    async fn open(global: &Global) -> Result<Self> {
        match host::reach_to_look(global).await {
            Ok(Some(client)) => Ok(Self::Host(client)),
            Ok(None) => Ok(Self::Store(stored::look(global).await?)),
            Err(error) => Self::beside(global, error).await,
        }
    }

    /// Opens the store itself: a user with access may read it while a host uses it that they cannot ask.
    /// `error` says why they cannot.
    async fn beside(global: &Global, error: anyhow::Error) -> Result<Self> {
        let looked = match stored::look(global).await {
            Ok(looked) => looked,
            Err(_) => return Err(error),
        };
        if host::is_silent(&error) {
            agent::warn(global, &format!("{}; this is what the store holds", error::line(&error)))?;
        }
        Ok(Self::Store(looked))
    }

    /// Returns all sessions, newest first.
    pub(crate) async fn sessions(&self, global: &Global) -> Result<Listed> {
        match self {
            Self::Host(client) => {
                let live = client.call(ListLive {}).await?.sessions.into_iter();
                let live: HashMap<String, State> =
                    live.map(|session| (session.state.id.clone(), session.state)).collect();
                let (mut sessions, mut after, mut code) = (Vec::new(), None, None);
                loop {
                    let order = Some(Order::Newest);
                    let list = ListSessions { limit: Some(PAGE), after, order, ..ListSessions::default() };
                    let page = client.call(list).await?;
                    code = Some(code.map_or_else(|| tell(global, &page.losses), Ok)?);
                    sessions.extend(page.sessions.into_iter().map(|summary| {
                        let state = live.get(&summary.id);
                        let status = state.and_then(|state| status_of(state, summary.entries));
                        KnownSession { used: used(state.is_some(), status), summary }
                    }));
                    after = page.next;
                    if after.is_none() {
                        return Ok(Listed { sessions, code: code.unwrap_or_default() });
                    }
                }
            }
            Self::Store(Looked { store, is_in_use }) => {
                let sessions = store.list()?.into_iter().map(|(id, head)| {
                    let summary = SessionSummary::new(id, head);
                    KnownSession { summary, used: used(*is_in_use, None) }
                });
                let mut sessions: Vec<KnownSession> = sessions.collect();
                sessions.sort_by_key(|known| std::cmp::Reverse(known.summary.updated_at_ms));
                Ok(Listed { sessions, code: stored::completeness(store) })
            }
        }
    }

    /// Returns a session with its log. `given` may be a prefix of its id.
    pub(crate) async fn session(&self, global: &Global, given: &str) -> Result<Stored> {
        let not_found = |id: String| anyhow::Error::from(StoreError::NotFound { session: id });
        match self {
            Self::Host(client) => {
                let id = self.known(given).await?;
                let (mut entries, mut from) = (Vec::new(), EntryId(0));
                loop {
                    let read = ReadEntries { session_id: id.clone(), from, limit: None };
                    let page = match client.call(read).await {
                        Err(error) if error.kind() == Some(ProblemKind::NoSession) => {
                            return Err(not_found(id));
                        }
                        page => page?,
                    };
                    let EntryPage { entries: more, next, .. } = page;
                    entries.extend(more);
                    if let Some(next) = next {
                        from = next;
                        continue;
                    }
                    tell(global, &page.losses)?;
                    let used = used(page.is_live, page.status);
                    return Ok(Stored::of(EntryPage { entries, ..page }, used));
                }
            }
            Self::Store(Looked { store, is_in_use }) => {
                let id = stored::resolve(store, given)?;
                let copy = store.copy(&id)?.ok_or_else(|| not_found(id.clone()))?;
                let is_uncertain = !store.unknown_losses().is_empty();
                let losses = StoreLosses { is_uncertain, notices: Vec::new() };
                Ok(Stored::of(EntryPage::of_copy(&id, &copy, losses), used(*is_in_use, None)))
            }
        }
    }

    /// Returns the open questions of one session or of all, and the exit code.
    pub(crate) async fn questions(
        &self,
        global: &Global,
        given: Option<&str>,
    ) -> Result<(Vec<PendingQuestion>, u8)> {
        match self {
            Self::Host(client) => {
                let session_id = match given {
                    Some(given) => Some(self.known(given).await?),
                    None => None,
                };
                let code = match given {
                    Some(_) => 0,
                    None => self.losses(global).await?,
                };
                Ok((client.call(ListQuestions { session_id }).await?.questions, code))
            }
            Self::Store(Looked { store, .. }) => {
                let (sessions, code) = match given {
                    Some(given) => (vec![stored::resolve_known(store, given)?], 0),
                    None => {
                        let asks = store.list()?.into_iter().filter(|(_, head)| !head.questions.is_empty());
                        (asks.map(|(id, _)| id).collect(), stored::completeness(store))
                    }
                };
                let (mut questions, now_ms) = (Vec::new(), time::now_ms());
                for session in sessions {
                    questions.extend(list_stored(store, &session, now_ms)?);
                }
                Ok((questions, code))
            }
        }
    }

    /// Searches one session or all for words. Returns what was found, and the exit code.
    pub(crate) async fn recall(&self, global: &Global, args: &RecallArgs) -> Result<(Vec<Recalled>, u8)> {
        let (query, limit) = (args.query.join(" "), args.limit);
        match self {
            Self::Host(client) => {
                let (session_id, code) = match &args.session {
                    Some(given) => (Some(self.known(given).await?), 0),
                    None => (None, self.losses(global).await?),
                };
                let found = client.call(RecallEntries { query, session_id, limit: Some(limit) }).await?.found;
                Ok((found, code))
            }
            Self::Store(Looked { store, .. }) => {
                let (session, code) = match &args.session {
                    Some(given) => (Some(stored::resolve_known(store, given)?), 0),
                    None => (None, stored::completeness(store)),
                };
                let store = store.clone();
                let found = move || recall_stored(&store, session.as_deref(), &query, limit);
                Ok((tokio::task::spawn_blocking(found).await??, code))
            }
        }
    }

    /// Returns the exit code of a command that shows all sessions.
    async fn losses(&self, global: &Global) -> Result<u8> {
        match self {
            Self::Host(client) => {
                let none = ListSessions { limit: Some(0), ..ListSessions::default() };
                tell(global, &client.call(none).await?.losses)
            }
            Self::Store(Looked { store, .. }) => Ok(stored::completeness(store)),
        }
    }

    /// Resolves the user's session id.
    async fn known(&self, given: &str) -> Result<String> {
        let Self::Host(client) = self else { return Ok(given.to_owned()) };
        match client.call(FindSession { prefix: given.to_owned() }).await {
            Ok(found) => Ok(found.session_id),
            Err(ClientError::Parameters(text)) => Err(usage(text)),
            Err(error) if error.kind() == Some(ProblemKind::NoSession) => {
                Err(StoreError::NotFound { session: given.to_owned() }.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns whether a process may be working on a session that may be live.
fn used(is_live: bool, status: Option<Status>) -> Use {
    match (is_live, status) {
        (false, _) => Use::Nobody,
        (true, None) => Use::Somebody,
        (true, Some(status)) => Use::Live(status),
    }
}

/// Reports known losses of the store, and returns the exit code of a command that shows all of it.
fn tell(global: &Global, losses: &StoreLosses) -> Result<u8> {
    stored::warn_of_others(global)?;
    for notice in &losses.notices {
        agent::warn(global, &format!("{notice}; `greenroom store check` says what is lost"))?;
    }
    Ok(if losses.is_uncertain { error::STORE } else { 0 })
}

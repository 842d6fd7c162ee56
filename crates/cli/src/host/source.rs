//! The source of stored data for commands that show it: the host that has the store, or else a host in this
//! process that only reads the store.
//!
//! Invariants: the data is the same in both cases, so each command has one way of showing it; nothing is
//! changed, created or woken.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use greenroom::{LoggedWork, PendingQuestion, Recalled, Runtime, SessionSummary, Spending, State, Status};
use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_server::operations::{
    EntryPage, GetSession, ListLive, ListQuestions, ListSessions, LoggedEntry, ReadEntries, RecallEntries,
    ReportUsage, SessionCounts, SessionPage, StoreLosses, status_of,
};

use greenroom_terminal::format;

use super::connect::LOOKS;
use super::connection::{self, Connection, not_found, resolve_known};
use super::short::short_id;
use super::stored::{self, Looked};
use super::{Nobody, own};
use crate::args::{Global, RecallArgs};
use crate::error;
use crate::{agent, host};

/// How many sessions are requested at once. Each page reads all heads.
const PAGE: usize = 10_000;

/// The source of stored data.
pub(crate) type Source = Connection<Reading>;

/// How a [`Source`] reads the store.
pub(crate) struct Reading {
    /// Whether another process uses the store that a runtime in this process reads, and may be working on its
    /// sessions.
    is_in_use: bool,
}

/// Sessions without their logs.
#[derive(Default)]
pub(crate) struct Listed {
    /// The sessions.
    pub(crate) sessions: Vec<KnownSession>,
    /// The numbers of sessions in the store.
    pub(crate) counts: SessionCounts,
    /// The exit code of a command that shows them.
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
        stored.ok_or_else(|| not_found(id))
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
    let opened = connection::open_and(async || Source::open(global).await, async |source| read(source).await);
    let (source, result) = match opened.await {
        Err(error) if host::is_silent(&error) => {
            let source = Source::beside(global, error).await?;
            let result = read(&source).await;
            (source, result)
        }
        opened => opened.map(|(source, result)| (source, Ok(result)))?,
    };
    source.end().await?;
    result.map(Some)
}

impl Source {
    async fn open(global: &Global) -> Result<Self> {
        match host::reach_to_look(global).await {
            Ok(Some(client)) => Ok(Self { client, own: None, with: Reading { is_in_use: false } }),
            Ok(None) => Self::of(global, stored::look(global).await?).await,
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
        Self::of(global, looked).await
    }

    async fn of(global: &Global, Looked { store, is_in_use }: Looked) -> Result<Self> {
        let runtime = Runtime::builder().provider(Arc::new(Nobody)).store(store).start().await?;
        let client = own::connect(global, &runtime, LOOKS.kind).await?;
        Ok(Self { client, own: Some(runtime), with: Reading { is_in_use } })
    }

    /// Returns the sessions of this list, its `limit` at most; all if there is none.
    pub(crate) async fn sessions(&self, global: &Global, mut list: ListSessions) -> Result<Listed> {
        let live = self.client.call(ListLive {}).await?.sessions.into_iter();
        let live: HashMap<String, State> =
            live.map(|session| (session.state.id.clone(), session.state)).collect();
        let is_all = list.limit.is_none();
        list.limit = list.limit.or(Some(PAGE));
        let mut listed = Listed::default();
        loop {
            let page = self.client.call(list.clone()).await?;
            if list.after.is_none() {
                listed.code = self.tell(global, &page.losses)?;
                listed.counts = page.counts.unwrap_or_default();
            }
            listed.sessions.extend(page.sessions.into_iter().map(|summary| {
                let state = live.get(&summary.id);
                let status = state.and_then(|state| status_of(state, summary.entries));
                KnownSession { used: self.used(state.is_some(), status), summary }
            }));
            list.after = page.next.filter(|_| is_all);
            if list.after.is_none() {
                return Ok(listed);
            }
            list.counts = false;
        }
    }

    /// Returns a session with its log. `given` may be a prefix of its id.
    pub(crate) async fn session(&self, global: &Global, given: &str) -> Result<Stored> {
        let id = resolve_known(&self.client, given).await?;
        let (mut entries, mut from) = (Vec::new(), EntryId(0));
        loop {
            let read = ReadEntries { session_id: id.clone(), from, limit: None };
            let page = self.client.find(read).await?.ok_or_else(|| not_found(&id))?;
            let EntryPage { entries: more, next, .. } = page;
            entries.extend(more);
            if let Some(next) = next {
                from = next;
                continue;
            }
            self.tell(global, &page.losses)?;
            let used = self.used(page.is_live, page.status);
            return Ok(Stored::of(EntryPage { entries, ..page }, used));
        }
    }

    /// Returns the session with exactly this id.
    pub(crate) async fn exact(&self, id: &str) -> Result<Option<SessionSummary>> {
        let found = self.client.find(GetSession { session_id: id.to_owned() }).await?;
        Ok(found.map(|found| found.session))
    }

    /// Returns a session without its log. `given` may be a prefix of its id.
    pub(crate) async fn summary(&self, given: &str) -> Result<SessionSummary> {
        let id = resolve_known(&self.client, given).await?;
        let found = self.exact(&id).await?;
        found.ok_or_else(|| not_found(&id))
    }

    /// Returns the short id of a session.
    pub(crate) async fn short_id(&self, id: &str) -> String {
        short_id(&self.client, id).await
    }

    /// Returns the open questions of one session or of all, and the exit code.
    pub(crate) async fn questions(
        &self,
        global: &Global,
        given: Option<&str>,
    ) -> Result<(Vec<PendingQuestion>, u8)> {
        let (session_id, code) = self.one_or_all(global, given).await?;
        Ok((self.client.call(ListQuestions { session_id }).await?.questions, code))
    }

    /// Searches one session or all for words. Returns what was found, and the exit code.
    pub(crate) async fn recall(&self, global: &Global, args: &RecallArgs) -> Result<(Vec<Recalled>, u8)> {
        let (session_id, code) = self.one_or_all(global, args.session.as_deref()).await?;
        let (query, limit) = (args.query.join(" "), Some(args.limit));
        let found = self.client.call(RecallEntries { query, session_id, limit }).await?.found;
        Ok((found, code))
    }

    /// Returns what is known to be damaged of the store, each a fragment. All heads are read.
    pub(crate) async fn damage(&self) -> Result<Vec<String>> {
        let counted = ListSessions { limit: Some(0), counts: true, ..ListSessions::default() };
        let SessionPage { losses, counts, .. } = self.client.call(counted).await?;
        let damaged = counts.unwrap_or_default().damaged as u64;
        let lost = (damaged > 0).then(|| format!("{} lost entries", format::count(damaged, "session")));
        let unknown = losses.is_uncertain.then(|| {
            "a part of the journal is lost, with entries of unknown sessions: sessions may be missing"
                .to_owned()
        });
        Ok(lost.into_iter().chain(unknown).chain(losses.notices).collect())
    }

    /// Returns what was spent.
    pub(crate) async fn usage(&self, report: ReportUsage) -> Result<Vec<Spending>> {
        Ok(self.client.call(report).await?.spending)
    }

    /// Resolves the user's session id, if there is one. Returns the exit code of a command that shows this
    /// session, or else all of them.
    async fn one_or_all(&self, global: &Global, given: Option<&str>) -> Result<(Option<String>, u8)> {
        match given {
            Some(given) => Ok((Some(resolve_known(&self.client, given).await?), 0)),
            None => {
                let none = ListSessions { limit: Some(0), ..ListSessions::default() };
                Ok((None, self.tell(global, &self.client.call(none).await?.losses)?))
            }
        }
    }

    /// Returns whether a process may be working on a session that may be live.
    fn used(&self, is_live: bool, status: Option<Status>) -> Use {
        match status {
            _ if self.with.is_in_use => Use::Somebody,
            _ if !self.is_host() || !is_live => Use::Nobody,
            None => Use::Somebody,
            Some(status) => Use::Live(status),
        }
    }

    /// Reports known losses of a host's store; those of another one were reported when it was opened. Returns the
    /// exit code of a command that shows all of the store: its output may be incomplete while the content of a
    /// damaged part of the journal is unknown.
    fn tell(&self, global: &Global, losses: &StoreLosses) -> Result<u8> {
        if self.is_host() {
            stored::warn_of_others(global)?;
            for notice in &losses.notices {
                agent::warn(global, &format!("{notice}; `greenroom store check` lists what is lost"))?;
            }
        }
        Ok(if losses.is_uncertain { error::STORE } else { 0 })
    }
}

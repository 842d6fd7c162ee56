//! Lists of a store's sessions: filters, order, and unfinished work.
//!
//! Invariants: only heads are read, in pages; no log is read and no session is woken. Memory holds only the
//! result and one page.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::future::IntoFuture;
use std::str::FromStr;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::bill::{Bill, CompactionBill};
use greenroom_kernel::entry::EntryId;
use greenroom_kernel::head::LoggedState;
use greenroom_kernel::{Head, Usage};
use greenroom_store::{Engine, Heads};
use serde::{Deserialize, Serialize};

use crate::api::runtime::Runtime;
use crate::values::error::{Result, UnknownName};
use crate::values::family;
use crate::values::names::names;

/// How many heads are read at once.
pub(crate) const PAGE: usize = 1_000;

/// A stored session's data, whether the session is live or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct SessionSummary {
    /// The session's id.
    pub id: String,
    /// The provider that answered last.
    pub provider: String,
    /// The model that answered last.
    pub model: String,
    /// The number of entries in its log.
    pub entries: u64,
    /// The entry at which its conversation ends, and after which the next prompt continues; `None` if it has
    /// no messages.
    pub leaf: Option<EntryId>,
    /// The context's size, in tokens.
    pub context_tokens: u64,
    /// The model's window in tokens; absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// The number of installed compactions.
    pub compactions: u64,
    /// The billed usage of all its calls together.
    pub usage: Usage,
    /// The cost of its calls, in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// The part of that cost that its compactions caused, their savings, and how long callers waited for them.
    #[serde(default)]
    pub compaction_bill: CompactionBill,
    /// The number of inputs in the inbox.
    pub waiting: usize,
    /// The number of questions that wait for a person's answer.
    #[serde(default)]
    pub questions: usize,
    /// Whether a run has no end: it is in progress, or was when the process ended.
    pub has_open_run: bool,
    /// Whether accepted work is not done: an open run, an interrupted run that was not resumed, or queued
    /// input. A run that was aborted, or that failed while a caller waited for it, is done.
    #[serde(default)]
    pub is_unfinished: bool,
    /// When the session was created, in Unix milliseconds.
    pub created_at_ms: u64,
    /// When the newest entry was appended, in Unix milliseconds.
    pub updated_at_ms: u64,
    /// The session's title, if it has one.
    pub title: Option<String>,
    /// The start of its first message: see [`Self::shown_title`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<String>,
    /// The session's labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The agent to which the conversation was handed last; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session whose agent called this one as a tool.
    pub parent: Option<String>,
    /// See [`State::lost_from`](crate::State::lost_from).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<EntryId>,
    /// The state of its work according to its log, whether or not a process is performing it.
    #[serde(default)]
    pub work: LoggedWork,
}

names! {
    /// The state of a session's work by its log.
    #[derive(Default)]
    pub enum LoggedWork ("state of work") {
        /// There is no work.
        #[default]
        Idle = "idle",
        /// A run or a compaction has no end: it is in progress, or its process is gone.
        Open = "open",
        /// A run waits for a person's answer.
        Waiting = "waiting",
        /// A run was interrupted, and was not resumed.
        Interrupted = "interrupted",
        /// The session cannot continue.
        Failed = "failed",
        /// Entries of its log are lost.
        Damaged = "damaged",
    }
}

impl LoggedWork {
    fn of(head: &Head) -> Self {
        let is_open =
            head.state == LoggedState::Working || head.open_run.is_some() || head.open_compaction.is_some();
        match &head.state {
            _ if head.lost_from.is_some() => Self::Damaged,
            LoggedState::Failed { .. } => Self::Failed,
            _ if is_open && !head.questions.is_empty() => Self::Waiting,
            _ if is_open => Self::Open,
            _ if head.interrupted.is_some() => Self::Interrupted,
            LoggedState::Idle | LoggedState::Working => Self::Idle,
        }
    }
}

impl SessionSummary {
    /// Creates the summary of a session from its head.
    pub fn new(id: String, head: Head) -> Self {
        Self {
            id,
            work: LoggedWork::of(&head),
            is_unfinished: head.open_run.is_some() || head.interrupted.is_some() || !head.inbox.is_empty(),
            provider: head.provider.to_string(),
            model: head.model.to_string(),
            entries: head.entries,
            leaf: head.leaf,
            context_tokens: head.context_tokens,
            context_window: head.window,
            compactions: head.compactions,
            usage: head.total_usage,
            cost_microdollars: head.cost_microdollars,
            compaction_bill: head.compaction_bill,
            waiting: head.inbox.len(),
            questions: head.questions.len(),
            has_open_run: head.open_run.is_some(),
            created_at_ms: head.created_at_ms,
            updated_at_ms: head.updated_at_ms,
            title: head.title,
            opening: head.opening.map(|opening| opening.to_string()),
            labels: head.labels,
            agent: head.agent,
            parent: head.parent_session,
            lost_from: head.lost_from,
        }
    }

    /// Returns the text that a list shows for the session: its title, or the start of its first message.
    pub fn shown_title(&self) -> Option<&str> {
        self.title.as_deref().or(self.opening.as_deref())
    }

    /// Returns the position of this session in a list: see [`SessionQuery::after`].
    pub fn cursor(&self) -> Cursor {
        Cursor { updated_at_ms: self.updated_at_ms, id: self.id.clone() }
    }
}

names! {
    /// The order of a list of sessions.
    pub enum Order ("order") {
        /// By id, byte by byte.
        Id = "id",
        /// The most recently changed session first.
        Newest = "newest",
        /// The most recently changed session last.
        Oldest = "oldest",
    }
}

/// The position of a session in a list, as text: `1732270000000-umbrella`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    updated_at_ms: u64,
    id: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.updated_at_ms, self.id)
    }
}

impl FromStr for Cursor {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let split = || {
            let (updated_at_ms, id) = text.split_once('-')?;
            Some(Self { updated_at_ms: updated_at_ms.parse().ok()?, id: id.to_owned() })
        };
        split().ok_or_else(|| UnknownName { what: "cursor", name: text.to_owned() })
    }
}

/// A query for sessions. Await it.
///
/// ```
/// # use greenroom::prelude::*;
/// # use greenroom::Order;
/// # use greenroom_simulator::Simulator;
/// # #[tokio::main] async fn main() -> Result<()> {
/// # let model = Simulator::echo();
/// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// let page = runtime.sessions().label("tenant", "42").order(Order::Newest).limit(100).await?;
/// if let Some(last) = page.last() {
///     let next = runtime.sessions().label("tenant", "42").order(Order::Newest).after(last.cursor()).limit(100).await?;
///     println!("{} and {}", page.len(), next.len());
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is read before it is awaited"]
#[derive(Debug, Clone)]
pub struct SessionQuery {
    runtime: Runtime,
    labels: Vec<(String, String)>,
    unfinished: bool,
    with_working: bool,
    with_trees: bool,
    with_questions: bool,
    parent: Parent,
    order: Order,
    after: Option<Cursor>,
    limit: usize,
}

#[derive(Debug, Clone)]
enum Parent {
    Any,
    None,
    Is(String),
    Above(String),
}

impl SessionQuery {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self {
            runtime,
            labels: Vec::new(),
            unfinished: false,
            with_working: false,
            with_trees: false,
            with_questions: false,
            parent: Parent::Any,
            order: Order::Id,
            after: None,
            limit: usize::MAX,
        }
    }

    /// Selects only sessions with this label. Repeated calls require all of these labels.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.push((name.into(), value.into()));
        self
    }

    /// Selects only sessions with unfinished work: see [`SessionSummary::is_unfinished`]. Sessions of
    /// sub-agents are not included, because their callers continue without them, nor are sessions whose
    /// actors are working right now.
    pub fn unfinished(mut self) -> Self {
        self.unfinished = true;
        self.parent = Parent::None;
        self
    }

    /// After [`Self::unfinished`]: includes sessions whose actors are working right now.
    pub fn with_working(mut self) -> Self {
        self.with_working = true;
        self
    }

    /// Puts the sessions below each selected session after it, callers before their sub-agents, the oldest
    /// first. [`Self::limit`] counts the selected ones only. With [`Self::roots`], a session whose caller was
    /// deleted is selected, too.
    pub fn with_trees(mut self) -> Self {
        self.with_trees = true;
        self
    }

    /// Selects only sessions with a question that waits for a person's answer: see
    /// [`SessionHandle::questions`](crate::SessionHandle::questions).
    pub fn with_questions(mut self) -> Self {
        self.with_questions = true;
        self
    }

    /// Selects only sessions that no other session's agent called.
    pub fn roots(mut self) -> Self {
        self.parent = Parent::None;
        self
    }

    /// Selects only sessions of this session's sub-agents. The cost depends on the sessions below this one,
    /// not on the number of others.
    pub fn children_of(mut self, parent: impl Into<String>) -> Self {
        self.parent = Parent::Is(parent.into());
        self
    }

    /// Selects only sessions below this one, on every level: those of its sub-agents, of their sub-agents,
    /// and so on; not this one itself. The cost depends only on these sessions.
    pub fn tree(mut self, root: impl Into<String>) -> Self {
        self.parent = Parent::Above(root.into());
        self
    }

    /// Sets the order; the default is by id. In order of ids, the cost of a page depends on its size. In
    /// order of time, every page reads all heads and keeps those of the page.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Selects only sessions after this position, in the same order: the next page.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }

    /// Limits the number of sessions.
    pub fn limit(mut self, sessions: usize) -> Self {
        self.limit = sessions;
        self
    }

    /// Returns what the selected sessions have spent together, and what their compactions cost and saved: those of a
    /// label, those below a session, or all. [`Self::limit`] and [`Self::after`] count, too.
    ///
    /// The tokens and the cost of a session include those of its sub-agents, so that of a whole tree is in the state of
    /// its highest session, and a sum over callers and sub-agents counts twice: use [`Self::roots`]. What compactions
    /// cost and saved is each session's own.
    ///
    /// ```no_run
    /// # use greenroom::prelude::*;
    /// # async fn example(runtime: Runtime) -> Result<()> {
    /// let bill = runtime.sessions().label("customer", "7").bill().await?;
    /// println!("{} tokens, of which {} for summaries", bill.usage.total_tokens(), bill.compaction.tokens);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    pub async fn bill(self) -> Result<Bill> {
        let mut sum = Bill::default();
        for session in self.run().await? {
            sum.add(&Bill {
                usage: session.usage,
                cost_microdollars: session.cost_microdollars,
                compaction: session.compaction_bill,
            });
        }
        Ok(sum)
    }

    async fn run(self) -> Result<Vec<SessionSummary>> {
        Ok(self.found(false).await?.sessions)
    }

    /// Returns the sessions, and the position of the next page. With `counts`, all heads are read and counted.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    #[doc(hidden)]
    pub async fn found(self, counts: bool) -> Result<SessionsFound> {
        let live: HashSet<String> = match self.unfinished && !self.with_working {
            // Work in progress in this process is not unfinished, whether its actors are awake or not. Work
            // that is held back is.
            true => self.runtime.awaited().await?,
            false => HashSet::new(),
        };
        self.read(&*self.runtime.deps().store, &live, counts).await
    }

    async fn read(&self, store: &dyn Engine, live: &HashSet<String>, counts: bool) -> Result<SessionsFound> {
        let mut page =
            Page { query: self, store, live, selected: BTreeMap::new(), counts: SessionCounts::default() };
        let below = match &self.parent {
            Parent::Any | Parent::None => None,
            Parent::Is(parent) => Some(family::children(store, parent).await?),
            Parent::Above(root) => Some(family::below(store, root).await?),
        };
        if let Some(below) = below {
            for (id, head) in below {
                page.consider(id, head).await?;
            }
            return page.found().await;
        }
        let by_id = |cursor: &Cursor| cursor.id.clone();
        let from = self.after.as_ref().filter(|_| self.order == Order::Id && !counts).map(by_id);
        let mut all = Heads::new(store, from, PAGE);
        while let Some(heads) = all.next().await? {
            for (id, head) in heads {
                page.consider(id, head).await?;
            }
            let is_full = self.order == Order::Id && page.selected.len() >= self.limit;
            if is_full && !counts {
                break;
            }
        }
        page.found().await
    }

    /// Returns a session's sort key.
    fn sort_key(&self, cursor: &Cursor) -> SortKey {
        let Cursor { updated_at_ms, id } = cursor;
        match self.order {
            Order::Id => (0, Reverse(0), id.clone()),
            Order::Oldest => (*updated_at_ms, Reverse(0), id.clone()),
            Order::Newest => (0, Reverse(*updated_at_ms), id.clone()),
        }
    }

    fn wants(&self, summary: &SessionSummary, live: &HashSet<String>) -> bool {
        let is_worked_on = || live.contains(&summary.id) && (summary.has_open_run || summary.waiting > 0);
        let has = |(name, value): &(String, String)| summary.labels.get(name) == Some(value);
        self.labels.iter().all(has)
            && (!self.with_questions || summary.questions > 0)
            && (!self.unfinished || summary.is_unfinished && !is_worked_on())
    }
}

/// The result of a query.
#[derive(Debug, Clone)]
pub struct SessionsFound {
    /// The sessions of one page.
    pub sessions: Vec<SessionSummary>,
    /// The position after which the next page begins, if there may be one.
    pub next: Option<Cursor>,
    /// The numbers of sessions among those that were read.
    pub counts: SessionCounts,
}

/// Numbers of stored sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SessionCounts {
    /// The sessions that match, without those below them, on this page and all later ones.
    pub matching: usize,
    /// All sessions of sub-agents.
    pub of_sub_agents: usize,
    /// All sessions of which entries are lost.
    pub damaged: usize,
}

/// A page of a query while heads are read.
struct Page<'a> {
    query: &'a SessionQuery,
    store: &'a dyn Engine,
    live: &'a HashSet<String>,
    selected: BTreeMap<SortKey, SessionSummary>,
    counts: SessionCounts,
}

impl Page<'_> {
    /// Counts a session, and adds a selected one if it is among the first.
    async fn consider(&mut self, id: String, head: Head) -> Result<()> {
        let (query, summary) = (self.query, SessionSummary::new(id, head));
        self.counts.of_sub_agents += usize::from(summary.parent.is_some());
        self.counts.damaged += usize::from(summary.lost_from.is_some());
        let key = query.sort_key(&summary.cursor());
        let is_after = query.after.as_ref().is_none_or(|after| key > query.sort_key(after));
        if is_after && query.wants(&summary, self.live) && self.has_parent(&summary).await? {
            self.counts.matching += 1;
            self.selected.insert(key, summary);
            if self.selected.len() > query.limit {
                self.selected.pop_last();
            }
        }
        Ok(())
    }

    /// Whether the session's caller is one that the query names.
    async fn has_parent(&self, summary: &SessionSummary) -> Result<bool> {
        Ok(match (&self.query.parent, &summary.parent) {
            (Parent::None, Some(parent)) => self.query.with_trees && self.store.head(parent).await?.is_none(),
            // The others were selected when they were read.
            (Parent::None, None) | (Parent::Any | Parent::Is(_) | Parent::Above(_), _) => true,
        })
    }

    async fn found(self) -> Result<SessionsFound> {
        let is_full = self.selected.len() == self.query.limit;
        let last = self.selected.last_key_value().filter(|_| is_full);
        let next = last.map(|(_, summary)| summary.cursor());
        let mut sessions = Vec::new();
        for summary in self.selected.into_values() {
            let id = summary.id.clone();
            sessions.push(summary);
            if self.query.with_trees {
                let below = family::below(self.store, &id).await?;
                sessions.extend(below.into_iter().map(|(id, head)| SessionSummary::new(id, head)));
            }
        }
        Ok(SessionsFound { sessions, next, counts: self.counts })
    }
}

/// A session's sort key.
type SortKey = (u64, Reverse<u64>, String);

impl IntoFuture for SessionQuery {
    type Output = Result<Vec<SessionSummary>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.run().boxed()
    }
}

//! Read operations: they change nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use greenroom::internal::SessionCounts;
use greenroom::internal::SessionsFound;
use greenroom::{Cursor, Event, FactSource, Order, Recalled, SessionSummary, State};
use greenroom_formats::export_pi;
use greenroom_kernel::entry::{Entry, EntryId, EntryKind, InboxDelivery};
use greenroom_kernel::message::blocks_text;
use greenroom_kernel::path::path_to;
use greenroom_kernel::usage::WindowSource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::markdown::markdown;

use super::query::{self, take_labels};
use super::{
    Answer, CallScope, Operation, Pairs, Performed, Reach, Refused, Route, Said, SessionNamed, StoreLosses,
    Verb,
};

/// The number of sessions that are named if a prefix matches several.
const NAMED_MAX: usize = 5;

/// Lists the stored sessions, by id unless `order` says otherwise.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListSessions {
    /// The page size at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The position after which the page begins: the `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// `id`, `newest` or `oldest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Only sessions with all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Only sessions with unfinished work that no actors are working on right now.
    pub unfinished: bool,
    /// With `unfinished`: also those that actors are working on.
    pub working: bool,
    /// Only sessions that no agent called.
    pub roots: bool,
    /// Only sessions below this one, at any depth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// After each session come those below it, callers before their sub-agents, the oldest first; `limit` does not
    /// count them. With `roots`, a session whose caller was deleted counts as a root.
    pub trees: bool,
    /// Whether to count sessions, for which every session's head is read.
    pub counts: bool,
}

/// A page of sessions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionSummary>,
    /// The `after` of the next page, if there may be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The numbers of sessions, if they were requested by a client that is not confined to a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<SessionCounts>,
    /// The known losses of the store: sessions may be missing.
    #[serde(flatten)]
    pub losses: StoreLosses,
}

impl Operation for ListSessions {
    operation!("session/list", Route::read_within(Reach::Label, "/sessions"), SessionPage);

    fn from_pairs(mut pairs: Pairs) -> Result<Self, Refused> {
        let labels = take_labels(&mut pairs)?;
        Ok(Self { labels, ..query::read(&pairs)? })
    }

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let runtime = &scope.runtime;
        let mut query = if self.unfinished { runtime.unfinished() } else { runtime.sessions() };
        for (name, value) in self.labels {
            query = query.label(name, value);
        }
        if self.working {
            query = query.with_working();
        }
        if self.roots {
            query = query.roots();
        }
        if self.trees {
            query = query.with_trees();
        }
        match (self.tree, &scope.within) {
            (Some(above), _) => {
                if !scope.sees(&above).await? {
                    return Err(greenroom::Error::NoSession { session: above }.into());
                }
                query = query.tree(above);
            }
            (None, Some(label)) => query = query.label(&label.name, &label.value),
            (None, None) => {}
        }
        if let Some(order) = self.order {
            query = query.order(order);
        }
        if let Some(after) = self.after {
            let cursor: Cursor = after.parse().map_err(|_| {
                Refused::Parameters(format!(
                    "after={after:?} is not valid; send the `next` of the previous page"
                ))
            })?;
            query = query.after(cursor);
        }
        if let Some(limit) = self.limit {
            query = query.limit(limit);
        }
        // The counts include sessions that a confined client may not see.
        let counts_wanted = self.counts && scope.within.is_none();
        let SessionsFound { sessions, next, counts } = query.found(counts_wanted).await?;
        let counts = counts_wanted.then_some(counts);
        let (next, losses) = (next.map(|next| next.to_string()), StoreLosses::of(&scope));
        Ok(Answer::Now(SessionPage { sessions, next, counts, losses }))
    }
}

/// The state of a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// The name in the published schemas.
#[schemars(rename = "SessionState")]
pub struct GetState {
    /// The session.
    pub session_id: String,
}

impl Operation for GetState {
    of_session!("agent/state", Read, Route::read("/sessions/{session_id}/state"), State);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Now(scope.runtime.session(&self.session_id).await?.state().await?))
    }
}

/// A session's summary, without its log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSession {
    /// The session.
    pub session_id: String,
}

/// A session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionFound {
    /// The session's summary.
    pub session: SessionSummary,
}

impl Operation for GetSession {
    of_session!("session/get", Read, Route::read("/sessions/{session_id}"), SessionFound);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let id = self.session_id;
        let missing = || greenroom::Error::NoSession { session: id.clone() };
        let session = scope.runtime.summary(&id).await?.ok_or_else(missing)?;
        Ok(Answer::Now(SessionFound { session }))
    }
}

/// Finds the session whose id begins with this prefix, if only one does.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindSession {
    /// A whole id, or a prefix of one.
    pub prefix: String,
}

impl Operation for FindSession {
    operation!("session/find", Route::read_within(Reach::Label, "/find"), SessionNamed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let prefix = self.prefix;
        if prefix.is_empty() {
            return Err(Refused::Parameters(
                "a session's id, or its beginning, must not be empty".to_owned(),
            ));
        }
        let is_whole = scope.runtime.summary(&prefix).await?.is_some();
        if is_whole && scope.sees(&prefix).await? {
            return Ok(Answer::Now(SessionNamed { session_id: prefix }));
        }
        let mut ids = match &scope.within {
            Some(label) => {
                let sessions = scope.runtime.sessions_within(&label.alone()).await?;
                sessions.into_iter().map(|session| session.id).filter(|id| id.starts_with(&prefix)).collect()
            }
            None => following(&scope, &prefix).await?,
        };
        match ids.len() {
            0 => Err(greenroom::Error::NoSession { session: prefix }.into()),
            1 => Ok(Answer::Now(SessionNamed { session_id: ids.remove(0) })),
            count => {
                let more = if count > NAMED_MAX { " and more" } else { "" };
                ids.truncate(NAMED_MAX);
                let ids = ids.join(", ");
                Err(Refused::Parameters(format!("several sessions begin with {prefix}: {ids}{more}")))
            }
        }
    }
}

/// The first sessions whose ids begin like this: one more than are named.
async fn following(scope: &CallScope, prefix: &str) -> Result<Vec<String>, Refused> {
    let page = scope.runtime.engine().page(Some(prefix), NAMED_MAX + 1).await;
    let page = page.map_err(greenroom::Error::from)?;
    Ok(page.into_iter().map(|(id, _)| id).take_while(|id| id.starts_with(prefix)).collect())
}

/// The conversation of a session, on its current path.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowSession {
    /// The session.
    pub session_id: String,
    /// Only messages after this entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EntryId>,
}

/// A session and its conversation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    /// The session's summary.
    pub session: SessionSummary,
    /// The messages, oldest first.
    pub conversation: Vec<Said>,
}

/// A stored session with all its entries.
pub(super) async fn stored(
    scope: &CallScope,
    id: &str,
) -> Result<(SessionSummary, Vec<Arc<Entry>>), Refused> {
    let missing = || greenroom::Error::NoSession { session: id.to_owned() };
    let summary = scope.runtime.summary(id).await?.ok_or_else(missing)?;
    let entries = scope.runtime.entries(id, EntryId(0)).await?;
    Ok((summary, entries.into_iter().map(Arc::new).collect()))
}

impl Operation for ShowSession {
    of_session!("session/show", Read, Route::read("/sessions/{session_id}/conversation"), Shown);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let (session, entries) = stored(&scope, &self.session_id).await?;
            let path = path_to(&entries, session.leaf).unwrap_or(entries);
            let new = path.iter().filter(|entry| self.after.is_none_or(|after| entry.id > after));
            let conversation = new.filter_map(|entry| Said::of(entry)).collect();
            Ok(Shown { session, conversation })
        })))
    }
}

/// Searches the logs of one session or of all for words.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecallEntries {
    /// The words.
    pub query: String,
    /// The session; all if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The maximum number of entries: 10 unless set, at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Entries that a search found, best first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RecalledEntries {
    /// The entries.
    pub found: Vec<Recalled>,
}

/// How many entries a search finds unless its limit says otherwise.
const FOUND: usize = 10;
/// The maximum number of entries that a search finds.
const FOUND_MAX: usize = 100;

impl Operation for RecallEntries {
    operation!("session/recall", Route::read_within(Reach::Label, "/recall"), RecalledEntries);

    fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let limit = self.limit.unwrap_or(FOUND).min(FOUND_MAX);
            let found = match (&self.session_id, &scope.within) {
                (Some(id), _) => scope.runtime.session(id).await?.recall(&self.query, limit).await?,
                (None, None) => scope.runtime.recall(&self.query, limit).await?,
                (None, Some(label)) => {
                    let mut found = Vec::new();
                    for session in scope.runtime.sessions_within(&label.alone()).await? {
                        let session = scope.runtime.session(&session.id).await?;
                        found.extend(session.recall(&self.query, limit).await?);
                    }
                    found.sort_by(|a, b| b.score.total_cmp(&a.score));
                    found.truncate(limit);
                    found
                }
            };
            Ok(RecalledEntries { found })
        })))
    }
}

/// A session as a file for other systems.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSession {
    /// The session.
    pub session_id: String,
    /// The format.
    #[serde(default)]
    pub format: ExportFormat,
}

/// The format of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// JSON Lines as pi writes them, with all branches.
    #[default]
    Pi,
    /// Markdown, for people: the current branch.
    Markdown,
}

/// A file's text.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Exported {
    /// The format: `pi` or `markdown`.
    pub format: ExportFormat,
    /// The text.
    pub text: String,
}

impl Operation for ExportSession {
    of_session!("session/export", Read, Route::read("/sessions/{session_id}/export"), Exported);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let (session, entries) = stored(&scope, &self.session_id).await?;
            let text = match self.format {
                ExportFormat::Pi => {
                    let folder = session.labels.get(super::FOLDER).map_or("", String::as_str);
                    let entries = entries.iter().map(|entry| &**entry);
                    export_pi(&self.session_id, session.created_at_ms, folder, entries)
                }
                ExportFormat::Markdown => {
                    let path = path_to(&entries, session.leaf).unwrap_or(entries);
                    let conversation: Vec<Said> = path.iter().filter_map(|entry| Said::of(entry)).collect();
                    markdown(&session, &conversation)
                }
            };
            let text = scope.runtime.redactor().all(&text).into_owned();
            Ok(Exported { format: self.format, text })
        })))
    }
}

/// The input that waits in a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWaiting {
    /// The session.
    pub session_id: String,
}

/// The input that waits.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WaitingListed {
    /// The inputs, oldest first. The session's state says how many of them are held back.
    pub inputs: Vec<WaitingInput>,
}

/// Input that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingInput {
    /// The input's entry.
    pub entry_id: EntryId,
    /// When it is delivered.
    pub delivery: InboxDelivery,
    /// The text, without images.
    pub text: String,
}

impl Operation for ListWaiting {
    of_session!("session/inbox", Read, Route::read("/sessions/{session_id}/inbox"), WaitingListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let id = self.session_id;
            let store = scope.runtime.engine();
            let head = store.head(&id).await.map_err(greenroom::Error::from)?;
            let Some(head) = head else { return Err(greenroom::Error::NoSession { session: id }.into()) };
            let entries = store.get(&id, &head.inbox).await.map_err(greenroom::Error::from)?;
            let inputs = entries.into_iter().filter_map(|entry| {
                let EntryKind::Inbox { delivery, content, .. } = &entry.kind else { return None };
                Some(WaitingInput { entry_id: entry.id, delivery: *delivery, text: blocks_text(content) })
            });
            Ok(WaitingListed { inputs: inputs.collect() })
        })))
    }
}

/// Reads the durable events of a session, from a position on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// The session.
    pub session_id: String,
    /// The sequence number of the first event.
    #[serde(default)]
    pub from_seq: u64,
    /// The number of events at most.
    #[serde(default = "replay_limit")]
    #[schemars(range(min = 1))]
    pub limit: usize,
}

fn replay_limit() -> usize {
    1_000
}

/// Events of a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Replayed {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// The sequence number of the next events, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl Operation for Replay {
    of_session!("session/replay", Read, Route::read("/sessions/{session_id}/replay"), Replayed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        if self.limit == 0 {
            return Err(Refused::Parameters("`limit` must be at least 1".to_owned()));
        }
        Ok(Answer::Later(Box::pin(async move {
            scope.runtime.session(&self.session_id).await?;
            let mut events = scope.runtime.replay(&self.session_id, self.from_seq).await?;
            let next = events.get(self.limit).map(|event| event.seq);
            events.truncate(self.limit);
            Ok(Replayed { events, next })
        })))
    }
}

/// The models of the agent's provider.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListModels {}

/// A model's facts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ModelSummary {
    /// The name by which requests name it.
    pub id: String,
    /// The context window, in tokens.
    pub window: Option<u64>,
    /// The source of the window.
    pub window_source: WindowSource,
    /// The limit that the server named when it refused a request, in tokens.
    pub learned_tokens: Option<u64>,
    /// The output limit, in tokens.
    pub output_tokens: Option<u64>,
    /// The price of a million input tokens, in micro-dollars.
    #[serde(default)]
    pub input_microdollars_per_million: Option<u64>,
    /// The price of a million output tokens, in micro-dollars.
    #[serde(default)]
    pub output_microdollars_per_million: Option<u64>,
    /// The source of the output limit and the prices.
    pub source: FactSource,
}

/// The models.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ModelsListed {
    /// The server's address.
    pub origin: String,
    /// The models, by name.
    pub models: Vec<ModelSummary>,
    /// Why the server did not list its models, if it did not.
    pub problem: Option<String>,
}

impl Operation for ListModels {
    operation!("models/list", Route::read_within(Reach::Agent, "/models"), ModelsListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        if !scope.has_agent {
            return Err(Refused::Parameters(crate::rpc::NO_DEFINITION.to_owned()));
        }
        Ok(Answer::Later(Box::pin(async move {
            let known = scope.runtime.models(&scope.agent).await?;
            let models = known.models.into_iter().map(|model| ModelSummary {
                id: model.id,
                window: model.window.tokens,
                window_source: model.window.source,
                learned_tokens: model.learned_tokens,
                output_tokens: model.output_tokens,
                input_microdollars_per_million: model.prices.map(|prices| prices.input),
                output_microdollars_per_million: model.prices.map(|prices| prices.output),
                source: model.source,
            });
            Ok(ModelsListed {
                origin: known.origin,
                models: models.collect(),
                problem: known.problem.map(|problem| problem.to_string()),
            })
        })))
    }
}

/// Forgets the limit that a server named for a model when it refused a request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetLimit {
    /// The model, at the server of the client's agent.
    pub model: String,
}

/// The result of forgetting.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Forgotten {
    /// Whether a limit was remembered.
    pub was_known: bool,
}

impl Operation for ForgetLimit {
    operation!("models/forget", Route::administer(Verb::Post, "/models/forget"), Forgotten);
    const ACCESS: super::Access = super::Access::Modify;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let was_known = scope.runtime.forget_limit(&scope.agent, &self.model).await?;
        Ok(Answer::Now(Forgotten { was_known }))
    }
}

//! The operations that a client can call, each once, with its types. JSON-RPC and HTTP are thin fronts of these.
//!
//! - Frame: `route` (HTTP, and what a token needs), `query`, `connection`, `runs` (that a client began), `within` (a label's sessions).
//! - Reading: `read`, `live`, `entries`, `conversation`, `compactions`, `parts`, `tree`, `usage`, `consumers`.
//! - Changing: `work` (runs, input, compactions), `session`, `questions`, `permissions`, `rewind`, `store`.
//!
//! Invariants: an operation's parameters are checked before anything is done; read operations start nothing; an
//! operation that starts work (a run, a compaction) is answered when the work is accepted, and its outcome follows;
//! calls of one client to one session are handed over in their order.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use greenroom::{AbortHandle, Agent, Error, Runtime, SessionHandle};
use greenroom_kernel::EntryId;
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::problem::Problem;

pub use self::compactions::{
    CompactionsListed, ListCompactions, ListPins, PinEntry, Pinned, PinsListed, ShowCompaction,
};
pub(crate) use self::connection::is_first;
pub use self::connection::{
    ClientKind, ClientSummary, Hello, HelloAnswer, HostState, HostStatus, PROTOCOL, PingHost, Pong, StopHost,
    Stopping,
};
pub use self::consumers::{
    ConsumerDeleted, ConsumerEvents, ConsumersListed, DeleteConsumer, ListConsumers, OpenConsumers,
    ReadConsumer,
};
pub use self::conversation::{Said, Speech};
pub use self::entries::{
    EntryPage, LoggedBlock, LoggedCompaction, LoggedEntry, LoggedFiles, LoggedKind, LoggedPart, LoggedPruned,
    LoggedTouch, ReadEntries, StoreLosses, status_of,
};
pub use self::live::{ListLive, LiveListed, SessionInProgress, WatchSession};
pub use self::parts::{
    ContextCategory, ContextPart, ContextParts, ListTools, SessionContext, ToolSummary, ToolsListed,
};
pub use self::permissions::{PermissionRule, ReadPermissions, SessionPermissions, SetPermissions};
pub(crate) use self::query::{LABEL, take_labels};
pub use self::questions::{AnswerQuestion, Answered, ListQuestions, QuestionsListed};
pub use self::read::{
    ExportFormat, ExportSession, Exported, FindSession, ForgetLimit, Forgotten, GetSession, GetState,
    ListModels, ListSessions, ListWaiting, ModelSummary, ModelsListed, RecallEntries, RecalledEntries,
    Replay, Replayed, SessionCounts, SessionFound, SessionPage, ShowSession, Shown, WaitingInput,
    WaitingListed,
};
pub use self::rewind::{RewindScope, RewindSession, RewoundAction, RewoundFile, SessionRewound};
pub use self::route::{Label, Reach, Right, Route, Verb};
pub use self::runs::Runs;
pub use self::session::{AGENT, FOLDER, ONE_SHOT};
pub use self::session::{
    Abort, BranchSession, ClearInbox, DeleteSession, Deleted, ForkSession, Forked, ImportSession, Imported,
    SessionNamed, SetLabel, SetTitle, StartSession, Withdrawn,
};
pub use self::store::{
    BackUpStore, BackedUp, DamageOfStore, PruneSessions, PruneSessionsRule, PrunedSession, PrunedSessions,
    StoreBackup,
};
pub use self::tree::{Branch, SessionTree, Tree, branches};
pub use self::usage::{ReportUsage, UsageReported};
pub use self::work::{
    Accepted, CompactOutcome, CompactSession, FollowUp, ImageData, PlanSession, Planned, PromptOutcome,
    PromptSession, ResumeSession, Sent, Steer, UndoCompaction, Undone,
};

/// Implements what all operations have: method, route, answer, and the outcome of its work, if it has one.
macro_rules! operation {
    ($method:literal, $route:expr, $output:ty) => {
        operation!($method, $route, $output, $crate::operations::Nothing);
    };
    ($method:literal, $route:expr, $output:ty, $outcome:ty) => {
        const METHOD: &'static str = $method;
        const ROUTE: Option<$crate::operations::Route> = $route;
        type Output = $output;
        type Outcome = $outcome;
    };
}

/// Implements what operations with a `session_id` have.
macro_rules! of_session {
    ($method:literal, $access:ident, $($rest:tt)*) => {
        operation!($method, $($rest)*);
        const ACCESS: $crate::operations::Access = $crate::operations::Access::$access;

        fn session_id(&self) -> Option<&str> {
            Some(&self.session_id)
        }
    };
}

mod compactions;
mod connection;
mod consumers;
mod conversation;
mod entries;
mod live;
mod parts;
mod permissions;
mod query;
mod questions;
mod read;
mod rewind;
mod route;
mod runs;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod usage;
mod within;
mod work;

/// Parameters of a path and a query: names and texts.
pub type Pairs = Vec<(String, String)>;

/// Background work.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The access to its session that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// None, or reading: nothing is started.
    Read,
    /// Events from now on. The session must exist, and nothing is started.
    Subscribe,
    /// Stored data: nothing is started, and a read-only client is refused.
    Modify,
    /// An open session, which must exist.
    Open,
    /// An open session, which is created if it does not exist.
    Create,
}

/// Why an operation was refused.
#[derive(Debug)]
pub enum Refused {
    /// There is no such method.
    UnknownMethod(String),
    /// The parameters cannot be understood, or contradict one another.
    Parameters(String),
    /// The runtime returned an error.
    Failed(Error),
    /// The host returned an error.
    Problem(Box<Problem>),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The runtime and the client of a call.
#[derive(Clone)]
pub struct CallScope {
    /// The runtime.
    pub runtime: Runtime,
    /// The agent with which sessions are opened.
    pub agent: Arc<Agent>,
    /// Whether the client has an agent. If not, `agent` is a placeholder.
    pub has_agent: bool,
    /// The operation's session, with the access that [`Operation::ACCESS`] names.
    pub session: Option<SessionHandle>,
    /// The runs that this client began.
    pub runs: Runs,
    /// The consumers that this client, or this server's clients, have open.
    pub consumers: OpenConsumers,
    /// The label to which the client is confined: other sessions do not exist for it.
    pub within: Option<Arc<Label>>,
    /// The agents by name from which a session's is chosen; `None` if names mean nothing here.
    pub choice: Option<Choice>,
}

/// The agents of a server, and whether the client may choose one.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The agents, by name.
    pub agents: Arc<BTreeMap<String, Arc<Agent>>>,
    /// Whether the client may choose.
    pub is_permitted: bool,
}

impl CallScope {
    /// The session that an operation works on.
    fn session(&self) -> Result<&SessionHandle, Refused> {
        self.session.as_ref().ok_or_else(|| Refused::Parameters("`session_id` is missing".to_owned()))
    }

    /// Opens the session.
    ///
    /// # Errors
    /// As [`Runtime::open`]; [`Error::NoSession`] if it must exist and does not.
    pub async fn open(&mut self, access: Access, id: &str) -> Result<(), Error> {
        if access == Access::Open {
            self.runtime.session(id).await?;
        }
        if matches!(access, Access::Open | Access::Create) {
            self.session = Some(self.runtime.join(id, Arc::clone(&self.agent)).await?);
        }
        Ok(())
    }
}

/// The answer to an operation.
pub enum Answer<O, R> {
    /// The operation is done.
    Now(O),
    /// The operation will be done later: other operations need not wait for it.
    Later(Task<Result<O, Refused>>),
    /// The work was handed over and continues.
    Work(Work<O, R>),
}

/// Accepted work.
pub struct Work<O, R> {
    /// Resolves when the work is accepted, or refused with the reason.
    pub accepted: Task<Result<O, Refused>>,
    /// Resolves to the outcome. Poll it after `accepted`, unless that refused.
    pub outcome: Task<Ended<R>>,
    /// Aborts this run only, if it is one.
    pub abort: Option<AbortHandle>,
}

/// The remainder of some work after its first step, by which the session's mailbox has its message before the next
/// request's.
async fn begun<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    let mut work: Task<T> = Box::pin(work);
    let done = tokio::select! {
        biased;
        done = &mut work => Some(done),
        () = std::future::ready(()) => None,
    };
    match done {
        Some(done) => Box::pin(std::future::ready(done)),
        None => work,
    }
}

/// The outcome of some work.
pub struct Ended<R> {
    /// The outcome.
    pub result: Result<R, Error>,
    /// The entry of the compaction's start, if it was one: an event reports its end, too.
    pub compaction: Option<EntryId>,
}

/// An operation that has no outcome besides its answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub enum Nothing {}

/// An operation.
pub trait Operation: Serialize + DeserializeOwned + JsonSchema + Send + Sync + Sized + 'static {
    /// The method's name.
    const METHOD: &'static str;
    /// Its route over HTTP; `None` for operations that only a connection has.
    const ROUTE: Option<Route>;
    /// Whether it has a parameter `key`, by which a repeated call is recognised.
    const TAKES_KEY: bool = false;
    /// The access to its session that it needs.
    const ACCESS: Access = Access::Read;
    /// Whether the session is gone afterwards.
    const DELETES: bool = false;
    /// Whether its answer may take any time: it asks a guard of the program, or waits for a disk.
    const TAKES_TIME: bool = false;
    /// Whether its answer waits for something to happen, as long as the client asks for.
    const WAITS: bool = false;
    /// Whether it is input that counts against the limits on messages of its session's labels.
    const IS_INPUT: bool = false;
    /// The notification that reports the outcome of its work.
    const OUTCOME: &'static str = "";
    /// The type of its answer.
    type Output: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    /// The type of the outcome that follows the answer; [`Nothing`] for operations that are done when they are
    /// answered.
    type Outcome: Serialize + DeserializeOwned + JsonSchema + Send + 'static;

    /// The session that it concerns.
    fn session_id(&self) -> Option<&str> {
        None
    }

    /// Its idempotency key.
    fn key(&self) -> Option<&str> {
        None
    }

    /// Checks its parameters, before anything is created for it.
    ///
    /// # Errors
    /// As [`Self::perform`].
    fn check(&self) -> Result<(), Refused> {
        Ok(())
    }

    /// The session that it creates.
    fn creates(&self) -> Option<&str> {
        if Self::ACCESS == Access::Create { self.session_id() } else { None }
    }

    /// Reads parameters from the pairs of a path and a query.
    ///
    /// # Errors
    /// [`Refused::Parameters`], which names the invalid parameter.
    fn from_pairs(pairs: Pairs) -> Result<Self, Refused> {
        query::read(&pairs)
    }

    /// Executes the operation.
    fn perform(self, scope: CallScope) -> impl Future<Output = Performed<Self>> + Send;
}

/// The outcome of an operation.
pub type Performed<O> = Result<Answer<<O as Operation>::Output, <O as Operation>::Outcome>, Refused>;

/// A call of some operation, with its parameters checked.
pub trait Call: Send + Sync {
    /// As [`Operation::ACCESS`].
    fn access(&self) -> Access;
    /// As [`Operation::OUTCOME`].
    fn outcome(&self) -> &'static str;
    /// As [`Operation::session_id`].
    fn session_id(&self) -> Option<&str>;
    /// As [`Operation::key`].
    fn key(&self) -> Option<&str>;
    /// As [`Operation::creates`].
    fn creates(&self) -> Option<&str>;
    /// As [`Operation::DELETES`].
    fn deletes(&self) -> bool;
    /// As [`Operation::IS_INPUT`].
    fn is_input(&self) -> bool;
    /// As [`Operation::check`].
    ///
    /// # Errors
    /// As [`Operation::check`].
    fn check(&self) -> Result<(), Refused>;
    /// Executes the operation.
    fn perform(self: Box<Self>, scope: CallScope) -> Task<Result<Answer<Value, Value>, Refused>>;
}

struct CallOf<O>(O);

impl<O: Operation> Call for CallOf<O> {
    fn access(&self) -> Access {
        O::ACCESS
    }

    fn outcome(&self) -> &'static str {
        O::OUTCOME
    }

    fn session_id(&self) -> Option<&str> {
        self.0.session_id()
    }

    fn key(&self) -> Option<&str> {
        self.0.key()
    }

    fn creates(&self) -> Option<&str> {
        self.0.creates()
    }

    fn deletes(&self) -> bool {
        O::DELETES
    }

    fn is_input(&self) -> bool {
        O::IS_INPUT
    }

    fn check(&self) -> Result<(), Refused> {
        self.0.check()
    }

    fn perform(self: Box<Self>, scope: CallScope) -> Task<Result<Answer<Value, Value>, Refused>> {
        Box::pin(async move {
            Ok(match self.0.perform(scope).await? {
                Answer::Now(output) => Answer::Now(json!(output)),
                Answer::Later(task) => Answer::Later(Box::pin(async move { Ok(json!(task.await?)) })),
                Answer::Work(Work { accepted, outcome, abort }) => Answer::Work(Work {
                    abort,
                    accepted: Box::pin(async move { Ok(json!(accepted.await?)) }),
                    outcome: Box::pin(async move {
                        let Ended { result, compaction } = outcome.await;
                        Ended { result: result.map(|outcome| json!(outcome)), compaction }
                    }),
                }),
            })
        })
    }
}

/// A method: its name, its route, the readers of its parameters, and its schemas.
#[derive(Clone, Copy)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// As [`Operation::ROUTE`].
    pub route: Option<Route>,
    /// As [`Operation::TAKES_KEY`].
    pub takes_key: bool,
    /// As [`Operation::WAITS`].
    pub waits: bool,
    /// As [`Operation::OUTCOME`].
    pub outcome: &'static str,
    read: fn(Value) -> Result<Box<dyn Call>, Refused>,
    read_pairs: fn(Pairs) -> Result<Box<dyn Call>, Refused>,
    schemas: fn(&mut SchemaGenerator) -> Value,
    params: fn(&mut SchemaGenerator) -> Value,
}

impl Method {
    /// The call with these parameters.
    ///
    /// # Errors
    /// It does not take them.
    pub fn call(&self, params: Value) -> Result<Box<dyn Call>, Refused> {
        // If there are no parameters, the error names the first required one.
        (self.read)(if params.is_null() { json!({}) } else { params })
    }

    /// The call with the parameters of a path and a query.
    ///
    /// # Errors
    /// It does not take them.
    pub(crate) fn call_of_pairs(&self, pairs: Pairs) -> Result<Box<dyn Call>, Refused> {
        (self.read_pairs)(pairs)
    }

    /// The schemas: `params`, `result`, and `outcome` where there is one.
    pub fn schemas(&self, schemas: &mut SchemaGenerator) -> Value {
        (self.schemas)(schemas)
    }

    /// The schema of its parameters, in full.
    pub fn params(&self, schemas: &mut SchemaGenerator) -> Value {
        (self.params)(schemas)
    }
}

fn method<O: Operation>() -> Method {
    Method {
        name: O::METHOD,
        route: O::ROUTE,
        takes_key: O::TAKES_KEY,
        waits: O::WAITS,
        outcome: O::OUTCOME,
        read: |params| Ok(Box::new(CallOf(parameters::<O>(params)?))),
        read_pairs: |pairs| Ok(Box::new(CallOf(O::from_pairs(pairs)?))),
        params: |schemas| json!(O::json_schema(schemas)),
        schemas: |schemas| {
            let mut method = json!({
                "params": schemas.subschema_for::<O>(),
                "result": schemas.subschema_for::<O::Output>(),
            });
            if !O::OUTCOME.is_empty() {
                let params = schemas.subschema_for::<O::Outcome>();
                method["outcome"] = json!({ "method": O::OUTCOME, "params": params });
            }
            method
        },
    }
}

/// All operations.
pub(crate) fn methods() -> Vec<Method> {
    vec![
        method::<Hello>(),
        method::<PingHost>(),
        method::<HostStatus>(),
        method::<StopHost>(),
        method::<StartSession>(),
        method::<PromptSession>(),
        method::<ResumeSession>(),
        method::<Steer>(),
        method::<FollowUp>(),
        method::<ClearInbox>(),
        method::<Abort>(),
        method::<CompactSession>(),
        method::<PlanSession>(),
        method::<UndoCompaction>(),
        method::<ListCompactions>(),
        method::<ShowCompaction>(),
        method::<PinEntry>(),
        method::<ListPins>(),
        method::<BranchSession>(),
        method::<RewindSession>(),
        method::<ForkSession>(),
        method::<DeleteSession>(),
        method::<PruneSessions>(),
        method::<BackUpStore>(),
        method::<SetTitle>(),
        method::<SetLabel>(),
        method::<ImportSession>(),
        method::<ExportSession>(),
        method::<ListSessions>(),
        method::<ShowSession>(),
        method::<RecallEntries>(),
        method::<GetSession>(),
        method::<FindSession>(),
        method::<Replay>(),
        method::<GetState>(),
        method::<ListWaiting>(),
        method::<SessionContext>(),
        method::<SessionTree>(),
        method::<ReadEntries>(),
        method::<ListLive>(),
        method::<WatchSession>(),
        method::<SessionInProgress>(),
        method::<ListQuestions>(),
        method::<AnswerQuestion>(),
        method::<ReadPermissions>(),
        method::<SetPermissions>(),
        method::<ReadConsumer>(),
        method::<ListConsumers>(),
        method::<DeleteConsumer>(),
        method::<ListModels>(),
        method::<ForgetLimit>(),
        method::<ListTools>(),
        method::<ReportUsage>(),
    ]
}

/// The call of a method with these parameters.
///
/// # Errors
/// There is no such method, or it does not take these parameters.
pub fn call(name: &str, params: Value) -> Result<Box<dyn Call>, Refused> {
    let Some(method) = methods().into_iter().find(|method| method.name == name) else {
        return Err(Refused::UnknownMethod(name.to_owned()));
    };
    method.call(params)
}

/// Reads parameters.
///
/// # Errors
/// [`Refused::Parameters`], which names the invalid parameter.
pub(crate) fn parameters<T: DeserializeOwned>(params: Value) -> Result<T, Refused> {
    serde_path_to_error::deserialize(params).map_err(|error| Refused::Parameters(error.to_string()))
}

/// The schemas of all operations: parameters, result, and the outcome where there is one.
pub fn schema() -> Value {
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    let of = |method: Method| (method.name.to_owned(), method.schemas(&mut schemas));
    let methods: serde_json::Map<String, Value> = methods().into_iter().map(of).collect();
    json!({ "methods": methods, "$defs": schemas.take_definitions(true) })
}

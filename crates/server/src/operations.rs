//! What a client can ask of a runtime: each operation once, with its types. JSON-RPC and HTTP are thin fronts of these.
//!
//! Invariants: an operation's parameters are checked before anything is done; looking at a session starts nothing; work
//! that goes on (a run, a compaction) is answered when it is taken on, and its outcome follows; what is handed to one
//! session by one client is handed over in the order of the calls.

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

pub(crate) use self::connection::is_first;
pub use self::connection::{
    ClientKind, ClientSummary, Hello, HelloAnswer, HostState, HostStatus, PROTOCOL, PingHost, Pong, StopHost,
    Stopping,
};
pub use self::conversation::{Said, Speech};
pub use self::live::{ListLive, LiveListed, SessionInProgress, WatchSession};
pub use self::look::{
    ExportSession, Exported, FindSession, ForgetLimit, Forgotten, GetSession, ListModels, ListSessions,
    ListWaiting, ModelSummary, ModelsListed, Replay, Replayed, SessionFound, SessionPage, SessionState,
    ShowSession, Shown, WaitingInput, WaitingListed,
};
pub use self::parts::{
    ContextCategory, ContextPart, ContextParts, ListTools, SessionContext, ToolSummary, ToolsListed,
};
pub use self::questions::{AnswerQuestion, Answered, ListQuestions, QuestionsListed};
pub use self::runs::Runs;
pub use self::session::{
    Abort, BranchSession, ClearInbox, DeleteSession, Deleted, ForkSession, ImportSession, Imported,
    SessionNamed, SetLabel, SetTitle, StartSession, Withdrawn,
};
pub use self::stored::{CopiedHead, CopyHeads, CopySession, HeadsCopied, SessionCopied, StoreLosses};
pub use self::tree::{Branch, SessionTree, Tree, branches};
pub use self::work::{
    Accepted, CompactOutcome, CompactSession, FollowUp, ImageData, PlanSession, Planned, PromptOutcome,
    PromptSession, ResumeSession, Sent, Steer, UndoCompaction, Undone,
};

mod connection;
mod conversation;
mod live;
mod look;
mod parts;
mod questions;
mod runs;
mod session;
mod stored;
#[cfg(test)]
mod tests;
mod tree;
mod work;

/// Something that goes on by itself.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What an operation needs of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing, or a look into it: nothing is started.
    Looks,
    /// Its events, from now on: it must be there, and nothing is started.
    Watches,
    /// What is stored: nothing is started, and a client that only looks is refused.
    Changes,
    /// The session, which must be there.
    Opens,
    /// The session, which begins where there is none.
    Begins,
}

/// Why an operation was refused.
#[derive(Debug)]
pub enum Refused {
    /// There is no such method.
    UnknownMethod(String),
    /// The parameters cannot be understood, or contradict one another.
    Parameters(String),
    /// The runtime refused it.
    Failed(Error),
    /// The host refused it.
    Problem(Box<Problem>),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Who is asked, and for whom.
#[derive(Clone)]
pub struct Asked {
    /// The runtime.
    pub runtime: Runtime,
    /// What sessions are opened with.
    pub agent: Arc<Agent>,
    /// Whether the client has an agent: else this one stands for none.
    pub has_agent: bool,
    /// The operation's session, as [`Operation::ACCESS`] wants it.
    pub session: Option<SessionHandle>,
    /// The runs that this client began.
    pub runs: Runs,
}

impl Asked {
    /// The session that an operation works on.
    fn session(&self) -> Result<&SessionHandle, Refused> {
        self.session.as_ref().ok_or_else(|| Refused::Parameters("`session_id` is missing".to_owned()))
    }

    /// Opens the session for an operation that needs it.
    ///
    /// # Errors
    /// As [`Runtime::open`]; [`Error::NoSession`] where it must be there and is not.
    pub async fn open(&mut self, access: Access, id: &str) -> Result<(), Error> {
        if access == Access::Opens {
            self.runtime.session(id).await?;
        }
        if matches!(access, Access::Opens | Access::Begins) {
            self.session = Some(self.runtime.join(id, Arc::clone(&self.agent)).await?);
        }
        Ok(())
    }
}

/// What an operation is answered with.
pub enum Answer<O, R> {
    /// It is done.
    Now(O),
    /// It will be done: other operations need not wait for it.
    Later(Task<Result<O, Refused>>),
    /// It was handed over, and goes on.
    Work(Work<O, R>),
}

/// Work that was handed over.
pub struct Work<O, R> {
    /// Says when it is taken on, or why it is not.
    pub accepted: Task<Result<O, Refused>>,
    /// How it ended. It is to be polled after `accepted`, where that was no refusal.
    pub outcome: Task<Ended<R>>,
    /// What aborts it alone, where it is a run.
    pub abort: Option<AbortHandle>,
}

/// The rest of some work, after its first step: what it says to a session is in the mailbox before the next request is.
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

/// The end of some work.
pub struct Ended<R> {
    /// What came of it.
    pub result: Result<R, Error>,
    /// The start's entry of the compaction that it was, if it was one: its end is told by an event, too.
    pub compaction: Option<EntryId>,
}

/// An operation that has no outcome besides its answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub enum Nothing {}

/// Something that a client can ask.
pub trait Operation: Serialize + DeserializeOwned + JsonSchema + Send + Sized + 'static {
    /// Its name.
    const METHOD: &'static str;
    /// What it needs of its session.
    const ACCESS: Access = Access::Looks;
    /// Whether the session is gone after it.
    const DELETES: bool = false;
    /// Whether its answer may take as long as it wants: a guard of the program is asked, or a disk is waited for.
    const TAKES_TIME: bool = false;
    /// The notification that tells the outcome of its work.
    const OUTCOME: &'static str = "";
    /// Its answer.
    type Output: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    /// What comes of it after the answer: [`Nothing`] for what is done when it is answered.
    type Outcome: Serialize + DeserializeOwned + JsonSchema + Send + 'static;

    /// The session that it is about.
    fn session_id(&self) -> Option<&str> {
        None
    }

    /// Does it.
    fn perform(self, asked: Asked) -> impl Future<Output = Performed<Self>> + Send;
}

/// What became of an operation.
pub type Performed<O> = Result<Answer<<O as Operation>::Output, <O as Operation>::Outcome>, Refused>;

/// A call of some operation, with its parameters checked.
pub trait Call: Send {
    /// As [`Operation::ACCESS`].
    fn access(&self) -> Access;
    /// As [`Operation::OUTCOME`].
    fn outcome(&self) -> &'static str;
    /// As [`Operation::session_id`].
    fn session_id(&self) -> Option<&str>;
    /// As [`Operation::DELETES`].
    fn deletes(&self) -> bool;
    /// Does it.
    fn perform(self: Box<Self>, asked: Asked) -> Task<Result<Answer<Value, Value>, Refused>>;
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

    fn deletes(&self) -> bool {
        O::DELETES
    }

    fn perform(self: Box<Self>, asked: Asked) -> Task<Result<Answer<Value, Value>, Refused>> {
        Box::pin(async move {
            Ok(match self.0.perform(asked).await? {
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

/// A method: its name, how its parameters are read, and its schemas.
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// As [`Operation::OUTCOME`].
    pub outcome: &'static str,
    read: fn(Value) -> Result<Box<dyn Call>, Refused>,
    schemas: fn(&mut SchemaGenerator) -> Value,
}

fn method<O: Operation>() -> Method {
    Method {
        name: O::METHOD,
        outcome: O::OUTCOME,
        read: |params| Ok(Box::new(CallOf(parameters::<O>(params)?))),
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
pub fn methods() -> Vec<Method> {
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
        method::<BranchSession>(),
        method::<ForkSession>(),
        method::<DeleteSession>(),
        method::<SetTitle>(),
        method::<SetLabel>(),
        method::<ImportSession>(),
        method::<ExportSession>(),
        method::<ListSessions>(),
        method::<ShowSession>(),
        method::<GetSession>(),
        method::<FindSession>(),
        method::<Replay>(),
        method::<SessionState>(),
        method::<ListWaiting>(),
        method::<SessionContext>(),
        method::<SessionTree>(),
        method::<CopySession>(),
        method::<CopyHeads>(),
        method::<ListLive>(),
        method::<WatchSession>(),
        method::<SessionInProgress>(),
        method::<ListQuestions>(),
        method::<AnswerQuestion>(),
        method::<ListModels>(),
        method::<ForgetLimit>(),
        method::<ListTools>(),
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
    // Where there are none, the first one that is missing is named.
    let params = if params.is_null() { json!({}) } else { params };
    (method.read)(params)
}

/// Reads parameters.
///
/// # Errors
/// [`Refused::Parameters`], which names the one that is wrong.
pub(crate) fn parameters<T: DeserializeOwned>(params: Value) -> Result<T, Refused> {
    serde_path_to_error::deserialize(params).map_err(|error| Refused::Parameters(error.to_string()))
}

/// The schemas of all operations: parameters, result, and the outcome where there is one.
pub fn schema() -> Value {
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    let of = |method: Method| (method.name.to_owned(), (method.schemas)(&mut schemas));
    let methods: serde_json::Map<String, Value> = methods().into_iter().map(of).collect();
    json!({ "methods": methods, "$defs": schemas.take_definitions(true) })
}

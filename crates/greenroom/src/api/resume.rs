//! Finishing what the end of a process left: the sessions with work that was taken on and is not done.
//!
//! Invariants: what was interrupted goes on before what waited behind it; only so many sessions are at it at a time; one
//! that fails harms no other.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use crate::agent::Agent;
use crate::api::runtime::Runtime;
use crate::api::session::SessionHandle;
use crate::api::sessions::{Order, SessionSummary};
use crate::core::door::open;
use crate::core::message::{OpenReason, SessionMessage};
use crate::events::bus::Filter;
use crate::events::event::EventType;
use crate::values::error::{Error, Result};
use crate::values::prompt::Reply;
use crate::values::state::Status;

/// How many sessions are resumed at a time where nothing else is said.
const AT_ONCE: usize = 16;

/// Which agent finishes a session; `None` leaves the session as it is.
type Choice = Box<dyn FnMut(&SessionSummary) -> Option<Arc<Agent>> + Send>;

/// All unfinished sessions, to be finished. Await it.
#[must_use = "nothing is resumed before it is awaited"]
pub struct ResumeAll {
    runtime: Runtime,
    choice: Choice,
    at_once: usize,
}

impl fmt::Debug for ResumeAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumeAll").field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

/// What became of a session that was resumed.
#[derive(Debug)]
pub struct Resumed {
    /// The session.
    pub session: SessionHandle,
    /// The reply of the last run that it took: of the one that was interrupted, or of the last prompt that waited behind
    /// it. [`Error::NothingToResume`] where the answer was there already, and only the word that the run had ended was
    /// missing. [`Error::Waiting`] where the run waits for a person's answer: the session is open, and goes on with it. How
    /// that ended is told by `run_end` in its events, or by the prompt said again with its key
    /// ([`once`](crate::RunRequest::once)).
    pub result: Result<Reply>,
}

impl ResumeAll {
    pub(crate) fn new(runtime: Runtime, choice: Choice) -> Self {
        Self { runtime, choice, at_once: AT_ONCE }
    }

    /// How many sessions are resumed at a time, at least 1; 16 where this is not called.
    pub fn at_once(mut self, sessions: usize) -> Self {
        self.at_once = sessions.max(1);
        self
    }

    async fn run(self) -> Result<Vec<Resumed>> {
        let Self { runtime, mut choice, at_once } = self;
        let unfinished = runtime.sessions().unfinished().order(Order::Oldest).await?;
        let chosen = unfinished.into_iter().filter_map(|summary| {
            let agent = choice(&summary)?;
            Some((summary.id, agent))
        });
        let chosen: Vec<(String, Arc<Agent>)> = chosen.collect();
        let finished = chosen.into_iter().map(|(id, agent)| {
            let runtime = runtime.clone();
            async move {
                let session = runtime.session(&id).await?;
                let result = finish(&runtime, &session, agent).await;
                Ok(Resumed { session, result })
            }
        });
        let finished: Vec<Result<Resumed>> =
            futures_util::stream::iter(finished).buffer_unordered(at_once).collect().await;
        // One that was deleted meanwhile is not there to be told of.
        let is_there = |resumed: &Result<Resumed>| !matches!(resumed, Err(Error::NoSession { .. }));
        finished.into_iter().filter(is_there).collect()
    }
}

async fn finish(runtime: &Runtime, session: &SessionHandle, agent: Arc<Agent>) -> Result<Reply> {
    // Nobody is waited for: a program that starts must not hang on a person.
    let mut asked = runtime.subscribe(Filter::tree(session.id()).kinds([EventType::QuestionAsked]));
    // What is finished as it is opened is told to whoever asks for it, and no longer known once it has slept.
    let _awake = session.door.keep_awake();
    open(runtime.deps(), Arc::from(session.id()), agent, None, OpenReason::Finish).await?;
    let waiting = || Err(Error::Waiting { session: session.id().to_owned() });
    if session.state().await?.status == Status::Waiting {
        return waiting();
    }
    tokio::select! {
        biased;
        reply = session.door.ask(SessionMessage::Finish) => reply,
        Some(_) = asked.next() => waiting(),
    }
}

impl IntoFuture for ResumeAll {
    type Output = Result<Vec<Resumed>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.run().boxed()
    }
}

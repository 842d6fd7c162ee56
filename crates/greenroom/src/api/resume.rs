//! Finishing the work that was interrupted when a process ended.
//!
//! Invariants: interrupted runs continue before the input that waited behind them; the number of concurrent
//! sessions is limited; a session that fails affects no other.

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

/// How many sessions are resumed concurrently by default.
const AT_ONCE: usize = 16;

/// Chooses the agent that finishes a session; `None` leaves the session unchanged.
type Choice = Box<dyn FnMut(&SessionSummary) -> Option<Arc<Agent>> + Send>;

/// Resumes all unfinished sessions. Await it.
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

/// The result of resuming a session.
#[derive(Debug)]
pub struct Resumed {
    /// The session.
    pub session: SessionHandle,
    /// The reply of the last run: the interrupted one, or the run of the last prompt that waited behind it.
    /// Prompts for which other callers wait do not count.
    /// [`Error::NothingToResume`] if the answer was complete and only the record of the run's end was
    /// missing. [`Error::Waiting`] if the run waits for a person's answer: the session is open and continues
    /// with the answer. The `run_end` event then reports the result, and so does the prompt if it is repeated
    /// with its key ([`once`](crate::RunRequest::once)).
    pub result: Result<Reply>,
}

impl ResumeAll {
    pub(crate) fn new(runtime: Runtime, choice: Choice) -> Self {
        Self { runtime, choice, at_once: AT_ONCE }
    }

    /// Sets how many sessions are resumed concurrently, at least 1; the default is 16.
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
        // Sessions that were deleted in the meantime are omitted.
        let is_there = |resumed: &Result<Resumed>| !matches!(resumed, Err(Error::NoSession { .. }));
        finished.into_iter().filter(is_there).collect()
    }
}

pub(crate) async fn finish(runtime: &Runtime, session: &SessionHandle, agent: Arc<Agent>) -> Result<Reply> {
    // A program that starts must not wait for a person.
    let mut asked = runtime.subscribe(Filter::tree(session.id()).kinds([EventType::QuestionAsked]));
    // A run that finishes while the session is opened has its reply only until the session sleeps.
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

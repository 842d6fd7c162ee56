//! The supervisor: which sessions are live. It opens, restarts with backoff, puts to sleep and stops.
//!
//! Always true: a session is active at most once; the supervisor waits for nothing in a handler: sessions are
//! started in tasks and report back; a session that dies harms no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use crate::actors::session::{Session, SessionArguments};
use crate::deps::Deps;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::message::{OpenRequest, ReplyTo, SessionMessage, SupervisorMessage};
use crate::restarts::{RESTARTS_MAX, Restarts};
use crate::slot::Slot;

/// The supervisor actor.
pub(crate) struct Supervisor;

/// What it owns.
pub(crate) struct SupervisorState {
    deps: Arc<Deps>,
    sessions: HashMap<Arc<str>, Supervised>,
    /// Sessions that ended before all their durable events were broadcast: the first one that was not.
    unsaid: HashMap<Arc<str>, u64>,
    generations: u64,
    shutdown: Option<oneshot::Sender<()>>,
}

struct Supervised {
    slot: Arc<Slot>,
    phase: Phase,
    restarts: Restarts,
    /// Which start this is: news of an earlier one is late.
    generation: u64,
}

enum Phase {
    /// It is being started, for these callers.
    Starting(Vec<ReplyTo<Arc<Slot>>>),
    /// It runs.
    Live(ActorRef<SessionMessage>),
    /// It ends in order; these callers want it again.
    Closing(ActorId, Vec<ReplyTo<Arc<Slot>>>),
    /// It died too often.
    Failed(String),
}

impl Actor for Supervisor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = Arc<Deps>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        deps: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(SupervisorState {
            deps,
            sessions: HashMap::new(),
            unsaid: HashMap::new(),
            generations: 0,
            shutdown: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.on(&myself, message);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, reason) => {
                state.session_died(&myself, child.get_id(), &reason.to_string());
            }
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                state.session_ended(&myself, child.get_id(), reason.as_deref());
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl SupervisorState {
    fn on(&mut self, myself: &ActorRef<SupervisorMessage>, message: SupervisorMessage) {
        match message {
            SupervisorMessage::Open(request) => self.open(myself, request),
            SupervisorMessage::Opened { id, generation, result } => {
                self.opened(myself, &id, generation, result)
            }
            SupervisorMessage::Restart { id, generation } => {
                if self.sessions.get(&id).is_some_and(|session| session.generation == generation) {
                    self.start(myself, &id);
                }
            }
            SupervisorMessage::Idle { id } => self.close(&id, None),
            SupervisorMessage::Close { id, done } => self.close(&id, Some(done)),
            SupervisorMessage::Reconfigure(done) => {
                for session in self.sessions.values() {
                    if let Phase::Live(actor) = &session.phase {
                        let _ = actor.cast(SessionMessage::Configure(session.slot.agent()));
                    }
                }
                let _ = done.send(());
            }
            SupervisorMessage::Find { id, reply } => {
                let _ = reply.send(self.sessions.get(&id).map(|session| Arc::clone(&session.slot)));
            }
            SupervisorMessage::Live(reply) => {
                let live =
                    self.sessions.iter().filter(|(_, session)| matches!(session.phase, Phase::Live(_)));
                let _ = reply.send(live.map(|(id, _)| Arc::clone(id)).collect());
            }
            SupervisorMessage::Shutdown(done) => {
                self.shutdown = Some(done);
                let ids: Vec<Arc<str>> = self.sessions.keys().cloned().collect();
                for id in ids {
                    self.close(&id, None);
                }
                self.stop_when_empty(myself);
            }
        }
    }

    fn open(&mut self, myself: &ActorRef<SupervisorMessage>, request: OpenRequest) {
        let OpenRequest { id, agent, parent, resume_failed, reply } = request;
        if self.shutdown.is_some() {
            let _ = reply.send(Err(Error::Closed));
            return;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            match &mut session.phase {
                Phase::Live(actor) => {
                    if !Arc::ptr_eq(&session.slot.agent(), &agent) {
                        session.slot.set_agent(Arc::clone(&agent));
                        let _ = actor.cast(SessionMessage::Configure(agent));
                    }
                    let _ = reply.send(Ok(Arc::clone(&session.slot)));
                }
                Phase::Starting(callers) | Phase::Closing(_, callers) => {
                    session.slot.set_agent(agent);
                    callers.push(reply);
                }
                Phase::Failed(reason) if !resume_failed => {
                    let reason = reason.clone();
                    let _ = reply.send(Err(Error::SessionFailed { session: id.to_string(), reason }));
                }
                // Opening it again resumes it.
                Phase::Failed(_) => {
                    session.slot.set_agent(agent);
                    session.restarts = Restarts::default();
                    session.phase = Phase::Starting(vec![reply]);
                    self.start(myself, &id);
                }
            }
            return;
        }
        let slot = Arc::new(Slot::new(Arc::clone(&id), parent, agent, self.unsaid.remove(&id)));
        let session = Supervised {
            slot,
            phase: Phase::Starting(vec![reply]),
            restarts: Restarts::default(),
            generation: 0,
        };
        self.sessions.insert(Arc::clone(&id), session);
        self.start(myself, &id);
    }

    /// Starts a session's actor in a task of its own.
    fn start(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        self.generations += 1;
        session.generation = self.generations;
        let (generation, id, supervisor) = (session.generation, Arc::clone(id), myself.clone());
        let arguments = SessionArguments {
            deps: Arc::clone(&self.deps),
            slot: Arc::clone(&session.slot),
            supervisor: myself.clone(),
        };
        tokio::spawn(async move {
            let started = Actor::spawn_linked(None, Session, arguments, supervisor.get_cell()).await;
            let result = started.map(|(actor, _)| actor).map_err(|error| start_error(&id, error));
            let _ = supervisor.cast(SupervisorMessage::Opened { id, generation, result });
        });
    }

    fn opened(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        generation: u64,
        result: Result<ActorRef<SessionMessage>>,
    ) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.generation == generation)
        else {
            return;
        };
        let callers = match &mut session.phase {
            Phase::Starting(callers) => std::mem::take(callers),
            Phase::Live(_) | Phase::Closing(..) | Phase::Failed(_) => return,
        };
        match result {
            Ok(actor) => {
                session.slot.set_actor(Some(actor.clone()));
                session.phase = Phase::Live(actor);
                for caller in callers {
                    let _ = caller.send(Ok(Arc::clone(&session.slot)));
                }
                if self.shutdown.is_some() {
                    self.close(id, None);
                }
            }
            Err(error) => {
                for caller in callers {
                    let _ = caller.send(Err(error.clone()));
                }
                self.forget_unsaid(id);
                self.stop_when_empty(myself);
            }
        }
    }

    /// Forgets a session that did not end in order, but not which of its events are still due.
    fn forget_unsaid(&mut self, id: &Arc<str>) {
        if let Some(session) = self.sessions.remove(id)
            && let Some(below) = session.slot.unsaid_from()
        {
            self.unsaid.insert(Arc::clone(id), below);
        }
    }

    fn find(&self, actor: ActorId) -> Option<Arc<str>> {
        let is_it = |session: &Supervised| match &session.phase {
            Phase::Live(live) => live.get_id() == actor,
            Phase::Closing(closing, _) => *closing == actor,
            Phase::Starting(_) | Phase::Failed(_) => false,
        };
        self.sessions.iter().find(|(_, session)| is_it(session)).map(|(id, _)| Arc::clone(id))
    }

    /// A session's actor died: another is started from the log, after a wait; not too often.
    fn session_died(&mut self, myself: &ActorRef<SupervisorMessage>, actor: ActorId, reason: &str) {
        let Some(id) = self.find(actor) else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if matches!(session.phase, Phase::Closing(..)) {
            self.closed(myself, &id);
            return;
        }
        session.slot.set_actor(None);
        tracing::error!(session = %id, reason, "the session died");
        if self.shutdown.is_some() {
            self.sessions.remove(&id);
            self.stop_when_empty(myself);
            return;
        }
        if session.restarts.allow(tokio::time::Instant::now()) {
            session.phase = Phase::Starting(Vec::new());
            self.generations += 1;
            session.generation = self.generations;
            let (generation, wait) = (session.generation, session.restarts.wait());
            session.slot.publish(&self.deps.bus, EventKind::SessionRestarted { reason: reason.to_owned() });
            restart_later(myself, id, generation, wait);
        } else {
            session.slot.publish(&self.deps.bus, EventKind::SessionFailed { reason: reason.to_owned() });
            session.phase =
                Phase::Failed(format!("it died {} times within a minute, last: {reason}", RESTARTS_MAX + 1));
        }
    }

    fn session_ended(&mut self, myself: &ActorRef<SupervisorMessage>, actor: ActorId, reason: Option<&str>) {
        let Some(id) = self.find(actor) else { return };
        if self.sessions.get(&id).is_some_and(|session| matches!(session.phase, Phase::Closing(..))) {
            self.closed(myself, &id);
        } else {
            self.session_died(myself, actor, reason.unwrap_or("it stopped by itself"));
        }
    }

    /// A session ended in order; if it is wanted again already, it is started again.
    fn closed(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let callers = match &mut session.phase {
            Phase::Closing(_, callers) => std::mem::take(callers),
            Phase::Starting(_) | Phase::Live(_) | Phase::Failed(_) => return,
        };
        if callers.is_empty() || self.shutdown.is_some() {
            self.forget_unsaid(id);
            self.stop_when_empty(myself);
        } else {
            session.phase = Phase::Starting(callers);
            self.start(myself, id);
        }
    }

    /// Ends a session's actors in order. A later request wakes it.
    fn close(&mut self, id: &Arc<str>, done: Option<oneshot::Sender<()>>) {
        let done = done.unwrap_or_else(|| oneshot::channel().0);
        let Some(session) = self.sessions.get_mut(id) else {
            let _ = done.send(());
            return;
        };
        match &session.phase {
            Phase::Live(actor) => {
                session.slot.set_actor(None);
                let _ = actor.cast(SessionMessage::Stop(done));
                session.phase = Phase::Closing(actor.get_id(), Vec::new());
            }
            Phase::Failed(_) => {
                self.forget_unsaid(id);
                let _ = done.send(());
            }
            // One that starts during a shutdown is closed when it has started.
            Phase::Starting(_) | Phase::Closing(..) => {
                let _ = done.send(());
            }
        }
    }

    fn stop_when_empty(&mut self, myself: &ActorRef<SupervisorMessage>) {
        let busy = self.sessions.values().any(|session| !matches!(session.phase, Phase::Failed(_)));
        if !busy && let Some(done) = self.shutdown.take() {
            let _ = done.send(());
            myself.stop(None);
        }
    }
}

fn restart_later(myself: &ActorRef<SupervisorMessage>, id: Arc<str>, generation: u64, wait: Duration) {
    myself.send_after(wait, move || SupervisorMessage::Restart { id, generation });
}

/// What a session's start failed with, as its caller knows it.
fn start_error(id: &Arc<str>, error: ractor::SpawnErr) -> Error {
    if let ractor::SpawnErr::StartupFailed(reason) = error {
        return match reason.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::SessionFailed { session: id.to_string(), reason: other.to_string() },
        };
    }
    Error::SessionFailed { session: id.to_string(), reason: error.to_string() }
}

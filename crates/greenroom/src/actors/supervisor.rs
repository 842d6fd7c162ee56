//! The supervisor: which sessions are live. It opens, restarts with backoff, puts to sleep and stops.
//!
//! Invariants: a session is live at most once; the supervisor waits for nothing in a handler: sessions are
//! started in tasks and report back; a session that dies harms no other.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, ActorStatus, SupervisionEvent};
use tokio::sync::oneshot;

use crate::actors::session::{Session, SessionArguments};
use crate::agent::Agent;
use crate::deps::Deps;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::message::{OpenRequest, ReplyTo, SessionMail, SessionMessage, SupervisorMessage};
use crate::restarts::{RESTARTS_MAX, Restarts};
use crate::shared::SessionShared;

/// The supervisor actor.
pub(crate) struct Supervisor;

/// What the supervisor owns.
pub(crate) struct SupervisorState {
    deps: Arc<Deps>,
    sessions: HashMap<Arc<str>, Supervised>,
    /// Whose actor it is.
    actors: HashMap<ActorId, Arc<str>>,
    /// What is shared of sessions that have no actors and that somebody still holds: they are reached by it again.
    asleep: HashMap<Arc<str>, Weak<SessionShared>>,
    /// Sessions that ended before all their durable events were broadcast: the first one that was not.
    unpublished: HashMap<Arc<str>, u64>,
    /// The last actors that died before they were known, and of what.
    early_deaths: VecDeque<(ActorId, String)>,
    generations: u64,
    shutdown: Option<oneshot::Sender<()>>,
}

struct Supervised {
    shared: Arc<SessionShared>,
    phase: Phase,
    restarts: Restarts,
    /// Whether it is being started again after it died.
    is_restart: bool,
    /// Which start this is: news of an earlier one is late.
    generation: u64,
    /// The definition before the one that it is being started with; it holds again where that one cannot work.
    agent_before: Option<Arc<Agent>>,
}

enum Phase {
    /// The session's actor is being started.
    Starting(Wanted),
    /// The session's actors run.
    Live(ActorRef<SessionMail>),
    /// The session is ending in order.
    Closing(Wanted),
    /// The session died too often and was given up.
    Failed(String),
}

/// Who waits for a session.
#[derive(Default)]
struct Wanted {
    /// The session is to be live, with these definitions.
    live: Vec<Opener>,
    /// The session is to be closed.
    closed: Vec<oneshot::Sender<()>>,
}

/// Who opens a session, and with which definition.
struct Opener {
    agent: Arc<Agent>,
    reply: ReplyTo<Arc<SessionShared>>,
}

impl Wanted {
    fn live(opener: Opener) -> Self {
        Self { live: vec![opener], closed: Vec::new() }
    }
}

/// How many deaths of actors that are not known yet are remembered.
const EARLY_DEATHS_MAX: usize = 16;

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
            actors: HashMap::new(),
            asleep: HashMap::new(),
            early_deaths: VecDeque::new(),
            unpublished: HashMap::new(),
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
                state.actor_died(&myself, child.get_id(), &reason.to_string());
            }
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                let reason = reason.as_deref().unwrap_or("it stopped by itself");
                state.actor_died(&myself, child.get_id(), reason);
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
                        let agent = session.shared.agent();
                        let _ = actor.cast(SessionMessage::Configure { agent, reply: None }.into());
                    }
                }
                let _ = done.send(());
            }
            SupervisorMessage::CheckSettings { settings, reply } => {
                let ask = |session: &Supervised| {
                    let Phase::Live(actor) = &session.phase else { return None };
                    let (reply, answer) = oneshot::channel();
                    let settings = Arc::clone(&settings);
                    actor.cast(SessionMessage::CheckSettings { settings, reply }.into()).ok()?;
                    Some(answer)
                };
                let _ = reply.send(self.sessions.values().filter_map(ask).collect());
            }
            SupervisorMessage::Find { id, reply } => {
                let _ = reply.send(self.sessions.get(&id).map(|session| Arc::clone(&session.shared)));
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
                Phase::Live(actor) => hand_over(&session.shared, actor, Opener { agent, reply }),
                Phase::Starting(wanted) | Phase::Closing(wanted) => wanted.live.push(Opener { agent, reply }),
                Phase::Failed(reason) if !resume_failed => {
                    let reason = reason.clone();
                    let _ = reply.send(Err(Error::SessionFailed { session: id.to_string(), reason }));
                }
                // Opening it again resumes it.
                Phase::Failed(_) => {
                    session.shared.set_agent(agent);
                    session.restarts = Restarts::default();
                    session.is_restart = false;
                    session.phase =
                        Phase::Starting(Wanted::live(Opener { agent: session.shared.agent(), reply }));
                    self.start(myself, &id);
                }
            }
            return;
        }
        let unpublished = self.unpublished.remove(&id);
        let known = self.asleep.remove(&id).and_then(|shared| shared.upgrade());
        let known = known.filter(|shared| shared.parent == parent);
        let agent_before = known.as_ref().map(|shared| shared.agent());
        let shared = match known {
            Some(shared) => {
                shared.set_agent(Arc::clone(&agent));
                shared
            }
            None => Arc::new(SessionShared::new(Arc::clone(&id), parent, Arc::clone(&agent), unpublished)),
        };
        let session = Supervised {
            shared,
            agent_before,
            phase: Phase::Starting(Wanted::live(Opener { agent, reply })),
            restarts: Restarts::default(),
            is_restart: false,
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
            shared: Arc::clone(&session.shared),
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
        result: Result<ActorRef<SessionMail>>,
    ) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.generation == generation)
        else {
            // Nobody knows of this actor, and a session is live at most once.
            if let Ok(actor) = result {
                actor.stop(Some("it came too late".to_owned()));
            }
            return;
        };
        let wanted = match &mut session.phase {
            Phase::Starting(wanted) => std::mem::take(wanted),
            Phase::Live(_) | Phase::Closing(_) | Phase::Failed(_) => return,
        };
        match result {
            Ok(actor) => {
                self.actors.insert(actor.get_id(), Arc::clone(id));
                session.shared.set_actor(Some(actor.clone()));
                session.phase = Phase::Live(actor.clone());
                session.is_restart = false;
                session.agent_before = None;
                for opener in wanted.live {
                    hand_over(&session.shared, &actor, opener);
                }
                // The report of its death may have arrived before this message.
                if actor.get_status() >= ActorStatus::Stopping {
                    let early = self.early_deaths.iter().find(|(early, _)| *early == actor.get_id());
                    let reason = early.map_or("it died as it began", |(_, reason)| reason).to_owned();
                    self.actor_died(myself, actor.get_id(), &reason);
                }
                for closer in wanted.closed {
                    self.close(id, Some(closer));
                }
                if self.shutdown.is_some() {
                    self.close(id, None);
                }
            }
            Err(error) => {
                let tried = session.shared.agent();
                let is_refused = |opener: &Opener| session.is_restart || Arc::ptr_eq(&opener.agent, &tried);
                let (refused, others): (Vec<_>, Vec<_>) = wanted.live.into_iter().partition(is_refused);
                for opener in refused {
                    let _ = opener.reply.send(Err(error.clone()));
                }
                if let Some(agent) = session.agent_before.take() {
                    session.shared.set_agent(agent);
                }
                if let Some(next) = others.first() {
                    // Somebody else opens it with a definition that may work.
                    session.agent_before = Some(session.shared.agent());
                    session.shared.set_agent(Arc::clone(&next.agent));
                    session.phase = Phase::Starting(Wanted { live: others, closed: wanted.closed });
                    self.start(myself, id);
                    return;
                }
                if session.is_restart && wanted.closed.is_empty() {
                    self.died(myself, id, &error.to_string());
                } else {
                    self.forget(id);
                    tell(wanted.closed);
                    self.stop_when_empty(myself);
                }
            }
        }
    }

    /// Forgets a session that has no actors any more: but not what is shared with those who hold it, nor which of its
    /// events are still due.
    fn forget(&mut self, id: &Arc<str>) {
        let Some(session) = self.sessions.remove(id) else { return };
        let shared = session.shared;
        shared.set_actor(None);
        if let Some(below) = shared.first_unpublished() {
            self.unpublished.insert(Arc::clone(id), below);
        }
        if Arc::strong_count(&shared) > 1 {
            // Those that nobody holds any more go when the map would grow.
            if self.asleep.len() == self.asleep.capacity() {
                self.asleep.retain(|_, shared| shared.strong_count() > 0);
            }
            self.asleep.insert(Arc::clone(id), Arc::downgrade(&shared));
        }
    }

    /// An actor died: one that is not known yet is remembered until it is.
    fn actor_died(&mut self, myself: &ActorRef<SupervisorMessage>, actor: ActorId, reason: &str) {
        let Some(id) = self.actors.remove(&actor) else {
            self.early_deaths.truncate(EARLY_DEATHS_MAX - 1);
            self.early_deaths.push_front((actor, reason.to_owned()));
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.shared.set_actor(None);
        match session.phase {
            Phase::Closing(_) => self.closed(myself, &id),
            Phase::Starting(_) | Phase::Live(_) | Phase::Failed(_) => self.died(myself, &id, reason),
        }
    }

    /// A session has no actor, and nobody closed it: another is started from the log, after a wait; not too often.
    fn died(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, reason: &str) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        tracing::error!(session = %id, reason, "the session died");
        if self.shutdown.is_some() {
            self.forget(id);
            self.stop_when_empty(myself);
            return;
        }
        if session.restarts.allow(tokio::time::Instant::now()) {
            session.phase = Phase::Starting(Wanted::default());
            session.is_restart = true;
            self.generations += 1;
            session.generation = self.generations;
            let (generation, wait) = (session.generation, session.restarts.wait());
            session.shared.publish(&self.deps.bus, EventKind::SessionRestarted { reason: reason.to_owned() });
            restart_later(myself, Arc::clone(id), generation, wait);
        } else {
            session.shared.publish(&self.deps.bus, EventKind::SessionFailed { reason: reason.to_owned() });
            session.phase =
                Phase::Failed(format!("it died {} times within a minute, last: {reason}", RESTARTS_MAX + 1));
        }
    }

    /// A session ended in order; if it is wanted again already, it is started again.
    fn closed(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let wanted = match &mut session.phase {
            Phase::Closing(wanted) => std::mem::take(wanted),
            Phase::Starting(_) | Phase::Live(_) | Phase::Failed(_) => return,
        };
        if wanted.live.is_empty() || self.shutdown.is_some() {
            self.forget(id);
        } else {
            session.agent_before = Some(session.shared.agent());
            session.shared.set_agent(Arc::clone(&wanted.live[0].agent));
            session.phase = Phase::Starting(Wanted { live: wanted.live, closed: Vec::new() });
            self.start(myself, id);
        }
        tell(wanted.closed);
        self.stop_when_empty(myself);
    }

    /// Ends a session's actors in order. A later request wakes it.
    fn close(&mut self, id: &Arc<str>, done: Option<oneshot::Sender<()>>) {
        let session = self.sessions.get_mut(id);
        match session.map(|session| (&session.shared, &mut session.phase)) {
            Some((shared, phase @ Phase::Live(_))) => {
                shared.set_actor(None);
                let wanted = Wanted { live: Vec::new(), closed: done.into_iter().collect() };
                if let Phase::Live(actor) = std::mem::replace(phase, Phase::Closing(wanted)) {
                    // A session that is dead already is closed when the report of its death arrives.
                    let _ = actor.cast(SessionMessage::Stop.into());
                }
            }
            // One that is being started is closed when it is up.
            Some((_, Phase::Starting(wanted) | Phase::Closing(wanted))) => wanted.closed.extend(done),
            Some((_, Phase::Failed(_))) => {
                self.forget(id);
                tell(done);
            }
            None => tell(done),
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

/// Gives a live session to who opens it, as soon as it goes on with the opener's definition.
fn hand_over(shared: &Arc<SessionShared>, actor: &ActorRef<SessionMail>, opener: Opener) {
    let Opener { agent, reply } = opener;
    if Arc::ptr_eq(&shared.agent(), &agent) {
        let _ = reply.send(Ok(Arc::clone(shared)));
    } else {
        // One that is dead drops the reply, and then the session is opened again.
        let _ = actor.cast(SessionMessage::Configure { agent, reply: Some(reply) }.into());
    }
}

/// Tells those who wanted a session closed that it is.
fn tell(closers: impl IntoIterator<Item = oneshot::Sender<()>>) {
    for closer in closers {
        let _ = closer.send(());
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

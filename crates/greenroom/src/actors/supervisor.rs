//! The supervisor: which sessions are live. It opens, restarts with backoff, puts to sleep and stops.
//!
//! Invariants: a session is live at most once; the supervisor waits for nothing in a handler: sessions are
//! started in tasks and report back; a session that dies harms no other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, ActorStatus, SupervisionEvent};
use tokio::sync::oneshot;

use crate::actors::session::parked::ParkingPlace;
use crate::actors::session::{Session, SessionArguments, stored};
use crate::agent::Agent;
use crate::core::deps::Deps;
use crate::core::message::{
    AmendRequest, HeldWork, OpenReason, OpenRequest, ReplyTo, SessionMail, SessionMessage, SupervisorMessage,
    tell_all,
};
use crate::core::shared::{Parking, SessionShared};
use crate::events::event::EventKind;
use crate::limits::restarts::{RESTARTS_MAX, Restarts};
use crate::values::error::{Error, Result};

/// The supervisor actor.
pub(crate) struct Supervisor;

/// What the supervisor owns.
pub(crate) struct SupervisorState {
    deps: Arc<Deps>,
    /// In the order of their ids, so that what is said to all is always said in the same order.
    sessions: BTreeMap<Arc<str>, Supervised>,
    /// Whose actor it is.
    actors: HashMap<ActorId, Arc<str>>,
    /// What is shared of sessions that have no actors and that somebody still holds: they are reached by it again.
    asleep: HashMap<Arc<str>, Weak<SessionShared>>,
    /// Sessions that sleep in the middle of a run, whose tools go on, and those runs. They end with the supervisor.
    suspended: BTreeMap<Arc<str>, (Arc<SessionShared>, ParkingPlace)>,
    /// Sessions that ended before all their durable events were broadcast: the first one that was not.
    unpublished: HashMap<Arc<str>, u64>,
    /// The last actors that died before they were known, and of what.
    early_deaths: VecDeque<(ActorId, String)>,
    generations: u64,
    shutdown: Option<oneshot::Sender<()>>,
}

struct Supervised {
    shared: Arc<SessionShared>,
    /// Where its run is while it sleeps.
    parking: ParkingPlace,
    phase: Phase,
    restarts: Restarts,
    /// Whether it is being started again after it died.
    is_restart: bool,
    /// Which start this is: news of an earlier one is late.
    generation: u64,
    /// The definition before the one that it is being started with; it holds again where that one cannot work.
    agent_before: Option<Arc<Agent>>,
    /// Whether what was interrupted is to be finished as soon as it is up.
    finishes: bool,
}

impl Supervised {
    fn new(shared: Arc<SessionShared>, phase: Phase) -> Self {
        Self {
            shared,
            parking: ParkingPlace::default(),
            phase,
            restarts: Restarts::default(),
            is_restart: false,
            generation: 0,
            agent_before: None,
            finishes: false,
        }
    }
}

enum Phase {
    /// The session's actor is being started.
    Starting(Wanted),
    /// The session's actors run.
    Live(ActorRef<SessionMail>),
    /// The session's actors run and were told to fall asleep: they end, or say that they stay awake.
    Drowsy(ActorRef<SessionMail>, Wanted),
    /// The session is ending in order.
    Closing(Wanted),
    /// The session has no actors, and is changed or deleted in the store.
    Held(Wanted),
    /// The session died too often and was given up.
    Failed(String),
}

/// Who waits for a session.
#[derive(Default)]
struct Wanted {
    /// The session is to be live, with these definitions.
    live: Vec<OpenRequest>,
    /// The session is to be closed.
    closed: Vec<oneshot::Sender<()>>,
    /// The session is to be deleted when it is closed.
    deleted: Vec<ReplyTo<()>>,
    /// The session is to be changed.
    amended: Vec<AmendRequest>,
}

impl Phase {
    /// The session's actor, while it runs and was not told to end.
    fn actor(&self) -> Option<&ActorRef<SessionMail>> {
        match self {
            Self::Live(actor) | Self::Drowsy(actor, _) => Some(actor),
            Self::Starting(_) | Self::Closing(_) | Self::Held(_) | Self::Failed(_) => None,
        }
    }
}

impl Wanted {
    fn live(opener: OpenRequest) -> Self {
        Self { live: vec![opener], ..Self::default() }
    }
}

/// What ends with a session's actors.
enum Closer {
    /// Nobody waits for it.
    Nobody,
    /// Somebody is told when the actors are gone.
    Told(oneshot::Sender<()>),
    /// The session is deleted when the actors are gone.
    Deletes(ReplyTo<()>),
}

impl Wanted {
    fn add(&mut self, closer: Closer) {
        match closer {
            Closer::Nobody => {}
            Closer::Told(done) => self.closed.push(done),
            Closer::Deletes(reply) => self.deleted.push(reply),
        }
    }
}

/// Where room is made, it is made for so many more: this part of the sessions that may be live.
const ROOM_SHARE: usize = 16;
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
            sessions: BTreeMap::new(),
            actors: HashMap::new(),
            asleep: HashMap::new(),
            suspended: BTreeMap::new(),
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
            SupervisorMessage::Idle { id } => self.let_sleep(&id),
            SupervisorMessage::GiveUp { id, parking, error } => self.give_up(&id, parking, &error),
            SupervisorMessage::StaysAwake { id } => self.stays_awake(myself, &id),
            SupervisorMessage::Close { id, done } => self.close(myself, &id, Closer::Told(done)),
            SupervisorMessage::Delete { id, reply } => self.close(myself, &id, Closer::Deletes(reply)),
            SupervisorMessage::Amend(request) => self.amend(myself, request),
            SupervisorMessage::Released { id, generation, done } => {
                self.released(myself, &id, generation, done);
            }
            SupervisorMessage::Reconfigure(done) => {
                for session in self.sessions.values() {
                    if let (Some(actor), Some(agent)) = (session.phase.actor(), session.shared.agent()) {
                        let _ = actor.cast(
                            SessionMessage::Configure { agent, only_if_idle: false, reply: None }.into(),
                        );
                    }
                }
                let _ = done.send(());
            }
            SupervisorMessage::CheckSettings { settings, reply } => {
                let ask = |session: &Supervised| {
                    let actor = session.phase.actor()?;
                    let (reply, answer) = oneshot::channel();
                    let settings = Arc::clone(&settings);
                    actor.cast(SessionMessage::CheckSettings { settings, reply }.into()).ok()?;
                    Some(answer)
                };
                let _ = reply.send(self.sessions.values().filter_map(ask).collect());
            }
            SupervisorMessage::Find { id, reply } => {
                let _ = reply.send(self.known(&id));
            }
            SupervisorMessage::Attach { id, parent, reply } => {
                let shared = self.known(&id).unwrap_or_else(|| {
                    let unpublished = self.unpublished.get(&id).copied();
                    let shared = Arc::new(SessionShared::new(Arc::clone(&id), parent, None, unpublished));
                    self.fall_asleep(&shared);
                    shared
                });
                let _ = reply.send(shared);
            }
            SupervisorMessage::Suspended(reply) => {
                let _ = reply.send(self.suspended().collect());
            }
            SupervisorMessage::Awaited(reply) => {
                let is_awaited =
                    |session: &Supervised| session.phase.actor().is_some() && session.shared.is_awaited();
                let live = self.sessions.iter().filter(|(_, session)| is_awaited(session));
                let ids = live.map(|(id, _)| Arc::clone(id)).chain(self.suspended());
                let _ = reply.send(ids.collect());
            }
            SupervisorMessage::Live(reply) => {
                let live = self.sessions.iter().filter(|(_, session)| session.phase.actor().is_some());
                let _ = reply.send(live.map(|(id, _)| Arc::clone(id)).collect());
            }
            SupervisorMessage::Shutdown(done) => {
                self.shutdown = Some(done);
                // Those that sleep in the middle of a run are woken, so that it ends in order.
                let ids: Vec<Arc<str>> = self.sessions.keys().chain(self.suspended.keys()).cloned().collect();
                for id in ids {
                    self.close(myself, &id, Closer::Nobody);
                }
                self.stop_when_empty(myself);
            }
        }
    }

    /// The sessions whose runs go on while they sleep: those that were given up are not among them.
    fn suspended(&self) -> impl Iterator<Item = Arc<str>> {
        let is_suspended =
            |(_, (shared, _)): &(&Arc<str>, &(Arc<SessionShared>, ParkingPlace))| shared.is_suspended();
        self.suspended.iter().filter(is_suspended).map(|(id, _)| Arc::clone(id))
    }

    /// What is shared of a session that has actors, or that somebody holds.
    fn known(&self, id: &Arc<str>) -> Option<Arc<SessionShared>> {
        let live = self.sessions.get(id).map(|session| Arc::clone(&session.shared));
        let live = live.or_else(|| self.suspended.get(id).map(|(shared, _)| Arc::clone(shared)));
        live.or_else(|| self.asleep.get(id).and_then(Weak::upgrade))
    }

    fn open(&mut self, myself: &ActorRef<SupervisorMessage>, request: OpenRequest) {
        if self.shutdown.is_some() {
            let _ = request.reply.send(Err(Error::Closed));
            return;
        }
        let id = Arc::clone(&request.id);
        let is_wake = match &request.reason {
            OpenReason::Wake(shared) if shared.is_deleted() => {
                let _ = request.reply.send(Err(Error::Deleted { session: id.to_string() }));
                return;
            }
            OpenReason::Wake(_) => true,
            OpenReason::Open | OpenReason::Join | OpenReason::Finish => false,
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            match &mut session.phase {
                Phase::Live(actor) => hand_over(&session.shared, actor, request),
                Phase::Starting(wanted)
                | Phase::Drowsy(_, wanted)
                | Phase::Closing(wanted)
                | Phase::Held(wanted) => wanted.live.push(request),
                Phase::Failed(reason) if is_wake => {
                    let reason = reason.clone();
                    let _ = request.reply.send(Err(Error::SessionFailed { session: id.to_string(), reason }));
                }
                // Opening it again resumes it.
                Phase::Failed(_) => {
                    session.agent_before = session.shared.agent();
                    session.shared.set_agent(Some(Arc::clone(&request.agent)));
                    session.restarts = Restarts::default();
                    session.is_restart = false;
                    session.finishes = matches!(request.reason, OpenReason::Finish);
                    session.phase = Phase::Starting(Wanted::live(request));
                    self.start(myself, &id);
                }
            }
            return;
        }
        let (shared, agent_before, parking) = self.shared_for(&request);
        // A run that goes on while the session sleeps keeps its agent.
        let keeps = matches!(request.reason, OpenReason::Join) && shared.is_suspended();
        if !keeps || shared.agent().is_none() {
            shared.set_agent(Some(Arc::clone(&request.agent)));
        }
        let finishes = matches!(request.reason, OpenReason::Finish);
        let phase = Phase::Starting(Wanted::live(request));
        let session = Supervised { agent_before, finishes, parking, ..Supervised::new(shared, phase) };
        self.sessions.insert(Arc::clone(&id), session);
        self.start(myself, &id);
    }

    /// What is shared of a session that is to have actors, the definition that it had, and the place of its run.
    fn shared_for(
        &mut self,
        request: &OpenRequest,
    ) -> (Arc<SessionShared>, Option<Arc<Agent>>, ParkingPlace) {
        let id = &request.id;
        let unpublished = self.unpublished.remove(id);
        let asleep = self.asleep.remove(id).and_then(|shared| shared.upgrade());
        let (asleep, parking) = match self.suspended.remove(id) {
            Some((shared, parking)) => (Some(shared), parking),
            None => (asleep, ParkingPlace::default()),
        };
        let known = match &request.reason {
            OpenReason::Wake(shared) => asleep.or_else(|| Some(Arc::clone(shared))),
            OpenReason::Open | OpenReason::Join | OpenReason::Finish => asleep,
        };
        match known.filter(|shared| request.parent.is_none() || shared.parent == request.parent) {
            Some(shared) => {
                let agent = shared.agent();
                (shared, agent, parking)
            }
            None => {
                let parent = request.parent.clone();
                let shared = SessionShared::new(Arc::clone(id), parent, None, unpublished);
                (Arc::new(shared), None, ParkingPlace::default())
            }
        }
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
            parking: session.parking.clone(),
            finishes: std::mem::take(&mut session.finishes),
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
            Phase::Live(_) | Phase::Drowsy(..) | Phase::Closing(_) | Phase::Held(_) | Phase::Failed(_) => {
                return;
            }
        };
        match result {
            Ok(actor) => {
                self.actors.insert(actor.get_id(), Arc::clone(id));
                session.shared.set_actor(Some(actor.clone()));
                session.shared.mark_used(self.deps.next_use());
                session.is_restart = false;
                session.agent_before = None;
                self.goes_on(myself, id, &actor, wanted);
                self.make_room(id);
            }
            Err(error) => {
                let tried = session.shared.agent();
                let is_refused = |opener: &OpenRequest| {
                    session.is_restart
                        || tried.as_ref().is_some_and(|tried| Arc::ptr_eq(&opener.agent, tried))
                };
                let Wanted { live, closed, deleted, amended } = wanted;
                if !closed.is_empty() || !deleted.is_empty() || self.shutdown.is_some() {
                    // It cannot be ended in order.
                    drop(session.parking.take(&session.shared));
                }
                let (refused, others): (Vec<_>, Vec<_>) = live.into_iter().partition(is_refused);
                for opener in refused {
                    let _ = opener.reply.send(Err(error.clone()));
                }
                if !session.is_restart {
                    session.shared.set_agent(session.agent_before.take());
                }
                let is_awaited = !closed.is_empty() || !deleted.is_empty() || !others.is_empty();
                let is_restart = session.is_restart;
                if is_restart && !is_awaited {
                    self.died(myself, id, &error.to_string());
                    // What was to be changed is tried when it is up again, or told that it failed.
                    amended.into_iter().for_each(|request| self.amend(myself, request));
                } else {
                    // Somebody else may open it with a definition that works.
                    self.go_on(myself, id, Wanted { live: others, closed, deleted, amended });
                }
            }
        }
    }

    /// A session's actor runs: what was wanted of it meanwhile is said to it.
    fn goes_on(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        actor: &ActorRef<SessionMail>,
        wanted: Wanted,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.phase = Phase::Live(actor.clone());
        for opener in wanted.live {
            hand_over(&session.shared, actor, opener);
        }
        // The report of its death may have arrived before it was known.
        if actor.get_status() >= ActorStatus::Stopping {
            let early = self.early_deaths.iter().find(|(early, _)| *early == actor.get_id());
            let reason = early.map_or("it died as it began", |(_, reason)| reason).to_owned();
            self.actor_died(myself, actor.get_id(), &reason);
        }
        for request in wanted.amended {
            amend_live(actor, request);
        }
        for closer in wanted.closed.into_iter().map(Closer::Told) {
            self.close(myself, id, closer);
        }
        for closer in wanted.deleted.into_iter().map(Closer::Deletes) {
            self.close(myself, id, closer);
        }
        if self.shutdown.is_some() {
            self.close(myself, id, Closer::Nobody);
        }
    }

    /// A session that sleeps in its run cannot be woken: callers that wait for the run are told why. A run that was parked
    /// since is another one.
    fn give_up(&mut self, id: &Arc<str>, parking: Parking, error: &Error) {
        let kept =
            self.sessions.get(id).map(|session| (Arc::clone(&session.shared), session.parking.clone()));
        // It stays known: handles hold what is shared of it, and its next actor must get the same.
        let Some((shared, place)) = kept.or_else(|| self.suspended.get(id).cloned()) else { return };
        if shared.parking() != Some(parking) {
            return;
        }
        if let Some(suspended) = place.take(&shared) {
            tracing::error!(session = %id, %error, "a session that slept in its run cannot be woken");
            suspended.give_up(error);
        }
    }

    /// A session says that it has nothing to do: it is told to fall asleep, and looks again before it does.
    fn let_sleep(&mut self, id: &Arc<str>) {
        let Some(Supervised { phase: phase @ Phase::Live(_), .. }) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(actor) = phase.actor().cloned() else { return };
        // One that is dead already is closed when the report of its death arrives.
        let _ = actor.cast(SessionMessage::Sleep.into());
        *phase = Phase::Drowsy(actor, Wanted::default());
    }

    /// A session that was told to fall asleep stays awake.
    fn stays_awake(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>) {
        let Some(Supervised { phase: Phase::Drowsy(actor, wanted), .. }) = self.sessions.get_mut(id) else {
            return;
        };
        let (actor, wanted) = (actor.clone(), std::mem::take(wanted));
        self.goes_on(myself, id, &actor, wanted);
    }

    /// Where more sessions are live than there may be: those that were used least recently are to sleep, if they have
    /// nothing to do. `opened` stays.
    fn make_room(&self, opened: &Arc<str>) {
        let Some(max) = self.deps.live_sessions_max else { return };
        let excess = self.actors.len().saturating_sub(max);
        if excess == 0 {
            return;
        }
        let mut live: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(id, Supervised { shared, phase, .. })| match phase {
                Phase::Live(actor) if id != opened => Some((shared.used(), shared, actor)),
                Phase::Live(_)
                | Phase::Starting(_)
                | Phase::Drowsy(..)
                | Phase::Closing(_)
                | Phase::Held(_)
                | Phase::Failed(_) => None,
            })
            .collect();
        // All are looked at for that, so there is room for some more afterwards.
        let count = (excess + max / ROOM_SHARE).min(live.len());
        if count < live.len() {
            live.select_nth_unstable_by_key(count, |(used, _, _)| *used);
        }
        for (_, shared, actor) in &live[..count] {
            let activity = shared.activity.load(Ordering::Relaxed);
            let _ = actor.cast(SessionMessage::IdleCheck { activity, again: false }.into());
        }
    }

    /// A session has no actors: it is deleted, changed or started again, as those want who wait for it.
    fn go_on(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, mut wanted: Wanted) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.shared.is_suspended()
            && (!wanted.closed.is_empty() || !wanted.deleted.is_empty() || self.shutdown.is_some())
        {
            // Its run ends in order: the session is closed when it is up.
            session.agent_before = session.shared.agent();
            session.phase = Phase::Starting(wanted);
            self.start(myself, id);
            return;
        }
        tell(std::mem::take(&mut wanted.closed));
        if !wanted.deleted.is_empty() {
            let replies = std::mem::take(&mut wanted.deleted);
            session.phase = Phase::Held(wanted);
            self.delete_held(myself, id, replies);
        } else if !wanted.amended.is_empty() {
            let request = wanted.amended.remove(0);
            session.phase = Phase::Held(wanted);
            self.amend_held(myself, id, request);
        } else if let Some(first) = wanted.live.first().filter(|_| self.shutdown.is_none()) {
            session.agent_before = session.shared.agent();
            session.shared.set_agent(Some(Arc::clone(&first.agent)));
            session.finishes = wanted.live.iter().any(|opener| matches!(opener.reason, OpenReason::Finish));
            session.phase = Phase::Starting(wanted);
            self.start(myself, id);
        } else {
            self.forget(id);
        }
        self.stop_when_empty(myself);
    }

    /// Deletes a session that has no actors, in a task of its own.
    fn delete_held(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        replies: Vec<ReplyTo<()>>,
    ) {
        let (deps, session) = (Arc::clone(&self.deps), Arc::clone(id));
        self.in_store(myself, id, async move {
            let result = stored::delete(&deps, session).await;
            HeldWork::Delete { result, replies }
        });
    }

    /// Changes a session that has no actors, in a task of its own.
    fn amend_held(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, request: AmendRequest) {
        let deps = Arc::clone(&self.deps);
        let Some(session) = self.sessions.get(id) else { return };
        let (shared, parking) = (Arc::clone(&session.shared), session.parking.clone());
        self.in_store(myself, id, async move {
            let AmendRequest { amendment, reply, .. } = request;
            let result = stored::amend(&deps, &shared, &parking, amendment).await;
            HeldWork::Amend { result, reply }
        });
    }

    fn in_store(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        work: impl Future<Output = HeldWork> + Send + 'static,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        self.generations += 1;
        session.generation = self.generations;
        let (generation, id, supervisor) = (session.generation, Arc::clone(id), myself.clone());
        tokio::spawn(async move {
            let done = work.await;
            let _ = supervisor.cast(SupervisorMessage::Released { id, generation, done });
        });
    }

    fn released(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        generation: u64,
        done: HeldWork,
    ) {
        let session = self.sessions.get_mut(id).filter(|session| session.generation == generation);
        let Some(Supervised { shared, phase: Phase::Held(wanted), .. }) = session else { return };
        let wanted = std::mem::take(wanted);
        match done {
            HeldWork::Amend { result, reply } => {
                let _ = reply.send(result);
                self.go_on(myself, id, wanted);
            }
            HeldWork::Delete { result: Ok(()), replies } => {
                shared.mark_deleted();
                shared.publish(&self.deps.bus, EventKind::SessionDeleted);
                shared.set_actor(None);
                self.sessions.remove(id);
                self.asleep.remove(id);
                self.unpublished.remove(id);
                let Wanted { live, closed, deleted, amended } = wanted;
                let gone = || Error::Deleted { session: id.to_string() };
                tell(closed);
                tell_all(replies, || Ok(()));
                tell_all(deleted, || Err(Error::NoSession { session: id.to_string() }));
                amended.into_iter().for_each(|request| drop(request.reply.send(Err(gone()))));
                // Another session of this id may begin; a handle of this one does not begin it.
                live.into_iter().for_each(|request| self.open(myself, request));
                self.stop_when_empty(myself);
            }
            HeldWork::Delete { result: Err(error), replies } => {
                tell_all(replies, || Err(error.clone()));
                self.go_on(myself, id, wanted);
            }
        }
    }

    /// Changes a session: by its actor, or in the store where it has none.
    fn amend(&mut self, myself: &ActorRef<SupervisorMessage>, request: AmendRequest) {
        let id = Arc::clone(&request.shared.id);
        if self.shutdown.is_some() {
            let _ = request.reply.send(Err(Error::Closed));
            return;
        }
        if request.shared.is_deleted() {
            let _ = request.reply.send(Err(Error::Deleted { session: id.to_string() }));
            return;
        }
        match self.sessions.get_mut(&id).map(|session| &mut session.phase) {
            Some(Phase::Live(actor)) => amend_live(actor, request),
            Some(
                Phase::Starting(wanted)
                | Phase::Drowsy(_, wanted)
                | Phase::Closing(wanted)
                | Phase::Held(wanted),
            ) => wanted.amended.push(request),
            Some(Phase::Failed(reason)) => {
                let reason = reason.clone();
                let _ = request.reply.send(Err(Error::SessionFailed { session: id.to_string(), reason }));
            }
            None => {
                let shared = self.known(&id).unwrap_or_else(|| Arc::clone(&request.shared));
                self.asleep.remove(&id);
                let parking = self.suspended.remove(&id).map(|(_, parking)| parking).unwrap_or_default();
                let session =
                    Supervised { parking, ..Supervised::new(shared, Phase::Held(Wanted::default())) };
                self.sessions.insert(Arc::clone(&id), session);
                self.amend_held(myself, &id, request);
            }
        }
    }

    /// Forgets a session that has no actors any more: but not what is shared with those who hold it, nor which of its
    /// events are still due.
    fn forget(&mut self, id: &Arc<str>) {
        let Some(session) = self.sessions.remove(id) else { return };
        let Supervised { shared, parking, .. } = session;
        shared.set_actor(None);
        if let Some(below) = shared.first_unpublished() {
            self.unpublished.insert(Arc::clone(id), below);
        }
        if shared.is_suspended() {
            self.suspended.insert(Arc::clone(id), (shared, parking));
        } else if Arc::strong_count(&shared) > 1 {
            self.fall_asleep(&shared);
        }
    }

    /// Remembers what is shared of a session without actors, as long as somebody holds it.
    fn fall_asleep(&mut self, shared: &Arc<SessionShared>) {
        // Those that nobody holds any more go when the map would grow.
        if self.asleep.len() == self.asleep.capacity() {
            self.asleep.retain(|_, shared| shared.strong_count() > 0);
        }
        self.asleep.insert(Arc::clone(&shared.id), Arc::downgrade(shared));
    }

    /// An actor died: one that is not known yet is remembered until it is.
    fn actor_died(&mut self, myself: &ActorRef<SupervisorMessage>, actor: ActorId, reason: &str) {
        let Some(id) = self.actors.remove(&actor) else {
            self.early_deaths.truncate(EARLY_DEATHS_MAX - 1);
            self.early_deaths.push_front((actor, reason.to_owned()));
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        // One that agreed to fall asleep has left already.
        let is_asleep = session.shared.actor().is_none();
        session.shared.set_actor(None);
        match &mut session.phase {
            Phase::Closing(_) => self.closed(myself, &id),
            Phase::Drowsy(_, wanted) if is_asleep => {
                let wanted = std::mem::take(wanted);
                self.go_on(myself, &id, wanted);
            }
            Phase::Drowsy(_, wanted) => {
                let wanted = std::mem::take(wanted);
                self.died(myself, &id, reason);
                self.ask_again(myself, &id, wanted);
            }
            Phase::Starting(_) | Phase::Live(_) | Phase::Failed(_) => self.died(myself, &id, reason),
            // Its actors were gone before it was held.
            Phase::Held(_) => {}
        }
    }

    /// What was wanted of a session that died before it could be told is asked for once more.
    fn ask_again(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, wanted: Wanted) {
        let Wanted { live, closed, deleted, amended } = wanted;
        live.into_iter().for_each(|request| self.open(myself, request));
        amended.into_iter().for_each(|request| self.amend(myself, request));
        closed.into_iter().for_each(|done| self.close(myself, id, Closer::Told(done)));
        deleted.into_iter().for_each(|reply| self.close(myself, id, Closer::Deletes(reply)));
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
            Phase::Starting(_) | Phase::Live(_) | Phase::Drowsy(..) | Phase::Held(_) | Phase::Failed(_) => {
                return;
            }
        };
        self.go_on(myself, id, wanted);
    }

    /// Ends a session's actors in order. A later request wakes it, unless it is deleted.
    fn close(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, closer: Closer) {
        if let Some((shared, parking)) = self.suspended.remove(id) {
            // Its run ends in order: the session is closed when it is up.
            let mut wanted = Wanted::default();
            wanted.add(closer);
            let agent_before = shared.agent();
            let session =
                Supervised { agent_before, parking, ..Supervised::new(shared, Phase::Starting(wanted)) };
            self.sessions.insert(Arc::clone(id), session);
            self.start(myself, id);
            return;
        }
        let session = self.sessions.get_mut(id);
        match session.map(|session| (&session.shared, &mut session.phase)) {
            Some((shared, phase @ Phase::Live(_))) => {
                shared.set_actor(None);
                let mut wanted = Wanted::default();
                wanted.add(closer);
                if let Phase::Live(actor) = std::mem::replace(phase, Phase::Closing(wanted)) {
                    // A session that is dead already is closed when the report of its death arrives.
                    let _ = actor.cast(SessionMessage::Stop.into());
                }
            }
            // One that is being started is closed when it is up, and one that may stay awake when it says so.
            Some((
                _,
                Phase::Starting(wanted)
                | Phase::Drowsy(_, wanted)
                | Phase::Closing(wanted)
                | Phase::Held(wanted),
            )) => wanted.add(closer),
            Some((_, Phase::Failed(_))) => {
                let mut wanted = Wanted::default();
                wanted.add(closer);
                self.go_on(myself, id, wanted);
            }
            None => match closer {
                Closer::Nobody => {}
                Closer::Told(done) => tell([done]),
                Closer::Deletes(reply) => {
                    let known = self.known(id);
                    let shared = known
                        .unwrap_or_else(|| Arc::new(SessionShared::new(Arc::clone(id), None, None, None)));
                    self.asleep.remove(id);
                    let session = Supervised::new(shared, Phase::Held(Wanted::default()));
                    self.sessions.insert(Arc::clone(id), session);
                    self.delete_held(myself, id, vec![reply]);
                }
            },
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
fn hand_over(shared: &Arc<SessionShared>, actor: &ActorRef<SessionMail>, opener: OpenRequest) {
    let OpenRequest { agent, reply, reason, .. } = opener;
    let only_if_idle = matches!(reason, OpenReason::Join);
    if shared.agent().is_some_and(|current| Arc::ptr_eq(&current, &agent)) {
        let _ = reply.send(Ok(Arc::clone(shared)));
    } else {
        // One that is dead drops the reply, and then the session is opened again.
        let _ = actor.cast(SessionMessage::Configure { agent, only_if_idle, reply: Some(reply) }.into());
    }
}

fn amend_live(actor: &ActorRef<SessionMail>, request: AmendRequest) {
    let AmendRequest { amendment, reply, .. } = request;
    let _ = actor.cast(SessionMessage::Amend { amendment, reply }.into());
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

#[cfg(test)]
mod tests;

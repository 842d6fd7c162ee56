//! The supervisor: the set of live sessions. It opens sessions, restarts them with backoff, lets them sleep
//! and stops them.
//!
//! Invariants: a session is live at most once; no handler of the supervisor waits: sessions are started in
//! tasks and report back; a session that crashes affects no other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use crate::actors::session::parked::ParkingPlace;
#[cfg(feature = "metrics")]
use crate::agent::Agent;
use greenroom_store::StoreError;

use crate::core::deps::Deps;
use crate::core::message::{OpenReason, SessionMessage, SupervisorMessage};
#[cfg(feature = "metrics")]
use crate::core::metrics::Census;
use crate::core::metrics::{Happened, Restarted};
use crate::core::shared::{Parking, SessionShared};
use crate::events::event::EventKind;
use crate::limits::restarts::RESTARTS_MAX;
use crate::values::error::{Error, Result};
#[cfg(feature = "metrics")]
use crate::values::state::Status;

mod held;
mod opening;
mod phase;

use phase::{Closer, Phase, Supervised, Wanted};

/// The supervisor actor.
pub(crate) struct Supervisor;

/// The supervisor's state.
pub(crate) struct SupervisorState {
    deps: Arc<Deps>,
    /// In the order of ids, so that messages to all sessions always have the same order.
    sessions: BTreeMap<Arc<str>, Supervised>,
    /// The session of each actor.
    actors: HashMap<ActorId, Arc<str>>,
    /// The shared state of sessions without actors to which handles exist: the same state is used when they
    /// are opened again.
    asleep: HashMap<Arc<str>, Weak<SessionShared>>,
    /// Sessions that sleep during a run whose tools continue, and those runs. They end with the supervisor.
    suspended: BTreeMap<Arc<str>, (Arc<SessionShared>, ParkingPlace)>,
    /// Sessions that ended before all their durable events were published: the first unpublished one.
    unpublished: HashMap<Arc<str>, u64>,
    /// The last actors that died before they were known, and the reasons.
    early_deaths: VecDeque<(ActorId, String)>,
    generations: u64,
    shutdown: Option<oneshot::Sender<()>>,
}

/// When room is made, this part of the maximum number of live sessions is freed in addition.
const ROOM_SHARE: usize = 16;
/// How many early deaths are remembered.
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
            SupervisionEvent::ActorTerminated(child, last, reason) => {
                // The session's span closes when its state is dropped, which must be before callers learn of the end.
                drop(last);
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
            SupervisorMessage::Rests { id } => self.make_room(&id),
            SupervisorMessage::GiveUp { id, parking, error } => self.give_up(&id, parking, &error),
            SupervisorMessage::StaysAwake { id } => self.stays_awake(myself, &id),
            SupervisorMessage::Close { id, done } => self.close(myself, &id, Closer::Told(done)),
            SupervisorMessage::Delete { id, reply } => self.close(myself, &id, Closer::Deletes(reply)),
            SupervisorMessage::DeleteUnused { id, entries, reason, reply } => {
                self.delete_unused(myself, &id, entries, reason, reply);
            }
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
            #[cfg(feature = "metrics")]
            SupervisorMessage::Census(reply) => _ = reply.send(self.census()),
            SupervisorMessage::Live(reply) => {
                let live = self.sessions.iter().filter(|(_, session)| session.phase.actor().is_some());
                let _ = reply.send(live.map(|(id, _)| Arc::clone(id)).collect());
            }
            SupervisorMessage::LeaseLost => self.lease_lost(),
            SupervisorMessage::Shutdown(done) => {
                self.shutdown = Some(done);
                // Sessions that sleep during a run are woken, so that the run ends cleanly.
                let ids: Vec<Arc<str>> = self.sessions.keys().chain(self.suspended.keys()).cloned().collect();
                for id in ids {
                    self.close(myself, &id, Closer::Nobody);
                }
                self.stop_when_empty(myself);
            }
        }
    }

    /// Ends all work: it belongs to other nodes.
    fn lease_lost(&mut self) {
        for session in self.sessions.values() {
            if let Some(actor) = session.phase.actor() {
                session.shared.lose();
                actor.stop(Some(StoreError::LeaseLost.to_string()));
            }
        }
        for (_, (shared, parking)) in std::mem::take(&mut self.suspended) {
            shared.lose();
            if let Some(suspended) = parking.take(&shared) {
                suspended.give_up(&shared.gone());
            }
        }
    }

    /// Returns what all sessions in memory do, and the agents that bring their own providers.
    #[cfg(feature = "metrics")]
    fn census(&self) -> (Census, Vec<Arc<Agent>>) {
        let live = self.sessions.values().filter(|session| session.phase.actor().is_some());
        let is_failed = |session: &&Supervised| matches!(session.phase, Phase::Failed(_));
        let census = Census {
            live: live.map(|session| session.shared.published().status.unwrap_or(Status::Idle)).collect(),
            asleep: self.suspended().count(),
            failed: self.sessions.values().filter(is_failed).count(),
            ..Census::default()
        };
        let sessions = self.sessions.values().map(|session| &session.shared);
        let sessions = sessions.chain(self.suspended.values().map(|(shared, _)| shared));
        let agents = sessions.filter_map(|shared| shared.agent());
        (census, agents.filter(|agent| agent.own_provider.is_some()).collect())
    }

    /// Returns the sessions whose runs continue while they sleep, without failed ones.
    fn suspended(&self) -> impl Iterator<Item = Arc<str>> {
        let is_suspended =
            |(_, (shared, _)): &(&Arc<str>, &(Arc<SessionShared>, ParkingPlace))| shared.is_suspended();
        self.suspended.iter().filter(is_suspended).map(|(id, _)| Arc::clone(id))
    }

    /// Returns the shared state of a session that has actors, or to which a handle exists.
    fn known(&self, id: &Arc<str>) -> Option<Arc<SessionShared>> {
        let live = self.sessions.get(id).map(|session| Arc::clone(&session.shared));
        let live = live.or_else(|| self.suspended.get(id).map(|(shared, _)| Arc::clone(shared)));
        live.or_else(|| self.asleep.get(id).and_then(Weak::upgrade))
    }

    /// Handles that a session that sleeps during its run cannot be woken: callers of the run get the error. A
    /// run that was parked later is another one.
    fn give_up(&mut self, id: &Arc<str>, parking: Parking, error: &Error) {
        let kept =
            self.sessions.get(id).map(|session| (Arc::clone(&session.shared), session.parking.clone()));
        // The session stays known: handles have its shared state, and its next actor must get the same.
        let Some((shared, place)) = kept.or_else(|| self.suspended.get(id).cloned()) else { return };
        if shared.parking() != Some(parking) {
            return;
        }
        if let Some(suspended) = place.take(&shared) {
            tracing::error!(session = %id, %error, "a session that slept during its run cannot be woken");
            suspended.give_up(error);
        }
    }

    /// Handles a session's report that it is idle: it is told to sleep, and checks again before it does.
    fn let_sleep(&mut self, id: &Arc<str>) {
        let Some(Supervised { phase: phase @ Phase::Live(_), .. }) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(actor) = phase.actor().cloned() else { return };
        // A dead session is closed when the report of its death arrives.
        let _ = actor.cast(SessionMessage::Sleep.into());
        *phase = Phase::Drowsy(actor, Wanted::default());
    }

    /// Handles that a session that was told to sleep stays awake.
    fn stays_awake(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>) {
        let Some(Supervised { phase: Phase::Drowsy(actor, wanted), .. }) = self.sessions.get_mut(id) else {
            return;
        };
        let (actor, wanted) = (actor.clone(), std::mem::take(wanted));
        self.goes_on(myself, id, &actor, wanted);
    }

    /// If more sessions are live than permitted, lets the least recently used ones sleep if they are idle.
    /// `newest` stays: it was just opened, or has just worked.
    fn make_room(&self, newest: &Arc<str>) {
        let Some(max) = self.deps.live_sessions_max else { return };
        if self.actors.len() <= max {
            return;
        }
        // Those that already fall asleep, which takes as long as the store does, make room too.
        let leaving = self.sessions.values().filter(|session| match session.phase {
            Phase::Drowsy(..) | Phase::Closing(_) => true,
            Phase::Live(_) | Phase::Starting(_) | Phase::Held(_) | Phase::Failed(_) => false,
        });
        let excess = self.actors.len().saturating_sub(leaving.count() + max);
        if excess == 0 {
            return;
        }
        let mut live: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(id, Supervised { shared, phase, .. })| match phase {
                Phase::Live(actor) if id != newest => Some((shared.used(), shared, actor)),
                Phase::Live(_)
                | Phase::Starting(_)
                | Phase::Drowsy(..)
                | Phase::Closing(_)
                | Phase::Held(_)
                | Phase::Failed(_) => None,
            })
            .collect();
        // All sessions are checked for this, so some more room is made.
        let count = (excess + max / ROOM_SHARE).min(live.len());
        if count < live.len() {
            live.select_nth_unstable_by_key(count, |(used, _, _)| *used);
        }
        for (_, shared, actor) in &live[..count] {
            let activity = shared.activity.load(Ordering::Relaxed);
            let _ = actor.cast(SessionMessage::IdleCheck { activity, again: false }.into());
        }
    }

    /// Handles a session without actors: it is deleted, changed or started again, as its waiting callers
    /// require.
    fn go_on(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, mut wanted: Wanted) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.shared.is_suspended()
            && (!wanted.closed.is_empty() || !wanted.deleted.is_empty() || self.shutdown.is_some())
        {
            // Its run ends cleanly: the session is closed once it has started.
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
            session.shared.set_agent(&self.deps.bus, Some(Arc::clone(&first.agent)));
            session.finishes = wanted.live.iter().any(|opener| matches!(opener.reason, OpenReason::Finish));
            session.phase = Phase::Starting(wanted);
            self.start(myself, id);
        } else {
            self.forget(id);
        }
        self.stop_when_empty(myself);
    }

    /// Forgets a session without actors, except its shared state if a handle exists, and its unpublished
    /// events.
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

    /// Remembers the shared state of a session without actors, as long as a handle exists.
    fn fall_asleep(&mut self, shared: &Arc<SessionShared>) {
        // Entries without handles are removed when the map would grow.
        if self.asleep.len() == self.asleep.capacity() {
            self.asleep.retain(|_, shared| shared.strong_count() > 0);
        }
        self.asleep.insert(Arc::clone(&shared.id), Arc::downgrade(shared));
    }

    /// Handles the death of an actor; that of an unknown actor is remembered until the actor is known.
    fn actor_died(&mut self, myself: &ActorRef<SupervisorMessage>, actor: ActorId, reason: &str) {
        let reason = &*self.deps.redactor.all(reason);
        let Some(id) = self.actors.remove(&actor) else {
            self.early_deaths.truncate(EARLY_DEATHS_MAX - 1);
            self.early_deaths.push_front((actor, reason.to_owned()));
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        // An actor that agreed to sleep has been removed already.
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
            // Its actors had ended before it was held.
            Phase::Held(_) => {}
        }
    }

    /// Repeats the requests to a session that died before it got them.
    fn ask_again(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, wanted: Wanted) {
        let Wanted { live, closed, deleted, amended } = wanted;
        live.into_iter().for_each(|request| self.open(myself, request));
        amended.into_iter().for_each(|request| self.amend(myself, request));
        closed.into_iter().for_each(|done| self.close(myself, id, Closer::Told(done)));
        deleted.into_iter().for_each(|reply| self.close(myself, id, Closer::Deletes(reply)));
    }

    /// Handles a session without an actor that nobody closed: another actor is started from the log, after a
    /// wait, up to the limit of restarts.
    fn died(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, reason: &str) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.shared.is_lost() {
            session.shared.publish(&self.deps.bus, EventKind::SessionMoved { reason: reason.to_owned() });
            drop(session.parking.take(&session.shared));
            self.forget(id);
            self.stop_when_empty(myself);
            return;
        }
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
            self.deps.metrics.count(Happened::Restarted(Restarted::Session));
            session.shared.publish(&self.deps.bus, EventKind::SessionRestarted { reason: reason.to_owned() });
            restart_later(myself, Arc::clone(id), generation, wait);
        } else {
            self.deps.metrics.count(Happened::SessionFailed);
            session.shared.publish(&self.deps.bus, EventKind::SessionFailed { reason: reason.to_owned() });
            session.phase = Phase::Failed(format!(
                "it crashed {} times within a minute; the last reason: {reason}",
                RESTARTS_MAX + 1
            ));
        }
    }

    /// Handles a session that ended cleanly; it is started again if a caller requires it.
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

    /// Stops a session's actors cleanly. A later request wakes it, unless it is deleted.
    fn close(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>, closer: Closer) {
        if let Some((shared, parking)) = self.suspended.remove(id) {
            // Its run ends cleanly: the session is closed once it has started.
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
                    // A dead session is closed when the report of its death arrives.
                    let _ = actor.cast(SessionMessage::Stop.into());
                }
            }
            // A session that is starting is closed once it has started, and one that may stay awake when it
            // says so.
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
                    self.hold(id);
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

/// Notifies the callers that wanted a session closed.
fn tell(closers: impl IntoIterator<Item = oneshot::Sender<()>>) {
    for closer in closers {
        let _ = closer.send(());
    }
}

fn restart_later(myself: &ActorRef<SupervisorMessage>, id: Arc<str>, generation: u64, wait: Duration) {
    myself.send_after(wait, move || SupervisorMessage::Restart { id, generation });
}

#[cfg(test)]
mod tests;

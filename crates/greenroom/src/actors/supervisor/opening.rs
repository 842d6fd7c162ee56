//! Opening sessions: their actors are started in tasks, and report back.
//!
//! Invariants: a session is live at most once, and an actor that starts too late is stopped; an unusable
//! definition leaves the previous one in place.

use std::sync::Arc;

use ractor::{Actor, ActorRef, ActorStatus};

use super::SupervisorState;
use super::held::amend_live;
use super::phase::{Closer, Phase, Supervised, Wanted};
use crate::actors::session::parked::ParkingPlace;
use crate::actors::session::{Session, SessionArguments};
use crate::agent::Agent;
use crate::core::message::{OpenReason, OpenRequest, SessionMail, SessionMessage, SupervisorMessage};
use crate::core::shared::SessionShared;
use crate::limits::restarts::Restarts;
use crate::values::error::{Error, Result};

impl SupervisorState {
    pub(super) fn open(&mut self, myself: &ActorRef<SupervisorMessage>, request: OpenRequest) {
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
                // Opening the session again resumes it.
                Phase::Failed(_) => {
                    session.agent_before = session.shared.agent();
                    session.shared.set_agent(&self.deps.bus, Some(Arc::clone(&request.agent)));
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
        // A run that continues while the session sleeps keeps its agent.
        let keeps = matches!(request.reason, OpenReason::Join) && shared.is_suspended();
        if !keeps || shared.agent().is_none() {
            shared.set_agent(&self.deps.bus, Some(Arc::clone(&request.agent)));
        }
        let finishes = matches!(request.reason, OpenReason::Finish);
        let phase = Phase::Starting(Wanted::live(request));
        let session = Supervised { agent_before, finishes, parking, ..Supervised::new(shared, phase) };
        self.sessions.insert(Arc::clone(&id), session);
        self.start(myself, &id);
    }

    /// Returns the shared state of a session that will have actors, its previous definition, and the place of
    /// its run.
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
    pub(super) fn start(&mut self, myself: &ActorRef<SupervisorMessage>, id: &Arc<str>) {
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

    pub(super) fn opened(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        generation: u64,
        result: Result<ActorRef<SessionMail>>,
    ) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.generation == generation)
        else {
            // The supervisor does not expect this actor, and a session is live at most once.
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
                    // The run cannot be ended cleanly.
                    drop(session.parking.take(&session.shared));
                }
                let (refused, others): (Vec<_>, Vec<_>) = live.into_iter().partition(is_refused);
                for opener in refused {
                    let _ = opener.reply.send(Err(error.clone()));
                }
                if !session.is_restart {
                    session.shared.set_agent(&self.deps.bus, session.agent_before.take());
                }
                let is_awaited = !closed.is_empty() || !deleted.is_empty() || !others.is_empty();
                let is_restart = session.is_restart;
                if is_restart && !is_awaited {
                    self.died(myself, id, &error.to_string());
                    // Changes are tried when the session has started again, or fail.
                    amended.into_iter().for_each(|request| self.amend(myself, request));
                } else {
                    // Another caller may open the session with a usable definition.
                    self.go_on(myself, id, Wanted { live: others, closed, deleted, amended });
                }
            }
        }
    }

    /// Sends a running session actor the requests that waited for it.
    pub(super) fn goes_on(
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
        // The report of its death may have arrived before the actor was known.
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
}

/// Returns a live session to its opener, once it works with the opener's definition.
fn hand_over(shared: &Arc<SessionShared>, actor: &ActorRef<SessionMail>, opener: OpenRequest) {
    let OpenRequest { agent, reply, reason, .. } = opener;
    let only_if_idle = matches!(reason, OpenReason::Join);
    if shared.agent().is_some_and(|current| Arc::ptr_eq(&current, &agent)) {
        let _ = reply.send(Ok(Arc::clone(shared)));
    } else {
        // A dead session drops the reply, and then it is opened again.
        let _ = actor.cast(SessionMessage::Configure { agent, only_if_idle, reply: Some(reply) }.into());
    }
}

/// Converts the error of a session's start for its caller.
fn start_error(id: &Arc<str>, error: ractor::SpawnErr) -> Error {
    if let ractor::SpawnErr::StartupFailed(reason) = error {
        return match reason.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::SessionFailed { session: id.to_string(), reason: other.to_string() },
        };
    }
    Error::SessionFailed { session: id.to_string(), reason: error.to_string() }
}

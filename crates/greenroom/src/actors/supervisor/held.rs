//! Changing and deleting sessions without actors in the store, each in a task of its own.
//!
//! Invariants: a session is held in the meantime, so it has one writer; requests to it wait until it is
//! released.

use std::sync::Arc;

use greenroom_kernel::Head;
use ractor::ActorRef;

use super::phase::{Phase, Supervised, Wanted};
use super::{SupervisorState, tell};
use crate::actors::session::stored;
use crate::core::message::{
    AmendRequest, HeldWork, ReplyTo, SessionMail, SessionMessage, SupervisorMessage, tell_all,
};
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;
use crate::values::error::Error;
use crate::values::retention::DeletionReason;

impl SupervisorState {
    /// Changes a session: through its actor, or in the store if it has none.
    pub(super) fn amend(&mut self, myself: &ActorRef<SupervisorMessage>, request: AmendRequest) {
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

    /// Deletes a session without actors, in a task of its own.
    pub(super) fn delete_held(
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

    /// Deletes a session that has no actors and nothing to do, if it still has this many entries. Requests that arrive
    /// meanwhile wait; they find it unchanged, or find another session of its id.
    pub(super) fn delete_unused(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        entries: u64,
        reason: DeletionReason,
        reply: ReplyTo<bool>,
    ) {
        let is_used = self.sessions.contains_key(id) || self.suspended.contains_key(id);
        if is_used || self.shutdown.is_some() {
            let _ = reply.send(Ok(false));
            return;
        }
        self.hold(id);
        let (deps, session) = (Arc::clone(&self.deps), Arc::clone(id));
        self.in_store(myself, id, async move {
            let result = stored::delete_unchanged(&deps, session, entries).await;
            HeldWork::DeleteUnused { result, reason, reply }
        });
    }

    /// Holds a session that has no actors.
    pub(super) fn hold(&mut self, id: &Arc<str>) {
        let shared =
            self.known(id).unwrap_or_else(|| Arc::new(SessionShared::new(Arc::clone(id), None, None, None)));
        self.asleep.remove(id);
        self.sessions.insert(Arc::clone(id), Supervised::new(shared, Phase::Held(Wanted::default())));
    }

    /// Changes a session without actors, in a task of its own.
    pub(super) fn amend_held(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        request: AmendRequest,
    ) {
        let deps = Arc::clone(&self.deps);
        let Some(session) = self.sessions.get(id) else { return };
        let (shared, parking) = (Arc::clone(&session.shared), session.parking.clone());
        self.in_store(myself, id, async move {
            let AmendRequest { amendment, reply, .. } = request;
            let result = stored::amend(&deps, &shared, &parking, amendment).await;
            HeldWork::Amend { result, reply }
        });
    }

    pub(super) fn released(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        generation: u64,
        done: HeldWork,
    ) {
        let session = self.sessions.get_mut(id).filter(|session| session.generation == generation);
        let Some(Supervised { phase: Phase::Held(wanted), .. }) = session else { return };
        let wanted = std::mem::take(wanted);
        match done {
            HeldWork::Amend { result, reply } => {
                let _ = reply.send(result);
                self.go_on(myself, id, wanted);
            }
            HeldWork::Delete { result: Ok(head), replies } => {
                self.deleted(myself, id, &head, wanted, None);
                tell_all(replies, || Ok(()));
            }
            HeldWork::DeleteUnused { result: Ok(Some(head)), reason, reply } => {
                self.deleted(myself, id, &head, wanted, Some(reason));
                let _ = reply.send(Ok(true));
            }
            HeldWork::DeleteUnused { result, reply, .. } => {
                let _ = reply.send(result.map(|_| false));
                self.go_on(myself, id, wanted);
            }
            HeldWork::Delete { result: Err(error), replies } => {
                tell_all(replies, || Err(error.clone()));
                self.go_on(myself, id, wanted);
            }
        }
    }

    /// Handles that a held session with this last head was deleted.
    fn deleted(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        id: &Arc<str>,
        head: &Head,
        wanted: Wanted,
        reason: Option<DeletionReason>,
    ) {
        if let Some(Supervised { shared, .. }) = self.sessions.remove(id) {
            shared.mark_deleted();
            // A sleeping session has published nothing: without its position, followers would attribute the event to
            // another session.
            shared.start_broadcast(head.entries, head.created_at_ms);
            shared.publish(&self.deps.bus, EventKind::SessionDeleted { reason });
            shared.set_actor(None);
        }
        self.asleep.remove(id);
        self.unpublished.remove(id);
        let Wanted { live, closed, deleted, amended } = wanted;
        let gone = || Error::Deleted { session: id.to_string() };
        tell(closed);
        tell_all(deleted, || Err(Error::NoSession { session: id.to_string() }));
        amended.into_iter().for_each(|request| drop(request.reply.send(Err(gone()))));
        // A new session may have this id; a handle of the deleted one does not create it.
        live.into_iter().for_each(|request| self.open(myself, request));
        self.stop_when_empty(myself);
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
}

pub(super) fn amend_live(actor: &ActorRef<SessionMail>, request: AmendRequest) {
    let AmendRequest { amendment, reply, .. } = request;
    let _ = actor.cast(SessionMessage::Amend { amendment, reply }.into());
}

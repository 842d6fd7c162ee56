//! How the tasks of a run reach its agent, even while the session sleeps.
//!
//! Invariants: messages to a sleeping agent are kept in order, wake the session, and are delivered first when
//! the run continues. A crashed agent gets no more messages: its run continues with another line.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ractor::ActorRef;

use crate::core::deps::Deps;
use crate::core::door;
use crate::core::mail::Mail;
use crate::core::message::{AgentMessage, SessionMessage};
use crate::core::shared::SessionShared;

/// The connection to the agent of one run. Clones lead to the same agent.
#[derive(Clone)]
pub(crate) struct AgentLine(Arc<Inner>);

struct Inner {
    deps: Weak<Deps>,
    shared: Weak<SessionShared>,
    end: Mutex<End>,
}

enum End {
    /// The agent is running.
    Agent(ActorRef<Mail<AgentMessage>>),
    /// The session sleeps, and these messages wait for the agent.
    Asleep(Vec<AgentMessage>),
}

impl AgentLine {
    pub(crate) fn new(
        deps: &Arc<Deps>,
        shared: &Arc<SessionShared>,
        agent: ActorRef<Mail<AgentMessage>>,
    ) -> Self {
        let (deps, shared) = (Arc::downgrade(deps), Arc::downgrade(shared));
        Self(Arc::new(Inner { deps, shared, end: Mutex::new(End::Agent(agent)) }))
    }

    /// Sends messages to the agent. A sleeping session is woken.
    pub(crate) fn send(&self, mail: Mail<AgentMessage>) {
        match &mut *self.0.end.lock() {
            End::Agent(agent) => {
                // A crashed agent is replaced, and its run continues with another line.
                let _ = agent.cast(mail);
                return;
            }
            End::Asleep(waiting) => mail.each(|message| waiting.push(message)),
        }
        self.wake();
    }

    /// Starts to buffer messages.
    pub(crate) fn fall_asleep(&self) {
        *self.0.end.lock() = End::Asleep(Vec::new());
    }

    /// Connects the agent that continues the run, and sends it the buffered messages.
    pub(crate) fn wake_up(&self, agent: ActorRef<Mail<AgentMessage>>) {
        let mut end = self.0.end.lock();
        if let End::Asleep(waiting) = &mut *end
            && let Some(mail) = Mail::of(std::mem::take(waiting))
        {
            let _ = agent.cast(mail);
        }
        *end = End::Agent(agent);
    }

    /// Wakes the session if messages wait for the agent.
    pub(crate) fn wake_if_awaited(&self) {
        if matches!(&*self.0.end.lock(), End::Asleep(waiting) if !waiting.is_empty()) {
            self.wake();
        }
    }

    fn wake(&self) {
        let (Some(deps), Some(shared)) = (self.0.deps.upgrade(), self.0.shared.upgrade()) else { return };
        tokio::spawn(async move { door::tell(&deps, &shared, SessionMessage::Wake).await });
    }
}

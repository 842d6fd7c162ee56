//! Held-back work: an earlier process left it, and this process does not continue it automatically, because it
//! was meant for an agent with another fingerprint, because required validators are missing, or because a
//! provider failed.
//!
//! Invariants: held-back work starts only on request of a caller that has everything it needs; it is only in
//! the log, so it is not lost with the process.

use std::sync::Arc;

use greenroom_kernel::log::InboxItem;
use greenroom_kernel::terms::Terms;
use greenroom_kernel::{EntryId, ToolCall};

use super::SessionState;
use crate::agent::{Agent, team};
use crate::core::terms::lacking;
use crate::values::error::Error;

impl SessionState {
    /// Whether the newest run may continue with this agent, or with the session's if `agent` is `None`. Input
    /// for an agent with a fingerprint never reaches the tools of another one. And every answer must be
    /// judged: the agent needs the named validators, and the request as many functions as there are unnamed
    /// ones.
    pub(super) fn may_go_on(&self, agent: Option<&Arc<Agent>>, functions: usize) -> bool {
        self.is_meant_for(self.log.head().run_fingerprint.as_ref(), agent)
            && self.lacking(self.log.run_terms().map(|(_, terms)| terms), agent, functions).is_none()
    }

    /// Returns the validators that are missing with this agent, or with the session's.
    pub(super) fn lacking(
        &self,
        terms: Option<&Arc<Terms>>,
        agent: Option<&Arc<Agent>>,
        functions: usize,
    ) -> Option<(Vec<String>, u32)> {
        let agent = agent.cloned().or_else(|| self.shared.agent());
        let agent = agent.map(|agent| team::answering(agent, self.log.head().agent.as_deref()));
        lacking(terms?, agent.as_deref(), functions)
    }

    /// Like [`Self::may_go_on`], for a run that waits for people: an agent with the same fingerprint but
    /// without the tool that asked would lose the answer.
    pub(super) fn may_take_up(&self, agent: Option<&Arc<Agent>>) -> bool {
        let head = self.log.head();
        if head.run_fingerprint.is_none() {
            return self.may_go_on(agent, 0);
        }
        let Some(agent) = agent.cloned().or_else(|| self.shared.agent()) else { return false };
        let tools = team::answering(Arc::clone(&agent), head.agent.as_deref()).tool_specs();
        let has = |call: &ToolCall| tools.iter().any(|tool| tool.name == call.name);
        self.may_go_on(Some(&agent), 0) && self.log.asking_calls().iter().all(has)
    }

    /// Whether input for an agent with this fingerprint may be handled by this agent, or by the session's.
    fn is_meant_for(&self, said_to: Option<&String>, agent: Option<&Arc<Agent>>) -> bool {
        let agent = agent.cloned().or_else(|| self.shared.agent());
        said_to.is_none_or(|said_to| agent.is_some_and(|agent| agent.fingerprint.as_ref() == Some(said_to)))
    }

    /// Releases held-back items that were meant for an agent like this one, or like the session's: it handles
    /// them from now on. Returns these items, oldest first.
    pub(super) fn let_go(
        &mut self,
        agent: Option<&Arc<Agent>>,
        functions: usize,
        is_meant: impl Fn(EntryId) -> bool,
    ) -> Vec<EntryId> {
        let agent = agent.cloned().or_else(|| self.shared.agent());
        let Some(agent) = agent else { return Vec::new() };
        let is_like = |item: &&InboxItem| {
            self.inbox.is_held_back(item.id)
                && is_meant(item.id)
                && self.is_meant_for(item.fingerprint.as_ref(), Some(&agent))
                && self.lacking(item.terms.as_ref(), Some(&agent), functions).is_none()
        };
        let items: Vec<EntryId> = self.inbox.waiting(&self.log).filter(is_like).map(|item| item.id).collect();
        self.inbox.let_go(&items, &agent);
        items
    }

    /// Whether an interrupted or waiting run was started by an agent with another fingerprint, or requires
    /// missing validators.
    pub(super) fn is_others(&self) -> bool {
        self.runs.is_left_waiting() || self.log.head().interrupted.is_some() && !self.may_go_on(None, 0)
    }

    /// Returns the error that the held-back items, or the interrupted run, are meant for an agent with
    /// another fingerprint, or require missing validators.
    pub(super) fn held_back_error(&self, functions: usize) -> Error {
        let session = self.shared.id.to_string();
        let held_back = self.inbox.waiting(&self.log).filter(|item| self.inbox.is_held_back(item.id));
        let of_items = held_back.filter_map(|item| item.terms.as_ref());
        let of_run = self.log.run_terms().map(|(_, terms)| terms);
        let lacking = of_run.into_iter().chain(of_items).find_map(|terms| {
            let (names, unnamed) = self.lacking(Some(terms), None, functions)?;
            Some(Error::NoValidator { session: session.clone(), names, unnamed })
        });
        lacking.unwrap_or(Error::HeldBack { session, waiting: self.inbox.held_back().len() })
    }

    /// Holds back the items that an earlier process left in the inbox. Callers that wait for one of them get
    /// the error.
    pub(super) fn hold_back_left(&mut self, why: &Error) {
        let is_left = |item: &EntryId| *item < self.opened_at && !self.inbox.has_caller(*item);
        let left: Vec<EntryId> = self.inbox.ready(&self.log).map(|item| item.id).filter(is_left).collect();
        for item in left {
            self.inbox.hold_back(item);
            self.tell_waiting(item, why);
        }
    }
}

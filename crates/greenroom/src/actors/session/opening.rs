//! Starting a session's actors: from the log, and again after a crash of one of them.
//!
//! Invariants: a session's state is read from its log or the store; an actor that cannot be started is a
//! failure of the session, with its reason, and not an error in the configuration.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use greenroom_kernel::bill::CallCost;
use greenroom_kernel::log::{InboxItem, Log};
use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{Engine, Opened};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};

use super::definition::{Definition, SessionLimits};
use super::first_reply::Repeats;
use super::in_use::InUse;
use super::inbox::Inbox;
use super::life::Life;
use super::open_compaction::OpenCompaction;
use super::outgoing::Outgoing;
use super::parked::Suspended;
use super::questions::Askers;
use super::runs::Runs;
use super::{PAUSE_AFTER_FAILURES, SessionArguments, SessionState};
use crate::actors::agent::{AgentActor, AgentArguments};
use crate::actors::sub_agent;
use crate::actors::usage_tracker::{TrackerArguments, UsageTracker};
use crate::agent::team;
use crate::core::deps::Deps;
use crate::core::mail::Outbox;
use crate::core::message::{AgentMessage, MeasureFor, SessionMail, TrackerConfig, TrackerMessage};
use crate::core::metrics::{Happened, Restarted};
use crate::core::ownership;
use crate::core::shared::{Published, SessionShared};
use crate::core::terms::lacking;
use crate::core::trace;
use crate::events::entry_events::Due;
use crate::limits::restarts::Restarts;
use crate::limits::spending::tree::Spends as _;
use crate::values::error::{Error, Result};

/// A damaged log must not cause an endless loop.
const DEPTH_MAX: usize = 64;

impl SessionState {
    /// Reads the log and starts the children.
    pub(super) async fn open(myself: ActorRef<SessionMail>, arguments: SessionArguments) -> Result<Self> {
        let began = tokio::time::Instant::now();
        let SessionArguments { deps, shared, supervisor, parking, finishes } = arguments;
        let is_taken_over = ownership::takes_over(&deps, &shared.id);
        if let Err(error) = ownership::claim(&deps, &shared.id).await {
            // Nothing restarts it here.
            shared.lose();
            return Err(error);
        }
        shared.claimed();
        if !shared.is_suspended() {
            // A run that an earlier actor left is closed below, and its token reaches nothing.
            shared.end_run();
        }
        shared.set_closing(false);
        // Until the actor has checked, a listing of unfinished work must not include this session.
        let before = shared.published();
        shared.publish_state(Published { is_awaited: true, ..before.clone() });
        let mut log = read_log(&deps, &shared.id).await?;
        log.check().map_err(|problem| Error::SessionFailed {
            session: shared.id.to_string(),
            reason: format!(
                "its log contradicts itself: {problem}; it can still be shown and exported, and a fork of it can continue"
            ),
        })?;
        // The cause of the failures may be gone by now, and the warning may have reached nobody.
        log.forget_failures_above(PAUSE_AFTER_FAILURES - 1);
        let parent =
            log.head().parent_session.clone().or_else(|| shared.parent.as_deref().map(str::to_owned));
        shared.set_ancestors(sub_agent::ancestors(&deps, parent).await?);
        shared.set_tenants(sub_agent::tenants(&deps, &shared, log.head()).await?);
        deps.ledger.release(&shared);
        // The pinned messages were permitted for a larger window, and must not make the session unusable.
        let agent = shared.agent().ok_or_else(|| Error::NoAgent { session: shared.id.to_string() })?;
        let agent = team::answering(agent, log.head().agent.as_deref());
        let definition = Definition::resolve(&deps, agent, 0)?;
        log.set_cost(deps.call_cost(Some(&definition.agent)));
        let created_at_ms = match log.is_empty() {
            true => shared.created_at_ms().unwrap_or_else(|| deps.created_at_ms()),
            false => log.head().created_at_ms,
        };
        let missed = match shared.start_broadcast(log.head().entries, created_at_ms) {
            Some(from) => missed_events(&deps, &shared, from, log.head()).await?,
            None => VecDeque::new(),
        };
        let span = trace::session(&shared.id, shared.parent.as_deref());
        let only_at_window = log.was_undone();
        let config = definition.tracker_config(&deps, session_limits(&log, shared.parent.is_some()));
        {
            let mut account = shared.account();
            account.set_bill(log.bill());
            account.set_limits(config.limits.cost);
        }
        let counted_with = config.resent.clone();
        let tracker = spawn_tracker(&deps, &shared, &myself, config, &log).await?;
        let agent = spawn_agent(&deps, &shared, &myself).await?;
        let suspended = parking.take(&shared);
        // Input that an earlier process left has no sender in this one, so it waits for its release.
        let is_fingerprinted = shared.agent().is_some_and(|agent| agent.fingerprint.is_some());
        let held_back = before.held_back.map(|items| HashSet::clone(&items));
        let mut held_back = held_back.unwrap_or_else(|| {
            let items = log.inbox().iter().filter(|item| is_fingerprinted || item.fingerprint.is_some());
            items.map(|item| item.id).collect()
        });
        if suspended.is_none() {
            // Validators that were functions of requests are gone with the previous actor, if there was one.
            let lacks = |item: &&InboxItem| {
                item.terms.as_ref().is_some_and(|terms| lacking(terms, Some(&definition.agent), 0).is_some())
            };
            held_back.extend(log.inbox().iter().filter(lacks).map(|item| item.id));
        }
        let inbox = Inbox::open(held_back, before.inbox_agents);
        // What another node left behind comes before whatever the session is opened for. A sub-agent's work continues
        // with that of its caller.
        let head = log.head();
        let is_unfinished = head.open_run.is_some() || head.interrupted.is_some() || !log.inbox().is_empty();
        let finishes = finishes || is_taken_over && is_unfinished && head.parent_session.is_none();
        deps.metrics.count(Happened::Opened { took: began.elapsed() });
        let state = Self {
            taken_on: deps.admission.held(),
            deps,
            shared,
            supervisor,
            parking,
            myself,
            agent,
            tracker,
            compactor: None,
            restarts: Restarts::default(),
            definition: InUse::open(definition, &log, counted_with),
            opened_at: EntryId(log.head().entries),
            log,
            inbox,
            repeats: Repeats::default(),
            idle_waiters: Vec::new(),
            runs: Runs::default(),
            askers: Askers::default(),
            compaction: OpenCompaction::new(only_at_window),
            outgoing: Outgoing::missed(missed),
            #[cfg(feature = "command-tools")]
            rewinds: Vec::new(),
            span,
            life: Life::new(finishes, before.status.is_none()),
        };
        Ok(match suspended {
            Some(suspended) => state.with_suspended(*suspended),
            None => state,
        })
    }

    /// Restores a session that fell asleep during a run.
    fn with_suspended(mut self, suspended: Suspended) -> Self {
        let Suspended { runs, compaction, inbox, opened_at, repeats, askers, definitions } = suspended;
        (self.runs, self.compaction) = (runs, compaction);
        (self.inbox, self.opened_at) = (inbox, opened_at);
        // Items may have left the log while it slept.
        self.inbox.committed(&self.log);
        (self.repeats, self.askers) = (repeats, askers);
        self.definition.go_on(definitions);
        self.limits_changed();
        self
    }

    /// Replaces a crashed child by a successor that continues from the log.
    pub(super) async fn child_failed(
        &mut self,
        child: &ActorCell,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        let reason = &*self.deps.redactor.all(reason);
        tracing::error!(session = %self.shared.id, reason, "an actor of the session died");
        if !self.restarts.allow(tokio::time::Instant::now()) {
            return Err(format!("its actors crashed too often; the last reason: {reason}").into());
        }
        if child.get_id() == self.agent.actor().get_id() {
            self.deps.metrics.count(Happened::Restarted(Restarted::Agent));
            self.agent = spawn_agent(&self.deps, &self.shared, &self.myself).await?;
            let (events, then) = self.outgoing.unheard(self.shared.broadcast_below());
            self.agent.tell(AgentMessage::Broadcast { events, then });
            self.warn(format!("the agent crashed and was restarted: {reason}"));
            self.rerun().await;
        } else if child.get_id() == self.tracker.actor().get_id() {
            self.deps.metrics.count(Happened::Restarted(Restarted::UsageTracker));
            let config = self.tracker_config();
            self.definition.set_counted_with(&config.resent);
            self.tracker = spawn_tracker(&self.deps, &self.shared, &self.myself, config, &self.log).await?;
            self.warn(format!("the usage tracker crashed and was restarted: {reason}"));
            self.agent.tell(AgentMessage::TrackerRestarted { tracker: self.tracker.actor().clone() });
            // Requests that the session had sent to the crashed actor.
            if self.runs.is_closing() {
                self.tell_last_answer();
                self.tracker.tell(TrackerMessage::MeasureFor(MeasureFor::RunEnd));
            }
            if let Some(measurement) = self.compaction.awaited_measurement() {
                self.tracker.tell(TrackerMessage::MeasureFor(MeasureFor::Compaction(measurement)));
            }
        } else if self.compactor.as_ref().is_some_and(|compactor| child.get_id() == compactor.get_id()) {
            self.deps.metrics.count(Happened::Restarted(Restarted::Compactor));
            self.compactor = None;
            self.warn(format!("the compactor crashed: {reason}"));
            self.compactor_died(reason).await;
        }
        Ok(())
    }
}

/// Returns the events of durable entries that an earlier actor did not publish before it crashed.
async fn missed_events(deps: &Deps, shared: &SessionShared, from: u64, head: &Head) -> Result<VecDeque<Due>> {
    let entries = deps.store.load(&shared.id, EntryId(from)).await?;
    let entries: Vec<_> = entries.into_iter().map(Arc::new).collect();
    Ok(Due::of(&entries, head.open_run).into())
}

/// Returns what a session adds to its definition when it is opened.
pub(super) fn session_limits(log: &Log, is_sub_agent: bool) -> SessionLimits {
    SessionLimits {
        pinned_tokens: log.pinned_tokens(),
        run_cost: None,
        is_sub_agent,
        is_paused: log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
        only_at_window: log.was_undone(),
    }
}

pub(super) async fn read_log(deps: &Deps, id: &Arc<str>) -> Result<Log> {
    let mut log = read(&*deps.store, id, 0, &deps.call_cost(None)).await?;
    log.set_redactor(deps.redactor.clone());
    Ok(log)
}

/// Reads a log, and those of the sub-agents that work for it, of which `depth` levels are above: a call whose
/// sub-agent waits for a person outlives the actor that runs it.
async fn read(store: &dyn Engine, id: &str, depth: usize, cost: &CallCost) -> Result<Log> {
    let Some(Opened { head, active, older }) = store.open(id).await? else {
        return Ok(Log::new(cost.clone()));
    };
    let has_run = head.open_run.is_some();
    let mut log = Log::open(head, &shared(active), &shared(older), cost.clone());
    if has_run && depth < DEPTH_MAX {
        let mut waiting = Vec::new();
        for (_, child) in log.children() {
            // A sub-agent whose log cannot be read cannot continue.
            let below = Box::pin(read(store, &child.session, depth + 1, cost)).await;
            if below.is_ok_and(|log| log.check().is_ok() && log.is_waiting()) {
                waiting.push(child.call_id.clone());
            }
        }
        log.set_waiting_below(waiting);
    }
    Ok(log)
}

pub(super) fn shared(entries: Vec<Entry>) -> Vec<Arc<Entry>> {
    entries.into_iter().map(Arc::new).collect()
}

async fn spawn_agent(
    deps: &Arc<Deps>,
    shared: &Arc<SessionShared>,
    session: &ActorRef<SessionMail>,
) -> Result<Outbox<AgentMessage>> {
    let arguments =
        AgentArguments { deps: Arc::clone(deps), shared: Arc::clone(shared), session: session.clone() };
    let (actor, _) = Actor::spawn_linked(None, AgentActor, arguments, session.get_cell())
        .await
        .map_err(|error| not_started(shared, "agent", &error))?;
    Ok(Outbox::new(actor))
}

async fn spawn_tracker(
    deps: &Arc<Deps>,
    shared: &Arc<SessionShared>,
    session: &ActorRef<SessionMail>,
    config: TrackerConfig,
    log: &Log,
) -> Result<Outbox<TrackerMessage>> {
    let arguments = Box::new(TrackerArguments {
        deps: Arc::clone(deps),
        shared: Arc::clone(shared),
        session: session.clone(),
        config,
        path: log.path().to_vec(),
        bill: log.bill(),
    });
    let (actor, _) = Actor::spawn_linked(None, UsageTracker, arguments, session.get_cell())
        .await
        .map_err(|error| not_started(shared, "usage tracker", &error))?;
    Ok(Outbox::new(actor))
}

pub(super) fn not_started(shared: &SessionShared, actor: &str, error: &ractor::SpawnErr) -> Error {
    let reason = format!("its {actor} could not be started: {error}");
    Error::SessionFailed { session: shared.id.to_string(), reason }
}

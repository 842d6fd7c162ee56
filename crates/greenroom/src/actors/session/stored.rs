//! Sessions without actors: their state, and operations on them in the store.
//!
//! Invariants: nothing is started; reading writes nothing, and returns what the session's actors would return
//! if they were started and left alone. The supervisor holds a session while it is changed or deleted here,
//! so it has one writer.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::log::{Amendment, Log};
use greenroom_kernel::usage::{ContextUsage, Measured, Tracker};
use greenroom_kernel::{EntryId, Head, Message};
use greenroom_store::{Batch, StoreError};

use super::definition::Definition;
use super::opening::{read_log, session_limits};
use super::parked::ParkingPlace;
use super::questions;
use super::settle::state_by_log;
use crate::agent::{Agent, team};
use crate::core::deps::Deps;
use crate::core::door::Door;
use crate::core::message::SessionMessage;
use crate::core::ownership;
use crate::core::shared::SessionShared;
use crate::events::entry_events::Due;
use crate::values::error::{Error, Result};
use crate::values::state::State;

/// Returns the session's state with this agent, or without one.
pub(crate) async fn state(
    deps: &Arc<Deps>,
    shared: &SessionShared,
    agent: Option<Arc<Agent>>,
) -> Result<State> {
    let id = &shared.id;
    let log = match read_log(deps, id).await {
        Err(Error::Store(error)) => return damaged_state(deps, id, &error).await,
        log => log?,
    };
    let head = log.head();
    let Some(agent) = agent else {
        return Ok(state_by_log(id, &log, &head.model, estimate(&log)));
    };
    let agent = team::answering(agent, head.agent.as_deref());
    let definition = Definition::resolve_to_read(deps, agent)?;
    let is_sub_agent = head.parent_session.is_some();
    let config = definition.tracker_config(deps, session_limits(&log, is_sub_agent));
    let ratio = deps.learned.ratio(&config.origin, &config.model);
    let context = Tracker::open(log.path(), config.frame(), ratio).context_usage(config.limits.window);
    let compacts_at = config.limits.compacts_at();
    let state = state_by_log(id, &log, definition.model(), context);
    // Its actors determined this before they slept; what was withdrawn since then is no longer in the inbox.
    let is_held_back =
        |items: &HashSet<EntryId>| log.inbox().iter().filter(|item| items.contains(&item.id)).count();
    let held_back = shared.published().held_back.map_or(state.held_back, |items| is_held_back(&items));
    Ok(State { held_back, compacts_at, ..state })
}

/// Returns the state of a session whose log cannot be read, by its head.
///
/// # Errors
/// The error, unless it is that entries are damaged or lost.
async fn damaged_state(deps: &Arc<Deps>, id: &Arc<str>, error: &Arc<StoreError>) -> Result<State> {
    let StoreError::Damaged { entry, .. } = &**error else { return Err(Error::Store(Arc::clone(error))) };
    let Some(head) = deps.store.head(id).await? else {
        return Err(Error::NoSession { session: id.to_string() });
    };
    let (waiting, is_unanswered) = (head.inbox.len(), head.open_run.is_some() || head.interrupted.is_some());
    let lost_from = head.lost_from.or(Some(*entry));
    let log = Log::open(head, &[], &[], deps.call_cost(None));
    let state = state_by_log(id, &log, &log.head().model, estimate(&log));
    Ok(State { waiting, is_unanswered, lost_from, ..state })
}

/// Estimates the context's size from the log alone.
fn estimate(log: &Log) -> ContextUsage {
    let measured = Measured { usage_tokens: 0, trailing_tokens: log.head().context_tokens };
    ContextUsage::new(measured, log.window())
}

/// Checks whether a session could work with this agent.
///
/// # Errors
/// Why it could not.
pub(crate) fn check_agent(deps: &Arc<Deps>, agent: Arc<Agent>) -> Result<()> {
    Definition::resolve(deps, agent, 0).map(drop)
}

/// Returns the context as the model would get it, without the system prompt: from the session's actor, which
/// is not started for this, or from the log.
pub(crate) async fn context_of(door: &Door) -> Result<Vec<Arc<Message>>> {
    door.check_deleted()?;
    match door.look(SessionMessage::Context).await {
        Some(context) => Ok(context),
        None => context(&door.deps, &door.shared.id, door.shared.agent()).await,
    }
}

/// Returns the context of a session without actors as the model would get it, without the system prompt: with
/// this agent, or as it is recorded if no agent is known.
async fn context(deps: &Arc<Deps>, id: &Arc<str>, agent: Option<Arc<Agent>>) -> Result<Vec<Arc<Message>>> {
    let log = read_log(deps, id).await?;
    let messages = log.shown_context();
    let Some(agent) = agent else { return Ok(messages) };
    let agent = team::answering(agent, log.head().agent.as_deref());
    let definition = Definition::resolve_to_read(deps, agent)?;
    let resent = definition.resent_reasoning(&deps.model_settings(&definition.agent));
    Ok(messages.iter().map(|message| resent.strip(message).into_owned()).collect())
}

/// Deletes a session without actors. Returns its last head.
pub(crate) async fn delete(deps: &Arc<Deps>, id: Arc<str>) -> Result<Box<Head>> {
    ownership::claim(deps, &id).await?;
    let Some(head) = deps.store.head(&id).await? else {
        ownership::release(deps, &id).await;
        return Err(Error::NoSession { session: id.to_string() });
    };
    deps.store.delete(&id).await?;
    deps.note_deletion(&id);
    Ok(Box::new(head))
}

/// Deletes a session without actors if it has this many entries. Returns its last head, or `None` if it has changed.
pub(crate) async fn delete_unchanged(
    deps: &Arc<Deps>,
    id: Arc<str>,
    entries: u64,
) -> Result<Option<Box<Head>>> {
    let head = deps.store.head(&id).await?;
    if head.is_none_or(|head| head.entries != entries) {
        return Ok(None);
    }
    delete(deps, id).await.map(Some)
}

/// Changes a session without actors. Returns how many inputs were withdrawn.
pub(crate) async fn amend(
    deps: &Arc<Deps>,
    shared: &SessionShared,
    parking: &ParkingPlace,
    amendment: Amendment,
) -> Result<usize> {
    ownership::claim(deps, &shared.id).await?;
    let amended = amend_claimed(deps, shared, parking, amendment).await;
    if !shared.is_suspended() {
        ownership::release(deps, &shared.id).await;
    }
    amended
}

async fn amend_claimed(
    deps: &Arc<Deps>,
    shared: &SessionShared,
    parking: &ParkingPlace,
    amendment: Amendment,
) -> Result<usize> {
    let log = read_log(deps, &shared.id).await?;
    let mut draft = match amendment {
        Amendment::AbortWaiting { .. } if shared.is_suspended() => return Ok(0),
        Amendment::AbortWaiting { run } => match log.abort_of_waiting(run, deps.now_ms(), estimate(&log)) {
            Some(draft) => draft,
            None => return Ok(0),
        },
        Amendment::ClearInbox { .. }
        | Amendment::Set(_)
        | Amendment::WithdrawQuestions
        | Amendment::Answer { .. } => log.draft(deps.now_ms()),
    };
    let waiting = log.inbox().iter().map(|item| item.id);
    let waiting: Vec<EntryId> = waiting.filter(|item| amendment.withdraws(*item)).collect();
    let withdrawn = match draft.amend(amendment, waiting.clone(), greenroom_tools::fits) {
        Ok(withdrawn) => withdrawn,
        Err(error) => return Err(questions::refused(deps, &shared.id, error).await),
    };
    if draft.is_empty() {
        return Ok(withdrawn);
    }
    let created_at_ms = match log.is_empty() {
        true => deps.created_at_ms(),
        false => log.head().created_at_ms,
    };
    if log.is_empty() {
        let agent = shared.agent().ok_or_else(|| Error::NoAgent { session: shared.id.to_string() })?;
        let definition = Definition::resolve_to_read(deps, agent)?;
        draft.begin(definition.provider(), definition.model(), shared.parent.as_deref(), created_at_ms);
    }
    let events = Due::of(draft.entries(), log.head().open_run);
    let batch = Batch { entries: draft.entries().to_vec(), head: draft.shared_head(), key: None };
    deps.store.append(&shared.id, batch).await?;
    if withdrawn > 0 && shared.is_suspended() {
        parking.tell_withdrawn(&shared.id, &waiting);
    }
    // If earlier events are due, the next actor publishes them all in order.
    if shared.start_broadcast(log.head().entries, created_at_ms).is_none() {
        events.iter().for_each(|event| shared.publish_durable(&deps.bus, event));
        shared.mark_flushed();
    }
    Ok(withdrawn)
}

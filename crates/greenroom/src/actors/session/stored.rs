//! How a session that has no actors stands: read from its log.
//!
//! Invariants: nothing is started and nothing is written; what is told is what the session's actors would tell if they
//! were started and left alone.

use std::sync::Arc;

use greenroom_kernel::usage::Tracker;

use super::definition::Definition;
use super::opening::{read_log, session_limits};
use super::state_by_log;
use crate::agent::Agent;
use crate::deps::Deps;
use crate::error::Result;
use crate::session::State;

/// How a stored session stands with this agent; `None` where nothing was ever said in it.
pub(crate) async fn state(deps: &Arc<Deps>, id: Arc<str>, agent: Arc<Agent>) -> Result<Option<State>> {
    let log = read_log(deps, &id).await?;
    if log.is_empty() {
        return Ok(None);
    }
    let definition = Definition::resolve_to_read(deps, agent)?;
    let is_sub_agent = log.head().parent_session.is_some();
    let config = definition.tracker_config(deps, session_limits(&log, is_sub_agent));
    let ratio = deps.learned.ratio(&config.origin, &config.model);
    let context = Tracker::open(log.path(), config.overhead, ratio).context_usage(config.limits.window);
    Ok(Some(state_by_log(&id, &log, &definition, context)))
}

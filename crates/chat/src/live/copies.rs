//! Copies of a session, and what they take over from it.
//!
//! Invariants: a copy may do no more than the original at that moment, also if it is resumed after a crash while it is
//! being made.

use greenroom::permissions::Effect;
use greenroom_server::Client;
use greenroom_server::operations::{Forked, PermissionRule, SessionPermissions, SetPermissions};
use greenroom_terminal::screen::one_line;

use super::does::Problem;
use super::welcome::TITLE_COLUMNS;
use super::{Opened, open};
use crate::backend::Backend;
use crate::program::{Origin, Program};

/// Copies a session, with a goal or as it is, and opens the copy.
pub(super) async fn made(
    backend: &Backend,
    program: &dyn Program,
    id: String,
    goal: Option<String>,
) -> Result<(Opened, Forked), Problem> {
    let Some(original) = backend.summary().await? else {
        return Err(Problem("No messages yet".to_owned()));
    };
    let permissions = backend.permissions().await?;
    let client = program.session(&id, Origin::CopyOf(backend.id())).await?;
    let forked = backend.fork(id.clone(), goal).await?;
    let mut opened = opened(client, &id, &permissions).await?;
    let title = original.shown_title().unwrap_or("a session without a title");
    opened.copy_of = Some((one_line(title, TITLE_COLUMNS), backend.id().to_owned()));
    Ok((opened, forked))
}

/// Opens a session with another agent or a copy of one, and takes over these permissions.
pub(super) async fn opened(
    client: Client,
    id: &str,
    permissions: &SessionPermissions,
) -> Result<Opened, Problem> {
    let mut opened = open(client, id).await?;
    if let Some(change) = lacking(permissions, &opened.permissions) {
        opened.permissions = opened.backend.set_permissions(change).await?;
    }
    Ok(opened)
}

/// Returns what permissions lack of others: their mode, and rules that were added to a session.
fn lacking(wanted: &SessionPermissions, now: &SessionPermissions) -> Option<SetPermissions> {
    // An agent without permissions takes none.
    now.mode?;
    let is_there = |rule: &PermissionRule| {
        now.rules.iter().any(|there| (there.effect, &there.rule) == (rule.effect, &rule.rule))
    };
    let rules = |effect: Effect| {
        let lacking = wanted.rules.iter().filter(move |rule| rule.effect == effect && !is_there(rule));
        lacking.map(|rule| rule.rule.clone()).collect()
    };
    let change = SetPermissions {
        session_id: String::new(),
        mode: wanted.mode.filter(|mode| now.mode != Some(*mode)),
        allow: rules(Effect::Allow),
        ask: rules(Effect::Ask),
        deny: rules(Effect::Deny),
    };
    let is_nothing = change.mode.is_none()
        && [&change.allow, &change.ask, &change.deny].iter().all(|rules| rules.is_empty());
    (!is_nothing).then_some(change)
}

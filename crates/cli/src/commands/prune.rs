//! `greenroom prune`: deletes sessions that are old, or more than are kept.
//!
//! Invariants: what is deleted is decided where the store is held, from what the sessions are then.

use anyhow::Result;
use greenroom_server::operations::{PruneSessions, PruneSessionsRule, PrunedSessions};
use greenroom_terminal::progress::Progress;
use greenroom_terminal::{Screen, format, time};
use serde_json::json;

use crate::agent::{self, kept};
use crate::args::{Global, PruneArgs};
use crate::config::DAY_S;
use crate::error::{self, usage};
use crate::host::Changes;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &PruneArgs) -> Result<u8> {
    let request = request(global, args)?;
    let mut screen = Screen::stdout(global.color);
    let pruned = if agent::data_dir(global)?.exists() {
        let changes = Changes::open(global).await?;
        let progress = Progress::start(global.color, || "deleting sessions".to_owned());
        let pruned = changes.client.call(request).await;
        progress.end().await;
        changes.end().await?;
        pruned?
    } else {
        let dry_run = args.dry_run;
        PrunedSessions { dry_run, sessions: Vec::new(), used_again: 0, erased: !dry_run, reason: None }
    };
    if !args.dry_run {
        pruned.sessions.iter().for_each(|session| kept::forget(global, &session.session_id));
    }
    if args.json {
        screen.pretty_json(&json!(pruned))?;
    } else {
        tell(&mut screen, &pruned)?;
    }
    let Some(reason) = &pruned.reason else { return Ok(0) };
    Screen::stderr(global.color).line(format!(
        "greenroom: the sessions are deleted, but their bytes are still in the journal ({reason}). They are erased \
         automatically, after later writes or when the store is next opened; nothing needs to be deleted again"
    ))?;
    Ok(error::STORE)
}

/// Returns the limits: those of the flags, or else those of the configuration.
fn request(global: &Global, args: &PruneArgs) -> Result<PruneSessions> {
    let PruneArgs { older_than_days, keep, labels, dry_run, .. } = args;
    let age_max_s = older_than_days.map(|days| days.saturating_mul(DAY_S));
    let asked = PruneSessions { dry_run: *dry_run, ..PruneSessions::default() };
    let has_limit = age_max_s.is_some() || keep.is_some();
    if !labels.is_empty() && !has_limit {
        return Err(usage("--label needs --older-than-days or --keep"));
    }
    if !labels.is_empty() {
        let rule =
            PruneSessionsRule { labels: labels.iter().cloned().collect(), age_max_s, sessions_max: *keep };
        return Ok(PruneSessions { rules: vec![rule], ..asked });
    }
    if has_limit {
        return Ok(PruneSessions { age_max_s, sessions_max: *keep, ..asked });
    }
    let (age_max_s, sessions_max, rules) = agent::config(global)?.own.retention.sent();
    if age_max_s.is_none() && sessions_max.is_none() && rules.is_empty() {
        return Err(usage(
            "there is no limit: give --older-than-days or --keep, or set `retention` in your configuration",
        ));
    }
    Ok(PruneSessions { age_max_s, sessions_max, rules, ..asked })
}

fn tell(screen: &mut Screen, pruned: &PrunedSessions) -> Result<()> {
    for session in &pruned.sessions {
        let title = session.title.as_deref().map(|title| format!("  {title}")).unwrap_or_default();
        let below = match session.below {
            0 => String::new(),
            below => format!(", with {} of sub-agents", format::count(below as u64, "session")),
        };
        let at = time::ago(session.active_at_ms, time::now_ms());
        screen.line(format!("{}  {at} ({}{below}){title}", session.session_id, session.reason))?;
    }
    let count = format::count(pruned.sessions.len() as u64, "session");
    if pruned.dry_run {
        screen.line(format!("{count} would be deleted."))?;
    } else {
        screen.line(format!("Deleted {count}."))?;
    }
    if pruned.used_again > 0 {
        let again = format::count(pruned.used_again as u64, "session");
        screen.line(format!("{again} had been used again in the meantime, and stayed."))?;
    }
    Ok(())
}

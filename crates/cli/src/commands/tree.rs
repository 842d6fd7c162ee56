//! `greenroom show --tree`: prints the branches of a stored session.
//!
//! Invariants: nothing is changed.

use anyhow::Result;
use greenroom_chat::figures;
use greenroom_server::operations::{Branch, branches};
use greenroom_terminal::{Look, Row, Screen};
use serde_json::{Value, json};

use crate::args::{Global, ShowArgs};
use crate::host::source::Stored;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ShowArgs) -> Result<u8> {
    let stored = Stored::read(global, &args.id).await?;
    let branches = branches(&stored.entries, stored.summary.leaf);
    let mut screen = Screen::stdout(global.color);
    if args.json {
        let list: Vec<Value> = branches.iter().map(branch_json).collect();
        screen.pretty_json(
            &json!({ "id": stored.summary.id, "leaf": stored.summary.leaf, "branches": list }),
        )?;
    } else {
        for branch in &branches {
            let style = if branch.is_current { Look::BOLD } else { Look::DIM };
            screen.line(Row::styled(style, figures::branch(branch)))?;
        }
        if branches.is_empty() {
            screen.line("No messages yet.")?;
        }
    }
    stored.say_losses(global)
}

fn branch_json(branch: &Branch) -> Value {
    json!({
        "first": branch.first,
        "last": branch.last,
        "after": branch.after,
        "depth": branch.depth,
        "is_current": branch.is_current,
        "messages": branch.messages,
        "text": branch.text,
    })
}

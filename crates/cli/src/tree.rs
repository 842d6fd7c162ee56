//! `greenroom tree`: the branches of a stored session.
//!
//! Invariants: nothing is changed.

use anyhow::Result;
use greenroom_server::operations::{Branch, branches};
use serde_json::{Value, json};

use crate::options::{Global, TreeArgs};
use crate::picture;
use crate::show::Stored;
use crate::terminal::{Line, Screen, Style, one_line};

/// How much of what was said is shown.
const TEXT_COLUMNS: usize = 60;

/// Runs it.
pub(crate) async fn run(global: &Global, args: &TreeArgs) -> Result<u8> {
    let stored = Stored::read(global, &args.id).await?;
    let branches = branches(&stored.entries, stored.head.leaf);
    let mut screen = Screen::stdout(global.color);
    if args.json {
        let list: Vec<Value> = branches.iter().map(branch_json).collect();
        screen.pretty_json(&json!({ "id": stored.id, "leaf": stored.head.leaf, "branches": list }))?;
    } else {
        for branch in &branches {
            let style = if branch.is_current { Style::Bold } else { Style::Dim };
            screen.line(Line::styled(style, line(branch)))?;
        }
        if branches.is_empty() {
            screen.line("Nothing was said yet.")?;
        }
    }
    stored.say_losses(global)
}

/// A branch in one line.
pub(crate) fn line(branch: &Branch) -> String {
    let line = format!(
        "{}{} {}–{}  {}  {}{}",
        "  ".repeat(branch.depth),
        if branch.is_current { "●" } else { "○" },
        branch.first,
        branch.last,
        picture::count(branch.messages, "message"),
        one_line(branch.text.as_deref().unwrap_or_default(), TEXT_COLUMNS),
        if branch.has_leaf { "  ← here" } else { "" },
    );
    line.trim_end().to_owned()
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

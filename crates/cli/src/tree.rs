//! `greenroom tree`: the branches of a stored session.
//!
//! Invariants: each entry on any path stands in exactly one branch; nothing is changed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use anyhow::Result;
use greenroom::kernel::entry::{Entry, EntryId, EntryKind};
use greenroom::kernel::{Message, Part};
use serde_json::{Value, json};

use crate::options::{Global, TreeArgs};
use crate::picture;
use crate::show::Stored;
use crate::terminal::{Line, Screen, Style, one_line};

/// How much of what was said is shown.
const TEXT_COLUMNS: usize = 60;

/// Entries that follow one another, up to where others begin or nothing follows.
struct Branch<'a> {
    entries: Vec<&'a Arc<Entry>>,
    /// How deep it stands.
    depth: usize,
    /// Whether it ends where the conversation goes on.
    is_current: bool,
}

/// Runs it.
pub(crate) async fn run(global: &Global, args: &TreeArgs) -> Result<u8> {
    let stored = Stored::read(global, &args.id).await?;
    let current: HashSet<EntryId> = stored.path().iter().map(|entry| entry.id).collect();
    let branches = branches(&stored, &current);
    let mut screen = Screen::stdout(global.color);
    if args.json {
        let list: Vec<Value> = branches.iter().map(branch_json).collect();
        screen.pretty_json(&json!({ "id": stored.id, "leaf": stored.head.leaf, "branches": list }))?;
    } else {
        for branch in &branches {
            print(&mut screen, branch, stored.head.leaf)?;
        }
        if branches.is_empty() {
            screen.line("Nothing was said yet.")?;
        }
    }
    stored.say_losses(global)
}

fn branches<'a>(stored: &'a Stored, current: &HashSet<EntryId>) -> Vec<Branch<'a>> {
    let mut children: BTreeMap<Option<EntryId>, Vec<&Arc<Entry>>> = BTreeMap::new();
    let known: HashSet<EntryId> = stored.entries.iter().map(|entry| entry.id).collect();
    for entry in stored.entries.iter().filter(|entry| entry.kind.is_on_path()) {
        // What follows a lost entry begins anew.
        let parent = entry.parent.filter(|parent| known.contains(parent));
        children.entry(parent).or_default().push(entry);
    }
    let mut branches = Vec::new();
    let mut open: Vec<(&Arc<Entry>, usize)> =
        children.get(&None).into_iter().flatten().rev().map(|entry| (*entry, 0)).collect();
    while let Some((first, depth)) = open.pop() {
        let mut entries = vec![first];
        loop {
            let next = children.get(&entries.last().map(|entry| entry.id)).map_or(&[][..], Vec::as_slice);
            if let [only] = next {
                entries.push(only);
                continue;
            }
            open.extend(next.iter().rev().map(|entry| (*entry, depth + 1)));
            break;
        }
        let is_current = entries.last().is_some_and(|entry| current.contains(&entry.id));
        branches.push(Branch { entries, depth, is_current });
    }
    branches
}

fn print(screen: &mut Screen, branch: &Branch<'_>, leaf: Option<EntryId>) -> Result<()> {
    let indent = "  ".repeat(branch.depth);
    let messages = branch.entries.iter().filter(|entry| entry.kind.as_message().is_some()).count() as u64;
    let (Some(first), Some(last)) = (branch.entries.first(), branch.entries.last()) else { return Ok(()) };
    let text = branch.entries.iter().find_map(|entry| said(entry)).unwrap_or_default();
    let here = if branch.entries.iter().any(|entry| Some(entry.id) == leaf) { "  ← here" } else { "" };
    let line = format!(
        "{indent}{} {}–{}  {}  {}{here}",
        if branch.is_current { "●" } else { "○" },
        first.id,
        last.id,
        picture::count(messages, "message"),
        one_line(&text, TEXT_COLUMNS)
    );
    let style = if branch.is_current { Style::Bold } else { Style::Dim };
    Ok(screen.line(Line::styled(style, line.trim_end()))?)
}

fn branch_json(branch: &Branch<'_>) -> Value {
    json!({
        "first": branch.entries.first().map(|entry| entry.id),
        "last": branch.entries.last().map(|entry| entry.id),
        "after": branch.entries.first().and_then(|entry| entry.parent),
        "depth": branch.depth,
        "is_current": branch.is_current,
        "messages": branch.entries.iter().filter(|entry| entry.kind.as_message().is_some()).count(),
        "text": branch.entries.iter().find_map(|entry| said(entry)),
    })
}

/// The first thing that was said in it, by whom.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other kinds say nothing")]
fn said(entry: &Entry) -> Option<String> {
    match &entry.kind {
        EntryKind::Message { message, .. } => match &**message {
            Message::User(_) => Some(format!("you: {}", message.text())),
            Message::Assistant(answer) if !answer.text().trim().is_empty() => {
                Some(format!("agent: {}", answer.text()))
            }
            Message::Assistant(answer) => {
                let call = answer.content.iter().find_map(Part::as_tool_call)?;
                Some(format!("agent calls {}", call.name))
            }
            Message::ToolResult(_) => None,
        },
        EntryKind::BranchSummary { summary, .. } => Some(format!("summary: {summary}")),
        EntryKind::Label { label: Some(label), .. } => Some(format!("label: {label}")),
        _ => None,
    }
}

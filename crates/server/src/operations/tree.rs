//! The branches of a session.
//!
//! Invariants: each entry on any path belongs to exactly one branch.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::path::path_to;
use greenroom_kernel::{Message, Part};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::read::stored;
use super::{Answer, CallScope, Operation, Performed, Route};

/// The branches of a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionTree {
    /// The session.
    pub session_id: String,
}

/// The branches, each after its parent.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Tree {
    /// The current entry of the conversation; `null` for the empty conversation.
    pub leaf: Option<EntryId>,
    /// The branches.
    pub branches: Vec<Branch>,
}

/// A sequence of entries, up to where it forks or ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Branch {
    /// Its first entry.
    pub first: EntryId,
    /// Its last entry.
    pub last: EntryId,
    /// The entry after which it begins.
    pub after: Option<EntryId>,
    /// Its depth: the number of branches above it.
    pub depth: usize,
    /// Whether it ends at the current entry of the conversation, or before it.
    pub is_current: bool,
    /// The number of messages.
    pub messages: u64,
    /// The first text in it, and its author.
    pub text: Option<String>,
    /// Whether the conversation's current entry is in it.
    pub has_leaf: bool,
}

impl Operation for SessionTree {
    of_session!("session/tree", Read, Route::read("/sessions/{session_id}/tree"), Tree);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let (session, entries) = stored(&scope, &self.session_id).await?;
            Ok(Tree { leaf: session.leaf, branches: branches(&entries, session.leaf) })
        })))
    }
}

/// The branches of a log's entries, if the conversation continues from `leaf`.
pub fn branches(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Vec<Branch> {
    // The path of a damaged log may be broken.
    let current = path_to(entries, leaf).unwrap_or_else(|_| entries.to_vec());
    let current: HashSet<EntryId> = current.iter().map(|entry| entry.id).collect();
    let mut children: BTreeMap<Option<EntryId>, Vec<&Arc<Entry>>> = BTreeMap::new();
    let known: HashSet<EntryId> = entries.iter().map(|entry| entry.id).collect();
    for entry in entries.iter().filter(|entry| entry.kind.is_on_path()) {
        // Entries after a lost one begin a new branch.
        let parent = entry.parent.filter(|parent| known.contains(parent));
        children.entry(parent).or_default().push(entry);
    }
    let mut branches = Vec::new();
    let mut open: Vec<(&Arc<Entry>, usize)> =
        children.get(&None).into_iter().flatten().rev().map(|entry| (*entry, 0)).collect();
    while let Some((first, depth)) = open.pop() {
        let mut of_branch = vec![first];
        let mut last = first;
        loop {
            let next = children.get(&Some(last.id)).map_or(&[][..], Vec::as_slice);
            if let [only] = next {
                of_branch.push(only);
                last = only;
                continue;
            }
            open.extend(next.iter().rev().map(|entry| (*entry, depth + 1)));
            break;
        }
        branches.push(Branch {
            first: first.id,
            last: last.id,
            after: first.parent,
            depth,
            is_current: current.contains(&last.id),
            messages: of_branch.iter().filter(|entry| entry.kind.as_message().is_some()).count() as u64,
            text: of_branch.iter().find_map(|entry| said(entry)),
            has_leaf: of_branch.iter().any(|entry| Some(entry.id) == leaf),
        });
    }
    branches
}

/// The first text in it, and its author.
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

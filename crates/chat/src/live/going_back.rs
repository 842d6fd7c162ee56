//! `/undo` and `/branch`: the conversation goes back, the files, or both.
//!
//! Invariants: if there are files to bring back, the user is asked what goes back, unless the command says it;
//! files that somebody else changed are overwritten only if the user chooses it. What was done to each file is
//! shown.

use greenroom::EntryId;
use greenroom_server::ProblemKind;
use greenroom_server::operations::{RewindScope, RewoundAction, SessionRewound, Speech};
use greenroom_terminal::format;
use greenroom_terminal::row::{Look, Row};

use super::Done;
use super::does::{Outcome, Problem, note};
use crate::backend::Backend;
use crate::commands::GoingBack;
use crate::figures;
use crate::picker::{Item, Picker, Purpose};

/// Takes back the last prompt.
pub(super) async fn undo(backend: &Backend, back: GoingBack, width: usize) -> Outcome {
    let Some(scope) = back.scope else {
        let planned = backend.rewind(None, RewindScope::Both, false, true).await?;
        if planned.prompt_id.is_none() {
            return note(Look::DIM, "there is no prompt to take back yet");
        }
        if !planned.files.is_empty() {
            return Ok(vec![Done::Pick(choice(None, false, &planned))]);
        }
        return take_back(backend, RewindScope::Both, back.overwrite, width).await;
    };
    take_back(backend, scope, back.overwrite, width).await
}

async fn take_back(backend: &Backend, scope: RewindScope, overwrite: bool, width: usize) -> Outcome {
    let said = backend.show().await?.conversation;
    let rewound = backend.rewind(None, scope, overwrite, false).await?;
    let Some(prompt) = rewound.prompt_id else {
        return note(Look::DIM, "there is no prompt to take back yet");
    };
    let text = said.into_iter().find(|said| said.entry_id == prompt).and_then(|said| match said.speech {
        Speech::User { text, .. } => Some(text),
        Speech::Assistant { .. }
        | Speech::Tool { .. }
        | Speech::Shell { .. }
        | Speech::Custom { .. }
        | Speech::BranchSummary { .. }
        | Speech::Summary { .. } => None,
    });
    let mut done = told(&rewound, width);
    // The user can change and send it again.
    done.extend(text.filter(|_| rewound.conversation).map(Done::Write));
    Ok(done)
}

/// Continues after an entry.
pub(super) async fn to(
    backend: &Backend,
    entry: u64,
    summary: bool,
    back: GoingBack,
    width: usize,
) -> Outcome {
    let id = EntryId(entry);
    let Some(scope) = back.scope else {
        let planned = backend.rewind(Some(id), RewindScope::Both, false, true).await?;
        if !planned.files.is_empty() {
            return Ok(vec![Done::Pick(choice(Some(entry), summary, &planned))]);
        }
        return branch(backend, id, summary).await;
    };
    if scope == RewindScope::Conversation {
        return branch(backend, id, summary).await;
    }
    let rewound = backend.rewind(Some(id), RewindScope::Files, back.overwrite, false).await?;
    let mut done = told(&rewound, width);
    if scope == RewindScope::Both {
        done.extend(branch(backend, id, summary).await?);
    }
    Ok(done)
}

async fn branch(backend: &Backend, entry: EntryId, summary: bool) -> Outcome {
    match backend.branch(entry, summary).await {
        // Events report both outcomes, here and in all other chats.
        Err(error) if error.kind() == Some(ProblemKind::BranchSummary) => Ok(Vec::new()),
        done => done.map(|()| Vec::new()).map_err(Problem::from),
    }
}

/// What the user can choose.
fn choice(entry: Option<u64>, summary: bool, planned: &SessionRewound) -> Picker {
    let count =
        |is: fn(RewoundAction) -> bool| planned.files.iter().filter(|file| is(file.action)).count() as u64;
    let done = count(RewoundAction::is_done);
    let others = count(|action| action == RewoundAction::ChangedByOthers);
    let left = planned.files.len() as u64 - done;
    let files = format::count(done, "file");
    let stays = if left > 0 {
        format!("{} cannot be brought back", format::count(left, "file"))
    } else {
        String::new()
    };
    let item = |value: &str, label: String, detail: String| Item { value: value.to_owned(), label, detail };
    let mut items = vec![
        item("--both", format!("the conversation and {files}"), stays.clone()),
        item("--conversation", "the conversation alone".to_owned(), "the files stay as they are".to_owned()),
        item("--files", format!("{files} alone"), stays),
    ];
    if others > 0 {
        let others = format::count(others, "file");
        let detail = format!("{others} that somebody else changed, too; the present content is kept");
        let label = "the conversation and all of these files".to_owned();
        items.push(item("--both --overwrite", label, detail));
    }
    Picker::new(Purpose::GoBack { entry, summary }, "What goes back", items)
}

fn told(rewound: &SessionRewound, width: usize) -> Vec<Done> {
    let rows = figures::rewound(rewound)
        .into_iter()
        .map(|(look, line)| Row::new(&format!("  {line}"), look).cut(width));
    vec![Done::Rows(rows.collect())]
}

//! `/undo` and `/branch`: the conversation goes back, the files, or both.
//!
//! Invariants: if there are files to bring back, the user is asked what goes back, unless the command says it;
//! files that somebody else changed are overwritten only if the user chooses it. What was done to each file is
//! shown.

use greenroom::EntryId;
use greenroom_server::ProblemKind;
use greenroom_server::operations::{RewindScope, RewoundAction, Said, SessionRewound, Speech};
use greenroom_terminal::format;
use greenroom_terminal::row::{Look, Row};

use super::Done;
use super::does::{Outcome, Problem, note};
use crate::attached;
use crate::backend::Backend;
use crate::commands::{Branching, GoingBack, Place};
use crate::figures;
use crate::picker::{Item, Picker, Purpose};

/// Takes back the last prompt. While the model works, the user is asked whether its run is aborted.
pub(super) async fn undo(backend: &Backend, back: GoingBack, width: usize) -> Outcome {
    let scope = back.scope.unwrap_or_default();
    match backend.rewind(None, scope, back, true).await {
        Err(error) if error.kind() == Some(ProblemKind::Busy) && !back.abort => {
            Ok(vec![Done::Pick(abort_first(back))])
        }
        planned => undo_at_rest(backend, back, planned?, width).await,
    }
}

async fn undo_at_rest(backend: &Backend, back: GoingBack, planned: SessionRewound, width: usize) -> Outcome {
    let Some(scope) = back.scope else {
        if planned.prompt_id.is_none() {
            return note(Look::DIM, "there is no prompt to take back yet");
        }
        if !planned.files.is_empty() {
            return Ok(vec![Done::Pick(choice(None, &planned))]);
        }
        return take_back(backend, RewindScope::Both, back, width).await;
    };
    take_back(backend, scope, back, width).await
}

/// Asks what happens to the run in progress.
fn abort_first(back: GoingBack) -> Picker {
    let scope = match back.scope {
        None => "",
        Some(RewindScope::Both) => "--both ",
        Some(RewindScope::Conversation) => "--conversation ",
        Some(RewindScope::Files) => "--files ",
    };
    let overwrite = if back.overwrite { "--overwrite " } else { "" };
    let item = Item {
        value: format!("{scope}{overwrite}--abort"),
        label: "abort the run, and take its prompt back".to_owned(),
        detail: "Esc leaves it at work".to_owned(),
    };
    Picker::new(Purpose::GoBack(None), "The session is at work", vec![item])
}

async fn take_back(backend: &Backend, scope: RewindScope, back: GoingBack, width: usize) -> Outcome {
    let said = backend.show().await?.conversation;
    let rewound = backend.rewind(None, scope, back, false).await?;
    let Some(prompt) = rewound.prompt_id else {
        return note(Look::DIM, "there is no prompt to take back yet");
    };
    let text = typed(&said, prompt);
    let mut done = told(&rewound, width);
    // The user can change and send it again.
    done.extend(text.filter(|_| rewound.conversation).map(Done::Write));
    Ok(done)
}

/// Returns what the user typed of a prompt.
pub(super) fn typed(said: &[Said], prompt: EntryId) -> Option<String> {
    let said = said.iter().find(|said| said.entry_id == prompt)?;
    match &said.speech {
        Speech::User { text, .. } => Some(attached::typed(text).to_owned()),
        Speech::Assistant { .. }
        | Speech::Tool { .. }
        | Speech::Shell { .. }
        | Speech::Custom { .. }
        | Speech::BranchSummary { .. }
        | Speech::Summary { .. } => None,
    }
}

/// Continues at an earlier place. The prompt that was chosen returns to the editor.
pub(super) async fn to(backend: &Backend, how: Branching, width: usize) -> Outcome {
    let prompt = how.prompt.map(EntryId);
    let after = match how.place {
        Place::Choose | Place::Start => None,
        Place::After(entry) => Some(EntryId(entry)),
    };
    // When the prompt was the newest entry, its run had changed no file.
    let moment = after.or(prompt);
    let text = match prompt {
        Some(prompt) => typed(&backend.show().await?.conversation, prompt),
        None => None,
    };
    let back = || text.into_iter().map(Done::Write);
    let Some(scope) = how.back.scope else {
        if moment.is_some() {
            let planned = backend.rewind(moment, RewindScope::Both, how.back, true).await?;
            if !planned.files.is_empty() {
                return Ok(vec![Done::Pick(choice(Some(how), &planned))]);
            }
        }
        let mut done = branch(backend, after, how.summary).await?;
        done.extend(back());
        return Ok(done);
    };
    let mut done = Vec::new();
    if scope != RewindScope::Conversation && moment.is_some() {
        let rewound = backend.rewind(moment, RewindScope::Files, how.back, false).await?;
        done.extend(told(&rewound, width));
    }
    if scope != RewindScope::Files {
        done.extend(branch(backend, after, how.summary).await?);
        done.extend(back());
    }
    Ok(done)
}

async fn branch(backend: &Backend, after: Option<EntryId>, summary: bool) -> Outcome {
    match backend.branch(after, summary).await {
        // Events report both outcomes, here and in all other chats.
        Err(error) if error.kind() == Some(ProblemKind::BranchSummary) => Ok(Vec::new()),
        done => done.map(|()| Vec::new()).map_err(Problem::from),
    }
}

/// What the user can choose.
fn choice(branch: Option<Branching>, planned: &SessionRewound) -> Picker {
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
    Picker::new(Purpose::GoBack(branch), "What goes back", items)
}

fn told(rewound: &SessionRewound, width: usize) -> Vec<Done> {
    let rows = figures::rewound(rewound)
        .into_iter()
        .map(|(look, line)| Row::new(&format!("  {line}"), look).cut(width));
    vec![Done::Rows(rows.collect())]
}

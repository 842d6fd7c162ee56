//! `/undo` and `/branch`: restore the conversation, the files, or both.
//!
//! Invariants: if there are files to bring back, the user is asked what goes back, unless the command says it;
//! files that somebody else changed are overwritten only if the user chooses it. What was done to each file is
//! shown.

use greenroom::EntryId;
use greenroom_server::ProblemKind;
use greenroom_server::operations::{RewindScope, RewoundAction, Said, SessionRewound, Speech};
use greenroom_terminal::format;
use greenroom_terminal::row::{Look, Row};
use greenroom_terminal::screen::one_line;

use super::Done;
use super::does::{Outcome, note};
use crate::attached;
use crate::backend::Backend;
use crate::commands::{BranchStart, Branching, GoingBack};
use crate::figures;
use crate::picker::{Item, Picker, Purpose};

/// The maximum number of columns of a prompt that is quoted.
const QUOTED_COLUMNS: usize = 40;

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
            let said = backend.show().await?.conversation;
            let text = planned.prompt_id.and_then(|prompt| typed(&said, prompt));
            return Ok(vec![Done::Pick(choice(None, text.as_deref(), &planned))]);
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
        detail: "Esc lets it continue".to_owned(),
    };
    Picker::new(Purpose::GoBack(None), "The session is working", vec![item])
}

async fn take_back(backend: &Backend, scope: RewindScope, back: GoingBack, width: usize) -> Outcome {
    let said = backend.show().await?.conversation;
    let rewound = backend.rewind(None, scope, back, false).await?;
    let Some(prompt) = rewound.prompt_id else {
        return note(Look::DIM, "there is no prompt to take back yet");
    };
    let text = typed(&said, prompt).unwrap_or_default();
    let mut done = files(&rewound, width);
    if rewound.conversation {
        done.push(Done::Note(
            Look::NOTE,
            format!("Took back {}; it is in the editor. /redo brings it back", quoted(&text)),
        ));
        // The user can change and send it again.
        done.push(Done::Write(text));
    } else if rewound.files.iter().any(|file| file.action.is_done()) {
        done.push(Done::Note(Look::DIM, "The conversation stays. /redo brings the files back".to_owned()));
    }
    done.extend(rewound.from.map(|from| Done::WentBack(from, scope)));
    Ok(done)
}

/// Takes back an undo: `from` is where the conversation was.
pub(super) async fn redo(backend: &Backend, from: EntryId, scope: RewindScope, width: usize) -> Outcome {
    let rewound = backend.rewind(Some(from), scope, GoingBack::default(), false).await?;
    let mut done = files(&rewound, width);
    let what = match scope {
        RewindScope::Both | RewindScope::Conversation => "The conversation is as it was before /undo",
        RewindScope::Files => "The files are as they were before /undo",
    };
    done.push(Done::Note(Look::NOTE, what.to_owned()));
    done.push(Done::CameBack);
    Ok(done)
}

/// Returns the beginning of a text, in quotes.
fn quoted(text: &str) -> String {
    format!("“{}”", one_line(text, QUOTED_COLUMNS))
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
    let after = match how.start {
        BranchStart::Choose | BranchStart::Start => None,
        BranchStart::After(entry) => Some(EntryId(entry)),
    };
    // When the prompt was the newest entry, its run had changed no file.
    let moment = after.or(prompt);
    let text = match prompt {
        Some(prompt) => typed(&backend.show().await?.conversation, prompt),
        None => None,
    };
    let planned = backend.rewind(moment, RewindScope::Both, how.back, true).await?;
    let Some(scope) = how.back.scope else {
        if moment.is_some() && !planned.files.is_empty() {
            return Ok(vec![Done::Pick(choice(Some(how), text.as_deref(), &planned))]);
        }
        return branch(backend, after, how.summary, text, planned.from).await;
    };
    let mut done = Vec::new();
    if scope != RewindScope::Conversation && moment.is_some() {
        let rewound = backend.rewind(moment, RewindScope::Files, how.back, false).await?;
        done.extend(files(&rewound, width));
        if scope == RewindScope::Files {
            done.extend(rewound.from.map(|from| Done::WentBack(from, scope)));
        }
    }
    if scope != RewindScope::Files {
        done.extend(branch(backend, after, how.summary, text, planned.from).await?);
    }
    Ok(done)
}

/// Continues after an entry. `text` is the prompt that returns to the editor, and `from` where the conversation was.
async fn branch(
    backend: &Backend,
    after: Option<EntryId>,
    summary: bool,
    text: Option<String>,
    from: Option<EntryId>,
) -> Outcome {
    match backend.branch(after, summary).await {
        // Events report both outcomes, here and in all other chats.
        Err(error) if error.kind() == Some(ProblemKind::BranchSummary) => Ok(Vec::new()),
        done => {
            done?;
            let back = text.map(|text| {
                let told = format!("Back to before {}; it is in the editor. /redo returns", quoted(&text));
                [Done::Note(Look::NOTE, told), Done::Write(text)]
            });
            let from = from.map(|from| Done::WentBack(from, RewindScope::Conversation));
            Ok(back.into_iter().flatten().chain(from).collect())
        }
    }
}

/// What the user can choose.
fn choice(branch: Option<Branching>, prompt: Option<&str>, planned: &SessionRewound) -> Picker {
    let count =
        |is: fn(RewoundAction) -> bool| planned.files.iter().filter(|file| is(file.action)).count() as u64;
    let done = count(RewoundAction::is_done);
    let others = count(|action| action == RewoundAction::ChangedByOthers);
    let left = planned.files.len() as u64 - done;
    let names: Vec<&str> =
        planned.files.iter().filter(|file| file.action.is_done()).map(|file| file.path.as_str()).collect();
    let files = match &*names {
        names @ ([_] | [_, _]) => names.join(" and "),
        _ => format::count(done, "file"),
    };
    let stays =
        if left > 0 { format!("{} cannot be restored", format::count(left, "file")) } else { String::new() };
    let item = |value: &str, label: String, detail: String| Item { value: value.to_owned(), label, detail };
    let mut items = vec![
        item("--both", format!("The conversation and {files}"), stays.clone()),
        item("--conversation", "The conversation only".to_owned(), "the files stay as they are".to_owned()),
        item("--files", format!("Only {files}"), stays),
    ];
    if others > 0 {
        let others = format::count(others, "file");
        let detail = format!("also {others} that somebody else changed; the current content is kept");
        let label = "The conversation and all of these files".to_owned();
        items.push(item("--both --overwrite", label, detail));
    }
    let title = match prompt {
        Some(prompt) => format!("Go back to before {}: what should be restored?", quoted(prompt)),
        None => "What should be restored?".to_owned(),
    };
    Picker::new(Purpose::GoBack(branch), &title, items)
}

/// Returns what was done to the files.
fn files(rewound: &SessionRewound, width: usize) -> Vec<Done> {
    let lines = figures::rewound_files(rewound).into_iter();
    let rows: Vec<Row> = lines.map(|(look, line)| Row::new(&format!("  {line}"), look).cut(width)).collect();
    if rows.is_empty() { Vec::new() } else { vec![Done::Rows(rows)] }
}

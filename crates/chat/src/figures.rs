//! The figures of a session: the parts of the context, the effect of a compaction, the usage.
//!
//! Invariants: they are the same at a terminal and without one.

use std::path::Path;

use greenroom::permissions::Mode;
use greenroom::{CompactionRecord, State, Status};
use greenroom_kernel::usage::{ContextUsage, WindowSource};
use greenroom_server::operations::{Branch, Pinned, Planned, RewoundAction, RewoundFile, SessionRewound};
use greenroom_terminal::row::Look;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::text::{self, thousands};
use greenroom_terminal::{compactions, format};

pub use self::context::context;

mod context;

/// How many columns of a branch's text are shown.
const TEXT_COLUMNS: usize = 60;
/// How a conversation is compacted in which everything is recent.
const FORCE: &str = "/compact --force keeps only the last two messages";

/// Describes what a compaction would do.
pub fn plan(plan: &Planned) -> String {
    let Some(first_kept) = plan.first_kept else {
        let reason = plan.reason.as_deref().unwrap_or_default();
        return format!("Nothing to compact yet: {}", text::nothing_to_compact(reason, FORCE));
    };
    let split = if plan.is_split_turn { ", cutting a turn" } else { "" };
    format!(
        "/compact would summarise {} and keep all from entry {first_kept} on{split}\ntokens: {} → {}",
        format::count(plan.messages_removed, "message"),
        thousands(plan.tokens_before),
        text::about(plan.tokens_after_estimate, plan.tokens_after_max),
    )
}

/// Says why nothing was compacted, and how it is done anyway.
pub fn nothing_to_compact(reason: &str, context: &ContextUsage) -> String {
    let size = match context.window {
        Some(window) => format!("{} of {}", format::short(context.tokens), format::short(window)),
        None => format!("{} tokens", format::short(context.tokens)),
    };
    format!("Nothing to compact yet ({size}): {}", text::nothing_to_compact(reason, FORCE))
}

/// Describes the session, its model, its server, its permissions and its usage.
pub fn status(state: &State, folder: &Path, server: Option<&str>, mode: Option<Mode>) -> String {
    let cost = if state.cost_microdollars > 0 {
        format::about(format::cents(state.cost_microdollars), state.estimated_tokens)
    } else {
        "cost unknown".to_owned()
    };
    format!(
        "session {}, {}\nfolder {}\n{}{}, {}\n{}{} entries, {}, {} tokens in all, {cost}",
        state.id,
        state.status,
        folder.display(),
        state.model,
        server.map(|server| format!(" of {server}")).unwrap_or_default(),
        window(&state.context),
        mode.map(|mode| format!("{}: {}\n", mode.as_str().replace('_', " "), mode.meaning()))
            .unwrap_or_default(),
        thousands(state.entries),
        format::count(state.compactions, "compaction"),
        thousands(state.total_tokens),
    )
}

/// Describes what the compactions of a session did, a line each.
pub fn compactions(records: &[CompactionRecord], state: &State) -> String {
    if records.is_empty() {
        return "nothing was compacted yet".to_owned();
    }
    let mut lines: Vec<String> = records.iter().map(compactions::line).collect();
    lines.extend(compactions::totals(state.compactions, &state.compaction_bill));
    lines.push("/compactions N shows one, /undo-compact N undoes it and all later ones".to_owned());
    lines.join("\n")
}

/// Lists the pinned messages, a line each.
pub fn pins(pins: &[Pinned]) -> String {
    if pins.is_empty() {
        return "nothing is pinned; /pin keeps your last prompt, /pin N an entry".to_owned();
    }
    let line = |pin: &Pinned| {
        let who = if pin.role == "user" { "you" } else { "agent" };
        let text = one_line(&pin.text, TEXT_COLUMNS);
        format!("{:>4}  {who}: {text} ({} tokens)", pin.entry_id.to_string(), thousands(pin.tokens))
    };
    pins.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Describes what the session has cost.
pub fn cost(state: &State) -> String {
    let cost = match state.cost_microdollars {
        0 => "cost unknown: no price is known for the models that were used".to_owned(),
        cost => format!("{} so far", format::about(format::cents(cost), state.estimated_tokens)),
    };
    let estimated = match state.estimated_tokens {
        0 => String::new(),
        tokens => format!(
            ", {} of them estimated where the server reported no usage that can be",
            thousands(tokens)
        ),
    };
    let compactions = compactions::totals(state.compactions, &state.compaction_bill);
    let compactions = compactions.map(|text| format!("\n{text}")).unwrap_or_default();
    format!("{cost}; {} tokens in all{estimated}{compactions}", thousands(state.total_tokens))
}

/// Describes a session whose run does not continue by itself, as a clause without a full stop.
pub fn stands_still(state: &State) -> Option<&'static str> {
    match (state.status, state.is_unanswered, state.is_held_back) {
        (Status::Waiting, _, true) => Some(
            "its run waits for a person, and continues in a chat with its original tools, folder and key; an \
             interrupt here ends it",
        ),
        (Status::Idle | Status::Compacting, true, true) => Some(
            "its newest prompt has no complete answer, and was for an agent with other tools, another folder or another key; \
             input here is answered with the tools, folder and key of this chat",
        ),
        (Status::Idle | Status::Compacting, true, false) => {
            Some("its newest prompt has no complete answer; /continue to resume")
        }
        _ => None,
    }
}

/// Describes the window and the source of its size.
pub fn window(context: &ContextUsage) -> String {
    const UNKNOWN: &str = "context of unknown size; set context_window (--window)";
    let Some(window) = context.window else { return UNKNOWN.to_owned() };
    let source = match context.window_source {
        WindowSource::CompactionSetting | WindowSource::Setting => "configured",
        WindowSource::Catalog => "from the model catalogue",
        WindowSource::Learned => "learned from a larger request that the provider rejected",
        WindowSource::Server => "reported by the server",
        WindowSource::Trained => "the model's length as reported by the server, which may accept less",
        WindowSource::Assumed => {
            return format!(
                "unknown model: assuming {}; set context_window (--window)",
                format::short(window)
            );
        }
        WindowSource::Unknown | _ => return UNKNOWN.to_owned(),
    };
    format!("context {} ({source})", format::short(window))
}

/// Like [`window`], in few words: whatever is to be done is said elsewhere.
pub(crate) fn window_short(context: &ContextUsage) -> String {
    match (context.window, context.window_source) {
        (Some(tokens), WindowSource::Assumed) => format!("context {} (assumed)", format::short(tokens)),
        (None, _) => "context of unknown size".to_owned(),
        (Some(_), _) => window(context),
    }
}

/// Describes a branch of a session in one line.
pub fn branch(branch: &Branch) -> String {
    let line = format!(
        "{}{} {}–{}  {}  {}{}",
        "  ".repeat(branch.depth),
        if branch.is_current { "●" } else { "○" },
        branch.first,
        branch.last,
        format::count(branch.messages, "message"),
        one_line(branch.text.as_deref().unwrap_or_default(), TEXT_COLUMNS),
        if branch.has_leaf { "  ← here" } else { "" },
    );
    line.trim_end().to_owned()
}

/// The maximum number of files of a rewind that are listed.
const REWOUND_MAX: usize = 30;

/// Describes what a rewind did, a line each.
pub fn rewound(rewound: &SessionRewound) -> Vec<(Look, String)> {
    let mut lines = rewound_files(rewound);
    if rewound.conversation {
        lines.push((Look::NOTE, continues(rewound)));
    }
    lines
}

/// Describes what a rewind did to the files, a line each.
pub(crate) fn rewound_files(rewound: &SessionRewound) -> Vec<(Look, String)> {
    let mut lines = Vec::new();
    for file in rewound.files.iter().take(REWOUND_MAX) {
        let path = one_line(&file.path, TEXT_COLUMNS);
        let reason = file.reason.as_deref().unwrap_or_default();
        lines.push(match file.action {
            RewoundAction::Restored if file.overwritten => {
                (Look::WARN, format!("{path}: restored, overwriting a change by somebody else"))
            }
            RewoundAction::Removed if file.overwritten => {
                (Look::WARN, format!("{path}: removed, including a change by somebody else"))
            }
            RewoundAction::Restored => (Look::DIM, format!("{path}: restored")),
            RewoundAction::Removed => (Look::DIM, format!("{path}: removed; it did not exist")),
            RewoundAction::ChangedByOthers => {
                let text = "unchanged, because somebody else changed it; --overwrite overwrites it";
                (Look::WARN, format!("{path}: {text}"))
            }
            RewoundAction::NotKept => (Look::WARN, format!("{path}: unchanged: {reason}")),
            RewoundAction::Failed => (Look::BAD, format!("{path}: unchanged: {reason}")),
        });
    }
    let more = rewound.files.len().saturating_sub(REWOUND_MAX) as u64;
    if more > 0 {
        lines.push((Look::DIM, format!("and {} more", format::count(more, "file"))));
    }
    if !rewound.conversation && rewound.files.is_empty() {
        let text = if rewound.keeps_files { "no file has changed since" } else { "files are not kept" };
        lines.push((Look::DIM, text.to_owned()));
    }
    lines
}

/// Says where the conversation continues after a rewind, and how that is taken back.
pub fn continues(rewound: &SessionRewound) -> String {
    let to = rewound.to.map_or_else(|| "from the beginning".to_owned(), |to| format!("after entry {to}"));
    let back = rewound.from.map(|from| format!("; entry {from} was the last one before")).unwrap_or_default();
    format!("the conversation continues {to}{back}")
}

/// Describes what a rewind would do to a file.
pub fn planned(file: &RewoundFile) -> String {
    let path = one_line(&file.path, TEXT_COLUMNS);
    let over = if file.overwritten { ", overwriting a change by somebody else" } else { "" };
    match file.action {
        RewoundAction::Restored => format!("{path}: would be restored{over}"),
        RewoundAction::Removed => format!("{path}: would be removed{over}"),
        RewoundAction::ChangedByOthers => {
            format!("{path}: would stay as it is, because somebody else changed it")
        }
        RewoundAction::NotKept | RewoundAction::Failed => {
            format!("{path}: would stay as it is: {}", file.reason.as_deref().unwrap_or_default())
        }
    }
}

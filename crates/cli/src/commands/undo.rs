//! `greenroom undo`: takes back the newest turn of a session, or goes back to an entry.
//!
//! Invariants: without `--yes`, files are changed only after the user has seen which and agreed, at a terminal;
//! elsewhere, files need `--yes`. Files that somebody else changed need `--overwrite` as well.

use anyhow::Result;
use greenroom::permissions::Mode;
use greenroom_chat::figures;
use greenroom_kernel::EntryId;
use greenroom_server::operations::{RewindScope, RewindSession, SessionRewound};
use greenroom_terminal::{Interrupts, Screen, format};

use crate::args::{Global, UndoArgs};
use crate::commands::chat::begin;
use crate::commands::confirm;
use crate::error;
use crate::host::Patience;
use crate::host::link::Link;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &UndoArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let patience = Patience::new(global, &interrupts);
    let (global, mut model) = interrupts.unless(begin::stored(global, &args.model, &args.id, false)).await?;
    let global = &global;
    if !(model.allow_write || model.allow_shell) {
        // The user changes the files, not the agent.
        model.mode = model.mode.or(Some(Mode::AcceptEdits));
    }
    let opening = Link::open_once_for(global, &model, &args.id, &patience);
    let (link, id) = interrupts.unless(opening).await?;
    link.say_warnings(global)?;
    let result = interrupts.unless(undo(global, args, &link, id)).await;
    link.end().await?;
    result
}

async fn undo(global: &Global, args: &UndoArgs, link: &Link, id: String) -> Result<u8> {
    let wanted = RewindSession {
        session_id: id,
        entry_id: args.to.map(EntryId),
        scope: args.scope(),
        overwrite: args.overwrite,
        dry_run: true,
        abort: args.abort,
    };
    let planned = link.client.call(wanted.clone()).await?;
    if args.dry_run {
        show(global, args, &planned)?;
        return Ok(code(&planned));
    }
    let changes = planned.files.iter().filter(|file| file.action.is_done()).count() as u64;
    if changes > 0 && !args.yes && !agrees(global, args, &planned, changes).await? {
        return Ok(error::FAILED);
    }
    let rewound = link.client.call(RewindSession { dry_run: false, ..wanted }).await?;
    show(global, args, &rewound)?;
    Ok(code(&rewound))
}

/// Asks the user whether these files are to be changed.
async fn agrees(global: &Global, args: &UndoArgs, planned: &SessionRewound, changes: u64) -> Result<bool> {
    let files = format::count(changes, "file");
    let mut screen = Screen::stderr(global.color);
    if args.json || !confirm::can_ask(&screen) {
        return Err(error::usage(format!(
            "{files} would be changed; add --yes to change them, --dry-run to list them, or --conversation to leave them"
        )));
    }
    for file in &planned.files {
        screen.line(format!("  {}", figures::planned(file)))?;
    }
    confirm::agrees(&mut screen, &format!("Change {files}?")).await
}

fn show(global: &Global, args: &UndoArgs, rewound: &SessionRewound) -> Result<()> {
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&serde_json::json!(rewound))?;
        return Ok(());
    }
    if args.to.is_none() && rewound.prompt_id.is_none() {
        screen.line("There is no prompt to take back.")?;
        return Ok(());
    }
    if args.dry_run {
        for file in &rewound.files {
            screen.line(figures::planned(file))?;
        }
        if rewound.conversation {
            screen.line(figures::continues(rewound))?;
        }
        return Ok(());
    }
    for (_, line) in figures::rewound(rewound) {
        screen.line(line)?;
    }
    Ok(())
}

/// Returns the exit code: a failure if a file is not as it was then.
fn code(rewound: &SessionRewound) -> u8 {
    if rewound.files.iter().all(|file| file.action.is_done()) { 0 } else { error::FAILED }
}

impl UndoArgs {
    fn scope(&self) -> RewindScope {
        match (self.conversation, self.files) {
            (true, _) => RewindScope::Conversation,
            (false, true) => RewindScope::Files,
            (false, false) => RewindScope::Both,
        }
    }
}

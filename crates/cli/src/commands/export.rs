//! `greenroom export`: writes a stored session as a file for other systems.
//!
//! Invariants: nothing is changed; an existing file is overwritten only on request. If a file is incomplete,
//! the command says so. What is written contains no secret that this process knows, nor what looks like one.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use greenroom_formats::export_pi;
use greenroom_server::markdown::markdown;
use greenroom_terminal::Screen;
use greenroom_terminal::progress::Progress;
use greenroom_terminal::screen::harmless;

use crate::args::{ExportArgs, ExportFormat, Global};
use crate::error::{self, secrets};
use crate::host::source::Stored;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ExportArgs) -> Result<u8> {
    let what = format!("reading {}", args.session);
    let progress = Progress::start(global.color, move || what.clone());
    let stored = Stored::read(global, &args.session).await;
    progress.end().await;
    let stored = stored?;
    let text = match args.format {
        ExportFormat::Pi => {
            let cwd = std::env::current_dir().unwrap_or_default();
            let entries = stored.entries.iter().map(|entry| &**entry);
            export_pi(&stored.summary.id, stored.summary.created_at_ms, &cwd.to_string_lossy(), entries)
        }
        ExportFormat::Markdown => markdown(&stored.summary, &stored.conversation()),
    };
    let text = secrets::redactor().all(&text);
    let text = match args.format {
        // JSON has escapes of its own.
        ExportFormat::Pi => text,
        // Markdown is shown at terminals too.
        ExportFormat::Markdown => harmless(&text).into_owned().into(),
    };
    let Some(path) = &args.output else {
        let mut screen = Screen::stdout(global.color);
        match args.format {
            ExportFormat::Pi => screen.json_text(&text)?,
            ExportFormat::Markdown => screen.text(&text)?,
        }
        return say_what_is_missing(global, &stored);
    };
    let mut open = std::fs::OpenOptions::new();
    open.write(true);
    if args.force {
        open.create(true).truncate(true)
    } else {
        open.create_new(true)
    };
    let mut file = match open.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(error::usage(format!("{} exists; --force overwrites it", path.display())));
        }
        Err(error) => return Err(error).with_context(|| format!("write {}", path.display())),
    };
    file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
    say_what_is_missing(global, &stored)
}

/// Prints what is missing from the file, and returns the exit code.
fn say_what_is_missing(global: &Global, stored: &Stored) -> Result<u8> {
    let waiting = stored.waiting().len() as u64;
    if waiting > 0 {
        Screen::stderr(global.color).line(format!(
            "greenroom: warning: {} not in the file; `greenroom show {}` prints the queued input",
            if waiting == 1 {
                "1 queued prompt is".to_owned()
            } else {
                format!("{waiting} queued prompts are")
            },
            stored.summary.id
        ))?;
    }
    stored.say_losses(global)
}

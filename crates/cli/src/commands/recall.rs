//! `greenroom recall`: searches the stored sessions for words.
//!
//! Invariants: nothing is changed; text of sessions is printed as one line, without control characters.

use anyhow::Result;
use greenroom::Recalled;
use greenroom_terminal::progress::Progress;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Look, Row, Screen, time};
use serde_json::json;

use crate::args::{Global, RecallArgs};
use crate::host::source;

/// How much of an entry is printed, in characters.
const TEXT_CHARS: usize = 400;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &RecallArgs) -> Result<u8> {
    let progress = Progress::start(global.color, || "searching".to_owned());
    let searched = source::look(global, async |source| source.recall(global, args).await).await;
    progress.end().await;
    let (found, code) = searched?.unwrap_or_default();
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.json(&json!(found))?;
        return Ok(code);
    }
    if found.is_empty() {
        screen.line(format!("No entry matches {:?}.", args.query.join(" ")))?;
        return Ok(code);
    }
    for Recalled { session, entry, at_ms, role, text, .. } in &found {
        let when = time::ago(*at_ms, time::now_ms());
        let head = Row::new(session, Look::BOLD);
        screen.line(head.and(&format!("  entry {entry}, {role}, {when}"), Look::DIM))?;
        screen.line(format!("  {}", one_line(text, TEXT_CHARS)))?;
    }
    Ok(code)
}

//! A question with the answers yes and no, to the user at a terminal.
//!
//! Invariants: only `y` and `yes` agree; nothing is asked where nobody sees the question or nobody can answer.

use std::io::IsTerminal as _;

use anyhow::Result;
use greenroom_terminal::Screen;

/// Whether somebody sees this screen and can answer.
pub(super) fn can_ask(screen: &Screen) -> bool {
    screen.is_terminal() && std::io::stdin().is_terminal()
}

/// Asks, and returns whether the user agrees. `question` says what happens.
///
/// # Errors
/// The terminal cannot be written or read.
pub(super) async fn agrees(screen: &mut Screen, question: &str) -> Result<bool> {
    screen.line(format!("{question} [y/N]"))?;
    let mut answer = String::new();
    let answer = tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut answer).map(|_| answer));
    Ok(matches!(answer.await??.trim().to_lowercase().as_str(), "y" | "yes"))
}

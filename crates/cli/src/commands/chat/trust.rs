//! The question whether the files of a project may reach the model.
//!
//! Invariants: it is asked once for a folder, before anything of the project is read; without a clear yes, nothing is.

use anyhow::Result;
use greenroom_terminal::{Interrupts, Screen};

use crate::agent;
use crate::args::{Global, ModelArgs};
use crate::config::surroundings::Surroundings;
use crate::config::trusted::{Answer, FolderTrust};

/// Asks about the project of the workspace, if it has files for agents and the user was not asked before. Returns `None`
/// if the user left.
pub(super) async fn ask(global: &Global, args: &ModelArgs, interrupts: &Interrupts) -> Result<Option<()>> {
    let here = Surroundings::here();
    let config = agent::load_config(global, &here)?.config;
    let trust = FolderTrust::of(&config, &here.path(&args.workspace), &here);
    let files = trust.files();
    if trust.answer() != Answer::NotAsked || files.is_empty() {
        return Ok(Some(()));
    }
    let mut screen = Screen::stderr(global.color);
    screen.line(format!(
        "The project in {} has files that tell the model what to do: {}. Its authors wrote them, and who can change them can \
         speak to the model.",
        trust.root().display(),
        files.join(", ")
    ))?;
    screen.line("Trust the files of this folder? Type y and Enter; anything else leaves them out.")?;
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|bytes| (bytes > 0).then_some(line))
    });
    let line = tokio::select! {
        biased;
        () = interrupts.next() => return Ok(None),
        line = line => line??,
    };
    let Some(line) = line else { return Ok(None) };
    let is_yes = matches!(line.trim().to_lowercase().as_str(), "y" | "yes");
    trust.keep(if is_yes { Answer::Trusted } else { Answer::Refused })?;
    if !is_yes {
        screen.line(format!(
            "They are not read. `greenroom config trust --folder {}` changes that.",
            trust.root().display()
        ))?;
    }
    Ok(Some(()))
}

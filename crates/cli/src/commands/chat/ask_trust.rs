//! The question whether the files of a project may reach the model.
//!
//! Invariants: it is asked once for a folder, before anything of the project is read; without a clear yes, nothing is.

use anyhow::Result;
use greenroom_chat::choose::{Answered, Choice};
use greenroom_terminal::input::Input;
use greenroom_terminal::{Interrupts, Screen};

use super::begin::ask;
use crate::agent;
use crate::args::{Global, ModelArgs};
use crate::commands::sessions::shown_folder;
use crate::config::surroundings::Surroundings;
use crate::config::trusted::{Answer, FolderTrust};

/// The values of the answers.
const YES: &str = "yes";
const NO: &str = "no";

/// Asks about the project of the workspace, if it has files for agents and the user was not asked before. Returns what was
/// typed behind the answer, or `None` if this command is interrupted.
pub(super) async fn about_project(
    global: &Global,
    args: &ModelArgs,
    interrupts: &Interrupts,
) -> Result<Option<Vec<Input>>> {
    let here = Surroundings::here();
    let config = agent::load_config(global, &here)?.config;
    let trust = FolderTrust::of(&config, &here.path(&args.workspace), &here);
    let files = trust.files();
    if trust.answer() != Answer::NotAsked || files.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let root = trust.root().display();
    let above = vec![
        format!(
            "{} has files that tell the model what to do: {}.",
            shown_folder(&root.to_string()),
            files.join(", ")
        ),
        "Anyone who can change these files can instruct the model. If you did not write them, inspect them first."
            .to_owned(),
    ];
    let choice = |value: &str, label: &str, detail: &str| Choice {
        value: value.to_owned(),
        label: label.to_owned(),
        detail: detail.to_owned(),
        preview: Vec::new(),
    };
    // The first one is selected, and an Enter may have been meant for something else.
    let choices =
        vec![choice(NO, "No, leave them out", "from now on"), choice(YES, "Yes, use them", "from now on")];
    let title = "Trust the files of this folder?";
    let Some(Answered { value, behind }) = ask(global, interrupts, above, title, choices).await? else {
        return Ok(None);
    };
    match value.as_deref() {
        Some(YES) => trust.keep(Answer::Trusted)?,
        // A warning at the start says how that is changed.
        Some(_) => trust.keep(Answer::Refused)?,
        // It is asked again next time.
        None => Screen::stderr(global.color).line("They are not read this time.")?,
    }
    Ok(Some(behind))
}

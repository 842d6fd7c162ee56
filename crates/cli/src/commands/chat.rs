//! `greenroom chat`: a conversation with an agent.
//!
//! Invariants: all input is in the log before it is answered, so nothing is lost however the chat ends;
//! without a terminal on both sides, the chat reads and writes plain lines.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Result;
use greenroom_chat::{Backend, Ended, Opened, Place, SILENCE_MAX, Skill, Typed};
use greenroom_server::operations::ClientKind;
use greenroom_terminal::input::{self, Input, Raw};
use greenroom_terminal::screen::variable;
use greenroom_terminal::{Interrupts, Screen};
use tokio::sync::mpsc;

use self::program::Around;
use crate::agent::project::ProjectFiles;
use crate::args::{Answers, ChatArgs, Global, ModelArgs, ResumeArgs};
use crate::config::surroundings::Surroundings;
use crate::config::trusted::FolderTrust;
use crate::host::link::{self, Link};
use crate::host::{self, Patience, Silence};
use crate::{agent, error};

mod between;
mod plain;
mod program;
mod trust;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ChatArgs) -> Result<u8> {
    talk(global, &args.model, async |link| {
        link.session_id(args.session.as_deref(), args.goes_on, "chat").await
    })
    .await
}

/// `greenroom resume`: continues an existing session.
pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8> {
    talk(global, &args.model, async |link| match &args.id {
        Some(given) => link::resolve_known(&link.client, given).await,
        None => link.session_id(None, true, "chat").await,
    })
    .await
}

/// Runs the chat at a terminal, or in plain lines.
async fn talk(global: &Global, args: &ModelArgs, which: impl AsyncFn(&Link) -> Result<String>) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    if is_drawn(global) {
        if !args.no_tools && trust::ask(global, args, &interrupts).await?.is_none() {
            return Ok(error::INTERRUPTED);
        }
        let model = ModelArgs { answers: Answers::Terminal, ..args.clone() };
        draw_it(global, model, interrupts, which).await
    } else {
        let model = ModelArgs { answers: Answers::Nobody, ..args.clone() };
        read_lines(global, model, interrupts, which).await
    }
}

/// Whether both sides are a terminal on which the chat can draw.
fn is_drawn(global: &Global) -> bool {
    std::io::stdin().is_terminal() && Screen::stdout(global.color).is_terminal()
}

async fn draw_it(
    global: &Global,
    args: ModelArgs,
    interrupts: Interrupts,
    which: impl AsyncFn(&Link) -> Result<String>,
) -> Result<u8> {
    let (told, silences) = mpsc::unbounded_channel();
    let patience = Patience::telling(move |silence| {
        let (is_silent, text) = (matches!(silence, Silence::Begins(_)), silence.text().to_owned());
        drop(told.send(greenroom_chat::Silence { is_silent, text }));
    });
    let Some((link, opened, typed)) = open(global, &args, &interrupts, &patience, which).await? else {
        return Ok(error::INTERRUPTED);
    };
    link.say_warnings(global)?;
    interrupts.unless(link.say_folder(global, &args, opened.id())).await?;
    let place = place(global, &args, &link)?;
    let around = Arc::new(Around::new(global, &args, patience, link));
    let program = Arc::clone(&around) as Arc<dyn greenroom_chat::Program>;
    let ended = greenroom_chat::talk(program, place, interrupts, silences, opened, typed).await;
    // Work for this command ends with the connection.
    let link = Arc::into_inner(around).and_then(Around::into_link).filter(|link| !link.is_host());
    let Ended { session_id, result } = ended?;
    if let Some(link) = link {
        link.end().await?;
    }
    if let Some(id) = session_id {
        say_how_to_go_on(global, &args, &id)?;
    }
    result.map(|()| 0)
}

/// Returns the chat's environment.
fn place(global: &Global, args: &ModelArgs, link: &Link) -> Result<Place> {
    let here = Surroundings::here();
    let config = agent::load_config(global, &here)?.config;
    let trust = FolderTrust::of(&config, &link.folder, &here);
    let instructions = if config.project_instructions && !args.no_tools {
        ProjectFiles::around(&link.folder, trust.clone()).names()
    } else {
        Vec::new()
    };
    let skills = agent::skills(&config, args, Some(&link.folder), &here);
    let skills = skills.map(|skills| skills.listed()).unwrap_or_default();
    Ok(Place {
        trusts_project: trust.is_given(),
        theme: config.theme.theme(),
        notify: config.notify.notify(),
        instructions,
        skills: skills.into_iter().map(|(name, description)| Skill { name, description }).collect(),
        folder: link.folder.clone(),
        data_dir: agent::data_dir(global)?,
        workspace: agent::workspace(global, &args.workspace, &here)?,
        own_folder: agent::own_folder(),
        compaction: config.compaction,
        color: global.color,
    })
}

/// Opens the session of the chat. Returns `None` if the user left in the meantime.
async fn open(
    global: &Global,
    args: &ModelArgs,
    interrupts: &Interrupts,
    patience: &Patience,
    which: impl AsyncFn(&Link) -> Result<String>,
) -> Result<Option<(Link, Opened, Typed)>> {
    let opening = Link::open_and(global, args, ClientKind::Chat, patience, None, async |link| {
        let id = which(link).await?;
        link.check_not_waiting_for_others(&id).await?;
        Ok(greenroom_chat::open(link.client.clone(), &id).await?)
    });
    let mut opening = std::pin::pin!(opening);
    // While the host is awaited, keys are read; otherwise the terminal would hold them back.
    let mut keys: Option<(Raw, mpsc::Receiver<Input>)> = None;
    let mut typed = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = interrupts.next() => return Ok(None),
            opened = &mut opening => {
                let (link, opened) = opened?;
                let inputs = keys.map(|(_, inputs)| inputs);
                return Ok(Some((link, opened, Typed { before: typed, inputs })));
            }
            input = next_key(&mut keys) => match input {
                Some(input) if !input.leaves() => typed.push(input),
                Some(_) | None => return Ok(None),
            },
            () = tokio::time::sleep(SILENCE_MAX), if keys.is_none() => {
                if let Some(text) = host::still_silent(global) {
                    Screen::stderr(global.color).line(format!("greenroom: {text}"))?;
                    keys = Some((Raw::new()?, input::inputs()));
                }
            }
        }
    }
}

async fn next_key(keys: &mut Option<(Raw, mpsc::Receiver<Input>)>) -> Option<Input> {
    match keys {
        Some((_, inputs)) => inputs.recv().await,
        None => std::future::pending().await,
    }
}

async fn read_lines(
    global: &Global,
    args: ModelArgs,
    interrupts: Interrupts,
    which: impl AsyncFn(&Link) -> Result<String>,
) -> Result<u8> {
    let patience = Patience::new(global, &interrupts);
    let opening = Link::open_and(global, &args, ClientKind::Chat, &patience, None, async |link| {
        let id = which(link).await?;
        link.check_not_waiting(&id).await?;
        let opened = Backend::open(link.client.clone(), &id).await?;
        Ok((id, opened))
    });
    let (link, (id, opened)) = tokio::select! {
        biased;
        () = interrupts.next() => return Ok(error::INTERRUPTED),
        opened = opening => opened?,
    };
    link.say_warnings(global)?;
    interrupts.unless(link.say_folder(global, &args, &id)).await?;
    let given = args.clone();
    match plain::talk(global, args, link, interrupts, patience, opened).await? {
        true => say_how_to_go_on(global, &given, &id),
        false => Ok(0),
    }
}

fn say_how_to_go_on(global: &Global, args: &ModelArgs, id: &str) -> Result<u8> {
    let (model, dir) = (model_flags(global, args), data_dir_flag(global));
    let line = format!("`greenroom chat --session {id}{model}{dir}` resumes this conversation.");
    Screen::stdout(global.color).line(line)?;
    Ok(0)
}

/// Returns the flag with which another command finds the same store; empty if none is needed.
pub(super) fn data_dir_flag(global: &Global) -> String {
    match &global.data_dir {
        Some(dir) if variable("GREENROOM_DATA_DIR").is_none_or(|known| *dir != *known) => {
            format!(" --data-dir {}", dir.display())
        }
        Some(_) | None => String::new(),
    }
}

/// Returns the flags with which another command uses the same model in the same way: those that were given,
/// quoted for a shell. A key in an address is omitted.
fn model_flags(global: &Global, args: &ModelArgs) -> String {
    let address = args.server.base_url.as_ref().map(|url| match url.split_once('?') {
        Some((url, _)) => format!("{url}?***"),
        None => url.clone(),
    });
    let given = [
        ("--config", global.config.as_ref().map(|path| path.display().to_string())),
        ("--provider", args.server.provider.clone()),
        ("--base-url", address),
        ("--api-key-env", args.server.api_key_env.clone()),
        ("--model", args.model.clone()),
        ("--window", args.window.map(|tokens| tokens.to_string())),
    ];
    let mut flags = if args.simulate { " --simulate".to_owned() } else { String::new() };
    for (flag, value) in given {
        flags.extend(value.map(|value| format!(" {flag} {}", super::completions::as_word(&value))));
    }
    flags
}

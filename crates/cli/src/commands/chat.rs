//! `greenroom chat`: a conversation with an agent.
//!
//! Invariants: all input is in the log before it is answered, so nothing is lost however the chat ends;
//! without a terminal on both sides, the chat reads and writes plain lines.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Result;
use greenroom::permissions::Mode;
use greenroom_chat::{Backend, Ended, Environment, INIT, Opened, SILENCE_MAX, Skill, Typed};
use greenroom_server::operations::ClientKind;
use greenroom_terminal::input::{self, Input, KeyCode, KeyEvent, KeyModifiers, Raw};
use greenroom_terminal::screen::variable;
use greenroom_terminal::{Interrupts, Screen};
use tokio::sync::mpsc;

use self::begin::Which;
use self::program::Around;
use crate::agent::kept::{self, Kept};
use crate::agent::project::ProjectFiles;
use crate::args::{Answers, ChatArgs, Global, InitArgs, ModelArgs, ResumeArgs};
use crate::config::surroundings::Surroundings;
use crate::config::trusted::FolderTrust;
use crate::host::link::Link;
use crate::host::{self, Patience, Silence, source};
use crate::{agent, error};

mod ask_trust;
pub(super) mod begin;
mod between;
mod plain;
mod program;
mod welcome;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ChatArgs) -> Result<u8> {
    let which = match (&args.session, args.resume.as_deref()) {
        (Some(id), _) => Which::Named(id),
        (None, Some("")) => Which::Picked,
        (None, Some(id)) => Which::Known(id),
        (None, None) if args.goes_on => Which::Newest,
        (None, None) => Which::New,
    };
    talk(global, &args.model, which, &args.prompt.join(" ")).await
}

/// `greenroom resume`: continues an existing session.
pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8> {
    let which = args.id.as_deref().map_or(Which::Newest, Which::Known);
    talk(global, &args.model, which, &args.prompt.join(" ")).await
}

/// `greenroom init`: a chat that begins with the request for an AGENTS.md.
pub(crate) async fn init(global: &Global, args: &InitArgs) -> Result<u8> {
    talk(global, &args.model, Which::New, INIT.trim()).await
}

/// Runs the chat at a terminal, or in plain lines.
async fn talk(global: &Global, args: &ModelArgs, which: Which<'_>, prompt: &str) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let (mut global, mut args) = (global.clone(), args.clone());
    let Some(mut begun) = begin::session(&mut global, &mut args, which, &interrupts).await? else {
        return Ok(error::INTERRUPTED);
    };
    if is_drawn(&global) {
        args.answers = Answers::Person;
        if !args.no_tools {
            let asked = ask_trust::about_project(&global, &args, &interrupts).await?;
            let Some(behind) = asked else { return Ok(error::INTERRUPTED) };
            begun.behind.extend(behind);
        }
    } else {
        args.answers = Answers::Nobody;
    }
    let Some(behind) = begin::server(&global, &mut args, &interrupts).await? else {
        return Ok(error::INTERRUPTED);
    };
    let mode = begun.kept.as_ref().and_then(|kept| kept.chosen_mode(&args));
    let wanted = Wanted { id: begun.id, mode };
    if is_drawn(&global) {
        let mut typed = begun.behind;
        typed.extend(behind);
        if !prompt.is_empty() {
            // As if it had been pasted and sent.
            let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
            typed.splice(0..0, [Input::Paste(prompt.to_owned()), Input::Key(enter)]);
        }
        draw_it(&global, args, interrupts, wanted, typed).await
    } else {
        let first = (!prompt.is_empty()).then(|| prompt.to_owned());
        read_lines(&global, args, interrupts, wanted, first).await
    }
}

/// The session of a chat.
struct Wanted {
    /// Its id; `None`: it gets a new one.
    id: Option<String>,
    /// The mode that the user chose while it was open before.
    mode: Option<Mode>,
}

impl Wanted {
    async fn id(&self, link: &Link) -> Result<String> {
        match &self.id {
            Some(id) => Ok(id.clone()),
            None => link.new_session("chat").await,
        }
    }

    /// Keeps what the session is resumed with, from now on.
    fn keep(&self, global: &Global, args: &ModelArgs, id: &str) -> Result<()> {
        let kept = Kept::of(global, args).and_then(|kept| kept.with_mode(self.mode).write(global, id));
        kept.or_else(|error| {
            agent::warn(global, &format!("the session is not resumed with these flags: {error:#}"))
        })
    }
}

/// Whether both sides are a terminal on which the chat can draw.
pub(super) fn is_drawn(global: &Global) -> bool {
    std::io::stdin().is_terminal() && Screen::stdout(global.color).is_terminal()
}

async fn draw_it(
    global: &Global,
    args: ModelArgs,
    interrupts: Interrupts,
    wanted: Wanted,
    before: Vec<Input>,
) -> Result<u8> {
    let (told, silences) = mpsc::unbounded_channel();
    let patience = Patience::telling(move |silence| {
        let (is_silent, text) = (matches!(silence, Silence::Begins(_)), silence.text().to_owned());
        drop(told.send(greenroom_chat::Silence { is_silent, text }));
    });
    let opening = open(global, &args, &interrupts, &patience, &wanted, before).await?;
    let Some((link, opened, typed)) = opening else {
        return Ok(error::INTERRUPTED);
    };
    let begun = opened.id().to_owned();
    wanted.keep(global, &args, &begun)?;
    link.say_warnings(global)?;
    interrupts.unless(link.say_folder(global, &args, opened.id())).await?;
    let environment = environment(global, &args, &link)?;
    let around = Arc::new(Around::new(global, &args, patience, link));
    let program = Arc::clone(&around) as Arc<dyn greenroom_chat::Program>;
    let ended = greenroom_chat::talk(program, environment, interrupts, silences, opened, typed).await;
    // Work for this command ends with the connection.
    let link = Arc::into_inner(around).and_then(Around::into_link).filter(|link| !link.is_host());
    let Ended { session_id, result } = ended?;
    if let Some(link) = link {
        link.end().await?;
    }
    if session_id.as_deref() != Some(&begun) && wanted.id.is_none() {
        // It may never have begun.
        let _ = forget_unbegun(global, &begun).await;
    }
    if let Some(id) = session_id {
        say_how_to_go_on(global, &id)?;
    }
    result.map(|()| 0)
}

/// Returns the chat's environment.
fn environment(global: &Global, args: &ModelArgs, link: &Link) -> Result<Environment> {
    let here = Surroundings::here();
    let config = agent::load_config(global, &here)?.config;
    let trust = FolderTrust::of(&config, &link.with.folder, &here);
    let instructions = if config.project_instructions && !args.no_tools {
        ProjectFiles::around(&link.with.folder, trust.clone()).names()
    } else {
        Vec::new()
    };
    let skills = agent::skills(&config, args, Some(&link.with.folder), &here);
    let skills = skills.map(|skills| skills.listed()).unwrap_or_default();
    let workspace = agent::workspace(global, &args.workspace, &here)?;
    let sandbox = config.sandbox.sandbox(args.sandbox, &link.with.folder, Vec::new(), &here);
    Ok(Environment {
        commands: sandbox.summary().filter(|_| !args.no_tools),
        trusts_project: trust.is_given(),
        theme: config.theme.theme(),
        notify: config.notify.notify(),
        instructions,
        skills: skills.into_iter().map(|(name, description)| Skill { name, description }).collect(),
        folder: link.with.folder.clone(),
        data_dir: agent::data_dir(global)?,
        workspace,
        own_folder: agent::own_folder(),
        color: global.color,
    })
}

/// Opens the session of the chat. Returns `None` if the user left in the meantime.
async fn open(
    global: &Global,
    args: &ModelArgs,
    interrupts: &Interrupts,
    patience: &Patience,
    wanted: &Wanted,
    before: Vec<Input>,
) -> Result<Option<(Link, Opened, Typed)>> {
    let without_effort = args.without_effort();
    let opening = Link::open_and(global, &without_effort, ClientKind::Chat, patience, None, async |link| {
        let id = wanted.id(link).await?;
        link.check_not_waiting_for_others(&id).await?;
        Ok(program::open_with(&link.client, &id, wanted.mode).await?)
    });
    let mut opening = std::pin::pin!(opening);
    // While the host is awaited, keys are read; otherwise the terminal would hold them back.
    let mut keys: Option<(Raw, mpsc::Receiver<Input>)> = None;
    let mut typed = before;
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
    wanted: Wanted,
    first: Option<String>,
) -> Result<u8> {
    let patience = Patience::new(global, &interrupts);
    let opening = Link::open_and(global, &args, ClientKind::Chat, &patience, None, async |link| {
        let id = wanted.id(link).await?;
        link.check_not_waiting(&id).await?;
        let opened = Backend::open(link.client.clone(), &id).await?;
        Ok((id, opened))
    });
    let (link, (id, opened)) = tokio::select! {
        biased;
        () = interrupts.next() => return Ok(error::INTERRUPTED),
        opened = opening => opened?,
    };
    wanted.keep(global, &args, &id)?;
    link.say_warnings(global)?;
    interrupts.unless(link.say_folder(global, &args, &id)).await?;
    match plain::talk(global, args, link, interrupts, patience, opened, first).await? {
        true => say_how_to_go_on(global, &id),
        false => {
            kept::forget(global, &id);
            Ok(0)
        }
    }
}

/// Forgets what a session is resumed with if it has no messages, and so does not exist.
async fn forget_unbegun(global: &Global, id: &str) -> Result<()> {
    let found = source::look(global, async |source| source.exact(id).await).await?.flatten();
    if found.is_none() {
        kept::forget(global, id);
    }
    Ok(())
}

fn say_how_to_go_on(global: &Global, id: &str) -> Result<u8> {
    let line = format!("To continue: greenroom resume {id}{}", resume_flags(global));
    Screen::stdout(global.color).line(line)?;
    Ok(0)
}

/// Returns the flags that a session does not keep: the store's directory and some overrides of settings.
pub(super) fn resume_flags(global: &Global) -> String {
    let is_plain = |setting: &&String| {
        !setting.contains('?') && !setting.starts_with("trusted_folders=") && !kept::is_kept(setting)
    };
    let settings = global.settings.iter().filter(is_plain);
    let settings = settings.map(|setting| format!(" --set {}", super::completions::as_word(setting)));
    format!("{}{}", data_dir_flag(global), settings.collect::<String>())
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

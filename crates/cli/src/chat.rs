//! `greenroom chat`: talk with an agent.
//!
//! Invariants: everything that was said is in the log before it is answered, so leaving in any way loses nothing; without
//! a terminal on both sides the chat reads and writes plain lines.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use greenroom_server::operations::ClientKind;
use tokio::sync::mpsc;

use self::backend::Backend;
use crate::host::{self, Patience};
use crate::interrupt::Interrupts;
use crate::link::{self, Link};
use crate::options::{ChatArgs, Global, ModelArgs, ResumeArgs};
use crate::terminal::Screen;
use crate::{errors, setup};

mod ask;
pub(crate) mod ask_user;
mod attached;
mod backend;
mod between;
mod calls;
mod commands;
pub(crate) mod draw;
mod editor;
mod figures;
mod follow;
mod highlight;
mod history;
mod keys;
mod live;
mod markdown;
mod model;
mod picker;
mod plain;
pub(crate) mod row;
mod status;
pub(crate) mod terminal;

/// What is said where the host has ended, by itself, stopped or killed.
const NEXT_HOST: &str = "the host has ended; another one is started, and this session goes on there";
/// How long a host may say nothing before that is said.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Runs it.
pub(crate) async fn run(global: &Global, args: &ChatArgs) -> Result<u8> {
    talk(global, &args.model, async |link| {
        link.session_id(args.session.as_deref(), args.goes_on, "chat").await
    })
    .await
}

/// `greenroom resume`: goes on with a session that is there.
pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8> {
    talk(global, &args.model, async |link| match &args.id {
        Some(given) => link::resolve_known(&link.client, given).await,
        None => link.session_id(None, true, "chat").await,
    })
    .await
}

/// Talks at a terminal, or in lines.
async fn talk(global: &Global, args: &ModelArgs, which: impl AsyncFn(&Link) -> Result<String>) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    if is_drawn(global) {
        let model = ModelArgs { asks: true, ..args.clone() };
        draw_it(global, model, interrupts, which).await
    } else {
        read_lines(global, args.clone(), interrupts, which).await
    }
}

/// Whether there is a terminal on both sides, on which the chat can draw.
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
    let patience = Patience::telling(move |silence| drop(told.send(silence)));
    let Some((link, opened, typed)) = open(global, &args, &interrupts, &patience, which).await? else {
        return Ok(errors::INTERRUPTED);
    };
    link.say_warnings(global)?;
    interrupts.unless(link.say_folder(global, &args, opened.id())).await?;
    let given = args.clone();
    let (id, ended) = live::talk(global, args, link, interrupts, (patience, silences), opened, typed).await?;
    if let Some(id) = id {
        say_how_to_go_on(global, &given, &id)?;
    }
    ended.map(|()| 0)
}

/// Opens the session that is to be talked with. `None`: the user left meanwhile.
async fn open(
    global: &Global,
    args: &ModelArgs,
    interrupts: &Interrupts,
    patience: &Patience,
    which: impl AsyncFn(&Link) -> Result<String>,
) -> Result<Option<(Link, live::Opened, Typed)>> {
    let opening = Link::open_and(global, args, ClientKind::Chat, patience, async |link| {
        let id = which(link).await?;
        link.check_not_waiting_for_others(&id).await?;
        Ok(live::open(link.client.clone(), &id).await?)
    });
    let mut opening = std::pin::pin!(opening);
    // From when the host is waited for: the keys, which the terminal would keep to itself.
    let mut keys: Option<(terminal::Raw, mpsc::Receiver<terminal::Input>)> = None;
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
                    keys = Some((terminal::Raw::new()?, terminal::inputs()));
                }
            }
        }
    }
}

/// What was typed before the chat could be drawn, and where what follows comes from, if that is read already.
struct Typed {
    before: Vec<terminal::Input>,
    inputs: Option<mpsc::Receiver<terminal::Input>>,
}

async fn next_key(
    keys: &mut Option<(terminal::Raw, mpsc::Receiver<terminal::Input>)>,
) -> Option<terminal::Input> {
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
    let opening = Link::open_and(global, &args, ClientKind::Chat, &patience, async |link| {
        let id = which(link).await?;
        link.check_not_waiting(&id).await?;
        let opened = Backend::open(link.client.clone(), &id).await?;
        Ok((id, opened))
    });
    let (link, (id, opened)) = tokio::select! {
        biased;
        () = interrupts.next() => return Ok(errors::INTERRUPTED),
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
    let (model, dir) = (setup::model_flags(global, args), setup::data_dir_flag(global));
    let line = format!("`greenroom chat --session {id}{model}{dir}` goes on with this conversation.");
    Screen::stdout(global.color).line(line)?;
    Ok(0)
}

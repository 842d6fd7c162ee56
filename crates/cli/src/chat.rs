//! `greenroom chat`: talk with an agent.
//!
//! Invariants: everything that was said is in the log before it is answered, so leaving in any way loses nothing; without
//! a terminal on both sides the chat reads and writes plain lines.

use std::io::IsTerminal;

use anyhow::Result;
use greenroom_server::operations::ClientKind;

use crate::interrupt::Interrupts;
use crate::link::{self, Link};
use crate::options::{ChatArgs, Global, ModelArgs, ResumeArgs};
use crate::setup::{self, Setup, Stay};
use crate::terminal::Screen;

mod ask;
pub(crate) mod ask_user;
mod attached;
mod backend;
mod between;
mod calls;
mod commands;
pub(crate) mod draw;
mod editor;
mod follow;
mod highlight;
mod history;
mod live;
mod markdown;
mod model;
mod picker;
mod plain;
pub(crate) mod row;
mod status;
pub(crate) mod terminal;

/// Runs it.
pub(crate) async fn run(global: &Global, args: &ChatArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    if is_drawn(global) {
        let model = ModelArgs { asks: true, ..args.model.clone() };
        return draw_it(global, model, interrupts, async |link| {
            link.session_id(args.session.as_deref(), args.goes_on, "chat").await
        })
        .await;
    }
    let setup = Setup::new(global, &args.model, Stay::ForMore).await?;
    let id = setup.session_id(args.session.as_deref(), args.goes_on, "chat").await?;
    read_lines(global, setup, interrupts, &id).await
}

/// `greenroom resume`: goes on with a session that is there.
pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    if is_drawn(global) {
        let model = ModelArgs { asks: true, ..args.model.clone() };
        return draw_it(global, model, interrupts, async |link| match &args.id {
            Some(given) => link::resolve_known(&link.client, given).await,
            None => link.session_id(None, true, "chat").await,
        })
        .await;
    }
    let setup = Setup::new(global, &args.model, Stay::ForMore).await?;
    let id = match &args.id {
        Some(given) => setup::resolve_known(setup.runtime.store(), given)?,
        None => setup::newest_here(&setup.runtime, &setup.folder).await?,
    };
    read_lines(global, setup, interrupts, &id).await
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
    let (link, opened) = Link::open_and(global, &args, ClientKind::Chat, async |link| {
        let id = which(link).await?;
        link.check_not_waiting_for_others(&id).await?;
        Ok(live::open(link.client.clone(), &id).await?)
    })
    .await?;
    link.say_warnings(global)?;
    let id = live::talk(global, args, link, interrupts, opened).await?;
    id.map_or(Ok(0), |id| say_how_to_go_on(global, &id))
}

async fn read_lines(global: &Global, setup: Setup, interrupts: Interrupts, id: &str) -> Result<u8> {
    setup.check_not_waiting(id).await?;
    plain::talk(global, setup, interrupts, id).await?;
    say_how_to_go_on(global, id)
}

fn say_how_to_go_on(global: &Global, id: &str) -> Result<u8> {
    let flag = setup::data_dir_flag(global);
    let line = format!("`greenroom chat --session {id}{flag}` goes on with this conversation.");
    Screen::stdout(global.color).line(line)?;
    Ok(0)
}

//! `greenroom chat`: talk with an agent.
//!
//! Invariants: everything that was said is in the log before it is answered, so leaving in any way loses nothing; without
//! a terminal on both sides the chat reads and writes plain lines.

use std::io::IsTerminal;

use anyhow::Result;

use crate::interrupt::Interrupts;
use crate::options::{ChatArgs, Global, ModelArgs, ResumeArgs};
use crate::setup::{self, Setup, Stay};
use crate::terminal::Screen;

mod ask;
pub(crate) mod ask_user;
mod backend;
mod between;
mod calls;
mod commands;
pub(crate) mod draw;
mod editor;
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
    let model = ModelArgs { asks: is_drawn(global), ..args.model.clone() };
    let setup = Setup::new(global, &model, Stay::ForMore).await?;
    let id = setup.session_id(args.session.as_deref(), args.goes_on, "chat").await?;
    talk(global, &model, setup, interrupts, id).await
}

/// `greenroom resume`: goes on with a session that is there.
pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let model = ModelArgs { asks: is_drawn(global), ..args.model.clone() };
    let setup = Setup::new(global, &model, Stay::ForMore).await?;
    let id = match &args.id {
        Some(given) => setup::resolve_known(setup.runtime.store(), given)?,
        None => setup::newest_here(&setup.runtime, &setup.folder).await?,
    };
    talk(global, &model, setup, interrupts, id).await
}

/// Whether there is a terminal on both sides, on which the chat can draw.
fn is_drawn(global: &Global) -> bool {
    std::io::stdin().is_terminal() && Screen::stdout(global.color).is_terminal()
}

async fn talk(
    global: &Global,
    args: &ModelArgs,
    setup: Setup,
    interrupts: Interrupts,
    id: String,
) -> Result<u8> {
    setup.check_not_waiting(&id, args.asks).await?;
    let id = if is_drawn(global) {
        live::talk(global, args, setup, interrupts, id).await?
    } else {
        plain::talk(global, setup, interrupts, &id).await?;
        id
    };
    let flag = setup::data_dir_flag(global);
    let line = format!("`greenroom chat --session {id}{flag}` goes on with this conversation.");
    Screen::stdout(global.color).line(line)?;
    Ok(0)
}

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
    let setup = Setup::new(global, &args.model, Stay::ForMore).await?;
    let id = setup.session_id(args.session.as_deref(), args.goes_on, "chat").await?;
    talk(global, &args.model, setup, interrupts, id).await
}

/// `greenroom resume`: goes on with a session that is there.
pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let setup = Setup::new(global, &args.model, Stay::ForMore).await?;
    let id = match &args.id {
        Some(given) => setup::resolve_known(setup.runtime.store(), given)?,
        None => setup::newest_here(&setup.runtime, &setup.folder).await?,
    };
    talk(global, &args.model, setup, interrupts, id).await
}

async fn talk(
    global: &Global,
    args: &ModelArgs,
    setup: Setup,
    interrupts: Interrupts,
    id: String,
) -> Result<u8> {
    setup.check_not_waiting(&id).await?;
    let is_drawn = std::io::stdin().is_terminal() && Screen::stdout(global.color).is_terminal();
    let id = if is_drawn {
        live::talk(global, args, setup, interrupts, id).await?
    } else {
        plain::talk(global, setup, interrupts, &id).await?;
        id
    };
    let line = format!(
        "`greenroom chat --session {id}{}` goes on with this conversation.",
        setup::data_dir_flag(global)
    );
    Screen::stdout(global.color).line(line)?;
    Ok(0)
}

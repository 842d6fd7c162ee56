//! The preparation of a chat: its session, the options that it is resumed with, and its server.
//!
//! Invariants: a session is looked up without an agent and without changing anything; what the user typed behind an
//! answer is passed on to the chat.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use greenroom::{Order, SessionSummary};
use greenroom_chat::choose::{self, Answered, Choice};
use greenroom_server::operations::{FOLDER, ListSessions};
use greenroom_terminal::input::Input;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Interrupts, Screen, format, time};

use crate::agent;
use crate::agent::choice::{self, Choice as Server};
use crate::agent::kept::Kept;
use crate::args::{Global, ModelArgs};
use crate::commands::config;
use crate::commands::sessions::shown_folder;
use crate::error::{self, usage};
use crate::host::link::is_one_shot;
use crate::host::{self, source, stored};

/// The maximum number of sessions that are offered.
const OFFERED_MAX: usize = 500;

/// Which session a chat is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which<'a> {
    New,
    /// The one with this id, which is created if there is none.
    Named(&'a str),
    /// The existing one with this id or prefix.
    Known(&'a str),
    /// The newest one of this folder.
    Newest,
    /// The one that the user chooses.
    Picked,
}

/// A session that may exist already.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Its id; `None`: it gets a new one.
    pub(crate) id: Option<String>,
    /// What it is resumed with.
    pub(crate) kept: Option<Kept>,
    /// What the user typed behind the choice.
    pub(crate) behind: Vec<Input>,
}

/// Finds the session, adds to the flags what it is resumed with, and goes to its folder. Returns `None` if the user
/// left.
///
/// # Errors
/// There is no such session.
pub(crate) async fn session(
    global: &mut Global,
    args: &mut ModelArgs,
    which: Which<'_>,
    interrupts: &Interrupts,
) -> Result<Option<Begun>> {
    let (found, behind) = match which {
        Which::New => return Ok(Some(Begun::default())),
        Which::Named(id) => {
            let found = source::look(global, async |source| source.exact(id).await).await?.flatten();
            let Some(found) = found else {
                return Ok(Some(Begun { id: Some(id.to_owned()), ..Begun::default() }));
            };
            (found, Vec::new())
        }
        Which::Known(given) => (known(global, given).await?, Vec::new()),
        Which::Newest => {
            let folder = if args.no_tools { PathBuf::from(".") } else { args.workspace.clone() };
            let folder = folder.canonicalize().unwrap_or(folder).display().to_string();
            let labels = [(FOLDER.to_owned(), folder.clone())].into();
            let list = ListSessions { labels, ..talks() };
            let found = listed(global, list).await?.into_iter().next();
            (found.ok_or_else(|| stored::none_begun(&folder))?, Vec::new())
        }
        Which::Picked => {
            let Some((id, behind)) = picked(global, args, interrupts).await? else { return Ok(None) };
            (known(global, &id).await?, behind)
        }
    };
    let kept = resumed(global, args, &found)?;
    Ok(Some(Begun { id: Some(found.id), kept, behind }))
}

/// Returns the flags for a command about a stored session, with what that is resumed with, and with a model. A command
/// that `calls` none needs no key.
///
/// # Errors
/// There is no such session; or several models could answer, and none is named.
pub(crate) async fn stored(
    global: &Global,
    args: &ModelArgs,
    given: &str,
    calls: bool,
) -> Result<(Global, ModelArgs)> {
    let (mut global, mut args) = (global.clone(), args.clone());
    let found = match source::look(&global, async |source| source.summary(given).await).await {
        Err(problem) if matches!(error::exit_code(&problem), error::USAGE | error::STORE) => {
            return Err(problem);
        }
        Ok(None) => return Err(host::not_found(given)),
        // A host that cannot be used is reported where the session is opened.
        found => found.ok().flatten(),
    };
    let kept = found.and_then(|found| Kept::read(&global, &found.id));
    if let Some(kept) = kept {
        kept.complete(&mut global, &mut args, false);
        say_lacking(&global, &kept)?;
    }
    if calls {
        choice::complete_unasked(&global, &mut args).await?;
    } else {
        args.keyless = choice::complete(&global, &mut args).await? == Server::NoKey;
    }
    Ok((global, args))
}

/// Adds to the flags what a session is resumed with, and goes to its folder.
fn resumed(global: &mut Global, args: &mut ModelArgs, found: &SessionSummary) -> Result<Option<Kept>> {
    let own = found.labels.get(FOLDER).filter(|_| !args.is_workspace_given && !args.no_tools);
    if let Some(folder) = own {
        go_to(global, Path::new(folder))?;
    }
    let kept = Kept::read(global, &found.id);
    if let Some(kept) = &kept {
        kept.complete(global, args, true);
        say_lacking(global, kept)?;
    }
    Ok(kept)
}

/// Says which overrides of settings the session was used with and lacks now.
pub(crate) fn say_lacking(global: &Global, kept: &Kept) -> Result<()> {
    kept.lacking(global).map_or(Ok(()), |text| agent::warn(global, &text))
}

/// Makes a session's folder the current one, so that everything is found as when it was started.
#[expect(
    clippy::disallowed_methods,
    reason = "it is the program of one chat, and nothing has begun in it yet"
)]
fn go_to(global: &mut Global, folder: &Path) -> Result<()> {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    if here.is_ok_and(|here| here == folder) {
        return Ok(());
    }
    let mut screen = Screen::stderr(global.color);
    let shown = shown_folder(&folder.display().to_string());
    if !folder.is_dir() {
        let line = format!(
            "greenroom: warning: the session's folder {shown} does not exist; its tools work in the current folder"
        );
        return Ok(screen.line(line)?);
    }
    // Paths of flags are relative to the folder of the command.
    global.data_dir = Some(std::path::absolute(agent::data_dir(global)?)?);
    if let Some(config) = &mut global.config {
        *config = std::path::absolute(&*config)?;
    }
    std::env::set_current_dir(folder).with_context(|| format!("go to {}", folder.display()))?;
    Ok(screen.line(format!("greenroom: working in {shown}, the folder of this session"))?)
}

/// Returns the session with this id or prefix.
async fn known(global: &Global, given: &str) -> Result<SessionSummary> {
    let found = source::look(global, async |source| source.summary(given).await).await?;
    found.ok_or_else(|| host::not_found(given))
}

/// Returns a list of conversations, the newest first.
fn talks() -> ListSessions {
    ListSessions {
        order: Some(Order::Newest),
        roots: true,
        limit: Some(OFFERED_MAX),
        ..ListSessions::default()
    }
}

async fn listed(global: &Global, list: ListSessions) -> Result<Vec<SessionSummary>> {
    let found = source::look(global, async |source| source.sessions(global, list.clone()).await).await?;
    let sessions = found.unwrap_or_default().sessions.into_iter().map(|known| known.summary);
    Ok(sessions.filter(|session| !is_one_shot(&session.labels)).collect())
}

/// Lets the user choose a session: those of this folder first.
async fn picked(
    global: &Global,
    args: &ModelArgs,
    interrupts: &Interrupts,
) -> Result<Option<(String, Vec<Input>)>> {
    if !super::is_drawn(global) {
        return Err(usage(
            "-r lists the sessions at a terminal; elsewhere give an id: `greenroom sessions` lists them",
        ));
    }
    let here = args.workspace.canonicalize().unwrap_or_default().display().to_string();
    let mut sessions = listed(global, talks()).await?;
    if sessions.is_empty() {
        return Err(usage("there is no session to resume yet; `greenroom` starts one"));
    }
    sessions.sort_by_key(|session| session.labels.get(FOLDER) != Some(&here));
    let now = time::now_ms();
    let choices: Vec<Choice> = sessions.iter().map(|session| offered(session, now)).collect();
    let answered = ask(global, interrupts, Vec::new(), "Resume a session", choices).await?;
    Ok(answered.and_then(|Answered { value, behind }| Some((value?, behind))))
}

fn offered(session: &SessionSummary, now_ms: u64) -> Choice {
    let folder = session.labels.get(FOLDER).map(|folder| shown_folder(folder)).unwrap_or_default();
    let title = session.shown_title().unwrap_or("no messages yet");
    let window =
        session.context_window.map(|window| format!(" of {}", format::short(window))).unwrap_or_default();
    Choice {
        value: session.id.clone(),
        label: one_line(title, 50),
        detail: format!("{}  {folder}", time::ago(session.updated_at_ms, now_ms)),
        preview: vec![
            one_line(title, 200),
            format!("{} · {} · {}", session.id, session.model, folder),
            format!(
                "{}, context {}{window}, {}",
                format::count(session.entries, "entry"),
                format::short(session.context_tokens),
                format::count(session.compactions, "compaction"),
            ),
        ],
    }
}

/// Completes the flags with a server and a model; asks the user where something is missing. Returns what was typed
/// behind the answers, or `None` if the user left.
///
/// # Errors
/// Nobody can be asked, and something is missing.
pub(crate) async fn server(
    global: &Global,
    args: &mut ModelArgs,
    interrupts: &Interrupts,
) -> Result<Option<Vec<Input>>> {
    if !super::is_drawn(global) {
        choice::complete_unasked(global, args).await?;
        return Ok(Some(Vec::new()));
    }
    let mut behind = Vec::new();
    loop {
        match choice::complete(global, args).await? {
            Server::Made => return Ok(Some(behind)),
            Server::NotListed { address, reason, model, .. } => {
                choice::warn_unchecked(global, &address, &reason, &model)?;
                return Ok(Some(behind));
            }
            Server::NoKey => {
                let Some(more) = super::welcome::without_key(global, args, interrupts).await? else {
                    return Ok(None);
                };
                behind.extend(more);
            }
            Server::OneOf { address, models } => {
                let choice = |model: String| Choice {
                    label: model.clone(),
                    value: model,
                    detail: String::new(),
                    preview: Vec::new(),
                };
                let title = format!("Choose a model of {address}:");
                let choices = models.into_iter().map(choice).collect();
                let Some(answered) = ask(global, interrupts, Vec::new(), &title, choices).await? else {
                    return Ok(None);
                };
                let Some(model) = answered.value else { return Ok(None) };
                choice::keep_model(global, args, &model, |value| config::set(global, "model", value))?;
                args.model = Some(model);
                behind.extend(answered.behind);
                return Ok(Some(behind));
            }
        }
    }
}

/// Asks the user to choose; `None` if this command is interrupted.
pub(super) async fn ask(
    global: &Global,
    interrupts: &Interrupts,
    above: Vec<String>,
    title: &str,
    choices: Vec<Choice>,
) -> Result<Option<Answered>> {
    let (title, color) = (title.to_owned(), Screen::stdout(global.color).has_color());
    let asking = tokio::task::spawn_blocking(move || choose::choose(&above, &title, &choices, color));
    tokio::select! {
        biased;
        () = interrupts.next() => Ok(None),
        answered = asking => Ok(Some(answered??)),
    }
}

//! `greenroom top`: an overview of a host's live sessions, and a close view of one.
//!
//! Invariants: nothing is opened or woken; an output that is not a terminal gets one table and nothing else;
//! the terminal is restored however the command ends.

use std::collections::{HashMap, HashSet};
use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Result;
use greenroom::LiveSession;
use greenroom_server::operations::{Abort, CompactSession, ListLive, WatchSession};
use greenroom_server::{Client, ClientError, Events, Received};
use greenroom_terminal::draw::{Frame, Painter, Size};
use greenroom_terminal::input::{self, Input, Raw};
use greenroom_terminal::{Interrupts, Screen, time};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::model::{Action, Model};
use crate::args::{Global, TopArgs};
use crate::host::short::short_id;
use crate::{error, host};

pub(crate) mod model;
mod rows;

/// How often the list is requested.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// The message while no host has the store.
const NO_HOST: &str = "no host has the store open; looking for the next one";

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &TopArgs) -> Result<u8> {
    let client = host::reach_to_look(global).await?;
    let mut screen = Screen::stdout(global.color);
    let mut model = Model::new(args.sort);
    if let Some(client) = &client {
        let sessions = client.call(ListLive::default()).await?.sessions;
        if args.json {
            // In the chosen order, with the one-shots that are over.
            screen.pretty_json(&model.ordered(sessions, time::now_ms()))?;
            return Ok(0);
        }
        if screen.is_terminal() {
            model.know(short_ids(client, &sessions, &HashSet::new()).await);
        }
        model.taken(sessions, time::now_ms());
    } else if args.json {
        screen.pretty_json(&model.sessions())?;
        return Ok(0);
    }
    let Some(client) = client else {
        screen.line(
            "No host has the store open, so no session is live; `greenroom sessions` lists the stored ones, and `greenroom \
             chat` starts a host.",
        )?;
        return Ok(0);
    };
    if !screen.is_terminal() || !std::io::stdin().is_terminal() {
        if model.sessions().is_empty() {
            screen.line("No session is live; `greenroom sessions` lists the stored ones.")?;
            return Ok(0);
        }
        for row in rows::table(&model, usize::MAX) {
            screen.line(row.text().trim_end())?;
        }
        return Ok(0);
    }
    watch(global, client, model, screen.has_color()).await
}

/// A host's list of its sessions.
struct Listed {
    client: Client,
    /// Whether the connection is a new one.
    is_new: bool,
    sessions: Vec<LiveSession>,
    /// The short ids of the sessions that were not known.
    short_ids: HashMap<String, String>,
}

/// Returns the short ids of sessions, except of those in `known`.
async fn short_ids(
    client: &Client,
    sessions: &[LiveSession],
    known: &HashSet<String>,
) -> HashMap<String, String> {
    let mut short_ids = HashMap::new();
    for id in sessions.iter().map(|session| &session.state.id).filter(|id| !known.contains(*id)) {
        short_ids.insert(id.clone(), short_id(client, id).await);
    }
    short_ids
}

/// Requests the list from the host, or from another one if it has ended. Returns `None` if there is none.
async fn list(global: Global, known: Option<Client>, ids: HashSet<String>) -> Result<Option<Listed>> {
    let (client, is_new) = match known.filter(|client| !client.is_closed()) {
        Some(client) => (client, false),
        None => match host::reach_to_look(&global).await? {
            Some(client) => (client, true),
            None => return Ok(None),
        },
    };
    match client.call(ListLive::default()).await {
        Ok(listed) => {
            let short_ids = short_ids(&client, &listed.sessions, &ids).await;
            Ok(Some(Listed { client, is_new, sessions: listed.sessions, short_ids }))
        }
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Shows the list until the user leaves. No key waits for the host.
async fn watch(global: &Global, client: Client, mut model: Model, color: bool) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let raw = Raw::new()?;
    let mut painter = Painter::new(color, input::size());
    let mut inputs = input::inputs();
    let (done, mut news) = mpsc::unbounded_channel();
    let mut events: Option<Events> = None;
    let mut ticks = tokio::time::interval(ASK_EVERY);
    let mut client = Some(client);
    // The session in the close view.
    let mut watched: Option<String> = None;
    let mut asking: Option<JoinHandle<Result<Option<Listed>>>> = None;
    loop {
        let size = input::size();
        draw(&mut painter, &model, size)?;
        let action = tokio::select! {
            biased;
            () = interrupts.next() => Some(Action::Quit),
            input = inputs.recv() => match input {
                Some(Input::Key(key)) => model.key(key),
                Some(Input::Paste(_) | Input::Focus(_) | Input::Resized) => None,
                Some(Input::Ended(_)) | None => Some(Action::Quit),
            },
            Some(notice) = news.recv() => {
                model.notice = Some(notice);
                None
            }
            received = heard(&mut events) => {
                match received {
                    Some(Received::Event(event)) => model.heard(&event),
                    Some(Received::Gap { .. }) => model.missed(),
                    Some(Received::Warning(text)) => model.notice = Some(text),
                    None => events = None,
                }
                None
            }
            listed = answered(&mut asking) => {
                asking = None;
                match listed {
                    Ok(Some(Listed { client: found, is_new, sessions, short_ids })) => {
                        if is_new {
                            model.notice = Some("another host has the store open now".to_owned());
                        }
                        model.know(short_ids);
                        model.taken(sessions, time::now_ms());
                        client = Some(found);
                        watched.clone().filter(|_| is_new).map(Action::Watch)
                    }
                    Ok(None) => {
                        client = None;
                        model.taken(Vec::new(), time::now_ms());
                        model.notice = Some(NO_HOST.to_owned());
                        None
                    }
                    Err(error) => {
                        client = None;
                        model.notice = Some(error::line(&error));
                        None
                    }
                }
            }
            _ = ticks.tick(), if asking.is_none() => {
                asking = Some(tokio::spawn(list(global.clone(), client.clone(), model.known_ids())));
                None
            }
        };
        match (action, &client) {
            (Some(Action::Quit), _) => break,
            (Some(Action::Leave), _) => (events, watched) = (None, None),
            (Some(Action::Watch(id)), Some(client)) => {
                events = Some(client.events_of(id.as_str()));
                watched = Some(id.clone());
                ask(client, &done, watch_session, id);
            }
            (Some(Action::Abort(id)), Some(client)) => ask(client, &done, abort, id),
            (Some(Action::Compact(id)), Some(client)) => ask(client, &done, compact, id),
            (Some(Action::Watch(_) | Action::Abort(_) | Action::Compact(_)), None) => {
                model.notice = Some(NO_HOST.to_owned());
            }
            (None, _) => {}
        }
    }
    input::write(&painter.clear())?;
    drop(raw);
    Ok(0)
}

/// Waits for the host's reply; forever if there was no request.
async fn answered(asking: &mut Option<JoinHandle<Result<Option<Listed>>>>) -> Result<Option<Listed>> {
    match asking {
        Some(asking) => asking.await?,
        None => std::future::pending().await,
    }
}

fn draw(painter: &mut Painter, model: &Model, size: Size) -> Result<()> {
    let frame = Frame { above: Vec::new(), region: rows::screen(model, size), cursor: (0, 0) };
    Ok(input::write(&painter.paint(&frame, size))?)
}

/// Waits for the next event of the session in the close view; forever if there is none.
async fn heard(events: &mut Option<Events>) -> Option<Received> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Starts an action on a session, and reports its result.
fn ask<F>(
    client: &Client,
    done: &mpsc::UnboundedSender<String>,
    does: impl FnOnce(Client, String) -> F,
    id: String,
) where
    F: Future<Output = Result<String, ClientError>> + Send + 'static,
{
    let (doing, done) = (does(client.clone(), id), done.clone());
    tokio::spawn(async move {
        let text = doing.await.unwrap_or_else(|error| error.to_string());
        if !text.is_empty() {
            // The receiver may be gone.
            let _ = done.send(text);
        }
    });
}

/// Subscribes to a session. The events show the success, so no message is needed.
async fn watch_session(client: Client, id: String) -> Result<String, ClientError> {
    client.call(WatchSession { session_id: id }).await?;
    Ok(String::new())
}

async fn abort(client: Client, id: String) -> Result<String, ClientError> {
    client.call(Abort::current(id.as_str())).await?;
    Ok(format!("{id} is aborted"))
}

async fn compact(client: Client, id: String) -> Result<String, ClientError> {
    let work =
        client.work(CompactSession { session_id: id.clone(), keep_recent: None, focus: None, force: false });
    let outcome = work.await?.outcome().await?;
    Ok(format!("{id}: {}", greenroom_terminal::text::compacted(&outcome.compacted)))
}

//! `greenroom sessions` and `greenroom delete`: the sessions in the store.
//!
//! Invariants: listing creates nothing, not even the store's folder.

use std::collections::BTreeMap;

use anyhow::Result;
use greenroom::Order;
use greenroom_server::Client;
use greenroom_server::operations::{DeleteSession, FOLDER, ListSessions};
use greenroom_terminal::progress::Progress;
use greenroom_terminal::screen::{one_line, variable};
use greenroom_terminal::table::{Column, Layout};
use greenroom_terminal::{Look, Row, Screen, format, time};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::args::{DeleteArgs, Global, SessionsArgs};
use crate::commands::confirm;
use crate::host::source::{self, KnownSession, Listed};
use crate::host::{self, Changes, link};
use crate::{agent, error};

/// The shortest prefix of an id that deletes a session without confirmation, in characters.
const BEGINNING_MIN: usize = 4;
/// How many sessions are shown to people unless `--limit` says otherwise.
const SHOWN: usize = 50;
/// The widest titles and folders, in columns.
const TITLE_COLUMNS: usize = 60;
const FOLDER_COLUMNS: usize = 48;
/// The columns of the list.
const COLUMNS: [Column; 7] = [
    Column::text("TITLE", 9),
    Column::text("ID", 8),
    Column::text("UPDATED", 7),
    Column::text("STATE", 6),
    Column::text("CONTEXT", 4),
    Column::text("FOLDER", 5),
    Column::text("MODEL", 3),
];

/// Lists the sessions, newest first.
pub(crate) async fn run(global: &Global, args: &SessionsArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let dir = agent::data_dir(global)?;
    let mut wanted = args.labels.clone();
    if args.here {
        let here = std::env::current_dir()?.canonicalize()?;
        wanted.push((FOLDER.to_owned(), here.display().to_string()));
    }
    let mut labels = BTreeMap::new();
    for (name, value) in wanted {
        if labels.insert(name.clone(), value.clone()).is_some_and(|earlier| earlier != value) {
            return Err(error::usage(format!(
                "a session has only one value of the label {name}; give --label {name} once"
            )));
        }
    }
    let list = ListSessions {
        // A script must not miss sessions unnoticed.
        limit: args.limit.or((!args.json).then_some(SHOWN)).filter(|limit| *limit > 0),
        order: Some(Order::Newest),
        labels,
        unfinished: args.unfinished,
        working: true,
        roots: true,
        // Sessions of sub-agents are listed with their callers.
        trees: args.all,
        counts: true,
        ..ListSessions::default()
    };
    let is_shown = screen.is_terminal() && !args.json;
    let found = source::look(global, async |source| {
        let mut listed = source.sessions(global, list.clone()).await?;
        if args.no_runs {
            listed.sessions.retain(|known| !link::is_one_shot(&known.summary.labels));
        }
        let mut ids = Vec::new();
        for known in listed.sessions.iter().filter(|_| is_shown) {
            ids.push(source.short_id(&known.summary.id).await);
        }
        Ok((listed, ids))
    });
    let (Listed { sessions, counts, code }, ids) = found.await?.unwrap_or_default();
    say_damaged(global, counts.damaged)?;
    let listed = with_depths(sessions);
    if args.json {
        let list = listed.iter().map(|(_, known)| json_of(known)).collect::<Result<Vec<_>>>()?;
        screen.pretty_json(&list)?;
        return Ok(code);
    }
    if listed.is_empty()
        && code == 0
        && (args.unfinished || args.here || args.no_runs || !args.labels.is_empty())
    {
        screen.line("No session matches. Omit --label, --here, --no-runs and --unfinished to list all.")?;
        return Ok(0);
    }
    if listed.is_empty() && code == 0 {
        screen.line(format!(
            "No sessions in {} yet. `greenroom` starts one, and `greenroom demo` shows one.",
            dir.display()
        ))?;
        return Ok(0);
    }
    table(&mut screen, &listed, &ids)?;
    let shown = listed.iter().filter(|(depth, _)| *depth == 0).count();
    if counts.matching > shown && !args.no_runs {
        let line = format!("{} more; --limit 0 shows all", counts.matching - shown);
        screen.line(Row::styled(Look::DIM, &line))?;
    }
    if counts.of_sub_agents > 0 && !args.all {
        let line = format!("{} of sub-agents; --all shows them under their callers", counts.of_sub_agents);
        screen.line(Row::styled(Look::DIM, &line))?;
    }
    Ok(code)
}

/// Prints how many sessions are damaged.
fn say_damaged(global: &Global, damaged: usize) -> Result<()> {
    let text = match damaged {
        0 => return Ok(()),
        1 => "1 session is damaged".to_owned(),
        damaged => format!("{damaged} sessions are damaged"),
    };
    let line = format!("greenroom: {text}; `greenroom store check` lists what is lost");
    Ok(Screen::stderr(global.color).line(line)?)
}

/// Returns a session as `session/list` does, and what else a list for people shows.
fn json_of(known: &KnownSession) -> Result<Value> {
    let KnownSession { summary, .. } = known;
    let mut value = serde_json::to_value(summary)?;
    value["title"] = json!(summary.shown_title());
    value["folder"] = json!(summary.labels.get(FOLDER));
    value["window"] = json!(summary.context_window);
    value["updated_at"] = json!(time::rfc3339(summary.updated_at_ms));
    value["state"] = json!(known.state());
    value["is_unfinished"] = json!(known.is_unfinished());
    Ok(value)
}

/// Prints a row for each session. Where the output is no terminal, each row has everything, and whole ids.
fn table(screen: &mut Screen, sessions: &[(usize, KnownSession)], ids: &[String]) -> Result<()> {
    let now_ms = time::now_ms();
    let width = if screen.is_terminal() { screen.width().saturating_sub(1) } else { usize::MAX };
    let row = |(index, (depth, known)): (usize, &(usize, KnownSession))| {
        let KnownSession { summary, .. } = known;
        let window =
            summary.context_window.map(|window| format!(" of {}", format::short(window))).unwrap_or_default();
        let kind = if link::is_one_shot(&summary.labels) { "run: " } else { "" };
        let title = format!("{kind}{}", summary.shown_title().unwrap_or("no messages yet"));
        [
            format!("{}{}", "  ".repeat(*depth), one_line(&title, TITLE_COLUMNS)),
            ids.get(index).unwrap_or(&summary.id).clone(),
            time::ago(summary.updated_at_ms, now_ms),
            known.state().to_owned(),
            format!("{}{window}", format::short(summary.context_tokens)),
            summary.labels.get(FOLDER).map_or_else(String::new, |folder| shown_folder(folder)),
            one_line(&summary.model, 28),
        ]
    };
    let rows: Vec<[String; 7]> = sessions.iter().enumerate().map(row).collect();
    let layout = Layout::new(COLUMNS, &rows, width);
    screen.line(Row::styled(Look::DIM, layout.head()))?;
    for row in &rows {
        let line = layout.row(row);
        screen.line(match row[3].as_str() {
            "failed" | "damaged" => Row::styled(Look::BAD, line),
            "interrupted" => Row::styled(Look::WARN, line),
            _ => Row::from(line),
        })?;
    }
    Ok(())
}

/// Formats a folder as people write it: with a tilde for the home folder.
pub(crate) fn shown_folder(folder: &str) -> String {
    let home = variable("HOME").filter(|home| home.len() > 1);
    let below = home.and_then(|home| Some(format!("~{}", folder.strip_prefix(home.trim_end_matches('/'))?)));
    let shown = below.filter(|below| below.len() == 1 || below.starts_with("~/"));
    one_line(shown.as_deref().unwrap_or(folder), FOLDER_COLUMNS)
}

/// Adds to each session how deep it is below the one that was listed: callers stand before their sub-agents.
fn with_depths(sessions: Vec<KnownSession>) -> Vec<(usize, KnownSession)> {
    let mut callers: Vec<String> = Vec::new();
    let depth = |known: KnownSession| {
        let caller = known.summary.parent.as_ref();
        let depth = callers.iter().rposition(|id| Some(id) == caller).map_or(0, |at| at + 1);
        callers.truncate(depth);
        callers.push(known.summary.id.clone());
        (depth, known)
    };
    sessions.into_iter().map(depth).collect()
}

/// Asks whether the user means this session, if they gave a short prefix of its id.
///
/// # Errors
/// Nobody can answer.
async fn is_meant(global: &Global, args: &DeleteArgs, id: &str) -> Result<bool> {
    if args.yes || args.id == id || args.id.chars().count() >= BEGINNING_MIN {
        return Ok(true);
    }
    let mut screen = Screen::stderr(global.color);
    if !confirm::can_ask(&screen) {
        return Err(error::usage(format!(
            "{} is only a prefix of {id}; give at least {BEGINNING_MIN} characters of it, or --yes",
            args.id
        )));
    }
    confirm::agrees(&mut screen, &format!("Delete {id}?")).await
}

/// Deletes a session, and those below it.
pub(crate) async fn delete(global: &Global, args: &DeleteArgs) -> Result<u8> {
    let dir = agent::data_dir(global)?;
    if !dir.exists() {
        return Err(host::not_found(&args.id));
    }
    let known = async |client: &Client| {
        let id = host::resolve_known(client, &args.id).await?;
        let list = ListSessions { tree: Some(id.clone()), ..ListSessions::default() };
        let below = client.call(list).await?.sessions.len();
        Ok((id, below))
    };
    let (changes, (id, below)) = Changes::open_and(global, known).await?;
    if !is_meant(global, args, &id).await? {
        changes.end().await?;
        Screen::stderr(global.color).line("Nothing was deleted.")?;
        return Ok(error::FAILED);
    }
    let progress = Progress::start(global.color, || "erasing its data from the disk".to_owned());
    let deleted = changes.client.call(DeleteSession { session_id: id.clone() }).await;
    progress.end().await;
    changes.end().await?;
    let still_there = deleted?.reason;
    kept::forget(global, &id);
    let with = match below {
        0 => String::new(),
        1 => " and the session of the agent that it called".to_owned(),
        _ => format!(" and the {below} sessions of the agents that it called"),
    };
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!({ "id": id, "below": below, "erased": still_there.is_none() }))?;
    } else {
        screen.line(format!("Deleted {id}{with}."))?;
    }
    if let Some(reason) = still_there {
        Screen::stderr(global.color).line(format!(
            "greenroom: {id} is deleted, but its bytes are still in the journal ({reason}). They are erased \
            automatically, after later writes or when the store is next opened; nothing needs to be deleted again"
        ))?;
        return Ok(error::STORE);
    }
    Ok(0)
}

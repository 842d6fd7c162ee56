//! The layout of `top`: its model as rows of a terminal.
//!
//! Invariants: there are at most as many rows as the terminal has, none is wider, and the selected session is
//! among them.

use greenroom::{LiveSession, State, Status};
use greenroom_server::operations::FOLDER;
use greenroom_terminal::draw::Size;
use greenroom_terminal::format;
use greenroom_terminal::row::{Look, Row};
use greenroom_terminal::table::{Column, Layout};

use super::model::{Close, Model, Question, age_ms, doing};
use crate::commands::sessions::shown_folder;

/// The width of a bar, in columns.
const BAR_COLUMNS: usize = 8;
/// The widest cells, in columns.
const TITLE_COLUMNS: usize = 48;
const DOING_COLUMNS: usize = 30;

/// The columns of the table.
const COLUMNS: [Column; 9] = [
    Column::text("TITLE", 9),
    Column::text("ID", 7),
    Column::text("STATE", 8),
    Column::text("CONTEXT", 5),
    Column::number("TOKENS", 3),
    Column::number("COST", 4),
    Column::number("QUEUE", 2),
    Column::number("AGE", 6),
    Column::text("FOLDER", 1),
];

/// Returns the whole screen.
pub(crate) fn screen(model: &Model, size: Size) -> Vec<Row> {
    let width = size.width();
    let mut rows = match &model.close {
        Some(close) => close_up(model, close, size),
        None => list(model, size),
    };
    rows.truncate(size.rows.saturating_sub(1));
    while rows.len() + 1 < size.rows {
        rows.push(Row::default());
    }
    rows.push(bottom(model, width));
    rows.into_iter().map(|row| row.cut(width)).collect()
}

/// Returns the table alone, for an output that is not a terminal.
pub(crate) fn table(model: &Model, width: usize) -> Vec<Row> {
    let cells: Vec<[String; 9]> =
        model.sessions().iter().map(|session| cells(model, session, model.now_ms)).collect();
    let layout = Layout::new(COLUMNS, &cells, width);
    let mut head = Row::default();
    for (place, column) in layout.kept().enumerate() {
        let name = COLUMNS[column].name;
        let is_sorted = name.eq_ignore_ascii_case(model.sort.name());
        let look = if is_sorted { Look { bold: true, ..Look::PLAIN } } else { Look::DIM };
        if place > 0 {
            head.push("  ", Look::PLAIN);
        }
        head.push(&layout.cell(column, name), look);
    }
    let mut rows = vec![head];
    for (session, cells) in model.sessions().iter().zip(&cells) {
        let look = match session.state.status {
            Status::Working | Status::Compacting => Look::PLAIN,
            Status::Waiting => Look::WARN,
            Status::Idle | _ => Look::DIM,
        };
        rows.push(Row::new(&layout.row(cells), look));
    }
    rows
}

fn list(model: &Model, size: Size) -> Vec<Row> {
    let mut rows = vec![summary(model), Row::default()];
    if model.sessions().is_empty() {
        rows.push(Row::new("No live sessions. Sessions that start elsewhere appear here.", Look::DIM));
        return rows;
    }
    let mut table = table(model, size.width().saturating_sub(2)).into_iter();
    rows.extend(table.next().map(|head| Row::plain("  ").then(head)));
    let room = size.rows.saturating_sub(rows.len() + 1).max(1);
    let chosen = model.place().unwrap_or(0);
    let first = chosen.saturating_sub(room.saturating_sub(1));
    for (place, row) in table.enumerate().skip(first).take(room) {
        let mark = if place == chosen { Row::new("▸ ", Look::BOLD) } else { Row::plain("  ") };
        rows.push(mark.then(row));
    }
    rows
}

/// Returns a line that summarises all sessions.
fn summary(model: &Model) -> Row {
    let sessions = model.sessions();
    let of = |status: Status| sessions.iter().filter(|session| session.state.status == status).count() as u64;
    let cost: u64 = sessions.iter().map(|session| session.state.cost_microdollars).sum();
    let estimated_tokens = sessions.iter().map(|session| session.state.estimated_tokens).sum();
    let cost = match cost {
        0 => String::new(),
        cost => format!("  {} in all", format::about(format::cents(cost), estimated_tokens)),
    };
    let mut text = format::count(sessions.len() as u64, "live session");
    for (count, what) in [
        (of(Status::Working), "working"),
        (of(Status::Compacting), "compacting"),
        (of(Status::Waiting), "waiting for an answer"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    Row::new(&text, Look::BOLD).and(&cost, Look::DIM)
}

fn close_up(model: &Model, close: &Close, size: Size) -> Vec<Row> {
    let mut rows = vec![Row::new(&close.id, Look::BOLD)];
    match model.find(Some(&close.id)) {
        Some(session) => {
            let state = &session.state;
            let title = session.title.as_deref().unwrap_or_default();
            rows[0].push(&format!("  {title}"), Look::DIM);
            rows.push(Row::plain(&format!(
                "{}  {}  {} tokens{}  {}",
                doing(session),
                bar(session),
                format::short(state.total_tokens),
                Some(cost(state))
                    .filter(|cost| !cost.is_empty())
                    .map(|cost| format!("  {cost}"))
                    .unwrap_or_default(),
                state.model,
            )));
        }
        None => rows.push(Row::new("it is no longer live", Look::DIM)),
    }
    rows.push(Row::default());
    let width = size.width();
    let mut lines: Vec<Row> = close
        .lines
        .iter()
        .rev()
        .take(size.rows)
        .rev()
        .flat_map(|row| row.wrap(width, &Row::default(), &Row::plain("  ")))
        .collect();
    for line in close.text.lines() {
        lines.extend(Row::new(line, Look::PLAIN).wrap(width, &Row::default(), &Row::plain("  ")));
    }
    let room = size.rows.saturating_sub(rows.len() + 1);
    let first = lines.len().saturating_sub(room);
    if lines.is_empty() {
        lines.push(Row::new("New events appear here.", Look::DIM));
    }
    rows.extend(lines.into_iter().skip(first));
    rows
}

/// Returns the bottom row: a confirmation, a result, or the keys.
fn bottom(model: &Model, width: usize) -> Row {
    if let Some(question) = &model.question {
        let text = match question {
            Question::Abort(id) => format!("Abort the work in {id}? Partial output is kept. y/n"),
            Question::Compact(id) => format!("Replace the older part of {id} with a summary now? y/n"),
        };
        return Row::new(&text, Look { bold: true, ..Look::WARN });
    }
    if let Some(notice) = &model.notice {
        return Row::new(notice, Look::WARN);
    }
    if model.close.is_some() {
        return keys(&["Esc back", "a abort", "c compact", "q quit"], width);
    }
    let order = if model.is_reversed { ", reversed" } else { "" };
    let sort = format!("s sort ({}{order})", model.sort.name());
    keys(&["↑↓ choose", "Enter look", &sort, "r reverse", "a abort", "c compact", "q quit"], width)
}

/// Returns the keys in one row. If it is too narrow, the first ones are omitted: the last one leaves the
/// program.
fn keys(keys: &[&str], width: usize) -> Row {
    let line = |keys: &[&str]| Row::new(&keys.join("  "), Look::DIM);
    let narrower = (0..keys.len()).map(|left_out| line(&keys[left_out..]));
    narrower.into_iter().find(|row| row.width() <= width).unwrap_or_else(|| line(&keys[keys.len() - 1..]))
}

fn cells(model: &Model, session: &LiveSession, now_ms: u64) -> [String; 9] {
    let state = &session.state;
    let text = |text: &str, columns: usize| Row::plain(text).cut(columns).text();
    [
        text(session.title.as_deref().unwrap_or("no messages yet"), TITLE_COLUMNS),
        model.short_id(&state.id).to_owned(),
        text(&doing(session), DOING_COLUMNS),
        bar(session),
        format::short(state.total_tokens),
        cost(state),
        if state.waiting == 0 { String::new() } else { state.waiting.to_string() },
        age_ms(session, now_ms).map_or_else(String::new, shown_age),
        session.labels.get(FOLDER).map_or_else(String::new, |folder| shown_folder(folder)),
    ]
}

/// Returns what a session has cost; nothing if no price is known.
fn cost(state: &State) -> String {
    match state.cost_microdollars {
        0 => String::new(),
        cost => format::about(format::cents(cost), state.estimated_tokens),
    }
}

/// Returns the context as a bar with its fill level.
fn bar(session: &LiveSession) -> String {
    let context = &session.state.context;
    match (context.window, context.percent()) {
        (Some(window), Some(percent)) => {
            format!("{} {percent:>3.0} %", format::bar(context.tokens, window, window, BAR_COLUMNS))
        }
        (Some(_) | None, None) | (None, Some(_)) => format::short(context.tokens),
    }
}

/// Formats a duration in one unit: `12s`, `5m`, `3h`, `2d`.
fn shown_age(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..86_400 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;

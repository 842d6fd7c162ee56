//! `greenroom usage`: what was spent, by day or hour, in all or by label.
//!
//! Invariants: no session is opened, and nothing is changed.

use anyhow::Result;
use greenroom::{Period, Spending};
use greenroom_server::operations::ReportUsage;
use greenroom_terminal::screen::{columns, one_line};
use greenroom_terminal::{Look, Row, Screen, format, time};
use serde_json::json;

use crate::args::{Global, UsageArgs};
use crate::host::source;

/// The width of a label's value, in columns.
const VALUE_COLUMNS: usize = 40;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &UsageArgs) -> Result<u8> {
    let (by, value) = match args.label.as_deref().map(|label| label.split_once('=').unwrap_or((label, ""))) {
        Some((name, value)) => {
            (Some(name.to_owned()), Some(value.to_owned()).filter(|value| !value.is_empty()))
        }
        None => (None, None),
    };
    let per = if args.hours { Period::Hour } else { Period::Day };
    let report = ReportUsage { by, value, per, last: args.last };
    let found = source::look(global, async |source| source.usage(report.clone()).await).await?;
    let spending = found.unwrap_or_default();
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!(spending))?;
        return Ok(0);
    }
    if spending.is_empty() {
        screen.line("There was no spending in this period.")?;
        return Ok(0);
    }
    let first = if args.hours { "HOUR (UTC)" } else { "DAY (UTC)" };
    let head = [first, "OF", "COST", "INPUT", "CACHED", "OUTPUT", "RUNS", "CALLS"].map(str::to_owned);
    let rows: Vec<[String; 8]> =
        [head].into_iter().chain(spending.iter().map(|spent| row(spent, per))).collect();
    let widths: [usize; 8] =
        std::array::from_fn(|column| rows.iter().map(|row| columns(&row[column])).max().unwrap_or(0));
    for (index, row) in rows.iter().enumerate() {
        let cell = |(column, (cell, width)): (usize, (&String, usize))| {
            let blank = " ".repeat(width - columns(cell));
            // Texts are on the left, and numbers on the right.
            if column < 2 { format!("{cell}{blank}  ") } else { format!("{blank}{cell}  ") }
        };
        let line: String = row.iter().zip(widths).enumerate().map(cell).collect();
        let line = line.trim_end();
        screen.line(if index == 0 { Row::styled(Look::DIM, line) } else { Row::from(line) })?;
    }
    Ok(0)
}

fn row(spent: &Spending, per: Period) -> [String; 8] {
    let at = time::rfc3339(spent.from_ms);
    let of = spent.value.as_deref().map_or_else(|| "all".to_owned(), |value| one_line(value, VALUE_COLUMNS));
    [
        at.get(..if per == Period::Hour { 13 } else { 10 }).unwrap_or(&at).replace('T', " "),
        of,
        match spent.cost_microdollars {
            // No price is known for the models that were used.
            0 if spent.usage.total_tokens() > 0 => "unknown".to_owned(),
            cost => format::about(format::cents(cost), spent.usage.estimated_tokens),
        },
        format::short(spent.usage.input_tokens),
        format::short(spent.usage.cached_tokens),
        format::short(spent.usage.output_tokens),
        spent.runs.to_string(),
        spent.calls.to_string(),
    ]
}

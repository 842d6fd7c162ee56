//! The contents of a session's context window, as a grid and in figures.
//!
//! Invariants: a part that is there has a cell, however small it is; each part is known by its sign as well as by its
//! colour; the parts add up to the context's size.

use greenroom_server::operations::{ContextCategory, ContextPart, ContextParts};
use greenroom_terminal::format;
use greenroom_terminal::row::{Color, Look, Row};
use greenroom_terminal::text::thousands;

use super::window;
use crate::program::PromptPart;

#[cfg(test)]
mod tests;

/// The cells of a row of the grid, and its rows.
const SIDE: usize = 10;
/// The columns of the grid, with the space behind it.
const GRID_COLUMNS: usize = 2 * SIDE + 3;
/// The narrowest terminal in which the grid stands beside the figures.
const WIDE: usize = 74;
/// The sign of a free cell, and of one that compaction keeps free.
const FREE: char = '·';
const KEPT_FREE: char = '░';

/// A part of the window.
#[derive(Debug)]
struct Slice {
    name: String,
    tokens: u64,
    count: Option<u64>,
    sign: char,
    look: Look,
    /// Its own parts.
    of: Vec<ContextPart>,
}

/// Describes what fills the window, in rows of `width` columns. `of_prompt` are the known parts of the system prompt.
/// `trigger` is the size at which compaction starts, in tokens; 0 for none.
pub fn context(parts: &ContextParts, of_prompt: &[PromptPart], trigger: u64, width: usize) -> Vec<Row> {
    let usage = parts.context;
    let mut slices = slices(&parts.parts, of_prompt);
    let used: u64 = slices.iter().map(|slice| slice.tokens).sum();
    if let Some(window) = usage.window {
        let end = if trigger == 0 { window } else { trigger.min(window) };
        slices.push(plain("free", end.saturating_sub(used), FREE));
        if end < window && used < window {
            slices.push(plain("kept free by compaction", window - end.max(used.min(window)), KEPT_FREE));
        }
    }
    let head = Row::new(&format::fill(&usage), Look::BOLD);
    let mut figures = vec![head, Row::default()];
    figures.extend(slices.iter().flat_map(|slice| lines(slice, usage.window)));
    let indent = Row::plain("  ");
    let mut out = Vec::new();
    match usage.window.filter(|_| width >= WIDE) {
        Some(window) => {
            let grid = grid(&slices, window);
            for index in 0..grid.len().max(figures.len()) {
                let left = grid.get(index).cloned().unwrap_or_default();
                let gap = " ".repeat(GRID_COLUMNS.saturating_sub(left.width()));
                let right = figures.get(index).cloned().unwrap_or_default();
                out.push(Row::plain("  ").then(left).and(&gap, Look::PLAIN).then(right).cut(width));
            }
        }
        None => out.extend(figures.into_iter().map(|row| Row::plain("  ").then(row).cut(width))),
    }
    out.push(Row::default());
    out.extend(Row::new(&window(&usage), Look::DIM).wrap(width, &indent, &indent));
    let starts = match trigger {
        0 => String::new(),
        trigger => format!("compaction starts at {} tokens; ", thousands(trigger)),
    };
    let text = format!("{starts}sizes of parts are estimates");
    out.extend(Row::new(&text, Look::DIM).wrap(width, &indent, &indent));
    out
}

/// A part without parts of its own.
fn plain(name: &str, tokens: u64, sign: char) -> Slice {
    Slice { name: name.to_owned(), tokens, count: None, sign, look: Look::DIM, of: Vec::new() }
}

/// Returns the parts that are used, in the order in which the model gets them.
fn slices(parts: &[ContextPart], of_prompt: &[PromptPart]) -> Vec<Slice> {
    let of = |category: ContextCategory| parts.iter().find(|part| part.category == category);
    let sized = |category: ContextCategory| of(category).map_or(0, |part| part.tokens);
    let mut out = Vec::new();
    // What is known of the system prompt is a part of the rest.
    let mut rest = sized(ContextCategory::Instructions);
    let signs = [('◆', Look::of(Color::Magenta)), ('▲', Look::of(Color::Yellow))];
    let mut known = Vec::new();
    for (part, (sign, look)) in of_prompt.iter().zip(signs) {
        let tokens = part.tokens.min(rest);
        rest -= tokens;
        let (name, count) = (part.name.clone(), part.count);
        known.push(Slice { name, tokens, count, sign, look, of: Vec::new() });
    }
    out.push(Slice { look: Look::of(Color::Blue), ..plain("system prompt and rest", rest, '■') });
    out.append(&mut known);
    for (category, sign, look) in [
        (ContextCategory::Tools, '●', Look::of(Color::Cyan)),
        (ContextCategory::Summary, '▣', Look::of(Color::Red)),
    ] {
        let Some(part) = of(category) else { continue };
        let count = part.count;
        out.push(Slice { count, look, ..plain(category.as_str(), part.tokens, sign) });
    }
    let talk = [
        ContextCategory::User,
        ContextCategory::Assistant,
        ContextCategory::Reasoning,
        ContextCategory::ToolCalls,
        ContextCategory::ToolResults,
        ContextCategory::Images,
    ];
    let of: Vec<ContextPart> = talk.into_iter().filter_map(of).cloned().collect();
    let tokens = of.iter().map(|part| part.tokens).sum();
    out.push(Slice { look: Look::of(Color::Green), of, ..plain("conversation", tokens, '█') });
    out.retain(|slice| slice.tokens > 0);
    out
}

/// Returns the figures of a part, and of its own parts.
fn lines(slice: &Slice, window: Option<u64>) -> Vec<Row> {
    let figures = |tokens: u64, count: Option<u64>| {
        let share = window.map(|window| format!("{:>4} %", tokens * 100 / window.max(1))).unwrap_or_default();
        let count = count.map(|count| format!("  {count}×")).unwrap_or_default();
        (format!(" {:>9}{share}", thousands(tokens)), count)
    };
    let (sized, count) = figures(slice.tokens, slice.count);
    let mut out = vec![
        Row::plain("")
            .and(&format!("{} ", slice.sign), slice.look)
            .and(&format!("{:<24}{sized}", slice.name), Look::PLAIN)
            .and(&count, Look::DIM),
    ];
    out.extend(slice.of.iter().map(|part| {
        let (sized, count) = figures(part.tokens, part.count);
        Row::new(&format!("    {:<22}{sized}{count}", part.category.as_str()), Look::DIM)
    }));
    out
}

/// Draws the window as a square; each cell is a hundredth of it.
fn grid(slices: &[Slice], window: u64) -> Vec<Row> {
    let cells = SIDE * SIDE;
    let mut signs: Vec<(char, Look)> = Vec::with_capacity(cells);
    let mut end = 0;
    for slice in slices {
        end += slice.tokens;
        let to = usize::try_from(end.saturating_mul(cells as u64) / window.max(1)).unwrap_or(cells);
        let least = usize::from(slice.tokens > 0 && !matches!(slice.sign, FREE | KEPT_FREE));
        let to = to.max(signs.len() + least).min(cells);
        signs.resize(to.max(signs.len()), (slice.sign, slice.look));
    }
    // Sizes are rounded down.
    let last = signs.last().copied().unwrap_or((FREE, Look::DIM));
    signs.resize(cells, last);
    let row = |signs: &[(char, Look)]| {
        signs.iter().fold(Row::default(), |row, (sign, look)| row.and(&format!("{sign} "), *look))
    };
    signs.chunks(SIDE).map(row).collect()
}

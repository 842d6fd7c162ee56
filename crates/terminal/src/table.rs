//! Tables that fit a width: columns leave, and the first one gives way, before a row would wrap.
//!
//! Invariants: no row is wider than the width; the columns leave in the order of their weight, the lightest first; the
//! first column never leaves.

use crate::screen::{columns, one_line};

#[cfg(test)]
mod tests;

/// The columns between two cells.
const GAP: usize = 2;
/// The narrowest that the first column becomes before others leave.
const FIRST_MIN: usize = 24;

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name, in the first row.
    pub name: &'static str,
    /// How long it stays: the lightest leaves first.
    pub weight: u8,
    /// Whether it is right-aligned.
    pub is_number: bool,
}

impl Column {
    /// Creates a column of text.
    pub const fn text(name: &'static str, weight: u8) -> Self {
        Self { name, weight, is_number: false }
    }

    /// Creates a column of numbers.
    pub const fn number(name: &'static str, weight: u8) -> Self {
        Self { name, weight, is_number: true }
    }
}

/// Which columns fit, and how wide they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout<const N: usize> {
    columns: [Column; N],
    /// `None` for those that do not fit, or that are empty in every row.
    widths: [Option<usize>; N],
}

impl<const N: usize> Layout<N> {
    /// Chooses the columns of these rows for a width.
    pub fn new(of: [Column; N], rows: &[[String; N]], width: usize) -> Self {
        let widest = |column: usize| rows.iter().map(|row| columns(&row[column])).max().unwrap_or(0);
        let mut widths: [Option<usize>; N] = std::array::from_fn(|column| {
            let widest = widest(column);
            // A column without a value says nothing.
            (widest > 0 || column == 0).then(|| widest.max(columns(of[column].name)))
        });
        let others = |widths: &[Option<usize>; N]| -> usize {
            widths.iter().skip(1).flatten().map(|width| width + GAP).sum()
        };
        let wanted = widths[0].unwrap_or_default().min(FIRST_MIN);
        while wanted + others(&widths) > width {
            let lightest =
                (1..N).filter(|column| widths[*column].is_some()).min_by_key(|column| of[*column].weight);
            let Some(lightest) = lightest else { break };
            widths[lightest] = None;
        }
        let room = width.saturating_sub(others(&widths)).max(1);
        widths[0] = widths[0].map(|first| first.min(room));
        Self { columns: of, widths }
    }

    /// Returns the positions of the columns that fit.
    pub fn kept(&self) -> impl Iterator<Item = usize> {
        (0..N).filter(|column| self.widths[*column].is_some())
    }

    /// Returns the row with the names.
    pub fn head(&self) -> String {
        self.row(&std::array::from_fn(|column| self.columns[column].name.to_owned()))
    }

    /// Returns a row, without blanks at its end.
    pub fn row(&self, cells: &[String; N]) -> String {
        let line: Vec<String> = self.kept().map(|column| self.cell(column, &cells[column])).collect();
        line.join(&" ".repeat(GAP)).trim_end().to_owned()
    }

    /// Returns a cell in the width of its column.
    pub fn cell(&self, column: usize, text: &str) -> String {
        let width = self.widths.get(column).copied().flatten().unwrap_or_default();
        let text = if columns(text) > width { one_line(text, width) } else { text.to_owned() };
        let padding = " ".repeat(width.saturating_sub(columns(&text)));
        if self.columns[column].is_number { format!("{padding}{text}") } else { format!("{text}{padding}") }
    }
}

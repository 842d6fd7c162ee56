//! The bottom of the terminal, which is drawn over, and the finished rows above it, which belong to the terminal.
//!
//! Invariants: a finished row is written once and never touched again; nothing here asks the terminal anything, so that a
//! slow connection costs no waiting; no row reaches the last column, so that no terminal wraps by itself.

use std::fmt::Write as _;

use super::row::Row;

#[cfg(test)]
mod tests;

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of columns.
    pub columns: usize,
    /// The number of rows.
    pub rows: usize,
}

impl Size {
    /// How wide a row may be.
    pub fn width(self) -> usize {
        self.columns.saturating_sub(1).max(1)
    }
}

/// What is to be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// Rows that are finished.
    pub above: Vec<Row>,
    /// The rows at the bottom.
    pub region: Vec<Row>,
    /// Where the cursor stands: its row in the region, and its column.
    pub cursor: (usize, usize),
}

/// What is drawn now, and how to draw something else.
#[derive(Debug)]
pub struct Painter {
    color: bool,
    /// Whether the terminal wraps rows anew when it gets narrower; others cut them off.
    rewraps: bool,
    size: Size,
    region: Vec<Row>,
    cursor: (usize, usize),
}

impl Painter {
    /// A painter whose cursor stands at the beginning of an empty row.
    pub fn new(color: bool, size: Size) -> Self {
        Self { color, rewraps: true, size, region: Vec::new(), cursor: (0, 0) }
    }

    /// For a terminal that cuts rows off when it gets narrower, and does not wrap them anew.
    #[must_use]
    pub fn cutting(mut self, is_cutting: bool) -> Self {
        self.rewraps = !is_cutting;
        self
    }

    /// What the terminal is to be sent, so that it shows this.
    pub fn paint(&mut self, frame: &Frame, size: Size) -> String {
        let (region, cursor) = fitted(frame, size);
        let is_resized = size != self.size;
        if frame.above.is_empty() && !is_resized && region == self.region && cursor == self.cursor {
            return String::new();
        }
        // The terminal shows all of it at once, if it knows how, and the cursor does not flicker meanwhile.
        let mut out = String::from("\x1b[?2026h\x1b[?25l");
        let row = self.cursor_row(size);
        let same = if frame.above.is_empty() && !is_resized {
            region.iter().zip(&self.region).take_while(|(new, old)| new == old).count()
        } else {
            0
        };
        // Rows that stay as they are need not be written: those above the first that changed.
        let same = same.min(region.len().saturating_sub(1)).min(self.region.len().saturating_sub(1));
        up_or_down(&mut out, row, same);
        out.push('\r');
        for row in &frame.above {
            self.write(row, &mut out);
            out.push_str("\r\n");
        }
        for (index, row) in region.iter().enumerate().skip(same) {
            self.write(row, &mut out);
            if index + 1 < region.len() {
                out.push_str("\r\n");
            }
        }
        out.push_str("\x1b[J");
        up_or_down(&mut out, region.len().saturating_sub(1), cursor.0);
        out.push('\r');
        if cursor.1 > 0 {
            let _ = write!(out, "\x1b[{}C", cursor.1);
        }
        out.push_str("\x1b[?25h\x1b[?2026l");
        (self.region, self.cursor, self.size) = (region, cursor, size);
        out
    }

    /// What takes the bottom away, so that others can write from there on.
    pub fn clear(&mut self) -> String {
        let mut out = String::new();
        up_or_down(&mut out, self.cursor.0, 0);
        out.push_str("\r\x1b[J");
        self.region.clear();
        self.cursor = (0, 0);
        out
    }

    fn write(&self, row: &Row, out: &mut String) {
        row.render(self.color, out);
        out.push_str("\x1b[K");
    }

    /// On which row the cursor stands, counted from the top of what was drawn. A terminal that got narrower has wrapped
    /// what was drawn, so that it takes more rows than it did.
    fn cursor_row(&self, size: Size) -> usize {
        if size.columns >= self.size.columns || !self.rewraps {
            return self.cursor.0;
        }
        let columns = size.columns.max(1);
        let above = self.region.iter().take(self.cursor.0);
        above.map(|row| row.width().div_ceil(columns).max(1)).sum::<usize>() + self.cursor.1 / columns
    }
}

/// The rows that there is room for, the lowest, and the cursor in them.
fn fitted(frame: &Frame, size: Size) -> (Vec<Row>, (usize, usize)) {
    let too_many = frame.region.len().saturating_sub(size.rows.max(1));
    let too_many = too_many.min(frame.cursor.0);
    let rows = frame.region.iter().skip(too_many).take(size.rows.max(1));
    let rows = rows.map(|row| row.cut(size.width())).collect();
    (rows, (frame.cursor.0 - too_many, frame.cursor.1.min(size.width())))
}

fn up_or_down(out: &mut String, from: usize, to: usize) {
    if from > to {
        let _ = write!(out, "\x1b[{}A", from - to);
    } else if to > from {
        let _ = write!(out, "\x1b[{}B", to - from);
    }
}

//! The region at the bottom of the terminal, which is redrawn, and the finished rows above it, which the
//! terminal keeps in its scrollback.
//!
//! Invariants: a finished row is written once and never touched again; nothing here queries the terminal, so
//! a slow connection adds no delay; no row reaches the last column, so the terminal never wraps a row itself. A terminal
//! that gets lower scrolls out rows of a high region before this is known; they are drawn over when it gets higher again.

use std::fmt::Write as _;

use super::row::Row;
use super::theme::Theme;

#[cfg(test)]
mod tests;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of columns.
    pub columns: usize,
    /// The number of rows.
    pub rows: usize,
}

impl Size {
    /// The maximum width of a row, in columns.
    pub fn width(self) -> usize {
        self.columns.saturating_sub(1).max(1)
    }
}

/// The content to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// Finished rows, written above the region.
    pub above: Vec<Row>,
    /// The rows of the region at the bottom.
    pub region: Vec<Row>,
    /// The cursor's row and column in the region.
    pub cursor: (usize, usize),
}

/// Draws frames: remembers the region on the screen and writes only the differences.
#[derive(Debug)]
pub struct Painter {
    /// The colours; `None` for none.
    theme: Option<Theme>,
    /// Whether the terminal rewraps its rows when it gets narrower; otherwise it truncates them.
    rewraps: bool,
    size: Size,
    region: Vec<Row>,
    cursor: (usize, usize),
    /// How many rows of earlier regions the terminal has scrolled out because it got lower. They are directly above the
    /// region, which then begins in the first row of the screen.
    scrolled_out: usize,
    /// Whether the region must be drawn anew, although it is the same.
    is_stale: bool,
}

impl Painter {
    /// Creates a painter whose cursor is at the start of an empty row.
    pub fn new(color: bool, size: Size) -> Self {
        let theme = color.then(Theme::default);
        Self {
            theme,
            rewraps: true,
            size,
            region: Vec::new(),
            cursor: (0, 0),
            scrolled_out: 0,
            is_stale: false,
        }
    }

    /// Sets whether the terminal truncates rows when it gets narrower, instead of rewrapping them.
    #[must_use]
    pub fn cutting(mut self, is_cutting: bool) -> Self {
        self.rewraps = !is_cutting;
        self
    }

    /// Sets the colours. What was drawn keeps its own.
    pub fn set_theme(&mut self, theme: Theme) {
        self.theme = self.theme.map(|_| theme);
        self.is_stale = true;
    }

    /// Returns the bytes that make the terminal show this frame.
    pub fn paint(&mut self, frame: &Frame, size: Size) -> String {
        let (region, cursor) = fitted(frame, size);
        let is_resized = size != self.size || std::mem::take(&mut self.is_stale);
        if frame.above.is_empty() && !is_resized && region == self.region && cursor == self.cursor {
            return String::new();
        }
        // A terminal that supports synchronised updates shows the frame at once, without a flickering cursor.
        let mut out = String::from("\x1b[?2026h\x1b[?25l");
        let row = self.first_row(size);
        if !frame.above.is_empty() {
            // What was scrolled out is not directly above the region any more.
            self.scrolled_out = 0;
        }
        let same = if frame.above.is_empty() && !is_resized {
            region.iter().zip(&self.region).take_while(|(new, old)| new == old).count()
        } else {
            0
        };
        // The rows above the first changed one are not written again.
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

    /// Returns the bytes that remove the region, so that other output can start in its place.
    pub fn clear(&mut self) -> String {
        let mut out = String::new();
        up_or_down(&mut out, self.cursor.0, 0);
        out.push_str("\r\x1b[J");
        self.region.clear();
        (self.cursor, self.scrolled_out) = ((0, 0), 0);
        out
    }

    /// Writes a row where the cursor is at the start of one. What stood there is removed first, as a whole: otherwise a
    /// terminal remembers how wide it was, or that it ran over, and rewraps the new row as it would the old one.
    fn write(&self, row: &Row, out: &mut String) {
        out.push_str("\x1b[2K");
        row.render(self.theme, out);
        // A terminal that has just got narrower has wrapped the row, over what stood below.
        out.push_str("\x1b[K");
    }

    /// Returns how many rows above the cursor to begin. A terminal that got lower has scrolled out what did not fit above
    /// the cursor. Many take it back when they get higher; the others move no higher than the first row of the screen, in
    /// which the region begins.
    fn first_row(&mut self, size: Size) -> usize {
        let row = self.cursor_row(size);
        if size.columns != self.size.columns {
            // It may have rewrapped them, so their number is unknown.
            self.scrolled_out = 0;
            return row;
        }
        self.scrolled_out += (row + 1).saturating_sub(size.rows.max(1));
        let back = self.scrolled_out.min(size.rows.saturating_sub(self.size.rows));
        self.scrolled_out -= back;
        row + back
    }

    /// Returns the cursor's row, counted from the top of the region. A terminal that got narrower has
    /// rewrapped the region, so it occupies more rows than before.
    fn cursor_row(&self, size: Size) -> usize {
        if size.columns >= self.size.columns || !self.rewraps {
            return self.cursor.0;
        }
        let columns = size.columns.max(1);
        let above = self.region.iter().take(self.cursor.0);
        above.map(|row| row.width().div_ceil(columns).max(1)).sum::<usize>() + self.cursor.1 / columns
    }
}

/// Returns the lowest rows that fit with the cursor among them, and the cursor's position in these rows.
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

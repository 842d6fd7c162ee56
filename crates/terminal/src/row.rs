//! Styled text in rows of a terminal: widths, wrapping, and colour codes.
//!
//! Invariants: a row holds only harmless text, regardless of its source. A row in a frame also has no tabs and line
//! breaks; only a row that is written to a stream ([`Row::styled`]) may have them. No row is wider than
//! requested, unless a single character is.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

use crate::harmless::harmless;
use crate::theme::Theme;

#[cfg(test)]
mod tests;

/// The text of a tab.
const TAB: &str = "    ";

/// A colour of the terminal's own palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Color {
    /// Red.
    Red,
    /// Green.
    Green,
    /// Yellow.
    Yellow,
    /// Blue.
    Blue,
    /// Magenta.
    Magenta,
    /// Cyan.
    Cyan,
}

/// The style of a piece of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Look {
    /// The colour; `None` means the terminal's default.
    pub color: Option<Color>,
    /// Bold.
    pub bold: bool,
    /// Dim.
    pub dim: bool,
    /// Italic.
    pub italic: bool,
    /// Underlined.
    pub underline: bool,
    /// Struck through.
    pub strike: bool,
    /// Reversed colours.
    pub reverse: bool,
}

impl Look {
    /// No style.
    pub const PLAIN: Self = Self {
        color: None,
        bold: false,
        dim: false,
        italic: false,
        underline: false,
        strike: false,
        reverse: false,
    };
    /// Less important text.
    pub const DIM: Self = Self { dim: true, ..Self::PLAIN };
    /// More important text.
    pub const BOLD: Self = Self { bold: true, ..Self::PLAIN };
    /// A success, or an addition.
    pub const GOOD: Self = Self::of(Color::Green);
    /// A warning.
    pub const WARN: Self = Self::of(Color::Yellow);
    /// A failure, or a removal.
    pub const BAD: Self = Self::of(Color::Red);
    /// A change of the context.
    pub const NOTE: Self = Self::of(Color::Cyan);

    /// A style with only a colour.
    pub const fn of(color: Color) -> Self {
        Self { color: Some(color), ..Self::PLAIN }
    }

    /// The style as a theme shows it; without one, it has no colour.
    fn themed(self, theme: Option<Theme>) -> Self {
        let color = self.color.filter(|_| theme.is_some());
        Self { color, dim: self.dim && theme.is_none_or(Theme::dims), ..self }
    }

    fn write(self, theme: Theme, out: &mut String) {
        let flags = [
            (self.bold, 1),
            (self.dim, 2),
            (self.italic, 3),
            (self.underline, 4),
            (self.reverse, 7),
            (self.strike, 9),
        ];
        let codes = flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, code)| code.to_string());
        let codes: Vec<String> = codes.chain(self.color.map(|color| theme.code(color).to_owned())).collect();
        let _ = write!(out, "\x1b[{}m", codes.join(";"));
    }
}

/// A piece of text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    text: String,
    look: Look,
}

/// A line of styled text. It may be wider than a terminal: see [`Row::wrap`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row(Vec<Span>);

impl Row {
    /// Creates a row with this text.
    pub fn new(text: &str, look: Look) -> Self {
        Self::default().and(text, look)
    }

    /// Creates a row without a style.
    pub fn plain(text: &str) -> Self {
        Self::new(text, Look::PLAIN)
    }

    /// Returns this row with more text.
    pub fn and(mut self, text: &str, look: Look) -> Self {
        self.push(text, look);
        self
    }

    /// Creates a row whose text keeps its tabs and line breaks: for a stream, not for a frame.
    pub fn styled(look: Look, text: impl Into<String>) -> Self {
        let text = text.into();
        let text = match harmless(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(harmless) => harmless,
        };
        Self(vec![Span { text, look }])
    }

    /// Returns this row followed by another one.
    #[must_use]
    pub fn then(mut self, more: impl Into<Self>) -> Self {
        self.0.extend(more.into().0);
        self
    }

    /// Appends text. A line break becomes a space.
    pub fn push(&mut self, text: &str, look: Look) {
        if text.is_empty() {
            return;
        }
        let mut text = harmless(text).to_string();
        if text.contains(['\n', '\t']) {
            text = text.replace('\t', TAB).replace('\n', " ");
        }
        match self.0.last_mut() {
            Some(last) if last.look == look => last.text.push_str(&text),
            Some(_) | None => self.0.push(Span { text, look }),
        }
    }

    /// Whether the row is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|span| span.text.is_empty())
    }

    /// The width in columns.
    pub fn width(&self) -> usize {
        self.0.iter().map(|span| span.text.width()).sum()
    }

    /// The text without styles.
    pub fn text(&self) -> String {
        self.0.iter().map(|span| span.text.as_str()).collect()
    }

    /// Wraps the row into rows of at most `width` columns, between words where possible. The first row starts
    /// with `first`, the others with `next`.
    pub fn wrap(&self, width: usize, first: &Self, next: &Self) -> Vec<Self> {
        let mut out = Vec::new();
        let cells: Vec<Cell<'_>> = self.cells().collect();
        let (mut start, mut index, mut columns) = (0, 0, 0);
        // Where this row may end, and where the next one would start.
        let mut may_break: Option<(usize, usize)> = None;
        let lead = |out: &Vec<Self>| if out.is_empty() { first } else { next };
        while let Some(cell) = cells.get(index) {
            let room = width.saturating_sub(lead(&out).width()).max(1);
            if columns + cell.width > room && index > start {
                // A space at the end of a row needs no column.
                let (end, begin) =
                    if cell.is_space() { (index, index + 1) } else { may_break.unwrap_or((index, index)) };
                let row = lead(&out).clone().filled(cells.get(start..end).unwrap_or_default());
                out.push(row);
                (start, index, columns, may_break) = (begin, begin, 0, None);
                continue;
            }
            if cell.is_space() {
                may_break = Some((index, index + 1));
            } else if cell.width > 1 {
                // Wide scripts have no spaces between words.
                may_break = Some((index + 1, index + 1));
            }
            columns += cell.width;
            index += 1;
        }
        if start < cells.len() || out.is_empty() {
            let row = lead(&out).clone().filled(cells.get(start..).unwrap_or_default());
            out.push(row);
        }
        out
    }

    /// Like [`Self::wrap`], but breaks at exact columns and keeps spaces at the ends of rows: for code.
    pub fn wrap_exactly(&self, width: usize, lead: &Self) -> Vec<Self> {
        let room = width.saturating_sub(lead.width()).max(1);
        let cells: Vec<Cell<'_>> = self.cells().collect();
        let (mut out, mut start, mut columns) = (Vec::new(), 0, 0);
        for (index, cell) in cells.iter().enumerate() {
            if columns + cell.width > room && index > start {
                out.push(lead.clone().filled(cells.get(start..index).unwrap_or_default()));
                (start, columns) = (index, 0);
            }
            columns += cell.width;
        }
        out.push(lead.clone().filled(cells.get(start..).unwrap_or_default()));
        out
    }

    /// Returns the row's start in at most `width` columns; `…` replaces the rest.
    pub fn cut(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let (mut out, mut columns) = (Self::default(), 0);
        for cell in self.cells() {
            if columns + cell.width > width.saturating_sub(1) {
                break;
            }
            columns += cell.width;
            out.add(&cell);
        }
        if width > 0 {
            out.push("…", Look::DIM);
        }
        out
    }

    /// Appends the row with its codes for a frame. Without a theme, it has no colours; bold and dim text keep their
    /// styles.
    pub fn render(&self, theme: Option<Theme>, out: &mut String) {
        for span in &self.0 {
            let look = span.look.themed(theme);
            if look != Look::PLAIN && !span.text.is_empty() {
                look.write(theme.unwrap_or_default(), out);
                out.push_str(&span.text);
                out.push_str("\x1b[0m");
            } else {
                out.push_str(&span.text);
            }
        }
    }

    /// Appends the row with its codes for a stream. Without colours, the text is plain.
    pub(crate) fn write(&self, color: bool, out: &mut String) {
        if color {
            self.render(Some(Theme::Dark), out);
        } else {
            self.0.iter().for_each(|span| out.push_str(&span.text));
        }
    }

    fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        self.0.iter().flat_map(|span| {
            let look = span.look;
            span.text.graphemes(true).map(move |text| Cell { text, look, width: text.width() })
        })
    }

    fn filled(mut self, cells: &[Cell<'_>]) -> Self {
        cells.iter().for_each(|cell| self.add(cell));
        self
    }

    fn add(&mut self, cell: &Cell<'_>) {
        match self.0.last_mut() {
            Some(last) if last.look == cell.look => last.text.push_str(cell.text),
            Some(_) | None => self.0.push(Span { text: cell.text.to_owned(), look: cell.look }),
        }
    }
}

impl From<&str> for Row {
    fn from(text: &str) -> Self {
        Self::styled(Look::PLAIN, text)
    }
}

impl From<String> for Row {
    fn from(text: String) -> Self {
        Self::styled(Look::PLAIN, text)
    }
}

/// One character as people see it (a grapheme cluster).
struct Cell<'a> {
    text: &'a str,
    look: Look,
    width: usize,
}

impl Cell<'_> {
    fn is_space(&self) -> bool {
        self.text == " "
    }
}

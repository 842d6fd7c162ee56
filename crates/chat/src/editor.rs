//! The editor for the user's input: editing, undo, and folding of long pastes.
//!
//! Invariants: the cursor is always between two grapheme clusters; a folded paste counts as one character,
//! and is submitted in full; moving through the history loses no typed text.

use std::fmt::Write as _;

use greenroom_terminal::row::{Look, Row};
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

#[cfg(test)]
mod tests;

/// A paste with more lines than this is folded.
const PASTE_LINES_MAX: usize = 8;
/// A paste with more bytes than this is folded.
const PASTE_BYTES_MAX: usize = 1_000;
/// How many steps can be undone.
const UNDO_MAX: usize = 200;
/// The first of the private-use characters that represent folded pastes in the text. Nobody types them.
const FOLDED: u32 = 0xF_0000;
/// How many pastes can be folded at a time.
const FOLDED_MAX: u32 = 0xFFFD;
/// Represents a pasted `@`, or the `!` or `/` at the start of a paste: as plain text, they name no file and
/// start no command.
const PASTED_AT: char = '\u{10FFFD}';
const PASTED_MARK: char = '\u{10FFFC}';
const PASTED_SLASH: char = '\u{10FFFB}';

/// An edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    Left,
    Right,
    WordLeft,
    WordRight,
    Home,
    End,
    Up,
    Down,
    Backspace,
    Delete,
    DeleteWordLeft,
    DeleteWordRight,
    KillToStart,
    KillToEnd,
    Yank,
    Transpose,
    Undo,
}

/// The kind of the last change: consecutive typed characters are undone together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Typing,
    Other,
}

/// The text and the cursor.
#[derive(Debug, Clone, Default)]
pub(crate) struct Editor {
    text: String,
    /// The cursor's position, in bytes.
    cursor: usize,
    pastes: Vec<String>,
    undo: Vec<(String, usize)>,
    last: Option<Change>,
    killed: String,
    /// Earlier prompts as they are shown, with folded pastes; the oldest first.
    history: Vec<String>,
    /// The shown prompt of the history, and the text that was typed before.
    browsing: Option<(usize, String)>,
}

/// The rows of the text and the cursor's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) rows: Vec<Row>,
    /// The cursor's row and column.
    pub(crate) cursor: (usize, usize),
}

impl Editor {
    /// Creates an empty editor with this history.
    pub(crate) fn new(history: &[String]) -> Self {
        let mut editor = Self::default();
        editor.history = history.iter().map(|text| editor.folding(text)).collect();
        editor
    }

    /// Returns the earlier prompts in full, the newest first.
    pub(crate) fn history(&self) -> impl Iterator<Item = String> {
        self.history.iter().rev().map(|text| self.unfold(text))
    }

    /// Whether the text is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the text, with folded pastes in full.
    pub(crate) fn text(&self) -> String {
        self.unfold(&self.text)
    }

    /// Returns the typed text: pasted text is omitted or marked.
    pub(crate) fn typed(&self) -> &str {
        &self.text
    }

    /// Returns the text before the cursor, as it is shown.
    pub(crate) fn before_cursor(&self) -> &str {
        self.text.get(..self.cursor).unwrap_or_default()
    }

    /// Takes the text out and adds it to the history.
    pub(crate) fn submit(&mut self) -> String {
        let shown = self.text.clone();
        self.keep(shown);
        self.take()
    }

    /// Takes the text out without adding it to the history. Undo restores it.
    pub(crate) fn take(&mut self) -> String {
        let text = self.text();
        self.record(Change::Other);
        (self.text, self.cursor, self.browsing) = (String::new(), 0, None);
        text
    }

    /// Clears the text, and adds it to the history although it was not sent.
    pub(crate) fn clear(&mut self) {
        self.submit();
    }

    fn keep(&mut self, shown: String) {
        if !shown.trim().is_empty() && self.history.last().is_none_or(|last| *last != shown) {
            self.history.push(shown);
        }
    }

    /// Inserts text before the current text, on lines of its own.
    pub(crate) fn give_back(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.record(Change::Other);
        let typed = std::mem::take(&mut self.text);
        self.text = self.folding(text);
        // The text was sent as a prompt, so it is not a command.
        if let Some(mark) = mark_of(&self.text) {
            self.text.replace_range(..1, &mark.to_string());
        }
        self.cursor = self.text.len();
        if !typed.is_empty() {
            self.put("\n");
            self.text.push_str(&typed);
            self.cursor = self.text.len();
        }
    }

    /// Inserts typed text.
    pub(crate) fn insert(&mut self, text: &str) {
        let is_word = text.chars().all(char::is_alphanumeric);
        // One undo step ends with a word.
        if !(is_word && self.last == Some(Change::Typing)) {
            self.record(Change::Typing);
        }
        self.put(text);
        self.last = Some(Change::Typing);
    }

    /// Inserts a paste as one unit, whatever its number of lines.
    pub(crate) fn paste(&mut self, text: &str) {
        self.record(Change::Other);
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let shown = if is_long(&text) { self.fold(text) } else { as_pasted(&text) };
        self.text.insert_str(self.cursor, &shown);
        self.cursor += shown.len();
    }

    /// Replaces the whole text.
    pub(crate) fn replace(&mut self, text: &str) {
        self.record(Change::Other);
        self.text = self.folding(text);
        self.cursor = self.text.len();
    }

    /// Stores a text, and returns the character that represents it.
    fn fold(&mut self, text: String) -> String {
        let place = u32::try_from(self.pastes.len()).ok().filter(|place| *place < FOLDED_MAX);
        match place.and_then(|place| char::from_u32(FOLDED + place)) {
            Some(mark) => {
                self.pastes.push(text);
                mark.to_string()
            }
            None => without_marks(&text),
        }
    }

    /// Returns a text as it is shown: a long one is folded after its first line, which identifies it.
    fn folding(&mut self, text: &str) -> String {
        if !is_long(text) {
            return without_marks(text);
        }
        match text.split_once('\n') {
            Some((first, rest)) if first.len() <= PASTE_BYTES_MAX / 2 && is_long(rest) => {
                let folded = self.fold(rest.to_owned());
                format!("{}\n{folded}", without_marks(first))
            }
            Some(_) | None => self.fold(text.to_owned()),
        }
    }

    /// Replaces the last `bytes` bytes before the cursor.
    pub(crate) fn complete(&mut self, bytes: usize, text: &str) {
        self.record(Change::Other);
        let start = self.cursor.saturating_sub(bytes);
        if self.text.is_char_boundary(start) {
            self.text.replace_range(start..self.cursor, "");
            self.cursor = start;
        }
        self.put(text);
    }

    /// Performs an edit; returns false if it changed nothing.
    pub(crate) fn edit(&mut self, edit: Edit) -> bool {
        let before = (self.text.len(), self.cursor);
        match edit {
            Edit::Left => self.cursor = self.left(),
            Edit::Right => self.cursor = self.right(),
            Edit::WordLeft => self.cursor = self.word_left(),
            Edit::WordRight => self.cursor = self.word_right(),
            Edit::Home => self.cursor = self.line_start(),
            Edit::End => self.cursor = self.line_end(),
            Edit::Up => self.up(),
            Edit::Down => self.down(),
            Edit::Backspace => self.remove(self.left(), self.cursor, false),
            Edit::Delete => self.remove(self.cursor, self.right(), false),
            Edit::DeleteWordLeft => self.remove(self.word_left(), self.cursor, true),
            Edit::DeleteWordRight => self.remove(self.cursor, self.word_right(), true),
            Edit::KillToStart => self.remove(self.line_start(), self.cursor, true),
            Edit::KillToEnd => {
                // At the end of a line, the line break is deleted.
                let end = self.line_end();
                let end = if end == self.cursor { self.right() } else { end };
                self.remove(self.cursor, end, true);
            }
            Edit::Yank => {
                self.record(Change::Other);
                let killed = self.killed.clone();
                self.text.insert_str(self.cursor, &killed);
                self.cursor += killed.len();
            }
            Edit::Transpose => self.transpose(),
            Edit::Undo => return self.undo(),
        }
        if !matches!(edit, Edit::Up | Edit::Down) {
            self.last = None;
        }
        before != (self.text.len(), self.cursor)
    }

    /// Lays out the text in rows of at most `width` columns, and at most `rows_max` rows around the cursor.
    pub(crate) fn layout(&self, width: usize, rows_max: usize) -> Layout {
        let (lead, next) = (Row::new("› ", Look::BOLD), Row::plain("  "));
        let room = width.saturating_sub(2).max(1);
        let (begin, end) = self.lines_around(rows_max.max(1));
        let (mut rows, mut cursor) = (vec![if begin == 0 { lead } else { next.clone() }], (0, 2));
        let mut column = 0;
        let shown = self.text.get(begin..end).unwrap_or_default();
        for (start, grapheme) in shown.grapheme_indices(true).map(|(start, text)| (begin + start, text)) {
            if start == self.cursor {
                cursor = (rows.len() - 1, column + 2);
            }
            if grapheme == "\n" || grapheme == "\r\n" {
                rows.push(next.clone());
                column = 0;
                continue;
            }
            let (shown, look) = match self.folded(grapheme) {
                Some(paste) => (fold(paste), Look::NOTE),
                None => (grapheme.replace('\t', "    ").chars().map(plain).collect(), Look::PLAIN),
            };
            let shown = Row::new(&shown, look).cut(room);
            if column + shown.width() > room {
                rows.push(next.clone());
                column = 0;
                if start == self.cursor {
                    cursor = (rows.len() - 1, 2);
                }
            }
            column += shown.width();
            if let Some(row) = rows.last_mut() {
                *row = std::mem::take(row).then(shown);
            }
        }
        if self.cursor == end {
            if column >= room {
                rows.push(next);
                column = 0;
            }
            cursor = (rows.len() - 1, column + 2);
        }
        let rows_max = rows_max.max(1);
        let first = (cursor.0 + 1).saturating_sub(rows_max).min(rows.len().saturating_sub(1));
        let rows = rows.into_iter().skip(first).take(rows_max).collect();
        Layout { rows, cursor: (cursor.0 - first, cursor.1) }
    }

    /// Returns the range with `count` lines before and after the cursor's: no more can be visible.
    fn lines_around(&self, count: usize) -> (usize, usize) {
        let begin = self.before_cursor().rmatch_indices('\n').nth(count).map_or(0, |(place, _)| place + 1);
        let after = self.text.get(self.cursor..).unwrap_or_default();
        let end = after.match_indices('\n').nth(count).map_or(after.len(), |(place, _)| place);
        (begin, self.cursor + end)
    }

    fn unfold(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match self.pastes.get(place_of(c)) {
                Some(paste) => out.push_str(paste),
                None => out.push(plain(c)),
            }
        }
        out
    }

    fn folded(&self, grapheme: &str) -> Option<&String> {
        grapheme.chars().find_map(|c| self.pastes.get(place_of(c)))
    }

    /// Inserts text at the cursor. Characters that represent folded pastes are removed from outside text.
    fn put(&mut self, text: &str) {
        let text = without_marks(text);
        self.text.insert_str(self.cursor, &text);
        self.cursor += text.len();
    }

    fn record(&mut self, change: Change) {
        if self.undo.last().is_none_or(|(text, _)| *text != self.text) {
            self.undo.push((self.text.clone(), self.cursor));
            if self.undo.len() > UNDO_MAX {
                self.undo.remove(0);
            }
        }
        self.last = Some(change);
    }

    fn undo(&mut self) -> bool {
        self.last = None;
        while let Some((text, cursor)) = self.undo.pop() {
            if text != self.text {
                (self.text, self.cursor) = (text, cursor);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, start: usize, end: usize, is_kept: bool) {
        if start >= end {
            return;
        }
        self.record(Change::Other);
        let removed: String = self.text.drain(start..end).collect();
        self.cursor = start;
        if is_kept {
            self.killed = removed;
        }
    }

    fn transpose(&mut self) {
        let at = if self.cursor == self.text.len() { self.left() } else { self.cursor };
        let (left, right) = self.text.split_at(at);
        let Some(before) = left.graphemes(true).next_back().map(str::to_owned) else { return };
        let Some(after) = right.graphemes(true).next().map(str::to_owned) else { return };
        if before == "\n" || after == "\n" {
            return;
        }
        self.record(Change::Other);
        let start = at - before.len();
        self.text.replace_range(start..at + after.len(), &format!("{after}{before}"));
        self.cursor = at + after.len();
    }

    fn left(&self) -> usize {
        let before = self.before_cursor().graphemes(true).next_back();
        self.cursor - before.map_or(0, str::len)
    }

    fn right(&self) -> usize {
        let after = self.text.get(self.cursor..).unwrap_or_default().graphemes(true).next();
        self.cursor + after.map_or(0, str::len)
    }

    fn word_left(&self) -> usize {
        let mut place = self.cursor;
        let mut is_in_word = false;
        for grapheme in self.before_cursor().graphemes(true).rev() {
            if is_word(grapheme) {
                is_in_word = true;
            } else if is_in_word {
                break;
            }
            place -= grapheme.len();
        }
        place
    }

    fn word_right(&self) -> usize {
        let mut place = self.cursor;
        let mut is_in_word = false;
        for grapheme in self.text.get(self.cursor..).unwrap_or_default().graphemes(true) {
            if is_word(grapheme) {
                is_in_word = true;
            } else if is_in_word {
                break;
            }
            place += grapheme.len();
        }
        place
    }

    fn line_start(&self) -> usize {
        self.before_cursor().rfind('\n').map_or(0, |place| place + 1)
    }

    fn line_end(&self) -> usize {
        let after = self.text.get(self.cursor..).unwrap_or_default();
        after.find('\n').map_or(self.text.len(), |place| self.cursor + place)
    }

    /// Moves to the line above; from the first line, to the previous prompt of the history.
    fn up(&mut self) {
        let start = self.line_start();
        if start > 0 {
            let column = self.before_cursor().get(start..).unwrap_or_default().width();
            self.cursor = start - 1;
            self.cursor = self.place_in_line(self.line_start(), column);
            return;
        }
        let (place, typed) = match self.browsing.take() {
            Some((place, typed)) => (place, typed),
            None => (self.history.len(), self.text.clone()),
        };
        let place = match place.checked_sub(1) {
            Some(earlier) => {
                self.show(earlier);
                earlier
            }
            None => place,
        };
        if place < self.history.len() {
            self.browsing = Some((place, typed));
        }
    }

    /// Moves to the line below; from the last line, to the next prompt of the history, and finally to the
    /// text typed before.
    fn down(&mut self) {
        let end = self.line_end();
        if end < self.text.len() {
            let column = self.before_cursor().get(self.line_start()..).unwrap_or_default().width();
            self.cursor = self.place_in_line(end + 1, column);
            return;
        }
        let Some((place, typed)) = self.browsing.take() else { return };
        if place + 1 < self.history.len() {
            self.show(place + 1);
            self.browsing = Some((place + 1, typed));
        } else {
            self.record(Change::Other);
            (self.cursor, self.text) = (typed.len(), typed);
        }
    }

    fn show(&mut self, place: usize) {
        let text = self.history.get(place).cloned().unwrap_or_default();
        self.record(Change::Other);
        (self.cursor, self.text) = (text.len(), text);
    }

    fn place_in_line(&self, start: usize, column: usize) -> usize {
        let (mut place, mut columns) = (start, 0);
        for grapheme in self.text.get(start..).unwrap_or_default().graphemes(true) {
            if grapheme == "\n" || columns >= column {
                break;
            }
            columns += grapheme.width();
            place += grapheme.len();
        }
        place
    }
}

/// Whether a text is too long to be shown unfolded.
fn is_long(text: &str) -> bool {
    text.len() > PASTE_BYTES_MAX || text.lines().count() > PASTE_LINES_MAX
}

/// Removes characters that represent folded pastes from outside text.
fn without_marks(text: &str) -> String {
    let is_mark = |c| place_of(c) < FOLDED_MAX as usize || plain(c) != c;
    text.chars().map(|c| if is_mark(c) { '\u{fffd}' } else { c }).collect()
}

/// Marks pasted text where it would have a meaning if typed.
fn as_pasted(text: &str) -> String {
    let text = without_marks(text).replace('@', &PASTED_AT.to_string());
    match mark_of(&text) {
        Some(mark) => format!("{mark}{}", &text[1..]),
        None => text,
    }
}

/// Returns the mark for a first character that could start a command.
fn mark_of(text: &str) -> Option<char> {
    match text.chars().next()? {
        '!' => Some(PASTED_MARK),
        '/' => Some(PASTED_SLASH),
        _ => None,
    }
}

/// Returns the character that a mark represents.
fn plain(c: char) -> char {
    match c {
        PASTED_AT => '@',
        PASTED_MARK => '!',
        PASTED_SLASH => '/',
        c => c,
    }
}

/// Returns the index of the paste that a character would represent.
fn place_of(c: char) -> usize {
    u32::from(c).checked_sub(FOLDED).map_or(usize::MAX, |place| place as usize)
}

fn is_word(grapheme: &str) -> bool {
    grapheme.chars().any(|c| c.is_alphanumeric() || c == '_' || place_of(c) < FOLDED_MAX as usize)
}

/// Returns the label of a folded paste.
fn fold(paste: &str) -> String {
    let mut out = String::from("[pasted ");
    let _ = match paste.lines().count() {
        0 | 1 => write!(out, "{} characters]", paste.chars().count()),
        lines => write!(out, "{lines} lines]"),
    };
    out
}

//! The viewer: the full texts of calls, thoughts and summaries, over the whole screen, where each can be opened and
//! folded.
//!
//! Invariants: the viewer changes nothing but itself, so the conversation is as before when it closes; the marked text
//! exists unless there is none.

use std::collections::HashSet;

use greenroom_terminal::draw::{Frame, Size};
use greenroom_terminal::input::{KeyCode, KeyEvent, KeyModifiers};
use greenroom_terminal::row::{Look, Row};

use crate::calls::{Calls, Kept};

#[cfg(test)]
mod tests;

const KEYS: &str = "  ↑ ↓ select · Enter opens and folds · PgUp PgDn scroll · Esc or Ctrl-O closes";

/// The state of an open viewer.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    /// The number of the marked text.
    at: u64,
    /// The numbers of the open texts.
    open: HashSet<u64>,
    /// How many rows are above the screen.
    top: usize,
    /// Whether the screen must show the marked text.
    follows: bool,
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Viewed {
    Stays,
    Closes,
}

impl Viewer {
    /// Opens the viewer with the newest text open; `None` if there is no text.
    pub(crate) fn new(calls: &Calls) -> Option<Self> {
        let at = calls.kept().back()?.number;
        Some(Self { at, open: HashSet::from([at]), top: 0, follows: true })
    }

    /// Handles a key.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
    pub(crate) fn key(&mut self, key: KeyEvent, calls: &Calls, size: Size) -> Viewed {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = size.rows.saturating_sub(2).max(1);
        match key.code {
            KeyCode::Esc | KeyCode::Char('q') => return Viewed::Closes,
            KeyCode::Char('o' | 'c' | 'd') if is_control => return Viewed::Closes,
            KeyCode::Up | KeyCode::BackTab => self.step(calls, false),
            KeyCode::Down | KeyCode::Tab => self.step(calls, true),
            KeyCode::Enter | KeyCode::Char(' ') => self.toggle(None),
            KeyCode::Right => self.toggle(Some(true)),
            KeyCode::Left => self.toggle(Some(false)),
            KeyCode::PageUp => self.scroll(-(page.cast_signed())),
            KeyCode::PageDown => self.scroll(page.cast_signed()),
            KeyCode::Char('k') => self.scroll(-1),
            KeyCode::Char('j') => self.scroll(1),
            KeyCode::Home => (self.top, self.follows) = (0, false),
            KeyCode::End => (self.top, self.follows) = (usize::MAX, false),
            _ => {}
        }
        Viewed::Stays
    }

    fn scroll(&mut self, rows: isize) {
        self.top = self.top.saturating_add_signed(rows);
        self.follows = false;
    }

    fn step(&mut self, calls: &Calls, is_down: bool) {
        let place = calls.kept().iter().position(|kept| kept.number == self.at).unwrap_or(0);
        let last = calls.kept().len().saturating_sub(1);
        let next = if is_down { (place + 1).min(last) } else { place.saturating_sub(1) };
        if let Some(kept) = calls.kept().get(next) {
            (self.at, self.follows) = (kept.number, true);
        }
    }

    /// Opens or folds the marked text; `None` does what it is not.
    fn toggle(&mut self, opens: Option<bool>) {
        if opens.unwrap_or(!self.open.contains(&self.at)) {
            self.open.insert(self.at);
        } else {
            self.open.remove(&self.at);
        }
        self.follows = true;
    }

    /// Returns the screen. `hint` is shown in place of the keys.
    pub(crate) fn frame(&mut self, calls: &Calls, size: Size, hint: Option<&str>) -> Frame {
        let width = size.width();
        let height = size.rows.saturating_sub(1).max(1);
        if let Some(first) = calls.kept().front().filter(|first| first.number > self.at) {
            // The marked text is the oldest one that is still kept.
            self.at = first.number;
        }
        let (mut rows, mut head, mut end) = (Vec::new(), 0, 0);
        for kept in calls.kept() {
            let is_marked = kept.number == self.at;
            if is_marked {
                head = rows.len();
            }
            rows.extend(self.section(kept, is_marked, width));
            if is_marked {
                end = rows.len();
            }
        }
        if std::mem::take(&mut self.follows) {
            // The end of the text if all of it fits, and its beginning in any case.
            if end > self.top.saturating_add(height) {
                self.top = end - height;
            }
            self.top = self.top.min(head);
        }
        self.top = self.top.min(rows.len().saturating_sub(height));
        let mut region: Vec<Row> = rows.into_iter().skip(self.top).take(height).collect();
        region.resize(height, Row::default());
        region.push(Row::new(hint.unwrap_or(KEYS), Look::DIM).cut(width));
        let cursor = head.saturating_sub(self.top).min(height - 1);
        Frame { above: Vec::new(), region, cursor: (cursor, 0) }
    }

    fn section(&self, kept: &Kept, is_marked: bool, width: usize) -> Vec<Row> {
        let is_open = self.open.contains(&kept.number);
        let sign = if is_open { "▾" } else { "▸" };
        let (mark, look) = if is_marked { ("❯", Look::NOTE) } else { (" ", Look::PLAIN) };
        let head = Row::new(mark, look).and(sign, Look::DIM).then(kept.head().clone());
        let mut rows = vec![head.cut(width)];
        if is_open {
            rows.extend(kept.rows(width));
            rows.push(Row::default());
        }
        rows
    }
}

//! A list to choose from, filtered by typing.
//!
//! Invariants: only a visible row can be chosen; without a match, none can.

use crate::commands::Branching;
use greenroom_terminal::input::{KeyCode, KeyEvent, KeyModifiers};
use greenroom_terminal::row::{Look, Row};

#[cfg(test)]
mod tests;

/// How many rows are visible at once.
const SHOWN: usize = 10;

/// The purpose of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Resume,
    /// A prompt to go back to, with or without a summary of the abandoned messages.
    Branch {
        summary: bool,
    },
    /// What goes back with this branch; with `None`, to before the last prompt.
    GoBack(Option<Branching>),
    /// A file to write the session to.
    Export,
    /// What happens to the work when the chat is left.
    Leave,
    Model,
    Effort,
    Theme,
    /// A prompt of the history.
    History,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// The chosen value.
    pub(crate) value: String,
    pub(crate) label: String,
    pub(crate) detail: String,
}

/// The effect of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Picked {
    Waits,
    Chosen(String),
    Left,
}

/// The list.
#[derive(Debug, Clone)]
pub(crate) struct Picker {
    pub(crate) purpose: Purpose,
    title: String,
    items: Vec<Item>,
    filter: String,
    at: usize,
}

impl Picker {
    /// Creates a list with a title.
    pub(crate) fn new(purpose: Purpose, title: &str, items: Vec<Item>) -> Self {
        Self { purpose, title: title.to_owned(), items, filter: String::new(), at: 0 }
    }

    /// Starts with the text typed so far as the filter, if it is one line that matches an item.
    pub(crate) fn narrow(&mut self, typed: &str) {
        self.filter = typed.trim().to_owned();
        if typed.contains('\n') || self.matching().next().is_none() {
            self.filter.clear();
        }
    }

    /// Handles a key.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
    pub(crate) fn key(&mut self, key: KeyEvent) -> Picked {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let last = self.matching().count().saturating_sub(1);
        match key.code {
            KeyCode::Esc => return Picked::Left,
            KeyCode::Char('c' | 'd') if is_control => return Picked::Left,
            KeyCode::Up => self.at = self.at.checked_sub(1).unwrap_or(last),
            // As in a shell: pressed again, it selects the previous match.
            KeyCode::Char('r') if is_control => self.at = if self.at >= last { 0 } else { self.at + 1 },
            KeyCode::Down | KeyCode::Tab => self.at = if self.at >= last { 0 } else { self.at + 1 },
            KeyCode::PageUp => self.at = self.at.saturating_sub(SHOWN),
            KeyCode::PageDown => self.at = (self.at + SHOWN).min(last),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = last,
            KeyCode::Backspace => {
                self.filter.pop();
                self.at = 0;
            }
            KeyCode::Char('u') if is_control => {
                self.filter.clear();
                self.at = 0;
            }
            KeyCode::Char(c) if !is_control => {
                self.filter.push(c);
                self.at = 0;
            }
            KeyCode::Enter => {
                let chosen = self.matching().nth(self.at).map(|item| item.value.clone());
                return chosen.map_or(Picked::Waits, Picked::Chosen);
            }
            _ => {}
        }
        Picked::Waits
    }

    /// Returns the list, and the cursor's position.
    pub(crate) fn layout(&self, width: usize) -> (Vec<Row>, (usize, usize)) {
        let count = self.matching().count();
        let mut rows = vec![Row::plain("  ").and(&self.title, Look::BOLD).cut(width)];
        let search = Row::plain("  › ").and(&self.filter, Look::PLAIN);
        let cursor = (1, search.width().min(width));
        rows.push(if self.filter.is_empty() { search.and("type to filter", Look::DIM) } else { search });
        let first = (self.at + 1).saturating_sub(SHOWN);
        for (index, item) in self.matching().enumerate().skip(first).take(SHOWN) {
            let is_chosen = index == self.at;
            let (mark, look) = if is_chosen { ("  ❯ ", Look::BOLD) } else { ("    ", Look::PLAIN) };
            let row = Row::new(mark, Look::NOTE).and(&item.label, look);
            rows.push(row.and(&format!("  {}", item.detail), Look::DIM).cut(width));
        }
        let hint = if count == 0 {
            "    no match · Esc to cancel".to_owned()
        } else {
            format!("    {} of {count} · Enter to select · Esc to cancel", self.at + 1)
        };
        rows.push(Row::new(&hint, Look::DIM).cut(width));
        (rows, cursor)
    }

    /// Returns the value of the selected row, if there is one.
    pub(crate) fn chosen(&self) -> Option<&str> {
        self.matching().nth(self.at).map(|item| item.value.as_str())
    }

    fn matching(&self) -> impl Iterator<Item = &Item> {
        let wanted = self.filter.to_lowercase();
        let holds = move |item: &&Item| {
            let text = format!("{} {} {}", item.label, item.detail, item.value).to_lowercase();
            wanted.split_whitespace().all(|word| text.contains(word))
        };
        self.items.iter().filter(holds)
    }
}

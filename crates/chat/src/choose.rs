//! Questions before a chat: a list to choose from, and a line to type or paste.
//!
//! Invariants: nothing is read after the answer, so that the chat gets what was typed behind it; a secret is never
//! drawn; the region of the question is cleared when it is answered.

use std::io;

use greenroom_terminal::draw::{Frame, Painter};
use greenroom_terminal::input::{self, Input, KeyCode, KeyModifiers, Raw};
use greenroom_terminal::row::{Look, Row};

use crate::picker::{Item, Picked, Picker, Purpose};

#[cfg(test)]
mod tests;

/// One of several possibilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The value that is returned.
    pub value: String,
    /// Its name.
    pub label: String,
    /// What else is known about it, on the same row.
    pub detail: String,
    /// Rows below the list while it is selected.
    pub preview: Vec<String>,
}

/// An answer, and what was typed behind it.
#[derive(Debug, Default)]
pub struct Answered {
    /// The answer; `None` if the user left.
    pub value: Option<String>,
    /// The input behind it.
    pub behind: Vec<Input>,
}

/// Asks the user to choose, and waits in this thread. `above` is shown once, above the list.
///
/// # Errors
/// The terminal cannot be used.
pub fn choose(above: &[String], title: &str, choices: &[Choice], color: bool) -> io::Result<Answered> {
    let item = |choice: &Choice| {
        let Choice { value, label, detail, .. } = choice;
        Item { value: value.clone(), label: label.clone(), detail: detail.clone() }
    };
    let mut picker = Picker::new(Purpose::Resume, title, choices.iter().map(item).collect());
    let layout = |picker: &Picker, width: usize| {
        let (mut rows, cursor) = picker.layout(width);
        let chosen = picker.chosen().and_then(|value| choices.iter().find(|choice| choice.value == value));
        if let Some(choice) = chosen.filter(|choice| !choice.preview.is_empty()) {
            rows.push(Row::default());
            rows.extend(
                choice.preview.iter().map(|line| Row::new(&format!("    {line}"), Look::DIM).cut(width)),
            );
        }
        (rows, cursor)
    };
    asked(above, color, picker_key, &mut picker, layout)
}

/// Asks the user for a line, and waits in this thread. A secret is not drawn.
///
/// # Errors
/// The terminal cannot be used.
pub fn line(above: &[String], title: &str, is_secret: bool, color: bool) -> io::Result<Answered> {
    let mut typed = Line { text: String::new(), is_secret, title: title.to_owned() };
    asked(above, color, Line::key, &mut typed, Line::layout)
}

/// The state after an input.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Then {
    Waits,
    Answered(String),
    Left,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "other inputs mean nothing here")]
fn picker_key(picker: &mut Picker, input: &Input) -> Then {
    match input {
        Input::Key(key) => match picker.key(*key) {
            Picked::Waits => Then::Waits,
            Picked::Chosen(value) => Then::Answered(value),
            Picked::Left => Then::Left,
        },
        Input::Ended(_) => Then::Left,
        _ => Then::Waits,
    }
}

/// A line that is typed.
struct Line {
    text: String,
    is_secret: bool,
    title: String,
}

impl Line {
    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
    fn key(&mut self, input: &Input) -> Then {
        match input {
            Input::Paste(text) => self.text.push_str(text.trim()),
            Input::Ended(_) => return Then::Left,
            Input::Key(key) => {
                let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Esc => return Then::Left,
                    KeyCode::Char('c' | 'd') if is_control => return Then::Left,
                    KeyCode::Char('u') if is_control => self.text.clear(),
                    KeyCode::Backspace => drop(self.text.pop()),
                    KeyCode::Char(c) if !is_control => self.text.push(c),
                    KeyCode::Enter if !self.text.trim().is_empty() => {
                        return Then::Answered(self.text.trim().to_owned());
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Then::Waits
    }

    fn layout(&self, width: usize) -> (Vec<Row>, (usize, usize)) {
        let shown = match (self.is_secret, self.text.chars().count()) {
            (true, 0) => String::new(),
            (true, count) => format!("({count} characters, not shown)"),
            (false, _) => self.text.clone(),
        };
        let line = Row::plain("  › ").and(&shown, Look::PLAIN);
        let cursor = (1, line.width().min(width));
        let hint = Row::new("    Enter continues · Esc cancels", Look::DIM);
        (
            vec![
                Row::new(&format!("  {}", self.title), Look::BOLD).cut(width),
                line.cut(width),
                hint.cut(width),
            ],
            cursor,
        )
    }
}

/// Draws a question until it is answered.
fn asked<S>(
    above: &[String],
    color: bool,
    key: impl Fn(&mut S, &Input) -> Then,
    state: &mut S,
    layout: impl Fn(&S, usize) -> (Vec<Row>, (usize, usize)),
) -> io::Result<Answered> {
    let raw = Raw::new()?;
    let mut painter = Painter::new(color, input::size()).cutting(input::cuts_rows());
    let (width, none) = (input::size().width(), Row::default());
    let mut above: Vec<Row> =
        above.iter().flat_map(|line| Row::plain(line).wrap(width, &none, &none)).collect();
    let mut draw = |state: &S, above: Vec<Row>| {
        let size = input::size();
        let (region, cursor) = layout(state, size.width());
        input::write(&painter.paint(&Frame { above, region, cursor }, size))
    };
    draw(state, std::mem::take(&mut above))?;
    let (mut value, mut failed) = (None, None);
    let behind = input::dialogue(|input| match key(state, &input) {
        Then::Waits => {
            failed = draw(state, Vec::new()).err();
            failed.is_none()
        }
        Then::Answered(answer) => {
            value = Some(answer);
            false
        }
        Then::Left => false,
    });
    input::write(&painter.clear())?;
    drop(raw);
    match failed {
        Some(error) => Err(error),
        None => Ok(Answered { value, behind: behind? }),
    }
}

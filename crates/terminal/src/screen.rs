//! Line output: a terminal with a live line at the bottom, or a pipe that gets plain lines.
//!
//! Invariants: nothing is ever printed with `println!`, so a closed reader is an error that ends the command
//! quietly. All text counts as text from outside: [`Screen`] writes only its harmless form ([`harmless`]), to
//! every kind of output, and adds styles itself. Two outputs are unchanged, and only in a pipe or a file: an
//! answer ([`Screen::text`]), and JSON, where the same characters are escaped in strings.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

pub use crate::harmless::harmless;
use crate::harmless::harmless_json;
use crate::row::Row;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

/// An output stream of lines, with at most one live line below them. Writing fails if the stream is closed.
#[derive(Debug)]
pub struct Screen {
    stream: Stream,
    /// Whether the stream is a terminal.
    is_watched: bool,
    /// Whether the stream is a terminal that can redraw lines.
    is_terminal: bool,
    color: bool,
    has_live: bool,
    /// Whether the last output was a piece of text without a line break.
    in_text: bool,
}

impl Screen {
    /// Creates a screen on standard output.
    pub fn stdout(color: ColorChoice) -> Self {
        Self::new(Stream::Out, io::stdout().is_terminal(), color)
    }

    /// Creates a screen on standard error.
    pub fn stderr(color: ColorChoice) -> Self {
        Self::new(Stream::Err, io::stderr().is_terminal(), color)
    }

    fn new(stream: Stream, is_terminal: bool, color: ColorChoice) -> Self {
        let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
        let color = match color {
            ColorChoice::Auto => is_terminal && !is_dumb && variable("NO_COLOR").is_none(),
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        Self {
            stream,
            is_watched: is_terminal,
            is_terminal: is_terminal && !is_dumb,
            color,
            has_live: false,
            in_text: false,
        }
    }

    /// Whether the stream is a terminal of any kind.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether the stream is a terminal that can redraw lines.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether colours are used.
    pub fn has_color(&self) -> bool {
        self.color
    }

    /// Returns the width in columns; 100 if it is unknown.
    pub fn width(&self) -> usize {
        let size = match self.stream {
            Stream::Out => rustix::termios::tcgetwinsize(io::stdout()),
            Stream::Err => rustix::termios::tcgetwinsize(io::stderr()),
        };
        match size {
            Ok(size) if self.is_terminal && size.ws_col > 0 => usize::from(size.ws_col),
            Ok(_) | Err(_) => 100,
        }
    }

    /// Writes a line above the live line.
    pub fn line(&mut self, line: impl Into<Row>) -> io::Result<()> {
        let mut out = self.start_line();
        line.into().write(self.color, &mut out);
        out.push('\n');
        self.write(&out)
    }

    /// Writes a value as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.json_text(&text)
    }

    /// Writes a value as indented JSON.
    pub fn pretty_json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.json_text(&text)
    }

    /// Writes text that is JSON already, followed by a line break.
    pub fn json_text(&mut self, json: &str) -> io::Result<()> {
        let mut out = self.start_line();
        out.push_str(&harmless_json(json.trim_end_matches('\n')));
        out.push('\n');
        self.write(&out)
    }

    /// Writes one of the binary's own scripts unchanged.
    pub fn script(&mut self, script: &[u8]) -> io::Result<()> {
        let mut out = self.start_line();
        out.push_str(&String::from_utf8_lossy(script));
        self.write(&out)
    }

    /// Redraws the live line, if the stream is a terminal that can redraw lines.
    pub fn live(&mut self, line: impl Into<Row>) -> io::Result<()> {
        if !self.is_terminal {
            return Ok(());
        }
        let mut out = self.start_line();
        // The cursor stays at the start of the line, so the next output overwrites it.
        line.into().write(self.color, &mut out);
        out.push('\r');
        self.has_live = true;
        self.write(&out)
    }

    /// Removes the live line.
    pub fn clear_live(&mut self) -> io::Result<()> {
        if !self.has_live {
            return Ok(());
        }
        let out = self.start_line();
        self.write(&out)
    }

    /// Writes a piece of an answer: in harmless form to a terminal, unchanged to a pipe or a file.
    pub fn text(&mut self, piece: &str) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        let mut out = if self.has_live { self.start_line() } else { String::new() };
        if self.is_watched {
            out.push_str(&harmless(piece));
        } else {
            out.push_str(piece);
        }
        self.in_text = !piece.ends_with('\n');
        self.write(&out)
    }

    /// Ends the current line of text, if it has no line break yet.
    pub fn end_text(&mut self) -> io::Result<()> {
        if !self.in_text {
            return Ok(());
        }
        self.in_text = false;
        self.write("\n")
    }

    /// Notes that the user ended the current line of text, with Enter.
    pub fn forget_text(&mut self) {
        self.in_text = false;
    }

    fn start_line(&mut self) -> String {
        let mut out = String::new();
        if std::mem::take(&mut self.in_text) {
            out.push('\n');
        }
        if std::mem::take(&mut self.has_live) {
            out.push_str("\r\x1b[2K");
        }
        out
    }

    fn write(&self, text: &str) -> io::Result<()> {
        match self.stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                written
                    .map_err(|error| io::Error::new(error.kind(), format!("write standard output: {error}")))
            }
            Stream::Err => io::stderr().lock().write_all(text.as_bytes()),
        }
    }
}

/// Returns an environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    let value = greenroom_tools::privacy::variable(name)?.into_string().ok();
    value.filter(|value| !value.trim().is_empty())
}

/// Returns the text as one harmless line of at most `width` columns.
pub fn one_line(text: &str, width: usize) -> String {
    let mut out = String::new();
    let (mut columns, mut was_space) = (0, true);
    for c in harmless(text).chars() {
        let c = if c.is_whitespace() { ' ' } else { c };
        if c == ' ' && was_space {
            continue;
        }
        was_space = c == ' ';
        if columns + c.width().unwrap_or(0) > width.saturating_sub(1) {
            out.push('…');
            return out;
        }
        columns += c.width().unwrap_or(0);
        out.push(c);
    }
    out.trim_end().to_owned()
}

/// Returns the text as at most `lines_max` harmless lines of at most `width` columns, wrapped between words.
pub fn wrapped(text: &str, width: usize, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let text = one_line(text, width * lines_max);
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    if lines.len() > lines_max {
        lines.truncate(lines_max);
        if let Some(last) = lines.last_mut() {
            *last = one_line(&format!("{last} and so on"), width);
        }
    }
    lines
}

/// Returns the width of a text in columns.
pub fn columns(text: &str) -> usize {
    text.width()
}

/// Standard error for the log; each record is written in harmless form.
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Writes the reason why the program ends, where there is no screen.
pub fn last_words(text: &str) {
    // If standard error is closed, nobody reads this.
    let _ = writeln!(io::stderr(), "greenroom: {}", harmless(text));
}

/// Writes the error with which the program ends: at a terminal broken between words only, elsewhere as it is, behind
/// the program's name.
pub fn last_error(text: &str) {
    if !io::stderr().is_terminal() {
        return last_words(text);
    }
    let text = broken(&harmless(&format!("Error: {text}")), Screen::stderr(ColorChoice::Never).width());
    // As above.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Breaks the lines of a text between words. The rest of a line is indented as its beginning, by 2 columns at least.
fn broken(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let mut current = " ".repeat(indent);
        let mut is_empty = true;
        for word in line.split_whitespace() {
            if !is_empty && columns(&current) + 1 + columns(word) > width {
                lines.push(std::mem::replace(&mut current, " ".repeat(indent.max(2))));
                is_empty = true;
            }
            if !is_empty {
                current.push(' ');
            }
            current.push_str(word);
            is_empty = false;
        }
        lines.push(current);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;

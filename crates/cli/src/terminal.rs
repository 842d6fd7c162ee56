//! Where lines go: a terminal with a live line at the bottom, or a pipe that gets plain lines.
//!
//! Invariants: nothing is ever printed with `println!`, so a reader that goes away is an error that ends the
//! command quietly. All text is taken for text from outside: [`Screen`] writes only its harmless form ([`harmless`]),
//! whatever the terminal is and whether there is one, and adds styles itself. Two things are written as they are, and
//! only to a pipe or a file: an answer ([`Screen::text`]) and JSON, in whose texts the same characters are escaped.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

pub(crate) use self::harmless::harmless;
use self::harmless::harmless_json;
use crate::options::Color;

mod harmless;

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Less important than the rest.
    Dim,
    /// More important.
    Bold,
    /// Went well, or the user's own.
    Green,
    /// Deserves a look.
    Yellow,
    /// Went wrong.
    Red,
    /// Something happened to the context.
    Cyan,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Dim => "2",
            Self::Bold => "1",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "31",
            Self::Cyan => "36;1",
        }
    }
}

/// Text in pieces, each with a style or none. A screen writes only the harmless form of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line(Vec<(Option<Style>, String)>);

impl Line {
    /// Text in a style, where colours are wanted.
    pub(crate) fn styled(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(Some(style), text.into())])
    }

    /// This, and then more.
    pub(crate) fn and(mut self, more: impl Into<Self>) -> Self {
        self.0.extend(more.into().0);
        self
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Self(vec![(None, text.to_owned())])
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self(vec![(None, text)])
    }
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

/// A stream of lines, with at most one live line below them.
#[derive(Debug)]
pub(crate) struct Screen {
    stream: Stream,
    /// Whether it is a terminal of any kind.
    is_watched: bool,
    /// Whether it is one that can be drawn over.
    is_terminal: bool,
    color: bool,
    has_live: bool,
    /// Whether the last thing written was a piece of text without its line's end.
    in_text: bool,
}

impl Screen {
    /// Standard output.
    pub(crate) fn stdout(color: Color) -> Self {
        Self::new(Stream::Out, io::stdout().is_terminal(), color)
    }

    /// Standard error.
    pub(crate) fn stderr(color: Color) -> Self {
        Self::new(Stream::Err, io::stderr().is_terminal(), color)
    }

    fn new(stream: Stream, is_terminal: bool, color: Color) -> Self {
        let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
        let color = match color {
            Color::Auto => is_terminal && !is_dumb && variable("NO_COLOR").is_none(),
            Color::Always => true,
            Color::Never => false,
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

    /// Whether a person watches, at a terminal of any kind.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether a person watches, and lines can be drawn over.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether colours are wanted.
    pub(crate) fn has_color(&self) -> bool {
        self.color
    }

    /// How many columns there are; 100 where nothing says so.
    pub(crate) fn width(&self) -> usize {
        let size = match self.stream {
            Stream::Out => rustix::termios::tcgetwinsize(io::stdout()),
            Stream::Err => rustix::termios::tcgetwinsize(io::stderr()),
        };
        match size {
            Ok(size) if self.is_terminal && size.ws_col > 0 => usize::from(size.ws_col),
            Ok(_) | Err(_) => 100,
        }
    }

    /// Writes a line, above the live one.
    pub(crate) fn line(&mut self, line: impl Into<Line>) -> io::Result<()> {
        let mut out = self.start_line();
        self.render(&line.into(), &mut out);
        out.push('\n');
        self.write(&out)
    }

    /// Writes a value as a line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.json_text(&text)
    }

    /// Writes a value as several lines of JSON.
    pub(crate) fn pretty_json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.json_text(&text)
    }

    /// Writes what is JSON already, and ends its line.
    pub(crate) fn json_text(&mut self, json: &str) -> io::Result<()> {
        let mut out = self.start_line();
        out.push_str(&harmless_json(json.trim_end_matches('\n')));
        out.push('\n');
        self.write(&out)
    }

    /// Writes a program of our own making, to the byte.
    pub(crate) fn script(&mut self, script: &[u8]) -> io::Result<()> {
        let mut out = self.start_line();
        out.push_str(&String::from_utf8_lossy(script));
        self.write(&out)
    }

    /// Draws the live line anew. Where nobody watches, it does nothing.
    pub(crate) fn live(&mut self, line: impl Into<Line>) -> io::Result<()> {
        if !self.is_terminal {
            return Ok(());
        }
        let mut out = self.start_line();
        // The cursor stays at its start, so that whatever comes next overwrites it.
        self.render(&line.into(), &mut out);
        out.push('\r');
        self.has_live = true;
        self.write(&out)
    }

    fn render(&self, line: &Line, out: &mut String) {
        for (style, text) in &line.0 {
            let text = harmless(text);
            match style.filter(|_| self.color && !text.is_empty()) {
                Some(style) => {
                    out.push_str("\x1b[");
                    out.push_str(style.code());
                    out.push('m');
                    out.push_str(&text);
                    out.push_str("\x1b[0m");
                }
                None => out.push_str(&text),
            }
        }
    }

    /// Takes the live line away.
    pub(crate) fn clear_live(&mut self) -> io::Result<()> {
        if !self.has_live {
            return Ok(());
        }
        let out = self.start_line();
        self.write(&out)
    }

    /// Writes a piece of an answer. On a terminal it is made harmless; a pipe or a file gets it as it is.
    pub(crate) fn text(&mut self, piece: &str) -> io::Result<()> {
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

    /// Ends the line of running text, if it is not ended.
    pub(crate) fn end_text(&mut self) -> io::Result<()> {
        if !self.in_text {
            return Ok(());
        }
        self.in_text = false;
        self.write("\n")
    }

    /// The line of running text was ended by someone else: the user, with Enter.
    pub(crate) fn forget_text(&mut self) {
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

/// A variable of the environment that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = greenroom_tools::privacy::variable(name)?.into_string().ok();
    value.filter(|value| !value.trim().is_empty())
}

/// Text as one harmless line of at most `width` columns.
pub(crate) fn one_line(text: &str, width: usize) -> String {
    let mut out = String::new();
    let (mut columns, mut was_space) = (0, true);
    for c in harmless(text).chars() {
        let c = if c.is_whitespace() { ' ' } else { c };
        if c == ' ' && was_space {
            continue;
        }
        was_space = c == ' ';
        if columns + columns_of(c) > width.saturating_sub(1) {
            out.push('…');
            return out;
        }
        columns += columns_of(c);
        out.push(c);
    }
    out.trim_end().to_owned()
}

/// Text as harmless lines of at most `width` columns, broken between words; at most `lines_max` of them.
pub(crate) fn wrapped(text: &str, width: usize, lines_max: usize) -> Vec<String> {
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

/// How many columns a text takes, roughly: wide scripts take two a character.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(c: char) -> usize {
    match u32::from(c) {
        0x1100..=0x115F
        | 0x2E80..=0xA4CF
        | 0xAC00..=0xD7A3
        | 0xF900..=0xFAFF
        | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60
        | 0x1F300..=0x1F64F
        | 0x1F900..=0x1F9FF
        | 0x20000..=0x3FFFD => 2,
        _ => 1,
    }
}

/// Standard error for the log, of which each record is harmless too.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Says why the program ends, where no screen is left to say it on.
pub(crate) fn last_words(text: &str) {
    // Whoever closed standard error wants to hear nothing.
    let _ = writeln!(io::stderr(), "greenroom: {}", harmless(text));
}

#[cfg(test)]
mod tests;

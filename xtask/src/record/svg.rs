//! Pictures of a terminal as an animated SVG.
//!
//! Invariants: text is text, so that it can be read and searched; a row that appears in several pictures is
//! drawn once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

/// The content of a terminal from a moment on: text with colour codes.
pub(crate) struct Frame {
    pub(crate) at: Duration,
    pub(crate) picture: String,
}

/// The size of a character, in pixels.
const WIDTH: f64 = 8.0;
const HEIGHT: f64 = 18.0;
/// The margin around the terminal.
const MARGIN: f64 = 14.0;
/// How long the last picture stays.
const LAST: Duration = Duration::from_secs(3);

/// A row at its position, and the intervals in which it is visible, as fractions of the whole time.
type Seen<'a> = ((usize, &'a str), Vec<(f64, f64)>);

/// The style of a piece of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Look {
    color: Option<u8>,
    bold: bool,
    dim: bool,
    italic: bool,
    underline: bool,
    reverse: bool,
}

/// Returns the text of a picture without colour codes.
pub(crate) fn text(picture: &str) -> String {
    let mut out = String::new();
    for row in picture.lines() {
        out.extend(pieces(row).into_iter().map(|(text, _)| text));
        out.push('\n');
    }
    out
}

/// Draws the pictures in a loop.
pub(crate) fn draw(frames: &[Frame], columns: u16, rows: u16) -> String {
    let (width, height) =
        (f64::from(columns) * WIDTH + 2.0 * MARGIN, f64::from(rows) * HEIGHT + 2.0 * MARGIN);
    let end = frames.last().map_or(LAST, |last| last.at + LAST);
    let total = end.as_secs_f64();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" font-size=\"13\">\n<rect width=\"100%\" \
         height=\"100%\" rx=\"8\" fill=\"#1b1d23\"/>\n<g fill=\"#d8dae0\" xml:space=\"preserve\">\n"
    );
    let mut seen: Vec<Seen<'_>> = Vec::new();
    let mut places: HashMap<(usize, &str), usize> = HashMap::new();
    for (index, frame) in frames.iter().enumerate() {
        let from = frame.at.as_secs_f64() / total;
        let until = frames.get(index + 1).map_or(1.0, |next| next.at.as_secs_f64() / total);
        for (number, row) in frame.picture.lines().enumerate() {
            if text(row).trim().is_empty() {
                continue;
            }
            let place = *places.entry((number, row)).or_insert_with(|| {
                seen.push(((number, row), Vec::new()));
                seen.len() - 1
            });
            let Some((_, times)) = seen.get_mut(place) else { continue };
            match times.last_mut() {
                Some((_, last)) if (*last - from).abs() < 1e-9 => *last = until,
                Some(_) | None => times.push((from, until)),
            }
        }
    }
    for ((number, row), times) in seen {
        #[expect(clippy::cast_precision_loss, reason = "a terminal has few rows")]
        let y = MARGIN + number as f64 * HEIGHT + 13.0;
        let is_always = matches!(times.as_slice(), [(from, until)] if *from <= 0.0 && *until >= 1.0);
        let _ = write!(out, "<text y=\"{y}\"{}>", if is_always { "" } else { " visibility=\"hidden\"" });
        let mut column = 0;
        for (text, look) in pieces(row) {
            let x = MARGIN + f64::from(column) * WIDTH;
            column += u32::try_from(text.chars().count()).unwrap_or(0);
            let _ = write!(out, "<tspan x=\"{x}\"{}>{}</tspan>", attributes(look), escaped(&text));
        }
        if !is_always {
            out.push_str(&animation(&times, total));
        }
        out.push_str("</text>\n");
    }
    out.push_str("</g>\n</svg>\n");
    out
}

/// Makes a row visible at these fractions of the whole time.
fn animation(times: &[(f64, f64)], total: f64) -> String {
    let (mut values, mut keys) = (vec!["hidden"], vec![0.0]);
    for (from, until) in times {
        if *from <= 0.0 {
            values.clear();
            keys.clear();
        }
        values.push("visible");
        keys.push(*from);
        if *until < 1.0 {
            values.push("hidden");
            keys.push(*until);
        }
    }
    let keys: Vec<String> = keys.iter().map(|key| format!("{key:.5}")).collect();
    format!(
        "<animate attributeName=\"visibility\" calcMode=\"discrete\" dur=\"{total:.2}s\" repeatCount=\"indefinite\" \
         values=\"{}\" keyTimes=\"{}\"/>",
        values.join(";"),
        keys.join(";")
    )
}

fn attributes(look: Look) -> String {
    let mut out = String::new();
    let color = match look.color {
        Some(1) => "#e06c75",
        Some(2) => "#98c379",
        Some(3) => "#e5c07b",
        Some(4) => "#61afef",
        Some(5) => "#c678dd",
        Some(6) => "#56b6c2",
        Some(_) | None => "",
    };
    if !color.is_empty() {
        let _ = write!(out, " fill=\"{color}\"");
    }
    if look.bold || look.reverse {
        out.push_str(" font-weight=\"bold\"");
    }
    if look.italic {
        out.push_str(" font-style=\"italic\"");
    }
    if look.underline {
        out.push_str(" text-decoration=\"underline\"");
    }
    if look.dim {
        out.push_str(" opacity=\"0.6\"");
    }
    out
}

/// Splits a row's text into pieces of one style.
fn pieces(row: &str) -> Vec<(String, Look)> {
    let (mut out, mut look): (Vec<(String, Look)>, _) = (Vec::new(), Look::default());
    let mut rest = row;
    while let Some(c) = rest.chars().next() {
        if let Some(code) = rest.strip_prefix("\x1b[") {
            let end = code.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
            let (numbers, after) = code.split_at(end);
            if after.starts_with('m') {
                numbers.split(';').for_each(|number| look.set(number.parse().unwrap_or(0)));
            }
            rest = after.get(1..).unwrap_or_default();
            continue;
        }
        // Codes that shift between character sets are irrelevant here.
        if !c.is_control() {
            match out.last_mut() {
                Some((text, last)) if *last == look => text.push(c),
                Some(_) | None => out.push((c.to_string(), look)),
            }
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    out
}

impl Look {
    fn set(&mut self, code: u8) {
        match code {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            3 => self.italic = true,
            4 => self.underline = true,
            7 => self.reverse = true,
            22 => (self.bold, self.dim) = (false, false),
            23 => self.italic = false,
            24 => self.underline = false,
            27 => self.reverse = false,
            30..=37 => self.color = Some(code - 30),
            39 => self.color = None,
            _ => {}
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

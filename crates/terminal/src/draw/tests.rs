//! The painter's output, as a small simulated terminal shows it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::row::Look;

/// A terminal that understands the painter's codes: it keeps the rows of its screen and its scrollback.
struct Terminal {
    size: Size,
    scrolled: Vec<String>,
    screen: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Terminal {
    fn new(size: Size) -> Self {
        let screen = vec![Vec::new(); size.rows];
        Self { size, scrolled: Vec::new(), screen, row: 0, column: 0 }
    }

    fn take(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if let Some(code) = rest.strip_prefix("\x1b[") {
                let end = code.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                let (number, command) = (&code[..end], code[end..].chars().next().unwrap());
                let count = number.parse().unwrap_or(1);
                match command {
                    'A' => self.row = self.row.saturating_sub(count),
                    'B' => self.row = (self.row + count).min(self.size.rows - 1),
                    'C' => self.column = (self.column + count).min(self.size.columns - 1),
                    'K' if number == "2" => self.screen[self.row].clear(),
                    'K' => self.screen[self.row].truncate(self.column),
                    'J' => {
                        self.screen[self.row].truncate(self.column);
                        self.screen[self.row + 1..].iter_mut().for_each(Vec::clear);
                    }
                    'h' | 'l' | 'm' => {}
                    other => panic!("{other:?} in {text:?}"),
                }
                rest = &code[end + 1..];
                continue;
            }
            match c {
                '\r' => self.column = 0,
                '\n' => {
                    self.row += 1;
                    if self.row == self.size.rows {
                        self.scrolled.push(self.screen.remove(0).into_iter().collect());
                        self.screen.push(Vec::new());
                        self.row -= 1;
                    }
                }
                c => {
                    let row = &mut self.screen[self.row];
                    while row.len() <= self.column {
                        row.push(' ');
                    }
                    row[self.column] = c;
                    self.column += 1;
                    assert!(self.column < self.size.columns, "no row reaches the last column");
                }
            }
            rest = &rest[c.len_utf8()..];
        }
    }

    fn rows(&self) -> Vec<String> {
        let rows = self.screen.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned());
        let mut rows: Vec<String> = rows.collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn all(&self) -> Vec<String> {
        self.scrolled.iter().cloned().chain(self.rows()).collect()
    }
}

fn frame(above: &[&str], region: &[&str], cursor: (usize, usize)) -> Frame {
    let rows = |texts: &[&str]| texts.iter().map(|text| Row::plain(text)).collect();
    Frame { above: rows(above), region: rows(region), cursor }
}

const SIZE: Size = Size { columns: 20, rows: 5 };

#[test]
fn finished_rows_go_above_and_the_region_is_drawn_over() {
    let (mut terminal, mut painter) = (Terminal::new(SIZE), Painter::new(false, SIZE));
    for (frame, seen, place) in [
        (frame(&[], &["> ", "status"], (0, 2)), vec![">", "status"], (0, 2)),
        (frame(&[], &["> a", "status"], (0, 3)), vec!["> a", "status"], (0, 3)),
        (frame(&["one"], &["...", "> a", "status"], (1, 3)), vec!["one", "...", "> a", "status"], (2, 3)),
        (frame(&["two"], &["> ", "status"], (0, 2)), vec!["one", "two", ">", "status"], (2, 2)),
        (
            frame(&["three", "four"], &["> ", "status"], (0, 2)),
            vec!["two", "three", "four", ">", "status"],
            (3, 2),
        ),
    ] {
        terminal.take(&painter.paint(&frame, SIZE));
        assert_eq!(terminal.rows(), seen);
        assert_eq!((terminal.row, terminal.column), place);
        assert_eq!(painter.paint(&Frame { above: Vec::new(), ..frame }, SIZE), "", "nothing has changed");
    }
    assert_eq!(terminal.all(), ["one", "two", "three", "four", ">", "status"]);
}

#[test]
fn a_key_rewrites_only_the_rows_from_the_one_that_changed() {
    let mut painter = Painter::new(false, SIZE);
    painter.paint(&frame(&[], &["a long tail", "> ", "status"], (1, 2)), SIZE);
    let out = painter.paint(&frame(&[], &["a long tail", "> x", "status"], (1, 3)), SIZE);
    assert!(!out.contains("a long tail") && out.contains("> x"), "{out:?}");
}

#[test]
fn whatever_is_drawn_the_screen_shows_the_finished_rows_once_and_then_the_region() {
    let (mut cases, mut seed) = (0, 7_usize);
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..300 {
        let (mut terminal, mut painter) = (Terminal::new(SIZE), Painter::new(true, SIZE));
        let (mut above, mut number) = (Vec::new(), 0);
        for _ in 0..12 {
            let new: Vec<Row> = (0..random(4))
                .map(|_| {
                    number += 1;
                    above.push(format!("row {number}"));
                    Row::new(&format!("row {number}"), Look::BOLD)
                })
                .collect();
            let count = 1 + random(4);
            let region: Vec<Row> = (0..count).map(|_| Row::plain(&format!("r{}", random(3)))).collect();
            let cursor = (random(count), random(3));
            let wanted: Vec<String> = above.iter().cloned().chain(region.iter().map(Row::text)).collect();
            terminal.take(&painter.paint(&Frame { above: new, region, cursor }, SIZE));
            assert_eq!(terminal.all(), wanted);
            cases += 1;
        }
    }
    assert!(cases >= 3_000, "{cases}");
}

#[test]
fn a_region_that_is_too_high_shows_its_lowest_rows_around_the_cursor() {
    let (mut terminal, mut painter) = (Terminal::new(SIZE), Painter::new(false, SIZE));
    let tall = frame(&[], &["1", "2", "3", "4", "5", "6", "7"], (6, 1));
    terminal.take(&painter.paint(&tall, SIZE));
    assert_eq!(terminal.rows(), ["3", "4", "5", "6", "7"]);
    terminal.take(&painter.paint(&frame(&["done"], &["> "], (0, 2)), SIZE));
    assert_eq!(terminal.all(), ["done", ">"]);
}

#[test]
fn a_terminal_that_got_narrower_has_wrapped_what_was_drawn() {
    let mut painter = Painter::new(false, SIZE);
    painter.paint(&frame(&[], &["123456789012345678", "> ", "s"], (1, 2)), SIZE);
    let narrow = Size { columns: 10, rows: 5 };
    let out = painter.paint(&frame(&[], &["> ", "s"], (0, 2)), narrow);
    assert!(out.contains("\x1b[2A"), "the first row took two: {out:?}");
    // A terminal that got wider does not rewrap.
    let out = painter.paint(&frame(&[], &["> ", "s"], (0, 2)), SIZE);
    assert!(out.starts_with("\x1b[?2026h\x1b[?25l\r\x1b[2K> "), "it begins where the cursor stands: {out:?}");
}

#[test]
fn a_terminal_that_cuts_rows_off_keeps_the_finished_ones_when_it_gets_narrower() {
    let (mut terminal, mut painter) = (Terminal::new(SIZE), Painter::new(false, SIZE).cutting(true));
    terminal.take(&painter.paint(&frame(&["one", "two"], &["a tail of 18 wide", "> x", "s"], (1, 3)), SIZE));
    let narrow = Size { columns: 10, rows: 5 };
    terminal.size = narrow;
    terminal.screen.iter_mut().for_each(|row| row.truncate(10));
    terminal.take(&painter.paint(&frame(&[], &["a tail", "> x", "s"], (1, 3)), narrow));
    assert_eq!(terminal.all(), ["one", "two", "a tail", "> x", "s"]);
}

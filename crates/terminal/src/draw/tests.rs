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

    /// Gets another height, as terminals do: one that gets lower removes the rows below the cursor, and then scrolls the
    /// highest ones out; one that gets higher takes these back, if it `pulls`.
    fn resize(&mut self, rows: usize, pulls: bool) {
        while self.screen.len() > rows {
            if self.row + 1 < self.screen.len() {
                self.screen.pop();
            } else {
                self.scrolled.push(self.screen.remove(0).into_iter().collect());
                self.row -= 1;
            }
        }
        while self.screen.len() < rows {
            if let Some(row) = pulls.then(|| self.scrolled.pop()).flatten() {
                self.screen.insert(0, row.chars().collect());
                self.row += 1;
            } else {
                self.screen.push(Vec::new());
            }
        }
        self.size.rows = rows;
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

/// Draws a region at these heights. Checks that the terminal has the finished rows once, and then the region.
fn check_heights(region: &[&str], cursor: (usize, usize), heights: &[usize]) {
    let size = |rows| Size { columns: 20, rows };
    let first = size(heights[0]);
    let (mut terminal, mut painter) = (Terminal::new(first), Painter::new(false, first));
    let above = ["one", "two", "three"];
    terminal.take(&painter.paint(&frame(&above, region, cursor), first));
    for rows in heights {
        terminal.resize(*rows, true);
        terminal.take(&painter.paint(&frame(&[], region, cursor), size(*rows)));
    }
    assert_eq!(terminal.all(), [&above, region].concat(), "{heights:?}, the cursor in {}", cursor.0);
}

#[test]
fn a_terminal_that_got_lower_and_higher_again_has_no_row_of_the_region_twice() {
    let region = ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "status"];
    let mut checked = 0;
    for at in [0, 4, 8, 9] {
        for heights in [
            &[30, 8, 30][..],
            &[30, 4, 30],
            &[12, 4, 30],
            &[30, 9, 5, 30],
            &[30, 4, 6, 8, 30],
            &[30, 4, 6, 3, 2, 40],
            &[30, 1, 30, 4, 30, 9, 30],
            &[30, 20, 12, 30],
        ] {
            check_heights(&region, (at, 1), heights);
            checked += 1;
        }
    }
    assert_eq!(checked, 32);
}

#[test]
fn finished_rows_stay_where_a_terminal_takes_no_row_back_or_something_was_written_while_it_was_low() {
    let region = ["r0", "r1", "r2", "r3", "r4", "r5", "status"];
    let (high, low) = (Size { columns: 20, rows: 12 }, Size { columns: 20, rows: 4 });
    for (pulls, news) in [(false, &[][..]), (true, &["four"]), (false, &["four"])] {
        let (mut terminal, mut painter) = (Terminal::new(high), Painter::new(false, high));
        terminal.take(&painter.paint(&frame(&["one", "two"], &region, (5, 0)), high));
        terminal.resize(4, pulls);
        terminal.take(&painter.paint(&frame(&[], &region, (5, 0)), low));
        let before = terminal.scrolled.clone();
        terminal.take(&painter.paint(&frame(news, &region, (5, 0)), low));
        assert!(terminal.scrolled.starts_with(&before));
        terminal.resize(12, pulls);
        terminal.take(&painter.paint(&frame(&[], &region, (5, 0)), high));
        let all = terminal.all();
        assert!(all.ends_with(&region.map(str::to_owned)), "{all:?}");
        let lost: Vec<_> = news.iter().filter(|row| !all.iter().any(|there| there == *row)).collect();
        assert!(lost.is_empty(), "{lost:?} in {all:?}");
    }
}

//! Streamed Markdown as rows of a terminal.
//!
//! Invariants: finished rows never change, whatever text follows, and do not depend on how the text was split
//! into pieces. Each block is rendered once, and a long paragraph or item part by part, so each piece costs
//! the same in a long answer as in a short one, and the start of a block is not delayed until its end. (A
//! table is an exception: its columns depend on all rows.)

use greenroom_terminal::row::{Look, Row};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use self::rows::{CODE_LEAD, options, parts};
use super::highlight::Highlighter;

pub(crate) use self::rows::blocks;

mod rows;

#[cfg(test)]
mod tests;

/// A longer unfinished block, in bytes, is not parsed again with every piece.
const TAIL_BYTES_MAX: usize = 16_000;
/// A part of a paragraph or item is returned at this length, in bytes, if no markup in it is open.
const PART_BYTES: usize = 500;
/// A part of a paragraph is returned at this length in any case: apparently open markup is a lone mark.
const PART_BYTES_MAX: usize = 3_000;

/// The block that contains the current line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Within {
    /// None: the line starts a new block.
    #[default]
    Nothing,
    /// A paragraph, which ends with an empty line.
    Paragraph,
    /// A list item, which ends with the next item or with text that is not indented.
    Item { fence: Option<Fence>, was_empty: bool },
    /// A code block, in which each line is finished by itself.
    Code(Fence),
    /// A table or a quote: lines that all start with the same character.
    Lines(char),
}

/// The marker that ends a code block.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fence {
    mark: char,
    length: usize,
    indent: usize,
}

/// An answer that is parsed piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Markdown {
    width: usize,
    /// The complete lines of the unfinished block.
    block: String,
    /// The unfinished line.
    line: String,
    within: Within,
    highlighter: Option<Highlighter>,
    /// The part of a list item that was returned, in bytes of the block, and the number of its rows at this
    /// width.
    given: usize,
    given_rows: usize,
    /// The last, incomplete row of a paragraph whose other rows were returned.
    carry: Option<Row>,
    /// Up to here, in bytes, the paragraph has no place to split it.
    looked: usize,
    /// Whether rows were returned already: an empty row separates blocks.
    has_begun: bool,
    was_item: bool,
}

impl Markdown {
    /// Creates a parser for rows of at most `width` columns.
    pub(crate) fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    /// Changes the width of the following rows.
    pub(crate) fn set_width(&mut self, width: usize) {
        if width != self.width && self.given > 0 {
            self.given_rows = blocks(&self.block[..self.given], width).len();
        }
        self.width = width;
    }

    /// Adds text, and returns the rows that it finishes.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Row> {
        let mut out = Vec::new();
        for part in piece.split_inclusive('\n') {
            let text = part.trim_end_matches('\n');
            self.line.push_str(text);
            self.part_paragraph(&mut out);
            if text.len() < part.len() {
                let line = std::mem::take(&mut self.line);
                self.take_line(line.trim_end_matches('\r'), &mut out);
            }
        }
        out
    }

    /// Ends the text, and returns the remaining rows.
    pub(crate) fn finish(&mut self) -> Vec<Row> {
        let mut out = Vec::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut out);
        }
        self.end_block(&mut out);
        *self = Self::new(self.width);
        out
    }

    /// Returns the rows of the unfinished text as it is now.
    pub(crate) fn tail(&self) -> Vec<Row> {
        let mut out = Vec::new();
        if let Within::Code(_) = self.within {
            if !self.line.is_empty() {
                let row = Row::plain(self.line.trim_end_matches('\r'));
                out.extend(row.wrap_exactly(self.width, &Row::plain(CODE_LEAD)));
            }
            return out;
        }
        let text = format!("{}{}", self.block, self.line);
        if text.len() > TAIL_BYTES_MAX {
            // Only its end is visible; its markup is shown when it is finished.
            let mut start = text.len() - TAIL_BYTES_MAX / 2;
            while !text.is_char_boundary(start) {
                start += 1;
            }
            let rest = Row::plain(text.get(start..).unwrap_or_default());
            return rest.wrap(self.width, &Row::default(), &Row::default());
        }
        if !text.trim().is_empty() || self.carry.is_some() {
            let is_begun = self.given > 0 || self.carry.is_some();
            if !is_begun && self.is_apart(&text) {
                out.push(Row::default());
            }
            out.extend(self.rows(&text));
        }
        out
    }

    /// Returns the rows of the block that were not returned before.
    fn rows(&self, text: &str) -> Vec<Row> {
        if let Some(carry) = &self.carry {
            return parts(text, self.width, carry.clone(), false).0;
        }
        let mut rows = blocks(text, self.width);
        rows.drain(..self.given_rows.min(rows.len()));
        rows
    }

    /// Returns the full rows of a long paragraph, up to the last place after which no text can change them.
    fn part_paragraph(&mut self, out: &mut Vec<Row>) {
        if !matches!(self.within, Within::Nothing | Within::Paragraph) {
            return;
        }
        let begun = self.block.len();
        if begun + self.line.len() < PART_BYTES
            || (begun == 0 && self.carry.is_none() && !is_prose(&self.line))
        {
            return;
        }
        let mut text = format!("{}{}", self.block, self.line);
        while let Some((end, next)) = next_part(&text, &mut self.looked) {
            let is_first = self.carry.is_none();
            if is_first {
                self.part(false, out);
            }
            let carry = self.carry.take().unwrap_or_default();
            let (rows, mut rest) = parts(&text[..end], self.width, carry, true);
            out.extend(rows);
            if end < next {
                rest.push(" ", Look::PLAIN);
            }
            self.carry = Some(rest);
            text.drain(..next);
            self.looked = 0;
            // The remaining text is part of the unfinished line: earlier lines were searched when they
            // arrived.
            self.block.clear();
            self.line.clone_from(&text);
            self.within = Within::Paragraph;
        }
    }

    /// Returns the finished rows of a long item.
    fn part_item(&mut self, out: &mut Vec<Row>) {
        if self.block.len() < self.given + PART_BYTES {
            return;
        }
        if self.given == 0 {
            self.part(true, out);
        }
        let rows = self.rows(&self.block);
        self.given = self.block.len();
        self.given_rows += rows.len();
        out.extend(rows);
    }

    fn take_line(&mut self, line: &str, out: &mut Vec<Row>) {
        let is_empty = line.trim().is_empty();
        match &mut self.within {
            Within::Code(fence) => {
                if fence.is_closed_by(line) {
                    self.within = Within::Nothing;
                    self.highlighter = None;
                } else {
                    let line = without_indent(line, fence.indent);
                    let row = match &mut self.highlighter {
                        Some(highlighter) => highlighter.line(line),
                        None => Row::plain(line),
                    };
                    out.extend(row.wrap_exactly(self.width, &Row::plain(CODE_LEAD)));
                }
                return;
            }
            Within::Item { fence: Some(fence), was_empty } => {
                let closed = fence.is_closed_by(line);
                *was_empty = false;
                // Each line of code is finished.
                self.part_item(out);
                if closed {
                    self.within = Within::Item { fence: None, was_empty: false };
                }
                self.add(line);
                return;
            }
            Within::Item { fence: None, was_empty } => {
                let indent = indent_of(line);
                if is_empty {
                    *was_empty = true;
                    self.add(line);
                    return;
                }
                let goes_on = indent >= 2 || (!*was_empty && !begins_block(line));
                if goes_on {
                    // The text before a nested item or an empty line is finished.
                    if *was_empty || is_item(line.trim_start()) {
                        self.part_item(out);
                    }
                    let fence = Fence::opened_by(line.trim_start(), indent);
                    self.within = Within::Item { fence, was_empty: false };
                    self.add(line);
                    return;
                }
            }
            Within::Paragraph => {
                if is_underline(line) && !self.block.trim().is_empty() {
                    self.add(line);
                    self.end_block(out);
                    return;
                }
                if !is_empty && !begins_block(line) {
                    self.add(line);
                    return;
                }
            }
            Within::Lines(first) => {
                if line.trim_start().starts_with(*first) {
                    self.add(line);
                    return;
                }
            }
            Within::Nothing => {}
        }
        self.end_block(out);
        self.begin_block(line, out);
    }

    fn begin_block(&mut self, line: &str, out: &mut Vec<Row>) {
        let trimmed = line.trim_start();
        let indent = indent_of(line);
        if trimmed.is_empty() {
            return;
        }
        if let Some(fence) = Fence::opened_by(trimmed, indent) {
            let language = trimmed.trim_start_matches(fence.mark).trim();
            self.part(false, out);
            self.highlighter = Highlighter::of(language.split_whitespace().next().unwrap_or_default());
            self.within = Within::Code(fence);
            return;
        }
        self.add(line);
        if is_heading(trimmed) || is_rule(trimmed) {
            self.within = Within::Paragraph;
            self.end_block(out);
        } else if is_item(trimmed) {
            self.within = Within::Item { fence: None, was_empty: false };
        } else if let Some(first) = trimmed.chars().next().filter(|first| matches!(first, '|' | '>')) {
            self.within = Within::Lines(first);
        } else {
            self.within = Within::Paragraph;
        }
    }

    fn add(&mut self, line: &str) {
        self.block.push_str(line);
        self.block.push('\n');
    }

    fn end_block(&mut self, out: &mut Vec<Row>) {
        let block = std::mem::take(&mut self.block);
        self.within = Within::Nothing;
        self.highlighter = None;
        self.looked = 0;
        if block.trim().is_empty() && self.carry.is_none() {
            return;
        }
        if self.given == 0 && self.carry.is_none() {
            let is_item = is_item(block.trim_start());
            self.part(is_item, out);
        }
        out.extend(self.rows(&block));
        (self.given, self.given_rows, self.carry) = (0, 0, None);
    }

    /// Starts a block. An empty row separates blocks, but not the items of a list.
    fn part(&mut self, is_item: bool, out: &mut Vec<Row>) {
        if self.has_begun && !(is_item && self.was_item) {
            out.push(Row::default());
        }
        self.has_begun = true;
        self.was_item = is_item;
    }

    fn is_apart(&self, text: &str) -> bool {
        self.has_begun && !(self.was_item && is_item(text.trim_start()))
    }
}

impl Fence {
    fn opened_by(trimmed: &str, indent: usize) -> Option<Self> {
        let mark = trimmed.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let length = trimmed.chars().take_while(|c| *c == mark).count();
        let info = trimmed.get(length..).unwrap_or_default();
        (length >= 3 && !(mark == '`' && info.contains('`'))).then_some(Self { mark, length, indent })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let trimmed = line.trim();
        trimmed.chars().all(|c| c == self.mark) && trimmed.chars().count() >= self.length
    }
}

fn indent_of(line: &str) -> usize {
    line.chars().take_while(|c| c.is_whitespace()).map(|c| if c == '\t' { 4 } else { 1 }).sum()
}

fn without_indent(line: &str, indent: usize) -> &str {
    let blank = line.chars().take_while(|c| *c == ' ').count().min(indent);
    line.get(blank..).unwrap_or(line)
}

fn is_heading(trimmed: &str) -> bool {
    let marks = trimmed.chars().take_while(|c| *c == '#').count();
    (1..=6).contains(&marks) && trimmed.chars().nth(marks).is_none_or(char::is_whitespace)
}

fn is_rule(trimmed: &str) -> bool {
    let marks: String = trimmed.chars().filter(|c| !c.is_whitespace()).collect();
    marks.len() >= 3 && ["-", "*", "_"].iter().any(|mark| marks.replace(mark, "").is_empty())
}

/// Whether this is the underline of a heading.
fn is_underline(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && (line.chars().all(|c| c == '=') || line.chars().all(|c| c == '-'))
}

fn is_item(trimmed: &str) -> bool {
    if is_rule(trimmed.lines().next().unwrap_or_default()) {
        return false;
    }
    let digits = trimmed.chars().take_while(char::is_ascii_digit).count();
    let rest = match digits {
        0 => trimmed.strip_prefix(['-', '*', '+']),
        1..=9 => trimmed.get(digits..).and_then(|rest| rest.strip_prefix(['.', ')'])),
        _ => None,
    };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n']))
}

/// Whether a line starts a block without an empty line before it.
fn begins_block(line: &str) -> bool {
    let trimmed = line.trim_start();
    is_heading(trimmed)
        || is_rule(trimmed)
        || is_item(trimmed)
        || Fence::opened_by(trimmed, 0).is_some()
        || trimmed.starts_with(['|', '>'])
}

/// Whether a line starts a paragraph, whatever follows it.
fn is_prose(line: &str) -> bool {
    indent_of(line) < 4 && !begins_block(line) && !line.trim_start().starts_with('<')
}

/// Returns where a long paragraph can be split: the end of the part, and the start of the next one. The
/// search starts at `looked` and advances it.
fn next_part(text: &str, looked: &mut usize) -> Option<(usize, usize)> {
    let start = text.ceil_char_boundary((*looked).max(PART_BYTES).min(text.len()));
    let mut before = text[..start].chars().next_back()?;
    let mut rest = text[start..].char_indices().peekable();
    while let Some((place, c)) = rest.next() {
        let Some((_, after)) = rest.peek() else { break };
        let place = start + place;
        *looked = place + c.len_utf8();
        // Before a letter, no mark of a list or heading can be at the start of the next part.
        let is_gap = matches!(c, ' ' | '\n') && !before.is_whitespace() && before != '\\';
        let is_end = matches!(c, '。' | '，' | '、' | '！' | '？' | '；');
        before = c;
        if !(is_gap || is_end) || !after.is_alphabetic() {
            continue;
        }
        let end = if is_gap { place } else { *looked };
        if end >= PART_BYTES_MAX || is_closed(&text[..end]) {
            return Some((end, *looked));
        }
    }
    None
}

/// Whether the markup in the start of a paragraph is closed: no later text can turn it into emphasis, code or
/// a link.
fn is_closed(text: &str) -> bool {
    let mut plain = String::new();
    let mut is_link = false;
    for event in Parser::new_ext(text, options()) {
        match event {
            Event::Text(text) if !is_link => plain.push_str(&text),
            Event::Start(Tag::Link { .. } | Tag::Image { .. }) => is_link = true,
            Event::End(TagEnd::Link | TagEnd::Image) => is_link = false,
            Event::SoftBreak | Event::HardBreak | Event::Code(_) => plain.push(' '),
            Event::Start(_)
            | Event::End(_)
            | Event::Text(_)
            | Event::Html(_)
            | Event::InlineHtml(_)
            | Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::FootnoteReference(_)
            | Event::Rule
            | Event::TaskListMarker(_) => {}
        }
    }
    let mut before = ' ';
    let mut chars = plain.chars().peekable();
    while let Some(c) = chars.next() {
        let after = chars.peek().copied().unwrap_or(' ');
        let is_open = match c {
            '`' => true,
            '*' | '~' => !after.is_whitespace(),
            '_' => !after.is_whitespace() && !before.is_alphanumeric(),
            '<' => after.is_alphabetic() || after == '/',
            _ => false,
        };
        if is_open {
            return false;
        }
        before = c;
    }
    plain.rfind('[') <= plain.rfind(']')
}

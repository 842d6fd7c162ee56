//! Renders complete Markdown as rows: a block, or a part of a paragraph.
//!
//! Invariants: the text before a row, such as a list's mark, counts towards its width.

use greenroom_terminal::row::{Color, Look, Row};
use pulldown_cmark::{Alignment, CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::highlight::Highlighter;

/// The text before each line of code.
pub(super) const CODE_LEAD: &str = "  ";

/// The supported extensions of Markdown.
pub(super) fn options() -> Options {
    Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TABLES | Options::ENABLE_TASKLISTS
}

/// Renders a part of a paragraph after the last row of the previous part. Returns the full rows, and the
/// incomplete last row if the paragraph continues.
pub(super) fn parts(text: &str, width: usize, carry: Row, goes_on: bool) -> (Vec<Row>, Row) {
    let mut writer = Writer { width, row: carry, is_part: true, goes_on, ..Writer::default() };
    for event in Parser::new_ext(text, options()) {
        writer.event(event);
    }
    if !goes_on {
        writer.flush();
    }
    (writer.out, writer.row)
}

/// Renders complete Markdown.
pub(crate) fn blocks(text: &str, width: usize) -> Vec<Row> {
    let mut writer = Writer { width, ..Writer::default() };
    for event in Parser::new_ext(text, options()) {
        writer.event(event);
    }
    writer.flush();
    writer.out
}

/// Converts the parser's events into rows.
#[derive(Debug, Default)]
struct Writer {
    width: usize,
    out: Vec<Row>,
    row: Row,
    /// Whether this is a part of a paragraph, which starts with the text of `row`, and whether the paragraph
    /// continues after it.
    is_part: bool,
    goes_on: bool,
    looks: Vec<Look>,
    /// The text before the first row of each nested block, and before its other rows.
    leads: Vec<(Row, Row)>,
    is_first: bool,
    lists: Vec<Option<u64>>,
    links: Vec<String>,
    table: Vec<Vec<Row>>,
    alignments: Vec<Alignment>,
    is_in_table: bool,
    code: Option<(Option<Highlighter>, String)>,
}

impl Writer {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.text(&text, Look::PLAIN),
            },
            Event::Code(code) => self.text(&code, Look::of(Color::Cyan)),
            Event::Html(text) | Event::InlineHtml(text) => {
                for (index, line) in text.split('\n').enumerate() {
                    if index > 0 {
                        self.flush();
                    }
                    self.text(line, Look::PLAIN);
                }
            }
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                self.text(&text, Look::PLAIN);
            }
            Event::SoftBreak => self.text(" ", Look::PLAIN),
            Event::HardBreak => self.flush(),
            Event::Rule => {
                self.flush();
                self.out.push(Row::new(&"─".repeat(self.width.min(40)), Look::DIM));
            }
            Event::TaskListMarker(is_done) => self.text(if is_done { "☑ " } else { "☐ " }, Look::PLAIN),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.flush();
                let underline = level == HeadingLevel::H1;
                self.looks.push(Look { underline, bold: true, ..Look::of(Color::Cyan) });
            }
            Tag::BlockQuote(_) => {
                self.flush();
                let bar = Row::new("│ ", Look::DIM);
                self.leads.push((bar.clone(), bar));
                self.looks.push(Look { italic: true, ..Look::PLAIN });
            }
            Tag::CodeBlock(kind) => {
                self.flush();
                let language = match &kind {
                    CodeBlockKind::Fenced(info) => info.split_whitespace().next().unwrap_or_default(),
                    CodeBlockKind::Indented => "",
                };
                self.code = Some((Highlighter::of(language), String::new()));
            }
            Tag::List(start) => {
                self.flush();
                self.lists.push(start);
            }
            Tag::Item => {
                self.flush();
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        let mark = format!("{number}. ");
                        *number += 1;
                        mark
                    }
                    Some(None) | None => "• ".to_owned(),
                };
                let blank = " ".repeat(Row::plain(&mark).width());
                self.leads.push((Row::new(&mark, Look::of(Color::Cyan)), Row::plain(&blank)));
                self.is_first = true;
            }
            Tag::Emphasis => self.looks.push(Look { italic: true, ..Look::PLAIN }),
            Tag::Strong => self.looks.push(Look::BOLD),
            Tag::Strikethrough => self.looks.push(Look { strike: true, ..Look::PLAIN }),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push(dest_url.to_string());
                self.looks.push(Look { underline: true, ..Look::PLAIN });
            }
            Tag::Table(alignments) => {
                self.flush();
                self.alignments = alignments;
                self.is_in_table = true;
            }
            Tag::TableHead | Tag::TableRow => self.table.push(Vec::new()),
            Tag::Paragraph => {
                if !self.row.is_empty() && !std::mem::take(&mut self.is_part) {
                    self.flush();
                }
            }
            Tag::TableCell
            | Tag::HtmlBlock
            | Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Superscript
            | Tag::Subscript
            | Tag::MetadataBlock(_) => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.flush();
                self.looks.pop();
            }
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.leads.pop();
                self.looks.pop();
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.flush();
                self.lists.pop();
            }
            TagEnd::Item => {
                self.flush();
                self.leads.pop();
                self.is_first = false;
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.looks.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.looks.pop();
                let url = self.links.pop().unwrap_or_default();
                if !url.is_empty() && !self.row.text().ends_with(&url) {
                    self.text(&format!(" ({url})"), Look::DIM);
                }
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.row);
                if let Some(cells) = self.table.last_mut() {
                    cells.push(cell);
                }
            }
            TagEnd::Table => self.end_table(),
            TagEnd::Paragraph if self.goes_on => {
                let mut rows =
                    std::mem::take(&mut self.row).wrap(self.width, &Row::default(), &Row::default());
                self.row = rows.pop().unwrap_or_default();
                self.out.extend(rows);
            }
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.flush(),
            TagEnd::TableHead
            | TagEnd::TableRow
            | TagEnd::FootnoteDefinition
            | TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::MetadataBlock(_) => {}
        }
    }

    fn text(&mut self, text: &str, look: Look) {
        let look = self.looks.iter().fold(look, |look, outer| Look {
            color: look.color.or(outer.color),
            bold: look.bold || outer.bold,
            dim: look.dim || outer.dim,
            italic: look.italic || outer.italic,
            underline: look.underline || outer.underline,
            strike: look.strike || outer.strike,
            reverse: look.reverse || outer.reverse,
        });
        self.row.push(text, look);
    }

    /// Returns the text before the next rows: the first, and the others.
    fn lead(&self) -> (Row, Row) {
        let (mut first, mut next) = (Row::default(), Row::default());
        for (index, (of_first, of_next)) in self.leads.iter().enumerate() {
            let is_mark = self.is_first && index + 1 == self.leads.len();
            first = first.then(if is_mark { of_first } else { of_next }.clone());
            next = next.then(of_next.clone());
        }
        (first, next)
    }

    fn flush(&mut self) {
        if self.is_in_table || self.row.is_empty() {
            return;
        }
        let (first, next) = self.lead();
        self.out.extend(std::mem::take(&mut self.row).wrap(self.width, &first, &next));
        self.is_first = false;
    }

    fn end_code(&mut self) {
        let Some((mut highlighter, code)) = self.code.take() else { return };
        let (first, next) = self.lead();
        for (index, line) in code.lines().enumerate() {
            let row = match &mut highlighter {
                Some(highlighter) => highlighter.line(line),
                None => Row::plain(line),
            };
            let lead = if index == 0 { &first } else { &next };
            self.out.extend(row.wrap_exactly(self.width, &lead.clone().then(Row::plain(CODE_LEAD))));
        }
        self.is_first = false;
    }

    /// Renders a table as columns if they fit, or else as a line for each cell.
    fn end_table(&mut self) {
        self.is_in_table = false;
        let table = std::mem::take(&mut self.table);
        let columns = table.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| table.iter().filter_map(|row| row.get(column)).map(Row::width).max().unwrap_or(0))
            .collect();
        let (first, next) = self.lead();
        let total = widths.iter().sum::<usize>() + 3 * columns.saturating_sub(1) + next.width();
        let bar = || Row::new(" │ ", Look::DIM);
        if total <= self.width {
            for (number, cells) in table.iter().enumerate() {
                let mut row = if number == 0 { first.clone() } else { next.clone() };
                for (column, width) in widths.iter().enumerate() {
                    let cell = cells.get(column).cloned().unwrap_or_default();
                    let blank = width.saturating_sub(cell.width());
                    let before = match self.alignments.get(column) {
                        Some(Alignment::Right) => blank,
                        Some(Alignment::Center) => blank / 2,
                        Some(Alignment::Left | Alignment::None) | None => 0,
                    };
                    row = row.and(&" ".repeat(before), Look::PLAIN).then(cell);
                    if column + 1 < columns {
                        row = row.and(&" ".repeat(blank - before), Look::PLAIN).then(bar());
                    }
                }
                self.out.push(row);
                if number == 0 {
                    let lines: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                    self.out.push(next.clone().and(&lines.join("─┼─"), Look::DIM));
                }
            }
            return;
        }
        let head = table.first().cloned().unwrap_or_default();
        for cells in table.iter().skip(1) {
            for (cell, name) in cells.iter().zip(&head) {
                let row = Row::new(&format!("{}: ", name.text()), Look::BOLD).then(cell.clone());
                self.out.extend(row.wrap(self.width, &next, &next.clone().and("  ", Look::PLAIN)));
            }
            self.out.push(next.clone().and("─", Look::DIM));
        }
    }
}

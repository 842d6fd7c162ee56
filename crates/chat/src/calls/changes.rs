//! The changed lines of a file, with their numbers and some lines around them.
//!
//! Invariants: a removed line has its number in the old file, every other line its number in the new one; a line
//! whose number is unknown has none.

use greenroom_terminal::row::{Look, Row};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

/// How many lines of context surround a change.
const AROUND: usize = 2;

/// Changed lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Changes {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    /// Unchanged lines are left out here.
    Gap,
    Of {
        tag: ChangeTag,
        number: Option<usize>,
        text: String,
    },
}

impl Changes {
    /// Reads the lines that a tool reports: each group of them after a line `@@ OLD NEW` with the numbers of its
    /// first line.
    pub(super) fn told(told: &[String]) -> Self {
        let mut lines = Vec::new();
        let (mut old, mut new) = (None, None);
        for line in told {
            if let Some((first_old, first_new)) = line.strip_prefix("@@ ").and_then(|at| at.split_once(' ')) {
                (old, new) = (first_old.parse().ok(), first_new.parse().ok());
                if !lines.is_empty() {
                    lines.push(Line::Gap);
                }
                continue;
            }
            let (mark, text) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
            let tag = match mark {
                "-" => ChangeTag::Delete,
                "+" => ChangeTag::Insert,
                _ => ChangeTag::Equal,
            };
            lines.push(count(tag, text, &mut old, &mut new));
        }
        Self { lines }
    }

    /// Reads the changes from the arguments of a call. `first` is the number of the first line in the file, if it
    /// is known.
    pub(super) fn of_arguments(name: &str, arguments: &str, first: Option<usize>) -> Self {
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else { return Self::default() };
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let (old, new, first) = match name {
            "edit" => (text("old"), text("new"), first),
            "write" => (Some(""), text("content"), Some(1)),
            _ => return Self::default(),
        };
        let (Some(old), Some(new)) = (old, new) else { return Self::default() };
        let diff = TextDiff::from_lines(old, new);
        let mut lines = Vec::new();
        for group in diff.grouped_ops(AROUND) {
            if !lines.is_empty() {
                lines.push(Line::Gap);
            }
            let at = |place: usize| first.map(|first| first + place);
            let starts = group.first().map(|first| (first.old_range().start, first.new_range().start));
            let (mut old, mut new) = starts.map_or((None, None), |(old, new)| (at(old), at(new)));
            for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
                let text = change.value().trim_end_matches('\n');
                lines.push(count(change.tag(), text, &mut old, &mut new));
            }
        }
        Self { lines }
    }

    /// Returns how many lines came and went: `+2 −1`; `None` if nothing changed.
    pub(super) fn sum(&self) -> Option<String> {
        let of = |wanted: ChangeTag| {
            let is_it = |line: &&Line| matches!(line, Line::Of { tag, .. } if *tag == wanted);
            self.lines.iter().filter(is_it).count()
        };
        match (of(ChangeTag::Insert), of(ChangeTag::Delete)) {
            (0, 0) => None,
            (came, 0) => Some(format!("+{came}")),
            (0, went) => Some(format!("−{went}")),
            (came, went) => Some(format!("+{came} −{went}")),
        }
    }

    /// Returns a row for each line, of any width.
    pub(super) fn rows(&self) -> Vec<Row> {
        let largest = self.lines.iter().filter_map(|line| match line {
            Line::Of { number, .. } => *number,
            Line::Gap => None,
        });
        let digits = largest.max().map_or(0, |number| number.to_string().len());
        let row = |line: &Line| match line {
            Line::Gap => Row::new(&format!("      {:>digits$} ⋮", ""), Look::DIM),
            Line::Of { tag, number, text } => {
                let (mark, look) = match tag {
                    ChangeTag::Delete => ("-", Look::BAD),
                    ChangeTag::Insert => ("+", Look::GOOD),
                    ChangeTag::Equal => (" ", Look::DIM),
                };
                let lead = match (number, digits) {
                    (_, 0) => "      ".to_owned(),
                    (Some(number), _) => format!("      {number:>digits$} "),
                    (None, _) => format!("      {:>digits$} ", ""),
                };
                Row::new(&lead, Look::DIM).and(&format!("{mark} {text}"), look)
            }
        };
        self.lines.iter().map(row).collect()
    }
}

/// Makes a line, and moves the numbers on.
fn count(tag: ChangeTag, text: &str, old: &mut Option<usize>, new: &mut Option<usize>) -> Line {
    let next = |number: &mut Option<usize>| {
        let now = *number;
        *number = number.map(|number| number + 1);
        now
    };
    let number = match tag {
        ChangeTag::Delete => next(old),
        ChangeTag::Insert => next(new),
        ChangeTag::Equal => {
            next(old);
            next(new)
        }
    };
    Line::Of { tag, number, text: text.to_owned() }
}

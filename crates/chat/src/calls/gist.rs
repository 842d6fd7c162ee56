//! The summary of a result in the row of a finished call, and the lines of the result that are shown below it.
//!
//! Invariants: nothing is invented: a result of an unknown form is counted in lines; at most [`PREVIEW_MAX`] lines
//! are shown.

use std::collections::BTreeSet;

use greenroom_kernel::ToolStatus;
use greenroom_terminal::format;
use greenroom_tools::lines_left_out;

/// How many lines of a result are shown at most.
pub(super) const PREVIEW_MAX: usize = 4;

/// Which lines of a result are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preview {
    /// None.
    None,
    /// The first ones.
    First,
    /// The last ones: the end of a command's output tells most.
    Last,
}

/// What a result says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gist {
    /// The most important fact, in a few words; empty if there is none.
    pub(super) text: String,
    pub(super) preview: Preview,
    /// The lines that the preview is taken from.
    pub(super) lines: Vec<String>,
}

impl Gist {
    fn new(text: impl Into<String>, preview: Preview, lines: Vec<String>) -> Self {
        Self { text: text.into(), preview, lines }
    }

    /// Reads the result of a call.
    pub(super) fn of(name: &str, status: ToolStatus, text: &str) -> Self {
        let all: Vec<String> = text.lines().map(str::to_owned).collect();
        if let Some(why) = not_run(text).filter(|_| status == ToolStatus::Error) {
            let by_user = why.strip_prefix("the user").and_then(|rest| rest.split_once("refused it"));
            return match by_user {
                // The user knows who it was, and why.
                Some((_, rest)) => {
                    let words = rest.strip_prefix(" and says: ").map(|words| format!(": {words}"));
                    Self::new(
                        format!("denied{}", words.unwrap_or_default()),
                        Preview::None,
                        vec![why.clone()],
                    )
                }
                None => Self::new("not run", Preview::First, vec![why]),
            };
        }
        match (name, status) {
            ("bash", _) => of_command(status, all),
            (_, ToolStatus::Error | ToolStatus::Interrupted) => {
                let mut lines = all.into_iter().filter(|line| !line.trim().is_empty());
                let reason = lines.next().map(|line| line.trim().to_owned());
                let what = if status == ToolStatus::Error { "failed" } else { "interrupted" };
                Self::new(what, Preview::First, reason.into_iter().collect())
            }
            ("read", ToolStatus::Ok) => Self::new(of_file(text), Preview::None, all),
            ("grep", ToolStatus::Ok) => Self::new(of_search(&all), Preview::First, matches(all)),
            ("list", ToolStatus::Ok) => {
                let entries = all.iter().filter(|line| !is_remark(line)).count() as u64;
                let is_empty = text.starts_with('`') && text.contains(" is empty");
                let more = if entries < all.len() as u64 { "at least " } else { "" };
                let count = if is_empty {
                    "empty".to_owned()
                } else {
                    more.to_owned() + &format::count(entries, "entry")
                };
                Self::new(count, Preview::None, all)
            }
            // Their changes say it.
            ("edit" | "write", ToolStatus::Ok) => Self::new("", Preview::None, all),
            // The question and its answer have rows of their own.
            ("ask_user", ToolStatus::Ok) => Self::new("", Preview::None, all),
            (_, ToolStatus::Ok) => {
                let count = whole(&all);
                let text = if count > 1 { format::count(count, "line") } else { String::new() };
                Self::new(text, Preview::First, all)
            }
        }
    }

    /// Returns the lines to show, and how many there are before or after them.
    pub(super) fn shown(&self) -> (&[String], u64) {
        let count = self.lines.len();
        // A line that says "1 more line" would take the place of that line.
        let shown = if count <= PREVIEW_MAX { count } else { PREVIEW_MAX - 1 };
        let lines = match self.preview {
            Preview::None => return (&[], 0),
            Preview::First => self.lines.get(..shown),
            Preview::Last => self.lines.get(count - shown..),
        };
        (lines.unwrap_or_default(), whole(&self.lines) - shown as u64)
    }
}

/// Returns how many lines there were before a long result was cut.
fn whole(lines: &[String]) -> u64 {
    lines.iter().map(|line| lines_left_out(line).unwrap_or(1)).sum()
}

/// Returns why a call was not run, as the kernel writes it.
fn not_run(text: &str) -> Option<String> {
    let why = text.strip_prefix("Error: ").unwrap_or(text).strip_prefix("The call was not run: ")?;
    Some(why.lines().next().unwrap_or_default().trim_end_matches('.').to_owned())
}

/// A line in which a tool says something of its result.
fn is_remark(line: &str) -> bool {
    line.starts_with('[') && line.trim_end().ends_with(']')
}

fn of_command(status: ToolStatus, mut lines: Vec<String>) -> Gist {
    let failure = match (status, lines.last()) {
        (ToolStatus::Error | ToolStatus::Interrupted, Some(last)) if is_remark(last) => lines.pop(),
        (ToolStatus::Ok | ToolStatus::Error | ToolStatus::Interrupted, _) => None,
    };
    if lines.iter().all(|line| line == "(no output)") {
        lines.clear();
    }
    let what = match (status, failure) {
        (_, Some(failure)) => failure.trim().trim_matches(['[', ']']).to_owned(),
        (ToolStatus::Error, None) => "failed".to_owned(),
        (ToolStatus::Interrupted, None) => "interrupted".to_owned(),
        (ToolStatus::Ok, None) if lines.is_empty() => "no output".to_owned(),
        (ToolStatus::Ok, None) if lines.len() > PREVIEW_MAX => format::count(whole(&lines), "line"),
        (ToolStatus::Ok, None) => String::new(),
    };
    Gist::new(what, Preview::Last, lines)
}

fn of_file(text: &str) -> String {
    let part = text.lines().rev().find_map(|line| line.strip_prefix("[lines ")?.split_once(';'));
    if let Some((part, _)) = part {
        return format!("lines {}", part.replacen(" to ", "–", 1));
    }
    let is_numbered =
        |line: &&str| line.split_once('\t').is_some_and(|(number, _)| number.trim().parse::<u64>().is_ok());
    match text.lines().filter(is_numbered).count() as u64 {
        0 if text.contains(" is empty") => "empty".to_owned(),
        0 => match text.strip_prefix('`').and_then(|text| text.split_once("`: ")) {
            Some((_, what)) => what.lines().next().unwrap_or_default().to_owned(),
            None => String::new(),
        },
        lines => format::count(lines, "line"),
    }
}

/// Returns the path of a line that matches, which is `PATH:NUMBER: TEXT`.
fn matching(line: &str) -> Option<&str> {
    line.match_indices(':').find_map(|(place, _)| {
        let (number, _) =
            line.get(place + 1..)?.split_once(": ").or_else(|| line.get(place + 1..)?.split_once(':'))?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| line.get(..place)).flatten()
    })
}

fn matches(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| matching(line).is_some()).collect()
}

fn of_search(lines: &[String]) -> String {
    let paths: Vec<&str> = lines.iter().filter_map(|line| matching(line)).collect();
    let files: BTreeSet<&str> = paths.iter().copied().collect();
    let more = if lines.iter().any(|line| line.starts_with("[... more")) { "at least " } else { "" };
    let of = |count: usize| format::count(count as u64, "file");
    match (paths.len(), files.len()) {
        (0, _) => "no match".to_owned(),
        (1, _) => format!("{more}1 match"),
        (count, files) => {
            let count = greenroom_terminal::text::thousands(count as u64);
            format!("{more}{count} matches in {}", of(files))
        }
    }
}

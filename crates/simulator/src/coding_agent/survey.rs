//! What the coding agent knows: gathered anew from the messages of every request.
//!
//! Invariants: a file counts as read if a call for it was answered in the messages, or if the summary of what
//! was before them names it among the files read or modified.

use std::collections::{BTreeSet, HashMap, HashSet};

use greenroom_kernel::{Block, Message, ToolCall, ToolResult, ToolStatus};
use serde_json::Value;

use super::{GREP_TOOLS, LIST_TOOLS, PATH_ARGUMENTS, PATTERN_ARGUMENTS, READ_TOOLS, listing};
use crate::seen::SeenRequest;
use crate::summariser;

/// How many of the newest messages are looked through for names; older ones would only cost time.
const NAMES_FROM_MESSAGES: usize = 24;
/// How many parts of one large file are read.
const PARTS_MAX: u64 = 3;

/// What the agent knows about the folder.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Steps with tool calls in this run.
    pub(super) steps: u64,
    /// Folders that were listed; `.` is the root.
    pub(super) listed: BTreeSet<String>,
    /// Everything that was shown.
    known: HashSet<String>,
    /// Files and folders that were shown, in order.
    files: Vec<String>,
    folders: Vec<String>,
    /// Files that were read, at any time.
    pub(super) read: BTreeSet<String>,
    /// Files that were read in this run, as far as it is still in the messages, in order.
    pub(super) read_this_run: Vec<String>,
    /// How many parts of a file were read.
    parts: HashMap<String, u64>,
    /// Large files, and the line to read on at.
    pub(super) unfinished: Vec<(String, u64)>,
    /// The patterns that were searched for.
    pub(super) searched: BTreeSet<String>,
    /// Names seen in files, in order.
    identifiers: Vec<String>,
    /// What the results since the last answer showed.
    pub(super) news: Vec<Finding>,
    /// The root was listed and nothing is in it.
    pub(super) is_empty_folder: bool,
}

/// What one tool result showed.
#[derive(Debug)]
pub(super) enum Finding {
    Listed { folder: String, files: usize, folders: usize },
    Read { path: String, lines: usize, identifiers: Vec<String> },
    Searched { pattern: String, lines: usize },
    Failed { what: String, why: String },
}

/// The arguments of a tool call, as far as they matter here.
enum Asked {
    List(String),
    Read(String),
    Search(String),
    Other,
}

impl Asked {
    fn of(call: &ToolCall) -> Self {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        let text = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| arguments.get(*name)?.as_str())
                .map(|text| text.trim_start_matches("./").to_owned())
        };
        let name = call.name.as_str();
        if LIST_TOOLS.contains(&name) {
            let folder = text(&PATH_ARGUMENTS).unwrap_or_default();
            let folder = folder.trim_end_matches('/');
            return Self::List(if folder.is_empty() { ".".to_owned() } else { folder.to_owned() });
        }
        let asked = if READ_TOOLS.contains(&name) {
            text(&PATH_ARGUMENTS).map(Self::Read)
        } else if GREP_TOOLS.contains(&name) {
            text(&PATTERN_ARGUMENTS).map(Self::Search)
        } else {
            None
        };
        asked.unwrap_or(Self::Other)
    }
}

impl Survey {
    /// Gathers everything from one request.
    pub(super) fn of(request: &SeenRequest) -> Self {
        let mut survey = Self::default();
        let mut asked: HashMap<&str, Asked> = HashMap::new();
        let names_from = request.messages.len().saturating_sub(NAMES_FROM_MESSAGES);
        for (index, message) in request.messages.iter().enumerate() {
            match &**message {
                Message::User(_) => survey.user(&message.text()),
                Message::Assistant(assistant) => {
                    survey.news.clear();
                    let mut has_calls = false;
                    for call in assistant.tool_calls() {
                        asked.insert(&call.id, Asked::of(call));
                        has_calls = true;
                    }
                    survey.steps += u64::from(has_calls);
                }
                Message::ToolResult(result) => {
                    if let Some(asked) = asked.get(result.call_id.as_str()) {
                        survey.result(asked, result, index >= names_from);
                    }
                }
            }
        }
        survey
    }

    /// A user message: a new request, or the summary of what was before.
    fn user(&mut self, text: &str) {
        let is_summary =
            text.contains("<summary>") || text.contains("<read-files>") || text.contains("<modified-files>");
        self.news.clear();
        if !is_summary {
            self.steps = 0;
            self.read_this_run.clear();
            // There may be something by now.
            if std::mem::take(&mut self.is_empty_folder) {
                self.listed.clear();
            }
            return;
        }
        for tag in ["read-files", "modified-files"] {
            let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
            // Only the last one is the runtime's: a summary's text may contain anything.
            let lines = text.rsplit_once(&open).and_then(|(_, rest)| rest.split_once(&close));
            let paths = lines.map(|(lines, _)| lines).unwrap_or_default().lines().map(str::trim);
            self.read.extend(paths.filter(|path| !path.is_empty()).map(str::to_owned));
        }
        self.steps = summariser::recorded_steps(text).unwrap_or(0);
        for line in text.lines() {
            let item = line.trim().trim_start_matches("- [x] ").trim_start_matches("- ");
            if let Some((tool, rest)) = item.split_once(" `")
                && GREP_TOOLS.contains(&tool)
                && let Some((pattern, _)) = rest.split_once('`')
            {
                self.searched.insert(pattern.to_owned());
            }
        }
    }

    fn result(&mut self, asked: &Asked, result: &ToolResult, is_recent: bool) {
        let text = result.content.iter().find_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            Block::Image(_) => None,
        });
        let text = text.unwrap_or_default();
        let is_error = match result.status {
            ToolStatus::Ok => false,
            ToolStatus::Error | ToolStatus::Interrupted => true,
        };
        let failed = |what: &str| {
            let why = text.lines().next().unwrap_or("it said nothing").trim_end_matches('.').to_owned();
            Finding::Failed { what: what.to_owned(), why }
        };
        let finding = match asked {
            Asked::List(folder) => {
                self.listed.insert(folder.clone());
                let items = if is_error { Vec::new() } else { listing::items(folder, text) };
                if folder == "." {
                    self.is_empty_folder = items.is_empty();
                }
                let count = items.len();
                let mut folders = 0;
                for item in items {
                    folders += usize::from(item.is_folder);
                    if self.known.insert(item.path.clone()) {
                        let list = if item.is_folder { &mut self.folders } else { &mut self.files };
                        list.push(item.path);
                    }
                }
                if is_error {
                    failed(folder)
                } else {
                    Finding::Listed { folder: folder.clone(), files: count - folders, folders }
                }
            }
            Asked::Read(path) => {
                let parts = self.parts.entry(path.clone()).or_default();
                *parts += 1;
                let may_go_on = *parts < PARTS_MAX;
                self.read.insert(path.clone());
                self.unfinished.retain(|(unfinished, _)| unfinished != path);
                if is_error {
                    failed(path)
                } else {
                    if let Some(offset) = listing::next_offset(text).filter(|_| may_go_on) {
                        self.unfinished.push((path.clone(), offset));
                    }
                    if !self.read_this_run.contains(path) {
                        self.read_this_run.push(path.clone());
                    }
                    let identifiers = if is_recent { listing::identifiers(text) } else { Vec::new() };
                    for identifier in &identifiers {
                        if !self.identifiers.contains(identifier) {
                            self.identifiers.push(identifier.clone());
                        }
                    }
                    Finding::Read {
                        path: path.clone(),
                        lines: if is_recent { text.lines().count() } else { 0 },
                        identifiers,
                    }
                }
            }
            Asked::Search(pattern) => {
                self.searched.insert(pattern.clone());
                for path in listing::matched_lines(text) {
                    if self.known.insert(path.to_owned()) {
                        self.files.push(path.to_owned());
                    }
                }
                let lines = listing::matched_lines(text).count();
                if is_error { failed(pattern) } else { Finding::Searched { pattern: pattern.clone(), lines } }
            }
            Asked::Other => return,
        };
        self.news.push(finding);
    }

    /// Files worth reading and not yet read: what explains the folder first, then the others from a place
    /// that `start` chooses.
    pub(super) fn unread_files(&self, start: u64) -> Vec<String> {
        let (mut first, mut others): (Vec<String>, Vec<String>) = self
            .files
            .iter()
            .filter(|path| !self.read.contains(*path) && listing::is_readable(path))
            .filter(|path| path.rsplit_once('/').is_none_or(|(folder, _)| listing::is_worth_listing(folder)))
            .cloned()
            .partition(|path| !path.contains('/') && (path.starts_with("README") || path.ends_with(".toml")));
        if !others.is_empty() {
            let run = start % others.len() as u64;
            others.rotate_left(usize::try_from(run).unwrap_or(0));
        }
        first.append(&mut others);
        first
    }

    /// Folders worth listing whose inside was not yet shown.
    pub(super) fn unlisted_folders(&self) -> Vec<String> {
        let shown_inside: HashSet<&str> = self
            .files
            .iter()
            .chain(&self.folders)
            .filter_map(|path| path.rsplit_once('/').map(|(folder, _)| folder))
            .collect();
        self.folders
            .iter()
            .filter(|folder| !self.listed.contains(*folder) && listing::is_worth_listing(folder))
            .filter(|folder| !shown_inside.contains(folder.as_str()))
            .cloned()
            .collect()
    }

    /// Names seen in files that were not searched for, the newest first.
    pub(super) fn unsearched_identifiers(&self) -> Vec<&str> {
        self.identifiers
            .iter()
            .rev()
            .map(String::as_str)
            .filter(|name| !self.searched.contains(*name))
            .collect()
    }
}

//! A scripted coding agent that looks around in a real folder, for the demo.
//!
//! Invariants: what it knows comes from the request's messages alone, so that it goes on after a compaction,
//! a restart or a change of machine; it names only files that a tool really showed it; it only reads, and
//! every run of it ends, after `steps_per_run` steps or when nothing is left to look at.

use std::fmt::Write as _;

use greenroom_kernel::ToolSpec;
use greenroom_provider::Purpose;
use serde_json::{Map, Value};

use crate::fault::hash;
use crate::model::{Answer, CallInfo, Pace, Script};
use crate::seen::SeenRequest;
use crate::summariser::Summariser;

mod listing;
mod survey;

use survey::{Finding, Survey};

/// What tools for one purpose are called in the wild, ours first.
const LIST_TOOLS: [&str; 6] = ["list", "ls", "list_dir", "list_directory", "list_files", "tree"];
const READ_TOOLS: [&str; 5] = ["read", "read_file", "view", "open_file", "cat"];
const GREP_TOOLS: [&str; 6] = ["grep", "search", "search_files", "grep_search", "rg", "find_in_files"];
/// What their arguments are called.
const PATH_ARGUMENTS: [&str; 7] = ["path", "file_path", "filename", "file", "dir", "directory", "folder"];
const PATTERN_ARGUMENTS: [&str; 5] = ["pattern", "query", "regex", "text", "needle"];
const OFFSET_ARGUMENTS: [&str; 3] = ["offset", "start_line", "first_line"];

/// Searches after which a run with nothing left to read ends.
const LAST_SEARCHES: usize = 3;
/// Files named in a closing text.
const NAMED_FILES_MAX: usize = 12;

/// The agent. It needs tools to list a folder and to read a file; one to search is welcome.
#[derive(Debug, Clone, Copy)]
pub struct CodingAgent {
    /// Where in a folder it begins; sessions begin at different files in any case.
    pub seed: u64,
    /// After how many steps with tool calls a run ends, at the latest.
    pub steps_per_run: u64,
    /// How its answers are spread over time.
    pub pace: Pace,
}

impl Default for CodingAgent {
    fn default() -> Self {
        Self { seed: 0, steps_per_run: 24, pace: Pace::default() }
    }
}

impl Script for CodingAgent {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        let reply = match request.purpose {
            Purpose::Step => self.step(request),
            Purpose::Summary => Summariser::Obedient.reply(request, call),
        };
        reply.with_pace(self.pace)
    }
}

/// The tools on offer, by what they are for.
struct Toolbox<'a> {
    list: Option<&'a ToolSpec>,
    read: Option<&'a ToolSpec>,
    grep: Option<&'a ToolSpec>,
}

impl<'a> Toolbox<'a> {
    fn of(request: &'a SeenRequest) -> Self {
        let find = |names: &[&str]| {
            names.iter().find_map(|name| request.tools.iter().find(|tool| tool.name == **name))
        };
        Self { list: find(&LIST_TOOLS), read: find(&READ_TOOLS), grep: find(&GREP_TOOLS) }
    }
}

impl CodingAgent {
    fn step(&self, request: &SeenRequest) -> Answer {
        let survey = Survey::of(request);
        let toolbox = Toolbox::of(request);
        let news = news(&survey);
        if survey.steps >= self.steps_per_run {
            return closing(&survey, &news, "That is enough for this run.");
        }
        let start = hash(&[&self.seed.to_le_bytes(), request.session_key().as_bytes()]);
        match self.next(&survey, &toolbox, start) {
            Some((intent, reply)) => Answer { text: join(&news, &intent), ..reply },
            None if survey.is_empty_folder => {
                Answer::text(join(&news, "The folder is empty: there is nothing to read, so I am done."))
            }
            None => closing(&survey, &news, "Nothing is left to look at."),
        }
    }

    /// The next calls and what they are for; `None` if nothing is left to do.
    fn next(&self, survey: &Survey, toolbox: &Toolbox<'_>, start: u64) -> Option<(String, Answer)> {
        if survey.is_empty_folder {
            return None;
        }
        if let Some(list) = toolbox.list.filter(|_| !survey.listed.contains(".")) {
            let reply = call(Answer::default(), list, &[(&PATH_ARGUMENTS, ".".into())]);
            return Some(("I will look at what is in the folder.".to_owned(), reply));
        }
        let unread = survey.unread_files(start);
        let folders = survey.unlisted_folders();
        let searches = survey.unsearched_identifiers();
        if let Some(list) =
            toolbox.list.filter(|_| !folders.is_empty() && (survey.steps % 4 == 3 || unread.is_empty()))
        {
            let chosen = &folders[..folders.len().min(2)];
            let reply = chosen.iter().fold(Answer::default(), |reply, folder| {
                call(reply, list, &[(&PATH_ARGUMENTS, folder.as_str().into())])
            });
            return Some((format!("Next I will list {}.", names(chosen)), reply));
        }
        if let Some(grep) = toolbox.grep.filter(|_| survey.steps % 5 == 4)
            && let Some(identifier) = searches.first()
        {
            return Some(search(grep, identifier));
        }
        if let Some(read) = toolbox.read {
            if let Some((path, offset)) = survey.unfinished.last().filter(|_| survey.steps.is_multiple_of(2))
            {
                let arguments = [
                    (&PATH_ARGUMENTS[..], Value::from(path.as_str())),
                    (&OFFSET_ARGUMENTS[..], Value::from(*offset)),
                ];
                let reply = call(Answer::default(), read, &arguments);
                return Some((format!("I will read on in `{path}` from line {offset}."), reply));
            }
            // Now and then several at once, as agents do.
            let count = if survey.steps % 3 == 2 { 3 } else { 1 };
            let chosen = &unread[..unread.len().min(count)];
            if !chosen.is_empty() {
                let reply = chosen.iter().fold(Answer::default(), |reply, path| {
                    call(reply, read, &[(&PATH_ARGUMENTS, path.as_str().into())])
                });
                return Some((format!("Next I will read {}.", names(chosen)), reply));
            }
        }
        let grep = toolbox.grep.filter(|_| survey.searched.len() < LAST_SEARCHES)?;
        searches.first().map(|identifier| search(grep, identifier))
    }
}

fn search(grep: &ToolSpec, identifier: &str) -> (String, Answer) {
    let reply = call(Answer::default(), grep, &[(&PATTERN_ARGUMENTS, identifier.into())]);
    (format!("I will look for where `{identifier}` is used."), reply)
}

/// Adds a call of `tool`, with each value under the name that the tool's schema has for it.
fn call(reply: Answer, tool: &ToolSpec, values: &[(&[&str], Value)]) -> Answer {
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let mut arguments = Map::new();
    for (candidates, value) in values {
        let known = |name: &&&str| properties.is_some_and(|properties| properties.contains_key(**name));
        if let Some(name) = candidates.iter().find(known) {
            arguments.insert((*name).to_owned(), value.clone());
        }
    }
    reply.and_call(&tool.name, &Value::Object(arguments))
}

/// What the newest tool results showed, in a sentence each.
fn news(survey: &Survey) -> String {
    let mut text = String::new();
    for finding in &survey.news {
        let _ = match finding {
            Finding::Listed { folder, files, folders } => {
                write!(text, "`{folder}` has {} and {}. ", number(*files, "file"), number(*folders, "folder"))
            }
            Finding::Read { path, lines, identifiers } if identifiers.is_empty() => {
                write!(text, "`{path}` has {}. ", number(*lines, "line"))
            }
            Finding::Read { path, lines, identifiers } => {
                let some = &identifiers[..identifiers.len().min(3)];
                write!(text, "`{path}` has {} and defines {}. ", number(*lines, "line"), names(some))
            }
            Finding::Searched { pattern, lines } => {
                write!(text, "`{pattern}` stands in {}. ", number(*lines, "line"))
            }
            Finding::Failed { what, why } => write!(text, "I could not use `{what}`: {why}. "),
        };
    }
    text.trim_end().to_owned()
}

fn closing(survey: &Survey, news: &str, reason: &str) -> Answer {
    let mut done = Vec::new();
    if !survey.read_this_run.is_empty() {
        let count = survey.read_this_run.len();
        let some = &survey.read_this_run[..count.min(NAMED_FILES_MAX)];
        let more =
            if count > some.len() { format!(" and {} more", count - some.len()) } else { String::new() };
        done.push(format!("read {}{more}", names(some)));
    }
    if !survey.searched.is_empty() {
        let searched: Vec<String> = survey.searched.iter().take(5).cloned().collect();
        done.push(format!("searched for {}", names(&searched)));
    }
    let known = survey.read.len();
    let all = format!("In all I know {known} files of this folder.");
    let what = if done.is_empty() {
        "I made no new finding in this run.".to_owned()
    } else {
        format!("In this run I {}.", done.join(" and "))
    };
    Answer::text(join(news, &format!("{reason} {what} {all}")))
}

fn join(first: &str, second: &str) -> String {
    if first.is_empty() { second.to_owned() } else { format!("{first} {second}") }
}

fn number(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn names(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests;

//! A simulated model in this process, reached over HTTP like any other: for the demo and for trying things
//! out.
//!
//! Invariants: it listens only on the loopback interface, ends with the process, and uses nothing but the
//! requests it receives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use greenroom::provider::{HttpProvider, Purpose, ServerOptions};
use greenroom_kernel::Message;
use greenroom_kernel::render::SUMMARY_LEAD;
use greenroom_simulator::summariser::recorded_steps;
use greenroom_simulator::{
    Answer, CallInfo, Pace, Script, SeenRequest, Simulator, SimulatorOptions, SimulatorServer, Summariser,
};
use greenroom_terminal::format;
use serde_json::{Value, json};

/// How many lines of a file are read at once, so the context grows in visible steps.
const LINES_AT_ONCE: u64 = 120;
/// The same for data files, whose lines are long.
const DATA_LINES_AT_ONCE: u64 = 5;
/// The endings of data files' names.
const DATA_ENDINGS: [&str; 9] =
    [".json", ".jsonl", ".csv", ".lock", ".xml", ".svg", ".html", ".min.js", ".map"];
/// The simulated model's name.
pub(crate) const MODEL: &str = "simulated";

/// A running simulated model. Dropping it stops it.
pub(crate) struct Simulated {
    simulator: Simulator,
    server: SimulatorServer,
}

impl Simulated {
    /// Starts a model with this window, and a limit on the steps with tool calls per run.
    pub(crate) async fn start(window: u64, steps_per_run: u64, pace: Pace) -> Result<Self> {
        let reader = Reader { steps_per_run, pace };
        let options = SimulatorOptions { window, max_output: window / 4, ..SimulatorOptions::new(reader) };
        let simulator = Simulator::new(options);
        let server = simulator.serve().await.context("start the simulated model")?;
        Ok(Self { simulator, server })
    }

    /// A provider that talks to it over HTTP.
    pub(crate) fn provider(&self) -> Result<Arc<HttpProvider>> {
        let options = ServerOptions {
            name: "simulator".to_owned(),
            base_url: self.server.base_url(),
            // The simulated model distinguishes sessions by this key.
            prompt_cache_key: Some(true),
            ..ServerOptions::default()
        };
        Ok(Arc::new(HttpProvider::new(options)?))
    }

    /// Returns the base URL of the simulated server.
    pub(crate) fn address(&self) -> String {
        self.server.base_url().to_string()
    }

    /// Returns the rules of the protocol that requests broke; none if the runtime works correctly.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.simulator.violations().iter().map(ToString::to_string).collect()
    }
}

/// Reads through a folder with our own tools. Its knowledge comes only from the request's messages, so it
/// continues after a compaction or a restart; its run ends after a number of steps, or when nothing is left
/// to read.
struct Reader {
    steps_per_run: u64,
    pace: Pace,
}

impl Script for Reader {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        let answer = match request.purpose {
            Purpose::Summary | Purpose::Compaction => Summariser::Obedient.reply(request, call),
            Purpose::Step => self.step(request),
        };
        answer.with_pace(self.pace)
    }
}

impl Reader {
    fn step(&self, request: &SeenRequest) -> Answer {
        let prompt = request.messages.iter().rposition(|message| is_prompt(message));
        let (before, run) = request.messages.split_at(prompt.unwrap_or_default());
        let steps = run.iter().filter(|message| message.tool_calls().next().is_some()).count() as u64;
        // If the prompt is in the summary, so are some of the steps.
        let summary =
            run.iter().find(|message| matches!(&***message, Message::User(_)) && !is_prompt(message));
        let steps = steps + summary.and_then(|summary| recorded_steps(&summary.text())).unwrap_or_default();
        let known = Known::of(request.messages.iter());
        let said =
            format!("In all I know {} of this folder.", format::count(known.read.len() as u64, "file"));
        if steps >= self.steps_per_run {
            return Answer::text(format!("That is enough for this run. {said}"));
        }
        // When everything is known, what was read before this prompt is forgotten, and can be read again.
        let again = || (!before.is_empty()).then(|| Known::of(run.iter()).next(request, steps)).flatten();
        match known.next(request, steps).or_else(again) {
            Some(answer) => answer,
            None if known.files.is_empty() => {
                Answer::text("The folder is empty: there is nothing to read, so I am done.")
            }
            None => Answer::text(format!("Nothing is left to look at. {said}")),
        }
    }
}

/// What the messages show of a folder.
#[derive(Default)]
struct Known {
    /// The files, in the order in which they were listed.
    files: Vec<String>,
    folders: Vec<String>,
    listed: BTreeSet<String>,
    read: BTreeSet<String>,
    /// The partly read file, and its next line.
    unfinished: Option<(String, u64)>,
    newest: Option<String>,
}

impl Known {
    fn of<'a>(messages: impl Iterator<Item = &'a Arc<Message>>) -> Self {
        let (mut known, mut calls) = (Self::default(), BTreeMap::new());
        for message in messages {
            for call in message.tool_calls() {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                let path = arguments.get("path").and_then(Value::as_str).unwrap_or(".").to_owned();
                calls.insert(call.id.clone(), path);
            }
            match &**message {
                Message::ToolResult(result) => {
                    let path = calls.get(&result.call_id).cloned().unwrap_or_default();
                    known.note(&result.tool_name, path, &message.text());
                }
                // A summary names the files that were read.
                Message::User(_) if !is_prompt(message) => {
                    let text = message.text();
                    let files =
                        text.rsplit_once("<read-files>\n").and_then(|(_, rest)| rest.split_once("\n</"));
                    known.read.extend(files.iter().flat_map(|(files, _)| files.lines()).map(str::to_owned));
                }
                Message::User(_) | Message::Assistant(_) => {}
            }
        }
        known
    }

    fn note(&mut self, tool: &str, path: String, text: &str) {
        match tool {
            "list" => {
                self.listed.insert(path);
                for line in text.lines().filter(|line| !line.starts_with(['`', '['])) {
                    match line.strip_suffix('/') {
                        Some(folder) => self.folders.push(folder.to_owned()),
                        None if line.ends_with(['@', '?']) => {}
                        None if !self.files.iter().any(|known| known == line) => {
                            self.files.push(line.to_owned())
                        }
                        None => {}
                    }
                }
            }
            "read" => {
                let rest = text.lines().last().and_then(|line| line.rsplit_once("continue with offset "));
                let offset = rest.and_then(|(_, offset)| offset.trim_end_matches(']').parse().ok());
                self.unfinished = offset.map(|offset| (path.clone(), offset));
                self.read.insert(path.clone());
                self.newest = Some(path);
            }
            _ => {}
        }
    }

    /// Returns the next calls; `None` if nothing is left to do.
    fn next(&self, request: &SeenRequest, steps: u64) -> Option<Answer> {
        if !request.has_tool("list") || !request.has_tool("read") {
            return None;
        }
        if !self.listed.contains(".") {
            let answer = Answer::text("I will look at what is in the folder.");
            return Some(answer.and_call("list", &json!({ "path": "." })));
        }
        if steps % 5 == 4
            && request.has_tool("grep")
            && let Some(answer) = self.search()
        {
            return Some(answer);
        }
        let unfinished = self.unfinished.as_ref();
        if let Some((path, offset)) = unfinished.filter(|_| steps.is_multiple_of(2)) {
            let answer = Answer::text(format!("I will read on in `{path}` from line {offset}."));
            let arguments = json!({ "path": path, "offset": offset, "limit": lines_at_once(path) });
            return Some(answer.and_call("read", &arguments));
        }
        // From time to time several at once, as agents do.
        let count = if steps % 3 == 2 { 3 } else { 1 };
        let unread: Vec<&String> = self.unread().take(count).collect();
        if !unread.is_empty() {
            let names: Vec<String> = unread.iter().map(|path| format!("`{path}`")).collect();
            let answer = Answer::text(format!("Next I will read {}.", names.join(", ")));
            return Some(unread.iter().fold(answer, |answer, path| {
                answer.and_call("read", &json!({ "path": path, "limit": lines_at_once(path) }))
            }));
        }
        let folder = self.folders.iter().find(|folder| !self.is_explored(folder))?;
        let answer = Answer::text(format!("Next I will list `{folder}`."));
        Some(answer.and_call("list", &json!({ "path": folder })))
    }

    /// Returns the unread files, explanatory ones first.
    fn unread(&self) -> impl Iterator<Item = &String> {
        let unread = || self.files.iter().filter(|path| !self.read.contains(*path));
        let explains = |path: &&String| path.to_lowercase().contains("readme");
        unread().filter(explains).chain(unread().filter(move |path| !explains(path)))
    }

    /// Whether a folder's contents are known.
    fn is_explored(&self, folder: &str) -> bool {
        let inside = format!("{folder}/");
        let is_inside = |path: &String| path.starts_with(&inside);
        self.listed.contains(folder) || self.files.iter().chain(&self.folders).any(is_inside)
    }

    /// Returns a search for the name of the last read file, in its folder.
    fn search(&self) -> Option<Answer> {
        let newest = Path::new(self.newest.as_ref()?);
        let name = newest.file_stem()?.to_str()?;
        let pattern: String =
            name.chars().filter(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let folder =
            newest.parent().and_then(Path::to_str).filter(|folder| !folder.is_empty()).unwrap_or(".");
        let place = if folder == "." { "this folder".to_owned() } else { format!("`{folder}`") };
        let answer = Answer::text(format!("I will look for where `{name}` is used in {place}."));
        Some(answer.and_call("grep", &json!({ "pattern": pattern, "path": folder })))
    }
}

/// Returns how many lines of a file are read at once.
fn lines_at_once(path: &str) -> u64 {
    let is_data = DATA_ENDINGS.iter().any(|ending| path.ends_with(ending));
    if is_data { DATA_LINES_AT_ONCE } else { LINES_AT_ONCE }
}

fn is_prompt(message: &Message) -> bool {
    matches!(message, Message::User(_)) && !message.text().starts_with(lead())
}

/// Returns the start of a summary's introduction, which is enough to recognise it.
fn lead() -> &'static str {
    SUMMARY_LEAD.split('.').next().unwrap_or(SUMMARY_LEAD)
}

//! Collects the facts in entries.
//!
//! Invariants: a fact that occurs again is counted, and has the newest entry; a command has its last state, and so does
//! a task; an error has what solved it, if the same call succeeded later.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::scan::{self, Name, Statement};
use crate::carried::{Fact, FactKind};
use crate::compacting::COMPACT;
use crate::entry::{Entry, EntryId, EntryKind};
use crate::files::Touch;
use crate::message::{AssistantMessage, Message, ToolCall, ToolResult, ToolStatus, blocks_text};
use crate::plan::call_file;
use crate::words::own_words;

/// The maximum number of errors of one result.
const ERRORS_MAX: usize = 3;
/// The maximum number of constants of one result.
const CONSTANTS_MAX: usize = 6;
/// The maximum number of names of one text.
const NAMES_MAX: usize = 24;
/// The maximum number of sentences of an answer that are kept without a sign, from its beginning.
const FIRST_SENTENCES: usize = 2;
/// The shortest of these, in bytes.
const SENTENCE_BYTES_MIN: usize = 24;
/// The longest command, in bytes.
const COMMAND_BYTES_MAX: usize = 160;
/// The longest last line of a command's output, in bytes.
const STATE_BYTES_MAX: usize = 120;
/// The maximum number of files named as the solution of an error.
const SOLUTION_FILES_MAX: usize = 3;
/// The longest item that a model wants to be kept, in bytes.
const REMEMBERED_BYTES_MAX: usize = 480;
/// The text between an error and its solution.
const SOLVED: &str = " → solved";
/// The names under which tools take a command.
const COMMAND_KEYS: [&str; 3] = ["command", "cmd", "script"];
/// The names under which lists of tasks have the text of a task.
const TASK_KEYS: [&str; 5] = ["content", "step", "task", "title", "subject"];

/// Returns the facts of `previous` and those in `entries`.
pub(crate) fn collect(previous: &[Fact], entries: &[Arc<Entry>]) -> Vec<Fact> {
    let mut collector = Collector::default();
    for fact in previous {
        let place = collector.facts.len();
        collector.index.insert((group(fact.kind), fact.key().to_owned()), place);
        collector.facts.push(fact.clone());
    }
    for entry in entries {
        collector.entry(entry);
    }
    collector.facts
}

/// Kinds in which the same text is the same fact: work that was open may be done.
fn group(kind: FactKind) -> FactKind {
    if kind == FactKind::Done { FactKind::Open } else { kind }
}

/// A call whose result is awaited.
struct Call<'e> {
    /// The tool and its main argument: the same again is the same attempt again.
    attempt: String,
    command: Option<String>,
    call: &'e ToolCall,
}

#[derive(Default)]
struct Collector<'e> {
    facts: Vec<Fact>,
    index: HashMap<(FactKind, String), usize>,
    calls: HashMap<&'e str, Call<'e>>,
    /// The errors of an attempt that has not succeeded yet.
    failed: HashMap<String, Vec<usize>>,
    /// The files changed so far, in order.
    changed: Vec<(EntryId, String)>,
}

impl<'e> Collector<'e> {
    fn add(&mut self, entry: EntryId, kind: FactKind, text: &str, key: &str) -> usize {
        let recognised = if key.is_empty() { text } else { key };
        let place = (group(kind), recognised.to_owned());
        if let Some(&index) = self.index.get(&place) {
            let fact = &mut self.facts[index];
            if fact.entry != entry {
                fact.times = fact.times.saturating_add(1);
            }
            (fact.entry, fact.kind) = (entry, kind);
            // A state may have changed; a sentence is the same.
            if matches!(kind, FactKind::Command) {
                text.clone_into(&mut fact.text);
            }
            return index;
        }
        self.index.insert(place, self.facts.len());
        self.facts.push(Fact { entry, kind, text: text.to_owned(), key: key.to_owned(), times: 1 });
        self.facts.len() - 1
    }

    fn entry(&mut self, entry: &'e Entry) {
        let id = entry.id;
        if let Some(own) = own_words(&entry.kind) {
            self.user(id, &own);
        } else if let EntryKind::Message { message, .. } = &entry.kind {
            match &**message {
                // A program's messages are not the user's.
                Message::User(_) => {}
                Message::Assistant(answer) => self.answer(id, answer),
                Message::ToolResult(result) => self.result(id, result),
            }
        } else if let EntryKind::Shell(shell) = &entry.kind {
            let failed = shell.exit_code.is_some_and(|code| code != 0);
            self.command(id, &shell.command, &shell.output, failed);
        } else if let EntryKind::BranchSummary { summary, .. } = &entry.kind {
            self.prose(id, summary);
        }
    }

    fn user(&mut self, entry: EntryId, text: &str) {
        let mut rules = Vec::new();
        scan::sentences(text, &mut |sentence| {
            if scan::is_rule(sentence) {
                rules.push((FactKind::Rule, sentence, ""));
            } else if let Some(quantity) = scan::quantity(sentence) {
                rules.push((FactKind::Number, sentence, quantity));
            }
        });
        for (kind, text, key) in rules {
            self.add(entry, kind, text, key);
        }
        self.names(entry, text);
    }

    fn answer(&mut self, entry: EntryId, answer: &'e AssistantMessage) {
        let text = answer.text();
        self.prose(entry, &text);
        let mut calls = answer.tool_calls().peekable();
        if calls.peek().is_none() {
            // The answer to the user: what it begins with is what it says.
            let mut first = Vec::new();
            scan::sentences(&text, &mut |sentence| {
                if first.len() < FIRST_SENTENCES && !sentence.ends_with(':') {
                    first.push(sentence);
                }
            });
            let is_new =
                |sentence: &&str| sentence.len() >= SENTENCE_BYTES_MIN && scan::statement(sentence).is_none();
            for sentence in first.into_iter().filter(is_new) {
                self.add(entry, FactKind::Done, sentence, "");
            }
        }
        for call in calls {
            self.call(entry, call);
        }
    }

    /// Adds what a model's text states.
    fn prose(&mut self, entry: EntryId, text: &str) {
        let mut found = Vec::new();
        scan::sentences(text, &mut |sentence| match scan::statement(sentence) {
            Some(Statement::Decision) => found.push((FactKind::Decision, sentence, "")),
            Some(Statement::Done) => found.push((FactKind::Done, sentence, "")),
            Some(Statement::Open) => found.push((FactKind::Open, sentence, "")),
            None => {
                let quantity = scan::quantity(sentence);
                found.extend(quantity.map(|quantity| (FactKind::Number, sentence, quantity)));
            }
        });
        for (kind, text, key) in found {
            self.add(entry, kind, text, key);
        }
        self.names(entry, text);
    }

    fn names(&mut self, entry: EntryId, text: &str) {
        let mut found = Vec::new();
        scan::names(text, &mut |name| {
            if found.len() < NAMES_MAX {
                found.push(match name {
                    Name::Path(name) => (FactKind::Path, name),
                    Name::Url(name) => (FactKind::Url, name),
                    Name::Identifier(name) => (FactKind::Identifier, name),
                });
            }
        });
        for (kind, name) in found {
            self.add(entry, kind, name, "");
        }
    }

    fn call(&mut self, entry: EntryId, call: &'e ToolCall) {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        let command = COMMAND_KEYS.iter().find_map(|key| command_text(arguments.get(key)?));
        let path = ["path", "file_path", "notebook_path"].iter().find_map(|key| arguments.get(key)?.as_str());
        if let Some(path) = path {
            self.add(entry, FactKind::Path, path, "");
        }
        if let Some(command) = &command {
            self.names(entry, command);
        }
        if let Some(folder) = arguments.get("workdir").and_then(Value::as_str) {
            self.add(entry, FactKind::Path, folder, "");
        }
        self.tasks(entry, &arguments);
        if call.name == COMPACT {
            self.remembered(entry, &arguments);
        }
        let main = command.as_deref().or(path).unwrap_or(&call.arguments);
        let attempt = format!("{} {main}", call.name);
        self.calls.insert(&call.id, Call { attempt, command, call });
    }

    /// Adds the tasks in the arguments of a call that keeps a list of them.
    fn tasks(&mut self, entry: EntryId, arguments: &Value) {
        let lists = arguments.as_object().into_iter().flat_map(|object| object.values());
        for task in lists.filter_map(Value::as_array).flatten() {
            let Some(status) = task.get("status").and_then(Value::as_str) else { continue };
            let Some(text) = TASK_KEYS.iter().find_map(|key| task.get(key)?.as_str()) else { continue };
            let is_done = matches!(status, "completed" | "done" | "complete" | "closed");
            self.add(entry, if is_done { FactKind::Done } else { FactKind::Open }, text, "");
        }
    }

    /// Adds what the model wants to be kept when it asks for a compaction.
    fn remembered(&mut self, entry: EntryId, arguments: &Value) {
        let items = arguments.get("remember").and_then(Value::as_array).into_iter().flatten();
        for item in items.filter_map(Value::as_str).map(str::trim).filter(|item| !item.is_empty()) {
            self.add(entry, FactKind::Decision, clipped(item, REMEMBERED_BYTES_MAX), "");
        }
        if let Some(done) = arguments.get("done").and_then(Value::as_str).map(str::trim) {
            self.add(entry, FactKind::Done, clipped(done, REMEMBERED_BYTES_MAX), "");
        }
    }

    fn result(&mut self, entry: EntryId, result: &'e ToolResult) {
        for touched in result.touched.iter().filter(|touched| touched.touch == Touch::Modified) {
            self.changed.push((entry, touched.path.clone()));
        }
        let call = self.calls.remove(result.call_id.as_str());
        let changed = call.as_ref().and_then(|call| call_file(&call.call.name, &call.call.arguments));
        if let Some((path, Touch::Modified)) = changed {
            self.changed.push((entry, path));
        }
        let text = blocks_text(&result.content);
        let is_failed = result.status != ToolStatus::Ok;
        if let Some(command) = call.as_ref().and_then(|call| call.command.as_deref()) {
            self.command(entry, command, &text, is_failed);
        }
        let mut lines = Vec::new();
        scan::error_lines(&text, &mut |line| {
            if lines.len() < ERRORS_MAX {
                lines.push(line);
            }
        });
        if is_failed && lines.is_empty() {
            lines.extend(
                text.lines().map(str::trim).find(|line| !line.is_empty()).map(|line| clipped(line, 200)),
            );
        }
        let mut errors = Vec::new();
        for line in lines {
            errors.push(self.add(entry, FactKind::Error, line, ""));
        }
        let mut constants = Vec::new();
        scan::constants(&text, CONSTANTS_MAX, &mut |name| constants.push(name));
        for name in constants {
            self.add(entry, FactKind::Identifier, name, "");
        }
        if let Some(Call { attempt, .. }) = call {
            if errors.is_empty() && !is_failed {
                for index in self.failed.remove(&attempt).unwrap_or_default() {
                    self.solve(index);
                }
            } else {
                self.failed.insert(attempt, errors);
            }
        }
    }

    /// Adds to an error what solved it: the same attempt has succeeded.
    fn solve(&mut self, index: usize) {
        let since = self.facts[index].entry;
        let mut files: Vec<&str> = Vec::new();
        let changed = self.changed.iter().rev().take_while(|(at, _)| *at > since);
        for (_, path) in changed {
            if !files.contains(&path.as_str()) && files.len() < SOLUTION_FILES_MAX {
                files.push(path);
            }
        }
        let fact = &mut self.facts[index];
        if fact.text.contains(SOLVED) {
            return;
        }
        if fact.key.is_empty() {
            fact.key.clone_from(&fact.text);
        }
        fact.text.push_str(SOLVED);
        if !files.is_empty() {
            fact.text.push_str(" by a change of ");
            fact.text.push_str(&files.join(", "));
        }
    }

    fn command(&mut self, entry: EntryId, command: &str, output: &str, is_failed: bool) {
        let command = clipped(command.lines().next().unwrap_or(command).trim(), COMMAND_BYTES_MAX);
        let last = output.lines().rev().map(str::trim).find(|line| line.chars().any(char::is_alphanumeric));
        let state = if is_failed { "failed" } else { "ok" };
        let text = match last {
            Some(last) => format!("`{command}`: {state}: {}", clipped(last, STATE_BYTES_MAX)),
            None => format!("`{command}`: {state}"),
        };
        self.add(entry, FactKind::Command, &text, command);
    }
}

/// Returns a command as one text: a string, or the last word of a list (`["bash", "-lc", "ls"]`).
fn command_text(value: &Value) -> Option<String> {
    match value {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => words.last().and_then(Value::as_str).map(str::to_owned),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

fn clipped(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

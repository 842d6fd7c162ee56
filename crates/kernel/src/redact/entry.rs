//! Redaction of entries: every text of an entry that is recorded.
//!
//! Invariants: what nobody but the user or the user's files wrote keeps its shapes, or the model could not work
//! with them; summaries and the reasons of failures keep neither values nor shapes.

use std::sync::Arc;

use serde_json::Value;

use super::Redactor;
use crate::carried::Carried;
use crate::entry::{ChildRecord, ChildStage, Compaction};
use crate::entry::{CompactionOutcome, Custom, EntryKind, Metadata, RunOutcome, Shell};
use crate::failure::Failure;
use crate::files::FileOps;
use crate::message::{AssistantMessage, Block, Message, Native, Part, ToolResult};
use crate::question::{Approval, Question, QuestionEnd, QuestionKind};
use crate::terms::Terms;

impl Redactor {
    /// Redacts what is about to be recorded.
    pub(crate) fn entry(&self, kind: &mut EntryKind) {
        if self.is_off() {
            return;
        }
        match kind {
            EntryKind::Message { message, .. } => self.message(Arc::make_mut(message)),
            EntryKind::Shell(Shell { command, output, .. }) => {
                self.values_in(command);
                self.values_in(output);
            }
            EntryKind::Custom(Custom { content, .. })
            | EntryKind::Inbox { content, terms: None, .. }
            | EntryKind::WholeResult { content, .. } => self.blocks(content),
            EntryKind::Inbox { content, terms: Some(terms), .. } => {
                self.blocks(content);
                self.terms(terms);
            }
            EntryKind::BranchSummary { summary, files, .. } => {
                self.all_in(summary);
                self.files(files);
            }
            EntryKind::Compaction(compaction) => self.compaction(compaction),
            EntryKind::Label { label: Some(text), .. }
            | EntryKind::Note { data: text, .. }
            | EntryKind::Metadata(Metadata::Title { title: Some(text) }) => self.values_in(text),
            EntryKind::Metadata(Metadata::Label { value: Some(text), .. }) => self.values_in(text),
            EntryKind::CompactionEnded(ended) => self.compaction_outcome(&mut ended.outcome),
            EntryKind::RunEnded { outcome, .. }
            | EntryKind::Child(ChildRecord { stage: ChildStage::Ended { outcome, .. }, .. }) => {
                self.run_outcome(outcome);
            }
            EntryKind::Prune(prune) => {
                prune.results.iter_mut().for_each(|result| self.values_in(&mut result.text))
            }
            EntryKind::Question(asked) => self.question(&mut Arc::make_mut(asked).question),
            EntryKind::QuestionEnded { end: QuestionEnd::Answered(answer), .. } => {
                self.json(&mut answer.value);
            }
            EntryKind::Terms { terms, .. } => self.terms(terms),
            // They have ids, names and numbers.
            EntryKind::QuestionEnded { end: QuestionEnd::Expired | QuestionEnd::Withdrawn, .. }
            | EntryKind::Metadata(Metadata::Title { title: None } | Metadata::Label { value: None, .. })
            | EntryKind::Label { label: None, .. }
            | EntryKind::Child(ChildRecord { stage: ChildStage::Started, .. })
            | EntryKind::CompactionUndone { .. }
            | EntryKind::Pin { .. }
            | EntryKind::ModelChange { .. }
            | EntryKind::InboxCleared { .. }
            | EntryKind::LeafMoved { .. }
            | EntryKind::CompactionStarted(_)
            | EntryKind::Spent(_)
            | EntryKind::HandOff(_)
            | EntryKind::CallStarted { .. } => {}
        }
    }

    /// Replaces the known values in a message.
    pub fn message(&self, message: &mut Message) {
        match message {
            Message::User(content) => self.blocks(content),
            Message::Assistant(answer) => self.answer(answer),
            Message::ToolResult(ToolResult { content, touched, .. }) => {
                self.blocks(content);
                touched.iter_mut().for_each(|touched| self.values_in(&mut touched.path));
            }
        }
    }

    /// Replaces the known values in a model's answer.
    pub fn answer(&self, answer: &mut AssistantMessage) {
        for part in &mut answer.content {
            match part {
                Part::Text(text) | Part::Reasoning(text) => self.values_in(text),
                Part::OpaqueReasoning { data, .. } | Part::OpaqueBlock { data, .. } => self.values_in(data),
                Part::ToolCall(call) => {
                    self.values_in(&mut call.id);
                    self.values_in(&mut call.name);
                    self.values_in(&mut call.arguments);
                }
            }
        }
        answer.error.iter_mut().for_each(|error| self.all_in(error));
        answer.stop_raw.iter_mut().for_each(|reason| self.values_in(reason));
    }

    /// Replaces the known values in the content of a tool's result, and, if it comes from `outside`, what looks
    /// like a secret.
    pub fn result(&self, result: &mut ToolResult, outside: bool) {
        for block in &mut result.content {
            match block {
                Block::Text(text) if outside => self.all_in(text),
                Block::Text(text) => self.values_in(text),
                Block::Native(native) => self.native(native),
                Block::Image(_) => {}
            }
        }
        self.values_in(&mut result.call_id);
        result.touched.iter_mut().for_each(|touched| self.values_in(&mut touched.path));
    }

    /// Redacts the reason of a failure.
    pub fn failure(&self, failure: &mut Failure) {
        self.all_in(&mut failure.message);
    }

    fn blocks(&self, content: &mut [Block]) {
        for block in content {
            match block {
                Block::Text(text) => self.values_in(text),
                Block::Native(native) => self.native(native),
                Block::Image(_) => {}
            }
        }
    }

    fn native(&self, native: &mut Native) {
        native.blocks.iter_mut().for_each(|block| self.values_in(block));
    }

    fn compaction(&self, compaction: &mut Compaction) {
        self.all_in(&mut compaction.summary);
        compaction.active_request.iter_mut().for_each(|text| self.values_in(text));
        self.files(&mut compaction.files);
        compaction.native.iter_mut().for_each(|native| self.native(&mut native.native));
        let Carried { words, facts, skills, .. } = &mut compaction.carried;
        words.iter_mut().for_each(|quote| self.values_in(&mut quote.text));
        skills.iter_mut().for_each(|skill| self.values_in(&mut skill.text));
        for fact in facts {
            self.all_in(&mut fact.text);
            self.all_in(&mut fact.key);
        }
    }

    fn compaction_outcome(&self, outcome: &mut CompactionOutcome) {
        match outcome {
            CompactionOutcome::Truncated { reason }
            | CompactionOutcome::Digested { reason }
            | CompactionOutcome::Pruned { reason: Some(reason) }
            | CompactionOutcome::Nothing { reason }
            | CompactionOutcome::Failed { reason }
            | CompactionOutcome::Cancelled { reason } => self.all_in(reason),
            CompactionOutcome::Pruned { reason: None }
            | CompactionOutcome::Completed
            | CompactionOutcome::Superseded
            | CompactionOutcome::Interrupted
            | CompactionOutcome::Unknown => {}
        }
    }

    /// Redacts the reason for which a run ended.
    pub(crate) fn run_outcome(&self, outcome: &mut RunOutcome) {
        match outcome {
            RunOutcome::Failed(failure) => self.failure(failure),
            RunOutcome::Stopped { reason } => self.all_in(reason),
            RunOutcome::Completed | RunOutcome::Aborted | RunOutcome::Interrupted | RunOutcome::Unknown => {}
        }
    }

    /// Replaces the known values in a question.
    pub fn question(&self, question: &mut Question) {
        self.values_in(&mut question.text);
        question.details.iter_mut().for_each(|text| self.values_in(text));
        match &mut question.kind {
            QuestionKind::Choice { choices, .. } => choices.iter_mut().for_each(|text| self.values_in(text)),
            QuestionKind::Form { schema } => self.json(schema),
            QuestionKind::Approval { approval } => {
                let Approval { tool, arguments, folder, why, parts, rules, preview } = &mut **approval;
                self.json(arguments);
                let texts = [folder, why, preview].into_iter().flatten();
                let texts = texts.chain(parts).chain(rules);
                texts.chain([tool]).for_each(|text| self.values_in(text));
            }
            QuestionKind::Text | QuestionKind::Unknown => {}
        }
    }

    fn terms(&self, terms: &mut Arc<Terms>) {
        let Terms { output, settings, .. } = Arc::make_mut(terms);
        output.iter_mut().for_each(|output| self.json(&mut output.schema));
        settings.iter_mut().for_each(|settings| self.json(settings));
    }

    fn files(&self, files: &mut FileOps) {
        let paths = |paths: Vec<&str>| -> Vec<String> {
            paths.into_iter().map(|path| self.values(path).into_owned()).collect()
        };
        let (read, modified) = (paths(files.read().collect()), paths(files.modified().collect()));
        *files = FileOps::new(read, modified);
    }

    /// Replaces the known values in the texts of a JSON value, and in its keys.
    pub fn json(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.values_in(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::Object(fields) => {
                if fields.keys().any(|key| matches!(self.values(key), std::borrow::Cow::Owned(_))) {
                    let of = std::mem::take(fields).into_iter();
                    *fields = of.map(|(key, value)| (self.values(&key).into_owned(), value)).collect();
                }
                fields.values_mut().for_each(|value| self.json(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

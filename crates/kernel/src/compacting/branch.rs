//! The summary of a branch that is left: a compaction of the branch that replaces nothing.
//!
//! It has a compaction's parts, merges, retries and summarisers. Messages that a compaction on the branch had
//! summarised enter as that compaction's summary.
//!
//! Invariants: exactly one [`Effect::Summarised`] or [`Effect::End`], and nothing after it.

use std::sync::Arc;

use super::summaries::{Progress, Reaction, Source, Summaries};
use super::{Effect, End, Input, SummariserLimits};
use crate::entry::{Compaction, CompactionOutcome, Entry, EntryId, EntryKind};
use crate::files::FileOps;
use crate::message::Usage;
use crate::plan::touched_files;
use crate::retry::Retries;
use crate::settings::CompactionSettings;
use crate::summary::{self, Style, SummaryKind};
use crate::usage::Ratio;

/// A branch that is left, and how to summarise it.
#[derive(Debug, Clone)]
pub struct BranchParams {
    /// The entries that leave the path, in order.
    pub left: Vec<Arc<Entry>>,
    /// The newest active compaction, if it replaced a part of the branch.
    pub compaction: Option<Arc<Entry>>,
    /// The current compaction settings.
    pub settings: CompactionSettings,
    /// The model's window, in tokens.
    pub window: u64,
    /// The summarisers in order, as in [`super::CompactionParams::summarisers`].
    pub summarisers: Vec<SummariserLimits>,
    /// The retries of one request.
    pub retries: Retries,
    /// The number of the provider's tokens for each token of our estimate.
    pub ratio: Ratio,
}

/// The record of a branch that was left.
#[derive(Debug, Clone, PartialEq)]
pub struct BranchRecord {
    /// The summary of the branch, with the files as its footer.
    pub summary: String,
    /// The files touched on the branch.
    pub files: FileOps,
    /// The usage of all model calls.
    pub usage: Usage,
}

/// The summary of a branch, in progress.
#[derive(Debug)]
pub struct BranchSummary {
    summaries: Summaries,
    files: FileOps,
    is_over: bool,
}

impl BranchSummary {
    /// Returns the first requests; `None` if there are no messages on the branch.
    pub fn begin(params: BranchParams) -> Option<(Self, Vec<Effect>)> {
        let mut files = FileOps::default();
        let mut entries = Vec::new();
        if let Some((entry, compaction)) = params.compaction.as_ref().and_then(with_compaction) {
            files.merge(&compaction.files);
            entries.push(record_of(entry, compaction));
        }
        let said = params.left.iter().filter(|entry| !matches!(entry.kind, EntryKind::Compaction(_)));
        entries.extend(said.cloned());
        files.merge(&touched_files(&params.left));
        if summary::transcript(&entries).is_empty() {
            return None;
        }
        let style = Style::new(&params.settings, None);
        let mut summaries = Summaries::new(style, params.ratio, params.summarisers, params.retries);
        let source = Source::branch(entries, params.settings.prefix_cap(params.window));
        let reaction = summaries.begin(vec![source]);
        let mut this = Self { summaries, files, is_over: false };
        let effects = this.follow(reaction);
        Some((this, effects))
    }

    /// Returns the known window of the current summariser, in tokens, which limits a request to it.
    pub fn summariser_window(&self) -> u64 {
        self.summaries.window()
    }

    /// Handles an input and returns the next effects; none after its end.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        match input {
            _ if self.is_over => Vec::new(),
            Input::Answered { id, answer, jitter } => {
                let reaction = self.summaries.answered(id, answer, jitter);
                self.follow(reaction)
            }
            Input::Late { reason } => {
                let reaction = self.summaries.late(&reason);
                self.follow(reaction)
            }
            Input::Cancelled { reason } => self.end(CompactionOutcome::Cancelled { reason }),
            // No hook is consulted, and nothing is replaced.
            Input::Hooks(_) | Input::Installed(_) => Vec::new(),
        }
    }

    fn follow(&mut self, reaction: Reaction) -> Vec<Effect> {
        let Reaction { mut effects, progress } = reaction;
        match progress {
            Progress::Waiting => {}
            Progress::Failed(why) => {
                let reason = format!("no summary could be made: {why}");
                effects.extend(self.end(CompactionOutcome::Failed { reason }));
            }
            Progress::Complete => {
                self.is_over = true;
                let text = self.summaries.text(SummaryKind::Branch).unwrap_or_default();
                effects.push(Effect::Summarised(Box::new(BranchRecord {
                    summary: summary::branch_record(text, &self.files),
                    files: std::mem::take(&mut self.files),
                    usage: self.summaries.usage(),
                })));
            }
        }
        effects
    }

    fn end(&mut self, outcome: CompactionOutcome) -> Vec<Effect> {
        self.is_over = true;
        self.summaries.clear();
        vec![Effect::End(End { outcome, floor: None, usage: self.summaries.usage() })]
    }
}

fn with_compaction(entry: &Arc<Entry>) -> Option<(&Entry, &Compaction)> {
    entry.kind.as_compaction().map(|compaction| (&**entry, compaction))
}

/// Returns the summary of a compaction on the branch as a record that precedes the messages after it.
fn record_of(entry: &Entry, compaction: &Compaction) -> Arc<Entry> {
    let summary = summary::without_request(&compaction.summary).to_owned();
    let kind = EntryKind::BranchSummary { from: EntryId(0), summary, files: FileOps::default() };
    Arc::new(Entry { kind, ..entry.clone() })
}

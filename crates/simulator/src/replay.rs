//! A session, replayed message by message through the kernel's compactions with a simulated summariser: what is in the
//! context after each, what a search finds, what it cost, and how long its user would have waited.
//!
//! Invariants: a replay is deterministic, asks no model and stores nothing; its compactions are those of a session whose
//! window is full, with the same settings; time is that of the recorded entries, and a summary takes as long as it is
//! said to take.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::compacting::{
    Compacting, CompactionParams, Effect, HookDecision, Input, PruneSegment, Segment, SummariserLimits,
    SummaryRequest,
};
use greenroom_kernel::entry::{Entry, EntryId, EntryKind, Trigger};
use greenroom_kernel::path::{ActivePath, as_sent, is_message, project};
use greenroom_kernel::retry::Retries;
use greenroom_kernel::search::{Index, readable};
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::size::{Estimator, entry_tokens};
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{
    AssistantMessage, FactRecall, Message, Part, StopReason, ToolResult, Usage, prune, summary,
};
use greenroom_provider::{ModelSettings, Purpose};

use crate::{CallInfo, Script, SeenRequest, Summariser};

#[cfg(test)]
mod tests;

/// The fixed part of requests, in tokens.
const OVERHEAD: u64 = 500;
/// How much one recall returns: so many passages of so many bytes, at most 2,000 tokens.
const RECALLED_MAX: usize = 8;
const PASSAGE_BYTES: usize = 480;

/// How a session is replayed.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// The window of the model, in tokens.
    pub window: u64,
    /// The compaction settings.
    pub settings: CompactionSettings,
    /// The summariser.
    pub summariser: Summariser,
    /// How many compactions are made at most.
    pub compactions_max: usize,
    /// How long a summary takes, in milliseconds.
    pub summary_ms: u64,
}

/// A replayed session.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The state after each compaction, oldest first.
    pub states: Vec<ReplayState>,
    /// How often old tool results were left out instead of a summary.
    pub prunes: u64,
}

/// The state after a compaction.
#[derive(Debug)]
pub struct ReplayState {
    /// How many messages of the session had been read.
    pub read: usize,
    /// What the context says.
    pub context: String,
    /// How many facts of the ledger are in the context.
    pub recall: Option<FactRecall>,
    /// The size of the context before, in tokens.
    pub tokens_before: u64,
    /// The size of the context after, in tokens.
    pub tokens_after: u64,
    /// The tokens of the summaries' calls, of all compactions so far, input and output together.
    pub summary_tokens: u64,
    /// The time from the soft threshold to this compaction in the recorded session, in milliseconds; `None` if the
    /// recording has no times.
    pub notice_ms: Option<u64>,
    /// What is replaced, for [`Self::found_by`].
    index: Index,
    texts: Vec<Option<String>>,
    replaced_before: EntryId,
}

impl ReplayState {
    /// Returns what one recall with this question returns.
    pub fn found_by(&self, question: &str) -> String {
        let query = self.index.query(question);
        let hits = self.index.find(&query, RECALLED_MAX, |id| id < self.replaced_before);
        let text = |id: EntryId| self.texts.get(usize::try_from(id.0).ok()?)?.as_deref();
        let passages: Vec<&str> =
            hits.iter().filter_map(|hit| Some(query.passage(text(hit.entry)?, PASSAGE_BYTES).1)).collect();
        passages.join("\n")
    }

    /// Returns how long the user waits for this compaction, in milliseconds: without and with a preparation in the
    /// background, which begins at the soft threshold. `None` if the recording has no times.
    pub fn waits_ms(&self, summary_ms: u64) -> Option<(u64, u64)> {
        Some((summary_ms, summary_ms.saturating_sub(self.notice_ms?)))
    }
}

/// Replays messages, oldest first.
pub fn replay(messages: &[Arc<Entry>], options: &ReplayOptions) -> Replayed {
    let mut replay =
        Replay { options, path: Vec::new(), soft_at_ms: None, spent: 0, done: Replayed::default() };
    for (index, entry) in messages.iter().enumerate() {
        replay.push(capped(&entry.kind, options.window), entry.at_ms);
        // A call that waits for its result prevents no compaction, but the recorded next message is that result.
        let next = messages.get(index + 1).and_then(|entry| entry.kind.as_message());
        if next.is_some_and(|message| matches!(**message, Message::ToolResult(_))) {
            continue;
        }
        replay.check(index + 1, entry.at_ms);
        if replay.done.states.len() == options.compactions_max {
            break;
        }
    }
    replay.done
}

struct Replay<'o> {
    options: &'o ReplayOptions,
    path: Vec<Arc<Entry>>,
    /// When the context passed the soft threshold.
    soft_at_ms: Option<u64>,
    /// The tokens of all calls for summaries.
    spent: u64,
    done: Replayed,
}

impl Replay<'_> {
    fn push(&mut self, kind: EntryKind, at_ms: u64) {
        let id = EntryId(self.path.len() as u64);
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let parent = id.0.checked_sub(1).map(EntryId);
        self.path.push(Arc::new(Entry {
            id,
            parent,
            at_ms,
            tokens,
            reasoning_tokens: 0,
            origin: None,
            kind,
        }));
    }

    /// Compacts if the context has reached the trigger.
    fn check(&mut self, read: usize, at_ms: u64) {
        let ReplayOptions { window, settings, .. } = self.options;
        let Some(trigger) = settings.trigger_tokens(*window) else { return };
        let size = size(&self.path);
        if size >= settings.soft_tokens(*window, trigger) {
            self.soft_at_ms.get_or_insert(at_ms);
        }
        if size < trigger {
            return;
        }
        let notice_ms = self.soft_at_ms.filter(|_| at_ms > 0).map(|soft| at_ms.saturating_sub(soft));
        let (change, usage) = compact(&self.path, size, self.options);
        self.spent += usage.total_tokens();
        match change {
            Change::Nothing => {}
            Change::Pruned(segment) => {
                self.push(EntryKind::Prune(Box::new(segment.prune)), at_ms);
                self.done.prunes += 1;
                self.soft_at_ms = None;
            }
            Change::Compacted(segment) => {
                if let Some(prune) = segment.prune {
                    self.push(EntryKind::Prune(prune), at_ms);
                }
                let replaced_before = segment.first_kept;
                let (recall, tokens_after) = (segment.compaction.recall, segment.compaction.tokens_after);
                self.push(EntryKind::Compaction(Box::new(segment.compaction)), at_ms);
                self.soft_at_ms = None;
                let said: Vec<String> =
                    project(&self.path, &[]).iter().map(|message| message.said()).collect();
                let mut index = Index::default();
                self.path.iter().for_each(|entry| index.add(entry));
                let texts = self.path.iter().map(|entry| readable(&entry.kind)).collect();
                self.done.states.push(ReplayState {
                    read,
                    context: said.join("\n"),
                    recall,
                    tokens_before: size,
                    tokens_after,
                    summary_tokens: self.spent,
                    notice_ms,
                    index,
                    texts,
                    replaced_before,
                });
            }
        }
    }
}

/// A tool result that is too large is cut when it arrives.
fn capped(kind: &EntryKind, window: u64) -> EntryKind {
    let Some(Message::ToolResult(result)) = kind.as_message().map(|message| &**message) else {
        return kind.clone();
    };
    match prune::capped(result, Some(window), None) {
        Some(content) => EntryKind::message(Message::ToolResult(ToolResult { content, ..result.clone() })),
        None => kind.clone(),
    }
}

fn size(path: &[Arc<Entry>]) -> u64 {
    let sent = as_sent(path);
    let active = ActivePath::of(&sent);
    let summary = active.compaction.map_or(0, |index| sent[index].tokens);
    let messages = active.entries().iter().filter(|entry| is_message(&entry.kind));
    OVERHEAD + summary + messages.map(|entry| entry.tokens).sum::<u64>()
}

enum Change {
    Nothing,
    Pruned(Box<PruneSegment>),
    Compacted(Box<Segment>),
}

/// Compacts a context of this size. Returns what is installed, and the usage of the calls.
fn compact(path: &[Arc<Entry>], size: u64, options: &ReplayOptions) -> (Change, Usage) {
    let ReplayOptions { window, settings, summariser, .. } = options;
    let window = *window;
    let params = CompactionParams {
        path: path.to_vec(),
        settings: settings.clone(),
        trigger: Trigger::Threshold,
        window,
        known_window: window,
        summarisers: vec![SummariserLimits { window, output_tokens_max: None }],
        retries: Retries::new(1, 1_000),
        overhead: OVERHEAD,
        pinned: Vec::new(),
        tokens_before: size,
        ratio: Ratio::default(),
        at_window: size >= window,
        keep_recent: None,
        force: false,
        focus: None,
        failed_attempts: 0,
        debt: Vec::new(),
        debt_left: Vec::new(),
        prepared_for: None,
        native: None,
    };
    let (mut compacting, effects) = Compacting::begin(params);
    let mut effects: VecDeque<Effect> = effects.into();
    let mut calls = 0;
    let mut usage = Usage::default();
    while let Some(effect) = effects.pop_front() {
        let input = match effect {
            Effect::Consult(_) => Input::Hooks(HookDecision::Continue),
            Effect::Ask(request) => {
                calls += 1;
                let answer = answer(&request, *summariser, calls);
                usage.add(&answer.usage.unwrap_or_default());
                Input::Answered { id: request.id, answer: Ok(Box::new(answer)), jitter: 0 }
            }
            Effect::Install(segment) => return (Change::Compacted(segment), usage),
            Effect::InstallPrune(segment) => return (Change::Pruned(segment), usage),
            Effect::Withdraw(_) | Effect::FallBack { .. } | Effect::NativeFailed { .. } => continue,
            Effect::Prepared | Effect::Summarised(_) | Effect::End(_) => break,
        };
        effects.extend(compacting.on(input));
    }
    (Change::Nothing, usage)
}

fn answer(request: &SummaryRequest, summariser: Summariser, call: u64) -> AssistantMessage {
    let seen = SeenRequest {
        model: "simulated".into(),
        system: Some(summary::SYSTEM.into()),
        messages: vec![Arc::new(Message::user(request.text.clone()))],
        tools: Arc::new([]),
        settings: ModelSettings {
            output_tokens_max: Some(request.output_tokens_max),
            ..ModelSettings::default()
        },
        output_schema: None,
        session: None,
        purpose: Purpose::Summary,
        streamed: true,
        bytes: request.text.len() as u64,
        tokens: 0,
        cached_tokens: 0,
    };
    let said = summariser.reply(&seen, CallInfo { call, session_call: call, seed: call });
    let tokens = |text: &str| greenroom_kernel::size::text_tokens(text, Estimator::Classes);
    let usage = Usage {
        input_tokens: tokens(summary::SYSTEM) + tokens(&request.text),
        output_tokens: tokens(&said.text),
        ..Usage::default()
    };
    AssistantMessage {
        usage: Some(usage),
        ..AssistantMessage::new(vec![Part::Text(said.text)], "simulated", "simulated", StopReason::Stop)
    }
}

//! A session, replayed message by message through the kernel's compactions.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom::CompactionSettings;
use greenroom_kernel::compacting::{
    Compacting, CompactionParams, Effect, HookDecision, Input, Segment, SummariserLimits, SummaryRequest,
};
use greenroom_kernel::entry::{Entry, EntryId, EntryKind, Trigger};
use greenroom_kernel::path::{ActivePath, is_message, project};
use greenroom_kernel::retry::Retries;
use greenroom_kernel::size::{Estimator, entry_tokens};
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{AssistantMessage, FactRecall, Message, Part, StopReason, summary};
use greenroom_provider::{ModelSettings, Purpose};
use greenroom_simulator::{CallInfo, Script, SeenRequest, Summariser};

use super::sessions::Session;

/// The fixed part of requests, in tokens.
const OVERHEAD: u64 = 500;
/// How many compactions are made.
const COMPACTIONS: usize = 5;

/// The state after a compaction.
pub(super) struct State {
    /// How many messages of the session had been read.
    pub(super) read: usize,
    /// What the context says.
    pub(super) context: String,
    pub(super) recall: Option<FactRecall>,
}

/// The states after each compaction.
pub(super) struct Replayed {
    pub(super) states: Vec<State>,
}

pub(super) fn replay(
    session: &Session,
    window: u64,
    settings: &CompactionSettings,
    summariser: Summariser,
) -> Replayed {
    let trigger = settings.trigger_tokens(window).unwrap();
    let mut path: Vec<Arc<Entry>> = Vec::new();
    let mut states = Vec::new();
    for (index, kind) in session.kinds.iter().enumerate() {
        push(&mut path, capped(kind, window));
        // A call that waits for its result prevents no compaction, but the recorded next message is that result.
        let next_is_result = session.kinds.get(index + 1).and_then(EntryKind::as_message);
        if next_is_result.is_some_and(|message| matches!(**message, Message::ToolResult(_))) {
            continue;
        }
        let size = size(&path);
        if size < trigger {
            continue;
        }
        let Some(segment) = compact(&path, size, window, settings, summariser) else { continue };
        if let Some(prune) = segment.prune {
            push(&mut path, EntryKind::Prune(prune));
        }
        let recall = segment.compaction.recall;
        push(&mut path, EntryKind::Compaction(Box::new(segment.compaction)));
        let said: Vec<String> = project(&path, &[]).iter().map(|message| message.said()).collect();
        states.push(State { read: index + 1, context: said.join("\n"), recall });
        if states.len() == COMPACTIONS {
            break;
        }
    }
    Replayed { states }
}

fn push(path: &mut Vec<Arc<Entry>>, kind: EntryKind) {
    let id = EntryId(path.len() as u64);
    let tokens = entry_tokens(&kind, Estimator::Classes);
    let parent = id.0.checked_sub(1).map(EntryId);
    path.push(Arc::new(Entry { id, parent, at_ms: 0, tokens, reasoning_tokens: 0, origin: None, kind }));
}

/// A tool result that is too large is cut when it arrives.
fn capped(kind: &EntryKind, window: u64) -> EntryKind {
    let Some(Message::ToolResult(result)) = kind.as_message().map(|message| &**message) else {
        return kind.clone();
    };
    match greenroom_kernel::prune::capped(result, Some(window), None) {
        Some(content) => EntryKind::message(Message::ToolResult(greenroom_kernel::ToolResult {
            content,
            ..result.clone()
        })),
        None => kind.clone(),
    }
}

fn size(path: &[Arc<Entry>]) -> u64 {
    let active = ActivePath::of(path);
    let summary = active.compaction.map_or(0, |index| path[index].tokens);
    let messages = active.entries().iter().filter(|entry| is_message(&entry.kind));
    OVERHEAD + summary + messages.map(|entry| entry.tokens).sum::<u64>()
}

fn compact(
    path: &[Arc<Entry>],
    size: u64,
    window: u64,
    settings: &CompactionSettings,
    summariser: Summariser,
) -> Option<Box<Segment>> {
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
    while let Some(effect) = effects.pop_front() {
        let input = match effect {
            Effect::Consult(_) => Input::Hooks(HookDecision::Continue),
            Effect::Ask(request) => {
                calls += 1;
                Input::Answered {
                    id: request.id,
                    answer: Ok(Box::new(answer(&request, summariser, calls))),
                    jitter: 0,
                }
            }
            Effect::Install(segment) => return Some(segment),
            Effect::Withdraw(_) | Effect::FallBack { .. } | Effect::NativeFailed { .. } => continue,
            Effect::Prepared | Effect::InstallPrune(_) | Effect::Summarised(_) | Effect::End(_) => {
                return None;
            }
        };
        effects.extend(compacting.on(input));
    }
    None
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
    AssistantMessage {
        content: vec![Part::Text(said.text)],
        provider: "simulated".into(),
        model: "simulated".into(),
        usage: None,
        stop: StopReason::Stop,
        stop_raw: None,
        error: None,
    }
}

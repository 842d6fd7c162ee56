//! Chooses the cut: what a compaction would replace and what it would keep.
//!
//! Invariants: planning is a pure function of the path, so the same input gives the same plan; a cut never
//! separates a tool call from its results; messages kept by the last active compaction are summarised by the
//! next one, so nothing is summarised twice and nothing is skipped. The cost of planning depends on the
//! active context.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::entry::{Entry, EntryId, EntryKind};
use crate::files::FileOps;
use crate::message::Message;
use crate::path::{ActivePath, as_sent, is_message};
use crate::render::summary_text;
use crate::settings::{CompactionSettings, CutRule, Occasion};
use crate::size::{Estimator, entry_tokens, stored_tokens};
use crate::skills::Skills;
use crate::summary::{self, SUMMARY_TOKENS_MIN};
use crate::text::bounded;
use crate::usage::Ratio;
use crate::words::{Request, Words, WordsMax};

mod touched;

#[cfg(test)]
mod tests;

use touched::file_operations;
pub use touched::{call_file, touched_files};

/// The longest active request that is repeated verbatim, in bytes.
const ACTIVE_REQUEST_BYTES: usize = 8 * 1024;
/// The expected size of a summary relative to what it replaces: one part in this many.
const SUMMARY_PARTS: u64 = 10;
/// A summary that replaces fewer tokens than this shows no words and no facts.
const SMALL_TOKENS: u64 = 256;
/// The maximum share of the replaced part that is quoted as the user's words: one part in this many.
const WORDS_PARTS: u64 = 4;
/// The maximum share of the replaced part that is repeated as facts: one part in this many.
const FACTS_PARTS: u64 = 8;
/// The lead-in of each message that joined the request in progress.
const STEER_LEAD: &str = "(Said while that was worked on:)";

/// The options of a plan: how much to keep, and how to cut.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanOptions {
    /// How much of the newest conversation to keep, in tokens.
    pub keep_recent: u64,
    /// The maximum that may be kept, in tokens, if there is a cut that keeps no more.
    pub keep_max: u64,
    /// At least this many of the newest messages stay, as far as `keep_max` allows.
    pub preserve_messages: u64,
    /// How the cut is chosen.
    pub cut: CutRule,
    /// A shorter prefix of a split turn gets no separate summary.
    pub min_split_prefix: u64,
    /// Compact even if no legal cut is in reach of `keep_recent`.
    pub force: bool,
    /// How sizes are estimated.
    pub estimator: Estimator,
    /// Which file operations count.
    pub files: FileRule,
    /// The path is another system's file before any repair: a call without a result will never have one, and
    /// prevents no cut. In our own log such a call may still be running.
    pub as_read: bool,
    /// The pinned entries of the path, which are messages of the context wherever they are.
    pub pinned: Vec<EntryId>,
    /// The number of the provider's tokens for each token of our estimate: for the expected resulting size.
    pub ratio: Ratio,
    /// The current size of the context, in tokens.
    pub tokens_before: u64,
    /// The fixed part of every request, in tokens.
    pub overhead: u64,
    /// The cap of the history's summary, in tokens: for the expected resulting size.
    pub summary_cap: u64,
    /// The cap of a split turn's summary, in tokens: for the expected resulting size.
    pub prefix_cap: u64,
    /// How much of the user's own words is quoted.
    pub words_max: WordsMax,
    /// How many tokens of facts are added to a summary.
    pub facts_max: u64,
    /// The tokens of skills' texts that are repeated.
    pub skills_max: u64,
}

/// Which file operations count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRule {
    /// Those declared by successful tool results.
    Declared,
    /// Every call of a tool named `read`, `write` or `edit`, whatever its result; the file lists of a
    /// compaction that a hook supplied are ignored. For comparison with other systems.
    EveryCall,
}

impl PlanOptions {
    /// Returns the options that follow from `settings` for an occasion in this window.
    pub fn new(
        settings: &CompactionSettings,
        window: u64,
        occasion: Occasion,
        tokens_before: u64,
        overhead: u64,
    ) -> Self {
        let keep_max = settings.keep_max(window, overhead);
        let keep_recent = settings.keep_recent(window, occasion, tokens_before.saturating_sub(overhead));
        let keep_recent = keep_recent.min(keep_max).max(1);
        Self {
            keep_recent,
            keep_max,
            preserve_messages: settings.preserve_messages.unwrap_or(0),
            cut: settings.cut,
            min_split_prefix: settings.min_split_prefix,
            force: occasion == Occasion::Emergency,
            estimator: settings.estimator,
            files: FileRule::Declared,
            as_read: false,
            pinned: Vec::new(),
            ratio: Ratio::default(),
            tokens_before,
            overhead,
            summary_cap: settings.summary_cap(window),
            prefix_cap: settings.prefix_cap(window),
            words_max: settings.words_max(window, overhead, keep_recent),
            facts_max: settings.facts_max(window, overhead, keep_recent),
            skills_max: settings.skills_max(window, overhead, keep_recent),
        }
    }

    /// Returns the options for comparison with other systems: nearest cut, chars/4, every call, the file
    /// before repair.
    pub fn comparison(keep_recent: u64, tokens_before: u64) -> Self {
        Self {
            keep_recent,
            keep_max: u64::MAX,
            preserve_messages: 0,
            cut: CutRule::Nearest,
            min_split_prefix: 1,
            force: false,
            estimator: Estimator::Char4,
            files: FileRule::EveryCall,
            as_read: true,
            pinned: Vec::new(),
            ratio: Ratio::default(),
            tokens_before,
            overhead: 0,
            summary_cap: 0,
            prefix_cap: 0,
            words_max: WordsMax { carried: 0, shown: 0 },
            facts_max: 0,
            skills_max: 0,
        }
    }
}

/// The parts that a compaction will replace and keep.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The newest active compaction at planning time.
    pub base: Option<EntryId>,
    /// The first entry to be replaced: the first active one.
    pub first: EntryId,
    /// The last entry to be replaced, directly before `first_kept` on the path.
    pub last: EntryId,
    /// The first entry that stays verbatim.
    pub first_kept: EntryId,
    /// Whether the cut is inside a turn whose beginning gets a separate summary.
    pub is_split_turn: bool,
    /// The entries whose messages become the history summary.
    pub history: Vec<Arc<Entry>>,
    /// The entries whose messages become the split turn's summary.
    pub turn_prefix: Vec<Arc<Entry>>,
    /// The previous summary, to be merged.
    pub previous_summary: Option<String>,
    /// The user's message of the turn that the cut splits, or the text that an earlier compaction carried of
    /// it, and the steers that joined it before the cut.
    pub active_request: Option<String>,
    /// The user's own words in what is replaced, and those that the previous compaction carried.
    pub words: Words,
    /// The skills in use in what is replaced, and those that the previous compaction carried.
    pub skills: Skills,
    /// All files touched from the session's start to `last`.
    pub files: FileOps,
    /// The context's size before, in tokens.
    pub tokens_before: u64,
    /// The size of the kept part, in tokens.
    pub kept_tokens: u64,
    /// The size of the replaced part, in tokens: the messages, and the previous summary.
    pub replaced_tokens: u64,
    /// The number of messages in the context before.
    pub messages_before: u64,
    /// The options of the plan.
    pub options: PlanOptions,
}

impl Plan {
    /// Returns how many messages the history summary replaces.
    pub fn messages_to_summarize(&self) -> u64 {
        count_messages(&self.history)
    }

    /// Returns how many messages the split turn's summary replaces.
    pub fn turn_prefix_messages(&self) -> u64 {
        count_messages(&self.turn_prefix)
    }

    /// Returns where this path may be cut so that something is replaced: the ids of the possible first kept
    /// messages, oldest first.
    pub fn places(path: &[Arc<Entry>]) -> Vec<EntryId> {
        let active = ActivePath::of(path);
        let replaces = |cut: &usize| count_messages(&path[active.start..*cut]) > 0;
        legal_cuts(&active, false).into_iter().filter(replaces).map(|cut| path[cut].id).collect()
    }

    /// Returns the same compaction with another first kept entry, if the path may be cut there and something
    /// is replaced. An entry without a message represents the next one that has one.
    pub fn moved_to(&self, path: &[Arc<Entry>], first_kept: EntryId) -> Option<Self> {
        let active = ActivePath::of(path);
        let named = path.iter().rposition(|entry| entry.id == first_kept)?;
        let cut = named + path[named..].iter().position(|entry| is_message(&entry.kind))?;
        let cuts = legal_cuts(&active, self.options.as_read);
        cuts.contains(&cut).then(|| build(&active, cut, &self.options).ok()).flatten()
    }

    /// Returns the same compaction with one summary: the beginning of the split turn is part of the history.
    #[must_use]
    pub(crate) fn with_one_summary(mut self) -> Self {
        self.history.append(&mut self.turn_prefix);
        self.is_split_turn = false;
        self
    }

    /// Returns the total number of replaced messages.
    pub fn messages_removed(&self) -> u64 {
        self.messages_to_summarize() + self.turn_prefix_messages()
    }

    /// Returns the expected resulting context, in tokens, if the summaries have a tenth of the size of what
    /// they replace. Their actual length is not known in advance.
    pub fn tokens_after_estimate(&self) -> u64 {
        let caps = self.summary_caps();
        let least = SUMMARY_TOKENS_MIN * caps.len() as u64;
        let cap = caps.iter().sum();
        self.tokens_after((self.replaced_tokens / SUMMARY_PARTS).max(least).min(cap))
    }

    /// Returns the largest possible resulting context, in tokens: the summaries and the facts reach their
    /// caps. A compaction that does not make the context smaller is not installed.
    pub fn tokens_after_max(&self) -> u64 {
        self.tokens_after(self.summary_caps().iter().sum::<u64>() + self.facts_max())
    }

    /// Returns how many tokens of facts are added to a summary at most.
    pub(crate) fn facts_max(&self) -> u64 {
        self.options.facts_max.min(self.replaced_tokens.saturating_sub(SMALL_TOKENS) / FACTS_PARTS)
    }

    /// Returns the size of the context with summaries of this many tokens.
    fn tokens_after(&self, summaries: u64) -> u64 {
        let PlanOptions { overhead, pinned, ratio, tokens_before, .. } = &self.options;
        let replaced = self.history.iter().chain(&self.turn_prefix);
        // Pinned entries join the fixed part.
        let in_front: u64 =
            replaced.filter(|entry| pinned.contains(&entry.id)).map(|entry| entry.tokens).sum();
        let after = overhead + in_front + ratio.apply(self.kept_tokens + self.frame_tokens() + summaries);
        after.min(*tokens_before)
    }

    /// Returns the maximum size of each summary, in tokens.
    fn summary_caps(&self) -> Vec<u64> {
        let history = (self.messages_to_summarize() > 0).then_some(self.options.summary_cap);
        let prefix = self.is_split_turn.then_some(self.options.prefix_cap);
        history.into_iter().chain(prefix).collect()
    }

    /// Returns the size of the text around the summaries, in tokens by our estimate: the leading sentence,
    /// the active request and the footer.
    pub(crate) fn frame_tokens(&self) -> u64 {
        let history = (self.messages_to_summarize() > 0).then_some("");
        let frame = summary::assemble(self, history, self.is_split_turn.then_some(""));
        entry_tokens(&EntryKind::message(Message::user(summary_text(&frame))), Estimator::Classes)
    }

    /// Hides what is carried verbatim besides the facts, where it has no room: the user's words and the skills.
    pub(crate) fn hide_carried(&mut self) {
        self.words.hide();
        self.skills.hide();
    }

    /// Returns the text of the user's words and the skills in the summary.
    pub(crate) fn carried_text(&self) -> String {
        let (words, skills) = (self.words.text(), self.skills.text());
        if words.is_empty() || skills.is_empty() { words + &skills } else { format!("{words}\n\n{skills}") }
    }

    /// Checks that a summary could be smaller than what it replaces.
    ///
    /// # Errors
    /// [`NothingToCompact::TooSmall`] if the smallest useful summary is not smaller.
    pub fn check_gain(&self) -> Result<(), NothingToCompact> {
        let least = self.frame_tokens() + SUMMARY_TOKENS_MIN * self.summary_caps().len() as u64;
        let tokens = self.replaced_tokens;
        if tokens > least { Ok(()) } else { Err(NothingToCompact::TooSmall { tokens, least }) }
    }
}

/// Why there is nothing to compact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NothingToCompact {
    /// The session has no messages.
    #[error("the session is empty")]
    Empty,
    /// There is no new message since the last compaction.
    #[error("there is no new message since the last compaction")]
    JustCompacted,
    /// Too few messages to keep the wanted number and replace some.
    #[error("not enough messages to compact: there are {messages}, and at least {needed} are needed")]
    TooShort {
        /// The number of messages.
        messages: u64,
        /// The necessary number.
        needed: u64,
    },
    /// Everything is within the kept part.
    #[error("everything is recent enough to keep")]
    AllRecent,
    /// A summary would not be smaller than what it would replace: a requested compaction reports this, a plan
    /// does not.
    #[error(
        "the conversation is too small to be compacted: the part to summarise has {tokens} tokens, and a summary takes at least \
         {least}"
    )]
    TooSmall {
        /// The part to be replaced, in estimated tokens.
        tokens: u64,
        /// The smallest useful summary with the text around it, in estimated tokens.
        least: u64,
    },
    /// The conversation cannot be cut anywhere.
    #[error("the conversation has no point at which it can be cut")]
    NoCut,
}

/// Plans a compaction of `path`.
///
/// # Errors
/// The reason why there is nothing to compact.
pub fn plan(path: &[Arc<Entry>], options: &PlanOptions) -> Result<Plan, NothingToCompact> {
    let active = ActivePath::of(path);
    let Some(leaf) = path.last() else { return Err(NothingToCompact::Empty) };
    // Forced, messages kept by the last compaction may be compacted too: the next rung of an overflow's
    // ladder.
    if !options.force && is_compaction(leaf) {
        return Err(NothingToCompact::JustCompacted);
    }
    assert!(path.is_sorted_by(|one, next| one.id < next.id), "the ids of a path ascend");
    let messages = count_messages(active.entries());
    if messages == 0 {
        return Err(NothingToCompact::Empty);
    }
    let needed = options.preserve_messages.saturating_add(2);
    let is_too_short = options.preserve_messages > 0 && messages < needed;
    if is_too_short && fitting_from(&active, options) == active.start {
        return Err(NothingToCompact::TooShort { messages, needed });
    }
    let cuts = legal_cuts(&active, options.as_read);
    let cut = choose_cut(&active, &cuts, options).ok_or(if cuts.is_empty() {
        NothingToCompact::NoCut
    } else {
        NothingToCompact::AllRecent
    })?;
    build(&active, cut, options)
}

fn build(active: &ActivePath<'_>, cut: usize, options: &PlanOptions) -> Result<Plan, NothingToCompact> {
    let path = active.path;
    // Entries without a message directly before the cut go with the kept side.
    let mut first_kept = cut;
    while first_kept > active.start
        && !is_message(&path[first_kept - 1].kind)
        && !is_compaction(&path[first_kept - 1])
    {
        first_kept -= 1;
    }
    if first_kept == active.start {
        return Err(NothingToCompact::AllRecent);
    }
    let turn_start = if is_turn_start(&path[cut].kind) {
        None
    } else {
        (active.start..cut).rev().find(|index| is_turn_start(&path[*index].kind))
    };
    let (replaced, kept) = (&path[active.start..first_kept], &path[first_kept..]);
    assert!(!is_call_cut(replaced, kept), "no cut separates a tool call from its results");
    let split_at = turn_start
        .filter(|start| count_messages(&path[*start..first_kept]) >= options.min_split_prefix)
        .unwrap_or(first_kept);
    let history = path[active.start..split_at].to_vec();
    let turn_prefix = path[split_at..first_kept].to_vec();
    if count_messages(replaced) == 0 {
        return Err(NothingToCompact::AllRecent);
    }
    let carried = active.compaction().map(|compaction| &compaction.carried);
    let (active_request, request_from) = if is_turn_start(&path[cut].kind) {
        (None, None)
    } else {
        let (begun, from, after) = match turn_start {
            Some(start) => (request_text(&path[start].kind), Some(path[start].id), start + 1),
            // The turn began before the active part: the last compaction carries its request.
            None => {
                let request = active.compaction().and_then(|compaction| compaction.active_request.clone());
                let from = carried.and_then(|carried| carried.request_from);
                (request, from.or(Some(path[active.start].id)), active.start)
            }
        };
        let request = with_steers(begun, &path[after..first_kept]);
        let from = from.filter(|_| request.is_some());
        (request, from)
    };
    let sent = as_sent(path);
    let tokens_of = |entries: &[Arc<Entry>]| -> u64 {
        let messages = entries.iter().filter(|entry| is_message(&entry.kind));
        messages.map(|entry| stored_tokens(entry, options.estimator)).sum()
    };
    let kept_tokens = tokens_of(&sent[first_kept..]);
    let merged = active.compaction.map_or(0, |index| stored_tokens(&path[index], options.estimator));
    let replaced_tokens = merged + tokens_of(&sent[active.start..first_kept]);
    let shown = options.words_max.shown.min(replaced_tokens.saturating_sub(SMALL_TOKENS) / WORDS_PARTS);
    let words_max = WordsMax { shown, ..options.words_max };
    let skills_max = options.skills_max.min(replaced_tokens.saturating_sub(SMALL_TOKENS) / WORDS_PARTS);
    let request = request_from.zip(active_request.as_deref()).map(|(from, text)| Request { from, text });
    let words = Words::select(carried, replaced, request, words_max);
    Ok(Plan {
        base: active.compaction_id(),
        first: path[active.start].id,
        last: path[first_kept - 1].id,
        first_kept: path[first_kept].id,
        is_split_turn: !turn_prefix.is_empty(),
        history,
        turn_prefix,
        previous_summary: active.compaction().map(|compaction| compaction.summary.clone()),
        active_request,
        words,
        skills: Skills::select(carried, replaced, &path[first_kept..], skills_max),
        files: file_operations(active, replaced, options.files),
        tokens_before: options.tokens_before,
        kept_tokens,
        replaced_tokens,
        messages_before: active.messages(&options.pinned),
        options: options.clone(),
    })
}

/// Whether a turn begins with this entry. A steer joins the turn in progress.
pub fn is_turn_start(kind: &EntryKind) -> bool {
    is_message(kind)
        && !kind.is_steer()
        && kind.as_message().is_none_or(|message| matches!(**message, Message::User(_)))
}

/// Returns the indices in the path at which it may be cut: messages other than tool results, with no call
/// open before them. The first active entry is among them if it is such a message; cutting there replaces
/// nothing.
///
/// A call is open until its last result; a call without a result, until the next answer, since only the
/// newest answer's calls may still be running (with `as_read`: not at all).
fn legal_cuts(active: &ActivePath<'_>, as_read: bool) -> Vec<usize> {
    let entries = active.entries();
    // The active entry up to which the calls of each entry are open.
    let mut open_until: Vec<usize> = vec![0; entries.len()];
    let mut caller: HashMap<&str, usize> = HashMap::new();
    let mut newest = 0;
    let mut waiting: HashSet<&str> = HashSet::new();
    for (index, entry) in entries.iter().enumerate() {
        let Some(message) = entry.kind.as_message() else { continue };
        match &**message {
            Message::User(_) => {}
            Message::Assistant(assistant) => {
                if !waiting.is_empty() {
                    open_until[newest] = open_until[newest].max(index);
                }
                newest = index;
                waiting = assistant.tool_calls().map(|call| call.id.as_str()).collect();
                caller.extend(waiting.iter().map(|id| (*id, index)));
                if as_read {
                    waiting.clear();
                }
            }
            Message::ToolResult(result) => {
                waiting.remove(result.call_id.as_str());
                if let Some(&caller) = caller.get(result.call_id.as_str()) {
                    open_until[caller] = open_until[caller].max(index + 1);
                }
            }
        }
    }
    if !waiting.is_empty() {
        open_until[newest] = entries.len();
    }
    let mut open = 0;
    let mut cuts = Vec::new();
    for (index, until) in open_until.into_iter().enumerate() {
        if open <= index && may_begin(&entries[index].kind) {
            cuts.push(active.start + index);
        }
        open = open.max(until);
    }
    cuts
}

/// Whether a result in `kept` answers a call in `replaced`. Computes for one cut what [`legal_cuts`] computes
/// for all, in another way.
fn is_call_cut(replaced: &[Arc<Entry>], kept: &[Arc<Entry>]) -> bool {
    let mut open: HashSet<&str> = replaced.iter().flat_map(call_ids).collect();
    for entry in kept {
        // A reused id belongs to the newest call.
        for id in call_ids(entry) {
            open.remove(id);
        }
        if let Some(message) = entry.kind.as_message()
            && let Message::ToolResult(result) = &**message
            && open.contains(result.call_id.as_str())
        {
            return true;
        }
    }
    false
}

fn call_ids(entry: &Arc<Entry>) -> impl Iterator<Item = &str> {
    let calls = entry.kind.as_message().into_iter().flat_map(|message| message.tool_calls());
    calls.map(|call| call.id.as_str())
}

/// Whether the kept part may begin with this entry, apart from calls: any message but a tool result.
fn may_begin(kind: &EntryKind) -> bool {
    is_message(kind) && kind.as_message().is_none_or(|message| !matches!(**message, Message::ToolResult(_)))
}

fn choose_cut(active: &ActivePath<'_>, cuts: &[usize], options: &PlanOptions) -> Option<usize> {
    let &first_cut = cuts.first()?;
    // Results count as they are sent.
    let sent = as_sent(active.path);
    let active = &ActivePath { path: &sent, ..*active };
    // The point where enough is kept, going back from the newest message.
    let mut kept = 0u64;
    let mut kept_messages = 0u64;
    let mut point = None;
    for index in (active.start..active.path.len()).rev() {
        kept = kept.saturating_add(size(active, index, options));
        kept_messages += u64::from(is_message(&active.path[index].kind));
        if kept >= options.keep_recent && kept_messages >= options.preserve_messages {
            point = Some(index);
            break;
        }
    }
    let enough_stay = |cut: &usize| messages_from(active, *cut) >= options.preserve_messages;
    // If a cut keeps too much, the kept part shrinks to fit the trigger, including messages that were to be
    // preserved.
    let fits_from = fitting_from(active, options);
    let smaller = |chosen: usize| {
        let fitting = || cuts.iter().copied().filter(|cut| *cut >= fits_from);
        if chosen >= fits_from { None } else { fitting().find(enough_stay).or_else(|| fitting().next()) }
    };
    let Some(point) = point else {
        if options.force {
            return force_cut(active, cuts);
        }
        return smaller(first_cut).or(Some(first_cut).filter(enough_stay));
    };
    let at_or_after = |from: usize| cuts.iter().copied().find(|cut| *cut >= from);
    let nearest = at_or_after(point).filter(enough_stay);
    // None there: the last one before it, which keeps more.
    let nearest = nearest.or_else(|| cuts.iter().copied().rfind(|cut| *cut <= point)).unwrap_or(first_cut);
    let chosen = match options.cut {
        CutRule::Nearest => nearest,
        CutRule::TurnFirst => turn_first(active, cuts, point, options).unwrap_or(nearest),
    };
    if let Some(smaller) = smaller(chosen) {
        return Some(smaller);
    }
    // Forced, and the cut would replace nothing: everything but the last two messages.
    if options.force && count_messages(&active.path[active.start..chosen]) == 0 {
        return force_cut(active, cuts).or(Some(chosen));
    }
    Some(chosen).filter(|chosen| options.force || enough_stay(chosen))
}

/// Returns a turn's start near `point`: before it if that keeps at most half as much again, otherwise after
/// it if that still keeps half.
fn turn_first(active: &ActivePath<'_>, cuts: &[usize], point: usize, options: &PlanOptions) -> Option<usize> {
    let starts = || cuts.iter().copied().filter(|cut| is_turn_start(&active.path[*cut].kind));
    let kept_from = |cut: usize| kept_from(active, cut, options);
    let keep = options.keep_recent;
    let replaces_something = |cut: &usize| count_messages(&active.path[active.start..*cut]) > 0;
    let before = starts()
        .rfind(|cut| *cut <= point)
        .filter(replaces_something)
        .filter(|cut| kept_from(*cut) <= keep.saturating_add(keep / 2).min(options.keep_max));
    before.or_else(|| {
        starts()
            .find(|cut| *cut > point)
            .filter(|cut| kept_from(*cut) >= keep.div_ceil(2))
            .filter(|cut| messages_from(active, *cut) >= options.preserve_messages)
    })
}

/// Returns the cut that replaces everything but the last two messages, moved to the nearest legal one that
/// replaces something.
fn force_cut(active: &ActivePath<'_>, cuts: &[usize]) -> Option<usize> {
    let newest: Vec<usize> = (active.start..active.path.len())
        .rev()
        .filter(|index| is_message(&active.path[*index].kind))
        .take(2)
        .collect();
    let wanted = newest.last().copied()?;
    let first_message = active.start + active.entries().iter().position(|entry| is_message(&entry.kind))?;
    cuts.iter().copied().filter(|cut| *cut > first_message).min_by_key(|cut| (cut.abs_diff(wanted), *cut))
}

/// Returns the size of an entry of the path in a request, in tokens.
fn size(active: &ActivePath<'_>, index: usize, options: &PlanOptions) -> u64 {
    match &active.path[index].kind {
        kind if is_message(kind) => stored_tokens(&active.path[index], options.estimator),
        _ => 0,
    }
}

/// Returns the first entry from which on no more than `keep_max` would be kept.
fn fitting_from(active: &ActivePath<'_>, options: &PlanOptions) -> usize {
    let mut kept = 0u64;
    for index in (active.start..active.path.len()).rev() {
        kept = kept.saturating_add(size(active, index, options));
        if kept > options.keep_max {
            return index + 1;
        }
    }
    active.start
}

/// Returns the size of the kept part with this cut, in tokens.
fn kept_from(active: &ActivePath<'_>, cut: usize, options: &PlanOptions) -> u64 {
    (cut..active.path.len()).map(|index| size(active, index, options)).fold(0, u64::saturating_add)
}

fn messages_from(active: &ActivePath<'_>, cut: usize) -> u64 {
    count_messages(&active.path[cut..])
}

fn is_compaction(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Compaction(_))
}

/// Returns how many entries carry a message.
fn count_messages(entries: &[Arc<Entry>]) -> u64 {
    entries.iter().filter(|entry| is_message(&entry.kind)).count() as u64
}

/// Returns the request in progress with the steers that joined it in these entries, in order and bounded: at
/// most about twice [`ACTIVE_REQUEST_BYTES`] in total, however many steers there are.
fn with_steers(begun: Option<String>, entries: &[Arc<Entry>]) -> Option<String> {
    let steers = entries.iter().filter(|entry| entry.kind.is_steer());
    let mut request = begun;
    for steer in steers.filter_map(|entry| request_text(&entry.kind)) {
        request = Some(match request {
            Some(request) => format!("{request}\n\n{STEER_LEAD}\n{steer}"),
            None => steer,
        });
    }
    request.map(|request| bounded(&request, 2 * ACTIVE_REQUEST_BYTES))
}

/// Returns the text of a message that begins a turn or joins one, truncated to [`ACTIVE_REQUEST_BYTES`];
/// `None` if it has none.
fn request_text(kind: &EntryKind) -> Option<String> {
    let text = if let EntryKind::Message { message, .. } = kind {
        message.text()
    } else if let EntryKind::Custom(custom) = kind {
        crate::message::blocks_text(&custom.content)
    } else {
        return None;
    };
    let text = text.trim();
    (!text.is_empty()).then(|| bounded(text, ACTIVE_REQUEST_BYTES))
}

//! One session's log, followed entry by entry: its invariants after every step.
//!
//! Invariants: each entry is checked once, when it is new, so that the cost of a long life is linear in its
//! entries.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::Head;
use greenroom_kernel::entry::{
    Compaction, CompactionEnded, CompactionOutcome, Entry, EntryId, EntryKind, InboxDelivery, Prune, RunId,
    RunOutcome, Trigger,
};
use greenroom_kernel::ledger::FACTS_MAX;
use greenroom_kernel::message::{Message, StopReason};
use greenroom_kernel::path::{ActivePath, as_sent, is_message, path_to};
use greenroom_kernel::plan::is_turn_start;
use greenroom_kernel::question::QuestionEnd;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::words::own_words;

/// The maximum size of a context after an automatic compaction, as a share of its trigger.
const SUCCESS_SHARE: f64 = 0.7;

/// The parameters that determine how small a compaction must make a context.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) settings: CompactionSettings,
    /// The largest window that was assumed for the model.
    pub(crate) window: u64,
}

/// A session's log so far.
#[derive(Debug, Default)]
pub(crate) struct Record {
    entries: Vec<Arc<Entry>>,
    /// For each entry: the calls that are open on the path that ends with it.
    open_calls: Vec<Arc<BTreeSet<String>>>,
    open_run: Option<EntryId>,
    /// The newest run ended as interrupted.
    is_interrupted: bool,
    open_compaction: Option<EntryId>,
    /// The end of a compaction whose summary must come next.
    installed: Option<CompactionEnded>,
    inbox: Vec<EntryId>,
    /// The questions that are open.
    questions: Vec<EntryId>,
    /// The texts of users, and those put into the inbox.
    said: HashSet<String>,
    queued: HashSet<String>,
    /// The texts that were withdrawn from the inbox.
    withdrawn: HashSet<String>,
    /// How often the model requested each call.
    asked: HashMap<String, u64>,
    /// For each compaction: the messages before its kept part that no summary has read.
    unread: HashMap<EntryId, BTreeSet<EntryId>>,
    /// Events that a life must have seen, and how often.
    pub(crate) facts: BTreeMap<&'static str, u64>,
}

impl Record {
    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Returns how often the model requested a call.
    pub(crate) fn asked(&self, call: &str) -> u64 {
        self.asked.get(call).copied().unwrap_or(0)
    }

    /// Whether this is a recorded user message.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        self.said.contains(text)
    }

    /// Whether this is a recorded user message, or was withdrawn before.
    pub(crate) fn is_settled(&self, text: &str) -> bool {
        self.has_said(text) || self.withdrawn.contains(text)
    }

    /// Whether this is a recorded user message, or waits.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.has_said(text) || self.queued.contains(text)
    }

    /// Whether accepted work is neither answered nor withdrawn: a run is open or was interrupted and nothing
    /// followed it, or input waits.
    pub(crate) fn is_left_undone(&self) -> bool {
        let ended = self.entries.iter().rev().find_map(|entry| match entry.kind {
            EntryKind::RunEnded { run, .. } => Some((entry.id, run)),
            _ => None,
        });
        // A message follows the run's end. A branch leaves the run behind even before that, if the disk
        // refused the end and it was recorded later.
        let is_left = |entry: &Entry, (end, run): (EntryId, RunId)| match entry.kind {
            EntryKind::LeafMoved { .. } => entry.id.0 > run.0,
            ref kind => entry.id > end && is_message(kind),
        };
        let follows = ended.map(|ended| self.entries.iter().any(|entry| is_left(entry, ended)));
        let is_cut_off = self.is_interrupted && follows == Some(false) && !self.ends_with_an_answer();
        self.open_run.is_some() || is_cut_off || !self.inbox.is_empty()
    }

    /// Whether the newest message is a whole answer.
    fn ends_with_an_answer(&self) -> bool {
        let newest = self.entries.iter().rev().find_map(|entry| entry.kind.as_message());
        newest.is_some_and(|message| match &**message {
            Message::Assistant(answer) => !answer.stop.is_partial(),
            Message::User(_) | Message::ToolResult(_) => false,
        })
    }

    /// Adds a new entry.
    pub(crate) fn push(&mut self, entry: Entry, bounds: &Bounds) {
        let id = entry.id;
        assert_eq!(id.0, self.entries.len() as u64, "ids are dense");
        assert!(entry.parent.is_none_or(|parent| parent < id), "entry {id}: a parent is earlier");
        let entry = Arc::new(entry);
        let before = entry.parent.map(|parent| Arc::clone(&self.open_calls[place(parent)]));
        let before = before.unwrap_or_default();
        let installed = self.installed.take();
        let rewrites = matches!(entry.kind, EntryKind::Compaction(_) | EntryKind::Prune(_));
        assert_eq!(
            installed.is_some(),
            rewrites,
            "entry {id}: a summary or a prune comes with the end of its compaction, and at no other time"
        );
        let after = match &entry.kind {
            EntryKind::Message { message, inbox, steer, .. } => {
                if let Some(waited) = inbox {
                    self.leaves_inbox(*waited);
                }
                self.check_steer(id, message, *inbox, *steer);
                self.message(id, message, before)
            }
            other => {
                self.other(id, other);
                before
            }
        };
        match (installed, &entry.kind) {
            (Some(ended), EntryKind::Compaction(compaction)) => {
                self.check_installed(&entry, &ended, compaction, bounds);
                self.check_debt(id, compaction, bounds);
                self.check_carried(id, compaction, bounds);
                self.check_request(&entry, compaction);
            }
            (Some(ended), EntryKind::Prune(prune)) => {
                self.check_prune(&entry, prune);
                let is_alone = ended.entry == Some(id);
                let is_pruned = matches!(ended.outcome, CompactionOutcome::Pruned { .. });
                assert_eq!(is_alone, is_pruned, "entry {id}: {ended:?}");
                // The compaction that it belongs to comes next.
                self.installed = (!is_alone).then_some(ended);
            }
            _ => {}
        }
        self.entries.push(entry);
        self.open_calls.push(after);
    }

    /// On every path, each call has one result, directly after it; only the newest answer may have open
    /// calls.
    fn message(
        &mut self,
        id: EntryId,
        message: &Message,
        mut open: Arc<BTreeSet<String>>,
    ) -> Arc<BTreeSet<String>> {
        match message {
            Message::User(_) => {
                assert!(open.is_empty(), "entry {id}: calls are open: {open:?}");
                assert!(self.said.insert(message.text()), "entry {id}: said twice: {:?}", message.text());
                // Messages that join a current run begin none.
                self.open_run = self.open_run.or(Some(id));
            }
            Message::ToolResult(result) => {
                let was_open = Arc::make_mut(&mut open).remove(&result.call_id);
                assert!(was_open, "entry {id}: a result without its call, or a second one");
                assert!(self.open_run.is_some(), "entry {id}: a result outside of a run");
            }
            Message::Assistant(answer) => {
                assert!(open.is_empty(), "entry {id}: calls are open: {open:?}");
                assert!(self.open_run.is_some(), "entry {id}: an answer outside of a run");
                assert!(!answer.is_empty(), "entry {id}: an empty answer was recorded");
                for call in answer.tool_calls() {
                    assert_ne!(
                        answer.stop,
                        StopReason::Aborted,
                        "entry {id}: an aborted answer asks for tools"
                    );
                    *self.asked.entry(call.id.clone()).or_default() += 1;
                    Arc::make_mut(&mut open).insert(call.id.clone());
                }
            }
        }
        open
    }

    /// Each run and each compaction has one beginning and one end.
    fn other(&mut self, id: EntryId, kind: &EntryKind) {
        match kind {
            EntryKind::ModelChange { provider, .. } if provider == "spare" => {
                assert!(self.open_run.is_some(), "entry {id}: a fallback outside of a run");
                self.happened("a run fell back");
            }
            EntryKind::Question(asked) => {
                assert_eq!(self.open_run, Some(asked.run), "entry {id}: a question outside of its run");
                self.questions.push(id);
            }
            EntryKind::QuestionEnded { question, end } => {
                let open = self.questions.iter().position(|open| open == question);
                let open = open.unwrap_or_else(|| panic!("entry {id}: {question} is not open"));
                self.questions.remove(open);
                self.happened(match end {
                    QuestionEnd::Answered(_) => "a question was answered",
                    QuestionEnd::Expired => "a question expired",
                    QuestionEnd::Withdrawn | _ => "a question was withdrawn",
                });
            }
            EntryKind::CallStarted { .. } => self.happened("a tool began after a hook had asked"),
            EntryKind::WholeResult { .. } => self.happened("a large result was kept beside the path"),
            EntryKind::Metadata(_) => self.happened("a title or a label was set"),
            EntryKind::CompactionUndone { compaction } => {
                let undone = &self.entries[place(*compaction)].kind;
                let is_debt = undone.as_compaction().is_some_and(|compaction| !compaction.debt.is_empty());
                match undone {
                    EntryKind::Prune(_) => self.happened("a prune was undone"),
                    _ if is_debt => self.happened("a debt was undone"),
                    _ => {}
                }
            }
            EntryKind::Note { kind, .. } if kind == "run_resumed" => {
                assert_eq!(self.open_run, None, "entry {id}: a run is resumed within another");
                self.open_run = Some(id);
            }
            EntryKind::RunEnded { run, outcome, .. } => {
                assert_eq!(self.open_run, Some(*run), "entry {id}: an end of a run without its beginning");
                self.is_interrupted = matches!(outcome, RunOutcome::Interrupted);
                assert!(self.questions.is_empty(), "entry {id}: {:?} outlive their run", self.questions);
                self.open_run = None;
            }
            EntryKind::Inbox { content, .. } => {
                self.inbox.push(id);
                self.queued.insert(greenroom_kernel::message::blocks_text(content));
            }
            EntryKind::InboxCleared { items } => {
                for item in items {
                    self.leaves_inbox(*item);
                    if let EntryKind::Inbox { content, .. } = &self.entries[place(*item)].kind {
                        self.withdrawn.insert(greenroom_kernel::message::blocks_text(content));
                    }
                }
            }
            EntryKind::CompactionStarted(_) => {
                assert_eq!(self.open_compaction, None, "entry {id}: a compaction began within another");
                self.open_compaction = Some(id);
            }
            EntryKind::CompactionEnded(ended) => {
                assert_eq!(self.open_compaction, Some(ended.started), "entry {id}: an end without its start");
                self.open_compaction = None;
                if ended.prepared_ms.is_some() {
                    self.happened("a compaction was prepared");
                }
                if ended.outcome.is_installed() {
                    self.installed = Some((**ended).clone());
                } else {
                    check_not_installed(id, ended);
                }
            }
            _ => {}
        }
    }

    fn happened(&mut self, what: &'static str) {
        *self.facts.entry(what).or_default() += 1;
    }

    /// A message recorded as joining a turn was a steer, within a run.
    fn check_steer(&mut self, id: EntryId, message: &Message, inbox: Option<EntryId>, steer: bool) {
        if !steer {
            return;
        }
        assert!(matches!(message, Message::User(_)), "entry {id}: only a user steers");
        assert!(self.open_run.is_some(), "entry {id}: a steer outside of a run");
        let queued = inbox.map(|inbox| &self.entries[place(inbox)].kind);
        let was_meant =
            queued.is_none_or(|kind| matches!(kind, EntryKind::Inbox { delivery: InboxDelivery::Steer, .. }));
        assert!(was_meant, "entry {id}: it was put in as no steer");
        self.happened("a steer joined a turn");
    }

    /// Returns the path that ends with an entry, newest first.
    fn path_back(&self, leaf: EntryId) -> impl Iterator<Item = &Arc<Entry>> {
        let mut next = Some(leaf);
        std::iter::from_fn(move || {
            let entry = &self.entries[place(next?)];
            next = entry.parent;
            Some(entry)
        })
    }

    /// Shortened results are on the path, were recorded whole, and get smaller.
    fn check_prune(&mut self, entry: &Entry, prune: &Prune) {
        let id = entry.id;
        assert!(!prune.results.is_empty(), "entry {id}: a prune of nothing");
        let path: HashSet<EntryId> = entry
            .parent
            .into_iter()
            .flat_map(|parent| self.path_back(parent))
            .map(|entry| entry.id)
            .collect();
        for result in &prune.results {
            let pruned = &self.entries[place(result.entry)];
            assert!(path.contains(&result.entry), "entry {id}: {result:?} is not on the path");
            assert_eq!(pruned.kind.as_message().map(|message| message.role()), Some("tool"), "entry {id}");
            assert!(result.tokens < pruned.tokens, "entry {id}: {result:?} of {}", pruned.tokens);
            let names = result.text.contains(&format!("entry {}", result.entry));
            assert!(names, "entry {id}: nobody is told where the rest is: {result:?}");
        }
        self.happened("results were pruned");
    }

    /// What a compaction carries stands in its entries, and within its bounds.
    fn check_carried(&mut self, id: EntryId, compaction: &Compaction, bounds: &Bounds) {
        let carried = &compaction.carried;
        let (words, ledger) = (bounds.settings.user_words, bounds.settings.ledger);
        assert!(words.is_some() || carried.words.is_empty(), "entry {id}: words although they are off");
        assert!(ledger.is_some() || carried.facts.is_empty(), "entry {id}: facts although they are off");
        let last = compaction.last.expect("ours name what they replace");
        let path: HashSet<EntryId> = self.path_back(last).map(|entry| entry.id).collect();
        for quote in &carried.words {
            let own = own_words(&self.entries[place(quote.entry)].kind).unwrap_or_default();
            let is_there = quote.text.split(" […] ").all(|part| own.contains(part));
            assert!(is_there && path.contains(&quote.entry), "entry {id}: {quote:?} is not in {own}");
        }
        for fact in &carried.facts {
            assert!(path.contains(&fact.entry), "entry {id}: {fact:?} is not on the path");
        }
        assert!(carried.facts.len() <= FACTS_MAX, "entry {id}: {} facts", carried.facts.len());
        let Some(recall) = compaction.recall else { return };
        assert_eq!(recall.facts, carried.facts.len() as u64, "entry {id}: {recall:?}");
        assert!(recall.before <= recall.after && recall.after <= recall.facts, "entry {id}: {recall:?}");
        if recall.before < recall.after {
            self.happened("facts were added");
        }
        if !carried.words.is_empty() {
            self.happened("words were carried");
        }
    }

    /// Each message before the kept part was read by a summary, or is a debt.
    fn check_debt(&mut self, id: EntryId, compaction: &Compaction, bounds: &Bounds) {
        let (first, last) = compaction.first.zip(compaction.last).expect("ours name what they replace");
        let before = compaction.base.map(|base| self.unread[&base].clone()).unwrap_or_default();
        let owed = compaction.base.map_or(0, |base| self.debt_of(base).len());
        let owes = |id: &EntryId| compaction.debt.iter().any(|range| (range.first..=range.last).contains(id));
        let unread: BTreeSet<EntryId> = if compaction.truncated && bounds.settings.strategy.wants_summary() {
            let cut = self.path_back(last).take_while(|entry| entry.id >= first);
            let cut = cut.filter(|entry| is_message(&entry.kind)).map(|entry| entry.id);
            before.union(&cut.collect()).copied().collect()
        } else if compaction.truncated || compaction.from_hook {
            before
        } else {
            // It has read what is no longer a debt.
            before.into_iter().filter(owes).collect()
        };
        let unknown: Vec<&EntryId> = unread.iter().filter(|id| !owes(id)).collect();
        assert!(
            unknown.is_empty(),
            "entry {id}: {unknown:?} were never summarised and are no debt: {compaction:?}"
        );
        if compaction.truncated && !compaction.debt.is_empty() {
            self.happened("a debt was made");
        }
        if !compaction.truncated && compaction.debt.len() < owed {
            self.happened("a debt was paid");
        }
        self.unread.insert(id, unread);
    }

    fn debt_of(&self, compaction: EntryId) -> &[greenroom_kernel::entry::EntryRange] {
        self.entries[place(compaction)].kind.as_compaction().map_or(&[], |compaction| &compaction.debt)
    }

    /// The request in progress and its steers are there verbatim.
    fn check_request(&mut self, entry: &Entry, compaction: &Compaction) {
        let id = entry.id;
        let (Some(first), Some(last), Some(first_kept)) =
            (compaction.first, compaction.last, compaction.first_kept)
        else {
            return;
        };
        let path = entry.parent.into_iter().flat_map(|parent| self.path_back(parent));
        let kept =
            path.take_while(|entry| entry.id >= first_kept).filter(|entry| is_message(&entry.kind)).last();
        if kept.is_some_and(|entry| is_turn_start(&entry.kind)) {
            return;
        }
        let replaced: Vec<Arc<Entry>> =
            self.path_back(last).take_while(|entry| entry.id >= first).cloned().collect();
        let turn = replaced.iter().position(|entry| is_turn_start(&entry.kind));
        let of_turn = &replaced[..turn.map_or(replaced.len(), |at| at + 1)];
        let request = compaction.active_request.as_deref().unwrap_or_default();
        let mut steers = 0;
        for said in of_turn.iter().filter(|entry| entry.kind.is_steer() || is_turn_start(&entry.kind)) {
            let text = said.kind.as_message().map(|message| message.text()).unwrap_or_default();
            // Long ones are bounded.
            let is_there = text.len() > 2_000 || request.contains(text.trim());
            assert!(is_there || request.contains("bytes cut"), "entry {id}: {text:?} is not in {request:?}");
            steers += usize::from(said.kind.is_steer());
        }
        if steers > 0 {
            self.happened("a steer was carried through a compaction");
        }
    }

    fn leaves_inbox(&mut self, item: EntryId) {
        let at = self.inbox.iter().position(|waits| *waits == item);
        self.inbox.remove(at.unwrap_or_else(|| panic!("input {item} leaves the inbox and was not in it")));
    }

    /// An installed compaction shrinks the context, makes room below its trigger, and is not a failed
    /// summary.
    fn check_installed(
        &self,
        entry: &Entry,
        ended: &CompactionEnded,
        compaction: &Compaction,
        bounds: &Bounds,
    ) {
        let id = entry.id;
        assert_eq!(ended.entry, Some(id), "{ended:?}");
        assert_eq!(
            (ended.tokens_before, ended.tokens_after, ended.trigger),
            (compaction.tokens_before, compaction.tokens_after, compaction.trigger)
        );
        assert!(!compaction.summary.trim().is_empty(), "entry {id}: an empty summary");
        for words in ["Sure! Next I will", "lorem 42 }{"] {
            assert!(!compaction.summary.contains(words), "entry {id}: a wrong summary was installed");
        }
        let is_fallback =
            matches!(ended.outcome, CompactionOutcome::Truncated { .. } | CompactionOutcome::Digested { .. });
        assert_eq!(is_fallback, compaction.truncated, "entry {id}: the fallback says what it is");
        // A provider with false usage reports makes the earlier size too small for a comparison.
        assert!(
            ended.tokens_after < ended.tokens_before || entry.tokens < self.replaced_tokens(compaction),
            "entry {id}: a compaction does not shrink: {ended:?}"
        );
        let Bounds { settings, window } = bounds;
        let trigger = settings.trigger_tokens(*window).unwrap_or(*window);
        let at_most = match ended.trigger {
            // A requested compaction always takes place.
            Trigger::Manual | Trigger::Hook | Trigger::HandOff => return,
            // At the window, anything that can be sent at all is better than nothing.
            _ if is_fallback || ended.trigger == Trigger::Overflow => *window - settings.reserve(*window) / 2,
            _ => share(trigger),
        };
        // Newest messages that cannot give way may leave more; then a tenth is free nevertheless. A provider
        // with false usage reports makes the earlier size too small, and trains a ratio with which the later
        // size is too large; then a tenth of what is sent is free by our own count.
        let is_a_tenth_less = |after: u64, before: u64| after <= before - before / 10;
        let frees_a_tenth = is_a_tenth_less(ended.tokens_after, ended.tokens_before) || {
            let mut path = path_to(&self.entries, entry.parent).expect("a parent is an earlier entry");
            let before = active_tokens(&path);
            path.push(Arc::new(entry.clone()));
            is_a_tenth_less(active_tokens(&path), before)
        };
        assert!(
            ended.tokens_after <= at_most || frees_a_tenth,
            "entry {id}: more than {at_most} tokens remain: {ended:?}"
        );
        if ended.trigger == Trigger::Threshold && !is_fallback {
            // The trigger was reached, so it is a bound that is independent of the window.
            let at_most = share(ended.tokens_before + 1);
            assert!(
                ended.tokens_after <= at_most || frees_a_tenth,
                "entry {id}: it frees too little: {ended:?}"
            );
        }
    }

    /// Returns the size of what a compaction replaces: the segment of the path, and the previous summary.
    fn replaced_tokens(&self, compaction: &Compaction) -> u64 {
        let (first, last) = compaction.first.zip(compaction.last).expect("ours name what they replace");
        let mut tokens = compaction.base.map_or(0, |base| self.entries[place(base)].tokens);
        let mut next = Some(last);
        while let Some(id) = next.filter(|id| *id >= first) {
            let entry = &self.entries[place(id)];
            if Some(id) != compaction.base && is_message(&entry.kind) {
                tokens += entry.tokens;
            }
            next = entry.parent;
        }
        tokens
    }

    /// Nothing is missing between two entries, and the head agrees with the entries.
    pub(crate) fn check_head(&self, head: &Head) {
        assert!(self.installed.is_none(), "the end of a compaction came without its summary");
        assert_eq!(head.entries, self.entries.len() as u64, "the head counts its entries");
        assert_eq!(head.open_run, self.open_run, "which run is open");
        assert_eq!(head.open_compaction, self.open_compaction, "which compaction is open");
        assert_eq!(head.inbox, self.inbox, "what waits");
        assert_eq!(head.questions, self.questions, "what is asked");
        let newest = self.entries.iter().rfind(|entry| match &entry.kind {
            EntryKind::LeafMoved { .. } => true,
            kind => kind.is_on_path(),
        });
        let leaf = newest.and_then(|entry| match &entry.kind {
            EntryKind::LeafMoved { to } => *to,
            _ => Some(entry.id),
        });
        assert_eq!(head.leaf, leaf, "where the path ends");
    }

    /// Nothing is in progress any more.
    pub(crate) fn check_settled(&self, head: &Head) {
        assert_eq!(self.open_run, None, "a run never ended");
        assert_eq!(self.open_compaction, None, "a compaction never ended");
        assert!(self.inbox.is_empty(), "input still waits: {:?}", self.inbox);
        assert!(self.questions.is_empty(), "questions without an end: {:?}", self.questions);
        let open = head.leaf.map(|leaf| &self.open_calls[place(leaf)]);
        assert!(open.is_none_or(|open| open.is_empty()), "calls were never answered: {open:?}");
    }
}

/// A compaction without effect says so, and why.
fn check_not_installed(id: EntryId, ended: &CompactionEnded) {
    assert_eq!((ended.entry, ended.messages_removed), (None, 0), "entry {id}: {ended:?}");
    let has_reason = ended.outcome.reason().is_some_and(|reason| !reason.trim().is_empty());
    let needs_one = matches!(
        ended.outcome,
        CompactionOutcome::Failed { .. }
            | CompactionOutcome::Cancelled { .. }
            | CompactionOutcome::Nothing { .. }
    );
    assert_eq!(has_reason, needs_one, "entry {id}: {ended:?}");
}

/// Returns the summary and the messages that are sent for a path, in tokens by our own count.
fn active_tokens(path: &[Arc<Entry>]) -> u64 {
    let path = as_sent(path);
    let active = ActivePath::of(&path);
    let summary = active.compaction.map_or(0, |index| path[index].tokens);
    let messages = active.entries().iter().filter(|entry| is_message(&entry.kind));
    summary + messages.map(|entry| entry.tokens).sum::<u64>()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "windows are far below 2^52 tokens"
)]
fn share(tokens: u64) -> u64 {
    (tokens as f64 * SUCCESS_SHARE) as u64
}

fn place(id: EntryId) -> usize {
    usize::try_from(id.0).expect("a log in memory")
}

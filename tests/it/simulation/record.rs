//! One session's log, followed entry by entry: what must hold of it after every step.
//!
//! Invariants: each entry is looked at once, when it is new, so that a long life costs no more than its entries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::entry::{
    Compaction, CompactionEnded, CompactionOutcome, Entry, EntryId, EntryKind, Trigger,
};
use greenroom_kernel::message::{Message, StopReason};
use greenroom_kernel::path::is_message;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_store::Head;

/// The share of its trigger that a context has at most after a compaction that nobody asked for.
const SUCCESS_SHARE: f64 = 0.7;

/// What decides how small a compaction must make a context.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) settings: CompactionSettings,
    /// The largest window that the model was taken to have.
    pub(crate) window: u64,
}

/// A session's log so far.
#[derive(Debug, Default)]
pub(crate) struct Record {
    entries: Vec<Arc<Entry>>,
    /// For each entry: the calls that are open on the path that ends with it.
    open_calls: Vec<Arc<BTreeSet<String>>>,
    open_run: Option<EntryId>,
    open_compaction: Option<EntryId>,
    /// The end of a compaction whose summary must come next.
    installed: Option<CompactionEnded>,
    inbox: Vec<EntryId>,
    /// The texts that users said, and those that were put into the inbox.
    said: HashSet<String>,
    queued: HashSet<String>,
    /// How often the model asked for each call.
    asked: HashMap<String, u64>,
}

impl Record {
    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// How often the model asked for a call.
    pub(crate) fn asked(&self, call: &str) -> u64 {
        self.asked.get(call).copied().unwrap_or(0)
    }

    /// Whether a user said this.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        self.said.contains(text)
    }

    /// Whether a user said this, or it waits.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.has_said(text) || self.queued.contains(text)
    }

    /// Takes a new entry.
    pub(crate) fn push(&mut self, entry: Entry, bounds: &Bounds) {
        let id = entry.id;
        assert_eq!(id.0, self.entries.len() as u64, "ids are dense");
        assert!(entry.parent.is_none_or(|parent| parent < id), "entry {id}: a parent is earlier");
        let entry = Arc::new(entry);
        let before = entry.parent.map(|parent| Arc::clone(&self.open_calls[place(parent)]));
        let before = before.unwrap_or_default();
        let installed = self.installed.take();
        assert_eq!(
            installed.is_some(),
            entry.kind.as_compaction().is_some(),
            "entry {id}: a summary comes with the end of its compaction, and at no other time"
        );
        let after = match &entry.kind {
            EntryKind::Message { message, inbox, .. } => {
                if let Some(waited) = inbox {
                    self.leaves_inbox(*waited);
                }
                self.message(id, message, before)
            }
            other => {
                self.other(id, other);
                before
            }
        };
        if let (Some(ended), Some(compaction)) = (installed, entry.kind.as_compaction()) {
            self.check_installed(&entry, &ended, compaction, bounds);
        }
        self.entries.push(entry);
        self.open_calls.push(after);
    }

    /// On every path, each call has one result, directly after it; only the newest answer may have open calls.
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
                // What joins a current run begins none.
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
            EntryKind::Note { kind, data } if kind == "run_resumed" => {
                assert_eq!(self.open_run, None, "entry {id}: a run is resumed within another");
                self.open_run = Some(EntryId(data.parse().expect("a note of ours")));
            }
            EntryKind::RunEnded { run, .. } => {
                assert_eq!(self.open_run, Some(*run), "entry {id}: an end of a run without its beginning");
                self.open_run = None;
            }
            EntryKind::Inbox { content, .. } => {
                self.inbox.push(id);
                self.queued.insert(greenroom_kernel::message::blocks_text(content));
            }
            EntryKind::InboxCleared { items } => items.iter().for_each(|item| self.leaves_inbox(*item)),
            EntryKind::CompactionStarted(_) => {
                assert_eq!(self.open_compaction, None, "entry {id}: a compaction began within another");
                self.open_compaction = Some(id);
            }
            EntryKind::CompactionEnded(ended) => {
                assert_eq!(self.open_compaction, Some(ended.started), "entry {id}: an end without its start");
                self.open_compaction = None;
                if ended.outcome.is_installed() {
                    self.installed = Some(ended.clone());
                } else {
                    check_not_installed(id, ended);
                }
            }
            _ => {}
        }
    }

    fn leaves_inbox(&mut self, item: EntryId) {
        let at = self.inbox.iter().position(|waits| *waits == item);
        self.inbox.remove(at.unwrap_or_else(|| panic!("input {item} leaves the inbox and was not in it")));
    }

    /// An installed compaction shrinks, makes room below its trigger, and is no failed summary.
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
        let is_fallback = matches!(ended.outcome, CompactionOutcome::Truncated);
        assert_eq!(is_fallback, compaction.truncated, "entry {id}: the fallback says what it is");
        // A provider that lies about its usage makes the size before too small to compare with.
        assert!(
            ended.tokens_after < ended.tokens_before || entry.tokens < self.replaced_tokens(compaction),
            "entry {id}: a compaction does not shrink: {ended:?}"
        );
        let Bounds { settings, window } = bounds;
        let trigger = settings.trigger_tokens(*window).unwrap_or(*window);
        let at_most = match ended.trigger {
            // Whoever asks for one gets it.
            Trigger::Manual | Trigger::Hook => return,
            // At the window, what can be sent at all is better than nothing.
            _ if is_fallback => *window - settings.reserve(*window) / 2,
            _ => share(trigger),
        };
        assert!(ended.tokens_after <= at_most, "entry {id}: more than {at_most} tokens remain: {ended:?}");
        if ended.trigger == Trigger::Threshold && !is_fallback {
            // The trigger was reached, so it is a bound that knows no window.
            let at_most = share(ended.tokens_before + 1);
            assert!(ended.tokens_after <= at_most, "entry {id}: it frees too little: {ended:?}");
        }
    }

    /// What a compaction replaces: the segment of the path, and the summary before it.
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

    /// Nothing is between two entries, and the head says what the entries say.
    pub(crate) fn check_head(&self, head: &Head) {
        assert!(self.installed.is_none(), "the end of a compaction came without its summary");
        assert_eq!(head.entries, self.entries.len() as u64, "the head counts its entries");
        assert_eq!(head.open_run, self.open_run, "which run is open");
        assert_eq!(head.open_compaction, self.open_compaction, "which compaction is open");
        assert_eq!(head.inbox, self.inbox, "what waits");
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

    /// Nothing is under way any more.
    pub(crate) fn check_settled(&self, head: &Head) {
        assert_eq!(self.open_run, None, "a run never ended");
        assert_eq!(self.open_compaction, None, "a compaction never ended");
        assert!(self.inbox.is_empty(), "input still waits: {:?}", self.inbox);
        let open = head.leaf.map(|leaf| &self.open_calls[place(leaf)]);
        assert!(open.is_none_or(|open| open.is_empty()), "calls were never answered: {open:?}");
    }
}

/// A compaction that changed nothing says so, and why.
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

//! The events of a log's entries.
//!
//! Invariants: every entry has exactly one event, which depends only on the log, so it is the same whenever
//! it is read.

use std::borrow::Borrow;
use std::sync::Arc;

use greenroom_kernel::entry::{ChildRecord, ChildStage, HandOff, Metadata, Spender};
use greenroom_kernel::terms::Terms;
use greenroom_kernel::{Entry, EntryId, EntryKind, RunId};

use crate::events::event::{Event, EventKind, Record};
use crate::events::message_view::{MessageView, Role, role_of};
use crate::values::compaction::Compacted;

#[cfg(test)]
mod tests;

/// Returns the events of consecutive entries of a log, up to its end: every entry has exactly one. `open_run`
/// is the run in progress after the last of them.
pub fn of_entries<'a, E: Borrow<Entry>>(
    session: &'a Arc<str>,
    parent: Option<&'a Arc<str>>,
    created_at_ms: u64,
    entries: &'a [E],
    open_run: Option<RunId>,
) -> impl Iterator<Item = Event> + 'a {
    let runs = runs_of(entries, open_run);
    entries.iter().zip(runs).map(move |(entry, run)| Event {
        session_created_at_ms: created_at_ms,
        ..of_entry(session, parent, run, entry.borrow())
    })
}

/// A durable entry whose event is to be published, and its run. The event is made when it is published: where nobody
/// listens, no text is copied.
#[derive(Debug, Clone)]
pub(crate) struct Due {
    pub(crate) entry: Arc<Entry>,
    pub(crate) run: Option<RunId>,
}

impl Due {
    /// Returns consecutive entries of a log, up to its end, as [`of_entries`] does.
    pub(crate) fn of(entries: &[Arc<Entry>], open_run: Option<RunId>) -> Vec<Self> {
        let of_run = |entry: &Arc<Entry>, run| Self { entry: Arc::clone(entry), run };
        with_runs(entries, open_run, of_run)
    }

    /// Returns the event.
    pub(crate) fn event(&self, session: &Arc<str>, parent: Option<&Arc<str>>, created_at_ms: u64) -> Event {
        Event { session_created_at_ms: created_at_ms, ..of_entry(session, parent, self.run, &self.entry) }
    }

    /// Returns the kind of the event as far as the order of events depends on it: that of a message has only its role.
    pub(crate) fn outline(&self) -> EventKind {
        let EntryKind::Message { message, inbox, .. } = &self.entry.kind else { return kind_of(&self.entry) };
        let message = MessageView::plain(role_of(message), String::new());
        EventKind::MessageEnd { entry_id: self.entry.id, message, queued: *inbox }
    }
}

/// The kind of the note that starts a run which continues an unanswered message; its data is that message's
/// id. The run's id is the note's, because each run has one end.
pub(crate) const RUN_RESUMED: &str = "run_resumed";

fn runs_of<E: Borrow<Entry>>(entries: &[E], open_run: Option<RunId>) -> Vec<Option<RunId>> {
    with_runs(entries, open_run, |_, run| run)
}

/// Returns something of each entry and its run. A run ends with the entry of its end, and starts with the entry whose id
/// it has: a prompt, or the note that an unanswered one is resumed.
fn with_runs<'a, E: Borrow<Entry>, T>(
    entries: &'a [E],
    open_run: Option<RunId>,
    of: impl Fn(&'a E, Option<RunId>) -> T,
) -> Vec<T> {
    let mut run = open_run;
    let newest_first = entries.iter().rev().map(|with| {
        let entry = with.borrow();
        if let EntryKind::RunEnded { run: ended, .. } = &entry.kind {
            run = Some(*ended);
        }
        // An imported end may name a run that is not in this log.
        run = run.filter(|run| *run <= entry.id);
        let its_run = run;
        if run == Some(entry.id) {
            run = None;
        }
        of(with, its_run)
    });
    let mut all: Vec<T> = newest_first.collect();
    all.reverse();
    all
}

fn of_entry(session: &Arc<str>, parent: Option<&Arc<str>>, run: Option<RunId>, entry: &Entry) -> Event {
    Event {
        session: Arc::clone(session),
        session_created_at_ms: 0,
        seq: entry.id.0,
        n: None,
        at_ms: entry.at_ms,
        run,
        parent: parent.cloned(),
        kind: kind_of(entry),
    }
}

fn kind_of(entry: &Entry) -> EventKind {
    let entry_id = entry.id;
    let recorded = |record: Record| EventKind::Recorded { entry_id, record };
    let message_end = |role, text| {
        let message = MessageView::plain(role, text);
        EventKind::MessageEnd { entry_id, message, queued: None }
    };
    match &entry.kind {
        EntryKind::Message { message, inbox, .. } => {
            EventKind::MessageEnd { entry_id, message: MessageView::of(message), queued: *inbox }
        }
        EntryKind::Shell(shell) => message_end(Role::Shell, shell.output.clone()),
        EntryKind::Custom(custom) => {
            message_end(Role::Custom, greenroom_kernel::message::blocks_text(&custom.content))
        }
        EntryKind::BranchSummary { summary, .. } => message_end(Role::BranchSummary, summary.clone()),
        EntryKind::Compaction(compaction) => EventKind::SessionCompacted {
            entry_id,
            tokens_saved: compaction.tokens_before.saturating_sub(compaction.tokens_after),
        },
        EntryKind::Prune(prune) => EventKind::ResultsPruned {
            entry_id,
            results: prune.results.len() as u64,
            tokens_saved: prune.tokens_before.saturating_sub(prune.tokens_after),
        },
        EntryKind::CompactionUndone { compaction } => EventKind::CompactionUndone { compaction: *compaction },
        EntryKind::CompactionStarted(started) => EventKind::CompactionStart {
            entry_id,
            trigger: started.trigger,
            tokens_before: started.tokens_before,
            messages_before: started.messages_before,
        },
        EntryKind::CompactionEnded(ended) => EventKind::CompactionEnd(Compacted::from(&**ended)),
        EntryKind::RunEnded { outcome, context, bill, .. } => EventKind::RunEnd {
            outcome: outcome.clone(),
            context: *context,
            cost_microdollars: bill.cost_microdollars,
            is_cost_estimated: bill.is_estimated(),
        },
        EntryKind::Inbox { delivery, .. } => EventKind::InputQueued { entry_id, delivery: *delivery },
        EntryKind::InboxCleared { items } => recorded(Record::InboxCleared { items: items.clone() }),
        EntryKind::Pin { entry, pinned } => recorded(Record::Pin { entry: *entry, pinned: *pinned }),
        EntryKind::ModelChange { provider, model } => {
            recorded(Record::ModelChange { provider: provider.clone(), model: model.clone() })
        }
        EntryKind::Label { target, label } => {
            recorded(Record::Label { target: *target, label: label.clone() })
        }
        EntryKind::Note { kind, data } => recorded(Record::Note { name: kind.clone(), data: data.clone() }),
        EntryKind::LeafMoved { to } => recorded(Record::LeafMoved { to: *to }),
        EntryKind::Spent(spent) => recorded(Record::Spent {
            sub_agent: match &spent.by {
                Spender::SubAgent { session } => Some(session.clone()),
                Spender::BranchSummary | Spender::Calls => None,
            },
            usage: spent.usage,
            cost_microdollars: spent.cost_microdollars,
        }),
        EntryKind::WholeResult { call_id, .. } => recorded(Record::WholeResult { call_id: call_id.clone() }),
        EntryKind::Child(child) => of_child(entry_id, child),
        EntryKind::HandOff(HandOff { from, to, sees }) => {
            EventKind::HandOff { from: from.clone(), to: to.clone(), sees: *sees }
        }
        EntryKind::CallStarted { call_id } => recorded(Record::CallStarted { call_id: call_id.clone() }),
        EntryKind::Terms { terms, .. } => {
            let Terms { output, settings, cost_limit, timeout_ms, validators, unnamed_validators: _, again } =
                Terms::clone(terms);
            recorded(Record::Terms {
                output: output.map(|output| output.name),
                settings,
                cost_limit_microdollars: cost_limit,
                timeout_ms,
                validators,
                again,
            })
        }
        EntryKind::Question(asked) => EventKind::QuestionAsked {
            entry_id,
            call_id: asked.call_id.clone(),
            tool: asked.tool.clone(),
            asker: asked.asker,
            question: asked.question.clone(),
            expires_at_ms: asked.expires_at_ms,
        },
        EntryKind::QuestionEnded { question, end } => {
            EventKind::QuestionEnded { question: *question, end: end.clone() }
        }
        EntryKind::Metadata(metadata) => recorded(match metadata {
            Metadata::Title { title } => Record::Title { title: title.clone() },
            Metadata::Label { name, value } => {
                Record::SessionLabel { name: name.clone(), value: value.clone() }
            }
        }),
        _ => recorded(Record::Unknown { name: "unknown".to_owned(), fields: serde_json::Map::new() }),
    }
}

fn of_child(entry_id: EntryId, child: &ChildRecord) -> EventKind {
    let ChildRecord { call_id, name, session, stage } = child;
    let (call_id, name, child) = (call_id.clone(), name.clone(), session.clone());
    match stage {
        ChildStage::Started => EventKind::ChildStart { entry_id, call_id, name, child },
        ChildStage::Ended { started, outcome } => {
            EventKind::ChildEnd { started: *started, call_id, name, child, outcome: outcome.clone() }
        }
    }
}

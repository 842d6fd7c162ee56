//! Logs from drawn entries: the head after each entry, the contents of the memory, and that a log opened from
//! the store equals the log to which its entries were committed.
//!
//! A drawing uses [`crate::tests::notation`], with words for entries beside the path; each word is a batch of its
//! own: `wait`, `steer` and `follow` queue input; `deliver` moves the oldest onto the path; `clear` withdraws
//! all; `begin` starts a run with the newest message (`begin!` with terms), and `completed`, `aborted`, `cut`
//! end it; `start` starts a compaction, and `done`, `failed`, `failed!` (by hand), `left` end it; in `ask=k`
//! the call asks a person, and `answer` answers the oldest question; `child=k` starts a sub-agent for the
//! call, and `back` ends the oldest; `title=x`, `label=x` and `unlabel=x` name the session; `to=x` hands it
//! to another agent and `narrow=x` hides the messages before; `spent` bills another session's spending;
//! `model` changes the model; `move@N` moves the leaf; `prune@N` shortens the result N.

use serde_json::{Value, json};

use super::*;
use crate::bill::Tally;
use crate::compacting::{PruneSegment, Segment};
use crate::entry::{
    ChildStage, CompactionOutcome, HandOff, Metadata, Prune, PrunedResult, RunOutcome, Sees, Spender, Spent,
    Trigger,
};
use crate::message::{AssistantMessage, StopReason, ToolResult, ToolStatus, Usage};
use crate::path::{PinnedPath, newest_rewrite, path_within};
use crate::question::{AnswerError, AskedQuestion, Asker, GivenAnswer, Question, QuestionEnd, QuestionKind};
use crate::tests::notation::{Random, Sketch, drawn, says, usage};
use crate::usage::{ContextUsage, Measured};

/// One micro-dollar per token of the model `test-1`; no other model has a price.
fn cost(_: &str, model: &str, usage: &Usage) -> Option<u64> {
    (model == "test-1").then(|| usage.total_tokens())
}

/// A log, and the store that it was appended to.
struct Life {
    log: Log,
    stored: Vec<Arc<Entry>>,
    sketch: Sketch,
}

impl Life {
    fn new() -> Self {
        let mut life = Self { log: Log::new(cost), stored: Vec::new(), sketch: Sketch::default() };
        life.append(|_, draft| draft.begin("test", "test-1", None, 1));
        life
    }

    fn of(drawing: &str) -> Self {
        let mut life = Self::new();
        drawing.split_whitespace().for_each(|word| life.add(word));
        life
    }

    fn append(&mut self, push: impl FnOnce(&Log, &mut Draft)) {
        let mut draft = self.log.draft(self.stored.len() as u64 + 10);
        push(&self.log, &mut draft);
        self.stored.extend(draft.entries().iter().cloned());
        let moved = draft.entries().iter().any(|entry| matches!(entry.kind, EntryKind::LeafMoved { .. }));
        let branch = moved.then(|| PinnedPath::within(&self.stored, draft.head().leaf));
        branch.iter().for_each(|branch| draft.follow_branch(branch, 0));
        self.log.commit(draft);
        branch.into_iter().for_each(|branch| self.log.replace_path(branch));
        // Placeholders for these entries where the drawing continues.
        while self.sketch.path.len() < self.stored.len() {
            self.sketch.push(EntryKind::Note { kind: "test".into(), data: "{}".into() }, 0);
        }
    }

    fn add(&mut self, word: &str) {
        let (name, of) = word.split_once('=').unwrap_or((word, ""));
        let of = of.to_owned();
        match name {
            "wait" => self.wait(InboxDelivery::Prompt),
            "steer" => self.wait(InboxDelivery::Steer),
            "follow" => self.wait(InboxDelivery::FollowUp),
            "deliver" => self.append(|log, draft| _ = draft.deliver(&log.inbox()[0], false)),
            "clear" => self.append(|log, draft| {
                let waiting = log.inbox().iter().map(|item| item.id).collect();
                draft
                    .amend(Amendment::ClearInbox { only: None }, waiting, fits)
                    .expect("nothing is said against it");
            }),
            "begin" => self.begin(None),
            "begin!" => self.begin(Some(terms(5))),
            "completed" => self.end(RunOutcome::Completed),
            "aborted" => self.end(RunOutcome::Aborted),
            "cut" => self.end(RunOutcome::Interrupted),
            "start" => self.append(|_, draft| {
                let started =
                    CompactionStarted { trigger: Trigger::Threshold, tokens_before: 9, messages_before: 3 };
                draft.push(EntryKind::CompactionStarted(started));
            }),
            "done" => self.end_compaction(CompactionOutcome::Completed, Trigger::Threshold),
            "failed" => {
                self.end_compaction(CompactionOutcome::Failed { reason: "x".into() }, Trigger::Threshold);
            }
            "failed!" => {
                self.end_compaction(CompactionOutcome::Failed { reason: "x".into() }, Trigger::Manual);
            }
            "left" => self.append(|log, draft| draft.close_compaction(log)),
            "ask" => self.push(EntryKind::Question(Arc::new(asked(&of, None)))),
            "answer" => self.append(|log, draft| {
                let question = log.questions().open().next().expect("one is open").id;
                let answer = GivenAnswer::from("yes");
                draft
                    .amend(Amendment::Answer { question, answer }, Vec::new(), fits)
                    .expect("any text is an answer");
            }),
            "child" => self.push(EntryKind::Child(ChildRecord {
                call_id: of,
                name: "helper".into(),
                session: "below".into(),
                stage: ChildStage::Started,
            })),
            "back" => self.append(|log, draft| {
                let (started, child) = &log.children()[0];
                let spent =
                    Bill { usage: usage(3, 4).expect("given"), cost_microdollars: 7, ..Bill::default() };
                draft.end_child(*started, child, RunOutcome::Completed, spent);
            }),
            "title" => self.push(EntryKind::Metadata(Metadata::Title { title: Some(of) })),
            "label" => {
                self.push(EntryKind::Metadata(Metadata::Label { name: of.clone(), value: Some(of) }));
            }
            "unlabel" => self.push(EntryKind::Metadata(Metadata::Label { name: of, value: None })),
            "to" => self.hand_over(of, Sees::All),
            "narrow" => self.hand_over(of, Sees::Last(1)),
            "spent" => self.push(EntryKind::Spent(Spent {
                by: Spender::Calls,
                usage: usage(5, 1).expect("given"),
                cost_microdollars: None,
            })),
            "model" => {
                self.push(EntryKind::ModelChange { provider: "test".into(), model: "test-2".into() });
            }
            _ if name.starts_with("move@") => {
                let to = name[5..].parse().map(EntryId).expect("a number");
                self.append(|_, draft| _ = draft.push(EntryKind::LeafMoved { to: Some(to) }));
            }
            _ if name.starts_with("prune@") => {
                let id = name[6..].parse().expect("a number");
                self.push(EntryKind::Prune(Box::new(prune_segment(None, &[id]).prune)));
            }
            _ => {
                self.sketch.add_all(word);
                let kind = self.sketch.path.pop().expect("it was drawn").kind.clone();
                self.push(kind);
            }
        }
    }

    /// Undoes the newest compaction of the path, if there is one.
    fn undo(&mut self) -> bool {
        let mut after = PinnedPath::within(&self.stored, self.log.head().leaf);
        let Some(index) = newest_rewrite(&after.path) else { return false };
        let compaction = after.path[index].id;
        self.append(|_, draft| {
            draft.push(EntryKind::CompactionUndone { compaction });
            after.path.extend(draft.entries().last().map(Arc::clone));
            draft.follow_path(&after.path, 0);
        });
        self.log.replace_path(after);
        true
    }

    fn push(&mut self, kind: EntryKind) {
        self.append(|_, draft| _ = draft.push(kind));
    }

    fn wait(&mut self, delivery: InboxDelivery) {
        let content = vec![Block::Text(format!("m{}. waits", self.stored.len()))];
        let terms = Some(terms(9));
        self.push(EntryKind::Inbox { delivery, content, key: None, fingerprint: Some("f".into()), terms });
    }

    fn begin(&mut self, terms: Option<Arc<Terms>>) {
        let newest = self.stored.iter().rfind(|entry| is_message(&entry.kind)).expect("a message");
        let run = newest.id;
        self.append(|_, draft| draft.begin_run(run, terms, None, Some("f".into())));
    }

    fn end(&mut self, outcome: RunOutcome) {
        let run = self.log.head().open_run.expect("a run is open");
        self.append(|_, draft| draft.end_run(run, outcome, context(40)));
    }

    fn end_compaction(&mut self, outcome: CompactionOutcome, trigger: Trigger) {
        self.append(|log, draft| {
            let ended = log.interrupted_compaction().expect("one is open");
            let summary_usage = usage(2, 1).expect("given");
            let cost_microdollars = Some(30);
            draft.push(EntryKind::CompactionEnded(Box::new(CompactionEnded {
                outcome,
                trigger,
                summary_usage,
                cost_microdollars,
                ..ended
            })));
        });
    }

    fn hand_over(&mut self, to: String, sees: Sees) {
        self.push(EntryKind::HandOff(HandOff { from: "first".into(), to, sees }));
    }

    /// Opens the log from the store, as the next actor does.
    fn opened(&self) -> Log {
        let head = self.log.head().clone();
        let (before, loaded) = self.stored.split_at(usize::try_from(head.active_from.0).expect("small"));
        let named = head.inbox.iter().chain(&head.pins).chain(&head.open_children).copied();
        let named: Vec<EntryId> =
            named.chain(head.active_compaction).chain(head.open_compaction).chain(head.run_terms).collect();
        let extra: Vec<_> = before.iter().filter(|entry| named.contains(&entry.id)).cloned().collect();
        Log::open(head, loaded, &extra, cost)
    }

    /// Asserts that the log agrees with its head, and so does the log opened from the store, and that both
    /// are equal.
    #[track_caller]
    fn assert_same_when_opened(&mut self, told: &str) {
        let mut opened = self.opened();
        assert_eq!(self.log.check(), Ok(()), "{told}");
        assert_eq!(opened.check(), Ok(()), "opened, {told}");
        let ids = |entries: &[Arc<Entry>]| entries.iter().map(|entry| entry.id.0).collect::<Vec<_>>();
        assert_eq!(ids(&opened.path), ids(&self.log.path), "{told}");
        assert_eq!(ids(&opened.pinned), ids(&self.log.pinned), "{told}");
        assert_eq!(opened.inbox, self.log.inbox, "{told}");
        assert_eq!(opened.compaction, self.log.compaction, "{told}");
        assert_eq!(opened.children, self.log.children, "{told}");
        assert_eq!(opened.run_terms, self.log.run_terms, "{told}");
        assert_eq!(opened.questions, self.log.questions, "{told}");
        assert_eq!(drawn(&opened.context()), drawn(&self.log.context()), "{told}");
    }
}

fn terms(timeout_ms: u64) -> Arc<Terms> {
    Arc::new(Terms { timeout_ms: Some(timeout_ms), ..Terms::default() })
}

fn context(tokens: u64) -> ContextUsage {
    let measured = Measured { usage_tokens: tokens, trailing_tokens: 0 };
    ContextUsage::new(measured, Window { tokens: Some(100), source: WindowSource::Catalog })
}

fn asked(call_id: &str, expires_at_ms: Option<u64>) -> AskedQuestion {
    AskedQuestion {
        run: EntryId(0),
        call_id: call_id.to_owned(),
        tool: "read".into(),
        ordinal: 0,
        asker: Asker::Tool,
        question: Question::text("May I?"),
        expires_at_ms,
    }
}

/// A schema check; no question here has a schema.
fn fits(_: &Value, _: &Value) -> Result<(), String> {
    Err("it does not".into())
}

/// Describes a head, without the facts that every session has, sizes and bills.
fn described(head: &Head) -> String {
    let ids = |ids: &[EntryId]| ids.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let one = |id: Option<EntryId>| id.map(|id| id.to_string()).unwrap_or_default();
    let labels = head.labels.keys().cloned().collect::<Vec<_>>().join(",");
    let failures = Some(head.automatic_compaction_failures).filter(|failures| *failures > 0);
    let from = Some(head.active_from).filter(|from| from.0 > 0);
    let hidden = Some(head.hidden_before).filter(|hidden| hidden.0 > 0);
    let parts = [
        ("leaf", one(head.leaf)),
        ("from", one(from)),
        ("compaction", one(head.active_compaction)),
        ("inbox", ids(&head.inbox)),
        ("pins", ids(&head.pins)),
        ("run", one(head.open_run)),
        ("terms", one(head.run_terms)),
        ("interrupted", one(head.interrupted)),
        ("compacting", one(head.open_compaction)),
        ("failures", failures.map(|failures| failures.to_string()).unwrap_or_default()),
        ("questions", ids(&head.questions)),
        ("children", ids(&head.open_children)),
        ("title", head.title.clone().unwrap_or_default()),
        ("labels", labels),
        ("agent", head.agent.clone().unwrap_or_default()),
        ("hidden", one(hidden)),
    ];
    let said = parts.into_iter().filter(|(_, value)| !value.is_empty());
    said.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn check(drawing: &str, head: &str) {
    let mut life = Life::of(drawing);
    assert_eq!(described(life.log.head()), head, "of {drawing}");
    life.assert_same_when_opened(drawing);
}

/// Checks the entries that a draft adds to a drawing.
#[track_caller]
fn check_draft(drawing: &str, make: impl FnOnce(&Log) -> Option<Box<Draft>>, adds: &str, head: &str) {
    let life = Life::of(drawing);
    let draft = make(&life.log).unwrap_or_else(|| life.log.draft(99));
    let added: Vec<&str> = draft.entries().iter().map(|entry| name(&entry.kind)).collect();
    assert_eq!(added.join(" "), adds, "of {drawing}");
    assert_eq!(described(draft.head()), head, "of {drawing}");
    assert_eq!(
        described(life.log.head()),
        described(Life::of(drawing).log.head()),
        "a draft changes nothing"
    );
}

#[expect(clippy::wildcard_enum_match_arm, reason = "only what a recovery records has a name here")]
fn name(kind: &EntryKind) -> &'static str {
    match kind {
        EntryKind::Message { .. } => "message",
        EntryKind::WholeResult { .. } => "whole",
        EntryKind::CompactionEnded(_) => "end",
        EntryKind::RunEnded { .. } => "run-end",
        EntryKind::QuestionEnded { end: QuestionEnd::Withdrawn, .. } => "withdrawn",
        EntryKind::QuestionEnded { end: QuestionEnd::Expired, .. } => "expired",
        EntryKind::QuestionEnded { end: QuestionEnd::Answered(_), .. } => "answered",
        EntryKind::InboxCleared { .. } => "cleared",
        EntryKind::Terms { .. } => "terms",
        EntryKind::Metadata(_) => "metadata",
        _ => "other",
    }
}

#[test]
fn a_head_says_where_the_path_ends_and_begins() {
    check("", "");
    check("u a", "leaf 1");
    // Entries beside the path do not move the leaf.
    check("u a spent title=x", "leaf 1, title x");
    check("u a u C@2 a", "leaf 4, from 2, compaction 3");
    check("u a u C@2 a u C@5", "leaf 6, from 5, compaction 6");
    check("u a move@0 u", "leaf 3");
    check("u p@0 a p@1", "leaf 3, pins 0,1");
    // An imported compaction may keep nothing, or name a missing entry.
    check("u a C u", "leaf 3, from 2, compaction 2");
    check("u a C@99 u", "leaf 3, from 2, compaction 2");
}

#[test]
fn what_waits_is_there_until_it_is_delivered_or_withdrawn() {
    check("wait", "inbox 0");
    check("u wait steer follow", "leaf 0, inbox 1,2,3");
    check("u wait steer deliver", "leaf 3, inbox 2");
    check("u wait steer clear", "leaf 0");
    check("u clear", "leaf 0");
    let life = Life::of("u steer wait");
    let items: Vec<_> =
        life.log.inbox().iter().map(|item| (item.id.0, item.delivery, item.fingerprint.as_deref())).collect();
    assert_eq!(items, [(1, InboxDelivery::Steer, Some("f")), (2, InboxDelivery::Prompt, Some("f"))]);
}

#[test]
fn a_run_is_open_from_its_beginning_to_its_end() {
    check("u begin", "leaf 0, run 0");
    check("u begin! a", "leaf 2, run 0, terms 1");
    // Nobody needs the terms of a completed run; those of another run are needed to resume it.
    check("u begin! a completed", "leaf 2");
    check("u begin! a aborted", "leaf 2, terms 1");
    check("u begin! a cut", "leaf 2, terms 1, interrupted 0");
    check("u begin! a cut u begin", "leaf 4, run 4");
    // A branch leaves an interrupted run behind.
    check("u begin! a cut move@0", "leaf 0");
}

#[test]
fn terms_that_are_recorded_are_not_recorded_again() {
    #[track_caller]
    fn check(asked: Option<Arc<Terms>>, recorded: Option<Arc<Terms>>, entry: Option<u64>, adds: usize) {
        let life = Life::of("u wait");
        let mut draft = life.log.draft(9);
        draft.begin_run(EntryId(0), asked, recorded.map(|terms| (EntryId(1), terms)), None);
        assert_eq!((draft.head().run_terms, draft.entries().len()), (entry.map(EntryId), adds));
    }
    check(None, None, None, 0);
    check(Some(terms(9)), None, Some(2), 1);
    check(Some(terms(9)), Some(terms(9)), Some(1), 0);
    check(Some(terms(8)), Some(terms(9)), Some(2), 1);
    check(None, Some(terms(9)), None, 0);
    // Queued input keeps its terms.
    let mut life = Life::of("u a wait");
    let waited = life.log.inbox()[0].clone();
    life.append(|_, draft| {
        let run = draft.deliver(&waited, false);
        draft.begin_run(run, Some(terms(9)), waited.terms.clone().map(|terms| (waited.id, terms)), None);
    });
    assert_eq!(life.log.run_terms(), Some((EntryId(2), &terms(9))));
    life.assert_same_when_opened("delivered");
}

#[test]
fn failed_automatic_compactions_are_counted_until_one_is_installed() {
    check("u start", "leaf 0, compacting 1");
    check("u start failed", "leaf 0, failures 1");
    check("u start failed start failed", "leaf 0, failures 2");
    check("u start failed start done", "leaf 0");
    check("u start failed!", "leaf 0");
    check("u start left", "leaf 0");
    for (max, left) in [(3, 2), (2, 2), (1, 1), (0, 0)] {
        let mut life = Life::of("u start failed start failed");
        life.log.forget_failures_above(max);
        assert_eq!(life.log.head().automatic_compaction_failures, left);
    }
}

#[test]
fn questions_end_with_their_calls_at_the_latest() {
    check("u begin c=k,l ask=k", "leaf 1, run 0, questions 2");
    check("u begin c=k,l ask=k ask=l answer", "leaf 1, run 0, questions 3");
    check("u begin c=k,l ask=k ask=l r=k", "leaf 5, run 0, questions 3");
    check("u begin c=k,l ask=k ask=l aborted", "leaf 1");
    let life = Life::of("u begin c=k ask=k r=k");
    let end = &life.stored[3].kind;
    assert_eq!(*end, EntryKind::QuestionEnded { question: EntryId(2), end: QuestionEnd::Withdrawn });
}

#[test]
fn answers_that_do_not_fit_change_nothing() {
    #[track_caller]
    fn check(drawing: &str, question: u64, value: Value, why: &AnswerError) {
        let life = Life::of(drawing);
        let mut draft = life.log.draft(99);
        let question = EntryId(question);
        let amendment = Amendment::Answer { question, answer: value.into() };
        let refused = draft.amend(amendment, Vec::new(), fits);
        assert_eq!(refused, Err(AmendError::Answer(question, why.clone())), "of {drawing}");
        assert!(draft.is_empty());
    }
    let asks = "u begin c=k ask=k";
    check(asks, 1, json!("yes"), &AnswerError::Unknown);
    check(asks, 2, json!(3), &AnswerError::Misfit("it must be a text".into()));
    let answered = AnswerError::Closed(QuestionEnd::Answered(GivenAnswer::from("yes")));
    check("u begin c=k ask=k answer", 2, json!("no"), &answered);
    // The schema check is an argument.
    let mut life = Life::of("u begin c=k");
    let form = Question::text("How many?").of_kind(QuestionKind::Form { schema: json!({"type": "integer"}) });
    life.push(EntryKind::Question(Arc::new(AskedQuestion { question: form, ..asked("k", None) })));
    let answer = || Amendment::Answer { question: EntryId(2), answer: json!(3).into() };
    let refused = life.log.draft(99).amend(answer(), Vec::new(), fits);
    let misfit = AnswerError::Misfit("it does not".into());
    assert_eq!(refused, Err(AmendError::Answer(EntryId(2), misfit)));
    assert_eq!(life.log.draft(99).amend(answer(), Vec::new(), |_, _| Ok(())), Ok(0));
}

#[test]
fn a_session_has_only_so_many_labels() {
    check("label=b label=a title=x label=b", "title x, labels a,b");
    check("label=b label=a unlabel=b unlabel=c", "labels a");
    let drawing: Vec<String> = (0..LABELS_MAX).map(|label| format!("label={label}")).collect();
    let life = Life::of(&drawing.join(" "));
    let set = |name: &str| {
        let label = Metadata::Label { name: name.into(), value: Some("x".into()) };
        life.log.draft(99).amend(Amendment::Set(label), Vec::new(), fits)
    };
    assert_eq!(set("0"), Ok(0), "it is there already");
    assert_eq!(set("new"), Err(AmendError::TooManyLabels));
}

#[test]
fn agents_that_were_called_are_there_until_they_end() {
    check("u begin c=k child=k", "leaf 1, run 0, children 2");
    check("u begin c=k,l child=k child=l back", "leaf 1, run 0, children 3");
    let life = Life::of("u begin c=k child=k back");
    assert_eq!(life.log.bill().cost_microdollars, 7, "what it spent is on the bill");
}

#[test]
fn whoever_takes_over_a_part_of_the_conversation_does_not_see_the_rest() {
    check("u a to=x", "leaf 2, agent x");
    check("u a u C@2 to=x", "leaf 4, from 2, compaction 3, agent x");
    check("u a u C@2 narrow=x", "leaf 4, from 2, compaction 3, agent x, hidden 2");
    check("u a u C@2 narrow=x u C@5 to=y", "leaf 7, from 5, compaction 6, agent y, hidden 2");
}

#[test]
fn a_bill_has_answers_summaries_and_what_is_spent_below() {
    #[track_caller]
    fn check(drawing: &str, tokens: u64, cost_microdollars: u64) {
        let bill = Life::of(drawing).log.bill();
        assert_eq!(
            (bill.usage.total_tokens(), bill.cost_microdollars),
            (tokens, cost_microdollars),
            "{drawing}"
        );
    }
    // The drawn answers report no usage.
    check("u a", 0, 0);
    check("u a start done", 3, 30);
    check("u a start left", 0, 0);
    check("u a spent", 6, 0);
    check("u c=k child=k back", 7, 7);
    let answered = |model: &str| {
        let mut life = Life::new();
        let answer = AssistantMessage { model: model.into(), usage: usage(10, 2), ..says("yes") };
        life.push(EntryKind::message(Message::Assistant(answer)));
        let bill = life.log.bill();
        let tally = Tally::of(life.stored.iter().map(|entry| &**entry), false);
        assert_eq!(
            (tally.usage, tally.cost_microdollars),
            (bill.usage, bill.cost_microdollars),
            "by the log"
        );
        (bill.usage.total_tokens(), bill.cost_microdollars)
    };
    assert_eq!(answered("test-1"), (12, 12));
    assert_eq!(answered("unknown"), (12, 0), "a price that is not known adds nothing");
    let before = Bill { usage: usage(4, 1).expect("given"), cost_microdollars: 5, ..Bill::default() };
    let after = Bill { usage: usage(10, 2).expect("given"), cost_microdollars: 12, ..Bill::default() };
    let since = after.since(&before);
    assert_eq!((since.usage.total_tokens(), since.cost_microdollars), (7, 7));
}

#[test]
fn the_size_of_the_context_is_what_was_said_unless_somebody_measured_it() {
    let tokens = |drawing: &str| Life::of(drawing).log.head().context_tokens;
    let said = |drawing: &str| Life::of(drawing).stored.iter().map(|entry| entry.tokens).sum::<u64>();
    assert_eq!(tokens("u:10 a:6 s:5 m:4 l"), said("u:10 a:6 s:5 m:4 l"));
    assert_eq!(tokens("u begin a completed"), 40, "the end of a run has what the tracker measured");
    assert_eq!(tokens("u begin a completed u"), 40 + said("n n n u"));
    assert_eq!(tokens("u a u C@2"), 0, "a compaction says how much is left");
    let mut life = Life::of("u:10");
    let answer = AssistantMessage { usage: usage(30, 5), ..says("yes") };
    life.push(EntryKind::message(Message::Assistant(answer)));
    assert_eq!(life.log.head().context_tokens, 35, "an answer's report has all");
}

#[test]
fn a_session_is_shown_by_how_it_opens() {
    #[track_caller]
    fn check(text: &str, opening: Option<&str>) {
        let mut life = Life::new();
        life.push(EntryKind::message(Message::user(text)));
        assert_eq!(life.log.head().opening.as_deref(), opening, "of {text:?}");
    }
    check("", None);
    check(" \n\t\n", None);
    check("\n  Mend   the\troof \nand the door", Some("Mend the roof"));
    check(&"a".repeat(80), Some(&"a".repeat(80)));
    check(&"ä".repeat(81), Some(&format!("{}…", "ä".repeat(79))));
    check("\u{7}", None);
    let mut life = Life::of("u a");
    let opening = life.log.head().opening.clone();
    life.push(EntryKind::message(Message::user("another")));
    assert_eq!(life.log.head().opening, opening, "the first one counts");
}

#[test]
fn what_is_unanswered_is_the_newest_message_unless_it_is_a_whole_answer() {
    #[track_caller]
    fn check(drawing: &str, unanswered: Option<u64>, newest_answer: Option<u64>, has_answers: bool) {
        let Life { log, .. } = Life::of(drawing);
        assert_eq!(log.unanswered(), unanswered.map(EntryId), "of {drawing}");
        assert_eq!(log.newest_answer(), newest_answer.map(EntryId), "of {drawing}");
        assert_eq!(log.has_answers(), has_answers, "of {drawing}");
    }
    check("", None, None, false);
    check("u", Some(0), None, false);
    check("u a", None, Some(1), true);
    check("u a l n", None, Some(1), true);
    check("u c=k", None, Some(1), true);
    check("u c=k r=k", Some(2), Some(1), true);
    check("u a s", Some(2), Some(1), true);
    check("u a u C@2", Some(2), None, true);
    for stop in [StopReason::Aborted, StopReason::Error] {
        let mut life = Life::of("u");
        let partial = AssistantMessage { stop, ..says("half") };
        life.push(EntryKind::message(Message::Assistant(partial)));
        let Life { log, .. } = life;
        assert_eq!((log.unanswered(), log.newest_answer()), (Some(EntryId(1)), Some(EntryId(1))), "{stop:?}");
        assert!(!log.has_answers(), "{stop:?}");
    }
}

#[test]
fn the_newest_results_are_those_that_nothing_but_steers_came_after() {
    #[track_caller]
    fn check(drawing: &str, results: &[u64]) {
        let Life { log, .. } = Life::of(drawing);
        let found: Vec<u64> = log.newest_results().iter().map(|(id, _)| id.0).collect();
        assert_eq!(found, results, "of {drawing}");
    }
    check("", &[]);
    check("u c=k", &[]);
    check("u c=k,l r=l", &[2]);
    check("u c=k,l r=l n r=k", &[2, 4]);
    check("u c=k r=k a", &[]);
    check("u c=k r=k c=l r=l", &[4]);
    check("u c=k r=k u", &[]);
    check("u c=k r=k t", &[2]);
    check("u c=k r=k start C@1", &[2]);
    check("u c=k r=k to=other", &[]);
    check("u c=k to=other r=k", &[]);
}

#[test]
fn calls_that_wait_for_people_outlive_whoever_works_on_them() {
    #[track_caller]
    fn check(drawing: &str, below: &[&str], asking: &str, shown: &str) {
        let mut life = Life::of(drawing);
        life.log.set_waiting_below(below.iter().map(|call| (*call).to_owned()).collect());
        let calls: Vec<String> = life.log.asking_calls().into_iter().map(|call| call.id).collect();
        assert_eq!(calls.join(","), asking, "of {drawing}");
        assert_eq!(life.log.is_waiting(), !asking.is_empty());
        assert_eq!(drawn(&life.log.shown_context()), shown, "of {drawing}");
    }
    check("u begin c=k,l", &[], "", "u c=k,l r=k! r=l!");
    check("u begin c=k,l ask=l", &[], "l", "u c=k,l r=k!");
    check("u begin c=k,l", &["k"], "k", "u c=k,l r=l!");
    check("u begin c=k,l ask=l", &["k"], "k,l", "u c=k,l");
    // An answered question belongs to its call until the call has a result.
    check("u begin c=k ask=k answer", &[], "k", "u c=k");
    check("u begin c=k ask=k answer r=k", &[], "", "u c=k r=k");
    // Without a run, nothing waits.
    check("u c=k", &["k"], "", "u c=k r=k!");
    // An earlier answer used the same id.
    check("u begin c=k r=k c=k ask=k", &[], "k", "u c=k r=k c=k");
    let mut life = Life::of("u begin c=k,l");
    life.log.set_waiting_below(vec!["k".into(), "l".into()]);
    life.add("r=k");
    assert!(!life.log.waits_below("k") && life.log.waits_below("l"));
}

#[test]
fn what_a_crash_left_open_is_closed() {
    let recovery = |log: &Log| log.recovery(99, context(40));
    check_draft("u a", recovery, "", "leaf 1");
    check_draft("u begin", recovery, "run-end", "leaf 0, interrupted 0");
    check_draft("u begin c=k,l r=k", recovery, "message run-end", "leaf 3, interrupted 0");
    check_draft("u begin c=k ask=k", recovery, "withdrawn message run-end", "leaf 4, interrupted 0");
    check_draft("u begin start", recovery, "end run-end", "leaf 0, interrupted 0");
    // The complete answer is there: only the run's end is missing.
    check_draft("u begin a", recovery, "run-end", "leaf 1");
    // Open calls without an open run, as in an imported log.
    check_draft("u c=k", recovery, "message", "leaf 2");
    let waiting = |log: &Log| Some(log.recovery_of_waiting(99, |_| false));
    check_draft("u begin c=k,l ask=k", waiting, "message", "leaf 3, run 0, questions 2");
    check_draft("u begin c=k ask=k start", waiting, "end", "leaf 1, run 0, questions 2");
    let mut life = Life::of("u begin c=k");
    life.push(EntryKind::Question(Arc::new(asked("k", Some(50)))));
    let names = |at_ms| {
        let draft = life.log.recovery_of_waiting(at_ms, |_| false);
        draft.entries().iter().map(|entry| name(&entry.kind)).collect::<Vec<_>>()
    };
    assert_eq!((names(49), names(50)), (vec![], vec!["expired"]));
}

/// A call behind one that waits for a person has begun only if both may run at once.
#[test]
fn a_call_that_cannot_have_begun_is_told_so() {
    #[track_caller]
    fn check(log: &str, alone: &[&str], expected: &str) {
        let life = Life::of(log);
        let results = life.log.cut_off_results(|call| alone.contains(&&*call.id));
        let told = results.iter().map(|result| {
            let is_known = result.status == ToolStatus::Error;
            format!("{}{}", result.call_id, if is_known { " not run" } else { " unknown" })
        });
        assert_eq!(told.collect::<Vec<_>>().join(", "), expected, "{log}, alone: {alone:?}");
    }
    check("u begin c=k,l,m ask=k", &["k", "l", "m"], "l not run, m not run");
    check("u begin c=k,l,m ask=k", &[], "l unknown, m unknown");
    check("u begin c=k,l,m ask=k", &["k"], "l not run, m not run");
    check("u begin c=k,l,m ask=k", &["l"], "l not run, m not run");
    check("u begin c=k,l,m ask=k", &["m"], "l unknown, m not run");
    check("u begin c=k,l,m ask=l", &["k", "l", "m"], "k unknown, m not run");
    // With its answer, the first call may have ended.
    check("u begin c=k,l ask=k answer", &["k", "l"], "l unknown");
}

#[test]
fn a_result_that_is_too_large_is_kept_whole_beside_the_path() {
    #[track_caller]
    fn check(tool_name: &str, chars: usize, adds: &str) {
        let life = Life::of("u c=k");
        let mut draft = life.log.draft(9);
        let text = "word ".repeat(chars / 5);
        let result = ToolResult { tool_name: tool_name.into(), ..crate::tests::notation::result("k", &text) };
        draft.message_of_run(Message::ToolResult(result), Some(8_000));
        let added: Vec<&str> = draft.entries().iter().map(|entry| name(&entry.kind)).collect();
        assert_eq!(added.join(" "), adds, "{chars} characters of {tool_name}");
    }
    check("read", 100, "message");
    check("read", 400_000, "whole message");
    check(crate::prune::RECALL, 400_000, "message");
    let life = Life::of("u c=k r=k");
    let mut draft = life.log.draft(9);
    draft.message_of_run(Message::user("and the door"), None);
    assert!(draft.entries()[0].kind.is_steer(), "what the program says in a run joins the turn");
}

#[test]
fn a_draft_that_was_not_appended_is_repeated_as_it_was() {
    let life = Life::of("u begin");
    let mut first = life.log.draft(5);
    first.message_of_run(Message::Assistant(says("yes")), None);
    let mut again = life.log.draft(7);
    again.repeat(first.entries());
    let (mut was, is) = (Entry::clone(&first.entries()[0]), Entry::clone(&again.entries()[0]));
    was.at_ms = 7;
    assert_eq!(was, is);
}

#[test]
fn a_window_is_recorded_for_the_model_that_answers() {
    let life = Life::of("u");
    let window = |provider: &str, model: &str| {
        let mut draft = life.log.draft(5);
        draft.set_window(provider, model, Some(7));
        draft.head().window
    };
    assert_eq!(window("test", "test-1"), Some(7));
    assert_eq!(window("test", "test-2"), None);
    assert_eq!(window("other", "test-1"), None);
    check("u model", "leaf 1");
    // The newest run records the source of the window, as long as the window is the same.
    let known = |drawing: &str| Life::of(drawing).log.window();
    assert_eq!(known("u a").source, WindowSource::Unknown);
    let catalog = Window { tokens: Some(100), source: WindowSource::Catalog };
    assert_eq!(known("u begin a completed"), catalog);
    let mut life = Life::of("u begin a completed");
    life.append(|_, draft| draft.set_window("test", "test-1", Some(7)));
    assert_eq!(life.log.window(), Window { tokens: Some(7), source: WindowSource::Unknown });
}

#[test]
fn another_log_is_imported_as_it_is_and_nothing_of_it_is_under_way() {
    #[track_caller]
    fn check(drawing: &str, leaf: u64, path: Result<&str, u64>, head: &str) {
        let from = Life::of(drawing);
        let mut into = Life::new();
        let mut draft = into.log.draft(9);
        let imported = draft.import(&from.stored, Some(EntryId(leaf)));
        match (imported, path) {
            (Err(missing), Err(expected)) => assert_eq!(missing, Unfit::Missing(EntryId(expected))),
            (Ok(imported), Ok(path)) => {
                let ids: Vec<String> = imported.path.iter().map(|entry| entry.id.to_string()).collect();
                assert_eq!(ids.join(","), path, "of {drawing}");
                draft.follow_branch(&imported, 40);
                assert_eq!(described(draft.head()), head, "of {drawing}");
                assert_eq!(draft.billed(), Bill::default(), "it was paid for there");
                into.stored.extend(draft.entries().iter().cloned());
                into.log.commit(draft);
                into.log.replace_path(imported);
                into.assert_same_when_opened(drawing);
            }
            (is, should) => panic!("{is:?} and not {should:?}, of {drawing}"),
        }
    }
    check("u a", 1, Ok("0,1"), "leaf 1");
    check("u a wait start spent", 1, Ok("0,1"), "leaf 1, compacting 3");
    check("u c=k child=k ask=k", 1, Ok("0,1"), "leaf 1");
    check("u a to=x move@1 u", 4, Ok("0,1,4"), "leaf 4");
    check("u a to=x u", 3, Ok("0,1,2,3"), "leaf 3, agent x");
    check("u a p@0 u p@3 move@1 u", 6, Ok("0,1,6"), "leaf 6, pins 0");
    check("u a u C@2 a", 4, Ok("0,1,2,3,4"), "leaf 4, from 2, compaction 3");
    // A file whose start is lost.
    let mut lost = Life::of("u a u");
    lost.stored[0] = Arc::new(Entry { parent: Some(EntryId(7)), ..Entry::clone(&lost.stored[0]) });
    let mut draft = Log::new(cost).draft(9);
    assert_eq!(draft.import(&lost.stored, Some(EntryId(2))).err(), Some(Unfit::Missing(EntryId(7))));
}

#[test]
fn a_reply_tells_the_compactions_since_the_one_before() {
    #[track_caller]
    fn check(drawing: &str, untold: &[u64]) {
        let Life { log, .. } = Life::of(drawing);
        let told: Vec<u64> = log.untold_compactions().map(|ended| ended.started.0).collect();
        assert_eq!(told, untold, "of {drawing}");
    }
    check("u a", &[]);
    check("u start done start failed", &[1, 3]);
    check("u start done u begin a completed", &[]);
    check("u start done u begin a aborted start done", &[1, 6]);
    let many = format!("u {}", "start done ".repeat(40));
    let Life { log, .. } = Life::of(&many);
    let told: Vec<u64> = log.untold_compactions().map(|ended| ended.started.0).collect();
    assert_eq!((told.len(), told[0], told[31]), (32, 17, 79), "the newest ones");
}

#[test]
fn a_log_that_contradicts_its_head_is_told() {
    #[track_caller]
    fn check(drawing: &str, change: impl FnOnce(&mut Head), says: &str) {
        let life = Life::of(drawing);
        let mut head = life.log.head().clone();
        change(&mut head);
        let opened = Log::open(head, &life.stored, &[], cost);
        assert_eq!(opened.check(), Err(says.to_owned()), "of {drawing}");
    }
    check("u a", |head| head.leaf = Some(EntryId(7)), "its path should end at entry 7 and ends at none");
    let active = "its active compaction should be none and is entry 3";
    check("u a u C@2", |head| head.active_compaction = None, active);
    check("u a", |head| head.inbox.push(EntryId(9)), "it should have 1 prompts that wait and has 0");
    check("u a", |head| head.pins.push(EntryId(9)), "it should have 1 pinned entries and has 0");
    let compaction = "it should have 1 open compactions and has 0";
    check("u a", |head| head.open_compaction = Some(EntryId(0)), compaction);
    check("u a", |head| head.open_children.push(EntryId(0)), "it should have 1 agents at work and has 0");
    check("u a", |head| head.questions.push(EntryId(0)), "it should have 1 open questions and has 0");
    check("u a", |head| head.run_terms = Some(EntryId(0)), "it should have 1 terms of its run and has 0");
    let life = Life::of("u a u");
    let opened = Log::open(life.log.head().clone(), &life.stored[1..], &[], cost);
    assert_eq!(opened.check(), Err("entry 0 is missing from its path".to_owned()));
}

#[test]
fn only_what_a_compaction_replaced_is_pinned_before_the_rest() {
    #[track_caller]
    fn check(drawing: &str, before: &[u64]) {
        let Life { log, stored, .. } = Life::of(drawing);
        let tokens: u64 = before.iter().map(|id| stored[usize::try_from(*id).expect("small")].tokens).sum();
        assert_eq!(log.pinned_tokens(), tokens, "of {drawing}");
        let all: u64 =
            log.head().pins.iter().map(|id| stored[usize::try_from(id.0).expect("small")].tokens).sum();
        assert_eq!(log.pins_tokens(), all, "of {drawing}");
    }
    check("u:10 p@0 a:6", &[]);
    check("u:10 p@0 a:6 u:5 p@3 C@3 a", &[0]);
    check("u:10 p@0 a:6 u:5 p@3 C@3 a u C@7", &[0, 3]);
}

/// Whatever is pinned, released, compacted, undone and left: the pinned messages of the path count, wherever they were
/// pinned, and no other ones.
#[test]
fn a_pin_holds_where_its_message_is_on_the_path() {
    let (mut left, mut back, mut in_front, mut undone) = (0, 0, 0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut life, mut pinned) = (Life::of("u a u"), Vec::new());
        for step in 0..40 {
            let what = format!("seed {seed}, step {step}");
            let message = |random: &mut Random, entries: &[Arc<Entry>]| {
                let messages: Vec<EntryId> =
                    entries.iter().filter(|entry| is_message(&entry.kind)).map(|entry| entry.id).collect();
                (!messages.is_empty()).then(|| *random.pick(&messages))
            };
            let before = life.log.head().pins.len();
            match random.below(10) {
                0..=3 => ["u", "a"].iter().for_each(|word| life.add(word)),
                4 => {
                    if let Some(entry) = message(&mut random, life.log.path()) {
                        pinned.retain(|id| *id != entry);
                        pinned.push(entry);
                        life.push(EntryKind::Pin { entry, pinned: true });
                    }
                }
                5 if random.one_in(3) && !pinned.is_empty() => {
                    let entry = *random.pick(&pinned);
                    pinned.retain(|id| *id != entry);
                    life.push(EntryKind::Pin { entry, pinned: false });
                }
                6 => {
                    if let Some(entry) = message(&mut random, &life.stored) {
                        life.add(&format!("move@{entry}"));
                        back += usize::from(life.log.head().pins.len() > before);
                    }
                }
                7 | 8 => {
                    let active = ActivePath::of(life.log.path()).entries().get(1..).unwrap_or_default();
                    if let Some(kept) = message(&mut random, active) {
                        life.add(&format!("C@{kept}"));
                    }
                }
                _ => undone += usize::from(life.undo()),
            }
            life.assert_same_when_opened(&what);
            let path = path_within(&life.stored, life.log.head().leaf);
            let on_path = |id: EntryId| path.iter().find(|entry| entry.id == id);
            let expected: Vec<_> = pinned.iter().filter_map(|id| on_path(*id)).cloned().collect();
            let ids: Vec<EntryId> = expected.iter().map(|entry| entry.id).collect();
            assert_eq!(life.log.head().pins, ids, "{what}");
            let context = life.log.context().into_vec();
            assert_eq!(context, project(&path, &expected), "{what}");
            let active = ActivePath::of(&path);
            let is_before = |entry: &&Arc<Entry>| {
                active.compaction.is_some() && !active.entries().iter().any(|other| other.id == entry.id)
            };
            let tokens: u64 = expected.iter().filter(is_before).map(|entry| entry.tokens).sum();
            assert_eq!(life.log.pinned_tokens(), tokens, "{what}");
            for entry in
                life.stored.iter().filter(|entry| is_message(&entry.kind) && on_path(entry.id).is_none())
            {
                let mark = format!("m{}.", entry.id);
                assert!(!context.iter().any(|message| message.text().contains(&mark)), "{what}: {mark}");
            }
            left += usize::from(expected.len() < pinned.len());
            in_front += usize::from(tokens > 0);
        }
    }
    for (what, count, least) in [
        ("pins on other branches", left, 1_000),
        ("pins that came back with a branch", back, 50),
        ("pins in front of a summary", in_front, 1_000),
        ("undone compactions", undone, 300),
    ] {
        assert!(count >= least, "only {count} {what}");
    }
}

#[test]
fn an_undo_is_the_newest_rewrite_until_the_next_one() {
    let undone = |drawing: &str| Life::of(drawing).log.was_undone();
    assert!(!undone("u a u C@2"));
    assert!(!undone("u a"));
    // The log in memory starts with the entries that the compaction kept; the undoing comes after it.
    assert!(undone("u a u C@2 U@3"));
    assert!(!undone("u a u C@2 U@3 C@2"));
}

fn segment(base: Option<u64>, first: u64, last: u64, first_kept: u64) -> Segment {
    Segment {
        base: base.map(EntryId),
        first: EntryId(first),
        last: EntryId(last),
        first_kept: EntryId(first_kept),
        prune: None,
        compaction: crate::tests::notation::compaction(Some(EntryId(first_kept)), "what was said"),
        outcome: CompactionOutcome::Completed,
    }
}

fn prune_segment(base: Option<u64>, results: &[u64]) -> PruneSegment {
    let result =
        |id: &u64| PrunedResult { entry: EntryId(*id), text: "short".into(), keeps_images: false, tokens: 1 };
    PruneSegment {
        base: base.map(EntryId),
        prune: prune(results.iter().map(result).collect()),
        messages: 4,
        usage: Usage::default(),
        outcome: CompactionOutcome::Pruned { reason: Some("it is large".into()) },
    }
}

fn prune(results: Vec<PrunedResult>) -> Prune {
    Prune { results, trigger: Trigger::Threshold, tokens_before: 90, tokens_after: 60 }
}

#[test]
fn only_what_was_planned_for_this_path_is_installed() {
    #[track_caller]
    fn check(drawing: &str, segment: &Segment, is_accepted: bool) {
        assert_eq!(Life::of(drawing).log.accepts(segment), is_accepted, "{drawing}");
    }
    check("u a u a", &segment(None, 0, 1, 2), true);
    // Messages were added in the meantime, and are kept.
    check("u a u a u", &segment(None, 0, 1, 2), true);
    check("u a u a", &segment(None, 1, 1, 2), false);
    check("u a u a", &segment(None, 0, 0, 2), false);
    check("u a u a", &segment(None, 0, 9, 2), false);
    // The context was compacted or a compaction was undone in the meantime.
    check("u a u a C@2", &segment(None, 0, 1, 2), false);
    check("u a u a C@2 u", &segment(Some(4), 2, 3, 5), false);
    check("u a u a C@2 u", &segment(Some(4), 2, 4, 5), true);
    check("u a u a C@2 U@4 u", &segment(Some(4), 2, 4, 6), false);
    let prunes = |drawing: &str, segment: &PruneSegment| Life::of(drawing).log.accepts_prune(segment);
    assert!(prunes("u c=k r=k a", &prune_segment(None, &[2])));
    assert!(!prunes("u c=k r=k a", &prune_segment(None, &[2, 9])));
    assert!(!prunes("u c=k r=k a u C@4", &prune_segment(None, &[2])));
    assert!(!prunes("u c=k r=k a u C@4", &prune_segment(Some(5), &[2])), "it is no longer sent");
}

#[test]
fn a_compaction_is_installed_with_its_end_before_it() {
    let mut life = Life::of("u a u a C@2 u a start");
    let installation = Installation {
        started: EntryId(7),
        trigger: Trigger::Overflow,
        duration_ms: 12,
        waited_ms: 11,
        prepared_ms: Some(10),
        cost_microdollars: Some(3),
    };
    let with_prune = Segment { prune: Some(Box::new(prune(Vec::new()))), ..segment(Some(4), 2, 4, 5) };
    for (segment, entry) in [(segment(Some(4), 2, 4, 5), 9), (with_prune, 10)] {
        let (draft, ended) = life.log.install(20, segment, installation);
        assert_eq!(
            (ended.started, ended.entry, ended.trigger),
            (EntryId(7), Some(EntryId(entry)), Trigger::Overflow)
        );
        assert_eq!((ended.messages_after, ended.duration_ms, ended.cost_microdollars), (3, 12, Some(3)));
        let entries = draft.entries();
        assert_eq!(entries[0].kind, EntryKind::CompactionEnded(Box::new(ended)));
        let installed = entries.last().and_then(|entry| entry.kind.as_compaction()).expect("it comes last");
        assert_eq!((installed.previous, installed.duration_ms), (Some(EntryId(4)), 12));
        assert_eq!(installed.cost_microdollars, Some(3));
    }
    life.append(|log, draft| *draft = *log.install(20, segment(Some(4), 2, 4, 5), installation).0);
    assert_eq!(described(life.log.head()), "leaf 9, from 5, compaction 9");
    life.assert_same_when_opened("installed");
    let (draft, ended) = life.log.install_prune(30, prune_segment(Some(9), &[]), installation);
    assert_eq!((ended.entry, ended.messages_before, ended.messages_after), (Some(EntryId(11)), 4, 4));
    assert_eq!((ended.tokens_before, ended.tokens_after), (90, 60));
    assert_eq!(draft.head().context_tokens, 60);
}

/// A random history, as odd as possible, except that only results and steers come between a call and its
/// result.
fn random_word(random: &mut Random, life: &Life) -> String {
    let (log, head) = (&life.log, life.log.head());
    let open_call = log.open_calls().first().map(|call| call.id.clone());
    let (is_free, can_deliver) = (open_call.is_none(), !log.inbox().is_empty());
    loop {
        let word = match random.below(32) {
            0..=4 if is_free => "u".into(),
            5..=7 if is_free => "a".into(),
            8..=9 if is_free => "c2".into(),
            10..=13 => match &open_call {
                Some(call) => format!("r={call}"),
                None => "t".into(),
            },
            14 => "wait".into(),
            15 => "steer".into(),
            16 if can_deliver => "deliver".into(),
            17 if random.one_in(3) => "clear".into(),
            18 if head.open_run.is_none() && log.path().iter().any(|entry| is_message(&entry.kind)) => {
                (*random.pick(&["begin", "begin!"])).into()
            }
            19 if head.open_run.is_some() && is_free => {
                (*random.pick(&["completed", "aborted", "cut"])).into()
            }
            20 if head.open_compaction.is_none() => "start".into(),
            21 if head.open_compaction.is_some() => {
                (*random.pick(&["done", "failed", "failed!", "left"])).into()
            }
            22 => match &open_call {
                Some(call) => format!("ask={call}"),
                None => continue,
            },
            23 if log.questions().open().next().is_some() => "answer".into(),
            24 => match &open_call {
                Some(call) => format!("child={call}"),
                None => continue,
            },
            25 if !log.children().is_empty() => "back".into(),
            26 => (*random.pick(&["title=x", "label=a", "unlabel=a", "spent", "model", "to=x", "narrow=y"]))
                .into(),
            27 => match log.path().iter().find(|entry| is_message(&entry.kind)) {
                Some(entry) => format!("p@{}", entry.id),
                None => continue,
            },
            28 if log.path().len() > 2 && is_free => {
                let kept = log.path()
                    [1 + usize::try_from(random.below(log.path().len() as u64 - 1)).expect("small")]
                .id;
                format!("C@{kept}")
            }
            30 => match log.path().iter().rfind(|entry| is_result(&entry.kind)) {
                Some(entry) if random.one_in(4) => format!("prune@{}", entry.id),
                _ => continue,
            },
            29 if is_free => (*random.pick(&["s", "m", "l", "n"])).into(),
            _ => continue,
        };
        return word;
    }
}

fn is_result(kind: &EntryKind) -> bool {
    kind.as_message().is_some_and(|message| matches!(**message, Message::ToolResult(_)))
}

#[test]
fn a_log_that_is_opened_is_the_one_that_its_entries_were_committed_to() {
    let mut words = 0;
    let mut compactions = 0;
    let (mut extended, mut rewritten) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let (mut life, mut drawing) = (Life::new(), String::new());
        for _ in 0..60 {
            let word = random_word(&mut random, &life);
            drawing = format!("{drawing} {word}");
            let before = life.log.context();
            let (beginning, before) = (before.beginning(), before.into_vec());
            life.add(&word);
            life.assert_same_when_opened(&format!("seed {seed}:{drawing}"));
            let now = life.log.context();
            if now.continues(&beginning) {
                assert!(now.starts_with(&before), "seed {seed}:{drawing}");
                extended += usize::from(now.len() > before.len());
            } else {
                rewritten += 1;
            }
            words += 1;
        }
        compactions += life.log.head().compactions;
    }
    assert!(words > 20_000 && compactions > 300, "{words} words and {compactions} compactions were tried");
    assert!(extended > 5_000 && rewritten > 1_000, "{extended} were extended, {rewritten} changed");
}

/// A live session holds its context's entries, and each mail with a draft moves one. What is seldom there is boxed.
#[test]
fn entries_and_drafts_are_small() {
    assert_eq!((size_of::<crate::Entry>(), size_of::<Draft>()), (184, 120));
}

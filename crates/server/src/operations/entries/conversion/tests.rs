//! An entry that is read over the wire becomes the entry in the log.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_kernel::Head;
use greenroom_kernel::bill::{Bill, CompactionBill};
use greenroom_kernel::entry::{ChildStage, CompactionOutcome, InboxDelivery, RunOutcome, Sees, Trigger};
use greenroom_kernel::files::Touch;
use greenroom_kernel::question::{Asker, Question, QuestionEnd};
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{
    Carried, Fact, FactKind, FactRecall, Quote, SkillText, StopReason, ToolStatus, Usage,
};
use greenroom_store::{Batch, Store};
use serde_json::json;

use super::*;
use crate::operations::EntryPage;

fn usage() -> Usage {
    Usage { input_tokens: 9, cached_tokens: 1, cache_write_tokens: 2, output_tokens: 3, ..Usage::default() }
}

fn picture() -> Block {
    Block::Image(Image { media_type: "image/png".to_owned(), data: "aGVsbG8=".to_owned() })
}

/// An entry of each kind that is on the wire.
fn kinds() -> Vec<EntryKind> {
    let text = |text: &str| Block::Text(text.to_owned());
    let files = || FileOps::new(["a.rs"], ["b.rs"]);
    let id = EntryId;
    let answer = AssistantMessage {
        content: vec![
            Part::Reasoning("hm".to_owned()),
            Part::OpaqueReasoning { dialect: "d".to_owned(), data: "{}".to_owned() },
            Part::Text("yes".to_owned()),
            Part::ToolCall(ToolCall {
                id: "c".to_owned(),
                name: "read".to_owned(),
                arguments: "{".to_owned(),
            }),
        ],
        provider: "p".to_owned(),
        model: "m".to_owned(),
        usage: Some(usage()),
        stop: StopReason::ToolCalls,
        stop_raw: None,
        error: Some("late".to_owned()),
    };
    let result = ToolResult {
        call_id: "c".to_owned(),
        tool_name: "read".to_owned(),
        content: vec![text("one"), picture()],
        status: ToolStatus::Error,
        touched: vec![
            Touched { path: "x".to_owned(), touch: Touch::Read },
            Touched { path: "y".to_owned(), touch: Touch::Modified },
        ],
    };
    let compaction = Compaction {
        base: Some(id(1)),
        previous: None,
        first: Some(id(2)),
        last: Some(id(3)),
        first_kept: Some(id(4)),
        summary: "s".to_owned(),
        active_request: Some("r".to_owned()),
        files: files(),
        trigger: Trigger::Overflow,
        truncated: true,
        from_hook: false,
        is_split_turn: true,
        tokens_before: 100,
        tokens_after: 10,
        messages_before: 9,
        messages_removed: 7,
        duration_ms: 5,
        model: "m".to_owned(),
        usage: usage(),
        cost_microdollars: Some(3),
        debt: vec![EntryRange { first: id(5), last: id(6) }],
        native: Some(NativeSummary {
            native: Native {
                provider: "p".to_owned(),
                dialect: "d".to_owned(),
                blocks: vec!["{\"b\":1}".to_owned(), "x".to_owned()],
            },
            tokens: 13,
        }),
        carried: Carried {
            words: vec![Quote { entry: id(2), text: "w".to_owned(), is_rule: true }],
            words_left: vec![id(3)],
            request_from: Some(id(2)),
            facts: vec![Fact {
                entry: id(3),
                kind: FactKind::Decision,
                text: "f".to_owned(),
                key: String::new(),
                times: 2,
            }],
            skills: vec![SkillText { entry: EntryId(2), name: "n".into(), text: "t".into() }],
        },
        recall: Some(FactRecall { facts: 3, before: 1, after: 2 }),
    };
    let ended = CompactionEnded {
        started: id(7),
        trigger: Trigger::Manual,
        outcome: CompactionOutcome::Truncated { reason: "too long".to_owned() },
        entry: Some(id(8)),
        tokens_before: 100,
        tokens_after: 10,
        messages_before: 9,
        messages_after: 2,
        messages_removed: 7,
        duration_ms: 5,
        waited_ms: 4,
        prepared_ms: Some(3),
        summary_usage: usage(),
        cost_microdollars: None,
        recall: Some(FactRecall { facts: 3, before: 1, after: 2 }),
    };
    let pruned = PrunedResult { entry: id(3), text: "cut".to_owned(), keeps_images: true, tokens: 2 };
    let child = |stage| {
        let (call_id, name, session) = ("c".to_owned(), "sub".to_owned(), "a.sub-1".to_owned());
        EntryKind::Child(ChildRecord { call_id, name, session, stage })
    };
    let context: ContextUsage = serde_json::from_value(
        json!({ "tokens": 5, "window": 10, "percent": 50.0, "usage_tokens": 4, "trailing_tokens": 1, "window_source": "catalog" }),
    )
    .unwrap();
    let mut question = Question::choice("Which?", ["a", "b"]);
    question.details = Some("either".to_owned());
    let asked = AskedQuestion {
        run: id(0),
        call_id: "c".to_owned(),
        tool: "t".to_owned(),
        ordinal: 1,
        asker: Asker::Tool,
        question,
        expires_at_ms: Some(9),
    };
    vec![
        EntryKind::Message {
            message: Arc::new(Message::User(vec![text("hi"), picture()])),
            inbox: Some(id(2)),
            steer: true,
            cost_microdollars: None,
        },
        EntryKind::Message {
            message: Arc::new(Message::Assistant(answer)),
            inbox: None,
            steer: false,
            cost_microdollars: Some(42),
        },
        EntryKind::message(Message::ToolResult(result)),
        EntryKind::Shell(Shell {
            command: "ls".to_owned(),
            output: "a".to_owned(),
            exit_code: Some(-1),
            cancelled: true,
            truncated: false,
            excluded: true,
        }),
        EntryKind::Custom(Custom { kind: "k".to_owned(), content: vec![text("c")], display: true }),
        EntryKind::BranchSummary { from: id(1), summary: "b".to_owned(), files: files() },
        EntryKind::Compaction(Box::new(compaction)),
        EntryKind::CompactionUndone { compaction: id(1) },
        EntryKind::Prune(Box::new(Prune {
            results: vec![pruned],
            trigger: Trigger::Threshold,
            tokens_before: 4,
            tokens_after: 3,
        })),
        EntryKind::Pin { entry: id(1), pinned: false },
        EntryKind::ModelChange { provider: "p".to_owned(), model: "m".to_owned() },
        EntryKind::Label { target: id(1), label: None },
        EntryKind::Note { kind: "k".to_owned(), data: "{}".to_owned() },
        EntryKind::HandOff(HandOff { from: "a".to_owned(), to: "b".to_owned(), sees: Sees::Last(3) }),
        EntryKind::Inbox {
            delivery: InboxDelivery::FollowUp,
            content: vec![text("later")],
            key: None,
            fingerprint: None,
            terms: None,
        },
        EntryKind::LeafMoved { to: None },
        EntryKind::CompactionEnded(Box::new(ended)),
        EntryKind::RunEnded {
            run: id(0),
            outcome: RunOutcome::Completed,
            context,
            bill: Box::new(Bill {
                cost_microdollars: 8,
                compaction: CompactionBill { saved_tokens: 7, ..CompactionBill::default() },
                ..Bill::default()
            }),
        },
        child(ChildStage::Started),
        child(ChildStage::Ended { started: id(4), outcome: RunOutcome::Aborted }),
        EntryKind::Question(Arc::new(asked)),
        EntryKind::QuestionEnded { question: id(1), end: QuestionEnd::Expired },
    ]
}

#[test]
fn an_entry_is_the_same_after_the_wire() {
    for (number, kind) in kinds().into_iter().enumerate() {
        let id = EntryId(number as u64 + 10);
        let parent = Some(EntryId(number as u64));
        let origin = Some("o".to_owned());
        let entry = Entry { id, parent, at_ms: 7, tokens: 8, reasoning_tokens: 2, origin, kind };
        let line = serde_json::to_string(&LoggedEntry::of(&entry).unwrap()).unwrap();
        let read: LoggedEntry = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(read.entry(), entry, "{line}");
    }
}

#[test]
fn bookkeeping_stays_where_it_is() {
    let kind = EntryKind::CallStarted { call_id: "c".to_owned() };
    let (id, origin) = (EntryId(0), None);
    let entry = Entry { id, parent: None, at_ms: 0, tokens: 0, reasoning_tokens: 0, origin, kind };
    assert_eq!(LoggedEntry::of(&entry), None);
}

/// Pages follow one another by position, and together they are the log.
#[tokio::test]
async fn pages_are_the_log() {
    let store = Store::memory();
    let log: Vec<Arc<Entry>> = kinds()
        .into_iter()
        .enumerate()
        .map(|(number, kind)| {
            let (id, origin) = (EntryId(number as u64), None);
            Arc::new(Entry { id, parent: None, at_ms: 0, tokens: 1, reasoning_tokens: 0, origin, kind })
        })
        .collect();
    let head = Arc::new(Head { entries: log.len() as u64, inbox: vec![EntryId(14)], ..Head::default() });
    store.append("a", Batch { entries: log.clone(), head, key: None }).await.unwrap();
    let (mut read, mut from, mut pages) = (Vec::new(), Some(EntryId(0)), 0);
    while let Some(next) = from {
        let page = EntryPage::read(&store, "a", next, 5).await.unwrap().unwrap();
        assert!(page.entries.len() <= 5 && page.session.entries == log.len() as u64);
        assert_eq!(page.waiting, [EntryId(14)]);
        read.extend(page.entries.into_iter().map(LoggedEntry::entry).map(Arc::new));
        (from, pages) = (page.next, pages + 1);
    }
    assert_eq!((read, pages), (log, 5));
    assert!(EntryPage::read(&store, "b", EntryId(0), 5).await.unwrap().is_none());
}

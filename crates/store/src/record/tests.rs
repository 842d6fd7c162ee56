//! The bytes of records and heads: they never change, and nothing but a whole record decodes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod entries;
mod v2;

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_kernel::bill::{Bill, CompactionBill};
use greenroom_kernel::entry::{
    ChildRecord, ChildStage, CompactionEnded, CompactionOutcome, CompactionStarted, Custom, EntryRange,
    HandOff, InboxDelivery, Metadata, NativeSummary, Prune, PrunedResult, Sees, Shell, Spender, Spent,
    Trigger,
};
use greenroom_kernel::head::{Head, LoggedState};
use greenroom_kernel::question::{
    Approval, AskedQuestion, Asker, GivenAnswer, Question, QuestionEnd, QuestionKind,
};
use greenroom_kernel::terms::{OutputTerms, Terms};
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{
    AssistantMessage, Block, Carried, Compaction, Entry, EntryId, EntryKind, Fact, FactKind, FactRecall,
    Failure, FailureClass, FileOps, Image, Message, Native, Part, Quote, RunOutcome, SkillText, StopReason,
    ToolCall, ToolResult, ToolStatus, Touch, Touched, Usage,
};

use super::{StoredRecord, decode, decode_head, encode, encode_head};
use crate::error::StoreError;
use crate::faults::Random;

/// The output of version 1, in lines of a name and the bytes in hexadecimal. Once version 1 is released, **a
/// line never changes**; a new variant gets a new line.
const GOLDEN: &str = include_str!("golden_v1.txt");

/// Returns the golden lines: the name of the sample, and its bytes in hexadecimal.
fn golden() -> Vec<(String, String)> {
    let split = |line: &str| line.split_once(' ').map(|(name, bytes)| (name.to_owned(), bytes.to_owned()));
    GOLDEN.lines().map(|line| split(line).unwrap()).collect()
}

fn usage() -> Usage {
    Usage {
        input_tokens: 1,
        cached_tokens: 2,
        cache_write_tokens: 3,
        cache_write_hour_tokens: 0,
        output_tokens: 300,
        reasoning_tokens: 70_000,
        estimated_tokens: 4,
    }
}

fn files() -> FileOps {
    FileOps::new(["r.rs"], ["m.rs"])
}

fn message(message: Message) -> EntryKind {
    EntryKind::Message {
        message: Arc::new(message),
        inbox: Some(EntryId(9)),
        steer: true,
        cost_microdollars: None,
    }
}

fn assistant(stop: StopReason) -> Message {
    Message::Assistant(AssistantMessage {
        content: vec![
            Part::Text("t".to_owned()),
            Part::Reasoning("r".to_owned()),
            Part::OpaqueReasoning { dialect: "d".to_owned(), data: "{}".to_owned() },
            Part::OpaqueBlock { dialect: "d".to_owned(), data: "[]".to_owned() },
            Part::ToolCall(ToolCall {
                id: "c".to_owned(),
                name: "n".to_owned(),
                arguments: "{\"a\":1}".to_owned(),
            }),
        ],
        provider: "p".to_owned(),
        model: "m".to_owned(),
        usage: Some(usage()),
        stop,
        stop_raw: (stop == StopReason::Paused).then(|| "pause_turn".to_owned()),
        error: Some("e".to_owned()),
    })
}

fn tool_result(status: ToolStatus) -> Message {
    Message::ToolResult(ToolResult {
        call_id: "c".to_owned(),
        tool_name: "n".to_owned(),
        content: vec![
            Block::Text("t".to_owned()),
            Block::Image(Image { media_type: "image/png".to_owned(), data: "AA==".to_owned() }),
        ],
        status,
        touched: vec![
            Touched { path: "a".to_owned(), touch: Touch::Read },
            Touched { path: "b".to_owned(), touch: Touch::Modified },
        ],
    })
}

fn compaction(trigger: Trigger) -> EntryKind {
    EntryKind::Compaction(Box::new(Compaction {
        base: Some(EntryId(1)),
        previous: None,
        first: Some(EntryId(2)),
        last: Some(EntryId(3)),
        first_kept: Some(EntryId(4)),
        summary: "s".to_owned(),
        active_request: Some("q".to_owned()),
        files: files(),
        trigger,
        truncated: true,
        from_hook: false,
        is_split_turn: true,
        tokens_before: 5,
        tokens_after: 6,
        messages_before: 7,
        messages_removed: 8,
        duration_ms: 9,
        model: "m".to_owned(),
        usage: usage(),
        cost_microdollars: Some(10),
        debt: vec![EntryRange { first: EntryId(11), last: EntryId(12) }],
        native: Some(NativeSummary {
            native: Native {
                provider: "p".to_owned(),
                dialect: "d".to_owned(),
                blocks: vec!["{\"b\":1}".to_owned(), "x".to_owned()],
            },
            tokens: 13,
        }),
        carried: carried(),
        recall: Some(FactRecall { facts: 13, before: 14, after: 15 }),
    }))
}

fn carried() -> Carried {
    let kinds = [
        FactKind::Rule,
        FactKind::Decision,
        FactKind::Error,
        FactKind::Done,
        FactKind::Open,
        FactKind::Command,
        FactKind::Path,
        FactKind::Url,
        FactKind::Identifier,
        FactKind::Number,
    ];
    let fact = |kind| Fact { entry: EntryId(16), kind, text: "f".to_owned(), key: "k".to_owned(), times: 17 };
    Carried {
        words: vec![Quote { entry: EntryId(18), text: "w".to_owned(), is_rule: true }],
        words_left: vec![EntryId(19)],
        request_from: Some(EntryId(20)),
        facts: kinds.map(fact).to_vec(),
        skills: vec![SkillText { entry: EntryId(4), name: "n".to_owned(), text: "t".to_owned() }],
    }
}

fn ended(outcome: CompactionOutcome) -> EntryKind {
    EntryKind::CompactionEnded(Box::new(CompactionEnded {
        started: EntryId(1),
        trigger: Trigger::Threshold,
        outcome,
        entry: Some(EntryId(2)),
        tokens_before: 3,
        tokens_after: 4,
        messages_before: 5,
        messages_after: 6,
        messages_removed: 7,
        duration_ms: 8,
        waited_ms: 12,
        prepared_ms: Some(13),
        summary_usage: usage(),
        cost_microdollars: None,
        recall: Some(FactRecall { facts: 9, before: 10, after: 11 }),
    }))
}

fn run_ended(outcome: RunOutcome) -> EntryKind {
    run_ended_in(outcome, WindowSource::Catalog)
}

fn run_ended_in(outcome: RunOutcome, window_source: WindowSource) -> EntryKind {
    let measured = Measured { usage_tokens: 2, trailing_tokens: 3 };
    let context = ContextUsage::new(measured, Window { tokens: Some(40), source: window_source });
    let compaction = CompactionBill { tokens: 41, saved_tokens: 42, ..CompactionBill::default() };
    let bill = Bill { usage: usage(), cost_microdollars: 43, compaction };
    EntryKind::RunEnded { run: EntryId(3), outcome, context, bill: Box::new(bill) }
}

fn terms() -> Arc<Terms> {
    Arc::new(Terms {
        output: Some(OutputTerms { name: "o".to_owned(), schema: serde_json::json!({ "type": "object" }) }),
        settings: Some(serde_json::json!({ "temperature": 0.5 })),
        cost_limit: Some(1),
        timeout_ms: Some(300),
        validators: vec!["v".to_owned()],
        unnamed_validators: 2,
        again: Some(EntryId(3)),
    })
}

/// Returns the prefix of the names of a kind's samples. Clippy asks for a new kind here, so that it gets a sample.
fn kind_name(kind: &EntryKind) -> &'static str {
    match kind {
        EntryKind::Message { .. } => "message",
        EntryKind::Shell(_) => "shell",
        EntryKind::Custom(_) => "custom",
        EntryKind::BranchSummary { .. } => "branch_summary",
        EntryKind::Compaction(_) => "compaction",
        EntryKind::CompactionUndone { .. } => "compaction_undone",
        EntryKind::Pin { .. } => "pin",
        EntryKind::ModelChange { .. } => "model_change",
        EntryKind::Label { .. } => "label",
        EntryKind::Note { .. } => "note",
        EntryKind::Inbox { .. } => "inbox",
        EntryKind::InboxCleared { .. } => "inbox_cleared",
        EntryKind::LeafMoved { .. } => "leaf_moved",
        EntryKind::Spent(_) => "spent",
        EntryKind::Prune(_) => "prune",
        EntryKind::WholeResult { .. } => "whole_result",
        EntryKind::Metadata(_) => "metadata",
        EntryKind::Child(_) => "child",
        EntryKind::HandOff(_) => "hand_off",
        EntryKind::Question(_) => "question",
        EntryKind::QuestionEnded { .. } => "question_ended",
        EntryKind::CallStarted { .. } => "call_started",
        EntryKind::Terms { .. } => "terms",
        EntryKind::CompactionStarted(_) => "compaction_started",
        EntryKind::CompactionEnded(_) => "compaction_ended",
        EntryKind::RunEnded { .. } => "run_ended",
        other => panic!("{other:?} has no sample"),
    }
}

fn kinds() -> Vec<EntryKind> {
    let text = |text: &str| vec![Block::Text(text.to_owned())];
    let reason = || "why".to_owned();
    let shell = Shell {
        command: "ls".to_owned(),
        output: "o".to_owned(),
        exit_code: Some(-1),
        cancelled: true,
        truncated: false,
        excluded: true,
    };
    let mut kinds = vec![
        message(Message::User(text("hello"))),
        EntryKind::Shell(shell),
        EntryKind::Custom(Custom { kind: "k".to_owned(), content: text("c"), display: true }),
        EntryKind::BranchSummary { from: EntryId(7), summary: "s".to_owned(), files: files() },
        EntryKind::CompactionUndone { compaction: EntryId(7) },
        EntryKind::Pin { entry: EntryId(7), pinned: true },
        EntryKind::ModelChange { provider: "p".to_owned(), model: "m".to_owned() },
        EntryKind::Label { target: EntryId(7), label: Some("l".to_owned()) },
        EntryKind::Note { kind: "k".to_owned(), data: "{}".to_owned() },
        EntryKind::InboxCleared { items: vec![EntryId(1), EntryId(300)] },
        EntryKind::LeafMoved { to: Some(EntryId(7)) },
        EntryKind::CompactionStarted(CompactionStarted {
            trigger: Trigger::Manual,
            tokens_before: 1,
            messages_before: 2,
        }),
    ];
    kinds.extend(
        [
            StopReason::Stop,
            StopReason::Length,
            StopReason::ToolCalls,
            StopReason::ContentFilter,
            StopReason::Aborted,
            StopReason::Error,
            StopReason::Paused,
        ]
        .map(|stop| message(assistant(stop))),
    );
    kinds.extend(
        [ToolStatus::Ok, ToolStatus::Error, ToolStatus::Interrupted]
            .map(|status| message(tool_result(status))),
    );
    kinds.extend(
        [Trigger::Threshold, Trigger::Overflow, Trigger::Manual, Trigger::ModelSwitch, Trigger::Hook]
            .map(compaction),
    );
    kinds.extend([InboxDelivery::Steer, InboxDelivery::FollowUp, InboxDelivery::Prompt].map(|delivery| {
        EntryKind::Inbox {
            delivery,
            content: text("i"),
            key: Some("k".to_owned()),
            fingerprint: Some("f".to_owned()),
            terms: Some(terms()),
        }
    }));
    kinds.extend(
        [
            CompactionOutcome::Completed,
            CompactionOutcome::Truncated { reason: reason() },
            CompactionOutcome::Nothing { reason: reason() },
            CompactionOutcome::Failed { reason: reason() },
            CompactionOutcome::Cancelled { reason: reason() },
            CompactionOutcome::Superseded,
            CompactionOutcome::Interrupted,
        ]
        .map(ended),
    );
    kinds.extend(
        [
            RunOutcome::Completed,
            RunOutcome::Aborted,
            RunOutcome::Interrupted,
            RunOutcome::Stopped { reason: reason() },
        ]
        .map(run_ended),
    );
    kinds.extend(
        [
            FailureClass::ContextOverflow,
            FailureClass::OutputLimit,
            FailureClass::PayloadTooLarge,
            FailureClass::RateLimited,
            FailureClass::RequestTooLargeForRateLimit,
            FailureClass::Quota,
            FailureClass::Auth,
            FailureClass::Overloaded,
            FailureClass::Timeout,
            FailureClass::Malformed,
            FailureClass::ContentFilter,
            FailureClass::ContextFloor,
            FailureClass::Other,
        ]
        .map(|class| {
            let failure = Failure {
                class,
                message: "f".to_owned(),
                status: Some(429),
                limit: Some(1),
                requested: Some(2),
                retry_after_ms: Some(3),
            };
            run_ended(RunOutcome::Failed(Box::new(failure)))
        }),
    );
    kinds.extend(
        [
            WindowSource::CompactionSetting,
            WindowSource::Setting,
            WindowSource::Learned,
            WindowSource::Assumed,
            WindowSource::Unknown,
        ]
        .map(|source| run_ended_in(RunOutcome::Completed, source)),
    );
    kinds.extend(
        [Spender::SubAgent { session: "s".to_owned() }, Spender::BranchSummary]
            .map(|by| EntryKind::Spent(Spent { by, usage: usage(), cost_microdollars: Some(9) })),
    );
    kinds.extend(
        [WindowSource::Server, WindowSource::Trained]
            .map(|source| run_ended_in(RunOutcome::Completed, source)),
    );
    kinds.push(EntryKind::Prune(Box::new(Prune {
        results: vec![PrunedResult {
            entry: EntryId(1),
            text: "t".to_owned(),
            keeps_images: true,
            tokens: 2,
        }],
        trigger: Trigger::Overflow,
        tokens_before: 3,
        tokens_after: 4,
    })));
    kinds.push(EntryKind::WholeResult { call_id: "c".to_owned(), content: text("w") });
    kinds.push(ended(CompactionOutcome::Pruned { reason: Some(reason()) }));
    kinds.push(ended(CompactionOutcome::Pruned { reason: None }));
    kinds.push(EntryKind::Metadata(Metadata::Title { title: Some("t".to_owned()) }));
    let (name, value) = ("n".to_owned(), Some("v".to_owned()));
    kinds.push(EntryKind::Metadata(Metadata::Label { name, value }));
    let child = |stage| {
        let (call_id, name, session) = ("c".to_owned(), "n".to_owned(), "s".to_owned());
        EntryKind::Child(ChildRecord { call_id, name, session, stage })
    };
    kinds.push(child(ChildStage::Started));
    kinds.push(child(ChildStage::Ended { started: EntryId(1), outcome: RunOutcome::Aborted }));
    for sees in [Sees::All, Sees::Summary, Sees::Last(2)] {
        kinds.push(EntryKind::HandOff(HandOff { from: "f".to_owned(), to: "t".to_owned(), sees }));
    }
    let several = |several| QuestionKind::Choice { choices: vec!["a".to_owned(), "b".to_owned()], several };
    let form = QuestionKind::Form { schema: serde_json::json!({ "type": "object" }) };
    for (kind, asker) in [
        (QuestionKind::Text, Asker::Tool),
        (several(false), Asker::Hook),
        (several(true), Asker::Tool),
        (form, Asker::Tool),
    ] {
        kinds.push(EntryKind::Question(Arc::new(AskedQuestion {
            run: EntryId(3),
            call_id: "c".to_owned(),
            tool: "n".to_owned(),
            ordinal: 1,
            asker,
            question: Question::text("q").details("d").of_kind(kind),
            expires_at_ms: Some(300),
        })));
    }
    let answer = GivenAnswer::from(serde_json::json!({ "a": [1.5, null] })).by("ada");
    for end in [QuestionEnd::Answered(answer), QuestionEnd::Expired, QuestionEnd::Withdrawn] {
        kinds.push(EntryKind::QuestionEnded { question: EntryId(7), end });
    }
    kinds.push(EntryKind::CallStarted { call_id: "c".to_owned() });
    kinds.push(EntryKind::Terms { run: EntryId(6), terms: terms() });
    kinds.push(EntryKind::Terms { run: EntryId(6), terms: Arc::default() });
    kinds.push(EntryKind::Spent(Spent { by: Spender::Calls, usage: usage(), cost_microdollars: Some(9) }));
    kinds.push(ended(CompactionOutcome::Digested { reason: reason() }));
    let mut approval = Approval::new("bash", serde_json::json!({ "command": "git push" }));
    (approval.folder, approval.rules) = (Some("/work".to_owned()), vec!["bash(git push *)".to_owned()]);
    kinds.push(EntryKind::Question(Arc::new(AskedQuestion {
        run: EntryId(3),
        call_id: "c".to_owned(),
        tool: "bash".to_owned(),
        ordinal: 0,
        asker: Asker::Hook,
        question: Question::approval("Run it?", approval),
        expires_at_ms: None,
    })));
    kinds.extend([Trigger::Branch, Trigger::HandOff].map(compaction));
    kinds.push(EntryKind::Message {
        message: Arc::new(assistant(StopReason::Stop)),
        inbox: None,
        steer: false,
        cost_microdollars: Some(300),
    });
    kinds
}

fn head() -> Head {
    Head {
        entries: 8,
        leaf: Some(EntryId(7)),
        active_from: EntryId(1),
        active_compaction: Some(EntryId(2)),
        last_compaction: Some(EntryId(3)),
        compactions: 4,
        inbox: vec![EntryId(5)],
        open_run: Some(EntryId(6)),
        open_compaction: Some(EntryId(7)),
        pins: vec![EntryId(1), EntryId(2)],
        provider: "p".into(),
        model: "m".into(),
        context_tokens: 1_000,
        window: Some(200_000),
        total_usage: usage(),
        cost_microdollars: 12,
        compaction_bill: CompactionBill {
            tokens: 31,
            cost_microdollars: 32,
            waited_ms: 33,
            saved_tokens: 34,
            saved_microdollars: 35,
        },
        run_began_with: Bill {
            cost_microdollars: 38,
            compaction: CompactionBill { waited_ms: 37, ..CompactionBill::default() },
            ..Bill::default()
        },
        saves_tokens: 36,
        automatic_compaction_failures: 13,
        created_at_ms: 14,
        updated_at_ms: 15,
        title: Some("t".to_owned()),
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned()), ("c".to_owned(), "d".to_owned())]),
        opening: Some("o".into()),
        interrupted: Some(EntryId(6)),
        run_fingerprint: Some("f".to_owned()),
        run_terms: Some(EntryId(5)),
        questions: vec![EntryId(7)],
        parent_session: Some("s".to_owned()),
        open_children: vec![EntryId(3)],
        hidden_before: EntryId(2),
        agent: Some("a".to_owned()),
        state: LoggedState::Failed { reason: "why".to_owned() },
        lost_from: Some(EntryId(4)),
    }
}

/// Returns a record with one entry of this kind.
fn append_of(kind: EntryKind) -> StoredRecord {
    let entry = Entry {
        id: EntryId(7),
        parent: Some(EntryId(6)),
        at_ms: 1_700_000_000_000,
        tokens: 5,
        reasoning_tokens: 3,
        origin: Some("o".to_owned()),
        kind,
    };
    let head = Arc::new(Head { entries: 8, ..Head::default() });
    StoredRecord::Append { key: None, entries: vec![Arc::new(entry)], head }
}

/// Every kind of record with every variant in it, by name.
fn samples() -> Vec<(String, StoredRecord)> {
    let mut samples = Vec::new();
    for (at, kind) in kinds().into_iter().enumerate() {
        samples.push((format!("{}_{at}", kind_name(&kind)), append_of(kind)));
    }
    let append =
        StoredRecord::Append { key: Some("key".to_owned()), entries: Vec::new(), head: Arc::new(head()) };
    samples.push(("append".to_owned(), append));
    samples.push(("deleted".to_owned(), StoredRecord::Deleted));
    samples.push(("learned".to_owned(), StoredRecord::Learned { key: "k".to_owned(), value: vec![0, 255] }));
    samples.push(("quarantined".to_owned(), StoredRecord::Quarantined { head: Arc::new(head()) }));
    samples.push(("loss_accepted".to_owned(), StoredRecord::LossAccepted { head: Arc::new(head()) }));
    for (name, state) in [("idle", LoggedState::Idle), ("working", LoggedState::Working)] {
        let head = Arc::new(Head { state, ..Head::default() });
        samples.push((format!("state_{name}"), StoredRecord::LossAccepted { head }));
    }
    let (batch, entries) = (300, Vec::new());
    let part = StoredRecord::Part { batch, entries: entries.clone(), head: Arc::default() };
    samples.push(("part".to_owned(), part));
    let commit = StoredRecord::Commit { batch, key: None, entries, head: Arc::default() };
    samples.push(("commit".to_owned(), commit));
    samples
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn stored_bytes_never_change() {
    let samples = samples();
    let written: String =
        samples.iter().map(|(name, record)| format!("{name} {}\n", hex(&encode(record).unwrap()))).collect();
    for (now, golden) in written.lines().zip(GOLDEN.lines()) {
        assert_eq!(now, golden, "the stored form changed; see docs/record-versions.md");
    }
    assert_eq!(written.lines().count(), GOLDEN.lines().count(), "the golden lines should be:\n{written}");
}

#[test]
fn released_bytes_are_read() {
    let samples = samples();
    for (name, bytes) in golden() {
        let (_, expected) = samples.iter().find(|(sample, _)| *sample == name).unwrap();
        assert_eq!(&decode(&from_hex(&bytes)).unwrap(), expected, "{name}");
    }
    assert_eq!(decode_head(&encode_head(&head()).unwrap()).unwrap(), head());
}

#[test]
fn only_a_whole_record_decodes() {
    for (name, record) in samples() {
        let bytes = encode(&record).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{name} cut to {length}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(matches!(decode(&longer), Err(StoreError::Record { .. })), "{name} with a byte more");
    }
}

#[test]
fn every_version_but_the_first_is_refused_by_name() {
    for version in [0, 2, 3, 255] {
        let mut bytes = encode(&StoredRecord::Deleted).unwrap();
        bytes[0] = version;
        let refused = decode(&bytes);
        assert!(
            matches!(refused, Err(StoreError::Version { found, supported: 1, .. }) if found == u32::from(version)),
            "{refused:?}"
        );
    }
    assert!(matches!(decode(&[]), Err(StoreError::Record { .. })));
}

/// What only a newer program can have written is not written again under a number that means something else.
#[test]
fn what_has_no_number_in_this_version_is_refused() {
    let started = CompactionStarted { trigger: Trigger::Unknown, tokens_before: 1, messages_before: 1 };
    let refused = encode(&append_of(EntryKind::CompactionStarted(started)));
    assert!(matches!(&refused, Err(StoreError::Record { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("Trigger"), "it says what it is");
}

#[test]
fn damaged_bytes_never_panic_or_take_all_memory() {
    let mut random = Random::new(0x5EED);
    for (_, record) in samples() {
        let bytes = encode(&record).unwrap();
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = usize::try_from(random.below(damaged.len() as u64)).unwrap();
                damaged[at] = u8::try_from(random.below(256)).unwrap();
            }
            // Whether it decodes does not matter: only a checksum can detect the damage. It must not panic.
            drop(decode(&damaged));
        }
    }
    // A hostile length: 2^60 entries.
    let mut hostile = vec![1, 0, 0, 253];
    hostile.extend((1_u64 << 60).to_le_bytes());
    assert!(matches!(decode(&hostile), Err(StoreError::Record { .. })));
}

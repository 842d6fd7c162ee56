//! The fate of a prompt, read from the entries that follow it.

use greenroom_kernel::entry::{CompactionEnded, CompactionOutcome, InboxDelivery, Trigger};
use greenroom_kernel::log::Log;
use greenroom_kernel::message::{AssistantMessage, Part, StopReason, blocks_text};
use greenroom_kernel::usage::WindowSource;
use greenroom_kernel::{Failure, FailureClass, Usage};
use greenroom_store::{Batch, Store};

use super::*;

/// The first entry of the batch that used the key.
const FIRST: u64 = 10;

fn context(tokens: u64) -> ContextUsage {
    ContextUsage {
        tokens,
        usage_tokens: tokens,
        trailing_tokens: 0,
        window: None,
        window_source: WindowSource::Unknown,
    }
}

fn prompt(text: &str) -> EntryKind {
    EntryKind::message(Message::user(text))
}

fn delivered(text: &str, inbox: u64) -> EntryKind {
    let message = Arc::new(Message::user(text));
    EntryKind::Message { message, inbox: Some(EntryId(inbox)), steer: false, cost_microdollars: None }
}

fn answer(text: &str, stop: StopReason) -> EntryKind {
    EntryKind::message(Message::Assistant(AssistantMessage::new(
        vec![Part::Text(text.to_owned())],
        String::new(),
        "m",
        stop,
    )))
}

fn terms(timeout_ms: u64, again: Option<u64>) -> Arc<Terms> {
    Arc::new(Terms { timeout_ms: Some(timeout_ms), again: again.map(EntryId), ..Terms::default() })
}

fn inbox(text: &str, terms: Option<Arc<Terms>>) -> EntryKind {
    let (key, fingerprint) = (Some("k".to_owned()), None);
    EntryKind::Inbox {
        delivery: InboxDelivery::Prompt,
        content: vec![Block::Text(text.to_owned())],
        key,
        fingerprint,
        terms,
    }
}

fn of_run(run: u64, terms: Arc<Terms>) -> EntryKind {
    EntryKind::Terms { run: EntryId(run), terms }
}

fn ended(run: u64, outcome: RunOutcome) -> EntryKind {
    let bill = Box::default();
    EntryKind::RunEnded { run: EntryId(run), outcome, context: context(run), bill }
}

fn resumed() -> EntryKind {
    EntryKind::Note { kind: RUN_RESUMED.to_owned(), data: "{}".to_owned() }
}

fn compacted(tokens_before: u64) -> EntryKind {
    EntryKind::CompactionEnded(Box::new(CompactionEnded {
        started: EntryId(0),
        trigger: Trigger::Manual,
        outcome: CompactionOutcome::Completed,
        entry: None,
        tokens_before,
        tokens_after: 1,
        messages_before: 1,
        messages_after: 1,
        messages_removed: 0,
        duration_ms: 1,
        waited_ms: 0,
        prepared_ms: None,
        summary_usage: Usage::default(),
        cost_microdollars: None,
        recall: None,
    }))
}

fn told(kinds: Vec<EntryKind>) -> FirstRun {
    let mut told = FirstRun { first: EntryId(FIRST), ..FirstRun::default() };
    for (id, kind) in (FIRST..).map(EntryId).zip(kinds) {
        let (parent, at_ms, tokens, reasoning_tokens, origin) = (None, 1, 1, 0, None);
        told.take(&Entry { id, parent, at_ms, tokens, reasoning_tokens, origin, kind });
    }
    told
}

/// The expected result: the prompt's text, its entry, its run, its time limit, whether it was left behind,
/// and how its run ended.
type Found<'a> = (&'a str, Option<u64>, Option<u64>, Option<u64>, bool, Option<RunOutcome>);

#[track_caller]
fn check(kinds: Vec<EntryKind>, expect: &Found<'_>) {
    let told = told(kinds);
    let text = blocks_text(&told.content);
    let id = |id: Option<EntryId>| id.map(|id| id.0);
    let timeout = told.terms.as_ref().and_then(|terms| terms.timeout_ms);
    let outcome = told.end.map(|end| end.outcome);
    assert_eq!((text.as_str(), id(told.prompt), id(told.run), timeout, told.is_left, outcome), *expect);
}

fn gone() -> Error {
    Error::Interrupted { session: "s".to_owned() }
}

#[test]
fn a_prompt_is_found_with_its_run_and_its_end() {
    use RunOutcome::{Aborted, Completed, Interrupted};
    let stop = StopReason::Stop;
    check(vec![], &("", None, None, None, false, None));
    check(vec![prompt("p")], &("p", Some(10), Some(10), None, false, None));
    check(vec![prompt("p"), of_run(10, terms(7, None))], &("p", Some(10), Some(10), Some(7), false, None));
    check(vec![prompt("p"), of_run(9, terms(7, None))], &("p", Some(10), Some(10), None, false, None));
    check(
        vec![prompt("p"), answer("a", stop), ended(10, Completed)],
        &("p", Some(10), Some(10), None, false, Some(Completed)),
    );
    // The same batch first closes an earlier run; a steer is not a prompt.
    let steer = EntryKind::Message {
        message: Arc::new(Message::user("s")),
        inbox: None,
        steer: true,
        cost_microdollars: None,
    };
    check(
        vec![ended(3, Interrupted), steer, answer("a", stop), prompt("p"), ended(3, Completed)],
        &("p", Some(13), Some(13), None, false, None),
    );
    // The next prompt leaves it behind.
    check(
        vec![prompt("p"), ended(10, Aborted), prompt("q"), ended(12, Completed)],
        &("p", Some(10), Some(10), None, true, Some(Aborted)),
    );
    check(vec![prompt("p"), EntryKind::LeafMoved { to: None }], &("p", Some(10), Some(10), None, true, None));
    check(
        vec![EntryKind::LeafMoved { to: None }, inbox("p", None)],
        &("p", Some(11), None, None, false, None),
    );
}

#[test]
fn a_prompt_that_waits_has_a_run_once_it_is_delivered() {
    let queued = || inbox("p", Some(terms(7, None)));
    check(vec![queued()], &("p", Some(10), None, Some(7), false, None));
    check(vec![queued(), EntryKind::LeafMoved { to: None }], &("p", Some(10), None, Some(7), false, None));
    // Other entries in between belong to another run.
    check(
        vec![
            queued(),
            inbox("q", None),
            delivered("r", 3),
            prompt("s"),
            ended(3, RunOutcome::Completed),
            resumed(),
        ],
        &("p", Some(10), None, Some(7), false, None),
    );
    check(
        vec![queued(), delivered("r", 3), delivered("p", 10), ended(12, RunOutcome::Aborted)],
        &("p", Some(10), Some(12), Some(7), false, Some(RunOutcome::Aborted)),
    );
    check(
        vec![queued(), EntryKind::InboxCleared { items: vec![EntryId(9)] }],
        &("p", Some(10), None, Some(7), false, None),
    );
    check(
        vec![queued(), EntryKind::InboxCleared { items: vec![EntryId(9), EntryId(10)] }],
        &("p", Some(10), None, Some(7), true, Some(RunOutcome::Aborted)),
    );
}

/// Answers of the run before it do not count.
#[test]
fn a_reply_counts_the_steps_of_its_run_alone() {
    let answers = |text| answer(text, StopReason::Stop);
    let queued = vec![inbox("p", None), answers("other"), delivered("p", 10), answers("a")];
    let reply =
        told([queued, vec![ended(12, RunOutcome::Completed)]].concat()).reply(gone()).expect("it has one");
    assert_eq!((reply.text.as_str(), reply.steps), ("a", 1));
}

#[test]
fn a_run_that_goes_on_is_another_run() {
    let cut = || vec![prompt("p"), answer("a", StopReason::ToolCalls), ended(10, RunOutcome::Interrupted)];
    let with = |more: Vec<EntryKind>| [cut(), more].concat();
    check(with(vec![resumed()]), &("p", Some(10), Some(13), None, false, None));
    check(
        with(vec![EntryKind::Note { kind: "other".to_owned(), data: String::new() }]),
        &("p", Some(10), Some(10), None, false, Some(RunOutcome::Interrupted)),
    );
    // After another prompt, that one is continued.
    check(
        with(vec![prompt("q"), resumed()]),
        &("p", Some(10), Some(10), None, true, Some(RunOutcome::Interrupted)),
    );
    let reply = told(with(vec![resumed(), answer("b", StopReason::Stop), ended(13, RunOutcome::Completed)]));
    let reply = reply.reply(gone()).expect("it has one");
    assert_eq!(
        (reply.text.as_str(), reply.steps, reply.run, reply.context),
        ("b", 1, EntryId(13), context(13))
    );
}

#[test]
fn a_prompt_that_is_said_again_is_the_one_that_counts() {
    let left =
        || vec![prompt("p"), ended(10, RunOutcome::Aborted), prompt("q"), ended(12, RunOutcome::Completed)];
    let with = |more: Vec<EntryKind>| [left(), more].concat();
    let is_left = ("p", Some(10), Some(10), None, true, Some(RunOutcome::Aborted));
    check(with(vec![inbox("r", Some(terms(7, Some(10))))]), &("r", Some(14), None, Some(7), false, None));
    check(with(vec![inbox("r", Some(terms(7, Some(11))))]), &is_left);
    check(with(vec![inbox("r", None)]), &is_left);
    check(
        with(vec![prompt("p"), of_run(14, terms(7, Some(10)))]),
        &("p", Some(14), Some(14), Some(7), false, None),
    );
    check(with(vec![prompt("p"), of_run(14, terms(7, Some(11)))]), &is_left);
}

#[test]
fn a_reply_is_the_whole_answer_or_why_there_is_none() {
    let after = |stop, outcome, more: Vec<EntryKind>| {
        told([vec![compacted(5), prompt("p"), answer("a", stop), ended(11, outcome)], more].concat())
    };
    let completed =
        after(StopReason::Stop, RunOutcome::Completed, vec![compacted(6)]).reply(gone()).expect("it has one");
    assert_eq!((completed.text.as_str(), completed.run, completed.context), ("a", EntryId(11), context(11)));
    let compactions =
        |reply: &Reply| reply.compactions.iter().map(|told| told.tokens_before).collect::<Vec<_>>();
    assert_eq!(compactions(&completed), [5]);
    // A reply reports the compactions since the previous reply.
    let failed = RunOutcome::Failed(Box::new(Failure::new(FailureClass::Auth, "no")));
    for (outcome, expect) in [(RunOutcome::Completed, &[6][..]), (failed.clone(), &[5, 6])] {
        let more = vec![
            compacted(6),
            inbox("p", Some(terms(1, Some(10)))),
            delivered("p", 15),
            ended(16, RunOutcome::Completed),
        ];
        let reply = after(StopReason::Stop, outcome, more).reply(gone()).expect("it has one");
        assert_eq!(compactions(&reply), expect);
    }
    // Only the record of the run's end is missing.
    let cut = |stop, more| after(stop, RunOutcome::Interrupted, more);
    assert!(cut(StopReason::Stop, vec![]).reply(gone()).is_ok_and(|reply| reply.text == "a"));
    for (told, is_tail) in [
        (cut(StopReason::ToolCalls, vec![]), true),
        (cut(StopReason::Aborted, vec![]), true),
        (cut(StopReason::Stop, vec![]), false),
    ] {
        assert_eq!(told.answer(is_tail), None);
    }
    for (told, said) in [
        (cut(StopReason::Stop, vec![prompt("q")]), "Interrupted"),
        (cut(StopReason::ToolCalls, vec![]), "Interrupted"),
        (told(vec![prompt("p")]), "Interrupted"),
        (after(StopReason::Stop, RunOutcome::Aborted, vec![]), "Aborted"),
        (after(StopReason::Stop, failed, vec![]), "Model"),
        (after(StopReason::Stop, RunOutcome::Stopped { reason: "x".to_owned() }, vec![]), "Stopped"),
    ] {
        assert_eq!(told.answer(!told.is_left), None);
        let error = told.reply(gone()).expect_err("it has none");
        assert!(format!("{error:?}").starts_with(said), "{said}: {error:?}");
    }
}

#[test]
fn what_ends_a_prompt_is_a_reason_to_look_again() {
    for (kind, is_due) in [
        (ended(10, RunOutcome::Completed), true),
        (EntryKind::InboxCleared { items: vec![] }, true),
        (prompt("p"), false),
    ] {
        let mut repeats = Repeats::default();
        repeats.follow(&kind);
        assert_eq!(repeats.is_due, is_due, "{kind:?}");
    }
    let mut repeats = Repeats::default();
    repeats.run_broken();
    assert!(repeats.is_due);
}

/// They are looked for once, after something relevant was recorded, and each is told once.
#[test]
fn the_callers_that_repeated_a_prompt_are_told_once() {
    let mut repeats = Repeats::default();
    repeats.run_broken();
    assert!(!repeats.take_due(), "nobody waits");
    let mut told: Vec<_> = [3, 3, 5, 7]
        .map(|prompt| {
            let (reply, told) = tokio::sync::oneshot::channel();
            repeats.wait(Repeat {
                first: EntryId(FIRST),
                prompt: EntryId(prompt),
                run: None,
                by: Successor { ticket: 0, cancel: CancellationToken::new(), reply },
                resumes: None,
            });
            told
        })
        .into();
    assert!(!repeats.take_due(), "nothing was recorded since");
    repeats.run_broken();
    assert!(repeats.take_due());
    assert!(!repeats.take_due(), "nothing was recorded since");
    crate::core::message::tell_all(repeats.take_waiting(EntryId(3)), || Err(Error::Aborted));
    let mut rest = told.split_off(2);
    assert!(told.iter_mut().all(|told| matches!(told.try_recv(), Ok(Err(Error::Aborted)))));
    assert!(rest.iter_mut().all(|told| told.try_recv().is_err()), "they still wait");
    assert!(repeats.take_waiting(EntryId(3)).is_empty());
    crate::core::message::tell_all(repeats.into_waiting(), || Err(Error::Aborted));
    assert!(rest.iter_mut().all(|told| matches!(told.try_recv(), Ok(Err(Error::Aborted)))));
}

/// However far back the newest reply is, and wherever the chunks end.
#[tokio::test]
async fn compactions_before_a_prompt_count_since_the_reply_before() {
    for notes in [0, 1, 60, 61, 62, 63, 64, 65, 130] {
        let note = || EntryKind::Note { kind: "n".to_owned(), data: "{}".to_owned() };
        let filler = (0..notes).map(|_| note());
        let kinds: Vec<EntryKind> =
            [compacted(1), prompt("p"), ended(1, RunOutcome::Completed), compacted(2)]
                .into_iter()
                .chain(filler)
                .chain([prompt("q"), ended(4 + notes, RunOutcome::Aborted), compacted(3)])
                .collect();
        let end = EntryId(kinds.len() as u64);
        let mut draft = Log::new(greenroom_kernel::bill::CallCost::unknown()).draft(1);
        kinds.into_iter().for_each(|kind| {
            draft.push(kind);
        });
        let store = Store::memory();
        let batch = Batch { entries: draft.entries().to_vec(), head: draft.shared_head(), key: None };
        store.append("s", batch).await.expect("it is kept");
        let told = async |first| {
            let told = compactions_before(&store, "s", first).await.expect("it is read");
            let told = told_compactions(told.iter());
            told.iter().map(|told| told.tokens_before).collect::<Vec<_>>()
        };
        assert_eq!(told(end).await, [2, 3], "{notes}");
        assert_eq!(told(EntryId(end.0 - 1)).await, [2], "{notes}");
        assert_eq!(told(EntryId(3)).await, [0; 0], "{notes}");
        assert_eq!(told(EntryId(1)).await, [1], "{notes}");
        assert_eq!(told(EntryId(0)).await, [0; 0], "{notes}");
    }
}

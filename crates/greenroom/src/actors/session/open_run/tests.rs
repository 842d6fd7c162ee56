//! The callers of a run, its end, and their results.

use greenroom_kernel::usage::{Measured, Window, WindowSource};
use greenroom_kernel::{FailureClass, RunId};
use tokio::sync::oneshot;

use super::super::runs::Runs;
use super::*;
use crate::values::error::Result;

const RUN: RunId = EntryId(4);

type Heard = oneshot::Receiver<Result<Reply>>;

/// A run with a waiting caller.
fn run(options: PromptOptions) -> (Runs, Heard) {
    let (reply, heard) = oneshot::channel();
    let mut runs = Runs::default();
    let instructions = runs.instructions(Arc::from("Be brief."), |_| 3);
    let new = NewRun {
        options: Box::new(options),
        settings: ModelSettings::default(),
        judges: Validators::default(),
        agent: Arc::new(Agent::new("m")),
        waiting: Waiting::caller(Some(reply)),
        instructions,
    };
    runs.begin(RUN, Span::none(), new);
    (runs, heard)
}

fn context() -> ContextUsage {
    ContextUsage::new(Measured::default(), Window { tokens: None, source: WindowSource::Unknown })
}

fn answer(text: &str, stop: StopReason) -> Message {
    Message::Assistant(greenroom_kernel::AssistantMessage {
        usage: Some(Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() }),
        ..greenroom_kernel::AssistantMessage::new(
            vec![greenroom_kernel::Part::Text(text.into())],
            "p",
            "m",
            stop,
        )
    })
}

fn failed(class: FailureClass) -> RunOutcome {
    RunOutcome::Failed(Box::new(Failure::new(class, "no")))
}

fn gone() -> Error {
    Error::Interrupted { session: "s".into() }
}

#[test]
fn news_of_an_earlier_attempt_is_late_and_so_is_news_of_a_run_that_is_over() {
    let (mut runs, _heard) = run(PromptOptions::default());
    let first = runs.attempt().expect("it is open");
    assert_eq!((first, runs.id()), (RunAttempt { run: RUN, number: 1 }, Some(RUN)));
    assert!(runs.current(first).is_some());
    let number = runs.next_attempt();
    runs.open_mut().expect("it is open").go_on(number);
    assert!(runs.current(first).is_none(), "another agent works on it");
    let second = RunAttempt { run: RUN, number: 2 };
    runs.current(second).expect("it is this one").start_closing(RunOutcome::Completed, Vec::new());
    assert!(runs.is_closing() && runs.current(second).is_none(), "its end is being recorded");
    assert_eq!(runs.take_closing().map(|run| run.attempt()), Some(second));
    assert!(runs.take_closing().is_none() && !runs.is_open());
}

#[test]
fn instructions_are_said_to_have_changed_once() {
    let (mut runs, _heard) = run(PromptOptions::default());
    let changed = |runs: &Runs, text: &str| runs.instructions(Arc::from(text), |_| 3).changed;
    assert_eq!((changed(&runs, "Be brief."), changed(&runs, "Be kind.")), (None, Some(3)));
    let kind = runs.instructions(Arc::from("Be kind."), |_| 3);
    runs.note_instructions(&kind);
    assert_eq!((changed(&runs, "Be brief."), changed(&runs, "Be kind.")), (Some(3), None));
    assert_eq!(Runs::default().instructions(Arc::from("Be kind."), |_| 3).changed, None, "the first ones");
}

#[test]
fn an_abort_of_a_run_whose_session_is_closed_is_an_interruption() {
    #[track_caller]
    fn check(is_closed: bool, is_cancelled: bool, outcome: RunOutcome, becomes: &RunOutcome) {
        let (mut runs, _heard) = run(PromptOptions::default());
        let run = runs.open_mut().expect("it is open");
        if is_cancelled {
            run.options().cancel.cancel();
        }
        if is_closed {
            run.interrupt();
        }
        assert_eq!(run.end(outcome, None, None), *becomes, "closed {is_closed}, cancelled {is_cancelled}");
    }
    check(false, true, RunOutcome::Aborted, &RunOutcome::Aborted);
    check(true, false, RunOutcome::Aborted, &RunOutcome::Interrupted);
    // The run was aborted before.
    check(true, true, RunOutcome::Aborted, &RunOutcome::Aborted);
    check(true, false, RunOutcome::Completed, &RunOutcome::Completed);
    let (mut runs, _heard) = run(PromptOptions::default());
    let run = runs.open_mut().expect("it is open");
    let stopped = RunOutcome::Stopped { reason: "out of time".into() };
    let ended = run.end(stopped, None, Some("it waits for itself".into()));
    assert_eq!(ended, RunOutcome::Stopped { reason: "out of time; it waits for itself".into() });
}

#[test]
fn all_who_wait_hear_how_it_ended() {
    #[track_caller]
    fn check(outcome: &RunOutcome, is_deleting: bool, heard: &str) {
        let (mut runs, _heard) = run(PromptOptions::default());
        let (reply, _joined) = oneshot::channel();
        let open = runs.open_mut().expect("it is open");
        open.join([reply]);
        open.note(&[answer("one", StopReason::ToolCalls), answer("two", StopReason::Stop)]);
        open.start_closing(outcome.clone(), Vec::new());
        let mut closing = runs.take_closing().expect("it is over");
        let (to, reply) = closing.reply((context(), Bill::default()), Vec::new(), gone, is_deleting);
        assert_eq!(to.len(), 2, "{outcome:?}");
        let said = match reply {
            Ok(reply) => {
                format!("{} after {} steps, {} tokens", reply.text, reply.steps, reply.usage.total_tokens())
            }
            Err(error) => format!("{error:?}").split([' ', '(', '{']).next().unwrap_or_default().to_owned(),
        };
        assert_eq!(said, heard, "{outcome:?}");
        let (to, _) = closing.reply((context(), Bill::default()), Vec::new(), gone, is_deleting);
        assert!(to.is_empty(), "each hears it once");
    }
    check(&RunOutcome::Completed, false, "two after 2 steps, 24 tokens");
    check(&RunOutcome::Aborted, false, "Aborted");
    check(&RunOutcome::Aborted, true, "Interrupted");
    check(&RunOutcome::Interrupted, false, "Interrupted");
    check(&failed(FailureClass::Auth), false, "Model");
    check(&RunOutcome::Stopped { reason: "x".into() }, false, "Stopped");
}

#[test]
fn a_rejected_answer_is_told_with_its_text() {
    let (mut runs, _heard) = run(PromptOptions::default());
    let open = runs.open_mut().expect("it is open");
    open.note(&[answer("forty", StopReason::Stop)]);
    let stopped = RunOutcome::Stopped { reason: "no answer".into() };
    let outcome = open.end(stopped, Some("it is no number".into()), None);
    open.start_closing(outcome, Vec::new());
    let mut closing = runs.take_closing().expect("it is over");
    let (_, reply) = closing.reply((context(), Bill::default()), Vec::new(), gone, false);
    match reply {
        Err(Error::Rejected { reason, text }) => {
            assert_eq!((reason.as_str(), text.as_str()), ("it is no number", "forty"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_that_nobody_asked_for_here_is_still_to_be_done_where_its_failure_may_pass() {
    #[track_caller]
    fn check(is_left: bool, outcome: &RunOutcome, passes: bool) {
        let (mut runs, _heard) = run(PromptOptions { is_left, ..PromptOptions::default() });
        runs.open_mut().expect("it is open").start_closing(outcome.clone(), Vec::new());
        let closing = runs.take_closing().expect("it is over");
        assert_eq!(closing.passing_failure().is_some(), passes, "left {is_left}: {outcome:?}");
    }
    check(true, &failed(FailureClass::Auth), true);
    check(true, &failed(FailureClass::RateLimited), true);
    check(true, &failed(FailureClass::ContextOverflow), false);
    // A caller got the failure, and can retry.
    check(false, &failed(FailureClass::Auth), false);
    check(true, &RunOutcome::Aborted, false);
    check(true, &RunOutcome::Completed, false);
}

#[test]
fn a_caller_that_went_away_is_forgotten_and_those_who_joined_are_not() {
    let (mut runs, heard) = run(PromptOptions::default());
    let open = runs.open_mut().expect("it is open");
    let (reply, _joined) = oneshot::channel();
    open.join([reply]);
    open.forget_gone_caller();
    drop(heard);
    open.forget_gone_caller();
    assert_eq!(open.take_callers().len(), 1);
    assert!(open.take_callers().is_empty());
}

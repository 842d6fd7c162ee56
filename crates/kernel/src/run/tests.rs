//! Every transition of a run, as tables of inputs and effects; and invariants of any sequence.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::failure::FailureClass;
use crate::message::Part;
use crate::retry::BACKOFF_MS_MAX;
use crate::tests::notation::{Random, assistant, calls, drawn, result, says, usage};

fn size(tokens: u64) -> Input {
    Input::Size(Size { tokens, counted: tokens, window: Some(1_000), ..Size::default() })
}

fn due(at_window: bool) -> Input {
    Input::Size(Size { tokens: 900, window: Some(1_000), is_due: true, at_window, ..Size::default() })
}

fn answered(answer: AssistantMessage) -> Input {
    Input::Answered { answer: Box::new(answer), jitter: 0 }
}

fn text() -> Input {
    answered(says("done"))
}

fn tools(ids: &[&str]) -> Input {
    answered(calls(ids))
}

/// Returns a call with other arguments than those of [`tools`].
fn other_tool(id: &str) -> Input {
    let mut answer = calls(&[id]);
    for part in &mut answer.content {
        if let Part::ToolCall(call) = part {
            call.arguments = r#"{"path":"other"}"#.into();
        }
    }
    answered(answer)
}

fn ended(id: &str) -> Input {
    Input::ToolEnded(Box::new(result(id, "ok")))
}

fn recorded(delivered: u32) -> Input {
    Input::Recorded { delivered }
}

fn compacted(installed: bool) -> Input {
    Input::Compacted { installed, floor: None, why: None }
}

fn failure(class: FailureClass) -> Failure {
    Failure::new(class, "it failed")
}

fn failed(class: FailureClass) -> Input {
    Input::Failed {
        failure: failure(class),
        wordless: false,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    }
}

fn too_many_bytes(fewer_images: Option<Media>) -> Input {
    let failure = failure(FailureClass::PayloadTooLarge);
    Input::Failed {
        failure,
        wordless: false,
        fewer_images,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    }
}

fn limited(class: FailureClass, limit: u64) -> Input {
    Input::Failed {
        failure: Failure { limit: Some(limit), ..failure(class) },
        wordless: false,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    }
}

/// An overflow of a request that was sent with this output limit.
fn overflowed(output_tokens_max: u64) -> Input {
    Input::Failed {
        failure: failure(FailureClass::ContextOverflow),
        wordless: false,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: Some(output_tokens_max),
        jitter: 0,
    }
}

fn fell_back(output_tokens_max: Option<u64>) -> Input {
    Input::FellBack { output_tokens_max }
}

/// Returns this many fallback models, for failures that waiting may resolve and for a key or a quota.
fn falls_back(left: u32) -> Fallbacks {
    use FailureClass::{Auth, Loading, Malformed, Overloaded, Quota, RateLimited, Timeout};
    Fallbacks { left, on: [Auth, Loading, Malformed, Overloaded, Quota, RateLimited, Timeout].into() }
}

fn abort() -> Input {
    Input::Abort { partial: None, not_begun: Vec::new(), cause: AbortCause::Requested }
}

/// Effects as words: `measure`, `compact overflow window 1`, `ask out=512 newest`, `ask bare`, `record (c=x) none`, `run x,y`,
/// `wait 500 #1`, `overflow`, `cancel`, `end completed (..)`. Steps are left out: see [`steps`].
fn words(effects: &[Effect]) -> String {
    let of = |messages: &[Message]| {
        drawn(&messages.iter().map(|message| Arc::new(message.clone())).collect::<Vec<_>>())
    };
    let all: Vec<String> = effects
        .iter()
        .filter(|effect| !matches!(effect, Effect::StepStarted { .. } | Effect::StepEnded { .. }))
        .map(|effect| match effect {
            Effect::StepStarted { .. } | Effect::StepEnded { .. } => unreachable!("left out"),
            Effect::Measure => "measure".into(),
            Effect::Count { media, without_opaque } => format!("count {media:?} {without_opaque}"),
            Effect::Compact { trigger, at_window, failed_attempts } => {
                let why = serde_json::to_value(trigger).expect("a word");
                let at = if *at_window { " window" } else { "" };
                format!("compact {}{at} {failed_attempts}", why.as_str().expect("a word"))
            }
            Effect::Ask { output_tokens_max, media, without_opaque } => {
                let out = output_tokens_max.map_or(String::new(), |tokens| format!(" out={tokens}"));
                let media = match media {
                    Media::All => "",
                    Media::Newest => " newest",
                    Media::Nothing => " bare",
                };
                let plain = if *without_opaque { " plain" } else { "" };
                format!("ask{out}{media}{plain}")
            }
            Effect::Record { messages, boundary } => {
                let boundary = match boundary {
                    Boundary::None => "none",
                    Boundary::Steps => "steps",
                    Boundary::End => "end",
                };
                format!("record ({}) {boundary}", of(messages))
            }
            Effect::RunTools(calls) => {
                let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
                format!("run {}", ids.join(","))
            }
            Effect::Validate { text, rejections } => format!("validate {text:?} {rejections}"),
            Effect::Wait { delay_ms, attempt, .. } => format!("wait {delay_ms} #{attempt}"),
            Effect::FallBack { failure } => format!("fall back {}", failure.class),
            Effect::OverflowDetected => "overflow".into(),
            Effect::Cancel => "cancel".into(),
            Effect::End { messages, outcome } => {
                let class = match outcome {
                    RunOutcome::Failed(failure) => format!(" {}", failure.class),
                    RunOutcome::Completed
                    | RunOutcome::Aborted
                    | RunOutcome::Interrupted
                    | RunOutcome::Unknown
                    | RunOutcome::Stopped { .. } => String::new(),
                };
                format!("end {}{class} ({})", outcome.as_str(), of(messages))
            }
        })
        .collect();
    all.join("; ")
}

fn run() -> Run {
    Run::new(RunLimits::default(), true, None)
}

#[track_caller]
fn check_run(mut run: Run, table: Vec<(Input, &str)>) -> Run {
    let mut asked = None;
    for (step, (mut input, expect)) in table.into_iter().enumerate() {
        // Unless a table says otherwise, a request is sent with the limit that the run asked for.
        if let Input::Failed { output_tokens_max: sent @ None, .. } = &mut input {
            *sent = asked;
        }
        let shown = format!("step {step}, {input:?}");
        let effects = run.on(input);
        for effect in &effects {
            if let Effect::Ask { output_tokens_max, .. } = effect {
                asked = *output_tokens_max;
            }
        }
        assert_eq!(words(&effects), expect, "{shown}");
    }
    run
}

#[track_caller]
fn check(table: Vec<(Input, &str)>) -> Run {
    check_run(run(), table)
}

/// Returns a run that has asked the model, and what comes then.
#[track_caller]
fn check_asked(table: Vec<(Input, &str)>) -> Run {
    check(begun(table))
}

fn begun(table: Vec<(Input, &str)>) -> Vec<(Input, &str)> {
    let mut whole = vec![(Input::Begin, "measure"), (size(10), "ask")];
    whole.extend(table);
    whole
}

#[test]
fn an_answer_without_calls_ends_the_turn_with_its_record() {
    let run =
        check_asked(vec![(text(), "record (a) end"), (recorded(0), ""), (recorded(0), ""), (abort(), "")]);
    assert!(run.is_over());
}

#[test]
fn calls_run_when_they_are_durable_and_are_followed_by_a_measure() {
    check_asked(vec![
        (tools(&["x"]), "record (c=x) none"),
        (ended("x"), ""),
        (recorded(0), "run x"),
        (ended("x"), "record (r=x) steps"),
        (ended("x"), ""),
        (recorded(0), "measure"),
        (recorded(0), ""),
        (size(20), "ask"),
        (text(), "record (a) end"),
        (recorded(0), ""),
    ]);
}

#[test]
fn results_are_recorded_as_they_come_and_only_the_last_is_a_boundary() {
    check_asked(vec![
        (tools(&["x", "y", "z"]), "record (c=x,y,z) none"),
        (recorded(0), "run x,y,z"),
        (ended("y"), "record (r=y) none"),
        (ended("nobody"), ""),
        (ended("y"), ""),
        (ended("x"), "record (r=x) none"),
        (recorded(0), ""),
        (recorded(0), ""),
        (ended("z"), "record (r=z) steps"),
        (recorded(2), "measure"),
    ]);
    // All at once, before any record is durable.
    check_asked(vec![
        (tools(&["x", "y"]), "record (c=x,y) none"),
        (recorded(0), "run x,y"),
        (ended("x"), "record (r=x) none"),
        (ended("y"), "record (r=y) steps"),
        (recorded(0), ""),
        (recorded(0), "measure"),
    ]);
    // An id that the model used twice: two calls, two results.
    check_asked(vec![
        (tools(&["x", "x"]), "record (c=x,x) none"),
        (recorded(0), "run x,x"),
        (ended("x"), "record (r=x) none"),
        (ended("x"), "record (r=x) steps"),
    ]);
}

#[test]
fn a_follow_up_goes_on_in_the_same_turn() {
    check_asked(vec![
        (text(), "record (a) end"),
        (recorded(1), "measure"),
        (size(30), "ask"),
        (text(), "record (a) end"),
        (recorded(0), ""),
    ]);
}

#[test]
fn what_is_due_is_compacted_once_before_the_call() {
    check(vec![
        (Input::Begin, "measure"),
        (due(false), "compact threshold 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
    ]);
    check(vec![
        (Input::Begin, "measure"),
        (due(true), "compact threshold window 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
    ]);
    // Later measurements start none, and still end a run that is over its budget.
    check(vec![
        (Input::Begin, "measure"),
        (due(false), "compact threshold 0"),
        (compacted(true), "measure"),
        (due(true), "ask"),
    ]);
    let over = Size { over_budget: Some("1 $".into()), ..Size::default() };
    check(vec![
        (Input::Begin, "measure"),
        (due(false), "compact threshold 0"),
        (compacted(true), "measure"),
        (Input::Size(over), "end stopped ()"),
    ]);
    // A failure changes nothing: the request is sent.
    check(vec![
        (Input::Begin, "measure"),
        (due(false), "compact threshold 0"),
        (compacted(false), "ask"),
        (tools(&["x"]), "record (c=x) none"),
        (recorded(0), "run x"),
        (ended("x"), "record (r=x) steps"),
        (recorded(0), "measure"),
        // Between tool steps too, now that there is a new message.
        (due(false), "compact threshold 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
    ]);
    // Nothing smaller is possible.
    let floor = || Some(failure(FailureClass::ContextFloor));
    check(vec![
        (Input::Begin, "measure"),
        (due(true), "compact threshold window 0"),
        (Input::Compacted { installed: false, floor: floor(), why: None }, "end failed context_floor ()"),
    ]);
    // If the window is only a guess, the provider decides.
    let guessed =
        Size { tokens: 900, is_window_guessed: true, is_due: true, at_window: true, ..Size::default() };
    check(vec![
        (Input::Begin, "measure"),
        (Input::Size(guessed), "compact threshold window 0"),
        (Input::Compacted { installed: false, floor: floor(), why: None }, "ask"),
    ]);
}

#[test]
fn failed_calls_are_tried_again_with_growing_waits() {
    let class = FailureClass::Overloaded;
    let mut table = Vec::new();
    for wait in ["wait 500 #1", "wait 1000 #2", "wait 2000 #3", "wait 4000 #4", "wait 8000 #5"] {
        table.push((failed(class), wait));
        table.push((Input::Waited, "ask"));
    }
    table.push((failed(class), "end failed overloaded ()"));
    check_asked(table);
    // An answer resets the count.
    check_asked(vec![
        (failed(FailureClass::Timeout), "wait 500 #1"),
        (Input::Waited, "ask"),
        (failed(FailureClass::Malformed), "wait 1000 #2"),
        (Input::Waited, "ask"),
        (tools(&["x"]), "record (c=x) none"),
        (recorded(0), "run x"),
        (ended("x"), "record (r=x) steps"),
        (recorded(0), "measure"),
        (size(10), "ask"),
        (failed(FailureClass::RateLimited), "wait 500 #1"),
    ]);
}

#[test]
fn the_wait_is_what_the_provider_asks_for_up_to_a_minute() {
    let after = |ms, jitter| Input::Failed {
        failure: Failure { retry_after_ms: Some(ms), ..failure(FailureClass::RateLimited) },
        wordless: false,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter,
    };
    check_asked(vec![(after(7_000, 0), "wait 7000 #1")]);
    check_asked(vec![(after(7_000, 1_000), "wait 8750 #1")]);
    check_asked(vec![(after(7_000, 9_999_999), "wait 8750 #1")]);
    check_asked(vec![(after(3_600_000, 0), "wait 60000 #1")]);
    check_asked(vec![(after(59_000, 1_000), "wait 60000 #1")]);
    check_asked(vec![(after(u64::MAX, 1_000), "wait 60000 #1")]);
    // Shorter than our own wait, or none at all: ours, which grows, so that a server that requests none is
    // not called again five times at once.
    for ms in [0, 20, 499] {
        let mut table = vec![(after(ms, 0), "wait 500 #1")];
        for wait in ["wait 1000 #2", "wait 2000 #3", "wait 4000 #4", "wait 8000 #5"] {
            table.extend([(Input::Waited, "ask"), (after(ms, 0), wait)]);
        }
        check_asked(table);
    }
    check_asked(vec![(after(0, 1_000), "wait 625 #1")]);
}

#[test]
fn what_waiting_does_not_heal_ends_the_turn() {
    for class in [
        FailureClass::RequestTooLargeForRateLimit,
        FailureClass::Quota,
        FailureClass::Auth,
        FailureClass::ContentFilter,
        FailureClass::ContextFloor,
        FailureClass::Other,
    ] {
        let run = check_asked(vec![(failed(class), &format!("end failed {class} ()"))]);
        assert!(run.is_over());
    }
}

#[test]
fn an_overflow_is_compacted_and_asked_again_a_rung_lower_each_time() {
    let class = FailureClass::ContextOverflow;
    check_asked(vec![
        (failed(class), "compact overflow window 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
        (failed(class), "compact overflow window 1"),
        (compacted(true), "measure"),
        (size(10), "ask"),
        (failed(class), "compact overflow window 2"),
        (compacted(true), "measure"),
        (size(10), "ask"),
        (failed(class), "end failed context_overflow ()"),
    ]);
    // It does not count as a retry.
    check_asked(vec![
        (failed(FailureClass::Timeout), "wait 500 #1"),
        (Input::Waited, "ask"),
        (failed(class), "compact overflow window 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
        (failed(FailureClass::Timeout), "wait 1000 #2"),
    ]);
    // After a compaction by threshold too.
    check(vec![
        (Input::Begin, "measure"),
        (due(false), "compact threshold 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
        (failed(class), "compact overflow window 0"),
    ]);
    // If nothing can be compacted, the failure has the provider's own message.
    check_asked(vec![
        (failed(class), "compact overflow window 0"),
        (compacted(false), "end failed context_overflow ()"),
    ]);
    let floor = Some(failure(FailureClass::ContextFloor));
    check_asked(vec![
        (failed(class), "compact overflow window 0"),
        (Input::Compacted { installed: false, floor, why: None }, "end failed context_floor ()"),
    ]);
}

#[test]
fn off_is_off_for_overflows_too() {
    let table = begun(vec![(failed(FailureClass::ContextOverflow), "end failed context_overflow ()")]);
    check_run(Run::new(RunLimits::default(), false, None), table);
}

#[test]
fn sessions_whose_answers_are_empty_do_not_come_back_at_once() {
    let empty = |jitter, stop| {
        let answer = Box::new(AssistantMessage { stop, usage: usage(100, 5), ..assistant(Vec::new()) });
        Input::Answered { answer, jitter }
    };
    // Up to a quarter more than the wait of 500 ms.
    for (jitter, wait) in
        [(0, "wait 500 #1"), (500, "wait 562 #1"), (999, "wait 624 #1"), (5_000, "wait 625 #1")]
    {
        for stop in [StopReason::Stop, StopReason::Length] {
            let table = vec![(Input::Begin, "measure"), (size(100), "ask"), (empty(jitter, stop), wait)];
            check(table);
        }
    }
}

/// A repeated stream without any event is compacted for, if the window is a guess or smaller requests were
/// answered; nothing gives way for it before the retries are used up, and then once.
#[test]
fn silence_that_comes_again_is_compacted_for_and_costs_nothing_before_the_end() {
    let silence = || Input::Failed {
        failure: failure(FailureClass::Malformed),
        wordless: true,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    };
    let guessed = || Input::Size(Size { is_window_guessed: true, window: Some(1_000), ..Size::default() });
    let unknown = || Input::Size(Size { tokens: 850, ..Size::default() });
    let helped = |first: Input| {
        vec![
            (Input::Begin, "measure"),
            (first, "ask"),
            (silence(), "wait 500 #1"),
            (Input::Waited, "ask"),
            (silence(), "overflow; compact overflow 0"),
            (compacted(true), "measure"),
            (size(10), "ask"),
            // The next one need not be repeated.
            (silence(), "overflow; compact overflow 1"),
            (compacted(true), "measure"),
            (size(10), "ask"),
            (text(), "record (a) end"),
        ]
    };
    check_run(run().answered_before(true), helped(size(100)));
    for first in [guessed(), unknown()] {
        let mut table = helped(first);
        // A later measurement shows that the window is known.
        table.truncate(6);
        check(table);
    }
    // A known window in which nothing was answered: as any failure.
    check_asked(vec![(silence(), "wait 500 #1"), (Input::Waited, "ask"), (silence(), "wait 1000 #2")]);
    // Other failures in between, or refusals without a body, do not count as silence.
    let refused = || Input::Failed {
        failure: failure(FailureClass::RateLimited),
        wordless: true,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    };
    let other = begun(vec![
        (silence(), "wait 500 #1"),
        (Input::Waited, "ask"),
        (refused(), "wait 1000 #2"),
        (Input::Waited, "ask"),
        (silence(), "wait 2000 #3"),
    ]);
    check_run(run().answered_before(true), other);
    // It was not an overflow: it is retried as usual, and only then something gives way.
    let in_vain = begun(vec![
        (silence(), "wait 500 #1"),
        (Input::Waited, "ask"),
        (silence(), "overflow; compact overflow 0"),
        (compacted(false), "wait 1000 #2"),
        (Input::Waited, "ask"),
        (silence(), "wait 2000 #3"),
        (Input::Waited, "ask"),
        (silence(), "wait 4000 #4"),
        (Input::Waited, "ask"),
        (silence(), "wait 8000 #5"),
        (Input::Waited, "ask"),
        (silence(), "overflow; compact overflow window 1"),
        (compacted(true), "measure"),
        (size(10), "ask"),
        // A smaller request is a different one: it has all its retries, and nothing gives way a second time.
        (silence(), "wait 500 #1"),
        (Input::Waited, "ask"),
        (silence(), "wait 1000 #2"),
        (Input::Waited, "ask"),
        (silence(), "wait 2000 #3"),
        (Input::Waited, "ask"),
        (silence(), "wait 4000 #4"),
        (Input::Waited, "ask"),
        (silence(), "wait 8000 #5"),
        (Input::Waited, "ask"),
        (silence(), "end failed malformed ()"),
    ]);
    check_run(run().answered_before(true), in_vain);
    // If compaction is not allowed, nothing is compacted.
    let off = Run::new(RunLimits::default(), false, None).answered_before(true);
    check_run(
        off,
        begun(vec![(silence(), "wait 500 #1"), (Input::Waited, "ask"), (silence(), "wait 1000 #2")]),
    );
}

#[test]
fn a_wordless_refusal_is_an_overflow_where_the_window_is_full() {
    let wordless = |class, status| Input::Failed {
        failure: Failure { status, ..failure(class) },
        wordless: true,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    };
    let check_at = |tokens, class, status, expect: &'static str| {
        check(vec![(Input::Begin, "measure"), (size(tokens), "ask"), (wordless(class, status), expect)]);
    };
    let compact = "compact overflow window 0";
    check_at(850, FailureClass::Malformed, None, compact);
    check_at(849, FailureClass::Malformed, None, "wait 500 #1");
    check_at(850, FailureClass::RateLimited, Some(429), compact);
    check_at(849, FailureClass::RateLimited, Some(429), "wait 500 #1");
    check_at(850, FailureClass::Other, Some(400), compact);
    check_at(850, FailureClass::PayloadTooLarge, Some(413), compact);
    // No window, no full one.
    let unknown = Input::Size(Size { tokens: 850, ..Size::default() });
    check(vec![
        (Input::Begin, "measure"),
        (unknown, "ask"),
        (wordless(FailureClass::Malformed, None), "wait 500 #1"),
    ]);
}

#[test]
fn less_output_is_asked_for_before_anything_is_compacted() {
    let asked = |max: Option<u64>, table| check_run(Run::new(RunLimits::default(), true, max), table);
    let begun = |first: &'static str, rest: Vec<(Input, &'static str)>| {
        let mut whole = vec![(Input::Begin, "measure"), (size(500), first)];
        whole.extend(rest);
        whole
    };
    let overflow = FailureClass::ContextOverflow;
    // 500 and a tenth of it are the input: 450 are left of 1,000, by the provider's numbers or by ours.
    for refused in
        [|| limited(FailureClass::ContextOverflow, 1_000), || failed(FailureClass::ContextOverflow)]
    {
        asked(
            Some(800),
            begun(
                "ask out=800",
                vec![
                    (refused(), "ask out=450"),
                    (refused(), "compact overflow window 0"),
                    // The remainder is then counted again, and requested again.
                    (compacted(true), "measure"),
                    (size(300), "ask out=800"),
                    (refused(), "ask out=670"),
                    (refused(), "compact overflow window 1"),
                    (compacted(true), "measure"),
                    (size(100), "ask out=800"),
                ],
            ),
        );
    }
    // More output than the whole window.
    let table = vec![
        (Input::Begin, "measure"),
        (Input::Size(Size { tokens: 8_000, window: Some(8_192), ..Size::default() }), "ask out=16000"),
        (limited(overflow, 8_192), "compact overflow window 0"),
        (compacted(true), "measure"),
        (Input::Size(Size { tokens: 3_000, window: Some(8_192), ..Size::default() }), "ask out=16000"),
        (limited(overflow, 8_192), "ask out=4892"),
        (text(), "record (a) end"),
    ];
    asked(Some(16_000), table);
    // Not if it would not help: no limit requested, too little left, less requested than is left, an unknown
    // window, or no room although the request was accepted.
    asked(None, begun("ask", vec![(limited(overflow, 1_000), "compact overflow window 0")]));
    asked(Some(800), begun("ask out=800", vec![(limited(overflow, 600), "compact overflow window 0")]));
    asked(Some(300), begun("ask out=300", vec![(limited(overflow, 1_000), "compact overflow window 0")]));
    asked(Some(300), begun("ask out=300", vec![(failed(overflow), "compact overflow window 0")]));
    let unknown = Input::Size(Size { tokens: 500, ..Size::default() });
    let table = vec![
        (Input::Begin, "measure"),
        (unknown, "ask out=800"),
        (failed(overflow), "compact overflow window 0"),
    ];
    asked(Some(800), table);
    let silent = answered(AssistantMessage { stop: StopReason::Length, ..assistant(Vec::new()) });
    asked(Some(800), begun("ask out=800", vec![(silent, "overflow; compact overflow window 0")]));
    // The limit is the one with which the request was sent, such as a budget's.
    let budget = vec![
        (overflowed(24_500), "ask out=450"),
        (text(), "record (a) end"),
        (recorded(1), "measure"),
        (size(10), "ask"),
        (overflowed(300), "compact overflow window 0"),
    ];
    asked(None, begun("ask", budget));
    // Nor a second time for one answer, although there would be room.
    let table = vec![
        (limited(overflow, 1_000), "ask out=450"),
        (limited(overflow, 900), "compact overflow window 0"),
    ];
    asked(Some(800), begun("ask out=800", table));
    // The next call uses the configured limit.
    let run = asked(
        Some(800),
        begun(
            "ask out=800",
            vec![
                (limited(overflow, 1_000), "ask out=450"),
                (tools(&["x"]), "record (c=x) none"),
                (recorded(0), "run x"),
                (ended("x"), "record (r=x) steps"),
                (recorded(0), "measure"),
                (size(10), "ask out=800"),
            ],
        ),
    );
    assert!(!run.is_over());
}

#[test]
fn an_output_limit_is_lowered_strictly_and_stays_so_for_the_turn() {
    let class = FailureClass::OutputLimit;
    let asked = |max: Option<u64>, first: &'static str, rest: Vec<(Input, &'static str)>| {
        let mut whole = vec![(Input::Begin, "measure"), (size(10), first)];
        whole.extend(rest);
        check_run(Run::new(RunLimits::default(), true, max), whole)
    };
    asked(
        Some(64_000),
        "ask out=64000",
        vec![
            (limited(class, 8_192), "ask out=8192"),
            (tools(&["x"]), "record (c=x) none"),
            (recorded(0), "run x"),
            (ended("x"), "record (r=x) steps"),
            (recorded(0), "measure"),
            (size(10), "ask out=8192"),
        ],
    );
    // An invalid limit, or none: half.
    asked(
        Some(1_000),
        "ask out=1000",
        vec![
            (limited(class, 200_000), "ask out=500"),
            (failed(class), "ask out=256"),
            (failed(class), "end failed output_limit ()"),
        ],
    );
    asked(Some(1_000), "ask out=1000", vec![(limited(class, 1_000), "ask out=500")]);
    asked(None, "ask", vec![(failed(class), "ask out=4096")]);
}

#[test]
fn a_report_above_the_window_says_that_the_context_was_cut() {
    let reported =
        |input_tokens| answered(AssistantMessage { usage: usage(input_tokens, 5), ..says("done") });
    let check_at = |input_tokens, expect: &'static str| {
        check(vec![(Input::Begin, "measure"), (size(900), "ask"), (reported(input_tokens), expect)]);
    };
    check_at(1_000, "record (a) end");
    check_at(1_001, "overflow; record (a) end");
    check_at(2_700, "overflow; record (a) end");
    // A report that our own count contradicts has no effect, whatever earlier reports measured.
    check_at(2_701, "record (a) end");
    let believed = Size { tokens: 2_700, counted: 900, window: Some(1_000), ..Size::default() };
    check(vec![
        (Input::Begin, "measure"),
        (Input::Size(believed), "ask"),
        (reported(2_701), "record (a) end"),
    ]);
}

/// An image that the provider refuses is left out for the rest of the run: the older ones first.
#[test]
fn refused_images_are_left_out() {
    let refused = |fewer_images| {
        let failure = failure(FailureClass::ImageRefused);
        Input::Failed {
            failure,
            wordless: false,
            fewer_images,
            has_native_summary: false,
            output_tokens_max: None,
            jitter: 0,
        }
    };
    check_asked(vec![
        (refused(Some(Media::Newest)), "ask newest"),
        (refused(Some(Media::Nothing)), "ask bare"),
        (text(), "record (a) end"),
        (recorded(1), "measure"),
        (size(10), "ask bare"),
        (refused(None), "end failed image_refused ()"),
    ]);
    check_asked(vec![(refused(None), "end failed image_refused ()")]);
}

/// What the provider refuses although it sent it itself is left out for the rest of the run, once.
#[test]
fn refused_opaque_data_is_left_out() {
    let refused = || failed(FailureClass::OpaqueRefused);
    check_asked(vec![
        (refused(), "ask plain"),
        (text(), "record (a) end"),
        (recorded(1), "measure"),
        (size(10), "ask plain"),
        (refused(), "end failed opaque_refused ()"),
    ]);
    check_asked(vec![(refused(), "ask plain"), (refused(), "end failed opaque_refused ()")]);
    // A refusal in unknown words is taken for one of a summary in the provider's own form, if there is one.
    let unknown = |status, has_native_summary| {
        let failure = Failure { status, ..failure(FailureClass::Other) };
        Input::Failed {
            failure,
            wordless: false,
            fewer_images: None,
            has_native_summary,
            output_tokens_max: None,
            jitter: 0,
        }
    };
    for status in [Some(400), Some(422)] {
        check_asked(vec![
            (unknown(status, true), "ask plain"),
            (unknown(status, true), "end failed other ()"),
        ]);
        check_asked(vec![(unknown(status, false), "end failed other ()")]);
    }
    for status in [None, Some(404), Some(500)] {
        check_asked(vec![(unknown(status, true), "end failed other ()")]);
    }
}

#[test]
fn a_payload_too_large_is_sent_with_fewer_images_before_anything_is_compacted() {
    let (old, new) = (|| too_many_bytes(Some(Media::Newest)), || too_many_bytes(Some(Media::Nothing)));
    let bare = || too_many_bytes(None);
    let wordless = |fewer_images| {
        let failure = failure(FailureClass::PayloadTooLarge);
        Input::Failed {
            failure,
            wordless: true,
            fewer_images,
            has_native_summary: false,
            output_tokens_max: None,
            jitter: 0,
        }
    };
    check_asked(vec![
        (old(), "ask newest"),
        (new(), "ask bare"),
        (bare(), "compact overflow window 0"),
        (compacted(true), "measure"),
        (size(10), "ask bare"),
        (text(), "record (a) end"),
        (recorded(1), "measure"),
        (size(10), "ask bare"),
    ]);
    // The successful setting stays for the run.
    check_asked(vec![
        (old(), "ask newest"),
        (text(), "record (a) end"),
        (recorded(1), "measure"),
        (size(10), "ask newest"),
    ]);
    // A step that would drop nothing is not taken: no request is repeated.
    check_asked(vec![(new(), "ask bare")]);
    check_asked(vec![(bare(), "compact overflow window 0")]);
    // If the server does not say that it is about bytes, only images are dropped for it.
    check_asked(vec![(wordless(None), "end failed payload_too_large ()")]);
    check_asked(vec![
        (wordless(Some(Media::Nothing)), "ask bare"),
        (wordless(None), "end failed payload_too_large ()"),
    ]);
    // Bytes are not tokens: the run ends with the provider's message.
    check_asked(vec![
        (bare(), "compact overflow window 0"),
        (
            Input::Compacted {
                installed: false,
                floor: Some(failure(FailureClass::ContextFloor)),
                why: None,
            },
            "end failed payload_too_large ()",
        ),
    ]);
}

#[test]
fn an_answer_that_says_nothing_is_none() {
    let empty = |stop| answered(AssistantMessage { stop, ..assistant(Vec::new()) });
    let reasoning = || answered(assistant(vec![Part::Reasoning("hm".into())]));
    check_asked(vec![
        (empty(StopReason::Stop), "wait 500 #1"),
        (Input::Waited, "ask"),
        (reasoning(), "wait 1000 #2"),
    ]);
    check_asked(vec![(empty(StopReason::ContentFilter), "end failed content_filter ()")]);
    // Cut off before a single token: an overflow. After reasoning alone only if the window is full; otherwise
    // it is retried once, and not with less output: more attempts would cost as much, and say as little.
    check_asked(vec![(empty(StopReason::Length), "overflow; compact overflow window 0")]);
    let thought = || {
        let thought = assistant(vec![Part::Reasoning("hm".into())]);
        answered(AssistantMessage { stop: StopReason::Length, ..thought })
    };
    let again = vec![(thought(), "wait 500 #1"), (Input::Waited, "ask")];
    check_asked([again.clone(), vec![(thought(), "end failed output_limit ()")]].concat());
    let calls_again = vec![
        (tools(&["x"]), "record (c=x) none"),
        (recorded(0), "run x"),
        (ended("x"), "record (r=x) steps"),
        (recorded(0), "measure"),
        (size(10), "ask"),
    ];
    check_asked([again.clone(), calls_again, again].concat());
    let falls_back = Fallbacks { left: 1, on: [FailureClass::OutputLimit].into() };
    check_run(
        run().with_fallbacks(falls_back),
        begun(vec![
            (thought(), "wait 500 #1"),
            (Input::Waited, "ask"),
            (thought(), "fall back output_limit"),
            (fell_back(None), "measure"),
            (size(10), "ask"),
            (thought(), "wait 500 #1"),
        ]),
    );
    check(vec![
        (Input::Begin, "measure"),
        (size(900), "ask"),
        (thought(), "overflow; compact overflow window 0"),
        (compacted(true), "measure"),
        (size(10), "ask"),
    ]);
    // By the provider's count, too, if ours does not contradict it.
    let counted = |input_tokens| {
        let mut thought = assistant(vec![Part::Reasoning("hm".into())]);
        thought.stop = StopReason::Length;
        thought.usage = usage(input_tokens, 5);
        answered(thought)
    };
    let check_at = |tokens, input_tokens, expect: &'static str| {
        check(vec![(Input::Begin, "measure"), (size(tokens), "ask"), (counted(input_tokens), expect)]);
    };
    check_at(600, 990, "overflow; compact overflow window 0");
    check_at(600, 700, "wait 500 #1");
    check_at(600, 600_000, "wait 500 #1");
    check_at(10, 10_000, "wait 500 #1");
    // The failure after reasoning alone says so, and gives advice.
    let failure = |stop, reasoning: &str| {
        let mut answer = assistant(vec![Part::Reasoning(reasoning.into())]);
        (answer.stop, answer.usage) = (stop, usage(10, 5));
        let effects = check_asked(Vec::new()).on(answered(answer));
        let [Effect::Wait { failure, .. }] = effects.as_slice() else { panic!("{effects:?}") };
        failure.message.clone()
    };
    let check_said = |stop, reasoning, said: [&str; 2]| {
        let message = failure(stop, reasoning);
        assert!(said.iter().all(|piece| message.contains(piece)), "{message}");
    };
    check_said(StopReason::Stop, "hmm ü", ["with reasoning only (5 characters)", "reasoning parser"]);
    check_said(
        StopReason::Length,
        "hmm ü",
        ["while the model was reasoning (5 characters)", "raise the limit (output_tokens_max)"],
    );
    check_said(StopReason::Length, "", ["before any output", "raise it (output_tokens_max)"]);
    let mut table: Vec<(Input, &str)> = Vec::new();
    for wait in ["wait 500 #1", "wait 1000 #2", "wait 2000 #3", "wait 4000 #4", "wait 8000 #5"] {
        table.extend([(empty(StopReason::Stop), wait), (Input::Waited, "ask")]);
    }
    // A gateway may produce this from an empty stream: something gives way, once, before it is given up.
    table.push((empty(StopReason::Stop), "overflow; compact overflow window 0"));
    table.push((compacted(false), "end failed malformed ()"));
    check_asked(table);
}

#[test]
fn a_call_that_the_answers_end_cut_off_is_answered_and_not_run() {
    let cut = |ids: &[&str], arguments: &str, stop| {
        let mut answer = calls(ids);
        answer.stop = stop;
        if let Some(Part::ToolCall(call)) = answer.content.last_mut() {
            call.arguments = arguments.into();
        }
        answered(answer)
    };
    for stop in [StopReason::Length, StopReason::ContentFilter] {
        for arguments in ["", " ", "{", r#"{"path":"x"#] {
            check_asked(vec![
                (cut(&["x"], arguments, stop), "record (c=x) none"),
                (recorded(0), "record (r=x) steps"),
                (recorded(0), "measure"),
                (size(10), "ask"),
            ]);
            // Those before it were complete.
            check_asked(vec![
                (cut(&["x", "y"], arguments, stop), "record (c=x,y) none"),
                (recorded(0), "run x; record (r=y) none"),
                (recorded(0), ""),
                (ended("x"), "record (r=x) steps"),
                (recorded(0), "measure"),
            ]);
            check_asked(vec![
                (cut(&["x"], arguments, stop), "record (c=x) none"),
                (abort(), "cancel; end aborted (r=x)"),
            ]);
        }
        let whole = cut(&["x"], r#"{"path":"x"}"#, stop);
        check_asked(vec![(whole, "record (c=x) none"), (recorded(0), "run x")]);
    }
    // A complete answer: a tool without parameters, or arguments that the registry rejects.
    for arguments in ["", "{"] {
        let whole = cut(&["x"], arguments, StopReason::ToolCalls);
        check_asked(vec![(whole, "record (c=x) none"), (recorded(0), "run x")]);
    }
    // Text after it: the call was complete.
    let mut answer = calls(&["x"]);
    if let Some(Part::ToolCall(call)) = answer.content.last_mut() {
        call.arguments = String::new();
    }
    answer.content.push(Part::Text("so I".into()));
    answer.stop = StopReason::Length;
    let mut run = check_asked(Vec::new());
    run.on(answered(answer));
    assert_eq!(words(&run.on(recorded(0))), "run x");
}

/// Returns an answer of so many calls, each with so many bytes of arguments.
fn many(count: usize, bytes: usize) -> AssistantMessage {
    let ids: Vec<String> = (1..=count).map(|id| id.to_string()).collect();
    let mut answer = calls(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    for part in &mut answer.content {
        if let Part::ToolCall(call) = part {
            call.name = "t".into();
            call.arguments = "x".repeat(bytes);
        }
    }
    answer
}

fn of_few_calls() -> Run {
    Run::new(
        RunLimits { calls_max: 3, call_bytes_max: 100, repeats_max: 9, ..RunLimits::default() },
        true,
        None,
    )
}

#[test]
fn more_calls_than_one_answer_may_have_are_left_out_and_the_model_is_told() {
    // Calls, bytes of each one's arguments; the recorded and the run calls.
    for (count, bytes, record, after) in [
        (3, 1, "record (c=1,2,3) none", "run 1,2,3"),
        (3, 32, "record (c=1,2,3) none", "run 1,2,3"),
        (4, 1, "record (c=1,2,3,4) none", "run 1,2,3; record (r=4) none"),
        (9, 1, "record (c=1,2,3,4) none", "run 1,2,3; record (r=4) none"),
        (100_000, 1, "record (c=1,2,3,4) none", "run 1,2,3; record (r=4) none"),
        (3, 33, "record (c=1,2,3) none", "run 1,2; record (r=3) none"),
        (3, 60, "record (c=1,2) none", "run 1; record (r=2) none"),
        (1, 99, "record (c=1) none", "run 1"),
        (1, 100, "record (c=1) none", "record (r=1) steps"),
        (2, 4_000_000, "record (c=1) none", "record (r=1) steps"),
    ] {
        let run = check_run(
            of_few_calls(),
            begun(vec![(answered(many(count, bytes)), record), (recorded(0), after)]),
        );
        assert!(!run.is_over(), "{count} of {bytes}");
    }
    // The message to the model, and the record of the call.
    let mut run = check_run(of_few_calls(), begun(Vec::new()));
    let mut wordy = many(5, 2_000_000);
    wordy.content.insert(0, Part::Text("now I".into()));
    wordy.content.push(Part::Text("so I".into()));
    let effects = run.on(answered(wordy));
    let Some(Effect::Record { messages, .. }) = effects.first() else { panic!("{effects:?}") };
    let Message::Assistant(answer) = &messages[0] else { panic!("{messages:?}") };
    assert_eq!(answer.text(), "now Iso I");
    let recorded_calls: Vec<&ToolCall> = answer.tool_calls().collect();
    assert_eq!((recorded_calls.len(), recorded_calls[0].arguments.as_str()), (1, "{}"));
    let effects = run.on(recorded(0));
    let Some(Effect::Record { messages, .. }) = effects.first() else { panic!("{effects:?}") };
    let told = messages[0].text();
    for words in
        ["was not run", "at most 3 tools", "at most 100 bytes", "5 calls with 10000005 bytes", "4 after it"]
    {
        assert!(told.contains(words), "{told}");
    }
    // An answer that was cut off and also has too many calls gets the message for the latter.
    let mut both = many(9, 1);
    both.stop = StopReason::Length;
    let mut run = check_run(of_few_calls(), begun(vec![(answered(both), "record (c=1,2,3,4) none")]));
    let effects = run.on(recorded(0));
    assert_eq!(words(&effects), "run 1,2,3; record (r=4) none");
    // The three that ran and the refused one are not among those dropped after it.
    let Some(Effect::Record { messages, .. }) = effects.last() else { panic!("{effects:?}") };
    assert!(messages[0].text().contains("this call and 5 after it were left out"), "{}", messages[0].text());
}

#[test]
fn a_model_that_goes_on_calling_too_many_tools_is_stopped() {
    let end = |id: &str, boundary: &str| (ended(id), format!("record (r={id}) {boundary}"));
    let mut run = check_run(of_few_calls(), begun(Vec::new()));
    for round in 0..3 {
        // Different each time: it is not a repetition.
        assert_eq!(words(&run.on(answered(many(9, 2 + round)))), "record (c=1,2,3,4) none");
        assert_eq!(words(&run.on(recorded(0))), "run 1,2,3; record (r=4) none");
        run.on(recorded(0));
        for (input, expect) in [end("1", "none"), end("2", "none"), end("3", "steps")] {
            assert_eq!(words(&run.on(input)), expect);
        }
        run.on(recorded(0));
        run.on(recorded(0));
        assert_eq!(words(&run.on(recorded(0))), "measure");
        assert_eq!(words(&run.on(size(10))), "ask");
    }
    let effects = run.on(answered(many(9, 9)));
    assert_eq!(words(&effects), "end stopped (c=1,2,3,4 r=1 r=2 r=3 r=4)");
    let Some(Effect::End { outcome: RunOutcome::Stopped { reason }, .. }) = effects.last() else {
        panic!("{effects:?}")
    };
    assert_eq!(reason, "4 answers in a row called more tools than one answer may");
    // One answer within the limit resets the count.
    let mut run = check_run(of_few_calls(), begun(Vec::new()));
    for round in 0..20 {
        let count = if round % 4 == 3 { 1 } else { 9 };
        run.on(answered(many(count, 2 + round)));
        run.on(recorded(0));
        for id in ["1", "2", "3"].into_iter().take(count) {
            run.on(ended(id));
        }
        for _ in 0..4 {
            run.on(recorded(0));
        }
        run.on(size(10));
        assert!(!run.is_over(), "round {round}");
    }
}

#[test]
fn a_run_that_is_out_of_time_is_stopped_as_an_abort_and_says_why() {
    let late_after = |partial, limit_ms| Input::Abort {
        partial,
        not_begun: Vec::new(),
        cause: AbortCause::OutOfTime { limit_ms },
    };
    let late = |partial| late_after(partial, 90_000);
    check(vec![(late(None), "cancel; end stopped ()")]);
    check_asked(vec![(late(Some(Box::new(says("half")))), "cancel; end stopped (a)")]);
    check_asked(vec![
        (tools(&["x", "y"]), "record (c=x,y) none"),
        (recorded(0), "run x,y"),
        (ended("x"), "record (r=x) none"),
        (late(None), "cancel; end stopped (r=y!)"),
    ]);
    check_asked(vec![(text(), "record (a) end"), (late(None), ""), (recorded(0), "")]);
    check_asked(vec![(text(), "record (a) end"), (late(None), ""), (recorded(1), "end stopped ()")]);
    for (limit_ms, shown) in
        [(90_000, "90 s"), (700, "700 ms"), (1_500, "1.5 s"), (60_050, "60.05 s"), (0, "0 ms")]
    {
        let effects = check_asked(Vec::new()).on(late_after(None, limit_ms));
        let Some(Effect::End { outcome: RunOutcome::Stopped { reason }, .. }) = effects.last() else {
            panic!("{effects:?}")
        };
        assert_eq!(*reason, format!("the run reached its time limit of {shown}"));
    }
}

#[test]
fn a_silent_overflow_is_compacted_before_the_next_call() {
    let over = |mut answer: AssistantMessage| {
        answer.usage = usage(1_200, 5);
        answered(answer)
    };
    let at = |tokens, rest: Vec<(Input, &'static str)>| {
        let mut whole = vec![(Input::Begin, "measure"), (size(tokens), "ask")];
        whole.extend(rest);
        whole
    };
    // Our own estimate may be low.
    for tokens in [990, 700, 400] {
        check(at(
            tokens,
            vec![
                (over(calls(&["x"])), "overflow; record (c=x) none"),
                (recorded(0), "run x"),
                (ended("x"), "record (r=x) steps"),
                (recorded(0), "measure"),
                (size(10), "compact overflow window 0"),
                (compacted(true), "measure"),
                (size(10), "ask"),
                (text(), "record (a) end"),
                (recorded(1), "measure"),
                (size(10), "ask"),
            ],
        ));
    }
    // The answer counts nevertheless.
    check(at(990, vec![(over(says("done")), "overflow; record (a) end"), (recorded(0), "")]));
    let table = at(
        990,
        vec![(over(says("done")), "overflow; record (a) end"), (recorded(1), "measure"), (size(10), "ask")],
    );
    check_run(Run::new(RunLimits::default(), false, None), table);
    // A report that our own count contradicts compacts nothing.
    for tokens in [10, 150, 399] {
        check(at(
            tokens,
            vec![
                (over(calls(&["x"])), "record (c=x) none"),
                (recorded(0), "run x"),
                (ended("x"), "record (r=x) steps"),
                (recorded(0), "measure"),
                (size(tokens), "ask"),
            ],
        ));
    }
}

/// One step with a tool, from `ask` to `ask`.
fn step(call: Input, record: &'static str, run: &'static str, id: &str) -> Vec<(Input, &'static str)> {
    vec![
        (call, record),
        (recorded(0), run),
        (ended(id), "record (r=x) steps"),
        (recorded(0), "measure"),
        (size(10), "ask"),
    ]
}

#[test]
fn a_paused_answer_is_recorded_and_continued() {
    let paused = || answered(AssistantMessage { stop: StopReason::Paused, ..says("so far") });
    check_asked(vec![
        (paused(), "record (a) steps"),
        (recorded(0), "measure"),
        (size(10), "ask"),
        (text(), "record (a) end"),
        (recorded(0), ""),
    ]);
    // It cannot go on without end.
    let limits = RunLimits { steps_max: 2, ..RunLimits::default() };
    let table = vec![
        (paused(), "record (a) steps"),
        (recorded(0), "measure"),
        (size(10), "ask"),
        (paused(), "end stopped (a)"),
    ];
    check_run(Run::new(limits, true, None), begun(table));
}

#[test]
fn guards_end_a_turn_and_answer_its_calls() {
    let same = || step(tools(&["x"]), "record (c=x) none", "run x", "x");
    let stopped = "end stopped (c=x r=x)";
    // The same calls over and over.
    let limits = RunLimits { repeats_max: 2, ..RunLimits::default() };
    let mut table = begun(same());
    table.extend(same());
    table.push((tools(&["x"]), stopped));
    check_run(Run::new(limits, true, None), table);
    // Another one between them resets the count.
    let mut table = begun(same());
    table.extend(same());
    let mut other = step(other_tool("x"), "record (c=x) none", "run x", "x");
    table.append(&mut other);
    table.extend(same());
    table.extend(same());
    table.push((tools(&["x"]), stopped));
    check_run(Run::new(limits, true, None), table);
    // Too many steps.
    let limits = RunLimits { steps_max: 2, ..RunLimits::default() };
    let mut table = begun(same());
    table.push((tools(&["x"]), stopped));
    check_run(Run::new(limits, true, None), table);
    // An answer may come at any step, and in the last one no input joins it.
    let mut table = begun(same());
    table.push((text(), "end completed (a)"));
    check_run(Run::new(limits, true, None), table);
    // A budget.
    let over = Size { over_budget: Some("1 $".into()), ..Size::default() };
    check(vec![(Input::Begin, "measure"), (Input::Size(over), "end stopped ()")]);
}

#[test]
fn an_abort_ends_the_turn_in_any_phase() {
    let aborted = "cancel; end aborted ()";
    check(vec![(abort(), aborted)]);
    check(vec![(Input::Begin, "measure"), (abort(), aborted), (size(10), "")]);
    check(vec![
        (Input::Begin, "measure"),
        (due(false), "compact threshold 0"),
        (abort(), aborted),
        (compacted(true), ""),
    ]);
    check_asked(vec![(abort(), aborted), (text(), "")]);
    check_asked(vec![
        (failed(FailureClass::Timeout), "wait 500 #1"),
        (abort(), aborted),
        (Input::Waited, ""),
    ]);
    // The part of an answer that has arrived is kept, without incomplete calls.
    let partial = |answer| Input::Abort {
        partial: Some(Box::new(answer)),
        not_begun: Vec::new(),
        cause: AbortCause::Requested,
    };
    check_asked(vec![(partial(says("half")), "cancel; end aborted (a)")]);
    check_asked(vec![(partial(calls(&["x"])), aborted)]);
    check_asked(vec![(partial(assistant(vec![Part::Reasoning("hm".into())])), aborted)]);
    // Not before the model was called.
    check(vec![(Input::Begin, "measure"), (partial(says("half")), aborted)]);
    // Each open call gets its result, and existing results are kept.
    check_asked(vec![
        (tools(&["x", "y"]), "record (c=x,y) none"),
        // None of them has begun.
        (abort(), "cancel; end aborted (r=x r=y)"),
        (recorded(0), ""),
    ]);
    let behind = |ids: &[&str]| Input::Abort {
        partial: None,
        not_begun: ids.iter().map(|id| (*id).to_owned()).collect(),
        cause: AbortCause::Requested,
    };
    check_asked(vec![
        (tools(&["x", "y", "z"]), "record (c=x,y,z) none"),
        (recorded(0), "run x,y,z"),
        (ended("x"), "record (r=x) none"),
        (behind(&["z", "x"]), "cancel; end aborted (r=y! r=z)"),
    ]);
    check_asked(vec![
        (tools(&["x", "y"]), "record (c=x,y) none"),
        (recorded(0), "run x,y"),
        (ended("x"), "record (r=x) none"),
        (abort(), "cancel; end aborted (r=y!)"),
        (ended("y"), ""),
    ]);
    check_asked(vec![
        (tools(&["x"]), "record (c=x) none"),
        (recorded(0), "run x"),
        (ended("x"), "record (r=x) steps"),
        (abort(), aborted),
    ]);
    // While the last record is being written: it may end the run itself.
    check_asked(vec![(text(), "record (a) end"), (abort(), ""), (recorded(0), ""), (abort(), "")]);
    check_asked(vec![(text(), "record (a) end"), (abort(), ""), (recorded(1), "end aborted ()")]);
}

#[test]
fn what_is_not_awaited_is_ignored() {
    check(vec![
        (size(10), ""),
        (text(), ""),
        (recorded(1), ""),
        (ended("x"), ""),
        (Input::Waited, ""),
        (compacted(true), ""),
        (failed(FailureClass::Other), ""),
        (Input::Begin, "measure"),
        (Input::Begin, ""),
        (text(), ""),
        (size(10), "ask"),
        (size(10), ""),
        (Input::Waited, ""),
    ]);
}

const CLASSES: [FailureClass; 15] = [
    FailureClass::ImageRefused,
    FailureClass::OpaqueRefused,
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
];

fn any_answer(random: &mut Random) -> AssistantMessage {
    let mut answer = match random.below(5) {
        0 => says("done"),
        1 => assistant(Vec::new()),
        2 => calls(&["x", "x"]),
        _ => {
            let ids = ["x", "y", "z", "w"];
            let count = usize::try_from(1 + random.below(4)).expect("small");
            calls(&ids[..count])
        }
    };
    if random.one_in(4) {
        answer.stop = *random.pick(&[StopReason::Length, StopReason::ContentFilter, StopReason::Error]);
    }
    if random.one_in(2) {
        answer.usage = usage(random.below(1_300), 9);
    }
    answer
}

fn any_input(random: &mut Random) -> Input {
    match random.below(10) {
        0 => Input::Begin,
        1 | 2 => Input::Size(Size {
            tokens: random.below(1_200),
            counted: random.below(1_200),
            is_window_guessed: random.one_in(3),
            window: (!random.one_in(5)).then_some(1_000),
            is_due: random.one_in(3),
            at_window: random.one_in(5),
            nears: random.one_in(4).then_some(900),
            is_uncertain: random.one_in(4),
            over_budget: random.one_in(60).then(|| "a budget".into()),
        }),
        3 => Input::Compacted {
            installed: !random.one_in(3),
            floor: random.one_in(9).then(|| failure(FailureClass::ContextFloor)),
            why: random.one_in(3).then(|| "it was cancelled".into()),
        },
        4 => Input::Answered { answer: Box::new(any_answer(random)), jitter: random.below(1_000) },
        5 => Input::Failed {
            failure: Failure {
                limit: random.one_in(2).then(|| random.below(2_000)),
                retry_after_ms: random.one_in(3).then(|| random.below(u64::MAX)),
                status: random.one_in(3).then_some(429),
                ..failure(*random.pick(&CLASSES))
            },
            wordless: random.one_in(4),
            fewer_images: *random.pick(&[None, None, Some(Media::Newest), Some(Media::Nothing)]),
            has_native_summary: random.one_in(3),
            output_tokens_max: random.one_in(2).then(|| random.below(2_000)),
            jitter: random.below(2_000),
        },
        6 if random.one_in(5) => Input::Counted,
        6 if random.one_in(6) => Input::Refused { reason: "not now".into() },
        6 if random.one_in(2) => fell_back(random.one_in(2).then_some(700)),
        6 => Input::Waited,
        8 => Input::Validated(any_verdict(random)),
        7 => Input::ToolEnded(Box::new(result(random.pick::<&str>(&["x", "y", "z", "w"]), "ok"))),
        _ if random.one_in(20) => {
            let partial = random.one_in(2).then(|| Box::new(any_answer(random)));
            let out_of_time = AbortCause::OutOfTime { limit_ms: 1_000 };
            Input::Abort {
                partial,
                not_begun: Vec::new(),
                cause: if random.one_in(3) { out_of_time } else { AbortCause::Requested },
            }
        }
        _ => Input::Recorded { delivered: u32::from(random.one_in(4)) },
    }
}

/// The content of the log, and its invariants.
#[derive(Default)]
struct Log {
    /// The calls of the newest answer that have no result, by id.
    open: HashMap<String, usize>,
    /// The calls of the newest answer that were handed out.
    run: HashMap<String, usize>,
    called: HashMap<String, usize>,
    ends: usize,
    open_step: Option<u32>,
    /// The minimum number of the next step.
    steps: u32,
    /// How often another model was requested.
    fallbacks: u32,
}

impl Log {
    fn message(&mut self, message: &Message, seed: u64) {
        match message {
            Message::User(_) if message.text().starts_with("Your answer was not accepted: ") => {
                assert!(self.open.is_empty(), "seed {seed}: between a call and its result");
            }
            Message::User(_) => panic!("seed {seed}: a run says nothing as the user"),
            Message::Assistant(answer) => {
                assert!(self.open.is_empty(), "seed {seed}: an answer while calls are open");
                assert!(!answer.is_empty(), "seed {seed}: an empty answer");
                self.run.clear();
                for call in answer.tool_calls() {
                    *self.open.entry(call.id.clone()).or_default() += 1;
                }
                self.called = self.open.clone();
            }
            Message::ToolResult(result) => {
                let left = self.open.get_mut(&result.call_id);
                let left = left.unwrap_or_else(|| panic!("seed {seed}: {} has no call", result.call_id));
                *left -= 1;
                self.open.retain(|_, left| *left > 0);
            }
        }
    }

    fn effect(&mut self, effect: &Effect, seed: u64) {
        assert_eq!(self.ends, 0, "seed {seed}: something after the end");
        match effect {
            Effect::Record { messages, .. } => {
                messages.iter().for_each(|message| self.message(message, seed))
            }
            Effect::End { messages, .. } => {
                messages.iter().for_each(|message| self.message(message, seed));
                assert!(self.open.is_empty(), "seed {seed}: it ended with open calls");
                self.ends += 1;
            }
            Effect::RunTools(calls) => {
                for call in calls {
                    let runs = self.run.entry(call.id.clone()).or_default();
                    *runs += 1;
                    let asked = self.called.get(&call.id).copied().unwrap_or_default();
                    assert!(*runs <= asked, "seed {seed}: a call ran twice");
                }
            }
            Effect::Wait { delay_ms, .. } => assert!(*delay_ms <= BACKOFF_MS_MAX, "seed {seed}"),
            Effect::Ask { .. }
            | Effect::Compact { .. }
            | Effect::Measure
            | Effect::Count { .. }
            | Effect::Validate { .. } => {
                assert!(self.open.is_empty(), "seed {seed}: calls are open");
            }
            Effect::StepStarted { step } => {
                assert_eq!(self.open_step.replace(*step), None, "seed {seed}: two open steps");
                assert!(*step >= self.steps, "seed {seed}: step {step} again");
                self.steps = step + 1;
            }
            Effect::StepEnded { step } => {
                assert_eq!(self.open_step.take(), Some(*step), "seed {seed}: the end of another step");
            }
            Effect::FallBack { .. } => {
                assert!(self.open.is_empty(), "seed {seed}: calls are open");
                self.fallbacks += 1;
            }
            Effect::OverflowDetected | Effect::Cancel => {}
        }
        if matches!(
            effect,
            Effect::Ask { .. } | Effect::Wait { .. } | Effect::RunTools(_) | Effect::Validate { .. }
        ) {
            assert!(self.open_step.is_some(), "seed {seed}: {effect:?} outside a step");
        }
    }
}

#[test]
fn whatever_happens_a_run_ends_once_and_each_call_runs_and_is_answered_once() {
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        let limits = RunLimits {
            steps_max: 6,
            repeats_max: 3,
            retries_max: 2,
            loading_ms_max: 5_000,
            overflows_max: 2,
            rejections_max: 1,
            calls_max: 2,
            call_bytes_max: 60,
        };
        let max = random.one_in(2).then_some(900);
        let mut run = Run::new(limits, !random.one_in(4), max).validated(random.one_in(2));
        let left = *random.pick(&[0, 1, 2]);
        run = run.with_fallbacks(falls_back(left));
        let mut log = Log::default();
        for _ in 0..200 {
            let input = any_input(&mut random);
            let was_over = run.is_over();
            let effects = run.on(input);
            assert!(!was_over || effects.is_empty(), "seed {seed}: {effects:?} after the end");
            effects.iter().for_each(|effect| log.effect(effect, seed));
            assert!(log.ends == 0 || run.is_over(), "seed {seed}");
            assert!(log.fallbacks <= left, "seed {seed}: {} fallbacks of {left}", log.fallbacks);
            if run.is_over() {
                assert!(log.open.is_empty(), "seed {seed}: it ended with open calls");
                assert_eq!(log.open_step, None, "seed {seed}: it ended with an open step");
            }
        }
    }
}

#[test]
fn a_run_whose_effects_are_done_always_ends() {
    let (mut steps, mut judged, mut fallbacks) = (0, 0, 0);
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        let limits = RunLimits { steps_max: 9, ..RunLimits::default() };
        let mut run = Run::new(limits, true, None).validated(random.one_in(2));
        run = run.with_fallbacks(falls_back(*random.pick(&[0, 1, 2])));
        let mut log = Log::default();
        let mut waiting = vec![Input::Begin];
        let mut inbox = 3u32;
        let mut inputs = 0;
        while let Some(input) = waiting.pop() {
            inputs += 1;
            assert!(inputs < 2_000, "seed {seed}: it goes on and on");
            for effect in run.on(input) {
                log.effect(&effect, seed);
                match effect {
                    Effect::Measure => waiting.push(Input::Size(Size {
                        tokens: random.below(1_200),
                        counted: random.below(1_200),
                        window: Some(1_000),
                        is_due: random.one_in(3),
                        is_uncertain: random.one_in(4),
                        ..Size::default()
                    })),
                    Effect::Count { .. } => waiting.push(Input::Counted),
                    Effect::Compact { .. } => waiting.push(compacted(random.one_in(2))),
                    Effect::Ask { .. } => loop {
                        let input = any_input(&mut random);
                        if matches!(
                            input,
                            Input::Answered { .. } | Input::Failed { .. } | Input::Refused { .. }
                        ) {
                            waiting.push(input);
                            break;
                        }
                    },
                    Effect::Record { boundary, .. } => {
                        let delivers = boundary != Boundary::None && inbox > 0 && random.one_in(2);
                        inbox -= u32::from(delivers);
                        // Records become durable in their order, before other pending inputs.
                        waiting.push(recorded(u32::from(delivers)));
                    }
                    Effect::RunTools(calls) => {
                        for call in calls {
                            waiting.insert(0, ended(&call.id));
                        }
                    }
                    Effect::Validate { rejections, .. } => {
                        assert!(rejections <= limits.rejections_max, "seed {seed}: {rejections} rejections");
                        judged += 1;
                        waiting.push(Input::Validated(any_verdict(&mut random)));
                    }
                    Effect::Wait { .. } => waiting.push(Input::Waited),
                    Effect::FallBack { .. } => waiting.push(fell_back(None)),
                    Effect::OverflowDetected
                    | Effect::Cancel
                    | Effect::StepStarted { .. }
                    | Effect::StepEnded { .. }
                    | Effect::End { .. } => {}
                }
            }
        }
        assert!(run.is_over(), "seed {seed}: it hangs");
        assert_eq!(log.open_step, None, "seed {seed}: a step has no end");
        steps += log.steps;
        fallbacks += log.fallbacks;
    }
    assert!(fallbacks > 500, "only {fallbacks} fallbacks");
    assert!(steps > 10_000, "only {steps} steps");
    assert!(judged > 500, "only {judged} answers were judged");
}

/// An uncertain size is counted once, and then decides as it is.
#[test]
fn an_uncertain_size_is_counted_before_it_decides() {
    let uncertain =
        |is_due| Input::Size(Size { is_due, is_uncertain: true, window: Some(1_000), ..Size::default() });
    let over = Size { over_budget: Some("1 $".into()), is_uncertain: true, ..Size::default() };
    let check = |inputs: Vec<(Input, &str)>| {
        let mut run = Run::new(RunLimits::default(), true, None);
        run.on(Input::Begin);
        for (input, expect) in inputs {
            let shown = format!("{input:?}");
            assert_eq!(words(&run.on(input)), expect, "after {shown}");
        }
    };
    check(vec![
        (uncertain(true), "count All false"),
        (Input::Counted, "measure"),
        (uncertain(false), "ask"),
        (Input::Counted, ""),
        (tools(&["x"]), "record (c=x) none"),
        (recorded(0), "run x"),
        (ended("x"), "record (r=x) steps"),
        (recorded(0), "measure"),
        (uncertain(false), "count All false"),
        (Input::Counted, "measure"),
        (uncertain(true), "compact threshold 0"),
        (compacted(true), "measure"),
        (uncertain(true), "ask"),
    ]);
    check(vec![(Input::Size(over), "end stopped ()")]);
    check(vec![(uncertain(true), "count All false"), (abort(), "cancel; end aborted ()")]);
}

/// Returns the steps that start and end, as `+1 -1`.
fn steps(effects: &[Effect]) -> String {
    let word = |effect: &Effect| match effect {
        Effect::StepStarted { step } => Some(format!("+{step}")),
        Effect::StepEnded { step } => Some(format!("-{step}")),
        Effect::Measure
        | Effect::Count { .. }
        | Effect::Compact { .. }
        | Effect::Ask { .. }
        | Effect::Record { .. }
        | Effect::RunTools(_)
        | Effect::Validate { .. }
        | Effect::Wait { .. }
        | Effect::FallBack { .. }
        | Effect::OverflowDetected
        | Effect::Cancel
        | Effect::End { .. } => None,
    };
    effects.iter().filter_map(word).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check_steps(table: Vec<(Input, &str)>) {
    let mut run = run();
    for (at, (input, expect)) in table.into_iter().enumerate() {
        let shown = format!("input {at}, {input:?}");
        assert_eq!(steps(&run.on(input)), expect, "{shown}");
    }
    assert!(run.is_over());
}

#[test]
fn a_step_is_one_answer_with_all_its_results() {
    check_steps(vec![
        (Input::Begin, ""),
        (size(10), "+1"),
        (tools(&["x", "y"]), ""),
        (recorded(0), ""),
        (ended("x"), ""),
        (recorded(0), ""),
        (ended("y"), ""),
        (recorded(1), "-1"),
        (size(10), "+2"),
        (text(), ""),
        // A follow-up continues the run.
        (recorded(1), "-2"),
        (size(10), "+3"),
        (text(), ""),
        (recorded(0), "-3"),
    ]);
}

#[test]
fn a_retry_and_a_compaction_after_an_overflow_belong_to_their_step() {
    check_steps(vec![
        (Input::Begin, ""),
        (due(false), ""),
        // One by threshold is before the step.
        (compacted(true), ""),
        (size(10), "+1"),
        (failed(FailureClass::RateLimited), ""),
        (Input::Waited, ""),
        (failed(FailureClass::ContextOverflow), ""),
        (compacted(true), ""),
        (size(10), ""),
        (too_many_bytes(Some(Media::Nothing)), ""),
        (text(), ""),
        (recorded(0), "-1"),
    ]);
}

#[test]
fn a_run_that_ends_inside_a_step_ends_the_step_first() {
    let begun = || vec![(Input::Begin, ""), (size(10), "+1")];
    let check = |rest: Vec<(Input, &'static str)>| check_steps(begun().into_iter().chain(rest).collect());
    check(vec![(abort(), "-1")]);
    check(vec![(failed(FailureClass::Auth), "-1")]);
    check(vec![(failed(FailureClass::Timeout), ""), (abort(), "-1")]);
    check(vec![(tools(&["x"]), ""), (recorded(0), ""), (abort(), "-1")]);
    check(vec![(failed(FailureClass::ContextOverflow), ""), (compacted(false), "-1")]);
    check(vec![(text(), ""), (abort(), ""), (recorded(1), "-1")]);
    check(vec![(text(), ""), (abort(), ""), (recorded(0), "-1")]);
    // Between two steps there is none to end.
    check(vec![(tools(&["x"]), ""), (recorded(0), ""), (ended("x"), ""), (recorded(0), "-1"), (abort(), "")]);
    check_steps(vec![(Input::Begin, ""), (abort(), "")]);
}

fn validated() -> Run {
    run().validated(true)
}

fn rejected(reason: &str) -> Input {
    Input::Validated(Verdict::Rejected { reason: reason.into() })
}

fn any_verdict(random: &mut Random) -> Verdict {
    match random.below(5) {
        0 | 1 => Verdict::Accepted,
        2 => Verdict::Rejected { reason: "no".into() },
        3 => Verdict::Ended { reason: "never".into() },
        _ => Verdict::Failed { reason: "it broke".into() },
    }
}

#[test]
fn an_answer_is_judged_before_it_is_recorded_and_one_that_calls_tools_is_not() {
    check_run(
        validated(),
        vec![
            (Input::Begin, "measure"),
            (size(10), "ask"),
            (tools(&["x"]), "record (c=x) none"),
            (recorded(0), "run x"),
            (ended("x"), "record (r=x) steps"),
            (recorded(0), "measure"),
            (size(20), "ask"),
            (text(), "validate \"done\" 0"),
            // Other late news changes nothing.
            (Input::Waited, ""),
            (Input::Validated(Verdict::Accepted), "record (a) end"),
            (Input::Validated(Verdict::Accepted), ""),
            (recorded(0), ""),
        ],
    );
}

#[test]
fn a_rejected_answer_is_recorded_with_what_is_wrong_with_it_and_asked_for_again() {
    let mut run = validated();
    for (input, expect) in [(Input::Begin, "measure"), (size(10), "ask"), (text(), "validate \"done\" 0")] {
        assert_eq!(words(&run.on(input)), expect);
    }
    let effects = run.on(rejected("it names no city"));
    let [Effect::Record { messages, boundary: Boundary::Steps }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(messages[0].text(), "done");
    assert_eq!(messages[1].text(), "Your answer was not accepted: it names no city\nAnswer again, in full.");
    assert!(matches!(messages[1], Message::User(_)));
    let run = check_run(
        run,
        vec![
            (recorded(0), "measure"),
            (size(20), "ask"),
            (text(), "validate \"done\" 1"),
            (rejected("no"), "record (a u) steps"),
            (recorded(1), "measure"),
            (size(30), "ask"),
            (text(), "validate \"done\" 2"),
            // Twice is enough by default.
            (rejected("still none"), "end stopped (a)"),
        ],
    );
    assert_eq!(run.rejected(), Some("still none"));
    assert!(run.is_over());
}

#[test]
fn a_verdict_may_end_the_run_at_once_with_the_answer_on_the_record() {
    let run = check_run(
        validated(),
        vec![
            (Input::Begin, "measure"),
            (size(10), "ask"),
            (text(), "validate \"done\" 0"),
            (Input::Validated(Verdict::Ended { reason: "it tells a secret".into() }), "end stopped (a)"),
        ],
    );
    assert_eq!(run.rejected(), Some("it tells a secret"));
    assert!(run.is_over());
}

#[test]
fn a_refused_call_ends_the_run_and_nothing_else_is_tried() {
    let refused = || Input::Refused { reason: "not today".into() };
    let mut asked = check_asked(vec![]);
    let effects = asked.on(refused());
    let Some(Effect::End { messages, outcome }) = effects.last() else { panic!("{effects:?}") };
    assert_eq!((messages.len(), outcome), (0, &RunOutcome::Stopped { reason: "not today".into() }));
    assert!(asked.is_over());
    // Late news of a call that nothing waits for.
    check_asked(vec![(tools(&["x"]), "record (c=x) none"), (refused(), ""), (recorded(0), "run x")]);
    // Nor is another model used.
    let table = begun(vec![(refused(), "end stopped ()")]);
    check_run(run().with_fallbacks(falls_back(2)), table);
}

#[test]
fn an_accepted_answer_forgets_the_rejections_and_a_follow_up_is_judged_anew() {
    check_run(
        validated(),
        vec![
            (Input::Begin, "measure"),
            (size(10), "ask"),
            (text(), "validate \"done\" 0"),
            (rejected("no"), "record (a u) steps"),
            (recorded(0), "measure"),
            (size(20), "ask"),
            (text(), "validate \"done\" 1"),
            (Input::Validated(Verdict::Accepted), "record (a) end"),
            (recorded(1), "measure"),
            (size(30), "ask"),
            (text(), "validate \"done\" 0"),
        ],
    );
}

#[test]
fn a_validator_that_fails_and_an_abort_while_it_judges_end_the_run_and_keep_the_answer() {
    let judging = || vec![(Input::Begin, "measure"), (size(10), "ask"), (text(), "validate \"done\" 0")];
    let mut run = check_run(validated(), judging());
    assert_eq!(
        words(&run.on(Input::Validated(Verdict::Failed { reason: "it panicked".into() }))),
        "end stopped (a)"
    );
    assert_eq!(run.rejected(), None);
    let mut run = check_run(validated(), judging());
    let effects = run.on(abort());
    assert_eq!(words(&effects), "cancel; end aborted (a)");
    let Some(Effect::End { messages, .. }) = effects.last() else { panic!("{effects:?}") };
    let Message::Assistant(answer) = &messages[0] else { panic!("{messages:?}") };
    assert_eq!(answer.stop, StopReason::Aborted, "nobody accepted it: it is answered anew");
    // In the last allowed step, nothing is sent back.
    let limits = RunLimits { steps_max: 1, ..RunLimits::default() };
    let run = check_run(Run::new(limits, true, None).validated(true), judging());
    check_run(run, vec![(rejected("no"), "end stopped (a)")]);
}

/// Returns the reason with which a run stopped.
#[track_caller]
fn stop_reason(effects: &[Effect]) -> &str {
    match effects.last() {
        Some(Effect::End { outcome: RunOutcome::Stopped { reason }, .. }) => reason,
        _ => panic!("it did not stop: {effects:?}"),
    }
}

#[test]
fn a_run_that_stops_says_how_many_answers_were_not_accepted() {
    for (rejections_max, said) in
        [(0, "the answer was not accepted because"), (2, "3 answers were not accepted, the last one")]
    {
        let mut run =
            Run::new(RunLimits { rejections_max, ..RunLimits::default() }, true, None).validated(true);
        run.on(Input::Begin);
        let mut effects = Vec::new();
        for _ in 0..=rejections_max {
            run.on(size(10));
            run.on(text());
            effects = run.on(rejected("it names no city"));
            if !run.is_over() {
                run.on(recorded(0));
            }
        }
        let reason = stop_reason(&effects);
        assert!(reason.starts_with(said) && reason.ends_with("because: it names no city"), "{reason}");
    }
}

#[test]
fn another_model_is_asked_when_nothing_more_can_be_had_of_the_first() {
    let failed = |class| Input::Failed {
        failure: failure(class),
        wordless: false,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    };
    let patient = |class, retry_after_ms| Input::Failed {
        failure: Failure { retry_after_ms: Some(retry_after_ms), ..failure(class) },
        wordless: false,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    };
    let limits = RunLimits { retries_max: 1, ..RunLimits::default() };
    let with = |left| Run::new(limits, true, Some(900)).with_fallbacks(falls_back(left));
    fn begun(table: Vec<(Input, &str)>) -> Vec<(Input, &str)> {
        let mut whole = vec![(Input::Begin, "measure"), (size(10), "ask out=900")];
        whole.extend(table);
        whole
    }
    // Failures that waiting may resolve are retried first. The other model has all retries, and its own
    // output limit.
    check_run(
        with(2),
        begun(vec![
            (failed(FailureClass::Overloaded), "wait 500 #1"),
            (Input::Waited, "ask out=900"),
            (failed(FailureClass::Overloaded), "fall back overloaded"),
            (fell_back(Some(400)), "measure"),
            (size(10), "ask out=400"),
            (failed(FailureClass::Timeout), "wait 500 #1"),
            (Input::Waited, "ask out=400"),
            (failed(FailureClass::Timeout), "fall back timeout"),
            (fell_back(None), "measure"),
            (size(10), "ask"),
            (text(), "record (a) end"),
            (recorded(1), "measure"),
            // It stays with the model that answered; after the last one the run fails as usual.
            (size(10), "ask"),
            (failed(FailureClass::Auth), "end failed auth ()"),
        ]),
    );
    // There is no wait for a key or a quota, nor for a loading server, nor a long wait.
    for class in [FailureClass::Auth, FailureClass::Quota, FailureClass::Loading] {
        let expect = format!("fall back {class}");
        check_run(with(1), begun(vec![(failed(class), expect.as_str()), (fell_back(None), "measure")]));
    }
    check_run(with(1), begun(vec![(patient(FailureClass::RateLimited, 10_000), "wait 10000 #1")]));
    check_run(with(1), begun(vec![(patient(FailureClass::RateLimited, 10_001), "fall back rate_limited")]));
    check_run(with(0), begun(vec![(patient(FailureClass::RateLimited, 10_001), "wait 10001 #1")]));
    // A timeout takes minutes: it is retried once, however often others are.
    let often = Run::new(RunLimits::default(), true, Some(900)).with_fallbacks(falls_back(1));
    check_run(
        often,
        begun(vec![
            (failed(FailureClass::Timeout), "wait 500 #1"),
            (Input::Waited, "ask out=900"),
            (failed(FailureClass::Timeout), "fall back timeout"),
        ]),
    );
    // Other failures do not qualify.
    for class in [FailureClass::ContentFilter, FailureClass::Other] {
        let expect = format!("end failed {class} ()");
        check_run(with(1), begun(vec![(failed(class), expect.as_str())]));
    }
    // The other model's window may be smaller; an abort meanwhile ends the run.
    check_run(
        with(1),
        begun(vec![
            (failed(FailureClass::Quota), "fall back quota"),
            (fell_back(None), "measure"),
            (due(false), "compact threshold 0"),
            (compacted(true), "measure"),
            (size(5), "ask"),
        ]),
    );
    check_run(
        with(1),
        begun(vec![
            (failed(FailureClass::Quota), "fall back quota"),
            (abort(), "cancel; end aborted ()"),
            (fell_back(None), ""),
        ]),
    );
    // Silence: another model is used before anything gives way.
    let silence = || Input::Failed {
        failure: failure(FailureClass::Malformed),
        wordless: true,
        fewer_images: None,
        has_native_summary: false,
        output_tokens_max: None,
        jitter: 0,
    };
    check_run(
        with(1),
        begun(vec![
            (silence(), "wait 500 #1"),
            (Input::Waited, "ask out=900"),
            (silence(), "fall back malformed"),
        ]),
    );
}

#[test]
fn a_run_that_is_taken_up_goes_on_with_its_pending_calls() {
    let call = |id: &str| ToolCall { id: id.to_owned(), name: "t".to_owned(), arguments: "{}".to_owned() };
    let (a, b) = (call("a"), call("b"));
    let mut run = Run::new(RunLimits { steps_max: 4, ..RunLimits::default() }, true, None)
        .with_pending(vec![a.clone(), b.clone()], 3);
    let began = run.on(Input::Begin);
    assert_eq!(began, [Effect::StepStarted { step: 3 }, Effect::RunTools(vec![a.clone(), b.clone()])]);
    let ended = |call: &ToolCall| Input::ToolEnded(Box::new(ToolResult::interrupted(call)));
    let recorded = run.on(ended(&b));
    assert!(matches!(&recorded[..], [Effect::Record { boundary: Boundary::None, .. }]), "{recorded:?}");
    let recorded = run.on(ended(&a));
    assert!(matches!(&recorded[..], [Effect::Record { boundary: Boundary::Steps, .. }]), "{recorded:?}");
    assert_eq!(run.on(Input::Recorded { delivered: 0 }), []);
    let next = run.on(Input::Recorded { delivered: 0 });
    assert_eq!(next, [Effect::StepEnded { step: 3 }, Effect::Measure]);
    // The earlier answers count towards its limit.
    let asked = run.on(Input::Size(Size::default()));
    assert!(asked.contains(&Effect::StepStarted { step: 4 }), "{asked:?}");
}

#[test]
fn an_abort_of_a_run_that_was_taken_up_leaves_no_call_open() {
    let call = ToolCall { id: "a".to_owned(), name: "t".to_owned(), arguments: "{}".to_owned() };
    let mut run = Run::new(RunLimits::default(), true, None).with_pending(vec![call], 1);
    run.on(Input::Begin);
    let ended = run.on(Input::Abort { partial: None, not_begun: Vec::new(), cause: AbortCause::Requested });
    let closes = |effect: &Effect| matches!(effect, Effect::End { messages, .. } if messages.len() == 1);
    assert!(ended.iter().any(closes) && run.is_over(), "{ended:?}");
}

/// Input that could join at the end of the run gets no answer beyond the limit: it starts a run of its own.
#[test]
fn the_limit_of_steps_holds_where_input_joins() {
    for steps_max in [1, 2] {
        let mut run = Run::new(RunLimits { steps_max, ..RunLimits::default() }, true, None);
        run.on(Input::Begin);
        let (mut asked, mut ended) = (0, Vec::new());
        for _ in 0..6 {
            let effects = run.on(size(10));
            asked += effects.iter().filter(|effect| matches!(effect, Effect::Ask { .. })).count();
            ended.extend(run.on(text()).into_iter().filter(|effect| matches!(effect, Effect::End { .. })));
            run.on(recorded(1));
        }
        assert_eq!(asked, usize::try_from(steps_max).expect("it is small"));
        assert_eq!(words(&ended), "end completed (a)");
        assert!(run.is_over());
    }
}

#[test]
fn a_run_without_steps_ends_before_its_first_call() {
    let mut run = Run::new(RunLimits { steps_max: 0, ..RunLimits::default() }, true, None);
    run.on(Input::Begin);
    let reason = "the run reached its limit of 0 steps".to_owned();
    let end = Effect::End { messages: vec![], outcome: RunOutcome::Stopped { reason } };
    assert_eq!(run.on(due(true)), [end]);
}

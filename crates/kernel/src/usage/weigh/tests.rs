//! Reports that our own count seems to contradict, and their explanations.

use std::sync::Arc;

use crate::entry::{Entry, EntryId, EntryKind};
use crate::message::{AssistantMessage, Block, Image, Message, Part, Usage};
use crate::reasoning::ResentReasoning;
use crate::tests::notation::{assistant, path};
use crate::usage::{Measured, Ratio, RequestFrame, Tracker, Trust};

const OVERHEAD: u64 = 300;

fn entry(message: Message, tokens: u64, reasoning_tokens: u64) -> Entry {
    let kind = EntryKind::message(message);
    Entry { id: EntryId(0), parent: None, at_ms: 0, tokens, reasoning_tokens, origin: None, kind }
}

fn user(tokens: u64) -> Entry {
    entry(Message::user("more"), tokens, 0)
}

/// Returns an answer of 20 tokens with what the server reports.
fn answer(usage: Usage) -> Entry {
    entry(Message::Assistant(AssistantMessage { usage: Some(usage), ..assistant(vec![]) }), 20, 0)
}

fn input(input_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens: 20, ..Usage::default() }
}

fn tracker(window: Option<u64>) -> Tracker {
    let frame = RequestFrame { overhead: OVERHEAD, window, ..RequestFrame::default() };
    Tracker::open(&[], frame, Ratio::default())
}

/// Checks that the measured size is within a tenth of this.
#[track_caller]
fn assert_near(tracker: &Tracker, truth: u64, what: &str) {
    let measured = tracker.measured();
    assert!(measured.tokens().abs_diff(truth) <= truth / 10, "{what}: {measured:?}, in truth {truth}");
}

#[test]
fn a_text_that_the_server_adds_is_found_by_its_second_report_however_small_the_context() {
    for (hidden, window) in
        [(1_000, Some(16_000)), (5_000, Some(16_000)), (20_000, Some(128_000)), (30_000, None)]
    {
        let what = format!("{hidden} in {window:?}");
        let mut tracker = tracker(window);
        let mut truth = OVERHEAD + hidden;
        let mut trusts = Vec::new();
        for prompt in 0..10 {
            tracker.appended(&user(30));
            truth += 30;
            trusts.push(tracker.appended(&answer(input(truth))));
            truth += 20;
            if prompt > 0 {
                assert_near(&tracker, truth, &what);
            }
        }
        // If the small context makes it no more than three times as much, it is believed at once.
        assert!(matches!(trusts[0], Trust::Suspended), "{what}: {trusts:?}");
        assert!(trusts[1..].iter().all(|trust| *trust == Trust::Used), "{what}: {trusts:?}");
        // A compaction does not remove it, and it need not be reported again.
        tracker.rewritten(&path("u:100 a:5 u:7 C@2:40"));
        assert_near(&tracker, OVERHEAD + hidden + 47, &format!("{what}, compacted"));
        assert_eq!(tracker.counted(), tracker.measured().tokens());
        // Another model is another server.
        tracker.switch_model(Ratio::default());
        assert_eq!(tracker.measured().tokens(), OVERHEAD + 47, "{what}");
    }
}

#[test]
fn what_a_hidden_text_does_not_explain_is_a_lie_and_is_said_once() {
    // The report for the true size, and the window.
    type Lie = (&'static str, fn(u64) -> u64, Option<u64>);
    let lies: [Lie; 5] = [
        ("always the same", |_| 9_000, Some(16_000 * 4)),
        ("ten times as much", |truth| truth * 10, Some(128_000)),
        ("more than half of the window", |truth| truth + 8_100, Some(16_000)),
        ("more than any server adds", |truth| truth + 33_000, None),
        ("a sum over requests", |truth| truth * truth / 50, Some(200_000)),
    ];
    for (what, lie, window) in lies {
        let mut tracker = tracker(window);
        let mut truth = OVERHEAD;
        let mut warned = 0;
        for prompt in 0..30 {
            tracker.appended(&user(30));
            truth += 30;
            let trust = tracker.appended(&answer(input(lie(truth))));
            assert_ne!(trust, Trust::Used, "{what}, prompt {prompt}");
            warned += u32::from(matches!(trust, Trust::Contradicted { is_first: true, .. }));
            truth += 20;
            let expected = Measured { usage_tokens: 0, trailing_tokens: truth };
            assert_eq!(tracker.measured(), expected, "{what}, prompt {prompt}");
        }
        assert_eq!(warned, 1, "{what}");
    }
}

#[test]
fn cached_tokens_that_are_counted_apart_belong_to_the_input() {
    // The cached share of the input, in percent, request after request.
    let shares = [0, 95, 90, 60, 99, 0, 50, 95, 30, 97, 90, 80];
    for is_apart in [true, false] {
        let mut tracker = tracker(Some(128_000));
        let mut truth = OVERHEAD;
        for (prompt, share) in shares.into_iter().enumerate() {
            tracker.appended(&user(900));
            truth += 900;
            let cached_tokens = truth * share / 100;
            let input_tokens = if is_apart { truth - cached_tokens } else { truth };
            let usage = Usage { cached_tokens, ..input(input_tokens) };
            let what = format!("apart: {is_apart}, prompt {prompt}: {usage:?}");
            assert_eq!(tracker.appended(&answer(usage)), Trust::Used, "{what}");
            truth += 20;
            assert_near(&tracker, truth, &what);
        }
    }
}

#[test]
fn what_a_server_cuts_in_silence_stays_counted_and_is_said_once() {
    for server_takes in [2_048, 4_096, 8_192] {
        let mut tracker = tracker(Some(128_000));
        let mut truth = OVERHEAD;
        let mut warned = 0;
        for _ in 0..60 {
            tracker.appended(&user(480));
            truth += 480;
            let trust = tracker.appended(&answer(input(truth.min(server_takes))));
            warned += u32::from(matches!(trust, Trust::Contradicted { is_first: true, .. }));
            truth += 20;
            // Until the report stays a fifth behind the additions, it may be another way of counting.
            let measured = tracker.measured().tokens();
            assert!(measured * 10 >= truth * 7, "{measured} of {truth}, {server_takes} taken");
            assert!(measured <= truth + truth / 10, "{measured} of {truth}, {server_takes} taken");
        }
        assert_eq!(warned, 1, "{server_takes}");
    }
}

#[test]
fn a_server_that_counts_in_another_way_from_some_point_on_is_believed_again() {
    let mut tracker = tracker(Some(128_000));
    let mut truth = OVERHEAD;
    let mut used = 0;
    for prompt in 0..20 {
        tracker.appended(&user(900));
        truth += 900;
        // As behind a gateway that switches to another tokenizer.
        let told = if prompt < 10 { truth } else { truth * 13 / 20 };
        used += u32::from(tracker.appended(&answer(input(told))) == Trust::Used);
        truth += 20;
    }
    assert!(used >= 18, "{used}");
    assert_near(&tracker, truth * 13 / 20, "with the other tokenizer");
}

#[test]
fn images_may_count_for_little() {
    let image = Image { media_type: "image/png".into(), data: "AAAA".into() };
    let picture = Message::User(vec![Block::Text("look".into()), Block::Image(image)]);
    for each in [0, 85, 1_100] {
        let mut tracker = tracker(Some(128_000));
        let mut truth = OVERHEAD;
        for prompt in 0..20 {
            tracker.appended(&entry(picture.clone(), 1_210, 0));
            truth += 10 + each;
            let trust = tracker.appended(&answer(input(truth)));
            assert_eq!(trust, Trust::Used, "{each} an image, prompt {prompt}");
            truth += 20;
            assert_near(&tracker, truth, &format!("{each} an image, prompt {prompt}"));
        }
    }
}

/// The part of the received reasoning that a server reads: all, that of the turn, none.
#[test]
fn reasoning_that_a_template_drops_is_found_out_and_dropped_from_the_count() {
    const THOUGHT: u64 = 1_600;
    let thinking = |usage: Usage| {
        let parts = vec![Part::Reasoning("hm".into()), Part::Text("so".into())];
        let said = AssistantMessage { usage: Some(usage), ..assistant(parts) };
        entry(Message::Assistant(said), 20, THOUGHT)
    };
    let provider = assistant(vec![]).provider;
    let mut cases = 0;
    for overhead in [300, 12_000] {
        for (kept_in_turn, kept_after) in [(true, true), (true, false), (false, false)] {
            for is_told in [true, false] {
                let what = format!("{overhead}, {kept_in_turn}, {kept_after}, told: {is_told}");
                let resent =
                    ResentReasoning { readable_of: Some(provider.clone()), dialect: None, opaque_of: None };
                let frame = RequestFrame { overhead, resent, window: Some(400_000) };
                let mut tracker = Tracker::open(&[], frame, Ratio::default());
                // The server's count of everything, and of the reasoning of the current turn.
                let (mut truth, mut of_turn) = (overhead, 0);
                for turn in 0..40 {
                    truth -= if kept_after { 0 } else { of_turn };
                    of_turn = 0;
                    tracker.appended(&user(30));
                    truth += 30;
                    for step in 0..3 {
                        let reasoning_tokens = if is_told { THOUGHT } else { 0 };
                        let output_tokens = 20 + THOUGHT;
                        let usage = Usage { output_tokens, reasoning_tokens, ..input(truth) };
                        let trust = tracker.appended(&thinking(usage));
                        assert_eq!(trust, Trust::Used, "{what}, turn {turn}, step {step}");
                        truth += 20 + if kept_in_turn { THOUGHT } else { 0 };
                        of_turn += if kept_in_turn { THOUGHT } else { 0 };
                        // Dropped reasoning first shows in a report.
                        if turn > 0 && (turn, step) != (1, 0) {
                            assert_near(&tracker, truth, &format!("{what}, turn {turn}, step {step}"));
                        }
                    }
                }
                if !kept_after {
                    tracker.appended(&user(30));
                    truth = truth - of_turn + 30;
                    assert_near(&tracker, truth, &format!("{what}, the next turn"));
                }
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 12);
}

/// The reasoning that is sent back changes with the agent's settings: the path is counted again.
#[test]
fn another_rule_counts_the_path_anew() {
    let provider = assistant(vec![]).provider;
    let parts = vec![Part::Reasoning("hm".into()), Part::Text("so".into())];
    let path: Vec<Arc<Entry>> =
        vec![Arc::new(user(30)), Arc::new(entry(Message::Assistant(assistant(parts)), 20, 1_600))];
    let frame = |readable_of: Option<&String>| RequestFrame {
        overhead: OVERHEAD,
        resent: ResentReasoning { readable_of: readable_of.cloned(), dialect: None, opaque_of: None },
        window: None,
    };
    let mut tracker = Tracker::open(&path, frame(None), Ratio::default());
    for (rule, expected) in [(None, 350), (Some(&provider), 1_950), (None, 350)] {
        tracker.set_frame(frame(rule), &path);
        assert_eq!(tracker.counted(), expected, "{rule:?}");
        assert_eq!(tracker.measured().tokens(), expected, "{rule:?}");
    }
}

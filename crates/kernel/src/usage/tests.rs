//! The size of a context, from reports and estimates.

use super::*;
use crate::entry::EntryId;
use crate::message::StopReason;
use crate::reasoning::ResentReasoning;
use crate::tests::notation::{Random, Sketch, path, says, usage};

/// Returns the path, with these reports (input, output) on the entries with these ids.
fn reporting(drawing: &str, reports: &[(u64, u64, u64)]) -> Vec<Arc<Entry>> {
    let mut path = path(drawing);
    for (id, input, output) in reports {
        change_answer(&mut path, *id, |answer| answer.usage = usage(*input, *output));
    }
    path
}

fn change_answer(path: &mut [Arc<Entry>], id: u64, change: impl FnOnce(&mut crate::AssistantMessage)) {
    let entry = path.iter_mut().find(|entry| entry.id == EntryId(id)).expect("it is drawn");
    let mut copy = (**entry).clone();
    let EntryKind::Message { message, .. } = &mut copy.kind else { panic!("{id} is no message") };
    let Message::Assistant(answer) = Arc::make_mut(message) else { panic!("{id} is no answer") };
    change(answer);
    *entry = Arc::new(copy);
}

fn measured(path: &[Arc<Entry>], overhead: u64) -> (u64, u64) {
    let measured = measure(path, Estimator::Classes, overhead, Ratio::default(), Reports::Believed);
    (measured.usage_tokens, measured.trailing_tokens)
}

#[test]
fn the_size_is_the_last_report_and_what_came_since() {
    let check = |drawing: &str, reports: &[(u64, u64, u64)], expect: (u64, u64)| {
        assert_eq!(measured(&reporting(drawing, reports), 100), expect, "of {drawing}");
    };
    // Without a report everything is estimated, including the fixed part.
    check("", &[], (0, 100));
    check("u:10 a:5 l s:3", &[], (0, 118));
    // The completion is in the next prompt.
    check("u:10 a:5 u:7", &[(1, 100, 50)], (150, 7));
    check("u:10 a:5 u:7 a:1 u:2", &[(1, 100, 50), (3, 210, 9)], (219, 2));
    check("u:10 c:5 r:30 r:4", &[(1, 100, 50)], (150, 34));
    // A report of zero is ignored.
    check("u:10 a:5 u:7 a:3", &[(1, 100, 50), (3, 0, 0)], (150, 10));
    // So is one that our own count contradicts, as another harness or a gateway may have recorded it.
    check("u:10 a:5 u:7 a:3", &[(1, 100, 50), (3, 1_100, 50)], (150, 10));
    check("u:10 a:5 u:7 a:3", &[(1, 1_000, 50), (3, u64::MAX, 50)], (0, 125));
    check("u:2000 a:500 u:7", &[(1, 6_300, 50)], (6_800, 7));
    check("u:2000 a:500 u:7", &[(1, 6_301, 50)], (0, 2_607));
    check("u:2000 a:500 u:7", &[(1, 1_050, 501)], (1_551, 7));
    check("u:2000 a:500 u:7", &[(1, 1_049, 501)], (0, 2_607));
    check("u:2000 a:500 u:7", &[(1, 2_100, u64::MAX)], (2_600, 7));
    // Never one from before the newest compaction, kept or not, nor from before an undo.
    check("u:10 a:5 u:7 a:3 C@2:20", &[(1, 100, 50), (3, 210, 50)], (0, 130));
    check("u:10 a:5 u:7 a:3 C@2:20 u:4", &[(3, 210, 50)], (0, 134));
    check("u:10 a:5 u:7 a:3 C@2:20 u:4 a:2 u:1", &[(3, 210, 50), (6, 300, 8)], (308, 1));
    check("u:10 a:5 u:7 a:3 C@2:20 U@4", &[(3, 210, 50)], (0, 125));
    check("u:10 a:5 C@9:20 u:1", &[(1, 210, 50)], (0, 121));
}

#[test]
fn a_comparison_takes_reports_as_they_were_recorded() {
    for (input, output) in [(100, 50), (1_364_156, 5), (u64::MAX, 50), (1, u64::MAX)] {
        let path = reporting("u:10 a:5 u:7", &[(1, input, output)]);
        let measured = measure(&path, Estimator::Classes, 100, Ratio::default(), Reports::AsRecorded);
        let usage_tokens = input.saturating_add(output);
        assert_eq!(measured, Measured { usage_tokens, trailing_tokens: 7 });
        assert_eq!(measured.tokens(), usage_tokens.saturating_add(7));
    }
}

#[test]
fn a_report_of_a_failed_or_interrupted_answer_is_not_used() {
    for stop in [StopReason::Aborted, StopReason::Error] {
        let mut path = reporting("u:10 a:5 u:7 a:3", &[(1, 100, 50), (3, 5, 5)]);
        change_answer(&mut path, 3, |answer| answer.stop = stop);
        assert_eq!(measured(&path, 100), (150, 10), "{stop:?}");
    }
}

#[test]
fn a_ratio_is_learned_smoothly_within_its_limits() {
    let close = |ratio: Ratio, value: f64| {
        assert!((ratio.value() - value).abs() < 1e-9, "{} is not {value}", ratio.value());
    };
    let one = Ratio::default();
    close(one.learn(1_000, 2_000), 1.3);
    close(one.learn(399, 2_000), 1.0);
    close(one.learn(400, 800), 1.3);
    close(one.learn(1_000, 0), 1.0);
    // One extreme sample moves it no further than the limits allow.
    close(one.learn(1_000, 1_000_000), 0.7 + 0.3 * 3.0);
    let mut ratio = one;
    for _ in 0..100 {
        ratio = ratio.learn(1_000, 1_000_000);
    }
    close(ratio, 3.0);
    for _ in 0..100 {
        ratio = ratio.learn(1_000_000, 1_000);
    }
    close(ratio, 0.5);
    close(Ratio::new(f64::NAN), 1.0);
    close(Ratio::new(-7.0), 0.5);
    assert_eq!(Ratio::new(1.5).apply(1_001), 1_502);
    assert_eq!(Ratio::new(3.0).apply(u64::MAX), u64::MAX);
}

/// Returns an answer with a report.
fn answer(input: u64, output: u64, reasoning: u64) -> Message {
    let mut answer = says("done");
    answer.usage = usage(input, output);
    if let Some(usage) = &mut answer.usage {
        usage.reasoning_tokens = reasoning;
    }
    Message::Assistant(answer)
}

fn frame(overhead: u64) -> RequestFrame {
    RequestFrame { overhead, ..RequestFrame::default() }
}

fn tracker(overhead: u64) -> Tracker {
    Tracker::open(&[], frame(overhead), Ratio::default())
}

/// Returns an entry of this size, with reasoning of that size.
fn entry(message: Message, tokens: u64, reasoning_tokens: u64) -> Entry {
    let kind = EntryKind::message(message);
    Entry { id: EntryId(0), parent: None, at_ms: 0, tokens, reasoning_tokens, origin: None, kind }
}

/// Adds a user message of this size to the context.
fn grow(tracker: &mut Tracker, tokens: u64) {
    tracker.appended(&entry(Message::user("more"), tokens, 0));
}

/// Adds an answer of this size with its report to the context.
fn report(tracker: &mut Tracker, answer: Message, tokens: u64) -> Trust {
    tracker.appended(&entry(answer, tokens, 0))
}

#[test]
fn a_tracker_follows_one_message_at_a_time() {
    let mut tracker = tracker(1_000);
    grow(&mut tracker, 500);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 0, trailing_tokens: 1_500 });
    assert_eq!(report(&mut tracker, answer(1_600, 90, 0), 100), Trust::Used);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 1_690, trailing_tokens: 0 });
    grow(&mut tracker, 40);
    let ratio = tracker.ratio();
    assert_eq!(tracker.measured(), Measured { usage_tokens: 1_690, trailing_tokens: ratio.apply(40) });
    // An empty report changes nothing.
    assert_eq!(report(&mut tracker, answer(0, 0, 0), 10), Trust::Unusable);
    assert_eq!(report(&mut tracker, Message::user("hi"), 10), Trust::Unusable);
    assert_eq!(tracker.measured().usage_tokens, 1_690);
}

/// The growth of several short turns together is a sample.
#[test]
fn a_ratio_is_learned_from_turns_of_any_length() {
    for (percent, turn) in [(220, 40), (220, 150), (60, 90), (220, 399), (220, 600), (130, 1_000)] {
        let what = format!("{percent} %, turns of {turn}");
        let provider = |estimated: u64| estimated * percent / 100;
        let (mut live, mut path) = (tracker(0), Vec::new());
        let mut estimated = 0;
        for step in 0..150 {
            for is_answer in [false, true] {
                let message = match is_answer {
                    true => answer(provider(estimated), provider(turn - 20), 0),
                    false => Message::user("more"),
                };
                let tokens = if is_answer { turn - 20 } else { 20 };
                let id = EntryId(path.len() as u64);
                let entry =
                    Entry { id, parent: id.0.checked_sub(1).map(EntryId), ..entry(message, tokens, 0) };
                let trust = live.appended(&entry);
                path.push(Arc::new(entry));
                estimated += tokens;
                assert_eq!(trust == Trust::Used, is_answer, "{what}");
            }
            // A session that slept goes on with the sample that it had begun.
            let opened = Tracker::open(&path, frame(0), live.ratio());
            assert_eq!(opened.measured(), live.measured(), "{what}, step {step}");
            if step % 7 == 0 {
                live = opened;
            }
        }
        let learned = live.ratio().value() * 100.0;
        let truth = provider(100);
        assert!(
            to_f64(truth * 95) / 100.0 < learned && learned < to_f64(truth * 105) / 100.0,
            "{what}: {learned}"
        );
    }
}

/// What a server adds at once is not the ratio of what was said.
#[test]
fn a_ratio_is_not_learned_from_a_leap() {
    let mut tracker = tracker(1_000);
    let mut reported = 3_000;
    grow(&mut tracker, 2_000);
    for turn in 0..40 {
        assert_eq!(report(&mut tracker, answer(reported, 50, 0), 50), Trust::Used);
        grow(&mut tracker, 50);
        reported += 100;
        // From here on, its template is larger.
        reported += if turn == 20 { 1_500 } else { 0 };
    }
    assert!((0.99..1.01).contains(&tracker.ratio().value()), "{:?}", tracker.ratio());
}

#[test]
fn reasoning_counts_only_where_it_is_sent_back() {
    let back = |answer: &Message| {
        let Message::Assistant(answer) = answer else { panic!("it is an answer") };
        ResentReasoning { readable_of: Some(answer.provider.clone()), dialect: None, opaque_of: None }
    };
    // Whether reasoning is sent back, the reasoning in the reported output, and its part of the next request.
    for (resends, told, usage_tokens) in
        [(false, 80, 1_020), (true, 80, 1_100), (false, 0, 1_020), (true, 0, 1_100)]
    {
        let mut thought = answer(1_000, 100, told);
        let Message::Assistant(said) = &mut thought else { panic!("it is an answer") };
        said.content.insert(0, crate::Part::Reasoning("hm".into()));
        let resent = if resends { back(&thought) } else { ResentReasoning::default() };
        let mut tracker = Tracker::open(&[], RequestFrame { resent, ..frame(1_000) }, Ratio::default());
        assert_eq!(tracker.appended(&entry(thought, 20, 80)), Trust::Used);
        assert_eq!(tracker.measured().usage_tokens, usage_tokens, "sent back: {resends}, reported: {told}");
        assert_eq!(tracker.counted(), usage_tokens);
    }
    // More reasoning than output is a provider's error, and subtracts no more than the output.
    let mut tracker = tracker(1_000);
    report(&mut tracker, answer(1_000, 100, 8_000), 0);
    assert_eq!(tracker.measured().usage_tokens, 1_000);
}

#[test]
fn a_report_is_believed_within_half_and_three_times_our_count() {
    // Reported, counted, believed. The first rows are the numbers that broke real sessions.
    let mut table = vec![
        (682_078, 682_078, true),
        // Counted twice, as on a window of a million; and as by a gateway on a context of 14 tokens.
        (1_364_156, 682_078, true),
        (1_364_156, 14, false),
        (1_364_156, 100_000, false),
        (100, 200, true),
        (0, 399, true),
        (399, 0, true),
        (400, 0, false),
        (400, 14, false),
        (0, 400, false),
        (600, 200, true),
        (601, 200, false),
        (500, 1_000, true),
        (499, 1_000, false),
        (3_000, 1_000, true),
        (3_001, 1_000, false),
        (u64::MAX, u64::MAX, true),
    ];
    for lie in [950_000, 1_364_156, 2_000_000, 1_000_000_000, 1_000_000_000_000, u64::MAX] {
        table.extend([(lie, 14, false), (14, lie, false), (lie, lie, true)]);
    }
    for (reported, counted, expect) in table {
        assert_eq!(is_believable(reported, counted), expect, "{reported} reported, {counted} counted");
    }
}

#[test]
fn a_report_that_our_count_contradicts_is_never_used_however_often_it_comes() {
    for lie in [950_000, 1_364_156, 2_000_000, 1_000_000_000, 1_000_000_000_000, u64::MAX] {
        for output in [10, lie] {
            let mut tracker = tracker(4);
            grow(&mut tracker, 10);
            for time in 0..50 {
                let counted = tracker.counted();
                let expect = Trust::Contradicted { reported: lie, counted, is_first: time == 0 };
                assert_eq!(report(&mut tracker, answer(lie, output, 0), 3), expect);
                let measured = Measured { usage_tokens: 0, trailing_tokens: counted + 3 };
                assert_eq!(tracker.measured(), measured, "{lie}");
                assert_eq!(tracker.ratio(), Ratio::default(), "{lie}: nothing is learned from it");
            }
            // A plausible one is used at once, and the next false one does not replace it.
            assert_eq!(report(&mut tracker, answer(100, 5, 0), 3), Trust::Used);
            let again = report(&mut tracker, answer(lie, output, 0), 20);
            assert!(matches!(again, Trust::Contradicted { is_first: false, .. }), "{again:?}");
            assert_eq!(tracker.measured(), Measured { usage_tokens: 105, trailing_tokens: 20 });
            // Another model is judged separately.
            tracker.switch_model(Ratio::default());
            let again = report(&mut tracker, answer(lie, output, 0), 20);
            assert!(matches!(again, Trust::Contradicted { is_first: true, .. }), "{again:?}");
        }
    }
    // Too low is as wrong as too high, and is reported once too.
    let mut tracker = tracker(1_000);
    grow(&mut tracker, 99_000);
    let low = report(&mut tracker, answer(49_999, 10, 0), 0);
    assert_eq!(low, Trust::Contradicted { reported: 49_999, counted: 100_000, is_first: true });
    let low = report(&mut tracker, answer(49_999, 10, 0), 0);
    assert_eq!(low, Trust::Contradicted { reported: 49_999, counted: 100_000, is_first: false });
    // A learned ratio does not widen the range: by our own count, tenfold is tenfold.
    for _ in 0..40 {
        assert_eq!(report(&mut tracker, answer(300_000, 10, 0), 0), Trust::Used);
    }
    assert!(matches!(report(&mut tracker, answer(300_001, 10, 0), 0), Trust::Contradicted { .. }));
    // Reports on small contexts are not checked.
    let mut tracker = self::tracker(10);
    assert_eq!(report(&mut tracker, answer(300, 10, 0), 0), Trust::Used);
}

#[test]
fn output_that_nobody_showed_us_is_not_in_the_context() {
    let mut tracker = tracker(1_000);
    // Reasoning that was not reported as such.
    assert_eq!(report(&mut tracker, answer(1_000, 50_000, 0), 200), Trust::Used);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 1_200, trailing_tokens: 0 });
    assert_eq!(report(&mut tracker, answer(1_000, 600, 0), 200), Trust::Used);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 1_600, trailing_tokens: 0 });
}

#[test]
fn the_ratio_is_learned_from_what_was_added() {
    let mut tracker = tracker(1_000);
    grow(&mut tracker, 1_000);
    // The first sample is everything but the fixed part; the next ones are the later additions.
    report(&mut tracker, answer(2_500, 0, 0), 0);
    assert!((tracker.ratio().value() - (0.7 + 0.3 * 1.5)).abs() < 1e-9);
    grow(&mut tracker, 1_000);
    let before = tracker.ratio().value();
    report(&mut tracker, answer(4_000, 0, 0), 0);
    assert!((tracker.ratio().value() - (before * 0.7 + 0.3 * 1.5)).abs() < 1e-9);
    // Estimates are multiplied by it.
    tracker.rewritten(&path("u:10000"));
    assert_eq!(tracker.measured().tokens(), 1_000 + tracker.ratio().apply(10_000));
}

#[test]
fn after_a_rewrite_no_earlier_report_counts() {
    let mut tracker = tracker(1_000);
    grow(&mut tracker, 150_000);
    report(&mut tracker, answer(150_000, 0, 0), 0);
    let ratio = tracker.ratio();
    tracker.rewritten(&path("u:99999 a:50000 u:7 C@2:2000"));
    let expect = 1_000 + ratio.apply(2_007);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 0, trailing_tokens: expect });
    // Nor does the next sample begin there: the first sample after it is the whole new context.
    let mut learning = tracker.clone();
    let input = 1_000 + 2_007 * 3 / 2;
    report(&mut learning, answer(input, 0, 0), 0);
    assert!(learning.ratio().value() > ratio.value() + 0.1, "{:?}", learning.ratio());
    tracker.set_frame(frame(3_000), &[]);
    assert_eq!(tracker.measured().tokens(), expect + 2_000);
    tracker.switch_model(Ratio::new(2.0));
    assert_eq!(tracker.measured().tokens(), 3_000 + 2 * 2_007);
    let window = Window { tokens: Some(14_028), source: WindowSource::Catalog };
    assert_eq!(tracker.context_usage(window).percent(), Some(50.0));
}

#[test]
fn a_tracker_that_opens_a_session_is_where_one_that_lived_through_it_is() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let overhead = random.below(5_000);
        let mut active = tracker(overhead);
        let mut sketch = Sketch::default();
        for _ in 0..random.below(40) {
            let here = sketch.path.len() as u64;
            let tokens = 1 + random.below(900);
            if here > 3 && random.one_in(12) {
                sketch.add_all(&format!("C@{}:{tokens}", random.below(here + 1)));
                active.rewritten(&sketch.path);
            } else if random.one_in(3) {
                sketch.add_all(&format!("a:{tokens}"));
                let input = active.measured().tokens();
                change_answer(&mut sketch.path, here, |answer| answer.usage = usage(input, tokens));
                let entry = sketch.path.last().expect("drawn");
                assert_eq!(active.appended(entry), Trust::Used, "seed {seed}");
            } else {
                sketch.add_all(&format!("{}:{tokens}", random.pick(&["u", "s", "m", "r", "b"])));
                active.appended(sketch.path.last().expect("drawn"));
            }
        }
        let opened = Tracker::open(&sketch.path, frame(overhead), active.ratio());
        assert_eq!(opened.measured(), active.measured(), "seed {seed}");
        let whole = measure(&sketch.path, Estimator::Classes, overhead, active.ratio(), Reports::Believed);
        assert_eq!(whole, active.measured(), "seed {seed}");
    }
}

#[test]
fn following_costs_the_same_however_long_the_session() {
    // A million messages: this would not end if each looked back at the others.
    let mut tracker = tracker(1_000);
    let mut expected = 1_000;
    for run in 0..250_000u64 {
        for _ in 0..4 {
            grow(&mut tracker, 1);
        }
        expected += 4;
        assert_ne!(report(&mut tracker, answer(expected, 0, 0), 0), Trust::Unusable, "run {run}");
        assert!(tracker.measured().tokens() > 0);
    }
    assert_eq!(tracker.measured().tokens(), expected);
}

/// An implausible report is recorded with its answer; reopening the session does not make it believed.
#[test]
fn a_report_that_was_contradicted_is_so_after_opening_too() {
    let mut sketch = Sketch::default();
    sketch.add_all("u:3000 a:200");
    change_answer(&mut sketch.path, 1, |answer| answer.usage = usage(3_000_000, 200));
    let open = |sketch: &Sketch| Tracker::open(&sketch.path, frame(500), Ratio::default());
    let expect = Measured { usage_tokens: 0, trailing_tokens: 3_700 };
    assert_eq!(open(&sketch).measured(), expect);
    // A repetition does not make it true, and the user was told.
    sketch.add_all("u:100 a:200");
    change_answer(&mut sketch.path, 3, |answer| answer.usage = usage(3_000_300, 200));
    let mut opened = open(&sketch);
    assert_eq!(opened.measured(), Measured { trailing_tokens: 4_000, ..expect });
    let again = report(&mut opened, answer(3_000_600, 200, 0), 0);
    assert!(matches!(again, Trust::Contradicted { is_first: false, .. }), "{again:?}");
}

/// Some providers count a repeated context as less.
#[test]
fn a_report_below_the_one_before_teaches_nothing_of_what_was_added() {
    let mut tracker = tracker(1_000);
    grow(&mut tracker, 10_000);
    report(&mut tracker, answer(14_000, 0, 0), 0);
    let learned = tracker.ratio();
    grow(&mut tracker, 1_000);
    assert_eq!(report(&mut tracker, answer(13_000, 0, 0), 0), Trust::Used);
    assert_eq!((tracker.ratio(), tracker.measured().usage_tokens), (learned, 13_000));
}

/// Whether a provider is asked to count, by the reported and the estimated part of the size and the trigger.
#[test]
fn the_provider_counts_only_where_the_estimate_may_be_on_either_side_of_the_trigger() {
    let check = |drawing: &str, reports: &[(u64, u64, u64)], trigger: u64, expect: bool| {
        let path = reporting(drawing, reports);
        let tracker = Tracker::open(&path, RequestFrame::default(), Ratio::default());
        assert_eq!(tracker.is_uncertain(trigger), expect, "{drawing} and a trigger at {trigger}");
    };
    // All is estimated: 600 may be 400 to 900.
    check("u:600", &[], 400, false);
    check("u:600", &[], 401, true);
    check("u:600", &[], 900, true);
    check("u:600", &[], 901, false);
    // Of 1,000 and 600 more the 600 are uncertain.
    check("u:900 a:100 u:600", &[(1, 900, 100)], 1_400, false);
    check("u:900 a:100 u:600", &[(1, 900, 100)], 1_401, true);
    check("u:900 a:100 u:600", &[(1, 900, 100)], 1_900, true);
    check("u:900 a:100 u:600", &[(1, 900, 100)], 1_901, false);
    // An addition this small is not worth a request.
    check("u:9900 a:100 u:312", &[(1, 9_900, 100)], 10_300, false);
    check("u:9900 a:100 u:330", &[(1, 9_900, 100)], 10_300, true);
}

#[test]
fn a_count_is_used_like_a_report_and_asked_for_again_only_after_an_addition() {
    let mut path = path("u:1000 u:2 u:100 u:50");
    let later = path.split_off(1);
    let mut tracker = Tracker::open(&path, RequestFrame::default(), Ratio::default());
    assert!(tracker.is_uncertain(1_400));
    // No answer: not again until there is more to count.
    assert_eq!(tracker.provider_counted(1_000, None), Trust::Unusable);
    assert!(!tracker.is_uncertain(1_400));
    tracker.appended(&later[0]);
    assert!(!tracker.is_uncertain(1_400));
    tracker.appended(&later[1]);
    assert!(tracker.is_uncertain(1_400), "100 tokens came");
    // The count of another request is of no use.
    assert_eq!(tracker.provider_counted(1_000, Some(1_300)), Trust::Unusable);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 0, trailing_tokens: 1_102 });
    assert_eq!(tracker.provider_counted(1_102, Some(1_322)), Trust::Used);
    assert_eq!(tracker.measured(), Measured { usage_tokens: 1_322, trailing_tokens: 0 });
    assert!(tracker.ratio().value() > 1.05, "{:?}", tracker.ratio());
    assert!(!tracker.is_uncertain(1_400));
    tracker.appended(&later[2]);
    assert!(tracker.is_uncertain(1_380), "what came since is uncertain");
    // One that our own count contradicts is not believed.
    assert!(matches!(tracker.provider_counted(1_152, Some(90_000)), Trust::Contradicted { .. }));
    assert_eq!(tracker.measured().usage_tokens, 1_322);
    // Another model counts in another way.
    tracker.switch_model(Ratio::default());
    assert!(tracker.is_uncertain(1_400));
}

/// A session whose run fell back to another model, which counts twice as much, and that is home again.
#[test]
fn after_a_change_of_the_model_an_opened_tracker_is_where_a_living_one_is() {
    let change = |provider: &str, model: &str| EntryKind::ModelChange {
        provider: provider.into(),
        model: model.into(),
    };
    let mut sketch = Sketch::default();
    sketch.add_all("u:4000");
    sketch.push(change("b", "fallback"), 0);
    sketch.add_all("a:100");
    let id = sketch.path.last().expect("it has entries").id.0;
    change_answer(&mut sketch.path, id, |answer| answer.usage = usage(8_000, 200));
    let mut living = Tracker::open(&sketch.path[..1], frame(0), Ratio::default());
    living.switch_model(Ratio::new(2.0));
    living.appended(&sketch.path[1]);
    assert_eq!(living.appended(&sketch.path[2]), Trust::Used);
    let opened = Tracker::open(&sketch.path, frame(0), Ratio::new(2.0));
    assert_eq!(opened.measured(), living.measured(), "its answers are behind the change");
    // The run is over, and the session's own model is in use.
    living.switch_model(Ratio::new(1.0));
    sketch.push(change("a", "own"), 0);
    sketch.add_all("u:100");
    sketch.path[3..].iter().for_each(|entry| _ = living.appended(entry));
    let opened = Tracker::open(&sketch.path, frame(0), Ratio::new(1.0));
    assert_eq!(opened.measured(), living.measured());
    assert_eq!(opened.measured().usage_tokens, 0);
}

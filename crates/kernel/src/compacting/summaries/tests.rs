//! Requests for summaries: sizes, repetitions, and merging of parts.

use std::collections::VecDeque;

use super::*;
use crate::tests::notation::{path, says};

/// Returns a history of these entries, to be summarised in at most 800 tokens.
fn source(drawing: &str) -> Source {
    Source { kind: SummaryKind::History, cap_tokens: 800, entries: path(drawing), previous: None }
}

/// Creates empty summaries for summarisers with these windows, in order.
fn by(windows: &[u64]) -> Summaries {
    let limits = |window: &u64| SummariserLimits { window: *window, output_tokens_max: None };
    let summarisers = windows.iter().map(limits).collect();
    Summaries::new(Style::default(), Ratio::default(), summarisers, Retries::new(5, 300_000))
}

/// Creates empty summaries for a summariser with this window.
fn summaries(window: u64) -> Summaries {
    by(&[window])
}

/// Returns a text of exactly so many tokens.
fn words(tokens: u64) -> String {
    let mut text = String::from("word");
    while classes::tokens(&text) < tokens {
        text.push_str(" word");
    }
    assert_eq!(classes::tokens(&text), tokens, "no text of words has so many tokens");
    text
}

/// Returns an answer that is accepted.
fn good() -> Result<Box<AssistantMessage>, Failure> {
    Ok(Box::new(says("## Goal\nx\n## Constraints & Preferences\nx\n## Progress\nx\n## Key Decisions\nx")))
}

/// Returns an answer without the headings.
fn garbage() -> Result<Box<AssistantMessage>, Failure> {
    Ok(Box::new(says("Sure!")))
}

fn too_large(limit: Option<u64>) -> Failure {
    Failure { limit, ..Failure::new(FailureClass::ContextOverflow, "too large") }
}

fn asks(reaction: &Reaction) -> Vec<SummaryRequest> {
    let ask = |effect: &Effect| if let Effect::Ask(request) = effect { Some(request.clone()) } else { None };
    reaction.effects.iter().filter_map(ask).collect()
}

/// Answers the oldest request until the summaries are complete or impossible. Returns the progress, and how
/// many requests there were. Withdrawn requests must have been pending.
fn drive(
    summaries: &mut Summaries,
    mut reaction: Reaction,
    mut answer: impl FnMut(&SummaryRequest) -> Result<Box<AssistantMessage>, Failure>,
) -> (Progress, usize) {
    let mut waiting: VecDeque<SummaryRequest> = VecDeque::new();
    let mut calls = 0;
    let withdraw = |waiting: &mut VecDeque<SummaryRequest>, ids: &[u32]| {
        let before = waiting.len();
        waiting.retain(|request| !ids.contains(&request.id));
        assert_eq!(before - waiting.len(), ids.len(), "{ids:?} were waiting");
    };
    loop {
        for effect in &reaction.effects {
            match effect {
                Effect::Ask(request) => {
                    calls += 1;
                    waiting.push_back(request.clone());
                }
                Effect::Withdraw(ids) => withdraw(&mut waiting, ids),
                Effect::FallBack { .. } => {}
                Effect::NativeFailed { .. }
                | Effect::Consult(_)
                | Effect::Prepared
                | Effect::Install(_)
                | Effect::InstallPrune(_)
                | Effect::Summarised(_)
                | Effect::End(_) => {
                    panic!("{effect:?}")
                }
            }
        }
        if reaction.progress != Progress::Waiting {
            for effect in summaries.clear() {
                let Effect::Withdraw(ids) = effect else { panic!("{effect:?}") };
                withdraw(&mut waiting, &ids);
            }
            assert!(waiting.is_empty(), "nothing waits after the end: {waiting:?}");
            return (reaction.progress, calls);
        }
        let request = waiting.pop_front().expect("something is awaited");
        reaction = summaries.answered(request.id, answer(&request), 0);
    }
}

/// A tenth of the room is reserved for estimation errors, and the answer has its own reserve.
#[test]
fn the_parts_of_a_long_transcript_fill_nine_tenths_of_the_summarisers_window() {
    for window in [6_000, 20_000, 60_000] {
        let mut summaries = summaries(window);
        let requests = asks(&summaries.begin(vec![source(&"u:40 a:60 ".repeat(1_500))]));
        assert!(requests.len() > 2, "{window}: {}", requests.len());
        for request in &requests[..requests.len() - 1] {
            let tokens = request.tokens(Ratio::default());
            // The fixed texts (some 500 tokens) and the answer are known, so they need no reserve.
            let least = (window - 1_500) * 9 / 10 + 1_300;
            assert!((least..window * 19 / 20).contains(&tokens), "{tokens} of {window}");
        }
    }
}

#[test]
fn a_transcript_may_take_128_parts_and_no_more() {
    let summaries = summaries(6_000);
    let room = summaries.parts(&source("u"), 800, 6_000).expect("one part").room;
    for (messages, expect) in [(2, Some(2)), (PARTS_MAX, Some(PARTS_MAX)), (PARTS_MAX + 1, None)] {
        // Each is too large to share a request with another.
        let drawing = format!("u:{} ", room * 3 / 4).repeat(messages);
        let parts = summaries.parts(&source(&drawing), 800, 6_000).map(|parts| parts.texts.len());
        assert_eq!(parts, expect, "{messages} messages");
    }
    let mut summaries = summaries;
    let drawing = format!("u:{} ", room * 3 / 4).repeat(PARTS_MAX + 1);
    let reaction = summaries.begin(vec![source("u"), source(&drawing)]);
    let Progress::Failed(why) = reaction.progress else { panic!("{reaction:?}") };
    assert!(why.contains("more than 128 parts") && reaction.effects.is_empty(), "{why}");
}

/// Beside a transcript a previous summary may take a quarter of the window; otherwise it is split and merged
/// like the rest.
#[test]
fn a_previous_summary_stands_whole_up_to_a_quarter_of_the_window() {
    let previous = words(2_000);
    for (drawing, window, whole) in
        [("u", 8_000, true), ("u", 7_996, false), ("", 7_996, true), ("u", 80_000, true)]
    {
        let source = Source { previous: Some(previous.clone()), ..source(drawing) };
        let parts = summaries(window).parts(&source, 800, window).expect("few parts");
        let tagged = parts.texts.iter().filter(|text| text.contains("<previous-summary>")).count();
        let record = parts.texts.iter().filter(|text| text.contains("[Record]: word")).count();
        // Without a transcript there is nothing to request: the previous summary stays unchanged.
        let expect = if drawing.is_empty() { (0, 0) } else { (usize::from(whole), usize::from(!whole)) };
        assert_eq!((tagged, record), expect, "{drawing:?} {window}");
    }
}

/// Returns the window that is believed in after one request of `drawing`, sent to a window of 50,000 tokens,
/// was refused with this limit.
fn window_after(drawing: &str, limit: impl Fn(u64) -> Option<u64>) -> (u64, u64) {
    let mut summaries = summaries(50_000);
    let requests = asks(&summaries.begin(vec![source(drawing)]));
    let sent = requests[0].tokens(Ratio::default());
    let reaction = summaries.answered(requests[0].id, Err(too_large(limit(sent))), 0);
    assert_eq!(reaction.progress, Progress::Waiting);
    assert!(asks(&reaction).len() > requests.len(), "it is asked in smaller parts");
    (summaries.window(), sent)
}

#[test]
fn a_refusal_lowers_the_window_to_its_limit_or_to_half_of_what_was_sent() {
    let drawing = "u:100 a:200 ".repeat(60);
    let after = |limit: &dyn Fn(u64) -> Option<u64>| window_after(&drawing, limit);
    // A limit that is named, and below the size of the request, is believed.
    assert_eq!(after(&|_| Some(12_000)).0, 12_000);
    let (window, sent) = after(&|sent| Some(sent - 1));
    assert_eq!(window, sent - 1);
    assert!(sent < 50_000);
    // Without one, with an implausible one, or if the instruction would fill most of it, it is half of the
    // request.
    for limit in [|_| None, Some, |sent| Some(sent + 1), |_| Some(60_000), |_| Some(0), |_| Some(800)] {
        let (window, sent) = after(&limit);
        assert_eq!(window, sent / 2, "limit {:?}", limit(sent));
    }
}

#[test]
fn a_request_that_cannot_be_smaller_is_sent_once_more_and_then_given_up() {
    let mut summaries = summaries(50_000);
    let reaction = summaries.begin(vec![source("u:20 a:20")]);
    let (progress, calls) = drive(&mut summaries, reaction, |_| Err(too_large(None)));
    assert_eq!((progress, calls), (Progress::Failed("too large".into()), 2));
    assert_eq!(summaries.window(), 50_000, "nothing was learned");
}

#[test]
fn after_four_smaller_sizes_a_summariser_is_given_up() {
    let mut summaries = summaries(100_000);
    let reaction = summaries.begin(vec![source(&"u:100 a:200 ".repeat(300))]);
    let mut sizes = Vec::new();
    let (progress, _) = drive(&mut summaries, reaction, |request| {
        sizes.push(request.tokens(Ratio::default()));
        Err(too_large(None))
    });
    assert_eq!(progress, Progress::Failed("too large".into()));
    assert_eq!(sizes.len(), 5, "{sizes:?}");
    assert!(sizes.is_sorted_by(|larger, smaller| *larger > smaller * 3 / 2), "{sizes:?}");
}

#[test]
fn all_of_a_compaction_asks_512_times_and_no_more() {
    let drawing = "u:900 a:1100 ".repeat(60);
    let parts = asks(&summaries(4_000).begin(vec![source(&drawing)])).len();
    assert!((50..=PARTS_MAX).contains(&parts), "{parts}");
    // The last allowed request is sent; of a set that is one too large, none is.
    for (spare, allowed) in [(parts, true), (parts - 1, false)] {
        let mut summaries = summaries(4_000);
        summaries.calls = CALLS_MAX - spare;
        let reaction = summaries.begin(vec![source(&drawing)]);
        let asked = asks(&reaction);
        assert_eq!((reaction.progress == Progress::Waiting, asked.is_empty()), (allowed, !allowed));
        if let Some(first) = asked.first() {
            // Repetitions count, too.
            let reaction = summaries.answered(first.id, garbage(), 0);
            let Progress::Failed(why) = &reaction.progress else { panic!("{reaction:?}") };
            assert!(why.contains("more than 512 calls") && reaction.effects.is_empty(), "{why}");
            let [Effect::Withdraw(ids)] = &summaries.clear()[..] else { panic!("something was under way") };
            assert_eq!(*ids, asked[1..].iter().map(|request| request.id).collect::<Vec<_>>());
        } else {
            assert_eq!(summaries.clear(), [], "nothing is under way");
        }
    }
    // Each part is rejected for its form once, and one for its size four times.
    let mut summaries = summaries(4_000);
    let reaction = summaries.begin(vec![source(&drawing)]);
    let mut refused = 0;
    let (progress, calls) = drive(&mut summaries, reaction, |request| {
        let is_last = request.attempt == 1 && refused < 4 && request.id as usize % parts == parts - 1;
        if is_last {
            refused += 1;
            Err(too_large(Some(request.tokens(Ratio::default()) - 1)))
        } else if request.attempt == 0 {
            garbage()
        } else {
            good()
        }
    });
    assert_eq!(progress, Progress::Failed("it takes more than 512 calls".into()));
    assert!((CALLS_MAX - PARTS_MAX..=CALLS_MAX).contains(&calls), "{calls}");
}

/// Checks how many texts of this many tokens go into each merge of this budget.
#[track_caller]
fn check_groups(texts: usize, tokens: u64, budget: u64, expect: &[usize]) {
    let groups = groups(vec![words(tokens); texts], budget);
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), expect, "{texts} of {tokens} in {budget}");
}

#[test]
fn texts_are_merged_by_as_many_as_fit_and_at_least_by_two() {
    // Each takes 16 tokens more, for the tags around it.
    check_groups(7, 100, 348, &[3, 3, 1]);
    check_groups(7, 100, 347, &[2, 2, 2, 1]);
    check_groups(7, 100, 1, &[2, 2, 2, 1]);
    check_groups(7, 100, 10_000, &[7]);
    check_groups(1, 100, 0, &[1]);
}

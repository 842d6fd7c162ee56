//! Which reports are accepted, and the count that replaces the others.

use std::sync::Arc;

use super::*;
use crate::message::{Block, Image, StopReason, ToolCall};
use crate::random::Random;

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

fn answer(content: Vec<Part>) -> AssistantMessage {
    AssistantMessage::new(content, "p", "m", StopReason::Stop)
}

/// Checks what is missing on both sides if about 574 tokens were sent, of them 500 as text, and 40 answered,
/// 30 as text.
fn check(report: Option<Usage>, expected: (u64, u64)) {
    let (input, output) = (Counted { likely: 574, least: 500 }, Counted { likely: 40, least: 30 });
    let missing = missing(report.as_ref(), input, output);
    assert_eq!((missing.input_tokens, missing.output_tokens), expected, "{report:?}");
    assert_eq!(missing.estimated_tokens, expected.0 + expected.1, "{report:?}");
}

#[test]
fn a_report_that_cannot_be_is_replaced_and_no_other_one() {
    check(None, (574, 40));
    check(Some(Usage::default()), (574, 40));
    check(Some(usage(1, 1)), (573, 39));
    check(Some(usage(49, 2)), (525, 38));
    // From a tenth of the least count on, everything is believed, on each side separately.
    check(Some(usage(50, 3)), (0, 0));
    check(Some(usage(50, 0)), (0, 40));
    check(Some(usage(0, 3)), (574, 0));
    check(Some(usage(600, 1_000)), (0, 0));
    check(Some(usage(u64::MAX, u64::MAX)), (0, 0));
    // Cached tokens that are counted separately.
    check(Some(Usage { cached_tokens: 560, ..usage(3, 40) }), (0, 0));
    check(Some(Usage { cache_write_tokens: 560, ..usage(3, 40) }), (0, 0));
}

#[test]
fn a_count_that_no_call_can_have_is_disregarded() {
    let true_one = Usage { cached_tokens: 90_000_000, reasoning_tokens: 7, ..usage(100_000_000, 9) };
    assert_eq!(billable(true_one), true_one);
    assert_eq!(billable(usage(100_000_001, 9)), usage(0, 9));
    assert_eq!(billable(Usage { cached_tokens: u64::MAX, ..usage(5, 9) }), usage(0, 9));
    assert_eq!(billable(Usage { reasoning_tokens: 8, ..usage(5, u64::MAX) }), usage(5, 0));
    assert_eq!(billable(Usage { reasoning_tokens: u64::MAX, ..usage(5, 9) }), usage(5, 0));
}

#[test]
fn where_nothing_was_said_nothing_is_missing() {
    assert_eq!(missing(None, Counted::default(), Counted::default()), Usage::default());
    assert_eq!(count_answer(&answer(Vec::new())), Counted::default());
    assert_eq!(count_streamed(""), Counted::default());
}

#[test]
fn the_least_has_neither_tools_nor_images_nor_reasoning() {
    let tools = [ToolSpec {
        name: "count".to_owned(),
        description: "Counts. ".repeat(100),
        parameters: serde_json::json!({ "type": "object" }),
    }];
    let thought = Part::Reasoning("thinking about it ".repeat(100));
    let opaque = Part::OpaqueReasoning { dialect: "d".to_owned(), data: "x".repeat(400) };
    let said = answer(vec![thought, opaque, Part::Text("a short answer".to_owned())]);
    let messages =
        Messages::from(vec![Arc::new(Message::user("hello")), Arc::new(Message::Assistant(said.clone()))]);
    let none = ResentReasoning::default();
    let all =
        ResentReasoning { readable_of: Some("p".to_owned()), dialect: Some("d".to_owned()), opaque_of: None };
    let count = |tools: &[ToolSpec], resent: &ResentReasoning, ratio: Ratio| {
        Sent { system: "Be kind.", tools, messages: &messages, resent, ratio }.count()
    };
    let bare = count(&[], &none, Ratio::default());
    assert_eq!(bare.likely, bare.least);
    let with_tools = count(&tools, &none, Ratio::default());
    assert_eq!((with_tools.least, with_tools.likely), (bare.least, bare.likely + tools_tokens(&tools)));
    let with_reasoning = count(&[], &all, Ratio::default());
    let reasoning = reasoning_tokens(&said) + 100;
    assert_eq!((with_reasoning.least, with_reasoning.likely), (bare.least, bare.likely + reasoning));
    assert_eq!(count(&[], &none, Ratio::new(2.0)).likely, bare.likely * 2);
    // In an answer, reasoning counts as output, and the least count excludes it.
    let counted = count_answer(&said);
    assert_eq!(counted.likely, counted.least + reasoning_tokens(&said));
    // A call counts too.
    let call =
        ToolCall { id: "1".to_owned(), name: "count".to_owned(), arguments: "{\"number\": 1}".to_owned() };
    assert!(count_answer(&answer(vec![Part::ToolCall(call)])).least > 0);
}

/// What a report is checked against is known without reading the conversation where the report is true in any case.
#[test]
fn a_report_is_judged_alike_whether_or_not_the_conversation_is_counted() {
    let letters =
        ["a", "Z", "word", " ", "\n", "!", "?)", "é", "漢", "🦀", "\u{301}", "\t", "0", "-", "\u{200b}", "="];
    // Each alone, because long texts hide what short ones cost.
    let mut is_above_half = 0;
    for (one, other) in letters.iter().flat_map(|one| letters.iter().map(move |other| (one, other))) {
        let text = format!("{one}{other}").repeat(40);
        let tokens = text_tokens(&text, Estimator::Classes);
        assert!(tokens <= bytes_max(&text), "{text}: {tokens}");
        is_above_half += usize::from(tokens > text.len() as u64 / 2);
    }
    assert!(is_above_half > 4, "{is_above_half} texts are dense");
    let (mut random, mut uncounted, mut missed) = (Random::new(1), 0, 0);
    for number in 0..5_000 {
        let mut text = || -> String {
            let count = random.below(200);
            let some = 1 + random.below(letters.len() as u64);
            (0..count).map(|_| letters[usize::try_from(random.below(some)).expect("small")]).collect()
        };
        let image = Block::Image(Image { media_type: "image/png".into(), data: "QUJD".into() });
        let call = ToolCall { id: "1".into(), name: text(), arguments: text() };
        let opaque = Part::OpaqueBlock { dialect: "d".into(), data: text() };
        let said = answer(vec![Part::Text(text()), Part::Reasoning(text()), opaque, Part::ToolCall(call)]);
        let user = Message::User(vec![Block::Text(text()), image]);
        let (system, resent) = (text(), ResentReasoning::default());
        let messages: Messages = [user, Message::Assistant(said)].into_iter().map(Arc::new).collect();
        let sent = Sent {
            system: &system,
            tools: &[],
            messages: &messages,
            resent: &resent,
            ratio: Ratio::default(),
        };
        let counted = sent.count();
        assert!(counted.least <= messages.text_tokens_max() + bytes_max(&system), "{number}: {counted:?}");
        let report = usage(random.below(counted.least), 0);
        let check = |input: Counted| missing(Some(&report), input, Counted::default());
        assert_eq!(check(sent.count_for(&report)), check(counted), "{number}: {report:?}");
        uncounted += usize::from(sent.count_for(&report) == Counted::default());
        missed += usize::from(check(counted).input_tokens > 0);
    }
    assert!(uncounted > 1_000 && missed > 100, "{uncounted} were not counted, {missed} were missing");
}

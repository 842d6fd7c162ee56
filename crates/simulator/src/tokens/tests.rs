//! The counter: exact counts of small texts.

use super::*;

#[track_caller]
fn check(text: &str, expected: u64) {
    assert_eq!(count(text), expected, "{text:?}");
}

#[test]
fn counts_by_class() {
    check("", 0);
    check("word", 1);
    check("words, two", 3);
    check("internationalization", 4);
    check("12345", 2);
    check("{}()", 2);
    check("a b", 2);
    check("a  b", 3);
    check("a\nb", 3);
    check("    indented", 3);
    check("你好世界", 4);
    check("привет", 3);
    check("🙂", 2);
    check("fn main() {}", 4);
}

#[test]
fn a_prefix_fits_and_is_the_longest() {
    let text = "The quick brown fox, 你好, jumped over 12345 lazy dogs. 🙂";
    for tokens_max in 0..=count(text) {
        let cut = prefix(text, tokens_max);
        assert!(count(cut) <= tokens_max, "{tokens_max}: {cut:?}");
        if let Some(next) = text[cut.len()..].chars().next() {
            let _ = next;
            assert!(count(cut) + 2 >= tokens_max, "{tokens_max}: {cut:?} is too short");
        }
    }
    assert_eq!(prefix(text, u64::MAX), text);
}

#[test]
fn reasoning_is_free_and_calls_are_not() {
    let call = greenroom_kernel::ToolCall {
        id: "call_1".into(),
        name: "read".into(),
        arguments: r#"{"path":"a"}"#.into(),
    };
    let assistant = |content| {
        Message::Assistant(greenroom_kernel::AssistantMessage::new(
            content,
            String::new(),
            String::new(),
            greenroom_kernel::StopReason::Stop,
        ))
    };
    assert_eq!(message(&assistant(vec![Part::Reasoning("long thoughts".into())])), MESSAGE_OVERHEAD);
    let with_call = message(&assistant(vec![Part::ToolCall(call.clone())]));
    assert_eq!(with_call, MESSAGE_OVERHEAD + CALL_OVERHEAD + count("read") + count(&call.arguments));
}

//! Where the context of the next agent starts.

use greenroom_kernel::EntryId;
use greenroom_kernel::message::{
    AssistantMessage, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};

use super::*;

/// A path: `u` is a prompt, `s` a steer, `a` an answer, `t` a result, and `n` a note, which is not a message.
fn path(drawn: &str) -> Vec<Arc<Entry>> {
    let call = ToolCall { id: "1".to_owned(), name: "t".to_owned(), arguments: "{}".to_owned() };
    let kind = |letter: char| match letter {
        'u' => EntryKind::message(Message::user("u")),
        's' => EntryKind::Message { message: Arc::new(Message::user("s")), inbox: None, steer: true },
        'a' => EntryKind::message(Message::Assistant(AssistantMessage {
            content: vec![Part::Text("a".to_owned())],
            provider: String::new(),
            model: String::new(),
            usage: None,
            stop: StopReason::Stop,
            stop_raw: None,
            error: None,
        })),
        't' => EntryKind::message(Message::ToolResult(ToolResult::synthetic(&call, ToolStatus::Ok, "t"))),
        _ => EntryKind::Note { kind: "n".to_owned(), data: "{}".to_owned() },
    };
    let entry = |(at, letter): (usize, char)| {
        let (id, parent) = (EntryId(at as u64), at.checked_sub(1).map(|at| EntryId(at as u64)));
        Arc::new(Entry {
            id,
            parent,
            at_ms: 1,
            tokens: 1,
            reasoning_tokens: 0,
            origin: None,
            kind: kind(letter),
        })
    };
    drawn.chars().enumerate().map(entry).collect()
}

#[test]
fn the_newest_messages_are_kept_with_their_calls_and_the_request_in_progress() {
    for (drawn, messages, expect) in [
        ("", 1, None),
        ("n", 1, None),
        ("u", 1, None),
        ("ua", 1, Some(1)),
        ("ua", 2, None),
        ("ua", 3, None),
        // At least one: a request is never empty.
        ("ua", 0, Some(1)),
        ("uaua", u32::MAX, None),
        // Entries that are not messages do not count, and stay with the message before them.
        ("nua", 2, Some(1)),
        ("nnuna", 1, Some(4)),
        ("uanu", 1, Some(3)),
        // Not between a call and its results.
        ("uatta", 2, Some(1)),
        ("uatta", 3, Some(1)),
        ("uatta", 4, Some(1)),
        ("uauatta", 2, Some(3)),
        // With the request in progress, which a result indicates, however few messages are wanted.
        ("uauatt", 1, Some(2)),
        ("uauat", 4, Some(1)),
        ("uausat", 1, Some(2)),
        ("ususat", 1, Some(2)),
        ("sat", 1, Some(1)),
        ("tt", 1, None),
        // An answered request is not in progress.
        ("uauata", 1, Some(5)),
    ] {
        assert_eq!(cut(&path(drawn), messages), expect, "{messages} of {drawn}");
    }
}

//! Requests that extend the previous one, and requests that do not.

use greenroom_kernel::{Image, ToolResult, ToolStatus};
use greenroom_provider::{ModelSettings, Purpose};

use super::*;

fn request(messages: &[Message]) -> Request {
    Request {
        model: "m".to_owned(),
        system: Some("Be brief.".to_owned()),
        messages: messages.iter().cloned().map(Arc::new).collect(),
        tools: Arc::from(Vec::new()),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s".to_owned(),
    }
}

fn picture() -> Message {
    let image = Image::new(b"\x89PNG\r\n\x1a\n").expect("a picture");
    Message::ToolResult(ToolResult {
        call_id: "c".into(),
        tool_name: "look".into(),
        content: vec![Block::Text("here".into()), Block::Image(image)],
        status: ToolStatus::Ok,
        touched: Vec::new(),
    })
}

#[test]
fn what_breaks_a_prefix_is_named() {
    let (one, two, three) = (Message::user("one"), Message::user("two"), Message::user("three"));
    let base = request(&[one.clone(), picture(), two.clone()]);
    let tool = ToolSpec { name: "t".into(), description: String::new(), parameters: serde_json::json!({}) };
    let without = Message::user("[image left out]");
    let longer = request(&[one.clone(), picture(), two.clone(), three.clone()]);
    for (case, next, rewrites, has_hook, expected) in [
        ("the same again", base.clone(), 0, false, None),
        ("more", longer.clone(), 0, true, None),
        (
            "another model",
            Request { model: "n".into(), ..longer.clone() },
            0,
            false,
            Some((PrefixChange::Model, 0)),
        ),
        (
            "instructions",
            Request { system: None, ..longer.clone() },
            0,
            false,
            Some((PrefixChange::Instructions, 0)),
        ),
        (
            "tools",
            Request { tools: Arc::from(vec![tool]), ..longer.clone() },
            0,
            false,
            Some((PrefixChange::Tools, 0)),
        ),
        ("a hook", request(&[three.clone(), picture(), two.clone()]), 0, true, Some((PrefixChange::Hook, 0))),
        ("images", request(&[one.clone(), without, two.clone()]), 0, false, Some((PrefixChange::Images, 1))),
        ("fewer messages", request(&[one.clone(), picture()]), 0, false, Some((PrefixChange::Messages, 2))),
        ("a compaction", request(std::slice::from_ref(&three)), 1, false, None),
    ] {
        let mut prefix = Prefix::default();
        assert_eq!(prefix.follow(&base, 0, false), None, "{case}: there is none before");
        assert_eq!(prefix.follow(&next, rewrites, has_hook), expected, "{case}");
        assert_eq!(prefix.follow(&next, rewrites, has_hook), None, "{case}: told once");
    }
}

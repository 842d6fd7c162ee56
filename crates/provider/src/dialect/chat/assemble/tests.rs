//! Chunks in all the shapes that servers send, and the answers that are assembled from them.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::{AssistantMessage, Message, Part, StopReason, ToolCall, Usage};
use serde_json::{Value, json};

use super::Assembler;
use crate::ReplyEvent;
use crate::dialect::chat::chunk::Chunk;

/// The answer made of `chunks`, and its events.
fn assemble(chunks: &[Value]) -> (AssistantMessage, Vec<ReplyEvent>) {
    let mut assembler = Assembler::default();
    let mut events = Vec::new();
    for chunk in chunks {
        let chunk: Chunk = serde_json::from_str(&chunk.to_string()).expect("a chunk is read leniently");
        assembler.take(chunk, &mut events);
    }
    let call = ToolCall { id: "used".into(), name: "read".into(), arguments: "{}".into() };
    let earlier = AssistantMessage::new(vec![Part::ToolCall(call)], "test", "m", StopReason::ToolCalls);
    let conversation = [Arc::new(Message::Assistant(earlier))];
    let message = assembler.finish(StopReason::Stop, "test", "m", &conversation, &mut events);
    (message, events)
}

fn delta(delta: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

/// Calls as (id, name, arguments).
fn check_calls(fragments: &[Value], expected: &[(&str, &str, &str)]) {
    let chunks: Vec<Value> = fragments.iter().map(|calls| delta(&json!({ "tool_calls": calls }))).collect();
    let (message, events) = assemble(&chunks);
    let found: Vec<(&str, &str, &str)> = message
        .tool_calls()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
        .collect();
    assert_eq!(found, expected, "{fragments:?}");
    // The events carry the same arguments as the finished answer.
    for (index, (_, _, arguments)) in expected.iter().enumerate() {
        let told: String = events
            .iter()
            .filter_map(|event| match event {
                ReplyEvent::ToolCall { index: told, arguments, .. } if *told == index => {
                    Some(arguments.as_str())
                }
                ReplyEvent::ToolCall { .. }
                | ReplyEvent::Text(_)
                | ReplyEvent::Reasoning(_)
                | ReplyEvent::ThinkingDropped { .. }
                | ReplyEvent::Spent(_)
                | ReplyEvent::Done(_) => None,
            })
            .collect();
        assert_eq!(told, *arguments, "{fragments:?}");
    }
}

#[test]
fn an_optional_field_of_another_type_counts_as_absent() {
    for other in [json!(false), json!(7), json!("none"), json!([]), json!({})] {
        let usage = json!({ "prompt_tokens": 5, "completion_tokens": 2, "completion_tokens_details": other });
        let mut chunk = delta(&json!({ "content": "yes", "reasoning": other, "refusal": null }));
        chunk["usage"] = usage;
        let (message, _) = assemble(&[chunk]);
        let tokens = message.usage.map(|usage| (usage.input_tokens, usage.output_tokens));
        assert_eq!(tokens, Some((5, 2)), "{other}");
        let mut chunk = delta(&json!({ "content": "yes" }));
        let is_text = other.is_string();
        if !is_text {
            chunk["choices"][0]["finish_reason"] = other.clone();
            chunk["choices"][0]["delta"]["refusal"] = other.clone();
        }
        if !other.is_object() {
            chunk["usage"] = other.clone();
        }
        let (message, _) = assemble(&[chunk]);
        assert_eq!(message.text(), "yes", "{other}");
    }
    // What may stand for no calls is none; a call that cannot be read is not passed over.
    for none in [json!(null), json!({}), json!(""), json!(false)] {
        let (message, _) = assemble(&[delta(&json!({ "content": "yes", "tool_calls": none }))]);
        assert_eq!((message.text().as_str(), message.tool_calls().count()), ("yes", 0), "{none}");
    }
    for call in [json!("read"), json!([7]), json!([{ "function": 7 }]), json!({ "name": "read" })] {
        let chunk = delta(&json!({ "tool_calls": call })).to_string();
        assert!(serde_json::from_str::<Chunk>(&chunk).is_err(), "{call}");
    }
}

#[test]
fn calls_in_fragments() {
    check_calls(
        &[
            json!([{"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}]),
            json!([{"index": 0, "function": {"arguments": "{\"p\":"}}]),
            json!([{"index": 0, "function": {"arguments": "1}"}}]),
            json!([{"index": 1, "id": "b", "function": {"name": "list", "arguments": "{}"}}]),
        ],
        &[("a", "read", "{\"p\":1}"), ("b", "list", "{}")],
    );
    // Interleaved, with the name in pieces and the index as text.
    check_calls(
        &[
            json!([{"index": "0", "id": "a", "function": {"name": "re"}}, {"index": 1, "id": "b", "function": {"name": "list"}}]),
            json!([{"index": 0, "function": {"name": "ad"}}]),
            json!([{"index": 1, "function": {"arguments": "{}"}}, {"index": 0, "function": {"arguments": "{}"}}]),
        ],
        &[("a", "read", "{}"), ("b", "list", "{}")],
    );
    // The name and the id are repeated with every fragment.
    check_calls(
        &[
            json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{\"p\""}}]),
            json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": ":1}"}}]),
        ],
        &[("a", "read", "{\"p\":1}")],
    );
}

#[test]
fn calls_without_index() {
    check_calls(
        &[
            json!([{"id": "a", "function": {"name": "read", "arguments": "{\"p\""}}]),
            json!([{"function": {"arguments": ":1}"}}]),
            json!([{"id": "b", "function": {"name": "read", "arguments": "{}"}}]),
        ],
        &[("a", "read", "{\"p\":1}"), ("b", "read", "{}")],
    );
    // Every call with index 0.
    check_calls(
        &[
            json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{}"}}]),
            json!([{"index": 0, "id": "b", "function": {"name": "read", "arguments": "{}"}}]),
        ],
        &[("a", "read", "{}"), ("b", "read", "{}")],
    );
    // Arguments as an object, null everywhere else.
    check_calls(
        &[
            json!([{"index": null, "id": "a", "type": null, "function": {"name": "read", "arguments": {"p": 1}}}]),
        ],
        &[("a", "read", "{\"p\":1}")],
    );
}

#[test]
fn ids_are_unique() {
    // The first ids are looked for one by one, and those of further calls in a set.
    let (message, _) = assemble(&[delta(&json!({ "tool_calls": [
        {"id": "used", "function": {"name": "z", "arguments": "{}"}},
        {"function": {"name": "x", "arguments": "{}"}},
        {"id": "", "function": {"name": "y", "arguments": "{}"}},
        {"id": "same", "function": {"name": "x", "arguments": "{}"}},
        {"id": "same", "function": {"name": "y", "arguments": "{}"}},
        {"id": "used", "function": {"name": "z", "arguments": "{}"}},
    ]}))]);
    let ids: HashSet<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
    assert_eq!(ids.len(), 6, "{ids:?}");
    assert!(ids.contains("same") && !ids.contains("used") && !ids.contains(""), "{ids:?}");
    assert_eq!(message.stop, StopReason::ToolCalls);
}

#[test]
fn parts_keep_their_order() {
    let (message, _) = assemble(&[
        delta(&json!({ "role": "assistant", "content": null })),
        delta(&json!({ "reasoning_content": "h" })),
        delta(&json!({ "reasoning": "m" })),
        delta(&json!({ "content": "a", "function_call": {"name": "old"} })),
        delta(
            &json!({ "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}, {"type": "text", "text": "b"}] }),
        ),
    ]);
    let expected = [
        Part::Reasoning("hm".to_owned()),
        Part::Text("a".to_owned()),
        Part::Reasoning("so".to_owned()),
        Part::Text("b".to_owned()),
    ];
    assert_eq!(message.content, expected);
}

#[test]
fn whole_answers() {
    let (message, _) = assemble(&[json!({
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null, "tool_calls": null}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    })]);
    assert_eq!(message.text(), "hi");
    // With both forms in one chunk, the delta counts.
    let (message, _) = assemble(&[json!({
        "choices": [{"delta": {"content": "b"}, "message": {"content": "ab"}}, {"index": 1, "delta": {"content": "other"}}],
    })]);
    assert_eq!(message.text(), "b");
}

#[test]
fn usage_in_all_its_places() {
    let check = |chunks: &[Value], expected: Option<Usage>| {
        assert_eq!(assemble(chunks).0.usage, expected, "{chunks:?}");
    };
    let counts = |input, cached, output, reasoning| {
        Some(Usage {
            input_tokens: input,
            cached_tokens: cached,
            cache_write_tokens: 0,
            output_tokens: output,
            reasoning_tokens: reasoning,
            ..Usage::default()
        })
    };
    check(
        &[
            json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}}),
        ],
        counts(10, 4, 5, 2),
    );
    check(
        &[
            json!({"choices": null, "usage": {"prompt_tokens": "10", "completion_tokens": 5.0, "prompt_tokens_details": null, "prompt_cache_hit_tokens": 6}}),
        ],
        counts(10, 6, 5, 0),
    );
    // Usage on the finish chunk, followed by zeros.
    check(
        &[
            json!({"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 1}}]}),
            json!({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}),
        ],
        counts(10, 1, 5, 0),
    );
    // Reasoning that is counted only in the total.
    check(
        &[
            json!({"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35, "completion_tokens_details": {"reasoning_tokens": 20}}}),
        ],
        counts(10, 0, 25, 20),
    );
    // Cached tokens that are counted apart: more than the prompt has, or by the total.
    check(
        &[
            json!({"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cached_tokens": 90}}),
        ],
        counts(100, 90, 5, 0),
    );
    check(
        &[
            json!({"usage": {"prompt_tokens": 60, "completion_tokens": 5, "total_tokens": 105, "cached_tokens": 40}}),
        ],
        counts(100, 40, 5, 0),
    );
    check(
        &[
            json!({"usage": {"prompt_tokens": 60, "completion_tokens": 5, "total_tokens": 65, "cached_tokens": 40}}),
        ],
        counts(60, 40, 5, 0),
    );
    check(&[json!({"usage": null}), json!({"usage": {}})], None);
}

#[test]
fn only_progress_counts() {
    let mut assembler = Assembler::default();
    let mut events = Vec::new();
    let mut take = |chunk: Value| {
        assembler.take(serde_json::from_str(&chunk.to_string()).expect("a chunk"), &mut events)
    };
    assert!(!take(delta(&json!({ "role": "assistant", "content": "" }))));
    assert!(!take(json!({})));
    assert!(take(delta(&json!({ "content": "x" }))));
    assert!(take(json!({ "choices": [{ "finish_reason": "stop" }] })));
}

#[test]
fn errors_inside_a_stream() {
    let check = |chunk: Value, is_error: bool| {
        let chunk: Chunk = serde_json::from_str(&chunk.to_string()).expect("a chunk");
        assert_eq!(chunk.error_body().is_some(), is_error);
    };
    check(json!({"error": {"message": "x", "code": "500"}}), true);
    check(json!({"error": "x"}), true);
    check(json!({"message": "x", "type": "error", "code": 3}), true);
    check(json!({"detail": [{"msg": "x"}]}), true);
    check(json!({"choices": [{"error": {"code": 502}, "delta": {}}]}), true);
    check(json!({"error": null, "choices": [{"delta": {"content": "x"}}]}), false);
    check(json!({"type": "chunk", "choices": [], "usage": {}}), false);
}

/// The model's own words that it refuses are shown, and the answer ended for that reason unless it calls tools.
#[test]
fn refusals() {
    let refusal = |text: &str| delta(&json!({ "refusal": text }));
    let check = |chunks: &[Value], said: &str, stop: StopReason| {
        let (message, _) = assemble(chunks);
        assert_eq!((message.text().as_str(), message.stop), (said, stop), "{chunks:?}");
    };
    let plain = delta(&json!({ "content": "Well, " }));
    let nothing = delta(&json!({ "content": "no.", "refusal": null }));
    let call =
        delta(&json!({ "tool_calls": [{ "id": "x", "function": { "name": "read", "arguments": "{}" } }] }));
    check(&[refusal("I can't "), refusal("do that.")], "I can't do that.", StopReason::ContentFilter);
    check(&[plain.clone(), refusal("no.")], "Well, no.", StopReason::ContentFilter);
    check(&[plain, refusal(""), nothing], "Well, no.", StopReason::Stop);
    check(&[refusal("no."), call], "no.", StopReason::ToolCalls);
    let whole =
        json!({ "choices": [{ "message": { "content": null, "refusal": "no." }, "finish_reason": "stop" }] });
    check(&[whole], "no.", StopReason::ContentFilter);
}

/// Servers that give each call the index 0, or repeat a whole call at the end.
#[test]
fn complete_calls_are_never_glued_together() {
    // The fragments as (id, name, arguments), and the arguments of the calls.
    type Fragment = (&'static str, &'static str, &'static str);
    let rows: [(&[Fragment], &[&str]); 6] = [
        (&[("", "read", "{\"p\":1}"), ("", "read", "{\"p\":2}")], &["{\"p\":1}", "{\"p\":2}"]),
        (&[("", "read", "{\"p\":1}"), ("", "read", "{\"p\":1}")], &["{\"p\":1}", "{\"p\":1}"]),
        (&[("a", "read", "{\"p\":1}"), ("a", "read", "{\"p\":1}")], &["{\"p\":1}"]),
        (&[("a", "read", "{\"p\":1}"), ("", "", "{\"p\":1}")], &["{\"p\":1}"]),
        (&[("a", "read", "{\"p\":1}"), ("a", "read", "{\"p\":2}")], &["{\"p\":1}", "{\"p\":2}"]),
        // The name comes again with each fragment.
        (&[("a", "read", "{\"p\":"), ("a", "read", "{\"q\":1}"), ("a", "read", "}")], &["{\"p\":{\"q\":1}}"]),
    ];
    for (fragments, expected) in rows {
        let chunks: Vec<_> = fragments
            .iter()
            .map(|(id, name, arguments)| {
                let function = json!({ "name": name, "arguments": arguments });
                delta(&json!({ "tool_calls": [{ "index": 0, "id": id, "function": function }] }))
            })
            .collect();
        let (message, _) = assemble(&chunks);
        let calls: Vec<_> = message.tool_calls().map(|call| call.arguments.as_str()).collect();
        assert_eq!(calls, expected, "{fragments:?}");
        let ids: std::collections::HashSet<_> = message.tool_calls().map(|call| &call.id).collect();
        assert_eq!(ids.len(), expected.len(), "{fragments:?}");
    }
}

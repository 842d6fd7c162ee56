//! The bytes of requests for a stored session: they never change between releases.
//!
//! Vendors keep the beginning of a request in their caches, and bind signatures to it. A session that was stored by one
//! release is continued by the next one with the same bytes, or every session pays for its whole context once, and thinking
//! that is bound to it is refused. A change of these files therefore needs a reason, and a line in the changelog.

use std::path::Path;
use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, Image, Message, Native, Part, StopReason, ToolCall, ToolResult, ToolSpec,
    ToolStatus,
};
use serde_json::json;

use crate::dialect::History;
use crate::settings::ResendReasoning;
use crate::{Api, ModelSettings, OutputSchema, Purpose, ReasoningEffort, Request, ServerOptions, ToolChoice};

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn thought(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

fn opaque(dialect: &str, data: &str) -> Part {
    Part::OpaqueReasoning { dialect: dialect.to_owned(), data: data.to_owned() }
}

fn block(dialect: &str, data: &str) -> Part {
    Part::OpaqueBlock { dialect: dialect.to_owned(), data: data.to_owned() }
}

fn call(id: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall {
        id: id.to_owned(),
        name: "read file".to_owned(),
        arguments: arguments.to_owned(),
    })
}

fn answer(provider: &str, content: Vec<Part>) -> Message {
    Message::Assistant(AssistantMessage::new(content, provider.to_owned(), "m", StopReason::Stop))
}

fn result(id: &str, status: ToolStatus, content: Vec<Block>) -> Message {
    Message::ToolResult(ToolResult {
        call_id: id.to_owned(),
        tool_name: "read file".to_owned(),
        content,
        status,
        touched: Vec::new(),
    })
}

fn said(text: &str) -> Block {
    Block::Text(text.to_owned())
}

fn image() -> Block {
    Block::Image(Image { media_type: "image/png".into(), data: "iVBORw0KGgo=".into() })
}

/// A session that was compacted, and that four vendors' models answered in turn.
fn session() -> Vec<Message> {
    let native = |dialect: &str, provider: &str, blocks: &[&str]| {
        Block::Native(Native {
            provider: provider.to_owned(),
            dialect: dialect.to_owned(),
            blocks: blocks.iter().map(|block| (*block).to_owned()).collect(),
        })
    };
    vec![
        Message::User(vec![
            said("<summary>What was \"done\": a\tb</summary>"),
            native(
                "responses",
                "openai",
                &[r#"{"id":"cmp_1","type":"compaction","encrypted_content":"gA+/="}"#],
            ),
            native(
                "anthropic",
                "anthropic",
                &[r#"{"type":"compaction","content":"g","signature":"EuYB=="}"#],
            ),
            said("<files>a.rs</files>"),
        ]),
        Message::User(vec![said("Look at this é\u{1f600}\u{7f}:"), image()]),
        answer(
            "anthropic",
            vec![
                thought("Let me see."),
                opaque("anthropic", r#"{"type":"thinking","signature":"EqQB+/xyz=="}"#),
                opaque("anthropic", r#"{"type":"redacted_thinking","data":"Redacted+/=="}"#),
                text("First."),
                opaque("anthropic", r#"{"type":"text","citations":[{"type":"page_location","n":1.50}]}"#),
                block(
                    "anthropic",
                    r#"{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query": "x"}}"#,
                ),
                call("toolu_1", "{\"n\": 1e3, \"s\":\"\\u00e9\"}"),
                opaque("anthropic", r#"{"type":"tool_use","caller":{"type":"direct"}}"#),
                call("toolu_2", "not JSON"),
            ],
        ),
        result("toolu_2", ToolStatus::Error, vec![said("no such file")]),
        result("toolu_1", ToolStatus::Ok, vec![said("a picture"), image()]),
        answer(
            "openai",
            vec![
                thought("Then."),
                opaque(
                    "responses",
                    r#"{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":5}],"encrypted_content":"gA+/="}"#,
                ),
                text("Second."),
                opaque(
                    "responses",
                    r#"{"id":"msg_1","type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":7,"annotations":[]}]}"#,
                ),
                call("call_1", "{}"),
                opaque(
                    "responses",
                    r#"{"id":"fc_1","type":"function_call","status":"completed","call_id":6,"name":9,"arguments":2}"#,
                ),
                block("responses", r#"{"id":"ws_1","type":"web_search_call","status":"completed"}"#),
            ],
        ),
        result("call_1", ToolStatus::Interrupted, vec![]),
        Message::user("And now?"),
        Message::user("Go on."),
        answer(
            "google",
            vec![
                thought("Hm."),
                opaque("gemini", r#"{"thought":true,"thoughtSignature":"QUJD"}"#),
                text("Third."),
                call("g1", "{\"path\":\"a\"}"),
                opaque("gemini", r#"{"functionCall":{"id":"fc-7"},"thoughtSignature":"REVG"}"#),
                call("g2", "{\"path\":\"b\"}"),
            ],
        ),
        result("g2", ToolStatus::Ok, vec![said("b")]),
        result("g1", ToolStatus::Ok, vec![said("a")]),
        answer("deepseek", vec![thought("I think."), text("Fourth."), call(&"long_id_".repeat(12), "{}")]),
        result(&"long_id_".repeat(12), ToolStatus::Ok, vec![said("done")]),
        answer("deepseek", vec![text("")]),
        Message::user("Thanks."),
    ]
}

fn request(model: &str, settings: ModelSettings) -> Request {
    Request {
        model: model.to_owned(),
        system: Some("Be brief.\n\"Always\".".to_owned()),
        messages: session().into_iter().map(Arc::new).collect(),
        tools: Arc::from([ToolSpec {
            name: "read_file".to_owned(),
            description: "Reads a file.".to_owned(),
            parameters: json!({ "type": "object", "properties": { "path": { "type": "string" } } }),
        }]),
        settings,
        output_schema: None,
        purpose: Purpose::Step,
        session: "s1".to_owned(),
    }
}

#[test]
fn requests_for_a_stored_session_never_change() {
    let plain = ModelSettings::default;
    let all = || ModelSettings {
        temperature: Some(0.5),
        top_p: Some(0.9),
        reasoning_effort: Some(ReasoningEffort::High),
        output_tokens_max: Some(4_000),
        tool_choice: Some(ToolChoice::Auto),
        parallel_tool_calls: Some(false),
        stop: Some(vec!["END".to_owned()]),
        seed: Some(7),
        resend_reasoning: Some(ResendReasoning::AsReasoningContent),
        ..plain()
    };
    let cases = [
        (Api::Chat, "deepseek", "deepseek-chat", plain()),
        (Api::Chat, "deepseek", "deepseek-reasoner", all()),
        (Api::Responses, "openai", "gpt-5", plain()),
        (Api::Responses, "azure", "gpt-5", all()),
        (Api::Anthropic, "anthropic", "claude-opus-4-5", plain()),
        (Api::Anthropic, "anthropic", "claude-opus-5-5", all()),
        (Api::Gemini, "google", "gemini-2.5-pro", plain()),
        (Api::Gemini, "google", "gemini-3-pro", all()),
    ];
    let mut wrong = Vec::new();
    let count = cases.len();
    for (number, (api, name, model, settings)) in cases.into_iter().enumerate() {
        let options = ServerOptions { name: name.to_owned(), api, ..ServerOptions::default() };
        let mut request = request(model, settings);
        if number % 2 == 1 {
            let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
            request.output_schema = Some(Arc::new(OutputSchema { name: "answer".to_owned(), schema }));
        }
        let encoded = api.dialect(&options).encode(&request, &options, &mut History::default());
        let encoded = encoded.expect("it can be written");
        let mut written = format!("{}\n", encoded.path).into_bytes();
        written.extend(encoded.body.concat());
        written.push(b'\n');
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!(
            "src/dialect/goldens/{}_{name}_{model}.txt",
            serde_json::json!(api).as_str().expect("text")
        ));
        #[expect(
            clippy::disallowed_methods,
            reason = "whoever changes a request says so, and the file is written"
        )]
        if std::env::var_os("GREENROOM_WRITE_GOLDENS").is_some() {
            std::fs::write(&path, &written).expect("it can be written");
        }
        if std::fs::read(&path).unwrap_or_default() != written {
            wrong.push(path);
        }
    }
    assert_eq!(count, 8);
    assert!(
        wrong.is_empty(),
        "requests for stored sessions would change, see the head of this file: {wrong:#?} \
         (GREENROOM_WRITE_GOLDENS=1 writes them)"
    );
}

//! The checker: valid requests, and violations of each rule.

use std::sync::Arc;

use greenroom_kernel::{AssistantMessage, Part, StopReason, ToolCall, ToolResult, ToolSpec, ToolStatus};
use greenroom_provider::Purpose;

use super::*;

/// Builds a request from a notation: `s` system, `u` user, `a` answer, `a+1,2` answer with calls 1 and 2,
/// `r1` the result of call 1; a `!` after any of them empties it.
fn request(notation: &str) -> SeenRequest {
    let mut messages: Vec<Arc<Message>> = Vec::new();
    let mut system = None;
    for word in notation.split_whitespace() {
        let text = if word.ends_with('!') { String::new() } else { "some text".to_owned() };
        let word = word.trim_end_matches('!');
        let blocks = vec![Block::Text(text.clone())];
        match word.split_at(1) {
            ("s", _) => system = Some(text),
            ("u", _) => messages.push(Arc::new(Message::User(blocks))),
            ("r", id) => messages.push(Arc::new(Message::ToolResult(ToolResult {
                call_id: id.to_owned(),
                tool_name: "read".to_owned(),
                content: blocks,
                status: ToolStatus::Ok,
                touched: Vec::new(),
            }))),
            ("a", ids) => {
                let calls = ids.strip_prefix('+').into_iter().flat_map(|ids| ids.split(',')).map(|id| {
                    Part::ToolCall(ToolCall {
                        id: id.to_owned(),
                        name: "read".to_owned(),
                        arguments: "{}".to_owned(),
                    })
                });
                messages.push(Arc::new(Message::Assistant(AssistantMessage::new(
                    std::iter::once(Part::Text(text)).chain(calls).collect(),
                    String::new(),
                    String::new(),
                    StopReason::Stop,
                ))));
            }
            other => panic!("unknown word {other:?}"),
        }
    }
    SeenRequest {
        model: "m".to_owned(),
        system,
        messages,
        tools: Arc::new([]),
        settings: greenroom_provider::ModelSettings::default(),
        output_schema: None,
        session: None,
        purpose: Purpose::Step,
        streamed: true,
        bytes: 0,
        tokens: 0,
        cached_tokens: 0,
    }
}

fn rules(request: &SeenRequest) -> Vec<Rule> {
    super::check(request, 0).into_iter().map(|(rule, _)| rule).collect()
}

#[track_caller]
fn check(notation: &str, expected: &[Rule]) {
    assert_eq!(rules(&request(notation)), expected, "{notation}");
}

#[test]
fn good_conversations() {
    check("u", &[]);
    check("s u a u", &[]);
    check("u a+1 r1", &[]);
    check("u a+1,2,3 r2 r1 r3 a u", &[]);
    check("u a+1 r1 a+2 r2 a+3 r3 u", &[]);
    // The same id may be used again in a later answer.
    check("u a+1 r1 a+1 r1", &[]);
    check("u a+1! r1", &[]);
    check("u a+1 r1!", &[]);
}

#[test]
fn broken_pairs() {
    check("u r1", &[Rule::OrphanResult]);
    check("u a r1", &[Rule::OrphanResult]);
    check("u a+1", &[Rule::CallWithoutResult, Rule::EndsWithAssistant]);
    check("u a+1 u", &[Rule::CallWithoutResult]);
    check("u a+1,2 r1 u", &[Rule::CallWithoutResult]);
    check("u a+1 u r1", &[Rule::MisplacedResult]);
    check("u a+1,2 r1 a r2", &[Rule::MisplacedResult]);
    check("u a+1 r1 r1", &[Rule::SecondResult]);
    check("u a+1 r1 a u r1", &[Rule::SecondResult]);
    check("u a+1,1 r1 r1", &[Rule::CallId]);
    check("u a+1,2 r1 r3 r2", &[Rule::OrphanResult]);
}

#[test]
fn broken_forms() {
    check("s! u", &[Rule::EmptyMessage]);
    check("u!", &[Rule::EmptyMessage]);
    check("u a! u", &[Rule::EmptyMessage]);
    check("u a", &[Rule::EndsWithAssistant]);
    check("s", &[Rule::NoUserMessage]);
    check("a+1 r1", &[Rule::NoUserMessage]);
}

/// A good conversation with one call, changed.
#[track_caller]
fn check_changed(change: impl FnOnce(&mut SeenRequest, &mut ToolCall), expected: &[Rule]) {
    let mut request = request("u a+1 r1");
    let mut call = ToolCall { id: "1".to_owned(), name: "read".to_owned(), arguments: "{}".to_owned() };
    change(&mut request, &mut call);
    let Message::Assistant(assistant) = Arc::make_mut(&mut request.messages[1]) else {
        panic!("the second message is an answer");
    };
    assistant.content = vec![Part::ToolCall(call)];
    assert_eq!(rules(&request), expected);
}

fn tool(name: &str, parameters: serde_json::Value) -> ToolSpec {
    ToolSpec { name: name.to_owned(), description: String::new(), parameters }
}

#[test]
fn calls_tools_and_limits() {
    check_changed(|_, _| {}, &[]);
    check_changed(|_, call| call.arguments = "{\"a\":".to_owned(), &[Rule::ArgumentsNotJson]);
    check_changed(|_, call| call.arguments = String::new(), &[Rule::ArgumentsNotJson]);
    check_changed(|_, call| call.name = "no spaces".to_owned(), &[Rule::ToolName]);
    check_changed(|_, call| call.name = "x".repeat(65), &[Rule::ToolName]);
    check_changed(|request, _| request.settings.output_tokens_max = Some(0), &[Rule::OutputLimit]);
    let object = serde_json::json!({ "type": "object" });
    check_changed(|request, _| request.tools = Arc::new([tool("a.b", object.clone())]), &[Rule::ToolName]);
    check_changed(
        |request, _| request.tools = Arc::new([tool("a", object.clone()), tool("a", object.clone())]),
        &[Rule::SecondTool],
    );
    check_changed(
        |request, _| request.tools = Arc::new([tool("a", serde_json::json!("string"))]),
        &[Rule::ToolParameters],
    );
}

#[test]
fn what_is_known_to_be_good_is_not_looked_at_again() {
    let mut request = request("u a+1 r1 u!");
    let Message::Assistant(assistant) = Arc::make_mut(&mut request.messages[1]) else {
        panic!("the second message is an answer");
    };
    let Some(Part::ToolCall(call)) = assistant.content.last_mut() else { panic!("it has a call") };
    call.arguments = "broken".to_owned();
    assert_eq!(super::check(&request, 3).len(), 1);
    assert_eq!(super::check(&request, 0).len(), 2);
}

//! Summaries: the honest one is accepted, and each bad one is bad in its own way.

use std::sync::Arc;

use greenroom_kernel::summary::{Style, SummaryKind, accept, merge_text, request_text};
use greenroom_kernel::{AssistantMessage, Message, Part, ToolCall};
use greenroom_provider::Purpose;

use super::*;

const INSTRUCTION: &str = "Write the record of the conversation above.";
const PREFIX_INSTRUCTION: &str = "Use exactly these headings:\n\n## Original Request\n## Early Progress";

const CONVERSATION: &str = "[User]: Fix the parser.\nNever touch the lexer.\n\n[Assistant]: I will look.\n\
    [Assistant tool calls]:\n  read({\"path\":\"src/parser.rs\"})\n  grep({\"pattern\":\"Token\"})\n\n\
    [Tool result] (read): 1\tpub fn parse_all(text: &str) {\n2\t}\n\n[Tool result] (grep): error: no such folder";

fn request(text: &str, cap: Option<u64>) -> SeenRequest {
    SeenRequest {
        model: "m".to_owned(),
        system: None,
        messages: vec![Arc::new(Message::user(text))],
        tools: Arc::new([]),
        settings: greenroom_provider::ModelSettings { output_tokens_max: cap, ..Default::default() },
        output_schema: None,
        session: None,
        purpose: Purpose::Summary,
        streamed: true,
        bytes: 0,
        tokens: 0,
        cached_tokens: 0,
    }
}

fn summary(conversation: &str, previous: &str, instruction: &str) -> String {
    let previous = if previous.is_empty() {
        String::new()
    } else {
        format!("<previous-summary>\n{previous}\n</previous-summary>\n\n")
    };
    let text = format!("<conversation>\n{conversation}\n</conversation>\n\n{previous}{instruction}");
    obedient(&request(&text, None))
}

#[track_caller]
fn check(summary: &str, parts: &[&str]) {
    for part in parts {
        assert!(summary.contains(part), "{part:?} is missing in:\n{summary}");
    }
}

#[test]
fn an_obedient_summary_has_all_headings_and_the_facts() {
    let text = summary(CONVERSATION, "", INSTRUCTION);
    check(
        &text,
        &[
            "## Goal\nFix the parser.\n",
            "## Constraints & Preferences\n- Never touch the lexer.",
            "## Progress\n### Done\n- [x] read `src/parser.rs`\n- [x] grep `Token`\n### In Progress\n- [ ] I will look.",
            "### Blocked\n- error: no such folder",
            "## Key Decisions",
            "## Next Steps\n1. ",
            "## Critical Context\n- Steps taken in this turn: 1",
            "pub fn parse_all",
        ],
    );
}

#[test]
fn a_previous_summary_is_merged_again_and_again() {
    let mut text = summary(CONVERSATION, "", INSTRUCTION);
    for number in 0..5 {
        let later = format!("[Assistant tool calls]:\n  read({{\"path\":\"src/file_{number}.rs\"}})");
        text = summary(&later, &text, INSTRUCTION);
    }
    check(
        &text,
        &["Fix the parser.", "Never touch the lexer.", "`src/parser.rs`", "file_0", "file_4", "turn: 6"],
    );
    assert_eq!(text.matches("## Goal").count(), 1);
    let fresh =
        summary("[User]: And now the lexer.\n[Assistant tool calls]:\n  read({})", &text, INSTRUCTION);
    check(&fresh, &["Fix the parser.", "The user then asked: And now the lexer.", "turn: 1"]);
}

#[test]
fn a_turn_prefix_has_its_own_headings() {
    let text = summary(CONVERSATION, "", PREFIX_INSTRUCTION);
    check(
        &text,
        &[
            "## Original Request\nFix the parser.", "## Early Progress\n- read `src",
            "## Context for the Kept Part",
        ],
    );
    assert!(!text.contains("## Goal"), "{text}");
}

#[test]
fn parts_are_merged() {
    let (one, two) =
        (summary(CONVERSATION, "", INSTRUCTION), summary("[User]: Also the docs.", "", INSTRUCTION));
    let parts = format!("<part number=\"1\">\n{one}\n</part>\n<part number=\"2\">\n{two}\n</part>");
    check(
        &summary(&parts, "", INSTRUCTION),
        &["Fix the parser.", "Never touch the lexer.", "`src/parser.rs`"],
    );
}

#[test]
fn an_obedient_summary_stays_within_its_cap() {
    let calls: String =
        (0..500).map(|n| format!("  read({{\"path\":\"src/some/long/path/{n}.rs\"}})\n")).collect();
    let text = format!(
        "<conversation>\n[User]: Go.\n[Assistant tool calls]:\n{calls}</conversation>\n{INSTRUCTION}"
    );
    for cap in [200, 400, 1_000, 100_000] {
        let summary = obedient(&request(&text, Some(cap)));
        assert!(tokens::count(&summary) <= cap * 8 / 10, "cap {cap}");
        check(&summary, &["## Goal", "## Progress", "## Next Steps", "## Critical Context"]);
    }
}

#[test]
fn every_kind_is_what_it_says() {
    let text = format!("<conversation>\n{CONVERSATION}\n</conversation>\n{INSTRUCTION}");
    let call = CallInfo { call: 0, session_call: 0, seed: 3 };
    for kind in Summariser::ALL {
        let reply = kind.reply(&request(&text, Some(1_000)), call);
        let headings = reply.text.matches("## ").count();
        let holds = match kind {
            Summariser::Obedient => headings >= 6 && reply.text.contains("src/parser.rs"),
            Summariser::Lossy => headings >= 6 && !reply.text.contains("src/parser.rs"),
            Summariser::Hostile => reply.text.contains("</summary>") && tokens::count(&reply.text) > 2_000,
            Summariser::Empty => reply.text.is_empty() && reply.calls.is_empty(),
            Summariser::Garbage | Summariser::Continues => headings == 0 && !reply.text.is_empty(),
            Summariser::ToolCalls => reply.calls.len() == 1,
            Summariser::CutOff => reply.finish == Some(StopReason::Length) && headings > 0,
        };
        assert!(holds, "{kind:?}: {reply:?}");
    }
}

/// Uses the runtime's own prompts and its own rules of acceptance.
#[track_caller]
fn check_accepted(kind: Summariser, what: SummaryKind, text: &str, cap: u64, is_accepted: bool) {
    let request = request(text, Some(cap));
    let reply = kind.reply(&request, CallInfo { call: 0, session_call: 0, seed: 3 });
    let mut content = vec![Part::Text(reply.text)];
    content.extend(reply.calls.into_iter().map(|call| {
        Part::ToolCall(ToolCall { id: "c".to_owned(), name: call.name, arguments: call.arguments })
    }));
    let answer = AssistantMessage::new(
        content,
        String::new(),
        String::new(),
        reply.finish.unwrap_or(StopReason::Stop),
    );
    let result = accept(&answer, what, cap, true);
    assert_eq!(result.is_ok(), is_accepted, "{kind:?}, {what:?}, cap {cap}: {result:?}");
}

#[test]
fn the_runtime_accepts_what_is_obedient_and_refuses_what_is_not() {
    let style = Style::default();
    let long = CONVERSATION.repeat(200);
    for cap in [300, 2_000, 13_000] {
        for transcript in [CONVERSATION, &long] {
            for what in [SummaryKind::History, SummaryKind::TurnPrefix, SummaryKind::Branch] {
                let text = request_text(what, transcript, Some("## Goal\nAn older goal."), &style, cap);
                check_accepted(Summariser::Obedient, what, &text, cap, true);
                check_accepted(Summariser::Lossy, what, &text, cap, true);
                for kind in [
                    Summariser::Empty,
                    Summariser::Garbage,
                    Summariser::ToolCalls,
                    Summariser::CutOff,
                    Summariser::Continues,
                ] {
                    check_accepted(kind, what, &text, cap, false);
                }
            }
            let parts = vec![summary(transcript, "", INSTRUCTION), summary(transcript, "", INSTRUCTION)];
            let text = merge_text(SummaryKind::History, &parts, &style, cap);
            check_accepted(Summariser::Obedient, SummaryKind::History, &text, cap, true);
        }
    }
    let text = request_text(SummaryKind::History, CONVERSATION, None, &style, 2_000);
    check_accepted(Summariser::Hostile, SummaryKind::History, &text, 2_000, false);
}

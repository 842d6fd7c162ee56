//! A conversation as Markdown, for people.
//!
//! Invariants: what a message contains cannot end its block: fences are longer than any in their text; the end of each
//! result is there, and nothing is left out.

use greenroom::SessionSummary;
use greenroom_formats::rfc3339;
use greenroom_kernel::ToolStatus;
use greenroom_kernel::text::joined_words;

use crate::operations::{Said, Speech};

#[cfg(test)]
mod tests;

/// Writes a conversation.
pub fn markdown(session: &SessionSummary, conversation: &[Said]) -> String {
    let title = session.shown_title().unwrap_or(&session.id);
    let mut out = format!("# {}\n\n", joined_words(title));
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            out.push_str(&format!("- {name}: {}\n", code(value)));
        }
    };
    fact("session", &session.id);
    fact("started", &rfc3339(session.created_at_ms));
    fact("model", &session.model);
    fact("folder", session.labels.get("folder").map_or("", String::as_str));
    let mut calls = Vec::new();
    for said in conversation {
        let at = rfc3339(said.at_ms);
        match &said.speech {
            Speech::User { text, .. } => heading(&mut out, "User", &at, text),
            Speech::Assistant { text, tool_calls, model, .. } => {
                if !text.trim().is_empty() {
                    heading(&mut out, &format!("Assistant ({})", joined_words(model)), &at, text);
                }
                calls.extend(
                    tool_calls
                        .iter()
                        .map(|call| (&call.call_id, call.name.as_str(), call.arguments.as_str())),
                );
            }
            Speech::Tool { call_id, status, text } => {
                let place = calls.iter().rposition(|(id, ..)| *id == call_id);
                let (name, arguments) = place.map_or(("tool", None), |place| {
                    let (_, name, arguments) = calls.remove(place);
                    (name, Some(arguments))
                });
                let how = match status {
                    ToolStatus::Ok => "",
                    ToolStatus::Error => " (failed)",
                    ToolStatus::Interrupted => " (interrupted)",
                };
                out.push_str(&format!("\n**Tool** {}{how}\n", code(name)));
                out.extend(arguments.map(|arguments| fenced("json", arguments)));
                out.push_str(&fenced("", text));
            }
            Speech::Shell { command, text, .. } => {
                out.push_str(&format!("\n**Command** {}\n", code(command)));
                out.push_str(&fenced("", text));
            }
            Speech::Custom { kind, text } => heading(&mut out, &joined_words(kind), &at, text),
            Speech::BranchSummary { text, .. } => {
                heading(&mut out, "Summary of an abandoned branch", &at, text)
            }
            Speech::Summary { text, tokens_before, tokens_after, .. } => {
                let after = tokens_after.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
                let title = format!("Compaction: {tokens_before} → {after} tokens");
                heading(&mut out, &title, &at, text);
            }
        }
    }
    out
}

fn heading(out: &mut String, who: &str, at: &str, text: &str) {
    out.push_str(&format!("\n## {who}\n\n<sub>{at}</sub>\n\n{}\n", text.trim_end()));
}

/// Returns the longest run of backticks in a text.
fn backticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

fn code(text: &str) -> String {
    let text = joined_words(text);
    let marks = "`".repeat(backticks(&text) + 1);
    let space = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{marks}{space}{text}{space}{marks}")
}

fn fenced(language: &str, text: &str) -> String {
    let fence = "`".repeat((backticks(text) + 1).max(3));
    format!("\n{fence}{language}\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

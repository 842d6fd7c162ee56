//! Limits that cut a text: what is left of a secret is recognised, or there is nothing left of it.

use std::sync::{Arc, Mutex};

use greenroom_kernel::redact::{RedactedLines, Redactor};

use super::*;
use crate::Progress;

/// The size of each text.
const BYTES: usize = 100_000;
const VALUE: &str = "Zq7!fuD3.wX9-kR5~tB1";
const TOKEN: &str = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8q";

/// Calls a tool. Returns what is recorded, and what people see meanwhile: redacted, as the runtime does it.
async fn shown(fixture: &Fixture, redactor: &Redactor, tool: &str, arguments: Value) -> String {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&lines);
    let progress = Progress::new(move |line| told.lock().expect("whole").push(line));
    let context = ToolContext { redactor: redactor.clone(), progress, ..context() };
    let result = fixture.call_with(tool, arguments, context).await;
    let text = blocks_text(&result.content);
    let mut state = RedactedLines::default();
    let lines: Vec<String> =
        lines.lock().expect("whole").drain(..).map(|line| state.redact(redactor, line)).collect();
    // Of the user's own files, only values are replaced.
    let text = if tool == "bash" { redactor.all(&text) } else { redactor.values(&text) };
    format!("{text}\n{}", lines.join("\n"))
}

#[tokio::test]
async fn tools_divide_no_secret() {
    let redactor = Redactor::with_shapes();
    redactor.add([("CANARY".to_owned(), VALUE.to_owned())]);
    let read = ("read", json!({ "path": "a" }));
    let grep = ("grep", json!({ "pattern": "^" }));
    let bash = ("bash", json!({ "command": "cat a" }));
    // The tool, the secrets, and where the text is cut.
    for ((tool, arguments), secrets, cut) in [
        (read, &[VALUE][..], 2_000),
        (grep, &[VALUE], 500),
        (bash.clone(), &[VALUE, TOKEN], 500),
        (bash.clone(), &[VALUE, TOKEN], 24 * 1024),
        (bash, &[VALUE, TOKEN], BYTES - 24 * 1024),
    ] {
        for secret in secrets {
            let mut replaced = 0;
            for before in (cut - secret.len() - 2..=cut + 2).step_by(3) {
                let mut text = format!("{}{secret}{}", &". ".repeat(BYTES)[..before], " .".repeat(BYTES));
                text.truncate(BYTES);
                let fixture = Fixture::new(&[("a", &text)]);
                let shown = shown(&fixture, &redactor, tool, arguments.clone()).await;
                for part in secret.as_bytes().windows(6) {
                    let part = std::str::from_utf8(part).expect("ASCII");
                    assert!(!shown.contains(part), "{tool}, {before} bytes before: {part:?} of {secret}");
                }
                replaced += usize::from(shown.contains("[redacted:"));
            }
            assert!(replaced > 0, "{tool} at {cut}: {secret} was never there as a whole");
        }
    }
}

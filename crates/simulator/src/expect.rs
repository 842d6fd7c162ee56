//! A scripted answer's expectations of the request that it answers.
//!
//! Invariants: an expectation examines one request and says in a sentence how it differs, with the actual
//! content.

use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

use greenroom_kernel::text::panic_text;
use greenroom_kernel::{Message, ToolResult};

use crate::seen::SeenRequest;

/// The maximum number of characters of a message that a failure shows.
const SHOWN_MAX: usize = 600;

/// An expectation of a request. See [`Answer::expect_user`](crate::Answer::expect_user) and its neighbours.
#[derive(Clone)]
pub struct Expectation {
    check: Arc<Check>,
    /// The location in the test; `None` if the expectation comes from a file.
    pub(crate) location: Option<&'static Location<'static>>,
}

type Check = dyn Fn(&SeenRequest) -> Result<(), String> + Send + Sync;

impl Expectation {
    pub(crate) fn new(
        location: &'static Location<'static>,
        check: impl Fn(&SeenRequest) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { check: Arc::new(check), location: Some(location) }
    }

    /// Expects the newest user message to contain this text.
    pub(crate) fn user(location: &'static Location<'static>, wanted: String) -> Self {
        Self::new(location, move |request| contains("the user says", &request.last_user_text(), &wanted))
    }

    /// Expects the instructions to contain this text.
    pub(crate) fn instructions(location: &'static Location<'static>, wanted: String) -> Self {
        Self::new(location, move |request| {
            contains("the instructions are", request.system.as_deref().unwrap_or_default(), &wanted)
        })
    }

    /// Expects a result of this tool since the model's newest answer to contain this text.
    pub(crate) fn tool_result(location: &'static Location<'static>, tool: String, wanted: String) -> Self {
        Self::new(location, move |request| {
            let new: Vec<&ToolResult> = new_results(request).collect();
            let of_tool: Vec<String> = new
                .iter()
                .filter(|result| result.tool_name == tool)
                .map(|result| greenroom_kernel::message::blocks_text(&result.content))
                .collect();
            if of_tool.iter().any(|text| text.contains(&wanted)) {
                return Ok(());
            }
            if of_tool.is_empty() {
                let others: Vec<&str> = new.iter().map(|result| result.tool_name.as_str()).collect();
                let others = if others.is_empty() { "no tool".to_owned() } else { others.join(", ") };
                return Err(format!(
                    "a result of the tool {tool:?} is expected that contains {wanted:?}, and {others} gave one"
                ));
            }
            contains(&format!("the tool {tool:?} gave"), &of_tool.join("\n"), &wanted)
        })
    }

    /// Returns how the request differs, if it does.
    pub(crate) fn failure(&self, request: &SeenRequest) -> Option<String> {
        // An `assert!` in a check is an expectation like any other.
        let checked = catch_unwind(AssertUnwindSafe(|| (self.check)(request)));
        let reason = checked.unwrap_or_else(|panic| Err(panic_text(&*panic).to_owned())).err()?;
        match self.location {
            Some(location) => Some(format!("{}:{}: {reason}", location.file(), location.line())),
            None => Some(reason),
        }
    }
}

impl fmt::Debug for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expectation").field(&self.location).finish()
    }
}

/// Equal only if they are the same expectation, by identity.
impl PartialEq for Expectation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.check, &other.check)
    }
}

/// Returns the tool results since the model's newest answer.
fn new_results(request: &SeenRequest) -> impl Iterator<Item = &ToolResult> {
    let is_answer = |message: &&Arc<Message>| matches!(***message, Message::Assistant(_));
    request.messages.iter().rev().take_while(move |message| !is_answer(message)).filter_map(|message| {
        match &**message {
            Message::ToolResult(result) => Some(result),
            Message::User(_) | Message::Assistant(_) => None,
        }
    })
}

fn contains(what: &str, text: &str, wanted: &str) -> Result<(), String> {
    if text.contains(wanted) {
        return Ok(());
    }
    Err(format!("{what} something that should contain\n    {wanted:?}\n  and is\n{}", quoted(text)))
}

/// Formats a text for a failure: indented, and truncated if it is long.
pub(crate) fn quoted(text: &str) -> String {
    if text.is_empty() {
        return "    (nothing)".to_owned();
    }
    let short: String = text.chars().take(SHOWN_MAX).collect();
    let left_out = text.chars().count().saturating_sub(SHOWN_MAX);
    let mut lines: Vec<String> = short.lines().map(|line| format!("    {line}")).collect();
    if left_out > 0 {
        lines.push(format!("    … {left_out} more characters"));
    }
    lines.join("\n")
}

//! The tool calls of a file, for formats whose results name only the call's id.
//!
//! Invariants: a result has the name of its call's tool, or none if the file has no such call; only a result that is
//! no failure declares files.

use std::collections::HashMap;

use greenroom_kernel::files::Touched;
use greenroom_kernel::message::{Block, ToolCall, ToolResult, ToolStatus};

/// The calls so far, by id. A repeated id denotes the newest call that has it.
#[derive(Debug, Default)]
pub(crate) struct Calls(HashMap<String, Called>);

#[derive(Debug)]
struct Called {
    tool: String,
    /// The files that the call touches if it succeeds.
    touches: Vec<Touched>,
}

impl Calls {
    /// Adds a call that touches these files.
    pub(crate) fn add(&mut self, call: &ToolCall, touches: Vec<Touched>) {
        self.0.insert(call.id.clone(), Called { tool: call.name.clone(), touches });
    }

    /// Returns the result of a call.
    pub(crate) fn result(&self, call_id: String, content: Vec<Block>, status: ToolStatus) -> ToolResult {
        let called = self.0.get(&call_id);
        ToolResult {
            tool_name: called.map(|called| called.tool.clone()).unwrap_or_default(),
            touched: called
                .filter(|_| status == ToolStatus::Ok)
                .map(|called| called.touches.clone())
                .unwrap_or_default(),
            call_id,
            content,
            status,
        }
    }
}

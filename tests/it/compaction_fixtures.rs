//! Fixtures for compaction tests: conversations of known sizes, a tool that touches files, and inspection of
//! the results.
//!
//! Invariants: a text made here contains its position (`m12.`), so that it can be found in a request or a
//! context.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom::Compacted;
use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_kernel::entry::{Compaction, Entry, EntryId, EntryKind};
use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{
    AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};
use greenroom_kernel::size::{Estimator, entry_reasoning_tokens, entry_tokens};
use greenroom_simulator::{
    Answer as Said, CallInfo, Function, LoggedRequest, Script, SeenRequest, Simulator,
};
use greenroom_tools::ToolOutput;

/// About this many tokens of text that begins with `name`.
pub(crate) fn text(name: &str, tokens: usize) -> String {
    let words = ["the", "file", "line", "test", "code", "path", "name", "with"];
    let mut out = name.to_owned();
    // Seven of these words are about six tokens.
    for index in 0..(tokens * 29 / 25).saturating_sub(name.len() / 4) {
        out.push(' ');
        out.push_str(words[(index + name.len()) % words.len()]);
    }
    out
}

pub(crate) fn user(said: impl Into<String>) -> Message {
    Message::user(said)
}

fn answer(content: Vec<Part>, stop: StopReason) -> Message {
    Message::Assistant(AssistantMessage::new(content, "simulator", "simulated", stop))
}

pub(crate) fn said(text: impl Into<String>) -> Message {
    answer(vec![Part::Text(text.into())], StopReason::Stop)
}

/// Returns an answer that calls `edit` or `read` once for each id, on this path.
pub(crate) fn calls(ids: &[&str], path: &str) -> Message {
    let call = |id: &&str| {
        Part::ToolCall(ToolCall {
            id: (*id).to_owned(),
            name: "read".into(),
            arguments: serde_json::json!({ "path": path }).to_string(),
        })
    };
    answer(ids.iter().map(call).collect(), StopReason::ToolCalls)
}

/// Returns the result of a call, which touched a file.
pub(crate) fn result(id: &str, text: impl Into<String>, touched: &[(&str, Touch)]) -> Message {
    Message::ToolResult(ToolResult {
        call_id: id.to_owned(),
        tool_name: "read".into(),
        content: vec![Block::Text(text.into())],
        status: ToolStatus::Ok,
        touched: touched
            .iter()
            .map(|(path, touch)| Touched { path: (*path).to_owned(), touch: *touch })
            .collect(),
    })
}

/// Entries of one straight path.
pub(crate) fn entries(kinds: impl IntoIterator<Item = EntryKind>) -> Vec<Arc<Entry>> {
    let entry = |(index, kind): (usize, EntryKind)| {
        let id = EntryId(index as u64);
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let reasoning_tokens = entry_reasoning_tokens(&kind);
        Arc::new(Entry {
            id,
            parent: id.0.checked_sub(1).map(EntryId),
            at_ms: 1,
            tokens,
            reasoning_tokens,
            origin: None,
            kind,
        })
    };
    kinds.into_iter().enumerate().map(entry).collect()
}

/// Returns a session that begins with these messages.
pub(crate) async fn opened(
    runtime: &Runtime,
    id: &str,
    agent: &Agent,
    messages: Vec<Message>,
) -> SessionHandle {
    let session = runtime.open(id, agent).await.unwrap();
    let path = entries(messages.into_iter().map(EntryKind::message));
    let leaf = path.last().map(|entry| entry.id);
    session.import(path, leaf).await.unwrap();
    session
}

/// `runs` runs of a question and an answer, each of about this many tokens, named `m0.`, `m1.` …
pub(crate) fn chat(runs: usize, tokens: usize) -> Vec<Message> {
    (0..runs)
        .flat_map(|run| {
            [user(text(&format!("m{}.", 2 * run), tokens)), said(text(&format!("m{}.", 2 * run + 1), tokens))]
        })
        .collect()
}

/// Answers with about this many tokens each.
pub(crate) fn talker(tokens: usize) -> impl Script {
    Function(move |_: &SeenRequest, info: CallInfo| {
        Said::text(text(&format!("answer {}.", info.session_call), tokens))
    })
}

/// Reads or changes a file.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct File {
    /// The file's path.
    path: String,
}

/// Returns an agent with `read` and `edit`, which declare their files, and return a text of about this many
/// tokens.
pub(crate) fn editor(window: u64, tokens: usize) -> Agent {
    let tool = move |touch: Touch| {
        move |file: File| async move {
            Ok::<_, ToolError>(ToolOutput::text(text(&file.path, tokens)).touching(file.path, touch))
        }
    };
    crate::support::agent(window).tool("read", tool(Touch::Read)).tool("edit", tool(Touch::Modified))
}

/// Returns the ends of compactions among these events.
pub(crate) fn ends(events: &[Arc<Event>]) -> Vec<Compacted> {
    let end = |event: &Arc<Event>| match &event.kind {
        EventKind::CompactionEnd(end) => Some(end.clone()),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}

/// Returns how many events have this name.
pub(crate) fn count(events: &[Arc<Event>], name: &str) -> usize {
    events.iter().filter(|event| event.kind.name() == name).count()
}

/// Returns the warnings among these events.
pub(crate) fn warnings(events: &[Arc<Event>]) -> Vec<String> {
    let warning = |event: &Arc<Event>| match &event.kind {
        EventKind::Warning { message } => Some(message.clone()),
        _ => None,
    };
    events.iter().filter_map(warning).collect()
}

/// Returns the requests to summarisers, in order.
pub(crate) fn asked(model: &Simulator) -> Vec<LoggedRequest> {
    model.requests().into_iter().filter(|logged| logged.request.purpose == Purpose::Summary).collect()
}

/// Returns the requests of runs, in order.
pub(crate) fn runs(model: &Simulator) -> Vec<LoggedRequest> {
    model.requests().into_iter().filter(|logged| logged.request.purpose == Purpose::Step).collect()
}

/// Returns all compactions of a session, oldest first.
pub(crate) async fn compactions(runtime: &Runtime, id: &str) -> Vec<(EntryId, Compaction)> {
    let entries = runtime.engine().load(id, EntryId(0)).await.unwrap();
    entries.iter().filter_map(|entry| Some((entry.id, entry.kind.as_compaction()?.clone()))).collect()
}

/// Returns the newest compaction of a session.
pub(crate) async fn newest(runtime: &Runtime, id: &str) -> Compaction {
    compactions(runtime, id).await.pop().expect("a compaction was installed").1
}

/// Checks that every call has exactly one result, directly after it, and that no result is without its call.
pub(crate) fn assert_paired(context: &[Arc<Message>]) {
    let mut open: HashSet<String> = HashSet::new();
    for message in context {
        match &**message {
            Message::ToolResult(result) => {
                assert!(open.remove(&result.call_id), "a result without a call: {}", result.call_id);
            }
            Message::User(_) | Message::Assistant(_) => {
                assert!(open.is_empty(), "calls without results: {open:?}");
                open.extend(message.tool_calls().map(|call| call.id.clone()));
            }
        }
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}

/// Returns the default settings, changed.
pub(crate) fn settings(change: impl FnOnce(&mut CompactionSettings)) -> CompactionSettings {
    let mut settings = CompactionSettings::default();
    change(&mut settings);
    settings
}

/// Returns a manual compaction that keeps about this much.
pub(crate) fn keep(tokens: u64) -> CompactOptions {
    CompactOptions { keep_recent: Some(tokens), ..CompactOptions::default() }
}

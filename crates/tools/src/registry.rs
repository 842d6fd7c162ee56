//! The tools of an agent by name, and the one place where calls are run.
//!
//! Invariants: [`Registry::run`] returns exactly one result for a call, whatever the model wrote and whatever
//! the tool does: unknown names, broken JSON, panics, floods of output and tools that never end all become
//! results that the model reads. Cancellation, the time limit and the grace period after both are decided
//! here and nowhere else. No result carries more than 1 MiB or 100,000 lines of text.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use greenroom_kernel::redact::Redactor;
use greenroom_kernel::text::panic_text;
use greenroom_kernel::{Block, ToolCall, ToolResult, ToolSpec, ToolStatus};
use serde_json::Value;

use crate::output::cap_blocks;
use crate::{Tool, ToolContext, ToolOutput, ToolsError, schema, similar};

/// The tools of an agent. Cloning is cheap; clones do not see each other's later changes.
#[derive(Clone)]
pub struct Registry {
    tools: Arc<Vec<Entry>>,
    specs: Arc<[ToolSpec]>,
}

/// A weak reference to a [`Registry`]. It can be upgraded as long as a clone of the registry exists.
#[derive(Clone)]
pub struct WeakRegistry {
    tools: Weak<Vec<Entry>>,
    specs: Weak<[ToolSpec]>,
}

impl WeakRegistry {
    /// Returns the registry; `None` once no clone of it is left.
    pub fn upgrade(&self) -> Option<Registry> {
        Some(Registry { tools: self.tools.upgrade()?, specs: self.specs.upgrade()? })
    }
}

#[derive(Clone)]
struct Entry {
    name: String,
    tool: Arc<dyn Tool>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { tools: Arc::default(), specs: Arc::from([]) }
    }
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a weak reference, which does not keep the tools alive.
    pub fn downgrade(&self) -> WeakRegistry {
        WeakRegistry { tools: Arc::downgrade(&self.tools), specs: Arc::downgrade(&self.specs) }
    }

    /// Whether the two are clones of each other and neither was changed since.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tools, &other.tools) && Arc::ptr_eq(&self.specs, &other.specs)
    }

    /// Adds a tool. A tool with the same name is replaced in its position.
    ///
    /// # Errors
    /// [`ToolsError::InvalidName`] if providers would reject its name, [`ToolsError::NotAnObject`] if its
    /// parameters are not an object.
    pub fn insert(&mut self, tool: impl Tool) -> Result<(), ToolsError> {
        self.insert_shared(Arc::new(tool))
    }

    /// As [`Registry::insert`], for a tool that is already shared.
    ///
    /// # Errors
    /// As [`Registry::insert`].
    pub fn insert_shared(&mut self, tool: Arc<dyn Tool>) -> Result<(), ToolsError> {
        let spec = tool.spec();
        let name = spec.name.clone();
        let valid = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        if !(1..=64).contains(&name.len()) || !name.chars().all(valid) {
            return Err(ToolsError::InvalidName { name });
        }
        if let Some(found) = schema::not_an_object(&spec.parameters) {
            return Err(ToolsError::NotAnObject { name, found });
        }
        // The order of insertion is kept: a provider's cache needs the same list each time.
        let mut specs = self.specs.to_vec();
        let tools = Arc::make_mut(&mut self.tools);
        match tools.iter().position(|entry| entry.name == name) {
            Some(place) => {
                tools[place] = Entry { name, tool };
                specs[place] = spec;
            }
            None => {
                tools.push(Entry { name, tool });
                specs.push(spec);
            }
        }
        self.specs = specs.into();
        Ok(())
    }

    /// Adds all tools of another registry; on equal names the other's tool wins.
    pub fn merge(&mut self, other: &Self) {
        for entry in other.tools.iter() {
            self.insert_shared(entry.tool.clone()).expect("it was checked when it was inserted");
        }
    }

    /// Returns the tool specifications sent to the model, in the order of insertion.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.clone()
    }

    /// Returns the tool of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|entry| entry.name == name).map(|entry| &entry.tool)
    }

    /// Returns the number of tools.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Runs one call and returns its result.
    ///
    /// When `context.cancel` fires or the time limit expires (the tool's [own](Tool::timeout), or else
    /// `time_limit`), the tool is told to stop and has its [grace period](Tool::grace) to shut down; then it
    /// is dropped. The status of a cancelled call is [`ToolStatus::Interrupted`], that of one that took too
    /// long [`ToolStatus::Error`], unless the tool still returned another result. Time spent waiting for a
    /// person does not count. Without a limit a call may take for ever.
    pub async fn run(
        &self,
        call: &ToolCall,
        context: ToolContext,
        time_limit: Option<Duration>,
    ) -> ToolResult {
        self.run_noting(call, context, time_limit, || None).await
    }

    /// As [`Self::run`]. When the time limit expires, the text returned by `note` is added to the result.
    pub async fn run_noting(
        &self,
        call: &ToolCall,
        context: ToolContext,
        time_limit: Option<Duration>,
        note: impl FnOnce() -> Option<String>,
    ) -> ToolResult {
        let redactor = context.redactor.clone();
        match self.output(call, context, time_limit, note).await {
            Some(output) => Self::result(call, output, &redactor),
            None => ToolResult::interrupted(call),
        }
    }

    /// Converts an output to the result of a call, within the limits of a result. `redactor` knows the secrets that
    /// may not be cut in two.
    pub fn result(call: &ToolCall, output: ToolOutput, redactor: &Redactor) -> ToolResult {
        ToolResult {
            call_id: call.id.clone(),
            tool_name: call.name.clone(),
            content: cap_blocks(output.content, redactor),
            status: output.status,
            touched: output.touched,
        }
    }

    /// Returns the call's output; `None` if it was cancelled and did not shut down in time.
    async fn output(
        &self,
        call: &ToolCall,
        mut context: ToolContext,
        time_limit: Option<Duration>,
        note: impl FnOnce() -> Option<String>,
    ) -> Option<ToolOutput> {
        let Some(tool) = self.get(&call.name).cloned() else {
            return Some(ToolOutput::error(self.unknown(&call.name)));
        };
        let arguments = match parse_arguments(&call.arguments) {
            Ok(arguments) => arguments,
            Err(wrong) => return Some(ToolOutput::error(wrong)),
        };
        let run = context.cancel.clone();
        if run.is_cancelled() {
            return Some(ToolOutput::interrupted("cancelled before it started; it took no effect"));
        }
        let time_limit = tool.timeout().or(time_limit);
        let pauses = context.questions.pauses().clone();
        let (stop, grace) = (run.child_token(), tool.grace());
        context.cancel = stop.clone();
        let redactor = context.redactor.clone();
        // The tool's own `call` may panic as well as its future.
        let mut running =
            pin!(AssertUnwindSafe(async move { tool.call(arguments, context).await }).catch_unwind());
        let ended = |result: Result<ToolOutput, Box<dyn std::any::Any + Send>>| {
            result.unwrap_or_else(|panic| panicked(&call.name, &redactor.all(panic_text(panic.as_ref()))))
        };
        let mut too_long = pin!(async {
            match time_limit {
                Some(limit) => {
                    pauses.sleep(limit).await;
                    limit
                }
                None => std::future::pending().await,
            }
        });
        let limit = tokio::select! {
            biased;
            result = &mut running => return Some(ended(result)),
            () = run.cancelled() => None,
            limit = &mut too_long => Some(limit),
        };
        let note = limit.and_then(|_| note());
        stop.cancel();
        let last = tokio::time::timeout(grace, running).await.ok().map(ended);
        match limit {
            Some(limit) if !run.is_cancelled() => Some(timed_out(limit, note, last)),
            Some(_) | None => last,
        }
    }

    fn unknown(&self, name: &str) -> String {
        let names = || self.tools.iter().map(|entry| entry.name.as_str());
        let mut known = similar::nearest(name, names(), usize::MAX);
        let nearest = known.first().map(|first| format!("; did you mean `{first}`?")).unwrap_or_default();
        let mut rest: Vec<&str> = names().filter(|name| !known.contains(name)).collect();
        known.append(&mut rest);
        if known.is_empty() {
            return format!("there is no tool `{name}`, and no other tool");
        }
        format!("there is no tool `{name}`{nearest}\ntools: {}", known.join(", "))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tools.iter().map(|entry| &entry.name)).finish()
    }
}

/// Parses the arguments of a call from their JSON text.
///
/// # Errors
/// A message for the model, if they are not valid JSON.
pub fn parse_arguments(arguments: &str) -> Result<Value, String> {
    if arguments.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_str(arguments).map_err(|error| {
        if error.is_eof() {
            format!(
                "the arguments end in the middle, after {} bytes, so the call was not run; send it again in full, \
                 in smaller parts if the answer was cut off",
                arguments.len()
            )
        } else {
            format!("the arguments are not valid JSON, so the call was not run: {error}")
        }
    })
}

/// Returns the output of a call that took longer than `limit`, and then ended with `last` or not at all.
fn timed_out(limit: Duration, note: Option<String>, last: Option<ToolOutput>) -> ToolOutput {
    let mut output = last.unwrap_or_else(|| ToolOutput::error("whether it took effect is not known"));
    if output.status != ToolStatus::Ok {
        output.status = ToolStatus::Error;
        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
        output.content.insert(0, Block::Text(format!("stopped after {limit:?}, the limit for a call{note}")));
    }
    output
}

fn panicked(name: &str, text: &str) -> ToolOutput {
    tracing::error!(tool = name, panic = text, "a tool panicked");
    ToolOutput::error(format!(
        "the tool crashed ({text}); it is not known whether the call took effect, so check before you repeat it"
    ))
}

#[cfg(test)]
mod tests;

//! Tools from functions: a closure over a typed argument becomes a [`Tool`], its schema from the type.
//!
//! Invariants: the handler runs only with arguments that fit its type; otherwise the model is told which field
//! is wrong and what was expected.
//!
//! The handler's error is the concrete [`ToolError`], not a type parameter, so that a closure that ends in
//! `Ok(format!("…"))` needs no annotation, and `?` still takes every error.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::output::cap_line;
use crate::{GRACE, Tool, ToolContext, ToolOutput, schema};

/// Why a tool's handler failed, as the model reads it. Every error converts into it with `?`.
///
/// It is not itself a [`std::error::Error`], as that would forbid the conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError(String);

impl ToolError {
    /// An error with this text, which the model reads.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            // Many errors repeat their cause in their own text.
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self(text)
    }
}

/// What a handler may return.
pub trait IntoToolOutput {
    /// As the output of a call.
    fn into_tool_output(self) -> ToolOutput;
}

impl IntoToolOutput for ToolOutput {
    fn into_tool_output(self) -> ToolOutput {
        self
    }
}

impl IntoToolOutput for String {
    fn into_tool_output(self) -> ToolOutput {
        ToolOutput::text(self)
    }
}

impl IntoToolOutput for &str {
    fn into_tool_output(self) -> ToolOutput {
        ToolOutput::text(self)
    }
}

impl IntoToolOutput for () {
    fn into_tool_output(self) -> ToolOutput {
        ToolOutput::text("done")
    }
}

/// A string as it is, anything else as JSON text.
impl IntoToolOutput for Value {
    fn into_tool_output(self) -> ToolOutput {
        match self {
            Self::String(text) => ToolOutput::text(text),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Array(_) | Self::Object(_) => {
                ToolOutput::text(self.to_string())
            }
        }
    }
}

/// A value that the model reads as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoToolOutput for Json<T> {
    fn into_tool_output(self) -> ToolOutput {
        match serde_json::to_string(&self.0) {
            Ok(text) => ToolOutput::text(text),
            Err(error) => ToolOutput::error(format!("the tool's result is not JSON: {error}")),
        }
    }
}

type Handler = dyn Fn(Value, ToolContext) -> BoxFuture<'static, ToolOutput> + Send + Sync;

/// A tool made of a function.
#[derive(Clone)]
pub struct FunctionTool {
    spec: ToolSpec,
    handler: Arc<Handler>,
    read_only: bool,
    grace: Duration,
}

impl FunctionTool {
    /// A tool whose arguments are a `T`, with a description for the model.
    pub fn new<T, O, F, Fut>(name: impl Into<String>, description: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + JsonSchema,
        O: IntoToolOutput,
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
    {
        Self { spec: ToolSpec { description: description.into(), ..spec::<T>(name) }, ..typed("", handler) }
    }

    /// With this moment for a cancelled call to end in order: see [`Tool::grace`].
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Marks it as one that changes nothing outside itself, so that calls of it may run at the same time.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}

/// A tool whose arguments are a `T`, described by `T`'s doc comment.
pub fn typed<T, O, F, Fut>(name: impl Into<String>, handler: F) -> FunctionTool
where
    T: DeserializeOwned + JsonSchema,
    O: IntoToolOutput,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
{
    typed_with(name, move |arguments, _context| handler(arguments))
}

/// As [`typed`], for a handler that wants to know of cancellation, or reports progress.
pub fn typed_with<T, O, F, Fut>(name: impl Into<String>, handler: F) -> FunctionTool
where
    T: DeserializeOwned + JsonSchema,
    O: IntoToolOutput,
    F: Fn(T, ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
{
    let spec = spec::<T>(name);
    let parameters = spec.parameters.to_string();
    let handler = move |arguments: Value, context: ToolContext| match parse::<T>(&arguments) {
        Err(wrong) => {
            let text = format!("invalid arguments {wrong}\nexpected: {}", cap_line(&parameters, 4_096));
            std::future::ready(ToolOutput::error(text)).boxed()
        }
        Ok(arguments) => {
            let running = handler(arguments, context);
            async move {
                match running.await {
                    Ok(output) => output.into_tool_output(),
                    Err(error) => ToolOutput::error(error.to_string()),
                }
            }
            .boxed()
        }
    };
    FunctionTool { spec, handler: Arc::new(handler), read_only: false, grace: GRACE }
}

fn spec<T: JsonSchema>(name: impl Into<String>) -> ToolSpec {
    let (parameters, description) = schema::of::<T>();
    ToolSpec { name: name.into(), description: description.unwrap_or_default(), parameters }
}

/// The arguments as a `T`, or where they are wrong and what was expected.
fn parse<T: DeserializeOwned>(arguments: &Value) -> Result<T, String> {
    // serde would take an array's items for the fields in turn.
    let no_arguments = match arguments {
        Value::Object(fields) => fields.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(format!("at the top: {}, expected an object", cap_line(&arguments.to_string(), 200)));
        }
    };
    match serde_path_to_error::deserialize::<_, T>(arguments) {
        Ok(parsed) => Ok(parsed),
        // `()` has the JSON form null, but models send an object always.
        Err(error) => match no_arguments.then(|| serde_json::from_value(Value::Null)) {
            Some(Ok(parsed)) => Ok(parsed),
            Some(Err(_)) | None => {
                let path = error.path().to_string();
                let place = if path == "." { "at the top".to_owned() } else { format!("at `{path}`") };
                Err(format!("{place}: {}", error.into_inner()))
            }
        },
    }
}

impl Tool for FunctionTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        (self.handler)(arguments, context)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn grace(&self) -> Duration {
        self.grace
    }
}

impl fmt::Debug for FunctionTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionTool").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

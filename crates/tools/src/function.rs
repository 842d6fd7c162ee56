//! Tools from functions: a function with a typed argument becomes a [`Tool`], with the schema derived from
//! the type.
//!
//! Invariants: the function runs only with arguments that fit their type; otherwise the model is told which
//! field is wrong and what was expected.
//!
//! The error type is the concrete [`ToolError`], not a type parameter, so that a closure that ends in
//! `Ok(format!("…"))` needs no annotation, and `?` still accepts every error. [`ToolFunction`] bounds only
//! the number of arguments; [`tool`] bounds their types, so that compiler errors name what is missing.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_kernel::redact::Redactor;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::output::cap_line;
use crate::{GRACE, Tool, ToolContext, ToolOutput, schema};

/// The error of a tool's function, as the model reads it. Every error converts into it with `?`, as do
/// `anyhow::Error`, `Box<dyn Error + Send + Sync>`, `String` and `&str`. The text includes the error's
/// causes.
///
/// It does not implement [`std::error::Error`], as that would prevent the conversion.
///
/// ```
/// use greenroom_tools::ToolError;
/// fn half(text: &str) -> Result<u32, ToolError> {
///     let number: u32 = text.parse()?;
///     if number % 2 == 1 {
///         return Err("only even numbers can be halved".into());
///     }
///     Ok(number / 2)
/// }
/// assert_eq!(half("8"), Ok(4));
/// assert_eq!(half("7"), Err(ToolError::new("only even numbers can be halved")));
/// assert_eq!(half("x"), Err(ToolError::new("invalid digit found in string")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError(String);

impl ToolError {
    /// Creates an error with this text, which the model reads.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Converts an error that implements `Display` but not [`std::error::Error`], for `map_err`.
    ///
    /// ```
    /// use greenroom_tools::ToolError;
    ///
    /// struct NoSuchCity(String);
    ///
    /// impl std::fmt::Display for NoSuchCity {
    ///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    ///         write!(f, "there is no city {}", self.0)
    ///     }
    /// }
    ///
    /// let looked_up: Result<u32, NoSuchCity> = Err(NoSuchCity("Olso".into()));
    /// assert_eq!(looked_up.map_err(ToolError::msg), Err(ToolError::new("there is no city Olso")));
    /// ```
    pub fn msg(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for ToolError {
    fn from(error: E) -> Self {
        let error = error.into();
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

/// Return types of a tool's function: a [`ToolOutput`], or anything that can be serialized. A string is sent
/// unchanged, `()` as "done", and everything else as JSON.
pub trait IntoToolOutput {
    /// Converts the value to the output of a call.
    fn into_tool_output(self) -> ToolOutput;
}

impl IntoToolOutput for ToolOutput {
    fn into_tool_output(self) -> ToolOutput {
        self
    }
}

impl<T: Serialize + 'static> IntoToolOutput for T {
    fn into_tool_output(self) -> ToolOutput {
        if TypeId::of::<T>() == TypeId::of::<()>() {
            return ToolOutput::text("done");
        }
        match serde_json::to_value(&self) {
            Ok(Value::String(text)) => ToolOutput::text(text),
            Ok(
                value
                @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)),
            ) => ToolOutput::text(value.to_string()),
            Err(error) => ToolOutput::error(format!(
                "the call took effect, and its result cannot be shown, since it is not JSON: {error}"
            )),
        }
    }
}

/// A function that can become a tool: an `async` function of its arguments, of its arguments and a
/// [`ToolContext`], or of no arguments. `Shape` distinguishes these, and the compiler infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a tool's function",
    label = "takes other arguments than a tool's function",
    note = "a tool's function takes nothing, one struct of arguments, or that and the `ToolContext`: \
            `|weather: Weather, context: ToolContext| async move {{ Ok(..) }}`"
)]
pub trait ToolFunction<Shape> {
    /// The type that the model's arguments are parsed into.
    type Arguments;
    /// The future that the function returns.
    type Future;

    /// Calls the function.
    fn call(&self, arguments: Self::Arguments, context: ToolContext) -> Self::Future;
}

impl<F: Fn() -> Fut, Fut> ToolFunction<fn() -> Fut> for F {
    type Arguments = ();
    type Future = Fut;

    fn call(&self, (): (), _: ToolContext) -> Fut {
        self()
    }
}

impl<F: Fn(A) -> Fut, A, Fut> ToolFunction<fn(A) -> Fut> for F {
    type Arguments = A;
    type Future = Fut;

    fn call(&self, arguments: A, _: ToolContext) -> Fut {
        self(arguments)
    }
}

impl<F: Fn(A, ToolContext) -> Fut, A, Fut> ToolFunction<fn(A, ToolContext) -> Fut> for F {
    type Arguments = A;
    type Future = Fut;

    fn call(&self, arguments: A, context: ToolContext) -> Fut {
        self(arguments, context)
    }
}

type Handler = dyn Fn(Value, ToolContext) -> BoxFuture<'static, ToolOutput> + Send + Sync;
type Check = dyn Fn(&Value) -> Result<(), String> + Send + Sync;
type Preview = dyn Fn(&Value) -> BoxFuture<'static, Option<String>> + Send + Sync;

/// A tool made from a function by [`tool`].
#[derive(Clone)]
#[must_use]
pub struct FunctionTool {
    spec: ToolSpec,
    handler: Arc<Handler>,
    check: Arc<Check>,
    preview: Option<Arc<Preview>>,
    read_only: bool,
    shows_own_files: bool,
    needs_exact_arguments: bool,
    resumable: bool,
    timeout: Option<Duration>,
    grace: Duration,
}

/// Makes a tool from an `async` function. Its arguments are one struct: the struct's doc comment describes
/// the tool, and its fields tell the model what to send. A [`ToolContext`] is an optional second parameter.
/// The function returns a [`ToolOutput`], anything that can be serialized, or a [`ToolError`], into which
/// every error converts with `?`.
///
/// ```
/// use greenroom_tools::{ToolContext, ToolError, tool};
///
/// /// Current weather for one city.
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Weather {
///     /// City name, e.g. "Oslo"
///     city: String,
/// }
///
/// // A closure, as it comes.
/// let weather = tool("weather", |asked: Weather| async move { Ok(format!("{}: 12 °C, rain", asked.city)) });
///
/// // A function, and what can be said besides.
/// async fn forecast(asked: Weather, context: ToolContext) -> Result<Vec<u32>, ToolError> {
///     context.progress.report(format!("asking for {}", asked.city));
///     Ok(vec![12, 9, 11])
/// }
/// let forecast = tool("forecast", forecast)
///     .describe("The temperatures of the next three days in a city.")
///     .read_only()
///     .timeout(std::time::Duration::from_secs(5));
///
/// // A function with another error than `ToolError`.
/// async fn stations(asked: Weather) -> Result<u32, std::io::Error> {
///     std::fs::read_to_string(asked.city).map(|text| text.lines().count() as u32)
/// }
/// let stations = tool("stations", |asked| async move { Ok(stations(asked).await?) });
/// ```
pub fn tool<Shape, F, Output>(name: impl Into<String>, function: F) -> FunctionTool
where
    F: ToolFunction<Shape> + Send + Sync + 'static,
    F::Arguments: DeserializeOwned + JsonSchema,
    F::Future: Future<Output = Result<Output, ToolError>> + Send + 'static,
    Output: IntoToolOutput,
{
    let spec = spec::<F::Arguments>(name);
    let parameters = spec.parameters.clone();
    let checked = parameters.clone();
    let check = move |arguments: &Value| read::<F::Arguments>(arguments, &checked).map(drop);
    let handler =
        move |arguments: Value, context: ToolContext| match read::<F::Arguments>(&arguments, &parameters) {
            Err(wrong) => std::future::ready(ToolOutput::error(wrong)).boxed(),
            Ok(arguments) => {
                let running = function.call(arguments, context);
                async move {
                    match running.await {
                        Ok(output) => output.into_tool_output(),
                        Err(error) => ToolOutput::error(error.to_string()),
                    }
                }
                .boxed()
            }
        };
    FunctionTool {
        spec,
        handler: Arc::new(handler),
        check: Arc::new(check),
        preview: None,
        read_only: false,
        shows_own_files: false,
        needs_exact_arguments: false,
        resumable: false,
        timeout: None,
        grace: GRACE,
    }
}

impl FunctionTool {
    /// Sets the tool description sent to the model, overriding the doc comment of the arguments.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.spec.description = description.into();
        self
    }

    /// Declares that the tool changes nothing outside itself. Consecutive calls of such tools in one answer
    /// run concurrently; all other calls run one after another, in the model's order.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Declares that the results are the user's own files, word for word: see [`Tool::shows_own_files`].
    pub fn shows_own_files(mut self) -> Self {
        self.shows_own_files = true;
        self
    }

    /// Declares that a call does not run if a secret in its arguments was replaced: see
    /// [`Tool::needs_exact_arguments`].
    pub fn needs_exact_arguments(mut self) -> Self {
        self.needs_exact_arguments = true;
        self
    }

    /// Declares that a call interrupted by a restart, while a person was asked or after the answer, may be
    /// run again from its beginning, with the recorded answers given to its questions.
    ///
    /// To make an effect happen only once, such a tool follows three rules. It asks the same questions in the
    /// same order whenever it is run with the same arguments; otherwise
    /// [`AskError::Changed`](crate::AskError::Changed) ends the call. Effects come after the last question.
    /// And since the program may die between the effect and the record of the call's result, the effect is
    /// keyed by [`ToolContext::call_key`], so that a repetition is recognised: for example as an idempotency
    /// key of a payment, or a primary key of a row.
    ///
    /// A call of any other tool is never run again. The model is told that the call was interrupted, and
    /// which answers were given.
    pub fn resumable(mut self) -> Self {
        self.resumable = true;
        self
    }

    /// Sets the time limit of one call. When it expires the call is cancelled, and the model is told that it
    /// was stopped after this time. It overrides the agent's `tool_timeout`, even if it is longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets what a person who is asked to approve a call sees of its effect: see [`Tool::preview`]. It must say the same
    /// as long as the effect is the same, because a call whose preview has changed does not run.
    pub fn preview(
        mut self,
        preview: impl Fn(&Value) -> BoxFuture<'static, Option<String>> + Send + Sync + 'static,
    ) -> Self {
        self.preview = Some(Arc::new(preview));
        self
    }

    /// Sets how long a cancelled call may take to shut down: see [`Tool::grace`].
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

fn spec<T: JsonSchema>(name: impl Into<String>) -> ToolSpec {
    let (parameters, description) = schema::of_arguments::<T>();
    ToolSpec { name: name.into(), description: description.unwrap_or_default(), parameters }
}

/// Returns the JSON schema of arguments of type `T`, as sent to the model, and their description: the doc
/// comment of the type.
pub fn arguments_schema<T: JsonSchema>() -> (Value, Option<String>) {
    schema::of_arguments::<T>()
}

/// Parses the arguments of a call as a `T`.
///
/// # Errors
/// A message for the model that says what is wrong and what was expected, if the arguments do not fit the
/// type.
pub fn read_arguments<T: DeserializeOwned + JsonSchema>(arguments: &Value) -> Result<T, String> {
    read(arguments, &arguments_schema::<T>().0)
}

fn read<T: DeserializeOwned>(arguments: &Value, parameters: &Value) -> Result<T, String> {
    let takes_any = parameters["properties"].as_object().is_some_and(serde_json::Map::is_empty);
    parse(arguments, takes_any).map_err(|wrong| {
        format!(
            "invalid arguments {wrong}\nexpected: {}",
            cap_line(&parameters.to_string(), 4_096, &Redactor::default())
        )
    })
}

/// Parses the arguments as a `T`, or reports where they are wrong and what was expected. `takes_any`: the
/// schema has no fields, so any arguments that a model sends are ignored.
fn parse<T: DeserializeOwned>(arguments: &Value, takes_any: bool) -> Result<T, String> {
    // serde would accept an array and assign its items to the fields in order.
    let no_arguments = match arguments {
        Value::Object(fields) => fields.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(format!(
                "at the top: {}, expected an object",
                cap_line(&arguments.to_string(), 200, &Redactor::default())
            ));
        }
    };
    match serde_path_to_error::deserialize::<_, T>(arguments) {
        Ok(parsed) => Ok(parsed),
        // The JSON form of `()` is null, but models always send an object.
        Err(error) => match (no_arguments || takes_any).then(|| serde_json::from_value(Value::Null)) {
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

    fn check(&self, arguments: &Value) -> Result<(), String> {
        (self.check)(arguments)
    }

    fn preview(&self, arguments: &Value) -> BoxFuture<'static, Option<String>> {
        match &self.preview {
            Some(preview) => preview(arguments),
            None => Box::pin(std::future::ready(None)),
        }
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn shows_own_files(&self) -> bool {
        self.shows_own_files
    }

    fn needs_exact_arguments(&self) -> bool {
        self.needs_exact_arguments || self.shows_own_files && !self.read_only
    }

    fn grace(&self) -> Duration {
        self.grace
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn is_resumable(&self) -> bool {
        self.resumable
    }
}

impl fmt::Debug for FunctionTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionTool").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

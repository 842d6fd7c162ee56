//! How a model is to answer: what a request carries besides the conversation.
//!
//! Invariants: a setting that is not set is not sent, so that the server's own default holds; fields of the body that
//! this crate writes itself cannot be given as `extra`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::openai::ResendReasoning;

#[cfg(test)]
mod tests;

/// How a model is to answer. Every setting is optional.
///
/// ```
/// use greenroom_provider::{ModelSettings, ReasoningEffort};
/// let settings = ModelSettings::new().temperature(0.2).reasoning_effort(ReasoningEffort::Low).extra("service_tier", "flex");
/// assert!(settings.check().is_ok());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// How random the answer is, 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Only the likeliest tokens that together have this probability, above 0 and up to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// How long the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Whether the model may, must or must not call tools. One that must call a tool must do so in the first step of
    /// a run only: else the run could not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether one answer may call several tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Texts at which the answer ends, before they are said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
    /// The same seed gives the same answer, as far as the server can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// The most output one answer may have, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u64>,
    /// Whether the reasoning of earlier answers is sent back, and in which field; without it the provider's option
    /// holds. What a request carries counts as context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resend_reasoning: Option<ResendReasoning>,
    /// More fields of the request's body, as the server knows them.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// How long a model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// As little as it can.
    Minimal,
    /// Little.
    Low,
    /// The usual amount.
    Medium,
    /// Long.
    High,
    /// As long as it can.
    XHigh,
}

impl ReasoningEffort {
    const ALL: [Self; 6] = [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::XHigh];

    /// The name, as servers know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
        }
    }
}

impl FromStr for ReasoningEffort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|effort| effort.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("there is no reasoning effort {text:?}; there are {names}")
        })
    }
}

/// Whether a model calls tools. Written as `auto`, `none`, `required`, or a tool's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "String", into = "String")]
pub enum ToolChoice {
    /// The model decides whether to call a tool.
    Auto,
    /// The model calls no tool.
    None,
    /// The model calls at least one tool.
    Required,
    /// It calls this one.
    Tool(String),
}

impl ToolChoice {
    /// Whether the model must call a tool.
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::Tool(_))
    }
}

impl From<String> for ToolChoice {
    fn from(text: String) -> Self {
        match text.as_str() {
            "auto" => Self::Auto,
            "none" => Self::None,
            "required" => Self::Required,
            _ => Self::Tool(text),
        }
    }
}

impl From<ToolChoice> for String {
    fn from(choice: ToolChoice) -> Self {
        choice.to_string()
    }
}

impl fmt::Display for ToolChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Required => "required",
            Self::Tool(name) => name,
        })
    }
}

/// A setting that no server would take, or that is not for `extra`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {reason}")]
pub struct SettingError {
    /// The setting, as users write it.
    pub setting: String,
    /// What the value must be.
    pub reason: String,
}

/// Fields of the body that are ours: by their names on the wire, and what to do instead.
const OWN_FIELDS: &[(&str, &str)] = &[
    ("model", "the agent names its model"),
    ("messages", "the session sends its own conversation"),
    ("stream", "the provider's option `stream` says whether answers are streamed"),
    ("stream_options", "a streamed answer always comes with its usage"),
    ("tools", "the agent names its tools"),
    ("n", "one answer is asked for at a time"),
    ("response_format", "ask for an answer of a type"),
    ("prompt_cache_key", "the provider's option `prompt_cache_key` says whether it is sent"),
    ("max_tokens", "set output_tokens_max"),
    ("max_completion_tokens", "set output_tokens_max"),
    ("temperature", "set temperature"),
    ("top_p", "set top_p"),
    ("reasoning_effort", "set reasoning_effort"),
    ("tool_choice", "set tool_choice"),
    ("parallel_tool_calls", "set parallel_tool_calls"),
    ("stop", "set stop"),
    ("seed", "set seed"),
];

impl ModelSettings {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`Self::temperature`](struct@ModelSettings).
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets `top_p`.
    #[must_use]
    pub fn top_p(mut self, top_p: f64) -> Self {
        self.top_p = Some(top_p);
        self
    }

    /// Sets `reasoning_effort`.
    #[must_use]
    pub fn reasoning_effort(mut self, effort: ReasoningEffort) -> Self {
        self.reasoning_effort = Some(effort);
        self
    }

    /// Sets `tool_choice`.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// Sets `parallel_tool_calls`.
    #[must_use]
    pub fn parallel_tool_calls(mut self, may: bool) -> Self {
        self.parallel_tool_calls = Some(may);
        self
    }

    /// Sets `stop`.
    #[must_use]
    pub fn stop<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.stop = Some(texts.into_iter().map(Into::into).collect());
        self
    }

    /// Sets `seed`.
    #[must_use]
    pub fn seed(mut self, seed: i64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets `output_tokens_max`.
    #[must_use]
    pub fn output_tokens_max(mut self, tokens: u64) -> Self {
        self.output_tokens_max = Some(tokens);
        self
    }

    /// Sets `resend_reasoning`.
    #[must_use]
    pub fn resend_reasoning(mut self, resend: ResendReasoning) -> Self {
        self.resend_reasoning = Some(resend);
        self
    }

    /// Adds a field to the request's body.
    #[must_use]
    pub fn extra(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(field.into(), value.into());
        self
    }

    /// These settings, and where `over` says otherwise, those.
    #[must_use]
    pub fn merged(self, over: Self) -> Self {
        let mut extra = self.extra;
        extra.extend(over.extra);
        Self {
            temperature: over.temperature.or(self.temperature),
            top_p: over.top_p.or(self.top_p),
            reasoning_effort: over.reasoning_effort.or(self.reasoning_effort),
            tool_choice: over.tool_choice.or(self.tool_choice),
            parallel_tool_calls: over.parallel_tool_calls.or(self.parallel_tool_calls),
            stop: over.stop.or(self.stop),
            seed: over.seed.or(self.seed),
            output_tokens_max: over.output_tokens_max.or(self.output_tokens_max),
            resend_reasoning: over.resend_reasoning.or(self.resend_reasoning),
            extra,
        }
    }

    /// Those that a summary is asked for with. A stop text would cut it, a forced tool is not offered, a seed is for
    /// answers that are compared, and its length is the compaction's own.
    #[must_use]
    pub fn for_summary(self) -> Self {
        let mut settings = self;
        settings.tool_choice = None;
        settings.parallel_tool_calls = None;
        settings.stop = None;
        settings.seed = None;
        settings.output_tokens_max = None;
        settings
    }

    /// Whether the settings can be sent.
    ///
    /// # Errors
    /// The first that cannot, and what it must be.
    pub fn check(&self) -> Result<(), SettingError> {
        let wrong = |setting: &str, reason: &str| {
            Err(SettingError { setting: setting.into(), reason: reason.into() })
        };
        if self.temperature.is_some_and(|value| !(0.0..=2.0).contains(&value)) {
            return wrong("temperature", "must be 0 to 2");
        }
        if self.top_p.is_some_and(|value| !(value > 0.0 && value <= 1.0)) {
            return wrong("top_p", "must be above 0 and at most 1");
        }
        if self.output_tokens_max == Some(0) {
            return wrong("output_tokens_max", "must be at least 1 token");
        }
        if self.stop.iter().flatten().any(String::is_empty) {
            return wrong("stop", "must not hold an empty text");
        }
        if matches!(&self.tool_choice, Some(ToolChoice::Tool(name)) if name.is_empty()) {
            return wrong("tool_choice", "must be `auto`, `none`, `required` or a tool's name");
        }
        match OWN_FIELDS.iter().find(|(field, _)| self.extra.contains_key(*field)) {
            Some((field, instead)) => {
                wrong(&format!("extra.{field}"), &format!("cannot be set here: {instead}"))
            }
            None => Ok(()),
        }
    }

    /// The setting that a server's refusal is about, if it is one of these that are set: by the parameter that it
    /// names, else by the first that its text names.
    pub(crate) fn refused(&self, body: &str) -> Option<String> {
        let refusal = Refusal::of(body)?;
        let set = self.set_fields();
        let by_param = set.iter().find(|field| refusal.is_by_param(field));
        let found = by_param.or_else(|| set.iter().find(|field| names_field(&refusal.text, field)));
        found.map(|field| match self.extra.contains_key(field) {
            true => format!("extra.{field}"),
            false => field.clone(),
        })
    }

    /// The fields that are sent for these settings, the output limit apart.
    fn set_fields(&self) -> Vec<String> {
        let named = [
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("reasoning_effort", self.reasoning_effort.is_some()),
            ("parallel_tool_calls", self.parallel_tool_calls.is_some()),
            ("tool_choice", self.tool_choice.is_some()),
            ("stop", self.stop.is_some()),
            ("seed", self.seed.is_some()),
        ];
        let named = named.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned());
        named.chain(self.extra.keys().cloned()).collect()
    }
}

/// What a server says of a request that it refuses.
struct Refusal {
    /// The parameter that the refusal is about.
    param: Option<String>,
    text: String,
}

impl Refusal {
    fn of(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_str(body).ok()?;
        let error = body.get("error").unwrap_or(&body);
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self { param: text("param"), text: text("message").unwrap_or_else(|| error.to_string()) })
    }

    fn is_by_param(&self, field: &str) -> bool {
        self.param.as_deref().is_some_and(|param| is_field(param, field))
    }
}

/// Whether a server's refusal is about the answer being asked for in pieces.
pub(crate) fn refuses_stream(body: &str) -> bool {
    const FIELDS: [&str; 2] = ["stream", "stream_options"];
    let Some(refusal) = Refusal::of(body) else { return false };
    FIELDS.iter().any(|field| refusal.is_by_param(field))
        || (refusal.param.is_none() && FIELDS.iter().any(|field| names_field(&refusal.text, field)))
}

/// Whether a server's parameter is this field: `reasoning.effort` is `reasoning_effort`, `stop[0]` is `stop`.
fn is_field(param: &str, field: &str) -> bool {
    let param = param.split('[').next().unwrap_or(param);
    param == field || param.replace('.', "_") == field
}

/// Whether a text names a field as a name: in quotes, after `loc` or a colon, not as a word of a sentence.
fn names_field(text: &str, field: &str) -> bool {
    let quoted = |quote: char| text.contains(&format!("{quote}{field}{quote}"));
    quoted('\'')
        || quoted('"')
        || quoted('`')
        || (field.contains('_') && text.contains(field))
        || text.ends_with(&format!(": {field}"))
}

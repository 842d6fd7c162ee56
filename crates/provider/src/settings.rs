//! Model settings: what a request carries besides the conversation.
//!
//! Invariants: an unset setting is not sent, so that the server's own default applies; fields of the body
//! that this crate writes itself cannot be given as `extra`.

use std::fmt;
use std::str::FromStr;

use greenroom_kernel::reasoning::ResentReasoning;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[cfg(feature = "http")]
mod refusal;
#[cfg(all(test, feature = "http"))]
mod tests;

#[cfg(feature = "http")]
pub(crate) use self::refusal::refuses_stream;

/// How a model should answer. Every setting is optional.
///
/// ```
/// use greenroom_provider::{ModelSettings, ReasoningEffort};
/// let settings = ModelSettings::new().temperature(0.2).reasoning_effort(ReasoningEffort::Low).extra("service_tier", "flex");
/// assert!(settings.check().is_ok());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct ModelSettings {
    /// Sampling temperature, 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling: the cumulative probability of the tokens that are considered, above 0 and up to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// How much the model reasons before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Whether the model may, must or must not call tools. A forced call applies to the first step of a run
    /// only: otherwise the run could not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether one answer may call several tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Texts at which the answer stops; they are not part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
    /// Seed for deterministic answers, as far as the server supports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// The output limit of one answer, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u64>,
    /// Whether the reasoning of earlier answers is sent back, and in which field. If unset, the provider's
    /// option applies. Everything that a request carries counts as context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resend_reasoning: Option<ResendReasoning>,
    /// Additional fields of the request's body, under the server's own names.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Whether the reasoning of earlier answers is sent back, and in which field. Configurations write the field's name, or
/// `never`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub enum ResendReasoning {
    /// Reasoning is not sent back, which is what most servers expect.
    #[default]
    #[serde(rename = "never")]
    Never,
    /// Reasoning is sent as `reasoning_content`, only to the provider that it came from.
    #[serde(rename = "reasoning_content")]
    AsReasoningContent,
    /// Reasoning is sent as `reasoning`, only to the provider that it came from.
    #[serde(rename = "reasoning")]
    AsReasoning,
}

impl ResendReasoning {
    /// Which reasoning a request to this provider carries. Chat completions have no place for opaque blocks.
    pub fn rule(self, provider: &str) -> ResentReasoning {
        let readable_of = match self {
            Self::Never => None,
            Self::AsReasoningContent | Self::AsReasoning => Some(provider.to_owned()),
        };
        ResentReasoning { readable_of, dialect: None, opaque_of: None }
    }
}

/// How much a model reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// The usual amount.
    Medium,
    /// Much.
    High,
    /// As much as possible.
    XHigh,
}

impl ReasoningEffort {
    /// All efforts, from the least on.
    pub const ALL: [Self; 6] = [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::XHigh];

    /// Returns the name on the wire.
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
            format!("unknown reasoning effort {text:?}; use one of {names}")
        })
    }
}

/// Whether a model calls tools. Written as `auto`, `none`, `required`, or a tool's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
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

/// A setting that no server would accept, or that is not allowed in `extra`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {reason}")]
#[non_exhaustive]
pub struct SettingError {
    /// The name of the setting, as users write it.
    pub setting: String,
    /// The requirement on the value.
    pub reason: String,
}

impl SettingError {
    /// An error about this setting.
    pub fn new(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { setting: setting.into(), reason: reason.into() }
    }
}

/// Fields of the body that are reserved, by their names on the wire, with what to use instead.
const OWN_FIELDS: &[(&str, &str)] = &[
    ("model", "the agent names its model"),
    ("messages", "the session sends its own conversation"),
    ("input", "the session sends its own conversation"),
    ("previous_response_id", "the session sends its own conversation"),
    ("conversation", "the session sends its own conversation"),
    ("contents", "the session sends its own conversation"),
    ("system", "the agent names its instructions"),
    ("instructions", "the agent names its instructions"),
    ("systemInstruction", "the agent names its instructions"),
    ("stream", "the provider's option `stream` controls streaming"),
    ("stream_options", "a streamed answer always comes with its usage"),
    ("tools", "the agent names its tools"),
    ("n", "requests always ask for one answer"),
    ("response_format", "request a typed answer instead"),
    ("prompt_cache_key", "the provider's option `prompt_cache_key` controls whether it is sent"),
    ("max_tokens", "set output_tokens_max"),
    ("max_completion_tokens", "set output_tokens_max"),
    ("max_output_tokens", "set output_tokens_max"),
    ("temperature", "set temperature"),
    ("top_p", "set top_p"),
    ("reasoning_effort", "set reasoning_effort"),
    ("tool_choice", "set tool_choice"),
    ("parallel_tool_calls", "set parallel_tool_calls"),
    ("stop", "set stop"),
    ("seed", "set seed"),
];

impl ModelSettings {
    /// Creates settings with nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `temperature`.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets `top_p`.
    pub fn top_p(mut self, top_p: f64) -> Self {
        self.top_p = Some(top_p);
        self
    }

    /// Sets `reasoning_effort`.
    pub fn reasoning_effort(mut self, effort: ReasoningEffort) -> Self {
        self.reasoning_effort = Some(effort);
        self
    }

    /// Sets `tool_choice`.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// Sets `parallel_tool_calls`.
    pub fn parallel_tool_calls(mut self, may: bool) -> Self {
        self.parallel_tool_calls = Some(may);
        self
    }

    /// Sets `stop`.
    pub fn stop<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.stop = Some(texts.into_iter().map(Into::into).collect());
        self
    }

    /// Sets `seed`.
    pub fn seed(mut self, seed: i64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets `output_tokens_max`.
    pub fn output_tokens_max(mut self, tokens: u64) -> Self {
        self.output_tokens_max = Some(tokens);
        self
    }

    /// Sets `resend_reasoning`.
    pub fn resend_reasoning(mut self, resend: ResendReasoning) -> Self {
        self.resend_reasoning = Some(resend);
        self
    }

    /// Adds a field to the request's body.
    pub fn extra(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(field.into(), value.into());
        self
    }

    /// Returns these settings, overridden by those set in `over`.
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

    /// Returns the settings for a summary. A stop text would truncate it, a forced tool is not offered, a
    /// seed is for answers that are compared, and the compaction sets the length.
    pub fn for_summary(self) -> Self {
        let mut settings = self;
        settings.tool_choice = None;
        settings.parallel_tool_calls = None;
        settings.stop = None;
        settings.seed = None;
        settings.output_tokens_max = None;
        settings
    }

    /// Checks that the settings can be sent.
    ///
    /// # Errors
    /// The first invalid setting, and the requirement on its value.
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
            return wrong("stop", "must not contain an empty text");
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
}

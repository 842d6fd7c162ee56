//! Flags for the model, the server, and the agent's permissions.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::Args;
use greenroom::permissions::Mode;
use greenroom::{ModelSettings, ReasoningEffort, ToolChoice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sandbox::ModeConfig;

/// The server of the model.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
#[command(next_help_heading = "Model")]
pub(crate) struct ServerArgs {
    /// Provider of the configuration to use [default: the configuration's choice, else openai]
    #[arg(long, value_name = "NAME", conflicts_with = "base_url")]
    pub(crate) provider: Option<String>,
    /// Base URL of the API, without /chat/completions [default: OPENAI_BASE_URL, else the provider's]
    ///
    /// An API other than chat completions must be chosen: --set providers.openai.api=anthropic, gemini or responses.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// Environment variable with the API key [default: the provider's; with --base-url OPENAI_API_KEY]
    #[arg(long, value_name = "VARIABLE", hide_short_help = true)]
    pub(crate) api_key_env: Option<String>,
    /// Whether the address is the one that a session kept: then a key is sent to it only if that was confirmed.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) is_kept: bool,
}

/// The person or program that answers questions and approvals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answers {
    /// A client, at any time.
    #[default]
    Client,
    /// The person at a chat or an editor.
    Person,
    /// Nobody: calls that would ask are denied.
    Nobody,
}

/// The model and the permissions of its agent.
#[derive(Debug, Clone, Args, Serialize, Deserialize, JsonSchema)]
#[command(next_help_heading = "Permissions")]
pub(crate) struct ModelArgs {
    /// What the agent may do without asking: read_only, ask (it asks before it changes a file or runs a command),
    /// accept_edits (it asks before it runs a command) or everything [default: the configuration's, else ask at a
    /// terminal and read_only elsewhere]
    #[arg(long, value_name = "MODE", conflicts_with_all = ["no_tools", "allow_write", "allow_shell"])]
    #[serde(default)]
    pub(crate) mode: Option<Mode>,
    /// Disable all tools
    #[arg(long, conflicts_with_all = ["allow_write", "allow_shell"])]
    #[serde(default)]
    pub(crate) no_tools: bool,
    /// Enable the tools write and edit, besides read, list and grep
    #[arg(long)]
    #[serde(default)]
    pub(crate) allow_write: bool,
    /// Enable the bash tool, which runs any command in a sandbox, and the tools that change files
    #[arg(long)]
    #[serde(default)]
    pub(crate) allow_shell: bool,
    /// Allow calls without asking, by a rule: 'bash(cargo test *)', 'write(src/**)', a tool's name (repeatable)
    #[arg(long, value_name = "RULE")]
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    /// Ask before these calls, regardless of the mode (repeatable)
    #[arg(long, value_name = "RULE")]
    #[serde(default)]
    pub(crate) ask: Vec<String>,
    /// Deny these calls, regardless of other rules and the mode: 'bash(git push *)', 'read(.env)' (repeatable)
    #[arg(long, value_name = "RULE")]
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    /// Sandbox of commands: auto, bubblewrap, landlock or off [default: the configuration's sandbox.mode, else auto]
    #[arg(long, value_name = "MODE", conflicts_with = "no_tools", hide_possible_values = true)]
    #[serde(default)]
    pub(crate) sandbox: Option<ModeConfig>,
    /// Folder of the tools; the file tools cannot read or change anything outside it
    #[arg(long, default_value = ".", value_name = "DIR")]
    #[serde(default = "here")]
    pub(crate) workspace: PathBuf,
    /// Model name [env: GREENROOM_MODEL] [default: the configuration's, else one that the provider has]
    #[arg(long, help_heading = "Model", value_name = "NAME")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    #[serde(default)]
    pub(crate) server: ServerArgs,
    /// Context window in tokens, if the catalogue has none or a wrong one
    #[arg(long, help_heading = "Model", value_name = "TOKENS", hide_short_help = true)]
    pub(crate) window: Option<u64>,
    /// Sampling temperature, 0 to 2
    #[arg(long, help_heading = "Model", value_name = "NUMBER", hide_short_help = true)]
    pub(crate) temperature: Option<f64>,
    /// Nucleus sampling: cumulative probability (top_p), above 0 and up to 1
    #[arg(long, help_heading = "Model", value_name = "NUMBER", hide_short_help = true)]
    pub(crate) top_p: Option<f64>,
    /// Reasoning effort: none, minimal, low, medium, high or xhigh
    #[arg(long, help_heading = "Model", value_name = "EFFORT")]
    pub(crate) effort: Option<ReasoningEffort>,
    /// Sampling seed, for reproducible answers if the server supports it
    #[arg(
        long,
        help_heading = "Model",
        value_name = "NUMBER",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub(crate) seed: Option<i64>,
    /// Stop sequence (repeatable)
    #[arg(long, help_heading = "Model", value_name = "TEXT", hide_short_help = true)]
    #[serde(default)]
    pub(crate) stop: Vec<String>,
    /// Maximum output tokens per answer
    #[arg(long, help_heading = "Model", value_name = "TOKENS", hide_short_help = true)]
    pub(crate) max_output_tokens: Option<u64>,
    /// Tool choice: auto, none, required (in the first step of a run), or a tool's name
    #[arg(long, help_heading = "Model", value_name = "CHOICE", hide_short_help = true)]
    pub(crate) tool_choice: Option<String>,
    /// System prompt, in place of the built-in one; file:NAME reads a file [default: the configuration's system_prompt]
    #[arg(long, help_heading = "Model", value_name = "TEXT", hide_short_help = true)]
    pub(crate) system: Option<String>,
    /// Text to append to the system prompt, after the configuration's append_system_prompt; file:NAME reads a file
    #[arg(long, help_heading = "Model", value_name = "TEXT", hide_short_help = true)]
    pub(crate) append_system: Option<String>,
    /// Use a simulated model in this process, over HTTP: no key, no server, no cost
    #[arg(long, help_heading = "Model", conflicts_with_all = ["provider", "base_url", "api_key_env"])]
    #[serde(default)]
    pub(crate) simulate: bool,
    /// Whether the folder of the tools was named by a flag.
    #[arg(skip)]
    #[serde(skip)]
    pub(crate) is_workspace_given: bool,
    /// The person or program that answers questions and approvals.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) answers: Answers,
    /// Whether no model is called, so that no key is needed.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) keyless: bool,
}

/// Returns the current folder.
fn here() -> PathBuf {
    PathBuf::from(".")
}

impl ModelArgs {
    /// Returns the defaults, for a command without these flags.
    pub(crate) fn bare() -> Self {
        #[derive(clap::Parser)]
        struct None {
            #[command(flatten)]
            model: ModelArgs,
        }
        <None as clap::Parser>::parse_from([""]).model
    }

    /// Returns the flags for an agent each of whose prompts sets its effort. An effort of the agent would apply where the
    /// user has chosen the default.
    pub(crate) fn without_effort(&self) -> Self {
        Self { effort: None, ..self.clone() }
    }

    /// Returns the model settings of the flags.
    pub(crate) fn settings(&self) -> ModelSettings {
        ModelSettings {
            temperature: self.temperature,
            top_p: self.top_p,
            reasoning_effort: self.effort,
            tool_choice: self.tool_choice.clone().map(ToolChoice::from),
            stop: (!self.stop.is_empty()).then(|| self.stop.clone()),
            seed: self.seed,
            output_tokens_max: self.max_output_tokens,
            ..ModelSettings::default()
        }
    }
}

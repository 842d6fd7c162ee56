//! Which model answers, which server is asked, and what the agent may do.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::Args;
use greenroom::{ModelSettings, ReasoningEffort, ToolChoice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which server is asked.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ServerArgs {
    /// Which of the configuration's providers to ask [default: the configuration's choice, else openai]
    #[arg(long, value_name = "NAME", conflicts_with = "base_url")]
    pub(crate) provider: Option<String>,
    /// Where the API is, up to and without /chat/completions [default: OPENAI_BASE_URL, else the provider's]
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// The environment variable that holds the key [default: the provider's; with --base-url OPENAI_API_KEY]
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) api_key_env: Option<String>,
}

/// Which model answers, and what it may do.
#[derive(Debug, Clone, Args, Serialize, Deserialize, JsonSchema)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// The model that answers [env: GREENROOM_MODEL] [default: the configuration's, else gpt-5.5]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    #[serde(default)]
    pub(crate) server: ServerArgs,
    /// The model's window in tokens, where the catalogue does not know it or is wrong
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
    /// How random the answers are, 0 to 2
    #[arg(long, value_name = "NUMBER")]
    pub(crate) temperature: Option<f64>,
    /// Only the likeliest tokens that together have this probability, above 0 and up to 1
    #[arg(long, value_name = "NUMBER")]
    pub(crate) top_p: Option<f64>,
    /// How long the model thinks: none, minimal, low, medium, high or xhigh
    #[arg(long, value_name = "EFFORT")]
    pub(crate) effort: Option<ReasoningEffort>,
    /// The same seed gives the same answer, as far as the server can
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
    /// A text at which an answer ends; may be given several times
    #[arg(long, value_name = "TEXT")]
    #[serde(default)]
    pub(crate) stop: Vec<String>,
    /// The most output one answer may have
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_output_tokens: Option<u64>,
    /// Whether the model calls tools: auto, none, required (in the first step of a run), or a tool's name
    #[arg(long, value_name = "CHOICE")]
    pub(crate) tool_choice: Option<String>,
    /// What the model is told of its work, in place of the built-in text; file:NAME reads a file [default: the
    /// configuration's system_prompt]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// What the model is told besides, after the configuration's append_system_prompt; file:NAME reads a file
    #[arg(long, value_name = "TEXT")]
    pub(crate) append_system: Option<String>,
    /// The folder that the tools work in; nothing outside can be read or changed by the file tools
    #[arg(long, default_value = ".", value_name = "DIR", help_heading = "What the agent may do")]
    #[serde(default = "here")]
    pub(crate) workspace: PathBuf,
    /// Offer the model no tools
    #[arg(long, conflicts_with_all = ["allow_write", "allow_shell"], help_heading = "What the agent may do")]
    #[serde(default)]
    pub(crate) no_tools: bool,
    /// Let the model change files: the tools write and edit, besides read, list and grep
    #[arg(long, help_heading = "What the agent may do")]
    #[serde(default)]
    pub(crate) allow_write: bool,
    /// Let the model run any command with your rights, and change files
    #[arg(long, help_heading = "What the agent may do")]
    #[serde(default)]
    pub(crate) allow_shell: bool,
    /// Use a simulated model inside this process, over HTTP: no key, no server, no cost
    #[arg(long, conflicts_with_all = ["provider", "base_url", "api_key_env"])]
    #[serde(default)]
    pub(crate) simulate: bool,
    /// Whether the model may ask the person at the terminal: a chat there says so.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) asks: bool,
    /// Whether the server may be asked nothing that needs a key.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) keyless: bool,
}

/// The current folder.
fn here() -> PathBuf {
    PathBuf::from(".")
}

impl ModelArgs {
    /// Those of a command that has no such flags.
    pub(crate) fn bare() -> Self {
        #[derive(clap::Parser)]
        struct None {
            #[command(flatten)]
            model: ModelArgs,
        }
        <None as clap::Parser>::parse_from([""]).model
    }

    /// How the flags say that the model is to answer.
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

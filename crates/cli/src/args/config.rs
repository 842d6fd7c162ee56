//! Flags of the commands about models and settings.
//!
//! Invariants: a flag is explained once, as its help.

use clap::{Args, Subcommand};

use super::ServerArgs;

/// `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(value_enum, value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: clap_complete::Shell,
}

/// `models`.
#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// Only models whose name holds this text
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Forget the limit that the server named for this model when it refused a request
    #[arg(long, value_name = "MODEL", conflicts_with = "filter")]
    pub(crate) forget: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print the defaults instead, as a file to begin with
    #[arg(long, conflicts_with_all = ["schema", "json"])]
    pub(crate) default: bool,
    /// Print the JSON schema of the file instead, for editors
    #[arg(long, conflicts_with = "json")]
    pub(crate) schema: bool,
    /// Print JSON: each setting's value and source
    #[arg(long)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
}

/// What is done with a single setting.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the value that holds here
    Get {
        /// The setting, such as compaction.threshold
        key: String,
        /// Print JSON: the value and its source
        #[arg(long)]
        json: bool,
    },
    /// Set it in your own file (or the one that --config names); comments and order stay
    Set {
        /// The setting, such as compaction.threshold or providers.local.base_url
        key: String,
        /// Its value, as it would stand in the file
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// In ./greenroom.yaml instead, which can choose and tighten
        #[arg(long)]
        project: bool,
    },
    /// Confirm the address that a file has for a provider: it gets no key before that
    Trust(ServerArgs),
    /// Take it out of your own file (or the one that --config names), so that what stands below holds again
    Unset {
        /// The setting
        key: String,
        /// Of ./greenroom.yaml instead
        #[arg(long)]
        project: bool,
    },
}

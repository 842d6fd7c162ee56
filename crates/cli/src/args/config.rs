//! Flags of the commands about models and settings.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ServerArgs, help};

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
    /// Show only models whose names contain this text
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Show the simulated model
    #[arg(long, conflicts_with_all = ["provider", "base_url", "api_key_env", "forget"])]
    pub(crate) simulate: bool,
    /// Forget the limit of this model that was learned from a rejected request
    #[arg(long, value_name = "MODEL", conflicts_with = "filter")]
    pub(crate) forget: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `login`.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The provider: openai, anthropic, google, or one of the configuration [default: by the form of the key]
    #[arg(value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
    /// Delete the stored key of this provider instead
    #[arg(long, requires = "provider")]
    pub(crate) forget: bool,
}

/// `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Check the cluster of this database, too: postgres://USER:PASSWORD@HOST/DATABASE [env: GREENROOM_STORE]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Check only the cluster, on a machine without a model's key for example
    #[arg(long)]
    pub(crate) cluster: bool,
    /// File with the cluster's secret, to check that its nodes have it [default: the variable GREENROOM_CLUSTER_SECRET]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<std::path::PathBuf>,
    /// Print JSON: each check with its result
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mcp`.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Show only this server
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print JSON: each server with its tools
    #[arg(long)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,
}

/// An action on one MCP server.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Add a server to your own file (or the one named by --config), and connect to it once
    #[command(after_help = help::MCP_ADD_EXAMPLES)]
    Add {
        /// A name for the server: letters, digits, hyphens and single underscores
        name: String,
        /// The address of a service, instead of a program
        #[arg(long, conflicts_with_all = ["command", "env", "folder"])]
        url: Option<String>,
        /// The environment variable with the token that the service gets
        #[arg(long, value_name = "VARIABLE", requires = "url")]
        token_env: Option<String>,
        /// A header of requests to the service, e.g. X-Team=docs or X-Key=env:MCP_KEY (repeatable)
        #[arg(long, value_name = "NAME=VALUE", requires = "url")]
        header: Vec<String>,
        /// A variable for the program, e.g. LOG_LEVEL=debug or GITHUB_TOKEN=env:GITHUB_TOKEN (repeatable)
        #[arg(long, value_name = "NAME=VALUE")]
        env: Vec<String>,
        /// The program's working folder: absolute, ~/… or {workspace}; your home folder unless set
        #[arg(long, value_name = "DIR")]
        folder: Option<String>,
        /// Only these of its tools, e.g. query,list_* (repeatable)
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        tools: Vec<String>,
        /// The program and its arguments, behind `--`
        #[arg(last = true, required_unless_present = "url", value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Remove a server from your own file (or the one named by --config)
    #[command(after_help = help::MCP_REMOVE_EXAMPLES)]
    Remove {
        /// The server's name
        name: String,
    },
}

/// `config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print the defaults instead, as a starting point for a file
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

/// An action on one setting.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective value
    Get {
        /// The setting, e.g. compaction.threshold
        key: String,
        /// Print JSON: the value and its source
        #[arg(long)]
        json: bool,
    },
    /// Set a value in your own file (or the one named by --config), keeping comments and order
    Set {
        /// The setting, e.g. compaction.threshold or providers.local.base_url
        key: String,
        /// The value, as in the file
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Edit ./greenroom.yaml instead, which can only select and tighten settings
        #[arg(long)]
        project: bool,
    },
    /// Confirm the address of a provider in a file, which receives no key until then; or trust a folder's files
    Trust {
        #[command(flatten)]
        server: ServerArgs,
        /// Trust the project in this folder, by default the current one: its AGENTS.md, skills, commands and texts of
        /// greenroom.yaml reach the model from then on
        #[arg(long, num_args = 0..=1, default_missing_value = ".", value_name = "DIR", conflicts_with_all = ["provider", "base_url", "api_key_env"])]
        folder: Option<PathBuf>,
    },
    /// Open your own file (or the one named by --config) in $VISUAL or $EDITOR, and check it afterwards
    Edit {
        /// Edit ./greenroom.yaml instead
        #[arg(long)]
        project: bool,
    },
    /// Print the path of your own file (or of the one named by --config); it need not exist yet
    Path {
        /// Print the path of ./greenroom.yaml instead
        #[arg(long)]
        project: bool,
    },
    /// Remove a value from your own file (or the one named by --config), so that the next lower layer applies
    Unset {
        /// The setting
        key: String,
        /// Edit ./greenroom.yaml instead
        #[arg(long)]
        project: bool,
    },
}

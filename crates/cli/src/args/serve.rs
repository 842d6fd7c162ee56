//! Flags of the commands that serve clients: `host`, `serve`, `rpc`, `acp`, `simulate`; and of `top`, which monitors
//! them.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ModelArgs;

/// `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Initial sort order: state (active first), context, tokens, cost, queue, age or id
    #[arg(long, value_enum, default_value_t = Sort::State, value_name = "COLUMN", hide_possible_values = true)]
    pub(crate) sort: Sort,
    /// Print JSON: the live sessions once
    #[arg(long)]
    pub(crate) json: bool,
}

/// The sort order of the table of `top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By activity: active first
    State,
    /// By context use
    Context,
    /// By total tokens
    Tokens,
    /// By cost
    Cost,
    /// By waiting input
    Queue,
    /// By the time since their run began
    Age,
    /// By id
    Id,
}

/// `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub(crate) listen: std::net::SocketAddr,
    /// Read the model's answers from this file, in the order of the calls; without answers, the model echoes its input
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Add an answer after those of the script (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub(crate) say: Vec<String>,
    /// Name in the list of models [default: simulated]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Context window in tokens [default: 128000]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) window: Option<u64>,
    /// API key that requests must present (401 otherwise)
    #[arg(long, value_name = "KEY")]
    pub(crate) require_key: Option<String>,
}

/// `host`.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Exit after this many seconds without clients and work [default: host.idle_s]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    /// limits.inputs_max of the command that starts the host; 0 for none
    #[arg(long, hide = true, requires_all = ["idle", "live_sessions_max"])]
    pub(crate) inputs_max: Option<usize>,
    /// limits.live_sessions_max of the command that starts the host; 0 for none
    #[arg(long, hide = true, requires = "inputs_max")]
    pub(crate) live_sessions_max: Option<usize>,
    /// `retention` of the command that starts the host, as JSON
    #[arg(long, hide = true, requires = "inputs_max")]
    pub(crate) retention: Option<String>,
    /// Stop the host of this store; a busy host refuses
    #[arg(long)]
    pub(crate) stop: bool,
    /// Stop even a busy host, with --stop: its runs are interrupted, and /continue resumes them
    #[arg(long, requires = "stop")]
    pub(crate) force: bool,
}

/// `rpc`.
#[derive(Debug, Args)]
pub(crate) struct RpcArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `acp`.
#[derive(Debug, Args)]
pub(crate) struct AcpArgs {
    /// Store a provider's API key instead, as `greenroom login` does: editors run this at a terminal
    #[arg(long)]
    pub(crate) login: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// A database that several nodes share.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// PostgreSQL database for the sessions, which other nodes can share: postgres://USER:PASSWORD@HOST/DATABASE [env:
    /// GREENROOM_STORE]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Name of this node, unique and the same after a restart [env: GREENROOM_NODE] [default: host and port of --advertise]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Address at which other nodes reach this one, e.g. http://10.0.0.5:7878 [env: GREENROOM_ADVERTISE] [default: --listen]
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// Keep this node's sessions for this many seconds after its last sign of life; then others take them over
    /// [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) lease: Option<f64>,
    /// File with the secret that all nodes share [default: the variable GREENROOM_CLUSTER_SECRET]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<std::path::PathBuf>,
}

/// `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: the configuration's, else 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Accept this additional name in the Host header: `build.example`, optionally with a port (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) host_name: Vec<String>,
    /// Wait this many seconds for a store that is in use, e.g. by another `serve` that is exiting, or for a database that
    /// is not available
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    pub(crate) wait_for_store: u32,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

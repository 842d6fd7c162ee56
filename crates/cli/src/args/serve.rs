//! Flags of the commands that serve others: `host`, `serve`, `rpc`, `simulate`; and of `top`, which watches them.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ModelArgs;

/// `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// What to sort by at first: state (at work first), context, tokens, cost, queue, age or id
    #[arg(long, value_enum, default_value_t = Sort::State, value_name = "COLUMN", hide_possible_values = true)]
    pub(crate) sort: Sort,
    /// Print JSON: the live sessions, once
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the table of `top` is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// What they do: at work first
    State,
    /// How full the context is
    Context,
    /// Their tokens in all
    Tokens,
    /// What they cost
    Cost,
    /// How much waits
    Queue,
    /// How long they have been at it
    Age,
    /// Their ids
    Id,
}

/// `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Where to listen: an address and a port; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub(crate) listen: std::net::SocketAddr,
    /// A file with the model's answers, in the order of the calls; without answers it says what it is told
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// An answer, after those of the script; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) say: Vec<String>,
    /// The model's name in the list of models [default: simulated]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// The model's window, in tokens [default: 128000]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) window: Option<u64>,
    /// The key that requests must bear; others get 401
    #[arg(long, value_name = "KEY")]
    pub(crate) require_key: Option<String>,
}

/// `host`.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// How long it stays without anybody connected and without anything at work [default: host.idle_s]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    /// What limits.inputs_max is, from whoever starts it in the background; 0 for none
    #[arg(long, hide = true, requires_all = ["idle", "live_sessions_max"])]
    pub(crate) inputs_max: Option<usize>,
    /// What limits.live_sessions_max is, from whoever starts it in the background; 0 for none
    #[arg(long, hide = true, requires = "inputs_max")]
    pub(crate) live_sessions_max: Option<usize>,
    /// End the host of this store; a host that is in use refuses
    #[arg(long)]
    pub(crate) stop: bool,
    /// With --stop: end it even while it is in use. Runs are interrupted, and /continue goes on with them later
    #[arg(long, requires = "stop")]
    pub(crate) force: bool,
}

/// `rpc`.
#[derive(Debug, Args)]
pub(crate) struct RpcArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen: an address and a port [default: the configuration's, else 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// A further name under which it is reached, as in the Host header: `build.example`, or with a port; may be given
    /// several times
    #[arg(long, value_name = "NAME")]
    pub(crate) host_name: Vec<String>,
    /// How long it waits for a store that is in use, as when it takes over from another `serve` that is ending
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    pub(crate) wait_for_store: u32,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

//! Flags of the commands that talk with an agent: `chat`, `run`, `resume`, `compact`, `demo`.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::Args;

use super::ModelArgs;

/// `resume`.
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The session's id or a prefix [default: the newest one of this folder]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Prompt to begin with
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `compact`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The session's id or a prefix
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Topic for the summary to focus on
    #[arg(long, value_name = "TEXT")]
    pub(crate) focus: Option<String>,
    /// How much of the newest conversation to keep, in tokens [default: the configuration's, else a quarter]
    #[arg(long, visible_alias = "keep", value_name = "TOKENS")]
    pub(crate) keep_recent: Option<u64>,
    /// Compact even if everything is recent enough to keep: all but the last two messages
    #[arg(long)]
    pub(crate) force: bool,
    /// Show what a compaction would do, without performing it; ID may also be a session file of Claude Code, Codex or
    /// pi
    #[arg(long, conflicts_with_all = ["focus", "force"])]
    pub(crate) dry_run: bool,
    /// Where to cut, with --dry-run: nearest (the first legal cut at or after the point where enough is kept) or
    /// turn_first (a turn's start near that point, if there is one) [default: the configuration's]
    #[arg(
        long,
        value_enum,
        value_name = "RULE",
        requires = "dry_run",
        hide_possible_values = true,
        hide_short_help = true
    )]
    pub(crate) cut: Option<super::Cut>,
    /// Token estimator, with --dry-run: char4 (four characters per token) or classes (by classes of characters, closer
    /// to real tokenizers) [default: the configuration's]
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        requires = "dry_run",
        hide_possible_values = true,
        hide_short_help = true
    )]
    pub(crate) estimator: Option<super::Estimator>,
    /// Last entry of the path, with --dry-run
    #[arg(long, value_name = "ID", requires = "dry_run", hide_short_help = true)]
    pub(crate) leaf: Option<String>,
    /// Print JSON: the outcome
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `undo`.
#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    /// The session's id or a prefix
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Take back everything after this entry [default: the last prompt and everything after it]
    #[arg(long, value_name = "ENTRY")]
    pub(crate) to: Option<u64>,
    /// Take back only the conversation
    #[arg(long, conflicts_with = "files")]
    pub(crate) conversation: bool,
    /// Take back only the files
    #[arg(long)]
    pub(crate) files: bool,
    /// Overwrite files that somebody else changed, too, after keeping their current content
    #[arg(long, conflicts_with = "conversation")]
    pub(crate) overwrite: bool,
    /// Abort a run in progress first; otherwise a working session is refused
    #[arg(long)]
    pub(crate) abort: bool,
    /// Change nothing; print what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Change files without confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print JSON: what was done to each file, and where the conversation continues
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `fork`.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The session's id or a prefix
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The new session's id [default: a free name]
    #[arg(value_name = "NEW")]
    pub(crate) to: Option<String>,
    /// Copy the conversation up to this entry only
    #[arg(long, value_name = "ENTRY", conflicts_with = "compact")]
    pub(crate) at: Option<u64>,
    /// Replace the conversation with a summary that focuses on this goal
    #[arg(long, value_name = "GOAL")]
    pub(crate) compact: Option<String>,
    /// Print JSON: the new session's id, and how it was summarised
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Context window of the simulated model, in tokens
    #[arg(long, default_value_t = 32_000, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(4_000..=2_000_000))]
    pub(crate) window: u64,
    /// Number of compactions to wait for
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) compactions: u64,
    /// Folder that the agent reads
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) workspace: PathBuf,
    /// Omit the pauses that make the demo watchable
    #[arg(long)]
    pub(crate) fast: bool,
}

/// `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Prompt to begin with
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,
    /// Session to resume, or to create under this name
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Resume the newest session of this folder
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub(crate) goes_on: bool,
    /// Resume a session: choose from a list, or give its id or a prefix
    #[arg(short = 'r', long = "resume", value_name = "ID", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["session", "goes_on"])]
    pub(crate) resume: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Prompt text; standard input, if piped, is appended to it
    #[arg(value_name = "PROMPT")]
    pub(crate) words: Vec<String>,
    /// Prompt text as a flag; without TEXT, the prompt is read from standard input
    #[arg(short, long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    pub(crate) prompt: Option<String>,
    /// Print JSON: one event per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Session to resume, or to create under this name
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Resume the newest session of this folder
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub(crate) goes_on: bool,
    /// Store no session, and use no host
    #[arg(long, conflicts_with_all = ["session", "goes_on"])]
    pub(crate) no_session: bool,
    /// Image to send with the prompt: PNG, JPEG, GIF or WebP (repeatable)
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,
    /// JSON schema for the answer: a file, or the schema itself. An invalid answer is sent back to the model with the
    /// error; the value is printed as JSON, and nothing else
    #[arg(long, value_name = "FILE|JSON")]
    pub(crate) output_schema: Option<String>,
    /// Cost limit in US dollars, as far as prices are known; it bounds the first call too
    #[arg(long, value_name = "USD", value_parser = dollars, allow_hyphen_values = true)]
    pub(crate) max_cost: Option<f64>,
    /// Time limit in seconds; after it the run is aborted, and partial output is kept
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) timeout: Option<u64>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

fn dollars(text: &str) -> Result<f64, String> {
    let usd = text.trim_start_matches('$').parse::<f64>().ok().filter(|usd| usd.is_finite() && *usd >= 0.0);
    usd.ok_or_else(|| "give an amount of US dollars, such as 0.50".to_owned())
}

fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse::<u64>().ok().filter(|seconds| *seconds > 0);
    seconds.ok_or_else(|| "give a whole number of seconds, at least 1".to_owned())
}

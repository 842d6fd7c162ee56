//! Flags of the commands that read and change stored data.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use greenroom_kernel::settings::Strategy;

use super::help;

/// `questions`.
#[derive(Debug, Args)]
pub(crate) struct QuestionsArgs {
    /// Show only the questions of this session: its id or a prefix
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Print JSON: one question per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `answer`.
#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The session's id or a prefix
    #[arg(value_name = "SESSION")]
    pub(crate) session: String,
    /// The question's number, as listed by `greenroom questions`
    #[arg(value_name = "QUESTION")]
    pub(crate) question: u64,
    /// The answer: a text or a choice; several choices and forms as JSON
    #[arg(value_name = "VALUE")]
    pub(crate) value: String,
    /// Name of the person who answers, for the log [default: $USER]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Approve a call without confirmation at a terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print JSON: the answered question
    #[arg(long)]
    pub(crate) json: bool,
}

/// `sessions`.
#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    /// Show at most this many, newest first; 0 for all [default: 50; all with --json]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) limit: Option<usize>,
    /// Show only sessions with this label (repeatable: all must match)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Show only sessions with unfinished work
    #[arg(long)]
    pub(crate) unfinished: bool,
    /// Show only sessions of this folder
    #[arg(long)]
    pub(crate) here: bool,
    /// Omit the one-shot sessions of `run`
    #[arg(long)]
    pub(crate) no_runs: bool,
    /// Show sessions of sub-agents too, below their callers
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is written NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The output format.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The session's id or a prefix; `greenroom sessions` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Show this compaction instead: the replaced part, the summary, missing facts, the cost. 1 is the oldest, `last`
    /// the newest
    #[arg(long, value_name = "N", value_parser = compaction)]
    pub(crate) compaction: Option<u64>,
    /// Show its branches instead
    #[arg(long, conflicts_with = "compaction")]
    pub(crate) tree: bool,
    /// Print JSON: the session's summary and its conversation
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses the number of a compaction; 0 stands for the newest.
fn compaction(text: &str) -> Result<u64, String> {
    match text.parse() {
        _ if text == "last" => Ok(0),
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a number from 1 on, or `last`".to_owned()),
    }
}

/// `recall`.
#[derive(Debug, Args)]
pub(crate) struct RecallArgs {
    /// The words to search for
    #[arg(value_name = "WORD", required = true)]
    pub(crate) query: Vec<String>,
    /// Search this session only: its id or a prefix
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Print at most this many entries
    #[arg(short = 'n', long, default_value_t = 10, value_name = "COUNT", value_parser = limit())]
    pub(crate) limit: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `usage`.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Label by whose values to show spending; NAME=VALUE shows one value
    #[arg(value_name = "LABEL")]
    pub(crate) label: Option<String>,
    /// Show hours instead of days
    #[arg(long)]
    pub(crate) hours: bool,
    /// Show this many hours or days, the current one included
    #[arg(short = 'n', long, default_value_t = 7, value_name = "COUNT")]
    pub(crate) last: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The parser of `recall --limit`.
fn limit() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser as _;
    clap::value_parser!(u8).range(1..=100).map(usize::from)
}

/// `eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Session files of other systems, or stored sessions' ids or prefixes
    #[arg(value_name = "FILE|ID", required = true)]
    pub(crate) sources: Vec<String>,
    /// Context window of the simulated model, in tokens
    #[arg(long, default_value_t = 32_000, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(4_000..=2_000_000))]
    pub(crate) window: u64,
    /// Strategy to compare: summarize, digest or truncate (repeatable) [default: summarize and digest]
    #[arg(long = "strategy", value_enum, value_name = "NAME", hide_possible_values = true)]
    pub(crate) strategies: Vec<EvalStrategy>,
    /// Simulated summariser: obedient (follows its instruction) or lossy (writes all headings, and almost nothing below
    /// them) (repeatable) [default: both]
    #[arg(
        long = "summariser",
        visible_alias = "summarizer",
        value_enum,
        value_name = "NAME",
        hide_possible_values = true
    )]
    pub(crate) summarisers: Vec<Summarises>,
    /// File of facts to look for, one JSON object per line: `question`, and `needles`, of which at least one must occur
    /// [default: FILE.facts.jsonl beside the file, else the facts that the ledger finds]
    #[arg(long, value_name = "FILE")]
    pub(crate) facts: Option<PathBuf>,
    /// Simulated duration of a summary, in seconds
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) summary_time: u64,
    /// Print JSON: a list with one object for each row
    #[arg(long)]
    pub(crate) json: bool,
}

/// The strategies that need no provider of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvalStrategy {
    /// A model writes summaries
    Summarize,
    /// No model: facts and the user's words
    Digest,
    /// No model: the oldest part is cut
    Truncate,
}

impl EvalStrategy {
    /// Returns the strategy of the settings.
    pub(crate) fn strategy(self) -> Strategy {
        match self {
            Self::Summarize => Strategy::Summarize,
            Self::Digest => Strategy::Digest,
            Self::Truncate => Strategy::Truncate,
        }
    }
}

/// The simulated summarisers that are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Summarises {
    /// Follows its instruction
    Obedient,
    /// Has all headings, and almost nothing below them
    Lossy,
}

/// The messages at which a plan may cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cut {
    /// The first legal cut at or after the point where enough is kept
    Nearest,
    /// A turn's start near that point, if there is one
    #[value(name = "turn_first", alias = "turn-first")]
    TurnFirst,
}

/// The token estimator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Estimator {
    /// Four characters per token
    Char4,
    /// By classes of characters: closer to real tokenizers
    Classes,
}

/// `delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Print JSON: the deleted sessions
    #[arg(long)]
    pub(crate) json: bool,
    /// Delete without confirmation, also if ID is a short prefix
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// The session's id or a prefix; a prefix of fewer than 4 characters needs --yes, or confirmation at the terminal
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read every entry of every session and list damage; exit code 3 if there is any
    #[command(after_help = help::STORE_CHECK_EXAMPLES)]
    Check(JsonArgs),
    /// Back up the store to a directory, even while it is in use
    #[command(after_help = help::STORE_BACKUP_EXAMPLES)]
    Backup(BackUpArgs),
    /// Verify every entry of a backup; exit code 3 if it is damaged
    #[command(after_help = help::STORE_VERIFY_EXAMPLES)]
    Verify(BackupArgs),
    /// Restore a backup to the directory of --data-dir; an existing store is not overwritten
    #[command(after_help = help::STORE_RESTORE_EXAMPLES)]
    Restore(RestoreArgs),
    /// Copy all sessions to a PostgreSQL database, or from one to --data-dir, and compare each entry
    #[command(after_help = help::STORE_COPY_EXAMPLES)]
    Copy(CopyArgs),
    /// Let a damaged session continue without its lost entries, and list them
    #[command(after_help = help::ACCEPT_LOSS_EXAMPLES)]
    AcceptLoss(AcceptLossArgs),
}

/// `store backup`.
#[derive(Debug, Args)]
pub(crate) struct BackUpArgs {
    #[command(flatten)]
    pub(crate) backup: BackupArgs,
    /// Back up a damaged store, too: the last backup is replaced, even if it has what the store lost
    #[arg(long)]
    pub(crate) damaged: bool,
}

/// The arguments of `store verify`, and some of `store backup` and `store restore`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The backup's directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `store restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) backup: BackupArgs,
    /// Restore a damaged backup too: sessions that lost entries are quarantined
    #[arg(long)]
    pub(crate) damaged: bool,
}

/// `store copy`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("direction").required(true))]
pub(crate) struct CopyArgs {
    /// Copy the sessions of --data-dir to this database: postgres://USER:PASSWORD@HOST/DATABASE [default:
    /// GREENROOM_STORE]
    #[arg(long, value_name = "URL", num_args = 0..=1, group = "direction")]
    pub(crate) to: Option<Option<String>>,
    /// Copy the sessions of this database to --data-dir [default: GREENROOM_STORE]
    #[arg(long, value_name = "URL", num_args = 0..=1, group = "direction")]
    pub(crate) from: Option<Option<String>>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Delete sessions whose last activity is older than this many days
    #[arg(long, value_name = "DAYS")]
    pub(crate) older_than_days: Option<u64>,
    /// Keep this many sessions, those with the newest activity
    #[arg(long, value_name = "NUMBER")]
    pub(crate) keep: Option<usize>,
    /// Consider only sessions with this label (repeatable: all must match)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// List the sessions, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `store accept-loss`.
#[derive(Debug, Args)]
pub(crate) struct AcceptLossArgs {
    /// The session's id or a prefix
    #[arg(value_name = "ID", required_unless_present = "segment", conflicts_with = "segment")]
    pub(crate) id: Option<String>,
    /// A damaged segment of unknown content, as named by `greenroom store check`
    #[arg(long, value_name = "NUMBER")]
    pub(crate) segment: Option<u64>,
    /// Print JSON: the accepted losses
    #[arg(long)]
    pub(crate) json: bool,
}

/// `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Session files; the format is detected (Claude Code, Codex, pi)
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON: one object per file
    #[arg(long)]
    pub(crate) json: bool,
}

/// `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The session's id or a prefix
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The format: pi (JSON Lines as pi writes them, version 3, with a line for each compaction), or markdown (the
    /// current branch, for people)
    #[arg(long, value_enum, default_value_t = ExportFormat::Pi, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) format: ExportFormat,
    /// Output file, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

/// The format of `export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// pi's session file, version 3.
    #[value(alias = "jsonl")]
    Pi,
    /// Markdown, for people.
    #[value(alias = "md")]
    Markdown,
}

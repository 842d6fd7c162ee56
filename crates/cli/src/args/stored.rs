//! Flags of the commands that read and change what is stored.
//!
//! Invariants: a flag is explained once, as its help.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::help;

/// `questions`.
#[derive(Debug, Args)]
pub(crate) struct QuestionsArgs {
    /// Only those of this session: its id, or the beginning of it
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Print JSON: one question a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `answer`.
#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The session, or the beginning of its id
    #[arg(value_name = "SESSION")]
    pub(crate) session: String,
    /// The question's number, as `greenroom questions` lists it
    #[arg(value_name = "QUESTION")]
    pub(crate) question: u64,
    /// The answer: a text or a choice; several choices and forms as JSON
    #[arg(value_name = "VALUE")]
    pub(crate) value: String,
    /// Who answers, for the log [default: $USER]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Print JSON: which question was answered
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tree`.
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    /// The session, or the beginning of its id
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print JSON: each place where a branch begins or ends
    #[arg(long)]
    pub(crate) json: bool,
}

/// `sessions`.
#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    /// Show at most so many, the newest; 0 for all
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Show only those with this label; given again: with all of these labels
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Show only those with work that was left undone
    #[arg(long)]
    pub(crate) unfinished: bool,
    /// Show only those of this folder
    #[arg(long)]
    pub(crate) here: bool,
    /// Show the sessions of sub-agents, too, each under the session that called it
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

/// Only the form of the output.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The session, or the beginning of its id; `greenroom sessions` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print JSON: what is known of it, and the conversation
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// A session file of another system, or a stored session's id or its beginning
    #[arg(value_name = "FILE|ID")]
    pub(crate) source: String,
    /// How much of the newest conversation to keep, in tokens [default: the configuration's, else a quarter]
    #[arg(long, visible_alias = "keep", value_name = "TOKENS")]
    pub(crate) keep_recent: Option<u64>,
    /// Where to cut: nearest (the first legal cut at or after the point where enough is kept) or turn_first (a turn's start
    /// near that point, if there is one) [default: the configuration's]
    #[arg(long, value_enum, value_name = "RULE", hide_possible_values = true)]
    pub(crate) cut: Option<Cut>,
    /// How sizes are estimated: char4 (a token for four characters) or classes (by classes of characters: nearer to what
    /// models count) [default: the configuration's]
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pub(crate) estimator: Option<Estimator>,
    /// The entry at which the path ends [default: the newest]
    #[arg(long, value_name = "ID")]
    pub(crate) leaf: Option<String>,
    /// The window to plan for, in tokens [default: the configuration's, else the session's or its model's, else 128000]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which messages a plan may cut at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cut {
    /// The first legal cut at or after the point where enough is kept
    Nearest,
    /// A turn's start near that point, if there is one
    #[value(name = "turn_first", alias = "turn-first")]
    TurnFirst,
}

/// How sizes are estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Estimator {
    /// A token for four characters
    Char4,
    /// By classes of characters: nearer to what models count
    Classes,
}

/// `delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Print JSON: what was deleted
    #[arg(long)]
    pub(crate) json: bool,
    /// Delete it without a question, also where ID is a short beginning
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// The session, or the beginning of its id; one of fewer than 4 characters needs --yes, or an answer at the terminal
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read every entry of every session, and list what is damaged; exit code 3 if anything is
    #[command(after_help = help::STORE_CHECK_EXAMPLES)]
    Check(JsonArgs),
    /// Let a damaged session go on without what it lost, and say what that is
    #[command(after_help = help::ACCEPT_LOSS_EXAMPLES)]
    AcceptLoss(AcceptLossArgs),
}

/// `store accept-loss`.
#[derive(Debug, Args)]
pub(crate) struct AcceptLossArgs {
    /// The session, or the beginning of its id
    #[arg(value_name = "ID", required_unless_present = "segment", conflicts_with = "segment")]
    pub(crate) id: Option<String>,
    /// A damaged segment of which nobody knows what it held, as `greenroom store check` names it
    #[arg(long, value_name = "NUMBER")]
    pub(crate) segment: Option<u64>,
    /// Print JSON: what was accepted
    #[arg(long)]
    pub(crate) json: bool,
}

/// `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Session files; the format is recognised (pi, versions 1 to 3)
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON: one object a file
    #[arg(long)]
    pub(crate) json: bool,
}

/// `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The session, or the beginning of its id
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The format: pi (JSON Lines as pi writes them, version 3, with a line for each compaction)
    #[arg(long, value_enum, default_value_t = ExportFormat::Pi, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) format: ExportFormat,
    /// Where to write it, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

/// What `export` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// pi's session file, version 3.
    #[value(alias = "jsonl")]
    Pi,
}

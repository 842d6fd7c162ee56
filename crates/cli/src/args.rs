//! What the command line can say: the commands, their flags, and the help that teaches them.
//!
//! It touches no other room.
//!
//! Invariants: what a flag means is written here once, as its help; nothing here holds the state
//! of the running program.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use greenroom_terminal::ColorChoice;

pub(crate) use self::config::{CompletionsArgs, ConfigArgs, ConfigCommand, ModelsArgs};
pub(crate) use self::model::{ModelArgs, ServerArgs};
pub(crate) use self::serve::{HostArgs, RpcArgs, ServeArgs, SimulateArgs, Sort, TopArgs};
pub(crate) use self::stored::{
    AcceptLossArgs, AnswerArgs, Cut, DeleteArgs, Estimator, ExportArgs, ImportArgs, JsonArgs, PlanArgs,
    QuestionsArgs, SessionsArgs, ShowArgs, StoreCommand, TreeArgs,
};
pub(crate) use self::talk::{ChatArgs, CompactArgs, DemoArgs, ResumeArgs, RunArgs};

mod config;
mod help;
mod model;
mod serve;
mod stored;
mod talk;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "greenroom",
    version,
    about = "Runs LLM agents whose conversations never outgrow their model's window.",
    after_help = help::EXIT_CODES,
    max_term_width = 110
)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Where sessions are kept [env: GREENROOM_DATA_DIR] [default: greenroom in the user's data directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// A configuration file, instead of ./greenroom.yaml and the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A setting of the configuration, such as compaction.threshold=0.7; may be given several times
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Keep all in this process: use no host, and start none
    #[arg(long, global = true)]
    pub(crate) no_host: bool,
    /// Tell what happens inside, on standard error; -vv tells more. A host tells it in host.log beside the store
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Whether to use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_parser = color_choice(), default_value = "auto", value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: ColorChoice,
}

/// How `--color` is read.
fn color_choice() -> impl TypedValueParser<Value = ColorChoice> {
    PossibleValuesParser::new(["auto", "always", "never"]).map(|when| match when.as_str() {
        "always" => ColorChoice::Always,
        "never" => ColorChoice::Never,
        _ => ColorChoice::Auto,
    })
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch an agent's context fill and shrink, with no key and no server
    #[command(after_help = help::DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Talk with an agent in the terminal
    #[command(after_help = help::CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Give one prompt and print the answer, for scripts
    #[command(after_help = help::RUN_EXAMPLES)]
    Run(RunArgs),
    /// List the stored sessions
    #[command(after_help = help::SESSIONS_EXAMPLES)]
    Sessions(SessionsArgs),
    /// Watch all live sessions of a host: what each does, its context, tokens and cost
    #[command(after_help = help::TOP_EXAMPLES)]
    Top(TopArgs),
    /// Show a stored session: what was said, and what was compacted
    #[command(after_help = help::SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Show the branches of a stored session
    #[command(after_help = help::TREE_EXAMPLES)]
    Tree(TreeArgs),
    /// Go on with a session in chat: the newest one of this folder, or the one that is named
    #[command(after_help = help::RESUME_EXAMPLES)]
    Resume(ResumeArgs),
    /// Replace the older part of a session by a summary, now
    #[command(after_help = help::COMPACT_EXAMPLES)]
    Compact(CompactArgs),
    /// Show what a compaction would do, without doing it
    #[command(after_help = help::PLAN_EXAMPLES)]
    Plan(PlanArgs),
    /// Import session files of other systems into the store
    #[command(after_help = help::IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// List the questions that tools ask and that wait for an answer
    #[command(after_help = help::QUESTIONS_EXAMPLES)]
    Questions(QuestionsArgs),
    /// Answer a question; its run goes on when its program opens the session
    #[command(after_help = help::ANSWER_EXAMPLES)]
    Answer(AnswerArgs),
    /// Write a stored session as a file for other systems
    #[command(after_help = help::EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Delete a stored session and all its entries, and the sessions of the agents that it called
    #[command(after_help = help::DELETE_EXAMPLES)]
    Delete(DeleteArgs),
    /// Look for damage in the store, and accept what is lost
    #[command(subcommand, after_help = help::STORE_HELP)]
    Store(StoreCommand),
    /// Serve other programs over HTTP, behind a token
    #[command(after_help = help::SERVE_HELP)]
    Serve(ServeArgs),
    /// Serve other programs: JSON-RPC 2.0, one line a message, on standard input and output
    #[command(after_help = help::RPC_EXAMPLES)]
    Rpc(RpcArgs),
    /// Hold the store for all terminals, in the background; `chat` and `run` start it by themselves
    #[command(after_help = help::HOST_EXAMPLES)]
    Host(HostArgs),
    /// Serve a simulated model over HTTP, for tests of programs in any language that talk to an OpenAI-compatible API
    #[command(after_help = help::SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// List the provider's models with their windows, output limits and prices, and where each comes from
    #[command(after_help = help::MODELS_HELP)]
    Models(ModelsArgs),
    /// Show the configuration that holds here and where each value comes from; get, set or unset one
    #[command(after_help = help::CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    /// Print a script that completes commands and flags in your shell
    #[command(after_help = help::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
}

#[cfg(test)]
mod tests;

//! The command line: the commands, their flags, and their help.
//!
//! May use `config`, for the types of values.
//!
//! Invariants: the meaning of a flag is written once, as its help; nothing here holds state of the running
//! program.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use greenroom_terminal::ColorChoice;

pub(crate) use self::config::{
    CompletionsArgs, ConfigArgs, ConfigCommand, DoctorArgs, LoginArgs, McpArgs, McpCommand, ModelsArgs,
};
pub(crate) use self::model::{Answers, ModelArgs, ServerArgs};
pub(crate) use self::serve::{
    AcpArgs, ClusterArgs, HostArgs, RpcArgs, ServeArgs, SimulateArgs, Sort, TopArgs,
};
pub(crate) use self::stored::{
    AcceptLossArgs, AnswerArgs, BackUpArgs, BackupArgs, CopyArgs, Cut, DeleteArgs, Estimator, EvalArgs,
    ExportArgs, ExportFormat, ImportArgs, JsonArgs, PruneArgs, QuestionsArgs, RecallArgs, RestoreArgs,
    SessionsArgs, ShowArgs, StoreCommand, Summarises, UsageArgs,
};
pub(crate) use self::talk::{
    ChatArgs, CompactArgs, DemoArgs, ForkArgs, InitArgs, ResumeArgs, RunArgs, UndoArgs,
};

mod config;
pub(crate) mod front;
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
    about = "Run LLM agents whose conversations never outgrow their model's window.",
    help_template = help::COMMANDS,
    disable_help_subcommand = false,
    max_term_width = 110
)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Global flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Directory for stored sessions [env: GREENROOM_DATA_DIR] [default: greenroom in the user's data directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file to use instead of ./greenroom.yaml and the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Override a setting of the configuration, e.g. compaction.threshold=0.7 (repeatable)
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Trust the files of the current folder's project in this command: AGENTS.md, skills, commands, texts of greenroom.yaml
    #[arg(long, global = true)]
    pub(crate) trust_folder: bool,
    /// Run in-process: don't connect to a host or start one
    #[arg(long, global = true)]
    pub(crate) no_host: bool,
    /// Log to standard error (repeat for more detail); a host logs to host.log beside the store
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Choose when to use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_parser = color_choice(), default_value = "auto", value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: ColorChoice,
}

/// The parser of `--color`.
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
    /// Watch an agent's context fill and shrink, without a key or a server
    #[command(after_help = help::DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Chat with an agent in the terminal; `greenroom` alone is the same
    #[command(after_help = help::CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Run one prompt and print the answer, for scripts; `greenroom -p` is the same
    #[command(after_help = help::RUN_EXAMPLES)]
    Run(RunArgs),
    /// List the stored sessions
    #[command(alias = "ls", after_help = help::SESSIONS_EXAMPLES)]
    Sessions(SessionsArgs),
    /// Monitor the live sessions of a host: activity, context, tokens and cost
    #[command(after_help = help::TOP_EXAMPLES)]
    Top(TopArgs),
    /// Show a stored session: its messages and compactions
    #[command(after_help = help::SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Search the stored sessions for words
    #[command(after_help = help::RECALL_EXAMPLES)]
    Recall(RecallArgs),
    /// Resume a session in chat: the newest one of this folder, or the given one
    #[command(alias = "continue", after_help = help::RESUME_EXAMPLES)]
    Resume(ResumeArgs),
    /// Replace the older part of a session with a summary now
    #[command(after_help = help::COMPACT_EXAMPLES)]
    Compact(CompactArgs),
    /// Take back the last prompt of a session: the conversation, the files, or both
    #[command(after_help = help::UNDO_EXAMPLES)]
    Undo(UndoArgs),
    /// Copy a session, or continue it in a new session with a goal and a summary
    #[command(after_help = help::FORK_EXAMPLES)]
    Fork(ForkArgs),
    /// Measure what compactions keep and cost, by replaying sessions with simulated summarisers
    #[command(after_help = help::EVAL_EXAMPLES)]
    Eval(EvalArgs),
    /// Import session files of other systems into the store
    #[command(after_help = help::IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// List the open questions that tools ask people
    #[command(after_help = help::QUESTIONS_EXAMPLES)]
    Questions(QuestionsArgs),
    /// Answer a question; the run continues when the program that asked opens the session
    #[command(after_help = help::ANSWER_EXAMPLES)]
    Answer(AnswerArgs),
    /// Export a stored session for other systems
    #[command(after_help = help::EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Delete a stored session, its entries, and the sessions of its sub-agents
    #[command(after_help = help::DELETE_EXAMPLES)]
    Delete(DeleteArgs),
    /// Delete sessions that exceed an age or a number, with the sessions of their sub-agents
    #[command(after_help = help::PRUNE_EXAMPLES)]
    Prune(PruneArgs),
    /// Back up the store and restore it, check it for damage, and accept losses
    #[command(subcommand, hide = true, after_help = help::STORE_HELP)]
    Store(StoreCommand),
    /// Serve an HTTP API, protected by a token
    #[command(after_help = help::SERVE_HELP)]
    Serve(ServeArgs),
    /// Serve JSON-RPC 2.0 on standard input and output, one message per line
    #[command(after_help = help::RPC_EXAMPLES)]
    Rpc(RpcArgs),
    /// Serve an editor: the Agent Client Protocol on standard input and output
    #[command(after_help = help::ACP_EXAMPLES)]
    Acp(AcpArgs),
    /// Run the background process that shares the store between terminals; `chat` and `run` start it automatically
    #[command(after_help = help::HOST_EXAMPLES)]
    Host(HostArgs),
    /// Serve a simulated model over HTTP, for tests: the APIs of OpenAI (chat completions, Responses), Anthropic and Gemini
    #[command(after_help = help::SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Show spending by day or hour, in total or by label
    #[command(after_help = help::USAGE_EXAMPLES)]
    Usage(UsageArgs),
    /// List the provider's models: windows, output limits, prices, and the source of each
    #[command(after_help = help::MODELS_HELP)]
    Models(ModelsArgs),
    /// Show the effective configuration and the source of each value; get, set or unset one
    #[command(after_help = help::CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    /// List the MCP servers of the configuration with their tools; add or remove one
    #[command(args_conflicts_with_subcommands = true, after_help = help::MCP_EXAMPLES)]
    Mcp(McpArgs),
    /// Store a provider's API key, so that it need not be in the environment
    #[command(alias = "auth", after_help = help::LOGIN_EXAMPLES)]
    Login(LoginArgs),
    /// Have the agent read this project and write its AGENTS.md
    #[command(after_help = help::INIT_EXAMPLES)]
    Init(InitArgs),
    /// Check the configuration, the key, the server, the store and the sandbox
    #[command(after_help = help::DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print a shell completion script
    #[command(after_help = help::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
}

impl Command {
    /// Returns the flags of the agent, if the command has them.
    pub(crate) fn model_mut(&mut self) -> Option<&mut ModelArgs> {
        match self {
            Self::Chat(args) => Some(&mut args.model),
            Self::Run(args) => Some(&mut args.model),
            Self::Resume(args) => Some(&mut args.model),
            Self::Init(args) => Some(&mut args.model),
            Self::Compact(args) => Some(&mut args.model),
            Self::Undo(args) => Some(&mut args.model),
            Self::Fork(args) => Some(&mut args.model),
            Self::Serve(args) => Some(&mut args.model),
            Self::Rpc(args) => Some(&mut args.model),
            Self::Acp(args) => Some(&mut args.model),
            Self::Demo(_)
            | Self::Sessions(_)
            | Self::Top(_)
            | Self::Show(_)
            | Self::Recall(_)
            | Self::Eval(_)
            | Self::Import(_)
            | Self::Questions(_)
            | Self::Answer(_)
            | Self::Export(_)
            | Self::Delete(_)
            | Self::Prune(_)
            | Self::Store(_)
            | Self::Host(_)
            | Self::Simulate(_)
            | Self::Usage(_)
            | Self::Models(_)
            | Self::Config(_)
            | Self::Mcp(_)
            | Self::Login(_)
            | Self::Doctor(_)
            | Self::Completions(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;

//! What the command line can say: the commands, their flags, and the help that teaches them.
//!
//! It touches no other room.
//!
//! Invariants: what a flag means is written here once, as its help; nothing here holds the state
//! of the running program.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use greenroom::{ModelSettings, ReasoningEffort, ToolChoice};
use greenroom_terminal::ColorChoice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod help;

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

/// `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(value_enum, value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: clap_complete::Shell,
}

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

/// `resume`.
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The session, or the beginning of its id [default: the newest one of this folder]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `compact`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The session, or the beginning of its id
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// What the summary is to dwell on
    #[arg(long, value_name = "TEXT")]
    pub(crate) focus: Option<String>,
    /// How much of the newest conversation to keep, in tokens [default: the configuration's, else a quarter]
    #[arg(long, visible_alias = "keep", value_name = "TOKENS")]
    pub(crate) keep_recent: Option<u64>,
    /// Also where everything is recent enough to keep: then all but the last two messages
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON: how it ended
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
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

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The simulated model's window, in tokens
    #[arg(long, default_value_t = 32_000, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(4_000..=2_000_000))]
    pub(crate) window: u64,
    /// How many compactions to wait for
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) compactions: u64,
    /// The folder that the agent reads in
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) workspace: PathBuf,
    /// Without the pauses that make it watchable
    #[arg(long)]
    pub(crate) fast: bool,
}

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

/// `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// The session to go on with, or to begin under this name
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Go on with the newest session of this folder
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub(crate) goes_on: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What to say; what is piped in on standard input follows it
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Print JSON: one event a line
    #[arg(long)]
    pub(crate) json: bool,
    /// The session to go on with, or to begin under this name
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Go on with the newest session of this folder
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub(crate) goes_on: bool,
    /// An image that goes with the prompt: PNG, JPEG, GIF or WebP; may be given several times
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,
    /// A JSON schema that the answer must fit: a file, or the schema itself. One that does not is sent back to the model
    /// with what is wrong; the value is printed as JSON, and nothing else
    #[arg(long, value_name = "FILE|JSON")]
    pub(crate) output_schema: Option<String>,
    /// The most that this run may cost, in US dollars, as far as prices are known; the first call is held to it too
    #[arg(long, value_name = "USD", value_parser = dollars, allow_hyphen_values = true)]
    pub(crate) max_cost: Option<f64>,
    /// How long it may take, in seconds; after that it is aborted, and what had come is kept
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

#[cfg(test)]
mod tests;

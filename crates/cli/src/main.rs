//! `greenroom`: a demo without a key, a chat, single prompts for scripts, and access to stored sessions.
//!
//! Everything that a program using the library could want is in `greenroom` instead.
//!
//! Its rooms, each of which uses only those below it: `commands` (a file for each command), `host` (the
//! runtime that they use, in another process or in this one), `agent` (from flags, configuration and
//! environment to an agent), `config` (the configuration files), `args` (the flags), `error` (messages and
//! exit codes). `greenroom-terminal` writes to the terminal; the chat is `greenroom-chat`.

mod commands;

mod host;

mod agent;

mod config;

mod args;

mod error;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context as _;
use greenroom_terminal::{ColorChoice, Screen, screen, time};
use greenroom_tools::{background, helper, privacy};
use rustix::process::{Resource, getrlimit};

use crate::args::front::{self, Unparsed};
use crate::args::{Command, Global, Options, StoreCommand};
use crate::commands::{
    acp, chat, compact, completions, demo, doctor, eval, export, fork, import, login, mcp, models, prune,
    questions, recall, rpc, run, serve, sessions, show, simulate, store, top, undo,
};
use crate::config::overrides::STORE;
use crate::config::surroundings::Surroundings;
use crate::host::log::{self, Logger};

fn main() -> ExitCode {
    if let Some(code) = helper::run_if_requested() {
        return code;
    }
    if completions::answer_if_asked() {
        return ExitCode::SUCCESS;
    }
    // Must be first: it may start this program again.
    let hidden = match privacy::hide() {
        Ok(hidden) => hidden,
        Err(error) => return end(Err(error.into())),
    };
    agent::keep_in_mind(hidden);
    let output = Screen::stdout(ColorChoice::Never);
    let is_watched = std::io::stdin().is_terminal() && output.is_watched();
    let mut options = match front::parse(std::env::args_os().collect(), is_watched) {
        Ok(options) => options,
        Err(Unparsed::Clap(said)) => return end_of_parsing(&said),
        Err(Unparsed::NoCommand(text)) => return end(Err(error::usage(text))),
    };
    // What is said before a configuration is read, and panics, show no secrets of the environment either.
    config::redact::note(&config::Config::default(), &Surroundings::here());
    say_panics();
    if let Err(error) = trust_folder(&mut options.global) {
        return end(Err(error));
    }
    let is_host = matches!(&options.command, Command::Host(args) if !args.stop);
    if is_host && let Err(error) = background::close_inherited() {
        return end(Err(error.into()));
    }
    if let Err(error) = check_limits() {
        return end(Err(error));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return end(Err(anyhow::Error::new(error).context("start the threads"))),
    };
    let traces = match Tracing::start(&options, &runtime) {
        Ok(traces) => traces,
        Err(error) => return end(Err(error)),
    };
    let logger = match is_host {
        true => Logger::Host,
        false if matches!(&options.command, Command::Serve(_)) => Logger::Server,
        false => Logger::Command,
    };
    log::start(&options.global, logger, traces.layer());
    let result = runtime.block_on(async {
        let result = perform(&options).await;
        // MCP servers get the time to end by themselves.
        greenroom_mcp::closed().await;
        result
    });
    traces.end();
    // A thread may still be reading from the terminal; nothing waits for it.
    runtime.shutdown_background();
    end(result)
}

/// Prints panics without secrets, with a backtrace if `RUST_BACKTRACE` asks for one.
fn say_panics() {
    std::panic::set_hook(Box::new(|panic| {
        screen::last_words(&error::secrets::redactor().all(&panic.to_string()));
        let backtrace = std::backtrace::Backtrace::capture();
        if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            screen::last_words(&backtrace.to_string());
        }
    }));
}

/// Makes `--trust-folder` a setting, which also reaches a host.
fn trust_folder(global: &mut Global) -> anyhow::Result<()> {
    if global.trust_folder {
        let here = std::env::current_dir().and_then(std::fs::canonicalize);
        let here =
            here.map_err(|error| error::usage(format!("the current folder cannot be used: {error}")))?;
        global.settings.push(format!("trusted_folders=[{here:?}]"));
    }
    Ok(())
}

/// The traces that are sent to a collector, if this build can and one is configured.
struct Tracing {
    #[cfg(feature = "otlp")]
    traces: Option<host::traces::Traces>,
}

#[cfg(feature = "otlp")]
impl Tracing {
    fn start(options: &Options, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Self> {
        Ok(Self { traces: host::traces::start(options, runtime.handle())? })
    }

    fn layer(&self) -> Option<host::log::BoxedLayer> {
        self.traces.as_ref().map(|traces| tracing_subscriber::Layer::boxed(traces.layer()))
    }

    fn end(self) {
        if let Some(warning) = self.traces.and_then(host::traces::Traces::end) {
            screen::last_words(&format!("warning: {warning}"));
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl Tracing {
    fn start(_: &Options, _: &tokio::runtime::Runtime) -> anyhow::Result<Self> {
        Ok(Self {})
    }

    fn layer(&self) -> Option<host::log::BoxedLayer> {
        None
    }

    fn end(self) {}
}

/// The fewest open files that a process must be allowed: the store, its index and the runtime need them.
const FILES_MIN: u64 = 14;

/// The least memory that a process must be allowed to map, in bytes: with less, threads and the index fail to
/// start, and the process aborts or hangs.
const MAPPED_MIN: u64 = 512 << 20;

/// Turns limits that would silently end the process into errors, and also a clock at which libraries panic.
fn check_limits() -> anyhow::Result<()> {
    time::check_clock(std::time::SystemTime::now()).map_err(error::usage)?;
    let mapped = getrlimit(Resource::As).current;
    if let Some(mapped) = mapped.filter(|mapped| *mapped < MAPPED_MIN) {
        return Err(error::usage(format!(
            "this process may map {} MiB of memory, and needs at least {}; raise it with `ulimit -v`",
            mapped >> 20,
            MAPPED_MIN >> 20
        )));
    }
    let allowed = getrlimit(Resource::Nofile).current;
    match allowed {
        Some(allowed) if allowed < FILES_MIN => Err(error::usage(format!(
            "this process may have {allowed} files open, and needs at least {FILES_MIN}; raise it with `ulimit -n`"
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Makes a write beyond `ulimit -f` an error; otherwise it would end the process.
fn outlive_file_size_limit() -> anyhow::Result<()> {
    let number = rustix::process::Signal::XFSZ.as_raw();
    // A handler is sufficient, and it stays installed.
    let handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(number));
    handled.map(drop).context("handle the limit of file sizes")
}

/// Whether a command uses the sessions in files and could be expected to use those of a database.
fn is_for_files(command: &Command) -> bool {
    match command {
        Command::Serve(_)
        | Command::Doctor(_)
        | Command::Mcp(_)
        | Command::Demo(_)
        | Command::Login(_)
        | Command::Eval(_)
        | Command::Completions(_)
        | Command::Host(_)
        | Command::Simulate(_)
        | Command::Models(_)
        | Command::Config(_)
        | Command::Store(StoreCommand::Copy(_)) => false,
        Command::Chat(_)
        | Command::Run(_)
        | Command::Sessions(_)
        | Command::Show(_)
        | Command::Recall(_)
        | Command::Resume(_)
        | Command::Init(_)
        | Command::Compact(_)
        | Command::Undo(_)
        | Command::Fork(_)
        | Command::Import(_)
        | Command::Questions(_)
        | Command::Answer(_)
        | Command::Export(_)
        | Command::Rpc(_)
        | Command::Acp(_)
        | Command::Delete(_)
        | Command::Prune(_)
        | Command::Store(_)
        | Command::Top(_)
        | Command::Usage(_) => true,
    }
}

async fn perform(options: &Options) -> anyhow::Result<u8> {
    outlive_file_size_limit()?;
    let global = &options.global;
    if is_for_files(&options.command) && Surroundings::here().variable(STORE).is_some() {
        agent::warn(
            global,
            &format!(
                "this command uses the sessions in files, not those of the database in {STORE}: use the API of \
                 `greenroom serve` for those"
            ),
        )?;
    }
    match &options.command {
        Command::Demo(args) => demo::run(global, args).await,
        Command::Chat(args) => chat::run(global, args).await,
        Command::Run(args) => run::run(global, args).await,
        Command::Sessions(args) => sessions::run(global, args).await,
        Command::Show(args) => show::run(global, args).await,
        Command::Recall(args) => recall::run(global, args).await,
        Command::Resume(args) => chat::resume(global, args).await,
        Command::Init(args) => chat::init(global, args).await,
        Command::Login(args) => login::run(global, args).await,
        Command::Doctor(args) => doctor::run(global, args).await,
        Command::Mcp(args) => mcp::run(global, args).await,
        Command::Compact(args) => compact::run(global, args).await,
        Command::Undo(args) => undo::run(global, args).await,
        Command::Fork(args) => fork::run(global, args).await,
        Command::Eval(args) => eval::run(global, args).await,
        Command::Completions(args) => completions::run(global, args),
        Command::Import(args) => import::run(global, args).await,
        Command::Questions(args) => questions::list(global, args).await,
        Command::Answer(args) => questions::answer(global, args).await,
        Command::Export(args) => export::run(global, args).await,
        Command::Serve(args) => serve::run(global, args).await,
        Command::Rpc(args) => rpc::run(global, args).await,
        Command::Acp(args) => acp::run(global, args).await,
        Command::Host(args) => commands::host::run(global, args).await,
        Command::Simulate(args) => simulate::run(global, args).await,
        Command::Delete(args) => sessions::delete(global, args).await,
        Command::Prune(args) => prune::run(global, args).await,
        Command::Store(command) => store::run(global, command).await,
        Command::Top(args) => top::run(global, args).await,
        Command::Models(args) => models::run(global, args).await,
        Command::Usage(args) => commands::usage::run(global, args).await,
        Command::Config(args) => commands::config::run(global, args),
    }
}

/// Handles clap's own output: a help, a version, or an error in the command line.
fn end_of_parsing(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(error) => end(Err(anyhow::Error::new(error).context("write standard output"))),
        Ok(()) => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(error::USAGE)),
    }
}

fn end(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) if error::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            screen::last_error(&error::line(&error));
            ExitCode::from(error::exit_code(&error))
        }
    }
}

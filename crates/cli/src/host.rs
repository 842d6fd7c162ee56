//! `greenroom host`: the process that holds the store for all terminals, and how other commands find and start it.
//!
//! Invariants: the socket is there only while the store's lock is held; it ends by itself when nobody is connected and
//! nothing is at work; of two that are started at the same time one ends at once, and its client finds the other.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use greenroom::Runtime;
use greenroom::tools::background;
use greenroom_server::operations::{ClientKind, Hello, HelloAnswer, PROTOCOL, StopHost};
use greenroom_server::{Client, ClientError, Host, ProblemKind};
use tokio::net::UnixListener;

use self::agents::{Agents, Definition, Nobody};
use crate::errors::{self, usage};
use crate::interrupt::Interrupts;
use crate::options::{Color, Global, HostArgs, ModelArgs};
use crate::setup;
use crate::surroundings::Surroundings;
use crate::terminal::Screen;

mod agents;
mod socket;

/// The log beside the store.
pub(crate) const LOG_FILE: &str = "host.log";
/// What a host says when it can be reached.
const READY: &str = "ready";
/// How long a client tries to reach a host that is starting or ending.
const REACH_WITHIN: Duration = Duration::from_secs(10);
/// How long it waits before it tries again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long a store may be in use by somebody who cannot be reached, before that is said.
const UNREACHED_MAX: Duration = Duration::from_secs(3);
/// How long it waits before it starts another one in the place of one that could not have the store.
const START_AGAIN_AFTER: Duration = Duration::from_millis(150);

/// Runs it, until nobody needs it.
pub(crate) async fn run(global: &Global, args: &HostArgs) -> Result<u8> {
    // It belongs to no terminal. Where it leads a group already, it was started by hand.
    let _ = rustix::process::setsid();
    match begin(global, args).await {
        Ok(code) => Ok(code),
        Err(error) => {
            // Whoever started it reads this as the reason.
            tell_starter(&format!("{} {}", errors::exit_code(&error), errors::line(&error)));
            Err(error)
        }
    }
}

async fn begin(global: &Global, args: &HostArgs) -> Result<u8> {
    if args.stop {
        return stop(global, args.force).await;
    }
    let interrupts = Interrupts::new()?;
    // The user's own file: that of the folder is another thing for each client.
    let config = setup::config(global)?.own;
    let idle_s = args.idle.unwrap_or(config.host.idle_s);
    let builder = Runtime::builder().provider(std::sync::Arc::new(Nobody)).data_dir(setup::data_dir(global)?);
    let runtime = setup::start(global, setup::limited(builder, &config.limits)).await?;
    let answering = Answering::begin(global, &runtime)?;
    tell_starter(READY);
    tracing::info!("the host answers; it ends after {idle_s} s without clients and work");
    tokio::select! {
        biased;
        () = interrupts.next() => {}
        () = answering.host.idle(Duration::from_secs(idle_s)) => {}
    }
    drop(answering);
    setup::end(runtime, async {}).await?;
    tracing::info!("the host has ended");
    Ok(0)
}

/// Says something to whoever started this, and that this is all.
fn tell_starter(text: &str) {
    let _ = Screen::stdout(Color::Never).line(text);
    // The other end waits for the end of it. Nothing else is ever written there.
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Answers other commands on the store's socket, as long as this is kept.
pub(crate) struct Answering {
    pub(crate) host: Host,
    accepting: tokio::task::JoinHandle<()>,
    path: PathBuf,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Answering {
    /// Begins to answer. `runtime` holds the lock of the store.
    ///
    /// # Errors
    /// When no socket can be made.
    pub(crate) fn begin(global: &Global, runtime: &Runtime) -> Result<Self> {
        let dir = setup::data_dir(global)?;
        let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
        let path = socket::path(&dir)?;
        let listener = socket::listen(&path)?;
        let global = Global { data_dir: Some(dir), config: None, settings: Vec::new(), ..global.clone() };
        let host = Host::new(runtime, Agents::new(&global), env!("CARGO_PKG_VERSION"));
        let accepting = tokio::spawn(accept(host.clone(), listener));
        Ok(Self { host, accepting, path })
    }
}

async fn accept(host: Host, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if socket::is_own(&stream) => {
                let host = host.clone();
                tokio::spawn(async move {
                    let (input, output) = stream.into_split();
                    host.serve(input, output).await;
                });
            }
            Ok(_) => tracing::warn!("a connection of another user was refused"),
            Err(error) => {
                // Too many files are open, for one: others may end.
                tracing::warn!("a connection was not accepted: {error}");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }
}

/// Who a client is.
pub(crate) struct Who<'a> {
    pub(crate) kind: ClientKind,
    /// What its agent is made of; without it, it can only look.
    pub(crate) agent: Option<&'a ModelArgs>,
    /// Whether it wants to hear at once that nobody answers at the server's address.
    pub(crate) checks_server: bool,
}

/// A connection to a host, and what it said.
pub(crate) struct Reached {
    pub(crate) client: Client,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

/// The host of the store, where there is one.
///
/// # Errors
/// It refuses this client, or speaks another protocol and is in use.
pub(crate) async fn reach(global: &Global, who: &Who<'_>) -> Result<Option<Reached>> {
    Reaching::new(global, who, None)?.reach().await
}

/// A connection to the host of the store, where there is one, for what needs no agent.
///
/// # Errors
/// As [`reach`].
pub(crate) async fn reach_to_look(global: &Global) -> Result<Option<Client>> {
    if global.no_host {
        return Ok(None);
    }
    let who = Who { kind: ClientKind::Watch, agent: None, checks_server: false };
    Ok(reach(global, &who).await?.map(|reached| reached.client))
}

/// The host of the store; where there is none, one is started.
///
/// # Errors
/// As [`reach`]; or none can be started.
pub(crate) async fn reach_or_start(global: &Global, who: &Who<'_>, idle_s: u64) -> Result<Reached> {
    let dir = setup::data_dir(global)?;
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let reached = Reaching::new(global, who, Some(idle_s))?.reach().await?;
    reached.ok_or_else(|| anyhow::anyhow!("no host could be reached or started"))
}

/// Ends the host of the store where it is idle, for a command that works on the store in its own process. One that is in
/// use stays, and then the store is in use.
///
/// # Errors
/// The socket is another user's.
pub(crate) async fn make_room(global: &Global) -> Result<()> {
    let dir = setup::data_dir(global)?;
    let stream = match dir.exists() {
        true => socket::connect(&socket::path(&dir)?).await?,
        false => None,
    };
    let Some(stream) = stream else { return Ok(()) };
    let (input, output) = stream.into_split();
    let client = Client::new(input, output);
    if client.call(StopHost { force: false }).await.is_err() {
        return Ok(());
    }
    client.closed().await;
    // Its lock goes with the rest of it.
    let began = Instant::now();
    while began.elapsed() < UNREACHED_MAX {
        let lock = std::fs::File::open(dir.join("lock"));
        if lock.is_ok_and(|lock| lock.try_lock_shared().is_ok()) {
            break;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Ok(())
}

/// Ends the host of the store.
async fn stop(global: &Global, force: bool) -> Result<u8> {
    let dir = setup::data_dir(global)?;
    let stream = match dir.exists() {
        true => socket::connect(&socket::path(&dir)?).await?,
        false => None,
    };
    let Some(stream) = stream else {
        return Err(usage(format!("no host answers for the store in {}", dir.display())));
    };
    let (input, output) = stream.into_split();
    let client = Client::new(input, output);
    client.call(StopHost { force }).await?;
    client.closed().await;
    Ok(0)
}

struct Reaching<'a> {
    dir: PathBuf,
    hello: Hello,
    global: &'a Global,
    /// How long a host that is started stays idle; `None`: none is started.
    idle_s: Option<u64>,
}

/// What came of one attempt.
enum Attempt {
    Reached(Reached),
    /// Nobody answers.
    Nobody,
    /// Somebody did, and is about to end.
    Again,
}

impl<'a> Reaching<'a> {
    fn new(global: &'a Global, who: &Who<'_>, idle_s: Option<u64>) -> Result<Self> {
        let definition = who.agent.map(|model| definition(global, model, who.checks_server)).transpose()?;
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: who.kind,
            definition,
        };
        Ok(Self { dir: setup::data_dir(global)?, hello, global, idle_s })
    }

    async fn reach(self) -> Result<Option<Reached>> {
        let began = Instant::now();
        // Whoever else holds the store, as the last host that was started had it.
        let mut in_use: Option<(Instant, anyhow::Error)> = None;
        loop {
            let attempt = match self.dir.exists() {
                true => self.attempt(&socket::path(&self.dir)?).await?,
                false => Attempt::Nobody,
            };
            match (attempt, self.idle_s) {
                (Attempt::Reached(reached), _) => return Ok(Some(reached)),
                (Attempt::Nobody, None) => return Ok(None),
                (Attempt::Nobody, Some(idle_s)) => match start(self.global, &self.dir, idle_s).await? {
                    Started::Ready => {}
                    Started::Failed { code, reason } if code != errors::STORE => {
                        return Err(Unstarted { code, reason }.into());
                    }
                    // Another one may have been quicker. Else it is a program that does not answer, or a broken store.
                    Started::Failed { code, reason } => {
                        let (since, _) =
                            in_use.get_or_insert_with(|| (Instant::now(), Unstarted { code, reason }.into()));
                        if since.elapsed() > UNREACHED_MAX
                            && let Some((_, error)) = in_use
                        {
                            return Err(error);
                        }
                        tokio::time::sleep(START_AGAIN_AFTER).await;
                    }
                },
                (Attempt::Again, _) => {}
            }
            if began.elapsed() > REACH_WITHIN {
                return match in_use {
                    Some((_, error)) => Err(error),
                    None => Err(ClientError::Disconnected.into()),
                };
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn attempt(&self, path: &Path) -> Result<Attempt> {
        let Some(stream) = socket::connect(path).await? else { return Ok(Attempt::Nobody) };
        let (input, output) = stream.into_split();
        let client = Client::new(input, output);
        match client.call(self.hello.clone()).await {
            Ok(HelloAnswer { warnings, .. }) => Ok(Attempt::Reached(Reached { client, warnings })),
            Err(ClientError::Disconnected) => Ok(Attempt::Again),
            Err(error) if error.kind() == Some(ProblemKind::Version) => {
                match client.call(StopHost { force: false }).await {
                    // It is idle, and ends.
                    Ok(_) | Err(ClientError::Disconnected) => Ok(Attempt::Again),
                    Err(busy) => Err(usage(format!(
                        "{error}; {busy}; wait until it is idle, or end it with the greenroom that started it: \
                         `greenroom host --stop`"
                    ))),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What a client says of its agent.
fn definition(global: &Global, model: &ModelArgs, checks_server: bool) -> Result<serde_json::Value> {
    let here = Surroundings::here();
    // What is wrong with the configuration is said here, as if there were no host.
    let loaded = setup::load_config(global, &here)?;
    let keys = loaded.config.providers.values().filter_map(|provider| provider.api_key_env.clone());
    let keys: Vec<String> = keys.chain(model.server.api_key_env.clone()).collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    Ok(serde_json::to_value(Definition {
        surroundings: Surroundings::hand_over(&keys)?,
        config: global.config.as_ref().map(absolute),
        settings: global.settings.clone(),
        model: Box::new(model.clone()),
        checks_server,
    })?)
}

/// What became of a host that was started.
enum Started {
    Ready,
    Failed { code: u8, reason: String },
}

/// Why a host that was started ended at once.
#[derive(Debug, Clone)]
pub(crate) struct Unstarted {
    /// The exit code that goes with it.
    pub(crate) code: u8,
    reason: String,
}

impl std::fmt::Display for Unstarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unstarted {}

async fn start(global: &Global, dir: &Path, idle_s: u64) -> Result<Started> {
    let dir = std::path::absolute(dir)?;
    let mut arguments: Vec<OsString> = vec!["host".into(), "--data-dir".into(), dir.into_os_string()];
    arguments.extend(["--idle".into(), idle_s.to_string().into()]);
    arguments.extend(std::iter::repeat_n("-v".into(), usize::from(global.verbose)));
    let said = tokio::task::spawn_blocking(move || background::start(&arguments)).await?;
    let said = said.context("start a host in the background (--no-host does without one)")?;
    let last = said.lines().next_back().unwrap_or_default();
    if last == READY {
        return Ok(Started::Ready);
    }
    Ok(match last.split_once(' ').and_then(|(code, reason)| Some((code.parse().ok()?, reason))) {
        Some((code, reason)) => Started::Failed { code, reason: reason.to_owned() },
        None => Started::Failed {
            code: errors::FAILED,
            reason: format!(
                "the host that was started in the background ended without a word; {LOG_FILE} beside the store may say \
                 why, and --no-host does without one"
            ),
        },
    })
}

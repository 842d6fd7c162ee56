//! How commands find the host of a store, and start one if there is none.
//!
//! Invariants: a host that ends during an attempt is tried again or replaced, and is never the reason for a failure;
//! whatever a host does, reaching it takes a limited time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom_files::private;
use greenroom_server::operations::{
    ClientKind, Hello, HelloAnswer, Operation as _, PROTOCOL, StopHost, Stopping,
};
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_terminal::Screen;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::AGAIN_AFTER;
use super::agents::Definition;
use super::connection::ATTEMPTS;
use super::error::{Unreached, holder, is_silent};
use super::socket::{self, Connected};
use super::spawn::{self, Started, Starts, Terms};
use super::watchdog::{self, Patience, RawWatch, Serving};
use crate::agent;
use crate::args::{Global, ModelArgs};
use crate::config::surroundings::Surroundings;
use crate::config::{Config, McpConfig, Texts, redact};
use crate::error::{self, usage};

#[cfg(test)]
mod tests;

/// How long a client tries to reach a host that is starting, ending or silent.
const REACH_WITHIN: Duration = Duration::from_secs(15);
/// How long MCP servers may take before the user is told.
const TOLD_AFTER: Duration = Duration::from_secs(1);
/// How long a host that must end may be silent before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How long a store may be held by an unreachable process before this is reported.
const UNREACHED_MAX: Duration = Duration::from_secs(3);

/// A client's properties.
pub(crate) struct Who<'a> {
    pub(crate) kind: ClientKind,
    /// The flags of its agent; `None` for a read-only client.
    pub(crate) agent: Option<&'a ModelArgs>,
    /// Whether to report at once if no server listens at the address.
    pub(crate) checks_server: bool,
    /// How the client waits for a host that has served it and becomes silent; `None`: it gives up.
    pub(crate) patience: Option<Patience>,
    /// The last valid texts of its configuration files.
    pub(crate) last_valid: Option<&'a Texts>,
}

/// A read-only client, without an agent.
pub(super) const LOOKS: Who<'_> =
    Who { kind: ClientKind::Watch, agent: None, checks_server: false, patience: None, last_valid: None };

/// A client that changes stored sessions, without an agent.
pub(super) const CHANGES: Who<'_> = Who { kind: ClientKind::Run, ..LOOKS };

/// A connection to a host, with its warnings.
pub(crate) struct Reached {
    pub(crate) client: Client,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

/// Connects to the host of the store, if there is one.
///
/// # Errors
/// The host refuses this client, does not answer, or speaks another protocol and is in use.
pub(crate) async fn reach(global: &Global, who: &Who<'_>) -> Result<Option<Reached>> {
    Reaching::new(global, who, None)?.reach().await
}

/// A connection to a host on which the client has only identified itself.
pub(crate) struct RawConnection {
    pub(crate) input: BufReader<OwnedReadHalf>,
    pub(crate) output: OwnedWriteHalf,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// Reports when the host is silent, as `who` requires.
    pub(crate) watch: RawWatch,
}

/// Like [`reach`], for callers that speak the protocol themselves.
///
/// # Errors
/// Those of [`reach`].
pub(crate) async fn reach_raw(global: &Global, who: &Who<'_>) -> Result<Option<RawConnection>> {
    for _ in 0..ATTEMPTS {
        // It reports the problems with hosts that cannot be used.
        let Some(Reached { client, warnings }) = reach_or_free(global, who).await? else { return Ok(None) };
        let reaching = Reaching::new(global, who, None)?;
        let line = timeout(REACH_WITHIN + reaching.servers.start_max, reaching.line())
            .await
            .map_err(|_| Unreached::silent(&reaching.dir))??;
        client.close().await;
        if let Some((input, output, host)) = line {
            let watch = watchdog::watch_over_raw(host, who.patience.clone());
            return Ok(Some(RawConnection { input, output, warnings, watch }));
        }
    }
    Err(ClientError::Disconnected.into())
}

/// Like [`reach`]; if there is no host, the store is free on return, or held by an unreachable process.
///
/// # Errors
/// Those of [`reach`].
pub(crate) async fn reach_or_free(global: &Global, who: &Who<'_>) -> Result<Option<Reached>> {
    let began = Instant::now();
    loop {
        if let Some(reached) = reach(global, who).await? {
            return Ok(Some(reached));
        }
        // A host holds the store's lock a moment before it answers, and a moment longer.
        if is_free(&agent::data_dir(global)?) || began.elapsed() > UNREACHED_MAX {
            return Ok(None);
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Connects to the host of the store, if there is one, without an agent.
///
/// # Errors
/// Those of [`reach`].
pub(crate) async fn reach_to_look(global: &Global) -> Result<Option<Client>> {
    if global.no_host {
        return Ok(None);
    }
    Ok(reach(global, &LOOKS).await?.map(|reached| reached.client))
}

/// Like [`reach_to_look`], for callers that need the store itself if there is no host: see [`reach_or_free`].
///
/// # Errors
/// Those of [`reach`].
pub(crate) async fn reach_to_change(global: &Global) -> Result<Option<Client>> {
    if global.no_host {
        let _ = make_room(global).await?;
        return Ok(None);
    }
    Ok(reach_or_free(global, &CHANGES).await?.map(|reached| reached.client))
}

/// Connects to the host of the store; starts one if there is none.
///
/// # Errors
/// Those of [`reach`]; or no host can be started.
pub(crate) async fn reach_or_start(global: &Global, who: &Who<'_>, terms: Terms) -> Result<Reached> {
    let dir = agent::data_dir(global)?;
    private::create_folders(&dir).map_err(|error| Unreached::unusable("make", &dir, &error))?;
    let reached = Reaching::new(global, who, Some(terms))?.reach().await?;
    reached.ok_or_else(|| anyhow::anyhow!("no host could be reached or started"))
}

/// Ends an idle host of the store, for a command that uses the store in its own process. Returns its process
/// id, if a host has ended.
///
/// # Errors
/// The host is in use; the socket belongs to another user.
pub(crate) async fn make_room(global: &Global) -> Result<Option<u32>> {
    make_room_by(global, Instant::now()).await
}

/// Like [`make_room`]; a host that is in use may take until this time.
///
/// # Errors
/// Those of [`make_room`].
pub(crate) async fn make_room_by(global: &Global, until: Instant) -> Result<Option<u32>> {
    let dir = agent::data_dir(global)?;
    let mut asked = ask_to_end(&dir, false, REACH_WITHIN).await?;
    while matches!(&asked, Ending::Refused(_)) && Instant::now() < until {
        sleep(AGAIN_AFTER).await;
        asked = ask_to_end(&dir, false, REACH_WITHIN).await?;
    }
    match asked {
        Ending::Nobody => Ok(None),
        Ending::Refused(busy) if busy.kind() == Some(ProblemKind::Busy) => {
            let without = if global.no_host { ", or leave out --no-host" } else { "" };
            let reason = format!(
                "the store in {} is in use: {busy}; wait for it, or end it with `greenroom host --stop --force`{without}",
                dir.display()
            );
            Err(Unreached::refused(error::STORE, &reason).into())
        }
        // The store is in use, which is reported when it is opened.
        Ending::Refused(_) => Ok(None),
        Ending::Ends(process) => {
            // Its lock is released with the rest of the process. One that is not is reported when the store is
            // opened.
            let _ = is_freed(&dir, super::own::END_MAX).await;
            Ok(process)
        }
    }
}

/// Ends the host of the store. With `force`, a silent host is killed.
pub(crate) async fn stop(global: &Global, force: bool) -> Result<u8> {
    let dir = agent::data_dir(global)?;
    let within = if force { KILL_AFTER } else { REACH_WITHIN };
    let asked = ask_to_end(&dir, force, within).await;
    let asked = match asked {
        Err(error) if force && is_silent(&error) => return kill(global, &dir, error).await,
        asked => asked?,
    };
    match asked {
        Ending::Ends(process) => {
            let process = process.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            Screen::stdout(global.color).line(format!("The host{process} has ended."))?;
            Ok(0)
        }
        Ending::Refused(error) if error.kind() == Some(ProblemKind::Busy) => {
            let reason = format!("{error}; use `greenroom host --stop --force` to end it anyway");
            Err(Unreached::refused(error::STORE, &reason).into())
        }
        Ending::Refused(error) => Err(error.into()),
        Ending::Nobody => {
            let reason = format!("no host answers for the store in {}", dir.display());
            Err(Unreached::refused(error::STORE, &reason).into())
        }
    }
}

/// Whether the store's lock is free.
pub(crate) fn is_free(dir: &Path) -> bool {
    std::fs::File::open(dir.join("lock")).map_or(true, |lock| lock.try_lock_shared().is_ok())
}

/// Waits until the store's lock is free, for at most this time. Returns whether it is free.
async fn is_freed(dir: &Path, within: Duration) -> bool {
    let began = Instant::now();
    while !is_free(dir) {
        if began.elapsed() > within {
            return false;
        }
        sleep(AGAIN_AFTER).await;
    }
    true
}

/// The result of asking a host to end.
enum Ending {
    /// No host answers.
    Nobody,
    /// It ends; with its process id, if it said so.
    Ends(Option<u32>),
    Refused(ClientError),
}

/// Asks the host of the store to end, and waits until the connection has ended. The host must answer within
/// this time.
async fn ask_to_end(dir: &Path, force: bool, within: Duration) -> Result<Ending> {
    if !dir.exists() {
        return Ok(Ending::Nobody);
    }
    let path = socket::path(dir)?;
    let asking = async {
        let mut is_ending = false;
        loop {
            let stream = match socket::connect(dir, &path).await? {
                Connected::Host(stream, _) => stream,
                Connected::Again => {
                    is_ending = true;
                    sleep(AGAIN_AFTER).await;
                    continue;
                }
                Connected::Nobody if is_ending => return Ok(Ending::Ends(None)),
                Connected::Nobody => return Ok(Ending::Nobody),
            };
            let (input, output) = stream.into_split();
            let client = Client::new(input, output);
            let stopping = timeout(within, client.call(StopHost { force })).await;
            match stopping.map_err(|_| Unreached::silent(dir))? {
                Ok(Stopping { pid }) => {
                    client.closed().await;
                    return Ok(Ending::Ends(Some(pid)));
                }
                // It is ending already.
                Err(error) if error.is_gone() => is_ending = true,
                Err(error) => return Ok(Ending::Refused(error)),
            }
            sleep(AGAIN_AFTER).await;
        }
    };
    timeout(REACH_WITHIN, asking).await.map_err(|_| Unreached::silent(dir))?
}

/// Kills the silent host that holds the store. `silent` is the error if that is impossible.
async fn kill(global: &Global, dir: &Path, silent: anyhow::Error) -> Result<u8> {
    // The process id in the lock may have been reused: it must be the listener's.
    let listener = match socket::connect(dir, &socket::path(dir)?).await? {
        Connected::Host(_, process) => holder(dir).filter(|pid| *pid == process),
        Connected::Nobody | Connected::Again => None,
    };
    let Some(pid) = listener.and_then(Pid::from_raw) else { return Err(silent) };
    kill_process(pid, Signal::KILL).with_context(|| format!("end the process {}", pid.as_raw_nonzero()))?;
    if !is_freed(dir, REACH_WITHIN).await {
        return Err(silent);
    }
    let said = format!(
        "The host (process {}) did not answer, and was killed; nothing that was acknowledged is lost.",
        pid.as_raw_nonzero()
    );
    Screen::stdout(global.color).line(said)?;
    Ok(0)
}

/// Returns the message while a silent host is awaited; `None` if the store is free.
pub(crate) fn still_silent(global: &Global) -> Option<String> {
    let dir = agent::data_dir(global).ok().filter(|dir| !is_free(dir))?;
    let process = holder(&dir).map(|pid| format!(" (process {pid})")).unwrap_or_default();
    let servers = agent::load_config(global, &Surroundings::here()).map(|loaded| loaded.config.mcp_servers);
    let connects = servers.is_ok_and(|servers| servers.values().any(|server| server.enabled));
    let connects = if connects { "; it may be connecting to MCP servers" } else { "" };
    Some(format!("the host{process} does not answer yet{connects}; waiting for it (Ctrl-C quits)"))
}

struct Reaching<'a> {
    dir: PathBuf,
    hello: Hello,
    patience: Option<Patience>,
    global: &'a Global,
    /// The options of a host to start; `None` starts none.
    terms: Option<Terms>,
    /// The MCP servers that the host connects to before it answers.
    servers: Servers,
}

/// MCP servers that are being connected.
#[derive(Default)]
struct Servers {
    names: Vec<String>,
    /// How long they may take.
    start_max: Duration,
}

impl Servers {
    fn of(config: &Config, model: &ModelArgs) -> Self {
        let used = config.mcp_servers.iter().filter(|(_, server)| server.enabled && !model.no_tools);
        let start_max = used.clone().map(|(_, server)| Duration::from_secs(server.start_timeout_s)).max();
        Self { names: used.map(|(name, _)| name.clone()).collect(), start_max: start_max.unwrap_or_default() }
    }

    /// Waits for a host's answer, and tells the user what takes long.
    async fn awaited<T>(&self, global: &Global, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        if self.names.is_empty() {
            return answer.await;
        }
        match timeout(TOLD_AFTER, &mut answer).await {
            Ok(answer) => answer,
            Err(_) => {
                let text = format!("greenroom: connecting to MCP servers: {}", self.names.join(", "));
                let _ = Screen::stderr(global.color).line(text);
                answer.await
            }
        }
    }
}

/// The result of one attempt.
enum Attempt {
    Reached(Reached),
    /// No host answers.
    Nobody,
    /// A host answers, and is about to end.
    Again,
}

impl<'a> Reaching<'a> {
    fn new(global: &'a Global, who: &Who<'_>, terms: Option<Terms>) -> Result<Self> {
        let defined = who.agent.map(|model| defined(global, model, who.checks_server, who.last_valid));
        let (definition, servers) = defined.transpose()?.unzip();
        let (definition, servers) =
            (definition.map(serde_json::to_value).transpose()?, servers.unwrap_or_default());
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: who.kind,
            definition,
        };
        let patience = who.patience.clone();
        Ok(Self { dir: agent::data_dir(global)?, hello, patience, global, terms, servers })
    }

    async fn reach(self) -> Result<Option<Reached>> {
        let deadline = Instant::now() + REACH_WITHIN;
        // Other holders of the store, as the last started host reported them.
        let mut in_use: Option<(Instant, Unreached)> = None;
        let mut starts = Starts::default();
        loop {
            let attempt = match self.dir.exists() {
                true => {
                    let path = socket::path(&self.dir)?;
                    let attempt = timeout_at(deadline + self.servers.start_max, self.attempt(&path));
                    self.servers
                        .awaited(self.global, attempt)
                        .await
                        .map_err(|_| Unreached::silent(&self.dir))?
                }
                false => Ok(Attempt::Nobody),
            };
            match (attempt?, &self.terms) {
                (Attempt::Reached(reached), _) => return Ok(Some(reached)),
                (Attempt::Nobody, None) => return Ok(None),
                (Attempt::Nobody, Some(_)) if starts.are_all_dead() => {
                    return Err(Unreached::died(spawn::last_words(&self.dir).as_deref()).into());
                }
                (Attempt::Nobody, Some(terms)) if starts.is_time() => {
                    match starts.start(self.global, &self.dir, terms).await? {
                        // The host may be killed before it is reached, together with the previous one, for
                        // example.
                        Started::Ready | Started::Died => {}
                        Started::Failed(failed) if failed.failure.code != error::STORE => {
                            return Err(failed.into());
                        }
                        // Another host may have been faster; otherwise it is a silent program, or a broken
                        // store.
                        Started::Failed(failed) => {
                            let (since, failed) = in_use.get_or_insert_with(|| (Instant::now(), failed));
                            if since.elapsed() > UNREACHED_MAX {
                                return Err(failed.clone().into());
                            }
                        }
                    }
                }
                (Attempt::Nobody | Attempt::Again, _) => {}
            }
            if Instant::now() > deadline {
                return Err(in_use.map_or_else(|| Unreached::silent(&self.dir), |(_, failed)| failed).into());
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    /// Identifies the client on a new connection. Returns `None` if the host is gone.
    async fn line(&self) -> Result<Option<(BufReader<OwnedReadHalf>, OwnedWriteHalf, Serving)>> {
        let socket = socket::path(&self.dir)?;
        let Connected::Host(stream, _) = socket::connect(&self.dir, &socket).await? else {
            return Ok(None);
        };
        let (input, mut output) = stream.into_split();
        let (mut input, mut answer) = (BufReader::new(input), String::new());
        let hello = serde_json::json!({
            "jsonrpc": "2.0", "id": "hello", "method": Hello::METHOD, "params": self.hello,
        });
        let said = output.write_all(format!("{hello}\n").as_bytes()).await;
        if said.is_err() || input.read_line(&mut answer).await.is_err() {
            return Ok(None);
        }
        let mut answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
        let greeted = answer.get_mut("result").map(serde_json::Value::take);
        let Some(HelloAnswer { pid, .. }) = greeted.map(serde_json::from_value).transpose()? else {
            return Ok(None);
        };
        Ok(Some((input, output, Serving { dir: self.dir.clone(), socket, pid })))
    }

    async fn attempt(&self, path: &Path) -> Result<Attempt> {
        let stream = match socket::connect(&self.dir, path).await? {
            Connected::Host(stream, _) => stream,
            Connected::Nobody => return Ok(Attempt::Nobody),
            Connected::Again => return Ok(Attempt::Again),
        };
        let (input, output) = stream.into_split();
        let client = Client::new(input, output);
        match client.call(self.hello.clone()).await {
            Ok(HelloAnswer { warnings, pid, .. }) => {
                let host = Serving { dir: self.dir.clone(), socket: path.to_owned(), pid };
                watchdog::watch_over(&client, host, self.patience.clone());
                Ok(Attempt::Reached(Reached { client, warnings }))
            }
            Err(error) if error.is_gone() => Ok(Attempt::Again),
            Err(error) if error.kind() == Some(ProblemKind::Version) => {
                match client.call(StopHost { force: false }).await {
                    // The host is idle, and ends.
                    Ok(_) => Ok(Attempt::Again),
                    Err(gone) if gone.is_gone() => Ok(Attempt::Again),
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

/// Returns the definition of the client's agent.
pub(super) fn definition(
    global: &Global,
    model: &ModelArgs,
    checks_server: bool,
    last_valid: Option<&Texts>,
) -> Result<Definition> {
    Ok(defined(global, model, checks_server, last_valid)?.0)
}

fn defined(
    global: &Global,
    model: &ModelArgs,
    checks_server: bool,
    last_valid: Option<&Texts>,
) -> Result<(Definition, Servers)> {
    let here = Surroundings::here();
    // Errors in the configuration are reported here, as without a host.
    let loaded = agent::load_config_or(global, &here, last_valid)?;
    let keys = loaded.config.providers.values().filter_map(|provider| provider.api_key_env.clone());
    let keys = keys.chain(model.server.api_key_env.clone()).chain(agent::server::usual_variables());
    let of_servers = loaded.config.mcp_servers.values().filter(|server| server.enabled);
    let of_servers = of_servers.flat_map(McpConfig::variables).map(str::to_owned);
    let keys: Vec<String> = keys.chain(of_servers).collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let definition = Definition {
        surroundings: Surroundings::hand_over(&keys, redact::secrets(&loaded.config, &here))?,
        config: global.config.as_ref().map(absolute),
        held: last_valid.cloned(),
        settings: global.settings.clone(),
        model: Box::new(model.clone()),
        checks_server,
    };
    Ok((definition, Servers::of(&loaded.config, model)))
}

/// Returns the fingerprint of the agent that these flags make here.
pub(crate) fn fingerprint(global: &Global, model: &ModelArgs) -> Result<String> {
    Ok(definition(global, model, false, None)?.fingerprint())
}

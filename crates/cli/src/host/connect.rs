//! How commands find the host of a store, and start one where there is none.
//!
//! Invariants: a host that ends while it is reached is tried again, or replaced, and never the reason of a failure; whatever
//! a host does or leaves undone, reaching it takes no longer than a time that is set.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
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
use super::error::{Unreached, holder, is_gone, is_gone_client, is_silent};
use super::link::ATTEMPTS;
use super::socket::{self, Connected};
use super::spawn::{self, Started, Starts, Terms};
use super::watchdog::{self, LineWatch, Patience, Serving};
use crate::agent;
use crate::args::{Global, ModelArgs};
use crate::config::Texts;
use crate::config::surroundings::Surroundings;
use crate::error::{self, usage};

#[cfg(test)]
mod tests;

/// How long a client tries to reach a host that is starting, ending or silent.
const REACH_WITHIN: Duration = Duration::from_secs(15);
/// How long one that is to be ended by all means may say nothing.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How long a store may be in use by somebody who cannot be reached, before that is said.
const UNREACHED_MAX: Duration = Duration::from_secs(3);

/// Who a client is.
pub(crate) struct Who<'a> {
    pub(crate) kind: ClientKind,
    /// What its agent is made of; without it, it can only look.
    pub(crate) agent: Option<&'a ModelArgs>,
    /// Whether it wants to hear at once that nobody answers at the server's address.
    pub(crate) checks_server: bool,
    /// How it waits for a host that has served it and says nothing any more; without it, it gives that up.
    pub(crate) patience: Option<Patience>,
    /// What its configuration files said when they could be used last.
    pub(crate) last_valid: Option<&'a Texts>,
}

/// Who only looks, and has no agent.
const LOOKS: Who<'_> =
    Who { kind: ClientKind::Watch, agent: None, checks_server: false, patience: None, last_valid: None };

/// Who changes what is stored, which needs no agent.
const CHANGES: Who<'_> = Who { kind: ClientKind::Run, ..LOOKS };

/// A connection to a host, and what it said.
pub(crate) struct Reached {
    pub(crate) client: Client,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

/// The host of the store, where there is one.
///
/// # Errors
/// It refuses this client, does not answer, or speaks another protocol and is in use.
pub(crate) async fn reach(global: &Global, who: &Who<'_>) -> Result<Option<Reached>> {
    Reaching::new(global, who, None)?.reach().await
}

/// A connection to a host on which the client has said who it is, and nothing else.
pub(crate) struct Line {
    pub(crate) input: BufReader<OwnedReadHalf>,
    pub(crate) output: OwnedWriteHalf,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
    /// Says where the host is silent, as `who` wants it.
    pub(crate) watch: LineWatch,
}

/// As [`reach`], for who speaks the protocol by themselves.
///
/// # Errors
/// As [`reach`].
pub(crate) async fn reach_line(global: &Global, who: &Who<'_>) -> Result<Option<Line>> {
    for _ in 0..ATTEMPTS {
        // It says whatever there is to say of a host that cannot be spoken with.
        let Some(Reached { client, warnings }) = reach_or_free(global, who).await? else { return Ok(None) };
        let reaching = Reaching::new(global, who, None)?;
        let line =
            timeout(REACH_WITHIN, reaching.line()).await.map_err(|_| Unreached::silent(&reaching.dir))??;
        client.close().await;
        if let Some((input, output, host)) = line {
            let watch = watchdog::watch_over_line(host, who.patience.clone());
            return Ok(Some(Line { input, output, warnings, watch }));
        }
    }
    Err(ClientError::Disconnected.into())
}

/// As [`reach`]; where there is none, the store is free when this comes back, or somebody has it who cannot be reached.
///
/// # Errors
/// As [`reach`].
pub(crate) async fn reach_or_free(global: &Global, who: &Who<'_>) -> Result<Option<Reached>> {
    let began = Instant::now();
    loop {
        if let Some(reached) = reach(global, who).await? {
            return Ok(Some(reached));
        }
        // A host has the store's lock a moment before it answers, and a moment longer.
        if is_free(&agent::data_dir(global)?) || began.elapsed() > UNREACHED_MAX {
            return Ok(None);
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// A connection to the host of the store, where there is one, for what needs no agent.
///
/// # Errors
/// As [`reach`].
pub(crate) async fn reach_to_look(global: &Global) -> Result<Option<Client>> {
    if global.no_host {
        return Ok(None);
    }
    Ok(reach(global, &LOOKS).await?.map(|reached| reached.client))
}

/// As [`reach_to_look`], for what needs the store alone where there is no host: see [`reach_or_free`].
///
/// # Errors
/// As [`reach`].
pub(crate) async fn reach_to_change(global: &Global) -> Result<Option<Client>> {
    if global.no_host {
        let _ = make_room(global).await?;
        return Ok(None);
    }
    Ok(reach_or_free(global, &CHANGES).await?.map(|reached| reached.client))
}

/// As [`reach_to_change`], with what is asked first and changes nothing: a host that ends meanwhile is asked no more.
///
/// # Errors
/// As [`reach`], and those of `first`.
pub(crate) async fn reach_to_change_and<T>(
    global: &Global,
    first: impl AsyncFn(&Client) -> Result<T>,
) -> Result<Option<(Client, T)>> {
    let mut attempt = 1;
    loop {
        let Some(client) = reach_to_change(global).await? else { return Ok(None) };
        match first(&client).await {
            Ok(answer) => return Ok(Some((client, answer))),
            Err(error) if attempt < ATTEMPTS && is_gone(&error) => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The host of the store; where there is none, one is started.
///
/// # Errors
/// As [`reach`]; or none can be started.
pub(crate) async fn reach_or_start(global: &Global, who: &Who<'_>, terms: Terms) -> Result<Reached> {
    let dir = agent::data_dir(global)?;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| Unreached::unusable("make", &dir, &error))?;
    let reached = Reaching::new(global, who, Some(terms))?.reach().await?;
    reached.ok_or_else(|| anyhow::anyhow!("no host could be reached or started"))
}

/// Ends the host of the store where it is idle, for a command that works on the store in its own process. Gives the process
/// that it was, where one ended.
///
/// # Errors
/// It is in use; the socket is another user's.
pub(crate) async fn make_room(global: &Global) -> Result<Option<u32>> {
    make_room_by(global, Instant::now()).await
}

/// As [`make_room`], of one that is in use until then at most.
///
/// # Errors
/// As [`make_room`].
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
        // The store is in use then, and that is said when it is opened.
        Ending::Refused(_) => Ok(None),
        Ending::Ends(process) => {
            // Its lock goes with the rest of it.
            let began = Instant::now();
            while !is_free(&dir) && began.elapsed() < super::own::END_MAX {
                sleep(AGAIN_AFTER).await;
            }
            Ok(process)
        }
    }
}

/// Ends the host of the store. With `force`, one that does not answer is killed.
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
            let reason = format!("{error}; `greenroom host --stop --force` ends it all the same");
            Err(Unreached::refused(error::STORE, &reason).into())
        }
        Ending::Refused(error) => Err(error.into()),
        Ending::Nobody => {
            let reason = format!("no host answers for the store in {}", dir.display());
            Err(Unreached::refused(error::STORE, &reason).into())
        }
    }
}

/// Whether nobody has the store's lock.
pub(crate) fn is_free(dir: &Path) -> bool {
    std::fs::File::open(dir.join("lock")).map_or(true, |lock| lock.try_lock_shared().is_ok())
}

/// What became of a host that was asked to end.
enum Ending {
    /// Nobody answers.
    Nobody,
    /// It ends, and was this process, where it said so.
    Ends(Option<u32>),
    Refused(ClientError),
}

/// Asks the host of the store to end, and waits until the connection to it has ended. It must answer within this time.
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
                // It ends already.
                Err(error) if is_gone_client(&error) => is_ending = true,
                Err(error) => return Ok(Ending::Refused(error)),
            }
            sleep(AGAIN_AFTER).await;
        }
    };
    timeout(REACH_WITHIN, asking).await.map_err(|_| Unreached::silent(dir))?
}

/// Kills the host that has the store and does not answer. `silent` is the error where that cannot be.
async fn kill(global: &Global, dir: &Path, silent: anyhow::Error) -> Result<u8> {
    // The number in the lock may be another process's by now: it must be the listener's.
    let listener = match socket::connect(dir, &socket::path(dir)?).await? {
        Connected::Host(_, process) => holder(dir).filter(|pid| *pid == process),
        Connected::Nobody | Connected::Again => None,
    };
    let Some(pid) = listener.and_then(Pid::from_raw) else { return Err(silent) };
    kill_process(pid, Signal::KILL).with_context(|| format!("end the process {}", pid.as_raw_nonzero()))?;
    let began = Instant::now();
    while !is_free(dir) {
        if began.elapsed() > REACH_WITHIN {
            return Err(silent);
        }
        sleep(AGAIN_AFTER).await;
    }
    let said = format!(
        "The host (process {}) did not answer, and was killed; nothing that was acknowledged is lost.",
        pid.as_raw_nonzero()
    );
    Screen::stdout(global.color).line(said)?;
    Ok(0)
}

/// What is said while a host is waited for that does not answer; nothing where nobody has the store.
pub(crate) fn still_silent(global: &Global) -> Option<String> {
    let dir = agent::data_dir(global).ok().filter(|dir| !is_free(dir))?;
    let process = holder(&dir).map(|pid| format!(" (process {pid})")).unwrap_or_default();
    Some(format!("the host{process} does not answer yet; waiting for it, Ctrl-C leaves"))
}

struct Reaching<'a> {
    dir: PathBuf,
    hello: Hello,
    patience: Option<Patience>,
    global: &'a Global,
    /// What a host that is started is told; `None`: none is started.
    terms: Option<Terms>,
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
    fn new(global: &'a Global, who: &Who<'_>, terms: Option<Terms>) -> Result<Self> {
        let definition = who
            .agent
            .map(|model| definition(global, model, who.checks_server, who.last_valid))
            .transpose()?;
        let definition = definition.map(serde_json::to_value).transpose()?;
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: who.kind,
            definition,
        };
        let patience = who.patience.clone();
        Ok(Self { dir: agent::data_dir(global)?, hello, patience, global, terms })
    }

    async fn reach(self) -> Result<Option<Reached>> {
        let deadline = Instant::now() + REACH_WITHIN;
        // Whoever else holds the store, as the last host that was started had it.
        let mut in_use: Option<(Instant, Unreached)> = None;
        let mut starts = Starts::default();
        loop {
            let attempt = match self.dir.exists() {
                true => {
                    let path = socket::path(&self.dir)?;
                    timeout_at(deadline, self.attempt(&path))
                        .await
                        .map_err(|_| Unreached::silent(&self.dir))?
                }
                false => Ok(Attempt::Nobody),
            };
            match (attempt?, self.terms) {
                (Attempt::Reached(reached), _) => return Ok(Some(reached)),
                (Attempt::Nobody, None) => return Ok(None),
                (Attempt::Nobody, Some(_)) if starts.are_all_dead() => {
                    return Err(Unreached::died(spawn::last_words(&self.dir).as_deref()).into());
                }
                (Attempt::Nobody, Some(terms)) if starts.is_time() => {
                    match starts.start(self.global, &self.dir, terms).await? {
                        // It may be killed before it is reached, with the one before it for example.
                        Started::Ready | Started::Died => {}
                        Started::Failed(failed) if failed.failure.code != error::STORE => {
                            return Err(failed.into());
                        }
                        // Another one may have been quicker. Else it is a program that does not answer, or a broken store.
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

    /// Says who the client is on a connection of its own. `None`: the host is gone.
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
            Err(error) if is_gone_client(&error) => Ok(Attempt::Again),
            Err(error) if error.kind() == Some(ProblemKind::Version) => {
                match client.call(StopHost { force: false }).await {
                    // It is idle, and ends.
                    Ok(_) => Ok(Attempt::Again),
                    Err(gone) if is_gone_client(&gone) => Ok(Attempt::Again),
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
fn definition(
    global: &Global,
    model: &ModelArgs,
    checks_server: bool,
    last_valid: Option<&Texts>,
) -> Result<Definition> {
    let here = Surroundings::here();
    // What is wrong with the configuration is said here, as if there were no host.
    let loaded = agent::load_config_or(global, &here, last_valid)?;
    let keys = loaded.config.providers.values().filter_map(|provider| provider.api_key_env.clone());
    let keys: Vec<String> = keys.chain(model.server.api_key_env.clone()).collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    Ok(Definition {
        surroundings: Surroundings::hand_over(&keys)?,
        config: global.config.as_ref().map(absolute),
        held: last_valid.cloned(),
        settings: global.settings.clone(),
        model: Box::new(model.clone()),
        checks_server,
    })
}

/// The fingerprint of the agent that these make here.
pub(crate) fn fingerprint(global: &Global, model: &ModelArgs) -> Result<String> {
    Ok(definition(global, model, false, None)?.fingerprint())
}

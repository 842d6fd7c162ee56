//! `greenroom host`: the process that holds the store for all terminals, and how other commands find and start it.
//!
//! Invariants: the socket is there as long as the store's lock is held, and who connects while the host ends is sent away
//! to try again; it ends by itself when nobody is connected and nothing is at work; of two that are started at the same
//! time one ends at once, and its client finds the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom::Runtime;
use greenroom_server::Host;
use tokio::net::UnixListener;

use self::agents::{Agents, Nobody};
use self::socket::Place;
use crate::errors;
use crate::interrupt::Interrupts;
use crate::options::{Color, Global, HostArgs};
use crate::setup;
use crate::terminal::Screen;

pub(crate) use self::reaching::{
    Line, Reached, Unreached, Who, fingerprint, is_gone, is_gone_client, make_room, reach, reach_line,
    reach_or_free, reach_or_start, reach_to_change, reach_to_change_and, reach_to_look, still_silent,
};
pub(crate) use self::socket::OtherUsers;

mod agents;
mod reaching;
mod socket;

/// The log beside the store.
pub(crate) const LOG_FILE: &str = "host.log";
/// What a host says when it can be reached.
const READY: &str = "ready";
/// How long a host waits before it accepts again where that failed, and a client before it tries again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How often a host looks whether its socket is still there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
        return reaching::stop(global, args.force).await;
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
    answering.end(runtime, async {}).await?;
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
    /// Whether those who connect are sent away.
    is_ending: Arc<AtomicBool>,
    place: Arc<Place>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.accepting.abort();
        self.place.leave();
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
        let (listener, place) = socket::listen(&dir)?;
        let global = Global { data_dir: Some(dir), config: None, settings: Vec::new(), ..global.clone() };
        let host = Host::new(runtime, Agents::new(&global), env!("CARGO_PKG_VERSION"));
        let (is_ending, place) = (Arc::<AtomicBool>::default(), Arc::new(place));
        let accepting = accept(host.clone(), listener, Arc::clone(&place), Arc::clone(&is_ending));
        let accepting = tokio::spawn(accepting);
        Ok(Self { host, accepting, is_ending, place })
    }

    /// Ends the runtime, and what serves it beside. Who connects in the meantime is sent away, and tries again until the
    /// store is free.
    pub(crate) async fn end(self, runtime: Runtime, beside: impl Future<Output = ()>) -> Result<()> {
        self.is_ending.store(true, Ordering::Relaxed);
        setup::end(runtime, beside).await
    }
}

async fn accept(host: Host, mut listener: UnixListener, place: Arc<Place>, is_ending: Arc<AtomicBool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tokio::time::sleep(LOOK_EVERY) => {
                // Somebody may have tidied up.
                match place.renewed() {
                    Ok(None) => {}
                    Ok(Some(renewed)) => listener = renewed,
                    Err(error) => tracing::warn!("the socket is gone, and cannot be made again: {error:#}"),
                }
                continue;
            }
        };
        match accepted {
            Ok(_) if is_ending.load(Ordering::Relaxed) => {}
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

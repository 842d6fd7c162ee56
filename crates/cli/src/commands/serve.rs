//! `greenroom serve`: the runtime over HTTP.
//!
//! Invariants: it listens on the loopback interface unless another address is given, and then explains the
//! consequences; every request must have a token (`tokens`). After SIGTERM, runs in progress have `drain_timeout_s` to
//! end; after that, or after Ctrl-C, it ends within ten seconds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom::Runtime;
use greenroom_server::{HttpOptions, HttpServer};
use greenroom_terminal::{Interrupts, Screen};

use crate::agent::{self, Stay, TOKEN_FILE, choice, warn};
use crate::args::{Global, ServeArgs};
use crate::config::check_host_name;
use crate::config::surroundings::Surroundings;
use crate::error::usage;
use crate::host::{Answering, Setup, named_agents};

mod tokens;

/// How often it is checked whether runs are in progress that wait for no person.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Runs the server until it is interrupted. HTTP requests are served by the runtime itself, not through a host, which has
/// a connection and an agent for each client.
pub(crate) async fn run(global: &Global, args: &ServeArgs) -> Result<u8> {
    for name in &args.host_name {
        check_host_name(name).map_err(|reason| usage(format!("--host-name {name}: it {reason}")))?;
    }
    let wait = Duration::from_secs(args.wait_for_store.into());
    let mut model = args.model.clone();
    choice::complete(global, &mut model).await?;
    let setup = Setup::waiting(global, &model, Stay::Unwatched, wait).await?;
    let config = &setup.serve;
    let path = agent::data_dir(global)?.join(TOKEN_FILE);
    let mut options = HttpOptions::new(args.listen.unwrap_or(config.listen), tokens::own(&path)?);
    options.tokens.extend(tokens::further(&config.tokens, &Surroundings::here()).await?);
    options.host_names = [config.host_names.clone(), args.host_name.clone()].concat();
    options.request_timeout = Duration::from_secs(config.request_timeout_s);
    options.connections_max = config.connections_max.min(connections_possible());
    if options.connections_max < config.connections_max {
        warn(
            global,
            &format!(
                "at most {} connections are open at a time instead of {}: half of what `ulimit -n` allows this process",
                options.connections_max, config.connections_max
            ),
        )?;
    }
    options.agents = named_agents(global, &args.model, &config.agents).await?;
    let (listen, host_names) = (options.address, options.host_names.clone());
    let agent = Arc::new(setup.agent.clone());
    let server = HttpServer::start(&setup.runtime, agent, options)
        .await
        .with_context(|| format!("listen on {listen}"))?;
    if !listen.ip().is_loopback() {
        warn_of_network(global, &server, &host_names)?;
    }
    let answering = Answering::begin(global, &setup.runtime)?.part_of("greenroom serve");
    let interrupts = Interrupts::new()?;
    let mut screen = Screen::stderr(global.color);
    screen.line(format!(
        "greenroom serves http://{}; the token is in {}",
        server.address(),
        path.display()
    ))?;
    let is_draining = tokio::select! {
        () = interrupts.next() => interrupts.is_ending(),
        () = answering.must_end() => false,
    };
    let drain_timeout_s = setup.serve.drain_timeout_s;
    if is_draining && drain_timeout_s > 0 && !setup.runtime.working().await?.is_empty() {
        screen.line(format!("Stopping; runs in progress have {drain_timeout_s} s to end."))?;
        drain(&setup.runtime, Duration::from_secs(drain_timeout_s)).await;
    }
    screen.line("Stopping; any run in progress is interrupted.")?;
    // Both at once: requests that wait for a run are answered when it is interrupted.
    answering.end(setup.runtime, server.stop()).await?;
    Ok(0)
}

/// Accepts no more work, and waits until none is in progress, except runs that wait for a person; at most this long.
async fn drain(runtime: &Runtime, at_most: Duration) {
    let is_working = async || runtime.working().await.is_ok_and(|working| !working.is_empty());
    let idle = async {
        while is_working().await {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        _ = runtime.drain(at_most) => {}
        () = idle => {}
    }
}

/// Explains the consequences if other machines can connect.
fn warn_of_network(global: &Global, server: &HttpServer, host_names: &[String]) -> Result<()> {
    let address = server.address();
    warn(
        global,
        &format!(
            "other machines can reach {address}, and there is no TLS: anyone who can see the traffic can read the \
            token and all messages; put a proxy with TLS in front, or listen on 127.0.0.1 and use an SSH tunnel"
        ),
    )?;
    let mut names = vec!["the addresses of this machine".to_owned(), format!("localhost:{}", address.port())];
    names.extend_from_slice(host_names);
    let names = names.join(", ");
    warn(global, &format!("the Host header may name {names}; --host-name or serve.host_names adds a name"))
}

/// Returns how many connections leave enough file descriptors for the store, the models and the tools.
fn connections_possible() -> usize {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    allowed.and_then(|allowed| usize::try_from(allowed / 2).ok()).unwrap_or(usize::MAX)
}

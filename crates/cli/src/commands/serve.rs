//! `greenroom serve`: the runtime over HTTP.
//!
//! Invariants: it listens on the loopback interface unless another address is given, and then explains the
//! consequences; every request must have a token (`tokens`). After SIGTERM, runs in progress have `drain_timeout_s` to
//! end; after that, or after Ctrl-C, it ends within ten seconds. As a node of a cluster, its sessions are in a database, and
//! it resumes the runs of nodes that have ended.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::{Agent, Runtime, SessionSummary};
use greenroom_server::operations::AGENT;
use greenroom_server::{HttpOptions, HttpServer};
use greenroom_terminal::{Interrupts, Screen, format};

use crate::agent::{self, Stay, TOKEN_FILE, choice, warn};
use crate::args::{Global, ServeArgs};
use crate::commands::doctor::DAMAGED_REMEDY;
use crate::config::check_host_name;
use crate::config::surroundings::Surroundings;
use crate::error::usage;
use crate::host::cluster::{self, ClusterNode};
use crate::host::own::{Storage, end};
use crate::host::{Answering, Setup, named_agents};

pub(super) mod tokens;

/// How often it is checked whether runs are in progress that wait for no person.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Runs the server until it is interrupted. HTTP requests are served by the runtime itself, not through a host, which has
/// a connection and an agent for each client.
pub(crate) async fn run(global: &Global, args: &ServeArgs) -> Result<u8> {
    for name in &args.host_name {
        check_host_name(name).map_err(|reason| usage(format!("--host-name {name}: it {reason}")))?;
    }
    let wait = Duration::from_secs(args.wait_for_store.into());
    let surroundings = Surroundings::here();
    let listen = args.listen.unwrap_or(agent::config(global)?.config.serve.listen);
    let node = ClusterNode::of(&args.cluster, listen, &surroundings)?;
    let _lock = node.as_ref().map(|_| cluster::lock(&agent::data_dir(global)?)).transpose()?;
    let storage = match &node {
        Some(node) => Storage::Shared(node.connect(global, wait).await?),
        None => Storage::Files { wait },
    };
    let mut model = args.model.clone();
    choice::complete(global, &mut model).await?;
    let setup = Setup::on(global, &model, Stay::Unwatched, storage).await?;
    warn_of_damage(global, &setup.runtime)?;
    let config = &setup.serve;
    let path = agent::data_dir(global)?.join(TOKEN_FILE);
    let own = tokens::own(&path)?;
    let further = tokens::further(&config.tokens, &surroundings, &own).await?;
    let mut options = HttpOptions::new(listen, own);
    options.tokens.extend(further);
    options.host_names = [config.host_names.clone(), args.host_name.clone()].concat();
    options.host_names.extend(node.as_ref().map(ClusterNode::host_name));
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
    options.cluster_secret = node.as_ref().map(|node| node.secret.clone());
    let host_names = options.host_names.clone();
    let agents = options.agents.clone();
    let agent = Arc::new(setup.agent.clone());
    let server = HttpServer::start(&setup.runtime, agent, options).await.map_err(|error| {
        match error.raw_os_error() {
            None if error.kind() == ErrorKind::InvalidInput => usage(error.to_string()),
            Some(_) | None => anyhow::Error::new(error).context(format!("listen on {listen}")),
        }
    })?;
    if !listen.ip().is_loopback() {
        warn_of_network(global, &server, &host_names)?;
    }
    if let Some(node) = &node
        && let Err(error) = node.check(global, setup.runtime.engine()).await
    {
        end(setup.runtime, server.stop()).await?;
        return Err(error);
    }
    // A store in files is served to other commands, too.
    let answering = match &node {
        Some(_) => None,
        None => Some(Answering::begin(global, &setup.runtime)?.part_of("greenroom serve")),
    };
    let taking = setup.runtime.take_over(agent_of(Arc::new(setup.agent.clone()), agents));
    let interrupts = Interrupts::new()?;
    let mut screen = Screen::stderr(global.color);
    screen.line(format!(
        "greenroom serves http://{}; the token is in {}",
        server.address(),
        path.display()
    ))?;
    if let Some(node) = &node {
        screen
            .line(format!("Node {} of a cluster; other nodes reach it at {}", node.name, node.advertise))?;
    }
    let is_draining = tokio::select! {
        () = interrupts.next() => interrupts.is_ending(),
        () = must_end(answering.as_ref()) => false,
    };
    let drain_timeout_s = setup.serve.drain_timeout_s;
    if is_draining && drain_timeout_s > 0 && !setup.runtime.working().await?.is_empty() {
        screen.line(format!("Stopping; runs in progress have {drain_timeout_s} s to end."))?;
        drain(&setup.runtime, Duration::from_secs(drain_timeout_s)).await;
    }
    screen.line("Stopping; any run in progress is interrupted.")?;
    drop(taking);
    // Both at once: requests that wait for a run are answered when it is interrupted.
    match answering {
        Some(answering) => answering.end(setup.runtime, server.stop()).await?,
        None => end(setup.runtime, server.stop()).await?,
    }
    Ok(0)
}

/// The agent that resumes a session of a node that has ended: that of its label, else the server's.
fn agent_of(
    own: Arc<Agent>,
    named: BTreeMap<String, Arc<Agent>>,
) -> impl FnMut(&SessionSummary) -> Option<Arc<Agent>> {
    move |session| match session.labels.get(AGENT) {
        Some(name) if !named.is_empty() => named.get(name).cloned(),
        Some(_) | None => Some(Arc::clone(&own)),
    }
}

/// Waits until other commands have ended the host, if it is one.
async fn must_end(answering: Option<&Answering>) {
    match answering {
        Some(answering) => answering.must_end().await,
        None => std::future::pending().await,
    }
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

/// Warns of sessions that are known to be damaged, at every start: the notices name only what was found just now.
fn warn_of_damage(global: &Global, runtime: &Runtime) -> Result<()> {
    let damaged = runtime.store().map(|store| store.quarantined()).unwrap_or_default();
    let [first, ..] = &*damaged else { return Ok(()) };
    let count = format::count(damaged.len() as u64, "session");
    let which = if damaged.len() == 1 { format!(" ({first})") } else { String::new() };
    warn(global, &format!("{count}{which} lost entries and accepts no prompts; {DAMAGED_REMEDY}"))
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

//! A node of a cluster: the database that it shares with others, its name, and the address at which they reach it.
//!
//! Invariants: the database's URL and the cluster's secret may be in the environment or in a file, are in no error and
//! no log, and no process sees them in the list of processes unless the user wrote the URL into the command line.

use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use greenroom::internal::Survey;
use greenroom::postgres::{Postgres, PostgresOptions};
use greenroom::{Engine, StoreError};
use greenroom_files::access::{self, Need};
use greenroom_files::private;
use greenroom_server::{NodeAnswer, ask_node, check_token};
use greenroom_store::Placement as _;
use greenroom_terminal::Screen;
use tokio::task::JoinSet;

use crate::agent::warn;
use crate::args::{ClusterArgs, DoctorArgs, Global};
use crate::config::overrides::{ADVERTISE, CLUSTER_SECRET, NODE, STORE};
use crate::config::surroundings::Surroundings;
use crate::error::{secrets, usage};

/// How long a lease may be, in seconds.
const LEASES: RangeInclusive<f64> = 0.5..=300.0;
/// The pause before a database that is not available, or in use by a copy, is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The file that is locked by the node to which the data directory belongs.
const LOCK_FILE: &str = "node.lock";
/// The prefix of the node name that `store copy` uses while it copies.
const COPY: &str = "copy";
/// The longest name of a node, in bytes.
const NODE_BYTES_MAX: usize = 200;
/// The longest secret in a file, in bytes.
const SECRET_BYTES_MAX: u64 = 4 * 1024;

/// A node, before it connects.
pub(crate) struct ClusterNode {
    options: PostgresOptions,
    /// The secret by which the nodes recognise each other.
    pub(crate) secret: String,
    pub(crate) name: String,
    pub(crate) advertise: String,
}

impl ClusterNode {
    /// Reads what the flags and the environment say; `None` if the sessions are in files.
    ///
    /// # Errors
    /// What is missing or unusable, and what to do about it.
    pub(crate) fn of(
        args: &ClusterArgs,
        listen: SocketAddr,
        surroundings: &Surroundings,
    ) -> Result<Option<Self>> {
        let given = |flag: &Option<String>, name: &str| flag.clone().or_else(|| surroundings.variable(name));
        let Some(url) = given(&args.store, STORE) else {
            let unused = args.node.is_some()
                || args.advertise.is_some()
                || args.cluster_secret_file.is_some()
                || args.lease.is_some();
            return match unused {
                true => Err(usage(
                    "--node, --advertise, --lease and --cluster-secret-file need --store".to_owned(),
                )),
                false => Ok(None),
            };
        };
        check_url("--store", &url)?;
        let advertise = given(&args.advertise, ADVERTISE).map_or_else(|| reached_at(listen), Ok)?;
        let authority = advertise.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let authority = authority.filter(|rest| rest.contains(':') && !rest.contains(['/', '@', '?']));
        let Some(authority) = authority.map(str::to_owned) else {
            return Err(usage(format!(
                "--advertise {advertise}: other nodes need an address such as http://10.0.0.5:7878, with its port"
            )));
        };
        let secret = secret(args.cluster_secret_file.as_deref(), surroundings)?;
        secrets::note("cluster_secret", &secret);
        let name = given(&args.node, NODE).unwrap_or(authority);
        if name.is_empty() || name.len() > NODE_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(usage(format!(
                "--node takes a name of at most {NODE_BYTES_MAX} bytes, without control characters"
            )));
        }
        let mut options = PostgresOptions::new(url, &name);
        options.address = Some(advertise.clone());
        if let Some(lease) = args.lease {
            if !LEASES.contains(&lease) {
                return Err(usage(format!(
                    "--lease must be from {} to {} seconds",
                    LEASES.start(),
                    LEASES.end()
                )));
            }
            options.lease = Duration::from_secs_f64(lease);
        }
        Ok(Some(Self { options, secret, name, advertise }))
    }

    /// The name in the `Host` header of other nodes' requests.
    pub(crate) fn host_name(&self) -> String {
        self.advertise.trim_start_matches("http://").trim_end_matches('/').to_ascii_lowercase()
    }

    /// Connects to the database and registers the node. A database that cannot be reached is tried again for so long.
    ///
    /// # Errors
    /// The database cannot be reached or used, or another process has the node's name.
    pub(crate) async fn connect(&self, global: &Global, wait: Duration) -> Result<Arc<dyn Engine>> {
        let until = Instant::now() + wait;
        let mut is_said = false;
        loop {
            match Postgres::connect(&self.options).await {
                Ok(connected) => return Ok(Arc::new(connected)),
                Err(StoreError::Unavailable { detail }) if Instant::now() < until => {
                    if !std::mem::replace(&mut is_said, true) {
                        let line = format!(
                            "greenroom: the database is not available ({detail}); waiting up to {} s for it",
                            wait.as_secs()
                        );
                        Screen::stderr(global.color).line(line)?;
                    }
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Err(error) => {
                    let joining = format!("join the cluster as node {}", self.name);
                    return Err(anyhow::Error::new(error).context(joining));
                }
            }
        }
    }

    /// Checks that this node and the others can work together, now that it answers requests.
    ///
    /// # Errors
    /// Another node has another secret, or announces the same address.
    pub(crate) async fn check(&self, global: &Global, engine: &Arc<dyn Engine>) -> Result<()> {
        let Some(placement) = engine.placement() else { return Ok(()) };
        let members = placement.members().await?;
        let others = members.into_iter().filter(|member| member.node != self.name);
        let others: Vec<(String, String)> =
            others.filter_map(|other| Some((other.node, other.address?))).collect();
        if let Some((node, _)) = others.iter().find(|(_, address)| *address == self.advertise) {
            return Err(usage(format!(
                "node {node} announces the same address, {}; give each its own with --advertise, or wait until the lease \
                 of one that has ended has run out",
                self.advertise
            )));
        }
        let mut asked = JoinSet::new();
        for (node, address) in others {
            let secret = self.secret.clone();
            asked.spawn(async move { (ask_node(&node, &address, Some(&secret)).await, node, address) });
        }
        while let Some(answer) = asked.join_next().await {
            if let Ok((NodeAnswer::OtherSecret, node, address)) = answer {
                return Err(usage(format!(
                    "node {node} at {address} has another cluster secret; give all nodes the same {CLUSTER_SECRET}"
                )));
            }
        }
        let reason = match ask_node(&self.name, &self.advertise, Some(&self.secret)).await {
            NodeAnswer::Ready => return Ok(()),
            NodeAnswer::OtherNode(node) => {
                return Err(usage(format!(
                    "node {node} answers at {}; give each its own address with --advertise",
                    self.advertise
                )));
            }
            NodeAnswer::OtherSecret => "another server answers there".to_owned(),
            NodeAnswer::NotReady(reason) | NodeAnswer::None(reason) => reason,
        };
        warn(
            global,
            &format!(
                "this node does not reach itself at {} ({reason}); if the other nodes do not reach it there either, they \
                 cannot forward requests to it: check --advertise",
                self.advertise
            ),
        )
    }
}

/// Takes the data directory for this node: its token and the files kept for undo are its own.
///
/// # Errors
/// Another node has it.
pub(crate) fn lock(data_dir: &Path) -> Result<File> {
    let path = data_dir.join(LOCK_FILE);
    private::create_folders(data_dir).with_context(|| format!("create {}", data_dir.display()))?;
    let file = private::append(&path).with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(usage(format!(
            "another node uses the data directory {}; give each node its own with --data-dir",
            data_dir.display()
        ))),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

/// Notes the URL as a secret, and checks its form.
fn check_url(flag: &str, url: &str) -> Result<()> {
    secrets::note("store", url);
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(());
    }
    Err(usage(format!(
        "{flag} takes the URL of a PostgreSQL database: postgres://USER:PASSWORD@HOST/DATABASE"
    )))
}

/// The database of a cluster, for commands that look after it.
pub(crate) struct Database {
    options: PostgresOptions,
}

impl Database {
    fn new(url: String, what: &str) -> Self {
        Self { options: PostgresOptions::new(url, format!("{what} {}", std::process::id())) }
    }

    /// Joins as the only node. Waits for the lease of a copy that was killed to run out.
    ///
    /// # Errors
    /// The database cannot be reached or used, or nodes are running.
    pub(crate) async fn connect(&self, global: &Global) -> Result<Arc<Postgres>> {
        let until = Instant::now() + self.options.lease + AGAIN_AFTER;
        let mut is_said = false;
        loop {
            let running = self.running().await?;
            let [first, ..] = &*running else { break };
            if Instant::now() >= until || running.iter().any(|node| !node.starts_with(COPY)) {
                return Err(usage(format!(
                    "nodes use the database: {}; stop them first, and wait until their leases have run out",
                    running.join(", ")
                )));
            }
            if !std::mem::replace(&mut is_said, true) {
                let line = format!("greenroom: waiting for the lease of another copy ({first}) to run out");
                Screen::stderr(global.color).line(line)?;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        let database = Arc::new(Postgres::connect(&self.options).await?);
        // Another one may have joined in the meantime.
        let members = database.members().await?;
        let Some(other) = members.iter().find(|member| member.node != self.options.node) else {
            return Ok(database);
        };
        database.close().await?;
        Err(usage(format!("{} has begun to use the database; stop it first", other.node)))
    }

    /// The nodes whose leases are valid.
    async fn running(&self) -> Result<Vec<String>> {
        let nodes = self.survey().await?.nodes;
        Ok(nodes.into_iter().filter(|node| node.lease_seconds > 0.0).map(|node| node.name).collect())
    }

    /// Checks that there is something to copy from.
    ///
    /// # Errors
    /// The database has no tables.
    pub(crate) async fn check_filled(&self) -> Result<()> {
        if self.survey().await?.tables > 0 {
            return Ok(());
        }
        Err(usage("the database has no sessions: no node has used it yet; check the URL".to_owned()))
    }

    /// Looks at the cluster without joining it.
    ///
    /// # Errors
    /// The database cannot be reached or used.
    pub(crate) async fn survey(&self) -> Result<Survey, StoreError> {
        Postgres::survey(&self.options).await
    }
}

/// The database that `store copy` copies to or from.
///
/// # Errors
/// No URL is given, or it is not one of PostgreSQL.
pub(crate) fn for_copy(url: Option<String>, surroundings: &Surroundings) -> Result<Database> {
    let url = url.or_else(|| surroundings.variable(STORE));
    let none = || usage(format!("no database is named; give its URL, or set {STORE}"));
    let url = url.ok_or_else(none)?;
    check_url("store copy", &url)?;
    Ok(Database::new(url, COPY))
}

/// The database of `doctor`, and the cluster's secret if it is known; `None` if the sessions are in files.
///
/// # Errors
/// The URL is not one of PostgreSQL, or the secret cannot be read.
pub(crate) fn for_doctor(
    args: &DoctorArgs,
    surroundings: &Surroundings,
) -> Result<Option<(Database, Option<String>)>> {
    let Some(url) = args.store.clone().or_else(|| surroundings.variable(STORE)) else { return Ok(None) };
    check_url("--store", &url)?;
    let file = args.cluster_secret_file.as_deref();
    let is_known = file.is_some() || surroundings.variable(CLUSTER_SECRET).is_some();
    let secret = is_known.then(|| secret(file, surroundings)).transpose()?;
    if let Some(secret) = &secret {
        secrets::note("cluster_secret", secret);
    }
    Ok(Some((Database::new(url, "doctor"), secret)))
}

/// The address of a server that listens here, for other nodes.
fn reached_at(listen: SocketAddr) -> Result<String> {
    if listen.ip().is_unspecified() || listen.port() == 0 {
        return Err(usage(format!(
            "other nodes cannot reach {listen}: give the address of this one with --advertise, e.g. --advertise \
             http://10.0.0.5:7878"
        )));
    }
    Ok(format!("http://{listen}"))
}

fn secret(file: Option<&Path>, surroundings: &Surroundings) -> Result<String> {
    let secret = match file {
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| {
                usage(format!("--cluster-secret-file {}: {error}", path.display()))
            };
            let (file, metadata) = greenroom_files::open(path, true).map_err(|error| wrong(&error))?;
            let bytes = greenroom_files::read_all(file, SECRET_BYTES_MAX).map_err(|error| wrong(&error))?;
            access::check(&metadata, Need::Private).map_err(|exposed| {
                let remedy = format!("run `chmod 600 {}`, or set {CLUSTER_SECRET} instead", path.display());
                wrong(&format!("others may know the secret: {exposed}; {remedy}"))
            })?;
            String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned()
        }
        None => surroundings.variable(CLUSTER_SECRET).ok_or_else(|| {
            usage(format!(
                "the nodes of a cluster recognise each other by a secret: set {CLUSTER_SECRET}, or name a file with \
                 --cluster-secret-file, with the same 32 or more characters on each node (`openssl rand -hex 32` prints some)"
            ))
        })?,
    };
    check_token(&secret).map_err(|error| {
        usage(format!("the cluster's secret is not used: {error}; `openssl rand -hex 32` prints a good one"))
    })?;
    Ok(secret)
}

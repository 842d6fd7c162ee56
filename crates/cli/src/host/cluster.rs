//! A node of a cluster: the database that it shares with others, its name, and the address at which they reach it.
//!
//! Invariants: the database's URL and the cluster's secret may be in the environment or in a file, are in no error and no
//! log, and no process sees them in the list of processes unless the user wrote the URL into the command line.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom::internal::Survey;
use greenroom::postgres::{Postgres, PostgresOptions};
use greenroom::{Engine, StoreError};
use greenroom_server::check_token;
use greenroom_store::Placement as _;

use crate::args::{ClusterArgs, DoctorArgs};
use crate::config::overrides::{ADVERTISE, CLUSTER_SECRET, NODE, STORE};
use crate::config::surroundings::Surroundings;
use crate::error::{secrets, usage};

/// How long a lease may be.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(300);
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
        let mut options = PostgresOptions::new(url, &name);
        options.address = Some(advertise.clone());
        if let Some(lease) = args.lease {
            let lease = Duration::try_from_secs_f64(lease).ok().filter(|lease| LEASES.contains(lease));
            let wrong = || usage(format!("--lease takes {LEASES:?}, in seconds"));
            options.lease = lease.ok_or_else(wrong)?;
        }
        Ok(Some(Self { options, secret, name, advertise }))
    }

    /// Connects to the database and registers the node.
    ///
    /// # Errors
    /// The database cannot be reached or used, or another process has the node's name.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn Engine>> {
        let connected: Result<Postgres, StoreError> = Postgres::connect(&self.options).await;
        let connected = connected.with_context(|| format!("join the cluster as node {}", self.name))?;
        Ok(Arc::new(connected))
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

    /// Joins as the only node.
    ///
    /// # Errors
    /// The database cannot be reached or used, or nodes are running.
    pub(crate) async fn connect(&self) -> Result<Arc<Postgres>> {
        let database = Arc::new(Postgres::connect(&self.options).await?);
        let members = database.members().await?;
        let others: Vec<&str> =
            members.iter().map(|member| &*member.node).filter(|node| *node != self.options.node).collect();
        if others.is_empty() {
            return Ok(database);
        }
        let others = others.join(", ");
        database.close().await?;
        Err(usage(format!(
            "nodes use the database: {others}; stop them first, and wait until their leases have run out"
        )))
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
    Ok(Database::new(url, "copy"))
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
            let context = || format!("read the cluster's secret in {}", path.display());
            let (file, _) = greenroom_files::open(path, true).with_context(context)?;
            let bytes = greenroom_files::read_all(file, SECRET_BYTES_MAX).with_context(context)?;
            String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned()
        }
        None => surroundings.variable(CLUSTER_SECRET).ok_or_else(|| {
            usage(format!(
                "the nodes of a cluster recognise each other by a secret: set {CLUSTER_SECRET}, or name a file with \
                 --cluster-secret-file, with the same 32 or more characters on each node"
            ))
        })?,
    };
    check_token(&secret).map_err(|error| usage(format!("the cluster's secret: {error}")))?;
    Ok(secret)
}

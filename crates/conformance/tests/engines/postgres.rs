//! PostgreSQL: every point.
//!
//! Invariants: each test has a server of its own, and each point a schema. Without a server they are skipped, and say so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom_conformance::proxy::{Mode, Proxy};
use greenroom_conformance::server::Server;
use greenroom_conformance::{Cluster, Fixture, points};
use greenroom_postgres::{Postgres, PostgresOptions};
use greenroom_store::{Answer, Engine, Store, StoreError, StoreOptions};
use parking_lot::Mutex;

mod admission;
mod fence;
mod power_cut;

/// A schema of a server.
struct Schema {
    server: Arc<Server>,
    name: String,
    lease: Duration,
    patience: Duration,
    /// Before each node, if they can be held.
    proxies: Option<Mutex<HashMap<String, Arc<Proxy>>>>,
    /// For what the engine is not asked.
    admin: tokio_postgres::Client,
}

impl Schema {
    async fn new(server: &Arc<Server>) -> Self {
        let (admin, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("the server is there");
        drop(tokio::spawn(connection));
        Self {
            server: Arc::clone(server),
            name: server.new_schema(),
            lease: Duration::from_secs(10),
            patience: Duration::from_secs(20),
            proxies: None,
            admin,
        }
    }

    /// One whose nodes can be held, with a lease of this length.
    async fn cluster(server: &Arc<Server>, lease: Duration) -> Self {
        Self { proxies: Some(Mutex::default()), lease, ..Self::new(server).await }
    }

    fn options(&self, url: String, node: &str) -> PostgresOptions {
        let mut options = PostgresOptions::new(url, node);
        (options.schema, options.lease, options.patience) = (self.name.clone(), self.lease, self.patience);
        options
    }

    async fn connect(&self, url: String, node: &str) -> Result<Arc<dyn Engine>, StoreError> {
        Ok(Arc::new(Postgres::connect(&self.options(url, node)).await?))
    }
}

impl Fixture for Schema {
    fn open<'a>(&'a self, node: &'a str) -> Answer<'a, Arc<dyn Engine>> {
        Box::pin(async move {
            let Some(proxies) = &self.proxies else { return self.connect(self.server.url(), node).await };
            let known = proxies.lock().get(node).cloned();
            let proxy = match known {
                Some(proxy) => proxy,
                None => Arc::new(Proxy::start(self.server.socket()).await),
            };
            proxies.lock().insert(node.to_owned(), Arc::clone(&proxy));
            self.connect(proxy.url(), node).await
        })
    }
}

impl Cluster for Schema {
    fn lease(&self) -> Duration {
        self.lease
    }

    fn hold(&self, node: &str, is_held: bool) {
        let proxies = self.proxies.as_ref().expect("its nodes can be held").lock();
        proxies[node].set(if is_held { Mode::Hold } else { Mode::Pass });
    }

    fn expire<'a>(&'a self, node: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let statement =
                format!("update {}.node set expires = clock_timestamp() where name = $1", self.name);
            let changed = self.admin.execute(&statement, &[&node]).await.expect("it is changed");
            assert_eq!(changed, 1, "there is a node {node}");
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_owner() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    points::log::batches(&Schema::new(&server).await).await;
    points::log::keys(&Schema::new(&server).await).await;
    points::log::reads(&Schema::new(&server).await).await;
    points::log::deletion(&Schema::new(&server).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn like_memory() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    points::log::like_memory(&Schema::new(&server).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_and_numbers() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    points::log::sizes(&Schema::new(&server).await).await;
    points::log::walk(&Schema::new(&server).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let second = Duration::from_secs(1);
    points::owners::newer_owner_writes(&Schema::new(&server).await).await;
    points::owners::epochs_grow(&Schema::cluster(&server, second).await).await;
    points::owners::claims_race(&Schema::cluster(&server, second).await).await;
    points::owners::reads_by_others(&Schema::new(&server).await).await;
    points::owners::deleted_for_others(&Schema::cluster(&server, 10 * second).await).await;
    points::owners::placed(&Schema::cluster(&server, 3 * second).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn takeovers_race() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    points::owners::takeover_races(&Schema::cluster(&server, Duration::from_secs(3)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_nodes() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let second = Duration::from_secs(1);
    points::owners::frozen_owner(&Schema::cluster(&server, second).await).await;
    points::owners::lease_ends_in_time(&Schema::cluster(&server, second).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::new(&server).await;
    schema.patience = Duration::from_secs(60);
    let proxy = Proxy::start(server.socket()).await;
    // Connections are cut all the time, and this is not about the lease.
    schema.lease = Duration::from_secs(600);
    let engine = schema.connect(proxy.url(), "a").await.expect("it connects");
    points::faults::cuts(&engine, &proxy).await;
    engine.close().await.expect("it closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn kills() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::new(&server).await;
    (schema.patience, schema.lease) = (Duration::from_secs(60), Duration::from_secs(600));
    let engine = schema.open("a").await.expect("it connects");
    points::faults::kills(&engine, &server).await;
    engine.close().await.expect("it closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn away_and_back() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::new(&server).await;
    (schema.patience, schema.lease) = (Duration::from_millis(600), Duration::from_secs(600));
    let proxy = Proxy::start(server.socket()).await;
    let engine = schema.connect(proxy.url(), "a").await.expect("it connects");
    points::faults::away(&engine, &proxy).await;
    engine.close().await.expect("it closes");
    schema.patience = Duration::from_secs(20);
    let engine = schema.open("a").await.expect("it connects");
    points::faults::set_back(&engine, &server).await;
    engine.close().await.expect("it closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn copies() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let journal = |name: &str| -> Arc<dyn Engine> {
        Arc::new(Store::open(&StoreOptions::new(folder.path().join(name))).expect("it opens").0)
    };
    let postgres = Schema::new(&server).await.open("a").await.expect("it connects");
    points::copies::there_and_back(&journal("from"), &postgres, &journal("back")).await;
    postgres.close().await.expect("it closes");
}

//! The lock that orders appends and takeovers, and what a node does when its lease has run out without its knowledge.
//!
//! Invariants: another client of the server plays the part of an append or of a takeover that is under way. A test goes on
//! when the server shows that the engine waits for it.

use super::*;

use greenroom_conformance::kit::{append, batch, kind, whole};
use greenroom_kernel::EntryId;
use greenroom_store::{Appended, Claim};

/// How long a test waits for what must happen.
const WAIT_MAX: Duration = Duration::from_secs(20);

impl Schema {
    /// Runs statements about this schema, and returns the first column of the first row as a number.
    async fn ask(&self, statement: &str) -> i64 {
        let statement = statement.replace("{s}", &self.name);
        let rows = self.admin.query(&statement, &[]).await.expect("it is a statement");
        rows.first().map_or(0, |row| row.get(0))
    }

    async fn run(&self, statements: &str) {
        let statements = statements.replace("{s}", &self.name);
        self.admin.batch_execute(&statements).await.expect("they are statements");
    }

    /// Waits until a statement of the engine waits for an advisory lock: an append for a `ShareLock`, a claim for an
    /// `ExclusiveLock`.
    async fn engine_waits(&self, mode: &str) {
        let waiting = format!(
            "select count(*) from pg_locks where locktype = 'advisory' and mode = '{mode}' and not granted"
        );
        let waits = async {
            while self.ask(&waiting).await == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT_MAX, waits).await.expect("a statement of the engine waits for the lock");
    }
}

/// An append that is under way when the lease has run out is in what the next owner finds.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_waits_for_appends_under_way() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::new(&server).await;
    schema.lease = Duration::from_secs(1);
    let old = schema.open("old").await.expect("it connects");
    append(old.as_ref(), "s", batch(0, 1, "x", None)).await;
    let new = schema.open("new").await.expect("it connects");
    // The second append, which is not committed yet.
    schema
        .run(
            "begin; select pg_advisory_xact_lock_shared(hashtextextended('greenroom {s}', owner)) from {s}.session;
             insert into {s}.entry (session, id, epoch, body, head)
             select e.session, 1, e.epoch, e.body, s.head from {s}.entry e join {s}.session s on s.id = e.session",
        )
        .await;
    drop(old);
    let claiming = {
        let new = Arc::clone(&new);
        tokio::spawn(async move {
            let placement = new.placement().expect("it has one");
            while !matches!(placement.claim("s").await.expect("an answer"), Claim::Mine { .. }) {}
        })
    };
    schema.engine_waits("ExclusiveLock").await;
    assert!(!claiming.is_finished(), "the session was taken over under an append");
    schema.run("commit").await;
    claiming.await.expect("it is claimed");
    let behind = new.append("s", batch(1, 1, "y", None)).await;
    match behind {
        Err(StoreError::Sequence { expected: EntryId(2), .. }) => {}
        other => panic!("the append under way was not found: {other:?}"),
    }
    append(new.as_ref(), "s", batch(2, 1, "y", None)).await;
    new.close().await.expect("it closes");
}

/// An append waits for a takeover under way, and is refused after it.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_waits_for_a_takeover_under_way() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::new(&server).await;
    let engine = schema.open("a").await.expect("it connects");
    append(engine.as_ref(), "s", batch(0, 1, "x", None)).await;
    schema
        .run(
            "begin; select pg_advisory_xact_lock(hashtextextended('greenroom {s}', owner)) from {s}.session;
             update {s}.node set expires = clock_timestamp() - interval '1 second'",
        )
        .await;
    let appending = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { engine.append("s", batch(1, 1, "late", None)).await })
    };
    schema.engine_waits("ShareLock").await;
    schema.run("commit").await;
    let refused = appending.await.expect("it ends");
    assert_eq!(kind(&refused.expect_err("the lease had run out")), "fenced");
    assert_eq!(schema.ask("select count(*) from {s}.entry").await, 1, "nothing was written");
    engine.close().await.expect("it closes");
}

/// A lease that has run out by the server's clock is lost, although the node's own clock says otherwise: nothing of any
/// session is written, and the node is told.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_nothing_is_written() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::new(&server).await;
    // The next renewal is far away.
    schema.lease = Duration::from_secs(600);
    let engine = schema.open("a").await.expect("it connects");
    for session in ["quiet", "titled"] {
        append(engine.as_ref(), session, batch(0, 1, "x", None)).await;
    }
    let placement = engine.placement().expect("it has one");
    let lost = placement.lost(0);
    schema.run("update {s}.node set expires = clock_timestamp() - interval '1 second'").await;
    let mut titled = batch(1, 1, "late", None);
    Arc::make_mut(&mut titled.head).title = Some("new".to_owned());
    for (session, batch) in [("quiet", batch(1, 1, "late", None)), ("titled", titled)] {
        let refused = engine.append(session, batch).await.expect_err("the lease had run out");
        assert_eq!(kind(&refused), "fenced", "{session}");
    }
    let losses = tokio::time::timeout(WAIT_MAX, lost).await.expect("the loss is announced");
    assert_eq!(losses, 1);
    assert_eq!(schema.ask("select count(*) from {s}.entry").await, 2, "nothing was written");
    engine.close().await.expect("it closes");
}

/// A lease that is granted so late that it has run out is none: the node gets another one, and loses nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_comes_too_late_is_not_lost_again() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::cluster(&server, Duration::from_secs(1)).await;
    schema.patience = Duration::from_secs(20);
    let engine = schema.open("a").await.expect("it connects");
    let placement = engine.placement().expect("it has one");
    let (lost, lost_again) = (placement.lost(0), placement.lost(1));
    schema.run("begin; lock table {s}.node in access exclusive mode; select pg_sleep(4); commit").await;
    assert_eq!(tokio::time::timeout(WAIT_MAX, lost).await.expect("the loss is announced"), 1);
    let has_lease = async {
        while placement.check().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, has_lease).await.expect("there is a lease again");
    let again = tokio::time::timeout(Duration::from_secs(2), lost_again).await;
    assert!(again.is_err(), "the lease is kept: {again:?}");
    engine.close().await.expect("it closes");
}

/// A batch that is in doubt is not overtaken by the release of its session: the next owner finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_waits_for_what_is_in_doubt() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let mut schema = Schema::cluster(&server, Duration::from_secs(600)).await;
    schema.patience = Duration::from_millis(600);
    let engine = schema.open("a").await.expect("it connects");
    for number in 0..12 {
        append(engine.as_ref(), "s", batch(number, 1, "x", None)).await;
    }
    // The append waits in the server for this lock, until its caller has given up.
    schema
        .run(
            "begin; select pg_advisory_xact_lock(hashtextextended('greenroom {s}', owner)) from {s}.session
             where owner is not null limit 1",
        )
        .await;
    let doubtful = engine.append("s", batch(12, 1, "late", None)).await.expect_err("it gets no answer");
    assert_eq!(kind(&doubtful), "in doubt");
    let releasing = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move {
            let placement = engine.placement().expect("it has one");
            while placement.release("s", None).await.is_err() {}
        })
    };
    schema.engine_waits("ExclusiveLock").await;
    assert_eq!(schema.ask("select count(*) from {s}.session where owner is null").await, 0);
    schema.run("commit").await;
    releasing.await.expect("it is released");
    assert_eq!(schema.ask("select count(*) from {s}.session where owner is null").await, 1);
    let entries = whole(engine.as_ref(), "s").await.len() as u64;
    // Whether or not it was written: from now on that does not change.
    let next = engine.append("s", batch(entries, 1, "next", None)).await.expect("it follows");
    assert_eq!(next, Appended::Written { first: EntryId(entries), next: EntryId(entries + 1) });
    engine.close().await.expect("it closes");
}

/// After a new connection, an owner that knows more than the tables writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_may_be_to_an_older_state() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::new(&server).await;
    let engine = schema.open("a").await.expect("it connects");
    for number in 0..3 {
        append(engine.as_ref(), "s", batch(number, 1, "x", None)).await;
    }
    schema.run("delete from {s}.entry where id = 2").await;
    server.terminate_all();
    match engine.append("s", batch(3, 1, "late", None)).await {
        Err(StoreError::SetBack { from: EntryId(2), .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(schema.ask("select count(*) from {s}.entry").await, 2, "nothing was written");
    engine.close().await.expect("it closes");
}

/// The tables of version 1 become those of this version, with what is in them; not while a node of that version runs.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_version_1_are_migrated() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::new(&server).await;
    // What version 1 has written: heads in rows, entries without them.
    let source = schema.open("source").await.expect("it connects");
    append(source.as_ref(), "s", batch(0, 3, "old", Some("k"))).await;
    source.close().await.expect("it closes");
    let first = include_str!("../../../../postgres/src/migrations/001.sql").replace("{s}", "first");
    schema.run(&format!("create schema first; {first}")).await;
    schema
        .run(
            "insert into first.session select * from {s}.session;
             insert into first.entry select session, id, epoch, body from {s}.entry;
             insert into first.key select * from {s}.key;
             insert into first.node values ('running', 99, null, clock_timestamp() + interval '1 hour', false)",
        )
        .await;
    let mut options = schema.options(server.url(), "a");
    options.schema = "first".to_owned();
    let refused = Postgres::connect(&options).await.expect_err("a node runs");
    assert!(refused.to_string().contains("(running): stop them first"), "{refused}");
    assert_eq!(schema.ask("select version::int8 from first.version").await, 1);

    schema.run("delete from first.node").await;
    let engine = Postgres::connect(&options).await.expect("it migrates");
    assert_eq!(schema.ask("select version::int8 from first.version").await, 2);
    assert_eq!(whole(&engine, "s").await, ["old", "old", "old"]);
    let again = engine.append("s", batch(3, 1, "x", Some("k"))).await.expect("no error");
    assert_eq!(again, Appended::Duplicate { first: EntryId(0) });
    append(&engine, "s", batch(3, 2, "new", None)).await;
    append(&engine, "s", batch(5, 2, "newer", None)).await;
    assert_eq!(whole(&engine, "s").await, ["old", "old", "old", "new", "new", "newer", "newer"]);
    engine.close().await.expect("it closes");
}

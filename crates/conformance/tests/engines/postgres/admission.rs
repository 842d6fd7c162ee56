//! Which servers, schemas and nodes are let in.

use super::*;

use greenroom_conformance::kit::{append, batch, kind, refused, texts, whole};
use greenroom_kernel::EntryId;

fn fails(result: Result<Arc<dyn Engine>, StoreError>, expected: &str, part: &str) {
    match result {
        Err(error) if kind(&error) == expected && error.to_string().contains(part) => {}
        Err(error) => panic!("`{error}` ({}) instead of {expected} with `{part}`", kind(&error)),
        Ok(engine) => panic!("{engine:?} instead of {expected} with `{part}`"),
    }
}

/// A second process of the same name is refused, one that follows a killed one is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_belongs_to_one_process() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::cluster(&server, Duration::from_secs(1)).await;
    let first = schema.open("a").await.expect("it connects");
    append(first.as_ref(), "s", batch(0, 1, "x", None)).await;
    fails(schema.open("a").await, "unsuitable", "another process uses the node name a");
    append(first.as_ref(), "s", batch(1, 1, "x", None)).await;
    // It ends without a word. What it owned is free as soon as the name is.
    drop(first);
    let second = schema.open("a").await.expect("it waits for the lease of the first");
    append(second.as_ref(), "s", batch(2, 1, "x", None)).await;
    assert_eq!(whole(second.as_ref(), "s").await.len(), 3);
    second.close().await.expect("it closes");
    // After an orderly end there is nothing to wait for.
    let third = schema.open("a").await.expect("it connects");
    third.close().await.expect("it closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_may_lose_something_are_refused() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::new(&server).await;
    let restart = |settings: &'static [&'static str]| {
        server.stop();
        server.start_with(settings);
    };
    for (settings, part) in [
        (&["fsync=off"][..], "fsync is off"),
        (&["full_page_writes=off", "synchronous_commit=off"], "full_page_writes, synchronous_commit is off"),
        (&["default_transaction_read_only=on"], "only reads"),
    ] {
        restart(settings);
        fails(schema.open("a").await, "unsuitable", part);
    }
    restart(&["fsync=off", "synchronous_commit=off"]);
    let mut options = schema.options(server.url(), "a");
    options.allows_loss = true;
    let engine = Postgres::connect(&options).await.expect("it is allowed");
    append(&engine, "s", batch(0, 1, "x", None)).await;
    engine.close().await.expect("it closes");

    server.stop();
    server.start_as_standby();
    fails(schema.open("a").await, "unsuitable", "standby");
}

/// Tables are made once, whoever is first, and those of a newer version are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_a_newer_version_are_refused() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Arc::new(Schema::new(&server).await);
    let nodes = (0..8).map(|number| {
        let schema = Arc::clone(&schema);
        tokio::spawn(async move { schema.open(&format!("n{number}")).await.expect("it connects") })
    });
    for node in nodes.collect::<Vec<_>>() {
        let engine = node.await.expect("a node is well");
        append(engine.as_ref(), &format!("s {}", engine.node()), batch(0, 1, "x", None)).await;
        engine.close().await.expect("it closes");
    }
    // A user who may create nothing uses the tables.
    let name = &schema.name;
    server.sql(&format!(
        "create user plain; grant usage on schema {name} to plain; grant all on all tables in schema {name} to plain; \
         grant usage on all sequences in schema {name} to plain"
    ));
    let plain = server.url().replace("user=postgres", "user=plain");
    let engine = schema.connect(plain.clone(), "plain").await.expect("it connects");
    append(engine.as_ref(), "s plain", batch(0, 1, "x", None)).await;
    assert_eq!(engine.page(None, 20).await.expect("it is listed").len(), 9);
    engine.close().await.expect("it closes");
    let mut other = schema.options(plain, "plain");
    other.schema = "elsewhere".to_owned();
    fails(
        Postgres::connect(&other).await.map(|engine| Arc::new(engine) as _),
        "unsuitable",
        "permission denied",
    );

    server.sql(&format!("update {name}.version set version = 99"));
    fails(schema.open("a").await, "version", "99");
}

/// What lists and filters find in the columns is what the head says.
#[tokio::test(flavor = "multi_thread")]
async fn columns_repeat_the_head() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::new(&server).await;
    let engine = schema.open("a").await.expect("it connects");
    let mut titled = batch(0, 3, "x", None);
    let head = Arc::make_mut(&mut titled.head);
    head.title = Some("a \0title".to_owned());
    head.labels.insert("tenant".to_owned(), "o'hara \"x\"".to_owned());
    (head.created_at_ms, head.updated_at_ms, head.active_from) = (7, u64::MAX, EntryId(2));
    head.parent_session = Some("p".to_owned());
    head.inbox.push(EntryId(1));
    append(engine.as_ref(), "titled", titled).await;
    append(engine.as_ref(), "plain", batch(0, 1, "x", None)).await;
    let columns = "id, entries, title, labels->>'tenant', created_at_ms, updated_at_ms, is_unfinished, parent, active_from";
    let found = server.sql(&format!("select {columns} from {}.session order by id", schema.name));
    let expected = "plain|1|||0|0|f||0\ntitled|3|a \u{fffd}title|o'hara \"x\"|7|9223372036854775807|t|p|2";
    assert_eq!(found, expected);
    // An append that shows lists nothing new writes no row, so the columns stay as they are until one does.
    let version = || server.sql(&format!("select xmin from {}.session where id = 'plain'", schema.name));
    append(engine.as_ref(), "plain", batch(1, 1, "x", None)).await;
    let before = version();
    for number in 2..60 {
        append(engine.as_ref(), "plain", batch(number, 1, "x", None)).await;
    }
    assert_eq!(version(), before, "the row was written");
    assert_eq!(engine.head("plain").await.expect("it is read").expect("there is one").entries, 60);
    let mut titled = batch(60, 1, "x", None);
    Arc::make_mut(&mut titled.head).title = Some("new".to_owned());
    append(engine.as_ref(), "plain", titled).await;
    let found = server.sql(&format!("select {columns} from {}.session where id = 'plain'", schema.name));
    assert_eq!(found, "plain|61|new||0|0|f||0");
    engine.close().await.expect("it closes");
}

/// What is gone from the tables, or cannot be read, is said to be damaged, and the rest is still read.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_named() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let schema = Schema::new(&server).await;
    let engine = schema.open("a").await.expect("it connects");
    let name = &schema.name;
    for (session, damage, lost) in [
        ("first", "delete from S.entry where session = 'first' and id = 0", vec![(0, 1)]),
        ("middle", "delete from S.entry where session = 'middle' and id in (2, 3)", vec![(2, 4)]),
        ("last", "delete from S.entry where session = 'last' and id = 5", vec![(5, 6)]),
        ("all", "delete from S.entry where session = 'all'", vec![(0, 6)]),
        (
            "bytes",
            "update S.entry set body = '\\x01ff' where session = 'bytes' and id in (1, 4)",
            vec![(1, 2), (4, 5)],
        ),
        ("other", "update S.entry set id = 9 where session = 'other' and id = 3", vec![(3, 4)]),
    ] {
        append(engine.as_ref(), session, batch(0, 6, "x", None)).await;
        server.sql(&damage.replace("S.", &format!("{name}.")));
        refused(engine.load(session, EntryId(0)).await, "damaged", session);
        let first = EntryId(lost[0].0);
        refused(engine.get(session, &[first]).await, "damaged", session);
        let salvaged = engine.salvage(session).await.expect("the rest is read");
        let ranges: Vec<_> = salvaged.lost.iter().map(|(from, until)| (from.0, until.0)).collect();
        assert_eq!(ranges, lost, "{session}");
        let count: u64 = lost.iter().map(|(from, until)| until - from).sum();
        assert_eq!(texts(&salvaged.entries).len() as u64, 6 - count, "{session}");
    }
    assert_eq!(engine.load("middle", EntryId(4)).await.expect("what follows is read").len(), 2);
    engine.close().await.expect("it closes");
}

/// With TLS, `verify-full` takes only a certificate of a known authority for the name in the URL.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_as_the_mode_says() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let Some((port, authority)) = server.start_with_tls() else { return };
    let schema = Schema::new(&server).await;
    let url = |host: &str, more: &str| format!("postgres://postgres@{host}:{port}/postgres?{more}");
    let authority = authority.to_string_lossy();
    let verified = format!("sslmode=verify-full&sslrootcert={authority}");
    let cases = [
        (url("localhost", &verified), None),
        (url("127.0.0.1", &verified), Some("TLS")),
        (url("localhost", "sslmode=verify-full"), Some("TLS")),
        (url("localhost", "sslmode=require"), None),
        (url("127.0.0.1", "sslmode=require"), None),
        (url("localhost", "sslmode=prefer"), None),
        (url("localhost", "sslmode=disable"), Some("no encryption")),
        (format!("{} sslmode=require", server.url().replace(" sslmode=disable", "")), Some("TLS")),
    ];
    for (number, (url, refusal)) in cases.into_iter().enumerate() {
        let mut options = schema.options(url.clone(), "a");
        options.patience = Duration::from_secs(10);
        match (Postgres::connect(&options).await, refusal) {
            (Ok(engine), None) => {
                append(&engine, &format!("s{number}"), batch(0, 1, "x", None)).await;
                engine.close().await.expect("it closes");
            }
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{url}: {error}"),
            (result, _) => panic!("{url}: {result:?}, expected {refusal:?}"),
        }
    }
}

//! A host in this process: who is served, when it ends, and what it leaves behind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_server::Client;
use greenroom_server::operations::{ClientKind, StopHost};
use greenroom_terminal::screen::ColorChoice;
use tokio::io::AsyncReadExt as _;
use tokio::time::{sleep, timeout};

use super::socket::Connected;
use super::*;

pub(in crate::host) mod played;

const SECOND: Duration = Duration::from_secs(1);
const LOOKS: Who<'_> =
    Who { kind: ClientKind::Watch, agent: None, checks_server: false, patience: None, last_valid: None };

/// A host with a lock of its own; `None` if processes cannot identify each other here. Its sessions are in
/// memory, because the paused clock advances while a runtime waits for a disk.
async fn host() -> Option<(tempfile::TempDir, Global, Runtime, Answering)> {
    peer::check_possible().ok()?;
    let dir = tempfile::Builder::new().prefix("h").tempdir_in("/tmp").unwrap();
    let lock = std::fs::File::create(dir.path().join("lock")).unwrap();
    lock.lock().unwrap();
    // It is locked as long as this process lives.
    std::mem::forget(lock);
    let runtime = Runtime::builder().provider(Arc::new(Nobody)).in_memory().start().await.unwrap();
    let global = Global {
        trust_folder: false,
        data_dir: Some(dir.path().to_owned()),
        config: None,
        settings: Vec::new(),
        no_host: false,
        verbose: 0,
        color: ColorChoice::Never,
    };
    let answering = Answering::begin(&global, &runtime).unwrap();
    Some((dir, global, runtime, answering))
}

/// Whether the host ends within a few seconds.
async fn ends(answering: &Answering) -> bool {
    timeout(5 * SECOND, answering.must_end()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_host_serves_its_clients_and_ends_when_one_stops_it() {
    let Some((_dir, global, runtime, answering)) = host().await else { return };
    assert!(reach(&global, &LOOKS).await.unwrap().is_some());
    assert!(!ends(&answering).await);
    let dir = agent::data_dir(&global).unwrap();
    let path = socket::path(&dir).unwrap();
    let Connected::Host(stream, _) = socket::connect(&dir, &path).await.unwrap() else { panic!("no host") };
    let (input, output) = stream.into_split();
    Client::new(input, output).call(StopHost { force: false }).await.unwrap();
    assert!(ends(&answering).await);
    answering.end(runtime, async {}).await.unwrap();
    assert!(reach(&global, &LOOKS).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_a_part_of_a_program_is_not_stopped_by_clients() {
    let Some((_dir, global, _runtime, answering)) = host().await else { return };
    let answering = answering.part_of("greenroom serve");
    let error = stop(&global, false).await.unwrap_err();
    assert!(error.to_string().contains("greenroom serve"), "{error}");
    assert!(!ends(&answering).await);
}

#[tokio::test(start_paused = true)]
async fn a_host_ends_when_its_store_was_moved() {
    let Some((dir, _global, _runtime, answering)) = host().await else { return };
    assert!(!ends(&answering).await);
    std::fs::rename(dir.path().join("lock"), dir.path().join("moved")).unwrap();
    assert!(ends(&answering).await);
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_was_removed_is_created_again_and_serves() {
    let Some((_dir, global, _runtime, _answering)) = host().await else { return };
    let path = socket::path(&agent::data_dir(&global).unwrap()).unwrap();
    for _ in 0..2 {
        std::fs::remove_file(&path).unwrap();
        sleep(2 * SECOND).await;
        assert!(reach(&global, &LOOKS).await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_ends_serves_nobody_and_leaves_no_socket() {
    let Some((_dir, global, _runtime, answering)) = host().await else { return };
    let path = socket::path(&agent::data_dir(&global).unwrap()).unwrap();
    answering.is_ending.store(true, Ordering::Relaxed);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let read = timeout(SECOND, stream.read(&mut [0; 1])).await.expect("the connection ends");
    assert_eq!(read.unwrap_or(0), 0);
    // It is not created again once it has gone.
    std::fs::remove_file(&path).unwrap();
    sleep(3 * SECOND).await;
    assert!(!path.exists());
    drop(answering);

    let Some((_dir, global, runtime, answering)) = host().await else { return };
    let path = socket::path(&agent::data_dir(&global).unwrap()).unwrap();
    let is_ending = Arc::clone(&answering.is_ending);
    answering.end(runtime, async {}).await.unwrap();
    assert!(is_ending.load(Ordering::Relaxed) && !path.exists());

    let Some((_dir, global, _runtime, answering)) = host().await else { return };
    let path = socket::path(&agent::data_dir(&global).unwrap()).unwrap();
    assert!(path.exists());
    drop(answering);
    assert!(!path.exists());
    sleep(3 * SECOND).await;
    assert!(!path.exists(), "nobody creates it again");
}

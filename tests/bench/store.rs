//! Durable appends per second: the store's group commit with ever more writers.
//!
//! The baseline is the minimum work of a log: one file, and one thread that writes everything that waits at
//! once, syncs it once and acknowledges it. In both, each writer waits for every acknowledgement before its
//! next append. They are measured in turns: a disk's throughput depends on its other load.
//!
//! Then the store through [`Engine`], as the runtime uses it, beside the store's own methods.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use greenroom_kernel::Head;
use greenroom_kernel::{Block, Entry, EntryId, EntryKind, Message};
use greenroom_store::{Batch, Engine, Opened, Store, StoreOptions};
use greenroom_tests::measure::{cpu_s, figure, middle, ratio, scaled, title};
use tokio::sync::{mpsc, oneshot};

/// The text of one entry, in bytes.
const BYTES: usize = 1_024;
const ROUNDS: usize = 9;
/// These differ by little.
const ENGINE_ROUNDS: usize = 21;

/// A record to write, and the writer that waits for it.
type Waiting = (Vec<u8>, oneshot::Sender<()>);

#[tokio::main]
async fn main() {
    title("durable appends of 1 KiB a second", "a plain file with one fdatasync for all records that wait");
    let dir = tempfile::tempdir().expect("a folder");
    let file = File::create(dir.path().join("plain")).expect("a file");
    let (plain, queue) = mpsc::channel(1_024);
    let plain_writer = std::thread::spawn(move || write_groups(file, queue));
    let (store, _) = Store::open(&StoreOptions::new(dir.path().join("store"))).expect("a store");
    println!(
        "| writers | plain file, appends/s | store, appends/s | ratio | CPU µs, plain | CPU µs, store |"
    );
    println!(
        "|---------|-----------------------|------------------|-------|---------------|---------------|"
    );
    for (writers, each) in [(1, 2_000), (64, 1_000), (1_000, 150)] {
        let each = scaled(each).div_ceil(ROUNDS);
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let plain = measured(writers, each, |_, _| append_plain(plain.clone(), each)).await;
            let name = |writer| format!("{writers}-{round}-{writer}");
            let store =
                measured(writers, each, |writer, _| append_store(store.clone(), name(writer), each)).await;
            rounds.push([plain, store]);
        }
        let of = |way: usize, column: usize| {
            middle(&rounds.iter().map(|round| round[way][column]).collect::<Vec<_>>())
        };
        let ratios: Vec<_> = rounds.iter().map(|[plain, store]| ratio(store[0], plain[0])).collect();
        let ratio = middle(&ratios);
        println!(
            "| {writers:>7} | {:>21.0} | {:>16.0} | {ratio:>5.2} | {:>13.1} | {:>13.1} |",
            of(0, 0),
            of(1, 0),
            of(0, 1),
            of(1, 1)
        );
        figure(&format!("store/append_{writers}"), of(1, 0), "appends/s", Some(ratio));
    }
    through_the_engine(&store).await;
    store.close().await.expect("an orderly end");
    drop(plain);
    plain_writer.join().expect("the writer does not panic");
}

/// Compares the store through [`Engine`] with its own methods.
async fn through_the_engine(store: &Store) {
    let engine: Arc<dyn Engine> = Arc::new(store.clone());
    let (writers, each) = (64, scaled(2_000).div_ceil(ENGINE_ROUNDS));
    let mut appends = Vec::new();
    let mut opens = Vec::new();
    for round in 0..ENGINE_ROUNDS {
        let name = |way, writer| format!("{way}-{round}-{writer}");
        let direct = async || {
            measured(writers, each, |writer, _| append_store(store.clone(), name("direct", writer), each))
                .await[0]
        };
        let traited = async || {
            let engine = &engine;
            measured(writers, each, |writer, _| {
                append_engine(Arc::clone(engine), name("engine", writer), each)
            })
            .await[0]
        };
        // Each goes first every other time.
        let pair = if round % 2 == 0 {
            let direct = direct().await;
            [direct, traited().await]
        } else {
            let traited = traited().await;
            [direct().await, traited]
        };
        appends.push(pair);
        let ids: Vec<String> = (0..writers).map(|writer| name("direct", writer)).collect();
        let direct = async || {
            let began = Instant::now();
            for id in &ids {
                open_store(store, id).await;
            }
            began.elapsed().as_secs_f64()
        };
        let traited = async || {
            let began = Instant::now();
            for id in &ids {
                engine.open(id).await.expect("it can be read").expect("it is there");
            }
            began.elapsed().as_secs_f64()
        };
        // Once in advance, so that neither reads what the other finds in a cache.
        direct().await;
        opens.push([direct().await, traited().await]);
    }
    println!("\n| through `Engine`, beside the store's own methods | ratio |");
    println!("|--------------------------------------------------|-------|");
    let ratios: Vec<_> = appends.iter().map(|[direct, traited]| ratio(*traited, *direct)).collect();
    let append = middle(&ratios);
    println!("| appends/s, {writers} writers {:>37.2} |", append);
    figure(
        "store/engine_append_64",
        middle(&appends.iter().map(|pair| pair[1]).collect::<Vec<_>>()),
        "appends/s",
        Some(append),
    );
    let ratios: Vec<_> = opens.iter().map(|[direct, traited]| ratio(*direct, *traited)).collect();
    let open = middle(&ratios);
    println!("| sessions of {each} entries opened a second {open:>10.2} |");
    #[expect(clippy::cast_precision_loss, reason = "64")]
    let rates: Vec<_> = opens.iter().map(|pair| writers as f64 / pair[1]).collect();
    figure("store/engine_open", middle(&rates), "sessions/s", Some(open));
}

/// Opens a session by the store's own methods, on a thread for blocking work.
async fn open_store(store: &Store, session: &str) -> Opened {
    let (store, session) = (store.clone(), session.to_owned());
    let open = move || {
        let head = store.head(&session).expect("it can be read").expect("it is there");
        let active = store.load(&session, head.active_from).expect("it can be read");
        let older = store.get(&session, &Opened::older(&head)).expect("it can be read");
        Opened { head, active, older }
    };
    tokio::task::spawn_blocking(open).await.expect("it does not panic")
}

/// Returns the appends per second, and the CPU time of one in µs.
async fn measured<F>(writers: usize, each: usize, writer: impl Fn(usize, usize) -> F) -> [f64; 2]
where
    F: Future<Output = ()> + Send + 'static,
{
    let (began, cpu) = (Instant::now(), cpu_s());
    let work = (0..writers).map(|number| tokio::spawn(writer(number, each)));
    for writer in join_all(work).await {
        writer.expect("no writer panics");
    }
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let appends = (writers * each) as f64;
    [appends / began.elapsed().as_secs_f64(), (cpu_s() - cpu) * 1e6 / appends]
}

/// Writes everything that waits together, and syncs it once.
fn write_groups(mut file: File, mut queue: mpsc::Receiver<Waiting>) {
    let mut bytes = Vec::new();
    while let Some(first) = queue.blocking_recv() {
        let mut group = vec![first];
        while let Ok(next) = queue.try_recv() {
            group.push(next);
        }
        bytes.clear();
        group.iter().for_each(|(record, _)| bytes.extend_from_slice(record));
        file.write_all(&bytes).expect("room");
        file.sync_data().expect("a disk");
        for (_, done) in group {
            done.send(()).expect("the writer waits");
        }
    }
}

async fn append_plain(file: mpsc::Sender<Waiting>, count: usize) {
    for _ in 0..count {
        let (done, written) = oneshot::channel();
        file.send((vec![b'x'; BYTES], done)).await.expect("the writer lives");
        written.await.expect("it is written");
    }
}

/// Appends to a session of its own.
async fn append_store(store: Store, session: String, count: usize) {
    for number in 0..count as u64 {
        store.append(&session, batch(number)).await.expect("an acknowledgement");
    }
}

/// Appends to a session of its own, as the runtime does.
async fn append_engine(engine: Arc<dyn Engine>, session: String, count: usize) {
    for number in 0..count as u64 {
        engine.append(&session, batch(number)).await.expect("an acknowledgement");
    }
}

/// Returns a batch with the entry of this number.
fn batch(number: u64) -> Batch {
    let kind = EntryKind::message(Message::User(vec![Block::Text("x".repeat(BYTES))]));
    let parent = number.checked_sub(1).map(EntryId);
    let id = EntryId(number);
    let entry = Entry { id, parent, at_ms: 1, tokens: 300, reasoning_tokens: 0, origin: None, kind };
    let head = Head { entries: number + 1, leaf: Some(id), ..Head::default() };
    Batch { entries: vec![entry.into()], head: head.into(), key: None }
}

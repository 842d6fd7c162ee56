//! Durable appends a second: the store's group commit with ever more writers.
//!
//! The baseline is what a program does by itself: one file, one `fdatasync` for every record of the same size.
//! Each writer has a session of its own and waits for every acknowledgement before its next append.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use futures_util::future::join_all;
use greenroom::kernel::{Block, Entry, EntryId, EntryKind, Message};
use greenroom::store::{Batch, Head, Store, StoreOptions};
use greenroom_tests::measure::{ratio, scaled, title};

/// The text of one entry, in bytes.
const BYTES: usize = 1_024;
/// The plain file and the store are measured by turns: what a disk does in a second changes with what else it does.
const ROUNDS: usize = 10;

#[tokio::main]
async fn main() {
    title(
        "durable appends of 1 KiB a second",
        "one plain file with one writer, one fdatasync for each record",
    );
    let dir = tempfile::tempdir().expect("a folder");
    let mut file = File::create(dir.path().join("plain")).expect("a file");
    let (store, _) = Store::open(&StoreOptions::new(dir.path().join("store"))).expect("a store");
    println!("| writers | plain file, appends/s | store, appends/s | ratio |");
    println!("|---------|-----------------------|------------------|-------|");
    for (writers, each) in [(1, 2_000), (16, 1_000), (256, 300)] {
        let (each, plain_each) = (scaled(each).div_ceil(ROUNDS), scaled(2_000).div_ceil(ROUNDS));
        let (mut plain_s, mut store_s) = (0.0, 0.0);
        for round in 0..ROUNDS {
            plain_s += plain_appends(&mut file, plain_each);
            store_s += store_appends(&store, &format!("{writers}-{round}"), writers, each).await;
        }
        let plain = rate(plain_each * ROUNDS, plain_s);
        let store = rate(writers * each * ROUNDS, store_s);
        println!("| {writers:>7} | {plain:>21.0} | {store:>16.0} | {:>5.2} |", ratio(store, plain));
    }
    store.close().await.expect("an orderly end");
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn rate(count: usize, seconds: f64) -> f64 {
    count as f64 / seconds
}

/// Appends one after another to a plain file; gives the seconds.
fn plain_appends(file: &mut File, count: usize) -> f64 {
    let record = vec![b'x'; BYTES];
    let began = Instant::now();
    for _ in 0..count {
        file.write_all(&record).expect("room");
        file.sync_data().expect("a disk");
    }
    began.elapsed().as_secs_f64()
}

/// Each writer appends to a new session; gives the seconds until all are done.
async fn store_appends(store: &Store, name: &str, writers: usize, each: usize) -> f64 {
    let began = Instant::now();
    let work = (0..writers).map(|writer| {
        let (store, session) = (store.clone(), format!("{name}-{writer}"));
        tokio::spawn(async move {
            for number in 0..each as u64 {
                let kind = EntryKind::message(Message::User(vec![Block::Text("x".repeat(BYTES))]));
                let parent = number.checked_sub(1).map(EntryId);
                let id = EntryId(number);
                let entry = Entry { id, parent, at_ms: 1, tokens: 300, origin: None, kind };
                let head = Head { entries: number + 1, leaf: Some(id), ..Head::default() };
                let batch = Batch { entries: vec![entry], head, key: None };
                store.append(&session, batch).await.expect("an acknowledgement");
            }
        })
    });
    for writer in join_all(work).await {
        writer.expect("no writer panics");
    }
    began.elapsed().as_secs_f64()
}

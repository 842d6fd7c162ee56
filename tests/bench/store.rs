//! Durable appends a second: the store's group commit with ever more writers.
//!
//! The baseline is what a program does by itself: one file, one `fdatasync` for every record of the same size.
//! Each writer has a session of its own and waits for every acknowledgement before its next append.

use std::io::Write;
use std::time::Instant;

use futures_util::future::join_all;
use greenroom::kernel::{Block, Entry, EntryId, EntryKind, Message};
use greenroom::store::{Batch, Head, Store, StoreOptions};
use greenroom_tests::measure::{ratio, scaled, title};

/// The text of one entry, in bytes.
const BYTES: usize = 1_024;

#[tokio::main]
async fn main() {
    title(
        "durable appends of 1 KiB a second",
        "one plain file with one writer, one fdatasync for each record",
    );
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::open(&StoreOptions::new(dir.path().join("store"))).expect("a store");
    println!("| writers | plain file, appends/s | store, appends/s | ratio |");
    println!("|---------|-----------------------|------------------|-------|");
    for (writers, each) in [(1, 2_000), (16, 1_000), (256, 300)] {
        // Anew for every row: what a disk does in a second changes with what else it has to do.
        let plain = plain_appends(dir.path(), scaled(1_000));
        let rate = store_appends(&store, writers, scaled(each)).await;
        println!("| {writers:>7} | {plain:>21.0} | {rate:>16.0} | {:>5.2} |", ratio(rate, plain));
    }
    store.close().await.expect("an orderly end");
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn plain_appends(dir: &std::path::Path, count: usize) -> f64 {
    let mut file = std::fs::File::create(dir.join("plain")).expect("a file");
    let record = vec![b'x'; BYTES];
    let began = Instant::now();
    for _ in 0..count {
        file.write_all(&record).expect("room");
        file.sync_data().expect("a disk");
    }
    count as f64 / began.elapsed().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
async fn store_appends(store: &Store, writers: usize, each: usize) -> f64 {
    let began = Instant::now();
    let work = (0..writers).map(|writer| {
        let (store, session) = (store.clone(), format!("w{writers}-{writer}"));
        tokio::spawn(async move {
            for number in 0..each as u64 {
                let kind = EntryKind::message(Message::User(vec![Block::Text("x".repeat(BYTES))]));
                let parent = number.checked_sub(1).map(EntryId);
                let id = EntryId(number);
                let entry = Entry { id, parent, at_ms: 1, tokens: 300, origin: None, kind };
                let head = Head { entries: number + 1, leaf: Some(id), ..Head::default() };
                let batch = Batch { entries: vec![entry], head, key: None, epoch: 0 };
                store.append(&session, batch).await.expect("an acknowledgement");
            }
        })
    });
    for writer in join_all(work).await {
        writer.expect("no writer panics");
    }
    (writers * each) as f64 / began.elapsed().as_secs_f64()
}

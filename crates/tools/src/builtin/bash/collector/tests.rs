//! Commands with endless output.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// What is read of an endless output.
const PIPE_BYTES: u64 = 64 * 1024;

#[tokio::test]
async fn a_command_that_writes_without_end_keeps_nobody() {
    let shown = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&shown);
    let progress = Progress::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let redactor = Redactor::default();
    let mut collector = Collector::new(&progress, &redactor, None);
    // Like `yes`: there is always more to read.
    let endless = tokio::io::repeat(b'\n');
    collector.read_all(&mut endless.take(PIPE_BYTES)).await;
    for _ in 0..100 {
        collector.shown.1 = Instant::now();
        collector.take(&[b'\n'; 1_000]);
    }
    assert_eq!(shown.load(Ordering::Relaxed), Collector::LINES_MAX, "nobody reads 165,000 lines");
    collector.shown.1 -= Collector::PERIOD;
    collector.take(b"later\n");
    assert_eq!(shown.load(Ordering::Relaxed), Collector::LINES_MAX + 1);
}

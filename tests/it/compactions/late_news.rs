//! Late messages about an earlier compaction reach no later one.
//!
//! Invariants: every message about a compaction names its start's entry, so a late one is dropped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{CompactionOutcome, EntryKind};
use greenroom_simulator::{ByPurpose, Echo, Summariser};
use greenroom_store::Store;
use greenroom_store::faults::{self, FaultyFiles, MemoryFiles};
use greenroom_store::files::{Files, OpenMode};

use crate::compaction_fixtures::{chat, keep, opened};
use crate::support::{agent, builder, simulator};

/// The store refuses the first summary, and another compaction was requested meanwhile: the end of the first
/// one is not taken for the end of the second.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_compaction_that_could_not_be_installed_does_not_end_the_next_one() {
    let disk = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), 100_000);
    let (probed, fails) = (disk.clone(), AtomicBool::new(true));
    let files = disk.open(Path::new("disk"), OpenMode::Create).unwrap();
    let runtime = builder(&model)
        .store(Store::memory_on(files))
        .probe(move |_, at| {
            if at == "install/2_drafted" && fails.swap(false, Ordering::Relaxed) {
                probed.set(faults::Fault::FailFrom { at: 1, errno: faults::ENOSPC });
            } else if !at.starts_with("install/") {
                probed.set(faults::Fault::None);
            }
        })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let (first, ()) = tokio::join!(session.compact(keep(300)), async {
        session.compact_after_run(keep(300)).await.unwrap();
    });
    let first = first.unwrap();
    assert!(first.entry_id.is_none(), "the first one is refused by the store: {first:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;

    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let starts: Vec<EntryId> = entries
        .iter()
        .filter(|entry| matches!(entry.kind, EntryKind::CompactionStarted(_)))
        .map(|entry| entry.id)
        .collect();
    let ends: Vec<(EntryId, CompactionOutcome)> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::CompactionEnded(ended) => Some((ended.started, ended.outcome.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(starts.len(), 2, "both began: {ends:?}");
    assert_eq!(
        ends,
        [(starts[0], CompactionOutcome::Interrupted), (starts[1], CompactionOutcome::Completed)],
        "each start has its own end"
    );
    model.assert_clean();
}

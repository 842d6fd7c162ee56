//! The writer's checks: each one is broken on purpose; then nothing is written, and everything else
//! continues.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::oneshot;

use super::indexing::{INDEXED_EVERY_BYTES, INDEXED_EVERY_BYTES_MAX, SESSIONS_MAX, UNINDEXED_BYTES_MAX};
use super::{AppendCommand, Group, Tail, UNLISTED_BYTES_MAX, Writer, await_more_commands};
use crate::error::StoreError;
use crate::faults::{EIO, Fault};
use crate::files::{Files, RealFiles};
use crate::index::Index;
use crate::journal::SEGMENT_HEADER_BYTES;
use crate::journal::list::FrameList;
use crate::journal::manifest::{Listed, SegmentState};
use crate::journal::sessions::SegmentSessions;
use crate::lock::DirectoryLock;
use crate::record::{self, StoredRecord};
use crate::tests::world::{World, append, batch, copy_dir, texts};
use crate::{Appended, Batch, Notice, StoreOptions, recovery};

/// Returns a writer without its thread.
fn open(options: &StoreOptions) -> Writer {
    RealFiles.create_dir(&options.dir).unwrap();
    recovery::recover(options, DirectoryLock::take(&options.dir).unwrap()).unwrap().0
}

/// Creates the command for a batch, and the receiver of its answer.
fn command(session: &str, batch: Batch) -> (AppendCommand, oneshot::Receiver<Result<Appended, StoreError>>) {
    let Batch { entries, head, key, .. } = batch;
    let sequence = entries.first().map_or(head.entries, |entry| entry.id.0);
    let count = u32::try_from(entries.len()).unwrap();
    let record = StoredRecord::Append { key: key.clone(), entries, head: head.clone() };
    let payload = record::encode(&record).unwrap();
    let (reply, answer) = oneshot::channel();
    (AppendCommand { session: session.into(), sequence, count, key, head, payload, reply }, answer)
}

/// Appends commands as one group. Returns the answers in order.
fn commit(
    writer: &mut Writer,
    batches: Vec<(AppendCommand, oneshot::Receiver<Result<Appended, StoreError>>)>,
) -> Vec<Result<Appended, StoreError>> {
    let mut group = Group::default();
    let mut answers = Vec::new();
    for (command, answer) in batches {
        writer.join_append(command, &mut group);
        answers.push(answer);
    }
    writer.commit(&mut group);
    answers.into_iter().map(|mut answer| answer.try_recv().unwrap()).collect()
}

fn append_one(writer: &mut Writer, session: &str, batch: Batch) -> Result<Appended, StoreError> {
    commit(writer, vec![command(session, batch)]).remove(0)
}

fn refused_by(result: &Result<Appended, StoreError>) -> Option<&'static str> {
    match result {
        Err(StoreError::Invariant { invariant }) => Some(invariant),
        Ok(_) | Err(_) => None,
    }
}

/// Returns a writer with two entries in session `one`.
fn prepared(world: &World) -> Writer {
    let mut writer = open(&world.options());
    append_one(&mut writer, "one", batch(0, &["a", "b"])).unwrap();
    writer
}

/// Returns the bytes of the newest segment that was written to before the check failed.
fn segment_bytes(world: &World) -> Vec<u8> {
    let mut copy = Vec::new();
    world.memory.damage(&world.segment(1), |bytes| copy.clone_from(bytes)).unwrap();
    copy
}

/// Checks that the next append works, and that everything acknowledged is there after a restart.
fn goes_on(world: &World, mut writer: Writer) -> Vec<Notice> {
    append_one(&mut writer, "one", batch(2, &["c"])).unwrap();
    append_one(&mut writer, "two", batch(0, &["x"])).unwrap();
    writer.finish();
    drop(writer);
    let (store, notices) = world.open();
    assert_eq!(texts(&store, "one", 0).unwrap(), ["a", "b", "c"]);
    assert_eq!(texts(&store, "two", 0).unwrap(), ["x"]);
    append(&store, "one", batch(3, &["d"])).unwrap();
    notices
}

#[test]
fn a_head_that_does_not_count_its_batch_costs_only_that_batch() {
    let world = World::new();
    let mut writer = prepared(&world);
    let mut wrong = command("one", batch(2, &["wrong"]));
    Arc::make_mut(&mut wrong.0.head).entries += 1;
    let mut overflowing = command("three", batch(0, &["wrong"]));
    overflowing.0.count = 5;
    let answers = commit(&mut writer, vec![command("other", batch(0, &["o"])), wrong, overflowing]);
    assert!(matches!(answers[0], Ok(Appended::Written { .. })), "{answers:?}");
    let counts = Some("a head counts exactly the entries up to the end of its batch");
    assert_eq!((refused_by(&answers[1]), refused_by(&answers[2])), (counts, counts));
    assert_eq!(writer.tail, Tail::Empty);
    assert_eq!(goes_on(&world, writer), []);
}

fn id(number: u64) -> greenroom_kernel::EntryId {
    greenroom_kernel::EntryId(number)
}

#[test]
fn a_batch_with_a_hole_before_it_is_refused_as_it_joins_and_as_it_is_written() {
    let world = World::new();
    let mut writer = prepared(&world);
    let refused = append_one(&mut writer, "one", batch(5, &["far"]));
    assert!(matches!(refused, Err(StoreError::Sequence { .. })), "{refused:?}");
    // The group's count of the session's entries is too high: only the check before the write is left.
    let (command, mut answer) = command("one", batch(5, &["far"]));
    let mut group = Group::default();
    group.entries.insert("one".into(), 5);
    writer.join_append(command, &mut group);
    let before = segment_bytes(&world);
    writer.commit(&mut group);
    let answer = answer.try_recv().unwrap();
    assert_eq!(refused_by(&answer), Some("a batch follows its session's last entry"));
    assert_eq!(segment_bytes(&world), before);
    assert_eq!(goes_on(&world, writer), []);
}

#[test]
fn a_group_with_another_length_than_its_frames_is_not_written() {
    let world = World::new();
    let mut writer = prepared(&world);
    let before = segment_bytes(&world);
    let (command, mut answer) = command("one", batch(2, &["wrong"]));
    let mut group = Group::default();
    writer.join_append(command, &mut group);
    group.bytes += 1;
    writer.commit(&mut group);
    let answer = answer.try_recv().unwrap();
    assert_eq!(refused_by(&answer), Some("a group has the length that its frames have together"));
    assert_eq!(segment_bytes(&world), before);
    assert_eq!(goes_on(&world, writer), []);
}

#[test]
fn an_end_that_is_not_the_last_frames_end_stops_the_write() {
    for change in [-1_i64, 1] {
        let world = World::new();
        let mut writer = prepared(&world);
        let before = segment_bytes(&world);
        writer.active.end = writer.active.end.checked_add_signed(change).unwrap();
        let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
        assert_eq!(refused_by(&refused), Some("a segment's frames follow one another"));
        assert_eq!(segment_bytes(&world), before);
        goes_on(&world, writer);
    }
}

#[test]
fn bytes_behind_the_last_frame_stop_the_write_and_are_never_read() {
    let world = World::new();
    let mut writer = prepared(&world);
    world.memory.damage(&world.segment(1), |bytes| bytes.extend(b"junk")).unwrap();
    let before = segment_bytes(&world);
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(refused_by(&refused), Some("a segment's file ends where its last frame ends"));
    assert_eq!(segment_bytes(&world), before);
    let end = writer.active.end;
    assert_eq!(goes_on(&world, writer), []);
    let manifest = crate::journal::manifest::Manifest::load(&world.memory, &world.dir.path().join("journal"));
    assert_eq!(manifest.unwrap().unwrap().segments[0].state, SegmentState::Abandoned { length: end });
}

#[test]
fn a_file_that_lost_acknowledged_bytes_stops_the_write_and_is_reported_once() {
    let world = World::new();
    let mut writer = prepared(&world);
    append_one(&mut writer, "lost", batch(0, &["l"])).unwrap();
    world.memory.damage(&world.segment(1), |bytes| bytes.truncate(bytes.len() - 5)).unwrap();
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(refused_by(&refused), Some("a segment's file ends where its last frame ends"));
    // Other sessions continue in a new segment.
    let notices = goes_on(&world, writer);
    let lost = Notice::TailLost { session: "lost".to_owned(), from: id(0) };
    assert!(notices.contains(&lost), "{notices:?}");
    let (store, notices) = world.open();
    assert_eq!(notices, [], "it is reported once");
    let refused = append(&store, "lost", batch(0, &["again"]));
    assert!(matches!(refused, Err(StoreError::Quarantined { .. })), "{refused:?}");
}

#[test]
fn a_write_that_only_claims_to_be_complete_is_not_acknowledged() {
    let world = World::new();
    let mut writer = prepared(&world);
    world.files.set(Fault::LostWrite { at: 1 });
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(world.files.fired(), 1);
    assert_eq!(refused_by(&refused), Some("a segment's file ends where its last frame ends"));
    assert_eq!((writer.active.id, writer.tail), (2, Tail::Empty), "a new segment was begun at once");
    assert_eq!(goes_on(&world, writer), []);
}

#[test]
fn a_record_that_is_not_what_its_frame_announces_counts_as_lost() {
    let other = |entries: Batch| command("one", entries).0.payload;
    let miscounted = {
        let mut batch = batch(2, &["x"]);
        Arc::make_mut(&mut batch.head).entries = 9;
        other(batch)
    };
    let deleted = record::encode(&StoredRecord::Deleted).unwrap();
    for payload in [other(batch(3, &["x"])), other(batch(2, &["x", "y"])), miscounted, deleted] {
        let world = World::new();
        let mut writer = prepared(&world);
        let (mut command, answer) = command("one", batch(2, &["wrong"]));
        command.payload = payload;
        commit(&mut writer, vec![(command, answer)]).remove(0).unwrap();
        writer.finish();
        drop(writer);
        std::fs::remove_dir_all(world.index()).unwrap();
        let (store, notices) = world.open();
        let lost = Notice::TailLost { session: "one".to_owned(), from: id(2) };
        assert!(notices.contains(&lost), "{notices:?}");
        assert_eq!(texts(&store, "one", 0).unwrap(), ["a", "b"]);
    }
}

#[test]
fn a_record_of_a_newer_version_is_refused_by_name_and_stays() {
    let world = World::new();
    let mut writer = prepared(&world);
    let (mut newer, answer) = command("new", batch(0, &["x"]));
    newer.payload[0] = 2;
    commit(&mut writer, vec![(newer, answer)]).remove(0).unwrap();
    writer.finish();
    drop(writer);
    let is_refused = |error: &StoreError| {
        matches!(error, StoreError::Version { what: "a record", found: 2, supported: 1 })
    };
    // With the index, only the session with such a record cannot be read.
    let store = world.open_quiet();
    assert!(is_refused(&texts(&store, "new", 0).unwrap_err()));
    assert_eq!(texts(&store, "one", 0).unwrap(), ["a", "b"]);
    drop(store);
    // Without it, the store cannot be opened, and the record is not considered damage.
    let before = segment_bytes(&world);
    std::fs::remove_dir_all(world.index()).unwrap();
    assert!(is_refused(&world.try_open().unwrap_err()));
    assert_eq!(segment_bytes(&world), before);
}

#[test]
fn an_index_that_is_ahead_of_the_journal_stops_the_write() {
    let world = World::new();
    let mut writer = prepared(&world);
    writer.indexer.checkpoint.offset += 1;
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(refused_by(&refused), Some("the index is not ahead of the journal"));
    goes_on(&world, writer);
}

#[test]
fn a_footer_that_would_not_list_the_frames_is_not_written() {
    let world = World { segment_bytes: 330, ..World::new() };
    let mut writer = prepared(&world);
    append_one(&mut writer, "three", batch(0, &["y"])).unwrap();
    // The last frame is where it should be, so only the footer's own check can find the one that is missing.
    writer.active.frames = writer.active.frames.iter().skip(1).collect();
    let before = segment_bytes(&world);
    let long = "z".repeat(300);
    let refused = append_one(&mut writer, "one", batch(2, &[&long]));
    let footer = "the frames of a footer lie one after another up to the segment's end";
    assert_eq!(refused_by(&refused), Some(footer));
    assert_eq!(segment_bytes(&world), before);
    assert_eq!(goes_on(&world, writer), []);
}

#[test]
fn a_list_of_segments_that_contradicts_itself_is_not_written() {
    let world = World::new();
    let mut writer = prepared(&world);
    let listed = writer.manifest.segments[0];
    writer.manifest.segments.push(listed);
    writer.is_manifest_dirty = true;
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(refused_by(&refused), Some("the last segment, and no other, is active"));
    writer.manifest.segments.pop();
    writer.manifest.next_id = 0;
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(refused_by(&refused), Some("the next segment's number is free"));
    writer.manifest.next_id = 2;
    let (before, state) = (listed.order.checked_add(1).unwrap(), SegmentState::Abandoned { length: 40 });
    writer.manifest.segments.insert(0, Listed { id: 0, order: before, state, ..listed });
    let refused = append_one(&mut writer, "one", batch(2, &["wrong"]));
    assert_eq!(refused_by(&refused), Some("the listed segments are in order"));
    writer.manifest.segments.remove(0);
    assert_eq!(goes_on(&world, writer), []);
}

/// Prints the cost of the checks for one append. Run it with `cargo test --release -p greenroom-store --
/// --ignored --nocapture what_the_checks_cost`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "a measurement is printed")]
fn what_the_checks_cost() {
    const ROUNDS: u32 = 200_000;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(&StoreOptions::new(dir.path()));
    append_one(&mut writer, "one", batch(0, &["a", "b"])).unwrap();
    let (command, _answer) = command("one", batch(2, &["c"]));
    let mut group = Group::default();
    writer.join_append(command, &mut group);
    let mut buffer = Vec::new();
    let start = writer.active.end;
    let pending = group.pending.remove(0);
    let (frame, next_chain) =
        pending.frame.encode(&mut buffer, start, writer.active.seed, writer.active.chain);
    let end = start + buffer.len() as u64;
    let placed = [super::EncodedFrame { frame, next_chain, effect: pending.effect }];
    let began = Instant::now();
    for _ in 0..ROUNDS {
        writer.check_group(&placed).unwrap();
        writer.check_place(&placed, end, end).unwrap();
        writer.check_file_end(start).unwrap();
    }
    println!("the checks of an append that is alone in its group: {:?}", began.elapsed() / ROUNDS);
    let began = Instant::now();
    for _ in 0..ROUNDS {
        writer.check_group(&placed).unwrap();
    }
    println!("of these, for each append of a larger group: {:?}", began.elapsed() / ROUNDS);
    let appends = 2_000;
    let began = Instant::now();
    for number in 2..2 + appends {
        append_one(&mut writer, "one", batch(number, &["c"])).unwrap();
    }
    println!(
        "an append on this disk, with its sync: {:?}",
        began.elapsed() / u32::try_from(appends).unwrap()
    );
}

/// Returns how many acknowledged bytes of the journal a start would read again, if the process were killed
/// now.
fn behind(world: &World, writer: &Writer) -> u64 {
    let aside = tempfile::tempdir().unwrap();
    copy_dir(&world.index(), &aside.path().join("index"));
    let indexed = Index::open(aside.path(), 1 << 20).unwrap().checkpoint().unwrap();
    writer.active.end - indexed.map_or(0, |(checkpoint, _)| checkpoint.offset)
}

/// Returns how often the writer pauses before a group after one with this many callers, while the queue grows
/// as given.
fn pauses(callers_before: usize, queue: &[usize]) -> usize {
    let count = std::cell::Cell::new(0_usize);
    let waiting = || queue[count.get().min(queue.len() - 1)];
    await_more_commands(callers_before, waiting, |_| count.set(count.get() + 1));
    count.get()
}

/// A single appender is never delayed. With many, the group waits as long as more commands arrive, but not
/// for ever.
#[test]
fn a_group_waits_for_others_only_where_many_append() {
    assert_eq!([0, 1, 15].map(|callers| pauses(callers, &[0, 1, 2, 3])), [0; 3]);
    assert_eq!(pauses(16, &[0, 0]), 1, "nobody comes");
    assert_eq!(pauses(64, &[3, 20, 63, 63]), 3, "no more come");
    assert_eq!(pauses(64, &[3, 20, 64, 70]), 2, "all have come");
    assert_eq!(pauses(64, &(0..60).collect::<Vec<_>>()), 4, "more than it waits for");
    assert_eq!(pauses(1_000, &[5, 4_096, 5_000]), 1, "the group is full");
}

/// The state of the disk after a kill: the index is written in large batches, and is never so far behind that
/// a start takes long.
#[test]
fn the_index_on_the_disk_is_a_few_mebibytes_behind_the_journal() {
    let world = World { segment_bytes: 64 << 20, ..World::new() };
    let mut writer = open(&world.options());
    let text = "x".repeat(100_000);
    let mut behind_most = 0;
    for id in 0..200 {
        append_one(&mut writer, "one", batch(id, &[&text])).unwrap();
        writer.index_if_due();
        // The lag is largest before the append that makes a move due.
        if writer.unindexed_bytes + 100_000 >= INDEXED_EVERY_BYTES {
            // A copy that is made during a write differs from the state after a kill.
            writer.mover.wait();
            writer.index_if_due();
            assert!(writer.unindexed_bytes < INDEXED_EVERY_BYTES, "at entry {id} nothing moves");
            writer.mover.wait();
            let behind = behind(&world, &writer);
            assert!(behind <= UNINDEXED_BYTES_MAX + 2 * 100_100, "at entry {id} it is {behind} bytes behind");
            behind_most = behind_most.max(behind);
        }
    }
    assert!(behind_most > 1_000_000, "the index is written in batches");
    writer.finish();
}

/// Appends texts of this length to this many sessions in turn, until the index begins to move. Returns the bytes in the
/// journal by then.
fn moved_after(sessions: u64, length: usize) -> u64 {
    let world = World { segment_bytes: 64 << 20, ..World::new() };
    let mut writer = open(&world.options());
    let text = "x".repeat(length);
    for number in 0..10_000 {
        let (id, session) = (number / sessions, number % sessions);
        append_one(&mut writer, &format!("s{session}"), batch(id, &[&text])).unwrap();
        writer.index_if_due();
        if writer.unindexed_bytes == 0 {
            let end = writer.active.end;
            writer.finish();
            return end;
        }
    }
    panic!("the index never moves");
}

/// A row in sled costs more than an append, so several appends are waited for, but not for ever.
#[test]
fn the_index_moves_once_each_of_its_rows_stands_for_several_appends() {
    let group = 200_000;
    for (sessions, length, from) in [
        (1, 100_000, INDEXED_EVERY_BYTES),
        // Eight times all sessions.
        (2, 100_000, 16 * 100_000),
        (6, 100_000, 48 * 100_000),
        (100, 100_000, INDEXED_EVERY_BYTES_MAX),
        (SESSIONS_MAX + 500, 2_000, SESSIONS_MAX * 2_100),
    ] {
        let moved = moved_after(sessions, length);
        assert!((from..from + group).contains(&moved), "{sessions} sessions: after {moved} bytes");
    }
}

/// The data that a kill and a disk that cuts off the end could lose undetected: the acknowledged frames that
/// neither the list on the disk nor the index has.
#[test]
fn the_acknowledged_bytes_that_nothing_else_lists_are_few() {
    let world = World { segment_bytes: 64 << 20, ..World::new() };
    let mut writer = open(&world.options());
    let journal = world.dir.path().join("journal");
    let mut most = 0;
    for id in 0..300 {
        append_one(&mut writer, "one", batch(id, &[&"x".repeat(100)])).unwrap();
        writer.index_if_due();
        // Only durable data counts.
        world.memory.power_cut(None);
        let listed = FrameList::load(&world.memory, &journal, writer.active.id);
        // The segment's header is not a frame.
        let listed = listed.map_or(SEGMENT_HEADER_BYTES, |list| list.until());
        let unlisted = writer.active.end - listed;
        assert!(unlisted < UNLISTED_BYTES_MAX, "at entry {id} {unlisted} bytes are listed nowhere");
        most = most.max(unlisted);
    }
    assert!(most > UNLISTED_BYTES_MAX / 2, "they are listed in batches: {most}");
    writer.finish();
    assert_eq!(behind(&world, &writer), 0);
}

/// A failure to write the list does not fail an append, and the next list is complete again.
#[test]
fn a_list_that_cannot_be_written_is_written_later() {
    let world = World { segment_bytes: 64 << 20, ..World::new() };
    let mut writer = open(&world.options());
    let journal = world.dir.path().join("journal");
    let until = |writer: &Writer| {
        FrameList::load(&world.memory, &journal, writer.active.id).map_or(0, |list| list.until())
    };
    let text = "x".repeat(usize::try_from(UNLISTED_BYTES_MAX).unwrap());
    append_one(&mut writer, "one", batch(0, &[&text])).unwrap();
    assert_eq!(until(&writer), writer.active.end);
    let listed = writer.active.end;
    // The group's own write and its sync succeed.
    world.files.set(Fault::FailOnce { at: 3, errno: EIO });
    append_one(&mut writer, "one", batch(1, &[&text])).unwrap();
    assert_eq!((world.files.fired(), until(&writer)), (1, listed));
    append_one(&mut writer, "one", batch(2, &[&text])).unwrap();
    assert_eq!(until(&writer), writer.active.end);
    writer.finish();
}

/// Whichever operation fails while a segment is sealed for a large append, the smaller ones that follow are
/// listed as before.
#[test]
fn a_seal_that_fails_does_not_end_the_list() {
    let unlisted = usize::try_from(UNLISTED_BYTES_MAX).unwrap();
    let mut failed = 0;
    for at in 1..25 {
        let world = World { segment_bytes: 5 * UNLISTED_BYTES_MAX, ..World::new() };
        let mut writer = open(&world.options());
        let mut entries = 0;
        let mut append_some = |writer: &mut Writer, count: usize, bytes: usize| {
            for _ in 0..count {
                let appended = append_one(writer, "one", batch(entries, &[&"x".repeat(bytes)]));
                entries += u64::from(appended.is_ok());
            }
        };
        append_some(&mut writer, 4, unlisted / 2);
        world.files.set(Fault::FailOnce { at, errno: EIO });
        append_some(&mut writer, 1, 4 * unlisted);
        failed += world.files.fired();
        world.files.set(Fault::None);
        append_some(&mut writer, 14, unlisted / 8);
        let (journal, id) = (world.dir.path().join("journal"), writer.active.id);
        let known = SegmentSessions::load(&world.memory, &journal, id).map_or(0, |known| known.until);
        let end = writer.active.end;
        assert!(known + UNLISTED_BYTES_MAX > end, "operation {at}: {known} of {end} bytes");
        writer.finish();
    }
    assert!(failed >= 15, "{failed} operations failed");
}

/// A list that could not be replaced does not take up the remaining space of a full disk.
#[test]
fn what_could_not_be_replaced_is_not_left_behind() {
    let mut failed = 0;
    for at in 3..8 {
        let world = World { segment_bytes: 64 << 20, ..World::new() };
        let mut writer = open(&world.options());
        let text = "x".repeat(usize::try_from(UNLISTED_BYTES_MAX).unwrap());
        world.files.set(Fault::FailOnce { at, errno: EIO });
        append_one(&mut writer, "one", batch(0, &[&text])).unwrap();
        world.files.set(Fault::None);
        let is_left = |path: &std::path::PathBuf| path.extension().is_some_and(|found| found == "new");
        let is_listed = |path: &std::path::PathBuf| path.extension().is_some_and(|found| found == "frames");
        let paths = world.memory.paths();
        assert!(!paths.iter().any(is_left), "operation {at}: {paths:?}");
        failed += u32::from(!paths.iter().any(is_listed));
        writer.finish();
    }
    assert!(failed >= 4, "{failed} lists failed");
}

/// During a long move, appends are acknowledged until the index would be too far behind, and continue
/// afterwards: a start does not read more of the journal again.
#[test]
fn appends_go_on_during_a_move_but_not_too_far() {
    let world = World { segment_bytes: 64 << 20, ..World::new() };
    let mut writer = open(&world.options());
    let (index, is_waited_for) = (Arc::clone(&writer.index), Arc::clone(&writer.mover.is_waited_for));
    let text = "x".repeat(100_000);
    append_one(&mut writer, "one", batch(0, &[&text])).unwrap();
    writer.flush_index();
    let indexed = writer.active.end;
    let acknowledged = Arc::new(AtomicU64::new(indexed));
    let held = index.gate.lock();
    let told = Arc::clone(&acknowledged);
    let appends = std::thread::spawn(move || {
        for id in 1..200 {
            append_one(&mut writer, "one", batch(id, &[&text])).unwrap();
            told.store(writer.active.end, Ordering::SeqCst);
            writer.index_if_due();
        }
        writer
    });
    while !is_waited_for.load(Ordering::SeqCst) && !appends.is_finished() {
        std::thread::yield_now();
    }
    let behind = acknowledged.load(Ordering::SeqCst) - indexed;
    let group = 100_100;
    assert!(behind <= UNINDEXED_BYTES_MAX + group, "{behind} bytes were acknowledged that no index has");
    assert!(behind > UNINDEXED_BYTES_MAX - 2 * group, "after {behind} bytes appends waited for the index");
    drop(held);
    let mut writer = appends.join().unwrap();
    writer.finish();
    drop(writer);
    assert_eq!(texts(&world.open_quiet(), "one", 0).unwrap().len(), 200);
}

/// Readers find changes that are being moved to the database, and newer ones.
#[test]
fn what_moves_to_the_database_can_be_read_meanwhile() {
    let world = World::new();
    let mut writer = open(&world.options());
    for session in ["a", "b", "c"] {
        append_one(&mut writer, session, batch(0, &["first"])).unwrap();
    }
    let index = Arc::clone(&writer.index);
    let held = index.gate.lock();
    writer.begin_flush();
    assert!(writer.mover.under_way() > 0);
    append_one(&mut writer, "b", batch(1, &["second"])).unwrap();
    writer.delete("c").unwrap();
    append_one(&mut writer, "d", batch(0, &["first"])).unwrap();
    let read = |after: Option<&str>, limit: usize| -> Vec<(String, u64)> {
        let heads = index.heads(after, limit).unwrap();
        heads.into_iter().map(|(session, head)| (session, head.entries)).collect()
    };
    let all = [("a".to_owned(), 1), ("b".to_owned(), 2), ("d".to_owned(), 1)];
    for limit in 1..5 {
        assert_eq!(read(None, limit), all[..limit.min(3)], "the first {limit}");
    }
    assert_eq!(read(Some("a"), 9), all[1..]);
    assert_eq!(index.rows().unwrap().len(), 3);
    assert_eq!(index.entries("b", 0, 9).unwrap().len(), 2);
    assert_eq!(index.row("c").unwrap(), None);
    drop(held);
    writer.mover.wait();
    assert_eq!((read(None, 9), index.row("c").unwrap()), (all.to_vec(), None), "and afterwards");
    writer.finish();
}

//! Which segments count when a store is opened: the list of them is lost or old, a crash left files behind,
//! or a file cannot be read.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use greenroom_kernel::EntryId;

use super::world::{World, append, batch, texts, wait};
use crate::faults::{EIO, Fault};
use crate::files::{File, Files, OpenMode};
use crate::journal::manifest::{Manifest, SegmentState};
use crate::journal::{SEGMENT_HEADER_BYTES, SegmentHeader, read_footer};
use crate::{Notice, Store, StoreError};

fn text(id: u64) -> String {
    format!("{id} {}", "x".repeat(300))
}

/// Returns a closed store with a session of five entries, two in each of two sealed segments and the last in
/// the active one.
fn filled() -> World {
    let world = World { segment_bytes: 1_000, ..World::new() };
    let store = world.open_quiet();
    add(&store, 0..5);
    drop(store);
    assert_eq!(segments(&world), [1, 2, 3]);
    world
}

fn add(store: &Store, ids: std::ops::Range<u64>) {
    for id in ids {
        append(store, "one", batch(id, &[&text(id)])).unwrap();
    }
}

/// Checks that all entries are there.
#[track_caller]
fn check(store: &Store, entries: u64) {
    assert_eq!(texts(store, "one", 0).unwrap(), (0..entries).map(text).collect::<Vec<_>>());
}

/// Returns the numbers of the segments whose files exist.
fn segments(world: &World) -> Vec<u64> {
    let paths = world.memory.paths();
    let files = paths.iter().filter(|path| path.extension().is_some_and(|found| found == "seg"));
    files.map(|path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

fn manifest_path(world: &World) -> PathBuf {
    world.dir.path().join("journal/manifest")
}

fn manifest(world: &World) -> Manifest {
    Manifest::load(&world.memory, &world.dir.path().join("journal")).unwrap().unwrap()
}

fn bytes_of(world: &World, path: &Path) -> Vec<u8> {
    let mut copy = Vec::new();
    world.memory.damage(path, |bytes| copy.clone_from(bytes)).unwrap();
    copy
}

fn put(world: &World, path: &Path, content: &[u8]) {
    drop(world.memory.open(path, OpenMode::Create).unwrap());
    world.memory.damage(path, |bytes| content.clone_into(bytes)).unwrap();
}

fn lose_index(world: &World) {
    std::fs::remove_dir_all(world.index()).unwrap();
}

#[test]
fn a_list_that_was_lost_is_made_again_once_and_the_same_segment_is_written_to() {
    for loses_index in [false, true] {
        let world = filled();
        world.memory.lose(&manifest_path(&world));
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        let is_said = |notice: &Notice| matches!(notice, Notice::ManifestRebuilt { .. });
        assert_eq!(notices.iter().filter(|notice| is_said(notice)).count(), 1, "{notices:?}");
        check(&store, 5);
        // The process is killed: the new list was there from the beginning.
        world.files.set(Fault::FailFrom { at: 1, errno: EIO });
        drop(store);
        world.files.set(Fault::None);
        let store = world.open_quiet();
        add(&store, 5..6);
        assert_eq!(segments(&world), [1, 2, 3], "the last segment has room");
        add(&store, 6..9);
        assert_eq!(segments(&world), [1, 2, 3, 4, 5]);
        drop(store);
        check(&world.open_quiet(), 9);
    }
}

#[test]
fn a_list_of_a_store_without_entries_is_made_again_without_a_word() {
    let world = World::new();
    drop(world.open_quiet());
    world.memory.lose(&manifest_path(&world));
    drop(world.open_quiet());
}

/// Someone restored an older copy of the list: the segments that it does not know hold data acknowledged
/// since.
#[test]
fn an_older_list_loses_nothing() {
    for loses_index in [false, true] {
        let world = World { segment_bytes: 1_000, ..World::new() };
        let store = world.open_quiet();
        add(&store, 0..3);
        drop(store);
        let old = bytes_of(&world, &manifest_path(&world));
        let store = world.open_quiet();
        add(&store, 3..9);
        drop(store);
        let all = segments(&world);
        assert!(all.len() >= 5, "{all:?}");
        world.memory.damage(&manifest_path(&world), |bytes| *bytes = old).unwrap();
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        check(&store, 9);
        let is_said = |notice: &Notice| matches!(notice, Notice::ManifestRebuilt { .. });
        assert!(notices.iter().any(is_said), "{notices:?}");
        assert_eq!(segments(&world), all);
        drop(store);
        check(&world.open_quiet(), 9);
    }
}

/// A crash during a rotation leaves a segment without frames, and one during a reclaim leaves one in the
/// place of another. Both are removed, and their numbers are not reused.
#[test]
fn what_a_crash_left_behind_is_removed() {
    let list = manifest(&filled());
    let highest = list.segments.iter().map(|listed| listed.order).max().unwrap();
    for (order, frames) in [(highest + 1, 0), (highest, 20), (highest - 1, 20), (highest - 2, 0)] {
        let world = filled();
        let header = SegmentHeader { id: 7, order, seed: 9 };
        let content = [header.encode(), vec![1; frames]].concat();
        put(&world, &world.segment(7), &content);
        let store = world.open_quiet();
        check(&store, 5);
        assert_eq!(segments(&world), [1, 2, 3], "order {order} of {highest}");
        add(&store, 5..7);
        assert_eq!(segments(&world), [1, 2, 3, 8], "order {order} of {highest}");
    }
    // One that was begun with the list's number is not another segment.
    let world = filled();
    put(&world, &world.segment(7), b"GR");
    check(&world.open_quiet(), 5);
    assert_eq!(segments(&world), [1, 2, 3]);
}

/// Until the header is written, a segment of a store without a list holds nothing. A longer one is kept.
#[test]
fn a_segment_without_a_header_is_kept_if_it_may_hold_frames() {
    let header = SegmentHeader { id: 1, order: 1, seed: 7 }.encode();
    for length in [0, 10, 39_usize] {
        let world = World::new();
        put(&world, &world.segment(1), &header[..length]);
        let store = world.open_quiet();
        add(&store, 0..1);
        assert_eq!(segments(&world), [2], "{length} bytes");
        assert!(!world.memory.paths().contains(&world.segment(1).with_extension("seg.damaged")));
    }
    let world = World::new();
    put(&world, &world.segment(1), &[7; 41]);
    let (store, notices) = world.open();
    let others_possible = true;
    let damaged = Notice::Damaged { segment: 1, offset: 0, sessions: Vec::new(), others_possible };
    assert!(notices.contains(&damaged), "{notices:?}");
    assert_eq!(bytes_of(&world, &world.segment(1).with_extension("seg.damaged")), [7; 41]);
    add(&store, 0..1);
    assert_eq!(segments(&world), [2]);
}

/// A reclaim was interrupted when the new segment was complete and the old one still there, and then the list
/// was lost.
#[test]
fn of_two_segments_in_the_same_place_the_new_one_counts_if_it_is_whole() {
    let (mut whole, mut begun) = (0, 0);
    for at in 1.. {
        let world = World { segment_bytes: 1_000, ..World::new() };
        let store = world.open_quiet();
        for id in 0..4 {
            append(&store, "dead", batch(id, &["short"])).unwrap();
            append(&store, "one", batch(id, &[&text(id)])).unwrap();
        }
        wait(store.delete("dead")).unwrap();
        world.files.set(Fault::FailFrom { at, errno: EIO });
        let reclaimed = wait(store.reclaim());
        drop(store);
        world.files.set(Fault::None);
        let mut places: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for id in segments(&world) {
            if let Some(header) = SegmentHeader::decode(&bytes_of(&world, &world.segment(id))).unwrap() {
                places.entry(header.order).or_default().push(id);
            }
        }
        let double = places.values().find(|ids| ids.len() > 1).cloned();
        world.memory.lose(&manifest_path(&world));
        lose_index(&world);
        let (store, _) = world.open();
        check(&store, 4);
        assert_eq!(store.head("dead").unwrap(), None, "operation {at}");
        if let Some(ids) = double {
            let [old, new] = ids[..] else { panic!("{ids:?}") };
            let is_whole = segments(&world).contains(&new);
            assert_ne!(is_whole, segments(&world).contains(&old), "operation {at}: one is left");
            if is_whole {
                assert!(read_footer(&bytes_of(&world, &world.segment(new))).is_some(), "operation {at}");
                whole += 1;
            } else {
                begun += 1;
            }
        }
        if reclaimed.is_ok() {
            break;
        }
    }
    assert!(whole >= 1 && begun >= 1, "{whole} whole, {begun} begun");
}

#[test]
fn a_damaged_footer_costs_no_entry_and_is_said_once() {
    let world = filled();
    let SegmentState::Sealed { length, .. } = manifest(&world).segments[0].state else {
        panic!("it is sealed")
    };
    world.memory.damage(&world.segment(1), |bytes| *bytes.last_mut().unwrap() ^= 1).unwrap();
    let (store, notices) = world.open();
    let damaged = |offset, sessions| Notice::Damaged { segment: 1, offset, sessions, others_possible: false };
    assert_eq!(notices, [damaged(length, Vec::new())]);
    check(&store, 5);
    drop(store);
    check(&world.open_quiet(), 5);
    // With an entry, the entry is reported.
    let world = filled();
    world
        .memory
        .damage(&world.segment(1), |bytes| {
            *bytes.last_mut().unwrap() ^= 1;
            bytes[usize::try_from(length).unwrap() - 1] ^= 1;
        })
        .unwrap();
    let (store, notices) = world.open();
    let [Notice::Damaged { offset, sessions, .. }] = &notices[..] else { panic!("{notices:?}") };
    assert!(*offset > SEGMENT_HEADER_BYTES && *offset < length && *sessions == ["one"], "{notices:?}");
    assert_eq!(store.salvage("one").unwrap().lost, [(EntryId(1), EntryId(2))]);
}

/// Files of which one cannot be opened for reading.
#[derive(Debug, Clone)]
struct Unreadable {
    inner: Arc<dyn Files>,
    path: Arc<Mutex<Option<PathBuf>>>,
}

impl Files for Unreadable {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode == OpenMode::Read && self.path.lock().unwrap().as_deref() == Some(path) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.inner.open(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
}

/// A file that is currently unreadable is not gone: the store is not opened, and nothing is considered lost.
#[test]
fn a_file_that_cannot_be_read_now_is_not_taken_for_lost() {
    for id in 1..=3 {
        for loses_index in [false, true] {
            let world = filled();
            if loses_index {
                lose_index(&world);
            }
            let files = Unreadable { inner: Arc::new(world.files.clone()), path: Arc::default() };
            *files.path.lock().unwrap() = Some(world.segment(id));
            let mut options = world.options();
            options.files = Arc::new(files);
            let refused = Store::open(&options).map(|_| ());
            assert!(matches!(refused, Err(StoreError::Io { .. })), "segment {id}: {refused:?}");
            assert!(refused.unwrap_err().to_string().contains(&format!("{id:010}.seg")));
            let (store, notices) = world.open();
            let is_fine = |notice: &Notice| matches!(notice, Notice::IndexRebuilt { .. });
            assert!(notices.iter().all(is_fine), "{notices:?}");
            check(&store, 5);
        }
    }
}

#[test]
fn a_damaged_header_costs_nothing_while_the_record_of_its_sessions_is_there() {
    for loses_index in [false, true] {
        let world = filled();
        // A clean shutdown leaves a record beside the newest segment too.
        for id in [1, 3] {
            world.memory.damage(&world.segment(id), |bytes| bytes[2] ^= 1).unwrap();
        }
        world.memory.lose(&manifest_path(&world));
        if loses_index {
            std::fs::remove_dir_all(world.index()).unwrap();
        }
        let (store, _) = world.open();
        check(&store, 5);
    }
}

#[test]
fn a_segment_of_another_store_is_set_aside_and_not_removed() {
    let world = filled();
    let bytes = bytes_of(&world, &world.segment(1));
    let header = SegmentHeader { id: 7, order: 9, seed: 1 }.encode();
    let mut wrong_crc = header.clone();
    wrong_crc[39] ^= 1;
    let small = [(7, b"hello\n".to_vec()), (6, b"GRS1 is not all".to_vec()), (5, header), (4, wrong_crc)];
    for (id, bytes) in [(9, bytes), (8, vec![7; 300])].into_iter().chain(small) {
        put(&world, &world.segment(id), &bytes);
        let (store, notices) = world.open();
        check(&store, 5);
        let aside = world.segment(id).with_extension("seg.damaged");
        assert!(notices.contains(&Notice::SetAside { path: aside.clone() }), "{notices:?}");
        assert_eq!(bytes_of(&world, &aside), bytes);
        drop(store);
        let (_, notices) = world.open();
        assert_eq!(notices, [], "it is said once");
    }
}

/// What a crash leaves of a segment that was being created holds nothing.
#[test]
fn a_segment_that_was_only_begun_is_removed_and_a_foreign_one_kept() {
    let whole = SegmentHeader { id: 9, order: 9, seed: 0x0102_0304 }.encode();
    let torn = |until: usize, length: usize| {
        let mut bytes = whole[..until].to_vec();
        bytes.resize(length, 0);
        bytes
    };
    let begun = (0..=whole.len()).map(|length| (torn(length, length), true));
    let zeros = [(vec![0; 40], true), (torn(17, 40), true), (torn(3, 9), true)];
    let foreign = [(b"hello\n".to_vec(), false), (vec![0, 0, 1], false), (vec![b'G'; 40], false)];
    for (bytes, is_ours) in begun.chain(zeros).chain(foreign) {
        for loses_list in [false, true] {
            let world = filled();
            put(&world, &world.segment(9), &bytes);
            if loses_list {
                world.memory.lose(&manifest_path(&world));
            }
            let (store, notices) = world.open();
            check(&store, 5);
            let aside = world.segment(9).with_extension("seg.damaged");
            let is_kept = world.memory.paths().contains(&aside);
            let is_said = notices.contains(&Notice::SetAside { path: aside.clone() });
            let context = format!("{bytes:?}, list lost: {loses_list}: {notices:?}");
            assert_eq!((is_kept, is_said), (!is_ours, !is_ours), "{context}");
            if is_kept {
                assert_eq!(bytes_of(&world, &aside), bytes, "{context}");
            }
            assert!(store.unknown_losses().is_empty(), "{context}");
        }
    }
}

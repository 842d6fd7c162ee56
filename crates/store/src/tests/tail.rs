//! The end of the active segment is cut off while the index is behind: the list beside the segment tells
//! which entries were lost, and little lies beyond its end.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::world::{World, append, batch, copy_dir, texts, wait};
use crate::faults::{EIO, Fault, MemoryFiles};
use crate::files::{File, Files, OpenMode, RealFiles};
use crate::journal::list::FrameList;
use crate::journal::sessions::SegmentSessions;
use crate::journal::{Frame, FrameKind, SegmentHeader, scan};
use crate::writer::UNLISTED_BYTES_MAX;
use crate::{Notice, Store, StoreOptions};

/// Returns the active segment's header and frames.
fn frames_of(world: &World) -> (SegmentHeader, Vec<Frame>) {
    let mut bytes = Vec::new();
    world.memory.damage(&world.segment(1), |found| bytes.clone_from(found)).unwrap();
    let header = SegmentHeader::decode(&bytes).unwrap().unwrap();
    let scanned = scan(&bytes, header.id, header.seed, None);
    (header, scanned.frames.into_iter().map(|(frame, _)| frame).collect())
}

fn kill(world: &World, store: Store) {
    world.files.set(Fault::FailFrom { at: 1, errno: EIO });
    drop(store);
    world.files.set(Fault::None);
}

fn append_round(store: &Store, names: &[String], id: u64) {
    for name in names {
        append(store, name, batch(id, &[&format!("{name} {id} {}", "x".repeat(60))])).unwrap();
    }
}

/// Creates a killed store whose index knows the first 20 of 110 appends. Returns it with that index. Of its sessions,
/// one is deleted and created again behind the index's checkpoint, and one only deleted.
fn killed() -> (World, tempfile::TempDir) {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let names = |from: u64, to: u64| (from..to).map(|at| format!("s{at}")).collect::<Vec<_>>();
    let store = world.open_quiet();
    for id in 0..4 {
        append_round(&store, &names(0, 5), id);
    }
    drop(store);
    let aside = tempfile::tempdir().unwrap();
    copy_dir(&world.index(), &aside.path().join("index"));
    let store = world.open_quiet();
    for id in 4..10 {
        append_round(&store, &names(0, 5), id);
    }
    wait(store.delete("s0")).unwrap();
    wait(store.delete("s1")).unwrap();
    append(&store, "s0", batch(0, &["begun again"])).unwrap();
    for id in 0..6 {
        append_round(&store, &names(5, 15), id);
    }
    append_round(&store, &names(5, 8), 6);
    kill(&world, store);
    (world, aside)
}

/// Returns the number of entries of each session according to the frames, without deleted sessions.
fn counts(frames: &[Frame]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for frame in frames {
        if frame.kind == FrameKind::Deleted {
            counts.remove(frame.session.as_ref());
        } else {
            *counts.entry(frame.session.to_string()).or_default() += u64::from(frame.count);
        }
    }
    counts
}

/// Wherever the segment is cut off, and with the index behind or lost: a session that lost a listed entry is
/// quarantined and named, and one that lost nothing continues.
#[test]
fn a_cut_behind_what_the_index_knows_is_named() {
    let (world, _) = killed();
    let (_, frames) = frames_of(&world);
    let journal = world.dir.path().join("journal");
    let listed = FrameList::load(&world.memory, &journal, 1).unwrap().until();
    let end = frames.last().unwrap().end();
    assert!(listed < end && end - listed < UNLISTED_BYTES_MAX, "{listed} of {end} bytes are listed");
    let (mut named, mut unnoticed) = (0, 0);
    for at in (0..frames.len()).step_by(7).chain([frames.len() - 1]) {
        let frame = &frames[at];
        // In the middle of a frame, and between two.
        let cut = if at % 2 == 0 { frame.offset } else { frame.offset + 10 };
        for has_index in [true, false] {
            let (world, aside) = killed();
            std::fs::remove_dir_all(world.index()).unwrap();
            if has_index {
                copy_dir(&aside.path().join("index"), &world.index());
            }
            let keep = usize::try_from(cut).unwrap();
            world.memory.damage(&world.segment(1), |bytes| bytes.truncate(keep)).unwrap();
            let (store, notices) = world.open();
            let context = format!("cut at frame {at}, index {has_index}: {notices:?}");
            // The expected state without frames that are listed nowhere.
            let known = counts(&frames[..frames.partition_point(|frame| frame.end() <= listed.max(cut))]);
            let lost: BTreeSet<&str> = frames[at..]
                .iter()
                .filter(|frame| frame.offset < listed)
                .map(|frame| &*frame.session)
                .collect();
            for (session, count) in &known {
                let head = store.head(session).unwrap();
                let head = head.unwrap_or_else(|| panic!("{session} is gone. {context}"));
                let left = store.salvage(session).unwrap().entries.len() as u64;
                let is_named = notices.iter().any(
                    |notice| matches!(notice, Notice::TailLost { session: said, .. } if said == session),
                );
                if left < *count {
                    assert!(lost.contains(session.as_str()), "{session} has {left} of {count}. {context}");
                    assert!(head.lost_from.is_some(), "{session} is not quarantined. {context}");
                    assert!(is_named, "{session} is not named. {context}");
                    named += 1;
                } else {
                    assert!(head.lost_from.is_none() && !is_named, "{session} lost nothing. {context}");
                    append(&store, session, batch(head.entries, &["goes on"])).unwrap();
                }
            }
            unnoticed += u32::from(cut >= listed);
            // A listed deletion has taken effect.
            assert_eq!(store.head("s1").unwrap().is_none(), !known.contains_key("s1"), "{context}");
        }
    }
    assert!(named > 100 && unnoticed > 0, "{named} named, {unnoticed} cuts behind the list");
}

/// A store closed by an earlier version has a record of the segment's sessions and no list.
#[test]
fn a_store_of_an_earlier_version_is_opened_and_its_cuts_are_named() {
    for cuts in [false, true] {
        let world = World { segment_bytes: 1 << 20, ..World::new() };
        let store = world.open_quiet();
        append_round(&store, &["one".to_owned(), "two".to_owned()], 0);
        append_round(&store, &["one".to_owned()], 1);
        drop(store);
        let (header, frames) = frames_of(&world);
        let journal = world.dir.path().join("journal");
        SegmentSessions::of(header, &frames).store(&world.memory, &journal).unwrap();
        let list = world.segment(1).with_extension("frames");
        assert!(!world.memory.paths().contains(&list), "the record takes the place of the list");
        std::fs::remove_dir_all(world.index()).unwrap();
        if cuts {
            // Nothing of the last frame can be read.
            let keep = usize::try_from(frames.last().unwrap().offset + 5).unwrap();
            world.memory.damage(&world.segment(1), |bytes| bytes.truncate(keep)).unwrap();
        }
        let (store, notices) = world.open();
        let count = if cuts { 1 } else { 2 };
        assert_eq!(texts(&store, "one", 0).unwrap().len(), count, "{notices:?}");
        let lost = Notice::TailLost { session: "one".to_owned(), from: greenroom_kernel::EntryId(1) };
        assert_eq!(notices.contains(&lost), cuts, "{notices:?}");
        append_round(&store, &["new".to_owned()], 0);
        drop(store);
        let segment = if cuts { 2 } else { 1 };
        let list = FrameList::load(&world.memory, &journal, segment).unwrap();
        assert_eq!(list.frames.last().map(|frame| &*frame.session), Some("new"));
    }
}

/// Files in which another process appends as soon as the list of the active segment is opened for reading.
#[derive(Debug)]
struct Meanwhile {
    writes: Store,
    has_written: AtomicBool,
}

impl Files for Meanwhile {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealFiles.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFiles.list(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let is_list = path.extension().is_some_and(|extension| extension == "frames");
        if is_list && !self.has_written.swap(true, Ordering::SeqCst) {
            let text = "x".repeat(usize::try_from(UNLISTED_BYTES_MAX).unwrap());
            append(&self.writes, "one", batch(2, &[&text])).unwrap();
        }
        RealFiles.open(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFiles.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFiles.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFiles.sync_dir(dir)
    }
}

/// A read-only store does not consider anything lost that another process wrote a moment ago.
#[test]
fn a_list_that_grows_while_it_is_read_reports_no_loss() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::new(dir.path()) };
    let (writes, _) = Store::open(&options).unwrap();
    for id in 0..2 {
        let text = "x".repeat(usize::try_from(UNLISTED_BYTES_MAX).unwrap());
        append(&writes, "one", batch(id, &[&text])).unwrap();
    }
    let files = Arc::new(Meanwhile { writes, has_written: AtomicBool::new(false) });
    let options = StoreOptions { is_read_only: true, files: files.clone(), ..options };
    let (store, notices) = Store::open(&options).unwrap();
    assert!(files.has_written.load(Ordering::SeqCst), "the list was read");
    let pid = Some(std::process::id());
    assert_eq!(notices, [Notice::ReadOnly { dir: dir.path().to_owned() }, Notice::InUse { pid }]);
    assert_eq!(texts(&store, "one", 0).unwrap().len(), 3);
}

/// Returns the files beside the segments of a store.
fn beside(memory: &MemoryFiles) -> Vec<PathBuf> {
    let mut paths = memory.paths();
    paths.retain(|path| path.extension().is_some_and(|found| found == "frames" || found == "sessions"));
    paths
}

/// A sealed segment has a record, the active one a list, and a missing segment has neither.
#[test]
fn each_segment_has_one_file_beside_it() {
    let world = World { segment_bytes: 3_000, ..World::new() };
    let store = world.open_quiet();
    for id in 0..30 {
        append(&store, "one", batch(id, &[&"x".repeat(200)])).unwrap();
    }
    append(&store, "two", batch(0, &["stays"])).unwrap();
    drop(store);
    let segments = || {
        let mut paths = world.memory.paths();
        paths.retain(|path| path.extension().is_some_and(|found| found == "seg"));
        paths
    };
    let newest = segments().len() as u64;
    assert!(newest > 2);
    let expected = |ids: &[u64], active: u64| -> Vec<PathBuf> {
        let sealed = ids.iter().map(|id| world.segment(*id).with_extension("sessions"));
        let mut all: Vec<_> = sealed.chain([world.segment(active).with_extension("frames")]).collect();
        all.sort();
        all
    };
    let sealed: Vec<u64> = (1..newest).collect();
    assert_eq!(beside(&world.memory), expected(&sealed, newest));
    let store = world.open_quiet();
    wait(store.delete("one")).unwrap();
    wait(store.reclaim()).unwrap();
    append(&store, "two", batch(1, &["more"])).unwrap();
    drop(store);
    let (left, segments) = (beside(&world.memory), segments());
    let names = |paths: &[PathBuf]| paths.iter().map(|path| path.with_extension("")).collect::<Vec<_>>();
    assert_eq!(names(&left), names(&segments));
}

//! Bytes that are damaged or lost: the intact part can be read, the rest is reported, and nothing panics.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use greenroom_kernel::EntryId;

use super::world::{World, append, batch, copy_dir, keyed, texts, wait};
use crate::faults::Random;
use crate::{Appended, Notice, Salvaged, Store, StoreError};

type Texts = BTreeMap<String, Vec<String>>;

/// Returns a closed store with five sessions, whose frames alternate over several segments.
fn filled(seed: u64) -> (World, Texts) {
    let mut random = Random::new(seed);
    let world = World { segment_bytes: 4_000, ..World::new() };
    let store = world.open_quiet();
    let mut sessions = Texts::new();
    for step in 0..60 {
        let session = format!("s{}", random.below(5));
        let known = sessions.entry(session.clone()).or_default();
        let text = format!("{step} {}", "w".repeat(usize::try_from(random.below(500)).unwrap()));
        let first = known.len() as u64;
        append(&store, &session, keyed(first, &[&text], &step.to_string())).unwrap();
        known.push(text);
    }
    drop(store);
    (world, sessions)
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let length = bytes.len() as u64;
    if length == 0 {
        return;
    }
    let at = usize::try_from(random.below(length)).unwrap();
    match random.below(4) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => {
            let end = (at + 512).min(bytes.len());
            bytes[at..end].fill(0);
        }
        2 => bytes.truncate(at),
        _ => {
            for _ in 0..20 {
                let at = usize::try_from(random.below(length)).unwrap();
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn pick<'a, T>(from: &'a [T], random: &mut Random) -> &'a T {
    &from[usize::try_from(random.below(from.len() as u64)).unwrap()]
}

fn damage_journal(world: &World, random: &mut Random) {
    let mut paths = world.memory.paths();
    // Damage to the newest segment is the hardest case, so it gets a third of the cases.
    if random.below(3) == 0 {
        let newest = paths.iter().rfind(|path| path.extension().is_some_and(|found| found == "seg"));
        paths = vec![newest.unwrap().clone()];
    }
    let path = pick(&paths, random);
    if random.below(8) == 0 {
        world.memory.lose(path);
    } else {
        world.memory.damage(path, |bytes| mutate(bytes, random)).unwrap();
    }
}

fn damage_index(world: &World, random: &mut Random) {
    let paths = files_below(&world.index());
    let path = pick(&paths, random);
    if random.below(8) == 0 {
        std::fs::remove_file(path).unwrap();
    } else {
        let mut bytes = std::fs::read(path).unwrap();
        mutate(&mut bytes, random);
        std::fs::write(path, bytes).unwrap();
    }
}

/// Checks that all readable data is what was written, and that everything else was reported. Returns whether
/// all of it is there.
fn check(store: &Store, notices: &[Notice], sessions: &Texts, context: &str) -> bool {
    let mut is_whole = true;
    let is_reported = notices.iter().any(|notice| {
        matches!(notice, Notice::TailLost { .. } | Notice::Damaged { .. } | Notice::TailCut { .. })
    });
    for (session, expected) in sessions {
        match texts(store, session, 0) {
            Ok(found) if &found == expected => continue,
            Ok(found) => {
                assert_eq!(found, expected[..found.len()], "{context}: {session}");
                assert!(is_reported, "{context}: {session} is shorter and nothing reports it: {notices:?}");
            }
            Err(StoreError::NotFound { .. }) => {
                assert!(is_reported, "{context}: {session} is gone and nothing reports it: {notices:?}");
            }
            Err(StoreError::Damaged { .. } | StoreError::Index { .. }) => {}
            Err(error) => panic!("{context}: {session}: {error:?}"),
        }
        is_whole = false;
        match store.salvage(session) {
            Ok(Salvaged { entries, .. }) => {
                for entry in entries {
                    let text = entry.kind.as_message().unwrap().text();
                    assert_eq!(text, expected[usize::try_from(entry.id.0).unwrap()], "{context}: {session}");
                }
            }
            Err(StoreError::NotFound { .. } | StoreError::Index { .. }) => {}
            Err(error) => panic!("{context}: {session}: {error:?}"),
        }
    }
    is_whole
}

fn mutated(seed: u64, damage: impl Fn(&World, &mut Random)) -> (World, Texts, bool) {
    let (world, sessions) = filled(seed);
    let mut random = Random::new(seed ^ 0xD15C);
    damage(&world, &mut random);
    let context = format!("seed {seed}");
    let is_whole = match world.try_open() {
        Ok((store, notices)) => check(&store, &notices, &sessions, &context),
        Err(error) => panic!("{context}: {error:?}"),
    };
    // After a start has repaired the store, it stays usable: a session takes entries, or the error says why
    // not.
    for round in 0..2 {
        let (store, _) = world.open();
        for session in sessions.keys() {
            let next = store.head(session).unwrap().map_or(0, |head| head.entries);
            match append(&store, session, batch(next, &["more"])) {
                Ok(_) => {}
                Err(StoreError::Quarantined { .. }) => {
                    let head = wait(store.accept_loss(session)).unwrap();
                    assert_eq!(head.lost_from, None);
                    append(&store, session, batch(head.entries, &["more"])).unwrap();
                }
                Err(error) => panic!("{context} round {round}: {session}: {error:?}"),
            }
        }
    }
    (world, sessions, is_whole)
}

#[test]
fn a_damaged_journal_gives_the_intact_part_and_says_the_rest() {
    let whole = (0..90).filter(|seed| mutated(*seed, damage_journal).2).count();
    assert!(whole < 60, "{whole} of 90 did no harm");
}

#[test]
fn a_damaged_index_costs_nothing() {
    (0..45).for_each(damaged_index);
}

fn damaged_index(seed: u64) {
    let (world, sessions, _) = mutated(seed, damage_index);
    let (store, _) = world.open();
    for (session, expected) in &sessions {
        let found = texts(&store, session, 0).unwrap();
        assert_eq!(&found[..expected.len()], expected, "seed {seed}: {session}");
    }
}

#[test]
fn damage_to_both_is_reported_too() {
    (100..145).for_each(|seed| drop(mutated(seed, damage_both)));
}

fn damage_both(world: &World, random: &mut Random) {
    damage_journal(world, random);
    damage_index(world, random);
}

#[test]
fn damage_to_two_files_of_the_journal_is_reported() {
    (200..230).for_each(|seed| drop(mutated(seed, damage_two)));
}

/// Damages two of the journal's files; a third of the time they are the same one.
fn damage_two(world: &World, random: &mut Random) {
    damage_journal(world, random);
    damage_journal(world, random);
}

#[test]
fn damage_is_reported_without_an_index_too() {
    (300..330).for_each(|seed| drop(mutated(seed, damage_without_index)));
}

fn damage_without_index(world: &World, random: &mut Random) {
    damage_journal(world, random);
    std::fs::remove_dir_all(world.index()).unwrap();
}

/// The kinds of damage: a fifth of the seeds each.
const KINDS: [&str; 5] =
    ["the journal", "the index", "both", "two files of the journal", "the journal, the index lost"];

/// Run by `cargo xtask mutations`. The environment gives the number of seeds; [`KINDS`] share them.
#[test]
#[ignore = "run by `cargo xtask mutations`"]
#[expect(clippy::print_stdout, reason = "it is a command's output")]
fn manual() {
    #[expect(clippy::disallowed_methods, reason = "a test binary has no other way to be told")]
    let runs = std::env::var("GREENROOM_MUTATIONS").map_or(10_000, |text| text.parse().expect("a number"));
    let began = std::time::Instant::now();
    let next = AtomicU64::new(0);
    let tally = Mutex::new(Tally::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= runs {
                return;
            }
            let kind = usize::try_from(seed * KINDS.len() as u64 / runs).expect("a kind");
            let lived = catch_unwind(|| match kind {
                0 => mutated(seed, damage_journal).2,
                1 => {
                    damaged_index(seed);
                    true
                }
                2 => mutated(seed, damage_both).2,
                3 => mutated(seed, damage_two).2,
                _ => mutated(seed, damage_without_index).2,
            });
            let mut tally = tally.lock().unwrap();
            tally.runs[kind] += 1;
            match lived {
                Ok(is_whole) => tally.whole[kind] += u64::from(is_whole),
                Err(_) => tally.failed.push(seed),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let tally = tally.into_inner().unwrap();
    for (kind, what) in KINDS.into_iter().enumerate() {
        println!(
            "{:>8} mutations of {what}: {} lost nothing, {} lost something and said so",
            tally.runs[kind],
            tally.whole[kind],
            tally.runs[kind] - tally.whole[kind]
        );
    }
    println!(
        "{runs} mutations in {:.1} s; {} failed: {:?}",
        began.elapsed().as_secs_f64(),
        tally.failed.len(),
        tally.failed
    );
    assert!(tally.failed.is_empty());
}

/// The results of many mutations, by the kind of damage.
#[derive(Default)]
struct Tally {
    runs: [u64; KINDS.len()],
    whole: [u64; KINDS.len()],
    failed: Vec<u64>,
}

/// Returns a store whose only segment lost its last `count` bytes, opened again.
fn cut(count: u64, loses_index: bool) -> (World, Vec<Notice>, Store) {
    let world = World::new();
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["a"])).unwrap();
    append(&store, "two", keyed(0, &["x"], "k0")).unwrap();
    for id in 1..6 {
        append(&store, "two", keyed(id, &["y"], &format!("k{id}"))).unwrap();
    }
    drop(store);
    world
        .memory
        .damage(&world.segment(1), |bytes| {
            let length = bytes.len() as u64 - count;
            bytes.truncate(usize::try_from(length).unwrap());
        })
        .unwrap();
    if loses_index {
        std::fs::remove_dir_all(world.index()).unwrap();
    }
    let (store, notices) = world.open();
    (world, notices, store)
}

#[test]
fn a_lost_tail_is_named_and_the_session_quarantined_until_that_is_accepted() {
    let (world, notices, store) = cut(150, false);
    let [Notice::TailLost { session, from }] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!(session, "two");
    let head = store.head("two").unwrap().unwrap();
    assert_eq!((head.lost_from, head.entries), (Some(*from), from.0));
    assert!(matches!(head.state, greenroom_kernel::head::LoggedState::Failed { .. }));
    assert_eq!(texts(&store, "two", 0).unwrap().len() as u64, from.0);
    let refused = append(&store, "two", batch(from.0, &["z"]));
    assert!(matches!(&refused, Err(StoreError::Quarantined { from: at, .. }) if at == from), "{refused:?}");
    append(&store, "one", batch(1, &["b"])).unwrap();
    // The quarantine persists over a restart, and when the index is rebuilt.
    drop(store);
    let store = world.open_quiet();
    assert_eq!(store.head("two").unwrap().unwrap().lost_from, Some(*from));
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    let (store, _) = world.open();
    assert_eq!(store.head("two").unwrap().unwrap().lost_from, Some(*from));
    let head = wait(store.accept_loss("two")).unwrap();
    assert_eq!((head.lost_from, head.entries), (None, from.0));
    // The keys of the lost batches are free again, so that their callers can send them again.
    let again = append(&store, "two", keyed(from.0, &["y"], &format!("k{from}"))).unwrap();
    assert!(matches!(again, Appended::Written { .. }));
    drop(store);
    let store = world.open_quiet();
    assert_eq!(texts(&store, "two", 0).unwrap().len() as u64, from.0 + 1);
}

#[test]
fn a_lost_tail_is_reported_even_when_the_index_is_lost_too() {
    let (_world, notices, store) = cut(150, true);
    let is_reported = |notice: &Notice| matches!(notice, Notice::Damaged { others_possible: true, .. });
    assert!(notices.iter().any(is_reported), "{notices:?}");
    assert_eq!(texts(&store, "one", 0).unwrap(), ["a"]);
}

#[test]
fn a_lost_journal_is_reported() {
    let (world, sessions) = filled(1);
    for path in world.memory.paths() {
        world.memory.lose(&path);
    }
    let (store, notices) = world.open();
    for session in sessions.keys() {
        let lost = Notice::TailLost { session: session.clone(), from: EntryId(0) };
        assert!(notices.contains(&lost), "{session}: {notices:?}");
        assert!(matches!(append(&store, session, batch(0, &["a"])), Err(StoreError::Quarantined { .. })));
    }
}

#[test]
fn an_index_that_is_ahead_of_the_journal_is_reported() {
    let (world, _) = filled(2);
    let journal: Vec<(PathBuf, Vec<u8>)> = world
        .memory
        .paths()
        .into_iter()
        .map(|path| {
            let mut copy = Vec::new();
            world.memory.damage(&path, |bytes| copy.clone_from(bytes)).unwrap();
            (path, copy)
        })
        .collect();
    let store = world.open_quiet();
    let next = store.head("s0").unwrap().unwrap().entries;
    append(&store, "s0", batch(next, &["later"])).unwrap();
    append(&store, "new", batch(0, &["later"])).unwrap();
    drop(store);
    for (path, bytes) in journal {
        world.memory.damage(&path, |current| *current = bytes).unwrap();
    }
    let (store, notices) = world.open();
    for (session, from) in [("s0", next), ("new", 0)] {
        let lost = Notice::TailLost { session: session.to_owned(), from: EntryId(from) };
        assert!(notices.contains(&lost), "{notices:?}");
    }
    assert_eq!(texts(&store, "s0", 0).unwrap().len() as u64, next);
}

#[test]
fn an_index_that_is_behind_catches_up() {
    let (world, mut sessions) = filled(3);
    let aside = tempfile::tempdir().unwrap();
    let old = aside.path().join("index");
    copy_dir(&world.index(), &old);
    let store = world.open_quiet();
    for step in 0..40 {
        let session = format!("s{}", step % 5);
        let known = sessions.get_mut(&session).unwrap();
        let text = format!("later {step} {}", "v".repeat(300));
        append(&store, &session, batch(known.len() as u64, &[&text])).unwrap();
        known.push(text);
    }
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    copy_dir(&old, &world.index());
    let store = world.open_quiet();
    assert!(check(&store, &[], &sessions, "behind"));
}

#[test]
fn a_hole_below_the_live_context_does_not_cost_what_comes_after() {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let store = world.open_quiet();
    for id in 0..10 {
        let mut batch = batch(id, &[&format!("text {id}")]);
        Arc::make_mut(&mut batch.head).active_from = EntryId(5);
        append(&store, "one", batch).unwrap();
    }
    drop(store);
    world
        .memory
        .damage(&world.segment(1), |bytes| {
            let at = bytes.windows(6).position(|found| found == b"text 2").unwrap();
            bytes[at] ^= 1;
        })
        .unwrap();
    let (store, notices) = world.open();
    let [Notice::Damaged { sessions, others_possible: false, .. }] = notices.as_slice() else {
        panic!("{notices:?}")
    };
    assert_eq!(sessions, &["one"]);
    assert_eq!(texts(&store, "one", 3).unwrap().len(), 7);
    assert!(matches!(texts(&store, "one", 0), Err(StoreError::Damaged { entry: EntryId(2), .. })));
    let salvaged = store.salvage("one").unwrap();
    assert_eq!((salvaged.entries.len(), salvaged.lost), (9, vec![(EntryId(2), EntryId(3))]));
    // A page has what is left of its part, and the losses of the whole session.
    for (from, limit, ids, next) in [
        (0, 4, &[0, 1, 3][..], Some(4)),
        (2, 1, &[], Some(3)),
        (4, 6, &[4, 5, 6, 7, 8, 9], None),
        (8, 100, &[8, 9], None),
        (10, 1, &[], None),
        (12, u64::MAX, &[], None),
    ] {
        let page = store.entries("one", EntryId(from), limit).unwrap().unwrap();
        let found: Vec<u64> = page.entries.iter().map(|entry| entry.id.0).collect();
        assert_eq!((found.as_slice(), page.next.map(|next| next.0)), (ids, next), "{from}, {limit}");
        assert_eq!(page.lost, [(EntryId(2), EntryId(3))], "{from}, {limit}");
    }
    let head = wait(store.accept_loss("one")).unwrap();
    assert_eq!(head.entries, 10);
    append(&store, "one", batch(10, &["on"])).unwrap();
    drop(store);
    let store = world.open_quiet();
    assert_eq!(texts(&store, "one", 5).unwrap().len(), 6);
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    let (store, _) = world.open();
    assert_eq!(store.head("one").unwrap().unwrap().lost_from, None);
    assert_eq!(texts(&store, "one", 5).unwrap().len(), 6);
}

#[test]
fn an_index_directory_that_cannot_be_used_is_set_aside_once() {
    let (world, sessions) = filled(4);
    for _ in 0..3 {
        std::fs::write(world.index().join("snap.0000.generating"), b"half").unwrap();
        for path in files_below(&world.index()) {
            std::fs::write(path, b"not sled's").unwrap();
        }
        let (store, notices) = world.open();
        assert!(matches!(notices.as_slice(), [Notice::IndexRebuilt { .. }]), "{notices:?}");
        assert!(check(&store, &notices, &sessions, "set aside"));
    }
    let aside = std::fs::read_dir(world.dir.path()).unwrap();
    let names: Vec<String> = aside.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("index.damaged")).count(), 1, "{names:?}");
}

#[test]
fn a_lost_manifest_is_made_anew() {
    let (world, sessions) = filled(5);
    world.memory.lose(&world.dir.path().join("journal/manifest"));
    let (store, notices) = world.open();
    assert!(matches!(notices.as_slice(), [Notice::ManifestRebuilt { .. }]), "{notices:?}");
    assert!(check(&store, &notices, &sessions, "manifest"));
    drop(store);
    world.open_quiet();
}

#[test]
fn a_newer_versions_journal_is_refused() {
    let (world, _) = filled(6);
    world
        .memory
        .damage(&world.segment(1), |bytes| {
            bytes[4] = 9;
            let crc = crc32c::crc32c(&bytes[..36]);
            bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        })
        .unwrap();
    let refused = world.try_open();
    assert!(matches!(refused, Err(StoreError::Version { found: 9, .. })), "{refused:?}");
}

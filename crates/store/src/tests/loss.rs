//! Losses without the index: the affected sessions are named, or every opening reports that they are unknown.

use std::collections::BTreeMap;

use greenroom_kernel::EntryId;

use crate::faults::{EIO, Fault, Random};
use crate::files::{Files, OpenMode};
use crate::{Notice, Store, StoreError};

use super::world::{World, append, batch, texts, wait};

/// Creates a closed store with several segments, in each of which sessions begin, continue and end. Returns the
/// segments' numbers and the texts of each session.
fn filled() -> (World, Vec<u64>, BTreeMap<String, Vec<String>>) {
    let world = World { segment_bytes: 2_220, ..World::new() };
    let store = world.open_quiet();
    let mut sessions = BTreeMap::<String, Vec<String>>::new();
    for step in 0..24_u64 {
        if step == 12 {
            // One batch that takes several frames.
            let large: Vec<String> = (0..10).map(|id| format!("large {id}")).collect();
            let texts: Vec<&str> = large.iter().map(String::as_str).collect();
            wait(store.append("large", batch(0, &texts))).unwrap();
            sessions.insert("large".to_owned(), large);
        }
        // `long` is in every segment; each of the others lies in one or two.
        for session in ["long".to_owned(), format!("short{}", step / 4)] {
            let known = sessions.entry(session.clone()).or_default();
            let text = format!("{session} {step} {}", "x".repeat(150));
            append(&store, &session, batch(known.len() as u64, &[&text])).unwrap();
            known.push(text);
        }
    }
    drop(store);
    let names = world.memory.paths();
    let ids = names.iter().filter(|path| path.extension().is_some_and(|found| found == "seg"));
    let ids = ids.map(|path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap()).collect();
    (world, ids, sessions)
}

fn lose_index(world: &World) {
    std::fs::remove_dir_all(world.index()).unwrap();
}

fn record(world: &World, segment: u64) -> std::path::PathBuf {
    world.segment(segment).with_extension("sessions")
}

/// Returns the sessions that do not have all their entries.
fn incomplete(store: &Store, sessions: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let is_whole = |(session, expected): &(&String, &Vec<String>)| match texts(store, session, 0) {
        Ok(found) => {
            assert_eq!(found, expected[..found.len()], "{session}");
            found.len() == expected.len()
        }
        Err(_) => false,
    };
    sessions.iter().filter(|session| !is_whole(session)).map(|(session, _)| session.clone()).collect()
}

fn is_quarantined(store: &Store, session: &str) -> bool {
    store.head(session).unwrap().is_some_and(|head| head.lost_from.is_some())
}

fn unknown_in(notices: &[Notice]) -> Vec<u64> {
    let unknown = notices.iter().filter_map(|notice| match notice {
        Notice::Damaged { segment, others_possible: true, .. } => Some(*segment),
        Notice::TailLost { .. }
        | Notice::Damaged { .. }
        | Notice::TailCut { .. }
        | Notice::IndexRebuilt { .. }
        | Notice::IndexInMemory { .. }
        | Notice::ReadOnly { .. }
        | Notice::InUse { .. }
        | Notice::SetAside { .. }
        | Notice::ManifestRebuilt { .. } => None,
    });
    unknown.collect()
}

#[test]
fn without_the_index_a_lost_segments_sessions_are_known_and_quarantined() {
    let (_, ids, _) = filled();
    assert!(ids.len() >= 4, "{ids:?}");
    for (at, id) in ids.iter().enumerate() {
        let is_active = at + 1 == ids.len();
        let (world, _, sessions) = filled();
        world.memory.lose(&world.segment(*id));
        for round in 0..3 {
            // Each time the index is rebuilt from what is left, with the same result.
            lose_index(&world);
            let (store, notices) = world.open();
            let incomplete = incomplete(&store, &sessions);
            assert!(incomplete.len() >= 2, "segment {id}: {incomplete:?}");
            for session in &incomplete {
                assert!(
                    is_quarantined(&store, session),
                    "segment {id}, round {round}: {session}: {notices:?}"
                );
                let next = store.head(session).unwrap().unwrap().entries;
                let refused = append(&store, session, batch(next, &["more"]));
                assert!(matches!(refused, Err(StoreError::Quarantined { .. })), "{refused:?}");
            }
            // Sealed data is known for certain. Of the newest segment, more may have been lost than was
            // recorded.
            assert_eq!(unknown_in(&notices), if is_active { vec![*id] } else { Vec::new() }, "{notices:?}");
        }
        let (store, _) = world.open();
        for session in incomplete(&store, &sessions) {
            let head = wait(store.accept_loss(&session)).unwrap();
            append(&store, &session, batch(head.entries, &["more"])).unwrap();
        }
        drop(store);
        lose_index(&world);
        let (store, _) = world.open();
        for session in sessions.keys() {
            assert!(!is_quarantined(&store, session), "segment {id}: {session} stays accepted");
        }
    }
}

#[test]
fn what_is_cut_off_a_segment_or_replaced_by_another_is_known() {
    let (_, ids, _) = filled();
    for id in &ids {
        for cut in [40_usize, 41, 300, 1_000, 1_500] {
            let (world, _, sessions) = filled();
            world.memory.damage(&world.segment(*id), |bytes| bytes.truncate(cut)).unwrap();
            lose_index(&world);
            let (store, notices) = world.open();
            for session in incomplete(&store, &sessions) {
                assert!(is_quarantined(&store, &session), "segment {id} at {cut}: {session}: {notices:?}");
            }
        }
        let (world, _, sessions) = filled();
        // Another segment is in the place of this one: perhaps a backup was put together wrongly.
        let other = ids.iter().find(|other| *other != id).unwrap();
        let mut foreign = Vec::new();
        world.memory.damage(&world.segment(*other), |bytes| foreign.clone_from(bytes)).unwrap();
        world.memory.damage(&world.segment(*id), |bytes| *bytes = foreign).unwrap();
        lose_index(&world);
        let (store, notices) = world.open();
        let lost = incomplete(&store, &sessions);
        assert!(lost.contains(&"long".to_owned()), "{lost:?}");
        for session in lost {
            assert!(is_quarantined(&store, &session), "foreign {id}: {session}: {notices:?}");
        }
    }
}

#[test]
fn of_a_segment_without_a_record_every_opening_says_that_it_is_not_known_until_that_is_accepted() {
    let (world, ids, _) = filled();
    let id = ids[1];
    world.memory.lose(&record(&world, id));
    world.memory.lose(&world.segment(id));
    lose_index(&world);
    for loses_index in [false, false, true] {
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        assert_eq!(unknown_in(&notices), [id], "{notices:?}");
        assert_eq!(store.unknown_losses(), [id]);
    }
    let (store, _) = world.open();
    assert!(!wait(store.accept_unknown_loss(id + 1)).unwrap());
    assert!(wait(store.accept_unknown_loss(id)).unwrap());
    assert_eq!(store.unknown_losses(), [0; 0]);
    assert!(!wait(store.accept_unknown_loss(id)).unwrap(), "once is enough");
    drop(store);
    for loses_index in [false, true] {
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        assert_eq!((unknown_in(&notices), store.unknown_losses()), (vec![], vec![]), "{notices:?}");
    }
}

#[test]
fn damage_that_nobody_can_name_is_said_again_after_its_segment_was_abandoned() {
    let (world, ids, _) = filled();
    let id = ids[1];
    world.memory.lose(&record(&world, id));
    world
        .memory
        .damage(&world.segment(id), |bytes| {
            // The header of the first frame, and the footer.
            bytes[45] ^= 1;
            let last = bytes.len() - 30;
            bytes[last] ^= 1;
        })
        .unwrap();
    lose_index(&world);
    for loses_index in [false, false, true] {
        if loses_index {
            lose_index(&world);
        }
        let (_store, notices) = world.open();
        assert_eq!(unknown_in(&notices), [id], "{notices:?}");
    }
    let (store, _) = world.open();
    assert!(wait(store.accept_unknown_loss(id)).unwrap());
    drop(store);
    lose_index(&world);
    let (store, notices) = world.open();
    assert_eq!((unknown_in(&notices), store.unknown_losses()), (vec![], vec![]), "{notices:?}");
    assert!(matches!(&notices[..], [Notice::IndexRebuilt { .. }]), "{notices:?}");
}

#[test]
fn a_segment_that_is_gone_with_the_list_of_segments_is_known_by_its_record() {
    let (_, ids, _) = filled();
    for id in &ids {
        let (world, _, sessions) = filled();
        world.memory.lose(&world.segment(*id));
        world.memory.lose(&world.dir.path().join("journal/manifest"));
        lose_index(&world);
        let (store, notices) = world.open();
        let lost = incomplete(&store, &sessions);
        assert!(lost.contains(&"long".to_owned()), "segment {id}: {lost:?}");
        for session in lost {
            assert!(is_quarantined(&store, &session), "segment {id}: {session}: {notices:?}");
        }
        append(&store, "new", batch(0, &["goes on"])).unwrap();
        drop(store);
        assert_eq!(texts(&world.open().0, "new", 0).unwrap(), ["goes on"]);
    }
}

#[test]
fn a_segment_that_is_put_back_is_read_again() {
    let (world, ids, sessions) = filled();
    let path = world.segment(ids[1]);
    let mut backup = Vec::new();
    world.memory.damage(&path, |bytes| backup.clone_from(bytes)).unwrap();
    world.memory.lose(&path);
    let (store, _) = world.open();
    let lost = incomplete(&store, &sessions);
    assert!(lost.len() >= 2, "{lost:?}");
    drop(store);
    world.memory.open(&path, OpenMode::Create).unwrap();
    world.memory.damage(&path, |bytes| *bytes = backup).unwrap();
    let (store, notices) = world.open();
    // If entries follow the hole, the session is whole again as soon as a person accepts the loss. Otherwise,
    // the record of the loss stands: only the whole directory can be restored.
    let left = incomplete(&store, &sessions);
    assert_eq!(left.len() + 2, lost.len(), "{left:?} of {lost:?}: {notices:?}");
    for session in &lost {
        assert!(is_quarantined(&store, session), "{session}");
        let head = wait(store.accept_loss(session)).unwrap();
        let is_whole = head.entries == sessions[session].len() as u64;
        assert_eq!(is_whole, !left.contains(session), "{session}");
        append(&store, session, batch(head.entries, &["more"])).unwrap();
    }
}

#[test]
fn a_check_reads_everything_and_names_each_loss() {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let store = world.open_quiet();
    for id in 0..5 {
        append(&store, "one", batch(id, &[&format!("text {id}")])).unwrap();
        append(&store, "two", batch(id, &["other"])).unwrap();
    }
    assert_eq!(store.check().unwrap(), []);
    let damage = |bytes: &mut Vec<u8>| {
        let at = bytes.windows(6).position(|found| found == b"text 2").unwrap();
        bytes[at] ^= 1;
    };
    // It is found while the store is open, too; the next opening quarantines the session.
    world.memory.damage(&world.segment(1), damage).unwrap();
    for is_quarantined in [false, true] {
        let store = if is_quarantined { world.open().0 } else { store.clone() };
        let losses = store.check().unwrap();
        let [loss] = losses.as_slice() else { panic!("{losses:?}") };
        assert_eq!((loss.session.as_str(), &loss.lost), ("one", &vec![(EntryId(2), EntryId(3))]));
        assert_eq!((loss.quarantined_from.is_some(), loss.is_accepted), (is_quarantined, false));
        if !is_quarantined {
            wait(store.close()).unwrap();
        } else {
            wait(store.accept_loss("one")).unwrap();
            assert!(store.check().unwrap().iter().all(|loss| loss.is_accepted));
        }
    }
}

#[test]
fn whatever_is_damaged_without_an_index_is_named_or_said_at_every_opening() {
    let mut harmful = 0;
    for seed in 0..150 {
        let (world, ids, sessions) = filled();
        let mut random = Random::new(seed);
        for _ in 0..=random.below(2) {
            let id = ids[usize::try_from(random.below(ids.len() as u64)).unwrap()];
            let path = if random.below(5) == 0 { record(&world, id) } else { world.segment(id) };
            if random.below(4) == 0 {
                world.memory.lose(&path);
            } else {
                // A file lost in an earlier round cannot be damaged.
                drop(world.memory.damage(&path, |bytes| mutate(bytes, &mut random)));
            }
        }
        lose_index(&world);
        for round in 0..2 {
            let (store, notices) = world.open();
            let lost = incomplete(&store, &sessions);
            harmful += u32::from(round == 0 && !lost.is_empty());
            let is_known = |session: &String| is_quarantined(&store, session);
            let is_said = !store.unknown_losses().is_empty();
            let said = is_said && !unknown_in(&notices).is_empty();
            assert!(
                said || lost.iter().all(is_known),
                "seed {seed}, round {round}: {lost:?} are incomplete: {notices:?}"
            );
        }
    }
    assert!(harmful >= 75, "only {harmful} of 150 cost anything");
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
    match random.below(3) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => {
            let end = (at + 512).min(bytes.len());
            bytes[at..end].fill(0);
        }
        _ => bytes.truncate(at),
    }
}

/// A session whose loss is already known also loses the record of it, together with another's newest entry:
/// both are named.
#[test]
fn a_lost_tail_names_those_that_lost_entries_before_and_those_that_lost_their_newest() {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let store = world.open_quiet();
    for id in 0..4 {
        append(&store, "one", batch(id, &[&format!("one {id}")])).unwrap();
        append(&store, "two", batch(id, &[&format!("two {id}")])).unwrap();
    }
    drop(store);
    let damage = |bytes: &mut Vec<u8>| {
        let at = bytes.windows(5).position(|found| found == b"one 1").unwrap();
        bytes[at] ^= 1;
    };
    world.memory.damage(&world.segment(1), damage).unwrap();
    for (segment, adds) in [(2, false), (3, true)] {
        let (store, _) = world.open();
        assert!(is_quarantined(&store, "one"));
        if adds {
            append(&store, "two", batch(4, &["more"])).unwrap();
        }
        drop(store);
        world.memory.damage(&world.segment(segment), |bytes| bytes.truncate(40)).unwrap();
        let (_store, notices) = world.open();
        let sessions = ["one", "two"].into_iter().take(1 + usize::from(adds)).map(str::to_owned).collect();
        let mut expected = vec![Notice::Damaged { segment, offset: 40, sessions, others_possible: false }];
        if adds {
            expected.insert(0, Notice::TailLost { session: "two".to_owned(), from: EntryId(4) });
        }
        assert_eq!(notices, expected);
    }
}

#[test]
fn a_segment_that_is_put_back_takes_its_own_unknown_loss_with_it_and_no_other() {
    let (world, ids, _) = filled();
    let [first, second] = [ids[1], ids[2]];
    let mut backup = Vec::new();
    world.memory.damage(&world.segment(first), |bytes| backup.clone_from(bytes)).unwrap();
    for id in [first, second] {
        world.memory.lose(&record(&world, id));
        world.memory.lose(&world.segment(id));
    }
    lose_index(&world);
    assert_eq!(world.open().0.unknown_losses(), [first, second]);
    world.memory.open(&world.segment(first), OpenMode::Create).unwrap();
    world.memory.damage(&world.segment(first), |bytes| *bytes = backup).unwrap();
    let (store, notices) = world.open();
    assert_eq!((unknown_in(&notices), store.unknown_losses()), (vec![second], vec![second]), "{notices:?}");
}

/// The end of one segment is lost, and then that of the next; each time the process ends before the journal
/// records which entries were lost. The records of the segments' sessions still have the information if the
/// index is lost, too.
#[test]
fn a_loss_is_not_forgotten_by_a_crash_while_it_is_noted() {
    let mut interrupted = 0;
    for at in 1..40 {
        let world = World { segment_bytes: 1 << 20, ..World::new() };
        let mut sessions = BTreeMap::new();
        let mut was_interrupted = true;
        for names in [["a", "b"], ["c", "d"]] {
            let (store, _) = world.open();
            for id in 0..4 {
                for name in names {
                    append(&store, name, batch(id, &[&format!("{name} {id}")])).unwrap();
                    sessions.entry(name.to_owned()).or_insert_with(Vec::new).push(format!("{name} {id}"));
                }
            }
            drop(store);
            // The last segment may have another number if the failing disk has cost one.
            let mut paths = world.memory.paths();
            paths.retain(|path| path.extension().is_some_and(|found| found == "seg"));
            let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 150);
            world.memory.damage(paths.last().unwrap(), cut).unwrap();
            world.files.set(Fault::FailFrom { at, errno: EIO });
            let opened = world.try_open();
            was_interrupted &= opened.is_ok() && world.files.fired() > 0;
            drop(opened);
            world.files.set(Fault::None);
        }
        lose_index(&world);
        let (store, notices) = world.open();
        let lost = incomplete(&store, &sessions);
        assert_eq!(lost, ["a", "b", "c", "d"], "operation {at}: {notices:?}");
        for session in lost {
            assert!(is_quarantined(&store, &session), "operation {at}: {session}: {notices:?}");
        }
        interrupted += u32::from(was_interrupted);
    }
    assert!(interrupted >= 2, "only {interrupted} openings were interrupted after they found the loss");
}

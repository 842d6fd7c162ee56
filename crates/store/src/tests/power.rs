//! Power cuts: acknowledged data is there, however much of the rest reached the disk, and whatever happened
//! to the index.

use std::collections::BTreeMap;

use crate::faults::{EIO, Fault, Random};
use crate::{Appended, Notice, Store};

use super::world::{World, append, batch, copy_dir, keyed, texts, wait};

/// The texts that were sent for each session, and how many of them were acknowledged.
#[derive(Default)]
struct Expected {
    sessions: BTreeMap<String, (Vec<String>, usize)>,
}

/// Appends at random until the disk fails.
fn work(store: &Store, random: &mut Random, expected: &mut Expected, steps: u64) {
    for step in 0..steps {
        let session = format!("s{}", random.below(4));
        let (texts, acknowledged) = expected.sessions.entry(session.clone()).or_default();
        texts.truncate(*acknowledged);
        let mut new = Vec::new();
        for at in 0..=random.below(3) {
            let length = usize::try_from(random.below(600)).unwrap();
            new.push(format!("{step}.{at} {}", "y".repeat(length)));
        }
        let refs: Vec<&str> = new.iter().map(String::as_str).collect();
        let first = texts.len() as u64;
        let batch = match random.below(3) {
            0 => keyed(first, &refs, &format!("{session}/{first}/{}", random.number())),
            _ => batch(first, &refs),
        };
        texts.extend(new);
        match append(store, &session, batch) {
            Ok(Appended::Written { .. }) => *acknowledged = texts.len(),
            Ok(Appended::Duplicate { .. }) => panic!("the keys are all different"),
            // It may be on the disk nevertheless; the next start shows.
            Err(_) => return,
        }
        if random.below(10) == 0 && wait(store.fact_put("fact", &step.to_le_bytes())).is_err() {
            return;
        }
    }
}

/// Checks that every acknowledged text is there, in order, and nothing that was never sent. From then on,
/// everything found is expected.
fn check(store: &Store, expected: &mut Expected, context: &str) {
    for (session, (sent, acknowledged)) in &mut expected.sessions {
        let found = texts(store, session, 0).unwrap_or_default();
        assert!(found.len() >= *acknowledged, "{context}: {session} has {} of {acknowledged}", found.len());
        assert_eq!(found, sent[..found.len()], "{context}: {session}");
        sent.truncate(found.len());
        *acknowledged = found.len();
    }
}

/// Five lives of a store, each of which ends with a power cut. Returns how many entries were acknowledged,
/// and how many starts found an unfinished write.
fn live(seed: u64) -> (usize, usize) {
    let mut random = Random::new(seed);
    let world = World { segment_bytes: 1 << (10 + random.below(6)), ..World::new() };
    let aside = tempfile::tempdir().unwrap();
    let mut expected = Expected::default();
    let mut cut_tails = 0;
    for round in 0..5 {
        let context = format!("seed {seed} round {round}");
        world.files.set(Fault::None);
        let (store, notices) = world.open();
        for notice in &notices {
            let is_fine = matches!(notice, Notice::TailCut { .. } | Notice::IndexRebuilt { .. });
            assert!(is_fine, "{context}: {notice:?}");
            cut_tails += usize::from(matches!(notice, Notice::TailCut { .. }));
        }
        check(&store, &mut expected, &context);
        world.files.set(Fault::FailFrom { at: 1 + random.below(60), errno: EIO });
        work(&store, &mut random, &mut expected, 40);
        drop(store);
        world.files.set(Fault::None);
        world.memory.power_cut(if random.below(4) == 0 { None } else { Some(&mut random) });
        let old = aside.path().join("index");
        match random.below(4) {
            // The next start finds an older index, no index, or the newest one.
            0 if old.exists() => {
                std::fs::remove_dir_all(world.index()).unwrap();
                copy_dir(&old, &world.index());
            }
            1 => std::fs::remove_dir_all(world.index()).unwrap(),
            2 => {
                drop(std::fs::remove_dir_all(&old));
                copy_dir(&world.index(), &old);
            }
            _ => {}
        }
    }
    (expected.sessions.values().map(|(_, acknowledged)| acknowledged).sum(), cut_tails)
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    let (mut acknowledged, mut cut_tails) = (0, 0);
    for seed in 0..100 {
        let lived = live(seed);
        acknowledged += lived.0;
        cut_tails += lived.1;
    }
    assert!(acknowledged > 3_000 && cut_tails > 30, "{acknowledged} entries, {cut_tails} unfinished writes");
}

#[test]
fn a_batch_is_there_entirely_or_not_at_all() {
    let mut whole = 0;
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let world = World::new();
        let store = world.open_quiet();
        append(&store, "one", batch(0, &["a"])).unwrap();
        world.files.set(Fault::FailFrom { at: 2, errno: EIO });
        // A batch of a few pages has a chance that all of them reach the disk.
        let long = "x".repeat(if seed % 4 == 0 { 900 } else { 10 });
        append(&store, "one", batch(1, &["b", &long, "c"])).unwrap_err();
        drop(store);
        assert!(world.files.fired() > 0);
        world.files.set(Fault::None);
        world.memory.power_cut(Some(&mut random));
        let (store, _) = world.open();
        let found = texts(&store, "one", 0).unwrap().len();
        assert!(found == 1 || found == 4, "seed {seed}: {found}");
        whole += u32::from(found == 4);
    }
    assert!((2..98).contains(&whole), "{whole} of 100 batches were there");
}

//! Locations of entries: after any staging, moving, changing and removing, the index returns the latest
//! state.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use greenroom_kernel::head::Head;

use super::{Change, Checkpoint, Index, Location, Row, RowPlace, key, row_sum};
use crate::faults::Random;

type Model = BTreeMap<(String, u64), Location>;

fn open() -> (tempfile::TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::open(dir.path(), 1 << 20).unwrap();
    (dir, index)
}

fn place(number: u64) -> Location {
    Location { segment: 1 + number / 50, offset: 40 + number % 50 * 300, length: 300 }
}

/// Returns the row of an entry as earlier versions wrote it.
fn single(Location { segment, offset, length }: Location) -> Vec<u8> {
    [&segment.to_le_bytes()[..], &offset.to_le_bytes(), &length.to_le_bytes()].concat()
}

fn stage_entry(index: &Index, session: &str, sequence: u64, location: Option<Location>) {
    let (session, entries) = (session.into(), sequence..sequence + 1);
    index.stage([Change::Entries { session, entries, location }]);
}

fn stage(index: &Index, model: &mut Model, session: &str, sequence: u64, location: Option<Location>) {
    stage_entry(index, session, sequence, location);
    match location {
        Some(location) => drop(model.insert((session.to_owned(), sequence), location)),
        None => drop(model.remove(&(session.to_owned(), sequence))),
    }
}

fn stage_all(index: &Index, model: &mut Model, of: &str, entries: Range<u64>, location: Option<Location>) {
    if entries.is_empty() {
        return;
    }
    let session = of.into();
    index.stage([Change::Entries { session, entries: entries.clone(), location }]);
    for sequence in entries {
        match location {
            Some(location) => drop(model.insert((of.to_owned(), sequence), location)),
            None => drop(model.remove(&(of.to_owned(), sequence))),
        }
    }
}

fn check(index: &Index, model: &Model, sessions: &[&str], random: &mut Random, context: &str) {
    let all: Vec<_> =
        model.iter().map(|((session, sequence), at)| (session.clone(), *sequence, *at)).collect();
    assert_eq!(index.all_entries().unwrap(), all, "{context}");
    for session in sessions {
        let (from, until) = (random.below(300), random.below(300));
        let expected: Vec<(u64, Location)> = all
            .iter()
            .filter(|(of, sequence, _)| of == session && (from..until).contains(sequence))
            .map(|(_, sequence, at)| (*sequence, *at))
            .collect();
        assert_eq!(
            index.entries(session, from, until).unwrap(),
            expected,
            "{context}: {session} {from}..{until}"
        );
        let expected = model.get(&((*session).to_owned(), from)).copied();
        assert_eq!(index.entry(session, from).unwrap(), expected, "{context}: {session} {from}");
    }
}

/// Sessions grow, their frames are moved, their ends are discarded, holes are made, they are deleted and
/// created again, with moves to the database at random, and one in progress.
#[test]
fn the_index_says_what_was_said_last_about_each_entry() {
    let sessions = ["a", "b", "ab", "e"];
    let (mut rows_most, mut entries_most) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (_dir, index) = open();
        let mut model = Model::new();
        let mut number = 0;
        for step in 0..60 {
            let session = sessions[usize::try_from(random.below(4)).unwrap()];
            let end = model.keys().filter(|(of, _)| of == session).map(|(_, sequence)| sequence + 1).max();
            let end = end.unwrap_or(0);
            match random.below(10) {
                // A frame with several entries.
                0..=5 => {
                    number += 1;
                    let until = end + 1 + random.below(if step % 7 == 0 { 150 } else { 4 });
                    stage_all(&index, &mut model, session, end..until, Some(place(number)));
                }
                6 if end > 0 => {
                    number += 1;
                    let from = random.below(end);
                    for sequence in from..end.min(from + 5) {
                        if model.contains_key(&(session.to_owned(), sequence)) {
                            stage(&index, &mut model, session, sequence, Some(place(number)));
                        }
                    }
                    // In the middle of a frame, or over the ends of several.
                    let (from, length) = (random.below(end), random.below(12));
                    stage_all(&index, &mut model, session, from..end.min(from + length), Some(place(number)));
                }
                7 if end > 0 => stage(&index, &mut model, session, random.below(end), None),
                8 if end > 0 => {
                    let from = if random.below(3) == 0 { 0 } else { random.below(end) };
                    let until = if random.below(3) == 0 { from + random.below(end - from) } else { end };
                    stage_all(&index, &mut model, session, from..until, None);
                }
                _ => index.flush_staged().unwrap(),
            }
            if random.below(4) == 0 {
                // A move in progress: its changes are in neither table yet.
                index.begin_move().unwrap();
            } else if random.below(4) == 0 {
                index.finish_move().unwrap();
            }
            check(&index, &model, &sessions, &mut random, &format!("seed {seed} step {step}"));
        }
        index.flush_staged().unwrap();
        check(&index, &model, &sessions, &mut random, &format!("seed {seed}"));
        let rows = index.with(|database| Ok(database.scan_prefix(b"e").count())).unwrap().unwrap();
        (rows_most, entries_most) = (rows_most + rows, entries_most + model.len());
    }
    assert!(entries_most > 5_000, "{entries_most} entries");
    assert!(rows_most * 8 < entries_most, "{rows_most} rows for {entries_most} entries");
}

/// Sessions begin, change and are removed, with moves at random, and one in progress: the rows are the newest ones,
/// in whatever pages they are read, and the sum in sled is that of the rows there.
#[test]
fn rows_are_the_newest_ones_and_add_up() {
    let (mut pages, mut moves, mut removals) = (0, 0, 0);
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let (dir, mut index) = open();
        // An index with rows but without a checkpoint is not opened again.
        index.stage([Change::Checkpoint(Checkpoint::default())]);
        let mut model: BTreeMap<String, Row> = BTreeMap::new();
        let check = |index: &Index, model: &BTreeMap<String, Row>, random: &mut Random, context: &str| {
            let id = format!("s{}", random.below(14));
            assert_eq!(index.row(&id).unwrap(), model.get(&id).cloned(), "{context}");
            let (after, limit) = ((random.below(3) > 0).then_some(id), 1 + random.below(9));
            let limit = usize::try_from(limit).unwrap();
            let follows = |(id, _): &(&String, _)| after.as_ref().is_none_or(|after| *id > after);
            let expected: Vec<_> = model.iter().filter(follows).take(limit).collect();
            let found = index.rows_after(after.as_deref(), limit).unwrap();
            assert_eq!(found.iter().map(|(id, row)| (id, row)).collect::<Vec<_>>(), expected, "{context}");
        };
        for step in 0..120 {
            let id = format!("s{}", random.below(14));
            let row = (random.below(4) > 0).then(|| {
                let head = Head { entries: step, ..Head::default() };
                Row { head: Arc::new(head), place: RowPlace { newest: place(step), mark: None, keys: 0 } }
            });
            index.stage([Change::Row { session: id.as_str().into(), row: row.clone() }]);
            match row {
                Some(row) => drop(model.insert(id, row)),
                None => removals += u32::from(model.remove(&id).is_some()),
            }
            // What is moved without a checkpoint counts, too.
            if random.below(3) > 0 {
                index.stage([Change::Checkpoint(Checkpoint { offset: step, ..Checkpoint::default() })]);
            }
            match random.below(8) {
                0 => drop(index.begin_move().unwrap()),
                1 => index.finish_move().unwrap(),
                2 => {
                    index.flush_staged().unwrap();
                    moves += 1;
                    let sum = index.checkpoint().unwrap().map(|(_, sum)| sum);
                    assert!(
                        sum.is_none_or(|sum| sum == index.summary().unwrap().sum),
                        "seed {seed} step {step}"
                    );
                }
                3 if random.below(3) == 0 => {
                    index.close();
                    drop(index);
                    index = Index::open(dir.path(), 1 << 20).unwrap();
                }
                _ => {}
            }
            pages += 1;
            check(&index, &model, &mut random, &format!("seed {seed} step {step}"));
        }
    }
    assert!(pages > 3_000 && moves > 200 && removals > 300, "{pages} {moves} {removals}");
}

/// However much is staged, reading an entry or a page takes only what it needs of it, and entries that are moved one by
/// one to the same frame take as much as when they are moved together.
#[test]
fn reading_takes_only_what_it_needs_of_what_is_staged() {
    let (_dir, index) = open();
    let mut model = Model::new();
    for number in 0..1_000 {
        stage(&index, &mut model, "a", number, Some(place(number)));
        let place = RowPlace { newest: place(number), mark: None, keys: 0 };
        let row = Some(Row { head: Arc::default(), place });
        index.stage([Change::Row { session: format!("s{number}").into(), row }]);
        stage(&index, &mut model, "b", number, Some(Location { length: 7, ..place.newest }));
    }
    let staged = index.staged.read();
    assert_eq!(staged.spans("a", &(500..501)).len(), 1);
    assert_eq!(staged.spans("b", &(0..u64::MAX)).len(), 1_000);
    assert_eq!(staged.rows(Some("s5"), 7).len(), 7);
    drop(staged);
    for number in 0..1_000 {
        stage(&index, &mut model, "c", number, Some(place(3)));
    }
    assert_eq!(index.staged.read().spans("c", &(0..u64::MAX)).len(), 1);
}

/// The start of a row does not change while its first entry exists: neither by additions, nor by moved
/// frames.
#[test]
fn rows_begin_where_they_began() {
    let (_dir, index) = open();
    let mut model = Model::new();
    let begins = || -> Vec<Vec<u8>> {
        index
            .with(|database| database.scan_prefix(b"e").keys().collect::<Result<Vec<_>, _>>())
            .unwrap()
            .unwrap()
            .into_iter()
            .map(|key| key.to_vec())
            .collect()
    };
    let mut before: Vec<Vec<u8>> = Vec::new();
    for round in 0..40 {
        for sequence in round * 5..round * 5 + 5 {
            stage(&index, &mut model, "a", sequence, Some(place(sequence)));
        }
        if round % 3 == 1 {
            stage(&index, &mut model, "a", round * 2, Some(place(1_000 + round)));
        }
        index.flush_staged().unwrap();
        let now = begins();
        assert!(now.starts_with(&before), "round {round}");
        before = now;
    }
    assert_eq!(before.len(), 200_usize.div_ceil(64));
}

/// An index of the previous version has a row for each entry. It is used unchanged, and grows like any other.
#[test]
fn an_index_of_the_version_before_is_read_and_written() {
    let (_dir, index) = open();
    let mut model = Model::new();
    let mut checkpoint = Checkpoint { segment: 1, ..Checkpoint::default() }.encode(0);
    checkpoint[0] = 2;
    let old = |database: &sled::Db| {
        database.insert(key::CHECKPOINT, checkpoint)?;
        for sequence in 0..100 {
            database.insert(key::entry("a", sequence), single(place(sequence)))?;
        }
        Ok(())
    };
    index.with(old).unwrap();
    model.extend((0..100).map(|sequence| (("a".to_owned(), sequence), place(sequence))));
    assert_eq!(index.checkpoint().unwrap().map(|(checkpoint, _)| checkpoint.segment), Some(1));
    let mut random = Random::new(1);
    check(&index, &model, &["a"], &mut random, "as it was");
    for sequence in 100..300 {
        stage(&index, &mut model, "a", sequence, Some(place(sequence)));
    }
    stage(&index, &mut model, "a", 50, None);
    stage(&index, &mut model, "a", 51, Some(place(7)));
    index.flush_staged().unwrap();
    for _ in 0..50 {
        check(&index, &model, &["a"], &mut random, "changed");
    }
    let rows = index.with(|database| database.scan_prefix(b"e").keys().collect::<sled::Result<Vec<_>>>());
    let rows = rows.unwrap().unwrap();
    let are_left =
        (0..100).filter(|sequence| *sequence != 50).all(|at| rows.contains(&key::entry("a", at).into()));
    assert!(are_left && rows.len() < 110, "what was there is left as it was: {} rows", rows.len());
    // The next version is not taken for this one.
    let mut newer = Checkpoint::default().encode(7);
    assert_eq!((newer[0], Checkpoint::decode(&newer)), (3, Some((Checkpoint::default(), 7))));
    newer[0] = 4;
    assert_eq!(Checkpoint::decode(&newer), None);
}

/// An invalid row is an error, and allocates no memory.
#[test]
fn a_row_that_is_not_valid_is_an_error() {
    // Nothing, a number alone, a million entries, more entries than announced, and a frame without one.
    let values: [&[u8]; 5] = [
        b"", b"\x01", b"\x80\x80\x40\x01\x28\x0A\x80\x80\x40", b"\x02\x01\x28\x0A\x03",
        b"\x01\x01\x28\x0A\x00",
    ];
    for value in values {
        let (_dir, index) = open();
        index.with(|database| database.insert(key::entry("a", 3), value).map(drop)).unwrap();
        assert!(index.entries("a", 0, 9).is_err(), "{value:?}");
        assert!(index.all_entries().is_err(), "{value:?}");
        stage_entry(&index, "a", 4, Some(place(4)));
        assert!(index.flush_staged().is_err(), "{value:?}");
    }
}

/// Rows are counted without reading their heads, but a row of a later version is detected, and so is a
/// truncated one.
#[test]
fn rows_are_counted_and_unknown_ones_are_an_error() {
    let check = |change: fn(&mut Vec<u8>), expect: Option<u64>| {
        let (_dir, index) = open();
        let place = RowPlace { newest: place(1), mark: None, keys: 0 };
        let row = Row { head: Arc::default(), place }.encode().unwrap();
        let mut second = row.clone();
        change(&mut second);
        let sum = row_sum("a", &row).wrapping_add(row_sum("b", &second));
        let insert = |database: &sled::Db| {
            database.insert(key::row("a"), row.clone())?;
            database.insert(key::row("b"), second).map(drop)
        };
        index.with(insert).unwrap();
        assert_eq!(
            index.summary().ok().map(|found| (found.count, found.sum)),
            expect.map(|count| (count, sum))
        );
    };
    check(|_| {}, Some(2));
    // The head's version is the byte after the places and the number of keys.
    check(|row| row[49] = 99, None);
    check(|row| row.truncate(20), None);
}

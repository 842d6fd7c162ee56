//! The same random commands are sent to a store on a disk, a store in memory and a plain map, and all three
//! agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_kernel::Head;
use proptest::prelude::*;

use super::world::{World, append, batch, texts, wait};
use crate::{Appended, Batch, Store, StoreError};

#[derive(Debug, Clone)]
enum Step {
    Append { session: u8, back: u64, texts: Vec<String>, key: Option<u8> },
    HeadOnly { session: u8, title: String },
    Delete { session: u8 },
    Learn { key: u8, value: u8 },
    Reopen,
    LoseIndex,
    Reclaim,
}

fn step() -> impl Strategy<Value = Step> {
    let texts = prop::collection::vec("[a-zäö]{0,200}", 1..4);
    let back = prop_oneof![9 => Just(0_u64), 1 => 1..3_u64];
    prop_oneof![
        12 => (0..4_u8, back, texts, prop::option::weighted(0.4, 0..3_u8))
            .prop_map(|(session, back, texts, key)| Step::Append { session, back, texts, key }),
        2 => (0..4_u8, "[a-z]{0,9}").prop_map(|(session, title)| Step::HeadOnly { session, title }),
        1 => (0..4_u8).prop_map(|session| Step::Delete { session }),
        1 => (0..2_u8, any::<u8>()).prop_map(|(key, value)| Step::Learn { key, value }),
        1 => Just(Step::Reopen),
        1 => Just(Step::LoseIndex),
        1 => Just(Step::Reclaim),
    ]
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Session {
    texts: Vec<String>,
    title: Option<String>,
    keys: BTreeMap<String, u64>,
}

/// Returns the outcome of an append as text, for comparison.
fn outcome(result: Result<Appended, StoreError>) -> String {
    match result {
        Ok(appended) => format!("{appended:?}"),
        Err(error) => error.to_string(),
    }
}

fn observe(store: &Store) -> BTreeMap<String, (Vec<String>, Head)> {
    let sessions = store.list().unwrap().into_iter();
    sessions
        .map(|(session, head)| {
            assert_eq!(store.head(&session).unwrap().as_ref(), Some(&head));
            let texts = texts(store, &session, 0).unwrap();
            (session, (texts, head))
        })
        .collect()
}

fn run(steps: Vec<Step>) {
    let world = World { segment_bytes: 1_500, ..World::new() };
    let mut disk = world.open_quiet();
    let mut memory = Store::memory();
    let mut model: BTreeMap<String, Session> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Append { session, back, texts, key } => {
                let session = format!("s{session}");
                let known = model.get(&session).cloned().unwrap_or_default();
                let first = (known.texts.len() as u64).saturating_sub(back);
                let refs: Vec<&str> = texts.iter().map(String::as_str).collect();
                let key = key.map(|key| key.to_string());
                let batch = Batch { key: key.clone(), ..batch(first, &refs) };
                let on_disk = outcome(append(&disk, &session, batch.clone()));
                assert_eq!(on_disk, outcome(append(&memory, &session, batch)));
                let is_used = key.as_ref().is_some_and(|key| known.keys.contains_key(key));
                let fits = first == known.texts.len() as u64;
                assert_eq!(on_disk.starts_with("Duplicate"), is_used, "{on_disk}");
                assert_eq!(on_disk.starts_with("Written"), !is_used && fits, "{on_disk}");
                if !is_used && fits {
                    let known = model.entry(session).or_default();
                    known.texts.extend(texts);
                    known.title = None;
                    known.keys.extend(key.map(|key| (key, first)));
                }
            }
            Step::HeadOnly { session, title } => {
                let session = format!("s{session}");
                let known = model.entry(session.clone()).or_default();
                known.title = Some(title.clone());
                let head = Head { entries: known.texts.len() as u64, title: Some(title), ..Head::default() };
                let batch = Batch { entries: Vec::new(), head: Arc::new(head), key: None };
                append(&disk, &session, batch.clone()).unwrap();
                append(&memory, &session, batch).unwrap();
            }
            Step::Delete { session } => {
                let session = format!("s{session}");
                let is_there = model.remove(&session).is_some();
                assert_eq!(wait(disk.delete(&session)).is_ok(), is_there);
                assert_eq!(wait(memory.delete(&session)).is_ok(), is_there);
            }
            Step::Learn { key, value } => {
                // A third of them removes it.
                let value: &[u8] = if value % 3 == 0 { &[] } else { &[value] };
                wait(disk.fact_put(&key.to_string(), value)).unwrap();
                wait(memory.fact_put(&key.to_string(), value)).unwrap();
            }
            Step::Reopen => {
                drop(disk);
                disk = world.open_quiet();
                let closed = memory.clone();
                wait(memory.close()).unwrap();
                memory = closed.reopened().unwrap();
            }
            Step::LoseIndex => {
                drop(disk);
                std::fs::remove_dir_all(world.index()).unwrap();
                disk = world.open().0;
            }
            Step::Reclaim => {
                wait(disk.reclaim()).unwrap();
            }
        }
        for key in ["0", "1"] {
            assert_eq!(disk.fact_get(key).unwrap(), memory.fact_get(key).unwrap());
            let keys = disk.fact_keys(key).unwrap();
            assert_eq!(keys, memory.fact_keys(key).unwrap());
            assert_eq!(keys.iter().any(|known| known == key), disk.fact_get(key).unwrap().is_some());
        }
    }
    let observed = observe(&disk);
    assert_eq!(observed, observe(&memory));
    let as_model = |(session, (texts, head)): (String, (Vec<String>, Head))| (session, (texts, head.title));
    let expected: BTreeMap<String, (Vec<String>, Option<String>)> =
        model.into_iter().map(|(session, known)| (session, (known.texts, known.title))).collect();
    assert_eq!(observed.into_iter().map(as_model).collect::<BTreeMap<_, _>>(), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_on_a_disk_one_in_memory_and_a_map_agree(steps in prop::collection::vec(step(), 1..60)) {
        run(steps);
    }
}

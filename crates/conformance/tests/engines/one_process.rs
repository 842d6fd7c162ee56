//! The engines of one process: memory, and the journal in a directory.
//!
//! Invariants: what has no meaning with one process is listed with the reason.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_conformance::{Fixture, points};
use greenroom_store::{Answer, Engine, Store, StoreOptions};
use parking_lot::Mutex;

/// The points that one process shows here.
const SHOWN: &[u8] = &[1, 2, 9, 10, 12];

/// The points that have no meaning for it, and why.
const WITHOUT_MEANING: &[(&[u8], &str)] = &[
    (&[3, 4, 5, 8], "there is one owner: the process that has the directory open, or the memory"),
    (&[6, 7], "the lock of a directory does not run out"),
    (&[11], "there is no connection; a failing disk has tests of its own in the store"),
    (&[13], "a directory that is set back has no witness: whoever knew more has ended"),
];

#[test]
fn every_point_is_shown_or_has_no_meaning() {
    let without = WITHOUT_MEANING.iter().flat_map(|(points, _)| points.iter());
    let all: BTreeSet<u8> = SHOWN.iter().chain(without).copied().collect();
    assert_eq!(all, (1..=13).collect());
}

/// A store in memory. What opens it again gets its contents.
#[derive(Default)]
struct InMemory(Mutex<Option<Store>>);

impl Fixture for InMemory {
    fn open<'a>(&'a self, _: &'a str) -> Answer<'a, Arc<dyn Engine>> {
        let mut store = self.0.lock();
        let opened = store.as_ref().and_then(Store::reopened).unwrap_or_else(Store::memory);
        *store = Some(opened.clone());
        Box::pin(async move { Ok(Arc::new(opened) as Arc<dyn Engine>) })
    }
}

/// A store in a directory.
struct InDirectory(tempfile::TempDir);

impl InDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }
}

impl Fixture for InDirectory {
    fn open<'a>(&'a self, _: &'a str) -> Answer<'a, Arc<dyn Engine>> {
        let opened = Store::open(&StoreOptions::new(self.0.path().join("store")));
        Box::pin(async move { opened.map(|(store, _)| Arc::new(store) as Arc<dyn Engine>) })
    }
}

macro_rules! points {
    ($module:ident, $fixture:expr) => {
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn batches() {
                points::log::batches(&$fixture).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn keys() {
                points::log::keys(&$fixture).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn reads() {
                points::log::reads(&$fixture).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn deletion() {
                points::log::deletion(&$fixture).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn sizes() {
                points::log::sizes(&$fixture).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn walk() {
                points::log::walk(&$fixture).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn like_memory() {
                points::log::like_memory(&$fixture).await;
            }
        }
    };
}

points!(memory, InMemory::default());
points!(journal, InDirectory::new());

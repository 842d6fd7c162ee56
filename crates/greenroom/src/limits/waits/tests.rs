//! Starting and ending waits, and refusing those that would close a cycle.

use std::sync::Arc;

use super::{Chain, Waiting, Waits};
use crate::values::error::{Error, Result};

/// Waits of sessions with letters as names.
#[derive(Default)]
struct World {
    waits: Arc<Waits>,
    open: Vec<(String, Waiting)>,
}

impl World {
    /// `"AB>C"`: code for which A and B wait starts to wait for C.
    async fn begin(&mut self, wait: &str) -> Result<()> {
        let (waiting, target) = wait.split_once('>').expect("a wait has a target");
        let name = |name: &str| -> Arc<str> { Arc::from(name) };
        let chain = waiting.chars().fold(Chain::default(), |chain, one| chain.and(&name(&one.to_string())));
        let begun = chain.scope(async { self.waits.begin(&name(target)) }).await?;
        self.open.push((wait.to_owned(), begun));
        Ok(())
    }
}

/// Each step starts a wait, or ends it with `-`; `refused` says whether the last one is refused.
async fn check(steps: &str, refused: bool) {
    let mut world = World::default();
    let steps: Vec<&str> = steps.split_whitespace().collect();
    for (number, step) in steps.iter().enumerate() {
        if let Some(ended) = step.strip_prefix('-') {
            let place = world.open.iter().position(|(wait, _)| wait == ended).expect("it began");
            world.open.remove(place);
            continue;
        }
        let begun = world.begin(step).await;
        let is_refused = refused && number + 1 == steps.len();
        match begun {
            Err(Error::Deadlock { session }) => {
                assert!(is_refused && step.ends_with(&session), "{steps:?}: {step}")
            }
            other => assert!(!is_refused && other.is_ok(), "{steps:?}: {step} {other:?}"),
        }
    }
    world.open.clear();
    let counts = world.waits.counts.lock();
    assert!(counts.targets.is_empty() && counts.awaited.is_empty(), "{steps:?} left something");
}

#[tokio::test]
async fn a_wait_that_would_close_a_circle_is_refused() {
    check("A>A", true).await;
    check("AB>A", true).await;
    check("A>B B>A", true).await;
    check("A>B B>C C>A", true).await;
    check("AS>B B>A", true).await;
    check("AS>B B>S", true).await;
    check("A>B B>C D>A CE>D", true).await;
}

#[tokio::test]
async fn what_comes_to_an_end_is_not_refused() {
    check("A>B A>B C>B", false).await;
    check("A>B B>C A>C", false).await;
    // A program's own task, for which nobody waits.
    check("A>B >A >B B>C", false).await;
    // The reply has arrived.
    check("A>B -A>B B>A", false).await;
    // One of the two replies has arrived.
    check("A>B A>B -A>B B>A", true).await;
    check("A>B A>C -A>B B>A", false).await;
    check("A>B A>C -A>B C>A", true).await;
}

/// Whether a session is awaited now.
async fn is_awaited(waits: &Waits, session: &str) -> bool {
    tokio::time::timeout(std::time::Duration::ZERO, waits.awaited(session)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_session_is_awaited_while_another_one_waits_for_it() {
    let mut world = World::default();
    assert!(!is_awaited(&world.waits, "B").await);
    // One that waits already notices.
    let waits = Arc::clone(&world.waits);
    let noticed = tokio::spawn(async move { waits.awaited("B").await });
    tokio::task::yield_now().await;
    world.begin("A>C").await.expect("no circle");
    world.begin("AD>B").await.expect("no circle");
    noticed.await.expect("it does not panic");
    world.begin("E>B").await.expect("no circle");
    world.open.remove(1);
    assert!(is_awaited(&world.waits, "B").await, "E waits");
    world.open.remove(1);
    assert!(!is_awaited(&world.waits, "B").await);
    assert!(is_awaited(&world.waits, "C").await && !is_awaited(&world.waits, "A").await);
    // Code that no session waits for.
    world.begin(">B").await.expect("no circle");
    assert!(!is_awaited(&world.waits, "B").await);
}

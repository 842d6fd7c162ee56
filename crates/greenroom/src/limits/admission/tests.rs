//! Accepting, returning and draining input.

use super::*;

#[track_caller]
fn assert_taken(admission: &Arc<Admission>, taken: usize) {
    assert_eq!(admission.taken.load(Ordering::SeqCst), taken);
}

#[test]
fn so_many_are_taken_on_and_one_that_is_over_makes_room() {
    let admission = Admission::new(Some(2));
    let first = admission.admit().expect("there is room");
    let _second = admission.admit().expect("there is room");
    assert!(matches!(admission.admit(), Err(Error::RuntimeBusy { waiting: 2 })));
    drop(first);
    let _third = admission.admit().expect("one is over");
    assert_taken(&admission, 2);
    let unlimited = Admission::new(None);
    let all: Vec<Admitted> = (0..1_000).map(|_| unlimited.admit().expect("no limit")).collect();
    assert_taken(&unlimited, 1_000);
    drop(all);
    assert_taken(&unlimited, 0);
}

#[test]
fn what_was_taken_on_before_counts_whatever_the_limit_is() {
    let admission = Admission::new(Some(1));
    let mut held = admission.held();
    assert_taken(&admission, 0);
    held.set(3);
    assert_taken(&admission, 3);
    assert!(matches!(admission.admit(), Err(Error::RuntimeBusy { waiting: 3 })));
    held.set(1);
    held.set(1);
    assert_taken(&admission, 1);
    held.set(2);
    assert_taken(&admission, 2);
    held.set(0);
    assert!(admission.admit().is_ok());
}

/// A session takes over the input of a request, and then says how much work came of it.
#[test]
fn what_is_taken_over_counts_once() {
    let admission = Admission::new(Some(2));
    let mut held = admission.held();
    held.set(1);
    held.take_over(admission.admit().expect("there is room"));
    assert_taken(&admission, 2);
    held.set(2);
    assert_taken(&admission, 2);
    held.set(1);
    assert_taken(&admission, 1);
    drop(held);
    assert_taken(&admission, 0);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_what_is_under_way_and_takes_on_nothing_more() {
    let admission = Admission::new(Some(2));
    assert_eq!(admission.drain(Duration::from_secs(1)).await, 0, "nothing is under way");
    let admission = Admission::new(Some(2));
    let (one, mut two) = (admission.admit().expect("there is room"), admission.held());
    two.set(2);
    let began = tokio::time::Instant::now();
    let draining = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.drain(Duration::from_secs(60)).await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(matches!(admission.admit(), Err(Error::Closed)));
    drop(one);
    two.set(1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!draining.is_finished());
    two.set(0);
    assert_eq!((draining.await.expect("it ends"), began.elapsed()), (0, Duration::from_secs(10)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_tells_how_many_it_no_longer_waits_for() {
    let admission = Admission::new(None);
    let _one = admission.admit().expect("no limit");
    let began = tokio::time::Instant::now();
    assert_eq!(admission.drain(Duration::from_secs(60)).await, 1);
    assert_eq!(began.elapsed(), Duration::from_secs(60));
}

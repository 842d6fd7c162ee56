//! A million inputs to one session: the callers are told that it is busy, memory stays bounded, and it
//! answers again afterwards.
//!
//! Memory is measured per process, so each flood runs in a separate one: this test binary, started again.

use std::process::Command;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, Sequence};

use crate::support::{agent, runtime, simulator};

const MILLION: usize = 1_000_000;
/// Each waits for its answer, which is slow in unoptimised builds.
const STEERS: usize = if cfg!(debug_assertions) { 100_000 } else { MILLION };
/// The maximum memory cost of a flood.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// Set for the process that is flooded.
const FLOODED: &str = "GREENROOM_FLOODED";

/// Returns the peak memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn run_alone(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(FLOODED, "1")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[expect(clippy::disallowed_methods, reason = "a child of a test has no other way to be told")]
fn is_alone() -> bool {
    std::env::var_os(FLOODED).is_some()
}

#[cfg(target_os = "linux")]
#[test]
fn a_million_inputs_cost_a_bounded_amount_of_memory() {
    run_alone("faults::floods::steers_one_after_another");
    run_alone("faults::floods::prompts_all_at_once");
}

#[tokio::test(start_paused = true)]
#[ignore = "started by the test of this module"]
async fn steers_one_after_another() {
    if !is_alone() {
        return;
    }
    let slow = Said::text("late").after_ms(3_600_000);
    let model = simulator(Sequence(vec![slow, Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("flooded", &agent(100_000)).await.unwrap();
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("begin").await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    let before = peak_bytes();
    let mut taken = 0;
    for number in 0..STEERS {
        match session.steer(format!("steer {number}")).await {
            Ok(_) => taken += 1,
            Err(Error::Busy { waiting, .. }) => assert_eq!(waiting, taken),
            Err(error) => panic!("{error}"),
        }
    }
    assert!((1..=64).contains(&taken), "{taken} were taken");
    let growth = peak_bytes() - before;
    assert!(growth <= GROWTH_BYTES_MAX, "it grew by {growth} bytes");
    session.abort();
    let _ = prompt.await.unwrap();
    assert!(session.state().await.is_ok());
}

/// No caller waits for the session before the next request: admission bounds the mailbox.
#[tokio::test(start_paused = true)]
#[ignore = "started by the test of this module"]
async fn prompts_all_at_once() {
    if !is_alone() {
        return;
    }
    let model = simulator(Sequence(vec![Said::text("first"), Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("flooded", &agent(100_000)).await.unwrap();
    session.prompt("begin").await.unwrap();
    let before = peak_bytes();
    let (mut busy, mut admitted) = (0, 0);
    let mut waker = Context::from_waker(Waker::noop());
    // Each is polled once and dropped, and the session never gets to run meanwhile.
    for number in 0..MILLION {
        let mut prompt = session.prompt(format!("prompt {number}")).into_future();
        match prompt.poll_unpin(&mut waker) {
            Poll::Ready(Err(Error::Busy { .. })) => busy += 1,
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => admitted += 1,
        }
    }
    let growth = peak_bytes() - before;
    assert!(growth <= GROWTH_BYTES_MAX, "it grew by {growth} bytes");
    assert_eq!(busy + admitted, MILLION);
    assert!(admitted <= 2_000, "{admitted} were admitted");
    while session.state().await.unwrap().status != Status::Idle {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(session.prompt("and now?").await.is_ok());
}

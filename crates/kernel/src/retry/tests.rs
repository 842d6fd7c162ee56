//! The waits of each kind of failure, and where they end.

use super::*;

/// Returns the waits for one failure that does not go away, until the call is given up.
fn waits(retries: &mut Retries, class: FailureClass, retry_after_ms: Option<u64>, jitter: u64) -> Vec<u64> {
    let failure = Failure { retry_after_ms, ..Failure::new(class, "no") };
    let waits: Vec<Retry> = std::iter::from_fn(|| retries.next(&failure, jitter)).take(1_000).collect();
    assert!(waits.iter().zip(1..).all(|(wait, number)| wait.attempt == number), "{waits:?}");
    waits.iter().map(|wait| wait.delay_ms).collect()
}

#[test]
fn waits_grow_and_end() {
    let wait = |class, asked, jitter| waits(&mut Retries::new(5, 300_000), class, asked, jitter);
    assert_eq!(wait(FailureClass::Overloaded, None, 0), [500, 1_000, 2_000, 4_000, 8_000]);
    assert_eq!(wait(FailureClass::Overloaded, None, 1_000), [625, 1_250, 2_500, 5_000, 10_000]);
    assert_eq!(wait(FailureClass::RateLimited, Some(3_000), 0), [3_000, 3_000, 3_000, 4_000, 8_000]);
    assert_eq!(wait(FailureClass::RateLimited, Some(900_000), 1_000), [60_000; 5]);
    assert_eq!(waits(&mut Retries::new(0, 0), FailureClass::Timeout, None, 0), [0; 0]);
}

#[test]
fn a_server_that_loads_is_waited_for_as_long_as_is_allowed() {
    let loading = |asked, max, jitter| {
        let waits = waits(&mut Retries::new(5, max), FailureClass::Loading, asked, jitter);
        assert_eq!(waits.iter().sum::<u64>(), max, "{waits:?}");
        waits
    };
    let waits = loading(None, 300_000, 0);
    assert_eq!(waits[..6], [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
    assert_eq!(waits.len(), 4 + 29, "{waits:?}");
    assert_eq!(loading(Some(25_000), 60_000, 0), [25_000, 25_000, 10_000]);
    assert_eq!(loading(None, 2_500, 0), [1_000, 1_500]);
    assert_eq!(loading(None, 0, 0), [0; 0]);
}

#[test]
fn loading_takes_no_retries_and_an_answer_gives_all_back() {
    let mut retries = Retries::new(1, 1_000);
    let loading = Failure::new(FailureClass::Loading, "loading");
    let broken = Failure::new(FailureClass::Timeout, "broken");
    assert_eq!(retries.next(&loading, 0), Some(Retry { delay_ms: 1_000, attempt: 1 }));
    assert_eq!(retries.next(&broken, 0), Some(Retry { delay_ms: 500, attempt: 1 }));
    assert_eq!((retries.next(&loading, 0), retries.next(&broken, 0)), (None, None));
    retries.renew();
    assert!(retries.next(&loading, 0).is_some() && retries.next(&broken, 0).is_some());
}

/// A server that loads its model and asks for an absurd wait is asked again after the longest one.
#[test]
fn an_absurd_wait_of_a_server_that_loads_is_limited() {
    for asked in [u64::MAX / 2, u64::MAX] {
        for jitter in [0, 999] {
            let waited = waits(&mut Retries::new(5, 90_000), FailureClass::Loading, Some(asked), jitter);
            assert_eq!(waited.first(), Some(&60_000), "{asked}, {jitter}");
        }
    }
}

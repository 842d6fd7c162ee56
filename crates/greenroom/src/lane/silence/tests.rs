//! When a silence is too long, on a paused clock.

use tokio::time::sleep;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn only_the_wait_for_one_piece_counts() {
    let (began, mut silence) = (Instant::now(), Silence::new(10 * SECOND));
    for _ in 0..5 {
        assert_eq!(silence.unless_silent(async { 1 }).await, Ok(1));
        silence.unless_silent(sleep(8 * SECOND)).await.expect("it came in time");
        // The time between two waits does not count.
        sleep(9 * SECOND).await;
    }
    assert_eq!(began.elapsed(), 85 * SECOND);
    let waits = Instant::now();
    let late = silence.unless_silent(std::future::pending::<()>()).await.expect_err("nothing comes");
    assert_eq!((late.class, waits.elapsed()), (FailureClass::Timeout, 10 * SECOND));
    assert_eq!(late.message, "the model was silent for 10 s");
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_it_waits_for_ever() {
    for limit in [Duration::ZERO, Duration::MAX] {
        let began = Instant::now();
        Silence::new(limit).unless_silent(sleep(1_000_000 * SECOND)).await.expect("it came");
        assert_eq!(began.elapsed(), 1_000_000 * SECOND);
    }
}

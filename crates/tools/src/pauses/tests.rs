//! The time that counts towards a limit, on the paused clock.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_time_in_which_a_person_is_asked_does_not_count() {
    let pauses = Pauses::default();
    let began = Instant::now();
    let limit = tokio::spawn({
        let pauses = pauses.clone();
        async move { pauses.sleep(Duration::from_secs(10)).await }
    });
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (first, second) = (pauses.pause(), pauses.pause());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    drop(first);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!limit.is_finished(), "one of two is still asked");
    drop(second);
    limit.await.expect("it does not panic");
    assert_eq!(began.elapsed(), Duration::from_secs(7210));
}

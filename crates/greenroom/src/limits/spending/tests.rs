//! The purse over time and over a restart, and invalid amounts.

use super::*;

const MINUTE: u64 = 60_000;
const NOW: u64 = 1_700_000_000_000;

#[test]
fn dollars_that_are_no_sum_are_refused() {
    for (usd, expect) in [(0.0, Some(0)), (0.5, Some(500_000)), (1e-7, Some(0)), (1e30, Some(u64::MAX))] {
        assert_eq!(microdollars(usd).ok(), expect, "{usd}");
    }
    for usd in [-0.01, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(matches!(microdollars(usd), Err(ConfigError::CostLimit { .. })), "{usd}");
    }
}

#[tokio::test]
async fn what_was_spent_leaves_the_period_and_comes_through_a_restart() {
    let store = Store::memory();
    let limits = [(1_000, Period::Hour), (5_000, Period::Day)];
    let purse = Purse::new(store.clone(), &limits);
    assert_eq!(purse.used_up(NOW), None);
    purse.spend(600, NOW);
    purse.spend(399, NOW + 10 * MINUTE);
    assert_eq!(purse.used_up(NOW + 10 * MINUTE), None);
    purse.spend(1, NOW + 20 * MINUTE);
    let said = purse.used_up(NOW + 20 * MINUTE).expect("it is used up");
    assert!(
        said.starts_with("the runtime reached its cost limit of $0.001 an hour; part of it is free"),
        "{said}"
    );
    let minutes: u64 =
        said.rsplit(' ').nth(1).and_then(|word| word.parse().ok()).expect("a number of minutes");
    assert!((39..=41).contains(&minutes), "{said}");
    purse.flush().await;
    // A restart keeps the spending; an hour later only the later spending counts.
    let purse = Purse::new(store.clone(), &limits);
    assert!(purse.used_up(NOW + 59 * MINUTE).is_some());
    assert_eq!(purse.used_up(NOW + 61 * MINUTE), None);
    for hour in 2..6 {
        purse.spend(999, NOW + hour * 60 * MINUTE);
        assert_eq!(purse.used_up(NOW + hour * 60 * MINUTE).is_some(), hour == 6, "hour {hour}");
    }
    purse.spend(4, NOW + 10 * 60 * MINUTE);
    assert!(purse.used_up(NOW + 10 * 60 * MINUTE).expect("it is used up").contains("$0.005 a day"));
    assert_eq!(purse.used_up(NOW + 25 * 60 * MINUTE), None);
    // Long after, and with a clock that was set back.
    assert_eq!(purse.used_up(NOW * 2), None);
    purse.spend(1_000, NOW);
    assert!(purse.used_up(NOW).is_some());
}

#[tokio::test]
async fn what_is_damaged_or_not_limited_counts_nothing() {
    let store = Store::memory();
    store.learned_put("spent hour", b"rubbish").await.expect("it is stored");
    let purse = Purse::new(store.clone(), &[(10, Period::Hour)]);
    assert_eq!(purse.used_up(NOW), None);
    let free = Purse::new(store, &[]);
    free.spend(u64::MAX, NOW);
    assert_eq!(free.used_up(NOW), None);
    // A limit of 0 allows nothing.
    assert!(Purse::new(Store::memory(), &[(0, Period::Day)]).used_up(NOW).is_some());
}

//! When a limit holds, and when it is doubted.

use std::sync::Arc;

use greenroom_store::Store;

use super::{DOUBT_AFTER_MS, Learned, LearnedLimit};

const ORIGIN: &str = "http://127.0.0.1:8080/v1";

async fn learned() -> Learned {
    Learned::read(Arc::new(Store::memory())).await
}

#[tokio::test]
async fn a_limit_belongs_to_a_server_and_a_model() {
    let learned = learned().await;
    assert!(learned.learn_limit(ORIGIN, "m", 8_192, 9_000, None, 0));
    assert_eq!(learned.limit(ORIGIN, "m", None, 0), Some(8_192));
    assert_eq!(learned.limit(ORIGIN, "n", None, 0), None);
    assert_eq!(learned.limit("http://127.0.0.1:8081/v1", "m", None, 0), None);
    assert!(!learned.learn_limit(ORIGIN, "m", 8_192, 9_000, None, 5), "it is known");
    tokio::task::yield_now().await;
    assert_eq!(learned.limits(ORIGIN), [("m".to_owned(), 8_192)]);
    assert_eq!(learned.limits("http://127.0.0.1:8081/v1"), []);
    assert!(learned.forget_limit(ORIGIN, "m").await.expect("the store in memory"));
    assert!(!learned.forget_limit(ORIGIN, "m").await.expect("the store in memory"));
    assert_eq!((learned.limit(ORIGIN, "m", None, 0), learned.limits(ORIGIN)), (None, vec![]));
}

#[tokio::test]
async fn a_limit_is_doubted_where_its_server_may_have_changed() {
    // The window reported when the server named 8,192; the window reported now, and the time in between;
    // whether the limit holds.
    for (then, now, after_ms, holds) in [
        (None, None, DOUBT_AFTER_MS - 1, true),
        (None, None, DOUBT_AFTER_MS, false),
        (None, Some(8_192), 1, true),
        (None, Some(4_096), 1, true),
        (None, Some(32_768), 1, false),
        // A reported window that was too large before is known to be wrong.
        (Some(32_768), Some(32_768), 10 * DOUBT_AFTER_MS, true),
        (Some(32_768), Some(65_536), 1, false),
        (Some(8_192), Some(16_384), 1, false),
        (Some(8_192), None, 1, true),
    ] {
        let learned = learned().await;
        assert!(learned.learn_limit(ORIGIN, "m", 8_192, 9_000, then, 1_000));
        let limit = learned.limit(ORIGIN, "m", now, 1_000 + after_ms);
        assert_eq!(limit.is_some(), holds, "{then:?}, {now:?}, {after_ms}");
    }
}

#[tokio::test]
async fn a_doubted_limit_that_is_named_again_holds_again() {
    let learned = learned().await;
    assert!(learned.learn_limit(ORIGIN, "m", 8_192, 9_000, None, 0));
    learned.reconnected("http://127.0.0.1:8081/v1");
    assert_eq!(learned.limit(ORIGIN, "m", None, 1), Some(8_192), "another server came back");
    learned.reconnected(ORIGIN);
    assert_eq!(learned.limit(ORIGIN, "m", None, 1), None);
    assert!(learned.learn_limit(ORIGIN, "m", 8_192, 9_000, None, 2));
    assert_eq!(learned.limit(ORIGIN, "m", None, DOUBT_AFTER_MS + 1), Some(8_192), "the day begins anew");
    // A larger request succeeded: the limit is removed.
    learned.accepted(ORIGIN, "m", 8_000);
    assert_eq!(learned.limit(ORIGIN, "m", None, 3), Some(8_192));
    learned.accepted(ORIGIN, "m", 8_193);
    assert_eq!(learned.limit(ORIGIN, "m", None, 3), None);
}

#[test]
fn a_limit_is_stored_as_three_numbers() {
    for served in [None, Some(4_096)] {
        let limit = LearnedLimit { tokens: 8_192, at_ms: 1_700_000_000_000, served };
        assert_eq!(LearnedLimit::from_bytes(&limit.to_bytes()), Some(limit));
    }
    assert_eq!(LearnedLimit::from_bytes(&[0; 8]), None);
}

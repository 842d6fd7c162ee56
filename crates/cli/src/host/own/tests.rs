//! The configuration's settings for a whole runtime are used.

use greenroom_simulator::Simulator;

use super::*;

#[tokio::test]
async fn no_more_sessions_are_live_than_the_configuration_says() {
    for (live_sessions_max, live) in [(None, 3), (Some(1), 1)] {
        let limits = LimitsConfig { live_sessions_max, ..LimitsConfig::default() };
        let builder = Runtime::builder().provider(Simulator::echo().provider()).in_memory();
        let runtime = limited(builder, &limits).start().await.expect("a runtime");
        for id in ["a", "b", "c"] {
            let session = runtime.open(id, &Agent::new("simulated")).await.expect("a session");
            session.prompt("hello").await.expect("a reply");
        }
        // Idle sessions sleep after a moment.
        let asleep = async {
            while runtime.live().await.expect("a list").len() > live {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asleep).await.expect("they fall asleep");
        assert_eq!(runtime.live().await.expect("a list").len(), live, "{live_sessions_max:?}");
    }
}

#[test]
fn the_longer_limit_says_how_long_a_call_may_be_silent() {
    for (first_event_timeout_s, idle_timeout_s) in [(30, 7), (7, 30)] {
        let limits = ProviderConfig { first_event_timeout_s, idle_timeout_s, ..ProviderConfig::default() };
        assert_eq!(limits.silence_max(), Duration::from_secs(30));
    }
}

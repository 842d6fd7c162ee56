//! If the newest messages alone exceed the target, the older ones are summarised nevertheless, and automatic
//! compaction does not give up.

use greenroom_simulator::{ByPurpose, Summariser};

use crate::compaction_fixtures::{ends, settings, talker, text, warnings};
use crate::support::{agent, drain, runtime, simulator};

/// Prompts as large as the trigger allows and larger, then small ones: no compaction fails, the context stays
/// bounded, and nothing is cut.
#[tokio::test(start_paused = true)]
async fn large_prompts_beside_a_low_limit_or_in_a_small_window_are_compacted() {
    let cases = [
        (32_000, Some(3_000), 1_500),
        (32_000, Some(2_000), 1_300),
        (6_000, None, 1_700),
        (8_000, None, 2_000),
    ];
    for (window, limit, prompt) in cases {
        let model = simulator(ByPurpose::new(talker(60), Summariser::Obedient), window);
        let runtime = runtime(&model).await;
        let settings = settings(|settings| settings.auto_compact_token_limit = limit);
        let definition = agent(window).instructions(text("rules.", 300)).compaction(settings);
        let session = runtime.open("s", &definition).await.unwrap();
        let mut events = session.subscribe();
        let mut seen = Vec::new();
        for run in 0..15 {
            let size = if run < 6 { prompt } else { 40 };
            session.prompt(text(&format!("p{run}."), size)).await.unwrap();
            seen.extend(drain(&mut events));
            // Two large prompts and the messages beside them are the maximum between runs.
            let tokens = session.state().await.unwrap().context.tokens;
            let most = u64::try_from(2 * prompt).unwrap() + 1_800;
            let most = if limit.is_some() { most } else { window * 8 / 10 };
            assert!(tokens < most, "{window} {limit:?}: {tokens} after prompt {run}");
        }
        let ended = ends(&seen);
        let completed = ended.iter().filter(|end| end.outcome.as_str() == "completed").count();
        assert!(completed >= 3, "{window} {limit:?}: {ended:?}");
        // A summary with hardly any room may be rejected once.
        let failed = ended.iter().filter(|end| end.outcome.as_str() == "failed").count();
        assert!(
            failed <= 1 && ended.iter().all(|end| !["truncated", "digested"].contains(&end.outcome.as_str())),
            "{ended:?}"
        );
        let warned = warnings(&seen);
        assert!(
            !warned.iter().any(|text| text.contains("paused") || text.contains("cut without")),
            "{warned:?}"
        );
        model.assert_clean();
    }
}

//! Replays: what they count, and when they compact.

use greenroom_kernel::settings::Strategy;

use super::*;

/// Returns messages of about 300 tokens, `pause_ms` apart.
fn messages(count: u64, pause_ms: u64) -> Vec<Arc<Entry>> {
    let filler = "word ".repeat(300);
    let entry = |id: u64| {
        let kind = EntryKind::message(Message::user(format!("m{id}. {filler}")));
        Arc::new(Entry { at_ms: pause_ms * (id + 1), ..Entry::recorded(EntryId(id), None, 0, kind) })
    };
    (0..count).map(entry).collect()
}

fn options(strategy: Strategy, summariser: Summariser) -> ReplayOptions {
    let settings = CompactionSettings { strategy, ..CompactionSettings::default() };
    ReplayOptions { window: 8_000, settings, summariser, compactions_max: 3, summary_ms: 20_000 }
}

#[test]
fn a_replay_compacts_whenever_the_trigger_is_reached() {
    let messages = messages(200, 1_000);
    let replayed = replay(&messages, &options(Strategy::Summarize, Summariser::Obedient));
    assert_eq!((replayed.states.len(), replayed.prunes), (3, 0), "no more than wanted");
    let trigger = CompactionSettings::default().trigger_tokens(8_000).expect("it is set");
    let mut spent = 0;
    for state in &replayed.states {
        assert!(state.tokens_before >= trigger && state.tokens_after < trigger * 7 / 10 + 1, "{state:?}");
        assert!(state.summary_tokens > spent, "every summary costs");
        spent = state.summary_tokens;
        // A few messages of a second lie between the soft threshold and the trigger.
        let (foreground, background) = state.waits_ms(20_000).expect("there are times");
        let notice = state.notice_ms.expect("there are times");
        assert!(
            foreground == 20_000 && background == 20_000 - notice && (1..20_000).contains(&notice),
            "{state:?}"
        );
    }
    let first = &replayed.states[0];
    assert!(!first.context.contains("m0. word") || first.context.contains("<user-words>"));
    assert!(first.found_by("m0").contains("m0."), "what was replaced is found");
    let later = format!("m{}.", first.read + 1);
    assert!(!first.found_by(&later).contains(&later), "what was not read yet is not");
    let again = replay(&messages, &options(Strategy::Summarize, Summariser::Obedient));
    let contexts =
        |replayed: &Replayed| replayed.states.iter().map(|state| state.context.clone()).collect::<Vec<_>>();
    assert_eq!(contexts(&again), contexts(&replayed), "the same again");
}

#[test]
fn without_a_model_or_a_summary_nothing_is_spent() {
    let digest = replay(&messages(200, 0), &options(Strategy::Digest, Summariser::Lossy));
    assert_eq!(digest.states.len(), 3);
    assert!(digest.states.iter().all(|state| state.summary_tokens == 0 && state.notice_ms.is_none()));
    let failed = replay(&messages(21, 0), &options(Strategy::Summarize, Summariser::Empty));
    assert_eq!(failed.states.len(), 0, "below the window a failed summary changes nothing");
    assert_eq!(replay(&[], &options(Strategy::Digest, Summariser::Lossy)).states.len(), 0);
}

//! Old tool results that give way instead of a summary.

use super::*;

/// Returns the parameters with pruning for a conversation in a window of 10,000 tokens: the trigger is 7,500, of which
/// 5,250 have to remain; 3,000 tokens of results stay, and 1,500 have to be freed at least.
fn pruning(drawing: &str, trigger: Trigger) -> CompactionParams {
    let mut params = params(path(drawing), trigger);
    params.settings.prune = true;
    params
}

type Change = fn(&mut CompactionParams);

/// What comes after the old results: 3,000 tokens of results that stay, and what has no results at all.
const NEWEST: &str = "c:9 r:1500 c:9 r:1500 a:9 u:9";

/// Returns the outcome, the pruned results and the number of requests.
fn check(params: &CompactionParams) -> (&'static str, Vec<u64>, usize) {
    let ran = run(params, Model::Obedient);
    let results = ran.pruned.as_ref().map_or(Vec::new(), |segment| segment.prune.results.clone());
    let ids = results.iter().map(|result| result.entry.0).collect();
    if let Some(segment) = &ran.pruned {
        assert!(segment.prune.tokens_after <= 5_250, "with room: {}", segment.prune.tokens_after);
    }
    (ran.outcome(), ids, ran.requests.len())
}

#[test]
fn old_results_give_way_instead_of_a_summary_where_that_is_enough() {
    for (case, old, expected) in [
        ("all commands", "u:500 c:9 r:2000 c:9 r:1500", ("pruned", vec![2, 4], 0)),
        ("too few for the target", "u:2000 c:9 r:1600", ("completed", vec![], 1)),
        (
            "contents of files, of which the newest stays, are not enough",
            "u:500 c:9 r<a:2000 c:9 r<b:1500",
            ("completed", vec![], 1),
        ),
        (
            "a file that was changed later goes first, and is enough",
            "u:500 c:9 r<a:2400 c:9 r:1100 c:9 r>a:20",
            ("pruned", vec![2], 0),
        ),
        (
            "then what the same call returned again later",
            "u:9 c:9 r:300 c:9 r<b:1000 c:9 r<a:1000 c:9 r>b:20 c:9 r<a:900",
            ("pruned", vec![4, 6], 0),
        ),
    ] {
        let drawing = format!("{old} {NEWEST}");
        let params = pruning(&drawing, Trigger::Threshold);
        assert_eq!(check(&params), expected, "{case}: {}", params.tokens_before);
    }
}

#[test]
fn a_summary_is_made_where_one_is_asked_for_or_nothing_is_to_be_left_out() {
    let drawing = format!("u:500 c:9 r:2000 c:9 r:1500 {NEWEST}");
    let base = pruning(&drawing, Trigger::Threshold);
    assert_eq!(check(&base).0, "pruned");
    let with = |change: Change| {
        let mut params = base.clone();
        change(&mut params);
        run(&params, Model::Obedient)
    };
    let changes: [(&str, Change); 4] = [
        ("by hand", |params| params.trigger = Trigger::Manual),
        ("for a hook", |params| params.trigger = Trigger::Hook),
        ("turned off", |params| params.settings.prune = false),
        ("what was reported is much more than we count", |params| params.tokens_before += 2_000),
    ];
    for (case, change) in changes {
        let ran = with(change);
        assert_eq!((ran.outcome(), ran.requests.is_empty()), ("completed", false), "{case}: {:?}", ran.end);
        assert!(ran.installed.expect("a summary").prune.is_none(), "{case}");
    }
    let digest = with(|params| params.settings.strategy = Strategy::Digest);
    assert_ne!(digest.outcome(), "pruned", "a strategy without a model costs nothing");
    // After an overflow it is the first rung, too, and only the first.
    let overflow = |failed_attempts: u32| {
        let (trigger, at_window) = (Trigger::Overflow, true);
        let params = CompactionParams { trigger, at_window, failed_attempts, ..base.clone() };
        run(&params, Model::Obedient)
    };
    assert_eq!((overflow(0).outcome(), overflow(1).outcome()), ("pruned", "completed"));
}

#[test]
fn hooks_decide_before_results_are_left_out() {
    let drawing = format!("u:500 c:9 r:2000 c:9 r:1500 {NEWEST}");
    let params = pruning(&drawing, Trigger::Threshold);
    let run = |word: HookDecision| run_with(&params, &word, |request| Model::Obedient.answer(request));
    assert_eq!(run(HookDecision::Cancel { reason: "no".into() }).outcome(), "cancelled");
    let focus = run(HookDecision::Focus("the tests".into()));
    assert_eq!((focus.outcome(), focus.requests.len()), ("completed", 1), "a focus asks for a summary");
    let supplied = HookDecision::Supply(Supplied { summary: "supplied".into(), first_kept: None });
    let supplied = run(supplied);
    assert_eq!((supplied.outcome(), supplied.requests.len(), supplied.pruned), ("completed", 0, None));
}

#[test]
fn no_summary_is_prepared_where_none_will_be_necessary() {
    let trigger = 7_501;
    // 6,000 tokens now; at the trigger, the old results leave enough room.
    let prepare = |old: &str| {
        let params = pruning(&format!("u:500 {old} {NEWEST}"), Trigger::Threshold);
        (params.tokens_before, Compacting::prepare(params, trigger).map(|(_, effects)| effects.len()))
    };
    let (tokens, prepared) = prepare("c:9 r:1500 c:9 r:1000");
    assert_eq!(prepared, Err(tokens + (trigger - tokens) / 2), "looked at again half of the way");
    let (_, prepared) = prepare("c:9 r<a:1500 u:990 a:9");
    assert_eq!(prepared, Ok(1), "the newest content of a file stays, so there will be a summary");
}

//! The text for people.

use greenroom::{Compacted, CompactionOutcome, FactRecall};
use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{CompactionEnded, Trigger};

use super::{compacted, thousands};

fn end(outcome: CompactionOutcome) -> Compacted {
    Compacted::from(&CompactionEnded {
        started: EntryId(1),
        trigger: Trigger::Manual,
        outcome,
        entry: None,
        tokens_before: 142_318,
        tokens_after: 22_001,
        messages_before: 140,
        messages_after: 4,
        messages_removed: 137,
        duration_ms: 1_200,
        waited_ms: 0,
        prepared_ms: None,
        summary_usage: Default::default(),
        cost_microdollars: None,
        recall: None,
    })
}

#[test]
fn numbers_have_commas() {
    for (number, text) in
        [(0, "0"), (999, "999"), (1_000, "1,000"), (142_318, "142,318"), (1_234_567, "1,234,567")]
    {
        assert_eq!(thousands(number), text);
    }
}

#[test]
fn a_compaction_says_what_it_saved_or_why_there_was_none() {
    let done = "✓ Compacted 137 messages\n  Tokens: 142,318 → 22,001 (saved 120,317)";
    let reason = || "everything is recent enough to keep".to_owned();
    for (outcome, text) in [
        (CompactionOutcome::Completed, done),
        (
            CompactionOutcome::Truncated { reason: reason() },
            &format!("{done}\n  Without a summary: {}", reason()),
        ),
        (
            CompactionOutcome::Nothing { reason: reason() },
            "No compaction needed: everything is recent enough to keep",
        ),
        (
            CompactionOutcome::Nothing { reason: "the session is empty".into() },
            "No compaction needed: the session is empty",
        ),
        (
            CompactionOutcome::Failed { reason: "the disk is full".into() },
            "Compaction failed: the disk is full; the conversation is unchanged",
        ),
        (CompactionOutcome::Superseded, "Compaction superseded: superseded; the conversation is unchanged"),
    ] {
        assert_eq!(compacted(&end(outcome)), text);
    }
    let mut kept = end(CompactionOutcome::Digested { reason: reason() });
    kept.recall = Some(FactRecall { facts: 41, before: 30, after: 39 });
    let lines = format!("{done}\n  Facts: kept 39 of 41 facts\n  Without a summary: {}", reason());
    assert_eq!(compacted(&kept), lines);
    assert!(crate::format::compaction(&kept).ends_with(", kept 39 of 41 facts"));
    kept.recall = Some(FactRecall { facts: 0, before: 0, after: 0 });
    assert_eq!(super::kept_facts(&kept), None, "nothing to say without facts");
}

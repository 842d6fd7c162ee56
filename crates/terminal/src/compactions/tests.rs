//! The texts about compactions.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom::CompactionBill;
use serde_json::json;

use super::*;

fn record(of: &serde_json::Value) -> CompactionRecord {
    let mut whole = json!({
        "number": 2, "entry_id": 54, "at_ms": 0, "trigger": "threshold", "outcome": "completed",
        "is_undone": false, "is_active": true, "first": 3, "last": 40, "first_kept": 41,
        "tokens_before": 142_318, "tokens_after": 21_904, "messages_removed": 31, "duration_ms": 12_000,
        "model": "gpt-5", "summary_usage": {
            "input_tokens": 9_000, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 700,
            "reasoning_tokens": 0
        },
        "cost_microdollars": 31_000, "recall": { "facts": 44, "before": 31, "after": 41 },
        "saved": { "calls": 10, "tokens": 1_204_140, "microdollars": 360_000 }
    });
    whole.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
    serde_json::from_value(whole).unwrap()
}

#[test]
fn a_compaction_is_told_in_a_line() {
    for (of, expected) in [
        (
            json!({}),
            "  2  automatic  compacted 142.3k → 21.9k tokens  31 messages  12.0 s  $0.03  41 of 44 facts  \
             saved 1.2M tokens ($0.36 or more)  in effect",
        ),
        (
            json!({ "outcome": "pruned", "results_shortened": 1, "messages_removed": 0, "recall": null,
                    "cost_microdollars": null, "saved": {}, "is_active": false, "is_undone": true }),
            "  2  automatic  pruned 142.3k → 21.9k tokens  1 result  12.0 s  undone",
        ),
        (
            json!({ "tokens_after": null, "recall": null, "cost_microdollars": null, "saved": {} }),
            "  2  automatic  compacted 142.3k → ? tokens  31 messages  12.0 s  in effect",
        ),
        (
            json!({ "outcome": "failed", "reason": "the model is down", "trigger": "manual", "recall": null,
                    "is_active": false, "saved": {} }),
            "  2  manual  failed: the model is down  12.0 s  $0.03",
        ),
    ] {
        assert_eq!(line(&record(&of)), expected);
    }
}

#[test]
fn all_about_a_compaction_is_told_in_lines() {
    let fact = |text: &str| json!({ "entry": 12, "kind": "path", "text": text, "key": "", "times": 1 });
    let mut details: serde_json::Value = json!({
        "replaced": { "user": 1, "assistant": 17, "results": 13, "other": 0,
                      "requests": [{ "entry": 3, "text": "Fix the parser", "is_rule": false }] },
        "words": [{ "entry": 3, "text": "Fix the parser", "is_rule": false }], "words_left": [9],
        "facts_added": [fact("src/a.rs")], "facts_missing": [fact("src/b.rs")], "summary": "## Goal\nx"
    });
    let record = serde_json::to_value(record(&json!({}))).unwrap();
    details.as_object_mut().unwrap().extend(record.as_object().unwrap().clone());
    let text = super::details(&serde_json::from_value(details).unwrap()).join("\n");
    let expected = "\
compaction 2, entry 54: automatic, completed, in effect
  context   142,318 → 21,904 tokens, 12.0 s
  replaced  entries 3 to 40: 31 messages (1 of yours, 17 answers, 13 results)
                 3  Fix the parser
  kept      everything from entry 41 on
  verbatim  1 message of yours; not as a whole: 9
  facts     44 facts: 42 kept, 1 added to the summary, 1 missing
              added    path        src/a.rs [12]
              missing  path        src/b.rs [12]
              `recall` and `greenroom recall` find the missing facts
  cost      $0.03 (9,000 tokens in, 700 out, by gpt-5)
  saved     1.2M tokens ($0.36 or more) in 10 calls
  undo      /undo-compact 2 in `greenroom chat` undoes it and all later ones

## Goal
x";
    assert_eq!(text, expected);
}

#[test]
fn what_compactions_cost_together_is_told_if_there_were_any() {
    let bill = CompactionBill {
        tokens: 9_700,
        cost_microdollars: 31_000,
        waited_ms: 4_000,
        saved_tokens: 50_000,
        saved_microdollars: 0,
    };
    assert_eq!(totals(0, &CompactionBill::default()), None);
    let text = "2 compactions; 9,700 tokens for summaries, $0.03; saved 50k tokens; waited 4.0 s";
    assert_eq!(totals(2, &bill).as_deref(), Some(text));
}

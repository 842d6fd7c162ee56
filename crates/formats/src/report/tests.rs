//! The comparison cases, and the fields of a report.

use std::sync::Arc;

use greenroom_kernel::entry::Entry;
use greenroom_kernel::plan::PlanOptions;
use greenroom_kernel::usage::{Ratio, Reports, measure};
use serde_json::{Value, json};

use super::PlanReport;
use crate::{ImportOptions, Imported, import};

/// Fields that the comparison cases do not have.
const OURS_ALONE: [&str; 2] = ["tokens_after_estimate", "tokens_after_max"];

/// Returns the report of a path that was read from a file, with the sizes that are recorded in it.
fn of_recorded(imported: &Imported, path: &[Arc<Entry>], options: &PlanOptions) -> PlanReport {
    let measured = measure(path, options.estimator, 0, Ratio::default(), Reports::AsRecorded);
    PlanReport::new(path, options, measured, |id| imported.name_of(id))
}

/// Checks one case: a session without its header, and the expected report. Returns the plan, `null` if there
/// is none.
fn check(case: &Value) -> Result<Value, String> {
    let mut lines = vec![json!({"type": "session", "version": 3, "id": "case"}).to_string()];
    lines.extend(case["entries"].as_array().expect("entries").iter().map(Value::to_string));
    let imported = import(&lines.join("\n"), ImportOptions { repair: false }).expect("pi");
    let leaf = case["leaf_id"].as_str().map(|id| imported.find(id).expect("the leaf is there"));
    let path = imported.path_to(leaf);
    let keep_recent = case["keep_recent_tokens"].as_u64().expect("a number");
    let options = PlanOptions::comparison(keep_recent, 0);
    let report = of_recorded(&imported, &path, &options);
    let report = serde_json::to_value(&report).expect("plain data");
    let expected = case["expected"].as_object().expect("an object");
    let mut actual: Value = expected
        .keys()
        .filter(|key| *key != "context_roles")
        .map(|key| (key.clone(), report[key].clone()))
        .collect();
    if let Some(plan) = actual["plan"].as_object_mut() {
        plan.retain(|key, _| !OURS_ALONE.contains(&key.as_str()));
    }
    let mut expected = case["expected"].clone();
    expected.as_object_mut().expect("an object").remove("context_roles");
    if actual == expected {
        Ok(actual["plan"].take())
    } else {
        Err(format!("{}\n  is  {actual}\n  not {expected}", case["name"]))
    }
}

#[test]
fn comparison_mode_gives_the_plans_that_are_expected() {
    let text = include_str!("../../../../tests/data/cut_cases.jsonl");
    let cases: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a case")).collect();
    let (plans, wrong): (Vec<_>, Vec<_>) = cases.iter().map(check).partition(Result::is_ok);
    let wrong: Vec<String> = wrong.into_iter().filter_map(Result::err).collect();
    assert_eq!(cases.len(), 150);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let plans: Vec<Value> = plans.into_iter().flatten().collect();
    let has_files = |plan: &Value| {
        ["read_files", "modified_files"]
            .iter()
            .any(|key| plan[key].as_array().is_some_and(|it| !it.is_empty()))
    };
    type Is<'a> = &'a dyn Fn(&Value) -> bool;
    let kinds: [(&str, usize, Is<'_>); 5] = [
        ("have nothing to compact", 20, &Value::is_null),
        ("have a plan", 120, &Value::is_object),
        ("split a turn", 60, &|plan| plan["is_split_turn"] == true),
        ("merge an earlier summary", 40, &|plan| plan["has_previous_summary"] == true),
        ("list files", 90, &has_files),
    ];
    for (what, least, is) in kinds {
        let count = plans.iter().filter(|plan| is(plan)).count();
        assert!(count >= least, "only {count} of {} cases {what}", plans.len());
    }
}

#[test]
fn a_report_has_a_plan_or_a_reason() {
    let text = [
        json!({"type": "session", "version": 3, "id": "s"}),
        json!({"type": "message", "id": "a", "parentId": null, "message": {"role": "user", "content": "12345678"}}),
        json!({"type": "message", "id": "b", "parentId": "a",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "1234"}], "stopReason": "stop"}}),
        json!({"type": "message", "id": "c", "parentId": "b", "message": {"role": "user", "content": "1234"}}),
    ]
    .map(|line| line.to_string())
    .join("\n");
    let imported = import(&text, ImportOptions::default()).expect("pi");
    let path = imported.path();
    let report = |keep| {
        let options = PlanOptions::comparison(keep, 0);
        let report = of_recorded(&imported, &path, &options);
        serde_json::to_value(report).expect("plain data")
    };
    assert_eq!(
        report(1),
        json!({
            "entries": 3, "context_tokens": 4, "usage_tokens": 0, "trailing_tokens": 4,
            "plan": {
                "first_kept_entry_id": "c", "is_split_turn": false, "messages_to_summarize": 2,
                "turn_prefix_messages": 0, "tokens_before": 4, "tokens_after_estimate": 4, "tokens_after_max": 4,
                "has_previous_summary": false, "read_files": [], "modified_files": [],
            },
        })
    );
    let nothing = report(100);
    assert_eq!(nothing["plan"], Value::Null);
    assert_eq!(nothing["reason"], "everything is recent enough to keep");
}

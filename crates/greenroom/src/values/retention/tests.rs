//! Tables: sessions, a policy, and what is due.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

const HOUR_MS: u64 = 3_600_000;

/// Sessions from text: `a:5` is session `a`, last active five hours ago; `!` protects it; `@x` gives it the label
/// `kind=x`.
fn trees(text: &str) -> Vec<KeptTree> {
    let tree = |word: &str| {
        let (rest, kind) = word.split_once('@').map_or((word, None), |(rest, kind)| (rest, Some(kind)));
        let (rest, is_protected) = rest.strip_suffix('!').map_or((rest, false), |rest| (rest, true));
        let (root, hours) = rest.split_once(':').unwrap();
        KeptTree {
            root: root.to_owned(),
            labels: kind.map(|kind| ("kind".to_owned(), kind.to_owned())).into_iter().collect(),
            active_at_ms: 1_000 * HOUR_MS - hours.parse::<u64>().unwrap() * HOUR_MS,
            is_protected,
        }
    };
    text.split_whitespace().map(tree).collect()
}

fn hours(count: Option<u64>) -> Option<Duration> {
    count.map(|count| Duration::from_secs(3_600 * count))
}

/// Checks what is due with these limits and rules: `(kind, age in hours, count)`.
#[track_caller]
fn check(
    sessions: &str,
    (age, count): (Option<u64>, Option<usize>),
    rules: &[(&str, Option<u64>, Option<usize>)],
    expected: &str,
) {
    let rule = |(kind, age, count): &(&str, Option<u64>, Option<usize>)| RetentionRule {
        labels: if kind.is_empty() {
            BTreeMap::new()
        } else {
            [("kind".to_owned(), (*kind).to_owned())].into()
        },
        age_max: hours(*age),
        sessions_max: *count,
    };
    let policy =
        Retention { age_max: hours(age), sessions_max: count, rules: rules.iter().map(rule).collect() };
    let found: Vec<String> = due(&policy, trees(sessions), 1_000 * HOUR_MS)
        .into_iter()
        .map(|(tree, reason)| format!("{}:{reason}", tree.root))
        .collect();
    assert_eq!(found.join(" "), expected);
    if policy.keeps_all() {
        assert_eq!(expected, "");
    }
}

#[test]
fn nothing_is_due_without_limits() {
    check("a:1 b:900", (None, None), &[], "");
    check("a:1@x b:900", (None, None), &[("x", None, None)], "");
}

#[test]
fn the_oldest_are_due_by_age() {
    check("a:1 b:900 c:24 d:25", (Some(24), None), &[], "b:age d:age");
    check("a:1 b:900! c:24 d:25!", (Some(24), None), &[], "");
    check("a:0 b:1", (Some(0), None), &[], "b:age");
}

#[test]
fn the_newest_are_kept_by_count() {
    check("a:3 b:2 c:1 d:4", (None, Some(2)), &[], "d:count a:count");
    check("a:3 b:2 c:1", (None, Some(3)), &[], "");
    check("a:3 b:2 c:1", (None, Some(0)), &[], "a:count b:count c:count");
    // Those that are protected count, and stay.
    check("a:1! b:2! c:3 d:4!", (None, Some(2)), &[], "c:count");
    // With equal activity, the order of ids decides.
    check("b:1 a:1 c:1", (None, Some(1)), &[], "c:count b:count");
    check("a:1 b:2 c:9", (Some(5), Some(1)), &[], "c:age b:count");
}

#[test]
fn the_first_matching_rule_decides_alone() {
    check("a:1@x b:9@x c:9", (Some(5), None), &[("x", None, None)], "c:age");
    check("a:1@x b:9@x c:9", (None, None), &[("x", Some(5), None)], "b:age");
    check("a:1@x b:2@x c:3@y d:4@y e:5", (None, Some(1)), &[("x", None, Some(1))], "e:count d:count b:count");
    check("a:9@x", (None, None), &[("x", None, None), ("x", Some(1), None)], "");
    check("a:9@x b:9@y", (None, None), &[("y", None, None), ("", Some(1), None)], "a:age");
}

//! Which limits a label has, and which are refused.

use super::*;

fn labels(text: &str) -> BTreeMap<String, String> {
    text.split(' ')
        .filter_map(|label| label.split_once('='))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect()
}

/// The tenants of a session with these labels, each with its runs at a time.
#[track_caller]
fn check(table: &Table, of: &str, expected: &str) {
    let shown = |label: &Label| {
        let runs = table.limits(label).runs_max.map(|runs| format!(":{runs}"));
        format!("{label}{}", runs.unwrap_or_default())
    };
    let shown: Vec<String> = table.tenants(&labels(of)).iter().map(shown).collect();
    assert_eq!(shown.join(" "), expected, "{of}");
}

#[test]
fn a_session_has_the_limits_of_its_labels() {
    let limits = [
        LabelLimit::each("tenant").runs_max(2).cost_usd(1.0, Period::Day),
        LabelLimit::of("tenant", "north").runs_max(9),
        LabelLimit::of("team", "blue").runs_max(3),
    ];
    let table = Table::new(&limits, &["user".to_owned()], Some("tenant")).expect("it is valid");
    check(&table, "", "");
    check(&table, "folder=x", "");
    check(&table, "tenant=south", "tenant=south:2");
    check(&table, "tenant=north user=ada", "tenant=north:9 user=ada");
    check(&table, "tenant=north team=blue", "team=blue:3 tenant=north:9");
    check(&table, "team=red", "team=red");
    // The limit of one value replaces that of each.
    let of = |text: &str| table.limits(&table.tenants(&labels(text))[0]);
    assert_eq!(of("tenant=south").cost, [(1_000_000, Period::Day)]);
    assert_eq!(of("tenant=north").cost, []);
    let group = |text: &str| table.group(&table.tenants(&labels(text)));
    assert_eq!(group("tenant=north").as_deref(), Some("north"));
    assert_eq!(group("team=blue").as_deref(), Some(""));
    let without = Table::new(&limits, &[], None).expect("it is valid");
    assert_eq!(without.group(&without.tenants(&labels("tenant=north"))), None);
}

#[test]
fn limits_that_cannot_work_are_refused() {
    let refused = |limit: LabelLimit| Table::new(&[limit], &[], None).expect_err("it is refused").to_string();
    for (limit, expected) in [
        (
            LabelLimit::each("tenant").runs_max(0),
            "the label \"tenant\" is invalid: runs_max must be at least 1",
        ),
        (
            LabelLimit::of("a", "b").tokens_per_minute(0),
            "the label \"a=b\" is invalid: tokens_per_minute must be at least 1",
        ),
        (LabelLimit::each("a").messages_per_minute(0), "messages_per_minute must be at least 1"),
        (LabelLimit::each("a").cost_usd(-1.0, Period::Day), "the cost limit of -1 dollars"),
        (LabelLimit::each("a").cost_usd(f64::NAN, Period::Hour), "the cost limit of NaN dollars"),
        (LabelLimit::each(" "), "the label \" \""),
        (LabelLimit::of("a", "tab\t"), "the label \"a=tab\\t\""),
    ] {
        let said = refused(limit);
        assert!(said.contains(expected), "{said}");
    }
    assert!(Table::new(&[], &["\n".to_owned()], None).is_err() && Table::new(&[], &[], Some("")).is_err());
}

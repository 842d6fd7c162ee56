//! The files in `deploy/`: they name only metrics that exist, and agree with the defaults.
//!
//! Invariants: the metrics are those of the table in `docs/operations.md`, which a test of the library compares with what
//! is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A metric of the table: its type and its labels.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

fn documented() -> Metrics {
    let page = read("docs/operations.md");
    let (_, table) = page.split_once("<!-- metrics -->").expect("the table begins");
    let (table, _) = table.split_once("<!-- end of metrics -->").expect("the table ends");
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let rows = table.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = words(cells[0]).pop_first().unwrap();
        (name, (cells[1].to_owned(), words(cells[2])))
    });
    rows.collect()
}

/// Checks an expression, and returns the metrics that it uses.
fn check(expression: &str, metrics: &Metrics) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let starts = expression.match_indices("greenroom_").map(|(at, _)| at);
    for at in starts {
        let rest = &expression[at..];
        let series = &rest[..rest.find(|letter| !is_name(letter)).unwrap_or(rest.len())];
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            let name = series.strip_suffix(suffix)?;
            metrics.get(name).filter(|(kind, _)| kind == "histogram").map(|known| (name, known))
        });
        let plain = metrics.get(series).filter(|(kind, _)| kind != "histogram").map(|known| (series, known));
        let (name, (kind, labels)) =
            of_histogram.or(plain).unwrap_or_else(|| panic!("there is no {series} for {expression}"));
        // Where its value is matched, its label exists.
        let matched = rest[series.len()..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        for pair in matched.unwrap_or_default().split(',').filter(|pair| !pair.is_empty()) {
            let label = &pair[..pair.find(|letter| !is_name(letter)).unwrap()];
            let is_known = labels.contains(label) || matches!(label, "instance" | "job");
            assert!(is_known, "{name} has no label {label}: {expression}");
        }
        // A counter is read by its increase, or by its beginning: where there was none a while before.
        let is_increase = ["rate(", "increase("].iter().any(|read| expression[..at].ends_with(read));
        let is_increase = is_increase || kind != "gauge" && expression.contains(" offset ");
        assert_eq!(kind != "gauge", is_increase, "{name} is a {kind}: {expression}");
        used.insert(name.to_owned());
    }
    let labels: BTreeSet<&str> =
        used.iter().flat_map(|name| &metrics[name].1).map(String::as_str).chain(["instance", "le"]).collect();
    for group in expression.split(" by (").skip(1) {
        for label in group.split(')').next().unwrap().split(", ") {
            assert!(labels.contains(label), "there is no label {label} in {expression}");
        }
    }
    used
}

fn expressions(value: &Value) -> Vec<String> {
    match value {
        Value::Object(object) => {
            let own = object.get("expr").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(object.values().flat_map(expressions)).collect()
        }
        Value::Array(items) => items.iter().flat_map(expressions).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
fn dashboard_and_alerts_use_metrics_that_exist_and_leave_none_out() {
    let metrics = documented();
    assert!(metrics.len() > 30, "{}", metrics.len());
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana-dashboard.json")).unwrap();
    let alerts: Value = serde_norway::from_str(&read("deploy/alerts.yml")).unwrap();
    let (shown, alerted) = (expressions(&dashboard), expressions(&alerts));
    assert!(shown.len() > 30 && alerted.len() > 10, "{} {}", shown.len(), alerted.len());
    let used: BTreeSet<String> = shown.iter().flat_map(|expression| check(expression, &metrics)).collect();
    let unseen: Vec<&String> = metrics.keys().filter(|name| !used.contains(*name)).collect();
    assert!(unseen.is_empty(), "the dashboard does not show {unseen:?}");
    for expression in alerted.iter().filter(|expression| !expression.starts_with("up{")) {
        assert!(!check(expression, &metrics).is_empty(), "{expression}");
    }
    let ids: Vec<i64> =
        dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "panels have ids of their own");
}

/// What the page about events and metrics names exists as well.
#[test]
fn the_guide_names_metrics_that_exist() {
    let metrics = documented();
    let mut count = 0;
    for page in
        ["docs/guide/observability.md", "docs/guide/deployment.md", "docs/operations.md", "docs/protocol.md"]
    {
        let text = read(page);
        for word in text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
            let is_metric = word.starts_with("greenroom_") && word.len() > "greenroom_".len();
            let is_crate =
                ["greenroom_simulator", "greenroom_provider", "greenroom_server", "greenroom_store"];
            if is_metric && !is_crate.contains(&word) {
                assert!(metrics.contains_key(word), "{page}: {word}");
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count}");
}

/// A service manager gives the server the time that it takes.
#[test]
fn the_unit_gives_the_server_time_to_stop() {
    let unit = read("deploy/greenroom.service");
    let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    let schema: Value = serde_json::from_str(&read("docs/schema/config.json")).unwrap();
    let drain = schema["$defs"]["ServeConfig"]["properties"]["drain_timeout_s"]["default"].as_u64().unwrap();
    assert!(seconds.parse::<u64>().unwrap() >= drain + 10 + 5, "{seconds} s, and {drain} s to drain");
    let dockerfile = read("deploy/Dockerfile");
    let stop = dockerfile.split("--stop-timeout ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert_eq!(stop, seconds, "the container has the same time");
}

/// Where systemd is, it reads the unit itself.
#[test]
fn systemd_finds_no_fault_in_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let unit = read("deploy/greenroom.service");
    let program = "/usr/local/bin/greenroom";
    assert!(unit.contains(program));
    let path = dir.path().join("greenroom.service");
    // A program that is there.
    std::fs::write(&path, unit.replace(program, "/bin/sh")).unwrap();
    match std::process::Command::new("systemd-analyze").arg("verify").arg(&path).output() {
        Ok(verified) => {
            let said = String::from_utf8_lossy(&verified.stderr).into_owned();
            assert!(verified.status.success() && !said.contains("greenroom.service"), "{said}");
        }
        Err(error) => eprintln!("the unit is not verified: systemd-analyze: {error}"),
    }
}

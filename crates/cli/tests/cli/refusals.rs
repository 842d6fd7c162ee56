//! Refusals of providers, served over HTTP in their original form: `run --json` ends with its class.
//!
//! Two tables: one of ours, and `tests/data/provider_errors.jsonl` with bodies of real servers.

use greenroom_simulator::{Echo, Fault, FaultPlan};
use serde_json::Value;

use super::support::{Model, Place, Ran, events};

/// A refusal as a server sends it: its status, its body, and whether that comes as an event of a stream.
#[derive(Debug, Clone)]
struct Refusal {
    status: u16,
    body: String,
    is_event: bool,
}

impl Refusal {
    fn new(status: u16, body: &str) -> Self {
        Self { status, body: body.to_owned(), is_event: false }
    }

    fn event(body: &str) -> Self {
        Self { status: 200, body: body.to_owned(), is_event: true }
    }

    fn fault(&self) -> Fault {
        let (kind, body) = match self.is_event {
            true => ("text/event-stream", format!("data: {}\n\ndata: [DONE]\n\n", self.body)),
            false if self.body.starts_with('{') => ("application/json", self.body.clone()),
            false => ("text/plain", self.body.clone()),
        };
        let headers = vec![("content-type".to_owned(), kind.to_owned())];
        Fault::Http { status: self.status, headers, body }
    }
}

/// A run whose provider always refuses like this.
fn refused(refusal: &Refusal, flags: &[&str]) -> Ran {
    let place = Place::new();
    place.project_file("limits: { retries_max: 0 }\n");
    let plan = FaultPlan { faults: vec![refusal.fault()], ..FaultPlan::new(0, 1.0) };
    let model = Model::new(Echo, |options| options.faults = Some(plan));
    let url = model.url();
    let arguments = [&["run", "-p", "Hello.", "--no-tools", "--base-url", &url], flags].concat();
    let ran = place.run(&arguments);
    assert_eq!(ran.code, Some(1), "{refusal:?}: {ran:?}");
    assert!(model.simulator.fired()["http"] > 0, "{refusal:?} was never served");
    ran
}

/// The last line of `run --json` where the provider always refuses like this.
fn end_of(refusal: &Refusal) -> Value {
    let last = events(&refused(refusal, &["--json"])).pop().unwrap();
    assert_eq!(last["type"], "error", "{refusal:?}: {last}");
    last
}

/// Ends them all, by several at a time, and says all that are wrong.
fn check<T: Sync>(rows: &[(Refusal, T)], wrong: impl Fn(&Value, &T) -> bool + Sync) {
    let found: Vec<String> = std::thread::scope(|scope| {
        let check_one = |(refusal, expected): &(Refusal, T)| {
            let last = end_of(refusal);
            wrong(&last, expected).then(|| format!("{refusal:?}\n    ends with {last}"))
        };
        let workers: Vec<_> = rows
            .chunks(rows.len().div_ceil(4).max(1))
            .map(|rows| scope.spawn(move || rows.iter().filter_map(check_one).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(found.is_empty(), "{} of {}:\n{}", found.len(), rows.len(), found.join("\n"));
}

#[test]
fn each_class_ends_with_its_name_its_status_and_its_numbers() {
    let json = |message: &str| format!("{{\"error\":{{\"message\":\"{message}\"}}}}");
    let overflow = json("the prompt has 9001 tokens, and the model's maximum context length is 8000 tokens");
    let rows = [
        (Refusal::new(400, &overflow), ("context_overflow", Some(8_000), Some(9_001), false)),
        (Refusal::event(&overflow), ("context_overflow", Some(8_000), Some(9_001), false)),
        (Refusal::new(500, &overflow), ("context_overflow", Some(8_000), Some(9_001), false)),
        (Refusal::new(429, &overflow), ("rate_limited", Some(8_000), Some(9_001), true)),
        (Refusal::new(413, ""), ("payload_too_large", None, None, false)),
        (Refusal::new(401, &json("who are you?")), ("auth", None, None, false)),
        (Refusal::new(402, ""), ("quota", None, None, false)),
        (
            Refusal::new(503, "<html><body>no healthy upstream</body></html>"),
            ("overloaded", None, None, true),
        ),
        (Refusal::new(504, ""), ("timeout", None, None, true)),
        (Refusal::new(400, &json("blocked by our content policy")), ("content_filter", None, None, false)),
        (Refusal::new(400, &json("temperature must be at most 2")), ("other", None, None, false)),
        (Refusal::new(200, "{"), ("malformed", None, None, true)),
    ];
    check(&rows, |last, (class, limit, requested, retryable)| {
        let numbers = (last["limit"].as_u64(), last["requested"].as_u64());
        last["class"] != *class || numbers != (*limit, *requested) || last["retryable"] != *retryable
    });
}

/// What to do about it follows what the provider said, whatever that ends with.
#[test]
fn advice_follows_the_reason_in_one_sentence() {
    for (said, shown) in [
        ("slow down", "(429): slow down; try again later"),
        ("Slow down.", "(429): Slow down; try again later"),
        ("Slow down...", "(429): Slow down...; try again later"),
        ("Really?", "(429): Really?; try again later"),
    ] {
        let body = format!("{{\"error\":{{\"message\":\"{said}\"}}}}");
        let ran = refused(&Refusal::new(429, &body), &[]);
        assert!(ran.stderr.contains(shown) && ran.stderr.lines().count() == 1, "{said:?}: {ran:?}");
    }
}

#[test]
fn each_refusal_of_a_real_server_ends_as_it_should() {
    let lines = include_str!("../../../../tests/data/provider_errors.jsonl");
    assert_eq!(lines.lines().count(), 78);
    let mut rows = Vec::new();
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let (body, is_overflow) = (row["body"].as_str().unwrap(), row["is_overflow"] == true);
        match row["status"].as_u64().map(|status| u16::try_from(status).unwrap()) {
            Some(200) => rows.push((Refusal::event(body), is_overflow)),
            Some(status) => rows.push((Refusal::new(status, body), is_overflow)),
            // Nobody wrote down how it came: both ways are in use.
            None => rows.extend([
                (Refusal::new(400, body), is_overflow),
                (
                    Refusal::event(&serde_json::json!({ "error": { "message": body } }).to_string()),
                    is_overflow,
                ),
            ]),
        }
    }
    check(&rows, |last, is_overflow| (last["class"] == "context_overflow") != *is_overflow);
}

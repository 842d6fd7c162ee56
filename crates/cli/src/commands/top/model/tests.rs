//! Keys, changing lists, and events, without a terminal.

use greenroom_kernel::RunOutcome;
use serde_json::json;

use super::*;

/// A session as a host reports it.
pub(crate) fn session(id: &str, status: &str, more: serde_json::Value) -> LiveSession {
    let mut value = json!({
        "id": id, "model": "gpt-5.5", "entries": 4, "compactions": 0, "total_tokens": 0, "cost_microdollars": 0,
        "context": { "tokens": 0, "usage_tokens": 0, "trailing_tokens": 0, "window": 100_000, "window_source": "catalog" },
        "status": status, "waiting": 0, "is_unanswered": false, "is_asleep": false, "activity": { "tools": [] },
    });
    let serde_json::Value::Object(more) = more else { panic!("an object") };
    value.as_object_mut().expect("an object").extend(more);
    serde_json::from_value(value).expect("a session")
}

fn context(tokens: u64) -> serde_json::Value {
    json!({ "tokens": tokens, "usage_tokens": 0, "trailing_tokens": tokens, "window": 100_000, "window_source": "catalog" })
}

/// Four sessions that differ in everything.
pub(crate) fn four() -> Vec<LiveSession> {
    vec![
        session(
            "a",
            "idle",
            json!({ "total_tokens": 40, "updated_at_ms": 1_000, "context": context(90_000) }),
        ),
        session(
            "b",
            "working",
            json!({
                "total_tokens": 10, "cost_microdollars": 500, "activity": { "since_ms": 9_000, "step": 3, "tools": ["bash", "grep"] },
            }),
        ),
        session(
            "c",
            "waiting",
            json!({ "waiting": 2, "total_tokens": 20, "updated_at_ms": 8_000, "context": context(50_000) }),
        ),
        session(
            "d",
            "compacting",
            json!({ "cost_microdollars": 900, "total_tokens": 30, "activity": { "since_ms": 5_000, "tools": [] } }),
        ),
    ]
}

pub(crate) fn model(sort: Sort) -> Model {
    let mut model = Model::new(sort);
    model.taken(four(), 10_000);
    model
}

fn order(model: &Model) -> String {
    model.sessions().iter().map(|session| session.state.id.as_str()).collect()
}

fn press(model: &mut Model, keys: &str) -> Option<Action> {
    let mut last = None;
    for key in keys.chars() {
        let code = match key {
            '⏎' => KeyCode::Enter,
            '␛' => KeyCode::Esc,
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            key => KeyCode::Char(key),
        };
        last = model.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

#[test]
fn sessions_are_sorted_by_each_column_both_ways() {
    for (sort, wanted) in [
        (Sort::State, "bdca"),
        (Sort::Context, "acbd"),
        (Sort::Tokens, "adcb"),
        (Sort::Cost, "dbac"),
        (Sort::Queue, "cabd"),
        (Sort::Age, "adcb"),
        (Sort::Id, "abcd"),
    ] {
        let mut model = model(sort);
        assert_eq!(order(&model), wanted, "{sort:?}");
        press(&mut model, "r");
        assert_eq!(order(&model), wanted.chars().rev().collect::<String>(), "{sort:?} reversed");
    }
    // The key cycles through all of them.
    let mut model = model(Sort::State);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..Sort::ALL.len() {
        seen.insert(model.sort.name());
        press(&mut model, "s");
    }
    assert_eq!((seen.len(), model.sort), (Sort::ALL.len(), Sort::State));
}

#[test]
fn what_is_chosen_stays_chosen_while_the_list_changes() {
    let mut model = model(Sort::Id);
    assert_eq!(model.place(), Some(0));
    press(&mut model, "↓↓");
    assert_eq!(model.place(), Some(2));
    let mut fewer = four();
    fewer.remove(0);
    model.taken(fewer, 11_000);
    assert_eq!((order(&model).as_str(), model.place()), ("bcd", Some(1)), "it is still c");
    model.taken(vec![session("b", "idle", json!({})), session("d", "idle", json!({}))], 12_000);
    assert_eq!((order(&model).as_str(), model.place()), ("bd", Some(1)), "the next one moved up");
    press(&mut model, "↓↓↓↑↑↑↑");
    assert_eq!(model.place(), Some(0));
    model.taken(Vec::new(), 13_000);
    assert_eq!((model.place(), press(&mut model, "⏎"), press(&mut model, "a↓")), (None, None, None));
}

#[test]
fn nothing_is_ended_or_changed_before_it_is_asked() {
    let mut model = model(Sort::Id);
    assert_eq!(press(&mut model, "↓a"), None);
    assert_eq!(model.question, Some(Question::Abort("b".into())));
    assert_eq!(press(&mut model, "n"), None);
    assert_eq!((press(&mut model, "y"), &model.question), (None, &None), "the question is gone");
    assert_eq!(press(&mut model, "ay"), Some(Action::Abort("b".into())));
    // There is nothing to abort in an idle session, so no question.
    assert_eq!(press(&mut model, "↑a"), None);
    assert_eq!(
        (&model.question, model.notice.as_deref()),
        (&None, Some("a is idle: there is nothing to abort"))
    );
    assert_eq!(press(&mut model, "↓␛"), None, "only q leaves the list");
    assert_eq!(press(&mut model, "cy"), Some(Action::Compact("b".into())));
    // A quit does not confirm, and any other key declines.
    assert_eq!(press(&mut model, "cq"), None);
    assert_eq!(press(&mut model, "q"), Some(Action::Quit));
    // In the close view, keys apply to its session.
    assert_eq!(press(&mut model, "↓⏎"), Some(Action::Watch("c".into())));
    assert_eq!(press(&mut model, "ay"), Some(Action::Abort("c".into())));
    assert_eq!(press(&mut model, "↓cy"), Some(Action::Compact("c".into())));
    assert_eq!(press(&mut model, "␛"), Some(Action::Leave));
    assert_eq!(press(&mut model, "␛"), None, "once more is no quit");
}

#[test]
fn what_a_session_does_is_said_in_a_few_words() {
    let working = |activity: serde_json::Value, asleep: bool| {
        doing(&session("x", "working", json!({ "activity": activity, "is_asleep": asleep })))
    };
    assert_eq!(working(json!({ "step": 3, "tools": ["bash", "grep"] }), false), "step 3: bash, grep");
    assert_eq!(working(json!({ "step": 1, "tools": [] }), false), "step 1: the model answers");
    assert_eq!(
        working(json!({ "step": 1, "tools": [], "queue_position": 4 }), false),
        "step 1: waits at position 4"
    );
    assert_eq!(working(json!({ "step": 2, "tools": ["build"] }), true), "step 2: build, asleep");
    for (status, said) in [("idle", "idle"), ("compacting", "compacting"), ("waiting", "waits for an answer")]
    {
        assert_eq!(doing(&session("x", status, json!({}))), said);
    }
}

fn event(id: &str, kind: EventKind) -> Event {
    let mut value = json!({ "session_id": id, "seq": 1, "n": 1, "at_ms": 1 });
    let serde_json::Value::Object(kind) = serde_json::to_value(kind).expect("JSON") else {
        panic!("an object")
    };
    value.as_object_mut().expect("an object").extend(kind);
    serde_json::from_value(value).expect("an event")
}

#[test]
fn the_events_of_the_session_that_is_looked_at_are_kept_and_bounded() {
    let mut model = model(Sort::Id);
    press(&mut model, "⏎");
    let text = |piece: &str| EventKind::MessageDelta { delta: Delta::Text(piece.into()) };
    model.heard(&event("b", EventKind::RunStart));
    model.heard(&event("a", EventKind::StepStart { step: 1, model: "m".into() }));
    model.heard(&event("a", text("Hello, ")));
    model.heard(&event("a", text("world")));
    let lines = |model: &Model| -> Vec<String> {
        model.close.iter().flat_map(|close| close.lines.iter().map(Row::text)).collect()
    };
    assert_eq!(lines(&model), ["step 1, m"], "what others do is not told");
    assert_eq!(model.close.as_ref().map(|close| close.text.as_str()), Some("Hello, world"));
    model.heard(&event("a", text(&"é".repeat(5_000))));
    assert!(model.close.as_ref().is_some_and(|close| close.text.len() <= TEXT_BYTES_MAX));
    for _ in 0..2 * LINES_MAX {
        model.heard(&event("a", EventKind::Warning { message: "x".into() }));
    }
    assert_eq!(lines(&model).len(), LINES_MAX);
    assert_eq!(RunOutcome::Completed.as_str(), "completed");
}

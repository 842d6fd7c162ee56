//! The previous model of a session, by its log.

use std::sync::Arc;

use greenroom_kernel::message::{AssistantMessage, Message, Part, StopReason};

use super::*;

/// A log from words: `u` is a user's message; `m=NAME` a change of the model; `NAME` an answer of that model,
/// `NAME@PROVIDER` one of another provider, and `NAME?` a partial one.
fn log(words: &str) -> Log {
    let mut log = Log::new(greenroom_kernel::bill::CallCost::unknown());
    if words.is_empty() {
        return log;
    }
    let mut draft = log.draft(1);
    draft.begin("p", "a", None, 1);
    for word in words.split(' ') {
        let answer = |named: &str, stop| {
            let (model, provider) = named.split_once('@').unwrap_or((named, "p"));
            Message::Assistant(AssistantMessage::new(vec![Part::Text("yes".into())], provider, model, stop))
        };
        match (word, word.strip_prefix("m="), word.strip_suffix('?')) {
            ("u", ..) => draft.message(Message::user("go")),
            (_, Some(model), _) => {
                let (provider, model) = ("p".to_owned(), model.to_owned());
                draft.push(EntryKind::ModelChange { provider, model })
            }
            (_, _, Some(model)) => draft.message(answer(model, StopReason::Aborted)),
            (model, ..) => draft.message(answer(model, StopReason::Stop)),
        };
    }
    let model = draft.head().model.clone();
    draft.set_window("p", &model, Some(70));
    log.commit(draft);
    log
}

#[track_caller]
fn check(words: &str, model: &str, left: Option<(&str, Option<u64>)>) {
    let of = LeftModel::of(&log(words), "p", model);
    let of = of.as_ref().map(|left| (left.model.as_str(), left.window));
    assert_eq!(of, left, "{words} with {model}");
}

#[test]
fn the_model_that_answered_last_is_left_until_another_one_has_answered() {
    check("", "a", None);
    check("u a", "a", None);
    // The session is opened with another model. The configured window of the previous one is known.
    check("u a", "b", Some(("a", Some(70))));
    check("u", "b", Some(("a", Some(70))));
    // The conversation was imported, so the model with which that was done has answered nothing.
    check("u a@q", "b", None);
    check("u a@q u a", "b", Some(("a", Some(70))));
    // The switch was recorded, followed by no answer or a partial one.
    check("u a m=b", "b", Some(("a", None)));
    check("u a m=b u b?", "b", Some(("a", None)));
    check("u a m=b u b", "b", None);
    check("u a m=b m=c", "c", Some(("a", None)));
    check("u m=b", "b", None);
    check("u a? m=b", "b", None);
}

#[test]
fn a_model_is_the_same_by_its_provider_too() {
    let left = LeftModel::of(&log("u a"), "other", "a").expect("another provider answers");
    assert!(left.is("p", "a") && !left.is("other", "a") && !left.is("p", "b"));
    assert_eq!(Arc::new(left).window, Some(70));
}

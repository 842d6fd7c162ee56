//! Tests of `options`.

use greenroom::ReasoningEffort;
use greenroom::permissions::Mode;
use serde_json::json;

use super::{Choice, Choices, mode};

#[test]
fn the_current_value_is_among_the_choices() {
    for models in [vec![], vec!["a".to_owned()], vec!["a".to_owned(), "mine".to_owned()]] {
        let choices = Choices {
            mode: Some(Mode::Ask),
            model: "mine".to_owned(),
            models,
            effort: Some(ReasoningEffort::High),
        };
        let options = serde_json::to_value(choices.options()).expect("JSON");
        let options = options.as_array().expect("a list");
        assert_eq!(options.len(), 3);
        for option in options {
            let values = option["options"].as_array().expect("a list").iter().map(|known| &known["value"]);
            assert_eq!(values.filter(|value| **value == option["currentValue"]).count(), 1, "{option}");
        }
    }
    // Without tools there is nothing to permit.
    let choices = Choices { model: "mine".to_owned(), ..Choices::default() };
    assert!(choices.modes().is_none());
    assert_eq!(choices.options().len(), 2);
}

#[test]
fn choices_are_read_or_refused_with_what_there_is() {
    let rows = [
        ("mode", "accept_edits", Ok(Choice::Mode(Mode::AcceptEdits))),
        ("model", "any", Ok(Choice::Model("any".to_owned()))),
        ("effort", "default", Ok(Choice::Effort(None))),
        ("effort", "xhigh", Ok(Choice::Effort(Some(ReasoningEffort::XHigh)))),
        ("effort", "huge", Err("minimal")),
        ("mode", "yolo", Err("accept_edits")),
        ("other", "x", Err("mode, model and effort")),
    ];
    for (id, value, expected) in rows {
        match (Choice::read(id, value), expected) {
            (Ok(choice), Ok(expected)) => assert_eq!(choice, expected),
            (Err(reason), Err(part)) => assert!(reason.contains(part), "{id} {value}: {reason}"),
            (found, _) => panic!("{id} {value}: {found:?}"),
        }
    }
    let shown =
        serde_json::to_value(Choices { mode: Some(Mode::Ask), ..Choices::default() }.modes()).expect("JSON");
    for known in shown["availableModes"].as_array().expect("a list") {
        assert!(mode(known["id"].as_str().expect("a text")).is_ok(), "{known}");
    }
    assert_eq!(shown["currentModeId"], json!("ask"));
}

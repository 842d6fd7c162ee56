//! Tests of `questions`.

use std::path::Path;

use agent_client_protocol::v1::schema::{PermissionOption, PermissionOptionKind, ToolCallUpdate};
use greenroom::{Approval, Question, QuestionKind};
use serde_json::{Value, json};

use super::{Asking, answer, asking, filled, in_words, refuses, said};

fn question(kind: &Value) -> Question {
    let mut question = json!({ "text": "Which?" });
    question.as_object_mut().expect("an object").extend(kind.as_object().expect("an object").clone());
    serde_json::from_value(question).expect("a question")
}

fn options(asked: Asking) -> (ToolCallUpdate, Vec<PermissionOption>) {
    match asked {
        Asking::Permission(call, options) => (call, options),
        Asking::Form(..) => panic!("a form: {asked:?}"),
    }
}

fn choice(count: usize, several: bool) -> Question {
    let choices: Vec<String> = (0..count).map(|number| format!("c{number}")).collect();
    question(&json!({ "kind": "choice", "choices": choices, "several": several }))
}

fn approval(command: &str, rules: &[&str]) -> Question {
    let mut approval = Approval::new("bash", json!({ "command": command }));
    approval.rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let mut question = choice(2, false);
    question.kind = QuestionKind::Approval { approval: Box::new(approval) };
    question
}

#[test]
fn few_choices_are_options_and_all_else_needs_words() {
    let form = question(&json!({ "kind": "form", "schema": {} }));
    let rows = [(choice(2, false), Some(2)), (choice(9, false), Some(9)), (choice(10, false), None)];
    let more = [(choice(2, true), None), (question(&json!({ "kind": "text" })), None), (form, None)];
    for (question, count) in rows.into_iter().chain(more) {
        let asked = asking("id", &question, Path::new("/project"), false);
        assert_eq!(asked.map(|asked| options(asked).1.len()), count, "{question:?}");
    }
    assert_eq!(answer(&choice(2, false), "1"), Some(json!("c1")));
    for wrong in ["2", "c1", "", "-1"] {
        assert_eq!(answer(&choice(2, false), wrong), None, "{wrong}");
    }
}

#[test]
fn an_approval_offers_always_only_with_rules_and_hides_nothing() {
    use PermissionOptionKind::{AllowAlways, AllowOnce, RejectOnce};
    let rows: [(&[&str], &[PermissionOptionKind]); 2] =
        [(&[], &[AllowOnce, RejectOnce]), (&["bash(ls)"], &[AllowOnce, AllowAlways, RejectOnce])];
    for (rules, kinds) in rows {
        let question = approval("ls\u{202e}x", rules);
        let asked = asking("id", &question, Path::new("/project"), true).expect("a request");
        let (call, offered) = options(asked);
        let offered: Vec<PermissionOptionKind> = offered.iter().map(|option| option.kind).collect();
        assert_eq!(offered, kinds);
        // The character that would turn the text around is shown as what it is.
        let content = serde_json::to_string(&call.fields.content).expect("JSON");
        assert!(content.contains("ls") && !content.contains('\u{202e}'), "{content}");
    }
    let question = approval("ls", &[]);
    assert_eq!(answer(&question, "yes"), Some(json!("yes")));
    // Without rules, "always" is no answer; nor is what was never offered.
    assert_eq!((answer(&question, "always"), answer(&question, "maybe")), (None, None));
    assert!(refuses(&question, &json!("no")) && !refuses(&question, &json!("yes")));
    assert!(!refuses(&choice(2, false), &json!("no")));
}

/// The forms of questions, with the content that the editor returns.
#[test]
fn other_questions_are_forms_where_the_editor_has_them() {
    let form = question(
        &json!({ "kind": "form", "schema": { "type": "object", "properties": { "n": { "type": "integer" } } } }),
    );
    let rows = [
        (
            question(&json!({ "kind": "text" })),
            json!({ "type": "string" }),
            json!({ "answer": "Ada" }),
            json!("Ada"),
        ),
        (choice(10, false), json!({ "type": "string" }), json!({ "answer": "c3" }), json!("c3")),
        (choice(2, true), json!({ "type": "array" }), json!({ "answer": ["c1"] }), json!(["c1"])),
        (form, json!({ "type": "integer" }), json!({ "n": 3 }), json!({ "n": 3 })),
    ];
    for (question, kind, content, expected) in rows {
        let asked = asking("id", &question, Path::new("/project"), true);
        let Some(Asking::Form(schema, message)) = asked else { panic!("{question:?}: {asked:?}") };
        assert_eq!(message, "Which?");
        let schema = serde_json::to_value(schema).expect("JSON");
        let field =
            schema["properties"].as_object().and_then(|fields| fields.values().next()).expect("a field");
        assert_eq!(field["type"], kind["type"], "{schema}");
        let content = serde_json::from_value(content).expect("content");
        assert_eq!(filled(&question, content), Some(expected), "{question:?}");
        assert_eq!(filled(&question, None), None);
    }
    // What the protocol's forms cannot hold.
    let nested = json!({ "type": "object", "properties": { "a": { "type": "object", "properties": {} } } });
    for schema in [nested, json!({}), json!({ "type": "array" })] {
        let question = question(&json!({ "kind": "form", "schema": schema }));
        assert_eq!(asking("id", &question, Path::new("/project"), true), None, "{schema}");
    }
}

#[test]
fn words_are_answers_of_their_question() {
    let text = question(&json!({ "kind": "text" }));
    let form = question(&json!({ "kind": "form", "schema": { "type": "object" } }));
    let rows = [
        (&text, " Ada ", Some(json!("Ada"))),
        (&choice(12, false), "C3", Some(json!("c3"))),
        (&choice(2, false), "c7", None),
        (&choice(3, true), "- c0\n\nc2", Some(json!(["c0", "c2"]))),
        (&choice(3, true), "c0, 3", Some(json!(["c0", "c2"]))),
        (&choice(3, false), "2", Some(json!("c1"))),
        (&choice(3, true), "c0, c7", None),
        (&choice(3, true), "4", None),
        (&choice(3, true), ",", None),
        (&form, "{\"a\": 1}", Some(json!({ "a": 1 }))),
        (&form, "a", None),
    ];
    for (question, words, expected) in rows {
        assert_eq!(said(question, words), expected, "{words}");
    }
    assert!(in_words(&choice(2, true)).contains("2. c1\n"), "{}", in_words(&choice(2, true)));
    assert!(in_words(&form).contains("{\"type\":\"object\"}"), "{}", in_words(&form));
}

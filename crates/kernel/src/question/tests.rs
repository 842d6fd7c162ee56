//! Valid answers, the ends of questions, and the results of interrupted calls.

use serde_json::json;

use super::*;
use crate::entry::RunOutcome;
use crate::usage::{ContextUsage, Measured, Window, WindowSource};

fn entry(id: u64, kind: EntryKind) -> Entry {
    Entry { id: EntryId(id), parent: None, at_ms: 0, tokens: 0, reasoning_tokens: 0, origin: None, kind }
}

fn asked(call_id: &str, ordinal: u32, question: Question, expires_at_ms: Option<u64>) -> EntryKind {
    EntryKind::Question(Arc::new(AskedQuestion {
        run: EntryId(0),
        call_id: call_id.to_owned(),
        tool: "refund".to_owned(),
        ordinal,
        asker: Asker::Tool,
        question,
        expires_at_ms,
    }))
}

fn result(call_id: &str) -> EntryKind {
    let call = ToolCall { id: call_id.to_owned(), name: "refund".to_owned(), arguments: String::new() };
    EntryKind::message(Message::ToolResult(ToolResult::interrupted(&call)))
}

fn run_ended() -> EntryKind {
    let window = Window { tokens: None, source: WindowSource::Unknown };
    let context = ContextUsage::new(Measured::default(), window);
    EntryKind::RunEnded { run: EntryId(0), outcome: RunOutcome::Completed, context, bill: Box::default() }
}

fn fold(kinds: impl IntoIterator<Item = EntryKind>) -> Questions {
    let mut questions = Questions::default();
    for (id, kind) in (1..).zip(kinds) {
        questions.follow(&entry(id, kind));
    }
    questions
}

fn open(questions: &Questions) -> Vec<u64> {
    questions.open().map(|known| known.id.0).collect()
}

fn nothing_fits(_: &Value, _: &Value) -> Result<(), String> {
    Err("no form fits".to_owned())
}

#[test]
fn a_question_has_one_end() {
    let question = || Question::choice("Refund?", ["yes", "no"]);
    let mut questions = fold([asked("a", 0, question(), None), asked("b", 0, question(), Some(500))]);
    assert_eq!(open(&questions), [1, 2]);
    let answer = |questions: &Questions, id, text: &str, now_ms| {
        questions.answer(EntryId(id), GivenAnswer::from(text), now_ms, nothing_fits)
    };
    assert_eq!(answer(&questions, 7, "yes", 0), Err(AnswerError::Unknown));
    assert!(matches!(answer(&questions, 1, "maybe", 0), Err(AnswerError::Misfit(_))));
    let end = answer(&questions, 1, "yes", 0).expect("it fits");
    assert_eq!(end, QuestionEnd::Answered("yes".into()));
    questions.follow(&entry(3, EntryKind::QuestionEnded { question: EntryId(1), end: end.clone() }));
    assert_eq!(answer(&questions, 1, "no", 0), Err(AnswerError::Closed(end.clone())));
    // An end that comes after the first changes nothing.
    let second = EntryKind::QuestionEnded { question: EntryId(1), end: QuestionEnd::Withdrawn };
    questions.follow(&entry(4, second));
    assert_eq!(questions.find(EntryId(1)).and_then(|known| known.end.clone()), Some(end));
    assert_eq!((questions.expired(499), questions.expired(500)), (vec![], vec![EntryId(2)]));
    assert_eq!(answer(&questions, 2, "yes", 500), Err(AnswerError::Closed(QuestionEnd::Expired)));
    assert_eq!(questions.next_expiry_ms(), Some(500));
}

#[test]
fn a_question_ends_with_its_call_and_a_call_with_its_run() {
    let question = || Question::text("Why?");
    let questions = || fold([asked("a", 0, question(), None), asked("b", 0, question(), None)]);
    let table = [
        (result("a"), vec![1], vec![2]),
        (run_ended(), vec![1, 2], vec![]),
        (result("c"), vec![], vec![1, 2]),
    ];
    for (kind, withdrawn, left) in table {
        let mut questions = questions();
        let ended: Vec<u64> = questions.withdrawn_by(&kind).into_iter().map(|id| id.0).collect();
        assert_eq!(ended, withdrawn, "{kind:?}");
        questions.follow(&entry(9, kind));
        assert_eq!(open(&questions), left, "what the call asked is forgotten with it");
    }
}

#[test]
fn a_tool_may_have_begun_where_it_asked_or_where_that_is_recorded() {
    let by_hook = |call: &str| {
        let EntryKind::Question(asked) = asked(call, 0, Question::text("May it?"), None) else {
            unreachable!()
        };
        EntryKind::Question(Arc::new(AskedQuestion { asker: Asker::Hook, ..(*asked).clone() }))
    };
    let started = EntryKind::CallStarted { call_id: "b".to_owned() };
    let questions = fold([by_hook("a"), by_hook("b"), started, asked("c", 0, Question::text("Why?"), None)]);
    let begun: Vec<bool> = ["a", "b", "c", "d"].map(|call| questions.may_have_begun(call)).into();
    assert_eq!(begun, [false, true, true, false]);
}

#[test]
fn an_answer_that_could_not_be_read_back_is_refused() {
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let long = Value::from("x".repeat(BYTES_MAX));
    let questions =
        fold([asked("a", 0, Question::text("?").of_kind(QuestionKind::Form { schema: json!({}) }), None)]);
    for value in [deep, long] {
        let answered = questions.answer(EntryId(1), value.into(), 0, |_, _| Ok(()));
        assert!(matches!(answered, Err(AnswerError::Misfit(_))), "{answered:?}");
    }
}

#[test]
fn one_text_is_a_list_of_one_choice() {
    let several = Question::choices("Which?", ["a", "b"]);
    assert_eq!(several.accept("b".into(), nothing_fits), Ok(json!(["b"])));
    let answer = GivenAnswer::from(json!(["b"]));
    assert!(answer.is("b") && answer.choices() == ["b"] && answer.as_text().is_none());
}

#[test]
fn a_call_that_was_cut_off_tells_each_question_and_its_end() {
    let call = ToolCall { id: "a".to_owned(), name: "refund".to_owned(), arguments: String::new() };
    let ended = |question, end| EntryKind::QuestionEnded { question: EntryId(question), end };
    let questions = fold([
        asked("a", 0, Question::text("Why?"), None),
        ended(1, QuestionEnd::Answered("because".into())),
        asked("a", 1, Question::text("Since when?"), None),
        ended(3, QuestionEnd::Expired),
    ]);
    let result = cut_off(&call, questions.of_call("a"));
    assert_eq!(result.status, ToolStatus::Interrupted);
    let text = crate::message::blocks_text(&result.content);
    for part in ["Why?\nThe answer was: because", "Since when?\nNo answer in time."] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_question_that_cannot_be_asked_says_why() {
    let choices = |count: usize| Question::choice("Which?", (0..count).map(|n| n.to_string()));
    let mut refused = 0;
    for (question, reason) in [
        (Question::text(" \n"), Some("it has no text")),
        (Question::text("Why?"), None),
        (Question::choice("Which?", ["a", " "]), Some("\" \" is not one of the choices")),
        (Question::choice("Which?", ["a", "b", "a"]), Some("it offers \"a\" twice")),
        (choices(0), Some("it must offer 1 to 100 choices, and offers 0")),
        (choices(1), None),
        (choices(100), None),
        (choices(101), Some("and offers 101")),
        (Question::form::<Vec<String>>("Which?"), None),
    ] {
        let said = question.check().err();
        assert_eq!(said.is_some(), reason.is_some(), "{question:?}: {said:?}");
        assert!(said.unwrap_or_default().contains(reason.unwrap_or_default()), "{question:?}");
        refused += usize::from(reason.is_some());
    }
    assert_eq!(refused, 5);
    let around = serde_json::to_string(&Question::text("")).expect("it is JSON").len();
    let of_bytes = |bytes: usize| Question::text("x".repeat(bytes - around)).check();
    assert_eq!(of_bytes(BYTES_MAX), Ok(()));
    assert_eq!(
        of_bytes(BYTES_MAX + 1),
        Err(format!("it has {} bytes, and may have {BYTES_MAX}", BYTES_MAX + 1))
    );
}

#[test]
fn an_answer_fits_the_kind_of_its_question() {
    let (text, one, several) =
        (Question::text("?"), Question::choice("?", ["a", "b"]), Question::choices("?", ["a", "b"]));
    let form = Question::text("?").of_kind(QuestionKind::Form { schema: json!({ "type": "null" }) });
    for (question, value, taken) in [
        (&text, json!("x"), Ok(json!("x"))),
        (&text, json!(1), Err("it must be a text")),
        (&one, json!("a"), Ok(json!("a"))),
        (&one, json!("c"), Err("\"c\" is not one of the choices; the choices are \"a\", \"b\"")),
        (&one, json!(["a"]), Err("it must be one of the choices; the choices are \"a\", \"b\"")),
        (&several, json!(["b", "a"]), Ok(json!(["b", "a"]))),
        (&several, json!([]), Err("nothing is chosen; the choices are \"a\", \"b\"")),
        (&several, json!(["a", "b", "a"]), Err("\"a\" is chosen twice")),
        (&several, json!([1]), Err("it must be a list of choices; the choices are \"a\", \"b\"")),
        (&several, json!(1), Err("it must be a list of choices; the choices are \"a\", \"b\"")),
        (&form, json!(null), Err("no form fits")),
    ] {
        assert_eq!(question.accept(value.clone(), nothing_fits), taken.map_err(str::to_owned), "{value}");
    }
    let fits = |schema: &Value, value: &Value| {
        assert_eq!((schema, value), (&json!({ "type": "null" }), &json!(null)));
        Ok(())
    };
    assert_eq!(form.accept(json!(null), fits), Ok(json!(null)));
    // As long as it may be, quotes included.
    assert!(text.accept("x".repeat(BYTES_MAX - 2).into(), nothing_fits).is_ok());
    assert!(
        text.accept("x".repeat(BYTES_MAX - 1).into(), nothing_fits)
            .is_err_and(|said| said.contains("65537 bytes"))
    );
}

#[test]
fn what_a_question_and_an_answer_hold() {
    let question = Question::choice("four", ["a", "bcd"]).details("five5");
    assert_eq!(question.weight(), 4 + 5 + 4);
    assert_eq!(Question::text("four").weight(), 4);
    assert_eq!(Question::text("four").of_kind(QuestionKind::Form { schema: json!({}) }).weight(), 4 + 2);
    let later = question.clone().expires_in(Duration::from_secs(9));
    assert_eq!(later.expires_in, Some(Duration::from_secs(9)));
    assert!(question.is_same(&later) && !question.is_same(&question.clone().details("other")));
    assert_eq!(Question::from("four"), Question::text("four"));
    let form = Question::form::<bool>("May it?");
    assert!(matches!(&form.kind, QuestionKind::Form { schema } if schema["type"] == "boolean"), "{form:?}");

    let answer = GivenAnswer::from("yes".to_owned()).by("ada");
    assert_eq!((answer.weight(), answer.by.as_deref(), answer.as_text()), (5 + 3, Some("ada"), Some("yes")));
    assert_eq!((answer.to_string(), answer.choices()), ("yes".to_owned(), vec!["yes"]));
    assert!(answer.is("yes") && !answer.is("no"));
    let several = GivenAnswer::from(json!(["a", "b"]));
    assert!(!several.is("a") && several.choices() == ["a", "b"] && several.weight() == 9);
    let number = GivenAnswer::from(json!(7));
    assert!(!number.is("7") && number.choices().is_empty() && number.to_string() == "7");
    assert_eq!(number.parse::<u8>().ok(), Some(7));
    assert!(number.parse::<String>().is_err());
    let names =
        [QuestionEnd::Answered(number), QuestionEnd::Expired, QuestionEnd::Withdrawn].map(|end| end.as_str());
    assert_eq!(names, ["answered", "expired", "withdrawn"]);
}

#[test]
fn questions_are_known_until_their_call_has_a_result() {
    let question = || Question::text("Why?");
    let started = |call: &str| EntryKind::CallStarted { call_id: call.to_owned() };
    let mut questions =
        fold([asked("a", 0, question(), Some(900)), asked("b", 0, question(), Some(300)), started("c")]);
    assert_eq!(questions.next_expiry_ms(), Some(300));
    assert!(questions.has_asked("b") && !questions.has_asked("c") && !questions.is_empty());
    questions.follow(&entry(4, result("b")));
    assert!(!questions.has_asked("b") && questions.has_asked("a") && questions.may_have_begun("c"));
    assert_eq!(questions.next_expiry_ms(), Some(900));
    let end = |id| EntryKind::QuestionEnded { question: EntryId(id), end: QuestionEnd::Expired };
    questions.follow(&entry(5, end(7)));
    assert_eq!(open(&questions), [1], "an end of another question");
    questions.follow(&entry(6, result("c")));
    assert!(!questions.may_have_begun("c"), "it has its result");
    questions.follow(&entry(7, result("a")));
    assert!(questions.is_empty() && Questions::default().is_empty());
    let mut ended = fold([asked("a", 0, question(), None), started("c")]);
    ended.follow(&entry(3, run_ended()));
    assert_eq!(ended, Questions::default());
}

#[test]
fn a_question_without_an_end_was_not_answered() {
    let call = ToolCall { id: "a".to_owned(), name: "refund".to_owned(), arguments: String::new() };
    let questions =
        fold([asked("a", 0, Question::text("Why?"), None), asked("b", 0, Question::text("Other?"), None)]);
    let text = crate::message::blocks_text(&cut_off(&call, questions.of_call("a")).content);
    assert!(text.ends_with("The question was: Why?\nNobody answered.") && !text.contains("Other?"), "{text}");
}

#[test]
fn a_kind_of_a_newer_version_is_neither_asked_nor_answered() {
    let read: Question =
        serde_json::from_value(json!({ "text": "Where?", "kind": "place", "map": "m" })).expect("it is read");
    assert_eq!((read.text.as_str(), &read.kind), ("Where?", &QuestionKind::Unknown));
    let asker: Asker = serde_json::from_str("\"supervisor\"").expect("a newer asker is read");
    assert_eq!(asker, Asker::Unknown);
    assert_eq!(read.check(), Err("this version does not know its kind".to_owned()));
    assert!(read.accept(json!("here"), |_, _| Ok(())).is_err());
}

#[test]
fn answers_to_an_approval() {
    let mut with_rules = Approval::new("bash", json!({ "command": "git push" }));
    with_rules.rules = vec!["bash(git push *)".to_owned()];
    let words = |words: &str| Some(json!({ "no": words }));
    let rows = [
        (json!("yes"), Some(json!("yes"))),
        (json!(" Y "), Some(json!("yes"))),
        (json!("once"), Some(json!("yes"))),
        (json!("always"), Some(json!("always"))),
        (json!("NO"), Some(json!("no"))),
        (json!("no, use main"), words("use main")),
        (json!("No: use main"), words("use main")),
        (json!("no - use main "), words("use main")),
        (json!("no."), Some(json!("no"))),
        (json!({ "no": "use main" }), words("use main")),
        (json!({ "no": "" }), Some(json!("no"))),
        (json!("nope"), None),
        (json!("not yet"), None),
        (json!("yes please"), None),
        (json!(""), None),
        (json!(true), None),
        (json!(["yes"]), None),
        (json!({ "yes": "x" }), None),
        (json!({ "no": "x", "yes": "y" }), None),
    ];
    for (value, recorded) in rows {
        let question = Question::approval("Run it?", with_rules.clone());
        let accepted = question.accept(value.clone(), nothing_fits);
        assert_eq!(accepted.clone().ok(), recorded, "{value}: {accepted:?}");
        if let Some(recorded) = recorded {
            let approved = |value: &Value| GivenAnswer::from(value.clone()).approved();
            assert_eq!(approved(&value), approved(&recorded), "{value} is read as it is recorded");
            assert!(approved(&value).is_some());
        }
    }
    let without = Question::approval("Run it?", Approval::new("bash", json!({})));
    let refused = without.accept(json!("always"), nothing_fits).expect_err("no rule");
    assert!(refused.contains("yes, no"), "{refused}");
}

#[test]
fn an_approval_shows_a_call_whole_or_says_that_it_cannot() {
    let max = Approval::SHOWN_BYTES_MAX;
    // The size in JSON counts: `"` has two bytes there, and a control character six.
    type Repeated = (&'static str, usize);
    let rows: [(&str, usize, Option<Repeated>, bool); 8] = [
        ("x", max - 20, None, true),
        ("x", max, None, false),
        ("\"", max / 2 - 10, None, true),
        ("\"", max / 2, None, false),
        ("x", max, Some(("+", max - 2)), true),
        ("x", max, Some(("+", max)), false),
        ("x", 10, Some(("\u{1}", max / 6)), true),
        ("\u{1}", max / 6, Some(("\u{1}", max / 6)), false),
    ];
    for (text, count, preview, is_whole) in rows {
        let mut approval = Approval::new("write", json!({ "content": text.repeat(count) }));
        approval.set_preview(preview.map(|(text, count)| text.repeat(count)));
        assert_eq!(approval.is_whole(), is_whole, "{text:?} × {count}, {preview:?}");
        approval.parts = vec!["\u{1}".repeat(max / 12)];
        assert_eq!(Question::approval("Write it?", approval).check(), Ok(()), "{text:?} × {count}");
    }
    let mut approval = Approval::new("bash", json!({}));
    approval.parts = vec!["x".repeat(Approval::BYTES_MAX)];
    assert!(Question::approval("Run it?", approval).check().is_err());
}

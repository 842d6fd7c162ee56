//! The questions of tools: listed beside a program that works, answered once, and left to the program that asked.

use std::path::Path;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{Approval, EntryId, PendingQuestion};
use greenroom_simulator::{CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::{Value, json};

use super::screen::{Terminal, is_there};
use super::support::{Place, Ran, events};

/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks what it is to ask.
#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A program with a tool that asks, which is none of the binary's own.
struct Program {
    runtime: Runtime,
    tokio: tokio::runtime::Runtime,
    agent: Agent,
}

impl Program {
    fn new(place: &Place, question: Question) -> Self {
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let model =
            Simulator::new(SimulatorOptions::new(Function(
                |request: &SeenRequest, _: CallInfo| match request.messages.last() {
                    Some(last) if last.role() == "tool" => {
                        greenroom_simulator::Answer::text(format!("It says: {}", last.text()))
                    }
                    _ => greenroom_simulator::Answer::call("refund", &json!({})),
                },
            )));
        let starting = Runtime::builder().provider(model.provider()).data_dir(place.store()).start();
        let runtime = tokio.block_on(async { starting.await.unwrap() });
        let refund = tool("refund", move |_: Nothing, cx: ToolContext| {
            let question = question.clone();
            async move { Ok(format!("told {}", cx.ask(question).await?)) }
        });
        let agent = Agent::new("simulated").context_window(100_000).add_tool(refund.resumable());
        Self { runtime, tokio, agent }
    }

    /// Lets the session's tool ask.
    fn ask(&self, id: &str) -> PendingQuestion {
        self.tokio.block_on(async {
            let session = self.runtime.open(id, &self.agent).await.unwrap();
            session.prompt("Refund it.").once("order").start().await.unwrap().detach();
            let asked = async {
                loop {
                    if let Some(question) = session.questions().await.unwrap().pop() {
                        break question;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, asked).await.unwrap()
        })
    }

    /// Goes on with the session, and gives the reply that was waited for.
    fn reply(&self, id: &str) -> String {
        self.tokio.block_on(async {
            let session = self.runtime.open(id, &self.agent).await.unwrap();
            let reply = session.prompt("Refund it.").once("order");
            tokio::time::timeout(PATIENCE, reply).await.unwrap().unwrap().text
        })
    }

    fn end(self) {
        self.tokio.block_on(self.runtime.shutdown()).unwrap();
    }
}

pub(super) fn yes_or_no() -> Question {
    Question::choice("Refund 120 EUR?", ["yes", "no"]).details("Order 7;\nthe parcel came back.")
}

/// A session of a program that has ended, with an open question.
pub(super) fn asked_in(place: &Place, id: &str, question: Question) -> String {
    let program = Program::new(place, question);
    let asked = program.ask(id);
    program.end();
    asked.id.to_string()
}

/// What the program's tool is told, when it is started again.
fn told(place: &Place, id: &str, question: Question) -> String {
    let program = Program::new(place, question);
    let reply = program.reply(id);
    program.end();
    reply
}

fn check(ran: &Ran, code: i32, said: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    let words = if code == 0 { &ran.stdout } else { &ran.stderr };
    assert!(words.contains(said), "{said:?}: {ran:?}");
}

fn exists(path: &Path) -> bool {
    path.try_exists().unwrap()
}

#[test]
fn a_question_is_listed_answered_once_and_its_program_goes_on() {
    let place = Place::new();
    let id = asked_in(&place, "order-7", yes_or_no());
    let listed = place.run(&["questions"]);
    check(
        &listed,
        0,
        &format!(
            "order-7 {id}  refund\n  Refund 120 EUR?\n  Order 7;\n  the parcel came back.\n  one of: yes, no\n"
        ),
    );
    assert_eq!(place.run(&["questions", "--session", "order"]).stdout, listed.stdout);
    let line: Value = place.json(&["questions", "--json"]);
    assert_eq!((&line["session_id"], line["question_id"].to_string()), (&json!("order-7"), id.clone()));
    assert_eq!((&line["kind"], &line["choices"]), (&json!("choice"), &json!(["yes", "no"])), "{line}");

    check(&place.run(&["answer", "order-7", &id, "perhaps"]), 2, "the choices are \"yes\", \"no\"");
    check(&place.run(&["answer", "order-7", "99", "yes"]), 2, "has no question 99");
    check(&place.run(&["answer", "nobody", &id, "yes"]), 3, "nobody");
    assert_eq!(place.run(&["questions"]).stdout, listed.stdout, "what was refused changes nothing");

    check(&place.run(&["answer", "order", &id, "yes", "--by", "ada"]), 0, "Answered.");
    check(&place.run(&["questions"]), 0, "No open questions.");
    assert_eq!(place.run(&["questions", "--json"]).stdout, "");
    check(&place.run(&["answer", "order-7", &id, "no"]), 2, "yes");
    assert_eq!(told(&place, "order-7", yes_or_no()), "It says: told yes");
    check(&place.run(&["show", "order-7"]), 0, &format!("question {id} was answered by ada: yes"));
}

#[test]
fn texts_lists_and_forms_are_answered() {
    let schema =
        json!({ "type": "object", "properties": { "row": { "type": "integer" } }, "required": ["row"] });
    let mut form = Question::text("Which seat?");
    form.kind = greenroom::QuestionKind::Form { schema };
    let cases = [
        (Question::text("Why?"), "any text", "", "It broke.", "It says: told It broke."),
        (
            Question::choices("Which?", ["a", "b", "c"]),
            "some of, as a JSON list: a, b, c",
            "[\"d\"]",
            "[\"c\",\"a\"]",
            "[\"c\",\"a\"]",
        ),
        (form.clone(), "JSON that matches this schema", "seven", "{\"row\": 7}", "{\"row\":7}"),
        (form, "JSON that matches this schema", "{\"row\": \"x\"}", "{\"row\": 7}", "{\"row\":7}"),
    ];
    for (number, (question, wanted, wrong, right, reply)) in cases.into_iter().enumerate() {
        let (place, name) = (Place::new(), format!("s{number}"));
        let id = asked_in(&place, &name, question.clone());
        check(&place.run(&["questions"]), 0, wanted);
        if !wrong.is_empty() {
            check(&place.run(&["answer", &name, &id, wrong]), 2, "answer");
        }
        check(&place.run(&["answer", &name, &id, right]), 0, "Answered.");
        let said = told(&place, &name, question);
        assert!(said.contains(reply), "{said}");
    }
}

#[test]
fn questions_are_listed_beside_the_program_that_asks() {
    let place = Place::new();
    let program = Program::new(&place, yes_or_no());
    let id = program.ask("order-7").id.to_string();
    let listed = place.run(&["questions"]);
    check(&listed, 0, "Refund 120 EUR?");
    assert_eq!(listed.stderr, "", "{listed:?}");
    let refused = place.run(&["answer", "order-7", &id, "yes"]);
    check(&refused, 3, "give the answer to the program that uses the store");
    let session = program.tokio.block_on(program.runtime.session("order-7")).unwrap();
    let question = EntryId(id.parse().unwrap());
    program.tokio.block_on(session.answer(question, "yes")).unwrap();
    assert_eq!(program.reply("order-7"), "It says: told yes");
    check(&place.run(&["questions"]), 0, "No open questions.");
    program.end();
}

#[test]
fn a_session_that_waits_is_left_to_its_program() {
    let place = Place::new();
    let id = asked_in(&place, "order-7", yes_or_no());
    let entries = || place.json(&["sessions", "--json"])[0]["entries"].clone();
    let before = entries();
    for command in [
        &["run", "-p", "Go on.", "--session", "order-7", "--simulate"][..],
        &["chat", "--session", "order-7", "--simulate"],
        &["resume", "order-7", "--simulate"],
    ] {
        let ran = place.run_with(command, "yes\n");
        check(&ran, 5, "`greenroom questions` shows it, and `greenroom answer` answers it");
        assert_eq!((ran.stdout.as_str(), entries()), ("", before.clone()), "{command:?}");
    }
    let ran = place.run(&["run", "--json", "-p", "Go on.", "--session", "order-7", "--simulate"]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let last = events(&ran).pop().unwrap();
    assert_eq!((&last["type"], &last["session_id"]), (&json!("error"), &json!("order-7")), "{last}");
    check(&place.run(&["answer", "order-7", &id, "no"]), 0, "Answered.");
    // The answer is for the tool that asked, so the run still waits for its program.
    let before = entries();
    for command in [
        &["run", "-p", "Go on.", "--session", "order-7", "--simulate"][..],
        &["chat", "--session", "order-7", "--simulate"],
        &["resume", "order-7", "--simulate"],
    ] {
        let ran = place.run_with(command, "yes\n");
        check(&ran, 5, "waits for the program whose tool asked");
        assert_eq!((ran.stdout.as_str(), entries()), ("", before.clone()), "{command:?}");
    }
    assert_eq!(told(&place, "order-7", yes_or_no()), "It says: told no");
    // Then nothing waits any more.
    let ran = place.run(&["run", "-p", "Go on.", "--session", "order-7", "--simulate"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn where_nothing_is_stored_nothing_is_asked() {
    let place = Place::new();
    check(&place.run(&["questions"]), 0, "No open questions.");
    check(&place.run(&["questions", "--session", "order-7"]), 3, "`greenroom sessions` lists them");
    check(&place.run(&["answer", "order-7", "3", "yes"]), 3, "`greenroom sessions` lists them");
    assert!(!exists(&place.store()), "looking makes nothing");
}

/// An approval of a command with an invisible character.
fn approval() -> Question {
    let mut approval = Approval::new("bash", json!({ "command": "make\u{200b} clean\nrm -r target" }));
    approval.rules = vec!["bash(make *)".to_owned()];
    Question::approval("Run this command?", approval)
}

#[test]
fn what_is_approved_at_a_terminal_is_shown_and_confirmed() {
    // The answer with flags, the key that is pressed, and whether it is answered; an empty key: nothing is asked.
    let rows: &[(&[&str], &str, bool)] = &[
        (&["yes"], "y", true),
        (&["yes"], "n", false),
        (&["yes"], "x", false),
        (&["always"], "y", true),
        (&["always"], "n", false),
        (&["yes", "--yes"], "", true),
        (&["no, ask Ada"], "", true),
    ];
    if !is_there() {
        return;
    }
    for (answer, key, is_answered) in rows {
        let place = Place::new();
        let id = asked_in(&place, "order-7", approval());
        let arguments = [&["answer", "order-7", &*id], *answer].concat();
        let terminal = Terminal::run(&place, (90, 30), &arguments);
        if !key.is_empty() {
            terminal.shows("[y/N]");
            terminal.says(key);
        }
        let screen = terminal.shows("ended with");
        for part in ["Run this command?", "│ make\\u{200b} clean", "│ rm -r target", "bash(make *)"] {
            assert!(screen.contains(part), "{answer:?}: {part}: {screen}");
        }
        assert_eq!(screen.contains("[y/N]"), !key.is_empty(), "{answer:?}: {screen}");
        let (said, code) = if *is_answered { ("Answered.", "0") } else { ("Not answered.", "1") };
        assert!(
            screen.contains(said) && screen.contains(&format!("ended with {code}")),
            "{answer:?}: {screen}"
        );
        let is_open = place.run(&["questions"]).stdout.contains("order-7");
        assert_eq!(is_open, !is_answered, "{answer:?} {key}");
    }
    // A pipe is not asked, and reads nothing but the result.
    let place = Place::new();
    let id = asked_in(&place, "order-7", approval());
    let ran = place.run(&["answer", "order-7", &id, "yes"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    check(&ran, 0, "Answered.");
    assert!(!ran.stdout.contains("make"), "{ran:?}");
}

//! Questions of tools and hooks to people: asked, answered, expired, withdrawn, and their effect on waiting
//! work.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::EventKind;
use greenroom::prelude::*;
use greenroom::{
    AskError, EntryId, EntryKind, GivenAnswer, PendingQuestion, QuestionEnd, RuntimeBuilder, Subscription,
};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator};
use greenroom_store::Engine;
use greenroom_store::faults::{ENOSPC, Fault, FaultyFiles, MemoryFiles};
use greenroom_store::files::{Files, OpenMode};
use serde_json::{Value, json};

use crate::support::{agent, builder, drain, reopened, runtime, simulator, store};

mod approvals;
mod asleep;
mod hooks;
mod killed;
mod restarts;

/// Pays an order back.
#[derive(Deserialize, JsonSchema)]
struct Refund {
    /// How much, in euros.
    euros: u32,
}

/// The visible effects: the keys of the calls that took effect, in order.
#[derive(Clone, Default)]
struct Effects(Arc<Mutex<Vec<String>>>);

impl Effects {
    fn happen(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_owned());
    }

    fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Asks, and then refunds if the answer is yes.
async fn refund(refund: Refund, cx: ToolContext, effects: Effects) -> Result<String, ToolError> {
    let question = Question::choice(format!("Refund {} EUR?", refund.euros), ["yes", "no"]);
    let answer = cx.ask(question).await?;
    if answer.is("yes") {
        effects.happen(cx.call_key());
        return Ok("refunded".to_owned());
    }
    Ok("not approved".to_owned())
}

fn refunds(effects: &Effects) -> greenroom::FunctionTool {
    let effects = effects.clone();
    tool("refund", move |args: Refund, cx: ToolContext| refund(args, cx, effects.clone()))
}

/// Returns a model that calls `refund` for each new prompt, and reports the result.
fn cashier() -> Simulator {
    simulator(
        Function(|request: &SeenRequest, _: CallInfo| match request.messages.last() {
            Some(last) if last.role() == "tool" => Said::text(format!("It says: {}", last.text())),
            _ => Said::call("refund", &json!({ "euros": 120 })),
        }),
        100_000,
    )
}

/// Returns the open question of this session, as soon as it is asked.
async fn asked(session: &SessionHandle) -> PendingQuestion {
    for _ in 0..10_000 {
        if let Some(question) = session.questions().await.unwrap().pop() {
            return question;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is asked in {}", session.id());
}

/// Returns the ends of questions in the log. Each question has at most one.
async fn ends(runtime: &Runtime, session: &str) -> Vec<QuestionEnd> {
    let mut questions = Vec::new();
    let mut ends = Vec::new();
    for entry in runtime.entries(session, EntryId(0)).await.unwrap() {
        match entry.kind {
            EntryKind::Question(_) => questions.push(entry.id),
            EntryKind::QuestionEnded { question, end } => {
                assert!(questions.contains(&question), "{question} was never asked, or ended twice");
                questions.retain(|open| *open != question);
                ends.push(end);
            }
            _ => {}
        }
    }
    let head = runtime.engine().head(session).await.unwrap().unwrap();
    assert_eq!(head.questions, questions, "the head knows what is open");
    ends
}

/// Where sessions are kept over restarts.
struct Home(Mutex<Arc<dyn Engine>>);

impl Home {
    fn new() -> Self {
        Self(Mutex::new(store()))
    }

    /// A shutdown closes a store for good, so the next runtime gets a copy.
    fn builder(&self, model: &Simulator) -> RuntimeBuilder {
        let mut store = self.0.lock().unwrap();
        *store = reopened(&store);
        builder(model).engine(store.clone())
    }
}

fn started(session: &SessionHandle, text: &'static str) -> tokio::task::JoinHandle<Result<Reply>> {
    let session = session.clone();
    tokio::spawn(async move { session.prompt(text).await })
}

#[tokio::test(start_paused = true)]
async fn a_tool_asks_and_goes_on_with_the_answer() {
    let (model, effects) = (cashier(), Effects::default());
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000).add_tool(refunds(&effects))).await.unwrap();
    runtime.open("calm", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    let reply = started(&session, "refund it");
    let question = asked(&session).await;
    assert_eq!((question.question.text.as_str(), question.tool.as_str()), ("Refund 120 EUR?", "refund"));
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.questions), (Status::Waiting, 1));
    let listed = runtime.questions().await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&question));
    let sessions = runtime.sessions().with_questions().await.unwrap();
    assert_eq!(sessions.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), ["s"]);

    let misfit = session.answer(question.id, "perhaps").await.unwrap_err();
    assert!(matches!(misfit, Error::AnswerMisfit { .. }), "{misfit:?}");
    assert_eq!(
        misfit.to_string(),
        format!(
            "invalid answer to question {} of session s: \"perhaps\" is not one of the choices; the choices are \
             \"yes\", \"no\"",
            question.id
        )
    );
    assert_eq!(session.questions().await.unwrap().len(), 1, "it stays open");
    assert!(matches!(session.answer(EntryId(0), "yes").await, Err(Error::NoQuestion { .. })));
    assert!(matches!(session.answer(EntryId(99), "yes").await, Err(Error::NoQuestion { .. })));

    session.answer(question.id, GivenAnswer::from("yes").by("ada")).await.unwrap();
    let again = session.answer(question.id, "yes").await.unwrap_err();
    let Error::QuestionClosed { .. } = &again else { panic!("{again:?}") };
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: refunded");
    let late = session.answer(question.id, "no").await.unwrap_err();
    assert_eq!(
        late.to_string(),
        format!("question {} of session s is closed: it was answered with \"yes\"", question.id)
    );
    assert_eq!(effects.seen().len(), 1);
    assert_eq!(session.state().await.unwrap().status, Status::Idle);
    assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Answered(GivenAnswer::from("yes").by("ada"))]);
    assert_eq!(runtime.questions().await.unwrap(), []);

    let told: Vec<String> = question_events(&mut events);
    assert_eq!(told, ["asked Refund 120 EUR?", "answered yes"]);
    model.assert_clean();
}

fn question_events(events: &mut Subscription) -> Vec<String> {
    let told = |event: &Arc<Event>| match &event.kind {
        EventKind::QuestionAsked { question, .. } => Some(format!("asked {}", question.text)),
        EventKind::QuestionEnded { end: QuestionEnd::Answered(answer), .. } => {
            Some(format!("answered {answer}"))
        }
        EventKind::QuestionEnded { end, .. } => Some(end.as_str().to_owned()),
        _ => None,
    };
    drain(events).iter().filter_map(told).collect()
}

/// Which seats.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Seats {
    count: u8,
    by_the_window: bool,
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_question_takes_what_fits_and_refuses_the_rest() {
    let table: Vec<(Question, Vec<Value>, Value)> = vec![
        (Question::text("Why?"), vec![json!(1), json!(null), json!(["x"])], json!("because")),
        (
            Question::choice("Which?", ["a", "b"]),
            vec![json!("c"), json!("A"), json!(""), json!(["a"]), json!(true)],
            json!("b"),
        ),
        (
            Question::choices("Which ones?", ["a", "b", "c"]),
            vec![json!([]), json!(["a", "d"]), json!(["a", "a"]), json!([1]), json!({ "a": 1 })],
            json!(["c", "a"]),
        ),
        (
            Question::form::<Seats>("Which seats?"),
            vec![json!({ "count": 300, "by_the_window": true }), json!({ "count": 1 }), json!("two")],
            json!({ "count": 2, "by_the_window": false }),
        ),
    ];
    let mut refused = 0;
    for (question, misfits, fits) in table {
        let model = cashier();
        let runtime = runtime(&model).await;
        let own = question.clone();
        let agent = agent(100_000).tool("refund", move |_: Refund, cx: ToolContext| {
            let question = own.clone();
            async move { Ok(cx.ask(question).await?.value) }
        });
        let session = runtime.open("s", &agent).await.unwrap();
        let reply = started(&session, "ask");
        let pending = asked(&session).await;
        assert_eq!(pending.question, question);
        for misfit in misfits {
            let error = session.answer(pending.id, misfit.clone()).await.unwrap_err();
            assert!(matches!(error, Error::AnswerMisfit { .. }), "{misfit}: {error:?}");
            refused += 1;
        }
        session.answer(pending.id, fits.clone()).await.unwrap();
        let said = fits.as_str().map_or_else(|| fits.to_string(), str::to_owned);
        assert_eq!(reply.await.unwrap().unwrap().text, format!("It says: {said}"));
    }
    assert_eq!(refused, 16);
}

#[tokio::test(start_paused = true)]
async fn a_form_gives_a_value_of_its_type() {
    let model = cashier();
    let runtime = runtime(&model).await;
    let agent = agent(100_000).tool("refund", |_: Refund, cx: ToolContext| async move {
        let seats: Seats = cx.ask_as("Which seats?").await?;
        Ok(format!("{} seats", seats.count))
    });
    let session = runtime.open("s", &agent).await.unwrap();
    let reply = started(&session, "ask");
    let pending = asked(&session).await;
    session.answer(pending.id, json!({ "count": 2, "by_the_window": true })).await.unwrap();
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: 2 seats");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_is_told_to_the_tool_and_nobody_else() {
    let many = (0..101).map(|number| number.to_string());
    let wrong = [
        Question::text("  "),
        Question::choice("?", [""; 0]),
        Question::choice("?", ["a", "a"]),
        Question::choices("?", many),
        Question::text("x".repeat(70_000)),
    ];
    let count = wrong.len();
    let model = cashier();
    let runtime = runtime(&model).await;
    let (told, wrong) = (Arc::new(Mutex::new(Vec::new())), Arc::new(wrong));
    let noted = Arc::clone(&told);
    let agent = agent(100_000).tool("refund", move |_: Refund, cx: ToolContext| {
        let (noted, wrong) = (Arc::clone(&noted), Arc::clone(&wrong));
        async move {
            for question in wrong.iter() {
                let refused = cx.ask(question.clone()).await.unwrap_err();
                noted.lock().unwrap().push(refused);
            }
            Ok("done")
        }
    });
    let session = runtime.open("s", &agent).await.unwrap();
    session.prompt("ask").await.unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), count);
    assert!(told.iter().all(|error| matches!(error, AskError::Invalid(_))), "{told:?}");
    assert_eq!(ends(&runtime, "s").await, []);
}

/// A question expires while nothing can be recorded: recording is retried from time to time, not
/// continuously.
#[tokio::test(start_paused = true)]
async fn a_question_expires_when_the_disk_works_again() {
    const TRIES_MAX: u32 = 4;
    let model = cashier();
    let disk = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let store = greenroom_store::Store::memory_on(disk.open(Path::new("disk"), OpenMode::Create).unwrap());
    let tries = Arc::new(AtomicU32::new(0));
    let tried = Arc::clone(&tries);
    let probe = move |_: &str, step: &'static str| {
        let is_try = step == "session/expire_questions";
        assert!(!is_try || tried.fetch_add(1, Ordering::SeqCst) < TRIES_MAX, "it is tried without a pause");
    };
    let runtime = builder(&model).store(store).probe(probe).start().await.unwrap();
    let agent = agent(100_000).tool("refund", |_: Refund, cx: ToolContext| async move {
        let question = Question::text("Why?").expires_in(Duration::from_secs(3600));
        match cx.ask(question).await {
            Err(AskError::Expired) => Ok("nobody was there".to_owned()),
            other => Ok(format!("{other:?}")),
        }
    });
    let session = runtime.open("s", &agent).await.unwrap();
    let run = session.prompt("ask").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3000)).await;
    disk.set(Fault::FailFrom { at: 0, errno: ENOSPC });
    tokio::time::sleep(Duration::from_secs(680)).await;
    disk.set(Fault::None);
    assert_eq!(run.reply().await.unwrap().text, "It says: nobody was there");
    assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Expired]);
    assert_eq!(tries.load(Ordering::SeqCst), TRIES_MAX);
}

#[tokio::test(start_paused = true)]
async fn nobody_answers_in_time() {
    let model = cashier();
    let runtime = runtime(&model).await;
    let agent = agent(100_000).tool("refund", |_: Refund, cx: ToolContext| async move {
        let question = Question::text("Why?").expires_in(Duration::from_secs(3600));
        match cx.ask(question).await {
            Err(AskError::Expired) => Ok("nobody was there".to_owned()),
            other => Ok(format!("{other:?}")),
        }
    });
    let session = runtime.open("s", &agent).await.unwrap();
    let mut events = session.subscribe();
    let began = tokio::time::Instant::now();
    let reply = session.prompt("ask").await.unwrap();
    assert_eq!(reply.text, "It says: nobody was there");
    assert_eq!(began.elapsed().as_secs(), 3600);
    assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Expired]);
    assert_eq!(question_events(&mut events), ["asked Why?", "expired"]);
    let id = EntryId(
        runtime
            .entries("s", EntryId(0))
            .await
            .unwrap()
            .iter()
            .position(|entry| matches!(entry.kind, EntryKind::Question(_)))
            .unwrap() as u64,
    );
    assert!(matches!(session.answer(id, "late").await, Err(Error::QuestionClosed { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_abort_withdraws_what_is_asked_and_the_tool_hears_of_it() {
    let (model, heard) = (cashier(), Arc::new(Mutex::new(None)));
    let runtime = runtime(&model).await;
    let noted = Arc::clone(&heard);
    let agent = agent(100_000).tool("refund", move |_: Refund, cx: ToolContext| {
        let noted = Arc::clone(&noted);
        async move {
            *noted.lock().unwrap() = Some(cx.ask("Why?").await);
            Ok("done")
        }
    });
    let session = runtime.open("s", &agent).await.unwrap();
    let reply = started(&session, "ask");
    let question = asked(&session).await;
    session.abort();
    assert!(matches!(reply.await.unwrap(), Err(Error::Aborted)));
    assert_eq!(*heard.lock().unwrap(), Some(Err(AskError::Withdrawn)));
    assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Withdrawn]);
    assert!(matches!(session.answer(question.id, "late").await, Err(Error::QuestionClosed { .. })));
    assert_eq!(session.state().await.unwrap().status, Status::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_without_its_answer_withdraws_the_question() {
    let model = cashier();
    let runtime = runtime(&model).await;
    let agent = agent(100_000).tool("refund", |_: Refund, cx: ToolContext| async move {
        let waited = tokio::time::timeout(Duration::from_secs(60), cx.ask("Why?")).await;
        Ok(if waited.is_err() { "gave up" } else { "answered" })
    });
    let session = runtime.open("s", &agent).await.unwrap();
    assert_eq!(session.prompt("ask").await.unwrap().text, "It says: gave up");
    assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Withdrawn]);
    assert_eq!(runtime.questions().await.unwrap(), []);
}

/// A tool may hand its context to a task that outlives the call.
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_in_the_name_of_a_call_that_is_over() {
    let model = cashier();
    let (give, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let keeps = tool("refund", move |_: Refund, cx: ToolContext| {
        let give = give.clone();
        async move {
            let _ = give.send(cx);
            Ok("done")
        }
    });
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000).add_tool(keeps)).await.unwrap();
    for _ in 0..2 {
        session.prompt("refund it").await.unwrap();
        let cx = kept.recv().await.unwrap();
        let late = tokio::time::timeout(Duration::from_secs(1), cx.ask(Question::text("Now?"))).await;
        assert_eq!(late.expect("it is answered"), Err(AskError::Withdrawn));
    }
    assert_eq!(ends(&runtime, "s").await, [], "nothing of it is in the log");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_person_counts_for_no_time_limit() {
    let model = cashier();
    let runtime = runtime(&model).await;
    let slow = |seconds: u64| {
        agent(100_000).tool_timeout(Duration::from_secs(10)).run_timeout(Some(Duration::from_secs(20))).tool(
            "refund",
            move |_: Refund, cx: ToolContext| async move {
                cx.ask("Why?").await?;
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok("done")
            },
        )
    };
    // Within the limits, and beyond them.
    for (name, seconds, said) in [("quick", 9, "It says: done"), ("slow", 11, "stopped after 10s")] {
        let session = runtime.open(name, &slow(seconds)).await.unwrap();
        let reply = started(&session, "ask");
        let question = asked(&session).await;
        tokio::time::sleep(Duration::from_secs(7 * 24 * 3600)).await;
        session.answer(question.id, "because").await.unwrap();
        let reply = reply.await.unwrap().unwrap().text;
        assert!(reply.contains(said), "{reply}");
    }
    // The run's own limit still applies.
    let limited = agent(100_000).run_timeout(Some(Duration::from_secs(20))).tool(
        "refund",
        |_: Refund, cx: ToolContext| async move {
            cx.ask("Why?").await?;
            tokio::time::sleep(Duration::from_secs(21)).await;
            Ok("done")
        },
    );
    let session = runtime.open("run", &limited).await.unwrap();
    let reply = started(&session, "ask");
    let question = asked(&session).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    session.answer(question.id, "because").await.unwrap();
    let ended = reply.await.unwrap();
    assert!(matches!(ended, Err(Error::Stopped { .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn prompts_and_steers_wait_for_the_answer_too() {
    let (model, effects) = (cashier(), Effects::default());
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000).add_tool(refunds(&effects))).await.unwrap();
    let first = started(&session, "one");
    let question = asked(&session).await;
    let second = started(&session, "two");
    let steer = session.steer("by the way").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.waiting, state.questions), (Status::Waiting, 2, 1));
    session.answer(question.id, "no").await.unwrap();
    // The steer is a new prompt to this model, which asks again.
    let question = asked(&session).await;
    session.answer(question.id, "no").await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().text, "It says: not approved");
    steer.reply().await.unwrap();
    let question = asked(&session).await;
    session.answer(question.id, "no").await.unwrap();
    second.await.unwrap().unwrap();
    let users: Vec<String> = session
        .context()
        .await
        .unwrap()
        .iter()
        .filter(|message| message.role() == "user")
        .map(|message| message.text())
        .collect();
    assert_eq!(users, ["one", "by the way", "two"]);
    assert_eq!(effects.seen(), [""; 0]);
    model.assert_clean();
}

/// Read-only calls run concurrently, and so do their questions; answers may come in any order.
#[tokio::test(start_paused = true)]
async fn several_questions_at_once_are_told_apart() {
    let model = simulator(
        Function(|request: &SeenRequest, _: CallInfo| match request.messages.last() {
            Some(last) if last.role() == "tool" => {
                let results = request.messages.iter().filter(|message| message.role() == "tool");
                let mut results: Vec<String> = results.map(|message| message.text()).collect();
                results.sort();
                Said::text(results.join(" "))
            }
            _ => Said::call("look", &json!({ "euros": 1 })).and_call("look", &json!({ "euros": 2 })),
        }),
        100_000,
    );
    let runtime = runtime(&model).await;
    let look = tool("look", |args: Refund, cx: ToolContext| async move {
        let ask = |part: &'static str| cx.ask(format!("{} {part}?", args.euros));
        let (left, right) = tokio::join!(ask("left"), ask("right"));
        Ok(format!("{}:{}/{}", args.euros, left?, right?))
    });
    let session = runtime.open("s", &agent(100_000).add_tool(look.read_only())).await.unwrap();
    let reply = started(&session, "look");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut questions = session.questions().await.unwrap();
    assert_eq!(questions.len(), 4);
    questions.reverse();
    for question in questions {
        let text = question.question.text.trim_end_matches('?').replace(' ', "-");
        session.answer(question.id, text).await.unwrap();
    }
    assert_eq!(reply.await.unwrap().unwrap().text, "1:1-left/1-right 2:2-left/2-right");
}

//! A run left by its process (waiting for a person, or interrupted) continues only with an equivalent agent.

use greenroom::Question;
use greenroom_tools::{ToolContext, tool};

use super::*;

/// The owners of the tools that did something.
type Done = Arc<Mutex<Vec<&'static str>>>;

/// Returns an agent whose tool asks a person, and then does something. The model answers when that is done.
fn asking(name: &'static str, done: &Done) -> Agent {
    let runs = Function(move |request: &SeenRequest, _: CallInfo| {
        match request.messages.last().map(|last| (last.role(), last.text())) {
            Some(("user", text)) if text == "ask" => Said::call("deploy", &json!({})),
            Some((role, text)) => Said::text(format!("{name}, after {role} {text}")),
            None => Said::text("nobody said anything"),
        }
    });
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 100_000);
    let done = Arc::clone(done);
    let deploy = tool("deploy", move |_: Nothing, context: ToolContext| {
        let done = Arc::clone(&done);
        async move {
            let answer = context.ask(Question::text("Really?")).await?.value;
            done.lock().unwrap().push(name);
            Ok(answer.as_str().unwrap_or_default().to_owned())
        }
    });
    let agent = agent(100_000).own_provider(&SharedProvider::new(model.provider()));
    agent.add_tool(deploy.resumable()).fingerprint(name)
}

async fn runtime(dir: &tempfile::TempDir) -> Runtime {
    companions().1.data_dir(dir.path()).start().await.unwrap()
}

async fn status(session: &SessionHandle) -> Status {
    session.state().await.unwrap().status
}

/// Returns a store in which her run waits for the answer to a question.
async fn left_asking(done: &Done) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let runtime = runtime(&dir).await;
    let hers = runtime.join("plan", asking("ada", done)).await.unwrap();
    let run = hers.prompt("ask").start().await.unwrap();
    while hers.questions().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    runtime.shutdown().await.unwrap();
    drop(run);
    dir
}

#[tokio::test]
async fn one_that_waits_for_a_person_never_goes_on_with_the_tools_of_another() {
    let done = Done::default();
    for order in ["he comes first", "he brings none", "both are there"] {
        let dir = left_asking(&done).await;
        let runtime = runtime(&dir).await;
        let his = match order {
            "he brings none" => Agent::clone(&Person::new("bob").agent),
            _ => asking("bob", &done),
        };
        let his = runtime.join("plan", his).await.unwrap();
        assert_eq!(status(&his).await, Status::Waiting, "{order}");
        // Answering it begins nothing of his; neither does his prompt, which waits behind her run.
        let question = his.questions().await.unwrap()[0].id;
        let early = (order != "both are there").then_some("yes");
        if let Some(answer) = early {
            his.answer(question, answer).await.unwrap();
        }
        let said = his.prompt("mine").start().await.unwrap();
        assert!(matches!(his.resume().await, Err(Error::HeldBack { waiting: 0, .. })), "{order}");
        let compacted = his.compact(CompactOptions::default()).await;
        assert!(matches!(compacted, Err(Error::NotIdle { .. })), "{order}: {compacted:?}");
        assert_eq!((status(&his).await, his.state().await.unwrap().waiting), (Status::Waiting, 1), "{order}");
        assert!(done.lock().unwrap().is_empty(), "{order}");
        // With her it continues, and then with his prompt.
        let hers = runtime.join("plan", asking("ada", &done)).await.unwrap();
        if early.is_none() {
            hers.answer(question, "yes").await.unwrap();
        }
        let reply = said.reply().await.unwrap();
        let of_his = if order == "he brings none" { "bob is done" } else { "bob, after user mine" };
        assert_eq!(reply.text, of_his, "{order}");
        assert_eq!(done.lock().unwrap().drain(..).collect::<Vec<_>>(), ["ada"], "{order}");
        let messages = hers.context().await.unwrap();
        let told: Vec<String> = messages.iter().map(|message| message.text()).collect();
        assert!(told.iter().any(|text| text == "ada, after tool yes"), "{order}: {told:?}");
        assert_eq!(status(&hers).await, Status::Idle, "{order}");
        runtime.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn one_that_waits_for_a_person_can_be_aborted_by_another_and_is_left_as_it_is_else() {
    let done = Done::default();
    let dir = left_asking(&done).await;
    // Opening it and leaving again changes nothing.
    for _ in 0..2 {
        let runtime = runtime(&dir).await;
        let his = runtime.join("plan", asking("bob", &done)).await.unwrap();
        assert_eq!(his.questions().await.unwrap().len(), 1);
        runtime.shutdown().await.unwrap();
    }
    let runtime = runtime(&dir).await;
    let his = runtime.join("plan", asking("bob", &done)).await.unwrap();
    let said = his.prompt("mine").start().await.unwrap();
    his.abort();
    assert_eq!(said.reply().await.unwrap().text, "bob, after user mine");
    let state = his.state().await.unwrap();
    assert_eq!((state.status, state.questions), (Status::Idle, 0));
    // Her run is over for her, too.
    let hers = runtime.join("plan", asking("ada", &done)).await.unwrap();
    assert!(matches!(hers.resume().await, Err(Error::NothingToResume { .. })));
    assert!(done.lock().unwrap().is_empty());
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn one_that_waits_for_a_person_is_taken_up_by_its_own() {
    let done = Done::default();
    let dir = left_asking(&done).await;
    let runtime = runtime(&dir).await;
    let _his = runtime.join("plan", asking("bob", &done)).await.unwrap();
    // She resumes it on an existing handle.
    let hers = runtime.session("plan").await.unwrap().with_agent(asking("ada", &done));
    let resumed = hers.resume().start().await.unwrap();
    let question = hers.questions().await.unwrap()[0].id;
    hers.answer(question, "yes").await.unwrap();
    assert_eq!(resumed.reply().await.unwrap().text, "ada, after tool yes");
    assert_eq!(*done.lock().unwrap(), ["ada"]);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn one_that_was_cut_off_is_gone_on_with_by_its_own() {
    let (dir, ada) = left_waiting(Some("hers")).await;
    ada.release();
    let runtime = runtime(&dir).await;
    let bob = Person::new("bob");
    let hers = runtime.join("plan", Arc::clone(&ada.agent)).await.unwrap();
    assert_eq!(hers.clear_inbox().await.unwrap(), 2);
    for his in [Agent::clone(&bob.agent).fingerprint("his"), Agent::clone(&bob.agent)] {
        let his = runtime.join("plan", his).await.unwrap();
        assert!(his.state().await.unwrap().is_unanswered);
        let refused = his.resume().await;
        assert!(matches!(refused, Err(Error::HeldBack { waiting: 0, .. })), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("a new prompt is answered with yours"));
    }
    assert_eq!(bob.model.calls(), 0);
    let asked = ada.model.calls();
    assert_eq!(hers.resume().await.unwrap().text, "ada is done");
    assert!(ada.model.calls() > asked);
    runtime.shutdown().await.unwrap();
}

/// The same person's program, without the tool that asked: it would lose the answer.
#[tokio::test]
async fn one_that_waits_for_a_person_waits_for_the_tool_that_asked() {
    let done = Done::default();
    let dir = left_asking(&done).await;
    let runtime = runtime(&dir).await;
    let bare = Agent::clone(&Person::new("eve").agent).fingerprint("ada");
    let without = runtime.join("plan", bare).await.unwrap();
    let question = without.questions().await.unwrap()[0].id;
    without.answer(question, "yes").await.unwrap();
    let state = without.state().await.unwrap();
    assert_eq!((state.status, state.is_held_back, state.questions), (Status::Waiting, true, 0));
    assert_eq!(state.waiting_tools, ["deploy"]);
    assert!(matches!(without.resume().await, Err(Error::HeldBack { .. })));
    let hers = runtime.join("plan", asking("ada", &done)).await.unwrap();
    while status(&hers).await != Status::Idle {
        tokio::task::yield_now().await;
    }
    assert_eq!(*done.lock().unwrap(), ["ada"]);
    runtime.shutdown().await.unwrap();
}

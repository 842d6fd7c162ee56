//! Questions that outlive those that wait for them: the process, the runtime, the session's actor, its agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{
    EntryId, EntryKind, FunctionTool, Message, PendingQuestion, QuestionEnd, RunOutcome, ToolStatus,
};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator};
use serde_json::json;

use super::{Effects, Home, Refund, asked, cashier, ends, refunds, started};
use crate::support::{names, quiet_injected_panics, simulator};

/// Without a time limit: while the test waits for a disk, the paused clock advances.
fn agent(window: u64) -> Agent {
    crate::support::agent(window).run_timeout(None)
}

/// What interrupts the wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cut {
    /// The runtime is dropped without a shutdown, as if its process had died.
    Dropped,
    /// The runtime is shut down cleanly.
    Shutdown,
    /// The session is closed cleanly, and its runtime continues.
    Closed,
    /// The session's actor dies.
    SessionDies,
    /// The agent dies.
    AgentDies,
}

pub(super) const CUTS: [Cut; 5] =
    [Cut::Dropped, Cut::Shutdown, Cut::Closed, Cut::SessionDies, Cut::AgentDies];

/// A runtime over a store, whose session's actor or agent dies on command.
pub(super) struct World {
    pub(super) runtime: Runtime,
    pub(super) session: SessionHandle,
    kills: [Arc<AtomicBool>; 2],
}

impl World {
    pub(super) async fn start(home: &Home, model: &Simulator, agent: &Arc<Agent>) -> Self {
        let kills: [Arc<AtomicBool>; 2] = std::array::from_fn(|_| Arc::default());
        let [session, of_agent] = kills.clone();
        let runtime = home
            .builder(model)
            .probe(move |_, at| {
                let dies = at == "session/state" && session.swap(false, Ordering::Relaxed);
                assert!(!dies, "injected in the session");
                let dies = at == "agent/broadcast" && of_agent.swap(false, Ordering::Relaxed);
                assert!(!dies, "injected in the agent");
            })
            .start()
            .await
            .unwrap();
        let session = runtime.open("s", Arc::clone(agent)).await.unwrap();
        Self { runtime, session, kills }
    }

    /// Interrupts the current work, and returns the session as it is reached afterwards.
    pub(super) async fn cut(self, cut: Cut, home: &Home, model: &Simulator, agent: &Arc<Agent>) -> Self {
        match cut {
            Cut::Dropped | Cut::Shutdown => {
                let Self { runtime, .. } = self;
                if cut == Cut::Shutdown {
                    runtime.shutdown().await.unwrap();
                } else {
                    drop(runtime);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                Self::start(home, model, agent).await
            }
            Cut::Closed => {
                self.runtime.close("s").await.unwrap();
                self.runtime.open("s", Arc::clone(agent)).await.unwrap();
                self
            }
            Cut::SessionDies => {
                self.kills[0].store(true, Ordering::Relaxed);
                let _ = self.session.state().await;
                tokio::time::sleep(Duration::from_secs(5)).await;
                self
            }
            Cut::AgentDies => {
                self.kills[1].store(true, Ordering::Relaxed);
                self.session.set_title("struck").await.unwrap();
                tokio::time::sleep(Duration::from_secs(5)).await;
                self
            }
        }
    }

    pub(super) async fn until_idle(&self) -> String {
        for _ in 0..100_000 {
            // What has just been sent may still be on its way to the store.
            tokio::time::sleep(Duration::from_millis(50)).await;
            if self.session.state().await.unwrap().status == Status::Idle {
                return self.session.context().await.unwrap().last().unwrap().text();
            }
        }
        panic!("it waits for ever");
    }

    /// Returns the outcomes of the session's runs, and the statuses of the results of its calls.
    async fn told(&self) -> (Vec<RunOutcome>, Vec<ToolStatus>) {
        let (mut outcomes, mut statuses) = (Vec::new(), Vec::new());
        for entry in self.runtime.entries("s", EntryId(0)).await.unwrap() {
            match &entry.kind {
                EntryKind::RunEnded { outcome, .. } => outcomes.push(outcome.clone()),
                EntryKind::Message { message, .. } => {
                    if let Message::ToolResult(result) = &**message {
                        statuses.push(result.status);
                    }
                }
                _ => {}
            }
        }
        (outcomes, statuses)
    }
}

fn resumable(effects: &Effects) -> FunctionTool {
    refunds(effects).resumable()
}

/// Prompts, and waits until the question is asked.
async fn wait(world: &World) -> PendingQuestion {
    drop(started(&world.session, "refund it"));
    asked(&world.session).await
}

#[tokio::test(start_paused = true)]
async fn the_answer_comes_after_the_cut_and_the_effect_happens_once() {
    quiet_injected_panics();
    for cut in CUTS {
        for cuts in 1..=3 {
            let (home, model, effects) = (Home::new(), cashier(), Effects::default());
            let agent = Arc::new(agent(100_000).add_tool(resumable(&effects)));
            let mut world = World::start(&home, &model, &agent).await;
            let question = wait(&world).await;
            for _ in 0..cuts {
                // At most three deaths within a minute are tolerated.
                tokio::time::sleep(Duration::from_secs(60)).await;
                world = world.cut(cut, &home, &model, &agent).await;
                let state = world.session.state().await.unwrap();
                assert_eq!((state.status, state.questions), (Status::Waiting, 1), "{cut:?}");
                assert_eq!(
                    world.session.questions().await.unwrap(),
                    std::slice::from_ref(&question),
                    "{cut:?}"
                );
                let context = world.session.context().await.unwrap();
                let shown: Vec<String> = context.iter().map(|message| message.text()).collect();
                assert!(
                    matches!(context.last().map(|last| &**last), Some(Message::Assistant(_))),
                    "{shown:?}"
                );
            }
            world.session.answer(question.id, "yes").await.unwrap();
            assert_eq!(world.until_idle().await, "It says: refunded", "{cut:?}");
            assert_eq!(effects.seen().len(), 1, "{cut:?}");
            assert_eq!(world.told().await, (vec![RunOutcome::Completed], vec![ToolStatus::Ok]), "{cut:?}");
            assert_eq!(ends(&world.runtime, "s").await, [QuestionEnd::Answered("yes".into())]);
            model.assert_clean();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_resumable_is_not_run_again_and_the_model_reads_the_answer() {
    quiet_injected_panics();
    for cut in CUTS {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let agent = Arc::new(agent(100_000).add_tool(refunds(&effects)));
        let world = World::start(&home, &model, &agent).await;
        let question = wait(&world).await;
        let world = world.cut(cut, &home, &model, &agent).await;
        assert_eq!(world.session.state().await.unwrap().status, Status::Waiting, "{cut:?}");
        world.session.answer(question.id, "yes").await.unwrap();
        let said = world.until_idle().await;
        for part in ["cut off by a restart", "Refund 120 EUR?", "The answer was: yes"] {
            assert!(said.contains(part), "{cut:?}: {said}");
        }
        assert_eq!(effects.seen(), [""; 0], "{cut:?}");
        let wanted = (vec![RunOutcome::Completed], vec![ToolStatus::Interrupted]);
        assert_eq!(world.told().await, wanted, "{cut:?}");
        model.assert_clean();
    }
}

/// Asks twice, with a slow effect after each answer. The first effect violates the rules of a resumable tool,
/// which shows that the tool was run again.
fn twice(effects: &Effects) -> FunctionTool {
    let effects = effects.clone();
    tool("refund", move |_: Refund, cx: ToolContext| {
        let effects = effects.clone();
        async move {
            let first = cx.ask("First?").await?;
            effects.happen(&format!("begun after {first}"));
            let second = cx.ask("Second?").await?;
            effects.happen(&format!("done after {first} and {second}"));
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok(format!("{first}, {second}"))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn recorded_answers_are_given_again_in_their_order() {
    quiet_injected_panics();
    for (cut, is_resumable) in CUTS.into_iter().flat_map(|cut| [(cut, true), (cut, false)]) {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let tool = if is_resumable { twice(&effects).resumable() } else { twice(&effects) };
        let agent = Arc::new(agent(100_000).add_tool(tool));
        let world = World::start(&home, &model, &agent).await;
        let first = wait(&world).await;
        world.session.answer(first.id, "one").await.unwrap();
        let second = asked(&world.session).await;
        let world = world.cut(cut, &home, &model, &agent).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.session.answer(second.id, "two").await.unwrap();
        let said = world.until_idle().await;
        let seen = effects.seen();
        if is_resumable {
            assert_eq!(said, "It says: one, two", "{cut:?}");
            assert_eq!(seen, ["begun after one", "begun after one", "done after one and two"], "{cut:?}");
        } else {
            assert!(said.contains("The answer was: one") && said.contains("The answer was: two"), "{said}");
            assert_eq!(seen, ["begun after one"], "{cut:?}");
        }
        model.assert_clean();
    }
}

/// The answer is durable when it is acknowledged: an interruption between it and the end of the call loses
/// nothing.
#[tokio::test(start_paused = true)]
async fn a_cut_between_the_answer_and_the_result() {
    quiet_injected_panics();
    for (cut, is_resumable) in CUTS.into_iter().flat_map(|cut| [(cut, true), (cut, false)]) {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let tool = if is_resumable { twice(&effects).resumable() } else { twice(&effects) };
        let agent = Arc::new(agent(100_000).add_tool(tool));
        let world = World::start(&home, &model, &agent).await;
        let first = wait(&world).await;
        world.session.answer(first.id, "one").await.unwrap();
        let second = asked(&world.session).await;
        world.session.answer(second.id, "two").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let world = world.cut(cut, &home, &model, &agent).await;
        let said = world.until_idle().await;
        let done = effects.seen().iter().filter(|effect| effect.starts_with("done")).count();
        if is_resumable {
            // Run again: a real effect is recognised by its key.
            assert_eq!((said.as_str(), done), ("It says: one, two", 2), "{cut:?}");
        } else {
            assert!(said.contains("The answer was: two"), "{cut:?}: {said}");
            assert_eq!(done, 1, "{cut:?}");
        }
        assert_eq!(world.told().await.0, [RunOutcome::Completed], "{cut:?}");
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_expired_while_nothing_ran_has_expired() {
    for is_resumable in [true, false] {
        let (home, model) = (Home::new(), cashier());
        let asking = tool("refund", |_: Refund, cx: ToolContext| async move {
            let question = Question::text("Why?").expires_in(Duration::from_secs(600));
            Ok(match cx.ask(question).await {
                Ok(answer) => answer.to_string(),
                Err(error) => error.to_string(),
            })
        });
        let asking = if is_resumable { asking.resumable() } else { asking };
        let agent = Arc::new(agent(100_000).add_tool(asking));
        let world = World::start(&home, &model, &agent).await;
        let question = wait(&world).await;
        let began = question.asked_at_ms;
        assert_eq!(question.expires_at_ms, Some(began + 600_000));
        world.runtime.shutdown().await.unwrap();
        // The clock of the next runtime is an hour later.
        let later = home.builder(&model).clock_from(began + 3_600_000).start().await.unwrap();
        assert_eq!(later.questions().await.unwrap(), [], "it is not listed");
        let session = later.session("s").await.unwrap();
        let refused = session.answer(question.id, "late").await.unwrap_err();
        let Error::QuestionClosed { end, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(end.as_deref(), Some(&QuestionEnd::Expired));
        let session = later.open("s", agent).await.unwrap();
        while session.state().await.unwrap().status != Status::Idle {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let said = session.context().await.unwrap().last().unwrap().text();
        // In the words of the tool that ran again, or of the call that did not.
        let words = ["the question expired without an answer", "No answer in time."];
        assert!(words.iter().any(|words| said.contains(words)), "{said}");
        assert_eq!(ends(&later, "s").await, [QuestionEnd::Expired]);
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_question_expires_at_its_time() {
    let (home, model) = (Home::new(), cashier());
    let asking = tool("refund", |_: Refund, cx: ToolContext| async move {
        cx.ask(Question::text("Why?").expires_in(Duration::from_secs(600))).await?;
        Ok("answered")
    });
    let agent = Arc::new(agent(100_000).add_tool(asking));
    let world = World::start(&home, &model, &agent).await;
    let question = wait(&world).await;
    let world = world.cut(Cut::Closed, &home, &model, &agent).await;
    assert_eq!(world.session.state().await.unwrap().status, Status::Waiting);
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(ends(&world.runtime, "s").await, [QuestionEnd::Expired]);
    assert!(world.until_idle().await.contains("No answer in time"));
    assert!(world.session.answer(question.id, "late").await.is_err());
}

/// A tool that asks a different question when it is run again gets an error, and has no effect.
#[tokio::test(start_paused = true)]
async fn a_resumable_tool_that_asks_something_else_is_refused() {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let (runs, happened) = (Arc::new(std::sync::atomic::AtomicU32::new(0)), effects.clone());
    let fickle = tool("refund", move |_: Refund, cx: ToolContext| {
        let (run, happened) = (runs.fetch_add(1, Ordering::Relaxed), happened.clone());
        async move {
            cx.ask(format!("Attempt {run}?")).await?;
            happened.happen("effect");
            Ok("done")
        }
    });
    let agent = Arc::new(agent(100_000).add_tool(fickle.resumable()));
    let world = World::start(&home, &model, &agent).await;
    wait(&world).await;
    let world = world.cut(Cut::Dropped, &home, &model, &agent).await;
    let said = world.until_idle().await;
    assert!(said.contains("\"Attempt 0?\"") && said.contains("\"Attempt 1?\""), "{said}");
    assert_eq!(effects.seen(), [""; 0]);
    assert_eq!(ends(&world.runtime, "s").await, [QuestionEnd::Withdrawn]);
}

/// Calls beside one that asks: a finished one keeps its result, a running one is interrupted, one that had not begun is
/// told so, and none is run again.
#[tokio::test(start_paused = true)]
async fn calls_beside_the_one_that_asks_are_not_run_again() {
    quiet_injected_panics();
    for cut in CUTS {
        let model = simulator(
            Function(|request: &SeenRequest, _: CallInfo| match request.messages.last() {
                Some(last) if last.role() == "tool" => Said::text("done"),
                _ => Said::call("quick", &json!({ "euros": 1 }))
                    .and_call("refund", &json!({ "euros": 2 }))
                    .and_call("slow", &json!({ "euros": 3 }))
                    .and_call("later", &json!({ "euros": 4 })),
            }),
            100_000,
        );
        let (home, effects) = (Home::new(), Effects::default());
        let named = |name: &'static str, seconds: u64| {
            let effects = effects.clone();
            tool(name, move |_: Refund| {
                let effects = effects.clone();
                async move {
                    effects.happen(name);
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok("done")
                }
            })
        };
        let agent = agent(100_000)
            .add_tool(named("quick", 0).read_only())
            .add_tool(resumable(&effects).read_only())
            .add_tool(named("slow", 1_000_000).read_only())
            .add_tool(named("later", 0));
        let agent = Arc::new(agent);
        let world = World::start(&home, &model, &agent).await;
        let question = wait(&world).await;
        let world = world.cut(cut, &home, &model, &agent).await;
        world.session.answer(question.id, "yes").await.unwrap();
        assert_eq!(world.until_idle().await, "done");
        let seen = effects.seen();
        assert_eq!((seen.len(), &seen[..2]), (3, &["quick".to_owned(), "slow".to_owned()][..]), "{cut:?}");
        let (outcomes, statuses) = world.told().await;
        assert_eq!(outcomes, [RunOutcome::Completed], "{cut:?}");
        let count = |status| statuses.iter().filter(|found| **found == status).count();
        // `later` runs alone, and cannot have begun: after a crash the log shows that, and in an orderly end the run.
        let of = [ToolStatus::Ok, ToolStatus::Interrupted, ToolStatus::Error].map(count);
        assert_eq!(of, [2, 1, 1], "{cut:?}");
        model.assert_clean();
    }
}

/// A session that waits for a person is opened and keeps waiting: its run is not resumed.
#[tokio::test(start_paused = true)]
async fn resume_all_opens_what_waits_and_does_not_wait_for_people() {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let agent = Arc::new(agent(100_000).add_tool(resumable(&effects)));
    let world = World::start(&home, &model, &agent).await;
    let question = wait(&world).await;
    drop(started(&world.session, "and another one"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.runtime.shutdown().await.unwrap();

    let runtime = home.builder(&model).start().await.unwrap();
    let unfinished = runtime.unfinished().await.unwrap();
    assert_eq!(unfinished.iter().map(|found| (found.questions, found.waiting)).collect::<Vec<_>>(), [(1, 1)]);
    let own = Arc::clone(&agent);
    let resumed = runtime.resume_all(move |_| Some(Arc::clone(&own))).await.unwrap();
    assert_eq!(resumed.len(), 1);
    assert!(matches!(resumed[0].result, Err(Error::Waiting { .. })), "{:?}", resumed[0].result);
    let session = &resumed[0].session;
    assert_eq!(session.questions().await.unwrap(), std::slice::from_ref(&question));
    let own = Arc::clone(&agent);
    assert!(runtime.resume_all(move |_| Some(Arc::clone(&own))).await.unwrap().is_empty(), "it is at work");
    session.answer(question.id, "yes").await.unwrap();
    let next = asked(session).await;
    session.answer(next.id, "no").await.unwrap();
    while session.state().await.unwrap().status != Status::Idle {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(effects.seen().len(), 1);
    assert_eq!(ends(&runtime, "s").await.len(), 2);
    model.assert_clean();
}

/// An answer requires no agent: it is recorded, and the run continues when the session is opened.
#[tokio::test(start_paused = true)]
async fn an_answer_to_a_session_without_an_agent_counts_when_it_is_opened() {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let agent = Arc::new(agent(100_000).add_tool(resumable(&effects)));
    let world = World::start(&home, &model, &agent).await;
    let question = wait(&world).await;
    world.runtime.shutdown().await.unwrap();
    let runtime = home.builder(&model).start().await.unwrap();
    let session = runtime.session("s").await.unwrap();
    assert!(matches!(session.answer(question.id, "maybe").await, Err(Error::AnswerMisfit { .. })));
    session.answer(question.id, "yes").await.unwrap();
    assert!(matches!(session.answer(question.id, "no").await, Err(Error::QuestionClosed { .. })));
    assert!(!session.is_live() && runtime.questions().await.unwrap().is_empty());
    assert_eq!(runtime.unfinished().await.unwrap().len(), 1, "its run is not done");
    let session = runtime.open("s", agent).await.unwrap();
    while session.state().await.unwrap().status != Status::Idle {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(effects.seen().len(), 1);
}

/// A run that continues when the session is opened has its reply for the caller that resumes it.
#[tokio::test(start_paused = true)]
async fn a_run_that_continues_at_the_opening_is_joined_by_resume() {
    let (home, effects) = (Home::new(), Effects::default());
    let model = simulator(
        Function(|request: &SeenRequest, _: CallInfo| match request.messages.last() {
            Some(last) if last.role() == "tool" => Said::text("It is done.").after_ms(1_000),
            _ => Said::call("refund", &json!({ "euros": 120 })),
        }),
        100_000,
    );
    let agent = Arc::new(agent(100_000).add_tool(resumable(&effects)));
    let world = World::start(&home, &model, &agent).await;
    let question = wait(&world).await;
    world.runtime.shutdown().await.unwrap();
    let runtime = home.builder(&model).start().await.unwrap();
    runtime.session("s").await.unwrap().answer(question.id, "yes").await.unwrap();
    let session = runtime.open("s", agent).await.unwrap();
    let reply = session.resume().await.unwrap();
    assert_eq!(reply.text, session.context().await.unwrap().last().unwrap().text());
    assert_eq!(effects.seen().len(), 1);
    assert!(matches!(session.resume().await, Err(Error::NothingToResume { .. })), "it was answered");
}

/// A run resumed after a restart is aborted like any other.
#[tokio::test(start_paused = true)]
async fn an_abort_after_a_restart_withdraws() {
    for is_resumable in [true, false] {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let tool = if is_resumable { resumable(&effects) } else { refunds(&effects) };
        let agent = Arc::new(agent(100_000).add_tool(tool));
        let world = World::start(&home, &model, &agent).await;
        let question = wait(&world).await;
        let world = world.cut(Cut::Dropped, &home, &model, &agent).await;
        world.session.abort();
        world.until_idle().await;
        assert_eq!(world.told().await.0, [RunOutcome::Aborted]);
        assert_eq!(ends(&world.runtime, "s").await, [QuestionEnd::Withdrawn]);
        assert!(matches!(world.session.answer(question.id, "yes").await, Err(Error::QuestionClosed { .. })));
        assert_eq!(effects.seen(), [""; 0]);
    }
}

/// A run that waits for a person is aborted without an agent, before the session is opened.
#[tokio::test(start_paused = true)]
async fn an_abort_of_an_unopened_session_withdraws() {
    for (cut, is_resumable) in [(Cut::Dropped, true), (Cut::Shutdown, false), (Cut::Closed, true)] {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let tool = if is_resumable { resumable(&effects) } else { refunds(&effects) };
        let agent = Arc::new(agent(100_000).add_tool(tool));
        let World { runtime, session, .. } = World::start(&home, &model, &agent).await;
        drop(started(&session, "refund it"));
        let question = asked(&session).await;
        let runtime = match cut {
            Cut::Closed => {
                runtime.close("s").await.unwrap();
                runtime
            }
            Cut::Shutdown => {
                runtime.shutdown().await.unwrap();
                home.builder(&model).start().await.unwrap()
            }
            Cut::Dropped | Cut::SessionDies | Cut::AgentDies => {
                drop((runtime, session));
                tokio::time::sleep(Duration::from_secs(1)).await;
                home.builder(&model).start().await.unwrap()
            }
        };
        let session = runtime.session("s").await.unwrap();
        let mut events = session.subscribe();
        assert_eq!(session.questions().await.unwrap().len(), 1, "{cut:?}");
        session.abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!session.is_live(), "{cut:?}: nothing was opened");
        assert_eq!(session.state().await.unwrap().status, Status::Idle, "{cut:?}");
        assert_eq!(runtime.questions().await.unwrap(), []);
        assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Withdrawn], "{cut:?}");
        assert_eq!(names(&mut events).last(), Some(&"run_end"), "{cut:?}");
        assert_eq!(runtime.unfinished().await.unwrap().len(), 0, "{cut:?}");
        assert!(matches!(session.answer(question.id, "yes").await, Err(Error::QuestionClosed { .. })));
        let session = runtime.open("s", Arc::clone(&agent)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(
            (session.state().await.unwrap().status, effects.seen().len()),
            (Status::Idle, 0),
            "{cut:?}"
        );
        // A second one finds nothing to do.
        let entries = session.state().await.unwrap().entries;
        runtime.close("s").await.unwrap();
        session.abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(session.state().await.unwrap().entries, entries, "{cut:?}");
        model.assert_clean();
    }
}

/// A caller that waits for the reply is told that the session was closed in the middle of a question.
#[tokio::test(start_paused = true)]
async fn a_caller_is_told_that_its_run_waits_on() {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let agent = Arc::new(agent(100_000).add_tool(refunds(&effects)));
    let world = World::start(&home, &model, &agent).await;
    let reply = started(&world.session, "refund it");
    asked(&world.session).await;
    world.runtime.close("s").await.unwrap();
    assert!(matches!(reply.await.unwrap(), Err(Error::Waiting { .. })));
}

/// The key of a call is unique, and the same whenever the call is run again.
#[tokio::test(start_paused = true)]
async fn the_key_of_a_call_is_its_own_and_stays_the_same() {
    let model = simulator(
        Function(|request: &SeenRequest, _: CallInfo| {
            let results = request.messages.iter().filter(|message| message.role() == "tool").count();
            let call = Said::call("refund", &json!({ "euros": results }));
            if results < 2 { call } else { Said::text("done") }
        }),
        100_000,
    );
    let (home, effects, tried) = (Home::new(), Effects::default(), Effects::default());
    let (happened, noted) = (effects.clone(), tried.clone());
    let keyed = tool("refund", move |_: Refund, cx: ToolContext| {
        let (happened, noted) = (happened.clone(), noted.clone());
        async move {
            noted.happen(cx.call_key());
            cx.ask("May I?").await?;
            happened.happen(cx.call_key());
            Ok("done")
        }
    });
    let agent = Arc::new(agent(100_000).add_tool(keyed.resumable()));
    let mut world = World::start(&home, &model, &agent).await;
    let mut question = wait(&world).await;
    for _ in 0..2 {
        world = world.cut(Cut::Dropped, &home, &model, &agent).await;
        let before = question.id;
        question = asked(&world.session).await;
        world.session.answer(question.id, "yes").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(question.id >= before);
        if world.session.state().await.unwrap().status == Status::Waiting {
            question = asked(&world.session).await;
        }
    }
    world.until_idle().await;
    let (seen, tried) = (effects.seen(), tried.seen());
    assert_eq!(seen.len(), 2);
    assert_ne!(seen[0], seen[1]);
    assert_eq!(tried, [&*seen[0], &*seen[0], &*seen[1], &*seen[1]]);
}

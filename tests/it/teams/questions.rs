//! Agents whose tools ask people while others wait for them: the limits of those are paused, and nothing is
//! lost when the wait is interrupted, on whatever level.

use greenroom::{FunctionTool, PendingQuestion};

use super::*;
use crate::support::{reopened, store};
use greenroom_store::Engine;

/// Pays an order back.
#[derive(Deserialize, JsonSchema)]
struct Refund {}

/// The keys of the calls that took effect.
type Effects = Arc<std::sync::Mutex<Vec<String>>>;

fn refund(effects: &Effects) -> FunctionTool {
    let effects = Arc::clone(effects);
    tool("refund", move |_: Refund, cx: ToolContext| {
        let effects = Arc::clone(&effects);
        async move {
            let answer = cx.ask(Question::choice("Refund?", ["yes", "no"])).await?;
            effects.lock().unwrap().push(cx.call_key().to_owned());
            Ok(format!("refunded: {answer}"))
        }
    })
}

/// Returns a boss above this many levels of agents; the last one has the tool that asks.
fn tree(levels: usize, effects: &Effects, is_resumable: bool, each: fn(Agent) -> Agent) -> Agent {
    let asks = if is_resumable { refund(effects).resumable() } else { refund(effects) };
    let last = each(agent(100_000).run_timeout(None).add_tool(asks));
    (0..levels)
        .fold(last, |below, _| each(agent(100_000).run_timeout(None).sub_agent(sub_agent("below", below))))
}

/// Each agent calls the one below it, and reports the result.
fn script(request: &SeenRequest, _: CallInfo) -> Said {
    if has_result(request) {
        return Said::text(format!("told {}", request.messages.last().unwrap().text()));
    }
    match request.tools.iter().any(|tool| tool.name == "below") {
        true => Said::call("below", &json!({ "task": "refund it" })),
        false => Said::call("refund", &json!({})),
    }
}

/// Returns the open question in any session, as soon as it is asked.
async fn asked(runtime: &Runtime) -> PendingQuestion {
    for _ in 0..10_000 {
        if let Some(question) = runtime.questions().await.unwrap().pop() {
            return question;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is asked");
}

async fn answer(runtime: &Runtime, question: &PendingQuestion) {
    runtime.session(&question.session).await.unwrap().answer(question.id, "yes").await.unwrap();
}

/// Returns the boss's final answer, when its run has ended.
async fn said(runtime: &Runtime) -> String {
    for _ in 0..100_000 {
        if !runtime.summary("boss").await.unwrap().unwrap().has_open_run {
            return runtime.session("boss").await.unwrap().context().await.unwrap().last().unwrap().text();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it waits for ever: {:?}", runtime.session("boss").await.unwrap().state().await);
}

/// Without settings: a run may take four hours, and the answer comes after five. And with short limits on
/// each level.
#[tokio::test(start_paused = true)]
async fn the_limits_of_all_who_wait_for_an_agent_stand_still_while_it_asks() {
    let plain: fn(Agent) -> Agent = |agent| agent.run_timeout(Some(Agent::RUN_TIMEOUT));
    let tight: fn(Agent) -> Agent =
        |agent| agent.run_timeout(Some(Duration::from_secs(20))).tool_timeout(Duration::from_secs(10));
    for (levels, each) in [(1, plain), (1, tight), (2, plain), (2, tight), (3, tight)] {
        let (model, effects) = (simulator(Function(script), 100_000), Effects::default());
        let runtime = runtime(&model).await;
        let session = runtime.open("boss", &tree(levels, &effects, false, each)).await.unwrap();
        let run = session.prompt("go").start().await.unwrap();
        let question = asked(&runtime).await;
        for _ in 0..2 {
            let state = session.state().await.unwrap();
            assert_eq!(
                (state.status, state.questions, state.questions_below),
                (Status::Waiting, 0, 1),
                "{levels}"
            );
            // The second time all sleep.
            tokio::time::sleep(Duration::from_secs(5 * 3_600)).await;
        }
        answer(&runtime, &question).await;
        let wanted = format!("{}refunded: yes", "told ".repeat(levels + 1));
        assert_eq!(run.reply().await.unwrap().text, wanted, "{levels}");
        assert_eq!(effects.lock().unwrap().len(), 1);
        let state = session.state().await.unwrap();
        assert_eq!((state.status, state.questions_below), (Status::Idle, 0));
        model.assert_clean();
    }
}

/// An agent's time besides asking counts towards its caller's limit, as before.
#[tokio::test(start_paused = true)]
async fn a_limit_counts_what_an_agent_does_before_and_after_its_question() {
    for (seconds, said) in [(4, "told told done"), (6, "stopped after 10s")] {
        let model = simulator(Function(script), 100_000);
        let runtime = runtime(&model).await;
        let slow = tool("refund", move |_: Refund, cx: ToolContext| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            cx.ask("Why?").await?;
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok("done")
        });
        let boss = agent(100_000)
            .tool_timeout(Duration::from_secs(10))
            .sub_agent(sub_agent("below", agent(100_000).add_tool(slow)));
        let session = runtime.open("boss", &boss).await.unwrap();
        let run = session.prompt("go").start().await.unwrap();
        let question = asked(&runtime).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        answer(&runtime, &question).await;
        let reply = run.reply().await.unwrap().text;
        assert!(reply.contains(said), "{seconds}: {reply}");
    }
}

/// What interrupts the wait.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    /// The runtime is dropped without a shutdown, as if its process had died.
    Dropped,
    /// The runtime is shut down cleanly.
    Shutdown,
    /// The boss is closed cleanly, and the runtime continues.
    Closed,
    /// The session's actor of the boss dies.
    SessionDies,
    /// The agent of the boss dies.
    AgentDies,
    /// The session that asks is closed, and the boss continues.
    ChildClosed,
    /// The actor of the session that asks dies.
    ChildDies,
}

const CUTS: [Cut; 7] = [
    Cut::Dropped,
    Cut::Shutdown,
    Cut::Closed,
    Cut::SessionDies,
    Cut::AgentDies,
    Cut::ChildClosed,
    Cut::ChildDies,
];

/// A runtime over a store in memory, whose actors die on command.
struct World {
    store: std::sync::Mutex<Arc<dyn Engine>>,
    model: Simulator,
    /// The session and the point at which it is struck.
    strike: Arc<std::sync::Mutex<Option<(String, &'static str)>>>,
}

impl World {
    fn new(model: Simulator) -> Self {
        quiet_injected_panics();
        let store = std::sync::Mutex::new(store());
        Self { store, model, strike: Arc::default() }
    }

    async fn start(&self) -> Runtime {
        let strike = Arc::clone(&self.strike);
        let probe = move |session: &str, at: &'static str| {
            let mut strike = strike.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let dies = strike.take_if(|(struck, point)| struck == session && *point == at).is_some();
            drop(strike);
            assert!(!dies, "injected at {at}");
        };
        // A shutdown closes a store for good, so the next runtime gets a copy.
        let store = reopened(&self.store.lock().unwrap());
        *self.store.lock().unwrap() = store.clone();
        builder(&self.model).probe(probe).engine(store).start().await.unwrap()
    }

    async fn cut(&self, cut: Cut, runtime: Runtime, boss: &Agent, asks: &str) -> Runtime {
        let strike = |session: &str, at| *self.strike.lock().unwrap() = Some((session.to_owned(), at));
        match cut {
            Cut::Dropped => drop(runtime),
            Cut::Shutdown => runtime.shutdown().await.unwrap(),
            Cut::Closed => {
                runtime.close("boss").await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                runtime.open("boss", boss).await.unwrap();
                return runtime;
            }
            Cut::ChildClosed => {
                runtime.close(asks).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                return runtime;
            }
            Cut::SessionDies | Cut::ChildDies => {
                let id = if cut == Cut::ChildDies { asks } else { "boss" };
                strike(id, "session/state");
                let _ = runtime.session(id).await.unwrap().state().await;
                tokio::time::sleep(Duration::from_secs(5)).await;
                return runtime;
            }
            Cut::AgentDies => {
                strike("boss", "agent/broadcast");
                runtime.session("boss").await.unwrap().set_title("struck").await.unwrap();
                tokio::time::sleep(Duration::from_secs(5)).await;
                return runtime;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let runtime = self.start().await;
        runtime.open("boss", boss).await.unwrap();
        runtime
    }
}

/// Everything in the tree has ended once, and nothing was begun twice.
async fn assert_whole(runtime: &Runtime, levels: usize, cut: Cut) {
    let sessions = runtime.sessions().await.unwrap();
    assert_eq!(sessions.len(), levels + 1, "{cut:?}: each agent works in its own session");
    for session in sessions {
        assert!(
            !session.has_open_run && !session.is_unfinished && session.questions == 0,
            "{cut:?}: {}",
            session.id
        );
        let ends = children(runtime, &session.id).await;
        assert!(ends.iter().all(|(_, end)| *end == Some(RunOutcome::Completed)), "{cut:?}: {ends:?}");
        let results = results(runtime, &session.id).await;
        assert!(matches!(&results[..], [(_, ToolStatus::Ok, _)]), "{cut:?}: {results:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_of_an_agent_survives_whatever_cuts_off_those_who_wait_for_it() {
    for (levels, cut) in (1..=3).flat_map(|levels| CUTS.map(|cut| (levels, cut))) {
        let effects = Effects::default();
        let boss = tree(levels, &effects, true, |agent| agent);
        let world = World::new(simulator(Function(script), 100_000));
        let mut runtime = world.start().await;
        let run = runtime.open("boss", &boss).await.unwrap().prompt("go").start().await.unwrap();
        let question = asked(&runtime).await;
        tokio::spawn(run.reply());
        for _ in 0..2 {
            // At most three deaths within a minute are tolerated.
            tokio::time::sleep(Duration::from_secs(60)).await;
            runtime = world.cut(cut, runtime, &boss, &question.session).await;
            let state = runtime.session("boss").await.unwrap().state().await.unwrap();
            assert_eq!((state.status, state.questions_below), (Status::Waiting, 1), "{levels} {cut:?}");
            assert_eq!(
                runtime.questions().await.unwrap(),
                std::slice::from_ref(&question),
                "{levels} {cut:?}"
            );
        }
        answer(&runtime, &question).await;
        assert_eq!(
            said(&runtime).await,
            format!("{}refunded: yes", "told ".repeat(levels + 1)),
            "{levels} {cut:?}"
        );
        assert_eq!(effects.lock().unwrap().len(), 1, "{levels} {cut:?}");
        assert_whole(&runtime, levels, cut).await;
        world.model.assert_clean();
    }
}

/// A tool that must not be run again: the agent's model reads the answer, and its caller continues.
#[tokio::test(start_paused = true)]
async fn a_call_of_an_agent_that_is_not_resumable_is_not_run_again() {
    for cut in [Cut::Dropped, Cut::Shutdown, Cut::Closed] {
        let effects = Effects::default();
        let boss = tree(2, &effects, false, |agent| agent);
        let world = World::new(simulator(Function(script), 100_000));
        let runtime = world.start().await;
        let run = runtime.open("boss", &boss).await.unwrap().prompt("go").start().await.unwrap();
        let question = asked(&runtime).await;
        tokio::spawn(run.reply());
        let runtime = world.cut(cut, runtime, &boss, &question.session).await;
        answer(&runtime, &question).await;
        let said = said(&runtime).await;
        assert!(
            said.starts_with("told told told The call was cut off") && said.contains("The answer was: yes"),
            "{said}"
        );
        assert_eq!(effects.lock().unwrap().len(), 0, "{cut:?}");
        world.model.assert_clean();
    }
}

/// The answer is given before anybody opens the boss: it is durable, and counts when the boss is opened.
/// `resume_all` opens the trees with unanswered questions, and does not wait for people.
#[tokio::test(start_paused = true)]
async fn an_answer_counts_before_the_tree_is_opened_and_resume_all_waits_for_nobody() {
    for (levels, is_answered) in [(1, true), (1, false), (2, true), (2, false)] {
        let effects = Effects::default();
        let boss = tree(levels, &effects, true, |agent| agent);
        let world = World::new(simulator(Function(script), 100_000));
        let runtime = world.start().await;
        let run = runtime.open("boss", &boss).await.unwrap().prompt("go").start().await.unwrap();
        let question = asked(&runtime).await;
        tokio::spawn(run.reply());
        drop(runtime);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let runtime = world.start().await;
        let session = runtime.session("boss").await.unwrap();
        let state = session.state().await.unwrap();
        assert_eq!((state.status, state.questions_below), (Status::Waiting, 1), "nothing is opened");
        if is_answered {
            answer(&runtime, &question).await;
            assert_eq!(runtime.live().await.unwrap().len(), 0);
        }
        let unfinished = runtime.unfinished().await.unwrap();
        assert_eq!(unfinished.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), ["boss"]);
        let agent = Arc::new(boss);
        let mut resumed = runtime.resume_all(move |_| Some(Arc::clone(&agent))).await.unwrap();
        let wanted = format!("{}refunded: yes", "told ".repeat(levels + 1));
        let result = resumed.pop().unwrap().result;
        if is_answered {
            assert!(!matches!(result, Err(Error::Waiting { .. })), "{result:?}");
        } else {
            assert!(matches!(result, Err(Error::Waiting { .. })), "{result:?}");
            answer(&runtime, &question).await;
        }
        assert_eq!(said(&runtime).await, wanted, "{levels} {is_answered}");
        assert_eq!(effects.lock().unwrap().len(), 1);
        assert_whole(&runtime, levels, Cut::Dropped).await;
        world.model.assert_clean();
    }
}

/// An abort of the boss withdraws the questions below it: before a restart, after it, and if nobody resumes
/// the agent because the boss no longer has it. No question is left without an agent that works on it.
#[tokio::test(start_paused = true)]
async fn no_question_is_left_behind_when_a_boss_goes_on_without_its_agent() {
    for (levels, is_restarted, is_aborted) in [
        (1, false, true),
        (2, false, true),
        (1, true, true),
        (2, true, true),
        (1, true, false),
        (2, true, false),
    ] {
        let case = format!("{levels} {is_restarted} {is_aborted}");
        let effects = Effects::default();
        let boss = tree(levels, &effects, true, |agent| agent);
        let world = World::new(simulator(Function(script), 100_000));
        let mut runtime = world.start().await;
        let run = runtime.open("boss", &boss).await.unwrap().prompt("go").start().await.unwrap();
        let question = asked(&runtime).await;
        tokio::spawn(run.reply());
        if is_restarted {
            drop(runtime);
            tokio::time::sleep(Duration::from_secs(1)).await;
            runtime = world.start().await;
            let other = if is_aborted { boss } else { agent(100_000) };
            runtime.open("boss", &other).await.unwrap();
        }
        if is_aborted {
            tokio::time::sleep(Duration::from_secs(1)).await;
            runtime.session("boss").await.unwrap().abort();
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(runtime.questions().await.unwrap(), [], "{case}");
        let late = runtime.session(&question.session).await.unwrap().answer(question.id, "yes").await;
        assert!(matches!(late, Err(Error::QuestionClosed { .. })), "{case}: {late:?}");
        assert!(!runtime.summary("boss").await.unwrap().unwrap().has_open_run, "{case}");
        let ends = children(&runtime, "boss").await;
        assert!(matches!(&ends[..], [(_, Some(_))]), "{case}: {ends:?}");
        assert_eq!(effects.lock().unwrap().len(), 0, "{case}");
    }
}

/// A typed answer is also required if the agent continues after a restart; a colleague that was simply
/// interrupted stays interrupted.
#[tokio::test(start_paused = true)]
async fn a_typed_answer_is_asked_for_after_a_restart_and_a_colleague_is_interrupted() {
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Verdict {
        paid: bool,
    }
    let script = |request: &SeenRequest, info: CallInfo| {
        let last = request.messages.last().unwrap();
        match request.session.as_deref() {
            Some("boss") if !has_result(request) => calls(vec![
                call("c1", "below", &json!({ "task": "refund it" })),
                call("c2", "slow", &json!({ "task": "wait" })),
            ]),
            Some("boss") => Said::text(last.text()),
            _ if last.text() == "wait" => Said::text("late").after_ms(600_000),
            _ if has_result(request) && request.output_schema.is_some() => Said::text("paid, I think"),
            _ if request.output_schema.is_some() && last.text().contains("does not fit the schema") => {
                Said::text(json!({ "paid": true }).to_string())
            }
            _ => self::script(request, info),
        }
    };
    let effects = Effects::default();
    let plain = agent(100_000).run_timeout(None);
    let boss = plain
        .clone()
        .sub_agent(
            sub_agent("below", plain.clone().add_tool(refund(&effects).resumable())).output::<Verdict>(),
        )
        .sub_agent(sub_agent("slow", plain));
    let world = World::new(simulator(Function(script), 100_000));
    let runtime = world.start().await;
    let run = runtime.open("boss", &boss).await.unwrap().prompt("go").start().await.unwrap();
    let question = asked(&runtime).await;
    tokio::spawn(run.reply());
    let runtime = world.cut(Cut::Dropped, runtime, &boss, &question.session).await;
    answer(&runtime, &question).await;
    said(&runtime).await;
    let mut results = results(&runtime, "boss").await;
    results.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(results[0], ("c1".to_owned(), ToolStatus::Ok, json!({ "paid": true }).to_string()));
    assert_eq!((results[1].0.as_str(), results[1].1), ("c2", ToolStatus::Interrupted));
    let mut ends = children(&runtime, "boss").await;
    ends.sort_by(|one, other| one.0.cmp(&other.0));
    let end = |name: &str, outcome| (name.to_owned(), Some(outcome));
    assert_eq!(ends, [end("below", RunOutcome::Completed), end("slow", RunOutcome::Interrupted)]);
    assert_eq!(effects.lock().unwrap().len(), 1);
}

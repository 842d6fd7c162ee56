//! The requirements of a prompt besides its text survive a restart: schema, settings, limits and validators.
//!
//! Invariants: each test lets one process end in the middle, and checks the requests of the next one.

use std::sync::Arc;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_simulator::{
    Answer as Said, CallInfo, Function, Pace, Script, SeenRequest, Sequence, Simulator, SimulatorOptions,
};
use greenroom_store::Engine;
use serde_json::json;

use crate::support::{agent, builder, simulator, store};

const WINDOW: u64 = 100_000;
const BERGEN: &str = r#"{"name":"Bergen","rain":2250}"#;

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct City {
    name: String,
    rain: u32,
}

/// Never answers.
fn stuck() -> Simulator {
    let pace = Pace { chunks: 1, first_ms: 3_600_000, between_ms: 1 };
    simulator(Function(move |_: &SeenRequest, _: CallInfo| Said::text("late").with_pace(pace)), WINDOW)
}

fn says(script: &[&str]) -> Simulator {
    simulator(Sequence(script.iter().map(|text| Said::text(*text)).collect()), WINDOW)
}

async fn start(model: &Simulator, store: &Arc<dyn Engine>) -> Runtime {
    builder(model).engine(store.clone()).start().await.unwrap()
}

/// How the first process ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Crash,
    Close,
}

/// A process that sends these prompts to the session `s`, and ends while its model works on the first.
async fn leave(store: &Arc<dyn Engine>, end: End, says: impl AsyncFnOnce(&SessionHandle)) {
    let runtime = start(&stuck(), store).await;
    let session = runtime.open("s", &agent(WINDOW)).await.unwrap();
    says(&session).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    match end {
        // Its actors never send anything again.
        End::Crash => std::mem::forget(runtime),
        End::Close => runtime.close("s").await.unwrap(),
    }
}

/// The prompt is durable, and nobody waits for it.
async fn left<R: Send + 'static>(run: Result<Run<R>>) {
    let mut run = run.unwrap();
    run.recorded().await.unwrap();
    std::mem::forget(run);
}

/// Returns the requirements in the requests of a model: the schema's name, and the settings.
fn asked(model: &Simulator) -> Vec<(Option<String>, ModelSettings)> {
    let asked = |request: &SeenRequest| {
        let schema = request.output_schema.as_ref().map(|schema| schema.name.clone());
        (schema, request.settings.clone())
    };
    model.requests().iter().map(|logged| asked(&logged.request)).collect()
}

/// How the next process finishes the remaining work.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    ResumeAll,
    Resume,
    Once,
    /// The session is opened, and the waiting work begins.
    Open,
}

#[tokio::test(start_paused = true)]
async fn a_typed_prompt_is_finished_with_its_schema_and_its_settings() {
    let settings = || ModelSettings::new().temperature(0.0).seed(7);
    let mut cases = 0;
    for end in [End::Crash, End::Close] {
        // If it waits, the work before it is finished first.
        for (waits, by) in [
            (false, By::ResumeAll),
            (false, By::Resume),
            (false, By::Once),
            (true, By::ResumeAll),
            (true, By::Once),
            (true, By::Open),
        ] {
            let case = format!("{end:?}, waits: {waits}, {by:?}");
            let store = store();
            leave(&store, end, async |session: &SessionHandle| {
                if waits {
                    left(session.prompt("before").start().await).await;
                }
                let typed = session.prompt("where?").once("k").settings(settings()).output::<City>();
                left(typed.start().await).await;
            })
            .await;

            let before = waits.then_some("yes");
            let script: Vec<&str> = before.into_iter().chain(["Bergen.", BERGEN]).collect();
            let model = says(&script);
            let runtime = start(&model, &store).await;
            let session = async || runtime.open("s", &agent(WINDOW)).await.unwrap();
            let text = match by {
                By::ResumeAll => {
                    let mut resumed = runtime.resume_all(|_| Some(agent(WINDOW))).await.unwrap();
                    resumed.pop().unwrap().result.unwrap().text
                }
                By::Resume => session().await.resume().await.unwrap().text,
                By::Once => session().await.prompt("where?").once("k").await.unwrap().text,
                By::Open => {
                    session().await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    BERGEN.to_owned()
                }
            };
            assert_eq!(text, BERGEN, "{case}");
            let mut wanted = vec![(None, ModelSettings::new()); before.iter().len()];
            wanted.extend([(Some("City".to_owned()), settings()), (Some("City".to_owned()), settings())]);
            assert_eq!(asked(&model), wanted, "{case}");
            let again = session().await.prompt("where?").once("k").output::<City>().await.unwrap();
            assert_eq!(again.value, City { name: "Bergen".into(), rain: 2250 }, "{case}");
            assert_eq!(model.calls(), script.len() as u64, "{case}: it is the first reply");
            model.assert_clean();
            cases += 1;
        }
    }
    assert_eq!(cases, 12);
}

/// The limits of a prompt whose caller is gone.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_nobody_waits_for_is_held_to_its_limits() {
    let mut cases = 0;
    for waits in [false, true] {
        for what in ["timeout", "output"] {
            let case = format!("{what}, waits: {waits}");
            let store = store();
            leave(&store, End::Crash, async |session: &SessionHandle| {
                if waits {
                    left(session.prompt("before").start().await).await;
                }
                let limited = session.prompt("limited");
                let limited = match what {
                    "timeout" => limited.timeout(Duration::from_secs(50)),
                    _ => limited.settings(ModelSettings::new().output_tokens_max(77)),
                };
                left(limited.start().await).await;
            })
            .await;
            let slow = Pace { chunks: 1, first_ms: 100_000, between_ms: 1 };
            let answer = move |_: &SeenRequest, _: CallInfo| Said::text("late").with_pace(slow);
            let model = simulator(Function(answer), WINDOW);
            let runtime = start(&model, &store).await;
            let mut resumed = runtime.resume_all(|_| Some(agent(WINDOW))).await.unwrap();
            let result = resumed.pop().unwrap().result;
            match what {
                "timeout" => {
                    let Err(Error::Stopped { reason }) = &result else { panic!("{case}: {result:?}") };
                    assert!(reason.contains("50"), "{case}: {reason}");
                }
                _ => {
                    let settings = asked(&model).pop().unwrap().1;
                    assert_eq!(settings.output_tokens_max, Some(77), "{case}");
                    assert!(result.is_ok(), "{case}: {result:?}");
                }
            }
            cases += 1;
        }
    }
    assert_eq!(cases, 4);
}

/// Returns a model with a price.
fn priced(script: impl Script + 'static) -> Simulator {
    let options = SimulatorOptions::new(script);
    Simulator::new(SimulatorOptions { provider_name: "openai".to_owned(), window: WINDOW, ..options })
}

/// The limit is the cost of a whole run whose steps all cost the same: it has fewer of them.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_nobody_waits_for_is_held_to_its_cost() {
    #[derive(Deserialize, JsonSchema)]
    struct Count {}
    let counts = || {
        priced(Function(move |request: &SeenRequest, _: CallInfo| {
            let of_run = request.messages.iter().rev().take_while(|message| message.role() != "user");
            match of_run.filter(|message| message.role() == "tool").count() {
                0..5 => Said::call("count", &json!({})),
                _ => Said::text("counted"),
            }
        }))
    };
    let counter =
        || Agent::new("gpt-4o").context_window(WINDOW).tool("count", async |_: Count| Ok("one more"));
    let whole = counts();
    let runtime = start(&whole, &store()).await;
    let session = runtime.open("s", &counter()).await.unwrap();
    session.prompt("count").await.unwrap();
    let cost = session.state().await.unwrap().cost_microdollars;
    assert!(whole.calls() == 6 && cost > 0, "{} calls, {cost}", whole.calls());

    let mut cases = 0;
    for waits in [false, true] {
        let store = store();
        let pace = Pace { chunks: 1, first_ms: 3_600_000, between_ms: 1 };
        let stuck = priced(Function(move |_: &SeenRequest, _: CallInfo| Said::text("late").with_pace(pace)));
        let runtime = start(&stuck, &store).await;
        let session = runtime.open("s", &counter()).await.unwrap();
        if waits {
            left(session.prompt("before").start().await).await;
        }
        #[expect(clippy::cast_precision_loss, reason = "a few cents")]
        let half = cost as f64 / 2e6;
        left(session.prompt("count").cost_limit_usd(half).start().await).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        std::mem::forget(runtime);
        let model = counts();
        let runtime = start(&model, &store).await;
        let mut resumed = runtime.resume_all(move |_| Some(counter())).await.unwrap();
        let result = resumed.pop().unwrap().result;
        assert!(matches!(result, Err(Error::Stopped { .. })), "waits: {waits}: {result:?}");
        cases += 1;
    }
    assert_eq!(cases, 2);
}

fn checks(agent: Agent) -> Agent {
    agent.validator("has_rain", |answer| async move {
        if answer.text.contains("rain") { Ok(()) } else { Err("it says nothing of rain") }
    })
}

#[tokio::test(start_paused = true)]
async fn a_validator_of_a_name_is_asked_of_the_agent_that_resumes() {
    let mut cases = 0;
    for (end, waits) in [(End::Crash, false), (End::Close, false), (End::Crash, true), (End::Close, true)] {
        let case = format!("{end:?}, waits: {waits}");
        let store = store();
        leave(&store, end, async |session: &SessionHandle| {
            session.set_agent(&checks(agent(WINDOW))).await.unwrap();
            if waits {
                left(session.prompt("before").start().await).await;
            }
            left(session.prompt("weather?").validated_by("has_rain").start().await).await;
        })
        .await;
        let model = says(if waits { &["yes", "Sun.", "It rains."] } else { &["Sun.", "It rains."] });
        let runtime = start(&model, &store).await;
        let mut resumed = runtime.resume_all(|_| Some(agent(WINDOW))).await.unwrap();
        let lacks = resumed.pop().unwrap().result;
        // The prompt before it is answered; it waits for its validator.
        match lacks {
            Err(Error::NoValidator { names, unnamed: 0, .. }) => {
                assert_eq!((names, waits), (vec!["has_rain".to_owned()], false), "{case}");
            }
            Ok(reply) => assert_eq!((reply.text.as_str(), waits), ("yes", true), "{case}"),
            other => panic!("{case}: {other:?}"),
        }
        assert_eq!(model.calls(), u64::from(waits), "{case}");
        assert_eq!(runtime.unfinished().await.unwrap().len(), 1, "{case}: it is still to be done");
        let mut resumed = runtime.resume_all(|_| Some(checks(agent(WINDOW)))).await.unwrap();
        assert_eq!(resumed.pop().unwrap().result.unwrap().text, "It rains.", "{case}");
        assert!(runtime.unfinished().await.unwrap().is_empty(), "{case}");
        model.assert_clean();
        cases += 1;
    }
    assert_eq!(cases, 4);
}

/// Input behind a run that cannot go on would leave the run behind: both wait for an agent with the validator.
#[tokio::test(start_paused = true)]
async fn input_behind_a_run_that_lacks_its_validator_is_held_back() {
    let store = store();
    leave(&store, End::Crash, async |session: &SessionHandle| {
        session.set_agent(&checks(agent(WINDOW))).await.unwrap();
        left(session.prompt("weather?").validated_by("has_rain").start().await).await;
        left(session.prompt("and then?").start().await).await;
    })
    .await;
    let model = says(&["It rains.", "Nothing."]);
    let runtime = start(&model, &store).await;
    let session = runtime.open("s", &agent(WINDOW)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let state = session.state().await.unwrap();
    assert_eq!((model.calls(), state.held_back, state.is_unanswered), (0, 1, true), "{state:?}");
    let mut resumed = runtime.resume_all(|_| Some(checks(agent(WINDOW)))).await.unwrap();
    assert_eq!(resumed.pop().unwrap().result.unwrap().text, "Nothing.");
    assert_eq!(model.calls(), 2);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_validator_without_a_name_is_asked_of_who_resumes() {
    let has_rain = |answer: greenroom::ProposedAnswer| async move {
        if answer.text.contains("rain") { Ok(()) } else { Err("it says nothing of rain") }
    };
    let mut cases = 0;
    for waits in [false, true] {
        let store = store();
        leave(&store, End::Crash, async |session: &SessionHandle| {
            if waits {
                left(session.prompt("before").start().await).await;
            }
            left(session.prompt("weather?").once("k").validate(has_rain).start().await).await;
        })
        .await;
        let model = says(if waits { &["yes", "Sun.", "It rains."] } else { &["Sun.", "It rains."] });
        let runtime = start(&model, &store).await;
        let mut resumed = runtime.resume_all(|_| Some(checks(agent(WINDOW)))).await.unwrap();
        let lacks = resumed.pop().unwrap().result;
        assert!(matches!(lacks, Err(Error::NoValidator { unnamed: 1, .. })) != waits, "{lacks:?}");
        let session = runtime.session("s").await.unwrap();
        let lacks = session.resume().await.unwrap_err();
        assert!(matches!(lacks, Error::NoValidator { unnamed: 1, .. }), "{lacks:?}");
        assert!(lacks.to_string().contains("1 validators without a name"), "{lacks}");
        assert_eq!(session.resume().validate(has_rain).await.unwrap().text, "It rains.");
        assert_eq!(session.prompt("weather?").once("k").await.unwrap().text, "It rains.");
        model.assert_clean();
        cases += 1;
    }
    assert_eq!(cases, 2);
}

#[tokio::test(start_paused = true)]
async fn a_validator_that_the_agent_does_not_have_is_refused() {
    let model = says(&["It rains."]);
    let runtime = start(&model, &store()).await;
    let session = runtime.open("s", &checks(agent(WINDOW))).await.unwrap();
    let refused = session.prompt("weather?").validated_by("has_sun").await.unwrap_err();
    assert!(refused.is_invalid_request(), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "the agent has no validator named \"has_sun\"; it has has_rain",
        "{refused:?}"
    );
    assert_eq!(session.state().await.unwrap().entries, 0);
    assert_eq!(session.prompt("weather?").validated_by("has_rain").await.unwrap().text, "It rains.");
}

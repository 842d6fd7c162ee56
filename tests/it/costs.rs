//! Cost limits: of a run, a session, and all sessions of a runtime together.

use greenroom::prelude::*;
use greenroom::{ConfigError, FactSource, ModelPrice, Period, Usage};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;

use crate::compaction_fixtures::text;
use crate::support::{builder, store};

const MODEL: &str = "gpt-4o";

/// Returns a model with a price, which calls a tool in each step, at most eight, and then answers.
fn spender() -> Simulator {
    let script = |request: &SeenRequest, _: CallInfo| {
        let results = request
            .messages
            .iter()
            .rev()
            .take_while(|message| !matches!(&***message, greenroom_kernel::Message::User(_)))
            .count();
        if results < 16 {
            Said::call("count", &json!({ "number": request.messages.len() }))
        } else {
            Said::text("counted")
        }
    };
    Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(script))
    })
}

#[derive(Deserialize, JsonSchema)]
struct Count {
    number: u64,
}

fn counter() -> Agent {
    Agent::new(MODEL)
        .context_window(100_000)
        .tool("count", |count: Count| async move { Ok(text(&format!("{}", count.number), 200)) })
}

async fn spent(session: &SessionHandle) -> u64 {
    session.state().await.unwrap().cost_microdollars
}

fn stopped_by(end: Result<Reply>) -> String {
    match end {
        Err(Error::Stopped { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Returns the cost of a whole run without a limit, in micro-dollars.
async fn whole_run() -> u64 {
    let model = spender();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &counter()).await.unwrap();
    session.prompt("count").await.unwrap();
    spent(&session).await
}

#[expect(clippy::cast_precision_loss, reason = "small sums")]
fn usd(microdollars: u64) -> f64 {
    microdollars as f64 / 1e6
}

#[tokio::test(start_paused = true)]
async fn a_run_s_limit_ends_the_run_and_the_next_has_it_anew() {
    let whole = whole_run().await;
    assert!(whole > 1_000, "{whole}");
    let model = spender();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &counter().run_cost_limit_usd(usd(whole / 2))).await.unwrap();
    let mut before = 0;
    for _ in 0..3 {
        let reason = stopped_by(session.prompt("count").await);
        assert!(reason.starts_with("the run reached its cost limit of $0.0"), "{reason}");
        let now = spent(&session).await;
        assert!((whole / 8..=whole / 2).contains(&(now - before)), "{} of {}", now - before, whole / 2);
        before = now;
    }
    // A prompt's own limit applies if it is lower.
    let low = stopped_by(session.prompt("count").cost_limit_usd(0.000_001).await);
    let expected = "the run reached its cost limit of $0.000001: $0.000001 is left, and the input of the next call alone \
                    may cost $";
    assert!(low.starts_with(expected), "{low}");
    assert!(stopped_by(session.prompt("count").cost_limit_usd(1.0).await).contains("$0.0"));
    let error = session.prompt("count").cost_limit_usd(-1.0).await.unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::CostLimit { .. })), "{error}");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn limits_that_are_no_sums_are_refused() {
    let model = spender();
    for usd in [-1.0, f64::NAN, f64::INFINITY] {
        let runtime = builder(&model).start().await.unwrap();
        for agent in [counter().cost_limit_usd(usd), counter().run_cost_limit_usd(usd)] {
            let error = runtime.open("s", &agent).await.unwrap_err();
            assert!(matches!(error, Error::Config(ConfigError::CostLimit { .. })), "{error}");
        }
        let refused = builder(&model).cost_limit_usd(usd, Period::Day).start().await.map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("cost limit"), "{refused}");
    }
}

/// All sessions share one budget; an hour later it is full again; a restart does not refill it.
#[tokio::test(start_paused = true)]
async fn a_runtime_s_limit_holds_for_all_sessions_and_over_a_restart() {
    let whole = whole_run().await;
    let model = spender();
    let store = store();
    let begun = 1_700_000_000_000;
    let start = |at_ms: u64| {
        let limited = Runtime::builder().cost_limit_usd(usd(whole * 5 / 2), Period::Hour);
        limited.provider(model.provider()).engine(store.clone()).clock_from(at_ms).start()
    };
    let runtime = start(begun).await.unwrap();
    let mut total = 0;
    for number in 0..3 {
        let session = runtime.open(&format!("s{number}"), &counter()).await.unwrap();
        let end = session.prompt("count").await;
        total += spent(&session).await;
        if number < 2 {
            end.unwrap();
        } else {
            let reason = stopped_by(end);
            assert!(reason.starts_with("the runtime reached its cost limit of $"), "{reason}");
            assert!(reason.contains("an hour"), "{reason}");
        }
    }
    assert!((whole * 2..=whole * 5 / 2).contains(&total), "{total}");
    // A new request is refused before any call is made.
    let asked = model.requests().len();
    let session = runtime.open("other", &counter()).await.unwrap();
    // The remainder does not pay for so much input.
    let much = || text("Count this.", 50_000);
    assert!(stopped_by(session.prompt(much()).await).contains("an hour"));
    assert_eq!(model.requests().len(), asked);
    // The runtime ends, its store stays. The cost is written by a separate task.
    drop(runtime);
    let runtime = start(begun + 30 * 60_000).await.unwrap();
    let session = runtime.open("later", &counter()).await.unwrap();
    assert!(stopped_by(session.prompt(much()).await).contains("an hour"));
    drop(runtime);
    let runtime = start(begun + 62 * 60_000).await.unwrap();
    let session = runtime.open("much-later", &counter()).await.unwrap();
    assert_eq!(session.prompt("count").await.unwrap().text, "counted");
    model.assert_clean();
}

/// A sub-agent uses its caller's run's budget, and the runtime's once.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_draws_from_its_callers_run_and_once_from_the_purse() {
    let whole = whole_run().await;
    let script = |request: &SeenRequest, info: CallInfo| {
        let is_helper = request.tools.iter().any(|tool| tool.name == "count");
        match (is_helper, info.session_call) {
            (true, 0..8) => Said::call("count", &json!({ "number": info.session_call })),
            (false, 0) => Said::call("helper", &json!({ "task": "count" })),
            _ => Said::text("counted"),
        }
    };
    let model = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(script))
    });
    let boss = || {
        Agent::new(MODEL)
            .context_window(100_000)
            .sub_agent(sub_agent("helper", counter()).describe("Counts."))
    };
    let runtime = builder(&model).cost_limit_usd(usd(whole * 2), Period::Day).start().await.unwrap();
    let session = runtime.open("boss", &boss()).await.unwrap();
    // Counted twice, it would be used up.
    session.prompt("go").await.unwrap();
    let cost = spent(&session).await;
    assert!(cost > whole / 2 && cost < whole * 2, "{cost} of {whole}");
    let limited = runtime.open("limited", &boss().run_cost_limit_usd(usd(cost / 4))).await.unwrap();
    let reason = stopped_by(limited.prompt("go").await);
    assert!(reason.starts_with("the run reached"), "{reason}");
    assert!(spent(&limited).await < cost / 2);
}

/// Calls that wait for the provider are not made if others have used up the budget meanwhile.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_place_is_not_called_beyond_the_limit() {
    let answer = |_: &SeenRequest, _: CallInfo| Said::text(text("long.", 2_000)).after_ms(100);
    let model = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(answer))
    });
    let agent = Agent::new(MODEL).context_window(100_000);
    let one = {
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &agent).await.unwrap();
        session.prompt("go").await.unwrap();
        spent(&session).await
    };
    let before = model.requests().len();
    let runtime = Runtime::builder().provider_with(model.provider(), 1).engine(store());
    let runtime = runtime.cost_limit_usd(usd(one * 5 / 2), Period::Hour).start().await.unwrap();
    let prompts = (0..50).map(async |number| {
        let session = runtime.open(&format!("s{number}"), &agent).await.unwrap();
        session.prompt("go").await
    });
    let ends = futures_util::future::join_all(prompts).await;
    let made = model.requests().len() - before;
    assert!((3..=4).contains(&made), "{made} calls were made");
    let (answered, stopped): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
    assert_eq!(answered.len(), made);
    for end in stopped {
        assert!(stopped_by(end).starts_with("the runtime reached its cost limit"));
    }
}

/// No limit is used up by a report that no call can have: it is billed by our own count.
#[tokio::test(start_paused = true)]
async fn an_impossible_report_uses_no_limit_up() {
    let absurd = Usage { input_tokens: u64::MAX, output_tokens: 7_000_000_000, ..Usage::default() };
    let answer = move |_: &SeenRequest, _: CallInfo| Said::text("words").with_usage(absurd);
    let model =
        Simulator::new(SimulatorOptions { window: 100_000, ..SimulatorOptions::new(Function(answer)) });
    let runtime = builder(&model)
        .price_for("m", ModelPrice::new(5.0, 20.0))
        .cost_limit_usd(1.0, Period::Day)
        .start()
        .await
        .unwrap();
    let session = runtime.open("s", &Agent::new("m").context_window(100_000)).await.unwrap();
    for _ in 0..3 {
        let reply = session.prompt("go").await.unwrap();
        let tokens = reply.usage.input_tokens + reply.usage.output_tokens;
        assert!(reply.is_cost_estimated && tokens > 0 && tokens < 1_000, "{:?}", reply.usage);
    }
}

/// A price that is set replaces the catalogue's or makes one known: for the bill, the limits and the list of models.
#[tokio::test(start_paused = true)]
async fn prices_can_be_set() {
    let answer = |_: &SeenRequest, _: CallInfo| Said::text(text("words.", 500));
    let model = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(answer))
    });
    let agent = |name: &str| Agent::new(name).context_window(100_000);
    let runtime = builder(&model)
        .price_for("gpt-4o", ModelPrice::new(100.0, 0.0))
        .price_for("my-own", ModelPrice::new(0.0, 10.0))
        .spending_by([""; 0])
        .start()
        .await
        .unwrap();
    let cost = async |id: &str, agent: Agent| {
        let reply = runtime.open(id, &agent).await.unwrap().prompt("go").await.unwrap();
        assert_eq!(spent(&runtime.session(id).await.unwrap()).await, reply.cost_microdollars, "{id}");
        (reply.usage, reply.cost_microdollars)
    };
    let (usage, of_catalog) = cost("a", agent("gpt-4o-mini")).await;
    assert!(of_catalog > 0);
    assert_eq!(cost("b", agent("gpt-4o")).await.1, usage.input_tokens * 100);
    assert_eq!(cost("c", agent("my-own")).await.1, usage.output_tokens * 10);
    let own = agent("my-own").price_for("my-own", ModelPrice::new(0.0, 20.0));
    assert_eq!(cost("d", own.clone()).await.1, usage.output_tokens * 20);
    assert_eq!(cost("e", agent("unknown")).await.1, 0);
    // A session that gets an agent with another price.
    let session = runtime.open("c", &own).await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().cost_microdollars, usage.output_tokens * 20);
    let all = runtime.sessions().bill().await.unwrap().cost_microdollars;
    assert_eq!(runtime.spending().await.unwrap()[0].cost_microdollars, all);
    // Limits apply to it.
    let limited = runtime.open("f", own.clone().run_cost_limit_usd(0.000_001)).await.unwrap();
    let reason = stopped_by(limited.prompt("go").await);
    assert!(reason.starts_with("the run reached its cost limit"), "{reason}");
    let models = runtime.models(&own).await.unwrap().models;
    let listed = |id: &str| {
        models.iter().find(|model| model.id == id).map(|model| (model.prices.unwrap().output, model.source))
    };
    assert_eq!(listed("my-own"), Some((20_000_000, FactSource::Settings)));
    assert_eq!(listed("gpt-4o"), Some((0, FactSource::Settings)));
    assert_eq!(listed("gpt-4o-mini").map(|(_, source)| source), Some(FactSource::Catalog));
    for price in [ModelPrice::new(-1.0, 0.0), ModelPrice::new(0.0, f64::NAN)] {
        let refused = runtime.open("g", agent("m").price_for("m", price.clone())).await.unwrap_err();
        assert!(matches!(refused, Error::Config(ConfigError::Price { .. })), "{refused}");
        let refused = builder(&model).price_for("m", price).start().await.map(|_| ()).unwrap_err();
        assert!(refused.to_string().starts_with("the price of m is invalid: "), "{refused}");
    }
    model.assert_clean();
}

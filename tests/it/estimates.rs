//! The cost of calls that no server reports: those without a plausible report, and interrupted ones.
//!
//! Invariants: whatever happened, a bill is the sum of the log, and estimated parts are marked.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{Fallback, Period};
use greenroom_kernel::entry::{EntryKind, Spender};
use greenroom_kernel::message::Message;
use greenroom_kernel::{EntryId, Usage};
use greenroom_provider::Catalog;
use greenroom_simulator::{
    Answer as Said, CallInfo, Fault, Function, Pace, Script, SeenRequest, Sequence, Simulator,
    SimulatorOptions, Summariser, WrongUsage,
};
use serde_json::json;

use crate::compaction_fixtures::{ends, keep, text, warnings};
use crate::support::{builder, drain, store};

const MODEL: &str = "gpt-4o";
/// A model that the catalogue does not know.
const UNKNOWN: &str = "nobody-knows-it";

fn served_as(provider: &str, script: impl Script + 'static) -> Simulator {
    let options = SimulatorOptions::new(script);
    Simulator::new(SimulatorOptions { provider_name: provider.to_owned(), window: 100_000, ..options })
}

fn priced(script: impl Script + 'static) -> Simulator {
    served_as("openai", script)
}

fn plain(model: &str) -> Agent {
    Agent::new(model).context_window(100_000)
}

#[derive(Deserialize, JsonSchema)]
struct Count {}

fn counter() -> Agent {
    plain(MODEL).tool("count", |_: Count| async move { Ok(text("one more.", 200)) })
}

#[expect(clippy::cast_precision_loss, reason = "small sums")]
fn usd(microdollars: u64) -> f64 {
    microdollars as f64 / 1e6
}

fn cost(usage: &Usage) -> u64 {
    Catalog::bundled().find("openai", MODEL).unwrap().cost_microdollars(usage).unwrap()
}

/// Returns the cost in the log of a session, in micro-dollars, and its estimated tokens.
async fn logged(runtime: &Runtime, id: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in runtime.entries(id, EntryId(0)).await.unwrap() {
        let (usage, cost) = match &entry.kind {
            EntryKind::Message { message, .. } => match &**message {
                Message::Assistant(answer) => {
                    let usage = answer.usage.unwrap_or_default();
                    (usage, cost(&usage))
                }
                Message::User(_) | Message::ToolResult(_) => continue,
            },
            EntryKind::CompactionEnded(ended) => (ended.summary_usage, ended.cost_microdollars.unwrap_or(0)),
            EntryKind::Spent(spent) => (spent.usage, spent.cost_microdollars.unwrap_or(0)),
            _ => continue,
        };
        sum = (sum.0 + cost, sum.1 + usage.estimated_tokens);
    }
    sum
}

/// Returns the cost and the estimated tokens of a session, on which its state, its head and its log agree.
async fn bill(runtime: &Runtime, session: &SessionHandle) -> (u64, u64) {
    let state = session.state().await.unwrap();
    let summary = runtime.summary(session.id()).await.unwrap().unwrap();
    let bill = (state.cost_microdollars, state.estimated_tokens);
    assert_eq!(bill, (summary.cost_microdollars, summary.usage.estimated_tokens));
    assert_eq!(bill, logged(runtime, session.id()).await);
    bill
}

/// How a server reports usage.
#[derive(Debug, Clone, Copy)]
enum Reports {
    Truth,
    Nothing,
    Usage(u64, u64),
}

impl Reports {
    fn on(self, said: Said) -> Said {
        match self {
            Self::Truth => said,
            Self::Nothing => said.with_fault(Fault::Usage(WrongUsage::Missing)),
            Self::Usage(input_tokens, output_tokens) => {
                said.with_usage(Usage { input_tokens, output_tokens, ..Usage::default() })
            }
        }
    }

    fn is_true(self) -> bool {
        matches!(self, Self::Truth)
    }
}

const FALSE: [Reports; 4] =
    [Reports::Nothing, Reports::Usage(0, 0), Reports::Usage(1, 1), Reports::Usage(0, 40)];

/// Returns a run that would take 40 steps; its cost, and the estimated part.
async fn endless_run(reports: Reports, limit: Option<u64>) -> (u64, u64, usize) {
    let script = move |request: &SeenRequest, info: CallInfo| {
        let said = if info.session_call < 40 {
            Said::call("count", &json!({ "number": request.messages.len() }))
        } else {
            Said::text("counted")
        };
        reports.on(said)
    };
    let model = priced(Function(script));
    let runtime = builder(&model).start().await.unwrap();
    let agent = counter().limits(RunLimits { repeats_max: 100, ..RunLimits::default() });
    let agent = limit.map_or(agent.clone(), |limit| agent.run_cost_limit_usd(usd(limit)));
    let session = runtime.open("s", &agent).await.unwrap();
    let mut events = session.subscribe();
    let end = session.prompt("count").await;
    match limit {
        Some(_) => assert!(matches!(&end, Err(Error::Stopped { reason }) if reason.contains("cost limit"))),
        None => assert_eq!(end.unwrap().text, "counted"),
    }
    let (cost, estimated) = bill(&runtime, &session).await;
    let told = drain(&mut events).iter().rev().find_map(|event| match &event.kind {
        EventKind::UsageUpdate { cost_microdollars, estimated_tokens, .. } => {
            Some((*cost_microdollars, *estimated_tokens))
        }
        _ => None,
    });
    assert_eq!(told, Some((cost, estimated)), "the newest usage_update tells it");
    (cost, estimated, model.requests().len())
}

#[tokio::test(start_paused = true)]
async fn a_report_that_cannot_be_voids_no_limit() {
    let (whole, estimated, _) = endless_run(Reports::Truth, None).await;
    assert_eq!(estimated, 0, "a true report stands");
    for reports in FALSE {
        let (cost, estimated, _) = endless_run(reports, None).await;
        assert!(estimated > 0, "{reports:?}");
        assert!((whole / 2..whole * 2).contains(&cost), "{reports:?}: {cost} where {whole} is true");
        let limit = whole / 3;
        let (cost, _, calls) = endless_run(reports, Some(limit)).await;
        assert!(cost <= limit, "{reports:?}: {cost} of {limit}");
        assert!(calls < 30, "{reports:?}: {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_has_what_was_estimated() {
    for reports in [Reports::Truth, Reports::Nothing] {
        let model = priced(Function(move |_: &SeenRequest, _: CallInfo| reports.on(Said::text("well"))));
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &plain(MODEL)).await.unwrap();
        let reply = session.prompt("how are you?").await.unwrap();
        assert!(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0, "{:?}", reply.usage);
        assert_eq!(reply.usage.estimated_tokens == 0, reports.is_true(), "{:?}", reply.usage);
        assert_eq!(!reply.is_cost_estimated, reports.is_true());
    }
}

/// Answers with reasoning only are requested again, and billed.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_recorded_is_paid_for() {
    for reports in [Reports::Truth, Reports::Nothing] {
        let script = move |_: &SeenRequest, info: CallInfo| {
            reports.on(match info.call {
                0 => Said::text("").with_reasoning(text("hmm.", 500)),
                _ => Said::text("well"),
            })
        };
        let model = priced(Function(script));
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &plain(MODEL)).await.unwrap();
        session.prompt("how are you?").await.unwrap();
        assert_eq!(model.requests().len(), 2);
        let (cost, estimated) = bill(&runtime, &session).await;
        // Output costs 10 dollars per million.
        assert!(cost > 400 * 10, "{cost}");
        assert_eq!(estimated == 0, reports.is_true());
    }
}

/// The tokens of a session are those of all its calls, also where nobody knows what they cost.
#[tokio::test(start_paused = true)]
async fn tokens_are_counted_without_a_price() {
    type Scripted = fn(CallInfo) -> Said;
    let tokens = async |is_priced: bool, script: Scripted| {
        let model = priced(Function(move |_: &SeenRequest, info: CallInfo| script(info)));
        let runtime = builder(&model).spending_by(["tenant"]).start().await.unwrap();
        let session = runtime.open("s", &plain(if is_priced { MODEL } else { UNKNOWN })).await.unwrap();
        session.set_label("tenant", "x").await.unwrap();
        let _ = session.prompt("how are you?").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let state = session.state().await.unwrap();
        let spent = runtime.spending().of("tenant", "x").await.unwrap();
        let spent: u64 = spent.iter().map(|spent| spent.usage.total_tokens()).sum();
        assert_eq!(spent, state.total_tokens);
        assert_eq!(state.cost_microdollars > 0, is_priced);
        (state.total_tokens, state.estimated_tokens)
    };
    let cases: [(&str, Scripted); 4] = [
        ("no report", |_| Reports::Nothing.on(Said::text(text("well.", 200)))),
        ("an impossible report", |_| Reports::Usage(1, 1).on(Said::text(text("well.", 200)))),
        ("answers that are not recorded", |info| {
            let said = Said::text(if info.call < 2 { "" } else { "well" });
            Reports::Usage(50, 500).on(said.with_reasoning(text("hmm.", 300)))
        }),
        ("a broken answer", |info| match info.call {
            0 => Said::text(text("well.", 200)).with_fault(Fault::MalformedSse),
            _ => Said::text("well"),
        }),
    ];
    for (case, script) in cases {
        let with_price = tokens(true, script).await;
        assert!(with_price.0 > 100, "{case}: {with_price:?}");
        assert_eq!(tokens(false, script).await, with_price, "{case}");
    }
}

struct Reporting<S>(Reports, S);

impl<S: Script> Script for Reporting<S> {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Said {
        self.0.on(self.1.reply(request, call))
    }
}

#[tokio::test(start_paused = true)]
async fn summaries_are_counted_where_nothing_is_reported() {
    for reports in [Reports::Truth, Reports::Nothing] {
        let talk = Function(|_: &SeenRequest, _: CallInfo| Said::text(text("answer.", 300)));
        let model =
            priced(greenroom_simulator::ByPurpose::new(talk, Reporting(reports, Summariser::Obedient)));
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &plain(MODEL)).await.unwrap();
        for number in 0..8 {
            session.prompt(format!("question {number}")).await.unwrap();
        }
        let mut events = session.subscribe();
        assert!(session.compact(keep(300)).await.unwrap().is_installed());
        let ends = ends(&drain(&mut events));
        assert!(ends[0].cost_microdollars.unwrap() > 1_000, "{ends:?}");
        assert_eq!(ends[0].summary_usage.estimated_tokens == 0, reports.is_true(), "{ends:?}");
        assert_eq!(bill(&runtime, &session).await.1 == 0, reports.is_true());
    }
}

#[tokio::test(start_paused = true)]
async fn a_fallback_s_answer_is_counted_where_nothing_is_reported() {
    let no_key = Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() };
    let failing = Function(move |_: &SeenRequest, _: CallInfo| Said::fault(no_key.clone()));
    let (one, two) = (
        served_as("first", failing),
        priced(Function(|_: &SeenRequest, _: CallInfo| Reports::Nothing.on(Said::text("well")))),
    );
    let runtime = builder(&one).provider(two.provider()).start().await.unwrap();
    let fallback = Fallback::new(MODEL).provider("openai").context_window(100_000);
    let agent = plain(UNKNOWN).fallback(fallback);
    let session = runtime.open("s", &agent).await.unwrap();
    session.prompt("how are you?").await.unwrap();
    let (cost, estimated) = bill(&runtime, &session).await;
    assert!(cost > 0 && estimated > 0);
}

/// What interrupts a call.
#[derive(Debug, Clone, Copy)]
enum CutOff {
    User,
    TimeLimit,
    Silence,
    Provider,
}

/// Slow answers, about half of which has arrived when they are interrupted.
async fn cut_off(how: CutOff, is_helper: bool) {
    let pace = Pace { chunks: 1_000, first_ms: 10, between_ms: 10 };
    let script = move |request: &SeenRequest, info: CallInfo| {
        if request.has_tool("helper") {
            return match info.session_call {
                0 => Said::call("helper", &json!({ "task": "talk" })),
                _ => Said::text("done"),
            };
        }
        let said = Said::text(text("long.", 2_000)).with_pace(pace);
        match (how, info.session_call) {
            (CutOff::User | CutOff::TimeLimit, _) => said,
            (CutOff::Silence, 0) => said.with_fault(Fault::Stall {
                at: greenroom_simulator::Point::MidStream,
                ping_every_ms: None,
                for_ms: None,
            }),
            (CutOff::Provider, 0) => said.with_fault(Fault::Reset(greenroom_simulator::Point::MidStream)),
            (CutOff::Silence | CutOff::Provider, _) => Said::text("short"),
        }
    };
    let model = priced(Function(script));
    let runtime = builder(&model).silence_max(Duration::from_secs(60)).start().await.unwrap();
    let mut talker = plain(MODEL);
    if matches!(how, CutOff::TimeLimit) {
        talker = talker.run_timeout(Some(Duration::from_secs(5)));
    }
    let agent = match is_helper {
        true => plain(MODEL).sub_agent(sub_agent("helper", talker).describe("Talks.")),
        false => talker,
    };
    let session = runtime.open("s", &agent).await.unwrap();
    let abort = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        if matches!(how, CutOff::User) {
            session.abort();
        }
    };
    let (end, ()) = tokio::join!(session.prompt("go"), abort);
    assert_eq!(
        end.is_err(),
        matches!(how, CutOff::User) || (matches!(how, CutOff::TimeLimit) && !is_helper),
        "{how:?}: {end:?}"
    );
    let (cost, estimated) = bill(&runtime, &session).await;
    // Of 2,000 tokens about a half arrived, at 10 dollars per million. It may be twice as many if it arrived
    // as a whole.
    assert!((700..2_500).contains(&estimated), "{how:?}, {is_helper}: {estimated}");
    assert!(cost >= 7_000, "{how:?}, {is_helper}: {cost}");
    if is_helper {
        let [helper] = &runtime.sessions().children_of("s").await.unwrap()[..] else { panic!("one helper") };
        assert_eq!(helper.usage.estimated_tokens, estimated, "{how:?}");
        let logged = logged(&runtime, &helper.id).await;
        assert_eq!((helper.cost_microdollars, estimated), logged, "{how:?}");
    }
    runtime.close("s").await.unwrap();
    assert_eq!(bill(&runtime, &session).await, (cost, estimated), "{how:?}: reopened");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cut_off_costs_what_can_be_estimated() {
    for how in [CutOff::User, CutOff::TimeLimit, CutOff::Silence, CutOff::Provider] {
        for is_helper in [false, true] {
            cut_off(how, is_helper).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_server_refuses_or_that_was_never_sent_costs_nothing() {
    let model = priced(Sequence(vec![
        Said::fault(Fault::ServerError(500)),
        Said::fault(Fault::Refused),
        Said::text("well"),
    ]));
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &plain(MODEL)).await.unwrap();
    session.prompt("how are you?").await.unwrap();
    assert_eq!(bill(&runtime, &session).await.1, 0);
    // It is waiting for the provider when it is aborted.
    let pace = Pace { chunks: 1, first_ms: 60_000, between_ms: 1 };
    let slow = priced(Function(move |_: &SeenRequest, _: CallInfo| Said::text("late").with_pace(pace)));
    let runtime = Runtime::builder().provider_with(slow.provider(), 1).engine(store()).start().await.unwrap();
    let first = runtime.open("first", &plain(MODEL)).await.unwrap();
    let second = runtime.open("second", &plain(MODEL)).await.unwrap();
    let abort = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        second.abort();
    };
    let waiting = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        second.prompt("go").await
    };
    let (answered, aborted, ()) = tokio::join!(first.prompt("go"), waiting, abort);
    assert!(answered.is_ok() && matches!(aborted, Err(Error::Aborted)));
    assert_eq!(bill(&runtime, &second).await, (0, 0));
}

/// The first call too gets no more output than the budget pays for, and is not made if its input is too
/// expensive.
#[tokio::test(start_paused = true)]
async fn the_first_call_is_bounded() {
    let long = || priced(Function(|_: &SeenRequest, _: CallInfo| Said::text(text("long.", 8_000))));
    for reports in [Reports::Truth, Reports::Nothing] {
        for limit in [2_000, 10_000, 50_000] {
            let model = priced(Reporting(
                reports,
                Function(|_: &SeenRequest, _: CallInfo| Said::text(text("long.", 8_000))),
            ));
            let runtime = builder(&model).start().await.unwrap();
            let session = runtime.open("s", &plain(MODEL)).await.unwrap();
            let end = session.prompt("talk").cost_limit_usd(usd(limit)).await;
            assert!(end.is_ok(), "{end:?}");
            let (cost, _) = bill(&runtime, &session).await;
            assert!((limit * 7 / 10..=limit).contains(&cost), "{reports:?}: {cost} of {limit}");
            let cap = model.requests()[0].request.settings.output_tokens_max;
            assert!(cap.is_some_and(|cap| cap <= limit / 10), "{cap:?}");
        }
    }
    // Requests that the limit does not affect are sent unchanged.
    let model = long();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &plain(MODEL)).await.unwrap();
    session.prompt("talk").cost_limit_usd(5.0).await.unwrap();
    assert_eq!(model.requests()[0].request.settings.output_tokens_max, None);
    // The input alone is too expensive: 20,000 tokens are 5 cents.
    let model = long();
    let limited = builder(&model).cost_limit_usd(0.02, Period::Day).start().await.unwrap();
    let unlimited = builder(&model).start().await.unwrap();
    for (runtime, agent, expected) in [
        (
            &unlimited,
            plain(MODEL).cost_limit_usd(0.02),
            "the session reached its cost limit of $0.02: $0.02 is left",
        ),
        (
            &unlimited,
            plain(MODEL).run_cost_limit_usd(0.02),
            "the run reached its cost limit of $0.02: $0.02 is left",
        ),
        (
            &limited,
            plain(MODEL),
            "the runtime has a cost limit of $0.02 a day, which is below the cost of one call",
        ),
    ] {
        let session = runtime.open(&format!("{}", expected.len()), &agent).await.unwrap();
        let end = session.prompt(text("read this.", 20_000)).await;
        let Err(Error::Stopped { reason }) = &end else { panic!("{end:?}") };
        assert!(reason.starts_with(expected), "{reason}");
        assert!(reason.contains("the input of the next call alone may cost $0.0"), "{reason}");
    }
    assert_eq!(model.requests().len(), 0);
}

/// The summary of a conversation cannot exceed the limit either.
#[tokio::test(start_paused = true)]
async fn a_summary_is_bounded_too() {
    let talk = Function(|_: &SeenRequest, _: CallInfo| Said::text(text("answer.", 300)));
    let model = priced(greenroom_simulator::ByPurpose::new(talk, Summariser::Obedient));
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &plain(MODEL)).await.unwrap();
    for number in 0..8 {
        session.prompt(format!("question {number}")).await.unwrap();
    }
    let (cost, _) = bill(&runtime, &session).await;
    let limited = plain(MODEL).cost_limit_usd(usd(cost + 500));
    let session = runtime.open("s", &limited).await.unwrap();
    let asked = model.requests().len();
    let end = session.compact(keep(300)).await;
    assert_eq!(model.requests().len(), asked, "{end:?}");
    assert_eq!(bill(&runtime, &session).await.0, cost);
}

/// Checks how often in two runs a warning says that a limit cannot be enforced.
async fn check_is_told(runtime: Runtime, agent: Agent, limit: Option<f64>, expected: usize) {
    let session = runtime.open("s", &agent).await.unwrap();
    let mut events = session.subscribe();
    for _ in 0..2 {
        let prompt = session.prompt("go");
        let prompt = match limit {
            Some(usd) => prompt.cost_limit_usd(usd),
            None => prompt,
        };
        prompt.await.unwrap();
    }
    let all = warnings(&drain(&mut events));
    let told: Vec<_> = all.iter().filter(|text| text.starts_with("the price of ")).collect();
    assert_eq!(told.len(), expected, "{all:?}");
    assert!(told.iter().all(|text| text.contains(UNKNOWN)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_cannot_hold_says_so_once() {
    let script = || {
        Function(|request: &SeenRequest, _: CallInfo| {
            let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
            match request.has_tool("helper") && !has_result {
                true => Said::call("helper", &json!({ "task": "help" })),
                false => Said::text("well"),
            }
        })
    };
    let limited = async |is_purse: bool| {
        let model = priced(script());
        let no_key = Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() };
        let broken =
            served_as("broken", Function(move |_: &SeenRequest, _: CallInfo| Said::fault(no_key.clone())));
        let builder = builder(&model).provider(broken.provider());
        let builder = if is_purse { builder.cost_limit_usd(1.0, Period::Day) } else { builder };
        builder.start().await.unwrap()
    };
    let unknown = || plain(UNKNOWN).provider("openai");
    let known = || plain(MODEL).provider("openai");
    check_is_told(limited(false).await, unknown(), None, 0).await;
    check_is_told(limited(true).await, known(), Some(1.0), 0).await;
    check_is_told(limited(true).await, unknown(), None, 1).await;
    check_is_told(limited(false).await, unknown(), Some(1.0), 1).await;
    check_is_told(limited(true).await, unknown().cost_limit_usd(1.0), Some(1.0), 1).await;
    check_is_told(limited(false).await, unknown().cost_limit_usd(1.0), None, 1).await;
    check_is_told(limited(false).await, unknown().run_cost_limit_usd(1.0), None, 1).await;
    // A fallback, and an agent called as a tool: the owner of the limit is warned.
    let fallback = Fallback::new(UNKNOWN).provider("openai").context_window(100_000);
    let falls_back = plain(MODEL).provider("broken").fallback(fallback);
    check_is_told(limited(false).await, falls_back.clone(), None, 0).await;
    // The broken server's price is not known either; it is called first, and refuses.
    let session_limit = falls_back.cost_limit_usd(1.0);
    let runtime = limited(false).await;
    let session = runtime.open("s", &session_limit).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("go").await.unwrap();
    let told = warnings(&drain(&mut events));
    assert!(told.iter().any(|text| text.contains(&format!("the price of {UNKNOWN} at "))), "{told:?}");
    let boss = known().sub_agent(sub_agent("helper", unknown()).describe("Helps."));
    check_is_told(limited(false).await, boss.clone(), Some(1.0), 1).await;
    check_is_told(limited(true).await, boss.clone(), None, 1).await;
    check_is_told(limited(false).await, boss, None, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_summary_model_without_a_price_voids_no_limit_in_silence() {
    let talk = Function(|_: &SeenRequest, _: CallInfo| Said::text(text("answer.", 300)));
    let model = priced(greenroom_simulator::ByPurpose::new(talk, Summariser::Obedient));
    let runtime = builder(&model).start().await.unwrap();
    let summary_model =
        CompactionSettings { summary_model: Some(UNKNOWN.into()), ..CompactionSettings::default() };
    let agent = plain(MODEL).compaction(summary_model).cost_limit_usd(1.0);
    let session = runtime.open("s", &agent).await.unwrap();
    for number in 0..8 {
        session.prompt(format!("question {number}")).await.unwrap();
    }
    let mut events = session.subscribe();
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let events = drain(&mut events);
    assert_eq!(ends(&events)[0].cost_microdollars, None);
    let told = warnings(&events);
    assert!(told.iter().any(|text| text.starts_with(&format!("the price of {UNKNOWN} at "))), "{told:?}");
}

/// The entries are those of the session's own calls only.
#[tokio::test(start_paused = true)]
async fn what_was_estimated_is_an_entry_of_its_own() {
    let model = priced(Function(|_: &SeenRequest, _: CallInfo| Reports::Usage(1, 1).on(Said::text("well"))));
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &plain(MODEL).instructions(text("Be kind.", 400))).await.unwrap();
    session.prompt("how are you?").await.unwrap();
    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let spent: Vec<_> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::Spent(spent) => Some(spent),
            _ => None,
        })
        .collect();
    let [spent] = &spent[..] else { panic!("{spent:?}") };
    assert_eq!(spent.by, Spender::Calls);
    // With the report of 1 it is our own count.
    assert!((350..550).contains(&spent.usage.input_tokens), "{spent:?}");
    assert_eq!(spent.usage.estimated_tokens, spent.usage.total_tokens());
}

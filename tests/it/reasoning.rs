//! A reasoning model: its context has the size that the server counts, however its reasoning is sent back.

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, Provider, Purpose, ResendReasoning, ServerOptions};
use greenroom_kernel::{AssistantMessage, Message, Part, StopReason};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Counting, Fault, Function, ReadsReasoning, Script, SeenRequest,
    Simulator, SimulatorOptions, Summariser, WrongUsage, tokens,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::compaction_fixtures::text;
use crate::support::{agent, drain, store};

const RUNS: u64 = 40;
/// The reasoning of each answer, in approximate tokens.
const THOUGHT_TOKENS: usize = 1_600;
/// The window of the session that was compacted at a real size of 103 tokens.
const SMALL_WINDOW: u64 = 16_000;

/// A server, and how requests are sent to it.
#[derive(Debug, Clone, Copy)]
struct Way {
    resend: ResendReasoning,
    /// Whether the agent's settings configure it, and not the provider's.
    is_setting: bool,
    over_http: bool,
    counting: Counting,
}

impl Way {
    fn in_process(resend: ResendReasoning) -> Self {
        Self { resend, is_setting: false, over_http: false, counting: Counting::default() }
    }

    fn counting(self, counting: Counting) -> Self {
        Self { counting, ..self }
    }

    /// Whether the next request passes the reasoning of the previous answer to the model.
    fn keeps_thoughts(&self) -> bool {
        self.resend != ResendReasoning::Never && self.counting.reads_reasoning != ReadsReasoning::Nothing
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Calls a tool with each first answer of a run, and reasons before each answer.
fn thinker() -> impl Script {
    Function(thinks)
}

fn thinks(request: &SeenRequest, info: CallInfo) -> Said {
    let thought = text(&format!("thought {}.", info.session_call), THOUGHT_TOKENS);
    let has_result = matches!(request.messages.last().map(|last| &**last), Some(Message::ToolResult(_)));
    let said = if has_result {
        Said::text(format!("It rains, as on day {}.", info.session_call))
    } else {
        Said::call("look", &serde_json::json!({}))
    };
    said.with_reasoning(thought)
}

/// Returns a runtime that calls the model in this way, and an agent for it.
async fn started(way: Way, model: &Simulator, window: u64) -> (Runtime, Agent, impl Sized) {
    let mut served = None;
    let provider: Arc<dyn Provider> = if way.over_http {
        let server = model.serve().await.unwrap();
        let resend_reasoning = if way.is_setting { ResendReasoning::Never } else { way.resend };
        let options = ServerOptions { base_url: server.base_url(), resend_reasoning, ..Default::default() };
        served = Some(server);
        Arc::new(HttpProvider::new(options).unwrap())
    } else {
        model.provider()
    };
    let builder = Runtime::builder().provider(provider).engine(store()).clock_from(1_700_000_000_000);
    let mut agent = agent(window).tool("look", |_: Nothing| async move { Ok("The sky is grey.") });
    if way.is_setting {
        agent = agent.settings(ModelSettings::new().resend_reasoning(way.resend));
    }
    (builder.start().await.unwrap(), agent, served)
}

fn model(way: Way, script: impl Script + 'static, window: u64) -> Simulator {
    let resend_reasoning = if way.is_setting { ResendReasoning::Never } else { way.resend };
    let options =
        SimulatorOptions { resend_reasoning, counting: way.counting, ..SimulatorOptions::new(script) };
    Simulator::new(SimulatorOptions { window, log_capacity: 4, ..options })
}

/// Returns the server's count of the last request and its answer, as in the next request.
fn counted(model: &Simulator, way: Way, answer: &str) -> u64 {
    let requests = model.requests();
    let last = requests.iter().rfind(|logged| logged.request.purpose == Purpose::Step);
    let last = &last.unwrap().request;
    let thought = text(&format!("thought {}.", answer_number(answer)), THOUGHT_TOKENS);
    let said = Message::Assistant(AssistantMessage::new(
        vec![Part::Text(answer.to_owned())],
        String::new(),
        String::new(),
        StopReason::Stop,
    ));
    let kept = if way.keeps_thoughts() { tokens::count(&thought) } else { 0 };
    last.tokens + tokens::message(&said) + kept
}

fn answer_number(answer: &str) -> u64 {
    answer.trim_end_matches('.').rsplit(' ').next().unwrap().parse().unwrap()
}

async fn check(way: Way) {
    // All the reasoning that is sent back has room, so that nothing may be compacted.
    let window = if way.resend == ResendReasoning::Never { SMALL_WINDOW } else { 400_000 };
    let model = model(way, thinker(), window);
    let (runtime, agent, _served) = started(way, &model, window).await;
    let session = runtime.open("thinker", &agent).await.unwrap();
    let mut events = session.subscribe();
    for run in 0..RUNS {
        let answer = session.prompt(format!("What is the weather on day {run}?")).await.unwrap();
        let (context, truth) = (session.state().await.unwrap().context, counted(&model, way, &answer.text));
        assert!(
            context.tokens.abs_diff(truth) <= truth / 10,
            "{way:?}, run {run}: {context:?}, and the server counts {truth}"
        );
        assert!(context.usage_tokens > 0, "{way:?}, run {run}: the report is used: {context:?}");
        for event in drain(&mut events) {
            let name = event.kind.name();
            assert!(
                !matches!(name, "warning" | "compaction_start" | "overflow_detected"),
                "{way:?}, run {run}: {event:?}"
            );
        }
    }
    let requests = model.requests();
    let sent = requests.last().unwrap().request.messages.iter();
    let thoughts = sent
        .filter(|message| matches!(&***message, Message::Assistant(answer) if answer.reasoning_chars() > 0));
    let expected = if way.resend == ResendReasoning::Never { 0 } else { 2 * RUNS - 1 };
    assert_eq!(thoughts.count() as u64, expected, "{way:?}: what is sent back");
    runtime.shutdown().await.unwrap();
    model.assert_clean();
}

const RESENT: [ResendReasoning; 2] = [ResendReasoning::AsReasoningContent, ResendReasoning::AsReasoning];

fn with_and_without_reports(reads_reasoning: ReadsReasoning) -> [Counting; 2] {
    [true, false].map(|reports_reasoning| Counting {
        reads_reasoning,
        reports_reasoning,
        ..Counting::default()
    })
}

#[tokio::test(start_paused = true)]
async fn reasoning_that_is_not_sent_back_is_no_part_of_the_context() {
    for counting in with_and_without_reports(ReadsReasoning::All) {
        let way = Way::in_process(ResendReasoning::Never).counting(counting);
        check(way).await;
        check(Way { is_setting: true, ..way }).await;
    }
}

/// If a server reports nothing, our own count applies: it includes the reasoning that is sent back, and no
/// other.
#[tokio::test(start_paused = true)]
async fn without_any_report_our_own_count_has_the_reasoning_that_is_sent_back() {
    for (resend, window) in [(ResendReasoning::Never, SMALL_WINDOW), (RESENT[0], 400_000)] {
        let way = Way::in_process(resend);
        let silent = |request: &SeenRequest, info: CallInfo| {
            thinks(request, info).with_fault(Fault::Usage(WrongUsage::Missing))
        };
        let model = model(way, Function(silent), window);
        let (runtime, agent, _served) = started(way, &model, window).await;
        let session = runtime.open("thinker", &agent).await.unwrap();
        let mut events = session.subscribe();
        for run in 0..RUNS {
            let answer = session.prompt(format!("What is the weather on day {run}?")).await.unwrap();
            let context = session.state().await.unwrap().context;
            let truth = counted(&model, way, &answer.text);
            assert_eq!(context.usage_tokens, 0, "{way:?}: there is no report");
            assert!(
                context.tokens.abs_diff(truth) <= truth / 4 + 100,
                "{way:?}, run {run}: {context:?}, and the server counts {truth}"
            );
            let is_compacting = |event: &Arc<Event>| event.kind.name() == "compaction_start";
            assert!(!drain(&mut events).iter().any(is_compacting), "{way:?}, run {run}");
        }
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn reasoning_that_is_sent_back_counts_as_often_as_the_server_reads_it() {
    let mut cases = 0;
    for reads in [ReadsReasoning::All, ReadsReasoning::Turn, ReadsReasoning::Nothing] {
        for counting in with_and_without_reports(reads) {
            for resend in RESENT {
                check(Way::in_process(resend).counting(counting)).await;
                cases += 1;
            }
            check(Way { is_setting: true, ..Way::in_process(RESENT[0]).counting(counting) }).await;
        }
    }
    assert_eq!(cases, 12);
}

/// End to end: over HTTP, in each field, parsed by an independent server.
#[tokio::test]
async fn over_http_the_context_is_what_the_server_counts_too() {
    for counting in with_and_without_reports(ReadsReasoning::All) {
        for resend in [ResendReasoning::Never, RESENT[0], RESENT[1]] {
            let way = Way { over_http: true, ..Way::in_process(resend).counting(counting) };
            check(way).await;
        }
    }
    for reads_reasoning in [ReadsReasoning::Turn, ReadsReasoning::Nothing] {
        let way = Way { over_http: true, is_setting: true, ..Way::in_process(RESENT[1]) };
        check(way.counting(Counting { reads_reasoning, ..Counting::default() })).await;
    }
}

/// Compactions follow the size of what is really sent, and not earlier.
#[tokio::test(start_paused = true)]
async fn a_context_with_reasoning_that_goes_back_is_compacted_when_it_is_due() {
    let window = 60_000;
    for reads_reasoning in [ReadsReasoning::All, ReadsReasoning::Turn] {
        let way = Way::in_process(RESENT[0]).counting(Counting { reads_reasoning, ..Counting::default() });
        let model = model(way, ByPurpose::new(thinker(), Summariser::Obedient), window);
        let (runtime, agent, _served) = started(way, &model, window).await;
        let session = runtime.open("thinker", &agent).await.unwrap();
        let mut events = session.subscribe();
        let mut compactions = 0;
        for run in 0..RUNS {
            let answer = session.prompt(format!("What is the weather on day {run}?")).await.unwrap();
            let context = session.state().await.unwrap().context;
            for event in drain(&mut events) {
                if let EventKind::CompactionEnd(ended) = &event.kind {
                    assert_eq!(ended.outcome.as_str(), "completed", "run {run}: {ended:?}");
                    assert!(ended.tokens_before >= 45_000, "run {run}: early: {ended:?}");
                    compactions += 1;
                }
                assert!(
                    !matches!(event.kind.name(), "warning" | "overflow_detected"),
                    "run {run}: {event:?}"
                );
            }
            // A compaction after the run leaves an estimate.
            if context.usage_tokens > 0 {
                let truth = counted(&model, way, &answer.text);
                assert!(context.tokens.abs_diff(truth) <= truth / 10, "run {run}: {context:?}, {truth}");
            }
        }
        let expected = if reads_reasoning == ReadsReasoning::All { 2..=6 } else { 0..=0 };
        assert!(expected.contains(&compactions), "{reads_reasoning:?}: {compactions}");
        model.assert_clean();
    }
}

/// A prompt's own setting determines what that run's requests carry, and what counts.
#[tokio::test(start_paused = true)]
async fn a_prompts_own_way_counts_in_its_run() {
    let never = Way::in_process(ResendReasoning::Never);
    let model = model(never, thinker(), 400_000);
    let (runtime, agent, _served) = started(never, &model, 400_000).await;
    let session = runtime.open("thinker", &agent).await.unwrap();
    let mut events = session.subscribe();
    for run in 0..12 {
        let resend = if run % 3 == 2 { ResendReasoning::AsReasoning } else { ResendReasoning::Never };
        let of_prompt = ModelSettings::new().resend_reasoning(resend);
        let answer = session.prompt(format!("And on day {run}?")).settings(of_prompt).await.unwrap();
        let way = Way { resend, ..never };
        let (context, truth) = (answer.context, counted(&model, way, &answer.text));
        assert!(context.tokens.abs_diff(truth) <= truth / 10, "run {run}: {context:?}, {truth}");
        let wrong = drain(&mut events).into_iter().find(|event| event.kind.name() == "warning");
        assert!(wrong.is_none(), "run {run}: {wrong:?}");
    }
    model.assert_clean();
}

/// Forty short runs with a server that counts in this way: the context matches its count, and there is no
/// warning.
async fn check_counting(counting: Counting, over_http: bool) {
    let way = Way { over_http, ..Way::in_process(ResendReasoning::Never).counting(counting) };
    let model = model(way, thinker(), SMALL_WINDOW);
    let (runtime, agent, _served) = started(way, &model, SMALL_WINDOW).await;
    let session = runtime.open("counted", &agent).await.unwrap();
    let mut events = session.subscribe();
    for run in 0..RUNS {
        let answer = session.prompt(format!("What is the weather on day {run}?")).await.unwrap();
        let (context, truth) = (session.state().await.unwrap().context, counted(&model, way, &answer.text));
        assert!(context.tokens.abs_diff(truth) <= truth / 10, "{way:?}, run {run}: {context:?}, {truth}");
        for event in drain(&mut events) {
            let name = event.kind.name();
            assert!(!matches!(name, "warning" | "compaction_start"), "{way:?}, run {run}: {event:?}");
        }
    }
    runtime.shutdown().await.unwrap();
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_text_that_the_server_adds_counts_and_is_no_lie() {
    for hidden_tokens in [700, 5_000] {
        check_counting(Counting { hidden_tokens, ..Counting::default() }, false).await;
    }
}

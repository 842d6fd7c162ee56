//! Requests that are larger than the model's window: recovered at once, learned from, and typed if nothing
//! helps.

use greenroom::ModelPrice;
use greenroom::prelude::*;
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::path::is_message;
use greenroom_kernel::usage::WindowSource;
use greenroom_kernel::{Entry, EntryId, FailureClass, Usage};
use greenroom_provider::{HttpProvider, Purpose, ServerOptions};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, ErrorDialect, Fault, Function, SeenRequest, Sequence, Simulator,
    SimulatorOptions, Summariser,
};

use crate::support::{agent, builder, drain, runtime, simulator, store};

const WINDOW: u64 = 8_000;

fn talk() -> impl greenroom_simulator::Script {
    let runs =
        Function(|_: &SeenRequest, info: CallInfo| Said::text(format!("answer {}", info.session_call)));
    ByPurpose::new(runs, Summariser::Obedient)
}

fn speaking(dialect: ErrorDialect) -> Simulator {
    Simulator::new(SimulatorOptions {
        window: WINDOW,
        error_dialect: dialect,
        ..SimulatorOptions::new(talk())
    })
}

fn count(events: &[std::sync::Arc<Event>], name: &str) -> usize {
    events.iter().filter(|event| event.kind.name() == name).count()
}

/// The agent's configured window is larger than the model's: in any error dialect, each prompt is answered,
/// at once and without a retry.
#[tokio::test(start_paused = true)]
async fn an_overflow_in_any_words_is_recovered_at_once() {
    for (dialect, believed) in [
        (ErrorDialect::OpenAi, 128_000),
        (ErrorDialect::LlamaServer, 128_000),
        (ErrorDialect::Vllm, 128_000),
        (ErrorDialect::LiteLlm, 128_000),
        (ErrorDialect::Anthropic, 128_000),
        (ErrorDialect::MistralRs, 128_000),
        // These name no limit, or nothing at all: our own estimate decides.
        (ErrorDialect::LlamaCppPython, 9_000),
        (ErrorDialect::EmptyBody, 9_000),
    ] {
        let model = speaking(dialect);
        let runtime = runtime(&model).await;
        let settings =
            CompactionSettings { threshold: None, reserve_tokens: Some(1), ..CompactionSettings::default() };
        let session = runtime.open("big", &agent(believed).compaction(settings)).await.unwrap();
        let mut events = session.subscribe();
        let began = tokio::time::Instant::now();
        for run in 0..12 {
            let words = format!("question {run} {}", "thing ".repeat(1_200));
            session.prompt(words).await.unwrap_or_else(|error| panic!("{dialect:?}, run {run}: {error:?}"));
        }
        let events = drain(&mut events);
        assert_eq!(count(&events, "retry"), 0, "{dialect:?}: recovery is no retry");
        let overflows = events
            .iter()
            .filter(|event| {
                matches!(&event.kind, EventKind::CompactionStart { trigger: Trigger::Overflow, .. })
            })
            .count();
        assert!(overflows > 0, "{dialect:?}: nothing overflowed");
        assert!(began.elapsed() < std::time::Duration::from_secs(1), "{dialect:?}: it waited");
        model.assert_clean();
    }
}

/// The provider shows only by its usage that the request exceeded its window, although our own estimate is
/// far below: the run is compacted before the next call, and the answer counts.
#[tokio::test(start_paused = true)]
async fn a_silent_overflow_is_seen_in_the_usage_and_compacted_before_the_next_call() {
    let reported = Usage { input_tokens: WINDOW + 300, output_tokens: 20, ..Usage::default() };
    let mut script: Vec<Said> = (0..4).map(|run| Said::text(format!("{run}"))).collect();
    let call = serde_json::json!({ "text": "x" });
    script.extend([Said::call("note", &call).with_usage(reported), Said::text("fine")]);
    let model = simulator(ByPurpose::new(Sequence(script), Summariser::Obedient), 10 * WINDOW);
    let runtime = runtime(&model).await;
    let tooled = agent(WINDOW)
        .compaction(late())
        .tool("note", |it: Note| async move { Ok(format!("noted {}", it.text)) });
    let session = runtime.open("silent", &tooled).await.unwrap();
    for run in 0..4 {
        session.prompt(format!("question {run} {}", "thing ".repeat(1_300))).await.unwrap();
    }
    let state = session.state().await.unwrap();
    assert!(state.context.tokens < WINDOW * 80 / 100, "nothing is due: {state:?}");
    let mut events = session.subscribe();
    assert_eq!(session.prompt("and now?").await.unwrap().text, "fine");
    let seen = drain(&mut events);
    let wanted = ["step_start", "overflow_detected", "compaction_start", "compaction_end", "step_start"];
    let order: Vec<&str> =
        seen.iter().map(|event| event.kind.name()).filter(|name| wanted.contains(name)).collect();
    assert_eq!(order, wanted);
    assert_eq!(rungs(&seen), [(Trigger::Overflow, "completed")]);
    let called = session.context().await.unwrap().iter().filter(|message| message.role() == "tool").count();
    assert_eq!(called, 1, "its answer counts");
    model.assert_clean();
}

/// Notes a text.
#[derive(Deserialize, JsonSchema)]
struct Note {
    /// The text to work on.
    text: String,
}

/// Returns the trigger and the outcome of each compaction.
fn rungs(events: &[std::sync::Arc<Event>]) -> Vec<(Trigger, &'static str)> {
    crate::compaction_fixtures::ends(events).iter().map(|end| (end.trigger, end.outcome.as_str())).collect()
}

/// Settings with which nothing compacts before the window is full.
fn late() -> CompactionSettings {
    CompactionSettings { threshold: None, reserve_tokens: Some(1), ..CompactionSettings::default() }
}

/// Returns a prompt with which the window is 92 % full.
async fn filling(session: &SessionHandle) -> String {
    let tokens = session.state().await.unwrap().context.tokens;
    "thing ".repeat(usize::try_from((WINDOW * 92 / 100).saturating_sub(tokens)).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_wordless_end_is_an_overflow_near_the_window_and_a_retry_below() {
    for (fault, words) in [
        (Fault::EmptyStream, "an empty stream"),
        (Fault::EmptyBody(400), "an empty 400"),
        (Fault::EmptyBody(413), "an empty 413"),
        (Fault::EmptyBody(429), "an empty 429"),
    ] {
        // First below: two messages fill little of the window.
        let model = simulator(Sequence(vec![Said::fault(fault.clone()), Said::text("fine")]), WINDOW);
        let runtime = runtime(&model).await;
        let session = runtime.open("low", &agent(WINDOW)).await.unwrap();
        let mut events = session.subscribe();
        let end = session.prompt("hello").await;
        let seen = drain(&mut events);
        assert_eq!(count(&seen, "compaction_start"), 0, "{words}: {end:?}");

        // Then near it.
        let mut script: Vec<Said> = (0..3).map(|run| Said::text(format!("{run}"))).collect();
        script.extend([Said::fault(fault.clone()), Said::text("fine")]);
        let model = simulator(Sequence(script), WINDOW);
        let runtime = crate::support::runtime(&model).await;
        let session = runtime.open("high", &agent(WINDOW).compaction(late())).await.unwrap();
        for run in 0..3 {
            session.prompt(format!("{run} {}", "thing ".repeat(1_500))).await.unwrap();
        }
        let mut events = session.subscribe();
        let filling = filling(&session).await;
        let reply = session.prompt(filling).await;
        let seen = drain(&mut events);
        assert_eq!(reply.unwrap_or_else(|error| panic!("{words}: {error}")).text, "fine");
        assert_eq!((count(&seen, "compaction_start"), count(&seen, "retry")), (1, 0), "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_length_without_a_word_is_an_overflow_and_with_reasoning_only_near_the_window() {
    let cut = || Said::text("").with_finish(greenroom_kernel::StopReason::Length);
    let thought = cut().with_reasoning("let me think about this");
    let model = simulator(Sequence(vec![thought, Said::text("fine")]), WINDOW);
    let runtime = runtime(&model).await;
    let session = runtime.open("low", &agent(WINDOW)).await.unwrap();
    let mut events = session.subscribe();
    assert_eq!(session.prompt("hello").await.unwrap().text, "fine");
    let seen = drain(&mut events);
    assert_eq!((count(&seen, "retry"), count(&seen, "overflow_detected")), (1, 0));

    let mut script: Vec<Said> = (0..4).map(|run| Said::text(format!("{run}"))).collect();
    script.extend([cut(), Said::text("fine")]);
    let model = simulator(Sequence(script), WINDOW);
    let runtime = crate::support::runtime(&model).await;
    let session = runtime.open("high", &agent(WINDOW).compaction(late())).await.unwrap();
    for run in 0..4 {
        session.prompt(format!("{run} {}", "thing ".repeat(1_400))).await.unwrap();
    }
    let mut events = session.subscribe();
    let filling = filling(&session).await;
    assert_eq!(session.prompt(filling).await.unwrap().text, "fine");
    let seen = drain(&mut events);
    assert_eq!((count(&seen, "retry"), count(&seen, "overflow_detected")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_learned_limit_is_kept_and_shown() {
    let store = store();
    let model = speaking(ErrorDialect::OpenAi);
    let window = |runtime: Runtime| async move {
        let session = runtime.open("learned", &Agent::new("simulated")).await.unwrap();
        let context = session.state().await.unwrap().context;
        (context.window, context.window_source)
    };
    let start = || Runtime::builder().provider(model.provider()).engine(store.clone()).clock_from(1);
    let runtime = start().start().await.unwrap();
    assert_eq!(window(runtime.clone()).await, (Some(128_000), WindowSource::Assumed));
    let session = runtime.open("learned", &Agent::new("simulated")).await.unwrap();
    for run in 0..10 {
        session.prompt(format!("question {run} {}", "thing ".repeat(1_200))).await.unwrap();
    }
    assert_eq!(window(runtime.clone()).await, (Some(WINDOW), WindowSource::Learned));
    drop(runtime);
    let again = start().start().await.unwrap();
    assert_eq!(window(again).await, (Some(WINDOW), WindowSource::Learned), "it is kept");
    model.assert_clean();
}

/// Whatever number an error names, the session works, and it can be opened again; a limit that proves wrong
/// is forgotten.
#[tokio::test(start_paused = true)]
async fn a_limit_that_cannot_be_is_not_believed_and_locks_nothing() {
    let refusing = |limit: u64| Fault::Http {
        status: 400,
        headers: Vec::new(),
        body: format!(
            r#"{{"error":{{"code":"context_length_exceeded","message":"the maximum context length is {limit} tokens"}}}}"#
        ),
    };
    let instructions = "word ".repeat(2_500);
    for (limit, refusals, source) in [
        (52, 1, WindowSource::Assumed),
        (1_000_000_000_000, 1, WindowSource::Assumed),
        // It was believed, and the fixed part alone is larger: then the provider decides.
        (1_500, 2, WindowSource::Assumed),
        // More was accepted before: it is believed when it is named twice.
        (4_500, 1, WindowSource::Assumed),
        (4_500, 2, WindowSource::Learned),
        // It was believed, and then more was accepted.
        (8_000, 1, WindowSource::Assumed),
    ] {
        let mut answers = vec![Said::text("one")];
        answers.extend((0..refusals).map(|_| Said::fault(refusing(limit))));
        answers.extend((0..20).map(|number| Said::text(format!("later {number}"))));
        let model = simulator(ByPurpose::new(Sequence(answers), Summariser::Obedient), 100_000);
        let store = store();
        let start = || Runtime::builder().provider(model.provider()).engine(store.clone()).clock_from(1);
        let runtime = start().start().await.unwrap();
        let agent = Agent::new("simulated").instructions(&*instructions);
        let session = runtime.open("locked", &agent).await.unwrap();
        for _ in 0..2 {
            // The second one is refused, with or without effect.
            let _ = session.prompt("thing ".repeat(2_000)).await;
        }
        assert!(model.fired()["http"] > 0, "{limit} was never named");
        drop((session, runtime));
        let runtime = start().start().await.unwrap();
        let session = runtime.open("locked", &agent).await;
        let session = session.unwrap_or_else(|error| panic!("after {limit}: {error}"));
        let large = "thing ".repeat(if limit == 4_500 { 10 } else { 6_000 });
        session.prompt(large).await.unwrap_or_else(|error| panic!("after {limit}: {error}"));
        let again = runtime.open("another", &agent).await.unwrap();
        again.prompt("hello").await.unwrap_or_else(|error| panic!("after {limit}: {error}"));
        assert_eq!(again.state().await.unwrap().context.window_source, source, "after {limit}");
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn less_output_is_asked_for_before_anything_is_compacted() {
    let model = Simulator::new(SimulatorOptions {
        window: WINDOW,
        refuses_output_overflow: true,
        ..SimulatorOptions::new(talk())
    });
    let runtime = runtime(&model).await;
    let session =
        runtime.open("output", &agent(WINDOW).output_tokens_max(6_000).compaction(late())).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("thing ".repeat(3_000)).await.unwrap();
    let seen = drain(&mut events);
    assert_eq!((count(&seen, "compaction_start"), count(&seen, "retry")), (0, 0));
    let asked = asked_output(&model);
    assert!(asked.len() == 2 && asked[0] == 6_000 && asked[1] < 5_000, "{asked:?}");
    model.assert_clean();
}

/// The provider names no limit; by the known window, the input alone fits.
#[tokio::test(start_paused = true)]
async fn less_output_is_asked_for_where_the_refusal_names_no_limit() {
    let body = "Input token count + max_tokens parameter must be less than the context length of the model being \
                queried. Set max_tokens to a lower number.";
    let refused = Fault::Http { status: 400, headers: Vec::new(), body: body.to_owned() };
    let model = simulator(Sequence(vec![Said::fault(refused), Said::text("fine")]), WINDOW);
    let runtime = runtime(&model).await;
    let agent = agent(WINDOW).output_tokens_max(6_000).compaction(late());
    let session = runtime.open("unnamed", &agent).await.unwrap();
    let mut events = session.subscribe();
    assert_eq!(session.prompt("thing ".repeat(3_000)).await.unwrap().text, "fine");
    let seen = drain(&mut events);
    assert_eq!((count(&seen, "compaction_start"), count(&seen, "retry")), (0, 0));
    let asked = asked_output(&model);
    assert!(asked.len() == 2 && asked[0] == 6_000 && asked[1] < 5_500, "{asked:?}");
    model.assert_clean();
}

/// The limit is the provider's own, which sets it on each request.
#[tokio::test]
async fn less_output_is_asked_for_where_the_provider_sets_the_limit() {
    let model = Simulator::new(SimulatorOptions {
        window: WINDOW,
        refuses_output_overflow: true,
        ..SimulatorOptions::new(talk())
    });
    let server = model.serve().await.unwrap();
    let options = ServerOptions {
        base_url: server.base_url(),
        output_tokens_max: Some(6_000),
        prompt_cache_key: Some(true),
        ..ServerOptions::default()
    };
    let provider = std::sync::Arc::new(HttpProvider::new(options).unwrap());
    let runtime = Runtime::builder().provider(provider).engine(store()).start().await.unwrap();
    let session = runtime.open("limited", &agent(WINDOW).compaction(late())).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("thing ".repeat(3_000)).await.unwrap();
    let seen = drain(&mut events);
    assert_eq!((count(&seen, "compaction_start"), count(&seen, "retry")), (0, 0));
    let asked = asked_output(&model);
    assert!(asked.len() == 2 && asked[0] == 6_000 && asked[1] < 5_000, "{asked:?}");
    model.assert_clean();
}

/// A budget that buys more output than the window holds sets a limit for each request. If the window is known, that limit
/// fits beside the input at once; if not, the refusal tells, and nothing is compacted for it.
#[tokio::test(start_paused = true)]
async fn a_budget_s_output_limit_fits_beside_the_input() {
    for (known, requests) in [(Some(WINDOW), 1), (None, 2)] {
        let model = Simulator::new(SimulatorOptions {
            window: WINDOW,
            refuses_output_overflow: true,
            ..SimulatorOptions::new(talk())
        });
        let runtime = runtime(&model).await;
        let agent = known.map_or_else(|| Agent::new("simulated"), agent);
        let agent = agent.price_for("simulated", ModelPrice::new(1.0, 2.0)).run_cost_limit_usd(0.05);
        let session = runtime.open("budget", &agent.compaction(late())).await.unwrap();
        let mut events = session.subscribe();
        session.prompt("thing ".repeat(3_000)).await.unwrap_or_else(|error| panic!("{known:?}: {error}"));
        let seen = drain(&mut events);
        assert_eq!((count(&seen, "compaction_start"), count(&seen, "retry")), (0, 0), "{known:?}");
        let asked = asked_output(&model);
        assert!(asked.len() == requests && asked[requests - 1] < 5_000, "{known:?}: {asked:?}");
        assert!(requests == 1 || asked[0] > WINDOW, "{known:?}: {asked:?}");
        model.assert_clean();
    }
}

/// Returns the output limits of all requests.
fn asked_output(model: &Simulator) -> Vec<u64> {
    model.requests().iter().filter_map(|logged| logged.request.settings.output_tokens_max).collect()
}

#[tokio::test(start_paused = true)]
async fn where_compaction_is_off_the_caller_gets_the_error() {
    let model = speaking(ErrorDialect::OpenAi);
    let settings = CompactionSettings { enabled: false, ..CompactionSettings::default() };
    let runtime = runtime(&model).await;
    let session = runtime.open("off", &agent(WINDOW).compaction(settings)).await.unwrap();
    let mut events = session.subscribe();
    let mut error = None;
    for run in 0..20 {
        if let Err(refused) = session.prompt(format!("question {run} {}", "thing ".repeat(900))).await {
            error = Some(refused);
            break;
        }
    }
    assert!(error.as_ref().is_some_and(Error::is_context_overflow), "{error:?}");
    assert!(
        error.is_some_and(|error| error.to_string().contains("compaction.enabled")),
        "the setting is named"
    );
    assert_eq!(count(&drain(&mut events), "compaction_start"), 0);
    // A manual compaction is possible, and then the session continues.
    assert_eq!(session.compact(CompactOptions::default()).await.unwrap().outcome.as_str(), "completed");
    session.resume().await.unwrap();
    model.assert_clean();
}

/// The provider refuses this many times in a row, whatever is sent: each time one rung down, and each rung,
/// used once, keeps less; after the last one the end is typed, and the session works.
#[tokio::test(start_paused = true)]
async fn each_refusal_goes_one_rung_down_and_after_the_last_the_end_is_typed() {
    let ladder = [
        (Trigger::Overflow, "completed"),
        (Trigger::Overflow, "completed"),
        // The last rung requests no summary.
        (Trigger::Overflow, "digested"),
    ];
    // A fifth of the window, half of that (for whole turns, half as much again), and less than both.
    let kept_at_most = [9_000, 4_500, 2_000];
    for refusals in 1..=4 {
        let script = Function(move |request: &SeenRequest, info: CallInfo| match request.purpose {
            Purpose::Summary | Purpose::Compaction => {
                greenroom_simulator::Script::reply(&Summariser::Obedient, request, info)
            }
            Purpose::Step if (6..6 + refusals as u64).contains(&info.session_call) => {
                Said::fault(Fault::Overflow(ErrorDialect::Anthropic))
            }
            Purpose::Step => Said::text(format!("answer {} {}", info.session_call, "word ".repeat(200))),
        });
        let model = simulator(script, 30_000);
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("refused", &agent(30_000)).await.unwrap();
        for run in 0..6 {
            session.prompt(format!("question {run} {}", "thing ".repeat(1_500))).await.unwrap();
        }
        let mut events = session.subscribe();
        let asked = |model: &greenroom_simulator::Simulator| {
            model.requests().iter().filter(|request| request.request.purpose == Purpose::Step).count()
        };
        let asked_before = asked(&model);
        let reply = session.prompt("and this?").await;
        let seen = drain(&mut events);
        let went_down = refusals.min(3);
        assert_eq!(rungs(&seen), ladder[..went_down], "{refusals} refusals");
        assert_eq!((asked(&model) - asked_before, count(&seen, "retry")), (went_down + 1, 0), "{refusals}");
        assert_eq!((count(&seen, "step_start"), count(&seen, "step_end")), (1, 1), "one step: {refusals}");
        assert_eq!(count(&seen, "run_end"), 1, "{refusals}");
        let compactions = crate::compaction_fixtures::compactions(&runtime, "refused").await;
        let kept: Vec<_> = compactions.iter().map(|(_, compaction)| compaction.first_kept).collect();
        assert!(kept.is_sorted_by(|a, b| a < b), "{refusals}: each rung keeps less: {kept:?}");
        let entries = runtime.entries("refused", EntryId(0)).await.unwrap();
        for ((id, compaction), at_most) in compactions.iter().zip(kept_at_most) {
            let is_kept = |entry: &&Entry| {
                Some(entry.id) >= compaction.first_kept && entry.id < *id && is_message(&entry.kind)
            };
            let tokens: u64 = entries.iter().filter(is_kept).map(|entry| entry.tokens).sum();
            assert!(tokens <= at_most, "{refusals}: entry {id} keeps {tokens} tokens");
        }
        if refusals > 3 {
            let error = reply.unwrap_err();
            assert!(error.is_context_overflow(), "{error:?}");
            let state = session.state().await.unwrap();
            assert_eq!((state.status, state.is_unanswered), (Status::Idle, true));
        } else {
            assert!(reply.unwrap().text.starts_with("answer"), "{refusals}");
        }
        session.prompt("now?").await.unwrap();
        model.assert_clean();
    }
}

/// Older images are dropped first; those of the current prompt only if that is not enough, and then the model
/// and the user are told.
#[tokio::test(start_paused = true)]
async fn too_many_bytes_leave_placeholders_for_images() {
    let refused = || {
        Said::fault(Fault::Http {
            status: 413,
            headers: Vec::new(),
            body: r#"{"error":{"message":"Request body too large: 31457280 bytes, the limit is 20971520 bytes","type":"request_too_large"}}"#
                .to_owned(),
        })
    };
    let script = vec![
        Said::text("a cat"),
        refused(),
        Said::text("a dog"),
        refused(),
        refused(),
        Said::text("I cannot see it"),
        Said::text("fine"),
    ];
    let model = simulator(Sequence(script), 50_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("images", &agent(50_000)).await.unwrap();
    let bytes = b"\x89PNG\r\n\x1a\n".repeat(60);
    let image = || Prompt::from("what is it?").image(Image::new(&bytes).unwrap());
    // The images, placeholders, and placeholders for the newest images in the request of this number.
    let shows = |index: usize| {
        let request = format!("{:?}", model.requests()[index].request.messages);
        ["image/png", "it is left out", "you cannot see it"].map(|sign| request.matches(sign).count())
    };
    let mut events = session.subscribe();
    session.prompt(image()).await.unwrap();
    assert_eq!(session.prompt(image()).await.unwrap().text, "a dog");
    assert_eq!((shows(1), shows(2)), ([2, 0, 0], [1, 1, 0]));
    assert_eq!(count(&drain(&mut events), "warning"), 0, "nothing is missing that it was asked about");
    assert_eq!(session.prompt(image()).await.unwrap().text, "I cannot see it");
    assert_eq!((shows(3), shows(4), shows(5)), ([3, 0, 0], [1, 2, 0], [0, 2, 1]));
    let seen = drain(&mut events);
    assert_eq!(count(&seen, "warning"), 1);
    assert_eq!((count(&seen, "retry"), count(&seen, "compaction_start")), (0, 0));
    // The next run begins with all of them again: the log keeps the originals.
    assert_eq!(session.prompt("and now?").await.unwrap().text, "fine");
    assert_eq!(shows(6), [3, 0, 0]);
    model.assert_clean();
}

/// An image that the server cannot read, or a model that sees none, fails neither its prompt nor the later ones.
#[tokio::test(start_paused = true)]
async fn a_refused_image_is_left_out() {
    let has_image = |request: &SeenRequest| format!("{:?}", request.messages).contains("image/png");
    let script = move |request: &SeenRequest, _: CallInfo| {
        match has_image(request) {
        true => Said::fault(Fault::Http {
            status: 400,
            headers: Vec::new(),
            body: r#"{"error":{"message":"Invalid image data: the image could not be decoded","code":"invalid_image"}}"#
                .to_owned(),
        }),
        false => Said::text("fine"),
    }
    };
    let model = simulator(Function(script), 50_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("images", &agent(50_000)).await.unwrap();
    let mut events = session.subscribe();
    let image = Image::new(b"\x89PNG\r\n\x1a\nxxx").unwrap();
    for (prompt, warnings) in [(Prompt::from("what is it?").image(image), 1), ("and now?".into(), 0)] {
        assert_eq!(session.prompt(prompt).await.unwrap().text, "fine");
        let seen = drain(&mut events);
        assert_eq!((count(&seen, "warning"), count(&seen, "retry")), (warnings, 0));
    }
    let shown: Vec<bool> = model.requests().iter().map(|seen| has_image(&seen.request)).collect();
    assert_eq!(shown, [true, false, true, false]);
    model.assert_clean();
}

/// The same request would be refused again: if no image can be dropped, none is sent.
#[tokio::test(start_paused = true)]
async fn a_payload_too_large_without_an_image_is_not_sent_again_unchanged() {
    let nginx = "<html><head><title>413 Request Entity Too Large</title></head></html>";
    for (body, compactions) in [("", 0), (nginx, 1)] {
        let refused = Said::fault(Fault::Http { status: 413, headers: Vec::new(), body: body.to_owned() });
        let runs = Sequence(vec![Said::text("noted"), Said::text("noted"), refused, Said::text("done")]);
        let model = simulator(ByPurpose::new(runs, Summariser::Obedient), WINDOW);
        let runtime = builder(&model).start().await.unwrap();
        let limits = RunLimits { retries_max: 0, ..RunLimits::default() };
        let session = runtime.open("plain", &agent(WINDOW).limits(limits)).await.unwrap();
        for _ in 0..2 {
            session.prompt("thing ".repeat(1_000)).await.unwrap();
        }
        let before = model.requests().len();
        let mut events = session.subscribe();
        let end = session.prompt("go on").await;
        let seen = drain(&mut events);
        assert_eq!((count(&seen, "retry"), count(&seen, "compaction_start")), (0, compactions), "{body}");
        let sent: Vec<String> = model.requests()[before..]
            .iter()
            .filter(|seen| seen.request.purpose == Purpose::Step)
            .map(|seen| format!("{:?}", seen.request.messages))
            .collect();
        if compactions == 0 {
            let failed =
                matches!(&end, Err(Error::Model(failure)) if failure.class == FailureClass::PayloadTooLarge);
            assert!(failed, "{end:?}");
            assert_eq!(sent.len(), 1);
            assert_eq!(session.prompt("again").await.unwrap().text, "done");
        } else {
            assert_eq!(end.unwrap().text, "done");
            assert!(sent.len() == 2 && sent[1].len() < sent[0].len(), "{}", sent.len());
        }
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_cannot_heal_is_typed() {
    let body = r#"{"error":{"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 41000. The input or output tokens must be reduced in order to run successfully.","type":"tokens","code":"rate_limit_exceeded"}}"#;
    let refused = Fault::Http { status: 429, headers: Vec::new(), body: body.to_owned() };
    let model = simulator(Sequence(vec![Said::fault(refused), Said::text("fine")]), 50_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("tpm", &agent(50_000)).await.unwrap();
    let error = session.prompt("hello").await.unwrap_err();
    assert!(
        matches!(&error, Error::Model(failure) if failure.class == FailureClass::RequestTooLargeForRateLimit),
        "{error:?}"
    );
    assert_eq!(session.prompt("again").await.unwrap().text, "fine");
}

/// The refused request came after the last report, or there was none: it counts nevertheless.
#[tokio::test(start_paused = true)]
async fn a_limit_that_is_named_for_a_large_prompt_is_believed() {
    for before in [0, 2] {
        let options = SimulatorOptions { window: 3_000, ..SimulatorOptions::new(talk()) };
        let model = Simulator::new(options);
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &Agent::new("nobody-knows")).await.unwrap();
        for run in 0..before {
            session.prompt(format!("question {run}")).await.unwrap();
        }
        let refused = session.prompt("thing ".repeat(7_000)).await;
        assert!(matches!(&refused, Err(Error::Model(_))), "{refused:?}");
        let context = session.state().await.unwrap().context;
        assert_eq!((context.window, context.window_source), (Some(3_000), WindowSource::Learned), "{before}");
        session.prompt("and now?").await.unwrap();
        model.assert_clean();
    }
}

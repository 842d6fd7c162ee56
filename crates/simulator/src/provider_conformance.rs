//! A conformance suite: the runtime's requirements on any `Provider`, as named checks.
//!
//! Invariants: a check covers one promise of the trait, and says in a sentence how it was broken; a provider
//! for which a check is impossible (its model called no tool) does not fail it.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{self, Either};
use greenroom_kernel::{AssistantMessage, Block, FailureClass, Image, Message, StopReason, ToolSpec};
use greenroom_provider::{
    ModelSettings, OutputSchema, Provider, ProviderError, Purpose, ReplyEvent, Request, ToolChoice,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::fault::{Fault, Point, RetryAfter};
use crate::history::History;
use crate::model::{Answer, CallInfo, Pace};
use crate::scripts::Function;
use crate::seen::SeenRequest;
use crate::simulator::{Simulator, SimulatorOptions};

#[cfg(test)]
mod tests;

/// How long one call may take.
const CALL_MAX: Duration = Duration::from_secs(120);
/// How often a call is retried after a temporary failure.
const RETRIES_MAX: u32 = 3;
/// The longest wait before a retry.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long the first piece of an answer may take after the server has begun to send it, from a streaming
/// provider.
const PIECE_WITHIN: Duration = Duration::from_secs(2);
/// How long a connection may stay open after its call was dropped.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The provider does what it should.
    Passed,
    /// The provider does not behave as it should, for this reason.
    Failed(String),
    /// The check was not possible, for this reason.
    NotChecked(String),
}

/// The result of a suite.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The name and the result of each check.
    pub checks: Vec<(&'static str, Verdict)>,
}

impl Report {
    /// Returns the failed checks, and why they failed.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|(name, verdict)| match verdict {
            Verdict::Failed(reason) => Some((*name, reason.as_str())),
            Verdict::Passed | Verdict::NotChecked(_) => None,
        })
    }

    /// Fails the test if a check failed.
    ///
    /// # Panics
    /// If a check failed; the message shows all failures.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failures().next().is_none(), "the provider does not conform:\n{self}");
    }

    fn add(&mut self, name: &'static str, result: Result<(), Broken>) {
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(Broken::Wrong(reason)) => Verdict::Failed(reason),
            Err(Broken::Unchecked(reason)) => Verdict::NotChecked(reason),
        };
        self.checks.push((name, verdict));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.checks {
            match verdict {
                Verdict::Passed => writeln!(f, "ok        {name}")?,
                Verdict::Failed(reason) => writeln!(f, "FAILED    {name}: {reason}")?,
                Verdict::NotChecked(reason) => writeln!(f, "unchecked {name}: {reason}")?,
            }
        }
        Ok(())
    }
}

/// Why a check did not pass.
enum Broken {
    Wrong(String),
    Unchecked(String),
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken::Wrong(otherwise())) }
}

/// Checks a provider with any model, for instance a real one: about a dozen short calls. Calls that fail
/// temporarily, for instance because of a rate limit, are retried.
///
/// ```
/// use greenroom_simulator::{Echo, Simulator, SimulatorOptions, provider_conformance};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let provider = Simulator::new(SimulatorOptions::new(Echo)).provider();
/// let report = provider_conformance::check(&provider, "simulated").await;
/// println!("{report}");
/// report.assert_passed();
/// # }
/// ```
pub async fn check(provider: &Arc<dyn Provider>, model: &str) -> Report {
    let mut report = Report::default();
    let hello = || request(model, &History::new().user("Say hello in five words."));
    report.add("it has a name, always the same", name(&**provider));
    let answer = heard(provider, hello()).await;
    match &answer {
        Ok(heard) => {
            report.add("an answer ends with exactly one `Done`", Ok(()));
            report.add("the pieces of the text are the text", pieces(heard));
            report.add(
                "the answer names its provider and the requested model",
                origin(heard, &**provider, model),
            );
            report.add(
                "usage is reported, cached and reasoning tokens included in the sums",
                usage(&heard.answer),
            );
        }
        Err(reason) => {
            report.add("an answer ends with exactly one `Done`", Err(Broken::Wrong(reason.clone())))
        }
    }
    report.add("several calls run at the same time", at_once(provider, model).await);
    report.add("a call that is dropped ends, and the next one works", cancelled(provider, model).await);
    report.add(
        "a tool call is whole: a name, an id of its own, arguments that were streamed",
        tool_call(provider, model).await,
    );
    report.add("a tool's result goes back to the model", tool_result(provider, model).await);
    report.add("an image is taken, or refused with a class", image(provider, model).await);
    report.add("a schema for the answer is followed, or refused with a class", schema(provider, model).await);
    report.add("an output limit ends the answer as `Length`", output_limit(provider, model).await);
    report
}

/// Checks a provider that speaks the OpenAI chat-completions protocol, against the simulator over HTTP:
/// everything that [`check`] covers, and behaviour that only a scripted server can show. `connect` makes the
/// provider for a server at this base URL.
///
/// # Errors
/// If no port can be bound.
pub async fn check_openai<F>(
    connect: impl Fn(greenroom_provider::BaseUrl) -> F,
) -> Result<Report, crate::SimulatorError>
where
    F: Future<Output = Arc<dyn Provider>>,
{
    let obedient = Simulator::new(SimulatorOptions::new(Function(obey)));
    let server = obedient.serve().await?;
    let provider = connect(server.base_url()).await;
    let mut report = check(&provider, "simulated").await;
    let broken = obedient.violations();
    report.add(
        "requests break no rule of the protocol",
        ensure(broken.is_empty(), || broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    );
    report.add("the request arrives complete", arrives(&obedient, &provider).await);
    drop(server);

    let scripted = |answer: Answer| {
        let connect = &connect;
        async move {
            let answer = answer.clone();
            let simulator = Simulator::new(SimulatorOptions::new(Function(move |_: &_, _| answer.clone())));
            let server = simulator.serve().await?;
            let provider = connect(server.base_url()).await;
            Ok::<_, crate::SimulatorError>((simulator, server, provider))
        }
    };
    let pace = Pace { chunks: 40, first_ms: 0, between_ms: 1 };
    let text = "Zwölf Grad 🌧 in 東京. ".repeat(20);
    let (_simulator, server, provider) =
        scripted(Answer::text(&text).with_reasoning("Let me think.").with_pace(pace)).await?;
    report.add(
        "many pieces come in order, letters of several bytes included",
        in_order(&provider, &text).await,
    );
    drop(server);
    let calls = Answer::call("look", &json!({ "at": "a" })).and_call("look", &json!({ "at": "b" }));
    let (_simulator, server, provider) = scripted(calls.with_pace(pace)).await?;
    report.add("calls made at the same time stay apart", parallel_calls(&provider).await);
    drop(server);
    for (name, fault, wanted) in failures() {
        let (_simulator, server, provider) = scripted(Answer::fault(fault)).await?;
        report.add(name, fails_as(&provider, wanted).await);
        drop(server);
    }
    let stall = Fault::Stall { at: Point::MidStream, ping_every_ms: None, for_ms: None };
    let (simulator, server, provider) = scripted(Answer::fault(stall)).await?;
    report.add("a call that is dropped closes its connection", closes(&simulator, &provider).await);
    drop(server);
    Ok(report)
}

/// Returns a model that follows the instructions of the checks.
fn obey(request: &SeenRequest, _: CallInfo) -> Answer {
    match request.tools.first() {
        Some(tool) if request.settings.tool_choice.is_some() => {
            Answer::call(&tool.name, &json!({ "city": "Oslo" }))
        }
        Some(_) | None if request.output_schema.is_some() => {
            Answer::text(json!({ "city": "Oslo" }).to_string())
        }
        Some(_) | None => Answer::text("Hello there, how are you? ".repeat(20)),
    }
}

/// The result of a call.
struct Received {
    text: String,
    reasoning: String,
    /// The arguments of each call, as they were streamed.
    arguments: Vec<String>,
    answer: AssistantMessage,
}

fn request(model: &str, history: &History) -> Request {
    Request {
        model: model.to_owned(),
        system: Some("You answer briefly.".to_owned()),
        messages: history.messages().iter().cloned().map(Arc::new).collect(),
        tools: Arc::new([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "conformance".to_owned(),
    }
}

fn weather() -> Arc<[ToolSpec]> {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "type": "string", "description": "A city's name." } },
        "required": ["city"],
    });
    Arc::new([ToolSpec { name: "weather".into(), description: "The weather in a city.".into(), parameters }])
}

/// Makes a call, and retries it if it fails temporarily.
async fn heard(provider: &Arc<dyn Provider>, request: Request) -> Result<Received, String> {
    let mut attempt = 0;
    loop {
        let ended = timeout(CALL_MAX, one(provider, request.clone())).await;
        match ended.map_err(|_| format!("no answer within {} s", CALL_MAX.as_secs()))? {
            Ok(heard) => return Ok(heard),
            Err(Ended::Failed(error)) if error.failure.class.is_retryable() && attempt < RETRIES_MAX => {
                attempt += 1;
                let wait = Duration::from_millis(error.failure.retry_after_ms.unwrap_or(500));
                sleep(wait.min(WAIT_MAX)).await;
            }
            Err(Ended::Failed(error)) => {
                return Err(format!("the call failed ({}): {error}", error.failure.class));
            }
            Err(Ended::Broken(reason)) => return Err(reason),
        }
    }
}

enum Ended {
    Failed(Box<ProviderError>),
    Broken(String),
}

impl From<ProviderError> for Ended {
    fn from(error: ProviderError) -> Self {
        Self::Failed(Box::new(error))
    }
}

async fn one(provider: &Arc<dyn Provider>, request: Request) -> Result<Received, Ended> {
    let mut stream = provider.stream(request).await?;
    let (mut text, mut reasoning, mut arguments) = (String::new(), String::new(), Vec::<String>::new());
    while let Some(event) = stream.next().await {
        match event? {
            ReplyEvent::Text(piece) => text.push_str(&piece),
            ReplyEvent::Reasoning(piece) => reasoning.push_str(&piece),
            ReplyEvent::ToolCall { index, arguments: piece, .. } => {
                if arguments.len() <= index {
                    arguments.resize(index + 1, String::new());
                }
                arguments[index].push_str(&piece);
            }
            ReplyEvent::Done(answer) => {
                if stream.next().await.is_some() {
                    return Err(Ended::Broken("something followed `Done`".to_owned()));
                }
                return Ok(Received { text, reasoning, arguments, answer: *answer });
            }
            ReplyEvent::ThinkingDropped { .. } | _ => {}
        }
    }
    Err(Ended::Broken("the stream ended with neither `Done` nor an error".to_owned()))
}

fn name(provider: &dyn Provider) -> Result<(), Broken> {
    ensure(!provider.name().is_empty() && provider.name() == provider.name(), || {
        "its name is empty or changes".into()
    })
}

fn pieces(heard: &Received) -> Result<(), Broken> {
    let whole = heard.answer.text();
    ensure(!whole.is_empty(), || "the answer has no text".into())?;
    ensure(heard.text == whole, || format!("the pieces are {:?} and the answer is {whole:?}", heard.text))
}

fn origin(heard: &Received, provider: &dyn Provider, model: &str) -> Result<(), Broken> {
    let AssistantMessage { provider: named, model: answered, .. } = &heard.answer;
    ensure(named == provider.name() && answered == model, || format!("it says {named:?} and {answered:?}"))
}

fn usage(answer: &AssistantMessage) -> Result<(), Broken> {
    let usage = answer.usage.ok_or_else(|| Broken::Wrong("the answer has no usage".into()))?;
    let are_counted = usage.input_tokens > 0 && usage.output_tokens > 0;
    let are_parts =
        usage.cached_tokens <= usage.input_tokens && usage.reasoning_tokens <= usage.output_tokens;
    ensure(are_counted && are_parts, || format!("it cannot be: {usage:?}"))
}

async fn at_once(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let calls = (0..4).map(|number| {
        let said = format!("Say the number {number}.");
        heard(provider, request(model, &History::new().user(said)))
    });
    future::try_join_all(calls).await.map(drop).map_err(Broken::Wrong)
}

async fn cancelled(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let hello = || request(model, &History::new().user("Count to a hundred."));
    drop(provider.stream(hello()));
    // Dropped before it has connected, and after its first piece.
    let _ = timeout(Duration::ZERO, provider.stream(hello())).await;
    if let Ok(Ok(mut stream)) = timeout(CALL_MAX, provider.stream(hello())).await {
        let _ = timeout(CALL_MAX, stream.next()).await;
    }
    heard(provider, hello()).await.map(drop).map_err(Broken::Wrong)
}

async fn tool_call(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let mut asked = request(model, &History::new().user("What is the weather in Oslo? Use the tool."));
    asked.tools = weather();
    asked.settings.tool_choice = Some(ToolChoice::Required);
    let heard = heard(provider, asked).await.map_err(Broken::Wrong)?;
    let calls: Vec<_> = heard.answer.tool_calls().collect();
    if calls.is_empty() {
        return Err(Broken::Unchecked("the model called no tool".into()));
    }
    ensure(heard.answer.stop == StopReason::ToolCalls, || {
        format!("the answer ended as {:?}", heard.answer.stop)
    })?;
    for (index, call) in calls.iter().enumerate() {
        ensure(!call.id.is_empty() && calls[..index].iter().all(|other| other.id != call.id), || {
            format!("the id {:?} is empty or used twice", call.id)
        })?;
        ensure(call.name == "weather", || format!("the tool {:?} was not offered", call.name))?;
        let arguments: Option<Value> = serde_json::from_str(&call.arguments).ok();
        ensure(arguments.is_some_and(|value| value.is_object()), || {
            format!("the arguments are not a JSON object: {}", call.arguments)
        })?;
        let streamed = heard.arguments.get(index).map(String::as_str).unwrap_or_default();
        ensure(streamed.is_empty() || streamed == call.arguments, || {
            format!("the streamed pieces are {streamed:?} and the arguments are {:?}", call.arguments)
        })?;
    }
    Ok(())
}

async fn tool_result(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let history = History::new()
        .user("What is the weather in Oslo?")
        .tool("weather", &json!({ "city": "Oslo" }), "12 °C, rain")
        .assistant("It rains, at 12 °C.")
        .user("Thanks. Which city was that?");
    let mut asked = request(model, &history);
    asked.tools = weather();
    heard(provider, asked).await.map(drop).map_err(Broken::Wrong)
}

/// A red square of one pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

async fn image(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let mut asked = request(model, &History::new());
    let picture = Image { media_type: "image/png".into(), data: PIXEL.into() };
    let blocks = vec![Block::Text("Which colour is this?".into()), Block::Image(picture)];
    asked.messages = vec![Arc::new(Message::User(blocks))].into();
    taken_or_refused(provider, asked).await.map(drop)
}

async fn schema(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let mut asked = request(model, &History::new().user("Name a city, as JSON: {\"city\": …}."));
    let schema = json!({
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"],
        "additionalProperties": false,
    });
    asked.output_schema = Some(Arc::new(OutputSchema { name: "city".into(), schema }));
    let Some(heard) = taken_or_refused(provider, asked).await? else { return Ok(()) };
    let text = heard.answer.text();
    match serde_json::from_str::<Value>(&text) {
        Ok(value) if value["city"].is_string() => Ok(()),
        Ok(_) | Err(_) => Err(Broken::Unchecked(format!("the model answered {text:?}"))),
    }
}

/// Returns the answer; `None` if the request was rejected permanently.
async fn taken_or_refused(
    provider: &Arc<dyn Provider>,
    request: Request,
) -> Result<Option<Received>, Broken> {
    match timeout(CALL_MAX, one(provider, request.clone())).await {
        Ok(Err(Ended::Failed(error))) if !error.failure.class.is_retryable() => Ok(None),
        _ => heard(provider, request).await.map(Some).map_err(Broken::Wrong),
    }
}

async fn output_limit(provider: &Arc<dyn Provider>, model: &str) -> Result<(), Broken> {
    let mut asked = request(model, &History::new().user("Tell a long story about a greenroom."));
    asked.settings.output_tokens_max = Some(16);
    let heard = heard(provider, asked).await.map_err(Broken::Wrong)?;
    let stop = heard.answer.stop;
    if stop == StopReason::Length {
        return Ok(());
    }
    Err(Broken::Unchecked(format!("the answer ended as {stop:?}: {:?}", heard.answer.text())))
}

async fn arrives(simulator: &Simulator, provider: &Arc<dyn Provider>) -> Result<(), Broken> {
    let history = History::new()
        .user("One 🌧")
        .tool("weather", &json!({ "city": "Ålesund" }), "12 °C")
        .assistant("Two")
        .user("Three");
    let mut asked = request("simulated", &history);
    asked.tools = weather();
    asked.settings.temperature = Some(0.5);
    let wanted = asked.clone();
    heard(provider, asked).await.map_err(Broken::Wrong)?;
    let seen = simulator
        .requests()
        .pop()
        .map(|logged| logged.request)
        .ok_or_else(|| Broken::Wrong("nothing arrived".into()))?;
    let said = |messages: &[Arc<Message>]| -> Vec<String> {
        let calls = |message: &Message| -> Vec<String> {
            message.tool_calls().map(|call| format!("{}({})", call.name, call.arguments)).collect()
        };
        messages
            .iter()
            .map(|message| format!("{} {} {:?}", message.role(), message.text(), calls(message)))
            .collect()
    };
    ensure(seen.system == wanted.system, || format!("the instructions came as {:?}", seen.system))?;
    ensure(said(&seen.messages) == said(&wanted.messages), || {
        format!("the messages came as {:?}", said(&seen.messages))
    })?;
    ensure(seen.tools == wanted.tools, || format!("the tools came as {:?}", seen.tools))?;
    ensure(seen.settings.temperature == Some(0.5), || "the temperature did not come".into())
}

async fn in_order(provider: &Arc<dyn Provider>, text: &str) -> Result<(), Broken> {
    let heard =
        heard(provider, request("simulated", &History::new().user("Hello"))).await.map_err(Broken::Wrong)?;
    pieces(&heard)?;
    ensure(heard.text == text, || format!("the text came as {:?}", heard.text))?;
    ensure(heard.reasoning == "Let me think.", || format!("the reasoning came as {:?}", heard.reasoning))
}

async fn parallel_calls(provider: &Arc<dyn Provider>) -> Result<(), Broken> {
    let mut asked = request("simulated", &History::new().user("Look"));
    asked.tools = Arc::new([ToolSpec { name: "look".into(), ..weather()[0].clone() }]);
    let heard = heard(provider, asked).await.map_err(Broken::Wrong)?;
    let came: Vec<&str> = heard.answer.tool_calls().map(|call| call.arguments.as_str()).collect();
    ensure(came == [r#"{"at":"a"}"#, r#"{"at":"b"}"#], || format!("the calls came as {came:?}"))?;
    let ids: Vec<&str> = heard.answer.tool_calls().map(|call| call.id.as_str()).collect();
    ensure(ids[0] != ids[1], || "two calls have one id".into())
}

/// The expected form of a failure.
struct Wanted {
    classes: &'static [FailureClass],
    retry_after_ms: Option<u64>,
}

/// Returns the failures, and the expected form of each.
fn failures() -> Vec<(&'static str, Fault, Wanted)> {
    use FailureClass::{Auth, ContextOverflow, Loading, Malformed, Overloaded, RateLimited, Timeout};
    let of = |classes| Wanted { classes, retry_after_ms: None };
    let unauthorised = Fault::Http {
        status: 401,
        headers: Vec::new(),
        body: r#"{"error":{"message":"Incorrect API key"}}"#.into(),
    };
    vec![
        (
            "a rate limit is one, with the wait that it names",
            Fault::RateLimited(RetryAfter::Seconds(7)),
            Wanted { classes: &[RateLimited], retry_after_ms: Some(7_000) },
        ),
        ("a server's failure is an overload", Fault::ServerError(500), of(&[Overloaded])),
        ("a server that loads its model is waited for", Fault::Loading, of(&[Loading])),
        ("a wrong key is not tried again", unauthorised, of(&[Auth])),
        (
            "a request that is too large is an overflow",
            Fault::Overflow(crate::ErrorDialect::default()),
            of(&[ContextOverflow]),
        ),
        ("an error in the stream fails the call", Fault::ErrorEvent, of(&[Overloaded, Malformed])),
        (
            "a connection that breaks fails the call",
            Fault::Reset(Point::MidStream),
            of(&[Timeout, Malformed]),
        ),
        ("a stream that ends early fails the call", Fault::EofBeforeFinish, of(&[Malformed, Timeout])),
        ("a stream of nothing fails the call", Fault::EmptyStream, of(&[Malformed, Timeout])),
        ("bytes that are not JSON fail the call", Fault::MalformedSse, of(&[Malformed])),
    ]
}

async fn fails_as(provider: &Arc<dyn Provider>, wanted: Wanted) -> Result<(), Broken> {
    let asked = request("simulated", &History::new().user("Hello"));
    let ended = timeout(CALL_MAX, one(provider, asked)).await;
    match ended.map_err(|_| Broken::Wrong("the call does not end".into()))? {
        Ok(heard) => Err(Broken::Wrong(format!("it was answered with {:?}", heard.answer.text()))),
        Err(Ended::Broken(reason)) => Err(Broken::Wrong(reason)),
        Err(Ended::Failed(error)) => {
            let failure = &error.failure;
            ensure(wanted.classes.contains(&failure.class), || {
                format!("it failed as {}: {error}", failure.class)
            })?;
            ensure(wanted.retry_after_ms.is_none_or(|ms| failure.retry_after_ms == Some(ms)), || {
                format!("the wait came as {:?}", failure.retry_after_ms)
            })
        }
    }
}

async fn closes(simulator: &Simulator, provider: &Arc<dyn Provider>) -> Result<(), Broken> {
    let call = Box::pin(async {
        let mut stream = provider.stream(request("simulated", &History::new().user("Hello"))).await?;
        let _piece = stream.next().await;
        Ok::<_, ProviderError>(stream)
    });
    // A provider that requests whole answers has nothing to return before the end.
    let gives_nothing = pin!(async {
        while simulator.in_flight() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        sleep(PIECE_WITHIN).await;
    });
    let begun = timeout(CALL_MAX, future::select(call, gives_nothing)).await;
    let begun = begun.map_err(|_| Broken::Wrong("the call does not begin".into()))?;
    if let Either::Left((Err(error), _)) = &begun {
        return Err(Broken::Wrong(format!("the call failed: {error}")));
    }
    ensure(simulator.in_flight() == 1, || "the call is not in flight".into())?;
    drop(begun);
    let closed = timeout(CLOSES_WITHIN, async {
        while simulator.in_flight() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    });
    ensure(closed.await.is_ok(), || format!("it is still open after {} s", CLOSES_WITHIN.as_secs()))
}

//! The simulator itself: options, the life of one call, and the record of all calls.
//!
//! Invariants: every request is checked, counted and logged before anything else is decided; state is behind
//! one lock that is held only for bookkeeping, never while a script runs or text is counted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::{Message, ToolSpec, Usage};
use greenroom_provider::{NativeCompaction, Provider, Purpose, ResendReasoning};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::answer::{self, ReplyFacts, StatusAnswer, Transmission};
use crate::check::{self, Broken, Rule, Violation};
use crate::counting::{Counting, MessageTokens};
use crate::fault::{self, Fault, FaultPlan};
use crate::in_process::InProcess;
use crate::list::ListForm;
use crate::model::{Answer, CallInfo, Script};
use crate::overflow::{ErrorDialect, Refusal};
use crate::protocol::chat as wire;
use crate::seen::SeenRequest;
use crate::server::SimulatorServer;
use crate::{SimulatorError, tokens};

/// The maximum number of violations that are kept; further ones are only counted.
const VIOLATIONS_KEPT_MAX: usize = 1_000;

/// The options of a simulator.
#[derive(Clone)]
pub struct SimulatorOptions {
    /// The model's name in the list of models. Requests for other names are answered too, as many local
    /// servers do.
    pub model: String,
    /// The context window in tokens, input and output together.
    pub window: u64,
    /// The maximum amount of output of one answer, in tokens.
    pub max_output: u64,
    /// The seed for scripts and call ids.
    pub seed: u64,
    /// The script that decides the model's replies.
    pub script: Arc<dyn Script>,
    /// The wording with which a request larger than the window is refused.
    pub error_dialect: ErrorDialect,
    /// Whether a request whose input fits, but not together with the requested output, is refused; otherwise
    /// the answer is truncated to the remaining window.
    pub refuses_output_overflow: bool,
    /// Whether a request for more output than `max_output` is refused; otherwise the output is limited.
    pub refuses_output_above_max: bool,
    /// A plan of faults; `None`: only those in the script.
    pub faults: Option<FaultPlan>,
    /// How the list of models states the window, over HTTP.
    pub list: ListForm,
    /// Over HTTP, a connection is closed silently this many milliseconds after its first answer, as
    /// llama-server does; `None`: it is kept.
    pub closes_after_ms: Option<u64>,
    /// The rules that requests may break: OpenAI itself accepts much that we never send but other clients do.
    pub tolerates: &'static [Rule],
    /// The API key that HTTP requests must present (401 otherwise).
    pub require_key: Option<String>,
    /// How many of the last requests are kept for [`Simulator::requests`].
    pub log_capacity: usize,
    /// The name of the in-process provider.
    pub provider_name: String,
    /// Whether the in-process provider sends reasoning back, if the settings of a request do not specify it.
    pub resend_reasoning: ResendReasoning,
    /// How it counts tokens, and what it reports.
    pub counting: Counting,
    /// Its own compaction of conversations; `None` if it has none. Over HTTP the protocol decides whether the
    /// summary can be read.
    pub compaction: Option<NativeCompaction>,
    /// Whether it counts the tokens of a request when it is asked, as the APIs of the vendors do.
    pub counts_tokens: bool,
}

impl SimulatorOptions {
    /// Creates the options of a model of 128,000 tokens with this script, without faults.
    pub fn new(script: impl Script) -> Self {
        Self {
            model: "simulated".to_owned(),
            window: 128_000,
            max_output: 16_384,
            seed: 0,
            script: Arc::new(script),
            error_dialect: ErrorDialect::default(),
            refuses_output_overflow: false,
            refuses_output_above_max: false,
            faults: None,
            list: ListForm::default(),
            closes_after_ms: None,
            tolerates: &[],
            require_key: None,
            log_capacity: 256,
            provider_name: "simulator".to_owned(),
            resend_reasoning: ResendReasoning::Never,
            counting: Counting::default(),
            compaction: None,
            counts_tokens: false,
        }
    }
}

/// A simulated model. Clones are the same model.
#[derive(Clone)]
pub struct Simulator {
    inner: Arc<Inner>,
}

struct Inner {
    options: SimulatorOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: u64,
    counts: u64,
    sessions: HashMap<String, Session>,
    log: VecDeque<LoggedRequest>,
    violations: Vec<Violation>,
    violations_dropped: u64,
    fired: BTreeMap<&'static str, u64>,
    pings: u64,
    in_flight: usize,
    in_flight_max: usize,
}

#[derive(Default)]
struct Session {
    /// Requests of any kind, including failed ones.
    requests: u64,
    /// Answered calls, which scripts use as their number.
    runs: u64,
    summaries: u64,
    previous: Option<Arc<Previous>>,
}

impl Session {
    fn answered(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Step => &mut self.runs,
            Purpose::Summary | Purpose::Compaction => &mut self.summaries,
        }
    }
}

/// The session's last good request, with its counts: the next one usually begins with the same messages.
struct Previous {
    system: Option<String>,
    tools: Arc<[ToolSpec]>,
    head_tokens: u64,
    messages: Vec<Arc<Message>>,
    message_tokens: Vec<MessageTokens>,
}

/// A logged request.
#[derive(Debug, Clone)]
pub struct LoggedRequest {
    /// The number of the call, from 0, over all sessions.
    pub call: u64,
    /// The request as it was sent.
    pub request: Arc<SeenRequest>,
    /// When the request arrived.
    pub started: Instant,
    /// When its answer was complete or its client disconnected; `None` while it is in flight.
    pub ended: Option<Instant>,
    /// How the request was handled.
    pub outcome: Outcome,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It broke a rule and was refused.
    BrokeRules,
    /// It was larger than the window.
    Overflowed,
    /// It was answered with this fault.
    Faulted(&'static str),
    /// It was answered, without a fault.
    Answered,
}

/// A call in flight: counted until dropped.
pub(crate) struct InFlight {
    simulator: Simulator,
    call: u64,
}

impl InFlight {
    pub(crate) fn call(&self) -> u64 {
        self.call
    }

    /// Waits for the answer's delay before it is sent, and counts its fault.
    pub(crate) async fn wait_and_fire(&self, answer: &StatusAnswer) {
        if answer.wait_ms > 0 {
            sleep(Duration::from_millis(answer.wait_ms)).await;
        }
        if let Some(fault) = answer.fired {
            self.fired(fault);
        }
    }

    pub(crate) fn fired(&self, fault: &'static str) {
        *self.simulator.inner.state.lock().fired.entry(fault).or_default() += 1;
    }

    pub(crate) fn pinged(&self) {
        self.simulator.inner.state.lock().pings += 1;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.simulator.inner.state.lock();
        state.in_flight -= 1;
        if let Some(logged) = state.log.iter_mut().rev().find(|logged| logged.call == self.call) {
            logged.ended = Some(Instant::now());
        }
    }
}

impl Simulator {
    /// Creates a simulated model with these options.
    pub fn new(options: SimulatorOptions) -> Self {
        Self { inner: Arc::new(Inner { options, state: Mutex::default() }) }
    }

    /// Creates a model that answers with the last user message, and writes summaries on request.
    pub fn echo() -> Self {
        Self::new(SimulatorOptions::new(crate::scripts::Echo))
    }

    /// Serves it over HTTP on a free port of the loopback interface, until the server is dropped.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn serve(&self) -> Result<SimulatorServer, SimulatorError> {
        self.serve_at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Serves it over HTTP at this address, until the server is dropped; port 0 is a free one.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn serve_at(&self, address: SocketAddr) -> Result<SimulatorServer, SimulatorError> {
        SimulatorServer::bind(self.clone(), address).await
    }

    /// Returns the same model as an in-process provider, without a socket: usable with a paused clock.
    pub fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(InProcess::new(self.clone()))
    }

    /// Returns the options it was created with.
    pub fn options(&self) -> &SimulatorOptions {
        &self.inner.options
    }

    /// Returns the number of requests, including refused ones.
    pub fn calls(&self) -> u64 {
        self.inner.state.lock().calls
    }

    /// Returns how often it was asked to count the tokens of a request.
    pub fn counts(&self) -> u64 {
        self.inner.state.lock().counts
    }

    /// Returns the last requests, oldest first; at most `log_capacity`.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.inner.state.lock().log.iter().cloned().collect()
    }

    /// Returns the highest number of calls that were in flight at the same time.
    pub fn in_flight_max(&self) -> usize {
        self.inner.state.lock().in_flight_max
    }

    /// Returns the number of calls in flight.
    pub fn in_flight(&self) -> usize {
        self.inner.state.lock().in_flight
    }

    /// Returns the rules that requests broke; the first 1,000.
    pub fn violations(&self) -> Vec<Violation> {
        self.inner.state.lock().violations.clone()
    }

    /// How often each fault really happened, by name.
    pub fn fired(&self) -> BTreeMap<&'static str, u64> {
        self.inner.state.lock().fired.clone()
    }

    /// Returns the number of pings sent, which exist only over HTTP.
    pub fn pings(&self) -> u64 {
        self.inner.state.lock().pings
    }

    /// Fails the test if any request broke a rule.
    ///
    /// # Panics
    /// If one did; the message lists them.
    #[track_caller]
    pub fn assert_clean(&self) {
        let state = self.inner.state.lock();
        let total = state.violations.len() as u64 + state.violations_dropped;
        let list: Vec<String> = state.violations.iter().take(20).map(ToString::to_string).collect();
        drop(state);
        assert!(list.is_empty(), "{total} rules broken:\n{}", list.join("\n"));
    }

    /// Handles one request: counts, checks and logs it, and decides its answer.
    pub(crate) fn begin(
        &self,
        mut request: SeenRequest,
        mut broken: Vec<Broken>,
    ) -> (Transmission, InFlight) {
        let options = &self.inner.options;
        let (call, request_number, previous) = {
            let mut state = self.inner.state.lock();
            let call = state.calls;
            state.calls += 1;
            state.in_flight += 1;
            state.in_flight_max = state.in_flight_max.max(state.in_flight);
            let session = state.sessions.entry(request.session_key().to_owned()).or_default();
            session.requests += 1;
            (call, session.requests, session.previous.clone())
        };
        let flight = InFlight { simulator: self.clone(), call };
        let started = Instant::now();

        let (measured, known) = measure(&mut request, previous.as_deref(), &options.counting);
        broken.extend(check::check(&request, known));
        broken.retain(|(rule, _)| !options.tolerates.contains(rule));
        let planned = options
            .faults
            .as_ref()
            .and_then(|plan| plan.choose(request.session_key(), request_number, request.purpose))
            .cloned();

        if !broken.is_empty() {
            let answer = self.refuse_broken(&request, call, broken);
            self.log(call, request, started, Outcome::BrokeRules);
            return (Transmission::Status(answer), flight);
        }
        if request.purpose == Purpose::Compaction && options.compaction.is_none() {
            self.log(call, request, started, Outcome::BrokeRules);
            let text = "this model does not support the compaction of conversations";
            let body = wire::error_body(text, "invalid_request_error", Some("not_found"));
            return (Transmission::Status(StatusAnswer::new(404, body)), flight);
        }
        if let Some(fault) = planned.as_ref().filter(|fault| fault.replaces_answer()) {
            // The script is not called for an answer that nobody will see.
            let answer = self.answer(&request, Answer::default(), Some(fault), request_number);
            self.log(call, request, started, Outcome::Faulted(fault.name()));
            return (answer, flight);
        }
        if let Some(refusal) = self.overflow(&request) {
            self.log(call, request, started, Outcome::Overflowed);
            return (answer::refused(refusal), flight);
        }

        let session_call = self.remember(&request, measured);
        let info = CallInfo {
            call,
            session_call,
            seed: fault::hash(&[
                &options.seed.to_le_bytes(),
                request.session_key().as_bytes(),
                &session_call.to_le_bytes(),
            ]),
        };
        if request.tokens > options.window && options.error_dialect == ErrorDialect::SilentTruncation {
            truncate(&mut request, options.window);
        }
        let drops_half = |fault: Option<&Fault>| matches!(fault, Some(Fault::SilentTruncation));
        if drops_half(planned.as_ref()) {
            drop_half(&mut request);
        }
        let mut reply = options.script.reply(&request, info);
        let ordered = reply.fault.take();
        // The script that requests it has seen the whole request; the usage is that of the half.
        if planned.is_none() && drops_half(ordered.as_ref()) {
            drop_half(&mut request);
        }
        let planned = planned.filter(|fault| !fault.needs_call() || !reply.calls.is_empty());
        if !planned.as_ref().is_some_and(Fault::spoils_answer) {
            self.count_answer(&request);
        }
        let fault = planned.or(ordered);
        let answer = self.answer(&request, reply, fault.as_ref(), request_number);
        let outcome = fault.map_or(Outcome::Answered, |fault| Outcome::Faulted(fault.name()));
        self.log(call, request, started, outcome);
        (answer, flight)
    }

    /// Counts the tokens of a request, which is checked like one for an answer.
    pub(crate) fn count(
        &self,
        mut request: SeenRequest,
        mut broken: Vec<Broken>,
    ) -> Result<u64, StatusAnswer> {
        let options = &self.inner.options;
        let call = {
            let mut state = self.inner.state.lock();
            state.counts += 1;
            state.calls
        };
        if !options.counts_tokens {
            let body = wire::error_body("Not Found", "invalid_request_error", Some("not_found"));
            return Err(StatusAnswer::new(404, body));
        }
        measure(&mut request, None, &options.counting);
        broken.extend(check::check(&request, 0));
        broken.retain(|(rule, _)| !options.tolerates.contains(rule));
        if broken.is_empty() { Ok(request.tokens) } else { Err(self.refuse_broken(&request, call, broken)) }
    }

    /// Records the broken rules, and returns the refusal.
    fn refuse_broken(&self, request: &SeenRequest, call: u64, broken: Vec<Broken>) -> StatusAnswer {
        let texts: Vec<String> =
            broken.iter().map(|(rule, detail)| format!("{}: {detail}", rule.text())).collect();
        let mut state = self.inner.state.lock();
        for (rule, detail) in broken {
            if state.violations.len() < VIOLATIONS_KEPT_MAX {
                let session = request.session.clone();
                state.violations.push(Violation { call, session, rule, detail });
            } else {
                state.violations_dropped += 1;
            }
        }
        drop(state);
        let body = wire::error_body(&texts.join("; "), "invalid_request_error", Some("invalid_value"));
        StatusAnswer::new(400, body)
    }

    /// Returns the refusal of a request that is larger than the window, or requests more output than
    /// possible.
    fn overflow(&self, request: &SeenRequest) -> Option<Refusal> {
        let options = &self.inner.options;
        let output = request.settings.output_tokens_max;
        if request.tokens > options.window {
            return options
                .error_dialect
                .refuse(options.window, request.tokens, output, request.bytes, request.streamed);
        }
        let too_much = output.filter(|wanted| *wanted > options.max_output);
        if let Some(wanted) = too_much.filter(|_| options.refuses_output_above_max) {
            return Some(ErrorDialect::refuse_output_above(options.max_output, wanted));
        }
        let wanted = output.filter(|_| options.refuses_output_overflow)?;
        (request.tokens.saturating_add(wanted) > options.window)
            .then(|| ErrorDialect::refuse_output(options.window, request.tokens, wanted))
    }

    /// Stores the request as the session's last good one; returns how many calls of its purpose were
    /// answered.
    fn remember(&self, request: &SeenRequest, measured: Measured) -> u64 {
        let mut state = self.inner.state.lock();
        let session = state.sessions.entry(request.session_key().to_owned()).or_default();
        // Two summaries of a session may run at once, and share nothing with its runs.
        if request.purpose == Purpose::Step {
            session.previous = Some(Arc::new(Previous {
                system: request.system.clone(),
                tools: request.tools.clone(),
                head_tokens: measured.head_tokens,
                messages: request.messages.clone(),
                message_tokens: measured.message_tokens,
            }));
        }
        *session.answered(request.purpose)
    }

    /// Counts an answer that no fault of the plan spoils.
    fn count_answer(&self, request: &SeenRequest) {
        let mut state = self.inner.state.lock();
        let session = state.sessions.entry(request.session_key().to_owned()).or_default();
        *session.answered(request.purpose) += 1;
    }

    fn answer(
        &self,
        request: &SeenRequest,
        mut reply: Answer,
        fault: Option<&Fault>,
        number: u64,
    ) -> Transmission {
        let options = &self.inner.options;
        let room = request
            .settings
            .output_tokens_max
            .unwrap_or(options.max_output)
            .min(options.max_output)
            .min(options.window.saturating_sub(request.tokens));
        let (output_tokens, reasoning_tokens) = answer::limit_output(&mut reply, room);
        let usage = Usage {
            input_tokens: request.tokens,
            cached_tokens: request.cached_tokens,
            cache_write_tokens: 0,
            output_tokens,
            reasoning_tokens,
            ..Usage::default()
        };
        let usage = options.counting.report(usage);
        let id_seed = fault::hash(&[
            &options.seed.to_le_bytes(),
            request.session_key().as_bytes(),
            &number.to_le_bytes(),
            &request.tokens.to_le_bytes(),
        ]);
        answer::answer(&reply, fault, &ReplyFacts { usage, id_seed, window: options.window })
    }

    fn log(&self, call: u64, request: SeenRequest, started: Instant, outcome: Outcome) {
        let capacity = self.inner.options.log_capacity;
        if capacity == 0 {
            return;
        }
        let mut state = self.inner.state.lock();
        while state.log.len() >= capacity {
            state.log.pop_front();
        }
        state.log.push_back(LoggedRequest {
            call,
            request: Arc::new(request),
            started,
            ended: None,
            outcome,
        });
    }
}

/// The sizes of a request's parts.
struct Measured {
    head_tokens: u64,
    message_tokens: Vec<MessageTokens>,
}

/// Counts `request`, reusing what it shares with the session's previous one; returns how many messages that
/// is. Shared messages are replaced by the previous request's, so that they are in memory once.
fn measure(request: &mut SeenRequest, previous: Option<&Previous>, counting: &Counting) -> (Measured, usize) {
    let same_head = previous.filter(|previous| {
        previous.system == request.system
            && (Arc::ptr_eq(&previous.tools, &request.tools) || previous.tools == request.tools)
    });
    let head_tokens = same_head.map_or_else(
        || counting.hidden_tokens + tokens::head(request.system.as_deref(), &request.tools),
        |previous| previous.head_tokens,
    );
    let mut message_tokens = Vec::with_capacity(request.messages.len());
    let mut known = 0;
    if let Some(previous) = previous.filter(|_| request.purpose == Purpose::Step) {
        for ((old, tokens), new) in
            previous.messages.iter().zip(&previous.message_tokens).zip(&mut request.messages)
        {
            if !Arc::ptr_eq(old, new) {
                if old != new {
                    break;
                }
                *new = old.clone();
            }
            message_tokens.push(*tokens);
            known += 1;
        }
    }
    let cached =
        counting.scaled(head_tokens + counting.messages(&request.messages[..known], &message_tokens));
    message_tokens.extend(request.messages[known..].iter().map(|message| MessageTokens::of(message)));
    request.tokens = counting.scaled(head_tokens + counting.messages(&request.messages, &message_tokens));
    // Reasoning that a template drops with a new turn is no longer in the prefix.
    request.cached_tokens = same_head.map_or(0, |_| cached.min(request.tokens));
    (Measured { head_tokens, message_tokens }, known)
}

/// Drops the oldest half of the conversation.
fn drop_half(request: &mut SeenRequest) {
    let half = request.tokens / 2;
    truncate(request, half);
}

/// Drops the oldest messages until at most `tokens_max` are left, as servers that truncate silently do. The
/// last message stays whatever its size.
fn truncate(request: &mut SeenRequest, tokens_max: u64) {
    let mut dropped = 0;
    while request.messages.len() - dropped > 1 && request.tokens > tokens_max {
        request.tokens = request.tokens.saturating_sub(tokens::message(&request.messages[dropped]));
        dropped += 1;
    }
    request.messages.drain(..dropped);
    request.cached_tokens = request.cached_tokens.min(request.tokens);
}

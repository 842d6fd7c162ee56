//! A model for tests of agents: it returns the answers of a script, and fails the test if the agent and the
//! script differ.
//!
//! Invariants: an answer is given once; a call for which the script has no answer, or whose answer expected
//! another request, is refused in a way that ends the run, and is reported by `assert_done` and when the
//! model is dropped.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use greenroom_provider::{Provider, Purpose};
use parking_lot::Mutex;
use serde_json::Value;

use crate::SimulatorError;
use crate::expect::quoted;
use crate::fault::Fault;
use crate::model::{Answer, CallInfo, Script};
use crate::protocol::chat as wire;
use crate::seen::SeenRequest;
use crate::server::SimulatorServer;
use crate::simulator::{LoggedRequest, Simulator, SimulatorOptions};
use crate::summariser::Summariser;

#[cfg(test)]
mod tests;

/// How many requests are kept: more than a test makes.
const LOG_CAPACITY: usize = 10_000;

/// A model that returns the answers of a script, one for each call, in order.
///
/// A call beyond the script's end is refused, the run ends with an error, and the test fails when the model
/// is dropped. The same happens if an answer's expectations are not met, a request breaks a rule of the
/// protocol, or an answer calls a tool that the agent does not have. (To test just that, use
/// [`Sequence`](crate::Sequence), which expects nothing.) [`assert_done`](Self::assert_done) at the end of a
/// test also fails if answers are left over.
///
/// ```
/// # use greenroom::prelude::*;
/// use greenroom_simulator::{Answer, ScriptedModel};
/// use serde_json::json;
///
/// # #[derive(Deserialize, JsonSchema)] struct Refund { order: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let model = ScriptedModel::new([
///     Answer::call("refund", &json!({ "order": 7 })).expect_user("money back"),
///     Answer::text("Done.").expect_tool_result("refund", "paid"),
/// ]);
/// let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// let agent = Agent::new("any").tool("refund", |_: Refund| async move { Ok("paid") });
/// let session = runtime.open("s", &agent).await?;
/// let reply = session.prompt("I want my money back for order 7.").await?;
/// assert_eq!(reply.text, "Done.");
/// assert_eq!(model.calls_of("refund"), [json!({ "order": 7 })]);
/// model.assert_done();
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct ScriptedModel {
    inner: Arc<Inner>,
}

struct Inner {
    simulator: Simulator,
    script: Arc<Strict>,
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedModel({} calls)", self.inner.simulator.calls())
    }
}

impl ScriptedModel {
    /// Creates a model that answers the calls of all sessions with these answers, in order of arrival.
    /// Requests for summaries do not consume answers, and get an obedient summary: see [`Self::summaries`].
    pub fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let lists = vec![List { model: None, answers: answers.into_iter().collect() }];
        let script = Strict { lists, summaries: Arc::new(Summariser::Obedient), state: Mutex::default() };
        Self::of(
            SimulatorOptions { log_capacity: LOG_CAPACITY, ..SimulatorOptions::new(Summariser::Obedient) },
            script,
        )
    }

    fn of(options: SimulatorOptions, script: Strict) -> Self {
        let script = Arc::new(script);
        let options = SimulatorOptions { script: Arc::clone(&script) as Arc<dyn Script>, ..options };
        Self { inner: Arc::new(Inner { simulator: Simulator::new(options), script }) }
    }

    fn changed(&self, options: impl FnOnce(&mut SimulatorOptions), script: impl FnOnce(&mut Strict)) -> Self {
        let mut changed = self.inner.simulator.options().clone();
        options(&mut changed);
        let Strict { lists, summaries, .. } = &*self.inner.script;
        let mut strict =
            Strict { lists: lists.clone(), summaries: Arc::clone(summaries), state: Mutex::default() };
        script(&mut strict);
        Self::of(changed, strict)
    }

    /// Sets separate answers for the calls to this model, for example a sub-agent's.
    pub fn for_model(self, model: impl Into<String>, answers: impl IntoIterator<Item = Answer>) -> Self {
        let list = List { model: Some(model.into()), answers: answers.into_iter().collect() };
        self.changed(|_| {}, |script| script.lists.push(list))
    }

    /// Answers requests for summaries with this script.
    pub fn summaries(self, summaries: impl Script) -> Self {
        self.changed(|_| {}, |script| script.summaries = Arc::new(summaries))
    }

    /// Changes the options of the underlying simulator: its window, its faults, the provider's name …
    pub fn options(self, change: impl FnOnce(&mut SimulatorOptions)) -> Self {
        self.changed(change, |_| {})
    }

    /// Returns the model as an in-process provider: no socket, and usable with a paused clock.
    pub fn provider(&self) -> Arc<dyn Provider> {
        self.inner.simulator.provider()
    }

    /// Serves the model over HTTP, with the APIs of OpenAI, Anthropic and Google, on a free port of the loopback
    /// interface, until the server is dropped.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn serve(&self) -> Result<SimulatorServer, SimulatorError> {
        self.inner.simulator.serve().await
    }

    /// Returns the arguments of every call that the model made of this tool, in order. Arguments that are not
    /// JSON are a string.
    pub fn calls_of(&self, tool: &str) -> Vec<Value> {
        let state = self.inner.script.state.lock();
        state.calls.iter().filter(|(name, _)| name == tool).map(|(_, arguments)| arguments.clone()).collect()
    }

    /// Returns the requests that the model received, oldest first, including those for summaries.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.inner.simulator.requests()
    }

    /// Returns the underlying simulator: concurrent calls, fired faults, and more.
    pub fn simulator(&self) -> &Simulator {
        &self.inner.simulator
    }

    /// Returns the differences between the agent and the script so far, a sentence each: unused answers,
    /// calls beyond the script, unmet expectations, and broken rules.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.inner.problems();
        let mut state = self.inner.script.state.lock();
        state.reported = problems.len();
        for (list, next) in self.inner.script.lists.iter().zip(state.next(&self.inner.script.lists)) {
            if let Some(answer) = list.answers.get(next) {
                let left = list.answers.len() - next;
                let of =
                    list.model.as_ref().map(|model| format!(" for the model {model:?}")).unwrap_or_default();
                problems.push(format!(
                    "{left} of the script's {}{of} not used; the next would be {}",
                    counted(list.answers.len()),
                    summary(answer)
                ));
            }
        }
        problems
    }

    /// Fails the test unless every answer was used, no call was beyond the script, every expectation was met,
    /// and no request broke a rule.
    ///
    /// # Panics
    /// If one of these does not hold; the message lists all differences.
    #[track_caller]
    pub fn assert_done(&self) {
        let problems = self.problems();
        assert!(problems.is_empty(), "{}", listed(&problems));
    }
}

impl Inner {
    /// Returns the problems that are certain already.
    fn problems(&self) -> Vec<String> {
        let mut problems = self.script.state.lock().failures.clone();
        let broken = self.simulator.violations();
        problems.extend(broken.iter().map(|violation| format!("a request broke a rule: {violation}")));
        problems
    }
}

/// A test that forgets `assert_done` fails nevertheless if the agent and the script differ.
impl Drop for Inner {
    fn drop(&mut self) {
        let problems = self.problems();
        if problems.len() > self.script.state.lock().reported && !std::thread::panicking() {
            panic!("{}", listed(&problems));
        }
    }
}

fn listed(problems: &[String]) -> String {
    format!("the agent and the model's script differ:\n- {}", problems.join("\n- "))
}

/// The answers to the calls to one model, or to all models without a list of their own.
#[derive(Debug, Clone)]
struct List {
    model: Option<String>,
    answers: Vec<Answer>,
}

/// A script with a fixed number of answers.
struct Strict {
    lists: Vec<List>,
    summaries: Arc<dyn Script>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which answer of which list each call got: an answer that did not arrive is requested again.
    given: HashMap<(String, u64), (usize, usize)>,
    /// How many answers of each list were used.
    used: HashMap<usize, usize>,
    failures: Vec<String>,
    /// The tools that were called, with their arguments.
    calls: Vec<(String, Value)>,
    /// How many of the problems were already reported: the caller fails the test, or reports them itself.
    reported: usize,
}

impl State {
    /// Returns the next answer of each list.
    fn next(&self, lists: &[List]) -> Vec<usize> {
        (0..lists.len()).map(|list| self.used.get(&list).copied().unwrap_or(0)).collect()
    }
}

impl Strict {
    /// Returns the list for calls to this model: its own, or the one for all.
    fn list_of(&self, model: &str) -> usize {
        self.lists.iter().position(|list| list.model.as_deref() == Some(model)).unwrap_or(0)
    }

    fn refuse(state: &mut State, failure: String) -> Answer {
        state.failures.push(failure);
        let message = "the test's script has no answer to this request: see the model's `assert_done`";
        let body = wire::error_body(message, "invalid_request_error", Some("scripted_model"));
        Answer::fault(Fault::Http { status: 400, headers: Vec::new(), body })
    }
}

impl Script for Strict {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        if request.purpose != Purpose::Step {
            return self.summaries.reply(request, call);
        }
        let mut state = self.state.lock();
        let key = (request.session_key().to_owned(), call.session_call);
        let known = state.given.get(&key).copied();
        let (list, index) = known.unwrap_or_else(|| {
            let list = self.list_of(&request.model);
            let used = state.used.entry(list).or_default();
            let index = *used;
            *used += 1;
            (list, index)
        });
        state.given.insert(key, (list, index));
        let answers = &self.lists[list].answers;
        let Some(answer) = answers.get(index) else {
            let newest = request.messages.last().map(|message| {
                format!("; it follows this message of the {}\n{}", message.role(), quoted(&message.text()))
            });
            let failure = format!(
                "the script has {}, and the agent requested number {} (session {:?}, model {:?}){}",
                counted(answers.len()),
                index + 1,
                request.session_key(),
                request.model,
                newest.unwrap_or_default()
            );
            return Self::refuse(&mut state, failure);
        };
        let unmet: Vec<String> =
            answer.expects.iter().filter_map(|expectation| expectation.failure(request)).collect();
        if !unmet.is_empty() {
            let failure = format!("answer {} expects another request: {}", index + 1, unmet.join("; "));
            return Self::refuse(&mut state, failure);
        }
        // The answer is sent nevertheless: the agent reports how it handled it.
        if known.is_none()
            && let Some(call) = answer.calls.iter().find(|call| !request.has_tool(&call.name))
        {
            let offered: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
            state.failures.push(format!(
                "answer {} calls the tool {:?}, which the agent does not offer; it offers: {}",
                index + 1,
                call.name,
                if offered.is_empty() { "none".to_owned() } else { offered.join(", ") }
            ));
        }
        if known.is_none() {
            let calls = answer.calls.iter().map(|call| {
                let arguments = serde_json::from_str(&call.arguments);
                (call.name.clone(), arguments.unwrap_or_else(|_| Value::String(call.arguments.clone())))
            });
            state.calls.extend(calls);
        }
        answer.clone()
    }
}

fn counted(answers: usize) -> String {
    if answers == 1 { "1 answer".to_owned() } else { format!("{answers} answers") }
}

/// Summarises an answer in a few words.
fn summary(answer: &Answer) -> String {
    if let Some(fault) = &answer.fault {
        return format!("the fault {}", fault.name());
    }
    match answer.calls.first() {
        Some(call) => format!("the call {}({})", call.name, call.arguments),
        None => format!("the text {:?}", answer.text.chars().take(60).collect::<String>()),
    }
}

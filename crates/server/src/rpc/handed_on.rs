//! The open requests of a connection that is relayed to a host: when the host exits, the client is told so, and its
//! next requests go to the next host.
//!
//! Invariants: each request has exactly one answer, from the host or from here; so has the outcome of work that the
//! host accepted.

use serde_json::{Value, json};

use super::wire::{self, Refusal};
use crate::operations;
use crate::problem::{Problem, ProblemKind};

#[cfg(test)]
mod tests;

/// The error of a request that a host left open.
const NOT_ANSWERED: &str = "the host ended before it answered; the request may have been executed";
/// The error of work that a host had accepted.
const CUT_OFF: &str = "the host ended before the work was complete; finished steps are kept; `session/resume` \
                       continues a run";

/// The requests without an answer, and the work without an outcome.
#[derive(Debug, Default)]
pub struct Unanswered {
    /// The requests of each message: several if it was a batch.
    messages: Vec<IncomingMessage>,
    work: Vec<Taken>,
}

/// A message for the host.
#[derive(Debug)]
struct IncomingMessage {
    requests: Vec<Request>,
    is_batch: bool,
}

#[derive(Debug)]
struct Request {
    id: Value,
    /// The method of its outcome: empty if it has none.
    outcome: &'static str,
    session_id: Value,
}

/// Accepted work.
#[derive(Debug)]
struct Taken {
    request: Request,
    /// The prompt's entry.
    entry_id: Option<Value>,
}

impl Unanswered {
    /// A line for the host.
    pub fn asks(&mut self, line: &[u8]) {
        // An invalid message is answered at once, and names no request.
        let Ok(message) = serde_json::from_slice::<Value>(line) else { return };
        let is_batch = message.is_array();
        let requests: Vec<Request> = each(&message).filter_map(Request::of).collect();
        if !requests.is_empty() {
            self.messages.push(IncomingMessage { requests, is_batch });
        }
    }

    /// A line for the host that is too long and begins like this. The host refuses it.
    pub fn asks_too_much(&mut self, beginning: &[u8]) {
        let id = wire::id_of(beginning);
        if !id.is_null() {
            let requests = vec![Request { id, outcome: "", session_id: Value::Null }];
            self.messages.push(IncomingMessage { requests, is_batch: false });
        }
    }

    /// A line from the host.
    pub fn hears(&mut self, line: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Value>(line) else { return };
        for message in each(&message) {
            match message.get("method").and_then(Value::as_str) {
                None => self.answered(message),
                Some(method) => {
                    let id = message.pointer("/params/request_id");
                    let is_it =
                        |taken: &Taken| taken.request.outcome == method && Some(&taken.request.id) == id;
                    if let Some(place) = self.work.iter().position(is_it) {
                        self.work.remove(place);
                    }
                }
            }
        }
    }

    fn answered(&mut self, answer: &Value) {
        let Some(id) = answer.get("id") else { return };
        for place in 0..self.messages.len() {
            let Some(message) = self.messages.get_mut(place) else { return };
            let Some(request) = message.requests.iter().position(|request| request.id == *id) else {
                continue;
            };
            let request = message.requests.remove(request);
            if message.requests.is_empty() {
                self.messages.remove(place);
            }
            if !request.outcome.is_empty() && answer.get("result").is_some() {
                let entry_id = answer.pointer("/result/entry_id").cloned();
                self.work.push(Taken { request, entry_id });
            }
            return;
        }
    }

    /// The host has exited. Returns the lines for the client: its open requests have no other answer, and its work was
    /// cut off.
    pub fn host_ended(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for IncomingMessage { requests, is_batch } in self.messages.drain(..) {
            let problem = Problem::new(ProblemKind::Closed, NOT_ANSWERED);
            let refuse = |request: &Request| {
                let refused = operations::Refused::Problem(Box::new(problem.clone()));
                wire::answer(&request.id, Err(Refusal::from(refused)))
            };
            let answers: Vec<String> = requests.iter().map(refuse).collect();
            lines.extend(if is_batch { vec![format!("[{}]", answers.join(","))] } else { answers });
        }
        for Taken { request: Request { id, outcome, session_id }, entry_id } in self.work.drain(..) {
            let problem = Problem::new(ProblemKind::Interrupted, CUT_OFF);
            let mut params = json!({ "error": problem, "session_id": session_id });
            if let Some(entry_id) = entry_id {
                params["entry_id"] = entry_id;
            }
            lines.push(wire::result(outcome, Some(id), params));
        }
        lines
    }
}

impl Request {
    /// `None` for a notification, which has no answer, and for what is not a message.
    fn of(message: &Value) -> Option<Self> {
        let id = message.get("id")?.clone();
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
        let known = operations::methods().into_iter().find(|known| known.name == method);
        let session_id = message.pointer("/params/session_id").cloned().unwrap_or_default();
        Some(Self { id, outcome: known.map_or("", |known| known.outcome), session_id })
    }
}

/// The messages of a line.
fn each(message: &Value) -> impl Iterator<Item = &Value> {
    message.as_array().map_or_else(|| std::slice::from_ref(message), Vec::as_slice).iter()
}

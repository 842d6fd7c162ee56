//! Spans and log lines about sessions, with the names of OpenTelemetry's conventions for generative AI. The
//! conventions are still in development; these are the ones with `gen_ai.provider.name` instead of
//! `gen_ai.system`.
//!
//! ```text
//! session ─ invoke_agent (a run) ─┬─ step ─┬─ chat (a model call) ─ wait (for its turn)
//!                                 │        ├─ wait (before it is made again)
//!                                 │        └─ execute_tool ─ invoke_agent (of an agent that is called)
//!                                 ├─ compaction ─┬─ chat (a summary) ─ wait
//!                                 │              └─ wait
//!                                 └─ store.append
//! ```
//!
//! A run that is requested within a span of the program is a child of that span, and follows from its
//! session's. A run that waited before it started, or that receives a steer or a follow-up, follows from the
//! span of its sender.
//!
//! Invariants: no span and no line contains a message's text, a tool's arguments or result, a provider's
//! message or a key; all names are defined here; nothing is computed for a disabled span or line.

use std::time::Duration;

use greenroom_kernel::entry::{CompactionStarted, EntryId, RunId, RunOutcome, Trigger};
use greenroom_kernel::plan::Plan;
use greenroom_kernel::run::Size;
use greenroom_kernel::usage::Window;
use greenroom_kernel::{AssistantMessage, Failure, ToolCall, ToolStatus, Usage};
use greenroom_provider::{Provider, Purpose, Request};
use serde::Serialize;
use tracing::field::Empty;
use tracing::{Span, debug, debug_span, info, info_span};

use crate::lane::Queued;
use crate::values::compaction::Compacted;

#[cfg(test)]
mod tests;

/// A session's life in memory.
pub(crate) fn session(id: &str, parent: Option<&str>) -> Span {
    let span = info_span!(parent: None, "session", "gen_ai.conversation.id" = id, "greenroom.session.parent" = Empty);
    if let Some(parent) = parent {
        span.record("greenroom.session.parent", parent);
    }
    span
}

/// The caller's own trace.
#[derive(Debug, Clone, Default)]
pub(crate) struct CalledFrom {
    span: Option<Span>,
    /// Whether the run starts later, or started before, and so is not a part of the caller's span.
    is_late: bool,
}

impl CalledFrom {
    /// Returns the current span.
    pub(crate) fn current() -> Self {
        Self { span: Some(Span::current()).filter(|span| !span.is_none()), is_late: false }
    }

    /// Notes that the input joins a run that another caller started.
    pub(crate) fn joins(&self, run: &Span) {
        if let Some(caller) = &self.span {
            run.follows_from(caller);
        }
    }

    /// Notes that the run does not start at once.
    pub(crate) fn waited(&mut self) {
        self.is_late = true;
    }
}

/// A run, until its end is recorded.
pub(crate) fn run(
    session: &Span,
    from: &mut CalledFrom,
    id: &str,
    run: RunId,
    provider: &str,
    model: &str,
) -> Span {
    // The caller's span is held only as long as a child of it.
    let caller = from.span.take();
    let parent = caller.as_ref().filter(|_| !from.is_late).unwrap_or(session);
    let span = info_span!(
        parent: parent,
        "invoke_agent",
        "otel.kind" = "internal",
        "gen_ai.operation.name" = "invoke_agent",
        "gen_ai.provider.name" = provider,
        "gen_ai.request.model" = model,
        "gen_ai.conversation.id" = id,
        "greenroom.run" = run.0,
        "greenroom.run.outcome" = Empty,
        "greenroom.run.steps" = Empty,
        "gen_ai.usage.input_tokens" = Empty,
        "gen_ai.usage.output_tokens" = Empty,
        "error.type" = Empty,
        "otel.status_code" = Empty,
    );
    if let Some(caller) = &caller {
        span.follows_from(if from.is_late { caller } else { session });
    }
    info!(parent: &span, session = id, run = run.0, provider, model, "a run starts");
    span
}

/// Records the run's end.
pub(crate) fn run_ended(
    span: &Span,
    id: &str,
    run: RunId,
    outcome: &RunOutcome,
    steps: u32,
    usage: &Usage,
    took: Duration,
) {
    span.record("greenroom.run.outcome", outcome.as_str());
    span.record("greenroom.run.steps", steps);
    record_usage(span, usage);
    match outcome {
        RunOutcome::Completed | RunOutcome::Aborted => {}
        RunOutcome::Failed(failure) => fails(span, failure.class.as_str()),
        RunOutcome::Interrupted | RunOutcome::Stopped { .. } | RunOutcome::Unknown | _ => {
            fails(span, outcome.as_str());
        }
    }
    let class = if let RunOutcome::Failed(failure) = outcome { failure.class.as_str() } else { "" };
    let Usage { input_tokens, output_tokens, .. } = usage;
    info!(
        parent: span,
        session = id, run = run.0, outcome = outcome.as_str(), class, steps, input_tokens, output_tokens,
        took_ms = millis(took),
        "the run ended"
    );
}

/// A step of a run.
pub(crate) fn step(run: &Span, id: &str, number: u32) -> Span {
    info_span!(parent: run, "step", "gen_ai.conversation.id" = id, "greenroom.step" = number)
}

/// A model call, for a step or a summary.
pub(crate) fn chat(parent: &Span, provider: &dyn Provider, request: &Request) -> Span {
    let span = info_span!(
        parent: parent,
        "chat",
        "otel.kind" = "client",
        "otel.name" = format!("chat {}", request.model),
        "gen_ai.operation.name" = "chat",
        "gen_ai.provider.name" = provider.name(),
        "gen_ai.request.model" = request.model,
        "gen_ai.conversation.id" = request.session,
        "gen_ai.request.max_tokens" = Empty,
        "gen_ai.request.temperature" = Empty,
        "gen_ai.request.top_p" = Empty,
        "gen_ai.request.seed" = Empty,
        "gen_ai.response.model" = Empty,
        "gen_ai.response.finish_reasons" = Empty,
        "gen_ai.usage.input_tokens" = Empty,
        "gen_ai.usage.output_tokens" = Empty,
        "gen_ai.usage.cache_read.input_tokens" = Empty,
        "server.address" = Empty,
        "server.port" = Empty,
        "error.type" = Empty,
        "otel.status_code" = Empty,
        "greenroom.purpose" = purpose_name(request.purpose),
    );
    if span.is_disabled() {
        return span;
    }
    let settings = &request.settings;
    if let Some(tokens) = settings.output_tokens_max {
        span.record("gen_ai.request.max_tokens", tokens);
    }
    if let Some(temperature) = settings.temperature {
        span.record("gen_ai.request.temperature", temperature);
    }
    if let Some(top_p) = settings.top_p {
        span.record("gen_ai.request.top_p", top_p);
    }
    if let Some(seed) = settings.seed {
        span.record("gen_ai.request.seed", seed);
    }
    if let Some((host, port)) = provider.address().and_then(host_and_port) {
        span.record("server.address", host);
        span.record("server.port", port);
    }
    span
}

/// Records the model's answer.
pub(crate) fn answered(span: &Span, id: &str, purpose: Purpose, answer: &AssistantMessage, took: Duration) {
    let usage = answer.usage.unwrap_or_default();
    if !span.is_disabled() {
        span.record("gen_ai.response.model", answer.model.as_str());
        span.record("gen_ai.response.finish_reasons", name(&answer.stop));
        if answer.usage.is_some() {
            record_usage(span, &usage);
            span.record("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens);
        }
    }
    let calls = answer.tool_calls().count();
    info!(
        parent: span,
        session = id, purpose = purpose_name(purpose), model = answer.model, stop = name(&answer.stop),
        input_tokens = usage.input_tokens, cached_tokens = usage.cached_tokens, output_tokens = usage.output_tokens,
        calls, took_ms = millis(took),
        "the model answered"
    );
}

/// Records the failure of a model call.
pub(crate) fn failed(span: &Span, id: &str, purpose: Purpose, failure: &Failure, took: Duration) {
    fails(span, failure.class.as_str());
    info!(
        parent: span,
        session = id, purpose = purpose_name(purpose), class = failure.class.as_str(), status = failure.status,
        limit = failure.limit, took_ms = millis(took),
        "the model call failed"
    );
}

/// Records the cancellation of a model call.
pub(crate) fn cancelled(span: &Span, id: &str, purpose: Purpose, took: Duration) {
    fails(span, "cancelled");
    info!(parent: span, session = id, purpose = purpose_name(purpose), took_ms = millis(took), "the model call was cancelled");
}

/// Records how long a model call waited for its turn.
pub(crate) fn entered(span: &Span, id: &str, waited: Duration) {
    debug!(parent: span, session = id, waited_ms = millis(waited), "the call has its place among those of the provider");
}

/// A wait: for a slot at the provider, for example, or before a call is repeated.
pub(crate) fn wait(parent: &Span, id: &str, reason: &str) -> Span {
    info_span!(parent: parent, "wait", "gen_ai.conversation.id" = id, "greenroom.wait.reason" = reason)
}

/// Records the state of a call that waits for its turn; `span` is that of the current wait.
pub(crate) fn queued(span: &mut Span, chat: &Span, id: &str, queued: &Queued) {
    *span = match queued.position {
        0 => Span::none(),
        _ => wait(chat, id, &name(&queued.reason)),
    };
}

/// Records that a failed call is repeated after a wait.
pub(crate) fn retry(run: &Span, id: &str, attempt: u32, delay_ms: u64, failure: &Failure) {
    info!(
        parent: run,
        session = id, attempt, delay_ms, class = failure.class.as_str(), retry_after_ms = failure.retry_after_ms,
        "the call is made again after a wait"
    );
}

/// A tool call.
pub(crate) fn tool(step: &Span, id: &str, call: &ToolCall) -> Span {
    info_span!(
        parent: step,
        "execute_tool",
        "otel.kind" = "internal",
        "otel.name" = format!("execute_tool {}", call.name),
        "gen_ai.operation.name" = "execute_tool",
        "gen_ai.tool.name" = call.name,
        "gen_ai.tool.call.id" = call.id,
        "gen_ai.tool.type" = "function",
        "gen_ai.conversation.id" = id,
        "error.type" = Empty,
        "otel.status_code" = Empty,
    )
}

/// Records the end of a tool call.
pub(crate) fn tool_ended(span: &Span, id: &str, call: &ToolCall, status: ToolStatus, took: Duration) {
    match status {
        ToolStatus::Ok => {}
        ToolStatus::Error => fails(span, "tool_error"),
        ToolStatus::Interrupted => fails(span, "interrupted"),
    }
    info!(
        parent: span,
        session = id, tool = call.name, status = name(&status), took_ms = millis(took),
        "a tool ended"
    );
}

/// A compaction, for a run that waits for it or for the session.
pub(crate) fn compaction(parent: &Span, id: &str, entry: EntryId, started: &CompactionStarted) -> Span {
    let CompactionStarted { trigger, tokens_before, messages_before } = started;
    let span = info_span!(
        parent: parent,
        "compaction",
        "gen_ai.conversation.id" = id,
        "greenroom.compaction" = entry.0,
        "greenroom.compaction.trigger" = name(trigger),
        "greenroom.compaction.tokens_before" = tokens_before,
        "greenroom.compaction.tokens_after" = Empty,
        "greenroom.compaction.outcome" = Empty,
        "gen_ai.usage.input_tokens" = Empty,
        "gen_ai.usage.output_tokens" = Empty,
        "error.type" = Empty,
        "otel.status_code" = Empty,
    );
    info!(
        parent: &span,
        session = id, trigger = name(trigger), tokens = tokens_before, messages = messages_before,
        "a compaction begins"
    );
    span
}

/// Opens the span of a preparation.
pub(crate) fn preparation(parent: &Span, id: &str, tokens: u64) -> Span {
    let span = info_span!(
        parent: parent,
        "prepare_compaction",
        "gen_ai.conversation.id" = id,
        "greenroom.compaction.tokens_before" = tokens,
    );
    info!(parent: &span, session = id, tokens, "a compaction is being prepared");
    span
}

/// Records the end of a compaction.
pub(crate) fn compaction_ended(span: &Span, id: &str, end: &Compacted) {
    span.record("greenroom.compaction.tokens_after", end.tokens_after);
    span.record("greenroom.compaction.outcome", end.outcome.as_str());
    record_usage(span, &end.summary_usage);
    if !end.is_installed() {
        fails(span, end.outcome.as_str());
    }
    info!(
        parent: span,
        session = id, outcome = end.outcome.as_str(), tokens_before = end.tokens_before, tokens_after = end.tokens_after,
        messages_removed = end.messages_removed, took_ms = end.duration_ms,
        "the compaction ended"
    );
}

/// Records whether a requested compaction starts.
pub(crate) fn compaction_wanted(
    parent: &Span,
    id: &str,
    trigger: Trigger,
    size: &Size,
    is_due: bool,
    has_news: bool,
) {
    debug!(
        parent: parent,
        session = id, trigger = name(&trigger), tokens = size.tokens, at_window = size.at_window,
        over_trigger = size.is_due, has_new_messages = has_news, begins = is_due,
        "is a compaction due?"
    );
}

/// Records what a compaction keeps and what it replaces.
pub(crate) fn planned(span: &Span, id: &str, plan: &Plan) {
    debug!(
        parent: span,
        session = id, first_kept = plan.first_kept.0, kept_tokens = plan.kept_tokens,
        keep_recent = plan.options.keep_recent, summarised = plan.history.len(), turn_prefix = plan.turn_prefix.len(),
        merges = plan.previous_summary.is_some(), tokens_before = plan.tokens_before,
        tokens_after = plan.tokens_after_estimate(),
        "the plan of the compaction"
    );
}

/// Records a measurement of the context.
pub(crate) fn measured(
    id: &str,
    size: &Size,
    window: &Window,
    trigger_at: Option<u64>,
    full_at: Option<u64>,
) {
    debug!(
        session = id,
        tokens = size.tokens,
        counted = size.counted,
        window = window.tokens,
        window_source = name(&window.source),
        trigger_at,
        full_at,
        due = size.is_due,
        at_window = size.at_window,
        "the context is measured"
    );
}

/// Records a change of the session's window.
pub(crate) fn window_changed(id: &str, before: &Window, now: &Window) {
    debug!(
        session = id,
        before = before.tokens,
        window = now.tokens,
        window_source = name(&now.source),
        "the window is another"
    );
}

/// Records a limit that a server named.
pub(crate) fn limit_named(id: &str, origin: &str, model: &str, limit: u64, sent: u64, is_new: bool) {
    debug!(session = id, origin, model, limit, sent, taken_over = is_new, "a server named a limit");
}

/// Records a change of the settings.
pub(crate) fn settings_changed(id: &str, version: u64) {
    info!(session = id, version, "changed settings hold from now on");
}

/// An append to the store, until it is durable.
pub(crate) fn append(parent: &Span, id: &str, entries: usize) -> Span {
    debug_span!(parent: parent, "store.append", "gen_ai.conversation.id" = id, "greenroom.store.entries" = entries, "error.type" = Empty, "otel.status_code" = Empty)
}

/// Records that an append was refused.
pub(crate) fn append_failed(span: &Span) {
    fails(span, "store");
}

/// Marks a span as failed, for OpenTelemetry too.
fn fails(span: &Span, kind: &str) {
    span.record("error.type", kind);
    span.record("otel.status_code", "ERROR");
}

fn record_usage(span: &Span, usage: &Usage) {
    span.record("gen_ai.usage.input_tokens", usage.input_tokens);
    span.record("gen_ai.usage.output_tokens", usage.output_tokens);
}

/// Returns the name of the purpose of a model call.
pub(crate) fn purpose_name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Step => "step",
        Purpose::Summary => "summary",
        Purpose::Compaction => "compaction",
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a value's name in JSON.
pub(crate) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(_) | Err(_) => String::new(),
    }
}

/// Returns the host and the port of a server's address.
fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (scheme, rest) = address.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    // A name and a password are never shown, nor is anything that is not an address.
    let authority = authority.rsplit('@').next()?;
    let standard = if scheme == "https" { 443 } else { 80 };
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => Some((host, port.parse().ok()?)),
        Some(_) | None => Some((authority, standard)),
    }
}

//! Recording a run's messages, the input that joins it at boundaries, and its end.
//!
//! Invariants: the run's end is recorded once, with the measured size, and in one write with its answer if
//! that comes last; if the store refuses, the run ends without a record, and acknowledged entries are kept.

use std::sync::Arc;

use greenroom_kernel::entry::{EntryKind, InboxDelivery, Spender, Spent};
use greenroom_kernel::log::{Draft, InboxItem};
use greenroom_kernel::message::{Message, ToolResult, ToolStatus};
use greenroom_kernel::path::is_message;
use greenroom_kernel::run::Boundary;
use greenroom_kernel::{RunOutcome, Usage};

use super::SessionState;
use super::append::AfterAppend;
use super::open_run::{ClosingRun, OpenRun};
use crate::core::message::{
    AgentMessage, Answer, MeasureFor, Measurement, RunAttempt, RunCompletion, TrackerMessage, tell_all,
};
use crate::limits::waits;
use crate::values::compaction::told_compactions;
use crate::values::error::Error;

impl SessionState {
    /// Returns the open run if the message is about it. Late messages are dropped here.
    pub(super) fn current(&mut self, attempt: RunAttempt) -> Option<&mut OpenRun> {
        self.runs.current(attempt)
    }

    pub(super) async fn record(&mut self, attempt: RunAttempt, messages: Vec<Message>, boundary: Boundary) {
        if self.current(attempt).is_none() {
            return;
        }
        let recorded = messages.len();
        let mut messages = self.without_waiting(messages);
        self.refuse_further_hand_offs(&mut messages);
        if messages.is_empty() && recorded > 0 {
            // The run is being left, and gets no more messages.
            return;
        }
        let Some(run) = self.current(attempt) else { return };
        run.note(&messages);
        let mut draft = self.log.draft(self.deps.now_ms());
        for message in messages {
            draft.message_of_run(message, self.definition.window.tokens);
        }
        let joins = |item: &&InboxItem| match boundary {
            Boundary::None => false,
            Boundary::Steps => item.delivery == InboxDelivery::Steer,
            Boundary::End => item.delivery != InboxDelivery::Prompt,
        };
        let items = self.inbox.ready(&self.log).filter(joins).filter(|item| self.is_of_run(item.id));
        let mut items: Vec<InboxItem> = items.cloned().collect();
        if items.iter().any(|item| item.delivery == InboxDelivery::Steer) {
            // The agent does not end here, so follow-ups wait for the next end.
            items.retain(|item| item.delivery == InboxDelivery::Steer);
        }
        for item in &items {
            draft.deliver(item, item.delivery == InboxDelivery::Steer);
            let from = self.inbox.take_from(item.id);
            self.runs.span().into_iter().for_each(|span| from.joins(span));
        }
        let delivered = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let is_over = boundary == Boundary::End && delivered == 0;
        if is_over && !draft.is_empty() {
            // One write for the answer and the end of the run.
            return self.start_closing(RunOutcome::Completed, Some(&draft));
        }
        if !self.append_for_run(draft).await {
            return;
        }
        let followers = items.iter().flat_map(|item| self.inbox.take_followers(item.id));
        let followers: Vec<_> = followers.collect();
        if let Some(run) = self.runs.open_mut() {
            run.join(followers);
        }
        if boundary == Boundary::Steps && self.wait_for_hand_off(delivered) {
            return;
        }
        let answer = self.log.newest_answer();
        let is_measuring = boundary != Boundary::None && !is_over;
        self.agent.tell(AgentMessage::Recorded { attempt, delivered, answer, is_measuring });
        if is_measuring {
            self.measure_for_step(attempt);
        }
        if is_over {
            self.start_closing(RunOutcome::Completed, None);
        }
    }

    pub(super) async fn end(
        &mut self,
        attempt: RunAttempt,
        messages: Vec<Message>,
        outcome: RunOutcome,
        rejected: Option<String>,
    ) {
        if self.current(attempt).is_none() {
            return;
        }
        let messages = self.without_waiting(messages);
        let suspicion = self.suspicion(&messages);
        let Some(run) = self.current(attempt) else { return };
        let is_cut_off = run.is_interrupted() && matches!(outcome, RunOutcome::Aborted);
        let outcome = run.end(outcome, rejected, suspicion);
        run.note(&messages);
        let mut draft = self.log.draft(self.deps.now_ms());
        for message in messages {
            draft.message_of_run(message, self.definition.window.tokens);
        }
        if outcome == RunOutcome::Completed && !draft.is_empty() {
            // One write for the answer in the last permitted step and the end of the run.
            return self.start_closing(outcome, Some(&draft));
        }
        if !draft.is_empty() && !self.append_for_run(draft).await {
            return;
        }
        if is_cut_off && self.log.is_waiting() {
            self.leave_waiting().await;
        } else if self.close_open_calls().await {
            self.start_closing(outcome, None);
        }
    }

    /// Bills a model call whose cost the log does not record with its answer. `has_summary`: the budgets count the cost
    /// already.
    pub(super) async fn calls_spent(
        &mut self,
        attempt: Option<RunAttempt>,
        usage: Usage,
        cost_microdollars: Option<u64>,
        has_summary: bool,
    ) {
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::Spent(Spent { by: Spender::Calls, usage, cost_microdollars }));
        if let Err(error) = self.append(draft, None).await {
            return self.warn(format!("the cost of a model call could not be recorded: {error}"));
        }
        if has_summary {
            self.deps.ledger.settle(&self.shared, cost_microdollars.unwrap_or(u64::MAX));
        }
        if let Some(run) = attempt.and_then(|attempt| self.current(attempt)) {
            run.note_usage(&usage);
        }
    }

    /// Returns a possible reason why interrupted calls of the run did not end. `last` are the messages still
    /// to record.
    fn suspicion(&self, last: &[Message]) -> Option<String> {
        let path = self.log.path().iter().rev().filter_map(|entry| entry.kind.as_message());
        let newest_first = last.iter().rev().chain(path.map(|message| &**message));
        let is_cut_off = newest_first
            .map_while(|message| match message {
                Message::ToolResult(result) => Some(result.status),
                Message::User(_) | Message::Assistant(_) => None,
            })
            .any(|status| status == ToolStatus::Interrupted);
        waits::suspicion(self.inbox.callers()).filter(|_| is_cut_off)
    }

    /// Closes the session while calls of its run wait for people: the run stays open in the log, and
    /// continues when the session is opened again.
    async fn leave_waiting(&mut self) {
        let draft = self.log.recovery_of_waiting(self.deps.now_ms(), |call| self.definition.runs_alone(call));
        if !draft.is_empty() && !self.append_for_run(draft).await {
            return;
        }
        let Some(mut run) = self.runs.take() else { return };
        self.shared.end_run();
        self.deps.ledger.release(&self.shared);
        let why = match self.shared.is_deleting() {
            true => self.shared.gone(),
            false => Error::Waiting { session: self.shared.id.to_string() },
        };
        tell_all(run.take_callers(), || Err(why.clone()));
    }

    /// Returns the messages to record. When the session is closed, a call that waits for a person has no
    /// result: it continues when the session is opened again.
    fn without_waiting(&mut self, mut messages: Vec<Message>) -> Vec<Message> {
        if !self.runs.open().is_some_and(OpenRun::is_interrupted) {
            return messages;
        }
        self.note_waiting_children();
        let questions = self.log.questions();
        let goes_on = |result: &ToolResult| {
            let is_waiting = questions.of_call(&result.call_id).any(|known| known.end.is_none());
            let has_asked = questions.has_asked(&result.call_id) || self.log.waits_below(&result.call_id);
            is_waiting || result.status == ToolStatus::Interrupted && has_asked
        };
        messages.retain(|message| !matches!(message, Message::ToolResult(result) if goes_on(result)));
        messages
    }

    /// Appends entries of the run. If the store refuses, the run ends; returns whether it continues.
    pub(super) async fn append_for_run(&mut self, draft: Box<Draft>) -> bool {
        match self.append(draft, None).await {
            Ok(()) => true,
            Err(error) => {
                self.run_broken(&error);
                false
            }
        }
    }

    /// Adds an `interrupted` result for each open call on the path. Returns whether the run continues.
    async fn close_open_calls(&mut self) -> bool {
        self.record_results(self.log.open_calls().iter().map(ToolResult::interrupted).collect()).await
    }

    /// Records results of calls that are not run. Returns whether the run continues.
    pub(super) async fn record_results(&mut self, results: Vec<ToolResult>) -> bool {
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.results(results);
        draft.is_empty() || self.append_for_run(draft).await
    }

    /// Interrupts the run when the session is closed, unless it is aborted already.
    pub(super) fn interrupt_run(&mut self) {
        self.shared.set_closing(true);
        if let Some(run) = self.runs.open_mut() {
            run.interrupt();
        }
        self.shared.cancel_run();
    }

    /// Ends the run: its end is recorded with the measured size, and the answer in `last` with it.
    pub(super) fn start_closing(&mut self, outcome: RunOutcome, last: Option<&Draft>) {
        self.refresh_settings();
        if let Some(run) = self.runs.open_mut() {
            run.start_closing(outcome, last.map(|last| last.entries().to_vec()).unwrap_or_default());
            last.into_iter().for_each(|last| self.tell_tracker(last));
            self.tracker.tell(TrackerMessage::MeasureFor(MeasureFor::RunEnd));
        }
        // No run waits for this compaction any more.
        self.cancel_compaction("the run ended");
    }

    /// Passes the answer that ends the run to the tracker, if it is not recorded yet.
    pub(super) fn tell_last_answer(&mut self) {
        let Some(last) = self.runs.open().and_then(OpenRun::unrecorded) else { return };
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.repeat(last);
        self.tell_tracker(&draft);
    }

    /// Passes entries to the tracker before they are recorded.
    fn tell_tracker(&mut self, draft: &Draft) {
        self.tracker.tell(TrackerMessage::Billed(draft.billed()));
        for entry in draft.entries().iter().filter(|entry| is_message(&entry.kind)) {
            self.tracker.tell(TrackerMessage::Appended(Arc::clone(entry)));
        }
    }

    /// Records the end of the finished run with the measured size, and answers.
    pub(super) async fn close_run(&mut self, measured: &Measurement) {
        let context = measured.usage;
        let Some(mut closing) = self.runs.take_closing() else { return };
        self.shared.end_run();
        self.deps.ledger.release(&self.shared);
        closing.trace(&self.shared.id, &self.deps.metrics);
        let (run, last) = (closing.attempt().run, std::mem::take(&mut closing.last));
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.repeat(&last);
        draft.end_run(run, closing.outcome.clone(), context);
        if let Some(failure) = closing.passing_failure() {
            draft.set_interrupted(Some(run));
            self.hold_back_left(&Error::Model(failure.clone()));
        }
        let compactions = told_compactions(self.log.untold_compactions());
        let is_deleting = self.shared.is_deleting();
        let ended_with = draft.bill_of_run();
        let (to, reply) =
            closing.reply((context, ended_with), compactions, || self.shared.gone(), is_deleting);
        let answer = (!to.is_empty()).then(|| Box::new(Answer { to, reply }));
        let ended = (!last.is_empty()).then_some(closing.attempt());
        let mut after = AfterAppend { then: answer.map(RunCompletion::new), ended };
        let appended = self.append_then(draft, None, &mut after).await;
        let is_recorded = appended.is_ok();
        if let Err(error) = appended {
            self.end_not_recorded(&closing, last.is_empty(), after.then, &error);
        }
        // The measured size includes the last answer.
        let is_as_measured = !self.take_next_definition() && is_recorded;
        self.compact_if_requested();
        if is_as_measured {
            self.compact_if_due(measured).await;
        }
    }

    /// Handles the store's refusal of a run's end; its answer `is_durable`, or was to be recorded with the
    /// end. The callers in `then` get the error.
    fn end_not_recorded(
        &mut self,
        closing: &ClosingRun,
        is_durable: bool,
        then: Option<RunCompletion>,
        error: &Error,
    ) {
        if is_durable {
            // The run's end will be recorded with the next prompt.
            self.warn(format!("the run's end could not be recorded: {error}"));
        } else {
            closing.cancel();
            self.repeats.run_broken();
            self.warn(format!("the run was ended: {error}"));
            self.tracker.tell(TrackerMessage::Billed(self.log.bill()));
            self.context_rewritten();
        }
        if let Some(mut answer) = then.and_then(|then| then.take()) {
            answer.reply = Err(error.clone());
            let then = self.outgoing.complete(RunCompletion::new(answer));
            self.agent.tell(AgentMessage::Broadcast { events: Vec::new(), then: Some(then) });
        }
    }

    /// Ends the run after the store's refusal. Acknowledged entries are kept.
    pub(super) fn run_broken(&mut self, error: &Error) {
        self.shared.cancel_run();
        self.shared.end_run();
        self.deps.ledger.release(&self.shared);
        self.repeats.run_broken();
        self.warn(format!("the run was ended: {error}"));
        self.take_next_definition();
        if let Some(mut run) = self.runs.take() {
            tell_all(run.take_callers(), || Err(error.clone()));
        }
    }
}

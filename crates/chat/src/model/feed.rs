//! Handles the events of the session.

use greenroom::{Delta, EventKind, MessageView, Record};
use greenroom::{EntryId, Event, Role};
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::question::QuestionEnd;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{FailureClass, RunOutcome};
use greenroom_terminal::{format, text};

use super::{
    Ask, Compacting, Kind, Last, Look, Markdown, Model, Pending, Purpose, Retry, Row, SAID_MAX, YOU_REFUSED,
};
use crate::status::{FILLING, NEARLY_FULL, look_of};
use crate::{attached, markdown};

impl Model {
    /// Handles an event.
    #[expect(clippy::wildcard_enum_match_arm, reason = "events are open-ended")]
    pub(crate) fn event(&mut self, event: &Event) {
        if moves(&event.kind) {
            self.waits_since = self.now_ms;
            self.retry = None;
        }
        match &event.kind {
            EventKind::RunStart => {
                self.busy_since = Some(self.now_ms);
                self.starts = None;
            }
            EventKind::StepStart { model, .. } => self.status.model.clone_from(model),
            EventKind::MessageStart => {
                self.answer = Some((Markdown::new(self.size.width()), String::new()));
                self.busy_since.get_or_insert(self.now_ms);
            }
            EventKind::MessageDelta { delta } => self.delta(delta),
            EventKind::MessageDiscarded => self.discard(),
            EventKind::MessageEnd { message, queued, entry_id } => self.message(message, *entry_id, *queued),
            EventKind::ToolStart { call_id, name, arguments } => {
                self.writing = None;
                self.calls.start(call_id, name, arguments, self.now_ms);
                // Another host has begun it again, and it waits for the same answer.
                if self.asks.iter().any(|ask| ask.call_id == *call_id) {
                    self.calls.asks(call_id);
                }
            }
            EventKind::ToolUpdate { call_id, line, .. } => self.calls.update(call_id, line),
            EventKind::ToolEnd { call_id, name, status, duration_ms } => {
                self.calls.end(call_id, name, *status, *duration_ms, self.now_ms);
            }
            EventKind::UsageUpdate { context, cost_microdollars, estimated_tokens, .. } => {
                self.status.cost_microdollars = *cost_microdollars;
                self.status.estimated_tokens = *estimated_tokens;
                self.context(*context);
            }
            EventKind::RunEnd { outcome, context, .. } => self.run_end(outcome, *context),
            EventKind::CompactionNear { tokens, compacts_at } => {
                self.note(Look::DIM, &format::compaction_near(*tokens, *compacts_at));
            }
            EventKind::CompactionStart { tokens_before, trigger, .. } => {
                let what = format::compacting(*trigger, *tokens_before);
                self.compacting = Some(Compacting { what, since: self.now_ms, retry: None });
            }
            EventKind::CompactionEnd(end) => {
                self.compacting = None;
                let what = format::compaction(end);
                let is_summary = end.is_installed() && end.messages_removed > 0;
                if let Some(entry) = end.entry_id.filter(|_| is_summary) {
                    self.calls.compacted(entry, &what);
                }
                let more = match (end.is_installed(), end.trigger) {
                    (false, _) | (true, Trigger::Branch) => "",
                    (true, _) if is_summary => " · Ctrl-O shows the summary · /undo-compact",
                    (true, _) => " · /undo-compact",
                };
                self.note(Look::NOTE, &format!("{what}{more}"));
                if end.is_installed() {
                    let tokens = end.tokens_after;
                    let context = ContextUsage { tokens, ..self.status.context };
                    self.context(context);
                }
            }
            EventKind::CompactionUndone { .. } => self.note(Look::NOTE, "Compaction undone"),
            EventKind::InputQueued { entry_id, .. } => self.queued.push(*entry_id),
            EventKind::QuestionAsked { entry_id, call_id, tool, question, .. } => {
                let details = question.details.as_deref();
                let ask = Ask::new(*entry_id, tool, &question.text, details, &question.kind);
                self.ask(ask.of_call(call_id));
            }
            EventKind::QuestionEnded { question, end } => {
                if let Some(place) = self.asks.iter().position(|ask| ask.id == *question) {
                    let ask = self.asks.remove(place);
                    self.is_asked_later = false;
                    if let Some(next) = self.asks.first_mut() {
                        next.appears(self.now_ms);
                    }
                    self.calls.go_on(&ask.call_id, self.now_ms);
                    self.editor.give_back(&ask.draft(Some(end), self.user.as_deref()));
                    if self.refused.is_none() {
                        self.refused = refusal(&ask, end, self.user.as_deref());
                    }
                    let rows = ask.ended(end, self.user.as_deref(), self.size.width());
                    self.put(Last::Note, rows);
                }
            }
            EventKind::Retry { attempt, failure, .. }
                if failure.class == FailureClass::Loading && !attempt.is_power_of_two() => {}
            EventKind::Retry { compaction, attempt, delay_ms, failure } => {
                let text = match failure.class {
                    FailureClass::Loading => format!("waiting for the server: {failure}"),
                    _ => format!("attempt {attempt} failed: {failure}"),
                };
                let retry = Some(Retry { what: text, at_ms: self.now_ms + delay_ms });
                match (compaction, &mut self.compacting) {
                    (None, _) => {
                        self.discard();
                        self.retry = retry;
                    }
                    (Some(_), Some(compacting)) => compacting.retry = retry,
                    (Some(_), None) => {}
                }
            }
            EventKind::Fallback { provider, model, failure } => {
                self.discard();
                self.note(Look::WARN, &format!("Continuing with {model} of {provider}: {failure}"));
            }
            EventKind::OverflowDetected => {
                self.note(
                    Look::WARN,
                    "The request was larger than the model's window, and the server truncated it silently",
                );
            }
            EventKind::Warning { message } if self.answer.is_some() => self.aside.push(message.clone()),
            EventKind::Warning { message } => self.note(Look::WARN, message),
            EventKind::HandOff { from, to, .. } => {
                self.note(Look::DIM, &format!("{from} hands over to {to}"))
            }
            EventKind::SessionRestarted { reason } => {
                self.note(Look::WARN, &format!("The session was restarted: {reason}"));
            }
            EventKind::SessionFailed { reason } => {
                self.busy_since = None;
                self.note(Look::BAD, &format!("Error: the session failed: {reason}"));
            }
            EventKind::SessionDeleted { .. } => self.deleted(),
            EventKind::Recorded { record, .. } => {
                self.recorded(record);
                if let Record::LeafMoved { to } = record
                    && !std::mem::take(&mut self.moves_itself)
                {
                    self.note(Look::NOTE, &format::branched(*to));
                }
            }
            _ => {}
        }
    }

    /// Handles the session's deletion: all its work ends, and it accepts no input.
    fn deleted(&mut self) {
        self.past_ends();
        self.is_interrupting = false;
        self.give_back(|_| true);
        self.note(Look::BAD, "This session was deleted; /new starts another one");
    }

    /// Shows an event from before this chat. Tool calls are taken from the messages alone.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are shown as when they happen")]
    pub(crate) fn past(&mut self, event: &Event) {
        match &event.kind {
            EventKind::MessageEnd { message, queued, entry_id } => {
                self.message(message, *entry_id, *queued);
                for call in &message.tool_calls {
                    self.calls.start(&call.id, &call.name, &call.arguments, self.now_ms);
                }
            }
            EventKind::CompactionStart { .. } | EventKind::QuestionAsked { .. } => {}
            EventKind::Warning { .. } => {}
            EventKind::Recorded { record, .. } => self.recorded(record),
            _ => self.event(event),
        }
    }

    /// Ends the past.
    pub(crate) fn past_ends(&mut self) {
        self.end_calls();
        self.answer_ends();
        for ask in std::mem::take(&mut self.asks) {
            self.editor.give_back(&ask.draft(None, self.user.as_deref()));
        }
        (self.busy_since, self.starts) = (None, None);
        self.compacting = None;
    }

    /// Shows the warnings that were kept until the end of the answer.
    fn answer_ends(&mut self) {
        for warning in std::mem::take(&mut self.aside) {
            self.note(Look::WARN, &warning);
        }
    }

    /// Ends the calls whose results do not come any more.
    fn end_calls(&mut self) {
        let rows = self.calls.clear(self.size.width());
        self.put(Last::Call, rows);
    }

    /// Keeps only the newest rows, below a line that says that there are more.
    pub(crate) fn keep_newest(&mut self, rows_max: usize, is_part: bool, line: impl FnOnce() -> String) {
        let cut = self.above.len().saturating_sub(rows_max);
        if cut == 0 && !is_part {
            return;
        }
        self.above.drain(..cut);
        let indent = Row::plain("  ");
        let rows = Row::new(&line(), Look::DIM).wrap(self.size.width(), &indent, &indent);
        self.above.splice(0..0, rows);
    }

    /// Sets the context's size without announcing it, when the chat starts.
    pub(crate) fn quiet_context(&mut self, context: ContextUsage) {
        let percent = context.percent().unwrap_or(0.0);
        self.announced = step_of(percent);
        self.status.context = context;
    }

    /// Sets the context's size. It is announced when it first becomes large.
    pub(crate) fn context(&mut self, context: ContextUsage) {
        self.status.context = context;
        let percent = context.percent().unwrap_or(0.0);
        let step = step_of(percent);
        if step > self.announced {
            let when = match (context.window, self.status.trigger) {
                (Some(window), trigger) if trigger < window && trigger > context.tokens => {
                    format!("compaction starts at {}", format::tenths(trigger))
                }
                (Some(_), trigger) if trigger > 0 && trigger <= context.tokens => {
                    "compaction starts next".to_owned()
                }
                (_, 0) => "automatic compaction is off; /compact frees space".to_owned(),
                _ => "/compact frees space".to_owned(),
            };
            self.note(look_of(percent), &format!("The context is {percent:.0} % full; {when}"));
        }
        self.announced = step;
    }

    fn delta(&mut self, delta: &Delta) {
        match delta {
            Delta::Reasoning(piece) => {
                let (text, _) = self.thinking.get_or_insert_with(|| (String::new(), self.now_ms));
                text.push_str(piece);
            }
            Delta::Text(piece) => {
                self.end_thinking();
                // An answer that began before this chat is shown when it is complete.
                let Some((markdown, received)) = &mut self.answer else { return };
                received.push_str(piece);
                let rows = markdown.push(piece);
                self.put(Last::Answer, rows);
            }
            Delta::ToolArguments { name, .. } => {
                self.end_thinking();
                if let Some(name) = name {
                    self.writing = Some(name.clone());
                }
            }
            _ => {}
        }
    }

    fn end_thinking(&mut self) {
        let Some((text, since)) = self.thinking.take() else { return };
        let words = text.split_whitespace().count() as u64;
        let time = format::duration(self.now_ms.saturating_sub(since));
        let title = format!("thought for {time}, {}", format::count(words, "word"));
        self.calls.thought(&title, &text);
        let row = Row::new(&format!("  ∴ {title} · Ctrl-O shows it"), Look::DIM);
        self.put(Last::Call, vec![row.cut(self.size.width())]);
    }

    /// Discards the streamed answer.
    fn discard(&mut self) {
        self.writing = None;
        self.thinking = None;
        // What was not written yet disappears.
        if self.answer.take().is_some() && self.last == Last::Answer {
            self.note(Look::WARN, "✗ The answer broke off; the text above is discarded");
        }
        self.answer_ends();
    }

    fn message(&mut self, message: &MessageView, entry: EntryId, queued: Option<EntryId>) {
        match message.role {
            Role::User => {
                // From here on it is the conversation as any other.
                self.status.branch = None;
                self.said(&message.text, message.images, queued.unwrap_or(entry));
            }
            Role::Assistant => {
                self.end_thinking();
                self.writing = None;
                let width = self.size.width();
                let (mut markdown, received) =
                    self.answer.take().unwrap_or_else(|| (Markdown::new(width), String::new()));
                let mut rows = Vec::new();
                match message.text.strip_prefix(received.as_str()) {
                    Some(rest) => {
                        rows.extend(markdown.push(rest));
                        rows.extend(markdown.finish());
                    }
                    None => {
                        // Some of its pieces were missed.
                        rows.extend(markdown.finish());
                        rows.push(Row::new("  ⋮", Look::DIM));
                        rows.extend(markdown.push(&message.text));
                        rows.extend(markdown.finish());
                    }
                }
                self.put(Last::Answer, rows);
                if !message.text.trim().is_empty() {
                    self.last_answer.clone_from(&message.text);
                }
                self.answer_ends();
                self.calls.announce(&message.tool_calls);
                // The run went on after an answer of somebody else. An answer that has only begun does not tell: another
                // terminal's no comes a moment before its interrupt.
                self.refused.take_if(|who| who != YOU_REFUSED);
            }
            Role::Tool => {
                if let Some(call_id) = &message.call_id {
                    let name = message.tool_name.as_deref().unwrap_or_default();
                    let status = message.status.unwrap_or(greenroom_kernel::ToolStatus::Ok);
                    let rows = self.calls.result(call_id, name, status, &message.text, self.size.width());
                    self.put(Last::Call, rows);
                }
            }
            Role::Shell | Role::Custom => self.said(&message.text, 0, entry),
            Role::BranchSummary => {
                self.note(Look::DIM, "Summary of the abandoned branch:");
                let rows = markdown::blocks(&message.text, self.size.width());
                self.put(Last::Answer, rows);
            }
            Role::Unknown | _ => {}
        }
    }

    /// Shows a message that has joined the conversation, from the user or from a program.
    fn said(&mut self, whole: &str, images: usize, entry: EntryId) {
        let text = whole;
        // The chat's own prompt is shown as typed, without the attached files.
        let is_it = |pending: &Pending| match pending.entry {
            Some(known) => known == entry,
            // The event arrived before the reply that accepted the input.
            None => text.starts_with(pending.text.as_str()),
        };
        let place = self.pending.iter().position(is_it);
        let pending = place.map(|place| self.pending.remove(place));
        self.queued.retain(|queued| *queued != entry);
        let (mark, text) = match &pending {
            Some(pending) if pending.kind == Kind::Steer => ("↪ ", pending.text.as_str()),
            Some(pending) => ("› ", pending.text.as_str()),
            None => ("› ", text),
        };
        let (_, files) = attached::split(whole);
        let (text, _) = attached::split(text);
        let (first, next) = (Row::new(mark, Look::NOTE), Row::plain("  "));
        let mut rows = Vec::new();
        for line in text.lines() {
            let lead = if rows.is_empty() { &first } else { &next };
            rows.extend(Row::new(line, Look::BOLD).wrap(self.size.width(), lead, &next));
            if rows.len() > SAID_MAX {
                break;
            }
        }
        let lines = text.lines().count();
        if rows.len() > SAID_MAX {
            rows.truncate(SAID_MAX - 1);
            let (count, what) = if lines > 1 { (lines, "line") } else { (text.chars().count(), "character") };
            let all = format::count(count as u64, what);
            rows.push(Row::new(&format!("  … {all} in all"), Look::DIM));
        }
        if images > 0 {
            let images = format::count(images as u64, "image");
            rows.push(Row::new(&format!("  [{images}]"), Look::DIM));
        }
        let width = self.size.width();
        rows.extend(files.iter().map(|file| Row::new(&format!("  [{file}]"), Look::DIM).cut(width)));
        self.put(Last::User, rows);
    }

    fn run_end(&mut self, outcome: &RunOutcome, context: ContextUsage) {
        // An answer that is stored, also in part, has ended before its run.
        let has_unstored_text = self.answer.as_ref().is_some_and(|(_, received)| !received.is_empty());
        if let Some((mut markdown, _)) = self.answer.take() {
            let rows = markdown.finish();
            self.put(Last::Answer, rows);
        }
        self.end_thinking();
        self.answer_ends();
        self.end_calls();
        (self.busy_since, self.writing, self.starts) = (None, None, None);
        (self.is_interrupting, self.retry) = (false, None);
        if self.picker.as_ref().is_some_and(|picker| picker.purpose == Purpose::Leave) {
            // There is nothing to ask about any more.
            self.picker = None;
        }
        match (outcome, self.refused.take()) {
            (RunOutcome::Aborted, Some(who)) => {
                self.note(Look::DIM, &format!("Stopped because {who}; tell the model what to do instead"));
            }
            (RunOutcome::Aborted, None) => {
                self.note(Look::WARN, "Interrupted. Everything above is kept; /continue to resume");
            }
            (RunOutcome::Failed(failure), _) => {
                let way = if failure.class == FailureClass::Auth {
                    " · `greenroom login` stores another key"
                } else if failure.class == FailureClass::Timeout {
                    &format!(" · {}", text::UNREACHED)
                } else {
                    ""
                };
                self.note(Look::BAD, &format!("Error: {failure}{way}"));
            }
            (RunOutcome::Interrupted, _) if has_unstored_text => self.note(
                Look::WARN,
                "The run was interrupted when its process was killed. The unfinished answer above was not stored; \
                 finished steps were. /continue to resume",
            ),
            (RunOutcome::Interrupted, _) => self.note(
                Look::WARN,
                "The run was interrupted when its process ended. Everything above is kept; /continue to resume",
            ),
            (RunOutcome::Stopped { reason }, _) => {
                self.note(Look::WARN, &format!("Stopped: {reason}. /continue to resume"));
            }
            (RunOutcome::Completed | RunOutcome::Unknown | _, _) => {}
        }
        self.context(context);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the others say nothing to the user")]
    fn recorded(&mut self, record: &Record) {
        match record {
            Record::InboxCleared { items } => {
                self.queued.retain(|entry| !items.contains(entry));
                self.give_back(|pending| pending.entry.is_some_and(|entry| items.contains(&entry)));
            }
            Record::ModelChange { model, .. } => self.status.model.clone_from(model),
            Record::LeafMoved { to } => {
                let returns = std::mem::take(&mut self.returns);
                self.status.branch =
                    Some(to.map_or(0, |entry| entry.0)).filter(|_| !returns && !self.moves_itself);
            }
            _ => {}
        }
    }
}

/// Returns who has refused a call with this end of its question, as a clause.
fn refusal(ask: &Ask, end: &QuestionEnd, user: Option<&str>) -> Option<String> {
    let QuestionEnd::Answered(answer) = end else { return None };
    (ask.is_approval() && answer.is("no")).then(|| match &answer.by {
        Some(by) if user == Some(by) => format!("{YOU_REFUSED} in another terminal"),
        Some(by) => format!("{by} answered no"),
        None => "the answer was no".to_owned(),
    })
}

/// Whether the run has advanced with this event, so that it waits for something new.
fn moves(event: &EventKind) -> bool {
    matches!(
        event,
        EventKind::RunStart
            | EventKind::StepStart { .. }
            | EventKind::MessageStart
            | EventKind::MessageDelta { .. }
            | EventKind::MessageEnd { .. }
            | EventKind::ToolEnd { .. }
            | EventKind::QuestionEnded { .. }
            | EventKind::CompactionEnd(_)
            | EventKind::Retry { compaction: None, .. }
            | EventKind::Fallback { .. }
    )
}

/// Returns the highest announced percentage up to this one.
fn step_of(percent: f64) -> f64 {
    [NEARLY_FULL, FILLING].into_iter().find(|step| percent >= *step).unwrap_or(0.0)
}

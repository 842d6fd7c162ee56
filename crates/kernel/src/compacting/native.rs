//! The provider's own compaction: its request, its answer, and when it is given up.
//!
//! A provider's summary is either readable, and then it is the summary; or opaque, and then a summary of ours is made at
//! the same time, so that another model, a fork and a person can read what was replaced.
//!
//! Invariants: it is requested at most once in a compaction, apart from retries; whatever goes wrong with it, the
//! compaction continues with summaries of our own; and an opaque summary is never the only record of what it replaced:
//! if ours fails, the replaced messages are a debt.

use std::sync::Arc;

use super::{Compacting, Effect, Rung, SummaryRequest};
use crate::entry::{Entry, NativeSummary};
use crate::failure::Failure;
use crate::message::{AssistantMessage, Message, Native, Part, StopReason};
use crate::path::{is_message, project};
use crate::plan::Plan;
use crate::retry::Retries;
use crate::settings::Strategy;
use crate::size::{classes, opaque_tokens};
use crate::summary::{self, SummaryKind};

/// The output limit of a request to compact, in tokens, if there is room for it: the limit includes the model's thinking.
const OUTPUT_TOKENS_WANTED: u64 = 8_192;

/// The own compaction of the provider of the session's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeSupport {
    /// The session's own model, as an index into `CompactionParams::summarisers`.
    pub summariser: usize,
    /// Whether its summary can be read by others.
    pub is_readable: bool,
}

/// The progress of the provider's own compaction.
#[derive(Debug, Default)]
pub(super) struct NativeWork {
    /// Whether it was requested, or cannot be.
    was_tried: bool,
    pending: Option<Pending>,
    done: Option<Done>,
    /// The result of our own summaries, if they ended before it.
    ours: Option<Result<(), String>>,
}

#[derive(Debug)]
struct Pending {
    request: SummaryRequest,
    retries: Retries,
    is_readable: bool,
}

/// A provider's summary.
#[derive(Debug)]
struct Done {
    native: Native,
    /// Its size, in tokens by our estimate.
    tokens: u64,
    /// Its text, if it is readable.
    text: Option<String>,
}

impl NativeWork {
    /// Drops the summary and withdraws its request.
    pub(super) fn clear(&mut self) -> Vec<Effect> {
        (self.done, self.ours) = (None, None);
        self.withdraw()
    }

    /// Withdraws the request, if it is not answered.
    pub(super) fn withdraw(&mut self) -> Vec<Effect> {
        self.pending.take().map(|pending| Effect::Withdraw(vec![pending.request.id])).into_iter().collect()
    }

    /// Whether no summary of ours is made unless it fails.
    fn is_alone(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.is_readable)
    }

    /// Returns the provider's summary as recorded with this text.
    pub(super) fn summary(&self, text: &str) -> Option<NativeSummary> {
        let Done { native, tokens, .. } = self.done.as_ref()?;
        let tokens = tokens + classes::tokens(summary::split_footer(text).1);
        Some(NativeSummary { native: native.clone(), tokens })
    }

    /// Returns the text of a readable summary.
    pub(super) fn text(&self) -> Option<&str> {
        self.done.as_ref()?.text.as_deref()
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.is_some()
    }
}

impl Compacting {
    /// Requests the provider's own compaction, if it is wanted and possible. Returns the effects, and whether a summary
    /// of ours is to be made too.
    pub(super) fn ask_natively(&mut self, plan: &Plan) -> (Vec<Effect>, bool) {
        let strategy = self.params.settings.strategy;
        // Earlier cuts are read by our own summaries only.
        let has_debt = !self.params.debt.is_empty() || !self.params.debt_left.is_empty();
        if self.native.was_tried || !strategy.is_native() || has_debt || self.rung == Rung::LastResort {
            return (Vec::new(), !self.native.is_alone());
        }
        self.native.was_tried = true;
        let Some(support) = self.params.native else {
            let reason = "the provider has none".to_owned();
            let effects = (strategy == Strategy::Native).then_some(Effect::NativeFailed { reason });
            return (effects.into_iter().collect(), true);
        };
        let request = match self.native_request(plan, support) {
            Ok(request) => request,
            Err(reason) => return (vec![Effect::NativeFailed { reason }], true),
        };
        if support.is_readable && plan.is_split_turn {
            self.plan = Some(plan.clone().with_one_summary());
        }
        let (retries, is_readable) = (self.params.retries.clone(), support.is_readable);
        self.native.pending = Some(Pending { request: request.clone(), retries, is_readable });
        (vec![Effect::Ask(request)], !is_readable)
    }

    /// Returns the request to compact what the plan replaces.
    ///
    /// # Errors
    /// The model has no room for it.
    fn native_request(&mut self, plan: &Plan, support: NativeSupport) -> Result<SummaryRequest, String> {
        // The rewrites come after the messages that they kept.
        let is_meant = |entry: &&Arc<Entry>| entry.id <= plan.last || !is_message(&entry.kind);
        let path: Vec<_> = self.params.path.iter().filter(is_meant).cloned().collect();
        let cap_tokens = self.params.settings.summary_cap(self.params.window);
        let text = summary::native_instruction(self.summaries.style(), cap_tokens);
        let ratio = self.params.ratio;
        let tokens = self.params.overhead + ratio.apply(self.params.replaced_tokens(plan));
        let limits = self.params.summarisers[support.summariser];
        let room = limits.window.saturating_sub(tokens + ratio.apply(classes::tokens(&text)));
        let least = summary::output_tokens(cap_tokens);
        let output_tokens_max =
            least.max(OUTPUT_TOKENS_WANTED).min(room).min(limits.output_tokens_max.unwrap_or(u64::MAX));
        if output_tokens_max < least {
            return Err("the conversation and its summary are larger than the model's window".to_owned());
        }
        Ok(SummaryRequest {
            id: self.summaries.next_id(),
            kind: SummaryKind::History,
            text,
            cap_tokens,
            output_tokens_max,
            summariser: support.summariser,
            after_ms: 0,
            attempt: 0,
            failure: None,
            native: Some(NativeInput { messages: project(&path, &[]), tokens }),
        })
    }

    /// Handles the answer to the provider's own compaction; `None` if it is the answer to another request.
    pub(super) fn native_answered(
        &mut self,
        id: u32,
        answer: &Result<Box<AssistantMessage>, Failure>,
        jitter: u64,
    ) -> Option<Vec<Effect>> {
        let mut pending = self.native.pending.take_if(|pending| pending.request.id == id)?;
        let reason = match answer {
            Ok(answer) => {
                self.summaries.bill(answer);
                match self.read_native(answer, &pending) {
                    Ok(done) => {
                        self.native.done = Some(done);
                        return Some(self.native_ended(pending.is_readable));
                    }
                    Err(reason) => reason,
                }
            }
            Err(failure) => {
                let is_retryable = failure.class.is_retryable();
                if let Some(retry) = is_retryable.then(|| pending.retries.next(failure, jitter)).flatten() {
                    pending.request.after_ms = retry.delay_ms;
                    pending.request.attempt += 1;
                    pending.request.failure = Some(failure.clone());
                    let request = pending.request.clone();
                    self.native.pending = Some(pending);
                    return Some(vec![Effect::Ask(request)]);
                }
                failure.message.clone()
            }
        };
        Some(self.native_failed(reason, pending.is_readable))
    }

    /// Gives up the provider's own compaction, which has failed for too long; `None` if it is not pending. Pending
    /// summaries of our own get the full time again.
    pub(super) fn native_late(&mut self, reason: &str) -> Option<Vec<Effect>> {
        let is_readable = self.native.pending.as_ref()?.is_readable;
        let mut effects = self.native.withdraw();
        effects.extend(self.native_failed(reason.to_owned(), is_readable));
        Some(effects)
    }

    /// Continues with summaries of our own.
    fn native_failed(&mut self, reason: String, is_readable: bool) -> Vec<Effect> {
        let mut effects = vec![Effect::NativeFailed { reason }];
        effects.extend(if is_readable { self.ask_for_summaries() } else { self.native_ended(false) });
        effects
    }

    /// Continues after the end of the provider's own compaction.
    fn native_ended(&mut self, is_alone: bool) -> Vec<Effect> {
        match self.native.ours.take() {
            Some(result) => self.summaries_ended(result),
            None if is_alone => self.finish_summaries(),
            None => Vec::new(),
        }
    }

    /// Continues after the end of our own summaries, unless the provider's own compaction is awaited.
    pub(super) fn summaries_ended(&mut self, result: Result<(), String>) -> Vec<Effect> {
        if self.native.pending.is_some() {
            self.native.ours = Some(result);
            return Vec::new();
        }
        match result {
            Ok(()) => self.finish_summaries(),
            Err(why) if self.native.is_done() => self.install_opaque_alone(&why),
            Err(why) => self.summary_failed(&why),
        }
    }

    /// Reads a provider's summary from its answer.
    fn read_native(&self, answer: &AssistantMessage, pending: &Pending) -> Result<Done, String> {
        let mut native =
            Native { provider: answer.provider.clone(), dialect: String::new(), blocks: Vec::new() };
        for part in &answer.content {
            match part {
                Part::OpaqueBlock { dialect, data } | Part::OpaqueReasoning { dialect, data } => {
                    native.dialect.clone_from(dialect);
                    native.blocks.push(data.clone());
                }
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
            }
        }
        if answer.stop != StopReason::Stop {
            return Err(format!(
                "its answer ended with {:?}",
                answer.stop_raw.as_deref().unwrap_or("no reason")
            ));
        }
        if native.blocks.is_empty() {
            return Err("its answer has no compaction".to_owned());
        }
        if !pending.is_readable {
            let tokens = native.blocks.iter().map(|block| opaque_tokens(block)).sum();
            return Ok(Done { native, tokens, text: None });
        }
        let check_headings = self.params.settings.compact_prompt.is_none();
        let text =
            summary::accept(answer, SummaryKind::History, pending.request.output_tokens_max, check_headings)
                .map_err(|rejected| rejected.to_string())?;
        let tokens = classes::tokens(&answer.text());
        Ok(Done { native, tokens, text: Some(text) })
    }
}

/// The conversation that a provider is to compact.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeInput {
    /// The messages that are replaced, with the previous summary.
    pub messages: Vec<Arc<Message>>,
    /// The size of the request, in the provider's tokens.
    pub tokens: u64,
}

//! Entries of the kernel in the form of the wire, and back.
//!
//! Invariants: what the wire's forms carry becomes the kernel's again without loss.

use std::sync::Arc;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::entry::{
    ChildRecord, ChildStage, Compaction, CompactionEnded, Custom, Entry, EntryId, EntryKind, EntryRange,
    HandOff, NativeSummary, Prune, PrunedResult, Shell,
};
use greenroom_kernel::files::{FileOps, Touch, Touched};
use greenroom_kernel::message::{Image, Native};
use greenroom_kernel::question::AskedQuestion;
use greenroom_kernel::{AssistantMessage, Block, Message, Part, ToolCall, ToolResult};

use super::{
    LoggedBlock, LoggedCompaction, LoggedEntry, LoggedFiles, LoggedKind, LoggedNative, LoggedPart,
    LoggedPruned, LoggedTouch,
};
use crate::operations::ImageData;

#[cfg(test)]
mod tests;

fn logged_blocks(blocks: &[Block]) -> Vec<LoggedBlock> {
    let logged = |block: &Block| match block {
        Block::Text(text) => Some(LoggedBlock::Text(text.clone())),
        Block::Image(image) => Some(LoggedBlock::Image(ImageData::from(image))),
        Block::Native(_) | _ => None,
    };
    blocks.iter().filter_map(logged).collect()
}

fn blocks(logged: Vec<LoggedBlock>) -> Vec<Block> {
    let block = |logged| match logged {
        LoggedBlock::Text(text) => Block::Text(text),
        LoggedBlock::Image(ImageData { media_type, data }) => Block::Image(Image { media_type, data }),
    };
    logged.into_iter().map(block).collect()
}

impl LoggedFiles {
    fn of(files: &FileOps) -> Self {
        let owned = |paths: Vec<&str>| paths.into_iter().map(str::to_owned).collect();
        Self { read: owned(files.read().collect()), modified: owned(files.modified().collect()) }
    }

    fn files(self) -> FileOps {
        FileOps::new(self.read, self.modified)
    }
}

impl LoggedEntry {
    /// The form of an entry on the wire. `None` for bookkeeping.
    pub fn of(entry: &Entry) -> Option<Self> {
        let Entry { id, parent, at_ms, tokens, reasoning_tokens, origin, kind } = entry;
        let kind = LoggedKind::of(kind)?;
        let (id, parent, at_ms, tokens) = (*id, *parent, *at_ms, *tokens);
        Some(Self {
            id,
            parent,
            at_ms,
            tokens,
            reasoning_tokens: *reasoning_tokens,
            origin: origin.clone(),
            kind,
        })
    }

    /// The kernel's entry.
    pub fn entry(self) -> Entry {
        let Self { id, parent, at_ms, tokens, reasoning_tokens, origin, kind } = self;
        Entry { id, parent, at_ms, tokens, reasoning_tokens, origin, kind: kind.kind() }
    }
}

impl LoggedKind {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are internal")]
    fn of(kind: &EntryKind) -> Option<Self> {
        Some(match kind.clone() {
            EntryKind::Message { message, inbox, steer, cost_microdollars } => {
                Self::of_message(&message, inbox, steer, cost_microdollars)
            }
            EntryKind::Shell(Shell { command, output, exit_code, cancelled, truncated, excluded }) => {
                Self::Shell { command, output, exit_code, cancelled, truncated, excluded }
            }
            EntryKind::Custom(Custom { kind, content, display }) => {
                Self::Custom { name: kind, content: logged_blocks(&content), display }
            }
            EntryKind::BranchSummary { from, summary, files } => {
                Self::BranchSummary { from, summary, files: LoggedFiles::of(&files) }
            }
            EntryKind::Compaction(compaction) => {
                Self::Compaction(Box::new(LoggedCompaction::of(*compaction)))
            }
            EntryKind::CompactionUndone { compaction } => Self::CompactionUndone { compaction },
            EntryKind::Prune(prune) => {
                let Prune { results, trigger, tokens_before, tokens_after } = *prune;
                let logged = |PrunedResult { entry, text, keeps_images, tokens }| LoggedPruned {
                    entry,
                    text,
                    keeps_images,
                    tokens,
                };
                let results = results.into_iter().map(logged).collect();
                Self::Prune { results, trigger, tokens_before, tokens_after }
            }
            EntryKind::Pin { entry, pinned } => Self::Pin { entry, pinned },
            EntryKind::ModelChange { provider, model } => Self::ModelChange { provider, model },
            EntryKind::Label { target, label } => Self::Label { target, label },
            EntryKind::Note { kind, data } => Self::Note { name: kind, data },
            EntryKind::HandOff(HandOff { from, to, sees }) => Self::HandOff { from, to, sees },
            EntryKind::Inbox { delivery, content, .. } => {
                Self::Inbox { delivery, content: logged_blocks(&content) }
            }
            EntryKind::LeafMoved { to } => Self::LeafMoved { to },
            EntryKind::CompactionEnded(ended) => {
                let CompactionEnded {
                    started,
                    trigger,
                    outcome,
                    entry,
                    tokens_before,
                    tokens_after,
                    messages_before,
                    messages_after,
                    messages_removed,
                    duration_ms,
                    waited_ms,
                    prepared_ms,
                    summary_usage,
                    cost_microdollars,
                    recall,
                } = *ended;
                Self::CompactionEnded {
                    started,
                    trigger,
                    outcome,
                    entry,
                    tokens_before,
                    tokens_after,
                    messages_before,
                    messages_after,
                    messages_removed,
                    duration_ms,
                    waited_ms,
                    prepared_ms,
                    summary_usage,
                    cost_microdollars,
                    recall,
                }
            }
            EntryKind::RunEnded { run, outcome, context, bill } => {
                let Bill { usage, cost_microdollars, compaction: compaction_bill } = *bill;
                Self::RunEnded { run, outcome, context, usage, cost_microdollars, compaction_bill }
            }
            EntryKind::Child(ChildRecord { call_id, name, session, stage }) => {
                let (started, outcome) = match stage {
                    ChildStage::Started => (None, None),
                    ChildStage::Ended { started, outcome } => (Some(started), Some(outcome)),
                };
                Self::Child { call_id, name, session, started, outcome }
            }
            EntryKind::Question(asked) => {
                let AskedQuestion { run, call_id, tool, ordinal, asker, question, expires_at_ms } =
                    Arc::unwrap_or_clone(asked);
                Self::Question { run, call_id, tool, ordinal, asker, question, expires_at_ms }
            }
            EntryKind::QuestionEnded { question, end } => Self::QuestionEnded { question, end },
            _ => return None,
        })
    }

    fn of_message(
        message: &Message,
        inbox: Option<EntryId>,
        is_steer: bool,
        cost_microdollars: Option<u64>,
    ) -> Self {
        match message.clone() {
            Message::User(content) => Self::User { content: logged_blocks(&content), inbox, is_steer },
            Message::Assistant(AssistantMessage {
                content,
                provider,
                model,
                usage,
                stop,
                stop_raw,
                error,
            }) => {
                let part = |part| match part {
                    Part::Text(text) => Some(LoggedPart::Text(text)),
                    Part::Reasoning(text) => Some(LoggedPart::Reasoning(text)),
                    Part::OpaqueReasoning { dialect, data } => {
                        Some(LoggedPart::OpaqueReasoning { dialect, data })
                    }
                    Part::OpaqueBlock { dialect, data } => Some(LoggedPart::OpaqueBlock { dialect, data }),
                    Part::ToolCall(ToolCall { id, name, arguments }) => {
                        Some(LoggedPart::ToolCall { id, name, arguments })
                    }
                    _ => None,
                };
                let content = content.into_iter().filter_map(part).collect();
                Self::Assistant { content, provider, model, usage, cost_microdollars, stop, stop_raw, error }
            }
            Message::ToolResult(ToolResult { call_id, tool_name, content, status, touched }) => {
                let touch =
                    |Touched { path, touch }| LoggedTouch { path, is_modified: touch == Touch::Modified };
                let touched = touched.into_iter().map(touch).collect();
                Self::ToolResult { call_id, tool_name, content: logged_blocks(&content), status, touched }
            }
        }
    }

    fn kind(self) -> EntryKind {
        match self {
            Self::User { content, inbox, is_steer } => {
                let message = Arc::new(Message::User(blocks(content)));
                EntryKind::Message { message, inbox, steer: is_steer, cost_microdollars: None }
            }
            Self::Assistant { content, provider, model, usage, cost_microdollars, stop, stop_raw, error } => {
                let part = |part| match part {
                    LoggedPart::Text(text) => Part::Text(text),
                    LoggedPart::Reasoning(text) => Part::Reasoning(text),
                    LoggedPart::OpaqueReasoning { dialect, data } => Part::OpaqueReasoning { dialect, data },
                    LoggedPart::OpaqueBlock { dialect, data } => Part::OpaqueBlock { dialect, data },
                    LoggedPart::ToolCall { id, name, arguments } => {
                        Part::ToolCall(ToolCall { id, name, arguments })
                    }
                };
                let content = content.into_iter().map(part).collect();
                let answer = AssistantMessage { content, provider, model, usage, stop, stop_raw, error };
                let message = Arc::new(Message::Assistant(answer));
                EntryKind::Message { message, inbox: None, steer: false, cost_microdollars }
            }
            Self::ToolResult { call_id, tool_name, content, status, touched } => {
                let touch = |LoggedTouch { path, is_modified }| Touched {
                    path,
                    touch: if is_modified { Touch::Modified } else { Touch::Read },
                };
                let (content, touched) = (blocks(content), touched.into_iter().map(touch).collect());
                EntryKind::message(Message::ToolResult(ToolResult {
                    call_id,
                    tool_name,
                    content,
                    status,
                    touched,
                }))
            }
            Self::Shell { command, output, exit_code, cancelled, truncated, excluded } => {
                EntryKind::Shell(Shell { command, output, exit_code, cancelled, truncated, excluded })
            }
            Self::Custom { name, content, display } => {
                EntryKind::Custom(Custom { kind: name, content: blocks(content), display })
            }
            Self::BranchSummary { from, summary, files } => {
                EntryKind::BranchSummary { from, summary, files: files.files() }
            }
            Self::Compaction(compaction) => EntryKind::Compaction(Box::new(compaction.compaction())),
            Self::CompactionUndone { compaction } => EntryKind::CompactionUndone { compaction },
            Self::Prune { results, trigger, tokens_before, tokens_after } => {
                let result = |LoggedPruned { entry, text, keeps_images, tokens }| PrunedResult {
                    entry,
                    text,
                    keeps_images,
                    tokens,
                };
                let results = results.into_iter().map(result).collect();
                EntryKind::Prune(Box::new(Prune { results, trigger, tokens_before, tokens_after }))
            }
            Self::Pin { entry, pinned } => EntryKind::Pin { entry, pinned },
            Self::ModelChange { provider, model } => EntryKind::ModelChange { provider, model },
            Self::Label { target, label } => EntryKind::Label { target, label },
            Self::Note { name, data } => EntryKind::Note { kind: name, data },
            Self::HandOff { from, to, sees } => EntryKind::HandOff(HandOff { from, to, sees }),
            Self::Inbox { delivery, content } => EntryKind::Inbox {
                delivery,
                content: blocks(content),
                key: None,
                fingerprint: None,
                terms: None,
            },
            Self::LeafMoved { to } => EntryKind::LeafMoved { to },
            Self::CompactionEnded {
                started,
                trigger,
                outcome,
                entry,
                tokens_before,
                tokens_after,
                messages_before,
                messages_after,
                messages_removed,
                duration_ms,
                waited_ms,
                prepared_ms,
                summary_usage,
                cost_microdollars,
                recall,
            } => EntryKind::CompactionEnded(Box::new(CompactionEnded {
                started,
                trigger,
                outcome,
                entry,
                tokens_before,
                tokens_after,
                messages_before,
                messages_after,
                messages_removed,
                duration_ms,
                waited_ms,
                prepared_ms,
                summary_usage,
                cost_microdollars,
                recall,
            })),
            Self::RunEnded { run, outcome, context, usage, cost_microdollars, compaction_bill } => {
                let bill = Bill { usage, cost_microdollars, compaction: compaction_bill };
                EntryKind::RunEnded { run, outcome, context, bill: Box::new(bill) }
            }
            Self::Child { call_id, name, session, started, outcome } => {
                let stage = match (started, outcome) {
                    (Some(started), Some(outcome)) => ChildStage::Ended { started, outcome },
                    (_, None) | (None, _) => ChildStage::Started,
                };
                EntryKind::Child(ChildRecord { call_id, name, session, stage })
            }
            Self::Question { run, call_id, tool, ordinal, asker, question, expires_at_ms } => {
                let asked = AskedQuestion { run, call_id, tool, ordinal, asker, question, expires_at_ms };
                EntryKind::Question(Arc::new(asked))
            }
            Self::QuestionEnded { question, end } => EntryKind::QuestionEnded { question, end },
        }
    }
}

/// Makes a compaction of another one with the same fields, of which three have other forms.
macro_rules! compaction_of {
    ($value:expr, $from:ident => $to:ident, $files:expr, $debt:expr, $native:expr) => {
        compaction_of!(
            $value, $from => $to { files: $files, debt: $debt, native: $native },
            base previous first last first_kept summary active_request trigger truncated from_hook is_split_turn
            tokens_before tokens_after messages_before messages_removed duration_ms model usage cost_microdollars
            carried recall
        )
    };
    ($value:expr, $from:ident => $to:ident { $($other:ident: $form:expr),* }, $($same:ident)*) => {{
        let $from { $($other,)* $($same,)* } = $value;
        $to { $($other: $form($other),)* $($same,)* }
    }};
}

impl LoggedCompaction {
    fn of(compaction: Compaction) -> Self {
        let logged_files = |files| LoggedFiles::of(&files);
        let pairs = |debt: Vec<EntryRange>| debt.into_iter().map(|range| (range.first, range.last)).collect();
        let logged_native = |native: Option<NativeSummary>| {
            native.map(|NativeSummary { native: Native { provider, dialect, blocks }, tokens }| {
                LoggedNative { provider, dialect, blocks, tokens }
            })
        };
        compaction_of!(compaction, Compaction => LoggedCompaction, logged_files, pairs, logged_native)
    }

    fn compaction(self) -> Compaction {
        let ranges = |debt: Vec<(EntryId, EntryId)>| {
            debt.into_iter().map(|(first, last)| EntryRange { first, last }).collect()
        };
        let native = |native: Option<LoggedNative>| {
            native.map(|LoggedNative { provider, dialect, blocks, tokens }| NativeSummary {
                native: Native { provider, dialect, blocks },
                tokens,
            })
        };
        compaction_of!(self, LoggedCompaction => Compaction, LoggedFiles::files, ranges, native)
    }
}

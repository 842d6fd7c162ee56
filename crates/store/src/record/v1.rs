//! Version 1 of the stored form.
//!
//! Invariants: nothing here is renamed, reordered or removed once released. bincode writes an enum's variant as its
//! position and a struct's fields in order without names, so **variants are only appended, and a struct never
//! changes**: what needs a new field needs a new variant or a version 2 beside this one. JSON stays text.

use std::sync::Arc;

use bincode::{Decode, Encode};
use greenroom_kernel::entry as kernel;
use greenroom_kernel::usage;
use greenroom_kernel::{self as k, EntryId};

use super::StoredRecord;
use crate::head;

pub(super) const VERSION: u8 = 1;

#[derive(Encode, Decode)]
pub(super) enum Record {
    Append { epoch: u64, key: Option<String>, entries: Vec<Entry>, head: Head },
    Deleted,
    Learned { key: String, value: Vec<u8> },
    Quarantined { from: u64, head: Head },
    LossAccepted { head: Head },
}

#[derive(Encode, Decode)]
pub(super) struct Head {
    entries: u64,
    leaf: Option<u64>,
    live_from: u64,
    active_compaction: Option<u64>,
    last_compaction: Option<u64>,
    compactions: u64,
    inbox: Vec<u64>,
    open_run: Option<u64>,
    open_compaction: Option<u64>,
    pins: Vec<u64>,
    provider: String,
    model: String,
    context_tokens: u64,
    window: Option<u64>,
    total_usage: Usage,
    cost_microdollars: u64,
    automatic_compaction_failures: u32,
    created_at_ms: u64,
    updated_at_ms: u64,
    title: Option<String>,
    parent_session: Option<String>,
    state: SessionState,
    lost_from: Option<u64>,
}

#[derive(Encode, Decode)]
enum SessionState {
    Idle,
    Working,
    Failed { reason: String },
}

#[derive(Encode, Decode)]
pub(super) struct Entry {
    id: u64,
    parent: Option<u64>,
    at_ms: u64,
    tokens: u64,
    origin: Option<String>,
    kind: Kind,
}

#[derive(Encode, Decode)]
enum Kind {
    Message { message: Message, inbox: Option<u64> },
    Shell(Shell),
    Custom(Custom),
    BranchSummary { from: u64, summary: String, files: FileOps },
    Compaction(Box<Compaction>),
    CompactionUndone { compaction: u64 },
    Pin { entry: u64, pinned: bool },
    ModelChange { provider: String, model: String },
    Label { target: u64, label: Option<String> },
    Note { kind: String, data: String },
    Inbox { delivery: Delivery, content: Vec<Block>, key: Option<String> },
    InboxCleared { items: Vec<u64> },
    LeafMoved { to: Option<u64> },
    CompactionStarted { trigger: Trigger, tokens_before: u64, messages_before: u64 },
    CompactionEnded(Box<CompactionEnded>),
    RunEnded { run: u64, outcome: RunOutcome, context: ContextUsage },
    Spent { by: Spender, usage: Usage, cost_microdollars: Option<u64> },
}

#[derive(Encode, Decode)]
enum Spender {
    SubAgent { session: String },
    BranchSummary,
}

#[derive(Encode, Decode)]
enum Message {
    User(Vec<Block>),
    Assistant(AssistantMessage),
    ToolResult(ToolResult),
}

#[derive(Encode, Decode)]
enum Block {
    Text(String),
    Image { media_type: String, data: String },
}

#[derive(Encode, Decode)]
struct AssistantMessage {
    content: Vec<Part>,
    provider: String,
    model: String,
    usage: Option<Usage>,
    stop: StopReason,
    error: Option<String>,
}

#[derive(Encode, Decode)]
enum Part {
    Text(String),
    Reasoning(String),
    OpaqueReasoning { dialect: String, data: String },
    ToolCall { id: String, name: String, arguments: String },
}

#[derive(Encode, Decode)]
struct ToolResult {
    call_id: String,
    tool_name: String,
    content: Vec<Block>,
    status: ToolStatus,
    touched: Vec<Touched>,
}

#[derive(Encode, Decode)]
struct Touched {
    path: String,
    touch: Touch,
}

#[derive(Encode, Decode)]
struct Usage {
    input_tokens: u64,
    cached_tokens: u64,
    cache_write_tokens: u64,
    output_tokens: u64,
    reasoning_tokens: u64,
}

#[derive(Encode, Decode)]
struct FileOps {
    read: Vec<String>,
    modified: Vec<String>,
}

#[derive(Encode, Decode)]
struct Shell {
    command: String,
    output: String,
    exit_code: Option<i32>,
    cancelled: bool,
    truncated: bool,
    excluded: bool,
}

#[derive(Encode, Decode)]
struct Custom {
    kind: String,
    content: Vec<Block>,
    display: bool,
}

#[derive(Encode, Decode)]
struct Compaction {
    base: Option<u64>,
    previous: Option<u64>,
    first: Option<u64>,
    last: Option<u64>,
    first_kept: Option<u64>,
    summary: String,
    active_request: Option<String>,
    files: FileOps,
    trigger: Trigger,
    truncated: bool,
    from_hook: bool,
    is_split_turn: bool,
    tokens_before: u64,
    tokens_after: u64,
    messages_before: u64,
    messages_removed: u64,
    duration_ms: u64,
    model: String,
    usage: Usage,
    cost_microdollars: Option<u64>,
}

#[derive(Encode, Decode)]
struct CompactionEnded {
    started: u64,
    trigger: Trigger,
    outcome: CompactionOutcome,
    entry: Option<u64>,
    tokens_before: u64,
    tokens_after: u64,
    messages_before: u64,
    messages_after: u64,
    messages_removed: u64,
    duration_ms: u64,
    summary_usage: Usage,
    cost_microdollars: Option<u64>,
}

#[derive(Encode, Decode)]
enum CompactionOutcome {
    Completed,
    Truncated,
    Pruned,
    Nothing { reason: String },
    Failed { reason: String },
    Cancelled { reason: String },
    Superseded,
    Interrupted,
}

#[derive(Encode, Decode)]
enum RunOutcome {
    Completed,
    Aborted,
    Failed(Failure),
    Interrupted,
    Stopped { reason: String },
}

#[derive(Encode, Decode)]
struct Failure {
    class: FailureClass,
    message: String,
    status: Option<u16>,
    limit: Option<u64>,
    requested: Option<u64>,
    retry_after_ms: Option<u64>,
}

#[derive(Encode, Decode)]
struct ContextUsage {
    tokens: u64,
    usage_tokens: u64,
    trailing_tokens: u64,
    window: u64,
    window_source: WindowSource,
    percent: Option<f64>,
}

/// A stored enum without data, and its conversions: the stored order is the order here, whatever the kernel's is.
macro_rules! mirror {
    ($stored:ident = $kernel:path { $($variant:ident),+ $(,)? }) => {
        #[derive(Encode, Decode, Clone, Copy)]
        enum $stored { $($variant),+ }

        impl From<$kernel> for $stored {
            fn from(value: $kernel) -> Self {
                match value { $(<$kernel>::$variant => Self::$variant),+ }
            }
        }

        impl From<$stored> for $kernel {
            fn from(value: $stored) -> Self {
                match value { $($stored::$variant => Self::$variant),+ }
            }
        }
    };
}

mirror!(ToolStatus = k::ToolStatus { Ok, Error, Interrupted });
mirror!(StopReason = k::StopReason { Stop, Length, ToolCalls, ContentFilter, Aborted, Error });
mirror!(Delivery = kernel::Delivery { Steer, FollowUp, Prompt });
mirror!(Trigger = kernel::Trigger { Threshold, Overflow, Manual, ModelSwitch, Hook });
mirror!(Touch = k::Touch { Read, Modified });
mirror!(
    WindowSource = usage::WindowSource { CompactionSetting, Setting, Catalog, Learned, Assumed, Unknown }
);
mirror!(
    FailureClass = k::FailureClass {
        ContextOverflow,
        OutputLimit,
        PayloadTooLarge,
        RateLimited,
        RequestTooLargeForRateLimit,
        Quota,
        Auth,
        Overloaded,
        Timeout,
        Malformed,
        ContentFilter,
        ContextFloor,
        Other,
    }
);

/// A stored struct whose fields have the kernel's names, and its conversions. A new field of the kernel's is a
/// compile error in both directions. Each field says how it converts: `copy`, `id`, `ids`, `into` or `list`.
macro_rules! mirror_fields {
    ($stored:ident = $kernel:path { $($field:ident: $how:ident),+ $(,)? }) => {
        impl From<&$kernel> for $stored {
            fn from(value: &$kernel) -> Self {
                let $kernel { $($field),+ } = value;
                Self { $($field: mirror_fields!(@store $how $field)),+ }
            }
        }

        impl From<$stored> for $kernel {
            fn from(value: $stored) -> Self {
                let $stored { $($field),+ } = value;
                Self { $($field: mirror_fields!(@load $how $field)),+ }
            }
        }
    };
    (@store copy $field:ident) => { $field.clone() };
    (@load copy $field:ident) => { $field };
    (@store id $field:ident) => { $field.map(|id| id.0) };
    (@load id $field:ident) => { $field.map(EntryId) };
    (@store one $field:ident) => { $field.0 };
    (@load one $field:ident) => { EntryId($field) };
    (@store ids $field:ident) => { $field.iter().map(|id| id.0).collect() };
    (@load ids $field:ident) => { $field.into_iter().map(EntryId).collect() };
    (@store list $field:ident) => { $field.iter().map(Into::into).collect() };
    (@load list $field:ident) => { $field.into_iter().map(Into::into).collect() };
    (@store plain $field:ident) => { (*$field).into() };
    (@load plain $field:ident) => { $field.into() };
    (@store into $field:ident) => { $field.into() };
    (@load into $field:ident) => { $field.into() };
    (@store maybe $field:ident) => { $field.as_ref().map(Into::into) };
    (@load maybe $field:ident) => { $field.map(Into::into) };
}

mirror_fields!(
    Head = head::Head {
        entries: copy,
        leaf: id,
        live_from: one,
        active_compaction: id,
        last_compaction: id,
        compactions: copy,
        inbox: ids,
        open_run: id,
        open_compaction: id,
        pins: ids,
        provider: copy,
        model: copy,
        context_tokens: copy,
        window: copy,
        total_usage: into,
        cost_microdollars: copy,
        automatic_compaction_failures: copy,
        created_at_ms: copy,
        updated_at_ms: copy,
        title: copy,
        parent_session: copy,
        state: into,
        lost_from: id,
    }
);
mirror_fields!(Entry = k::Entry { id: one, parent: id, at_ms: copy, tokens: copy, origin: copy, kind: into });
mirror_fields!(
    AssistantMessage = k::AssistantMessage {
        content: list,
        provider: copy,
        model: copy,
        usage: maybe,
        stop: plain,
        error: copy,
    }
);
mirror_fields!(
    ToolResult =
        k::ToolResult { call_id: copy, tool_name: copy, content: list, status: plain, touched: list }
);
mirror_fields!(Touched = k::Touched { path: copy, touch: plain });
mirror_fields!(
    Usage = k::Usage {
        input_tokens: copy,
        cached_tokens: copy,
        cache_write_tokens: copy,
        output_tokens: copy,
        reasoning_tokens: copy,
    }
);
mirror_fields!(
    Shell = kernel::Shell {
        command: copy,
        output: copy,
        exit_code: copy,
        cancelled: copy,
        truncated: copy,
        excluded: copy,
    }
);
mirror_fields!(Custom = kernel::Custom { kind: copy, content: list, display: copy });
mirror_fields!(
    Compaction = kernel::Compaction {
        base: id,
        previous: id,
        first: id,
        last: id,
        first_kept: id,
        summary: copy,
        active_request: copy,
        files: into,
        trigger: plain,
        truncated: copy,
        from_hook: copy,
        is_split_turn: copy,
        tokens_before: copy,
        tokens_after: copy,
        messages_before: copy,
        messages_removed: copy,
        duration_ms: copy,
        model: copy,
        usage: into,
        cost_microdollars: copy,
    }
);
mirror_fields!(
    CompactionEnded = kernel::CompactionEnded {
        started: one,
        trigger: plain,
        outcome: into,
        entry: id,
        tokens_before: copy,
        tokens_after: copy,
        messages_before: copy,
        messages_after: copy,
        messages_removed: copy,
        duration_ms: copy,
        summary_usage: into,
        cost_microdollars: copy,
    }
);
mirror_fields!(
    ContextUsage = usage::ContextUsage {
        tokens: copy,
        usage_tokens: copy,
        trailing_tokens: copy,
        window: copy,
        window_source: plain,
        percent: copy,
    }
);
mirror_fields!(
    Failure = k::Failure {
        class: plain,
        message: copy,
        status: copy,
        limit: copy,
        requested: copy,
        retry_after_ms: copy,
    }
);

impl From<&StoredRecord> for Record {
    fn from(record: &StoredRecord) -> Self {
        match record {
            StoredRecord::Append { epoch, key, entries, head } => Self::Append {
                epoch: *epoch,
                key: key.clone(),
                entries: entries.iter().map(Into::into).collect(),
                head: head.as_ref().into(),
            },
            StoredRecord::Deleted => Self::Deleted,
            StoredRecord::Learned { key, value } => Self::Learned { key: key.clone(), value: value.clone() },
            StoredRecord::Quarantined { from, head } => {
                Self::Quarantined { from: from.0, head: head.as_ref().into() }
            }
            StoredRecord::LossAccepted { head } => Self::LossAccepted { head: head.as_ref().into() },
        }
    }
}

impl From<Record> for StoredRecord {
    fn from(record: Record) -> Self {
        match record {
            Record::Append { epoch, key, entries, head } => Self::Append {
                epoch,
                key,
                entries: entries.into_iter().map(Into::into).collect(),
                head: Box::new(head.into()),
            },
            Record::Deleted => Self::Deleted,
            Record::Learned { key, value } => Self::Learned { key, value },
            Record::Quarantined { from, head } => {
                Self::Quarantined { from: EntryId(from), head: Box::new(head.into()) }
            }
            Record::LossAccepted { head } => Self::LossAccepted { head: Box::new(head.into()) },
        }
    }
}

impl From<&head::SessionState> for SessionState {
    fn from(state: &head::SessionState) -> Self {
        match state {
            head::SessionState::Idle => Self::Idle,
            head::SessionState::Working => Self::Working,
            head::SessionState::Failed { reason } => Self::Failed { reason: reason.clone() },
        }
    }
}

impl From<SessionState> for head::SessionState {
    fn from(state: SessionState) -> Self {
        match state {
            SessionState::Idle => Self::Idle,
            SessionState::Working => Self::Working,
            SessionState::Failed { reason } => Self::Failed { reason },
        }
    }
}

impl From<&k::EntryKind> for Kind {
    fn from(kind: &k::EntryKind) -> Self {
        use k::EntryKind as From;
        match kind {
            From::Message { message, inbox } => {
                Self::Message { message: message.as_ref().into(), inbox: inbox.map(|id| id.0) }
            }
            From::Shell(shell) => Self::Shell(shell.into()),
            From::Custom(custom) => Self::Custom(custom.into()),
            From::BranchSummary { from, summary, files } => {
                Self::BranchSummary { from: from.0, summary: summary.clone(), files: files.into() }
            }
            From::Compaction(compaction) => Self::Compaction(Box::new(compaction.as_ref().into())),
            From::CompactionUndone { compaction } => Self::CompactionUndone { compaction: compaction.0 },
            From::Pin { entry, pinned } => Self::Pin { entry: entry.0, pinned: *pinned },
            From::ModelChange { provider, model } => {
                Self::ModelChange { provider: provider.clone(), model: model.clone() }
            }
            From::Label { target, label } => Self::Label { target: target.0, label: label.clone() },
            From::Note { kind, data } => Self::Note { kind: kind.clone(), data: data.clone() },
            From::Inbox { delivery, content, key } => Self::Inbox {
                delivery: (*delivery).into(),
                content: content.iter().map(Into::into).collect(),
                key: key.clone(),
            },
            From::InboxCleared { items } => {
                Self::InboxCleared { items: items.iter().map(|id| id.0).collect() }
            }
            From::LeafMoved { to } => Self::LeafMoved { to: to.map(|id| id.0) },
            From::CompactionStarted(kernel::CompactionStarted {
                trigger,
                tokens_before,
                messages_before,
            }) => Self::CompactionStarted {
                trigger: (*trigger).into(),
                tokens_before: *tokens_before,
                messages_before: *messages_before,
            },
            From::CompactionEnded(ended) => Self::CompactionEnded(Box::new(ended.into())),
            From::RunEnded { run, outcome, context } => {
                Self::RunEnded { run: run.0, outcome: outcome.into(), context: context.into() }
            }
            From::Spent(kernel::Spent { by, usage, cost_microdollars }) => Self::Spent {
                by: match by {
                    kernel::Spender::SubAgent { session } => Spender::SubAgent { session: session.clone() },
                    kernel::Spender::BranchSummary => Spender::BranchSummary,
                },
                usage: usage.into(),
                cost_microdollars: *cost_microdollars,
            },
        }
    }
}

impl From<Kind> for k::EntryKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Message { message, inbox } => {
                Self::Message { message: Arc::new(message.into()), inbox: inbox.map(EntryId) }
            }
            Kind::Shell(shell) => Self::Shell(shell.into()),
            Kind::Custom(custom) => Self::Custom(custom.into()),
            Kind::BranchSummary { from, summary, files } => {
                Self::BranchSummary { from: EntryId(from), summary, files: files.into() }
            }
            Kind::Compaction(compaction) => Self::Compaction(Box::new((*compaction).into())),
            Kind::CompactionUndone { compaction } => {
                Self::CompactionUndone { compaction: EntryId(compaction) }
            }
            Kind::Pin { entry, pinned } => Self::Pin { entry: EntryId(entry), pinned },
            Kind::ModelChange { provider, model } => Self::ModelChange { provider, model },
            Kind::Label { target, label } => Self::Label { target: EntryId(target), label },
            Kind::Note { kind, data } => Self::Note { kind, data },
            Kind::Inbox { delivery, content, key } => Self::Inbox {
                delivery: delivery.into(),
                content: content.into_iter().map(Into::into).collect(),
                key,
            },
            Kind::InboxCleared { items } => {
                Self::InboxCleared { items: items.into_iter().map(EntryId).collect() }
            }
            Kind::LeafMoved { to } => Self::LeafMoved { to: to.map(EntryId) },
            Kind::CompactionStarted { trigger, tokens_before, messages_before } => {
                Self::CompactionStarted(kernel::CompactionStarted {
                    trigger: trigger.into(),
                    tokens_before,
                    messages_before,
                })
            }
            Kind::CompactionEnded(ended) => Self::CompactionEnded((*ended).into()),
            Kind::RunEnded { run, outcome, context } => {
                Self::RunEnded { run: EntryId(run), outcome: outcome.into(), context: context.into() }
            }
            Kind::Spent { by, usage, cost_microdollars } => Self::Spent(kernel::Spent {
                by: match by {
                    Spender::SubAgent { session } => kernel::Spender::SubAgent { session },
                    Spender::BranchSummary => kernel::Spender::BranchSummary,
                },
                usage: usage.into(),
                cost_microdollars,
            }),
        }
    }
}

impl From<&k::Message> for Message {
    fn from(message: &k::Message) -> Self {
        match message {
            k::Message::User(blocks) => Self::User(blocks.iter().map(Into::into).collect()),
            k::Message::Assistant(assistant) => Self::Assistant(assistant.into()),
            k::Message::ToolResult(result) => Self::ToolResult(result.into()),
        }
    }
}

impl From<Message> for k::Message {
    fn from(message: Message) -> Self {
        match message {
            Message::User(blocks) => Self::User(blocks.into_iter().map(Into::into).collect()),
            Message::Assistant(assistant) => Self::Assistant(assistant.into()),
            Message::ToolResult(result) => Self::ToolResult(result.into()),
        }
    }
}

impl From<&k::Block> for Block {
    fn from(block: &k::Block) -> Self {
        match block {
            k::Block::Text(text) => Self::Text(text.clone()),
            k::Block::Image(k::Image { media_type, data }) => {
                Self::Image { media_type: media_type.clone(), data: data.clone() }
            }
        }
    }
}

impl From<Block> for k::Block {
    fn from(block: Block) -> Self {
        match block {
            Block::Text(text) => Self::Text(text),
            Block::Image { media_type, data } => Self::Image(k::Image { media_type, data }),
        }
    }
}

impl From<&k::Part> for Part {
    fn from(part: &k::Part) -> Self {
        match part {
            k::Part::Text(text) => Self::Text(text.clone()),
            k::Part::Reasoning(text) => Self::Reasoning(text.clone()),
            k::Part::OpaqueReasoning { dialect, data } => {
                Self::OpaqueReasoning { dialect: dialect.clone(), data: data.clone() }
            }
            k::Part::ToolCall(k::ToolCall { id, name, arguments }) => {
                Self::ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() }
            }
        }
    }
}

impl From<Part> for k::Part {
    fn from(part: Part) -> Self {
        match part {
            Part::Text(text) => Self::Text(text),
            Part::Reasoning(text) => Self::Reasoning(text),
            Part::OpaqueReasoning { dialect, data } => Self::OpaqueReasoning { dialect, data },
            Part::ToolCall { id, name, arguments } => Self::ToolCall(k::ToolCall { id, name, arguments }),
        }
    }
}

impl From<&k::FileOps> for FileOps {
    fn from(files: &k::FileOps) -> Self {
        Self {
            read: files.read().map(str::to_owned).collect(),
            modified: files.modified().map(str::to_owned).collect(),
        }
    }
}

impl From<FileOps> for k::FileOps {
    fn from(files: FileOps) -> Self {
        Self::new(files.read, files.modified)
    }
}

impl From<&kernel::CompactionOutcome> for CompactionOutcome {
    fn from(outcome: &kernel::CompactionOutcome) -> Self {
        use kernel::CompactionOutcome as From;
        match outcome {
            From::Completed => Self::Completed,
            From::Truncated => Self::Truncated,
            From::Pruned => Self::Pruned,
            From::Nothing { reason } => Self::Nothing { reason: reason.clone() },
            From::Failed { reason } => Self::Failed { reason: reason.clone() },
            From::Cancelled { reason } => Self::Cancelled { reason: reason.clone() },
            From::Superseded => Self::Superseded,
            From::Interrupted => Self::Interrupted,
        }
    }
}

impl From<CompactionOutcome> for kernel::CompactionOutcome {
    fn from(outcome: CompactionOutcome) -> Self {
        match outcome {
            CompactionOutcome::Completed => Self::Completed,
            CompactionOutcome::Truncated => Self::Truncated,
            CompactionOutcome::Pruned => Self::Pruned,
            CompactionOutcome::Nothing { reason } => Self::Nothing { reason },
            CompactionOutcome::Failed { reason } => Self::Failed { reason },
            CompactionOutcome::Cancelled { reason } => Self::Cancelled { reason },
            CompactionOutcome::Superseded => Self::Superseded,
            CompactionOutcome::Interrupted => Self::Interrupted,
        }
    }
}

impl From<&k::RunOutcome> for RunOutcome {
    fn from(outcome: &k::RunOutcome) -> Self {
        match outcome {
            k::RunOutcome::Completed => Self::Completed,
            k::RunOutcome::Aborted => Self::Aborted,
            k::RunOutcome::Failed(failure) => Self::Failed(failure.into()),
            k::RunOutcome::Interrupted => Self::Interrupted,
            k::RunOutcome::Stopped { reason } => Self::Stopped { reason: reason.clone() },
        }
    }
}

impl From<RunOutcome> for k::RunOutcome {
    fn from(outcome: RunOutcome) -> Self {
        match outcome {
            RunOutcome::Completed => Self::Completed,
            RunOutcome::Aborted => Self::Aborted,
            RunOutcome::Failed(failure) => Self::Failed(failure.into()),
            RunOutcome::Interrupted => Self::Interrupted,
            RunOutcome::Stopped { reason } => Self::Stopped { reason },
        }
    }
}

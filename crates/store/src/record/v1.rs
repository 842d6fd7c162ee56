//! Version 1 of the stored form: which fields and variants are stored, and in which order.
//!
//! Invariants: once this version is released, nothing here is renumbered, reordered or removed, and no struct
//! gets another field. A new variant may be added at the end of an enum. Everything else needs a new version;
//! see `docs/record-versions.md`. JSON is stored as text. Values that can be computed from other fields are
//! not stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode as _, Encode as _};
use greenroom_kernel::bill::{Bill, CompactionBill};
use greenroom_kernel::entry::{
    ChildRecord, ChildStage, Compaction, CompactionEnded, CompactionOutcome, CompactionStarted, Custom,
    EntryRange, HandOff, InboxDelivery, Metadata, NativeSummary, Prune, PrunedResult, Sees, Shell, Spender,
    Spent, Trigger,
};
use greenroom_kernel::head::{Head, LoggedState};
use greenroom_kernel::question::{AskedQuestion, Asker, GivenAnswer, Question, QuestionEnd, QuestionKind};
use greenroom_kernel::terms::{OutputTerms, Terms};
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{
    AssistantMessage, Block, Carried, Entry, EntryId, EntryKind, Fact, FactKind, FactRecall, Failure,
    FailureClass, FileOps, Image, Message, Native, Part, Quote, RunOutcome, SkillText, StopReason, ToolCall,
    ToolResult, ToolStatus, Touch, Touched, Usage,
};
use serde_json::Value;

use super::StoredRecord;
use super::codec::{Stored, stored_enum, stored_struct, undeclared_variant, unknown_variant, write_texts};

/// Marks the implementations of [`Stored`] that belong to this version.
pub(super) struct V1;

stored_enum!(V1: StoredRecord {
    0 = Append { key: Option<String>, entries: Vec<Arc<Entry>>, head: Arc<Head> },
    1 = Deleted,
    2 = Learned { key: String, value: Vec<u8> },
    3 = Quarantined { head: Arc<Head> },
    4 = LossAccepted { head: Arc<Head> },
    5 = Part { batch: u64, entries: Vec<Arc<Entry>>, head: Arc<Head> },
    6 = Commit { batch: u64, key: Option<String>, entries: Vec<Arc<Entry>>, head: Arc<Head> },
});

stored_struct!(V1: Head {
    entries: u64,
    leaf: Option<EntryId>,
    active_from: EntryId,
    active_compaction: Option<EntryId>,
    last_compaction: Option<EntryId>,
    compactions: u64,
    inbox: Vec<EntryId>,
    open_run: Option<EntryId>,
    open_compaction: Option<EntryId>,
    pins: Vec<EntryId>,
    provider: Arc<str>,
    model: Arc<str>,
    context_tokens: u64,
    window: Option<u64>,
    total_usage: Usage,
    cost_microdollars: u64,
    compaction_bill: CompactionBill,
    run_began_with: Bill,
    saves_tokens: u64,
    automatic_compaction_failures: u32,
    created_at_ms: u64,
    updated_at_ms: u64,
    title: Option<String>,
    parent_session: Option<String>,
    state: LoggedState,
    lost_from: Option<EntryId>,
    labels: BTreeMap<String, String>,
    opening: Option<Arc<str>>,
    interrupted: Option<EntryId>,
    open_children: Vec<EntryId>,
    agent: Option<String>,
    questions: Vec<EntryId>,
    hidden_before: EntryId,
    run_fingerprint: Option<String>,
    run_terms: Option<EntryId>,
});

stored_struct!(V1: Bill { usage: Usage, cost_microdollars: u64, compaction: CompactionBill });

stored_struct!(V1: CompactionBill {
    tokens: u64,
    cost_microdollars: u64,
    waited_ms: u64,
    saved_tokens: u64,
    saved_microdollars: u64,
});

stored_enum!(V1: LoggedState { 0 = Idle, 1 = Working, 2 = Failed { reason: String } });

stored_struct!(V1: Entry {
    id: EntryId,
    parent: Option<EntryId>,
    at_ms: u64,
    tokens: u64,
    reasoning_tokens: u64,
    origin: Option<String>,
    kind: EntryKind,
});

stored_enum!(V1: EntryKind {
    0 = Message { message: Arc<Message>, inbox: Option<EntryId>, steer: bool } without { cost_microdollars },
    1 = Shell(shell: Shell),
    2 = Custom(custom: Custom),
    3 = BranchSummary { from: EntryId, summary: String, files: FileOps },
    4 = Compaction(compaction: Box<Compaction>),
    5 = CompactionUndone { compaction: EntryId },
    6 = Pin { entry: EntryId, pinned: bool },
    7 = ModelChange { provider: String, model: String },
    8 = Label { target: EntryId, label: Option<String> },
    9 = Note { kind: String, data: String },
    10 = Inbox {
        delivery: InboxDelivery,
        content: Vec<Block>,
        key: Option<String>,
        fingerprint: Option<String>,
        terms: Option<Arc<Terms>>,
    },
    11 = InboxCleared { items: Vec<EntryId> },
    12 = LeafMoved { to: Option<EntryId> },
    13 = CompactionStarted(started: CompactionStarted),
    14 = CompactionEnded(ended: Box<CompactionEnded>),
    15 = RunEnded { run: EntryId, outcome: RunOutcome, context: ContextUsage, bill: Box<Bill> },
    16 = Spent(spent: Spent),
    17 = Prune(prune: Box<Prune>),
    18 = WholeResult { call_id: String, content: Vec<Block> },
    19 = Metadata(metadata: Metadata),
    20 = Child(child: ChildRecord),
    21 = HandOff(hand_off: HandOff),
    22 = Question(question: Arc<AskedQuestion>),
    23 = QuestionEnded { question: EntryId, end: QuestionEnd },
    24 = CallStarted { call_id: String },
    25 = Terms { run: EntryId, terms: Arc<Terms> },
    26 = Message {
        message: Arc<Message>,
        inbox: Option<EntryId>,
        steer: bool,
        cost_microdollars: Option<u64>,
    };
    _
});

stored_struct!(V1: Terms {
    output: Option<OutputTerms>,
    settings: Option<Value>,
    cost_limit: Option<u64>,
    timeout_ms: Option<u64>,
    validators: Vec<String>,
    unnamed_validators: u32,
    again: Option<EntryId>,
});

stored_struct!(V1: OutputTerms { name: String, schema: Value });

stored_struct!(V1: ChildRecord { call_id: String, name: String, session: String, stage: ChildStage });

stored_enum!(V1: ChildStage {
    0 = Started,
    1 = Ended { started: EntryId, outcome: RunOutcome },
});

stored_struct!(V1: HandOff { from: String, to: String, sees: Sees });

stored_enum!(V1: Sees { 0 = All, 1 = Summary, 2 = Last(messages: u32); _ });

stored_struct!(V1: AskedQuestion {
    run: EntryId,
    call_id: String,
    tool: String,
    ordinal: u32,
    asker: Asker,
    question: Question,
    expires_at_ms: Option<u64>,
});

stored_enum!(V1: Asker { 0 = Tool, 1 = Hook; _ });

stored_enum!(V1: QuestionEnd { 0 = Answered(answer: GivenAnswer), 1 = Expired, 2 = Withdrawn; _ });

stored_enum!(V1: Metadata {
    0 = Title { title: Option<String> },
    1 = Label { name: String, value: Option<String> },
});

stored_enum!(V1: Message {
    0 = User(content: Vec<Block>),
    1 = Assistant(answer: AssistantMessage),
    2 = ToolResult(result: ToolResult),
});

stored_enum!(V1: Block { 0 = Text(text: String), 1 = Image(image: Image), 2 = Native(native: Native); _ });

stored_struct!(V1: Image { media_type: String, data: String });

// `error` is kept: imported answers have one, and an export writes it out again.
stored_struct!(V1: AssistantMessage {
    content: Vec<Part>,
    provider: String,
    model: String,
    usage: Option<Usage>,
    stop: StopReason,
    stop_raw: Option<String>,
    error: Option<String>,
});

stored_enum!(V1: StopReason {
    0 = Stop,
    1 = Length,
    2 = ToolCalls,
    3 = ContentFilter,
    4 = Aborted,
    5 = Error,
    6 = Paused;
    _
});

stored_enum!(V1: Part {
    0 = Text(text: String),
    1 = Reasoning(text: String),
    2 = OpaqueReasoning { dialect: String, data: String },
    3 = ToolCall(call: ToolCall),
    4 = OpaqueBlock { dialect: String, data: String };
    _
});

stored_struct!(V1: ToolCall { id: String, name: String, arguments: String });

stored_struct!(V1: ToolResult {
    call_id: String,
    tool_name: String,
    content: Vec<Block>,
    status: ToolStatus,
    touched: Vec<Touched>,
});

stored_enum!(V1: ToolStatus { 0 = Ok, 1 = Error, 2 = Interrupted });

stored_struct!(V1: Touched { path: String, touch: Touch });

stored_enum!(V1: Touch { 0 = Read, 1 = Modified });

stored_struct!(V1: Usage {
    input_tokens: u64,
    cached_tokens: u64,
    cache_write_tokens: u64,
    cache_write_hour_tokens: u64,
    output_tokens: u64,
    reasoning_tokens: u64,
    estimated_tokens: u64,
});

stored_struct!(V1: Shell {
    command: String,
    output: String,
    exit_code: Option<i32>,
    cancelled: bool,
    truncated: bool,
    excluded: bool,
});

stored_struct!(V1: Custom { kind: String, content: Vec<Block>, display: bool });

stored_enum!(V1: InboxDelivery { 0 = Steer, 1 = FollowUp, 2 = Prompt; _ });

stored_struct!(V1: Compaction {
    base: Option<EntryId>,
    previous: Option<EntryId>,
    first: Option<EntryId>,
    last: Option<EntryId>,
    first_kept: Option<EntryId>,
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
    debt: Vec<EntryRange>,
    native: Option<NativeSummary>,
    carried: Carried,
    recall: Option<FactRecall>,
});

stored_struct!(V1: Carried {
    words: Vec<Quote>,
    words_left: Vec<EntryId>,
    request_from: Option<EntryId>,
    facts: Vec<Fact>,
    skills: Vec<SkillText>,
});

stored_struct!(V1: SkillText { entry: EntryId, name: String, text: String });

stored_struct!(V1: Quote { entry: EntryId, text: String, is_rule: bool });

stored_struct!(V1: Fact { entry: EntryId, kind: FactKind, text: String, key: String, times: u32 });

stored_enum!(V1: FactKind {
    0 = Rule,
    1 = Decision,
    2 = Error,
    3 = Done,
    4 = Open,
    5 = Command,
    6 = Path,
    7 = Url,
    8 = Identifier,
    9 = Number;
    _
});

stored_struct!(V1: FactRecall { facts: u64, before: u64, after: u64 });

stored_struct!(V1: NativeSummary { native: Native, tokens: u64 });

stored_struct!(V1: Native { provider: String, dialect: String, blocks: Vec<String> });

stored_struct!(V1: EntryRange { first: EntryId, last: EntryId });

stored_struct!(V1: Prune {
    results: Vec<PrunedResult>,
    trigger: Trigger,
    tokens_before: u64,
    tokens_after: u64,
});

stored_struct!(V1: PrunedResult { entry: EntryId, text: String, keeps_images: bool, tokens: u64 });

stored_enum!(V1: Trigger { 0 = Threshold, 1 = Overflow, 2 = Manual, 3 = ModelSwitch, 4 = Hook, 5 = Branch, 6 = HandOff; _ });

stored_struct!(V1: CompactionStarted { trigger: Trigger, tokens_before: u64, messages_before: u64 });

stored_struct!(V1: CompactionEnded {
    started: EntryId,
    trigger: Trigger,
    outcome: CompactionOutcome,
    entry: Option<EntryId>,
    tokens_before: u64,
    tokens_after: u64,
    messages_before: u64,
    messages_after: u64,
    messages_removed: u64,
    duration_ms: u64,
    waited_ms: u64,
    prepared_ms: Option<u64>,
    summary_usage: Usage,
    cost_microdollars: Option<u64>,
    recall: Option<FactRecall>,
});

stored_enum!(V1: CompactionOutcome {
    0 = Completed,
    1 = Truncated { reason: String },
    2 = Nothing { reason: String },
    3 = Failed { reason: String },
    4 = Cancelled { reason: String },
    5 = Superseded,
    6 = Interrupted,
    7 = Pruned { reason: Option<String> },
    8 = Digested { reason: String };
    _
});

stored_struct!(V1: Spent { by: Spender, usage: Usage, cost_microdollars: Option<u64> });

stored_enum!(V1: Spender { 0 = SubAgent { session: String }, 1 = BranchSummary, 2 = Calls });

stored_enum!(V1: RunOutcome {
    0 = Completed,
    1 = Aborted,
    2 = Failed(failure: Box<Failure>),
    3 = Interrupted,
    4 = Stopped { reason: String };
    _
});

stored_struct!(V1: Failure {
    class: FailureClass,
    message: String,
    status: Option<u16>,
    limit: Option<u64>,
    requested: Option<u64>,
    retry_after_ms: Option<u64>,
});

stored_enum!(V1: FailureClass {
    0 = ContextOverflow,
    1 = OutputLimit,
    2 = PayloadTooLarge,
    3 = RateLimited,
    4 = RequestTooLargeForRateLimit,
    5 = Quota,
    6 = Auth,
    7 = Overloaded,
    8 = Timeout,
    9 = Malformed,
    10 = ContentFilter,
    11 = ContextFloor,
    12 = Other,
    13 = Loading,
    14 = OpaqueRefused,
    15 = ImageRefused;
    _
});

stored_enum!(V1: WindowSource {
    0 = CompactionSetting,
    1 = Setting,
    2 = Catalog,
    3 = Learned,
    4 = Assumed,
    5 = Unknown,
    6 = Server,
    7 = Trained;
    _
});

/// Stored without the time limit: the record has the expiry time.
impl Stored<V1> for Question {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        Stored::<V1>::write(&self.text, encoder)?;
        Stored::<V1>::write(&self.details, encoder)?;
        match &self.kind {
            QuestionKind::Text => 0_u32.encode(encoder),
            QuestionKind::Choice { choices, several } => {
                1_u32.encode(encoder)?;
                Stored::<V1>::write(choices, encoder)?;
                several.encode(encoder)
            }
            QuestionKind::Form { schema } => {
                2_u32.encode(encoder)?;
                Stored::<V1>::write(schema, encoder)
            }
            QuestionKind::Approval { approval } => {
                3_u32.encode(encoder)?;
                let value = serde_json::to_value(approval)
                    .map_err(|error| EncodeError::OtherString(error.to_string()))?;
                Stored::<V1>::write(&value, encoder)
            }
            QuestionKind::Unknown | _ => Err(undeclared_variant("QuestionKind")),
        }
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let text: String = Stored::<V1>::read(decoder)?;
        let details: Option<String> = Stored::<V1>::read(decoder)?;
        let kind = match u32::decode(decoder)? {
            0 => QuestionKind::Text,
            1 => QuestionKind::Choice {
                choices: Stored::<V1>::read(decoder)?,
                several: Stored::<V1>::read(decoder)?,
            },
            2 => QuestionKind::Form { schema: Stored::<V1>::read(decoder)? },
            3 => {
                let value: serde_json::Value = Stored::<V1>::read(decoder)?;
                let approval = serde_json::from_value(value)
                    .map_err(|error| DecodeError::OtherString(format!("an approval: {error}")))?;
                QuestionKind::Approval { approval }
            }
            number => return Err(unknown_variant("QuestionKind", number)),
        };
        let mut question = Self::text(text).of_kind(kind);
        question.details = details;
        Ok(question)
    }
}

impl Stored<V1> for GivenAnswer {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        Stored::<V1>::write(&self.value, encoder)?;
        Stored::<V1>::write(&self.by, encoder)
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let mut answer: Self = <Value as Stored<V1>>::read(decoder)?.into();
        answer.by = Stored::<V1>::read(decoder)?;
        Ok(answer)
    }
}

/// Stored as its text.
impl Stored<V1> for Value {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        self.to_string().encode(encoder)
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let text: String = Stored::<V1>::read(decoder)?;
        serde_json::from_str(&text).map_err(|error| DecodeError::OtherString(format!("no JSON: {error}")))
    }
}

/// Stored as the sorted lists of files that were read and of files that were modified.
impl Stored<V1> for FileOps {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        write_texts(self.read(), encoder)?;
        write_texts(self.modified(), encoder)
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let read: Vec<String> = Stored::<V1>::read(decoder)?;
        let modified: Vec<String> = Stored::<V1>::read(decoder)?;
        Ok(Self::new(read, modified))
    }
}

/// Stored as the list of names and values, sorted by name.
impl Stored<V1> for BTreeMap<String, String> {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.len() as u64).encode(encoder)?;
        self.iter().try_for_each(|(name, value)| {
            name.encode(encoder)?;
            value.encode(encoder)
        })
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let length = u64::decode(decoder)?;
        // Each entry takes at least two bytes, so a damaged length ends at the end of the input.
        (0..length)
            .map(|_| Ok((<String as Stored<V1>>::read(decoder)?, <String as Stored<V1>>::read(decoder)?)))
            .collect()
    }
}

/// Stored without the sum, which is computed when it is read.
impl Stored<V1> for ContextUsage {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let Self { tokens: _, usage_tokens, trailing_tokens, window, window_source } = self;
        Stored::<V1>::write(usage_tokens, encoder)?;
        Stored::<V1>::write(trailing_tokens, encoder)?;
        Stored::<V1>::write(window, encoder)?;
        Stored::<V1>::write(window_source, encoder)
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let usage_tokens = Stored::<V1>::read(decoder)?;
        let trailing_tokens = Stored::<V1>::read(decoder)?;
        let tokens = Stored::<V1>::read(decoder)?;
        let source = Stored::<V1>::read(decoder)?;
        Ok(Self::new(Measured { usage_tokens, trailing_tokens }, Window { tokens, source }))
    }
}

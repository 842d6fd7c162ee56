//! Greenroom: an actor-based agent runtime.
//!
//! A program defines agents, opens sessions, and prompts them. The runtime supervises many sessions at once,
//! records each conversation in an append-only log, and replaces the older part by a summary when the model's
//! window fills up.
//!
//! ```
//! use greenroom::prelude::*;
//! # use greenroom_simulator::Simulator;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<()> {
//! # let model = Simulator::echo();
//! # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
//! # /*
//! let runtime = Runtime::from_env().await?;
//! # */
//! let agent = Agent::new("gpt-5.5").instructions("Be brief.");
//! let session = runtime.open("umbrella", &agent).await?;
//! println!("{}", session.prompt("Umbrella in Oslo?").await?);
//! # Ok(())
//! # }
//! ```
//!
//! The [`prelude`] has what most programs need.
//!
//! # Runtime and sessions
//!
//! [`Runtime`] holds the sessions, and [`RuntimeBuilder`] configures it. [`SessionHandle`] is one session.
//! [`SessionQuery`] lists [`SessionSummary`]s, [`State`] is the state of one session, and [`LiveSession`] and
//! [`Activity`] describe its current work. [`ResumeAll`] finishes work that was interrupted when a process
//! ended.
//!
//! # Agents
//!
//! [`Agent`] is the definition: model, instructions, tools, limits, hooks. [`tool`] makes a tool of a
//! function; [`Tool`] is the trait behind it, and [`ToolContext`] is the context of a call. [`sub_agent`]
//! makes a tool of an agent, and [`Team`] a group of agents that hand a conversation over to one another.
//!
//! # Requests
//!
//! [`RunRequest`] is a prompt with its options: [`Typed`] answers, timeouts, limits, idempotency keys.
//! [`Run`] is a started run, [`RunStream`] yields its [`RunItem`]s as they arrive, and [`Reply`] is the
//! result. A dropped request is cancelled.
//!
//! # Events
//!
//! [`Subscription`] delivers [`Event`]s that a [`Filter`] selects; [`EventKind`] lists them.
//!
//! # Hooks, guards and validators
//!
//! [`BeforeTool`], [`AfterTool`], [`BeforeModel`], [`InputVerdict`] and [`Rejection`] are the verdicts of hooks, guards
//! and validators.
//!
//! # Questions to people
//!
//! A tool asks a [`Question`], and [`SessionHandle::answer`] takes the [`GivenAnswer`]. A [`PendingQuestion`] is an
//! open question.
//!
//! # Compaction
//!
//! [`CompactionSettings`] configures compaction, [`CompactOptions`] one request, and [`Compacted`] is the
//! result.
//!
//! # Errors
//!
//! [`Error`] is the error type; [`Error::is_retryable`] says whether a retry can succeed.
//!
//! # Features
//!
//! All features except `metrics` and `postgres` are on by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `http` | the provider for servers reached by HTTP; with `disk`, also `Runtime::from_env` |
//! | `disk` | the store in a directory: `RuntimeBuilder::data_dir`, `store_options` and `wait_for_store` |
//! | `metrics` | counters and gauges in Prometheus' text format: `Runtime::metrics` |
//! | `postgres` | sessions in PostgreSQL, shared by several nodes: `greenroom::postgres` |
//! | `command-tools` | the built-in tools, which read and write files and run commands: `prelude::builtin` |
//! | `permissions` | rules on tools, paths and commands, and approvals: `Agent::permissions` |
//!
//! A program with a provider of its own (see [`provider`]), tools of its own and
//! [`RuntimeBuilder::in_memory`] needs none of them.

// The layers, from the top: each may use only the layers below it (`tests/it/structure.rs` checks this).
mod api;

mod actors;

mod core;

mod agent;
mod lane;

mod events;
mod limits;

mod values;

#[cfg(test)]
mod schemas;

pub use agent::Agent;
pub use agent::fallback::Fallback;
pub use agent::hooks::input::{InputKind, InputVerdict, ProposedInput};
pub use agent::hooks::model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
pub use agent::hooks::tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};
pub use agent::instructions::InstructionsContext;
pub use agent::live_settings::SettingsChange;
pub use agent::sub_agent::{SubAgent, sub_agent};
pub use agent::team::Team;
pub use agent::validate::{ProposedAnswer, Rejection};
pub use api::children::Child;
pub use api::consumer::Consumer;
pub use api::consumers::ConsumerSummary;
pub use api::follow::Follow;
pub use api::fork::Continued;
pub use api::models::{FactSource, KnownModel, Models};
pub use api::position::Position;
pub use api::questions::PendingQuestion;
pub use api::request::{AbortHandle, Run, RunRequest, SentInput};
pub use api::resume::{ResumeAll, Resumed};
pub use api::retention::{DueSession, Retained};
pub use api::run_stream::{RunItem, RunStream, TextPiece};
pub use api::runtime::Runtime;
pub use api::runtime::builder::RuntimeBuilder;
pub use api::session::SessionHandle;
pub use api::sessions::{Cursor, LoggedWork, Order, SessionQuery, SessionSummary};
pub use api::spending::{Spending, SpendingQuery};
pub use api::take_over::TakeOver;
pub use events::activity::{Activity, InProgress, LiveSession};
pub use events::bus::{Delivery, Filter, Subscription};
pub use events::event::{Delta, Event, EventKind, EventType, Record};
pub use events::message_view::{MessageView, Role};
pub use events::reasons::{PrefixChange, QueueReason};
pub use lane::shared_provider::SharedProvider;
pub use limits::labels::LabelLimit;
pub use limits::spending::Period;
pub use limits::waits::within_call;
pub use values::compaction::{
    BeforeCompact, CompactOptions, Compacted, CompactionProposal, CompactionReport,
};
pub use values::error::{ConfigError, Error, Result};
pub use values::hook::{HookAction, HookPoint};
pub use values::prompt::{CallView, Prompt, Reply, Typed};
pub use values::recalled::Recalled;
pub use values::retention::{DeletionReason, Retention, RetentionRule};
pub use values::state::{State, Status};

pub use greenroom_kernel::bill::{Bill, CompactionBill};
pub use greenroom_kernel::compacting::Supplied;
pub use greenroom_kernel::compactions::{CompactionDetails, CompactionRecord, Replaced, Saved};
pub use greenroom_kernel::entry::{CompactionOutcome, Sees};
pub use greenroom_kernel::question::{
    Approval, Approved, Asker, GivenAnswer, Question, QuestionEnd, QuestionKind,
};
pub use greenroom_kernel::redact::Redactor;
pub use greenroom_kernel::run::RunLimits;
pub use greenroom_kernel::{EntryId, FactRecall, FailureClass, Image, RunOutcome};
pub use greenroom_provider::{ModelPrice, ModelSettings, PriceAbove, ReasoningEffort, ToolChoice};

#[cfg(feature = "disk")]
pub use greenroom_store::{BackupInfo, Progress, StoreOptions, VerifiedBackup};
pub use greenroom_store::{Engine, Notice, Store, StoreError};

/// Sessions in PostgreSQL, which several nodes share.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use greenroom_postgres::{Postgres, PostgresOptions};
}
pub use greenroom_tools::{AskError, FunctionTool, Registry, Tool, ToolContext, ToolError, ToolOutput, tool};

pub use greenroom_kernel::entry::{InboxDelivery, Trigger};
pub use greenroom_kernel::settings::CompactionSettings;
pub use greenroom_kernel::usage::{ContextUsage, WindowSource};
pub use greenroom_kernel::{
    AssistantMessage, Block, Entry, EntryKind, Failure, Message, Part, StopReason, ToolCall, ToolResult,
    ToolStatus, Touch, Usage,
};

/// Crates whose types and derive macros are part of this crate's API, in the versions it uses.
///
/// A program that derives `Deserialize` and `JsonSchema` either depends on `serde` and `schemars` itself, or
/// adds `#[serde(crate = "greenroom::serde")]` and `#[schemars(crate = "greenroom::schemars")]`.
pub use {futures_util, schemars, serde, serde_json};

/// The choices in [`CompactionSettings`], what a compaction would do, and why it cannot.
pub mod compaction {
    pub use greenroom_kernel::plan::{NothingToCompact, Plan};
    pub use greenroom_kernel::settings::{CutRule, Strategy, UnknownWindow};
    pub use greenroom_kernel::size::Estimator;
}

/// Which tool calls run, ask a person, or are denied: see [`Agent::permissions`].
#[cfg(feature = "permissions")]
pub mod permissions {
    pub use greenroom_policy::{Effect, Mode, Policy};

    pub use crate::agent::permissions::Permissions;
}

/// Model providers: the parts for writing one, and the one for servers that are reached by HTTP.
///
/// A provider implements [`Provider`](provider::Provider). The types of requests' messages and of answers are
/// at the crate's root: [`Message`], [`AssistantMessage`], [`Part`], [`Block`]. The example program
/// `own_provider` is a complete provider.
pub mod provider {
    pub use greenroom_kernel::ToolSpec;
    pub use greenroom_kernel::messages::Messages;
    pub use greenroom_provider::retry_after::retry_after_ms;
    pub use greenroom_provider::{
        NativeCompaction, OutputSchema, Provider, ProviderError, Purpose, ReplyEvent, ReplyStream, Request,
        ResendReasoning, ResentReasoning, Served, ServedModel, classify,
    };

    pub use greenroom_provider::catalog::Prices;

    #[cfg(feature = "http")]
    pub use greenroom_provider::{Api, ApiKey, BaseUrl, HttpProvider, KeySource, Proxies, ServerOptions};
}

/// The files that tools change: keeping them as they were before, and going back.
#[cfg(feature = "command-tools")]
pub mod files {
    pub use crate::values::rewind::{Rewind, Rewound};
    pub use greenroom_tools::rewind::{FileAction, FileHistory, FileRewind, Limits, NotKept};
}

/// Items that only the other crates of Greenroom use. They may change with any version.
#[doc(hidden)]
pub mod internal {
    #[cfg(feature = "disk")]
    pub use crate::api::env::data_dir;
    pub use crate::api::sessions::{SessionCounts, SessionsFound};
    pub use crate::api::spending::check_message;
    pub use crate::events::entry_events::of_entries;
    pub use crate::values::model_info::call_cost;
    #[cfg(feature = "permissions")]
    pub use greenroom_policy::{PolicyRule, Subject};
    #[cfg(feature = "postgres")]
    pub use greenroom_postgres::{Survey, SurveyedNode};
    pub use greenroom_provider::Catalog;
    #[cfg(feature = "http")]
    pub use greenroom_provider::Poster;
}

/// The items that most programs need.
pub mod prelude {
    pub use crate::{
        Agent, Child, CompactOptions, CompactionSettings, Delivery, Error, Event, EventKind, EventType,
        Filter, Image, ModelSettings, Position, Prompt, Question, Reply, Result, Run, RunItem, RunLimits,
        Runtime, Sees, SessionHandle, Status, Team, Typed, sub_agent,
    };
    #[cfg(feature = "command-tools")]
    pub use greenroom_tools::builtin;
    pub use greenroom_tools::{ToolContext, ToolError, ToolOutput, tool};
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

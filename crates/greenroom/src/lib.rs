//! Greenroom: an actor-based agent runtime.
//!
//! A program spawns agents in-process, supervises many sessions at once, and subscribes to what they broadcast.
//! Each session's conversation lives in an append-only log and never outgrows its model's window: the older part
//! is replaced, in the model's view, by a summary.
//!
//! The one key decision: **each session is a few actors that only exchange messages**, and the deciding is done
//! in `greenroom-kernel`, which knows none of them. This is the only crate that knows ractor.
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
//! Where to begin: [`Runtime`] and [`SessionHandle`] are what a program holds, [`Agent`] and [`tool`] what it defines,
//! [`RunRequest`], [`Run`] and [`RunStream`] what it asks and watches, [`Event`] and [`Subscription`] what it hears, and
//! [`Error`] what may go wrong. The [`prelude`] has what most programs need.

// The rooms, from the top: each may touch only those below it (`tests/it/structure.rs` holds it).
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
pub use agent::live::{LiveSettings, SettingsChange};
pub use agent::sub_agent::{SubAgent, sub_agent};
pub use agent::team::Team;
pub use agent::validate::{ProposedAnswer, Rejection};
pub use api::children::Child;
pub use api::models::{FactSource, KnownModel, Models};
pub use api::questions::PendingQuestion;
pub use api::request::{AbortHandle, Run, RunRequest, SentInput};
pub use api::resume::{ResumeAll, Resumed};
pub use api::run_stream::{RunItem, RunStream, TextPiece};
pub use api::runtime::{Runtime, RuntimeBuilder};
pub use api::session::SessionHandle;
pub use api::sessions::{Cursor, LoggedWork, Order, SessionQuery, SessionSummary};
pub use events::activity::{Activity, InProgress, LiveSession};
pub use events::bus::{Delivery, Filter, Subscription};
pub use events::event::{Delta, Event, EventKind, EventType, MessageView, QueueReason, Record, Role};
pub use lane::shared_provider::SharedProvider;
pub use limits::spending::Period;
pub use limits::waits::within_call;
pub use values::compaction::{
    BeforeCompact, CompactOptions, Compacted, CompactionProposal, CompactionReport,
};
pub use values::error::{ConfigError, Error, MetadataError, Result};
pub use values::hook::{HookAction, HookPoint};
pub use values::prompt::{CallView, Prompt, Reply, Typed};
pub use values::state::{State, Status};

pub use api::{deletion, env, questions};
pub use events::event;

pub use greenroom_kernel::compacting::Supplied;
pub use greenroom_kernel::entry::{CompactionOutcome, Sees};
pub use greenroom_kernel::question::{Answer, Asker, Question, QuestionEnd, QuestionKind};
pub use greenroom_kernel::run::RunLimits;
pub use greenroom_kernel::{EntryId, FailureClass, Image, ImageError, RunId, RunOutcome};
pub use greenroom_provider::{ModelSettings, Purpose, ReasoningEffort, Request, ToolChoice};

pub use greenroom_store::{Notice, Store, StoreError, StoreOptions};
pub use greenroom_tools::{
    AppState, AskError, FunctionTool, MissingState, Registry, Tool, ToolContext, ToolError, ToolOutput, tool,
};

pub use greenroom_kernel::context_usage::{ContextUsage, WindowSource};
pub use greenroom_kernel::entry::{Delivery as InboxDelivery, Trigger};
pub use greenroom_kernel::settings::CompactionSettings;
pub use greenroom_kernel::{
    AssistantMessage, Block, Entry, EntryKind, Failure, Message, Part, StopReason, ToolCall, ToolResult,
    ToolStatus, Usage,
};

/// The crates whose types and derive macros stand in this one's API, in the versions that it uses.
///
/// A program that derives `Deserialize` and `JsonSchema` either depends on `serde` and `schemars` itself, or says
/// `#[serde(crate = "greenroom::serde")]` and `#[schemars(crate = "greenroom::schemars")]`.
pub use {futures_util, schemars, serde, serde_json};

/// Model providers: OpenAI-compatible servers, and what it takes to write one of one's own.
pub mod provider {
    pub use futures_util::future::BoxFuture;
    pub use futures_util::stream::BoxStream;
    pub use greenroom_kernel::{
        AssistantMessage, Block, Failure, FailureClass, Message, Part, StopReason, ToolCall, ToolResult,
        ToolSpec, ToolStatus, Usage,
    };
    pub use greenroom_provider::*;
}

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Agent, Child, CompactOptions, CompactionOutcome, CompactionSettings, Delivery, Error, Event,
        EventKind, EventType, Filter, Image, ModelSettings, Prompt, Question, ReasoningEffort, Reply, Result,
        Role, Run, RunItem, RunLimits, RunOutcome, Runtime, Sees, SessionHandle, Status, Team, ToolChoice,
        Typed, sub_agent,
    };
    pub use greenroom_tools::{ToolContext, ToolError, ToolOutput, builtin, tool};
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

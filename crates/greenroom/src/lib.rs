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

mod activity;
mod actors;
mod admission;
pub mod agent;
mod agent_line;
pub mod bus;
mod children;
mod clock;
pub mod compaction;
pub mod deletion;
mod deps;
pub mod env;
pub mod error;
pub mod event;
mod fallback;
mod flight;
mod hooks;
pub mod instructions;
mod lane;
mod learned;
pub mod live;
mod log;
mod mail;
mod message;
pub mod metadata;
pub mod models;
mod names;
mod output;
mod pairs;
mod partial_json;
pub mod prompt;
pub mod questions;
mod recall;
mod restarts;
pub mod resume;
mod run_link;
pub mod run_stream;
pub mod runtime;
#[cfg(test)]
mod schemas;
mod served;
pub mod session;
pub mod sessions;
mod shared;
pub mod shared_provider;
mod shared_tools;
mod spending;
mod sub_agent;
mod summary_call;
pub mod team;
mod terms;
mod trace;
pub mod validate;
mod waits;

pub use activity::{Activity, InProgress, LiveSession};
pub use agent::Agent;
pub use bus::{Delivery, Filter, Subscription};
pub use children::Child;
pub use compaction::{BeforeCompact, CompactOptions, Compacted, CompactionProposal, CompactionReport};
pub use error::{ConfigError, Error, MetadataError, Result};
pub use event::{CallView, Delta, Event, EventKind, EventType, MessageView, QueueReason, Record, Role};
pub use fallback::Fallback;
pub use hooks::input::{InputKind, InputVerdict, ProposedInput};
pub use hooks::model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
pub use hooks::tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};
pub use hooks::{HookAction, HookPoint};
pub use instructions::InstructionsContext;
pub use live::{LiveSettings, SettingsChange};
pub use models::{FactSource, KnownModel, Models};
pub use prompt::{AbortHandle, Prompt, Reply, Run, RunRequest, SentInput, Typed};
pub use questions::PendingQuestion;
pub use resume::{ResumeAll, Resumed};
pub use run_stream::{RunItem, RunStream, TextPiece};
pub use runtime::{Runtime, RuntimeBuilder};
pub use session::{SessionHandle, State, Status};
pub use sessions::{Cursor, Order, SessionQuery, SessionSummary};
pub use shared_provider::SharedProvider;
pub use spending::Period;
pub use sub_agent::{SubAgent, sub_agent};
pub use team::Team;
pub use validate::{ProposedAnswer, Rejection};
pub use waits::within_call;

pub use greenroom_kernel::compacting::Supplied;
pub use greenroom_kernel::entry::{CompactionOutcome, Sees};
pub use greenroom_kernel::question::{Answer, Asker, Question, QuestionEnd, QuestionKind};
pub use greenroom_kernel::run::RunLimits;
pub use greenroom_kernel::{EntryId, FailureClass, Image, ImageError, RunId, RunOutcome};
pub use greenroom_provider::{ModelSettings, Purpose, ReasoningEffort, Request, ToolChoice};

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

pub use greenroom_kernel as kernel;
pub use greenroom_store as store;
pub use greenroom_tools as tools;

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

//! Greenroom: an actor-based agent runtime.
//!
//! A program spawns agents in-process, supervises many sessions at once, and subscribes to what they broadcast.
//! Each session's conversation lives in an append-only log and never outgrows its model's window: the older part
//! is replaced, in the model's view, by a summary.
//!
//! The one key decision: **each session is a few actors that only exchange messages**, and the deciding is done
//! in `greenroom-kernel`, which knows none of them. This is the only crate that knows ractor.
//!
//! Reading order: [`runtime`] and [`session`] (what programs hold), [`agent`] (what they define), [`event`] and
//! [`bus`] (what they hear), `message` (what the actors say to each other), then `actors`.

mod actors;
pub mod agent;
pub mod bus;
pub mod compaction;
mod deps;
pub mod env;
pub mod error;
pub mod event;
mod fallback;
mod hooks;
pub mod instructions;
mod lane;
mod learned;
pub mod live;
mod log;
mod message;
pub mod models;
mod names;
mod pairs;
mod partial_json;
pub mod prompt;
mod recall;
mod restarts;
pub mod run_stream;
pub mod runtime;
mod served;
pub mod session;
mod shared;
mod spending;
mod sub_agent;
mod summary_call;
mod trace;
pub mod validate;
mod waits;

pub use agent::Agent;
pub use bus::{Delivery, Filter, Subscription};
pub use compaction::{BeforeCompact, CompactOptions, Compacted, CompactionProposal, CompactionReport};
pub use error::{ConfigError, Error, Result};
pub use event::{Event, EventKind, EventType, Record, Role};
pub use fallback::Fallback;
pub use hooks::input::{InputKind, InputVerdict, ProposedInput};
pub use hooks::model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
pub use hooks::tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};
pub use hooks::{HookAction, HookPoint};
pub use instructions::InstructionsContext;
pub use live::{LiveSettings, SettingsChange};
pub use models::{FactSource, KnownModel, Models};
pub use prompt::{Prompt, Reply, RunRequest, Submitted, Typed};
pub use run_stream::{RunItem, RunStream};
pub use runtime::{Runtime, RuntimeBuilder};
pub use session::{SessionHandle, SessionSummary, State, Status};
pub use spending::Period;
pub use validate::{ProposedAnswer, Rejection};

pub use greenroom_kernel::compacting::Supplied;
pub use greenroom_kernel::entry::CompactionOutcome;
pub use greenroom_kernel::message::Message;
pub use greenroom_kernel::run::RunLimits;
pub use greenroom_kernel::{EntryId, FailureClass, Image, ImageError, RunId, RunOutcome};
pub use greenroom_provider::{ModelSettings, Purpose, ReasoningEffort, Request, ToolChoice};

pub use greenroom_tools::{
    AppState, FunctionTool, MissingState, Registry, Tool, ToolContext, ToolError, ToolOutput, tool,
};

pub use greenroom_kernel as kernel;
pub use greenroom_provider as provider;
pub use greenroom_store as store;
pub use greenroom_tools as tools;

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Agent, CompactOptions, CompactionOutcome, Delivery, Error, Event, EventKind, EventType, Filter,
        ModelSettings, Prompt, ReasoningEffort, Reply, Result, Role, RunItem, RunLimits, RunOutcome, Runtime,
        SessionHandle, Status, ToolChoice, Typed,
    };
    pub use greenroom_kernel::Image;
    pub use greenroom_kernel::settings::CompactionSettings;
    pub use greenroom_tools::{ToolContext, ToolError, ToolOutput, builtin, tool};
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

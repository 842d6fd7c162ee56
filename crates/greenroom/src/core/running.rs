//! The run in progress, as its agent holds it.
//!
//! Invariants: it is with one agent at a time, or with the session while that sleeps; its tasks end when it is dropped.

use std::sync::Arc;

use greenroom_kernel::path::Media;
use greenroom_kernel::run::{AbortCause, Run};
use greenroom_kernel::{AssistantMessage, Message};
use greenroom_tools::Pauses;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Span;

use crate::core::agent_line::AgentLine;
use crate::core::message::{BeginRun, Measurement};

/// The run in progress. A session that sleeps keeps it, where its tools go on.
pub(crate) struct Running {
    pub(crate) begin: BeginRun,
    pub(crate) run: Run,
    /// How its tasks reach the agent.
    pub(crate) line: AgentLine,
    /// The number of the newest model call or wait. Messages about earlier ones are late.
    pub(crate) call: u64,
    /// The form of the next request, while the context for it is on its way.
    pub(crate) next_request: Option<RequestForm>,
    /// The images to send where the newest request had too many bytes.
    pub(crate) fewer_images: Option<Media>,
    /// The newest step, from 1, and as it is traced.
    pub(crate) step: u32,
    pub(crate) step_span: Span,
    /// The user was warned that images of the prompt are not sent.
    pub(crate) media_missed: bool,
    pub(crate) measuring: bool,
    /// The newest size that it was told.
    pub(crate) measured: Option<Box<Measurement>>,
    /// The context that came with it, until the run has decided what to do about the size.
    pub(crate) context: Option<Vec<Arc<Message>>>,
    /// What the run's time limit stands still for.
    pub(crate) pauses: Pauses,
    /// Cancels the task of the model call under way.
    pub(crate) model: Option<DropGuard>,
    /// Cancels the task of the tool calls under way.
    pub(crate) tools: Option<DropGuard>,
    /// Who ends the run now; the machine is told when the tasks have ended.
    pub(crate) aborting: Option<AbortCause>,
    /// The part of an answer that was there when it was cancelled.
    pub(crate) partial: Option<Box<AssistantMessage>>,
    /// Cancelled when the run is over: it ends the abort's watcher and the waits.
    pub(crate) over: CancellationToken,
    pub(crate) _cancels_over: DropGuard,
}

/// The form of a request.
pub(crate) struct RequestForm {
    pub(crate) output_tokens_max: Option<u64>,
    pub(crate) media: Media,
}

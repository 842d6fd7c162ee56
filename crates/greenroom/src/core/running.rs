//! The run in progress, as its agent holds it.
//!
//! Invariants: one agent at a time has it, or the session while that sleeps; its tasks end when it is
//! dropped.

use greenroom_kernel::path::Media;
use greenroom_kernel::run::{AbortCause, Run};
use greenroom_kernel::{AssistantMessage, Messages};
use greenroom_tools::Pauses;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Span;

use crate::core::agent_line::AgentLine;
use crate::core::message::{BeginRun, Measurement};

/// The run in progress. A sleeping session keeps it while its tools continue.
pub(crate) struct Running {
    pub(crate) begin: Box<BeginRun>,
    pub(crate) run: Run,
    /// The connection of its tasks to the agent.
    pub(crate) line: AgentLine,
    /// The number of the newest model call or wait. Messages about earlier ones are late.
    pub(crate) call: u64,
    /// The form of the next request, while its context is being fetched.
    pub(crate) next_request: Option<RequestForm>,
    /// The images to send after a request had too many bytes.
    pub(crate) fewer_images: Option<Media>,
    /// Whether the newest request began with a summary in the provider's own form.
    pub(crate) has_native_summary: bool,
    /// The newest step, from 1, and its span in the trace.
    pub(crate) step: u32,
    pub(crate) step_span: Span,
    /// Whether the user was warned that images of the prompt are not sent.
    pub(crate) media_missed: bool,
    /// Whether the user was told that opaque data is left out.
    pub(crate) opaque_missed: bool,
    pub(crate) measuring: bool,
    /// The newest measurement.
    pub(crate) measured: Option<Box<Measurement>>,
    /// The context that came with it, until the run has decided about the size.
    pub(crate) context: Option<Messages>,
    /// What stops the run's time limit.
    pub(crate) pauses: Pauses,
    /// Cancels the task of the model call in progress.
    pub(crate) model: Option<DropGuard>,
    /// Cancels the task of the tool calls in progress.
    pub(crate) tools: Option<DropGuard>,
    /// Why the run is being aborted; the state machine is notified when the tasks have ended.
    pub(crate) aborting: Option<AbortCause>,
    /// The ids of the tool calls that were cancelled before they began.
    pub(crate) not_begun: Vec<String>,
    /// The partial answer of a cancelled call.
    pub(crate) partial: Option<Box<AssistantMessage>>,
    /// Cancelled when the run is over: this ends the abort's watcher and the waits.
    pub(crate) over: CancellationToken,
    pub(crate) _cancels_over: DropGuard,
}

/// The form of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestForm {
    pub(crate) output_tokens_max: Option<u64>,
    pub(crate) media: Media,
    /// Whether what only the provider can read is left out.
    pub(crate) without_opaque: bool,
}

//! A scripted model that speaks the APIs of OpenAI, Anthropic and Gemini over HTTP, also runs in-process, and checks
//! every request that it receives.
//!
//! The one key decision: **the simulator is as strict as the strictest provider and as unreliable as the
//! worst.** It has a real window and refuses larger requests in the words of a chosen server; it counts
//! tokens with a counter that the runtime does not know; it records every request that breaks a rule, so that
//! a test can fail on it; and it corrupts its own answers on request or by a seed. It is used by the demo, replay,
//! users' tests and ours. What is absent: sessions, actors, and any dependency on the runtime.
//!
//! ```
//! use greenroom_simulator::{Echo, Simulator, SimulatorOptions};
//!
//! let simulator = Simulator::new(SimulatorOptions { window: 8_000, ..SimulatorOptions::new(Echo) });
//! let provider = simulator.provider(); // or `simulator.serve().await?.base_url()`
//! assert_eq!(provider.name(), "simulator");
//! simulator.assert_clean();
//! ```
//!
//! Reading order: [`seen`] (a request), [`check`] (the rules for requests), [`tokens`] and `counting` (its size), [`model`]
//! (the script interface), [`scripts`], `scripted` with `expect` and `history` (for tests of agents), [`summariser`] with
//! `sealed`, `answer` (a reply in steps), [`fault`] and [`overflow`] (failures), [`simulator`] (the life of a call),
//! `in_process` and [`server`] (the transports) with `protocol` and `list` (the forms of APIs), `cassette` (recorded answers),
//! `provider_conformance` (what the runtime demands of any provider), [`replay`] (a recorded session through the kernel's
//! compactions).

mod answer;
mod cassette;
pub mod check;
mod counting;
pub mod expect;
pub mod fault;
mod history;
mod in_process;
mod list;
pub mod model;
pub mod overflow;
mod protocol;
pub mod provider_conformance;
pub mod replay;
mod scripted;
pub mod scripts;
mod sealed;
pub mod seen;
pub mod server;
pub mod simulator;
pub mod summariser;
pub mod tokens;

pub use cassette::{Cassette, CassetteError};
pub use check::{Rule, Violation};
pub use counting::{Counting, ReadsReasoning};
pub use expect::Expectation;
pub use fault::{Fault, FaultPlan, Point, RetryAfter, WrongUsage};
pub use history::History;
pub use list::ListForm;
pub use model::{Answer, CallInfo, Pace, Script, ScriptedCall};
pub use overflow::ErrorDialect;
pub use scripted::ScriptedModel;
pub use scripts::{ByPurpose, Echo, Function, Sequence};
pub use seen::SeenRequest;
pub use server::SimulatorServer;
pub use simulator::{LoggedRequest, Outcome, Simulator, SimulatorOptions};
pub use summariser::Summariser;

/// Errors of the simulator itself.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// The server cannot listen at its address.
    #[error("the address cannot be bound: {0}")]
    Bind(#[source] std::io::Error),
}

//! Operations between a client and the host of its connection: who the client is, the host's status, and its shutdown.
//!
//! Invariants: the connection's host answers these, not the runtime.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CallScope, Operation, Performed, Refused};

/// The protocol's version number. It changes with each change that an older client or host would misunderstand.
pub const PROTOCOL: u32 = 1;

/// The kind of a client, which decides what happens to its runs when it disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    /// Its runs are for this client only: they are aborted when it disconnects.
    Run,
    /// Its runs continue without it, and it may reconnect.
    Chat,
    /// It begins no runs.
    Watch,
}

/// Identifies the client. It must be the first request on a host's socket.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The client's [`PROTOCOL`].
    pub protocol: u32,
    /// The client's version, for people.
    pub version: String,
    /// The client's kind.
    pub kind: ClientKind,
    /// The definition with which its sessions are opened, in the host's form. A client without one is read-only. The
    /// definition may hold a key: a host keeps it in memory and writes it nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { protocol, version, kind, definition } = self;
        f.debug_struct("Hello")
            .field("protocol", protocol)
            .field("version", version)
            .field("kind", kind)
            .field("definition", &definition.as_ref().map(|_| "hidden"))
            .finish()
    }
}

/// The host's identity.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct HelloAnswer {
    /// The host's [`PROTOCOL`].
    pub protocol: u32,
    /// The host's version, for people.
    pub version: String,
    /// The host's process id.
    pub pid: u32,
    /// Notes on the definition for the client's user, a line each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Implements what these operations have in common.
macro_rules! of_host {
    ($method:literal, $output:ty) => {
        operation!($method, None, $output);

        async fn perform(self, _scope: CallScope) -> Performed<Self> {
            Err(Refused::Parameters(concat!($method, " is for a host's socket").to_owned()))
        }
    };
}

impl Operation for Hello {
    of_host!("client/hello", HelloAnswer);
}

/// Checks that the host responds. It answers at once, whatever it is doing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingHost {}

/// The host responds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Pong {
    /// The host's process id.
    pub pid: u32,
}

impl Operation for PingHost {
    of_host!("host/ping", Pong);
}

/// The host's status.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostStatus {}

/// A client of the host.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClientSummary {
    /// The client's kind; absent until it has identified itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ClientKind>,
    /// When it connected, in Unix milliseconds.
    pub since_ms: u64,
    /// The sessions that it has opened.
    pub sessions: Vec<String>,
}

/// A host's status.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct HostState {
    /// The host's process id.
    pub pid: u32,
    /// The host's version.
    pub version: String,
    /// When it started, in Unix milliseconds.
    pub since_ms: u64,
    /// The connected clients, including the one that asks.
    pub clients: Vec<ClientSummary>,
    /// The sessions with a run or a compaction in progress, except those that wait for a person.
    pub at_work: Vec<String>,
}

impl Operation for HostStatus {
    of_host!("host/status", HostState);
}

/// Asks the host to exit. It exits if no work is in progress and no other client is connected that may begin runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopHost {
    /// Exit even with work in progress: runs are interrupted cleanly, and can be resumed.
    #[serde(default)]
    pub force: bool,
}

/// The host exits.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Stopping {
    /// The host's process id.
    pub pid: u32,
}

impl Operation for StopHost {
    of_host!("host/stop", Stopping);
}

/// Whether this call is answered before the client has identified itself.
pub(crate) fn is_first(method: &str) -> bool {
    [Hello::METHOD, PingHost::METHOD, HostStatus::METHOD, StopHost::METHOD].contains(&method)
}

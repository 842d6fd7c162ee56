//! Operations between a client and the host that it is connected to: who it is, what the host does, and its end.
//!
//! Invariants: these are answered by the connection's host, and not by the runtime.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Asked, Nothing, Operation, Performed, Refused};

/// The number of the protocol: another one for each change that an older client or host would misunderstand.
pub const PROTOCOL: u32 = 1;

/// What a client is, which decides what becomes of its runs when it goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    /// Its runs are for it alone: they are aborted when it goes away.
    Run,
    /// Its runs go on without it, and it may come back.
    Chat,
    /// It begins no runs.
    Watch,
}

/// Says who the client is. On a host's socket it comes first.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The client's [`PROTOCOL`].
    pub protocol: u32,
    /// The client's version, for people.
    pub version: String,
    /// What it is.
    pub kind: ClientKind,
    /// What its sessions are opened with, as the host reads it; without it, it can only look. It may hold a key: a host
    /// keeps it in memory, and writes it nowhere.
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

/// Who the host is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct HelloAnswer {
    /// Its [`PROTOCOL`].
    pub protocol: u32,
    /// Its version, for people.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// What the client's user should know of the definition, a line each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Implements what these operations have in common.
macro_rules! of_host {
    ($method:literal, $output:ty) => {
        const METHOD: &'static str = $method;
        type Output = $output;
        type Outcome = Nothing;

        async fn perform(self, _asked: Asked) -> Performed<Self> {
            Err(Refused::Parameters(concat!($method, " is for a host's socket").to_owned()))
        }
    };
}

impl Operation for Hello {
    of_host!("client/hello", HelloAnswer);
}

/// Asks whether the host answers at all. It says so at once, whatever it is doing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingHost {}

/// That the host answers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Pong {
    /// Its process.
    pub pid: u32,
}

impl Operation for PingHost {
    of_host!("host/ping", Pong);
}

/// How the host stands.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostStatus {}

/// A client of the host.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClientSummary {
    /// What it is; absent before it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ClientKind>,
    /// When it connected, in unix milliseconds.
    pub since_ms: u64,
    /// The sessions that it has started.
    pub sessions: Vec<String>,
}

/// How a host stands.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct HostState {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Since when it runs, in unix milliseconds.
    pub since_ms: u64,
    /// Who is connected, the asking client with them.
    pub clients: Vec<ClientSummary>,
    /// The sessions in which a run or a compaction goes on; what waits for a person is not among them.
    pub at_work: Vec<String>,
}

impl Operation for HostStatus {
    of_host!("host/status", HostState);
}

/// Asks the host to end. It does where nothing is at work and no other client is connected that may begin runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopHost {
    /// End also where something is at work: runs are interrupted in order, and can be resumed.
    #[serde(default)]
    pub force: bool,
}

/// That the host ends.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Stopping {
    /// Its process.
    pub pid: u32,
}

impl Operation for StopHost {
    of_host!("host/stop", Stopping);
}

/// Whether this call is answered before a client has said who it is.
pub(crate) fn is_first(method: &str) -> bool {
    [Hello::METHOD, PingHost::METHOD, HostStatus::METHOD, StopHost::METHOD].contains(&method)
}

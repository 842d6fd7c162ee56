//! The points and actions of hooks, as events report them.
//!
//! Invariants: the names are the same in JSON, in Rust and in text for people.

use crate::values::names::names;

names! {
    /// The point at which a hook was called.
    pub enum HookPoint ("hook") {
        /// Before a tool call: see `Agent::before_tool`.
        BeforeTool = "before_tool",
        /// After a tool call: see `Agent::after_tool`.
        AfterTool = "after_tool",
        /// Before a model call: see `Agent::before_model`.
        BeforeModel = "before_model",
        /// Before a tool call, after its hooks: see `Agent::permissions`.
        Permissions = "permissions",
    }
    /// A name unknown to this version: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

names! {
    /// A hook's action.
    pub enum HookAction ("action of a hook") {
        /// It changed the arguments, settings or messages of the call.
        Changed = "changed",
        /// It refused the call.
        Refused = "refused",
        /// It answered in place of the call.
        Answered = "answered",
        /// It replaced the call's result.
        Replaced = "replaced",
    }
    /// A name unknown to this version: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

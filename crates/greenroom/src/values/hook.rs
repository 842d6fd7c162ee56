//! Where a hook took part, and what it did: as events tell it.
//!
//! Invariants: the names are the same in JSON, in Rust and in what people read.

use crate::values::names::names;

names! {
    /// At which point a hook took part.
    pub enum HookPoint ("hook") {
        /// Before a tool call: see `Agent::before_tool`.
        BeforeTool = "before_tool",
        /// After a tool call: see `Agent::after_tool`.
        AfterTool = "after_tool",
        /// Before a model call: see `Agent::before_model`.
        BeforeModel = "before_model",
    }
    /// A name that this version does not know: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

names! {
    /// What a hook did.
    pub enum HookAction ("action of a hook") {
        /// It changed what is called: the arguments, the settings or the messages.
        Changed = "changed",
        /// It refused the call.
        Refused = "refused",
        /// It answered in the place of what was to be called.
        Answered = "answered",
        /// It replaced what the call gave.
        Replaced = "replaced",
    }
    /// A name that this version does not know: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

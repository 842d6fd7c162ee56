//! The reasons that events name: why a model call waits, and why a request does not extend the one before.
//!
//! Invariants: a reason that a newer program wrote is read as unknown.

use crate::values::names::names;

names! {
    /// Why a model call waits: see [`EventKind::QueueUpdate`](crate::EventKind::QueueUpdate).
    pub enum QueueReason ("reason to wait") {
        /// The provider has the maximum number of concurrent calls.
        Slots = "slots",
        /// The limit of tokens per minute is reached.
        Tokens = "tokens",
        /// The limit of tokens per minute of a label is reached.
        LabelTokens = "label_tokens",
        /// As many runs of a label work as may at a time: the first call of a further one waits.
        LabelRuns = "label_runs",
        /// The provider asked to wait.
        Paused = "paused",
    }
    /// A name unknown to this version: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

names! {
    /// Why a request does not extend the one before it: see [`EventKind::PrefixChanged`](crate::EventKind::PrefixChanged).
    pub enum PrefixChange ("reason for a changed prefix") {
        /// Another model answers.
        Model = "model",
        /// The instructions are others.
        Instructions = "instructions",
        /// The tools are others.
        Tools = "tools",
        /// A `before_model` hook changed messages.
        Hook = "hook",
        /// Older images were left out, because the request would be too large.
        Images = "images",
        /// Messages are sent in another form, for example without what the provider refused.
        Messages = "messages",
    }
    /// A name unknown to this version: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

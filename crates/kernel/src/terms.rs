//! The requirements of a prompt besides its text, as recorded with the prompt.
//!
//! Invariants: all of it is data, so that the same requirements apply if the prompt is answered later, even
//! after a restart. The functions of validators are not data; they are named or counted.

use serde_json::Value;

use crate::entry::EntryId;

/// The requirements of a prompt besides its text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Terms {
    /// The form of the answer; `None` is text.
    pub output: Option<OutputTerms>,
    /// The model settings of the prompt, by name; `None` if it has none.
    pub settings: Option<Value>,
    /// The cost limit of the run, in micro-dollars.
    pub cost_limit: Option<u64>,
    /// The time limit of the reply, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The names of the agent's validators for the answer.
    pub validators: Vec<String>,
    /// The number of validators without a name: only the program that sent the prompt has them.
    pub unnamed_validators: u32,
    /// The prompt that this one repeats with its idempotency key: the first entry that was recorded for it.
    pub again: Option<EntryId>,
}

impl Terms {
    /// Whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTerms {
    /// Its name, as sent to the model.
    pub name: String,
    /// The program's own JSON schema.
    pub schema: Value,
}

//! What a prompt asks for besides its words, as it is recorded with the prompt.
//!
//! Invariants: all of it is data, so that whoever answers the prompt later, after a restart too, is held to the same. What
//! is no data, the function of a validator, is named or counted.

use serde_json::Value;

use crate::entry::EntryId;

/// What a prompt asks for besides its words.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Terms {
    /// The form of the answer; `None` is text.
    pub output: Option<OutputTerms>,
    /// How the model is to answer: the settings that the prompt sets, by their names; `None` where it sets none.
    pub settings: Option<Value>,
    /// The most that the run may cost, in micro-dollars.
    pub cost_limit: Option<u64>,
    /// How long the reply may take, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The agent's validators that judge the answer, by their names.
    pub validators: Vec<String>,
    /// How many validators judge the answer that have no name: only the program that said the prompt has them.
    pub unnamed_validators: u32,
    /// The prompt that this one says again under its idempotency key: the first entry that was recorded for that.
    pub again: Option<EntryId>,
}

impl Terms {
    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTerms {
    /// Its name, as the model is told.
    pub name: String,
    /// The program's own JSON schema.
    pub schema: Value,
}

//! The content that a compaction carries verbatim besides its summary, with the entries that contain it: the user's own
//! words, and the facts of the ledger.
//!
//! Invariants: the texts are as they were written, unescaped; each has the entry that contains it. How much there is at
//! most: [`crate::words`] and [`crate::ledger`].

use serde::{Deserialize, Serialize};

use crate::entry::EntryId;

/// The user's words and the facts that a compaction carries on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Carried {
    /// The user's own words in what was replaced, oldest first. Those of the request in progress are among them, because
    /// the next compaction needs them; the summary shows them as the request.
    pub words: Vec<Quote>,
    /// The user's messages in what was replaced that are not quoted as a whole: the newest ones, oldest first.
    pub words_left: Vec<EntryId>,
    /// The first message of the request in progress, if the summary shows the request.
    pub request_from: Option<EntryId>,
    /// The facts found in what was replaced, in the order of their entries.
    pub facts: Vec<Fact>,
    /// The skills in use in what was replaced, in the order of their entries.
    #[serde(default)]
    pub skills: Vec<SkillText>,
}

/// The text of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SkillText {
    /// The result in which it was read.
    pub entry: EntryId,
    /// The skill's name.
    pub name: String,
    /// Its text; empty if it is too large to be told again.
    pub text: String,
}

/// Words of the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Quote {
    /// The message.
    pub entry: EntryId,
    /// Its text, or the part of it that is quoted.
    pub text: String,
    /// Whether it states a constraint or a correction.
    pub is_rule: bool,
}

/// Something in a conversation that must not be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Fact {
    /// The newest entry that contains it.
    pub entry: EntryId,
    /// Its kind.
    pub kind: FactKind,
    /// The text to show.
    pub text: String,
    /// The part of it by which it is recognised in a context; empty for all of `text`.
    pub key: String,
    /// How often it occurs.
    pub times: u32,
}

impl Fact {
    /// Returns the text by which it is recognised.
    pub fn key(&self) -> &str {
        if self.key.is_empty() { &self.text } else { &self.key }
    }
}

/// The kinds of facts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FactKind {
    /// The user's constraint or correction.
    Rule,
    /// A decision or a finding, as the model stated it.
    Decision,
    /// An error, and what solved it.
    Error,
    /// Finished work.
    Done,
    /// Open work.
    Open,
    /// A command and its last state.
    Command,
    /// A file or a folder.
    Path,
    /// An address.
    Url,
    /// A name: of a function, a variable, a commit, a code of an error.
    Identifier,
    /// A number with its unit.
    Number,
    /// A value that this version does not know: a newer program wrote it. It is read, and never recorded.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// How many of the facts in what was replaced are in the new context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FactRecall {
    /// The number of facts, those of earlier compactions included.
    pub facts: u64,
    /// How many of them are in the new context without the ledger.
    pub before: u64,
    /// How many are in it with the ledger.
    pub after: u64,
}

//! Prompts, replies, and the tool calls of answers.
//!
//! Invariants: a reply is plain data, the same for every reader; it has no reference to a session.

use std::fmt;

use greenroom_kernel::bill::CompactionBill;
use greenroom_kernel::context_usage::ContextUsage;
use greenroom_kernel::entry::RunId;
use greenroom_kernel::message::{Block, Image, blocks_text};
use greenroom_kernel::{StopReason, ToolCall, Usage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::values::compaction::Compacted;

/// The content of a prompt: text, or text with images.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Prompt(pub(crate) Vec<Block>);

impl<T: Into<String>> From<T> for Prompt {
    fn from(text: T) -> Self {
        Self(vec![Block::Text(text.into())])
    }
}

impl Prompt {
    /// Appends an image.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// # let bytes = b"GIF89a";
    /// let prompt = Prompt::from("What is this?").image(Image::new(bytes)?);
    /// # Ok(()) }
    /// ```
    pub fn image(mut self, image: Image) -> Self {
        self.0.push(Block::Image(image));
        self
    }

    /// Returns the text without the images.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// assert_eq!(Prompt::from("Is this a duck?").text(), "Is this a duck?");
    /// ```
    pub fn text(&self) -> String {
        blocks_text(&self.0)
    }

    /// Returns the images, in order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.0.iter().filter_map(|block| match block {
            Block::Image(image) => Some(image),
            Block::Text(_) | _ => None,
        })
    }

    /// Changes the texts of the prompt, and keeps its images.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let prompt = Prompt::from("My card is 4242.").map_text(|text| text.replace("4242", "****"));
    /// assert_eq!(prompt.text(), "My card is ****.");
    /// ```
    pub fn map_text(mut self, mut change: impl FnMut(&str) -> String) -> Self {
        for block in &mut self.0 {
            if let Block::Text(text) = block {
                *text = change(text);
            }
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|block| matches!(block, Block::Text(text) if text.trim().is_empty()))
    }
}

/// The reply to a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Reply {
    /// The text of the last answer.
    pub text: String,
    /// Why the last answer ended. [`StopReason::Length`] and [`StopReason::ContentFilter`] mean that it is
    /// incomplete.
    pub stop: StopReason,
    /// The model that gave the last answer: the agent's own, or a [fallback](crate::Agent::fallback) after
    /// its failure.
    #[serde(default)]
    pub model: String,
    /// The run that gave the reply.
    pub run: RunId,
    /// The context's size after the run.
    pub context: ContextUsage,
    /// The usage of the run's model calls, without summaries.
    pub usage: Usage,
    /// The cost of the run in micro-dollars, as far as prices are known: its model calls, its summaries, and the agents
    /// that it called, with theirs.
    #[serde(default)]
    pub cost_microdollars: u64,
    /// Whether a part of that cost is estimated, because a server reported no usage, or too little for what was sent.
    #[serde(default)]
    pub is_cost_estimated: bool,
    /// The number of model calls.
    pub steps: u32,
    /// The compactions since the session's previous reply, oldest first: those of this run, and those between
    /// runs. At most the newest 32.
    #[serde(default)]
    pub compactions: Vec<Compacted>,
    /// The cost and savings of compactions during the run, and how long callers waited for them.
    #[serde(default)]
    pub compaction_bill: CompactionBill,
    /// See [`Self::tool_calls`].
    #[serde(default)]
    pub(crate) tool_calls: Vec<CallView>,
}

impl Reply {
    /// Returns the tool calls in the run's answers, in order, without those of its sub-agents.
    ///
    /// ```no_run
    /// # use greenroom::prelude::*;
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// let reply = session.prompt("Pay back order 7.").await?;
    /// let names: Vec<&str> = reply.tool_calls().iter().map(|call| call.name.as_str()).collect();
    /// assert_eq!(names, ["order", "refund"]);
    /// # Ok(()) }
    /// ```
    pub fn tool_calls(&self) -> &[CallView] {
        &self.tool_calls
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An answer of a given type, and the reply it was parsed from.
#[derive(Debug, Clone, PartialEq)]
pub struct Typed<T> {
    /// The parsed answer.
    pub value: T,
    /// The reply.
    pub reply: Reply,
}

/// A tool call, as events show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct CallView {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments, as JSON text.
    pub arguments: String,
}

impl From<&ToolCall> for CallView {
    fn from(call: &ToolCall) -> Self {
        Self { id: call.id.clone(), name: call.name.clone(), arguments: call.arguments.clone() }
    }
}

impl CallView {
    /// Parses the arguments as a value of a type, such as `serde_json::Value`.
    ///
    /// # Errors
    /// The arguments are not valid JSON, or do not fit the type.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.arguments)
    }
}

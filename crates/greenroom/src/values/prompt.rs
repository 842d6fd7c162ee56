//! What is said and what is answered: prompts, replies, and the calls that answers make.
//!
//! Invariants: a reply is told as it is, whoever reads it: nothing in it leads back to a session.

use std::fmt;

use greenroom_kernel::context_usage::ContextUsage;
use greenroom_kernel::entry::RunId;
use greenroom_kernel::message::{Block, Image, blocks_text};
use greenroom_kernel::{StopReason, ToolCall, Usage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::values::compaction::Compacted;

/// What a prompt says: text, or text with images.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt(pub(crate) Vec<Block>);

impl<T: Into<String>> From<T> for Prompt {
    fn from(text: T) -> Self {
        Self(vec![Block::Text(text.into())])
    }
}

impl Prompt {
    /// Adds an image after what is there.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// # fn main() -> std::result::Result<(), greenroom::ImageError> {
    /// # let bytes = b"GIF89a";
    /// let prompt = Prompt::from("What is this?").image(Image::new(bytes)?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn image(mut self, image: Image) -> Self {
        self.0.push(Block::Image(image));
        self
    }

    /// The text, without the images.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// assert_eq!(Prompt::from("Is this a duck?").text(), "Is this a duck?");
    /// ```
    pub fn text(&self) -> String {
        blocks_text(&self.0)
    }

    /// The images, in order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.0.iter().filter_map(|block| match block {
            Block::Image(image) => Some(image),
            Block::Text(_) | _ => None,
        })
    }

    /// The same prompt with other texts; its images stay.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let prompt = Prompt::from("My card is 4242.").map_text(|text| text.replace("4242", "****"));
    /// assert_eq!(prompt.text(), "My card is ****.");
    /// ```
    #[must_use]
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

/// The answer to a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Reply {
    /// The last answer's text.
    pub text: String,
    /// Why the last answer ended. [`StopReason::Length`] and [`StopReason::ContentFilter`]: it was cut off.
    pub stop: StopReason,
    /// The model that gave the last answer: a [fallback](crate::Agent::fallback) where the agent's own model failed.
    #[serde(default)]
    pub model: String,
    /// The run that gave it.
    pub run: RunId,
    /// The context's size after it.
    pub context: ContextUsage,
    /// What the run's model calls used, summaries apart.
    pub usage: Usage,
    /// How many model calls it took.
    pub steps: u32,
    /// The compactions that ended since the session's reply before this one, oldest first: those of this run, and those
    /// between runs. At most the newest 32.
    #[serde(default)]
    pub compactions: Vec<Compacted>,
    /// See [`Self::tool_calls`].
    #[serde(default)]
    pub(crate) tool_calls: Vec<CallView>,
}

impl Reply {
    /// The tool calls that the run's answers made, in order. (What its sub-agents called is theirs.)
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

/// An answer of a type, and the reply that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct Typed<T> {
    /// The answer.
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
    /// The arguments, JSON text.
    pub arguments: String,
}

impl From<&ToolCall> for CallView {
    fn from(call: &ToolCall) -> Self {
        Self { id: call.id.clone(), name: call.name.clone(), arguments: call.arguments.clone() }
    }
}

impl CallView {
    /// The arguments as a value of a type, `serde_json::Value` for one.
    ///
    /// # Errors
    /// The model wrote no JSON, or not that of the type.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.arguments)
    }
}

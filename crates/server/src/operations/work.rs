//! Operations that start work: runs, input for them, compactions.

use std::time::Duration;

use greenroom::{
    CompactOptions, Compacted, Error, Image, ModelSettings, Prompt, Reply, Run, RunRequest, SentInput, Status,
};
use greenroom_kernel::EntryId;
use greenroom_kernel::usage::ContextUsage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, CallScope, Ended, Operation, Performed, Refused, Route, Task, Verb, Work, begun};

/// The work was accepted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Accepted {
    /// True.
    pub accepted: bool,
    /// The entry of the input, when it is durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
}

/// The reply to a prompt.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PromptOutcome {
    /// The session.
    pub session_id: String,
    /// The prompt's entry.
    pub entry_id: EntryId,
    /// The reply.
    #[serde(flatten)]
    pub reply: Reply,
    /// The answer's value, if `output_schema` was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// Sends a prompt, which begins a run or waits for the one in progress.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptSession {
    /// The session, which is created if it does not exist.
    pub session_id: String,
    /// The text.
    pub text: String,
    /// The idempotency key: a repeated prompt gets the entry and the reply of the first one, or resumes it if it has no
    /// reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Images, which follow the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ImageData>,
    /// The model settings for this prompt.
    #[serde(default)]
    pub settings: ModelSettings,
    /// A JSON schema for the answer. An answer that does not match is sent back to the model with the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// The cost limit of the run in US dollars, if that is less than the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_limit_usd: Option<f64>,
    /// The time limit for the reply in seconds, waiting included. After it, the run is aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

/// An image in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageData {
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The bytes, base64 encoded.
    pub data: String,
}

impl From<&Image> for ImageData {
    fn from(image: &Image) -> Self {
        Self { media_type: image.media_type.clone(), data: image.data.clone() }
    }
}

impl PromptSession {
    /// A prompt of text only.
    pub fn new(session_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            text: text.into(),
            key: None,
            images: Vec::new(),
            settings: ModelSettings::default(),
            output_schema: None,
            cost_limit_usd: None,
            timeout_s: None,
        }
    }
}

/// The content: a text, and the images that follow it.
fn prompt(text: String, images: &[ImageData]) -> Result<Prompt, Refused> {
    let mut prompt = Prompt::from(text);
    for (number, image) in images.iter().enumerate() {
        let image = Image::from_base64(&image.media_type, &image.data)
            .map_err(|error| Refused::Parameters(format!("images[{number}]: {error}")))?;
        prompt = prompt.image(image);
    }
    Ok(prompt)
}

impl Operation for PromptSession {
    of_session!(
        "session/prompt",
        Create,
        Route::prompt(Verb::Post, "/sessions/{session_id}/prompt"),
        Accepted,
        PromptOutcome
    );
    const TAKES_KEY: bool = true;
    const IS_INPUT: bool = true;
    const OUTCOME: &'static str = "session/prompt_result";

    fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn check(&self) -> Result<(), Refused> {
        let _ = prompt(String::new(), &self.images)?;
        Ok(self.settings.check().map_err(Error::from)?)
    }

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        self.check()?;
        let Self { session_id, text, key, images, settings, output_schema, cost_limit_usd, timeout_s } = self;
        let prompt = prompt(text, &images)?;
        let mut request = scope.session()?.prompt(prompt).settings(settings);
        if let Some(key) = key {
            request = request.once(key);
        }
        if let Some(usd) = cost_limit_usd {
            request = request.cost_limit_usd(usd);
        }
        if let Some(seconds) = timeout_s {
            request = request.timeout(Duration::from_secs(seconds));
        }
        run(session_id, request, output_schema).await
    }
}

/// Resumes the newest prompt, which has no complete answer.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeSession {
    /// The session.
    pub session_id: String,
    /// The model settings for the answer.
    #[serde(default)]
    pub settings: ModelSettings,
    /// A JSON schema for the answer, as in `session/prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

impl Operation for ResumeSession {
    of_session!(
        "session/resume",
        Open,
        Route::prompt(Verb::Post, "/sessions/{session_id}/resume"),
        Accepted,
        PromptOutcome
    );
    const OUTCOME: &'static str = "session/prompt_result";

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        self.settings.check().map_err(Error::from)?;
        let request = scope.session()?.resume().settings(self.settings);
        run(self.session_id, request, self.output_schema).await
    }
}

/// Hands a request over, in its order. It is accepted when it is durable.
async fn run(
    session_id: String,
    request: RunRequest,
    output_schema: Option<Value>,
) -> Result<Answer<Accepted, PromptOutcome>, Refused> {
    Ok(match output_schema {
        None => work(session_id, request.start().await?, |reply| (reply, None)),
        Some(schema) => work(session_id, request.output_schema(schema).start().await?, |typed| {
            (typed.reply, Some(typed.value))
        }),
    })
}

fn work<R: Send + 'static>(
    session_id: String,
    mut run: Run<R>,
    ended: impl FnOnce(R) -> (Reply, Option<Value>) + Send + 'static,
) -> Answer<Accepted, PromptOutcome> {
    let abort = run.abort_handle();
    let (tell, told) = tokio::sync::oneshot::channel();
    let accepted = Box::pin(async move {
        let entry = run.recorded().await?;
        let _ = tell.send((run, entry));
        Ok(Accepted { accepted: true, entry_id: Some(entry) })
    });
    let outcome: Task<Ended<PromptOutcome>> = Box::pin(async move {
        let result = match told.await {
            Ok((run, entry_id)) => run.reply().await.map(|reply| {
                let (reply, value) = ended(reply);
                PromptOutcome { session_id, entry_id, reply, value }
            }),
            Err(_) => Err(Error::Interrupted { session: session_id }),
        };
        Ended { result, compaction: None }
    });
    Answer::Work(Work { accepted, outcome, abort: Some(abort) })
}

/// Accepted input.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    /// The input's entry.
    pub entry_id: EntryId,
    /// Whether it waits for the end of the run in progress, which is another agent's, and then begins a run of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

impl Sent {
    fn of(input: &SentInput) -> Self {
        Self { entry_id: input.entry(), waits: input.waits() }
    }
}

/// Declares an operation that sends input.
macro_rules! send_input {
    ($(#[$doc:meta])* $name:ident, $method:literal, $path:literal, $send:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The session.
            pub session_id: String,
            /// The text.
            pub text: String,
            /// Images, which follow the text.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub images: Vec<ImageData>,
        }

        impl $name {
            /// A text only.
            pub fn new(session_id: impl Into<String>, text: impl Into<String>) -> Self {
                Self { session_id: session_id.into(), text: text.into(), images: Vec::new() }
            }
        }

        impl Operation for $name {
            of_session!($method, Open, Route::prompt(Verb::Post, $path), Sent);
            const TAKES_TIME: bool = true;

            async fn perform(self, scope: CallScope) -> Performed<Self> {
                let prompt = prompt(self.text, &self.images)?;
                Ok(Answer::Now(Sent::of(&scope.session()?.$send(prompt).await?)))
            }
        }
    };
}

send_input! {
    /// Sends input into the run in progress; if there is none, begins one.
    Steer, "session/steer", "/sessions/{session_id}/steer", steer
}

send_input! {
    /// Sends input that is delivered after the run in progress, which then continues with it; if there is none, begins one.
    FollowUp, "session/follow_up", "/sessions/{session_id}/follow_up", follow_up
}

/// Replaces the older part of the conversation, in the model's view, by a summary.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactSession {
    /// The session.
    pub session_id: String,
    /// How much to keep, in tokens; by default the settings' value, or a quarter of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_recent: Option<u64>,
    /// A topic for the summary to focus on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub focus: Option<String>,
    /// Compact even if everything is recent enough to keep: all but the last two messages.
    #[serde(default)]
    pub force: bool,
}

/// The outcome of a compaction.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CompactOutcome {
    /// The session.
    pub session_id: String,
    /// Whether the context changed.
    pub installed: bool,
    /// As in the event `compaction_end`.
    pub compacted: Compacted,
}

impl Operation for CompactSession {
    of_session!(
        "session/compact",
        Open,
        Route::prompt(Verb::Post, "/sessions/{session_id}/compact"),
        Accepted,
        CompactOutcome
    );
    const OUTCOME: &'static str = "session/compact_result";

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let Self { session_id, keep_recent, focus, force } = self;
        let session = scope.session()?.clone();
        if session.state().await?.status != Status::Idle {
            return Err(Error::NotIdle { session: session_id, what: "compact it" }.into());
        }
        let options = CompactOptions { focus, keep_recent, force };
        let compacting = begun(async move { session.compact(options).await }).await;
        let outcome: Task<Ended<CompactOutcome>> = Box::pin(async move {
            let ended = compacting.await;
            let compaction = ended.as_ref().ok().and_then(|compacted| compacted.started);
            let result = ended.map(|compacted| CompactOutcome {
                session_id,
                installed: compacted.is_installed(),
                compacted,
            });
            Ended { result, compaction }
        });
        let accepted = Box::pin(std::future::ready(Ok(Accepted { accepted: true, entry_id: None })));
        Ok(Answer::Work(Work { accepted, outcome, abort: None }))
    }
}

/// Plans a compaction, and performs nothing.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSession {
    /// The session.
    pub session_id: String,
    /// How much to keep, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_recent: Option<u64>,
}

/// A plan, or why there is none.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    /// The first entry that stays verbatim; none if there is nothing to compact.
    pub first_kept: Option<EntryId>,
    /// Whether the cut lies inside a turn.
    pub is_split_turn: bool,
    /// The number of messages that would be replaced.
    pub messages_removed: u64,
    /// The context size before, in tokens.
    pub tokens_before: u64,
    /// The expected context size after, in tokens, if the summary has a tenth of the size of what it replaces.
    pub tokens_after_estimate: u64,
    /// The largest context size after, in tokens: with a summary as long as its limit allows.
    pub tokens_after_max: u64,
    /// Why there is nothing to compact.
    pub reason: Option<String>,
}

impl Operation for PlanSession {
    of_session!("session/plan", Open, Route::prompt(Verb::Post, "/sessions/{session_id}/plan"), Planned);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.session()?;
        let options = CompactOptions { keep_recent: self.keep_recent, ..CompactOptions::default() };
        let planned = session.plan(options).await;
        // That there is nothing to compact is an answer here, and not an error.
        let planned = planned.and_then(|plan| match plan.check_gain() {
            Ok(()) => Ok(plan),
            Err(nothing) => Err(Error::NothingToCompact(nothing)),
        });
        Ok(Answer::Now(match planned {
            Ok(plan) => Planned {
                first_kept: Some(plan.first_kept),
                is_split_turn: plan.is_split_turn,
                messages_removed: plan.messages_removed(),
                tokens_before: plan.tokens_before,
                tokens_after_estimate: plan.tokens_after_estimate(),
                tokens_after_max: plan.tokens_after_max(),
                reason: None,
            },
            Err(Error::NothingToCompact(reason)) => {
                let tokens = session.state().await?.context.tokens;
                Planned {
                    first_kept: None,
                    is_split_turn: false,
                    messages_removed: 0,
                    tokens_before: tokens,
                    tokens_after_estimate: tokens,
                    tokens_after_max: tokens,
                    reason: Some(reason.to_string()),
                }
            }
            Err(error) => return Err(error.into()),
        }))
    }
}

/// Undoes the newest compaction, or several at once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoCompaction {
    /// The session.
    pub session_id: String,
    /// The entry that a compaction installed: all compactions from the newest back to that one are undone. By default
    /// only the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_to: Option<EntryId>,
}

/// The context after the undo.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Undone {
    /// The size of the context.
    pub context: ContextUsage,
}

impl Operation for UndoCompaction {
    of_session!(
        "session/undo_compaction",
        Open,
        Route::prompt(Verb::Post, "/sessions/{session_id}/undo_compaction"),
        Undone
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.session()?;
        let context = match self.back_to {
            None => session.undo_compaction().await?,
            Some(entry) => session.undo_compactions_to(entry).await?,
        };
        Ok(Answer::Now(Undone { context }))
    }
}

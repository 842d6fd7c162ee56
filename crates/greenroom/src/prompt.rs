//! A prompt as programs say it: what it says, how it is to be answered, and its reply.
//!
//! Invariants: nothing is sent before a request is awaited or streamed; dropping what is awaited cancels the run, or
//! takes the prompt out of the inbox.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::context_usage::ContextUsage;
use greenroom_kernel::entry::{EntryId, RunId};
use greenroom_kernel::message::{Block, Image, blocks_text};
use greenroom_kernel::{StopReason, Usage};
use greenroom_provider::{ModelSettings, OutputSchema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use crate::compaction::Compacted;
use crate::error::{Error, Result};
use crate::hooks::input::InputKind;
use crate::message::{PromptOptions, SessionMessage};
use crate::run_stream::RunStream;
use crate::session::SessionHandle;
use crate::spending::microdollars;
use crate::validate::{ProposedAnswer, Rejection, Validators};
use crate::waits::{self, Chain};

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
            Block::Text(_) => None,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|block| matches!(block, Block::Text(text) if text.trim().is_empty()))
    }
}

/// The answer to a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The last answer's text.
    pub text: String,
    /// Why the last answer ended. [`StopReason::Length`] and [`StopReason::ContentFilter`]: it was cut off.
    pub stop: StopReason,
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

/// That a request is answered by a [`Reply`].
#[derive(Debug, Clone, Copy)]
pub struct AsText;

/// That a request is answered by a [`Typed`].
#[derive(Debug)]
pub struct AsType<T>(PhantomData<fn() -> T>);

/// A prompt that is to be said, or a run that is to be resumed. Await it, or [`stream`](Self::stream) it.
///
/// ```no_run
/// # use std::time::Duration;
/// # use greenroom::prelude::*;
/// # #[derive(Deserialize, JsonSchema)] struct City { name: String }
/// # async fn example(session: SessionHandle) -> Result<()> {
/// let reply = session.prompt("Which city has the most rain?").await?;
/// let typed = session
///     .prompt("The same as data.")
///     .once("question-7")
///     .output::<City>()
///     .settings(ModelSettings::new().temperature(0.0))
///     .timeout(Duration::from_secs(60))
///     .await?;
/// println!("{reply}: {} ({} steps)", typed.value.name, typed.reply.steps);
/// # Ok(()) }
/// ```
#[must_use = "nothing is said before it is awaited or streamed"]
pub struct RunRequest<O = AsText> {
    session: SessionHandle,
    /// What is said; `None`: the newest prompt is resumed.
    prompt: Option<Prompt>,
    key: Option<String>,
    settings: ModelSettings,
    timeout: Option<Duration>,
    cost_limit_usd: Option<f64>,
    schema: Option<Arc<OutputSchema>>,
    validators: Validators,
    /// Aborts the run.
    cancel: CancellationToken,
    output: PhantomData<fn() -> O>,
}

impl<O> fmt::Debug for RunRequest<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRequest")
            .field("session", &self.session)
            .field("prompt", &self.prompt)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl<O> RunRequest<O> {
    pub(crate) fn new(session: SessionHandle, prompt: Option<Prompt>) -> Self {
        Self {
            session,
            prompt,
            key: None,
            settings: ModelSettings::default(),
            timeout: None,
            cost_limit_usd: None,
            schema: None,
            validators: Validators::default(),
            cancel: CancellationToken::new(),
            output: PhantomData,
        }
    }

    /// Says it once: a second prompt with the same key changes nothing, and gives the first one's reply again, for which
    /// it waits if need be; or [`Error::DuplicateKey`] where the first one ended without a reply.
    pub fn once(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// How the model is to answer this one: what is set here wins over the agent's settings.
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.settings = self.settings.merged(settings);
        self
    }

    /// Judges each answer to this prompt before it counts, as [`Agent::validate`](crate::Agent::validate) does, and after
    /// the agent's own validators.
    pub fn validate<F, Fut, E>(mut self, judge: F) -> Self
    where
        F: Fn(ProposedAnswer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Rejection>,
    {
        self.validators.push(judge);
        self
    }

    /// How long the reply may take, waiting included. After that the run is aborted, with what had come, and
    /// [`Error::TimedOut`] is the result.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The most that the run may cost, in US dollars, where that is less than the agent allows: see
    /// [`Agent::run_cost_limit_usd`](crate::Agent::run_cost_limit_usd).
    pub fn cost_limit_usd(mut self, usd: f64) -> Self {
        self.cost_limit_usd = Some(usd);
        self
    }

    /// Aborts the run when `cancel` fires, and this ends as aborted with it.
    pub(crate) fn until(mut self, cancel: CancellationToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sends it, and waits for its reply. `own_run` is told which run it became, before the first event of that run is
    /// published.
    pub(crate) async fn send(self, own_run: Arc<OnceLock<RunId>>) -> Result<Reply> {
        waits::check(self.session.id())?;
        self.hand_over(own_run, Arc::default()).await?.await
    }

    /// Puts it into the session's mailbox, and gives what waits for the reply. `recorded` is set when it is durable.
    async fn hand_over(
        self,
        own_run: Arc<OnceLock<RunId>>,
        recorded: Arc<SetOnce<EntryId>>,
    ) -> Result<BoxFuture<'static, Result<Reply>>> {
        let Self {
            session, prompt, key, settings, timeout, cost_limit_usd, schema, validators, cancel, ..
        } = self;
        if prompt.as_ref().is_some_and(Prompt::is_empty) {
            return Err(Error::EmptyPrompt);
        }
        settings.check()?;
        let cost_limit = cost_limit_usd.map(microdollars).transpose()?;
        // What is submitted one after the other is judged and said in that order.
        let prompt = match prompt {
            Some(prompt) => Some(session.judge(InputKind::Prompt, prompt).await?),
            None => None,
        };
        let options = PromptOptions {
            ticket: session.deps.ticket(),
            key,
            schema,
            validators,
            settings,
            cost_limit,
            own_run: Arc::clone(&own_run),
            recorded,
            cancel: cancel.clone(),
            waiting: Chain::current(),
        };
        let mut guard = WithdrawOnDrop { handle: Some(session.clone()), ticket: options.ticket };
        let mut timer = timeout.map(|timeout| (timeout, Box::pin(tokio::time::sleep(timeout))));
        let request = session.request(move |reply| match prompt {
            Some(prompt) => SessionMessage::Prompt { content: prompt.0, options, reply },
            None => SessionMessage::Resume { options, reply },
        });
        let answer = match &mut timer {
            None => request.await,
            Some((timeout, timer)) => tokio::select! {
                biased;
                answer = request => answer,
                () = timer => Err(Error::TimedOut { timeout: *timeout }),
            },
        };
        let answer = answer.inspect_err(|_| guard.disarm())?;
        let reply = async move {
            // Whoever waits for it may be another than who handed it over.
            waits::check(session.id())?;
            let reply = session.answered(answer);
            let reply = match timer {
                None => reply.await,
                Some((timeout, timer)) => {
                    tokio::pin!(reply);
                    tokio::select! {
                        biased;
                        reply = &mut reply => reply,
                        () = timer => {
                            if own_run.get().is_none() {
                                // It still waits: it is withdrawn.
                                return Err(Error::TimedOut { timeout });
                            }
                            cancel.cancel();
                            match reply.await {
                                Err(Error::Aborted) => Err(Error::TimedOut { timeout }),
                                ended => ended,
                            }
                        }
                    }
                }
            };
            guard.disarm();
            reply
        };
        Ok(reply.boxed())
    }
}

impl RunRequest<AsText> {
    /// Asks for an answer of a type: the model is given the type's schema, and the answer is read into it. One that
    /// cannot be read is sent back with the reason, as by [`Self::validate`]. Awaits to a [`Typed`];
    /// [`Error::Output`] when no answer had that form.
    pub fn output<T: DeserializeOwned + schemars::JsonSchema>(self) -> RunRequest<AsType<T>> {
        let schema = OutputSchema { name: type_name::<T>(), schema: greenroom_tools::schema_of::<T>() };
        let mut validators = self.validators;
        validators.push(|answer| async move {
            let read: serde_json::Result<T> = serde_json::from_str(json_text(&answer.text));
            read.map(drop)
                .map_err(|error| format!("it is not the {} that was asked for: {error}", type_name::<T>()))
        });
        RunRequest {
            session: self.session,
            prompt: self.prompt,
            key: self.key,
            settings: self.settings,
            timeout: self.timeout,
            cost_limit_usd: self.cost_limit_usd,
            schema: Some(Arc::new(schema)),
            validators,
            cancel: self.cancel,
            output: PhantomData,
        }
    }

    /// Hands it to the session without waiting for the reply: [`Submitted::recorded`] says when it is durable, and
    /// [`Submitted::reply`] gives the reply. What one caller submits to a session is said in that order.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::Busy`] when too many requests wait already, [`Error::Config`] with settings that
    /// no model takes, [`Error::Store`] when a session that slept cannot be read.
    pub async fn submit(self) -> Result<Submitted> {
        let recorded = Arc::default();
        let reply = self.hand_over(Arc::default(), Arc::clone(&recorded)).await?;
        Ok(Submitted { recorded, reply: Waiting::Reply(reply) })
    }

    /// The run as it happens: its events, its text, and then its reply. Nothing is said before the stream is polled.
    pub fn stream(self) -> RunStream {
        let session = self.session.clone();
        RunStream::new(&session, false, |own_run| self.send(own_run).boxed())
    }
}

impl<T: DeserializeOwned + 'static> RunRequest<AsType<T>> {
    /// As the stream of an untyped request, with the answer's value as far as it has come.
    pub fn stream(self) -> RunStream<Typed<T>> {
        let session = self.session.clone();
        RunStream::new(&session, true, |own_run| async move { read_output(self.send(own_run).await) }.boxed())
    }
}

impl IntoFuture for RunRequest<AsText> {
    type Output = Result<Reply>;
    type IntoFuture = BoxFuture<'static, Result<Reply>>;

    fn into_future(self) -> Self::IntoFuture {
        self.send(Arc::default()).boxed()
    }
}

impl<T: DeserializeOwned + 'static> IntoFuture for RunRequest<AsType<T>> {
    type Output = Result<Typed<T>>;
    type IntoFuture = BoxFuture<'static, Result<Typed<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        async move { read_output(self.send(Arc::default()).await) }.boxed()
    }
}

/// A prompt that was handed to its session. Dropping it cancels the run, or takes the prompt out of the inbox.
#[must_use = "dropping it cancels the run"]
pub struct Submitted {
    recorded: Arc<SetOnce<EntryId>>,
    reply: Waiting,
}

enum Waiting {
    Reply(BoxFuture<'static, Result<Reply>>),
    Over(Result<Reply>),
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitted").field("recorded", &self.recorded.get()).finish_non_exhaustive()
    }
}

impl Submitted {
    /// Waits until the prompt is durable: from then on no crash loses it, whether its run has begun or it waits in the
    /// inbox. Gives its entry: its message, or its place in the inbox. A prompt that repeats an idempotency key gives
    /// the first one's.
    ///
    /// # Errors
    /// Those of the reply, where the prompt was refused: then nothing of it is kept.
    pub async fn recorded(&mut self) -> Result<EntryId> {
        let ended = match &mut self.reply {
            Waiting::Over(ended) => ended.clone(),
            Waiting::Reply(reply) => {
                let ended = tokio::select! {
                    biased;
                    entry = self.recorded.wait() => return Ok(*entry),
                    ended = reply => ended,
                };
                self.reply = Waiting::Over(ended.clone());
                ended
            }
        };
        match self.recorded.get() {
            Some(entry) => Ok(*entry),
            // One that was said before has the run of its first.
            None => ended.map(|reply| reply.run),
        }
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// As the request, awaited.
    pub async fn reply(self) -> Result<Reply> {
        match self.reply {
            Waiting::Reply(reply) => reply.await,
            Waiting::Over(ended) => ended,
        }
    }
}

/// Cancels a prompt whose caller went away.
struct WithdrawOnDrop {
    handle: Option<SessionHandle>,
    ticket: u64,
}

impl WithdrawOnDrop {
    /// Nothing is left to cancel.
    fn disarm(&mut self) {
        self.handle = None;
    }
}

impl Drop for WithdrawOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.withdraw(self.ticket);
        }
    }
}

fn type_name<T>() -> String {
    let full = std::any::type_name::<T>();
    let short: String = full
        .rsplit("::")
        .next()
        .unwrap_or(full)
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect();
    if short.is_empty() { "answer".to_owned() } else { short }
}

/// The JSON in an answer. Models that know no schemas like to put it into a fence.
pub(crate) fn json_text(text: &str) -> &str {
    let trimmed = text.trim();
    let Some(fenced) = trimmed.strip_prefix("```") else { return trimmed };
    let inner = fenced.strip_prefix("json").unwrap_or(fenced);
    inner.strip_suffix("```").unwrap_or(inner).trim()
}

fn read_output<T: DeserializeOwned>(ended: Result<Reply>) -> Result<Typed<T>> {
    let unreadable = |text: String, reason: String| Error::Output { wanted: type_name::<T>(), reason, text };
    let read = |text: &str| serde_json::from_str::<T>(json_text(text));
    match ended {
        Ok(reply) => match read(&reply.text) {
            Ok(value) => Ok(Typed { value, reply }),
            Err(error) => Err(unreadable(reply.text, error.to_string())),
        },
        // The last of several that could not be read; another validator's reason stays as it is.
        Err(Error::Rejected { text, reason }) => match read(&text) {
            Ok(_) => Err(Error::Rejected { text, reason }),
            Err(error) => Err(unreadable(text, error.to_string())),
        },
        Err(error) => Err(error),
    }
}

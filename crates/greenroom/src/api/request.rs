//! A prompt of a program: its content, its options, and its reply.
//!
//! Invariants: nothing is sent before a request is awaited, started or streamed; dropping the future cancels
//! the run, or withdraws the prompt from the inbox.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::entry::{EntryId, RunId};
use greenroom_provider::ModelSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use crate::agent::output::{self, OutputForm};
use crate::agent::validate::{ProposedAnswer, Rejection, Validators};
use crate::api::children::Child;
use crate::api::run_stream::RunStream;
use crate::api::session::SessionHandle;
use crate::core::handover::Handover;
use crate::core::message::{PromptOptions, QueuedInput};
use crate::core::trace::CalledFrom;
use crate::events::run_link::RunLink;
use crate::limits::spending::microdollars;
use crate::limits::waits::Chain;
use crate::values::error::{Error, Result};
use crate::values::prompt::{Prompt, Reply, Typed};

/// Marks a request whose result is a [`Reply`].
#[derive(Debug, Clone, Copy)]
pub struct AsText;

/// Marks a request whose result is a [`Typed`].
#[derive(Debug)]
pub struct AsType<T>(PhantomData<fn() -> T>);

/// A prompt to send, or a run to resume. Await it, [`start`](Self::start) it, or [`stream`](Self::stream) it.
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
#[must_use = "nothing is said before it is awaited, started or streamed"]
pub struct RunRequest<O = AsText> {
    request: Box<Request>,
    output: PhantomData<fn() -> O>,
}

/// A request, independent of the type of its result.
struct Request {
    session: SessionHandle,
    /// Distinguishes this request from others.
    ticket: u64,
    /// The prompt; `None` resumes the newest one.
    prompt: Option<Prompt>,
    key: Option<String>,
    settings: ModelSettings,
    timeout: Option<Duration>,
    cost_limit_usd: Option<f64>,
    /// The required form of the answer, if there is one, or the error in it.
    form: Option<Result<OutputForm>>,
    validators: Validators,
    /// The agent's validators for this request.
    validated_by: Vec<String>,
    /// Aborts the run.
    cancel: CancellationToken,
    /// The caller's own trace.
    from: CalledFrom,
}

impl<O> fmt::Debug for RunRequest<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRequest")
            .field("session", &self.request.session)
            .field("prompt", &self.request.prompt)
            .field("key", &self.request.key)
            .finish_non_exhaustive()
    }
}

impl<O> RunRequest<O> {
    pub(crate) fn new(session: SessionHandle, prompt: Option<Prompt>) -> Self {
        let ticket = session.door.deps.ticket();
        let request = Request {
            session,
            ticket,
            prompt,
            key: None,
            settings: ModelSettings::default(),
            timeout: None,
            cost_limit_usd: None,
            form: None,
            validators: Validators::default(),
            validated_by: Vec::new(),
            cancel: CancellationToken::new(),
            from: CalledFrom::current(),
        };
        Self { request: Box::new(request), output: PhantomData }
    }

    /// Makes the request idempotent: a second prompt with the same key returns the first one's reply again,
    /// after waiting for it if necessary. The recorded text of the first prompt is used, and guards are not
    /// called again.
    ///
    /// Only a reply uses up a key. If the first prompt has no reply, because its run was interrupted,
    /// aborted, stopped or failed, or because it was withdrawn, the second one continues it: after the tool
    /// calls that were already made, and with the options of the first where this request sets none. If the
    /// conversation has continued without it, or the reply does not have the form that is required now
    /// ([`Self::output`]), the prompt is sent again.
    ///
    /// A prompt that repeats one in progress joins it, and its caller counts from [`Self::start`] on. A caller that is
    /// dropped or out of time leaves, and the work ends early only with its last caller. [`Run::abort`] ends the work
    /// for all if this caller holds it: the first one, or the one to whom it passed. A joined caller's abort ends its
    /// own wait alone.
    pub fn once(mut self, key: impl Into<String>) -> Self {
        self.request.key = Some(key.into());
        self
    }

    /// Sets model settings for this request: they take precedence over the agent's settings.
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.request.settings = self.request.settings.merged(settings);
        self
    }

    /// Adds a validator for the answers to this prompt, as [`Agent::validate`](crate::Agent::validate) does.
    /// It is called after the agent's own validators.
    pub fn validate<F, Fut, E>(mut self, judge: F) -> Self
    where
        F: Fn(ProposedAnswer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Rejection>,
    {
        self.request.validators.push(judge);
        self
    }

    /// Adds one of the agent's named validators for the answers to this prompt: see
    /// [`Agent::validator`](crate::Agent::validator). Unlike a function passed to [`Self::validate`], the
    /// name is recorded with the prompt and applies after a restart too. If the agent has no validator with
    /// this name, the request fails with [`ConfigError::UnknownValidator`](crate::ConfigError).
    pub fn validated_by(mut self, name: impl Into<String>) -> Self {
        self.request.validated_by.push(name.into());
        self
    }

    /// Sets how long the reply may take, including the wait in the inbox. After this time, also if nobody polls the
    /// [`Run`] or the [`RunStream`], the run is aborted, its partial output is kept, and the result is
    /// [`Error::TimedOut`]. The run continues if other callers wait for it by its key ([`Self::once`]).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(timeout);
        self
    }

    /// Sets the cost limit of the run, in US dollars, if it is lower than the agent's limit: see
    /// [`Agent::run_cost_limit_usd`](crate::Agent::run_cost_limit_usd).
    pub fn cost_limit_usd(mut self, usd: f64) -> Self {
        self.request.cost_limit_usd = Some(usd);
        self
    }

    /// Returns a handle that aborts this request alone: before it is sent, while it waits, and during its
    /// run.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle {
            session: self.request.session.clone(),
            ticket: self.request.ticket,
            cancel: self.request.cancel.clone(),
        }
    }

    async fn begin<R>(
        self,
        wrapped: Option<bool>,
        read: impl FnOnce(BoxFuture<'static, Result<Reply>>) -> BoxFuture<'static, Result<R>>,
    ) -> Result<Run<R>> {
        let (session, abort) = (self.request.session.clone(), self.abort_handle());
        let (link, recorded) = (Arc::default(), Arc::default());
        let reply = Box::pin(self.hand_over(Arc::clone(&link), Arc::clone(&recorded))).await?;
        Ok(Run { session, abort, link, recorded, wrapped, reply: Awaited::Reply(read(reply)) })
    }

    /// Sends the request, and waits for its reply. `link` learns which run it became before the run's first
    /// event is published.
    pub(crate) async fn send(self, link: Arc<RunLink>) -> Result<Reply> {
        let _waiting = self.request.session.door.begin_wait()?;
        Box::pin(self.hand_over(link, Arc::default())).await?.await
    }

    /// Puts the request into the session's mailbox, and returns the future of its reply. `recorded` is
    /// notified when the prompt is durable. Callers box this future, so that waiting for a reply does not hold the
    /// memory of sending it.
    async fn hand_over(
        self,
        link: Arc<RunLink>,
        recorded: Arc<SetOnce<EntryId>>,
    ) -> Result<BoxFuture<'static, Result<Reply>>> {
        self.handover(link, recorded)?.send().await
    }

    /// Returns the request in the form in which it is sent.
    fn handover(self, link: Arc<RunLink>, recorded: Arc<SetOnce<EntryId>>) -> Result<Handover> {
        let Request {
            session,
            ticket,
            prompt,
            key,
            settings,
            timeout,
            cost_limit_usd,
            form,
            validators,
            validated_by,
            cancel,
            from,
        } = *self.request;
        if prompt.as_ref().is_some_and(Prompt::is_empty) {
            return Err(Error::EmptyPrompt);
        }
        if key.as_ref().is_some_and(|key| key.trim().is_empty()) {
            return Err(Error::EmptyKey);
        }
        settings.check()?;
        let form = form.transpose()?;
        let cost_limit = cost_limit_usd.map(microdollars).transpose()?;
        let options = Box::new(PromptOptions {
            ticket,
            agent: session.door.agent.clone(),
            key,
            form,
            validators,
            validated_by,
            settings,
            cost_limit,
            timeout,
            time_limit: None,
            is_left: false,
            again: None,
            link,
            recorded,
            cancel,
            waiting: Chain::current(),
            early_aborts: 0,
            from,
        });
        Ok(Handover { door: session.door, prompt, options })
    }
}

impl RunRequest<AsText> {
    /// Requires an answer of a type, for example a struct, an enum, a list or a number. The model gets the
    /// type's schema, and the answer is parsed into the type. Servers that support it are asked to enforce
    /// the schema. An invalid answer is sent back with the reason, as by [`Self::validate`]. The result is a
    /// [`Typed`]; [`Error::Output`] if no answer had this form.
    pub fn output<T: DeserializeOwned + schemars::JsonSchema>(self) -> RunRequest<AsType<T>> {
        self.with_form(&OutputForm::of::<T>()).typed()
    }

    /// Requires an answer that satisfies a JSON schema that is known only at run time: draft 2020-12, unless
    /// its `$schema` names another one. Otherwise like [`Self::output`]; the value is JSON. Sending the
    /// request fails with [`ConfigError::OutputSchema`](crate::ConfigError::OutputSchema) if the schema is
    /// invalid, or refers to anything outside it.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom::serde_json::json;
    /// # use greenroom_simulator::{Answer, ScriptedModel};
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = ScriptedModel::new([Answer::text(r#"{"name": "Bergen", "rain_mm": 2250}"#)]);
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// # let session = runtime.open("umbrella", &Agent::new("gpt-5.5")).await?;
    /// let schema = json!({
    ///     "type": "object",
    ///     "properties": { "name": { "type": "string" }, "rain_mm": { "type": "integer", "minimum": 0 } },
    ///     "required": ["name", "rain_mm"],
    /// });
    /// let city = session.prompt("Which city has the most rain?").output_schema(schema).await?;
    /// println!("{}: {} mm", city.value["name"], city.value["rain_mm"]);
    /// # assert_eq!(city.value["name"], "Bergen");
    /// # Ok(()) }
    /// ```
    pub fn output_schema(mut self, schema: impl Into<Value>) -> RunRequest<AsType<Value>> {
        match OutputForm::of_schema(&schema.into()) {
            Ok(form) => self = self.with_form(&form),
            Err(error) => self.request.form = Some(Err(error.into())),
        }
        self.typed()
    }

    fn typed<T>(self) -> RunRequest<AsType<T>> {
        RunRequest { request: self.request, output: PhantomData }
    }

    /// Requires an answer of this form; the result remains text.
    pub(crate) fn with_form(mut self, form: &OutputForm) -> Self {
        self.request.form = Some(Ok(form.clone()));
        self
    }

    /// Submits the request to the session without waiting for the reply. The [`Run`] reports when the prompt is
    /// durable, aborts it, streams it and returns the reply. The prompts that one caller starts in a session
    /// are handled in the order of their starts.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::EmptyKey`]; [`Error::InputRefused`] by the agent's guards; [`Error::Busy`] if too many
    /// requests wait in the session, and [`Error::RuntimeBusy`] in all sessions together; [`Error::Config`]
    /// for invalid settings, limits or schemas; [`Error::TimedOut`] if the time limit passed before the
    /// request was handed over; [`Error::Store`] if a sleeping session cannot be read;
    /// [`Error::SessionFailed`] if it cannot be started; [`Error::Interrupted`]; [`Error::Deleted`];
    /// [`Error::NoAgent`]; [`Error::Closed`]. The reply reports all other errors.
    pub async fn start(self) -> Result<Run> {
        self.begin(None, |reply| reply).await
    }

    /// Streams the run: its events, its text, and then its reply. Nothing is sent before the stream is
    /// polled.
    pub fn stream(self) -> RunStream {
        let (session, abort) = (self.request.session.clone(), self.abort_handle());
        RunStream::new(&session, None, abort, |link| self.send(link).boxed())
    }
}

impl<T: DeserializeOwned + 'static> RunRequest<AsType<T>> {
    /// Like [`RunRequest::start`] of an untyped request.
    ///
    /// # Errors
    /// Those of the untyped request.
    pub async fn start(self) -> Result<Run<Typed<T>>> {
        let form = self.typed_form()?;
        let is_wrapped = form.is_wrapped;
        let read = move |reply: BoxFuture<'static, Result<Reply>>| {
            async move { read_output(reply.await, &form) }.boxed()
        };
        self.begin(Some(is_wrapped), read).await
    }

    /// Like the stream of an untyped request, with the partial value of the answer.
    pub fn stream(self) -> RunStream<Typed<T>> {
        let (session, abort, form) = (self.request.session.clone(), self.abort_handle(), self.typed_form());
        let is_wrapped = form.as_ref().is_ok_and(|form| form.is_wrapped);
        let send = |link| async move { read_output(self.send(link).await, &form?) }.boxed();
        RunStream::new(&session, Some(is_wrapped), abort, send)
    }

    fn typed_form(&self) -> Result<OutputForm> {
        self.request.form.clone().expect("a typed request has a form")
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
        let form = self.typed_form();
        async move { read_output(self.send(Arc::default()).await, &form?) }.boxed()
    }
}

/// A submitted prompt and its run. Dropping it cancels the run, or withdraws the prompt
/// from the inbox, unless others wait for it by its key; [`Self::detach`] lets it continue.
///
/// ```
/// # use greenroom::prelude::*;
/// # use greenroom_simulator::Simulator;
/// # #[tokio::main] async fn main() -> Result<()> {
/// # let model = Simulator::echo();
/// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// # let session = runtime.open("umbrella", &Agent::new("gpt-5.5")).await?;
/// let mut run = session.prompt("Which city has the most rain?").start().await?;
/// let stop = run.abort_handle();                   // may go to another task: stop.abort()
/// println!("it is durable as entry {}", run.recorded().await?);
/// println!("{}", run.reply().await?);
/// # drop(stop);
/// # Ok(()) }
/// ```
#[must_use = "dropping it cancels the run"]
pub struct Run<R = Reply> {
    session: SessionHandle,
    abort: AbortHandle,
    link: Arc<RunLink>,
    recorded: Arc<SetOnce<EntryId>>,
    /// For a typed answer: whether its schema wraps the value in an object.
    wrapped: Option<bool>,
    reply: Awaited<R>,
}

enum Awaited<R> {
    Reply(BoxFuture<'static, Result<R>>),
    Over(Result<R>),
}

impl<R> fmt::Debug for Run<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("session", &self.session)
            .field("id", &self.id())
            .field("recorded", &self.recorded.get())
            .finish_non_exhaustive()
    }
}

impl<R: Send + 'static> Run<R> {
    /// Waits until the prompt is durable. From then on no crash loses it, whether its run has started or it
    /// waits in the inbox. Returns its entry: the message's, or the inbox item's. A prompt that repeats an
    /// idempotency key returns the entry of the first one.
    ///
    /// # Errors
    /// The errors of the reply, if the prompt was refused. Then nothing was recorded.
    pub async fn recorded(&mut self) -> Result<EntryId> {
        if let Awaited::Reply(reply) = &mut self.reply {
            let ended = tokio::select! {
                biased;
                entry = self.recorded.wait() => return Ok(*entry),
                ended = reply => ended,
            };
            self.reply = Awaited::Over(ended);
        }
        match (self.recorded.get(), &self.reply) {
            (Some(entry), _) => Ok(*entry),
            (None, Awaited::Over(Err(error))) => Err(error.clone()),
            (None, Awaited::Over(Ok(_)) | Awaited::Reply(_)) => Err(self.session.door.gone()),
        }
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// The same as for awaiting the request.
    pub async fn reply(self) -> Result<R> {
        match self.reply {
            Awaited::Reply(reply) => reply.await,
            Awaited::Over(ended) => ended,
        }
    }

    /// Lets the run continue without a caller. Events and the log report how it ends.
    pub fn detach(self) {
        tokio::spawn(self.reply());
    }

    /// Streams the run from now on: earlier events are not included. [`RunRequest::stream`] includes all
    /// events of a run.
    pub fn stream(self) -> RunStream<R> {
        let Self { session, abort, link, wrapped, reply, .. } = self;
        let reply = match reply {
            Awaited::Reply(reply) => reply,
            Awaited::Over(ended) => std::future::ready(ended).boxed(),
        };
        RunStream::join(&session, wrapped, abort, link, reply)
    }
}

impl<R> Run<R> {
    /// Returns the run's id once the run has started; `None` while the prompt waits.
    pub fn id(&self) -> Option<RunId> {
        self.link.run()
    }

    /// Aborts this run, or withdraws its prompt if the run has not started; other prompts of the session
    /// continue. The reply is [`Error::Aborted`]. A run that another caller holds by the same key
    /// ([`RunRequest::once`]) continues, and only this caller's wait ends.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// Returns the run's sub-agents so far, in the order of their starts: to watch, steer and abort each.
    /// They remain until the session's next run starts. The run's stream reports each as it starts, as
    /// [`RunItem::Child`].
    ///
    /// [`RunItem::Child`]: crate::RunItem::Child
    pub fn children(&self) -> Vec<Child> {
        self.id().map(|run| self.session.children_of(run)).unwrap_or_default()
    }

    /// Returns a handle that aborts the run.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }
}

/// Aborts one prompt: its run, or the prompt itself if the run has not started. Cloning is cheap; dropping
/// has no effect.
#[derive(Clone)]
pub struct AbortHandle {
    session: SessionHandle,
    ticket: u64,
    cancel: CancellationToken,
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("session", &self.session).finish_non_exhaustive()
    }
}

impl AbortHandle {
    pub(crate) fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// Aborts the prompt. The partial answer of a run is kept; a waiting prompt is withdrawn from the inbox,
    /// and a prompt that is sent later is aborted when it starts. The reply is [`Error::Aborted`]. Aborting has no
    /// effect after the run has ended.
    pub fn abort(&self) {
        self.cancel.cancel();
        self.session.door.withdraw(self.ticket);
    }
}

/// Input that was sent into a session: a steer, or a follow-up. It is durable. Dropping this has no effect.
pub struct SentInput {
    session: SessionHandle,
    taken: QueuedInput,
}

impl fmt::Debug for SentInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentInput").field("entry", &self.taken.entry).finish_non_exhaustive()
    }
}

impl SentInput {
    pub(crate) fn new(session: SessionHandle, taken: QueuedInput) -> Self {
        Self { session, taken }
    }

    /// Returns the input's entry: the message's, or the inbox item's.
    pub fn entry(&self) -> EntryId {
        self.taken.entry
    }

    /// Whether the input does not join the run in progress, because that run belongs to another agent: it
    /// then starts its own run afterwards. See [`SessionHandle::with_agent`].
    pub fn waits(&self) -> bool {
        self.taken.waits
    }

    /// Waits for the reply of the run that receives the input: the one that it joins, or the one that it
    /// starts.
    ///
    /// # Errors
    /// The errors of that run; [`Error::Deadlock`] in a tool for which the run waits; [`Error::Withdrawn`] if
    /// the input was withdrawn from the inbox; [`Error::Interrupted`] if the session ended or crashed before:
    /// then the input waits in the log.
    pub async fn reply(self) -> Result<Reply> {
        let Self { session, taken } = self;
        let _waiting = session.door.begin_wait()?;
        session.door.answered(taken.reply).await
    }
}

fn read_output<T: DeserializeOwned>(ended: Result<Reply>, form: &OutputForm) -> Result<Typed<T>> {
    let reply = form.checked(ended)?;
    match output::read(&reply.text, form.is_wrapped) {
        Ok(value) => Ok(Typed { value, reply }),
        Err(error) => Err(form.unreadable(reply.text, error.to_string())),
    }
}

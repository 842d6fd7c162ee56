//! A prompt as programs say it: what it says, how it is to be answered, and its reply.
//!
//! Invariants: nothing is sent before a request is awaited, started or streamed; dropping what is awaited cancels the run, or
//! takes the prompt out of the inbox.

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

/// That a request is answered by a [`Reply`].
#[derive(Debug, Clone, Copy)]
pub struct AsText;

/// That a request is answered by a [`Typed`].
#[derive(Debug)]
pub struct AsType<T>(PhantomData<fn() -> T>);

/// A prompt that is to be said, or a run that is to be resumed. Await it, [`start`](Self::start) it, or
/// [`stream`](Self::stream) it.
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
    session: SessionHandle,
    /// Tells this request from others.
    ticket: u64,
    /// What is said; `None`: the newest prompt is resumed.
    prompt: Option<Prompt>,
    key: Option<String>,
    settings: ModelSettings,
    timeout: Option<Duration>,
    cost_limit_usd: Option<f64>,
    /// The form of its answer, where it has one, or why it cannot have that.
    form: Option<Result<OutputForm>>,
    validators: Validators,
    /// The agent's validators that judge the answer too.
    validated_by: Vec<String>,
    /// Aborts the run.
    cancel: CancellationToken,
    /// Where the caller is in a trace of their own.
    from: CalledFrom,
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
        let ticket = session.door.deps.ticket();
        Self {
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
            output: PhantomData,
        }
    }

    /// Says it once: a second prompt with the same key gives the first one's reply again, for which it waits if need be. The
    /// words that were recorded first count, and the guards are not asked again.
    ///
    /// A key is used up by a reply and by nothing else. Where the first one has none, since its run was interrupted, was
    /// aborted, failed or was stopped, or since it was withdrawn, the second goes on with it: after the tool calls that were
    /// made already, and with what was asked for then where this request does not say otherwise. Where the conversation went
    /// on without it, or the reply does not have the form that is asked for now ([`Self::output`]), it is said again.
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

    /// Has the answer to this prompt judged by this validator of the agent: see
    /// [`Agent::validator`](crate::Agent::validator). Unlike a function that is given to [`Self::validate`], the name is
    /// recorded with the prompt and holds after a restart too. [`ConfigError::UnknownValidator`](crate::ConfigError) where
    /// the agent has none of this name.
    pub fn validated_by(mut self, name: impl Into<String>) -> Self {
        self.validated_by.push(name.into());
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

    /// What aborts this request alone: before it is sent, while it waits, and in its run.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { session: self.session.clone(), ticket: self.ticket, cancel: self.cancel.clone() }
    }

    async fn begin<R>(
        self,
        wrapped: Option<bool>,
        read: impl FnOnce(BoxFuture<'static, Result<Reply>>) -> BoxFuture<'static, Result<R>>,
    ) -> Result<Run<R>> {
        let (session, abort) = (self.session.clone(), self.abort_handle());
        let (link, recorded) = (Arc::default(), Arc::default());
        let reply = self.hand_over(Arc::clone(&link), Arc::clone(&recorded)).await?;
        Ok(Run { session, abort, link, recorded, wrapped, reply: Awaited::Reply(read(reply)) })
    }

    /// Sends it, and waits for its reply. `link` is told which run it became, before the first event of that run is
    /// published.
    pub(crate) async fn send(self, link: Arc<RunLink>) -> Result<Reply> {
        let _waiting = self.session.door.begin_wait()?;
        self.hand_over(link, Arc::default()).await?.await
    }

    /// Puts it into the session's mailbox, and gives what waits for the reply. `recorded` is set when it is durable.
    async fn hand_over(
        self,
        link: Arc<RunLink>,
        recorded: Arc<SetOnce<EntryId>>,
    ) -> Result<BoxFuture<'static, Result<Reply>>> {
        let Self {
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
            ..
        } = self;
        if prompt.as_ref().is_some_and(Prompt::is_empty) {
            return Err(Error::EmptyPrompt);
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
        Handover { door: session.door, prompt, options }.send().await
    }
}

impl RunRequest<AsText> {
    /// Asks for an answer of a type, whatever it is: a struct, an enum, a list, a number. The model is given the type's
    /// schema, and the answer is read into it. Servers that can are told to enforce the schema. An answer that
    /// cannot be read is sent back with the reason, as by [`Self::validate`]. Awaits to a [`Typed`];
    /// [`Error::Output`] when no answer had that form.
    pub fn output<T: DeserializeOwned + schemars::JsonSchema>(self) -> RunRequest<AsType<T>> {
        self.with_form(&OutputForm::of::<T>()).typed()
    }

    /// Asks for an answer that fits a JSON schema which is known only at run time: draft 2020-12, unless its `$schema`
    /// names another. As [`Self::output`] otherwise; the value is JSON. A schema that refers to something outside of it, or
    /// is none, is [`ConfigError::OutputSchema`](crate::ConfigError::OutputSchema) when the request is sent.
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
            Err(error) => self.form = Some(Err(error.into())),
        }
        self.typed()
    }

    fn typed<T>(self) -> RunRequest<AsType<T>> {
        let Self {
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
            ..
        } = self;
        RunRequest {
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
            output: PhantomData,
        }
    }

    /// Asks for an answer of this form; it stays a text.
    pub(crate) fn with_form(mut self, form: &OutputForm) -> Self {
        self.form = Some(Ok(form.clone()));
        self
    }

    /// Hands it to the session without waiting for the reply: the [`Run`] says when it is durable, aborts it, streams it
    /// and gives the reply. What one caller starts in a session is said in that order.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`]; [`Error::InputRefused`] by the agent's guards; [`Error::Busy`] when too many requests wait in
    /// the session already, and [`Error::RuntimeBusy`] in all sessions together; [`Error::Config`] with settings, limits or
    /// a schema that cannot be used; [`Error::TimedOut`] when its time was up before it was handed over; [`Error::Store`]
    /// when a session that slept cannot be read; [`Error::SessionFailed`] when that cannot be started;
    /// [`Error::Interrupted`]; [`Error::Deleted`]; [`Error::NoAgent`]; [`Error::Closed`]. All others come with the reply.
    pub async fn start(self) -> Result<Run> {
        self.begin(None, |reply| reply).await
    }

    /// The run as it happens: its events, its text, and then its reply. Nothing is said before the stream is polled.
    pub fn stream(self) -> RunStream {
        let (session, abort) = (self.session.clone(), self.abort_handle());
        RunStream::new(&session, None, abort, |link| self.send(link).boxed())
    }
}

impl<T: DeserializeOwned + 'static> RunRequest<AsType<T>> {
    /// As [`RunRequest::start`] of an untyped request.
    ///
    /// # Errors
    /// As there.
    pub async fn start(self) -> Result<Run<Typed<T>>> {
        let form = self.typed_form()?;
        let is_wrapped = form.is_wrapped;
        let read = move |reply: BoxFuture<'static, Result<Reply>>| {
            async move { read_output(reply.await, &form) }.boxed()
        };
        self.begin(Some(is_wrapped), read).await
    }

    /// As the stream of an untyped request, with the answer's value as far as it has come.
    pub fn stream(self) -> RunStream<Typed<T>> {
        let (session, abort, form) = (self.session.clone(), self.abort_handle(), self.typed_form());
        let is_wrapped = form.as_ref().is_ok_and(|form| form.is_wrapped);
        let send = |link| async move { read_output(self.send(link).await, &form?) }.boxed();
        RunStream::new(&session, Some(is_wrapped), abort, send)
    }

    fn typed_form(&self) -> Result<OutputForm> {
        self.form.clone().expect("a typed request has a form")
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

/// A prompt that was handed to its session, and its run. Dropping it cancels the run, or takes the prompt out of the
/// inbox; [`Self::detach`] lets it go on.
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
    /// Waits until the prompt is durable: from then on no crash loses it, whether its run has begun or it waits in the
    /// inbox. Gives its entry: its message, or its place in the inbox. A prompt that repeats an idempotency key gives
    /// the first one's.
    ///
    /// # Errors
    /// Those of the reply, where the prompt was refused: then nothing of it is kept.
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
    /// As the request, awaited.
    pub async fn reply(self) -> Result<R> {
        match self.reply {
            Awaited::Reply(reply) => reply.await,
            Awaited::Over(ended) => ended,
        }
    }

    /// Lets it go on without anybody who waits for its reply. Events and the log tell how it ends.
    pub fn detach(self) {
        tokio::spawn(self.reply());
    }

    /// The run as it happens, from now on: what was broadcast before this call is not in it. `RunRequest::stream` has
    /// all of a run.
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
    /// The run's id, from the moment that it begins; `None` while the prompt waits.
    pub fn id(&self) -> Option<RunId> {
        self.link.run()
    }

    /// Aborts this run, or takes its prompt back where it has not begun; other prompts of the session go on. The reply
    /// is [`Error::Aborted`].
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// The agents that it called as tools so far, in the order of their starts: to watch, steer and abort each. They stay
    /// until the session's next run begins. The stream of the run tells each as it comes, as [`RunItem::Child`].
    ///
    /// [`RunItem::Child`]: crate::RunItem::Child
    pub fn children(&self) -> Vec<Child> {
        self.id().map(|run| self.session.children_of(run)).unwrap_or_default()
    }

    /// What aborts it, for others to hold.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }
}

/// Aborts one prompt: its run, or the prompt itself where that has not begun. Cheap to clone; dropping it does nothing.
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

    /// Aborts it. Of a run, what had come of the answer is kept; a prompt that waits is taken out of the inbox, and one
    /// that is sent later is aborted as it begins. The reply is [`Error::Aborted`]. What has ended stays as it is.
    pub fn abort(&self) {
        self.cancel.cancel();
        self.session.door.withdraw(self.ticket);
    }
}

/// Input that was said into a session: a steer, or a follow-up. It is durable. Dropping it changes nothing.
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

    /// Its entry: its message, or its place in the inbox.
    pub fn entry(&self) -> EntryId {
        self.taken.entry
    }

    /// Whether it does not join the run in progress, because that is one of another agent: it begins a run of its own when
    /// that one is over. See [`SessionHandle::with_agent`].
    pub fn waits(&self) -> bool {
        self.taken.waits
    }

    /// Waits for the reply of the run that takes it in: the one that it joins, or the one that it begins.
    ///
    /// # Errors
    /// Those of that run; [`Error::Deadlock`] in a tool that the run waits for; [`Error::Withdrawn`] where it was taken out of the inbox before; [`Error::Interrupted`] where
    /// the session ended or crashed before: the input waits in the log.
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

//! An open session: its connection, its events, and its turns.
//!
//! Invariants: a turn ends when its run ends, when it is cancelled, or when a question needs words, which the next prompt
//! brings; all updates of a turn are sent before it ends. A connection that has ended is replaced before the next turn.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, ConfigOptionUpdate, ContentBlock,
    ErrorCode, NoticeSeverity, SessionId, SessionInfoUpdate, SessionUpdate, StopReason as TurnEnd,
    UnstructuredCommandInput,
};
use agent_client_protocol::{Client as Editor, Error};
use greenroom::{EntryId, ModelSettings, PendingQuestion, Question, StopReason};
use greenroom_chat::commands::{self, Command, Custom};
use greenroom_chat::{Backend, Chosen, figures};
use greenroom_kernel::{FailureClass, RunOutcome};
use greenroom_server::operations::{
    Accepted, ImageData, ListQuestions, Operation, PromptOutcome, PromptSession, ResumeSession,
    SetPermissions,
};
use greenroom_server::{ClientError, Events, ProblemKind, Working};
use greenroom_terminal::{Row, format, text};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::events::{Asked, EditorChannel, Progress, Shared, ask, forward, say};
use crate::options::{Choice, Choices};
use crate::program::{Connected, Problem, Program, Server, Wanted};
use crate::prompt::Prompt;
use crate::questions;
use crate::updates::{Abilities, Updates};

/// How long the provider's list of models is awaited.
const MODELS_MAX: Duration = Duration::from_secs(2);
/// How long the last events of a run are awaited after its outcome.
const EVENTS_MAX: Duration = Duration::from_secs(5);
/// How often work is sent in all, if hosts end before they have accepted it.
const ATTEMPTS: u32 = 3;
/// The width of texts for the user, in columns.
const WIDTH: usize = 80;

/// A session that an editor has opened.
pub(crate) struct Session {
    id: String,
    folder: PathBuf,
    servers: Vec<Server>,
    program: Arc<dyn Program>,
    channel: EditorChannel,
    live: tokio::sync::Mutex<Live>,
    commands: Vec<Custom>,
    /// The model that is used from the next turn on that begins a run.
    wanted: Mutex<Option<String>>,
    /// How many turns are in progress.
    turns: AtomicUsize,
    shared: Arc<Shared>,
}

/// A connection to the runtime.
#[derive(Clone)]
struct Live {
    backend: Backend,
    progress: watch::Receiver<Progress>,
    _events: Arc<AbortOnDropHandle<()>>,
}

impl Session {
    /// Opens a session. Returns it with warnings for the user.
    pub(crate) async fn open(
        program: Arc<dyn Program>,
        editor: ConnectionTo<Editor>,
        abilities: Abilities,
        folder: PathBuf,
        session_id: Option<&str>,
        servers: Vec<Server>,
    ) -> Result<(Self, Vec<String>), Error> {
        let wanted = Wanted { folder: &folder, session_id, model: None, servers: &servers };
        let connected = program.connect(wanted).await.map_err(refused)?;
        let Connected { session_id, client, mode, effort, commands, warnings } = connected;
        let channel = EditorChannel { editor, session: SessionId::new(session_id.as_str()) };
        let shared = Arc::new(Shared {
            updates: Mutex::new(Updates::new(folder.clone(), abilities)),
            asked: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            title: Mutex::default(),
            choices: Mutex::default(),
        });
        let (backend, events) = Backend::open(client, &session_id).await.map_err(failed)?;
        if mode.is_some() {
            let change = SetPermissions { mode, ..SetPermissions::default() };
            backend.set_permissions(change).await.map_err(failed)?;
        }
        let choices = Choices { effort, ..choices(&backend).await.map_err(failed)? };
        *shared.choices.lock() = choices;
        let live = Live::new(backend, events, channel.clone(), Arc::clone(&shared), folder.clone()).await?;
        let session = Self {
            id: session_id,
            commands,
            folder,
            servers,
            program,
            channel,
            live: tokio::sync::Mutex::new(live),
            wanted: Mutex::default(),
            turns: AtomicUsize::new(0),
            shared,
        };
        Ok((session, warnings))
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn choices(&self) -> Choices {
        self.shared.choices.lock().clone()
    }

    /// Sends what belongs to an open session: the commands, and warnings.
    pub(crate) fn greet(&self, warnings: &[String]) {
        let command = |name: &str, arguments: &str, description: &str| {
            let input =
                AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(arguments.to_owned()));
            AvailableCommand::new(name, description).input((!arguments.is_empty()).then_some(input))
        };
        let built_in = commands::of_editors().map(|(name, arguments, text)| command(name, arguments, text));
        let custom = self.commands.iter().map(|own| command(own.name(), "[text]", own.description()));
        let all = AvailableCommandsUpdate::new(built_in.chain(custom).collect());
        self.channel.send([SessionUpdate::AvailableCommandsUpdate(all)]);
        for warning in warnings {
            self.notice(NoticeSeverity::Warning, warning);
        }
    }

    /// Sends the conversation so far.
    pub(crate) async fn replay(&self) -> Result<(), Error> {
        let backend = self.live().await?.backend;
        let shown = match backend.show().await {
            Ok(shown) => shown,
            Err(error) if error.kind() == Some(ProblemKind::NoSession) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for said in &shown.conversation {
            let updates = self.shared.updates.lock().said(said);
            self.channel.send(updates);
        }
        self.tell_title().await;
        Ok(())
    }

    /// Asks the questions again that were open when the session was opened.
    pub(crate) async fn ask_again(&self) {
        let Ok(live) = self.live().await else { return };
        let has_forms = self.shared.updates.lock().abilities.forms;
        for open in self.questions(&live).await {
            match questions::asking(&open.call_id, &open.question, &self.folder, has_forms) {
                Some(asking) => {
                    let asked = Asked { id: open.id, question: open.question, asking };
                    drop(tokio::spawn(ask(
                        self.channel.clone(),
                        live.backend.clone(),
                        Arc::clone(&self.shared),
                        asked,
                    )));
                }
                None => {
                    say(&self.channel, &questions::in_words(&open.question));
                    *self.shared.asked.lock() = Some((open.id, open.question));
                }
            }
        }
    }

    /// Returns the open questions.
    async fn questions(&self, live: &Live) -> Vec<PendingQuestion> {
        let list = ListQuestions { session_id: Some(self.id.clone()) };
        live.backend.client().call(list).await.map(|listed| listed.questions).unwrap_or_default()
    }

    /// Performs a turn.
    pub(crate) async fn prompt(&self, blocks: Vec<ContentBlock>) -> Result<TurnEnd, Error> {
        self.shared.is_cancelled.store(false, Ordering::Relaxed);
        let others = self.turns.fetch_add(1, Ordering::Relaxed);
        let ended = self.turn(blocks, others == 0).await;
        self.turns.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    async fn turn(&self, blocks: Vec<ContentBlock>, is_only: bool) -> Result<TurnEnd, Error> {
        let is_free = is_only && self.shared.asked.lock().is_none();
        let wanted = self.wanted.lock().take_if(|_| is_free);
        if let Some(model) = wanted
            && let Err(error) = self.use_model(&model).await
        {
            // It stays chosen.
            let _ = self.wanted.lock().get_or_insert(model);
            return Err(error);
        }
        let live = self.live().await?;
        let Prompt { text, images } = Prompt::read(blocks, &self.folder);
        // Commands work while a question is open.
        match self.command_in(&text, &images) {
            Some(Ok(Command::Prompt(text))) => {
                if self.shared.asked.lock().take().is_some() {
                    self.end_question(&live).await;
                }
                self.run(&live, text, images).await
            }
            Some(Ok(Command::Continue)) => {
                let (session_id, settings) = (self.id.clone(), self.settings());
                let resume = ResumeSession { session_id, settings, output_schema: None };
                match self.work(&live, resume).await {
                    Err(error) if error.code == ErrorCode::InvalidParams => {
                        say(&self.channel, &error.message);
                        Ok(TurnEnd::EndTurn)
                    }
                    ended => ended,
                }
            }
            Some(Ok(command)) => self.command(&live, &text, command).await,
            Some(Err(wrong)) => {
                say(&self.channel, &wrong);
                Ok(TurnEnd::EndTurn)
            }
            None => {
                let asked = self.shared.asked.lock().take();
                if let Some((id, question)) = asked {
                    // An answer has no pictures.
                    if let Some(value) = questions::said(&question, &text).filter(|_| images.is_empty()) {
                        return self.answer_in_words(&live, id, question, value).await;
                    }
                    self.end_question(&live).await;
                }
                self.run(&live, text, images).await
            }
        }
    }

    /// Returns the command that a prompt is, or what is wrong with it; `None` if it is none.
    fn command_in(&self, text: &str, images: &[ImageData]) -> Option<Result<Command, String>> {
        if !text.starts_with('/') || !images.is_empty() {
            return None;
        }
        let parsed = commands::parse(text, &self.commands);
        // A path begins like a command.
        let is_path = || text.split_whitespace().next().is_some_and(|word| word[1..].contains('/'));
        (parsed.is_ok() || !is_path()).then_some(parsed)
    }

    /// Ends the run that asked: what was said is no answer, and is the next prompt.
    async fn end_question(&self, live: &Live) {
        let _ = live.backend.interrupt().await;
        self.settle(live).await;
    }

    /// Cancels the turn.
    pub(crate) async fn cancel(&self) {
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
        let backend = self.live.lock().await.backend.clone();
        // Without a connection nothing runs.
        let _ = backend.interrupt().await;
    }

    /// Makes a choice. Returns all choices.
    pub(crate) async fn choose(&self, choice: Choice) -> Result<Choices, Error> {
        let live = self.live().await?;
        match choice {
            Choice::Mode(mode) => {
                let change = SetPermissions { mode: Some(mode), ..SetPermissions::default() };
                let now = live.backend.set_permissions(change).await.map_err(failed)?;
                self.shared.choices.lock().mode = now.mode;
                self.program.keep(&self.id, Chosen::Mode(mode));
                self.channel.send([SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(
                    self.choices().options(),
                ))]);
            }
            Choice::Effort(effort) => {
                self.shared.choices.lock().effort = effort;
                self.program.keep(&self.id, Chosen::Effort(effort));
            }
            // Another model is another agent, which does not replace one that works or waits for an answer.
            Choice::Model(model)
                if self.turns.load(Ordering::Relaxed) > 0 || self.shared.asked.lock().is_some() =>
            {
                self.shared.choices.lock().model.clone_from(&model);
                *self.wanted.lock() = Some(model);
            }
            Choice::Model(model) => {
                self.use_model(&model).await?;
                self.wanted.lock().take();
            }
        }
        Ok(self.choices())
    }

    /// Connects with the agent of another model.
    async fn use_model(&self, model: &str) -> Result<(), Error> {
        let mut live = self.live.lock().await;
        *live = self.connect(Some(model)).await?;
        self.shared.choices.lock().model = model.to_owned();
        self.program.keep(&self.id, Chosen::Model(model.to_owned()));
        Ok(())
    }

    /// Returns the connection, or a new one if it has ended.
    async fn live(&self) -> Result<Live, Error> {
        let mut live = self.live.lock().await;
        if live.backend.client().is_closed() {
            *live = self.connect(None).await?;
        }
        Ok(live.clone())
    }

    async fn connect(&self, model: Option<&str>) -> Result<Live, Error> {
        let wanted =
            Wanted { folder: &self.folder, session_id: Some(&self.id), model, servers: &self.servers };
        let connected = self.program.connect(wanted).await.map_err(refused)?;
        let (backend, events) = Backend::open(connected.client, &self.id).await.map_err(failed)?;
        let mode = self.shared.choices.lock().mode;
        if mode.is_some() {
            let change = SetPermissions { mode, ..SetPermissions::default() };
            backend.set_permissions(change).await.map_err(failed)?;
        }
        for warning in &connected.warnings {
            self.notice(NoticeSeverity::Warning, warning);
        }
        Live::new(backend, events, self.channel.clone(), Arc::clone(&self.shared), self.folder.clone()).await
    }

    async fn run(&self, live: &Live, text: String, images: Vec<ImageData>) -> Result<TurnEnd, Error> {
        let (key, settings) = (Some(greenroom_chat::new_key()), self.settings());
        let prompt = PromptSession { images, key, settings, ..PromptSession::new(&self.id, text) };
        self.shared.updates.lock().prompts += 1;
        let ended = self.work(live, prompt).await;
        if self.live.lock().await.backend.client().is_closed() {
            self.shared.updates.lock().prompts = 0;
        }
        ended
    }

    fn settings(&self) -> ModelSettings {
        ModelSettings { reasoning_effort: self.shared.choices.lock().effort, ..ModelSettings::default() }
    }

    /// Begins work. If the host ends before it has accepted the work, the work is sent to the next host; the key of a
    /// prompt keeps it from being accepted twice. Also returns how many questions had needed words before.
    async fn begin<O>(&self, live: &mut Live, work: O) -> Result<(Working<O>, u64), Error>
    where
        O: Operation + Clone,
    {
        let mut attempt = 1;
        loop {
            let asked = live.progress.borrow().asked;
            match live.backend.client().work(work.clone()).await {
                Err(error) if attempt < ATTEMPTS && error.is_gone() => {
                    attempt += 1;
                    let mut shared = self.live.lock().await;
                    *shared = self.connect(None).await?;
                    *live = shared.clone();
                }
                begun => return begun.map(|working| (working, asked)).map_err(failed),
            }
        }
    }

    /// Performs work until its run ends.
    async fn work<O>(&self, live: &Live, work: O) -> Result<TurnEnd, Error>
    where
        O: Operation<Output = Accepted, Outcome = PromptOutcome> + Clone,
    {
        let mut live = live.clone();
        let (working, asked_before) = self.begin(&mut live, work).await.inspect_err(|_| {
            self.shared.updates.lock().prompts = 0;
        })?;
        // It may have been cancelled before it had begun.
        if self.shared.is_cancelled.load(Ordering::Relaxed) {
            let _ = live.backend.interrupt().await;
        }
        self.program.note_folder(&self.id).await;
        let mut progress = live.progress.clone();
        let outcome = tokio::select! {
            outcome = working.outcome() => outcome,
            asked = progress.wait_for(|now| now.asked > asked_before) => {
                asked.map_err(|_| lost())?;
                return Ok(TurnEnd::EndTurn);
            }
        };
        self.settle(&live).await;
        self.tell_title().await;
        match outcome {
            Ok(outcome) if outcome.reply.stop == StopReason::Length => Ok(TurnEnd::MaxTokens),
            Ok(outcome) if outcome.reply.stop == StopReason::ContentFilter => Ok(TurnEnd::Refusal),
            Ok(_) => Ok(TurnEnd::EndTurn),
            Err(error) => self.ended(error.kind(), failed(error)),
        }
    }

    /// Waits until the editor was told of everything that has happened.
    async fn settle(&self, live: &Live) {
        let Ok(state) = live.backend.state().await else { return };
        let Some(last) = state.entries.checked_sub(1) else { return };
        let mut progress = live.progress.clone();
        let told = progress.wait_for(|now| now.seen.is_some_and(|seen| seen >= last));
        let _ = tokio::time::timeout(EVENTS_MAX, told).await;
    }

    /// Returns the end of a turn whose run failed.
    fn ended(&self, kind: Option<ProblemKind>, error: Error) -> Result<TurnEnd, Error> {
        match kind {
            _ if self.shared.is_cancelled.load(Ordering::Relaxed) => Ok(TurnEnd::Cancelled),
            Some(ProblemKind::Aborted) => Ok(TurnEnd::EndTurn),
            Some(ProblemKind::Stopped) => {
                self.notice(NoticeSeverity::Warning, &error.message);
                Ok(TurnEnd::MaxTurnRequests)
            }
            _ => Err(error),
        }
    }

    async fn answer_in_words(
        &self,
        live: &Live,
        id: EntryId,
        question: Question,
        value: serde_json::Value,
    ) -> Result<TurnEnd, Error> {
        let before = live.progress.borrow().clone();
        if let Err(error) = live.backend.answer(id, value, None).await {
            say(&self.channel, &failed(error).message);
            // The next prompt can answer it, unless it has ended.
            if self.questions(live).await.iter().any(|open| open.id == id) {
                *self.shared.asked.lock() = Some((id, question));
            }
            return Ok(TurnEnd::EndTurn);
        }
        let mut progress = live.progress.clone();
        let now = progress.wait_for(|now| now.ended > before.ended || now.asked > before.asked).await;
        let now = now.map_err(|_| lost())?.clone();
        let outcome = now.outcome.filter(|_| now.ended > before.ended);
        self.tell_title().await;
        match outcome {
            Some(RunOutcome::Failed(failure)) => Err(internal(failure.to_string())),
            Some(RunOutcome::Aborted) if self.shared.is_cancelled.load(Ordering::Relaxed) => {
                Ok(TurnEnd::Cancelled)
            }
            Some(_) | None => Ok(TurnEnd::EndTurn),
        }
    }

    /// Performs a command, and sends what it says.
    async fn command(&self, live: &Live, line: &str, command: Command) -> Result<TurnEnd, Error> {
        let backend = &live.backend;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "all others need a chat at a terminal, as their table says"
        )]
        let said = match command {
            Command::Compact(how) => backend.compact(how).await.map(|done| text::compacted(&done)),
            Command::Told(told) => told.answer(backend).await,
            Command::UndoCompact(number) => {
                let undone = backend.undo_compaction(number).await;
                undone.map(|context| format!("The compaction was undone: {}", format::fill(&context)))
            }
            Command::Undo(back) => {
                let rewound = backend.rewind(None, back.scope.unwrap_or_default(), back, false).await;
                rewound.map(|rewound| {
                    figures::rewound(&rewound)
                        .into_iter()
                        .map(|(_, line)| line)
                        .collect::<Vec<_>>()
                        .join("\n")
                })
            }
            Command::Model(_) | Command::Effort(_) | Command::Permissions(_) => {
                Ok("Choose it in the editor: the model, the effort and the mode are options of the session."
                    .to_owned())
            }
            Command::Help => Ok(lines(&commands::plain_help(WIDTH))),
            Command::Context => self.context(backend).await,
            Command::Status => self.status(backend).await,
            _ => {
                let name = line.split_whitespace().next().unwrap_or_default();
                Ok(format!("{name} needs a chat at a terminal: `greenroom resume {}`", self.id))
            }
        };
        self.settle(live).await;
        let is_cancelled = self.shared.is_cancelled.load(Ordering::Relaxed);
        match said {
            Ok(said) => say(&self.channel, &crate::calls::block(&said)),
            Err(_) if is_cancelled => {}
            Err(error) if error.kind() == Some(ProblemKind::NoSession) => {
                say(&self.channel, "There are no messages yet.");
            }
            Err(error) => say(&self.channel, &failed(error).message),
        }
        Ok(if is_cancelled { TurnEnd::Cancelled } else { TurnEnd::EndTurn })
    }

    async fn context(&self, backend: &Backend) -> Result<String, ClientError> {
        let (parts, state) = (backend.context().await?, backend.state().await?);
        let rows = figures::context(&parts, &[], state.compacts_at.unwrap_or(0), WIDTH);
        Ok(lines(&rows))
    }

    async fn status(&self, backend: &Backend) -> Result<String, ClientError> {
        let (state, mode) = (backend.state().await?, backend.permissions().await?.mode);
        Ok(figures::status(&state, &self.folder, None, mode))
    }

    /// Sends the session's title if it has changed.
    async fn tell_title(&self) {
        let Ok(live) = self.live().await else { return };
        let Ok(Some(summary)) = live.backend.summary().await else { return };
        let title = summary.shown_title().map(str::to_owned);
        if title.is_some() && *self.shared.title.lock() != title {
            self.shared.title.lock().clone_from(&title);
            self.channel.send([SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title))]);
        }
    }

    fn notice(&self, severity: NoticeSeverity, text: &str) {
        let updates = self.shared.updates.lock().notice(severity, text);
        self.channel.send(updates);
    }
}

impl Live {
    async fn new(
        backend: Backend,
        events: Events,
        channel: EditorChannel,
        shared: Arc<Shared>,
        folder: PathBuf,
    ) -> Result<Self, Error> {
        // Events that came before are part of the conversation that is loaded.
        let seen = backend.state().await.map_err(failed)?.entries.checked_sub(1);
        let (told, progress) = watch::channel(Progress { seen, ..Progress::default() });
        let forwarding = forward(events, backend.clone(), channel, shared, folder, told);
        Ok(Self { backend, progress, _events: Arc::new(AbortOnDropHandle::new(tokio::spawn(forwarding))) })
    }
}

fn lines(rows: &[Row]) -> String {
    rows.iter().map(|row| row.text().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Returns the present choices of a session.
async fn choices(backend: &Backend) -> Result<Choices, ClientError> {
    let (state, permissions) = (backend.state().await?, backend.permissions().await?);
    let listed = tokio::time::timeout(MODELS_MAX, backend.models()).await;
    let models = listed.ok().and_then(Result::ok).map(|listed| listed.models).unwrap_or_default();
    let models = models.into_iter().map(|model| model.id).collect();
    Ok(Choices { mode: permissions.mode, model: state.model, models, effort: None })
}

/// Returns the error for a request that the program refused.
pub(crate) fn refused(problem: Problem) -> Error {
    match problem {
        Problem::NoKey(reason) => Error::new(ErrorCode::AuthRequired, reason),
        Problem::NoSession(reason) => Error::new(ErrorCode::ResourceNotFound, reason),
        Problem::Invalid(reason) => Error::new(ErrorCode::InvalidParams, reason),
        Problem::Other(reason) => internal(reason),
    }
}

/// Returns the error for a request that the runtime refused, or that was lost.
#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: ClientError) -> Error {
    let message = error.to_string();
    let is_of_key = |problem: &greenroom_server::Problem| {
        problem.failure.as_ref().is_some_and(|failure| failure.class == FailureClass::Auth)
    };
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures of this side")]
    let code = match &error {
        ClientError::Parameters(_) => ErrorCode::InvalidParams,
        ClientError::Refused(problem) if problem.kind == ProblemKind::Invalid => ErrorCode::InvalidParams,
        ClientError::Refused(problem) if is_of_key(problem) => ErrorCode::AuthRequired,
        _ => ErrorCode::InternalError,
    };
    Error::new(code, message)
}

fn lost() -> Error {
    internal("the connection to the host ended; the next prompt reconnects".to_owned())
}

fn internal(message: String) -> Error {
    Error::new(ErrorCode::InternalError, message)
}

/// Checks the folder of a session.
///
/// # Errors
/// It is no absolute path of a folder.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Error> {
    let wrong = |reason: &str| {
        Err(Error::new(ErrorCode::InvalidParams, format!("cwd {}: {reason}", folder.display())))
    };
    match folder {
        folder if !folder.is_absolute() => wrong("must be an absolute path"),
        folder if !folder.is_dir() => wrong("there is no such folder"),
        _ => Ok(()),
    }
}

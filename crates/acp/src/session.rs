//! An open session: its connection, its events, and its turns.
//!
//! Invariants: a turn ends when its run ends, when it is cancelled, or when a question needs words, which the next prompt
//! brings; all updates of a turn are sent before it ends. A connection that has ended is replaced before the next turn.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, ConfigOptionUpdate, ContentBlock,
    ErrorCode, NoticeSeverity, RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionInfoUpdate,
    SessionNotification, SessionUpdate, StopReason as TurnEnd, UnstructuredCommandInput,
};
use agent_client_protocol::{Client as Editor, Error};
use greenroom::{EntryId, Event, EventKind, ModelSettings, Question, StopReason};
use greenroom_chat::commands::{self, Command, Custom};
use greenroom_chat::{Backend, Chosen, figures};
use greenroom_kernel::RunOutcome;
use greenroom_server::operations::{
    Accepted, ImageData, ListQuestions, Operation, PromptOutcome, PromptSession, ResumeSession, SetPermissions,
};
use greenroom_server::{ClientError, Events, ProblemKind, Received};
use greenroom_terminal::{format, text};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::options::{Choice, Choices};
use crate::program::{Connected, Problem, Program, Server, Wanted};
use crate::prompt::Prompt;
use crate::questions;
use crate::updates::{Abilities, Updates};

/// How long the provider's list of models is awaited.
const MODELS_MAX: Duration = Duration::from_secs(2);
/// How long the last events of a run are awaited after its outcome.
const EVENTS_MAX: Duration = Duration::from_secs(5);
/// The width of texts for the user, in columns.
const WIDTH: usize = 80;

/// A session that an editor has opened.
pub(crate) struct Session {
    id: String,
    folder: PathBuf,
    servers: Vec<Server>,
    program: Arc<dyn Program>,
    line: Line,
    live: tokio::sync::Mutex<Live>,
    choices: Mutex<Choices>,
    commands: Vec<Custom>,
    shared: Arc<Shared>,
}

/// The connection to the editor, for one session.
#[derive(Clone)]
struct Line {
    editor: ConnectionTo<Editor>,
    session: SessionId,
}

impl Line {
    fn send(&self, updates: impl IntoIterator<Item = SessionUpdate>) {
        for update in updates {
            // Without the editor nobody reads them.
            let _ = self.editor.send_notification(SessionNotification::new(self.session.clone(), update));
        }
    }
}

/// What the turns and the events have in common.
struct Shared {
    updates: Mutex<Updates>,
    /// The question that the next prompt answers.
    asked: Mutex<Option<(EntryId, Question)>>,
    /// Whether the editor has cancelled the turn.
    is_cancelled: AtomicBool,
    title: Mutex<Option<String>>,
}

/// A connection to the runtime.
#[derive(Clone)]
struct Live {
    backend: Backend,
    progress: watch::Receiver<Progress>,
    _events: Arc<AbortOnDropHandle<()>>,
}

/// How far the events were told.
#[derive(Debug, Clone, Default)]
struct Progress {
    /// How many runs have ended.
    ended: u64,
    /// How the newest of them ended.
    outcome: Option<RunOutcome>,
    /// How many questions needed words.
    asked: u64,
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
        let Connected { session_id, client, mode, effort, skills, warnings } = connected;
        let line = Line { editor, session: SessionId::new(session_id.as_str()) };
        let shared = Arc::new(Shared {
            updates: Mutex::new(Updates::new(folder.clone(), abilities)),
            asked: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            title: Mutex::default(),
        });
        let (backend, events) = Backend::open(client, &session_id).await.map_err(failed)?;
        if mode.is_some() {
            let change = SetPermissions { mode, ..SetPermissions::default() };
            backend.set_permissions(change).await.map_err(failed)?;
        }
        let choices = Choices { effort, ..choices(&backend).await.map_err(failed)? };
        let live = Live::new(backend, events, line.clone(), Arc::clone(&shared), folder.clone());
        let session = Self {
            id: session_id,
            commands: commands::of_skills(&skills),
            folder,
            servers,
            program,
            line,
            live: tokio::sync::Mutex::new(live),
            choices: Mutex::new(choices),
            shared,
        };
        Ok((session, warnings))
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn choices(&self) -> Choices {
        self.choices.lock().clone()
    }

    /// Sends what belongs to an open session: the commands, and warnings.
    pub(crate) fn greet(&self, warnings: &[String]) {
        let command = |name: &str, arguments: &str, description: &str| {
            let input = AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(arguments.to_owned()));
            AvailableCommand::new(name, description).input((!arguments.is_empty()).then_some(input))
        };
        let built_in = commands::of_editors().map(|(name, arguments, text)| command(name, arguments, text));
        let skills = self.commands.iter().map(|skill| command(skill.name(), "[text]", skill.description()));
        let all = AvailableCommandsUpdate::new(built_in.chain(skills).collect());
        self.line.send([SessionUpdate::AvailableCommandsUpdate(all)]);
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
            self.line.send(updates);
        }
        self.tell_title().await;
        Ok(())
    }

    /// Asks the questions again that were open when the session was opened.
    pub(crate) async fn ask_again(&self) {
        let Ok(live) = self.live().await else { return };
        let list = ListQuestions { session_id: Some(self.id.clone()) };
        let open = live.backend.client().call(list).await.map(|listed| listed.questions).unwrap_or_default();
        for open in open {
            match questions::asking(&open.call_id, &open.question, &self.folder) {
                Some(asking) => {
                    let asked = Asked { id: open.id, question: open.question, asking };
                    drop(tokio::spawn(ask(self.line.clone(), live.backend.clone(), Arc::clone(&self.shared), asked)));
                }
                None => {
                    say(&self.line, &questions::in_words(&open.question));
                    *self.shared.asked.lock() = Some((open.id, open.question));
                }
            }
        }
    }

    /// Performs a turn.
    pub(crate) async fn prompt(&self, blocks: Vec<ContentBlock>) -> Result<TurnEnd, Error> {
        self.shared.is_cancelled.store(false, Ordering::Relaxed);
        let live = self.live().await?;
        let Prompt { text, images } = Prompt::read(blocks, &self.folder);
        let asked = self.shared.asked.lock().take();
        if let Some((id, question)) = asked {
            return self.answer_in_words(&live, id, question, &text).await;
        }
        if text.starts_with('/') && images.is_empty() {
            match commands::parse(&text, &self.commands) {
                Ok(Command::Prompt(text)) => return self.run(&live, text, images).await,
                Ok(Command::Continue) => {
                    let (session_id, settings) = (self.id.clone(), self.settings());
                    let resume = ResumeSession { session_id, settings, output_schema: None };
                    return self.work(&live, resume).await;
                }
                Ok(command) => return self.command(&live, &text, command).await,
                // A path begins like a command.
                Err(_) if text.split_whitespace().next().is_some_and(|word| word[1..].contains('/')) => {}
                Err(wrong) => {
                    say(&self.line, &wrong);
                    return Ok(TurnEnd::EndTurn);
                }
            }
        }
        self.run(&live, text, images).await
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
                self.choices.lock().mode = now.mode;
                self.program.keep(&self.id, Chosen::Mode(mode));
                self.line.send([SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(self.choices().options()))]);
            }
            Choice::Effort(effort) => {
                self.choices.lock().effort = effort;
                self.program.keep(&self.id, Chosen::Effort(effort));
            }
            Choice::Model(model) => {
                let mut place = self.live.lock().await;
                *place = self.connect(Some(&model)).await?;
                drop(place);
                self.choices.lock().model.clone_from(&model);
                self.program.keep(&self.id, Chosen::Model(model));
            }
        }
        Ok(self.choices())
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
        let mode = self.choices.lock().mode;
        if mode.is_some() {
            let change = SetPermissions { mode, ..SetPermissions::default() };
            backend.set_permissions(change).await.map_err(failed)?;
        }
        for warning in &connected.warnings {
            self.notice(NoticeSeverity::Warning, warning);
        }
        Ok(Live::new(backend, events, self.line.clone(), Arc::clone(&self.shared), self.folder.clone()))
    }

    async fn run(&self, live: &Live, text: String, images: Vec<ImageData>) -> Result<TurnEnd, Error> {
        let prompt = PromptSession { images, settings: self.settings(), ..PromptSession::new(&self.id, text) };
        self.shared.updates.lock().prompts += 1;
        let ended = self.work(live, prompt).await;
        if live.backend.client().is_closed() {
            self.shared.updates.lock().prompts = 0;
        }
        ended
    }

    fn settings(&self) -> ModelSettings {
        ModelSettings { reasoning_effort: self.choices.lock().effort, ..ModelSettings::default() }
    }

    /// Performs work until its run ends.
    async fn work<O>(&self, live: &Live, work: O) -> Result<TurnEnd, Error>
    where
        O: Operation<Output = Accepted, Outcome = PromptOutcome>,
    {
        let before = live.progress.borrow().clone();
        let working = live.backend.client().work(work).await.map_err(|error| {
            self.shared.updates.lock().prompts = 0;
            failed(error)
        })?;
        // It may have been cancelled before it had begun.
        if self.shared.is_cancelled.load(Ordering::Relaxed) {
            let _ = live.backend.interrupt().await;
        }
        self.program.note_folder(&self.id).await;
        let mut progress = live.progress.clone();
        let outcome = tokio::select! {
            outcome = working.outcome() => outcome,
            asked = progress.wait_for(|now| now.asked > before.asked) => {
                asked.map_err(|_| lost())?;
                return Ok(TurnEnd::EndTurn);
            }
        };
        // The last events may still be on their way.
        let told = progress.wait_for(|now| now.ended > before.ended);
        let _ = tokio::time::timeout(EVENTS_MAX, told).await;
        self.tell_title().await;
        match outcome {
            Ok(outcome) => Ok(match outcome.reply.stop {
                StopReason::Length => TurnEnd::MaxTokens,
                StopReason::ContentFilter => TurnEnd::Refusal,
                _ => TurnEnd::EndTurn,
            }),
            Err(error) => self.ended(error.kind(), failed(error)),
        }
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
        words: &str,
    ) -> Result<TurnEnd, Error> {
        let value = match questions::said(&question, words) {
            Ok(value) => value,
            Err(wrong) => {
                say(&self.line, &wrong);
                *self.shared.asked.lock() = Some((id, question));
                return Ok(TurnEnd::EndTurn);
            }
        };
        let before = live.progress.borrow().clone();
        if let Err(error) = live.backend.answer(id, value, None).await {
            say(&self.line, &failed(error).message);
            return Ok(TurnEnd::EndTurn);
        }
        let mut progress = live.progress.clone();
        let now = progress.wait_for(|now| now.ended > before.ended || now.asked > before.asked).await;
        let now = now.map_err(|_| lost())?.clone();
        let outcome = now.outcome.filter(|_| now.ended > before.ended);
        self.tell_title().await;
        match outcome {
            Some(RunOutcome::Failed(failure)) => Err(internal(failure.to_string())),
            Some(RunOutcome::Aborted) if self.shared.is_cancelled.load(Ordering::Relaxed) => Ok(TurnEnd::Cancelled),
            Some(_) | None => Ok(TurnEnd::EndTurn),
        }
    }

    /// Performs a command, and sends what it says.
    async fn command(&self, live: &Live, line: &str, command: Command) -> Result<TurnEnd, Error> {
        let backend = &live.backend;
        #[expect(clippy::wildcard_enum_match_arm, reason = "all others need a chat at a terminal, as their table says")]
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
                    figures::rewound(&rewound).into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n")
                })
            }
            Command::Context => self.context(backend).await,
            Command::Status => self.status(backend).await,
            _ => {
                let name = line.split_whitespace().next().unwrap_or_default();
                Ok(format!("{name} needs a chat at a terminal: `greenroom resume {}`", self.id))
            }
        };
        match said {
            Ok(said) => say(&self.line, &crate::calls::block(&said)),
            Err(_) if self.shared.is_cancelled.load(Ordering::Relaxed) => return Ok(TurnEnd::Cancelled),
            Err(error) => say(&self.line, &failed(error).message),
        }
        Ok(TurnEnd::EndTurn)
    }

    async fn context(&self, backend: &Backend) -> Result<String, ClientError> {
        let (parts, state) = (backend.context().await?, backend.state().await?);
        let rows = figures::context(&parts, &[], state.compacts_at.unwrap_or(0), WIDTH);
        Ok(rows.iter().map(|row| row.text().trim_end().to_owned()).collect::<Vec<_>>().join("\n"))
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
            self.line.send([SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title))]);
        }
    }

    fn notice(&self, severity: NoticeSeverity, text: &str) {
        let updates = self.shared.updates.lock().notice(severity, text);
        self.line.send(updates);
    }
}

impl Live {
    fn new(backend: Backend, events: Events, line: Line, shared: Arc<Shared>, folder: PathBuf) -> Self {
        let (told, progress) = watch::channel(Progress::default());
        let telling = tell(events, backend.clone(), line, shared, folder, told);
        Self { backend, progress, _events: Arc::new(AbortOnDropHandle::new(tokio::spawn(telling))) }
    }
}

/// Sends the events of a session to the editor until the connection ends.
async fn tell(
    mut events: Events,
    backend: Backend,
    line: Line,
    shared: Arc<Shared>,
    folder: PathBuf,
    told: watch::Sender<Progress>,
) {
    let mut asking: HashMap<EntryId, AbortHandle> = HashMap::new();
    let mut seen = None;
    while let Some(received) = events.next().await {
        let events: Vec<Arc<Event>> = match received {
            Received::Event(event) => vec![event],
            Received::Gap { from_seq: Some(from), .. } => {
                let missed = backend.since(from).await.unwrap_or_default();
                missed.into_iter().map(Arc::new).collect()
            }
            Received::Gap { from_seq: None, .. } => continue,
            Received::Warning(text) => {
                let updates = shared.updates.lock().notice(NoticeSeverity::Warning, &text);
                line.send(updates);
                continue;
            }
        };
        for event in events {
            if event.is_durable() {
                // Missed events may come twice.
                if seen.is_some_and(|seen| event.seq <= seen) {
                    continue;
                }
                seen = Some(event.seq);
            }
            let updates = shared.updates.lock().event(&event);
            line.send(updates);
            #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are only shown")]
            match &event.kind {
                EventKind::QuestionAsked { entry_id, call_id, question, .. } => {
                    match questions::asking(call_id, question, &folder) {
                        Some(request) => {
                            let asked = Asked { id: *entry_id, question: question.clone(), asking: request };
                            let task = ask(line.clone(), backend.clone(), Arc::clone(&shared), asked);
                            asking.insert(*entry_id, tokio::spawn(task).abort_handle());
                        }
                        None => {
                            say(&line, &questions::in_words(question));
                            *shared.asked.lock() = Some((*entry_id, question.clone()));
                            told.send_modify(|told| told.asked += 1);
                        }
                    }
                }
                EventKind::QuestionEnded { question, .. } => {
                    if let Some(task) = asking.remove(question) {
                        task.abort();
                    }
                    let mut asked = shared.asked.lock();
                    if asked.as_ref().is_some_and(|(id, _)| id == question) {
                        *asked = None;
                    }
                }
                EventKind::RunEnd { outcome, .. } => told.send_modify(|told| {
                    told.ended += 1;
                    told.outcome = Some(outcome.clone());
                }),
                _ => {}
            }
        }
    }
    let updates = shared.updates.lock().close();
    line.send(updates);
}

/// A question, as it is asked at the editor.
struct Asked {
    id: EntryId,
    question: Question,
    asking: questions::Asking,
}

/// Asks the person at the editor, and sends the answer. Without one, or after a refusal, the run is interrupted.
async fn ask(line: Line, backend: Backend, shared: Arc<Shared>, asked: Asked) {
    let Asked { id, question, asking } = asked;
    let request = RequestPermissionRequest::new(line.session.clone(), asking.call, asking.options);
    let problem = match line.editor.send_request(request).block_task().await {
        Ok(response) => match response.outcome {
            RequestPermissionOutcome::Selected(chosen) => {
                match questions::answer(&question, &chosen.option_id.0) {
                    Some(value) => {
                        let refuses = questions::refuses(&question, &value);
                        match backend.answer(id, value, None).await {
                            Ok(()) if !refuses => return,
                            Ok(()) => None,
                            Err(error) => Some(failed(error).message),
                        }
                    }
                    None => Some(format!("The editor chose {:?}, which was not offered.", chosen.option_id.0)),
                }
            }
            _ => None,
        },
        Err(error) => Some(format!("The editor did not answer the request for permission: {}", error.message)),
    };
    if let Some(problem) = problem {
        let updates = shared.updates.lock().notice(NoticeSeverity::Error, &problem);
        line.send(updates);
    }
    let _ = backend.interrupt().await;
}

/// Sends a message of the agent that is not part of the conversation.
fn say(line: &Line, text: &str) {
    let chunk = agent_client_protocol::v1::schema::ContentChunk::new(text.to_owned().into());
    line.send([SessionUpdate::AgentMessageChunk(chunk)]);
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
        Problem::Other(reason) => internal(reason),
    }
}

/// Returns the error for a request that the runtime refused, or that was lost.
fn failed(error: ClientError) -> Error {
    internal(error.to_string())
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

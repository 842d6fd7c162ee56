//! The chat at a terminal: performs the model's effects and draws its frames.
//!
//! Invariants: no key waits for the runtime, and no reply waits for a key; the terminal is restored however
//! the chat ends.
//!
//! Reading order: `welcome` (a session is opened), `orders` (inputs), `does` (the slash commands, with `models`,
//! `copies` and `going_back`), `done` (what tasks report), `modes` (the session's mode), `reconnect`, `local` (the
//! user's files), `outside` (external programs).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use greenroom::{Event, InProgress, SessionSummary};
use greenroom::{EventKind, Record};
use greenroom_server::operations::{ListQuestions, RewindScope, SessionPermissions, WaitingInput};
use greenroom_server::{Client, ClientError, Events, Received};
use greenroom_terminal::draw::Painter;
use greenroom_terminal::input::{self, Input, Raw};
use greenroom_terminal::interrupt::Interrupts;
use greenroom_terminal::row::Look;
use greenroom_terminal::screen::{Screen, variable};
use greenroom_terminal::theme::Theme;
use greenroom_terminal::time;
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::done::{Done, Results};
use self::local::Local;
use self::orders::{Order, Said, obey};
use super::backend::Backend;
use super::calls::WHEEL_MS;
use super::commands::{self, Command};
use super::follow::Follow;
use super::history::History;
use super::model::{Effect, Model};
use super::notice::Notices;
use super::program::{Chosen, Environment, Program, Silence, Skill};
use super::{Typed, figures};

mod copies;
mod does;
mod done;
mod going_back;
mod local;
mod models;
mod modes;
mod orders;
mod outside;
mod reconnect;
mod welcome;

/// The minimum time between frames that only events require.
const FRAME: Duration = Duration::from_millis(16);
/// How many of the newest entries are loaded when a session is opened.
const PAST_ENTRIES: u64 = 400;

/// How long a host may take to reply when the user leaves.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// How long the work may take to stop when the user leaves.
const STOP_MAX: Duration = Duration::from_secs(5);

/// An open session.
#[derive(Debug)]
pub struct Opened {
    backend: Backend,
    events: Events,
    state: greenroom::State,
    past: Vec<Event>,
    /// The work in progress that the log does not contain yet.
    in_progress: Option<InProgress>,
    questions: Vec<greenroom::PendingQuestion>,
    /// What the agent may do without asking.
    permissions: SessionPermissions,
    /// The inputs that are held back.
    held_back: Vec<WaitingInput>,
    /// What the list of sessions says of it; `None` if it has no messages.
    summary: Option<Box<SessionSummary>>,
    /// If it has just been copied: the title and the id of the original.
    copy_of: Option<(String, String)>,
}

impl Opened {
    /// The session's id.
    pub fn id(&self) -> &str {
        self.backend.id()
    }
}

/// The state of a chat.
struct TerminalChat {
    model: Model,
    painter: Painter,
    /// Draws the viewer over the whole screen, while it is open.
    over: Option<Painter>,
    has_color: bool,
    raw: Raw,
    backend: Backend,
    events: Events,
    interrupts: Interrupts,
    /// Changes of the host's responsiveness.
    silences: mpsc::UnboundedReceiver<Silence>,
    /// Whether the user was told that the host does not reply: then Ctrl-C leaves.
    is_silent: bool,
    /// The compaction settings of the configuration.
    program: Arc<dyn Program>,
    /// The model that the user chose in this chat.
    chosen: Option<String>,
    /// The mode of this session, and which one the user chose in this chat.
    modes: modes::Modes,
    history: History,
    local: Arc<Local>,
    folder: PathBuf,
    done: mpsc::UnboundedSender<Done>,
    /// The queue of inputs, which keeps their order.
    orders: mpsc::UnboundedSender<Order>,
    /// The running user command.
    work: Option<outside::OwnCommand>,
    /// Whether the user was told how the model learns of such commands.
    is_told_how: bool,
    follow: Follow,
    /// The output of user commands that no prompt has included yet.
    told: Vec<String>,
    /// Whether the work is stopped when the chat is left.
    stops: bool,
    /// The session whose folder was noted.
    noted: Option<String>,
    notices: Notices,
    /// The session's title, for the window's.
    title: String,
    theme: Theme,
    /// The files with instructions of the project, and the skills.
    instructions: Vec<String>,
    /// What commands of the model can change and reach.
    commands: Option<String>,
    skills: Vec<Skill>,
    /// The text that is to be edited in an editor outside of the chat.
    edits: Option<String>,
    /// Where the conversation was before each `/undo` since the last prompt, and what went back.
    undone: Vec<(greenroom::EntryId, RewindScope)>,
}

/// The end of a chat.
#[derive(Debug)]
pub struct Ended {
    /// The last session of the chat, if it has a log; also after an error.
    pub session_id: Option<String>,
    /// An error if the chat could not continue.
    pub result: Result<()>,
}

/// Runs the chat until the user leaves or it cannot continue.
///
/// # Errors
/// The terminal cannot be used, or the session's folder cannot be noted.
pub async fn talk(
    program: Arc<dyn Program>,
    environment: Environment,
    interrupts: Interrupts,
    silences: mpsc::UnboundedReceiver<Silence>,
    opened: Opened,
    typed: Typed,
) -> Result<Ended> {
    let history = History::new(&environment.data_dir);
    let local = Arc::new(Local::new(&environment));
    let project = Some(&*environment.folder).filter(|_| environment.trusts_project);
    let custom = commands::custom(environment.own_folder.as_deref(), project, &environment.skills);
    let color = Screen::stdout(environment.color).has_color();
    let size = input::size();
    let (done, mut results) = mpsc::unbounded_channel();
    let (orders, ordered) = mpsc::unbounded_channel();
    tokio::spawn(obey(ordered, done.clone(), Arc::clone(&local)));
    let raw = Raw::new()?;
    let mut live = TerminalChat {
        model: Model::new(size, &history.read(), custom),
        painter: Painter::new(color, size).cutting(input::cuts_rows()),
        over: None,
        has_color: color,
        raw,
        backend: opened.backend.clone(),
        events: opened.backend.client().events_of(opened.backend.id()),
        interrupts,
        silences,
        is_silent: false,
        program,
        chosen: None,
        modes: modes::Modes::default(),
        history,
        local,
        folder: environment.folder,
        done,
        orders,
        work: None,
        is_told_how: false,
        follow: Follow::default(),
        told: Vec::new(),
        stops: false,
        noted: None,
        notices: Notices::new(environment.notify, time::now_ms()),
        title: String::new(),
        theme: environment.theme,
        instructions: environment.instructions,
        commands: environment.commands,
        skills: environment.skills,
        edits: None,
        undone: Vec::new(),
    };
    live.model.set_user(variable("USER"));
    live.painter.set_theme(live.theme);
    input::report_focus()?;
    live.model.set_outlives(live.program.outlives());
    live.program.keep_settings();
    live.model.set_now(time::now_ms());
    live.model.status.git_branch = live.local.git_branch();
    live.welcome(opened, false);
    let result = live.hold(&mut results, typed).await;
    if live.stops {
        let _ = timeout(STOP_MAX, live.stop()).await;
    }
    live.report_unsent();
    live.model.leave();
    let frame = live.model.frame();
    let last = live.painter.paint(&frame, input::size());
    let _ = input::write(&last);
    let _ = input::write(&(live.painter.clear() + &live.notices.end()));
    let (backend, program) = (live.backend.clone(), Arc::clone(&live.program));
    drop(live);
    // Does not wait for a host that no longer replies.
    let is_there = match timeout(LEAVE_MAX, program.note_folder(backend.id())).await {
        Ok(Ok(is_there)) => is_there,
        Ok(Err(error)) if result.is_ok() => return Err(error),
        Ok(Err(_)) | Err(_) => true,
    };
    let session_id = is_there.then(|| backend.id().to_owned());
    let _ = timeout(LEAVE_MAX, backend.client().clone().close()).await;
    Ok(Ended { session_id, result })
}

/// Opens a session, and loads the part of its past that is shown.
///
/// # Errors
/// The server's refusal, or a lost connection.
pub async fn open(client: Client, id: &str) -> Result<Opened, ClientError> {
    let (backend, events) = Backend::open(client, id).await?;
    let state = backend.state().await?;
    let in_progress = backend.in_progress().await?;
    let mut past =
        if state.entries > 0 { backend.newest(state.entries, PAST_ENTRIES).await? } else { Vec::new() };
    if let Some(in_progress) = &in_progress {
        // Later events arrive through the subscription.
        past.retain(|event| in_progress.contains(event));
    }
    let questions = ListQuestions { session_id: Some(id.to_owned()) };
    let questions = backend.client().call(questions).await?.questions;
    let permissions = backend.permissions().await?;
    let held_back = match state.held_back {
        0 => Vec::new(),
        _ => backend.waiting().await?,
    };
    let summary = if state.entries > 0 { backend.summary().await? } else { None };
    let summary = summary.map(Box::new);
    Ok(Opened {
        backend,
        events,
        state,
        past,
        in_progress,
        questions,
        permissions,
        held_back,
        summary,
        copy_of: None,
    })
}

impl TerminalChat {
    async fn hold(&mut self, results: &mut mpsc::UnboundedReceiver<Done>, typed: Typed) -> Result<()> {
        let mut inputs = typed.inputs.unwrap_or_else(input::inputs);
        for input in typed.before {
            if !self.input(input)? {
                return Ok(());
            }
        }
        let mut drawn = Instant::now();
        self.draw()?;
        // Whether something has changed since the last frame.
        let mut is_changed = false;
        loop {
            // All available input is processed before a frame is drawn.
            let mut is_urgent = false;
            while let Ok(input) = inputs.try_recv() {
                if !self.input(input)? {
                    return Ok(());
                }
                is_urgent = true;
            }
            self.model.set_now(time::now_ms());
            for effect in self.model.due() {
                self.perform(effect);
                is_urgent = true;
            }
            if let Some(text) = self.edits.take() {
                self.edit_outside(text).await?;
                is_urgent = true;
            }
            // Keys are processed in between, however fast events arrive and however long they take.
            let mut has_more = false;
            let began = Instant::now();
            while let Some(received) = self.events.try_next() {
                self.received(received);
                is_changed = true;
                if began.elapsed() >= FRAME {
                    has_more = true;
                    break;
                }
            }
            while let Ok(done) = results.try_recv() {
                self.done(done);
                is_urgent = true;
            }
            if std::mem::take(&mut is_urgent) || (is_changed && drawn.elapsed() >= FRAME) {
                self.draw()?;
                (drawn, is_changed) = (Instant::now(), false);
            }
            let wait = if has_more {
                Duration::ZERO
            } else if is_changed {
                FRAME.saturating_sub(drawn.elapsed())
            } else if self.model.is_moving() {
                Duration::from_millis(WHEEL_MS)
            } else {
                Duration::from_secs(3_600)
            };
            tokio::select! {
                biased;
                () = self.interrupts.next() => {
                    if self.interrupts.is_ending() {
                        return Ok(());
                    }
                    self.interrupts.settle().await;
                    self.perform(Effect::Interrupt);
                }
                input = inputs.recv() => {
                    let Some(input) = input else { return Ok(()) };
                    if !self.input(input)? {
                        return Ok(());
                    }
                    is_urgent = true;
                }
                done = results.recv() => {
                    if let Some(done) = done {
                        self.done(done);
                    }
                    is_urgent = true;
                }
                received = self.events.next(), if !is_changed => {
                    match received {
                        Some(received) => self.received(received),
                        None => {
                            if !self.reconnect(&mut inputs).await? {
                                return Ok(());
                            }
                        }
                    }
                    is_changed = true;
                }
                Some(silence) = self.silences.recv() => {
                    self.is_silent = silence.is_silent;
                    self.model.note(Look::WARN, &silence.text);
                    is_changed = true;
                }
                () = tokio::time::sleep(wait) => is_urgent = true,
            }
            if is_urgent && self.edits.is_none() {
                self.draw()?;
                (drawn, is_changed) = (Instant::now(), false);
            }
        }
    }

    /// Stops the work, and waits for its end, which is shown.
    async fn stop(&mut self) {
        self.perform(Effect::Interrupt);
        while self.model.is_busy() {
            match self.events.next().await {
                Some(received) => self.received(received),
                None => return,
            }
        }
    }

    fn draw(&mut self) -> Result<()> {
        self.model.set_now(time::now_ms());
        let size = input::size();
        self.model.resize(size);
        input::write(&self.notices.update(self.model.doing(), &self.title, time::now_ms()))?;
        if let Some(frame) = self.model.viewed() {
            if self.over.is_none() {
                input::cover(true)?;
            }
            let color = self.has_color;
            let theme = self.theme;
            let painter = self.over.get_or_insert_with(|| {
                let mut painter = Painter::new(color, size).cutting(true);
                painter.set_theme(theme);
                painter
            });
            return Ok(input::write(&painter.paint(&frame, size))?);
        }
        if self.over.take().is_some() {
            input::cover(false)?;
        }
        let frame = self.model.frame();
        Ok(input::write(&self.painter.paint(&frame, size))?)
    }

    /// Handles input; returns false when the chat is over.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are done elsewhere")]
    fn input(&mut self, input: Input) -> Result<bool> {
        self.model.set_now(time::now_ms());
        if self.is_silent && input.leaves() {
            return Ok(false);
        }
        let effects = match input {
            Input::Key(key) => {
                self.notices.key(time::now_ms());
                self.model.key(key)
            }
            Input::Paste(text) => self.model.paste(&text),
            Input::Focus(is_focused) => {
                self.notices.focus(is_focused);
                Vec::new()
            }
            Input::Resized => Vec::new(),
            Input::Ended(_) => return Ok(false),
        };
        for effect in effects {
            match effect {
                Effect::Quit | Effect::Command(Command::Quit) => return Ok(false),
                Effect::StopAndQuit => {
                    self.stops = true;
                    return Ok(false);
                }
                Effect::Suspend => {
                    input::write(&self.painter.clear())?;
                    self.raw.suspend()?;
                    input::report_focus()?;
                }
                Effect::EditOutside(text) => self.edits = Some(text),
                Effect::Redraw => input::write(&(self.painter.clear() + "\x1b[H\x1b[2J"))?,
                effect => self.perform(effect),
            }
        }
        Ok(true)
    }

    fn received(&mut self, received: Received) {
        self.model.set_now(time::now_ms());
        match received {
            Received::Event(event) => {
                if let Some(event) = self.follow.event(event) {
                    self.model.event(&event);
                    if let EventKind::ModeChanged { mode } = &event.kind {
                        self.mode_changed(mode);
                    }
                    // A run may have begun with other settings.
                    if matches!(
                        &event.kind,
                        EventKind::RunEnd { .. }
                            | EventKind::Recorded { record: Record::LeafMoved { .. }, .. }
                    ) {
                        self.ask_for_state();
                    }
                }
            }
            Received::Warning(warning) => self.model.note(Look::WARN, &warning),
            Received::Gap { .. } => {
                self.modes.missed();
                if let Some(from_seq) = self.follow.gap() {
                    self.read_missed(from_seq);
                }
            }
        }
    }

    fn read_missed(&self, from_seq: u64) {
        let (backend, done) = (self.backend.clone(), self.results());
        tokio::spawn(async move {
            // A lost connection is detected elsewhere.
            done.send(Done::Missed(backend.since(from_seq).await.unwrap_or_default()));
        });
    }

    fn done(&mut self, done: Done) {
        self.model.set_now(time::now_ms());
        let Some(done) = done.within(self.backend.id()) else { return };
        match done {
            Done::Of(..) => {}
            Done::Sent(ticket, result) => {
                if result.is_ok() && self.noted.as_deref() != Some(self.backend.id()) {
                    // So that chats in the same folder know of its work.
                    let id = self.backend.id().to_owned();
                    self.noted = Some(id.clone());
                    let program = Arc::clone(&self.program);
                    tokio::spawn(async move { program.note_folder(&id).await });
                }
                self.model.sent(ticket, result);
            }
            Done::TakenBack(tickets) => self.model.taken_back(&tickets),
            Done::Rows(rows) => self.model.show(rows),
            Done::Note(look, text) => self.model.note(look, &text),
            Done::Pick(picker) => self.model.pick(picker),
            Done::Context(context) => self.model.context(context),
            Done::State(state) => {
                self.model.context(state.context);
                self.stands(&state);
            }
            Done::Refused(id, problem) => self.model.answer_refused(id, &problem),
            Done::Files(fragment, files) => self.model.files(&fragment, files),
            Done::Prints(line) => self.model.prints(line),
            Done::Summary(entry, text) => self.model.summary(entry, &text),
            Done::Told(session, text) => self.told(&session, text),
            Done::Rest => {
                self.work = None;
                self.model.works(None);
            }
            Done::Missed(events) => {
                let (events, next) = self.follow.missed(events);
                for event in events {
                    self.model.event(&event);
                }
                if let Some(from_seq) = next {
                    self.read_missed(from_seq);
                }
            }
            Done::Changed(opened, model) => {
                // Another host must get the same model.
                self.program.keep(opened.backend.id(), Chosen::Model(model.clone()));
                self.chosen = Some(model);
                let Opened { backend, events, state, permissions, .. } = *opened;
                (self.backend, self.events) = (backend, events);
                let text = format!("{}, {}", state.model, figures::window(&state.context));
                self.stands(&state);
                self.may(&permissions);
                self.model.note(Look::DIM, &format!("Model from the next prompt on: {text}"));
            }
            Done::ModeSet(ticket, mode) => self.mode_set(ticket, mode),
            Done::ModeRefused(ticket) => self.mode_refused(ticket),
            Done::Hint(text) => self.model.hint(&text),
            Done::WentBack(from, scope) => self.undone.push((from, scope)),
            Done::CameBack => drop(self.undone.pop()),
            Done::StaysThere => self.model.moves_itself(false, false),
            Done::Write(text) => self.model.write(&text),
            Done::Insert(text) => self.model.insert(&text),
            Done::AtWork(sessions) => self.others_work(&sessions),
            Done::Opened(opened) => {
                let (program, left) = (Arc::clone(&self.program), self.backend.id().to_owned());
                let folder_of = left.clone();
                // If this fails, the session cannot be found by its folder.
                tokio::spawn(async move { program.note_folder(&folder_of).await });
                self.model.begin_session();
                if opened.backend.id() != left {
                    let told = std::mem::take(&mut self.told);
                    self.note_unsent(told);
                }
                self.undone.clear();
                self.chosen = None;
                self.modes.leaves();
                if opened.state.entries == 0 {
                    self.model.note(Look::NOTE, "New session");
                }
                self.welcome(*opened, false);
            }
        }
    }

    /// Performs an effect.
    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Send { ticket, kind, text, names, is_typed } => {
                if self.title.is_empty() {
                    self.title.clone_from(&text);
                }
                self.program.keep_settings();
                let (backend, settings) = (self.backend.clone(), self.prompt_settings());
                let told = std::mem::take(&mut self.told);
                self.undone.clear();
                let said = Said { backend, ticket, kind, text, names, is_typed, settings, told };
                let _ = self.orders.send(Order::Send(Box::new(said)));
            }
            Effect::Interrupt => {
                // The output so far is kept when the command has ended.
                if let Some(work) = &self.work {
                    work.cancel.cancel();
                }
                let _ = self.orders.send(Order::Interrupt(self.backend.clone()));
            }
            Effect::Answer { id, value } => {
                let (backend, done) = (self.backend.clone(), self.results());
                tokio::spawn(async move {
                    if let Err(error) = backend.answer(id, value, variable("USER")).await {
                        done.send(Done::Refused(id, error.to_string()));
                    }
                });
            }
            Effect::Refuse { id, value } => {
                let (backend, done, orders) = (self.backend.clone(), self.results(), self.orders.clone());
                tokio::spawn(async move {
                    match backend.answer(id, value, variable("USER")).await {
                        // The call is denied before the run ends.
                        Ok(()) => drop(orders.send(Order::Interrupt(backend))),
                        Err(error) => done.send(Done::Refused(id, error.to_string())),
                    }
                });
            }
            Effect::Remember(prompt) => {
                let history = self.history.clone();
                // A chat works even if it cannot keep its history.
                tokio::task::spawn_blocking(move || history.add(&prompt));
            }
            Effect::Files(fragment) => {
                let (local, done) = (Arc::clone(&self.local), self.done.clone());
                tokio::spawn(async move {
                    let files = local.matching(&fragment).await;
                    let _ = done.send(Done::Files(fragment, files));
                });
            }
            Effect::Summaries(entries) => self.read_summaries(entries),
            Effect::Shell { command, is_told } => self.shell(command, is_told),
            Effect::Command(command) => self.command(command),
            Effect::TakeBack(entry) => {
                let (backend, done) = (self.backend.clone(), self.done.clone());
                tokio::spawn(async move {
                    // An event returns the text to the editor.
                    let told = match backend.withdraw(Some(entry)).await {
                        Ok(0) => (Look::DIM, "That input has already joined the run".to_owned()),
                        Ok(_) => return,
                        Err(error) => (Look::BAD, error.to_string()),
                    };
                    let _ = done.send(Done::Note(told.0, told.1));
                });
            }
            Effect::Picture => self.paste_picture(),
            Effect::Quit
            | Effect::StopAndQuit
            | Effect::Suspend
            | Effect::Redraw
            | Effect::EditOutside(_) => {}
        }
    }
}

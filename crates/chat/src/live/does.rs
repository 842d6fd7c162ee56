//! The slash commands.
//!
//! Invariants: each command runs in a task of its own, so the user can continue typing; its result is shown
//! as rows, an error as a line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use greenroom::permissions::{Effect, Mode};
use greenroom::{CompactionDetails, CompactionOutcome, ModelSettings, Order as ListOrder, ReasoningEffort};
use greenroom_files::private;
use greenroom_kernel::size::{Estimator, text_tokens};
use greenroom_server::operations::{
    Branch, ExportFormat, ListSessions, RewindScope, SessionPermissions, SetPermissions, Speech, ToolSummary,
};
use greenroom_server::{ClientError, ProblemKind};
use greenroom_terminal::row::{Look, Row};
use greenroom_terminal::{compactions as texts, format, screen, time};

use super::{Done, Results, TerminalChat, copies, going_back, open};
use crate::attached;
use crate::backend::{Backend, HowToCompact};
use crate::commands::{self, BranchStart, Branching, Command, Permitting};
use crate::figures;
use crate::picker::{Item, Picker, Purpose};
use crate::program::{Chosen, Origin, Program, PromptPart};

/// The maximum number of sessions and prompts offered.
const OFFERED_MAX: usize = 500;
/// The folder for exports, in the data directory.
const EXPORTS: &str = "exports";
/// The maximum amount of text that a terminal accepts for its clipboard, in bytes.
const COPY_BYTES_MAX: usize = 100_000;

/// The result of a command.
pub(super) type Outcome = Result<Vec<Done>, Problem>;

/// Why a command failed, as text for the user.
pub(super) struct Problem(pub(super) String);

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        // A session has no log before its first message.
        if error.kind() == Some(ProblemKind::NoSession) {
            return Self("No messages yet".to_owned());
        }
        Self(error.to_string())
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(text)
    }
}

pub(super) fn rows(rows: Vec<Row>) -> Outcome {
    Ok(vec![Done::Rows(rows)])
}

pub(super) fn note(look: Look, text: impl Into<String>) -> Outcome {
    Ok(vec![Done::Note(look, text.into())])
}

impl TerminalChat {
    /// Runs a slash command.
    pub(super) fn command(&mut self, command: Command) {
        let backend = self.backend.clone();
        let width = self.model.width();
        let is_for_idle = matches!(
            command,
            Command::Compact(_)
                | Command::UndoCompact(_)
                | Command::Branch(_)
                | Command::Undo(_)
                | Command::Redo
        );
        if is_for_idle && self.model.is_busy() {
            return self.model.note(Look::WARN, "The agent is working; Esc interrupts it");
        }
        match command {
            Command::Compact(how) => self.spawn(async move { compact(&backend, how).await }),
            Command::Told(told) => {
                self.spawn(async move { note(Look::DIM, told.answer(&backend).await?) });
            }
            Command::UndoCompact(number) => self.spawn(async move {
                let context = backend.undo_compaction(number).await?;
                Ok(vec![Done::Context(context)])
            }),
            Command::Context => {
                let of_prompt = self.program.prompt_parts();
                self.spawn(async move { context(&backend, &of_prompt, width).await });
            }
            Command::Status => {
                let (folder, server) = (self.folder.clone(), self.program.server());
                let mode = self.model.status.mode;
                self.spawn(async move {
                    let state = backend.state().await?;
                    note(Look::DIM, figures::status(&state, &folder, server.as_deref(), mode))
                });
            }
            Command::Model(name) => self.model_command(name),
            Command::Effort(level) => self.effort(level),
            Command::New => self.begin(),
            Command::Resume(Some(id)) => self.switch(id),
            Command::Resume(None) => {
                let program = Arc::clone(&self.program);
                self.spawn(async move { sessions(&backend, &*program).await });
            }
            Command::Continue => {
                let settings = self.prompt_settings();
                self.spawn(async move {
                    backend.resume(settings).await?;
                    Ok(Vec::new())
                });
            }
            Command::Fork(name) => {
                let program = Arc::clone(&self.program);
                self.spawn(async move {
                    let id = match name {
                        Some(name) => name,
                        None => new_id(&*program).await?,
                    };
                    let (opened, _) = copies::made(&backend, &*program, id, None).await?;
                    Ok(vec![Done::Opened(Box::new(opened))])
                });
            }
            Command::ContinueIn(goal) => {
                let program = Arc::clone(&self.program);
                self.model.note(Look::DIM, "summarising this session for a new one …");
                self.spawn(async move {
                    let id = new_id(&*program).await?;
                    let (opened, forked) = copies::made(&backend, &*program, id, Some(goal.clone())).await?;
                    let told = forked.compacted.map(|compacted| {
                        let look = if compacted.is_installed() { Look::DIM } else { Look::WARN };
                        Done::Note(look, format::continued(backend.id(), &compacted))
                    });
                    Ok([Done::Opened(Box::new(opened))]
                        .into_iter()
                        .chain(told)
                        .chain([Done::Write(goal)])
                        .collect())
                });
            }
            Command::Branch(Branching { start: BranchStart::Choose, summary, .. }) => {
                self.spawn(async move { places(&backend, summary).await });
            }
            Command::Branch(how) => {
                // An entry that was typed is told by its number, as an event does.
                self.model.moves_itself(how.prompt.is_some(), false);
                self.spawn(async move { moved(going_back::to(&backend, how, width).await) });
            }
            Command::Undo(back) => {
                self.model.moves_itself(true, false);
                self.spawn(async move { moved(going_back::undo(&backend, back, width).await) });
            }
            Command::Redo => {
                let Some((from, scope)) = self.undone.last().copied() else {
                    return self.model.note(Look::DIM, "Nothing to redo: no /undo since your last prompt");
                };
                self.model.moves_itself(true, true);
                self.spawn(async move { moved(going_back::redo(&backend, from, scope, width).await) });
            }
            Command::Tree => self.spawn(async move { show_tree(&backend, width).await }),
            Command::Export(None) => {
                let picker = export_places(&backend, &self.folder, self.local.data_dir());
                self.spawn(async move {
                    match backend.summary().await? {
                        Some(_) => Ok(vec![Done::Pick(picker)]),
                        None => note(Look::DIM, "No messages yet"),
                    }
                });
            }
            Command::Export(Some(path)) => {
                let folder = self.folder.clone();
                self.spawn(async move { export(&backend, folder, path).await });
            }
            Command::Copy => self.copy(),
            Command::Tools => self.spawn(async move { tools(&backend, width).await }),
            Command::Permissions(Permitting::Mode(mode)) => {
                let ticket = self.modes.sets(mode);
                let look = if mode == Mode::Everything { Look::BAD } else { Look::DIM };
                self.spawn(set_mode(backend, ticket, mode, move |text| Done::Note(look, text)));
            }
            Command::Permissions(Permitting::Next(mode)) => {
                let ticket = self.modes.sets(mode);
                self.spawn(set_mode(backend, ticket, mode, Done::Hint));
            }
            Command::Permissions(Permitting::Show) => self.spawn(async move {
                let permissions = backend.permissions().await?;
                rows(permission_rows(&permissions, width))
            }),
            Command::Permissions(Permitting::Add(effect, rule)) => {
                self.spawn(async move { add_rule(&backend, effect, rule).await });
            }
            Command::Skills => {
                let rows = self.skills(width);
                self.model.show(rows);
            }
            Command::Theme(name) => self.theme(name),
            Command::Keys => {
                let rows = commands::keys(width);
                self.model.show(rows);
            }
            Command::Title(title) => {
                self.title.clone_from(&title);
                self.spawn(async move {
                    backend.set_title(title.clone()).await?;
                    note(Look::DIM, format!("Session renamed to {title}"))
                });
            }
            Command::Help => {
                let rows = commands::help(self.model.custom(), width);
                self.model.show(rows);
            }
            // These two are handled by the caller.
            Command::Prompt(_) | Command::Quit => {}
        }
    }

    pub(super) fn spawn(&self, work: impl Future<Output = Outcome> + Send + 'static) {
        let done = self.results();
        tokio::spawn(async move {
            let results = work.await.unwrap_or_else(|Problem(text)| vec![Done::Note(Look::BAD, text)]);
            results.into_iter().for_each(|result| done.send(result));
        });
    }

    /// Returns where a task of the open session reports its results.
    pub(super) fn results(&self) -> Results {
        Results::new(self.backend.id(), self.done.clone())
    }

    /// Requests the session's state, of which events report only parts.
    pub(super) fn ask_for_state(&self) {
        let (backend, done) = (self.backend.clone(), self.results());
        tokio::spawn(async move {
            // A lost connection is detected elsewhere.
            if let Ok(state) = backend.state().await {
                done.send(Done::State(Box::new(state)));
            }
        });
    }

    /// Reads the summaries of these compactions, for the viewer.
    pub(super) fn read_summaries(&self, entries: Vec<greenroom::EntryId>) {
        let (backend, done) = (self.backend.clone(), self.results());
        tokio::spawn(async move {
            let known = backend.compactions().await.unwrap_or_default();
            for entry in entries {
                let number = known.iter().find(|record| record.entry_id == entry).map(|record| record.number);
                let text = match number {
                    None => "this compaction is no longer in the session's log".to_owned(),
                    Some(number) => match backend.compaction(Some(number)).await {
                        // What the model reads now comes before the figures.
                        Ok(details) => {
                            let figures = texts::details(&CompactionDetails {
                                summary: String::new(),
                                ..details.clone()
                            });
                            format!("{}\n\n{}", details.summary.trim(), figures.join("\n"))
                        }
                        Err(error) => error.to_string(),
                    },
                };
                done.send(Done::Summary(entry, text));
            }
        });
    }

    fn switch(&self, id: String) {
        let (backend, program) = (self.backend.clone(), Arc::clone(&self.program));
        self.spawn(async move {
            let id = resolve(&backend, id).await?;
            let client = program.session(&id, Origin::Stored).await?;
            let opened = Done::Opened(Box::new(open(client, &id).await?));
            let differs = program.differs(&id).await.map(|text| Done::Note(Look::WARN, text));
            Ok([opened].into_iter().chain(differs).collect())
        });
    }

    /// Starts a new session.
    fn begin(&self) {
        let (backend, program) = (self.backend.clone(), Arc::clone(&self.program));
        self.spawn(async move {
            let mut id = new_id(&*program).await?;
            if id == backend.id() {
                // The current session has no log yet, so its name still counts as free.
                id.push_str("-b");
            }
            let client = program.session(&id, Origin::New).await?;
            let opened = open(client, &id).await?;
            Ok(vec![Done::Opened(Box::new(opened))])
        });
    }

    /// Returns the settings of a prompt. The agent has no effort of its own, which would apply where the user has chosen
    /// the default.
    pub(super) fn prompt_settings(&self) -> ModelSettings {
        ModelSettings { reasoning_effort: self.program.effort(), ..ModelSettings::default() }
    }

    fn effort(&mut self, level: Option<String>) {
        let Some(level) = level else {
            let now = self.program.effort().map_or("default", ReasoningEffort::as_str);
            let levels = ["default", "none", "minimal", "low", "medium", "high", "xhigh"];
            let item = |level: &str| Item {
                value: level.to_owned(),
                label: level.to_owned(),
                detail: if level == now { "now".to_owned() } else { String::new() },
            };
            let items = levels.into_iter().map(item).collect();
            self.model.pick(Picker::new(Purpose::Effort, "How long the model thinks", items));
            return;
        };
        let effort = match level.as_str() {
            "default" => None,
            level => match level.parse::<ReasoningEffort>() {
                Ok(effort) => Some(effort),
                Err(error) => return self.model.note(Look::WARN, &error.to_string()),
            },
        };
        self.program.keep(self.backend.id(), Chosen::Effort(effort));
        self.model.status.effort = effort.map(|effort| effort.as_str().to_owned());
        self.model.note(Look::DIM, &format!("Effort {level} from the next prompt on"));
    }

    /// Copies the last answer to the terminal's clipboard, which the terminal may refuse.
    fn copy(&mut self) {
        let text = self.model.last_answer();
        if text.is_empty() {
            return self.model.note(Look::DIM, "No answer yet");
        }
        if text.len() > COPY_BYTES_MAX {
            return self
                .model
                .note(Look::WARN, "the answer is too long for the clipboard; /export writes all");
        }
        let encoded = base64::engine::general_purpose::STANDARD.encode(text);
        let count = text.chars().count();
        match greenroom_terminal::input::write(&format!("\x1b]52;c;{encoded}\x07")) {
            Ok(()) => {
                self.model.note(Look::DIM, &format!("copied {count} characters (if the terminal permits it)"))
            }
            Err(error) => self.model.note(Look::BAD, &error.to_string()),
        }
    }
}

/// Adds to the outcome of a command whether the conversation stays where it is.
fn moved(outcome: Outcome) -> Outcome {
    let done = outcome.unwrap_or_else(|Problem(text)| vec![Done::Note(Look::BAD, text)]);
    let moves = |done: &Done| {
        matches!(done, Done::CameBack)
            || matches!(done, Done::WentBack(_, scope) if *scope != RewindScope::Files)
    };
    let has_moved = done.iter().any(moves);
    Ok(done.into_iter().chain((!has_moved).then_some(Done::StaysThere)).collect())
}

/// Returns a name that no session has yet.
async fn new_id(program: &dyn Program) -> Result<String, Problem> {
    program.new_session().await.map_err(Problem)
}

/// Finds the session with this id, or with a unique id that starts like this.
async fn resolve(backend: &Backend, given: String) -> Result<String, Problem> {
    match backend.find(given.clone()).await {
        Err(ClientError::Parameters(text)) => Err(Problem(format!("{text}; /resume lists them"))),
        Err(error) if error.kind() == Some(ProblemKind::NoSession) => {
            Err(Problem(format!("there is no session {given}; /resume lists them, /new begins one")))
        }
        found => Ok(found?),
    }
}

async fn compact(backend: &Backend, how: HowToCompact) -> Outcome {
    let compacted = backend.compact(how).await?;
    // Events report a compaction that has started.
    if compacted.started.is_some() {
        return Ok(Vec::new());
    }
    if let CompactionOutcome::Nothing { reason } = &compacted.outcome {
        let context = backend.state().await?.context;
        return note(Look::DIM, figures::nothing_to_compact(reason, &context));
    }
    note(Look::DIM, format::compaction(&compacted))
}

async fn context(backend: &Backend, of_prompt: &[PromptPart], width: usize) -> Outcome {
    let trigger = backend.state().await?.compacts_at.unwrap_or(0);
    rows(figures::context(&backend.context().await?, of_prompt, trigger, width))
}

async fn sessions(backend: &Backend, program: &dyn Program) -> Outcome {
    let list = ListSessions {
        order: Some(ListOrder::Newest),
        roots: true,
        limit: Some(OFFERED_MAX),
        ..Default::default()
    };
    let found = backend.sessions(list).await?.sessions;
    let now = time::now_ms();
    let found = found.into_iter().filter(|session| program.is_conversation(session));
    let items = found.map(|session| {
        let title = session.shown_title().unwrap_or("no messages yet");
        let title = screen::one_line(title, 60);
        let here = if session.id == backend.id() { " · this one" } else { "" };
        let folder = program.folder_of(&session).map(|folder| format!(" · {folder}")).unwrap_or_default();
        let detail = format!("{}{here}{folder} · {}", time::ago(session.updated_at_ms, now), session.id);
        Item { value: session.id, label: title, detail }
    });
    Ok(vec![Done::Pick(Picker::new(Purpose::Resume, "Resume session", items.collect()))])
}

/// Lists the prompts of the conversation, the newest first: each can be taken back and changed.
async fn places(backend: &Backend, summary: bool) -> Outcome {
    let said = backend.show().await?.conversation;
    let now = time::now_ms();
    let mut items = Vec::new();
    let mut before = None;
    for said in &said {
        if let Speech::User { text, is_steer: false } = &said.speech {
            let text = attached::typed(text);
            let after =
                before.map_or_else(|| "start".to_owned(), |before: greenroom::EntryId| before.to_string());
            items.push(Item {
                value: format!("{} {after}", said.entry_id),
                label: screen::one_line(text, 60),
                detail: time::ago(said.at_ms, now),
            });
        }
        before = Some(said.entry_id);
    }
    items.reverse();
    items.truncate(OFFERED_MAX);
    if items.is_empty() {
        return note(Look::DIM, "No earlier prompt yet");
    }
    let title = "Go back to a prompt, to edit and send it again";
    Ok(vec![Done::Pick(Picker::new(Purpose::Branch { summary }, title, items))])
}

async fn show_tree(backend: &Backend, width: usize) -> Outcome {
    let branches = backend.tree().await?.branches;
    if branches.is_empty() {
        return note(Look::DIM, "No messages yet");
    }
    let row = |branch: &Branch| {
        let look = if branch.is_current { Look::BOLD } else { Look::DIM };
        Row::new(&format!("  {}", figures::branch(branch)), look).cut(width)
    };
    let mut out: Vec<Row> = branches.iter().map(row).collect();
    out.push(
        Row::new(
            "  /branch N continues after entry N; --summary adds a summary of the abandoned branch",
            Look::DIM,
        )
        .cut(width),
    );
    rows(out)
}

/// Lists the files that the session could be written to. The working folder comes last: a file there becomes a part of
/// the project.
fn export_places(backend: &Backend, folder: &Path, data_dir: &Path) -> Picker {
    let name = file_name(backend.id());
    let mut items = Vec::new();
    let home = screen::variable("HOME").map(PathBuf::from);
    let exports = Some(data_dir.join(EXPORTS));
    for (place, what) in [(exports, ""), (home, ""), (Some(folder.to_owned()), "in the working folder; ")] {
        let Some(place) = place else { continue };
        for (ending, kind) in [("md", "Markdown"), ("jsonl", "JSON Lines, for import")] {
            let path = place.join(format!("{name}.{ending}")).display().to_string();
            items.push(Item { value: path.clone(), label: path, detail: format!("{what}{kind}") });
        }
    }
    Picker::new(Purpose::Export, "Export to (or /export FILE)", items)
}

/// Returns a session's id as the name of a file: an id may have slashes, and begin with a dot.
fn file_name(id: &str) -> String {
    let name = id.replace('/', "-");
    if name.starts_with('.') { name.replacen('.', "-", 1) } else { name }
}

async fn export(backend: &Backend, folder: PathBuf, path: String) -> Outcome {
    let ending = Path::new(&path).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if !["md", "markdown", "json", "jsonl", ""].contains(&ending) {
        return note(
            Look::WARN,
            format!(
                "Cannot export as .{ending}: end the name in .md for Markdown, or in .jsonl for JSON Lines"
            ),
        );
    }
    let path = match (path.strip_prefix("~/"), screen::variable("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        (Some(_), None) | (None, _) => folder.join(path),
    };
    let is_markdown = path.extension().is_some_and(|ending| ending == "md" || ending == "markdown");
    let text = backend.export(if is_markdown { ExportFormat::Markdown } else { ExportFormat::Pi }).await?;
    let written = tokio::task::spawn_blocking(move || {
        if let Some(parent) = path.parent().filter(|parent| parent.ends_with(EXPORTS)) {
            std::fs::create_dir_all(parent)
                .map_err(|error| format!("write {}: {error}", parent.display()))?;
        }
        let written = private::create_new(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        written.map(|()| path.display().to_string()).map_err(|error| {
            if error.kind() == std::io::ErrorKind::AlreadyExists {
                format!("{} exists; use /export FILE with another name", path.display())
            } else {
                format!("write {}: {error}", path.display())
            }
        })
    });
    let path = written.await.map_err(|error| error.to_string())??;
    note(Look::DIM, format!("Exported to {path}"))
}

async fn tools(backend: &Backend, width: usize) -> Outcome {
    let tools = backend.tools().await?.tools;
    if tools.is_empty() {
        return note(Look::DIM, "the model has no tools");
    }
    let indent = Row::plain("    ");
    let rows_of = |tool: &ToolSummary| {
        let tokens = text_tokens(&format!("{}{}", tool.description, tool.parameters), Estimator::Classes);
        let what = tool.description.split(". ").next().unwrap_or_default().trim_end_matches('.');
        let row = Row::plain("  ").and(&tool.name, Look::BOLD).and(&format!("  {what}"), Look::PLAIN);
        row.and(&format!(" ({tokens} tokens)"), Look::DIM).wrap(width, &Row::default(), &indent)
    };
    rows(tools.iter().flat_map(rows_of).collect())
}

/// Sets the mode, and tells what it means.
async fn set_mode(
    backend: Backend,
    ticket: u64,
    mode: Mode,
    told: impl FnOnce(String) -> Done + Send,
) -> Outcome {
    let change = SetPermissions { mode: Some(mode), ..SetPermissions::default() };
    Ok(match backend.set_permissions(change).await {
        Ok(permissions) => {
            let text = format!("{}: {}", mode.as_str().replace('_', " "), mode.meaning());
            vec![Done::ModeSet(ticket, permissions.mode), told(text)]
        }
        Err(error) => vec![Done::ModeRefused(ticket), Done::Note(Look::BAD, Problem::from(error).0)],
    })
}

/// Adds a rule for this session.
async fn add_rule(backend: &Backend, effect: Effect, rule: String) -> Outcome {
    let mut change = SetPermissions::default();
    match effect {
        Effect::Allow => change.allow.push(rule.clone()),
        Effect::Ask => change.ask.push(rule.clone()),
        Effect::Deny => change.deny.push(rule.clone()),
    }
    backend.set_permissions(change).await?;
    note(Look::DIM, format!("for this session: {} {rule}", effect.as_str()))
}

fn permission_rows(permissions: &SessionPermissions, width: usize) -> Vec<Row> {
    let Some(mode) = permissions.mode else {
        return vec![Row::new("  every call of the tools runs", Look::DIM)];
    };
    let indent = Row::plain("    ");
    let wrapped = |row: Row| row.wrap(width, &Row::default(), &indent);
    let mut out = wrapped(
        Row::plain("  ").and(mode.as_str(), Look::BOLD).and(&format!("  {}", mode.meaning()), Look::PLAIN),
    );
    if let Some(problem) = &permissions.problem {
        out.extend(wrapped(Row::new(&format!("  every call is denied: {problem}"), Look::BAD)));
    }
    for rule in &permissions.rules {
        let look = match rule.effect {
            Effect::Allow => Look::GOOD,
            Effect::Ask => Look::WARN,
            Effect::Deny => Look::BAD,
        };
        let row =
            Row::plain("  ").and(&format!("{:<6}", rule.effect.as_str()), look).and(&rule.rule, Look::PLAIN);
        out.extend(wrapped(row.and(&format!("  from {}", rule.origin), Look::DIM)));
    }
    if permissions.rules.is_empty() {
        out.push(Row::new(
            "  no rules; /permissions allow bash(cargo test *) adds one for this session",
            Look::DIM,
        ));
    }
    out
}

#[cfg(test)]
mod tests;

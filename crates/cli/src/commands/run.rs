//! `greenroom run`: one prompt, for scripts.
//!
//! Invariants: standard output has the answer (or the events) and nothing else; the exit code gives the
//! result; partial output is always in the session's log.

use std::cell::RefCell;
use std::io::{BufRead, IsTerminal};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::{Error, Event, EventKind, EventType, Image, RunItem};
use greenroom_files::{self as files, FileError};
use greenroom_kernel::StopReason;
use greenroom_server::operations::{ClientKind, ImageData, PromptOutcome, PromptSession, Replay};
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_terminal::{ColorChoice, Interrupts, Look, Screen, format};
use greenroom_tools::ValueSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::agent::kept::Kept;
use crate::agent::{self, choice};
use crate::args::{Answers, Global, ModelArgs, RunArgs};
use crate::commands::run_view::{self, Played};
use crate::commands::view::{self, View};
use crate::error::{self, CliError};
use crate::host::ATTEMPTS;
use crate::host::link::Link;
use crate::host::{self, Patience};

/// How many events are replayed at a time.
const REPLAYED_MAX: usize = 1_000;
/// How long to wait for the first byte of standard input.
const PATIENCE: Duration = Duration::from_secs(3);
/// The maximum number of bytes of standard input: about the largest entry that the store accepts.
const INPUT_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The largest file with an answer's schema, in bytes.
const SCHEMA_BYTES_MAX: u64 = 1024 * 1024;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<u8> {
    let mut events = args.json.then(|| Events::new(global));
    let result = perform(global, args, events.as_mut()).await;
    let (Some(events), Err(error)) = (&mut events, &result) else { return result };
    let is_told = events.end.is_some() && is_end_of_run(error);
    let is_read = !error::is_closed_pipe(error) && !error.is::<run_view::Unread>();
    if is_read && !is_told {
        events.screen.json(&error::json(error, events.session.as_deref()))?;
    }
    result
}

/// Whether the error is the run's result, which its last event reports.
fn is_end_of_run(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<ClientError>().and_then(ClientError::kind);
    matches!(kind, Some(ProblemKind::Aborted | ProblemKind::Stopped))
        || matches!(error.downcast_ref(), Some(Error::Aborted))
}

async fn perform(global: &Global, args: &RunArgs, mut events: Option<&mut Events>) -> Result<u8> {
    let text = prompt(args).await?;
    let (mut global, mut model) = (global.clone(), args.model.clone());
    let kept = match &args.session {
        Some(id) => Kept::read(&global, id),
        None => None,
    };
    if let Some(kept) = &kept {
        // Nobody watches, so what the agent may do is up to this command.
        kept.complete(&mut global, &mut model, false);
        super::chat::begin::say_lacking(&global, kept)?;
    }
    choice::complete_unasked(&global, &mut model).await?;
    let global = &global;
    let images: Vec<Image> = args.images.iter().map(|path| image(path)).collect::<Result<_>>()?;
    let output_schema = args.output_schema.as_deref().map(output_schema).transpose()?;
    let prompt = PromptSession {
        // The key makes the prompt idempotent after a broken connection.
        key: Some(greenroom_chat::new_key()),
        images: images.iter().map(ImageData::from).collect(),
        output_schema,
        cost_limit_usd: args.max_cost,
        timeout_s: args.timeout,
        ..PromptSession::new("", text)
    };
    let interrupts = Interrupts::new()?;
    let patience = Patience::new(global, &interrupts);
    let model = ModelArgs { answers: Answers::Nobody, ..model };
    if args.no_session {
        return unstored(global, args, &model, &prompt, events, &interrupts).await;
    }
    let mut attempt = 1;
    let mut session: Option<String> = None;
    loop {
        let known = session.clone();
        let chosen = RefCell::new(None);
        let opening = Link::open_and(global, &model, ClientKind::Run, &patience, None, async |link| {
            let id = match &known {
                Some(id) => id.clone(),
                None => link.session_id(args.session.as_deref(), args.goes_on, "run").await?,
            };
            chosen.replace(Some(id.clone()));
            link.check_not_waiting(&id).await?;
            Ok(id)
        });
        let opened = interrupts.unless(opening).await;
        if let Some(events) = events.as_deref_mut() {
            events.session = chosen.into_inner();
        }
        let (link, id) = opened?;
        if attempt == 1 {
            if let Err(error) = keep(global, &model, &id) {
                agent::warn(global, &format!("the session is not resumed with these flags: {error:#}"))?;
            }
            link.say_warnings(global)?;
            interrupts.unless(link.say_folder(global, &args.model, &id)).await?;
        }
        session = Some(id.clone());
        let played = play(global, args, &link, &prompt, &id, events.as_deref_mut(), &interrupts).await;
        link.end().await?;
        if played.as_ref().is_ok_and(Played::is_lost) && attempt < ATTEMPTS {
            // The host died before it accepted the prompt: another one is asked.
            attempt += 1;
            continue;
        }
        let played = played?;
        return ended(global, played, &id);
    }
}

/// Returns the exit code of a run that was played.
fn ended(global: &Global, played: Played, id: &str) -> Result<u8> {
    match played.reply {
        Ok(_) => Ok(0),
        Err(error) if played.is_interrupted => {
            if host::is_silent_client(&error) {
                Screen::stderr(global.color).line(format!("greenroom: {error}"))?;
            }
            Err(Error::Aborted.into())
        }
        Err(error) if error.is_gone() => Err(cut_off(id).into()),
        Err(error) => Err(error.into()),
    }
}

/// Keeps what the session is resumed with. What its agent may do in a chat stays as it is.
fn keep(global: &Global, model: &ModelArgs, id: &str) -> Result<()> {
    let now = Kept::of(global, model)?;
    let now = match Kept::read(global, id) {
        Some(before) => now.with_permissions_of(&before),
        None => now,
    };
    now.write(global, id)
}

/// Runs the prompt in a runtime that stores nothing.
async fn unstored(
    global: &Global,
    args: &RunArgs,
    model: &ModelArgs,
    prompt: &PromptSession,
    events: Option<&mut Events>,
    interrupts: &Interrupts,
) -> Result<u8> {
    let link = interrupts.unless(Link::unstored(global, model)).await?;
    let id = "run";
    let mut events = events;
    if let Some(events) = events.as_deref_mut() {
        events.session = Some(id.to_owned());
    }
    let played = play(global, args, &link, prompt, id, events, interrupts).await;
    link.end().await?;
    ended(global, played?, id)
}

/// Returns the error that the host ended after it had accepted the prompt.
fn cut_off(session: &str) -> CliError {
    let text = format!(
        "the host ended before the answer was complete; finished steps are kept. `greenroom resume {session}` shows the \
         session, and /continue resumes the run there"
    );
    CliError::new(error::FAILED, text)
}

/// Sends the prompt, and shows the run.
async fn play(
    global: &Global,
    args: &RunArgs,
    link: &Link,
    prompt: &PromptSession,
    id: &str,
    mut events: Option<&mut Events>,
    interrupts: &Interrupts,
) -> Result<Played> {
    let notes = Screen::stderr(global.color);
    let is_watched = notes.is_terminal() || global.verbose > 0;
    let mut view = View::new(Screen::stdout(global.color), is_watched.then_some(notes));
    let is_typed = prompt.output_schema.is_some();
    let prompt = PromptSession { session_id: id.to_owned(), ..prompt.clone() };
    let timeout = args.timeout.map(Duration::from_secs);
    let of_session = link.client.events_of(id);
    let is_one_shot = (args.session.is_none() && !args.goes_on).then_some(true);
    let noted = RefCell::new(Ok(true));
    let noting = async {
        if !args.no_session {
            drop(noted.replace(link.note_folder(id, is_one_shot).await));
        }
    };
    let played = run_view::play(&link.client, of_session, prompt, timeout, interrupts, noting, |item| {
        match events.as_deref_mut() {
            Some(events) => events.item(item),
            None if !is_watched && let Some(text) = warning(item) => agent::warn(global, &text),
            // Only the complete value is printed.
            None if is_typed && is_text(item) => Ok(()),
            None => view.item(item),
        }
    });
    let played = played.await?;
    view.end()?;
    let is_left = |error: &ClientError| error.is_gone() || host::is_silent_client(error);
    if !played.is_accepted || played.reply.as_ref().is_err_and(is_left) {
        return Ok(played);
    }
    match noted.into_inner() {
        // The answer is durable anyway.
        Err(error) if host::is_gone(&error) => {}
        noted => drop(noted?),
    }
    finish(global, args, link, id, &mut view, events, played).await
}

/// Prints the end of a run.
async fn finish(
    global: &Global,
    args: &RunArgs,
    link: &Link,
    id: &str,
    view: &mut View,
    events: Option<&mut Events>,
    played: Played,
) -> Result<Played> {
    let value = played.reply.as_ref().ok().and_then(|outcome| outcome.value.as_ref());
    match events {
        Some(events) => {
            let stop = played.reply.as_ref().ok().map(|outcome| outcome.reply.stop);
            events.finish(&link.client, stop, value).await?;
        }
        None => value.iter().try_for_each(|value| view.text.json(value))?,
    }
    if let Ok(PromptOutcome { reply, .. }) = &played.reply {
        // Otherwise the warning has said so; a script would take the partial text for the complete answer.
        if let Some(cut_off) = reply.stop.cut_off().filter(|_| args.json) {
            Screen::stderr(global.color).line(format!("greenroom: {cut_off}"))?;
        }
        let session = if args.no_session { String::new() } else { format!("session {id}: ") };
        let line = format!("  {session}{}", format::fill(&reply.context));
        view.note(Look::DIM, &line)?;
    }
    Ok(played)
}

/// Returns what standard error says of an item where the rest of the run is not shown: warnings, and the calls that the
/// permissions denied.
fn warning<R>(item: &RunItem<R>) -> Option<String> {
    let RunItem::Event(event) = item else { return None };
    if let EventKind::Warning { message } = &event.kind {
        Some(message.clone())
    } else {
        view::denied(&event.kind, None)
    }
}

/// Whether the item is text of the agent.
fn is_text<R>(item: &RunItem<R>) -> bool {
    let RunItem::Event(event) = item else { return false };
    matches!(
        event.kind,
        EventKind::MessageStart | EventKind::MessageDelta { .. } | EventKind::MessageEnd { .. }
    )
}

/// Reads the schema of the answer: from a file, or from the flag's value.
fn output_schema(given: &str) -> Result<Value> {
    let (text, what) = if given.trim_start().starts_with('{') {
        (given.to_owned(), "--output-schema".to_owned())
    } else {
        let bytes = files::read(Path::new(given), SCHEMA_BYTES_MAX).map_err(|error| {
            error::usage(format!("--output-schema: read {given}: {error}; give a file, or a schema such as {{\"type\": \"object\"}}"))
        })?;
        (String::from_utf8_lossy(&bytes).into_owned(), format!("--output-schema {given}"))
    };
    let schema: Value = serde_json::from_str(&text)
        .map_err(|error| error::usage(format!("{what}: not valid JSON: {error}")))?;
    ValueSchema::new(&schema).map_err(|reason| error::usage(format!("{what}: {reason}")))?;
    Ok(schema)
}

/// Reads an image from a file.
fn image(path: &Path) -> Result<Image> {
    let shown = path.display();
    let bytes =
        files::read(path, INPUT_BYTES_MAX).map_err(|error| error::usage(format!("read {shown}: {error}")))?;
    Image::new(bytes).map_err(|error| error::usage(format!("{shown}: {error}")))
}

/// Returns the prompt: the text of the command line, then the piped input.
async fn prompt(args: &RunArgs) -> Result<String> {
    let said = args.prompt.iter().filter(|text| !text.is_empty()).chain(&args.words);
    let said = said.cloned().collect::<Vec<_>>().join(" ");
    let mut parts: Vec<String> = Vec::from_iter((!said.is_empty()).then_some(said));
    if !std::io::stdin().is_terminal() {
        let bytes = standard_input(!parts.is_empty()).await?;
        let text = String::from_utf8_lossy(&bytes);
        let replaced = text.matches('\u{fffd}').count();
        if std::str::from_utf8(&bytes).is_err() {
            Screen::stderr(ColorChoice::Never).line(format!(
                "greenroom: warning: standard input is not UTF-8; {replaced} places in it are now the character U+FFFD"
            ))?;
        }
        if !text.trim().is_empty() {
            parts.push(text.trim_end().to_owned());
        }
    }
    let prompt = parts.join("\n\n");
    if prompt.trim().is_empty() {
        return Err(error::usage("there is no prompt: greenroom -p \"…\", or pipe it in"));
    }
    Ok(prompt)
}

/// Reads all of standard input. Some programs start others with an open and silent standard input, so if
/// there is already a prompt, an input without a first byte is not waited for.
async fn standard_input(may_do_without: bool) -> Result<Vec<u8>> {
    let (begun, has_begun) = oneshot::channel();
    let reading = tokio::task::spawn_blocking(move || {
        let mut input = std::io::stdin().lock();
        let first = input.fill_buf().map(<[u8]>::len);
        let _ = begun.send(());
        first.map_err(FileError::Io).and_then(|_| files::read_all(input, INPUT_BYTES_MAX))
    });
    if may_do_without && tokio::time::timeout(PATIENCE, has_begun).await.is_err() {
        let mut notes = Screen::stderr(ColorChoice::Never);
        notes.line("greenroom: no standard input for 3 s; continuing without it")?;
        return Ok(Vec::new());
    }
    reading.await?.map_err(|error| error::usage(format!("read standard input: {error}")))
}

/// Prints events as lines of JSON.
struct Events {
    screen: Screen,
    session: Option<String>,
    /// The first durable event that may have been missed, until a later one arrives.
    missed_from: Option<u64>,
    /// Durable events that were missed because this reader was too slow.
    missed: Vec<Range<u64>>,
    /// The end of the run, which is printed last.
    end: Option<Arc<Event>>,
}

/// The end of a run, with parts of its result that its event lacks.
#[derive(Serialize)]
struct RunEnd<'a> {
    #[serde(flatten)]
    event: &'a Event,
    /// Why the last answer ended, if the run was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<StopReason>,
    /// The answer's value, if a schema was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value>,
}

impl Events {
    fn new(global: &Global) -> Self {
        let screen = Screen::stdout(global.color);
        Self { screen, session: None, missed_from: None, missed: Vec::new(), end: None }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "texts and the reply are in the events too")]
    fn item<R>(&mut self, item: &RunItem<R>) -> Result<()> {
        match item {
            RunItem::Event(event) => {
                if event.is_durable() {
                    self.missed.extend(self.missed_from.take().map(|from| from..event.seq));
                }
                if event.kind.event_type() == EventType::RunEnd {
                    self.end = Some(Arc::clone(event));
                    return Ok(());
                }
                Ok(self.screen.json(&**event)?)
            }
            RunItem::Gap { from_seq } => {
                self.missed_from = self.missed_from.or(*from_seq);
                let gap = json!({ "type": "gap", "from_seq": from_seq, "session_id": self.session });
                Ok(self.screen.json(&gap)?)
            }
            _ => Ok(()),
        }
    }

    /// Prints missed events from the log, and then the end of the run with its result.
    async fn finish(
        &mut self,
        client: &Client,
        stop: Option<StopReason>,
        value: Option<&Value>,
    ) -> Result<()> {
        let Some(session) = self.session.clone() else { return Ok(()) };
        // The end may be among them.
        self.missed.extend(self.missed_from.take().map(|from| from..u64::MAX));
        if let Some(first) = self.missed.iter().map(|range| range.start).min() {
            let mut next = Some(first);
            'pages: while let Some(from_seq) = next {
                let replay = Replay { session_id: session.clone(), from_seq, limit: REPLAYED_MAX };
                let page = client.call(replay).await?;
                for event in page.events {
                    if self.missed.iter().any(|range| range.contains(&event.seq)) {
                        if event.kind.event_type() == EventType::RunEnd {
                            self.end = Some(Arc::new(event));
                            break 'pages;
                        }
                        self.screen.json(&event)?;
                    }
                }
                next = page.next;
            }
        }
        if let Some(event) = &self.end {
            self.screen.json(&RunEnd { event, stop, value })?;
        }
        Ok(())
    }
}

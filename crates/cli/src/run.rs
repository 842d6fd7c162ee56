//! `greenroom run`: one prompt, for scripts.
//!
//! Invariants: standard output carries the answer (or the events) and nothing else; the exit code says how it
//! went; whatever happens, what had come is in the session's log.

use std::io::{BufRead, IsTerminal};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::kernel::StopReason;
use greenroom::tools::ValueSchema;
use greenroom::{Error, Event, EventKind, EventType, Image, Prompt, RunItem, Runtime};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::files::{self, FileError};
use crate::interrupt::Interrupts;
use crate::options::{Color, Global, RunArgs};
use crate::run_view::Played;
use crate::setup::{Setup, Stay};
use crate::terminal::{Screen, Style};
use crate::view::View;
use crate::{errors, picture, run_view};

/// How long standard input may take to begin.
const PATIENCE: Duration = Duration::from_secs(3);
/// The most that is read from standard input, in bytes: about what the store takes as one entry.
const INPUT_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The most that the file of an answer's schema may have, in bytes.
const SCHEMA_BYTES_MAX: u64 = 1024 * 1024;

/// Runs it.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<u8> {
    let mut events = args.json.then(|| Events::new(global));
    let result = perform(global, args, events.as_mut()).await;
    let (Some(events), Err(error)) = (&mut events, &result) else { return result };
    let is_told =
        events.end.is_some() && matches!(error.downcast_ref(), Some(Error::Aborted | Error::Stopped { .. }));
    if !errors::is_closed_pipe(error) && !is_told {
        events.screen.json(&errors::json(error, events.session.as_deref()))?;
    }
    result
}

async fn perform(global: &Global, args: &RunArgs, mut events: Option<&mut Events>) -> Result<u8> {
    let mut prompt = Prompt::from(prompt(args).await?);
    for path in &args.images {
        prompt = prompt.image(image(path)?);
    }
    let schema = args.output_schema.as_deref().map(output_schema).transpose()?;
    let interrupts = Interrupts::new()?;
    let setup = Setup::new(global, &args.model, Stay::UntilReply).await?;
    setup.check_reachable().await?;
    let id = setup.session_id(args.session.as_deref(), args.goes_on, "run").await?;
    if let Some(events) = events.as_deref_mut() {
        events.session = Some(id.clone());
    }
    setup.check_not_waiting(&id, false).await?;
    let session = setup.runtime.open(&id, &setup.agent).await?;
    let notes = Screen::stderr(global.color);
    let is_watched = notes.is_terminal() || global.verbose > 0;
    let mut view = View::new(Screen::stdout(global.color), is_watched.then_some(notes));
    let mut request = session.prompt(prompt);
    if let Some(usd) = args.max_cost {
        request = request.cost_limit_usd(usd);
    }
    if let Some(seconds) = args.timeout {
        request = request.timeout(Duration::from_secs(seconds));
    }
    let played = async {
        Ok(match schema {
            None => {
                let played =
                    run_view::play(request.stream(), &interrupts, |item| match events.as_deref_mut() {
                        Some(events) => events.item(item),
                        None => view.item(item),
                    });
                let Played { reply, is_interrupted } = played.await?;
                Played { reply: reply.map(|reply| (reply, None)), is_interrupted }
            }
            Some(schema) => {
                let stream = request.output_schema(schema).stream();
                let played = run_view::play(stream, &interrupts, |item| match events.as_deref_mut() {
                    Some(events) => events.item(item),
                    // The value alone is printed, when it is whole.
                    None if is_text(item) => Ok(()),
                    None => view.item(item),
                });
                let Played { reply, is_interrupted } = played.await?;
                Played { reply: reply.map(|typed| (typed.reply, Some(typed.value))), is_interrupted }
            }
        })
    };
    let played = match played.await {
        Ok(played) => played,
        Err(error) => {
            // The reader went away: the run was cancelled, and its end is to be in the log.
            setup.runtime.shutdown().await?;
            return Err(error);
        }
    };
    view.end()?;
    setup.note_folder(&session).await?;
    match (events, &played.reply) {
        (Some(events), Ok((reply, value))) => {
            events.finish(&setup.runtime, Some(reply.stop), value.as_ref()).await?;
        }
        (Some(events), Err(_)) => events.finish(&setup.runtime, None, None).await?,
        (None, Ok((_, Some(value)))) => view.text.json(value)?,
        (None, Ok((_, None)) | Err(_)) => {}
    }
    if let Ok((reply, _)) = &played.reply {
        // A person at a terminal has seen the warning; a script would take what came for the whole answer.
        if let Some(cut_off) = reply.stop.cut_off().filter(|_| view.notes.is_none() || args.json) {
            Screen::stderr(global.color).line(format!("greenroom: {cut_off}"))?;
        }
        let line = format!("  session {id}: {}", picture::fill(&reply.context));
        view.note(Style::Dim, &line)?;
    }
    setup.runtime.shutdown().await?;
    if played.is_interrupted && played.reply.is_err() {
        return Err(Error::Aborted.into());
    }
    played.reply?;
    Ok(0)
}

/// Whether it is something that the agent says.
fn is_text<R>(item: &RunItem<R>) -> bool {
    let RunItem::Event(event) = item else { return false };
    matches!(
        event.kind,
        EventKind::MessageStart | EventKind::MessageDelta { .. } | EventKind::MessageEnd { .. }
    )
}

/// The schema of the answer: from a file, or as it was given.
fn output_schema(given: &str) -> Result<Value> {
    let (text, what) = if given.trim_start().starts_with('{') {
        (given.to_owned(), "--output-schema".to_owned())
    } else {
        let bytes = files::read(Path::new(given), SCHEMA_BYTES_MAX).map_err(|error| {
            errors::usage(format!("--output-schema: read {given}: {error}; give a file, or a schema such as {{\"type\": \"object\"}}"))
        })?;
        (String::from_utf8_lossy(&bytes).into_owned(), format!("--output-schema {given}"))
    };
    let schema: Value = serde_json::from_str(&text)
        .map_err(|error| errors::usage(format!("{what}: it is no JSON: {error}")))?;
    ValueSchema::new(&schema).map_err(|reason| errors::usage(format!("{what}: {reason}")))?;
    Ok(schema)
}

/// An image from a file.
fn image(path: &Path) -> Result<Image> {
    let shown = path.display();
    let bytes = files::read(path, INPUT_BYTES_MAX)
        .map_err(|error| errors::usage(format!("read {shown}: {error}")))?;
    Image::new(bytes).map_err(|error| errors::usage(format!("{shown}: {error}")))
}

/// What to say: the flag's text, then what was piped in.
async fn prompt(args: &RunArgs) -> Result<String> {
    let mut parts: Vec<String> = args.prompt.iter().cloned().collect();
    if !std::io::stdin().is_terminal() {
        let bytes = standard_input(args.prompt.is_some()).await?;
        let text = String::from_utf8_lossy(&bytes);
        let replaced = text.matches('\u{fffd}').count();
        if std::str::from_utf8(&bytes).is_err() {
            Screen::stderr(Color::Never).line(format!(
                "greenroom: warning: standard input is not UTF-8; {replaced} places in it are now the character U+FFFD"
            ))?;
        }
        if !text.trim().is_empty() {
            parts.push(text.trim_end().to_owned());
        }
    }
    let prompt = parts.join("\n\n");
    if prompt.trim().is_empty() {
        return Err(errors::usage("there is no prompt: give one with -p \"…\", or pipe it in"));
    }
    Ok(prompt)
}

/// All of standard input. Programs that start others like to leave it open without a word: where there is a prompt
/// already, an input that does not even begin is not waited for.
async fn standard_input(may_do_without: bool) -> Result<Vec<u8>> {
    let (begun, has_begun) = oneshot::channel();
    let reading = tokio::task::spawn_blocking(move || {
        let mut input = std::io::stdin().lock();
        let first = input.fill_buf().map(<[u8]>::len);
        let _ = begun.send(());
        first.map_err(FileError::Io).and_then(|_| files::read_all(input, INPUT_BYTES_MAX))
    });
    if may_do_without && tokio::time::timeout(PATIENCE, has_begun).await.is_err() {
        let mut notes = Screen::stderr(Color::Never);
        notes.line("greenroom: nothing came on standard input for 3 s; going on without it")?;
        return Ok(Vec::new());
    }
    reading.await?.map_err(|error| errors::usage(format!("read standard input: {error}")))
}

/// Events as lines of JSON.
struct Events {
    screen: Screen,
    session: Option<String>,
    /// The first durable event that may have been missed, while no later one has come.
    missed_from: Option<u64>,
    /// Durable events that did not come, since this reader was too slow for them.
    missed: Vec<Range<u64>>,
    /// The end of the run, which is printed last.
    end: Option<Arc<Event>>,
}

/// The end of a run, with what its result says beside its event.
#[derive(Serialize)]
struct RunEnd<'a> {
    #[serde(flatten)]
    event: &'a Event,
    /// Why the last answer ended, where the run was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<StopReason>,
    /// The answer's value, where a schema was given.
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

    /// Prints what was missed, from the log, and then the end of the run with what its result says.
    async fn finish(
        &mut self,
        runtime: &Runtime,
        stop: Option<StopReason>,
        value: Option<&Value>,
    ) -> Result<()> {
        let Some(session) = self.session.clone() else { return Ok(()) };
        // Even the end may be among them.
        self.missed.extend(self.missed_from.take().map(|from| from..u64::MAX));
        if let Some(first) = self.missed.iter().map(|range| range.start).min() {
            for event in runtime.replay(&session, first).await? {
                if self.missed.iter().any(|range| range.contains(&event.seq)) {
                    if event.kind.event_type() == EventType::RunEnd {
                        self.end = Some(Arc::new(event));
                        break;
                    }
                    self.screen.json(&event)?;
                }
            }
        }
        if let Some(event) = &self.end {
            self.screen.json(&RunEnd { event, stop, value })?;
        }
        Ok(())
    }
}

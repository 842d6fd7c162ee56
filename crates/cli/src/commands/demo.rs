//! `greenroom demo`: an agent reads a folder until its window has filled several times.
//!
//! Invariants: the runtime, the store, the tools and the HTTP are real; only the model is simulated. Nothing
//! in the folder is changed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use greenroom::{Agent, Event, EventKind, FailureClass, RunItem, Runtime};
use greenroom_files::private;
use greenroom_kernel::ToolStatus;
use greenroom_kernel::usage::ContextUsage;
use greenroom_server::operations::PromptSession;
use greenroom_server::{Client, ClientError, Problem};
use greenroom_simulator::Pace;
use greenroom_terminal::screen::{one_line, wrapped};
use greenroom_terminal::text::thousands;
use greenroom_terminal::{Interrupts, Look, Row, Screen, format, time};
use greenroom_tools::{Workspace, builtin};

use crate::agent::simulated::{MODEL, Simulated};
use crate::agent::{self, Stay};
use crate::args::{DemoArgs, Global};
use crate::commands::{chat, run_view};
use crate::config::surroundings::Surroundings;
use crate::config::{Config, ProviderConfig};
use crate::error;
use crate::host::{self, Answering, Unreached, link, own};

mod sample;

/// The maximum number of steps with tool calls in one run.
const STEPS_PER_TURN: u64 = 12;
/// After this time no more prompts are sent.
const TIME_MAX: Duration = Duration::from_secs(40);
/// How many prompts may exceed the window.
const FLOORS_MAX: u32 = 3;
/// A folder counts as small if one run fills less than this share of the window.
const SMALL_SHARE: u64 = 4;
/// The window while the made-up project is read, in tokens: it fills several times before all is read.
const SAMPLE_WINDOW: u64 = 12_000;
/// The window for small folders, in tokens.
const SMALL_WINDOW: u64 = 6_000;
/// Pauses in the simulated model's answers, to make the demo watchable.
const WATCHABLE: Pace = Pace { chunks: 4, first_ms: 60, between_ms: 12 };

const INSTRUCTIONS: &str = "You are a careful reader of other people's projects. You have tools to list, read and \
                            search the files of one folder. Look before you speak, and say what you found.";

const PROMPTS: [&str; 6] = [
    "Get to know this folder: see what is here, and read what explains it.",
    "Now read how it is made: one file after the other.",
    "Read on, and look for where the names that matter are used.",
    "What have you not read yet? Go on there.",
    "Go deeper: read the folders that you have not looked into.",
    "Read on through the rest, and keep note of what you find.",
];

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &DemoArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let named = agent::workspace(global, &args.workspace, &Surroundings::here())?;
    // It ends, and its files are removed, with this command.
    let sample = match sample::is_enough(named.root()) {
        true => None,
        false => Some(sample::write().context("write a project for the demo")?),
    };
    let (workspace, window) = match &sample {
        Some(sample) => (Workspace::open(sample.root())?, args.window.min(SAMPLE_WINDOW)),
        None => (named.clone(), args.window),
    };
    let pace = if args.fast { Pace::default() } else { WATCHABLE };
    let simulated = Simulated::start(window, STEPS_PER_TURN, pace).await?;
    let (global, runtime) = &start(global, &simulated).await?;
    // Other terminals can use the store in the meantime.
    let answering = Answering::begin(global, runtime)?.part_of("greenroom demo");
    let agent = Agent::new(MODEL)
        .instructions(INSTRUCTIONS)
        .tools(&builtin::read_only(workspace.clone()))
        .context_window(window);
    let client = Client::in_process(runtime, agent.clone());
    let id = link::new_session(&client, "demo").await?;

    let mut show = Show::new(Screen::stdout(global.color), window);
    let little = sample.is_some().then(|| named.root().display().to_string());
    show.intro(&workspace, &simulated, little)?;
    let played = play(&mut show, runtime, client, &id, &agent, args.compactions, &interrupts).await;
    show.screen.clear_live()?;
    // Even after an interruption, the session is complete and can be read.
    let head = runtime.summary(&id).await?;
    let end = match &played {
        Ok(end) => *end,
        Err(_) => End::Failed,
    };
    show.figures(end, args, head.as_ref())?;
    for violation in simulated.violations() {
        show.screen.line(format!("the simulated model complains: {violation}"))?;
    }
    show.goodbye(global, &id)?;
    answering.end(runtime.clone(), async {}).await?;
    played?;
    Ok(if end == End::Interrupted { error::INTERRUPTED } else { 0 })
}

/// Starts a runtime with the user's store, in place of an idle host; if the store is in use, with a store of
/// its own.
async fn start(global: &Global, simulated: &Simulated) -> Result<(Global, Runtime)> {
    let provider = simulated.provider()?;
    let compaction = Config::default().compaction;
    let start = async |global: &Global| {
        let _ = host::make_room(global).await?;
        let provider = provider.clone();
        own::runtime(global, provider, &ProviderConfig::default(), &compaction, Stay::UntilReply).await
    };
    match start(global).await {
        Err(error) if error.is::<Unreached>() || error::is_store_in_use(&error) => {
            let name = format!("greenroom-demo-{}-{}", time::stamp(time::now_ms()), std::process::id());
            let dir = std::env::temp_dir().join(name);
            private::create_folder(&dir).with_context(|| format!("make {}", dir.display()))?;
            let line = format!(
                "greenroom: your store is in use, so the demo keeps its session in {}, which you can remove later",
                dir.display()
            );
            Screen::stderr(global.color).line(line)?;
            let global = Global { data_dir: Some(dir), ..global.clone() };
            let runtime = start(&global).await?;
            Ok((global, runtime))
        }
        started => Ok((global.clone(), started?)),
    }
}

/// Why the demo is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    NothingToRead,
    OutOfTime,
    Interrupted,
    Failed,
}

/// Sends prompts until there were enough compactions.
async fn play(
    show: &mut Show,
    runtime: &Runtime,
    mut client: Client,
    id: &str,
    agent: &Agent,
    compactions: u64,
    interrupts: &Interrupts,
) -> Result<End> {
    let window = show.window;
    let mut wider = None;
    let mut floors = 0;
    for number in 0.. {
        let prompt = PROMPTS[number.min(PROMPTS.len() - 1)];
        show.prompt(prompt)?;
        let (events, work) = (client.events_of(id), PromptSession::new(id, prompt));
        let played = run_view::play(&client, events, work, None, interrupts, async {}, |item| {
            if let RunItem::Event(event) = item { show.event(event) } else { Ok(()) }
        });
        let played = played.await?;
        if played.is_interrupted {
            return Ok(End::Interrupted);
        }
        let reply = match played.reply {
            // Messages that cannot be compacted now can be once they are not the newest.
            Err(ClientError::Refused(problem)) if is_context_overflow(&problem) && floors < FLOORS_MAX => {
                floors += 1;
                show.notice(&problem.to_string())?;
                continue;
            }
            reply => reply?.reply,
        };
        show.answer(&reply.text)?;
        if show.reads == 0 {
            return Ok(End::NothingToRead);
        }
        if show.compactions.len() as u64 >= compactions {
            return Ok(End::Done);
        }
        if show.started.elapsed() > TIME_MAX {
            return Ok(End::OutOfTime);
        }
        let is_small =
            wider.is_none() && show.compactions.is_empty() && reply.context.tokens < window / SMALL_SHARE;
        if is_small && window > SMALL_WINDOW {
            // The model's own window does not change; the agent chooses to use less of it.
            let smaller = Client::in_process(runtime, agent.clone().context_window(SMALL_WINDOW));
            // The end of a connection closes its sessions, also for other connections.
            wider = Some(std::mem::replace(&mut client, smaller));
            show.smaller(SMALL_WINDOW)?;
        }
    }
    Ok(End::Done)
}

/// Whether the context is too large for the window, and could not be made small enough.
fn is_context_overflow(problem: &Problem) -> bool {
    let class = problem.failure.as_ref().map(|failure| failure.class);
    matches!(class, Some(FailureClass::ContextOverflow | FailureClass::ContextFloor))
}

/// The state of the display.
struct Show {
    screen: Screen,
    started: Instant,
    context: Option<ContextUsage>,
    window: u64,
    top: u64,
    doing: String,
    reads: u64,
    prompts: u64,
    model_calls: u64,
    tool_calls: BTreeMap<String, u64>,
    run_calls: BTreeMap<String, u64>,
    failed_calls: u64,
    /// The sizes before and after.
    compactions: Vec<(u64, u64)>,
    sizes: Vec<u64>,
}

impl Show {
    fn new(screen: Screen, window: u64) -> Self {
        Self {
            screen,
            started: Instant::now(),
            context: None,
            window,
            top: window,
            doing: String::new(),
            reads: 0,
            prompts: 0,
            model_calls: 0,
            tool_calls: BTreeMap::new(),
            run_calls: BTreeMap::new(),
            failed_calls: 0,
            compactions: Vec::new(),
            sizes: Vec::new(),
        }
    }

    /// Says what the demo does. `little` is the folder that has too little to read, if a made-up project is read.
    fn intro(&mut self, workspace: &Workspace, simulated: &Simulated, little: Option<String>) -> Result<()> {
        let folder = workspace.root().display().to_string();
        let width = self.screen.width().clamp(40, 120) - 1;
        if let Some(little) = little {
            let text = format!(
                "There is too little to read in {} to fill a window, so the agent reads a made-up project.",
                one_line(&little, 80)
            );
            for line in wrapped(&text, width, 3) {
                self.screen.line(line)?;
            }
        }
        let title = Row::styled(Look::BOLD, format!("An agent reads {}.", one_line(&folder, 80)));
        self.screen.line(title)?;
        let text = format!(
            "Its model is simulated, in this process, at {}, with a window of {} tokens. The file tools are real and \
             change nothing. Whenever the window fills (at ┆), the older part of the conversation is replaced by a \
             summary.",
            simulated.address(),
            thousands(self.window),
        );
        for line in wrapped(&text, width, 9) {
            self.screen.line(line)?;
        }
        Ok(())
    }

    fn prompt(&mut self, prompt: &str) -> Result<()> {
        self.prompts += 1;
        let prompt = Row::styled(Look::GOOD, format!("› {prompt}"));
        self.screen.line("")?;
        self.screen.line(prompt)?;
        self.doing = "thinking".to_owned();
        self.redraw()
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "events are open-ended")]
    fn event(&mut self, event: &Event) -> Result<()> {
        match &event.kind {
            EventKind::StepStart { .. } => {
                self.model_calls += 1;
                self.doing = "thinking".to_owned();
            }
            EventKind::ToolStart { name, arguments, .. } => {
                self.doing = format::call(name, arguments, 60);
                *self.run_calls.entry(name.clone()).or_default() += 1;
                *self.tool_calls.entry(name.clone()).or_default() += 1;
                if !self.screen.is_terminal() {
                    let line = format!("{} {}", self.gauge(), self.doing);
                    self.screen.line(line)?;
                }
            }
            EventKind::ToolEnd { name, status, .. } => match status {
                ToolStatus::Ok => self.reads += u64::from(name == "read"),
                ToolStatus::Error | ToolStatus::Interrupted => self.failed_calls += 1,
            },
            EventKind::UsageUpdate { context, .. } => {
                self.context = Some(*context);
                self.window = context.window.unwrap_or(self.window);
                self.sizes.push(context.tokens);
            }
            EventKind::CompactionStart { tokens_before, .. } => {
                self.doing = format!("compacting {}", format::short(*tokens_before));
            }
            EventKind::CompactionEnd(end) => {
                if end.tokens_after < end.tokens_before {
                    self.compactions.push((end.tokens_before, end.tokens_after));
                    self.sizes.push(end.tokens_after);
                    if let Some(context) = &mut self.context {
                        context.tokens = end.tokens_after;
                    }
                }
                let line = Row::styled(Look::NOTE, format!("  {}", format::compaction(end)));
                self.screen.line(line)?;
            }
            EventKind::Fallback { model, failure, .. } => {
                self.notice(&format!("continuing with {model}: {failure}"))?
            }
            EventKind::OverflowDetected => self.notice("the server truncated the context silently")?,
            EventKind::Retry { failure, .. } => self.notice(&format!("trying again: {failure}"))?,
            EventKind::Warning { message } => self.notice(message)?,
            EventKind::SessionRestarted { reason } => {
                self.notice(&format!("the session was restarted: {reason}"))?
            }
            _ => return Ok(()),
        }
        self.redraw()
    }

    fn notice(&mut self, text: &str) -> Result<()> {
        for line in wrapped(text, self.screen.width().clamp(40, 120) - 3, 4) {
            let line = Row::styled(Look::WARN, format!("  {line}"));
            self.screen.line(line)?;
        }
        Ok(())
    }

    fn answer(&mut self, text: &str) -> Result<()> {
        if self.screen.is_terminal() && !self.run_calls.is_empty() {
            let line = Row::styled(Look::DIM, format!("  {}", calls(&self.run_calls)));
            self.screen.line(line)?;
        }
        self.run_calls.clear();
        for line in wrapped(text, self.screen.width().clamp(40, 120) - 3, 3) {
            self.screen.line(format!("  {line}"))?;
        }
        Ok(())
    }

    fn smaller(&mut self, window: u64) -> Result<()> {
        self.top = window;
        self.window = window;
        self.sizes.clear();
        self.notice(&format!(
            "There is little to read here, so from now on the agent uses only {} tokens of the window, and reads \
             it again and again.",
            thousands(window)
        ))
    }

    /// Returns the bar at the start of each plain line.
    fn gauge(&self) -> String {
        let tokens = self.context.map_or(0, |context| context.tokens);
        format!("{} {:>6}", self.bar(24), format::short(tokens))
    }

    fn bar(&self, width: usize) -> String {
        let tokens = self.context.map_or(0, |context| context.tokens);
        let trigger = Config::default().compaction.trigger_tokens(self.window).unwrap_or(self.window);
        format::bar(tokens, self.window, trigger, width)
    }

    fn redraw(&mut self) -> Result<()> {
        if !self.screen.is_terminal() {
            return Ok(());
        }
        let bar = Row::styled(Look::GOOD, self.bar(32));
        let fill = self.context.map(|context| format::fill(&context)).unwrap_or_default();
        let room = self.screen.width().saturating_sub(2 + 32 + 2 + fill.len() + 3);
        let doing = Row::styled(Look::DIM, one_line(&self.doing, room));
        Ok(self.screen.live(Row::from("  ").then(bar).then(format!(" {fill}  ")).then(doing))?)
    }

    fn figures(&mut self, end: End, args: &DemoArgs, head: Option<&greenroom::SessionSummary>) -> Result<()> {
        let width = self.screen.width().clamp(40, 120) - 2;
        self.screen.line("")?;
        let word = match end {
            End::Done => None,
            End::NothingToRead => Some(format!(
                "There is nothing to read in {}: no text files are in it. Run the demo in a folder with some, or name \
                 one with --workspace.",
                args.workspace.display()
            )),
            End::OutOfTime => {
                Some("That took long enough: there is little to read in this folder.".to_owned())
            }
            End::Interrupted => Some("Interrupted. Partial output is kept.".to_owned()),
            End::Failed => Some("The demo could not continue.".to_owned()),
        };
        if let Some(word) = word {
            let word = Row::styled(Look::WARN, &word);
            self.screen.line(word)?;
        }
        if self.sizes.len() > 1 {
            let history = format::history(&self.sizes, self.top, width);
            let history = Row::styled(Look::GOOD, &history);
            self.screen.line("The context over time, a column for each model call and each compaction:")?;
            self.screen.line(Row::from("  ").then(history))?;
        }
        let usage = head.map(|head| head.usage).unwrap_or_default();
        let failed = if self.failed_calls > 0 {
            format!(", {} of them failed", self.failed_calls)
        } else {
            String::new()
        };
        let calls: u64 = self.tool_calls.values().sum();
        self.screen.line(format!(
            "{}, {}, {}{failed}, in {}",
            format::count(self.prompts, "run"),
            format::count(self.model_calls, "model call"),
            format::count(calls, "tool call"),
            format::duration(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)),
        ))?;
        self.screen.line(format!(
            "{} tokens sent (summaries included), {} received, never more than {} at once",
            thousands(usage.input_tokens),
            thousands(usage.output_tokens),
            thousands(self.top),
        ))?;
        let list: Vec<String> = self
            .compactions
            .iter()
            .map(|(before, after)| format!("{} → {}", format::short(*before), format::short(*after)))
            .collect();
        let list = if list.is_empty() { String::new() } else { format!(": {}", list.join(", ")) };
        self.screen.line(format!("{}{list}", format::count(self.compactions.len() as u64, "compaction")))?;
        Ok(())
    }

    fn goodbye(&mut self, global: &Global, id: &str) -> Result<()> {
        let dir = chat::data_dir_flag(global);
        self.screen.line("")?;
        self.screen.line(format!(
            "The session is kept in {}. Show or resume it:",
            agent::data_dir(global)?.display()
        ))?;
        self.screen.line(format!("  greenroom sessions{dir}"))?;
        self.screen.line(format!("  greenroom show {id}{dir}"))?;
        self.screen.line(format!("  greenroom chat --session {id} --simulate --window {}{dir}", self.top))?;
        Ok(())
    }
}

/// Formats counts of calls: `7 read, 2 list`.
fn calls(calls: &BTreeMap<String, u64>) -> String {
    let list: Vec<String> = calls.iter().map(|(name, count)| format!("{count} × {name}")).collect();
    list.join(", ")
}

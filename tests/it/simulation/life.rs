//! A life: the runtime is started, used, and ended cleanly or by a crash; again and again over one store.
//!
//! A crash is the end of tokio's runtime: every task is dropped where it waits. The store keeps its content.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use greenroom::prelude::*;
use greenroom::{BeforeCompact, Fallback, Resumed, Subscription};
use greenroom_kernel::run::RunLimits;
use greenroom_kernel::{EntryId, RunOutcome};
use greenroom_simulator::{ByPurpose, Simulator, SimulatorOptions, Summariser};
use greenroom_store::Store;
use greenroom_store::faults::{EIO, ENOSPC, Fault, FaultyFiles, MemoryFiles, Random};
use greenroom_store::files::{Files, OpenMode};
use tokio::task::JoinHandle;

use super::check::{Input, Logs, Who};
use super::plan::{Plan, once_in, pick};
use super::tools::{Recorded, Runs};
use super::{Outcome, hooks, model};

mod checks;

/// No request takes longer than this, whatever goes wrong.
const PATIENCE: Duration = Duration::from_secs(8 * 3600);

/// What happened to sessions that were told to sleep.
#[derive(Debug, Default)]
struct Sleep {
    told: BTreeSet<String>,
    asleep: u64,
    /// They had something to do.
    awake: u64,
}

impl Sleep {
    fn come_to(&mut self, session: &str, point: &str) {
        match point {
            "session/sleep" => _ = self.told.insert(session.to_owned()),
            "agent/flush_events" => self.asleep += u64::from(self.told.remove(session)),
            "agent/begin" | "agent/continue" => self.awake += u64::from(self.told.remove(session)),
            "session/starts" => _ = self.told.remove(session),
            _ => {}
        }
    }
}

struct World<'a> {
    plan: Plan,
    random: Random,
    store: Store,
    model: Simulator,
    /// The fallback model.
    spare: Simulator,
    /// A model that never fails, for the last life.
    calm: Simulator,
    runs: Runs,
    panics: Arc<AtomicU64>,
    tool_panics: Arc<AtomicU64>,
    inputs: Vec<Input>,
    logs: Logs,
    /// When a subscriber leaves and comes back.
    cuts: Random,
    /// The disk of the store, and its failures.
    disk: FaultyFiles,
    disk_dice: Random,
    /// How often the disk failed in this life.
    disk_failures: u64,
    /// The random actions of the agents' hooks.
    hook_dice: hooks::Dice,
    /// The random answers of people.
    ask_dice: Random,
    /// The random number of simultaneous requests.
    sleep_dice: Random,
    sleep: Arc<Mutex<Sleep>>,
    /// Random use of handles: early aborts, awaited steers, cleared inboxes, leftovers of a crash.
    handle_dice: Random,
    outcome: &'a mut Outcome,
}

/// A request that was made.
struct Pending {
    session: usize,
    what: &'static str,
    /// The index of its input in the world.
    input: Option<usize>,
    task: JoinHandle<Result<Done>>,
}

/// The answer to a request.
enum Done {
    Replied(Box<Reply>),
    Queued(EntryId),
    /// How many sessions were resumed.
    Finished(Vec<Resumed>),
    /// How many inputs were withdrawn.
    Cleared(usize),
    Compacted(&'static str),
    Nothing,
}

/// What one life holds.
struct Life {
    runtime: Runtime,
    sessions: Vec<SessionHandle>,
    pending: VecDeque<Pending>,
    events: Subscription,
    /// The subscriber that leaves and comes back at any moment.
    returning: Subscription,
    /// How many actors had panicked when it began.
    panics_before: u64,
    /// The sessions whose runs may end as interrupted: those closed in this life, and those in which the
    /// previous life left a run open.
    interruptible: BTreeSet<String>,
}

pub(crate) fn live(seed: u64, outcome: &mut Outcome) {
    crate::support::quiet_injected_panics();
    let mut random = Random::new(seed ^ 0x9e37_79b9_7f4a_7c15);
    let mut plan = Plan::of(&mut random);
    let mut disk_dice = Random::new(seed ^ 0xd15c);
    plan.disk_fails = once_in(&mut disk_dice, 4);
    // In half of the lives, tools ask people.
    plan.asks = once_in(&mut Random::new(seed ^ 0xa5c5), 2);
    // A quarter of the servers reject requests for more output than they can produce, and half of these can
    // produce little.
    let mut output_dice = Random::new(seed ^ 0x0a7);
    let refuses_output_above_max = once_in(&mut output_dice, 4);
    let is_short = refuses_output_above_max && once_in(&mut output_dice, 2);
    let max_output = if is_short { plan.window / 20 } else { plan.window / 4 };
    let script = ByPurpose::new(model::runs(&plan), model::summaries(&plan));
    let options = SimulatorOptions {
        window: plan.window,
        max_output,
        refuses_output_above_max,
        seed,
        error_dialect: plan.dialect,
        faults: plan.faults.clone(),
        log_capacity: 0,
        ..SimulatorOptions::new(script)
    };
    // A third of the agents have a fallback model at another server, half of these with a smaller window.
    let mut spare_dice = Random::new(seed ^ 0x5ba6e);
    let spare_window = if once_in(&mut spare_dice, 2) { plan.window } else { plan.window * 3 / 4 };
    plan.spare_window = once_in(&mut spare_dice, 3).then_some(spare_window);
    let spare = SimulatorOptions {
        window: spare_window,
        max_output: spare_window / 4,
        seed: seed ^ 0x5ba6e,
        error_dialect: plan.dialect,
        faults: plan.faults.clone(),
        log_capacity: 0,
        provider_name: "spare".to_owned(),
        ..SimulatorOptions::new(ByPurpose::new(model::runs(&plan), model::summaries(&plan)))
    };
    plan.agent_hooks = once_in(&mut Random::new(seed ^ 0x400c5), 3);
    // In half of the lives sessions are put to sleep all the time.
    let mut sleep_dice = Random::new(seed ^ 0x51ee9);
    if once_in(&mut sleep_dice, 2) {
        plan.lets_sleep(&mut sleep_dice);
    }
    let calm = SimulatorOptions {
        window: plan.window,
        max_output: plan.window / 4,
        provider_name: "calm".to_owned(),
        ..SimulatorOptions::new(ByPurpose::new(
            greenroom_simulator::Function(|_: &_, _| greenroom_simulator::Answer::text("all is well")),
            Summariser::Obedient,
        ))
    };
    let disk = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let store = Store::memory_on(disk.open(Path::new("disk"), OpenMode::Create).unwrap());
    let runs = Runs::default();
    let mut world = World {
        logs: Logs::new(store.clone(), Arc::clone(&runs), &plan),
        cuts: Random::new(seed ^ 0xc07),
        disk,
        disk_dice,
        disk_failures: 0,
        handle_dice: Random::new(seed ^ 0x4a4d1e),
        ask_dice: Random::new(seed ^ 0xa11),
        sleep_dice,
        sleep: Arc::default(),
        store,
        model: Simulator::new(options),
        spare: Simulator::new(spare),
        calm: Simulator::new(calm),
        runs,
        panics: Arc::default(),
        tool_panics: Arc::default(),
        inputs: Vec::new(),
        hook_dice: hooks::Dice::new(seed ^ 0x400c),
        outcome,
        plan,
        random,
    };
    world.note(|plan| format!("{plan:?}"));
    for number in 0..world.plan.lives {
        world.in_time(async |world| world.life(number).await);
        world.logs.check_history();
    }
    world.in_time(async |world| world.last_life().await);
    world.logs.check_history();
    world.logs.check_settled(&world.inputs);
    world.model.assert_clean();
    world.spare.assert_clean();
    world.calm.assert_clean();
    for (fault, times) in world.model.fired() {
        world.outcome.count(fault, times);
    }
    for (what, times) in world.logs.facts() {
        world.outcome.count(what, times);
    }
    for (what, times) in std::mem::take(&mut *world.hook_dice.done.lock().unwrap()) {
        world.outcome.count(what, times);
    }
    let recognised = world.runs.lock().unwrap().recognised;
    world.outcome.count("an effect was recognised after a restart", recognised);
    let (asleep, awake) = {
        let sleep = world.sleep.lock().unwrap();
        (sleep.asleep, sleep.awake)
    };
    world.outcome.count("sessions fell asleep", asleep);
    world.outcome.count("sessions stayed awake", awake);
    world.outcome.count("actor panics", world.panics.load(Ordering::Relaxed));
    world.outcome.count("tool panics", world.tool_panics.load(Ordering::Relaxed));
}

impl World<'_> {
    fn note(&mut self, text: impl FnOnce(&Plan) -> String) {
        let text = text(&self.plan);
        self.outcome.trace.push(text);
    }

    /// A process's life: its own tokio runtime, on one thread, under a paused clock.
    fn in_time(&mut self, life: impl AsyncFnOnce(&mut Self)) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        tokio.unwrap().block_on(life(self));
    }

    async fn start(&mut self, is_last: bool) -> Life {
        let mut builder = Runtime::builder()
            .provider(self.model.provider())
            .provider(self.calm.provider())
            .provider(self.spare.provider())
            .store(self.store.clone())
            .clock_from(1_700_000_000_000 + self.logs.lives * 86_400_000)
            .idle_after(Duration::from_millis(self.plan.idle_ms))
            .live_sessions_max(self.plan.live_sessions_max.unwrap_or(0))
            .compaction(self.plan.settings.clone());
        self.logs.begin_life();
        if !is_last {
            let (calls, panics, at) = (AtomicU64::new(0), Arc::clone(&self.panics), self.plan.panics.clone());
            let sleep = Arc::clone(&self.sleep);
            builder = builder.probe(move |session, point| {
                sleep.lock().unwrap().come_to(session, point);
                let now = calls.fetch_add(1, Ordering::Relaxed) + 1;
                if at.contains(&now) {
                    panics.fetch_add(1, Ordering::Relaxed);
                    panic!("injected at {point}");
                }
            });
            if self.plan.hooks {
                let run = AtomicU64::new(self.random.below(5));
                builder = builder.before_compact(move |_| {
                    let run = run.fetch_add(1, Ordering::Relaxed) % 5;
                    async move {
                        match run {
                            0 => return BeforeCompact::Cancel("not now".into()),
                            1 => panic!("injected in a hook"),
                            2 => tokio::time::sleep(Duration::from_secs(3600)).await,
                            _ => {}
                        }
                        BeforeCompact::Continue
                    }
                });
            }
        }
        let runtime = builder.start().await.unwrap();
        let events = runtime.subscribe(Filter::all());
        let returning = runtime.subscribe(Filter::all().durable());
        let panics_before = self.panics.load(Ordering::Relaxed);
        // Data that the previous life made durable but could not report.
        self.logs.catch_up(Who::Staying, &runtime).await;
        self.logs.catch_up(Who::Returning, &runtime).await;
        let unfinished = self.logs.check_unfinished(&runtime).await;
        self.outcome.count("sessions that a life before left unfinished", unfinished);
        let heads = self.store.list().unwrap();
        let interruptible =
            heads.into_iter().filter(|(_, head)| head.open_run.is_some()).map(|(id, _)| id).collect();
        let mut pending = VecDeque::new();
        if is_last || once_in(&mut self.handle_dice, 2) {
            // The work that the previous life left is finished, before or while its sessions are opened.
            let agent = Arc::new(self.agent(is_last));
            // One at a time: the store writes on a separate thread, and a seed must be reproducible.
            let finishing = runtime.resume_all(move |_| Some(Arc::clone(&agent))).at_once(1);
            if is_last {
                self.finished(finishing.await.unwrap());
            } else {
                let task = tokio::spawn(async move { finishing.await.map(Done::Finished) });
                pending.push_back(Pending { session: 0, what: "resume all", input: None, task });
            }
        }
        let mut sessions = Vec::new();
        for number in 0..self.plan.sessions {
            let agent = self.agent(is_last);
            sessions.push(open(&runtime, &name(number), &agent).await);
        }
        Life { runtime, sessions, pending, events, returning, panics_before, interruptible }
    }

    /// Checks that the last life could finish every session.
    fn finished(&mut self, resumed: Vec<Resumed>) {
        for Resumed { session, result } in resumed {
            match result {
                Ok(reply) => {
                    assert_eq!(reply.text, "all is well", "{}", session.id());
                    self.outcome.count("sessions finished after a crash", 1);
                }
                Err(Error::NothingToResume { .. }) => {}
                Err(Error::Waiting { .. }) => self.outcome.count("sessions that waited over a crash", 1),
                Err(error) => panic!("{} cannot be finished: {error}", session.id()),
            }
        }
    }

    fn agent(&self, is_calm: bool) -> Agent {
        let mut agent = Agent::new("simulated").instructions("Be brief.");
        agent = agent.provider(if is_calm { "calm" } else { "simulator" });
        if let Some(window) = if is_calm { Some(self.plan.window) } else { self.plan.told_window } {
            agent = agent.context_window(window);
        }
        if is_calm {
            // Requests of the last life must be answered, whatever was turned off before.
            agent = agent.compaction(CompactionSettings { enabled: true, ..self.plan.settings.clone() });
        }
        if let Some(window) = self.plan.spare_window.filter(|_| !is_calm) {
            agent = agent.fallback(Fallback::new("spare").provider("spare").context_window(window));
        }
        let asking: &[&'static str] = if self.plan.asks { &["ask", "confirm"] } else { &[] };
        for kind in ["note", "look", "wait", "fail", "explode"].iter().chain(asking).copied() {
            agent = agent.add_tool(Recorded {
                kind,
                runs: Arc::clone(&self.runs),
                panics: Arc::clone(&self.tool_panics),
            });
        }
        if self.plan.agent_hooks && !is_calm {
            agent = hooks::hooked(agent, &self.hook_dice, &self.runs);
        }
        agent.limits(RunLimits { steps_max: self.plan.steps_max, ..RunLimits::default() })
    }

    async fn life(&mut self, number: u64) {
        self.note(|_| format!("life {number}"));
        let mut life = self.start(false).await;
        self.disk_failures = 0;
        for step in 0..self.plan.steps {
            self.change_disk();
            for _ in 0..1 + self.sleep_dice.below(self.plan.at_once) {
                self.step(&mut life, step).await;
            }
            self.answer_some(&life).await;
            self.pause().await;
            self.look(&mut life).await;
        }
        self.set_disk(Fault::None);
        if once_in(&mut self.random, 3) {
            self.finish(&mut life).await;
            self.come_to_rest(&mut life).await;
            self.close(&mut life).await;
        } else {
            self.outcome.count("crashes", 1);
            self.note(|_| "crash".into());
        }
    }

    /// People answer some questions, with valid or invalid answers, and sometimes again.
    async fn answer_some(&mut self, life: &Life) {
        if !self.plan.asks || !once_in(&mut self.ask_dice, 3) {
            return;
        }
        let questions = life.runtime.questions().await.unwrap();
        let Some(question) = questions.first().filter(|_| !questions.is_empty()).cloned() else { return };
        let session = life.runtime.session(&question.session).await.unwrap();
        let said = pick(&mut self.ask_dice, &["yes", "yes", "no", "perhaps"]);
        let twice = once_in(&mut self.ask_dice, 3);
        self.note(|_| format!("{} hears {said} to {}", question.session, question.id));
        let answered = answer(&session, question.id, said).await;
        match &answered {
            Ok(()) => assert_ne!(said, "perhaps", "it is not one of the choices"),
            Err(Error::AnswerMisfit { .. }) => {
                assert_eq!(said, "perhaps");
                self.outcome.count("an answer did not fit", 1);
            }
            // It ended, or its session died, or its disk failed, meanwhile.
            Err(_) => {}
        }
        if answered.is_ok() && twice {
            let again = answer(&session, question.id, "yes").await;
            assert!(again.is_err(), "{}: {} was answered twice", question.session, question.id);
            self.outcome.count("an answer came twice", 1);
        }
    }

    /// All questions are answered.
    async fn answer_all(&mut self, life: &Life) {
        if !self.plan.asks {
            return;
        }
        for question in life.runtime.questions().await.unwrap() {
            let session = life.runtime.session(&question.session).await.unwrap();
            let said = pick(&mut self.ask_dice, &["yes", "no"]);
            let _ = answer(&session, question.id, said).await;
        }
    }

    /// The disk begins to fail, or works again.
    fn change_disk(&mut self) {
        if !self.plan.disk_fails || !once_in(&mut self.disk_dice, 4) {
            return;
        }
        let at = 1 + self.disk_dice.below(24);
        let errno = pick(&mut self.disk_dice, &[ENOSPC, EIO]);
        let fault = match self.disk_dice.below(5) {
            0 | 1 => Fault::FailOnce { at, errno },
            2 => Fault::FailFrom { at, errno },
            3 => Fault::TornWrite { at },
            _ => Fault::None,
        };
        self.set_disk(fault);
    }

    fn set_disk(&mut self, fault: Fault) {
        self.count_disk_failures();
        self.disk.set(fault);
        if self.plan.disk_fails {
            self.note(|_| format!("the disk: {fault:?}"));
        }
    }

    fn count_disk_failures(&mut self) {
        let fired = self.disk.fired();
        self.outcome.count("disk failures", fired);
        self.disk_failures += fired;
    }

    /// Time passes, a little or a lot.
    async fn pause(&mut self) {
        match self.random.below(8) {
            0..=3 => {
                for _ in 0..self.random.below(60) {
                    tokio::task::yield_now().await;
                }
            }
            4..=6 => tokio::time::sleep(Duration::from_millis(self.random.below(5_000))).await,
            _ => tokio::time::sleep(Duration::from_secs(self.random.below(400))).await,
        }
    }

    fn new_input(&mut self, session: usize, what: &'static str) -> (usize, String) {
        let number = self.inputs.len();
        let count = 1 + self.random.below(self.plan.words_max.max(2));
        let text = format!("{what} {number}: {}", model::words(&mut self.random, count));
        self.inputs.push(Input {
            session: name(session as u64),
            text: text.clone(),
            acknowledged: false,
            refused: false,
        });
        (number, text)
    }

    async fn step(&mut self, life: &mut Life, step: u64) {
        let index = usize::try_from(self.random.below(self.plan.sessions)).unwrap_or(0);
        let session = life.sessions[index].clone();
        let dice = self.random.below(100);
        let mut input = None;
        let (what, task): (&'static str, BoxFuture<'static, Result<Done>>) = match dice {
            0..=42 => {
                let (number, text) = self.new_input(index, "prompt");
                input = Some(number);
                if once_in(&mut self.handle_dice, 10) {
                    // It is aborted right after it is handed over, by its own handle or by the session's.
                    let own = once_in(&mut self.handle_dice, 2);
                    let work = async move {
                        let run = session.prompt(text).start().await?;
                        if own {
                            run.abort()
                        } else {
                            session.abort()
                        }
                        run.reply().await.map(|reply| Done::Replied(Box::new(reply)))
                    };
                    ("early abort", work.boxed())
                } else {
                    (
                        "prompt",
                        async move { session.prompt(text).await.map(|reply| Done::Replied(Box::new(reply))) }
                            .boxed(),
                    )
                }
            }
            43..=51 if once_in(&mut self.handle_dice, 3) => {
                let (number, text) = self.new_input(index, "steer");
                input = Some(number);
                let work = async move {
                    session.steer(text).await?.reply().await.map(|reply| Done::Replied(Box::new(reply)))
                };
                ("awaited steer", work.boxed())
            }
            43..=51 => {
                let (number, text) = self.new_input(index, "steer");
                input = Some(number);
                (
                    "steer",
                    async move { session.steer(text).await.map(|sent| Done::Queued(sent.entry())) }.boxed(),
                )
            }
            52..=59 => {
                let (number, text) = self.new_input(index, "follow_up");
                input = Some(number);
                (
                    "follow_up",
                    async move { session.follow_up(text).await.map(|sent| Done::Queued(sent.entry())) }
                        .boxed(),
                )
            }
            60..=65 => {
                session.abort();
                ("abort", async { Ok(Done::Nothing) }.boxed())
            }
            66..=70 => {
                if let Some(pending) = life.pending.pop_front() {
                    pending.task.abort();
                }
                ("drop", async { Ok(Done::Nothing) }.boxed())
            }
            71..=77 => {
                let options = CompactOptions {
                    focus: None,
                    keep_recent: pick(&mut self.random, &[None, Some(500)]),
                    force: once_in(&mut self.random, 2),
                };
                let work = async move {
                    session.compact(options).await.map(|end| Done::Compacted(end.outcome.as_str()))
                };
                ("compact", work.boxed())
            }
            78..=79 => {
                ("undo", async move { session.undo_compaction().await.map(|_| Done::Nothing) }.boxed())
            }
            80..=83 => (
                "resume",
                async move { session.resume().await.map(|reply| Done::Replied(Box::new(reply))) }.boxed(),
            ),
            84..=85 if once_in(&mut self.handle_dice, 2) => {
                ("clear", async move { session.clear_inbox().await.map(Done::Cleared) }.boxed())
            }
            84..=87 => ("state", async move { session.state().await.map(|_| Done::Nothing) }.boxed()),
            88..=89 => {
                life.interruptible.insert(session.id().to_owned());
                let runtime = life.runtime.clone();
                ("close", async move { runtime.close(session.id()).await.map(|()| Done::Nothing) }.boxed())
            }
            90..=92 => {
                let entries = self.store.head(session.id()).unwrap().map_or(0, |head| head.entries);
                let to = Some(EntryId(self.random.below(entries.max(1))));
                ("branch", async move { session.branch(to).await.map(|()| Done::Nothing) }.boxed())
            }
            93..=94 => {
                let entries = self.store.head(session.id()).unwrap().map_or(0, |head| head.entries);
                let entry = EntryId(self.random.below(entries.max(1)));
                ("pin", async move { session.pin(entry).await.map(|()| Done::Nothing) }.boxed())
            }
            _ => {
                let mut agent = self.agent(false).instructions("Be briefer.");
                if once_in(&mut self.random, 2) {
                    agent = agent.context_window(self.plan.window);
                }
                let (runtime, id) = (life.runtime.clone(), session.id().to_owned());
                let work = async move { runtime.open(&id, &agent).await.map(|_| Done::Nothing) };
                ("configure", work.boxed())
            }
        };
        self.note(|_| format!("step {step}: {what} on {index}"));
        life.pending.push_back(Pending { session: index, what, input, task: tokio::spawn(task) });
    }
}

/// Answers, unless the receiver of the answer dies again and again.
async fn answer(session: &SessionHandle, question: EntryId, said: &str) -> Result<()> {
    tokio::time::timeout(Duration::from_secs(600), session.answer(question, said))
        .await
        .unwrap_or_else(|_| panic!("{}: an answer to {question} was never taken or refused", session.id()))
}

/// Returns a durable event in one line.
fn line(event: &Event) -> String {
    let detail = match &event.kind {
        EventKind::MessageEnd { message, .. } => {
            let text: String = message.text.chars().take(24).collect();
            let stop = message.stop.map(|stop| format!(" {stop:?}")).unwrap_or_default();
            format!("{}{stop} {} calls {text:?}", message.role, message.tool_calls.len())
        }
        EventKind::RunEnd { outcome, .. } => {
            let run = event.run.expect("an end is that of a run");
            format!("{run} {outcome} {}", outcome.reason().unwrap_or_default())
        }
        EventKind::CompactionEnd(end) => {
            format!("{} {} → {}", end.outcome, end.tokens_before, end.tokens_after)
        }
        _ => String::new(),
    };
    format!("{} {} {} {detail}", event.session, event.seq, event.kind.name())
}

fn name(number: u64) -> String {
    format!("session-{number}")
}

/// Wakes a sleeping session, since reading its state does not. Returns whether it died too often: then it is
/// left as it is.
async fn has_failed(session: &SessionHandle) -> bool {
    !session.is_live()
        && matches!(session.plan(CompactOptions::default()).await, Err(Error::SessionFailed { .. }))
}

/// Opens a session, again if its actors die while it is opened.
async fn open(runtime: &Runtime, id: &str, agent: &Agent) -> SessionHandle {
    let mut tries = 0;
    loop {
        match runtime.open(id, agent).await {
            Ok(session) => return session,
            Err(error) => {
                tries += 1;
                assert!(tries < 50, "{id} cannot be opened: {error}");
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
        }
    }
}

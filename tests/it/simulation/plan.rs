//! The decisions of a seed before its life begins: the model, the agents, the faults.

use greenroom_kernel::settings::{CompactionSettings, CutRule, Strategy};
use greenroom_simulator::{ErrorDialect, Fault, FaultPlan, RetryAfter};
use greenroom_store::faults::Random;

/// The decisions of a seed.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The number of sessions.
    pub(crate) sessions: u64,
    /// How often the runtime is started.
    pub(crate) lives: u64,
    /// The number of steps of each life.
    pub(crate) steps: u64,
    /// The model's true window, in tokens.
    pub(crate) window: u64,
    /// The configured window of agents, if any.
    pub(crate) told_window: Option<u64>,
    /// The window of the fallback model, if there is one.
    pub(crate) spare_window: Option<u64>,
    /// The error dialect of overflows.
    pub(crate) dialect: ErrorDialect,
    /// Which calls fail.
    pub(crate) faults: Option<FaultPlan>,
    /// The compaction settings.
    pub(crate) settings: CompactionSettings,
    /// One in this many summaries is written by a model that gets it wrong; 0: none.
    pub(crate) bad_summaries: u64,
    /// The probe calls of each life at which an actor panics.
    pub(crate) panics: Vec<u64>,
    /// Whether the disk fails from time to time.
    pub(crate) disk_fails: bool,
    /// Whether hooks are installed that cancel, hang and panic.
    pub(crate) hooks: bool,
    /// Whether agents have hooks, guards and validators, which refuse, change, answer, hang and panic.
    pub(crate) agent_hooks: bool,
    /// Whether tools ask people.
    pub(crate) asks: bool,
    /// The most steps of a run.
    pub(crate) steps_max: u32,
    /// How long an idle session stays awake, in milliseconds; 0: for ever.
    pub(crate) idle_ms: u64,
    /// How many sessions may be live; `None`: all of them.
    pub(crate) live_sessions_max: Option<usize>,
    /// The maximum number of simultaneous requests.
    pub(crate) at_once: u64,
    /// The longest answer, in words.
    pub(crate) words_max: u64,
}

/// Picks one.
pub(crate) fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    let index = random.below(from.len() as u64);
    from[usize::try_from(index).expect("an index below a length")].clone()
}

/// Whether a thing that happens once in `n` times happens now.
pub(crate) fn once_in(random: &mut Random, n: u64) -> bool {
    n > 0 && random.below(n) == 0
}

impl Plan {
    /// Makes sessions fall asleep as soon as they may, with several of them used at the same moment.
    pub(crate) fn lets_sleep(&mut self, random: &mut Random) {
        self.idle_ms = pick(random, &[300, 2_000, self.idle_ms]);
        self.live_sessions_max = pick(random, &[Some(1), Some(1), Some(2), None]);
        self.at_once = 4;
        self.sessions += 2;
    }

    pub(crate) fn of(random: &mut Random) -> Self {
        let window = pick(random, &[6_000, 6_000, 8_000, 8_000, 12_000, 20_000]);
        let told_window = pick(random, &[Some(window), Some(window), Some(window * 3 / 2), None]);
        let dialect = pick(
            random,
            &[
                ErrorDialect::OpenAi,
                ErrorDialect::LlamaServer,
                ErrorDialect::Vllm,
                ErrorDialect::VllmCharacters,
                ErrorDialect::LlamaCppPython,
                ErrorDialect::MistralRs,
                ErrorDialect::LiteLlm,
                ErrorDialect::Anthropic,
                ErrorDialect::EmptyBody,
                ErrorDialect::Silent,
                ErrorDialect::SilentTruncation,
            ],
        );
        let rate = pick(random, &[0.0, 0.05, 0.15, 0.4]);
        let faults = (rate > 0.0).then(|| {
            let mut plan = FaultPlan::new(random.number(), rate);
            // Dates use the wall clock, which a reproducible life does not have.
            plan.faults.retain(|fault| !matches!(fault, Fault::RateLimited(RetryAfter::Date(_))));
            plan
        });
        let settings = CompactionSettings {
            enabled: !once_in(random, 12),
            strategy: match random.below(12) {
                0 => Strategy::Truncate,
                1 => Strategy::Digest,
                _ => Strategy::Summarize,
            },
            user_words: if once_in(random, 4) { None } else { Some(0.1) },
            ledger: if once_in(random, 4) { None } else { Some(0.05) },
            cut: pick(random, &[CutRule::Nearest, CutRule::TurnFirst]),
            keep_recent_tokens: pick(random, &[None, None, Some(window / 10), Some(window / 3)]),
            threshold: pick(random, &[Some(0.80), Some(0.60), None]),
            preserve_messages: pick(random, &[None, None, Some(4)]),
            soft_threshold: pick(random, &[0.65, 0.65, 0.3]),
            background: !once_in(random, 4),
            ..CompactionSettings::default()
        };
        let panics = match random.below(4) {
            0 | 1 => Vec::new(),
            2 => (0..1 + random.below(3)).map(|_| 1 + random.below(600)).collect(),
            _ => {
                // A burst, which a session does not survive without being opened again.
                let first = 1 + random.below(300);
                (first..first + 40).collect()
            }
        };
        Self {
            sessions: 1 + random.below(3),
            lives: 1 + random.below(3),
            steps: 4 + random.below(24),
            window,
            told_window,
            spare_window: None,
            dialect,
            faults,
            settings,
            bad_summaries: pick(random, &[0, 0, 5, 2, 1]),
            panics,
            disk_fails: false,
            hooks: once_in(random, 4),
            agent_hooks: false,
            asks: false,
            steps_max: pick(random, &[250, 250, 12, 4]),
            idle_ms: pick(random, &[600_000, 20_000, 0]),
            live_sessions_max: None,
            at_once: 1,
            words_max: window / pick(random, &[8, 16, 40]),
        }
    }
}

//! Resolved definitions: the window, the fixed part of a request and the settings, and refusals.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::redact::Redactor;
use greenroom_kernel::settings::UnknownWindow;
use greenroom_provider::{Provider, ProviderError, ReplyStream, Request, ResendReasoning};
use greenroom_store::{Engine, Store};
use parking_lot::RwLock;
use schemars::JsonSchema;
use serde::Deserialize;

use super::*;
use crate::agent::hooks::Hooks;
use crate::agent::shared_tools::SharedTools;
use crate::events::bus::Bus;
use crate::lane::LaneLimits;
use crate::lane::learned::Learned;
use crate::values::clock::Clock;

/// A provider that is never called.
struct Silent {
    name: &'static str,
    output_tokens_max: Option<u64>,
}

impl Provider for Silent {
    fn name(&self) -> &str {
        self.name
    }

    fn stream(&self, _: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        std::future::pending().boxed()
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        let own = if self.name == "other" { ResendReasoning::AsReasoning } else { ResendReasoning::Never };
        settings.resend_reasoning.unwrap_or(own).rule(self.name)
    }

    fn output_tokens_max(&self) -> Option<u64> {
        self.output_tokens_max
    }
}

/// The services of a runtime with the providers `openai` (the default) and `other`.
fn deps() -> Deps {
    let store: Arc<dyn Engine> = Arc::new(Store::memory());
    let lanes = [("openai", None), ("other", Some(500))].map(|(name, output_tokens_max)| {
        let provider = Arc::new(Silent { name, output_tokens_max });
        let limits = LaneLimits { in_flight_max: 1, tokens_per_minute: None, silence_max: Duration::ZERO };
        (name.to_owned(), Arc::new(Lane::new(provider, limits)))
    });
    Deps {
        live: None,
        accounts: crate::limits::accounts::Accounts::new(
            Arc::clone(&store),
            Clock::new(Some(0)),
            crate::limits::labels::Table::default(),
            Vec::new(),
            false,
        ),

        ledger: crate::limits::spending::tree::Ledger::default(),
        sub_agent_depth_max: 4,
        learned: Learned::new(Arc::clone(&store), BTreeMap::new()),
        store,
        tools: SharedTools::default(),
        bus: Bus::new(Clock::new(Some(0)), Redactor::default()),
        redactor: Redactor::default(),
        lanes: HashMap::from(lanes),
        default_provider: "openai".to_owned(),
        compaction: RwLock::default(),
        settings_by_model: BTreeMap::new(),
        prices: Arc::default(),
        hooks: Hooks::default(),
        clock: Clock::new(Some(0)),
        idle_after_ms: 0,
        compacts_between_runs: true,
        supervisor: OnceLock::new(),
        is_closed: AtomicBool::new(false),
        deleted_before_ms: AtomicU64::new(0),
        tickets: AtomicU64::new(0),
        opens: tokio::sync::Semaphore::new(1),
        admission: crate::limits::admission::Admission::new(None),
        taking_over: Arc::default(),
        live_sessions_max: None,
        uses: AtomicU64::new(1),
        probe: None,
        waits: Arc::default(),
        searches: Arc::default(),
        deletions: tokio::sync::Mutex::default(),
        consumers: crate::core::consumers::Consumers::default(),
        metrics: crate::core::metrics::Metrics::default(),
        heirs: crate::core::ownership::Heirs::default(),
        readiness: crate::core::readiness::Readiness::default(),
        retention: crate::Retention::default(),
        #[cfg(feature = "command-tools")]
        files: None,
    }
}

fn resolve(deps: &Arc<Deps>, agent: &Agent) -> Result<Definition> {
    Definition::resolve(deps, Arc::new(agent.clone()), 0)
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn looker(agent: Agent) -> Agent {
    agent.tool("look", |_: Nothing| async move { Ok("it rains") })
}

/// Instructions of about this many tokens.
fn words(tokens: usize) -> String {
    "word ".repeat(tokens)
}

#[track_caller]
fn check_refused(agent: &Agent, because: &str) {
    let Err(error) = resolve(&Arc::new(deps()), agent) else { panic!("it was taken: {agent:?}") };
    assert!(error.to_string().contains(because), "{error}");
}

#[tokio::test]
async fn a_definition_in_which_nothing_could_work_is_refused() {
    let agent = || Agent::new("gpt-4o");
    check_refused(&agent().provider("nobody"), "named \"nobody\"; it has openai, other");
    check_refused(&agent().instructions(words(110_000)), "shorten the fixed part");
    check_refused(&agent().context_window(1_000).instructions(words(900)), "at 751 of 1000");
    let named = |name| agent().tool(name, |_: Nothing| async move { Ok("it rains") });
    check_refused(&named("two words"), "two words");
    let zero = || ModelSettings { output_tokens_max: Some(0), ..ModelSettings::default() };
    check_refused(&agent().settings(zero()), "output_tokens_max: must be at least 1");
    check_refused(&agent().settings_for("another", zero()), "output_tokens_max: must be at least 1");
    let forced = || ModelSettings::new().tool_choice(ToolChoice::Tool("look".into()));
    check_refused(&agent().settings(forced()), "tool_choice: there is no tool \"look\"");
    assert!(resolve(&Arc::new(deps()), &looker(agent()).settings(forced())).is_ok());
    // Pinned messages leave less room for the rest.
    let small = Arc::new(agent().context_window(1_000).instructions(words(300)));
    for (pinned_tokens, fits) in [(0, true), (150, true), (300, false)] {
        let resolved = Definition::resolve(&Arc::new(deps()), Arc::clone(&small), pinned_tokens);
        assert_eq!(resolved.is_ok(), fits, "{pinned_tokens} tokens are pinned");
    }
    // With an unknown window, nothing is too large.
    let anything = CompactionSettings { unknown_window: UnknownWindow::Disable, ..Default::default() };
    let unheard = Agent::new("unheard-of").compaction(anything).instructions(words(200_000));
    assert!(resolve(&Arc::new(deps()), &unheard).is_ok());
}

#[track_caller]
fn check_window(definition: &Definition, tokens: Option<u64>, source: WindowSource, warning: &str) {
    assert_eq!(definition.window, Window { tokens, source });
    let warnings = definition.warnings().join("; ");
    assert!(warnings.contains(warning) && warning.is_empty() == warnings.is_empty(), "{warnings}");
}

#[tokio::test]
async fn the_window_is_what_is_known_and_a_session_is_warned_of_a_guess() {
    let deps = Arc::new(deps());
    let resolved = |agent: &Agent| resolve(&deps, agent).unwrap();
    let set = |change: fn(&mut CompactionSettings)| {
        let mut settings = CompactionSettings::default();
        change(&mut settings);
        settings
    };
    let known = Agent::new("gpt-4o");
    check_window(&resolved(&known), Some(128_000), WindowSource::Catalog, "");
    check_window(&resolved(&known.clone().context_window(9_000)), Some(9_000), WindowSource::Setting, "");
    let of_settings = known.clone().compaction(set(|settings| settings.context_window = Some(7_000)));
    check_window(&resolved(&of_settings), Some(7_000), WindowSource::CompactionSetting, "");
    let unknown = Agent::new("unheard-of");
    let warning = "the window of unheard-of at openai is unknown: 128000 tokens are assumed";
    check_window(&resolved(&unknown), Some(128_000), WindowSource::Assumed, warning);
    let off = unknown.compaction(set(|settings| settings.unknown_window = UnknownWindow::Disable));
    let warning = "nothing is compacted before the provider refuses";
    check_window(&resolved(&off), None, WindowSource::Unknown, warning);
}

#[tokio::test]
async fn a_limit_that_was_learned_holds_while_something_could_work_in_it() {
    let deps = Arc::new(deps());
    assert!(deps.learned.learn_limit("openai", "gpt-4o", 10_000, 11_000, None, 0));
    let mut definition = resolve(&deps, &Agent::new("gpt-4o").instructions(words(5_000))).unwrap();
    check_window(&definition, Some(10_000), WindowSource::Learned, "");
    // With more pinned tokens, it has no room: then the provider refuses.
    assert!(definition.refresh_window(&deps, 4_000));
    check_window(&definition, Some(128_000), WindowSource::Catalog, "");
    assert!(definition.refresh_window(&deps, 1_000) && !definition.refresh_window(&deps, 1_000));
    check_window(&definition, Some(10_000), WindowSource::Learned, "");
    // A model of the same name at another provider is another model.
    let other = resolve(&deps, &Agent::new("gpt-4o").provider("other")).unwrap();
    assert_eq!(other.window.source, WindowSource::Assumed);
    assert!(!other.is_same_model(&definition) && definition.is_same_model(&definition));
    assert!(!resolve(&deps, &Agent::new("gpt-4.1")).unwrap().is_same_model(&definition));
    assert_eq!((other.provider(), other.model()), ("other", "gpt-4o"));
}

#[tokio::test]
async fn the_fixed_part_is_the_instructions_the_tools_and_what_is_pinned() {
    let deps = Arc::new(deps());
    let overhead = |agent: &Agent, pinned| resolve(&deps, agent).unwrap().overhead(pinned);
    let bare = Agent::new("gpt-4o");
    assert_eq!((overhead(&bare, 0), overhead(&bare, 30)), (0, 30));
    let instructed = bare.clone().instructions(words(100));
    let instructions = instructions_tokens(&words(100));
    assert!((90..=110).contains(&instructions), "{instructions}");
    assert_eq!(overhead(&instructed, 30), instructions + 30);
    // A tool's name, description and schema, and those of `recall`; a sub-agent is a tool, too.
    let tool = overhead(&looker(bare.clone()), 0);
    assert!((30..100).contains(&tool), "{tool}");
    assert_eq!(overhead(&looker(instructed), 0), instructions + tool);
    let called = bare.clone().sub_agent(crate::sub_agent("helper", bare.clone()).describe(words(300)));
    assert!((300..500).contains(&overhead(&called, 0)), "{}", overhead(&called, 0));
    // The text that a function writes is known only when a run starts.
    assert_eq!(overhead(&bare.instructions_from(|_| words(100)), 0), 0);
}

#[tokio::test]
async fn instructions_of_a_run_replace_those_before_where_they_have_room() {
    let deps = Arc::new(deps());
    let agent = Agent::new("gpt-4o").context_window(1_000).instructions_from(|_| unreachable!());
    let mut definition = resolve(&deps, &agent).unwrap();
    let set = |definition: &mut Definition, text: &str, pinned_tokens| {
        let changed = definition.set_instructions(&Arc::from(text), pinned_tokens);
        (changed.ok(), definition.overhead(0))
    };
    assert_eq!(set(&mut definition, "", 0), (Some(false), 0));
    let short = words(100);
    let tokens = instructions_tokens(&short);
    assert_eq!(set(&mut definition, &short, 0), (Some(true), tokens));
    assert_eq!(set(&mut definition, &short, 0), (Some(false), tokens), "the same text is no change");
    // If they are too large, alone or with the pinned messages, the previous ones stay.
    assert_eq!(set(&mut definition, &words(900), 0), (None, tokens));
    assert_eq!(set(&mut definition, &words(450), 300), (None, tokens));
    assert_eq!(set(&mut definition, &short, 300), (Some(false), tokens));
    assert_eq!(set(&mut definition, &words(450), 0).0, Some(true));
}

#[tokio::test]
async fn a_prompts_settings_go_before_the_agents_and_summaries_take_what_suits_them() {
    let mut deps = deps();
    let of_runtime = ModelSettings::new().seed(1).top_p(0.5);
    deps.settings_by_model.insert("gpt-4o".to_owned(), of_runtime);
    deps.settings_by_model.insert("gpt-4o-mini".to_owned(), ModelSettings::new().temperature(0.7));
    let deps = Arc::new(deps);
    let of_agent = ModelSettings::new().temperature(0.1).seed(0).stop(["END"]);
    let agent = looker(Agent::new("gpt-4o")).settings(of_agent);
    let definition = resolve(&deps, &agent).unwrap();
    let asked = |of_prompt: ModelSettings| definition.model_settings(&deps, &of_prompt);
    let usual = ModelSettings::new().temperature(0.1).seed(1).top_p(0.5).stop(["END"]);
    assert_eq!(asked(ModelSettings::default()).unwrap(), usual);
    let of_prompt = ModelSettings::new().temperature(0.9).tool_choice(ToolChoice::Tool("look".into()));
    let merged = usual.clone().merged(of_prompt.clone());
    assert_eq!(asked(of_prompt).unwrap(), merged);
    for (refused, why) in [
        (ModelSettings::new().tool_choice(ToolChoice::Tool("lok".into())), "there is no tool \"lok\""),
        (ModelSettings::new().temperature(3.0), "temperature: must be 0 to 2"),
    ] {
        let error = asked(refused).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    // A summary by the same model uses the agent's settings, except those that would break it; one by another
    // model uses only the settings for that model.
    let own = definition.own_summariser(&deps);
    assert_eq!((own.model.as_str(), own.lane.provider.name()), ("gpt-4o", "openai"));
    assert_eq!(own.settings, ModelSettings::new().temperature(0.1).top_p(0.5));
    let chosen = definition.summariser(&deps, "gpt-4o-mini");
    assert_eq!((chosen.model.as_str(), chosen.lane.provider.name()), ("gpt-4o-mini", "openai"));
    assert_eq!(chosen.settings, ModelSettings::new().temperature(0.7));
}

#[tokio::test]
async fn a_context_is_measured_by_the_definition_and_the_sessions_state() {
    let deps = Arc::new(deps());
    let agent = Agent::new("gpt-4o").instructions(words(100)).cost_limit_usd(0.000_005);
    let resending = ModelSettings::new().resend_reasoning(ResendReasoning::AsReasoning);
    let resent = resolve(&deps, &agent.clone().settings(resending)).unwrap();
    let session = SessionLimits {
        pinned_tokens: 0,
        run_cost: None,
        is_sub_agent: false,
        is_paused: false,
        only_at_window: false,
    };
    assert_eq!(
        resent.tracker_config(&deps, session).resent,
        ResendReasoning::AsReasoning.rule("openai"),
        "what the agent says stands above the provider"
    );
    for (agent, output_tokens_max, provider) in [
        (agent.clone(), None, "openai"),
        (agent.clone().output_tokens_max(90), Some(90), "openai"),
        (agent.clone().provider("other"), Some(500), "other"),
        (agent.provider("other").output_tokens_max(90), Some(90), "other"),
    ] {
        let definition = resolve(&deps, &agent).unwrap();
        for flag in 0..3 {
            let session = SessionLimits {
                run_cost: None,
                pinned_tokens: 30,
                is_sub_agent: flag == 0,
                is_paused: flag == 1,
                only_at_window: flag == 2,
            };
            let config = definition.tracker_config(&deps, session);
            assert_eq!((config.origin.as_str(), config.model.as_str()), (provider, "gpt-4o"));
            assert_eq!(config.overhead, instructions_tokens(&words(100)) + 30);
            assert_eq!(config.resent.readable_of.is_some(), provider == "other");
            let limits = config.limits;
            assert_eq!((limits.window, limits.cost.session), (definition.window, Some(5)));
            assert_eq!(limits.output_tokens_max, output_tokens_max);
            let flags = [limits.is_sub_agent, limits.is_paused, limits.only_at_window];
            assert_eq!(flags, [flag == 0, flag == 1, flag == 2]);
        }
    }
}

/// Sessions with the same tools share their descriptions, which are dropped with the last session.
#[tokio::test]
async fn the_same_tools_are_made_once_and_not_kept() {
    let (deps, held) = (Arc::new(deps()), Arc::new(()));
    let holder = Arc::clone(&held);
    let agent = Agent::new("gpt-4o").tool("look", move |_: Nothing| {
        let holder = Arc::clone(&holder);
        async move {
            drop(holder);
            Ok("it rains")
        }
    });
    let is_shared = |a: &Definition, b: &Definition| a.tools.is_same(&b.tools);
    let (first, second) = (resolve(&deps, &agent).unwrap(), resolve(&deps, &agent.clone()).unwrap());
    assert!(is_shared(&first, &second) && first.tools_tokens == second.tools_tokens);
    // An agent with another tool has tools of its own, and so has an agent with sub-agents.
    let web = crate::agent::sub_agent::sub_agent("web", Agent::new("gpt-4o"));
    let caller = resolve(&deps, &agent.clone().sub_agent(web)).unwrap();
    let more = resolve(&deps, &agent.clone().tool("smell", |_: Nothing| async move { Ok("rain") })).unwrap();
    assert_eq!([&first, &more, &caller].map(|definition| definition.tools.len()), [2, 3, 3]);
    assert!(more.tools_tokens > first.tools_tokens && caller.tools_tokens > first.tools_tokens);
    assert!(is_shared(&more, &more.clone()) && !is_shared(&resolve(&deps, &agent).unwrap(), &more));
    drop((first, second, more, caller, agent));
    assert_eq!(Arc::strong_count(&held), 1, "nobody works with the tools any more");
}

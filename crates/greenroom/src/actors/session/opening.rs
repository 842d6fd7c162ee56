//! How a session's actors are started: from the log, and again when one of them dies.
//!
//! Invariants: what a session knows is read from its log or asked of the store; an actor that cannot be started is
//! the session's failure, with its reason, and not a fault of the configuration.

use super::*;

impl SessionState {
    /// Reads the log and starts the children.
    pub(super) async fn open(myself: ActorRef<SessionMessage>, arguments: SessionArguments) -> Result<Self> {
        let SessionArguments { deps, shared, supervisor } = arguments;
        let log = read_log(&deps, &shared.id).await?;
        let definition = shared.agent();
        let lane = deps.lane(&definition).cloned().ok_or_else(|| deps.unknown_provider(&definition))?;
        let provider = lane.provider.name().to_owned();
        let model = definition.model.clone();
        let tools = crate::sub_agent::tools_of(&deps, &definition)?;
        let settings = deps.settings(&definition);
        let fixed_tokens = fixed_tokens(&definition, &tools);
        let window = deps.window(&definition, &provider, &model, &settings, fixed_tokens);
        if let Some(window) = window.tokens {
            // What is pinned was allowed when the window was thought to be larger: no reason to lock the session.
            settings.feasible(window, fixed_tokens)?;
        }
        let outgoing = match shared.start_broadcast(log.head().entries) {
            Some(from) => missed_events(&deps, &shared, from).await?,
            None => VecDeque::new(),
        };
        let limits = ContextLimits {
            provider: provider.clone(),
            model: model.clone(),
            window,
            overhead: fixed_tokens + log.pinned_tokens(),
            settings: Arc::clone(&settings),
            output_tokens_max: deps.output_tokens_max(&definition),
            cost_microdollars_max: definition.cost_microdollars_max,
            resends_reasoning: lane.provider.resends_reasoning(),
            is_sub_agent: shared.parent.is_some(),
            is_paused: log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
            only_at_window: log.was_undone(),
        };
        let only_at_window = limits.only_at_window;
        let model_warnings = model_warnings(&limits);
        let tracker = spawn_tracker(&deps, &shared, &myself, limits, &log).await?;
        let agent = spawn_agent(&deps, &shared, &myself).await?;
        Ok(Self {
            deps,
            shared,
            supervisor,
            myself,
            definition,
            lane,
            tools,
            settings,
            window,
            fixed_tokens,
            log,
            agent,
            tracker,
            compactor: None,
            run: None,
            waiting: HashMap::new(),
            compaction: None,
            outgoing,
            restarts: Restarts::default(),
            attempts: 0,
            model_warnings,
            only_at_window,
            requested: None,
            message_since_compaction: true,
            is_stopping: false,
            completion: None,
            refused: Vec::new(),
            is_held: false,
            tries_again: false,
            refusals: 0,
        })
    }

    /// A child died: another takes its place, and goes on from the log.
    pub(super) async fn child_failed(
        &mut self,
        child: &ActorCell,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        tracing::error!(session = %self.shared.id, reason, "an actor of the session died");
        if !self.restarts.allow(tokio::time::Instant::now()) {
            return Err(format!("its actors died too often, last: {reason}").into());
        }
        if child.get_id() == self.agent.get_id() {
            self.agent = spawn_agent(&self.deps, &self.shared, &self.myself).await?;
            let below = self.shared.broadcast_below();
            let events = self.outgoing.iter().filter(|event| event.seq >= below).cloned().collect();
            let then = self.completion.clone();
            self.tell_agent(AgentMessage::Broadcast { events, then });
            self.warn(format!("the agent died and was restarted: {reason}"));
            self.rerun().await;
        } else if child.get_id() == self.tracker.get_id() {
            let limits = self.limits();
            self.tracker = spawn_tracker(&self.deps, &self.shared, &self.myself, limits, &self.log).await?;
            self.warn(format!("the usage tracker died and was restarted: {reason}"));
            self.tell_agent(AgentMessage::TrackerRestarted { tracker: self.tracker.clone() });
            // Questions of our own that it took with it.
            if self.run.as_ref().is_some_and(|run| run.closing.is_some()) {
                let _ = self.tracker.cast(TrackerMessage::MeasureFor(MeasureFor::RunEnd));
            }
            if self.compaction.as_ref().is_some_and(|compaction| compaction.started.is_none()) {
                let _ = self.tracker.cast(TrackerMessage::MeasureFor(MeasureFor::Compaction));
            }
        } else if self.compactor.as_ref().is_some_and(|compactor| child.get_id() == compactor.get_id()) {
            self.compactor = None;
            self.warn(format!("the compactor died: {reason}"));
            self.compactor_died(reason).await;
        }
        Ok(())
    }
}

/// What nobody knows of the model, and what that means.
pub(super) fn model_warnings(limits: &ContextLimits) -> Vec<String> {
    let (model, provider) = (&limits.model, &limits.provider);
    let mut model_warnings = Vec::new();
    match (limits.window.source, limits.window.tokens) {
        (WindowSource::Assumed, Some(tokens)) => model_warnings.push(format!(
            "nothing knows the window of {model} at {provider}: {tokens} tokens are assumed; set context_window to \
             what it takes"
        )),
        (WindowSource::Unknown, _) | (WindowSource::Assumed, None) => model_warnings.push(format!(
            "nothing knows the window of {model} at {provider}: nothing is compacted before the provider refuses; \
             set context_window to what it takes"
        )),
        (
            WindowSource::CompactionSetting
            | WindowSource::Setting
            | WindowSource::Catalog
            | WindowSource::Learned,
            _,
        ) => {}
    }
    let has_price = || {
        let info = crate::deps::model_info(provider, model);
        info.is_some_and(|info| info.prices.is_some())
    };
    if limits.cost_microdollars_max.is_some() && !has_price() {
        model_warnings.push(format!(
            "nothing knows the price of {model} at {provider}: its calls do not count towards the cost limit"
        ));
    }
    model_warnings
}

/// The system prompt and the tools, in estimated tokens.
pub(super) fn fixed_tokens(definition: &Agent, tools: &greenroom_tools::Registry) -> u64 {
    let specs: u64 = tools
        .specs()
        .iter()
        .map(|spec| {
            let schema = spec.parameters.to_string();
            [&spec.name, &spec.description, &schema]
                .iter()
                .map(|text| text_tokens(text, Estimator::Classes))
                .sum::<u64>()
        })
        .sum();
    text_tokens(&definition.instructions, Estimator::Classes) + specs
}

/// The events of entries that an earlier actor made durable and did not live to broadcast.
async fn missed_events(deps: &Deps, shared: &SessionShared, from: u64) -> Result<VecDeque<Arc<Event>>> {
    let (store, id) = (deps.store.clone(), Arc::clone(&shared.id));
    let read = move || -> Result<Vec<Entry>> { Ok(store.load(&id, EntryId(from))?) };
    let entries = blocking(deps, read).await?;
    Ok(entries
        .iter()
        .map(|entry| Arc::new(event::durable(&shared.id, shared.parent.as_ref(), entry)))
        .collect())
}

/// Reads from the store, where it may block on a disk on a thread that may.
pub(super) async fn blocking<T: Send + 'static>(
    deps: &Deps,
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if deps.store.is_memory() {
        return read();
    }
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(panic) => Err(Error::internal("reading the log", panic)),
    }
}

async fn read_log(deps: &Deps, id: &Arc<str>) -> Result<Log> {
    let (store, id) = (deps.store.clone(), Arc::clone(id));
    let read = move || -> Result<Log> {
        let Some(head) = store.head(&id)? else { return Ok(Log::default()) };
        let entries = shared(store.load(&id, head.live_from)?);
        let mut others: Vec<EntryId> = head.inbox.iter().chain(&head.pins).copied().collect();
        others.extend(head.active_compaction);
        others.extend(head.open_compaction);
        others.retain(|entry| *entry < head.live_from);
        let extra = shared(store.get(&id, &others)?);
        Ok(Log::open(head, &entries, &extra))
    };
    blocking(deps, read).await
}

pub(super) fn shared(entries: Vec<Entry>) -> Vec<Arc<Entry>> {
    entries.into_iter().map(Arc::new).collect()
}

async fn spawn_agent(
    deps: &Arc<Deps>,
    shared: &Arc<SessionShared>,
    session: &ActorRef<SessionMessage>,
) -> Result<ActorRef<AgentMessage>> {
    let arguments =
        AgentArguments { deps: Arc::clone(deps), shared: Arc::clone(shared), session: session.clone() };
    let (actor, _) = Actor::spawn_linked(None, AgentActor, arguments, session.get_cell())
        .await
        .map_err(|error| not_started(shared, "agent", &error))?;
    Ok(actor)
}

async fn spawn_tracker(
    deps: &Arc<Deps>,
    shared: &Arc<SessionShared>,
    session: &ActorRef<SessionMessage>,
    limits: ContextLimits,
    log: &Log,
) -> Result<ActorRef<TrackerMessage>> {
    let arguments = Box::new(TrackerArguments {
        deps: Arc::clone(deps),
        shared: Arc::clone(shared),
        session: session.clone(),
        limits,
        path: log.path().to_vec(),
        total_usage: log.head().total_usage,
        cost_microdollars: log.head().cost_microdollars,
    });
    let (actor, _) = Actor::spawn_linked(None, UsageTracker, arguments, session.get_cell())
        .await
        .map_err(|error| not_started(shared, "usage tracker", &error))?;
    Ok(actor)
}

fn not_started(shared: &SessionShared, actor: &str, error: &ractor::SpawnErr) -> Error {
    let reason = format!("its {actor} could not be started: {error}");
    Error::SessionFailed { session: shared.id.to_string(), reason }
}

//! What is checked of a life: after each step, at its end, and in the last one, in which every session must work.
//!
//! Invariants: a check changes nothing but what it counts; it may wait for sessions to come to rest.

use super::*;

impl World<'_> {
    /// Takes the answers and the events that have arrived, and checks them against the log.
    pub(super) async fn look(&mut self, life: &mut Life) {
        self.logs.check_new();
        if self.disk_failures + self.disk.fired() > 0 {
            // An end that could not be recorded is reported nevertheless.
            self.logs.miss_ends();
        }
        self.model.assert_clean();
        self.look_in(life).await;
        while let Some(delivery) = life.events.try_next() {
            match delivery {
                Delivery::Event(event) => {
                    if event.is_durable() {
                        self.outcome.trace.push(line(&event));
                    }
                    if let EventKind::Warning { message } | EventKind::SessionFailed { reason: message } =
                        &event.kind
                    {
                        self.outcome.trace.push(format!("{}: {message}", event.session));
                    }
                    self.logs.event(Who::Staying, &event);
                    match &event.kind {
                        EventKind::RunEnd { outcome, .. } => {
                            self.outcome.count(format!("ended: {outcome}"), 1);
                            if matches!(outcome, RunOutcome::Interrupted) {
                                self.check_interrupted(life, &event.session, "a run");
                            }
                        }
                        EventKind::CompactionEnd(end) => {
                            self.outcome.count(format!("compacted: {}", end.outcome), 1);
                        }
                        _ => {}
                    }
                }
                Delivery::Gap { .. } => {
                    self.logs.miss_ends();
                    self.logs.catch_up(Who::Staying, &life.runtime).await;
                }
            }
        }
        let mut failed = Vec::new();
        for pending in std::mem::take(&mut life.pending) {
            if !pending.task.is_finished() {
                life.pending.push_back(pending);
                continue;
            }
            let Pending { session, what, input, task } = pending;
            match task.await {
                Err(cancelled) => assert!(cancelled.is_cancelled(), "{what}: {cancelled}"),
                Ok(answer) => {
                    if matches!(answer, Err(Error::SessionFailed { .. })) {
                        failed.push(session);
                    }
                    self.answered(life, session, what, input, answer);
                }
            }
        }
        failed.dedup();
        for session in failed {
            // Opening it again resumes it.
            let agent = self.agent(false);
            life.sessions[session] = open(&life.runtime, life.sessions[session].id(), &agent).await;
            self.outcome.count("sessions opened again", 1);
        }
        self.logs.check_new();
    }

    pub(super) fn answered(
        &mut self,
        life: &Life,
        session: usize,
        what: &'static str,
        input: Option<usize>,
        answer: Result<Done>,
    ) {
        let id = life.sessions[session].id();
        let line = match &answer {
            Ok(Done::Replied(reply)) => {
                self.logs.check_reply(id, reply);
                format!("replied {}", reply.run)
            }
            Ok(Done::Queued(entry)) => format!("queued {entry}"),
            Ok(Done::Finished(resumed)) => {
                self.outcome.count("sessions resumed", resumed.len() as u64);
                format!("resumed {}", resumed.len())
            }
            Ok(Done::Cleared(inputs)) => {
                self.outcome.count("inputs cleared", *inputs as u64);
                format!("cleared {inputs}")
            }
            Ok(Done::Compacted(outcome)) => (*outcome).to_owned(),
            Ok(Done::Nothing) => "done".to_owned(),
            Err(error) => {
                if matches!(error, Error::Interrupted { .. }) {
                    self.check_interrupted(life, id, what);
                }
                let is_disk = self.disk_failures + self.disk.fired() > 0 && matches!(error, Error::Store(_));
                assert!(
                    is_disk || !matches!(error, Error::Store(_) | Error::Config(_) | Error::Closed),
                    "{what} on {id}: {error}"
                );
                if let Error::Model(failure) = error {
                    // A compactor that died at startup is a valid reason, and so is a hook that refused; a
                    // panic is not a model's failure.
                    let is_told = ["could not be started", "hook failed: it panicked: injected"];
                    let is_told = is_told.iter().any(|reason| failure.message.contains(reason));
                    assert!(is_told || !failure.message.contains("panicked"), "{what} on {id}: {failure:?}");
                }
                if matches!(error, Error::Aborted) && what == "early abort" {
                    self.outcome.count("early aborts", 1);
                }
                error.to_string()
            }
        };
        if let (Err(Error::InputRefused { .. }), Some(input)) = (&answer, input) {
            self.inputs[input].refused = true;
        }
        if let (Ok(_), Some(input)) = (&answer, input) {
            self.inputs[input].acknowledged = true;
            self.logs.check_has(&self.inputs[input]);
        }
        self.note(|_| format!("{what} on {session}: {line}"));
    }

    /// A run is interrupted, and a request has no effect, only if somebody closed the session, an actor died
    /// or the disk failed: never because a session falls asleep.
    pub(super) fn check_interrupted(&self, life: &Life, session: &str, what: &str) {
        let an_actor_died = self.panics.load(Ordering::Relaxed) > life.panics_before;
        let is_excused = an_actor_died
            || self.disk_failures + self.disk.fired() > 0
            || life.interruptible.contains(session);
        assert!(is_excused, "{session}: {what} was interrupted, and nothing had happened to it");
    }

    /// Checks that every request is answered, in time.
    pub(super) async fn finish(&mut self, life: &mut Life) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !life.pending.is_empty() {
            let waiting: Vec<&str> = life.pending.iter().map(|pending| pending.what).collect();
            assert!(tokio::time::Instant::now() < deadline, "never answered: {waiting:?}");
            self.answer_all(life).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.look(life).await;
        }
    }

    /// The disk works and there are no new requests: waiting work is resumed, and then nothing is in
    /// progress.
    pub(super) async fn come_to_rest(&mut self, life: &mut Life) {
        for session in life.sessions.clone() {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while let Ok(state) = session.state().await {
                self.answer_all(life).await;
                self.look(life).await;
                // Work left by an earlier life behind a failed run waits until somebody resumes it.
                if state.status == Status::Idle && state.waiting == state.held_back {
                    break;
                }
                if has_failed(&session).await {
                    break;
                }
                assert!(tokio::time::Instant::now() < deadline, "it never comes to rest: {state:?}");
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }

    /// No faults any more: everything settles, and every session works.
    pub(super) async fn last_life(&mut self) {
        self.note(|_| "the last life".into());
        self.disk_failures = 0;
        let mut life = self.start(true).await;
        for index in 0..life.sessions.len() {
            let session = life.sessions[index].clone();
            let deadline = tokio::time::Instant::now() + PATIENCE;
            loop {
                self.answer_all(&life).await;
                self.look(&mut life).await;
                let state = session.state().await.unwrap();
                if state.status == Status::Idle && state.waiting == 0 {
                    break;
                }
                assert!(!has_failed(&session).await, "nothing fails any more: {state:?}");
                assert!(tokio::time::Instant::now() < deadline, "it never settles: {state:?}");
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            let (number, text) = self.new_input(index, "last");
            let reply = session.prompt(text).await;
            match reply {
                Ok(reply) => assert_eq!(reply.text, "all is well"),
                Err(error) => panic!("{} does not work any more: {error:?}", session.id()),
            }
            self.inputs[number].acknowledged = true;
            self.settled(&session).await;
            let context = session.context().await.unwrap();
            self.logs.check_context(session.id(), &context);
        }
        self.look(&mut life).await;
        self.close(&mut life).await;
        assert!(life.runtime.unfinished().await.unwrap().is_empty(), "something was left undone");
    }

    /// Ends a life cleanly: everything was reported, to the subscriber that stayed and to the one that left
    /// and came back.
    pub(super) async fn close(&mut self, life: &mut Life) {
        for session in &life.sessions {
            life.interruptible.insert(session.id().to_owned());
            life.runtime.close(session.id()).await.unwrap();
        }
        self.look(life).await;
        let no_actor_died = self.panics.load(Ordering::Relaxed) == life.panics_before;
        if no_actor_died && self.disk_failures == 0 {
            self.logs.check_all_ended();
        }
        self.logs.check_streams(&life.runtime, no_actor_died).await;
    }

    /// A watcher goes away, and comes back later.
    pub(super) async fn look_in(&mut self, life: &mut Life) {
        if once_in(&mut self.cuts, 3) {
            self.outcome.count("subscribers cut off", 1);
            life.returning = life.runtime.subscribe(Filter::all().durable());
            self.logs.catch_up(Who::Returning, &life.runtime).await;
        }
        while let Some(delivery) = life.returning.try_next() {
            match delivery {
                Delivery::Event(event) => self.logs.event(Who::Returning, &event),
                Delivery::Gap { .. } => self.logs.catch_up(Who::Returning, &life.runtime).await,
            }
        }
    }

    /// Waits for a compaction after the run.
    pub(super) async fn settled(&self, session: &SessionHandle) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while session.state().await.unwrap().status != Status::Idle {
            assert!(tokio::time::Instant::now() < deadline, "it never comes to rest");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

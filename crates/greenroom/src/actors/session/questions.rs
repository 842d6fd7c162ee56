//! Questions for people: recorded, answered, expired, and the calls that wait for them.
//!
//! Invariants: a question is durable before it is published, and its end before the waiting call gets it; a
//! question that a call repeats after a restart is the recorded one, with its end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::log::{AmendError, LABELS_MAX};
use greenroom_kernel::question::{AnswerError, AskedQuestion, KnownQuestion, QuestionEnd, Questions};
use greenroom_kernel::{Entry, EntryId};
use greenroom_store::Engine;
use greenroom_tools::AskError;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::SessionState;
use crate::core::deps::Deps;
use crate::core::message::{AskRequest, ReplyTo, RunAttempt, SessionMessage};
use crate::values::error::{Error, MetadataError, Result};

/// The calls that wait for people's answers, and the timer of the next expiry.
#[derive(Default)]
pub(super) struct Askers {
    waiting: Vec<Asker>,
    timer: Option<Timer>,
}

enum Asker {
    /// A call waits for the end of one question.
    Question { id: EntryId, reply: ReplyTo<Result<QuestionEnd, AskError>> },
    /// An interrupted call waits until none of its questions is open.
    Call { call_id: String, reply: ReplyTo<Vec<KnownQuestion>> },
}

/// The wait before another attempt to record an expiry. The store may refuse for a long time, for example
/// while the disk is full.
const RECORD_AGAIN_AFTER: Duration = Duration::from_secs(30);

struct Timer {
    at_ms: u64,
    _cancels: DropGuard,
}

impl Askers {
    /// Adds a call that waits for the end of this question.
    fn wait(&mut self, id: EntryId, reply: ReplyTo<Result<QuestionEnd, AskError>>) {
        self.waiting.push(Asker::Question { id, reply });
    }

    /// Adds an interrupted call that waits until none of its questions is open.
    fn wait_for_call(&mut self, call_id: String, reply: ReplyTo<Vec<KnownQuestion>>) {
        self.waiting.push(Asker::Call { call_id, reply });
    }

    /// Sends the end of this question to the calls that wait for it.
    fn tell(&mut self, question: EntryId, end: &QuestionEnd) {
        let is_its = |asker: &mut Asker| matches!(asker, Asker::Question { id, .. } if *id == question);
        for asker in self.waiting.extract_if(.., is_its) {
            if let Asker::Question { reply, .. } = asker {
                let _ = reply.send(Ok(Ok(end.clone())));
            }
        }
    }

    /// Sends the ends of closed questions to the calls that wait for them.
    fn tell_ended(&mut self, questions: &Questions) {
        let end = |id: EntryId| questions.find(id).and_then(|known| known.end.as_ref());
        let ids: Vec<EntryId> = self.waiting.iter().filter_map(Asker::question).collect();
        for id in ids {
            if let Some(end) = end(id) {
                self.tell(id, end);
            }
        }
        self.tell_calls(questions);
    }

    /// Answers the interrupted calls that have no open questions.
    fn tell_calls(&mut self, questions: &Questions) {
        let is_told = |asker: &mut Asker| match asker {
            Asker::Call { call_id, .. } => questions.of_call(call_id).all(|known| known.end.is_some()),
            Asker::Question { .. } => false,
        };
        for asker in self.waiting.extract_if(.., is_told) {
            if let Asker::Call { call_id, reply } = asker {
                let _ = reply.send(Ok(questions.of_call(&call_id).cloned().collect()));
            }
        }
    }

    /// Sets the timer of the next expiry to this time, in Unix milliseconds; `None` for none. Returns the
    /// token that ends the new timer, if one must be started.
    fn set_timer(&mut self, at_ms: Option<u64>) -> Option<CancellationToken> {
        let Some(at_ms) = at_ms else {
            self.timer = None;
            return None;
        };
        if self.timer.as_ref().is_some_and(|timer| timer.at_ms == at_ms) {
            return None;
        }
        let cancel = CancellationToken::new();
        self.timer = Some(Timer { at_ms, _cancels: cancel.clone().drop_guard() });
        Some(cancel)
    }
}

impl Asker {
    fn question(&self) -> Option<EntryId> {
        match self {
            Self::Question { id, .. } => Some(*id),
            Self::Call { .. } => None,
        }
    }
}

impl SessionState {
    /// Handles a call's question for a person.
    pub(super) async fn ask(&mut self, request: AskRequest) {
        let AskRequest { attempt, call_id, tool, ordinal, asker, mut question, reply } = request;
        if self.life.is_stopping() || self.current(attempt).is_none() {
            // Its run is over or continues without it, and the call ends with it.
            let _ = reply.send(Err(self.shared.gone()));
            return;
        }
        // A repeated question is compared with the recorded one, which has no secrets.
        self.deps.redactor.question(&mut question);
        let known = self.log.questions().of_call(&call_id).find(|known| known.asked.ordinal == ordinal);
        if let Some(known) = known {
            if !known.asked.question.is_same(&question) || known.asked.asker != asker {
                let recorded = known.asked.question.text.clone();
                let _ = reply.send(Ok(Err(AskError::Changed { recorded, asked: question.text })));
                return;
            }
            match known.end.clone() {
                Some(end) => drop(reply.send(Ok(Ok(end)))),
                None => self.askers.wait(known.id, reply),
            }
            return;
        }
        let now_ms = self.deps.now_ms();
        let expires =
            |time: Duration| now_ms.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        // The record has the time of the expiry.
        let expires_at_ms = question.expires_in.take().map(expires);
        let run = attempt.run;
        let asked = AskedQuestion { run, call_id, tool, ordinal, asker, question, expires_at_ms };
        let mut draft = self.log.draft(now_ms);
        let id = draft.push(EntryKind::Question(Arc::new(asked)));
        match self.append(draft, None).await {
            Ok(()) => {
                self.askers.wait(id, reply);
                self.arm_expiry();
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Lets an interrupted call wait for the ends of all its questions.
    pub(super) fn await_questions(
        &mut self,
        attempt: RunAttempt,
        call_id: String,
        reply: ReplyTo<Vec<KnownQuestion>>,
    ) {
        if self.current(attempt).is_none() {
            let _ = reply.send(Err(self.shared.gone()));
            return;
        }
        self.askers.wait_for_call(call_id, reply);
        self.askers.tell_calls(self.log.questions());
    }

    /// Records that the tool of a call starts, after a hook had asked.
    pub(super) async fn call_starts(&mut self, attempt: RunAttempt, call_id: String) -> Result<()> {
        if self.life.is_stopping() || self.current(attempt).is_none() {
            return Err(self.shared.gone());
        }
        if self.log.questions().may_have_begun(&call_id) {
            return Ok(());
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::CallStarted { call_id });
        self.append(draft, None).await
    }

    /// Ends the expired questions.
    pub(super) async fn expire_questions(&mut self) {
        self.askers.set_timer(None);
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.expire_questions();
        if !draft.is_empty()
            && let Err(error) = self.append(draft, None).await
        {
            self.warn(format!("a question's expiry could not be recorded: {error}"));
            return self.arm_expiry_after(RECORD_AGAIN_AFTER);
        }
        self.arm_expiry();
    }

    /// Answers the calls that wait for questions whose ends are among these durable entries.
    pub(super) fn tell_askers(&mut self, entries: &[Arc<Entry>]) {
        if entries.iter().any(|entry| matches!(entry.kind, EntryKind::Question(_))) {
            // A run that waits for a person takes no slot of its label, and neither do those above it.
            self.deps.ledger.chain(&self.shared).iter().for_each(|session| session.free_label_slots());
        }
        let mut has_ended = false;
        for entry in entries {
            let EntryKind::QuestionEnded { question, end } = &entry.kind else { continue };
            has_ended = true;
            self.askers.tell(*question, end);
        }
        if has_ended {
            self.askers.tell_calls(self.log.questions());
            self.arm_expiry();
        }
    }

    /// Answers the calls that wait for questions which ended while the session slept.
    pub(super) fn tell_askers_again(&mut self) {
        self.askers.tell_ended(self.log.questions());
        self.arm_expiry();
    }

    /// Sets the timer for the next expiry. It wakes a sleeping session.
    pub(super) fn arm_expiry(&mut self) {
        self.arm_expiry_after(Duration::ZERO);
    }

    /// Like [`Self::arm_expiry`], but not before this time has passed.
    fn arm_expiry_after(&mut self, at_least: Duration) {
        let at_ms = self.log.questions().next_expiry_ms();
        let Some(cancelled) = self.askers.set_timer(at_ms) else { return };
        let wait = Duration::from_millis(at_ms.unwrap_or(0).saturating_sub(self.deps.now_ms())).max(at_least);
        let shared = Arc::downgrade(&self.shared);
        let deps: Weak<Deps> = Arc::downgrade(&self.deps);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = cancelled.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            if let (Some(shared), Some(deps)) = (shared.upgrade(), deps.upgrade()) {
                crate::core::door::tell(&deps, &shared, SessionMessage::ExpireQuestions).await;
            }
        });
    }
}

/// Returns the caller's error for a refused change.
pub(super) async fn refused(deps: &Deps, session: &Arc<str>, error: AmendError) -> Error {
    let (question, error) = match error {
        AmendError::TooManyLabels => return MetadataError::TooManyLabels { labels_max: LABELS_MAX }.into(),
        AmendError::Answer(question, error) => (question, error),
    };
    let name = || session.to_string();
    match error {
        AnswerError::Closed(end) => {
            Error::QuestionClosed { session: name(), question, end: Some(Box::new(end)) }
        }
        AnswerError::Misfit(reason) => Error::AnswerMisfit { session: name(), question, reason },
        AnswerError::Unknown => match ended(&*deps.store, session, question).await {
            Ok(Some(end)) => Error::QuestionClosed { session: name(), question, end: end.map(Box::new) },
            Ok(None) => Error::NoQuestion { session: name(), question },
            Err(error) => error,
        },
    }
}

/// Returns how a question of an earlier call ended, by the log; `None` if the entry is not a question. The
/// end is near, because a question ends with its call.
#[expect(clippy::wildcard_enum_match_arm, reason = "no other record says anything of questions")]
async fn ended(store: &dyn Engine, session: &str, question: EntryId) -> Result<Option<Option<QuestionEnd>>> {
    /// How many entries are read at once.
    const CHUNK: u64 = 64;
    let entries = store.head(session).await?.map_or(0, |head| head.entries);
    let mut from = question.0;
    while from < entries {
        let to = entries.min(from + CHUNK);
        let ids: Vec<EntryId> = (from..to).map(EntryId).collect();
        for entry in store.get(session, &ids).await? {
            match entry.kind {
                EntryKind::Question(_) => {}
                EntryKind::QuestionEnded { question: ended, end } if ended == question => {
                    return Ok(Some(Some(end)));
                }
                _ if entry.id == question => return Ok(None),
                _ => {}
            }
        }
        from = to;
    }
    Ok((question.0 < entries).then_some(None))
}

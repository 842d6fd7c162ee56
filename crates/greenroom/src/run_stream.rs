//! A run as it happens: a stream of what it does and says, which ends with its reply.
//!
//! Invariants: it carries the events of its own run, and of the session those that belong to no run (compactions,
//! warnings) while it waits; nothing follows the last item, which is the reply or an error. Dropping it cancels the
//! run.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt};
use greenroom_kernel::RunId;
use serde_json::Value;

use crate::bus::{Delivery, Subscription};
use crate::error::{Error, Result};
use crate::event::{Delta, Event, EventKind, Role};
use crate::partial_json;
use crate::prompt::{AbortHandle, Reply, json_text};
use crate::session::SessionHandle;

/// One item of a [`RunStream`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunItem<R = Reply> {
    /// What happened. A piece of text is an event too, which its [`RunItem::Text`] follows.
    Event(Arc<Event>),
    /// More of the answer's text. After a tool call another answer begins.
    Text(String),
    /// The text since the last complete message is void: the model is asked again.
    Discarded,
    /// The typed answer's value, as far as it has come: a text that is being written is there in part, and what has
    /// not been begun is missing.
    Partial(Value),
    /// The reader was too slow: events are missing here, texts among them.
    Gap {
        /// The first durable event that is missing, if one is; `Runtime::replay` gives it again.
        from_seq: Option<u64>,
    },
    /// The reply. Nothing follows.
    Reply(R),
}

/// A run as it happens. A [`Stream`] of [`RunItem`]s, the last of which is the reply, or an error.
#[must_use = "nothing is said before it is polled"]
pub struct RunStream<R = Reply> {
    events: Subscription,
    reply: Option<BoxFuture<'static, Result<R>>>,
    /// How it ended, while events are still to be told.
    ended: Option<Result<R>>,
    own_run: Arc<OnceLock<RunId>>,
    abort: AbortHandle,
    stage: Stage,
    items: VecDeque<RunItem<R>>,
    /// The newest message before the run began: the prompt, if it is the run's.
    prompt: Option<Arc<Event>>,
    partial: Option<PartialOutput>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The run has not begun.
    Waiting,
    Running,
    /// The run has ended.
    Over,
}

impl<R> fmt::Debug for RunStream<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStream").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<R> RunStream<R> {
    /// The stream of a request that `send` sends when it is polled.
    pub(crate) fn new(
        session: &SessionHandle,
        is_typed: bool,
        abort: AbortHandle,
        send: impl FnOnce(Arc<OnceLock<RunId>>) -> BoxFuture<'static, Result<R>>,
    ) -> Self {
        let own_run: Arc<OnceLock<RunId>> = Arc::default();
        let reply = send(Arc::clone(&own_run));
        Self::of(session.subscribe(), is_typed, abort, own_run, reply)
    }

    /// The stream of a run that was started, from now on.
    pub(crate) fn join(
        session: &SessionHandle,
        is_typed: bool,
        abort: AbortHandle,
        own_run: Arc<OnceLock<RunId>>,
        reply: BoxFuture<'static, Result<R>>,
    ) -> Self {
        let mut stream = Self::of(session.subscribe(), is_typed, abort, own_run, reply);
        // Its beginning may have been broadcast before this was subscribed.
        if stream.own_run.get().is_some() {
            stream.stage = Stage::Running;
        }
        stream
    }

    fn of(
        events: Subscription,
        is_typed: bool,
        abort: AbortHandle,
        own_run: Arc<OnceLock<RunId>>,
        reply: BoxFuture<'static, Result<R>>,
    ) -> Self {
        Self {
            events,
            reply: Some(reply),
            ended: None,
            own_run,
            abort,
            stage: Stage::Waiting,
            items: VecDeque::new(),
            prompt: None,
            partial: is_typed.then(PartialOutput::default),
        }
    }

    /// The run's id, from the moment that it begins; `None` while the prompt waits.
    pub fn id(&self) -> Option<RunId> {
        self.own_run.get().copied()
    }

    /// Aborts this run alone, or takes its prompt back where it has not begun. The stream ends with
    /// [`Error::Aborted`].
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// What aborts it, for others to hold.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// The next item; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<RunItem<R>>> {
        StreamExt::next(self).await
    }

    /// The next piece of the answer's text; `None` when the run is over, however it ended: [`Self::reply`] tells.
    pub async fn next_text(&mut self) -> Option<String> {
        loop {
            match std::future::poll_fn(|context| self.poll_item(context)).await? {
                RunItem::Text(text) => return Some(text),
                RunItem::Event(_)
                | RunItem::Discarded
                | RunItem::Partial(_)
                | RunItem::Gap { .. }
                | RunItem::Reply(_) => {}
            }
        }
    }

    /// The reply. Items that were not read are thrown away.
    ///
    /// # Errors
    /// As the request, awaited.
    pub async fn reply(mut self) -> Result<R> {
        while std::future::poll_fn(|context| self.poll_item(context)).await.is_some() {}
        self.ended.take().unwrap_or(Err(Error::Closed))
    }

    /// The next item but the last; `None` when only the reply is left, in `ended`.
    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<RunItem<R>>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Poll::Ready(Some(item));
            }
            if let Some(reply) = &mut self.reply {
                // Events first: the reply is given after the run's last event was published.
                if let Poll::Ready(Some(delivery)) = self.events.poll_next_unpin(context) {
                    self.take(delivery);
                    continue;
                }
                match reply.as_mut().poll(context) {
                    Poll::Ready(ended) => {
                        self.ended = Some(ended);
                        self.reply = None;
                    }
                    Poll::Pending => return Poll::Pending,
                }
                continue;
            }
            // What is left of the run is here already; after its end there is nothing.
            match self.events.try_next().filter(|_| self.stage != Stage::Over) {
                Some(delivery) => self.take(delivery),
                None => return Poll::Ready(None),
            }
        }
    }

    fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Event(event) => self.take_event(event),
            Delivery::Gap { sessions, .. } => {
                if self.stage == Stage::Waiting && self.own_run.get().is_some() {
                    self.stage = Stage::Running;
                }
                if self.stage == Stage::Running {
                    self.items.push_back(RunItem::Gap { from_seq: sessions.first().map(|(_, seq)| *seq) });
                }
            }
        }
    }

    /// Whether an event belongs to this run.
    fn is_own(&self, event: &Event) -> bool {
        event.run.is_some() && event.run.as_ref() == self.own_run.get()
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are told as they are")]
    fn take_event(&mut self, event: Arc<Event>) {
        if self.stage == Stage::Waiting {
            match &event.kind {
                EventKind::RunStart if self.is_own(&event) => {
                    self.stage = Stage::Running;
                    let is_prompt = |prompt: &Arc<Event>| event.run.is_some_and(|run| prompt.seq == run.0);
                    self.items.extend(self.prompt.take().filter(is_prompt).map(RunItem::Event));
                }
                EventKind::MessageEnd { .. } => {
                    self.prompt = Some(event);
                    return;
                }
                EventKind::CompactionStart { .. }
                | EventKind::CompactionEnd(_)
                | EventKind::SessionCompacted { .. }
                | EventKind::Warning { .. }
                | EventKind::SessionRestarted { .. }
                | EventKind::SessionFailed { .. } => {}
                _ => return,
            }
        }
        if self.stage == Stage::Over {
            return;
        }
        let mut more = None;
        match &event.kind {
            EventKind::MessageDelta { delta: Delta::Text(text), .. } => {
                more = Some(RunItem::Text(text.clone()));
            }
            EventKind::MessageDiscarded => more = Some(RunItem::Discarded),
            EventKind::RunEnd { .. } if self.is_own(&event) => self.stage = Stage::Over,
            _ => {}
        }
        let partial = self.partial.as_mut().and_then(|partial| partial.follow(&event.kind));
        self.items.push_back(RunItem::Event(event));
        self.items.extend(more);
        self.items.extend(partial.map(RunItem::Partial));
    }
}

/// Nothing in it is pinned in place: the future of the reply is boxed.
impl<R> Unpin for RunStream<R> {}

impl<R> Stream for RunStream<R> {
    type Item = Result<RunItem<R>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.poll_item(context).map(|item| match item {
            Some(item) => Some(Ok(item)),
            None => this.ended.take().map(|ended| ended.map(RunItem::Reply)),
        })
    }
}

/// The value of a typed answer that is being written.
#[derive(Debug, Default)]
struct PartialOutput {
    text: String,
    /// How long the text was when it was read last.
    read: usize,
    value: Option<Value>,
}

impl PartialOutput {
    /// The text is read again each time that it has grown by a sixty-fourth: all of it costs sixty-four times one
    /// reading, however small the pieces are.
    const GROWTH: usize = 64;

    /// The value, if it has changed.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other event says anything of the text")]
    fn follow(&mut self, kind: &EventKind) -> Option<Value> {
        match kind {
            EventKind::MessageStart | EventKind::MessageDiscarded => {
                *self = Self::default();
                None
            }
            EventKind::MessageDelta { delta: Delta::Text(piece), .. } => {
                self.text.push_str(piece);
                let is_due = self.text.len() > self.read + self.read / Self::GROWTH;
                if is_due { self.read() } else { None }
            }
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => {
                self.text.clone_from(&message.text);
                self.read()
            }
            _ => None,
        }
    }

    fn read(&mut self) -> Option<Value> {
        self.read = self.text.len();
        let value = partial_json::read(json_text(&self.text))?;
        if self.value.as_ref() == Some(&value) {
            return None;
        }
        self.value = Some(value.clone());
        Some(value)
    }
}

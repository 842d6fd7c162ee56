//! A stream of a run: its events and text, ending with its reply.
//!
//! Invariants: it contains the events of its own run and, while it waits, the session's events without a run
//! (compactions, warnings). The last item is the reply or an error. Dropping the stream cancels the run. No
//! event of its own run is lost, except tools' progress: the run waits for a slow reader.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt};
use greenroom_kernel::RunId;
use serde_json::Value;

use crate::agent::output::{json_text, unwrapped};
use crate::api::children::Child;
use crate::api::request::AbortHandle;
use crate::api::session::SessionHandle;
use crate::events::bus::{Delivery, Subscription};
use crate::events::event::{Delta, Event, EventKind};
use crate::events::message_view::Role;
use crate::events::run_link::RunLink;
use crate::values::error::{Error, Result};
use crate::values::partial_json;
use crate::values::prompt::Reply;

/// One item of a [`RunStream`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunItem<R = Reply> {
    /// An event. A piece of text is an event too, followed by its [`RunItem::Text`].
    Event(Arc<Event>),
    /// More of the answer's text. After a tool call, another answer starts.
    Text(String),
    /// The text since the last complete message is void: the model is asked again.
    Discarded,
    /// A sub-agent starts to work. Its event, `child_start`, came before.
    Child(Child),
    /// The partial value of a typed answer: unfinished strings are included as far as they go; fields that
    /// have not started are missing.
    Partial(Value),
    /// The reader was too slow for tools' progress lines: some of them are missing here, and nothing else.
    Gap {
        /// The first missing durable event, if there is one; [`Runtime::replay`](crate::Runtime::replay)
        /// returns it.
        from_seq: Option<u64>,
    },
    /// The reply. It is the last item.
    Reply(R),
}

/// A piece of the agent's text in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextPiece {
    /// More of the text.
    More(String),
    /// Another message follows: text after the agent's tools have run, or in place of an answer that was
    /// rejected.
    Break,
    /// The model is asked again, and the text of its newest message is void: keep only this much of the text
    /// so far, where a break counts as two bytes.
    Restart {
        /// How many bytes to keep.
        keep: usize,
    },
}

impl TextPiece {
    /// Updates a text: appends more text, an empty line for a break, and truncates void text.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// let mut run = session.prompt("Umbrella in Oslo?").stream();
    /// let mut text = String::new();
    /// while let Some(piece) = run.next_text().await {
    ///     piece.apply(&mut text);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn apply(&self, text: &mut String) {
        match self {
            Self::More(more) => text.push_str(more),
            Self::Break => text.push_str(BREAK),
            Self::Restart { keep } => text.truncate(text.floor_char_boundary(*keep)),
        }
    }
}

/// For output that cannot be withdrawn: a line after void text says so.
impl fmt::Display for TextPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::More(text) => f.write_str(text),
            Self::Break => f.write_str(BREAK),
            Self::Restart { .. } => f.write_str("\n[the answer begins again]\n"),
        }
    }
}

/// The text of a break.
const BREAK: &str = "\n\n";

/// The length of a run's text so far.
#[derive(Debug, Default)]
struct TextLength {
    bytes: usize,
    /// Where the newest message starts, including its break, while it is incomplete.
    message: Option<usize>,
}

impl TextLength {
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other event says anything of the text")]
    fn follow<R>(&mut self, item: &RunItem<R>, pieces: &mut VecDeque<TextPiece>) {
        match item {
            RunItem::Text(text) => {
                if self.message.is_none() {
                    self.message = Some(self.bytes);
                    if self.bytes > 0 {
                        self.bytes += BREAK.len();
                        pieces.push_back(TextPiece::Break);
                    }
                }
                self.bytes += text.len();
                pieces.push_back(TextPiece::More(text.clone()));
            }
            RunItem::Discarded => {
                if let Some(keep) = self.message.take() {
                    self.bytes = keep;
                    pieces.push_back(TextPiece::Restart { keep });
                }
            }
            RunItem::Event(event) => match &event.kind {
                EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => {
                    self.message = None
                }
                _ => {}
            },
            RunItem::Partial(_) | RunItem::Child(_) | RunItem::Gap { .. } | RunItem::Reply(_) => {}
        }
    }
}

/// A stream of a run: a [`Stream`] of [`RunItem`]s, the last of which is the reply or an error.
///
/// The reader sets the pace: while one mebibyte is unread, no more of the model's answer is read, and the
/// call keeps its slot at the provider. An observer subscribes instead, and may get a gap.
#[must_use = "nothing is said before it is polled"]
pub struct RunStream<R = Reply> {
    events: Subscription,
    reply: Option<BoxFuture<'static, Result<R>>>,
    /// The result, while earlier events are still to be delivered.
    ended: Option<Result<R>>,
    link: Arc<RunLink>,
    abort: AbortHandle,
    stage: Stage,
    items: VecDeque<RunItem<R>>,
    pieces: VecDeque<TextPiece>,
    shown: TextLength,
    /// The newest message before the run started: the prompt, if it is the run's.
    prompt: Option<Arc<Event>>,
    partial: Option<PartialOutput>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The run has not started.
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
    /// Creates the stream of a request that `send` sends when it is first polled.
    pub(crate) fn new(
        session: &SessionHandle,
        wrapped: Option<bool>,
        abort: AbortHandle,
        send: impl FnOnce(Arc<RunLink>) -> BoxFuture<'static, Result<R>>,
    ) -> Self {
        let link: Arc<RunLink> = Arc::default();
        let reply = send(Arc::clone(&link));
        Self::of(session, wrapped, abort, link, reply)
    }

    /// Creates the stream of a started run, from now on.
    pub(crate) fn join(
        session: &SessionHandle,
        wrapped: Option<bool>,
        abort: AbortHandle,
        link: Arc<RunLink>,
        reply: BoxFuture<'static, Result<R>>,
    ) -> Self {
        let mut stream = Self::of(session, wrapped, abort, link, reply);
        // The run's start may have been published before this subscription.
        if stream.link.run().is_some() {
            stream.stage = Stage::Running;
        }
        stream
    }

    fn of(
        session: &SessionHandle,
        wrapped: Option<bool>,
        abort: AbortHandle,
        link: Arc<RunLink>,
        reply: BoxFuture<'static, Result<R>>,
    ) -> Self {
        Self {
            events: session.subscribe_to_run(&link),
            reply: Some(reply),
            ended: None,
            link,
            abort,
            stage: Stage::Waiting,
            items: VecDeque::new(),
            pieces: VecDeque::new(),
            shown: TextLength::default(),
            prompt: None,
            partial: wrapped.map(PartialOutput::new),
        }
    }

    /// Returns the run's id once the run has started; `None` while the prompt waits.
    pub fn id(&self) -> Option<RunId> {
        self.link.run()
    }

    /// Aborts this run alone, or withdraws its prompt if the run has not started. The stream ends with
    /// [`Error::Aborted`].
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// Returns the run's sub-agents so far, in the order of their starts. [`RunItem::Child`] reports each as
    /// it starts.
    pub fn children(&self) -> Vec<Child> {
        self.id().map(|run| self.abort.session().children_of(run)).unwrap_or_default()
    }

    /// Returns a handle that aborts the run.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Waits for the next item; returns `None` after the last one, which is the reply or the run's error.
    pub async fn next(&mut self) -> Option<Result<RunItem<R>>> {
        StreamExt::next(self).await
    }

    /// Waits for the next piece of the agent's text; returns `None` when the run is over. [`Self::reply`]
    /// says how it ended.
    ///
    /// No text is lost, however slow the reader is: while one mebibyte is unread, no more of the model's
    /// answer is read. If text becomes void because the model is asked again, [`TextPiece::Restart`]
    /// withdraws it.
    pub async fn next_text(&mut self) -> Option<TextPiece> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(piece);
            }
            let item = std::future::poll_fn(|context| self.poll_item(context)).await?;
            self.shown.follow(&item, &mut self.pieces);
        }
    }

    /// Waits for the reply. Unread items are discarded.
    ///
    /// # Errors
    /// The same as for awaiting the request.
    pub async fn reply(mut self) -> Result<R> {
        while std::future::poll_fn(|context| self.poll_item(context)).await.is_some() {}
        self.ended.take().unwrap_or(Err(Error::Closed))
    }

    /// Polls the next item except the last; `None` when only the reply, in `ended`, is left.
    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<RunItem<R>>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Poll::Ready(Some(item));
            }
            if let Some(reply) = &mut self.reply {
                // Events come first: the reply is sent after the run's last event was published.
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
            // The remaining events of the run are queued already; after its end there are none.
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
                if self.stage == Stage::Running {
                    self.items.push_back(RunItem::Gap { from_seq: sessions.first().map(|(_, seq)| *seq) });
                }
            }
        }
    }

    /// Whether an event belongs to this run.
    fn is_own(&self, event: &Event) -> bool {
        event.run.is_some() && event.run == self.link.run()
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
                | EventKind::SessionFailed { .. }
                | EventKind::SessionMoved { .. }
                | EventKind::SessionDeleted { .. } => {}
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
            EventKind::ChildStart { child, .. } => {
                more = self.abort.session().child(child).map(RunItem::Child);
            }
            EventKind::RunEnd { .. } if self.is_own(&event) => self.stage = Stage::Over,
            _ => {}
        }
        let partial = self.partial.as_mut().and_then(|partial| partial.follow(&event.kind));
        self.items.push_back(RunItem::Event(event));
        self.items.extend(more);
        self.items.extend(partial.map(RunItem::Partial));
    }
}

/// No field is pinned in place: the future of the reply is boxed.
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

/// The partial value of a typed answer.
#[derive(Debug)]
struct PartialOutput {
    /// Whether the value is wrapped in an object.
    is_wrapped: bool,
    text: String,
    /// The length of the text when it was last parsed.
    read: usize,
    value: Option<Value>,
}

impl PartialOutput {
    /// The text is parsed again after it has grown by a sixty-fourth, so the total cost is at most about 64
    /// times one parse, however small the pieces are.
    const GROWTH: usize = 64;

    fn new(is_wrapped: bool) -> Self {
        Self { is_wrapped, text: String::new(), read: 0, value: None }
    }

    /// Returns the value if it has changed.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other event says anything of the text")]
    fn follow(&mut self, kind: &EventKind) -> Option<Value> {
        match kind {
            EventKind::MessageStart | EventKind::MessageDiscarded => {
                *self = Self::new(self.is_wrapped);
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
        let value = unwrapped(value, self.is_wrapped)?;
        if self.value.as_ref() == Some(&value) {
            return None;
        }
        self.value = Some(value.clone());
        Some(value)
    }
}

//! Handing a prompt to a session, and waiting for its reply.
//!
//! Invariants: guards judge the input before it is sent; dropping the reply's future cancels the run, or
//! withdraws the prompt from the inbox, unless other callers wait for it. A time limit holds whether the future is
//! polled or not.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use greenroom_kernel::EntryId;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::hooks::input::InputKind;
use crate::core::door::Door;
use crate::core::message::{PromptOptions, SessionMessage};
use crate::events::run_link::RunLink;
use crate::values::error::{Error, Result};
use crate::values::prompt::{Prompt, Reply};

/// A prompt on its way to a session; `None` resumes the newest prompt.
pub(crate) struct Handover {
    pub(crate) door: Door,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) options: Box<PromptOptions>,
}

impl Handover {
    /// Sends the prompt, and waits for its reply.
    pub(crate) async fn reply(self) -> Result<Reply> {
        let _waiting = self.door.begin_wait()?;
        self.send().await?.await
    }

    /// Puts the prompt into the session's mailbox, and returns the future of its reply.
    pub(crate) async fn send(self) -> Result<BoxFuture<'static, Result<Reply>>> {
        let Self { door, prompt, mut options } = self;
        let timeout = options.timeout;
        let mut timer = timeout.map(|timeout| (timeout, Box::pin(tokio::time::sleep(timeout))));
        // An abort that arrives while the guards run is meant for this prompt, too.
        options.early_aborts = door.early_aborts();
        let prompt = match prompt {
            Some(prompt) if door.is_guarded() => {
                let words = Box::pin(words(&door, options.key.as_deref(), prompt));
                Some(in_time(&mut timer, words).await?)
            }
            Some(prompt) => Some(Words::New(prompt)),
            None => None,
        };
        let (link, cancel) = (Arc::clone(&options.link), options.cancel.clone());
        let ticket = options.ticket;
        let mut guard = WithdrawOnDrop { door: Some(door.clone()), ticket };
        let message = move |reply| match prompt {
            Some(Words::New(prompt)) => SessionMessage::Prompt { content: prompt.0, options, reply },
            Some(Words::Recorded { first }) => SessionMessage::Repeat { first, options, reply },
            None => SessionMessage::Resume { options, reply },
        };
        let answer = in_time(&mut timer, door.request(message)).await.inspect_err(|_| guard.disarm())?;
        let ended = match timer {
            None => Either::Left({
                let door = door.clone();
                async move { door.answered(answer).await }
            }),
            Some((timeout, timer)) => {
                let limited = Limited { door: door.clone(), ticket, link, cancel, timeout };
                // The limit also holds while nobody polls the reply.
                let limited = AbortOnDropHandle::new(tokio::spawn(limited.reply(answer, timer)));
                let gone = door.clone();
                Either::Right(async move { limited.await.unwrap_or_else(|_| Err(gone.gone())) })
            }
        };
        let reply = async move {
            // The task that waits for the reply may be another one.
            let _waiting = door.begin_wait()?;
            let reply = ended.await;
            guard.disarm();
            reply
        };
        Ok(reply.boxed())
    }
}

/// A prompt whose reply has a time limit.
struct Limited {
    door: Door,
    ticket: u64,
    link: Arc<RunLink>,
    cancel: CancellationToken,
    timeout: Duration,
}

impl Limited {
    /// How often the session is told that the time is over: an actor that dies may not have read it.
    const TELL_AGAIN: Duration = Duration::from_secs(1);

    /// Waits for the reply. When the time is over, the caller leaves: the work then ends, unless others wait for it.
    async fn reply(
        self,
        answer: oneshot::Receiver<Result<Reply>>,
        mut timer: Pin<Box<tokio::time::Sleep>>,
    ) -> Result<Reply> {
        let Self { door, ticket, link, cancel, timeout } = self;
        let reply = door.answered(answer);
        tokio::pin!(reply);
        tokio::select! {
            biased;
            reply = &mut reply => return reply,
            () = &mut timer => {}
        }
        if link.run().is_none() {
            // The prompt still waits, or the run is another caller's.
            door.withdraw(ticket);
            return Err(Error::TimedOut { timeout });
        }
        loop {
            if !door.withdraw(ticket) {
                cancel.cancel();
            }
            let ended = tokio::time::timeout(Self::TELL_AGAIN, &mut reply).await;
            match ended {
                Ok(Err(Error::Aborted)) => return Err(Error::TimedOut { timeout }),
                Ok(ended) => return ended,
                Err(_) => {}
            }
        }
    }
}

/// The content of a prompt.
enum Words {
    /// The content that the guards accepted.
    New(Prompt),
    /// The content was recorded earlier with the prompt's key, from this entry on.
    Recorded { first: EntryId },
}

/// Calls the guards, unless the prompt's key was used already: the recorded content was judged then.
async fn words(door: &Door, key: Option<&str>, prompt: Prompt) -> Result<Words> {
    if let Some(first) = door.said_before(key).await? {
        return Ok(Words::Recorded { first });
    }
    match door.judge(InputKind::Prompt, prompt).await {
        Ok(prompt) => Ok(Words::New(prompt)),
        // A prompt with the same key may have been recorded in the meantime.
        Err(refused) => match door.said_before(key).await? {
            Some(first) => Ok(Words::Recorded { first }),
            None => Err(refused),
        },
    }
}

/// A time limit, and its timer since the start.
type Timer = Option<(Duration, Pin<Box<tokio::time::Sleep>>)>;

/// Runs `work` within the time limit.
async fn in_time<T>(timer: &mut Timer, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = pin!(work);
    let Some((timeout, timer)) = timer else { return work.await };
    tokio::select! {
        biased;
        done = &mut work => done,
        () = timer => Err(Error::TimedOut { timeout: *timeout }),
    }
}

/// Cancels a prompt whose caller has gone.
struct WithdrawOnDrop {
    door: Option<Door>,
    ticket: u64,
}

impl WithdrawOnDrop {
    /// Disarms the guard when there is nothing to cancel.
    fn disarm(&mut self) {
        self.door = None;
    }
}

impl Drop for WithdrawOnDrop {
    fn drop(&mut self) {
        if let Some(door) = self.door.take() {
            door.withdraw(self.ticket);
        }
    }
}

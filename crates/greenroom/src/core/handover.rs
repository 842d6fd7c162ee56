//! How a prompt is handed over to a session, and what waits for its reply.
//!
//! Invariants: guards judge what is recorded before it is sent; dropping what waits cancels the run, or takes the prompt out
//! of the inbox.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::EntryId;

use crate::agent::hooks::input::InputKind;
use crate::core::door::Door;
use crate::core::message::{PromptOptions, SessionMessage};
use crate::values::error::{Error, Result};
use crate::values::prompt::{Prompt, Reply};

/// A prompt on its way to a session; without one the newest prompt is resumed.
pub(crate) struct Handover {
    pub(crate) door: Door,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) options: Box<PromptOptions>,
}

impl Handover {
    /// Sends it, and waits for its reply.
    pub(crate) async fn reply(self) -> Result<Reply> {
        let _waiting = self.door.begin_wait()?;
        self.send().await?.await
    }

    /// Puts it into the session's mailbox, and gives what waits for the reply.
    pub(crate) async fn send(self) -> Result<BoxFuture<'static, Result<Reply>>> {
        let Self { door, prompt, mut options } = self;
        let timeout = options.timeout;
        let mut timer = timeout.map(|timeout| (timeout, Box::pin(tokio::time::sleep(timeout))));
        // An abort that comes while the guards judge is meant for this, too.
        options.early_aborts = door.early_aborts();
        let prompt = match prompt {
            Some(prompt) => {
                let words = words(&door, options.key.as_deref(), prompt);
                Some(in_time(&mut timer, words).await?)
            }
            None => None,
        };
        let (link, cancel) = (Arc::clone(&options.link), options.cancel.clone());
        let mut guard = WithdrawOnDrop { door: Some(door.clone()), ticket: options.ticket };
        let request = door.request(move |reply| match prompt {
            Some(Words::New(prompt)) => SessionMessage::Prompt { content: prompt.0, options, reply },
            Some(Words::Recorded { first }) => SessionMessage::Repeat { first, options, reply },
            None => SessionMessage::Resume { options, reply },
        });
        let answer = in_time(&mut timer, request).await.inspect_err(|_| guard.disarm())?;
        let reply = async move {
            // Whoever waits for it may be another than who handed it over.
            let _waiting = door.begin_wait()?;
            let reply = door.answered(answer);
            let reply = match timer {
                None => reply.await,
                Some((timeout, timer)) => {
                    tokio::pin!(reply);
                    tokio::select! {
                        biased;
                        reply = &mut reply => reply,
                        () = timer => {
                            if link.run().is_none() {
                                // It still waits: it is withdrawn.
                                return Err(Error::TimedOut { timeout });
                            }
                            cancel.cancel();
                            match reply.await {
                                Err(Error::Aborted) => Err(Error::TimedOut { timeout }),
                                ended => ended,
                            }
                        }
                    }
                }
            };
            guard.disarm();
            reply
        };
        Ok(reply.boxed())
    }
}

/// The words of a prompt.
enum Words {
    /// As the guards let them pass.
    New(Prompt),
    /// They were recorded under the prompt's key before, from this entry on.
    Recorded { first: EntryId },
}

/// Asks the guards what is to be recorded, unless the prompt's key was used already: what was recorded then, they judged.
async fn words(door: &Door, key: Option<&str>, prompt: Prompt) -> Result<Words> {
    if let Some(first) = door.said_before(key).await? {
        return Ok(Words::Recorded { first });
    }
    match door.judge(InputKind::Prompt, prompt).await {
        Ok(prompt) => Ok(Words::New(prompt)),
        // It may have been said meanwhile.
        Err(refused) => match door.said_before(key).await? {
            Some(first) => Ok(Words::Recorded { first }),
            None => Err(refused),
        },
    }
}

/// How long something may take, from when that was said.
type Timer = Option<(Duration, Pin<Box<tokio::time::Sleep>>)>;

/// Does this before the time is up.
async fn in_time<T>(timer: &mut Timer, work: impl Future<Output = Result<T>>) -> Result<T> {
    let Some((timeout, timer)) = timer else { return work.await };
    tokio::select! {
        biased;
        done = work => done,
        () = timer => Err(Error::TimedOut { timeout: *timeout }),
    }
}

/// Cancels a prompt whose caller went away.
struct WithdrawOnDrop {
    door: Option<Door>,
    ticket: u64,
}

impl WithdrawOnDrop {
    /// Nothing is left to cancel.
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

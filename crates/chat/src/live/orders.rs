//! Inputs on their way to the session.
//!
//! Invariants: inputs are sent one at a time, so they keep their order. An interrupt does not wait: inputs
//! that have not been sent return to the user, and the requests that follow it withdraw those that have.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom::ModelSettings;
use greenroom_server::operations::ImageData;
use greenroom_terminal::row::Look;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::Done;
use super::local::{Local, Whole};
use crate::backend::Backend;
use crate::model::Kind;

#[cfg(test)]
mod tests;

/// An input to send, or an interrupt.
pub(super) enum Order {
    Send(Box<Said>),
    Interrupt(Backend),
}

/// An input.
pub(super) struct Said {
    pub(super) backend: Backend,
    pub(super) ticket: u64,
    pub(super) kind: Kind,
    pub(super) text: String,
    /// The text in which files may be mentioned.
    pub(super) names: String,
    /// Whether the user typed the text; false for a custom command.
    pub(super) is_typed: bool,
    pub(super) settings: ModelSettings,
    /// The output of user commands, which is appended to the text.
    pub(super) told: Vec<String>,
}

/// Processes orders until all senders are gone.
pub(super) async fn obey(orders: UnboundedReceiver<Order>, done: UnboundedSender<Done>, local: Arc<Local>) {
    let mut orders = Orders { orders, waiting: VecDeque::new() };
    while let Some(order) = orders.next().await {
        let said = match order {
            Order::Send(said) => *said,
            Order::Interrupt(backend) => {
                interrupt(&backend, &done).await;
                continue;
            }
        };
        let reading = Box::pin(local.with_files(&said.text, &said.names, said.is_typed));
        let read = orders.unless_interrupted(reading).await.map_err(|(backend, _)| backend);
        let read = match read {
            Ok(read) => read,
            Err(backend) => {
                orders.waiting.push_front(Box::new(said));
                orders.take_back(&done);
                interrupt(&backend, &done).await;
                continue;
            }
        };
        let Whole { text, images, notes } = read;
        for note in notes {
            let _ = done.send(Done::Note(Look::WARN, note));
        }
        let sending = Box::pin(send(said, text, images, done.clone()));
        if let Err((backend, sending)) = orders.unless_interrupted(sending).await {
            // The request has been started; its result is reported when it arrives.
            tokio::spawn(sending);
            orders.take_back(&done);
            interrupt(&backend, &done).await;
        }
    }
}

/// Sends an input, and reports the result.
async fn send(said: Said, text: String, images: Vec<ImageData>, done: UnboundedSender<Done>) {
    let Said { backend, ticket, kind, settings, told, .. } = said;
    let text = told.iter().fold(text, |text, told| format!("{text}\n\n{told}"));
    let sent = match kind {
        Kind::Prompt => backend.prompt(text, images, settings).await,
        Kind::Steer => backend.steer(text, images).await,
        // `Waits` is never sent: the reply to a follow-up reports it.
        Kind::FollowUp | Kind::Waits => backend.follow_up(text, images).await,
    };
    if sent.is_err() {
        tell_later(&backend, told, &done);
    }
    let _ = done.send(Done::Sent(ticket, sent.map_err(|error| error.to_string())));
}

/// Keeps the output of user commands for the next prompt.
fn tell_later(backend: &Backend, told: Vec<String>, done: &UnboundedSender<Done>) {
    for text in told {
        let _ = done.send(Done::Told(backend.id().to_owned(), text));
    }
}

async fn interrupt(backend: &Backend, done: &UnboundedSender<Done>) {
    if let Err(error) = backend.interrupt().await {
        let _ = done.send(Done::Note(Look::BAD, error.to_string()));
    }
}

/// The incoming orders, and those that arrived during other work.
struct Orders {
    orders: UnboundedReceiver<Order>,
    waiting: VecDeque<Box<Said>>,
}

impl Orders {
    async fn next(&mut self) -> Option<Order> {
        match self.waiting.pop_front() {
            Some(said) => Some(Order::Send(said)),
            None => self.orders.recv().await,
        }
    }

    /// Runs `work`. If an interrupt arrives first, returns the unfinished work and the session to interrupt.
    async fn unless_interrupted<F: Future + Unpin>(
        &mut self,
        mut work: F,
    ) -> Result<F::Output, (Backend, F)> {
        let mut is_over = false;
        loop {
            tokio::select! {
                biased;
                output = &mut work => return Ok(output),
                order = self.orders.recv(), if !is_over => match order {
                    Some(Order::Send(said)) => self.waiting.push_back(said),
                    Some(Order::Interrupt(backend)) => return Err((backend, work)),
                    None => is_over = true,
                },
            }
        }
    }

    /// Returns unsent inputs to the user.
    fn take_back(&mut self, done: &UnboundedSender<Done>) {
        let mut tickets = Vec::new();
        for said in self.waiting.drain(..) {
            tickets.push(said.ticket);
            tell_later(&said.backend, said.told, done);
        }
        let _ = done.send(Done::TakenBack(tickets));
    }
}

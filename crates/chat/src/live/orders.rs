//! What is said on its way to the session.
//!
//! Invariants: one thing is said at a time, so that all of it keeps its order; an interrupt waits for nothing: what has not
//! gone out goes back to the user, and what has gone out is withdrawn by the requests that follow it.

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

/// Something that is said, or taken back.
pub(super) enum Order {
    Send(Box<Said>),
    Interrupt(Backend),
}

/// Something that is said.
pub(super) struct Said {
    pub(super) backend: Backend,
    pub(super) ticket: u64,
    pub(super) kind: Kind,
    pub(super) text: String,
    /// Where files are named.
    pub(super) names: String,
    /// Whether the user typed it, and no custom command.
    pub(super) is_typed: bool,
    pub(super) settings: ModelSettings,
    /// What commands of the user's own printed.
    pub(super) told: Vec<String>,
}

/// Does what is ordered, until nobody orders anything any more.
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
        let Whole { text, images, notes } = match read {
            Ok(whole) => whole,
            Err(problem) => {
                tell_later(said.told, &done);
                let _ = done.send(Done::Sent(said.ticket, Err(problem)));
                continue;
            }
        };
        for note in notes {
            let _ = done.send(Done::Note(Look::WARN, note));
        }
        let sending = Box::pin(send(said, text, images, done.clone()));
        if let Err((backend, sending)) = orders.unless_interrupted(sending).await {
            // The request is on its way; what comes of it is told when it is known.
            tokio::spawn(sending);
            orders.take_back(&done);
            interrupt(&backend, &done).await;
        }
    }
}

/// Says it, and tells what came of that.
async fn send(said: Said, text: String, images: Vec<ImageData>, done: UnboundedSender<Done>) {
    let Said { backend, ticket, kind, settings, told, .. } = said;
    let text = told.iter().fold(text, |text, told| format!("{text}\n\n{told}"));
    let sent = match kind {
        Kind::Prompt => backend.prompt(text, images, settings).await,
        Kind::Steer => backend.steer(text, images).await,
        // Nothing is said like that: it turns out when it was said.
        Kind::FollowUp | Kind::Waits => backend.follow_up(text, images).await,
    };
    if sent.is_err() {
        tell_later(told, &done);
    }
    let _ = done.send(Done::Sent(ticket, sent.map_err(|error| error.to_string())));
}

/// What was to be told besides waits for the next prompt.
fn tell_later(told: Vec<String>, done: &UnboundedSender<Done>) {
    for text in told {
        let _ = done.send(Done::Told(text));
    }
}

async fn interrupt(backend: &Backend, done: &UnboundedSender<Done>) {
    if let Err(error) = backend.interrupt().await {
        let _ = done.send(Done::Note(Look::BAD, error.to_string()));
    }
}

/// The orders, with those that came while something else was done.
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

    /// Does something, which has begun when this is interrupted. Then what is left of it is given, and who interrupts.
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

    /// What has not gone out is the user's again.
    fn take_back(&mut self, done: &UnboundedSender<Done>) {
        let mut tickets = Vec::new();
        for said in self.waiting.drain(..) {
            tickets.push(said.ticket);
            tell_later(said.told, done);
        }
        let _ = done.send(Done::TakenBack(tickets));
    }
}

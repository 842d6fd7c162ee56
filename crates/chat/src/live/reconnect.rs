//! Connects the chat to another host after its host has ended.
//!
//! Invariants: input typed during the wait is for the session, and is processed when the session is open again; the
//! user can exit during the wait.

use std::sync::Arc;

use anyhow::Result;
use greenroom_terminal::input::Input;
use greenroom_terminal::row::Look;
use tokio::sync::mpsc;

use super::TerminalChat;
use crate::program::Reconnected;
use crate::{NEXT_HOST, SILENCE_MAX};

impl TerminalChat {
    /// Connects to another host after this one has ended, and continues the session there. Returns false if
    /// the user left meanwhile.
    pub(super) async fn reconnect(&mut self, inputs: &mut mpsc::Receiver<Input>) -> Result<bool> {
        let (program, id, chosen) =
            (Arc::clone(&self.program), self.backend.id().to_owned(), self.chosen.clone());
        let Some(mut opening) = program.reconnect(&id, chosen.as_deref()) else {
            anyhow::bail!("the connection to the runtime ended");
        };
        self.is_silent = false;
        self.model.past_ends();
        self.draw()?;
        let mut is_said = false;
        // Input during the wait is meant for the session.
        let mut aside = Vec::new();
        let Reconnected { mut opened, warnings } = loop {
            tokio::select! {
                biased;
                () = self.interrupts.next() => return Ok(false),
                opened = &mut opening => break opened?,
                input = inputs.recv() => match input {
                    None => return Ok(false),
                    // Until the user is told about the host, Ctrl-C is meant for the session.
                    Some(input) if input.leaves() && (is_said || !input.is_interrupt()) => return Ok(false),
                    Some(input) => aside.push(input),
                },
                () = tokio::time::sleep(SILENCE_MAX), if !is_said => {
                    is_said = true;
                    self.model.note(Look::WARN, NEXT_HOST);
                    if let Some(text) = self.program.still_silent() {
                        self.model.note(Look::WARN, &text);
                    }
                }
            }
            self.draw()?;
        };
        for warning in &warnings {
            self.model.note(Look::WARN, warning);
        }
        self.program.keep_settings();
        // Events that were seen already are not shown again.
        let (past, _) = self.follow.missed(std::mem::take(&mut opened.past));
        opened.past = past.iter().map(|event| (**event).clone()).collect();
        self.welcome(opened, true);
        for input in aside {
            if !self.input(input)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

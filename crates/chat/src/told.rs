//! The commands that every chat answers with text, at a terminal and without one.
//!
//! Invariants: the text is the same in both.

use greenroom::EntryId;
use greenroom_server::ClientError;
use greenroom_terminal::{compactions, format};

use super::backend::Backend;
use super::figures;

/// A command that is answered with text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of its name, which the table explains")]
pub enum Told {
    Plan,
    /// The number of the compaction to show; `None` lists them.
    Compactions(Option<u64>),
    /// The entry to pin; `None` for the last prompt.
    Pin(Option<u64>),
    Unpin(u64),
    Pins,
    Cost,
    Withdraw,
}

impl Told {
    /// Performs the command. Returns its lines.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn answer(self, backend: &Backend) -> Result<String, ClientError> {
        Ok(match self {
            Self::Plan => figures::plan(&backend.plan().await?),
            Self::Compactions(None) => {
                let (records, state) = (backend.compactions().await?, backend.state().await?);
                figures::compactions(&records, &state)
            }
            Self::Compactions(number) => compactions::details(&backend.compaction(number).await?).join("\n"),
            Self::Pin(entry) => {
                let entry = match entry {
                    Some(entry) => Some(EntryId(entry)),
                    None => backend.last_prompt().await?,
                };
                match entry {
                    Some(entry) => figures::pins(&backend.pin(entry, true).await?),
                    None => "there is no prompt yet".to_owned(),
                }
            }
            Self::Unpin(entry) => {
                let entry = EntryId(entry);
                let is_pinned = backend.pins().await?.iter().any(|pin| pin.entry_id == entry);
                let pins = figures::pins(&backend.pin(entry, false).await?);
                if is_pinned { pins } else { format!("entry {entry} is not pinned\n{pins}") }
            }
            Self::Pins => figures::pins(&backend.pins().await?),
            Self::Cost => figures::cost(&backend.state().await?),
            Self::Withdraw => {
                let count = backend.withdraw(None).await? as u64;
                format!("{} withdrawn", format::count(count, "input"))
            }
        })
    }
}

//! Going back in a session, with its files.
//!
//! Invariants: a session's log is never changed: the conversation continues on another branch. No run begins
//! while files are brought back, because the session itself does it.

use crate::api::session::SessionHandle;
use crate::core::message::SessionMessage;
use crate::values::error::Result;
use crate::values::rewind::{Rewind, Rewound};

impl SessionHandle {
    /// Takes back the newest turn, or goes back to an entry: the conversation, the files that the session's
    /// tools have changed since, or both. Only while idle, or with [`Rewind::aborting`]. The files are those that the runtime keeps; what
    /// happened to each is in the result, and a file that cannot be brought back is left as it is. A rewind
    /// to [`Rewound::from`] takes the rewind back.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// use greenroom::files::Rewind;
    ///
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// for file in session.rewind(Rewind::last_turn().dry_run()).await?.files {
    ///     println!("{}: {:?}", file.path, file.action);
    /// }
    /// let rewound = session.rewind(Rewind::last_turn()).await?;
    /// println!("the conversation continues after {:?}", rewound.to);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotIdle`](crate::Error::NotIdle); those of [`Self::branch`].
    pub async fn rewind(&self, rewind: Rewind) -> Result<Rewound> {
        self.door.ask(|reply| SessionMessage::Rewind { rewind, reply }).await
    }
}

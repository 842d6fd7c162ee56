//! Taking back a session's newest turn, or going back to an entry: the conversation, the files, or both.

use greenroom_kernel::EntryId;
use greenroom_tools::rewind::FileRewind;

/// A request to go back: see [`SessionHandle::rewind`](crate::SessionHandle::rewind). By default, both the
/// conversation and the files go back, and files that somebody else changed since are left as they are.
///
/// ```
/// use greenroom::{EntryId, files::Rewind};
///
/// let last_turn = Rewind::last_turn();
/// let files_of_entry_7 = Rewind::to(EntryId(7)).files_only();
/// let what_would_happen = Rewind::last_turn().dry_run();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Rewind {
    pub(crate) target: RewindTarget,
    pub(crate) conversation: bool,
    pub(crate) files: bool,
    pub(crate) overwrites: bool,
    pub(crate) dry_run: bool,
    pub(crate) aborts: bool,
}

/// Where a rewind leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RewindTarget {
    /// To the moment before the newest prompt of the conversation.
    LastTurn,
    /// To the moment when this entry was the newest; `None` is the empty session.
    Entry(Option<EntryId>),
}

impl Rewind {
    fn new(target: RewindTarget) -> Self {
        Self { target, conversation: true, files: true, overwrites: false, dry_run: false, aborts: false }
    }

    /// Takes back the newest turn: the last prompt, and everything after it.
    pub fn last_turn() -> Self {
        Self::new(RewindTarget::LastTurn)
    }

    /// Goes back to the moment when this entry was the newest; `None` is the empty session. The entry may be
    /// on another branch: then the files become those of that moment, as far as the session changed them.
    pub fn to(entry: impl Into<Option<EntryId>>) -> Self {
        Self::new(RewindTarget::Entry(entry.into()))
    }

    /// Leaves the conversation as it is.
    pub fn files_only(mut self) -> Self {
        (self.conversation, self.files) = (false, true);
        self
    }

    /// Leaves the files as they are.
    pub fn conversation_only(mut self) -> Self {
        (self.conversation, self.files) = (true, false);
        self
    }

    /// Overwrites files that somebody else changed, too. Their present content is kept first.
    pub fn overwriting(mut self) -> Self {
        self.overwrites = true;
        self
    }

    /// Aborts the run or compaction in progress first, and goes back when it has ended, before queued input begins.
    pub fn aborting(mut self) -> Self {
        self.aborts = true;
        self
    }

    /// Changes nothing: the result says what would be done.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }
}

/// The result of a rewind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rewound {
    /// The prompt that was taken back. `None` if the rewind was to an entry, or there is no prompt to take
    /// back, and then nothing was done.
    pub prompt: Option<EntryId>,
    /// The entry to which the session went back; `None` is the empty session.
    pub to: Option<EntryId>,
    /// The last entry of the conversation before: a rewind to it takes this one back.
    pub from: Option<EntryId>,
    /// Whether the conversation now continues after [`Self::to`].
    pub conversation: bool,
    /// The files that are not as they were then, and what was done to each. Empty also if the runtime keeps
    /// no files.
    pub files: Vec<FileRewind>,
    /// Whether the runtime keeps files: see
    /// [`RuntimeBuilder::keep_files`](crate::RuntimeBuilder::keep_files).
    pub keeps_files: bool,
}

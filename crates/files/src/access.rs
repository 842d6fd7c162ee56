//! Who else can have read or changed a file or a folder.
//!
//! Invariants: the decision is made from the metadata of what was opened, never of a path that could lead elsewhere by
//! then.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// The permission of everybody to write.
const EVERYBODY_WRITES: u32 = 0o002;
/// The permissions of the group and of everybody to write.
const OTHERS_WRITE: u32 = 0o022;
/// All permissions of the group and of everybody.
const OTHERS: u32 = 0o077;

/// What must hold for a file or a folder before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Only the user can read or change it: secrets.
    Private,
    /// Only the user can change it.
    Own,
    /// Only the user, `root` and the group can change it.
    Trusted,
    /// Only its owner can change it, whoever that is.
    Closed,
    /// Not everybody can change it, whoever owns it.
    Guarded,
}

/// Who else has access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposed {
    /// It belongs to another user.
    Owner {
        /// The owner's id.
        owner: u32,
        /// The id of the user of this process.
        user: u32,
    },
    /// Its permissions admit others.
    Permissions,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner { owner, user } => {
                write!(f, "it belongs to another user (id {owner}, and yours is {user})")
            }
            Self::Permissions => f.write_str("others have access to it"),
        }
    }
}

/// Checks who has access.
///
/// # Errors
/// Who else has it, although that must not be; the owner comes first.
pub fn check(metadata: &Metadata, need: Need) -> Result<(), Exposed> {
    judge(metadata.uid(), metadata.mode(), user(), need)
}

/// Returns the id of the user of this process.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn judge(owner: u32, mode: u32, user: u32, need: Need) -> Result<(), Exposed> {
    let (is_owner_fine, forbidden) = match need {
        Need::Private => (owner == user, OTHERS),
        Need::Own => (owner == user, OTHERS_WRITE),
        Need::Trusted => (owner == user || owner == 0, EVERYBODY_WRITES),
        Need::Closed => (true, OTHERS_WRITE),
        Need::Guarded => (true, EVERYBODY_WRITES),
    };
    if !is_owner_fine {
        return Err(Exposed::Owner { owner, user });
    }
    if mode & forbidden != 0 { Err(Exposed::Permissions) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

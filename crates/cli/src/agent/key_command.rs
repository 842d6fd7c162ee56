//! The command that prints a provider's key.
//!
//! Invariants: the command is only the user's own, because no project's file may set it; it gets the user's variables and
//! nothing of a request, and does not run in a project's folder.

use std::path::PathBuf;
use std::time::Duration;

use greenroom::provider::{ApiKey, KeySource};
use greenroom_tools::printed;

use crate::error::secrets;

/// How long the command may take. It may have to ask the user for a fingerprint.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the keys that a shell command prints, with these variables as its environment.
pub(super) fn source(command: String, variables: Vec<(String, String)>) -> KeySource {
    // Not the working folder: a project could change what the command does there.
    let home = variables.iter().find(|(name, _)| name == "HOME").map_or("/", |(_, home)| home);
    let home = PathBuf::from(home);
    KeySource::new(move || {
        let (command, home, variables) = (command.clone(), home.clone(), variables.clone());
        async move {
            let printed = printed::first_line(&command, &home, &variables, TIMEOUT).await;
            if let Ok(key) = &printed {
                secrets::note("key_command", key);
            }
            printed.map(ApiKey::from).map_err(|reason| format!("key_command {reason}"))
        }
    })
}

//! The line that tells a model which protection was probably in the way of a command.
//!
//! Invariants: only a command that failed in a sandbox gets one, or one whose output has the message of a program that found
//! no network, since the end of a pipe tells nothing of its beginning. The line names a setting that the user, and not the
//! model, can change.

use super::{Network, Protection, Sandbox, Way};

/// Texts of programs that were refused something, in lower case.
const FILES: [&str; 4] =
    ["read-only file system", "is a directory", "permission denied", "device or resource busy"];
/// What git says about its own files.
const GIT: [&str; 4] = [".git/config", ".git/hooks", ".git: ", "could not lock config file"];
const NETWORKS: [&str; 9] = [
    "network is unreachable", "could not resolve host", "temporary failure in name resolution",
    "name or service not known", "failed to resolve", "dns error", "enotfound", "eai_again",
    "couldn't connect to server",
];
const PROCESSES: [&str; 3] =
    ["operation not permitted", "resource temporarily unavailable", "cannot allocate memory"];
/// Refusals of the proxy, as it says them and as programs do.
const PROXY: [&str; 5] =
    ["not in sandbox.network", "403 from proxy", "error: 403", "response 403", "403 forbidden"];

/// Returns the line for a command with this output.
pub(crate) fn hint(
    sandbox: &Sandbox,
    protection: &Protection,
    has_failed: bool,
    output: &str,
) -> Option<String> {
    if protection.way == Way::Off {
        return None;
    }
    let output = output.to_lowercase();
    let has = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
    let is_list = matches!(sandbox.network, Network::Hosts(_));
    let text = if (has(&PROXY) && is_list) || (has(&NETWORKS) && sandbox.network != Network::All) {
        match &sandbox.network {
            Network::None | Network::All => {
                "this command runs in a sandbox without network; ask the user to allow hosts with `sandbox.network`"
                    .to_owned()
            }
            Network::Hosts(hosts) => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                format!(
                    "this command runs in a sandbox that reaches only {}, over HTTP and HTTPS; ask the user to add \
                     a host to `sandbox.network`",
                    hosts.join(", ")
                )
            }
        }
    } else if !has_failed {
        return None;
    } else if has(&FILES) && has(&GIT) {
        "this command runs in a sandbox that keeps git's configuration and hooks as they are, so `git init`, `git config` and \
         `git remote add` do not work in the workspace itself; a value for one command is set with `git -c KEY=VALUE`; else \
         ask the user to run it (`!git init` in the chat)"
            .to_owned()
    } else if has(&FILES) {
        "this command runs in a sandbox that can change only the workspace and /tmp, and in the workspace neither git's \
         hooks and configuration nor greenroom.yaml; ask the user to allow a folder with `sandbox.writable`"
            .to_owned()
    } else if has(&PROCESSES) {
        "this command runs in a sandbox with limits and without privileges; ask the user to change a limit in `sandbox`, or \
         to run it themselves"
            .to_owned()
    } else {
        return None;
    };
    Some(text)
}

#[cfg(test)]
mod tests;

//! The environment of a command: its folder and its variables. A host makes the agents of clients whose
//! environments differ from its own.
//!
//! Invariants: a client passes only the variables that can affect its agent, and, apart from them, the secrets that the host
//! redacts; none of it is shown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use greenroom_terminal::screen;
use greenroom_tools::privacy;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kept_keys;
use crate::error::{secrets, usage};

/// The prefixes of variables that can affect an agent.
const PREFIXES: [&str; 2] = ["GREENROOM_", "OPENAI_"];
/// Other such variables, in this spelling or in lower case. Other `XDG_…` variables change with each login
/// and each window.
const NAMES: [&str; 12] = [
    "ANTHROPIC_BASE_URL", "HOME", "XDG_CONFIG_HOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "PATH", "LANG", "TERM", "TMPDIR", "USER",
];

tokio::task_local! {
    /// Where a task works, if that is not the folder of this process.
    static WITHIN: Surroundings;
}

/// Runs work whose own surroundings ([`Surroundings::here`]) are this folder, with further variables: for a process that
/// works in several folders.
pub(crate) async fn within<T>(
    folder: &Path,
    further: BTreeMap<String, String>,
    work: impl Future<Output = T>,
) -> T {
    let inner = Inner { folder: folder.to_owned(), further, ..Inner::default() };
    WITHIN.scope(Surroundings(Arc::new(inner)), work).await
}

/// A folder and an environment. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Surroundings(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Empty for the current folder of this process.
    folder: PathBuf,
    /// `None`: those of this process.
    variables: Option<BTreeMap<String, String>>,
    /// Variables besides those of this process.
    further: BTreeMap<String, String>,
    /// `None`: that of this process.
    umask: Option<u32>,
    /// The variables that were read, with their values if they were set.
    asked: Mutex<BTreeMap<String, Option<String>>>,
}

/// A client's environment, as it is passed to a host.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Handed {
    /// The client's folder, an absolute path; relative paths in the definition are relative to it.
    pub(crate) folder: PathBuf,
    /// The client's environment variables that affect its agent, such as `OPENAI_API_KEY`, `OPENAI_BASE_URL`,
    /// `HOME` and `PATH`. The host's own are not used.
    #[serde(default)]
    variables: BTreeMap<String, String>,
    /// The permissions that new files of its tools do not get, as in `umask`, as a decimal number: 18 for
    /// 022.
    umask: u32,
    /// The client's secrets, by the names of their environment variables: the host redacts them, and uses them for nothing
    /// else.
    #[serde(default)]
    secrets: BTreeMap<String, String>,
}

impl Handed {
    /// Returns the variables with wanted names.
    pub(crate) fn variables_that(&self, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<&str, &str> {
        let variables = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        variables.filter(|(name, _)| is_wanted(name)).collect()
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("folder", &self.0.folder).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Surroundings {
    /// Returns the environment of this process, or that in which this task works ([`within`]).
    pub(crate) fn here() -> Self {
        WITHIN.try_with(Self::clone).unwrap_or_default()
    }

    /// Returns the environment of a client.
    pub(crate) fn of(handed: Handed) -> Self {
        let Handed { folder, variables, umask, secrets } = handed;
        secrets::redactor().add(secrets);
        let (variables, umask) = (Some(variables), Some(umask));
        Self(Arc::new(Inner { folder, variables, umask, ..Inner::default() }))
    }

    /// Returns this command's environment, for a host; `keys` names the variables with keys, which only the
    /// configuration knows. `secrets` are redacted there.
    pub(crate) fn hand_over(keys: &[String], secrets: Vec<(String, String)>) -> Result<Handed> {
        let names = privacy::variable_names().into_iter().filter_map(|name| name.into_string().ok());
        let variables = names
            .filter(|name| matters(name) || keys.contains(name))
            .filter_map(|name| Some((name.clone(), screen::variable(&name)?)));
        // A key that is kept is used as if its variable were set.
        let kept = kept_keys::all().into_iter().filter(|(name, _)| matters(name) || keys.contains(name));
        let here = Self::here();
        let variables = kept.chain(variables).chain(here.0.further.clone());
        let folder = match here.0.folder.as_os_str().is_empty() {
            false => here.0.folder.clone(),
            true => std::env::current_dir()
                .map_err(|error| usage(format!("the current folder cannot be used: {error}")))?,
        };
        let secrets = secrets.into_iter().collect();
        Ok(Handed { folder, variables: variables.collect(), umask: own_umask(), secrets })
    }

    /// Returns a variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let Some(variables) = &self.0.variables else {
            let further = self.0.further.get(name).cloned();
            return further.or_else(|| screen::variable(name)).or_else(|| kept_keys::key(name));
        };
        let value = variables.get(name).cloned();
        self.0.asked.lock().insert(name.to_owned(), value.clone());
        value
    }

    /// Returns the names of all variables.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.0.variables {
            Some(variables) => variables.keys().cloned().collect(),
            None => {
                let names = privacy::variable_names().into_iter();
                names.filter_map(|name| name.into_string().ok()).collect()
            }
        }
    }

    /// Returns all variables and their values. They are not noted as read: they affect no agent.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        match &self.0.variables {
            Some(variables) => variables.clone().into_iter().collect(),
            None => self
                .names()
                .into_iter()
                .filter_map(|name| Some((name.clone(), screen::variable(&name)?)))
                .chain(kept_keys::all())
                .chain(self.0.further.clone())
                .collect(),
        }
    }

    /// Resolves a path relative to this folder.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.folder.join(path)
    }

    /// Returns the folder, for searching sessions that were started in it.
    pub(crate) fn folder(&self) -> PathBuf {
        match &self.0.variables {
            None if self.0.folder.as_os_str().is_empty() => std::env::current_dir().unwrap_or_default(),
            Some(_) | None => self.0.folder.clone(),
        }
    }

    /// Returns the variables of a client for its commands; `None` means those of this process.
    pub(crate) fn for_commands(&self) -> Option<Vec<(String, String)>> {
        let variables = self.0.variables.as_ref()?;
        let shown = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"];
        let shown =
            shown.into_iter().filter_map(|name| Some((name.to_owned(), variables.get(name)?.clone())));
        Some(shown.collect())
    }

    /// Returns the variables of commands of the user's own, such as one that prints a key: those that can affect an agent, the same with a host and
    /// without.
    pub(crate) fn for_own_commands(&self) -> Vec<(String, String)> {
        let names = self.names().into_iter().filter(|name| matters(name));
        names.filter_map(|name| Some((name.clone(), self.variable(&name)?))).collect()
    }

    /// Returns the permissions that new files of a client do not get; `None` means this process's umask.
    pub(crate) fn umask(&self) -> Option<u32> {
        self.0.umask
    }

    /// Whether all variables that were read here have the same values in `others`, in the same folder.
    pub(crate) fn are_like(&self, others: &Self) -> bool {
        let of_others =
            |name: &String| others.0.variables.as_ref().and_then(|known| known.get(name).cloned());
        let asked = self.0.asked.lock();
        self.0.folder == others.0.folder
            && self.0.umask == others.0.umask
            && asked.iter().all(|(name, value)| of_others(name) == *value)
            && self.for_commands() == others.for_commands()
            && ours(self) == ours(others)
    }
}

/// Whether a variable with this name can affect an agent.
fn matters(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name.to_uppercase().as_str())
}

/// Returns the `umask` of this process, which can be read only by setting another one for a moment: the
/// strictest.
fn own_umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

/// Returns our variables, which are listed by their names.
fn ours(surroundings: &Surroundings) -> Vec<String> {
    surroundings.names().into_iter().filter(|name| name.starts_with("GREENROOM_")).collect()
}

#[cfg(test)]
mod tests {
    use super::matters;

    #[test]
    fn what_changes_with_each_login_does_not_matter() {
        for name in ["GREENROOM_MODEL", "OPENAI_BASE_URL", "HOME", "https_proxy", "XDG_CONFIG_HOME"] {
            assert!(matters(name), "{name}");
        }
        for name in ["XDG_SESSION_ID", "XDG_VTNR", "XDG_RUNTIME_DIR", "SSH_CLIENT", "HOMEBREW", "PWD"] {
            assert!(!matters(name), "{name}");
        }
    }
}

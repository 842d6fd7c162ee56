//! The permissions of the agent: the actions that need no approval.
//!
//! Invariants: each rule is read when its file is; a project's file can add rules that ask or deny and choose a
//! stricter mode, and allows nothing.

use greenroom::permissions::{Effect, Mode, Policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Wrong, or_default, wrong};

/// The permissions of the agent: the actions that need no approval. A rule is a tool's name, or `read`, `write` or
/// `bash` with a pattern: `bash(git status *)`, `write(src/**)`, `read(.env)`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PermissionsConfig {
    /// The decision about calls that match no rule: `read_only` (the agent changes nothing), `ask` (it asks before it
    /// changes a file or runs a command), `accept_edits` (it asks before it runs a command) or `everything`. `null`:
    /// `ask` in a chat at a terminal; elsewhere `ask` if there are rules, and otherwise `read_only`. Also `--mode`.
    pub(crate) mode: Option<Mode>,
    /// Rules that allow calls without asking. Also `--allow`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) allow: Vec<String>,
    /// Rules that make calls ask, regardless of the mode and `allow`. Also `--ask`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) ask: Vec<String>,
    /// Rules that deny calls, regardless of all other settings. Also `--deny`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) deny: Vec<String>,
}

impl PermissionsConfig {
    /// Returns the rules with their effects, and the names of their settings.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (Effect, &'static str, &String)> {
        let lists = [
            (Effect::Allow, "allow", &self.allow),
            (Effect::Ask, "ask", &self.ask),
            (Effect::Deny, "deny", &self.deny),
        ];
        lists.into_iter().flat_map(|(effect, name, rules)| rules.iter().map(move |rule| (effect, name, rule)))
    }
}

/// Refuses rules that cannot be read.
pub(super) fn check(config: &PermissionsConfig) -> Result<(), Wrong> {
    let mut trial = Policy::new(Mode::Ask, "/").home(Some("/".into()));
    for (effect, name, rule) in config.rules() {
        if let Err(invalid) = trial.add(effect, rule, "") {
            return wrong(&["permissions", name], &invalid.to_string());
        }
    }
    Ok(())
}

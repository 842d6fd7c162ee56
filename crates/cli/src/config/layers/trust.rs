//! What a project's file may set over the user's.
//!
//! Invariants: it is decided key by key in [`rule`], where a key that is not named is the user's alone; a limit can be
//! tightened and never loosened; texts reach a model only where the user trusts the folder.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_norway::Value;

use super::Source;
use super::errors::at;
use super::read::own_file_shown;
use crate::config::surroundings::Surroundings;
use crate::config::{Config, FILE_NAME};
use crate::error::usage;
/// The author of a configuration file, which decides what the file may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The user: their own file, or one that they named.
    User,
    /// Whoever put it into the current folder.
    Project,
}

/// What a project's file may do with a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Set it.
    Choose,
    /// Lower it, and not take it away.
    Lower,
    /// Set it where the user trusts the folder.
    Text,
    /// Nothing.
    UsersAlone,
}

/// What a project's file may do with each setting.
///
/// The model is the project's to choose: a project knows what its work needs, and a name goes only to the provider
/// that the user has. What that may cost is looked at where the model's price is known (`setup`).
pub(crate) fn rule(key: &str) -> Rule {
    match key {
        "model"
        | "provider"
        | "compaction.enabled"
        | "compaction.reserve_tokens"
        | "compaction.threshold"
        | "compaction.keep_recent_tokens"
        | "compaction.preserve_messages"
        | "compaction.strategy"
        | "compaction.summary_model"
        | "compaction.cut"
        | "compaction.min_split_prefix"
        | "compaction.soft_threshold"
        | "compaction.background"
        | "compaction.estimator" => Rule::Choose,
        "context_window"
        | "limits.steps_max"
        | "limits.repeats_max"
        | "limits.retries_max"
        | "limits.loading_timeout_s"
        | "limits.cost_usd_max"
        | "limits.calls_max"
        | "limits.call_bytes_max"
        | "limits.tool_timeout_s"
        | "limits.run_timeout_s"
        | "compaction.context_window"
        | "compaction.auto_compact_token_limit"
        | "compaction.unknown_window"
        | "compaction.max_request_bytes" => Rule::Lower,
        "compaction.compact_prompt" | "system_prompt" | "append_system_prompt" => Rule::Text,
        _ => Rule::UsersAlone,
    }
}

/// How an edit of a project's file, while a session is open, may change a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tighter {
    /// A smaller number is tighter; none is the loosest.
    Lower,
    /// A larger number is tighter; none is the loosest.
    Raise,
}

/// Which edits of a project's file hold while a session is open: those that tighten. All other settings of the file hold
/// from the next start.
pub(crate) fn tighter(key: &str) -> Option<Tighter> {
    match (key, rule(key)) {
        ("compaction.threshold", _) | (_, Rule::Lower) => Some(Tighter::Lower),
        ("compaction.reserve_tokens", _) => Some(Tighter::Raise),
        (_, Rule::Choose | Rule::Text | Rule::UsersAlone) => None,
    }
}

/// A project's file, on its way over the user's.
pub(super) struct Over<'a> {
    /// `None` for one that is gone, and of which something still holds.
    pub(super) source: Option<&'a Source>,
    pub(super) folder: PathBuf,
    pub(super) is_trusted: bool,
    pub(super) warnings: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Over<'_> {
    /// Puts what the file may set on top of `base`, a section at a time.
    pub(super) fn put(&mut self, base: &mut Value, over: Value, section: &str) -> Result<()> {
        let (Value::Mapping(base), Value::Mapping(over)) = (base, over) else { return Ok(()) };
        for (name, value) in over {
            let Some(name) = name.as_str() else { continue };
            let key = format!("{section}{name}");
            match (rule(&key), base.get_mut(name)) {
                (_, Some(known)) if matches!(key.as_str(), "limits" | "compaction") => {
                    self.put(known, value, &format!("{key}."))?;
                }
                (Rule::Choose, Some(known)) => *known = value,
                // What is known of the model is no limit of cost or time: without it, the model's own window holds.
                (Rule::Lower, Some(known)) if value.is_null() && name == "context_window" => *known = value,
                (Rule::Lower, Some(known)) => self.lower(known, value, &key),
                (Rule::Text, Some(known)) => self.text(known, value, &key),
                (Rule::UsersAlone, _) | (_, None) => {
                    let reason = format!(
                        "only your own file, {}, can set it, or one that you name with --config; a file in the current \
                         folder can choose one of your providers with `provider: NAME`",
                        own_file_shown()
                    );
                    return Err(usage(self.at(&key, &reason)));
                }
            }
        }
        Ok(())
    }

    fn at(&self, key: &str, reason: &str) -> String {
        let parts: Vec<&str> = key.split('.').collect();
        self.source
            .map_or_else(|| format!("{FILE_NAME}: {key}: {reason}"), |source| at(source, &parts, reason))
    }

    fn lower(&mut self, known: &mut Value, value: Value, key: &str) {
        match (known.as_f64(), value.as_f64()) {
            (Some(holds), Some(asked)) if asked <= holds => *known = value,
            (None, Some(_)) => *known = value,
            (Some(holds), Some(asked)) => {
                self.notes.push(format!(
                    "{key} stays at {holds}: {FILE_NAME} asks for {asked}, and can only lower it"
                ));
            }
            (Some(_) | None, None) => {}
        }
    }

    fn text(&mut self, known: &mut Value, value: Value, key: &str) {
        if self.is_trusted {
            *known = value;
            return;
        }
        // Words of the user's own are not taken away by a folder that nobody trusts.
        if value.is_null() {
            return;
        }
        let folder = &self.folder;
        let reason = format!(
            "not used, since it would speak to the model in your name; if you trust this folder, add \
             `trusted_folders: [{folder:?}]` to {}",
            own_file_shown()
        );
        let text = self.at(key, &reason);
        self.warnings.push(text);
    }
}

/// Whether the user trusts the current folder: this one, not one above it.
pub(super) fn is_trusted(own: &Config, surroundings: &Surroundings) -> bool {
    let Ok(here) = surroundings.path(".").canonicalize() else { return false };
    own.trusted_folders
        .iter()
        .filter_map(|folder| expanded(folder, surroundings)?.canonicalize().ok())
        .any(|folder| folder == here)
}

/// A folder as the user wrote it, as a path; `None` for one that would depend on where the program runs.
pub(crate) fn expanded(folder: &str, surroundings: &Surroundings) -> Option<PathBuf> {
    let path = match folder.strip_prefix("~/") {
        Some(rest) => PathBuf::from(surroundings.variable("HOME")?).join(rest),
        None => PathBuf::from(folder),
    };
    path.is_absolute().then_some(path)
}

/// Whether a folder, as the user wrote it, is the same wherever the program runs.
pub(crate) fn is_absolute(folder: &str) -> bool {
    folder.starts_with("~/") || Path::new(folder).is_absolute()
}

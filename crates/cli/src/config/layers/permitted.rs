//! The permissions of a project's file.
//!
//! Invariants: [`rule`] decides for each key, and an unnamed key belongs to the user; a limit can be
//! tightened, but not loosened; text reaches a model only if the user trusts the folder.

use std::path::{Path, PathBuf};

use anyhow::Result;
use greenroom::permissions::Mode;
use serde_norway::Value;

use super::Source;
use super::errors::at;
use super::read::own_file_shown;
use crate::config::FILE_NAME;
use crate::config::sandbox::restricted;
use crate::config::surroundings::Surroundings;
use crate::error::usage;
/// The author of a configuration file, which decides what the file may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The user: their own file, or one that they named.
    User,
    /// The author of the file in the current folder.
    Project,
}

/// The effect that a project's file may have on a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Set it.
    Choose,
    /// Lower it, but not remove it.
    Lower,
    /// Add to it.
    Add,
    /// Choose a stricter mode.
    Stricter,
    /// Restrict it: for what it is, `sandbox` says what that means.
    Restrict,
    /// Set it if the user trusts the folder.
    Text,
    /// Nothing.
    UsersAlone,
}

/// Returns what a project's file may do with each setting.
///
/// A project may choose the model: it knows the requirements of its work, and the name is sent only to the
/// user's provider. The cost is checked where the model's price is known (`agent`).
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
        | "compaction.prune"
        | "compaction.user_words"
        | "compaction.ledger"
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
        | "compaction.max_request_bytes"
        | "sandbox.memory_mib_max"
        | "sandbox.processes_max"
        | "sandbox.file_mib_max"
        | "sandbox.open_files_max"
        | "sandbox.cpu_s_max" => Rule::Lower,
        "permissions.ask" | "permissions.deny" => Rule::Add,
        "permissions.mode" => Rule::Stricter,
        "sandbox.mode" | "sandbox.network" | "sandbox.writable" | "sandbox.read_only" | "sandbox.hidden" => {
            Rule::Restrict
        }
        "compaction.compact_prompt"
        | "compaction.compact_instructions"
        | "system_prompt"
        | "append_system_prompt" => Rule::Text,
        _ => Rule::UsersAlone,
    }
}

/// Whether a section's settings have rules of their own.
pub(crate) fn is_section(key: &str) -> bool {
    matches!(key, "limits" | "compaction" | "permissions" | "sandbox")
}

/// How a project's edit may change a setting while a session is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tighter {
    /// A smaller number is tighter; no number is the loosest.
    Lower,
    /// A larger number is tighter; no number is the loosest.
    Raise,
}

/// Returns which edits of a project's file apply while a session is open: those that tighten. All other
/// settings of the file apply from the next start.
pub(crate) fn tighter(key: &str) -> Option<Tighter> {
    match (key, rule(key)) {
        // The sandbox is made with the agent.
        (key, _) if key.starts_with("sandbox.") => None,
        ("compaction.threshold", _) | (_, Rule::Lower) => Some(Tighter::Lower),
        ("compaction.reserve_tokens", _) => Some(Tighter::Raise),
        (_, Rule::Choose | Rule::Add | Rule::Stricter | Rule::Restrict | Rule::Text | Rule::UsersAlone) => {
            None
        }
    }
}

/// A project's file while it is merged over the user's.
pub(super) struct Over<'a> {
    /// `None` for a file that is gone, but of which some settings still apply.
    pub(super) source: Option<&'a Source>,
    pub(super) folder: PathBuf,
    pub(super) is_trusted: bool,
    pub(super) warnings: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Over<'_> {
    /// Merges the permitted settings of the file into `base`, a section at a time.
    pub(super) fn put(&mut self, base: &mut Value, over: Value, section: &str) -> Result<()> {
        let (Value::Mapping(base), Value::Mapping(over)) = (base, over) else { return Ok(()) };
        for (name, value) in over {
            let Some(name) = name.as_str() else { continue };
            let key = format!("{section}{name}");
            match (rule(&key), base.get_mut(name)) {
                (_, Some(known)) if is_section(&key) => {
                    self.put(known, value, &format!("{key}."))?;
                }
                (Rule::Choose, Some(known)) => *known = value,
                // A model's window is not a limit of cost or time; `null` selects the model's own window.
                (Rule::Lower, Some(known)) if value.is_null() && name == "context_window" => *known = value,
                (Rule::Lower, Some(known)) => self.lower(known, value, &key),
                (Rule::Add, Some(known)) => {
                    if let (Value::Sequence(known), Value::Sequence(more)) = (known, value) {
                        known.extend(more);
                    }
                }
                (Rule::Stricter, Some(known)) => self.stricter(known, value, &key),
                (Rule::Restrict, Some(known)) => match restricted(&key, known, &value) {
                    Some(value) => *known = value,
                    None => self.notes.push(format!("{key} is unchanged: {FILE_NAME} can only restrict it")),
                },
                (Rule::Text, Some(known)) => self.text(known, value, &key),
                (Rule::UsersAlone, _) | (_, None) => {
                    let own_provider = match key.split('.').next() {
                        Some("provider" | "providers" | "model") => {
                            "; a file in the current folder can choose one of your providers with `provider: NAME`"
                        }
                        Some(_) | None => "",
                    };
                    let reason = format!(
                        "only your own file, {}, can set it, or one that you name with --config{own_provider}",
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

    fn stricter(&mut self, known: &mut Value, value: Value, key: &str) {
        let mode = |value: &Value| value.as_str().and_then(|name| name.parse::<Mode>().ok());
        match (mode(known), mode(&value)) {
            // Without a mode of the user's, the strictest default is that of a chat.
            (holds, Some(asked)) if asked <= holds.unwrap_or(Mode::Ask) => *known = value,
            (_, Some(asked)) => {
                self.notes.push(format!(
                    "{key} is not set to {asked}: {FILE_NAME} can only choose a stricter mode"
                ));
            }
            (_, None) => {}
        }
    }

    fn text(&mut self, known: &mut Value, value: Value, key: &str) {
        if self.is_trusted {
            *known = value;
            return;
        }
        // An untrusted folder cannot remove the user's own text.
        if value.is_null() {
            return;
        }
        let folder = &self.folder;
        let reason = format!(
            "not used, because it would instruct the model in your name; if you trust this folder, run `greenroom config trust \
             --folder` in it, or add `trusted_folders: [{folder:?}]` to {}",
            own_file_shown()
        );
        let text = self.at(key, &reason);
        self.warnings.push(text);
    }
}

/// Expands a folder as the user wrote it into a path; returns `None` if it depends on the current folder.
pub(crate) fn expanded(folder: &str, surroundings: &Surroundings) -> Option<PathBuf> {
    let path = match folder.strip_prefix("~/") {
        Some(rest) => PathBuf::from(surroundings.variable("HOME")?).join(rest),
        None => PathBuf::from(folder),
    };
    path.is_absolute().then_some(path)
}

/// Whether a folder, as the user wrote it, does not depend on the current folder.
pub(crate) fn is_absolute(folder: &str) -> bool {
    folder.starts_with("~/") || Path::new(folder).is_absolute()
}

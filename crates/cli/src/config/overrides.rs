//! Overrides of the files: environment variables, and over them `--set KEY=VALUE`.
//!
//! Invariants: each setting has one variable, derived from its name; a value is read as YAML, as in a file,
//! or as plain text if only that is valid; an invalid value is an error that names the variable or the flag.

use std::path::Path;

use anyhow::Result;
use serde_norway::Value;

use super::keys::{self, Setting};
use super::layers::{Author, Source, checked, set_parts};
use crate::config::surroundings::Surroundings;
use crate::error::usage;

/// The prefix of our variables.
const PREFIX: &str = "GREENROOM_";
/// The variable with the URL of a cluster's database.
pub(crate) const STORE: &str = "GREENROOM_STORE";
/// The variable with the secret that the nodes of a cluster share.
pub(crate) const CLUSTER_SECRET: &str = "GREENROOM_CLUSTER_SECRET";
/// The variable with a node's name.
pub(crate) const NODE: &str = "GREENROOM_NODE";
/// The variable with the URL at which other nodes reach a node.
pub(crate) const ADVERTISE: &str = "GREENROOM_ADVERTISE";
/// Variables that are not settings: the store's folder, those of a node of a cluster, the server and token of HTTP clients,
/// and values for tests and child processes.
const NO_SETTINGS: [&str; 10] = [
    "GREENROOM_COMPLETE", "GREENROOM_DATA_DIR", STORE, CLUSTER_SECRET, NODE, ADVERTISE, "GREENROOM_URL",
    "GREENROOM_TOKEN", "GREENROOM_CORPUS", "GREENROOM_ENVIRONMENT_FD",
];

/// The settings from the environment and the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) settings: Vec<Override>,
    /// Warnings for the user: one line each.
    pub(crate) warnings: Vec<String>,
    /// The environment in which the files are searched.
    pub(crate) surroundings: Surroundings,
}

/// One overriding setting.
#[derive(Debug, Clone)]
pub(crate) struct Override {
    /// Its source: a variable's name, or the flag.
    pub(crate) origin: String,
    /// The parts of its name.
    parts: Vec<String>,
    /// The setting, with nothing else.
    pub(crate) value: Value,
}

impl Overrides {
    /// Reads the overrides of the environment, and those of `--set` over them.
    ///
    /// # Errors
    /// One of them is invalid.
    pub(crate) fn read(flags: &[String], surroundings: &Surroundings) -> Result<Self> {
        let mut found = Self { surroundings: surroundings.clone(), ..Self::default() };
        for setting in with_variables() {
            let name = variable_of(&setting.key);
            if let Some(text) = surroundings.variable(&name) {
                let parts: Vec<&str> = setting.key.split('.').collect();
                found.settings.push(of_text(&name, &parts, &text, &surroundings.path(""))?);
            }
        }
        let mut unknown: Vec<String> = surroundings
            .names()
            .into_iter()
            .filter(|name| name.starts_with(PREFIX) && !is_known(name))
            .collect();
        unknown.sort();
        for name in unknown {
            let key = name[PREFIX.len()..].to_lowercase();
            let known = with_variables().map(|setting| variable_of(&setting.key));
            let similar = known
                .map(|known| (strsim::jaro_winkler(&known, &name), known))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .filter(|(likeness, _)| *likeness > 0.9)
                .map(|(_, known)| format!("; did you mean {known}?"));
            let hint = similar.unwrap_or_default();
            found
                .warnings
                .push(format!("the variable {name} has no effect: there is no setting {key}{hint}"));
        }
        for flag in flags {
            found.settings.push(of_flag(flag, &surroundings.path(""))?);
        }
        Ok(found)
    }
}

impl Override {
    /// Returns a message about the setting with these parts that names its source.
    pub(crate) fn wrong(&self, parts: &[String], reason: &str) -> String {
        let below = parts.strip_prefix(self.parts.as_slice()).unwrap_or(parts);
        let below = if below.is_empty() { String::new() } else { format!("{}: ", below.join(".")) };
        format!("{}: {below}{reason}", self.origin)
    }
}

/// Returns the variable of a setting.
pub(crate) fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "_"))
}

/// Returns the settings that have variables. Settings with user-defined names are set with their whole
/// section.
fn with_variables() -> impl Iterator<Item = &'static Setting> {
    keys::settings().iter().filter(|setting| !setting.is_named())
}

fn is_known(name: &str) -> bool {
    NO_SETTINGS.contains(&name) || with_variables().any(|setting| variable_of(&setting.key) == name)
}

fn of_flag(flag: &str, folder: &Path) -> Result<Override> {
    let Some((key, text)) = flag.split_once('=') else {
        return Err(usage(format!(
            "--set {flag}: give it as KEY=VALUE, such as --set compaction.threshold=0.7"
        )));
    };
    let key = key.trim();
    let Some(parts) = keys::parts(key) else {
        let hint = keys::similar(key).map(|similar| format!("; did you mean {similar}?")).unwrap_or_default();
        return Err(usage(format!(
            "--set {key}: there is no such setting{hint}; `greenroom config` lists them"
        )));
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    of_text(&format!("--set {key}"), &parts, text, folder)
}

/// Creates an override from a text. `parts` are those of the setting's name.
fn of_text(origin: &str, parts: &[&str], text: &str, folder: &Path) -> Result<Override> {
    let value = read(origin, parts, text, folder)?;
    let parts = parts.iter().map(|part| (*part).to_owned()).collect();
    Ok(Override { origin: origin.to_owned(), parts, value })
}

/// Returns the value of a text for a setting, inside its sections. A file's name is relative to this folder.
///
/// # Errors
/// The setting cannot have this value.
pub(crate) fn read(origin: &str, parts: &[&str], text: &str, folder: &Path) -> Result<Value> {
    let path = folder.join(origin);
    let place = path.display().to_string();
    let with = |value: Value| {
        let mut root = Value::Null;
        set_parts(&mut root, parts, value);
        root
    };
    let source = |value: &Value| -> Result<Source> {
        Ok(Source { path: path.clone(), text: serde_norway::to_string(value)?, author: Author::User })
    };
    let fits = |value: Value| -> Result<Value> {
        checked(&source(&with(value))?, true)
            .map_err(|error| usage(of_origin(&error.to_string(), &place, origin, parts)))
    };
    // If any text is valid, it is used unchanged: YAML would join its lines.
    if !is_quoted_or_null(text)
        && let Ok(value) = fits(Value::String(text.to_owned()))
    {
        return Ok(value);
    }
    fits(serde_norway::from_str(text).map_err(|error| {
        let error = error.to_string();
        usage(format!("{origin}: not valid YAML: {}", error.split(" at line ").next().unwrap_or_default()))
    })?)
}

pub(crate) fn is_quoted_or_null(text: &str) -> bool {
    let text = text.trim();
    let is_in = |quote| text.len() > 1 && text.starts_with(quote) && text.ends_with(quote);
    is_in('"') || is_in('\'') || matches!(text, "" | "null" | "~")
}

/// Returns a problem's text without the line, which does not exist for the user, and without the setting's
/// name, which the origin has.
fn of_origin(problem: &str, place: &str, origin: &str, parts: &[&str]) -> String {
    let Some(rest) = problem.strip_prefix(place) else { return problem.to_owned() };
    let rest = rest.strip_prefix(", line ").unwrap_or(rest).trim_start_matches(|c: char| c.is_ascii_digit());
    match rest.strip_prefix(&format!(": {}", parts.join("."))) {
        // A part of the value.
        Some(below) if below.starts_with('.') => format!("{origin}: {}", &below[1..]),
        reason => format!("{origin}{}", reason.unwrap_or(rest)),
    }
}

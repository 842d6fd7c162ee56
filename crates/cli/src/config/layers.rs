//! The configuration files and their permissions: the project's `greenroom.yaml` over the user's own file,
//! over the defaults; or only the file named by `--config`. The environment and `--set` override them all.
//!
//! Invariants: a file that happens to be in the current folder chooses among the user's providers, and sets
//! none of their properties; it can tighten a limit, but not loosen one; its text reaches a model only if the
//! user trusts the folder; it is not read if another user owns it or could have written it. [`rule`] decides
//! for each key, where an unnamed key belongs to the user, and on the value that is used afterwards. No file
//! is read that is large, deep, or not regular.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_norway::Value;

use self::errors::{at, misfit, wrong};
use self::merge::{Origins, has_core_tag, has_tag, typed, unset_to_default};
use self::permitted::Over;
use self::read::{own_source, project_source, read_prompt, user_source};
use super::overrides::Overrides;
use super::place::line_of;
use super::redact;
use super::reload::refused;
use super::trusted::trusts_texts;
use super::{BUILT_IN, Config, FILE_NAME, Wrong, check, missing};
use crate::config::surroundings::Surroundings;
use crate::error::usage;

pub(crate) use self::errors::located;
pub(crate) use self::merge::{get, leaves, merge, set, set_parts, setting, settings_of};
pub(crate) use self::permitted::{Author, Rule, Tighter, expanded, is_absolute, is_section, rule, tighter};
pub(crate) use self::read::{
    given_prompt, own_file, own_file_shown, prompt_file, prompt_files, users_places,
};

mod errors;
mod merge;
mod permitted;
mod read;

#[cfg(test)]
mod tests;

/// The maximum number of brackets and braces that a configuration may open. The parser's time grows with the file's
/// bytes times its depth, and the parser checks the depth only afterwards; each level of flow style opens one.
const BRACKETS_MAX: usize = 2_000;

/// The texts of the user's and the project's file.
pub(crate) type Texts = [Option<String>; 2];

impl Loaded {
    /// The texts of the files.
    pub(crate) fn texts(&self) -> Texts {
        self.texts.clone()
    }
}

/// The effective configuration.
pub(crate) struct Loaded {
    /// The whole configuration.
    pub(crate) config: Config,
    /// The configuration without the project's file.
    pub(crate) own: Config,
    /// The files that were read.
    pub(crate) files: Vec<PathBuf>,
    /// Warnings for the user: one line each.
    pub(crate) warnings: Vec<String>,
    /// Settings of the project's file that were not applied, for those who ask: one line each.
    pub(crate) notes: Vec<String>,
    /// The source of each setting that is not a default: a file's path, a variable's name, or a flag.
    pub(crate) origins: BTreeMap<Vec<String>, String>,
    /// The overrides of the files.
    pub(crate) overrides: Overrides,
    /// The texts of the user's and the project's file.
    pub(crate) texts: [Option<String>; 2],
    /// The value of the project's file.
    pub(crate) project: Option<Value>,
}

/// One file.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) author: Author,
}

/// Loads the effective configuration: from `explicit` alone, or from the user's file with the project's over
/// it; and the overrides.
pub(crate) fn load(explicit: Option<&Path>, overrides: Overrides) -> Result<Loaded> {
    let files = Files::read(explicit, overrides)?;
    let [own, project] = files.checked()?;
    assemble(&files, own, project)
}

/// Like [`load`], from the last valid texts of files that are invalid now.
pub(crate) fn load_held(
    explicit: Option<&Path>,
    overrides: Overrides,
    held: &Texts,
    reason: &str,
) -> Result<Loaded> {
    let (own, project) = Files::places(explicit, &overrides.surroundings);
    let source = |place: Option<PathBuf>, text: &Option<String>, author| {
        Some(Source { path: place?, text: text.clone()?, author })
    };
    let [own, project] = [source(own, &held[0], Author::User), source(project, &held[1], Author::Project)];
    let warnings = [overrides.warnings.clone(), vec![refused(reason)]].concat();
    let files = Files { own, project, warnings, overrides };
    let [own, project] = files.checked()?;
    assemble(&files, own, project)
}

/// The files of a configuration.
pub(crate) struct Files {
    pub(crate) own: Option<Source>,
    pub(crate) project: Option<Source>,
    /// Why a project's file was not read, or a variable has no effect.
    pub(crate) warnings: Vec<String>,
    /// The overrides of the files.
    pub(crate) overrides: Overrides,
}

impl Files {
    pub(crate) fn read(explicit: Option<&Path>, overrides: Overrides) -> Result<Self> {
        let mut warnings = overrides.warnings.clone();
        let (own, project) = match explicit {
            Some(path) => (Some(user_source(path)?), None),
            None => {
                let own = match own_file(&overrides.surroundings) {
                    Some(path) => own_source(&path)?,
                    None => None,
                };
                let project = project_source(
                    own.as_ref().map(|source| source.path.as_path()),
                    &overrides.surroundings,
                    &mut warnings,
                )?;
                (own, project)
            }
        };
        Ok(Self { own, project, warnings, overrides })
    }

    /// Returns the values of the user's and the project's file, each checked by itself.
    pub(crate) fn checked(&self) -> Result<[Option<Value>; 2]> {
        let own = self.own.as_ref().map(|source| checked(source, true)).transpose()?;
        let Some(project) = &self.project else { return Ok([own, None]) };
        let mut merged = serde_norway::to_value(Config::default())?;
        if let Some(own) = own.clone() {
            merge(&mut merged, own);
        }
        let project = checked(project, trusts_texts(&typed(merged)?, &self.overrides.surroundings))?;
        Ok([own, Some(project)])
    }

    pub(crate) fn texts(&self) -> [Option<String>; 2] {
        [&self.own, &self.project].map(|source| source.as_ref().map(|source| source.text.clone()))
    }

    /// Returns the paths of the user's and the project's file, whether they exist or not.
    pub(crate) fn places(
        explicit: Option<&Path>,
        surroundings: &Surroundings,
    ) -> (Option<PathBuf>, Option<PathBuf>) {
        match explicit {
            Some(path) => (Some(path.to_owned()), None),
            None => (own_file(surroundings), Some(surroundings.path(FILE_NAME))),
        }
    }
}

/// Merges the values of the files, which were checked.
pub(crate) fn assemble(files: &Files, own: Option<Value>, project: Option<Value>) -> Result<Loaded> {
    let mut merged = serde_norway::to_value(Config::default())?;
    let mut named = Value::default();
    let (mut origins, mut lacking) = (Origins::default(), Lacking::default());
    if let Some(value) = own {
        named = value.get("providers").cloned().unwrap_or_default();
        origins.put(&value, &merged, files.own.as_ref().map(|source| source.path.display().to_string()));
        merge(&mut merged, value);
    }
    if let Some(source) = &files.own {
        lacking.look(&merged, |parts, reason| at(source, parts, reason))?;
    }
    let own_config = typed(files.overrides.over(merged.clone()))?;
    let mut over = Over {
        source: files.project.as_ref(),
        folder: files.overrides.surroundings.path(".").canonicalize().unwrap_or_default(),
        is_trusted: trusts_texts(&own_config, &files.overrides.surroundings),
        warnings: files.warnings.clone(),
        notes: Vec::new(),
    };
    if let Some(value) = project.clone() {
        over.put(&mut merged, value.clone(), "")?;
        let source = files.project.as_ref().map(|source| format!("./{}", source.path.display()));
        origins.put_taken(&value, &merged, source);
    }
    let Over { warnings, notes, .. } = over;
    for over in &files.overrides.settings {
        origins.put(&over.value, &merged, Some(over.origin.clone()));
        merge(&mut merged, over.value.clone());
        lacking.look(&merged, |parts, reason| over.wrong(parts, reason))?;
    }
    lacking.refuse()?;
    let config = typed(merged)?;
    if let Err((parts, reason)) = check(&config) {
        return Err(usage(format!("the configuration: {}: {reason}", parts.join("."))));
    }
    if let Err(error) = config.provider(&config.provider) {
        let names_it = |source: &&Source| line_of(&source.text, &["provider"]).is_some();
        let source = [&files.project, &files.own].into_iter().flatten().find(names_it);
        let text = error.to_string();
        return Err(usage(source.map_or(text.clone(), |source| at(source, &["provider"], &text))));
    }
    if let Some(source) = &files.project
        && config.provider != own_config.provider
        && BUILT_IN.contains(&config.provider.as_str())
        && named.get(config.provider.as_str()).is_none()
    {
        // A user with a server of their own by default may not want to switch away from it.
        let reason = format!(
            "your own file chooses {own} and does not name {theirs}; if your conversations in this folder may be sent there, add \
             `providers: {{ {theirs}: {{}} }}` to {file}",
            own = own_config.provider,
            theirs = config.provider,
            file = own_file_shown()
        );
        return Err(usage(at(source, &["provider"], &reason)));
    }
    let read = [&files.own, &files.project].into_iter().flatten().map(|source| source.path.clone()).collect();
    let (texts, overrides) = (files.texts(), files.overrides.clone());
    redact::note(&config, &overrides.surroundings);
    let Origins(origins) = origins;
    Ok(Loaded { config, own: own_config, files: read, warnings, notes, origins, overrides, texts, project })
}

impl Overrides {
    /// Applies all overrides to a value.
    fn over(&self, mut value: Value) -> Value {
        for over in &self.settings {
            merge(&mut value, over.value.clone());
        }
        value
    }
}

/// The missing settings of the layers merged so far, with messages that name the responsible layer.
#[derive(Default)]
struct Lacking(BTreeMap<Wrong, String>);

impl Lacking {
    /// Checks after a layer was merged. `said` names that layer.
    fn look(&mut self, merged: &Value, said: impl Fn(&[String], &str) -> String) -> Result<()> {
        let missing = missing(&typed(merged.clone())?);
        self.0.retain(|known, _| missing.contains(known));
        for wrong in missing {
            let (parts, reason) = &wrong;
            let said = said(parts, reason);
            self.0.entry(wrong).or_insert(said);
        }
        Ok(())
    }

    fn refuse(self) -> Result<()> {
        self.0.into_values().next().map_or(Ok(()), |said| Err(usage(said)))
    }
}

/// Returns a file's value after checking all its parts. A prompt's file is read only if its author is trusted
/// with text for the model.
pub(crate) fn checked(source: &Source, is_trusted: bool) -> Result<Value> {
    let text = &source.text;
    if text.matches(['[', '{']).count() > BRACKETS_MAX {
        return Err(usage(format!("{}: it opens more than {BRACKETS_MAX} brackets", source.path.display())));
    }
    let mut value: Value = serde_norway::from_str(text).map_err(|error| wrong(source, &error))?;
    if has_tag(&value) || has_core_tag(text) {
        return Err(usage(format!(
            "{}: it contains a YAML tag (!), which is not supported",
            source.path.display()
        )));
    }
    let has_unset = unset_to_default(&mut value, &serde_norway::to_value(Config::default())?, "");
    let typed: Result<Option<Config>, _> = serde_norway::from_str(text);
    let typed = match typed {
        // A setting that cannot be `null` gets its default.
        Err(_) if has_unset => serde_norway::from_value(value.clone()),
        typed => typed,
    };
    let mut typed = typed.map_err(|error| misfit(source, &value, &error))?.unwrap_or_default();
    for (key, text) in typed.prompts() {
        let Some(name) = text.as_deref().and_then(prompt_file) else { continue };
        // A prompt that is not used is not read either.
        *text = if is_trusted {
            let parts: Vec<&str> = key.split('.').collect();
            let text = read_prompt(source, name).map_err(|reason| {
                usage(at(source, &parts, format!("{name}: {reason}").trim_start_matches(": ")))
            })?;
            set(&mut value, key, Value::String(text.clone()));
            Some(text)
        } else {
            None
        };
    }
    if let Err((parts, reason)) = check(&typed) {
        return Err(usage(at(source, &parts, &reason)));
    }
    if let Some(Value::Mapping(compaction)) = value.get_mut("compaction")
        && let Some(limit) = compaction.remove("model_auto_compact_token_limit")
    {
        compaction.insert("auto_compact_token_limit".into(), limit);
    }
    Ok(value)
}

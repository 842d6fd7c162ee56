//! Which files are read, and which of them may set what: the project's `greenroom.yaml` over the user's own, over the
//! defaults; or the file that `--config` names, alone. Over them all stand the environment and `--set`.
//!
//! Invariants: a file that merely lies in the current folder chooses among the providers that the user has, and sets
//! nothing of them; it can tighten a limit and loosen none; its text reaches a model only where the user trusts the
//! folder; it is not read where another user owns it or could have written it. What it may set is decided key by
//! key in [`rule`], where a key that is not named is the user's alone, and on the same value that is used afterwards.
//! No file is read that is large, deep, or no regular file.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use greenroom::provider::BaseUrl;
use greenroom_kernel::settings::COMPACT_PROMPT_BYTES_MAX;
use greenroom_terminal::files::{self, FileError};
use serde_norway::Value;

use super::live::refused;
use super::overrides::Overrides;
use super::place::line_of;
use super::words::plain;
use super::{Config, FILE_NAME, OPENAI, Wrong, check, missing};
use crate::config::surroundings::Surroundings;
use crate::error::usage;

#[cfg(test)]
mod tests;

/// The largest configuration, in bytes.
const BYTES_MAX: u64 = 64 * 1024;
/// The most brackets and braces that a configuration may open. The parser's time grows with its bytes times its
/// depth before it looks at the depth, and each level of flow style takes one.
const BRACKETS_MAX: usize = 2_000;

/// The texts of the user's file and of the project's.
pub(crate) type Texts = [Option<String>; 2];

impl Loaded {
    /// The texts of the files.
    pub(crate) fn texts(&self) -> Texts {
        self.texts.clone()
    }
}

/// The configuration that holds here.
pub(crate) struct Loaded {
    /// All of it.
    pub(crate) config: Config,
    /// What would hold without the project's file.
    pub(crate) own: Config,
    /// The files that were read.
    pub(crate) files: Vec<PathBuf>,
    /// What the user must know: one line each.
    pub(crate) warnings: Vec<String>,
    /// What the project's file asked for and did not get, for who asks: one line each.
    pub(crate) notes: Vec<String>,
    /// Where each setting comes from that is no default: a file's path, a variable's name, or a flag.
    pub(crate) origins: BTreeMap<Vec<String>, String>,
    /// What stands over the files.
    pub(crate) overrides: Overrides,
    /// The texts of the user's file and of the project's.
    pub(crate) texts: [Option<String>; 2],
    /// What the project's file says.
    pub(crate) project: Option<Value>,
}

/// The author of a configuration file, which decides what the file may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The user: their own file, or one that they named.
    User,
    /// Whoever put it into the current folder.
    Project,
}

/// One file.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) author: Author,
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

/// The configuration that holds here: `explicit` alone, or the user's file with the project's over it; and what stands
/// over those.
pub(crate) fn load(explicit: Option<&Path>, overrides: Overrides) -> Result<Loaded> {
    let files = Files::read(explicit, overrides)?;
    let [own, project] = files.checked()?;
    assemble(&files, own, project)
}

/// As [`load`], with what the files said before, since they cannot be used now.
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

/// The files that say what holds here.
pub(crate) struct Files {
    pub(crate) own: Option<Source>,
    pub(crate) project: Option<Source>,
    /// Why a project's file was not read, or a variable does nothing.
    pub(crate) warnings: Vec<String>,
    /// What stands over them.
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

    /// What they say, checked each by itself: the user's, and the project's.
    pub(crate) fn checked(&self) -> Result<[Option<Value>; 2]> {
        let own = self.own.as_ref().map(|source| checked(source, true)).transpose()?;
        let Some(project) = &self.project else { return Ok([own, None]) };
        let mut merged = serde_norway::to_value(Config::default())?;
        if let Some(own) = own.clone() {
            merge(&mut merged, own);
        }
        let project = checked(project, is_trusted(&typed(merged)?, &self.overrides.surroundings))?;
        Ok([own, Some(project)])
    }

    pub(crate) fn texts(&self) -> [Option<String>; 2] {
        [&self.own, &self.project].map(|source| source.as_ref().map(|source| source.text.clone()))
    }

    /// Where they are, whether they are there or not: the user's, and the project's.
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

/// The files from which the user's file, with this text, takes prompts.
pub(crate) fn prompt_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let value: Value = serde_norway::from_str(text).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let keys = Config::default().prompts().map(|(key, _)| key);
    let named = keys.into_iter().filter_map(|key| prompt_file(setting(&value, key)?.as_str()?));
    named.map(|name| folder.join(name)).collect()
}

/// Settings that are read and change nothing.
const WITHOUT_EFFECT: [&str; 2] = ["background", "soft_threshold"];

/// The settings of a value that change nothing, with what is said of them.
fn without_effect(value: &Value, said: impl Fn(&[String], &str) -> String) -> Vec<String> {
    let set = leaves(value).into_iter().map(|(parts, _)| parts).filter(|parts| {
        matches!(parts.as_slice(), [.., section, key] if section == "compaction" && WITHOUT_EFFECT.contains(&key.as_str()))
    });
    let reason = "it is reserved and has no effect yet; nothing is prepared in the background";
    set.map(|parts| said(&parts, reason)).collect()
}

/// Puts together what the files say; their values were checked.
pub(crate) fn assemble(files: &Files, own: Option<Value>, project: Option<Value>) -> Result<Loaded> {
    let mut merged = serde_norway::to_value(Config::default())?;
    let mut has_openai = false;
    let (mut origins, mut lacking) = (Origins::default(), Lacking::default());
    let mut reserved = Vec::new();
    for (source, value) in [(&files.own, &own), (&files.project, &project)] {
        if let (Some(source), Some(value)) = (source, value) {
            reserved.extend(without_effect(value, |parts, reason| at(source, parts, reason)));
        }
    }
    for over in &files.overrides.settings {
        reserved.extend(without_effect(&over.value, |parts, reason| over.wrong(parts, reason)));
    }
    if let Some(value) = own {
        has_openai = value.get("providers").and_then(|providers| providers.get(OPENAI)).is_some();
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
        is_trusted: is_trusted(&own_config, &files.overrides.surroundings),
        warnings: [files.warnings.clone(), reserved].concat(),
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
        && config.provider == OPENAI
        && own_config.provider != OPENAI
        && !has_openai
    {
        // Who asks a server of their own by default may not want to be moved away from it.
        let reason = format!(
            "your own file chooses {} and does not name {OPENAI}; if what you say in this folder may go there, add \
             `providers: {{ {OPENAI}: {{}} }}` to {}",
            own_config.provider,
            own_file_shown()
        );
        return Err(usage(at(source, &["provider"], &reason)));
    }
    let read = [&files.own, &files.project].into_iter().flatten().map(|source| source.path.clone()).collect();
    let (texts, overrides) = (files.texts(), files.overrides.clone());
    let Origins(origins) = origins;
    Ok(Loaded { config, own: own_config, files: read, warnings, notes, origins, overrides, texts, project })
}

impl Overrides {
    /// A value with all that stands over it.
    fn over(&self, mut value: Value) -> Value {
        for over in &self.settings {
            merge(&mut value, over.value.clone());
        }
        value
    }
}

/// What the layers that were put together so far lack, each in words that name the layer that brought it about.
#[derive(Default)]
struct Lacking(BTreeMap<Wrong, String>);

impl Lacking {
    /// Looks after a layer was put on top. `said` names that layer.
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

/// Where settings come from, by the parts of their names.
#[derive(Default)]
struct Origins(BTreeMap<Vec<String>, String>);

impl Origins {
    /// All that a layer sets comes from it, from now on. An empty section sets nothing.
    fn put(&mut self, layer: &Value, below: &Value, origin: Option<String>) {
        let Some(origin) = origin else { return };
        for (parts, value) in leaves(layer) {
            let is_section = get(below, &parts).is_some_and(Value::is_mapping);
            if !(is_section && (value.is_null() || value.is_mapping())) {
                self.0.insert(parts, origin.clone());
            }
        }
    }

    /// As [`Self::put`], of what the layer got.
    fn put_taken(&mut self, layer: &Value, merged: &Value, origin: Option<String>) {
        let Some(origin) = origin else { return };
        for (parts, value) in leaves(layer) {
            if get(merged, &parts) == Some(value) {
                self.0.insert(parts, origin.clone());
            }
        }
    }
}

/// Each value that is no section, with the parts of its name.
pub(crate) fn leaves(value: &Value) -> Vec<(Vec<String>, &Value)> {
    fn walk<'a>(value: &'a Value, parts: &[String], leaves: &mut Vec<(Vec<String>, &'a Value)>) {
        if let Value::Mapping(map) = value
            && !map.is_empty()
        {
            for (name, value) in map {
                let name = name.as_str().unwrap_or_default().to_owned();
                walk(value, &[parts, &[name]].concat(), leaves);
            }
        } else if !parts.is_empty() {
            leaves.push((parts.to_vec(), value));
        }
    }
    let mut leaves = Vec::new();
    walk(value, &[], &mut leaves);
    leaves
}

/// The value of this name.
pub(crate) fn get<'a>(value: &'a Value, parts: &[String]) -> Option<&'a Value> {
    parts.iter().try_fold(value, |value, name| value.get(name.as_str()))
}

/// Where the user's configuration is, or would be: the file that they named, their own file, and its folder.
pub(crate) fn users_places(explicit: Option<&Path>, surroundings: &Surroundings) -> Vec<PathBuf> {
    let own = own_file(surroundings);
    let folder = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    own.into_iter().chain(folder).chain(explicit.map(Path::to_owned)).collect()
}

/// A file that the user named.
fn user_source(path: &Path) -> Result<Source> {
    let read = || text(files::open(path, true)?.0);
    let text = read().map_err(|error| not_readable(path, &error))?;
    Ok(Source { path: path.to_owned(), text, author: Author::User })
}

/// The user's own file, if there is one.
fn own_source(path: &Path) -> Result<Option<Source>> {
    let (file, metadata) = match files::open(path, true) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(not_readable(path, &error)),
    };
    if metadata.mode() & 0o002 != 0 {
        let path = path.display();
        return Err(usage(format!(
            "{path} is not read: everybody may write it, and it says where your keys go; look at it, then run \
             `chmod o-w {path}`"
        )));
    }
    let text = text(file).map_err(|error| not_readable(path, &error))?;
    Ok(Some(Source { path: path.to_owned(), text, author: Author::User }))
}

/// The file in the current folder, if there is one that can be read. `own` is no project's file, even where the user
/// stands beside it.
fn project_source(
    own: Option<&Path>,
    surroundings: &Surroundings,
    warnings: &mut Vec<String>,
) -> Result<Option<Source>> {
    let path = surroundings.path(FILE_NAME);
    let path = path.as_path();
    let same = |own: &Path| Some(own.canonicalize().ok()? == path.canonicalize().ok()?);
    if own.and_then(same) == Some(true) {
        return Ok(None);
    }
    let (file, metadata) = match files::open(path, false) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error @ (FileError::NotRegular | FileError::Link)) => {
            warnings.push(format!("./{FILE_NAME} is not read: {error}"));
            return Ok(None);
        }
        Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            warnings.push(format!("./{FILE_NAME} is not read: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(not_readable(path, &error)),
    };
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        warnings.push(format!(
            "./{FILE_NAME} is not read: it belongs to another user (id {}, and yours is {user}); if you trust it, pass \
             --config {FILE_NAME}",
            metadata.uid()
        ));
        return Ok(None);
    }
    if metadata.mode() & 0o022 != 0 {
        warnings.push(format!(
            "./{FILE_NAME} is not read: others may write it; look at it, then run `chmod go-w {FILE_NAME}`"
        ));
        return Ok(None);
    }
    let text = text(file).map_err(|error| not_readable(path, &error))?;
    Ok(Some(Source { path: path.to_owned(), text, author: Author::Project }))
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

/// Each setting of a file's value with its name: `limits.steps_max`, `model`.
pub(crate) fn settings_of(value: &Value) -> Vec<(String, &Value)> {
    let Value::Mapping(map) = value else { return Vec::new() };
    let mut settings = Vec::new();
    for (name, value) in map {
        let Some(name) = name.as_str() else { continue };
        match (name, value) {
            ("limits" | "compaction", Value::Mapping(section)) => {
                let named = section.iter().filter_map(|(key, value)| Some((key.as_str()?, value)));
                settings.extend(named.map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            _ => settings.push((name.to_owned(), value)),
        }
    }
    settings
}

/// The setting of this name.
pub(crate) fn setting<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(value, |value, name| value.get(name))
}

/// Sets the setting of this name.
pub(crate) fn set(value: &mut Value, key: &str, to: Value) {
    let parts: Vec<&str> = key.split('.').collect();
    set_parts(value, &parts, to);
}

/// Sets the setting whose name has these parts.
pub(crate) fn set_parts(value: &mut Value, parts: &[&str], to: Value) {
    let [name, rest @ ..] = parts else {
        *value = to;
        return;
    };
    if !value.is_mapping() {
        *value = Value::Mapping(serde_norway::Mapping::new());
    }
    let Value::Mapping(map) = value else { return };
    set_parts(map.entry((*name).into()).or_insert(Value::Null), rest, to);
}

fn text(file: std::fs::File) -> Result<String, FileError> {
    text_within(file, BYTES_MAX)
}

fn text_within(file: std::fs::File, bytes_max: u64) -> Result<String, FileError> {
    let bytes = files::read_all(file, bytes_max)?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        let reason = format!("line {line} is not UTF-8 text");
        FileError::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, reason))
    })
}

fn not_readable(path: &Path, error: &FileError) -> anyhow::Error {
    usage(format!("cannot read the configuration {}: {error}", path.display()))
}

/// One file's value, of which every part is what it should be. A prompt that it names by a file is read where the
/// author is trusted to speak to the model.
pub(crate) fn checked(source: &Source, is_trusted: bool) -> Result<Value> {
    let text = &source.text;
    if text.matches(['[', '{']).count() > BRACKETS_MAX {
        return Err(usage(format!("{}: it opens more than {BRACKETS_MAX} brackets", source.path.display())));
    }
    let mut value: Value = serde_norway::from_str(text).map_err(|error| wrong(source, &error))?;
    if has_tag(&value) || has_core_tag(text) {
        return Err(usage(format!(
            "{}: it holds a YAML tag (!), which means nothing here",
            source.path.display()
        )));
    }
    // Before the types are: what was there in the past, and what a project might try, deserve more words.
    refuse_old_provider(source, &value)?;
    let has_unset = unset_to_default(&mut value, &serde_norway::to_value(Config::default())?, "");
    let typed: Result<Option<Config>, _> = serde_norway::from_str(text);
    let typed = match typed {
        // What no `null` can be said of is the default again.
        Err(_) if has_unset => serde_norway::from_value(value.clone()),
        typed => typed,
    };
    let mut typed = typed.map_err(|error| misfit(source, &value, &error))?.unwrap_or_default();
    for (key, text) in typed.prompts() {
        let Some(name) = text.as_deref().and_then(prompt_file) else { continue };
        // One that is not to be used is not read either.
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
    rename(&mut value, "compaction", "model_auto_compact_token_limit", "auto_compact_token_limit");
    Ok(value)
}

/// Puts the default where a file says `null` of a setting that cannot be off; of a limit that cannot be off it takes
/// nothing away. Gives whether there was one.
fn unset_to_default(value: &mut Value, default: &Value, section: &str) -> bool {
    let (Value::Mapping(map), Value::Mapping(defaults)) = (value, default) else { return false };
    let mut has_unset = false;
    map.retain(|name, value| {
        let (Some(default), Some(name)) = (defaults.get(name), name.as_str()) else { return true };
        let key = format!("{section}{name}");
        if !value.is_null() {
            has_unset |= unset_to_default(value, default, &format!("{key}."));
            return true;
        }
        if default.is_null() || default.is_mapping() || can_be_null(&key) {
            return true;
        }
        has_unset = true;
        *value = default.clone();
        rule(&key) != Rule::Lower
    });
    has_unset
}

/// Whether `null` means something for this setting.
fn can_be_null(key: &str) -> bool {
    let alone = key
        .rsplit('.')
        .fold(Value::Null, |value, name| Value::Mapping([(Value::from(name), value)].into_iter().collect()));
    serde_norway::from_value::<Config>(alone).is_ok()
}

/// The file that a prompt names, if it names one.
fn prompt_file(prompt: &str) -> Option<&str> {
    prompt.trim().strip_prefix("file:").map(str::trim)
}

/// A prompt that was given as a flag in this folder: a text, or the file that holds it.
pub(crate) fn given_prompt(given: &str, folder: &Path) -> Result<String, String> {
    let Some(name) = prompt_file(given) else { return Ok(given.to_owned()) };
    let path = folder.join("a flag");
    read_prompt(&Source { path, text: String::new(), author: Author::User }, name)
}

/// The prompt in a file that a configuration names, relative to that configuration. A project's file may name only what
/// lies within the project and nobody else could have written.
fn read_prompt(source: &Source, name: &str) -> Result<String, String> {
    let folder = source.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if name.is_empty() {
        return Err("the name of a file must follow `file:`".to_owned());
    }
    let shown = |error: std::io::Error| format!("cannot read {}: {error}", folder.join(name).display());
    let path = folder.join(name).canonicalize().map_err(shown)?;
    let opened = match source.author {
        Author::User => files::open(&path, true),
        Author::Project => {
            if !path.starts_with(folder.canonicalize().map_err(shown)?) {
                return Err(
                    "it lies outside the project, and a project's file may name none there".to_owned()
                );
            }
            files::open(&path, false)
        }
    };
    let read = || -> Result<String, FileError> {
        let (file, metadata) = opened?;
        let by_others = match source.author {
            Author::User => metadata.mode() & 0o002 != 0,
            Author::Project => {
                metadata.mode() & 0o022 != 0 || metadata.uid() != rustix::process::geteuid().as_raw()
            }
        };
        if by_others {
            let reason = "others may write it; look at it, and take that right away (chmod go-w)";
            return Err(FileError::Io(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason)));
        }
        text_within(file, COMPACT_PROMPT_BYTES_MAX as u64)
    };
    read().map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// `provider:` is a name. A mapping with an address is what it was once, and what a stranger's file would like.
fn refuse_old_provider(source: &Source, value: &Value) -> Result<()> {
    let Some(provider @ Value::Mapping(_)) = value.get("provider") else { return Ok(()) };
    let url = match provider.get("base_url") {
        Some(Value::String(text)) => match text.parse::<BaseUrl>() {
            Ok(url) => url.to_string(),
            Err(error) => return Err(usage(at(source, &["provider"], &error.to_string()))),
        },
        Some(_) | None => "https://…".to_owned(),
    };
    let line = format!("`providers: {{ NAME: {{ base_url: \"{url}\" }} }}`");
    let reason = match source.author {
        Author::User => format!("must be the name of one of `providers`: write {line}, and `provider: NAME`"),
        Author::Project => format!(
            "a file in the current folder can only choose a provider of yours by its name; if what you say may go \
             there, add {line} to {} (or to a file that you name with --config), and write `provider: NAME` here",
            own_file_shown()
        ),
    };
    Err(usage(at(source, &["provider"], &reason)))
}

/// A project's file, on its way over the user's.
struct Over<'a> {
    /// `None` for one that is gone, and of which something still holds.
    source: Option<&'a Source>,
    folder: PathBuf,
    is_trusted: bool,
    warnings: Vec<String>,
    notes: Vec<String>,
}

impl Over<'_> {
    /// Puts what the file may set on top of `base`, a section at a time.
    fn put(&mut self, base: &mut Value, over: Value, section: &str) -> Result<()> {
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
fn is_trusted(own: &Config, surroundings: &Surroundings) -> bool {
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

/// Puts `over` on top of `base`, key by key. `null` turns a setting off; a section that is empty changes nothing.
pub(crate) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Mapping(base), Value::Mapping(over)) => {
            for (key, value) in over {
                match base.get_mut(&key) {
                    Some(known) => merge(known, value),
                    None => {
                        base.insert(key, value);
                    }
                }
            }
        }
        (Value::Mapping(_), Value::Null) => {}
        (base, over) => *base = over,
    }
}

fn typed(value: Value) -> Result<Config> {
    serde_norway::from_value(value)
        .map_err(|error| usage(format!("the configuration: {}", plain(&error.to_string()))))
}

fn has_tag(value: &Value) -> bool {
    match value {
        Value::Tagged(_) => true,
        Value::Sequence(items) => items.iter().any(has_tag),
        Value::Mapping(map) => map.iter().any(|(key, value)| has_tag(key) || has_tag(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether it holds a tag that the parser resolves itself and does not tell: `!!str`, `!!python/object:…`. As a tag of
/// another family it is told; in a text, or in a comment, it is none.
fn has_core_tag(text: &str) -> bool {
    const FAMILY: &str = "tag:yaml.org,2002:";
    if !text.contains("!!") && !text.contains(FAMILY) {
        return false;
    }
    let told = text.replace("!!", "!").replace(FAMILY, "!");
    serde_norway::from_str(&told).is_ok_and(|value| has_tag(&value))
}

fn rename(value: &mut Value, section: &str, alias: &str, name: &str) {
    let Some(Value::Mapping(map)) = value.get_mut(section) else { return };
    if let Some(found) = map.remove(alias) {
        map.insert(name.into(), found);
    }
}

/// What the parser said of a text that is no YAML, and where.
fn wrong(source: &Source, error: &serde_norway::Error) -> anyhow::Error {
    let line = error.location().map(|location| format!(", line {}", location.line())).unwrap_or_default();
    usage(format!("{}{line}: {}", source.path.display(), plain(&error.to_string())))
}

/// What the parser said of a value that cannot be what it is set to: with its whole name, and where it stands.
fn misfit(source: &Source, value: &Value, error: &serde_norway::Error) -> anyhow::Error {
    let Err(located) = serde_path_to_error::deserialize::<_, Option<Config>>(value) else {
        return wrong(source, error);
    };
    let (mut parts, said) = (parts_of(located.path()), located.inner().to_string());
    let mut said = said.as_str();
    // What is below a name of the user's own says by itself in which part of it.
    while let Some((part, rest)) = said.split_once(": ")
        && !part.contains(' ')
    {
        parts.extend(part.split('.').map(str::to_owned));
        said = rest;
    }
    usage(at(source, &parts, &plain(said)))
}

/// What is wrong with a setting, and where it stands.
fn at(source: &Source, parts: &[impl AsRef<str>], reason: &str) -> String {
    let line = line_of(&source.text, parts).map(|line| format!(", line {line}")).unwrap_or_default();
    let key: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    let key = if key.is_empty() { String::new() } else { format!("{}: ", key.join(".")) };
    format!("{}{line}: {key}{reason}", source.path.display())
}

/// What cannot be read, with the names on the way to it.
pub(crate) fn located(error: &serde_path_to_error::Error<serde_norway::Error>) -> String {
    match parts_of(error.path()).join(".") {
        parts if parts.is_empty() => error.inner().to_string(),
        parts => format!("{parts}: {}", error.inner()),
    }
}

/// The names on the way to a value.
fn parts_of(path: &serde_path_to_error::Path) -> Vec<String> {
    let name = |segment: &serde_path_to_error::Segment| match segment {
        serde_path_to_error::Segment::Map { key } => Some(key.clone()),
        serde_path_to_error::Segment::Seq { .. }
        | serde_path_to_error::Segment::Enum { .. }
        | serde_path_to_error::Segment::Unknown => None,
    };
    path.iter().filter_map(name).collect()
}

/// The user's own file. A variable that is no absolute path does not count: the current folder would be asked.
pub(crate) fn own_file(surroundings: &Surroundings) -> Option<PathBuf> {
    let variable = |name| surroundings.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CONFIG_HOME");
    Some(base.or_else(|| Some(variable("HOME")?.join(".config")))?.join("greenroom").join(FILE_NAME))
}

/// The user's own file, as it is told where to add something.
pub(crate) fn own_file_shown() -> String {
    own_file(&Surroundings::here()).map_or_else(
        || format!("greenroom/{FILE_NAME} in your configuration directory"),
        |path| path.display().to_string(),
    )
}

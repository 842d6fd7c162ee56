//! Reloads the configuration while a command runs: its files are checked before each check of a session.
//!
//! Invariants: if nothing has changed, a check costs one system call for each file, including those of the
//! user's prompts; an invalid edit changes nothing, and is reported once, with file, line and key; an edit of
//! a project's file tightens settings, or waits for the next start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use parking_lot::Mutex;
use serde_norway::Value;

use super::layers::{
    Files, Loaded, Source, Tighter, assemble, prompt_files, set, setting, settings_of, tighter,
};
use super::place::line_of;
use super::stamp::Stamp;
use super::{Config, Overrides};

/// A file that was changed more recently than this is read again with each check: timestamps of file systems
/// are coarse, so the next edit may have the same one.
const YOUNG: Duration = Duration::from_secs(2);
/// An empty file counts as being written for this long.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// A change.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// The new configuration; `None` keeps the current one.
    pub(crate) config: Option<Arc<Config>>,
    /// A warning for the user.
    pub(crate) warning: Option<String>,
}

/// The configuration of a running command.
pub(crate) struct LiveConfig {
    explicit: Option<PathBuf>,
    /// The overrides of the files, which do not change.
    overrides: Overrides,
    places: [Option<PathBuf>; 2],
    state: Mutex<Watched>,
}

struct Watched {
    /// The current configuration.
    config: Arc<Config>,
    /// The configuration at the start.
    start: Arc<Config>,
    /// The part of the project's file that is in effect.
    project: Option<Value>,
    /// The metadata of the user's and the project's file at the last check.
    stamps: [Option<Stamp>; 2],
    /// The files that the user's file names for prompts, with their metadata at the last check.
    prompts: Vec<(PathBuf, Option<Stamp>)>,
    /// Whether one of them may change again with the same metadata.
    is_young: bool,
    /// The files' texts when they were last read.
    texts: [Option<String>; 2],
    /// The last error of reading, so that it is reported once.
    unreadable: Option<([Option<Stamp>; 2], String)>,
}

impl LiveConfig {
    /// Creates the state after loading these files.
    pub(crate) fn new(explicit: Option<&Path>, loaded: &Loaded) -> Self {
        let (own, project) = Files::places(explicit, &loaded.overrides.surroundings);
        let places = [own, project];
        // An edit since then is recent, and is detected by the text.
        let stamps = stamps(&places);
        let config = Arc::new(loaded.config.clone());
        let prompts = prompts(places[0].as_deref(), loaded.texts[0].as_deref());
        let state = Watched {
            start: Arc::clone(&config),
            config,
            project: loaded.project.clone(),
            is_young: is_young(&stamps, &prompts, SystemTime::now()),
            stamps,
            prompts,
            texts: loaded.texts.clone(),
            unreadable: None,
        };
        // These warnings were reported at the start.
        let overrides = Overrides { warnings: Vec::new(), ..loaded.overrides.clone() };
        Self { explicit: explicit.map(Path::to_owned), overrides, places, state: Mutex::new(state) }
    }

    /// Returns the configuration as of the last check.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.state.lock().config)
    }

    /// Returns the changes since the last check.
    pub(crate) fn look(&self) -> Option<Change> {
        self.look_at(SystemTime::now())
    }

    /// Like [`Self::look`], at this time.
    fn look_at(&self, now: SystemTime) -> Option<Change> {
        let stamps = stamps(&self.places);
        let mut state = self.state.lock();
        let mut seen = state.prompts.clone();
        for (path, stamp) in &mut seen {
            *stamp = Stamp::of(path);
        }
        let is_prompt_edited = seen != state.prompts;
        if stamps == state.stamps && !is_prompt_edited && !state.is_young {
            return None;
        }
        state.is_young = is_young(&stamps, &seen, now);
        (state.stamps, state.prompts) = (stamps, seen);
        let files = match Files::read(self.explicit.as_deref(), self.overrides.clone()) {
            Ok(files) => files,
            Err(error) => return state.unreadable(stamps, error.to_string()),
        };
        match (&state.texts[0], &files.own) {
            (Some(_), None) => {
                let path = self.places[0].as_deref().unwrap_or(Path::new("")).display();
                return state.unreadable(stamps, format!("{path} is gone"));
            }
            (Some(before), Some(source)) if source.text.is_empty() && !before.is_empty() => {
                if stamps[0].is_some_and(|stamp| stamp.age(now) < WRITTEN_WITHIN) {
                    return None;
                }
            }
            (Some(_) | None, Some(_)) | (None, None) => {}
        }
        state.unreadable = None;
        let texts = files.texts();
        let is_edited = texts != state.texts;
        if !is_edited && state.prompts.is_empty() {
            return None;
        }
        let is_project_edited = texts[1] != state.texts[1];
        if texts[0] != state.texts[0] {
            state.prompts = prompts(self.places[0].as_deref(), texts[0].as_deref());
            state.is_young = is_young(&state.stamps, &state.prompts, now);
        }
        state.texts = texts;
        let before = Arc::clone(&state.config);
        Some(match state.taken(&files, is_project_edited) {
            // The file was read again because it was recent, and has not changed.
            Ok(None) if !is_edited && state.config == before => return None,
            // This was reported when it was edited.
            Err(_) if !is_edited && !is_prompt_edited => return None,
            Ok(warning) => Change { config: Some(Arc::clone(&state.config)), warning },
            Err(error) => Change { config: None, warning: Some(refused(&error.to_string())) },
        })
    }
}

impl Watched {
    /// Reports an error of reading, once.
    fn unreadable(&mut self, stamps: [Option<Stamp>; 2], reason: String) -> Option<Change> {
        let now = Some((stamps, reason));
        if self.unreadable == now {
            return None;
        }
        self.unreadable = now;
        let warning = self.unreadable.as_ref().map(|(_, reason)| refused(reason));
        Some(Change { config: None, warning })
    }

    /// Applies settings that may change while sessions are open. Returns a message about settings that wait
    /// for the next start.
    fn taken(&mut self, files: &Files, is_project_edited: bool) -> Result<Option<String>> {
        let [own, edited] = files.checked()?;
        // Everything is checked as at a start: an edit is valid or it is not.
        assemble(files, own.clone(), edited.clone())?;
        let mut project = self.project.clone();
        let mut waits = Vec::new();
        if is_project_edited {
            let held = assemble(files, own.clone(), project.clone())?;
            let held = serde_norway::to_value(&held.config)?;
            let edited = edited.unwrap_or(Value::Null);
            for (key, value) in settings_of(&edited) {
                let before = project.as_ref().and_then(|project| setting(project, &key));
                if before == Some(value) {
                    continue;
                }
                if is_tighter(&key, setting(&held, &key), value) {
                    set(project.get_or_insert(Value::Null), &key, value.clone());
                } else {
                    waits.push(key);
                }
            }
            let gone = self.project.iter().flat_map(settings_of).map(|(key, _)| key);
            waits.extend(gone.filter(|key| setting(&edited, key).is_none()));
        }
        let config = assemble(files, own, project.clone())?.config;
        let warning = match (files.project.as_ref(), waits.as_slice()) {
            (_, []) => self.waiting(&config),
            (source, keys) => Some(project_waits(source, keys)),
        };
        self.project = project;
        self.config = Arc::new(config);
        Ok(warning)
    }

    /// Returns a message about changed settings of the user's file that wait for the next start.
    fn waiting(&self, config: &Config) -> Option<String> {
        let is_news = |are_equal: &dyn Fn(&Config, &Config) -> bool| {
            !are_equal(config, &self.start) && !are_equal(config, &self.config)
        };
        let changed = [
            ("model", is_news(&|a, b| a.model == b.model)),
            ("provider", is_news(&|a, b| a.provider == b.provider)),
            ("providers", is_news(&|a, b| a.providers == b.providers)),
            ("hooks", is_news(&|a, b| a.hooks == b.hooks)),
            ("host", is_news(&|a, b| a.host == b.host)),
            ("limits.inputs_max", is_news(&|a, b| a.limits.inputs_max == b.limits.inputs_max)),
            (
                "limits.live_sessions_max",
                is_news(&|a, b| a.limits.live_sessions_max == b.limits.live_sessions_max),
            ),
            ("limits.labels", is_news(&|a, b| a.limits.labels == b.limits.labels)),
            ("limits.fair_by", is_news(&|a, b| a.limits.fair_by == b.limits.fair_by)),
            ("limits.spending_by", is_news(&|a, b| a.limits.spending_by == b.limits.spending_by)),
            ("mcp_servers", is_news(&|a, b| a.mcp_servers == b.mcp_servers)),
            ("notify", is_news(&|a, b| a.notify == b.notify)),
            ("permissions", is_news(&|a, b| a.permissions == b.permissions)),
            ("retention", is_news(&|a, b| a.retention == b.retention)),
            ("rewind", is_news(&|a, b| a.rewind == b.rewind)),
            ("sandbox", is_news(&|a, b| a.sandbox == b.sandbox)),
            ("serve", is_news(&|a, b| a.serve == b.serve)),
            ("telemetry", is_news(&|a, b| a.telemetry == b.telemetry)),
            ("theme", is_news(&|a, b| a.theme == b.theme)),
            ("trusted_folders", is_news(&|a, b| a.trusted_folders == b.trusted_folders)),
        ];
        let keys: Vec<&str> = changed.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key).collect();
        (!keys.is_empty()).then(|| format!("changed in the configuration: {}", wait(&keys)))
    }
}

/// Returns the message that these settings wait for the next start.
fn wait(keys: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    let verb = if names.len() == 1 { "waits" } else { "wait" };
    format!("{} {verb} for the next start", names.join(", "))
}

/// Returns the message that these settings of a project's file wait for the next start.
fn project_waits(source: Option<&Source>, keys: &[String]) -> String {
    let place = source.map_or_else(
        || format!("{} is gone", super::FILE_NAME),
        |source| {
            let parts: Vec<&str> = keys[0].split('.').collect();
            let line = line_of(&source.text, &parts).map(|line| format!(", line {line}")).unwrap_or_default();
            format!("{}{line}", source.path.display())
        },
    );
    format!(
        "{place}: {}: while sessions are open, a file in the current folder can only lower limits",
        wait(keys)
    )
}

/// Whether a project's edit of a setting tightens the current value.
fn is_tighter(key: &str, held: Option<&Value>, edited: &Value) -> bool {
    let (Some(tighter), Some(edited)) = (tighter(key), edited.as_f64()) else { return false };
    match (tighter, held.and_then(Value::as_f64)) {
        (_, None) => true,
        (Tighter::Lower, Some(held)) => edited < held,
        (Tighter::Raise, Some(held)) => edited > held,
    }
}

/// Returns the message that an edit is not used, and why.
pub(super) fn refused(reason: &str) -> String {
    // The reason comes last, because it may be long.
    format!("the settings before the newest edit remain in effect: {reason}")
}

fn stamps(places: &[Option<PathBuf>; 2]) -> [Option<Stamp>; 2] {
    let [own, project] = places;
    // The user's file may be a link; a project's is not read if it is one.
    [own.as_deref().and_then(Stamp::of), project.as_deref().and_then(Stamp::of_link)]
}

/// Returns the files that this text of the user's file names for prompts.
fn prompts(own: Option<&Path>, text: Option<&str>) -> Vec<(PathBuf, Option<Stamp>)> {
    let (Some(own), Some(text)) = (own, text) else { return Vec::new() };
    let stamped = |path: PathBuf| {
        let stamp = Stamp::of(&path);
        (path, stamp)
    };
    prompt_files(own, text).into_iter().map(stamped).collect()
}

fn is_young(stamps: &[Option<Stamp>; 2], prompts: &[(PathBuf, Option<Stamp>)], now: SystemTime) -> bool {
    let prompts = prompts.iter().map(|(_, stamp)| stamp);
    stamps.iter().chain(prompts).flatten().any(|stamp| stamp.age(now) < YOUNG)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests;

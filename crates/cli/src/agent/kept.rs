//! The options with which a session is resumed: its server, model, model settings, system prompt, permissions,
//! configuration file and overrides of settings, in a file beside the store.
//!
//! They are no labels of the session: whoever may label sessions, such as a client of `serve`, must not decide where a
//! key goes and what an agent may do. The folder is a label, because it decides neither.
//!
//! Invariants: no key is kept, and no query of an address; an address is kept only as one to which the key must have
//! been confirmed; a flag that is given takes precedence, and is then the session's.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use greenroom::ReasoningEffort;
use greenroom::permissions::Mode;
use greenroom_files::{self as files, private};
use serde::{Deserialize, Serialize};

use super::server::Server;
use super::{data_dir, load_config};
use crate::args::{Global, ModelArgs, ServerArgs};
use crate::config::digest::digest;
use crate::config::prompt_file;
use crate::config::sandbox::ModeConfig;
use crate::config::surroundings::Surroundings;

#[cfg(test)]
mod tests;

/// The folder of these files, in the store's.
const FOLDER: &str = "resumed-with";
/// The maximum number of bytes of one.
const BYTES_MAX: u64 = 1 << 16;

/// What one session is resumed with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Kept {
    /// The provider that a flag named.
    provider: Option<String>,
    /// The provider that was asked because nothing else was named.
    asked: Option<String>,
    /// The address that a flag named, without its query.
    base_url: Option<String>,
    /// The address that was asked because a variable named it, without its query.
    asked_url: Option<String>,
    api_key_env: Option<String>,
    model: Option<String>,
    window: Option<u64>,
    effort: Option<ReasoningEffort>,
    simulate: bool,
    mode: Option<Mode>,
    /// The mode that the user chose while the session was open.
    chosen_mode: Option<Mode>,
    no_tools: bool,
    allow_write: bool,
    allow_shell: bool,
    allow: Vec<String>,
    ask: Vec<String>,
    deny: Vec<String>,
    sandbox: Option<ModeConfig>,
    /// The configuration file that a flag named, an absolute path.
    config: Option<PathBuf>,
    sampling: Sampling,
    system: Option<String>,
    append_system: Option<String>,
    /// The overrides of settings (`--set`) that [`is_kept`] names.
    settings: Vec<String>,
    /// The names of other overrides that affect what the model is asked.
    left_out: Vec<String>,
}

/// Flags for the model's answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Sampling {
    temperature: Option<f64>,
    top_p: Option<f64>,
    seed: Option<i64>,
    stop: Vec<String>,
    max_output_tokens: Option<u64>,
    tool_choice: Option<String>,
}

/// A change of what a session is resumed with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    Effort(Option<ReasoningEffort>),
    Mode(Mode),
}

impl Kept {
    /// Reads what a session is resumed with; `None` if nothing was kept.
    pub(crate) fn read(global: &Global, session_id: &str) -> Option<Self> {
        Self::of_file(&path(global, session_id)?)
    }

    fn of_file(path: &Path) -> Option<Self> {
        serde_json::from_slice(&files::read(path, BYTES_MAX).ok()?).ok()
    }

    /// Returns what flags amount to, which [`super::choice`] has completed.
    ///
    /// # Errors
    /// The configuration is invalid, or the confirmation of an address cannot be stored.
    pub(crate) fn of(global: &Global, args: &ModelArgs) -> Result<Self> {
        let here = Surroundings::here();
        let loaded = load_config(global, &here)?;
        let ServerArgs { provider, base_url, api_key_env, is_kept: _ } = &args.server;
        let mut kept = Self {
            provider: provider.clone(),
            base_url: base_url.as_deref().map(without_query),
            api_key_env: api_key_env.clone(),
            model: args.model.clone(),
            window: args.window,
            effort: args.effort,
            simulate: args.simulate,
            mode: args.mode,
            chosen_mode: None,
            no_tools: args.no_tools,
            allow_write: args.allow_write,
            allow_shell: args.allow_shell,
            allow: args.allow.clone(),
            ask: args.ask.clone(),
            deny: args.deny.clone(),
            sandbox: args.sandbox,
            config: global.config.as_ref().and_then(|path| std::path::absolute(path).ok()),
            sampling: Sampling {
                temperature: args.temperature,
                top_p: args.top_p,
                seed: args.seed,
                stop: args.stop.clone(),
                max_output_tokens: args.max_output_tokens,
                tool_choice: args.tool_choice.clone(),
            },
            system: args.system.as_deref().map(|text| prompt(text, args)).filter(is_open),
            append_system: args.append_system.as_deref().map(|text| prompt(text, args)).filter(is_open),
            settings: global
                .settings
                .iter()
                .filter(|setting| is_kept(setting) && is_open(setting))
                .cloned()
                .collect(),
            left_out: global.settings.iter().filter_map(|setting| left_out(setting)).collect(),
            asked: None,
            asked_url: None,
        };
        kept.leave_secrets_out(global, args);
        if args.simulate {
            return Ok(kept);
        }
        let named = super::named_model(args, &here);
        let own_model = named.as_deref().unwrap_or(&loaded.own.model);
        let server = Server::chosen(&loaded, &args.server, own_model, true, &here)?;
        kept.model = Some(named.unwrap_or_else(|| loaded.config.model.clone()));
        match server.name() {
            Some(name) if provider.is_none() => kept.asked = Some(name.to_owned()),
            Some(_) => {}
            None => {
                let url = without_query(&server.base_url().to_string());
                let of_flag = args.server.base_url.is_some();
                *(if of_flag { &mut kept.base_url } else { &mut kept.asked_url }) = Some(url);
                server.confirm_typed(&args.server, &data_dir(global)?)?;
            }
        }
        Ok(kept)
    }

    /// Notes what is not kept because it has a secret.
    fn leave_secrets_out(&mut self, global: &Global, args: &ModelArgs) {
        let flags = [
            ("system_prompt", args.system.is_some() && self.system.is_none()),
            ("append_system_prompt", args.append_system.is_some() && self.append_system.is_none()),
        ];
        self.left_out
            .extend(flags.iter().filter(|(_, is_left)| *is_left).map(|(name, _)| (*name).to_owned()));
        let settings = global.settings.iter().filter(|setting| is_kept(setting) && !is_open(setting));
        self.left_out.extend(settings.map(|setting| key(setting).to_owned()));
    }

    /// Adds what is kept to flags, where they leave it open. `with_permissions`: also what the agent may do.
    pub(crate) fn complete(&self, global: &mut Global, args: &mut ModelArgs, with_permissions: bool) {
        let given: Vec<String> = global.settings.iter().map(|setting| key(setting).to_owned()).collect();
        let sets = |section: &str| given.iter().any(|given| is_within(given, section));
        // What nobody watches is steered by its environment as by its flags.
        let of_environment = Surroundings::here().variable("OPENAI_BASE_URL").filter(|_| !with_permissions);
        let names_server = args.simulate
            || sets("provider")
            || sets("providers")
            || args.server.provider.is_some()
            || args.server.base_url.is_some()
            || of_environment.is_some_and(|url| self.address() != Some(&without_query(&url)));
        if global.config.is_none() {
            global.config = self.config.clone().filter(|path| path.is_file());
        }
        let names_model = names_server || args.model.is_some() || sets("model");
        let mut settings = self.settings.clone();
        settings.retain(|kept| {
            let is_replaced = given.iter().any(|given| is_within(key(kept), given));
            is_kept(kept) && !is_replaced && !(names_model && key(kept) == "context_window")
        });
        settings.append(&mut global.settings);
        global.settings = settings;
        if !names_server {
            args.simulate = self.simulate;
            args.server.provider.clone_from(&self.provider);
            args.server.base_url.clone_from(&self.base_url);
            args.server.is_kept = self.base_url.is_some();
            if args.server.api_key_env.is_none() {
                args.server.api_key_env.clone_from(&self.api_key_env);
            }
            // The model belongs to its server.
            if !names_model {
                args.model.clone_from(&self.model);
                args.window = args.window.or(self.window);
            }
            self.pin_server(global, args);
        }
        // Flags come before settings, also those of an earlier command.
        if !sets("model_settings") && !sets("models") {
            self.sampling.complete(args);
            args.effort = args.effort.or(self.effort);
        }
        for (given, kept, setting) in [
            (&mut args.system, &self.system, "system_prompt"),
            (&mut args.append_system, &self.append_system, "append_system_prompt"),
        ] {
            if given.is_none() && !sets(setting) {
                given.clone_from(kept);
            }
        }
        let names_permissions = args.mode.is_some() || args.no_tools || args.allow_write || args.allow_shell;
        if !with_permissions {
            return;
        }
        if !names_permissions {
            args.mode = self.mode;
            args.no_tools = self.no_tools;
            args.allow_write = self.allow_write;
            args.allow_shell = self.allow_shell;
        }
        for (given, kept) in
            [(&mut args.allow, &self.allow), (&mut args.ask, &self.ask), (&mut args.deny, &self.deny)]
        {
            if given.is_empty() {
                given.clone_from(kept);
            }
        }
        args.sandbox = args.sandbox.or(self.sandbox);
    }

    /// Returns a warning about overrides that the session began with, and that neither it nor these flags have.
    pub(crate) fn lacking(&self, global: &Global) -> Option<String> {
        let given: Vec<&str> = global.settings.iter().map(|setting| key(setting)).collect();
        let lacks = |name: &&String| !given.contains(&name.as_str());
        let lacking: Vec<String> =
            self.left_out.iter().filter(lacks).map(|name| format!("--set {name}=…")).collect();
        (!lacking.is_empty()).then(|| {
            format!(
                "this session was used with {}, which is not stored with a session; the configuration's values apply unless you \
                 give it again",
                lacking.join(" ")
            )
        })
    }

    /// Returns the address of a server without a name.
    fn address(&self) -> Option<&str> {
        self.base_url.as_deref().or(self.asked_url.as_deref())
    }

    /// Names the server that was asked without a flag if another one would be asked now. Where it would be the same,
    /// the flags stay as they were, so that an unfinished run is continued.
    fn pin_server(&self, global: &Global, args: &mut ModelArgs) {
        if args.server.provider.is_some() || args.server.base_url.is_some() || args.simulate {
            return;
        }
        let here = Surroundings::here();
        let Ok(loaded) = load_config(global, &here) else { return };
        let own_model = args.model.as_deref().unwrap_or(&loaded.own.model);
        let now = Server::chosen(&loaded, &args.server, own_model, true, &here).ok();
        let asked_now = now.as_ref().map(|now| (now.name(), without_query(&now.base_url().to_string())));
        match (&self.asked, &self.asked_url) {
            (_, Some(url)) if asked_now != Some((None, url.clone())) => {
                args.server.base_url = Some(url.clone());
                args.server.is_kept = true;
            }
            (Some(name), None)
                if asked_now.and_then(|(now, _)| now) != Some(name.as_str())
                    && loaded.own.providers.contains_key(name) =>
            {
                args.server.provider = Some(name.clone());
            }
            (Some(_), None) | (_, Some(_)) | (None, None) => {}
        }
    }

    /// Returns the mode that the user chose while the session was open, unless these flags name another one.
    pub(crate) fn chosen_mode(&self, args: &ModelArgs) -> Option<Mode> {
        let is_named = args.mode != self.mode
            || args.no_tools != self.no_tools
            || args.allow_write != self.allow_write
            || args.allow_shell != self.allow_shell;
        self.chosen_mode.filter(|_| !is_named)
    }

    /// Keeps it for a session, with the mode that was chosen before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, global: &Global, session_id: &str) -> Result<()> {
        let Some(path) = path(global, session_id) else { return Ok(()) };
        if Self::of_file(&path).as_ref() == Some(self) {
            return Ok(());
        }
        write(&path, &serde_json::to_vec(self)?)
    }

    /// Returns it with this mode chosen.
    pub(crate) fn with_mode(self, chosen_mode: Option<Mode>) -> Self {
        Self { chosen_mode, ..self }
    }

    /// Returns it with the effort and the mode that were chosen in another one.
    pub(crate) fn with_choices_of(self, other: &Self) -> Self {
        Self { effort: other.effort, chosen_mode: other.chosen_mode, ..self }
    }

    /// Returns it with the permissions of another one.
    pub(crate) fn with_permissions_of(self, other: &Self) -> Self {
        Self {
            mode: other.mode,
            chosen_mode: other.chosen_mode,
            no_tools: other.no_tools,
            allow_write: other.allow_write,
            allow_shell: other.allow_shell,
            allow: other.allow.clone(),
            ask: other.ask.clone(),
            deny: other.deny.clone(),
            sandbox: other.sandbox,
            ..self
        }
    }
}

impl Sampling {
    /// Adds what is kept to flags, where they leave it open.
    fn complete(&self, args: &mut ModelArgs) {
        args.temperature = args.temperature.or(self.temperature);
        args.top_p = args.top_p.or(self.top_p);
        args.seed = args.seed.or(self.seed);
        args.max_output_tokens = args.max_output_tokens.or(self.max_output_tokens);
        if args.stop.is_empty() {
            args.stop.clone_from(&self.stop);
        }
        if args.tool_choice.is_none() {
            args.tool_choice.clone_from(&self.tool_choice);
        }
    }
}

/// Whether a session keeps an override of a setting: one that affects what its model is asked, and decides neither where
/// keys and conversations go, nor what runs, nor what is allowed or redacted.
pub(crate) fn is_kept(setting: &str) -> bool {
    const KEPT: [&str; 10] = [
        "context_window", "model_settings", "models", "system_prompt", "append_system_prompt",
        "project_instructions", "skills", "model_may_compact", "limits", "compaction",
    ];
    KEPT.iter().any(|section| is_within(key(setting), section))
}

/// Whether a text has no secret that would be written down with it.
fn is_open(text: &String) -> bool {
    crate::error::secrets::redactor().all(text) == *text
}

/// Returns the name of an override that affects what the model is asked, and that a session does not keep.
fn left_out(setting: &str) -> Option<String> {
    let key = key(setting);
    ["providers", "hooks", "permissions", "sandbox", "redact"]
        .iter()
        .any(|section| is_within(key, section))
        .then(|| key.to_owned())
}

/// Returns the name in `NAME=VALUE`.
fn key(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default().trim()
}

/// Whether a setting is this one, or a part of it.
fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the text of a prompt's flag; the name of a file does not depend on the folder, unless that is the session's.
fn prompt(text: &str, args: &ModelArgs) -> String {
    let name = prompt_file(text).filter(|_| args.is_workspace_given);
    match name.and_then(|name| std::path::absolute(name).ok()) {
        Some(path) => format!("file:{}", path.display()),
        None => text.to_owned(),
    }
}

/// Changes what a session is resumed with, if something is kept for it.
pub(crate) fn change(global: &Global, session_id: &str, change: Change) -> Result<()> {
    let Some(mut kept) = Kept::read(global, session_id) else { return Ok(()) };
    match change {
        Change::Effort(effort) => kept.effort = effort,
        Change::Mode(mode) => kept.chosen_mode = Some(mode),
    }
    kept.write(global, session_id)
}

/// Keeps nothing for a session any more: it was deleted, or never began.
pub(crate) fn forget(global: &Global, session_id: &str) {
    if let Some(path) = path(global, session_id) {
        // There may be none.
        let _ = std::fs::remove_file(path);
    }
}

/// Copies what a session is resumed with to another one.
pub(crate) fn copy(global: &Global, from: &str, to: &str) -> Result<()> {
    Kept::read(global, from).map_or(Ok(()), |kept| kept.write(global, to))
}

/// Returns the file of a session. An id that is no name of a file is digested.
fn path(global: &Global, session_id: &str) -> Option<PathBuf> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let is_safe = session_id.len() <= 100 && session_id.chars().all(is_name);
    let name = if is_safe {
        session_id.to_owned()
    } else {
        // No safe id contains a dot.
        format!("sha256.{}", digest(session_id))
    };
    Some(data_dir(global).ok()?.join(FOLDER).join(format!("{name}.json")))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = || format!("write {}", path.display());
    if let Some(folder) = path.parent() {
        private::create_folders(folder).with_context(failed)?;
    }
    private::replace(path, bytes).with_context(failed)
}

/// Returns an address without its query, which may contain a key, and without a password.
fn without_query(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or(url);
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

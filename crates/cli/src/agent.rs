//! From flags, configuration and environment to an agent.
//!
//! May use `config`, `args` and `error`. This room opens no store, starts no runtime and knows no host:
//! `host` does.
//!
//! - The model: `choice`, `server`, `local`, `simulated`, `key_command`, `confirmed` (addresses that may get a key).
//! - The text and the tools: `prompt`, `project`, `skills`, `ask_user`, `permissions`, `mcp`, `compaction_hook`.
//! - Together: `settings`, `made` (the agent), `kept` (the options with which a session is resumed).
//!
//! Invariants: flags take precedence over the environment, and the environment over the configuration;
//! missing settings are reported before anything is opened.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::RuntimeBuilder;
use greenroom::provider::{BaseUrl, Proxies};
use greenroom_kernel::{Failure, FailureClass};
use greenroom_store::StoreError;
use greenroom_terminal::Screen;
use greenroom_tools::Workspace;

pub(crate) use self::server::proxies;
use crate::args::{Global, ModelArgs};
use crate::config::surroundings::Surroundings;
use crate::config::{FILE_NAME, Loaded, Overrides, Texts, load, load_held, users_places};

pub(crate) use self::made::{Made, SIMULATED_WINDOW, has_some, keep_in_mind, skills};
pub(crate) use self::server::{Server, confirm};
pub(crate) use self::settings::{ClientSettings, Stay};

pub(crate) mod ask_user;
pub(crate) mod choice;
mod compaction_hook;
mod confirmed;
pub(crate) mod kept;
mod key_command;
pub(crate) mod local;
mod made;
pub(crate) mod mcp;
pub(crate) mod permissions;
pub(crate) mod project;
pub(crate) mod prompt;
pub(crate) mod server;
mod settings;
pub(crate) mod simulated;
pub(crate) mod skills;

/// How long the check of the server's address may take before it is left to the first call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Returns the store's directory.
pub(crate) fn data_dir(global: &Global) -> Result<PathBuf> {
    let dir = match &global.data_dir {
        Some(dir) => dir.clone(),
        // This function reads the variable; an empty one counts as unset.
        None => greenroom::internal::data_dir()?,
    };
    // A missing folder has no sessions; a path that cannot be a folder is an error.
    let source = match dir.metadata() {
        Ok(found) if !found.is_dir() => ErrorKind::NotADirectory.into(),
        Err(error) if error.kind() != ErrorKind::NotFound => error,
        Ok(_) | Err(_) => return Ok(dir),
    };
    Err(StoreError::Io { action: "keep sessions in", path: dir, source: Arc::new(source) }.into())
}

/// Returns the folder for file tools, excluding our own files: the store with its token, and the user's
/// configuration, which says where keys are sent and what a run may do.
pub(crate) fn workspace(global: &Global, folder: &Path, surroundings: &Surroundings) -> Result<Workspace> {
    let workspace = Workspace::open_without(folder, closed(global, surroundings)?)?;
    Ok(match surroundings.umask() {
        Some(umask) => workspace.with_umask(umask),
        None => workspace,
    })
}

/// Lets a runtime of this store keep the files that tools change. The user's own configuration decides; one that
/// cannot be read counts as the default.
///
/// # Errors
/// If the folder with the files cannot be opened.
pub(crate) fn keep_files(global: &Global, builder: RuntimeBuilder) -> Result<RuntimeBuilder> {
    let surroundings = Surroundings::here();
    let rewind = load_config(global, &surroundings).map(|loaded| loaded.own.rewind).unwrap_or_default();
    let closed = users_places(global.config.as_deref(), &surroundings);
    let dir = data_dir(global)?;
    let kept = rewind.of_runtime(builder, &dir, closed);
    kept.map_err(|error| {
        let source = Arc::new(error);
        StoreError::Io { action: "keep the files that tools change in", path: dir, source }.into()
    })
}

/// Returns our own files: the store with its token, and the user's configuration.
pub(crate) fn closed(global: &Global, surroundings: &Surroundings) -> Result<Vec<PathBuf>> {
    let data_dir = data_dir(global)?;
    // Each part is excluded separately, because it may be a link to another disk.
    let parts = ["journal", "index", TOKEN_FILE].map(|part| data_dir.join(part));
    let configuration = users_places(global.config.as_deref(), surroundings);
    Ok(configuration.into_iter().chain(parts).chain([data_dir]).collect())
}

/// Returns the user's configuration folder.
pub(crate) fn own_folder() -> Option<PathBuf> {
    folder_of(&Surroundings::here())
}

fn folder_of(surroundings: &Surroundings) -> Option<PathBuf> {
    users_places(None, surroundings).into_iter().find(|place| !place.ends_with(FILE_NAME))
}

/// Returns the folder of the user's own skills.
fn own_skills(surroundings: &Surroundings) -> Option<PathBuf> {
    folder_of(surroundings).map(|folder| folder.join("skills"))
}

/// Returns the model named by a flag or the environment.
pub(crate) fn named_model(args: &ModelArgs, surroundings: &Surroundings) -> Option<String> {
    args.model.clone().or_else(|| surroundings.variable("GREENROOM_MODEL"))
}

/// The token's file in the store's directory.
pub(crate) const TOKEN_FILE: &str = "token";
/// Loads the effective configuration for this environment.
pub(crate) fn load_config(global: &Global, surroundings: &Surroundings) -> Result<Loaded> {
    load_config_or(global, surroundings, None)
}

/// Like [`load_config`]. If the files are invalid now, their last valid texts, `last_valid`, are used.
pub(crate) fn load_config_or(
    global: &Global,
    surroundings: &Surroundings,
    last_valid: Option<&Texts>,
) -> Result<Loaded> {
    let overrides = Overrides::read(&global.settings, surroundings)?;
    let explicit = global.config.as_deref();
    let loaded = match (load(explicit, overrides.clone()), last_valid) {
        (Err(error), Some(texts)) => {
            load_held(explicit, overrides, texts, &error.to_string()).map_err(|_| error)?
        }
        (loaded, _) => loaded?,
    };
    tracing::debug!(files = ?loaded.files, "the configuration was read");
    Ok(loaded)
}

/// Keeps the texts of the configuration files if they are valid now.
pub(crate) fn renew(global: &Global, last_valid: &mut Option<Texts>) {
    if let Ok(loaded) = load_config_or(global, &Surroundings::here(), last_valid.as_ref()) {
        *last_valid = Some(loaded.texts());
    }
}

/// Loads the effective configuration, and prints its warnings to standard error.
pub(crate) fn config(global: &Global) -> Result<Loaded> {
    let loaded = load_config(global, &Surroundings::here())?;
    for warning in &loaded.warnings {
        warn(global, warning)?;
    }
    Ok(loaded)
}

/// Prints a warning to standard error.
pub(crate) fn warn(global: &Global, text: &str) -> Result<()> {
    Ok(Screen::stderr(global.color).line(format!("greenroom: warning: {text}"))?)
}

/// Checks that a server listens at the address. Only a clear refusal is reported at once; other problems are
/// left to the first call, which retries.
pub(crate) async fn check_reachable(base_url: &BaseUrl, surroundings: &Surroundings) -> Result<()> {
    let Proxies { http, https, all, no_proxy: _ } = proxies(surroundings);
    if http.or(https).or(all).is_some() {
        return Ok(());
    }
    let address = (base_url.host(), base_url.port());
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await;
    match connected {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            let text = format!("cannot reach {base_url}: connection refused");
            Err(greenroom::Error::Model(Failure::new(FailureClass::Timeout, text)).into())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

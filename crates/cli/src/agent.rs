//! From flags, configuration and environment to an agent.
//!
//! It touches the configuration and the flags. It opens no store, starts no runtime and knows no host: that is `host`.
//!
//! Invariants: a flag wins over the environment, and that over the configuration; what is missing is said before
//! anything is opened.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::provider::{BaseUrl, Proxies};
use greenroom_kernel::{Failure, FailureClass};
use greenroom_store::StoreError;
use greenroom_terminal::Screen;
use greenroom_tools::Workspace;

use self::server::proxies;
use crate::args::{Global, ModelArgs};
use crate::config::surroundings::Surroundings;
use crate::config::{FILE_NAME, Loaded, Overrides, Texts, load, load_held, users_places};

pub(crate) use self::made::{Made, has_some, keep_in_mind, skills};
pub(crate) use self::server::{Server, confirm};
pub(crate) use self::settings::{ClientSettings, Stay};

pub(crate) mod ask_user;
mod made;
mod project;
mod prompt;
mod server;
mod settings;
pub(crate) mod simulated;
pub(crate) mod skills;
mod trust;

/// How long a first connection may take before it is left to the first call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The store's directory.
pub(crate) fn data_dir(global: &Global) -> Result<PathBuf> {
    let dir = match &global.data_dir {
        Some(dir) => dir.clone(),
        // It knows the variable, and takes an empty one for none.
        None => greenroom::internal::data_dir()?,
    };
    // A folder that is not there yet has no sessions; one that cannot be there is a mistake.
    let source = match dir.metadata() {
        Ok(found) if !found.is_dir() => ErrorKind::NotADirectory.into(),
        Err(error) if error.kind() != ErrorKind::NotFound => error,
        Ok(_) | Err(_) => return Ok(dir),
    };
    Err(StoreError::Io { action: "keep sessions in", path: dir, source: Arc::new(source) }.into())
}

/// A folder for file tools, without what is ours: the store with its token, and the user's configuration, which says
/// where keys go and what a run may take.
pub(crate) fn workspace(global: &Global, folder: &Path, surroundings: &Surroundings) -> Result<Workspace> {
    let data_dir = data_dir(global)?;
    // Each part too: it may be a link to another disk.
    let parts = ["journal", "index", TOKEN_FILE].map(|part| data_dir.join(part));
    let configuration = users_places(global.config.as_deref(), surroundings);
    let workspace =
        Workspace::open_without(folder, configuration.into_iter().chain(parts).chain([data_dir]))?;
    Ok(match surroundings.umask() {
        Some(umask) => workspace.with_umask(umask),
        None => workspace,
    })
}

/// The user's configuration folder.
pub(crate) fn own_folder() -> Option<PathBuf> {
    folder_of(&Surroundings::here())
}

fn folder_of(surroundings: &Surroundings) -> Option<PathBuf> {
    users_places(None, surroundings).into_iter().find(|place| !place.ends_with(FILE_NAME))
}

/// Where the user keeps skills.
fn own_skills(surroundings: &Surroundings) -> Option<PathBuf> {
    folder_of(surroundings).map(|folder| folder.join("skills"))
}

/// The model that a flag or the environment names.
pub(crate) fn named_model(args: &ModelArgs, surroundings: &Surroundings) -> Option<String> {
    args.model.clone().or_else(|| surroundings.variable("GREENROOM_MODEL"))
}

/// The token's file in the store's directory.
pub(crate) const TOKEN_FILE: &str = "token";
/// The label that names the folder in which a session was begun.
pub(crate) const FOLDER: &str = "folder";
/// The configuration that holds in these surroundings.
pub(crate) fn load_config(global: &Global, surroundings: &Surroundings) -> Result<Loaded> {
    load_config_or(global, surroundings, None)
}

/// As [`load_config`]. Where the files cannot be used now, what they said before holds: `last_valid`.
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

/// Keeps what the configuration files say now, if they can be used.
pub(crate) fn renew(global: &Global, last_valid: &mut Option<Texts>) {
    if let Ok(loaded) = load_config_or(global, &Surroundings::here(), last_valid.as_ref()) {
        *last_valid = Some(loaded.texts());
    }
}

/// The configuration that holds here. What the user must know of it is said on standard error.
pub(crate) fn config(global: &Global) -> Result<Loaded> {
    let loaded = load_config(global, &Surroundings::here())?;
    for warning in &loaded.warnings {
        warn(global, warning)?;
    }
    Ok(loaded)
}

/// One line on standard error that the user must see.
pub(crate) fn warn(global: &Global, text: &str) -> Result<()> {
    Ok(Screen::stderr(global.color).line(format!("greenroom: warning: {text}"))?)
}

/// Says at once that nobody answers at the server's address. Whatever is less clear than that is left to the
/// first call, which tries several times.
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

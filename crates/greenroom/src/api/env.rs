//! Reads the environment: the only place in this crate that does.

use std::path::PathBuf;
#[cfg(feature = "http")]
use std::sync::Arc;

#[cfg(feature = "http")]
use greenroom_provider::{HttpProvider, ServerOptions};

#[cfg(feature = "http")]
use crate::api::runtime::Runtime;
#[cfg(feature = "http")]
use crate::api::runtime::builder::RuntimeBuilder;
use crate::values::error::{ConfigError, Result};

#[cfg(feature = "http")]
impl Runtime {
    /// Starts a runtime configured by the environment: `OPENAI_API_KEY` and `OPENAI_BASE_URL` for the
    /// provider, `GREENROOM_DATA_DIR` for the store, which defaults to a folder in the user's data directory.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if a variable is invalid;
    /// [`Error::Store`](crate::Error::Store) if the store cannot be opened.
    pub async fn from_env() -> Result<Self> {
        RuntimeBuilder::from_env()?.start().await
    }
}

#[cfg(feature = "http")]
impl RuntimeBuilder {
    /// Like [`Runtime::from_env`], but returns the builder for further configuration.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if a variable is invalid.
    pub fn from_env() -> Result<Self> {
        let mut options = ServerOptions::default();
        if let Some(url) = variable("OPENAI_BASE_URL") {
            options.base_url =
                url.parse().map_err(|error| ConfigError::variable("OPENAI_BASE_URL", &error))?;
        }
        options.api_key = variable("OPENAI_API_KEY").map(Into::into);
        let provider = HttpProvider::new(options)?;
        Ok(Self::default().provider(Arc::new(provider)).data_dir(data_dir()?))
    }
}

/// Returns the store's directory: `GREENROOM_DATA_DIR`, or else `greenroom` in the user's data directory.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) if neither is known.
pub fn data_dir() -> Result<PathBuf> {
    if let Some(dir) = variable("GREENROOM_DATA_DIR") {
        return Ok(PathBuf::from(dir));
    }
    // A relative path does not count: it would be a different store in each folder.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    Ok(base.map(|base| base.join("greenroom")).ok_or(ConfigError::NoDataDir)?)
}

fn variable(name: &str) -> Option<String> {
    #[cfg(feature = "command-tools")]
    let value = greenroom_tools::privacy::variable(name)?;
    #[cfg(not(feature = "command-tools"))]
    #[expect(
        clippy::disallowed_methods,
        reason = "without tools that start processes, no variable is hidden"
    )]
    let value = std::env::var_os(name)?;
    value.into_string().ok().filter(|value| !value.trim().is_empty())
}

//! Backups of a store in use.
//!
//! Invariants: the store's own backup, which is consistent at any moment; only stores in files have one.

use std::path::Path;
use std::sync::Arc;

use greenroom_store::{BackupInfo, Progress};

use crate::api::runtime::Runtime;
use crate::values::error::{ConfigError, Result};

/// The error of a runtime whose sessions are elsewhere.
const NOT_IN_FILES: ConfigError = ConfigError::NotInFiles { operation: "backed up" };

impl Runtime {
    /// Backs up the store to a directory while it is used: see [`Store::backup`](greenroom_store::Store::backup).
    ///
    /// ```no_run
    /// # use greenroom::prelude::*;
    /// # async fn example(runtime: Runtime) -> Result<()> {
    /// let backup = runtime.backup("/backups/greenroom", &std::sync::Arc::default()).await?;
    /// println!("{} sessions, {} bytes", backup.sessions, backup.bytes);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store); those of [`Store::backup`](greenroom_store::Store::backup).
    pub async fn backup(&self, dir: impl AsRef<Path>, progress: &Arc<Progress>) -> Result<BackupInfo> {
        let deps = self.deps();
        let store = deps.store.as_store().ok_or(NOT_IN_FILES)?;
        Ok(store.backup(dir.as_ref(), deps.now_ms(), progress).await?)
    }

    /// Like [`Self::backup`], also if the store is damaged: see
    /// [`Store::backup_damaged`](greenroom_store::Store::backup_damaged).
    ///
    /// # Errors
    /// Those of [`Self::backup`], without the damage.
    pub async fn backup_damaged(
        &self,
        dir: impl AsRef<Path>,
        progress: &Arc<Progress>,
    ) -> Result<BackupInfo> {
        let deps = self.deps();
        let store = deps.store.as_store().ok_or(NOT_IN_FILES)?;
        Ok(store.backup_damaged(dir.as_ref(), deps.now_ms(), progress).await?)
    }
}

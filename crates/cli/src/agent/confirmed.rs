//! The addresses in configuration files to which a key may be sent.
//!
//! A command of a model can change the user's own configuration, including the address to which the next key
//! is sent. It cannot confirm that address: the mark of a confirmed address is computed with the key itself,
//! which commands do not have.
//!
//! Invariants: an address from a file gets a key only if that key was confirmed for it; the stored marks
//! reveal neither key nor address, and cannot be computed without the key.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use greenroom::provider::BaseUrl;
use greenroom_files::{self as files, private};

use crate::config::digest;

/// The file in the store with a line for each confirmed address.
const CONFIRMED: &str = "confirmed-addresses";
/// The maximum number of bytes that are read of it.
const BYTES_MAX: u64 = 1 << 20;

/// Whether this key was confirmed for this address.
pub(crate) fn is_confirmed(data_dir: &Path, key: &str, address: &BaseUrl) -> bool {
    let known = files::read(&data_dir.join(CONFIRMED), BYTES_MAX).unwrap_or_default();
    let line = line(key, address);
    String::from_utf8_lossy(&known).lines().any(|known| known == line)
}

/// Confirms this key for this address.
///
/// # Errors
/// The confirmation cannot be stored.
pub(crate) fn confirm(data_dir: &Path, key: &str, address: &BaseUrl) -> Result<()> {
    if is_confirmed(data_dir, key, address) {
        return Ok(());
    }
    let path = data_dir.join(CONFIRMED);
    let failed = || format!("write {}", path.display());
    private::create_folders(data_dir).with_context(failed)?;
    let mut file = private::append(&path).with_context(failed)?;
    writeln!(file, "{}", line(key, address)).with_context(failed)
}

/// Returns the mark of a key and an address.
fn line(key: &str, address: &BaseUrl) -> String {
    digest::mark(key, format!("greenroom: this key may be sent to {address}").as_bytes())
}

#[cfg(test)]
mod tests;

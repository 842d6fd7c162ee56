//! To which addresses a key may go that a configuration file names.
//!
//! A command of a model can write the user's own configuration, and with it the address that the next key is sent to. What
//! it cannot do is to confirm that address: what stands for a confirmed address is made with the key itself, which commands
//! do not have.
//!
//! Invariants: an address of a file gets a key only where that very key was confirmed for it; what is kept tells neither
//! the key nor the address, and nobody who does not know the key can write it.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use greenroom::provider::BaseUrl;
use greenroom_terminal::files;
use ring::hmac;

/// The file in the store that has a line for each confirmed address.
const CONFIRMED: &str = "confirmed-addresses";
/// The most that is read of it.
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
/// It cannot be noted.
pub(crate) fn confirm(data_dir: &Path, key: &str, address: &BaseUrl) -> Result<()> {
    if is_confirmed(data_dir, key, address) {
        return Ok(());
    }
    let path = data_dir.join(CONFIRMED);
    let failed = || format!("write {}", path.display());
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).with_context(failed)?;
    let mut options = std::fs::File::options();
    let mut file = options.append(true).create(true).mode(0o600).open(&path).with_context(failed)?;
    writeln!(file, "{}", line(key, address)).with_context(failed)
}

/// What stands for a key and an address.
fn line(key: &str, address: &BaseUrl) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let tag = hmac::sign(&key, format!("greenroom: this key may be sent to {address}").as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;

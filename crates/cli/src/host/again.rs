//! Connects again if a host ends meanwhile.
//!
//! Invariants: a runtime in this process is not replaced; a connection whose first request fails is ended.

use anyhow::Result;

use super::error::is_gone;

/// How many hosts that end are replaced before this is reported.
pub(crate) const ATTEMPTS: u32 = 5;

/// A connection to a host, or to a runtime in this process.
pub(super) trait Connection: Sized {
    /// Whether the runtime is in another process.
    fn is_host(&self) -> bool;

    /// Closes the connection, and ends a runtime in this process.
    async fn end(self) -> Result<()>;
}

/// Opens a connection, with a first request that may be repeated: a host that ends in the meantime is replaced.
///
/// # Errors
/// Those of `open` and of `first`.
pub(super) async fn open_and<C: Connection, T>(
    open: impl AsyncFn() -> Result<C>,
    first: impl AsyncFn(&C) -> Result<T>,
) -> Result<(C, T)> {
    let mut attempt = 1;
    loop {
        let connection = open().await?;
        match first(&connection).await {
            Ok(answer) => return Ok((connection, answer)),
            Err(error) if connection.is_host() && attempt < ATTEMPTS && is_gone(&error) => attempt += 1,
            Err(error) => {
                connection.end().await?;
                return Err(error);
            }
        }
    }
}

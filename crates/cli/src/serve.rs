//! `greenroom serve`: the runtime over HTTP.
//!
//! Invariants: it listens on the loopback interface unless another address is named; every request must bear the
//! token, which is made at the first start and kept in a file that only its owner can read.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use greenroom_server::{HttpOptions, HttpServer};

use crate::files;
use crate::interrupt::Interrupts;
use crate::options::{Global, ServeArgs};
use crate::setup::{self, Setup};
use crate::terminal::Screen;

/// The token's file in the store's directory.
pub(crate) const TOKEN_FILE: &str = "token";
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: u64 = 4 * 1024;

/// Runs it, until it is interrupted.
pub(crate) async fn run(global: &Global, args: &ServeArgs) -> Result<u8> {
    let setup = Setup::new(global, &args.model).await?;
    let path = setup::data_dir(global)?.join(TOKEN_FILE);
    let token = token(&path)?;
    let options = HttpOptions { address: args.listen, token };
    let agent = Arc::new(setup.agent.clone());
    let server = HttpServer::start(&setup.runtime, agent, options)
        .await
        .with_context(|| format!("listen on {}", args.listen))?;
    let mut screen = Screen::stderr(global.color);
    screen.line(&format!(
        "greenroom serves http://{}; the token is in {}",
        server.address(),
        path.display()
    ))?;
    let interrupts = Interrupts::new()?;
    interrupts.next().await;
    screen.line("Ending: running runs are interrupted.")?;
    // The runs first: requests that wait for them are answered then.
    let runtime = setup.runtime.clone();
    let (ended, ()) = tokio::join!(runtime.shutdown(), server.stop());
    ended?;
    Ok(0)
}

/// The token in this file; one of 256 bits is made where there is none.
fn token(path: &Path) -> Result<String> {
    let context = || format!("keep the token in {}", path.display());
    match files::read(path, TOKEN_BYTES_MAX) {
        Ok(bytes) => match String::from_utf8_lossy(&bytes).trim() {
            "" => std::fs::remove_file(path).with_context(context)?,
            token => return Ok(token.to_owned()),
        },
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error).with_context(context),
    }
    let mut bytes = [0u8; 32];
    let mut random = std::fs::File::open("/dev/urandom").context("open the system's random numbers")?;
    random.read_exact(&mut bytes).context("read the system's random numbers")?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(context)?;
    file.write_all(token.as_bytes()).with_context(context)?;
    Ok(token)
}

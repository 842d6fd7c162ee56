//! `greenroom serve`: the runtime over HTTP.
//!
//! Invariants: it listens on the loopback interface unless another address is given, and then explains the
//! consequences; every request must have the token, which is created at the first start in a file that only
//! its owner can read; a token that others could know is refused. It ends within ten seconds of a request to
//! stop.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom_server::{HttpOptions, HttpServer, TOKEN_CHARS_MIN, check_token};
use greenroom_terminal::{Interrupts, Screen, files};

use crate::agent::{self, Stay, TOKEN_FILE, warn};
use crate::args::{Global, ServeArgs};
use crate::config::check_host_name;
use crate::error::usage;
use crate::host::{Answering, Setup};

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: u64 = 4 * 1024;

/// Runs the server until it is interrupted. HTTP requests are served by the runtime itself, not through a host, which has
/// a connection and an agent for each client.
pub(crate) async fn run(global: &Global, args: &ServeArgs) -> Result<u8> {
    for name in &args.host_name {
        check_host_name(name).map_err(|reason| usage(format!("--host-name {name}: it {reason}")))?;
    }
    let wait = Duration::from_secs(args.wait_for_store.into());
    let setup = Setup::waiting(global, &args.model, Stay::Unwatched, wait).await?;
    let config = &setup.serve;
    let path = agent::data_dir(global)?.join(TOKEN_FILE);
    let mut options = HttpOptions::new(args.listen.unwrap_or(config.listen), token(&path)?);
    options.host_names = [config.host_names.clone(), args.host_name.clone()].concat();
    options.request_timeout = Duration::from_secs(config.request_timeout_s);
    options.connections_max = config.connections_max.min(connections_possible());
    if options.connections_max < config.connections_max {
        warn(
            global,
            &format!(
                "at most {} connections are open at a time instead of {}: half of what `ulimit -n` allows this process",
                options.connections_max, config.connections_max
            ),
        )?;
    }
    let (listen, host_names) = (options.address, options.host_names.clone());
    let agent = Arc::new(setup.agent.clone());
    let server = HttpServer::start(&setup.runtime, agent, options)
        .await
        .with_context(|| format!("listen on {listen}"))?;
    if !listen.ip().is_loopback() {
        warn_of_network(global, &server, &host_names)?;
    }
    let answering = Answering::begin(global, &setup.runtime)?.part_of("greenroom serve");
    let interrupts = Interrupts::new()?;
    let mut screen = Screen::stderr(global.color);
    screen.line(format!(
        "greenroom serves http://{}; the token is in {}",
        server.address(),
        path.display()
    ))?;
    tokio::select! {
        () = interrupts.next() => {}
        () = answering.must_end() => {}
    }
    screen.line("Stopping; any run in progress is interrupted.")?;
    // Both at once: requests that wait for a run are answered when it is interrupted.
    answering.end(setup.runtime, server.stop()).await?;
    Ok(0)
}

/// Explains the consequences if other machines can connect.
fn warn_of_network(global: &Global, server: &HttpServer, host_names: &[String]) -> Result<()> {
    let address = server.address();
    warn(
        global,
        &format!(
            "other machines can reach {address}, and there is no TLS: anyone who can see the traffic can read the \
            token and all messages; put a proxy with TLS in front, or listen on 127.0.0.1 and use an SSH tunnel"
        ),
    )?;
    let mut names = vec!["the addresses of this machine".to_owned(), format!("localhost:{}", address.port())];
    names.extend_from_slice(host_names);
    let names = names.join(", ");
    warn(global, &format!("the Host header may name {names}; --host-name or serve.host_names adds a name"))
}

/// Returns how many connections leave enough file descriptors for the store, the models and the tools.
fn connections_possible() -> usize {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    allowed.and_then(|allowed| usize::try_from(allowed / 2).ok()).unwrap_or(usize::MAX)
}

/// Reads the token in this file, or creates one of 256 bits.
fn token(path: &Path) -> Result<String> {
    let context = || format!("keep the token in {}", path.display());
    match files::open(path, true) {
        Ok((file, metadata)) => {
            let bytes = files::read_all(file, TOKEN_BYTES_MAX).with_context(context)?;
            let text = String::from_utf8_lossy(&bytes);
            // Editors and `echo` end a file with a line break.
            match text.trim_end_matches(['\n', '\r']) {
                "" => std::fs::remove_file(path).with_context(context)?,
                token => {
                    check_token_file(path, &metadata, token)?;
                    return Ok(token.to_owned());
                }
            }
        }
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

/// Checks that only the user can know the token.
fn check_token_file(path: &Path, metadata: &std::fs::Metadata, token: &str) -> Result<()> {
    let path = path.display();
    let renew = format!("delete {path}, and a new one is made at the next start");
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(usage(format!(
            "{path} is not used: it belongs to another user (id {}, and yours is {user}); {renew}",
            metadata.uid()
        )));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(usage(format!(
            "{path} is not used: others can read or write it, so they may know the token; {renew}, or run `chmod 600 \
             {path}` if you are sure that nobody has read it"
        )));
    }
    check_token(token).map_err(|error| {
        usage(format!(
            "{path} is not used: {error}; {renew}, or write one line of at least {TOKEN_CHARS_MIN} random characters \
             into it"
        ))
    })
}

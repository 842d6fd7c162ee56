//! Passes connections from 127.0.0.1 in a sandbox without network on to the proxy's socket.
//!
//! Invariants: the port is open before the command starts. The forwarder has fewer privileges than the command, and
//! decides nothing: the proxy does.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::helper::Role;
use crate::sandbox::confinement::Forward;

/// Opens the port and starts the forwarder; it ends with the namespace.
pub(super) fn start(target: &Forward) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, target.port))?;
    // This program, which is the standard input of this process, but not of the new one.
    let program = format!("/proc/{}/fd/0", std::process::id());
    Command::new(program)
        .args(Role::Forward.arguments(std::process::id()))
        .arg(&target.socket)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(())
}

/// Serves the listening socket that is the standard input.
pub(super) fn serve(arguments: &[OsString]) -> Result<Infallible> {
    let [socket] = arguments else { return Err(ErrorKind::InvalidInput.into()) };
    let listener = TcpListener::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    super::forget_input()?;
    super::give_up_privileges()?;
    let socket = Arc::new(socket.clone());
    loop {
        let Ok((client, _)) = listener.accept() else { continue };
        let socket = Arc::clone(&socket);
        // If there are too many threads, the client sees a closed connection.
        let _ = std::thread::Builder::new().spawn(move || pass_on(&client, &socket));
    }
}

fn pass_on(client: &TcpStream, socket: &OsString) {
    let Ok(proxy) = UnixStream::connect(socket) else { return };
    let (Ok(client_again), Ok(proxy_again)) = (client.try_clone(), proxy.try_clone()) else { return };
    let back = std::thread::Builder::new().spawn(move || {
        copy(&proxy_again, &client_again);
        let _ = client_again.shutdown(Shutdown::Write);
    });
    copy(client, &proxy);
    let _ = proxy.shutdown(Shutdown::Write);
    if let Ok(back) = back {
        let _ = back.join();
    }
}

fn copy(mut from: impl Read, mut to: impl Write) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

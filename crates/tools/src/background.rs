//! Starts another instance of this program in the background.
//!
//! Invariants: the background process inherits neither the terminal nor a stream of this process, and no
//! environment variable that holds a secret.

use std::ffi::OsString;
use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::privacy::HANDED_OVER;

/// The maximum startup output that is read, in bytes.
const STARTUP_OUTPUT_BYTES_MAX: u64 = 16 * 1024;

/// Closes every open file except the standard streams, for a program that keeps running in the background: an
/// inherited lock or pipe would stay open for its whole life. Call it before this process opens files of its
/// own.
#[cfg(target_os = "linux")]
pub fn close_inherited() -> std::io::Result<()> {
    let names =
        std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let open: Vec<std::os::fd::RawFd> = names.filter_map(|name| name.parse().ok()).collect();
    for number in open.into_iter().filter(|number| *number > 2) {
        // The descriptor of the directory listing is already closed.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Does nothing: on other systems the parent closes inherited files.
#[cfg(not(target_os = "linux"))]
pub fn close_inherited() -> std::io::Result<()> {
    Ok(())
}

/// Starts this program with these arguments in the background, with the root folder as its working directory,
/// waits until it closes its standard output, and returns what it wrote there. The call blocks. The program
/// keeps running after this process exits.
///
/// # Errors
/// Returns the I/O error if the program cannot be started.
pub fn start(arguments: &[OsString]) -> std::io::Result<String> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        // The file that the variable refers to is not inherited.
        .env_remove(HANDED_OVER)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut words = Vec::new();
    if let Some(said) = child.stdout.take() {
        said.take(STARTUP_OUTPUT_BYTES_MAX).read_to_end(&mut words)?;
    }
    // Reaps the child, which would otherwise remain a zombie for the life of this process.
    std::thread::spawn(move || child.wait());
    Ok(String::from_utf8_lossy(&words).into_owned())
}

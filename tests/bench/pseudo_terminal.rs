//! The binary on a pseudo-terminal, for benchmarks of what people see.
//!
//! Invariants: dropping it ends the program. The binary is the one beside the benchmark: `cargo xtask bench`
//! builds it first.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The time after which output is considered missing.
const LOST: Duration = Duration::from_secs(5);

/// A command of the binary on a terminal of its own.
pub(crate) struct AtTerminal {
    child: Child,
    keys: File,
    screen: Receiver<(Instant, Vec<u8>)>,
    seen: Vec<u8>,
    /// When the newest part of it was written.
    newest: Instant,
}

impl AtTerminal {
    /// Starts the command in this folder, with a terminal of 120 columns.
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it has a size");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let terminal = || {
            let path = PathBuf::from(name.to_str().expect("a path"));
            File::options().read(true).write(true).open(path).expect("its other end")
        };
        let child = command(folder)
            .args(arguments)
            .stdin(Stdio::from(terminal()))
            .stdout(Stdio::from(terminal()))
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let keys = File::from(master);
        let mut screen = keys.try_clone().expect("another handle");
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                if sender.send((Instant::now(), buffer[..length].to_vec())).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, screen: receiver, seen: Vec::new(), newest: Instant::now() }
    }

    /// Types these keys.
    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("the terminal takes it");
    }

    /// Waits until this text is written to the terminal, after the text of the previous wait, and returns
    /// when.
    pub(crate) fn wait_for(&mut self, wanted: &[u8]) -> Instant {
        loop {
            if let Some(place) = self.seen.windows(wanted.len()).position(|bytes| bytes == wanted) {
                self.seen.drain(..place + wanted.len());
                return self.newest;
            }
            // It may have arrived in two parts.
            let keep = self.seen.len().saturating_sub(4_096);
            self.seen.drain(..keep);
            let (at, bytes) = self.screen.recv_timeout(LOST).unwrap_or_else(|_| {
                let end = self.seen.len().saturating_sub(2_000);
                panic!("{wanted:?} is not seen: {}", String::from_utf8_lossy(&self.seen[end..]))
            });
            self.newest = at;
            self.seen.extend(bytes);
        }
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command for the binary in this folder, with its store there, and without the environment of
/// the caller.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder)
        .env("TERM", "xterm-256color")
        .env("GREENROOM_DATA_DIR", folder.join("store"));
    command
}

/// Returns the path of `greenroom`, built in the same profile: two folders up from the benchmarks.
fn binary() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a name");
    let path = this.ancestors().nth(2).expect("it lies in a folder of the build").join("greenroom");
    assert!(path.exists(), "{} is not there: `cargo xtask bench keys` builds it", path.display());
    path
}

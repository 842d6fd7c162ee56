//! How long it takes from a key to the screen in `greenroom chat`, while an answer streams in 200 pieces a second.
//!
//! The binary runs at a pseudo-terminal, and a simulated model streams to it. Keys are pressed one after the other, each
//! another character, and a time ends when that character is written to the terminal. There is no baseline. The binary is
//! the one beside this program: `cargo xtask bench keys` builds it first.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions};
use greenroom_tests::measure::{figure, percentile, scaled, title};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Between two pieces of the answer, in milliseconds: 200 a second.
const BETWEEN_MS: u64 = 5;
/// Between two keys: people type ten a second when they are quick.
const BETWEEN_KEYS: Duration = Duration::from_millis(37);
/// A key that is not seen after this long was lost.
const LOST: Duration = Duration::from_secs(5);
/// The first of the characters that are typed, which no answer has.
const FIRST: u32 = 0x4E00;
/// After so many keys the line is cleared, so that it stays a line.
const LINE: u32 = 25;

/// The binary at a terminal of its own. Dropping it ends it.
struct Chat {
    child: Child,
    keys: File,
    screen: Receiver<(Instant, Vec<u8>)>,
    seen: Vec<u8>,
}

fn main() {
    let keys = u32::try_from(scaled(1_000)).expect("few keys");
    title(&format!("{keys} keys in a chat into which {} pieces a second stream", 1_000 / BETWEEN_MS), "none");
    println!("| streaming | median, ms | p99, ms | worst, ms |");
    println!("|-----------|------------|---------|-----------|");
    for streams in [false, true] {
        let mut times = measured(keys, streams);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, p99) = (ms(percentile(&mut times, 50)), ms(percentile(&mut times, 99)));
        let worst = ms(times.iter().copied().max().unwrap_or_default());
        let name = if streams { "yes" } else { "no" };
        println!("| {name:<9} | {median:>10.2} | {p99:>7.2} | {worst:>9.2} |");
        figure(&format!("keys/streaming_{name}/median"), median, "ms", None);
        figure(&format!("keys/streaming_{name}/p99"), p99, "ms", None);
    }
}

fn measured(keys: u32, streams: bool) -> Vec<Duration> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let script = Function(|_: &SeenRequest, _: CallInfo| {
        // Prose with some Markdown, cut into small pieces, for longer than the keys take.
        let text = "Some **bold** words, `code` and a line of prose.\n\n- an item of a list\n\n```rust\nlet x = 1;\n```\n\n";
        let pieces = 60_000;
        Answer::text(text.repeat(pieces / 12)).with_pace(Pace {
            chunks: pieces,
            first_ms: 1,
            between_ms: BETWEEN_MS,
        })
    });
    let simulator = Simulator::new(SimulatorOptions::new(script));
    let server = runtime.block_on(simulator.serve()).expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let mut chat = Chat::start(folder.path(), &server.base_url().to_string());
    chat.wait_for("/help lists".as_bytes());
    if streams {
        chat.press("go\r".as_bytes());
        chat.wait_for(b"code");
    }
    let mut times = Vec::new();
    for number in 0..keys {
        if number % LINE == 0 {
            chat.press(b"\x15");
        }
        std::thread::sleep(BETWEEN_KEYS);
        let c = char::from_u32(FIRST + number).expect("it is one");
        let mut bytes = [0; 4];
        let bytes = c.encode_utf8(&mut bytes).as_bytes();
        let pressed = Instant::now();
        chat.press(bytes);
        times.push(chat.wait_for(bytes).saturating_duration_since(pressed));
    }
    times
}

impl Chat {
    fn start(folder: &std::path::Path, url: &str) -> Self {
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
        let child = Command::new(binary())
            .args(["chat", "--base-url", url, "--model", "simulated", "--no-tools"])
            .current_dir(folder)
            .env_clear()
            .env("HOME", folder)
            .env("TERM", "xterm-256color")
            .env("GREENROOM_DATA_DIR", folder.join("store"))
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
        Self { child, keys, screen: receiver, seen: Vec::new() }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("the terminal takes it");
    }

    /// Waits until this was written to the terminal, and gives when.
    fn wait_for(&mut self, wanted: &[u8]) -> Instant {
        loop {
            let (at, bytes) = self.screen.recv_timeout(LOST).unwrap_or_else(|_| {
                let end = self.seen.len().saturating_sub(2_000);
                panic!("{wanted:?} is not seen: {}", String::from_utf8_lossy(&self.seen[end..]))
            });
            self.seen.extend(bytes);
            if let Some(place) = self.seen.windows(wanted.len()).position(|bytes| bytes == wanted) {
                self.seen.drain(..place);
                return at;
            }
            // It may have come in two parts.
            let keep = self.seen.len().saturating_sub(4_096);
            self.seen.drain(..keep);
        }
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `greenroom`, built as this program is: two folders up from where benchmarks lie.
fn binary() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a name");
    let path = this.ancestors().nth(2).expect("it lies in a folder of the build").join("greenroom");
    assert!(path.exists(), "{} is not there: `cargo xtask bench keys` builds it", path.display());
    path
}

//! The chat in a real terminal: tmux, which tests type into and whose screen they read.
//!
//! Invariants: nothing waits for a fixed time: a screen is read again until it shows what it must; no terminal outlives its
//! test.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::support::Place;

/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// A terminal that runs one command. Dropping it ends it.
pub(crate) struct Terminal {
    socket: PathBuf,
}

/// Whether there is a terminal to be had. Where there is none it is said, and the test is skipped.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn is_there() -> bool {
    let is_there = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if !is_there {
        eprintln!("skipped: tmux is not installed");
    }
    is_there
}

impl Terminal {
    /// Runs the binary with these arguments in a terminal of this size.
    pub(crate) fn run(place: &Place, size: (u16, u16), arguments: &[&str]) -> Self {
        Self::of(place, size, &place.command(arguments))
    }

    /// Runs a command in a terminal of this size.
    pub(crate) fn of(place: &Place, (columns, rows): (u16, u16), command: &Command) -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let socket = place.store().with_file_name(format!("tmux{number}"));
        let mut words = vec!["env".to_owned(), "-i".to_owned(), "TERM=tmux-256color".to_owned()];
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                words.push(format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
            }
        }
        words.push(command.get_program().to_string_lossy().into_owned());
        words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
        let line: Vec<String> =
            words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        let line = format!("{}; echo \"ended with $?\"; exec cat", line.join(" "));
        let terminal = Self { socket };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let work = place.work();
        let work = work.to_string_lossy();
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, "-c", &work, &line]);
        terminal
    }

    /// Types text.
    pub(crate) fn types(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
    }

    /// Presses a key, as tmux names it: `Enter`, `C-c`, `M-Enter`, `Escape`, `Up`.
    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Sends bytes as they are, all at once.
    pub(crate) fn sends(&self, bytes: &[u8]) {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let bytes = bytes.iter().map(String::as_str);
        self.tmux(&["send-keys", "-H"].into_iter().chain(bytes).collect::<Vec<_>>());
    }

    /// Types a line, and ends it.
    pub(crate) fn says(&self, text: &str) {
        self.types(text);
        self.press("Enter");
    }

    /// Pastes text, marked as a paste.
    pub(crate) fn pastes(&self, text: &str) {
        let file = self.socket.with_extension("paste");
        std::fs::write(&file, text).unwrap();
        self.tmux(&["load-buffer", &file.to_string_lossy()]);
        self.tmux(&["paste-buffer", "-p"]);
    }

    /// Makes it another size.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// What the screen shows now.
    pub(crate) fn screen(&self) -> String {
        self.captured(&["capture-pane", "-p"])
    }

    /// What tmux says of this format, such as `#{pane_title}`.
    pub(crate) fn told(&self, format: &str) -> String {
        self.captured(&["display-message", "-p", format]).trim_end().to_owned()
    }

    /// Asks tmux until this format is as wanted.
    #[track_caller]
    pub(crate) fn tells(&self, format: &str, wanted: &str) {
        self.until(&format!("{format} is {wanted:?}"), |_| self.told(format) == wanted);
    }

    /// The screen, and all that was scrolled out of it; rows that the terminal wrapped are joined.
    pub(crate) fn all(&self) -> String {
        self.captured(&["capture-pane", "-p", "-J", "-S", "-"])
    }

    /// Reads the screen until it shows `text`, and gives it.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        self.until(&format!("{text:?} is seen"), |screen| screen.contains(text))
    }

    /// Leaves the chat once its run is over: before, a list asks what is to happen to the work.
    #[track_caller]
    pub(crate) fn leaves(&self) {
        self.until("the run is over", |screen| !screen.contains("Esc interrupts"));
        self.press("C-d");
    }

    /// Reads the screen until it is as wanted, and gives it.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(started.elapsed() < PATIENCE, "it does not come to it that {what}:\n{screen}");
            std::thread::park_timeout(Duration::from_millis(15));
        }
    }

    fn captured(&self, arguments: &[&str]) -> String {
        String::from_utf8_lossy(&self.tmux(arguments).stdout).into_owned()
    }

    #[track_caller]
    fn tmux(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(arguments).env_remove("TMUX");
        command
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}

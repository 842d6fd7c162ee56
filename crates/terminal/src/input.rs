//! The terminal in raw mode: keys in, frames out.
//!
//! Invariants: however the program ends, the terminal's mode is restored; all output goes through one
//! function, which writes whole frames.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::draw::Size;
use super::keys::Keys;

/// Enables bracketed paste, and the keyboard protocol that distinguishes keys such as Shift+Enter and Esc, if
/// the terminal supports it.
const ENTER: &str = "\x1b[?2004h\x1b[>1u";
/// Undoes [`ENTER`], and shows the cursor.
const LEAVE: &str = "\x1b[<1u\x1b[?1004l\x1b[?2004l\x1b[?25h";

/// Whether the terminal is in raw mode.
static IS_RAW: AtomicBool = AtomicBool::new(false);
/// Whether the terminal shows its other screen.
static IS_COVERED: AtomicBool = AtomicBool::new(false);

/// What the user did.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A key.
    Key(KeyEvent),
    /// A pasted text.
    Paste(String),
    /// The terminal got the focus, or lost it. Only after [`report_focus`].
    Focus(bool),
    /// The terminal's size may have changed.
    Resized,
    /// The terminal is gone, and why.
    Ended(String),
}

/// Raw mode of the terminal. Dropping it restores the terminal.
#[derive(Debug)]
pub struct Raw;

impl Raw {
    /// Enters raw mode.
    ///
    /// # Errors
    /// The terminal does not support it, or cannot be written.
    pub fn new() -> io::Result<Self> {
        enter()?;
        // A panic's message must be readable.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
        Ok(Self)
    }

    /// Leaves raw mode for another program, until [`Self::go_on`].
    pub fn pause(&self) {
        leave();
    }

    /// Enters raw mode again.
    pub fn go_on(&self) -> io::Result<()> {
        enter()
    }

    /// Leaves raw mode, suspends this process as Ctrl-Z does, and enters raw mode again when it is resumed.
    pub fn suspend(&self) -> io::Result<()> {
        leave();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?;
        enter()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    IS_RAW.store(true, Ordering::SeqCst);
    write(ENTER)
}

fn leave() {
    if IS_RAW.swap(false, Ordering::SeqCst) {
        // If the terminal is gone, there is nothing to restore.
        let _ = cover(false);
        let _ = write(LEAVE);
        let _ = terminal::disable_raw_mode();
    }
}

/// Writes text with its control codes to the terminal.
///
/// # Errors
/// The terminal is gone.
pub fn write(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Asks the terminal to report when it gets or loses the focus, until raw mode ends. Not all do.
///
/// # Errors
/// The terminal is gone.
pub fn report_focus() -> io::Result<()> {
    write("\x1b[?1004h")
}

/// While it exists, the thread of [`inputs`] reads nothing, so that another program gets the keys.
#[derive(Debug)]
pub struct Rest(());

/// Lets the thread of [`inputs`] rest.
pub fn rest() -> Rest {
    let mut reading = READING.lock();
    reading.rests = true;
    // The reader is notified; everything it reads until then was typed before.
    reading.wake();
    while reading.reads {
        RESTED.wait(&mut reading);
    }
    Rest(())
}

impl Drop for Rest {
    fn drop(&mut self) {
        READING.lock().rests = false;
        RESTED.notify_all();
    }
}

/// What the reading thread does.
struct Reading {
    /// Whether it must rest.
    rests: bool,
    /// Whether it may be reading.
    reads: bool,
    /// Wakes it.
    waker: Option<OwnedFd>,
}

impl Reading {
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            let _ = rustix::io::write(waker, b"x");
        }
    }
}

static READING: Mutex<Reading> = Mutex::new(Reading { rests: false, reads: false, waker: None });
static RESTED: Condvar = Condvar::new();

/// Shows the terminal's other screen, empty, or the first one again, as it was. The other screen has no scrollback.
///
/// # Errors
/// The terminal is gone.
pub fn cover(is_on: bool) -> io::Result<()> {
    if IS_COVERED.swap(is_on, Ordering::SeqCst) == is_on {
        return Ok(());
    }
    write(if is_on { "\x1b[?1049h\x1b[H\x1b[2J" } else { "\x1b[?1049l" })
}

/// Returns the terminal's size; 80 by 24 if it is unknown.
pub fn size() -> Size {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            Size { columns: usize::from(size.ws_col), rows: usize::from(size.ws_row) }
        }
        Ok(_) | Err(_) => Size { columns: 80, rows: 24 },
    }
}

/// Whether the terminal truncates rows when it gets narrower: xterm, rxvt, the Linux console and GNU screen
/// do; most others rewrap them.
pub fn cuts_rows() -> bool {
    cuts(crate::screen::variable)
}

/// Decides this from environment variables. The innermost terminal counts.
fn cuts(variable: impl Fn(&str) -> Option<String>) -> bool {
    if variable("TMUX").is_some() {
        return false;
    }
    let term = variable("TERM").unwrap_or_default();
    let is_cutting = ["linux", "rxvt", "screen"].iter().any(|name| term.starts_with(name));
    is_cutting || variable("STY").is_some() || variable("XTERM_VERSION").is_some()
}

impl Input {
    /// Whether this input leaves a chat that can do nothing else: Ctrl-C, Ctrl-D, or the end of the terminal.
    pub fn leaves(&self) -> bool {
        self.is_interrupt() || self.is_control('d') || matches!(self, Self::Ended(_))
    }

    /// Whether this is Ctrl-C.
    pub fn is_interrupt(&self) -> bool {
        self.is_control('c')
    }

    fn is_control(&self, letter: char) -> bool {
        matches!(self, Self::Key(key) if key.code == KeyCode::Char(letter)
            && key.modifiers.contains(KeyModifiers::CONTROL))
    }
}

/// Starts a thread that reads the user's input until the process ends.
pub fn inputs() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(256);
    let resized = sender.clone();
    tokio::spawn(async move {
        let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
        while changes.recv().await.is_some() && resized.send(Input::Resized).await.is_ok() {}
    });
    std::thread::spawn(move || {
        let ended = match read_keys(|input| sender.blocking_send(input).is_ok()) {
            Ok(()) => "the terminal's input has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        // Nobody waits for a thread that has ended.
        *READING.lock() = Reading { rests: false, reads: false, waker: None };
        RESTED.notify_all();
        // The receiver may be gone.
        let _ = sender.blocking_send(Input::Ended(ended));
    });
    receiver
}

/// Reads input in this thread and passes it to `tell`, until that returns false. Returns what was typed behind that
/// input and is read already. No thread keeps reading.
///
/// # Errors
/// The terminal has ended, or cannot be read.
pub fn dialogue(mut tell: impl FnMut(Input) -> bool) -> io::Result<Vec<Input>> {
    let (mut is_over, mut behind) = (false, Vec::new());
    read_pieces(|inputs| {
        for input in inputs {
            if is_over {
                behind.push(input);
            } else {
                is_over = !tell(input);
            }
        }
        !is_over
    })?;
    if is_over { Ok(behind) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads input and passes it to `tell`, until the terminal ends or `tell` returns false.
fn read_keys(tell: impl Fn(Input) -> bool) -> io::Result<()> {
    read_pieces(|inputs| inputs.into_iter().all(&tell))
}

/// Reads input and passes what came at once to `tell`, until the terminal ends or `tell` returns false.
fn read_pieces(mut tell: impl FnMut(Vec<Input>) -> bool) -> io::Result<()> {
    let tty = if io::stdin().is_terminal() {
        io::stdin().as_fd().try_clone_to_owned()?
    } else {
        OwnedFd::from(std::fs::File::open("/dev/tty")?)
    };
    let (mut keys, mut last, mut bytes) = (Keys::default(), Instant::now(), [0; 4_096]);
    let (woken, waker) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    *READING.lock() = Reading { rests: false, reads: true, waker: Some(waker) };
    loop {
        let patience = keys.patience().map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut ready = [PollFd::new(&tty, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
        let polled = rustix::event::poll(&mut ready, patience.as_ref());
        if polled.is_ok() && !ready[1].revents().is_empty() {
            let _ = rustix::io::read(&woken, &mut bytes);
            let mut reading = READING.lock();
            reading.reads = false;
            RESTED.notify_all();
            while reading.rests {
                RESTED.wait(&mut reading);
            }
            reading.reads = true;
            continue;
        }
        let inputs = match polled {
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => keys.expire(),
            Ok(_) => match rustix::io::read(&tty, &mut bytes) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
                Ok(0) => return Ok(()),
                Ok(count) => {
                    let silence = last.elapsed();
                    last = Instant::now();
                    keys.take(&bytes[..count], silence)
                }
            },
        };
        if !tell(inputs) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;

//! Notifications for a user who is not looking at the chat: a bell or a desktop notification, and the window title.
//!
//! Invariants: a notification is sent only when the terminal does not have the focus or, if the terminal does not
//! report it, nobody has pressed a key for a while; the previous title is restored when the chat ends.

use greenroom_terminal::screen::one_line;

#[cfg(test)]
mod tests;

/// Saves the title on the terminal's stack, and restores it from there.
const SAVE_TITLE: &str = "\x1b[22;2t";
const RESTORE_TITLE: &str = "\x1b[23;2t";
/// The maximum number of columns of a session's title in the window's title and in a notification.
const TITLE_COLUMNS: usize = 60;

/// How a notice is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Signal {
    /// No notices.
    Off,
    /// The terminal's bell.
    #[default]
    Bell,
    /// A notification of the desktop, by OSC 9.
    Desktop,
}

/// What the user wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notify {
    /// How.
    pub signal: Signal,
    /// Whether the title of the terminal window shows the session's state.
    pub title: bool,
    /// A shorter run gives no notice, in milliseconds.
    pub after_ms: u64,
}

impl Signal {
    /// Decides from environment variables how this terminal gives notices. OSC 9 is for terminals that are known to
    /// understand it, and are reached directly: tmux and GNU screen pass on the bell.
    pub fn of_terminal(variable: impl Fn(&str) -> Option<String>) -> Self {
        if variable("TMUX").is_some() || variable("STY").is_some() {
            return Self::Bell;
        }
        let program = variable("TERM_PROGRAM").unwrap_or_default();
        let term = variable("TERM").unwrap_or_default();
        let knows = ["iTerm.app", "WezTerm", "ghostty"].contains(&program.as_str())
            || ["xterm-kitty", "xterm-ghostty", "wezterm"].contains(&term.as_str())
            || term.starts_with("foot");
        if knows { Self::Desktop } else { Self::Bell }
    }
}

/// What the session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Idle,
    Working,
    /// It waits for the user's answer.
    Asking,
}

/// The state of the notices.
#[derive(Debug)]
pub(crate) struct Notices {
    notify: Notify,
    /// Whether the terminal has the focus; `None` if it never reported that.
    is_focused: Option<bool>,
    /// When the last key was pressed, in Unix milliseconds.
    key_ms: u64,
    doing: Doing,
    /// When the current work began.
    since_ms: u64,
    /// The title that is shown, once one is.
    title: Option<String>,
}

impl Notices {
    pub(crate) fn new(notify: Notify, now_ms: u64) -> Self {
        Self { notify, is_focused: None, key_ms: now_ms, doing: Doing::Idle, since_ms: now_ms, title: None }
    }

    /// Notes that the terminal got or lost the focus.
    pub(crate) fn focus(&mut self, is_focused: bool) {
        self.is_focused = Some(is_focused);
    }

    /// Notes a key.
    pub(crate) fn key(&mut self, now_ms: u64) {
        self.key_ms = now_ms;
        // Only a terminal with the focus gets keys.
        if self.is_focused == Some(false) {
            self.is_focused = Some(true);
        }
    }

    /// Whether nobody looks.
    fn is_away(&self, now_ms: u64) -> bool {
        match self.is_focused {
            Some(is_focused) => !is_focused,
            None => now_ms.saturating_sub(self.key_ms) >= self.notify.after_ms,
        }
    }

    /// Notes what the session does now. Returns the bytes for the terminal.
    pub(crate) fn update(&mut self, doing: Doing, name: &str, now_ms: u64) -> String {
        let mut out = String::new();
        let name = one_line(name, TITLE_COLUMNS);
        if self.notify.title {
            let mark = match doing {
                Doing::Idle => "",
                Doing::Working => "● ",
                Doing::Asking => "? ",
            };
            let title = if name.is_empty() {
                format!("{mark}greenroom")
            } else {
                format!("{mark}{name} · greenroom")
            };
            if self.title.as_ref() != Some(&title) {
                if self.title.is_none() {
                    out.push_str(SAVE_TITLE);
                }
                out.push_str(&format!("\x1b]2;{title}\x07"));
                self.title = Some(title);
            }
        }
        let took_ms = now_ms.saturating_sub(self.since_ms);
        let told = match (self.doing, doing) {
            (Doing::Idle | Doing::Working, Doing::Asking) => Some("waits for your answer"),
            (Doing::Working | Doing::Asking, Doing::Idle) if took_ms >= self.notify.after_ms => {
                Some("has finished")
            }
            _ => None,
        };
        if self.doing == Doing::Idle {
            self.since_ms = now_ms;
        }
        self.doing = doing;
        if let Some(what) = told.filter(|_| self.is_away(now_ms)) {
            let name = if name.is_empty() { "greenroom" } else { name.as_str() };
            match self.notify.signal {
                Signal::Off => {}
                Signal::Bell => out.push('\x07'),
                Signal::Desktop => out.push_str(&format!("\x1b]9;{name} {what}\x07")),
            }
        }
        out
    }

    /// Returns the bytes that bring the title from before back.
    pub(crate) fn end(&mut self) -> String {
        self.title.take().map_or_else(String::new, |_| RESTORE_TITLE.to_owned())
    }
}

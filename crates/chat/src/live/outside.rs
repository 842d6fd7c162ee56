//! External programs: the editor for the text, and the clipboard's picture. Also the theme, which belongs to the
//! terminal's.
//!
//! Invariants: while an editor runs, nothing else reads the terminal's input or writes to it; files with the user's
//! text and pictures can be read only by the user.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use greenroom_files::{self as files, private};
use greenroom_terminal::input;
use greenroom_terminal::row::{Look, Row};
use greenroom_terminal::screen::{one_line, variable};
use greenroom_terminal::theme::Theme;
use greenroom_terminal::time;
use greenroom_tools::Progress;
use tokio_util::sync::CancellationToken;

use super::{Done, TerminalChat};
use crate::attached;
use crate::picker::{Item, Picker, Purpose};

/// A command of the user's own that is running.
pub(super) struct OwnCommand {
    pub(super) cancel: CancellationToken,
    /// The command, if the model is told of its output.
    told: Option<String>,
}

/// The largest text that is read back from an editor, in bytes.
const TEXT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The largest picture that is taken from the clipboard, in bytes.
const PICTURE_BYTES_MAX: usize = 20 * 1024 * 1024;
/// The columns of a command in a note.
const COMMAND_COLUMNS: usize = 40;
/// The folder for pictures of the clipboard, in the data directory.
const PICTURES: &str = "clipboard";
/// How many of these pictures are kept.
const PICTURES_MAX: usize = 20;
/// The first bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

impl TerminalChat {
    /// Lets the user edit the text in their editor.
    pub(super) async fn edit_outside(&mut self, text: String) -> Result<()> {
        let editor = variable("VISUAL").or_else(|| variable("EDITOR")).unwrap_or_else(|| "vi".to_owned());
        let path =
            std::env::temp_dir().join(format!("greenroom-{}-{}.md", std::process::id(), time::now_ms()));
        if let Err(error) = write_new(&path, text.as_bytes()) {
            self.model.note(Look::BAD, &format!("Error: write {}: {error}", path.display()));
            return Ok(());
        }
        input::write(&self.painter.clear())?;
        let resting = input::rest();
        self.raw.pause();
        // The words of the variable are a shell's: `code --wait`.
        let opened = (editor.clone(), path.clone());
        let open = move || greenroom_tools::editor::open(&opened.0, &opened.1);
        let status = tokio::task::spawn_blocking(open).await.unwrap_or_else(|panic| Err(panic.into()));
        self.raw.go_on()?;
        drop(resting);
        input::report_focus()?;
        // A Ctrl-C in the editor was not meant for the run.
        self.interrupts.settle().await;
        let edited = files::read(&path, TEXT_BYTES_MAX);
        let _ = std::fs::remove_file(&path);
        match (status, edited) {
            (Ok(status), Ok(edited)) if status.success() => {
                let edited = String::from_utf8_lossy(&edited);
                self.model.replace(edited.trim_end_matches('\n'));
            }
            (Ok(status), Ok(_)) => {
                let how =
                    status.code().map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
                self.model.note(Look::WARN, &format!("The text is unchanged: {editor} ended with {how}"));
            }
            (Err(error), _) => {
                let text = format!("Error: cannot start {editor}: {error}; set VISUAL or EDITOR");
                self.model.note(Look::BAD, &text);
            }
            (Ok(_), Err(error)) => self.model.note(Look::BAD, &format!("Error: {}: {error}", path.display())),
        }
        Ok(())
    }

    /// Attaches the picture that is in the clipboard.
    pub(super) fn paste_picture(&self) {
        let (done, folder) = (self.done.clone(), self.local.data_dir().join(PICTURES));
        tokio::spawn(async move {
            let told = match picture().await {
                Ok(bytes) => tokio::task::spawn_blocking(move || keep(&folder, &bytes))
                    .await
                    .unwrap_or_else(|error| Err(error.to_string())),
                Err(problem) => Err(problem),
            };
            let _ = done.send(match told {
                Ok(path) => Done::Insert(format!("@{} ", path.display().to_string().replace(' ', "\\ "))),
                Err(problem) => Done::Note(Look::WARN, problem),
            });
        });
    }

    /// Runs a command of the user's own.
    pub(super) fn shell(&mut self, command: String, is_told: bool) {
        self.model.note(Look::BOLD, &format!("! {command}"));
        self.model.works(Some(&command));
        let (local, done) = (Arc::clone(&self.local), self.done.clone());
        let session = self.backend.id().to_owned();
        let (cancel, is_said) = (CancellationToken::new(), self.is_told_how || !is_told);
        self.is_told_how |= is_told;
        self.work = Some(OwnCommand { cancel: cancel.clone(), told: is_told.then(|| command.clone()) });
        let printing = done.clone();
        let progress = Progress::new(move |line| drop(printing.send(Done::Prints(line))));
        tokio::spawn(async move {
            let output = local.run(&command, cancel, progress).await;
            let rows = output.lines().map(|line| Row::new(&format!("    {line}"), Look::DIM)).collect();
            let _ = done.send(Done::Rows(rows));
            if is_told {
                let _ = done.send(Done::Told(session, attached::ran(&command, &output)));
            }
            if !is_said {
                let text = "The output is sent with your next prompt (use !! to exclude it)";
                let _ = done.send(Done::Note(Look::DIM, text.to_owned()));
            }
            let _ = done.send(Done::Rest);
        });
    }

    /// Keeps the output of a command for the next prompt of the session in which the user ran it.
    pub(super) fn told(&mut self, session: &str, text: String) {
        if session == self.backend.id() {
            self.told.push(text);
        } else {
            self.note_unsent(vec![text]);
        }
    }

    /// At the end of the chat: what was not sent, also of a command that has not ended.
    pub(super) fn report_unsent(&mut self) {
        let running = self.work.take().and_then(|work| work.told);
        let running = running.map(|command| attached::ran(&command, ""));
        let told = std::mem::take(&mut self.told).into_iter().chain(running).collect();
        self.note_unsent(told);
    }

    /// Says which outputs of commands no model reads, because their session was left.
    pub(super) fn note_unsent(&mut self, told: Vec<String>) {
        for text in told {
            let command = one_line(attached::command(&text), COMMAND_COLUMNS);
            let text =
                format!("The output of `{command}` was not sent: there was no further prompt in its session");
            self.model.note(Look::WARN, &text);
        }
    }

    /// Chooses the colours for this chat.
    pub(super) fn theme(&mut self, name: Option<String>) {
        let Some(name) = name else {
            let item = |theme: Theme| Item {
                value: theme.as_str().to_owned(),
                label: format!("{:<14}", theme.as_str()),
                detail: if theme == self.theme { "now".to_owned() } else { theme.meaning().to_owned() },
            };
            let items = Theme::ALL.into_iter().map(item).collect();
            return self.model.pick(Picker::new(Purpose::Theme, "Choose a theme", items));
        };
        let Some(theme) = Theme::named(&name) else {
            let names = Theme::ALL.map(Theme::as_str).join(", ");
            return self.model.note(Look::WARN, &format!("Unknown theme {name}; available themes: {names}"));
        };
        self.theme = theme;
        self.painter.set_theme(theme);
        let text = match self.has_color {
            true => format!(
                "Theme {theme} in this chat; `greenroom config set theme {theme}` makes it permanent",
                theme = theme.as_str()
            ),
            false => "Colours are off because of NO_COLOR or --color".to_owned(),
        };
        self.model.note(Look::DIM, &text);
    }

    /// Lists the skills and the project's instructions.
    pub(super) fn skills(&self, width: usize) -> Vec<Row> {
        let indent = Row::plain("    ");
        let mut rows = Vec::new();
        for file in &self.instructions {
            let row =
                Row::plain("  ").and(file, Look::BOLD).and("  instructions of the project", Look::PLAIN);
            rows.extend(row.wrap(width, &Row::default(), &indent));
        }
        for skill in &self.skills {
            let row = Row::plain("  ")
                .and(&skill.name, Look::BOLD)
                .and(&format!("  {}", skill.description), Look::PLAIN);
            rows.extend(row.wrap(width, &Row::default(), &indent));
        }
        if self.skills.is_empty() {
            let text = "No skills; a skill is a folder with a SKILL.md, in skills beside your greenroom.yaml or in .greenroom/skills";
            rows.extend(Row::new(text, Look::DIM).wrap(width, &Row::plain("  "), &Row::plain("  ")));
        }
        rows
    }
}

/// Reads a picture from the clipboard, with the program that this system has for it.
async fn picture() -> Result<Vec<u8>, String> {
    let wayland = variable("WAYLAND_DISPLAY").is_some();
    let x11 = variable("DISPLAY").is_some();
    picture_with(wayland, x11).await
}

/// Reads a picture with the programs for these systems.
async fn picture_with(wayland: bool, x11: bool) -> Result<Vec<u8>, String> {
    let programs: [(bool, &str, &[&str]); 3] = [
        (wayland, "wl-paste", &["--no-newline", "--type", "image/png"]),
        (x11, "xclip", &["-selection", "clipboard", "-target", "image/png", "-out"]),
        (cfg!(target_os = "macos"), "pngpaste", &["-"]),
    ];
    let mut is_there = false;
    for (_, program, arguments) in programs.into_iter().filter(|(is_wanted, ..)| *is_wanted) {
        let printed = greenroom_tools::editor::printed(program, arguments);
        let output = tokio::time::timeout(std::time::Duration::from_secs(5), printed).await;
        let Ok(Ok(output)) = output else { continue };
        is_there = true;
        if output.stdout.len() > PICTURE_BYTES_MAX {
            return Err(format!("The clipboard's picture is larger than {} MB", PICTURE_BYTES_MAX >> 20));
        }
        if output.status.success() && output.stdout.starts_with(PNG) {
            return Ok(output.stdout);
        }
    }
    Err(match is_there {
        true => "No picture in the clipboard".to_owned(),
        false => "Pictures cannot be read from the clipboard here: install wl-clipboard (Wayland), xclip (X11) or pngpaste \
                  (macOS), or attach a file with @"
            .to_owned(),
    })
}

/// Keeps a picture as a file, and drops the oldest ones.
fn keep(folder: &Path, bytes: &[u8]) -> Result<PathBuf, String> {
    let wrong = |error: std::io::Error| format!("Error: write {}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(wrong)?;
    let path = folder.join(format!("{}-{}.png", time::stamp(time::now_ms()), time::now_ms() % 1_000));
    write_new(&path, bytes).map_err(wrong)?;
    let mut kept: Vec<PathBuf> =
        std::fs::read_dir(folder).map_err(wrong)?.flatten().map(|file| file.path()).collect();
    kept.sort();
    let old = kept.len().saturating_sub(PICTURES_MAX);
    for path in kept.into_iter().take(old) {
        let _ = std::fs::remove_file(path);
    }
    Ok(path)
}

/// Writes a new file that only the user can read.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    private::create_new(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests;

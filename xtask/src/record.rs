//! `cargo xtask record`: plays a chat in tmux against a scripted model, and records the terminal as an
//! animated SVG, for the documentation.
//!
//! Invariants: nothing is drawn that a terminal did not show; the same script gives the same pictures, except
//! for their times.

mod svg;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::{Cargo, workspace_root};
use svg::Frame;

/// How long text may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two pictures.
const PICTURE: Duration = Duration::from_millis(120);

/// A step of a recording.
enum Step {
    /// Type text as people do.
    Type(&'static str),
    /// Press a key, as tmux names it.
    Press(&'static str),
    /// Wait until this text is visible.
    See(&'static str),
    /// Pause for the reader, in milliseconds.
    Look(u64),
    /// Resize the terminal.
    Size(u16, u16),
}

use Step::{Look, Press, See, Size, Type};

/// A recording: its file, its size, the model's answers, and the steps.
struct Recording {
    path: &'static str,
    columns: u16,
    rows: u16,
    answers: &'static str,
    steps: &'static [Step],
}

const SHORT: Recording = Recording {
    path: "docs/chat-short.svg",
    columns: 84,
    rows: 26,
    answers: r#"answers:
  - calls: [{ tool: read, arguments: { path: src/count.rs } }]
    text: "Let me look at it."
    after_ms: 400
    between_ms: 30
    pieces: 6
  - calls:
      - tool: edit
        arguments:
          path: src/count.rs
          old: "    *count += 1;\n"
          new: "    *count = count.saturating_add(1);\n"
    after_ms: 500
  - text: "The counter **wrapped around** at `u8::MAX`; it stops there now:\n\n```rust\npub fn add(count: &mut u8) {\n    *count = count.saturating_add(1);\n}\n```\n\n- callers need no change\n- a test for the edge is worth adding\n"
    after_ms: 500
    between_ms: 25
    pieces: 60
"#,
    steps: &[
        Look(800),
        Type("Why does the counter jump back to 0? Fix it."),
        Press("Enter"),
        See("worth adding"),
        Look(2_500),
    ],
};

const LONG: Recording = Recording {
    path: "docs/chat.svg",
    columns: 84,
    rows: 28,
    answers: r#"answers:
  - calls: [{ tool: list, arguments: { path: . } }]
    text: "I will look at what is there."
    after_ms: 300
    between_ms: 30
    pieces: 8
  - calls: [{ tool: read, arguments: { path: README.md } }, { tool: read, arguments: { path: src/count.rs } }]
    after_ms: 1500
  - text: "`count.rs` has **one** function. In short, as you asked: it adds one, and wraps around at `u8::MAX`.\n"
    after_ms: 400
    between_ms: 30
    pieces: 30
  - text: "Next I would write a test for the edge.\n"
    after_ms: 400
    between_ms: 30
    pieces: 12
  - calls: [{ tool: ask_user, arguments: { question: "At the edge, shall it stop or fail?", choices: [stop, fail, ask again later] } }]
    after_ms: 300
  - text: "It will *fail*, then. Here is a long list of what that means:\n\n1. callers get an error\n2. the error says which count it was\n3. the tests of the callers change\n4. the documentation changes\n5. a line in the changelog\n6. the version goes up\n7. and so on, and so on, and so on, and so on, and so on\n"
    after_ms: 300
    between_ms: 60
    pieces: 120
  - text: "Summary: the counter in src/count.rs wraps around; it shall fail at the edge instead."
    after_ms: 300
"#,
    steps: &[
        Look(600),
        Type("What does this project do?"),
        Press("Enter"),
        See("list ."),
        Type("in short, please"),
        Press("Enter"),
        Look(500),
        Type("and what would you do next?"),
        Press("M-Enter"),
        Look(600),
        See("test for the edge"),
        Look(1_200),
        Type("do it"),
        Press("Enter"),
        See("shall it stop or fail"),
        Look(900),
        Press("Down"),
        Look(400),
        Press("Down"),
        Look(700),
        Press("Enter"),
        See("the documentation"),
        Press("Escape"),
        See("Interrupted"),
        Look(1_500),
        Type("/cont"),
        Look(900),
        Press("C-u"),
        Type("/compact the edge --keep 40"),
        Press("Enter"),
        See("/undo-compact"),
        Look(1_500),
        Type("/context"),
        Press("Enter"),
        See("free"),
        Look(2_000),
        Size(50, 28),
        Look(2_000),
        Size(84, 28),
        Look(1_000),
    ],
};

/// Makes the recordings.
pub(crate) fn record(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    if let Some(argument) = arguments.next() {
        bail!("record takes no arguments, but got `{argument}`");
    }
    if !Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success()) {
        bail!("tmux is not installed; recordings require it");
    }
    Cargo::new(&["build", "--quiet", "-p", "greenroom-cli"]).run()?;
    for recording in [&SHORT, &LONG] {
        let frames = play(recording).with_context(|| format!("record {}", recording.path))?;
        let svg = svg::draw(&frames, recording.columns, recording.rows);
        let path = workspace_root().join(recording.path);
        std::fs::write(&path, &svg).with_context(|| format!("write {}", path.display()))?;
        println!("{}: {} pictures, {} KiB", recording.path, frames.len(), svg.len() / 1024);
    }
    Ok(())
}

/// A terminal and a model, which end with it, and their working folder.
struct Stage {
    folder: PathBuf,
    model: Child,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
        let _ = self.model.kill();
        let _ = self.model.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    fn new(recording: &Recording) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("greenroom-record-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("counter/src"))?;
        let lines =
            (1..=160).map(|number| format!("- rule {number}: what is counted once is not counted again\n"));
        let readme = format!("# Counter\n\nCounts things.\n\n{}", lines.collect::<String>());
        std::fs::write(folder.join("counter/README.md"), readme)?;
        let code = "//! Counts.\n\npub fn add(count: &mut u8) {\n    *count += 1;\n}\n";
        std::fs::write(folder.join("counter/src/count.rs"), code)?;
        let script = folder.join("answers.yaml");
        std::fs::write(&script, recording.answers)?;
        let mut model = Command::new(binary())
            .arg("simulate")
            .arg("--script")
            .arg(&script)
            .env("GREENROOM_DATA_DIR", folder.join("none"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start the simulated model")?;
        let output = model.stdout.take().context("its output is piped")?;
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
        let stage = Self { folder, model };
        let url = line.trim();
        let home = stage.folder.display();
        let command = format!(
            "cd '{home}/counter'; env -i HOME='{home}' TERM=tmux-256color GREENROOM_DATA_DIR='{home}/store' '{}' chat \
             --base-url '{url}' --model gpt-5.5 --allow-write",
            binary().display()
        );
        let (columns, rows) = (recording.columns.to_string(), recording.rows.to_string());
        stage.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, &command])?;
        Ok(stage)
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.folder.join("tmux"))
            .args(["-f", "/dev/null"])
            .args(arguments)
            .env_remove("TMUX")
            .output()?;
        if !output.status.success() {
            bail!("tmux {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn picture(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p", "-e"])
    }
}

/// Plays a recording, and returns the pictures that differ from the previous one.
fn play(recording: &Recording) -> Result<Vec<Frame>> {
    let stage = Stage::new(recording)?;
    let began = Instant::now();
    let mut frames: Vec<Frame> = Vec::new();
    let mut take = |stage: &Stage| -> Result<String> {
        let picture = stage.picture()?;
        if frames.last().is_none_or(|last| last.picture != picture) {
            frames.push(Frame { at: began.elapsed(), picture: picture.clone() });
        }
        Ok(picture)
    };
    wait(&stage, "›", &mut take)?;
    for step in recording.steps {
        match step {
            Type(text) => {
                for c in text.chars() {
                    stage.tmux(&["send-keys", "-l", "--", &c.to_string()])?;
                    pause(Duration::from_millis(30));
                    take(&stage)?;
                }
            }
            Press(key) => drop(stage.tmux(&["send-keys", key])?),
            See(text) => wait(&stage, text, &mut take)?,
            Look(ms) => {
                let until = Instant::now() + Duration::from_millis(*ms);
                while Instant::now() < until {
                    take(&stage)?;
                    pause(PICTURE);
                }
            }
            Size(columns, rows) => {
                drop(stage.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()])?);
            }
        }
    }
    frames.push(Frame { at: began.elapsed(), picture: stage.picture()? });
    Ok(frames)
}

fn wait(stage: &Stage, text: &str, take: &mut impl FnMut(&Stage) -> Result<String>) -> Result<()> {
    let began = Instant::now();
    loop {
        let picture = take(stage)?;
        if svg::text(&picture).contains(text) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("{text:?} did not appear:\n{}", svg::text(&picture));
        }
        pause(PICTURE);
    }
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Returns the path of `greenroom`, built beside this program.
fn binary() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    this.with_file_name("greenroom")
}

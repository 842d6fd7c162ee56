//! Runs cargo: its output is shown while it runs, and kept.
//!
//! Invariants: a command has no input, runs in the workspace's root, and is the cargo that started us.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A cargo command.
pub(crate) struct Cargo {
    line: String,
    command: Command,
}

impl Cargo {
    pub(crate) fn new(arguments: &[&str]) -> Self {
        #[expect(clippy::disallowed_methods, reason = "cargo sets its own path there")]
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(arguments).current_dir(workspace_root()).stdin(Stdio::null());
        Self { line: format!("cargo {}", arguments.join(" ")), command }
    }

    /// Sets an environment variable for the command.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes environment variables that lead to a real provider or to a user's data.
    pub(crate) fn without_keys(mut self) -> Self {
        for (name, _) in std::env::vars_os() {
            let is_ours = name.to_string_lossy().starts_with("GREENROOM_");
            if is_ours || name.to_string_lossy().starts_with("OPENAI_") {
                self.command.env_remove(name);
            }
        }
        self
    }

    /// Whether it succeeds, without showing output: for checks such as `cargo nextest --version`.
    pub(crate) fn succeeds(mut self) -> bool {
        let status = self.command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs it, and returns the text of both outputs.
    pub(crate) fn run(mut self) -> Result<String> {
        println!("$ {}", self.line);
        let (reader, writer) = std::io::pipe().context("make a pipe")?;
        let errors = writer.try_clone().context("make a pipe")?;
        let mut child = self
            .command
            .stdout(writer)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start `{}`", self.line))?;
        // The command holds its copies of the pipe's end; with them open, reading would never end.
        drop(self.command);
        let mut said = String::new();
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).context("read the output")? > 0 {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            said.push_str(&text);
            line.clear();
        }
        std::io::stdout().flush().context("write the output")?;
        let status = child.wait().with_context(|| format!("wait for `{}`", self.line))?;
        if !status.success() {
            bail!("`{}` ended with {status}", self.line);
        }
        Ok(said)
    }
}

/// Returns the root folder of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace").to_owned()
}

//! A program of the user's own that serves tools over its standard streams, such as an MCP server.
//!
//! Invariants: the program is the user's and never a model's, so it has the user's rights and runs in no sandbox; it
//! gets exactly the given environment. When [`ServerProcess`] ends or is dropped, the program and all processes that it
//! started end. With a [`Helper`] that holds for the death of this process too, and the program counts as
//! [started by a tool](crate::origin): it cannot answer approvals.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::helper::{Helper, Role};
use crate::process::{EndOfTree, MARKER, command_id, on_lasting_thread};

/// A program to start.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program: a path, or a name that is looked up in the `PATH` of `environment`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its working folder.
    pub folder: PathBuf,
    /// Its complete environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The helper that ends the program together with this process.
    pub helper: Option<Helper>,
}

/// The streams of a program that was started.
#[derive(Debug)]
pub struct Streams {
    /// Its standard input.
    pub input: ChildStdin,
    /// Its standard output.
    pub output: ChildStdout,
    /// Its standard error.
    pub errors: ChildStderr,
}

/// A running program.
#[derive(Debug)]
pub struct ServerProcess {
    // Dropped before the child, which would end the guard first.
    processes: EndOfTree,
    child: Child,
}

impl ServerProcess {
    /// Starts a program.
    ///
    /// # Errors
    /// It does not exist, or cannot be started.
    pub fn start(program: &Program) -> std::io::Result<(Self, Streams)> {
        let found = program.find()?;
        let id = command_id();
        let mut command = match &program.helper {
            Some(helper) => {
                // Standard input is the program's, so the helper's own file is named by its number. It is closed when
                // the helper starts.
                let mut command = Command::new(helper.path());
                command.args(Role::Serve.arguments(std::process::id())).arg(&found);
                command
            }
            None => {
                let mut command = Command::new(&found);
                command.process_group(0);
                command
            }
        };
        command
            .args(&program.arguments)
            .current_dir(&program.folder)
            .env_clear()
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .env(MARKER, &id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = on_lasting_thread(move || command.spawn())??;
        let processes = EndOfTree::of(&child, &id, program.helper.is_some());
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let streams =
            input.zip(output).zip(errors).map(|((input, output), errors)| Streams { input, output, errors });
        Ok((Self { processes, child }, streams.expect("all are piped")))
    }

    /// Waits until the program has ended, at most for `grace`, and then ends it with all processes that it started. Its
    /// streams should be closed before: that is how it is told to end.
    pub async fn end(mut self, grace: Duration) {
        let ended = tokio::time::timeout(grace, self.child.wait()).await;
        // A helper that was killed has ended nobody.
        if ended.is_ok_and(|ended| ended.is_ok_and(|status| status.code().is_some())) {
            self.processes.root_has_ended();
        }
        // Searching all processes blocks for some milliseconds.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

impl Program {
    /// Returns the path of the program.
    fn find(&self) -> std::io::Result<PathBuf> {
        use std::io::{Error, ErrorKind};
        let shown = self.program.display();
        if !self.folder.is_dir() {
            let text = format!("its folder {} does not exist", self.folder.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let missing = |text: String| Err(Error::new(ErrorKind::NotFound, text));
        if Path::new(&self.program).components().count() > 1 {
            let path = self.folder.join(&self.program);
            return if is_program(&path) { Ok(path) } else { missing(format!("{shown} is not a program")) };
        }
        let search =
            self.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let folders =
            std::env::split_paths(search.unwrap_or_else(|| OsStr::new("/usr/local/bin:/usr/bin:/bin")));
        let found =
            folders.map(|folder| self.folder.join(folder).join(&self.program)).find(|path| is_program(path));
        found.map_or_else(|| missing(format!("there is no program {shown} in PATH")), Ok)
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;

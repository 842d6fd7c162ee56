//! `grep`: finds lines that match a regular expression.
//!
//! Invariants: matching takes linear time for any pattern; a file is searched as `read` shows it, whatever its encoding;
//! binary and very large files are skipped, and large ones are reported.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;

use globset::{GlobBuilder, GlobMatcher};
use greenroom_kernel::redact::Redactor;
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::encoding::{self, Encoding};
use crate::output::{BODY_BYTES_MAX, BODY_LINES_MAX, cap_line};
use crate::{FunctionTool, ToolContext, ToolOutput, ToolsError, Workspace};

/// The longest part of a line that is shown, in bytes.
const LINE_BYTES_MAX: usize = 500;
/// The largest file that is searched, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The maximum number of context lines around a match.
const CONTEXT_MAX: usize = 20;

/// Searches the files of the workspace for lines that match a regular expression. A match is shown as
/// `path:line: text`, a line of context as `path-line- text`. What `.gitignore` names is left out.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Grep {
    /// The regular expression (Rust syntax, without look-around and back references).
    pattern: String,
    /// The file or folder to search, relative to the workspace. Default: all of it.
    path: Option<String>,
    /// Which files, e.g. `*.rs` or `src/**/*.{ts,tsx}`. Default: all.
    glob: Option<String>,
    /// Whether upper and lower case are the same. Default: false.
    #[serde(default)]
    ignore_case: bool,
    /// How many lines to show before and after each match. Default: 0.
    #[serde(default)]
    context: usize,
}

pub(super) fn tool(workspace: Workspace) -> FunctionTool {
    crate::tool("grep", move |arguments: Grep, context: ToolContext| {
        let (workspace, redactor) = (workspace.clone(), context.redactor.clone());
        async move {
            workspace.blocking(&context.cancel, move |w, cancel| grep(w, &arguments, cancel, &redactor)).await
        }
    })
    .read_only()
    .shows_own_files()
    .needs_exact_arguments()
}

fn grep(
    workspace: &Workspace,
    arguments: &Grep,
    cancel: &CancellationToken,
    redactor: &Redactor,
) -> Result<ToolOutput, ToolsError> {
    let start = workspace.locate(arguments.path.as_deref().unwrap_or("."))?;
    let glob = arguments.glob.as_deref().map(matcher).transpose()?;
    let mut search = Search {
        regex: RegexBuilder::new(&arguments.pattern)
            .case_insensitive(arguments.ignore_case)
            .size_limit(4 << 20)
            .build()
            .map_err(|error| ToolsError::Refused(format!("the pattern is not valid: {error}")))?,
        redactor: redactor.clone(),
        context: arguments.context.min(CONTEXT_MAX),
        text: String::new(),
        lines: 0,
        matches: 0,
        full: false,
        too_large: 0,
    };
    if workspace.is_directory(&start)? {
        workspace.walk(&start, usize::MAX, cancel, &mut |found| {
            let wanted = glob.as_ref().is_none_or(|glob| glob.is_match(found.path.as_str()));
            // A file that cannot be opened is treated as one that does not match.
            if found.kind == FileType::RegularFile
                && wanted
                && let Ok((file, _)) = found.open()
            {
                search.file(found.path.as_str(), file, cancel)?;
            }
            Ok(if search.full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    } else {
        let (file, _) = workspace.open_file(&start)?;
        search.file(start.as_str(), file, cancel)?;
    }
    Ok(ToolOutput::text(search.finish()))
}

/// Compiles a glob. Without a slash it matches the file name, with one the whole path.
fn matcher(glob: &str) -> Result<GlobMatcher, ToolsError> {
    let anchored = glob.strip_prefix("./").or_else(|| glob.strip_prefix('/')).unwrap_or(glob);
    let whole = if glob.contains('/') { anchored.to_owned() } else { format!("**/{anchored}") };
    let built = GlobBuilder::new(&whole).literal_separator(true).build();
    built.map(|glob| glob.compile_matcher()).map_err(|error| ToolsError::Refused(format!("`glob`: {error}")))
}

/// Returns the content of a text file in UTF-8; `None` if it is binary.
fn text(bytes: Vec<u8>) -> Option<Vec<u8>> {
    const HEAD_BYTES: usize = 8 * 1024;
    let is_declared = Encoding::declared(&bytes).is_some();
    if !is_declared && bytes.iter().take(HEAD_BYTES).any(|byte| *byte == 0) {
        return None;
    }
    if is_declared || (!bytes.contains(&0) && std::str::from_utf8(&bytes).is_err()) {
        return encoding::decode(bytes).map(|(_, text)| text.into_bytes());
    }
    Some(bytes)
}

struct Search {
    regex: Regex,
    redactor: Redactor,
    context: usize,
    text: String,
    lines: usize,
    matches: usize,
    full: bool,
    too_large: usize,
}

impl Search {
    fn file(&mut self, path: &str, file: File, cancel: &CancellationToken) -> Result<(), ToolsError> {
        let mut bytes = Vec::new();
        if file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).is_err() {
            return Ok(());
        }
        if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
            self.too_large += 1;
            return Ok(());
        }
        let Some(bytes) = text(bytes) else { return Ok(()) };
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        if lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
        // Index of the first line not yet shown.
        let mut shown = 0;
        let mut context_until = 0;
        for (index, line) in lines.iter().enumerate() {
            if index % 4_096 == 0 && cancel.is_cancelled() {
                return Err(ToolsError::Cancelled);
            }
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if self.regex.is_match(line) {
                self.matches += 1;
                let from = index.saturating_sub(self.context).max(shown);
                if self.context > 0 && !self.text.is_empty() && (from > shown || shown == 0) {
                    self.push("--");
                }
                for (before, line) in lines.iter().enumerate().take(index).skip(from) {
                    self.show(path, before, line, '-');
                }
                self.show(path, index, line, ':');
                shown = index + 1;
                context_until = shown + self.context;
            } else if index < context_until {
                self.show(path, index, line, '-');
                shown = index + 1;
            }
            if self.full {
                return Ok(());
            }
        }
        Ok(())
    }

    fn show(&mut self, path: &str, index: usize, line: &[u8], mark: char) {
        let text =
            cap_line(String::from_utf8_lossy(line).trim_end_matches('\r'), LINE_BYTES_MAX, &self.redactor);
        self.push(&format!("{path}{mark}{}{mark} {text}", index + 1));
    }

    fn push(&mut self, line: &str) {
        if self.lines >= BODY_LINES_MAX || self.text.len() + line.len() >= BODY_BYTES_MAX {
            self.full = true;
            return;
        }
        self.lines += 1;
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn finish(mut self) -> String {
        if self.matches == 0 {
            self.text.push_str("no line matches\n");
        }
        if self.full {
            self.text
                .push_str("[... more matches left out; search a subfolder, or for something rarer ...]\n");
        }
        if self.too_large > 0 {
            let count = self.too_large;
            self.text.push_str(&format!("[files larger than {FILE_BYTES_MAX} bytes passed over: {count}]\n"));
        }
        self.text
    }
}

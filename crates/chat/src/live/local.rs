//! The user's own files and commands: files and images in prompts, and `!command`.
//!
//! Invariants: files are read through the tools, so only within their workspace and by its rules, except for
//! an image that the user names; commands are the user's own, and run whatever the model may do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::Image;
use greenroom_files as files;
use greenroom_kernel::{Block, ToolStatus};
use greenroom_server::operations::ImageData;
use greenroom_tools::builtin::bash::{self, Containment, Helper};
use greenroom_tools::sandbox::Sandbox;
use greenroom_tools::{Progress, Registry, ToolContext, Workspace, builtin};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::attached;
use crate::program::Environment;

/// How many levels of folders are searched for a file name.
const DEPTH: usize = 12;
/// How many files are searched for a name.
const FILES_MAX: usize = 200_000;
/// How long a list of files is reused: the user types letter by letter.
const KNOWN: Duration = Duration::from_secs(3);
/// The maximum number of names offered.
const OFFERED_MAX: usize = 50;
/// The largest image that is sent, in bytes.
const IMAGE_BYTES_MAX: u64 = 5 * 1024 * 1024;

/// Access to the user's own files and commands.
pub(crate) struct Local {
    folder: PathBuf,
    workspace: Workspace,
    files: Registry,
    /// The folder of the user's data.
    data_dir: PathBuf,
    /// The workspace's files, and when they were listed.
    known: tokio::sync::Mutex<Option<(Instant, Arc<Vec<String>>)>>,
}

/// A prompt with its attachments.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) text: String,
    pub(super) images: Vec<ImageData>,
    /// The attachments that were omitted, with the reasons.
    pub(super) notes: Vec<String>,
}

impl Local {
    /// Creates the access for the chat's folder.
    pub(crate) fn new(environment: &Environment) -> Self {
        let (folder, data_dir) = (environment.folder.clone(), environment.data_dir.clone());
        Self { folder, data_dir, ..Self::of(environment.workspace.clone()) }
    }

    /// Creates the access for a workspace.
    pub(super) fn of(workspace: Workspace) -> Self {
        let files = builtin::read_only(workspace.clone());
        Self {
            folder: workspace.root().to_owned(),
            workspace,
            files,
            data_dir: PathBuf::new(),
            known: Default::default(),
        }
    }

    /// Returns the folder of the user's data.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns the branch of the folder's repository.
    pub(crate) fn git_branch(&self) -> Option<String> {
        let repository =
            self.folder.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
        let head = String::from_utf8(files::read(&repository.join("HEAD"), 1_024).ok()?).ok()?;
        let branch = head.trim().strip_prefix("ref: refs/heads/")?;
        Some(branch.chars().take(40).collect())
    }

    /// Runs a command, and returns its output.
    pub(crate) async fn run(&self, command: &str, cancel: CancellationToken, progress: Progress) -> String {
        let containment = tokio::task::spawn_blocking(Containment::detect).await.ok();
        let options =
            // It is the user's own command.
            bash::Options { containment, helper: Helper::this_program().ok(), sandbox: Sandbox::off(), ..Default::default() };
        let tools = builtin::files_and_shell(self.workspace.clone(), options);
        let mut context = ToolContext::new("chat", "own");
        (context.cancel, context.progress) = (cancel, progress);
        call_in(&tools, "bash", json!({ "command": command }), context)
            .await
            .unwrap_or_else(|problem| problem)
    }

    /// Returns the files whose paths contain the typed text, best matches first.
    pub(crate) async fn matching(&self, typed: &str) -> Vec<String> {
        let wanted = typed.replace("\\ ", " ").to_lowercase();
        let files = self.known_files().await;
        let mut found: Vec<&String> =
            files.iter().filter(|path| path.to_lowercase().contains(&wanted)).collect();
        if found.is_empty() {
            found = files.iter().filter(|path| has_in_order(&path.to_lowercase(), &wanted)).collect();
        }
        // Names that start with the text come first, then short paths.
        found.sort_by_cached_key(|path| {
            let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
            (!name.starts_with(&wanted), !path.to_lowercase().starts_with(&wanted), path.len())
        });
        found.into_iter().take(OFFERED_MAX).map(|path| path.replace(' ', "\\ ")).collect()
    }

    async fn known_files(&self) -> Arc<Vec<String>> {
        let mut known = self.known.lock().await;
        if let Some((at, files)) = &*known
            && at.elapsed() < KNOWN
        {
            return Arc::clone(files);
        }
        let workspace = self.workspace.clone();
        let listed = tokio::task::spawn_blocking(move || workspace.files(DEPTH, FILES_MAX)).await;
        let mut files = listed.ok().and_then(Result::ok).unwrap_or_default();
        // Such a name cannot be typed.
        files.retain(|path| !path.contains(char::is_control));
        let files = Arc::new(files);
        *known = Some((Instant::now(), Arc::clone(&files)));
        files
    }

    /// Attaches the files and images that are mentioned with `@` in `names`. A mention without a readable
    /// file remains text, and the user is told. Only typed text may name images outside the workspace: a
    /// project's command must not read them.
    pub(super) async fn with_files(&self, text: &str, names: &str, is_typed: bool) -> Whole {
        let mut whole = Whole { text: text.to_owned(), ..Whole::default() };
        for path in mentioned(names) {
            let is_picture = Path::new(&path).extension().is_some_and(|ending| {
                let ending = ending.to_string_lossy().to_ascii_lowercase();
                matches!(ending.as_str(), "png" | "jpg" | "jpeg" | "gif" | "webp")
            });
            if is_picture {
                match self.image(&path, is_typed).await {
                    Ok(Some(image)) => {
                        whole.images.push(ImageData::from(&image));
                        continue;
                    }
                    Ok(None) => {}
                    Err(reason) => {
                        whole.notes.push(format!("@{path} is sent as text: {reason}"));
                        continue;
                    }
                }
            }
            match call(&self.files, "read", json!({ "path": path })).await {
                Ok(content) => whole.text.push_str(&attached::write(&path, &content)),
                Err(reason) => whole.notes.push(format!("@{path} is sent as text: {}", reason.trim())),
            }
        }
        whole
    }

    async fn image(&self, path: &str, is_typed: bool) -> Result<Option<Image>, String> {
        let (place, root) = (self.folder.join(path), self.workspace.root().to_owned());
        let path = path.to_owned();
        let reading = move || {
            let is_inside = place.canonicalize().is_ok_and(|place| place.starts_with(&root));
            if !is_inside && !is_typed {
                return Ok(None);
            }
            let Ok(metadata) = std::fs::metadata(&place) else { return Ok(None) };
            if !metadata.is_file() {
                return Err(format!("{path} is not a file"));
            }
            if metadata.len() > IMAGE_BYTES_MAX {
                return Err(format!("{path} is larger than {} MB", IMAGE_BYTES_MAX / 1024 / 1024));
            }
            let bytes = std::fs::read(&place).map_err(|error| format!("read {path}: {error}"))?;
            Image::new(bytes).map(Some).map_err(|error| format!("{path}: {error}"))
        };
        tokio::task::spawn_blocking(reading).await.map_err(|error| error.to_string())?
    }
}

/// Whether a text has these characters in this order.
fn has_in_order(text: &str, wanted: &str) -> bool {
    let mut chars = text.chars();
    wanted.chars().all(|c| chars.any(|found| found == c))
}

/// Returns the paths after `@` at the starts of words; a blank in a path is written `\ `.
fn mentioned(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        if c == '@' && (before.is_whitespace() || matches!(before, '(' | '[' | '{' | '<' | '"' | '\'' | '`'))
        {
            let mut path = String::new();
            while let Some(next) = chars.next_if(|next| !next.is_whitespace()) {
                match (next, chars.peek()) {
                    ('\\', Some(' ')) => path.extend(chars.next()),
                    _ => path.push(next),
                }
            }
            let path = path
                .trim_end_matches([',', '.', ':', ';', '?', '!', ')', ']', '}', '>', '"', '\'', '`'])
                .to_owned();
            if !path.is_empty() && !found.contains(&path) {
                found.push(path);
            }
            before = ' ';
            continue;
        }
        before = c;
    }
    found
}

async fn call(tools: &Registry, name: &str, arguments: Value) -> Result<String, String> {
    call_in(tools, name, arguments, ToolContext::new("chat", "own")).await
}

async fn call_in(
    tools: &Registry,
    name: &str,
    arguments: Value,
    context: ToolContext,
) -> Result<String, String> {
    let tool = tools.get(name).ok_or_else(|| format!("there is no tool {name}"))?;
    let output = tool.call(arguments, context).await;
    let text: Vec<&str> = output
        .content
        .iter()
        .filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            Block::Image(_) | _ => None,
        })
        .collect();
    let text = text.join("\n");
    if output.status == ToolStatus::Ok { Ok(text) } else { Err(text) }
}

#[cfg(test)]
mod tests;

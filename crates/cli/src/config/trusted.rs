//! Trust in the files of a project: whether its instructions, skills, commands and texts may reach a model.
//!
//! The user's answer is kept beside their own configuration, where neither the tools of a model nor commands in a sandbox
//! can write. Outside of a sandbox a command could, so an answer counts only with a mark that is computed with a key of
//! the user's, which commands do not have. Without any key the mark proves nothing, and the folder's protection remains.
//!
//! Invariants: an answer is for one folder, by its path without links; the newest one counts; no file of a project can
//! give it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use greenroom_files::{self as files, private};
use parking_lot::Mutex;

use super::Config;
use super::digest;
use super::folder;
use super::layers::{expanded, own_file};
use super::stamp::Stamp;
use super::surroundings::Surroundings;
use crate::error::usage;

/// The names that mark a project's root.
pub(crate) const ROOT_MARKS: [&str; 3] = [".git", ".hg", ".jj"];
/// The names of a project's instructions.
pub(crate) const INSTRUCTIONS: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
/// The folders of a project's skills.
pub(crate) const SKILLS: [&str; 3] = [".greenroom/skills", ".agents/skills", ".claude/skills"];
/// The folders of a project's commands.
const COMMANDS: [&str; 2] = [".greenroom/commands", ".claude/commands"];
/// The maximum number of folders that are searched.
pub(crate) const FOLDERS_MAX: usize = 32;
/// The file with the answers, in the folder of the user's configuration.
const ANSWERS: &str = "trusted-folders";
/// The maximum number of bytes that are read of it.
const BYTES_MAX: u64 = 1 << 20;

/// Returns the root of the project that contains this folder, an absolute path without links: the folder
/// itself if nothing marks a root.
pub(crate) fn root_of(folder: &Path) -> &Path {
    let is_root = |folder: &&Path| ROOT_MARKS.iter().any(|mark| folder.join(mark).exists());
    folder.ancestors().take(FOLDERS_MAX).find(is_root).unwrap_or(folder)
}

/// What the user has said about the files of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// They may be read.
    Trusted,
    /// They may not.
    Refused,
    /// Nothing.
    NotAsked,
}

/// The trust in the project of one folder. Clones are the same.
#[derive(Clone)]
pub(crate) struct FolderTrust(Arc<Inner>);

struct Inner {
    root: PathBuf,
    folder: PathBuf,
    /// Whether the user's configuration names the folder.
    is_listed: bool,
    /// The file with the answers; `None` if the user has no folder for it.
    answers: Option<PathBuf>,
    /// The keys with which a mark may be computed.
    keys: Vec<String>,
    known: Mutex<Option<(Option<Stamp>, Answer)>>,
}

impl FolderTrust {
    /// Creates the trust in the project of `folder`, by the user's configuration and answers.
    pub(crate) fn of(config: &Config, folder: &Path, surroundings: &Surroundings) -> Self {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let root = root_of(&folder).to_owned();
        let listed = config.trusted_folders.iter();
        let is_listed = listed
            .filter_map(|listed| expanded(listed, surroundings)?.canonicalize().ok())
            .any(|listed| listed == folder || listed == root);
        let variables = config.providers.values().filter_map(|provider| provider.api_key_env.as_deref());
        let keys = variables.filter_map(|name| surroundings.variable(name)).collect();
        let answers = own_file(surroundings).map(|own| own.with_file_name(ANSWERS));
        Self(Arc::new(Inner { root, folder, is_listed, answers, keys, known: Mutex::default() }))
    }

    /// The project's root.
    pub(crate) fn root(&self) -> &Path {
        &self.0.root
    }

    /// Whether the project's files may be read now.
    pub(crate) fn is_given(&self) -> bool {
        self.answer() == Answer::Trusted
    }

    /// Returns what the user has said, in their configuration or to a question.
    pub(crate) fn answer(&self) -> Answer {
        if self.0.is_listed { Answer::Trusted } else { self.kept() }
    }

    /// Returns the newest answer that was kept.
    fn kept(&self) -> Answer {
        let inner = &*self.0;
        let Some(path) = &inner.answers else { return Answer::NotAsked };
        let stamp = Stamp::of(path);
        let mut known = inner.known.lock();
        if let Some((_, answer)) = known.as_ref().filter(|(before, _)| *before == stamp) {
            return *answer;
        }
        let text = files::read(path, BYTES_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let marks = |answer| inner.keys().map(|key| mark(key, &inner.root, answer)).collect::<Vec<_>>();
        let (trusted, refused) = (marks(Answer::Trusted), marks(Answer::Refused));
        let newest = text.lines().rev().find_map(|line| {
            let mark = line.split(' ').next()?;
            let is_of = |marks: &[String]| marks.iter().any(|known| known == mark);
            if is_of(&trusted) {
                return Some(Answer::Trusted);
            }
            is_of(&refused).then_some(Answer::Refused)
        });
        let answer = newest.unwrap_or(Answer::NotAsked);
        *known = Some((stamp, answer));
        answer
    }

    /// Keeps an answer.
    ///
    /// # Errors
    /// It cannot be kept.
    pub(crate) fn keep(&self, answer: Answer) -> Result<()> {
        let inner = &*self.0;
        let Some(path) = &inner.answers else {
            return Err(usage("there is no folder for your configuration: set HOME or XDG_CONFIG_HOME"));
        };
        let failed = || format!("write {}", path.display());
        let _lock = folder::make_room(path)?;
        let mut file = private::append(path).with_context(failed)?;
        let lines: String = inner
            .keys()
            .map(|key| format!("{} {:?}\n", mark(key, &inner.root, answer), inner.root))
            .collect();
        file.write_all(lines.as_bytes()).with_context(failed)?;
        *inner.known.lock() = None;
        Ok(())
    }

    /// Returns the project's files for agents, as paths in the project.
    pub(crate) fn files(&self) -> Vec<String> {
        let Inner { root, folder, .. } = &*self.0;
        let above: Vec<&Path> = folder.ancestors().take_while(|above| above.starts_with(root)).collect();
        let instructions = above.iter().rev().flat_map(|above| INSTRUCTIONS.map(|name| above.join(name)));
        let others = SKILLS.into_iter().chain(COMMANDS).map(|name| folder.join(name));
        let found = instructions.chain(others).filter(|path| path.exists());
        found.map(|path| path.strip_prefix(root).unwrap_or(&path).display().to_string()).collect()
    }

    /// Returns why files of the project are not read; `None` if they are, or if there are none.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.is_given() {
            return None;
        }
        let files = self.files();
        (!files.is_empty()).then(|| {
            format!(
                "{} not read: the folder is not trusted; `greenroom config trust --folder {root}` trusts it",
                files.join(", "),
                root = self.root().display()
            )
        })
    }
}

impl Inner {
    /// Returns the keys with which marks are computed: without any, an empty one.
    fn keys(&self) -> impl Iterator<Item = &str> {
        let none = self.keys.is_empty().then_some("");
        self.keys.iter().map(String::as_str).chain(none)
    }
}

/// Whether the user trusts the texts of the `greenroom.yaml` in the current folder: the configuration must name this
/// folder itself, not only one above it.
pub(super) fn trusts_texts(own: &Config, surroundings: &Surroundings) -> bool {
    let Ok(here) = surroundings.path(".").canonicalize() else { return false };
    let is_here = |listed: &String| {
        expanded(listed, surroundings)?.canonicalize().ok().filter(|listed| *listed == here)
    };
    own.trusted_folders.iter().any(|listed| is_here(listed).is_some())
        || FolderTrust::of(own, &here, surroundings).kept() == Answer::Trusted
}

/// Returns the mark of an answer about a folder.
fn mark(key: &str, root: &Path, answer: Answer) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let said: &[u8] = match answer {
        Answer::Trusted => b"greenroom: the files of this folder may be read: ",
        Answer::Refused | Answer::NotAsked => b"greenroom: the files of this folder may not be read: ",
    };
    digest::mark(key, &[said, root.as_os_str().as_bytes()].concat())
}

#[cfg(test)]
mod tests;

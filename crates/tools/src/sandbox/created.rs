//! Repositories that a command creates: what git would run in them is disarmed.
//!
//! Invariants: a repository that was there before is left alone, and so is all that git does not run. A hook is not
//! deleted: it loses the right to be executed, so that git passes over it. A configuration that can name programs is moved
//! aside. No link is followed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::git::{OWN_CONFIGURATION, kind, plain, text, visit};

/// After how many entries the search ends. It is less than the first one's, after every command.
const ENTRIES_MAX: usize = 100_000;
/// The ending of a file that was moved aside.
const ASIDE: &str = "not-used";
/// The keys of a new repository's configuration that name no program, by section.
const HARMLESS: [(&str, &[&str]); 8] = [
    (
        "core",
        &[
            "repositoryformatversion",
            "filemode",
            "bare",
            "logallrefupdates",
            "ignorecase",
            "precomposeunicode",
            "symlinks",
            "autocrlf",
        ],
    ),
    ("remote", &["url", "fetch", "pushurl", "tagopt"]),
    ("branch", &["remote", "merge", "rebase"]),
    ("user", &["name", "email"]),
    ("init", &["defaultbranch"]),
    ("submodule", &["url", "active"]),
    ("extensions", &["objectformat", "refstorage", "compatobjectformat"]),
    ("pull", &["rebase", "ff"]),
];

/// The repositories of a workspace before a command.
#[derive(Debug)]
pub(super) struct Repositories {
    pub(super) root: PathBuf,
    /// The `.git` of each; of a bare one, the folder itself.
    pub(super) known: Vec<PathBuf>,
}

impl Repositories {
    /// Disarms the repositories that are new. Returns what was done, for the model.
    pub(super) fn disarm(&self) -> Vec<String> {
        let mut found = Vec::new();
        visit(&self.root, ENTRIES_MAX, |_, path| {
            let is_repository = !path.ends_with(OWN_CONFIGURATION) && kind(path).is_some();
            if is_repository && !self.known.iter().any(|known| known == path) {
                found.push(path.to_owned());
            }
        });
        let mut done = Vec::new();
        for git in found {
            let metadata = kind(&git);
            let folder = match &metadata {
                Some(metadata) if metadata.is_dir() => Some(git.clone()),
                Some(metadata) if metadata.is_file() => self.named_by(&git),
                // A link, or something that git does not use.
                Some(_) | None => None,
            };
            let Some(folder) = folder else { continue };
            disarm(&folder, &mut done);
        }
        if done.is_empty() {
            return Vec::new();
        }
        let places: Vec<String> = done.iter().map(|path: &PathBuf| path.display().to_string()).collect();
        vec![format!(
            "a command created a git repository that would run programs; these files are not used by git any more, and the \
             user decides whether they are to be: {}",
            places.join(", ")
        )]
    }

    /// The folder in the workspace that a `.git` file names; `None` for one elsewhere, which commands cannot change or
    /// which was known before.
    fn named_by(&self, git: &Path) -> Option<PathBuf> {
        let text = text(git)?;
        let named = plain(&git.parent()?.join(text.strip_prefix("gitdir:")?.trim()))?;
        let is_known = self.known.iter().any(|known| named.starts_with(known));
        (named.starts_with(&self.root) && !is_known && kind(&named)?.is_dir()).then_some(named)
    }
}

fn disarm(git: &Path, done: &mut Vec<PathBuf>) {
    let hooks = git.join("hooks");
    match kind(&hooks) {
        Some(metadata) if metadata.is_dir() => {
            for entry in std::fs::read_dir(&hooks).into_iter().flatten().filter_map(Result::ok) {
                let path = entry.path();
                if path.extension().is_some_and(|ending| ending == "sample") {
                    continue;
                }
                let Some(metadata) = kind(&path) else { continue };
                let mode = metadata.permissions().mode();
                let is_disarmed = if metadata.is_symlink() {
                    std::fs::remove_file(&path).is_ok()
                } else if metadata.is_file() && mode & 0o111 != 0 {
                    std::fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777 & !0o111)).is_ok()
                } else {
                    false
                };
                done.extend(is_disarmed.then_some(path));
            }
        }
        // A link to a folder of hooks.
        Some(_) => done.extend(std::fs::remove_file(&hooks).is_ok().then_some(hooks)),
        None => {}
    }
    for name in ["config", "config.worktree", "commondir"] {
        let path = git.join(name);
        let is_harmless = match kind(&path) {
            None => true,
            Some(metadata) if metadata.is_file() && name == "config" => {
                text(&path).is_some_and(|text| is_harmless(&text))
            }
            Some(_) => false,
        };
        if !is_harmless && std::fs::rename(&path, git.join(format!("{name}.{ASIDE}"))).is_ok() {
            done.push(path);
        }
    }
}

/// Whether a configuration has only keys that name no program and no other configuration.
fn is_harmless(text: &str) -> bool {
    let mut section = String::new();
    text.lines().all(|line| {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, rest)) = rest.split_once(']') else { return false };
            section = name.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
            line = rest.trim();
        }
        if line.is_empty() || line.starts_with(['#', ';']) {
            return true;
        }
        // A continued line could hide a key.
        let Some((key, value)) = line.split_once('=').filter(|_| !line.ends_with('\\')) else { return false };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        // `ext::` is a command.
        let is_plain = !value.to_ascii_lowercase().starts_with("ext::") && !value.starts_with('!');
        is_plain && HARMLESS.iter().any(|(name, keys)| *name == section && keys.contains(&&*key))
    })
}

#[cfg(test)]
mod tests;

//! Patterns for paths.
//!
//! Invariants: a pattern without a slash matches at every depth, as in `.gitignore`; one with a slash starts at
//! the workspace, at `/`, or at the home folder; `FOLDER/**` matches the folder too. Paths are compared as text,
//! without `.` and `..`: the caller gives the resolved path besides, where links may lead elsewhere.

use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

/// A pattern for paths.
#[derive(Debug, Clone)]
pub(crate) struct PathPattern {
    /// Each of them makes a match.
    matchers: Vec<GlobMatcher>,
}

/// The folders that patterns and paths are relative to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folders {
    /// The workspace.
    pub(crate) root: PathBuf,
    pub(crate) home: Option<PathBuf>,
}

impl PathPattern {
    /// Reads a pattern.
    pub(crate) fn parse(text: &str, folders: &Folders) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("it names no path".to_owned());
        }
        let absolute = if let Some(rest) = text.strip_prefix("~/") {
            let home = folders.home.as_ref().ok_or("it begins with `~/`, and there is no home folder")?;
            format!("{}/{rest}", escaped(home))
        } else if text.starts_with('/') {
            text.to_owned()
        } else if text.trim_end_matches('/').contains('/') {
            format!("{}/{}", escaped(&folders.root), text.trim_start_matches("./"))
        } else {
            format!("**/{}", text.trim_end_matches('/'))
        };
        if absolute.split('/').any(|part| part == "..") {
            return Err("a path in a rule has no `..`".to_owned());
        }
        let mut all = vec![absolute.trim_end_matches('/').to_owned()];
        if let Some(folder) = absolute.strip_suffix("/**") {
            all.push(folder.to_owned());
        }
        let compiled = all.iter().map(|glob| {
            let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
            built.map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
        });
        Ok(Self { matchers: compiled.collect::<Result<_, _>>()? })
    }

    /// Whether it matches this absolute path.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        self.matchers.iter().any(|matcher| matcher.is_match(path))
    }
}

fn escaped(path: &Path) -> String {
    globset::escape(&path.to_string_lossy()).trim_end_matches('/').to_owned()
}

impl Folders {
    /// Returns the absolute path that a call means, without `.` and `..`. As for the tools and for a quoted word of bash,
    /// `~` in it is a name like any other.
    pub(crate) fn absolute(&self, path: &str) -> PathBuf {
        let joined = self.root.join(path.trim());
        let mut plain = PathBuf::from("/");
        for component in joined.components() {
            match component {
                Component::Normal(part) => plain.push(part),
                Component::ParentDir => {
                    plain.pop();
                }
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        plain
    }

    /// Whether the absolute path is in the workspace.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.root)
    }

    /// Returns the path as a rule names it: relative to the workspace where it is inside.
    pub(crate) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

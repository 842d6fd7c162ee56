//! Skills: folders with a `SKILL.md` that says how some kind of work is done. Their names and descriptions are offered,
//! and the model reads one when it needs it.
//!
//! Invariants: a skill's text costs nothing before it is read; what is offered is bounded; a skill's files are read only
//! from its own folder; a project's skill never stands in the place of one of the user's.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use greenroom::tools::{FunctionTool, ToolError, tool};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::files;

/// The file that makes a folder a skill.
const FILE: &str = "SKILL.md";
/// Where a project keeps them.
const PROJECT_FOLDERS: [&str; 3] = [".greenroom/skills", ".agents/skills", ".claude/skills"];
/// The most skills that are offered.
const SKILLS_MAX: usize = 100;
/// The longest description, in characters; what is longer is cut.
const DESCRIPTION_CHARS_MAX: usize = 500;
/// The most of one file that is read, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// The skills that there are.
#[derive(Clone)]
pub(crate) struct Skills(Arc<Inner>);

struct Inner {
    /// The user's folder, then the project's: an earlier one's skills win.
    folders: Vec<PathBuf>,
    /// What was found, by the state of the folders and files.
    known: Mutex<Option<Known>>,
}

/// The skills as they were found with the files in this state.
struct Known {
    stamps: Vec<Stamp>,
    skills: BTreeMap<String, Skill>,
}

type Stamp = (PathBuf, Option<(u64, i64, i64)>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Skill {
    description: String,
    folder: PathBuf,
}

/// Read a skill before you do the kind of work that it is for, or another file of it that its text names.
#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// The skill's name.
    name: String,
    /// A file of the skill, as its text names it; without it, the skill's own text.
    file: Option<String>,
}

#[derive(Deserialize)]
struct Head {
    name: Option<String>,
    description: Option<String>,
}

impl Skills {
    /// Those of the user, in `own`, and of the project in `workspace`.
    pub(crate) fn new(own: Option<&Path>, workspace: Option<&Path>) -> Self {
        let of_project =
            workspace.into_iter().flat_map(|root| PROJECT_FOLDERS.map(|folder| root.join(folder)));
        let folders = own.map(Path::to_owned).into_iter().chain(of_project).collect();
        Self(Arc::new(Inner { folders, known: Mutex::default() }))
    }

    /// What the model is told of them; empty where there are none.
    pub(crate) fn offer(&self) -> String {
        let skills = self.found();
        if skills.is_empty() {
            return String::new();
        }
        let list: Vec<String> = skills
            .iter()
            .take(SKILLS_MAX)
            .map(|(name, skill)| format!("- {name}: {}", skill.description))
            .collect();
        format!(
            "# Skills\n\nEach says how a kind of work is done here. Where one fits what you are asked for, read it first, \
             with the tool `skill`.\n\n{}",
            list.join("\n")
        )
    }

    /// The tool that reads them.
    pub(crate) fn tool(&self) -> FunctionTool {
        let skills = self.clone();
        tool("skill", move |arguments: Arguments| {
            let skills = skills.clone();
            async move {
                let read = move || skills.read(&arguments.name, arguments.file.as_deref());
                tokio::task::spawn_blocking(read).await?.map_err(ToolError::new)
            }
        })
        .read_only()
    }

    fn read(&self, name: &str, file: Option<&str>) -> Result<String, String> {
        let skills = self.found();
        let Some(skill) = skills.get(name) else {
            let names: Vec<&str> = skills.keys().map(String::as_str).collect();
            return Err(format!("there is no skill {name:?}; there are: {}", names.join(", ")));
        };
        let wanted = file.unwrap_or(FILE);
        let refused = |reason: String| format!("cannot read {wanted} of the skill {name}: {reason}");
        let folder = skill.folder.canonicalize().map_err(|error| refused(error.to_string()))?;
        let path = folder.join(wanted).canonicalize().map_err(|error| refused(error.to_string()))?;
        if !path.starts_with(&folder) {
            return Err(refused("it is outside the skill's folder".to_owned()));
        }
        let (opened, metadata) = files::open(&path, false).map_err(|error| refused(error.to_string()))?;
        let bytes = files::read_start(opened, BYTES_MAX).map_err(|error| refused(error.to_string()))?;
        let cut = if metadata.len() > BYTES_MAX as u64 {
            format!("\n\n[The first {BYTES_MAX} of {} bytes.]", metadata.len())
        } else {
            String::new()
        };
        let text = String::from_utf8_lossy(&bytes);
        let text = if file.is_none() { body(&text) } else { &text };
        Ok(format!("{}{cut}\n\nThe skill's folder is {}.", text.trim(), folder.display()))
    }

    /// The skills by name, looked for again where a folder changed.
    fn found(&self) -> BTreeMap<String, Skill> {
        let stamps = self.stamps();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| known.stamps == stamps) {
            return known.skills.clone();
        }
        let mut skills = BTreeMap::new();
        for (path, _) in stamps.iter().filter(|(path, stamp)| stamp.is_some() && path.ends_with(FILE)) {
            if let Some((name, skill)) = skill(path) {
                skills.entry(name).or_insert(skill);
            }
        }
        *known = Some(Known { stamps, skills: skills.clone() });
        skills
    }

    /// The folders that may be skills, with the state of their files, in a fixed order.
    fn stamps(&self) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for folder in &self.0.folders {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            let mut paths: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path().join(FILE)))
                .take(10 * SKILLS_MAX)
                .collect();
            paths.sort();
            stamps.extend(paths.into_iter().map(|path| {
                let stamp = path.metadata().ok().filter(std::fs::Metadata::is_file);
                let stamp = stamp.filter(is_trustworthy);
                let stamp = stamp.map(|stamp| (stamp.len(), stamp.mtime(), stamp.mtime_nsec()));
                (path, stamp)
            }));
        }
        stamps
    }
}

/// Whether nobody but the user, or `root`, could have written it.
fn is_trustworthy(metadata: &std::fs::Metadata) -> bool {
    let user = rustix::process::geteuid().as_raw();
    (metadata.uid() == user || metadata.uid() == 0) && metadata.mode() & 0o002 == 0
}

fn skill(path: &Path) -> Option<(String, Skill)> {
    let (file, _) = files::open(path, true).ok()?;
    let bytes = files::read_start(file, BYTES_MAX).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let head: Head = serde_norway::from_str(head(&text)?).ok()?;
    let folder = path.parent()?.to_owned();
    let name = head.name.unwrap_or(folder.file_name()?.to_string_lossy().into_owned());
    let is_name = (1..=64).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':'));
    let description = head.description?.split_whitespace().collect::<Vec<_>>().join(" ");
    if !is_name || description.is_empty() {
        tracing::debug!(path = %path.display(), "no skill: its head has no usable name and description");
        return None;
    }
    Some((name, Skill { description: description.chars().take(DESCRIPTION_CHARS_MAX).collect(), folder }))
}

/// The YAML between the first two lines of three hyphens.
fn head(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches('\u{feff}').strip_prefix("---")?;
    let end = rest.find("\n---")?;
    Some(&rest[..end])
}

/// What follows the head.
fn body(text: &str) -> &str {
    let Some(head) = head(text) else { return text };
    let end = head.as_ptr() as usize - text.as_ptr() as usize + head.len();
    text[end..].trim_start_matches('\n').trim_start_matches("---")
}

#[cfg(test)]
mod tests;

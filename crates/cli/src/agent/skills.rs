//! Skills: folders with a `SKILL.md` that describes how to do a kind of work. The model gets their names and
//! descriptions, and reads one when it needs it.
//!
//! Invariants: a skill's text costs nothing before it is read; the list of skills is bounded; a skill's files
//! are read only from its own folder, and a project's only from the project, if the user trusts it; a project's skill
//! never replaces one of the user's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_files as files;
use greenroom_files::access::{self, Need};
use greenroom_kernel::text::joined_words;
use greenroom_tools::{FunctionTool, ToolError, tool};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::agent::project;
use crate::config::stamp::Stamp;
use crate::config::trusted::{FolderTrust, SKILLS as PROJECT_FOLDERS};

/// The file that makes a folder a skill.
const FILE: &str = "SKILL.md";
/// The maximum number of skills in the list.
const SKILLS_MAX: usize = 100;
/// The maximum number of lines about skills that are not in the list.
const WARNINGS_MAX: usize = 5;
/// The longest description, in characters; longer ones are truncated.
const DESCRIPTION_CHARS_MAX: usize = 500;
/// How much of one file is read, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// The available skills.
#[derive(Clone)]
pub(crate) struct Skills(Arc<Inner>);

struct Inner {
    /// The user's folder, then the project's: skills of earlier folders take precedence.
    folders: Vec<SkillFolder>,
    /// Whether the project's are used.
    trust: Option<FolderTrust>,
    /// The last search, with the state of the folders and files.
    known: Mutex<Option<Known>>,
}

/// A folder that may contain skills.
struct SkillFolder {
    folder: PathBuf,
    /// The root of the project; `None` for the user's own folder.
    project: Option<PathBuf>,
}

/// The skills that were found with the files in this state.
struct Known {
    stamps: Vec<Possible>,
    skills: BTreeMap<String, Skill>,
    /// Skills that are not in the list, and why, a line each.
    warnings: Vec<String>,
}

/// A possible file of a skill, the root of its project, and its state.
#[derive(Clone, PartialEq, Eq)]
struct Possible {
    path: PathBuf,
    project: Option<PathBuf>,
    stamp: Option<Stamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Skill {
    description: String,
    folder: PathBuf,
    project: Option<PathBuf>,
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
    /// Creates the skills of the user, in `own`, and of the project in `workspace`, if the user trusts it.
    pub(crate) fn new(own: Option<&Path>, workspace: Option<(&Path, FolderTrust)>) -> Self {
        let trust = workspace.as_ref().map(|(_, trust)| trust.clone());
        let of_project = workspace.into_iter().flat_map(|(folder, trust)| {
            let root = trust.root().to_owned();
            PROJECT_FOLDERS
                .map(|skills| SkillFolder { folder: folder.join(skills), project: Some(root.clone()) })
        });
        let own = own.map(|folder| SkillFolder { folder: folder.to_owned(), project: None });
        let folders = own.into_iter().chain(of_project).collect();
        Self(Arc::new(Inner { folders, trust, known: Mutex::default() }))
    }

    /// Returns the list for the model; empty if there are no skills.
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

    /// Creates the tool that reads them.
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
            return Err(format!("there is no skill {name:?}; available skills: {}", names.join(", ")));
        };
        let wanted = file.unwrap_or(FILE);
        let refused = |reason: String| format!("cannot read {wanted} of the skill {name}: {reason}");
        let folder = skill.folder.canonicalize().map_err(|error| refused(error.to_string()))?;
        let path = folder.join(wanted).canonicalize().map_err(|error| refused(error.to_string()))?;
        if !path.starts_with(&folder) {
            return Err(refused("it is outside the skill's folder".to_owned()));
        }
        if let Some(root) = &skill.project {
            project::check_within(root, &path).map_err(|reason| refused(reason.to_owned()))?;
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

    /// Returns the skills with their descriptions, by name.
    pub(crate) fn listed(&self) -> Vec<(String, String)> {
        self.found().into_iter().map(|(name, skill)| (name, skill.description)).collect()
    }

    /// Returns why folders that look like skills are not in the list: a line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.look(|known| known.warnings.clone());
        let more = warnings.len().saturating_sub(WARNINGS_MAX);
        warnings.truncate(WARNINGS_MAX);
        if more > 0 {
            warnings.push(format!("{more} more skills are not listed"));
        }
        warnings
    }

    /// Returns the skills by name.
    fn found(&self) -> BTreeMap<String, Skill> {
        self.look(|known| known.skills.clone())
    }

    /// Searches again if a folder has changed, and returns a part of the result.
    fn look<T>(&self, take: impl FnOnce(&Known) -> T) -> T {
        let stamps = self.stamps();
        let mut known = self.0.known.lock();
        if let Some(known) = known.as_ref().filter(|known| known.stamps == stamps) {
            return take(known);
        }
        let (mut skills, mut warnings) = (BTreeMap::new(), Vec::new());
        for Possible { path, project, .. } in &stamps {
            match skill(path, project.as_deref()) {
                Ok(Some((name, skill))) => {
                    skills.entry(name).or_insert(skill);
                }
                Ok(None) => {}
                Err(reason) => warnings.push(format!("{} is not listed: {reason}", path.display())),
            }
        }
        take(known.insert(Known { stamps, skills, warnings }))
    }

    /// Returns the possible folders of skills with the state of their files, in a fixed order.
    fn stamps(&self) -> Vec<Possible> {
        let mut stamps = Vec::new();
        let is_trusted = self.0.trust.as_ref().is_some_and(FolderTrust::is_given);
        for SkillFolder { folder, project } in &self.0.folders {
            if project.is_some() && !is_trusted {
                continue;
            }
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            let mut paths: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path().join(FILE)))
                .take(10 * SKILLS_MAX)
                .collect();
            paths.sort();
            stamps.extend(paths.into_iter().map(|path| {
                let stamp = path.metadata().ok().filter(std::fs::Metadata::is_file);
                let stamp =
                    stamp.filter(|it| access::check(it, Need::Trusted).is_ok()).as_ref().map(Stamp::from);
                Possible { path, project: project.clone(), stamp }
            }));
        }
        stamps
    }
}

/// Reads the skill of this file; returns `None` if there is no file. The error says why it is not a skill.
fn skill(path: &Path, project: Option<&Path>) -> Result<Option<(String, Skill)>, String> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    if let Some(root) = project {
        let real = path.canonicalize().map_err(|error| error.to_string())?;
        project::check_within(root, &real)?;
    }
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("not a file".to_owned());
    }
    if access::check(&metadata, Need::Trusted).is_err() {
        return Err("another user owns it, or everybody may write it".to_owned());
    }
    let (file, _) = files::open(path, true).map_err(|error| error.to_string())?;
    let bytes = files::read_start(file, BYTES_MAX).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&bytes);
    let head = head(&text).ok_or("it does not begin with front matter between two lines of ---")?;
    let head: Head = serde_norway::from_str(head).map_err(|error| format!("its front matter: {error}"))?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let of_folder = || folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = head.name.unwrap_or_else(of_folder);
    let is_name = (1..=64).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':'));
    if !is_name {
        return Err(format!(
            "its name {name:?} is longer than 64 characters, or contains characters other than letters, digits and -_.:"
        ));
    }
    let description = joined_words(&head.description.unwrap_or_default());
    if description.is_empty() {
        return Err("its front matter has no description".to_owned());
    }
    let description = description.chars().take(DESCRIPTION_CHARS_MAX).collect();
    Ok(Some((name, Skill { description, folder, project: project.map(Path::to_owned) })))
}

/// Returns the YAML between the first two lines of three hyphens.
fn head(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches('\u{feff}').strip_prefix("---")?;
    let end = rest.find("\n---")?;
    Some(&rest[..end])
}

/// Returns the text after it.
fn body(text: &str) -> &str {
    let Some(head) = head(text) else { return text };
    let end = head.as_ptr() as usize - text.as_ptr() as usize + head.len();
    text[end..].trim_start_matches('\n').trim_start_matches("---")
}

#[cfg(test)]
mod tests;

//! The rules and the mode by which calls are judged.

use std::path::{Path, PathBuf};

use crate::mode::Mode;
use crate::path::Folders;
use crate::pattern::glob;
use crate::rule::{Effect, InvalidRule, PolicyRule, Subject};

/// The rules and the mode that calls are judged by. The file tools are expected to stay in the workspace by themselves,
/// as the built-in ones do. Rules of all origins are equal; their order has no meaning.
///
/// ```
/// use greenroom_policy::{Call, Effect, Mode, Policy, Verdict};
/// use serde_json::json;
///
/// let mut policy = Policy::new(Mode::Ask, "/srv");
/// policy.add(Effect::Allow, "bash(git status *)", "a flag").unwrap();
/// policy.add(Effect::Deny, "read(.env)", "a flag").unwrap();
/// let judge = |tool, arguments| policy.judge(&Call::new(tool, &arguments));
/// assert!(matches!(judge("bash", json!({ "command": "git status -s" })), Verdict::Allow));
/// assert!(matches!(judge("bash", json!({ "command": "git status; rm -r ." })), Verdict::Ask(_)));
/// assert!(matches!(judge("read", json!({ "path": "a/.env" })), Verdict::Deny(_)));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Policy {
    mode: Mode,
    rules: Vec<PolicyRule>,
    folders: Folders,
    /// The tools that run in every mode, unless a rule says otherwise.
    trusted: Vec<String>,
    /// The names of files and folders that a redirection changes only with approval, whatever the mode accepts.
    protected: &'static [&'static str],
    /// Why nothing is allowed.
    broken: Option<String>,
}

impl Policy {
    /// Creates a policy without rules for a workspace.
    pub fn new(mode: Mode, workspace: impl Into<PathBuf>) -> Self {
        let folders = Folders { root: workspace.into(), home: None };
        Self { mode, rules: Vec::new(), folders, trusted: Vec::new(), protected: &[], broken: None }
    }

    /// Sets the folder that `~/` in rules stands for.
    pub fn home(mut self, home: Option<PathBuf>) -> Self {
        self.folders.home = home;
        self
    }

    /// Adds tools that run in every mode, unless a rule says otherwise: those that only talk to the user or to the
    /// session itself.
    pub fn trust<'a>(mut self, tools: impl IntoIterator<Item = &'a str>) -> Self {
        self.trusted.extend(tools.into_iter().map(str::to_owned));
        self
    }

    /// Sets the names of files and folders, anywhere in a path and in any case, that [`Mode::AcceptEdits`] does not let a
    /// command's redirection change: those through which programs run later. The file tools are expected to refuse
    /// them by themselves.
    pub fn protect(mut self, names: &'static [&'static str]) -> Self {
        self.protected = names;
        self
    }

    /// Whether a part of the path is protected.
    pub(crate) fn protects(&self, path: &Path) -> bool {
        let is_protected =
            |part: &std::ffi::OsStr| self.protected.iter().any(|name| part.eq_ignore_ascii_case(name));
        path.iter().any(is_protected)
    }

    /// Returns a policy that denies every call, since the real one could not be read. `problem` says why, as a
    /// sentence without a full stop.
    pub fn invalid(problem: impl Into<String>) -> Self {
        Self { broken: Some(problem.into()), ..Self::new(Mode::ReadOnly, "/") }
    }

    /// Adds a rule. `origin` is where it was written, for people.
    ///
    /// # Errors
    /// [`InvalidRule`]; the policy is unchanged.
    pub fn add(&mut self, effect: Effect, rule: &str, origin: &str) -> Result<(), InvalidRule> {
        let rule = PolicyRule::parse(effect, rule, origin, &self.folders)?;
        let is_same = |known: &PolicyRule| (known.effect(), known.text()) == (rule.effect(), rule.text());
        if !self.rules.iter().any(is_same) {
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Returns the rules, in the order in which they were added.
    pub fn rules(&self) -> &[PolicyRule] {
        &self.rules
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Sets the mode.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Returns why every call is denied, if the policy could not be read.
    pub fn problem(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Returns the workspace.
    pub fn workspace(&self) -> &Path {
        &self.folders.root
    }

    /// Whether a call of the subject might run where nobody can be asked.
    pub fn might_allow(&self, subject: &Subject) -> bool {
        let permits = match subject {
            Subject::Read => true,
            Subject::Write => self.mode >= Mode::AcceptEdits,
            Subject::Bash | Subject::Tool(_) => self.mode == Mode::Everything,
        };
        let covers = |of_rule: &Subject| match (of_rule, subject) {
            (Subject::Tool(pattern), Subject::Tool(name)) => glob(pattern, name),
            (of_rule, subject) => of_rule == subject,
        };
        let is_allowed = |rule: &PolicyRule| rule.effect() == Effect::Allow && covers(rule.subject());
        permits || (self.mode > Mode::ReadOnly && self.rules.iter().any(is_allowed))
    }

    pub(crate) fn folders(&self) -> &Folders {
        &self.folders
    }

    pub(crate) fn trusts(&self, tool: &str) -> bool {
        self.trusted.iter().any(|trusted| trusted == tool)
    }

    pub(crate) fn of(&self, effect: Effect) -> impl Iterator<Item = &PolicyRule> {
        self.rules.iter().filter(move |rule| rule.effect() == effect)
    }
}

//! Rules, and how they are written: `bash(git commit *)`, `write(src/**)`, `read(~/.ssh/**)`, `refund`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::path::{Folders, PathPattern};
use crate::pattern::{WordsPattern, glob};

/// What a rule does with the calls that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// They do not run, whatever else says.
    Deny,
    /// A person is asked, whatever the mode and the rules that allow say.
    Ask,
    /// They run.
    Allow,
}

impl Effect {
    /// Returns the effect's name, as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Ask => "ask",
            Self::Allow => "allow",
        }
    }
}

/// The calls that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Calls that read files: of `read`, `list` and `grep`, and redirections of commands that read.
    Read,
    /// Calls that change files: of `write` and `edit`, and redirections of commands that write.
    Write,
    /// Commands: calls of `bash`.
    Bash,
    /// Calls of the tools with this name, in which `*` stands for any text.
    Tool(String),
}

/// A rule.
#[derive(Debug, Clone)]
pub struct PolicyRule {
    effect: Effect,
    subject: Subject,
    pattern: Pattern,
    text: String,
    origin: String,
}

#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    /// Every call of the subject.
    Any,
    Path(PathPattern),
    Words(WordsPattern),
}

/// A rule is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule `{rule}` is not valid: {problem}")]
pub struct InvalidRule {
    /// The rule's text.
    pub rule: String,
    /// The problem, as a clause.
    pub problem: String,
}

impl PolicyRule {
    pub(crate) fn parse(
        effect: Effect,
        text: &str,
        origin: &str,
        folders: &Folders,
    ) -> Result<Self, InvalidRule> {
        let invalid = |problem: String| InvalidRule { rule: text.to_owned(), problem };
        let trimmed = text.trim();
        let (name, argument) = match trimmed.split_once('(') {
            Some((name, rest)) => match rest.strip_suffix(')') {
                Some(argument) => (name.trim_end(), Some(argument)),
                None => return Err(invalid("its parenthesis is not closed".to_owned())),
            },
            None => (trimmed, None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '*');
        if name.is_empty() || !name.chars().all(is_name) {
            let problem =
                "it begins with a tool's name, or with read, write or bash, such as `bash(git status)`";
            return Err(invalid(problem.to_owned()));
        }
        let subject = match name {
            "read" => Subject::Read,
            "write" | "edit" => Subject::Write,
            "bash" => Subject::Bash,
            "grep" | "list" => {
                return Err(invalid(format!("`{name}` reads files; write `read`")));
            }
            name => Subject::Tool(name.to_owned()),
        };
        let pattern = match (&subject, argument) {
            (_, None) => Pattern::Any,
            (Subject::Read | Subject::Write, Some(path)) => {
                Pattern::Path(PathPattern::parse(path, folders).map_err(invalid)?)
            }
            (Subject::Bash, Some(words)) => Pattern::Words(WordsPattern::parse(words).map_err(invalid)?),
            (Subject::Tool(name), Some(_)) => {
                return Err(invalid(format!(
                    "only read, write and bash have a part in parentheses; write `{name}` for every call"
                )));
            }
        };
        Ok(Self { effect, subject, pattern, text: trimmed.to_owned(), origin: origin.to_owned() })
    }

    /// Returns its effect.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Returns the calls that it is about.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the rule as it was written, without its effect.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns where it was written, for people: a file, a flag.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Whether it is about the calls of this tool, as one without rules of its own.
    pub(crate) fn names(&self, tool: &str) -> bool {
        matches!(&self.subject, Subject::Tool(name) if glob(name, tool))
    }
}

/// `deny bash(rm *), from …`.
impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, from {}", self.effect.as_str(), self.text, self.origin)
    }
}

//! The permissions of an agent: its tools, its mode, and the rules from flags, files and earlier answers.
//!
//! Invariants: rules of all origins apply together, and each knows its origin; earlier answers that cannot be read deny
//! every call, and a change of their file applies to the next call, regardless of its author. Without anybody to
//! answer, a tool is offered only if some call of it may run.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use greenroom::internal::Subject;
use greenroom::permissions::{Effect, Mode, Permissions, Policy};

use crate::args::{Answers, ModelArgs};
use crate::config::Loaded;
use crate::config::surroundings::Surroundings;
use crate::error::usage;

pub(crate) mod remembered;

/// Tools that talk to the user or the session, and change nothing else.
const TRUSTED: [&str; 5] = ["ask_user", "compact", "recall", "skill", "hand_off"];

/// The built-in tools that an agent is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// `read`, `list` and `grep`.
    Reading,
    /// Those, and `write` and `edit`.
    Files,
    /// All of them, with `bash`.
    All,
}

/// The permissions of an agent, and the tools that it is offered.
pub(crate) struct Granted {
    pub(crate) permissions: Permissions,
    pub(crate) offered: Offered,
    /// Why every call is denied, for the user.
    pub(crate) warning: Option<String>,
}

/// Returns the permissions that flags and configuration request for a workspace.
///
/// # Errors
/// A rule of a flag is not valid.
pub(crate) fn granted(
    args: &ModelArgs,
    loaded: &Loaded,
    root: &Path,
    own_folder: Option<&Path>,
    surroundings: &Surroundings,
) -> anyhow::Result<Granted> {
    let config = &loaded.config.permissions;
    let flags = [
        (Effect::Allow, "--allow", &args.allow),
        (Effect::Ask, "--ask", &args.ask),
        (Effect::Deny, "--deny", &args.deny),
    ];
    let answers = own_folder.map(|folder| remembered::Answers::new(folder, root));
    let has_rules = flags.iter().any(|(_, _, rules)| !rules.is_empty()) || config.rules().next().is_some();
    let mode = mode_of(args, config.mode, has_rules);
    let mut policy = Policy::new(mode, root);
    policy = policy.home(surroundings.variable("HOME").map(PathBuf::from)).trust(TRUSTED);
    for (effect, name, rule) in config.rules() {
        let key = vec!["permissions".to_owned(), name.to_owned()];
        let own = loaded.own.permissions.rules().any(|(of, _, known)| of == effect && known == rule);
        let origin = match loaded.origins.get(&key) {
            Some(origin) if own => origin.clone(),
            _ if own => "the configuration".to_owned(),
            _ => format!("the project's {}", crate::config::FILE_NAME),
        };
        policy.add(effect, rule, &origin)?;
    }
    for (effect, flag, rules) in flags {
        for rule in rules {
            policy.add(effect, rule, flag).map_err(|invalid| usage(format!("{flag}: {invalid}")))?;
        }
    }
    // Looked at before it is read: a change in between is seen the next time.
    let seen = answers.as_ref().map(remembered::Answers::stamp);
    let without = policy.clone();
    if let Some(answers) = &answers {
        policy = with_answers(&without, answers);
    }
    let offered = offered(args, &policy);
    let warning = policy.problem().map(|problem| format!("every call of a tool is denied: {problem}"));
    let mut permissions = match args.answers {
        Answers::Nobody => Permissions::unattended(policy, "--allow '", "'"),
        Answers::Client | Answers::Person => Permissions::new(policy),
    };
    if let Some((answers, seen)) = answers.zip(seen) {
        let (written, seen) = (answers.clone(), Mutex::new(seen));
        permissions = permissions.reread(move || {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let now = answers.stamp();
            if *seen == now {
                return None;
            }
            *seen = now;
            Some(with_answers(&without, &answers))
        });
        if args.answers == Answers::Person {
            permissions =
                permissions.remember(move |rules| written.add(rules).map_err(|error| format!("{error:#}")));
        }
    }
    Ok(Granted { permissions, offered, warning })
}

/// Returns the policy with the rules of earlier answers; if they cannot be read, it denies every call.
fn with_answers(policy: &Policy, answers: &remembered::Answers) -> Policy {
    let invalid = |problem: String| {
        let mut invalid = Policy::invalid(problem);
        invalid.set_mode(policy.mode());
        invalid
    };
    let rules = match answers.read() {
        Ok(rules) => rules,
        Err(problem) => return invalid(problem),
    };
    let mut with = policy.clone();
    for rule in &rules {
        if let Err(wrong) = with.add(Effect::Allow, rule, &answers.shown()) {
            return invalid(format!("{}: {wrong}", answers.shown()));
        }
    }
    with
}

/// Returns the mode at the start.
fn mode_of(args: &ModelArgs, configured: Option<Mode>, has_rules: bool) -> Mode {
    let by_flag = match (args.allow_shell, args.allow_write) {
        (true, _) => Some(Mode::Everything),
        (false, true) => Some(Mode::AcceptEdits),
        (false, false) => None,
    };
    let is_asked = args.answers == Answers::Person || has_rules;
    let default = if is_asked { Mode::Ask } else { Mode::ReadOnly };
    args.mode.or(by_flag).or(configured).unwrap_or(default)
}

fn offered(args: &ModelArgs, policy: &Policy) -> Offered {
    if args.allow_write && !args.allow_shell && args.mode.is_none() {
        return Offered::Files;
    }
    match args.answers {
        // The mode may change while the session is open, and the tools stay: they are a part of every request.
        Answers::Person => Offered::All,
        Answers::Client if policy.mode() > Mode::ReadOnly => Offered::All,
        Answers::Nobody if policy.might_allow(&Subject::Bash) => Offered::All,
        Answers::Nobody if policy.might_allow(&Subject::Write) => Offered::Files,
        Answers::Client | Answers::Nobody => Offered::Reading,
    }
}

#[cfg(test)]
mod tests;

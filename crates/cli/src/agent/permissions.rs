//! What an agent may do without asking: its tools, its mode, and the rules from flags, files and earlier answers.
//!
//! Invariants: rules of all origins apply together, and each knows its origin; earlier answers that cannot be read
//! deny every call. Where nobody answers, a tool is offered only if some call of it may run.

use std::path::{Path, PathBuf};

use greenroom::permissions::{Effect, Mode, Permissions, Policy, Subject};

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
    let known = answers.as_ref().map_or(Ok(Vec::new()), remembered::Answers::read);
    let has_rules = flags.iter().any(|(_, _, rules)| !rules.is_empty()) || config.rules().next().is_some();
    let mode = mode_of(args, config.mode, has_rules);
    let mut policy = match &known {
        Ok(_) => Policy::new(mode, root),
        Err(problem) => Policy::invalid(problem),
    };
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
    if let Some((answers, rules)) = answers.as_ref().zip(known.as_ref().ok()) {
        for rule in rules {
            if let Err(invalid) = policy.add(Effect::Allow, rule, &answers.shown()) {
                policy = Policy::invalid(format!("{}: {invalid}", answers.shown()));
                break;
            }
        }
    }
    let offered = offered(args, &policy);
    let warning = policy.problem().map(|problem| format!("every call of a tool is denied: {problem}"));
    let mut permissions = match args.answers {
        Answers::Nobody => Permissions::unattended(policy, "--allow '", "'"),
        Answers::Client | Answers::Terminal => Permissions::new(policy),
    };
    if let Some(answers) = answers.filter(|_| args.answers == Answers::Terminal) {
        permissions =
            permissions.remember(move |rules| answers.add(rules).map_err(|error| format!("{error:#}")));
    }
    Ok(Granted { permissions, offered, warning })
}

/// Returns the mode at the start.
fn mode_of(args: &ModelArgs, configured: Option<Mode>, has_rules: bool) -> Mode {
    let by_flag = match (args.allow_shell, args.allow_write) {
        (true, _) => Some(Mode::Everything),
        (false, true) => Some(Mode::AcceptEdits),
        (false, false) => None,
    };
    let is_asked = args.answers == Answers::Terminal || has_rules;
    let default = if is_asked { Mode::Ask } else { Mode::ReadOnly };
    args.mode.or(by_flag).or(configured).unwrap_or(default)
}

fn offered(args: &ModelArgs, policy: &Policy) -> Offered {
    if args.allow_write && !args.allow_shell && args.mode.is_none() {
        return Offered::Files;
    }
    match args.answers {
        // The mode may change while the session is open, and the tools stay: they are a part of every request.
        Answers::Terminal => Offered::All,
        Answers::Client if policy.mode() > Mode::ReadOnly => Offered::All,
        Answers::Nobody if policy.might_allow(&Subject::Bash) => Offered::All,
        Answers::Nobody if policy.might_allow(&Subject::Write) => Offered::Files,
        Answers::Client | Answers::Nobody => Offered::Reading,
    }
}

#[cfg(test)]
mod tests;

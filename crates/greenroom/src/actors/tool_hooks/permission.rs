//! Decides by the agent's permissions whether a call runs, and asks a person where they say so.
//!
//! Invariants: the call that was approved is the one that runs, with the same arguments; an approval counts once,
//! and not if a rule forbids the call meanwhile. A question whose call was approved before a restart is answered
//! from the record, and one whose call, folder or effect has changed since is refused. A question has the whole call,
//! or it is not asked; only its one-line text is shortened.

use std::path::{Path, PathBuf};

use greenroom_kernel::question::{Approval, Approved, Question};
use greenroom_policy::{Call, Verdict};
use greenroom_tools::{AskError, Questions, Tool};
use serde_json::Value;

use crate::agent::permissions::Permissions;

/// How many parts of a command are shown in a question's text.
const PARTS_SHOWN: usize = 3;
/// The longest part that is shown in a question's text, in characters.
const PART_CHARS_MAX: usize = 200;

/// Why a call does not run whose effect is not the one that was shown.
pub(super) const CHANGED: &str =
    "what was to be approved has changed since the question was asked; look at it and call again";

/// What the permissions decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Permitted {
    /// The call runs.
    Yes,
    /// A person approved it; the warning is about the rules that were to be remembered.
    Approved { warning: Option<String> },
    /// It does not run. The reason is a clause for the model.
    No(String),
    /// A person approved it, but what it would change has changed meanwhile: it does not run.
    Outdated,
}

/// A call to decide about.
pub(super) struct ProposedCall<'a> {
    pub(super) session: &'a str,
    pub(super) tool: &'a dyn Tool,
    pub(super) name: &'a str,
    pub(super) arguments: &'a Value,
}

/// Decides whether a call runs.
pub(super) async fn permit(
    permissions: &Permissions,
    proposed: &ProposedCall<'_>,
    questions: &Questions,
) -> Permitted {
    let ProposedCall { session, tool, name, arguments } = *proposed;
    let call = Call::new(name, arguments).read_only(tool.is_read_only());
    refresh(permissions).await;
    let workspace = permissions.policy();
    let resolved = match workspace.path_of(&call) {
        Some(path) => tokio::task::spawn_blocking(move || resolved(&path)).await.ok(),
        None => None,
    };
    let call = call.resolved(resolved.as_deref());
    let asked = match permissions.judge(session, &call) {
        Verdict::Allow => return Permitted::Yes,
        Verdict::Deny(reason) => return Permitted::No(reason),
        Verdict::Ask(asked) => asked,
    };
    // Nobody is asked about a call that cannot run.
    if let Err(problem) = tool.check(arguments) {
        return Permitted::No(problem);
    }
    if !permissions.is_attended() {
        return Permitted::No(nobody(permissions, &asked));
    }
    let mut approval = Approval::new(name, arguments.clone());
    approval.folder = Some(workspace.workspace().display().to_string());
    approval.set_preview(tool.preview(arguments).await);
    if !approval.is_whole() {
        return Permitted::No(format!(
            "it needs an approval, but is too large to be shown: it has {} bytes, and at most {} can be shown; do it in \
             smaller steps",
            arguments.to_string().len(),
            Approval::SHOWN_BYTES_MAX
        ));
    }
    let text = text(name, arguments, &asked.parts);
    (approval.why, approval.parts, approval.rules) = (asked.why, asked.parts, asked.offers);
    let (rules, shown) = (approval.rules.clone(), approval.preview.clone());
    match questions.ask(Question::approval(text, approval)).await {
        Ok(answer) => {
            let by = answer.by.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
            // A refusal waits for nothing: who answers no often aborts the run next, and the call is denied by then.
            let is_always = match answer.approved() {
                Some(Approved::Once) => false,
                Some(Approved::Always) => true,
                Some(Approved::No(Some(words))) => {
                    return Permitted::No(format!("the user{by} refused it and says: {words}"));
                }
                Some(Approved::No(None) | _) => return Permitted::No(format!("the user{by} refused it")),
                None => return Permitted::No("the answer is not understood".to_owned()),
            };
            // It may have been forbidden while the question was open.
            refresh(permissions).await;
            if let Verdict::Deny(reason) = permissions.judge(session, &call) {
                return Permitted::No(reason);
            }
            // What it would change may have been changed by somebody else.
            let mut now = Approval::new(name, arguments.clone());
            now.set_preview(tool.preview(arguments).await);
            if now.preview != shown {
                return Permitted::Outdated;
            }
            let warning = if is_always { permissions.allow_always(session, &rules) } else { None };
            Permitted::Approved { warning }
        }
        Err(AskError::Changed { .. }) => Permitted::Outdated,
        Err(error) => Permitted::No(format!("it needs an approval, and none was given: {error}")),
    }
}

/// Takes up rules that were changed in a file, off the asynchronous threads.
async fn refresh(permissions: &Permissions) {
    let permissions = permissions.clone();
    // A panic in the program's function leaves the rules as they were.
    let _ = tokio::task::spawn_blocking(move || permissions.refresh()).await;
}

/// Returns why a call is denied where nobody can be asked.
fn nobody(permissions: &Permissions, asked: &greenroom_policy::Question) -> String {
    let why = asked.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let how = permissions.how_to_allow(&asked.offers).filter(|how| !how.is_empty());
    let how = how.map(|how| format!("; the user can allow it with {how}")).unwrap_or_default();
    format!("it needs an approval{why}, and nobody can be asked here{how}")
}

/// Returns the question in one line or a few.
fn text(name: &str, arguments: &Value, parts: &[String]) -> String {
    let cut = |part: &String| {
        let mut chars = part.chars();
        let shown: String = chars.by_ref().take(PART_CHARS_MAX).collect();
        if chars.next().is_some() { format!("{shown} …") } else { shown }
    };
    let mut shown: Vec<String> = parts.iter().take(PARTS_SHOWN).map(cut).collect();
    if parts.len() > PARTS_SHOWN {
        shown.push(format!("and {} more", parts.len() - PARTS_SHOWN));
    }
    let shown = shown.join(" · ");
    match name {
        "bash" => {
            let whole = arguments.get("command").and_then(Value::as_str).map(str::trim);
            match whole {
                Some(whole)
                    if parts.len() == 1
                        && parts[0] != whole
                        && !whole.contains('\n')
                        && whole.chars().count() <= PART_CHARS_MAX =>
                {
                    format!("Run `{whole}`?")
                }
                _ => format!("Run `{shown}`?"),
            }
        }
        "write" => format!("Write {shown}?"),
        "edit" => format!("Edit {shown}?"),
        "read" | "list" | "grep" => format!("Read {shown}?"),
        name => format!("Call `{name}`?"),
    }
}

/// Returns where the path leads, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    for folder in path.ancestors() {
        if let Ok(real) = folder.canonicalize() {
            let rest = path.strip_prefix(folder).unwrap_or(Path::new(""));
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

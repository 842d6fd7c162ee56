//! `edit`: replaces an exact text in a file with another.
//!
//! Invariants: the text must occur exactly once (unless `all` is given), and the file must still be the one
//! that was read, now and when the session's model last read or wrote it; encoding, line endings and a byte
//! order mark are preserved.

use std::io::Read;

use greenroom_kernel::Touch;
use greenroom_kernel::redact::Redactor;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::encoding::{self, has_windows_line_ends};
use super::write::{COMPARED_BYTES_MAX, changes, other_names, preview, tell_changes, text_of};
use crate::output::cap_line;
use crate::similar::Likeness;
use crate::workspace::{Expected, Replacement};
use crate::{FunctionTool, ToolContext, ToolOutput, ToolsError, Workspace};

/// The largest file that is edited, in bytes.
const FILE_BYTES_MAX: u64 = 10 * 1024 * 1024;

/// Replaces an exact text in a file of the workspace. `old` must occur exactly once, blanks and line ends included,
/// unless `all` is true; take in as many lines around it as make it unique.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Edit {
    /// The file, relative to the workspace.
    path: String,
    /// The text to replace, without line numbers.
    old: String,
    /// The text to put in its place.
    new: String,
    /// Whether to replace every occurrence. Default: false.
    #[serde(default)]
    all: bool,
}

pub(super) fn tool(workspace: Workspace) -> FunctionTool {
    let shown = workspace.clone();
    crate::tool("edit", move |arguments: Edit, context: ToolContext| {
        let workspace = workspace.clone();
        async move {
            let cancel = context.cancel.clone();
            workspace.blocking(&cancel, move |w, cancel| edit(w, &arguments, cancel, &context)).await
        }
    })
    .shows_own_files()
    .preview(move |arguments| preview(&shown, arguments, would_change))
}

fn would_change(workspace: &Workspace, arguments: &Edit) -> Option<String> {
    let before = text_of(workspace, &workspace.locate(&arguments.path).ok()?)?;
    let (after, _) = replace(&before, arguments, &Redactor::default()).ok()?;
    Some(changes(&before, &after).join("\n"))
}

fn edit(
    workspace: &Workspace,
    arguments: &Edit,
    cancel: &CancellationToken,
    context: &ToolContext,
) -> Result<ToolOutput, ToolsError> {
    let path = workspace.locate(&arguments.path)?;
    let shown = path.shown();
    workspace.changeable(&path)?;
    let (file, version) = workspace.open_file(&path)?;
    workspace.check_seen(&context.session, &path, version)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| ToolsError::io(shown, error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        let text = format!("`{shown}` is larger than {FILE_BYTES_MAX} bytes, which is the limit for edits");
        return Err(ToolsError::Refused(text));
    }
    let Some((encoding, text)) = encoding::decode(bytes) else {
        let text = format!("`{shown}` is not text and was not changed; `write` can replace it as a whole");
        return Err(ToolsError::Refused(text));
    };
    let wrong = |wrong| ToolsError::Refused(format!("`{shown}` was not changed: {wrong}"));
    let (after, lines) = replace(&text, arguments, &context.redactor).map_err(wrong)?;
    let edited = encoding.encode(&after).map_err(|char| {
        let encoding = encoding.as_str();
        wrong(format!("it is in {encoding}, which does not have {char:?}; `write` it as a whole for UTF-8"))
    })?;
    if cancel.is_cancelled() {
        return Err(ToolsError::Cancelled);
    }
    let replacement = Replacement { expected: Expected::Version(version), ..Replacement::new(&edited) };
    let replaced = workspace.replace(&path, &replacement, &context.files)?;
    workspace.saw(&context.session, &path, replaced.version);
    if after.len() as u64 <= COMPARED_BYTES_MAX {
        tell_changes(&text, &after, &context.progress);
    }
    let count = lines.len();
    let mut text = format!("edited `{shown}`: {count} replacement{} at {}", plural(count), at_lines(&lines));
    if let Some(remark) = other_names(replaced.other_names) {
        text.push_str("; ");
        text.push_str(&remark);
    }
    Ok(workspace.touched(ToolOutput::text(text), &path, Touch::Modified))
}

/// Returns the text after the edit, and the lines at which replacements begin.
fn replace(text: &str, edit: &Edit, redactor: &Redactor) -> Result<(String, Vec<usize>), String> {
    if edit.old.is_empty() {
        return Err("`old` is empty; use `write` to write a whole file".to_owned());
    }
    if edit.old == edit.new {
        return Err("`old` and `new` are the same".to_owned());
    }
    // Models write `\n`; a file with only `\r\n` line endings keeps them.
    let windows = has_windows_line_ends(text);
    let ending = |part: &str| {
        let unix = part.replace("\r\n", "\n");
        if windows { unix.replace('\n', "\r\n") } else { unix }
    };
    // In a file with mixed line endings, the text is first searched as written.
    let (mut old, mut new) = (edit.old.clone(), edit.new.clone());
    if windows || !text.contains(&old) {
        (old, new) = (ending(&old), ending(&new));
    }
    let lines = lines_of(text, &old);
    match lines.len() {
        0 => Err(format!("`old` does not occur in it{}", hint(text, &old, redactor))),
        1 => Ok((text.replacen(&old, &new, 1), lines)),
        _ if edit.all => Ok((text.replace(&old, &new), lines)),
        count => Err(format!(
            "`old` occurs {count} times, at {}; take in more lines around it, or set `all`",
            at_lines(&lines)
        )),
    }
}

/// Returns the lines at which the occurrences begin, in one pass: a large file may have millions of them.
fn lines_of(text: &str, old: &str) -> Vec<usize> {
    let (mut line, mut counted) = (1, 0);
    let begin = |(place, _): (usize, &str)| {
        line += text[counted..place].matches('\n').count();
        counted = place;
        line
    };
    text.match_indices(old).map(begin).collect()
}

/// Returns the line that `old` was probably meant to begin with.
fn hint(text: &str, old: &str, redactor: &Redactor) -> String {
    const ALIKE_MIN: usize = 600;
    let Some((before, wanted)) = old.lines().enumerate().find(|(_, line)| !line.trim().is_empty()) else {
        return " (it is blank)".to_owned();
    };
    let likeness = Likeness::to(wanted);
    let scored = text.lines().enumerate().map(|(index, line)| (likeness.of(line), index, line));
    // Ties are resolved in favour of the first line.
    match scored.max_by(|left, right| left.0.cmp(&right.0).then(right.1.cmp(&left.1))) {
        Some((score, index, line)) if score >= ALIKE_MIN => {
            let number = index + 1;
            let wanted_number = before + 1;
            let why = if line == wanted {
                format!("line {wanted_number} of `old` is at line {number}, but the lines around it differ")
            } else if score == 1_000 {
                format!("line {number} differs only in blanks or case")
            } else {
                format!("the closest is line {number}")
            };
            format!("; {why}: {:?}", cap_line(line, 200, redactor))
        }
        Some(_) | None => String::new(),
    }
}

fn at_lines(lines: &[usize]) -> String {
    const SHOWN_MAX: usize = 20;
    let shown: Vec<String> = lines.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    let more = if lines.len() > SHOWN_MAX {
        format!(" and {} more", lines.len() - SHOWN_MAX)
    } else {
        String::new()
    };
    format!("line{} {}{more}", plural(lines.len()), shown.join(", "))
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

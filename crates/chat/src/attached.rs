//! Files and outputs of commands in prompts: how they are appended to the user's text, and how such a prompt is shown.
//!
//! Invariants: `split` takes apart what [`write()`] and `ran` have put together; the user's text comes first,
//! unchanged, then come files, then outputs.

use greenroom_kernel::words::{COMMAND_MARKS, FILE_MARK, before_outputs};

#[cfg(test)]
mod tests;

/// The text before a file's path. A compaction quotes the user's text before it.
const BEGIN: &str = FILE_MARK;
const NAMED: &str = "\">\n";
/// The text after a file's content.
const END: &str = "\n</file>";

/// The text before a command, with the blank line above it. A compaction quotes the user's text before it.
const RAN: &str = COMMAND_MARKS[0];
/// The texts before and after its output.
const PRINTED: &str = COMMAND_MARKS[1];
const RAN_END: &str = COMMAND_MARKS[2];

/// Formats a file for appending to a prompt. Its content cannot end the file's part, and so cannot pass for the user's words.
pub fn write(path: &str, content: &str) -> String {
    let content = content.replace("</file>", "<\\/file>");
    format!("{BEGIN}{path}{NAMED}{content}{END}")
}

/// Formats the output of a command that the user ran, for appending to a prompt behind a blank line. Like the content of a
/// file, the output cannot end its part.
pub(crate) fn ran(command: &str, output: &str) -> String {
    let output = format!("\n{output}").replace(RAN_END, "\n\\```");
    format!("{}{command}{PRINTED}{}{RAN_END}", RAN.trim_start(), &output[1..])
}

/// Returns the command whose output [`ran`] has formatted.
pub(crate) fn command(told: &str) -> &str {
    let rest = told.strip_prefix(RAN.trim_start()).unwrap_or(told);
    rest.split_once(PRINTED).map_or(rest, |(command, _)| command)
}

/// Returns the part of a prompt that the user typed.
pub(crate) fn typed(text: &str) -> &str {
    split(text).0
}

/// Splits a prompt into the user's text and one line for each attached file and each command.
pub(crate) fn split(text: &str) -> (&str, Vec<String>) {
    let (text, commands) = split_commands(text);
    let Some((words, mut rest)) = text.split_once(BEGIN) else { return (text, commands) };
    let mut files = Vec::new();
    while let Some((path, behind)) = rest.split_once(NAMED) {
        // A file may contain the end mark: its own is the last one before the next file, or the last of all.
        let (content, next) = match behind.find(&format!("{END}{BEGIN}")) {
            Some(place) => (&behind[..place], behind.get(place + END.len() + BEGIN.len()..)),
            None => (behind.rsplit_once(END).map_or(behind, |(content, _)| content), None),
        };
        files.push(describe(path, content));
        match next {
            Some(next) => rest = next,
            None => break,
        }
    }
    files.extend(commands);
    (words, files)
}

/// Splits off the outputs of commands at the end.
fn split_commands(text: &str) -> (&str, Vec<String>) {
    let (words, outputs) = text.split_at(before_outputs(text).len());
    // What a command printed may look like a further command.
    let commands = outputs.split(RAN).filter_map(|part| Some(part.split_once(PRINTED)?.0));
    let commands = commands.filter(|command| !command.contains('\n'));
    (words, commands.map(|command| format!("ran {command}")).collect())
}

/// Describes how much of a file was attached.
fn describe(path: &str, content: &str) -> String {
    // The tool that reads files says in the last line that it returned a part.
    let part = content.lines().next_back().and_then(|line| line.strip_prefix('[')?.split_once(';'));
    let mut out = match part {
        Some((part, _)) if part.starts_with("lines ") => format!("{path}, {part}"),
        Some(_) | None => {
            format!("{path}, {}", greenroom_terminal::format::count(content.lines().count() as u64, "line"))
        }
    };
    if content.contains(" bytes cut]") {
        out.push_str(", long lines cut");
    }
    if content.contains('\u{fffd}') {
        out.push_str(", with bytes that are not UTF-8");
    }
    out
}

//! Files and outputs of commands in prompts: how they are appended to the user's text, and how such a prompt is shown.
//!
//! Invariants: `split` takes apart what [`write()`] and `ran` have put together; the user's text comes first,
//! unchanged, then come files, then outputs.

#[cfg(test)]
mod tests;

/// The text before a file's path. A compaction quotes the user's text before it.
const BEGIN: &str = greenroom_kernel::words::FILE_MARK;
const NAMED: &str = "\">\n";
/// The text after a file's content.
const END: &str = "\n</file>";

/// The texts around a command and its output.
const RAN: &str = "I ran `";
const PRINTED: &str = "`. It printed:\n```\n";
const RAN_END: &str = "\n```";

/// Formats a file for appending to a prompt. Its content cannot end the file's part, and so cannot pass for the user's words.
pub fn write(path: &str, content: &str) -> String {
    let content = content.replace("</file>", "<\\/file>");
    format!("{BEGIN}{path}{NAMED}{content}{END}")
}

/// Formats the output of a command that the user ran, for appending to a prompt.
pub(crate) fn ran(command: &str, output: &str) -> String {
    format!("{RAN}{command}{PRINTED}{output}{RAN_END}")
}

/// Returns the command whose output [`ran`] has formatted.
pub(crate) fn command(told: &str) -> &str {
    let rest = told.strip_prefix(RAN).unwrap_or(told);
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
    if !text.ends_with(RAN_END) {
        return (text, Vec::new());
    }
    let lead = format!("\n\n{RAN}");
    for (place, _) in text.match_indices(&lead) {
        let (words, rest) = text.split_at(place);
        let parts: Vec<&str> = rest.split(&lead).skip(1).collect();
        let command = |part: &str| part.split_once(PRINTED).map(|(command, _)| command.to_owned());
        // What a command printed may look like a further command.
        let whole = parts.iter().filter_map(|part| command(part)).filter(|command| !command.contains('\n'));
        let commands: Vec<String> = whole.map(|command| format!("ran {command}")).collect();
        if parts.first().is_some_and(|part| command(part).is_some()) {
            return (words, commands);
        }
    }
    (text, Vec::new())
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

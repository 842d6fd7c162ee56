//! Files in prompts: how they are appended to the user's text, and how such a prompt is shown.
//!
//! Invariants: [`split`] takes apart what [`write`] has put together; the user's text comes first, unchanged.

#[cfg(test)]
mod tests;

/// The text before a file's path. A compaction quotes the user's text before it.
const BEGIN: &str = greenroom_kernel::words::FILE_MARK;
const NAMED: &str = "\">\n";
/// The text after a file's content.
const END: &str = "\n</file>";

/// Formats a file for appending to a prompt. Its content cannot end the file's part, and so cannot pass for the user's words.
pub(crate) fn write(path: &str, content: &str) -> String {
    let content = content.replace("</file>", "<\\/file>");
    format!("{BEGIN}{path}{NAMED}{content}{END}")
}

/// Splits a prompt into the user's text and one line for each attached file.
pub(crate) fn split(text: &str) -> (&str, Vec<String>) {
    let Some((words, mut rest)) = text.split_once(BEGIN) else { return (text, Vec::new()) };
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
    (words, files)
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

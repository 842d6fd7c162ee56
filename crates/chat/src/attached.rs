//! Files in prompts: how they are written behind the user's words, and how a prompt that has some is shown.
//!
//! Invariants: what was written by [`write`] is told apart again by [`split`]; the user's words come first, unchanged.

#[cfg(test)]
mod tests;

/// What stands before a file's path, and after it.
const BEGIN: &str = "\n\n<file path=\"";
const NAMED: &str = "\">\n";
/// What stands after a file.
const END: &str = "\n</file>";

/// A file, as it stands behind a prompt.
pub(crate) fn write(path: &str, content: &str) -> String {
    format!("{BEGIN}{path}{NAMED}{content}{END}")
}

/// The user's words, and a line for each file that stands behind them.
pub(crate) fn split(text: &str) -> (&str, Vec<String>) {
    let Some((words, mut rest)) = text.split_once(BEGIN) else { return (text, Vec::new()) };
    let mut files = Vec::new();
    while let Some((path, behind)) = rest.split_once(NAMED) {
        // A file may contain what looks like its end: the next one begins, or nothing more comes.
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

/// What is told of a file: how much of it went along.
fn describe(path: &str, content: &str) -> String {
    // The tool that reads files says so in its last line when it gives a part.
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

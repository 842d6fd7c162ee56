//! The position of a setting in a file's text.
//!
//! Invariants: the result is a line of the text; for a missing setting, it is that of the nearest section.

/// The lines of a section: those below its own with a larger indent, including blank lines and comments.
pub(crate) struct Block {
    pub(crate) lines: std::ops::Range<usize>,
    pub(crate) indent: usize,
}

/// Returns the line of the setting with these names, from 1, or else the line of its innermost existing
/// section.
pub(crate) fn line_of(text: &str, parts: &[impl AsRef<str>]) -> Option<usize> {
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut block = Block { lines: 0..lines.len(), indent: 0 };
    let mut place = None;
    for part in parts {
        let part = part.as_ref();
        if let Some(at) = find(&lines, &block, part) {
            let end = below(&lines, at, block.indent, block.lines.end);
            let first = (at + 1..end).find(|line| !is_silent(&lines[*line]));
            block.indent = first.map_or(block.indent + 2, |line| indent(&lines[line]));
            block.lines = at + 1..end;
            place = Some(at);
        } else {
            // In braces, on the section's own line or below it.
            let from = place.unwrap_or(block.lines.start);
            let Some(at) = (from..block.lines.end).find(|at| has_inline(&lines[*at], part)) else { break };
            place = Some(at);
        }
    }
    place.map(|at| at + 1)
}

/// Whether a line contains this key.
fn has_inline(line: &str, key: &str) -> bool {
    line.split([',', '{']).any(|part| part.split_once(':').is_some_and(|(name, _)| is_name(name, key)))
}

pub(crate) fn find(lines: &[String], block: &Block, part: &str) -> Option<usize> {
    block.lines.clone().find(|at| {
        let line = &lines[*at];
        let named = line.trim_start().split_once(':').is_some_and(|(name, _)| is_name(name, part));
        indent(line) == block.indent && !is_silent(line) && named
    })
}

fn is_name(written: &str, name: &str) -> bool {
    written.trim().trim_matches(['"', '\'']) == name
}

/// Returns where the lines that belong to a line end.
pub(crate) fn below(lines: &[String], at: usize, own: usize, end: usize) -> usize {
    // A list may have the same indent as its name.
    let is_item = |line: &str| indent(line) == own && line.trim_start().starts_with('-');
    let is_next = |line: &str| !is_silent(line) && indent(line) <= own && !is_item(line);
    let next = (at + 1..end).find(|line| is_next(&lines[*line]));
    let next = next.unwrap_or(end);
    // Comments directly before the next setting belong to that one.
    let silent = (at + 1..next).rev().take_while(|line| is_silent(&lines[*line])).count();
    next - silent
}

pub(crate) fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Whether a line is blank or a comment.
pub(crate) fn is_silent(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

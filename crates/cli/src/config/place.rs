//! Where a setting stands in the text of a file.
//!
//! Invariants: what is told is a line of the text; a setting that is not found is told by the section nearest to it.

/// The lines of a section: those below its own that are indented further, blank ones and comments among them.
pub(crate) struct Block {
    pub(crate) lines: std::ops::Range<usize>,
    pub(crate) indent: usize,
}

/// The line on which the setting of these names stands, from 1, else the line of the innermost section around it that is
/// there.
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

/// Whether a line names this key somewhere.
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

/// Where what belongs to a line ends.
pub(crate) fn below(lines: &[String], at: usize, own: usize, end: usize) -> usize {
    // A list may stand as far to the left as its name.
    let is_item = |line: &str| indent(line) == own && line.trim_start().starts_with('-');
    let is_next = |line: &str| !is_silent(line) && indent(line) <= own && !is_item(line);
    let next = (at + 1..end).find(|line| is_next(&lines[*line]));
    let next = next.unwrap_or(end);
    // What stands right before the next setting is about that one.
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

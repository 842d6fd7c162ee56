//! Reads what tools print: listings, files, matches.
//!
//! Invariants: nothing is invented; a line that is not understood is passed over.

use std::collections::HashSet;

/// A file or folder in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Its path from the workspace.
    pub(super) path: String,
    /// Whether it is a folder.
    pub(super) is_folder: bool,
}

/// The things in a listing of `folder`, with their paths from the workspace: one a line, folders with a
/// trailing slash, as bare names or as paths; lines of `ls -l` too.
pub(super) fn items(folder: &str, text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = text.lines().filter_map(|line| item(folder, line)).collect();
    // A name that others lie below is a folder, marked or not.
    let inner: HashSet<String> = items
        .iter()
        .filter_map(|item| item.path.rsplit_once('/').map(|(parent, _)| parent.to_owned()))
        .collect();
    for item in &mut items {
        item.is_folder |= inner.contains(&item.path);
    }
    items
}

fn item(folder: &str, line: &str) -> Option<Item> {
    let line = line.trim().trim_start_matches("- ").trim_start_matches("./");
    let is_remark =
        line.starts_with(['[', '(', '`', '#']) || line.starts_with("total ") || line.ends_with(['.', ':']);
    if line.is_empty() || is_remark {
        return None;
    }
    let first = line.split_whitespace().next()?;
    let is_long =
        first.len() >= 10 && first.starts_with(['-', 'd', 'l']) && first[1..].starts_with(['r', '-']);
    let name = if is_long { line.split_whitespace().nth(8)? } else { line };
    let is_folder = name.ends_with('/') || (is_long && first.starts_with('d'));
    let name = name.trim_end_matches(['/', '*']);
    // Links and special files are not followed.
    if name.is_empty() || name.ends_with(['@', '?']) || name == ".." || (is_long && first.starts_with('l')) {
        return None;
    }
    let is_whole = folder == "." || name.starts_with(&format!("{folder}/"));
    let path = if is_whole { name.to_owned() } else { format!("{folder}/{name}") };
    Some(Item { path, is_folder })
}

/// Whether a file is worth reading: text, and not machine-written.
pub(super) fn is_readable(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let skipped = [
        "png", "jpg", "jpeg", "gif", "webp", "ico", "pdf", "zip", "gz", "xz", "zst", "tar", "bin", "exe",
        "so", "a", "o", "rlib", "wasm", "woff", "woff2", "ttf", "lock", "pyc", "class", "jar", "db",
        "sqlite", "mp3", "mp4",
    ];
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    !name.starts_with('.') && !skipped.contains(&extension.to_lowercase().as_str())
}

/// Whether a folder is worth listing: not hidden, and not full of machine-written files.
pub(super) fn is_worth_listing(path: &str) -> bool {
    let skipped = ["target", "node_modules", "dist", "build", "vendor", "__pycache__", "venv"];
    !path.split('/').any(|name| name.starts_with('.') || skipped.contains(&name))
}

/// The names that a file's text defines, in order, the first 24.
pub(super) fn identifiers(text: &str) -> Vec<String> {
    let keywords = [
        "fn ",
        "struct ",
        "enum ",
        "trait ",
        "type ",
        "const ",
        "def ",
        "class ",
        "function ",
        "func ",
        "interface ",
        "macro_rules! ",
    ];
    let mut found: Vec<String> = Vec::new();
    for line in text.lines() {
        for keyword in keywords {
            let Some((before, after)) = line.split_once(keyword) else { continue };
            // A keyword inside a word is none.
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            let name = &after[..end];
            let is_name = (4..=40).contains(&name.len()) && !name.starts_with(|c: char| c.is_ascii_digit());
            if is_name && !found.iter().any(|known| known == name) {
                found.push(name.to_owned());
            }
            break;
        }
        if found.len() >= 24 {
            break;
        }
    }
    found
}

/// Where to read on, if the last line of a part of a file says so: the number after the word "offset".
pub(super) fn next_offset(text: &str) -> Option<u64> {
    let last = text.lines().last()?.trim();
    if !last.starts_with(['[', '(']) {
        return None;
    }
    let after = &last[last.find("offset")? + "offset".len()..];
    let digits: String =
        after.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The files that matches stand in: `path:line: text`.
pub(super) fn matched_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (path, rest) = line.split_once(':')?;
        let (number, _) = rest.split_once(':')?;
        (!path.is_empty() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
            .then_some(path)
    })
}

//! The additions to a summary: the user's words, the skills in use, the facts, the active request and the lists of
//! files.
//!
//! Invariants: each has its tag, which is escaped in everything else, so that it can be taken off again.

use std::fmt::Write as _;

use super::escape_tags;
use crate::files::FileOps;
use crate::{ledger, skills, words};

/// The text before the active request.
const REQUEST_MARK: &str = "\n\nThe user's request in progress, word for word:\n<active-request>";
/// How the active request and the lists of files begin.
const REQUEST_AND_FILES: [&str; 4] =
    [REQUEST_MARK, "\n<active-request>", "\n<read-files>", "\n<modified-files>"];
pub(super) fn append_footer(
    mut text: String,
    carried: &str,
    active_request: Option<&str>,
    files: &FileOps,
) -> String {
    if !carried.is_empty() {
        let _ = write!(text, "\n\n{carried}");
    }
    if let Some(request) = active_request {
        let _ = write!(
            text,
            "{REQUEST_MARK}\n{}\n</active-request>",
            request.replace("</active-request", "&lt;/active-request")
        );
    }
    let footer = footer(files);
    if !footer.is_empty() {
        let _ = write!(text, "\n\n{footer}");
    }
    text
}

/// Returns a summary with these facts: behind the user's words, before the active request and the files.
pub(crate) fn with_facts(mut summary: String, facts: &str) -> String {
    if !facts.is_empty() {
        let end = end_before(&summary, &REQUEST_AND_FILES);
        let end = summary[..end].trim_end().len();
        summary.insert_str(end, &format!("\n\n{facts}"));
    }
    summary
}

/// Returns the lists of files, one path per line; empty if no file was touched.
pub(crate) fn footer(files: &FileOps) -> String {
    let list = |tag: &str, paths: Vec<&str>| {
        let lines: Vec<String> =
            paths.into_iter().map(|path| escape_tags(&path.replace('\n', " "))).collect();
        (!lines.is_empty()).then(|| format!("<{tag}>\n{}\n</{tag}>", lines.join("\n")))
    };
    let lists =
        [list("read-files", files.read().collect()), list("modified-files", files.modified().collect())];
    lists.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// Returns a summary without what this code added to it: the part that the next summariser merges.
pub fn without_footer(summary: &str) -> &str {
    split_footer(summary).0
}

/// Splits a summary into what the next summariser merges, and what this code added to it.
pub(crate) fn split_footer(summary: &str) -> (&str, &str) {
    let carried = [words::MARK, "\n<user-words>", skills::MARK, "\n<skills>", ledger::MARK, "\n<facts>"];
    let end = end_before(summary, &carried).min(end_before(summary, &REQUEST_AND_FILES));
    (summary[..end].trim_end(), summary[end..].trim())
}

/// Returns a summary without the active request and the lists of files.
pub(crate) fn without_request(summary: &str) -> &str {
    summary[..end_before(summary, &REQUEST_AND_FILES)].trim_end()
}

/// Returns where the first of these marks begins, or the end.
fn end_before(summary: &str, marks: &[&str]) -> usize {
    marks.iter().filter_map(|mark| summary.find(mark)).min().unwrap_or(summary.len())
}

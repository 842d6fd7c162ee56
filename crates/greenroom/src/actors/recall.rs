//! The tool `recall`: reads an entry of the session's own log, from any position in it, or searches what was compacted
//! away, so that messages left out of the context remain accessible.
//!
//! Invariants: it reads only the session of the call, and only messages that the current agent may see; one
//! call returns a bounded part.

use std::sync::Weak;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::message::{Message, blocks_text};
use greenroom_kernel::{ToolSpec, prune};
use greenroom_store::{Engine, StoreError};
use greenroom_tools::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;

use crate::core::deps::Deps;
use crate::core::searches;
use crate::values::recalled::Recalled;

/// How many characters one call returns.
const CHARACTERS: usize = 4_000;

/// Reads entries of its session.
pub(crate) struct Recall {
    pub(crate) deps: Weak<Deps>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    entry: Option<u64>,
    #[serde(default)]
    from: usize,
    find: Option<String>,
    query: Option<String>,
}

/// How many entries a search shows.
const FOUND_MAX: usize = 8;
/// How much of each entry a search shows, in bytes.
const PASSAGE_BYTES: usize = 480;

impl Tool for Recall {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: prune::RECALL.to_owned(),
            // Every request contains this description, so it is short.
            description: "Reads an entry that was left out or shortened, from a character on or from where a text is found; or searches what was compacted away for the words of `query`."
                .to_owned(),
            parameters: serde_json::json!({
                "type": "object",
                "properties": {
                    "entry": { "type": "integer" },
                    "from": { "type": "integer" },
                    "find": { "type": "string" },
                    "query": { "type": "string" },
                },
            }),
        }
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn call(&self, arguments: serde_json::Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let deps = self.deps.upgrade();
        async move {
            let wanted: Wanted = match serde_json::from_value(arguments) {
                Ok(wanted) => wanted,
                Err(error) => {
                    return ToolOutput::error(format!("the arguments are invalid: {error}"));
                }
            };
            let Some(deps) = deps else { return ToolOutput::error("the runtime is shut down") };
            if let Some(query) = wanted.query.clone() {
                return match wanted.entry {
                    None => search(&deps, context.session, query).await,
                    Some(_) => ToolOutput::error("give `entry` or `query`, not both"),
                };
            }
            let Some(entry) = wanted.entry else {
                return ToolOutput::error("give `entry` or `query`");
            };
            let id = EntryId(entry);
            match whole(&*deps.store, &context.session, id).await {
                Ok((Some(entry), ..)) => part(&entry, &wanted),
                Ok((None, entries, hidden_before)) => ToolOutput::error(match hidden_before {
                    EntryId(0) => format!(
                        "there is no entry {id}; this conversation has {entries} entries, numbered from 0"
                    ),
                    first => {
                        format!("entry {id} cannot be read; use an entry from {first} to below {entries}")
                    }
                }),
                Err(error) => ToolOutput::error(format!("entry {id} could not be read: {error}")),
            }
        }
        .boxed()
    }
}

/// Reads an entry with its whole text. Returns it, the number of entries, and which are hidden.
async fn whole(
    store: &dyn Engine,
    session: &str,
    id: EntryId,
) -> Result<(Option<Entry>, u64, EntryId), StoreError> {
    let head = store.head(session).await?.unwrap_or_default();
    let (entries, hidden_before) = (head.entries, head.hidden_before);
    if id.0 >= entries || id < hidden_before {
        return Ok((None, entries, hidden_before));
    }
    Ok((searches::whole(store, session, id, hidden_before).await?, entries, hidden_before))
}

/// Searches what was compacted away.
async fn search(deps: &Deps, session: String, query: String) -> ToolOutput {
    let wanted = searches::Wanted {
        words: query,
        limit: FOUND_MAX,
        passage_bytes: PASSAGE_BYTES,
        only_compacted: true,
    };
    let words = wanted.words.clone();
    match deps.searches.find(&*deps.store, &session, &wanted).await {
        Ok(found) if found.is_empty() => {
            ToolOutput::text(format!("Nothing that was compacted away has words of {words:?}."))
        }
        Ok(found) => {
            let shown = found.iter().map(|found| {
                let Recalled { entry, role, from, text, .. } = found;
                format!("[entry {entry}, {role}, from character {from}]\n{text}")
            });
            ToolOutput::text(shown.collect::<Vec<_>>().join("\n\n"))
        }
        Err(error) => ToolOutput::error(format!("the log could not be searched: {error}")),
    }
}

/// Returns the requested part of an entry, with a line that says which part it is.
fn part(entry: &Entry, wanted: &Wanted) -> ToolOutput {
    let id = entry.id;
    let Some((what, text)) = readable(&entry.kind) else {
        return ToolOutput::error(format!("entry {id} is not a message"));
    };
    let all = text.chars().count();
    let mut from = wanted.from.min(all);
    if let Some(find) = wanted.find.as_deref().filter(|find| !find.is_empty()) {
        let begin = text.char_indices().nth(from).map_or(text.len(), |(at, _)| at);
        let Some(at) = text[begin..].find(find) else {
            return ToolOutput::error(format!(
                "`{find}` does not stand in entry {id} from character {from} on"
            ));
        };
        from += text[begin..begin + at].chars().count();
    }
    let said: String = text.chars().skip(from).take(CHARACTERS).collect();
    let until = (from + CHARACTERS).min(all);
    let more = if until < all { format!("; from {until} reads on") } else { String::new() };
    ToolOutput::text(format!("[entry {id}, {what}: characters {from} to {until} of {all}{more}]\n{said}"))
}

/// Returns an entry's readable text and its kind; `None` if it has no text.
fn readable(kind: &EntryKind) -> Option<(String, String)> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have no text")]
    match kind {
        EntryKind::Message { message, .. } => {
            let what = match &**message {
                Message::User(_) => "a message of the user".to_owned(),
                Message::Assistant(_) => "an answer".to_owned(),
                Message::ToolResult(result) => format!("a result of `{}`", result.tool_name),
            };
            Some((what, message.said()))
        }
        EntryKind::WholeResult { content, .. } => Some(("a whole result".to_owned(), blocks_text(content))),
        EntryKind::Shell(shell) => Some(("a command of the user".to_owned(), shell.output.clone())),
        EntryKind::Custom(custom) => Some(("a message".to_owned(), blocks_text(&custom.content))),
        EntryKind::BranchSummary { summary, .. } => {
            Some(("a summary of a branch".to_owned(), summary.clone()))
        }
        EntryKind::Compaction(compaction) => Some(("a summary".to_owned(), compaction.summary.clone())),
        _ => None,
    }
}

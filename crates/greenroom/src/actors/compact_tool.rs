//! The tool `compact`: with it the model says that a part of its work is done, and what must not be forgotten.
//!
//! Invariants: it compacts nothing itself, but requests a compaction after the run, which is dropped if nothing came
//! since the last one; a context that fills little of its window is not compacted; what the model wants to be kept is
//! bounded, and kept verbatim by the ledger.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_kernel::compacting::COMPACT;
use greenroom_tools::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;

use crate::core::deps::Deps;
use crate::values::compaction::CompactOptions;

/// The share of the window, in percent, below which nothing is compacted: a compaction keeps a quarter and its summary.
const PERCENT_MIN: u64 = 40;
/// The maximum number of items to remember.
const ITEMS_MAX: usize = 16;
/// The longest text of one, in characters.
const CHARS_MAX: usize = 400;

/// Requests a compaction of its session.
pub(crate) struct CompactTool {
    pub(crate) deps: Weak<Deps>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    done: String,
    #[serde(default)]
    remember: Vec<String>,
}

impl Tool for CompactTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: COMPACT.to_owned(),
            description: "Say that a part of the work is done, so that the details of it are replaced by a summary after \
                          your answer. `remember` lists what must be kept word for word."
                .to_owned(),
            parameters: serde_json::json!({
                "type": "object",
                "properties": {
                    "done": { "type": "string", "maxLength": CHARS_MAX },
                    "remember": {
                        "type": "array",
                        "items": { "type": "string", "maxLength": CHARS_MAX },
                        "maxItems": ITEMS_MAX,
                    },
                },
                "required": ["done"],
            }),
        }
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
            if let Some(wrong) = wrong(&wanted) {
                return ToolOutput::error(wrong);
            }
            let Some(deps) = deps else { return ToolOutput::error("the runtime is shut down") };
            match percent(&deps, &context.session).await {
                Some(percent) if percent < PERCENT_MIN => ToolOutput::text(format!(
                    "The context fills {percent} % of its window, so nothing is compacted yet. Go on."
                )),
                Some(_) | None => {
                    let focus = format!("this part of the work is done: {}", wanted.done.trim());
                    context
                        .compaction
                        .request(CompactOptions { focus: Some(focus), ..CompactOptions::default() });
                    ToolOutput::text("The conversation is compacted after your answer.")
                }
            }
        }
        .boxed()
    }
}

/// Returns what is wrong with a request.
fn wrong(wanted: &Wanted) -> Option<String> {
    let is_long = |text: &String| text.chars().count() > CHARS_MAX;
    if wanted.done.trim().is_empty() {
        Some("`done` must say what is done".to_owned())
    } else if wanted.remember.len() > ITEMS_MAX {
        Some(format!("`remember` has {} items, and at most {ITEMS_MAX} are kept", wanted.remember.len()))
    } else if is_long(&wanted.done) || wanted.remember.iter().any(is_long) {
        Some(format!("a text has more than {CHARS_MAX} characters; say it shorter, or as several items"))
    } else {
        None
    }
}

/// Returns how much of its window the context of a session fills, in percent; `None` if that is not known.
async fn percent(deps: &Arc<Deps>, session: &str) -> Option<u64> {
    let head = deps.store.head(session).await.ok()??;
    (head.context_tokens * 100).checked_div(head.window?)
}

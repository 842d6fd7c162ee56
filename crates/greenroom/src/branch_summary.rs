//! The summary of a branch that is left: asked for once, outside the actors, before anything is changed.

use std::sync::Arc;

use greenroom_kernel::entry::{EntryKind, Spent};
use greenroom_kernel::plan::touched_files;
use greenroom_kernel::summary::{self, Style, SummaryKind};
use greenroom_kernel::{Failure, FailureClass};

use crate::deps::{Deps, model_info};
use crate::error::{Error, Result};
use crate::message::{BranchSummary, LeftBranch, Summariser};

/// A summary of the branch; `None` if nothing was said on it. What the calls spent is added to `spent`, also where no
/// summary comes of them.
pub(crate) async fn of(
    deps: &Deps,
    session: &Arc<str>,
    left: LeftBranch,
    spent: &mut Spent,
) -> Result<Option<BranchSummary>> {
    let said = left.entries.iter().filter(|entry| !matches!(entry.kind, EntryKind::Compaction(_)));
    let pieces = summary::transcript(&said.cloned().collect::<Vec<_>>());
    if pieces.is_empty() {
        return Ok(None);
    }
    let lane = deps.lane(&left.definition).ok_or_else(|| deps.unknown_provider(&left.definition))?;
    // A branch is small beside a history; one that is not is summarised by its newest part.
    let budget = left.summariser_window.saturating_sub(left.cap_tokens) / 2;
    let chunks = summary::chunks(&pieces, budget.max(64));
    let newest = chunks.last().map(String::as_str).unwrap_or_default();
    let text = summary::request_text(SummaryKind::Branch, newest, None, &Style::default(), left.cap_tokens);
    let settings = deps.summary_settings(&left.definition, &left.model);
    let summariser = Summariser { lane: Arc::clone(lane), model: left.model, settings };
    let mut rejected = String::new();
    for _ in 0..2 {
        let output = summary::output_tokens(left.cap_tokens).min(left.output_tokens_max.unwrap_or(u64::MAX));
        let answer = crate::summary_call::ask(&summariser, session, text.clone(), output).await;
        let answer = answer.map_err(|error| Error::Model(error.failure))?;
        if let Some(usage) = &answer.usage {
            spent.usage.add(usage);
            let info = model_info(&answer.provider, &answer.model);
            let cost = info.and_then(|info| info.cost_microdollars(usage));
            spent.cost_microdollars = spent.cost_microdollars.zip(cost).map(|(sum, cost)| sum + cost);
        }
        match summary::accept(&answer, SummaryKind::Branch, left.cap_tokens, true) {
            Ok(summary) => {
                return Ok(Some(BranchSummary { summary, files: touched_files(&left.entries) }));
            }
            Err(error) => rejected = error.to_string(),
        }
    }
    Err(Error::Model(Failure::new(FailureClass::Malformed, rejected)))
}

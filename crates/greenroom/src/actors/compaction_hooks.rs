//! Calls the hooks around a compaction.
//!
//! Invariants: a hook that fails or takes too long is skipped, with a warning; it stops no compaction.

use greenroom_kernel::compacting::HookDecision;

use crate::agent::hooks::{AgentHooks, Hooks, guarded};
use crate::limits::waits::Chain;
use crate::values::compaction::{BeforeCompact, CompactionProposal, CompactionReport};

/// Calls the hooks of the runtime and of the agent before a compaction. Returns their decision, and a warning for
/// each hook that was skipped.
pub(crate) async fn before_compact(
    runtime: &Hooks,
    agent: &AgentHooks,
    proposal: &CompactionProposal,
) -> (HookDecision, Vec<String>) {
    let of_runtime = runtime.before_compact.iter().map(|hook| (hook, runtime.limit()));
    let of_agent = agent.before_compact.iter().map(|hook| (hook, agent.limit()));
    let (mut supplied, mut focus, mut warnings) = (None, Vec::new(), Vec::new());
    // The compaction waits for the hook, and the session's next run waits for the compaction.
    let waiting = Chain::default().and(&proposal.session);
    for (hook, limit) in of_runtime.chain(of_agent) {
        match guarded(&waiting, limit, || hook(proposal.clone())).await {
            Ok(BeforeCompact::Continue) => {}
            Ok(BeforeCompact::Cancel(reason)) => return (HookDecision::Cancel { reason }, warnings),
            Ok(BeforeCompact::Focus(more)) => focus.push(more),
            Ok(BeforeCompact::Supply(summary)) => supplied = supplied.or(Some(summary)),
            Ok(BeforeCompact::Skip(problem)) | Err(problem) => {
                warnings.push(format!("a before_compact hook was skipped: {problem}"));
            }
        }
    }
    let decision = match supplied {
        Some(supplied) => HookDecision::Supply(supplied),
        None if focus.is_empty() => HookDecision::Continue,
        None => HookDecision::Focus(focus.join("; ")),
    };
    (decision, warnings)
}

/// Calls all hooks after a compaction. Returns a warning for each hook that was skipped.
pub(crate) async fn ended(hooks: &Hooks, report: CompactionReport) -> Vec<String> {
    let those = if report.entry.is_some() { &hooks.after_compact } else { &hooks.compact_failed };
    let mut warnings = Vec::new();
    for hook in those {
        // No session waits for this hook.
        if let Err(problem) = guarded(&Chain::default(), hooks.limit(), || hook(report.clone())).await {
            warnings.push(format!("a hook after a compaction was skipped: {problem}"));
        }
    }
    warnings
}

//! What a program may say about compactions: before, after, and when one failed.
//!
//! Invariants: any cancel wins, else the first supplied summary; a hook that fails or takes longer than
//! [`HOOK_TIMEOUT`] is reported and skipped, and never harms the session.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::compacting::HookDecision;
use greenroom_tools::panic_text;

use crate::compaction::{BeforeCompact, CompactionProposal, CompactionReport};
use crate::waits::Chain;

/// How long a hook may take.
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);

type Before = Arc<dyn Fn(CompactionProposal) -> BoxFuture<'static, BeforeCompact> + Send + Sync>;
type After = Arc<dyn Fn(CompactionReport) -> BoxFuture<'static, ()> + Send + Sync>;

/// A runtime's hooks.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) before_compact: Vec<Before>,
    pub(crate) after_compact: Vec<After>,
    pub(crate) compact_failed: Vec<After>,
}

impl Hooks {
    /// Whether the runtime has no hooks.
    pub(crate) fn is_empty(&self) -> bool {
        self.before_compact.is_empty() && self.after_compact.is_empty() && self.compact_failed.is_empty()
    }

    /// Asks all hooks before a compaction. Gives their decision, and a warning for each hook that was skipped.
    pub(crate) async fn before(&self, proposal: &CompactionProposal) -> (HookDecision, Vec<String>) {
        let mut warnings = Vec::new();
        let mut supplied = None;
        // The compaction waits for the hook, and the session's next run for the compaction.
        let waiting = Chain::default().and(&proposal.session);
        for hook in &self.before_compact {
            match guarded(waiting.clone(), || hook(proposal.clone())).await {
                Ok(BeforeCompact::Continue) => {}
                Ok(BeforeCompact::Cancel(reason)) => return (HookDecision::Cancel { reason }, warnings),
                Ok(BeforeCompact::Supply(summary)) => supplied = supplied.or(Some(summary)),
                Err(problem) => warnings.push(format!("a before_compact hook was skipped: {problem}")),
            }
        }
        (supplied.map_or(HookDecision::Continue, HookDecision::Supply), warnings)
    }

    /// Tells all hooks that a compaction ended. Gives a warning for each hook that was skipped.
    pub(crate) async fn ended(&self, report: CompactionReport) -> Vec<String> {
        let hooks = if report.entry.is_some() { &self.after_compact } else { &self.compact_failed };
        let mut warnings = Vec::new();
        for hook in hooks {
            if let Err(problem) = guarded(Chain::default(), || hook(report.clone())).await {
                warnings.push(format!("a hook after a compaction was skipped: {problem}"));
            }
        }
        warnings
    }
}

/// Runs a hook, for which these sessions wait.
async fn guarded<T>(waiting: Chain, hook: impl FnOnce() -> BoxFuture<'static, T>) -> Result<T, String> {
    let call = waiting.scope(async { hook().await });
    match tokio::time::timeout(HOOK_TIMEOUT, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => Err(format!("it panicked: {}", panic_text(&*panic))),
        Err(_) => Err(format!("it took longer than {} s", HOOK_TIMEOUT.as_secs())),
    }
}

//! Reads messages that were cut without a summary from the log, for a later summary that includes them.
//!
//! Invariants: at most as much is read as one summary accepts, the newest first, in blocks; unread ranges are
//! returned, so the next summary reads them. Only messages are returned.

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId, EntryRange};
use greenroom_kernel::path::is_message;
use greenroom_store::{Engine, StoreError};

/// How many entries are read at a time.
const BLOCK: u64 = 64;
/// The maximum number of tokens that one message counts: a transcript shows no more of a tool result.
const MESSAGE_TOKENS_MAX: u64 = 1_000;

/// Returns the messages of these ranges, oldest first, up to about `tokens_max` in total; and the unread
/// ranges.
pub(super) async fn read(
    store: &dyn Engine,
    session: &str,
    ranges: &[EntryRange],
    tokens_max: u64,
) -> Result<(Vec<Arc<Entry>>, Vec<EntryRange>), StoreError> {
    let mut found = Vec::new();
    let mut left = ranges.to_vec();
    let mut tokens = 0u64;
    while let Some(range) = left.pop() {
        let mut next = Some(range.last);
        while let Some(last) = next.filter(|last| *last >= range.first) {
            if tokens >= tokens_max {
                left.push(EntryRange { first: range.first, last });
                found.reverse();
                return Ok((found, left));
            }
            let from = EntryId(last.0.saturating_sub(BLOCK - 1)).max(range.first);
            let ids: Vec<EntryId> = (from.0..=last.0).map(EntryId).collect();
            let block = store.get(session, &ids).await?;
            next = Some(last);
            // Back along the path: entries of other branches may be in between.
            while let Some(id) = next.filter(|id| *id >= from && tokens < tokens_max) {
                let entry = usize::try_from(id.0 - from.0).ok().and_then(|index| block.get(index));
                next = entry.and_then(|entry| entry.parent).filter(|parent| *parent < id);
                let Some(entry) = entry else { break };
                if is_message(&entry.kind) {
                    tokens += entry.tokens.min(MESSAGE_TOKENS_MAX);
                    found.push(Arc::new(entry.clone()));
                }
            }
        }
    }
    found.reverse();
    Ok((found, Vec::new()))
}

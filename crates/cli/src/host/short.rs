//! Short ids for people: the shortest prefix with which every command finds a session.
//!
//! Invariants: a short id that is returned was resolved to its session.

use greenroom_server::Client;
use greenroom_server::operations::FindSession;

/// The shortest prefix, in characters: shorter ones soon become ambiguous, and `delete` asks about them.
const SHORT_MIN: usize = 8;

/// Returns the short id of a session.
pub(crate) async fn short_id(client: &Client, id: &str) -> String {
    let ends: Vec<usize> = id.char_indices().map(|(at, _)| at).skip(SHORT_MIN).chain([id.len()]).collect();
    // Whether a prefix is enough does not change as it gets longer.
    let (mut low, mut high) = (0, ends.len().saturating_sub(1));
    while low < high {
        let middle = low.midpoint(high);
        let prefix = &id[..ends[middle]];
        let found = client.call(FindSession { prefix: prefix.to_owned() }).await;
        if found.is_ok_and(|found| found.session_id == id) { high = middle } else { low = middle + 1 }
    }
    ends.get(low).map_or(id, |end| &id[..*end]).to_owned()
}

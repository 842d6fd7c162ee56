//! Reads entries through the index. Every function here blocks on the disk.
//!
//! Invariants: a returned entry was read from a whole frame of the journal and has the requested id. A
//! missing entry is a typed error, or is listed as lost.

use std::sync::Arc;

use greenroom_kernel::head::Head;
use greenroom_kernel::{Entry, EntryId};

use crate::error::StoreError;
use crate::index::{Index, Location, Row};
use crate::journal::segments::Segments;
use crate::loss::{Loss, Salvaged};
use crate::record::{self, StoredRecord};

/// Reads the whole session, and returns its losses; `None` if there are none.
pub(crate) fn check(
    index: &Index,
    segments: &Segments,
    session: &str,
    row: &Row,
) -> Result<Option<Loss>, StoreError> {
    // This requests a rebuild of the index if it finds an unreadable entry, so that the next start
    // quarantines the session.
    let lost = match load(index, segments, session, 0, row.head.entries) {
        Ok(_) => Vec::new(),
        Err(StoreError::Damaged { .. }) => salvage(index, segments, session, 0, row.head.entries)?.lost,
        Err(error) => return Err(error),
    };
    let quarantined_from = row.head.lost_from;
    let is_accepted = row.place.mark.is_some() && quarantined_from.is_none();
    let is_whole = lost.is_empty() && quarantined_from.is_none();
    Ok((!is_whole).then(|| Loss { session: session.to_owned(), lost, quarantined_from, is_accepted }))
}

/// The entries of a frame, and the head after them.
type Decoded = (Vec<Arc<Entry>>, Arc<Head>);

/// Returns the entries in the frame at `at`, and the head after them; `None` if the frame is damaged or gone.
fn read_frame(segments: &Segments, session: &str, at: Location) -> Result<Option<Decoded>, StoreError> {
    let Some((_, payload)) = segments.read(at, session)? else { return Ok(None) };
    match record::decode(&payload)? {
        StoredRecord::Append { entries, head, .. }
        | StoredRecord::Part { entries, head, .. }
        | StoredRecord::Commit { entries, head, .. } => Ok(Some((entries, head))),
        StoredRecord::Deleted
        | StoredRecord::Learned { .. }
        | StoredRecord::Quarantined { .. }
        | StoredRecord::LossAccepted { .. } => Ok(None),
    }
}

/// Reads the entries in `from..until` as far as possible.
pub(crate) fn salvage(
    index: &Index,
    segments: &Segments,
    session: &str,
    from: u64,
    until: u64,
) -> Result<Salvaged, StoreError> {
    let mut salvaged = Salvaged::default();
    let mut next = from;
    // A segment may be rewritten after the index was read and before the frame is read. Reading the index
    // again finds the new location.
    let mut is_second_try = false;
    let mut places = index.entries(session, next, until)?.into_iter().peekable();
    while next < until {
        while places.peek().is_some_and(|(sequence, _)| *sequence < next) {
            places.next();
        }
        let Some((sequence, location)) = places.peek().copied() else {
            lose(&mut salvaged, next, until);
            break;
        };
        if sequence > next {
            lose(&mut salvaged, next, sequence);
            next = sequence;
        }
        let before = next;
        for entry in read_frame(segments, session, location)?.map(|(entries, _)| entries).unwrap_or_default()
        {
            if entry.id.0 == next && next < until {
                salvaged.entries.push(Arc::unwrap_or_clone(entry));
                next += 1;
            }
        }
        if next > before {
            is_second_try = false;
        } else if is_second_try {
            lose(&mut salvaged, next, next + 1);
            next += 1;
            is_second_try = false;
        } else {
            is_second_try = true;
            places = index.entries(session, next, until)?.into_iter().peekable();
        }
    }
    Ok(salvaged)
}

fn lose(salvaged: &mut Salvaged, from: u64, until: u64) {
    match salvaged.lost.last_mut() {
        Some((_, last)) if last.0 == from => *last = EntryId(until),
        _ => salvaged.lost.push((EntryId(from), EntryId(until))),
    }
}

/// Reads the entries in `from..until`; a typed error if one of them is lost.
pub(crate) fn load(
    index: &Index,
    segments: &Segments,
    session: &str,
    from: u64,
    until: u64,
) -> Result<Vec<Entry>, StoreError> {
    let Salvaged { entries, lost } = salvage(index, segments, session, from, until)?;
    match lost.first() {
        None => Ok(entries),
        Some((entry, _)) => {
            // If the loss is already recorded, rebuilding the index would find nothing new.
            if index.row(session)?.is_some_and(|row| row.place.mark.is_none() && row.head.lost_from.is_none())
            {
                index.mark_suspect("an entry that it lists cannot be read");
            }
            Err(StoreError::Damaged { session: session.to_owned(), entry: *entry })
        }
    }
}

/// Returns the head with which a session continues after a loss. It is the newest head if everything that the
/// context needs can be read, and otherwise the head after the last entry before the loss.
pub(crate) fn head_after_loss(
    index: &Index,
    segments: &Segments,
    session: &str,
    newest: &Head,
    lost_from: EntryId,
) -> Result<Head, StoreError> {
    let active_from = newest.active_from.0.min(newest.entries);
    if salvage(index, segments, session, active_from, newest.entries)?.lost.is_empty() {
        return Ok(newest.clone());
    }
    head_at(index, segments, session, lost_from.0, newest)
}

/// Returns the head after the last readable entry before `until`. If there is none, only the title, the model
/// and the like are kept from the newest head.
pub(crate) fn head_at(
    index: &Index,
    segments: &Segments,
    session: &str,
    until: u64,
    newest: &Head,
) -> Result<Head, StoreError> {
    let mut until = until;
    while let Some(before) = until.checked_sub(1) {
        if let Some(location) = index.entry(session, before)?
            && let Some((_, head)) = read_frame(segments, session, location)?
        {
            return Ok(Arc::unwrap_or_clone(head));
        }
        until = before;
    }
    Ok(newest.without_context(0))
}

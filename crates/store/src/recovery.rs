//! Opening a store: finding out what the journal holds, what was lost, and bringing the index up to it.
//!
//! Invariants: nothing that was acknowledged and is gone stays unpublished, as far as journal, manifest or index still
//! know of it; what is whole can be read; nothing here panics over what is on the disk. The segment that was written
//! to is read as a whole; sealed ones are known by their last bytes, and read only to build the index again.

mod listing;
mod replay;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::StoreOptions;
use crate::error::{Notice, StoreError};
use crate::files::{File, Files};
use crate::head::Head;
use crate::index::{Checkpoint, Location, Row};
use crate::indexer::{Indexer, lost_head};
use crate::journal::manifest::{Listed, Manifest, State};
use crate::journal::segments::{Segments, journal_dir, random_seed};
use crate::journal::{Bad, Frame, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, first_chain, scan};
use crate::lock::DirectoryLock;
use crate::reader;
use crate::record::StoredRecord;
use crate::writer::{Active, Writer, open_active};
use trust::Trusted;

/// So much is staged before it is moved to sled while the journal is read again.
const STAGED_BYTES_MAX: usize = 8 << 20;

/// A part of the journal that is gone.
#[derive(Debug)]
struct Part {
    segment: u64,
    from: u64,
    until: u64,
    /// The frames in it that are still known from their headers or from the footer.
    known: Vec<Frame>,
    /// Whether it is what the segment that was written to ended with.
    is_tail: bool,
    /// Whether it is known only from what is missing: without a session there is nothing to say.
    is_inferred: bool,
    others_possible: bool,
    sessions: BTreeSet<String>,
}

impl Part {
    fn new(segment: u64, from: u64, until: u64, known: Vec<Frame>) -> Self {
        Self {
            segment,
            from,
            until,
            known,
            is_tail: false,
            is_inferred: false,
            others_possible: true,
            sessions: BTreeSet::new(),
        }
    }

    fn covers(&self, location: Location) -> bool {
        location.segment == self.segment
            && location.offset < self.until
            && location.offset + u64::from(location.length) > self.from
    }
}

struct Recovery<'a> {
    options: &'a StoreOptions,
    segments: Arc<Segments>,
    manifest: Manifest,
    parts: Vec<Part>,
    notices: Vec<Notice>,
    is_manifest_changed: bool,
}

/// Opens the journal and the index in `options.dir`, which is locked.
pub(crate) fn recover(
    options: &StoreOptions,
    lock: DirectoryLock,
) -> Result<(Writer, Vec<Notice>), StoreError> {
    let dir = journal_dir(&options.dir);
    let created = options.files.create_dir(&dir);
    created.map_err(|error| StoreError::io("create", &dir, error))?;
    let mut recovery = Recovery {
        options,
        segments: Arc::new(Segments::new(Arc::clone(&options.files), dir)),
        manifest: Manifest::default(),
        parts: Vec::new(),
        notices: Vec::new(),
        is_manifest_changed: false,
    };
    recovery.list_segments()?;
    recovery.verify_sealed()?;
    let (index, trusted) = recovery.open_index();
    let mut opened = recovery.read_active(trusted.as_ref().map(|trusted| trusted.checkpoint))?;
    let mut indexer = match trusted {
        Some(trusted) if !recovery.is_shifted(&opened, &trusted) => {
            let mut indexer = Indexer::new(Arc::clone(&index), trusted.checkpoint, trusted.segments);
            recovery.lose_by_index(&mut indexer)?;
            recovery.replay(&mut indexer, Some(trusted.checkpoint), &opened)?;
            indexer
        }
        Some(_) => {
            let index = recovery.rebuild(&index, "it does not fit the journal");
            let mut indexer = Indexer::new(index, Checkpoint::default(), BTreeMap::new());
            recovery.replay(&mut indexer, None, &opened)?;
            indexer
        }
        None => {
            let mut indexer = Indexer::new(index, Checkpoint::default(), BTreeMap::new());
            recovery.replay(&mut indexer, None, &opened)?;
            indexer
        }
    };
    let index = indexer.index();
    let is_suspect = match opened.as_mut() {
        Some(opened) => opened.trim(),
        None => false,
    };
    let active = recovery.active(opened, &mut indexer)?;
    recovery.say_what_was_lost(&mut indexer)?;
    let Recovery { segments, manifest, notices, .. } = recovery;
    let mut writer = Writer {
        segments,
        index,
        indexer,
        manifest,
        active,
        segment_bytes: options.segment_bytes,
        is_suspect,
        is_manifest_dirty: false,
        is_reclaim_due: false,
        lock,
    };
    writer.indexer.publish();
    quarantine(&mut writer);
    if let Err(error) = writer.index.settle() {
        tracing::error!(%error, "the index cannot be written; the journal goes on without it");
    }
    Ok((writer, notices))
}

/// Writes the losses that were found to the journal, so that an index built again knows of them.
fn quarantine(writer: &mut Writer) {
    for (session, from) in writer.indexer.newly_lost.clone() {
        let written = writer.indexer.row(&session).and_then(|row| {
            let Some(Row { head, .. }) = row else { return Ok(()) };
            let record = StoredRecord::Quarantined { from, head: Box::new(head.clone()) };
            writer.write_record(&session, head.entries, record)
        });
        if let Err(error) = written {
            // The index knows; the journal is told at the next start that finds the loss again.
            tracing::warn!(%error, session, "cannot write down that the session lost entries");
        }
    }
}

/// The segment that was written to.
struct Opened {
    listed: Listed,
    file: Arc<dyn File>,
    bytes: Vec<u8>,
    scan: Scan,
    /// The file goes on behind the last frame that counts.
    is_longer: bool,
    /// It is damaged and must not be written to.
    is_damaged: bool,
}

impl Opened {
    /// Cuts off what does not count; true if that failed, and has to be done before anything is written.
    fn trim(&mut self) -> bool {
        if !self.is_longer || self.is_damaged {
            return false;
        }
        let cut = self.file.truncate(self.scan.end).and_then(|()| self.file.sync());
        if let Err(error) = &cut {
            tracing::warn!(%error, "cannot cut off an unfinished write; the next append tries again");
        }
        cut.is_err()
    }
}

impl Recovery<'_> {
    fn files(&self) -> &dyn Files {
        self.segments.files.as_ref()
    }

    /// Reads the segment that was written to, and decides where it ends.
    fn read_active(&mut self, checkpoint: Option<Checkpoint>) -> Result<Option<Opened>, StoreError> {
        let active = self.manifest.segments.iter().find_map(|listed| match listed.state {
            State::Active { floor } => Some((*listed, floor)),
            State::Sealed { .. } | State::Abandoned { .. } => None,
        });
        let Some((listed, floor)) = active else { return Ok(None) };
        let Some(bytes) = self.read_segment(listed.id)? else {
            self.lose_segment(listed.id);
            return Ok(None);
        };
        let file = open_active(&self.segments, listed.id)?;
        let indexed = checkpoint.filter(|checkpoint| checkpoint.segment == listed.id);
        // Up to here everything had been acknowledged.
        let known_end = indexed.map_or(0, |checkpoint| checkpoint.offset).max(floor);
        let mut scanned = scan(&bytes, listed.id, listed.seed, None);
        let length = bytes.len() as u64;
        let mut is_damaged = false;
        if SegmentHeader::decode(&bytes)?.is_none() {
            // No entry is lost with it: the list knows the seed.
            let mut part = Part::new(listed.id, 0, SEGMENT_HEADER_BYTES, Vec::new());
            part.others_possible = false;
            self.parts.push(part);
            is_damaged = true;
        }
        let unfinished =
            scanned.bad.iter().position(|(bad, was_synced)| !was_synced && bad.from >= known_end);
        if let Some(position) = unfinished {
            // The last write never finished, and its pieces reached the disk out of order.
            let from = scanned.bad[position].0.from;
            scanned.bad.truncate(position);
            scanned.frames.retain(|(frame, _)| frame.offset < from);
            let last = scanned.frames.last();
            scanned.end = last.map_or(SEGMENT_HEADER_BYTES, |(frame, _)| frame.end());
            scanned.chain = last.map_or(first_chain(listed.id, listed.seed), |(_, chain)| *chain);
            scanned.tail = Some(Bad { from: scanned.end, until: length, legible: Vec::new() });
        }
        let first_part = self.parts.len();
        self.take_parts(&listed, &scanned, None, 0);
        if scanned.end < known_end {
            let legible = scanned.tail.take().map(|tail| tail.legible).unwrap_or_default();
            let mut part = Part::new(listed.id, scanned.end, known_end.max(length), legible);
            part.is_tail = true;
            self.parts.push(part);
        } else if let Some(Bad { from, until, .. }) = &scanned.tail {
            self.notices.push(Notice::TailCut { segment: listed.id, offset: *from, bytes: until - from });
        }
        is_damaged |= self.parts.len() > first_part;
        let is_longer = length > scanned.end;
        Ok(Some(Opened { listed, file, bytes, scan: scanned, is_longer, is_damaged }))
    }

    /// Whether the index's checkpoint is not where a frame of the journal ends, though nothing is damaged there.
    fn is_shifted(&self, opened: &Option<Opened>, trusted: &Trusted) -> bool {
        if self.parts.iter().any(|part| part.from == part.until && part.others_possible) {
            // Frames were cut out: everything after them stands elsewhere.
            return true;
        }
        let Checkpoint { segment, offset, chain, .. } = trusted.checkpoint;
        let Some(opened) = opened.as_ref().filter(|opened| opened.listed.id == segment) else { return false };
        let is_start = (offset, chain) == (SEGMENT_HEADER_BYTES, first_chain(segment, opened.listed.seed));
        let is_end = opened.scan.frames.iter().any(|(frame, next)| (frame.end(), *next) == (offset, chain));
        let is_damaged = |part: &Part| part.segment == segment && part.from < offset && part.until >= offset;
        !is_start && !is_end && !self.parts.iter().any(is_damaged)
    }

    /// Finds in the index which sessions lost entries with the parts that are gone.
    fn lose_by_index(&mut self, indexer: &mut Indexer) -> Result<(), StoreError> {
        let known: BTreeSet<u64> = self.parts.iter().map(|part| part.segment).collect();
        for &id in indexer.segments.keys() {
            if self.manifest.get(id).is_none() && !known.contains(&id) {
                let mut part = Part::new(id, 0, u64::MAX, Vec::new());
                part.is_inferred = true;
                self.parts.push(part);
            }
            self.manifest.next_id = self.manifest.next_id.max(id + 1);
        }
        if self.parts.is_empty() {
            return Ok(());
        }
        let mut lost: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for (session, sequence, location) in indexer.index().all_entries()? {
            if self.blame(location, &session) {
                lost.entry(session).or_default().insert(sequence);
            }
        }
        let (rows, _) = indexer.index().rows()?;
        for (session, Row { head, mut place }) in rows {
            let sequences = lost.remove(&session).unwrap_or_default();
            let is_newest_lost = self.blame(place.newest, &session);
            if sequences.is_empty() && !is_newest_lost {
                continue;
            }
            for sequence in &sequences {
                indexer.forget_entry(&session, *sequence);
            }
            indexer.publish();
            let mut after = head.clone();
            if is_newest_lost {
                let index = indexer.index();
                let remaining = index.entries(&session, 0, u64::MAX)?;
                let until = remaining.last().map_or(0, |(sequence, _)| sequence + 1);
                after = reader::head_at(&index, &self.segments, &session, until, &head)?;
                after.entries = after.entries.max(until);
                place.newest = remaining.last().map_or(place.newest, |(_, location)| *location);
            }
            let from = EntryId(sequences.first().copied().unwrap_or(after.entries));
            let from = head.lost_from.map_or(from, |earlier| earlier.min(from));
            indexer.replace_row(&session, &lost_head(after, from), place)?;
            indexer.newly_lost.insert(session, from);
        }
        for id in indexer.segments.keys().copied().collect::<Vec<_>>() {
            if self.manifest.get(id).is_none() {
                indexer.drop_segment(id);
            }
        }
        for part in &mut self.parts {
            // The index knows all that stood there, unless it had not come that far.
            let is_indexed =
                part.segment != indexer.checkpoint.segment || part.until <= indexer.checkpoint.offset;
            let segment_order = self.manifest.get(part.segment).map(|listed| listed.order);
            let end_order = indexer.segments.get(&indexer.checkpoint.segment).map(|row| row.order);
            part.others_possible &= !(is_indexed && segment_order <= end_order);
        }
        indexer.publish();
        Ok(())
    }

    /// Whether what stood at `location` is gone; if so, the session is noted with that part.
    fn blame(&mut self, location: Location, session: &str) -> bool {
        match self.parts.iter_mut().find(|part| part.covers(location)) {
            None => false,
            Some(part) => {
                part.sessions.insert(session.to_owned());
                true
            }
        }
    }

    /// The segment to write to: the one that was, if it is whole, or a new one.
    fn active(&mut self, opened: Option<Opened>, indexer: &mut Indexer) -> Result<Active, StoreError> {
        match opened {
            Some(opened) if !opened.is_damaged => {
                if self.is_manifest_changed {
                    self.manifest.store(self.files(), &self.segments.dir)?;
                }
                let Opened { listed, file, scan, .. } = opened;
                let frames = scan.frames.into_iter().map(|(frame, _)| frame).collect();
                let Listed { id, seed, .. } = listed;
                return Ok(Active { id, seed, file, end: scan.end, chain: scan.chain, frames });
            }
            Some(opened) => self.abandon(opened.listed.id, opened.scan.end),
            None => {}
        }
        let id = self.manifest.next_id.max(1);
        let highest = self.manifest.segments.iter().map(|listed| listed.order);
        let highest = highest.chain(indexer.segments.values().map(|row| row.order)).max();
        let header = SegmentHeader { id, order: highest.map_or(id, |order| order + 1), seed: random_seed() };
        self.manifest.next_id = id + 1;
        let file = self.segments.create(&header)?;
        let state = State::Active { floor: SEGMENT_HEADER_BYTES };
        self.manifest.segments.push(Listed { id, order: header.order, seed: header.seed, state });
        self.manifest.store(self.files(), &self.segments.dir)?;
        self.segments.add(id, header.seed, Some(Arc::clone(&file)));
        indexer.begin_segment(id, header.order, header.seed, header.chain());
        Ok(Active {
            id,
            seed: header.seed,
            file,
            end: SEGMENT_HEADER_BYTES,
            chain: header.chain(),
            frames: Vec::new(),
        })
    }

    /// Turns what was found into notices.
    fn say_what_was_lost(&mut self, indexer: &mut Indexer) -> Result<(), StoreError> {
        let mut said = BTreeSet::new();
        for part in &mut self.parts {
            let mut holed = Vec::new();
            let mut is_tail_said = false;
            for session in std::mem::take(&mut part.sessions) {
                let row = indexer.row(&session)?;
                let Some(Row { head: Head { lost_from: Some(from), entries, .. }, .. }) = row else {
                    continue;
                };
                if from.0 < entries {
                    holed.push(session);
                } else {
                    is_tail_said = true;
                    if said.insert(session.clone()) {
                        self.notices.push(Notice::TailLost { session, from });
                    }
                }
            }
            let is_only_tail = is_tail_said && holed.is_empty() && (part.is_tail || part.is_inferred);
            let is_nothing = part.is_inferred && holed.is_empty();
            if !is_only_tail && !is_nothing {
                self.notices.push(Notice::Damaged {
                    segment: part.segment,
                    offset: part.from,
                    sessions: holed,
                    others_possible: part.others_possible,
                });
            }
        }
        Ok(())
    }
}

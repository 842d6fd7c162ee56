//! Opens a store: determines what the journal holds and what was lost, and brings the index up to date.
//!
//! The steps, in order: read the list of segments and check the ends of those that are no longer written to
//! (`listing`), open the index and decide whether it can be used (`trust`), read the active segment, apply
//! the journal to the index from the checkpoint on (`replay`), and report losses.
//!
//! Invariants: a missing acknowledged entry is reported, as far as the journal, the manifest or the index
//! still knows of it. Everything undamaged can be read. Nothing here panics because of the disk's content.
//! Sealed segments are read as a whole only if they are damaged or the index has to be rebuilt.

mod listing;
mod replay;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use greenroom_kernel::EntryId;
use greenroom_kernel::head::Head;
use listing::missing_in;
use trust::TrustedIndex;

use crate::error::{Notice, StoreError};
use crate::files::{File, Files, create_own_dir};
use crate::index::{Checkpoint, Location, Row};
use crate::indexer::{Indexer, lost_head};
use crate::journal::frames::Frames;
use crate::journal::list::FrameList;
use crate::journal::manifest::{Listed, Manifest, SegmentState, UnknownLoss};
use crate::journal::segments::{Segments, journal_dir, random_seed};
use crate::journal::{BadRange, Frame, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, first_chain, scan};
use crate::lock::DirectoryLock;
use crate::record::StoredRecord;
use crate::writer::{Active, EraseAgain, Mover, Tail, Writer, open_active};
use crate::{StoreOptions, identity, reader};

/// While the journal is read, staged index changes of this many bytes are moved to sled.
const STAGED_BYTES_MAX: usize = 8 << 20;

/// A range of the journal that is damaged or gone.
#[derive(Debug)]
struct LostRange {
    segment: u64,
    /// The offset of the first byte.
    from: u64,
    /// The offset after the last byte; `u64::MAX` if the whole segment is gone.
    until: u64,
    /// The frames in the range that are still known, from their headers or from the footer.
    frames: Vec<Frame>,
    /// Whether the range is the end of the active segment.
    is_tail: bool,
    /// Whether the range was only inferred from missing entries. Such a range is reported only if it cost a
    /// session something.
    is_inferred: bool,
    /// Whether frames were cut out here, so that everything after them has moved.
    is_cut_out: bool,
    /// Whether sessions may have lost entries here without any record of it.
    others_possible: bool,
    /// The sessions that lost entries here.
    sessions: BTreeSet<String>,
}

impl LostRange {
    fn new(segment: u64, from: u64, until: u64, frames: Vec<Frame>) -> Self {
        Self {
            segment,
            from,
            until,
            frames,
            is_tail: false,
            is_inferred: false,
            is_cut_out: false,
            others_possible: true,
            sessions: BTreeSet::new(),
        }
    }

    /// Takes the frames in the range from a list of the segment's frames. Beyond the end of the list, only
    /// readable headers are known.
    fn take_list(&mut self, list: &FrameList) {
        self.frames.retain(|frame| frame.offset >= list.until());
        let is_inside = |frame: &&Frame| frame.offset < self.until && frame.end() > self.from;
        self.frames.splice(..0, list.frames.iter().filter(is_inside).cloned());
        self.others_possible = list.until() < self.until;
    }

    /// Whether any byte of the frame at `location` lies in the range.
    fn overlaps(&self, location: Location) -> bool {
        location.segment == self.segment
            && location.offset < self.until
            && location.offset + u64::from(location.length) > self.from
    }
}

/// The findings so far.
struct Recovery<'a> {
    options: &'a StoreOptions,
    segments: Arc<Segments>,
    manifest: Manifest,
    lost: Vec<LostRange>,
    notices: Vec<Notice>,
    /// Whether the manifest in memory differs from the one on the disk.
    is_manifest_changed: bool,
}

/// Opens the journal and the index in `options.dir`. The directory must already be locked.
pub(crate) fn recover(
    options: &StoreOptions,
    lock: DirectoryLock,
) -> Result<(Writer, Vec<Notice>), StoreError> {
    let dir = journal_dir(&options.dir);
    let created = options.files.create_dir(&dir);
    created.map_err(|error| StoreError::io("create", &dir, error))?;
    if dir.exists() && !options.is_read_only {
        create_own_dir(&dir).map_err(|error| StoreError::io("create", &dir, error))?;
    }
    let mut recovery = Recovery {
        options,
        segments: Arc::new(Segments::new(Arc::clone(&options.files), dir)),
        manifest: Manifest::default(),
        lost: Vec::new(),
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
            indexer.quarantined.lock().clone_from(&trusted.quarantined);
            indexer.count_entries()?;
            recovery.find_losses_by_index(&mut indexer)?;
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
    // A batch that was not committed when its process ended never will be.
    let has_dropped = indexer.drop_uncommitted()?;
    indexer.publish();
    let index = indexer.index();
    let tail = match opened.as_mut() {
        Some(opened) => opened.trim(),
        None => Tail::Empty,
    };
    recovery.report_losses(&mut indexer)?;
    let listed_end = opened.as_ref().map_or(SEGMENT_HEADER_BYTES, |opened| opened.listed_end);
    let active = recovery.active(opened, &mut indexer)?;
    // A segment that was just begun has no list.
    let listed_end = listed_end.min(active.end);
    let Recovery { segments, manifest, notices, .. } = recovery;
    if !options.is_read_only
        && let Err(error) = identity::ensure(segments.files.as_ref(), &segments.dir)
    {
        // A full disk must not keep the store from being opened, nor a damaged id; a backup tries again, or is refused.
        tracing::warn!(%error, "the store has no id by which its backups could know it");
    }
    let unknown = Arc::new(Mutex::new(manifest.unknown.clone()));
    let mut writer = Writer {
        segments,
        unknown,
        list: None,
        listed_end,
        unindexed_bytes: 0,
        unindexed_frames: 0,
        mover: Mover::new(Arc::clone(&index)),
        index,
        indexer,
        manifest,
        active,
        segment_bytes: options.segment_bytes,
        tail,
        buffer: Vec::new(),
        is_manifest_dirty: false,
        is_reclaim_due: has_dropped,
        erase_again: None,
        reserve: options.dir.join("reserve"),
        reserve_bytes: options.reserve_bytes,
        lock,
    };
    writer.indexer.publish();
    quarantine(&mut writer);
    if writer.has_reserve() || !writer.indexer.segments.values().any(|row| row.holds_deleted) {
        writer.fill_reserve();
    } else {
        // The reserve was used up by a deletion, and the store was closed before there was space to erase.
        writer.erase_again = Some(EraseAgain::after(None));
    }
    if let Err(error) = writer.index.flush_staged() {
        tracing::error!(%error, "the index cannot be written; the journal continues without it");
    }
    Ok((writer, notices))
}

/// Records the losses that were found in the journal, so that a rebuilt index knows of them.
fn quarantine(writer: &mut Writer) {
    for session in writer.indexer.newly_lost.keys().cloned().collect::<Vec<_>>() {
        let written = writer.indexer.row(&session).and_then(|row| {
            let Some(Row { head, .. }) = row else { return Ok(()) };
            let record = StoredRecord::Quarantined { head: Arc::clone(&head) };
            writer.write_record(&session, head.entries, record)
        });
        if let Err(error) = written {
            // The index has the loss. The next start finds it again, and tries again to record it in the
            // journal.
            tracing::warn!(%error, session, "cannot record in the journal that the session lost entries");
        }
    }
}

/// The active segment as found.
struct OpenedActive {
    listed: Listed,
    file: Arc<dyn File>,
    bytes: Vec<u8>,
    scan: Scan,
    /// The frames before this offset are listed beside the segment.
    listed_end: u64,
    /// Whether the file continues behind the last frame that counts.
    is_longer: bool,
    /// Whether the segment is damaged and must not be written to any more.
    is_damaged: bool,
}

impl OpenedActive {
    /// Cuts off everything behind the last frame that counts. If that fails, the writer has to do it before
    /// it writes.
    fn trim(&mut self) -> Tail {
        if !self.is_longer || self.is_damaged {
            return Tail::Empty;
        }
        let cut = self.file.truncate(self.scan.end).and_then(|()| self.file.sync());
        match cut {
            Ok(()) => Tail::Empty,
            Err(error) => {
                tracing::warn!(%error, "cannot cut off an unfinished write; the next append tries again");
                Tail::Unknown
            }
        }
    }
}

impl Recovery<'_> {
    fn files(&self) -> &dyn Files {
        self.segments.files.as_ref()
    }

    /// Reads the active segment, and decides where it ends. `None` if there is none, or its file is gone.
    fn read_active(&mut self, checkpoint: Option<Checkpoint>) -> Result<Option<OpenedActive>, StoreError> {
        let active = self.manifest.segments.iter().find_map(|listed| match listed.state {
            SegmentState::Active { floor } => Some((*listed, floor)),
            SegmentState::Sealed { .. } | SegmentState::Abandoned { .. } | SegmentState::Lost => None,
        });
        let Some((listed, floor)) = active else { return Ok(None) };
        // The list is read first: if another process writes meanwhile, it lists nothing that is not yet in
        // the segment.
        let list = self.list_of(&listed);
        let listed_end = list.as_ref().map_or(SEGMENT_HEADER_BYTES, FrameList::until);
        let Some(bytes) = self.read_segment(listed.id)? else {
            self.lose_segment(listed.id);
            return Ok(None);
        };
        let file = open_active(&self.segments, listed.id)?;
        let indexed = checkpoint.filter(|checkpoint| checkpoint.segment == listed.id);
        // Everything before this offset had been acknowledged.
        let known_end = indexed.map_or(0, |checkpoint| checkpoint.offset).max(floor).max(listed_end);
        let mut scanned = scan(&bytes, listed.id, listed.seed, None);
        let length = bytes.len() as u64;
        let mut is_damaged = false;
        if SegmentHeader::decode(&bytes)?.is_none() {
            // This costs no entry: the manifest has the seed.
            let mut header = LostRange::new(listed.id, 0, SEGMENT_HEADER_BYTES, Vec::new());
            header.others_possible = false;
            self.lost.push(header);
            is_damaged = true;
        }
        let unfinished = scanned.bad.iter().position(|bad| !bad.was_synced && bad.from >= known_end);
        if let Some(position) = unfinished {
            // The last write never finished, and only some of its pieces reached the disk.
            let from = scanned.bad[position].from;
            scanned.bad.truncate(position);
            scanned.frames.retain(|(frame, _)| frame.offset < from);
            let last = scanned.frames.last();
            scanned.end = last.map_or(SEGMENT_HEADER_BYTES, |(frame, _)| frame.end());
            scanned.chain = last.map_or(first_chain(listed.id, listed.seed), |(_, chain)| *chain);
            let from = scanned.end;
            scanned.tail = Some(BadRange { from, until: length, legible: Vec::new(), was_synced: false });
        }
        let lost_before = self.lost.len();
        // If frames were cut out, those behind them are not where they are listed. Then it is known only
        // which sessions' frames are missing.
        let list = list.filter(|list| list.fits(&scanned));
        self.take_bad_ranges(&listed, &scanned, list.as_ref(), 0);
        if scanned.end < known_end {
            let legible = scanned.tail.as_ref().map(|tail| tail.legible.clone()).unwrap_or_default();
            let mut tail = LostRange::new(listed.id, scanned.end, known_end.max(length), legible);
            tail.is_tail = true;
            if let Some(list) = &list {
                tail.take_list(list);
                // More may have been written since the list was, and since the index was. If the index is
                // lost, too, that is reported.
                tail.others_possible |= checkpoint.is_none();
            } else if let Some(record) = self.record_of(&listed) {
                // More may have been written since the record was, so there may be others.
                tail.frames.extend(missing_in(&record, &scanned, scanned.end));
            }
            self.lost.push(tail);
        } else if let Some(BadRange { from, until, .. }) = &scanned.tail {
            self.notices.push(Notice::TailCut { segment: listed.id, offset: *from, bytes: until - from });
        }
        is_damaged |= self.lost.len() > lost_before;
        let is_longer = length > scanned.end;
        Ok(Some(OpenedActive { listed, file, bytes, scan: scanned, listed_end, is_longer, is_damaged }))
    }

    /// Whether the index's checkpoint is not the end of a frame in the journal, although nothing is damaged there.
    fn is_shifted(&self, opened: &Option<OpenedActive>, trusted: &TrustedIndex) -> bool {
        if self.lost.iter().any(|range| range.is_cut_out) {
            return true;
        }
        let Checkpoint { segment, offset, chain, .. } = trusted.checkpoint;
        let Some(opened) = opened.as_ref().filter(|opened| opened.listed.id == segment) else { return false };
        let is_start = (offset, chain) == (SEGMENT_HEADER_BYTES, first_chain(segment, opened.listed.seed));
        let is_end = opened.scan.frames.iter().any(|(frame, next)| (frame.end(), *next) == (offset, chain));
        let is_damaged =
            |range: &LostRange| range.segment == segment && range.from < offset && range.until >= offset;
        !is_start && !is_end && !self.lost.iter().any(is_damaged)
    }

    /// Determines from the index which sessions lost entries, and quarantines them.
    fn find_losses_by_index(&mut self, indexer: &mut Indexer) -> Result<(), StoreError> {
        let known: BTreeSet<u64> = self.lost.iter().map(|range| range.segment).collect();
        for &id in indexer.segments.keys() {
            if self.is_gone(id) && !known.contains(&id) {
                let mut missing = LostRange::new(id, 0, u64::MAX, Vec::new());
                missing.is_inferred = true;
                self.lost.push(missing);
            }
            self.manifest.next_id = self.manifest.next_id.max(id + 1);
        }
        if self.lost.is_empty() {
            return Ok(());
        }
        let mut lost_entries: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for (session, sequence, location) in indexer.index().all_entries()? {
            if self.is_lost(location, &session) {
                lost_entries.entry(session).or_default().insert(sequence);
            }
        }
        for (session, Row { head, mut place }) in indexer.index().rows()? {
            let sequences = lost_entries.remove(&session).unwrap_or_default();
            let is_newest_lost = self.is_lost(place.newest, &session);
            if sequences.is_empty() && !is_newest_lost {
                continue;
            }
            for sequence in &sequences {
                indexer.forget_entry(&session, *sequence);
            }
            indexer.publish();
            let mut after = Head::clone(&head);
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
            indexer.set_row(&session, Arc::new(lost_head(after, from)), place)?;
            indexer.newly_lost.insert(session, from);
        }
        for id in indexer.segments.keys().copied().collect::<Vec<_>>() {
            if self.is_gone(id) {
                indexer.drop_segment(id);
            }
        }
        for range in &mut self.lost {
            // The index knows everything that the range held, unless the range lies behind the checkpoint.
            let is_indexed =
                range.segment != indexer.checkpoint.segment || range.until <= indexer.checkpoint.offset;
            let segment_order = self.manifest.get(range.segment).map(|listed| listed.order);
            let end_order = indexer.segments.get(&indexer.checkpoint.segment).map(|row| row.order);
            range.others_possible &= !(is_indexed && segment_order <= end_order);
        }
        indexer.publish();
        Ok(())
    }

    /// Whether the segment's file is missing.
    fn is_gone(&self, id: u64) -> bool {
        self.manifest.get(id).is_none_or(|listed| listed.state == SegmentState::Lost)
    }

    /// Whether the session's frame at `location` is lost. If so, the session is recorded with the range that
    /// it lies in.
    fn is_lost(&mut self, location: Location, session: &str) -> bool {
        match self.lost.iter_mut().find(|range| range.overlaps(location)) {
            None => false,
            Some(range) => {
                range.sessions.insert(session.to_owned());
                true
            }
        }
    }

    /// Returns the segment to write to: the active one if it is undamaged, otherwise a new one.
    fn active(&mut self, opened: Option<OpenedActive>, indexer: &mut Indexer) -> Result<Active, StoreError> {
        match opened {
            Some(opened) if !opened.is_damaged => {
                if self.is_manifest_changed {
                    self.manifest.store(self.files(), &self.segments.dir)?;
                }
                let OpenedActive { listed, file, scan, .. } = opened;
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
        let state = SegmentState::Active { floor: SEGMENT_HEADER_BYTES };
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
            frames: Frames::default(),
        })
    }

    /// Turns the lost ranges into notices.
    fn report_losses(&mut self, indexer: &mut Indexer) -> Result<(), StoreError> {
        let mut reported = BTreeSet::new();
        for range in &mut self.lost {
            // The sessions that have entries after those that they lost.
            let mut holed = Vec::new();
            let mut tails = Vec::new();
            for session in std::mem::take(&mut range.sessions) {
                let row = indexer.row(&session)?;
                let Some(Row { head, .. }) = row else { continue };
                let (Some(from), entries) = (head.lost_from, head.entries) else { continue };
                if from.0 < entries {
                    holed.push(session);
                } else {
                    tails.push(session.clone());
                    if reported.insert(session.clone()) {
                        self.notices.push(Notice::TailLost { session, from });
                    }
                }
            }
            let is_only_tail = !tails.is_empty() && holed.is_empty() && range.is_tail;
            let is_nothing = range.is_inferred && holed.is_empty();
            if is_only_tail && !range.others_possible || is_nothing {
                continue;
            }
            let (segment, offset) = (range.segment, range.from);
            let mut others_possible = range.others_possible;
            let is_same = |unknown: &&UnknownLoss| (unknown.segment, unknown.offset) == (segment, offset);
            match self.manifest.unknown.iter().find(is_same) {
                // It was read again, because the index is being rebuilt.
                Some(UnknownLoss { is_accepted: true, .. }) if holed.is_empty() => continue,
                Some(UnknownLoss { is_accepted: true, .. }) => others_possible = false,
                Some(UnknownLoss { is_accepted: false, .. }) => {}
                None if others_possible => {
                    self.manifest.unknown.push(UnknownLoss { segment, offset, is_accepted: false });
                    self.is_manifest_changed = true;
                }
                None => {}
            }
            let mut sessions = holed;
            sessions.extend(tails);
            sessions.sort_unstable();
            self.notices.push(Notice::Damaged { segment, offset, sessions, others_possible });
        }
        // A loss that is not accepted is reported at every start.
        for UnknownLoss { segment, offset, is_accepted } in &self.manifest.unknown {
            let is_said = |notice: &Notice| {
                matches!(notice, Notice::Damaged { segment: said, offset: at, others_possible: true, .. }
                    if (said, at) == (segment, offset))
            };
            if !is_accepted && !self.notices.iter().any(is_said) {
                let (segment, offset, sessions) = (*segment, *offset, Vec::new());
                self.notices.push(Notice::Damaged { segment, offset, sessions, others_possible: true });
            }
        }
        Ok(())
    }
}

//! Opening a store: finding out what the journal holds, what was lost, and bringing the index up to it.
//!
//! Always true: nothing that was acknowledged and is gone stays unsaid, as far as journal, manifest or index still
//! know of it; what is whole can be read; nothing here panics over what is on the disk. The segment that was written
//! to is read as a whole; sealed ones are known by their last bytes, and read only to build the index again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::StoreOptions;
use crate::error::{Notice, StoreError};
use crate::files::{OpenMode, read_all, read_at};
use crate::head::Head;
use crate::index::{Checkpoint, Index, Location, Row, SegmentRow};
use crate::indexer::{Effect, Indexer, lost_head};
use crate::journal::manifest::{Listed, Manifest, State};
use crate::journal::segments::{Segments, is_of_a_session, journal_dir, random_seed};
use crate::journal::{
    Bad, Frame, FrameKind, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, TRAILER_BYTES, Trailer, first_chain,
    parse, read_footer, scan,
};
use crate::lock::DirectoryLock;
use crate::reader;
use crate::record::{self, StoredRecord};
use crate::writer::{Active, Writer, open_active};

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
    /// Whether the segment is not even listed.
    is_unlisted: bool,
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
            is_unlisted: false,
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
    file: Arc<dyn crate::files::File>,
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

/// An index that fits the journal, as far as that can be told without reading both.
struct Trusted {
    checkpoint: Checkpoint,
    segments: BTreeMap<u64, SegmentRow>,
}

impl Recovery<'_> {
    fn files(&self) -> &dyn crate::files::Files {
        self.segments.files.as_ref()
    }

    /// Finds the list of segments, makes it anew if it is lost, and removes what a crash left over.
    fn list_segments(&mut self) -> Result<(), StoreError> {
        let names = self.files().list(&self.segments.dir);
        let names = names.map_err(|error| StoreError::io("read", &self.segments.dir, error))?;
        let mut found: BTreeSet<u64> = names.iter().filter_map(|name| Segments::id_of(name)).collect();
        match Manifest::load(self.files(), &self.segments.dir)? {
            Some(manifest) => self.manifest = manifest,
            None => self.list_anew(&found)?,
        }
        for listed in &self.manifest.segments {
            found.remove(&listed.id);
        }
        for id in found {
            self.remove_leftover(id)?;
        }
        let highest = self.manifest.segments.iter().map(|listed| listed.id).max().unwrap_or(0);
        self.manifest.next_id = self.manifest.next_id.max(highest + 1);
        for listed in &self.manifest.segments {
            self.segments.add(listed.id, listed.seed, None);
        }
        Ok(())
    }

    fn read_segment(&self, id: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.segments.path(id);
        match self.files().open(&path, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            other => {
                let bytes = other.and_then(|file| read_all(file.as_ref()));
                bytes.map(Some).map_err(|error| StoreError::io("read", &path, error))
            }
        }
    }

    /// The first and the last bytes of a segment: its header and trailer, where they are right, and its length.
    fn ends(&self, id: u64) -> Result<Option<(Option<SegmentHeader>, Option<Trailer>, u64)>, StoreError> {
        let path = self.segments.path(id);
        let read = || {
            let file = self.files().open(&path, OpenMode::Read)?;
            let length = file.length()?;
            let size = |bytes: u64| usize::try_from(bytes).expect("a few bytes");
            let head = read_at(file.as_ref(), 0, size(SEGMENT_HEADER_BYTES))?;
            let tail = read_at(file.as_ref(), length.saturating_sub(TRAILER_BYTES), size(TRAILER_BYTES))?;
            Ok((head, tail, length))
        };
        match read() {
            Ok((head, tail, length)) => {
                Ok(Some((SegmentHeader::decode(&head)?, Trailer::decode(&tail), length)))
            }
            Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path, error)),
        }
    }

    fn list_anew(&mut self, found: &BTreeSet<u64>) -> Result<(), StoreError> {
        // By order: of two with the same order the complete one counts, and the newer one of two complete ones.
        let mut by_order: BTreeMap<u64, (SegmentHeader, Option<Trailer>, u64)> = BTreeMap::new();
        for &id in found {
            self.manifest.next_id = self.manifest.next_id.max(id + 1);
            let Some((header, trailer, length)) = self.ends(id)? else { continue };
            let Some(header) = header.filter(|header| header.id == id) else {
                let path = self.segments.path(id);
                if length <= SEGMENT_HEADER_BYTES {
                    // The very first start did not get far.
                    drop(self.files().remove(&path));
                    continue;
                }
                let moved = self.files().rename(&path, &path.with_extension("seg.damaged"));
                moved.map_err(|error| StoreError::io("rename", &path, error))?;
                self.parts.push(Part::new(id, 0, u64::MAX, Vec::new()));
                continue;
            };
            let is_better =
                by_order.get(&header.order).is_none_or(|(_, other, _)| trailer.is_some() || other.is_none());
            if is_better {
                by_order.insert(header.order, (header, trailer, length));
            }
        }
        let has_frames = by_order.values().any(|(_, _, length)| *length > SEGMENT_HEADER_BYTES);
        if has_frames || !self.parts.is_empty() {
            let reason = "it was damaged or missing".to_owned();
            self.notices.push(Notice::ManifestRebuilt { reason });
        }
        self.is_manifest_changed = !by_order.is_empty();
        let last = by_order.keys().next_back().copied();
        self.manifest.segments = by_order
            .into_values()
            .map(|(header, trailer, length)| {
                let state = match trailer {
                    _ if Some(header.order) == last => State::Active { floor: 0 },
                    Some(trailer) => State::Sealed {
                        length: trailer.footer_offset,
                        frames: trailer.frames,
                        digest: trailer.digest,
                    },
                    None => State::Abandoned { length },
                };
                Listed { id: header.id, order: header.order, seed: header.seed, state }
            })
            .collect();
        Ok(())
    }

    /// Removes a segment that is not listed: a rotation's that was never written to, or one of the two of a reclaim.
    fn remove_leftover(&mut self, id: u64) -> Result<(), StoreError> {
        self.manifest.next_id = self.manifest.next_id.max(id + 1);
        let highest = self.manifest.segments.iter().map(|listed| listed.order).max();
        let Some((header, _, length)) = self.ends(id)? else { return Ok(()) };
        if let Some(header) = header
            && highest.is_none_or(|highest| header.order > highest)
            && length > SEGMENT_HEADER_BYTES
        {
            // Not what this program leaves behind: someone put an older list in place.
            let reason = format!("it did not list segment {id}, which holds frames");
            self.notices.push(Notice::ManifestRebuilt { reason });
            for listed in &mut self.manifest.segments {
                if let State::Active { .. } = listed.state {
                    listed.state = State::Abandoned { length: u64::MAX };
                }
            }
            let state = State::Active { floor: 0 };
            self.manifest.segments.push(Listed { id, order: header.order, seed: header.seed, state });
            self.is_manifest_changed = true;
            return Ok(());
        }
        // If it cannot be removed now, the next start tries again.
        drop(self.files().remove(&self.segments.path(id)));
        Ok(())
    }

    /// Looks at the ends of the segments that are not written to any more, and reads those whose end is not right.
    fn verify_sealed(&mut self) -> Result<(), StoreError> {
        for listed in self.manifest.segments.clone() {
            let (expected, length) = match listed.state {
                State::Active { .. } => continue,
                State::Sealed { length, frames, digest } => (Some((frames, digest)), length),
                State::Abandoned { length } => (None, length),
            };
            let Some((_, trailer, _)) = self.ends(listed.id)? else {
                self.lose_segment(listed.id);
                continue;
            };
            let is_right = expected.is_none_or(|(frames, digest)| {
                trailer.is_some_and(|trailer| {
                    (trailer.frames, trailer.digest, trailer.footer_offset) == (frames, digest, length)
                })
            });
            if !is_right {
                let Some(bytes) = self.read_segment(listed.id)? else { continue };
                let scanned = scan(&bytes, listed.id, listed.seed, Some(length));
                let was_whole = self.parts.len();
                self.take_parts(&listed, &scanned, read_footer(&bytes).as_deref(), length);
                if self.parts.len() == was_whole {
                    // Only the footer is damaged: no entry is lost.
                    let mut part = Part::new(listed.id, length, length, Vec::new());
                    part.others_possible = false;
                    self.parts.push(part);
                }
                self.abandon(listed.id, length);
            }
        }
        Ok(())
    }

    fn lose_segment(&mut self, id: u64) {
        self.parts.push(Part::new(id, 0, u64::MAX, Vec::new()));
        self.manifest.segments.retain(|listed| listed.id != id);
        self.segments.remove(id);
        self.is_manifest_changed = true;
    }

    fn abandon(&mut self, id: u64, length: u64) {
        if let Some(listed) = self.manifest.get_mut(id) {
            listed.state = State::Abandoned { length };
            self.is_manifest_changed = true;
        }
    }

    /// Notes what is bad in a segment that should hold frames up to `length`.
    fn take_parts(&mut self, listed: &Listed, scanned: &Scan, footer: Option<&[Frame]>, length: u64) {
        let mut bad: Vec<Bad> = scanned.bad.iter().map(|(bad, _)| bad.clone()).collect();
        if scanned.end < length && length != u64::MAX {
            let legible = scanned.tail.as_ref().map(|tail| tail.legible.clone()).unwrap_or_default();
            bad.push(Bad { from: scanned.end, until: length, legible });
        }
        for Bad { from, until, legible } in bad {
            let is_known =
                |part: &Part| part.segment == listed.id && part.from <= from && part.until >= until;
            if self.parts.iter().any(is_known) {
                continue;
            }
            let in_part = |frame: &&Frame| frame.offset < until && frame.end() > from;
            let mut part = Part::new(listed.id, from, until, legible);
            if let Some(footer) = footer {
                part.known = footer.iter().filter(in_part).cloned().collect();
                part.others_possible = false;
            }
            self.parts.push(part);
        }
    }

    /// Opens sled, or sets it aside. `None` where the journal has to be read as a whole.
    fn open_index(&mut self) -> (Arc<Index>, Option<Trusted>) {
        let is_new = !self.options.dir.join("index").exists();
        let has_frames = !self.manifest.segments.is_empty() || !self.parts.is_empty();
        let opened = if Index::is_suspect(&self.options.dir) {
            Err("it did not fit the journal".to_owned())
        } else {
            Index::open(&self.options.dir, self.options.cache_bytes)
        };
        let (index, reason) = match opened {
            Err(reason) => (None, reason),
            Ok(index) => match self.trust(&index) {
                Ok(trusted) => return (Arc::new(index), Some(trusted)),
                Err(reason) if is_new || reason.is_empty() => {
                    let holds = self.holds_frames();
                    if has_frames && holds {
                        self.notices.push(Notice::IndexRebuilt { reason: "it was not there".to_owned() });
                    }
                    return (Arc::new(index), None);
                }
                Err(reason) => (Some(index), reason),
            },
        };
        if let Some(index) = index {
            index.close();
        }
        (self.new_index(reason), None)
    }

    fn holds_frames(&self) -> bool {
        self.manifest.segments.len() > 1
            || self.manifest.segments.iter().any(|listed| {
                self.ends(listed.id)
                    .is_ok_and(|ends| ends.is_some_and(|(.., length)| length > SEGMENT_HEADER_BYTES))
            })
    }

    /// Sets the index aside and begins a new one.
    fn rebuild(&mut self, index: &Index, reason: &str) -> Arc<Index> {
        index.close();
        self.new_index(reason.to_owned())
    }

    fn new_index(&mut self, reason: String) -> Arc<Index> {
        let dir = &self.options.dir;
        let opened = Index::set_aside(dir)
            .map_err(|error| error.to_string())
            .and_then(|()| Index::open(dir, self.options.cache_bytes));
        match opened {
            Ok(index) => {
                index.absolve();
                self.notices.push(Notice::IndexRebuilt { reason });
                Arc::new(index)
            }
            Err(second) => {
                let reason = format!("{reason}; and a new one cannot be made: {second}");
                self.notices.push(Notice::IndexInMemory { reason });
                Arc::new(Index::in_memory(dir))
            }
        }
    }

    /// Whether the index fits itself and the list of segments; else the reason why not, empty if it is empty.
    fn trust(&self, index: &Index) -> Result<Trusted, String> {
        let text = |error: StoreError| error.to_string();
        let (rows, sum) = index.rows().map_err(text)?;
        let Some(checkpoint) = index.checkpoint().map_err(text)? else {
            return Err(if rows.is_empty() { String::new() } else { "it has no checkpoint".to_owned() });
        };
        if (checkpoint.rows, checkpoint.sum) != (rows.len() as u64, sum) {
            return Err("its sessions do not add up".to_owned());
        }
        let segments = index.segment_rows().map_err(text)?;
        let end = segments.get(&checkpoint.segment).ok_or("it does not know its own newest segment")?;
        for listed in &self.manifest.segments {
            let row = segments.get(&listed.id);
            let does_fit = match (listed.state, row) {
                (_, None) => listed.order > end.order,
                (State::Sealed { frames, digest, .. }, Some(row)) => {
                    row.seed == listed.seed
                        && (listed.order >= end.order || (row.frames, row.digest) == (frames, digest))
                }
                (State::Active { .. } | State::Abandoned { .. }, Some(row)) => row.seed == listed.seed,
            };
            if !does_fit {
                return Err(format!("it does not fit segment {}", listed.id));
            }
        }
        for (id, row) in &segments {
            let is_replaced = |listed: &Listed| listed.order == row.order && listed.id > *id;
            if self.manifest.get(*id).is_none() && self.manifest.segments.iter().any(is_replaced) {
                return Err(format!("segment {id} was rewritten"));
            }
        }
        Ok(Trusted { checkpoint, segments })
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
                part.is_unlisted = true;
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

    /// Applies the journal from the checkpoint on, or as a whole.
    fn replay(
        &mut self,
        indexer: &mut Indexer,
        checkpoint: Option<Checkpoint>,
        opened: &Option<Opened>,
    ) -> Result<(), StoreError> {
        let start = checkpoint.and_then(|checkpoint| {
            let row = indexer.segments.get(&checkpoint.segment).copied();
            let listed = self.manifest.get(checkpoint.segment).map(|listed| listed.order);
            let order = row.map(|row| row.order).or(listed)?;
            Some((order, checkpoint.offset))
        });
        for listed in self.manifest.segments.clone() {
            let from = match start {
                Some((order, _)) if listed.order < order => continue,
                Some((order, offset)) if listed.order == order => offset,
                _ => SEGMENT_HEADER_BYTES,
            };
            if let Some(opened) = opened.as_ref().filter(|opened| opened.listed.id == listed.id) {
                self.replay_segment(indexer, &listed, &opened.bytes, &opened.scan, from)?;
                continue;
            }
            let length = match listed.state {
                State::Sealed { length, .. } | State::Abandoned { length } => length,
                State::Active { .. } => continue,
            };
            if from >= length {
                continue;
            }
            let Some(bytes) = self.read_segment(listed.id)? else { continue };
            let scanned = scan(&bytes, listed.id, listed.seed, Some(length));
            let before = self.parts.len();
            self.take_parts(&listed, &scanned, read_footer(&bytes).as_deref(), length);
            if self.parts.len() > before {
                self.abandon(listed.id, length);
            }
            self.replay_segment(indexer, &listed, &bytes, &scanned, from)?;
        }
        Ok(())
    }

    fn replay_segment(
        &mut self,
        indexer: &mut Indexer,
        listed: &Listed,
        bytes: &[u8],
        scanned: &Scan,
        from: u64,
    ) -> Result<(), StoreError> {
        if !indexer.segments.contains_key(&listed.id) {
            let chain = first_chain(listed.id, listed.seed);
            indexer.begin_segment(listed.id, listed.order, listed.seed, chain);
        }
        // What is gone takes its place in the order of things.
        let known = self.parts.iter().enumerate().filter(|(_, part)| part.segment == listed.id);
        let mut lost: Vec<(usize, Frame)> =
            known.flat_map(|(at, part)| part.known.iter().map(move |frame| (at, frame.clone()))).collect();
        lost.retain(|(_, frame)| {
            frame.offset >= from && scanned.frames.iter().all(|(whole, _)| whole.offset != frame.offset)
        });
        lost.sort_by_key(|(_, frame)| frame.offset);
        let mut lost = lost.into_iter().peekable();
        for (frame, chain) in scanned.frames.iter().filter(|(frame, _)| frame.offset >= from) {
            while let Some((part, gone)) = lost.next_if(|(_, gone)| gone.offset < frame.offset) {
                self.lose_frame(indexer, part, &gone)?;
            }
            let at = usize::try_from(frame.offset).expect("an offset into a buffer in memory");
            let parsed = parse(bytes, at, 0, listed.seed).expect("the scan found a frame here");
            let effect = match record::decode(parsed.payload) {
                Ok(record) => Effect::from(record),
                Err(error @ StoreError::Version { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(%error, segment = listed.id, offset = frame.offset, "a record does not decode");
                    let part = Part::new(listed.id, frame.offset, frame.end(), Vec::new());
                    self.parts.push(part);
                    self.lose_frame(indexer, self.parts.len() - 1, frame)?;
                    continue;
                }
            };
            let was_lost = indexer.newly_lost.get(frame.session.as_ref()).copied();
            indexer.apply(listed.id, frame, *chain, effect)?;
            let is_lost = indexer.newly_lost.get(frame.session.as_ref()).copied();
            if is_lost.is_some() && is_lost != was_lost {
                self.blame_gap(listed.id, frame);
            }
            indexer.publish();
            if indexer.index().staged_bytes() > STAGED_BYTES_MAX {
                // If sled fails now, what it misses stays in memory.
                if let Err(error) = indexer.index().settle() {
                    tracing::error!(%error, "the index cannot be written");
                }
            }
        }
        for (part, gone) in lost {
            self.lose_frame(indexer, part, &gone)?;
        }
        indexer.publish();
        Ok(())
    }

    fn lose_frame(&mut self, indexer: &mut Indexer, part: usize, frame: &Frame) -> Result<(), StoreError> {
        match frame.kind {
            FrameKind::Append => {
                self.parts[part].sessions.insert(frame.session.to_string());
                indexer.lose(&frame.session, EntryId(frame.sequence))
            }
            // Its header says all that there is to say.
            FrameKind::Deleted => indexer.delete(&frame.session),
            FrameKind::Learned | FrameKind::Quarantined | FrameKind::LossAccepted => Ok(()),
        }
    }

    /// A session's entries are missing before this frame: the damage before it is why.
    fn blame_gap(&mut self, segment: u64, frame: &Frame) {
        debug_assert!(is_of_a_session(frame.kind), "only sessions have gaps");
        let session = frame.session.to_string();
        if self.parts.is_empty() {
            let mut part = Part::new(segment, frame.offset, frame.offset, Vec::new());
            part.others_possible = false;
            self.parts.push(part);
        }
        let is_before = |part: &&mut Part| part.segment < segment || part.from <= frame.offset;
        let at = self.parts.iter_mut().rposition(|mut part| is_before(&&mut part)).unwrap_or(0);
        self.parts[at].sessions.insert(session);
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
            let is_only_tail = is_tail_said && holed.is_empty() && (part.is_tail || part.is_unlisted);
            let is_nothing = part.is_unlisted && holed.is_empty();
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

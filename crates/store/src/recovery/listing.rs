//! Determines which segments exist, and whether their ends match the manifest.
//!
//! Invariants: a segment whose end does not match the list is read as a whole, and its bad ranges are
//! reported. It is then listed as abandoned, and one whose file is gone as lost, so that the next start does
//! not report it again. The segment's own footer or the list of its frames, or else the record of its
//! sessions, tells which sessions lost entries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{LostRange, Recovery};
use crate::error::{Notice, StoreError};
use crate::files::{OpenMode, read_all, read_at};
use crate::journal::list::FrameList;
use crate::journal::manifest::{Listed, Manifest, SegmentState};
use crate::journal::segments::Segments;
use crate::journal::sessions::SegmentSessions;
use crate::journal::{
    Frame, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, TRAILER_BYTES, Trailer, read_footer, scan,
};

/// The two ends of a segment's file.
pub(super) struct Ends {
    /// The header, if it is valid.
    header: Option<SegmentHeader>,
    /// Whether the file is what a crash leaves of a segment that was being created.
    is_begun: bool,
    /// The trailer, if there is a valid one.
    trailer: Option<Trailer>,
    /// The file's length in bytes.
    pub(super) length: u64,
}

impl Recovery<'_> {
    /// Reads the manifest, or rebuilds it if it is lost, and removes segments that a crash left behind.
    pub(super) fn list_segments(&mut self) -> Result<(), StoreError> {
        let names = self.files().list(&self.segments.dir);
        let names = names.map_err(|error| StoreError::io("read", &self.segments.dir, error))?;
        let mut found: BTreeSet<u64> = names.iter().filter_map(|name| Segments::id_of(name)).collect();
        let records: BTreeSet<u64> = names.iter().filter_map(|name| SegmentSessions::id_of(name)).collect();
        match Manifest::load(self.files(), &self.segments.dir)? {
            Some(manifest) => self.manifest = manifest,
            None => self.rebuild_manifest(&found, &records)?,
        }
        // No number is reused, not even that of a removed or lost segment.
        let listed = self.manifest.segments.iter().map(|listed| listed.id);
        let highest = listed.chain(found.iter().chain(&records).copied()).max().unwrap_or(0);
        self.manifest.next_id = self.manifest.next_id.max(highest + 1);
        for listed in &self.manifest.segments {
            found.remove(&listed.id);
        }
        for id in found {
            self.remove_leftover(id)?;
        }
        for id in records {
            if self.manifest.get(id).is_none() {
                // If it cannot be removed now, the next start tries again.
                drop(SegmentSessions::forget(self.files(), &self.segments.dir, id));
            }
        }
        for listed in self.manifest.segments.iter().filter(|listed| listed.state != SegmentState::Lost) {
            self.segments.add(listed.id, listed.seed, None);
        }
        Ok(())
    }

    /// Returns the record of a listed segment's sessions, if there is a matching one.
    pub(super) fn record_of(&self, listed: &Listed) -> Option<SegmentSessions> {
        let record = SegmentSessions::load(self.files(), &self.segments.dir, listed.id)?;
        (record.header == listed.header()).then_some(record)
    }

    /// Returns the list of a segment's frames that the writer kept beside it, if there is a matching one and
    /// no record covers more. Earlier versions wrote such a record when they closed a store.
    pub(super) fn list_of(&self, listed: &Listed) -> Option<FrameList> {
        let list = FrameList::load(self.files(), &self.segments.dir, listed.id)?;
        let record = SegmentSessions::load_record(self.files(), &self.segments.dir, listed.id);
        let is_newest = record.is_none_or(|record| record.until <= list.until());
        (list.header == listed.header() && is_newest).then_some(list)
    }

    /// Returns the bytes of a segment's file; `None` if it is gone.
    pub(super) fn read_segment(&self, id: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.segments.path(id);
        match self.files().open(&path, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            other => {
                let bytes = other.and_then(|file| read_all(file.as_ref()));
                bytes.map(Some).map_err(|error| StoreError::io("read", &path, error))
            }
        }
    }

    /// Reads the two ends of a segment's file; `None` if it is gone.
    pub(super) fn ends(&self, id: u64) -> Result<Option<Ends>, StoreError> {
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
                let (header, trailer) = (SegmentHeader::decode(&head)?, Trailer::decode(&tail));
                let is_begun = length <= SEGMENT_HEADER_BYTES && SegmentHeader::is_begun(&head, id);
                Ok(Some(Ends { header, is_begun, trailer, length }))
            }
            Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path, error)),
        }
    }

    /// Rebuilds the manifest from the existing segments.
    fn rebuild_manifest(&mut self, found: &BTreeSet<u64>, records: &BTreeSet<u64>) -> Result<(), StoreError> {
        // Two segments with the same order are the old and the new one of a reclaim. The new one counts if it
        // is sealed.
        let mut by_order: BTreeMap<u64, (SegmentHeader, Option<Trailer>, u64)> = BTreeMap::new();
        for &id in found {
            let Some(Ends { header, is_begun, trailer, length }) = self.ends(id)? else { continue };
            // The record of the segment's sessions repeats its header.
            let recorded =
                || SegmentSessions::load(self.files(), &self.segments.dir, id).map(|record| record.header);
            let header = header.or_else(recorded).filter(|header| header.id == id);
            let Some(header) = header else {
                if is_begun {
                    // The very first start ended before it had written the header.
                    drop(self.files().remove(&self.segments.path(id)));
                    continue;
                }
                let aside = self.set_aside(id)?;
                if length <= SEGMENT_HEADER_BYTES {
                    // It had no room for a frame.
                    self.notices.push(Notice::SetAside { path: aside });
                } else {
                    self.lost.push(LostRange::new(id, 0, u64::MAX, Vec::new()));
                }
                continue;
            };
            let is_better =
                by_order.get(&header.order).is_none_or(|(_, other, _)| trailer.is_some() || other.is_none());
            if is_better {
                by_order.insert(header.order, (header, trailer, length));
            }
        }
        let has_frames = by_order.values().any(|(_, _, length)| *length > SEGMENT_HEADER_BYTES);
        if has_frames || !self.lost.is_empty() {
            let reason = "it was damaged or missing".to_owned();
            self.notices.push(Notice::ManifestRebuilt { reason });
        }
        let lost = self.lost_by_record(records, &by_order);
        self.is_manifest_changed = !by_order.is_empty();
        let orders = by_order.keys().copied().chain(lost.iter().map(|listed| listed.order));
        let last = orders.max();
        self.manifest.segments = by_order
            .into_values()
            .map(|(header, trailer, length)| {
                let state = match trailer {
                    _ if Some(header.order) == last => SegmentState::Active { floor: 0 },
                    Some(trailer) => SegmentState::Sealed {
                        length: trailer.footer_offset,
                        frames: trailer.frames,
                        digest: trailer.digest,
                    },
                    None => SegmentState::Abandoned { length },
                };
                Listed { id: header.id, order: header.order, seed: header.seed, state }
            })
            .collect();
        for listed in lost {
            // It is then found missing like any other listed segment.
            self.manifest.segments.push(listed);
            self.is_manifest_changed = true;
        }
        self.manifest.segments.sort_by_key(|listed| listed.order);
        Ok(())
    }

    /// Returns the missing segments whose records of sessions still exist. A record is removed before its
    /// segment is, so no crash leaves one alone.
    fn lost_by_record(
        &self,
        records: &BTreeSet<u64>,
        by_order: &BTreeMap<u64, (SegmentHeader, Option<Trailer>, u64)>,
    ) -> Vec<Listed> {
        let is_listed = |id: u64| by_order.values().any(|(header, ..)| header.id == id);
        let alone = records.iter().filter(|id| !is_listed(**id));
        let known = alone.filter_map(|id| SegmentSessions::load(self.files(), &self.segments.dir, *id));
        known
            .filter(|record| !by_order.contains_key(&record.header.order))
            .map(|SegmentSessions { header: SegmentHeader { id, order, seed }, until, .. }| {
                let state = SegmentState::Abandoned { length: until };
                (order, Listed { id, order, seed, state })
            })
            .collect::<BTreeMap<_, _>>()
            .into_values()
            .collect()
    }

    /// Removes a segment that is not listed: a crash during a rotation or a reclaim left it behind.
    fn remove_leftover(&mut self, id: u64) -> Result<(), StoreError> {
        let highest = self.manifest.segments.iter().map(|listed| listed.order).max();
        let Some(Ends { header, is_begun, length, .. }) = self.ends(id)? else { return Ok(()) };
        if let Some(header) = header
            && highest.is_none_or(|highest| header.order > highest)
            && length > SEGMENT_HEADER_BYTES
        {
            // No crash leaves this behind: the newest manifest was replaced with an older one.
            let reason = format!("it did not list segment {id}, which holds frames");
            self.notices.push(Notice::ManifestRebuilt { reason });
            for listed in &mut self.manifest.segments {
                if let SegmentState::Active { .. } = listed.state {
                    listed.state = SegmentState::Abandoned { length: u64::MAX };
                }
            }
            let state = SegmentState::Active { floor: 0 };
            self.manifest.segments.push(Listed { id, order: header.order, seed: header.seed, state });
            self.is_manifest_changed = true;
            return Ok(());
        }
        if is_begun || header.is_some_and(|header| header.id == id) {
            // If it cannot be removed now, the next start tries again.
            drop(self.files().remove(&self.segments.path(id)));
            return Ok(());
        }
        // No crash of our own leaves this behind.
        let aside = self.set_aside(id)?;
        self.notices.push(Notice::SetAside { path: aside });
        Ok(())
    }

    /// Renames a file that is no segment of this store. Returns its new path.
    fn set_aside(&self, id: u64) -> Result<PathBuf, StoreError> {
        let path = self.segments.path(id);
        let aside = path.with_extension("seg.damaged");
        let moved = self.files().rename(&path, &aside);
        moved.map(|()| aside).map_err(|error| StoreError::io("rename", &path, error))
    }

    /// Checks the ends of the segments that are no longer written to, and reads those that do not end as
    /// listed.
    pub(super) fn verify_sealed(&mut self) -> Result<(), StoreError> {
        for listed in self.manifest.segments.clone() {
            let (expected, length) = match listed.state {
                SegmentState::Active { .. } => continue,
                SegmentState::Lost => {
                    self.take_back(&listed)?;
                    continue;
                }
                SegmentState::Sealed { length, frames, digest } => (Some((frames, digest)), length),
                SegmentState::Abandoned { length } => (None, length),
            };
            let Some(ends) = self.ends(listed.id)? else {
                self.lose_segment(listed.id);
                continue;
            };
            let is_as_listed = match expected {
                Some((frames, digest)) => {
                    let is_same = |trailer: Trailer| {
                        (trailer.frames, trailer.digest, trailer.footer_offset) == (frames, digest, length)
                    };
                    ends.header == Some(listed.header()) && ends.trailer.is_some_and(is_same)
                }
                None => ends.length >= length || length == u64::MAX,
            };
            if !is_as_listed {
                let Some(bytes) = self.read_segment(listed.id)? else { continue };
                let scanned = scan(&bytes, listed.id, listed.seed, Some(length));
                let lost_before = self.lost.len();
                self.take_bad_ranges(&listed, &scanned, own_footer(&bytes, &listed).as_ref(), length);
                if self.lost.len() == lost_before {
                    // Only the header or the footer is damaged, and no entry is lost: the manifest has the seed.
                    let has_header = ends.header == Some(listed.header());
                    let (from, until) = if has_header { (length, length) } else { (0, SEGMENT_HEADER_BYTES) };
                    let mut range = LostRange::new(listed.id, from, until, Vec::new());
                    range.others_possible = false;
                    self.lost.push(range);
                }
                self.abandon(listed.id, length.min(ends.length));
            }
        }
        Ok(())
    }

    /// Lists a segment as lost, because its file is gone.
    pub(super) fn lose_segment(&mut self, id: u64) {
        let Some(listed) = self.manifest.get(id).copied() else { return };
        let record = self.record_of(&listed);
        let known_until = record.as_ref().map_or(0, |record| record.until);
        let frames = record.map(|record| record.missing(&[], SEGMENT_HEADER_BYTES)).unwrap_or_default();
        let mut range = LostRange::new(id, 0, u64::MAX, frames);
        range.others_possible = match listed.state {
            SegmentState::Sealed { length, .. } | SegmentState::Abandoned { length } => known_until < length,
            // More may have been written since the record was.
            SegmentState::Active { .. } | SegmentState::Lost => true,
        };
        self.lost.push(range);
        if let Some(listed) = self.manifest.get_mut(id) {
            listed.state = SegmentState::Lost;
        }
        self.segments.remove(id);
        self.is_manifest_changed = true;
    }

    /// Lists a lost segment as sealed again, if its file is back and whole.
    fn take_back(&mut self, listed: &Listed) -> Result<(), StoreError> {
        let Some(Ends { header, trailer: Some(trailer), .. }) = self.ends(listed.id)? else { return Ok(()) };
        if header != Some(listed.header()) {
            return Ok(());
        }
        let Trailer { frames, digest, footer_offset: length, .. } = trailer;
        if let Some(listed) = self.manifest.get_mut(listed.id) {
            listed.state = SegmentState::Sealed { length, frames, digest };
        }
        self.manifest.unknown.retain(|unknown| unknown.segment != listed.id);
        self.segments.add(listed.id, listed.seed, None);
        self.is_manifest_changed = true;
        Ok(())
    }

    /// Lists a segment as abandoned, with frames in its first `length` bytes.
    pub(super) fn abandon(&mut self, id: u64, length: u64) {
        if let Some(listed) = self.manifest.get_mut(id) {
            listed.state = SegmentState::Abandoned { length };
            self.is_manifest_changed = true;
        }
    }

    /// Adds the bad ranges of a segment that should hold frames in its first `length` bytes to the lost
    /// ranges. `list` has the segment's frames, from its footer or from the list beside it.
    pub(super) fn take_bad_ranges(
        &mut self,
        listed: &Listed,
        scanned: &Scan,
        list: Option<&FrameList>,
        length: u64,
    ) {
        let bad = scanned.bad.iter().map(|bad| (bad.from, bad.until, bad.legible.clone()));
        let is_cut = scanned.end < length && length != u64::MAX;
        let cut = is_cut.then(|| {
            let legible = scanned.tail.as_ref().map(|tail| tail.legible.clone()).unwrap_or_default();
            (scanned.end, length, legible)
        });
        let ranges: Vec<(u64, u64, Vec<Frame>)> = bad.chain(cut).collect();
        if ranges.is_empty() {
            return;
        }
        let record = if list.is_none() { self.record_of(listed) } else { None };
        for (from, until, legible) in ranges {
            let is_known =
                |range: &LostRange| range.segment == listed.id && range.from <= from && range.until >= until;
            if self.lost.iter().any(is_known) {
                continue;
            }
            let mut range = LostRange::new(listed.id, from, until, legible);
            range.is_cut_out = from == until;
            if let Some(list) = list {
                range.take_list(list);
            } else if let Some(record) = &record {
                range.frames.extend(missing_in(record, scanned, from));
                range.others_possible = record.until < until;
            }
            self.lost.push(range);
        }
    }
}

/// Returns the frames in a segment's record of sessions for which a scan found neither the frame nor its
/// header. Their location is not known, so they are placed at the offset `at`.
pub(super) fn missing_in(record: &SegmentSessions, scanned: &Scan, at: u64) -> Vec<Frame> {
    let whole = scanned.frames.iter().map(|(frame, _)| frame);
    let legible = scanned.bad.iter().chain(&scanned.tail).flat_map(|bad| &bad.legible);
    let mut found: Vec<&Frame> = whole.chain(legible).collect();
    found.sort_by_key(|frame| frame.offset);
    record.missing(&found, at)
}

/// Returns the frames in the footer of a listed segment, if it has one that is not that of another segment.
pub(super) fn own_footer(bytes: &[u8], listed: &Listed) -> Option<FrameList> {
    let header = SegmentHeader::decode(bytes).ok().flatten()?;
    if header == listed.header() { Some(FrameList { header, frames: read_footer(bytes)? }) } else { None }
}

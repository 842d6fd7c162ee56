//! Which segments there are, and whether their ends are what the list says.

use std::collections::{BTreeMap, BTreeSet};

use super::{Part, Recovery};
use crate::error::{Notice, StoreError};
use crate::files::{OpenMode, read_all, read_at};
use crate::journal::manifest::{Listed, Manifest, State};
use crate::journal::segments::Segments;
use crate::journal::{
    Bad, Frame, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, TRAILER_BYTES, Trailer, read_footer, scan,
};

/// The two ends of a segment, where they are right, and its length.
pub(super) struct Ends {
    header: Option<SegmentHeader>,
    trailer: Option<Trailer>,
    pub(super) length: u64,
}

impl Recovery<'_> {
    /// Finds the list of segments, makes it anew if it is lost, and removes what a crash left over.
    pub(super) fn list_segments(&mut self) -> Result<(), StoreError> {
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

    /// The first and the last bytes of a segment: its header and trailer, where they are right, and its length.
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
                Ok(Some(Ends { header, trailer, length }))
            }
            Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path, error)),
        }
    }

    pub(super) fn list_anew(&mut self, found: &BTreeSet<u64>) -> Result<(), StoreError> {
        // By order: of two with the same order the complete one counts, and the newer one of two complete ones.
        let mut by_order: BTreeMap<u64, (SegmentHeader, Option<Trailer>, u64)> = BTreeMap::new();
        for &id in found {
            self.manifest.next_id = self.manifest.next_id.max(id + 1);
            let Some(Ends { header, trailer, length }) = self.ends(id)? else { continue };
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
    pub(super) fn remove_leftover(&mut self, id: u64) -> Result<(), StoreError> {
        self.manifest.next_id = self.manifest.next_id.max(id + 1);
        let highest = self.manifest.segments.iter().map(|listed| listed.order).max();
        let Some(Ends { header, length, .. }) = self.ends(id)? else { return Ok(()) };
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
    pub(super) fn verify_sealed(&mut self) -> Result<(), StoreError> {
        for listed in self.manifest.segments.clone() {
            let (expected, length) = match listed.state {
                State::Active { .. } => continue,
                State::Sealed { length, frames, digest } => (Some((frames, digest)), length),
                State::Abandoned { length } => (None, length),
            };
            let Some(Ends { trailer, .. }) = self.ends(listed.id)? else {
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

    pub(super) fn lose_segment(&mut self, id: u64) {
        self.parts.push(Part::new(id, 0, u64::MAX, Vec::new()));
        self.manifest.segments.retain(|listed| listed.id != id);
        self.segments.remove(id);
        self.is_manifest_changed = true;
    }

    pub(super) fn abandon(&mut self, id: u64, length: u64) {
        if let Some(listed) = self.manifest.get_mut(id) {
            listed.state = State::Abandoned { length };
            self.is_manifest_changed = true;
        }
    }

    /// Notes what is bad in a segment that should hold frames up to `length`.
    pub(super) fn take_parts(
        &mut self,
        listed: &Listed,
        scanned: &Scan,
        footer: Option<&[Frame]>,
        length: u64,
    ) {
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
}

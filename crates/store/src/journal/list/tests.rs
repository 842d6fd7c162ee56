//! The list of a segment's frames: as written, in pieces, and damaged.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use super::{FrameList, HEADER_BYTES, OpenList, path};
use crate::faults::{MemoryFiles, Random};
use crate::journal::frames::Frames;
use crate::journal::{Frame, FrameKind, SegmentHeader};

const HEADER: SegmentHeader = SegmentHeader { id: 7, order: 3, seed: 0xABCD_1234 };

/// Returns the frame behind those in the list.
fn next(frames: &Frames, session: &str, length: u32) -> Frame {
    let offset = frames.end().unwrap_or(40);
    let sequence = frames.len() as u64;
    Frame { offset, length, sequence, count: 1, kind: FrameKind::Append, session: session.into() }
}

/// Creates a list of this many pieces with three frames each. Returns the file's bytes and the frames.
fn listed(pieces: u64) -> (MemoryFiles, Vec<u8>, Vec<Frame>) {
    let (files, journal) = (MemoryFiles::new(), Path::new("/journal"));
    let mut frames = Frames::default();
    let mut list: Option<OpenList> = None;
    for piece in 0..pieces {
        for length in [100, 70_000, 300] {
            frames.push(&next(&frames, &format!("session {piece}"), length));
        }
        match &mut list {
            Some(list) => list.append(&frames).unwrap(),
            None => list = Some(OpenList::create(&files, journal, HEADER, &frames).unwrap()),
        }
    }
    let mut bytes = Vec::new();
    files.damage(&path(journal, HEADER.id), |found| bytes.clone_from(found)).unwrap();
    (files, bytes, frames.iter().collect())
}

#[test]
fn a_list_is_read_as_it_was_written_in_pieces() {
    let (files, bytes, frames) = listed(4);
    let list = FrameList::load(&files, Path::new("/journal"), HEADER.id).unwrap();
    assert_eq!((list.header, list.until(), &list.frames), (HEADER, 40 + 4 * 70_400, &frames));
    assert_eq!(FrameList::decode(&bytes).unwrap(), list);
    assert_eq!(FrameList::load(&files, Path::new("/journal"), HEADER.id + 1), None);
}

/// A list that was written whole has the same frames as one that grew.
#[test]
fn a_list_that_is_written_again_has_all_frames() {
    let (files, _, all) = listed(3);
    let frames: Frames = all.iter().cloned().collect();
    OpenList::create(&files, Path::new("/journal"), HEADER, &frames).unwrap();
    assert_eq!(FrameList::load(&files, Path::new("/journal"), HEADER.id).unwrap().frames, all);
}

/// Whatever happens to the file, whole pieces from the beginning of the list remain.
#[test]
fn a_damaged_list_ends_before_the_damage() {
    let (_, bytes, frames) = listed(4);
    let mut lengths = [0_u32; 5];
    let mut check = |bytes: &[u8], context: &str| match FrameList::decode(bytes) {
        None => false,
        Some(list) => {
            assert_eq!(list.frames, frames[..list.frames.len()], "{context}");
            assert_eq!(list.frames.len() % 3, 0, "{context}: a piece counts as a whole");
            lengths[list.frames.len() / 3] += 1;
            true
        }
    };
    for end in 0..bytes.len() {
        assert_eq!(check(&bytes[..end], &format!("cut at {end}")), end >= HEADER_BYTES, "cut at {end}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert_eq!(check(&damaged, &format!("byte {at}")), at >= HEADER_BYTES, "byte {at}");
    }
    assert!(lengths[..4].iter().all(|count| *count > 20), "{lengths:?}");
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let mut noise = bytes[..HEADER_BYTES].to_vec();
        noise.extend((0..random.below(80)).map(|_| u8::try_from(random.below(256)).unwrap()));
        assert_eq!(FrameList::decode(&noise).unwrap().frames, []);
    }
}

/// A piece of one list behind the pieces of another is not taken for the next one.
#[test]
fn pieces_of_different_lists_do_not_mix() {
    let (_, one, _) = listed(1);
    let (_, three, frames) = listed(3);
    let (_, two, _) = listed(2);
    // The second piece is left out.
    let mut bytes = one.clone();
    bytes.extend(&three[two.len()..]);
    assert_eq!(FrameList::decode(&bytes).unwrap().frames, frames[..3]);
}

/// The bytes of version 1 stay readable.
#[test]
fn the_bytes_of_a_list_are_those_of_version_1() {
    let (_, bytes, _) = listed(1);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = "47524c3101000000070000000000000003000000000000003412cdab649f176b\
                  30000000\
                  28640001010973657373696f6e2030\
                  00f0a2040101010973657373696f6e2030\
                  00ac020201010973657373696f6e2030\
                  4f06f59f";
    assert_eq!(hex, golden);
}

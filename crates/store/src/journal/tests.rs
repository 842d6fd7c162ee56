//! The journal's bytes: segments and the manifest, whole and damaged.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::manifest::{Listed, Manifest, SegmentState, UnknownLoss};
use super::{
    FORMAT_VERSION, Footer, Frame, FrameKind, NewFrame, SEGMENT_HEADER_BYTES, SegmentHeader, Trailer,
    read_footer, scan,
};
use crate::error::StoreError;

const HEADER: SegmentHeader = SegmentHeader { id: 7, order: 3, seed: 0xABCD_1234 };

/// Creates a segment with a group for each slice, and in it a frame for each payload length. Returns the
/// segment's bytes, its frames and the chain after them.
fn segment(groups: &[&[usize]]) -> (Vec<u8>, Vec<Frame>, u32) {
    let mut bytes = HEADER.encode();
    let mut chain = HEADER.chain();
    let mut frames = Vec::new();
    for group in groups {
        let start = bytes.len() as u64;
        let mut buffer = Vec::new();
        for &size in *group {
            let sequence = frames.len() as u64;
            let payload = vec![u8::try_from(sequence).unwrap(); size];
            let new =
                NewFrame { kind: FrameKind::Append, session: "one".into(), sequence, count: 1, payload };
            let (frame, next) = new.encode(&mut buffer, start, HEADER.seed, chain);
            chain = next;
            frames.push(frame);
        }
        bytes.extend(buffer);
    }
    (bytes, frames, chain)
}

fn footer(frames: &[Frame], end: u64, digest: u32) -> Vec<u8> {
    let (mut footer, mut bytes) = (Footer::default(), Vec::new());
    frames.iter().for_each(|frame| footer.add(frame, &mut bytes));
    footer.end(end, digest, &mut bytes);
    bytes
}

fn found(bytes: &[u8]) -> Vec<u64> {
    scan(bytes, HEADER.id, HEADER.seed, None).frames.iter().map(|(frame, _)| frame.sequence).collect()
}

fn at(frame: &Frame) -> usize {
    usize::try_from(frame.offset).unwrap()
}

#[test]
fn a_whole_segment_is_read_as_written() {
    let (mut bytes, frames, chain) = segment(&[&[10, 20], &[0], &[3_000]]);
    let scanned = scan(&bytes, HEADER.id, HEADER.seed, None);
    assert_eq!(scanned.frames.iter().map(|(frame, _)| frame.clone()).collect::<Vec<_>>(), frames);
    assert_eq!((scanned.end, scanned.chain), (bytes.len() as u64, chain));
    assert!(scanned.bad.is_empty() && scanned.tail.is_none() && scanned.trailer.is_none());
    let end = bytes.len() as u64;
    bytes.extend(footer(&frames, end, chain));
    let sealed = scan(&bytes, HEADER.id, HEADER.seed, None);
    assert_eq!(sealed.trailer.map(|trailer| (trailer.frames, trailer.digest)), Some((4, chain)));
    assert!(sealed.tail.is_none());
    assert_eq!(read_footer(&bytes), Some(frames));
    assert_eq!(Trailer::decode(&bytes).unwrap().footer_offset, end);
}

#[test]
fn a_header_is_checked() {
    let bytes = HEADER.encode();
    assert_eq!(bytes.len() as u64, SEGMENT_HEADER_BYTES);
    assert_eq!(SegmentHeader::decode(&bytes).unwrap(), Some(HEADER));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(SegmentHeader::decode(&damaged).unwrap(), None, "byte {at}");
    }
    let mut newer = bytes;
    newer[4..8].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let crc = crc32c::crc32c(&newer[..36]);
    newer[36..].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(SegmentHeader::decode(&newer), Err(StoreError::Version { .. })));
}

#[test]
fn any_flipped_bit_costs_exactly_its_frame() {
    let (bytes, frames, _) = segment(&[&[10], &[20], &[30]]);
    for position in at(&frames[0])..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1 << bit;
            let hit = frames.iter().position(|frame| frame.end() > position as u64).unwrap() as u64;
            let expected: Vec<u64> = (0..3).filter(|sequence| *sequence != hit).collect();
            assert_eq!(found(&damaged), expected, "bit {bit} of byte {position}");
            let scanned = scan(&damaged, HEADER.id, HEADER.seed, None);
            if hit == 2 {
                assert!(scanned.tail.is_some());
            } else {
                // A later group follows, so the damaged frame had been synced.
                assert!(scanned.bad.iter().all(|bad| bad.was_synced) && scanned.bad.len() == 1);
            }
        }
    }
}

#[test]
fn damage_inside_the_last_group_may_be_an_unfinished_write() {
    let (bytes, frames, _) = segment(&[&[10], &[20, 30]]);
    let mut damaged = bytes;
    damaged[at(&frames[1]) + 50] ^= 1;
    let scanned = scan(&damaged, HEADER.id, HEADER.seed, None);
    assert_eq!(scanned.bad.iter().map(|bad| bad.was_synced).collect::<Vec<_>>(), [false]);
}

#[test]
fn a_frame_that_was_cut_out_is_missed() {
    let (bytes, frames, _) = segment(&[&[10], &[20], &[30]]);
    let cut = [&bytes[..at(&frames[1])], &bytes[at(&frames[2])..]].concat();
    let scanned = scan(&cut, HEADER.id, HEADER.seed, None);
    assert_eq!(scanned.bad.len(), 1);
    assert_eq!((scanned.bad[0].from, scanned.bad[0].until), (frames[1].offset, frames[1].offset));
}

#[test]
fn a_damaged_payload_still_says_whose_it_was() {
    let (mut bytes, frames, _) = segment(&[&[10], &[20], &[30]]);
    bytes[at(&frames[1]) + 60] ^= 1;
    let scanned = scan(&bytes, HEADER.id, HEADER.seed, None);
    assert_eq!(scanned.bad[0].legible, [frames[1].clone()]);
}

#[test]
fn a_frame_inside_a_payload_is_not_a_frame() {
    // A hostile text may hold a frame, but that frame was made with another seed.
    let mut inner = Vec::new();
    let fake = NewFrame {
        kind: FrameKind::Append,
        session: "one".into(),
        sequence: 9,
        count: 1,
        payload: vec![1; 10],
    };
    fake.encode(&mut inner, 0, 0, 0);
    let mut bytes = HEADER.encode();
    let mut buffer = Vec::new();
    let outer = NewFrame { payload: inner.repeat(20), sequence: 0, ..fake };
    outer.encode(&mut buffer, SEGMENT_HEADER_BYTES, HEADER.seed, HEADER.chain());
    bytes.extend(buffer);
    bytes[50] ^= 1;
    assert_eq!(found(&bytes), [0; 0]);
}

#[test]
fn a_damaged_footer_is_no_footer() {
    let (mut bytes, frames, chain) = segment(&[&[10], &[20]]);
    let end = bytes.len();
    bytes.extend(footer(&frames, end as u64, chain));
    for position in end..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 0x10;
        assert_eq!(read_footer(&damaged), None, "byte {position}");
        assert_eq!(found(&damaged), [0, 1]);
    }
}

/// A sealed segment of one frame, as format version 1 writes it. **This never changes.**
const GOLDEN_SEGMENT: &str = "\
    4752533101000000070000000000000003000000000000003412cdab000000000000000051725e1547524631d13bd5c9\
    2d2a790b32000000da89d6450100000000000000000000002800000000000000010300006f6e65000000280000000000\
    00003200000000000000000000000100000001036f6e6547525431010000000100000000000000d13bd5c95a00000000\
    000000cc8efcf0000000000000000045cf2418";
/// A manifest with a segment in each state, as format version 1 writes it. **This never changes.**
const GOLDEN_MANIFEST: &str = "\
    47524d310100000004000000000000000300000001000000000000000200000000000000090000000164000000000000\
    00020000000000000003000000020000000000000003000000000000000900000002c800000000000000000000000000\
    00000000000003000000000000000400000000000000090000000028000000000000000000000000000000000000008b\
    c8597b";

/// A manifest with a lost segment and with unknown losses. **This never changes.**
const GOLDEN_LOSSES: &str = "\
    47524d310200000003000000000000000200000001000000000000000100000000000000090000000300000000000000\
    000000000000000000000000000200000000000000020000000000000008000000002800000000000000000000000000\
    00000000000002000000010000000000000000000000000000000102000000000000004d0000000000000000f9573a1b";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn journal_bytes_never_change() {
    let (mut bytes, frames, chain) = segment(&[&[3]]);
    let end = bytes.len() as u64;
    bytes.extend(footer(&frames, end, chain));
    assert_eq!(hex(&bytes), GOLDEN_SEGMENT);
    let listed = |id, state| Listed { id, order: id + 1, seed: 9, state };
    let manifest = Manifest {
        next_id: 4,
        segments: vec![
            listed(1, SegmentState::Sealed { length: 100, frames: 2, digest: 3 }),
            listed(2, SegmentState::Abandoned { length: 200 }),
            listed(3, SegmentState::Active { floor: 40 }),
        ],
        unknown: Vec::new(),
    };
    assert_eq!(hex(&manifest.encode()), GOLDEN_MANIFEST);
    assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), Some(manifest));
}

#[test]
fn a_list_that_tells_of_losses_has_a_version_of_its_own() {
    let manifest = Manifest {
        next_id: 3,
        segments: vec![
            Listed { id: 1, order: 1, seed: 9, state: SegmentState::Lost },
            Listed { id: 2, order: 2, seed: 8, state: SegmentState::Active { floor: 40 } },
        ],
        unknown: vec![
            UnknownLoss { segment: 1, offset: 0, is_accepted: true },
            UnknownLoss { segment: 2, offset: 77, is_accepted: false },
        ],
    };
    assert_eq!(hex(&manifest.encode()), GOLDEN_LOSSES);
    assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), Some(manifest));
}

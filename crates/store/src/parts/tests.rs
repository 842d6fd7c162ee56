//! How a batch is divided.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_kernel::{EntryId, EntryKind, Message};

use super::*;

/// Returns entries with texts of these sizes, in bytes.
fn entries(sizes: &[usize]) -> Vec<Arc<Entry>> {
    let entry = |(id, size): (usize, &usize)| {
        let kind = EntryKind::message(Message::user("x".repeat(*size)));
        Arc::new(Entry::recorded(EntryId(id as u64), None, 0, kind))
    };
    sizes.iter().enumerate().map(entry).collect()
}

/// Returns how many entries each part has, and the size of the largest part of more than one entry, in bytes.
fn parts(sizes: &[usize]) -> (Vec<usize>, usize) {
    let entries = entries(sizes);
    let head = Arc::new(Head { entries: entries.len() as u64, ..Head::default() });
    let (mut rest, mut counts, mut largest) = (entries.as_slice(), Vec::new(), 0);
    while !rest.is_empty() {
        let part = Part::first_of(rest, !counts.is_empty(), 7, &None, &head).unwrap();
        assert!(part.count > 0, "{counts:?}");
        if part.count > 1 {
            largest = largest.max(part.payload.len());
        }
        counts.push(part.count);
        rest = &rest[part.count..];
    }
    (counts, largest)
}

#[test]
fn parts_are_bounded_in_entries_and_bytes() {
    const MIB: usize = 1 << 20;
    for (case, sizes, expected) in [
        ("one", vec![10], vec![1]),
        ("as many as a part has", vec![10; 8], vec![8]),
        ("more", vec![10; 20], vec![8, 8, 4]),
        ("large ones", vec![MIB / 3; 5], vec![2, 2, 1]),
        ("each larger than a part", vec![2 * MIB; 3], vec![1, 1, 1]),
        ("a large one among small ones", vec![10, 10, 3 * MIB, 10, 10], vec![2, 1, 2]),
        ("just too large with the head", vec![MIB / 2 - 20, MIB / 2 - 20], vec![1, 1]),
    ] {
        let (counts, largest) = parts(&sizes);
        assert_eq!(counts, expected, "{case}");
        assert!(largest <= PART_BYTES_MAX, "{case}: {largest}");
    }
    let many = entries(&[10; 64]);
    assert_eq!(fitting(&many), 64);
    assert_eq!(fitting(&entries(&[MIB / 4; 64])), 3);
    assert_eq!(fitting(&entries(&[MIB * 2, 1])), 1, "at least one");
}

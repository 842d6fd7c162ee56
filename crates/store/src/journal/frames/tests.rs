//! Lists of frames.

use super::*;
use crate::faults::Random;

/// Everything added is returned, including frames that are not contiguous, and numbers at their limits.
#[test]
fn a_list_gives_what_was_added() {
    let mut random = Random::new(7);
    let (mut all, mut end, mut longest) = (Vec::new(), 40, 0);
    for at in 0..20_000 {
        let number = |random: &mut Random| random.number() >> random.below(64);
        let is_next = random.below(8) > 0;
        let offset = if is_next { end } else { number(&mut random) >> 1 };
        let length = usize::try_from(random.below(256)).unwrap_or(0);
        let frame = Frame {
            offset,
            length: u32::try_from(number(&mut random) >> 32).unwrap_or(0),
            sequence: number(&mut random),
            count: u32::try_from(number(&mut random) >> 32).unwrap_or(0),
            kind: FrameKind::from_number(1 + u8::try_from(at % 7).unwrap_or(0)).unwrap_or(FrameKind::Append),
            session: "s".repeat(length).into(),
        };
        end = frame.end();
        longest = longest.max(frame.session.len());
        all.push(frame);
    }
    assert_eq!(longest, 255);
    let frames: Frames = all.iter().cloned().collect();
    assert!(frames.pieces.len() > 10, "the list has several pieces");
    assert_eq!((frames.len(), frames.end()), (all.len(), Some(end)));
    assert!(frames.iter().eq(all.iter().cloned()), "the frames come back");
    assert!(Frames::default().is_empty() && Frames::default().end().is_none());
}

/// The size of each frame of a usual length.
#[test]
fn a_frame_takes_few_bytes() {
    let frame = |at: u64| Frame {
        offset: 40 + at * 400,
        length: 400,
        sequence: at % 100,
        count: 1,
        kind: FrameKind::Append,
        session: format!("session-{at:06}").into(),
    };
    let frames: Frames = (0..10_000).map(frame).collect();
    let bytes: usize = frames.pieces.iter().map(Vec::capacity).sum();
    assert!(bytes < 10_000 * 24, "{bytes} bytes for 10,000 frames");
}

//! For any input, the text is within the limits, begins and ends as the stream did, and counts what was
//! omitted.

use super::{Clip, RESULT_BYTES_MAX, RESULT_LINES_MAX, cap_blocks, cap_line};
use greenroom_kernel::Block;
use greenroom_kernel::message::blocks_text;

fn clip(text: &str, bytes_max: usize, lines_max: usize, chunk: usize) -> String {
    let mut clip = Clip::new(bytes_max, lines_max);
    for bytes in text.as_bytes().chunks(chunk) {
        clip.push(bytes);
    }
    clip.finish("ask")
}

fn check(text: &str, bytes_max: usize, lines_max: usize, expect: &str) {
    for chunk in [1, 3, 1_000] {
        assert_eq!(clip(text, bytes_max, lines_max, chunk), expect, "{text:?} in chunks of {chunk}");
    }
}

#[test]
fn head_and_tail_are_kept() {
    check("", 10, 4, "");
    check("a\nb\nc\nd\n", 10, 4, "a\nb\nc\nd\n");
    check("a\nb\nc\nd", 10, 4, "a\nb\nc\nd");
    check("a\nb\nc\nd\ne", 10, 4, "a\nb\n[... 1 lines, 2 bytes left out here; ask ...]\nd\ne");
    check("a\nb\nc\nd\ne\n", 20, 4, "a\nb\n[... 1 lines, 2 bytes left out here; ask ...]\nd\ne\n");
    check("aaaa\nbbbb\ncccc\n", 10, 9, "aaaa\n[... 1 lines, 5 bytes left out here; ask ...]\ncccc\n");
    check("0123456789abcdef", 8, 9, "0123\n[... 0 lines, 8 bytes left out here; ask ...]\ncdef");
    // A character is never cut in half.
    check("ääääääää", 6, 9, "ä\n[... 0 lines, 12 bytes left out here; ask ...]\nä");
}

#[test]
#[expect(clippy::print_stdout, reason = "a failing run is repeated with its seed")]
fn random_streams_stay_within_the_limits() {
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    println!("seed {seed}");
    for _ in 0..500 {
        let mut next = |bound: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % bound
        };
        let length = next(300);
        let text: String =
            (0..length).map(|_| ["a", "\n", "é", "漢"][usize::try_from(next(4)).expect("below 4")]).collect();
        let (bytes_max, lines_max) = (64, 8);
        let clipped = clip(&text, bytes_max, lines_max, 7);
        let fits = text.len() <= bytes_max && text.lines().count() <= lines_max;
        assert_eq!(clipped == text, fits, "{text:?} -> {clipped:?}");
        assert!(!clipped.contains('\u{fffd}'), "{clipped:?}");
        assert!(clipped.len() <= bytes_max + 80, "{clipped:?}");
        assert!(clipped.lines().count() <= lines_max + 2, "{clipped:?}");
    }
}

#[test]
fn results_are_capped_over_all_their_texts() {
    let small = vec![Block::Text("a".into()), Block::Text("b".into())];
    assert_eq!(cap_blocks(small.clone()), small);
    let exact = vec![Block::Text("x".repeat(RESULT_BYTES_MAX))];
    assert_eq!(cap_blocks(exact.clone()), exact);
    for large in [
        vec![Block::Text("x".repeat(RESULT_BYTES_MAX)), Block::Text("y".repeat(RESULT_BYTES_MAX))],
        vec![Block::Text("x\n".repeat(RESULT_LINES_MAX + 5))],
    ] {
        let text = blocks_text(&cap_blocks(large));
        assert!(text.len() < RESULT_BYTES_MAX + 200 && text.contains("left out here"), "{}", text.len());
        assert!(text.lines().count() <= RESULT_LINES_MAX + 1);
    }
}

#[test]
fn long_lines_are_cut_at_a_character() {
    assert_eq!(cap_line("abc", 3), "abc");
    assert_eq!(cap_line("aää", 2), "a [... 4 more bytes in this line]");
}

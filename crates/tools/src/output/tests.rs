//! For any input, the text is within the limits, begins and ends as the stream did, and counts what was
//! omitted.

use super::{
    BODY_BYTES_MAX, BODY_LINES_MAX, Clip, RESULT_BYTES_MAX, RESULT_LINES_MAX, cap_blocks, cap_line,
    lines_left_out,
};
use greenroom_kernel::Block;
use greenroom_kernel::message::blocks_text;
use greenroom_kernel::redact::Redactor;

fn clip(text: &str, bytes_max: usize, lines_max: usize, chunk: usize) -> String {
    let mut clip = Clip::new(bytes_max, lines_max, &Redactor::default());
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
fn the_mark_says_how_many_lines_are_missing() {
    let text: String = (1..=3_000).map(|line| format!("{line}\n")).collect();
    let clipped = clip(&text, 1_000, 100, 100);
    let count = clipped.lines().map(|line| lines_left_out(line).unwrap_or(1)).sum::<u64>();
    assert_eq!(count, 3_000, "{clipped}");
    for line in ["", "[... ]", "[... 5 lines]", "[... x lines, 2 bytes left out here; ask ...]"] {
        assert_eq!(lines_left_out(line), None, "{line}");
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
    let off = Redactor::default();
    let small = vec![Block::Text("a".into()), Block::Text("b".into())];
    assert_eq!(cap_blocks(small.clone(), &off), small);
    let exact = vec![Block::Text("x".repeat(RESULT_BYTES_MAX))];
    assert_eq!(cap_blocks(exact.clone(), &off), exact);
    for large in [
        vec![Block::Text("x".repeat(RESULT_BYTES_MAX)), Block::Text("y".repeat(RESULT_BYTES_MAX))],
        vec![Block::Text("x\n".repeat(RESULT_LINES_MAX + 5))],
    ] {
        let text = blocks_text(&cap_blocks(large, &off));
        assert!(text.len() < RESULT_BYTES_MAX + 200 && text.contains("left out here"), "{}", text.len());
        assert!(text.lines().count() <= RESULT_LINES_MAX + 1);
    }
}

#[test]
fn long_lines_are_cut_at_a_character() {
    assert_eq!(cap_line("abc", 3, &Redactor::default()), "abc");
    assert_eq!(cap_line("aää", 2, &Redactor::default()), "a [... 4 more bytes in this line]");
}

/// The secrets that tests hide, and what redacts them.
const SECRETS: [&str; 7] = [
    // A value.
    "Zq7!fuD3.wX9-kR5~tB1",
    // Shapes.
    "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8q",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQ0ADBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7\n-----END PRIVATE KEY-----",
    "https://ada:n0tF0rY0u!xyz@host",
    "Authorization: Bearer a1B2c3D4e5F6g7H8i9J0",
    "aws_secret_access_key = 'Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2Yz3Ab4'",
    // A value with several lines.
    "first-Line-0f-9\nsecond-Line-8x7y\nthird-Line-5v4w",
];

fn redactor() -> Redactor {
    let redactor = Redactor::with_shapes();
    redactor.add([0, 6].map(|at| ("CANARY".to_owned(), SECRETS[at].to_owned())));
    redactor
}

/// Checks that no part of a secret remains after redaction; `shown` is what was kept of a text with it.
fn check_no_part(redactor: &Redactor, secret: &str, shown: &str, about: &str) {
    let redacted = redactor.all(shown).into_owned();
    // The name of the user and of the host, and the labels of a key, are no secret.
    let body = secret.trim_start_matches("https://ada:").trim_end_matches("@host");
    let body =
        body.trim_start_matches("Authorization: Bearer ").trim_start_matches("aws_secret_access_key = '");
    for line in body.lines().filter(|line| !line.starts_with("-----")) {
        for part in line.as_bytes().windows(6) {
            let part = std::str::from_utf8(part).expect("ASCII");
            assert!(!redacted.contains(part), "{about}: {part:?} of {secret:?} in {redacted:?}");
        }
    }
}

#[test]
fn no_cut_leaves_a_part_of_a_secret() {
    let redactor = redactor();
    let mut cuts = 0;
    for secret in SECRETS {
        // Around both cuts, in long lines and in short ones; with the bounds of bytes and of lines.
        for (filler, bytes_max, lines_max) in
            [(". ", 400, 1_000), (".\n", 400, 1_000), (".\n", 100_000, 40), (". ", 400, 4)]
        {
            // The cuts of bytes are at 200 and 200 before the end, those of lines at 40 and 40.
            let near = |cut: usize| cut.saturating_sub(secret.len() + 3)..=cut + 3;
            for before in near(200).chain(near(40)).chain(near(800)).chain(near(960)) {
                let text = format!(
                    "{}{secret}{}",
                    &filler.repeat(500)[..before],
                    &filler.repeat(500)[..1_000 - before]
                );
                for chunk in [7, 10_000] {
                    let mut clip = Clip::new(bytes_max, lines_max, &redactor);
                    text.as_bytes().chunks(chunk).for_each(|bytes| clip.push(bytes));
                    let shown = clip.finish("ask");
                    assert!(shown.contains("left out here"), "{shown}");
                    check_no_part(
                        &redactor,
                        secret,
                        &shown,
                        &format!("{before} bytes before, {bytes_max} {lines_max}"),
                    );
                    cuts += 1;
                }
            }
        }
        // The tail ends with the secret, and so does the head.
        for after in (0..300).step_by(7) {
            let text = format!("{}{secret}{}", ". ".repeat(20_000), &". ".repeat(300)[..after]);
            let mut clip = Clip::new(400, 1_000, &redactor);
            clip.push(text.as_bytes());
            check_no_part(&redactor, secret, &clip.finish("ask"), &format!("{after} bytes after"));
            // A line of a private key is no secret by itself.
            for line in secret.lines().filter(|line| !secret.starts_with("-----") && line.len() >= 16) {
                let text = format!("{}{line}{}", ". ".repeat(100), ". ".repeat(100));
                check_no_part(
                    &redactor,
                    line,
                    &cap_line(&text, after, &redactor),
                    &format!("a line cut at {after}"),
                );
            }
        }
    }
    assert!(cuts > 5_000, "{cuts}");
    // In the sizes that tools use, and over all texts of a result.
    for before in [BODY_BYTES_MAX / 2 - 10, BODY_BYTES_MAX - 10] {
        let text = format!("{}{}{}", ".".repeat(before), SECRETS[0], ".".repeat(BODY_BYTES_MAX));
        let mut clip = Clip::new(BODY_BYTES_MAX, BODY_LINES_MAX, &redactor);
        clip.push(text.as_bytes());
        check_no_part(&redactor, SECRETS[0], &clip.finish("ask"), "a body");
        let texts =
            ["x".repeat(RESULT_BYTES_MAX / 2 - 10), SECRETS[1].to_owned(), "y".repeat(RESULT_BYTES_MAX)];
        let blocks = cap_blocks(texts.map(Block::Text).to_vec(), &redactor);
        check_no_part(&redactor, SECRETS[1], &blocks_text(&blocks), "a result");
    }
}

//! Which numbers are counts, their labels, and their combined meaning.

use super::{Sizes, numbers, requested_exceeds_limit, sizes_in_text};
use crate::classify::digest::Digest;

fn check_numbers(text: &str, expected: &[u64]) {
    let values: Vec<u64> = numbers(text).iter().map(|number| number.value).collect();
    assert_eq!(values, expected, "{text}");
}

/// The limit and the size of the request; 0 stands for none.
fn check_sizes(text: &str, limit: u64, requested: u64) {
    let some = |size: u64| Some(size).filter(|size| *size > 0);
    let expected = Sizes { limit: some(limit), requested: some(requested) };
    assert_eq!(sizes_in_text(text, &[]), expected, "{text}");
}

#[test]
fn numbers_that_stand_alone() {
    check_numbers("", &[]);
    check_numbers("no number", &[]);
    check_numbers("4096", &[4096]);
    check_numbers("a 4096 b (4097), [4098]; =4099. 0 1", &[4096, 4097, 4098, 4099, 0, 1]);
    check_numbers("200,000 and 200_000 and 1,048,576", &[200_000, 200_000, 1_048_576]);
    // A separator stands before exactly three digits.
    check_numbers("1,23 456,7890 1,000,", &[1, 23, 456, 7890, 1_000]);
    check_numbers("128k 64k. 32kb 16k5", &[128_000, 64_000]);
    check_numbers("9351.0 and 9352.0.", &[9351]);
    check_numbers("9351.0) 9352.05 9353.0x 9354.00", &[9351]);
    check_numbers("99999999999999999999999", &[]);
    check_numbers("18446744073709551615k", &[u64::MAX]);
    check_numbers("007 00 010 0", &[0]);
}

#[test]
fn numbers_that_are_parts_of_something_else() {
    for text in [
        "gpt4", "gpt-4", "v1.5", "0.75", "_5", "a/5", "#5", "5th", "5_x", "2026-11-22", "4.5", "5-x", "5:30",
        "5/x", "0x1f", "12:34", "0.0.0.0:41257", "é5", "5é",
    ] {
        check_numbers(text, &[]);
    }
    // Text after the name is read again.
    check_numbers("gpt-4-0613 4096", &[4096]);
    check_numbers("gpt-4.1_mini/5 4096", &[4096]);
    check_numbers("n:5 x:6", &[5, 6]);
    check_numbers("5. 6- 7: 8/", &[5, 6, 7, 8]);
    check_numbers(":5", &[5]);
    check_numbers("5 é5 6", &[5, 6]);
}

#[test]
fn a_number_knows_its_surroundings() {
    let around: Vec<(&str, &str)> =
        numbers("one 5 two 6.0 three").into_iter().map(|number| (number.before, number.after)).collect();
    assert_eq!(around, [("one ", " two 6.0 three"), (" two ", " three")]);
    // A number that is not a count remains a part of the text between the counts.
    let around: Vec<&str> = numbers("a-1 b 007 c 5").into_iter().map(|number| number.before).collect();
    assert_eq!(around, ["a-1 b 007 c "]);
}

#[test]
fn labels_before_and_after() {
    check_sizes("context length 4096, requested 5000", 4096, 5000);
    check_sizes("requested 5000, context length 4096", 4096, 5000);
    check_sizes("at most 4096, but got 5000", 4096, 5000);
    check_sizes("5000 tokens given, 4096 maximum", 4096, 5000);
    check_sizes("5000 tokens given, 4096) max allowed", 4096, 5000);
    check_sizes("5000 tokens given, 4096 token limit", 4096, 5000);
    check_sizes("5000 > 4096", 4096, 5000);
    // The window outranks other limits, and the smallest of several counts.
    check_sizes("limit 3000, context window 4096, you sent 5000", 4096, 5000);
    check_sizes("limit 4096, limit 3000, you sent 5000", 3000, 5000);
    check_sizes("context size 4096, context size 3000, you sent 5000", 3000, 5000);
    // The nearest word counts.
    check_sizes("the limit: you sent 5000, the context window 4096", 4096, 5000);
    check_sizes("you sent too much for the limit 4096", 4096, 0);
    // A label that is too far away does not count.
    let far = |distance: usize| format!("limit{}4096, got 5000", " ".repeat(distance));
    check_sizes(&far(65), 4096, 5000);
    check_sizes(&format!("maximum{}4096 and 9000", " ".repeat(70)), 4096, 9000);
    check_sizes(&format!("limit{}4096", " ".repeat(66)), 0, 0);
    check_sizes(&format!("limit{}4096", " ".repeat(65)), 4096, 0);
    // The distance may begin inside a character.
    check_sizes(&format!("é limit{}4096", " ".repeat(63)), 4096, 0);
}

#[test]
fn without_a_limit() {
    check_sizes("5000 and 4096", 4096, 5000);
    check_sizes("4096 and 4096", 0, 0);
    check_sizes("you sent 5000", 0, 5000);
    check_sizes("you sent 5000 (code 12)", 0, 0);
    check_sizes("5000", 0, 0);
    check_sizes("3000 and 4000 and 5000", 0, 0);
    check_sizes("nothing", 0, 0);
}

#[test]
fn the_request_is_larger_than_the_limit() {
    check_sizes("limit 4096", 4096, 0);
    check_sizes("limit 4096: 4096", 4096, 0);
    check_sizes("limit 4096: you sent 4000", 4096, 0);
    check_sizes("limit 4096: you sent 4097", 4096, 4097);
    check_sizes("limit 4096: you sent 4097, 5000", 4096, 5000);
    // Input and output together, each of which would fit.
    check_sizes("limit 4096: you sent 4000, 96", 4096, 0);
    check_sizes("limit 4096: you sent 4000, 97", 4096, 4097);
    check_sizes("limit 4096: you sent 4000, 4000", 4096, 0);
    check_sizes("limit 4096: you sent 4096, 10", 4096, 4106);
    // With their total, which may be exactly the limit.
    check_sizes("limit 4096: you sent 4096 (4000 and 96)", 4096, 4096);
    check_sizes("limit 4096: you sent 4097 (4000 and 97)", 4096, 4097);
    check_sizes("limit 4096: you sent 4095 (4000 and 95)", 4096, 8190);
    check_sizes("limit 4096: you sent 4098 (4000 and 97)", 4096, 4098);
    check_sizes("limit 8192: you sent 4096 (4000 and 96)", 8192, 0);
    // Only limits, of which the larger is the request.
    check_sizes("limit 4096, limit 5000", 4096, 5000);
    check_sizes("limit 4096, context window 3000", 3000, 4096);
    check_sizes("limit 4096, limit 4096", 4096, 0);
    // By how much.
    check_sizes("limit 4096, exceeded by 100", 4096, 4196);
    check_sizes("by 100, limit 4096", 4096, 4196);
    check_sizes("standby 100, limit 4096", 4096, 0);
    check_sizes("limit 4096, exceeded by 100, you sent 4000", 4096, 4196);
    check_sizes("limit 4096, exceeded by 100, you sent 5000", 4096, 5000);
    check_sizes("limit 18446744073709551615, exceeded by 100", u64::MAX, u64::MAX);
}

#[test]
fn sums() {
    check_sizes("5000 + 100 > 4096", 4096, 5100);
    check_sizes("5000 > 4096 - 100", 4096, 5100);
    check_sizes("18446744073709551615 + 100 > 4096", 4096, u64::MAX);
    check_sizes("18446744073709551615 > 4096 - 100", 4096, u64::MAX);
    check_sizes("range should be [1, 8192]", 8192, 0);
    check_sizes("range should be [0, 8192]", 8192, 0);
    for text in ["range [2, 8192]", "range (1, 8192]", "range [1; 8192]", "range [1, 8192)"] {
        assert_ne!(sizes_in_text(text, &[]), Sizes { limit: Some(8192), requested: None }, "{text}");
    }
    // An addend is added even if the size before it is too large by itself.
    check_sizes("prompt (5000) + output (100) exceeds the maximum of 4096", 4096, 5100);
    check_sizes("prompt (4000) + output (96) exceeds the maximum of 4096", 4096, 0);
    check_sizes("prompt (4000) + output (97) exceeds the maximum of 4096", 4096, 4097);
    check_sizes("inputs tokens + max_new_tokens must be <= 4096. given: 5000 and 512", 4096, 5512);
    check_sizes("inputs tokens and max_new_tokens must be <= 4096. given: 5000 and 512", 4096, 5000);
    check_sizes("inputs tokens + max_new_tokens should be <= 4096. given: 5000 and 512", 4096, 5000);
    check_sizes("inputs tokens + max_new_tokens must be <= 4096. given: 4096 and 4096", 4096, 8192);
    check_sizes("inputs tokens + max_new_tokens must be <= 8192. given: 4096 and 4096", 8192, 0);
    check_sizes("inputs tokens + max_new_tokens must be <= 4096. given: 5000", 4096, 5000);
}

#[test]
fn other_numbers() {
    // Other units, also where the number is repeated without its unit.
    check_sizes("limit 4096, 98064 characters, got 98064", 4096, 0);
    check_sizes("limit 4096, 98064 bytes", 4096, 0);
    check_sizes("limit 4096, 5% more", 4096, 0);
    // Codes, statuses, places.
    for name in ["code", "status", "http", "error", "line", "version", "index", "an id"] {
        check_sizes(&format!("limit 4096, {name}: 5000"), 4096, 0);
    }
    check_sizes("limit 4096 <5000>", 4096, 0);
    check_sizes("limit 4096 <5000", 4096, 5000);
    check_sizes("limit 4096 5000>", 4096, 5000);
    check_sizes("400 limit 300", 300, 0);
    check_sizes("500: limit 300", 300, 0);
    check_sizes("599 limit 300", 300, 0);
    check_sizes("399 limit 300", 300, 399);
    check_sizes("600 limit 300", 300, 600);
    check_sizes("400 tokens, limit 300", 300, 400);
    check_sizes("400, limit 300", 300, 400);
    check_sizes("got 400 limit 300", 300, 400);
    assert_eq!(
        sizes_in_text("limit 4096 (5000)", &["5000".to_owned(), "x".to_owned()]),
        Sizes { limit: Some(4096), requested: None },
        "a code that is repeated in the message"
    );
    // 0 and 1 count nothing.
    check_sizes("limit 4096, limit 1, limit 0", 4096, 0);
    check_sizes("limit 2, got 3", 2, 3);
}

#[test]
fn numbers_show_an_overflow_only_with_a_limit() {
    let check =
        |text: &str, expected| assert_eq!(requested_exceeds_limit(&Digest::of(text)), expected, "{text}");
    check("limit 4096, got 5000", true);
    check("context window 4096, got 5000", true);
    check("limit 512, got 513", true);
    check("limit 511, got 513", false);
    check("limit 4096, got 4096", false);
    check("limit 4096", false);
    check("5000 and 4096", false);
    check("got 5000", false);
    check(r#"{"error":{"message":"5000 and 4096","n_ctx":4096,"n_prompt_tokens":5000}}"#, false);
    check(r#"{"error":{"message":"limit 4096","n_prompt_tokens":5000}}"#, true);
    check(r#"{"error":{"message":"limit 4096","n_ctx":500,"n_prompt_tokens":5000}}"#, false);
    check(r#"{"error":{"message":"limit 500","n_ctx":4096,"n_prompt_tokens":5000}}"#, false);
}

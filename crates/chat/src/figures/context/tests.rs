//! The parts of a window, drawn.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use greenroom_server::operations::ContextParts;
use serde_json::json;

use super::context;
use crate::program::PromptPart;

/// The parts of a window, from `category:tokens`, drawn in this width.
fn drawn(window: Option<u64>, parts: &str, of_prompt: &[(&str, u64)], trigger: u64, width: usize) -> String {
    let parts: Vec<_> = parts
        .split_whitespace()
        .map(|part| {
            let (category, tokens) = part.split_once(':').unwrap();
            json!({ "category": category, "count": 2, "tokens": tokens.parse::<u64>().unwrap() })
        })
        .collect();
    let tokens: u64 = parts.iter().map(|part| part["tokens"].as_u64().unwrap()).sum();
    let context = json!({ "tokens": tokens, "usage_tokens": tokens, "trailing_tokens": 0, "window": window, "window_source": "server" });
    let known: ContextParts = serde_json::from_value(json!({ "context": context, "parts": parts })).unwrap();
    let of_prompt: Vec<PromptPart> = of_prompt
        .iter()
        .map(|(name, tokens)| PromptPart { name: (*name).to_owned(), count: Some(1), tokens: *tokens })
        .collect();
    let rows = self::context(&known, &of_prompt, trigger, width);
    assert!(rows.iter().all(|row| row.width() <= width), "{rows:?}");
    rows.iter().map(|row| row.text().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The signs of the grid, in its order.
fn cells(drawn: &str) -> String {
    drawn.lines().take(10).flat_map(|line| line.chars().skip(2).step_by(2).take(10)).collect()
}

#[test]
fn each_part_has_its_share_of_a_hundred_cells() {
    let parts = "instructions:3100 tools:1000 summary:2000 user:500 tool_results:20000";
    let drawn = drawn(Some(100_000), parts, &[("AGENTS.md", 1_000), ("skills", 10)], 80_000, 80);
    let expected = "■■◆▲●▣█";
    let cells = cells(&drawn);
    assert!(cells.starts_with(expected), "{drawn}");
    for (sign, count) in [('█', 20), ('·', 54), ('░', 20)] {
        assert_eq!(cells.chars().filter(|cell| *cell == sign).count(), count, "{sign}: {drawn}");
    }
    for line in [
        "26.6k of 100k, 27 %",
        "■ system prompt and rest 2,090 2 %",
        "◆ AGENTS.md                   1,000   1 %  1×",
        "▲ skills                         10   0 %  1×",
        "● tool definitions            1,000   1 %  2×",
        "█ conversation               20,500  20 %",
        "    tool results              20,000  20 %  2×",
        "· free 53,400 53 %",
        "░ kept free by compaction    20,000  20 %",
        "compaction starts at 80,000 tokens; sizes of parts are estimates",
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&drawn).contains(&words(line)), "{line}: {drawn}");
    }
}

#[test]
fn a_window_that_is_full_or_unknown_is_drawn_too() {
    // More than the window, and parts of the prompt that are larger than the measured rest.
    let full = drawn(Some(1_000), "instructions:100 user:1400", &[("AGENTS.md", 500)], 800, 80);
    assert!(cells(&full).chars().all(|cell| matches!(cell, '◆' | '█')), "{full}");
    assert!(!full.contains("system prompt") && !full.contains("kept free"), "{full}");
    let empty = drawn(Some(1_000), "", &[], 0, 80);
    assert_eq!(cells(&empty), "·".repeat(100), "{empty}");
    let unknown = drawn(None, "user:1400", &[], 0, 80);
    assert!(unknown.contains("1.4k tokens") && !unknown.contains('%') && !unknown.contains('·'), "{unknown}");
    // A narrow terminal has the figures alone.
    let narrow = drawn(Some(1_000), "user:140", &[], 800, 50);
    assert!(narrow.starts_with("  140 of 1k, 14 %") && narrow.contains("  █ conversation"), "{narrow}");
}

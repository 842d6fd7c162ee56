//! Prices that users set: what calls cost with them, and which are refused.

use greenroom_kernel::Usage;

use super::*;
use crate::Catalog;

/// The cost of a call, in micro-dollars.
#[track_caller]
fn check(price: &str, [input, cached, written, output]: [u64; 4], expected: u64) {
    let price: ModelPrice = serde_json::from_str(price).expect("it can be read");
    price.check().expect("it is valid");
    let usage = Usage {
        input_tokens: input,
        cached_tokens: cached,
        cache_write_tokens: written,
        output_tokens: output,
        ..Usage::default()
    };
    let known = Catalog::bundled().find("openai", "gpt-4o");
    for known in [None, known] {
        assert_eq!(price.applied(known).cost_microdollars(&usage), Some(expected), "{price:?}");
    }
}

#[test]
fn calls_cost_what_was_set() {
    check(r#"{"input":2,"output":8}"#, [1_000, 0, 0, 100], 2_800);
    check(r#"{"input":2,"output":8}"#, [1_000, 600, 200, 100], 2_800);
    check(r#"{"input":2,"output":8,"cached_input":0.5,"cache_write":2.5}"#, [1_000, 600, 200, 100], 2_000);
    check(r#"{"input":0.075,"output":0}"#, [1_000, 0, 0, 100], 75);
    check(r#"{"input":0,"output":0}"#, [1_000, 0, 0, 100], 0);
    let tiers = r#"{"input":1,"output":2,"above":[{"tokens":1000,"input":10,"output":20,"cached_input":5}]}"#;
    check(tiers, [1_000, 0, 0, 100], 1_200);
    check(tiers, [2_000, 1_000, 0, 100], 17_000);
}

#[test]
fn amounts_that_are_no_prices_are_refused() {
    let above = |tokens: u64, input: f64| PriceAbove {
        tokens,
        input,
        output: 1.0,
        cached_input: None,
        cache_write: None,
    };
    for (price, expected) in [
        (ModelPrice::new(-0.1, 1.0), "input: must be an amount"),
        (ModelPrice::new(1.0, f64::NAN), "output: must be an amount"),
        (ModelPrice::new(f64::INFINITY, 1.0), "input: must be an amount"),
        (ModelPrice { cached_input: Some(-1.0), ..ModelPrice::new(1.0, 1.0) }, "cached_input: "),
        (ModelPrice { cache_write: Some(1e13), ..ModelPrice::new(1.0, 1.0) }, "cache_write: "),
        (ModelPrice { above: vec![above(9, -1.0)], ..ModelPrice::new(1.0, 1.0) }, "above[0].input: "),
        (
            ModelPrice { above: vec![above(9, 1.0), above(9, 1.0)], ..ModelPrice::new(1.0, 1.0) },
            "above: must be in",
        ),
    ] {
        let said = price.check().expect_err("it is refused").to_string();
        assert!(said.starts_with(expected), "{said}");
    }
    for text in [r#"{"input":1}"#, r#"{"input":1,"output":1,"inptu":1}"#] {
        assert!(serde_json::from_str::<ModelPrice>(text).is_err(), "{text}");
    }
}

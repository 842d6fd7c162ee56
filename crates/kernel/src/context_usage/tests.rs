//! A context's size in numbers, as a percentage and as JSON.

use super::*;

fn context(tokens: u64, window: Option<u64>) -> ContextUsage {
    let measured = Measured { usage_tokens: tokens - 1, trailing_tokens: 1 };
    ContextUsage::new(measured, Window { tokens: window, source: WindowSource::Catalog })
}

#[test]
fn percentages_are_of_the_window_to_a_tenth() {
    let percent = |tokens, window| context(tokens, window).percent();
    assert_eq!(percent(71_159, Some(200_000)), Some(35.6));
    assert_eq!(percent(300_001, Some(200_000)), Some(150.0));
    assert_eq!(percent(6, Some(1)), Some(600.0));
    assert_eq!(percent(6, Some(0)), None);
    assert_eq!(percent(6, None), None);
}

#[test]
fn a_size_reads_as_a_sentence() {
    assert_eq!(context(1_250, Some(10_000)).to_string(), "1250 of 10000 tokens");
    assert_eq!(context(1_250, None).to_string(), "1250 tokens");
}

#[test]
fn json_has_the_percentage_and_leaves_out_what_nobody_knows() {
    let json = |context| serde_json::to_string(&context).expect("numbers and a word");
    assert_eq!(
        json(context(1_250, Some(10_000))),
        r#"{"tokens":1250,"usage_tokens":1249,"trailing_tokens":1,"window":10000,"window_source":"catalog","percent":12.5}"#
    );
    assert_eq!(
        json(context(1_250, None)),
        r#"{"tokens":1250,"usage_tokens":1249,"trailing_tokens":1,"window_source":"catalog"}"#
    );
}

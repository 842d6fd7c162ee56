//! Lookups, names with dates, and prices.

use greenroom_kernel::Usage;

use super::{Catalog, without_date};

fn window(provider: &str, model: &str) -> Option<u64> {
    Catalog::bundled().lookup(provider, model).and_then(|info| info.window_tokens())
}

#[test]
fn all_data_is_parsed_and_sorted() {
    let catalog = Catalog::bundled();
    assert_eq!((catalog.providers().len(), catalog.models().len()), (23, 1122));
    assert!(catalog.models().is_sorted_by_key(|info| (info.provider, info.model)));
    assert!(catalog.providers().is_sorted_by_key(|info| info.id));
    let deepseek = catalog.provider("deepseek").expect("it is known");
    assert_eq!(deepseek.key_variables, ["DEEPSEEK_API_KEY"]);
    assert_eq!(deepseek.base_url, Some("https://api.deepseek.com"));
}

#[test]
fn lookups() {
    assert_eq!(window("openai", "gpt-4o"), Some(128_000));
    assert_eq!(window("openai", "gpt-5-mini"), Some(272_000), "the input limit is smaller than the window");
    assert_eq!(window("github-copilot", "gpt-5-mini"), Some(128_000), "limits differ between providers");
    assert_eq!(window("openai", "gpt-5-2025-08-07"), Some(272_000));
    assert_eq!(window("openai", "openai/gpt-4o"), Some(128_000));
    assert_eq!(window("openai", "GPT-4o"), Some(128_000));
    assert_eq!(window("openai", "gpt-4o-unheard-of"), None);
    assert_eq!(window("openai", "gpt"), None);
    assert_eq!(window("my-gateway", "gpt-5-mini"), Some(128_000), "the smallest of all");
    assert_eq!(window("my-gateway", "some/vendor/gpt-5-mini"), Some(128_000));
    assert_eq!(window("my-gateway", "unheard-of"), None);
    assert!(
        Catalog::bundled().find_any("gpt-4o").expect("known").prices.is_none(),
        "a price is the provider's"
    );
}

#[test]
fn only_dates_with_a_year_are_removed() {
    let check = |name: &str, base| assert_eq!(without_date(name), base, "{name}");
    check("gpt-5-2025-08-07", Some("gpt-5"));
    check("claude-sonnet-4-20250514", Some("claude-sonnet-4"));
    check("claude-sonnet-4@20250514", Some("claude-sonnet-4"));
    check("mistral-large-latest", Some("mistral-large"));
    check("gpt-4-0613", None);
    check("gpt-5-2025-08", None);
    check("model-2000", None);
    check("model-20b", None);
    check("-20250101", None);
}

#[test]
fn costs() {
    let cost = |model: &str, usage: Usage| {
        Catalog::bundled().find("openai", model).and_then(|info| info.cost_microdollars(&usage))
    };
    let usage = Usage { input_tokens: 100_000, output_tokens: 10_000, ..Usage::default() };
    assert_eq!(cost("gpt-4o", usage), Some(250_000 + 100_000));
    let cached = Usage { cached_tokens: 40_000, ..usage };
    assert_eq!(cost("gpt-4o", cached), Some(150_000 + 50_000 + 100_000));
    // Above 272,000 tokens of input the second tier applies.
    let small = Usage { input_tokens: 272_000, output_tokens: 1_000, ..Usage::default() };
    let large = Usage { input_tokens: 272_001, ..small };
    assert_eq!(cost("gpt-5.6", small), Some(1_088_000 + 20_000));
    assert_eq!(cost("gpt-5.6", large), Some(2_176_008 + 30_000));
    let written = Usage { cache_write_tokens: 72_000, ..small };
    assert_eq!(cost("gpt-5.6", written), Some(800_000 + 360_000 + 20_000));
    // What is kept for an hour costs 1.6 times as much as what is kept for five minutes.
    let hour = Usage { cache_write_hour_tokens: 36_000, ..written };
    assert_eq!(cost("gpt-5.6", hour), Some(800_000 + 180_000 + 288_000 + 20_000));
    assert_eq!(cost("gpt-image-1.5", usage), None, "no price is known");
    // The maximum cost of a call uses the highest price of each kind.
    let at_most = |model: &str, tokens| {
        let price = Catalog::bundled().find("openai", model).and_then(|info| info.call_price(tokens));
        price.map(|price| price.with_output(1_000))
    };
    assert_eq!(at_most("gpt-5.6", 272_000), Some(1_360_000 + 20_000));
    assert_eq!(at_most("gpt-5.6", 272_001), Some(2_720_010 + 30_000));
    assert_eq!(at_most("gpt-image-1.5", 5), None);
    // Counts that contradict each other must not overflow.
    let absurd = Usage { cached_tokens: u64::MAX, cache_write_tokens: u64::MAX, ..usage };
    assert!(cost("gpt-4o", absurd).is_some());
    // Nor does a call cost more than it can have used: 128,000 tokens are the model's window.
    for lie in [128_000, 128_001, 1_000_000_000_000, u64::MAX] {
        let input = Usage { input_tokens: lie, output_tokens: 0, ..Usage::default() };
        assert_eq!(cost("gpt-4o", input), Some(320_000), "{lie} of input");
        let output = Usage { input_tokens: 0, output_tokens: lie, ..Usage::default() };
        assert_eq!(cost("gpt-4o", output), Some(1_280_000), "{lie} of output");
    }
}

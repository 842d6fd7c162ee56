//! Which source of a window counts, and which limits are believed.

use super::*;

#[test]
fn the_window_is_the_first_that_is_known() {
    let check = |set: Option<u64>, known: KnownWindows, tokens: u64, source: WindowSource| {
        let settings = CompactionSettings { context_window: set, ..CompactionSettings::default() };
        assert_eq!(Window::resolve(&settings, known), Window { tokens: Some(tokens), source });
    };
    let known =
        |setting, catalog, learned| KnownWindows { setting, catalog, learned, ..KnownWindows::default() };
    check(Some(1), known(Some(2), Some(3), Some(4)), 1, WindowSource::CompactionSetting);
    check(None, known(Some(20), Some(3), Some(4)), 20, WindowSource::Setting);
    check(None, known(None, Some(30), Some(40)), 30, WindowSource::Catalog);
    check(None, known(None, Some(30), Some(30)), 30, WindowSource::Catalog);
    check(None, known(None, Some(30), Some(4)), 4, WindowSource::Learned);
    check(None, known(None, None, Some(4)), 4, WindowSource::Learned);
    check(None, known(None, None, None), 128_000, WindowSource::Assumed);
    let told =
        |served, catalog, trained, learned| KnownWindows { served, catalog, trained, learned, setting: None };
    check(None, told(Some(40), Some(30), Some(50), None), 40, WindowSource::Server);
    check(None, told(Some(40), Some(30), Some(50), Some(35)), 35, WindowSource::Learned);
    check(None, told(Some(40), Some(30), Some(50), Some(45)), 40, WindowSource::Server);
    check(None, told(None, Some(30), Some(50), None), 30, WindowSource::Catalog);
    check(None, told(None, None, Some(50), None), 50, WindowSource::Trained);
    check(None, told(None, None, Some(50), Some(4)), 4, WindowSource::Learned);
    check(
        None,
        KnownWindows { setting: Some(9), ..told(Some(4), None, None, Some(3)) },
        9,
        WindowSource::Setting,
    );
    let off = CompactionSettings { unknown_window: UnknownWindow::Disable, ..CompactionSettings::default() };
    let unknown = Window { tokens: None, source: WindowSource::Unknown };
    assert_eq!(Window::resolve(&off, KnownWindows::default()), unknown);
}

#[test]
fn a_limit_is_believed_where_nothing_speaks_against_it() {
    let evidence = |sent, accepted, named_before| LimitEvidence { sent, accepted, named_before };
    for (limit, evidence, expected) in [
        (128_000, evidence(130_000, 0, None), true),
        (128_000, evidence(0, 0, None), true),
        // Our count may be far too low, as with images.
        (128_000, evidence(40_000, 0, None), true),
        (1_000_000_000_000, evidence(130_000, 0, None), false),
        // A number of messages, or of something else.
        (52, evidence(130_000, 0, None), false),
        (0, evidence(130_000, 0, Some(0)), false),
        // A server that was restarted with less: it repeats the limit.
        (8_192, evidence(20_000, 19_000, None), false),
        (8_192, evidence(20_000, 19_000, Some(4_096)), false),
        (8_192, evidence(20_000, 19_000, Some(8_192)), true),
        (8_192, evidence(9_000, 8_000, None), true),
    ] {
        assert_eq!(is_believable_limit(limit, evidence), expected, "{limit}, {evidence:?}");
    }
}

//! Each theme has a name and tells its colours apart; no theme changes text.

use super::*;
use crate::row::{Look, Row};

const COLORS: [Color; 6] =
    [Color::Red, Color::Green, Color::Yellow, Color::Blue, Color::Magenta, Color::Cyan];

#[test]
fn a_theme_is_found_by_its_name() {
    for theme in Theme::ALL {
        assert_eq!(Theme::named(theme.as_str()), Some(theme));
        assert_eq!(Theme::named(&theme.as_str().replace('_', "-").replace("colour", "color")), Some(theme));
    }
    assert_eq!(Theme::named("solarized"), None);
}

#[test]
fn a_theme_tells_its_colours_apart_and_changes_no_text() {
    let row = Row::new("went", Look::BAD).and(" came", Look::GOOD).and(" around", Look::DIM);
    let shown = |theme: Option<Theme>| {
        let mut out = String::new();
        row.render(theme, &mut out);
        out
    };
    for theme in Theme::ALL {
        let codes: std::collections::BTreeSet<&str> = COLORS.map(|color| theme.code(color)).into();
        assert_eq!(codes.len(), COLORS.len(), "{theme:?}");
        let (bad, good) = (theme.code(Color::Red), theme.code(Color::Green));
        let around = if theme.dims() { "\x1b[2m around\x1b[0m" } else { " around" };
        assert_eq!(shown(Some(theme)), format!("\x1b[{bad}mwent\x1b[0m\x1b[{good}m came\x1b[0m{around}"));
    }
    assert_eq!(shown(None), "went came\x1b[2m around\x1b[0m", "without colours, dim text stays dim");
}

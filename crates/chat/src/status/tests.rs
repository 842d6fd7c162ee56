//! The parts shown at each width, and the colours.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn status(tokens: u64) -> Status {
    let context = ContextUsage { tokens, window: Some(100_000), ..Status::default().context };
    Status {
        context,
        trigger: 80_000,
        cost_microdollars: 31_000,
        estimated_tokens: 0,
        model: "gpt-5.5".to_owned(),
        effort: Some("high".to_owned()),
        mode: None,
        queued: 2,
        git_branch: Some("main".to_owned()),
        branch: Some(12),
    }
}

#[test]
fn it_shows_everything_where_there_is_room_and_what_matters_most_where_there_is_not() {
    assert_eq!(
        status(50_000).row(100).text(),
        "  ██████░░░┆░░ 50 % 50k/100k · 2 queued · gpt-5.5 (high) · $0.03 · branch from 12 · ⎇ main"
    );
    assert_eq!(status(50_000).row(59).text(), "  50 % 50k/100k · 2 queued · gpt-5.5 (high) · $0.03");
    let estimated = Status { estimated_tokens: 1, ..status(50_000) };
    assert_eq!(estimated.row(59).text(), "  50 % 50k/100k · 2 queued · gpt-5.5 (high) · ~$0.03");
    assert_eq!(status(50_000).row(29).text(), "  50 % 50k/100k · 2 queued");
    let edits = Status { mode: Some(Mode::AcceptEdits), ..status(50_000) };
    assert_eq!(edits.row(59).text(), "  50 % 50k/100k · 2 queued · accept edits · gpt-5.5 (high)");
    for width in 1..120 {
        assert!(status(50_000).row(width).width() <= width, "{width}");
    }
}

#[test]
fn its_colour_changes_at_75_90_and_95_percent() {
    let codes = [74_000, 75_000, 89_000, 90_000, 94_000, 95_000].map(|tokens| {
        let mut out = String::new();
        status(tokens).row(100).render(Some(greenroom_terminal::theme::Theme::Dark), &mut out);
        out.split("\x1b[").nth(1).unwrap().split('m').next().unwrap().to_owned()
    });
    assert_eq!(codes, ["32", "33", "33", "31", "31", "1;7;31"]);
}

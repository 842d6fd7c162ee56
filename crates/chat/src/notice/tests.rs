//! The notifications, and their conditions.

use super::*;

const AFTER_MS: u64 = 10_000;

/// What happens, and when, in milliseconds.
#[derive(Debug, Clone, Copy)]
enum On {
    Focus(bool),
    Key,
    Does(Doing),
}

/// How many bells there are after these.
#[track_caller]
fn check(signal: Signal, events: &[(u64, On)], wanted: usize) {
    let notify = Notify { signal, title: false, after_ms: AFTER_MS };
    let mut notices = Notices::new(notify, 0);
    let mut out = String::new();
    for (at, event) in events {
        match event {
            On::Focus(is_focused) => notices.focus(*is_focused),
            On::Key => notices.key(*at),
            On::Does(doing) => out.push_str(&notices.update(*doing, "mine", *at)),
        }
    }
    assert_eq!(out.matches('\x07').count(), wanted, "{events:?}: {out:?}");
    assert_eq!(out.contains("\x1b]9;"), signal == Signal::Desktop && wanted > 0, "{out:?}");
}

#[test]
fn a_notice_is_for_who_looks_elsewhere() {
    use Doing::{Asking, Idle, Working};
    use On::{Does, Focus, Key};
    for signal in [Signal::Bell, Signal::Desktop] {
        let long = [(1, Does(Working)), (20_000, Does(Idle))];
        check(signal, &[&[(0, Focus(false))], &long[..]].concat(), 1);
        check(signal, &[&[(0, Focus(true))], &long[..]].concat(), 0);
        check(signal, &[&long[..1], &[(5, Focus(false))], &long[1..]].concat(), 1);
        check(signal, &[&long[..1], &[(5, Focus(false)), (9, Focus(true))], &long[1..]].concat(), 0);
        // A key comes from a terminal with the focus.
        check(signal, &[&[(0, Focus(false))], &long[..1], &[(5, Key)], &long[1..]].concat(), 0);
        // A terminal that reports no focus: who has pressed no key for a while.
        check(signal, &long, 1);
        check(signal, &[&long[..1], &[(15_000, Key)], &long[1..]].concat(), 0);
        // A short run.
        check(signal, &[(0, Focus(false)), (1, Does(Working)), (10_000, Does(Idle))], 0);
        // A question is told at once, and the end of its run after it.
        let asks = [(0, Focus(false)), (1, Does(Working)), (500, Does(Asking))];
        check(signal, &asks, 1);
        check(signal, &[&asks[..], &[(600, Does(Asking))]].concat(), 1);
        check(signal, &[&asks[..], &[(700, Does(Working)), (60_000, Does(Idle))]].concat(), 2);
    }
    check(Signal::Off, &[(0, Focus(false)), (1, Does(Working)), (20_000, Does(Idle))], 0);
}

#[test]
fn the_title_says_what_the_session_does_and_comes_back() {
    let notify = Notify { signal: Signal::Off, title: true, after_ms: AFTER_MS };
    let mut notices = Notices::new(notify, 0);
    assert_eq!(notices.update(Doing::Idle, "", 1), "\x1b[22;2t\x1b]2;greenroom\x07");
    assert_eq!(notices.update(Doing::Working, "fix it", 2), "\x1b]2;● fix it · greenroom\x07");
    assert_eq!(notices.update(Doing::Working, "fix it", 3), "", "it is written once");
    assert_eq!(notices.update(Doing::Asking, "fix it", 4), "\x1b]2;? fix it · greenroom\x07");
    let hostile = notices.update(Doing::Idle, "a\x07\x1b]0;b\n", 5);
    assert_eq!(hostile, "\x1b]2;a\\u{7}\\u{1b}]0;b · greenroom\x07", "a title steers nothing");
    assert_eq!(notices.end(), "\x1b[23;2t");
    assert_eq!(notices.end(), "");
    let mut quiet = Notices::new(Notify { title: false, ..notify }, 0);
    assert_eq!((quiet.update(Doing::Working, "fix it", 2), quiet.end()), (String::new(), String::new()));
}

#[test]
fn only_terminals_that_understand_it_get_a_notification() {
    for (variables, wanted) in [
        (&[("TERM", "xterm-256color")][..], Signal::Bell),
        (&[("TERM", "xterm-kitty")], Signal::Desktop),
        (&[("TERM", "foot-extra")], Signal::Desktop),
        (&[("TERM_PROGRAM", "iTerm.app")], Signal::Desktop),
        (&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x")], Signal::Bell),
        (&[("TERM_PROGRAM", "WezTerm"), ("STY", "1")], Signal::Bell),
        (&[], Signal::Bell),
    ] {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(Signal::of_terminal(variable), wanted, "{variables:?}");
    }
}

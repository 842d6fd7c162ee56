//! Which terminals truncate rows.

use super::*;

#[test]
fn the_innermost_terminal_says_whether_rows_are_cut() {
    for (variables, wanted) in [
        (&[("TERM", "xterm-256color"), ("XTERM_VERSION", "XTerm(390)")][..], true),
        // VTE, kitty, iTerm2 and others also claim to be an xterm.
        (&[("TERM", "xterm-256color")], false),
        (&[("TERM", "xterm-256color"), ("XTERM_VERSION", "XTerm(390)"), ("TMUX", "/tmp/t,1,0")], false),
        (&[("TERM", "screen.xterm-256color"), ("TMUX", "/tmp/t,1,0")], false),
        (&[("TERM", "screen"), ("STY", "1.pts")], true),
        (&[("TERM", "linux")], true),
        (&[("TERM", "rxvt-unicode-256color")], true),
        (&[], false),
    ] {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(cuts(variable), wanted, "{variables:?}");
    }
}

//! From bytes and pauses to keys and pastes.

use super::*;

/// Formats a key as `C-x`, `M-x`, `S-x` and so on.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other keys have one name")]
fn name(key: &KeyEvent) -> String {
    let code = match key.code {
        KeyCode::Char(' ') => "Space".to_owned(),
        KeyCode::Char(char) => char.to_string(),
        code => format!("{code:?}"),
    };
    let prefix = |prefix: &str, modifier| {
        if key.modifiers.contains(modifier) { prefix.to_owned() } else { String::new() }
    };
    let is_capital = matches!(key.code, KeyCode::Char(char) if char.is_uppercase());
    let shift = if is_capital { String::new() } else { prefix("S-", KeyModifiers::SHIFT) };
    format!("{}{}{shift}{code}", prefix("C-", KeyModifiers::CONTROL), prefix("M-", KeyModifiers::ALT))
}

/// Reads the pieces of `given`. Each piece arrives at once, after a pause in milliseconds, and the reader's
/// timeouts expire in the pauses. Inputs returned by a timeout are marked with `|`.
fn read(given: &[(u64, &[u8])]) -> String {
    let mut keys = Keys::default();
    let mut told: Vec<String> = Vec::new();
    let mut tell = |inputs: Vec<Input>, late: &str| {
        told.extend(inputs.into_iter().map(|input| match input {
            Input::Key(key) => format!("{late}{}", name(&key)),
            Input::Paste(text) => format!("{late}<{}>", text.escape_debug()),
            Input::Focus(is_focused) => format!("{late}{}", if is_focused { "In" } else { "Out" }),
            Input::Resized | Input::Ended(_) => unreachable!("no bytes say so"),
        }));
    };
    for (pause_ms, bytes) in given {
        let pause = Duration::from_millis(*pause_ms);
        let mut waited = Duration::ZERO;
        while let Some(patience) = keys.patience().filter(|patience| waited + *patience < pause) {
            waited += patience;
            tell(keys.expire(), "|");
        }
        tell(keys.take(bytes, pause), "");
    }
    // A long pause at the end.
    for _ in 0..10 {
        if keys.patience().is_some() {
            tell(keys.expire(), "|");
        }
    }
    assert!(keys.patience().is_none(), "{given:?}: {keys:?}");
    told.join(" ")
}

fn check(given: &[u8], wanted: &str) {
    assert_eq!(read(&[(0, given)]), wanted, "{}", given.escape_ascii());
    // The same in pieces, without pauses.
    for at in 1..given.len() {
        let pieces = [(0, &given[..at]), (0, &given[at..])];
        assert_eq!(read(&pieces), wanted, "{} in two pieces at {at}", given.escape_ascii());
    }
}

#[test]
fn keys_are_what_terminals_send() {
    for (given, wanted) in [
        (&b"aB \r\t\x7f"[..], "a B Space Enter Tab Backspace"),
        (b"\x01\x03\x04\n\x08\x1a\x1c\x1f\0", "C-a C-c C-d C-j C-h C-z C-4 C-7 C-Space"),
        ("é€😀".as_bytes(), "é € 😀"),
        ("\u{1b}é\u{1b}b\u{1b}B\u{1b}\r\u{1b}\u{7f}".as_bytes(), "M-é M-b M-B M-Enter M-Backspace"),
        (b"\x1b[A\x1b[B\x1b[C\x1b[D\x1b[H\x1b[F\x1b[Z", "Up Down Right Left Home End S-BackTab"),
        // The terminal gets and loses the focus.
        (b"a\x1b[Ib\x1b[Oc\x1b[1O", "a In b Out c"),
        (b"\x1bOA\x1bOB\x1bOC\x1bOD\x1bOH\x1bOF", "Up Down Right Left Home End"),
        (
            b"\x1b[1~\x1b[2~\x1b[3~\x1b[4~\x1b[5~\x1b[6~\x1b[7~\x1b[8~",
            "Home Insert Delete End PageUp PageDown Home End",
        ),
        (b"\x1b[1;5C\x1b[1;3D\x1b[1;2A\x1b[3;5~\x1b[1;6H", "C-Right M-Left S-Up C-Delete C-S-Home"),
        // The keyboard protocol.
        (
            b"\x1b[27u\x1b[13;2u\x1b[99;5u\x1b[100;5u\x1b[9;2u\x1b[127;3u",
            "Esc S-Enter C-c C-d S-BackTab M-Backspace",
        ),
        (b"\x1b[97:65;5:1u\x1b[97;1:3u\x1b[13;1:3u\x1b[1;1:3A\x1b[1;1:2A", "C-a Up"),
        (
            b"\x1b[57399u\x1b[57414u\x1b[57415u\x1b[57417u\x1b[57426u\x1b[57441;2u\x1b[57358u",
            "0 Enter = Left Delete",
        ),
        // Keys that have no meaning here.
        (b"\x1bOP\x1b[15~\x1b[24~\x1b[[Ax\x1b[1;5P", "x"),
        // Replies of a terminal.
        (b"\x1b[?2026;2$yx\x1b[?1u\x1b[?64;1c\x1b[3;4R\x1b[5Iy\x1b[<0;1;2My", "x y y"),
        // Bytes that are not valid UTF-8.
        (b"a\xffb\xc3(c\xe2\x82d\x80e", "a b ( c d e"),
    ] {
        check(given, wanted);
    }
    assert_eq!(read(&[(0, b"\x1b")]), "|Esc");
    assert_eq!(read(&[(0, b"\x1b\x1b")]), "Esc |Esc");
    check(b"\x1b\x1b[A", "Esc Up");
}

#[test]
fn what_is_unfinished_holds_nothing_up() {
    for unfinished in [
        &b"\x1b["[..],
        b"\x1b[1",
        b"\x1b[1;",
        b"\x1b[?2026;2$",
        b"\x1bO",
        b"\xe2\x82",
        b"\x1b[<0;1",
        b"\x1b[[",
        b"\x1b[200",
    ] {
        let shown = unfinished.escape_ascii().to_string();
        let alone = read(&[(0, unfinished)]);
        let known = match unfinished {
            b"\x1b[" => "|M-[ ",
            b"\x1bO" => "|M-O ",
            _ => "",
        };
        assert_eq!(alone, known.trim_end(), "{shown}");
        // Control keys act at once, in either encoding, and all others after a moment.
        for (key, wanted) in
            [(&b"\x03"[..], "C-c"), (b"\x04", "C-d"), (b"\r", "Enter"), (b"\x1b[99;5u", "C-c")]
        {
            assert_eq!(read(&[(0, &[unfinished, key].concat())]), wanted, "{shown}");
        }
        assert_eq!(read(&[(0, unfinished), (150, b"a"), (0, b"~")]), format!("{known}a ~"), "{shown}");
    }
    // The buffer is bounded.
    assert_eq!(read(&[(0, &[b"\x1b[", &b"1"[..].repeat(100)[..], b"x"].concat())]), "1 ".repeat(35) + "x");
}

#[test]
fn a_paste_is_text_whatever_is_in_it() {
    for (text, wanted) in [
        ("two\nlines\r", r"<two\nlines\r>"),
        ("\u{3}\u{4}\u{1b}[A\u{1b}", r"<\u{3}\u{4}\u{1b}[A\u{1b}>"),
        ("é€😀", "<é€😀>"),
        ("\u{1b}[200~x", r"<\u{1b}[200~x>"),
        ("\u{1b}[201", r"<\u{1b}[201>"),
        ("", ""),
    ] {
        check(format!("\u{1b}[200~{text}\u{1b}[201~").as_bytes(), wanted);
    }
    check(b"a\x1b[200~b\x1b[201~c\x1b[200~d\x1b[201~\r", "a <b> c <d> Enter");
}

/// The end of a paste is lost: its text is shown, and the next pressed key is a key.
#[test]
fn a_paste_without_its_end_holds_nothing_up() {
    for (pieces, wanted) in [
        (&[(0, &b"\x1b[200~"[..])][..], ""),
        (&[(0, b"\x1b[200~ab")], "|<ab>"),
        (&[(0, b"\x1b[200~ab\x1b[20")], "|<ab>"),
        (&[(0, b"\x1b[200~ab"), (200, b"\x03")], "<ab> C-c"),
        (&[(0, b"\x1b[200~ab"), (200, b"\x04"), (0, b"x")], "<ab> C-d x"),
        (&[(0, b"\x1b[200~ab\x1b[2"), (200, b"\x1b[99;5u"), (0, b"\r")], "<ab> C-c Enter"),
        (&[(0, b"\x1b[200~ab"), (1_500, b"x"), (50, b"y"), (50, b"\r")], "|<ab> x y Enter"),
        (&[(0, b"\x1b[200~ab"), (1_500, b"\x1b[A"), (50, b"y")], "|<ab> Up y"),
        (&[(0, b"\x1b[200~"), (1_500, b"\x1b"), (50, b"y")], "|Esc y"),
        // Late parts of a paste over a slow connection are not keys.
        (&[(0, b"\x1b[200~ab"), (1_500, b"cd\r"), (10, b"\x1b[201~\r")], r"|<ab> <cd\r> Enter"),
        (&[(0, b"\x1b[200~ab\x1b[20"), (1_500, b"1~\r")], "|<ab> Enter"),
        (&[(0, b"\x1b[200~ab"), (1_500, b"c\x03d"), (10, b"\r"), (10, b"\x1b[201~")], r"|<ab> <c\u{3}d\r>"),
        // Too soon after the paste to be typed by a person.
        (&[(0, b"\x1b[200~ab"), (10, b"\x03"), (10, b"\r"), (10, b"\x1b[201~")], r"<ab\u{3}\r>"),
        (&[(0, b"\x1b[200~ab"), (900, b"y"), (10, b"\x1b[201~")], "<aby>"),
    ] {
        assert_eq!(read(pieces), wanted, "{pieces:?}");
    }
}

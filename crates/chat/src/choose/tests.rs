//! The keys of a line; a secret is not drawn.

use greenroom_terminal::input::{Input, KeyCode, KeyEvent, KeyModifiers};

use super::{Line, Then};

fn typed(line: &mut Line, keys: &str) -> Then {
    let mut then = Then::Waits;
    for key in keys.chars() {
        let (code, modifiers) = match key {
            '\n' => (KeyCode::Enter, KeyModifiers::NONE),
            '<' => (KeyCode::Backspace, KeyModifiers::NONE),
            '\u{1b}' => (KeyCode::Esc, KeyModifiers::NONE),
            '\u{15}' => (KeyCode::Char('u'), KeyModifiers::CONTROL),
            key => (KeyCode::Char(key), KeyModifiers::NONE),
        };
        then = line.key(&Input::Key(KeyEvent::new(code, modifiers)));
    }
    then
}

#[test]
fn a_line_is_typed_corrected_and_answered() {
    for (keys, expected) in [
        ("abc\n", Then::Answered("abc".to_owned())),
        (" ab<c \n", Then::Answered("ac".to_owned())),
        ("wrong\u{15}right\n", Then::Answered("right".to_owned())),
        ("\n", Then::Waits),
        ("  \n", Then::Waits),
        ("abc\u{1b}", Then::Left),
        ("abc", Then::Waits),
    ] {
        let mut line = Line { text: String::new(), is_secret: false, title: "Which".to_owned() };
        assert_eq!(typed(&mut line, keys), expected, "{keys:?}");
    }
}

#[test]
fn a_secret_is_never_drawn() {
    for is_secret in [true, false] {
        let mut line = Line { text: String::new(), is_secret, title: "Key".to_owned() };
        assert_eq!(line.key(&Input::Paste(" sk-hidden \n".to_owned())), Then::Waits);
        let (rows, _) = line.layout(60);
        let drawn: String = rows.iter().map(|row| row.text()).collect();
        assert_eq!(drawn.contains("sk-hidden"), !is_secret, "{drawn}");
        assert_eq!(drawn.contains("9 characters"), is_secret, "{drawn}");
        assert_eq!(typed(&mut line, "\n"), Then::Answered("sk-hidden".to_owned()));
    }
}

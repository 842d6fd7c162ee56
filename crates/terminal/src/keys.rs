//! Parses the bytes from a terminal into keys and pastes.
//!
//! Invariants: unfinished input delays what follows by a moment at most. A sequence without its end is
//! dropped when the next one starts, at a control key, or after [`SEQUENCE_MAX`]. Pasted text stays text,
//! whatever it contains. A paste without its end is ended only by a key that arrives alone, after a silence
//! too long for a late part of the paste. So pasted text never presses a key, and Ctrl-C and Ctrl-D always
//! work.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::input::Input;

/// How long to wait for the rest of a sequence or character. A terminal sends it in one piece.
pub(crate) const SEQUENCE_MAX: Duration = Duration::from_millis(100);
/// How long to wait for the rest of a paste before the text so far is shown. A key that arrives alone after
/// such a silence ends the paste.
pub(crate) const PASTE_MAX: Duration = Duration::from_secs(1);

/// The parameters of the sequence, ending with `~`, that begins a paste.
const PASTE: &[u8] = b"200";
const PASTE_END: &[u8] = b"\x1b[201~";
/// The maximum number of parameter bytes of a sequence; no key has a longer one.
const PARAMETERS_MAX: usize = 64;

/// The unfinished input.
#[derive(Debug, Default)]
enum ParserState {
    #[default]
    Nothing,
    /// The start of a sequence, or the Esc key.
    Escape,
    /// A sequence with its parameters so far.
    Parameters(Vec<u8>),
    /// A sequence that consists of one more letter.
    Letter,
    /// The first bytes of a multi-byte character.
    Character { bytes: Vec<u8>, alt: KeyModifiers },
    /// A paste: the part of its text that was not returned yet.
    Paste(Vec<u8>),
}

/// A parser of keys and pastes.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    state: ParserState,
    inputs: Vec<Input>,
}

impl Keys {
    /// Returns how long to wait for more bytes before calling [`Self::expire`]; `None` means without limit.
    pub(crate) fn patience(&self) -> Option<Duration> {
        match &self.state {
            ParserState::Nothing => None,
            ParserState::Escape => Some(Duration::ZERO),
            ParserState::Parameters(_) | ParserState::Letter | ParserState::Character { .. } => {
                Some(SEQUENCE_MAX)
            }
            ParserState::Paste(text) => (text.len() > unfinished_end(text)).then_some(PASTE_MAX),
        }
    }

    /// Handles the end of this wait, and returns the resulting input.
    pub(crate) fn expire(&mut self) -> Vec<Input> {
        match std::mem::take(&mut self.state) {
            ParserState::Nothing | ParserState::Character { .. } => {}
            ParserState::Escape => self.press(KeyCode::Esc, KeyModifiers::NONE),
            // Not a sequence, but the key with Alt.
            ParserState::Parameters(given) if given.is_empty() => self.character('[', KeyModifiers::ALT),
            ParserState::Parameters(_) => {}
            ParserState::Letter => self.character('O', KeyModifiers::ALT),
            ParserState::Paste(mut text) => {
                let end = text.split_off(text.len() - unfinished_end(&text));
                self.paste(&text);
                self.state = ParserState::Paste(end);
            }
        }
        std::mem::take(&mut self.inputs)
    }

    /// Handles bytes that arrived together after the given silence, and returns the resulting input.
    pub(crate) fn take(&mut self, bytes: &[u8], silence: Duration) -> Vec<Input> {
        if let ParserState::Paste(text) = &self.state
            && let Some(key) = alone(bytes)
            && silence >= if key.leaves() { SEQUENCE_MAX } else { PASTE_MAX }
        {
            let text = text[..text.len() - unfinished_end(text)].to_vec();
            self.paste(&text);
            self.state = ParserState::Nothing;
        }
        bytes.iter().for_each(|byte| self.byte(*byte));
        std::mem::take(&mut self.inputs)
    }

    fn byte(&mut self, byte: u8) {
        match std::mem::take(&mut self.state) {
            ParserState::Nothing => self.begin(byte, KeyModifiers::NONE),
            ParserState::Escape => match byte {
                b'[' => self.state = ParserState::Parameters(Vec::new()),
                b'O' => self.state = ParserState::Letter,
                0x1b => {
                    self.press(KeyCode::Esc, KeyModifiers::NONE);
                    self.state = ParserState::Escape;
                }
                byte => self.begin(byte, KeyModifiers::ALT),
            },
            ParserState::Parameters(mut given) => match byte {
                // The function keys of the Linux console start with two brackets.
                b'[' if given.is_empty() => self.state = ParserState::Parameters(vec![byte]),
                0x20..=0x3f if given.len() < PARAMETERS_MAX => {
                    given.push(byte);
                    self.state = ParserState::Parameters(given);
                }
                0x20..=0x3f => {}
                b'I' | b'O' if given.is_empty() => self.inputs.push(Input::Focus(byte == b'I')),
                b'~' if given == PASTE => self.state = ParserState::Paste(Vec::new()),
                0x40..=0x7e => self.inputs.extend(sequence(&given, byte).map(Input::Key)),
                byte => self.begin(byte, KeyModifiers::NONE),
            },
            ParserState::Letter => match byte {
                0x20..=0x7e => self.inputs.extend(arrow(byte).map(|code| Input::Key(code.into()))),
                byte => self.begin(byte, KeyModifiers::NONE),
            },
            ParserState::Character { mut bytes, alt } => match byte {
                0x80..=0xbf => {
                    bytes.push(byte);
                    match std::str::from_utf8(&bytes) {
                        Ok(text) => text.chars().for_each(|char| self.character(char, alt)),
                        Err(error) if error.error_len().is_none() => {
                            self.state = ParserState::Character { bytes, alt };
                        }
                        Err(_) => {}
                    }
                }
                byte => self.begin(byte, KeyModifiers::NONE),
            },
            ParserState::Paste(mut text) => {
                text.push(byte);
                match text.strip_suffix(PASTE_END) {
                    Some(text) => self.paste(text),
                    None => self.state = ParserState::Paste(text),
                }
            }
        }
    }

    /// Handles the first byte of a key, character or sequence.
    fn begin(&mut self, byte: u8, alt: KeyModifiers) {
        let control = |base: u8, first: u8| char::from(byte - base + first);
        match byte {
            0x1b => self.state = ParserState::Escape,
            b'\r' => self.press(KeyCode::Enter, alt),
            b'\t' => self.press(KeyCode::Tab, alt),
            0x7f => self.press(KeyCode::Backspace, alt),
            0 => self.press(KeyCode::Char(' '), alt | KeyModifiers::CONTROL),
            0x01..=0x1a => self.press(KeyCode::Char(control(1, b'a')), alt | KeyModifiers::CONTROL),
            0x1c..=0x1f => self.press(KeyCode::Char(control(0x1c, b'4')), alt | KeyModifiers::CONTROL),
            0x20..=0x7e => self.character(char::from(byte), alt),
            0xc2..=0xf4 => self.state = ParserState::Character { bytes: vec![byte], alt },
            0x80..=0xc1 | 0xf5..=0xff => {}
        }
    }

    fn character(&mut self, char: char, alt: KeyModifiers) {
        let shift = if char.is_uppercase() { KeyModifiers::SHIFT } else { KeyModifiers::NONE };
        self.press(KeyCode::Char(char), alt | shift);
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) {
        self.inputs.push(Input::Key(KeyEvent::new(code, modifiers)));
    }

    fn paste(&mut self, text: &[u8]) {
        if !text.is_empty() {
            self.inputs.push(Input::Paste(String::from_utf8_lossy(text).into_owned()));
        }
    }
}

/// Returns the key that these bytes encode, if they encode exactly one.
fn alone(bytes: &[u8]) -> Option<Input> {
    let mut keys = Keys::default();
    bytes.iter().for_each(|byte| keys.byte(*byte));
    let mut inputs = if matches!(keys.state, ParserState::Escape) { keys.expire() } else { keys.inputs };
    inputs.pop().filter(|input| {
        inputs.is_empty() && matches!((input, &keys.state), (Input::Key(_), ParserState::Nothing))
    })
}

/// Returns how many bytes at the end of the text may be the start of the paste's end.
fn unfinished_end(text: &[u8]) -> usize {
    (1..PASTE_END.len()).rev().find(|bytes| text.ends_with(&PASTE_END[..*bytes])).unwrap_or(0)
}

/// Returns the key of a sequence with parameters; `None` if it is not a key, or is a key's release.
fn sequence(given: &[u8], last: u8) -> Option<KeyEvent> {
    /// The event type of a key's release in the keyboard protocol.
    const RELEASED: u32 = 3;
    if !matches!(given.first(), None | Some(b'0'..=b';')) {
        return None;
    }
    let mut fields = std::str::from_utf8(given).ok()?.split(';');
    let first: Option<u32> = fields.next()?.split(':').next()?.parse().ok();
    let mut more = fields.next().unwrap_or_default().split(':').map(|part| part.parse::<u32>().ok());
    let modifiers = modifiers(more.next().flatten().unwrap_or(1));
    if more.next().flatten() == Some(RELEASED) {
        return None;
    }
    let code = match last {
        b'Z' => return Some(KeyEvent::new(KeyCode::BackTab, modifiers | KeyModifiers::SHIFT)),
        b'~' => match first? {
            1 | 7 => KeyCode::Home,
            2 => KeyCode::Insert,
            3 => KeyCode::Delete,
            4 | 8 => KeyCode::End,
            5 => KeyCode::PageUp,
            6 => KeyCode::PageDown,
            _ => return None,
        },
        b'u' => named(first?, modifiers)?,
        last => arrow(last)?,
    };
    Some(KeyEvent::new(code, modifiers))
}

fn arrow(letter: u8) -> Option<KeyCode> {
    Some(match letter {
        b'A' => KeyCode::Up,
        b'B' => KeyCode::Down,
        b'C' => KeyCode::Right,
        b'D' => KeyCode::Left,
        b'F' => KeyCode::End,
        b'H' => KeyCode::Home,
        _ => return None,
    })
}

/// Returns the key with this number in the [keyboard
/// protocol](https://sw.kovidgoyal.net/kitty/keyboard-protocol/).
fn named(number: u32, modifiers: KeyModifiers) -> Option<KeyCode> {
    /// The first number of the keypad, and the characters of its keys in order.
    const KEYPAD: (u32, &[u8]) = (57_399, b"0123456789./*-+\r=,");
    let of_keypad = |place: u32| KEYPAD.1.get(usize::try_from(place).ok()?).map(|byte| char::from(*byte));
    let char = match number {
        57_417 => return Some(KeyCode::Left),
        57_418 => return Some(KeyCode::Right),
        57_419 => return Some(KeyCode::Up),
        57_420 => return Some(KeyCode::Down),
        57_421 => return Some(KeyCode::PageUp),
        57_422 => return Some(KeyCode::PageDown),
        57_423 => return Some(KeyCode::Home),
        57_424 => return Some(KeyCode::End),
        57_425 => return Some(KeyCode::Insert),
        57_426 => return Some(KeyCode::Delete),
        // Keys without characters have numbers of the private use area.
        57_344..=63_743 => of_keypad(number.checked_sub(KEYPAD.0)?)?,
        number => char::from_u32(number)?,
    };
    Some(match char {
        '\u{1b}' => KeyCode::Esc,
        '\r' => KeyCode::Enter,
        '\t' if modifiers.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
        '\t' => KeyCode::Tab,
        '\u{7f}' => KeyCode::Backspace,
        char => KeyCode::Char(char),
    })
}

/// Decodes the modifiers of a sequence: one more than the sum of their bits.
fn modifiers(given: u32) -> KeyModifiers {
    let bits = given.saturating_sub(1);
    let all = [
        (1, KeyModifiers::SHIFT),
        (2, KeyModifiers::ALT),
        (4, KeyModifiers::CONTROL),
        (8, KeyModifiers::SUPER),
        (16, KeyModifiers::HYPER),
        (32, KeyModifiers::META),
    ];
    all.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, modifier)| modifier).collect()
}

#[cfg(test)]
mod tests;

//! The encodings in which text files are read and changed.
//!
//! Invariants: what is decoded and not changed is encoded to the same bytes. A file with NUL bytes and
//! without the byte order mark of UTF-16 is not text, unless it is UTF-8.

use std::borrow::Cow;

/// The byte order mark.
pub(super) const BOM: char = '\u{feff}';

/// The characters of Windows-1252 that are others in ISO 8859-1; those of unassigned bytes are the same.
const WINDOWS: [char; 32] = [
    '\u{20ac}', '\u{81}', '\u{201a}', '\u{192}', '\u{201e}', '\u{2026}', '\u{2020}', '\u{2021}', '\u{2c6}',
    '\u{2030}', '\u{160}', '\u{2039}', '\u{152}', '\u{8d}', '\u{17d}', '\u{8f}', '\u{90}', '\u{2018}',
    '\u{2019}', '\u{201c}', '\u{201d}', '\u{2022}', '\u{2013}', '\u{2014}', '\u{2dc}', '\u{2122}', '\u{161}',
    '\u{203a}', '\u{153}', '\u{9d}', '\u{17e}', '\u{178}',
];
/// The first byte of [`WINDOWS`].
const WINDOWS_FIRST: u8 = 0x80;

/// An encoding of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// UTF-8, with or without a byte order mark, which is part of the text.
    Utf8,
    /// UTF-16, low byte first, with a byte order mark.
    Utf16Le,
    /// UTF-16, high byte first, with a byte order mark.
    Utf16Be,
    /// Windows-1252, which contains the printable characters of ISO 8859-1: what is not UTF-8 is read so.
    Windows1252,
}

impl Encoding {
    /// Returns the encoding that a file's first bytes declare.
    pub(super) fn declared(head: &[u8]) -> Option<Self> {
        match head {
            [0xff, 0xfe, ..] => Some(Self::Utf16Le),
            [0xfe, 0xff, ..] => Some(Self::Utf16Be),
            _ => None,
        }
    }

    /// Returns its name.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Utf8 => "UTF-8",
            Self::Utf16Le => "UTF-16LE",
            Self::Utf16Be => "UTF-16BE",
            Self::Windows1252 => "Windows-1252",
        }
    }

    /// Encodes a text.
    ///
    /// # Errors
    /// The first character that the encoding does not have.
    pub(super) fn encode(self, text: &str) -> Result<Vec<u8>, char> {
        let units = |bytes: fn(u16) -> [u8; 2]| {
            let mark = (!text.starts_with(BOM)).then_some(BOM);
            let mut buffer = [0; 2];
            let mut encoded = Vec::with_capacity(2 * text.len() + 2);
            for char in mark.into_iter().chain(text.chars()) {
                encoded.extend(char.encode_utf16(&mut buffer).iter().flat_map(|unit| bytes(*unit)));
            }
            encoded
        };
        match self {
            Self::Utf8 => Ok(text.as_bytes().to_vec()),
            Self::Utf16Le => Ok(units(u16::to_le_bytes)),
            Self::Utf16Be => Ok(units(u16::to_be_bytes)),
            Self::Windows1252 => text.chars().map(|char| byte_of(char).ok_or(char)).collect(),
        }
    }
}

/// Decodes the content of a file; `None` if it is not text. The byte order mark of UTF-16 is left out.
pub(super) fn decode(content: Vec<u8>) -> Option<(Encoding, String)> {
    if let Some(encoding) = Encoding::declared(&content) {
        return Some((encoding, utf16(encoding, &content[2..])?));
    }
    match String::from_utf8(content) {
        Ok(text) => Some((Encoding::Utf8, text)),
        Err(error) if error.as_bytes().contains(&0) => None,
        Err(error) => Some((Encoding::Windows1252, windows_1252(error.as_bytes()))),
    }
}

/// Decodes UTF-16; `None` if it is none, or the encoding is another one.
fn utf16(encoding: Encoding, content: &[u8]) -> Option<String> {
    let (units, []) = content.as_chunks::<2>() else { return None };
    let unit: fn([u8; 2]) -> u16 = match encoding {
        Encoding::Utf16Le => u16::from_le_bytes,
        Encoding::Utf16Be => u16::from_be_bytes,
        Encoding::Utf8 | Encoding::Windows1252 => return None,
    };
    char::decode_utf16(units.iter().copied().map(unit)).collect::<Result<_, _>>().ok()
}

/// Decodes a line that should be UTF-8; returns whether it was.
pub(super) fn line(line: &[u8]) -> (Cow<'_, str>, bool) {
    match std::str::from_utf8(line) {
        Ok(text) => (Cow::Borrowed(text), true),
        Err(_) => (Cow::Owned(windows_1252(line)), false),
    }
}

fn windows_1252(content: &[u8]) -> String {
    content.iter().map(|byte| char_of(*byte)).collect()
}

fn char_of(byte: u8) -> char {
    let place = byte.checked_sub(WINDOWS_FIRST).map(usize::from);
    place.and_then(|place| WINDOWS.get(place)).copied().unwrap_or(char::from(byte))
}

fn byte_of(char: char) -> Option<u8> {
    let place =
        WINDOWS.iter().position(|windows| *windows == char).and_then(|place| u8::try_from(place).ok());
    let plain = || u8::try_from(u32::from(char)).ok().filter(|byte| char_of(*byte) == char);
    place.map(|place| WINDOWS_FIRST + place).or_else(plain)
}

/// Whether all lines of a text end with `\r\n`, and there is at least one.
pub(super) fn has_windows_line_ends(text: &str) -> bool {
    let newlines = text.matches('\n').count();
    newlines > 0 && text.matches("\r\n").count() == newlines
}

#[cfg(test)]
mod tests;

//! The default estimator: one pass over the text, by character class.
//!
//! The text is split as o200k's own pre-tokenizer splits it: a word with the one character before it, up to
//! three digits, a run of punctuation with the line ends after it, a run of white space. No token crosses
//! such a boundary, so it remains to estimate how many tokens one short piece becomes. For words in Latin
//! letters that is read from a table of letter pairs (`SEAMS`), which distinguishes English from hashes and
//! base64 without a dictionary; for other scripts from a cost per word and per letter.
//!
//! The constants were fitted, by least relative error, to o200k's counts of 8 KiB messages: code, JSON,
//! listings, logs, prose, dumps and some twenty languages. Costs are in 1/64 token.
//!
//! Invariants: deterministic, linear in the text, no allocation; an empty text counts 0, any other at least
//! 1; splitting a text in two changes the estimate by a few tokens at most, wherever it is split.

/// Cost units in a token.
const TOKEN: u64 = 64;

/// A word in Latin letters, by the text before it: part of a longer name (`fooBar`) or after a bracket.
const WORD_BARE: u64 = 46;
/// A word after a space, which its first token includes.
const WORD_SPACE: u64 = 47;
/// A word that opens a line: few tokens begin so without their space.
const WORD_LINE: u64 = 65;
/// A word after one of the characters that o200k often joins to a word: `.get`, `_name`, `(self`, `/usr`.
const WORD_JOINED: u64 = 67;
/// A word after any other single character, mostly a token of its own: `"`, `,`, `|`, `:`.
const WORD_LOOSE: u64 = 82;
/// Added for a capital after such a character: `.Name` is rarer than `.name`.
const CAPITAL: u64 = 8;
/// Added for a word of one letter, so that it comes to one token.
const ONE_LETTER: u64 = 18;
/// One tenth in [`SEAMS`], between letters of which one is small. More than 1/10 token, because the words
/// above cost less than one.
const SEAM: u64 = 10;
/// One tenth in [`SEAMS`] between two capitals, which are joined less often.
const SEAM_CAPITALS: u64 = 12;
/// The seam inside `aaaa`, in tenths: such runs are joined by eights.
const SEAM_SAME: u64 = 1;
/// Added per letter of a word with an accent: no English word, so longer in tokens than its pairs say.
const ACCENTED: u64 = 11;
/// The maximum number of letters of one word for [`ACCENTED`], and the cost of an accent beyond them: so an
/// endless word is neither free nor much more expensive whole than in two.
const ACCENTED_MAX: u64 = 16;
const ACCENT_BEYOND: u64 = 32;

/// A run of punctuation.
const PUNCTUATION: u64 = 69;
/// Added per change of character in such a run, after the second: `)(\w+)*` is not one token.
const PUNCTUATION_CHANGE: u64 = 25;
/// A run of spaces or tabs. It costs less than a token as short ones are joined to what follows.
const BLANKS: u64 = 55;
/// The number of spaces that one token holds, and likewise of other white space, and of one repeated
/// punctuation character.
const SPACES_PER_TOKEN: usize = 128;
const BREAKS_PER_TOKEN: usize = 16;
const SAME_PER_TOKEN: u64 = 64;

/// Cyrillic: a word after a space, another word (`С|евер`), a capital, a letter, and what a letter that
/// Russian does not use costs more (Ukrainian and its neighbours have fewer tokens).
const CYRILLIC_WORD: u64 = 17;
const CYRILLIC_BARE: u64 = 46;
const CYRILLIC_CAPITAL: u64 = 31;
const CYRILLIC: u64 = 14;
const CYRILLIC_OTHER: u64 = 84;
/// Alphabets at 0.4 token per letter, within a hundredth: Greek, Arabic, Hebrew, Devanagari, Thai.
const ALPHABET: u64 = 26;
/// A Hebrew word, besides its letters.
const HEBREW_WORD: u64 = 20;
/// Chinese and Japanese: an ideograph, what a traditional form costs more, a kana.
const HAN: u64 = 45;
const HAN_TRADITIONAL: u64 = 66;
const HIRAGANA: u64 = 41;
/// A run of katakana, and each of it.
const KATAKANA_WORD: u64 = 23;
const KATAKANA: u64 = 36;
/// A Korean word, and each syllable of it.
const HANGUL_WORD: u64 = 38;
const HANGUL: u64 = 32;
/// Symbols: CJK punctuation (often two tokens with what follows), full-width forms and Latin-1 signs,
/// general punctuation, arrows and box drawing, the same again, the same a third time and on (`───`), emoji.
const CJK_SIGN: u64 = 74;
const SIGN: u64 = 57;
const SYMBOL: u64 = 45;
const SYMBOL_SAME: u64 = 26;
const SYMBOL_RUN: u64 = 4;
const EMOJI: u64 = 106;
/// Any other character, per byte of its UTF-8 form: 0.4 token.
const OTHER_PER_BYTE: u64 = 26;

/// How often o200k cuts between two letters within a word, in tenths: a row per first letter, a column per
/// second, both `a` to `z`. Counted over the corpus, every category weighing the same.
const SEAMS: [&[u8; 26]; 26] = [
    b"30004103111000405000100101", // a
    b"12341556226056187233176707", // b
    b"13130350150044067020165614", // c
    b"12400365133336168122165324", // d
    b"22101114362000421000311012", // e
    b"14331126184131048120164319", // f
    b"33680611278131169121245742", // g
    b"16730757166542175270255524", // h
    b"10000004530000002000305030", // i
    b"35731685346366238617188969", // j
    b"43941711274562379432254829", // k
    b"13710157185054119321124408", // l
    b"11640664265214115612285418", // m
    b"16100101261352139410125413", // n
    b"40003001120000008000020213", // o
    b"16420521373024016010155319", // p
    b"78467989699088672343069899", // q
    b"24110305191311045100219406", // r
    b"24120430182234112000132925", // s
    b"17330370183426119011152113", // t
    b"20100104141000509000424022", // u
    b"06450828285617159356767958", // v
    b"25721560285651149114662129", // w
    b"16132599399626719950789236", // x
    b"45774979593421109312796755", // y
    b"38761775376763389774284623", // z
];

/// [`SEAMS`] by the low five bits of both letters, in which capitals and small letters agree.
const SEAM_TABLE: [u8; 1024] = {
    let mut table = [0; 1024];
    let mut first = 0;
    while first < 26 {
        let mut second = 0;
        while second < 26 {
            table[(first + 1) * 32 + second + 1] = SEAMS[first][second] - b'0';
            second += 1;
        }
        first += 1;
    }
    table
};

/// The commonest ideographs that only traditional Chinese writes, in order. They mark a text in which o200k
/// joins few characters, and carry the cost of the rest of it.
const TRADITIONAL: [char; 59] = [
    '來', '個', '們', '傳', '內', '刪', '區', '參', '啟', '單', '國', '圍', '執', '實', '寫', '將', '對',
    '屬', '徑', '從', '應', '擇', '數', '於', '會', '案', '條', '檔', '權', '沒', '為', '爾', '狀', '產',
    '發', '碼', '稱', '與', '處', '號', '裝', '訊', '說', '請', '證', '譯', '讀', '變', '資', '輸', '轉',
    '這', '錄', '錯', '關', '顯', '馬', '體', '點',
];

/// Returns the estimated tokens of `text`: 0 only when it is empty.
pub fn tokens(text: &str) -> u64 {
    if text.is_empty() {
        return 0;
    }
    let mut walk = Walk { text, bytes: text.as_bytes(), at: 0, cost: 0 };
    while walk.at < walk.bytes.len() {
        walk.piece();
    }
    ((walk.cost + TOKEN / 2) / TOKEN).max(1)
}

/// The class of a character outside ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    /// Accented Latin letters and combining accents.
    Latin,
    Cyrillic,
    Hebrew,
    /// Greek, Arabic, Devanagari.
    Alphabet,
    Thai,
    Han,
    Hiragana,
    Katakana,
    Hangul,
    OtherLetter,
    CjkSign,
    Sign,
    Symbol,
    Emoji,
}

impl Script {
    fn of(c: char) -> Self {
        match u32::from(c) {
            0..=0xA9 | 0xAB..=0xB4 | 0xB6..=0xB9 | 0xBB..=0xBF | 0xD7 | 0xF7 | 0xFF00..=0xFFEF => Self::Sign,
            0xAA..=0x24F | 0x300..=0x36F | 0x1E00..=0x1EFF => Self::Latin,
            0x400..=0x52F => Self::Cyrillic,
            0x590..=0x5FF => Self::Hebrew,
            0x370..=0x3FF | 0x1F00..=0x1FFF | 0x600..=0x6FF | 0x900..=0x97F => Self::Alphabet,
            0xE00..=0xE7F => Self::Thai,
            0x2000..=0x2BFF | 0xFE0F => Self::Symbol,
            0x3000..=0x303F => Self::CjkSign,
            0x3040..=0x309F => Self::Hiragana,
            0x30A0..=0x30FF => Self::Katakana,
            0x3400..=0x9FFF => Self::Han,
            0xAC00..=0xD7AF => Self::Hangul,
            0x1F000..=0x1FAFF => Self::Emoji,
            _ => Self::OtherLetter,
        }
    }

    /// Whether it continues words; a single other character before a word goes with the word.
    fn is_letter(self) -> bool {
        match self {
            Self::Latin
            | Self::Cyrillic
            | Self::Hebrew
            | Self::Alphabet
            | Self::Thai
            | Self::Han
            | Self::Hiragana
            | Self::Katakana
            | Self::Hangul
            | Self::OtherLetter => true,
            Self::CjkSign | Self::Sign | Self::Symbol | Self::Emoji => false,
        }
    }
}

/// The pass: everything before `at` is in `cost`. `at` is always between two characters.
struct Walk<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    cost: u64,
}

impl Walk<'_> {
    /// Counts one piece, from `at`, which is before the end.
    fn piece(&mut self) {
        let first = self.bytes[self.at];
        if first.is_ascii_digit() {
            let digits = self.bytes[self.at..].iter().take(3).take_while(|b| b.is_ascii_digit()).count();
            self.at += digits;
            self.cost += TOKEN;
        } else if self.letter_at(self.at) {
            let line = self.at > 0 && self.bytes[self.at - 1] == b'\n';
            self.word(if line { WORD_LINE } else { WORD_BARE });
        } else if !first.is_ascii() {
            self.symbol();
        } else if !matches!(first, b'\n' | b'\r') && self.letter_at(self.at + 1) {
            self.at += 1;
            self.word(match first {
                b' ' => WORD_SPACE,
                b'\t' | b'#' | b'&' | b'\'' | b'(' | b'-' | b'.' | b'/' | b'\\' | b'_' | b'@' => WORD_JOINED,
                _ => WORD_LOOSE,
            });
        } else if is_white(first) && !(first == b' ' && self.punctuation_at(self.at + 1)) {
            self.white_space();
        } else {
            self.punctuation();
        }
    }

    fn letter_at(&self, at: usize) -> bool {
        match self.bytes.get(at) {
            Some(byte) if byte.is_ascii() => byte.is_ascii_alphabetic(),
            Some(_) => self.script_at(at).is_some_and(Script::is_letter),
            None => false,
        }
    }

    fn punctuation_at(&self, at: usize) -> bool {
        self.bytes.get(at).is_some_and(|&b| b.is_ascii() && !b.is_ascii_alphanumeric() && !is_white(b))
    }

    fn char_at(&self, at: usize) -> Option<char> {
        self.text.get(at..)?.chars().next()
    }

    /// Returns the script of the character at `at`; `None` for ASCII and at the end.
    fn script_at(&self, at: usize) -> Option<Script> {
        self.char_at(at).filter(|c| !c.is_ascii()).map(Script::of)
    }

    /// Counts a word from `at`; `lead` is its cost in Latin letters, which depends on the text before it.
    fn word(&mut self, lead: u64) {
        if self.bytes[self.at].is_ascii() {
            return self.latin_word(lead);
        }
        match self.script_at(self.at) {
            None | Some(Script::Latin) => self.latin_word(lead),
            Some(script) => self.other_word(script, lead),
        }
    }

    /// Counts capitals, then small letters, as o200k splits `HTTPServer|Error`.
    fn latin_word(&mut self, lead: u64) {
        let start = self.at;
        let (mut letters, mut accents) = (0, 0);
        letters += self.letters(start, SEAM_CAPITALS, u8::is_ascii_uppercase);
        let capital = self.at > start;
        let capitals_end = self.at;
        loop {
            match self.bytes.get(self.at) {
                Some(byte) if byte.is_ascii_lowercase() => {
                    letters += self.letters(start, SEAM, u8::is_ascii_lowercase);
                }
                Some(byte) if !byte.is_ascii() => match self.char_at(self.at) {
                    Some(c) if Script::of(c) == Script::Latin => {
                        accents += 1;
                        if letters + accents > ACCENTED_MAX {
                            self.cost += ACCENT_BEYOND;
                        }
                        self.at += c.len_utf8();
                    }
                    _ => break,
                },
                _ => break,
            }
        }
        self.cost += lead;
        if capital && self.at > capitals_end && matches!(lead, WORD_JOINED | WORD_LOOSE) {
            self.cost += CAPITAL;
        }
        if accents > 0 {
            self.cost += (letters + accents).min(ACCENTED_MAX) * ACCENTED;
        } else if letters == 1 {
            self.cost += ONE_LETTER;
        }
    }

    /// Counts the ASCII letters of one case from `at` on, of a word from `start`, each with the seam before
    /// it. Returns how many there are.
    fn letters(&mut self, start: usize, weight: u64, is_of_case: impl Fn(&u8) -> bool) -> u64 {
        let (from, bytes) = (self.at, self.bytes);
        // At the start, or after a non-ASCII character, that is 0, which has no seams in the table and is not
        // a letter.
        let mut before = if from > start && bytes[from - 1].is_ascii() { bytes[from - 1] } else { 0 };
        let mut before_that = if from > start + 1 { bytes[from - 2] } else { 0 };
        let mut tenths = 0;
        for byte in bytes[from..].iter().take_while(|byte| is_of_case(byte)) {
            let pair = usize::from(before & 31) * 32 + usize::from(byte & 31);
            let is_same = *byte == before && before == before_that;
            tenths += if is_same { SEAM_SAME } else { u64::from(SEAM_TABLE[pair]) };
            (before_that, before) = (before, *byte);
            self.at += 1;
        }
        self.cost += weight * tenths;
        (self.at - from) as u64
    }

    /// Counts a run of one script other than Latin.
    fn other_word(&mut self, script: Script, lead: u64) {
        let spaced = lead == WORD_SPACE;
        let bare = matches!(lead, WORD_BARE | WORD_LINE);
        self.cost += match script {
            Script::Cyrillic if spaced => CYRILLIC_WORD,
            Script::Cyrillic => CYRILLIC_BARE,
            Script::Hebrew => HEBREW_WORD,
            Script::Katakana if bare => KATAKANA_WORD,
            Script::Katakana => KATAKANA_WORD + TOKEN,
            Script::Hangul => HANGUL_WORD,
            // Scripts written without spaces have few tokens that begin with one.
            Script::Han | Script::Hiragana | Script::Thai | Script::OtherLetter if !bare => TOKEN,
            Script::Han | Script::Hiragana | Script::Thai | Script::OtherLetter => 0,
            Script::Alphabet
            | Script::Latin
            | Script::CjkSign
            | Script::Sign
            | Script::Symbol
            | Script::Emoji => 0,
        };
        let mut first = true;
        while let Some(c) = self.char_at(self.at) {
            if c.is_ascii() || Script::of(c) != script {
                break;
            }
            self.cost += match script {
                Script::Cyrillic => match c {
                    'А'..='Я' | 'Ё' if first => CYRILLIC + CYRILLIC_CAPITAL,
                    'А'..='я' | 'Ё' | 'ё' => CYRILLIC,
                    _ => CYRILLIC + CYRILLIC_OTHER,
                },
                Script::Alphabet | Script::Hebrew | Script::Thai => ALPHABET,
                Script::Han if TRADITIONAL.binary_search(&c).is_ok() => HAN + HAN_TRADITIONAL,
                Script::Han => HAN,
                Script::Hiragana => HIRAGANA,
                Script::Katakana => KATAKANA,
                Script::Hangul => HANGUL,
                Script::OtherLetter | Script::Latin => OTHER_PER_BYTE * c.len_utf8() as u64,
                Script::CjkSign | Script::Sign | Script::Symbol | Script::Emoji => TOKEN,
            };
            first = false;
            self.at += c.len_utf8();
        }
    }

    /// Counts one symbol outside ASCII, with the line ends after it.
    fn symbol(&mut self) {
        let Some(c) = self.char_at(self.at) else { return };
        let start = self.at;
        let end = start + c.len_utf8();
        let (symbol, before) = (&self.bytes[start..end], &self.bytes[..start]);
        let again = before.strip_suffix(symbol);
        self.cost += match Script::of(c) {
            Script::CjkSign => CJK_SIGN,
            Script::Sign => SIGN,
            Script::Symbol if again.is_some_and(|b| b.ends_with(symbol)) => SYMBOL_RUN,
            Script::Symbol if again.is_some() => SYMBOL_SAME,
            Script::Symbol => SYMBOL,
            Script::Emoji => EMOJI,
            Script::Latin | Script::Cyrillic | Script::Hebrew | Script::Alphabet | Script::OtherLetter => {
                TOKEN
            }
            Script::Han | Script::Hiragana | Script::Katakana | Script::Hangul | Script::Thai => TOKEN,
        };
        self.at = end;
        self.line_ends(b'\n');
    }

    /// Counts a run of ASCII punctuation, with a space before it and the line ends and slashes after it.
    fn punctuation(&mut self) {
        self.at += usize::from(self.bytes[self.at] == b' ');
        self.cost += PUNCTUATION;
        self.at += 1;
        let (mut changes, mut same) = (0u64, 0u64);
        while self.punctuation_at(self.at) {
            if self.bytes[self.at] == self.bytes[self.at - 1] {
                same += 1;
            } else {
                changes += 1;
            }
            self.at += 1;
        }
        self.cost += changes.saturating_sub(2) * PUNCTUATION_CHANGE + same / SAME_PER_TOKEN * TOKEN;
        self.line_ends(b'/');
    }

    /// Skips line ends, and `or`, that belong to the piece before them.
    fn line_ends(&mut self, or: u8) {
        let rest = &self.bytes[self.at..];
        let count = rest.iter().take_while(|&&b| matches!(b, b'\n' | b'\r') || b == or).count();
        self.at += count;
        self.cost += (count / BREAKS_PER_TOKEN) as u64 * TOKEN;
    }

    /// Counts white space: up to its last line end if there is one, otherwise all but the last blank, which
    /// belongs to the next piece; a blank before a digit is a separate token.
    fn white_space(&mut self) {
        let rest = &self.bytes[self.at..];
        let run = &rest[..rest.iter().take_while(|&&b| is_white(b)).count()];
        let (len, cost) = match run.iter().rposition(|b| matches!(b, b'\n' | b'\r')) {
            Some(last) => (last + 1, TOKEN),
            None if run.len() == rest.len() && run.len() > 1 => (run.len(), BLANKS),
            None if run.len() > 2 => (run.len() - 1, BLANKS),
            None => (1, TOKEN),
        };
        let spaces = run[..len].iter().filter(|&&b| b == b' ').count();
        let full = spaces / SPACES_PER_TOKEN + (len - spaces) / BREAKS_PER_TOKEN;
        self.cost += cost + full as u64 * TOKEN;
        self.at += len;
    }
}

/// Whether a byte is ASCII white space.
fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests;

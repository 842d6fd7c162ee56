//! The patterns of a schema, matched in counted steps.
//!
//! Invariants: a pattern follows ECMA 262, without look-around and back-references; a search costs at most
//! the pattern's states times the text's bytes, for any input, and each step is counted.

use regex_automata::nfa::thompson::{NFA, State, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;

use super::steps::{Spent, Steps};

#[cfg(test)]
mod tests;

/// The maximum number of characters of a pattern.
const CHARACTERS_MAX: usize = 2_000;

/// The maximum size of a compiled pattern, in bytes.
const BYTES_MAX: usize = 128 * 1024;

/// The maximum nesting depth of groups.
const NESTED_MAX: u32 = 50;

/// The cost of reading, in steps: for each character of a pattern; for each class such as `\p{L}`, which is
/// long; for each escape, since `\s` and the like are short classes, which cost more when they join a long
/// one; and for each byte of the compiled pattern.
const CHARACTER_STEPS: u64 = 10;
const ESCAPE_STEPS: u64 = 100;
const ESCAPE_BESIDE_CLASS_STEPS: u64 = 500;
const CLASS_STEPS: u64 = 5_000;
const BYTE_STEPS: u64 = 2;

/// How many byte ranges are compared with a byte in one step.
const RANGES_PER_STEP: usize = 16;

#[derive(Debug)]
pub(super) struct Pattern {
    text: String,
    nfa: NFA,
}

/// Why a text is not a pattern.
#[derive(Debug)]
pub(super) enum NoPattern {
    Wrong(String),
    Spent,
}

impl From<Spent> for NoPattern {
    fn from(_: Spent) -> Self {
        Self::Spent
    }
}

impl Pattern {
    pub(super) fn new(text: &str, steps: &mut Steps) -> Result<Self, NoPattern> {
        let characters = text.chars().take(CHARACTERS_MAX + 1).count();
        if characters > CHARACTERS_MAX {
            return Err(NoPattern::Wrong(format!(
                "it is too long; a pattern has at most {CHARACTERS_MAX} characters"
            )));
        }
        let classes = text.to_ascii_lowercase().matches("\\p").count();
        let escapes = text.matches('\\').count();
        let escape_steps = if classes == 0 { ESCAPE_STEPS } else { ESCAPE_BESIDE_CLASS_STEPS };
        steps.spend(
            CHARACTER_STEPS * characters as u64
                + CLASS_STEPS * classes as u64
                + escape_steps * escapes as u64,
        )?;
        let translated = translated(text).map_err(NoPattern::Wrong)?;
        let nfa = NFA::compiler()
            .syntax(syntax::Config::new().utf8(false).nest_limit(NESTED_MAX))
            .configure(
                NFA::config().utf8(false).which_captures(WhichCaptures::None).nfa_size_limit(Some(BYTES_MAX)),
            )
            .build(&translated)
            .map_err(|error| NoPattern::Wrong(reason(&error)))?;
        steps.spend(BYTE_STEPS * nfa.memory_usage() as u64)?;
        Ok(Self { text: text.to_owned(), nfa })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether some part of the text matches the pattern.
    pub(super) fn is_in(&self, text: &str, steps: &mut Steps) -> Result<bool, Spent> {
        steps.visit(1)?;
        steps.read(self.nfa.states().len())?;
        let mut search = Search {
            nfa: &self.nfa,
            text: text.as_bytes(),
            reached: vec![0; self.nfa.states().len()],
            open: Vec::new(),
            steps,
        };
        let (mut states, mut next) = (Vec::new(), Vec::new());
        for at in 0..=text.len() {
            let begins = at == 0 || !self.nfa.is_always_start_anchored();
            if begins && search.reach(self.nfa.start_anchored(), at, &mut states)? {
                return Ok(true);
            }
            if at == text.len() || (states.is_empty() && !begins) {
                break;
            }
            for &state in &states {
                let state = self.nfa.state(state);
                search.steps.spend(1 + (ranges(state) / RANGES_PER_STEP) as u64)?;
                if let Some(after) = after(state, search.text[at])
                    && search.reach(after, at + 1, &mut next)?
                {
                    return Ok(true);
                }
            }
            std::mem::swap(&mut states, &mut next);
            next.clear();
        }
        Ok(false)
    }
}

/// One pass through a text, in all states of the pattern at once.
struct Search<'a> {
    nfa: &'a NFA,
    text: &'a [u8],
    /// For each state, one more than the position in the text at which it was last reached.
    reached: Vec<usize>,
    open: Vec<StateID>,
    steps: &'a mut Steps,
}

impl Search<'_> {
    /// Adds the states that `state` leads to without consuming a byte; returns whether the end of the pattern
    /// is among them.
    fn reach(&mut self, state: StateID, at: usize, states: &mut Vec<StateID>) -> Result<bool, Spent> {
        self.open.clear();
        self.open.push(state);
        while let Some(id) = self.open.pop() {
            self.steps.spend(1)?;
            if std::mem::replace(&mut self.reached[id.as_usize()], at + 1) == at + 1 {
                continue;
            }
            match self.nfa.state(id) {
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => states.push(id),
                State::Look { look, next } => {
                    if self.nfa.look_matcher().matches(*look, self.text, at) {
                        self.open.push(*next);
                    }
                }
                State::Union { alternates } => {
                    self.steps.spend(alternates.len() as u64)?;
                    self.open.extend(alternates.iter());
                }
                State::BinaryUnion { alt1, alt2 } => self.open.extend([*alt1, *alt2]),
                State::Capture { next, .. } => self.open.push(*next),
                State::Fail => {}
                State::Match { .. } => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// Returns how many byte ranges a state compares with a byte.
fn ranges(state: &State) -> usize {
    match state {
        State::Sparse(sparse) => sparse.transitions.len(),
        State::ByteRange { .. }
        | State::Dense(_)
        | State::Look { .. }
        | State::Union { .. }
        | State::BinaryUnion { .. }
        | State::Capture { .. }
        | State::Fail
        | State::Match { .. } => 1,
    }
}

/// Returns the state that a byte leads to.
fn after(state: &State, byte: u8) -> Option<StateID> {
    match state {
        State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
        State::Sparse(transitions) => transitions.matches_byte(byte),
        State::Dense(transitions) => transitions.matches_byte(byte),
        State::Look { .. }
        | State::Union { .. }
        | State::BinaryUnion { .. }
        | State::Capture { .. }
        | State::Fail
        | State::Match { .. } => None,
    }
}

/// Returns the error of a pattern, without the drawing of its position.
fn reason(error: &regex_automata::nfa::thompson::BuildError) -> String {
    if error.size_limit().is_some() {
        return format!("it is too large: it becomes more than {BYTES_MAX} bytes");
    }
    let source = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let last = source.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// Whether an escape follows that stands for a class of characters, and is no end of a range.
fn is_class_escape(mut rest: impl Iterator<Item = char>) -> bool {
    rest.next() == Some('\\') && rest.next().is_some_and(|letter| "dDwWsS".contains(letter))
}

/// Translates an ECMA 262 pattern to Rust's syntax: constructs that look the same but mean something
/// different are rewritten.
fn translated(pattern: &str) -> Result<String, String> {
    const SPACE: &str = r"\t\n\x0B\x0C\r\x{FEFF}\x{2028}\x{2029}\p{Zs}";
    let mut out = String::new();
    let mut is_in_class = false;
    let mut is_after_dash = false;
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let was_after_dash = std::mem::take(&mut is_after_dash);
        match (c, is_in_class) {
            ('\\', _) => match (rest.next(), is_in_class) {
                (Some('d'), _) => out.push_str("[0-9]"),
                (Some('D'), _) => out.push_str("[^0-9]"),
                (Some('w'), _) => out.push_str("[0-9A-Za-z_]"),
                (Some('W'), _) => out.push_str("[^0-9A-Za-z_]"),
                (Some('s'), _) => out.push_str(&format!("[{SPACE}]")),
                (Some('S'), _) => out.push_str(&format!("[^{SPACE}]")),
                (Some('b'), true) => out.push_str(r"\x08"),
                (Some('b'), false) => out.push_str(r"(?-u:\b)"),
                (Some('B'), false) => out.push_str(r"(?-u:\B)"),
                (Some('0'), _) => out.push_str(r"\x00"),
                // Here they would be the ends of a word.
                (Some(angle @ ('<' | '>')), _) => out.push(angle),
                (Some('c'), _) => match rest.next().filter(char::is_ascii_alphabetic) {
                    Some(letter) => out.push_str(&format!(r"\x{:02X}", (letter as u8) % 32)),
                    None => return Err("a letter is missing after `\\c`".to_owned()),
                },
                (Some(other), _) if other.is_ascii_alphabetic() && !"ntrfvuxpPk".contains(other) => {
                    return Err(format!("`\\{other}` is not a known escape"));
                }
                (Some(other), _) => out.extend(['\\', other]),
                (None, _) => return Err("it ends with `\\`".to_owned()),
            },
            ('[', false) => {
                let is_negated = rest.next_if_eq(&'^').is_some();
                if rest.next_if_eq(&']').is_some() {
                    // No character, and any character.
                    out.push_str(if is_negated { r"[\x00-\x{10FFFF}]" } else { r"[^\x00-\x{10FFFF}]" });
                } else {
                    out.push_str(if is_negated { "[^" } else { "[" });
                    is_in_class = true;
                }
            }
            ('(', false) if rest.next_if_eq(&'?').is_some() => {
                if !matches!(rest.peek(), Some(':' | '=' | '!' | '<')) {
                    return Err("flags within a pattern are not supported".to_owned());
                }
                out.push_str("(?");
            }
            (']', true) => {
                out.push(']');
                is_in_class = false;
            }
            ('[' | '&' | '~', true) => out.extend(['\\', c]),
            ('-', true) if was_after_dash || is_class_escape(rest.clone()) => out.push_str(r"\-"),
            ('-', true) => {
                out.push('-');
                is_after_dash = true;
            }
            ('.', false) => out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
            (other, _) => out.push(other),
        }
    }
    Ok(out)
}

//! Syntax colours, from the terminal's own palette.
//!
//! Invariants: a line's text is never changed; the grammars are loaded once, for the first code block in a
//! known language.

use std::sync::OnceLock;

use greenroom_terminal::row::{Color, Look, Row};
use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

/// Longer lines are not coloured, because it would take too long.
const LINE_BYTES_MAX: usize = 2_000;

static GRAMMARS: OnceLock<SyntaxSet> = OnceLock::new();

fn grammars() -> &'static SyntaxSet {
    GRAMMARS.get_or_init(SyntaxSet::load_defaults_newlines)
}

/// Colours the lines of one piece of code in order.
#[derive(Debug)]
pub(crate) struct Highlighter {
    state: ParseState,
    scopes: ScopeStack,
}

impl Highlighter {
    /// Creates a highlighter for a language, given its name or file extension; `None` if it is unknown.
    pub(crate) fn of(language: &str) -> Option<Self> {
        if language.is_empty() || language == "text" {
            return None;
        }
        let known = match language {
            "ts" | "tsx" | "typescript" | "jsx" => "js",
            "shell" | "console" => "sh",
            "toml" => "ini",
            other => other,
        };
        let grammar = grammars().find_syntax_by_token(known)?;
        Some(Self { state: ParseState::new(grammar), scopes: ScopeStack::new() })
    }

    /// Colours the next line.
    pub(crate) fn line(&mut self, line: &str) -> Row {
        let text = format!("{line}\n");
        if text.len() > LINE_BYTES_MAX {
            return Row::plain(line);
        }
        let Ok(changes) = self.state.parse_line(&text, grammars()) else { return Row::plain(line) };
        let (mut row, mut start) = (Row::default(), 0);
        for (place, change) in changes {
            row.push(line.get(start..place.min(line.len())).unwrap_or_default(), self.look());
            start = place.min(line.len());
            if self.scopes.apply(&change).is_err() {
                return Row::plain(line);
            }
        }
        row.push(line.get(start..).unwrap_or_default(), self.look());
        row
    }

    fn look(&self) -> Look {
        self.scopes.as_slice().iter().rev().find_map(|scope| look_of(*scope)).unwrap_or_default()
    }
}

/// The grammars' scopes and their styles.
const LOOKS: [(&str, Look); 14] = [
    ("comment", Look { italic: true, ..Look::DIM }),
    ("string", Look::of(Color::Green)),
    ("constant", Look::of(Color::Yellow)),
    ("keyword.operator", Look::PLAIN),
    ("keyword", Look::of(Color::Magenta)),
    ("storage", Look::of(Color::Magenta)),
    ("entity.name.function", Look::of(Color::Blue)),
    ("entity.name.tag", Look::of(Color::Blue)),
    ("entity.name", Look::of(Color::Cyan)),
    ("support.function", Look::of(Color::Blue)),
    ("support", Look::of(Color::Cyan)),
    ("markup.inserted", Look::of(Color::Green)),
    ("markup.deleted", Look::of(Color::Red)),
    ("variable.language", Look::of(Color::Magenta)),
];

fn look_of(scope: Scope) -> Option<Look> {
    static KNOWN: OnceLock<Vec<(Scope, Look)>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        LOOKS.iter().filter_map(|(name, look)| Some((Scope::new(name).ok()?, *look))).collect()
    });
    known.iter().find(|(prefix, _)| prefix.is_prefix_of(scope)).map(|(_, look)| *look)
}

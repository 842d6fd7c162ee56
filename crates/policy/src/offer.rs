//! The rules that a person is offered together with an approval.
//!
//! Invariants: an offered rule allows the call that was asked about; none is offered that would allow other arguments
//! to run another program.

use crate::programs;
use crate::shell::Simple;

/// Returns the pattern of a rule that allows the command: with any further words where these are harmless, else exactly
/// this command.
pub(crate) fn of_command(simple: &Simple) -> Option<String> {
    let [name, arguments @ ..] = &*simple.words else { return None };
    let open = programs::open_words(&name.text, arguments)
        .filter(|_| simple.assignments.is_empty() && !programs::may_name(&simple.words, 1));
    if let Some(fixed) = open {
        let words = simple.words.iter().take(fixed).map(|word| quoted(&word.text));
        let words = words.collect::<Option<Vec<_>>>()?.join(" ");
        return Some(if arguments.is_empty() { words } else { format!("{words} *") });
    }
    let words = || simple.assignments.iter().chain(&simple.words);
    if words().any(|word| word.is_dynamic || word.text.contains('*')) {
        return None;
    }
    words().map(|word| quoted(&word.text)).collect::<Option<Vec<_>>>().map(|words| words.join(" "))
}

/// Returns the word as a pattern has it; `None` if a pattern cannot have it.
fn quoted(word: &str) -> Option<String> {
    let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '\'' | '"' | '*');
    if word.contains(['*', '\n', ')', '(']) || (word.contains('\'') && word.contains('"')) {
        return None;
    }
    Some(match word {
        "" => "''".to_owned(),
        word if word.chars().all(is_plain) => word.to_owned(),
        word if word.contains('\'') => format!("\"{word}\""),
        word => format!("'{word}'"),
    })
}

/// Returns the pattern of a rule that allows changes to the files of a path's folder.
pub(crate) fn of_path(shown: &str) -> String {
    match shown.rsplit_once('/') {
        Some((folder, _)) if !folder.is_empty() => format!("{folder}/**"),
        _ => shown.to_owned(),
    }
}

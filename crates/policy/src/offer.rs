//! The rules that a person is offered together with an approval.
//!
//! Invariants: an offered rule allows the call that was asked about; none is offered that would allow to run
//! other programs by its arguments.

use crate::programs;
use crate::shell::Simple;

/// Returns the pattern of a rule that allows the command, and similar ones where that is harmless.
pub(crate) fn of_command(simple: &Simple) -> Option<String> {
    let name = &simple.words.first()?.text;
    if !simple.assignments.is_empty() || programs::is_exact(name, &simple.words[1..]) {
        let words = || simple.assignments.iter().chain(&simple.words);
        if words().any(|word| word.is_dynamic || word.text.contains('*')) {
            return None;
        }
        return words()
            .map(|word| quoted(&word.text))
            .collect::<Option<Vec<_>>>()
            .map(|words| words.join(" "));
    }
    let name = quoted(name)?;
    match simple.words.get(1) {
        Some(word) if programs::has_subcommands(&name) => {
            let is_subcommand = !word.is_dynamic && word.text.starts_with(|c: char| c.is_ascii_alphabetic());
            let subcommand = quoted(&word.text).filter(|_| is_subcommand)?;
            Some(format!("{name} {subcommand} *"))
        }
        Some(_) => Some(format!("{name} *")),
        None => Some(name),
    }
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

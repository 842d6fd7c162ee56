//! The layout of the help.

use clap::CommandFactory as _;

use super::Options;

/// The width of a small terminal.
const COLUMNS: usize = 80;

/// Collects the final sections of the help of a command and its subcommands.
fn ends(command: &clap::Command, found: &mut Vec<(String, String)>) {
    found.extend(command.get_after_help().map(|end| (command.get_name().to_owned(), end.to_string())));
    command.get_subcommands().for_each(|below| ends(below, found));
}

#[test]
fn examples_are_not_wrapped_in_a_small_terminal() {
    let mut found = Vec::new();
    ends(&Options::command(), &mut found);
    let mut lines = 0;
    for (name, end) in &found {
        // Lines that are not prose start with blanks.
        for line in end.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= COLUMNS, "{name}: {line}");
            lines += 1;
        }
    }
    assert!(found.len() >= 20 && lines >= 60, "{} helps, {lines} lines", found.len());
}

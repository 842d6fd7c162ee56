//! The help of the chat: the commands of the table, and the keys.
//!
//! Invariants: each command is described once; a chat without a terminal lists those that it performs.

use greenroom_terminal::row::{Look, Row};

use super::{COMMANDS, Custom, Spec};

/// The keys, and what they do.
pub(crate) const KEYS: [(&str, &str); 16] = [
    ("Enter", "send; while the model works, the text joins the run after the running tool calls (it steers)"),
    ("Alt+Enter", "while the model works: send after the run"),
    (
        "Esc, Ctrl-C",
        "clear a half-typed line, otherwise interrupt; received text is kept, and unsent text returns to the editor. At \
         an empty line, Ctrl-C twice exits, and Esc twice goes back to an earlier prompt (/branch)",
    ),
    ("Shift+Enter, Ctrl-J, \\", "new line (\\ at the end of a line)"),
    ("↑ ↓", "move by line; from the first and last line, through earlier prompts"),
    ("Alt+↑, ↑ in an empty editor", "take the newest queued input back into the editor"),
    ("Ctrl-R", "search earlier prompts"),
    ("Tab", "complete commands and files"),
    ("Shift+Tab", "the next mode: ask, accept_edits, read_only (/permissions shows more)"),
    (
        "Ctrl-O",
        "show the results of tools, thoughts and summaries in full, the newest first; Enter opens and folds, Ctrl-O \
         closes",
    ),
    ("Ctrl-G, Ctrl-X Ctrl-E", "edit the text in $VISUAL or $EDITOR"),
    ("Ctrl-V", "attach a picture from the clipboard (with wl-paste, xclip or pngpaste)"),
    ("Ctrl-A E B F K U W Y T", "as in Emacs, like Alt-B F D and Ctrl-_ (undo)"),
    ("Ctrl-Q", "return to a question that Esc postponed"),
    ("?", "in an empty editor: show the keys"),
    ("Ctrl-L, Ctrl-Z", "redraw; suspend"),
];

/// Describes a command or a key.
fn described(head: &str, description: &str, width: usize) -> Vec<Row> {
    let row = Row::plain("  ").and(&format!("{head:<26} "), Look::BOLD).and(description, Look::PLAIN);
    // On a wide terminal, the rest stands below the description.
    let indent = if width >= 80 { 29 } else { 4 };
    row.wrap(width, &Row::default(), &Row::plain(&" ".repeat(indent)))
}

/// Describes the commands of a chat without a terminal.
pub fn plain_help(width: usize) -> Vec<Row> {
    COMMANDS.iter().filter(|spec| !spec.needs_terminal).flat_map(|spec| of_spec(spec, width)).collect()
}

fn of_spec(spec: &Spec, width: usize) -> Vec<Row> {
    described(&format!("/{} {}", spec.name, spec.arguments), spec.description, width)
}

/// Describes the keys.
pub(crate) fn keys(width: usize) -> Vec<Row> {
    KEYS.iter().flat_map(|(keys, description)| described(keys, description, width)).collect()
}

/// Describes all commands, and the keys.
pub(crate) fn help(custom: &[Custom], width: usize) -> Vec<Row> {
    let mut out: Vec<Row> = COMMANDS.iter().flat_map(|spec| of_spec(spec, width)).collect();
    out.extend(custom.iter().flat_map(|own| described(&format!("/{}", own.name), &own.description, width)));
    out.push(Row::default());
    out.extend(keys(width));
    const MORE: [&str; 3] = [
        "@file attaches a file, @picture.png a picture",
        "!command runs a command and tells the model, !!command does not",
        "your own commands: commands/NAME.md beside your greenroom.yaml, or .greenroom/commands/NAME.md",
    ];
    out.push(Row::default());
    let indent = Row::plain("  ");
    out.extend(MORE.iter().flat_map(|text| Row::new(text, Look::DIM).wrap(width, &indent, &indent)));
    out
}

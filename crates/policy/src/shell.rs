//! Takes a shell command apart into its simple commands, with their words.
//!
//! Invariants: each byte of the command is accounted for, so that nothing runs that is not in the result; a part
//! whose effect is not known from the text makes the whole unreadable. What is understood is a part of the
//! language: simple commands in lists, pipelines, subshells, groups, conditions and loops, quoted words, plain
//! variables and substitutions, and redirections.

use tree_sitter::{Node, Parser};

/// The longest command that is read, in bytes.
const BYTES_MAX: usize = 64 * 1024;
/// The deepest nesting that is read.
const DEPTH_MAX: usize = 64;
/// The maximum number of simple commands that are read.
const COMMANDS_MAX: usize = 1_000;

/// Words of the language that are no commands, although the grammar may take them for one.
const RESERVED: [&str; 17] = [
    "!", "{", "}", "]]", "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "for", "case",
    "esac", "select",
];

/// A command that was taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// The simple commands, those of substitutions included.
    pub commands: Vec<Simple>,
    /// The files that redirections write.
    pub writes: Vec<Word>,
    /// The files that redirections read.
    pub reads: Vec<Word>,
    /// Whether a command before the last one may change the current folder, so that relative paths may be others.
    pub changes_folder: bool,
}

/// A simple command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Simple {
    /// The variables that are set for it: `NAME=value`.
    pub assignments: Vec<Word>,
    /// The command and its arguments.
    pub words: Vec<Word>,
}

/// A word of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word {
    /// Its text, without quotes; the source where it is dynamic.
    pub text: String,
    /// Whether it is known only when the command runs; it may become several words, or none.
    pub is_dynamic: bool,
}

impl Word {
    /// Creates a word that is known.
    pub fn known(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_dynamic: false }
    }

    fn dynamic(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_dynamic: true }
    }
}

/// Why a command cannot be read, as a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub(crate) String);

/// Takes a command apart.
///
/// ```
/// use greenroom_policy::parse;
///
/// let script = parse("cd src && git log --oneline | head -5 > newest").unwrap();
/// let first: Vec<&str> = script.commands.iter().map(|command| &*command.words[0].text).collect();
/// assert_eq!(first, ["cd", "git", "head"]);
/// assert_eq!(script.writes[0].text, "newest");
/// assert!(parse("$TOOL --all").is_err());
/// ```
///
/// # Errors
/// [`Unreadable`]: the command is not valid, or uses what is not understood.
pub fn parse(command: &str) -> Result<Script, Unreadable> {
    let mut script = Script::default();
    read(command, &mut script, 0)?;
    Ok(script)
}

/// Adds the commands of a text to the script.
pub(crate) fn read(command: &str, script: &mut Script, depth: usize) -> Result<(), Unreadable> {
    if command.len() > BYTES_MAX {
        return unreadable(format!("it is longer than {BYTES_MAX} bytes"));
    }
    let strange =
        |c: &char| (c.is_control() && !matches!(c, '\n' | '\t')) || (!c.is_ascii() && c.is_whitespace());
    if let Some(strange) = command.chars().find(strange) {
        return unreadable(format!("it contains the character {strange:?}"));
    }
    // Bash joins lines before it reads what a dollar begins, and after it has ended a command; the grammar does not.
    let continues_nothing = |line: &str| line.trim_matches([' ', '\t']) == "\\";
    if command.contains("$\\\n") || command.split('\n').any(continues_nothing) {
        return unreadable("a line continues in a way that is not understood");
    }
    let mut parser = Parser::new();
    let language = tree_sitter_bash::LANGUAGE.into();
    if parser.set_language(&language).is_err() {
        return unreadable("the parser does not know the language");
    }
    let Some(tree) = parser.parse(command, None) else { return unreadable("the parser gave up") };
    let root = tree.root_node();
    if root.has_error() {
        return unreadable("it is not valid, or uses rare syntax");
    }
    Reader { source: command, script }.statement(root, depth)?;
    // What the parser skipped would run and not be judged.
    let mut end = 0;
    covered(root, command, &mut end, 0)?;
    if is_blank(&command[end..]) { Ok(()) } else { unreadable("a part of it was not understood") }
}

fn unreadable<T>(why: impl Into<String>) -> Result<T, Unreadable> {
    Err(Unreadable(why.into()))
}

/// Whether the text separates words and does nothing else. A line's end that is escaped joins what is around it.
fn is_blank(text: &str) -> bool {
    let joined = text.replace("\\\n", "");
    joined.chars().all(|c| matches!(c, ' ' | '\t' | '\n')) && joined.is_empty() == text.is_empty()
}

/// Checks that only blanks are between the tokens, up to the end of this node.
fn covered(node: Node<'_>, source: &str, end: &mut usize, depth: usize) -> Result<(), Unreadable> {
    if depth > 4 * DEPTH_MAX {
        return unreadable("it is nested too deeply");
    }
    let is_token = node.child_count() == 0 || matches!(node.kind(), "string" | "raw_string" | "heredoc_body");
    if !is_token {
        let mut cursor = node.walk();
        return node.children(&mut cursor).try_for_each(|child| covered(child, source, end, depth + 1));
    }
    // The body of a here-document is a token after the rest of its line.
    let gap = source.get(*end..node.start_byte()).unwrap_or_default();
    if !is_blank(gap) {
        return unreadable("a part of it was not understood");
    }
    // Within a word, it is no comment.
    let before = &source[..node.start_byte()];
    let begins = before.is_empty() || before.ends_with([' ', '\t', '\n', ';', '&', '|', '(', ')']);
    if node.kind() == "comment" && (!begins || before.ends_with("\\\n")) {
        return unreadable("a part of it was not understood");
    }
    *end = (*end).max(node.end_byte());
    if node.kind() != "string" {
        return Ok(());
    }
    // The blanks of a quotation are its own, but not those of the commands in it.
    let mut cursor = node.walk();
    node.named_children(&mut cursor)
        .try_for_each(|child| covered(child, source, &mut child.start_byte(), depth + 1))
}

struct Reader<'a> {
    source: &'a str,
    script: &'a mut Script,
}

impl<'a> Reader<'a> {
    fn text(&self, node: Node<'_>) -> &'a str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }

    /// Reads a statement: one command, or several with what connects them.
    fn statement(&mut self, node: Node<'_>, depth: usize) -> Result<(), Unreadable> {
        if depth > DEPTH_MAX || self.script.commands.len() > COMMANDS_MAX {
            return unreadable("it is too long or nested too deeply");
        }
        match node.kind() {
            "comment" => Ok(()),
            "program"
            | "list"
            | "pipeline"
            | "negated_command"
            | "subshell"
            | "if_statement"
            | "elif_clause"
            | "else_clause"
            | "while_statement"
            | "do_group"
            | "variable_assignments" => self.inner(node, depth),
            "compound_statement" if self.text(node).starts_with('{') => self.inner(node, depth),
            "for_statement" => {
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    match child.kind() {
                        "do_group" => self.statement(child, depth + 1)?,
                        "variable_name" if is_own_variable(self.text(child)) => {}
                        "variable_name" => {
                            return unreadable("its loop sets a variable that may change what commands do");
                        }
                        _ => drop(self.word(child, depth + 1)?),
                    }
                }
                Ok(())
            }
            "redirected_statement" => {
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    match child.kind() {
                        "file_redirect" | "herestring_redirect" | "heredoc_redirect" => {
                            self.redirect(child, depth)?;
                        }
                        _ => self.statement(child, depth + 1)?,
                    }
                }
                Ok(())
            }
            "variable_assignment" => {
                let assignment = self.assignment(node, depth)?;
                self.push(Simple { assignments: vec![assignment], words: Vec::new() })
            }
            "command" => self.command(node, depth),
            "declaration_command" | "unset_command" => {
                let name = node.child(0).map(|first| self.text(first)).unwrap_or_default();
                let mut words = vec![Word::known(name)];
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    words.push(match child.kind() {
                        "variable_assignment" => self.assignment(child, depth)?,
                        "variable_name" => Word::known(self.text(child)),
                        _ => self.word(child, depth)?,
                    });
                }
                self.push(Simple { assignments: Vec::new(), words })
            }
            "test_command" => {
                let name = node.child(0).map(|first| self.text(first)).unwrap_or_default();
                let words = vec![Word::known(name), Word::dynamic(self.text(node))];
                self.substitutions(node, depth)?;
                self.push(Simple { assignments: Vec::new(), words })
            }
            kind => unreadable(format!(
                "it uses syntax that the rules cannot evaluate ({})",
                kind.replace('_', " ")
            )),
        }
    }

    fn inner(&mut self, node: Node<'_>, depth: usize) -> Result<(), Unreadable> {
        let mut cursor = node.walk();
        node.named_children(&mut cursor).try_for_each(|child| self.statement(child, depth + 1))
    }

    /// Reads the commands that are substituted within a part that is not read otherwise.
    fn substitutions(&mut self, node: Node<'_>, depth: usize) -> Result<(), Unreadable> {
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            match child.kind() {
                "unary_expression"
                | "binary_expression"
                | "negation_expression"
                | "parenthesized_expression" => {
                    self.substitutions(child, depth + 1)?;
                }
                "test_operator" | "regex" | "extglob_pattern" => {}
                _ => drop(self.word(child, depth + 1)?),
            }
        }
        Ok(())
    }

    fn push(&mut self, simple: Simple) -> Result<(), Unreadable> {
        let command = simple.words.first();
        if command.is_some_and(|word| word.is_dynamic) {
            return unreadable("which command it runs is known only when it runs");
        }
        let name = command.map_or("", |word| &*word.text);
        if matches!(name, "coproc" | "function" | "alias" | "enable" | "hash" | "shopt" | "set") {
            return unreadable(format!("`{name}` changes what later words mean"));
        }
        if RESERVED.contains(&name) {
            return unreadable(format!("`{name}` is not understood here"));
        }
        self.script.changes_folder |= matches!(name, "cd" | "pushd" | "popd");
        self.script.commands.push(simple);
        Ok(())
    }

    fn command(&mut self, node: Node<'_>, depth: usize) -> Result<(), Unreadable> {
        let (mut simple, mut end) = (Simple::default(), None);
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            // Words without a blank between them are one word, and a line's end is the command's.
            let before = end.replace(child.end_byte()).unwrap_or(child.start_byte());
            let gap = self.source.get(before..child.start_byte()).unwrap_or_default();
            let joins = gap.is_empty() && child.start_byte() > node.start_byte();
            if joins && !child.kind().ends_with("redirect") || gap.replace("\\\n", "").contains('\n') {
                return unreadable("a word is not understood");
            }
            match child.kind() {
                "variable_assignment" => simple.assignments.push(self.assignment(child, depth)?),
                "command_name" => {
                    let Some(name) = child.child(0) else { return unreadable("it has no command") };
                    simple.words.push(self.word(name, depth + 1)?);
                }
                "file_redirect" | "herestring_redirect" | "heredoc_redirect" => {
                    self.redirect(child, depth)?
                }
                _ => simple.words.push(self.word(child, depth + 1)?),
            }
        }
        self.push(simple)
    }

    fn assignment(&mut self, node: Node<'_>, depth: usize) -> Result<Word, Unreadable> {
        let (Some(name), true) = (node.child_by_field_name("name"), node.child_count() <= 3) else {
            return unreadable("it sets a variable in a way that is not understood");
        };
        if name.kind() != "variable_name"
            || self.text(node).as_bytes().get(name.end_byte() - node.start_byte()) != Some(&b'=')
        {
            return unreadable("it sets a part of a variable, or adds to one");
        }
        let value = match node.child_by_field_name("value") {
            Some(value) => self.word(value, depth + 1)?,
            None => Word::known(""),
        };
        Ok(Word { text: format!("{}={}", self.text(name), value.text), is_dynamic: value.is_dynamic })
    }

    fn redirect(&mut self, node: Node<'_>, depth: usize) -> Result<(), Unreadable> {
        // `{NAME}>file` sets a variable.
        if self.source[..node.start_byte()].ends_with('}') {
            return unreadable("a redirection follows a brace without a blank");
        }
        let mut cursor = node.walk();
        let (mut operator, mut destination) = ("", None);
        for child in node.children(&mut cursor) {
            match child.kind() {
                "file_descriptor" => {}
                "heredoc_start" if self.text(child).starts_with(['\'', '"', '\\']) => operator = "quoted",
                "heredoc_body" | "heredoc_end" if operator == "quoted" => {}
                kind if !child.is_named() && operator.is_empty() => {
                    operator = match kind {
                        ">" | ">>" | "&>" | "&>>" | ">|" | "<" | ">&" | "<&" | ">&-" | "<&-" | "<<<"
                        | "<<" | "<<-" => self.text(child),
                        _ => return unreadable("it redirects in a way that is not understood"),
                    };
                }
                _ if destination.is_none() && child.is_named() && !child.kind().starts_with("heredoc") => {
                    destination = Some(self.word(child, depth + 1)?);
                }
                _ => return unreadable("it redirects in a way that is not understood"),
            }
        }
        match (operator, destination) {
            ("quoted", None) | ("<<<", Some(_)) | (">&-" | "<&-", None) => Ok(()),
            (">&" | "<&", Some(to))
                if !to.is_dynamic && to.text.bytes().all(|b| b.is_ascii_digit() || b == b'-') =>
            {
                Ok(())
            }
            (">&", Some(_)) => {
                unreadable("`>&` with a file's name, which bash expands twice; `&>` does the same")
            }
            (">" | ">>" | "&>" | "&>>" | ">|", Some(to)) => {
                self.script.writes.push(to);
                Ok(())
            }
            ("<", Some(from)) => {
                self.script.reads.push(from);
                Ok(())
            }
            _ => unreadable("it has a here-document in which variables are replaced"),
        }
    }

    /// Reads a word; the commands that are substituted in it are added to the script.
    fn word(&mut self, node: Node<'_>, depth: usize) -> Result<Word, Unreadable> {
        if depth > DEPTH_MAX {
            return unreadable("it is nested too deeply");
        }
        let text = self.text(node);
        match node.kind() {
            "word" | "number" | "test_operator" => unquoted(text),
            "raw_string" => match text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
                Some(inner) => Ok(Word::known(inner)),
                None => unreadable("a quotation is not understood"),
            },
            "string" => {
                let mut cursor = node.walk();
                let mut is_dynamic = false;
                for child in node.named_children(&mut cursor) {
                    if child.kind() != "string_content" {
                        is_dynamic = true;
                        drop(self.word(child, depth + 1)?);
                    }
                }
                let inner = text.strip_prefix('$').unwrap_or(text);
                match inner.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')) {
                    Some(inner) => Ok(Word { text: unescaped(inner, "\"\\$`"), is_dynamic }),
                    None => unreadable("a quotation is not understood"),
                }
            }
            "concatenation" => {
                let (mut whole, mut end) = (Word::default(), node.start_byte());
                let mut cursor = node.walk();
                for child in node.children(&mut cursor) {
                    if child.start_byte() != end {
                        return unreadable("a word is not understood");
                    }
                    end = child.end_byte();
                    let part = match child.is_named() {
                        true => self.word(child, depth + 1)?,
                        false => unquoted(self.text(child))?,
                    };
                    whole.text.push_str(&part.text);
                    whole.is_dynamic |= part.is_dynamic;
                }
                Ok(whole)
            }
            "simple_expansion" | "ansi_c_string" | "extglob_pattern" => Ok(Word::dynamic(text)),
            // Other forms run commands from a variable's text, or assign.
            "expansion" if is_plain_expansion(text) => Ok(Word::dynamic(text)),
            "arithmetic_expansion" if text.bytes().all(|b| b"0123456789 +-*/%()$".contains(&b)) => {
                Ok(Word::dynamic(text))
            }
            // Bash removes backslashes before it reads the commands; the grammar does not.
            "command_substitution" if text.starts_with('`') && text.contains('\\') => {
                unreadable("it has a backslash between backquotes; `$(…)` needs none")
            }
            "command_substitution" | "process_substitution" => {
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    match child.kind() {
                        "file_redirect" => self.redirect(child, depth + 1)?,
                        _ => self.statement(child, depth + 1)?,
                    }
                }
                Ok(Word::dynamic(text))
            }
            kind => unreadable(format!(
                "it uses syntax that the rules cannot evaluate ({})",
                kind.replace('_', " ")
            )),
        }
    }
}

/// Whether neither bash nor another command gives a meaning to the variable: theirs are upper case, but for these.
fn is_own_variable(name: &str) -> bool {
    let is_lower = name.len() == 1 || name.bytes().any(|b| b.is_ascii_lowercase());
    is_lower && !name.ends_with("_proxy") && !matches!(name, "histchars" | "auto_resume")
}

/// Whether it is `${NAME}`.
fn is_plain_expansion(text: &str) -> bool {
    let name = text.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

/// Reads a word without quotes.
fn unquoted(text: &str) -> Result<Word, Unreadable> {
    let mut chars = text.chars().peekable();
    let mut word = Word {
        text: String::new(),
        is_dynamic: text.starts_with('~') || text.contains(":~") || text.contains("=~"),
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(escaped) => word.text.push(escaped),
                None => return unreadable("it ends in a backslash"),
            },
            '\'' | '"' | '`' | '$' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => {
                return unreadable("a word is not understood");
            }
            '*' | '?' | '[' => {
                word.is_dynamic = true;
                word.text.push(c);
            }
            '{' if text != "{}" => {
                word.is_dynamic = true;
                word.text.push(c);
            }
            _ => word.text.push(c),
        }
    }
    Ok(word)
}

/// Removes the backslashes in a quotation that escape one of these characters, or a line's end.
fn unescaped(text: &str, escapable: &str) -> String {
    let (mut plain, mut chars) = (String::with_capacity(text.len()), text.chars().peekable());
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('\n')) => drop(chars.next()),
            ('\\', Some(next)) if escapable.contains(*next) => plain.extend(chars.next()),
            _ => plain.push(c),
        }
    }
    plain
}

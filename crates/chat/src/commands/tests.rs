//! The table, arguments, and custom commands.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::help::KEYS;
use super::*;

fn custom(name: &str, body: &str) -> Custom {
    Custom { name: name.to_owned(), description: String::new(), body: body.to_owned() }
}

#[test]
fn every_command_of_the_table_is_understood() {
    for Spec { name, arguments, description, .. } in COMMANDS {
        let line = match arguments {
            "<entry>" => format!("/{name} 7"),
            wanted if wanted.starts_with('<') => format!("/{name} text"),
            _ => format!("/{name}"),
        };
        assert!(parse(&line, &[]).is_ok(), "{line}");
        assert!(!description.is_empty() && !description.ends_with('.'), "{name}");
    }
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom-chat commands` rewrites the tables.
#[test]
#[expect(clippy::disallowed_methods, reason = "a change of a command is intended, and the page is rewritten")]
fn the_page_has_the_commands_and_keys_of_the_help() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    let cell = |text: &str| text.replace('|', "\\|");
    let keys = KEYS.iter().map(|(keys, what)| format!("| {} | {} |\n", cell(keys), cell(what)));
    let commands = COMMANDS.iter().map(|Spec { name, arguments, description, .. }| {
        format!("| `{}` | {} |\n", format!("/{name} {arguments}").trim_end(), cell(description))
    });
    let mut wanted = std::fs::read_to_string(path).unwrap();
    for (name, rows) in [("key", keys.collect::<String>()), ("command", commands.collect())] {
        let (begin, end) = (format!("<!-- {name}s -->\n"), format!("<!-- end of {name}s -->"));
        let (before, rest) = wanted.split_once(&begin).unwrap();
        let (_, after) = rest.split_once(&end).unwrap();
        wanted = format!("{before}{begin}\n| {name} | |\n|---|---|\n{rows}\n{end}{after}");
    }
    if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == wanted,
        "the tables in docs/commands.md are not those of /help; write them with GREENROOM_WRITE_SCHEMAS=1"
    );
}

#[test]
fn arguments_are_read_or_refused_with_what_is_wanted() {
    let how = |focus: Option<&str>, keep_recent, force| {
        Ok(Command::Compact(HowToCompact { focus: focus.map(str::to_owned), keep_recent, force }))
    };
    let compact = |focus, keep_recent| how(focus, keep_recent, false);
    let unknown = |flag: &str| {
        Err(format!(
            "/compact has no option {flag}; its options are --keep N and --force, and text after -- is the focus"
        ))
    };
    let back = |scope, overwrite| GoingBack { scope, overwrite, abort: false };
    let branch = |entry: Option<u64>, summary| {
        let start = entry.map_or(BranchStart::Choose, BranchStart::After);
        Ok(Command::Branch(Branching { start, prompt: None, summary, back: back(None, false) }))
    };
    let no_branch = || {
        Err("/branch takes the number of an entry, as /tree shows it, --summary, and --both, --conversation or --files \
             with --overwrite"
            .to_owned())
    };
    let no_compaction =
        |name: &str| Err(format!("/{name} takes the number of a compaction, as /compactions lists it"));
    for (line, wanted) in [
        ("/compact", compact(None, None)),
        ("/compact the API", compact(Some("the API"), None)),
        ("/compact --keep 20k the API", compact(Some("the API"), Some(20_000))),
        ("/compact the API --keep=1_500", compact(Some("the API"), Some(1_500))),
        ("/compact --keep-recent 9 the API", compact(Some("the API"), Some(9))),
        ("/compact --force", how(None, None, true)),
        ("/compact the API --force --keep 9", how(Some("the API"), Some(9), true)),
        ("/compact --frce the API", unknown("--frce")),
        ("/compact --force=yes", unknown("--force=yes")),
        ("/compact --keeping", unknown("--keeping")),
        ("/compact --keep 9 -- the flag --force", compact(Some("the flag --force"), Some(9))),
        ("/compact --keep", Err("--keep needs a number of tokens, such as 20000".to_owned())),
        ("/compact --keep much", Err("--keep needs a number of tokens, such as 20000".to_owned())),
        ("/branch", branch(None, false)),
        ("/branch 12", branch(Some(12), false)),
        ("/branch #12", branch(Some(12), false)),
        ("/branch --summary", branch(None, true)),
        ("/branch 12 --summary", branch(Some(12), true)),
        ("/branch --summary #12", branch(Some(12), true)),
        ("/branch twelve", no_branch()),
        ("/branch 12 13", no_branch()),
        ("/branch 12 --sumary", no_branch()),
        (
            "/branch 12 --files --overwrite",
            Ok(Command::Branch(Branching {
                start: BranchStart::After(12),
                prompt: None,
                summary: false,
                back: back(Some(RewindScope::Files), true),
            })),
        ),
        ("/undo", Ok(Command::Undo(back(None, false)))),
        ("/undo --both", Ok(Command::Undo(back(Some(RewindScope::Both), false)))),
        ("/undo --conversation", Ok(Command::Undo(back(Some(RewindScope::Conversation), false)))),
        (
            "/undo --files --abort",
            Ok(Command::Undo(GoingBack { abort: true, ..back(Some(RewindScope::Files), false) })),
        ),
        ("/undo --overwrite --files", Ok(Command::Undo(back(Some(RewindScope::Files), true)))),
        ("/undo 2", Err("/undo takes --both, --conversation or --files, --overwrite and --abort".to_owned())),
        ("/undo-compact", Ok(Command::UndoCompact(None))),
        ("/undo-compact 2", Ok(Command::UndoCompact(Some(2)))),
        ("/undo-compact 0", no_compaction("undo-compact")),
        ("/compactions", Ok(Command::Told(Told::Compactions(None)))),
        ("/compactions 3", Ok(Command::Told(Told::Compactions(Some(3))))),
        ("/compactions all", no_compaction("compactions")),
        ("/pin", Ok(Command::Told(Told::Pin(None)))),
        ("/pin #12", Ok(Command::Told(Told::Pin(Some(12))))),
        ("/pin it", Err("/pin takes the number of an entry, as /tree and /pins show it".to_owned())),
        ("/unpin 12", Ok(Command::Told(Told::Unpin(12)))),
        ("/unpin", Err("/unpin needs an entry; /pins lists the entries".to_owned())),
        ("/pins 2", Err("/pins takes no arguments".to_owned())),
        ("/model  big ", Ok(Command::Model(Some("big".to_owned())))),
        ("/status now", Err("/status takes no arguments".to_owned())),
        ("/compcat", Err("Unknown command /compcat; did you mean /compact?".to_owned())),
        ("/modle", Err("Unknown command /modle; did you mean /model?".to_owned())),
        ("/zzzzzzzz", Err("Unknown command /zzzzzzzz; /help lists all commands".to_owned())),
        ("/init", Ok(Command::Prompt(INIT.to_owned()))),
        ("/init now", Err("/init takes no arguments".to_owned())),
        ("/redo", Ok(Command::Redo)),
        // Names that other agents have for them.
        ("/rename a b", Ok(Command::Title("a b".to_owned()))),
        ("/usage", Ok(Command::Told(Told::Cost))),
        ("/sessions", Ok(Command::Resume(None))),
        ("/rewind", parse("/branch", &[])),
        ("/mode read_only", Ok(Command::Permissions(Permitting::Mode(Mode::ReadOnly)))),
        ("/mcp", Err("run `greenroom mcp` in another terminal; it lists, adds and removes MCP servers; /tools lists the tools".to_owned())),
        ("/exprt", Err("Unknown command /exprt; did you mean /export?".to_owned())),
    ] {
        assert_eq!(parse(line, &[]), wanted, "{line}");
    }
}

#[test]
fn a_custom_command_is_its_text_with_the_arguments() {
    for (body, arguments, wanted) in [
        ("Review $ARGUMENTS.", "a b", "Review a b."),
        ("From $1 to $2, not $3", "a b", "From a to b, not"),
        ("It costs $5 or $x", "", "It costs  or $x"),
        ("No place for them", "a b", "No place for them\n\na b"),
        ("$ARGUMENTS", "$1 $ARGUMENTS", "$1 $ARGUMENTS"),
    ] {
        let command = parse(&format!("/mine {arguments}"), &[custom("mine", body)]);
        assert_eq!(command, Ok(Command::Prompt(wanted.to_owned())), "{body}");
    }
}

#[test]
fn custom_commands_come_from_files_and_cannot_take_a_name_that_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (own, project) = (folder.path().join("own"), folder.path().join("project/.greenroom/commands"));
    for (path, text) in [
        (own.join("review.md"), "# Looks for bugs\nReview it."),
        (own.join("quit.md"), "Do not leave."),
        (own.join("bad name.md"), "x"),
        (own.join("notes.txt"), "x"),
        (project.join("review.md"), "Theirs"),
        (project.join("ship.md"), "---\ndescription: \"Ships it\"\n---\nShip $1"),
        (project.join("usage.md"), "\u{feff}---\r\ndescription: Shows use\r\n---\r\nShow it\r\nnow"),
    ] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    // A project's links could lead to any file of the user.
    let secret = folder.path().join("secret.md");
    std::fs::write(&secret, "the user's own").unwrap();
    std::os::unix::fs::symlink(&secret, project.join("secret.md")).unwrap();
    std::os::unix::fs::symlink(&secret, own.join("linked.md")).unwrap();
    let of = |path: &Path, project: Option<&str>| CommandFolder {
        path: path.to_owned(),
        project: project.map(|project| folder.path().join(project)),
    };
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for (link, to) in [("other/.greenroom", "project/.greenroom"), ("whole", "project")] {
        std::os::unix::fs::symlink(folder.path().join(to), folder.path().join(link)).unwrap();
    }
    assert!(load(&[of(&other.join(".greenroom/commands"), Some("other"))], &[]).is_empty());
    // If the project itself is reached through a link, the user chose that.
    let whole = load(&[of(&folder.path().join("whole/.greenroom/commands"), Some("whole"))], &[]);
    assert_eq!(whole.len(), 3, "{whole:?}");
    let skill = |name: &str| Skill { name: name.to_owned(), description: "for work".to_owned() };
    let found = load(
        &[of(&own, None), of(&folder.path().join("absent"), None), of(&project, Some("project"))],
        &[skill("deploy"), skill("review"), skill("help")],
    );
    // A skill asks for itself, unless a command has its name.
    assert_eq!(
        parse("/deploy to staging", &found),
        Ok(Command::Prompt("Use the skill `deploy`.\n\nto staging".to_owned()))
    );
    let known: Vec<_> = found.iter().map(|own| (own.name.as_str(), own.description.as_str())).collect();
    assert_eq!(
        known,
        [
            ("linked", "the user's own"),
            ("review", "Looks for bugs"),
            ("ship", "Ships it"),
            ("usage", "Shows use"),
            ("deploy", "skill: for work")
        ]
    );
    // It is done as it is offered, although the name is also one that other agents have for another command.
    assert_eq!(parse("/usage", &found), Ok(Command::Prompt("Show it\nnow".to_owned())));
    assert_eq!(parse("/usage", &[]), Ok(Command::Told(Told::Cost)));
    assert_eq!(parse("/ship now", &found), Ok(Command::Prompt("Ship now".to_owned())));
    let offered = completions("s", &found);
    let names: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["status", "skills", "ship"]);
}

#[test]
fn a_command_that_is_typed_in_full_is_offered_first() {
    for (typed, wanted) in
        [("undo", &["undo", "undo-compact"][..]), ("pin", &["pin", "pins"]), ("undo-", &["undo-compact"])]
    {
        let offered = completions(typed, &[]);
        let names: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, wanted, "{typed}");
    }
}

#[test]
fn what_permissions_understands() {
    let rows: [(&str, Result<Permitting, &str>); 10] = [
        ("/permissions", Ok(Permitting::Show)),
        ("/permissions ask", Ok(Permitting::Mode(Mode::Ask))),
        ("/permissions read-only", Ok(Permitting::Mode(Mode::ReadOnly))),
        ("/permissions accept_edits", Ok(Permitting::Mode(Mode::AcceptEdits))),
        ("/permissions everything", Ok(Permitting::Mode(Mode::Everything))),
        (
            "/permissions allow bash(cargo test *)",
            Ok(Permitting::Add(Effect::Allow, "bash(cargo test *)".to_owned())),
        ),
        ("/permissions ask  read(.env) ", Ok(Permitting::Add(Effect::Ask, "read(.env)".to_owned()))),
        ("/permissions deny refund", Ok(Permitting::Add(Effect::Deny, "refund".to_owned()))),
        ("/permissions yolo", Err("give a mode")),
        ("/permissions bash(ls) now", Err("allow, ask or deny")),
    ];
    for (line, expected) in rows {
        match (parse(line, &[]), expected) {
            (Ok(Command::Permissions(found)), Ok(expected)) => assert_eq!(found, expected, "{line}"),
            (Err(problem), Err(expected)) => assert!(problem.contains(expected), "{line}: {problem}"),
            (found, expected) => panic!("{line}: {found:?}, {expected:?}"),
        }
    }
}

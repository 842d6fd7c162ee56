//! Lines with and without a command.

use clap::CommandFactory as _;

use super::{Options, Unparsed, nearest, parse};
use crate::args::Command;

/// How a line is read: the command with its prompt, or the beginning of the error.
fn read(line: &str, is_watched: bool) -> String {
    let words = std::iter::once("greenroom".to_owned()).chain(split(line)).map(Into::into).collect();
    match parse(words, is_watched) {
        Ok(Options { command: Command::Chat(args), .. }) => {
            let flags = [
                args.goes_on.then(|| " -c".to_owned()),
                args.resume.as_ref().map(|id| format!(" -r {id}").trim_end().to_owned()),
                args.model.model.as_ref().map(|model| format!(" model={model}")),
            ];
            let flags: String = flags.into_iter().flatten().collect();
            format!("chat{flags}: {}", args.prompt.join("|"))
        }
        Ok(Options { command: Command::Run(args), .. }) => {
            let prompt = args.prompt.iter().chain(&args.words).cloned().collect::<Vec<_>>().join("|");
            format!("run{}: {prompt}", if args.goes_on { " -c" } else { "" })
        }
        Ok(Options { command, .. }) => {
            format!("{command:?}").split('(').next().unwrap_or_default().to_lowercase()
        }
        Err(Unparsed::NoCommand(text)) => text,
        Err(Unparsed::Clap(error)) => format!("{:?}", error.kind()),
    }
}

/// Splits a line at blanks, and keeps what is between quotation marks together.
fn split(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    parts
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

#[test]
fn a_line_without_a_command_is_a_chat_or_a_run() {
    for (line, expected) in [
        ("", "chat: "),
        ("-c", "chat -c: "),
        ("-r", "chat -r: "),
        ("-r fix-the", "chat -r fix-the: "),
        ("\"fix it\"", "chat: fix it"),
        ("fix the tests", "chat: fix|the|tests"),
        ("-c \"go on\"", "chat -c: go on"),
        ("--model x \"fix it\"", "chat model=x: fix it"),
        ("\"fix it\" --model x", "chat model=x: fix it"),
        ("--set model=y --simulate", "chat: "),
        ("--color never -v -vv \"fix it\"", "chat: fix it"),
        ("--color=never \"fix it\"", "chat: fix it"),
        ("-p \"fix it\"", "run: fix it"),
        ("-p", "run: "),
        ("-p hello", "run: hello"),
        ("-cp hello", "run -c: hello"),
        ("-c -p \"go on\"", "run -c: go on"),
        ("--prompt=hello", "run: hello"),
        ("--no-host -p hello --json", "run: hello"),
        (
            "-- show",
            "there is no command `show`; did you mean `greenroom show`? To send it as a prompt: greenroom chat 'show'",
        ),
        // Those that name a command.
        ("sessions", "sessions"),
        ("--no-host sessions", "sessions"),
        ("chat hello", "chat: hello"),
        ("run hello there", "run: hello|there"),
        ("run -p hello", "run: hello"),
        ("ls", "sessions"),
        ("--help", "DisplayHelp"),
        ("-h", "DisplayHelp"),
        ("help run", "DisplayHelp"),
        ("--version", "DisplayVersion"),
        ("chat --nonsense", "UnknownArgument"),
        ("--nonsense", "UnknownArgument"),
    ] {
        assert_eq!(read(line, true), expected, "{line}");
    }
}

#[test]
fn a_prompt_with_piped_input_is_answered_once() {
    for (line, expected) in [
        ("\"review this\"", "run: review this"),
        ("-c \"review this\"", "run -c: review this"),
        ("", "chat: "),
        ("chat \"review this\"", "chat: review this"),
    ] {
        assert_eq!(read(line, false), expected, "{line}");
    }
}

#[test]
fn a_misspelt_command_is_no_prompt() {
    for (line, near) in [
        ("sesions", Some("sessions")),
        ("sessoins --here", Some("sessions")),
        ("shwo demo-2026", Some("show")),
        ("--model x shwo demo-2026", Some("show")),
        ("exp", Some("export")),
        ("udno", Some("undo")),
        ("confg get model", Some("config")),
        ("hello", None),
        ("update", None),
        ("fix", None),
        ("theme", None),
    ] {
        let said = read(line, true);
        assert!(said.starts_with("there is no command `"), "{line}: {said}");
        let meant = near.map(|name| format!("did you mean `greenroom {name}`?"));
        assert_eq!(said.contains("did you mean"), near.is_some(), "{line}: {said}");
        assert!(meant.is_none_or(|meant| said.contains(&meant)), "{line}: {said}");
        assert!(said.contains("To send it as a prompt: greenroom chat '"), "{line}: {said}");
    }
}

#[test]
fn every_command_is_found_from_one_mistake() {
    let commands = Options::command();
    let names: Vec<&str> = commands.get_subcommands().map(clap::Command::get_name).collect();
    assert!(names.len() >= 25, "{names:?}");
    for name in names {
        let without_last = &name[..name.len() - 1];
        let found = nearest(&commands, without_last);
        assert!(
            found.is_some_and(|found| found.starts_with(without_last) || found.len() <= 4),
            "{name}: {found:?}"
        );
    }
}

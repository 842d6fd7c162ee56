//! Completions, in the real shells: commands, flags, stored sessions, models, settings. A shell that is not here is named
//! and left out; bash is on every machine that runs these tests.

use std::process::Command;

use greenroom_simulator::Answer;

use super::support::{Model, Place, Says};

/// What is typed, and what of it is offered.
const CASES: [(&str, &[&str]); 9] = [
    ("greenroom comp", &["compact", "completions"]),
    ("greenroom run --output-s", &["--output-schema"]),
    ("greenroom show de", &["demo-one", "demo-two"]),
    ("greenroom tree other", &["other"]),
    ("greenroom run --session demo-t", &["demo-two"]),
    ("greenroom run --model my-own", &["my-own-model"]),
    ("greenroom chat --provider lo", &["local"]),
    ("greenroom config get compaction.thr", &["compaction.threshold"]),
    ("greenroom run --effort x", &["xhigh"]),
];

/// A place with sessions and a configuration, and the script for this shell.
fn place(shell: &str) -> Place {
    let (place, model) = (Place::new(), Model::new(Says(Answer::text("Yes.")), |_| {}));
    let url = model.url();
    for id in ["demo-one", "demo-two", "other"] {
        let ran = place.run(&["run", "-p", "What is it?", "--session", id, "--base-url", &url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    place.own_file(
        "providers: { local: { base_url: 'http://localhost:1/v1' } }\nmodels: { my-own-model: {} }\n",
    );
    let script = place.run(&["completions", shell]);
    assert_eq!(script.code, Some(0), "{script:?}");
    std::fs::write(place.work().join("script"), script.stdout).unwrap();
    place
}

/// Whether there is such a shell. Where there is none it is said, and the test is skipped.
fn is_there(shell: &str) -> bool {
    match Command::new(shell).arg("-c").arg("exit 0").output() {
        Ok(output) => {
            assert!(output.status.success(), "{shell}: {output:?}");
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            #[expect(clippy::print_stderr, reason = "a skipped test says so")]
            {
                eprintln!("{shell} is not here: its completions are not tried");
            }
            false
        }
        Err(error) => panic!("{shell}: {error}"),
    }
}

/// What a shell says when it runs this program.
fn said(place: &Place, shell: &str, flags: &[&str], program: &str) -> String {
    let file = place.work().join("program");
    std::fs::write(&file, program).unwrap();
    // The command's variables are those of a user: where the home and the store are.
    let user = place.command(&[]);
    let mut command = Command::new(shell);
    command.args(flags).arg(&file).current_dir(place.work()).env_clear();
    for (name, value) in user.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TERM", "dumb");
    let output = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn bash_completes() {
    let place = place("bash");
    for (typed, offered) in CASES {
        let words: Vec<&str> = typed.split(' ').collect();
        let last = words.len() - 1;
        let program = format!(
            "source ./script\nfunction=$(complete -p greenroom | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
             COMP_WORDS=({typed}); COMP_CWORD={last}; COMP_TYPE=9; COMP_LINE='{typed}'\n\
             $function greenroom '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            words[last],
            words[last - 1]
        );
        let said = said(&place, "bash", &["--norc"], &program);
        let mut lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        assert_eq!(lines, offered, "{typed}: {said}");
    }
}

#[test]
fn fish_completes() {
    if !is_there("fish") {
        return;
    }
    let (place, mut tried) = (place("fish"), 0);
    for (typed, offered) in CASES {
        let program = format!("source ./script\ncomplete -C '{typed}'\n");
        let said = said(&place, "fish", &["--no-config"], &program);
        let candidates = said.lines().map(|line| line.split('\t').next().unwrap_or_default());
        let mut candidates: Vec<&str> = candidates.filter(|line| !line.is_empty()).collect();
        candidates.sort_unstable();
        assert_eq!(candidates, offered, "{typed}: {said}");
        tried += 1;
    }
    assert_eq!(tried, CASES.len());
    // A session's title stands beside its id.
    let said = said(&place, "fish", &["--no-config"], "source ./script\ncomplete -C 'greenroom show oth'\n");
    assert!(said.contains("other\tWhat is it?"));
}

/// Where the script lies in `fpath`, and where it is sourced; with a real line that is typed and completed.
#[test]
fn zsh_completes() {
    if !is_there("zsh") {
        return;
    }
    let (place, mut tried) = (place("zsh"), 0);
    let folder = place.work().join("functions");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(place.work().join("script"), folder.join("_greenroom")).unwrap();
    let loads = [
        "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D",
        "autoload -Uz compinit; compinit -u -D; source ./script",
    ];
    for load in loads {
        for (typed, offered) in CASES.iter().filter(|(_, offered)| offered.len() == 1) {
            // What stands on the line after a tab is what the line is then run with.
            let program = format!(
                "zmodload zsh/zpty || exit 9\nzpty shell zsh -f -i\n\
                 zpty -w shell 'PS1=; unsetopt zle_bracketed_paste 2>/dev/null; {load}; greenroom() {{ print -r -- \"<$*>\" }}'\n\
                 zpty -w -n shell $'{typed}\\t\\n'\n\
                 zpty -w shell 'print -r -- the-end'\n\
                 while zpty -r shell line; do print -r -- $line; [[ $line == the-end* ]] && break; done\nzpty -d shell\n"
            );
            let said = said(&place, "zsh", &["-f"], &program);
            let before =
                typed.strip_prefix("greenroom ").unwrap().rsplit_once(' ').map_or("", |(before, _)| before);
            let wanted = format!("<{}>", format!("{before} {}", offered[0]).trim());
            assert!(said.contains(&wanted), "{typed} with {load}: {said}");
            tried += 1;
        }
    }
    let with_one = CASES.iter().filter(|(_, offered)| offered.len() == 1).count();
    assert_eq!(tried, loads.len() * with_one);
    assert!(with_one >= 7, "{with_one} cases");
}

/// Completing never makes a store, and never says anything but candidates.
#[test]
fn nothing_is_made_or_said_by_completing() {
    let place = Place::new();
    place.own_file("modle: broken\n");
    for words in [
        &["greenroom", "show", ""][..],
        &["greenroom", "run", "--model", ""],
        &["greenroom", "--nonsense", ""],
    ] {
        let mut command = place.command(&["--"]);
        command
            .args(words)
            .env("GREENROOM_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        let ran = super::support::ran(command.output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{words:?}: {ran:?}");
        assert!(!place.store().exists(), "{words:?}");
    }
    assert_eq!(place.run(&["completions", "tcsh"]).code, Some(2));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]);
        assert!(script.code == Some(0) && script.stdout.contains("GREENROOM_COMPLETE"), "{script:?}");
    }
}

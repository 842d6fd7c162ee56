//! Hosts and configuration files that cannot be used.

use std::process::Stdio;

use super::{Hosted, wait_until};
use crate::cli::screen::{Terminal, is_there};
use crate::cli::support::{Ran, Running, ran};

/// `--config FILE` replaces all other files, also in the host that is started.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_file_stands_instead_of_the_users_own_where_a_host_is_started() {
    let hosted = Hosted::new(40, 100).await;
    hosted.place.own_file("limitz: 3\n");
    let file = hosted.place.work().join("named.yaml");
    std::fs::write(&file, "limits: { inputs_max: 1 }\n").unwrap();
    let arguments = |session: &'static str| {
        ["--config", "named.yaml", "run", "--window", "100000", "--session", session, "-p", "x"]
    };
    let mut first = hosted.place.start_command(hosted.command(&arguments("a")));
    first.close_input();
    wait_until("the model is asked", || hosted.simulator.in_flight() == 1 || first.has_ended());
    // What holds for all sessions together is that file's.
    let second = hosted.run(&arguments("b"));
    let first: Ran = first.end();
    assert_eq!((first.code, first.stdout.matches("word").count()), (Some(0), 40), "{first:?}");
    assert!(
        second.code != Some(0) && second.stderr.contains("1 inputs are in progress or waiting"),
        "{second:?}"
    );
    // By itself, a host reads what it is to use.
    let refused = hosted.run(&["host", "--idle", "1"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("limitz"), "{refused:?}");
}

/// Files that flags and variables name are meant from the folder of the terminal, wherever the host is.
#[tokio::test(flavor = "multi_thread")]
async fn a_relative_file_of_a_flag_or_a_variable_is_looked_for_in_the_clients_folder() {
    let hosted = Hosted::new(1, 0).await;
    std::fs::write(hosted.place.work().join("told.md"), "Told from a file.").unwrap();
    let told = || hosted.simulator.requests().pop().unwrap().request.system.clone().unwrap();
    let run = ["run", "--window", "100000", "-p", "x"];
    for value in ["file:told.md", "'file:told.md'"] {
        let setting = format!("append_system_prompt={value}");
        let by_flag = hosted.run(&[&run[..], &["--set", &setting]].concat());
        assert_eq!(by_flag.code, Some(0), "{by_flag:?}");
        assert!(told().contains("Told from a file."), "{}", told());
        let mut command = hosted.command(&run);
        command.env("GREENROOM_SYSTEM_PROMPT", value);
        let by_variable = ran(command.output().unwrap());
        assert_eq!(by_variable.code, Some(0), "{by_variable:?}");
        assert!(told().contains("Told from a file."), "{}", told());
    }
    let missing = hosted.run(&[&run[..], &["--set", "system_prompt=file:none.md"]].concat());
    assert!(
        missing.code == Some(2) && missing.stderr.contains("--set system_prompt: none.md"),
        "{missing:?}"
    );
}

/// What an edit spoils is not needed by chats that are open, whatever becomes of their host.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_goes_on_with_what_held_where_its_host_dies_after_a_bad_edit() {
    let hosted = Hosted::new(1, 0).await;
    hosted.place.own_file("system_prompt: Be kind.\n");
    let mut chat = Running::start(
        hosted.command(&["chat", "--window", "100000", "--session", "a"]).stdin(Stdio::piped()),
    );
    chat.wait_for("/help");
    // A good edit while it is open holds, too.
    hosted.place.own_file("system_prompt: Be brief.\n");
    chat.say("one");
    chat.wait_for("word");
    chat.wait_for("tokens in all");
    for text in ["limitz: 3\n", "limits: { steps_max: x }\n"] {
        hosted.place.own_file(text);
        hosted.kill_host();
        chat.wait_for("the settings before the newest edit remain in effect");
        chat.say("two");
        chat.wait_for("word");
        chat.wait_for("tokens in all");
        let newest = hosted.simulator.requests().pop().unwrap();
        let instructions = newest.request.system.clone().unwrap();
        assert!(instructions.contains("Be brief."), "{instructions}");
    }
    // What can be used again is used.
    hosted.place.own_file("system_prompt: Be quick.\n");
    wait_until("the edit is seen", || {
        chat.say("three");
        chat.wait_for("tokens in all");
        let newest = hosted.simulator.requests().pop().unwrap();
        newest.request.system.as_ref().is_some_and(|told| told.contains("Be quick."))
    });
    chat.close_input();
    let ended = chat.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_at_a_terminal_goes_on_too_and_says_how_to_come_back_where_it_cannot() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(1, 0).await;
    hosted.place.own_file("system_prompt: Be kind.\n");
    let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
    let terminal = Terminal::of(&hosted.place, (100, 30), &chat);
    terminal.shows("›");
    terminal.says("one");
    terminal.shows("word");
    hosted.place.own_file("limitz: 3\n");
    hosted.kill_host();
    terminal.shows("remain in effect");
    terminal.says("two");
    terminal.until("it is answered", |screen| screen.matches("word").count() == 2);
    // A program that answers nobody takes the store before the next host can.
    let folder = hosted.socket();
    hosted.kill_host();
    let _ = std::fs::remove_file(&folder);
    std::fs::create_dir(&folder).unwrap();
    terminal.shows("To continue: greenroom resume a");
    terminal.shows("ended with");
    drop(terminal);
    std::fs::remove_dir(&folder).unwrap();
    let shown = ran(hosted.command(&["show", "a", "--no-host"]).output().unwrap());
    assert_eq!(shown.stdout.matches("word").count(), 2, "{shown:?}");
}

//! A new client gets the settings of its files, folder and process as they are now, regardless of the agents in the
//! host's memory.

use std::os::unix::fs::PermissionsExt as _;

use greenroom_server::operations::{ClientKind, PromptSession};
use greenroom_server::{Client, Events, ProblemKind, Received};
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use serde_json::json;

use super::Hosted;
use crate::cli::support::{Ran, ran};

/// A model that lists the folder three times, and then answers; `CALL command` runs a command.
async fn hosted() -> Hosted {
    Hosted::of(Function(|request: &SeenRequest, _: CallInfo| {
        let told = request.last_user_text().to_owned();
        let since = request.messages.iter().rev().take_while(|message| message.role() != "user");
        let results = since.filter(|message| message.role() == "tool").count();
        match told.strip_prefix("CALL ") {
            Some(command) if results == 0 => Answer::call("bash", &json!({ "command": command })),
            None if told == "look" && results < 3 => Answer::call("list", &json!({ "path": "." })),
            Some(_) | None => Answer::text("done"),
        }
    }))
    .await
}

fn run(hosted: &Hosted, text: &str) -> Ran {
    hosted.run(&["run", "--window", "100000", "-p", text])
}

/// The tools that the newest request offered.
fn offered(hosted: &Hosted) -> Vec<String> {
    let requests = hosted.simulator.requests();
    let newest = requests.last().unwrap();
    newest.request.tools.iter().map(|tool| tool.name.clone()).collect()
}

/// Whether a limit ends what this client has done in this session.
async fn is_limited(client: &Client, session: &str) -> bool {
    let outcome = client.work(PromptSession::new(session, "look")).await.unwrap().outcome().await;
    match outcome {
        Ok(ref outcome) => assert_eq!(outcome.reply.text, "done"),
        Err(ref error) => assert_eq!(error.kind(), Some(ProblemKind::Stopped), "{error}"),
    }
    outcome.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_project_holds_as_long_as_it_is_there() {
    let hosted = hosted().await;
    assert_eq!(run(&hosted, "look").code, Some(0));
    let host = hosted.host();
    // It stays, with its agent in memory.
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    assert!(!is_limited(&chat, "chat").await);
    for round in 0..3 {
        let file = hosted.place.project_file("limits:\n  steps_max: 2\n");
        let stopped = run(&hosted, "look");
        assert_eq!(stopped.code, Some(4), "round {round}: {stopped:?}");
        // A chat that is open takes the tighter limit, and keeps it; who starts later does not have it.
        assert!(is_limited(&chat, "chat").await, "round {round}");
        std::fs::remove_file(&file).unwrap();
        for _ in 0..2 {
            let ended = run(&hosted, "look");
            assert_eq!(ended.code, Some(0), "round {round}: {ended:?}");
        }
        // It says the same as the chat.
        let later = hosted.client(ClientKind::Chat, json!({})).await;
        assert!(!is_limited(&later, &format!("later {round}")).await, "round {round}");
        assert!(is_limited(&chat, "chat").await, "round {round}");
        later.close().await;
    }
    assert_eq!(hosted.host(), host, "one host served them all");
    chat.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_is_offered_to_whoever_starts_after_it_came() {
    let hosted = hosted().await;
    assert_eq!(run(&hosted, "one").code, Some(0));
    assert!(!offered(&hosted).contains(&"skill".to_owned()));
    let host = hosted.host();
    let _chat = hosted.client(ClientKind::Chat, json!({})).await;
    hosted.place.own_file(&format!("trusted_folders: [{:?}]\n", hosted.place.work()));
    let folder = hosted.place.work().join(".greenroom/skills/plan");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join("SKILL.md"),
        "---\nname: plan\ndescription: How plans are made.\n---\nSlowly.\n",
    )
    .unwrap();
    std::fs::set_permissions(folder.join("SKILL.md"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(run(&hosted, "two").code, Some(0));
    assert!(offered(&hosted).contains(&"skill".to_owned()), "{:?}", offered(&hosted));
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(run(&hosted, "three").code, Some(0));
    assert!(!offered(&hosted).contains(&"skill".to_owned()));
    assert_eq!(hosted.host(), host);
}

/// The warnings that a client heard until its next answer.
async fn warnings(client: &Client, events: &mut Events) -> Vec<String> {
    client.work(PromptSession::new("chat", "x")).await.unwrap().outcome().await.unwrap();
    let mut heard = Vec::new();
    while let Some(received) = events.try_next() {
        if let Received::Warning(text) = received {
            heard.push(text);
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_that_become_unusable_are_warned_about_once_and_at_each_start() {
    let hosted = hosted().await;
    hosted.place.own_file(&format!("trusted_folders: [{:?}]\n", hosted.place.work()));
    let file = hosted.place.work().join("AGENTS.md");
    let mode = |mode: u32| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::write(&file, "Be kind.\n").unwrap();
    mode(0o644);
    let first = run(&hosted, "one");
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""), "{first:?}");
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    let mut events = chat.events();
    assert_eq!(warnings(&chat, &mut events).await, Vec::<String>::new());
    // Now everybody may write it.
    mode(0o666);
    let mut heard = warnings(&chat, &mut events).await;
    let began = std::time::Instant::now();
    while heard.is_empty() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "nobody is warned");
        heard = warnings(&chat, &mut events).await;
    }
    assert!(heard.len() == 1 && heard[0].contains("everybody may write it"), "{heard:?}");
    for _ in 0..2 {
        let ended = run(&hosted, "two");
        assert!(ended.code == Some(0) && ended.stderr.contains("everybody may write it"), "{ended:?}");
    }
    assert_eq!(warnings(&chat, &mut events).await, Vec::<String>::new(), "once");
    mode(0o644);
    let last = run(&hosted, "three");
    assert_eq!((last.code, last.stderr.as_str()), (Some(0), ""), "{last:?}");
}

/// Permissions of files and the variables of commands are those of whoever asks, and not of who started the host.
#[tokio::test(flavor = "multi_thread")]
async fn files_and_commands_are_as_in_the_clients_own_process() {
    let hosted = hosted().await;
    let told = |umask: &str, variables: &[(&str, &str)], name: &str| {
        let command = format!(
            "CALL touch {name}; stat -c %a {name} > {name}.mode; env | grep -E '^(TMPDIR|USER)=' | sort > {name}.env; true"
        );
        let line = format!("umask {umask}; exec \"$0\" \"$@\"");
        let greenroom = env!("CARGO_BIN_EXE_greenroom");
        let arguments = [
            "-c", &line, greenroom, "run", "--allow-shell", "--sandbox", "off", "--window", "100000", "-p",
            &command,
        ];
        let mut command = hosted.with_host(hosted.place.command_of("/bin/sh".into(), &arguments));
        command.env("PATH", "/usr/bin:/bin").envs(variables.iter().copied());
        let ended = ran(command.output().unwrap());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let read =
            |what: &str| std::fs::read_to_string(hosted.place.work().join(format!("{name}.{what}"))).unwrap();
        (read("mode").trim().to_owned(), read("env").replace('\n', " ").trim().to_owned())
    };
    // The first one starts the host.
    assert_eq!(
        told("022", &[("TMPDIR", "/tmp"), ("USER", "ada")], "a"),
        ("644".into(), "TMPDIR=/tmp USER=ada".into())
    );
    let host = hosted.host().expect("a host is there");
    assert_eq!(told("077", &[("USER", "bob")], "b"), ("600".into(), "USER=bob".into()));
    assert_eq!(told("002", &[], "c"), ("664".into(), String::new()));
    assert_eq!(hosted.host(), Some(host));
}

//! A chat without a terminal works through the host, as every other command does.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_server::operations::{ClientKind, GetState, ListWaiting, PromptSession};
use greenroom_simulator::{
    Answer, CallInfo, Function, LoggedRequest, Pace, SeenRequest, Simulator, SimulatorOptions,
};
use serde_json::{Value, json};

use super::{Hosted, wait_until};
use crate::cli::support::{Ran, Running, ran};

/// A model that repeats what it is told, and takes minutes for the first that is slow.
async fn hosted() -> Hosted {
    let is_slow = AtomicBool::new(true);
    Hosted::of(Function(move |request: &SeenRequest, _: CallInfo| {
        let said = request.messages.last().map(|last| last.text()).unwrap_or_default();
        if said == "slow" && is_slow.swap(false, Ordering::SeqCst) {
            let pace = Pace { chunks: 6_000, first_ms: 0, between_ms: 50 };
            return Answer::text("word ".repeat(6_000)).with_pace(pace);
        }
        Answer::text(format!("heard {said}"))
    }))
    .await
}

fn start(hosted: &Hosted, arguments: &[&str]) -> Running {
    Running::start(hosted.command(arguments).stdin(Stdio::piped()))
}

fn said(hosted: &Hosted, session: &str) -> Vec<String> {
    let ran = hosted.run(&["show", session, "--json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let conversation = shown["conversation"].as_array().unwrap().iter();
    let of_user = conversation.filter(|said| said["role"] == "user");
    of_user.map(|said| said["text"].as_str().unwrap().to_owned()).collect()
}

/// Without what differs in any two sessions: what is paid for a prompt that the server has seen before, and when the folder
/// was noted.
fn comparable(printed: &str) -> String {
    let is_kept = |line: &&str| !line.contains(" entries, ");
    let line = |line: &str| {
        let parts: Vec<&str> = line.split(" · ").filter(|part| !part.starts_with('$')).collect();
        parts.join(" · ")
    };
    printed.lines().filter(is_kept).map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_help_lists_works_and_the_rest_needs_a_terminal() {
    const REFUSED: &str = "needs a chat at a terminal";
    const OTHERS: &str =
        "model effort new resume fork branch redo tree export copy tools permissions skills theme keys";
    let hosted = hosted().await;
    let talk = |session: &str, lines: &[String]| -> String {
        let mut chat = start(&hosted, &["chat", "--no-host", "--window", "100000", "--session", session]);
        lines.iter().for_each(|line| chat.say(line));
        chat.close_input();
        chat.end().stdout
    };
    let help = talk("help", &["/help".to_owned(), "/quit".to_owned()]);
    let name = |line: &str| Some(line.strip_prefix("  /")?.split_whitespace().next()?.to_owned());
    let listed: Vec<String> = help.lines().filter_map(name).collect();
    assert!(listed.len() >= 15 && listed.last().is_some_and(|last| last == "quit"), "{help}");
    let lines = std::iter::once("one".to_owned()).chain(listed.iter().map(|name| format!("/{name}")));
    let said = talk("listed", &lines.collect::<Vec<_>>());
    assert!(!said.contains(REFUSED), "{said}");
    let others: Vec<String> = OTHERS.split(' ').map(|name| format!("/{name}")).collect();
    let said = talk("others", &others);
    assert_eq!(said.matches(REFUSED).count(), others.len(), "{said}");
}

/// All commands of such a chat, at the host and in its own process.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_is_the_same_with_a_host_and_without_one() {
    let hosted = hosted().await;
    let lines = [
        "one", "/status", "two", "/plan", "/context", "/compact all of it", "/undo-compact", "/continue",
        "/withdraw", "/nonsense", "/help", "", "three", "/quit", "four",
    ];
    let talk = |session: &str, more: &[&str]| -> Ran {
        let arguments = ["chat", "--window", "100000", "--session", session];
        let mut chat = start(&hosted, &[&arguments[..], more].concat());
        lines.iter().for_each(|line| chat.say(line));
        chat.end()
    };
    let alone = talk("talk-a", &["--no-host"]);
    assert_eq!(hosted.host(), None, "it keeps all in its own process");
    let at_host = talk("talk-b", &[]);
    let host = hosted.host().expect("a host was started");
    assert_eq!((alone.code, at_host.code, at_host.stderr.as_str()), (Some(0), Some(0), ""), "{at_host:?}");
    assert_eq!(comparable(&at_host.stdout.replace("talk-b", "talk-a")), comparable(&alone.stdout));
    for told in ["heard one", "heard two", "heard three", "session talk-a, idle", "tool definitions"] {
        assert!(alone.stdout.contains(told), "{told}: {}", alone.stdout);
    }
    assert!(!alone.stdout.contains("heard four"), "it was left before: {}", alone.stdout);
    assert_eq!(said(&hosted, "talk-b"), ["one", "two", "three"]);
    // `resume` finds it by its folder, and so does `-c`; a wrong id is refused as ever.
    for arguments in [&["resume"][..], &["chat", "-c"], &["resume", "talk-b"]] {
        let mut chat = start(&hosted, arguments);
        chat.wait_for("Resumed talk-b");
        chat.close_input();
        assert_eq!(chat.end().code, Some(0));
    }
    assert_eq!(start(&hosted, &["resume", "nobody"]).end().code, Some(3));
    assert_eq!(hosted.host(), Some(host));
    hosted.simulator.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_them_and_a_chat_at_a_terminal_work_beside_each_other() {
    let hosted = hosted().await;
    let mut first = start(&hosted, &["chat", "--window", "100000", "--session", "shared"]);
    first.wait_for("/help");
    let terminal = hosted.client(ClientKind::Chat, json!({})).await;
    assert_eq!(start(&hosted, &["resume", "--window", "100000"]).end().code, Some(2), "nothing is there yet");
    first.say("one");
    first.wait_for("heard one");
    first.wait_for(" tokens in all");
    let mut second = start(&hosted, &["resume", "shared", "--window", "100000"]);
    second.wait_for("Resumed shared");
    let third = terminal.work(PromptSession::new("shared", "two")).await.unwrap().outcome().await.unwrap();
    assert_eq!(third.reply.text, "heard two");
    second.say("three");
    second.wait_for("heard three");
    first.say("four");
    first.wait_for("heard four");
    let mut other = start(&hosted, &["chat", "--window", "100000", "--session", "other"]);
    other.say("five");
    other.wait_for("heard five");
    for mut chat in [first, second, other] {
        chat.close_input();
        let ran = chat.end();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    }
    terminal.close().await;
    assert_eq!(said(&hosted, "shared"), ["one", "two", "three", "four"]);
    hosted.simulator.assert_clean();
}

/// Its lines are read one after another; what was cut off is said, and the next line is worked on by the next host.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_with_another_host_where_its_own_dies() {
    let hosted = hosted().await;
    let mut chat = start(&hosted, &["chat", "--window", "100000", "--session", "mine"]);
    chat.say("one");
    chat.wait_for("heard one");
    chat.wait_for(" tokens in all");
    // Between two lines.
    hosted.kill_host();
    chat.say("two");
    chat.wait_for("The host ended; starting another one");
    chat.wait_for("heard two");
    chat.wait_for(" tokens in all");
    chat.say("/quit");
    assert_eq!(chat.end().code, Some(0));
    assert_eq!(said(&hosted, "mine"), ["one", "two"]);
    // In the middle of an answer.
    let mut chat = start(&hosted, &["chat", "--window", "100000", "--session", "cut"]);
    chat.say("slow");
    wait_until("its run is under way", || hosted.simulator.in_flight() == 1);
    // What waits behind it is held back, and said.
    let other = hosted.client(ClientKind::Chat, json!({})).await;
    drop(other.work(PromptSession::new("cut", "behind it")).await.unwrap());
    hosted.kill_host();
    chat.wait_for(
        "The host exited before the answer was complete; finished steps are kept. /continue resumes",
    );
    let calls = hosted.simulator.calls();
    chat.say("/status");
    chat.wait_for("Its newest prompt has no complete answer; /continue to resume.");
    chat.wait_for("Held back: behind it");
    chat.wait_for("session cut, ");
    assert_eq!(hosted.simulator.calls(), calls, "nothing goes on unasked");
    chat.say("/withdraw");
    chat.wait_for("1 input withdrawn");
    let other = hosted.client(ClientKind::Chat, json!({})).await;
    let waiting = other.call(ListWaiting { session_id: "cut".to_owned() }).await.unwrap().inputs;
    assert!(waiting.is_empty(), "{waiting:?}");
    chat.say("next");
    chat.wait_for("heard next");
    chat.close_input();
    let ran = chat.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(said(&hosted, "cut"), ["slow", "next"]);
}

/// `/continue` is for the run that was cut off, and what comes of it is printed.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_with_what_was_interrupted() {
    let hosted = hosted().await;
    let mut chat = start(&hosted, &["chat", "--window", "100000", "--session", "mine"]);
    chat.say("one");
    chat.wait_for("heard one");
    chat.say("slow");
    wait_until("its run is under way", || hosted.simulator.in_flight() == 1);
    chat.signal(rustix::process::Signal::INT);
    chat.wait_for("Interrupted. Everything above is kept; /continue to resume.");
    let other = hosted.client(ClientKind::Chat, json!({})).await;
    let state = other.call(GetState { session_id: "mine".to_owned() }).await.unwrap();
    assert_eq!((state.status.to_string().as_str(), state.is_unanswered), ("idle", true));
    chat.say("/continue");
    let answer = chat.wait_for("heard ");
    assert!(!answer.contains("one"), "{answer}");
    chat.say("/quit");
    assert_eq!(chat.end().code, Some(0));
}

/// What the documents allow is one line of the protocol, at a host and within a process.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_picture_and_32_mb_of_input_are_taken_with_a_host_and_without_one() {
    let hosted = hosted().await;
    let script = Function(|_: &SeenRequest, _: CallInfo| Answer::text("seen"));
    let simulator = Simulator::new(SimulatorOptions { window: 200_000_000, ..SimulatorOptions::new(script) });
    let server = simulator.serve().await.unwrap();
    let picture = [&b"GIF89a"[..], &vec![1; 3_600_000]].concat();
    std::fs::write(hosted.place.work().join("a.gif"), picture).unwrap();
    let input = hosted.place.work().join("input");
    std::fs::write(&input, "word ".repeat(6_400_000)).unwrap();
    for more in [&["--no-host"][..], &[]] {
        let asked = |session: &str, arguments: &[&str]| {
            let first = ["run", "--window", "200000000", "--session", session, "-p", "x"];
            let mut command = hosted.command(&[&first[..], arguments, more].concat());
            command.env("OPENAI_BASE_URL", server.base_url().to_string());
            let from = if arguments.is_empty() { input.as_path() } else { Path::new("/dev/null") };
            let ended = ran(command.stdin(std::fs::File::open(from).unwrap()).output().unwrap());
            assert_eq!(
                (ended.code, ended.stdout.as_str()),
                (Some(0), "seen\n"),
                "{more:?}: {}",
                ended.stderr
            );
        };
        asked(&format!("picture{}", more.concat()), &["--image", "a.gif"]);
        asked(&format!("input{}", more.concat()), &[]);
    }
    let bytes = |logged: &LoggedRequest| logged.request.last_user_text().len();
    let largest: Vec<usize> = simulator.requests().iter().map(bytes).collect();
    assert_eq!(largest.iter().filter(|bytes| **bytes >= 31_999_999).count(), 2, "{largest:?}");
}

//! A host that has served a client and says nothing any more: commands that look do without it, those that change something
//! give it up, and those that wait say so and end with the first interruption.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_server::operations::ClientKind;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::{Hosted, lock_of, stop, wait_until};
use crate::cli::screen::{Terminal, is_there};
use crate::cli::support::{Place, Ran, Running};

/// A host that a test plays, on the socket of the real one.
struct Played(tokio::task::JoinHandle<()>);

impl Played {
    /// It answers what this gives for a call's method, and says nothing else.
    fn new(hosted: &Hosted, answer: impl Fn(&str) -> Option<Value> + Clone + Send + 'static) -> Self {
        let _ = std::fs::remove_file(hosted.socket());
        let listener = UnixListener::bind(hosted.socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_calls(stream, answer.clone()));
            }
        }))
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn answer_calls(stream: UnixStream, answer: impl Fn(&str) -> Option<Value>) {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let call: Value = serde_json::from_str(&line).unwrap();
        if let Some(result) = answer(call["method"].as_str().unwrap_or_default()) {
            let answer = json!({ "jsonrpc": "2.0", "id": call["id"], "result": result });
            // The client that asked may be gone.
            let _ = output.write_all(format!("{answer}\n").as_bytes()).await;
        }
    }
}

/// Greets everybody.
fn greets(method: &str) -> Option<Value> {
    (method == "client/hello").then(|| json!({ "protocol": 1, "version": "9.9", "pid": 1 }))
}

/// What a command says of a host that it waits for no longer.
fn given_up(process: i32) -> String {
    format!(
        "the host of this store (process {process}) does not answer; wait, or kill it with `greenroom host --stop --force`: \
         nothing that was acknowledged is lost"
    )
}

/// What a command says of a host that it waits for.
fn waited_for(process: i32) -> String {
    format!("(process {process}) does not answer; waiting for it; Ctrl-C exits")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_greets_and_says_nothing_is_named_and_keeps_nobody_for_ever() {
    let hosted = Hosted::new(3, 0).await;
    assert_eq!(hosted.say("a", "one").code, Some(0));
    let process = hosted.host().expect("a host is there").as_raw_nonzero().get();
    hosted.kill_host();
    // The process that has the store keeps its lock.
    let lock = std::fs::File::open(hosted.place.store().join("lock")).unwrap();
    lock.try_lock().unwrap();
    let greeter = Played::new(&hosted, greets);
    let start = |arguments: &[&str]| hosted.place.start_command(hosted.command(arguments));
    let looking: Vec<(Vec<&str>, Running)> = [
        &["sessions"][..],
        &["show", "a"],
        &["show", "--tree", "a"],
        &["compact", "--dry-run", "a"],
        &["export", "a"],
        &["questions"],
    ]
    .map(|arguments| (arguments.to_vec(), start(arguments)))
    .into();
    let changing: Vec<(Vec<&str>, Running)> =
        [&["delete", "a"][..], &["answer", "a", "7", "yes"], &["models"], &["top"]]
            .map(|arguments| (arguments.to_vec(), start(arguments)))
            .into();
    let run = ["run", "--window", "100000", "--session", "a", "-p", "two"];
    let waiting: Vec<Running> = [&run[..], &["compact", "a"], &["chat", "--session", "a"]]
        .map(|arguments| {
            let mut running = start(arguments);
            if arguments[0] != "chat" {
                running.close_input();
            }
            running
        })
        .into();
    // What only looks finds the same in the store.
    for (arguments, running) in looking {
        let Ran { code, stdout, stderr } = ended(running).await;
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        let said = format!("{}; this is what the store holds", given_up(process));
        assert!(stderr.contains(&said) && !stdout.is_empty(), "{arguments:?}: {stderr}");
    }
    for (arguments, running) in changing {
        let Ran { code, stdout, stderr } = ended(running).await;
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "{arguments:?}: {stderr}");
        assert_eq!(stderr, format!("greenroom: {}\n", given_up(process)), "{arguments:?}");
    }
    // A waiting command says so, and ends at the first signal.
    for mut running in waiting {
        let (said, running) =
            tokio::task::spawn_blocking(move || (running.wait_for_word("waiting"), running)).await.unwrap();
        assert!(said.contains(&waited_for(process)), "{said}");
        running.signal(Signal::TERM);
        let Ran { code, stdout, stderr } = ended(running).await;
        assert_eq!((code, stdout.as_str()), (Some(130), ""), "{stderr}");
    }
    drop((greeter, lock));
    assert_eq!(hosted.say("a", "three").code, Some(0));
}

async fn ended(running: Running) -> Ran {
    tokio::task::spawn_blocking(move || running.end()).await.unwrap()
}

/// A run whose model is in the middle of its answer, on a host that is stopped then.
async fn stopped_in_the_middle(hosted: &Hosted) -> (Running, Pid) {
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    let arguments = ["run", "--json", "--window", "100000", "--session", "a", "-p", "one"];
    let mut running = hosted.place.start_command(hosted.command(&arguments));
    running.close_input();
    running.wait_for("message_delta");
    stop(host);
    (running, host)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_says_that_its_host_is_silent_and_goes_on_with_it() {
    let hosted = Hosted::new(200, 20).await;
    let (mut running, host) = stopped_in_the_middle(&hosted).await;
    let said = running.wait_for_word("does not answer");
    assert!(said.contains(&waited_for(host.as_raw_nonzero().get())), "{said}");
    kill_process(host, Signal::CONT).unwrap();
    running.wait_for_word("the host answers again");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let end = ended.stdout.lines().last().unwrap();
    assert!(end.contains("\"run_end\"") && end.contains("completed"), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_on_a_silent_host_ends_with_the_first_interruption_and_is_aborted_later() {
    for signal in [Signal::INT, Signal::TERM] {
        let hosted = Hosted::new(6_000, 20).await;
        let (running, host) = stopped_in_the_middle(&hosted).await;
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        assert!(ended.stderr.contains(&given_up(host.as_raw_nonzero().get())), "{ended:?}");
        // It did not wait as long as somebody does who has not interrupted it.
        assert!(!ended.stderr.contains("waiting for it"), "{ended:?}");
        kill_process(host, Signal::CONT).unwrap();
        let client = hosted.client(ClientKind::Watch, json!({})).await;
        let state = || {
            let shown = hosted.run(&["sessions", "--json"]);
            let sessions: Value = serde_json::from_str(&shown.stdout).unwrap();
            sessions[0]["state"].as_str().map(str::to_owned)
        };
        wait_until("its run is aborted", || state().as_deref() == Some("idle"));
        client.close().await;
    }
}

/// A host that answers once more after an interruption, and then nothing. What the run says goes through the test, which
/// has the lock of another store, to a real host.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_interrupted_waits_for_no_silence_that_begins_later() {
    let hosted = Hosted::new(6_000, 20).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    let process = host.as_raw_nonzero().get();
    let played = Place::new();
    std::fs::create_dir_all(played.store()).unwrap();
    let _lock = lock_of(&played.store()).unwrap();
    std::fs::write(played.store().join("lock"), process.to_string()).unwrap();
    let listener = tokio::net::UnixListener::bind(played.store().join("host.sock")).unwrap();
    let (is_interrupted, is_silent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (interrupted, silent, real) = (Arc::clone(&is_interrupted), Arc::clone(&is_silent), hosted.socket());
    let playing = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        let mut real = UnixStream::connect(real).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut first, &mut real).await });
        while let Ok((stream, _)) = listener.accept().await {
            let (interrupted, silent) = (Arc::clone(&interrupted), Arc::clone(&silent));
            tokio::spawn(answer_calls(stream, move |_| {
                let answers = !silent.load(Ordering::SeqCst);
                silent.store(interrupted.load(Ordering::SeqCst), Ordering::SeqCst);
                answers.then(|| json!({ "pid": process }))
            }));
        }
    });
    let arguments = ["run", "--json", "--window", "100000", "--session", "a", "-p", "one"];
    let mut running = played.start_command(hosted.with_host(played.command(&arguments)));
    running.close_input();
    running.wait_for("message_delta");
    stop(host);
    is_interrupted.store(true, Ordering::SeqCst);
    running.signal(Signal::INT);
    let ended = ended(running).await;
    assert!(is_silent.load(Ordering::SeqCst), "it was asked after the interruption");
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.stderr.contains(&given_up(process)), "{ended:?}");
    assert!(!ended.stderr.contains("waiting for it"), "{ended:?}");
    playing.abort();
    kill_process(host, Signal::CONT).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_says_that_its_host_is_silent_and_that_it_answers_again() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
    let terminal = Terminal::of(&hosted.place, (110, 30), &chat);
    terminal.shows("›");
    terminal.says("one");
    terminal.shows("word");
    stop(host);
    terminal.says("two");
    terminal.shows("does not answer; waiting for it; Ctrl-C exits");
    kill_process(host, Signal::CONT).unwrap();
    terminal.shows("the host answers again");
    terminal.until("it is answered", |screen| screen.matches("word").count() == 2);
    stop(host);
    terminal.says("three");
    terminal.until("it is said again", |screen| screen.matches("does not answer").count() == 2);
    terminal.press("C-c");
    terminal.shows("ended with 0");
    kill_process(host, Signal::CONT).unwrap();
}

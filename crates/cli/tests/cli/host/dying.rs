//! A host that ends just when somebody comes: clients try again, and are served by the next one.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::{Hosted, is_greenroom, lock_of, stop, wait_until};
use crate::cli::screen::{Terminal, is_there};
use crate::cli::support::{Ran, ran};

/// How a host that a test plays treats the first one who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// It dies before it accepts the connection.
    BeforeItAccepts,
    /// It ends the connection, and has read nothing.
    Unread,
    /// It ends the connection when it has read who the client is.
    InTheHello,
    /// It ends the connection in the middle of its answer.
    InTheAnswer,
    /// It says nothing for a while, and ends then.
    AfterASilence,
    /// It says that it serves the client, and ends when that asks for something.
    AfterTheHello,
    /// It serves the client, and says that it is about to end when that asks for something.
    Closed,
}

const DEATHS: [Death; 7] = [
    Death::BeforeItAccepts,
    Death::Unread,
    Death::InTheHello,
    Death::InTheAnswer,
    Death::AfterASilence,
    Death::AfterTheHello,
    Death::Closed,
];

/// A host that a test plays, in the place of this one's. It leaves its socket, as a process that was killed.
fn play(hosted: &Hosted, death: Death) -> tokio::task::JoinHandle<()> {
    std::fs::create_dir_all(hosted.place.store()).unwrap();
    let _ = std::fs::remove_file(hosted.socket());
    let listener = UnixListener::bind(hosted.socket()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let store = hosted.place.store();
    tokio::spawn(async move {
        // The host before it may have the lock a moment longer.
        let mut lock = loop {
            match lock_of(&store) {
                Some(lock) => break Some(lock),
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        if death == Death::BeforeItAccepts {
            let awaited = tokio::task::spawn_blocking(move || {
                // Somebody waits in its queue when it is closed.
                poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap()
            });
            assert_eq!(awaited.await.unwrap(), 1);
            return;
        }
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        let (mut lines, mut output, hello) = loop {
            let (stream, _) = listener.accept().await.unwrap();
            if death == Death::Unread {
                return;
            }
            let (input, output) = stream.into_split();
            let mut lines = BufReader::new(input).lines();
            // A client that connected before this process had the lock sends nothing.
            if let Some(hello) = lines.next_line().await.unwrap() {
                break (lines, output, hello);
            }
        };
        drop(listener);
        let hello: Value = serde_json::from_str(&hello).unwrap();
        assert_eq!(hello["method"], "client/hello");
        let answer = json!({
            "jsonrpc": "2.0", "id": hello["id"], "result": { "protocol": 1, "version": "9.9", "pid": 1 },
        });
        let answer = format!("{answer}\n");
        match death {
            Death::BeforeItAccepts | Death::Unread | Death::InTheHello => {}
            Death::InTheAnswer => output.write_all(&answer.as_bytes()[..40]).await.unwrap(),
            Death::AfterASilence => tokio::time::sleep(Duration::from_millis(700)).await,
            Death::AfterTheHello | Death::Closed => {
                output.write_all(answer.as_bytes()).await.unwrap();
                // The client goes away by itself.
                while let Ok(Some(line)) = lines.next_line().await
                    && death == Death::Closed
                {
                    let call: Value = serde_json::from_str(&line).unwrap();
                    let text = "the runtime is shutting down, or was shut down";
                    let data =
                        json!({ "kind": "closed", "class": "other", "message": text, "retryable": false });
                    let error = json!({ "code": -32000, "message": text, "data": data });
                    let refusal = json!({ "jsonrpc": "2.0", "id": call["id"], "error": error });
                    output.write_all(format!("{refusal}\n").as_bytes()).await.unwrap();
                    drop(lock.take());
                }
            }
        }
    })
}

/// Runs a command while another host plays, which it must have met.
async fn meeting(hosted: &Hosted, death: Death, arguments: &[&str]) -> Ran {
    let playing = play(hosted, death);
    let mut command = hosted.command(arguments);
    let ended = tokio::task::spawn_blocking(move || ran(command.output().unwrap())).await.unwrap();
    playing.await.unwrap();
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn who_meets_a_host_that_dies_is_served_by_the_next_one() {
    let hosted = Hosted::new(1, 0).await;
    for (number, death) in DEATHS.into_iter().enumerate() {
        let said = format!("said {number}");
        let arguments = ["run", "--window", "100000", "--session", "a", "-p", &said];
        let ended = meeting(&hosted, death, &arguments).await;
        let printed = (ended.code, ended.stdout.trim(), ended.stderr.as_str());
        assert_eq!(printed, (Some(0), "word", ""), "{death:?}");
        hosted.kill_host();
    }
    let conversation = hosted.place.json(&["show", "a", "--json"])["conversation"].to_string();
    for number in 0..DEATHS.len() {
        assert_eq!(conversation.matches(&format!("said {number}")).count(), 1, "{conversation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_starts_no_host_does_its_work_where_the_one_that_it_met_dies() {
    let hosted = Hosted::new(1, 0).await;
    for (number, death) in DEATHS.into_iter().enumerate() {
        let id = format!("session{number}");
        assert_eq!(hosted.say(&id, "one").code, Some(0));
        let file = format!("{id}.jsonl");
        assert_eq!(hosted.run(&["export", &id, "--output", &file]).code, Some(0));
        hosted.kill_host();
        for arguments in [
            &["sessions"][..],
            &["show", &id],
            &["show", "--tree", &id],
            &["compact", "--dry-run", &id],
            &["export", &id],
            &["questions"],
            &["models"],
            &["compact", &id],
            &["delete", &id],
            &["import", &file],
        ] {
            let ended = meeting(&hosted, death, arguments).await;
            assert_eq!(ended.code, Some(0), "{death:?}, {arguments:?}: {ended:?}");
        }
    }
    assert_eq!(hosted.host(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_that_meets_a_host_that_dies_is_served_by_the_next_one() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(1, 0).await;
    for (number, death) in DEATHS.into_iter().enumerate() {
        let playing = play(&hosted, death);
        let id = format!("session{number}");
        let chat = hosted.command(&["chat", "--session", &id, "--window", "100000"]);
        let terminal = Terminal::of(&hosted.place, (90, 30), &chat);
        terminal.shows("›");
        playing.await.unwrap();
        terminal.says("one");
        terminal.shows("word");
        // And when its own dies, and the next one, too.
        let host = hosted.host().expect("a host is there");
        stop(host);
        let playing = play(&hosted, death);
        kill_process(host, Signal::KILL).unwrap();
        playing.await.unwrap();
        assert!(!is_greenroom(host));
        terminal.says("two");
        terminal.until("it is answered", |screen| screen.matches("word").count() == 2);
        terminal.leaves();
        terminal.shows("ended with 0");
        drop(terminal);
        hosted.kill_host();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_says_nothing_is_said_after_a_while() {
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    stop(host);
    let started: Vec<_> = [&["run", "-p", "x"][..], &["host", "--stop"], &["compact", "a"]]
        .into_iter()
        .map(|arguments| hosted.place.start_command(hosted.command(arguments)))
        .collect();
    for running in started {
        let ended = running.end();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let said = format!("(process {}) does not answer", host.as_raw_nonzero());
        assert!(ended.stderr.contains(&said), "{ended:?}");
    }
    hosted.kill_host();
    assert_eq!(hosted.say("a", "one").code, Some(0));
}

/// Text still streaming is lost with the process; finished messages are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_host_is_killed_says_what_is_kept() {
    let hosted = Hosted::new(600, 100).await;
    let mut running =
        hosted.place.start_command(hosted.command(&["run", "--json", "-p", "one", "--session", "a"]));
    running.close_input();
    running.wait_for("message_delta");
    hosted.kill_host();
    let ended = running.end();
    assert!(ended.code == Some(1) && ended.stderr.contains("finished steps are kept"), "{ended:?}");
    let shown = hosted.run(&["show", "a"]);
    assert!(shown.stdout.contains("one") && !shown.stdout.contains("word"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_a_host_ends_waits_for_its_end() {
    let hosted = Hosted::new(600, 100).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    let mut running = hosted.place.start_command(hosted.command(&["run", "-p", "one", "--session", "a"]));
    running.close_input();
    wait_until("the model is asked", || hosted.simulator.in_flight() == 1);
    let stopping = hosted.place.start_command(hosted.command(&["host", "--stop", "--force"]));
    wait_until("it ends, or has ended", || !hosted.socket().exists() || !is_greenroom(host));
    let deleted = hosted.run(&["delete", "a"]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    assert_eq!(stopping.end().code, Some(0));
    assert_eq!(running.end().code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_was_removed_is_made_again() {
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let host = hosted.host();
    std::fs::remove_file(hosted.socket()).unwrap();
    wait_until("it is there again", || hosted.socket().exists());
    assert_eq!(hosted.say("a", "one").code, Some(0));
    assert_eq!(hosted.host(), host);
    // What is no socket is never removed.
    hosted.kill_host();
    std::fs::remove_file(hosted.socket()).unwrap();
    for is_folder in [false, true] {
        if is_folder {
            std::fs::remove_file(hosted.socket()).unwrap();
            std::fs::create_dir(hosted.socket()).unwrap();
        } else {
            std::fs::write(hosted.socket(), "mine").unwrap();
        }
        let refused = hosted.say("a", "two");
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("is not a socket"), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_answer_is_killed_where_that_is_forced() {
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    assert_eq!(hosted.say("a", "one").code, Some(0));
    let host = hosted.host().expect("a host is there");
    stop(host);
    let stopped = hosted.run(&["host", "--stop", "--force"]);
    let said = format!("(process {}) did not answer, and was killed", host.as_raw_nonzero());
    assert!(stopped.code == Some(0) && stopped.stdout.contains(&said), "{stopped:?}");
    wait_until("the host has ended", || !is_greenroom(host));
    assert_eq!(hosted.say("a", "two").code, Some(0));
    let shown = hosted.run(&["show", "a"]);
    assert!(shown.stdout.contains("one") && shown.stdout.contains("two"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_says_that_its_host_does_not_answer_and_can_be_left() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    stop(host);
    let said = format!("the host (process {}) does not answer yet", host.as_raw_nonzero());
    for key in ["C-c", "C-d", ""] {
        let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
        let terminal = Terminal::of(&hosted.place, (90, 30), &chat);
        terminal.shows(&said);
        match key {
            "" => kill_process(chat_of(&hosted), Signal::TERM).unwrap(),
            key => terminal.press(key),
        }
        terminal.shows("ended with 130");
    }
    // One that is there already leaves, too.
    kill_process(host, Signal::CONT).unwrap();
    for (before, key) in ["C-c", "C-d", ""].into_iter().enumerate() {
        let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
        let terminal = Terminal::of(&hosted.place, (90, 30), &chat);
        terminal.shows("›");
        terminal.says("one");
        // Those of the chats before are there, too.
        terminal.until("it answers", |screen| screen.matches("word").count() > before);
        terminal.until("it rests", |screen| !screen.contains("waiting for the model"));
        stop(host);
        match key {
            "" => kill_process(chat_of(&hosted), Signal::TERM).unwrap(),
            key => {
                terminal.press(key);
                terminal.press(key);
            }
        }
        terminal.shows("ended with 0");
        kill_process(host, Signal::CONT).unwrap();
    }
}

/// The chat that works on this place's store.
fn chat_of(hosted: &Hosted) -> Pid {
    let store = hosted.place.store().display().to_string();
    let mut pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
        let of =
            |what: &str| std::fs::read(format!("/proc/{}/{what}", pid.as_raw_nonzero())).unwrap_or_default();
        let line = String::from_utf8_lossy(&of("cmdline")).into_owned();
        let is_its = line.contains(&store) || String::from_utf8_lossy(&of("environ")).contains(&store);
        (line.split('\0').next()?.ends_with("/greenroom") && line.contains("\0chat\0") && is_its)
            .then_some(pid)
    });
    pids.next().expect("a chat is there")
}

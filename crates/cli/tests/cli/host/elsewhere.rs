//! Chats that have a session open show what other clients do with it, or with its host.

use greenroom::EntryId;
use greenroom_server::operations::{BranchSession, ClientKind, PromptSession, StartSession, Steer};
use serde_json::json;

use super::Hosted;
use crate::cli::screen::{Terminal, is_there};

/// Moves the place from where session `a` goes on, as another chat does.
async fn branch(hosted: &Hosted, entry_id: Option<u64>) {
    let other = hosted.client(ClientKind::Chat, json!({})).await;
    other.call(StartSession { session_id: "a".to_owned() }).await.unwrap();
    let entry_id = entry_id.map(EntryId);
    other.call(BranchSession { session_id: "a".to_owned(), entry_id, summary: false }).await.unwrap();
    other.close().await;
}

const BRANCHED: &str = "the next prompt continues after entry 0";
const ANEW: &str = "the next prompt starts the conversation over";

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_told_of_a_branch_and_of_the_deletion_of_its_session() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
    let terminal = Terminal::of(&hosted.place, (110, 40), &chat);
    terminal.shows("›");
    terminal.says("one");
    terminal.until("it rests", |screen| screen.contains("word") && !screen.contains("waiting for the model"));
    branch(&hosted, Some(0)).await;
    terminal.shows(BRANCHED);
    branch(&hosted, None).await;
    terminal.shows(ANEW);
    // One of its own is told once.
    terminal.says("/branch 0");
    terminal.until("it is told", |screen| screen.matches(BRANCHED).count() == 2);
    assert_eq!(hosted.run(&["delete", "a"]).code, Some(0));
    terminal.shows("This session was deleted; /new starts another one");
    terminal.says("two");
    terminal.shows("was deleted");
    assert_eq!(terminal.screen().matches(BRANCHED).count(), 2);
    terminal.press("C-u");
    terminal.says("/new");
    terminal.shows("New session");
    terminal.says("three");
    terminal.until("it is answered", |screen| screen.matches("word").count() == 2);
    terminal.leaves();
    terminal.shows("ended with 0");
    assert!(hosted.place.only_session().starts_with("chat-"));
}

/// The mode belongs to the session: a chat never shows another one than that by which calls are judged.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_told_of_a_mode_that_another_one_sets() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let chat = || {
        let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
        let terminal = Terminal::of(&hosted.place, (110, 40), &chat);
        terminal.until("its mode is shown", |screen| status(screen).contains("· ask"));
        terminal
    };
    let (one, other) = (chat(), chat());
    other.says("/permissions everything");
    one.shows("Mode changed elsewhere to everything");
    one.until("its status line shows it", |screen| status(screen).contains("· everything"));
    // By a key, and faster than it is answered.
    one.press("BTab");
    one.press("BTab");
    one.until("the mode is the second next", |screen| !status(screen).contains("· everything"));
    let now = |terminal: &Terminal| {
        let screen = terminal.screen();
        status(&screen).to_owned()
    };
    let mode = |row: &str| {
        let modes = ["ask", "accept edits", "read only", "everything"];
        modes.into_iter().find(|mode| row.contains(&format!("· {mode}"))).unwrap_or_default()
    };
    // The second key may take effect later than the first.
    other.until("the other shows the same", |screen| {
        let own = now(&one);
        mode(status(screen)) == mode(&own) && !own.contains("· everything")
    });
    for (terminal, count) in [(&one, 1), (&other, 2)] {
        let screen = terminal.screen();
        let told = screen.matches("Mode changed elsewhere").count();
        assert!(told >= 1 && told <= count, "{screen}");
    }
}

/// Returns the status line.
fn status(screen: &str) -> &str {
    screen.lines().rev().find(|line| line.contains(" · ")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_in_a_pipe_is_told_and_ends_with_its_session() {
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let chat = ["chat", "--session", "a", "--window", "100000"];
    let mut chat = hosted.place.start_command(hosted.command(&chat));
    chat.say("one");
    chat.wait_for("tokens in all");
    branch(&hosted, Some(0)).await;
    chat.wait_for(BRANCHED);
    assert_eq!(hosted.run(&["delete", "a"]).code, Some(0));
    let ended = chat.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("session a was deleted"), "{ended:?}");
    assert!(!ended.stdout.contains("To continue:"), "{ended:?}");
}

/// Ends the host of a chat, as another terminal does.
fn end_host(hosted: &Hosted, is_told: bool) {
    match is_told {
        true => assert_eq!(hosted.run(&["host", "--stop", "--force"]).code, Some(0)),
        false => hosted.kill_host(),
    }
}

const ENDED: &str = "The host ended; starting another one";

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_says_that_its_host_was_stopped_and_what_it_does_about_it() {
    if !is_there() {
        return;
    }
    for is_told in [true, false] {
        // While it rests, and in the middle of a run.
        for words in [1, 600] {
            let hosted = Hosted::new(words, 100).await;
            hosted.start_host();
            let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
            let terminal = Terminal::of(&hosted.place, (110, 40), &chat);
            terminal.shows("›");
            terminal.says("one");
            terminal.until("it works, or rests", |screen| {
                screen.contains("word") && (words > 1 || !screen.contains("waiting for the model"))
            });
            end_host(&hosted, is_told);
            if words > 1 {
                // One row says it.
                let screen = terminal.shows("/continue to resume");
                let kept = if is_told {
                    "Everything above is kept"
                } else {
                    "unfinished answer above was not stored"
                };
                assert_eq!(screen.matches(kept).count(), 1, "{screen}");
                assert_eq!(
                    screen.matches("Everything above is kept").count(),
                    usize::from(is_told),
                    "{screen}"
                );
                let shown = hosted.run(&["show", "a"]).stdout;
                assert_eq!(shown.contains("agent ›"), is_told, "what is said is so: {shown}");
                assert!(!screen.contains("the runtime is shut") && !screen.contains("host"), "{screen}");
                // The next host is there.
                terminal.says("/status");
                terminal.shows("session a, ");
            } else {
                // Nobody asked for hosts: the chat just works.
                terminal.says("two");
                let screen = terminal.until("it is answered", |screen| screen.matches("word").count() == 2);
                assert!(!screen.contains("host"), "{screen}");
            }
            terminal.leaves();
            terminal.shows("ended with 0");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_in_a_pipe_says_that_its_host_was_stopped() {
    for is_told in [true, false] {
        let hosted = Hosted::new(1, 0).await;
        hosted.start_host();
        let chat = ["chat", "--session", "a", "--window", "100000"];
        let mut chat = hosted.place.start_command(hosted.command(&chat));
        chat.say("one");
        chat.wait_for("tokens in all");
        end_host(&hosted, is_told);
        // At once, and not when the next line comes.
        chat.wait_for(ENDED);
        chat.say("two");
        chat.wait_for("word");
        chat.close_input();
        let ended = chat.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!ended.stdout.contains(ENDED), "it is said once: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steer_into_the_run_of_another_agent_is_shown_as_one_that_waits() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(100, 50).await;
    hosted.start_host();
    let other = hosted.client(ClientKind::Chat, json!({})).await;
    let work = other.work(PromptSession::new("a", "one")).await.unwrap();
    let chat = hosted.command(&["chat", "--session", "a", "--window", "100000"]);
    let terminal = Terminal::of(&hosted.place, (140, 40), &chat);
    terminal.shows("Esc interrupts");
    terminal.says("two");
    terminal.shows("⧗ waits for the end of this run, which has other tools, another folder or key: two");
    // One of the same agent joins.
    let joins = other.call(Steer::new("a", "three")).await.unwrap();
    assert!(!joins.waits);
    work.outcome().await.unwrap();
    terminal.until("its own run begins", |screen| screen.contains("› two") && !screen.contains("⧗"));
    terminal.until("the work is over", |screen| !screen.contains("Esc interrupts"));
    terminal.press("C-d");
    terminal.shows("ended with 0");
}

//! A real process is killed while a question is open, and right after its answer: the effect happens once.
//!
//! The process is this test binary itself, started again with [`child`] as its only test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use greenroom::permissions::{Mode, Permissions, Policy};
use greenroom::prelude::*;
use greenroom::{EntryId, EntryKind, Message, QuestionEnd, RunOutcome, ToolStatus};

use super::{Refund, asked, cashier, ends};
use crate::support::agent;

/// The child's working folder; only set for the child.
const DIR: &str = "GREENROOM_QUESTIONS_DIR";
/// The child's session.
const SESSION: &str = "GREENROOM_QUESTIONS_SESSION";
/// The child's task: `prompt`, `look` or `answer`.
const DOES: &str = "GREENROOM_QUESTIONS_DOES";
/// The number of sessions with questions. Each lives in four processes, of which three are killed.
const SESSIONS: usize = 24;

#[expect(clippy::disallowed_methods, reason = "a child of a test has no other way to be told")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns the number of lines that this session's calls wrote to the file of effects.
fn paid(dir: &Path, session: &str) -> usize {
    let effects = std::fs::read_to_string(dir.join("effects")).unwrap_or_default();
    effects.lines().filter(|line| line.split_once(' ').is_some_and(|(of, _)| of == session)).count()
}

/// Asks, and then appends a line with the call's key, unless it exists: as a table with a primary key would.
async fn refund(args: Refund, cx: ToolContext, dir: PathBuf) -> Result<String, ToolError> {
    if !cx.ask(Question::choice("Refund it?", ["yes", "no"])).await?.is("yes") {
        return Ok("not approved".to_owned());
    }
    pay(args, cx, dir).await
}

/// Whether the session's calls are approved before they begin.
fn is_approved(session: &str) -> bool {
    session.ends_with(['2', '3', '6', '7'])
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
async fn pay(_: Refund, cx: ToolContext, dir: PathBuf) -> Result<String, ToolError> {
    // Time to be killed, before the effect and after it.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let line = format!("{} {}", cx.session, cx.call_key());
    let path = dir.join("effects");
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if !known.lines().any(|known| known == line) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        // One write of a short line is atomic.
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    println!("@paid");
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok("refunded".to_owned())
}

/// Returns the agent of a session: in every other one, the permissions ask before the call instead of the tool.
fn refunds(dir: &Path, session: &str) -> Agent {
    let dir = dir.to_owned();
    if is_approved(session) {
        let refund = move |args: Refund, cx: ToolContext| pay(args, cx, dir.clone());
        let permissions = Permissions::new(Policy::new(Mode::Ask, "/srv"));
        return agent(100_000).add_tool(tool("refund", refund)).permissions(permissions);
    }
    let refund = move |args: Refund, cx: ToolContext| refund(args, cx, dir.clone());
    agent(100_000).add_tool(tool("refund", refund).resumable())
}

fn on_tokio<T>(work: impl Future<Output = T>) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    tokio.block_on(work)
}

/// The process that is killed.
#[test]
#[ignore = "started by the test below"]
#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn child() {
    let Some(dir) = told(DIR).map(PathBuf::from) else { return };
    let (id, does) = (told(SESSION).unwrap(), told(DOES).unwrap());
    on_tokio(async move {
        let model = cashier();
        let runtime =
            Runtime::builder().provider(model.provider()).data_dir(dir.join("store")).start().await.unwrap();
        let session = runtime.open(&id, &refunds(&dir, &id)).await.unwrap();
        if does == "prompt" {
            session.prompt("refund it").once("order").start().await.unwrap().detach();
        }
        let question = asked(&session).await;
        println!("@asked");
        if does == "answer" {
            session.answer(question.id, "yes").await.unwrap();
            println!("@answered");
        }
        std::future::pending::<()>().await;
    });
}

/// Starts the child, and kills it as soon as it prints this.
fn live_until(said: &str, does: &str, dir: &Path, session: &str) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["questions::killed::child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(SESSION, session)
        .env(DOES, does)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let is_said = lines.map_while(Result::ok).any(|line| line.contains(said));
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(is_said, "{session}: the child ended before it said {said}");
}

#[test]
fn a_question_outlives_kills_and_its_effect_happens_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (mut before_effect, mut after_effect, mut never) = (0, 0, 0);
    for number in 0..SESSIONS {
        let id = format!("s{number}");
        live_until("@asked", "prompt", dir, &id);
        live_until("@asked", "look", dir, &id);
        assert_eq!(paid(dir, &id), 0, "{id}: nobody has approved it");
        live_until(["@answered", "@paid"][number % 2], "answer", dir, &id);
        match paid(dir, &id) {
            0 => before_effect += 1,
            _ => after_effect += 1,
        }
        on_tokio(async {
            let model = cashier();
            let runtime = Runtime::builder()
                .provider(model.provider())
                .data_dir(dir.join("store"))
                .start()
                .await
                .unwrap();
            let session = runtime.open(&id, &refunds(dir, &id)).await.unwrap();
            // Repeated with its key, the prompt is the same run, and waits for its end.
            let reply = session.prompt("refund it").once("order").await.unwrap();
            let is_cut_short = is_approved(&id) && reply.text.contains("cut off");
            never += usize::from(is_cut_short && paid(dir, &id) == 0);
            assert!(reply.text == "It says: refunded" || is_cut_short, "{id}: {}", reply.text);
            let (mut outcomes, mut statuses) = (Vec::new(), Vec::new());
            for entry in runtime.entries(&id, EntryId(0)).await.unwrap() {
                match &entry.kind {
                    EntryKind::RunEnded { outcome, .. } => outcomes.push(outcome.clone()),
                    EntryKind::Message { message, .. } => {
                        if let Message::ToolResult(result) = &**message {
                            statuses.push(result.status);
                        }
                    }
                    _ => {}
                }
            }
            // A kill may come late: the call had its result, and the next model call was in progress. That
            // run was interrupted.
            let ended = outcomes.pop();
            let is_cut_off = outcomes.is_empty() || outcomes == [RunOutcome::Interrupted];
            assert!(ended == Some(RunOutcome::Completed) && is_cut_off, "{id}: {outcomes:?}, {ended:?}");
            let status = if is_cut_short { ToolStatus::Interrupted } else { ToolStatus::Ok };
            assert_eq!(statuses, [status], "{id}");
            assert_eq!(ends(&runtime, &id).await, [QuestionEnd::Answered("yes".into())], "{id}");
            runtime.shutdown().await.unwrap();
        });
        match is_approved(&id) {
            // A call of a tool that is not resumable does not run again.
            true => assert!(paid(dir, &id) <= 1, "{id}: the effect happens once, or never"),
            false => assert_eq!(paid(dir, &id), 1, "{id}: the effect happens once"),
        }
    }
    assert!(before_effect >= 3, "only {before_effect} kills came between the answer and the effect");
    assert!(never <= SESSIONS / 4, "{never} of the approved calls were lost");
    assert!(after_effect >= SESSIONS / 2, "only {after_effect} kills came after the effect");
}

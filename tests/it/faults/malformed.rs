//! Answers that cannot be used unchanged: broken calls become error results, empty answers are requested
//! again, and fields that providers omit are not required.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use greenroom::prelude::*;
use greenroom_kernel::message::{Message, ToolStatus};
use greenroom_kernel::{FailureClass, StopReason};
use greenroom_simulator::{Answer as Said, Fault, Sequence, WrongUsage};
use serde_json::json;

use crate::support::{agent, names, runtime, simulator};

/// Takes nothing.
#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Takes a text.
#[derive(Deserialize, JsonSchema)]
struct Note {
    /// The text to work on.
    text: String,
}

fn tooled() -> Agent {
    agent(20_000).tool("note", |note: Note| async move { Ok(format!("noted {}", note.text)) })
}

/// One prompt to which the model first answers this: the end, and the final request to the model.
async fn said(first: Vec<Said>) -> (Result<Reply>, Vec<std::sync::Arc<Message>>) {
    let model = simulator(Sequence(first), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("malformed", &tooled()).await.unwrap();
    let reply = session.prompt("go").await;
    let context = session.context().await.unwrap();
    session.prompt("and on").await.unwrap();
    model.assert_clean();
    (reply, context)
}

/// Returns the results of the tools, with their status.
fn results(context: &[std::sync::Arc<Message>]) -> Vec<(ToolStatus, String)> {
    let result = |message: &std::sync::Arc<Message>| match &**message {
        Message::ToolResult(result) => Some((result.status, message.text())),
        Message::User(_) | Message::Assistant(_) => None,
    };
    context.iter().filter_map(result).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_with_broken_arguments_gets_a_result_that_says_so() {
    let broken = [
        Said::default().and_raw_call("note", "{\"text\": \"a long text that is cu"),
        Said::default().and_raw_call("note", "not json at all"),
        Said::default().and_raw_call("note", "{\"text\": \"a\"}{\"text\": \"a\"}"),
        Said::default().and_raw_call("note", "[1, 2]"),
        Said::call("note", &json!({ "wrong": 1 })),
        Said::call("note", &json!({ "text": "cut here" })).with_fault(Fault::TruncatedArguments),
        Said::call("note", &json!({ "text": "twice" })).with_fault(Fault::DoubledArguments),
    ];
    for first in broken {
        let (reply, context) = said(vec![first.clone(), Said::text("sorry")]).await;
        assert_eq!(reply.unwrap().text, "sorry", "{first:?}");
        let results = results(&context);
        assert_eq!(results.len(), 1, "{first:?}");
        assert_eq!(results[0].0, ToolStatus::Error, "{first:?}");
        assert!(results[0].1.contains("argument") || results[0].1.contains("text"), "{results:?}");
    }
}

/// A tool without parameters would run with the part of a call before its arguments begin.
#[tokio::test(start_paused = true)]
async fn a_call_that_the_output_limit_cut_off_is_not_run() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let agent = agent(20_000).tool("reset", move |_: Nothing| {
        let counted = Arc::clone(&counted);
        async move { Ok(format!("run {}", counted.fetch_add(1, Ordering::SeqCst))) }
    });
    let cut = |finish| Said::call("reset", &json!({})).and_raw_call("reset", "").with_finish(finish);
    let script =
        vec![cut(StopReason::Length), Said::text("sorry"), cut(StopReason::ToolCalls), Said::text("on")];
    let model = simulator(Sequence(script), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("cut", &agent).await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().text, "sorry");
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the whole call was run, the other was not");
    let told = results(&session.context().await.unwrap());
    assert!(told.contains(&(ToolStatus::Ok, "run 0".into())), "{told:?}");
    let answer = told.iter().find(|(status, _)| *status == ToolStatus::Error);
    assert!(answer.is_some_and(|(_, text)| text.contains("before its arguments were whole")), "{told:?}");
    assert_eq!(session.prompt("go").await.unwrap().text, "on");
    assert_eq!(runs.load(Ordering::SeqCst), 3, "an answer that was not cut means what it says");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tool_gets_a_result_that_names_the_known_ones() {
    let (reply, context) = said(vec![Said::call("notee", &json!({})), Said::text("sorry")]).await;
    assert_eq!(reply.unwrap().text, "sorry");
    let results = results(&context);
    assert_eq!(results[0].0, ToolStatus::Error);
    assert!(results[0].1.contains("note"), "{results:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_with_one_id_or_none_are_each_run_and_answered_once() {
    for fault in [Fault::DoubledIds, Fault::MissingIds] {
        let two = Said::call("note", &json!({ "text": "a" })).and_call("note", &json!({ "text": "b" }));
        let (reply, context) = said(vec![two.with_fault(fault.clone()), Said::text("done")]).await;
        assert_eq!(reply.unwrap().text, "done", "{fault:?}");
        let texts: Vec<String> = results(&context).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["noted a", "noted b"], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_is_asked_for_again() {
    for empty in [Said::text(""), Said::text("  \n"), Said::text("").with_reasoning("hm")] {
        let (reply, context) = said(vec![empty.clone(), Said::text("here")]).await;
        assert_eq!(reply.unwrap().text, "here", "{empty:?}");
        assert_eq!(context.len(), 2, "{empty:?}: an empty answer is not recorded");
    }
    let (reply, _) = said(vec![Said::text(""); 9]).await;
    assert!(matches!(reply, Err(Error::Model(failure)) if failure.class == FailureClass::Malformed));
    let filtered = Said::text("").with_finish(StopReason::ContentFilter);
    let (reply, _) = said(vec![filtered, Said::text("on")]).await;
    assert!(matches!(reply, Err(Error::Model(failure)) if failure.class == FailureClass::ContentFilter));
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_usage_or_without_done_is_an_answer() {
    for fault in [
        Fault::EofWithoutDone,
        Fault::Usage(WrongUsage::Missing),
        Fault::Usage(WrongUsage::Zero),
        Fault::Usage(WrongUsage::Absurd),
    ] {
        let (reply, _) = said(vec![Said::text("fine").with_fault(fault.clone()), Said::text("next")]).await;
        let reply = reply.unwrap();
        assert_eq!(reply.text, "fine", "{fault:?}");
        assert!(reply.context.tokens > 0 && reply.context.tokens < 1_000, "{fault:?}: {:?}", reply.context);
    }
    let cut = Said::text("fine").with_fault(Fault::EofBeforeFinish);
    let (reply, context) = said(vec![cut, Said::text("whole")]).await;
    assert_eq!(reply.unwrap().text, "whole", "an end without a finish reason is no end");
    assert_eq!(context.len(), 2);
}

/// A report of a thousand times the input has no effect on a session that is far from its window, whatever
/// the answer with it: text, calls, or nothing for lack of room.
#[tokio::test(start_paused = true)]
async fn one_absurd_report_compacts_nothing() {
    let call = || Said::call("note", &json!({ "text": "a" }));
    let thought = || Said::text("").with_reasoning("hm").with_finish(StopReason::Length);
    for first in [call(), Said::text("fine"), thought()] {
        let first = first.with_fault(Fault::Usage(WrongUsage::Absurd));
        let model = simulator(Sequence(vec![Said::text("read"), first.clone(), Said::text("fine")]), 200_000);
        let runtime = runtime(&model).await;
        let agent =
            agent(200_000).tool("note", |note: Note| async move { Ok(format!("noted {}", note.text)) });
        let session = runtime.open("absurd", &agent).await.unwrap();
        let mut events = session.subscribe();
        session.prompt("thing ".repeat(30_000)).await.unwrap();
        assert_eq!(session.prompt("go").await.unwrap().text, "fine", "{first:?}");
        assert_eq!(model.fired()["usage_absurd"], 1, "{first:?}");
        let names = names(&mut events);
        for never in ["overflow_detected", "compaction_start"] {
            assert!(!names.contains(&never), "{first:?}: {names:?}");
        }
        let state = session.state().await.unwrap();
        assert!((20_000..60_000).contains(&state.context.tokens), "{first:?}: {:?}", state.context);
        model.assert_clean();
    }
}

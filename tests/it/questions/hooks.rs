//! Hooks before a tool call that ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{Asker, BeforeTool, EntryId, EntryKind, QuestionEnd, ToolCallProposal};

use super::{Effects, Home, Refund, asked, cashier, ends, started};
use crate::support::{agent, builder};

/// Returns a guard that asks before each call, and counts its own calls; and a tool that asks nothing.
fn guarded(effects: &Effects, asks: &Arc<AtomicU32>) -> Agent {
    let (effects, asks) = (effects.clone(), Arc::clone(asks));
    agent(100_000)
        .hook_timeout(Duration::from_secs(5))
        .before_tool(move |call: ToolCallProposal| {
            asks.fetch_add(1, Ordering::Relaxed);
            async move {
                match call.ask(Question::choice("May it?", ["yes", "no"])).await {
                    Ok(answer) if answer.is("yes") => BeforeTool::Continue,
                    Ok(_) => BeforeTool::Refuse("a person refused it".to_owned()),
                    Err(error) => BeforeTool::Refuse(error.to_string()),
                }
            }
        })
        .tool("refund", move |_: Refund, cx: ToolContext| {
            let effects = effects.clone();
            async move {
                effects.happen(cx.call_key());
                tokio::time::sleep(Duration::from_secs(60)).await;
                Ok("refunded")
            }
        })
}

#[tokio::test(start_paused = true)]
async fn a_guard_asks_before_a_call_and_its_time_stands_still() {
    for (answer, said, happened) in
        [("yes", "It says: refunded", 1), ("no", "It says: The call was not run: a person refused it.", 0)]
    {
        let (model, effects, asks) = (cashier(), Effects::default(), Arc::default());
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &guarded(&effects, &asks)).await.unwrap();
        let reply = started(&session, "refund it");
        let question = asked(&session).await;
        assert_eq!(question.asker, Asker::Hook);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        session.answer(question.id, answer).await.unwrap();
        assert_eq!(reply.await.unwrap().unwrap().text, said);
        assert_eq!(effects.seen().len(), happened);
        model.assert_clean();
    }
}

/// The tool had not begun, so it runs after the restart, although it is not resumable; one that had begun
/// does not.
#[tokio::test(start_paused = true)]
async fn after_a_restart_the_guard_is_asked_again_with_its_answer_and_the_tool_runs_once() {
    for shutdown in [false, true] {
        let (model, effects, asks) = (cashier(), Effects::default(), Arc::default());
        let home = Home::new();
        let agent = Arc::new(guarded(&effects, &asks));
        let runtime = home.builder(&model).start().await.unwrap();
        let session = runtime.open("s", agent.clone()).await.unwrap();
        let _reply = started(&session, "refund it");
        let question = asked(&session).await;
        end(runtime, shutdown).await;

        let runtime = home.builder(&model).start().await.unwrap();
        let session = runtime.open("s", agent.clone()).await.unwrap();
        assert_eq!(asked(&session).await.id, question.id, "it is not asked anew");
        session.answer(question.id, "yes").await.unwrap();
        while effects.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((effects.seen().len(), asks.load(Ordering::Relaxed)), (1, 2));
        let entries = runtime.entries("s", EntryId(0)).await.unwrap();
        let starts = entries.iter().filter(|entry| matches!(entry.kind, EntryKind::CallStarted { .. }));
        assert_eq!(starts.count(), 1);

        // It is interrupted in the middle of its effect: from here on it must not be run again.
        end(runtime, shutdown).await;
        let runtime = home.builder(&model).start().await.unwrap();
        let session = runtime.open("s", agent.clone()).await.unwrap();
        while session.state().await.unwrap().status != Status::Idle {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((effects.seen().len(), asks.load(Ordering::Relaxed)), (1, 2), "shutdown: {shutdown}");
        let context = session.context().await.unwrap();
        let last = context.last().unwrap().text();
        assert!(last.contains("The answer was: yes"), "{last}");
        assert!(matches!(ends(&runtime, "s").await.as_slice(), [QuestionEnd::Answered(_)]));
        model.assert_clean();
    }
}

async fn end(runtime: Runtime, shutdown: bool) {
    if shutdown {
        runtime.shutdown().await.unwrap();
    } else {
        drop(runtime);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
}

//! A tool or a hook must not wait for a run of a session that waits for it. Without the error each of these
//! programs would hang until its run's time limit, which the paused clock reaches at once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use greenroom::prelude::*;
use greenroom::{BeforeCompact, CompactionOutcome};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Sequence, Summariser};
use serde_json::json;

use super::{Nothing, results};
use crate::support::{agent, builder, runtime, simulator};

/// A session that its own tools can reach.
type Own = Arc<OnceLock<SessionHandle>>;

/// A tool's action with a session.
type Action = fn(SessionHandle) -> BoxFuture<'static, Result<String>>;

fn deadlock(session: &str) -> String {
    format!(
        "session {session} waits for this call to end, so its reply would never arrive; use `steer` or `follow_up`, \
         which do not wait, or prompt another session"
    )
}

/// Returns an agent whose tool `act` performs this action with the session in `own`.
fn acting(own: &Own, action: Action) -> Agent {
    let own = Arc::clone(own);
    agent(100_000).tool("act", move |_: Nothing| {
        let session = own.get().unwrap().clone();
        async move { Ok(action(session).await?) }
    })
}

/// Returns the model's view of a tool that performs this action with its own session, and the session's final
/// messages.
async fn own(action: Action) -> (String, Vec<String>) {
    let script = vec![Said::call("act", &json!({})), Said::text("first"), Said::text("second")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let own = Own::default();
    let session = runtime.open("s", &acting(&own, action)).await.unwrap();
    own.set(session.clone()).unwrap();
    session.prompt("act").await.unwrap();
    while session.state().await.unwrap().status != Status::Idle {
        tokio::task::yield_now().await;
    }
    let context = session.context().await.unwrap();
    let users = context.iter().filter(|message| message.role() == "user").map(|message| message.text());
    model.assert_clean();
    (results(&context).remove(0), users.collect())
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_waits_for_its_own_session_is_told() {
    let awaits: [Action; 3] = [
        |session| Box::pin(async move { session.prompt("again").await.map(|reply| reply.text) }),
        |session| {
            Box::pin(async move {
                let mut run = session.prompt("again").stream();
                while run.next().await.transpose()?.is_some() {}
                Ok("streamed".to_owned())
            })
        },
        |session| {
            Box::pin(async move {
                let submitted = session.prompt("again").start().await?;
                submitted.reply().await.map(|reply| reply.text)
            })
        },
    ];
    for (number, action) in awaits.into_iter().enumerate() {
        let (result, users) = own(action).await;
        assert_eq!((result, users), (deadlock("s"), vec!["act".to_owned()]), "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_needs_an_idle_session_is_refused_and_what_does_not_wait_works() {
    let refused: [Action; 4] = [
        |session| {
            Box::pin(async move { session.compact(CompactOptions::default()).await.map(|_| String::new()) })
        },
        |session| Box::pin(async move { session.resume().await.map(|reply| reply.text) }),
        |session| Box::pin(async move { session.branch(None).await.map(|()| String::new()) }),
        |session| Box::pin(async move { session.undo_compaction().await.map(|_| String::new()) }),
    ];
    let refusals = [
        "session s is working; wait until its run or its compaction has ended, or abort it, before you ",
        "session s waits for this call to end",
        "session s is working; wait until its run or its compaction has ended, or abort it, before you ",
        "session s is working; wait until its run or its compaction has ended, or abort it, before you ",
    ];
    for (action, refusal) in refused.into_iter().zip(refusals) {
        let (result, _) = own(action).await;
        assert!(result.starts_with(refusal), "{result}");
    }
    let works: [(Action, &[&str]); 4] = [
        (
            |session| Box::pin(async move { session.steer("by the way").await.map(|_| "done".to_owned()) }),
            &["act", "by the way"],
        ),
        (
            |session| Box::pin(async move { session.follow_up("then").await.map(|_| "done".to_owned()) }),
            &["act", "then"],
        ),
        (
            |session| {
                Box::pin(async move {
                    let status = session.state().await?.status;
                    Ok(if status == Status::Working { "done".to_owned() } else { format!("{status:?}") })
                })
            },
            &["act"],
        ),
        (
            // Nothing waits for a detached task.
            |session| {
                Box::pin(async move {
                    tokio::spawn(async move { session.prompt("later").await });
                    Ok("done".to_owned())
                })
            },
            &["act", "later"],
        ),
    ];
    for (action, users) in works {
        let (result, said) = own(action).await;
        assert_eq!((result.as_str(), said.iter().map(String::as_str).collect()), ("done", users.to_vec()));
    }
}

/// Waiting for sessions further up is an error too: for an agent called as a tool, and for a session that a
/// tool prompts.
#[tokio::test(start_paused = true)]
async fn a_session_that_waits_further_up_is_not_waited_for() {
    let prompts: Action =
        |session| Box::pin(async move { session.prompt("again").await.map(|reply| reply.text) });
    let script = |request: &SeenRequest, info: CallInfo| match (request.session_key(), info.session_call) {
        ("top", 0) => Said::call("help", &json!({ "task": "act" })).and_call("delegate", &json!({})),
        ("top", _) => Said::text("done"),
        _ => match request.messages.last() {
            Some(last) if last.role() == "tool" => Said::text(last.text()),
            _ => Said::call("act", &json!({})),
        },
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let (top, other) = (Own::default(), Own::default());
    let delegate = Arc::clone(&other);
    let caller = agent(100_000).sub_agent(sub_agent("help", acting(&top, prompts)).describe("Helps.")).tool(
        "delegate",
        move |_: Nothing| {
            let other = delegate.get().unwrap().clone();
            async move { Ok(other.prompt("act").await?.text) }
        },
    );
    let session = runtime.open("top", &caller).await.unwrap();
    top.set(session.clone()).unwrap();
    other.set(runtime.open("other", &acting(&top, prompts)).await.unwrap()).unwrap();
    session.prompt("go").await.unwrap();
    assert_eq!(results(&session.context().await.unwrap()), [deadlock("top"), deadlock("top")]);
    // The same agent reaches the same session when that one does not wait.
    assert_eq!(other.get().unwrap().prompt("act").await.unwrap().text, "done");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_hook_before_a_compaction_that_prompts_its_session_is_told() {
    let script = greenroom_simulator::ByPurpose::new(Sequence(vec![]), Summariser::Obedient);
    let model = simulator(script, 20_000);
    let own = Own::default();
    let (session, told) = (Arc::clone(&own), Arc::new(OnceLock::new()));
    let noted = Arc::clone(&told);
    let runtime = builder(&model)
        .before_compact(move |_| {
            let (session, noted) = (session.get().unwrap().clone(), Arc::clone(&noted));
            async move {
                let refused = session.prompt("what is this about?").await.unwrap_err();
                let _ = noted.set(refused.to_string());
                BeforeCompact::Continue
            }
        })
        .start()
        .await
        .unwrap();
    let session = runtime.open("s", &agent(20_000)).await.unwrap();
    own.set(session.clone()).unwrap();
    for _ in 0..8 {
        session.prompt("some words ".repeat(300)).await.unwrap();
    }
    let compacted =
        session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
    assert_eq!(compacted.outcome, CompactionOutcome::Completed);
    assert_eq!(told.get(), Some(&deadlock("s")));
}

/// Both tools are at work before either prompts: the one that would close the circle gets an error, and the
/// other is answered.
#[tokio::test(start_paused = true)]
async fn of_two_sessions_whose_tools_prompt_each_other_one_is_told() {
    let script = |request: &SeenRequest, _: CallInfo| match request.messages.last() {
        Some(last) if last.role() == "tool" => Said::text(last.text()),
        Some(last) if last.text() == "act" => Said::call("act", &json!({})),
        _ => Said::text("answered"),
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let owns = [Own::default(), Own::default()];
    let of = |other: &Own| {
        let (other, both) = (Arc::clone(other), Arc::clone(&both));
        agent(100_000).tool("act", move |_: Nothing| {
            let (other, both) = (other.get().unwrap().clone(), Arc::clone(&both));
            async move {
                both.wait().await;
                Ok(other.prompt("and you?").await?.text)
            }
        })
    };
    for (number, id) in ["one", "two"].into_iter().enumerate() {
        owns[number].set(runtime.open(id, &of(&owns[1 - number])).await.unwrap()).unwrap();
    }
    let began = tokio::time::Instant::now();
    let [one, two] = owns.each_ref().map(|own| own.get().unwrap());
    let (one, two) = tokio::join!(one.prompt("act"), two.prompt("act"));
    let mut said = [one.unwrap().text, two.unwrap().text];
    said.sort();
    assert_eq!(said[0], "answered");
    assert!([deadlock("one"), deadlock("two")].contains(&said[1]), "{said:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_task_of_a_call_that_waits_for_its_own_session_is_told() {
    let action: Action = |session| {
        Box::pin(async move {
            let prompted = tokio::spawn(greenroom::within_call(async move { session.prompt("again").await }));
            prompted.await.unwrap().map(|reply| reply.text)
        })
    };
    let (result, users) = own(action).await;
    assert_eq!((result, users), (deadlock("s"), vec!["act".to_owned()]));
}

/// It cannot be known that a tool waits for a task that it spawned itself. Its limit ends it, and mentions
/// the possible cause.
#[tokio::test(start_paused = true)]
async fn the_limit_of_a_call_that_may_wait_for_itself_says_so() {
    let waited = "a prompt of this session waited for this run to end; a tool that awaits the reply to such a prompt in a \
                  task of its own waits for itself";
    let action: Action = |session| {
        Box::pin(async move {
            tokio::spawn(async move { session.prompt("again").await.map(|reply| reply.text) }).await.unwrap()
        })
    };
    for (call_s, run_s) in [(5, 100), (100, 5)] {
        let script = vec![Said::call("act", &json!({})), Said::text("first"), Said::text("second")];
        let model = simulator(Sequence(script), 100_000);
        let runtime = runtime(&model).await;
        let own = Own::default();
        let agent = acting(&own, action)
            .tool_timeout(Duration::from_secs(call_s))
            .run_timeout(Some(Duration::from_secs(run_s)));
        let session = runtime.open("s", &agent).await.unwrap();
        own.set(session.clone()).unwrap();
        let reply = session.prompt("act").await;
        if call_s < run_s {
            assert_eq!(reply.unwrap().text, "first");
            let result = results(&session.context().await.unwrap()).remove(0);
            assert!(
                result.starts_with(&format!("stopped after 5s, the limit for a call; {waited}")),
                "{result}"
            );
        } else {
            let stopped = reply.unwrap_err().to_string();
            assert!(
                stopped.contains(&format!("the run reached its time limit of 5 s; {waited}")),
                "{stopped}"
            );
        }
    }
}

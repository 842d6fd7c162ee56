//! A run from the prompt to the reply: tools, steers, aborts, typed answers.

use std::sync::Arc;
use std::time::Duration;

use greenroom::EventKind;
use greenroom::prelude::*;
use greenroom_kernel::StopReason;
use greenroom_simulator::{Answer as Said, Sequence};
use serde_json::json;

use crate::support::{agent, drain, names, runtime, simulator};

/// Adds two numbers.
#[derive(Deserialize, JsonSchema)]
struct Add {
    /// One.
    a: i64,
    /// The other.
    b: i64,
}

fn adder() -> Agent {
    agent(100_000).instructions("Add.").tool("add", |add: Add| async move { Ok((add.a + add.b).to_string()) })
}

#[tokio::test(start_paused = true)]
async fn a_turn_runs_its_tools_and_tells_each_step() {
    let script = vec![
        Said::call("add", &json!({"a":1,"b":2})).and_call("add", &json!({"a":3,"b":4})),
        Said::text("3 and 7"),
        Said::text("You are welcome."),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let mut events = runtime.subscribe(Filter::all());
    let session = runtime.open("sums", &adder()).await.unwrap();
    let reply = session.prompt("1+2 and 3+4?").await.unwrap();
    assert_eq!((reply.text.as_str(), reply.steps), ("3 and 7", 2));
    assert!(reply.context.tokens > 0 && reply.context.window == Some(100_000));
    assert_eq!(
        names(&mut events),
        [
            "message_end", "run_start", "step_start", "message_end", "tool_start", "tool_end", "tool_start",
            "tool_end", "message_end", "message_end", "step_end", "step_start", "message_end", "step_end",
            "run_end",
        ]
    );
    assert_eq!(session.prompt("Thanks.").await.unwrap().text, "You are welcome.");
    model.assert_clean();
    assert_eq!(model.calls(), 3);
    runtime.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn prompts_at_the_same_time_are_answered_one_after_another() {
    let model = simulator(Sequence(vec![Said::text("1"), Said::text("2"), Said::text("3")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("queue", &agent(100_000)).await.unwrap();
    let (a, b, c) = tokio::join!(session.prompt("a"), session.prompt("b"), session.prompt("c"));
    assert_eq!([a.unwrap().text, b.unwrap().text, c.unwrap().text], ["1", "2", "3"]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_abort_keeps_what_had_come_and_the_session_goes_on() {
    let slow = Said::text("one two three four five six seven eight nine ten")
        .with_pace(greenroom_simulator::Pace { chunks: 10, first_ms: 10, between_ms: 100 });
    let model = simulator(Sequence(vec![slow, Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("abort", &agent(100_000)).await.unwrap();
    let mut stream = session.prompt("count").stream();
    assert!(stream.next_text().await.is_some());
    session.abort();
    assert!(matches!(stream.reply().await, Err(Error::Aborted)));
    let context = session.context().await.unwrap();
    assert!(context.last().unwrap().text().starts_with("one"), "the partial text is kept");
    assert!(session.state().await.unwrap().is_unanswered);
    assert_eq!(session.prompt("go on").await.unwrap().text, "fine");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn dropping_a_prompt_cancels_its_turn() {
    let slow = Said::text("late").after_ms(60_000);
    let model = simulator(Sequence(vec![slow, Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("drop", &agent(100_000)).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_secs(1), session.prompt("a")).await;
    assert!(dropped.is_err());
    assert_eq!(session.prompt("b").await.unwrap().text, "fine");
    assert_eq!(model.in_flight(), 0);
    model.assert_clean();
}

/// The agent does not end where a steer joins, so a follow-up waits for the next end.
#[tokio::test(start_paused = true)]
async fn a_follow_up_waits_for_the_answer_to_a_steer() {
    let script = vec![Said::text("slow").after_ms(5_000), Said::text("steered"), Said::text("followed")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("both", &agent(100_000)).await.unwrap();
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("begin").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.follow_up("after").await.unwrap();
    session.steer("now").await.unwrap();
    assert_eq!(prompt.await.unwrap().unwrap().text, "followed");
    let said: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert_eq!(said, ["begin", "slow", "now", "steered", "after", "followed"]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_steer_joins_between_tool_results_and_the_next_call_and_a_follow_up_after_the_answer() {
    let script = vec![Said::call("wait", &json!({})), Said::text("steered"), Said::text("followed")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let waiting = agent(100_000).tool("wait", |_: Nothing| async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok("waited")
    });
    let session = runtime.open("steer", &waiting).await.unwrap();
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("wait").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.follow_up("after").await.unwrap();
    session.steer("now").await.unwrap();
    assert_eq!(prompt.await.unwrap().unwrap().text, "followed");
    let roles: Vec<String> = session
        .context()
        .await
        .unwrap()
        .iter()
        .map(|message| format!("{}:{}", message.role(), message.text()))
        .collect();
    assert_eq!(
        roles,
        [
            "user:wait", "assistant:", "tool:waited", "user:now", "assistant:steered", "user:after",
            "assistant:followed"
        ]
    );
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_a_type() {
    let no = || Said::text("no idea");
    let script = vec![Said::text(r#"{"a":1,"b":2}"#), no(), no(), no()];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("typed", &agent(100_000)).await.unwrap();
    let add = session.prompt("two numbers").output::<Add>().await.unwrap();
    assert_eq!((add.value.a, add.value.b, add.reply.steps), (1, 2, 1));
    assert!(matches!(session.prompt("again").output::<Add>().await, Err(Error::Output { .. })));
}

/// A truncated answer counts as an answer, but is never taken for a whole one.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_cut_by_a_limit_says_so() {
    for (stop, reason) in [
        (StopReason::Stop, None),
        (StopReason::Length, Some("output limit")),
        (StopReason::ContentFilter, Some("content filter")),
    ] {
        let model = simulator(Sequence(vec![Said::text("the first half of").with_finish(stop)]), 100_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("cut", &agent(100_000)).await.unwrap();
        let mut events = session.subscribe();
        let reply = session.prompt("tell me").once("k").await.unwrap();
        assert_eq!((reply.text.as_str(), reply.stop), ("the first half of", stop));
        // Its result read from the log is the same.
        assert_eq!(session.prompt("tell me").once("k").await.unwrap(), reply);
        let warning = |event: &Arc<Event>| {
            if let EventKind::Warning { message } = &event.kind { Some(message.clone()) } else { None }
        };
        let warnings: Vec<String> = drain(&mut events).iter().filter_map(warning).collect();
        assert_eq!(warnings.len(), usize::from(reason.is_some()), "{stop:?}: {warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains(reason.unwrap_or_default())), "{warnings:?}");
        model.assert_clean();
    }
}

/// Input for the end of a run whose last permitted step is under way starts a run of its own.
#[tokio::test(start_paused = true)]
async fn input_in_the_last_permitted_step_starts_its_own_run() {
    let model = crate::support::answers_after(60_000, 100_000);
    let runtime = runtime(&model).await;
    let limits = RunLimits { steps_max: 1, ..RunLimits::default() };
    let session = runtime.open("s", &agent(100_000).limits(limits)).await.unwrap();
    let run = session.prompt("a").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (followed, steered) = (session.follow_up("b").await.unwrap(), session.steer("c").await.unwrap());
    let reply = run.reply().await.unwrap();
    assert_eq!((reply.text.as_str(), reply.steps), ("to a", 1));
    for (input, text) in [(followed, "to b"), (steered, "to c")] {
        let reply = input.reply().await.unwrap();
        assert_eq!((reply.text.as_str(), reply.steps), (text, 1));
    }
    assert_eq!(model.calls(), 3);
    let none = RunLimits { steps_max: 0, ..RunLimits::default() };
    let session = runtime.open("none", &agent(100_000).limits(none)).await.unwrap();
    let stopped = session.prompt("a").await;
    assert!(matches!(&stopped, Err(Error::Stopped { reason }) if reason.contains("0 steps")), "{stopped:?}");
    assert_eq!(model.calls(), 3);
    model.assert_clean();
}

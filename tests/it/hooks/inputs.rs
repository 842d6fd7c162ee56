//! Guards on input: refused input is never recorded, replaced input only in its replaced form.

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::{InputKind, InputVerdict};
use greenroom_simulator::{Answer as Said, Echo, Pace, Sequence};
use serde_json::json;

use super::Told;
use crate::support::{agent, quiet_injected_panics, runtime, simulator};

/// Returns an agent that refuses input with "no" in it, removes telephone numbers, and panics at "bad".
fn guarded() -> Agent {
    agent(100_000).guard_input(|input| async move {
        let text = input.prompt.text();
        assert!(!text.contains("bad"), "injected: no verdict");
        if text.contains("no") {
            return InputVerdict::Refuse(format!("this {} has a no", input.kind));
        }
        match text.contains("555") {
            true => InputVerdict::Replace(text.replace("555", "[number]").into()),
            false => InputVerdict::Accept,
        }
    })
}

fn refusal(reason: &str) -> String {
    format!("session s refused the input: {reason}")
}

#[tokio::test(start_paused = true)]
async fn refused_input_is_recorded_nowhere_and_replaced_input_as_it_was_replaced() {
    quiet_injected_panics();
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &guarded()).await.unwrap();
    let refused = session.prompt("no").once("key-1").await.unwrap_err();
    assert_eq!(refused.to_string(), refusal("this prompt has a no"));
    assert!(refused.is_invalid_request() && !refused.is_retryable());
    assert_eq!(session.steer("no").await.unwrap_err().to_string(), refusal("this steer has a no"));
    assert_eq!(session.follow_up("no").await.unwrap_err().to_string(), refusal("this follow_up has a no"));
    let failed = session.prompt("bad").await.unwrap_err();
    assert_eq!(failed.to_string(), refusal("a guard failed: it panicked: injected: no verdict"));
    let mut stream = session.prompt("no").stream();
    assert!(matches!(stream.next().await, Some(Err(Error::InputRefused { .. }))));
    assert!(matches!(session.prompt("no").start().await, Err(Error::InputRefused { .. })));
    assert_eq!(runtime.summary("s").await.unwrap(), None, "nothing is in the log");
    assert_eq!(model.calls(), 0);
    // Its key was not used, and the log has the replaced form.
    let reply = session.prompt("call 555").once("key-1").await.unwrap();
    assert_eq!(reply.text, "call [number]");
    let log = format!("{:?}", runtime.replay("s", 0).await.unwrap());
    assert!(!log.contains("555"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn guards_are_asked_in_order_about_what_the_one_before_left_images_included() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let picture = Image::new(b"GIF89a").unwrap();
    let two = guarded().guard_input(|input| async move {
        let images = input.prompt.images().count();
        InputVerdict::Replace(format!("{} and {images} images", input.prompt.text()).into())
    });
    let session = runtime.open("s", &two).await.unwrap();
    let reply = session.prompt(Prompt::from("see").image(picture)).await.unwrap();
    assert_eq!(reply.text, "see and 1 images");
    let nothing = agent(100_000).guard_input(|_| async { InputVerdict::Replace(" ".into()) });
    let session = runtime.open("t", &nothing).await.unwrap();
    assert!(matches!(session.prompt("see").await, Err(Error::EmptyPrompt)));
}

/// Input that joins a run in progress is checked as well, with access to the agent's state.
#[tokio::test(start_paused = true)]
async fn steers_and_follow_ups_are_judged_where_they_are_said() {
    struct Seen(std::sync::Mutex<Vec<(InputKind, String)>>);
    let said = Said::text("first").with_pace(Pace { chunks: 2, first_ms: 1_000, between_ms: 1_000 });
    let model = simulator(Sequence(vec![said, Said::text("second")]), 100_000);
    let runtime = runtime(&model).await;
    let seen = Arc::new(Seen(std::sync::Mutex::default()));
    let noting = guarded().state(Arc::clone(&seen)).guard_input(|input| async move {
        match input.state::<Arc<Seen>>() {
            Ok(seen) => seen.0.lock().unwrap().push((input.kind, input.prompt.text())),
            Err(missing) => return InputVerdict::Refuse(missing.to_string()),
        }
        InputVerdict::Accept
    });
    let session = runtime.open("s", &noting).await.unwrap();
    let prompted = session.clone();
    let prompt = tokio::spawn(async move { prompted.prompt("go").await });
    while session.state().await.unwrap().status != Status::Working {
        tokio::task::yield_now().await;
    }
    session.follow_up("then 555").await.unwrap();
    assert!(matches!(session.steer("no").await, Err(Error::InputRefused { .. })));
    assert_eq!(prompt.await.unwrap().unwrap().text, "second");
    let expected = [(InputKind::Prompt, "go".to_owned()), (InputKind::FollowUp, "then [number]".to_owned())];
    assert_eq!(*seen.0.lock().unwrap(), expected);
    let users: Vec<String> = session
        .context()
        .await
        .unwrap()
        .iter()
        .filter(|message| message.role() == "user")
        .map(|message| message.text())
        .collect();
    assert_eq!(users, ["go", "then [number]"]);
    model.assert_clean();
}

/// An abort and a time limit also apply to a prompt that is still being checked.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_still_judged_can_be_aborted_and_run_out_of_time() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let judging = Arc::new(tokio::sync::Notify::new());
    let began = Arc::clone(&judging);
    let slow = agent(100_000).guard_input(move |_| {
        began.notify_one();
        async {
            tokio::time::sleep(std::time::Duration::from_secs(30)).await;
            InputVerdict::Accept
        }
    });
    let session = runtime.open("s", &slow).await.unwrap();
    let asked = tokio::time::Instant::now();
    let late = session.prompt("go").timeout(std::time::Duration::from_secs(5)).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    assert!(asked.elapsed() < std::time::Duration::from_secs(6), "{:?}", asked.elapsed());
    assert_eq!(runtime.summary("s").await.unwrap(), None, "nothing was said");
    judging.notified().await;
    let prompted = session.clone();
    let prompt = tokio::spawn(async move { prompted.prompt("go").await });
    judging.notified().await;
    session.abort();
    assert!(matches!(prompt.await.unwrap(), Err(Error::Aborted)));
    assert_eq!(model.calls(), 0);
    assert_eq!(session.prompt("and now?").await.unwrap().text, "and now?");
}

/// The task of an agent called as a tool is input like any other; its caller reads the refusal.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_called_guards_its_task() {
    let script = vec![Said::call("help", &json!({ "task": "no" })), Said::text("done")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let caller = agent(100_000).sub_agent(sub_agent("help", guarded()).describe("Helps."));
    let session = runtime.open("s", &caller).await.unwrap();
    session.prompt("go").await.unwrap();
    let told = Told::default();
    let context = session.context().await.unwrap();
    told.lock().unwrap().extend(context.iter().filter(|it| it.role() == "tool").map(|it| it.text()));
    let told = told.lock().unwrap();
    assert!(told[0].ends_with("refused the input: this prompt has a no"), "{told:?}");
    assert_eq!(model.calls(), 2);
}

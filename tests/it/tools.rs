//! Tools as programs write them: arguments, state, results, and concurrency.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{ConfigError, Redactor};
use greenroom_kernel::message::Message;
use greenroom_provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{Answer as Said, Sequence};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Barrier;

use crate::support::{agent, builder, runtime, simulator, store};

mod waiting;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Returns the newest tool results sent to the model, each as one text.
fn results(messages: &[Arc<Message>]) -> Vec<String> {
    let results = messages.iter().filter(|message| message.role() == "tool");
    results.map(|message| message.text()).collect()
}

#[tokio::test]
async fn a_tool_without_named_arguments_is_refused_when_a_session_is_opened() {
    let model = simulator(Sequence(vec![]), 100_000);
    let runtime = runtime(&model).await;
    let wrong = agent(100_000).tool("weather", |city: String| async move { Ok(city) });
    let refused = runtime.open("s", &wrong).await.unwrap_err();
    assert!(matches!(refused, Error::Config(ConfigError::Tool { .. })), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "the tool `weather` takes a string, but models call tools with named arguments: use a struct with a field \
         for each of them"
    );
    // The same tool in its intended form.
    #[derive(Deserialize, JsonSchema)]
    struct Weather {
        city: String,
    }
    let right = agent(100_000).tool("weather", |asked: Weather| async move { Ok(asked.city) });
    runtime.open("s", &right).await.unwrap();
}

#[tokio::test]
async fn two_tools_of_one_name_are_refused_when_a_session_is_opened() {
    let model = simulator(Sequence(vec![]), 100_000);
    let runtime = runtime(&model).await;
    let say = |word: &'static str| move |_: Nothing| async move { Ok(word) };
    let registry = |word| {
        let mut registry = greenroom_tools::Registry::new();
        registry.insert(tool("say", say(word))).unwrap();
        registry
    };
    let two = registry("two");
    for (case, wrong) in [
        ("two functions", agent(100_000).tool("say", say("one")).tool("say", say("two"))),
        ("a registry, then a function", agent(100_000).tools(&two).tool("say", say("one"))),
        ("a function, then a registry", agent(100_000).tool("say", say("one")).tools(&two)),
        ("two registries", agent(100_000).tools(&registry("one")).tools(&two)),
    ] {
        let refused = runtime.open("s", &wrong).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Config(ConfigError::DuplicateTool { name }) if name == "say"),
            "{case}"
        );
        assert!(refused.to_string().contains("two tools named \"say\""), "{case}: {refused}");
    }
    // The same registry twice does not add a second tool.
    runtime.open("s", &agent(100_000).tools(&two).tools(&two)).await.unwrap();
}

#[tokio::test]
async fn the_tools_of_an_agent_share_its_state_and_those_of_another_have_their_own() {
    struct Stock(std::sync::Mutex<u32>);
    let take = |_: Nothing, context: ToolContext| async move {
        let stock = context.state::<Stock>()?;
        let mut left = stock.0.lock().map_err(|_| "the stock is damaged")?;
        *left = left.checked_sub(1).ok_or("nothing is left")?;
        Ok(*left)
    };
    let helper = agent(100_000).tool("take", take);
    let keeper = agent(100_000)
        .state(Stock(std::sync::Mutex::new(1)))
        .tool("take", take)
        .tool("take_more", take)
        .sub_agent(sub_agent("help", helper).describe("Helps."));
    let model = simulator(
        greenroom_simulator::Function(
            |request: &greenroom_simulator::SeenRequest, info: greenroom_simulator::CallInfo| match (
                request.session_key(),
                info.session_call,
            ) {
                ("s", 0) => Said::call("take", &json!({})),
                ("s", 1) => Said::call("take_more", &json!({})),
                ("s", 2) => Said::call("help", &json!({ "task": "take one" })),
                ("s", _) => Said::text("done"),
                (_, 0) => Said::call("take", &json!({})),
                (_, _) => Said::text(request.messages.last().map(|last| last.text()).unwrap_or_default()),
            },
        ),
        100_000,
    );
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &keeper).await.unwrap();
    session.prompt("take").await.unwrap();
    let results = results(&session.context().await.unwrap());
    assert_eq!(results[..2], ["0", "nothing is left"]);
    let stock = std::any::type_name::<Stock>();
    let missing = format!("the agent has no state of type `{stock}`; give it one with `Agent::state`");
    assert_eq!(results[2], missing, "an agent that is called as a tool has its own");
    model.assert_clean();
}

/// Two calls that wait for each other end only if both run; two that must not overlap report it if they do.
#[tokio::test(start_paused = true)]
async fn neighbouring_calls_of_read_only_tools_run_at_the_same_time_and_others_do_not() {
    let together = Arc::new(Barrier::new(2));
    let alone = Arc::new(tokio::sync::Mutex::new(()));
    let meeting = agent(100_000)
        .add_tool(
            tool("meet", move |_: Nothing| {
                let together = Arc::clone(&together);
                async move {
                    together.wait().await;
                    Ok("met")
                }
            })
            .read_only()
            .timeout(Duration::from_secs(5)),
        )
        .tool("change", move |_: Nothing| {
            let alone = Arc::clone(&alone);
            async move {
                let _alone = alone.try_lock().map_err(|_| "another one runs")?;
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok("changed")
            }
        });
    let all = ["meet", "meet", "change", "change", "meet"];
    let calls = all.iter().fold(Said::default(), |said, name| said.and_call(*name, &json!({})));
    let model = simulator(Sequence(vec![calls, Said::text("done")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &meeting).await.unwrap();
    session.prompt("meet").await.unwrap();
    let mut results = results(&session.context().await.unwrap());
    let last = results.pop().unwrap();
    assert_eq!(results, ["met", "met", "changed", "changed"]);
    // The last one has no neighbour, so nothing releases it.
    assert!(last.starts_with("stopped after 5s, the limit for a call"), "{last}");
    model.assert_clean();
}

/// Over HTTP, an image returned by a tool and one in a prompt have the form that the provider expects.
#[tokio::test]
async fn images_of_tools_and_prompts_reach_the_model() {
    let png = b"\x89PNG\r\n\x1a\nchart";
    let charts = agent(100_000)
        .tool("chart", move |_: Nothing| async move { Ok(ToolOutput::text("rain").image(Image::new(png)?)) })
        .tool("broken", |_: Nothing| async move { Ok(ToolOutput::default().image(Image::new("no image")?)) });
    let calls = Said::call("chart", &json!({})).and_call("broken", &json!({}));
    let model = simulator(Sequence(vec![calls, Said::text("wet")]), 100_000);
    let server = model.serve().await.unwrap();
    let options = ServerOptions { base_url: server.base_url(), ..ServerOptions::default() };
    let provider = Arc::new(HttpProvider::new(options).unwrap());
    let runtime = Runtime::builder().provider(provider).engine(store()).start().await.unwrap();
    let session = runtime.open("s", &charts).await.unwrap();
    let gif = Image::new(b"GIF89asky").unwrap();
    session.prompt(Prompt::from("And this?").image(gif.clone())).await.unwrap();
    let images = |message: &Arc<Message>| -> Vec<Image> {
        let Message::User(blocks) = &**message else { return Vec::new() };
        let image = |block: &greenroom_kernel::Block| match block {
            greenroom_kernel::Block::Image(image) => Some(image.clone()),
            greenroom_kernel::Block::Text(_) | _ => None,
        };
        blocks.iter().filter_map(image).collect()
    };
    let last = model.requests().pop().unwrap().request;
    let sent: Vec<Image> = last.messages.iter().flat_map(images).collect();
    assert_eq!(sent, [gif, Image::new(png).unwrap()]);
    assert_eq!(
        results(&last.messages),
        ["rain\n[1 image: in the user message after the tool results]", "not a PNG, JPEG, GIF or WebP image"]
    );
    model.assert_clean();
}

/// A model that guesses a secret, or repeats what stands in its place, must not have something else run.
#[tokio::test]
async fn a_call_that_needs_exact_arguments_does_not_run_where_a_secret_was_replaced() {
    #[derive(Deserialize, JsonSchema)]
    struct Command {
        text: String,
    }
    for is_exact in [true, false] {
        let says = |text: &str| Said::call("do", &json!({ "text": text }));
        let texts = ["rm canary-2026x.log", "rm [redacted:CANARY].log", "rm other.log"];
        let script = texts.iter().map(|text| says(text)).chain([Said::text("done")]).collect();
        let model = simulator(Sequence(script), 100_000);
        let redactor = Redactor::default();
        redactor.add([("CANARY".to_owned(), "canary-2026x".to_owned())]);
        let runtime = builder(&model).redactor(redactor).start().await.unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ran);
        let command = tool("do", move |command: Command| {
            seen.lock().push(command.text);
            async { Ok("done") }
        });
        let command = if is_exact { command.needs_exact_arguments() } else { command };
        let session = runtime.open("s", &agent(100_000).add_tool(command)).await.unwrap();
        session.prompt("clean up").await.unwrap();
        let expected: &[&str] = if is_exact { &["rm other.log"] } else { &texts[1..] };
        let ran = ran.lock().clone();
        assert_eq!(
            ran.iter().map(String::as_str).collect::<BTreeSet<_>>(),
            expected.iter().copied().collect()
        );
        let results = results(&session.context().await.unwrap());
        let refused =
            results.iter().filter(|text| text.contains("[redacted:CANARY], which stands for a secret"));
        assert_eq!(refused.count(), if is_exact { 2 } else { 0 }, "{results:?}");
    }
}

/// Of a call that had not begun when its run was aborted, the model reads that. Of one that was at work, nobody knows
/// whether it took effect.
#[tokio::test(start_paused = true)]
async fn a_call_that_an_abort_kept_from_beginning_was_not_run() {
    let script = vec![
        Said::call("look", &json!({})).and_call("slow", &json!({})).and_call("pay", &json!({})),
        Said::text("done"),
    ];
    for by_timeout in [false, true] {
        let model = simulator(Sequence(script.clone()), 100_000);
        let runtime = runtime(&model).await;
        let slow = |_: Nothing| async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            Ok("slow")
        };
        let agent = agent(100_000)
            .add_tool(tool("look", |_: Nothing| async move { Ok("seen") }).read_only())
            .tool("slow", slow)
            .tool("pay", |_: Nothing| async move { Ok("paid") });
        let agent = if by_timeout { agent.run_timeout(Some(Duration::from_secs(10))) } else { agent };
        let session = runtime.open("s", &agent).await.unwrap();
        let run = session.prompt("go").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let steered = session.steer("afterwards").await.unwrap();
        if !by_timeout {
            run.abort();
        }
        assert!(run.reply().await.is_err());
        let results = results(&session.context().await.unwrap());
        let not_known =
            "The call was interrupted before it gave a result. Whether it took effect is not known.";
        let not_begun = "The call was not run: it had not begun when the run was cut off.";
        assert_eq!(results, ["seen", not_known, not_begun], "by timeout: {by_timeout}");
        assert_eq!(steered.reply().await.unwrap().text, "done", "input starts afterwards");
        model.assert_clean();
    }
}

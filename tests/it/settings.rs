//! Model settings, from the agent, the runtime and the prompt to the server.

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom::{ConfigError, ReasoningEffort, ToolChoice};
use greenroom_simulator::{Answer as Said, ByPurpose, Echo, Fault, Sequence, Summariser};
use serde_json::json;

use crate::compaction_fixtures::{asked, chat, keep, opened, runs, settings as compaction_settings};
use crate::support::{agent, builder, runtime, simulator, store};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn looker(agent: Agent) -> Agent {
    agent.tool("look", |_: Nothing| async move { Ok("it rains") })
}

/// End to end: over HTTP, parsed by an independent server.
#[tokio::test]
async fn they_are_merged_and_come_to_the_server_as_it_knows_them() {
    let model = simulator(Sequence(vec![Said::text("one"), Said::text("two")]), 100_000);
    let server = model.serve().await.unwrap();
    let provider =
        HttpProvider::new(ServerOptions { base_url: server.base_url(), ..Default::default() }).unwrap();
    let runtime = Runtime::builder()
        .provider(Arc::new(provider))
        .engine(store())
        .settings_for("simulated", ModelSettings::new().top_p(0.5).seed(1))
        .settings_for("another", ModelSettings::new().seed(99))
        .start()
        .await
        .unwrap();
    let agent = looker(agent(100_000))
        .settings(
            ModelSettings::new()
                .temperature(0.1)
                .seed(0)
                .parallel_tool_calls(false)
                .reasoning_effort(ReasoningEffort::Low)
                .extra("service_tier", "flex"),
        )
        .settings_for("simulated", ModelSettings::new().seed(2))
        .output_tokens_max(700);
    let session = runtime.open("s", &agent).await.unwrap();
    session.prompt("a").await.unwrap();
    let of_prompt = ModelSettings::new()
        .temperature(0.9)
        .tool_choice(ToolChoice::Tool("look".into()))
        .stop(["END", "\n\n"])
        .output_tokens_max(90)
        .extra("top_k", 7);
    session.prompt("b").settings(of_prompt).await.unwrap();
    let sent: Vec<ModelSettings> =
        runs(&model).into_iter().map(|logged| logged.request.settings.clone()).collect();
    let of_agent = ModelSettings::new()
        .temperature(0.1)
        .top_p(0.5)
        .reasoning_effort(ReasoningEffort::Low)
        .parallel_tool_calls(false)
        .seed(2)
        .output_tokens_max(700)
        .extra("service_tier", "flex");
    assert_eq!(sent[0], of_agent);
    let merged = ModelSettings { temperature: Some(0.9), output_tokens_max: Some(90), ..of_agent.clone() }
        .tool_choice(ToolChoice::Tool("look".into()))
        .stop(["END", "\n\n"])
        .extra("top_k", 7);
    assert_eq!(sent[1], merged, "and the next prompt has the agent's again");
    model.assert_clean();
}

/// A model that must call a tool in every step could never answer.
#[tokio::test(start_paused = true)]
async fn a_forced_tool_call_is_forced_once_a_run() {
    let script = vec![Said::call("look", &json!({})), Said::text("it rains")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let agent =
        looker(agent(100_000)).settings(ModelSettings::new().tool_choice(ToolChoice::Required).seed(3));
    let session = runtime.open("s", &agent).await.unwrap();
    assert_eq!(session.prompt("look").await.unwrap().text, "it rains");
    let choices: Vec<_> = runs(&model)
        .into_iter()
        .map(|logged| (logged.request.settings.tool_choice.clone(), logged.request.settings.seed))
        .collect();
    assert_eq!(choices, [(Some(ToolChoice::Required), Some(3)), (None, Some(3))]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_no_server_takes_is_refused_before_anything_is_recorded() {
    let model = simulator(Sequence(vec![Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &looker(agent(100_000))).await.unwrap();
    for (settings, text) in [
        (ModelSettings::new().temperature(3.0), "temperature: must be 0 to 2"),
        (ModelSettings::new().extra("messages", json!([])), "extra.messages: cannot be set here"),
        (
            ModelSettings::new().tool_choice(ToolChoice::Tool("lok".into())),
            "tool_choice: there is no tool \"lok\"",
        ),
    ] {
        let error = session.prompt("a").settings(settings.clone()).await.unwrap_err();
        assert!(matches!(&error, Error::Config(ConfigError::ModelSettings(_))), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
        let refused =
            runtime.open("t", &looker(agent(100_000)).settings(settings.clone())).await.unwrap_err();
        assert!(refused.to_string().contains(text), "{refused}");
        if settings.tool_choice.is_none() {
            let of_model = looker(agent(100_000)).settings_for("another", settings.clone());
            assert!(runtime.open("t", &of_model).await.is_err());
            assert!(builder(&model).settings_for("another", settings).start().await.is_err());
        }
    }
    assert_eq!(session.state().await.unwrap().entries, 0);
    session.prompt("a").settings(ModelSettings::new().tool_choice(ToolChoice::Auto)).await.unwrap();
}

/// The failure names the setting, and the session continues without it.
#[tokio::test(start_paused = true)]
async fn a_setting_that_a_provider_refuses_is_named() {
    let body = json!({ "error": {
        "message": "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.",
        "type": "invalid_request_error", "param": "temperature", "code": "unsupported_value",
    } });
    let refused = Fault::Http { status: 400, headers: Vec::new(), body: body.to_string() };
    let model = simulator(Sequence(vec![Said::text("x").with_fault(refused), Said::text("fine")]), 100_000);
    let server = model.serve().await.unwrap();
    let provider =
        HttpProvider::new(ServerOptions { base_url: server.base_url(), ..Default::default() }).unwrap();
    let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let error = session.prompt("a").settings(ModelSettings::new().temperature(0.2)).await.unwrap_err();
    let Error::Model(failure) = &error else { panic!("{error:?}") };
    assert!(
        failure.message.contains("the server refuses the setting `temperature`: leave it out"),
        "{failure}"
    );
    assert_eq!(failure.status, Some(400));
    assert_eq!(session.prompt("b").await.unwrap().text, "fine");
}

/// A stop text would truncate a summary, and a forced tool is not offered to it.
#[tokio::test(start_paused = true)]
async fn summaries_take_what_does_not_break_them() {
    let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let of_agent = ModelSettings::new()
        .temperature(0.3)
        .reasoning_effort(ReasoningEffort::Minimal)
        .extra("service_tier", "flex")
        .stop(["#"])
        .seed(4)
        .parallel_tool_calls(true)
        .tool_choice(ToolChoice::Required)
        .output_tokens_max(1_100);
    let all = looker(agent(100_000))
        .settings(of_agent)
        .settings_for("summariser", ModelSettings::new().top_p(0.7).seed(5));
    let session = opened(&runtime, "s", &all, chat(12, 300)).await;
    assert!(session.compact(keep(500)).await.unwrap().is_installed());
    let other =
        all.compaction(compaction_settings(|settings| settings.summary_model = Some("summariser".into())));
    let session = opened(&runtime, "t", &other, chat(12, 300)).await;
    assert!(session.compact(keep(500)).await.unwrap().is_installed());
    let sent: Vec<ModelSettings> =
        asked(&model).into_iter().map(|logged| logged.request.settings.clone()).collect();
    let without_limit = |settings: &ModelSettings| {
        let limit = settings.output_tokens_max;
        assert!(limit.is_some_and(|tokens| (1_000..=1_100).contains(&tokens)), "as is set: {limit:?}");
        ModelSettings { output_tokens_max: None, ..settings.clone() }
    };
    let own = ModelSettings::new()
        .temperature(0.3)
        .reasoning_effort(ReasoningEffort::Minimal)
        .extra("service_tier", "flex");
    assert_eq!(without_limit(&sent[0]), own);
    // Another model gets only its own settings.
    assert_eq!(without_limit(sent.last().unwrap()), ModelSettings::new().top_p(0.7));
    model.assert_clean();
}

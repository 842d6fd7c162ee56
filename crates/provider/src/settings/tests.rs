//! Settings: validation, merging, and which setting a server's refusal is about.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

#[test]
fn a_value_that_no_server_takes_is_refused_by_its_name() {
    let settings = ModelSettings::new;
    for (wrong, name) in [
        (settings().temperature(2.1), "temperature: must be 0 to 2"),
        (settings().temperature(f64::NAN), "temperature: must be 0 to 2"),
        (settings().top_p(0.0), "top_p: must be above 0"),
        (settings().top_p(1.01), "top_p: must be above 0"),
        (settings().output_tokens_max(0), "output_tokens_max: must be at least 1"),
        (settings().stop(["a", ""]), "stop: must not contain an empty text"),
        (settings().extra("model", "other"), "extra.model: cannot be set here: the agent names its model"),
        (settings().extra("messages", Value::Null), "extra.messages"),
        (settings().extra("stream", false), "extra.stream: "),
        (settings().extra("tools", Value::Null), "extra.tools"),
        (settings().extra("max_tokens", 5), "extra.max_tokens: cannot be set here: set output_tokens_max"),
        (settings().extra("temperature", 0.1), "extra.temperature"),
    ] {
        let text = wrong.check().unwrap_err().to_string();
        assert!(text.starts_with(name), "{text}");
    }
    let edges = settings().temperature(2.0).top_p(1.0).output_tokens_max(1).stop(["\n"]).extra("top_k", 4);
    assert_eq!(edges.check(), Ok(()));
}

#[test]
fn what_is_said_later_wins_and_the_rest_stays() {
    let agent = ModelSettings::new().temperature(0.1).seed(1).stop(["END"]).extra("a", 1).extra("b", 1);
    let prompt = ModelSettings::new().temperature(0.9).top_p(0.5).extra("b", 2);
    let merged = agent.clone().merged(prompt);
    let wanted =
        ModelSettings::new().temperature(0.9).top_p(0.5).seed(1).stop(["END"]).extra("a", 1).extra("b", 2);
    assert_eq!(merged, wanted);
    assert_eq!(agent.clone().merged(ModelSettings::new()), agent);
    assert_eq!(ModelSettings::new().merged(agent.clone()), agent);
    let all = ModelSettings::new()
        .temperature(0.3)
        .top_p(0.4)
        .reasoning_effort(ReasoningEffort::XHigh)
        .tool_choice(ToolChoice::Required)
        .parallel_tool_calls(false)
        .stop(["x"])
        .seed(-3)
        .output_tokens_max(9)
        .extra("k", "v");
    assert_eq!(ModelSettings::new().merged(all.clone()), all);
    assert_eq!(all.clone().merged(agent).reasoning_effort, Some(ReasoningEffort::XHigh));
    let summary = all.for_summary();
    let kept = ModelSettings::new()
        .temperature(0.3)
        .top_p(0.4)
        .reasoning_effort(ReasoningEffort::XHigh)
        .extra("k", "v");
    assert_eq!(summary, kept);
}

#[test]
fn they_are_read_as_they_are_written() {
    let text =
        r#"{"temperature":0.5,"reasoning_effort":"minimal","tool_choice":"look","stop":["a"],"seed":7}"#;
    let read: ModelSettings = serde_json::from_str(text).unwrap();
    assert_eq!(read.tool_choice, Some(ToolChoice::Tool("look".into())));
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    assert!(
        serde_json::from_str::<ModelSettings>(r#"{"temprature":1}"#).is_err(),
        "a typo is not passed over"
    );
    for effort in ReasoningEffort::ALL {
        assert_eq!(effort.as_str().parse(), Ok(effort));
        assert_eq!(serde_json::to_value(effort).unwrap(), effort.as_str());
    }
    assert!("higher".parse::<ReasoningEffort>().unwrap_err().contains("none, minimal, low"));
}

#[test]
fn a_refusal_is_about_the_setting_that_it_names_if_that_was_sent() {
    let sent = ModelSettings::new()
        .temperature(0.2)
        .reasoning_effort(ReasoningEffort::High)
        .stop(["x"])
        .extra("top_k", 5);
    let openai = |param: &str, message: &str| {
        serde_json::json!({ "error": {
            "message": message, "type": "invalid_request_error", "param": param, "code": "unsupported_parameter",
        } })
        .to_string()
    };
    for (body, setting) in [
        (
            openai("temperature", "Unsupported value: 'temperature' does not support 0.2."),
            Some("temperature"),
        ),
        (openai("reasoning.effort", "Unsupported parameter."), Some("reasoning_effort")),
        (openai("stop[0]", "Too long."), Some("stop")),
        // Not one that was sent.
        (openai("top_p", "Unsupported parameter: 'top_p'."), None),
        (openai("messages[3]", "Invalid content."), None),
        (
            r#"{"error":"Unrecognized request argument supplied: reasoning_effort"}"#.into(),
            Some("reasoning_effort"),
        ),
        (
            r#"{"detail":[{"loc":["body","top_k"],"msg":"extra fields not permitted"}]}"#.into(),
            Some("extra.top_k"),
        ),
        // A word of a sentence is not a name.
        (r#"{"error":{"message":"we had to stop here"}}"#.into(), None),
        ("not json".into(), None),
    ] {
        assert_eq!(sent.refused(&body).as_deref(), setting, "{body}");
    }
}

//! The first minutes with a vendor's model: which provider is chosen, with which key, over which API.

use greenroom_simulator::{Answer, Echo};

use super::support::{Model, Place};

/// A configuration that leads a built-in provider to a simulated server.
fn leads(name: &str, api: &str, url: &str) -> Vec<String> {
    let set = |key: &str, value: &str| ["--set".to_owned(), format!("providers.{name}.{key}={value}")];
    let is_usual = (name == "openai") == (api == "chat");
    [set("base_url", url).to_vec(), if is_usual { Vec::new() } else { set("api", api).to_vec() }].concat()
}

#[test]
fn a_model_finds_its_vendor_and_its_key() {
    let model = Model::new(Echo, |options| options.require_key = Some("sk-vendor".to_owned()));
    let place = Place::new();
    for (asked, name, api, variable) in [
        ("claude-opus-4-7", "anthropic", "anthropic", "ANTHROPIC_API_KEY"),
        ("gemini-2.5-pro", "google", "gemini", "GEMINI_API_KEY"),
        ("gpt-5.5", "openai", "responses", "OPENAI_API_KEY"),
    ] {
        let flags = leads(name, api, &model.url());
        let mut arguments = vec!["run", "--no-tools", "--model", asked, "-p", "Say hi."];
        arguments.extend(flags.iter().map(String::as_str));
        let ran = place.command(&arguments).env(variable, "sk-vendor").output().unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{asked}: {stderr}");
        assert!(String::from_utf8_lossy(&ran.stdout).contains("Say hi."), "{asked}");
        if name == "openai" {
            continue;
        }
        // A provider that is chosen stays chosen.
        arguments.extend(["--provider", "openai"]);
        let ran = place.command(&arguments).env(variable, "sk-vendor").output().unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && stderr.contains("OPENAI_API_KEY"), "{asked}: {stderr}");
    }
    assert!(model.simulator.requests().len() == 3, "one request was sent for each");
}

/// Every variable that usually has a vendor's key is found. A proxy that nobody serves keeps the test in this machine.
#[test]
fn each_usual_variable_of_a_vendor_serves() {
    let place = Place::new();
    for (model, variable, is_found) in [
        ("gemini-2.5-pro", "GEMINI_API_KEY", true),
        ("gemini-2.5-pro", "GOOGLE_API_KEY", true),
        ("gemini-2.5-pro", "GOOGLE_GENERATIVE_AI_API_KEY", true),
        ("gemini-2.5-pro", "OPENAI_API_KEY", false),
        ("claude-opus-4-7", "ANTHROPIC_API_KEY", true),
        ("claude-opus-4-7", "GOOGLE_API_KEY", false),
        ("gpt-5.5", "OPENAI_API_KEY", true),
        ("gpt-5.5", "ANTHROPIC_API_KEY", false),
    ] {
        let arguments =
            ["run", "--no-tools", "--model", model, "--set", "limits.retries_max=0", "-p", "Say hi."];
        let mut command = place.command(&arguments);
        let ran =
            command.env("HTTPS_PROXY", "http://127.0.0.1:1").env(variable, "sk-vendor").output().unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(stderr.contains("cannot reach https://"), is_found, "{model} {variable}: {stderr}");
        assert_eq!(stderr.contains("No API key found"), !is_found, "{model} {variable}: {stderr}");
    }
}

#[test]
fn without_a_key_it_says_what_can_be_done() {
    let place = Place::new();
    for (model, variable) in [
        ("gpt-5.5", "OPENAI_API_KEY"),
        ("claude-opus-4-7", "ANTHROPIC_API_KEY"),
        ("claude-of-tomorrow", "ANTHROPIC_API_KEY"),
        ("gemini-2.5-pro", "GEMINI_API_KEY"),
    ] {
        let ran = place.run(&["run", "--model", model, "-p", "x"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert!(lines[0].ends_with("No API key found. Use one of these:"), "{ran:?}");
        assert!(lines[1].contains(&format!("set {variable}")), "{ran:?}");
        for part in ["--model claude-", "--base-url http://127.0.0.1:", "--simulate"] {
            assert!(ran.stderr.contains(part), "{part}: {ran:?}");
        }
        assert_eq!(lines.len(), 5, "{ran:?}");
    }
}

#[test]
fn a_conversation_over_anthropics_api_uses_tools() {
    let script = |request: &greenroom_simulator::SeenRequest, _| match request.messages.len() {
        1 => Answer::call("read", &serde_json::json!({ "path": "note.txt" })).with_reasoning("A file."),
        _ => Answer::text("It says: blue."),
    };
    let model = Model::new(greenroom_simulator::Function(script), |_| {});
    let place = Place::new();
    std::fs::write(place.work().join("note.txt"), "blue\n").unwrap();
    let flags = leads("anthropic", "anthropic", &model.url());
    let mut arguments = vec!["run", "--model", "claude-opus-4-7", "-p", "Read note.txt."];
    arguments.extend(flags.iter().map(String::as_str));
    let ran = place.command(&arguments).env("ANTHROPIC_API_KEY", "k").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("It says: blue."));
    let requests = model.simulator.requests();
    assert_eq!(requests.len(), 2);
    let has_thought = requests[1]
        .request
        .messages
        .iter()
        .any(|message| message.as_answer().is_some_and(|answer| answer.reasoning_chars() > 0));
    assert!(has_thought, "signed reasoning is sent back");
    model.simulator.assert_clean();
}

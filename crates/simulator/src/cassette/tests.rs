//! Cassettes: recorded calls are replayed, and unrecorded ones are reported.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_kernel::ToolSpec;
use greenroom_provider::{ApiKey, HttpProvider, ModelSettings, ServerOptions};

use super::*;
use crate::fault::{Fault, RetryAfter};
use crate::{Answer, History, Sequence, Simulator, SimulatorOptions};

fn request(session: &str, history: &History) -> Request {
    Request {
        model: "m".into(),
        system: Some("Be kind.".into()),
        messages: history.messages().iter().cloned().map(Arc::new).collect(),
        tools: Arc::new([ToolSpec {
            name: "look".into(),
            description: "Looks.".into(),
            parameters: json!({"type":"object","properties":{}}),
        }]),
        settings: ModelSettings::new().temperature(0.0),
        output_schema: None,
        purpose: Purpose::Step,
        session: session.into(),
    }
}

/// Collects all events of a call.
async fn heard(provider: &Arc<dyn Provider>, request: Request) -> Vec<Result<ReplyEvent, ProviderError>> {
    match provider.stream(request).await {
        Ok(stream) => stream.collect().await,
        Err(error) => vec![Err(error)],
    }
}

#[tokio::test]
async fn what_was_recorded_over_http_is_played_again_piece_by_piece_and_no_key_is_in_the_file() {
    const KEY: &str = "sk-secret-0123456789abcdef";
    let script = vec![
        Answer::text("It is zwölf degrees.").with_reasoning("Let me think."),
        Answer::call("look", &json!({ "at": "a" })).and_call("look", &json!({ "at": "b" })),
        Answer::fault(Fault::RateLimited(RetryAfter::Seconds(3))),
        Answer::text("after the wait"),
        Answer::fault(Fault::Reset(crate::Point::MidStream)),
    ];
    let options =
        SimulatorOptions { require_key: Some(KEY.into()), ..SimulatorOptions::new(Sequence(script)) };
    let model = Simulator::new(options);
    let server = model.serve().await.unwrap();
    let with_key = |key: &str| -> Arc<dyn Provider> {
        let api_key = Some(ApiKey::from(key));
        let options = ServerOptions { base_url: server.base_url(), api_key, ..ServerOptions::default() };
        Arc::new(HttpProvider::new(options).unwrap())
    };
    let dir = std::env::temp_dir().join(format!("greenroom-cassette-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("talk.jsonl");
    // Left over from an earlier process with the same number.
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(dir.join("refused.jsonl"));
    let recorder = Cassette::record(with_key(KEY), &path).unwrap();
    let talks = [
        History::new().user("How warm is it?"),
        History::new().user("Look at a and b."),
        History::new().user("Again.").tool("look", &json!({}), "a rose"),
        History::new().user("Again.").tool("look", &json!({}), "a rose"),
        History::new().user("Break."),
    ];
    let mut recorded = Vec::new();
    for talk in &talks {
        recorded.push(heard(&recorder, request("recorded", talk)).await);
    }
    assert!(
        matches!(recorded[2][..], [Err(ref error)] if error.failure.retry_after_ms == Some(3_000)),
        "{recorded:?}"
    );
    let refused = heard(
        &Cassette::record(with_key("sk-wrong-key-0123456789"), dir.join("refused.jsonl")).unwrap(),
        request("x", &talks[0]),
    )
    .await;
    assert!(
        matches!(refused[..], [Err(ref error)] if error.failure.class == FailureClass::Auth),
        "{refused:?}"
    );

    let player = Cassette::replay(&path).unwrap();
    assert_eq!(player.name(), recorder.name());
    for (talk, recorded) in talks.iter().zip(&recorded) {
        assert!(recorded.len() > 1 || recorded[0].is_err(), "it has pieces");
        assert_eq!(&heard(&player, request("another session", talk)).await, recorded);
    }
    for file in ["talk.jsonl", "refused.jsonl"] {
        let text = std::fs::read_to_string(dir.join(file)).unwrap();
        for secret in [KEY, "sk-wrong-key", "uthorization", "earer"] {
            assert!(!text.contains(secret), "{secret} is in {file}");
        }
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_request_that_was_not_recorded_shows_the_nearest_one() {
    let model =
        Simulator::new(SimulatorOptions::new(Sequence(vec![Answer::text("one"), Answer::text("two")])));
    let path = std::env::temp_dir().join(format!("greenroom-miss-{}.jsonl", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let recorder = Cassette::record(model.provider(), &path).unwrap();
    heard(
        &recorder,
        request("s", &History::new().user("Something else").assistant("entirely").user("was said")),
    )
    .await;
    heard(&recorder, request("s", &History::new().user("How warm is it?"))).await;
    let player = Cassette::replay(&path).unwrap();
    let error = player.stream(request("s", &History::new().user("How cold is it?"))).await.err().unwrap();
    for part in ["has no answer", "line 3", "1 places", "messages[0].user[0].text", "How warm", "How cold"] {
        assert!(error.failure.message.contains(part), "{part}: {error}");
    }
    assert!(!error.failure.class.is_retryable());
    heard(&player, request("s", &History::new().user("How warm is it?"))).await;
    let again = player.stream(request("s", &History::new().user("How warm is it?"))).await.err().unwrap();
    assert!(again.failure.message.contains("repeated once more"), "{again}");
    for (text, told) in [
        ("", "empty"),
        ("{}", "line 1"),
        (
            "{\"cassette\":9,\"provider\":\"p\",\"resent_reasoning\":{\"readable\":false,\"dialect\":null},\
             \"output_tokens_max\":null}",
            "form 9",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Cassette::replay(&path).err().unwrap().to_string();
        assert!(error.contains(told) && error.contains("greenroom-miss"), "{error}");
    }
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_recording_that_exists_is_not_written_over() {
    let path = std::env::temp_dir().join(format!("greenroom-precious-{}.jsonl", std::process::id()));
    std::fs::write(&path, "precious").unwrap();
    let model = Simulator::new(SimulatorOptions::new(Sequence(vec![Answer::text("one")])));
    assert!(Cassette::record(model.provider(), &path).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

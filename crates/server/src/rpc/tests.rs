//! The protocol, spoken over a pipe in memory with a simulated model.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use greenroom::{Agent, Runtime};
use greenroom_simulator::{ByPurpose, Function, Reply, Simulator, SimulatorOptions, Summariser};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

struct Client {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
    simulator: Simulator,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Client {
    async fn start() -> Self {
        let runs = Function(|_: &_, _| Reply::text("word ".repeat(300)));
        let options = SimulatorOptions {
            window: 8_000,
            ..SimulatorOptions::new(ByPurpose::new(runs, Summariser::Obedient))
        };
        let simulator = Simulator::new(options);
        let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
        let (near, far) = tokio::io::duplex(1 << 20);
        let (far_read, far_write) = tokio::io::split(far);
        let server = tokio::spawn(async move {
            let agent = Arc::new(Agent::new("simulated").context_window(8_000));
            super::serve(&runtime, agent, far_read, far_write).await
        });
        let (read, output) = tokio::io::split(near);
        Self { lines: BufReader::new(read).lines(), output, simulator, server }
    }

    async fn send(&mut self, line: &str) {
        self.output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// The next message that `wanted` accepts.
    async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.next_line().await.unwrap().expect("the server answers");
            let message: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(message["jsonrpc"], "2.0");
            if wanted(&message) {
                return message;
            }
        }
    }

    async fn call(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string())
            .await;
        self.until(|message| message["id"] == json!(id)).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_started_prompted_compacted_and_looked_at() {
    let mut client = Client::start().await;
    let named = json!({ "session_id": "a" });
    assert_eq!(client.call(1, "session/start", named.clone()).await["result"], named);
    let state = client.call(2, "agent/state", named.clone()).await;
    assert_eq!(state["result"]["context_window"], 8_000, "from the moment the session starts");
    for run in 0..4 {
        let params = json!({ "session_id": "a", "text": format!("question {run}") });
        assert_eq!(client.call(10 + run, "session/prompt", params).await["result"]["accepted"], true);
        client.until(|message| message["params"]["type"] == "run_end").await;
        let result = client.until(|message| message["method"] == "session/prompt_result").await;
        assert!(result["params"]["text"].as_str().unwrap().starts_with("word"));
    }
    let params = json!({ "session_id": "a", "keep_recent": 400 });
    assert_eq!(client.call(20, "session/compact", params).await["result"]["accepted"], true);
    let result = client.until(|message| message["method"] == "session/compact_result").await;
    assert_eq!(result["params"]["compacted"]["outcome"], "completed", "{result}");
    let list = client.call(21, "session/list", json!({})).await;
    assert_eq!(list["result"]["sessions"][0]["compactions"], 1);
    client.simulator.assert_clean();
    drop(client.output);
    drop(client.lines);
    client.server.await.unwrap().unwrap_or(());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_understood_is_refused_and_harms_nothing() {
    let mut client = Client::start().await;
    let refusals = [
        ("{", -32_700),
        (r#"{"id":1}"#, -32_600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"session/list"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, -32_601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/start","params":{"session":"a"}}"#, -32_602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/start","params":{"session_id":"../a"}}"#, -32_000),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"session/branch","params":{"session_id":"a","entry_id":9}}"#,
            -32_000,
        ),
    ];
    for (line, code) in refusals {
        client.send(line).await;
        let answer = client.until(|message| message.get("error").is_some()).await;
        assert_eq!(answer["error"]["code"], code, "{line}");
    }
    assert!(client.call(2, "session/list", json!({})).await["result"]["sessions"].is_array());
}

#[tokio::test(start_paused = true)]
async fn a_prompt_takes_settings_and_a_key() {
    let mut client = Client::start().await;
    let prompt = json!({
        "session_id": "a", "text": "question", "key": "k",
        "settings": { "temperature": 0.5, "reasoning_effort": "low", "extra": { "top_k": 3 } },
    });
    let mut replies = Vec::new();
    for id in 0..2 {
        assert_eq!(client.call(id, "session/prompt", prompt.clone()).await["result"]["accepted"], true);
        let result = client.until(|message| message["method"] == "session/prompt_result").await;
        replies.push(result["params"].clone());
    }
    assert_eq!(replies[0], replies[1], "the second is not said again");
    let sent: Vec<_> = client.simulator.requests();
    assert_eq!(sent.len(), 1);
    assert_eq!(json!(sent[0].request.settings), prompt["settings"]);
    let wrong = json!({ "session_id": "a", "text": "x", "settings": { "top_p": 7 } });
    let refused = client.call(9, "session/prompt", wrong).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("top_p: must be above 0"), "{refused}");
    let typo = json!({ "session_id": "a", "text": "x", "settings": { "topp": 7 } });
    assert_eq!(client.call(10, "session/prompt", typo).await["error"]["code"], -32602);
    client.simulator.assert_clean();
}

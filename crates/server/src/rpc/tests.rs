//! The protocol, spoken over a pipe in memory with a simulated model.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use greenroom::{Agent, Runtime};
use greenroom_simulator::{
    Answer, ByPurpose, CallInfo, Function, Pace, Script, SeenRequest, Simulator, SimulatorOptions, Summariser,
};
use greenroom_store::Store;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

use super::{LINE_BYTES_MAX, Side};

struct Client {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
    simulator: Simulator,
    runtime: Runtime,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Client {
    async fn start() -> Self {
        Self::start_with(Store::memory(), Pace::default()).await
    }

    /// A client of a server over this store, whose model answers at this pace.
    async fn start_with(store: Store, pace: Pace) -> Self {
        Self::start_within(store, pace, LINE_BYTES_MAX).await
    }

    /// As [`Self::start_with`], of a server that reads lines of at most so many bytes.
    async fn start_within(store: Store, pace: Pace, line_bytes_max: u64) -> Self {
        let runs = Function(move |_: &_, _| Answer::text("word ".repeat(300)).with_pace(pace));
        let summaries = Function(move |request: &SeenRequest, info: CallInfo| {
            Summariser::Obedient.reply(request, info).with_pace(pace)
        });
        let options =
            SimulatorOptions { window: 8_000, ..SimulatorOptions::new(ByPurpose::new(runs, summaries)) };
        let simulator = Simulator::new(options);
        let runtime = Runtime::builder().provider(simulator.provider()).store(store).start().await.unwrap();
        let (near, far) = tokio::io::duplex(1 << 20);
        let (far_read, far_write) = tokio::io::split(far);
        let served = runtime.clone();
        let server = tokio::spawn(async move {
            let agent = Arc::new(Agent::new("simulated").context_window(8_000));
            super::serve_connection(&served, Side::Alone(agent), line_bytes_max, far_read, far_write).await
        });
        let (read, output) = tokio::io::split(near);
        Self { lines: BufReader::new(read).lines(), output, simulator, runtime, server }
    }

    async fn send(&mut self, line: &str) {
        self.output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// The next message, or batch of answers.
    async fn next(&mut self) -> Value {
        let line = self.lines.next_line().await.unwrap().expect("the server answers");
        serde_json::from_str(&line).unwrap()
    }

    /// The next message that `wanted` accepts.
    async fn until(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let message = self.next().await;
            assert_eq!(message["jsonrpc"], "2.0");
            if wanted(&message) {
                return message;
            }
        }
    }

    /// Ends the input, and waits for the server's end; gives what it still said.
    async fn end(mut self) -> Vec<Value> {
        self.output.shutdown().await.unwrap();
        let mut said = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            said.push(serde_json::from_str(&line).unwrap());
        }
        self.server.await.unwrap().unwrap();
        said
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
        assert_eq!(result["params"]["stop"], "stop");
    }
    let params = json!({ "session_id": "a", "keep_recent": 400 });
    assert_eq!(client.call(20, "session/compact", params).await["result"]["accepted"], true);
    let result = client.until(|message| message["method"] == "session/compact_result").await;
    assert_eq!(result["params"]["compacted"]["outcome"], "completed", "{result}");
    assert_eq!(result["params"]["installed"], true, "{result}");
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
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/start","params":["a"]}"#, -32_602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/start"}"#, -32_602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/compact","params":{"session_id":"none"}}"#, -32_001),
        (r#"{"jsonrpc":"2.0","id":1,"method":"agent/state","params":{"session_id":"none"}}"#, -32_001),
        (r#"{"jsonrpc":"2.0","id":1,"method":"agent/abort","params":{"session_id":"none"}}"#, -32_001),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/start","params":{"session_id":"a\u0007"}}"#, -32_000),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{"after":"here"}}"#, -32_602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{"order":"size"}}"#, -32_602),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"session/branch","params":{"session_id":"a","entry_id":9}}"#,
            -32_001,
        ),
    ];
    for (line, code) in refusals {
        client.send(line).await;
        let answer = client.until(|message| message.get("error").is_some()).await;
        assert_eq!(answer["error"]["code"], code, "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_answered_with_its_id_where_that_is_known() {
    let mut client = Client::start_within(Store::memory(), Pace::default(), 1 << 20).await;
    let text = "x".repeat(5 << 20);
    for (line, id) in [
        (text.clone(), Value::Null),
        (
            format!(r#"{{"id":"a","jsonrpc":"2.0","method":"session/import","params":{{"text":"{text}"}}}}"#),
            json!("a"),
        ),
    ] {
        client.send(&line).await;
        let answer = client.until(|message| message.get("error").is_some()).await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32600)));
        assert!(answer["error"]["message"].as_str().unwrap().contains("1048576 bytes"), "{answer}");
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
    let ids: Vec<Value> = replies.iter_mut().map(|reply| reply["request_id"].take()).collect();
    assert_eq!(ids, [0, 1], "each names its request");
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

/// An answer that takes an hour.
const SLOW: Pace = Pace { chunks: 60, first_ms: 1_000, between_ms: 60_000 };

#[tokio::test(start_paused = true)]
async fn a_notification_is_never_answered() {
    let mut client = Client::start().await;
    for line in [
        r#"{"jsonrpc":"2.0","method":"no/such"}"#,
        r#"{"jsonrpc":"2.0","method":"session/start","params":{"session":"a"}}"#,
        r#"{"jsonrpc":"2.0","method":"session/start","params":{"session_id":".."}}"#,
        r#"{"jsonrpc":"2.0","method":"session/start","params":["a"]}"#,
        r#"{"jsonrpc":"2.0","method":"session/prompt","params":{"session_id":"a","text":" "}}"#,
        r#"{"jsonrpc":"2.0","method":"session/list"}"#,
        r#"[{"jsonrpc":"2.0","method":"no/such"},{"jsonrpc":"2.0","method":"session/list"}]"#,
    ] {
        client.send(line).await;
    }
    client.send(r#"{"jsonrpc":"2.0","id":null,"method":"session/list"}"#).await;
    let answer = client.next().await;
    assert!(answer["result"]["sessions"].is_array(), "the first answer is that to the request: {answer}");
    assert!(answer.as_object().unwrap().contains_key("id"), "{answer}");
    // It does what it asks for.
    client
        .send(r#"{"jsonrpc":"2.0","method":"session/prompt","params":{"session_id":"b","text":"x"}}"#)
        .await;
    client.until(|message| message["method"] == "session/prompt_result").await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_answered_by_one_array() {
    let mut client = Client::start().await;
    let prompt =
        r#"{"jsonrpc":"2.0","id":"p","method":"session/prompt","params":{"session_id":"a","text":"x"}}"#;
    let batch = [
        r#"{"jsonrpc":"2.0","id":1,"method":"session/list"}"#,
        r#"{"jsonrpc":"2.0","method":"no/such"}"#,
        prompt,
        r#"{"foo":"boo"}"#,
        "7",
        r#"{"jsonrpc":"2.0","id":"5","method":"no/such"}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"agent/state","params":{"session_id":"none"}}"#,
    ];
    client.send(&format!("[{}]", batch.join(", "))).await;
    let mut answers = client.next().await;
    while !answers.is_array() {
        assert_eq!(answers["method"], "event", "only events come before: {answers}");
        answers = client.next().await;
    }
    let ids: Vec<&Value> = answers.as_array().unwrap().iter().map(|answer| &answer["id"]).collect();
    assert_eq!(json!(ids), json!([1, "p", null, null, "5", 9]));
    assert_eq!(answers[1]["result"]["accepted"], true);
    let codes: Vec<&Value> =
        answers.as_array().unwrap()[2..].iter().map(|answer| &answer["error"]["code"]).collect();
    assert_eq!(json!(codes), json!([-32600, -32600, -32601, -32001]));
    client.until(|message| message["method"] == "session/prompt_result").await;
    client.send("[]").await;
    assert_eq!(client.until(|message| message.get("error").is_some()).await["error"]["code"], -32600);
}

#[tokio::test(start_paused = true)]
async fn accepted_prompts_are_durable_and_keep_their_order() {
    let store = Store::memory();
    let mut client = Client::start_with(store.clone(), SLOW).await;
    let prompt = |id: u64| json!({ "session_id": "a", "text": format!("prompt {id}") });
    let requests: Vec<Value> = (0..66)
        .map(|id| json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": prompt(id) }))
        .collect();
    for request in &requests {
        client.send(&request.to_string()).await;
    }
    let mut newest = None;
    for id in 0..65 {
        let answer = client.until(|message| message["id"] == json!(id)).await;
        assert_eq!(answer["result"]["accepted"], true, "{answer}");
        let entry = answer["result"]["entry_id"].as_u64().unwrap();
        assert!(Some(entry) > newest, "{entry} after {newest:?}");
        let stored = store.get("a", &[greenroom::EntryId(entry)]).unwrap();
        let text = format!("{stored:?}");
        assert!(text.contains(&format!("prompt {id}\"")), "entry {entry} is in the store: {text}");
        newest = Some(entry);
    }
    // What is not taken on is refused at once, and nothing more is said of it.
    let refused = client.until(|message| message["id"] == 65).await;
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    assert_eq!(refused["error"]["data"]["retryable"], true, "{refused}");
    // What waits stays in the inbox when the input ends.
    let said = client.end().await;
    let results = said.iter().filter(|message| message["method"] == "session/prompt_result");
    assert_eq!(results.filter(|result| result["params"]["error"].is_object()).count(), 65);
    assert_eq!(store.head("a").unwrap().unwrap().inbox.len(), 64);
}

#[tokio::test(start_paused = true)]
async fn looking_at_a_session_starts_nothing() {
    let store = Store::memory();
    let mut client = Client::start_with(store.clone(), SLOW).await;
    for id in 0..2 {
        client.call(id, "session/prompt", json!({ "session_id": "a", "text": "x" })).await;
    }
    client.end().await;
    let entries = store.head("a").unwrap().unwrap().entries;
    let mut client = Client::start_with(store.clone(), SLOW).await;
    let named = json!({ "session_id": "a" });
    let state = client.call(1, "agent/state", named.clone()).await;
    assert_eq!(
        (&state["result"]["waiting"], &state["result"]["status"]),
        (&json!(1), &json!("idle")),
        "{state}"
    );
    assert_eq!(client.call(2, "agent/abort", named.clone()).await["result"], named);
    client.call(3, "session/list", json!({})).await;
    assert_eq!(client.call(4, "agent/state", json!({ "session_id": "none" })).await["error"]["code"], -32001);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(client.simulator.requests().is_empty(), "no model is asked");
    assert_eq!(store.head("a").unwrap().unwrap().entries, entries);
    assert!(store.head("none").unwrap().is_none());
    // Starting it does begin what waits.
    client.call(5, "session/start", named).await;
    client.until(|message| message["params"]["type"] == "run_start").await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_input_interrupts_a_compaction() {
    let store = Store::memory();
    let mut client = Client::start_with(store.clone(), SLOW).await;
    for id in 0..4 {
        client.call(id, "session/prompt", json!({ "session_id": "a", "text": "x" })).await;
        client.until(|message| message["method"] == "session/prompt_result").await;
    }
    let compact = json!({ "session_id": "a", "keep_recent": 400 });
    assert_eq!(client.call(9, "session/compact", compact).await["result"]["accepted"], true);
    let said = client.end().await;
    let result = said.iter().find(|message| message["method"] == "session/compact_result").unwrap();
    assert_eq!(result["params"]["compacted"]["outcome"], "cancelled", "{result}");
    assert_eq!(result["params"]["installed"], false, "{result}");
    let head = store.head("a").unwrap().unwrap();
    assert_eq!((head.compactions, head.open_compaction), (0, None));
}

const BRANCH: &str = r#"{"jsonrpc":"2.0","id":9,"method":"session/branch","params":{"session_id":"a","entry_id":1,"summary":true}}"#;

async fn said(client: &mut Client, prompts: u64) {
    for id in 0..prompts {
        client.call(id, "session/prompt", json!({ "session_id": "a", "text": "x" })).await;
        client.until(|message| message["method"] == "session/prompt_result").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_branch_takes_along_a_summary_of_what_is_left_where_that_is_asked_for() {
    let mut client = Client::start().await;
    said(&mut client, 3).await;
    client.send(BRANCH).await;
    assert_eq!(client.until(|message| message["id"] == 9).await["result"], json!({ "session_id": "a" }));
    let events = client.call(8, "session/replay", json!({ "session_id": "a" })).await;
    let events = events["result"]["events"].as_array().unwrap();
    let end = events.iter().find(|event| event["type"] == "compaction_end").unwrap();
    assert_eq!(json!([end["trigger"], end["outcome"]]), json!(["branch", "completed"]), "{end}");
    let shown = client.call(10, "session/show", json!({ "session_id": "a" })).await;
    let roles = |shown: &Value| -> Vec<Value> {
        let conversation = shown["result"]["conversation"].as_array().unwrap();
        conversation.iter().map(|said| said["role"].clone()).collect()
    };
    assert_eq!(roles(&shown), ["user", "assistant", "branch_summary"], "{shown}");
    // Without being asked for, there is none.
    let leaf = json!({ "session_id": "a", "entry_id": 1 });
    assert_eq!(client.call(11, "session/branch", leaf).await["result"], json!({ "session_id": "a" }));
    let shown = client.call(12, "session/show", json!({ "session_id": "a" })).await;
    assert_eq!(roles(&shown), ["user", "assistant"], "{shown}");
    client.simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_summary_of_a_branch_is_aborted_and_changes_nothing() {
    let store = Store::memory();
    let mut client = Client::start_with(store.clone(), SLOW).await;
    said(&mut client, 3).await;
    let leaf = store.head("a").unwrap().unwrap().leaf;
    client.send(BRANCH).await;
    client.until(|message| message["params"]["type"] == "compaction_start").await;
    // Meanwhile nothing else moves the conversation.
    let busy = client.call(10, "session/branch", json!({ "session_id": "a", "entry_id": 1 })).await;
    assert_eq!(busy["error"]["data"]["kind"], "busy", "{busy}");
    client.send(r#"{"jsonrpc":"2.0","id":11,"method":"agent/abort","params":{"session_id":"a"}}"#).await;
    let refused = client.until(|message| message["id"] == 9).await;
    assert_eq!(refused["error"]["data"]["kind"], "branch_summary", "{refused}");
    assert_eq!(store.head("a").unwrap().unwrap().leaf, leaf);
    // So does the end of the input.
    client.send(BRANCH).await;
    client.until(|message| message["params"]["type"] == "compaction_start").await;
    let said = client.end().await;
    let refused = said.iter().find(|message| message["id"] == 9).unwrap();
    assert_eq!(refused["error"]["data"]["kind"], "branch_summary", "{refused}");
    let head = store.head("a").unwrap().unwrap();
    assert_eq!((head.leaf, head.open_compaction), (leaf, None));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_session_is_gone_and_can_be_begun_anew() {
    let store = Store::memory();
    let mut client = Client::start_with(store.clone(), SLOW).await;
    let (prompt, named) = (json!({ "session_id": "a", "text": "x" }), json!({ "session_id": "a" }));
    client.call(1, "session/prompt", prompt.clone()).await;
    let deleted = json!({ "session_id": "a", "erased": true });
    assert_eq!(client.call(2, "session/delete", named.clone()).await["result"], deleted);
    assert!(store.head("a").unwrap().is_none());
    for (id, method) in [(3, "session/delete"), (4, "agent/state"), (5, "agent/abort")] {
        assert_eq!(client.call(id, method, named.clone()).await["error"]["code"], -32001, "{method}");
    }
    client.call(6, "session/prompt", prompt).await;
    client.until(|message| message["params"]["type"] == "run_start").await;
    let said = client.end().await;
    let ends = said.iter().filter(|message| message["params"]["type"] == "run_end").count();
    assert_eq!(ends, 1, "each event is told once: {said:?}");
}

/// The lines that a client reads, in their order, as far as they are about prompts: `accepted 1`, `run_end`, `result 1`.
fn story(said: &[Value]) -> Vec<String> {
    said.iter()
        .filter_map(|message| {
            let params = &message["params"];
            if let Some(id) = message.get("id") {
                let what = if message["error"].is_object() { "refused" } else { "accepted" };
                return Some(format!("{what} {id}"));
            }
            match message["method"].as_str()? {
                "session/prompt_result" | "session/compact_result" => {
                    let error = if params["error"].is_object() { " error" } else { "" };
                    Some(format!("result {}{error}", params.get("request_id").unwrap_or(&json!("none"))))
                }
                _ => params["type"].as_str().filter(|name| name.ends_with("_end")).map(str::to_owned),
            }
        })
        .filter(|line| !matches!(line.as_str(), "message_end" | "step_end"))
        .collect()
}

impl Client {
    /// All that is said until so many results came.
    async fn until_results(&mut self, mut results: usize) -> Vec<Value> {
        let mut said = Vec::new();
        while results > 0 {
            let message = self.next().await;
            results -=
                usize::from(message["method"].as_str().is_some_and(|method| method.ends_with("_result")));
            said.push(message);
        }
        said
    }

    async fn request(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id = id.into();
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string())
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn results_name_their_request_and_follow_the_end_of_their_run() {
    let mut client = Client::start().await;
    let prompt = |text: &str| json!({ "session_id": "a", "text": text });
    let keyed = |text: &str| json!({ "session_id": "a", "text": text, "key": text });
    // Two in flight in one session, with ids of both kinds.
    client.request("one", "session/prompt", prompt("x")).await;
    client.request(2, "session/prompt", keyed("y")).await;
    let said = client.until_results(2).await;
    let mut order = story(&said);
    // The second is accepted at any time before the first one's end.
    order.retain(|line| line != "accepted 2");
    assert_eq!(order, ["accepted \"one\"", "run_end", "result \"one\"", "run_end", "result 2"]);
    assert!(story(&said).contains(&"accepted 2".to_owned()));
    // Said again afterwards: accepted, and then the reply that it had.
    client.request(3, "session/prompt", keyed("y")).await;
    assert_eq!(story(&client.until_results(1).await), ["accepted 3", "result 3"]);
    // Refused: there is no result.
    client.request(4, "session/prompt", prompt(" ")).await;
    client.request(5, "session/prompt", prompt("z")).await;
    let said = story(&client.until_results(1).await);
    assert_eq!(said, ["refused 4", "accepted 5", "run_end", "result 5"]);
    // A notification has no id that its result could name.
    client
        .send(r#"{"jsonrpc":"2.0","method":"session/prompt","params":{"session_id":"a","text":"x"}}"#)
        .await;
    assert_eq!(story(&client.until_results(1).await), ["run_end", "result \"none\""]);
    // A compaction's result follows its end.
    client.request(6, "session/compact", json!({ "session_id": "a", "keep_recent": 400 })).await;
    let said = story(&client.until_results(1).await);
    assert_eq!(said, ["accepted 6", "compaction_end", "result 6"]);
    client.request(7, "session/compact", json!({ "session_id": "a" })).await;
    assert_eq!(story(&client.until_results(1).await), ["accepted 7", "result 7"], "there was nothing to do");
    client.simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn aborted_and_repeated_prompts_have_their_results_in_order() {
    let mut client = Client::start_with(Store::memory(), SLOW).await;
    let prompt = json!({ "session_id": "a", "text": "x", "key": "k" });
    client.request(1, "session/prompt", prompt.clone()).await;
    client.until(|message| message["params"]["type"] == "message_delta").await;
    // Said again while it runs: accepted at once, as the same entry, and answered with the first.
    let again = client.call(2, "session/prompt", prompt.clone()).await;
    assert_eq!(again["result"], json!({ "accepted": true, "entry_id": 0 }));
    let said = client.until_results(2).await;
    assert_eq!(story(&said), ["run_end", "result 1", "result 2"]);
    let results: Vec<&Value> =
        said.iter().filter(|message| message["method"] == "session/prompt_result").collect();
    assert_eq!(results[0]["params"]["text"], results[1]["params"]["text"]);
    // Aborted.
    client.request(3, "session/prompt", json!({ "session_id": "a", "text": "y" })).await;
    client.until(|message| message["params"]["type"] == "message_delta").await;
    client.request(4, "agent/abort", json!({ "session_id": "a" })).await;
    let said = story(&client.until_results(1).await);
    assert_eq!(said, ["accepted 4", "run_end", "result 3 error"]);
    // Deleted while it runs: its result is told all the same.
    client.request(5, "session/prompt", json!({ "session_id": "a", "text": "z" })).await;
    client.until(|message| message["params"]["type"] == "message_delta").await;
    client.request(6, "session/prompt", json!({ "session_id": "a", "text": "behind it" })).await;
    client.until(|message| message["id"] == 6).await;
    client.request(7, "session/delete", json!({ "session_id": "a" })).await;
    let said = client.until_results(2).await;
    let results: Vec<&Value> =
        said.iter().filter(|message| message["method"] == "session/prompt_result").collect();
    assert_eq!(results.len(), 2, "{said:?}");
    for result in results {
        assert_eq!(result["params"]["error"]["kind"], "no_session", "{result}");
        assert_eq!(
            result["params"]["error"]["message"], "session a was deleted; open it to create a new one",
            "{result}"
        );
    }
    // And its successor is told by one teller.
    client.request(8, "session/prompt", json!({ "session_id": "a", "text": "new" })).await;
    let said = client.until_results(1).await;
    assert_eq!(story(&said).iter().filter(|line| *line == "run_end").count(), 1, "{said:?}");
    client.simulator.assert_clean();
}

/// A prompt and its abort in one write: the run is aborted, and no model is asked.
#[tokio::test(start_paused = true)]
async fn an_abort_right_after_its_prompt_aborts_it() {
    for round in 0..40 {
        let pace = Pace { chunks: 10, first_ms: 1_000, between_ms: 1_000 };
        let mut client = Client::start_with(Store::memory(), pace).await;
        if round % 2 == 0 {
            client.call(1, "session/start", json!({ "session_id": "a" })).await;
        }
        let prompt = json!({ "jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": { "session_id": "a", "text": "x" } });
        let abort =
            json!({ "jsonrpc": "2.0", "id": 3, "method": "agent/abort", "params": { "session_id": "a" } });
        client.send(&format!("{prompt}\n{abort}")).await;
        let result = client.until(|message| message["method"] == "session/prompt_result").await;
        assert_eq!(result["params"]["error"]["message"], "the run was aborted", "round {round}: {result}");
        assert_eq!(client.simulator.calls(), 0, "round {round}");
    }
}

/// An input that ends right after a prompt starts nothing that goes on unseen: each prompt has its result, and what it
/// began is over when the server ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_ends_starts_nothing() {
    let mut began = 0;
    for _ in 0..80 {
        let mut eight = tokio::task::JoinSet::new();
        eight.extend((0..8).map(|_| async {
            let pace = Pace { chunks: 300, first_ms: 5, between_ms: 20 };
            let mut client = Client::start_with(Store::memory(), pace).await;
            let simulator = client.simulator.clone();
            client.request(1, "session/prompt", json!({ "session_id": "a", "text": "x" })).await;
            let said = client.end().await;
            let results: Vec<_> =
                said.iter().filter(|message| message["method"] == "session/prompt_result").collect();
            assert_eq!(results.len(), 1, "{said:?}");
            assert!(results[0]["params"]["error"].is_object(), "it ran to its end: {said:?}");
            assert_eq!(simulator.in_flight(), 0);
            simulator.calls()
        }));
        began += eight.join_all().await.into_iter().sum::<u64>();
    }
    assert!(began <= 640, "{began}");
}

#[tokio::test(start_paused = true)]
async fn sessions_are_listed_in_pages() {
    let mut client = Client::start().await;
    for (id, name) in ["c", "a/b", "user:42"].into_iter().enumerate() {
        let id = u64::try_from(id).unwrap();
        client.call(id, "session/prompt", json!({ "session_id": name, "text": "x" })).await;
        client.until(|message| message["method"] == "session/prompt_result").await;
    }
    let first = client.call(10, "session/list", json!({ "limit": 2 })).await;
    let ids = |page: &Value| -> Vec<String> {
        let sessions = page["result"]["sessions"].as_array().unwrap();
        sessions.iter().map(|session| session["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&first), ["a/b", "c"]);
    let after = json!({ "limit": 2, "after": first["result"]["next"] });
    let second = client.call(11, "session/list", after).await;
    assert_eq!((ids(&second), &second["result"]["next"]), (vec!["user:42".to_owned()], &Value::Null));
    let none = json!({ "unfinished": true, "labels": { "tenant": "42" }, "order": "newest" });
    assert!(ids(&client.call(12, "session/list", none).await).is_empty());
    assert_eq!(ids(&client.call(13, "session/list", json!({})).await).len(), 3);
}

#[tokio::test]
async fn questions_are_listed_and_answered_once_and_the_run_goes_on() {
    let simulator = crate::tests::simulator();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let (near, far) = tokio::io::duplex(1 << 20);
    let (far_read, far_write) = tokio::io::split(far);
    let served = runtime.clone();
    let server = tokio::spawn(async move {
        super::serve(&served, Arc::new(crate::tests::agent()), far_read, far_write).await
    });
    let (read, output) = tokio::io::split(near);
    let mut client = Client { lines: BufReader::new(read).lines(), output, simulator, runtime, server };
    client.request(1, "session/prompt", json!({ "session_id": "a", "text": "refund it" })).await;
    let asked = client.until(|message| message["params"]["type"] == "question_asked").await;
    assert_eq!((&asked["params"]["text"], &asked["params"]["kind"]), (&json!("Refund?"), &json!("choice")));
    let id = asked["params"]["entry_id"].clone();
    for params in [json!({ "session_id": "a" }), json!({})] {
        let listed = client.call(2, "session/questions", params).await;
        let question = &listed["result"]["questions"][0];
        assert_eq!((&question["question_id"], &question["tool"]), (&id, &json!("refund")), "{listed}");
    }
    let answer = |value: &str| json!({ "session_id": "a", "question_id": id, "value": value, "by": "ada" });
    let misfit = client.call(3, "session/answer", answer("perhaps")).await;
    assert!(misfit["error"]["message"].as_str().unwrap().contains("\"yes\", \"no\""), "{misfit}");
    client.request(4, "session/answer", answer("yes")).await;
    let ended = client.until(|message| message["params"]["type"] == "question_ended").await;
    assert_eq!((&ended["params"]["value"], &ended["params"]["by"]), (&json!("yes"), &json!("ada")));
    let result = client.until(|message| message["method"] == "session/prompt_result").await;
    assert_eq!(result["params"]["text"], "The answer was yes");
    let closed = client.call(5, "session/answer", answer("no")).await;
    assert!(closed["error"]["message"].as_str().unwrap().contains("closed"), "{closed}");
    client.end().await;
}

/// Looking on opens nothing: its events come, and those of a session that is started afterwards come once.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_watched_is_told_of_and_not_started() {
    let mut client = Client::start().await;
    let session = client.runtime.open("a", Agent::new("simulated").context_window(8_000)).await.unwrap();
    session.prompt("one").await.unwrap();
    client.runtime.close("a").await.unwrap();
    assert_eq!(
        client.call(1, "session/watch", json!({ "session_id": "a" })).await["result"]["session_id"],
        "a"
    );
    assert_eq!(
        client.call(2, "session/watch", json!({ "session_id": "none" })).await["error"]["code"],
        -32001
    );
    assert!(client.runtime.live().await.unwrap().is_empty(), "nothing was opened");
    assert_eq!(client.call(3, "session/live", json!({})).await["result"], json!({ "sessions": [] }));
    let session = client.runtime.open("a", Agent::new("simulated").context_window(8_000)).await.unwrap();
    session.prompt("two").await.unwrap();
    let told = client.until(|message| message["params"]["type"] == "run_end").await;
    assert_eq!(told["params"]["session_id"], "a");
    let live = client.call(4, "session/live", json!({})).await;
    let live = &live["result"]["sessions"][0];
    assert_eq!(
        (&live["id"], &live["status"], &live["is_asleep"]),
        (&json!("a"), &json!("idle"), &json!(false))
    );
    assert_eq!((&live["title"], &live["activity"]), (&json!("one"), &json!({ "tools": [] })), "{live}");
    // Starting it too tells nothing twice.
    client.call(5, "session/prompt", json!({ "session_id": "a", "text": "three" })).await;
    let mut ends = 0;
    client
        .until(|message| {
            ends += u32::from(message["params"]["type"] == "run_end");
            message["method"] == "session/prompt_result"
        })
        .await;
    assert_eq!(ends, 1);
}

/// A session that a request makes is there for those that follow it, and of two who want the same name the first gets it.
#[tokio::test]
async fn forks_are_taken_on_in_their_order() {
    let mut client = Client::start().await;
    client.call(1, "session/prompt", json!({ "session_id": "a", "text": "one" })).await;
    client.until(|message| message["method"] == "session/prompt_result").await;
    for round in 0..20 {
        let to = format!("b{round}");
        let fork = json!({ "session_id": "a", "to": to });
        let first = 10 * round + 10;
        let requests = [
            ("session/fork", fork.clone()),
            ("session/set_title", json!({ "session_id": to, "title": "a copy" })),
            ("session/fork", fork),
            ("session/get", json!({ "session_id": to })),
            ("session/delete", json!({ "session_id": to })),
        ];
        for (id, (method, params)) in (first..).zip(&requests) {
            client
                .send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string())
                .await;
        }
        let mut answers = std::collections::BTreeMap::new();
        while answers.len() < requests.len() {
            let answer = client.until(|message| message["id"].is_u64()).await;
            answers.insert(answer["id"].as_u64().unwrap(), answer);
        }
        let is_error: Vec<bool> = answers.values().map(|answer| answer["error"].is_object()).collect();
        assert_eq!(is_error, [false, false, true, false, false], "round {round}: {answers:?}");
        assert_eq!(answers[&(first + 3)]["result"]["session"]["title"], "a copy");
    }
    client.end().await;
}

/// A consumer that is being read can be deleted at once: the read ends, and other requests do not wait for it.
#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_wait_for_a_read_of_the_consumer() {
    let mut client = Client::start().await;
    let began = tokio::time::Instant::now();
    let read = json!({ "name": "audit", "wait_ms": 60_000 });
    client
        .send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "consumer/read", "params": read }).to_string())
        .await;
    client.call(2, "session/list", json!({})).await;
    client.call(3, "consumer/delete", json!({ "name": "audit" })).await;
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
}

/// A prompt for a session that somebody else has deleted does not create a new session; `session/start` does.
#[tokio::test(start_paused = true)]
async fn a_session_that_somebody_else_deleted_begins_anew() {
    let mut client = Client::start().await;
    for number in 0..2 {
        let named = json!({ "session_id": "a" });
        assert_eq!(client.call(3 * number, "session/start", named.clone()).await["result"], named);
        let prompt = json!({ "session_id": "a", "text": "hello" });
        let accepted = client.call(3 * number + 1, "session/prompt", prompt.clone()).await;
        assert_eq!(accepted["result"]["entry_id"], 0, "{accepted}");
        client.until(|message| message["params"]["type"] == "run_end").await;
        client.until(|message| message["method"] == "session/prompt_result").await;
        client.runtime.delete("a").await.unwrap();
        let gone = client.call(3 * number + 2, "session/prompt", prompt).await;
        assert!(gone["error"]["message"].as_str().unwrap().contains("was deleted"), "{gone}");
    }
}

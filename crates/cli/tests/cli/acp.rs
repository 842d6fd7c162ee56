//! `greenroom acp` with an editor that is written without a library: it sends and reads lines of JSON.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Function, Pace, SeenRequest, Summariser};
use serde_json::{Value, json};

use super::host::{Hosted, wait_until};
use super::mcp::{python, script};
use super::support::files;

/// A value that the editor gives to an MCP server.
const SECRET: &str = "a-value-of-the-editor-8";

/// A picture of one pixel.
const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An editor that runs the command.
struct Editor {
    child: Child,
    input: Option<ChildStdin>,
    output: mpsc::Receiver<Value>,
    next: u64,
    /// How permissions are answered: an option's id, or an outcome.
    answers: VecDeque<&'static str>,
    /// The requests for permission, and all updates.
    asked: Vec<Value>,
    updates: Vec<Value>,
    /// The response to `initialize`.
    about: Value,
}

impl Editor {
    fn start(hosted: &Hosted, arguments: &[&str]) -> Self {
        Self::with(hosted.command(&[&["acp"], arguments].concat()), &json!({}))
    }

    /// With this command, and what the editor can do.
    fn with(mut command: Command, capabilities: &Value) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut editor = Self {
            child,
            input,
            output: receiver,
            next: 0,
            answers: VecDeque::new(),
            asked: Vec::new(),
            updates: Vec::new(),
            about: Value::Null,
        };
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        editor.about = editor.call("initialize", hello);
        editor
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Sends a request, and gives its id.
    fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// Handles messages until one is this.
    fn until(&mut self, what: &str, mut is_it: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let message = self.output.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|_| panic!("{what} did not come: {:#?}", self.updates));
            assert_eq!(message["jsonrpc"], "2.0", "{message}");
            if message["method"] == "session/update" {
                self.updates.push(message["params"].clone());
            } else if message["method"] == "session/request_permission" {
                self.asked.push(message["params"].clone());
                let outcome = match self.answers.pop_front() {
                    Some("cancelled") => json!({ "outcome": "cancelled" }),
                    Some("later") | None => Value::Null,
                    Some(option) => json!({ "outcome": "selected", "optionId": option }),
                };
                if !outcome.is_null() {
                    let result = json!({ "outcome": outcome });
                    self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
                }
            } else if message["method"] == "elicitation/create" {
                self.asked.push(message["params"].clone());
                let answer = self.answers.pop_front();
                let result = match answer {
                    Some(answer) => json!({ "action": "accept", "content": { "answer": answer } }),
                    None => json!({ "action": "decline" }),
                };
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
            }
            if is_it(&message) {
                return message;
            }
        }
    }

    /// Gives the response to a request.
    fn response(&mut self, id: u64) -> Value {
        self.until("a response", |message| message["id"] == id && message.get("method").is_none())
    }

    /// Sends a request, and gives its result.
    fn call(&mut self, method: &str, params: impl Borrow<Value>) -> Value {
        let id = self.request(method, params.borrow());
        let response = self.response(id);
        assert!(response["result"].is_object(), "{method}: {response}");
        response["result"].clone()
    }

    /// Sends a request, and gives its error.
    fn refused(&mut self, method: &str, params: impl Borrow<Value>) -> Value {
        let id = self.request(method, params.borrow());
        let response = self.response(id);
        assert!(response["error"].is_object(), "{method}: {response}");
        response["error"].clone()
    }

    fn open(&mut self, folder: &Path) -> String {
        let opened = self.call("session/new", json!({ "cwd": folder, "mcpServers": [] }));
        opened["sessionId"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt, and gives why the turn ended.
    fn prompt(&mut self, session: &str, text: &str) -> String {
        let ended = self.call("session/prompt", prompt(session, text));
        ended["stopReason"].as_str().unwrap().to_owned()
    }

    /// The kinds of the updates, without repetitions, and without those of the size, whose place varies.
    fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<String> = self
            .of(|update| update["sessionUpdate"] != "usage_update")
            .iter()
            .map(|update| text(&update["sessionUpdate"]))
            .collect();
        kinds.dedup();
        kinds
    }

    fn of(&self, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let updates = self.updates.iter().map(|params| params["update"].clone());
        updates.filter(|update| is_wanted(update)).collect()
    }

    /// What the agent said, or the user in a conversation that was loaded.
    fn said(&self, kind: &str) -> String {
        let chunks = self.of(|update| update["sessionUpdate"] == kind);
        chunks.iter().map(|update| text(&update["content"]["text"])).collect()
    }

    /// The editor ends. Gives the exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.input.take());
        self.child.wait().unwrap().code()
    }
}

fn prompt(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A model that does what the last prompt says.
async fn hosted() -> Hosted {
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        let last = request.messages.last().unwrap();
        if last.role() == "tool" {
            return Answer::text(format!("it says: {}", last.text()));
        }
        match request.last_user_text().as_str() {
            "write" => Answer::call("write", &json!({ "path": "new.txt", "content": "one\n" })),
            "edit" => Answer::call("edit", &json!({ "path": "a.txt", "old": "alpha", "new": "beta" })),
            "run" => Answer::call("bash", &json!({ "command": "truncate -s 4 ran.txt" })),
            "read" => Answer::call("read", &json!({ "path": "a.txt" })),
            "choose" => {
                Answer::call("ask_user", &json!({ "question": "Which?", "choices": ["red", "blue"] }))
            }
            "several" => {
                let asked = json!({ "question": "Which?", "choices": ["red", "blue"], "several": true });
                Answer::call("ask_user", &asked)
            }
            "ask" => Answer::call("ask_user", &json!({ "question": "What name?" })),
            "server" => Answer::call("mcp__the-editor-s__environment", &json!({})),
            "slow" => Answer::text("word ".repeat(6_000)).with_pace(Pace {
                chunks: 6_000,
                first_ms: 0,
                between_ms: 50,
            }),
            said => Answer::text(format!("heard {said}")),
        }
    });
    let hosted = Hosted::of(ByPurpose::new(script, Summariser::Obedient)).await;
    std::fs::write(hosted.place.work().join("a.txt"), "alpha\n").unwrap();
    hosted
}

fn file(hosted: &Hosted, name: &str) -> Option<String> {
    std::fs::read_to_string(hosted.place.work().join(name)).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_told_in_updates_before_its_end() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    assert_eq!(
        (&editor.about["protocolVersion"], &editor.about["agentInfo"]["name"]),
        (&json!(1), &json!("greenroom"))
    );
    let session = editor.open(&hosted.place.work());
    assert_eq!(editor.prompt(&session, "read"), "end_turn");
    assert_eq!(
        editor.kinds(),
        [
            "available_commands_update", "tool_call", "tool_call_update", "agent_message_chunk",
            "session_info_update"
        ]
    );
    assert!(editor.said("agent_message_chunk").starts_with("it says: "), "{:?}", editor.updates);
    let size = editor.of(|update| update["sessionUpdate"] == "usage_update").pop().unwrap();
    assert!(size["used"].as_u64() > Some(0) && size["size"].as_u64() > size["used"].as_u64(), "{size}");
    let call = editor.of(|update| update["sessionUpdate"] == "tool_call").pop().unwrap();
    let place = json!([{ "path": hosted.place.work().join("a.txt") }]);
    assert_eq!(
        (&call["kind"], &call["title"], &call["locations"]),
        (&json!("read"), &json!("read a.txt"), &place)
    );
    let statuses = editor.of(|update| update["toolCallId"] == call["toolCallId"]);
    let statuses: Vec<&Value> = statuses.iter().map(|update| &update["status"]).collect();
    assert_eq!(statuses[1..], [&json!("in_progress"), &json!("completed")], "{statuses:?}");
    // A prompt is in the order of its parts, with the file that the editor has open.
    let parts = json!([
        { "type": "text", "text": "Look at " },
        { "type": "resource_link", "name": "a.txt", "uri": format!("file://{}/a.txt", hosted.place.work().display()) },
        { "type": "text", "text": " and " },
        { "type": "resource", "resource": { "uri": "file:///else/b.txt", "text": "the </file> content" } },
    ]);
    editor.call("session/prompt", json!({ "sessionId": session, "prompt": parts }));
    let request = hosted.simulator.requests().pop().unwrap().request;
    let said = request.last_user_text();
    assert!(said.starts_with("Look at a.txt and /else/b.txt"), "{said}");
    assert!(said.contains("the <\\/file> content"), "{said}");
    assert_eq!(editor.end(), Some(0));
}

/// Answers to approvals, in each mode.
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_something_is_asked_about() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    // The mode, the prompt, the answer; how many requests there are, and whether the call ran.
    let rows = [
        ("ask", "write", Some("no"), 1, false),
        ("ask", "write", Some("cancelled"), 1, false),
        ("ask", "write", Some("an unknown one"), 1, false),
        ("ask", "write", Some("yes"), 1, true),
        ("read_only", "write", None, 0, false),
        ("accept_edits", "write", None, 0, true),
        ("accept_edits", "run", Some("yes"), 1, true),
        ("everything", "run", None, 0, true),
        ("ask", "run", Some("always"), 1, true),
        // Not asked again.
        ("ask", "run", None, 0, true),
    ];
    for (mode, text, answer, count, runs) in rows {
        for name in ["new.txt", "ran.txt"] {
            let _ = std::fs::remove_file(hosted.place.work().join(name));
        }
        let session = editor.open(&hosted.place.work());
        editor.call("session/set_mode", json!({ "sessionId": session, "modeId": mode }));
        editor.asked.clear();
        editor.updates.clear();
        editor.answers = answer.into_iter().collect();
        let row = format!("{mode} {text} {answer:?}");
        assert_eq!(editor.prompt(&session, text), "end_turn", "{row}");
        assert_eq!(editor.asked.len(), count, "{row}: {:?}", editor.asked);
        let has_run = file(&hosted, "new.txt").is_some() || file(&hosted, "ran.txt").is_some();
        assert_eq!(has_run, runs, "{row}");
        // After a refusal at the editor the run has ended; otherwise the model reads what came of the call.
        let goes_on = editor.said("agent_message_chunk").contains("it says: ");
        assert_eq!(goes_on, runs || mode == "read_only", "{row}: {:?}", editor.updates);
        // Each call that was announced has ended.
        let calls = editor.of(|update| update["sessionUpdate"] == "tool_call");
        for call in &calls {
            let last = editor.of(|update| update["toolCallId"] == call["toolCallId"]).pop().unwrap();
            assert!(last["status"] == "completed" || last["status"] == "failed", "{row}: {last}");
        }
    }
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_shows_the_change() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    editor.answers = ["yes", "yes"].into();
    editor.prompt(&session, "edit");
    editor.prompt(&session, "run");
    assert_eq!(file(&hosted, "a.txt").as_deref(), Some("beta\n"));
    let [edit, run] = &editor.asked[..] else { panic!("{:?}", editor.asked) };
    let diff = json!({
        "type": "diff",
        "path": hosted.place.work().join("a.txt"),
        "oldText": "alpha",
        "newText": "beta",
    });
    assert_eq!(edit["toolCall"]["content"][0], diff, "{edit}");
    let kinds = |asked: &Value| -> Vec<String> {
        asked["options"].as_array().unwrap().iter().map(|option| text(&option["kind"])).collect()
    };
    assert_eq!(kinds(edit), ["allow_once", "allow_always", "reject_once"], "{edit}");
    assert!(run.to_string().contains("truncate -s 4 ran.txt"), "{run}");
    // The announced call has the change, too, and keeps it.
    let call = editor.of(|update| update["sessionUpdate"] == "tool_call").remove(0);
    assert_eq!(call["content"][0], diff, "{call}");
    let ended = editor.of(|update| update["status"] == "completed").remove(0);
    assert!(ended.get("content").is_none(), "{ended}");
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_cancelled() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    // While the model answers.
    let id = editor.request("session/prompt", &prompt(&session, "slow"));
    editor.until("a piece", |message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    editor.send(&cancel);
    assert_eq!(editor.response(id)["result"]["stopReason"], "cancelled");
    // While a call waits for an approval.
    editor.answers = ["later"].into();
    let id = editor.request("session/prompt", &prompt(&session, "write"));
    editor.until("an approval", |message| message["method"] == "session/request_permission");
    editor.send(&cancel);
    assert_eq!(editor.response(id)["result"]["stopReason"], "cancelled");
    assert_eq!(file(&hosted, "new.txt"), None);
    // At once.
    let id = editor.request("session/prompt", &prompt(&session, "slow"));
    editor.send(&cancel);
    assert_eq!(editor.response(id)["result"]["stopReason"], "cancelled");
    assert_eq!(editor.prompt(&session, "and now"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("heard and now"), "{:?}", editor.updates);
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_by_a_choice_a_form_or_the_next_prompt() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    editor.answers = ["1"].into();
    assert_eq!(editor.prompt(&session, "choose"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("it says: blue"), "{:?}", editor.updates);
    assert_eq!(editor.prompt(&session, "ask"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("What name?"), "{:?}", editor.updates);
    assert_eq!(editor.prompt(&session, "Ada"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("it says: Ada"), "{:?}", editor.updates);
    // A question does not hold the session: commands work, and other words are the next prompt.
    assert_eq!(editor.prompt(&session, "several"), "end_turn");
    assert_eq!(editor.prompt(&session, "/pins"), "end_turn");
    assert!(editor.said("agent_message_chunk").contains("nothing is pinned"), "{:?}", editor.updates);
    assert_eq!(editor.prompt(&session, "2, red"), "end_turn");
    assert!(
        editor.said("agent_message_chunk").ends_with("it says: [\"blue\",\"red\"]"),
        "{:?}",
        editor.updates
    );
    assert_eq!(editor.prompt(&session, "several"), "end_turn");
    assert_eq!(editor.prompt(&session, "you choose"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("heard you choose"), "{:?}", editor.updates);
    assert_eq!(editor.end(), Some(0));
    // An editor with forms.
    let mut editor = Editor::with(hosted.command(&["acp"]), &json!({ "elicitation": { "form": {} } }));
    let session = editor.open(&hosted.place.work());
    editor.answers = ["Grace"].into();
    assert_eq!(editor.prompt(&session, "ask"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("it says: Grace"), "{:?}", editor.updates);
    assert_eq!(
        (&editor.asked[0]["message"], &editor.asked[0]["mode"]),
        (&json!("What name?"), &json!("form"))
    );
    // Without an answer the run ends.
    assert_eq!(editor.prompt(&session, "ask"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("it says: Grace"), "{:?}", editor.updates);
    assert_eq!(editor.end(), Some(0));
}

/// Whatever a prompt says while a question is open, its turn ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_at_an_open_question_is_its_answer_or_ends_its_run() {
    let hosted = hosted().await;
    let folder = hosted.place.own_file("{}").with_file_name("commands");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("greet.md"), "Greet $ARGUMENTS warmly.").unwrap();
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    let picture = json!({ "type": "image", "mimeType": "image/png", "data": PICTURE });
    for (question, said, heard) in [
        // A path begins like a command, and is none.
        ("ask", json!([{ "type": "text", "text": "/etc/hosts" }]), "it says: /etc/hosts"),
        // A command that is a prompt.
        ("ask", json!([{ "type": "text", "text": "/greet Ada" }]), "heard Greet Ada warmly."),
        // A picture is no part of an answer.
        ("ask", json!([{ "type": "text", "text": "Ada" }, picture]), "heard Ada"),
    ] {
        assert_eq!(editor.prompt(&session, question), "end_turn");
        let ended = editor.call("session/prompt", json!({ "sessionId": session, "prompt": said }));
        assert_eq!(ended["stopReason"], "end_turn", "{said}");
        assert!(editor.said("agent_message_chunk").ends_with(heard), "{said}: {:?}", editor.updates);
    }
    // An answer that is refused can be given again.
    assert_eq!(editor.prompt(&session, "several"), "end_turn");
    assert_eq!(editor.prompt(&session, "red, red"), "end_turn");
    assert!(editor.said("agent_message_chunk").contains("is chosen twice"), "{:?}", editor.updates);
    assert_eq!(editor.prompt(&session, "red"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("it says: [\"red\"]"), "{:?}", editor.updates);
    assert_eq!(editor.end(), Some(0));
}

/// The host does not wait for a session that the editor has closed, and its servers end.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_has_no_connection() {
    let hosted = hosted().await;
    let mut command = hosted.command(&["acp"]);
    command.env("GREENROOM_HOST_IDLE_S", "0");
    let mut editor = Editor::with(command, &json!({}));
    let session = editor.open(&hosted.place.work());
    assert_eq!(editor.prompt(&session, "hello"), "end_turn");
    assert!(hosted.host().is_some(), "the session is open");
    editor.call("session/close", json!({ "sessionId": session }));
    wait_until("the host has ended", || hosted.host().is_none());
    let known = json!({ "sessionId": session, "cwd": hosted.place.work(), "mcpServers": [] });
    editor.call("session/resume", known);
    assert_eq!(editor.prompt(&session, "again"), "end_turn");
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_loaded_resumed_and_deleted() {
    let hosted = hosted().await;
    let (work, other) = (hosted.place.work(), hosted.place.work().with_file_name("other"));
    std::fs::create_dir(&other).unwrap();
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&work);
    editor.answers = ["yes"].into();
    editor.prompt(&session, "write");
    let elsewhere = editor.open(&other);
    editor.prompt(&elsewhere, "hello");
    let titles = |editor: &mut Editor, params: Value| -> Vec<(String, PathBuf)> {
        let listed = editor.call("session/list", params);
        let sessions = listed["sessions"].as_array().unwrap().iter();
        sessions.map(|session| (text(&session["title"]), text(&session["cwd"]).into())).collect()
    };
    let (first, second) = (("write".to_owned(), work.clone()), ("hello".to_owned(), other.clone()));
    assert_eq!(titles(&mut editor, json!({})), [second, first.clone()]);
    assert_eq!(titles(&mut editor, json!({ "cwd": work })), [first]);
    assert_eq!(editor.end(), Some(0));
    // Another process of an editor.
    let mut editor = Editor::start(&hosted, &[]);
    let known = json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
    editor.call("session/load", known.clone());
    assert_eq!(editor.said("user_message_chunk"), "write");
    assert!(editor.said("agent_message_chunk").starts_with("it says: "), "{:?}", editor.updates);
    let call = editor.of(|update| update["sessionUpdate"] == "tool_call").pop().unwrap();
    assert_eq!((&call["title"], &call["content"][0]["newText"]), (&json!("write new.txt"), &json!("one\n")));
    assert_eq!(editor.prompt(&session, "more"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("heard more"), "{:?}", editor.updates);
    editor.updates.clear();
    editor.call("session/resume", known);
    assert_eq!(
        (editor.said("user_message_chunk"), editor.prompt(&session, "again")),
        (String::new(), "end_turn".to_owned())
    );
    editor.call("session/close", json!({ "sessionId": session }));
    let error = editor.refused("session/prompt", prompt(&session, "closed"));
    assert!(text(&error["message"]).contains("is not open"), "{error}");
    editor.call("session/delete", json!({ "sessionId": session }));
    assert_eq!(titles(&mut editor, json!({ "cwd": work })), []);
    assert_eq!(editor.end(), Some(0));
    assert_eq!(hosted.place.only_session(), elsewhere);
}

/// An id is not completed: another session may begin with it.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_session_with_this_very_id_is_deleted() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let (session, unused) = (editor.open(&hosted.place.work()), editor.open(&hosted.place.work()));
    assert_eq!(editor.prompt(&session, "hello"), "end_turn");
    let beginning = &session[..session.len() - 1];
    let error = editor.refused("session/delete", json!({ "sessionId": beginning }));
    assert!(text(&error["message"]).contains("there is no session"), "{error}");
    // One without messages is not stored.
    editor.call("session/delete", json!({ "sessionId": unused }));
    assert_eq!(hosted.place.only_session(), session);
    assert_eq!(editor.end(), Some(0));
}

/// Each folder has its own configuration, whatever the folder of the process is.
#[tokio::test(flavor = "multi_thread")]
async fn each_session_has_the_configuration_of_its_folder() {
    let hosted = hosted().await;
    let (work, other) = (hosted.place.work(), hosted.place.work().with_file_name("other"));
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("AGENTS.md"), "Speak Latin.").unwrap();
    hosted.place.project_file("model: of-the-project\n");
    let mut command = hosted.command(&["acp"]);
    command.current_dir("/");
    let mut editor = Editor::with(command, &json!({ "session": { "notices": {} } }));
    let (one, two) = (editor.open(&work), editor.open(&other));
    for (session, is_of_project) in [(&one, true), (&two, false), (&one, true)] {
        editor.prompt(session, "hello");
        let request = hosted.simulator.requests().pop().unwrap().request;
        assert_eq!(request.model == "of-the-project", is_of_project, "{session}: {}", request.model);
        assert!(!request.system.clone().unwrap_or_default().contains("Speak Latin."), "{session}");
    }
    // Nobody has said yet that the files of that folder may be used.
    let notices = editor.of(|update| update["sessionUpdate"] == "notice");
    assert!(notices.iter().any(|notice| notice.to_string().contains("AGENTS.md")), "{notices:?}");
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_an_effort_and_a_mode_are_chosen_and_kept() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    for (option, value) in [("model", "another"), ("effort", "high"), ("mode", "accept_edits")] {
        let choice = json!({ "sessionId": session, "configId": option, "value": value });
        let now = editor.call("session/set_config_option", choice);
        let options = now["configOptions"].as_array().unwrap().iter();
        let of_option = options.clone().find(|known| known["id"] == option).unwrap();
        assert_eq!(of_option["currentValue"], value, "{now}");
    }
    let check = |editor: &mut Editor| {
        assert_eq!(editor.prompt(&session, "write"), "end_turn");
        assert_eq!(editor.asked.len(), 0);
        let request = hosted.simulator.requests().pop().unwrap().request;
        let effort = request.settings.reasoning_effort.map(|effort| effort.as_str());
        assert_eq!((request.model.as_str(), effort), ("another", Some("high")));
    };
    check(&mut editor);
    assert_eq!(editor.end(), Some(0));
    let mut editor = Editor::start(&hosted, &[]);
    let known = json!({ "sessionId": session, "cwd": hosted.place.work(), "mcpServers": [] });
    let opened = editor.call("session/resume", known);
    assert_eq!(opened["modes"]["currentModeId"], "accept_edits");
    check(&mut editor);
    // The default is a choice, too.
    let choice = json!({ "sessionId": session, "configId": "effort", "value": "default" });
    editor.call("session/set_config_option", choice);
    assert_eq!(editor.prompt(&session, "write"), "end_turn");
    let request = hosted.simulator.requests().pop().unwrap().request;
    assert_eq!(request.settings.reasoning_effort, None);
    assert_eq!(editor.end(), Some(0));
}

/// Another model is another agent, which begins with the permissions of the flags.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_chosen_during_a_turn_is_used_from_the_next_one_on_in_the_mode_of_the_session() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &["--mode", "everything"]);
    let session = editor.open(&hosted.place.work());
    editor.call("session/set_mode", json!({ "sessionId": session, "modeId": "read_only" }));
    let id = editor.request("session/prompt", &prompt(&session, "slow"));
    editor.until("a piece", |message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    let choice = json!({ "sessionId": session, "configId": "model", "value": "another" });
    let now = editor.call("session/set_config_option", choice);
    assert!(now.to_string().contains("\"currentValue\":\"another\""), "{now}");
    editor.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } }));
    assert_eq!(editor.response(id)["result"]["stopReason"], "cancelled");
    for _ in 0..2 {
        assert_eq!(editor.prompt(&session, "write"), "end_turn");
        assert_eq!(file(&hosted, "new.txt"), None, "{:?}", editor.updates);
        assert_eq!(hosted.simulator.requests().pop().unwrap().request.model, "another");
    }
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_that_was_chosen_last_is_used() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    let choice = |model: &str| json!({ "sessionId": session, "configId": "model", "value": model });
    let asked = || hosted.simulator.requests().pop().unwrap().request.model.clone();
    let choose_during_a_turn = |editor: &mut Editor| {
        let id = editor.request("session/prompt", &prompt(&session, "slow"));
        editor.until("a piece", |message| {
            message["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
        });
        editor.call("session/set_config_option", choice("during"));
        editor.send(
            &json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } }),
        );
        assert_eq!(editor.response(id)["result"]["stopReason"], "cancelled");
        editor.updates.clear();
    };
    choose_during_a_turn(&mut editor);
    editor.call("session/set_config_option", choice("after"));
    assert_eq!(editor.prompt(&session, "hello"), "end_turn");
    assert_eq!(asked(), "after");
    // One that cannot be used yet stays chosen.
    choose_during_a_turn(&mut editor);
    let config = hosted.place.work().join("greenroom.yaml");
    std::fs::write(&config, "no_such_setting: 1\n").unwrap();
    editor.refused("session/prompt", prompt(&session, "hello"));
    std::fs::remove_file(&config).unwrap();
    assert_eq!(editor.prompt(&session, "hello"), "end_turn");
    assert_eq!(asked(), "during");
    // It does not end a run that waits for an answer.
    assert_eq!(editor.prompt(&session, "ask"), "end_turn");
    editor.call("session/set_config_option", choice("while-it-waits"));
    assert_eq!(editor.prompt(&session, "Ada"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("it says: Ada"), "{:?}", editor.updates);
    assert_eq!(asked(), "during");
    assert_eq!(editor.prompt(&session, "hello"), "end_turn");
    assert_eq!(asked(), "while-it-waits");
    assert_eq!(editor.end(), Some(0));
}

/// What a host has told before is not awaited again.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_a_session_that_was_loaded_answers_at_once() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    editor.prompt(&session, "hello");
    editor
        .call("session/load", json!({ "sessionId": session, "cwd": hosted.place.work(), "mcpServers": [] }));
    let before = std::time::Instant::now();
    assert_eq!(editor.prompt(&session, "/status"), "end_turn");
    // The limit for events that are on their way is five seconds.
    assert!(before.elapsed() < Duration::from_millis(4_500), "{:?}", before.elapsed());
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_dies_is_replaced() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    editor.prompt(&session, "one");
    hosted.kill_host();
    assert_eq!(editor.prompt(&session, "two"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("heard two"), "{:?}", editor.updates);
    // In the middle of a turn.
    let id = editor.request("session/prompt", &prompt(&session, "slow"));
    editor.until("a piece", |message| message["params"]["update"]["content"]["text"] == "word ");
    hosted.kill_host();
    let response = editor.response(id);
    assert!(response["error"].is_object(), "{response}");
    assert_eq!(editor.prompt(&session, "three"), "end_turn");
    assert!(editor.said("agent_message_chunk").ends_with("heard three"), "{:?}", editor.updates);
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_its_editor() {
    let hosted = hosted().await;
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    editor.request("session/prompt", &prompt(&session, "slow"));
    editor.until("a piece", |message| message["params"]["update"]["content"]["text"] == "word ");
    assert_eq!(editor.end(), Some(0));
    wait_until("the run has ended", || {
        let listed = hosted.run(&["sessions", "--json"]);
        !listed.stdout.contains("\"running\"")
    });
}

/// The tools of the editor's servers are tools of its sessions alone; what it gives them is neither stored nor shown.
#[tokio::test(flavor = "multi_thread")]
async fn the_editor_s_servers_are_used() {
    let Some(python) = python() else { return };
    let hosted = hosted().await;
    let work = hosted.place.work();
    let mut editor = Editor::start(&hosted, &[]);
    let stdio = json!({
        "name": "the editor's",
        "command": python,
        "args": [script(), "--log", "{workspace}/../server.log"],
        "env": [{ "name": "API_TOKEN", "value": SECRET }, { "name": "LEVEL", "value": "everything" }],
    });
    let old = json!({ "type": "sse", "name": "old", "url": "http://127.0.0.1:1/sse", "headers": [] });
    let opened = editor.call("session/new", json!({ "cwd": work, "mcpServers": [stdio, old] }));
    let session = text(&opened["sessionId"]);
    editor.answers = ["yes"].into();
    assert_eq!(editor.prompt(&session, "server"), "end_turn");
    assert_eq!(editor.asked.len(), 1, "{:?}", editor.updates);
    let said = editor.said("agent_message_chunk");
    assert!(said.contains("API_TOKEN") && said.contains("LEVEL"), "{said}");
    assert!(said.contains("The MCP server old of the editor is not used"), "{said}");
    let offered = |hosted: &Hosted| {
        let tools = hosted.simulator.requests().pop().unwrap().request.tools.clone();
        tools.iter().filter(|tool| tool.name.starts_with("mcp__")).count()
    };
    assert!(offered(&hosted) > 0);
    let other = editor.open(&work);
    editor.prompt(&other, "hello");
    assert_eq!(offered(&hosted), 0);
    assert_eq!(editor.end(), Some(0));
    let folder = work.parent().unwrap();
    for path in files(folder) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let is_there = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        assert!(!is_there, "{}", path.display());
    }
}

/// In the form that the editor knows, or else as a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_is_shown() {
    let hosted = hosted().await;
    let able = json!({ "session": { "compaction": {} } });
    for (capabilities, kind) in [(json!({}), "tool_call"), (able, "compaction_update")] {
        let mut editor = Editor::with(hosted.command(&["acp", "--window", "100000"]), &capabilities);
        let session = editor.open(&hosted.place.work());
        for number in 0..6 {
            editor
                .prompt(&session, &format!("{number} {}", "Count the green things of the room. ".repeat(40)));
        }
        editor.updates.clear();
        assert_eq!(editor.prompt(&session, "/compact --force"), "end_turn");
        let is_of_it = |update: &Value| {
            let id = update["toolCallId"].as_str().or(update["compactionId"].as_str());
            id.is_some_and(|id| id.starts_with("compaction-"))
        };
        let updates = editor.of(is_of_it);
        let statuses: Vec<String> = updates.iter().map(|update| text(&update["status"])).collect();
        assert_eq!(statuses, ["in_progress", "completed"], "{updates:?}");
        assert_eq!(updates[0]["sessionUpdate"], kind);
        assert!(editor.said("agent_message_chunk").contains("Compacted 6 messages"), "{:?}", editor.updates);
        assert_eq!(editor.end(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_s_own_commands_are_offered() {
    let hosted = hosted().await;
    let folder = hosted.place.own_file("{}").with_file_name("commands");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("greet.md"), "Greet $ARGUMENTS warmly.").unwrap();
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&hosted.place.work());
    assert_eq!(editor.prompt(&session, "/greet Ada"), "end_turn");
    assert_eq!(hosted.simulator.requests().pop().unwrap().request.last_user_text(), "Greet Ada warmly.");
    let offered = editor.of(|update| update["sessionUpdate"] == "available_commands_update").remove(0);
    let names = offered["availableCommands"].as_array().unwrap().iter().map(|command| text(&command["name"]));
    let names: Vec<String> = names.collect();
    assert!(names.contains(&"greet".to_owned()) && names.contains(&"compact".to_owned()), "{names:?}");
    assert_eq!(editor.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let hosted = hosted().await;
    let work = hosted.place.work();
    let mut editor = Editor::start(&hosted, &[]);
    let session = editor.open(&work);
    let new = |cwd: &str| json!({ "cwd": cwd, "mcpServers": [] });
    let missing = json!({ "sessionId": "nobody", "cwd": work, "mcpServers": [] });
    let option = |id: &str, value: &str| json!({ "sessionId": session, "configId": id, "value": value });
    let rows = [
        ("session/new", new("relative"), -32602, "must be an absolute path"),
        ("session/new", new("/no/such/folder"), -32602, "there is no such folder"),
        ("session/load", missing.clone(), -32002, "there is no session nobody"),
        ("session/resume", missing, -32002, "there is no session nobody"),
        ("session/prompt", prompt("nobody", "hi"), -32602, "is not open"),
        ("session/prompt", prompt(&session, ""), -32602, "a prompt must not be empty"),
        ("session/list", json!({ "cwd": "relative" }), -32602, "must be an absolute path"),
        ("session/list", json!({ "cursor": "nonsense" }), -32602, "is not valid"),
        (
            "session/set_mode",
            json!({ "sessionId": session, "modeId": "yolo" }),
            -32602,
            "there are read_only, ask",
        ),
        ("session/set_config_option", option("effort", "huge"), -32602, "use one of none, minimal"),
        ("session/set_config_option", option("colour", "red"), -32602, "there are mode, model and effort"),
        ("session/nonsense", json!({}), -32601, ""),
        ("session/new", json!({ "cwd": 3 }), -32602, ""),
    ];
    for (method, params, code, reason) in rows {
        let error = editor.refused(method, params.clone());
        assert_eq!(error["code"], code, "{method} {params}: {error}");
        assert!(error.to_string().contains(reason), "{method} {params}: {error}");
    }
    // A command that is none, and one that needs a terminal.
    for (line, reason) in [
        ("/nonsense", "Unknown command"),
        ("/pin", "There are no messages yet."),
        ("/continue", "nothing to resume"),
        ("/model", "Choose it in the editor"),
        ("/theme", "needs a chat at a terminal"),
        ("/help", "/compact"),
    ] {
        editor.updates.clear();
        assert_eq!(editor.prompt(&session, line), "end_turn");
        assert!(editor.said("agent_message_chunk").contains(reason), "{line}: {:?}", editor.updates);
    }
    assert_eq!(editor.end(), Some(0));
    // Without a key.
    let mut command = hosted.command(&["acp"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let mut editor = Editor::with(command, &json!({ "auth": { "terminal": true } }));
    assert_eq!(editor.about["authMethods"][0]["args"], json!(["--login"]));
    let error = editor.refused("session/new", new(work.to_str().unwrap()));
    assert_eq!(error["code"], -32000, "{error}");
    assert!(error.to_string().contains("greenroom login"), "{error}");
    assert_eq!(editor.end(), Some(0));
    let ran = hosted.run(&["acp", "--no-host"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("leave out --no-host"), "{ran:?}");
}

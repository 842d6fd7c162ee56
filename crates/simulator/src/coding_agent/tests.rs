//! The coding agent over files that exist: what it looks at, and that it ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use greenroom_kernel::{
    AssistantMessage, Block, FileOps, Message, StopReason, ToolCall, ToolResult, ToolStatus, Touch,
};
use greenroom_provider::{ReplyEvent, Request};
use serde_json::json;

use super::*;
use crate::{Simulator, SimulatorOptions};

/// A folder in memory, with tools like the real ones.
struct Folder(BTreeMap<String, String>);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    /// `count` source files in nested folders.
    fn of_size(count: usize) -> Self {
        let file = |n: usize| {
            let body =
                format!("pub struct Thing{n};\n\npub fn make_thing_{n}() -> Thing{n} {{ Thing{n} }}\n");
            (format!("src/part_{}/deep/file_{n}.rs", n % 4), body.repeat(10))
        };
        let mut files: BTreeMap<String, String> = (0..count).map(file).collect();
        files.insert("README.md".into(), "# Things\n".into());
        Self(files)
    }

    fn tools() -> Arc<[ToolSpec]> {
        let tool = |name: &str, properties: &[&str]| {
            let properties: Map<String, Value> =
                properties.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
            ToolSpec {
                name: name.to_owned(),
                description: format!("The tool {name}."),
                parameters: json!({ "type": "object", "properties": properties }),
            }
        };
        Arc::new([
            tool("read", &["path", "offset", "limit"]),
            tool("list", &["path", "depth"]),
            tool("grep", &["pattern", "path"]),
        ])
    }

    fn run(&self, call: &ToolCall) -> (ToolStatus, String) {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        match call.name.as_str() {
            "list" => (ToolStatus::Ok, self.list(arguments["path"].as_str().unwrap())),
            "read" => {
                let path = arguments["path"].as_str().unwrap();
                match self.0.get(path) {
                    Some(text) => {
                        let numbered: Vec<String> = text
                            .lines()
                            .enumerate()
                            .map(|(n, line)| format!("{}\t{line}\n", n + 1))
                            .collect();
                        (ToolStatus::Ok, numbered.concat())
                    }
                    None => (ToolStatus::Error, format!("there is no file `{path}`")),
                }
            }
            "grep" => {
                let pattern = arguments["pattern"].as_str().unwrap();
                let mut found = String::new();
                for (path, text) in &self.0 {
                    for (number, line) in
                        text.lines().enumerate().filter(|(_, line)| line.contains(pattern)).take(3)
                    {
                        let _ = writeln!(found, "{path}:{}: {line}", number + 1);
                    }
                }
                (ToolStatus::Ok, if found.is_empty() { "no line matches\n".to_owned() } else { found })
            }
            other => panic!("an unknown tool {other}"),
        }
    }

    /// Two levels, paths from the root.
    fn list(&self, folder: &str) -> String {
        let prefix = if folder == "." { String::new() } else { format!("{folder}/") };
        let mut shown = std::collections::BTreeSet::new();
        for path in self.0.keys().filter_map(|path| path.strip_prefix(&prefix)) {
            let parts: Vec<&str> = path.split('/').collect();
            for depth in 1..=parts.len().min(2) {
                let mark = if depth < parts.len() { "/" } else { "" };
                shown.insert(format!("{prefix}{}{mark}\n", parts[..depth].join("/")));
            }
        }
        if shown.is_empty() {
            format!("`{folder}` is empty, or all in it is ignored")
        } else {
            shown.into_iter().collect()
        }
    }
}

/// A conversation with the agent, compacted manually.
struct Talk {
    simulator: Simulator,
    folder: Folder,
    messages: Vec<Arc<Message>>,
    files: FileOps,
    compactions: usize,
}

impl Talk {
    fn new(folder: Folder, agent: CodingAgent) -> Self {
        let simulator = Simulator::new(SimulatorOptions { log_capacity: 4, ..SimulatorOptions::new(agent) });
        Self { simulator, folder, messages: Vec::new(), files: FileOps::default(), compactions: 0 }
    }

    async fn ask(&self, purpose: Purpose, messages: Vec<Arc<Message>>) -> AssistantMessage {
        let tools = if purpose == Purpose::Step { Folder::tools() } else { Arc::new([]) };
        let request = Request {
            model: "m".to_owned(),
            system: None,
            messages,
            tools,
            settings: greenroom_provider::ModelSettings::default(),
            output_schema: None,
            purpose,
            session: "talk".to_owned(),
        };
        let mut stream = self.simulator.provider().stream(request).await.unwrap();
        while let Some(event) = stream.next().await {
            if let ReplyEvent::Done(message) = event.unwrap() {
                return *message;
            }
        }
        panic!("the stream ended without a message")
    }

    /// One run, compacted to the newest `keep` messages whenever there are more than `compact_at`: the final
    /// text, and the number of calls of the model.
    async fn run(&mut self, prompt: &str, compact_at: usize) -> (String, usize) {
        self.messages.push(Arc::new(Message::user(prompt)));
        for calls in 1..2_000 {
            if self.messages.len() > compact_at {
                self.compact().await;
            }
            let answer = self.ask(Purpose::Step, self.messages.clone()).await;
            self.messages.push(Arc::new(Message::Assistant(answer.clone())));
            if answer.stop == StopReason::Stop {
                return (answer.text(), calls);
            }
            for call in answer.tool_calls() {
                let (status, text) = self.folder.run(call);
                if call.name == "read" && status == ToolStatus::Ok {
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    self.files.record(arguments["path"].as_str().unwrap(), Touch::Read);
                }
                self.messages.push(Arc::new(Message::ToolResult(ToolResult {
                    call_id: call.id.clone(),
                    tool_name: call.name.clone(),
                    content: vec![Block::Text(text)],
                    status,
                    touched: Vec::new(),
                })));
            }
        }
        panic!("the run does not end: {:?}", self.messages.last());
    }

    /// Everything becomes a summary.
    async fn compact(&mut self) {
        let mut transcript = String::new();
        let mut previous = String::new();
        for message in &self.messages {
            let text = message.text();
            match &**message {
                Message::User(_) if text.contains("<summary>") => {
                    let (_, rest) = text.split_once("<summary>\n").unwrap();
                    previous = rest.split("\n<read-files>").next().unwrap().to_owned();
                }
                Message::User(_) => transcript.push_str(&format!("[User]: {text}\n\n")),
                Message::Assistant(assistant) => {
                    transcript.push_str(&format!("[Assistant]: {text}\n[Assistant tool calls]:\n"));
                    for call in assistant.tool_calls() {
                        transcript.push_str(&format!("  {}({})\n", call.name, call.arguments));
                    }
                }
                Message::ToolResult(result) => {
                    transcript.push_str(&format!("[Tool result] ({}): {text}\n\n", result.tool_name));
                }
            }
        }
        let text = format!(
            "<conversation>\n{transcript}\n</conversation>\n\n<previous-summary>\n{previous}\n</previous-summary>\n\n\
             Write the record."
        );
        let summary = self.ask(Purpose::Summary, vec![Arc::new(Message::user(text))]).await.text();
        let read: Vec<&str> = self.files.read().collect();
        let text = format!(
            "What follows is a record.\n\n<summary>\n{summary}\n\n<read-files>\n{}\n</read-files>\n</summary>",
            read.join("\n")
        );
        self.messages = vec![Arc::new(Message::user(text))];
        self.compactions += 1;
    }

    fn read(&self) -> usize {
        self.files.read().len()
    }
}

#[tokio::test(start_paused = true)]
async fn it_reads_every_file_and_ends() {
    let mut talk =
        Talk::new(Folder::of_size(9), CodingAgent { steps_per_run: 100, ..CodingAgent::default() });
    let (text, calls) = talk.run("Look around.", usize::MAX).await;
    assert_eq!(talk.read(), 10, "{text}");
    assert!(text.contains("`README.md`") && text.contains("Nothing is left"), "{text}");
    assert!(calls < 30, "{calls}");
    let all_calls: Vec<&ToolCall> = talk.messages.iter().flat_map(|message| message.tool_calls()).collect();
    assert!(all_calls.iter().any(|call| call.name == "grep"), "it searches too");
    assert!(talk.messages.iter().any(|message| message.tool_calls().count() > 1), "calls in parallel too");
    let said = talk.messages[2..].iter().map(|message| message.text()).collect::<String>();
    assert!(said.contains("defines `Thing"), "{said}");
    talk.simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_after_its_steps_and_the_next_one_goes_on() {
    let mut talk = Talk::new(Folder::of_size(40), CodingAgent { steps_per_run: 8, ..CodingAgent::default() });
    let (text, calls) = talk.run("Look around.", usize::MAX).await;
    assert_eq!(calls, 9);
    assert!(text.starts_with('`') && text.contains("enough for this run"), "{text}");
    let first = talk.read();
    talk.run("Go on.", usize::MAX).await;
    assert!(talk.read() > first);
    talk.simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_after_compactions_and_reads_nothing_twice() {
    let mut talk =
        Talk::new(Folder::of_size(60), CodingAgent { steps_per_run: 500, ..CodingAgent::default() });
    let (text, _) = talk.run("Look around.", 30).await;
    assert_eq!(talk.read(), 61, "{text}");
    assert!(talk.compactions >= 3, "{}", talk.compactions);
    assert!(talk.simulator.calls() < 150, "{}", talk.simulator.calls());
    talk.simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_steps_of_a_turn_are_counted_across_compactions() {
    let mut talk =
        Talk::new(Folder::of_size(60), CodingAgent { steps_per_run: 20, ..CodingAgent::default() });
    let (text, calls) = talk.run("Look around.", 16).await;
    assert!(talk.compactions >= 2, "{}", talk.compactions);
    assert_eq!(calls, 21, "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_folder_is_said_at_once() {
    let mut talk = Talk::new(Folder::new(&[]), CodingAgent::default());
    let (text, calls) = talk.run("Look around.", usize::MAX).await;
    assert_eq!(calls, 2);
    assert!(text.contains("The folder is empty"), "{text}");
    talk.folder = Folder::new(&[("a.txt", "new\n")]);
    talk.run("Now?", usize::MAX).await;
    assert_eq!(talk.read(), 1);
}

#[tokio::test(start_paused = true)]
async fn files_that_cannot_be_read_do_not_stop_it() {
    let mut talk =
        Talk::new(Folder::new(&[("a.rs", "fn alpha_one() {}\n"), ("b.png", "x")]), CodingAgent::default());
    talk.messages.push(Arc::new(Message::user("x")));
    talk.run("Look around.", usize::MAX).await;
    assert_eq!(talk.files.read().collect::<Vec<_>>(), ["a.rs"]);
}

#[test]
fn listings_of_several_forms() {
    let check = |folder: &str, text: &str, expected: &[(&str, bool)]| {
        let items = listing::items(folder, text);
        let got: Vec<(&str, bool)> = items.iter().map(|item| (item.path.as_str(), item.is_folder)).collect();
        assert_eq!(got, expected, "{text}");
    };
    check(".", "src/\nsrc/a.rs\nlink@\n[... more left out ...]\n", &[("src", true), ("src/a.rs", false)]);
    check("src", "a.rs\nsub/\n", &[("src/a.rs", false), ("src/sub", true)]);
    check("src", "src/a.rs\n", &[("src/a.rs", false)]);
    check(".", "- one.md\n- lib\n- lib/x.py\n", &[("one.md", false), ("lib", true), ("lib/x.py", false)]);
    let long = "total 8\ndrwxr-xr-x 2 me me 4096 Nov 1 10:00 src\n-rw-r--r-- 1 me me 12 Nov 1 10:00 a.rs\n";
    check(".", long, &[("src", true), ("a.rs", false)]);
    check(".", "`.` is empty, or all in it is ignored", &[]);
}

#[test]
fn identifiers_and_offsets() {
    let text =
        "1\tpub fn alpha_one() {}\n2\tstruct Beta4;\n3\tclass Gamma:\n4\tfn x() {}\n5\tredef none_here\n";
    assert_eq!(listing::identifiers(text), ["alpha_one", "Beta4", "Gamma"]);
    assert_eq!(listing::next_offset("1\tx\n[lines 1 to 20 of 90; continue with offset 21]\n"), Some(21));
    assert_eq!(listing::next_offset("1\tlet offset = 3;\n"), None);
}

//! Servers of all kinds, over standard streams and HTTP. The server, `server.py`, is written without a library for the
//! protocol, and checks each message. Without Python these tests are skipped, and say so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_kernel::{Block, ToolCall, ToolResult, ToolStatus};
use greenroom_mcp::{Connection, Server};
use greenroom_tools::ToolContext;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server.py")
}

/// The interpreter itself: what starts it by its name may add variables of its own.
fn python() -> Option<String> {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let found = found.ok().filter(|found| found.status.success());
    if found.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no python3");
    }
    found.map(|found| String::from_utf8_lossy(&found.stdout).trim().to_owned())
}

fn program(options: &[&str]) -> Option<Server> {
    let python = python()?;
    let arguments =
        [script().display().to_string()].into_iter().chain(options.iter().map(|o| (*o).to_owned()));
    Some(Server::program("test", python).arguments(arguments).start_max(PATIENCE))
}

/// A server that is reached over HTTP. It ends with this value.
struct Service {
    child: Child,
    url: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn service(folder: &Path, options: &[&str]) -> Option<Service> {
    let port_file = folder.join("port");
    let child = Command::new(python()?).arg(script()).arg("--http").arg(&port_file).args(options).spawn();
    let child = child.expect("it starts");
    let port = until("the server listens", || std::fs::read_to_string(&port_file).ok()).await;
    Some(Service { child, url: format!("http://127.0.0.1:{port}/mcp") })
}

async fn call(connection: &Connection, name: &str, arguments: Value) -> ToolResult {
    call_in(connection, name, arguments, ToolContext::new("s", "c")).await
}

async fn call_in(connection: &Connection, name: &str, arguments: Value, context: ToolContext) -> ToolResult {
    let call =
        ToolCall { id: "c".into(), name: format!("mcp__test__{name}"), arguments: arguments.to_string() };
    connection.tools().run(&call, context, Some(PATIENCE)).await
}

fn text(result: &ToolResult) -> String {
    let blocks = result.content.iter().map(|block| match block {
        Block::Text(text) => text.clone(),
        Block::Image(image) => format!("<{}>", image.media_type),
        Block::Native(_) | _ => "?".to_owned(),
    });
    blocks.collect::<Vec<_>>().join(" | ")
}

/// Checks the results of calls, for a server over streams and over HTTP alike.
async fn check_calls(connection: &Connection) {
    for (name, arguments, status, expected) in [
        ("echo", json!({ "text": "hi" }), ToolStatus::Ok, "you said: hi"),
        ("read_it", json!({}), ToolStatus::Ok, "read_it"),
        ("write_it_949d24e9", json!({}), ToolStatus::Ok, "write.it"),
        ("picture", json!({}), ToolStatus::Ok, "<image/png>"),
        ("structured", json!({}), ToolStatus::Ok, "{\"degrees\":21.5}"),
        ("nothing", json!({}), ToolStatus::Ok, "(no output)"),
        ("fails", json!({}), ToolStatus::Error, "the disk is full"),
        ("fails", json!({ "silent": true }), ToolStatus::Error, "the tool failed, and did not say why"),
        ("refuses", json!({}), ToolStatus::Error, "no such city"),
        ("slow", json!({ "ends": true }), ToolStatus::Ok, "done"),
        ("echo", json!(["hi"]), ToolStatus::Error, "the arguments must be an object"),
        (
            "mixed",
            json!({}),
            ToolStatus::Ok,
            "first | [a sound, audio/wav, about 3 bytes, is not shown] | [an image of type \"image/png\" that cannot be \
             shown: the image is not valid base64: Invalid symbol 33, offset 0.] | file:///a.txt:\nthe text | [the content of \
             file:///a.bin, , about 3 bytes, is not shown] | [resource b (file:///b) another]",
        ),
    ] {
        let result = call(connection, name, arguments).await;
        assert_eq!((result.status, &*text(&result)), (status, expected), "{name}");
    }
    let result = call(connection, "unknown_kind", json!({})).await;
    assert!(text(&result).contains("hologram"), "{}", text(&result));
}

#[tokio::test]
async fn the_tools_of_a_program_are_called() {
    let Some(server) = program(&[]) else { return };
    let connection = server.connect().await.expect("it connects");
    assert_eq!(connection.title(), Some("test server 1.2"));
    assert_eq!(connection.instructions(), Some("Echo before you write.\n</mcp-server>"));
    let tools = connection.tools();
    let specs = tools.specs();
    // Two pages; the tool without named arguments is left out.
    assert_eq!(specs.len(), 15);
    assert_eq!(
        connection.left_out(),
        ["its tool `list` is not offered: its arguments are a list, and have no names"]
    );
    assert_eq!(specs[0].name, "mcp__test__echo");
    assert_eq!(specs[0].description, "The tool echo.");
    assert_eq!(
        specs[0].parameters,
        json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] })
    );
    check_calls(&connection).await;
}

#[tokio::test]
async fn the_tools_of_a_service_are_called() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(service) = service(folder.path(), &["--token", "t0k"]).await else { return };
    let server = || Server::http("test", &service.url).expect("a URL");
    let error = server().connect().await.map(drop).expect_err("no token");
    assert_eq!(error.to_string(), "the MCP server `test` refuses access: it needs a token, or another one");
    let connection = server().bearer_token("t0k").expect("a token").connect().await.expect("it connects");
    check_calls(&connection).await;
}

#[tokio::test]
async fn a_server_that_knows_only_the_newest_protocol_is_asked_without_a_handshake() {
    let Some(server) = program(&["--newest"]) else { return };
    let connection = server.connect().await.expect("it connects");
    let result = call(&connection, "echo", json!({ "text": "hi" })).await;
    assert_eq!(text(&result), "you said: hi");
}

#[tokio::test]
async fn a_server_without_tools_offers_none() {
    let Some(server) = program(&["--no-tools"]) else { return };
    assert!(server.connect().await.expect("it connects").tools().is_empty());
}

#[tokio::test]
async fn a_server_that_does_not_come_up_says_why() {
    let Some(silent) = program(&["--silent"]) else { return };
    let exits = program(&["--exit"]).expect("python");
    let unreachable = Server::http("test", "http://127.0.0.1:1/mcp").expect("a URL");
    let nothing = Server::program("test", "sh")
        .arguments(["-c", "echo hello; echo loading a model >&2; cat >/dev/null"]);
    for (server, reason) in [
        (silent.start_max(Duration::from_millis(300)), "did not answer within 0.3 s"),
        (
            program(&[]).expect("python").folder("/no/such"),
            "cannot be started: its folder /no/such does not exist",
        ),
        (exits, "ended before it answered (no database / at line 7)"),
        (
            Server::program("test", "no-such-program"),
            "cannot be started: there is no program no-such-program in PATH",
        ),
        (unreachable, "cannot be reached: connection refused"),
        (nothing.start_max(Duration::from_millis(300)), "did not answer within 0.3 s (loading a model)"),
    ] {
        let error = server.connect().await.map(drop).expect_err(reason);
        assert_eq!(error.to_string(), format!("the MCP server `test` {reason}"));
    }
    let error = Server::program("a__b", "sh").connect().await.map(drop).expect_err("a bad name");
    assert!(error.to_string().contains("needs another name"), "{error}");
}

#[tokio::test]
async fn a_server_that_ends_is_started_again_and_no_call_is_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let Some(server) = program(&["--log", &log.display().to_string()]) else { return };
    let connection = server.connect().await.expect("it connects");
    let first = text(&call(&connection, "pid", json!({})).await);
    let result = call(&connection, "crash", json!({})).await;
    assert_eq!(result.status, ToolStatus::Error);
    assert_eq!(
        text(&result),
        "the MCP server `test` ended during the call (out of cheese); whether the call took effect is not known"
    );
    let second = text(&call(&connection, "pid", json!({})).await);
    assert!(second.parse::<u32>().is_ok() && second != first, "{first} {second}");
    let log = std::fs::read_to_string(log).expect("a log");
    assert_eq!(log.lines().collect::<Vec<_>>(), ["call pid", "call crash", "call pid"]);
}

#[tokio::test]
async fn a_server_that_starts_more_slowly_than_a_call_may_take_is_there_for_a_later_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen").display().to_string();
    let Some(server) = program(&["--slow-restart", &seen]) else { return };
    let connection = server.call_max(Duration::from_millis(300)).connect().await.expect("it connects");
    assert_eq!(call(&connection, "crash", json!({})).await.status, ToolStatus::Error);
    let first = call(&connection, "read_it", json!({})).await;
    assert!(text(&first).contains("cancelled before the call was sent"), "{}", text(&first));
    // Each of these calls would have to start it anew if the ones before had stopped it.
    let start = Instant::now();
    loop {
        let result = call(&connection, "read_it", json!({})).await;
        if result.status == ToolStatus::Ok {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{}", text(&result));
    }
}

#[tokio::test]
async fn all_calls_learn_the_last_words_of_a_server() {
    let Some(server) = program(&[]) else { return };
    let connection = server.connect().await.expect("it connects");
    let (slow, crash) =
        tokio::join!(call(&connection, "slow", json!({})), call(&connection, "crash", json!({})));
    for result in [slow, crash] {
        assert!(text(&result).contains("ended during the call (out of cheese)"), "{}", text(&result));
    }
}

#[tokio::test]
async fn a_list_of_tools_without_end_is_cut() {
    let Some(server) = program(&["--endless"]) else { return };
    let connection = server.connect().await.expect("it connects");
    assert_eq!(connection.tools().len(), 1_000);
    assert_eq!(connection.left_out(), ["it lists too many tools; only the first 1000 are read"]);
}

#[tokio::test]
async fn an_odd_tool_and_a_pattern_without_a_tool_are_named() {
    let Some(server) = program(&["--odd"]) else { return };
    let connection = server.only(["*", "nothing_*"]).connect().await.expect("it connects");
    assert_eq!(connection.tools().len(), 15);
    assert_eq!(
        connection.left_out(),
        [
            "its tool `odd` is not offered: missing field `inputSchema`",
            "its tool `list` is not offered: its arguments are a list, and have no names",
            "its tool `echo` is listed twice",
            "no tool of it is named `nothing_*`",
        ]
    );
}

#[tokio::test]
async fn an_answer_that_is_too_large_ends_its_call() {
    let Some(server) = program(&[]) else { return };
    let connection = server.connect().await.expect("it connects");
    let large = |mib: usize| call(&connection, "echo", json!({ "text": "x", "times": mib << 20 }));
    // The registry cuts what is read.
    assert_eq!(large(15).await.status, ToolStatus::Ok);
    let result = large(17).await;
    assert_eq!(result.status, ToolStatus::Error);
    assert!(text(&result).contains("(a message of more than 16 MiB is not read)"), "{}", text(&result));
    assert_eq!(text(&call(&connection, "read_it", json!({})).await), "read_it");
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server_and_progress_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let Some(server) = program(&["--log", &log.display().to_string()]) else { return };
    let connection = server.connect().await.expect("it connects");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let mut context = ToolContext::new("s", "c");
    let kept = Arc::clone(&lines);
    context.progress = greenroom_tools::Progress::new(move |line| kept.lock().push(line));
    let cancel = context.cancel.clone();
    let calling = connection.clone();
    let running = tokio::spawn(async move { call_in(&calling, "slow", json!({}), context).await });
    until("there is progress", || (lines.lock().len() >= 2).then_some(())).await;
    assert_eq!(*lines.lock(), ["working (1 of 2)", "working (2 of 2)"]);
    cancel.cancel();
    let result = running.await.expect("it ends");
    assert_eq!(result.status, ToolStatus::Interrupted);
    assert_eq!(text(&result), "cancelled; whether the call took effect is not known");
    let is_told =
        || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("cancelled slow")).then_some(());
    until("the server is told", is_told).await;
}

#[tokio::test]
async fn a_call_is_cancelled_whose_server_reads_nothing() {
    let Some(server) = program(&["--deaf"]) else { return };
    let connection = server.connect().await.expect("it connects");
    let context = ToolContext::new("s", "c");
    let cancel = context.cancel.clone();
    // More than a pipe holds.
    let text_of_call = "x".repeat(1 << 20);
    let calling = call_in(&connection, "echo", json!({ "text": text_of_call }), context);
    let mut calling = std::pin::pin!(calling);
    tokio::select! {
        biased;
        result = &mut calling => panic!("it got an answer: {}", text(&result)),
        () = std::future::ready(()) => {}
    }
    cancel.cancel();
    let result = calling.await;
    assert_eq!(result.status, ToolStatus::Interrupted);
    assert_eq!(text(&result), "cancelled; whether the call took effect is not known");
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_stopped() {
    let Some(server) = program(&[]) else { return };
    let connection = server.call_max(Duration::from_millis(200)).connect().await.expect("it connects");
    let result = call(&connection, "slow", json!({})).await;
    assert_eq!(result.status, ToolStatus::Error);
    assert!(text(&result).starts_with("stopped after 200ms, the limit for a call"), "{}", text(&result));
    assert_eq!(text(&call(&connection, "read_it", json!({})).await), "read_it");
}

#[tokio::test]
async fn a_server_ends_with_the_last_of_its_tools() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let Some(server) = program(&["--log", &log.display().to_string()]) else { return };
    let connection = server.connect().await.expect("it connects");
    let tools = connection.tools();
    drop(connection);
    let call = ToolCall { id: "c".into(), name: "mcp__test__read_it".into(), arguments: "{}".into() };
    let result = tools.run(&call, ToolContext::new("s", "c"), Some(PATIENCE)).await;
    assert_eq!(text(&result), "read_it");
    drop(tools);
    // Its input is closed, and it has time to end by itself.
    until("it ends", || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("end")).then_some(()))
        .await;
}

#[tokio::test]
async fn a_server_gets_its_environment_its_folder_and_its_root() {
    let Some(server) = program(&[]) else { return };
    let server = server.environment([("PATH", "/usr/bin:/bin"), ("A", "b")]).folder("/").root("/home/me/a b");
    let connection = server.connect().await.expect("it connects");
    let found = text(&call(&connection, "environment", json!({})).await);
    let found: Vec<&str> = found.split(' ').filter(|name| !name.starts_with("LC_")).collect();
    assert_eq!(found, ["A", "GREENROOM_COMMAND_ID", "PATH", "in", "/"]);
    let roots = text(&call(&connection, "roots", json!({})).await);
    assert_eq!(roots, r#"{"roots": [{"uri": "file:///home/me/a%20b"}]}"#);
}

#[tokio::test]
async fn only_the_wanted_tools_are_offered_and_annotations_count_where_they_are_trusted() {
    for is_trusted in [false, true] {
        let Some(server) = program(&[]) else { return };
        let server = server.only(["read_*", "echo"]).trust_annotations(is_trusted);
        let tools = server.connect().await.expect("it connects").tools();
        let names: Vec<String> = tools.specs().iter().map(|spec| spec.name.clone()).collect();
        assert_eq!(names, ["mcp__test__echo", "mcp__test__read_it"]);
        let reading = tools.get("mcp__test__read_it").expect("it is there");
        assert_eq!((reading.is_read_only(), reading.needs_exact_arguments()), (is_trusted, !is_trusted));
        assert_eq!(reading.parallel_max(), Some(usize::MAX));
        let echo = tools.get("mcp__test__echo").expect("it is there");
        assert_eq!((echo.is_read_only(), echo.parallel_max()), (false, None));
    }
}

#[tokio::test]
async fn an_address_that_is_no_endpoint_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(service) = service(folder.path(), &[]).await else { return };
    let url = service.url.replace("/mcp", "/nothing?key=s3cret");
    let error =
        Server::http("test", &url).expect("a URL").connect().await.map(drop).expect_err("no endpoint");
    assert_eq!(
        error.to_string(),
        "the MCP server `test` cannot be reached: it answered with HTTP 404 Not Found; is `url` the address of its MCP \
         endpoint?"
    );
}

#[test]
fn nothing_shows_a_token() {
    let server = Server::http("test", "https://h.example/mcp?key=s3cret").expect("a URL");
    let server = server.bearer_token("t0ken").expect("a token");
    assert_eq!(format!("{server:?}"), "Server { name: \"test\", .. }");
    let error = Server::http("test", "ftp://h.example/?key=s3cret").map(drop).expect_err("no URL");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    let error = server.header("x-a", "a\nb").map(drop).expect_err("no header");
    assert!(!error.to_string().contains("a\nb"), "{error}");
}

//! Traces: what a collector receives, and what happens where it cannot be reached.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Function, SeenRequest, Summariser};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;

use super::support::{Model, Place, Ran, ran};

/// Words of the prompt, of a tool's arguments and result, of the answer, and of the system prompt.
const SECRETS: [&str; 5] = ["xyzzy", "plugh", "frobozz", "quux", "grue"];

/// A request to the collector.
struct Received {
    line: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// A server that answers every request with this status, or never.
fn collector(status: Option<u16>) -> (SocketAddr, mpsc::Receiver<Received>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut lines = reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty());
            let Some(line) = lines.next() else { continue };
            let headers = lines.filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_ascii_lowercase(), value.to_owned()))
            });
            let headers: BTreeMap<String, String> = headers.collect();
            let mut body = vec![0; headers["content-length"].parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let mut stream = reader.into_inner();
            if sender.send(Received { line, headers, body }).is_err() {
                return;
            }
            match status {
                Some(status) => {
                    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                        .unwrap();
                }
                None => held.push(stream),
            }
        }
    });
    (address, received)
}

/// A run that reads a file and compacts, in sessions of one command each.
fn run(place: &Place, variables: &[(&str, &str)]) -> Ran {
    let runs = Function(|request: &SeenRequest, _: CallInfo| {
        match request.messages.last().is_some_and(|message| message.role() == "tool") {
            false => Answer::call("read", &json!({ "path": "plugh.txt" })),
            true => Answer::text(format!("quux {}", "word ".repeat(200))),
        }
    });
    let model = Model::new(ByPurpose::new(runs, Summariser::Obedient), |options| options.window = 8_000);
    std::fs::write(place.work().join("plugh.txt"), "frobozz\n").unwrap();
    let url = model.url();
    let mut arguments = vec!["run", "-p", "xyzzy", "--session", "mine", "--window", "8000", "--no-host"];
    arguments.extend(["--base-url", url.as_str(), "--system", "grue"]);
    let mut command = place.command(&arguments);
    command.env("OPENAI_API_KEY", "sk-secret-0123456789").envs(variables.iter().copied());
    ran(command.output().unwrap())
}

fn shown(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Any::StringValue(text)) => text.clone(),
        Some(Any::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn attributes(of: &[KeyValue]) -> BTreeMap<&str, String> {
    of.iter().map(|pair| (pair.key.as_str(), shown(pair.value.as_ref()))).collect()
}

/// The names of the spans above one, and its own.
fn path(spans: &[Span], span: &Span) -> String {
    match spans.iter().find(|other| other.span_id == span.parent_span_id) {
        Some(parent) => format!("{} > {}", path(spans, parent), span.name),
        None => span.name.clone(),
    }
}

#[test]
fn a_run_is_one_trace_at_the_collector_without_any_text() {
    let (address, received) = collector(Some(200));
    let place = Place::new();
    let ran = run(
        &place,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}/otlp/")),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, x-team = blue"),
            ("OTEL_SERVICE_NAME", "mine"),
        ],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    let mut spans = Vec::new();
    for request in received.try_iter() {
        assert_eq!(request.line, "POST /otlp/v1/traces HTTP/1.1");
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        assert_eq!((&*request.headers["x-key"], &*request.headers["x-team"]), ("a b", "blue"));
        for secret in SECRETS.iter().chain(&["sk-secret"]) {
            let is_told = request.body.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!is_told, "{secret} is sent");
        }
        let decoded = ExportTraceServiceRequest::decode(&*request.body).unwrap();
        for of_resource in decoded.resource_spans {
            let resource = of_resource.resource.unwrap();
            let about = attributes(&resource.attributes);
            assert_eq!(about["service.name"], "mine");
            assert_eq!(about["service.version"], env!("CARGO_PKG_VERSION"));
            spans.extend(of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans));
        }
    }
    let paths: Vec<String> = spans.iter().map(|span| path(&spans, span)).collect();
    let step = "session > invoke_agent > step";
    for (wanted, count) in [
        ("session", 1),
        ("session > invoke_agent", 1),
        (step, 2),
        (&format!("{step} > chat simulated"), 2),
        (&format!("{step} > execute_tool read"), 1),
    ] {
        assert_eq!(paths.iter().filter(|path| *path == wanted).count(), count, "{wanted} in {paths:?}");
    }
    let traces: std::collections::BTreeSet<&Vec<u8>> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!(traces.len(), 1);
    assert!(spans.iter().all(|span| span.events.is_empty()), "log lines are not sent");
    let of = |name: &str| attributes(&spans.iter().find(|span| span.name == name).unwrap().attributes);
    for (name, wanted) in [
        (
            "invoke_agent",
            [
                ("gen_ai.operation.name", "invoke_agent"),
                ("gen_ai.conversation.id", "mine"),
                ("greenroom.run.outcome", "completed"),
                ("greenroom.run.steps", "2"),
            ],
        ),
        (
            "chat simulated",
            [
                ("gen_ai.operation.name", "chat"),
                ("gen_ai.request.model", "simulated"),
                ("gen_ai.conversation.id", "mine"),
                ("server.address", "127.0.0.1"),
            ],
        ),
        (
            "execute_tool read",
            [
                ("gen_ai.operation.name", "execute_tool"),
                ("gen_ai.tool.name", "read"),
                ("gen_ai.tool.type", "function"),
                ("gen_ai.conversation.id", "mine"),
            ],
        ),
    ] {
        let found = of(name);
        for (key, value) in wanted {
            assert_eq!(found.get(key).map(String::as_str), Some(value), "{name} {key}: {found:?}");
        }
        let foreign = |key: &&&str| {
            !["gen_ai.", "greenroom.", "server.", "error."].iter().any(|of| key.starts_with(of))
        };
        assert_eq!(found.keys().filter(foreign).collect::<Vec<_>>(), Vec::<&&str>::new(), "{name}");
    }
    let chat = of("chat simulated");
    assert!(chat["gen_ai.usage.input_tokens"].parse::<u64>().unwrap() > 0, "{chat:?}");
}

/// The setting is the user's alone; the variable takes precedence; without either nothing is sent.
#[test]
fn the_collector_is_configured_in_the_users_own_file() {
    let (set, at_set) = collector(Some(200));
    let (named, at_named) = collector(Some(200));
    let place = Place::new();
    let setting = format!("telemetry: {{ otlp_endpoint: \"http://{set}\" }}\n");
    let variable = format!("http://{named}");
    let check = |variables: &[(&str, &str)], wanted: (bool, bool)| {
        let ran = run(&place, variables);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!((at_set.try_iter().count() > 0, at_named.try_iter().count() > 0), wanted, "{variables:?}");
    };
    check(&[("OTEL_SERVICE_NAME", "mine")], (false, false));
    place.own_file(&setting);
    check(&[], (true, false));
    check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &variable)], (false, true));
    place.own_file("model: gpt-5.5\n");
    place.project_file(&setting);
    let ran = run(&place, &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("telemetry"), "{}", ran.stderr);
    assert_eq!(at_set.try_iter().count(), 0);
    let refused = run(&Place::new(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("OTEL_EXPORTER_OTLP_ENDPOINT: "), "{}", refused.stderr);
}

/// A collector that is not there, refuses, or is silent costs one line and changes nothing else.
#[test]
fn a_collector_that_does_not_take_traces_changes_nothing() {
    let closed = {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.local_addr().unwrap()
    };
    let (refuses, _refused) = collector(Some(403));
    let (silent, _held) = collector(None);
    for (address, reason) in [
        (closed, "connection refused"),
        (refuses, "it answers with status 403"),
        (silent, "it does not answer"),
    ] {
        let place = Place::new();
        let ran = run(&place, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"))]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("quux"), "{ran:?}");
        let warnings: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("warning")).collect();
        let expected = format!("greenroom: warning: traces could not be sent to http://{address}: {reason}");
        assert_eq!(warnings, [expected], "{}", ran.stderr);
    }
}

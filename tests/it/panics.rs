//! Panics whose message has a secret: in tools, hooks, providers and the actors themselves. None is in what a runtime
//! records, publishes, logs or returns.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use greenroom::futures_util::future::BoxFuture;
use greenroom::provider::{Provider, ProviderError, ReplyStream, Request};
use greenroom::{Redactor, SharedProvider, prelude::*};
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::support::{agent, drain, quiet_injected_panics, simulator};

/// A value that the redactor knows.
const VALUE: &str = "Zq7fuD3wX9kR5tB1-canary";
/// The points at which actors panic.
const POINTS: [(&str, &str); 2] = [("an actor", "agent/sized"), ("the session", "session/prompt")];

/// A text that looks like a secret; its parts stand apart here, so that no scanner takes it for a real one.
fn shape() -> String {
    format!("{}_{}", "ghp", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8")
}

fn fails() -> ! {
    panic!("injected: the key is {VALUE}, or {}", shape())
}

/// All lines of the log, with their fields and those of the spans.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{}={value:?}", field.name()).unwrap();
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }

    fn on_new_span(&self, span: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: Context<'_, S>) {
        span.record(&mut self.clone());
    }

    fn on_record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }
}

/// A provider that panics.
struct Panics;

impl Provider for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn stream(&self, _: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        Box::pin(async { fails() })
    }
}

/// The agents, each with the place of its panic.
fn agents() -> Vec<(&'static str, Agent)> {
    let calm = || {
        let work = tool("work", |_: Nothing| async { Ok::<_, ToolError>("done".to_owned()) });
        agent(100_000).add_tool(work)
    };
    let panics =
        tool("work", |_: Nothing| async { if true { fails() } else { Ok::<_, ToolError>(String::new()) } });
    vec![
        ("a tool", agent(100_000).add_tool(panics)),
        ("instructions", calm().instructions_from(|_| fails())),
        ("a guard of the input", calm().guard_input(|_| async { fails() })),
        ("before a model call", calm().before_model(|_| async { fails() })),
        ("after a model call", calm().after_model(|_| async { fails() })),
        ("before a tool call", calm().before_tool(|_| async { fails() })),
        ("after a tool call", calm().after_tool(|_| async { fails() })),
        ("a validator", calm().validate(|_| async { if true { fails() } else { Ok::<_, String>(()) } })),
        ("a provider", calm().own_provider(&SharedProvider::new(Arc::new(Panics)))),
        ("an actor", calm()),
        ("the session", calm()),
    ]
}

/// Works.
#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[tokio::test]
async fn no_secret_of_a_panic_is_kept_or_told() {
    quiet_injected_panics();
    let mut wrong = Vec::new();
    for (place, agent) in agents() {
        let lines = Lines::default();
        let _logging = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
        let folder = tempfile::tempdir().unwrap();
        let model = simulator(
            Function(|request: &SeenRequest, _: CallInfo| match request.messages.last() {
                Some(last) if last.role() == "tool" => Answer::text("fine"),
                _ => Answer::call("work", &json!({})),
            }),
            100_000,
        );
        let redactor = Redactor::with_shapes();
        redactor.add([("CANARY".to_owned(), VALUE.to_owned())]);
        let point = POINTS.iter().find(|(known, _)| *known == place).map(|(_, point)| *point);
        let strikes = AtomicBool::new(point.is_some());
        let runtime = Runtime::builder()
            .provider(model.provider())
            .data_dir(folder.path().join("data"))
            .redactor(redactor)
            .probe(move |_, at| {
                if Some(at) == point && strikes.swap(false, Ordering::Relaxed) {
                    fails();
                }
            })
            .start()
            .await
            .unwrap();
        let mut events = runtime.subscribe(Filter::all());
        let session = runtime.open("s", &agent).await.unwrap();
        let mut told = String::new();
        for prompt in ["one", "two"] {
            match session.prompt(prompt).await {
                Ok(reply) => writeln!(told, "{}", reply.text).unwrap(),
                Err(error) => writeln!(told, "{error} {error:?}").unwrap(),
            }
        }
        for event in drain(&mut events) {
            writeln!(told, "{}", serde_json::to_string(&*event).unwrap()).unwrap();
        }
        runtime.shutdown().await.unwrap();
        let mut stored = String::new();
        for path in files(folder.path()) {
            stored.push_str(&String::from_utf8_lossy(&std::fs::read(path).unwrap()));
        }
        let logged = lines.0.lock().unwrap().clone();
        for (sink, text) in [("told", &told), ("stored", &stored), ("logged", &logged)] {
            for secret in [VALUE, &*shape()] {
                if text.contains(secret) {
                    wrong.push(format!("{place}: {secret} is {sink}: {text}"));
                }
            }
        }
        assert!([told, stored, logged].concat().contains("[redacted:"), "{place}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

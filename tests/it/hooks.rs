//! Hooks around tool calls and model calls, and guards on input and output: their abilities, and the handling
//! of a call whose hook fails.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{AfterTool, BeforeTool, HookAction, HookPoint};
use greenroom_kernel::message::Message;
use greenroom_simulator::{Answer as Said, Sequence, Simulator};
use serde_json::{Value, json};

use crate::support::{agent, drain, quiet_injected_panics, runtime, simulator};

mod inputs;
mod model_calls;
mod outputs;

/// The actions, in order.
type Told = Arc<Mutex<Vec<String>>>;

#[derive(Deserialize, JsonSchema)]
struct Path {
    path: String,
}

/// Returns an agent with a tool `read` that returns and records what it reads, and one that fails.
fn reader(told: &Told) -> Agent {
    let noted = Arc::clone(told);
    agent(100_000)
        .tool("read", move |asked: Path| {
            noted.lock().unwrap().push(asked.path.clone());
            async move { Ok(format!("the contents of {}", asked.path)) }
        })
        .tool("fail", async |_: Path| Err::<(), _>("it failed".into()))
}

fn read(path: &str) -> Said {
    Said::call("read", &json!({ "path": path }))
}

/// The result of a session with this agent and script: its tool results, its events, and the session.
struct Lived {
    results: Vec<String>,
    context: Vec<Arc<Message>>,
    events: Vec<Arc<Event>>,
    reply: Result<Reply>,
    model: Simulator,
}

async fn live(agent: Agent, script: Vec<Said>) -> Lived {
    quiet_injected_panics();
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", agent).await.unwrap();
    let mut events = session.subscribe();
    let reply = session.prompt("go").await;
    let context = session.context().await.unwrap();
    let results = context.iter().filter(|it| it.role() == "tool").map(|it| it.text()).collect();
    model.assert_clean();
    Lived { results, context, events: drain(&mut events), reply, model }
}

impl Lived {
    /// Returns the actions of its hooks, according to its events: the point, the action and the detail.
    fn acts(&self) -> Vec<(HookPoint, HookAction, Option<String>)> {
        let act = |event: &Arc<Event>| match &event.kind {
            EventKind::Hook { hook, action, detail, .. } => Some((*hook, *action, detail.clone())),
            _ => None,
        };
        self.events.iter().filter_map(act).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let warning = |event: &Arc<Event>| match &event.kind {
            EventKind::Warning { message } => Some(message.clone()),
            _ => None,
        };
        self.events.iter().filter_map(warning).collect()
    }

    /// Returns the arguments of the calls in the log.
    fn calls(&self) -> Vec<Value> {
        let calls = self.context.iter().flat_map(|message| message.tool_calls());
        calls.map(|call| serde_json::from_str(&call.arguments).unwrap()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_does_not_run_and_the_model_reads_why() {
    let told = Told::default();
    let careful = reader(&told).before_tool(|call| async move {
        match call.arguments["path"].as_str() {
            Some("secret") => BeforeTool::Refuse("nobody reads that.".into()),
            _ => BeforeTool::Continue,
        }
    });
    let calls = read("open").and_call("read", &json!({ "path": "secret" }));
    let lived = live(careful, vec![calls, Said::text("done")]).await;
    assert_eq!(*told.lock().unwrap(), ["open"]);
    assert_eq!(lived.results, ["the contents of open", "The call was not run: nobody reads that."]);
    let refused = (HookPoint::BeforeTool, HookAction::Refused, Some("nobody reads that.".to_owned()));
    assert_eq!(lived.acts(), [refused]);
    let statuses: Vec<String> = lived
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::ToolEnd { status, .. } => Some(format!("{status:?}")),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, ["Ok", "Error"]);
}

/// The log keeps the model's original, and records the replacement.
#[tokio::test(start_paused = true)]
async fn changed_arguments_reach_the_tool_and_are_told_in_the_result_and_by_an_event() {
    let told = Told::default();
    let confined = reader(&told)
        .before_tool(|call| async move {
            let path = call.arguments["path"].as_str().unwrap_or_default();
            if path.starts_with("/srv") {
                return BeforeTool::Continue;
            }
            BeforeTool::Change(json!({ "path": format!("/srv{path}") }))
        })
        // The next one sees the result of the first one, and so does the report.
        .before_tool(|call| async move {
            assert!(call.arguments["path"].as_str().unwrap().starts_with("/srv"));
            BeforeTool::Continue
        })
        .after_tool(|call| async move {
            assert!(call.was_run && call.arguments.contains("/srv/"), "{call:?}");
            AfterTool::Keep
        });
    let lived = live(confined, vec![read("/a"), read("/srv/b"), Said::text("done")]).await;
    assert_eq!(*told.lock().unwrap(), ["/srv/a", "/srv/b"]);
    assert_eq!(
        lived.results,
        [
            "[The program changed the arguments of the call to: {\"path\":\"/srv/a\"}]\nthe contents of /srv/a",
            "the contents of /srv/b"
        ]
    );
    assert_eq!(lived.calls(), [json!({ "path": "/a" }), json!({ "path": "/srv/b" })]);
    let changed = (HookPoint::BeforeTool, HookAction::Changed, Some("{\"path\":\"/srv/a\"}".to_owned()));
    assert_eq!(lived.acts(), [changed]);
    assert_eq!(lived.warnings(), Vec::<String>::new());
}

/// Changed arguments are validated like any others.
#[tokio::test(start_paused = true)]
async fn arguments_that_a_hook_breaks_are_refused_by_the_tool() {
    let told = Told::default();
    let broken = reader(&told).before_tool(|_| async { BeforeTool::Change(json!({ "path": 5 })) });
    let lived = live(broken, vec![read("a"), Said::text("done")]).await;
    assert!(told.lock().unwrap().is_empty());
    let result = &lived.results[0];
    assert!(result.contains("invalid arguments at `path`: invalid type: integer `5`"), "{result}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_answers_from_a_cache_that_another_fills() {
    struct Cache(Mutex<std::collections::HashMap<String, ToolOutput>>);
    let told = Told::default();
    let cached = reader(&told)
        .state(Cache(Mutex::default()))
        .before_tool(|call| async move {
            let Ok(cache) = call.state::<Cache>() else { return BeforeTool::Refuse("no cache".into()) };
            let known = cache.0.lock().unwrap().get(&call.arguments.to_string()).cloned();
            known.map_or(BeforeTool::Continue, BeforeTool::Answer)
        })
        .after_tool(|call| async move {
            if call.was_run
                && let Ok(cache) = call.state::<Cache>()
            {
                cache.0.lock().unwrap().insert(call.arguments.clone(), call.output.clone());
            }
            AfterTool::Keep
        });
    let lived = live(cached, vec![read("a"), read("b"), read("a"), Said::text("done")]).await;
    assert_eq!(*told.lock().unwrap(), ["a", "b"]);
    assert_eq!(lived.results, ["the contents of a", "the contents of b", "the contents of a"]);
    assert_eq!(lived.acts(), [(HookPoint::BeforeTool, HookAction::Answered, None)]);
}

/// It may have been about to refuse: so a call whose hook failed is not run.
#[tokio::test(start_paused = true)]
async fn a_hook_before_a_call_that_fails_has_refused_it() {
    let told = Told::default();
    let panics = reader(&told).before_tool(|call| async move {
        assert!(call.arguments["path"] != "bad", "injected: no verdict");
        BeforeTool::Continue
    });
    let lived = live(panics, vec![read("bad"), read("good"), Said::text("done")]).await;
    assert_eq!(*told.lock().unwrap(), ["good"]);
    let why = "a before_tool hook failed: it panicked: injected: no verdict";
    assert_eq!(lived.results, [format!("The call was not run: {why}."), "the contents of good".into()]);
    assert_eq!(lived.warnings(), [format!("the call of `read` was not run: {why}")]);

    let hangs = reader(&told).before_tool(|_| std::future::pending());
    let lived = live(hangs, vec![read("x"), Said::text("done")]).await;
    assert_eq!(lived.results, ["The call was not run: a before_tool hook failed: it took longer than 60s."]);
    assert_eq!(told.lock().unwrap().len(), 1);
}

/// A hook that asks a person needs more than the usual minute.
#[tokio::test(start_paused = true)]
async fn a_hook_has_the_time_that_it_is_given() {
    let told = Told::default();
    let slow = reader(&told).hook_timeout(Duration::from_secs(3_600)).before_tool(|_| async {
        tokio::time::sleep(Duration::from_secs(3_000)).await;
        BeforeTool::Continue
    });
    let lived = live(slow.tool_timeout(Duration::from_secs(5)), vec![read("x"), Said::text("done")]).await;
    assert_eq!(lived.results, ["the contents of x"], "and its time is not the tool's");
}

#[tokio::test(start_paused = true)]
async fn what_nothing_would_run_is_answered_without_hooks() {
    let told = Told::default();
    let asked = Told::default();
    let noted = Arc::clone(&asked);
    let hooked = reader(&told).before_tool(move |call| {
        noted.lock().unwrap().push(call.tool.clone());
        async { BeforeTool::Continue }
    });
    let script = vec![
        Said::call("dig", &json!({}))
            .and_raw_call("read", "{\"path\":")
            .and_call("read", &json!({ "path": "a" })),
        Said::text("done"),
    ];
    let lived = live(hooked, script).await;
    assert_eq!(*asked.lock().unwrap(), ["read"]);
    assert!(lived.results[0].starts_with("there is no tool `dig`"), "{:?}", lived.results);
}

#[tokio::test(start_paused = true)]
async fn what_a_hook_replaces_is_nowhere_in_the_log() {
    let told = Told::default();
    let redacted = reader(&told).after_tool(|call| async move {
        let text = call.output.content_text();
        if !text.contains("key=5") {
            return AfterTool::Keep;
        }
        AfterTool::Replace(ToolOutput::text(text.replace("key=5", "key=…")))
    });
    let lived =
        live(redacted, vec![read("key=5"), Said::call("fail", &json!({ "path": "" })), Said::text("done")])
            .await;
    assert_eq!(lived.results, ["the contents of key=…", "it failed"]);
    assert_eq!(lived.acts(), [(HookPoint::AfterTool, HookAction::Replaced, None)]);
    assert!(!format!("{:?}", lived.model.requests().last().unwrap().request.messages[2]).contains("key=5"));
}

/// It may have been about to remove something: so the output is withheld if its hook failed.
#[tokio::test(start_paused = true)]
async fn a_hook_after_a_call_that_fails_has_withheld_its_output() {
    let told = Told::default();
    let asked = Told::default();
    let seen = Arc::clone(&asked);
    let panics = reader(&told)
        .before_tool(|call| async move {
            if call.arguments["path"] == "no" {
                BeforeTool::Refuse("no".into())
            } else {
                BeforeTool::Continue
            }
        })
        .after_tool(move |call| {
            seen.lock().unwrap().push(format!("{} {}", call.was_run, call.output.content_text()));
            async move {
                assert!(!call.output.content_text().contains("key"), "injected: no redaction");
                AfterTool::Keep
            }
        });
    let lived = live(panics, vec![read("key"), read("no"), Said::text("done")]).await;
    let why = "an after_tool hook failed: it panicked: injected: no redaction";
    assert_eq!(
        lived.results,
        [
            format!("The call succeeded, and its output is withheld: {why}."),
            "The call was not run: no.".into()
        ]
    );
    assert_eq!(lived.warnings(), [format!("the output of `read` was withheld: {why}")]);
    // It sees the model's input, however that was produced.
    assert_eq!(*asked.lock().unwrap(), ["true the contents of key", "false The call was not run: no."]);
}

/// An abort does not wait for a hook, and the call in question has no effect.
#[tokio::test(start_paused = true)]
async fn an_abort_ends_a_run_whose_hook_still_waits() {
    let told = Told::default();
    for is_before in [true, false] {
        let model = simulator(Sequence(vec![read("a"), Said::text("resumed")]), 100_000);
        let runtime = runtime(&model).await;
        let waiting = Arc::new(tokio::sync::Notify::new());
        let (before, after) = (Arc::clone(&waiting), Arc::clone(&waiting));
        let hooked = match is_before {
            true => reader(&told).before_tool(move |_| {
                before.notify_one();
                std::future::pending()
            }),
            false => reader(&told).after_tool(move |_| {
                after.notify_one();
                std::future::pending()
            }),
        };
        let session = runtime.open("s", &hooked).await.unwrap();
        let (prompted, began) = (session.clone(), tokio::time::Instant::now());
        let prompt = tokio::spawn(async move { prompted.prompt("go").await });
        waiting.notified().await;
        session.abort();
        assert!(matches!(prompt.await.unwrap(), Err(Error::Aborted)));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let context = session.context().await.unwrap();
        let result = context.last().unwrap().text();
        match is_before {
            true => assert_eq!(result, "cancelled before it started; it took no effect"),
            false => assert_eq!(
                result,
                "The call succeeded, and its output is withheld: an after_tool hook failed: the run was cancelled \
                 before it ended."
            ),
        }
    }
    assert_eq!(*told.lock().unwrap(), ["a"]);
}

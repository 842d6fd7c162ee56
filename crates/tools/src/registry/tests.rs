//! One result for every call, whatever the model writes and the tool does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{ToolCall, ToolResult, ToolStatus};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::Registry;
use crate::{ToolContext, ToolError, ToolOutput, ToolsError, tool};

/// A tool's own limit overrides the agent's, whether it is shorter or longer, and the model is told which one
/// applied.
#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_tool_wins() {
    let waits = |name: &str| {
        tool(name, async |_: Echo| {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok("done")
        })
    };
    let mut registry = Registry::new();
    registry.insert(waits("short").timeout(Duration::from_millis(200))).expect("valid");
    registry.insert(waits("long").timeout(Duration::from_secs(60))).expect("valid");
    registry.insert(waits("plain")).expect("valid");
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    for (name, agents, expect) in [
        ("short", None, "stopped after 200ms, the limit for a call"),
        ("short", seconds(5), "stopped after 200ms, the limit for a call"),
        ("long", seconds(5), "done"),
        ("plain", seconds(5), "stopped after 5s, the limit for a call"),
        ("plain", None, "done"),
    ] {
        let (_, text) = run_within(agents, &registry, name, "{}", &CancellationToken::new()).await;
        assert_eq!(text.lines().next(), Some(expect), "{name} under {agents:?}");
    }
}

/// Says it again.
#[derive(Deserialize, JsonSchema)]
struct Echo {
    text: Option<String>,
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    for tool in [
        tool("echo", |echo: Echo| async move { Ok(echo.text.unwrap_or_default()) }),
        tool("panics", |echo: Echo| async move {
            if echo.text.is_none() {
                panic!("out of paper");
            }
            Ok("")
        }),
        tool("flood", |_: Echo| async move { Ok("line\n".repeat(1_000_000)) }),
        tool("hangs", |_: Echo| async move { std::future::pending::<Result<String, ToolError>>().await })
            .read_only(),
        tool("waits", |_: Echo, context: ToolContext| async move {
            context.cancel.cancelled().await;
            Ok(ToolOutput::interrupted("half done"))
        }),
        tool("finishes", |_: Echo, context: ToolContext| async move {
            context.cancel.cancelled().await;
            Ok(ToolOutput::text("done all the same"))
        }),
    ] {
        registry.insert(tool).expect("valid names");
    }
    registry
}

async fn run(
    registry: &Registry,
    name: &str,
    arguments: &str,
    cancel: &CancellationToken,
) -> (ToolStatus, String) {
    run_within(None, registry, name, arguments, cancel).await
}

async fn run_within(
    time_limit: Option<Duration>,
    registry: &Registry,
    name: &str,
    arguments: &str,
    cancel: &CancellationToken,
) -> (ToolStatus, String) {
    let call = ToolCall { id: "call-1".into(), name: name.into(), arguments: arguments.into() };
    let context = ToolContext { cancel: cancel.clone(), ..ToolContext::new("s", &call.id) };
    let ToolResult { call_id, tool_name, content, status, touched } =
        registry.run(&call, context, time_limit).await;
    assert_eq!((call_id.as_str(), tool_name.as_str(), touched.len()), ("call-1", name, 0));
    (status, blocks_text(&content))
}

async fn check(name: &str, arguments: &str, status: ToolStatus, text: &str) {
    let (found_status, found) = run(&registry(), name, arguments, &CancellationToken::new()).await;
    assert_eq!(found_status, status, "{name} {arguments}: {found}");
    assert!(found.contains(text), "{name} {arguments}: {found}");
}

#[tokio::test]
async fn calls_give_one_result() {
    use ToolStatus::{Error, Ok};
    check("echo", r#"{"text":"hello"}"#, Ok, "hello").await;
    check("echo", "", Ok, "").await;
    check("echo", " \n", Ok, "").await;
    check("echo", r#"{"text":"hel"#, Error, "end in the middle, after 12 bytes").await;
    check("echo", "{text: 1}", Error, "not valid JSON, so the call was not run: key must be a string").await;
    check("echo", r#"{"text":"a"} extra"#, Error, "trailing characters").await;
    check("echo", r#"{"text":1}"#, Error, "at `text`: invalid type: integer `1`, expected a string").await;
    check("echo", "[]", Error, "expected an object").await;
    check("ekho", "{}", Error, "there is no tool `ekho`; did you mean `echo`?\ntools: echo, panics, flood")
        .await;
    check("zzz", "{}", Error, "there is no tool `zzz`\ntools: echo, panics").await;
    check("panics", "{}", Error, "the tool crashed (out of paper)").await;
    check("flood", "{}", Ok, "left out here").await;
    let deep = "[".repeat(100_000);
    check("echo", &deep, Error, "not valid JSON").await;
}

#[tokio::test]
async fn results_are_capped() {
    let (_, text) = run(&registry(), "flood", "{}", &CancellationToken::new()).await;
    assert!(text.len() <= 1024 * 1024 + 200 && text.lines().count() <= 100_001, "{}", text.len());
    assert!(text.starts_with("line\nline\n") && text.ends_with("line\n") && text.contains("left out here"));
}

#[tokio::test(start_paused = true)]
async fn cancellation_interrupts() {
    let cancel = CancellationToken::new();
    let registry = registry();
    let (hangs, waits, ()) =
        tokio::join!(run(&registry, "hangs", "{}", &cancel), run(&registry, "waits", "{}", &cancel), async {
            cancel.cancel()
        },);
    assert_eq!(hangs.0, ToolStatus::Interrupted);
    assert!(hangs.1.contains("Whether it took effect is not known"), "{}", hangs.1);
    assert_eq!(waits, (ToolStatus::Interrupted, "half done".to_owned()));
    let late = run(&registry, "echo", "{}", &cancel).await;
    assert_eq!(late, (ToolStatus::Interrupted, "cancelled before it started; it took no effect".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_an_error_that_says_so() {
    let registry = registry();
    let limit = Some(Duration::from_secs(3));
    let cancel = CancellationToken::new();
    let started = tokio::time::Instant::now();
    let (status, text) = run_within(limit, &registry, "hangs", "{}", &cancel).await;
    assert_eq!(status, ToolStatus::Error);
    assert!(text.starts_with("stopped after 3s, the limit for a call\n"), "{text}");
    assert_eq!(started.elapsed(), Duration::from_millis(3_250), "the limit and the grace");
    let (status, text) = run_within(limit, &registry, "waits", "{}", &cancel).await;
    assert_eq!((status, text.ends_with("half done")), (ToolStatus::Error, true));
    let (status, text) = run_within(limit, &registry, "finishes", "{}", &cancel).await;
    assert_eq!((status, text.as_str()), (ToolStatus::Ok, "done all the same"));
    assert!(!cancel.is_cancelled(), "only the call was cancelled");
}

/// A tool that declares a longer grace period gets that time, and no more.
#[tokio::test(start_paused = true)]
async fn the_grace_is_the_tool_s_own() {
    let tool = |name: &str, takes_s: u64| {
        tool(name, move |_: Echo, context: ToolContext| async move {
            context.cancel.cancelled().await;
            tokio::time::sleep(Duration::from_secs(takes_s)).await;
            Ok(ToolOutput::interrupted("in order"))
        })
        .grace(Duration::from_secs(5))
    };
    let mut registry = Registry::new();
    registry.insert(tool("orderly", 4)).expect("a valid name");
    registry.insert(tool("slow", 6)).expect("a valid name");
    for (name, took_s, said) in
        [("orderly", 4, "in order"), ("slow", 5, "Whether it took effect is not known")]
    {
        let cancel = CancellationToken::new();
        let started = tokio::time::Instant::now();
        let ((status, text), ()) =
            tokio::join!(run(&registry, name, "{}", &cancel), async { cancel.cancel() });
        assert_eq!(
            (status, started.elapsed()),
            (ToolStatus::Interrupted, Duration::from_secs(took_s)),
            "{name}"
        );
        assert!(text.contains(said), "{name}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_ignores_cancellation_is_dropped() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let seen = dropped.clone();
    let mut registry = Registry::new();
    let tool = tool("deaf", move |_: Echo| {
        let guard = Dropped(seen.clone());
        async move {
            let _guard = guard;
            std::future::pending::<Result<String, ToolError>>().await
        }
    });
    registry.insert(tool).expect("a valid name");
    let cancel = CancellationToken::new();
    let ((status, _), ()) = tokio::join!(run(&registry, "deaf", "{}", &cancel), async { cancel.cancel() });
    assert_eq!(status, ToolStatus::Interrupted);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn names_are_checked_and_replaced_in_place() {
    let mut registry = registry();
    let before = registry.clone();
    for name in ["", "a b", "ü", "a.b", &"x".repeat(65)] {
        let wrong = registry.insert(tool(name, |_: Echo| async move { Ok("") }));
        assert!(matches!(wrong, Err(ToolsError::InvalidName { .. })), "{name}");
    }
    registry.insert(tool("panics", |_: Echo| async move { Ok("") }).read_only()).expect("a valid name");
    registry.insert(tool("new", |_: Echo| async move { Ok("") })).expect("a valid name");
    let names = |registry: &Registry| {
        registry.specs().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&registry), "echo panics flood hangs waits finishes new");
    assert_eq!(names(&before), "echo panics flood hangs waits finishes");
    assert!(registry.get("panics").expect("inserted").is_read_only());
    assert!(!before.get("panics").expect("inserted").is_read_only());
    let mut merged = Registry::new();
    merged.merge(&registry);
    assert_eq!((names(&merged), merged.len()), (names(&registry), 7));
}

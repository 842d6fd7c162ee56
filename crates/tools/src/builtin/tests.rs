//! The built-in tools, each through one table over a temporary workspace, and their descriptions for models.

mod cuts;
mod files;
mod search;
mod shell;

use std::path::Path;

use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{ToolCall, ToolResult, ToolStatus, Touch, Touched};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{bash, files_and_shell};
use crate::sandbox::Sandbox;
use crate::{Registry, ToolContext, Workspace};

/// A workspace with files in it, and the built-in tools over it.
struct Fixture {
    folder: TempDir,
    registry: Registry,
}

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        Self::with_shell(files, bare())
    }

    fn with_shell(files: &[(&str, &str)], shell: bash::Options) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (path, content) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("folders are made");
            std::fs::write(path, content).expect("files are written");
        }
        let workspace = Workspace::open(folder.path()).expect("the folder exists");
        Self { registry: files_and_shell(workspace, shell), folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    async fn call(&self, tool: &str, arguments: Value) -> ToolResult {
        self.call_with(tool, arguments, context()).await
    }

    async fn call_with(&self, tool: &str, arguments: Value, context: ToolContext) -> ToolResult {
        let call = ToolCall { id: "c".into(), name: tool.into(), arguments: arguments.to_string() };
        self.registry.run(&call, context, None).await
    }

    /// Checks that the call succeeds with exactly this text.
    async fn check(&self, tool: &str, arguments: Value, expect: &str) -> Vec<Touched> {
        let result = self.call(tool, arguments.clone()).await;
        assert_eq!(blocks_text(&result.content), expect, "{tool} {arguments}");
        assert_eq!(result.status, ToolStatus::Ok, "{tool} {arguments}");
        result.touched
    }

    /// Checks that the call fails with this text and touches nothing.
    async fn check_error(&self, tool: &str, arguments: Value, expect: &str) {
        let result = self.call(tool, arguments.clone()).await;
        let text = blocks_text(&result.content);
        assert!(text.contains(expect), "{tool} {arguments}: {text}");
        assert_eq!(result.status, ToolStatus::Error, "{tool} {arguments}: {text}");
        assert_eq!(result.touched, [], "{tool} {arguments}");
    }

    fn content(&self, path: &str) -> String {
        String::from_utf8(std::fs::read(self.path().join(path)).expect("the file exists")).expect("text")
    }
}

/// Commands without a sandbox.
fn bare() -> bash::Options {
    bash::Options { sandbox: Sandbox::off(), ..bash::Options::default() }
}

fn context() -> ToolContext {
    ToolContext::new("s", "c")
}

fn touched(path: &str, touch: Touch) -> Vec<Touched> {
    vec![Touched { path: path.into(), touch }]
}

/// To accept a change, put the text that a failing run prints into the file.
#[test]
fn what_models_are_told() {
    let fixture = Fixture::new(&[]);
    let specs: Vec<Value> = fixture
        .registry
        .specs()
        .iter()
        .map(
            |spec| json!({"name": spec.name, "description": spec.description, "parameters": spec.parameters}),
        )
        .collect();
    let found = serde_json::to_string_pretty(&specs).expect("JSON values are JSON") + "\n";
    assert!(found == include_str!("tests/specs.json"), "{found}");
    let read_only = |name: &str| fixture.registry.get(name).expect("it is built in").is_read_only();
    let names = ["read", "list", "grep", "write", "edit", "bash"];
    assert_eq!(names.map(read_only), [true, true, true, false, false, false]);
}

#[test]
fn only_one_set_has_the_shell() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let workspace = Workspace::open(folder.path()).expect("it exists");
    let names = |registry: Registry| {
        registry.specs().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(super::read_only(workspace.clone())), "read list grep");
    assert_eq!(names(super::files(workspace.clone())), "read list grep write edit");
    let shell = bare();
    assert_eq!(names(files_and_shell(workspace, shell)), "read list grep write edit bash");
}

#[tokio::test]
async fn cancelled_calls_take_no_effect() {
    let fixture = Fixture::new(&[("a.txt", "a\n")]);
    let cancel = CancellationToken::new();
    cancel.cancel();
    for (tool, arguments) in [
        ("read", json!({"path": "a.txt"})),
        ("write", json!({"path": "a.txt", "content": "b"})),
        ("edit", json!({"path": "a.txt", "old": "a", "new": "b"})),
        ("list", json!({})),
        ("grep", json!({"pattern": "a"})),
        ("bash", json!({"command": "echo b > a.txt"})),
    ] {
        let context = ToolContext { cancel: cancel.clone(), ..context() };
        // Without the registry, which would not even start the call.
        let output = fixture.registry.get(tool).expect("built in").call(arguments, context).await;
        assert_eq!(output.status, ToolStatus::Interrupted, "{tool}: {output:?}");
        assert_eq!(output.touched, [], "{tool}");
    }
    assert_eq!(fixture.content("a.txt"), "a\n");
}

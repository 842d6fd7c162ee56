//! The cost of the file tools: reading, replacing and editing a file, and what keeping the old content adds;
//! and what a command costs where the files of its workspace are kept and examined.
//!
//! The baseline is the same work without the tools: reading a file, replacing one by a synced new one, and the
//! command in a workspace whose files are not kept.

use std::io::Write as _;
use std::path::Path;

use greenroom::files::{FileHistory, Limits};
use greenroom::prelude::*;
use greenroom_kernel::{ToolCall, ToolStatus};
use greenroom_tests::measure::{figure, micros, ratio, scaled, time_of, title};
use greenroom_tools::Workspace;
use greenroom_tools::builtin::bash;
use greenroom_tools::rewind::CallFiles;
use serde_json::{Value, json};

/// The size of the file that is read and written, in bytes.
const FILE_BYTES: usize = 32 * 1024;
/// How many files are beside it.
const OTHERS: usize = 2_000;

fn main() {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let dir = tempfile::tempdir().expect("a folder");
    let work = dir.path().join("work");
    std::fs::create_dir(&work).expect("made");
    let line = format!("{}\n", "x".repeat(63));
    let content = line.repeat(FILE_BYTES / line.len());
    std::fs::write(work.join("file"), &content).expect("written");
    for number in 0..OTHERS {
        std::fs::write(work.join(format!("other{number}")), "content\n").expect("written");
    }
    let tools =
        builtin::files_and_shell(Workspace::open(&work).expect("it exists"), bash::Options::default());
    let history = FileHistory::open(&dir.path().join("files"), Limits::default(), Vec::new());
    let history = history.expect("it can be made");
    let call = |tool: &str, arguments: &Value, files: CallFiles| {
        let call = ToolCall { id: "c".into(), name: tool.into(), arguments: arguments.to_string() };
        let mut context = ToolContext::new("s", "c");
        context.files = files;
        let result = tokio.block_on(tools.run(&call, context, None));
        assert_eq!(result.status, ToolStatus::Ok, "{result:?}");
    };
    let mut entry = 0;
    let mut kept = || {
        entry += 2;
        history.call("s", 0, entry)
    };
    title(&format!("file tools, a file of {FILE_BYTES} bytes"), "the same work without the tools");
    println!("| what                                  | baseline µs |     µs | ratio |");
    println!("|---------------------------------------|-------------|--------|-------|");
    let row = |what: &str, name: &str, baseline: f64, value: f64| {
        println!("| {what:<37} | {baseline:>11.1} | {value:>6.1} | {:>5.2} |", ratio(value, baseline));
        figure(&format!("files/{name}"), value, "µs", Some(ratio(value, baseline)));
    };
    let runs = scaled(400);
    let read = json!({ "path": "file" });
    let bare = micros(time_of(runs, || std::fs::read(work.join("file")).expect("it is there")));
    row("read", "read", bare, micros(time_of(runs, || call("read", &read, CallFiles::default()))));

    // Each content is a new one.
    let mut number = 0;
    let mut next = |content: &str| {
        number += 1;
        format!("{number}\n{content}")
    };
    let replaced = micros(time_of(runs, || replace_plainly(&work, &next(&content))));
    let write = |content: String, files| call("write", &json!({ "path": "file", "content": content }), files);
    let without = micros(time_of(runs, || write(next(&content), CallFiles::default())));
    row("write", "write", replaced, without);
    let with = micros(time_of(runs, || write(next(&content), kept())));
    row("write, the old content kept", "write_kept", without, with);

    let mut edits = 0;
    let mut edit = |files| {
        edits += 1;
        let (old, new) = (format!("edit {}\n", edits - 1), format!("edit {edits}\n"));
        call("edit", &json!({ "path": "file", "old": old, "new": new }), files);
    };
    write(format!("edit 0\n{content}"), CallFiles::default());
    let without = micros(time_of(runs, || edit(CallFiles::default())));
    row("edit", "edit", replaced, without);
    let with = micros(time_of(runs, || edit(kept())));
    row("edit, the old content kept", "edit_kept", without, with);

    let runs = scaled(40);
    let command = json!({ "command": "true" });
    let without = micros(time_of(runs, || call("bash", &command, CallFiles::default())));
    let with = micros(time_of(runs, || call("bash", &command, kept())));
    row(&format!("a command beside {OTHERS} files"), "command_kept", without, with);
    println!();
}

/// Replaces the file as a careful program does.
fn replace_plainly(work: &Path, content: &str) {
    let part = work.join("part");
    let mut file = std::fs::File::create(&part).expect("it can be made");
    file.write_all(content.as_bytes()).expect("written");
    file.sync_data().expect("synced");
    std::fs::rename(part, work.join("file")).expect("renamed");
}

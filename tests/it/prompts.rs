//! Every prompt that we write, as a provider receives it: system prompt and messages, snapshot by snapshot.
//! So a changed word of a prompt shows in the diff of the change that made it.
//!
//! To accept a change, run the tests with `INSTA_UPDATE=always` and check the output of `git diff`.
//!
//! Invariants: ids that providers make are numbered in the order in which they appear.

use greenroom::prelude::*;
use greenroom_kernel::files::Touch;
use greenroom_kernel::message::Message;
use greenroom_simulator::{
    Answer as Said, ByPurpose, Echo, LoggedRequest, SeenRequest, Sequence, Simulator, Summariser,
};
use serde_json::json;

use crate::compaction_fixtures::{
    asked, calls, chat, keep, opened, result, runs, said, settings, text, user,
};
use crate::support::{agent, builder, drain, runtime, simulator};

/// Replaces the filler of [`text`] in a line with an ellipsis, up to the end of the line or the JSON string.
fn without_filler(line: &str) -> String {
    let Some((before, filler)) = line.split_once(" the file line") else { return line.to_owned() };
    let end = filler.find('"').unwrap_or(filler.len());
    format!("{before} …{}", &filler[end..])
}

/// Returns a request as one text, without filler.
fn sent(request: &SeenRequest) -> String {
    let output = request.settings.output_tokens_max.map_or("any".to_owned(), |tokens| tokens.to_string());
    let mut out = format!("output tokens: {output}; tools: {}\n", request.tools.len());
    let system = request.system.iter().map(|system| ("system", system.clone()));
    let messages = request.messages.iter().map(|message| (message.role(), message.text()));
    for (role, text) in system.chain(messages) {
        out.push_str(&format!("\n=== {role} ===\n"));
        for line in text.lines() {
            out.push_str(without_filler(line).trim_end());
            out.push('\n');
        }
    }
    out
}

/// Compares requests with the snapshot of this name.
fn check(name: &str, requests: &[&LoggedRequest]) {
    assert!(!requests.is_empty(), "{name}: nothing was asked");
    let texts: Vec<String> = requests.iter().map(|logged| sent(&logged.request)).collect();
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, texts.join("\n\n"));
    });
}

/// Answers runs by echoing the prompt, and every summary request with all headings and almost nothing below
/// them.
fn brief() -> Simulator {
    simulator(ByPurpose::new(Echo, Summariser::Lossy), 100_000)
}

/// Returns a turn with a tool, and some with only text.
fn talk() -> Vec<Message> {
    vec![
        user("Build the lighthouse. Never touch the cliff."),
        calls(&["a", "b"], "plans/tower.md"),
        // Long enough that a summary is shorter.
        result("a", text("The tower has 40 m.", 400), &[("plans/tower.md", Touch::Read)]),
        result("b", "written", &[("build/log.md", Touch::Modified)]),
        said("The plan is read and the log is begun."),
        user("Which lamp?"),
        said("A Fresnel lens of the first order."),
        user("And the stairs?"),
        said("In a spiral."),
    ]
}

fn force() -> CompactOptions {
    CompactOptions { force: true, ..keep(1) }
}

#[tokio::test(start_paused = true)]
async fn a_history_and_then_its_update() {
    let model = brief();
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), talk()).await;
    let focused = CompactOptions { focus: Some("the stairs".into()), ..force() };
    assert!(session.compact(focused).await.unwrap().is_installed());
    session.prompt(text("How high is a step?", 200)).await.unwrap();
    session.prompt("And the door?").await.unwrap();
    assert!(session.compact(force()).await.unwrap().is_installed());
    let asked = asked(&model);
    assert_eq!(asked.len(), 2);
    check("history", &[&asked[0]]);
    check("update", &[&asked[1]]);
    session.prompt("Go on.").await.unwrap();
    check("the_next_step_after_a_compaction", &[runs(&model).last().unwrap()]);
    model.assert_clean();
}

/// Returns a turn that is longer than the kept part, and a history before it.
fn long_turn() -> Vec<Message> {
    // Long enough that two summaries are shorter.
    let question = text("Who are you?", 400);
    let mut messages = vec![user(&question), said("A builder."), user("Build the lighthouse.")];
    for step in 0..6 {
        let id = format!("c{step}");
        messages.push(calls(&[&id], &format!("floor_{step}.md")));
        messages.push(result(&id, format!("Floor {step} is built."), &[]));
    }
    messages
}

#[tokio::test(start_paused = true)]
async fn a_split_turn() {
    let model = brief();
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), long_turn()).await;
    assert!(session.compact(keep(60)).await.unwrap().is_installed());
    let asked = asked(&model);
    let prefix = asked.iter().find(|logged| logged.request.last_user_text().contains("## Original Request"));
    assert_eq!(asked.len(), 2, "the history and the beginning of the turn");
    check("split_turn_prefix", &[prefix.unwrap()]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn parts_and_their_merge() {
    let model = brief();
    let runtime = runtime(&model).await;
    // The window of the summariser is the session's own: the history is sent in parts.
    let session = opened(&runtime, "s", &agent(6_000), chat(10, 600)).await;
    assert!(session.compact(keep(600)).await.unwrap().is_installed());
    let asked = asked(&model);
    let (merges, parts): (Vec<_>, Vec<_>) =
        asked.iter().partition(|logged| logged.request.last_user_text().contains("<part number="));
    assert!(parts.len() >= 2, "{} parts", parts.len());
    check("part", &[parts[0]]);
    check("merge", &merges);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_branch_that_is_left() {
    let model = brief();
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), talk()).await;
    session.branch_with_summary(Some(greenroom_kernel::EntryId(4))).await.unwrap();
    let asked: Vec<_> = asked(&model);
    check("branch", &asked.iter().collect::<Vec<_>>());
    session.prompt("Go on.").await.unwrap();
    check("the_next_step_on_the_new_branch", &[runs(&model).last().unwrap()]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_prompt_of_the_user_s_own() {
    let model = brief();
    let own =
        settings(|settings| settings.compact_prompt = Some("Tell it as a sailor:\n{messages}\nAhoy.".into()));
    let runtime = builder(&model).compaction(own).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(100_000), talk()).await;
    assert!(session.compact(force()).await.unwrap().is_installed());
    session.prompt(text("How high is a step?", 200)).await.unwrap();
    session.prompt("And the door?").await.unwrap();
    assert!(session.compact(force()).await.unwrap().is_installed());
    let asked = asked(&model);
    assert_eq!(asked.len(), 2);
    check("own_prompt", &[&asked[0]]);
    check("own_prompt_update", &[&asked[1]]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_sent_back() {
    /// How high a tower is.
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Tower {
        metres: u32,
    }
    let script = ["Forty.", r#"{"metres":"forty"}"#, r#"{"metres":40}"#].map(Said::text);
    let model = simulator(Sequence(script.to_vec()), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let tower = session.prompt("How high is the tower?").output::<Tower>().await.unwrap();
    assert_eq!(tower.value.metres, 40);
    check("answers_sent_back", &[runs(&model).last().unwrap()]);
    model.assert_clean();
}

/// The runtime's replacement for a missing result.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_interrupted() {
    let model = brief();
    let runtime = runtime(&model).await;
    let interrupted = vec![user("Look."), calls(&["a", "b"], "plans/tower.md"), result("a", "40 m", &[])];
    let session = opened(&runtime, "s", &agent(100_000), interrupted).await;
    session.prompt("Well?").await.unwrap();
    check("interrupted_call", &[runs(&model).last().unwrap()]);
    model.assert_clean();
}

/// The events of a run with two tool calls and of the compaction after it, one line each: names and contents.
#[tokio::test(start_paused = true)]
async fn the_events_of_a_run_and_a_compaction() {
    /// Looks at a file.
    #[derive(Deserialize, JsonSchema)]
    struct Look {
        /// The file's path.
        path: String,
    }
    let script = vec![
        Said::call("look", &json!({"path": "a"})).and_call("look", &json!({"path": "b"})),
        Said::text(text("Both are there.", 300)),
        Said::text("Good."),
    ];
    let model = simulator(ByPurpose::new(Sequence(script), Summariser::Lossy), 100_000);
    let runtime = runtime(&model).await;
    let looking =
        agent(100_000).tool("look", |look: Look| async move { Ok(format!("{} is there", look.path)) });
    let session = runtime.open("s", &looking).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("Look at a and b.").await.unwrap();
    session.prompt("Thanks.").await.unwrap();
    assert!(session.compact(force()).await.unwrap().is_installed());
    let mut ids: Vec<String> = Vec::new();
    let mut lines = String::new();
    for event in drain(&mut events).iter().filter(|event| event.kind.name() != "message_delta") {
        let mut line = serde_json::to_string(&**event).unwrap();
        while let Some(at) = line.find(":\"call_") {
            let id: String = line[at + 2..].chars().take_while(|letter| *letter != '"').collect();
            let number = ids.iter().position(|known| *known == id).unwrap_or_else(|| {
                ids.push(id.clone());
                ids.len() - 1
            });
            line = line.replace(&id, &format!("<call {number}>"));
        }
        lines.push_str(&without_filler(&line));
        lines.push('\n');
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("events", lines);
    });
    model.assert_clean();
}

//! The context of the model besides the conversation: its system prompt, the project's instructions, and skills.

use greenroom_kernel::Message;
use greenroom_simulator::{Answer, Sequence};

use super::support::{Model, Place, Says};

/// A place whose user trusts the project in its working folder.
fn trusted() -> Place {
    let place = Place::new();
    place.own_file(&format!("trusted_folders: [{:?}]\n", place.work()));
    place
}

/// A place whose file `AGENTS.md` says this, and is trusted.
fn with_instructions(text: &str) -> Place {
    let place = trusted();
    write(&place, "AGENTS.md", text);
    place
}

pub(super) fn write(place: &Place, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = place.work().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
}

fn talker() -> Model {
    Model::new(Says(Answer::text("Yes.")), |_| {})
}

/// The system prompts of all requests.
fn told(model: &Model) -> Vec<String> {
    model.simulator.requests().iter().map(|seen| seen.request.system.clone().unwrap_or_default()).collect()
}

fn run(place: &Place, model: &Model, more: &[&str]) -> Vec<String> {
    let url = model.url();
    let ran = place.run(&[&["run", "-p", "hi", "--base-url", &url], more].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    told(model)
}

#[test]
fn a_system_prompt_of_ones_own_and_what_is_added() {
    let place = Place::new();
    let only = |more: &[&str]| run(&place, &talker(), more).remove(0);
    assert!(only(&[]).starts_with("You are a careful software engineer"));
    assert_eq!(only(&["--system", "You are a poet."]), "You are a poet.");
    assert_eq!(only(&["--system", "A", "--append-system", "B"]), "A\n\nB");
    std::fs::write(place.work().join("prompt.md"), "From a file.\n").unwrap();
    assert_eq!(only(&["--set", "system_prompt=file:prompt.md", "--append-system", "B"]), "From a file.\n\nB");
    assert_eq!(
        only(&["--system", "file:prompt.md", "--append-system", " file: prompt.md"]),
        "From a file.\n\nFrom a file."
    );
    let missing =
        place.run(&["run", "-p", "hi", "--base-url", &talker().url(), "--append-system", "file:none.md"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(
        missing.stderr.contains("--append-system: cannot read") && missing.stderr.contains("none.md"),
        "{missing:?}"
    );
    place.own_file("system_prompt: Own.\nappend_system_prompt: Added.\n");
    assert_eq!(only(&[]), "Own.\n\nAdded.");
    assert_eq!(only(&["--system", "Flag."]), "Flag.\n\nAdded.");
    // A folder's file does not speak for the user.
    place.project_file("system_prompt: Evil.\n");
    let ran = place.run(&["run", "-p", "hi", "--base-url", &talker().url()]);
    assert!(ran.stderr.contains("system_prompt") && ran.stderr.contains("trusted_folders"), "{ran:?}");
    assert_eq!(only(&[]), "Own.\n\nAdded.");
}

#[test]
fn a_projects_instructions_are_told_until_they_are_turned_off() {
    let place = with_instructions("Use tabs.\n");
    let prompt = run(&place, &talker(), &[]).remove(0);
    assert!(prompt.ends_with("<project-file path=\"AGENTS.md\">\nUse tabs.\n</project-file>"), "{prompt}");
    assert!(!run(&place, &talker(), &["--set", "project_instructions=false"]).remove(0).contains("tabs"));
    assert!(!run(&place, &talker(), &["--no-tools"]).remove(0).contains("tabs"), "it works in no folder");
}

/// Files of a project in one folder, under a name that no other test uses.
#[test]
fn a_projects_files_are_left_out_until_the_folder_is_trusted() {
    let place = Place::new();
    write(&place, "AGENTS.md", "Use tabs.\n");
    write(&place, ".claude/skills/plan/SKILL.md", "---\nname: plan\ndescription: Slowly.\n---\nThink.\n");
    place.project_file("append_system_prompt: Of the project.\n");
    let texts = ["Use tabs.", "plan: Slowly.", "Of the project."];
    let check = |more: &[&str], is_trusted: bool| {
        let model = talker();
        let url = model.url();
        let ran = place.run(&[&["run", "-p", "hi", "--base-url", &url], more].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let prompt = told(&model).remove(0);
        texts
            .iter()
            .for_each(|text| assert_eq!(prompt.contains(text), is_trusted, "{more:?}: {text}: {prompt}"));
        let says_how =
            ran.stderr.contains("AGENTS.md") && ran.stderr.contains("greenroom config trust --folder");
        assert_eq!(says_how, !is_trusted, "{ran:?}");
    };
    check(&[], false);
    check(&["--trust-folder"], true);
    check(&[], false);
    let done = place.run(&["config", "trust", "--folder"]);
    assert!(done.code == Some(0) && done.stdout.contains("AGENTS.md, .claude/skills"), "{done:?}");
    check(&[], true);
}

#[test]
fn the_same_bytes_are_sent_until_the_file_changes() {
    let place = with_instructions("First.\n");
    let model = talker();
    let url = model.url();
    let mut chat = place.start(&["chat", "--session", "mine", "--base-url", &url]);
    for text in ["one", "two"] {
        chat.say(text);
        chat.wait_for(" tokens in all");
    }
    write(&place, "AGENTS.md", "Second, and longer.\n");
    chat.say("three");
    chat.wait_for(" tokens in all");
    chat.close_input();
    chat.end();
    let told = told(&model);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(told[0], told[1]);
    assert!(told[1].contains("First.") && told[2].contains("\nSecond, and longer.\n"), "{told:?}");
}

#[test]
fn a_skill_is_offered_and_read_when_it_is_needed() {
    let place = trusted();
    write(
        &place,
        ".claude/skills/release/SKILL.md",
        "---\nname: release\ndescription: How to release.\n---\nTag it.\n",
    );
    let call = Answer::call("skill", &serde_json::json!({ "name": "release" }));
    let model = Model::new(Sequence(vec![call, Answer::text("Done.")]), |_| {});
    let told = run(&place, &model, &[]);
    assert!(told[0].ends_with("- release: How to release."), "{told:?}");
    assert!(!told[0].contains("Tag it"), "{told:?}");
    let requests = model.simulator.requests();
    let result = requests[1].request.messages.iter().find_map(|message| match &**message {
        Message::ToolResult(result) => Some(format!("{result:?}")),
        Message::User(_) | Message::Assistant(_) => None,
    });
    assert!(result.as_ref().is_some_and(|result| result.contains("Tag it.")), "{result:?}");
    // Turned off, there is neither the offer nor the tool.
    let model = talker();
    assert!(!run(&place, &model, &["--set", "skills=false"]).remove(0).contains("release"));
    assert!(model.simulator.requests()[0].request.tools.iter().all(|tool| tool.name != "skill"));
}

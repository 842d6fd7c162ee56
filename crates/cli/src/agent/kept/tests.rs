//! The stored options, and the precedence of flags.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use greenroom::ReasoningEffort;
use greenroom::permissions::Mode;
use greenroom_terminal::ColorChoice;

use super::{Change, Kept, change, copy, forget, without_query};
use crate::args::{Global, ModelArgs};

fn global(dir: &std::path::Path) -> Global {
    Global {
        data_dir: Some(dir.join("store")),
        config: None,
        settings: Vec::new(),
        trust_folder: false,
        no_host: true,
        verbose: 0,
        color: ColorChoice::Never,
    }
}

/// The flags that matter here, in a line.
fn shown(args: &ModelArgs) -> String {
    let server = args.server.base_url.as_ref().or(args.server.provider.as_ref());
    let mode = args.mode.map(|mode| mode.as_str());
    let kept = if args.server.is_kept { " kept" } else { "" };
    format!("{server:?} {:?} {mode:?} {}{kept}", args.model, if args.allow_write { "write" } else { "" })
}

#[test]
fn flags_take_precedence_over_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let kept = Kept {
        base_url: Some("http://localhost:1/v1".to_owned()),
        model: Some("qwen".to_owned()),
        mode: Some(Mode::Ask),
        chosen_mode: Some(Mode::AcceptEdits),
        ..Kept::default()
    };
    type Given = fn(&mut ModelArgs);
    let table: [(Given, bool, &str, Option<Mode>); 6] = [
        (
            |_| {},
            true,
            "Some(\"http://localhost:1/v1\") Some(\"qwen\") Some(\"ask\")  kept",
            Some(Mode::AcceptEdits),
        ),
        (|_| {}, false, "Some(\"http://localhost:1/v1\") Some(\"qwen\") None  kept", None),
        (
            |args| args.model = Some("other".to_owned()),
            true,
            "Some(\"http://localhost:1/v1\") Some(\"other\") Some(\"ask\")  kept",
            Some(Mode::AcceptEdits),
        ),
        // Another server has other models.
        (
            |args| args.server.provider = Some("openai".to_owned()),
            true,
            "Some(\"openai\") None Some(\"ask\") ",
            Some(Mode::AcceptEdits),
        ),
        (|args| args.simulate = true, true, "None None Some(\"ask\") ", Some(Mode::AcceptEdits)),
        (
            |args| args.allow_write = true,
            true,
            "Some(\"http://localhost:1/v1\") Some(\"qwen\") None write kept",
            None,
        ),
    ];
    for (given, with_permissions, expected, mode) in table {
        let (mut global, mut args) = (global(dir.path()), ModelArgs::bare());
        given(&mut args);
        kept.complete(&mut global, &mut args, with_permissions);
        assert_eq!(shown(&args), expected);
        assert_eq!(kept.chosen_mode(&args), mode, "{expected}");
    }
}

#[test]
fn it_is_read_as_it_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let global = global(dir.path());
    assert_eq!(Kept::read(&global, "one"), None);
    let kept = Kept { model: Some("a".to_owned()), ..Kept::default() };
    kept.write(&global, "one").unwrap();
    change(&global, "one", Change::Effort(Some(ReasoningEffort::High))).unwrap();
    change(&global, "one", Change::Mode(Mode::Everything)).unwrap();
    change(&global, "none", Change::Mode(Mode::Everything)).unwrap();
    copy(&global, "one", "two").unwrap();
    let expected =
        Kept { effort: Some(ReasoningEffort::High), chosen_mode: Some(Mode::Everything), ..kept.clone() };
    for id in ["one", "two"] {
        assert_eq!(Kept::read(&global, id).as_ref(), Some(&expected), "{id}");
    }
    forget(&global, "one");
    assert_eq!(Kept::read(&global, "one"), None);
    assert_eq!(Kept::read(&global, "none"), None);
    // Ids that are no names of files, or differ from others only in what a file system may ignore.
    for id in ["../one", "", "a/b", "user:42", "One", "ONE"] {
        assert_eq!(Kept::read(&global, id), None, "{id}");
        kept.write(&global, id).unwrap();
        assert_eq!(Kept::read(&global, id).as_ref(), Some(&kept), "{id}");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("store")).unwrap().count(), 1, "all are in one folder");
}

#[test]
fn no_key_is_kept_in_an_address() {
    for (url, expected) in [
        ("http://localhost:1/v1", "http://localhost:1/v1"),
        ("https://a.example/v1?key=sk-1", "https://a.example/v1"),
        ("https://me:pass@a.example/v1#x", "https://a.example/v1"),
        ("https://me:pass@a.example", "https://a.example"),
        ("localhost:1?key=x", "localhost:1"),
    ] {
        assert_eq!(without_query(url), expected, "{url}");
    }
}

/// The settings after a resume, in a line.
fn resumed(dir: &std::path::Path, began: &[&str], given: &[&str], model: Option<&str>) -> String {
    let settings = |settings: &[&str]| settings.iter().map(|setting| (*setting).to_owned()).collect();
    let mut args = ModelArgs { model: Some("qwen".to_owned()), simulate: true, ..ModelArgs::bare() };
    args.temperature = Some(0.2);
    args.stop = vec!["END".to_owned()];
    args.system = Some("Be brief.".to_owned());
    let began = Global { settings: settings(began), ..global(dir) };
    let kept = Kept::of(&began, &args).unwrap();
    let kept: Kept = serde_json::from_slice(&serde_json::to_vec(&kept).unwrap()).unwrap();
    let mut args = ModelArgs { model: model.map(str::to_owned), ..ModelArgs::bare() };
    let mut global = Global { settings: settings(given), ..global(dir) };
    kept.complete(&mut global, &mut args, true);
    let system = args.system.unwrap_or_default();
    let lacking =
        kept.lacking(&global).map(|text| text.split(", which").next().unwrap_or_default().to_owned());
    format!(
        "{} | {:?} {:?} {} {system} | {}",
        global.settings.join(" "),
        args.temperature,
        args.model,
        args.stop.join(" "),
        lacking.unwrap_or_default()
    )
}

#[test]
fn settings_of_what_is_asked_are_kept_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let usual = "Some(0.2) Some(\"qwen\") END Be brief.";
    // What it began with, what is given, the model that is given, and what comes of it.
    type Case = (&'static [&'static str], &'static [&'static str], Option<&'static str>, String);
    let table: [Case; 8] = [
        (
            &["compaction.threshold=0.7", "context_window=9000"],
            &[],
            None,
            format!("compaction.threshold=0.7 context_window=9000 | {usual} | "),
        ),
        // What is given comes after what is kept, and replaces it.
        (
            &["compaction.threshold=0.7", "limits.steps_max=3"],
            &["compaction.threshold=0.5"],
            None,
            format!("limits.steps_max=3 compaction.threshold=0.5 | {usual} | "),
        ),
        (&["compaction.threshold=0.7"], &["compaction={}"], None, format!("compaction={{}} | {usual} | ")),
        // A window belongs to its model.
        (
            &["context_window=9000", "skills=false"],
            &[],
            Some("other"),
            "skills=false | Some(0.2) Some(\"other\") END Be brief. | ".to_owned(),
        ),
        (&[], &["model=other"], None, "model=other | Some(0.2) None END Be brief. | ".to_owned()),
        // Settings that are given take precedence over flags that are kept.
        (
            &[],
            &["model_settings.temperature=1", "system_prompt=Hi"],
            None,
            "model_settings.temperature=1 system_prompt=Hi | None Some(\"qwen\")   | ".to_owned(),
        ),
        // Where keys go, what runs, and what is allowed is not kept.
        (
            &[
                "providers.openai.base_url=http://a.example/v1",
                "hooks.before_compact=rm",
                "trusted_folders=[/]",
                "theme=dark",
            ],
            &[],
            None,
            format!(
                " | {usual} | this session was used with --set providers.openai.base_url=… --set hooks.before_compact=…"
            ),
        ),
        (
            &["permissions.mode=everything", "sandbox.mode=off"],
            &["permissions.mode=everything"],
            None,
            format!(
                "permissions.mode=everything | {usual} | this session was used with --set sandbox.mode=…"
            ),
        ),
    ];
    for (began, given, model, expected) in table {
        assert_eq!(resumed(dir.path(), began, given, model), expected, "{began:?} {given:?}");
    }
    // A file that was changed sets nothing else either.
    let kept = Kept { settings: vec!["hooks.before_compact=rm".to_owned()], ..Kept::default() };
    let mut global = global(dir.path());
    kept.complete(&mut global, &mut ModelArgs::bare(), true);
    assert_eq!(global.settings, Vec::<String>::new());
}

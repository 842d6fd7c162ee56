//! A client's definition of its agent applies to that client alone: keys, tools, folders, and edits of its files.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use greenroom_server::operations::{ClientKind, ListSessions, PromptSession};
use greenroom_server::{Client, Received};
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;

use super::Hosted;
use crate::cli::support::ran;

/// The tools that were offered, and where the model was told to work, in each request.
fn offered(simulator: &Simulator) -> BTreeSet<(Vec<String>, String)> {
    let of = |request: &SeenRequest| {
        let tools = request.tools.iter().map(|tool| tool.name.clone());
        let system = request.system.clone().unwrap_or_default();
        let folder = system.split("in the folder ").nth(1).and_then(|rest| rest.split(". ").next());
        (tools.filter(|tool| tool != "recall").collect(), folder.unwrap_or_default().to_owned())
    };
    simulator.requests().iter().map(|logged| of(&logged.request)).collect()
}

async fn server_with_key(key: &str) -> (Simulator, greenroom_simulator::SimulatorServer) {
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let last = request.messages.last().map(|last| last.text()).unwrap_or_default();
        Answer::text(format!("heard {last}"))
    });
    let options = SimulatorOptions { require_key: Some(key.to_owned()), ..SimulatorOptions::new(script) };
    let simulator = Simulator::new(options);
    let server = simulator.serve().await.unwrap();
    (simulator, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_tools_and_folders_never_cross() {
    let hosted = Hosted::new(1, 0).await;
    let (hers, her_server) = server_with_key("her-key").await;
    let (his, his_server) = server_with_key("his-key").await;
    let his_folder = hosted.place.work().join("his");
    std::fs::create_dir(&his_folder).unwrap();
    let her_folder = hosted.place.work().canonicalize().unwrap();
    for round in 0..3 {
        let say = |text: &str, more: &[&str], url: String, key: &str, folder: &std::path::Path| {
            let arguments =
                [&["run", "--window", "100000", "--session", "shared", "-p", text], more].concat();
            let mut command = hosted.command(&arguments);
            command.env("OPENAI_BASE_URL", url).env("OPENAI_API_KEY", key).current_dir(folder);
            let ended = ran(command.output().unwrap());
            assert_eq!((ended.code, ended.stdout.trim()), (Some(0), &*format!("heard {text}")), "{ended:?}");
        };
        let (her_url, his_url) = (her_server.base_url().to_string(), his_server.base_url().to_string());
        say(&format!("hers {round}"), &["--allow-write"], her_url, "her-key", &her_folder);
        say(&format!("his {round}"), &[], his_url, "his-key", &his_folder);
    }
    let one = |tools: &[&str], folder: &std::path::Path| {
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        BTreeSet::from([(tools, folder.display().to_string())])
    };
    assert_eq!(offered(&hers), one(&["read", "list", "grep", "write", "edit"], &her_folder));
    assert_eq!(offered(&his), one(&["read", "list", "grep"], &his_folder.canonicalize().unwrap()));
    assert_eq!((hers.calls(), his.calls()), (3, 3));
    let wrong = hosted
        .command(&["run", "-p", "x"])
        .env("OPENAI_BASE_URL", her_server.base_url().to_string())
        .output();
    let wrong = ran(wrong.unwrap());
    assert_eq!(wrong.code, Some(1), "another key is refused: {wrong:?}");
    // Nothing of it is on the disk.
    for file in std::fs::read_dir(hosted.place.store()).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("her-key") && !text.contains("his-key"), "{:?}", file.path());
    }
}

/// One terminal, one key and one folder: what each command may do is what its own flags say.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_may_do_is_what_its_own_flags_say() {
    let hosted = Hosted::new(1, 0).await;
    let reads = ["read", "list", "grep"];
    let cases: [(&[&str], &[&[&str]]); 4] = [
        (&["--allow-shell"], &[&reads, &["write", "edit", "bash"]]),
        (&[], &[&reads]),
        (&["--allow-write"], &[&reads, &["write", "edit"]]),
        (&["--no-tools"], &[]),
    ];
    // In one session and in one of each kind's own, so that all of their agents stay.
    for round in 0..2 {
        for (number, (flags, tools)) in cases.iter().enumerate() {
            for session in ["shared", &format!("own {number}")] {
                let arguments = ["run", "--window", "100000", "--session", session, "-p", "x"];
                let ended = hosted.run(&[&arguments[..], flags].concat());
                assert_eq!(ended.code, Some(0), "{ended:?}");
                let requests = hosted.simulator.requests();
                let offered = requests.last().unwrap().request.tools.iter().map(|tool| tool.name.clone());
                let offered: Vec<String> = offered.filter(|tool| tool != "recall").collect();
                assert_eq!(offered, tools.concat(), "round {round}, {session}: {flags:?}");
            }
        }
    }
}

/// The binary as a shell starts it, after what the shell does first.
fn behind(first: &str, command: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", &format!("{first}; exec \"$@\""), "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.current_dir(command.get_current_dir().expect("it is set"));
    shell
}

#[tokio::test(flavor = "multi_thread")]
async fn what_tools_make_has_the_umask_and_the_environment_of_who_asked() {
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let last = request.messages.last().expect("there is one");
        if last.role() == "tool" {
            return Answer::text("done");
        }
        let name = last.text();
        let write = json!({ "path": format!("{name}/written"), "content": "x" });
        let command = format!("touch {name}-made; echo \"<${{TMPDIR-unset}}>\" > {name}-tmp");
        Answer::call("write", &write).and_call("bash", &json!({ "command": command }))
    });
    let hosted = Hosted::of(script).await;
    let work = hosted.place.work();
    let mode = |name: &str| std::fs::metadata(work.join(name)).unwrap().permissions().mode() & 0o777;
    // The first one starts the host, which has its own from it.
    for (name, umask, tmpdir) in
        [("hers", "022", Some("/hers")), ("his", "077", None), ("both", "002", Some("/b"))]
    {
        // A sandbox has a TMPDIR of its own.
        let arguments =
            ["run", "--window", "100000", "--allow-shell", "--sandbox", "off", "--session", name, "-p", name];
        let mut command = hosted.command(&arguments);
        match tmpdir {
            Some(tmpdir) => command.env("TMPDIR", tmpdir),
            None => command.env_remove("TMPDIR"),
        };
        let ended = ran(behind(&format!("umask {umask}"), &command).output().unwrap());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let umask = u32::from_str_radix(umask, 8).unwrap();
        for file in [format!("{name}/written"), format!("{name}-made")] {
            assert_eq!(mode(&file), 0o666 & !umask, "{file}: {:o}", mode(&file));
        }
        assert_eq!(mode(name), 0o777 & !umask, "{:o}", mode(name));
        let seen = std::fs::read_to_string(work.join(format!("{name}-tmp"))).unwrap();
        assert_eq!(seen.trim(), format!("<{}>", tmpdir.unwrap_or("unset")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_holds_for_the_next_run_and_a_bad_one_is_told_to_whom_it_concerns() {
    let hosted = Hosted::new(1, 0).await;
    let own = hosted.place.own_file("system_prompt: First.\n");
    hosted.start_host();
    let hers = hosted.client(ClientKind::Chat, json!({})).await;
    let same = hosted.client(ClientKind::Chat, json!({})).await;
    let home = hosted.place.work().join("home");
    std::fs::create_dir(&home).unwrap();
    let elsewhere = json!({ "surroundings": { "variables": { "HOME": home } } });
    let his = hosted.client(ClientKind::Chat, elsewhere).await;
    let (mut she_hears, mut so_does, mut he_hears) = (hers.events(), same.events(), his.events());
    let system = async |client: &greenroom_server::Client, session: &str| {
        client.work(PromptSession::new(session, "x")).await.unwrap().outcome().await.unwrap();
        let requests = hosted.simulator.requests();
        requests.last().unwrap().request.system.clone().unwrap_or_default()
    };
    assert!(system(&hers, "hers").await.starts_with("First."));
    assert!(!system(&his, "his").await.starts_with("First."));
    std::fs::write(&own, "system_prompt: Second.\n").unwrap();
    assert!(system(&hers, "hers").await.starts_with("Second."));
    std::fs::write(&own, "system_prompt: [Third\n").unwrap();
    let warning = async |events: &mut greenroom_server::Events| loop {
        match events.next().await.unwrap() {
            Received::Warning(text) => return text,
            Received::Event(_) | Received::Gap { .. } => {}
        }
    };
    let (hers_says, same_says) = (warning(&mut she_hears).await, warning(&mut so_does).await);
    assert!(hers_says.contains("greenroom.yaml") && hers_says.contains("remain in effect"), "{hers_says}");
    assert_eq!(same_says, hers_says);
    assert!(system(&hers, "hers").await.starts_with("Second."), "what held goes on");
    assert!(!system(&his, "his").await.starts_with("Second."));
    his.call(ListSessions::default()).await.unwrap();
    while let Some(received) = he_hears.try_next() {
        assert!(!matches!(received, Received::Warning(_)), "{received:?}");
    }
}

/// A relative path would be meant from the host's folder, which is nobody's.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_names_absolute_paths_only() {
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let stream = tokio::net::UnixStream::connect(hosted.socket()).await.unwrap();
    let (input, output) = stream.into_split();
    let client = Client::new(input, output);
    let cases = [
        ("surroundings.folder", json!({ "surroundings": { "folder": "work" } })),
        ("surroundings.folder", json!({ "surroundings": { "folder": "" } })),
        ("config", json!({ "config": "greenroom.toml" })),
    ];
    for (name, flags) in cases {
        let refused = client.call(hosted.hello(ClientKind::Watch, flags)).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("`{name}`")) && refused.contains("absolute"), "{refused}");
    }
    client.call(hosted.hello(ClientKind::Watch, json!({}))).await.unwrap();
}

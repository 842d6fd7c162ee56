//! Definitions of clients' agents.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_server::ClientError;
use greenroom_terminal::screen::ColorChoice;
use serde_json::json;

use super::*;

fn fingerprint(definition: &serde_json::Value) -> String {
    serde_json::from_value::<Definition>(definition.clone()).unwrap().fingerprint()
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom-cli definition` rewrites it.
#[test]
fn the_checked_in_schema_is_that_of_the_definition() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/definition.json");
    let generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let schema = generator.into_root_schema_for::<Definition>();
    let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever changes the type says so, and the file is written"
    )]
    if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap_or_default() == wanted,
        "docs/schema/definition.json is not what the type says; write it with GREENROOM_WRITE_SCHEMAS=1"
    );
}

#[test]
fn a_definition_needs_a_folder_and_a_umask_and_may_say_the_rest() {
    let whole = json!({ "surroundings": { "folder": "/work", "umask": 18 }, "model": {} });
    let definition: Definition = serde_json::from_value(whole.clone()).unwrap();
    assert_eq!(definition.model.workspace.to_str(), Some("."));
    assert!(!definition.model.allow_shell && !definition.model.allow_write && !definition.checks_server);
    for missing in ["/surroundings/folder", "/surroundings/umask"] {
        let mut part = whole.clone();
        let (above, name) = missing.rsplit_once('/').unwrap();
        part.pointer_mut(above).unwrap().as_object_mut().unwrap().remove(name);
        assert!(serde_json::from_value::<Definition>(part).is_err(), "{missing}");
    }
}

#[test]
fn what_an_agent_may_do_and_where_it_asks_are_in_its_fingerprint_and_its_model_is_not() {
    let plain = json!({
        "surroundings": { "folder": "/project", "umask": 18, "variables": { "OPENAI_API_KEY": "k1", "TERM": "xterm" } },
        "model": { "server": { "base_url": "https://one.example/v1" } },
    });
    let known = fingerprint(&plain);
    // A stored fingerprint is still valid after a field of ours was renamed.
    assert_eq!(known, "4c909913fb7b50312d8540cd26cac04c7216300c96a7965d45e48a7e1ee86918");
    for (place, value, is_same) in [
        ("/model/model", json!("other"), true),
        ("/model/seed", json!(7), true),
        ("/surroundings/variables/TERM", json!("dumb"), true),
        ("/surroundings/folder", json!("/other"), false),
        ("/surroundings/variables/OPENAI_API_KEY", json!("k2"), false),
        ("/surroundings/variables/OPENAI_BASE_URL", json!("https://two.example"), false),
        ("/config", json!("/project/other.yaml"), false),
        ("/settings", json!(["limits.inputs_max=1"]), false),
        ("/model/server/provider", json!("local"), false),
        ("/model/server/base_url", json!("https://two.example/v1"), false),
        ("/model/server/api_key_env", json!("KEY"), false),
        ("/model/workspace", json!("/project/below"), false),
        ("/model/no_tools", json!(true), false),
        ("/model/allow_write", json!(true), false),
        ("/model/allow_shell", json!(true), false),
        ("/model/simulate", json!(true), false),
    ] {
        let mut other = plain.clone();
        let (above, name) = place.rsplit_once('/').unwrap();
        other.pointer_mut(above).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
        assert_eq!(fingerprint(&other) == known, is_same, "{place}");
    }
    // A value in one place of the form cannot be confused with one in another place.
    let named = |flag: &str| {
        let mut definition = plain.clone();
        definition["model"]["server"] = json!({ flag: "x" });
        fingerprint(&definition)
    };
    assert_ne!(named("provider"), named("api_key_env"));
}

/// The definition of a client in this folder, with these variables and flags.
#[expect(clippy::needless_pass_by_value, reason = "it is written in place")]
fn said(folder: &Path, variables: Value, model: Value) -> Value {
    json!({ "surroundings": { "folder": folder, "umask": 18, "variables": variables }, "model": model })
}

#[test]
fn relative_paths_are_refused() {
    for (folder, config, expect) in [
        ("/work", None, None),
        ("/work", Some("/a/file"), None),
        ("work", None, Some("`surroundings.folder` is \"work\"")),
        ("/work", Some("a/file"), Some("`config` is \"a/file\"")),
    ] {
        let mut whole = said(Path::new(folder), json!({}), json!({}));
        whole["config"] = json!(config);
        let checked = serde_json::from_value::<Definition>(whole).unwrap().check();
        let error = checked.err().map(|error| error.to_string());
        assert_eq!(error.is_some(), expect.is_some(), "{error:?}");
        assert!(expect.is_none_or(|expect| error.as_ref().unwrap().contains(expect)), "{error:?}");
    }
}

/// The agents of a host whose store is in this folder.
fn agents(folder: &Path) -> Agents {
    Agents::new(&Global {
        trust_folder: false,
        data_dir: Some(folder.join("store")),
        config: None,
        settings: Vec::new(),
        no_host: false,
        verbose: 0,
        color: ColorChoice::Never,
    })
}

#[tokio::test]
async fn clients_that_say_the_same_have_the_same_agent_as_long_as_it_would_be_made_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, other) = (dir.path().join("work"), dir.path().join("other"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::create_dir(&other).unwrap();
    let agents = agents(dir.path());
    let variables = || json!({ "HOME": dir.path(), "XDG_CONFIG_HOME": dir.path().join("config") });
    let simulated = || json!({ "simulate": true });
    let made = async |definition: Value| agents.made(definition).await.unwrap().agent;
    let known = || agents.0.known.lock().len();
    let first = made(said(&folder, variables(), simulated())).await;
    let again = made(said(&folder, variables(), simulated())).await;
    assert!(Arc::ptr_eq(&first, &again) && known() == 1);
    // What its commands do not read, and texts that are held for invalid files, make no other agent.
    let mut harmless = said(&folder, variables(), simulated());
    harmless["surroundings"]["variables"]["COLUMNS"] = json!("80");
    harmless["held"] = json!([null, "system_prompt: be long"]);
    assert!(Arc::ptr_eq(&first, &made(harmless).await) && known() == 1);
    // Other flags, another folder or another umask make another agent.
    let flags = made(said(&folder, variables(), json!({ "simulate": true, "no_tools": true }))).await;
    let place = made(said(&other, variables(), simulated())).await;
    let mut other_umask = said(&folder, variables(), simulated());
    other_umask["surroundings"]["umask"] = json!(63);
    let umask = made(other_umask).await;
    for another in [&flags, &place, &umask] {
        assert!(!Arc::ptr_eq(&first, another));
    }
    assert_eq!(known(), 4);
    // So does another text of the folder's file.
    std::fs::write(folder.join("greenroom.yaml"), "system_prompt: be brief\n").unwrap();
    let edited = made(said(&folder, variables(), simulated())).await;
    assert!(!Arc::ptr_eq(&first, &edited));
    // Unused agents are dropped.
    drop((first, again, flags, place, umask));
    let same = made(said(&folder, variables(), simulated())).await;
    assert!(Arc::ptr_eq(&edited, &same) && known() == 1);
    let refused = agents.define(json!({ "surroundings": 7 })).await.map(drop).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::Invalid);
    assert!(refused.message.starts_with("the definition: "), "{refused:?}");
}

/// The server is asked only if the client wants that; warnings are told to each client.
#[tokio::test]
async fn a_server_that_cannot_be_reached_and_warnings_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("work");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), folder.join("AGENTS.md")).unwrap();
    std::fs::write(dir.path().join("outside"), "be brief").unwrap();
    let agents = agents(dir.path());
    let model = json!({ "server": { "base_url": "http://127.0.0.1:1/v1" } });
    let trusted = format!("trusted_folders: [{folder:?}]\n");
    std::fs::create_dir_all(dir.path().join(".config/greenroom")).unwrap();
    std::fs::write(dir.path().join(".config/greenroom/greenroom.yaml"), trusted).unwrap();
    let mut whole = said(&folder, json!({ "HOME": dir.path() }), model);
    whole["checks_server"] = json!(true);
    let refused = agents.made(whole.clone()).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("127.0.0.1:1"), "{refused}");
    whole["checks_server"] = json!(false);
    let first = agents.made(whole.clone()).await.unwrap();
    let second = agents.made(whole).await.unwrap();
    assert!(Arc::ptr_eq(&first.agent, &second.agent));
    for Defined { warnings, .. } in [&first, &second] {
        assert!(warnings.iter().any(|warning| warning.contains("AGENTS.md")), "{warnings:?}");
    }
}

/// Returns the queue and the agent of a client of this server.
fn come(agents: &Agents, options: &ServerOptions, limits: &ProviderConfig) -> (SharedProvider, Arc<Agent>) {
    let mut queue = None;
    let agent = agents.on_lane(
        options,
        limits,
        || Arc::new(Nobody),
        |provider| {
            assert!(agents.0.lanes.try_lock().is_none(), "another client sees a queue without an agent");
            queue = Some(provider.clone());
            Agent::new("m")
        },
    );
    (queue.unwrap(), agent)
}

#[tokio::test]
async fn a_server_and_a_key_have_one_queue_as_long_as_an_agent_uses_it() {
    let agents = agents(Path::new("/no"));
    let lanes = || agents.0.lanes.lock().len();
    let come = |key: &str, in_flight: usize| {
        let options = ServerOptions { api_key: Some(key.into()), ..ServerOptions::default() };
        let limits = ProviderConfig { in_flight_max: in_flight, ..ProviderConfig::default() };
        come(&agents, &options, &limits)
    };
    let (first, of_first) = come("a", 1);
    let (other_key, of_key) = come("b", 1);
    let (other_limit, of_limit) = come("a", 2);
    assert!(first != other_key && first != other_limit && other_key != other_limit);
    assert_eq!(lanes(), 3);
    let (same, second) = come("a", 1);
    assert!(same == first && come("b", 1).0 == other_key && come("a", 2).0 == other_limit);
    // A lane is dropped with the last of its agents.
    drop((of_first, of_key));
    assert!(come("a", 1).0 == first, "it has another agent");
    assert_eq!(lanes(), 2);
    assert!(come("b", 1).0 != other_key);
    // Dropped agents are not counted.
    drop(second);
    let _third = come("a", 2);
    let users: Vec<usize> = agents.0.lanes.lock().iter().map(|lane| lane.users.len()).collect();
    assert_eq!(users, [2]);
    drop(of_limit);
}

/// The queue is not dropped between its creation and its first agent.
#[test]
fn clients_that_come_at_once_share_the_queue_of_their_server_and_key() {
    const CLIENTS: usize = 4;
    let options = ServerOptions { api_key: Some("a".into()), ..ServerOptions::default() };
    let limits = ProviderConfig::default();
    for round in 0..100 {
        let agents = agents(Path::new("/no"));
        let begin = std::sync::Barrier::new(CLIENTS);
        let come = || {
            begin.wait();
            come(&agents, &options, &limits)
        };
        let came: Vec<(SharedProvider, Arc<Agent>)> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(come)).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(came.iter().all(|(provider, _)| *provider == came[0].0), "round {round}");
        assert_eq!(agents.0.lanes.lock()[0].users.len(), CLIENTS, "round {round}");
    }
}

#[tokio::test]
async fn the_files_are_looked_at_as_long_as_the_agent_is_there() {
    let looking = tokio::spawn(std::future::pending::<()>());
    drop(Kept { _simulated: None, looking: looking.abort_handle() });
    assert!(looking.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn what_went_wrong_has_its_kind() {
    let kind = |error: anyhow::Error| problem(&error).kind;
    assert_eq!(kind(greenroom::Error::Aborted.into()), Problem::from(&greenroom::Error::Aborted).kind);
    let within = anyhow::Error::from(greenroom::Error::Aborted).context("while it was made");
    assert_eq!(kind(within), Problem::from(&greenroom::Error::Aborted).kind);
    assert_eq!(kind(crate::error::usage("that cannot be".to_owned())), ProblemKind::Invalid);
    assert_eq!(kind(ClientError::Disconnected.into()), ProblemKind::Other);
    assert_eq!(Nobody.name(), "none");
}

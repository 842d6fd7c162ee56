//! What a `greenroom.yaml` in the current folder cannot do, and files that cannot be read.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use greenroom_kernel::{Message, Part};
use greenroom_simulator::{Answer, Echo, Sequence};
use serde_json::json;

use super::support::{Model, Place, Ran, Says, ran};

/// A key that no other program has.
const KEY: &str = "sk-CANARY-0123456789";
/// No configuration takes longer to read or to refuse, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ends the recording of an [`Elsewhere`].
const END: &[u8] = b"END";

/// A server that no key may reach: it records what arrives, and refuses everything.
struct Elsewhere {
    address: SocketAddr,
    arrived: Receiver<Vec<u8>>,
}

impl Elsewhere {
    /// One on this machine's own address in its network, or on 127.0.0.2 where there is no network.
    fn new() -> Self {
        Self::at(own_address().unwrap_or(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))))
    }

    fn at(host: IpAddr) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, arrived) = channel();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut bytes = vec![0; 4_096];
                let count = connection.read(&mut bytes).unwrap_or(0);
                bytes.truncate(count);
                let is_end = bytes == END;
                if !is_end {
                    let _ = connection.write_all(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n");
                }
                let _ = tell.send(bytes);
                if is_end {
                    return;
                }
            }
        });
        Self { address, arrived }
    }

    /// Everything that arrived, one text for each connection. Connections are taken in their order, so nothing that
    /// was sent before is missed.
    fn arrived(self) -> Vec<String> {
        TcpStream::connect(self.address).unwrap().write_all(END).unwrap();
        let texts = self.arrived.iter().take_while(|bytes| bytes != END);
        texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }
}

/// This machine's address in its network; nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// One prompt in the place's workspace, with the key in the environment.
fn prompt(place: &Place, arguments: &[&str]) -> Ran {
    let mut command = place.command(&["run", "-p", "hi", "--no-tools"]);
    let output =
        command.args(arguments).env("OPENAI_API_KEY", KEY).env("CORP_KEY", "sk-CORP-9876543210").output();
    let output = output.unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Confirms the address of the provider that is chosen.
fn trust(place: &Place, arguments: &[&str]) {
    let mut command = place.command(&["config", "trust"]);
    command.args(arguments).env("OPENAI_API_KEY", KEY).env("CORP_KEY", "sk-CORP-9876543210");
    let ran = ran(command.output().unwrap());
    assert!(ran.code == Some(0) && ran.stdout.contains("may be sent to"), "{ran:?}");
}

/// Whether answers are asked for in pieces, as files, flags and the environment say of the provider; they are the same.
#[test]
fn answers_come_in_pieces_or_as_a_whole_as_the_provider_says() {
    type Row<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], bool);
    let rows: [Row<'_>; 6] = [
        ("", &[], &[], true),
        (", stream: true", &[], &[], true),
        (", stream: false", &[], &[], false),
        ("", &["--set", "providers.openai.stream=false"], &[], false),
        (", stream: false", &["--set", "providers.openai.stream=true"], &[], true),
        ("", &[], &[("GREENROOM_PROVIDERS", "{ openai: { stream: false } }")], false),
    ];
    for (of_provider, flags, variables, streams) in rows {
        let said = Answer::text("Look:").and_call("list", &json!({ "path": "." }));
        let model = Model::new(Sequence(vec![said, Answer::text("Two files.")]), |_| {});
        let place = Place::new();
        place.own_file(&format!("providers: {{ openai: {{ base_url: '{}'{of_provider} }} }}\n", model.url()));
        let mut command = place.command(&[&["run", "-p", "What is here?"], flags].concat());
        let ran = ran(command.envs(variables.iter().copied()).output().unwrap());
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(0), "Look:\nTwo files.\n"),
            "{of_provider} {flags:?}: {ran:?}"
        );
        let streamed: Vec<bool> =
            model.simulator.requests().iter().map(|seen| seen.request.streamed).collect();
        assert_eq!(streamed, [streams, streams], "{of_provider} {flags:?}");
        model.simulator.assert_clean();
    }
}

/// What the second prompt of a session sends back of the first answer's reasoning.
#[test]
fn reasoning_is_sent_back_as_the_provider_and_the_model_say() {
    for (of_provider, of_models, is_sent) in [
        ("", "", false),
        (", resend_reasoning: never", "", false),
        (", resend_reasoning: reasoning_content", "", true),
        (", resend_reasoning: reasoning", "", true),
        ("", "models: { thinker: { resend_reasoning: reasoning_content } }\n", true),
        ("", "models: { another: { resend_reasoning: reasoning_content } }\n", false),
        (", resend_reasoning: reasoning", "models: { thinker: { resend_reasoning: never } }\n", false),
    ] {
        let model = Model::new(Says(Answer::text("Yes.").with_reasoning("Hm.")), |_| {});
        let place = Place::new();
        place.own_file(&format!(
            "model: thinker\nprovider: corp\nproviders: {{ corp: {{ base_url: '{}'{of_provider} }} }}\n{of_models}",
            model.url()
        ));
        for _ in 0..2 {
            let ran = prompt(&place, &["--session", "mine"]);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Yes.\n"), "{ran:?}");
        }
        let requests = model.simulator.requests();
        let last = &requests.last().unwrap().request;
        let answers = last.messages.iter().filter_map(|message| match &**message {
            Message::Assistant(answer) => Some(answer),
            Message::User(_) | Message::ToolResult(_) => None,
        });
        let parts: Vec<&Part> = answers.flat_map(|answer| &answer.content).collect();
        let text = Part::Text("Yes.".to_owned());
        let thought = Part::Reasoning("Hm.".to_owned());
        let wanted = if is_sent { vec![&thought, &text] } else { vec![&text] };
        assert_eq!(parts, wanted, "{of_provider} {of_models}");
        model.simulator.assert_clean();
    }
}

/// What a folder's file is refused for is tested beside `config`; that nothing is sent then, here.
#[test]
fn an_address_in_the_folder_and_one_that_is_written_unusually_send_nothing_anywhere() {
    let elsewhere = Elsewhere::new();
    let address = elsewhere.address;
    let url = format!("http://{address}/v1");
    let chosen = "provider: x\nproviders: { x: { base_url: 'http:ADDRESS/v1?://localhost' } }\n";
    let chosen = chosen.replace("ADDRESS", &address.to_string());
    let flag = format!("http://localhost\\@{address}/v1");
    for (own, project, flags) in [
        ("", format!("provider: {{ base_url: '{url}' }}\n"), &[][..]),
        (
            "",
            format!(
                "provider: evil\nproviders: {{ evil: {{ base_url: '{url}', api_key_env: OPENAI_API_KEY }} }}\n"
            ),
            &[],
        ),
        (
            "provider: corp\nproviders: { corp: { base_url: 'https://gateway.invalid/v1', api_key_env: CORP_KEY } }\n",
            format!("providers: {{ corp: {{ base_url: '{url}' }} }}\n"),
            &[],
        ),
        (&chosen, String::new(), &[]),
        ("", String::new(), &["--base-url", &flag]),
    ] {
        let place = Place::new();
        place.own_file(own);
        place.project_file(&project);
        let ran = prompt(&place, flags);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{own}{project}: {ran:?}");
    }
    assert_eq!(elsewhere.arrived(), Vec::<String>::new());
}

#[test]
fn a_folder_names_a_provider_of_the_users_and_a_missing_one_is_told_with_the_line_to_add() {
    let place = Place::new();
    let model = Model::new(Says(Answer::text("It works.")), |_| {});
    place.own_file(&format!("providers: {{ NAME: {{ base_url: \"{}\" }} }}\n", model.url()));
    place.project_file("provider: NAME\n");
    let ran = prompt(&place, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "It works.\n"), "{ran:?}");
    place.project_file("provider: OTHER\n");
    let ran = prompt(&place, &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for part in ["OTHER", "NAME, anthropic, google, openai", "providers: { OTHER: { base_url:", "--config"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
}

#[test]
fn a_provider_gets_its_own_key_and_no_other() {
    let with_key = Elsewhere::at(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let without = Elsewhere::at(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let flag = Elsewhere::at(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let place = Place::new();
    place.own_file(&format!(
        "provider: corp\nproviders:\n  corp: {{ base_url: 'http://{}/v1', api_key_env: CORP_KEY }}\n  bare: {{ base_url: 'http://{}/v1' }}\n",
        with_key.address, without.address
    ));
    trust(&place, &[]);
    assert_eq!(prompt(&place, &[]).code, Some(1));
    assert_eq!(prompt(&place, &["--provider", "bare"]).code, Some(1));
    // A folder chooses among them.
    place.project_file("provider: bare\n");
    assert_eq!(prompt(&place, &[]).code, Some(1));
    // The provider that a file chose lends its key to no other address.
    place.project_file("provider: corp\n");
    assert_eq!(prompt(&place, &["--base-url", &format!("http://{}/v1", flag.address)]).code, Some(1));
    // What only looked whether somebody is there said nothing.
    let requests = |server: Elsewhere| -> Vec<String> {
        server.arrived().into_iter().filter(|text| !text.is_empty()).collect()
    };
    let (with_key, without, flag) = (requests(with_key), requests(without), requests(flag));
    // Each run asks for the list of models, to choose one of them and for its window, and then the model.
    let calls = |texts: &[String]| texts.iter().filter(|text| text.starts_with("POST ")).count();
    assert_eq!(
        (calls(&with_key), calls(&without), calls(&flag)),
        (1, 2, 1),
        "{with_key:?} {without:?} {flag:?}"
    );
    assert_eq!((with_key.len(), without.len(), flag.len()), (3, 6, 3), "{with_key:?} {without:?} {flag:?}");
    let has = |text: &String, part: &str| text.to_lowercase().contains(part);
    assert!(with_key.iter().all(|text| has(text, "bearer sk-corp-9876543210\r\n")), "{with_key:?}");
    assert!(without.iter().all(|text| !has(text, "authorization") && !has(text, "sk-")), "{without:?}");
    assert!(flag.iter().all(|text| has(text, &format!("bearer {}\r\n", KEY.to_lowercase()))), "{flag:?}");
}

#[test]
fn config_prints_no_key() {
    let place = Place::new();
    place.own_file(
        "provider: x\nproviders: { x: { base_url: 'https://gateway.invalid/v1?key=sk-QUERY-123' } }\n",
    );
    let ran = place.run(&["config"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("https://gateway.invalid/v1?***"), "{ran:?}");
    assert!(!ran.stdout.contains("QUERY"), "{ran:?}");
    let ran =
        place.run(&["run", "-p", "x", "--base-url", "http://x.invalid", "--api-key-env", "sk-USER-123"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(!ran.stderr.contains("sk-USER"), "{ran:?}");
}

#[test]
fn a_file_that_others_could_have_written_is_not_read() {
    let model = Model::new(Echo, |_| {});
    let place = Place::new();
    let path = place.project_file("model: theirs\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    let ran = prompt(&place, &["--base-url", &model.url()]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(0), 1), "{ran:?}");
    assert!(
        ran.stderr.contains("greenroom.yaml is not read") && ran.stderr.contains("chmod go-w"),
        "{ran:?}"
    );
    assert!(place.config().contains("model: gpt-5.5\n"));
    std::fs::rename(&path, place.work().join("other.yaml")).unwrap();
    // The user's own file may be a link, as those who keep such files elsewhere make it; nobody else may write it.
    let own = place.own_file("");
    std::fs::remove_file(&own).unwrap();
    std::os::unix::fs::symlink(place.work().join("other.yaml"), &own).unwrap();
    assert!(place.config().contains("model: theirs\n"));
    let mode = std::fs::Permissions::from_mode(0o646);
    std::fs::set_permissions(place.work().join("other.yaml"), mode).unwrap();
    let ran = place.run(&["config"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("chmod o-w"), "{ran:?}");
}

#[test]
fn what_is_no_file_of_moderate_size_is_refused_at_once() {
    let quick = |place: &Place, arguments: &[&str]| place.start_alone(arguments).end_within(PATIENCE);
    let place = Place::new();
    let path = place.work().join("greenroom.yaml");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    for arguments in [
        &["config", "--config", "greenroom.yaml"][..],
        &["config", "--config", "/dev/zero"],
        &["config", "--config", "."],
    ] {
        let ran = quick(&place, arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("not a regular file"), "{ran:?}");
    }
    let ran = quick(&place, &["config"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stderr.contains("greenroom.yaml is not read") && ran.stderr.contains("not a regular file"),
        "{ran:?}"
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let ran = quick(&place, &["config"]);
    assert!(ran.code == Some(0) && ran.stderr.contains("not a regular file"), "{ran:?}");
}

#[test]
fn other_files_are_bounded_too() {
    let quick = |place: &Place, arguments: &[&str]| place.start_alone(arguments).end_within(PATIENCE);
    let place = Place::new();
    let pipe = place.work().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for source in ["pipe", "/dev/zero", "."] {
        let ran = quick(&place, &["import", source]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(source) && ran.stderr.contains("not a regular file"), "{ran:?}");
    }
    let large = std::fs::File::create(place.work().join("large.jsonl")).unwrap();
    large.set_len(1 << 40).unwrap();
    for command in [&["import"][..], &["compact", "--dry-run"]] {
        let ran = quick(&place, &[command, &["large.jsonl"]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("large.jsonl") && ran.stderr.contains("67108864"), "{ran:?}");
    }
    // The token of `serve`.
    std::fs::create_dir_all(place.store()).unwrap();
    std::fs::rename(&pipe, place.store().join("token")).unwrap();
    let serve = ["serve", "--simulate", "--listen", "127.0.0.1:0"];
    let ran = quick(&place, &serve);
    assert!(ran.code != Some(0) && ran.stderr.contains("not a regular file"), "{ran:?}");
    std::fs::remove_file(place.store().join("token")).unwrap();
    let token = std::fs::File::create(place.store().join("token")).unwrap();
    token.set_len(1 << 40).unwrap();
    let ran = quick(&place, &serve);
    assert!(ran.code != Some(0) && ran.stderr.contains("token"), "{ran:?}");
    // An endless standard input.
    std::fs::remove_file(place.store().join("token")).unwrap();
    for command in ["run", "chat"] {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let output = place.command(&[command, "--simulate"]).stdin(zero).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard input"), "{output:?}");
    }
}

#[test]
fn a_folders_model_stays_within_the_limit_of_cost() {
    let model = Model::new(Echo, |_| {});
    let own = |limit: &str| {
        format!(
            "model: gpt-5-mini\nproviders: {{ openai: {{ base_url: '{}' }} }}\nlimits: {{ cost_usd_max: {limit} }}\n",
            model.url()
        )
    };
    for (limit, folder, arguments, code, word) in [
        ("1", "model: gpt-5-nano\n", &[][..], 0, ""),
        ("1", "model: gpt-5\n", &[], 0, ""),
        ("1", "model: no-such-model\n", &[], 2, "no-such-model"),
        ("1", "compaction: { summary_model: no-such-model }\n", &[], 2, "no-such-model"),
        ("1", "model: no-such-model\n", &["--model", "gpt-5"], 0, ""),
        ("null", "model: no-such-model\n", &[], 0, "the window of no-such-model"),
        ("null", "model: gpt-5-nano\n", &[], 0, ""),
        ("null", "model: gpt-5\n", &[], 0, "cost_usd_max"),
        ("null", "model: gpt-5\nlimits: { cost_usd_max: 1 }\n", &[], 0, ""),
        ("null", "model: gpt-5\n", &["--model", "gpt-5"], 0, ""),
    ] {
        let place = Place::new();
        place.own_file(&own(limit));
        trust(&place, &[]);
        place.project_file(folder);
        let ran = prompt(&place, arguments);
        assert_eq!(ran.code, Some(code), "{limit} {folder}: {ran:?}");
        assert_eq!(!word.is_empty(), ran.stderr.lines().count() == 1, "{limit} {folder}: {ran:?}");
        assert!(ran.stderr.contains(word), "{limit} {folder}: {ran:?}");
    }
}

#[test]
fn what_a_file_says_cannot_steer_the_terminal() {
    for text in [
        "\"\\e]0;x\\a\": 1\n", "provider: \"\\e[2J\\u202e\"\n", "provider: { base_url: \"\\e[2J\" }\n",
        "model: [\"\\e[2J\"]\n",
    ] {
        let place = Place::new();
        place.project_file(text);
        let ran = place.run(&["config"]);
        assert_eq!(ran.code, Some(2), "{text}: {ran:?}");
        let is_harmless = |c: char| c == '\n' || !(c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
        assert!(ran.stderr.chars().all(is_harmless), "{text}: {ran:?}");
    }
}

#[test]
fn the_environment_names_a_server_like_the_flag_does() {
    let model = Model::new(Says(Answer::text("From the environment.")), |_| {});
    let place = Place::new();
    let run = |arguments: &[&str], url: &str| {
        let mut command = place.command(&["run", "-p", "x", "--no-tools"]);
        command.args(arguments).env("OPENAI_BASE_URL", url).output().unwrap()
    };
    assert_eq!(run(&[], &model.url()).stdout, b"From the environment.\n");
    assert_eq!(run(&[], "http:127.0.0.1/v1").status.code(), Some(2));
    // Neither a simulated model nor a chosen provider is in its way.
    assert_eq!(run(&["--simulate"], "http://192.0.2.9").status.code(), Some(0));
    place.own_file(&format!("providers: {{ x: {{ base_url: '{}' }} }}\n", model.url()));
    assert_eq!(run(&["--provider", "x"], "http://192.0.2.9").status.code(), Some(0));
    assert_eq!(run(&["--provider", "y"], "http://192.0.2.9").status.code(), Some(2));
}

/// What writes the user's own file, as a command of a model can, sends no key anywhere by that.
#[test]
fn an_address_of_a_file_gets_no_key_before_it_is_confirmed_for_that_key() {
    let model = Model::new(Says(Answer::text("Hi.")), |_| {});
    let elsewhere = Elsewhere::new();
    let at = |provider: &str, address: &str, key: &str| {
        format!(
            "provider: {provider}\nproviders: {{ {provider}: {{ base_url: '{address}', api_key_env: {key} }} }}\n"
        )
    };
    let theirs = format!("http://{}/v1", elsewhere.address);
    let place = Place::new();
    let refused = |flags: &[&str], said: &str| {
        for flags in [flags.to_vec(), [&["--set", "host.start=true"], flags].concat()] {
            let ran = prompt(&place, &flags);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{flags:?}: {ran:?}");
            assert!(ran.stderr.contains(said) && !ran.stderr.contains("sk-"), "{flags:?}: {ran:?}");
        }
        let listed = place
            .command(&["models"])
            .args(flags)
            .env("OPENAI_API_KEY", KEY)
            .env("CORP_KEY", "sk-1")
            .output();
        assert_eq!(listed.unwrap().status.code(), Some(2), "{flags:?}");
    };
    let served = |flags: &[&str]| {
        let ran = prompt(&place, flags);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Hi.\n"), "{flags:?}: {ran:?}");
    };
    place.own_file(&at("corp", &model.url(), "CORP_KEY"));
    let said = format!("sends the key in CORP_KEY to {}, which you have not confirmed", model.url());
    refused(&[], &said);
    assert_eq!(model.simulator.calls(), 0);
    trust(&place, &[]);
    served(&[]);
    // Another address, another key, another provider; and the store's file, as far as its lines can be had.
    for (provider, key) in [("corp", "CORP_KEY"), ("openai", "OPENAI_API_KEY"), ("new", "CORP_KEY")] {
        place.own_file(&at(provider, &theirs, key));
        refused(&[], "run `greenroom config trust` once");
    }
    place.own_file(&at("corp", &model.url(), "OPENAI_API_KEY"));
    refused(&[], "OPENAI_API_KEY");
    place.own_file(&at("corp", &theirs, "null"));
    refused(&["--api-key-env", "CORP_KEY"], "config trust --api-key-env CORP_KEY");
    place.own_file(&format!("provider: corp\nproviders: {{ corp: {{ base_url: '{theirs}' }}, other: {{ base_url: '{theirs}', api_key_env: CORP_KEY }} }}\n"));
    refused(&["--provider", "other"], "config trust --provider other");
    assert_eq!(elsewhere.arrived(), Vec::<String>::new());
    // What the user says at the command line needs no more words.
    let set = format!("providers.corp.base_url={}", model.url());
    place.own_file("provider: corp\n");
    served(&["--set", &set, "--set", "providers.corp.api_key_env=OPENAI_API_KEY"]);
    place.own_file("model: m\n");
    served(&["--base-url", &model.url()]);
    // An address cannot be confirmed without a key.
    place.own_file(&at("corp", &theirs, "CORP_KEY"));
    let ran = place.run(&["config", "trust"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("CORP_KEY is not set"), "{ran:?}");
    let _ = place.run(&["host", "--stop", "--force"]);
}

/// Writes what only the user's configuration folder has.
fn written(place: &Place, arguments: &[&str], input: &str) -> Ran {
    let path = place.store().with_file_name("input");
    std::fs::write(&path, input).unwrap();
    let mut command = place.command(arguments);
    // Nobody answers there, so the key is kept unchecked.
    command.env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1").stdin(std::fs::File::open(&path).unwrap());
    ran(command.output().unwrap())
}

#[test]
fn a_placeholder_of_a_killed_command_is_no_obstacle() {
    // What writes, the place of the placeholder, and the file that is written.
    let (own, keys) = (".config/greenroom/greenroom.yaml", ".config/greenroom/keys.yaml");
    for (arguments, input, left, written_to) in [
        (&["config", "set", "provider", "openai"][..], "", ".config", own),
        (&["config", "set", "provider", "openai"], "", ".config/greenroom", own),
        (&["config", "set", "provider", "openai"], "", own, own),
        (
            &["config", "set", "--project", "compaction.enabled", "false"],
            "",
            "work/greenroom.yaml",
            "work/greenroom.yaml",
        ),
        (&["login", "openai"], "sk-0123456789abcdef\n", ".config/greenroom", keys),
        (&["login", "openai"], "sk-0123456789abcdef\n", own, keys),
        (&["config", "trust", "--folder", "."], "", ".config", ".config/greenroom/trusted-folders"),
    ] {
        let place = Place::new();
        let home = place.store().parent().unwrap().to_owned();
        let left = home.join(left);
        std::fs::create_dir_all(&left).unwrap();
        std::fs::set_permissions(&left, std::fs::Permissions::from_mode(0o1555)).unwrap();
        assert_eq!(place.run(&["config"]).code, Some(0), "it is read as if it were not there");
        let ran = written(&place, arguments, input);
        assert_eq!(ran.code, Some(0), "{left:?}: {ran:?}");
        assert!(home.join(written_to).is_file(), "{left:?}: {ran:?}");
        let is_placeholder = left.is_dir() && left.metadata().unwrap().permissions().mode() & 0o1000 != 0;
        assert!(!is_placeholder, "{left:?}");
    }
}

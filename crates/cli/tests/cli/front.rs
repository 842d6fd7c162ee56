//! The front door: the program without the name of a command, without a key, and with a server on this machine.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use greenroom_simulator::{Echo, ListForm};
use serde_json::json;

use super::screen::{Terminal, is_there};
use super::support::{Model, Place, files};

const SIZE: (u16, u16) = (100, 32);

/// Where servers on a user's machine usually listen.
const USUAL: [&str; 4] = ["127.0.0.1:11434", "127.0.0.1:1234", "127.0.0.1:8080", "127.0.0.1:8000"];

/// Starts `greenroom simulate` where a local server usually listens. Returns its address.
fn local_server(place: &Place) -> Option<(super::support::Running, String)> {
    USUAL.into_iter().find_map(|address| {
        drop(TcpListener::bind(address).ok()?);
        let arguments = [
            "simulate", "--listen", address, "--model", "qwen3:8b", "--window", "40000", "--say",
            "hi from here",
        ];
        let mut server = place.start(&arguments);
        server.wait_for("http://");
        Some((server, format!("http://{address}/v1")))
    })
}

/// The program at a terminal, without anything that chooses a server.
fn bare(place: &Place, arguments: &[&str]) -> Terminal {
    Terminal::run(place, SIZE, arguments)
}

#[test]
fn from_the_first_key_to_the_first_token_it_takes_two_keys() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    let Some((_server, url)) = local_server(&place) else { return };
    let terminal = bare(&place, &[]);
    terminal.shows("No API key found");
    terminal.shows("on this machine");
    let mut keys = 0;
    let mut press = |key: &str| {
        keys += 1;
        terminal.press(key);
    };
    press("Enter");
    terminal.shows("qwen3:8b");
    terminal.shows("context 40k");
    // The prompt itself does not count, the key that sends it does.
    terminal.types("hello");
    press("Enter");
    let screen = terminal.shows("hi from here");
    assert_eq!(keys, 2);
    assert!(keys <= 3);
    // What is not known is not shown.
    assert!(!screen.contains('$'), "{screen}");
    terminal.leaves();
    terminal.shows("ended with 0");
    // The next start asks nothing.
    let config = place.run(&["config", "get", "provider"]).stdout;
    assert!(["ollama", "lm-studio", "llama-cpp", "vllm"].contains(&config.trim()), "{config}");
    let again = bare(&place, &[]);
    again.shows("qwen3:8b");
    again.shows("›");
    let model = place.json(&["models", "--json"]);
    assert_eq!(model["origin"], url.as_str());
}

#[test]
fn without_a_key_it_opens_and_says_what_can_be_done() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    let terminal = bare(&place, &[]);
    let screen = terminal.shows("Esc");
    for part in ["No API key found", "Paste an API key", "Another server", "A simulated model"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    terminal.press("Escape");
    terminal.shows("ended with 130");

    let terminal = bare(&place, &["look around"]);
    terminal.shows("No API key found");
    terminal.types("simul");
    terminal.press("Enter");
    // The prompt of the command line is the first one.
    terminal.shows("› look around");
    terminal.shows("I will look at what is in the folder");
    terminal.press("C-c");
    terminal.press("C-d");
}

#[test]
fn an_address_that_is_typed_is_kept_and_answers() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), Model::new(Echo, |options| options.model = "own-model".to_owned()));
    let terminal = bare(&place, &[]);
    terminal.shows("No API key found");
    terminal.types("another");
    terminal.press("Enter");
    terminal.shows("The server's address");
    // Nothing listens there: it is not kept.
    terminal.types("127.0.0.1:1");
    terminal.press("Enter");
    terminal.shows("Nothing was stored");
    assert!(!place.run(&["config", "get", "provider"]).stdout.contains("mine"));
    terminal.types("another");
    terminal.press("Enter");
    terminal.shows("The server's address");
    terminal.types(model.url().trim_end_matches("/v1"));
    terminal.press("Enter");
    terminal.shows("own-model");
    terminal.says("say it back");
    terminal.until("the answer is there", |screen| screen.matches("say it back").count() >= 2);
    assert_eq!(place.run(&["config", "get", "providers.mine.base_url"]).stdout.trim(), model.url());
}

#[test]
fn a_pasted_key_is_not_shown_and_kept_for_the_user_alone() {
    if !is_there() {
        return;
    }
    let (place, key) = (Place::new(), "sk-ant-this-is-a-made-up-key");
    // A proxy that nobody serves keeps the test in this machine.
    let mut command = place.command(&[]);
    command.env("HTTPS_PROXY", "http://127.0.0.1:1");
    let terminal = Terminal::of(&place, SIZE, &command);
    terminal.shows("No API key found");
    terminal.types("paste");
    terminal.press("Enter");
    terminal.shows("not shown");
    terminal.pastes(key);
    terminal.shows("28 characters");
    terminal.press("Enter");
    terminal.shows("is stored in");
    terminal.shows("It was not checked");
    terminal.shows("claude-sonnet-5");
    terminal.press("C-d");
    assert!(!terminal.all().contains(key), "the key is on the screen");
    let kept = place.store().with_file_name(".config/greenroom/keys.yaml");
    assert!(std::fs::read_to_string(&kept).unwrap().contains(key));
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // It is nowhere else.
    let with_key = |path: &std::path::PathBuf| {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(key.len()).any(|part| part == key.as_bytes()))
    };
    let others: Vec<_> =
        files(place.store().parent().unwrap()).into_iter().filter(|path| *path != kept).collect();
    let others: Vec<_> = others
        .into_iter()
        .filter(|path| path.is_file() && !path.ends_with("tmux0.paste"))
        .filter(with_key)
        .collect();
    assert_eq!(others, Vec::<std::path::PathBuf>::new());
    // A command of the model does not find it.
    let ran = place.run(&["login", "anthropic", "--forget"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("no longer has a key for anthropic"), "{ran:?}");
    assert!(!std::fs::read_to_string(&kept).unwrap().contains(key));
}

#[test]
fn a_key_is_checked_before_it_is_kept() {
    if !is_there() {
        return;
    }
    let model = Model::new(Echo, |options| {
        options.require_key = Some("the-right-key-of-mine".to_owned());
        options.model = "own-model".to_owned();
    });
    let place = Place::new();
    place.own_file(&format!(
        "provider: mine\nmodel: own-model\nproviders:\n  mine:\n    base_url: {}\n    api_key_env: MINE_KEY\n",
        model.url()
    ));
    let piped = place.run_with(&["login", "mine"], "the-right-key-of-mine\n");
    assert!(piped.code == Some(2) && piped.stderr.contains("which you have not confirmed"), "{piped:?}");
    for (key, is_kept) in [("the-wrong-key-of-mine", false), ("the-right-key-of-mine", true)] {
        let terminal = bare(&place, &["login", "mine"]);
        // Where it goes is shown: a file says so.
        terminal.shows(&format!("it is sent to {}", model.url()));
        terminal.pastes(key);
        terminal.press("Enter");
        let screen = terminal.shows("ended with");
        assert_eq!(screen.contains("is stored in"), is_kept, "{key}: {screen}");
        assert_eq!(screen.contains("rejects this key"), !is_kept, "{key}: {screen}");
        assert!(!screen.contains(key), "{screen}");
    }
    // It is used without a variable.
    let ran = place.run(&["-p", "say it back"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("say it back"), "{ran:?}");
}

#[test]
fn a_vendors_key_chooses_its_model() {
    let place = Place::new();
    for (variables, host) in [
        (&["OPENAI_API_KEY"][..], "api.openai.com"),
        (&["ANTHROPIC_API_KEY"], "api.anthropic.com"),
        (&["GEMINI_API_KEY"], "generativelanguage.googleapis.com"),
        (&["ANTHROPIC_API_KEY", "OPENAI_API_KEY"], "api.openai.com"),
    ] {
        let mut command =
            place.command(&["run", "--no-tools", "--set", "limits.retries_max=0", "-p", "Say hi."]);
        command.env("HTTPS_PROXY", "http://127.0.0.1:1");
        command.envs(variables.iter().map(|variable| (variable, "sk-vendor-made-up")));
        let ran = super::support::ran(command.output().unwrap());
        assert!(ran.stderr.contains(&format!("cannot reach https://{host}")), "{variables:?}: {ran:?}");
    }
    // Something that names a model is followed.
    place.own_file("model: gpt-5.5\n");
    let mut command = place.command(&["run", "-p", "Say hi."]);
    let ran = super::support::ran(command.env("ANTHROPIC_API_KEY", "sk-vendor").output().unwrap());
    assert!(ran.code == Some(2) && ran.stderr.contains("OPENAI_API_KEY"), "{ran:?}");
}

/// A server that lists these models, and answers nothing else.
fn lists(models: &[&str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let models: Vec<_> = models.iter().map(|id| json!({ "id": id })).collect();
    let body = json!({ "data": models }).to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4_096];
            let count = stream.read(&mut request).unwrap_or_default();
            let is_list = String::from_utf8_lossy(&request[..count]).starts_with("GET /v1/models ");
            let (status, body) = if is_list { ("200 OK", body.as_str()) } else { ("404 Not Found", "{}") };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}",
                body.len()
            );
            let _ = stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n{body}").as_bytes());
        }
    });
    format!("http://{address}/v1")
}

#[test]
fn the_model_of_a_server_is_one_that_it_lists() {
    let place = Place::new();
    let url = lists(&["qwen3:8b", "llama3:latest", "phi4"]);
    let ran = place.run(&["-p", "hi", "--base-url", &url]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("lists several models; name one with --model:\n  qwen3:8b\n"), "{ran:?}");
    // One that is named is asked for, and one of the configuration too if it is listed.
    let asks = |arguments: &[&str]| {
        let retries = ["--set", "limits.retries_max=0", "--json"];
        let ran = place.run(&[&["-p", "hi", "--base-url", &url], &retries[..], arguments].concat());
        assert!(!ran.stderr.contains("several models"), "{ran:?}");
        let session = place.json(&["sessions", "--json", "--limit", "1"]);
        session[0]["model"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(asks(&["--model", "other"]), "other");
    assert_eq!(asks(&["--set", "model=phi4"]), "phi4");
    // Nothing there has a list.
    let other = url.replace("/v1", "/v2");
    let ran = place.run(&["-p", "hi", "--base-url", &other, "--set", "limits.retries_max=0"]);
    let warning = format!("{other} does not list its models, so gpt-5.5 is used unchecked: ");
    assert!(ran.stderr.contains(&warning), "{ran:?}");
    if !is_there() {
        return;
    }
    let terminal = bare(&place, &["--base-url", &url]);
    let screen = terminal.shows("Choose a model of");
    assert!(screen.contains("llama3:latest"), "{screen}");
    terminal.types("phi");
    terminal.press("Enter");
    terminal.shows("phi4 · context");
}

#[test]
fn a_chat_says_at_once_that_its_server_is_down() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/v1", listener.local_addr().unwrap())
    };
    let terminal = bare(&place, &["--base-url", &url]);
    let screen = terminal.shows("›");
    assert!(
        screen.contains(&format!("{url} does not list its models, so gpt-5.5 is used unchecked")),
        "{screen}"
    );
    assert!(screen.contains("connection refused"), "{screen}");
}

#[test]
fn a_local_server_has_no_vendors_price_and_window() {
    // It lists the vendor's model, but it is not the vendor.
    let model = Model::new(Echo, |options| {
        (options.model, options.list) = ("gpt-5.5".to_owned(), ListForm::Names);
    });
    let (place, url) = (Place::new(), model.url());
    let ran = place.run(&["-p", "hi", "--base-url", &url, "--session", "mine"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr.matches("assumed").count(), 1, "{ran:?}");
    let session = &place.json(&["sessions", "--json"])[0];
    assert_eq!(
        (&session["cost_microdollars"], &session["window"]),
        (&json!(0), &json!(128_000)),
        "{session}"
    );
    let models = place.json(&["models", "--base-url", &url, "--json"]);
    assert_eq!(models["models"][0]["input_microdollars_per_million"], json!(null), "{models}");
    // A user whose own server has a vendor's models sets their prices.
    let ran = place.run(&[
        "-p",
        "hi",
        "--base-url",
        &url,
        "--session",
        "other",
        "--set",
        "models.gpt-5.5.price={ input: 1.25, output: 10 }",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_ne!(place.json(&["sessions", "--json"])[0]["cost_microdollars"], json!(0));
}

#[test]
fn models_are_listed_without_a_key() {
    let place = Place::new();
    let ran = place.run(&["models", "gpt-5.5"]);
    assert!(
        ran.code == Some(0) && ran.stdout.contains("\ngpt-5.5 ") && ran.stderr.contains("no API key"),
        "{ran:?}"
    );
    let ran = place.run(&["models", "--provider", "anthropic", "claude-opus-5"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("\nclaude-opus-5 "), "{ran:?}");
    // A name is looked for with every vendor, and what no agent can use is left out.
    let ran = place.run(&["models", "claude-opus-5"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("\nclaude-opus-5 "), "{ran:?}");
    let ran = place.run(&["models", "embedding"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("there is none with embedding"), "{ran:?}");
    let ran = place.run(&["models", "there-is-no-such-model"]);
    assert!(
        ran.code == Some(0) && ran.stdout.contains("there is none with there-is-no-such-model"),
        "{ran:?}"
    );
    let ran = place.run(&["models", "--simulate"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("simulated"), "{ran:?}");
}

#[test]
fn the_help_fits_a_screen_and_names_every_command() {
    let place = Place::new();
    for arguments in [&["--help"][..], &["-h"], &["help"]] {
        let help = place.run(arguments).stdout;
        assert!(help.lines().count() <= SIZE.1.into(), "{arguments:?}: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= SIZE.0.into()), "{arguments:?}: {help}");
    }
    // What is said about what an agent may do comes before the model, and sampling only in the long help.
    let place_in = |help: &str, part: &str| help.find(part).unwrap_or(usize::MAX);
    for command in ["chat", "run"] {
        let (short, long) = (place.run(&[command, "-h"]).stdout, place.run(&[command, "--help"]).stdout);
        for help in [&short, &long] {
            assert!(place_in(help, "--mode") < place_in(help, "--model "), "{command}: {help}");
        }
        for flag in ["--temperature", "--top-p", "--seed", "--stop", "--tool-choice"] {
            assert!(!short.contains(flag) && long.contains(flag), "{command} {flag}");
        }
    }
    // It is for people who look after a store, and not listed.
    assert!(!place.run(&["help"]).stdout.contains("  store "));
    assert_eq!(place.run(&["store", "--help"]).code, Some(0));
}

#[test]
fn the_configuration_is_found_edited_and_checked() {
    let place = Place::new();
    let own = place.store().with_file_name(".config/greenroom/greenroom.yaml");
    assert_eq!(place.run(&["config", "path"]).stdout.trim(), own.display().to_string());
    assert_eq!(place.run(&["config", "path", "--project"]).stdout.trim(), "greenroom.yaml");
    let none = place.run(&["config", "edit"]);
    assert!(none.code == Some(2) && none.stderr.contains("set EDITOR"), "{none:?}");
    let edit = |script: &str| {
        let mut command = place.command(&["config", "edit"]);
        super::support::ran(command.env("PATH", "/usr/bin:/bin").env("EDITOR", script).output().unwrap())
    };
    let ran = edit("cp /dev/null");
    assert!(ran.code == Some(0) && ran.stdout.contains("is valid"), "{ran:?}");
    let ran = edit("sh -c 'echo modle: x > \"$0\"'");
    assert!(ran.code == Some(2) && ran.stderr.contains("modle"), "{ran:?}");
    let ran = edit("false");
    assert!(ran.code == Some(2) && ran.stderr.contains("ended with"), "{ran:?}");
}

#[test]
fn the_doctor_names_what_is_broken_and_the_remedy() {
    let place = Place::new();
    let check = |arguments: &[&str], name: &str| {
        let ran = place.run(&[&["doctor", "--json"], arguments].concat());
        let checks = place.json_of(&ran);
        let found = checks.as_array().unwrap().iter().find(|check| check["check"] == name);
        (ran.code, found.unwrap_or_else(|| panic!("{name}: {checks}")).clone())
    };
    let (code, key) = check(&[], "key");
    assert!(
        code == Some(2) && key["ok"] == false && key["remedy"].as_str().unwrap().contains("login"),
        "{key}"
    );
    assert!(!place.store().exists(), "nothing is created");
    let model = Model::new(Echo, |options| options.model = "own-model".to_owned());
    let url = model.url();
    let (_, server) = check(&["--base-url", &url], "server");
    assert_eq!(server["ok"], true, "{server}");
    let (_, found) = check(&["--base-url", &url], "model");
    assert_eq!((&found["ok"], &found["found"]), (&json!(true), &json!("own-model")));
    let (code, server) = check(&["--base-url", "http://127.0.0.1:9/v1"], "server");
    assert!(code == Some(2) && server["remedy"].as_str().unwrap().contains("running"), "{server}");
    let shown = place.run(&["doctor", "--base-url", &url]).stdout;
    assert!(shown.contains("✓ server: ") && shown.contains("✓ store: "), "{shown}");
    place.own_file("modle: x\n");
    let (code, broken) = check(&[], "configuration");
    assert!(
        code == Some(2) && broken["ok"] == false && broken["found"].as_str().unwrap().contains("modle"),
        "{broken}"
    );
}

/// What is lost is named by every call, not only by the one that finds it, and by a server that starts.
#[test]
fn known_damage_is_named_at_every_look_and_every_start() {
    type Step = fn(&std::path::Path);
    let lose_journal: Step = |store| std::fs::remove_dir_all(store.join("journal")).unwrap();
    let lose_all_lists: Step = |store| {
        for part in ["index", "journal"] {
            std::fs::remove_dir_all(store.join(part)).unwrap();
        }
        std::fs::create_dir(store.join("journal")).unwrap();
        // A segment of which nothing is known.
        std::fs::write(store.join("journal/0000000001.seg"), [7; 100]).unwrap();
    };
    for (step, looked, served) in [
        (lose_journal, "1 session lost entries", "1 session (mine) lost entries and accepts no prompts"),
        (lose_all_lists, "entries of unknown sessions", "sessions that lost entries: not known"),
    ] {
        let place = Place::new();
        let ran = place.run(&["run", "-p", "Hello.", "--simulate", "--session", "mine"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        step(&place.store());
        for _ in 0..2 {
            let ran = place.run(&["doctor"]);
            let line = ran.stdout.lines().find(|line| line.contains(" store: ")).unwrap();
            assert!(line.starts_with("✗ store: ") && line.contains(looked), "{ran:?}");
            assert!(ran.stdout.contains("`greenroom store check` lists what is lost"), "{ran:?}");
            assert_eq!(ran.code, Some(2), "{ran:?}");
        }
        for _ in 0..2 {
            let mut running = place.start_alone(&["serve", "--listen", "127.0.0.1:0", "--simulate"]);
            let warned = running.wait_for_word(served);
            assert!(warned.contains("`greenroom store check` lists what is lost"), "{warned}");
            running.wait_for_word("greenroom serves");
            running.signal(rustix::process::Signal::TERM);
            assert_eq!(running.end().code, Some(0));
        }
    }
}

/// A store that can be read and not written is not well; the check leaves nothing behind.
#[test]
fn the_doctor_tries_to_write_beside_the_store() {
    let place = Place::new();
    let ran = place.run(&["run", "-p", "Hello.", "--simulate"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = place.run(&["doctor"]).stdout;
    assert!(shown.contains("✓ store: "), "{shown}");
    let line = "ulimit -f 0; exec \"$0\" doctor";
    let mut command = place.command_of("/bin/sh".into(), &["-c", line, env!("CARGO_BIN_EXE_greenroom")]);
    let ran = super::support::ran(command.output().unwrap());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stdout.contains("✗ store: ") && ran.stdout.contains("cannot be written: File too large"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("--data-dir"), "the remedy: {ran:?}");
    let left = super::support::files(&place.store());
    assert!(!left.iter().any(|file| file.to_string_lossy().contains("doctor")), "nothing is left: {left:?}");
}

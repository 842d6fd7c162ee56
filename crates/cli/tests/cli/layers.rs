//! The layers of the configuration: files, variables, flags; where each value comes from; and single settings.

use greenroom_simulator::{Answer, Pace};
use serde_json::{Value, json};

use super::support::{Model, Place, Ran, Says};

const THRESHOLD: &str = "compaction.threshold";

fn with_variables(place: &Place, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = place.command(arguments);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    super::support::ran(output)
}

#[test]
fn each_layer_stands_over_the_one_below_and_is_named() {
    let place = Place::new();
    let check = |variables: &[(&str, &str)], flags: &[&str], value: &str, source: &str| {
        let arguments = [&["config", "get", THRESHOLD, "--json"], flags].concat();
        let ran = with_variables(&place, &arguments, variables);
        let said = place.json_of(&ran);
        assert_eq!(said["value"].to_string(), value, "{ran:?}");
        assert!(said["source"].as_str().unwrap().ends_with(source), "{said}");
    };
    let variable = [("GREENROOM_COMPACTION_THRESHOLD", "0.5")];
    let flag = ["--set", "compaction.threshold=0.4"];
    check(&[], &[], "0.8", "default");
    place.own_file("compaction: { threshold: 0.7 }\n");
    check(&[], &[], "0.7", ".config/greenroom/greenroom.yaml");
    place.project_file("compaction: { threshold: 0.6, cut: nearest }\n");
    check(&[], &[], "0.6", "./greenroom.yaml");
    check(&variable, &[], "0.5", "GREENROOM_COMPACTION_THRESHOLD");
    check(&variable, &flag, "0.4", "--set compaction.threshold");
    check(&[("GREENROOM_COMPACTION_THRESHOLD", " ")], &[], "0.6", "./greenroom.yaml");
    // A section comes from where its parts do; what is not set is there, too.
    let all = place.json_of(&with_variables(&place, &["config", "get", "compaction", "--json"], &variable));
    assert!(all["source"].as_str().unwrap().starts_with("./greenroom.yaml, "), "{}", all["source"]);
    assert!(
        all["source"].as_str().unwrap().ends_with(", GREENROOM_COMPACTION_THRESHOLD"),
        "{}",
        all["source"]
    );
    let all = place.json(&["config", "--json"]);
    assert_eq!(all["model_settings.temperature"], serde_json::json!({ "value": null, "source": "default" }));
    let asked = [("OPENAI_BASE_URL", "http://127.0.0.1:9/v1?key=secret")];
    let shown = with_variables(&place, &["config"], &asked);
    assert!(shown.stdout.contains("# OPENAI_BASE_URL is set (http://127.0.0.1:9/v1?***): "), "{shown:?}");
    // The whole configuration says the same, and can be read back.
    let shown = with_variables(&place, &["config"], &variable);
    assert!(shown.stdout.contains("threshold: 0.5"), "{shown:?}");
    let line = shown.stdout.lines().find(|line| line.contains("threshold: 0.5")).unwrap();
    assert!(line.ends_with("# GREENROOM_COMPACTION_THRESHOLD"), "{line}");
    let file = place.work().join("copy.yaml");
    std::fs::write(&file, &shown.stdout).unwrap();
    let again = place.run(&["config", "get", THRESHOLD, "--config", "copy.yaml"]);
    assert_eq!((again.code, again.stdout.trim()), (Some(0), "0.5"), "{again:?}");
}

#[test]
fn what_stands_over_the_files_is_checked_and_named() {
    let place = Place::new();
    for (variables, flags, parts) in [
        (
            &[("GREENROOM_LIMITS_STEPS_MAX", "many")][..],
            &[][..],
            &["GREENROOM_LIMITS_STEPS_MAX: ", "whole number"][..],
        ),
        (&[("GREENROOM_LIMITS_STEPS_MAX", "0")], &[], &["GREENROOM_LIMITS_STEPS_MAX: must", "at least 1"]),
        (
            &[("GREENROOM_MODEL_SETTINGS_TEMPERATURE", "9")],
            &[],
            &["GREENROOM_MODEL_SETTINGS_TEMPERATURE: ", "0 to 2"],
        ),
        (&[("GREENROOM_PROVIDERS", "{x: {}}")], &[], &["GREENROOM_PROVIDERS: x: ", "base_url is missing"]),
        (&[("GREENROOM_PROVIDER", "x")], &[], &["there is no provider \"x\""]),
        (&[("GREENROOM_SYSTEM_PROMPT", "file:none")], &[], &["GREENROOM_SYSTEM_PROMPT: ", "cannot read"]),
        (
            &[],
            &["--set", "threshold=1"],
            &["--set threshold: there is no such setting", "compaction.threshold"],
        ),
        (&[], &["--set", "model"], &["KEY=VALUE"]),
        (&[], &["--set", "compaction.threshold=7"], &["--set compaction.threshold: must", "fraction"]),
    ] {
        let ran = with_variables(&place, &[&["config"], flags].concat(), variables);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{ran:?} does not name {parts:?}");
    }
    let ran = with_variables(&place, &["config"], &[("GREENROOM_CONTXT_WINDOW", "9")]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stderr.contains("GREENROOM_CONTXT_WINDOW has no effect")
            && ran.stderr.contains("GREENROOM_CONTEXT_WINDOW")
    );
    // Those of the clients for other languages are none of ours.
    let of_clients = [("GREENROOM_URL", "http://127.0.0.1:7878"), ("GREENROOM_TOKEN", "secret")];
    let ran = with_variables(&place, &["config"], &of_clients);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    // Those of a cluster are not settings, and have an effect.
    let of_a_cluster =
        ["STORE", "CLUSTER_SECRET", "NODE", "ADVERTISE"].map(|name| format!("GREENROOM_{name}"));
    let of_a_cluster: Vec<(&str, &str)> = of_a_cluster.iter().map(|name| (name.as_str(), "x")).collect();
    let ran = with_variables(&place, &["config"], &of_a_cluster);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

/// What a layer says of a provider need not be whole: the layers together must be.
#[test]
fn a_provider_is_put_together_from_several_layers() {
    let local = "providers:\n  local: { base_url: 'http://localhost:1/v1' }\n";
    let check = |file: &str, variables: &[(&str, &str)], flags: &[&str], wanted: Result<&str, &str>| {
        let place = Place::new();
        place.own_file(file);
        let arguments = [&["config", "get", "providers.local.in_flight_max"], flags].concat();
        let ran = with_variables(&place, &arguments, variables);
        match wanted {
            Ok(value) => assert_eq!((ran.code, ran.stdout.trim()), (Some(0), value), "{ran:?}"),
            Err(problem) => {
                assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
                assert!(ran.stderr.contains(problem), "{ran:?} does not say {problem:?}");
            }
        }
    };
    let places = ["--set", "providers.local.in_flight_max=3"];
    let address = ["--set", "providers.local.base_url=http://localhost:2/v1"];
    let variable = |value| [("GREENROOM_PROVIDERS", value)];
    check(local, &[], &places, Ok("3"));
    check(local, &variable("{local: {in_flight_max: 4}}"), &[], Ok("4"));
    check(local, &variable("{local: {in_flight_max: 4}}"), &places, Ok("3"));
    check("providers:\n  local: { in_flight_max: 5 }\n", &[], &address, Ok("5"));
    check("", &variable("{local: {in_flight_max: 6}}"), &address, Ok("6"));
    check("", &[], &[places, address].concat(), Ok("3"));
    let missing = "its base_url is missing";
    check(
        "model: x\nproviders:\n  local: { in_flight_max: 5 }\n",
        &variable("{local: {idle_timeout_s: 9}}"),
        &places,
        Err(&format!("greenroom.yaml, line 3: providers.local: {missing}")),
    );
    let is_null = ["--set", "providers.local.base_url=null"];
    check(local, &[], &is_null, Err(&format!(" --set providers.local.base_url: providers.local: {missing}")));
    check(local, &variable("{local: {base_url: null}}"), &address, Ok("16"));
    check(
        "",
        &variable("{local: {in_flight_max: 6}}"),
        &places,
        Err(&format!(" GREENROOM_PROVIDERS: local: {missing}")),
    );
    // What is wrong by itself is wrong, whatever stands over it.
    check(
        "providers:\n  local: { base_url: 'http://localhost:1/v1', in_flight_max: 0 }\n",
        &[],
        &places,
        Err("greenroom.yaml, line 2: providers.local.in_flight_max: must be at least 1"),
    );
    // `config set` edits a part of a provider that the file has.
    let place = Place::new();
    place.own_file(local);
    let refused = place.run(&["config", "set", "providers.other.in_flight_max", "3"]);
    assert!(refused.code == Some(2) && refused.stderr.contains(missing), "{refused:?}");
    place.own_file("providers:\n  local:\n    base_url: http://localhost:1/v1\n");
    let set = place.run(&["config", "set", "providers.local.in_flight_max", "3"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    assert_eq!(place.run(&["config", "get", "providers.local.in_flight_max"]).stdout.trim(), "3");
}

#[test]
fn a_setting_is_set_and_unset_in_its_file() {
    let place = Place::new();
    let own = place.own_file("# mine\nmodel: a  # why\ncompaction:\n  # early\n  threshold: 0.7\n");
    let set = place.run(&["config", "set", THRESHOLD, "0.5"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    let text = "# mine\nmodel: a  # why\ncompaction:\n  # early\n  threshold: 0.5\n";
    assert_eq!(std::fs::read_to_string(&own).unwrap(), text);
    place.run(&["config", "set", "providers.local.base_url", "http://localhost:1/v1"]);
    assert_eq!(
        place.run(&["config", "get", "providers.local.base_url"]).stdout.trim(),
        "http://localhost:1/v1"
    );
    assert_eq!(place.run(&["config", "unset", "providers.local"]).code, Some(2), "no setting, but a name");
    // What would not be usable is refused, and the file is as it was.
    let before = std::fs::read_to_string(&own).unwrap();
    for (key, value) in [(THRESHOLD, "7"), ("provider", "nobody"), ("model", "''"), ("limits.steps_max", "x")]
    {
        let ran = place.run(&["config", "set", key, value]);
        assert_eq!(ran.code, Some(2), "{key}={value}: {ran:?}");
    }
    assert_eq!(std::fs::read_to_string(&own).unwrap(), before);
    // The project's file can choose and tighten, and is made where there is none.
    assert_eq!(place.run(&["config", "set", "--project", "limits.steps_max", "5"]).code, Some(0));
    assert_eq!(place.run(&["config", "get", "limits.steps_max"]).stdout.trim(), "5");
    let refused = place.run(&["config", "set", "--project", "providers.x.base_url", "http://localhost:1/v1"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("only your own file"), "{refused:?}");
    assert_eq!(place.run(&["config", "unset", "--project", "limits.steps_max"]).code, Some(0));
    assert_eq!(place.run(&["config", "get", "limits.steps_max"]).stdout.trim(), "250");
    // In a new place the file and its folder are made, for the user alone.
    let place = Place::new();
    assert_eq!(place.run(&["config", "set", "model", "b"]).code, Some(0));
    assert_eq!(place.run(&["config", "get", "model"]).stdout.trim(), "b");
}

/// A relative path is meant from the file's folder, when it is set and when it is read.
#[test]
fn a_file_that_a_setting_names_is_looked_for_beside_the_configuration() {
    let place = Place::new();
    let own = place.own_file("model: a\n");
    std::fs::write(own.with_file_name("beside.md"), "Beside.").unwrap();
    std::fs::write(place.work().join("here.md"), "Here.").unwrap();
    let named = place.work().join("named.yaml");
    std::fs::write(&named, "model: b\n").unwrap();
    for (more, key, name, read) in [
        (&[][..], "append_system_prompt", "beside.md", Some("Beside.")),
        (&[], "compaction.compact_prompt", "'file:beside.md'", None),
        (&[], "system_prompt", "here.md", None),
        (&["--config", "named.yaml"], "system_prompt", "here.md", Some("Here.")),
        (&["--config", "named.yaml"], "system_prompt", "beside.md", None),
    ] {
        let value = if name.starts_with('\'') { name.to_owned() } else { format!("file:{name}") };
        let set = place.run(&[more, &["config", "set", key, &value]].concat());
        let is_set = read.is_some() || name.starts_with('\'');
        assert_eq!(set.code, Some(if is_set { 0 } else { 2 }), "{key} {value}: {set:?}");
        if !is_set {
            let folder =
                if more.is_empty() { own.parent().unwrap().display().to_string() } else { String::new() };
            assert!(set.stderr.contains(&format!("cannot read {folder}")), "{set:?}");
        }
        if let Some(read) = read {
            let got = place.run(&[more, &["config", "get", key]].concat());
            assert_eq!(got.stdout.trim(), read, "{got:?}");
        }
    }
    assert!(std::fs::read_to_string(own).unwrap().contains("append_system_prompt: file:beside.md"));
}

#[test]
fn what_is_set_or_unset_already_is_said_so() {
    let place = Place::new();
    let own = place.own_file("model: a\n").display().to_string();
    for (arguments, said) in [
        (&["set", "model", "a"][..], format!("model is a in {own} already.")),
        (&["set", "model", "b"], format!("{own}: model is b now.")),
        (&["set", "--project", "model", "c"], "greenroom.yaml: model is c now.".to_owned()),
        (&["set", "--project", "model", "c"], "model is c in greenroom.yaml already.".to_owned()),
        (&["unset", "limits.steps_max"], format!("limits.steps_max was not set in {own}.")),
    ] {
        let ran = place.run(&[&["config"], arguments].concat());
        assert_eq!((ran.code, ran.stdout.trim()), (Some(0), said.as_str()), "{ran:?}");
    }
}

#[test]
fn the_defaults_and_the_schema_are_printed() {
    let place = Place::new();
    let defaults = place.run(&["config", "--default"]);
    std::fs::write(place.work().join("d.yaml"), &defaults.stdout).unwrap();
    let read = place.run(&["config", "--config", "d.yaml", "--json"]);
    let of = |ran: &Ran| {
        let values = place.json_of(ran).as_object().unwrap().clone();
        values.into_iter().map(|(key, setting)| (key, setting["value"].to_string())).collect::<Vec<_>>()
    };
    assert_eq!(of(&read), of(&place.run(&["config", "--json"])));
    let schema = place.json(&["config", "--schema"]);
    assert_eq!(schema["title"], "Config", "{schema}");
}

/// A provider's limit of tokens: the second step waits for room.
#[test]
fn a_limit_of_tokens_a_minute_is_waited_for() {
    let model = Model::new(Says(Answer::call("list", &json!({}))), |_| {});
    let place = Place::new();
    let providers = |limit: &str| {
        format!("provider: here\nproviders: {{ here: {{ base_url: \"{}\", {limit} }} }}\n", model.url())
    };
    place.own_file(&providers("tokens_per_minute: 1500"));
    let mut run = place.start_alone(&["run", "-p", "x", "--json", "--set", "limits.steps_max=3"]);
    let line = run.wait_for("\"queue_update\"");
    assert!(line.contains("\"tokens\""), "{line}");
    run.signal(rustix::process::Signal::INT);
    assert_eq!(run.end().code, Some(130));
    // Without the limit nothing waits.
    place.own_file(&providers("tokens_per_minute: null"));
    let ran = place.run(&["run", "-p", "x", "--json", "--set", "limits.steps_max=3"]);
    assert!(ran.code == Some(4) && !ran.stdout.contains("queue_update"), "{ran:?}");
}

#[test]
fn no_more_inputs_are_taken_on_than_the_configuration_says() {
    let pace = Pace { chunks: 100, first_ms: 0, between_ms: 200 };
    let model = Model::new(Says(Answer::text("word ".repeat(200)).with_pace(pace)), |_| {});
    let place = Place::new();
    let url = model.url();
    for (limit, is_refused) in [("1", true), ("null", false)] {
        place.own_file(&format!("limits: {{ inputs_max: {limit} }}\n"));
        let mut rpc = place.start(&["rpc", "--base-url", &url]);
        let mut accepted = Vec::new();
        for (id, session) in ["a", "b"].into_iter().enumerate() {
            let params = json!({ "session_id": session, "text": "x" });
            rpc.say(
                &json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params })
                    .to_string(),
            );
            let line = rpc.wait_for(&format!("\"id\":{id}"));
            let answer: Value = serde_json::from_str(&line).unwrap();
            accepted.push(answer["result"]["accepted"] == true);
            if accepted == [true, false] {
                assert!(answer["error"]["message"].as_str().unwrap().contains('1'), "{answer}");
                assert_eq!(answer["error"]["data"]["retryable"], true, "{answer}");
            }
        }
        assert_eq!(accepted, [true, !is_refused], "inputs_max: {limit}");
    }
    // It holds for the whole process, so a project has no say in it.
    let place = Place::new();
    place.project_file("limits: { inputs_max: 1 }\n");
    let ran = place.run(&["config"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("only your own file"), "{ran:?}");
}

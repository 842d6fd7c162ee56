//! The options of `run`: a structured answer, images, limits; together, and with their exit codes.

use greenroom_kernel::Usage;
use greenroom_simulator::{Answer, Fault, Pace, Sequence, WrongUsage};
use serde_json::json;

use super::support::{Model, Place, Ran, Says, events};

const CITY: &str = r#"{"title":"city","type":"object","properties":{"name":{"type":"string"},"rain":{"type":"integer","minimum":0}},"required":["name","rain"]}"#;

fn ask(place: &Place, model: &Model, more: &[&str]) -> Ran {
    let url = model.url();
    place.run(&[&["run", "-p", "where?", "--base-url", &url], more].concat())
}

fn sequence(texts: &[&str]) -> Model {
    Model::new(Sequence(texts.iter().map(|text| Answer::text(*text)).collect()), |_| {})
}

#[test]
fn an_answer_of_a_schema_is_printed_as_json_alone() {
    let place = Place::new();
    let answers = [
        "It is Bergen.",
        r#"{"name":"Bergen","rain":-1}"#,
        "```json\n{\"name\":\"Bergen\",\n \"rain\":2250}\n```",
    ];
    std::fs::write(place.work().join("city.json"), CITY).unwrap();
    for schema in ["city.json", CITY] {
        let model = sequence(&answers);
        let ran = ask(&place, &model, &["--output-schema", schema]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert_eq!(ran.stdout, "{\"name\":\"Bergen\",\"rain\":2250}\n");
        let requests = model.simulator.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|logged| logged.request.output_schema.as_ref().unwrap().is_strict()));
        assert!(requests[1].request.last_user_text().contains("not valid JSON"));
        assert!(requests[2].request.last_user_text().contains("at `/rain`"));
        model.simulator.assert_clean();
    }
    // At a terminal, too, nothing of what was sent back is shown as the answer.
    let model = sequence(&answers);
    let url = model.url();
    let arguments = ["run", "-p", "where?", "--base-url", &url, "--output-schema", CITY];
    let shown = place.run_at_terminal("xterm", &arguments, "");
    assert!(shown.contains("{\"name\":\"Bergen\",\"rain\":2250}"), "{shown}");
    assert!(!shown.contains("It is Bergen.") && !shown.contains("\"rain\":-1"), "{shown}");
    // What is no object is wrapped for the server, and printed as it was asked for.
    let ran = ask(&place, &sequence(&[r#"{"value":["a"]}"#]), &["--output-schema", r#"{"type":"array"}"#]);
    assert_eq!(ran.stdout, "[\"a\"]\n", "{ran:?}");
}

#[test]
fn the_events_of_a_run_with_a_schema_end_with_the_value() {
    let (place, model) = (Place::new(), sequence(&[r#"{"name":"Bergen","rain":2250}"#]));
    let ran = ask(&place, &model, &["--output-schema", CITY, "--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let last = events(&ran).pop().unwrap();
    assert_eq!(
        (&last["type"], &last["value"]),
        (&json!("run_end"), &json!({ "name": "Bergen", "rain": 2250 }))
    );
    // Without a schema there is none.
    let last = events(&ask(&place, &sequence(&["{}"]), &["--json"])).pop().unwrap();
    assert!(last["type"] == "run_end" && last.get("value").is_none(), "{last}");
}

#[test]
fn an_answer_that_never_fits_is_a_failure_that_says_why() {
    let place = Place::new();
    let model = Model::new(Says(Answer::text("It is Bergen.")), |_| {});
    let ran = ask(&place, &model, &["--output-schema", CITY]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(
        ran.stderr.contains("does not fit the schema \"city\"") && ran.stderr.lines().count() == 1,
        "{ran:?}"
    );
    let ran = ask(&place, &model, &["--output-schema", CITY, "--json"]);
    let last = events(&ran).pop().unwrap();
    assert_eq!((ran.code, &last["type"]), (Some(1), &json!("error")), "{last}");
}

#[test]
fn a_schema_that_is_wrong_is_a_usage_error_with_the_place() {
    let (place, model) = (Place::new(), Model::new(Says(Answer::text("{}")), |_| {}));
    let write = |name: &str, text: &str| std::fs::write(place.work().join(name), text).unwrap();
    write("broken.json", "{\n  \"type\": \"object\",\n}");
    write("wrong.json", r#"{"properties":{"name":{"type":"text"}}}"#);
    write("list.json", "[]");
    for (schema, parts) in [
        ("none.json", &["none.json", "No such file"][..]),
        (".", &["not a regular file"]),
        ("broken.json", &["broken.json", "line 3"]),
        ("list.json", &["list.json", "must be an object"]),
        ("wrong.json", &["wrong.json", "/properties/name/type"]),
        (r#"{"properties":{"name":{"type":"text"}}}"#, &["--output-schema", "/properties/name/type"]),
        (r#"{"$ref":"https://example.com/x.json"}"#, &["only to what is in it"]),
        (r#"{"type":"#, &["--output-schema", "column"]),
        (r#"{"properties":{"name":{"pattern":"("}}}"#, &["/properties/name/pattern"]),
    ] {
        let ran = ask(&place, &model, &["--output-schema", schema]);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{schema}: {ran:?}");
        assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{schema}: {ran:?}");
    }
    assert_eq!(model.simulator.requests().len(), 0, "nothing was asked");
    assert!(!place.store().exists(), "nothing was begun");
}

/// All of them at once: each does what it does alone.
#[test]
fn what_a_run_is_asked_for_combines() {
    let place = Place::new();
    let model = sequence(&["no", r#"{"name":"Oslo","rain":763}"#]);
    std::fs::write(place.work().join("a.gif"), b"GIF89a and more").unwrap();
    let ran = ask(
        &place,
        &model,
        &[
            "--output-schema", CITY, "--effort", "high", "--system", "You know the weather.",
            "--append-system", "Be brief.", "--image", "a.gif", "--image", "a.gif", "--max-cost", "0.5",
            "--timeout", "60", "--json", "--session", "mine", "--no-tools", "--temperature", "0.1",
        ],
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(events(&ran).pop().unwrap()["value"]["name"], "Oslo");
    let requests = model.simulator.requests();
    assert_eq!(requests.len(), 2);
    for logged in &requests {
        let settings = serde_json::to_value(&logged.request.settings).unwrap();
        assert_eq!((&settings["reasoning_effort"], &settings["temperature"]), (&json!("high"), &json!(0.1)));
        assert_eq!(logged.request.system.as_deref(), Some("You know the weather.\n\nBe brief."));
        assert_eq!(format!("{:?}", logged.request.messages).matches("image/gif").count(), 2);
        assert!(logged.request.output_schema.is_some());
    }
    // The schema belongs to that prompt, and not to the session.
    let model = sequence(&["Fine."]);
    let ran = ask(&place, &model, &["-c"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Fine.\n"), "{ran:?}");
    assert!(model.simulator.requests()[0].request.output_schema.is_none());
}

/// A limit that was reached is a budget that ended the run, whichever it is.
#[test]
fn limits_that_are_reached_have_the_exit_code_of_a_budget() {
    let place = Place::new();
    let pace = Pace { chunks: 10, first_ms: 200, between_ms: 2_000 };
    let slow = Model::new(Says(Answer::text("word ".repeat(50)).with_pace(pace)), |_| {});
    let ran = ask(&place, &slow, &["--timeout", "1", "--json"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains("within 1s"), "{ran:?}");
    let events = events(&ran);
    let end = events.iter().find(|event| event["type"] == "run_end").unwrap();
    assert_eq!(end["outcome"], "aborted", "what had come is kept: {events:?}");

    let model = Model::new(Says(Answer::call("list", &json!({}))), |_| {});
    let file = place.work().join("mine.yaml");
    let providers = format!(
        "provider: here\nmodel: gpt-5.5\nproviders: {{ here: {{ base_url: \"{}\", catalog: openai }} }}\n",
        model.url()
    );
    std::fs::write(&file, providers).unwrap();
    let file = file.to_str().unwrap();
    let ran = place.run(&["run", "-p", "where?", "--config", file, "--max-cost", "0.00001"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains('$'), "{ran:?}");
}

/// A server that reports nothing, or what cannot be, is held to the limit by our own count.
#[test]
fn a_server_that_reports_no_usage_gets_no_further_than_the_limit() {
    let call = || Answer::call("list", &json!({}));
    let one = Usage { input_tokens: 1, output_tokens: 1, ..Usage::default() };
    for said in [call().with_fault(Fault::Usage(WrongUsage::Missing)), call().with_usage(one)] {
        let place = Place::new();
        let model = Model::new(Says(said), |_| {});
        let providers = format!(
            "provider: here\nproviders: {{ here: {{ base_url: \"{}\", catalog: openai }} }}\nlimits: {{ repeats_max: 1000 }}\n",
            model.url()
        );
        let file = place.work().join("mine.yaml");
        std::fs::write(&file, providers).unwrap();
        let file = file.to_str().unwrap();
        let more = ["--model", "gpt-4o", "--max-cost", "0.01", "--json"];
        let ran = place.run(&[&["run", "-p", "where?", "--config", file][..], &more].concat());
        assert_eq!(ran.code, Some(4), "{ran:?}");
        assert!(ran.stderr.contains("the run reached its cost limit of $0.01"), "{ran:?}");
        let mut updates = events(&ran).into_iter().filter(|event| event["type"] == "usage_update");
        let last = updates.next_back().unwrap();
        let cost = last["cost_microdollars"].as_u64().unwrap();
        assert!((1_000..=10_000).contains(&cost), "{last}");
        assert!(last["estimated_tokens"].as_u64().unwrap() > 100, "{last}");
    }
}

#[test]
fn a_limit_of_money_that_cannot_be_kept_is_said() {
    let place = Place::new();
    let said = "greenroom: warning: the price of my-own at ";
    let check = |more: &[&str], is_said: bool| {
        let model = Model::new(Says(Answer::text("Bergen.")), |_| {});
        let ran = ask(&place, &model, &[&["--window", "100000"], more].concat());
        assert_eq!((ran.code, ran.stdout.trim()), (Some(0), "Bergen."), "{ran:?}");
        assert_eq!(ran.stderr.matches(said).count(), usize::from(is_said), "{more:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), usize::from(is_said), "{more:?}: {ran:?}");
    };
    check(&["--model", "my-own", "--max-cost", "1"], true);
    check(&["--model", "my-own", "--set", "limits.cost_usd_max=1"], true);
    // Once, where both are set.
    check(&["--model", "my-own", "--set", "limits.cost_usd_max=1", "--max-cost", "1"], true);
    check(&["--model", "my-own"], false);
    let price = "models.gpt-5.5.price={ input: 1.25, output: 10 }";
    check(&["--model", "gpt-5.5", "--set", price, "--max-cost", "1"], false);
}

//! `greenroom models`: what servers say, and where it comes from.

use greenroom_simulator::{Echo, ListForm};

use super::support::{Model, Place};

#[test]
fn models_are_listed_with_their_limits_and_sources() {
    let model = Model::new(Echo, |options| (options.list, options.window) = (ListForm::LiteLlm, 32_000));
    let place = Place::new();
    let base_url = model.url();
    let flags = ["models", "--base-url", base_url.as_str()];
    let ran = place.run(&flags);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = ran.stdout.lines().find(|line| line.starts_with("simulated ")).expect("it is listed");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words, ["simulated", "32k", "server", "8k", "$1.00,", "$2.00", "server"], "{ran:?}");
    assert!(
        ran.stdout.ends_with("not used for costs and limits; set `models.NAME.price` to use them.\n"),
        "{ran:?}"
    );
    // A model that the server does not list is no model of it.
    assert!(!ran.stdout.contains("gpt-5.5"), "{ran:?}");
    let listed = place.json(&[&flags[..], &["simul", "--json"]].concat());
    assert_eq!(listed["origin"], base_url.as_str());
    assert_eq!(listed["models"].as_array().unwrap().len(), 1);
    assert_eq!(listed["models"][0]["window_source"], "server");
    assert!(!place.store().exists(), "looking makes nothing");
}

#[test]
fn a_server_without_a_list_is_told_with_what_the_catalogue_knows() {
    let model = Model::new(Echo, |options| options.list = ListForm::Absent);
    let place = Place::new();
    let ran = place.run(&["models", "--base-url", &model.url(), "gpt-5.5"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("does not list its models"), "{ran:?}");
    assert!(ran.stdout.contains("gpt-5.5 ") && ran.stdout.contains("of the catalogue"), "{ran:?}");
    let listed = place.json(&["models", "--base-url", &model.url(), "--json"]);
    assert!(listed["problem"].is_string(), "{listed}");
}

#[test]
fn a_learned_limit_is_shown_and_forgotten() {
    let boasts = ListForm::Overstated { tokens: 32_768 };
    let model = Model::new(Echo, |options| (options.list, options.window) = (boasts, 8_192));
    let place = Place::new();
    let base_url = model.url();
    let long = "thing ".repeat(5_000);
    for _ in 0..2 {
        let prompt = [
            "run", "--no-tools", "--base-url", &base_url, "--model", "simulated", "--session", "s", "-p",
            &long,
        ];
        place.run(&prompt);
    }
    let list = ["models", "--base-url", base_url.as_str(), "--json", "simulated"];
    assert_eq!(place.json(&list)["models"][0]["learned"], 8_192);
    let forget = ["models", "--base-url", base_url.as_str(), "--forget", "simulated"];
    let ran = place.run(&forget);
    assert!(ran.code == Some(0) && ran.stdout.starts_with("Forgot"), "{ran:?}");
    assert!(place.json(&list)["models"][0]["learned"].is_null());
    assert!(place.run(&forget).stdout.starts_with("No learned limit of simulated"));
    // Nobody is asked, so it wants no key: neither of OpenAI nor of a server of one's own.
    place.own_file(
        "providers: { corp: { base_url: \"https://gateway.example/v1\", api_key_env: CORP_KEY } }\n",
    );
    for flags in [&["models", "--forget", "gpt-5.5"][..], &["models", "--provider", "corp", "--forget", "m"]]
    {
        let ran = place.run(flags);
        assert!(ran.code == Some(0) && ran.stdout.starts_with("No learned limit of"), "{ran:?}");
    }
}

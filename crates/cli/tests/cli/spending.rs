//! The cost of runs by the user's own prices, and spending by day and label.

use greenroom_simulator::Echo;

use super::support::{Model, Place, events};

#[test]
fn set_prices_are_billed_listed_and_summed_up() {
    let model = Model::new(Echo, |_| ());
    let place = Place::new();
    place.own_file(
        "models: { simulated: { price: { input: 1000, output: 2000 } } }\nlimits: { spending_by: [folder] }\n",
    );
    let base_url = model.url();
    let prompt = [
        "run", "--no-tools", "--base-url", &base_url, "--model", "simulated", "--session", "s", "-p",
        "hello", "--json",
    ];
    let mut costs = Vec::new();
    for _ in 0..2 {
        let ran = place.run(&prompt);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let end = events(&ran).pop().unwrap();
        assert_eq!((&end["type"], &end["is_cost_estimated"]), (&"run_end".into(), &false.into()), "{end}");
        costs.push(end["cost_microdollars"].as_u64().unwrap());
    }
    assert!(costs.iter().all(|cost| *cost > 1_000), "{costs:?}");
    let sum: u64 = costs.iter().sum();
    let spent = place.json(&["usage", "--json"]);
    let first = &spent[0];
    assert_eq!(
        (first["cost_microdollars"].as_u64(), first["runs"].as_u64()),
        (Some(sum), Some(2)),
        "{spent}"
    );
    // The folder is known after the first run.
    let of_folder = place.json(&["usage", "folder", "--hours", "-n", "2", "--json"]);
    let cost = of_folder[0]["cost_microdollars"].as_u64();
    assert!(cost == Some(costs[1]) || cost == Some(sum), "{of_folder} {costs:?}");
    let ran = place.run(&["usage"]);
    let row: Vec<&str> = ran.stdout.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((ran.code, row.len(), row[1], row[6]), (Some(0), 8, "all", "2"), "{ran:?}");
    let ran = place.run(&["usage", "tenant"]);
    let said = "not counted by the label \"tenant\": name it in limits.spending_by of the configuration";
    assert!(ran.code == Some(2) && ran.stderr.contains(said), "{ran:?}");
    let listed = place.json(&["models", "--base-url", &base_url, "--json", "simulated"]);
    let listed = &listed["models"][0];
    assert_eq!(
        (listed["source"].as_str(), listed["output_microdollars_per_million"].as_u64()),
        (Some("settings"), Some(2_000_000_000))
    );
    let shown = place.run(&["config", "get", "models.simulated.price"]);
    assert!(shown.stdout.contains("2000"), "{shown:?}");
}

#[test]
fn nothing_was_spent_where_there_is_no_store() {
    let place = Place::new();
    let ran = place.run(&["usage"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "There was no spending in this period.\n"),
        "{ran:?}"
    );
    assert!(!place.store().exists(), "looking makes nothing");
}

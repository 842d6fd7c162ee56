//! Settings that change while sessions are open.

use std::collections::VecDeque;

use super::*;

/// A source with these changes, one per call.
fn live(changes: impl IntoIterator<Item = SettingsChange>) -> ReloadedSettings {
    let changes: Mutex<VecDeque<SettingsChange>> = Mutex::new(changes.into_iter().collect());
    ReloadedSettings::new(Arc::new(move || changes.lock().pop_front()))
}

/// Settings with a cost limit and without compaction.
fn cost(limit: u64) -> SettingsChange {
    let off = CompactionSettings { enabled: false, ..CompactionSettings::default() };
    SettingsChange::settings(off, move |agent| Agent { cost_limit: Some(limit), ..agent.clone() })
}

fn agent() -> Arc<Agent> {
    Arc::new(Agent::new("m"))
}

#[test]
fn what_the_source_said_last_holds() {
    let live = live([cost(5), cost(7)]);
    assert_eq!((live.adjusted(agent()).cost_limit, live.version()), (None, 0));
    assert!(live.compaction().is_none());
    for (limit, version) in [(5, 1), (7, 2), (7, 2)] {
        live.refresh();
        assert_eq!((live.adjusted(agent()).cost_limit, live.version()), (Some(limit), version));
        assert!(live.compaction().is_some_and(|settings| !settings.enabled));
    }
}

#[test]
fn a_warning_leaves_the_settings_and_is_said_once() {
    let live = live([cost(5), SettingsChange::warning("line 3 is wrong"), cost(7).and_warning("old key")]);
    live.refresh();
    assert!(live.take_warnings().is_empty());
    live.refresh();
    assert_eq!((live.adjusted(agent()).cost_limit, live.version()), (Some(5), 1));
    assert_eq!(live.take_warnings(), ["line 3 is wrong"]);
    assert!(live.take_warnings().is_empty());
    live.refresh();
    assert_eq!((live.adjusted(agent()).cost_limit, live.version()), (Some(7), 2));
    assert_eq!(live.take_warnings(), ["old key"]);
}

#[test]
fn settings_that_contradict_themselves_are_not_used() {
    let wrong = CompactionSettings { threshold: Some(7.0), ..CompactionSettings::default() };
    assert!(wrong.check().is_err());
    let live = live([cost(5), SettingsChange::settings(wrong, |agent| agent.clone())]);
    live.refresh();
    live.refresh();
    assert_eq!((live.adjusted(agent()).cost_limit, live.version()), (Some(5), 1));
    assert!(live.compaction().is_some_and(|settings| !settings.enabled));
    let warnings = live.take_warnings();
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("the changed settings are not used: "),
        "{warnings:?}"
    );
}

#[test]
fn the_model_and_the_provider_stay_those_of_the_agent() {
    let other = SettingsChange::settings(CompactionSettings::default(), |agent| Agent {
        cost_limit: Some(5),
        provider: Some("elsewhere".into()),
        ..Agent { model: "other".into(), ..agent.clone() }
    });
    let live = live([other]);
    live.refresh();
    let before = agent();
    let adjusted = live.adjusted(Arc::clone(&before));
    assert_eq!((adjusted.model.as_str(), adjusted.cost_limit), ("m", Some(5)));
    assert_eq!(adjusted.provider, before.provider);
}

#[test]
fn what_a_runtime_is_told_takes_effect_when_it_says_so() {
    let live = live([cost(5)]);
    assert!(live.ask().is_some_and(|settings| !settings.enabled));
    assert_eq!(live.version(), 0, "its settings are not known to all yet");
    live.took_effect();
    assert_eq!(live.version(), 1);
    assert!(live.ask().is_none() && live.compaction().is_none());
}

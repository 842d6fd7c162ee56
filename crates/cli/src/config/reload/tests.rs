//! Edits of the files of the configuration.

use super::*;
use crate::config::load;

/// A prompt's file is reloaded like the file that names it.
#[test]
fn an_edit_of_a_prompts_file_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (path, prompt) = (dir.path().join("own.yaml"), dir.path().join("p.md"));
    std::fs::write(&path, "compaction: { compact_prompt: \"file:p.md\" }\n").unwrap();
    std::fs::write(&prompt, "Be brief.").unwrap();
    let loaded = load(Some(&path), Overrides::default()).unwrap();
    let live = LiveConfig::new(Some(&path), &loaded);
    let said = || live.config().compaction.compact_prompt.clone().unwrap_or_default();
    assert_eq!(said(), "Be brief.");
    let mut now = SystemTime::now() + Duration::from_secs(60);
    assert!(live.look_at(now).is_none() && live.look_at(now).is_none(), "nothing has changed");
    std::fs::write(&prompt, "Be thorough.").unwrap();
    let change = live.look_at(now).expect("the edit is seen");
    assert!(change.config.is_some() && change.warning.is_none(), "{change:?}");
    assert_eq!(said(), "Be thorough.");
    // A missing file is reported once, and its last text stays in effect.
    std::fs::remove_file(&prompt).unwrap();
    let change = live.look_at(now).expect("that is seen, too");
    assert!(change.warning.is_some_and(|text| text.contains("p.md")) && change.config.is_none());
    for _ in 0..3 {
        now += Duration::from_secs(60);
        assert!(live.look_at(now).is_none(), "it was said");
    }
    assert_eq!(said(), "Be thorough.");
    std::fs::write(&prompt, "Be exact.").unwrap();
    assert!(live.look_at(now).is_some());
    assert_eq!(said(), "Be exact.");
}

#[test]
fn a_file_that_was_emptied_sets_nothing_from_a_second_later_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.yaml");
    std::fs::write(&path, "limits: { steps_max: 7, cost_usd_max: 3.5 }\n").unwrap();
    let loaded = load(Some(&path), Overrides::default()).unwrap();
    let live = LiveConfig::new(Some(&path), &loaded);
    assert_eq!(live.config().limits.cost_usd_max, Some(3.5));
    std::fs::write(&path, "").unwrap();
    let (now, default) = (SystemTime::now(), Config::default());
    assert!(live.look_at(now).is_none(), "it may be being written");
    assert_eq!(live.config().limits.steps_max, 7);
    // The next check may be long after.
    for later in [Duration::from_secs(2), Duration::from_secs(60)] {
        let seen = live.look_at(now + later);
        assert_eq!(seen.is_some(), later.as_secs() == 2, "{seen:?}");
        assert_eq!(live.config().limits.cost_usd_max, None);
        assert_eq!(live.config().limits.steps_max, default.limits.steps_max);
    }
}

//! Policies whose sources change, and what sessions have of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_policy::Mode;
use serde_json::json;

use super::*;

fn judged(permissions: &Permissions, session: &str) -> &'static str {
    permissions.refresh();
    match permissions.judge(session, &Call::new("pay", &json!({}))) {
        Verdict::Allow => "runs",
        Verdict::Ask(_) => "asks",
        Verdict::Deny(_) => "is denied",
    }
}

/// A file of rules: its version, and what it has.
#[derive(Default)]
struct Source {
    version: AtomicU64,
    rules: Mutex<Vec<(Effect, String)>>,
}

impl Source {
    fn set(&self, rules: &[(Effect, &str)]) {
        *self.rules.lock() = rules.iter().map(|(effect, rule)| (*effect, (*rule).to_owned())).collect();
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Permissions that remember in this source and read it again; `writes`: whether it can be written.
    fn permissions(self: &Arc<Self>, writes: bool) -> Permissions {
        let (written, read, seen) = (Arc::clone(self), Arc::clone(self), AtomicU64::new(0));
        Permissions::new(Policy::new(Mode::Ask, "/srv"))
            .remember(move |rules| {
                if !writes {
                    return Err("the disk is full".to_owned());
                }
                written.rules.lock().extend(rules.iter().map(|rule| (Effect::Allow, rule.clone())));
                written.version.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .reread(move || {
                let now = read.version.load(Ordering::Relaxed);
                if seen.swap(now, Ordering::Relaxed) == now {
                    return None;
                }
                let mut policy = Policy::new(Mode::ReadOnly, "/srv");
                for (effect, rule) in read.rules.lock().iter() {
                    policy.add(*effect, rule, "the file").expect("a valid rule");
                }
                Some(policy)
            })
    }
}

#[test]
fn what_changes_in_the_source_applies_to_the_next_call() {
    let source = Arc::new(Source::default());
    let permissions = source.permissions(true);
    let clone = permissions.clone();
    assert_eq!(judged(&clone, "s"), "asks");
    source.set(&[(Effect::Allow, "pay")]);
    assert_eq!(judged(&clone, "s"), "runs", "and the mode is still the agent's");
    source.set(&[(Effect::Deny, "pay")]);
    assert_eq!(judged(&clone, "s"), "is denied");
    source.set(&[]);
    assert_eq!(judged(&clone, "s"), "asks");
    // What a person allows is written, and can be taken back there.
    assert_eq!(permissions.allow_always("s", &["pay".to_owned()]), None);
    assert_eq!(judged(&clone, "another"), "runs");
    source.set(&[]);
    assert_eq!(judged(&clone, "another"), "asks");
    // The program's own rules stay.
    permissions.add(Effect::Allow, "pay", "the program").expect("a valid rule");
    source.set(&[(Effect::Allow, "other")]);
    assert_eq!(judged(&clone, "s"), "runs");
}

#[test]
fn what_cannot_be_written_applies_until_the_program_ends() {
    let source = Arc::new(Source::default());
    let permissions = source.permissions(false);
    let warning = permissions.allow_always("s", &["pay".to_owned()]).expect("it was not written");
    assert!(warning.contains("the disk is full"), "{warning}");
    source.set(&[(Effect::Allow, "other")]);
    assert_eq!(judged(&permissions, "another"), "runs");
}

#[test]
fn what_a_session_has_of_its_own_is_forgotten_with_it() {
    let permissions = Permissions::new(Policy::new(Mode::Ask, "/srv"));
    permissions.set_mode("s", Some(Mode::Everything));
    permissions.add_for("s", Effect::Allow, "pay", "the test").expect("a valid rule");
    assert_eq!((judged(&permissions, "s"), judged(&permissions, "another")), ("runs", "asks"));
    permissions.forget("s");
    assert_eq!(judged(&permissions, "s"), "asks");
    assert!(permissions.0.sessions.lock().is_empty());
}

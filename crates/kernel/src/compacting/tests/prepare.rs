//! Preparations: held, adopted for what the conversation became meanwhile, or of no use for it.

use super::*;
use crate::settings::CutRule;

const TRIGGER: u64 = 7_501;

/// Begins a preparation, and lets its model answer until it waits. Returns it with the requests that it still waits for
/// and those that were answered.
fn prepared(
    params: CompactionParams,
    model: Model,
    answers: usize,
) -> Result<(Compacting, VecDeque<SummaryRequest>, Option<End>), u64> {
    let (mut machine, effects) = Compacting::prepare(params, TRIGGER)?;
    let (mut waiting, mut end) = (VecDeque::new(), None);
    let mut answered = 0;
    let mut effects: VecDeque<Effect> = effects.into();
    loop {
        let Some(effect) = effects.pop_front() else {
            if answered == answers {
                return Ok((machine, waiting, end));
            }
            let Some(request) = waiting.pop_front() else { return Ok((machine, waiting, end)) };
            answered += 1;
            let answer = model.answer(&request);
            effects.extend(machine.on(Input::Answered { id: request.id, answer, jitter: 0 }));
            continue;
        };
        match effect {
            Effect::Consult(_) => effects.extend(machine.on(Input::Hooks(HookDecision::Continue))),
            Effect::Ask(request) => waiting.push_back(request),
            Effect::Withdraw(ids) => waiting.retain(|request| !ids.contains(&request.id)),
            Effect::Prepared => assert_eq!(machine.phase, Phase::Held),
            Effect::End(it) => {
                assert!(!it.outcome.is_installed(), "{it:?}");
                end = Some(it);
                waiting.clear();
            }
            other @ (Effect::FallBack { .. }
            | Effect::NativeFailed { .. }
            | Effect::Install(_)
            | Effect::Summarised(_)
            | Effect::InstallPrune(_)) => panic!("a preparation does not do this: {other:?}"),
        }
    }
}

/// Returns a conversation of turns of 400 tokens.
fn at(turns_count: usize) -> CompactionParams {
    params(path(&turns(turns_count)), Trigger::Threshold)
}

#[test]
fn a_preparation_is_held_until_a_compaction_is_due() {
    let (mut machine, _, end) = prepared(at(15), Model::Obedient, 9).expect("it is near");
    assert_eq!((end, machine.phase), (None, Phase::Held));
    assert_eq!(machine.on(Input::Installed(true)), [], "nothing is installed yet");
    let due = at(18);
    let effects = machine.adopt(&due).expect("it fits");
    let [Effect::Install(segment)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_segment(&due, segment);
    let compaction = &segment.compaction;
    assert_eq!((compaction.tokens_before, compaction.messages_before), (due.tokens_before, 18 * 4));
    assert!(compaction.tokens_after <= TRIGGER * 7 / 10, "{}", compaction.tokens_after);
    assert!(segment.first_kept < at(15).path.last().expect("it is long").id);
    assert_eq!(machine.on(Input::Installed(true)).len(), 1, "the end");
    assert_eq!(machine.adopt(&due), None, "once");
}

#[test]
fn a_preparation_in_progress_is_adopted_and_installs_when_its_summary_is_there() {
    let (mut machine, waiting, _) = prepared(at(15), Model::Obedient, 0).expect("it is near");
    let due = at(18);
    assert_eq!(machine.adopt(&due), Some(Vec::new()));
    let answer = Model::Obedient.answer(&waiting[0]);
    let effects = machine.on(Input::Answered { id: waiting[0].id, answer, jitter: 0 });
    let [Effect::Install(segment)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_segment(&due, segment);
    assert_eq!(segment.compaction.messages_before, 18 * 4);
}

#[test]
fn what_changed_meanwhile_makes_a_preparation_useless() {
    let check = |name: &str, fits: bool, change: &dyn Fn(&mut CompactionParams)| {
        for answers in [0, 9] {
            let (mut machine, ..) = prepared(at(15), Model::Obedient, answers).expect("it is near");
            let mut due = at(18);
            change(&mut due);
            assert_eq!(machine.adopt(&due).is_some(), fits, "{name}, {answers} answers");
        }
    };
    check("nothing", true, &|_| {});
    check("an overflow", true, &|due| (due.trigger, due.at_window) = (Trigger::Overflow, true));
    check("pins", true, &|due| due.pinned = vec![EntryId(2)]);
    check("settings", false, &|due| due.settings.cut = CutRule::Nearest);
    check("another model", false, &|due| due.summarisers[0].window = 100_000);
    check("a manual one", false, &|due| due.trigger = Trigger::Manual);
    check("a focus", false, &|due| due.focus = Some("x".into()));
    check("less to keep", false, &|due| due.keep_recent = Some(1));
    check("an overflow that it did not prevent", false, &|due| due.failed_attempts = 1);
    check("a shorter path", false, &|due| due.path.truncate(40));
    check("a branch", false, &|due| {
        let mut sketch = Sketch::default();
        sketch.add_all(&format!("x {}", turns(18)));
        due.path = sketch.path.split_off(1);
    });
    check("a compaction", false, &|due| {
        let installed = run(due, Model::Obedient).installed.expect("it is large");
        due.path = install(&due.path, &installed);
    });
    // What was held is too large with what came: only what is in progress may still give way.
    let (mut machine, ..) = prepared(at(15), Model::Obedient, 9).expect("it is near");
    assert_eq!(machine.adopt(&at(24)), None);
}

#[test]
fn a_preparation_begins_once_it_would_be_small_enough_at_the_trigger() {
    let when = prepared(at(9), Model::Obedient, 9).map(|_| ()).expect_err("it is too early");
    let mut first = (6..18).filter(|count| prepared(at(*count), Model::Obedient, 9).is_ok());
    let first = first.next().expect("it begins");
    let (before, now) = (at(first - 1).tokens_before, at(first).tokens_before);
    assert!(before < when + 400 && now + 400 > when, "{before} < {when} <= {now}");
    // Nothing can be compacted: one message.
    let one = params(path("u:5500"), Trigger::Threshold);
    assert_eq!(prepared(one, Model::Obedient, 9).err(), Some(6_000 + 750));
}

#[test]
fn a_preparation_that_fails_or_is_cancelled_installs_nothing() {
    for wrong in WRONG {
        let Ok((mut machine, _, end)) = prepared(at(15), wrong, usize::MAX) else { panic!("it is near") };
        assert!(end.is_some(), "{wrong:?}");
        assert_eq!(machine.adopt(&at(18)), None, "{wrong:?}");
    }
    for answers in [0, 9] {
        let (mut machine, ..) = prepared(at(15), Model::Obedient, answers).expect("it is near");
        let effects = machine.on(Input::Cancelled { reason: "enough".into() });
        let [Effect::End(end)] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(end.outcome.as_str(), "cancelled");
        assert_eq!(end.usage.input_tokens > 0, answers > 0, "what was asked is billed");
    }
}

#[test]
fn whatever_was_said_meanwhile_an_adopted_preparation_is_a_success() {
    let (mut held, mut adopted, mut useless) = (0, 0, 0);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let mut sketch = Sketch::default();
        let mut extend = |random: &mut Random, tokens_max: u64| {
            let mut tokens = 0;
            while tokens < tokens_max {
                let size = 1 + random.below(600);
                let step = *random.pick(&["u", "a", "c r", "c2 r r", "u a"]);
                let step: Vec<String> = step.split(' ').map(|word| format!("{word}:{size}")).collect();
                tokens += size * step.len() as u64;
                sketch.add_all(&step.join(" "));
            }
            sketch.path.clone()
        };
        let mut near = params(extend(&mut random, 5_000), Trigger::Threshold);
        if seed % 2 == 0 {
            near.settings = CompactionSettings::default();
        }
        let answers = usize::try_from(random.below(3)).expect("small");
        let model = *random.pick(&[Model::Wordy, Model::Obedient, Model::Lossy]);
        let Ok((mut machine, waiting, None)) = prepared(near.clone(), model, answers) else { continue };
        held += 1;
        let mut due = params(extend(&mut random, 1_500), Trigger::Threshold);
        due.settings = near.settings;
        let mut effects = match machine.adopt(&due) {
            None => {
                useless += 1;
                continue;
            }
            Some(effects) => effects,
        };
        let mut waiting: Vec<SummaryRequest> = waiting.into();
        while let Some(request) = waiting.pop() {
            let answer = model.answer(&request);
            effects = machine.on(Input::Answered { id: request.id, answer, jitter: 0 });
            waiting.extend(effects.iter().filter_map(|effect| {
                if let Effect::Ask(request) = effect { Some(request.clone()) } else { None }
            }));
        }
        if let [Effect::Install(segment)] = effects.as_slice() {
            adopted += 1;
            assert_segment(&due, segment);
            assert!(machine.is_success(segment.compaction.tokens_after), "seed {seed}");
        }
    }
    assert!(
        held >= 200 && adopted >= 150 && useless >= 10,
        "{held} held, {adopted} adopted, {useless} useless"
    );
}

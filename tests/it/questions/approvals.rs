//! Permissions of an agent: calls that run, are denied, or wait for a person's approval, also over restarts.
//!
//! Invariants: a call that was not approved has no effect; one that was approved has it once, or never if a restart
//! interrupted it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::permissions::{Effect, Mode, Permissions, Policy};
use greenroom::prelude::*;
use greenroom::{EventKind, GivenAnswer, HookAction, HookPoint, QuestionEnd, QuestionKind};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::{Value, json};

use super::restarts::{CUTS, Cut, World};
use super::{Effects, Home, Refund, asked, cashier, ends, started};
use crate::support::{drain, quiet_injected_panics, simulator};

fn policy(mode: Mode, rules: &[(Effect, &str)]) -> Policy {
    let mut policy = Policy::new(mode, "/srv");
    for (effect, rule) in rules {
        policy.add(*effect, rule, "the test").unwrap();
    }
    policy
}

/// A tool that asks nothing and takes a while.
fn refunds(effects: &Effects) -> greenroom::FunctionTool {
    let effects = effects.clone();
    tool("refund", move |_: Refund, cx: ToolContext| {
        let effects = effects.clone();
        async move {
            effects.happen(cx.call_key());
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok("refunded")
        }
    })
}

/// Without a time limit: while the test waits for a disk, the paused clock advances.
fn agent(effects: &Effects, permissions: &Permissions) -> Arc<Agent> {
    let agent = crate::support::agent(100_000).run_timeout(None);
    Arc::new(agent.add_tool(refunds(effects)).permissions(permissions.clone()))
}

#[tokio::test(start_paused = true)]
async fn an_approval_outlives_restarts_and_counts_once() {
    quiet_injected_panics();
    for cut in CUTS {
        for (cuts, answer) in [(1, "yes"), (2, "yes"), (3, "yes"), (1, "no, wait for Ada")] {
            let (home, model, effects) = (Home::new(), cashier(), Effects::default());
            let agent = agent(&effects, &Permissions::new(policy(Mode::Ask, &[])));
            let mut world = World::start(&home, &model, &agent).await;
            drop(started(&world.session, "refund it"));
            let question = asked(&world.session).await;
            let QuestionKind::Approval { approval } = &question.question.kind else { panic!("{question:?}") };
            assert_eq!((&*approval.tool, &approval.arguments), ("refund", &json!({ "euros": 120 })));
            assert_eq!(approval.folder.as_deref(), Some("/srv"));
            for _ in 0..cuts {
                // At most three deaths within a minute are tolerated.
                tokio::time::sleep(Duration::from_secs(60)).await;
                world = world.cut(cut, &home, &model, &agent).await;
                assert_eq!(world.session.state().await.unwrap().status, Status::Waiting, "{cut:?}");
                assert_eq!(
                    world.session.questions().await.unwrap(),
                    std::slice::from_ref(&question),
                    "{cut:?}"
                );
            }
            assert_eq!(effects.seen(), [""; 0], "{cut:?}: nobody has approved it");
            world.session.answer(question.id, answer).await.unwrap();
            let said = world.until_idle().await;
            if answer == "yes" {
                assert_eq!((said.as_str(), effects.seen().len()), ("It says: refunded", 1), "{cut:?}");
            } else {
                assert!(said.contains("wait for Ada") && effects.seen().is_empty(), "{cut:?}: {said}");
            }
            let ended = ends(&world.runtime, "s").await;
            assert!(matches!(&*ended, [QuestionEnd::Answered(_)]), "{cut:?}: {ended:?}");
            model.assert_clean();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_that_is_cut_off_does_not_run_again() {
    quiet_injected_panics();
    for cut in CUTS {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let agent = agent(&effects, &Permissions::new(policy(Mode::Ask, &[])));
        let world = World::start(&home, &model, &agent).await;
        drop(started(&world.session, "refund it"));
        let question = asked(&world.session).await;
        world.session.answer(question.id, "yes").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(effects.seen().len(), 1, "{cut:?}: it has begun");
        let world = world.cut(cut, &home, &model, &agent).await;
        world.until_idle().await;
        assert_eq!(effects.seen().len(), 1, "{cut:?}: it ran once");
        model.assert_clean();
    }
}

/// Answers an approval, and returns what the model read, the effects, and the questions that a second call asks.
async fn answered(
    answer: Value,
    meanwhile: impl FnOnce(&Permissions),
) -> (String, usize, usize, Vec<String>) {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let remembered: Arc<Mutex<Vec<String>>> = Arc::default();
    let written = Arc::clone(&remembered);
    let permissions = Permissions::new(policy(Mode::Ask, &[])).remember(move |rules| {
        written.lock().unwrap().extend_from_slice(rules);
        Ok(())
    });
    let agent = agent(&effects, &permissions);
    let world = World::start(&home, &model, &agent).await;
    drop(started(&world.session, "refund it"));
    let question = asked(&world.session).await;
    meanwhile(&permissions);
    world.session.answer(question.id, GivenAnswer::from(answer).by("ada")).await.unwrap();
    let said = world.until_idle().await;
    let happened = effects.seen().len();
    drop(started(&world.session, "refund it again"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let again = world.session.questions().await.unwrap().len();
    model.assert_clean();
    let remembered = remembered.lock().unwrap().clone();
    (said, happened, again, remembered)
}

#[tokio::test(start_paused = true)]
async fn what_each_answer_does() {
    let rows: [(Value, &str, usize, usize, &[&str]); 5] = [
        (json!("yes"), "refunded", 1, 1, &[]),
        (json!("always"), "refunded", 1, 0, &["refund"]),
        (json!("no"), "the user (ada) refused it", 0, 1, &[]),
        (json!("no, ask Ada"), "the user (ada) refused it and says: ask Ada", 0, 1, &[]),
        (json!({ "no": "ask Ada" }), "says: ask Ada", 0, 1, &[]),
    ];
    for (answer, said, happened, again, rules) in rows {
        let (model_read, effects, questions, remembered) = answered(answer.clone(), |_| {}).await;
        assert!(model_read.contains(said), "{answer}: {model_read}");
        assert_eq!((effects, questions), (happened, again), "{answer}");
        assert_eq!(remembered, rules, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_meanwhile_does_not_run() {
    let forbid = |permissions: &Permissions| permissions.add(Effect::Deny, "refund", "the operator").unwrap();
    let (said, effects, questions, _) = answered(json!("yes"), forbid).await;
    assert!(said.contains("a rule forbids it (deny refund, from the operator)"), "{said}");
    assert_eq!((effects, questions), (0, 0));
}

/// Runs one prompt, and returns what the model read and whether the tool had its effect.
async fn prompted(permissions: &Permissions, session_mode: Option<Mode>) -> (String, bool) {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let agent = agent(&effects, permissions);
    let world = World::start(&home, &model, &agent).await;
    let another = world.runtime.open("another", Arc::clone(&agent)).await.unwrap();
    another.set_mode(Some(Mode::ReadOnly));
    let mut events = world.session.subscribe();
    world.session.set_mode(session_mode);
    // Again: followers hear of a change only.
    world.session.set_mode(session_mode);
    let said = world.session.prompt("refund it").await.unwrap().text;
    let events = drain(&mut events);
    let heard: Vec<&str> = events
        .iter()
        .filter_map(
            |event| if let EventKind::ModeChanged { mode } = &event.kind { Some(&**mode) } else { None },
        )
        .collect();
    assert_eq!(heard, session_mode.iter().map(|mode| mode.as_str()).collect::<Vec<_>>());
    let refused = events.iter().any(|event| {
        matches!(
            &event.kind,
            EventKind::Hook { hook: HookPoint::Permissions, action: HookAction::Refused, .. }
        )
    });
    let happened = !effects.seen().is_empty();
    assert_eq!(refused, !happened, "the event tells of a refusal");
    (said, happened)
}

#[tokio::test(start_paused = true)]
async fn where_nobody_is_asked_the_reason_names_the_rule() {
    type Rules = &'static [(Effect, &'static str)];
    let rows: [(Mode, Option<Mode>, Rules, bool, &str); 6] = [
        (
            Mode::Ask,
            None,
            &[],
            false,
            "nobody can be asked here; the user can allow it with --allow 'refund'",
        ),
        (Mode::Ask, None, &[(Effect::Allow, "refund")], true, "refunded"),
        (Mode::ReadOnly, None, &[(Effect::Allow, "refund")], false, "read-only mode"),
        (Mode::Everything, None, &[], true, "refunded"),
        (Mode::Everything, Some(Mode::ReadOnly), &[], false, "read-only mode"),
        (Mode::Everything, None, &[(Effect::Ask, "refund")], false, "a rule asks for it"),
    ];
    for (mode, of_session, rules, runs, said) in rows {
        let permissions = Permissions::unattended(policy(mode, rules), "--allow '", "'");
        let (read, happened) = prompted(&permissions, of_session).await;
        assert!(read.contains(said) && happened == runs, "{mode} {of_session:?} {rules:?}: {read}");
    }
}

/// The mode that was set in a session applies to its next agent too, unless that one begins in another mode; and to
/// the run that still has the agent before.
#[tokio::test(start_paused = true)]
async fn a_mode_outlives_its_agent() {
    use Mode::{Ask, Everything, ReadOnly};
    // Mode of the first agent, of the session, of the second agent, then the session's.
    let rows = [
        (Everything, Some(ReadOnly), Everything, ReadOnly),
        (Everything, None, Everything, Everything),
        (Everything, Some(ReadOnly), Ask, Ask),
        (Ask, Some(Everything), ReadOnly, ReadOnly),
    ];
    for (first, of_session, second, expected) in rows {
        for is_open in [true, false] {
            let (home, model, effects) = (Home::new(), cashier(), Effects::default());
            let [first, second] = [first, second]
                .map(|mode| agent(&effects, &Permissions::unattended(policy(mode, &[]), "--allow '", "'")));
            let world = World::start(&home, &model, &first).await;
            world.session.set_mode(of_session);
            let before = mode_of(&world.session);
            let mut events = world.session.subscribe();
            if !is_open {
                world.runtime.close("s").await.unwrap();
            }
            world.session.set_agent(Arc::clone(&second)).await.unwrap();
            assert_eq!(mode_of(&world.session), expected, "{of_session:?} {is_open}");
            let changed = (before != expected).then(|| expected.as_str().to_owned());
            assert_eq!(modes(&drain(&mut events)), Vec::from_iter(changed), "{of_session:?} {is_open}");
            world.session.prompt("refund it").await.unwrap();
            assert_eq!(!effects.seen().is_empty(), expected == Everything, "{of_session:?} {is_open}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mode_applies_to_the_run_of_the_agent_before() {
    let (home, effects) = (Home::new(), Effects::default());
    let model = simulator(
        Function(|request: &SeenRequest, _: CallInfo| match request.messages.len() {
            ..6 => Said::call("refund", &json!({ "euros": 120 })),
            _ => Said::text(request.messages.last().unwrap().text()),
        }),
        100_000,
    );
    let permissions = || Permissions::unattended(policy(Mode::Everything, &[]), "--allow '", "'");
    let first = agent(&effects, &permissions());
    let world = World::start(&home, &model, &first).await;
    let reply = started(&world.session, "refund it");
    while effects.seen().is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // An agent with another model waits for the end of the run.
    for model in ["another", "a third"] {
        let next = Agent::clone(&agent(&effects, &permissions())).model(model);
        world.session.set_agent(next).await.unwrap();
    }
    world.session.set_mode(Some(Mode::ReadOnly));
    let said = reply.await.unwrap().unwrap().text;
    assert!(said.contains("read-only mode"), "{said}");
    assert_eq!(effects.seen().len(), 1);
}

fn mode_of(session: &SessionHandle) -> Mode {
    session.permissions().unwrap().of_session(session.id()).mode()
}

/// Returns the modes of which followers hear.
fn modes(events: &[Arc<Event>]) -> Vec<String> {
    let mode = |event: &Arc<Event>| match &event.kind {
        EventKind::ModeChanged { mode } => Some(mode.clone()),
        _ => None,
    };
    events.iter().filter_map(mode).collect()
}

#[tokio::test(start_paused = true)]
async fn hooks_come_first_and_what_they_changed_is_judged() {
    let (home, model, effects) = (Home::new(), cashier(), Effects::default());
    let permissions = Permissions::new(policy(Mode::Ask, &[]));
    let agent = (*agent(&effects, &permissions)).clone();
    let agent = agent.before_tool(|_| async { greenroom::BeforeTool::Change(json!({ "euros": 7 })) });
    let agent = Arc::new(agent);
    let world = World::start(&home, &model, &agent).await;
    drop(started(&world.session, "refund it"));
    let question = asked(&world.session).await;
    let QuestionKind::Approval { approval } = &question.question.kind else { panic!("{question:?}") };
    assert_eq!(approval.arguments, json!({ "euros": 7 }));
}

/// What is shown to the person is what runs: if the effect would be another one by now, nothing runs.
#[tokio::test(start_paused = true)]
async fn an_approval_of_what_has_changed_since_is_void() {
    for is_cut in [true, false] {
        let (home, model, effects) = (Home::new(), cashier(), Effects::default());
        let permissions = Permissions::new(policy(Mode::Ask, &[]));
        let preview = Arc::new(Mutex::new("-old\n+new"));
        let shown = Arc::clone(&preview);
        let refund = refunds(&effects).preview(move |_| {
            let preview = shown.lock().unwrap().to_owned();
            Box::pin(std::future::ready(Some(preview)))
        });
        let agent = crate::support::agent(100_000).run_timeout(None).add_tool(refund);
        let agent = Arc::new(agent.permissions(permissions));
        let mut world = World::start(&home, &model, &agent).await;
        drop(started(&world.session, "refund it"));
        let question = asked(&world.session).await;
        let QuestionKind::Approval { approval } = &question.question.kind else { panic!("{question:?}") };
        assert_eq!(approval.preview.as_deref(), Some("-old\n+new"));
        *preview.lock().unwrap() = "-older\n+new";
        if is_cut {
            world = world.cut(Cut::Dropped, &home, &model, &agent).await;
        } else {
            world.session.answer(question.id, "yes").await.unwrap();
        }
        let said = world.until_idle().await;
        assert!(said.contains("has changed since the question was asked"), "{said}");
        assert_eq!(effects.seen(), [""; 0]);
        let ended = ends(&world.runtime, "s").await;
        let is_withdrawn = matches!(&*ended, [QuestionEnd::Withdrawn]);
        let is_answered = matches!(&*ended, [QuestionEnd::Answered(_)]);
        assert!(if is_cut { is_withdrawn } else { is_answered }, "{ended:?}");
    }
}

/// Pays an order back, and says why.
#[derive(Deserialize, JsonSchema)]
struct Noted {
    euros: u32,
    note: String,
}

/// A call that nobody could read whole is not asked about: it does not run, and the model is told why.
#[tokio::test(start_paused = true)]
async fn what_is_too_large_to_be_read_is_not_asked() {
    let max = greenroom::Approval::SHOWN_BYTES_MAX;
    // The size of the arguments, that of the preview, and whether a person is asked.
    let rows = [
        (max - 100, None, true),
        (max + 1, None, false),
        (max + 1, Some(10), true),
        (10, Some(max + 1), true),
        (max + 1, Some(max + 1), false),
    ];
    for (bytes, preview, is_asked) in rows {
        let (home, effects) = (Home::new(), Effects::default());
        let arguments = json!({ "euros": 120, "note": "x".repeat(bytes) });
        let said = Function(move |request: &SeenRequest, _: CallInfo| match request.messages.last() {
            Some(last) if last.role() == "tool" => Said::text(format!("It says: {}", last.text())),
            _ => Said::call("refund", &arguments),
        });
        // Such calls are longer than what most models can write.
        let tokens = 1_000_000;
        let options =
            SimulatorOptions { window: 4_000_000, max_output: tokens, ..SimulatorOptions::new(said) };
        let model = Simulator::new(options);
        let happens = effects.clone();
        let refund = tool("refund", move |Noted { euros, note }: Noted, cx: ToolContext| {
            happens.happen(cx.call_key());
            async move { Ok(format!("{euros} refunded, {} bytes", note.len())) }
        });
        let refund =
            refund.preview(move |_| Box::pin(std::future::ready(preview.map(|bytes| "+".repeat(bytes)))));
        let agent =
            crate::support::agent(4_000_000).output_tokens_max(tokens).run_timeout(None).add_tool(refund);
        let agent = Arc::new(agent.permissions(Permissions::new(policy(Mode::Ask, &[]))));
        let world = World::start(&home, &model, &agent).await;
        drop(started(&world.session, "refund it"));
        if is_asked {
            let said = tokio::time::timeout(Duration::from_secs(50), asked(&world.session)).await;
            let Ok(question) = said else { panic!("{bytes} {preview:?}: {}", world.until_idle().await) };
            let QuestionKind::Approval { approval } = &question.question.kind else { panic!("{question:?}") };
            assert!(approval.is_whole(), "{bytes} {preview:?}");
            world.session.answer(question.id, "no").await.unwrap();
        }
        let said = world.until_idle().await;
        assert_eq!(said.contains("too large to be shown"), !is_asked, "{bytes} {preview:?}: {said}");
        assert_eq!(effects.seen(), [""; 0], "{bytes} {preview:?}");
    }
}

/// Nobody is asked about a call whose arguments its tool cannot read: the model is told.
#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_run_is_not_asked_about() {
    for (arguments, told) in [
        (json!({ "euros": 120 }), None),
        // The tool's own reader decides, which is more lenient than its schema.
        (json!({ "euros": 120, "why": "late" }), None),
        (json!({ "euros": "all" }), Some("euros")),
        (json!({}), Some("euros")),
    ] {
        let (home, effects) = (Home::new(), Effects::default());
        let said = {
            let arguments = arguments.clone();
            Function(move |request: &SeenRequest, _: CallInfo| match request.messages.last() {
                Some(last) if last.role() == "tool" => Said::text(format!("It says: {}", last.text())),
                _ => Said::call("refund", &arguments),
            })
        };
        let model = Simulator::new(SimulatorOptions::new(said));
        let agent = agent(&effects, &Permissions::new(policy(Mode::Ask, &[])));
        let world = World::start(&home, &model, &agent).await;
        drop(started(&world.session, "refund it"));
        let Some(told) = told else {
            asked(&world.session).await;
            continue;
        };
        let said = world.until_idle().await;
        assert!(said.contains("invalid arguments") && said.contains(told), "{said}");
        assert!(ends(&world.runtime, "s").await.is_empty() && effects.seen().is_empty(), "{arguments}");
    }
}

//! Keys of prompts without a reply: their process ended, the disk failed, or the conversation continued without them.
//!
//! Invariants: a key gets the reply to its own prompt; the prompt is recorded again only if the conversation has continued.

use greenroom::{Delivery, Question, Status};
use greenroom_kernel::EntryId;
use greenroom_kernel::entry::EntryKind;
use greenroom_simulator::{CallInfo, SeenRequest, Simulator};
use greenroom_store::StoreOptions;
use greenroom_store::faults::{ENOSPC, Fault as DiskFault, FaultyFiles, MemoryFiles};
use greenroom_tools::{ToolContext, tool};
use tokio::sync::Semaphore;

use super::*;
use crate::support::store;

fn of(name: &str) -> Agent {
    agent(100_000).instructions(name).fingerprint(name)
}

/// Returns the reply, or panics if there is none.
async fn soon<R>(what: &str, reply: impl IntoFuture<Output = R>) -> R {
    let reply = tokio::time::timeout(Duration::from_secs(3_600), reply).await;
    reply.unwrap_or_else(|_| panic!("{what}: it hangs"))
}

fn refused() -> Said {
    Said::text("x").with_fault(Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() })
}

/// Answers with the agent's name and the prompt.
fn answers() -> Simulator {
    let answer = |request: &SeenRequest, _: CallInfo| {
        let name = request.system.clone().unwrap_or_default();
        Said::text(format!("{name} answers {}", request.last_user_text()))
    };
    simulator(Function(answer), 100_000)
}

/// Repeating a held-back prompt with an agent of its fingerprint releases that prompt alone.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_held_back_begins_when_it_is_said_again_to_its_agent() {
    let store = store();
    let stuck = simulator(Function(|_: &_, _| Said::text("late").after_ms(3_600_000)), 100_000);
    let first = builder(&stuck).engine(store.clone()).start().await.unwrap();
    let session = first.open("once", &of("ada")).await.unwrap();
    let mut entries = Vec::new();
    for text in ["before", "one", "two"] {
        let mut run = session.prompt(text).once(text).start().await.unwrap();
        entries.push(run.recorded().await.unwrap());
        std::mem::forget(run);
    }
    std::mem::forget((session, first));

    let model = answers();
    let runtime = builder(&model).engine(store).start().await.unwrap();
    let his = runtime.join("once", of("bob")).await.unwrap();
    assert_eq!(his.state().await.unwrap().held_back, 2);
    let refused = soon("his", his.prompt("one").once("one")).await;
    assert!(matches!(refused, Err(Error::HeldBack { .. })), "{refused:?}");
    let hers = his.clone().with_agent(of("ada"));
    let mut run = hers.prompt("one").once("one").start().await.unwrap();
    assert_eq!(soon("its entry", run.recorded()).await.unwrap(), entries[1]);
    assert_eq!(soon("hers", run.reply()).await.unwrap().text, "ada answers one");
    assert_eq!(his.state().await.unwrap().held_back, 1, "the other one still is");
    assert_eq!(soon("hers", hers.prompt("two").once("two")).await.unwrap().text, "ada answers two");
    model.assert_clean();
}

/// A repeated key continues a run that waits for a person only with an agent of the run's fingerprint. Earlier replies are
/// available with every agent.
#[tokio::test(start_paused = true)]
async fn the_key_of_a_run_that_waits_for_a_person_takes_it_up() {
    let asking = |name: &str| {
        let deploy = tool("deploy", |_: Nothing, context: ToolContext| async move {
            let answer = context.ask(Question::text("Really?")).await?.value;
            Ok(answer.as_str().unwrap_or_default().to_owned())
        });
        of(name).add_tool(deploy.resumable())
    };
    let script = |request: &SeenRequest, _: CallInfo| match request
        .messages
        .last()
        .map(|last| (last.role(), last.text()))
    {
        Some(("user", text)) if text == "ask" => Said::call("deploy", &json!({})),
        last => Said::text(format!("after {}", last.map(|(_, text)| text).unwrap_or_default())),
    };
    let (model, store) = (simulator(Function(script), 100_000), store());
    let first = builder(&model).engine(store.clone()).start().await.unwrap();
    let session = first.open("once", &asking("ada")).await.unwrap();
    let old = session.prompt("hello").once("old").await.unwrap();
    let mut run = session.prompt("ask").once("k").start().await.unwrap();
    let entry = run.recorded().await.unwrap();
    while session.questions().await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.close("once").await.unwrap();
    drop((run, first));

    let runtime = builder(&model).engine(store).start().await.unwrap();
    let his = runtime.join("once", of("bob")).await.unwrap();
    assert_eq!(his.state().await.unwrap().status, Status::Waiting);
    assert_eq!(soon("old", his.prompt("hello").once("old")).await.unwrap(), old);
    let refused = soon("his", his.prompt("ask").once("k")).await;
    assert!(matches!(refused, Err(Error::HeldBack { .. })), "{refused:?}");
    let hers = his.clone().with_agent(asking("ada"));
    let mut run = hers.prompt("ask").once("k").start().await.unwrap();
    assert_eq!(soon("its entry", run.recorded()).await.unwrap(), entry);
    let question = hers.questions().await.unwrap()[0].id;
    hers.answer(question, "yes").await.unwrap();
    assert_eq!(soon("hers", run.reply()).await.unwrap().text, "after yes");
    model.assert_clean();
}

/// A prompt that was withdrawn from the inbox has no run; its repetition is a new prompt.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_was_withdrawn_is_said_under_its_key() {
    let script = vec![Said::text("one").after_ms(60_000), Said::text("two"), Said::text("three")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    let running = session.prompt("a").start().await.unwrap();
    let mut waiting = session.prompt("b").once("b").start().await.unwrap();
    waiting.recorded().await.unwrap();
    assert_eq!(session.clear_inbox().await.unwrap(), 1);
    let withdrawn = soon("withdrawn", waiting.reply()).await;
    assert!(matches!(withdrawn, Err(Error::Withdrawn { .. })), "{withdrawn:?}");
    running.reply().await.unwrap();
    let reply = soon("again", session.prompt("b").once("b")).await.unwrap();
    assert_eq!(reply.text, "two");
    assert_eq!(soon("its reply", session.prompt("b").once("b")).await.unwrap(), reply);
    assert_eq!(said(&session).await, ["a", "one", "b", "two"]);
    model.assert_clean();
}

/// The newest prompt has no answer either, and is not resumed for this key.
#[tokio::test(start_paused = true)]
async fn a_key_does_not_go_on_with_the_prompt_of_another() {
    let script = vec![refused(), refused(), Said::text("one"), refused(), Said::text("two")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    assert!(session.prompt("k?").once("k").await.is_err());
    assert!(session.prompt("other").await.is_err());
    assert_eq!(soon("again", session.prompt("k?").once("k")).await.unwrap().text, "one");
    assert_eq!(said(&session).await, ["k?", "other", "k?", "one"]);
    // Without a later prompt, the run is resumed, and the entry is the first prompt's.
    let mut failing = session.prompt("n?").once("n").start().await.unwrap();
    let entry = failing.recorded().await.unwrap();
    assert!(soon("refused", failing.reply()).await.is_err());
    for what in ["it goes on", "it has its reply"] {
        let mut again = session.prompt("n?").once("n").start().await.unwrap();
        assert_eq!(soon(what, again.recorded()).await.unwrap(), entry, "{what}");
        assert_eq!(soon(what, again.reply()).await.unwrap().text, "two", "{what}");
    }
    model.assert_clean();
}

/// Two prompts that the conversation left behind are repeated.
#[tokio::test(start_paused = true)]
async fn each_key_has_the_reply_of_its_own_words() {
    let script = vec![
        Said::text("zero"),
        refused(),
        refused(),
        Said::text("one"),
        Said::text("two"),
        Said::text("three"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    session.prompt("begin").await.unwrap();
    for key in ["a", "b"] {
        assert!(session.prompt(key).once(key).await.is_err());
    }
    session.prompt("other").await.unwrap();
    for _ in 0..2 {
        for (key, reply) in [("a", "two"), ("b", "three")] {
            assert_eq!(soon(key, session.prompt(key).once(key)).await.unwrap().text, reply);
        }
    }
    assert_eq!(said(&session).await, ["begin", "zero", "a", "b", "other", "one", "a", "two", "b", "three"]);
    model.assert_clean();
}

/// A repetition needs the validators of the first prompt.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_said_again_is_judged_as_it_was() {
    let has_rain = |answer: greenroom::ProposedAnswer| async move {
        if answer.text.contains("rain") { Ok(()) } else { Err("it says nothing of rain") }
    };
    let script = vec![refused(), Said::text("other"), Said::text("Sun."), Said::text("It rains.")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    assert!(session.prompt("weather?").once("k").validate(has_rain).await.is_err());
    session.prompt("other").await.unwrap();
    let lacks = soon("lacks", session.prompt("weather?").once("k")).await;
    assert!(matches!(lacks, Err(Error::NoValidator { unnamed: 1, .. })), "{lacks:?}");
    let reply = soon("judged", session.prompt("weather?").once("k").validate(has_rain)).await.unwrap();
    assert_eq!((reply.text.as_str(), model.calls()), ("It rains.", 4));
    model.assert_clean();
}

/// Whichever write of the run fails, the prompt is recorded once and its repetition gets a reply.
#[tokio::test]
async fn a_prompt_whose_run_was_given_up_for_the_disk_goes_on_under_its_key() {
    let mut refused = 0;
    for at in 1..=8 {
        let model = answers();
        let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { files: Arc::new(files.clone()), ..StoreOptions::new(dir.path()) };
        let runtime = Runtime::builder().provider(model.provider()).store_options(options);
        let runtime = runtime.start().await.unwrap();
        let session = runtime.open("once", &of("ada")).await.unwrap();
        session.prompt("hello").await.unwrap();
        files.set(DiskFault::FailOnce { at, errno: ENOSPC });
        let ended = soon("the disk", session.prompt("k?").once("k")).await;
        refused += usize::from(ended.is_err());
        files.set(DiskFault::None);
        let reply = soon("again", session.prompt("k?").once("k")).await.unwrap();
        assert_eq!(reply.text, "ada answers k?", "{at}");
        let log = runtime.entries("once", EntryId(0)).await.unwrap();
        let said = log.iter().filter_map(|entry| entry.kind.as_message());
        assert_eq!(said.filter(|message| message.text() == "k?").count(), 1, "{at}");
        runtime.shutdown().await.unwrap();
    }
    assert!(refused >= 4, "{refused}");
}

/// The store refuses to take a withdrawn prompt out of the inbox. Its repetition is a new prompt, whether the run before it
/// has an answer or not.
#[tokio::test]
async fn a_withdrawn_prompt_that_is_still_in_the_inbox_is_said_under_its_key() {
    let script = |request: &SeenRequest, _: CallInfo| {
        let is_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        match request.last_user_text() {
            text if text == "look" && !is_result => Said::call("look", &json!({})),
            text => Said::text(format!("answers {text}")),
        }
    };
    let mut left = [0, 0];
    for (is_aborted, at) in [false, true].into_iter().flat_map(|aborted| (1..=8).map(move |at| (aborted, at)))
    {
        let model = simulator(Function(script), 100_000);
        let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { files: Arc::new(files.clone()), ..StoreOptions::new(dir.path()) };
        let runtime = Runtime::builder().provider(model.provider()).store_options(options);
        let runtime = runtime.start().await.unwrap();
        let (began, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (begins, ends) = (Arc::clone(&began), Arc::clone(&may_end));
        let looker = agent(100_000).tool("look", move |_: Nothing| {
            let (begins, ends) = (Arc::clone(&begins), Arc::clone(&ends));
            async move {
                begins.add_permits(1);
                let _ = ends.acquire().await;
                Ok("it rains")
            }
        });
        let session = runtime.open("once", &looker).await.unwrap();
        let mut events = session.subscribe();
        let running = session.prompt("look").start().await.unwrap();
        began.acquire().await.unwrap().forget();
        let mut waiting = session.prompt("b").once("b").start().await.unwrap();
        waiting.recorded().await.unwrap();
        files.set(DiskFault::FailOnce { at: 1, errno: ENOSPC });
        drop(waiting);
        loop {
            let Some(Delivery::Event(event)) = events.next().await else { panic!("the session lives") };
            if matches!(&event.kind, EventKind::Warning { message } if message.contains("inbox later")) {
                break;
            }
        }
        files.set(DiskFault::FailFrom { at, errno: ENOSPC });
        if is_aborted {
            session.abort()
        } else {
            may_end.add_permits(1)
        }
        let _ = soon("the run", running.reply()).await;
        let is_waiting = session.state().await.unwrap().waiting;
        assert_eq!(is_waiting, 0, "it never begins");
        files.set(DiskFault::None);
        let log = runtime.entries("once", EntryId(0)).await.unwrap();
        let is_ended = log.iter().any(|entry| matches!(entry.kind, EntryKind::RunEnded { .. }));
        let is_cleared = log.iter().any(|entry| matches!(entry.kind, EntryKind::InboxCleared { .. }));
        left[usize::from(is_aborted)] += usize::from(is_ended && !is_cleared);
        let reply = soon("again", session.prompt("b").once("b")).await.unwrap();
        assert_eq!(reply.text, "answers b", "aborted {is_aborted}, {at}");
        runtime.shutdown().await.unwrap();
    }
    assert!(left.iter().all(|left| *left > 0), "{left:?}");
}

/// A prompt that an earlier process left is repeated while it waits, and is then held back because the run before it cannot
/// reach its model.
#[tokio::test(start_paused = true)]
async fn whoever_repeats_a_prompt_that_is_held_back_meanwhile_hears_so() {
    let stuck = simulator(Function(|_: &_, _| Said::text("late").after_ms(3_600_000)), 100_000);
    let store = store();
    let first = builder(&stuck).engine(store.clone()).start().await.unwrap();
    let session = first.open("once", &agent(100_000)).await.unwrap();
    for text in ["before", "middle", "one"] {
        let mut run = session.prompt(text).once(text).start().await.unwrap();
        run.recorded().await.unwrap();
        run.detach();
    }
    first.close("once").await.unwrap();
    drop((session, first));

    let model = simulator(Sequence(vec![refused().after_ms(10_000), Said::text("one")]), 100_000);
    let runtime = builder(&model).engine(store).start().await.unwrap();
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    let answer = soon("repeated", session.prompt("one").once("one")).await;
    assert!(matches!(answer, Err(Error::Model(_))), "{answer:?}");
    assert_eq!(session.state().await.unwrap().held_back, 2);
    assert_eq!(soon("again", session.prompt("one").once("one")).await.unwrap().text, "one");
    model.assert_clean();
}

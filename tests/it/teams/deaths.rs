//! Deaths while agents work for another one: of the agent, its session, its caller, the process.

use super::*;
use crate::support::store;

/// A boss with one agent that works in two steps, whose session is struck at a point as often as `times`
/// says.
async fn struck(
    point: &'static str,
    times: u32,
    whose: fn(&str) -> bool,
) -> (Simulator, Runtime, Result<Reply>) {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    quiet_injected_panics();
    let script = |request: &SeenRequest, _: CallInfo| match (is_boss(request), has_result(request)) {
        (true, false) => Said::call("web", &json!({ "task": "look" })),
        (true, true) => Said::text(format!("done: {}", request.messages.last().unwrap().text())),
        (false, false) => Said::call("look", &json!({})),
        (false, true) => Said::text("found").after_ms(1_000),
    };
    let model = simulator(Function(script), 100_000);
    let left = Arc::new(AtomicU32::new(times));
    let runtime = builder(&model)
        .probe(move |session, at| {
            let is_struck = at == point
                && whose(session)
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            assert!(!is_struck, "injected at {at}");
        })
        .start()
        .await
        .unwrap();
    let web = agent(100_000).tool("look", |_: Nothing| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok("seen")
    });
    let boss = agent(100_000).sub_agent(sub_agent("web", web));
    let session = runtime.open("boss", &boss).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(3_600), session.prompt("go")).await;
    let ended = ended.expect("a call that waits for a dead agent would wait for ever");
    tokio::time::sleep(Duration::from_secs(30)).await;
    (model, runtime, ended)
}

fn is_child(session: &str) -> bool {
    session.starts_with("boss..")
}

/// At each point of its life: the agent's session is restarted from its log, and the call waits for it.
#[tokio::test(start_paused = true)]
async fn an_agent_whose_session_dies_goes_on_and_its_call_waits() {
    let points = [
        "session/starts", "session/started", "session/prompt", "session/record", "session/measured",
        "session/end", "agent/begin", "agent/recorded", "agent/sized", "agent/model_over", "agent/tool_over",
        "agent/broadcast", "usage_tracker/measure", "usage_tracker/appended",
    ];
    let mut resumed = 0;
    for point in points {
        let (model, runtime, ended) = struck(point, 1, is_child).await;
        if point == "session/starts" {
            // It could not even begin: the call gets an error.
            assert!(ended.unwrap().text.contains("the agent failed"), "{point}");
            continue;
        }
        if point == "session/end" {
            // A successful run has no such message.
            continue;
        }
        assert_eq!(ended.unwrap().text, "done: found", "{point}");
        let ends = children(&runtime, "boss").await;
        assert_eq!(ends, [("web".to_owned(), Some(RunOutcome::Completed))], "{point}");
        let sessions = runtime.sessions().await.unwrap();
        assert_eq!(sessions.len(), 2, "{point}: it goes on in its own session");
        assert!(sessions.iter().all(|session| !session.is_unfinished), "{point}");
        let entries = runtime.entries(&sessions[1].id, EntryId(0)).await.unwrap();
        resumed += usize::from(
            entries
                .iter()
                .any(|entry| matches!(&entry.kind, EntryKind::Note { kind, .. } if kind == "run_resumed")),
        );
        model.assert_clean();
    }
    assert!(resumed >= 2, "{resumed}");
}

/// An agent that dies again and again is given up, with an error for the call; the caller continues.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_given_up_is_an_error_that_its_caller_reads() {
    let (model, runtime, ended) = struck("session/record", 100, is_child).await;
    let text = ended.unwrap().text;
    assert!(text.starts_with("done: the agent failed: session boss.."), "{text}");
    assert!(text.contains("crashed 4 times within a minute"), "{text}");
    let ends = children(&runtime, "boss").await;
    assert!(matches!(&ends[..], [(_, Some(RunOutcome::Failed(_)))]), "{ends:?}");
    model.assert_clean();
}

/// The caller's agent dies while its agents work: they end cleanly, and the next attempt calls new ones.
#[tokio::test(start_paused = true)]
async fn agents_whose_caller_s_agent_dies_end_in_order() {
    for point in ["agent/tool_over", "agent/broadcast"] {
        let (model, runtime, ended) = struck(point, 1, |session| session == "boss").await;
        assert!(ended.unwrap().text.starts_with("done"), "{point}");
        let ends = children(&runtime, "boss").await;
        assert!(ends.iter().all(|(_, outcome)| outcome.is_some()), "{point}: {ends:?}");
        for session in runtime.sessions().await.unwrap() {
            assert!(!session.has_open_run && !session.is_unfinished, "{point}: {}", session.id);
        }
        assert_eq!(model.in_flight(), 0, "{point}");
        model.assert_clean();
    }
}

/// The caller's session dies while its agents work. They end cleanly; when the caller is back, its log says
/// how.
#[tokio::test(start_paused = true)]
async fn agents_whose_caller_s_session_dies_do_not_go_on_unseen() {
    for point in ["session/child_started", "session/child_ended", "session/record"] {
        let (model, runtime, ended) = struck(point, 1, |session| session == "boss").await;
        let session = runtime.session("boss").await.unwrap();
        match ended {
            Err(Error::Interrupted { .. }) => {
                assert!(session.resume().await.unwrap().text.starts_with("done"), "{point}");
            }
            ended => assert!(ended.unwrap().text.starts_with("done"), "{point}"),
        }
        let ends = children(&runtime, "boss").await;
        assert!(ends.iter().all(|(_, outcome)| outcome.is_some()), "{point}: {ends:?}");
        for session in runtime.sessions().await.unwrap() {
            assert!(!session.has_open_run && !session.is_unfinished, "{point}: {}", session.id);
        }
        assert_eq!(model.in_flight(), 0, "{point}");
        model.assert_clean();
    }
}

/// The process ends while three agents work. After the restart none continues unseen, the caller's log
/// records that they were interrupted and their cost, and `resume` continues.
#[tokio::test(start_paused = true)]
async fn after_the_end_of_the_process_agents_are_told_as_interrupted_and_billed() {
    let script = |request: &SeenRequest, info: CallInfo| {
        let is_first = !request.messages.iter().any(|message| message.role() == "tool");
        match (is_boss(request), is_first) {
            (false, true) => Said::call("look", &json!({})),
            (false, false) => Said::text("found").after_ms(3_600_000),
            (true, _) => team_script(request, info),
        }
    };
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let model = priced(Function(script));
    let store = store();
    let member = Agent::new(MODEL).context_window(100_000).tool("look", |_: Nothing| async { Ok("seen") });
    let boss = MEMBERS.iter().fold(Agent::new(MODEL).context_window(100_000), |boss, name| {
        boss.sub_agent(sub_agent(*name, member.clone()))
    });
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let session = runtime.open("boss", &boss).await.unwrap();
    let run = session.prompt("go").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    // The process is gone: nothing of it receives messages.
    std::mem::forget(run);
    let log = store.load("boss", EntryId(0)).await.unwrap();
    let head = store.head("boss").await.unwrap().unwrap();
    assert_eq!(head.open_children.len(), 3);
    let copy = crate::support::store();
    let copy_of = |from: Vec<greenroom_kernel::Entry>, head| greenroom_store::Batch {
        entries: from.into_iter().map(Arc::new).collect(),
        head: Arc::new(head),
        key: None,
    };
    copy.append("boss", copy_of(log, head)).await.unwrap();
    let mut spent = 0;
    for session in runtime.sessions().children_of("boss").await.unwrap() {
        let head = store.head(&session.id).await.unwrap().unwrap();
        assert!(head.open_run.is_some() && head.cost_microdollars > 0);
        spent += head.cost_microdollars;
        copy.append(&session.id, copy_of(store.load(&session.id, EntryId(0)).await.unwrap(), head))
            .await
            .unwrap();
    }
    drop((session, runtime));

    let asked = model.requests().len();
    let runtime = builder(&model).engine(copy).start().await.unwrap();
    let unfinished = runtime.unfinished().await.unwrap();
    assert_eq!(unfinished.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), ["boss"]);
    let before = unfinished[0].cost_microdollars;
    let session = runtime.open("boss", &boss).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(model.requests().len(), asked, "nothing goes on by itself");
    let interrupted = |name: &&str| ((*name).to_owned(), Some(RunOutcome::Interrupted));
    let mut ends = children(&runtime, "boss").await;
    ends.sort_by_key(|(name, _)| MEMBERS.iter().position(|member| member == name));
    assert_eq!(ends, MEMBERS.iter().map(interrupted).collect::<Vec<_>>());
    assert_eq!(session.state().await.unwrap().cost_microdollars, before + spent);
    assert_eq!(session.resume().await.unwrap().text, "done");
    model.assert_clean();
}

/// A caller that is closed while its agents work has their ends and their cost in its log when it is closed.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_closed_knows_how_its_agents_ended() {
    let model = simulator(Function(team_script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("boss", &team()).await.unwrap();
    let run = session.prompt("go").start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    runtime.close("boss").await.unwrap();
    assert!(run.reply().await.is_err());
    let ends = children(&runtime, "boss").await;
    assert!(ends.len() == 3 && ends.iter().all(|(_, end)| *end == Some(RunOutcome::Aborted)), "{ends:?}");
    model.assert_clean();
}

/// A caller may sleep while its agents work for hours. Their ends wake it, and each is in its log.
#[tokio::test(start_paused = true)]
async fn a_caller_sleeps_while_its_agents_work_for_hours() {
    let script = |request: &SeenRequest, info: CallInfo| match is_boss(request) {
        true => team_script(request, info),
        false => Said::text("found").after_ms(7_200_000),
    };
    let model = simulator(Function(script), 100_000);
    let runtime = builder(&model)
        .idle_after(Duration::from_secs(60))
        .silence_max(Duration::ZERO)
        .start()
        .await
        .unwrap();
    let session = runtime.open("boss", &team()).await.unwrap();
    let run = session.prompt("go").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert!(!session.is_live(), "it only waits");
    assert_eq!(run.children().len(), 3);
    run.children()[0].abort();
    assert_eq!(run.reply().await.unwrap().text, "done");
    let ends = children(&runtime, "boss").await;
    let completed = ends.iter().filter(|(_, end)| *end == Some(RunOutcome::Completed)).count();
    assert_eq!((ends.len(), completed), (3, 2), "{ends:?}");
    model.assert_clean();
}

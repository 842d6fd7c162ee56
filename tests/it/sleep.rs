//! Sessions that are put to sleep while somebody still uses them: no accepted input is lost.
//!
//! Invariants: a test counts the replies to callers; a sleeping session is woken by any use.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use greenroom::SharedProvider;
use greenroom::prelude::*;
use greenroom::provider::{Provider, ProviderError, ReplyStream, Request};
use greenroom_simulator::{Answer as Said, ByPurpose, CallInfo, Echo, Function, SeenRequest, Summariser};

use crate::support::{agent, builder, drain, simulator, store};

/// The request made at a point on the session's way to sleep.
type Begin = fn(SessionHandle) -> BoxFuture<'static, Result<String>>;

/// When it is made: at once, while the session's actor is at the point, or by a task that yields this often
/// first.
#[derive(Debug, Clone, Copy)]
enum When {
    AtOnce,
    After(u32),
}

/// Input between a session's first check for sleep and its last message is accepted: by the session, which
/// stays awake, or by the next actor.
#[tokio::test(start_paused = true)]
async fn what_is_said_to_a_session_that_falls_asleep_is_taken_on() {
    let points = ["session/idle_check", "session/sleep", "agent/flush_events", "session/events_flushed"];
    let requests: [(&str, Begin); 5] = [
        ("prompt", |session| async move { Ok(session.prompt("more").await?.text) }.boxed()),
        ("steer", |session| async move { Ok(session.steer("more").await?.reply().await?.text) }.boxed()),
        ("once", |session| async move { Ok(session.prompt("more").once("key").await?.text) }.boxed()),
        ("wait", |session| {
            async move { session.wait_until_idle().await.map(|()| "more".to_owned()) }.boxed()
        }),
        ("state", |session| async move { session.state().await.map(|_| "more".to_owned()) }.boxed()),
    ];
    let moments: Vec<When> = std::iter::once(When::AtOnce).chain((0..8).map(When::After)).collect();
    let (mut lost, mut tried) = (Vec::new(), 0);
    for point in points {
        for (what, begin) in requests {
            for when in &moments {
                tried += 1;
                if let Err(why) = speak_at(point, begin, *when).await {
                    lost.push(format!("{what} at {point}, {when:?}: {why}"));
                }
            }
        }
    }
    assert_eq!(tried, 180);
    assert!(lost.is_empty(), "{} of {tried} were lost:\n{}", lost.len(), lost.join("\n"));
}

/// Uses a session at a point on its way to sleep.
async fn speak_at(point: &'static str, begin: Begin, when: When) -> Result<(), String> {
    let model = simulator(Echo, 100_000);
    let speaks = Arc::new((AtomicBool::new(false), OnceLock::<SessionHandle>::new()));
    let (told, heard) = std::sync::mpsc::channel();
    let here = Arc::clone(&speaks);
    let runtime = builder(&model)
        .idle_after(Duration::from_secs(1))
        .probe(move |_, at| {
            let (is_on, session) = &*here;
            if at != point || !is_on.swap(false, Ordering::SeqCst) {
                return;
            }
            let mut request = begin(session.get().expect("it was opened").clone());
            let told = told.clone();
            let yields = match when {
                When::AtOnce => match (&mut request).now_or_never() {
                    Some(ended) => return told.send(ended).expect("the test listens"),
                    None => 0,
                },
                When::After(yields) => yields,
            };
            tokio::spawn(async move {
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                told.send(request.await)
            });
        })
        .start()
        .await
        .unwrap();
    let session = runtime.open("s", agent(100_000)).await.unwrap();
    session.prompt("first").await.unwrap();
    assert!(speaks.1.set(session.clone()).is_ok());
    // The first check after the prompt finds activity, and the next one finds none.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    speaks.0.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let ended = heard.try_recv().map_err(|_| "it was never answered")?.map_err(|error| error.to_string())?;
    assert_eq!(ended, "more");
    assert!(runtime.unfinished().await.unwrap().is_empty());
    assert!(runtime.live().await.unwrap().is_empty(), "it sleeps in the end");
    model.assert_clean();
    Ok(())
}

/// The parameters of a crowd: sessions, consecutive prompts for each of them, and how eagerly the runtime
/// lets them sleep.
struct Crowd {
    sessions: usize,
    prompts: usize,
    live_sessions_max: usize,
    idle_after: Duration,
}

/// Uses all sessions at the same time. Returns how often a session fell asleep.
async fn speak(crowd: &Crowd) -> u32 {
    let model = simulator(Echo, 100_000);
    let sleeps = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&sleeps);
    let runtime = builder(&model)
        .live_sessions_max(crowd.live_sessions_max)
        .idle_after(crowd.idle_after)
        .in_flight_max(64)
        .probe(move |_, at| _ = count.fetch_add(u32::from(at == "session/events_flushed"), Ordering::Relaxed))
        .start()
        .await
        .unwrap();
    let definition = Arc::new(agent(100_000));
    let speakers = (0..crowd.sessions).map(|number| {
        let (runtime, definition, prompts) = (runtime.clone(), Arc::clone(&definition), crowd.prompts);
        tokio::spawn(async move {
            let id = format!("s{number}");
            let session = runtime.open(&id, definition).await.unwrap();
            session.set_label("tenant", "one").await.unwrap();
            let mut failed = Vec::new();
            for prompt in 0..prompts {
                let text = format!("{id}: {prompt}");
                match session.prompt(text.as_str()).await {
                    Ok(reply) => assert_eq!(reply.text, text),
                    Err(error) => failed.push(format!("{text}: {error}")),
                }
            }
            failed
        })
    });
    let mut failed = Vec::new();
    for speaker in futures_util::future::join_all(speakers).await {
        failed.extend(speaker.unwrap());
    }
    let prompts = crowd.sessions * crowd.prompts;
    assert!(failed.is_empty(), "{} of {prompts} prompts failed, the first: {}", failed.len(), failed[0]);
    assert!(runtime.unfinished().await.unwrap().is_empty());
    let runs = runtime.sessions().await.unwrap();
    assert_eq!(runs.len(), crowd.sessions);
    assert_eq!(model.calls(), u64::try_from(prompts).unwrap(), "each prompt was answered once");
    model.assert_clean();
    sleeps.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_prompt_of_a_crowd_is_lost_however_few_sessions_may_be_live() {
    let crowd =
        Crowd { sessions: 120, prompts: 4, live_sessions_max: 1, idle_after: Duration::from_millis(1) };
    let sleeps = speak(&crowd).await;
    assert!(sleeps >= 60, "only {sleeps} sessions fell asleep");
}

/// A compaction is requested while a tool runs; then the session sleeps until the tool is done, and compacts.
#[tokio::test(start_paused = true)]
async fn a_compaction_that_was_asked_for_is_not_forgotten_in_sleep() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let script = |request: &SeenRequest, _: CallInfo| match request.last_user_text().as_str() {
        _ if request.messages.last().is_some_and(|message| message.role() == "tool") => Said::text("done"),
        "wait" => Said::call("wait", &serde_json::json!({})),
        _ => Said::text("a word ".repeat(2_000)),
    };
    for sleeps in [false, true] {
        let model = simulator(ByPurpose::new(Function(script), Summariser::Obedient), 100_000);
        let runtime = builder(&model).idle_after(Duration::from_secs(60)).start().await.unwrap();
        let waiting = agent(100_000).tool("wait", move |_: Nothing| async move {
            tokio::time::sleep(Duration::from_secs(if sleeps { 3_600 } else { 10 })).await;
            Ok("over")
        });
        let session = runtime.open("s", &waiting).await.unwrap();
        for _ in 0..3 {
            session.prompt("tell me").await.unwrap();
        }
        let mut events = session.subscribe();
        let run = session.prompt("wait").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        session
            .compact_after_run(CompactOptions {
                keep_recent: Some(100),
                force: true,
                ..CompactOptions::default()
            })
            .await
            .unwrap();
        if sleeps {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert!(!session.is_live(), "it sleeps in its run");
        }
        run.reply().await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let compacted = drain(&mut events).iter().any(|event| event.kind.name() == "compaction_end");
        assert!(compacted, "sleeps: {sleeps}");
        model.assert_clean();
    }
}

/// Run by `cargo xtask sleeps`: 100,000 prompts over 300 sessions, again and again, with minimal time and
/// room for idle sessions.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `cargo xtask sleeps`"]
#[expect(clippy::print_stdout, reason = "it is a command's output")]
async fn manual() {
    #[expect(clippy::disallowed_methods, reason = "a test binary has no other way to be told")]
    let rounds = std::env::var("GREENROOM_ROUNDS").map_or(Ok(10), |text| text.parse::<u32>());
    for round in 1..=rounds.expect("GREENROOM_ROUNDS must be a number") {
        let crowd =
            Crowd { sessions: 300, prompts: 334, live_sessions_max: 1, idle_after: Duration::from_millis(1) };
        let began = std::time::Instant::now();
        let sleeps = speak(&crowd).await;
        let prompts = crowd.sessions * crowd.prompts;
        println!(
            "round {round}: {prompts} prompts answered in {:.1} s, none interrupted, none left; sessions fell asleep {sleeps} times",
            began.elapsed().as_secs_f64()
        );
    }
}

/// A model that notes for which sessions it need keep nothing.
struct Noting {
    model: Arc<dyn Provider>,
    released: Arc<Mutex<Vec<String>>>,
}

impl Provider for Noting {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        self.model.stream(request)
    }

    fn release(&self, session: &str) {
        self.released.lock().unwrap().push(session.to_owned());
    }
}

/// Providers keep something between the requests of a session: not while it sleeps, nor when it is closed.
#[tokio::test(start_paused = true)]
async fn providers_keep_nothing_for_sessions_that_sleep() {
    let model = simulator(Echo, 100_000);
    let noting = || {
        let released = Arc::<Mutex<Vec<String>>>::default();
        (Arc::new(Noting { model: model.provider(), released: Arc::clone(&released) }), released)
    };
    let ((of_runtime, by_runtime), (of_agent, by_agent)) = (noting(), noting());
    let taken = |released: &Mutex<Vec<String>>| std::mem::take(&mut *released.lock().unwrap());
    let runtime = Runtime::builder()
        .engine(store())
        .provider(of_runtime)
        .idle_after(Duration::from_secs(60))
        .start()
        .await
        .unwrap();
    let own = agent(100_000).own_provider(&SharedProvider::new(of_agent));
    for (id, agent, of_own) in [("plain", &agent(100_000), &[][..]), ("own", &own, &["own"][..])] {
        let session = runtime.open(id, agent).await.unwrap();
        session.prompt("Hello").await.unwrap();
        assert_eq!((taken(&by_runtime), taken(&by_agent)), (vec![], vec![]), "{id} is awake");
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(runtime.live().await.unwrap().is_empty(), "it sleeps");
        assert_eq!(
            (&*taken(&by_runtime), &*taken(&by_agent)),
            (&[id.to_owned()][..], &*of_own.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>())
        );
        session.prompt("Hello again").await.unwrap();
        runtime.close(id).await.unwrap();
        assert_eq!(
            (&*taken(&by_runtime), &*taken(&by_agent)),
            (&[id.to_owned()][..], &*of_own.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>())
        );
    }
}

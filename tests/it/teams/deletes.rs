//! A session is deleted with everything below it, and an interrupted deletion is finished.

use greenroom_store::faults::{EIO, Fault, FaultyFiles};
use greenroom_store::files::RealFiles;
use greenroom_store::{Store, StoreOptions};

use super::*;

/// A session whose agent called two agents, one of which called one more; and another one beside it.
async fn grown(runtime: &Runtime) {
    let script = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)));
    let boss = agent(100_000).sub_agent(sub_agent("helper", script));
    for id in ["boss", "boss..mine", "other"] {
        assert_eq!(runtime.open(id, &boss).await.unwrap().prompt("go").await.unwrap().text, "done");
    }
}

fn helper_script(request: &SeenRequest, _: CallInfo) -> Said {
    if request.has_tool("helper") && !has_result(request) {
        let of = |id: &str| call(id, "helper", &json!({ "task": request.last_user_text() }));
        calls(vec![of("a"), of("b")])
    } else {
        Said::text("done")
    }
}

async fn ids(runtime: &Runtime) -> Vec<String> {
    runtime.sessions().await.unwrap().into_iter().map(|session| session.id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_with_all_that_is_below_it() {
    let model = simulator(Function(helper_script), 100_000);
    let runtime = runtime(&model).await;
    grown(&runtime).await;
    assert_eq!(ids(&runtime).await.len(), 3 * 7);
    let tree = runtime.sessions().tree("boss").await.unwrap();
    assert_eq!(tree.len(), 6, "a session whose id only looks like a child's is none");
    let held = runtime.session(&tree[0].id).await.unwrap();
    runtime.delete("boss").await.unwrap();
    let left = ids(&runtime).await;
    assert_eq!(left.len(), 2 * 7, "{left:?}");
    assert!(!left.contains(&"boss".to_owned()) && left.contains(&"boss..mine".to_owned()));
    assert!(matches!(held.prompt("more").await, Err(Error::Deleted { .. })));
    assert!(matches!(runtime.delete("boss").await, Err(Error::NoSession { .. })));
    // A part of a tree can be deleted alone.
    let middle = &runtime.sessions().children_of("other").await.unwrap()[0].id;
    runtime.delete(middle).await.unwrap();
    assert_eq!(ids(&runtime).await.len(), 2 * 7 - 3);
    assert_eq!(runtime.sessions().tree("other").await.unwrap().len(), 3);
    model.assert_clean();
}

/// Its working agents end cleanly first.
#[tokio::test(start_paused = true)]
async fn a_session_is_deleted_while_its_agents_work() {
    let model = simulator(Function(team_script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("boss", &team()).await.unwrap();
    let run = session.prompt("go").start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(model.in_flight(), 3);
    let child = run.children()[0].session();
    let (steer, prompt) = (child.steer("hurry").await.unwrap(), child.prompt("more").start().await.unwrap());
    runtime.delete("boss").await.unwrap();
    assert_eq!(model.in_flight(), 0);
    for (what, reply) in
        [("run", run.reply().await), ("steer", steer.reply().await), ("prompt", prompt.reply().await)]
    {
        assert!(matches!(reply, Err(Error::Deleted { .. })), "{what}: {reply:?}");
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(ids(&runtime).await, Vec::<String>::new());
    model.assert_clean();
}

/// A program that uses a session below the deleted one gets the same error.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_session_below_the_one_that_is_deleted_hears_that() {
    let pace = greenroom_simulator::Pace { chunks: 2, first_ms: 0, between_ms: 3_600_000 };
    let script = move |request: &SeenRequest, info: CallInfo| match request.last_user_text() == "for long" {
        true => Said::text("for ever and ever").with_pace(pace),
        false => helper_script(request, info),
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    grown(&runtime).await;
    let below = runtime.sessions().children_of("boss").await.unwrap().remove(0).id;
    let session = runtime.open(&below, &agent(100_000)).await.unwrap();
    let run = session.prompt("for long").start().await.unwrap();
    let behind = session.prompt("then").start().await.unwrap();
    runtime.delete("boss").await.unwrap();
    for (what, reply) in [("run", run.reply().await), ("prompt", behind.reply().await)] {
        assert!(matches!(reply, Err(Error::Deleted { .. })), "{what}: {reply:?}");
    }
}

/// The disk fails at each operation of a deletion in turn, and the process ends. Nothing is left without its
/// parent session, and the deletion is finished when a runtime opens the store.
#[tokio::test]
async fn a_deletion_that_is_cut_off_is_finished() {
    let model = simulator(Function(helper_script), 100_000);
    let (mut finished, mut untouched, mut cases) = (0, 0, 0);
    for at in 1..200 {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultyFiles::new(Arc::new(RealFiles));
        let options = |files: &FaultyFiles| StoreOptions {
            files: Arc::new(files.clone()),
            ..StoreOptions::new(dir.path())
        };
        let start = |options: StoreOptions| {
            Runtime::builder().provider(model.provider()).store_options(options).start()
        };
        let runtime = start(options(&files)).await.unwrap();
        grown(&runtime).await;
        files.set(Fault::FailFrom { at, errno: EIO });
        let deleted = runtime.delete("boss").await;
        drop(runtime);
        files.set(Fault::None);
        cases += 1;

        let good = FaultyFiles::new(Arc::new(RealFiles));
        let store = loop {
            // The last runtime's threads release the directory.
            match Store::open(&options(&good)) {
                Ok((store, _)) => break store,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let sessions = store.list().unwrap();
        let known: std::collections::BTreeSet<&str> = sessions.iter().map(|(id, _)| id.as_str()).collect();
        for (id, head) in &sessions {
            let parent = head.parent_session.as_deref();
            assert!(parent.is_none_or(|parent| known.contains(parent)), "{at}: {id} has lost {parent:?}");
        }
        let was_touched = sessions.len() < 21;
        store.close().await.unwrap();

        // A runtime that may only read leaves the rest to the next one.
        let (store, _) = Store::open(&StoreOptions { is_read_only: true, ..options(&good) }).unwrap();
        let reader = Runtime::builder().provider(model.provider()).store(store).start().await.unwrap();
        assert_eq!(ids(&reader).await.len(), sessions.len(), "{at}");
        reader.shutdown().await.unwrap();

        let runtime = start(options(&good)).await.unwrap();
        let left = ids(&runtime).await.len();
        runtime.shutdown().await.unwrap();
        match deleted {
            Ok(()) => {
                assert_eq!(left, 14, "{at}");
                break;
            }
            Err(_) if left == 21 => untouched += 1,
            Err(_) => {
                assert_eq!(left, 14, "{at}: it is finished");
                finished += usize::from(was_touched);
            }
        }
    }
    assert!(finished >= 3 && untouched >= 1 && cases < 199, "{finished} {untouched} {cases}");
    model.assert_clean();
}

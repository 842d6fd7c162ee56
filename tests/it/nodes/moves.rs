//! The data that moves with a session: open questions, sub-agents, limits per minute. The release of sessions by a
//! leaving node.

use greenroom::{FunctionTool, tool};
use greenroom_store::Placement;
use serde_json::{Value, json};

use super::*;

/// Gives money back.
#[derive(Deserialize, JsonSchema)]
struct Refund {
    /// How much, in euros
    euros: u32,
}

/// A tool that asks a person, and counts its effects.
fn refund(effects: &Arc<AtomicU64>) -> FunctionTool {
    let effects = Arc::clone(effects);
    let refund = move |Refund { euros }: Refund, cx: ToolContext| {
        let effects = Arc::clone(&effects);
        async move {
            let answer = cx.ask(Question::text(format!("Refund {euros} euros?"))).await?;
            effects.fetch_add(1, Ordering::Relaxed);
            Ok(format!("{answer}"))
        }
    };
    tool("refund", refund).resumable()
}

/// Calls a tool or a sub-agent where there is one, and then says what it has got.
fn calls(name: &'static str, arguments: Value) -> impl greenroom_simulator::Script {
    Function(move |request: &SeenRequest, _: CallInfo| match request.messages.last() {
        Some(last) if last.role() == "tool" => Said::text(format!("It says: {}", last.text())),
        _ if request.has_tool(name) => Said::call(name, &arguments),
        _ => Said::text(format!("to {}", request.last_user_text())),
    })
}

async fn start_as(cluster: &Cluster, name: &str, model: &Simulator, agent: Agent) -> Running {
    let node = cluster.join(name, None);
    let engine: Arc<dyn Engine> = node.clone();
    let runtime = builder(model).engine(engine).start().await.unwrap();
    let agent = Arc::new(agent);
    let taking = runtime.take_over(move |_| Some(Arc::clone(&agent)));
    Running { node, runtime, _taking: taking }
}

/// The owner's lease runs out while its session waits for a person: the new owner asks the same question, and the answer
/// counts once, wherever it was given.
#[tokio::test(start_paused = true)]
async fn a_question_is_still_asked_at_the_new_owner() {
    for answered in ["a new owner", "nobody before"] {
        let (cluster, effects) = (Cluster::new(), Arc::new(AtomicU64::new(0)));
        let model = simulator(calls("refund", json!({ "euros": 120 })), WINDOW);
        let made = || agent(WINDOW).add_tool(refund(&effects));
        let a = start_as(&cluster, "a", &model, made()).await;
        let b = start_as(&cluster, "b", &model, made()).await;
        let session = a.runtime.open("s", &made()).await.unwrap();
        let mut run = session.prompt("refund it").start().await.unwrap();
        run.recorded().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = session.questions().await.unwrap();
        // The owner is frozen, or notices its loss in time.
        cluster.expire("a");
        if answered == "nobody before" {
            cluster.notice("a");
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let moved = b.runtime.session("s").await.unwrap();
        let now = moved.questions().await.unwrap();
        assert_eq!((asked.len(), now.len(), now[0].id), (1, 1, asked[0].id));
        // An answer at the old owner is refused, and loses nothing.
        if answered == "a new owner" {
            assert!(session.answer(asked[0].id, "no").await.is_err());
        }
        moved.answer(now[0].id, "yes").await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let said = moved.context().await.unwrap().last().unwrap().text();
        assert_eq!((said.as_str(), effects.load(Ordering::Relaxed)), ("It says: yes", 1), "{answered}");
        drop(run);
    }
}

/// A sub-agent runs where its parent does, before and after a change of owner.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_moves_with_its_parent() {
    let cluster = Cluster::new();
    let pace = Pace { chunks: 1, first_ms: 20_000, between_ms: 1 };
    let answer = move |request: &SeenRequest, _: CallInfo| match request.messages.last() {
        Some(last) if last.role() == "tool" => Said::text("done"),
        _ if request.has_tool("helper") => Said::call("helper", &json!({ "task": "help" })),
        _ => Said::text("helped").with_pace(pace),
    };
    let model = simulator(Function(answer), WINDOW);
    let made = || agent(WINDOW).sub_agent(greenroom::sub_agent("helper", agent(WINDOW)).describe("Helps."));
    let (a, b) =
        (start_as(&cluster, "a", &model, made()).await, start_as(&cluster, "b", &model, made()).await);
    let run = a.runtime.open("s", &made()).await.unwrap().prompt("go").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let child = a.runtime.sessions().children_of("s").await.unwrap().remove(0).id;
    let owner = async |id: &str| a.node.owner_of(id).await.unwrap().map(|owner| owner.node);
    assert_eq!([owner("s").await.as_deref(), owner(&child).await.as_deref()], [Some("a"); 2]);
    cluster.expire("a");
    cluster.notice("a");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(owner("s").await.as_deref(), Some("b"));
    tokio::time::sleep(Duration::from_secs(120)).await;
    let said = b.runtime.session("s").await.unwrap().context().await.unwrap().last().unwrap().text();
    assert_eq!(said, "done");
    // Whatever a sub-agent does now, it does here.
    for child in b.runtime.sessions().children_of("s").await.unwrap() {
        assert_ne!(owner(&child.id).await.as_deref(), Some("a"), "{}", child.id);
    }
    drop(run);
}

/// A node that leaves gives its sessions to the one with the fewest, and not to one that leaves too.
#[tokio::test(start_paused = true)]
async fn who_leaves_names_the_node_with_the_least_to_do() {
    let (cluster, model) = (Cluster::new(), model(1));
    let (a, b) = (start(&cluster, "a", &model).await, start(&cluster, "b", &model).await);
    let (c, d) = (start(&cluster, "c", &model).await, start(&cluster, "d", &model).await);
    for (running, count) in [(&a, 4), (&b, 3), (&c, 1)] {
        for number in 0..count {
            let id = format!("{}{number}", running.node.node());
            running.runtime.open(&id, &agent(WINDOW)).await.unwrap().prompt("1").await.unwrap();
        }
    }
    d.node.drain().await.unwrap();
    a.runtime.shutdown().await.unwrap();
    let mut heirs = Vec::new();
    for number in 0..4 {
        heirs.push(b.node.place(&format!("a{number}")).await.unwrap().node);
    }
    heirs.sort();
    // c has one, gets two, and then has as many as b.
    assert_eq!(heirs.iter().filter(|heir| **heir == "c").count(), 3, "{heirs:?}");
    assert_eq!(heirs.iter().filter(|heir| **heir == "b").count(), 1, "{heirs:?}");
}

/// How long this many prompts of a new session take at this node, in seconds.
async fn seconds_for(running: &Running, id: &str, prompts: usize) -> u64 {
    let session = running.runtime.open(id, &agent(WINDOW).output_tokens_max(100)).await.unwrap();
    let begun = tokio::time::Instant::now();
    for number in 0..prompts {
        session.prompt(format!("{number}")).await.unwrap();
    }
    begun.elapsed().as_secs()
}

/// A limit per minute is that of all nodes: with two, each has half of it, and with one gone, the other has all.
#[tokio::test(start_paused = true)]
async fn a_limit_per_minute_is_divided_among_the_nodes() {
    let mut taken = Vec::new();
    for others in [0, 1, 3] {
        let (cluster, model) = (Cluster::new(), model(1));
        let node = cluster.join("a", None);
        for other in 0..others {
            let _other = cluster.join(&format!("other{other}"), None);
        }
        let engine: Arc<dyn Engine> = node.clone();
        let runtime = builder(&model).engine(engine).tokens_per_minute(10_000).start().await.unwrap();
        let taking = runtime.take_over(|_| Some(agent(WINDOW)));
        let running = Running { node, runtime, _taking: taking };
        // They count the nodes before the first call.
        tokio::time::sleep(Duration::from_secs(1)).await;
        taken.push(seconds_for(&running, "first", 60).await);
        if others == 3 {
            for other in 0..others {
                cluster.expire(&format!("other{other}"));
            }
            tokio::time::sleep(Duration::from_secs(600)).await;
            taken.push(seconds_for(&running, "second", 60).await);
        }
    }
    let [alone, two, four, again] = taken[..] else { panic!("{taken:?}") };
    assert!(alone > 30, "the limit is reached: {taken:?}");
    assert!(two >= alone * 3 / 2 && four >= alone * 5 / 2 && four > two, "{taken:?}");
    assert!(again <= alone * 5 / 4, "{taken:?}");
}

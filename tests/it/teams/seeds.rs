//! Lives of teams generated from a seed: agents in parallel and below each other, hand-offs by the model and
//! by the program, aborts of one and of all, panics, deaths of the process and deletions. The invariants hold
//! whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_kernel::entry::Spender;
use greenroom_provider::Purpose;
use greenroom_store::faults::Random;

use super::*;
use crate::support::store;

/// Counts over all lives, so that the test is not vacuous.
#[derive(Debug, Default)]
struct Seen {
    children: u64,
    ends: BTreeMap<&'static str, u64>,
    crashes: u64,
    deletions: u64,
    resumed: u64,
    /// Agents whose caller's bill includes their whole cost and that of those below them.
    paid_whole: u64,
    /// Runs that ended because their agents only handed the conversation back and forth.
    too_many_hand_offs: u64,
    /// Hand-offs to another agent, by how much it saw.
    hand_offs: BTreeMap<String, u64>,
}

/// Returns the script of the agents: each sometimes hands over, calls up to three others at once if allowed,
/// and takes a while. Its answer is its name.
fn script(seed: u64) -> impl Fn(&SeenRequest, CallInfo) -> Said + Send + Sync {
    move |request: &SeenRequest, info: CallInfo| {
        let session: u64 = request.session.as_deref().unwrap_or_default().bytes().map(u64::from).sum();
        let mut random = Random::new(seed ^ session.wrapping_mul(31) ^ info.session_call);
        let wait_ms = random.below(3_000);
        if request.purpose == Purpose::Summary {
            // Some summaries fail: then there is no hand-off.
            let text = if random.below(4) == 0 { "" } else { "## Goal\nWhat the team is for, so far." };
            return Said::text(text).after_ms(wait_ms);
        }
        let transfer = MEMBERS_OF_TEAM.iter().map(|name| format!("transfer_to_{name}"));
        if let Some(transfer) = transfer.into_iter().find(|name| request.has_tool(name))
            && random.below(3) == 0
        {
            return Said::call(&transfer, &json!({ "reason": "it is theirs" })).after_ms(wait_ms);
        }
        if request.has_tool("helper") && !has_result(request) {
            let of =
                |number: u64| call(&format!("c{number}"), "helper", &json!({ "task": format!("{number}") }));
            return calls((0..=random.below(3)).map(of).collect()).after_ms(wait_ms);
        }
        Said::text(request.system.clone().unwrap_or_else(|| "done".to_owned())).after_ms(wait_ms)
    }
}

/// The agents that may answer in the sessions that programs open.
const MEMBERS_OF_TEAM: [&str; 2] = ["front", "back"];

fn sees_of(random: &mut Random) -> Sees {
    match random.below(3) {
        0 => Sees::All,
        1 => Sees::Summary,
        _ => Sees::Last(u32::try_from(1 + random.below(5)).unwrap()),
    }
}

fn tree_of(random: &mut Random) -> Agent {
    let own = || Agent::new(MODEL).context_window(100_000);
    let parallel = 1 + usize::try_from(random.below(3)).unwrap();
    (0..=random.below(3))
        .fold(own(), |helper, _| own().sub_agent(sub_agent("helper", helper).parallel(parallel)))
}

/// Two agents with the same agents below them. In half of the teams, each may hand the conversation to the
/// other.
fn team_of(random: &mut Random) -> Team {
    let [front, back] = MEMBERS_OF_TEAM;
    let tree = tree_of(random);
    let may_hand_off = random.below(2) == 0;
    let mut member = |name: &str, other: &str| {
        let agent = tree.clone().instructions(name);
        let sees = sees_of(random);
        if may_hand_off { agent.hand_off_to(other, "The other half.", sees) } else { agent }
    };
    Team::new(front, member(front, back)).member(back, member(back, front))
}

/// One process: prompts, aborts, deletions; it ends in the middle of its work.
async fn live(runtime: Runtime, team: Team, random: &mut Random, seen: &mut Seen) {
    let mut runs = Vec::new();
    for _ in 0..6 {
        let id = format!("s{}", random.below(3));
        let Ok(session) = runtime.open(&id, &team).await else { continue };
        match random.below(9) {
            0 => session.abort(),
            1 => {
                let children = session.children();
                if let Some(child) = children.get(usize::try_from(random.below(4)).unwrap()) {
                    child.abort();
                }
            }
            2 => {
                seen.deletions += u64::from(runtime.delete(&id).await.is_ok());
            }
            3 => {
                let to = MEMBERS_OF_TEAM[usize::from(random.below(2) == 0)];
                // A working session refuses it.
                let _ = session.hand_off(to, sees_of(random)).await;
            }
            _ => runs.extend(session.prompt(format!("go {}", random.below(1_000))).start().await.ok()),
        }
        tokio::time::sleep(Duration::from_millis(random.below(2_500))).await;
    }
    seen.crashes += 1;
    // Nobody awaits them any more, and nobody withdraws them either.
    runs.into_iter().for_each(Run::detach);
}

fn name(outcome: &RunOutcome) -> &'static str {
    outcome.as_str()
}

/// Checks the invariants when everything is quiet.
async fn check(runtime: &Runtime, seed: u64, seen: &mut Seen) {
    let sessions = runtime.sessions().await.unwrap();
    let known: BTreeSet<&str> = sessions.iter().map(|session| session.id.as_str()).collect();
    let mut of_child: BTreeMap<String, u64> = BTreeMap::new();
    let mut paid_by: BTreeMap<String, u64> = BTreeMap::new();
    for session in &sessions {
        let parent = session.parent.as_deref();
        assert!(
            parent.is_none_or(|parent| known.contains(parent)),
            "seed {seed}: {} is an orphan",
            session.id
        );
        let entries = runtime.entries(&session.id, EntryId(0)).await.unwrap();
        let id = &session.id;
        let (mut open, mut spent) = (BTreeMap::new(), BTreeSet::new());
        let mut answers: Option<&str> = None;
        for entry in &entries {
            match &entry.kind {
                EntryKind::Child(child) => match &child.stage {
                    ChildStage::Started => {
                        assert!(open.insert(entry.id, child.session.clone()).is_none(), "seed {seed}");
                        seen.children += 1;
                    }
                    ChildStage::Ended { started, outcome } => {
                        let begun = open.remove(started);
                        assert_eq!(
                            begun.as_ref(),
                            Some(&child.session),
                            "seed {seed}: one end for each start"
                        );
                        assert!(spent.remove(&child.session), "seed {seed}: an end with its cost");
                        *seen.ends.entry(name(outcome)).or_default() += 1;
                    }
                },
                EntryKind::Spent(paid) => {
                    if let Spender::SubAgent { session } = &paid.by {
                        assert!(spent.insert(session.clone()), "seed {seed}: paid once");
                        let cost = paid.cost_microdollars.unwrap_or(0);
                        of_child.insert(session.clone(), cost);
                        *paid_by.entry(id.clone()).or_default() += cost;
                    }
                }
                EntryKind::HandOff(handed) => {
                    let before = answers.replace(&handed.to).unwrap_or(MEMBERS_OF_TEAM[0]);
                    assert_eq!(before, handed.from, "seed {seed}: {id}: who hands over is who answered");
                    let sees = format!("{:?}", handed.sees);
                    *seen.hand_offs.entry(sees.split('(').next().unwrap().to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        if answers.is_some() {
            assert_eq!(session.agent.as_deref(), answers, "seed {seed}: {id}: who answers is in the log");
        }
        // A child interrupted by a crash stays unchanged: nobody resumes it.
        assert!(open.is_empty() || session.has_open_run, "seed {seed}: {}: {open:?} have no end", session.id);
        seen.resumed += u64::from(
            entries
                .iter()
                .any(|entry| matches!(&entry.kind, EntryKind::Note { kind, .. } if kind == "run_resumed")),
        );
    }
    // The cost of the answers of a session and of all below it.
    let parents: BTreeMap<&str, Option<&str>> =
        sessions.iter().map(|session| (session.id.as_str(), session.parent.as_deref())).collect();
    let mut of_tree: BTreeMap<&str, u64> = BTreeMap::new();
    for session in &sessions {
        let own = session.cost_microdollars - paid_by.get(&session.id).copied().unwrap_or(0);
        let above = std::iter::successors(Some(session.id.as_str()), |id| parents.get(id).copied().flatten());
        above.for_each(|id| *of_tree.entry(id).or_default() += own);
    }
    for session in &sessions {
        if let Some(paid) = of_child.get(&session.id) {
            let cost = of_tree[session.id.as_str()];
            assert!(*paid <= cost, "seed {seed}: {} cost {cost}, and {paid} was paid", session.id);
            seen.paid_whole += u64::from(*paid == cost);
        }
    }
}

fn life(seed: u64, seen: &mut Seen) {
    let mut random = Random::new(seed);
    let store = store();
    let model = priced(Function(script(seed)));
    let team = team_of(&mut random);
    let panics = Arc::new(AtomicU32::new(0));
    let clock =
        || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let start = |panics: Arc<AtomicU32>| {
        builder(&model)
            .engine(store.clone())
            .probe(move |_, _| {
                let left =
                    panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                assert!(left != Ok(1), "injected by the seed");
            })
            .start()
    };
    for _ in 0..2 {
        // At most one actor panics in each life.
        panics.store(u32::try_from(random.below(600)).unwrap(), Ordering::SeqCst);
        clock().block_on(async {
            let runtime = start(Arc::clone(&panics)).await.unwrap();
            live(runtime, team.clone(), &mut random, seen).await;
        });
    }
    panics.store(0, Ordering::SeqCst);
    clock().block_on(async {
        let runtime = start(panics).await.unwrap();
        let resumed = team.clone();
        for done in runtime.resume_all(move |_| Some(resumed.clone())).await.unwrap() {
            assert!(!matches!(done.result, Err(Error::SessionFailed { .. })), "seed {seed}: {done:?}");
        }
        for root in runtime.sessions().roots().await.unwrap() {
            let session = runtime.open(&root.id, &team).await.unwrap();
            let mut answer = session.prompt("and now?").await;
            while let Err(Error::Stopped { reason }) = &answer {
                assert!(reason.contains("handed the conversation on 8 times"), "seed {seed}: {reason}");
                seen.too_many_hand_offs += 1;
                answer = session.prompt("and now?").await;
            }
            let reply = answer.unwrap_or_else(|error| panic!("seed {seed}: {}: {error}", root.id));
            // Agents that never handed over have no name there.
            let answers =
                session.state().await.unwrap().agent.unwrap_or_else(|| MEMBERS_OF_TEAM[0].to_owned());
            assert_eq!(reply.text, answers, "seed {seed}: {}: who answers is who it says", root.id);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(model.in_flight(), 0, "seed {seed}: something goes on");
        check(&runtime, seed, seen).await;
        for root in runtime.sessions().roots().await.unwrap() {
            runtime.delete(&root.id).await.unwrap();
        }
        assert_eq!(runtime.sessions().await.unwrap().len(), 0, "seed {seed}: all are gone");
    });
    model.assert_clean();
}

/// The number of seeds, if more are wanted: `GREENROOM_TEAM_SEEDS`.
#[test]
#[expect(clippy::disallowed_methods, reason = "who runs it says how many")]
fn lives_of_teams_hold_what_must_hold() {
    quiet_injected_panics();
    let seeds = std::env::var("GREENROOM_TEAM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(30);
    let mut seen = Seen::default();
    for seed in 0..seeds {
        life(seed, &mut seen);
    }
    assert!(seen.children >= seeds * 5 && seen.crashes == seeds * 2, "{seen:?}");
    assert!(seen.paid_whole * 10 >= seen.children * 8, "{seen:?}");
    assert!(seen.deletions >= seeds / 4 && seen.resumed >= seeds / 10, "{seen:?}");
    for sees in ["All", "Summary", "Last"] {
        assert!(
            seen.hand_offs.get(sees).is_some_and(|hand_offs| *hand_offs >= seeds / 10),
            "{sees}: {seen:?}"
        );
    }
    for end in ["completed", "aborted", "interrupted"] {
        assert!(seen.ends.get(end).is_some_and(|ends| *ends >= seeds / 10), "{end}: {seen:?}");
    }
}

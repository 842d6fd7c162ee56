//! A fleet of another framework's agents: what all of these programs share with the benchmark `fleet`, which starts them.
//!
//! Invariants: a program says four numbers on its last line: runs a second, CPU time a run in µs, memory in MiB with all
//! agents alive, and memory an agent in KiB, as each row of the benchmark does.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;

/// What the benchmark asks for, as `name=value`.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The URL of the model's API.
    pub url: String,
    pub agents: usize,
    /// The runs of each agent.
    pub runs: usize,
    /// So many runs are under way at the same time.
    pub in_flight: usize,
    /// Whether answers are streamed.
    pub streams: bool,
}

impl Workload {
    /// Reads the command line.
    ///
    /// # Panics
    /// Where something is missing or no number.
    pub fn of_command_line() -> Self {
        let value = |name: &str| {
            let found = std::env::args().find_map(|a| Some(a.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
            found.unwrap_or_else(|| panic!("it needs {name}=VALUE, like url= agents= runs= in_flight= streams="))
        };
        let number = |name: &str| value(name).parse().expect("a number");
        Self {
            url: value("url"),
            agents: number("agents"),
            runs: number("runs"),
            in_flight: number("in_flight"),
            streams: value("streams") == "true",
        }
    }
}

/// Lets all agents work at the same time, each with one run after the other, and says what it took. `agent` makes an agent,
/// and `run` is one run of it; the agent with its conversation comes back, so that all are alive at the end.
pub async fn measured<A, M, R>(workload: &Workload, agent: impl Fn() -> M, run: impl Fn(A) -> R + Clone + Send + 'static)
where
    A: Send + 'static,
    M: Future<Output = A> + Send + 'static,
    R: Future<Output = A> + Send,
{
    let (began, cpu, rss) = (Instant::now(), cpu_s(), rss_mib());
    let places = Arc::new(Semaphore::new(workload.in_flight));
    let mut fleet = Vec::new();
    for _ in 0..workload.agents {
        let (making, run, places, runs) = (agent(), run.clone(), Arc::clone(&places), workload.runs);
        fleet.push(tokio::spawn(async move {
            let mut agent = making.await;
            for _ in 0..runs {
                let _place = places.acquire().await.expect("never closed");
                agent = run(agent).await;
            }
            agent
        }));
    }
    let mut alive = Vec::new();
    for agent in fleet {
        alive.push(agent.await.expect("no agent panics"));
    }
    let (all, rss_now) = ((workload.agents * workload.runs) as f64, rss_mib());
    let rate = all / began.elapsed().as_secs_f64();
    let each = (rss_now - rss) * 1024.0 / workload.agents as f64;
    println!("{rate} {} {rss_now} {each}", (cpu_s() - cpu) * 1e6 / all);
    drop(alive);
}

/// The CPU time of this process so far, in seconds.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// The resident memory of this process, in MiB.
fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

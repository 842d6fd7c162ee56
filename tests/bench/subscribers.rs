//! Sessions with a subscriber each, over HTTP: the memory of a subscriber, events a second, how long an event is on its
//! way, and what one subscriber that does not read costs the others.
//!
//! The model, the server and the subscribers are processes of their own. The baseline is the same server without
//! subscribers.

mod mock_server;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_server::{HttpOptions, HttpServer};
use greenroom_tests::measure::{argument, cpu_s, figure, median, percentile, ratio, rss_mib, scaled, title};
use mock_server::{Ids, MockServer};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The pieces of an answer, and the pause between them.
const PIECES: usize = 22;
const PAUSE: Duration = Duration::from_millis(20);

fn main() {
    mock_server::serve_if_asked();
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    match argument("way") {
        Some(_) => runtime.block_on(serve()),
        None => runtime.block_on(measure()),
    }
}

/// The server: it prints its address, and obeys lines of its input.
async fn serve() {
    let count: usize = argument("sessions").and_then(|count| count.parse().ok()).expect("a number");
    let model = MockServer::start(PIECES, PAUSE, Ids::One);
    let base_url = model.base_url.parse().expect("a URL");
    let provider =
        HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() }).expect("a provider");
    let builder = Runtime::builder().provider_with(Arc::new(provider), count).in_memory();
    let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
    let agent = Arc::new(Agent::new("bench"));
    let mut sessions = Vec::new();
    for number in 0..count {
        sessions.push(runtime.open(&format!("s{number}"), Arc::clone(&agent)).await.expect("a session"));
    }
    let prompt_all = async |text: &str| {
        let runs = sessions.iter().map(|session| session.prompt(text).into_future());
        assert!(join_all(runs).await.iter().all(Result::is_ok), "a run failed");
    };
    prompt_all("warm up").await;
    let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
    options.connections_max = 4 * count + 16;
    let server = HttpServer::start(&runtime, agent, options).await.expect("a server");
    println!("{}", server.address());
    while let Some(Ok(order)) = tokio::task::block_in_place(|| std::io::stdin().lines().next()) {
        let (began, before) = (Instant::now(), cpu_s());
        if order == "run" {
            prompt_all("go on").await;
        }
        println!("{} {} {}", began.elapsed().as_secs_f64(), cpu_s() - before, rss_mib());
    }
    server.stop().await;
    runtime.shutdown().await.expect("an orderly end");
}

/// The server's process, as the subscribers see it.
struct Server {
    child: Child,
    /// Once it is closed, the server ends, and its model with it.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: String,
}

/// The server's figures for an order.
struct Figures {
    seconds: f64,
    cpu_s: f64,
    rss_mib: f64,
}

impl Server {
    fn start(sessions: usize) -> Self {
        let this = std::env::current_exe().expect("this program has a name");
        let mut child = Command::new(this)
            .args(std::env::args().skip(1))
            .args(["way=serve", &format!("sessions={sessions}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let orders = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut address = String::new();
        answers.read_line(&mut address).expect("the server says its address");
        Self { child, orders, answers, address: address.trim().to_owned() }
    }

    fn order(&mut self, order: &str) -> Figures {
        writeln!(self.orders.as_ref().expect("it is open"), "{order}").expect("the server reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the server answers");
        let numbers: Vec<f64> =
            line.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [seconds, cpu_s, rss_mib] = numbers[..] else { panic!("three figures, and not {line:?}") };
        Figures { seconds, cpu_s, rss_mib }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _status = self.child.wait();
    }
}

/// What the subscribers have received.
#[derive(Default)]
struct Received {
    events: AtomicU64,
    /// How long each event was on its way.
    delays: Mutex<Vec<Duration>>,
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

async fn connect(address: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    // By HTTP/1.0, an answer of unknown length is not in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    stream
}

/// Subscribes to a session, and counts its events until the connection ends. The stream has begun when this returns.
async fn subscribe(address: &str, number: usize, received: &Arc<Received>) -> JoinHandle<()> {
    let stream = connect(address, &format!("/v1/sessions/s{number}/events")).await;
    let mut lines = tokio::io::BufReader::new(stream).lines();
    // The first thing in a stream is its position.
    while let Ok(Some(line)) = lines.next_line().await {
        if line.starts_with("id: ") {
            break;
        }
    }
    let received = Arc::clone(received);
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let Some((_, rest)) = line.strip_prefix("data: ").and_then(|data| data.split_once("\"at_ms\":"))
            else {
                continue;
            };
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            let sent_ms: u64 = digits.parse().expect("a time");
            received.events.fetch_add(1, Ordering::Relaxed);
            received.delays.lock().push(Duration::from_millis(now_ms().saturating_sub(sent_ms)));
        }
    })
}

async fn measure() {
    let (count, rounds) = (scaled(1_000), scaled(20).min(20));
    title(
        &format!("{count} sessions with a subscriber each, over HTTP; runs of {PIECES} pieces, all at once"),
        "the same runs without subscribers",
    );
    let mut server = Server::start(count);
    let without: Vec<Figures> = (0..rounds).map(|_| server.order("run")).collect();
    let before = server.order("rest").rss_mib;
    let received = Arc::new(Received::default());
    let mut subscribers = Vec::new();
    for number in 0..count {
        subscribers.push(subscribe(&server.address, number, &received).await);
    }
    let with = rounds_of(&mut server, rounds, &received, count);
    let after = with.rss_mib;
    // It subscribes to all sessions, and reads nothing.
    let stalled = connect(&server.address, "/v1/events").await;
    let beside = rounds_of(&mut server, rounds, &received, count);
    drop(stalled);
    println!("|                      | runs/s | ratio | events/s | p50 ms | p99 ms | CPU µs an event |");
    println!("|----------------------|--------|-------|----------|--------|--------|-----------------|");
    let base_seconds = middle_of(&without, |figures| figures.seconds);
    let base_cpu = middle_of(&without, |figures| figures.cpu_s);
    let runs_s = |seconds: f64| ratio(as_f64(count), seconds);
    let base = runs_s(base_seconds);
    println!("| no subscribers       | {base:>6.0} |  1.00 |        - |      - |      - |               - |");
    for (name, row, of) in
        [("with subscribers", "with", &with), ("one of all is stalled", "stalled", &beside)]
    {
        let (runs, cpu_us) = (runs_s(of.seconds), ratio((of.cpu_s - base_cpu) * 1e6, of.events));
        let [half, most] = [of.median_ms, of.p99_ms];
        println!(
            "| {name:<20} | {runs:>6.0} | {:>5.2} | {:>8.0} | {half:>6.0} | {most:>6.0} | {cpu_us:>15.1} |",
            ratio(runs, base),
            ratio(of.events, of.seconds)
        );
        figure(&format!("subscribers/{row}/runs"), runs, "1/s", Some(ratio(runs, base)));
        figure(&format!("subscribers/{row}/events"), ratio(of.events, of.seconds), "1/s", None);
        figure(&format!("subscribers/{row}/p99"), most, "ms", Some(ratio(most, with.p99_ms)));
    }
    let kib = (after - before) * 1024.0 / as_f64(count);
    println!("\n{kib:.1} KiB for a subscriber");
    figure("subscribers/memory", kib, "KiB", None);
    subscribers.iter().for_each(JoinHandle::abort);
    drop(server);
}

/// The figures of a round, with subscribers.
struct Round {
    seconds: f64,
    cpu_s: f64,
    rss_mib: f64,
    events: f64,
    median_ms: f64,
    p99_ms: f64,
}

fn rounds_of(server: &mut Server, rounds: usize, received: &Arc<Received>, count: usize) -> Round {
    received.events.store(0, Ordering::Relaxed);
    received.delays.lock().clear();
    let figures: Vec<Figures> =
        (0..rounds).map(|_| tokio::task::block_in_place(|| server.order("run"))).collect();
    // The last events are on their way.
    let mut known = 0;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = received.events.load(Ordering::Relaxed);
        if now == known {
            break;
        }
        known = now;
    }
    let mut delays = std::mem::take(&mut *received.delays.lock());
    assert!(delays.len() >= count * rounds * PIECES, "events are missing: {}", delays.len());
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let events = known as f64 / as_f64(rounds);
    Round {
        seconds: middle_of(&figures, |figures| figures.seconds),
        cpu_s: middle_of(&figures, |figures| figures.cpu_s),
        rss_mib: server.order("rest").rss_mib,
        events,
        median_ms: median(&mut delays).as_secs_f64() * 1e3,
        p99_ms: percentile(&mut delays, 99).as_secs_f64() * 1e3,
    }
}

fn middle_of(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    greenroom_tests::measure::middle(&figures.iter().map(of).collect::<Vec<_>>())
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

//! Costs and savings of a host: short commands, and the time until a chat accepts input.
//!
//! The baseline is `greenroom --version`, which opens nothing: the minimum cost of a process. Whole processes
//! are measured, as a person or a script starts them.

mod pseudo_terminal;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use greenroom_tests::measure::{figure, percentile, ratio, scaled, title};

use self::pseudo_terminal::{AtTerminal, command};

/// The number of concurrent commands: the number of cores of the measuring machine.
const AT_ONCE: usize = 2;
/// The text that shows that a chat accepts input.
const PROMPT: &[u8] = b"/help the commands";

fn main() {
    let commands = scaled(400);
    title(
        &format!("{commands} short commands, {AT_ONCE} at a time; starts of a chat"),
        "greenroom --version",
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let answer = Function(|_: &SeenRequest, _: CallInfo| Answer::text("Fine."));
    let simulator = Simulator::new(SimulatorOptions::new(answer));
    let server = runtime.block_on(simulator.serve()).expect("a server");
    let url = server.base_url().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let model = ["--base-url", &url, "--model", "simulated", "--no-tools"];
    let with_model = |first: &[&'static str]| -> Vec<String> {
        first.iter().chain(&model).map(|argument| (*argument).to_owned()).collect()
    };

    println!("| command                     | a second | ratio |");
    println!("|-----------------------------|----------|-------|");
    let bare = rate(here, &["--version".to_owned()], commands);
    row("--version", bare, bare);
    let alone = rate_one(here, &with_model(&["run", "--no-host", "-p", "x"]), commands / 8);
    row("run, without a host", alone, bare);
    figure("host/run_alone", alone, "1/s", Some(ratio(alone, bare)));
    let host = Host::start(here);
    let listed = rate(here, &["sessions".to_owned(), "--json".to_owned()], commands);
    row("sessions --json, host", listed, bare);
    figure("host/sessions", listed, "1/s", Some(ratio(listed, bare)));
    let ran = rate(here, &with_model(&["run", "-p", "x"]), commands / 2);
    row("run, host", ran, bare);
    figure("host/run", ran, "1/s", Some(ratio(ran, bare)));
    drop(host);

    println!();
    println!("| until a chat can be typed in | median, ms |");
    println!("|------------------------------|------------|");
    let starts = scaled(20);
    let without = chat(here, &with_model(&["chat", "--no-host"]), starts, false);
    println!("| in its own process           | {without:>10.1} |");
    figure("host/chat_alone", without, "ms", None);
    let first = chat(here, &with_model(&["chat"]), starts, true);
    println!("| it starts the host           | {first:>10.1} |");
    figure("host/chat_starts_host", first, "ms", Some(ratio(first, without)));
    let host = Host::start(here);
    let with = chat(here, &with_model(&["chat"]), starts, false);
    println!("| a host is there              | {with:>10.1} |");
    figure("host/chat_with_host", with, "ms", Some(ratio(with, without)));
    drop(host);
}

fn row(name: &str, rate: f64, bare: f64) {
    println!("| {name:<27} | {rate:>8.1} | {:>5.2} |", ratio(rate, bare));
}

/// Returns how many of these commands succeed per second, several at a time.
fn rate(folder: &Path, arguments: &[String], commands: usize) -> f64 {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| (0..commands / AT_ONCE).for_each(|_| done(folder, arguments)));
        }
    });
    per_second(commands / AT_ONCE * AT_ONCE, began.elapsed())
}

/// As [`rate`], sequentially: each command has the store to itself.
fn rate_one(folder: &Path, arguments: &[String], commands: usize) -> f64 {
    let began = Instant::now();
    (0..commands).for_each(|_| done(folder, arguments));
    per_second(commands, began.elapsed())
}

#[expect(clippy::cast_precision_loss, reason = "there are few commands")]
fn per_second(commands: usize, elapsed: Duration) -> f64 {
    commands as f64 / elapsed.as_secs_f64()
}

fn done(folder: &Path, arguments: &[String]) {
    let output = command(folder).args(arguments).stdin(Stdio::null()).output().expect("the binary runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the median time, in milliseconds, until a chat accepts input. If each start includes that of a
/// host, the host ends in between.
fn chat(folder: &Path, arguments: &[String], starts: usize, starts_host: bool) -> f64 {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut times: Vec<Duration> = (0..starts)
        .map(|_| {
            let began = Instant::now();
            let mut chat = AtTerminal::start(folder, &arguments);
            let seen = chat.wait_for(PROMPT);
            chat.press(b"/quit\r");
            drop(chat);
            if starts_host {
                stop_host(folder);
            }
            seen.saturating_duration_since(began)
        })
        .collect();
    percentile(&mut times, 50).as_secs_f64() * 1e3
}

/// A host. Dropping it ends it.
struct Host<'a> {
    folder: &'a Path,
    process: Child,
}

impl<'a> Host<'a> {
    fn start(folder: &'a Path) -> Self {
        let mut host = command(folder);
        host.arg("host").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = host.spawn().expect("the binary runs");
        let began = Instant::now();
        while !folder.join("store/host.sock").exists() {
            assert!(began.elapsed() < Duration::from_secs(5), "no host answers");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { folder, process }
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        stop_host(self.folder);
        let _ = self.process.wait();
    }
}

fn stop_host(folder: &Path) {
    let stop = command(folder).args(["host", "--stop", "--force"]).output().expect("the binary runs");
    assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
}

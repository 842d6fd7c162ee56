//! Measurement: medians, the process's CPU time and memory, and the origin of the figures.

use std::time::{Duration, Instant};

/// Returns the median of some times.
pub fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 50)
}

/// Returns the time that `percent` of the runs did not exceed.
///
/// # Panics
/// Without any times.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    assert!(!times.is_empty(), "nothing was measured");
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Measures how long something takes: the median of several runs.
pub fn time_of<T>(runs: usize, mut run: impl FnMut() -> T) -> Duration {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let began = Instant::now();
        std::hint::black_box(run());
        times.push(began.elapsed());
    }
    median(&mut times)
}

/// Converts to microseconds, with a fraction.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns `a / b`.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { f64::NAN }
}

/// Returns the CPU time of this process so far, of all threads, in seconds; 0 if the system does not report
/// it.
pub fn cpu_s() -> f64 {
    // User and system time are the 14th and 15th field, in ticks of 10 ms; the name before them may hold spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Returns the resident memory of this process, in MiB; 0 if the system does not report it.
pub fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

/// Whether this is a real run: `cargo test --benches` only checks that a benchmark works.
pub fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether this is a short run, which checks that everything works and gives rough figures: `cargo xtask
/// bench --quick`.
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// Returns `full` in a real run, a tenth of it in a quick one, and less if nothing is measured.
pub fn scaled(full: usize) -> usize {
    match (is_measuring(), is_quick()) {
        (true, false) => full,
        (true, true) => (full / 10).max(2),
        (false, _) => (full / 50).max(2),
    }
}

/// Prints a figure for `cargo xtask bench`, which parses these lines: its name (`bench/row/what`), its value
/// and unit, and its ratio to the baseline of the same run, if there is one. Prints nothing if nothing is
/// measured.
pub fn figure(name: &str, value: f64, unit: &str, ratio: Option<f64>) {
    if is_measuring() {
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}"));
        println!("figure\t{name}\t{value:.4}\t{unit}\t{ratio}");
    }
}

/// Returns the median of some figures.
///
/// # Panics
/// Without any figures.
pub fn middle(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the value of the argument `name=value`.
pub fn argument(name: &str) -> Option<String> {
    std::env::args().find_map(|argument| Some(argument.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// Runs this program again with additional arguments, and returns the numbers in the last line of its output:
/// memory used by one variant is not inherited by the next.
///
/// # Panics
/// If the other process fails.
pub fn in_own_process(arguments: &[&str]) -> Vec<f64> {
    if is_measuring() {
        await_idle_machine();
    }
    let this = std::env::current_exe().expect("this program has a name");
    let output = std::process::Command::new(this)
        .args(std::env::args().skip(1))
        .args(arguments)
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("this program runs");
    assert!(output.status.success(), "{arguments:?} failed");
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    last.split_whitespace().map(|figure| figure.parse().expect("a number")).collect()
}

/// Waits until the machine was idle for half a second, for at most ten seconds: what an earlier process left to the system,
/// such as files to write back and memory to free, is not counted for the next one. Does nothing if the system does not
/// report how busy it is.
fn await_idle_machine() {
    for _ in 0..20 {
        let Some(before) = busy_ticks() else { return };
        std::thread::sleep(Duration::from_millis(500));
        if busy_ticks().is_none_or(|now| now - before <= IDLE_TICKS_MAX) {
            return;
        }
    }
}

/// A machine is idle if all its processors together have worked so long within half a second, in hundredths of a second.
const IDLE_TICKS_MAX: u64 = 5;

/// Returns how long all processors have worked, in hundredths of a second: everything but idling and waiting for disks.
fn busy_ticks() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).map(|ticks| ticks.parse().unwrap_or(0)).collect();
    let (idle, waiting) = (3, 4);
    Some((0..ticks.len().min(8)).filter(|at| ![idle, waiting].contains(at)).map(|at| ticks[at]).sum())
}

/// Returns the number of open descriptors of this process; 0 if the system does not report it.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Prints what is measured, on which machine, against what.
pub fn title(what: &str, baseline: &str) {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{what}\nbaseline: {baseline}; {cpus} CPUs{}\n",
        match (is_measuring(), is_quick()) {
            (true, false) => "",
            (true, true) => " (a quick run)",
            (false, _) => " (not measuring)",
        }
    );
}

//! Measuring: medians, the process's CPU time and memory, and where the figures came from.

use std::time::{Duration, Instant};

/// The middle one of some times; half of the runs took longer.
pub fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 50)
}

/// The time that `percent` of the runs did not exceed.
///
/// # Panics
/// Without any times.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    assert!(!times.is_empty(), "nothing was measured");
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// How long something takes: the median of several runs.
pub fn time_of<T>(runs: usize, mut run: impl FnMut() -> T) -> Duration {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let began = Instant::now();
        std::hint::black_box(run());
        times.push(began.elapsed());
    }
    median(&mut times)
}

/// Microseconds, with a fraction.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// `a / b`.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { f64::NAN }
}

/// The CPU time of this process so far, all threads, in seconds; 0 where the system does not say.
pub fn cpu_s() -> f64 {
    // User and system time are the 14th and 15th field, in ticks of 10 ms; the name before them may hold spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// The resident memory of this process, in MiB; 0 where the system does not say.
pub fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

/// Whether this is a real run: `cargo test --benches` only wants to see that a benchmark works.
pub fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// `full` in a real run, a fraction of it otherwise.
pub fn scaled(full: usize) -> usize {
    if is_measuring() { full } else { (full / 50).max(2) }
}

/// Says what is measured, on what, against what.
pub fn title(what: &str, baseline: &str) {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{what}\nbaseline: {baseline}; {cpus} CPUs{}\n",
        if is_measuring() { "" } else { " (not measuring)" }
    );
}

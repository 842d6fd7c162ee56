//! Finds the processes of a command in `/proc` and ends them.
//!
//! Invariants: a process is signalled through a descriptor that was verified after it was opened, so that a
//! reused process number never hits another process.

#[cfg(target_os = "linux")]
pub(super) use linux::{count_threads, end_all, end_descendants, started, threads_of_system};

/// Without `/proc`, only the process group can be ended.
#[cfg(not(target_os = "linux"))]
pub(super) fn end_all(root: i32, _since: u64, _marker: &str, _root_is_guard: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    if let Some(group) = Pid::from_raw(root) {
        // It fails when all have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn started(_pid: i32) -> u64 {
    0
}

#[cfg(not(target_os = "linux"))]
pub(super) fn threads_of_system() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn count_threads(_root: i32, _since: u64) -> u64 {
    0
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashSet;
    use std::time::{Duration, Instant};

    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    /// After this time, remaining processes are given up.
    const LIMIT: Duration = Duration::from_secs(2);
    /// How many consecutive scans must find none: a process may appear at a position in the table that the
    /// scan has already passed.
    const CLEAR_SCANS: usize = 2;
    /// How many consecutive scans may be inconclusive if they find none otherwise.
    const UNCLEAR_SCANS_MAX: usize = 25;

    /// One entry of the process table.
    #[derive(Debug, Clone, Copy)]
    struct Process {
        pid: i32,
        parent: i32,
        session: i32,
        group: i32,
        threads: u64,
        /// When it started, in clock ticks since system start.
        started: u64,
    }

    /// The result of one scan of the process table.
    struct Scan {
        found: Vec<Process>,
        /// A process is just executing another program: its environment cannot be read now.
        unclear: bool,
    }

    /// Returns when a process started, in clock ticks since system start; 0 if it has ended.
    pub(in super::super) fn started(pid: i32) -> u64 {
        read(pid).map(|process| process.started).unwrap_or_default()
    }

    /// Ends `root`, its descendants, its session and all processes that carry `marker`, repeatedly until none
    /// is left. None of them started before `since`. With `root_is_guard` the root waits for the first
    /// process of a namespace and ends by itself after it: it is spared as long as there are others, so that
    /// its end means the end of all.
    pub(in super::super) fn end_all(root: i32, since: u64, marker: &str, root_is_guard: bool) {
        end(root, since, Some(marker), root_is_guard);
    }

    /// Returns how many threads there are, as far as the system tells.
    pub(in super::super) fn threads_of_system() -> Option<u64> {
        let load = std::fs::read_to_string("/proc/loadavg").ok()?;
        load.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
    }

    /// Counts the threads of `root`, its descendants and its session.
    pub(in super::super) fn count_threads(root: i32, since: u64) -> u64 {
        scan(root, since, None).found.iter().map(|process| process.threads).sum()
    }

    /// Ends all descendants of this process, which is their subreaper, repeatedly until none is left.
    pub(in super::super) fn end_descendants() {
        let own = i32::try_from(std::process::id()).expect("process ids fit");
        end(own, started(own), None, false);
    }

    fn end(root: i32, since: u64, marker: Option<&str>, root_is_guard: bool) {
        let deadline = Instant::now() + LIMIT;
        let (mut clear, mut unclear) = (0, 0);
        let mut pause = Duration::from_micros(200);
        loop {
            let Scan { found, unclear: is_unclear } = scan(root, since, marker);
            if found.is_empty() {
                if is_unclear && unclear < UNCLEAR_SCANS_MAX {
                    unclear += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                clear += 1;
                if clear == CLEAR_SCANS {
                    return;
                }
                continue;
            }
            (clear, unclear) = (0, 0);
            let alone = found.iter().all(|process| process.pid == root);
            if !root_is_guard {
                // All are stopped first, so that none can start another or react to the death of its child.
                for process in &found {
                    signal(process, Signal::STOP);
                }
            }
            for process in &found {
                if process.pid != root || !root_is_guard || alone {
                    signal(process, Signal::KILL);
                }
            }
            if Instant::now() > deadline {
                let left: Vec<i32> = found.iter().map(|process| process.pid).collect();
                tracing::warn!(?left, "processes of a command could not be ended");
                return;
            }
            // Wait only as long as a killed process needs to exit.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn signal(process: &Process, signal: Signal) {
        let Some(pid) = Pid::from_raw(process.pid) else { return };
        // Errors mean that it is gone or that we may not end it: the next scan tells.
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => {
                if read(process.pid).is_some_and(|now| now.started == process.started) {
                    let _ = pidfd_send_signal(descriptor, signal);
                }
            }
            Err(Errno::NOSYS | Errno::PERM) => {
                let _ = kill_process(pid, signal);
            }
            Err(_gone) => {}
        }
    }

    fn scan(root: i32, since: u64, marker: Option<&str>) -> Scan {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let mut all: Vec<Process> = pids().filter(|pid| *pid != own && *pid > 1).filter_map(read).collect();
        all.retain(|process| process.started >= since);
        let mut unclear = false;
        // The root is this process itself, or among the others.
        let mut ours = HashSet::from([root]);
        for process in &all {
            let related = process.session == root || process.group == root;
            if related || marker.is_some_and(|marker| has_marker(process.pid, marker, &mut unclear)) {
                ours.insert(process.pid);
            }
        }
        // A child may come before its parent in the table.
        loop {
            let before = ours.len();
            for process in &all {
                if ours.contains(&process.parent) {
                    ours.insert(process.pid);
                }
            }
            if ours.len() == before {
                break;
            }
        }
        all.retain(|process| ours.contains(&process.pid));
        Scan { found: all, unclear }
    }

    fn pids() -> impl Iterator<Item = i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    fn has_marker(pid: i32, marker: &str, unclear: &mut bool) -> bool {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_else(|_not_ours| vec![0]);
        *unclear |= environment.is_empty();
        environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
    }

    /// Returns `None` if the process has ended, even if its parent has not reaped it yet.
    fn read(pid: i32) -> Option<Process> {
        parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: i32, stat: &str) -> Option<Process> {
        // The program's name, in parentheses, may contain anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
        Some(Process {
            pid,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            threads: fields.get(17)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    #[cfg(test)]
    mod tests {
        //! Process table entries with unusual program names.

        use super::parse;

        #[test]
        fn lines_of_the_process_table() {
            let rest = "1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987 1000";
            for name in ["sh", "a b) R (c", ") Z 9 9 9"] {
                let process = parse(7, &format!("7 ({name}) S {rest}")).expect("a process");
                let found = (process.pid, process.parent, process.group, process.session, process.started);
                assert_eq!((found, process.threads), ((7, 1, 2, 3, 987), 1), "{name}");
                assert!(parse(7, &format!("7 ({name}) Z {rest}")).is_none(), "a zombie is not a process");
            }
            assert!(parse(7, "").is_none());
        }
    }
}

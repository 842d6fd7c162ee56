//! Finding the processes of a command in `/proc`, and ending them.
//!
//! Always true: a process is signalled through a descriptor that was checked after it was opened, so that a process
//! number that was given anew meanwhile hits nobody else.

#[cfg(target_os = "linux")]
pub(super) use linux::end_all;

/// Without `/proc` the process group has to do.
#[cfg(not(target_os = "linux"))]
pub(super) fn end_all(root: i32, _marker: &str, _root_is_guard: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    if let Some(group) = Pid::from_raw(root) {
        // It fails when all have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashSet;
    use std::time::{Duration, Instant};

    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    /// After this time what is left cannot be ended.
    const LIMIT: Duration = Duration::from_secs(2);

    /// One line of the process table.
    #[derive(Debug, Clone, Copy)]
    struct Process {
        pid: i32,
        parent: i32,
        session: i32,
        group: i32,
        /// When it started, in ticks since the system did.
        started: u64,
    }

    /// Ends `root`, its descendants, its session and all that carry `marker`, again and again until none is left.
    /// With `root_is_guard` the root waits for the first process of a namespace and ends by itself after it: as
    /// long as there are others it is spared, so that its end means the end of all.
    pub(in super::super) fn end_all(root: i32, marker: &str, root_is_guard: bool) {
        let deadline = Instant::now() + LIMIT;
        let mut pause = Duration::from_micros(200);
        loop {
            let found = processes_of(root, marker);
            if found.is_empty() {
                return;
            }
            let alone = found.iter().all(|process| process.pid == root);
            for process in &found {
                if process.pid != root || !root_is_guard || alone {
                    kill(process);
                }
            }
            if Instant::now() > deadline {
                let left: Vec<i32> = found.iter().map(|process| process.pid).collect();
                tracing::warn!(?left, "processes of a command could not be ended");
                return;
            }
            // Only as long as a killed process needs to go.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn kill(process: &Process) {
        let Some(pid) = Pid::from_raw(process.pid) else { return };
        // Errors mean that it is gone, or not ours to end: the next look tells.
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => {
                if read(process.pid).is_some_and(|now| now.started == process.started) {
                    let _ = pidfd_send_signal(descriptor, Signal::KILL);
                }
            }
            Err(Errno::NOSYS | Errno::PERM) => {
                let _ = kill_process(pid, Signal::KILL);
            }
            Err(_gone) => {}
        }
    }

    fn processes_of(root: i32, marker: &str) -> Vec<Process> {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let all: Vec<Process> = pids().filter(|pid| *pid != own && *pid > 1).filter_map(read).collect();
        let mut ours: HashSet<i32> = all
            .iter()
            .filter(|process| {
                process.pid == root
                    || process.session == root
                    || process.group == root
                    || has_marker(process.pid, marker)
            })
            .map(|process| process.pid)
            .collect();
        // A child may come before its parent in the table.
        loop {
            let before = ours.len();
            ours.extend(
                all.iter()
                    .filter(|process| ours.contains(&process.parent))
                    .map(|p| p.pid)
                    .collect::<Vec<_>>(),
            );
            if ours.len() == before {
                return all.into_iter().filter(|process| ours.contains(&process.pid)).collect();
            }
        }
    }

    fn pids() -> impl Iterator<Item = i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    fn has_marker(pid: i32, marker: &str) -> bool {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
    }

    /// `None` if it has ended, even if its parent has not taken notice yet.
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
            started: fields.get(19)?.parse().ok()?,
        })
    }

    #[cfg(test)]
    mod tests {
        //! The process table's lines, whatever a program is called.

        use super::parse;

        #[test]
        fn lines_of_the_process_table() {
            let rest = "1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987 1000";
            for name in ["sh", "a b) R (c", ") Z 9 9 9"] {
                let process = parse(7, &format!("7 ({name}) S {rest}")).expect("a process");
                let found = (process.pid, process.parent, process.group, process.session, process.started);
                assert_eq!(found, (7, 1, 2, 3, 987), "{name}");
                assert!(parse(7, &format!("7 ({name}) Z {rest}")).is_none(), "a zombie is no process");
            }
            assert!(parse(7, "").is_none());
        }
    }
}

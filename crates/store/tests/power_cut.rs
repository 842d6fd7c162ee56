//! A real power cut: an ext4 image is shut down under a running writer, and mounted again.
//!
//! This needs root, loop devices, `mkfs.ext4` and `python3` (for one ioctl). If one of them is missing, the
//! test reports it and passes. `GREENROOM_POWER_CUTS` is the number of power cuts. Without it the test
//! reports that and passes: a person runs it before a release.
//!
//! Invariants: every entry that was acknowledged before a cut is there after it, as it was written.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the writer reports, and a skip says why")]
#![expect(clippy::disallowed_methods, reason = "a test is told how often to run")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, EntryKind, Head, Message};
use greenroom_store::{Batch, Store, StoreOptions};

/// The sizes of the entries' texts in bytes, by turns.
const SIZES: [usize; 3] = [2 << 10, 30 << 10, 1 << 20];
/// The variable that makes this binary the writer, and names its directory.
const WRITER: &str = "GREENROOM_POWER_CUT_WRITER";

/// Shuts the file system down. The flags 2 mean that nothing is written back, not even the file system's own log.
const SHUTDOWN: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), (2 << 30) | (4 << 16) | (ord('X') << 8) | 125, struct.pack('I', 2))";

fn entry(number: u64) -> Entry {
    let size = SIZES[usize::try_from(number).unwrap() % SIZES.len()];
    let text = format!("{number} {}", "0123456789abcdef".repeat(size / 16));
    Entry {
        id: EntryId(number),
        parent: number.checked_sub(1).map(EntryId),
        at_ms: number,
        tokens: 1,
        reasoning_tokens: 0,
        origin: None,
        kind: EntryKind::message(Message::user(text)),
    }
}

/// The writing process: it appends until its disk fails, and prints each acknowledgement.
#[test]
#[ignore = "the power cut's writer, started by the test beside it"]
fn writer() {
    let Ok(dir) = std::env::var(WRITER) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (store, _) = Store::open(&StoreOptions::new(dir)).unwrap();
        let mut number = store.head("s").unwrap().map_or(0, |head| head.entries);
        loop {
            let head = Head { entries: number + 1, ..Head::default() };
            let batch = Batch { entries: vec![Arc::new(entry(number))], head: Arc::new(head), key: None };
            // The power was cut.
            if store.append("s", batch).await.is_err() {
                return;
            }
            println!("acknowledged {number}");
            std::io::stdout().flush().unwrap();
            number += 1;
        }
    });
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn mount(image: &str, at: &str) -> Result<(), String> {
    run("mount", &["-o", "loop", image, at])
}

fn prepare(image: &str, at: &str) -> Result<(), String> {
    run("truncate", &["-s", "512M", image])?;
    run("mkfs.ext4", &["-q", "-F", image])?;
    std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
    mount(image, at)?;
    run("python3", &["-c", SHUTDOWN, at])?;
    run("umount", &[at])
}

#[test]
fn nothing_acknowledged_is_lost_to_a_power_cut() {
    let cuts = std::env::var("GREENROOM_POWER_CUTS").ok().and_then(|text| text.parse::<u64>().ok());
    let Some(cuts) = cuts else {
        eprintln!("skipped: GREENROOM_POWER_CUTS says how many times the power is to be cut");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (mut image, at) = (place("image"), place("mounted"));
    if let Err(reason) = prepare(&image, &at) {
        eprintln!("skipped: this machine cannot cut the power under a file system: {reason}");
        return;
    }
    let _unmounted = Unmount(at.clone());
    let mut known = 0;
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    for cut in 0..cuts {
        if cut % 10 == 0 {
            // Every tenth cut gets a new disk.
            image = place(&format!("disk-{cut}"));
            run("truncate", &["-s", "512M", &image]).unwrap();
            run("mkfs.ext4", &["-q", "-F", &image]).unwrap();
            known = 0;
        }
        mount(&image, &at).unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let more = 1 + (seed >> 33) % 40;
        let acknowledged = write_until(&at, more, known);
        run("umount", &["-l", &at]).unwrap();
        // The data that reached the disk is copied to another file. If another process still holds the old
        // mount, for instance in its mount namespace, mounting the old file again would return the dead file
        // system.
        let survived = place(&format!("image-{cut}"));
        run("cp", &["--sparse=always", &image, &survived]).unwrap();
        std::fs::remove_file(&image).unwrap();
        image = survived;
        mount(&image, &at).unwrap();
        known = check(&at, acknowledged, cut);
        run("umount", &[&at]).unwrap();
    }
    eprintln!("{cuts} power cuts, nothing acknowledged was lost");
}

/// Unmounts the image when the test ends, so that a failing test leaves nothing mounted.
struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        // This fails if the test passed, because it has unmounted the image already.
        let _ = run("umount", &["-l", &self.0]);
    }
}

/// Lets the writer run until `more` appends were acknowledged, and cuts the power. Returns the number of acknowledged
/// entries.
fn write_until(at: &str, more: u64, known: u64) -> u64 {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--ignored", "--nocapture"])
        .env(WRITER, Path::new(at).join("store"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut acknowledged = known;
    let number = |line: &str| line.strip_prefix("acknowledged ").and_then(|text| text.parse::<u64>().ok());
    let mut seen = 0;
    while seen < more {
        let Some(Ok(line)) = lines.next() else { break };
        if let Some(number) = number(&line) {
            acknowledged = number + 1;
            seen += 1;
        }
    }
    run("python3", &["-c", SHUTDOWN, at]).unwrap();
    // Acknowledgements that are read from here on do not count: on some kernels, an `fdatasync` that is interrupted by
    // the cut succeeds.
    let late = lines.map_while(Result::ok).filter_map(|line| number(&line)).last().map_or(0, |last| last + 1);
    eprintln!("acknowledged before the cut {acknowledged}, during it {}", late.saturating_sub(acknowledged));
    let _ = writer.kill();
    writer.wait().unwrap();
    acknowledged
}

/// Opens the store after the cut, and checks that every acknowledged entry is there as it was written. Returns how many
/// entries there are.
fn check(at: &str, acknowledged: u64, cut: u64) -> u64 {
    let (store, notices) = Store::open(&StoreOptions::new(Path::new(at).join("store"))).unwrap();
    let Some(head) = store.head("s").unwrap() else {
        assert_eq!(acknowledged, 0, "cut {cut}: the session is gone; {notices:?}");
        return 0;
    };
    assert!(
        head.entries >= acknowledged,
        "cut {cut}: {} of {acknowledged} entries; {notices:?}",
        head.entries
    );
    assert_eq!(head.lost_from, None, "cut {cut}: {notices:?}");
    let entries = store.load("s", EntryId(0)).unwrap();
    assert_eq!(entries.len() as u64, head.entries, "cut {cut}");
    for (number, found) in entries.iter().enumerate() {
        assert_eq!(*found, entry(number as u64), "cut {cut}: entry {number}");
    }
    head.entries
}

//! Point 14: the power is cut under the server. Its data are on an ext4 image that is shut down under it, and mounted again.
//!
//! This needs root, loop devices, `mkfs.ext4` and `python3` (for one ioctl), and `GREENROOM_POWER_CUTS`, the number of cuts.
//! If one of them is missing, the test says so and passes: a person runs it before a release.
//!
//! Invariants: every entry that was acknowledged before a cut is there after it, once, in its place.
#![expect(clippy::print_stderr, reason = "a skip says why")]
#![expect(clippy::disallowed_methods, reason = "a test is told how often to run")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_conformance::kit;
use greenroom_kernel::EntryId;

use super::*;

/// The sessions that are written concurrently.
const SESSIONS: usize = 8;

/// Shuts the file system down. The flags 2 mean that nothing is written back, not even the file system's own log.
const SHUTDOWN: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), (2 << 30) | (4 << 16) | (ord('X') << 8) | 125, struct.pack('I', 2))";

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A disk in a file, mounted.
struct Disk {
    folder: tempfile::TempDir,
    image: String,
    at: String,
}

impl Disk {
    fn new() -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        // The server's user must reach it.
        run("chmod", &["755", &folder.path().to_string_lossy()])?;
        let place = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let (image, at) = (place("image-0"), place("mounted"));
        run("truncate", &["-s", "2G", &image])?;
        run("mkfs.ext4", &["-q", "-F", &image])?;
        std::fs::create_dir(&at).map_err(|error| error.to_string())?;
        run("mount", &["-o", "loop", &image, &at])?;
        Ok(Self { folder, image, at })
    }

    /// Cuts the power: what the disk does not have yet is gone.
    fn cut(&self) {
        run("python3", &["-c", SHUTDOWN, &self.at]).expect("the file system can be shut down");
    }

    /// Mounts what the disk has. A process that still holds the old mount would keep the dead file system alive, so the data
    /// are copied to another file.
    fn come_back(&mut self, cut: u64) {
        run("umount", &["-l", &self.at]).expect("it was mounted");
        let survived = self.folder.path().join(format!("image-{}", cut + 1)).to_string_lossy().into_owned();
        run("cp", &["--sparse=always", &self.image, &survived]).expect("there is space");
        std::fs::remove_file(&self.image).expect("it was there");
        self.image = survived;
        run("mount", &["-o", "loop", &self.image, &self.at]).expect("the file system can be repaired");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", &self.at]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_a_power_cut() {
    let cuts = std::env::var("GREENROOM_POWER_CUTS").ok().and_then(|text| text.parse::<u64>().ok());
    let Some(cuts) = cuts else {
        eprintln!("skipped: GREENROOM_POWER_CUTS says how many times the power is to be cut");
        return;
    };
    let mut disk = match Disk::new() {
        Ok(disk) => disk,
        Err(reason) => {
            eprintln!("skipped: this machine cannot cut the power under a file system: {reason}");
            return;
        }
    };
    let Some(server) = Server::start_on(Some(Path::new(&disk.at))) else { return };
    // What `initdb` wrote is not what is tested.
    run("sync", &[]).expect("there is `sync`");
    let mut known = [0_u64; SESSIONS];
    let mut all = 0;
    for cut in 0..cuts {
        let engine = open(&server).await;
        let acknowledged: Vec<AtomicU64> = known.iter().map(|entries| AtomicU64::new(*entries)).collect();
        let acknowledged: Arc<[AtomicU64]> = acknowledged.into();
        let mut writers = tokio::task::JoinSet::new();
        for session in 0..SESSIONS {
            let (engine, acknowledged) = (Arc::clone(&engine), Arc::clone(&acknowledged));
            writers.spawn(async move {
                loop {
                    let next = acknowledged[session].load(Ordering::SeqCst);
                    let batch = kit::batch(next, 1, "written", Some(&format!("{session}.{next}")));
                    if engine.append(&format!("s{session}"), batch).await.is_err() {
                        return;
                    }
                    acknowledged[session].store(next + 1, Ordering::SeqCst);
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(200 + 97 * (cut % 9))).await;
        let process = server.process();
        disk.cut();
        Server::kill(process);
        drop(engine);
        while writers.join_next().await.is_some() {}
        disk.come_back(cut);
        server.start_after_cut();
        let engine = open(&server).await;
        for (session, entries) in acknowledged.iter().enumerate() {
            let (id, entries) = (format!("s{session}"), entries.load(Ordering::SeqCst));
            let found = engine.load(&id, EntryId(0)).await.expect("the session is whole");
            assert!(
                found.len() as u64 >= entries,
                "cut {cut}: {id} has {} of {entries} entries",
                found.len()
            );
            all += entries - known[session];
            known[session] = found.len() as u64;
        }
        engine.close().await.expect("it was open");
    }
    assert!(all >= cuts * 20, "only {all} entries were acknowledged in {cuts} lives");
    eprintln!("{cuts} power cuts: none of {all} acknowledged entries was lost");
}

async fn open(server: &Server) -> Arc<dyn Engine> {
    let mut options = PostgresOptions::new(server.url(), "a");
    (options.lease, options.patience) = (Duration::from_secs(1), Duration::from_secs(2));
    // The lease of the life before may still be valid.
    for _ in 0..50 {
        match Postgres::connect(&options).await {
            Ok(engine) => return Arc::new(engine),
            Err(StoreError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the server does not come back");
}

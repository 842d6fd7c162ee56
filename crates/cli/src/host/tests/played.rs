//! A host that a test plays: it has the store's lock, and answers each request as the test decides.
//!
//! Invariants: a request that it does not know is answered with its own method.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use greenroom_server::operations::PROTOCOL;
use greenroom_server::{Problem, ProblemKind};
use greenroom_terminal::screen::ColorChoice;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::args::Global;
use crate::host::{peer, socket};

/// The process that it says it is.
pub(in crate::host) const PID: u32 = 77;

/// What it does with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::host) enum Does {
    /// It answers like a host: it greets, responds, and stops.
    Answers,
    /// It responds as this process.
    IsProcess(u32),
    /// It stops: the connection ends after the first time, and its lock is free after the second one.
    Stops(Duration, Duration),
    Refuses(ProblemKind),
    /// It ends the connection.
    Leaves,
    /// It ends the connection, and does not listen any more.
    Dies,
    /// It never answers.
    Hangs,
}

/// Decides about a request: its method, and how often it was made before.
type Decides = dyn Fn(&str, usize) -> Does + Send + Sync;

/// The state of a played host. Clones are the same.
#[derive(Clone)]
pub(in crate::host) struct Played(Arc<Shared>);

struct Shared {
    dir: tempfile::TempDir,
    lock: Mutex<Option<File>>,
    asked: Mutex<Vec<String>>,
    connections: Mutex<usize>,
    dies: Notify,
    does: Box<Decides>,
}

/// Whether processes can identify each other here, so that a host can be played.
pub(in crate::host) fn is_possible() -> bool {
    peer::check_possible().is_ok()
}

impl Played {
    /// Begins to listen. `does` gets the method, and how often it was asked before.
    pub(in crate::host) fn begin(does: impl Fn(&str, usize) -> Does + Send + Sync + 'static) -> Self {
        let dir = tempfile::Builder::new().prefix("h").tempdir_in("/tmp").unwrap();
        let path = dir.path().join("lock");
        // Nobody ends the process that the file names: there is none.
        std::fs::write(&path, i32::MAX.to_string()).unwrap();
        let lock = File::open(path).unwrap();
        lock.lock().unwrap();
        let (listener, place) = socket::listen(dir.path()).unwrap();
        let this = Self(Arc::new(Shared {
            dir,
            lock: Mutex::new(Some(lock)),
            asked: Mutex::default(),
            connections: Mutex::default(),
            dies: Notify::new(),
            does: Box::new(does),
        }));
        let played = this.clone();
        tokio::spawn(async move {
            let _place = place;
            loop {
                tokio::select! {
                    biased;
                    () = played.0.dies.notified() => return,
                    accepted = listener.accept() => tokio::spawn(played.clone().serve(accepted.unwrap().0)),
                };
            }
        });
        this
    }

    /// The store's directory.
    pub(in crate::host) fn dir(&self) -> &Path {
        self.0.dir.path()
    }

    /// The flags of a command on this store.
    pub(in crate::host) fn global(&self) -> Global {
        Global {
            trust_folder: false,
            data_dir: Some(self.dir().to_owned()),
            config: None,
            settings: Vec::new(),
            no_host: false,
            verbose: 0,
            color: ColorChoice::Never,
        }
    }

    /// The methods that it was asked for.
    pub(in crate::host) fn asked(&self) -> Vec<String> {
        self.0.asked.lock().clone()
    }

    /// How many connections are open.
    pub(in crate::host) fn connections(&self) -> usize {
        *self.0.connections.lock()
    }

    async fn serve(self, stream: UnixStream) {
        *self.0.connections.lock() += 1;
        self.answer(stream).await;
        *self.0.connections.lock() -= 1;
    }

    async fn answer(&self, stream: UnixStream) {
        let (input, mut output) = stream.into_split();
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let request: Value = serde_json::from_str(&line).unwrap();
            let method = request["method"].as_str().unwrap().to_owned();
            let before = self.asked().iter().filter(|asked| **asked == method).count();
            self.0.asked.lock().push(method.clone());
            let pid = |pid: u32| json!({ "result": { "pid": pid } });
            let does = (self.0.does)(&method, before);
            let mut answer = match does {
                Does::Answers if method == "client/hello" => {
                    json!({ "result": { "protocol": PROTOCOL, "version": "0", "pid": PID, "warnings": ["careful"] } })
                }
                Does::Answers if ["host/ping", "host/stop"].contains(&method.as_str()) => pid(PID),
                Does::Answers => json!({ "result": { "method": method } }),
                Does::IsProcess(process) => pid(process),
                Does::Stops(..) => pid(PID),
                Does::Refuses(kind) => {
                    let data = serde_json::to_value(Problem::new(kind, "no")).unwrap();
                    json!({ "error": { "code": -32_000, "message": "no", "data": data } })
                }
                Does::Leaves => return,
                Does::Dies => return self.0.dies.notify_one(),
                Does::Hangs => continue,
            };
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = request["id"].clone();
            output.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            if let Does::Stops(connected, locked) = does {
                self.0.dies.notify_one();
                sleep(connected).await;
                drop((lines, output));
                sleep(locked).await;
                drop(self.0.lock.lock().take());
                return;
            }
        }
    }
}

//! Three `serve` processes that share a PostgreSQL database, and everything that can happen to them: killed, frozen past
//! their lease, restarted cleanly; the database killed, its connections cut.
//!
//! The checks at the end: each prompt is recorded once and answered once, each effect of a tool happened at most once,
//! and no entry was written by an owner after the next one's first.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greenroom_conformance::server::Server;
use greenroom_kernel::Message;
use greenroom_kernel::random::Random;
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Model, Place, Running};

mod starts;

/// How long a node that is not heard of keeps its sessions.
const LEASE: Duration = Duration::from_secs(2);
/// How long a client tries to get one prompt answered.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a node may take to end in order: runs get time, and the machine is busy.
const END_WITHIN: Duration = Duration::from_secs(120);
const NODES: usize = 3;

/// A node: its folder, its address, and its process while it runs.
struct Node {
    place: Place,
    name: String,
    listen: String,
    running: Option<Running>,
}

fn write_secret(path: &Path, secret: &str) {
    std::fs::write(path, secret).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// What clients need to know of a node.
#[derive(Clone)]
struct Api {
    address: String,
    token: String,
}

impl Api {
    /// The status and the body of an answer; `None` if the connection broke.
    fn ask(&self, request: &str, key: Option<&str>, body: &Value) -> Option<(u16, Value)> {
        let address = self.address.parse().ok()?;
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
        write!(
            stream,
            "{request} HTTP/1.0\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: \
             application/json\r\n{key}content-length: {}\r\n\r\n{body}",
            self.address,
            self.token,
            body.len()
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }
}

struct Cluster {
    server: Server,
    nodes: Vec<Node>,
    model: Model,
    secret: PathBuf,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// `None` without a PostgreSQL server on this machine.
    fn start() -> Option<Self> {
        let server = Server::start()?;
        let folder = tempfile::tempdir().unwrap();
        let effects = folder.path().join("effects");
        let script = move |request: &SeenRequest, _: CallInfo| answer(request, &effects);
        let secret = folder.path().join("secret");
        write_secret(&secret, "cluster-cluster-cluster-cluster-\n");
        let model = Model::new(Function(script), |_| {});
        let nodes = (0..NODES).map(|number| {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let name = format!("node-{number}");
            Node { place: Place::new(), name, listen: free.to_string(), running: None }
        });
        let mut cluster = Self { server, nodes: nodes.collect(), model, secret, folder };
        (0..NODES).for_each(|at| cluster.start_node(at));
        Some(cluster)
    }

    fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn url_of(&self, database: &str) -> String {
        let socket = self.server.socket();
        let folder = socket.parent().unwrap().display().to_string();
        format!("postgresql:///{database}?user=postgres&host={folder}&sslmode=disable")
    }

    fn start_node(&mut self, at: usize) {
        let mut running = self.node(at, &[]);
        running.wait_for_word("of a cluster");
        running.ignore_errors();
        self.nodes[at].running = Some(running);
    }

    /// Starts the process of a node. A flag given here replaces the node's own.
    fn node(&self, at: usize, given: &[(&str, &str)]) -> Running {
        let (url, secret, base_url) = (self.url(), self.secret.display().to_string(), self.model.url());
        let (node, lease) = (&self.nodes[at], LEASE.as_secs().to_string());
        let own = [
            ("--listen", &*node.listen),
            ("--store", &url),
            ("--node", &node.name),
            ("--lease", &lease),
            ("--cluster-secret-file", &secret),
            ("--base-url", &base_url),
            ("--model", "simulated"),
            ("--window", "60000"),
            ("--sandbox", "off"),
        ];
        let own = own.iter().filter(|(flag, _)| given.iter().all(|(other, _)| other != flag));
        let flags = own.chain(given).flat_map(|(flag, value)| [*flag, *value]);
        let arguments: Vec<&str> = ["serve", "--allow-shell"].into_iter().chain(flags).collect();
        node.place.start_alone(&arguments)
    }

    fn api(&self, at: usize) -> Api {
        let node = &self.nodes[at];
        let token = std::fs::read_to_string(node.place.store().join("token")).unwrap().trim().to_owned();
        Api { address: node.listen.clone(), token }
    }

    /// Lets something happen to a node or to the database. Returns its name.
    fn fault(&mut self, kind: u64, at: usize) -> &'static str {
        let running = |cluster: &mut Self| cluster.nodes[at].running.take().unwrap();
        match kind {
            0 => {
                let process = running(self);
                process.signal(Signal::KILL);
                drop(process.end());
                self.start_node(at);
                "killed"
            }
            1 => {
                let process = running(self);
                process.signal(Signal::STOP);
                std::thread::park_timeout(LEASE * 2);
                process.signal(Signal::CONT);
                self.nodes[at].running = Some(process);
                "frozen past its lease"
            }
            2 => {
                let process = running(self);
                process.signal(Signal::TERM);
                drop(process.end_within(END_WITHIN));
                self.start_node(at);
                "restarted cleanly"
            }
            3 => {
                self.server.stop();
                self.server.start_again();
                "the database killed"
            }
            _ => {
                self.server.terminate_all();
                "connections cut"
            }
        }
    }
}

/// Calls a tool with an effect for each prompt, and answers once there is a result.
fn answer(request: &SeenRequest, effects: &Path) -> Answer {
    let key = request.last_user_text();
    let since = request.messages.iter().rev().take_while(|message| !matches!(***message, Message::User(_)));
    if since.into_iter().any(|message| matches!(**message, Message::ToolResult(_))) {
        return Answer::text(format!("done {key}"));
    }
    let command = format!("echo {key} >> {}", effects.display());
    Answer::call("bash", &json!({ "command": command }))
}

/// What clients have seen.
#[derive(Default)]
struct Seen {
    answered: AtomicU64,
    refused: AtomicU64,
    /// The longest time that a prompt took, in milliseconds, from the first refusal to the answer.
    gap_ms: AtomicU64,
    problems: Mutex<Vec<String>>,
}

impl Seen {
    /// Waits until so many prompts are answered, or there is a problem. One is that it takes too long.
    fn wait_for(&self, answered: u64) {
        let began = Instant::now();
        while self.answered.load(Ordering::Relaxed) < answered && self.problems.lock().unwrap().is_empty() {
            if began.elapsed() > PATIENCE {
                self.problems.lock().unwrap().push(format!("fewer than {answered} prompts are answered"));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Prompts one session through random nodes until it is told to stop. Returns how many prompts were answered.
fn client(id: &str, apis: &[Api], stop: &AtomicBool, seen: &Seen, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let text = format!("{id}.{number}");
        let began = Instant::now();
        let mut refused_at = None;
        loop {
            let api = &apis[usize::try_from(random.below(NODES as u64)).unwrap()];
            let request = format!("POST /v1/sessions/{id}/prompt");
            let answer = api.ask(&request, Some(&text), &json!({ "text": text }));
            match answer {
                Some((200, reply)) if reply["text"] == format!("done {text}") => break,
                // The errors that say: repeat it with its key.
                None | Some((409 | 429 | 500 | 503, _)) => {}
                Some((status, told)) => {
                    seen.problems.lock().unwrap().push(format!("{text}: {status} {told}"));
                    return number;
                }
            }
            refused_at.get_or_insert_with(Instant::now);
            seen.refused.fetch_add(1, Ordering::Relaxed);
            if began.elapsed() > PATIENCE {
                seen.problems.lock().unwrap().push(format!("{text} is never answered: {answer:?}"));
                return number;
            }
            std::thread::park_timeout(Duration::from_millis(100 + random.below(200)));
        }
        if let Some(at) = refused_at {
            let gap_ms = u64::try_from(at.elapsed().as_millis()).unwrap();
            seen.gap_ms.fetch_max(gap_ms, Ordering::Relaxed);
        }
        seen.answered.fetch_add(1, Ordering::Relaxed);
        number += 1;
        std::thread::park_timeout(Duration::from_millis(random.below(400)));
    }
    number
}

/// A life of a cluster with so many sessions and faults. Each fault comes while clients are at work: after the one before, a
/// tenth of them got an answer.
#[expect(clippy::print_stderr, reason = "the measured gaps are for a person")]
fn live(seed: u64, sessions: u64, faults: u64) {
    let Some(mut cluster) = Cluster::start() else { return };
    let apis: Vec<Api> = (0..NODES).map(|at| cluster.api(at)).collect();
    let (stop, seen) = (Arc::<AtomicBool>::default(), Arc::<Seen>::default());
    let clients: Vec<_> = (0..sessions)
        .map(|number| {
            let (apis, stop, seen) = (apis.clone(), Arc::clone(&stop), Arc::clone(&seen));
            std::thread::spawn(move || {
                client(&format!("s{number}"), &apis, &stop, &seen, seed ^ (number + 1))
            })
        })
        .collect();
    let mut random = Random::new(seed);
    let mut happened = std::collections::BTreeMap::<&str, u64>::new();
    for number in 0..faults {
        let answered = seen.answered.load(Ordering::Relaxed);
        std::thread::park_timeout(Duration::from_millis(300 + random.below(1_200)));
        seen.wait_for(answered + sessions / 10);
        if !seen.problems.lock().unwrap().is_empty() {
            break;
        }
        if number > 0 && number % 20 == 0 {
            eprintln!("{number} faults, {answered} prompts answered");
        }
        // Each kind comes, and their order is random.
        let kind = if number < 5 { number } else { random.below(5) };
        let at = usize::try_from(random.below(NODES as u64)).unwrap();
        *happened.entry(cluster.fault(kind, at)).or_default() += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let counts: Vec<u64> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert_eq!(*seen.problems.lock().unwrap(), [""; 0], "seed {seed}");
    eprintln!(
        "seed {seed}: {happened:?}; {} prompts answered, {} tries refused, the longest gap {} ms",
        seen.answered.load(Ordering::Relaxed),
        seen.refused.load(Ordering::Relaxed),
        seen.gap_ms.load(Ordering::Relaxed)
    );
    check(&cluster, &apis[0], &counts, seed);
    assert!(seen.answered.load(Ordering::Relaxed) >= sessions * 2, "clients got on");
    for mut node in cluster.nodes.drain(..) {
        let process = node.running.take().unwrap();
        process.signal(Signal::TERM);
        drop(process.end_within(END_WITHIN));
    }
}

/// Checks what is stored.
fn check(cluster: &Cluster, api: &Api, counts: &[u64], seed: u64) {
    let effects = std::fs::read_to_string(cluster.folder.path().join("effects")).unwrap_or_default();
    let mut times = std::collections::HashMap::<&str, u64>::new();
    effects.lines().for_each(|line| *times.entry(line).or_default() += 1);
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "seed {seed}: effects that happened twice: {twice:?}");
    for (number, count) in counts.iter().enumerate() {
        let request = format!("GET /v1/sessions/s{number}/conversation");
        let shown =
            (0..50).find_map(|_| api.ask(&request, None, &Value::Null).filter(|(status, _)| *status == 200));
        let (_, shown) = shown.unwrap();
        let said = shown["conversation"].as_array().unwrap();
        let of = |role: &str| -> Vec<String> {
            let said = said.iter().filter(|said| said["role"] == role);
            said.map(|said| said["text"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let prompts: Vec<String> = (0..*count).map(|prompt| format!("s{number}.{prompt}")).collect();
        assert_eq!(of("user"), prompts, "seed {seed}");
        let answers = of("assistant");
        for prompt in &prompts {
            let done = format!("done {prompt}");
            let answered = answers.iter().filter(|answer| **answer == done).count();
            assert_eq!(answered, 1, "seed {seed}: {prompt}");
        }
    }
    let later = "select count(*) from (select epoch, lag(epoch) over (partition by session order by id) as before \
                 from greenroom.entry) as entry where epoch < before";
    assert_eq!(cluster.server.sql(later).trim(), "0", "seed {seed}: an owner wrote after the next one");
    let holes = "select count(*) from (select session, count(*) as entries, max(id) as newest from greenroom.entry \
                 group by session) as log where entries <> newest + 1";
    assert_eq!(cluster.server.sql(holes).trim(), "0", "seed {seed}: a log has a hole");
}

#[test]
fn a_cluster_lives_through_faults() {
    live(7, 6, 8);
}

/// 300 sessions and 300 faults, by hand: `cargo nextest run --release -p greenroom-cli --run-ignored only -E
/// 'test(a_cluster_lives_through_300)'`.
#[test]
#[ignore = "takes a quarter of an hour"]
#[expect(clippy::disallowed_methods, reason = "a test is told how long to run")]
fn a_cluster_lives_through_300_faults() {
    let faults = std::env::var("GREENROOM_FAULTS").ok().and_then(|text| text.parse().ok());
    live(11, 300, faults.unwrap_or(300));
}

/// A node is frozen and never resumes. What other nodes forwarded to it, or forward now, is answered once its lease has run
/// out: reads, prompts with a key, and anything else with a 503. No session is lost with it.
#[test]
fn nobody_waits_for_a_frozen_node() {
    let Some(mut cluster) = Cluster::start() else { return };
    let prompt = |api: &Api, id: &str, text: &str, key: Option<&str>| {
        api.ask(&format!("POST /v1/sessions/{id}/prompt"), key, &json!({ "text": text }))
    };
    let ids: Vec<String> = (0..6).map(|number| format!("s{number}")).collect();
    for id in &ids {
        for at in 0..NODES {
            let (status, told) = prompt(&cluster.api(at), id, &format!("{id}.{at}"), None).unwrap();
            assert_eq!(status, 200, "{told}");
        }
    }
    let owners =
        "select s.id, n.name from greenroom.session s join greenroom.node n on n.incarnation = s.owner";
    let owners = cluster.server.sql(owners);
    let owner = owners.lines().next().unwrap().split('|').nth(1).unwrap().trim();
    let at = cluster.nodes.iter().position(|node| node.name == owner).unwrap();
    let process = cluster.nodes[at].running.take().unwrap();
    process.signal(Signal::STOP);
    let api = cluster.api((at + 1) % NODES);
    let of_it = owners.lines().filter(|line| line.ends_with(owner)).count();
    let asked: Vec<_> = ids
        .iter()
        .flat_map(|id| [(id, "read"), (id, "keyed"), (id, "bare")])
        .map(|(id, way)| {
            let (id, api) = (id.clone(), api.clone());
            std::thread::spawn(move || {
                let answer = match way {
                    "read" => api.ask(&format!("GET /v1/sessions/{id}/conversation"), None, &Value::Null),
                    "keyed" => prompt(&api, &id, &format!("{id}.keyed"), Some(&format!("{id}.keyed"))),
                    _ => api.ask(&format!("PUT /v1/sessions/{id}/title"), None, &json!({ "title": "t" })),
                };
                (id, way, answer)
            })
        })
        .collect();
    let mut lost = 0;
    for asked in asked {
        let (id, way, answer) = asked.join().unwrap();
        let (status, told) = answer.unwrap_or_else(|| panic!("{id}, {way}: no answer"));
        if way == "bare" && status == 503 {
            assert!(told["detail"].as_str().unwrap().contains("has lost its lease"), "{told}");
            lost += 1;
        } else {
            assert_eq!(status, 200, "{id}, {way}: {told}");
        }
    }
    assert!(lost >= 1 && lost <= of_it, "{lost} of {of_it}: {owners}");
    process.signal(Signal::KILL);
    drop(process.end());
}

/// What `doctor` says of the cluster: of each check, its name, whether it is well, and what was found.
fn diagnosis(cluster: &Cluster, place: &Place, secret: &Path) -> Vec<(String, bool, String)> {
    let arguments = ["doctor", "--json", "--store", &cluster.url(), "--cluster-secret-file"];
    let ran = place.run(&[&arguments[..], &[&secret.display().to_string()]].concat());
    let checks: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let check = |check: &Value| {
        let text = |name: &str| check[name].as_str().unwrap().to_owned();
        (text("check"), check["ok"].as_bool().unwrap(), text("found"))
    };
    let of_cluster = |(name, ..): &(String, bool, String)| matches!(&**name, "node" | "database" | "cluster");
    checks.iter().map(check).filter(of_cluster).collect()
}

#[test]
fn doctor_says_what_is_wrong_with_a_cluster() {
    let Some(mut cluster) = Cluster::start() else { return };
    let place = Place::new();
    let is_well = |checks: &[(String, bool, String)]| checks.iter().map(|(_, ok, _)| *ok).collect::<Vec<_>>();
    let checks = diagnosis(&cluster, &place, &cluster.secret);
    assert_eq!(is_well(&checks), [true; 4], "{checks:?}");
    assert!(checks[0].2.starts_with("PostgreSQL ") && checks[3].2.contains("node-2"), "{checks:?}");
    // This machine has another secret.
    let other = place.work().join("other");
    write_secret(&other, "another-another-another-another-\n");
    let checks = diagnosis(&cluster, &place, &other);
    assert_eq!(is_well(&checks), [true, false, false, false], "{checks:?}");
    assert!(checks[1].2.contains("its secret differs"), "{checks:?}");
    // A node is frozen: its lease is valid, and it does not answer; then its lease has run out.
    let process = cluster.nodes[1].running.take().unwrap();
    process.signal(Signal::STOP);
    let checks = diagnosis(&cluster, &place, &cluster.secret);
    assert!(!checks[2].1 || checks[2].2.contains("its lease expired"), "{checks:?}");
    std::thread::park_timeout(LEASE * 2);
    let checks = diagnosis(&cluster, &place, &cluster.secret);
    assert!(checks[2].2.contains("node-1") && checks[2].2.contains("its lease expired"), "{checks:?}");
    process.signal(Signal::KILL);
    drop(process.end());
    // There is no database.
    cluster.server.stop();
    let checks = diagnosis(&cluster, &place, &cluster.secret);
    assert_eq!(is_well(&checks), [false], "{checks:?}");
}

/// From the nodes' database to files, from there to another database, and back: the same conversation.
#[test]
fn sessions_are_copied_between_files_and_a_database() {
    let Some(mut cluster) = Cluster::start() else { return };
    for (number, id) in ["one", "two"].into_iter().enumerate() {
        let api = cluster.api(number);
        for prompt in 0..3 {
            let text = format!("{id}.{prompt}");
            let request = format!("POST /v1/sessions/{id}/prompt");
            let (status, told) = api.ask(&request, Some(&text), &json!({ "text": text })).unwrap();
            assert_eq!(status, 200, "{told}");
        }
    }
    let (files, back) = (Place::new(), Place::new());
    let ran = files.run(&["store", "copy", "--from", &cluster.url()]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("node-0, node-1, node-2") && ran.stderr.contains("stop them first"),
        "{ran:?}"
    );
    assert!(!files.store().exists(), "a copy that is refused creates no store");
    for node in &mut cluster.nodes {
        let process = node.running.take().unwrap();
        process.signal(Signal::TERM);
        drop(process.end_within(END_WITHIN));
    }
    cluster.server.sql("create database other");
    let (first, other) = (cluster.url(), cluster.url_of("other"));
    for (place, direction, url, entries, before) in [
        (&files, "--from", &first, 1.., 0),
        (&files, "--to", &other, 1.., 0),
        (&back, "--from", &other, 1.., 0),
        // What is there is not copied again.
        (&files, "--to", &other, 0.., 1),
    ] {
        let copied = place.json(&["store", "copy", direction, url, "--json"]);
        assert_eq!(copied["sessions"], 2, "{copied}");
        let count = |name: &str| copied[name].as_u64().unwrap();
        assert!(
            entries.contains(&count("entries")) && (count("entries_before") > 0) == (before > 0),
            "{copied}"
        );
    }
    for id in ["one", "two"] {
        // The first line names the folder of the command.
        let export = |place: &Place| place.run(&["export", id]).stdout.split_once('\n').unwrap().1.to_owned();
        assert!(export(&files).contains(&format!("done {id}.2")), "{}", export(&files));
        assert_eq!(export(&files), export(&back));
    }
    // The URL may be in the environment, and must be somewhere.
    let ran = files.run(&["store", "copy", "--to"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("GREENROOM_STORE"), "{ran:?}");
    // Another session of the same id is not overwritten.
    let other_one = Place::new();
    let ran = other_one.run(&["run", "hello", "--simulate", "--session", "one"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = other_one.run(&["store", "copy", "--to", &other]);
    assert!(ran.code != Some(0) && ran.stderr.contains("one") && ran.stderr.contains("differs"), "{ran:?}");
}

#[test]
fn what_a_cluster_lacks_is_said() {
    let place = Place::new();
    write_secret(&place.work().join("secret"), "cluster-cluster-cluster-cluster-\n");
    write_secret(&place.work().join("short"), "short\n");
    std::fs::write(place.work().join("open"), "cluster-cluster-cluster-cluster-\n").unwrap();
    std::fs::set_permissions(place.work().join("open"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let url = "postgresql:///postgres?host=/nowhere&user=postgres";
    for (arguments, told) in [
        (&["--store", "mysql://x"][..], "--store takes the URL of a PostgreSQL database"),
        (&["--store", url, "--listen", "0.0.0.0:7878"], "--advertise"),
        (&["--store", url, "--listen", "127.0.0.1:0"], "--advertise"),
        (&["--store", url, "--advertise", "somewhere"], "with its port"),
        (&["--store", url], "GREENROOM_CLUSTER_SECRET"),
        (&["--node", "a"], "need --store"),
        (
            &["--store", url, "--cluster-secret-file", "secret", "--lease", "0"],
            "--lease must be from 0.5 to 300 seconds",
        ),
        (&["--store", url, "--cluster-secret-file", "secret", "--node", ""], "--node takes a name"),
        (&["--store", url, "--cluster-secret-file", "nowhere"], "--cluster-secret-file nowhere"),
        (&["--store", url, "--cluster-secret-file", "open"], "chmod 600"),
        (
            &["--store", url, "--cluster-secret-file", "short"],
            "has 5 characters and can be guessed; it needs 32; `openssl",
        ),
    ] {
        let ran = place.run(&[&["serve", "--simulate"], arguments].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{arguments:?}: {}", ran.stderr);
        assert!(!place.store().join("journal").exists());
    }
}

//! `serve`, killed and started again: a client of its events has each durable one once, and a consumer each at least once,
//! and again only if it was not committed.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use greenroom_kernel::random::Random;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::serve::{END_MAX, Serving, serve};
use super::support::Place;

const SESSIONS: [&str; 3] = ["a", "b", "c"];
/// How long a client waits for what must come.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A client's knowledge of the server, which changes with each start.
#[derive(Clone)]
struct Api {
    address: String,
    token: String,
}

impl Api {
    fn of(server: &Serving) -> Self {
        Self { address: server.address.clone(), token: server.token.clone() }
    }

    /// Sends a request. By HTTP/1.0, so that the answer is not in chunks and ends with the connection.
    fn send(&self, request: &str, headers: &str, body: &str) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        let (address, token, length) = (&self.address, &self.token, body.len());
        write!(
            stream,
            "{request} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-type: \
             application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )?;
        Ok(stream)
    }

    /// The body of an answer; `None` if the server was killed before it was complete.
    fn ask(&self, request: &str, body: &Value) -> Option<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut answer = String::new();
        self.send(request, "", &body).ok()?.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let value = serde_json::from_str(body).ok()?;
        assert!(head.contains(" 200 "), "{request}: {answer}");
        Some(value)
    }
}

/// The place of an event: its session, that session's creation time, and its number.
fn place_of(event: &Value) -> ((String, u64), u64) {
    let number = |name: &str| event[name].as_u64().unwrap();
    let session = event["session_id"].as_str().unwrap().to_owned();
    ((session, number("session_created_at_ms")), number("seq"))
}

/// A client of the events of all sessions, over the lives of servers.
#[derive(Default)]
struct Watcher {
    last: Option<String>,
    next: BTreeMap<(String, u64), u64>,
    events: u64,
}

impl Watcher {
    /// Reads until the connection ends. Tells each durable event.
    fn watch(&mut self, api: &Api, told: &Sender<()>) {
        let last = self.last.as_deref().unwrap_or("0");
        let headers = format!("last-event-id: {last}\r\n");
        let Ok(stream) = api.send("GET /v1/events", &headers, "") else { return };
        let (mut id, mut data) = (None, None);
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.to_owned());
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = Some(text.to_owned());
            } else if line.is_empty() {
                // Only a whole event counts: it ends with an empty line.
                let (id, data) = (id.take(), data.take());
                if let (Some(_), Some(data)) = (&id, data) {
                    let (session, seq) = place_of(&serde_json::from_str(&data).unwrap());
                    let next = self.next.entry(session.clone()).or_default();
                    assert_eq!(seq, *next, "{session:?}: an event is missing, or came twice");
                    *next += 1;
                    self.events += 1;
                    // Nobody may be counting any more.
                    let _ = told.send(());
                }
                self.last = id.or(self.last.take());
            }
        }
    }
}

/// A consumer, over the lives of servers.
#[derive(Default)]
struct Reader {
    position: Option<Value>,
    /// What was returned with `position`.
    batch: BTreeMap<(String, u64), u64>,
    processed: BTreeMap<(String, u64), u64>,
    committed: BTreeMap<(String, u64), u64>,
    again: u64,
}

impl Reader {
    /// Reads until the server is gone, or if it does not wait, until there is nothing.
    fn consume(&mut self, api: &Api, wait_ms: u64) {
        loop {
            let body = json!({ "max": 7, "wait_ms": wait_ms, "commit": self.position });
            let Some(answer) = api.ask("POST /v1/consumers/billing/read", &body) else { return };
            // The answer acknowledges the commit.
            self.committed.append(&mut self.batch);
            self.position = answer.get("position").cloned();
            let events = answer["events"].as_array().unwrap();
            if events.is_empty() && wait_ms == 0 {
                return;
            }
            for event in events {
                let (session, seq) = place_of(event);
                let committed = self.committed.get(&session).copied().unwrap_or(0);
                let processed = self.processed.entry(session.clone()).or_default();
                assert!(seq >= committed, "{session:?}: {seq} was committed");
                assert!(seq <= *processed, "{session:?}: {processed} is missing before {seq}");
                self.again += u64::from(seq < *processed);
                *processed = (*processed).max(seq + 1);
                self.batch.insert(session, seq + 1);
            }
        }
    }
}

/// Kills a server so often. Returns how many events a watcher had, and how many came to the consumer again.
fn killed(seed: u64, kills: u64) -> (u64, u64) {
    let place = Place::new();
    let mut random = Random::new(seed);
    let (mut watcher, mut reader) = (Watcher::default(), Reader::default());
    for kill in 0..kills {
        let server = serve(&place, &[]);
        let api = Api::of(&server);
        let lives_for = 1 + random.below(60);
        let mut choice = Random::new(seed + kill);
        let (told, heard): (Sender<()>, Receiver<()>) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| watcher.watch(&api, &told));
            // A consumer that is killed, too, forgets what it would have committed.
            if kill % 2 == 1 {
                reader.position = None;
                reader.batch.clear();
            }
            scope.spawn(|| reader.consume(&api, 5_000));
            let prompts = api.clone();
            scope.spawn(move || {
                loop {
                    let id = SESSIONS[usize::try_from(choice.below(3)).unwrap()];
                    let request = format!("POST /v1/sessions/{id}/prompt");
                    if prompts.ask(&request, &json!({ "text": "Go on." })).is_none() {
                        return;
                    }
                }
            });
            for _ in 0..lives_for {
                heard
                    .recv_timeout(WAIT_MAX)
                    .unwrap_or_else(|_| panic!("seed {seed}, kill {kill}: no events"));
            }
            server.running.signal(Signal::KILL);
        });
        drop(server);
    }
    let server = serve(&place, &[]);
    let api = Api::of(&server);
    let sessions = api.ask("GET /v1/sessions", &Value::Null).unwrap();
    let ends: BTreeMap<(String, u64), u64> = sessions["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| {
            let number = |name: &str| session[name].as_u64().unwrap();
            ((session["id"].as_str().unwrap().to_owned(), number("created_at_ms")), number("entries"))
        })
        .collect();
    let (told, heard) = channel();
    std::thread::scope(|scope| {
        let left = ends.values().sum::<u64>() - watcher.events;
        scope.spawn(|| watcher.watch(&api, &told));
        reader.consume(&api, 0);
        for _ in 0..left {
            heard.recv_timeout(WAIT_MAX).unwrap_or_else(|_| panic!("seed {seed}: events are missing"));
        }
        server.running.signal(Signal::TERM);
        assert_eq!(server.running.end_within(END_MAX).code, Some(0));
    });
    assert_eq!(watcher.next, ends, "seed {seed}");
    assert_eq!(reader.processed, ends, "seed {seed}");
    (watcher.events, reader.again)
}

#[test]
fn a_killed_server_loses_no_event_of_its_clients() {
    let (events, _) = killed(7, 5);
    assert!(events > 60, "{events}");
}

/// As many kills as the environment asks for.
#[test]
#[ignore = "takes minutes"]
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "it is run by a person, who reads it")]
fn kills_of_a_server_on_request() {
    let told = std::env::var("GREENROOM_KILLS").ok();
    let mut left: u64 = told.and_then(|kills| kills.parse().ok()).unwrap_or(200);
    let mut seed = 1_000;
    while left > 0 {
        let kills = left.min(50);
        let (events, again) = killed(seed, kills);
        println!("seed {seed}: {kills} kills, {events} events, {again} of them came to the consumer again");
        left -= kills;
        seed += 100;
    }
}

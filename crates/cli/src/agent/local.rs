//! Servers that run on the user's own machine or network.
//!
//! Invariants: a server is asked for its list of models only, within a moment, without a key; the servers of this
//! machine are asked at the same time.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use greenroom::provider::BaseUrl;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// The provider of models that no vendor serves: the catalogue has no such provider.
pub(crate) const NAME: &str = "local";
/// Programs that serve models, with the addresses at which they usually listen.
const USUAL: [(&str, &str); 4] = [
    ("Ollama", "http://127.0.0.1:11434/v1"),
    ("LM Studio", "http://127.0.0.1:1234/v1"),
    ("llama.cpp", "http://127.0.0.1:8080/v1"),
    ("vLLM", "http://127.0.0.1:8000/v1"),
];
/// How long a server may take to connect, and to send each piece of its answer.
const MOMENT: Duration = Duration::from_millis(300);
/// How long its whole answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The maximum number of bytes of a list of models.
const BYTES_MAX: u64 = 1 << 20;

/// A server that answered with a list of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// The program that usually listens at this address.
    pub(crate) name: &'static str,
    pub(crate) address: &'static str,
    /// The names of its models.
    pub(crate) models: Vec<String>,
}

/// Returns the servers that run on this machine now.
pub(crate) fn running_now() -> Vec<Running> {
    let asked = USUAL.map(|(name, address)| {
        std::thread::spawn(move || {
            let models = models_at(address)?;
            Some(Running { name, address, models })
        })
    });
    asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
}

/// Returns the name of the program that usually listens at an address of this machine.
pub(crate) fn usual_name(base_url: &BaseUrl) -> Option<&'static str> {
    let is_there =
        |address: &str| address.parse::<BaseUrl>().is_ok_and(|usual| usual.port() == base_url.port());
    let found = USUAL.into_iter().find(|(_, address)| is_there(address));
    found.filter(|_| is_this_machine(base_url)).map(|(name, _)| name)
}

/// Whether an address is one of this machine or of a private network.
pub(crate) fn is_local(base_url: &BaseUrl) -> bool {
    let host = base_url.host();
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
        Err(_) => is_this_machine(base_url) || !host.contains('.') || host.ends_with(".local"),
    }
}

fn is_this_machine(base_url: &BaseUrl) -> bool {
    let host = base_url.host();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host == "localhost"
        || host.ends_with(".localhost")
        || address.is_some_and(|address| address.is_loopback())
}

/// Returns the names of the models that a server at this address lists.
fn models_at(address: &str) -> Option<Vec<String>> {
    let (host, _) = address.strip_prefix("http://")?.split_once('/')?;
    let mut stream = TcpStream::connect_timeout(&host.parse().ok()?, MOMENT).ok()?;
    stream.set_read_timeout(Some(MOMENT)).ok()?;
    let request = format!("GET /v1/models HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let began = Instant::now();
    models_of(&answer_within(stream, || began.elapsed())?)
}

/// Reads an answer; returns `None` if it takes too long.
fn answer_within(from: impl Read, elapsed: impl Fn() -> Duration) -> Option<String> {
    let (mut from, mut answer, mut piece) = (from.take(BYTES_MAX), Vec::new(), [0; 4096]);
    while elapsed() <= ANSWER_MAX {
        match from.read(&mut piece) {
            Ok(0) => return Some(String::from_utf8_lossy(&answer).into_owned()),
            Ok(bytes) => answer.extend_from_slice(piece.get(..bytes)?),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

/// Reads the names of the models in an answer.
fn models_of(answer: &str) -> Option<Vec<String>> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !(head.starts_with("HTTP/1.") && head.get(8..12) == Some(" 200")) {
        return None;
    }
    // A body in chunks has their sizes around it.
    let (first, last) = (body.find('{')?, body.rfind('}')?);
    let list: Value = match serde_json::from_str(body.get(first..=last)?) {
        Ok(list) => list,
        // Another form of a list: the server is there all the same.
        Err(_) => return Some(Vec::new()),
    };
    let models = list.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
    Some(models.iter().filter_map(|model| Some(model.get("id")?.as_str()?.to_owned())).collect())
}

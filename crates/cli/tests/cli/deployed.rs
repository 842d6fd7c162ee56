//! The templates in `deploy/`, with a real server: the container's health check, and the configuration.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::support::Place;

const TOKEN: &str = "fedcba9876543210fedcba9876543210";

fn template(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// The status and the body of an answer.
fn get(address: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: agents.example.com\r\n{token}connection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_server_of_the_templates_is_healthy_and_tells_prometheus_its_metrics() {
    let place = Place::new();
    let config = template("greenroom.yaml");
    let mut command = place.command(&["serve", "--listen", "127.0.0.1:0", "--simulate", "--config"]);
    command.arg(&config).env("METRICS_TOKEN", TOKEN);
    let mut running = place.start_command(command);
    let line = running.wait_for_word("http://");
    let address = line.split("http://").nth(1).unwrap().split(';').next().unwrap().to_owned();

    for (path, token, expected) in [
        ("/healthz", None, 200),
        ("/readyz", None, 200),
        ("/metrics", None, 401),
        ("/metrics", Some(TOKEN), 200),
        ("/v1/sessions", Some(TOKEN), 403),
    ] {
        assert_eq!(get(&address, path, token).0, expected, "{path} {token:?}");
    }
    let version = format!("greenroom_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    assert!(get(&address, "/metrics", Some(TOKEN)).1.contains(&version));

    // The health check of the container, with the port of this server.
    let dockerfile = std::fs::read_to_string(template("Dockerfile")).unwrap();
    let check = dockerfile.lines().find_map(|line| line.trim().strip_prefix("CMD [\"bash\"")).unwrap();
    let check: Vec<String> = serde_json::from_str(&format!("[\"bash\"{check}")).unwrap();
    let port = address.rsplit(':').next().unwrap();
    let is_healthy = |port: &str| {
        let arguments = check[1..].iter().map(|argument| argument.replace("7878", port));
        Command::new(&check[0]).args(arguments).output().unwrap().status.success()
    };
    assert!(dockerfile.contains("\"0.0.0.0:7878\""));
    assert!(is_healthy(port));
    running.signal(Signal::TERM);
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!is_healthy(port), "the server has ended");
}

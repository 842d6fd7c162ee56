//! The templates in `deploy/`, with real servers: the container's health check, the configuration, a cluster.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use greenroom_conformance::server::Server;
use rustix::process::Signal;
use serde::Deserialize as _;
use serde_json::Value;

use super::support::{Place, Running};

const TOKEN: &str = "fedcba9876543210fedcba9876543210";

fn template(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// The status and the body of an answer.
fn get(address: &str, path: &str, token: Option<&str>) -> (u16, String) {
    ask(address, "agents.example.com", &format!("GET {path}"), token, "")
}

fn ask(address: &str, host: &str, request: &str, token: Option<&str>, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: {host}\r\n{token}content-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
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

/// A node as the template for Kubernetes starts it, with what Kubernetes puts in place of its references.
fn start_pod(
    place: &Place,
    number: usize,
    server: &Server,
    config: &str,
    container: &Value,
) -> (Running, String) {
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let port = listen.rsplit(':').next().unwrap();
    let file = place.work().join("greenroom.yaml");
    std::fs::write(&file, config).unwrap();
    let words = container["args"].as_array().unwrap().iter().map(|word| {
        let word = word.as_str().unwrap();
        word.replace("0.0.0.0:7878", &listen)
            .replace("/etc/greenroom/greenroom.yaml", &file.to_string_lossy())
    });
    let words: Vec<String> = words.chain(["--simulate".to_owned()]).collect();
    let mut command = place.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    for variable in container["env"].as_array().unwrap() {
        let from = &variable["valueFrom"];
        let folder = server.socket().parent().unwrap().display().to_string();
        let value = match (
            variable["value"].as_str(),
            &from["fieldRef"]["fieldPath"],
            &from["secretKeyRef"]["key"],
        ) {
            (Some(value), ..) => value
                .replace("$(POD_IP)", "127.0.0.1")
                .replace("7878", port)
                .replace("/var/lib/greenroom", &place.work().to_string_lossy()),
            (None, field, _) if field == "metadata.name" => format!("greenroom-{number}"),
            (None, field, _) if field == "status.podIP" => "127.0.0.1".to_owned(),
            (None, _, key) if key == "store" => {
                format!("postgresql:///postgres?user=postgres&host={folder}&sslmode=disable")
            }
            (None, _, key) if key == "cluster-secret" => "cluster-cluster-cluster-cluster-".to_owned(),
            (None, _, key) if key == "client-token" => TOKEN.to_owned(),
            (None, _, key) if key == "model-key" => "sk-none".to_owned(),
            (None, ..) => panic!("{variable} has a reference that the test does not know"),
        };
        command.env(variable["name"].as_str().unwrap(), value);
    }
    let mut running = place.start_command(command);
    running.wait_for_word("http://");
    (running, listen)
}

#[test]
fn nodes_of_the_template_for_kubernetes_share_their_sessions() {
    let Some(server) = Server::start() else { return };
    let text = std::fs::read_to_string(template("kubernetes.yaml")).unwrap();
    let documents: Vec<Value> =
        serde_norway::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap()).collect();
    let of = |kind: &str| documents.iter().find(|one| one["kind"] == kind).unwrap();
    let config = of("ConfigMap")["data"]["greenroom.yaml"].as_str().unwrap();
    let container = &of("StatefulSet")["spec"]["template"]["spec"]["containers"][0];
    let places = [Place::new(), Place::new()];
    let pods: Vec<(Running, String)> = (0..)
        .zip(&places)
        .map(|(number, place)| start_pod(place, number, &server, config, container))
        .collect();
    for (_, address) in &pods {
        for probe in ["readinessProbe", "livenessProbe"] {
            let probe = &container[probe]["httpGet"];
            let host = probe["httpHeaders"][0]["value"].as_str().unwrap();
            let request = format!("GET {}", probe["path"].as_str().unwrap());
            assert_eq!(ask(address, host, &request, None, "").0, 200, "{request}");
        }
    }
    // What one node begins, the other finds.
    let prompt = r#"{"text":"hello"}"#;
    let answered = ask(&pods[0].1, "greenroom", "POST /v1/sessions/shared/prompt", Some(TOKEN), prompt);
    assert_eq!(answered.0, 200, "{answered:?}");
    let found = ask(&pods[1].1, "greenroom", "GET /v1/sessions/shared", Some(TOKEN), "");
    assert_eq!(found.0, 200, "{found:?}");
    for (pod, _) in pods {
        pod.signal(Signal::TERM);
        let ran = pod.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}
